"""Training steps of linear models in compiled code.

For a small linear model, the calls of PyTorch take longer than the computation. Linear models are
the default for tables, so there is a compiled kernel for them (`linear_kernel`). Batches and noise
are those of `one_step`; sums differ only by rounding. Whether a training uses this backend depends
on public numbers only (network, recipe, n and threads), so a resumed run uses the same code.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.runs import normals
from pasearch.runs.keys import Stream
from pasearch.runs.processor import ThreadTeam, load_checked_loops
from pasearch.spaces.cost import MIN_SAVED_SECONDS
from pasearch.training.batching import Poisson
from pasearch.training.clipping import NO_CLIPPING, NORM_SLACK, FlatClipping, has_factor_terms
from pasearch.training.dense import DenseChain, find_offset
from pasearch.training.losses import RecordLoss
from pasearch.training.one_step import DeviceRecords, TrainingState, choose_part_rows, denoise
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.record_sums import BLOCK_RECORDS, SumBuffers, flatten_parameters

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

SECONDS_PER_STEP = 5e-4
"""Time saved by this backend per step, on one core, seconds."""
SECONDS_PER_RECORD = 2e-7
"""Further time saved per record of the batch, seconds."""
SECONDS_PER_NUMBER = 1.5e-9
"""Further time saved per input or output of a record, seconds."""
MIN_THREAD_RECORDS = 32
"""Minimum expected number of records per thread."""
MAX_BATCH = 2**22
"""Maximum expected batch size; PyTorch sums larger batches, in groups of blocks."""


class LinearBackend:
    """Noisy sums of clipped gradients for one training of a linear model.

    Args:
        model: Linear model.
        slots: Records, on the CPU.
        recipe: Training configuration that `can_use_linear_backend` accepts.
        streams: Random streams "batch" and "noise".
        buffers: Buffers of the sum.
        weights: Flat parameters.
        team: Threads of a step.
        kernel: Module `linear_kernel`.
    """

    def __init__(
        self,
        model: DenseChain,
        slots: DeviceRecords,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        weights: Tensor,
        team: ThreadTeam,
        kernel: ModuleType,
    ):
        self._model, self._slots, self._recipe, self._team = model, slots, recipe, team
        self._kernel, self._buffers, self._stream = kernel, buffers, streams["noise"]
        self._batch = _make_batch_function(recipe, len(slots.y), streams["batch"])
        terms = NO_CLIPPING if recipe.bounding is None else recipe.bounding.terms
        assert terms is not None, "`can_use_linear_backend` has checked it"
        top, plus, most = terms
        self._terms = top, plus, NORM_SLACK, most
        (weight,), (bias,), inputs = model.weights, model.biases, model.widths[0]
        bias_at = -1 if bias is None else find_offset(bias, weights)
        self._shape = np.array(
            [inputs, model.outputs, find_offset(weight, weights), bias_at], np.int64
        )
        self._weights, self._total = weights.detach().numpy(), buffers.totals[0].numpy()
        sizes = BLOCK_RECORDS * model.outputs, inputs * model.outputs
        self._scratch = [
            tuple(np.zeros(size, np.float32) for size in sizes) for _ in range(team.threads)
        ]
        self._others = [np.zeros_like(self._total) for _ in range(team.threads - 1)]
        shares = torch.ones(model.outputs) if slots.shares is None else slots.shares
        self._shares, self._is_numeric = shares.numpy(), slots.y.is_floating_point()
        part, whole = (
            choose_part_rows(recipe, len(slots.y), slots.rows),
            BLOCK_RECORDS * team.threads,
        )
        self._part = whole * max(1, part // whole)
        self._records = None
        if type(slots.x) is Tensor:
            squares = model.squares_of_inputs(slots.x)
            self._records = _convert_to_arrays(slots.x, slots.y, slots.valid, squares)
        few, count = (
            len(self._total) <= normals.MAX_SINGLE_PIECE_COUNT,
            2 * normals.count_pairs(len(self._total)),
        )
        self._words = self._stream.first_words(count) if few else None

    @classmethod
    def of(
        cls,
        prepared: PreparedNetwork,
        slots: DeviceRecords,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        weights: list[Tensor],
        *,
        team: ThreadTeam,
    ) -> LinearBackend | None:
        """Create the backend of a training; None if it is not supported, and PyTorch is used."""
        model = prepared.dense
        if (
            model is None
            or not can_use_linear_backend(prepared, slots, recipe)
            or (kernel := load_kernel()) is None
        ):
            return None
        return cls(model, slots, recipe, streams, buffers, weights[0], team, kernel)

    def write_sum(self, step: int, sigma: float | None, state: TrainingState) -> None:
        """Write the noisy sum of a step to the buffers, and update the state of the training."""
        recipe, bounding = self._recipe, self._recipe.bounding
        self.add_gradients(self._batch(step))
        if sigma is None or bounding is None:
            self._buffers.write_back()
            return
        scale = state.noise_deviation = sigma * bounding.computed_sensitivity
        code = normals.load_compiled()
        assert code is not None, "`load_kernel` has tried it"
        if self._words is None:
            made = normals.draw_normals(len(self._total), self._stream, step, code)
            made.add_to(self._total, scale, team=self._team)
        else:
            words = self._words.at(step)
            normals.add_small_noise(self._total, scale, words, self._stream, step, code)
        self._buffers.write_back()
        if recipe.denoising is not None:
            denoise(self._buffers.flats, recipe.denoising, recipe.drawn_density(sigma), state)

    def add_gradients(self, indices: Any) -> None:
        """Write the sum of the clipped gradients of some records to the float64 totals.

        Records that are not in memory are read in parts of several blocks.
        """
        for each in (self._total, *self._others):
            each[:] = 0.0
        if self._records is not None:
            self._add(self._records, indices)
        else:
            for low in range(0, len(indices), self._part):
                part = torch.from_numpy(indices[low : low + self._part])
                x, loss, mask = self._slots.at(part)
                own = _convert_to_arrays(x, loss.y, mask, self._model.squares_of_inputs(x))
                self._add(own, np.arange(len(part)))
        if self._others:
            self._team.run_divided(len(self._total), lambda _, low, high: self._join(low, high))

    def _add(self, records: tuple[Any, ...], indices: Any) -> None:
        """Add the clipped gradients of records to the totals of the threads."""
        totals = self._total, *self._others
        self._team.run_all(
            lambda thread: self._kernel.add_clipped_gradients(
                *records, self._shares, self._is_numeric, indices, thread, self._team.threads,
                self._weights, self._shape, self._terms, self._scratch[thread], totals[thread],
            )
        )  # fmt: skip

    def _join(self, low: int, high: int) -> None:
        """Add a part of the totals of all other threads to that of the first."""
        for each in self._others:
            self._total[low:high] += each[low:high]


def can_use_linear_backend(prepared: PreparedNetwork, slots: DeviceRecords, recipe: Recipe) -> bool:
    """Check, from public numbers only, whether this backend is used for a training.

    Requirements: one trained linear layer without dropout, float32 on the CPU, a clipping method
    with one factor per record, and a saved time of at least `MIN_SAVED_SECONDS`.
    """
    model, bounding, x, y = prepared.dense, recipe.bounding, slots.x, slots.y
    if model is None or len(model.weights) != 1 or not model.takes(x):
        return False
    parameters = [model.weights[0], *(each for each in model.biases if each is not None)]
    batch = recipe.expected_batch_size
    saved = SECONDS_PER_RECORD + SECONDS_PER_NUMBER * sum(model.widths)
    return (
        model.activations == [None]
        and model.dropouts == [None, None]
        and all(each.requires_grad and each.numel() for each in parameters)
        and len(parameters) == len(prepared.parameters)
        and all((p.dtype, p.device.type) == (torch.float32, "cpu") for p in (*parameters, x))
        and (type(x) is not Tensor or x.is_contiguous())
        and (y.dtype is torch.int64 or (y.dtype is torch.float32 and model.outputs == 1))
        and recipe.noise is None
        and recipe.noise_before_clip is None
        and recipe.augmentation is None
        and (bounding is None or has_factor_terms(bounding))
        and batch <= MAX_BATCH
        and recipe.steps * (SECONDS_PER_STEP + saved * batch) >= MIN_SAVED_SECONDS
    )


def count_threads(recipe: Recipe, threads: int) -> int:
    """Compute the number of threads of a step: at least `MIN_THREAD_RECORDS` records for each."""
    return max(1, min(threads, int(recipe.expected_batch_size // MIN_THREAD_RECORDS)))


def _make_batch_function(recipe: Recipe, n: int, stream: Stream) -> Callable[[int], Any]:
    """Make a function that draws the batch of a step: a faster `Batching.batch`."""
    batching = recipe.make_batching(n)
    defined_by = next(each for each in type(batching).__mro__ if "batch" in vars(each))
    if isinstance(batching, Poisson) and defined_by is Poisson:
        generator = stream.make_generator_function()
        return lambda step: batching.indices(n, generator(step))
    return partial(batching.batch, n, stream)


def _convert_to_arrays(x: Tensor, *more: Tensor) -> tuple[Any, ...]:
    """Convert records to a flat array, and further tensors to arrays, without a copy."""
    return (x.reshape(-1).numpy(), *(each.numpy() for each in more))


@cache
def load_kernel() -> ModuleType | None:
    """Load the compiled kernel and test it; None if numba is missing (`load_checked_loops`)."""
    return load_checked_loops("pasearch.training.linear_kernel", _is_kernel_correct)


def _is_kernel_correct(kernel: ModuleType) -> bool:
    """Check on public numbers that noise equals that of arrays, and that a sum is PyTorch's."""
    if (code := normals.load_compiled()) is None:
        return False
    stream, first = Stream(bytes(32)), np.linspace(-9.0, 9.0, 1000)
    totals = [first.copy() for _ in range(2)]
    words = stream.random_words().take(2 * normals.count_pairs(1000)).copy()
    normals.add_small_noise(totals[0], 1.5, words, stream, 0, code)
    normals.normals_from_words(words, 1000, stream, 0).add_to(totals[1], 1.5)
    layer = nn.Linear(5, 3)
    for parameter in layer.parameters():
        parameter.detach().copy_(
            torch.linspace(-1.0, 1.0, parameter.numel()).sin_().view_as(parameter)
        )
    prepared = PreparedNetwork(nn.Sequential(layer))
    (weights,) = flatten_parameters(prepared.parameters)
    x, bounding = torch.linspace(-2.0, 2.0, 105).sin_().view(21, 5), FlatClipping(clip_norm=0.5)
    valid, y, buffers = torch.arange(21) != 4, torch.arange(21) % 3, SumBuffers(prepared.parameters)
    bounding.sums(prepared, x, RecordLoss(y), mask=valid, buffers=buffers)
    buffers.write_back()
    model, total = prepared.dense, np.zeros(len(weights))
    assert model is not None, "it is a linear model"
    kernel.add_clipped_gradients(
        *_convert_to_arrays(x, y, valid, model.squares_of_inputs(x)), np.ones(3, np.float32), False,
        np.arange(21), 0, 1, weights.numpy(),
        np.array([5, 3, 0, 15], np.int64), (0.5, 0.0, NORM_SLACK, 1.0),
        (np.zeros(BLOCK_RECORDS * 3, np.float32), np.zeros(15, np.float32)), total,
    )  # fmt: skip
    same_noise = np.array_equal(totals[0], totals[1])
    return same_noise and np.allclose(total, buffers.flats[0].numpy(), atol=1e-5)
