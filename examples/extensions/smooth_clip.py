"""A bound: factor R / sqrt(norm^2 + R^2), which has no edge where others clip.

Sensitivity R: norm times factor is below R, whatever the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pasearch.registry import Checks
from pasearch.training.bounding.bound import BOUNDINGS, SLACK, Bound, checked_bound, finite


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothClip(Bound):
    """Scale every record's gradient to a norm below R, the smaller ones less.

    Args:
        bound: R, 1e-12 or above.
    """

    name: ClassVar[str] = "smooth-clip"
    phrase: ClassVar[str] = "scaled smoothly to a norm below {bound:g}"
    checks: ClassVar[Checks] = {"bound": checked_bound}
    bound: float = 1.0

    @property
    def sensitivity(self) -> float:
        """R."""
        return self.bound

    def factors(self, norms: Tensor) -> Tensor:
        """Return each record's factor, (batch,), from its gradient's norm, (batch,)."""
        return finite(norms, self.bound / (norms * SLACK).hypot(norms.new_tensor(self.bound)))
