"""Clipping layer by layer: factor min(1, C_l / norm_l), sensitivity sqrt(sum C_l^2).

Source: McMahan et al. 2018. Proof: docs/guarantees/bounding.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.errors import UsageError
from pasearch.training.bounding.bound import BOUNDINGS, SLACK, Bound, checked_bound, finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayer(Bound):
    """Clip every layer's part of a record's gradient to a norm of its own.

    Args:
        clip_norm: C, of all layers together, 1e-12 or above: every one of L layers has
            C / sqrt(L), unless `clip_norms` says otherwise.
        clip_norms: C_l of each trainable layer, in the network's order.
    """

    name: ClassVar[str] = "per-layer"
    layered: ClassVar[bool] = True
    clip_norm: float = 1.0
    clip_norms: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", checked_bound("clip_norm", self.clip_norm))
        if self.clip_norms is not None:
            if not isinstance(self.clip_norms, (tuple, list)) or not self.clip_norms:
                raise UsageError(
                    f"clip_norms is {self.clip_norms!r}: expected one number for each trainable "
                    "layer, or None."
                )
            each = tuple(checked_bound("clip_norms", value) for value in self.clip_norms)
            object.__setattr__(self, "clip_norms", each)
            object.__setattr__(self, "clip_norm", math.sqrt(math.fsum(c * c for c in each)))

    @property
    def sensitivity(self) -> float:
        """C, the root of the sum of the squares; a grain more, for its own rounding."""
        return self.clip_norm * (1 + 1e-12)

    def of_layers(self, count: int, device: str | torch.device = "cpu") -> Tensor:
        """Return C_l of so many layers, float32 rounded down, (count, 1); made on the device."""
        import torch

        given = self.clip_norms or (self.clip_norm / math.sqrt(count),) * count
        if len(given) != count:
            raise UsageError(
                f"clip_norms has {len(given)} numbers, and the network {count} trainable layers: "
                "give each layer its own, or clip_norm alone."
            )
        each = [torch.full((1, 1), value, dtype=torch.float32, device=device) for value in given]
        return torch.cat(each) * (1 - 1e-7)

    def factors(self, norms: Tensor) -> Tensor:
        """Return each layer's and record's factor, from the norms: both (layers, batch)."""
        bounds = self.of_layers(len(norms), norms.device)
        return finite(norms, (bounds / (norms * SLACK)).clamp(max=1.0))

    def within(self, norms: Tensor) -> Tensor:
        return norms <= self.of_layers(len(norms), norms.device)

    def words(self) -> str:
        if self.clip_norms is None:
            return f"clipped layer by layer, to norm {self.clip_norm:g} in all"
        each = ", ".join(f"{value:g}" for value in self.clip_norms)
        return f"clipped layer by layer, to norms {each}"
