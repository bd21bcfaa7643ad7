"""Whitening of image features along directions learned from synthetic images.

    z = Λ^(-1/4) V'(φ(x) - m),        input of the network: R z / ||z||

φ(x) are the features of an image x: normalised scattering coefficients and resemblances of patches
(`patches`). m are their means over synthetic images (`draw_dead_leaves`), the columns of V their
principal directions, and Λ the variances along these. Neighbouring features are nearly equal, so a
few directions have most of the variance of φ. Without whitening, a private training learns little
besides these before noise dominates. Division by Λ^(1/4) makes the directions more equal; division
by the standard deviation Λ^(1/2) would amplify noise in the last directions too much.

No record is read for m, V and Λ, and each record is transformed alone, so nothing is released.
Every transformed record has the norm R, a public bound.

Source: Original to this project; the transform of `scattering`; Tramer and Boneh 2021 for the
    effect of normalisation. Measured in benchmarks/models, "Images".
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
"""Maximum number of synthetic images; fewer are used if images are large."""
MAX_SYNTHETIC_NUMBERS = 2**27
"""Maximum number of features of all synthetic images together: half a gigabyte."""
MAX_COEFFICIENTS = MAX_SYNTHETIC_NUMBERS // 1000
"""Maximum number of features of a record, so that 1,000 synthetic images and 500 directions are
possible."""
SCATTERING_WEIGHT = 0.7
"""Weight of all scattering coefficients together, relative to all resemblances of patches."""
VARIANCE_FLOOR = 1e-4
"""Constant added to each variance, as a fraction of the largest."""
STATUS_MESSAGE = "feature extractor: learning directions from synthetic images, once per run"
"""Status message while the directions are learned."""
IMAGE_SEED = 2026
"""Seed of the synthetic images, which are the same in every run."""
SHAPE_COUNT_RANGE = (8, 40)
"""Range of the number of shapes in a synthetic image, the end excluded."""


def count_synthetic_images(coefficients: int) -> int:
    """Return the number of synthetic images, given the number of features per image."""
    return min(MAX_SYNTHETIC_IMAGES, MAX_SYNTHETIC_NUMBERS // coefficients)


def count_directions(coefficients: int) -> int:
    """Return the number of whitening directions, given the number of features per image.

    It is at most half the number of synthetic images.
    """
    return min(coefficients, count_synthetic_images(coefficients) // 2)


class Whitening(nn.Module):
    """Base class of transformations of images to whitened features, with output norm `ROW_NORM`.

    Guarantee: a record's output depends on that record alone and has norm `ROW_NORM` at most, if
        `compute_features` transforms each record alone.

    Args:
        shape: Shape of a record, (height, width) or (channels, height, width).
        count: Number of features per record, the outputs of `compute_features`.
        kept: Number of directions, the outputs per record.
    """

    directions: Tensor
    offset: Tensor

    def __init__(self, shape: tuple[int, ...], count: int, kept: int):
        super().__init__()
        self.shape = tuple(shape)
        # Half precision halves a model's file; training and prediction use the same values.
        self.register_buffer("directions", torch.zeros(count, kept, dtype=torch.float16))
        self.register_buffer("offset", torch.zeros(kept))

    def compute_features(self, x: Tensor) -> Tensor:
        """Compute the features of images before whitening, (batch, *shape) to (batch, count)."""
        raise NotImplementedError

    def prepare(self, made: Tensor, generator: np.random.Generator) -> None:
        """Learn parameters of `compute_features` from images, (count, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute the whitened features of images, (batch, *shape) to (batch, kept)."""
        z = self.project(x)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        # A backbone may overflow on a record; its output is then 0 instead of NaN.
        return torch.where(length.isfinite(), z * (ROW_NORM / length.clamp(min=1e-12)), 0.0)

    def project(self, x: Tensor) -> Tensor:
        """Compute the whitened features before normalisation, (batch, kept)."""
        return self.compute_features(x) @ self.directions.float() - self.offset

    @torch.no_grad()
    def learn(self, images: int) -> None:
        """Learn the directions from synthetic images."""
        *channels, height, width = self.shape
        generator = np.random.Generator(np.random.Philox(IMAGE_SEED))
        # One thread: the rounding depends on their number, and must equal that of cached outputs.
        with status_message.show_status(STATUS_MESSAGE), use_threads(1):
            made = draw_dead_leaves(images, math.prod(channels), height, width, generator)
            self.prepare(torch.from_numpy(made), generator)
            parts = torch.from_numpy(made.reshape(-1, *self.shape)).split(500)
            directions, offset = _compute_directions(
                torch.cat([self.compute_features(part) for part in parts]), self.directions.shape[1]
            )
        if not (directions.isfinite().all() and offset.isfinite().all()):
            raise UsageError(
                "The output of this front end for synthetic images is not finite: "
                "use other weights."
            )
        # There may be fewer directions than columns, because there are few images.
        self.directions[:, : directions.shape[1]].copy_(directions)
        self.offset[: len(offset)].copy_(offset)


class WhitenedImage(Whitening):
    """Whitened scattering and patch features of an image, with output norm `ROW_NORM`.

    Args:
        shape: Shape of a record, (height, width) or (channels, height, width).
        views: Number of views of an image: 1, or 2 to average the outputs for the image and its
            mirror image.
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
        """Select the patterns of `patches` from synthetic images."""
        self.patches.learn(made, generator)

    def compute_features(self, x: Tensor) -> Tensor:
        """Compute normalised scattering coefficients and resemblances of patches."""
        scattered = normalize_groups(self.transform(x)).flatten(1) * self.weight
        *channels, height, width = self.shape
        images = x.reshape(-1, math.prod(channels), height, width)
        return torch.cat([scattered, self.patches(images)], dim=1)

    def project(self, x: Tensor) -> Tensor:
        """Compute the whitened features, averaged over the views, before normalisation."""
        z = super().project(x)
        return z if self.views == 1 else (z + super().project(x.flip(-1))) / 2


@lru_cache(maxsize=4)
def learn_directions(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the parameters of `WhitenedImage` for images of this shape, learned if necessary."""
    module = WhitenedImage(shape, views=1)
    module.learn(count_synthetic_images(len(module.directions)))
    return module.state_dict()


def _compute_directions(seen: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Return V Λ^(-1/4) and m'V Λ^(-1/4) for the features of synthetic images, (n, count)."""
    middle = seen.mean(0)
    seen = seen - middle
    if seen.shape[0] < seen.shape[1]:
        # Fewer images than features: the Gram matrix has the same nonzero eigenvalues.
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
    """Draw synthetic images of overlapping shapes, float32 (count, channels, height, width).

    Their values are in [0, 1].

    Overlapping discs and rectangles share properties of photographs, drawings and digits: edges,
    flat areas, few large shapes and many small ones. Directions that depend only on these can be
    learned without reading a record or downloading data.

    Args:
        count: Number of images.
        channels: Number of channels: 1, or 3 of similar values, as in a photograph.
        height: Height, pixels.
        width: Width, pixels.
        generator: Random generator: equal generators draw equal images.

    Source: Lee, Mumford and Huang 2001 (dead leaves); Baradad et al. 2021 (learning from them).
    """
    images = np.empty((count, channels, height, width), np.float32)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    for image in images:
        # Three of ten have a black background, like scans and digits.
        image[:] = generator.random() if generator.random() < 0.7 else 0.0
        for _ in range(generator.integers(*SHAPE_COUNT_RANGE)):
            shade, inside = _draw_shape(rows, columns, generator)
            colour = generator.random() + 0.25 * generator.standard_normal(channels)
            image[:, inside] = (np.clip(colour, 0, 1)[:, None] + shade[inside]).astype(np.float32)
    return images.clip(0.0, 1.0)


def _draw_shape(
    rows: np.ndarray, columns: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an ellipse or rectangle: the brightness gradient in it, and a mask of its pixels."""
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
