"""AUTO-S: factor R / (norm + gamma), sensitivity R.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pasearch.accounting.checks import positive
from pasearch.errors import UsageError
from pasearch.registry import Checks
from pasearch.training.bounding.bound import BOUNDINGS, Bound, checked_bound


def _gamma(name: str, value: object) -> float:
    gamma = positive(name, value)
    if not gamma >= 1e-6:
        raise UsageError(
            f"{name} is {gamma}: expected 1e-6 or above, so that a gradient whose norm rounds to 0 "
            "stays bounded. The usual value is 0.01."
        )
    return gamma


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoS(Bound):
    """Scale every record's gradient to norm near R, whatever it was.

    Args:
        bound: R, 1e-12 or above.
        gamma: Keeps the order of small gradients; 1e-6 or above, because a norm below about 1e-22
            is computed as 0.
    """

    name: ClassVar[str] = "auto-s"
    phrase: ClassVar[str] = (
        "scaled to about norm {bound:g}, large or small (AUTO-S, gamma {gamma:g})"
    )
    checks: ClassVar[Checks] = {"bound": checked_bound, "gamma": _gamma}
    bound: float = 1.0
    gamma: float = 0.01

    @property
    def sensitivity(self) -> float:
        return self.bound

    @property
    def terms(self) -> tuple[float, float, float]:
        return self.bound, self.gamma, math.inf
