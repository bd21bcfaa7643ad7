"""How far the small squares of an image resemble those of made-up images.

    p = (patch - its mean) / its deviation,    s_k = w_k' (p - m),    what is kept:
    averages of max(0, s_k - t) and max(0, -s_k - t) over a grid of 3 x 3

w_k are patches of synthetic images (`whitening`) at norm 1 where p is whitened; m is their mean.
Where scattering has waves of a few scales and angles, patches have corners, ends and colours.
Nothing is learned from records, and no record's numbers depend on another: that releases nothing.
Measured beside scattering, whitened, with a linear model (benchmarks/models, "Images").

Source: Coates, Ng and Lee 2011 (patches that are merely whitened); Thiry et al. 2021 (of many).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.data.scattering import group_normalised
from pasearch.data.threads import threads
from pasearch.runs.processor import Team, loaded

SIDE = 6
"""Of a patch, pixels."""
PATTERNS = 512
"""How many patches are compared with."""
GRID = 3
"""Sides of the grid over which is averaged."""
THRESHOLD = 0.5
"""t: a smaller resemblance counts as none."""
LEAST_VARIANCE = 1e-3
"""Added to a patch's variance: noise in flat parts is not blown up."""
RIDGE = 0.3
"""Added to the variances that whitening divides by, in units of a pixel's."""
GROUPS = 16
"""In which an image's numbers are brought to mean 0 and variance 1."""
IMAGES, PATCHES = 1500, 60
"""How many made-up images patterns are taken from, and how many patches of each are looked at."""
CHUNK_BYTES = 2**24
"""About the largest intermediate tensor."""
AT_ONCE, CACHED = 4, 2**21
"""Images that machine code works on at a time, at most, and numbers of their products: so that they
stay in the cache."""
MANY = 64
"""From how many images on machine code is loaded for them."""

COUNT = 2 * PATTERNS * GRID**2
"""How many numbers an image has."""


class Patches(nn.Module):
    """Resemblances of an image's patches to patterns, averaged over a grid.

    Guarantee: a record's numbers depend on that record alone.

    Args:
        channels: Of an image.
    """

    patterns: Tensor
    offset: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.register_buffer("patterns", torch.zeros(PATTERNS, channels, SIDE, SIDE))
        self.register_buffer("offset", torch.zeros(PATTERNS, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, height, width) to (batch, `COUNT`)."""
        if _is_plain(images) and len(images) >= MANY and (code := loops()) is not None:
            return self._in_code(images, code)
        height, width = (side - SIDE + 1 for side in images.shape[2:])
        chunk = max(1, CHUNK_BYTES // (4 * PATTERNS * height * width))
        return torch.cat([self._resemblances(part) for part in images.split(chunk)])

    def _resemblances(self, images: Tensor) -> Tensor:
        box = torch.full_like(self.patterns[:1], 1 / self.patterns[0].numel())
        mean, square = functional.conv2d(images, box), functional.conv2d(images**2, box)
        deviation = ((square - mean**2).clamp(min=0.0) + LEAST_VARIANCE).sqrt()
        # The patterns have mean 0, so a patch's own mean falls out of the product.
        found = functional.conv2d(images, self.patterns) / deviation - self.offset
        parts = [
            functional.adaptive_avg_pool2d((sign * found - THRESHOLD).clamp_(min=0.0), GRID)
            for sign in (1.0, -1.0)
        ]
        return group_normalised(torch.cat(parts, dim=1), GROUPS).flatten(1)

    @torch.no_grad()
    def _in_code(self, images: Tensor, code: ModuleType) -> Tensor:
        """Do the same in machine code: equal to the bit on one thread or many.

        Every product is computed by one thread, of equally many rows.
        """
        height, width = (side - SIDE + 1 for side in images.shape[2:])
        places, images = height * width, images.contiguous()
        step = min(AT_ONCE, max(1, CACHED // (places * PATTERNS)))
        filters = self.patterns.flatten(1).T.contiguous()
        given = self.offset.flatten().numpy(), np.float32(THRESHOLD), _edges(height, width)
        found = torch.empty(len(images), 2 * PATTERNS, GRID, GRID)

        def part(_: int, start: int, end: int) -> None:
            columns = torch.zeros(step * places, len(filters))
            products = torch.empty(step * places, PATTERNS)
            for low in range(start, end, step):
                own = slice(low, min(low + step, end))
                code.columns(images[own].numpy(), SIDE, LEAST_VARIANCE, columns.numpy())
                torch.mm(columns, filters, out=products)
                code.averages(products.numpy(), *given, (height, width), found[own].numpy())

        team = Team(torch.get_num_threads())
        with threads(1):
            team.divided(len(images), part, even=step)
        return group_normalised(found, GROUPS).flatten(1)

    @torch.no_grad()
    def learn(self, images: Tensor, generator: np.random.Generator) -> None:
        """Take patterns of made-up images.

        Args:
            images: (count, channels, height, width), in [0, 1].
            generator: Chooses the patches.
        """
        seen = _some(images[:IMAGES], generator)
        seen = seen - seen.mean(1, keepdim=True)
        seen = seen / ((seen**2).mean(1, keepdim=True) + LEAST_VARIANCE).sqrt()
        middle = seen.mean(0)
        variances, vectors = torch.linalg.eigh((seen - middle).T @ (seen - middle) / len(seen))
        whitening = (vectors * (variances.clamp(min=0.0) + RIDGE).rsqrt()) @ vectors.T
        white = (seen - middle) @ whitening
        length = torch.linalg.vector_norm(white, dim=1)
        clear = torch.nonzero(length >= length.median())[:, 0].numpy()  # most others are flat
        chosen = torch.from_numpy(generator.choice(clear, PATTERNS, replace=len(clear) < PATTERNS))
        filters = whitening @ (white[chosen] / length[chosen, None].clamp(min=1e-12)).T
        self.offset.copy_((middle @ filters)[:, None, None])
        self.patterns.copy_((filters - filters.mean(0)).T.reshape(self.patterns.shape))


def _is_plain(images: Tensor) -> bool:
    """Whether these are numbers in a processor's memory, and nobody asks for their gradient."""
    there = type(images) is Tensor and images.device.type == "cpu"
    return there and images.dtype is torch.float32 and not images.requires_grad


def _edges(height: int, width: int) -> np.ndarray:
    """Return where the grid's rows begin and end, and its columns: neighbours may share one."""
    cells = np.arange(GRID)
    ends = [(side * cells // GRID, -(-side * (cells + 1) // GRID)) for side in (height, width)]
    return np.array([edge for pair in ends for edge in pair])


@cache
def loops() -> ModuleType | None:
    """Load the loops and try them on public numbers: see `runs.processor`."""

    def agrees(code: ModuleType) -> bool:
        module = Patches(2)
        images = torch.linspace(0.0, 40.0, 5 * 2 * 9 * 11).sin().reshape(5, 2, 9, 11)
        module.patterns.copy_(
            torch.linspace(0.0, 90.0, module.patterns.numel()).cos().view_as(module.patterns)
        )
        module.patterns.sub_(module.patterns.mean((1, 2, 3), keepdim=True))
        module.offset.copy_(torch.linspace(-1.0, 1.0, PATTERNS).view_as(module.offset))
        return torch.allclose(
            module._in_code(images, code), module._resemblances(images), atol=1e-3
        )

    return loaded("pasearch.data.compiled_patches", agrees)


def _some(images: Tensor, generator: np.random.Generator) -> Tensor:
    """Return some patches of each image, (count * `PATCHES`, channels * SIDE^2)."""
    height, width = (side - SIDE + 1 for side in images.shape[2:])
    patches = images.unfold(2, SIDE, 1).unfold(3, SIDE, 1)
    rows = torch.from_numpy(generator.integers(height, size=(len(images), PATCHES)))
    columns = torch.from_numpy(generator.integers(width, size=(len(images), PATCHES)))
    image = torch.arange(len(images))[:, None].expand_as(rows)
    return patches[image, :, rows, columns].flatten(0, 1).flatten(1)
