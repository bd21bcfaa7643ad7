"""Noise on a GPU by a kernel of our own: what it is given of each step, and of one training's sum.

See `runs.gpu_kernels`, where the fields are named. Proof: docs/guarantees/floating-point.md ("On a
GPU").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pasearch.runs import gpu
from pasearch.runs.compiled import BY_COMPILED
from pasearch.runs.gpu import BLOCK
from pasearch.runs.keys import Stream
from pasearch.runs.normals import grid, of_words, pairs

if TYPE_CHECKING:
    from pasearch.runs.normals import Normals
    from pasearch.training.recipe import Recipe
    from pasearch.training.watched import Room

GIVEN = 9
"""Numbers that are given of a step."""

NEVER = 2**30
"""No step that may be wrong."""


def given_of(
    recipe: Recipe, n: int, stream: Stream, first: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Return what is given of the noise of a block's steps, int64, (steps, GIVEN + more).

    Args:
        recipe: Whose noise it is.
        n: Slots of the partition.
        stream: The trial's own, for noise.
        first: The block's first step.
        more: Further numbers of each step, 0 as yet.
    """
    given = np.zeros((BLOCK, GIVEN + more), dtype=np.int64)
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return given
    ends = min(BLOCK, recipe.steps - first) if recipe.schedule.varies else 1
    for row in range(ends):
        scale = (recipe.noise_at(first + row, n) or 0.0) * recipe.bounding.sensitivity
        wide, grain = scale / grid(scale), grid(scale)
        sure = np.nextafter(np.float32(0.5 - BY_COMPILED * wide), np.float32(0.0))
        given.view(np.float64)[row, [0, 1, 8]] = wide, grain, sure
    given[ends:] = given[ends - 1]
    key, begin, _ = gpu.noise_key(stream, first)
    given[:, 6:8] = signed(key), signed(begin)
    return given


def signed(number: int) -> int:
    """Return 64 bits as an int64 has them."""
    return number - 2**64 if number >= 2**63 else number


def table(blocks: int, device: torch.device) -> Tensor:
    """Return work for `release`, int32, (blocks, 2): all of the first row."""
    places = torch.arange(blocks, dtype=torch.int32, device=device)
    return torch.stack([torch.zeros_like(places), places], 1).contiguous()


class Release:
    """Adds noise to a training's sum, step by step, and moves no weights.

    Args:
        recipe: One that `fits_rounds`.
        n: Slots of the partition.
        stream: The trial's own, for noise.
        room: Where sums are: one flat place of float32.
    """

    def __init__(self, recipe: Recipe, n: int, stream: Stream, room: Room):
        from pasearch.runs import gpu_kernels

        self._recipe, self._n, self._stream, self._kernels = recipe, n, stream, gpu_kernels
        (flat,) = room.flats
        self._count, self._device = len(flat), flat.device
        self._steps = torch.arange(BLOCK, device=flat.device)
        self._given = torch.zeros((BLOCK, GIVEN), dtype=torch.int64, device=flat.device)
        self._noted = torch.full((), NEVER, dtype=torch.int32, device=flat.device)
        row = [self._given.data_ptr(), flat.data_ptr(), *5 * [0], self._noted.data_ptr()]
        self._row = torch.tensor([[*row, len(flat), GIVEN]], device=flat.device)
        programs = -(-pairs(len(flat)) // gpu_kernels.PAIRS)
        self._work, self._block = table(programs, flat.device), -1
        self._doubts = gpu_kernels.room_for_doubts(len(flat), flat.device)

    @classmethod
    def of(cls, recipe: Recipe, n: int, stream: Stream, room: Room) -> Release | None:
        """Return the same; None where there are no kernels, or other numbers."""
        flats = room.flats
        if gpu.kernels(flats[0].device) is None or stream.secure:
            return None
        known = len(flats) == 1 and flats[0].dtype is torch.float32
        return cls(recipe, n, stream, room) if known else None

    def at(self, step: int) -> Tensor:
        """Return what `add` is told of a step: its place in a block, whose noise is prepared."""
        block, within = divmod(step, BLOCK)
        if block != self._block:
            given = torch.from_numpy(
                given_of(self._recipe, self._n, self._stream, block * BLOCK)
            )
            given = given.pin_memory() if self._device.type == "cuda" else given
            self._given.copy_(given, non_blocking=True)
            self._block = block
        return self._steps[within]

    def add(self, at: Tensor) -> None:
        """Add a step's noise to the sum; what may be wrong is noted."""
        self._kernels.release(self._work, self._row, self._doubts, at)
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
