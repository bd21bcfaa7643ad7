"""A bound: factor R / sqrt(norm^2 + R^2), which has no edge where others clip.

Sensitivity R: norm times factor is below R, whatever the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pasearch.training.bounding.bound import BOUNDINGS, SLACK, Bound, checked_bound, finite


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothClip(Bound):
    """Scale every record's gradient to a norm below R, the smaller ones less.

    Args:
        bound: R, 1e-12 or above.
    """

    name: ClassVar[str] = "smooth-clip"
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "bound", checked_bound("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """R."""
        return self.bound

    def factors(self, norms: Tensor) -> Tensor:
        """Return each record's factor, (batch,), from its gradient's norm, (batch,)."""
        return finite(norms, self.bound / (norms * SLACK).hypot(norms.new_tensor(self.bound)))

    def words(self) -> str:
        """Return what is done to each gradient."""
        return f"scaled smoothly to a norm below {self.bound:g}"
