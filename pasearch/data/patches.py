"""Features that compare the patches (small squares) of an image with patches of synthetic images.

    p    = (patch - its mean) / its standard deviation
    s_k  = w_k' (p - m)                            resemblance of the patch to pattern k
    output: averages of max(0, s_k - t) and max(0, -s_k - t) over the cells of a 3 x 3 grid

m is the mean of p over synthetic images (`whitening`). Each pattern w_k is a whitened patch of a
synthetic image, scaled to norm 1. Scattering detects waves of a few scales and angles; patterns
also detect corners, ends of lines, and colours. Nothing is learned from records, and no record's
output depends on another, so nothing is released. The accuracy with both kinds of features is in
benchmarks/models, "Images".

Source: Coates, Ng and Lee 2011 (whitened patches); Thiry et al. 2021 (many of them).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.data.scattering import normalize_groups
from pasearch.data.threads import use_threads
from pasearch.runs.processor import ThreadTeam, load_checked_loops

PATCH_SIDE = 6
"""Side of a patch, pixels."""
PATTERN_COUNT = 512
"""Number of patterns, which are patches of synthetic images."""
GRID_SIDE = 3
"""Side of the grid of averages, cells."""
RESEMBLANCE_THRESHOLD = 0.5
"""Threshold t: a smaller resemblance counts as 0."""
VARIANCE_OFFSET = 1e-3
"""Constant added to a patch's variance: it limits the amplification of noise in flat areas."""
WHITENING_RIDGE = 0.3
"""Constant added to the variances in the whitening of patches, relative to a pixel's variance."""
CHANNEL_GROUPS = 16
"""Number of groups in which an image's output is normalised to mean 0 and variance 1."""
# Number of synthetic images for the patterns, and number of patches sampled from each.
PATTERN_IMAGES = 1500
PATCHES_PER_IMAGE = 60
MAX_CHUNK_BYTES = 2**24
"""Approximate maximum size of an intermediate tensor, bytes."""
MAX_LOOP_IMAGES = 4
"""Maximum number of images per call of the compiled kernels."""
MAX_CACHED_NUMBERS = 2**21
"""Maximum number of resemblances per call, which then stay in the processor's cache."""
MIN_COMPILED_IMAGES = 64
"""Minimum number of images for which compiled kernels are loaded."""

OUTPUT_NUMBERS = 2 * PATTERN_COUNT * GRID_SIDE**2
"""Number of outputs per image."""


class PatchResemblances(nn.Module):
    """Module that computes averages, over a grid, of the resemblances of patches to patterns.

    Guarantee: a record's output depends on that record alone.

    Args:
        channels: Number of channels of an image.
    """

    patterns: Tensor
    offset: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer(
            "patterns", torch.zeros(PATTERN_COUNT, channels, PATCH_SIDE, PATCH_SIDE)
        )
        self.register_buffer("offset", torch.zeros(PATTERN_COUNT, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Compute the features, (batch, channels, height, width) to (batch, `OUTPUT_NUMBERS`)."""
        # Compiled kernels read float32 numbers in CPU memory and compute no gradient.
        is_array = type(images) is Tensor and images.device.type == "cpu"
        is_array &= images.dtype is torch.float32 and not images.requires_grad
        if is_array and len(images) >= MIN_COMPILED_IMAGES:
            code = load_compiled_loops()
            if code is not None:
                return self._compute_compiled(images, code)
        height, width = (side - PATCH_SIDE + 1 for side in images.shape[2:])
        chunk = max(1, MAX_CHUNK_BYTES // (4 * PATTERN_COUNT * height * width))
        return torch.cat([self._compute_resemblances(part) for part in images.split(chunk)])

    def _compute_resemblances(self, images: Tensor) -> Tensor:
        """Compute the features by convolutions of PyTorch."""
        box = torch.full_like(self.patterns[:1], 1 / self.patterns[0].numel())
        mean, square = functional.conv2d(images, box), functional.conv2d(images**2, box)
        deviation = ((square - mean**2).clamp(min=0.0) + VARIANCE_OFFSET).sqrt()
        # The patterns have mean 0, so the patch's mean cancels in the product.
        found = functional.conv2d(images, self.patterns) / deviation - self.offset
        parts = [
            functional.adaptive_avg_pool2d(
                (sign * found - RESEMBLANCE_THRESHOLD).clamp_(min=0.0), GRID_SIDE
            )
            for sign in (1.0, -1.0)
        ]
        return normalize_groups(torch.cat(parts, dim=1), CHANNEL_GROUPS).flatten(1)

    @torch.no_grad()
    def _compute_compiled(self, images: Tensor, code: ModuleType) -> Tensor:
        """Compute the features by compiled kernels.

        The result does not depend on the number of threads, bit for bit, because every matrix
        product has the same number of rows and is computed by one thread.
        """
        height, width = (side - PATCH_SIDE + 1 for side in images.shape[2:])
        places, images = height * width, images.contiguous()
        step = min(MAX_LOOP_IMAGES, max(1, MAX_CACHED_NUMBERS // (places * PATTERN_COUNT)))
        filters = self.patterns.flatten(1).T.contiguous()
        given = (
            self.offset.flatten().numpy(),
            np.float32(RESEMBLANCE_THRESHOLD),
            _compute_grid_edges(height, width),
        )
        found = torch.empty(len(images), 2 * PATTERN_COUNT, GRID_SIDE, GRID_SIDE)

        def compute_images(_: int, start: int, end: int) -> None:
            columns = torch.zeros(step * places, len(filters))
            products = torch.empty(step * places, PATTERN_COUNT)
            for low in range(start, end, step):
                own = slice(low, min(low + step, end))
                code.extract_patches(
                    images[own].numpy(), PATCH_SIDE, VARIANCE_OFFSET, columns.numpy()
                )
                torch.mm(columns, filters, out=products)
                code.average_excess(products.numpy(), *given, (height, width), found[own].numpy())

        team = ThreadTeam(torch.get_num_threads())
        with use_threads(1):
            team.run_divided(len(images), compute_images, even=step)
        return normalize_groups(found, CHANNEL_GROUPS).flatten(1)

    @torch.no_grad()
    def learn(self, images: Tensor, generator: np.random.Generator) -> None:
        """Select patterns from synthetic images.

        Args:
            images: Synthetic images, (count, channels, height, width), in [0, 1].
            generator: Random generator that chooses the patches.
        """
        images = images[:PATTERN_IMAGES]
        height, width = (side - PATCH_SIDE + 1 for side in images.shape[2:])
        every = images.unfold(2, PATCH_SIDE, 1).unfold(3, PATCH_SIDE, 1)
        rows = torch.from_numpy(generator.integers(height, size=(len(images), PATCHES_PER_IMAGE)))
        columns = torch.from_numpy(generator.integers(width, size=(len(images), PATCHES_PER_IMAGE)))
        image = torch.arange(len(images))[:, None].expand_as(rows)
        seen = every[image, :, rows, columns].flatten(0, 1).flatten(1)  # one patch per row
        seen = seen - seen.mean(1, keepdim=True)
        seen = seen / ((seen**2).mean(1, keepdim=True) + VARIANCE_OFFSET).sqrt()
        middle = seen.mean(0)
        variances, vectors = torch.linalg.eigh((seen - middle).T @ (seen - middle) / len(seen))
        whitening = (vectors * (variances.clamp(min=0.0) + WHITENING_RIDGE).rsqrt()) @ vectors.T
        white = (seen - middle) @ whitening
        length = torch.linalg.vector_norm(white, dim=1)
        clear = torch.nonzero(length >= length.median())[:, 0].numpy()  # most others are flat
        chosen = torch.from_numpy(
            generator.choice(clear, PATTERN_COUNT, replace=len(clear) < PATTERN_COUNT)
        )
        filters = whitening @ (white[chosen] / length[chosen, None].clamp(min=1e-12)).T
        self.offset.copy_((middle @ filters)[:, None, None])
        self.patterns.copy_((filters - filters.mean(0)).T.reshape(self.patterns.shape))


def _compute_grid_edges(height: int, width: int) -> np.ndarray:
    """Return the first and end row, and the first and end column, of each grid cell, (4, cells)."""
    cells = np.arange(GRID_SIDE)
    ends = [
        (side * cells // GRID_SIDE, -(-side * (cells + 1) // GRID_SIDE)) for side in (height, width)
    ]
    return np.array([edge for pair in ends for edge in pair])


@cache
def load_compiled_loops() -> ModuleType | None:
    """Load the compiled kernels, if they agree with PyTorch on public numbers; else return None."""

    def agrees(code: ModuleType) -> bool:
        module = PatchResemblances(2)
        images = torch.linspace(0.0, 40.0, 5 * 2 * 9 * 11).sin().reshape(5, 2, 9, 11)
        module.patterns.copy_(
            torch.linspace(0.0, 90.0, module.patterns.numel()).cos().view_as(module.patterns)
        )
        module.patterns.sub_(module.patterns.mean((1, 2, 3), keepdim=True))
        module.offset.copy_(torch.linspace(-1.0, 1.0, PATTERN_COUNT).view_as(module.offset))
        return torch.allclose(
            module._compute_compiled(images, code), module._compute_resemblances(images), atol=1e-3
        )

    return load_checked_loops("pasearch.data.compiled_patches", agrees)
