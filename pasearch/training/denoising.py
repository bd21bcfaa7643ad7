"""Denoising: what is done to a noisy sum before the optimizer has it. Post-processing: price 0."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from pasearch.registry import Registry, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from pasearch.accounting.densities import Density


class Denoising(Stage):
    """A weight for each noisy sum, from the sum and the law of its noise alone."""

    __slots__ = ()

    relative: bool
    """Whether weights are divided by their mean over the steps so far."""

    @abstractmethod
    def weight(self, noisy: Tensor, density: Density) -> Tensor:
        """Return what the sum is multiplied by, a scalar on the same device.

        Guarantee: a function of its two arguments.

        Args:
            noisy: The noisy sum, (d,), of all parameters.
            density: Of the noise on one coordinate, as it was added.
        """


DENOISINGS = Registry(
    "denoising", Denoising, "pasearch.training.encoded.denoising", default="kolmogorov-smirnov",
    example="{ cells = 4096 }",
)  # fmt: skip
