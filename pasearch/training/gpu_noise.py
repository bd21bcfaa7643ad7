"""Noise on a GPU by a kernel of our own, on the sum of one training.

See `gpu.kernels`. Proof: docs/guarantees/floating-point.md ("On a GPU").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pasearch.gpu import bits as gpu
from pasearch.gpu.bits import BLOCK, GIVEN, NEVER
from pasearch.runs.keys import Stream
from pasearch.runs.normals import MODERATE, grid, of_words, pairs

if TYPE_CHECKING:
    from pasearch.runs.normals import Normals
    from pasearch.training.recipe import Recipe
    from pasearch.training.record_sums import SumBuffers

MAX_FLOAT32_ROWS = 4096
"""Rows of a batch whose sum may be rounded to float32 before the noise: one record moves such a sum
by 2 B 2^-24 of the sensitivity more. Proof: docs/guarantees/floating-point.md ("The sum")."""


def moderate(recipe: Recipe, n: int) -> bool:
    """Whether float32 divides by the grid of every step's noise exactly."""
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return True
    factors = [factor for factor, _ in recipe.levels(n)]
    largest = recipe.noise_multiplier * recipe.bounding.computed_sensitivity
    scales = [factor * largest for factor in factors]
    return all(1 / MODERATE < grid(each) < MODERATE for each in scales)


def given_of(
    recipe: Recipe, n: int, stream: Stream, first: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Return what is given of the noise of a block's steps: see `gpu.bits.given_of_noise`.

    Args:
        recipe: Whose noise it is.
        n: Slots of the partition.
        stream: The trial's own, for noise.
        first: The block's first step.
        more: As there.
    """
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return np.zeros((BLOCK, GIVEN + more), dtype=np.int64)
    last = recipe.steps - 1
    steps = range(first, first + BLOCK) if recipe.schedule.varies else [0]
    sigmas = [recipe.noise_at(min(step, last), n) or 0.0 for step in steps]
    key, begin, _ = gpu.noise_key(stream, first)
    scales = [sigma * recipe.bounding.computed_sensitivity for sigma in sigmas]
    return gpu.given_of_noise(scales, key, begin, more)


def moved(given: np.ndarray[Any, Any], onto: Tensor) -> None:
    """Write numbers onto a device, which is not waited for."""
    values = torch.from_numpy(given)
    values = values.pin_memory() if onto.device.type == "cuda" else values
    onto.copy_(values, non_blocking=True)


class Release:
    """Adds noise to a training's sum, step by step, and moves no weights.

    Args:
        recipe: One that `fits_rounds`.
        n: Slots of the partition.
        stream: The trial's own, for noise.
        buffers: Where sums are: one flat place of float32.
    """

    def __init__(self, recipe: Recipe, n: int, stream: Stream, buffers: SumBuffers):
        from pasearch.gpu import kernels as gpu_kernels

        self._recipe, self._n, self._stream, self._kernels = recipe, n, stream, gpu_kernels
        (flat,) = buffers.flats
        self._count, self._device = len(flat), flat.device
        self._steps = torch.arange(BLOCK, device=flat.device)
        self._given = torch.zeros((BLOCK, GIVEN), dtype=torch.int64, device=flat.device)
        self._noted = torch.full((), NEVER, dtype=torch.int32, device=flat.device)
        self._doubts = gpu_kernels.room_for_doubts(len(flat), flat.device)
        row = [*gpu.places_of(self._given, flat, self._noted, self._doubts), len(flat), GIVEN]
        self._row = torch.tensor([row], device=flat.device)
        self._work, self._block = gpu_kernels.work_of(len(flat), flat.device), -1

    @classmethod
    def of(
        cls, recipe: Recipe, n: int, stream: Stream, buffers: SumBuffers, rows: int
    ) -> Release | None:
        """Return the kernel's noise for a training, or None if torch adds its noise.

        The kernel adds to float32 sums, so it is for batches of few rows: rounding a float64 total
        to float32 is within `SUM_ROUNDING` up to `MAX_FLOAT32_ROWS`.

        Args:
            recipe: One that `fits_rounds`.
            n: Number of records of the partition, null ones included.
            stream: Random stream of the noise.
            buffers: Buffers of the sum.
            rows: Rows of a padded batch.
        """
        flats = buffers.flats
        if rows > MAX_FLOAT32_ROWS:
            return None
        if gpu.kernels(flats[0].device) is None or stream.secure:
            return None
        known = len(flats) == 1 and flats[0].dtype is torch.float32 and moderate(recipe, n)
        return cls(recipe, n, stream, buffers) if known else None

    def at(self, step: int) -> Tensor:
        """Return what `add` is told of a step: its place in a block, whose noise is prepared."""
        block, within = divmod(step, BLOCK)
        if block != self._block:
            moved(given_of(self._recipe, self._n, self._stream, block * BLOCK), self._given)
            self._block = block
        return self._steps[within]

    def add(self, at: Tensor) -> None:
        """Add a step's noise to the sum; what may be wrong is noted."""
        self._kernels.release(self._work, self._row, at)
        self._doubts[:1].zero_()

    def noted(self) -> Tensor:
        """Return whether a step since the last call may be wrong, bool, ()."""
        found = self._noted < NEVER
        self._noted.fill_(NEVER)
        return found

    def normals(self, step: int) -> Normals:
        """Return the noise of a step, of the same words, for which any rounding can be decided."""
        key, begin, within = gpu.noise_key(self._stream, step)
        words = self._kernels.words(pairs(self._count), key, begin, within, self._device)
        return of_words(words, self._count, self._stream, step)
