"""Schedules that are fixed before the data: sigma_t = sigma_0 factor(t), epochs counted from 0.

With `every` = p, t is floor(epoch / p) in all of these, so the noise changes every p epochs only.

Source: Yu et al., Section IV-A1. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from pasearch.accounting.checks import fraction, positive, whole
from pasearch.registry import Checks
from pasearch.training.schedules.schedule import SCHEDULES, Schedule, Steepness, bounded, changes


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(Schedule):
    """A constant noise multiplier: every step draws new noise of the same size."""

    name: ClassVar[str] = "uniform"
    phrase: ClassVar[str] = "constant noise multiplier, new noise at every step"
    varies: ClassVar[bool] = False

    def factor(self, epoch: int) -> float:
        changes(epoch, 1)
        return 1.0


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBased(Schedule):
    """1 / (1 + k t).

    Args:
        rate: k, above 0.
        every: Epochs from one change to the next, 1 or more.
    """

    name: ClassVar[str] = "time"
    phrase: ClassVar[str] = "noise falls from epoch to epoch, as 1 / (1 + {rate:g} epoch)"
    checks: ClassVar[Checks] = {"rate": positive, "every": whole}
    steepness: ClassVar[Steepness | None] = Steepness(field="rate", flattest=1e-9, steepest=1e6)
    rate: float
    every: int = 1

    def factor(self, epoch: int) -> float:
        return bounded(1.0 / (1.0 + self.rate * changes(epoch, self.every)))

    def stretched(self, factor: float) -> Schedule:
        return replace(self, rate=self.rate / positive("factor", factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(Schedule):
    """e^(-k t).

    Args:
        rate: k, above 0.
        every: Epochs from one change to the next, 1 or more.
    """

    name: ClassVar[str] = "exponential"
    phrase: ClassVar[str] = "noise falls from epoch to epoch, as exp(-{rate:g} epoch)"
    checks: ClassVar[Checks] = {"rate": positive, "every": whole}
    steepness: ClassVar[Steepness | None] = Steepness(field="rate", flattest=1e-9, steepest=50.0)
    rate: float
    every: int = 1

    def factor(self, epoch: int) -> float:
        return bounded(math.exp(-self.rate * changes(epoch, self.every)))

    def stretched(self, factor: float) -> Schedule:
        return replace(self, rate=self.rate / positive("factor", factor))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecay(Schedule):
    """k^floor(t / period).

    Args:
        rate: k, in (0, 1).
        period: How often the noise falls, 1 or more; in epochs, unless `every` says otherwise.
        every: Epochs that count as one; the noise falls every `period * every` epochs.
    """

    name: ClassVar[str] = "step"
    phrase: ClassVar[str] = "noise times {rate:g} every {period:,} epochs"
    checks: ClassVar[Checks] = {"rate": fraction, "period": whole, "every": whole}
    steepness: ClassVar[Steepness | None] = Steepness(
        field="rate", flattest=1e-9, steepest=27.0, falling=True
    )
    rate: float
    period: int
    every: int = 1

    def factor(self, epoch: int) -> float:
        return bounded(self.rate ** (changes(epoch, self.every) // self.period))

    def stretched(self, factor: float) -> Schedule:
        return replace(self, period=max(1, round(self.period * positive("factor", factor))))


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial(Schedule):
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
    phrase: ClassVar[str] = (
        "noise falls to {end:g} of its start in {period:,} epochs, by the power {power:g} of what "
        "is left"
    )
    checks: ClassVar[Checks] = {
        "power": positive, "end": fraction, "period": whole, "every": whole,
    }  # fmt: skip
    steepness: ClassVar[Steepness | None] = Steepness(field="power", flattest=1e-6, steepest=1e4)
    power: float
    end: float
    period: int
    every: int = 1

    def factor(self, epoch: int) -> float:
        left = max(0.0, 1.0 - changes(epoch, self.every) / self.period)
        return bounded((1.0 - self.end) * left**self.power + self.end)

    def stretched(self, factor: float) -> Schedule:
        return replace(self, period=max(1, round(self.period * positive("factor", factor))))
