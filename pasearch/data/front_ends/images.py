"""Front ends of images: scattering, and directions of made-up images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import whole
from pasearch.data.front_ends import FRONT_ENDS, FrontEnd, Recentred, Shape, image_of
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

NUMBER, OPERATION = 4.5e-7, 1.2e-11
"""Seconds that the scattering transform takes for each number of an image, and others for each
multiplication or addition: on two cores of an AMD EPYC."""

LEAF = 1e-3
"""Seconds in which an image is made up, on one core."""


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Scattering(FrontEnd):
    """The scattering transform (J = 2, 8 angles, order 2), then group normalisation a record."""

    name: ClassVar[str] = "scattering"
    phrase: ClassVar[str] = "scattering coefficients"
    costly: ClassVar[bool] = True

    def output_shape(self, shape: Shape) -> Shape:
        """Return (81 times the channels, a quarter of the sides)."""
        *channels, height, width = image_of(self, shape)
        if not min(height, width) >= LEAST_SIDE:
            raise UsageError(
                f"Front end {self.text} needs images of {LEAST_SIDE} x {LEAST_SIDE} pixels or "
                f"more; these records have shape {shape}."
            )
        return (81 * math.prod(channels), height // 4, width // 4)

    def seconds(self, shape: Shape, records: int) -> float:
        return NUMBER * records * math.prod(shape)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.projections import NormalisedScattering

        return NormalisedScattering(shape)


LEAST_SIDE = 16
"""The least side of an image that scattering at two scales leaves anything of."""


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class Whitened(FrontEnd):
    """Scattering and patches in directions of made-up images, brought to similar sizes.

    Args:
        views: 1, or 2 for the mean of an image and its mirror image: of photographs, not of
            digits, which mirrored are others.
    """

    name: ClassVar[str] = "whitened"
    costly: ClassVar[bool] = True
    learned: ClassVar[bool] = True
    version: ClassVar[int] = 3
    views: int = 1

    def __post_init__(self) -> None:
        if not whole("views", self.views) <= 2:
            raise UsageError(
                f"{self.name} has {self.views} views: expected 1, or 2 (an image and its mirror "
                "image)."
            )

    def words(self) -> str:
        views = f" of {self.views} views (the image and its mirror image)"
        return "whitened scattering coefficients and patches" + views * (self.views > 1)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the number of directions."""
        from pasearch.data.patches import COUNT
        from pasearch.data.whitening import MOST_COEFFICIENTS, directions_for

        coefficients = math.prod(Scattering().output_shape(shape)) + COUNT
        if not coefficients <= MOST_COEFFICIENTS:
            raise UsageError(
                f"Front end {self.text}: images of shape {shape} are too large for it: take "
                "scattering, or smaller images."
            )
        return (directions_for(coefficients),)

    def seconds(self, shape: Shape, records: int) -> float:
        """Return what coefficients and directions take, and before them those of made-up images."""
        from pasearch.data import patches
        from pasearch.data.whitening import images_for

        channels, *sides = image_of(self, shape if len(shape) == 3 else (1, *shape))
        places = math.prod(max(0, side - patches.SIDE + 1) for side in sides)
        operations = 2.0 * patches.PATTERNS * patches.SIDE**2 * channels * places
        each = NUMBER * math.prod(shape) + OPERATION * operations
        (kept,) = self.output_shape(shape)
        count = math.prod(Scattering().output_shape(shape)) + patches.COUNT
        made = images_for(count)
        # On one core: products of all made-up images with each other, and their eigenvectors.
        before = made * (LEAF + 2 * each) + OPERATION * made**2 * (3 * count + 12 * made)
        return before + records * self.views * (each + OPERATION * 2.0 * count * kept)

    def module(self, shape: Shape) -> nn.Module:
        from pasearch.data.whitening import WhitenedImage

        return WhitenedImage(shape, self.views)

    def ready_module(self, shape: Shape) -> nn.Module:
        from pasearch.data.whitening import WhitenedImage, learned

        module = WhitenedImage(shape, self.views)
        module.load_state_dict(learned(tuple(shape)))
        return module


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class WhitenedCentred(Recentred):
    """What `whitened` makes of an image, minus its mean, which is estimated privately.

    Args:
        views: As of `whitened`.
    """

    name: ClassVar[str] = "whitened_centred"
    views: int = 1

    def __post_init__(self) -> None:
        Whitened(self.views)

    @property
    def before(self) -> FrontEnd:
        return Whitened(self.views)
