"""Training steps on a GPU in rounds: the CPU waits for the device once per round, not in each step.

    in a round    a step assumes that every record is finite, that its random bits determine every
                  rounding, and that the batch fits into its padding; if not, the device notes that
                  the step is uncertain
    at its end    the CPU reads the note. Nearly always there is none, and all steps are correct.
                  Otherwise the weights are restored, and the steps are repeated with checks
    with checks   each step checks the records, draws further bits where needed, and uses the whole
                  batch

Both ways use the same batch and the same noise, from the same keys. So a correct step equals the
checked step, and the result of an undone step is never used. There is one release per step, and one
privacy cost. Steps of one shape are captured once, as a CUDA graph, and replayed.

Batches of many steps are drawn at once and padded to one size (`width`):

    places   int64, (steps, width)     record indices; 0 for padding
    real     bool, (steps, width)      False for padding, which adds 0 as a null record does
    beyond   int64, (steps,)           the next index after these; n or more if there is none

Poisson sampling is exact: the gaps between chosen indices are Geometric(q), drawn by inversion, G =
1 + floor(log U / log(1 - q)), with 63 secret bits of U. At most one batch in 20,000 has more than
`width` records. `draw_full_batch` completes it by the index `beyond` and later ones.

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
    compute_grid_distance,
    count_pairs,
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
"""Padded widths are multiples of this number, for which matrix products on a GPU are faster."""


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Padded record indices of one step.

    Args:
        places: Record indices, int64, (width,).
        real: False for padding, bool, (width,).
        beyond: Next chosen index after these, int64, (); n or more if there is none.
        more: Whether there is a next index, so that the batch does not fit, bool, ().
    """

    places: Tensor
    real: Tensor
    beyond: Tensor
    more: Tensor


class BatchBlocks:
    """Batches of a training, drawn for many steps at once on its device.

    Guarantee: a step's batch has the distribution of `batching`, and batches of different steps are
    independent if those of `batching` are. A batch depends only on stream, step and device type.

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
        self.width = compute_padded_width(
            batching, n, PADDING_DEVIATIONS if deviations is None else deviations
        )
        self._block = -1
        self._drawn: tuple[Tensor, Tensor, Tensor] | None = None
        self._all_chosen = isinstance(batching, Poisson) and batching.sampling_probability == 1.0

    def get_padded_batch(self, step: int) -> PaddedBatch:
        """Get the padded record indices of a step, without waiting for the device."""
        block, row = divmod(step, self._steps)
        places, real, beyond = self.draw_block(block)
        return PaddedBatch(places[row], real[row], beyond[row], beyond[row] < self._n)

    def draw_block(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw (places, real, beyond) of a block's steps; see the docstring of the module."""
        if block != self._block or self._drawn is None:
            inverted = isinstance(self._batching, Poisson) and not self._all_chosen
            self._drawn = (
                self._draw_by_inversion(block) if inverted else self._draw_on_processor(block)
            )
            self._block = block
        return self._drawn

    def draw_full_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw all record indices of a step, and the flags of real rows; waits for the device."""
        padded = self.get_padded_batch(step)
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
        """Draw the Poisson batches of a block on the device, by geometric gaps."""
        assert isinstance(self._batching, Poisson)
        shape = self._steps, self.width + 1
        words = draw_device_words(self._device, math.prod(shape), self._stream.child("gaps"), block)
        places = convert_to_geometric_gaps(
            words, self._batching.sampling_probability, self._n
        ).view(shape)
        places = places.cumsum(1).sub_(1)
        real = places[:, :-1] < self._n
        return places[:, :-1].where(real, 0), real, places[:, -1].contiguous()

    def _draw_on_processor(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the batches of a block on the CPU, and copy them to the device at once."""
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


def compute_padded_width(batching: Batching, n: int, deviations: float) -> int:
    """Compute the number of rows of a padded batch of a partition with n records."""
    most = batching.max_batch_size(n, deviations)
    return min(WIDTH_MULTIPLE * -(-most // WIDTH_MULTIPLE), max(n, 1))


def convert_to_geometric_gaps(words: Tensor, q: float, n: int) -> Tensor:
    """Convert random 64-bit words to Geometric(q) numbers G >= 1, at most n + 1."""
    found = (words & LOW_63_BITS).double().add_(0.5).mul_(2.0**-63).log_().div_(math.log1p(-q))
    return found.floor_().add_(1.0).clamp_(max=n + 1.0).long()


MAX_FLOAT32_ROWS = 4096
"""Maximum number of rows B of a batch whose sum may be rounded to float32 before the noise. The
rounding adds 2 B 2^-24 of the sensitivity to the influence of one record. Proof:
docs/guarantees/floating-point.md ("The sum").
"""


def has_moderate_grids(recipe: Recipe, n: int) -> bool:
    """Check that the grid spacing of every step is in the range where float32 divides exactly."""
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return True
    factors = [factor for factor, _ in recipe.levels(n)]
    largest = recipe.noise_multiplier * recipe.bounding.computed_sensitivity
    scales = [factor * largest for factor in factors]
    return all(
        1 / MAX_GRID_DISTANCE < compute_grid_distance(each) < MAX_GRID_DISTANCE for each in scales
    )


def pack_step_inputs(
    recipe: Recipe, n: int, stream: Stream, first: int, more: int = 0
) -> np.ndarray[Any, Any]:
    """Pack the noise inputs of a block's steps; see `gpu.bits.pack_noise_inputs`.

    Args:
        recipe: Training configuration with the noise.
        n: Number of records of the partition, null records included.
        stream: Random stream of the trial's noise.
        first: First step of the block.
        more: Number of further fields per step, which are 0.
    """
    if recipe.noise_multiplier is None or recipe.bounding is None:
        return np.zeros((STEPS_PER_BLOCK, STEP_NUMBERS + more), dtype=np.int64)
    last = recipe.steps - 1
    steps = range(first, first + STEPS_PER_BLOCK) if recipe.schedule.varies else [0]
    sigmas = [recipe.noise_multiplier_at(min(step, last), n) or 0.0 for step in steps]
    key, begin, _ = gpu.derive_noise_key(stream, first)
    scales = [sigma * recipe.bounding.computed_sensitivity for sigma in sigmas]
    return gpu.pack_noise_inputs(scales, key, begin, more)


def copy_to_device(given: np.ndarray[Any, Any], onto: Tensor) -> None:
    """Copy a NumPy array to a tensor on a device, without waiting for the copy."""
    values = torch.from_numpy(given)
    values = values.pin_memory() if onto.device.type == "cuda" else values
    onto.copy_(values, non_blocking=True)


class NoiseRelease:
    """Noise of a training by the GPU kernel: added to the sum of each step.

    The kernel can also update the weights; here it does not.

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
            *gpu.list_row_addresses(self._given, flat, self._noted, self._doubts),
            len(flat),
            STEP_NUMBERS,
        ]
        self._row = torch.tensor([row], device=flat.device)
        self._work, self._block = gpu_kernels.list_work(len(flat), flat.device), -1

    @classmethod
    def create_if_supported(
        cls, recipe: Recipe, n: int, stream: Stream, buffers: SumBuffers, rows: int
    ) -> NoiseRelease | None:
        """Create the kernel's noise for a training; None if PyTorch must add the noise.

        The kernel adds noise to float32 sums. Rounding a float64 total to float32 is covered by
        `SUM_ROUNDING` only for batches of at most `MAX_FLOAT32_ROWS` rows.

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

    def prepare_step(self, step: int) -> Tensor:
        """Copy the noise inputs of the step's block to the device, if they are not there.

        Returns the index of the step in its block, for `add_noise`, int64, ().
        """
        block, within = divmod(step, STEPS_PER_BLOCK)
        if block != self._block:
            copy_to_device(
                pack_step_inputs(self._recipe, self._n, self._stream, block * STEPS_PER_BLOCK),
                self._given,
            )
            self._block = block
        return self._steps[within]

    def add_noise(self, at: Tensor) -> None:
        """Add a step's noise to the sum; the device notes if a rounding is uncertain."""
        self._kernels.release(self._work, self._row, at)
        self._doubts[:1].zero_()

    def pop_uncertain(self) -> Tensor:
        """Get whether a rounding was uncertain since the last call, bool, (); reset the note."""
        found = self._noted < NO_STEP
        self._noted.fill_(NO_STEP)
        return found

    def make_exact_normals(self, step: int) -> Normals:
        """Make the same noise of a step, from the same words, with all bits that rounding needs."""
        key, begin, within = gpu.derive_noise_key(self._stream, step)
        words = self._kernels.draw_philox_words(
            count_pairs(self._count), key, begin, within, self._device
        )
        return normals_from_words(words, self._count, self._stream, step)


MAX_STEPS_PER_ROUND = 64
"""Maximum number of steps of a round. If one of them is uncertain, the round is repeated. A batch
that does not fit into its padding occurs at most once in 20,000 steps.
"""


def can_use_rounds(recipe: Recipe) -> bool:
    """Check whether a recipe's steps may run in rounds.

    Adaptive clipping, encoded gradients, non-Gaussian noise, noise on each record, screening and
    validation-driven schedules need a result of the device in every step. The kernels know neither
    weight decay nor learning-rate schedules.
    """
    bounding = recipe.bounding
    known = bounding is None or (
        not bounding.is_adaptive and type(bounding).sums is ClippingMethod.sums
    )
    asked = recipe.screening is not None or recipe.schedule.is_validation_driven
    asked |= bool(recipe.weight_decay) or recipe.learning_rate_schedule is not None
    return known and not asked and recipe.noise is None and recipe.noise_before_clip is None


class Rounds:
    """Noisy sums of a training's steps on a GPU, with or without checks.

    Args:
        prepared: Network.
        slots: Records on the device, null records included.
        recipe: Training configuration that `can_use_rounds` accepts.
        streams: Random stream by purpose (batch, noise, dropout).
        buffers: Buffers of the sum.
        blocks: Batches. None: drawn as the recipe states.
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
            NoiseRelease.create_if_supported(
                recipe, n, streams["noise"], buffers, self._blocks.width
            )
            if noisy
            else None
        )
        self._count = sum(flat.numel() for flat in buffers.flats)
        self._wrong = torch.zeros((), dtype=torch.bool, device=slots.device)
        fixed = not prepared.keyed and recipe.augmentation is None
        self._graphs = _Graphs() if fixed and slots.device.type == "cuda" else None

    def write_sum(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write a step's noisy sum to the buffers; the device notes if it is uncertain."""
        padded = self._blocks.get_padded_batch(step)
        self._wrong |= padded.more
        given = (padded.places, padded.real, *self._list_noise_inputs(step, sigma))

        def make(places: Tensor, real: Tensor, *words: Tensor) -> None:
            self._make((places, real), words, step, sigma, state, careful=False)

        self._prepared.checks_finite = False
        try:
            if self._graphs is None:
                make(*given)
            else:
                self._graphs.run_step(sigma, make, given)
        finally:
            self._prepared.checks_finite = True
        self._denoise(sigma, state)

    def write_checked_sum(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write a step's noisy sum to the buffers with all checks, so that it is always correct."""
        chosen, words = self._blocks.draw_full_batch(step), self._list_noise_inputs(step, sigma)
        self._make(chosen, words, step, sigma, state, careful=True)
        self._denoise(sigma, state)

    def pop_uncertain(self) -> bool:
        """Get whether a step was uncertain since the last call; waits for the device."""
        if self._release is not None:
            self._wrong |= self._release.pop_uncertain()
        found = bool(self._wrong)
        self._wrong.zero_()
        return found

    def replace_records(self, slots: DeviceRecords) -> None:
        """Continue with another `DeviceRecords`: the same records, processed fewer at once."""
        self.slots = slots
        if self._graphs is not None:
            self._graphs = _Graphs()

    def _list_noise_inputs(self, step: int, sigma: float | None) -> tuple[Tensor, ...]:
        """List the tensor from which a step's noise follows; empty without noise.

        It is the index of the step in its block for `NoiseRelease`, otherwise the random words.
        """
        if sigma is None:
            return ()
        if self._release is not None:
            return (self._release.prepare_step(step),)
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
        """Compute a step's sum and add the noise; `careful` selects the way with checks."""
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
                self._release.make_exact_normals(step).add_to(self._buffers.flats[0], scale)
            else:
                self._release.add_noise(words[0])
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

    def _denoise(self, sigma: float | None, state: TrainingState) -> None:
        """Store the noise's standard deviation in the state, and denoise the sum if asked."""
        recipe = self._recipe
        if sigma is None or recipe.bounding is None:
            return
        state.noise_deviation = sigma * recipe.bounding.computed_sensitivity
        if recipe.denoising is not None:
            denoise(self._buffers.flats, recipe.denoising, recipe.drawn_density(sigma), state)


_MakeStep = Callable[..., None]


class _Graphs:
    """CUDA graph of one step, replayed while the noise multiplier is unchanged.

    Attributes:
        replayed: Number of replayed steps.
    """

    def __init__(self) -> None:
        self._last: object = None
        self._captured: object = None
        self._given: tuple[Tensor, ...] = ()
        self._graph: torch.cuda.CUDAGraph | None = None
        self.replayed = 0

    def run_step(self, sigma: float | None, make: _MakeStep, given: tuple[Tensor, ...]) -> None:
        """Run a step: by the graph from the second step with the same noise multiplier on.

        Args:
            sigma: Noise multiplier of the step.
            make: Function that runs the step on tensors.
            given: Arguments of `make`.
        """
        again, self._last = (sigma,) == self._last, (sigma,)
        if not again:
            make(*given)
            return
        if self._captured != (sigma,):
            self._given = tuple(each.clone() for each in given)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=torch.cuda.Stream()):  # on the current GPU
                make(*self._given)
            self._captured = (sigma,)
        assert self._graph is not None
        for own, each in zip(self._given, given, strict=True):
            own.copy_(each)
        self._graph.replay()
        self.replayed += 1
