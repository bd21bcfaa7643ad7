"""Numbers of an image in directions that made-up images vary in, brought to similar sizes.

    z = Λ^(-1/4) V'(φ(x) - m),        what a network is given: R z / ||z||

φ are normalised scattering coefficients and resemblances of patches (`patches`); m, V and Λ their
mean, leading directions and variances over made-up images (`made_up`). Neighbouring numbers say
nearly the same, so a few directions hold most of φ, and a private training has learned little but
these when its noise sets in. Bringing them nearer to one size lets the others be heard; dividing by
the fourth root, not by the deviation itself, keeps noise that fills the last directions small.

No record is read for m, V and Λ, and each is mapped alone: that releases nothing. Every record has
the norm R afterwards, a public bound.

Source: ours; the transform as of `scattering`; Tramer and Boneh 2021 for what normalisation does.
Measured in benchmarks/models, "Images".
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from pasearch import busy
from pasearch.data import patches
from pasearch.data.made_up import dead_leaves
from pasearch.data.means import ROW_NORM
from pasearch.data.scattering import Scattering, group_normalised
from pasearch.data.threads import threads
from pasearch.errors import UsageError

MOST_IMAGES = 3000
"""How many images are made up, unless they are large."""
MOST_NUMBERS = 2**27
"""The most numbers that their coefficients may have together: half a gigabyte."""
MOST_COEFFICIENTS = MOST_NUMBERS // 1000
"""Of a record: so that a thousand images can be made up, and 500 directions be seen."""
SCATTERING_WEIGHT = 0.7
"""Of all scattering coefficients together, beside all resemblances of patches."""
FLOOR = 1e-4
"""Added to each variance, as a share of the largest."""
READY = "front end: directions of made-up images, once a run"
"""What is said while it is made ready."""
SEED = 2026
"""Of the made-up images: they are the same everywhere."""


def images_for(coefficients: int) -> int:
    """Return how many images are made up where an image has so many coefficients."""
    return min(MOST_IMAGES, MOST_NUMBERS // coefficients)


def directions_for(coefficients: int) -> int:
    """Return how many directions are kept: half as many as images made up, so that each is seen."""
    return min(coefficients, images_for(coefficients) // 2)


class Whitening(nn.Module):
    """A fixed map of images, in directions of similar size, at norm `ROW_NORM`.

    Guarantee: a record's result depends on that record alone, and has norm `ROW_NORM` at most, if
    `coefficients` maps each record alone.

    Args:
        shape: Of a record, (height, width) or (channels, height, width).
        count: Of numbers that `coefficients` makes of a record.
        kept: Of directions.
    """

    directions: Tensor
    offset: Tensor

    def __init__(self, shape: tuple[int, ...], count: int, kept: int):
        super().__init__()
        self.shape = tuple(shape)
        # Half precision halves a model's file; training and prediction use the same numbers.
        self.register_buffer("directions", torch.zeros(count, kept, dtype=torch.float16))
        self.register_buffer("offset", torch.zeros(kept))

    def coefficients(self, x: Tensor) -> Tensor:
        """Return the map's numbers, (batch, *shape) to (batch, count)."""
        raise NotImplementedError

    def prepare(self, made: Tensor, generator: np.random.Generator) -> None:
        """Learn what `coefficients` needs of made-up images, (count, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, *shape) to (batch, kept)."""
        z = self.projected(x)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        # A backbone may overflow on a record: that one is then 0, and no number without a norm.
        return torch.where(length.isfinite(), z * (ROW_NORM / length.clamp(min=1e-12)), 0.0)

    def projected(self, x: Tensor) -> Tensor:
        """Return the coordinates along the directions, (batch, kept), at no norm yet."""
        return self.coefficients(x) @ self.directions.float() - self.offset

    @torch.no_grad()
    def learn(self, images: int) -> None:
        """Take the directions of so many made-up images."""
        *channels, height, width = self.shape
        generator = np.random.Generator(np.random.Philox(SEED))
        with busy.at(READY), threads(1):  # rounded alike by any threads: a cache knows its records
            made = dead_leaves(images, math.prod(channels), height, width, generator)
            self.prepare(torch.from_numpy(made), generator)
            parts = torch.from_numpy(made.reshape(-1, *self.shape)).split(500)
            directions, offset = _directions(
                torch.cat([self.coefficients(part) for part in parts]), self.directions.shape[1]
            )
        if not (directions.isfinite().all() and offset.isfinite().all()):
            raise UsageError(
                "What this front end makes of made-up images is not finite: take other weights."
            )
        self.directions[:, : directions.shape[1]].copy_(directions)  # of few images, there are few
        self.offset[: len(offset)].copy_(offset)


class WhitenedImage(Whitening):
    """Scattering and patches of an image in directions of similar size, at norm `ROW_NORM`.

    Args:
        shape: Of a record, (height, width) or (channels, height, width).
        views: 1, or 2 for the mean of an image and its mirror image.
    """

    def __init__(self, shape: tuple[int, ...], views: int):
        transform = Scattering(shape)
        scattered = math.prod(transform.output_shape)
        count = scattered + patches.COUNT
        super().__init__(shape, count, directions_for(count))
        self.transform, self.views = transform, views
        self.patches = patches.Patches(math.prod(self.shape[:-2]))
        self.weight = SCATTERING_WEIGHT * math.sqrt(patches.COUNT / scattered)

    def prepare(self, made: Tensor, generator: np.random.Generator) -> None:
        """Take patterns of made-up images."""
        self.patches.learn(made, generator)

    def coefficients(self, x: Tensor) -> Tensor:
        """Return normalised scattering coefficients, and resemblances of patches."""
        scattered = group_normalised(self.transform(x)).flatten(1) * self.weight
        images = x.reshape(len(x), -1, *self.shape[-2:])
        return torch.cat([scattered, self.patches(images)], dim=1)

    def projected(self, x: Tensor) -> Tensor:
        """Return the coordinates, of both views on average."""
        z = super().projected(x)
        return z if self.views == 1 else (z + super().projected(x.flip(-1))) / 2


@lru_cache(maxsize=4)
def learned(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the directions of whitened images of this shape."""
    module = WhitenedImage(shape, views=1)
    module.learn(images_for(len(module.directions)))
    return module.state_dict()


def _directions(seen: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return V Λ^(-1/4) and V'm Λ^(-1/4), from the map's numbers of made-up images (n, count)."""
    middle = seen.mean(0)
    seen = seen - middle
    if seen.shape[0] < seen.shape[1]:
        # Fewer images than numbers: the images' products have the same variances.
        variances, of_images = torch.linalg.eigh(seen @ seen.T / len(seen))
        variances, of_images = variances[-kept:], of_images[:, -kept:]
        least = 1e-7 * float(variances[-1])
        vectors = seen.T @ (of_images / (variances.clamp(min=least) * len(seen)).sqrt())
    else:
        variances, vectors = torch.linalg.eigh(seen.T @ seen / len(seen))
    variances, vectors = variances.flip(0)[:kept].clamp(min=0.0), vectors.flip(1)[:, :kept]
    largest = variances[0].clamp(min=1e-30)
    directions = (vectors * (variances / largest + FLOOR).pow(-0.25)).half()
    return directions, middle @ directions.float()
