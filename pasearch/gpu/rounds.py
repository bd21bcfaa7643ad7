"""Training steps on a GPU in rounds: the CPU waits for the device once per round, not in each step.

    in a round    a step assumes that every record is finite, that no rounding needs further bits,
                  and that the batch fits its padding; the device notes if that was wrong
    at its end    the note is read. It is nearly always empty, and all steps were correct.
                  Otherwise the weights are restored, and the steps are repeated with checks
    with checks   each step checks the records, decides every rounding, and uses the whole batch

Both ways have the same batch and the same noise, from the same keys. So a correct step equals the
checked one, and the result of an undone step is never used. There is one release per step, and one
privacy cost. Steps of one shape are captured once, as a CUDA graph, and replayed.

Batches of many steps are drawn at once and padded to one size:

    places   int64, (steps, width)     record indices; 0 for padding
    real     bool, (steps, width)      False for padding, which adds 0 as a null record does
    beyond   int64, (steps,)           the next index after those; n or more if there is none

The sampling is the same: the gaps between chosen indices are Geometric(q), each by inversion, G = 1
+ floor(log U / log(1 - q)), with 63 secret bits of U. A batch of more than `width` records (one of
20,000 or fewer) is completed by `full_batch`: that index, and the later ones.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/floating-point.md ("On a GPU") and
batching.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pasearch.gpu import bits as gpu
from pasearch.gpu.bits import NO_STEP, STEP_NUMBERS, STEPS_PER_BLOCK
from pasearch.runs.keys import Stream
from pasearch.runs.normals import (
    LOW_63_BITS,
    MAX_GRID_DISTANCE,
    UnrefinedNormals,
    count_pairs,
    grid_distance,
    normals_from_words,
)
from pasearch.training.batching import Batching, Poisson
from pasearch.training.clipping import ClippingMethod
from pasearch.training.noise import draw_device_words
from pasearch.training.one_step import (
    BatchIndices,
    DeviceRecords,
    TrainingState,
    denoise,
    limit_rows,
    pad_to_parts,
    reseed_dropout,
    sum_clipped_gradients,
)
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers

if TYPE_CHECKING:
    from pasearch.runs.normals import Normals


DEFAULT_DRAWN_STEPS = 64
"""Default number of steps whose batches are drawn at once."""

PADDING_DEVIATIONS = 4.0
"""Padding above the mean batch size, in standard deviations of a Poisson batch size."""

WIDTH_MULTIPLE = 8
"""Number of which widths are multiples: matrix products on a GPU are faster for them."""


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """The padded record indices of one step.

    Args:
        places: Record indices, int64, (width,).
        real: False for padding, bool, (width,).
        beyond: Next index of a larger batch, int64, (); n or more if there is none.
        more: Whether the batch is larger than its padding, bool, ().
    """

    places: Tensor
    real: Tensor
    beyond: Tensor
    more: Tensor


class BatchBlocks:
    """The batches of a training, on its device.

    Guarantee: a step's batch has the distribution of `batching`, and steps are independent if those
    of `batching` are. A batch depends on stream, step and kind of device alone.

    Args:
        batching: Sampling method of batches.
        n: Number of records of the partition, null records included.
        stream: Random stream of the trial's batches.
        device: Device of the indices.
        steps: Number of steps drawn at once; None: `DEFAULT_DRAWN_STEPS`.
        deviations: Padding in standard deviations; None: `PADDING_DEVIATIONS`.
    """

    def __init__(
        self,
        batching: Batching,
        n: int,
        stream: Stream,
        device: torch.device,
        *,
        steps: int | None = None,
        deviations: float | None = None,
    ):
        self._batching, self._n, self._stream, self._device = batching, n, stream, device
        self._steps = DEFAULT_DRAWN_STEPS if steps is None else steps
        self.width = padded_width(
            batching, n, PADDING_DEVIATIONS if deviations is None else deviations
        )
        self._block = -1
        self._drawn: tuple[Tensor, Tensor, Tensor] | None = None
        self._all_chosen = isinstance(batching, Poisson) and batching.sampling_probability == 1.0

    def at(self, step: int) -> PaddedBatch:
        """Return the padded record indices of a step, without waiting for the device."""
        block, row = divmod(step, self._steps)
        places, real, beyond = self.block(block)
        return PaddedBatch(places[row], real[row], beyond[row], beyond[row] < self._n)

    def block(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the record indices of a block's steps, by the formula of the module's docstring."""
        if block != self._block or self._drawn is None:
            inverted = isinstance(self._batching, Poisson) and not self._all_chosen
            self._drawn = (
                self._draw_by_inversion(block) if inverted else self._draw_on_processor(block)
            )
            self._block = block
        return self._drawn

    def full_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Compute all record indices of a step, and which rows are real; waits for the device."""
        padded = self.at(step)
        if not bool(padded.more):
            return padded.places, padded.real
        assert isinstance(self._batching, Poisson)
        first = int(padded.beyond)  # later indices are independent of earlier ones
        generator = self._stream.child("more").generator(step)
        behind = self._batching.indices(self._n - first - 1, generator) + first + 1
        rest = torch.from_numpy(np.append(first, behind))
        places = torch.cat([padded.places, rest.to(padded.places)])
        return pad_to_parts(places, self.width)

    def _draw_by_inversion(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw Poisson batches on the device."""
        assert isinstance(self._batching, Poisson)
        shape = self._steps, self.width + 1
        words = draw_device_words(self._device, math.prod(shape), self._stream.child("gaps"), block)
        places = geometric_gaps(words, self._batching.sampling_probability, self._n).view(shape)
        places = places.cumsum(1).sub_(1)
        real = places[:, :-1] < self._n
        return places[:, :-1].where(real, 0), real, places[:, -1].contiguous()

    def _draw_on_processor(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw batches on the CPU, and copy them all at once."""
        beyond = torch.full((self._steps,), self._n, device=self._device)
        if self._all_chosen:
            every = torch.arange(self._n, device=self._device).expand(self._steps, -1)
            real = torch.ones_like(every[:1], dtype=torch.bool).expand(self._steps, -1)
            return every, real, beyond
        places = np.zeros((self._steps, self.width), dtype=np.int64)
        real = np.zeros((self._steps, self.width), dtype=bool)
        for row in range(self._steps):
            chosen = self._batching.batch(self._n, self._stream, block * self._steps + row)
            places[row, : len(chosen)], real[row, : len(chosen)] = chosen, True
        slots, rows = (torch.from_numpy(each).to(self._device) for each in (places, real))
        return slots, rows, beyond


def padded_width(batching: Batching, n: int, deviations: float) -> int:
    """Compute the padded number of rows of a step over n records."""
    most = batching.max_batch_size(n, deviations)
    return min(WIDTH_MULTIPLE * -(-most // WIDTH_MULTIPLE), max(n, 1))


def geometric_gaps(words: Tensor, q: float, n: int) -> Tensor:
    """Map 64-bit words to Geometric(q) numbers, at most n + 1: P(G > k) = (1 - q)^k."""
    found = (words & LOW_63_BITS).double().add_(0.5).mul_(2.0**-63).log_().div_(math.log1p(-q))
    return found.floor_().add_(1.0).clamp_(max=n + 1.0).long()


MAX_FLOAT32_ROWS = 4096
"""Largest number of rows whose sum may be rounded to float32 before the noise: one record changes
such a sum by 2 B 2^-24 of the sensitivity more. Proof: docs/guarantees/floating-point.md ("The
sum")."""


def has_moderate_grids(recipe: Recipe, n: int) -> bool:
    """Check that float32 divides by the grid of every step's noise exactly."""
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return True
    factors = [factor for factor, _ in recipe.levels(n)]
    largest = recipe.noise_multiplier * recipe.bounding.computed_sensitivity
    scales = [factor * largest for factor in factors]
    return all(1 / MAX_GRID_DISTANCE < grid_distance(each) < MAX_GRID_DISTANCE for each in scales)


def pack_step_inputs(
    recipe: Recipe, n: int, stream: Stream, first: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Pack the noise inputs of a block's steps, as `gpu.bits.pack_noise_inputs`.

    Args:
        recipe: Training configuration with the noise.
        n: Number of records of the partition, null records included.
        stream: Random stream of the trial's noise.
        first: First step of the block.
        more: Number of further fields per step, initially 0.
    """
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return np.zeros((STEPS_PER_BLOCK, STEP_NUMBERS + more), dtype=np.int64)
    last = recipe.steps - 1
    steps = range(first, first + STEPS_PER_BLOCK) if recipe.schedule.varies else [0]
    sigmas = [recipe.noise_multiplier_at(min(step, last), n) or 0.0 for step in steps]
    key, begin, _ = gpu.noise_key(stream, first)
    scales = [sigma * recipe.bounding.computed_sensitivity for sigma in sigmas]
    return gpu.pack_noise_inputs(scales, key, begin, more)


def copy_to_device(given: np.ndarray[Any, Any], onto: Tensor) -> None:
    """Copy numbers to a device without waiting for it."""
    values = torch.from_numpy(given)
    values = values.pin_memory() if onto.device.type == "cuda" else values
    onto.copy_(values, non_blocking=True)


class NoiseRelease:
    """Noise for a training's sums, step by step, without updates of weights.

    Args:
        recipe: Training configuration that `can_use_rounds` accepts.
        n: Number of records of the partition, null records included.
        stream: Random stream of the trial's noise.
        buffers: One flat float32 buffer of the sum.
    """

    def __init__(self, recipe: Recipe, n: int, stream: Stream, buffers: SumBuffers):
        from pasearch.gpu import kernels as gpu_kernels  # needs Triton

        self._recipe, self._n, self._stream, self._kernels = recipe, n, stream, gpu_kernels
        (flat,) = buffers.flats
        self._count, self._device = len(flat), flat.device
        self._steps = torch.arange(STEPS_PER_BLOCK, device=flat.device)
        self._given = torch.zeros(
            (STEPS_PER_BLOCK, STEP_NUMBERS), dtype=torch.int64, device=flat.device
        )
        self._noted = torch.full((), NO_STEP, dtype=torch.int32, device=flat.device)
        self._doubts = gpu_kernels.allocate_doubts(len(flat), flat.device)
        row = [
            *gpu.row_addresses(self._given, flat, self._noted, self._doubts),
            len(flat),
            STEP_NUMBERS,
        ]
        self._row = torch.tensor([row], device=flat.device)
        self._work, self._block = gpu_kernels.list_work(len(flat), flat.device), -1

    @classmethod
    def of(
        cls, recipe: Recipe, n: int, stream: Stream, buffers: SumBuffers, rows: int
    ) -> NoiseRelease | None:
        """Return the kernel's noise for a training, or None if PyTorch adds its noise.

        The kernel adds to float32 sums, so batches must be small: rounding a float64 total to
        float32 is within `SUM_ROUNDING` up to `MAX_FLOAT32_ROWS`.

        Args:
            recipe: Training configuration that `can_use_rounds` accepts.
            n: Number of records of the partition, null records included.
            stream: Random stream of the noise.
            buffers: Buffers of the sum.
            rows: Number of rows of a padded batch.
        """
        flats = buffers.flats
        if rows > MAX_FLOAT32_ROWS:
            return None
        if gpu.load_kernels(flats[0].device) is None or stream.secure:
            return None
        known = (
            len(flats) == 1 and flats[0].dtype is torch.float32 and has_moderate_grids(recipe, n)
        )
        return cls(recipe, n, stream, buffers) if known else None

    def at(self, step: int) -> Tensor:
        """Prepare a block's noise, and return the index of a step in it, for `add`."""
        block, within = divmod(step, STEPS_PER_BLOCK)
        if block != self._block:
            copy_to_device(
                pack_step_inputs(self._recipe, self._n, self._stream, block * STEPS_PER_BLOCK),
                self._given,
            )
            self._block = block
        return self._steps[within]

    def add(self, at: Tensor) -> None:
        """Add a step's noise to the sum, and note on the device if a rounding is uncertain."""
        self._kernels.release(self._work, self._row, at)
        self._doubts[:1].zero_()

    def pop_noted(self) -> Tensor:
        """Read and reset the note of uncertain steps, bool, ()."""
        found = self._noted < NO_STEP
        self._noted.fill_(NO_STEP)
        return found

    def normals(self, step: int) -> Normals:
        """Return the noise of a step, from the same words, that decides every rounding."""
        key, begin, within = gpu.noise_key(self._stream, step)
        words = self._kernels.philox_words(
            count_pairs(self._count), key, begin, within, self._device
        )
        return normals_from_words(words, self._count, self._stream, step)


MAX_STEPS_PER_ROUND = 64
"""Largest number of steps of a round. Padding causes a note at most once in 20,000 steps; that
round is repeated."""


def can_use_rounds(recipe: Recipe) -> bool:
    """Check whether a recipe's steps may run in rounds.

    Adaptive clipping, encoded gradients, non-Gaussian noise and noise on each record need the
    device's answer in every step.
    """
    bounding = recipe.bounding
    known = bounding is None or (
        not bounding.is_adaptive and type(bounding).sums is ClippingMethod.sums
    )
    asked = recipe.screening is not None or recipe.schedule.is_validation_driven
    return known and not asked and recipe.noise is None and recipe.noise_before_clip is None


class Rounds:
    """The sums of a training's steps, with or without checks.

    Args:
        prepared: Network.
        slots: Records on the device, null records included.
        recipe: Training configuration that `can_use_rounds` accepts.
        streams: Random stream by purpose (batch, noise, dropout).
        buffers: Buffers of the sum.
        blocks: Batches; None: drawn as `recipe.batches` states.
    """

    def __init__(
        self,
        prepared: PreparedNetwork,
        slots: DeviceRecords,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        blocks: BatchBlocks | None = None,
    ):
        self._prepared = prepared
        self._recipe = recipe
        self._streams = streams
        self._buffers = buffers
        self.slots = slots
        n = len(slots.y)
        self._blocks = blocks or BatchBlocks(
            recipe.make_batching(n), n, streams["batch"], slots.device
        )
        noisy = recipe.noise_multiplier is not None
        self._release = (
            NoiseRelease.of(recipe, n, streams["noise"], buffers, self._blocks.width)
            if noisy
            else None
        )
        self._count = sum(flat.numel() for flat in buffers.flats)
        self._wrong = torch.zeros((), dtype=torch.bool, device=slots.device)
        fixed = not prepared.keyed and recipe.augmentation is None
        self._graphs = _Graphs() if fixed and slots.device.type == "cuda" else None

    def sum(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write a step's noisy sum to the buffers, and note on the device if it may be wrong."""
        padded = self._blocks.at(step)
        self._wrong |= padded.more
        given = (padded.places, padded.real, *self._words(step, sigma))

        def make(places: Tensor, real: Tensor, *words: Tensor) -> None:
            self._make((places, real), words, step, sigma, state, careful=False)

        self._prepared.checks_finite = False
        try:
            if self._graphs is None:
                make(*given)
            else:
                self._graphs.make(sigma, make, given)
        finally:
            self._prepared.checks_finite = True
        self._finish(sigma, state)

    def sum_with_care(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write the same sum to the buffers, correct in every case."""
        chosen, words = self._blocks.full_batch(step), self._words(step, sigma)
        self._make(chosen, words, step, sigma, state, careful=True)
        self._finish(sigma, state)

    def pop_uncertain(self) -> bool:
        """Read and reset the note of uncertain steps; waits for the device."""
        if self._release is not None:
            self._wrong |= self._release.pop_noted()
        found = bool(self._wrong)
        self._wrong.zero_()
        return found

    def split(self, slots: DeviceRecords) -> None:
        """Continue with the same records and fewer rows at once."""
        self.slots = slots
        if self._graphs is not None:
            self._graphs = _Graphs()

    def _words(self, step: int, sigma: float | None) -> tuple[Tensor, ...]:
        """Return the bits of a step's noise, or its index in the block; empty without noise."""
        if sigma is None:
            return ()
        if self._release is not None:
            return (self._release.at(step),)
        return (
            draw_device_words(
                self.slots.device, 2 * count_pairs(self._count), self._streams["noise"], step
            ),
        )

    def _make(
        self,
        chosen: BatchIndices,
        words: tuple[Tensor, ...],
        step: int,
        sigma: float | None,
        state: TrainingState,
        *,
        careful: bool,
    ) -> None:
        recipe = self._recipe
        part = min(limit_rows(recipe, self.slots.rows), self._blocks.width)
        if len(chosen[0]) % part:
            chosen = pad_to_parts(chosen[0], part, chosen[1])
        reseed_dropout(self._prepared, self._streams["dropout"], step, self.slots.device)
        sum_clipped_gradients(
            self._prepared, self.slots, recipe, self._streams["batch"], chosen, step, state,
            self._buffers, part,
        )  # fmt: skip
        if not words:
            self._buffers.write_back()
            for flat in () if careful else self._buffers.flats:
                self._wrong |= ~flat.isfinite().all()
            return
        assert recipe.bounding is not None
        assert sigma is not None
        scale, start = sigma * recipe.bounding.computed_sensitivity, 0
        if self._release is not None:
            self._buffers.write_back()
            if careful:
                self._release.normals(step).add_to(self._buffers.flats[0], scale)
            else:
                self._release.add(words[0])
            return
        exact = (
            normals_from_words(words[0], self._count, self._streams["noise"], step)
            if careful
            else None
        )
        alone = None if careful else UnrefinedNormals.of(words[0], self._count)
        for total in self._buffers.totals:
            if exact is not None:
                exact.add_to(total, scale, start=start)
            if alone is not None:
                self._wrong |= alone.add_to(total, scale, start=start)
            start += total.numel()
        self._buffers.write_back()

    def _finish(self, sigma: float | None, state: TrainingState) -> None:
        recipe = self._recipe
        if sigma is None or recipe.bounding is None:
            return
        state.noise_deviation = sigma * recipe.bounding.computed_sensitivity
        if recipe.denoising is not None:
            denoise(self._buffers.flats, recipe.denoising, recipe.drawn_density(sigma), state)


_MakeStep = Callable[..., None]


class _Graphs:
    """One captured step, replayed while the noise multiplier is unchanged."""

    def __init__(self) -> None:
        self._last: object = None
        self._captured: object = None
        self._given: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.replayed = 0

    def make(self, sigma: float | None, make: _MakeStep, given: tuple[Tensor, ...]) -> None:
        """Run a step: replayed, or captured at a new noise multiplier."""
        again, self._last = (sigma,) == self._last, (sigma,)
        if not again:
            make(*given)
            return
        if self._captured != (sigma,):
            self._capture(sigma, make, given)
        assert self._graph is not None
        for own, each in zip(self._given, given, strict=True):
            own.copy_(each)
        self._graph.replay()
        self.replayed += 1

    def _capture(self, sigma: float | None, make: _MakeStep, given: tuple[Tensor, ...]) -> None:
        self._given = tuple(each.clone() for each in given)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):  # on the current GPU
            make(*self._given)
        self._captured = (sigma,)
