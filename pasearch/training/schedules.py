"""Noise schedules: sigma_t = sigma_0 factor(t), with t = floor(epoch / every) and epochs from 0.

    schedule       factor(t)
    uniform        1
    time           1 / (1 + k t)
    exponential    e^(-k t)
    step           k^floor(t / period)
    polynomial     (1 - end) (1 - t / period)^k + end
    validation     multiplied by k when the accuracy of validation queries stops rising

All but the last are fixed before data are read; their steps are composed. The steps of the last are
charged by a Renyi filter whose limit is the cost of constant noise. Its validation queries read
public records, or are charged in addition.

Source: Yu et al., Sections IV-A1 and IV-A2. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import ClassVar, Protocol, Self

from pasearch.accounting.checks import (
    check_fraction,
    check_nonnegative,
    check_positive,
    check_positive_integer,
)
from pasearch.accounting.published_bounds import PublishedBound, yu_theorem_3_schedule
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks, Registry, Stage, TrainingSteps

MIN_NOISE_FACTOR = 1e-6
"""Minimum factor; smaller results of a formula are replaced by it, also in the accounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecayRange:
    """Range in which `schedule_solver` searches the decay parameter of a schedule.

    Args:
        field: Field of the schedule that the parameter determines.
        min_value: Minimum of the parameter.
        max_value: Maximum of the parameter.
        falling: Whether the field is exp(-parameter). If not, it is the parameter itself.
    """

    field: str
    min_value: float
    max_value: float
    falling: bool = False


class ScheduleState(Protocol):
    """State of a validation-driven schedule."""

    @property
    def factor(self) -> float:
        """Ratio sigma_t / sigma_0 of the next steps, in (0, 1]."""
        ...

    def tell(self, accuracy: float) -> Self:
        """Compute the next state from the accuracy of a validation query."""
        ...


class Schedule(Stage):
    """Noise schedule; a data-independent schedule defines only `factor`."""

    __slots__ = ()

    varies: ClassVar[bool] = True
    """Whether the noise changes during the training."""
    is_validation_driven: ClassVar[bool] = False
    """Whether the noise depends on validation queries. If so, a privacy filter ends the training,
    and `factor` is 1.
    """
    steepness: ClassVar[DecayRange | None] = None
    """Range of the decay parameter, if `schedule_solver` can compute it."""

    @abstractmethod
    def factor(self, epoch: int) -> float:
        """Compute the planned ratio sigma_t / sigma_0 of an epoch, in (0, 1]."""

    def describe(self) -> str:
        every = getattr(self, "every", 1)
        return Stage.describe(self) + ("" if every == 1 else f"; t counts every {every:,} epochs")

    def stretch(self, factor: float) -> Schedule:
        """Make a schedule that decays over `factor` times as many epochs.

        The settings of a paper are for its number of epochs. With the same rate and ten times as
        many epochs, there would be almost no noise at the end. Schedules without a decay are
        returned unchanged.

        Args:
            factor: Factor on the number of epochs, above 0.
        """
        return self

    def count_validation_queries(self, epochs: int) -> int:
        """Compute the maximum number of validation queries in a number of epochs."""
        return 0

    def queries_after(self, epoch: int) -> bool:
        """Check whether there is a validation query after an epoch."""
        return False

    def start(self) -> ScheduleState:
        """Make the state before the first validation query."""
        raise NotImplementedError(f"{self.name} is not validation-driven")

    def list_published_bounds(self, steps: TrainingSteps) -> list[PublishedBound]:
        """Evaluate Theorem 3 of Yu et al., for changing noise on Poisson samples; never charged."""
        if not (self.varies and steps.sampled) or self.is_validation_driven:
            return []
        q = steps.sampling_probability
        return [yu_theorem_3_schedule([(q, *each) for each in steps.noises], steps.delta)]


SCHEDULES = Registry(
    "schedule", Schedule, "pasearch.training.schedules",
    example='{ name = "exponential", rate = 0.01 }',
)  # fmt: skip


def count_changes(epoch: int, every: int) -> int:
    """Compute t, the number of noise changes before an epoch."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not int(epoch) >= 0:
        raise UsageError(f"epoch is {epoch!r}: expected an integer, 0 or above.")
    return int(epoch) // every


def compute_polynomial_decay(t: float, period: float, power: float, end: float) -> float:
    """Compute (1 - end) (1 - t / period)^power + end, which is `end` from t = period on."""
    return (1.0 - end) * max(0.0, 1.0 - t / period) ** power + end


def clamp_factor(factor: float) -> float:
    """Clamp a factor to [`MIN_NOISE_FACTOR`, 1]."""
    return min(1.0, max(MIN_NOISE_FACTOR, factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSchedule(Schedule):
    """Schedule with a constant noise multiplier."""

    name: ClassVar[str] = "uniform"
    description_template: ClassVar[str] = "constant noise multiplier, new noise at every step"
    varies: ClassVar[bool] = False

    def factor(self, epoch: int) -> float:
        count_changes(epoch, 1)
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _RateSchedule(Schedule):
    """Base class of decays with a rate k; `stretch` divides the rate."""

    checks: ClassVar[FieldChecks] = {"rate": check_positive, "every": check_positive_integer}
    rate: float
    every: int = 1

    def stretch(self, factor: float) -> Schedule:
        return replace(self, rate=self.rate / check_positive("factor", factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecay(_RateSchedule):
    """Decay of the noise as 1 / (1 + k t).

    Args:
        rate: Decay rate k, above 0.
        every: Number of epochs between changes, 1 or more.
    """

    name: ClassVar[str] = "time"
    description_template: ClassVar[str] = (
        "noise falls from epoch to epoch, as 1 / (1 + {rate:g} epoch)"
    )
    steepness: ClassVar[DecayRange | None] = DecayRange(field="rate", min_value=1e-9, max_value=1e6)

    def factor(self, epoch: int) -> float:
        return clamp_factor(1.0 / (1.0 + self.rate * count_changes(epoch, self.every)))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDecay(_RateSchedule):
    """Decay of the noise as e^(-k t).

    Args:
        rate: Decay rate k, above 0.
        every: Number of epochs between changes, 1 or more.
    """

    name: ClassVar[str] = "exponential"
    description_template: ClassVar[str] = "noise falls from epoch to epoch, as exp(-{rate:g} epoch)"
    steepness: ClassVar[DecayRange | None] = DecayRange(
        field="rate", min_value=1e-9, max_value=50.0
    )

    def factor(self, epoch: int) -> float:
        return clamp_factor(math.exp(-self.rate * count_changes(epoch, self.every)))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay(Schedule):
    """Decay of the noise in steps, as k^floor(t / period).

    Args:
        rate: Factor k of each step, in (0, 1).
        period: Number of units of t between steps, 1 or more.
        every: Number of epochs per unit of t, 1 or more.
    """

    name: ClassVar[str] = "step"
    description_template: ClassVar[str] = "noise times {rate:g} every {period:,} epochs"
    checks: ClassVar[FieldChecks] = {
        "rate": check_fraction,
        "period": check_positive_integer,
        "every": check_positive_integer,
    }
    steepness: ClassVar[DecayRange | None] = DecayRange(
        field="rate", min_value=1e-9, max_value=27.0, falling=True
    )
    rate: float
    period: int
    every: int = 1

    def factor(self, epoch: int) -> float:
        return clamp_factor(self.rate ** (count_changes(epoch, self.every) // self.period))

    def stretch(self, factor: float) -> Schedule:
        return replace(self, period=max(1, round(self.period * check_positive("factor", factor))))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PolynomialDecay(Schedule):
    """Decay of the noise as (1 - end) (1 - t / period)^k + end; from t = period on, `end`.

    It is the paper's (sigma_0 - sigma_end) (1 - t / period)^k + sigma_end, divided by sigma_0. For
    example, sigma_0 = 10 and sigma_end = 2 in the paper are end = 0.2 here.

    Args:
        power: Exponent k, above 0; 1 is linear.
        end: Final factor sigma_end / sigma_0, in (0, 1).
        period: Value of t from which the factor is `end`, 1 or more.
        every: Number of epochs per unit of t, 1 or more.
    """

    name: ClassVar[str] = "polynomial"
    description_template: ClassVar[str] = (
        "noise falls to {end:g} of its start in {period:,} epochs, as the power {power:g} of the "
        "remaining fraction"
    )
    checks: ClassVar[FieldChecks] = {
        "power": check_positive, "end": check_fraction, "period": check_positive_integer,
        "every": check_positive_integer,
    }  # fmt: skip
    steepness: ClassVar[DecayRange | None] = DecayRange(
        field="power", min_value=1e-6, max_value=1e4
    )
    power: float
    end: float
    period: int
    every: int = 1

    def factor(self, epoch: int) -> float:
        t = count_changes(epoch, self.every)
        return clamp_factor(compute_polynomial_decay(t, self.period, self.power, self.end))

    def stretch(self, factor: float) -> Schedule:
        return replace(self, period=max(1, round(self.period * check_positive("factor", factor))))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSchedule(Schedule):
    """Schedule that reduces the noise when the validation accuracy stops rising.

    After every `period` accuracies, let S be the mean of the last m accuracies, and S' the mean at
    the previous comparison (at first 0). If S - S' <= threshold, the noise is multiplied by k.

    Args:
        rate: Factor k, in (0, 1).
        threshold: Maximum increase of the mean accuracy that counts as none, 0 or above.
        average: Number m of accuracies in a mean, 1 or more.
        period: Number of accuracies between comparisons, m or more. None: m.
        every: Number of epochs between accuracies, 1 or more; 1 in the paper.

    Cost: none in itself. Each accuracy is from declared-public records, or charged. As the noise
    depends on released values, the training uses a privacy filter (`accounting.renyi`).
    """

    name: ClassVar[str] = "validation"
    is_validation_driven: ClassVar[bool] = True
    rate: float
    threshold: float
    average: int = 1
    period: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_fraction("rate", self.rate))
        object.__setattr__(self, "threshold", check_nonnegative("threshold", self.threshold))
        object.__setattr__(self, "average", check_positive_integer("average", self.average))
        period = (
            self.average if self.period is None else check_positive_integer("period", self.period)
        )
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "every", check_positive_integer("every", self.every))
        if period < self.average:
            raise UsageError(
                f"period is {period}: expected average ({self.average}) or above, so that "
                "compared means share no accuracy."
            )

    def start(self) -> ValidationState:
        return ValidationState(rule=self)

    def factor(self, epoch: int) -> float:
        """Return 1, because the plan has constant noise; a filter ensures its privacy cost."""
        return 1.0

    def count_validation_queries(self, epochs: int) -> int:
        return max(1, epochs // self.every)

    def queries_after(self, epoch: int) -> bool:
        return epoch % self.every == 0

    def describe(self) -> str:
        mean = "" if self.average == 1 else f"the mean of the last {self.average:,}, "
        when = "after every epoch" if self.every == 1 else f"every {self.every:,} epochs"
        return (
            f"noise times {self.rate:g} when the accuracy of the validation queries ({mean}"
            f"compared every {self.period:,} queries) rises by {self.threshold:g} or less; a "
            f"validation query {when}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState:
    """State of a validation-driven schedule.

    Guarantee: the state depends only on the schedule and the accuracies passed to `tell`.

    Args:
        rule: Schedule of the training.
        factor: Ratio sigma_t / sigma_0 of the next steps, in (0, 1].
        recent: At most m latest accuracies.
        told: Number of accuracies since the last comparison.
        before: Mean accuracy at the last comparison.
    """

    rule: ValidationSchedule
    factor: float = 1.0
    recent: tuple[float, ...] = ()
    told: int = 0
    before: float = 0.0

    def tell(self, accuracy: float) -> ValidationState:
        """Compute the next state from an accuracy; with noise it may be outside [0, 1].

        Raises:
            UsageError: The accuracy is not a finite number.
        """
        known = isinstance(accuracy, Real) and not isinstance(accuracy, bool)
        if not known or not math.isfinite(accuracy):
            raise UsageError(f"accuracy is {accuracy!r}: expected a finite number.")
        recent = (*self.recent, float(accuracy))[-self.rule.average :]
        told = self.told + 1
        factor, before = self.factor, self.before
        if told == self.rule.period:
            mean = math.fsum(recent) / self.rule.average
            if mean - before <= self.rule.threshold:
                factor = clamp_factor(factor * self.rule.rate)
            told, before = 0, mean
        return ValidationState(
            rule=self.rule, factor=factor, recent=recent, told=told, before=before
        )
