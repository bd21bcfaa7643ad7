"""A schedule: noise falls along half a cosine, from 1 to `end` of its start.

factor(t) = end + (1 - end) (1 + cos(pi min(t, period) / period)) / 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from pasearch.accounting.checks import check_fraction, check_positive_integer
from pasearch.registry import FieldChecks
from pasearch.training.schedules import SCHEDULES, Schedule, clamp_factor, count_changes


@SCHEDULES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(Schedule):
    """Noise that falls slowly, then fast, then slowly.

    Args:
        end: The last noise over the first, in (0, 1).
        period: Epochs until then, 1 or more.
    """

    name: ClassVar[str] = "cosine"
    description_template: ClassVar[str] = (
        "noise falls along a cosine to {end:g} of its start in {period:,} epochs"
    )
    checks: ClassVar[FieldChecks] = {"end": check_fraction, "period": check_positive_integer}
    end: float
    period: int

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1]."""
        done = min(count_changes(epoch, 1), self.period) / self.period
        return clamp_factor(self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * done)) / 2.0)

    def stretch(self, factor: float) -> Schedule:
        """Return it with a longer period."""
        return replace(self, period=max(1, round(self.period * factor)))
