"""Noise schedules: sigma_t = sigma_0 factor(t), with t = floor(epoch / every) and epochs from 0.

    uniform        1                                    validation     falls when the accuracy of
    time           1 / (1 + k t)                                       validation queries stops
    exponential    e^(-k t)                                            rising
    step           k^floor(t / period)
    polynomial     (1 - end) (1 - t / period)^k + end

The decays are fixed before the data are read, and composed step by step. A schedule that follows
validation queries has the privacy cost of a Renyi filter whose limit is the uniform plan; the
queries read public records, or are charged.

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

MIN_NOISE_FACTOR = 1e-6  # a formula that gives less is replaced by this, which is charged


@dataclass(frozen=True, slots=True, kw_only=True)
class DecayRange:
    """Range of the decay parameter that `schedule_solver` searches.

    Args:
        field: Name of the schedule's field.
        min_value: Smallest value of the parameter.
        max_value: Largest value of the parameter.
        falling: Whether the field is exp(-parameter) instead of the parameter itself.
    """

    field: str
    min_value: float
    max_value: float
    falling: bool = False


class ScheduleState(Protocol):
    """State of a validation-driven schedule."""

    @property
    def factor(self) -> float:
        """sigma_t / sigma_0 from now on, in (0, 1]."""
        ...

    def tell(self, accuracy: float) -> Self:
        """Create the next state, after a validation query."""
        ...


class Schedule(Stage):
    """Noise schedule; a data-independent one defines `factor` only."""

    __slots__ = ()

    varies: ClassVar[bool] = True
    """Whether the noise changes."""
    is_validation_driven: ClassVar[bool] = False
    """Whether it depends on validation queries: then a filter ends the training, and `factor` is 1.
    """
    steepness: ClassVar[DecayRange | None] = None
    """Range of the decay parameter, for decays that can be solved for."""

    @abstractmethod
    def factor(self, epoch: int) -> float:
        """Compute the planned sigma_t / sigma_0, in (0, 1]."""

    def describe(self) -> str:
        every = getattr(self, "every", 1)
        return Stage.describe(self) + ("" if every == 1 else f"; t counts every {every:,} epochs")

    def stretch(self, factor: float) -> Schedule:
        """Create a schedule that decays over `factor` times as many epochs.

        The numbers of a paper are for its own number of epochs. Over ten times as many, the same
        rate would leave almost no noise at the end. A schedule that ignores epochs stays unchanged.

        Args:
            factor: Factor on the number of epochs, above 0.
        """
        return self

    def count_validation_queries(self, epochs: int) -> int:
        """Compute the largest number of validation queries in a number of epochs."""
        return 0

    def queries_after(self, epoch: int) -> bool:
        """Check whether a validation query follows an epoch."""
        return False

    def start(self) -> ScheduleState:
        """Create the state before the first validation query."""
        raise NotImplementedError(f"{self.name} is not validation-driven")

    def claims(self, steps: TrainingSteps) -> list[PublishedBound]:
        """Evaluate Theorem 3 of Yu et al., which is for noise that varies on Poisson samples."""
        if not (self.varies and steps.sampled) or self.is_validation_driven:
            return []
        q = steps.sampling_probability
        return [yu_theorem_3_schedule([(q, *each) for each in steps.noises], steps.delta)]


SCHEDULES = Registry(
    "schedule", Schedule, "pasearch.training.schedules",
    example='{ name = "exponential", rate = 0.01 }',
)  # fmt: skip


def count_changes(epoch: int, every: int) -> int:
    """Count the changes of the noise before an epoch: t."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not int(epoch) >= 0:
        raise UsageError(f"epoch is {epoch!r}: expected an integer, 0 or above.")
    return int(epoch) // every


def clamp_factor(factor: float) -> float:
    """Limit a factor to (0, 1]."""
    return min(1.0, max(MIN_NOISE_FACTOR, factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSchedule(Schedule):
    """A constant noise multiplier: every step draws new noise of the same size."""

    name: ClassVar[str] = "uniform"
    description_template: ClassVar[str] = "constant noise multiplier, new noise at every step"
    varies: ClassVar[bool] = False

    def factor(self, epoch: int) -> float:
        count_changes(epoch, 1)
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _RateSchedule(Schedule):
    """A decay at a rate k, which is divided by a factor to stretch the schedule."""

    checks: ClassVar[FieldChecks] = {"rate": check_positive, "every": check_positive_integer}
    rate: float
    every: int = 1

    def stretch(self, factor: float) -> Schedule:
        return replace(self, rate=self.rate / check_positive("factor", factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDecay(_RateSchedule):
    """1 / (1 + k t).

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
    """e^(-k t).

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
    """k^floor(t / period).

    Args:
        rate: Factor k, in (0, 1).
        period: Number of periods of `every` epochs between changes, 1 or more.
        every: Number of epochs that count as one, 1 or more.
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
    """(1 - end) (1 - t / period)^k + end; from `period` on, `end`.

    It is the paper's (sigma_0 - sigma_end) (1 - t / period)^k + sigma_end, divided by sigma_0. So
    sigma_0 10 and sigma_end 2 are end = 0.2, whatever sigma_0 is calibrated to.

    Args:
        power: Exponent k, above 0; 1 is linear.
        end: Final factor sigma_end / sigma_0, in (0, 1).
        period: Number of periods of `every` epochs until `end`, 1 or more.
        every: Number of epochs that count as one, 1 or more.
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
        left = max(0.0, 1.0 - count_changes(epoch, self.every) / self.period)
        return clamp_factor((1.0 - self.end) * left**self.power + self.end)

    def stretch(self, factor: float) -> Schedule:
        return replace(self, period=max(1, round(self.period * check_positive("factor", factor))))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSchedule(Schedule):
    """Noise that decreases when the validation accuracy stops rising.

        at every `period`-th accuracy:  S = mean of the last m;  if S - S_before <= threshold,
                                        factor *= k;  S_before = S          S_before = 0 at first

    Args:
        rate: Factor k, in (0, 1).
        threshold: Largest rise delta that counts as none, 0 or above.
        average: Length m of the paper's moving average, 1 or more.
        period: Number of accuracies between comparisons, m or more; None: m.
        every: Number of epochs between accuracies, 1 or more; the paper has 1.

    Cost: none by itself. Each accuracy is from declared-public records, or charged. The noise
    depends on released values, so the trainer keeps a privacy filter (`accounting.renyi`).
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
        """Compute 1: the plan has constant noise, and the filter keeps to its privacy cost."""
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

    Guarantee: a function of the rule and of the accuracies that were passed to `tell`.

    Args:
        rule: Schedule of the training.
        factor: Ratio sigma_t / sigma_0 from now on, in (0, 1].
        recent: Accuracies of the last m queries, at most.
        told: Number of accuracies since the last comparison.
        before: Mean at the last comparison.
    """

    rule: ValidationSchedule
    factor: float = 1.0
    recent: tuple[float, ...] = ()
    told: int = 0
    before: float = 0.0

    def tell(self, accuracy: float) -> ValidationState:
        """Create the next state after an accuracy; a noisy one may be outside [0, 1].

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
