"""Flat clipping: factor min(1, C / norm), sensitivity C.

Source: Abadi et al. 2016. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.registry import Checks
from pasearch.training.bounding.bound import BOUNDINGS, Bound, checked_bound

if TYPE_CHECKING:
    from torch import Tensor


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Flat(Bound):
    """Clip every record's gradient, all layers together, to norm C.

    Args:
        clip_norm: C, 1e-12 or above.
    """

    name: ClassVar[str] = "flat"
    phrase: ClassVar[str] = "clipped to norm {clip_norm:g}"
    checks: ClassVar[Checks] = {"clip_norm": checked_bound}
    clips_noise: ClassVar[bool] = True
    clip_norm: float = 1.0

    @property
    def sensitivity(self) -> float:
        return self.clip_norm

    @property
    def terms(self) -> tuple[float, float, float]:
        return self.clip_norm, 0.0, 1.0

    def within(self, norms: Tensor) -> Tensor:
        return norms <= self.clip_norm
