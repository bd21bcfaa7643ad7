"""A bound that follows a noisy quantile of the gradients' norms.

    C_(t+1) = C_t exp(-rate (b - quantile))
    b = (sum over the batch of ([norm_i <= C_t] - 1/2) + N(0, s_b^2)) / (q n) + 1/2

The noisy sum is then multiplied by C_0 / C_t. A record moves the sum in b by at most 1/2. With z_g
on the gradients (in units of C_t) and s_b on the counts, a step is one Gaussian release of noise
multiplier z, z^-2 = z_g^-2 + sum_l (2 s_b)^-2. Here z is given, and `count_share` says how much of
z^-2 the counts take.

Source: Andrew et al. 2021. Proof: docs/guarantees/bounding.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import fraction, positive
from pasearch.errors import UsageError
from pasearch.registry import Checks
from pasearch.training.bounding.bound import BOUNDINGS, Bound, checked_bound, flag
from pasearch.training.bounding.flat import Flat
from pasearch.training.bounding.per_layer import PerLayer

if TYPE_CHECKING:
    from torch import Tensor

LEAST_MOVED, MOST_MOVED = 1e-6, 1e6
"""Between which the bound stays."""
MOST_RATE = 10.0
"""The fastest that it may move."""


def _rate(name: str, value: object) -> float:
    rate = positive(name, value)
    if not rate <= MOST_RATE:
        raise UsageError(f"{name} is {rate}: expected at most {MOST_RATE}; usual is 0.2.")
    return rate


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveQuantile(Bound):
    """Clip to a norm that follows a quantile of the batch's norms, estimated privately.

    Args:
        clip_norm: C_0, 1e-12 or above; of all layers together.
        quantile: The share of records that shall lie within the bound, in (0, 1).
        rate: How fast the bound moves, above 0.
        per_layer: Whether every layer has a bound, and a quantile, of its own.
        count_share: The share of the step's 1 / z^2 that the noisy counts take, in (0, 1).
    """

    name: ClassVar[str] = "adaptive"
    adapts: ClassVar[bool] = True
    checks: ClassVar[Checks] = {
        "clip_norm": checked_bound, "rate": _rate,
        "quantile": fraction, "count_share": fraction, "per_layer": flag,
    }  # fmt: skip
    clip_norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    per_layer: bool = False
    count_share: float = 0.05

    @property
    def sensitivity(self) -> float:
        """C_0: of the first step; later ones have `at(...).sensitivity`."""
        return self.clip_norm

    @property
    def one_variance(self) -> bool:
        """Bounds of their own give the layers different noise."""
        return not self.per_layer

    def factors(self, norms: Tensor) -> Tensor:
        """Refuse: only a step's own bound has factors."""
        raise UsageError("an adaptive bound has no factors of its own: give its `at(bounds)`.")

    def start(self, layers: int) -> tuple[float, ...]:
        if not self.per_layer:
            return (self.clip_norm,)
        return (self.clip_norm / math.sqrt(layers),) * layers

    def at(self, bounds: tuple[float, ...]) -> Flat | PerLayer:
        if self.per_layer:
            return PerLayer(clip_norms=bounds)
        return Flat(clip_norm=bounds[0])

    def noises(self, noise_multiplier: float, counts: int) -> tuple[float, float]:
        """Return (z_g, s_b): the gradients' noise multiplier, and the counts' noise, in records.

        The noise multiplier is z of the step, which releases so many counts: 1, or one a layer.

        Guarantee: z_g^-2 + counts (2 s_b)^-2 is at most z^-2.
        """
        grown = positive("noise_multiplier", noise_multiplier) * (1 + 1e-12)
        gradients = grown / math.sqrt(1.0 - self.count_share)
        return gradients, 0.5 * grown * math.sqrt(counts / self.count_share)

    def moved(
        self, bounds: tuple[float, ...], centred: tuple[float, ...], expected_batch_size: int
    ) -> tuple[float, ...]:
        """Return the next bounds, one or one a layer, as are C_t and the released counts.

        These are centred: the noisy sums of [norm_i <= C_t] - 1/2.
        """
        shares = [count / expected_batch_size + 0.5 for count in centred]
        moved = (
            bound * math.exp(-self.rate * (min(max(share, -1.0), 2.0) - self.quantile))
            for bound, share in zip(bounds, shares, strict=True)
        )
        return tuple(min(max(each, LEAST_MOVED), MOST_MOVED) for each in moved)

    def words(self) -> str:
        where = "layer by layer, each to a norm" if self.per_layer else "to a norm"
        return (
            f"clipped {where} that follows a noisy quantile of all norms, {self.quantile:g} "
            f"({self.clip_norm:g} at first, rate {self.rate:g}; the noisy counts take "
            f"{100 * self.count_share:g} % of each step's privacy)"
        )
