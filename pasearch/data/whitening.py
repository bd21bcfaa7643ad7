"""Numbers of an image in directions that made-up images vary in, brought to similar sizes.

    z = Λ^(-1/4) V'(φ(x) - m),        what a network is given: R z / ||z||

φ are normalised scattering coefficients and resemblances of patches (`patches`); m, V and Λ their
mean, leading directions and variances over synthetic images (`draw_dead_leaves`). Neighbouring
numbers are nearly the same, so a few directions hold most of φ, and a private training has learned
little but these when its noise sets in. Bringing them nearer to one size lets the others be heard;
dividing by the fourth root, not by the deviation itself, keeps noise that fills the last directions
small.

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

from pasearch import status_message
from pasearch.data import patches
from pasearch.data.means import ROW_NORM
from pasearch.data.scattering import Scattering, normalize_groups
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError

MAX_SYNTHETIC_IMAGES = 3000
"""How many images are made up, unless they are large."""
MAX_SYNTHETIC_NUMBERS = 2**27
"""The most numbers that their coefficients may have together: half a gigabyte."""
MAX_COEFFICIENTS = MAX_SYNTHETIC_NUMBERS // 1000
"""Of a record: so that a thousand images can be made up, and 500 directions be seen."""
SCATTERING_WEIGHT = 0.7
"""Of all scattering coefficients together, beside all resemblances of patches."""
VARIANCE_FLOOR = 1e-4
"""Added to each variance, as a share of the largest."""
STATUS_MESSAGE = "front end: directions of made-up images, once a run"
"""What is said while it is made ready."""
IMAGE_SEED = 2026
"""Of the made-up images: they are the same everywhere."""
SHAPE_COUNT_RANGE = (8, 40)
"""Range of the number of shapes of a synthetic image, the end excluded."""


def count_synthetic_images(coefficients: int) -> int:
    """Return how many images are made up where an image has so many coefficients."""
    return min(MAX_SYNTHETIC_IMAGES, MAX_SYNTHETIC_NUMBERS // coefficients)


def count_directions(coefficients: int) -> int:
    """Return how many directions are kept: half as many as images made up, so that each is seen."""
    return min(coefficients, count_synthetic_images(coefficients) // 2)


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
        z = self.project(x)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        # A backbone may overflow on a record: that one is then 0, and no number without a norm.
        return torch.where(length.isfinite(), z * (ROW_NORM / length.clamp(min=1e-12)), 0.0)

    def project(self, x: Tensor) -> Tensor:
        """Return the coordinates along the directions, (batch, kept), at no norm yet."""
        return self.coefficients(x) @ self.directions.float() - self.offset

    @torch.no_grad()
    def learn(self, images: int) -> None:
        """Take the directions of so many made-up images."""
        *channels, height, width = self.shape
        generator = np.random.Generator(np.random.Philox(IMAGE_SEED))
        with (
            status_message.show_status(STATUS_MESSAGE),
            use_threads(1),
        ):  # rounded alike by any threads: a cache knows its records
            made = draw_dead_leaves(images, math.prod(channels), height, width, generator)
            self.prepare(torch.from_numpy(made), generator)
            parts = torch.from_numpy(made.reshape(-1, *self.shape)).split(500)
            directions, offset = _compute_directions(
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
        count = scattered + patches.OUTPUT_NUMBERS
        super().__init__(shape, count, count_directions(count))
        self.transform, self.views = transform, views
        self.patches = patches.PatchResemblances(math.prod(self.shape[:-2]))
        self.weight = SCATTERING_WEIGHT * math.sqrt(patches.OUTPUT_NUMBERS / scattered)

    def prepare(self, made: Tensor, generator: np.random.Generator) -> None:
        """Take patterns of made-up images."""
        self.patches.learn(made, generator)

    def coefficients(self, x: Tensor) -> Tensor:
        """Return normalised scattering coefficients, and resemblances of patches."""
        scattered = normalize_groups(self.transform(x)).flatten(1) * self.weight
        *channels, height, width = self.shape
        images = x.reshape(-1, math.prod(channels), height, width)
        return torch.cat([scattered, self.patches(images)], dim=1)

    def project(self, x: Tensor) -> Tensor:
        """Return the coordinates, of both views on average."""
        z = super().project(x)
        return z if self.views == 1 else (z + super().project(x.flip(-1))) / 2


@lru_cache(maxsize=4)
def learn_directions(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the directions of whitened images of this shape."""
    module = WhitenedImage(shape, views=1)
    module.learn(count_synthetic_images(len(module.directions)))
    return module.state_dict()


def _compute_directions(seen: Tensor, kept: int) -> tuple[Tensor, Tensor]:
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
    directions = (vectors * (variances / largest + VARIANCE_FLOOR).pow(-0.25)).half()
    return directions, middle @ directions.float()


def draw_dead_leaves(
    count: int, channels: int, height: int, width: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw synthetic images, float32 (count, channels, height, width), in [0, 1].

    Discs and rectangles on top of each other have what photographs, drawings and digits have in
    common: edges, flat parts, few large shapes and many small ones. What depends on that alone can
    be learned from them: no record is read, and nothing is downloaded.

    Args:
        count: Number of images.
        channels: 1, or 3 of similar values, as in a photograph.
        height: Pixels.
        width: Pixels.
        generator: Source of randomness: equal generators make equal images.

    Source: Lee, Mumford and Huang 2001 (dead leaves); Baradad et al. 2021 (learning from them).
    """
    images = np.empty((count, channels, height, width), np.float32)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    for image in images:
        # Three of ten have a black ground, as scans and digits do.
        image[:] = generator.random() if generator.random() < 0.7 else 0.0
        for _ in range(generator.integers(*SHAPE_COUNT_RANGE)):
            shade, inside = _draw_shape(rows, columns, generator)
            colour = generator.random() + 0.25 * generator.standard_normal(channels)
            image[:, inside] = (np.clip(colour, 0, 1)[:, None] + shade[inside]).astype(np.float32)
    return images.clip(0.0, 1.0)


def _draw_shape(
    rows: np.ndarray, columns: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return one shape: how much lighter each pixel is towards one end, and which are inside."""
    side = max(rows.shape)
    radius = max(0.7, side * min(0.6, 0.04 * (1.0 - generator.random()) ** -0.6))
    flatness, angle = generator.uniform(0.25, 1.0), math.pi * generator.random()
    x = columns - rows.shape[1] * generator.random()
    y = rows - rows.shape[0] * generator.random()
    along = (x * math.cos(angle) + y * math.sin(angle)) / radius
    across = (y * math.cos(angle) - x * math.sin(angle)) / (radius * flatness)
    if generator.random() < 0.5:
        inside = along**2 + across**2 < 1.0
    else:
        inside = (abs(along) < 1.0) & (abs(across) < 1.0)
    return generator.normal(0.0, 0.3) * along * radius / side, inside
