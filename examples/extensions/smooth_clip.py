"""A clipping method: factor R / sqrt(norm^2 + R^2), which has no edge where others clip.

Sensitivity R: norm times factor is below R, whatever the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pasearch.registry import FieldChecks
from pasearch.training.clipping import (
    CLIPPING_METHODS,
    NORM_SLACK,
    ClippingMethod,
    check_clip_norm,
    zero_nonfinite_factors,
)


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothClip(ClippingMethod):
    """Scale each record's gradient to a norm below R, the smaller ones less.

    Args:
        bound: R, 1e-12 or above.
    """

    name: ClassVar[str] = "smooth-clip"
    description_template: ClassVar[str] = "scaled smoothly to a norm below {bound:g}"
    checks: ClassVar[FieldChecks] = {"bound": check_clip_norm}
    bound: float = 1.0

    @property
    def sensitivity(self) -> float:
        """R."""
        return self.bound

    def factors(self, norms: Tensor) -> Tensor:
        """Compute each record's factor, (batch,), from its gradient's norm, (batch,)."""
        size = (norms * NORM_SLACK).hypot(norms.new_tensor(self.bound))
        return zero_nonfinite_factors(norms, self.bound / size)
