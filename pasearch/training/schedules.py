"""How the noise falls from epoch to epoch: sigma_t = sigma_0 factor(t), epochs counted from 0.

    Uniform                        1
    TimeBased(k)                   1 / (1 + k t)
    Exponential(k)                 e^(-k t)
    StepDecay(k, period)           k^floor(t / period)
    Polynomial(k, end, period)     (1 - end) (1 - t / period)^k + end,  and `end` from `period` on
    Validation(k, threshold, m)    times k whenever the mean of m accuracies rose by too little

With `every` = p, t is floor(epoch / p) in all of these, so the noise changes every p epochs only.
The first five are fixed before the data, and composed step by step. `Validation` follows what it
is told: here is its rule only. The trainer prices it, by a Renyi filter whose limit is the uniform
plan; the accuracies are from public records, or are charged.

Source: Yu et al., Sections IV-A1 and IV-A2. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar

from pasearch.accounting import zcdp
from pasearch.accounting.checks import fraction, kind_of, nonnegative, positive, whole
from pasearch.errors import UsageError

LEAST = 1e-6
"""The smallest factor: where a formula gives less, this is used, and priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """The same noise in every epoch."""

    name: ClassVar[str] = "uniform"

    def factor(self, epoch: int) -> float:
        """Return 1."""
        _changes(epoch, 1)
        return 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBased:
    """1 / (1 + k t).

    Args:
        rate: k, above 0.
        every: Epochs from one change to the next, 1 or more.
    """

    name: ClassVar[str] = "time"
    rate: float
    every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "rate", positive("rate", self.rate))
        object.__setattr__(self, "every", whole("every", self.every))

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1]."""
        return _within(1.0 / (1.0 + self.rate * _changes(epoch, self.every)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """e^(-k t).

    Args:
        rate: k, above 0.
        every: Epochs from one change to the next, 1 or more.
    """

    name: ClassVar[str] = "exponential"
    rate: float
    every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "rate", positive("rate", self.rate))
        object.__setattr__(self, "every", whole("every", self.every))

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1]."""
        return _within(math.exp(-self.rate * _changes(epoch, self.every)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay:
    """k^floor(t / period).

    Args:
        rate: k, in (0, 1).
        period: How often the noise falls, 1 or more; in epochs, unless `every` says otherwise.
        every: Epochs that count as one; the noise falls every `period * every` epochs.
    """

    name: ClassVar[str] = "step"
    rate: float
    period: int
    every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "rate", fraction("rate", self.rate))
        object.__setattr__(self, "period", whole("period", self.period))
        object.__setattr__(self, "every", whole("every", self.every))

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1]."""
        return _within(self.rate ** (_changes(epoch, self.every) // self.period))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial:
    """(1 - end) (1 - t / period)^k + end; from `period` on, `end`.

    The paper's (sigma_0 - sigma_end) (1 - t / period)^k + sigma_end, divided by sigma_0: so sigma_0
    10 and sigma_end 2 are end = 0.2, whatever noise sigma_0 is solved to be.

    Args:
        power: k, above 0; 1 is a straight line.
        end: sigma_end / sigma_0, in (0, 1).
        period: When `end` is reached, 1 or more; in epochs, unless `every` says otherwise.
        every: Epochs that count as one; `end` is reached after `period * every` epochs.
    """

    name: ClassVar[str] = "polynomial"
    power: float
    end: float
    period: int
    every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "power", positive("power", self.power))
        object.__setattr__(self, "end", fraction("end", self.end))
        object.__setattr__(self, "period", whole("period", self.period))
        object.__setattr__(self, "every", whole("every", self.every))

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1]."""
        left = max(0.0, 1.0 - _changes(epoch, self.every) / self.period)
        return _within((1.0 - self.end) * left**self.power + self.end)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The noise falls when the accuracy stops rising: the rule alone, which sees accuracies only.

        at every `period`-th accuracy:  S = mean of the last m;  if S - S_before <= threshold,
                                        factor *= k;  S_before = S          S_before = 0 at first

    Args:
        rate: k, in (0, 1).
        threshold: delta; a rise of no more than that counts as none. 0 or above.
        average: m, 1 or more; the paper's moving average.
        period: Accuracies from one comparison to the next, m or more; None takes m.
        every: Epochs from one accuracy to the next, 1 or more; the paper has 1.

    Cost: none of its own. Each accuracy is from declared-public records, or charged; and the noise
    depends on what was released, so the trainer keeps a filter (`accounting.filters`).
    """

    name: ClassVar[str] = "validation"
    rate: float
    threshold: float
    average: int = 1
    period: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "rate", fraction("rate", self.rate))
        object.__setattr__(self, "threshold", nonnegative("threshold", self.threshold))
        object.__setattr__(self, "average", whole("average", self.average))
        period = self.average if self.period is None else whole("period", self.period)
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "every", whole("every", self.every))
        if period < self.average:
            raise UsageError(
                f"period is {period}: expected average ({self.average}) or above, so that no "
                "accuracy is in two of the means that are compared."
            )

    def start(self) -> ValidationState:
        """Return the state before the first accuracy."""
        return ValidationState(rule=self)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return _plain(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationState:
    """Where a validation-driven schedule stands.

    Guarantee: a function of the rule and of the accuracies that it was told.

    Args:
        rule: What it follows.
        factor: sigma_t / sigma_0 from now on, in (0, 1].
        recent: The last m accuracies, at most.
        told: Accuracies since the last comparison.
        before: The mean at the last comparison.
    """

    rule: Validation
    factor: float = 1.0
    recent: tuple[float, ...] = ()
    told: int = 0
    before: float = 0.0

    def tell(self, accuracy: float) -> ValidationState:
        """Return the next state.

        Args:
            accuracy: A share of right answers. A noisy one may lie outside [0, 1].

        Raises:
            UsageError: No finite number.
        """
        recent = (*self.recent, _accuracy(accuracy))[-self.rule.average :]
        told = self.told + 1
        factor, before = self.factor, self.before
        if told == self.rule.period:
            mean = math.fsum(recent) / self.rule.average
            if mean - before <= self.rule.threshold:
                factor = _within(factor * self.rule.rate)
            told, before = 0, mean
        return ValidationState(
            rule=self.rule, factor=factor, recent=recent, told=told, before=before
        )


Schedule = Uniform | TimeBased | Exponential | StepDecay | Polynomial
"""Fixed before the data: `factor(epoch)` is all there is."""
SCHEDULES: dict[str, type[Schedule | Validation]] = {
    kind.name: kind for kind in (Uniform, TimeBased, Exponential, StepDecay, Polynomial, Validation)
}


def stretched(schedule: Schedule | Validation, factor: float) -> Schedule | Validation:
    """Return a schedule whose fall takes `factor` times as many epochs.

    A paper's numbers are for its own number of epochs; over ten times as many, the same rate would
    leave next to no noise at the end, and so need next to no signal before.

    Args:
        schedule: One that follows a validation set is its own clock, and stays as it is.
        factor: Above 0.
    """
    positive("factor", factor)
    match schedule:
        case TimeBased() | Exponential():
            return replace(schedule, rate=schedule.rate / factor)
        case StepDecay() | Polynomial():
            return replace(schedule, period=max(1, round(schedule.period * factor)))
    return schedule


def schedule_from_json(values: dict[str, Any]) -> Schedule | Validation:
    """Read what `to_json` wrote.

    Raises:
        UsageError: An unknown name or number.
    """
    kind, numbers = kind_of("schedule", SCHEDULES, values)
    return kind(**numbers)


RATES = {
    "time": ("rate", 1e-12, 1e12),
    "exponential": ("rate", 1e-12, 1e3),
    "step": ("rate", 1.0 - 1e-12, 1e-12),
    "polynomial": ("power", 1e-12, 1e12),
}
"""Each decay's rate: its field, and its range from the flattest to the steepest."""


def solve_rate(
    kind: str, *, noise_multiplier: float, rho: float, epochs: int, **settings: Any
) -> float:
    """Return the steepest decay of a kind at which so many reshuffled epochs cost rho at most.

    All of rho is spent, but for rounding. Flatter decays, down to (and without) the rate of one
    epoch more, have the same number of epochs. Table III has the least rate of a grid among all
    these: for "step" the first at or above this one, else the first above that of one epoch more.

    Args:
        kind: "time", "exponential", "step" or "polynomial" (whose rate is its power).
        noise_multiplier: sigma_0, above 0.
        rho: The budget, above 0.
        epochs: 1 or more.
        settings: The schedule's other fields, such as `period`.

    Returns:
        k, on the side that costs rho at most.

    Raises:
        UsageError: An unknown kind or setting, or no rate does that.

    Source: Yu et al., Section V-B2 ("The effect of decay functions").

    >>> round(solve_rate("step", noise_multiplier=10.0, rho=0.78125, epochs=40, period=10), 4)
    0.7008
    """
    if kind not in RATES:
        raise UsageError(f"kind is {kind!r}: expected one of {', '.join(RATES)}.")
    name, flat, steep = RATES[kind]

    def make(rate: float) -> Schedule:
        schedule = schedule_from_json({**settings, "name": kind, name: rate})
        assert not isinstance(schedule, Validation)
        return schedule

    return zcdp.steepest_rate(
        make, flat=flat, steep=steep, noise_multiplier=noise_multiplier, rho=rho, epochs=epochs
    )


def _changes(epoch: int, every: int) -> int:
    """Return t, the number of changes before an epoch."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not int(epoch) >= 0:
        raise UsageError(f"epoch is {epoch!r}; expected a whole number, 0 or above.")
    return int(epoch) // every


def _within(factor: float) -> float:
    return min(1.0, max(LEAST, factor))


def _accuracy(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UsageError(f"accuracy is {value!r}; expected a finite number, a share.")
    return float(value)


def _plain(schedule: Schedule | Validation) -> dict[str, Any]:
    names = [field.name for field in fields(schedule)]
    return {"name": schedule.name, **{name: getattr(schedule, name) for name in names}}
