"""How a record's gradient is bounded: what every bound says of itself.

Sensitivity is under zero-out adjacency: a record is there, or adds 0. Norms are float32, so the
divisor is taken (1 + 1e-5) times too large. A norm that is not finite gets the factor 0.

Source: docs/rules.md, rules 2 and 14. Proof: docs/guarantees/dp-sgd.md (Flat, AutoS),
docs/guarantees/bounding.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import positive
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage
from pasearch.runs.sums import SUM_ROUNDING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pasearch.accounting.additive import Shifts
    from pasearch.training.per_example import Loss, PreparedNetwork
    from pasearch.training.record_sums import SumBuffers

NO_CLIPPING = math.inf, 0.0, 1.0  # `Bound.terms` of factors that are all 1
SLACK = 1.0 + 1e-5
"""How much too large a norm is taken, for the rounding of its computation."""
MOST = 1e12
"""The largest bound: above it, factors could be too large for float32."""
LEAST = 1e-12
"""The smallest bound: below it, squares of gradients and the factors would underflow in float32."""


class Bound(Stage):
    """A bound on what one record adds to a step's sum.

    Most are a factor on each gradient, which depends on its norm alone: `terms`, or else `factors`,
    are all they need.
    """

    __slots__ = ()

    layered: ClassVar[bool] = False
    """Whether every layer's norm has a factor of its own."""
    adapts: ClassVar[bool] = False
    """Whether the bound follows noisy counts of norms, from step to step: see `start`."""
    clips_noise: ClassVar[bool] = False
    """Whether noise on each record may come before it."""
    limits_coordinates: ClassVar[bool] = False
    """Whether every coordinate is bounded: then noise of any law has a price, by `shifts`."""
    takes_views: ClassVar[bool] = True
    """Whether it bounds the mean of several views' gradients."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Largest L2 norm that one record adds to the sum, in exact arithmetic."""

    @property
    def computed_sensitivity(self) -> float:
        """Largest L2 distance by which one record moves the sum as computed; noise scales to it."""
        return SUM_ROUNDING * self.sensitivity

    @property
    def one_variance(self) -> bool:
        """Whether all coordinates of a step's noisy sum have noise of one variance."""
        return True

    @property
    def terms(self) -> tuple[float, float, float] | None:
        """(top, plus, most) of factors min(most, top / (norm + plus)); None for others.

        Guarantee: norm times such a factor is at most `sensitivity`, norm + plus being above 0.
        """
        return None

    def factors(self, norms: Tensor) -> Tensor:
        """Return what gradients are multiplied by, from their norms.

        Guarantee: norm times factor is at most `sensitivity`; a norm that is not finite has 0.

        Args:
            norms: (batch,); of a layered bound (layers, batch), as is what is returned.
        """
        if self.terms is None:
            raise UsageError(f"bounding {self.name!r} has no factors of its own: see its `sums`.")
        top, plus, most = self.terms
        return finite(norms, (top / (norms * SLACK + plus)).clamp(max=most))

    def within(self, norms: Tensor) -> Tensor | None:
        """Return whether each norm is within the bound; None where that is not counted."""
        return None

    def sums(
        self,
        network: nn.Module | PreparedNetwork,
        x: Tensor,
        loss: Loss,
        mask: Tensor,
        *,
        views: int = 1,
        weights: Tensor | None = None,
        buffers: SumBuffers | None = None,
        counted: bool = True,
    ) -> tuple[list[Tensor], Tensor]:
        """Return the sum of bounded gradients, and counts: see `clipped_sum_and_counts`."""
        from pasearch.training.per_example import clipped_sum_and_counts

        return clipped_sum_and_counts(
            network,
            x,
            loss,
            self,
            mask,
            views=views,
            weights=weights,
            buffers=buffers,
            counted=counted,
        )

    def start(self, layers: int) -> tuple[float, ...]:
        """Return the first bounds of one that adapts: one, or one a layer."""
        return ()

    def at(self, bounds: tuple[float, ...]) -> Bound:
        """Return the bound of a step whose bounds are these."""
        return self

    def noises(self, noise_multiplier: float, counts: int) -> tuple[float, float]:
        """Return the noise multiplier of the gradients, and the counts' noise, in records."""
        raise NotImplementedError(f"{self.name} releases no counts")

    def moved(
        self, bounds: tuple[float, ...], centred: tuple[float, ...], expected_batch_size: int
    ) -> tuple[float, ...]:
        """Return the next bounds, from the released counts."""
        raise NotImplementedError(f"{self.name} releases no counts")

    def shifts(self, dimension: int) -> Shifts:
        """Return the sorted magnitudes that a record's bounded gradient has at most."""
        raise NotImplementedError(f"{self.name} does not bound every coordinate")


BOUNDINGS = Registry(
    "bounding", Bound, "pasearch.training.bounding", "pasearch.training.encoded",
    example='{ name = "flat", clip_norm = 1.0 }',
)  # fmt: skip


def checked_bound(name: str, value: object) -> float:
    """Return a norm that gradients may be bounded to.

    Raises:
        UsageError: Something else, or too small a number.
    """
    number = positive(name, value)
    if not number <= MOST:
        raise UsageError(
            f"{name} is {number}: expected at most {MOST:g}, so that float32 can hold what "
            "gradients are multiplied by. A usual value is 1."
        )
    if not number >= LEAST:
        raise UsageError(
            f"{name} is {number}: expected {LEAST} or above, so that float32 can tell which "
            "gradients exceed it. A usual value is 1."
        )
    return number


def flag(name: str, value: object) -> bool:
    """Return true or false; raise UsageError for anything else."""
    if type(value) is not bool:
        raise UsageError(f"{name} is {value!r}: expected true or false.")
    return value


def finite(norms: Tensor, factors: Tensor) -> Tensor:
    """Return the factors, 0 where the norm is not finite."""
    import torch

    return torch.where(norms < math.inf, factors, 0.0)


def has_terms(bounding: Bound) -> bool:
    """Check whether a clipping method's factors are those of its `terms`."""
    kind, named = type(bounding), bounding.terms is not None
    return named and kind.sums is Bound.sums and kind.factors is Bound.factors
