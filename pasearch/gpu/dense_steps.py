"""Training steps of dense networks in GPU kernels, for many trainings at once.

    a step    kernel calls for the forward and the backward pass of each layer, clipping factors,
              sums, noise and update: nine calls for three layers, for any number of trainings
    a block   1,024 steps: their batches, keys and noise multipliers are copied to the GPU at once
    a round   some steps of one block: the calls of `GRAPH_STEPS` steps are captured once, as a
              CUDA graph, and replayed; the GPU counts the steps

The result of a training depends on its own keys, not on the trainings that share its calls. During
a round the GPU notes the first step that may be wrong: 127 random bits did not determine how a
value is rounded, or a batch has more records than its padding. Steps before it are correct. This
step is repeated with exact arithmetic (module `rounds`), from the same keys.

Matrix products use pairs of bfloat16 numbers, called halves of a float32 number:

    a number   high half: the nearest bfloat16 number; low half: the one nearest to the difference
    a row      all high halves, then all low halves, padded with zeros

With a = a1 + a2 + rest and d = d1 + d2 + rest, a record adds (d1 + d2)(a1 + a2)^T - d2 a2^T to a
sum. As |rest| <= 2^-17 |a| and |a2| <= 2^-8 |a|, and the same for d, its norm is at most |d| |a|
((1 + 2^-17)^2 + 2^-16) < |d| |a| (1 + 2^-14). So norms are multiplied by 1 + 2^-14.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/dp-sgd.md and floating-point.md
("On a GPU").
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.gpu import bits as gpu
from pasearch.gpu.bits import NO_STEP, STEP_NUMBERS, STEPS_PER_BLOCK
from pasearch.gpu.rounds import (
    MAX_FLOAT32_ROWS,
    BatchBlocks,
    compute_padded_width,
    copy_to_device,
    has_moderate_grids,
    pack_step_inputs,
)
from pasearch.runs.keys import Stream, to_int64
from pasearch.runs.normals import count_pairs
from pasearch.spaces.modules import KeyedDropout
from pasearch.training.clipping import NO_CLIPPING, FlatClipping, has_factor_terms
from pasearch.training.clipping import NORM_SLACK as FLOAT32_SLACK
from pasearch.training.dense import ACTIVATION_CODES, check_buffer_parts, find_offset
from pasearch.training.losses import RecordLoss
from pasearch.training.one_step import DeviceRecords, reseed_dropout
from pasearch.training.optimizers import SgdUpdate
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.record_sums import SumBuffers, flatten_parameters

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

HALVES_SLACK = FLOAT32_SLACK * (1.0 + 2.0**-14)
"""Factor of the norms of gradients that are products of halves, for their rounding errors."""
HALVES_PER_READ = 8
"""Number of halves that a kernel reads at once; the length of a row is a multiple of it."""
MAX_HALVED_RECORDS = 4096
"""Maximum number of records that are split into halves at once, to limit memory."""


@dataclass(frozen=True, slots=True)
class LayerBuffers:
    """Buffers of one layer for a batch.

    Args:
        output: Outputs before dropout; infinite where dropout removes them.
        dropped_output: Halves of the outputs after dropout.
        gradient: Gradient with respect to the outputs.
        gradient_halves: Halves of that gradient.
    """

    output: Tensor
    dropped_output: Tensor
    gradient: Tensor
    gradient_halves: Tensor

    @classmethod
    def allocate(cls, like: Tensor, rows: int, outputs: int) -> LayerBuffers:
        """Allocate buffers with the dtype and device of `like`."""
        dropped, halves = (allocate_halves(like, rows, outputs) for _ in range(2))
        output, gradient = (like.new_zeros((rows, dropped.shape[1] // 2)) for _ in range(2))
        return cls(output, dropped, gradient, halves)


class HalvedRecords:
    """Records as halves, (n, 2, numbers per record), and their squared norms, float64, (n,)."""

    def __init__(self, x: Tensor):
        rows = x.flatten(1)
        self.x = x  # keeps the memory alive, because its address is the key in `TrainingGroup`
        shape, device = (len(rows), 2, rows.shape[1]), x.device
        self.halves = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self.squares = torch.empty(len(rows), dtype=torch.float64, device=device)
        parts = (
            rows.split(MAX_HALVED_RECORDS),
            self.halves.split(MAX_HALVED_RECORDS),
            self.squares.split(MAX_HALVED_RECORDS),
        )
        for part, own, squares in zip(*parts, strict=True):
            write_halves(part, own[:, 0], own[:, 1])
            squares.copy_(own.double().sum(1).square_().sum(1))
        self.ready = record_device_event(device)


def allocate_halves(like: Tensor, rows: int, width: int) -> Tensor:
    """Allocate rows of `width` pairs of halves, padded, on the device of `like`."""
    return like.new_zeros(
        (rows, 2 * HALVES_PER_READ * -(-width // HALVES_PER_READ)), dtype=torch.bfloat16
    )


def write_halves(values: Tensor, first: Tensor, second: Tensor) -> None:
    """Write the high halves of float32 numbers to `first`, and the low halves to `second`."""
    first.copy_(values)
    second.copy_(values - first.float())


def split_halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 numbers into two new buffers: high halves, low halves."""
    first, second = (torch.empty_like(values, dtype=torch.bfloat16) for _ in range(2))
    write_halves(values.detach(), first, second)
    return first, second


def record_device_event(device: torch.device) -> Any:
    """Record a CUDA event after all previous work on the device; None on a CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_for_event(event: Any) -> None:
    """Let later work on the device wait for a CUDA event; None: nothing to wait for."""
    if event is not None:
        event.wait()


MAX_NETWORK_OUTPUTS = 64
"""Maximum number of outputs of a network, because its loss is computed within one tile."""

GRAPH_STEPS = 16
"""Number of steps in one CUDA graph."""

STORE_NOISY_SUMS = False
"""Whether to store a step's noisy sum; only tests read it."""

PADDING_DEVIATIONS = 6.0
"""Padding of a batch above its mean size, in standard deviations; kernels skip unused rows."""

MAX_TILE_ROWS = 128
"""Maximum number of rows of a tile."""
MAX_INDEXED_NUMBERS = 2**31
"""Limit of the numbers of records, of values in a layer's rows, and of weights: 32-bit indices."""

LAYER_ROWS_MULTIPLE = 8
"""The number of table rows per training is a multiple of this. Kernels are compiled for each such
number.
"""

MAX_SMALL_BATCH = 256
"""Maximum number of rows of a batch that uses `SMALL_BATCH_TILES`."""

Tile = dict[str, int]
"""Tile of a matrix that one GPU program computes: rows M, columns N, inner size K; and the warps
and pipeline stages of the program.
"""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of each matrix product: forward pass (first layer, others), backward pass, sums."""

    first: Tile
    forward: Tile
    backward: Tile
    sums: Tile


SMALL_BATCH_TILES = Tiles(
    first={"M": 32, "N": 128, "K": 64, "num_warps": 4, "num_stages": 3},
    forward={"M": 16, "N": 64, "K": 64, "num_warps": 4, "num_stages": 4},
    backward={"M": 16, "N": 32, "K": 32, "num_warps": 4, "num_stages": 2},
    sums={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 4},
)
LARGE_BATCH_TILES = Tiles(
    first={"M": 64, "N": 64, "K": 64, "num_warps": 4, "num_stages": 3},
    forward={"M": 64, "N": 64, "K": 64, "num_warps": 4, "num_stages": 3},
    backward={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 3},
    sums={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 3},
)

WorkItems = list[tuple[int, int, int]]
"""Work of GPU programs, one item each: layer, row and column of the tile."""


def can_use_gpu_steps(
    prepared: PreparedNetwork, slots: DeviceRecords, recipe: Recipe, streams: Mapping[str, Stream]
) -> bool:
    """Check whether the kernels support a training with this network, data and recipe."""
    dense, bounding, x, y = prepared.dense, recipe.bounding, slots.x, slots.y
    if dense is None or dense.joined or type(x) is not Tensor:
        return False
    if not (dense.takes(x) and x.is_contiguous()):
        return False
    plain = recipe.noise is None and recipe.noise_before_clip is None
    plain &= recipe.augmentation is None and recipe.denoising is None and recipe.screening is None
    plain &= not recipe.schedule.is_validation_driven and (
        bounding is None or has_factor_terms(bounding)
    )
    plain &= recipe.optimizer in ("sgd", "momentum") and not streams["noise"].secure
    known = y.dtype is torch.int64 or (y.dtype is torch.float32 and dense.outputs == 1)
    known &= {p.dtype for p in (*prepared.network.parameters(), x)} == {torch.float32}
    known &= dense.activations[-1] is None and dense.dropouts[-1] is None
    known &= dense.dropouts[0] is None and dense.outputs <= MAX_NETWORK_OUTPUTS
    n, most = len(y), min(recipe.chunk, slots.rows)
    known &= has_moderate_grids(recipe, n)
    rows = compute_padded_width(recipe.make_batching(n), n, PADDING_DEVIATIONS)
    known &= rows <= MAX_FLOAT32_ROWS
    shares = slots.shares
    known &= shares is None or (shares.dtype is torch.float32 and len(shares) == dense.outputs)
    widest = max(sum(weight.shape) for weight in dense.weights) + HALVES_PER_READ
    numbers = sum((len(weight) + MAX_TILE_ROWS) * (weight.shape[1] + 1) for weight in dense.weights)
    counted = max(n, 2 * rows * widest, numbers) < MAX_INDEXED_NUMBERS
    return plain and known and rows <= most and counted


class DenseSteps:
    """One training on a GPU: its buffers, and the tables from which the kernels read them.

    Args:
        prepared: Dense network.
        slots: Records on the device, null records included.
        recipe: Training configuration that `can_use_gpu_steps` accepts.
        streams: Random stream by purpose ("batch", "noise", "dropout").
        buffers: Buffers of the sum, with one flat buffer.
        weights: Trainable parameters of the network, flat.
        optimizer: Optimizer with its state.
        average: Moving average of the weights, flat. None: no averaging.
        shares: Function from step numbers to the fraction of the new weights in the average.
        together: Group of trainings that share the records' halves. None: no group.
    """

    def __init__(
        self,
        prepared: PreparedNetwork,
        slots: DeviceRecords,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        weights: Tensor,
        optimizer: SgdUpdate,
        average: Tensor | None,
        shares: Callable[[Any], Any],
        together: TrainingGroup | None = None,
    ):
        assert prepared.dense is not None
        self._dense, self._slots, self._recipe = prepared.dense, slots, recipe
        self._noise, self._optimizer, self._shares = streams["noise"], optimizer, shares
        self._masks = _list_mask_streams(prepared, streams["dropout"])
        n, device = len(slots.y), slots.device
        self.blocks = BatchBlocks(
            recipe.make_batching(n),
            n,
            streams["batch"],
            device,
            steps=STEPS_PER_BLOCK,
            deviations=PADDING_DEVIATIONS,
        )
        self.layers, self.rows = len(self._dense.weights), self.blocks.width
        self._sum, self._weights, self._average = buffers.flats[0], weights, average
        if optimizer.momentum and not optimizer.states[0]:
            optimizer.states[0]["sum"] = torch.zeros_like(weights)
        self._given = torch.zeros(
            (STEPS_PER_BLOCK, STEP_NUMBERS + self.layers), dtype=torch.int64, device=device
        )
        self._places = torch.zeros((STEPS_PER_BLOCK, self.rows), dtype=torch.int32, device=device)
        self._sizes, self._over = (
            torch.zeros(STEPS_PER_BLOCK, dtype=torch.int32, device=device) for _ in range(2)
        )
        self._wrong = torch.full((), NO_STEP, dtype=torch.int32, device=device)
        self._doubts = import_noise_kernels().allocate_doubts(len(weights), device)
        sides = self._list_layer_shapes()
        self._copied_records = allocate_halves(weights, self.rows, sides[0][0])
        self._outs = [LayerBuffers.allocate(weights, self.rows, outputs) for _, outputs in sides]
        self._records = (TrainingGroup() if together is None else together).get_halved_records(
            slots.x
        )
        self._halves = split_halves(weights)
        self._frozen = {
            layer: split_halves(weight)
            for layer, weight in enumerate(self._dense.weights) if not weight.requires_grad
        }  # fmt: skip
        self._block, self._plan = -1, None
        self.count, self.device, self.ready = len(weights), device, None

    # Before and after a round

    def copy_block_inputs(self, first: int) -> None:
        """Copy the inputs of the step's block to the device, if they are not there."""
        for event in (self._records.ready, self.ready):
            wait_for_event(event)
        if self._block != (block := first // STEPS_PER_BLOCK):
            self._block = -1  # after a failure here, no step uses the keys of another block
            places, real, beyond = self.blocks.draw_block(block)
            self._places.copy_(places)
            self._sizes.copy_(real.sum(1))
            steps = torch.arange(STEPS_PER_BLOCK, dtype=torch.int32, device=beyond.device)
            self._over.copy_(steps.where(beyond < len(self._slots.y), NO_STEP))
            copy_to_device(self._pack_block_inputs(block * STEPS_PER_BLOCK), self._given)
            self._block = block
        write_halves(
            self._weights.detach(), *self._halves
        )  # the weights may have changed outside these kernels
        self.ready = record_device_event(self.device)

    def start_steps(self, first: int, many: int) -> None:
        """Start `many` steps of this training alone, from step `first`, all of one block."""
        self.copy_block_inputs(first)
        self._plan = self._plan or _CallPlan([self])
        self._plan.start_steps([self], first % STEPS_PER_BLOCK, many)

    def count_valid_steps(self, first: int, many: int) -> int:
        """Count the correct steps among the `many` steps from `first` on, before a wrong one.

        Waits for the device, and resets the note of the first wrong step.
        """
        wait_for_event(self.ready)
        low = first % STEPS_PER_BLOCK
        found = int(torch.minimum(self._over[low : low + many].min(), self._wrong))
        self._wrong.fill_(NO_STEP)
        return min(many, found - low)

    def update_from_stored_sum(self, step: int) -> None:
        """Update the weights by the noisy sum in the buffer, computed with exact arithmetic.

        The kernel is that of every step: with another one, rounding of the weights would reveal
        which step was repeated.
        """
        self.copy_block_inputs(step)
        still, row, code = self._given.clone(), self.make_training_row(), import_noise_kernels()
        still[:, :2] = 0  # the sum already has noise
        row[0] = still.data_ptr()
        at = torch.full((), step % STEPS_PER_BLOCK, dtype=torch.int64, device=self.device)
        work = code.list_work(self.count, self.device)
        self._doubts[:1].zero_()
        code.release(work, torch.tensor([row]).to(self.device), at)
        self._wrong.fill_(NO_STEP)
        self.ready = record_device_event(self.device)

    def wait_for_steps(self) -> None:
        """Let later work on the device wait for all started steps of this training."""
        wait_for_event(self.ready)

    def _pack_block_inputs(self, first: int) -> np.ndarray[Any, Any]:
        """Pack the inputs of each step of a block, with the fields of `gpu.kernels`."""
        optimizer, n = self._optimizer, len(self._slots.y)
        packed = pack_step_inputs(self._recipe, n, self._noise, first, self.layers)
        numbers = packed.view(np.float64)
        numbers[:, 2:5] = optimizer.rate, optimizer.momentum, optimizer.share
        if self._average is not None:
            numbers[:, 5] = self._shares(np.arange(first, first + STEPS_PER_BLOCK))
        for layer, stream in self._masks.items():
            packed[:, STEP_NUMBERS + layer] = to_int64(gpu.derive_mask_key(stream, first)[0])
        return packed

    # Tables that the kernels read

    def make_training_row(self) -> list[int]:
        """List the training's fields in the table of trainings (`RECORDS_ADDRESS` ...)."""
        slots, moment = self._slots, self._optimizer.states[0].get("sum")
        bounding = self._recipe.bounding
        top, plus, most = NO_CLIPPING if bounding is None else bounding.terms or NO_CLIPPING
        about_moves = self._given, self._sum, self._weights, moment, self._average, *self._halves
        records = self._records
        about = records.halves, slots.y, slots.valid, self._places, self._sizes, records.squares
        return [
            *map(_get_address, (*about_moves, self._wrong, self._doubts)),
            self.count, self._given.shape[1],
            *map(_get_address, about), self.rows, self.layers, _get_address(slots.shares),
            int(slots.y.is_floating_point()),
            *map(_get_float_bits, (top, plus, HALVES_SLACK, most)),
        ]  # fmt: skip

    def make_layer_rows(self) -> list[list[int]]:
        """List fields of the copied records, then of each layer (`HIGH_WEIGHTS_ADDRESS` ...)."""
        dense, copied, parts = self._dense, self._copied_records, []
        rows = [[*6 * [0], _get_address(copied), *9 * [0], copied.shape[1] // 2, 0]]
        for place, (inputs, outputs) in enumerate(self._list_layer_shapes()):
            weight, bias, out = dense.weights[place], dense.biases[place], self._outs[place]
            _check_layout(weight, (outputs, inputs))
            if bias is not None:
                _check_layout(bias, (outputs,))
                if bias.requires_grad != weight.requires_grad:
                    raise ValueError(
                        "A layer's weights and bias must both be trained or both be frozen."
                    )
            at = [-1, -1]
            for k, own in enumerate((weight, bias)):
                if own is not None and own.requires_grad:
                    at[k] = find_offset(own, self._weights)
                    parts.append((at[k], own.numel()))
            halves = [
                each.data_ptr() + 2 * max(at[0], 0)
                for each in self._frozen.get(place, self._halves)
            ]  # fmt: skip
            dropout = dense.dropouts[place + 1] if place in self._masks else None
            rate = 0.0 if dropout is None else dropout.rate
            least = math.ceil(float(np.float32(rate)) * 2**24)
            rows.append([
                *halves, _get_address(bias), inputs, outputs, _get_address(out.output),
                *map(_get_address, (out.dropped_output, out.gradient, out.gradient_halves)),
                ACTIVATION_CODES[dense.activations[place]],
                int(weight.requires_grad), *at,
                least, _get_float_bits(1.0 / (1.0 - rate)),
                STEP_NUMBERS + place, out.output.shape[1],
                int(not (inputs % HALVES_PER_READ or max(at[0], 0) % HALVES_PER_READ)),
            ])  # fmt: skip
        check_buffer_parts(parts, len(self._weights))
        return rows

    def _list_layer_shapes(self) -> list[tuple[int, int]]:
        """List (number of inputs, number of outputs) of each layer."""
        return [(weight.shape[1], weight.shape[0]) for weight in self._dense.weights]

    # Tiles of each kernel

    def list_forward_tiles(self, layer: int) -> WorkItems:
        """List the tiles of a layer's outputs; empty if there is no such layer."""
        if layer >= self.layers:
            return []
        tile = self.tiles.forward if layer else self.tiles.first
        return _list_tiles(layer, self.rows, len(self._dense.weights[layer]), tile)

    def list_backward_tiles(self, layer: int) -> WorkItems:
        """List the tiles of the gradient with respect to a layer's inputs; empty if not needed."""
        if not self._dense.trained[0] < layer < self.layers:
            return []
        return _list_tiles(
            layer, self.rows, self._dense.weights[layer].shape[1], self.tiles.backward
        )

    def list_sum_tiles(self) -> WorkItems:
        """List the tiles of all layers' sums of gradients; tiles of a bias have column -1."""
        dense, tile, found = self._dense, self.tiles.sums, []
        for layer in dense.trained:
            outputs, inputs = dense.weights[layer].shape
            found += _list_tiles(layer, outputs, inputs, tile)
            if dense.biases[layer] is not None:
                found += [(layer, row, -1) for row in range(-(-outputs // tile["M"]))]
        return found

    def list_factor_work(self) -> WorkItems:
        """List the blocks of records whose clipping factors are computed."""
        from pasearch.gpu.dense_kernels import FACTOR_RECORDS

        return [(0, block, 0) for block in range(-(-self.rows // FACTOR_RECORDS))]

    @cached_property
    def is_aligned(self) -> bool:
        """Whether the rows of the first layer's halves begin at multiples of 16 bytes."""
        return bool(self.make_layer_rows()[1][-1])

    @cached_property
    def tiles(self) -> Tiles:
        """The tile sizes for this batch size."""
        return SMALL_BATCH_TILES if self.rows <= MAX_SMALL_BATCH else LARGE_BATCH_TILES


def import_noise_kernels() -> ModuleType:
    """Import `gpu.kernels`, which needs Triton."""
    from pasearch.gpu import kernels

    return kernels


class TrainingGroup:
    """Trainings that share kernel calls: each adds its steps, `run_pending` starts all of them."""

    def __init__(self) -> None:
        self._asked: list[tuple[DenseSteps, int, int]] = []
        self._plans: dict[int, dict[tuple[DenseSteps, ...], _CallPlan]] = {}
        self._records: dict[tuple[Any, ...], HalvedRecords] = {}

    def get_halved_records(self, x: Tensor) -> HalvedRecords:
        """Get records as halves; computed once for all trainings."""
        key = x.data_ptr(), tuple(x.shape), x._version
        if key not in self._records:
            self._records[key] = HalvedRecords(x)
        return self._records[key]

    def add_steps(self, code: DenseSteps, first: int, many: int) -> None:
        """Add `many` steps from `first` on, all of one block, to the pending steps."""
        code.copy_block_inputs(first)
        self._asked.append((code, first, many))

    def has_pending_steps(self, code: DenseSteps) -> bool:
        """Check whether steps of a training were added and not started."""
        return any(each[0] is code for each in self._asked)

    def remove_pending_steps(self, code: DenseSteps) -> None:
        """Remove a training's pending steps."""
        self._asked = [each for each in self._asked if each[0] is not code]

    def run_pending(self, group: int = 0) -> None:
        """Start all pending steps on the device.

        Args:
            group: Number of the group of trainings. The lists of kernel calls of a group are cached
                for as long as it has the same trainings.
        """
        asked, self._asked = self._asked, []
        kinds: dict[tuple[int, int, bool, bool], list[DenseSteps]] = {}
        for code, first, many in asked:
            kind = first % STEPS_PER_BLOCK, many, code.tiles is SMALL_BATCH_TILES, code.is_aligned
            kinds.setdefault(kind, []).append(code)
        before, self._plans[group] = self._plans.get(group, {}), {}
        for (low, many, *_), codes in kinds.items():
            plan = self._plans[group][*codes,] = before.get((*codes,)) or _CallPlan(codes)
            plan.start_steps(codes, low, many)


class _CallPlan:
    """Kernel calls of one step of several trainings, with their tables on the device.

    It has no references to the trainings, which may refer to it. So their memory is freed at once.
    """

    def __init__(self, codes: Sequence[DenseSteps]):
        from pasearch.gpu import dense_kernels as kernels

        noise = import_noise_kernels()
        device, most = codes[0].device, max(code.layers for code in codes)
        buffers = LAYER_ROWS_MULTIPLE * -(
            -(most + 1) // LAYER_ROWS_MULTIPLE
        )  # a compile-time constant of the kernels
        self._device, self._noise, self._kernels = device, noise, kernels
        rows = torch.tensor([code.make_training_row() for code in codes])
        layers = torch.zeros((len(codes), buffers, kernels.LAYER_FIELDS), dtype=torch.int64)
        for place, code in enumerate(codes):
            layers[place, : code.layers + 1] = torch.tensor(code.make_layer_rows())
        self._tables = rows.to(device), layers.to(device)
        self._at = torch.zeros((GRAPH_STEPS, 2), dtype=torch.int64, device=device)[
            :, 0
        ]  # aligned to 16 bytes each
        self._ahead = torch.arange(GRAPH_STEPS, device=device)
        sizes = {"WIDE": rows.shape[1], "MANY": buffers, "IS_EVEN": codes[0].is_aligned}
        tiles = codes[0].tiles
        calls: list[tuple[str, Callable[[DenseSteps], WorkItems], Tile]] = [
            ("first", partial(DenseSteps.list_forward_tiles, layer=0), tiles.first),
            *(("forward", partial(DenseSteps.list_forward_tiles, layer=k), tiles.forward)
              for k in range(1, most)),
            *(("backward", partial(DenseSteps.list_backward_tiles, layer=k), tiles.backward)
              for k in reversed(range(1, most))),
            ("factors", DenseSteps.list_factor_work,
             {"M": kernels.FACTOR_RECORDS, "K": kernels.FACTOR_COLUMNS}),
            ("sums", DenseSteps.list_sum_tiles, tiles.sums),
        ]  # fmt: skip
        work = ([(k, *each) for k, code in enumerate(codes) for each in of(code)]
                for _, of, _ in calls)  # fmt: skip
        self._calls = [
            (name, _make_work_tensor(own, device), sizes | tile)
            for own, (name, _, tile) in zip(work, calls, strict=True) if own
        ]  # fmt: skip
        blocks = [
            (k, b)
            for k, code in enumerate(codes)
            for b in range(-(-count_pairs(code.count) // noise.PAIRS_PER_PROGRAM))
        ]
        self._blocks = _make_work_tensor(blocks, device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def start_steps(self, codes: Sequence[DenseSteps], low: int, many: int) -> None:
        """Start `many` steps on the device, from index `low` of the block."""
        for code in codes:
            wait_for_event(code.ready)
        try:
            self._call_graphs(low, many)
        finally:  # trainings wait for the steps that were started
            done = record_device_event(self._device)
            for code in codes:
                code.ready = done

    def _call_graphs(self, low: int, many: int) -> None:
        """Run steps by CUDA graphs; the first step of each kind without a graph."""
        self._at.copy_(self._ahead).add_(low)
        while many:
            at_once = GRAPH_STEPS if many >= GRAPH_STEPS else 1
            if (graph := self._graphs.get(at_once)) is not None:
                graph.replay()
            else:
                self._call_kernels(at_once)  # compiles and loads the kernels before the capture
                if self._device.type == "cuda" and many > at_once:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=torch.cuda.Stream(self._device)):
                        self._call_kernels(at_once)
                    self._graphs[at_once] = graph
            many -= at_once

    def _call_kernels(self, many: int) -> None:
        """Call the kernels of `many` steps, and increase the step counters on the device."""
        for at in self._at[:many]:
            for name, work, about in self._calls:
                self._kernels.run_kernel(name, work, *self._tables, at, **about)
            self._noise.release(self._blocks, self._tables[0], at, kept=STORE_NOISY_SUMS)
        self._at.add_(many)


def _list_mask_streams(prepared: PreparedNetwork, stream: Stream) -> dict[int, Stream]:
    """List the random stream of each layer's dropout masks, the same as in `reseed_dropout`."""
    assert prepared.dense is not None
    keyed = [getattr(each, "__self__", None) for each in prepared.keyed]
    return {
        layer: stream.child(keyed.index(each))
        for layer, each in enumerate(prepared.dense.dropouts[1:])
        if each is not None and each.rate and each.training
    }


def _list_tiles(layer: int, rows: int, columns: int, tile: Tile) -> WorkItems:
    """List the tiles that cover a matrix of a layer."""
    sides = -(-rows // tile["M"]), -(-columns // tile["N"])
    return [(layer, k, l) for l in range(sides[1]) for k in range(sides[0])]  # noqa: E741


def _make_work_tensor(work: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    """Copy a list of work to the device, int32, (programs, fields)."""
    return torch.tensor(work, dtype=torch.int32).to(device)


def _check_layout(values: Tensor, shape: tuple[int, ...]) -> None:
    """Check that a parameter has the expected shape and is contiguous."""
    if tuple(values.shape) != shape or not values.is_contiguous():
        raise ValueError(
            f"A layer's parameter has shape {tuple(values.shape)}: expected {shape}, contiguous."
        )


def _get_address(values: Tensor | None) -> int:
    """Get the memory address of a tensor; 0 for None."""
    return 0 if values is None else values.data_ptr()


def _get_float_bits(number: float) -> int:
    """Get the bits of a float64 number as an int64."""
    return int(np.float64(number).view(np.int64))


TEST_SHAPES = (83, 5, 70), (300, 72, 136)
"""Rows, inputs and outputs of the two kernel tests: small odd numbers, and multiples of 8 that are
larger than a tile.
"""


def has_gpu_steps(device: str) -> bool:
    """Check whether a device can use these kernels; tested once per process, on public numbers."""
    return _test_gpu_steps(device, gpu.cuda_device_index(device))


@cache
def _test_gpu_steps(device: str, number: int) -> bool:
    """Test the kernels once per device index `number`."""
    if gpu.load_kernels(device) is None:
        return False
    tried = lambda _: all(_matches_torch(device, *sides) for sides in TEST_SHAPES)  # noqa: E731
    return gpu.load_if_usable("pasearch.gpu.dense_kernels", tried) is not None


def list_gpu_library_versions(device: str) -> list[str]:
    """List version and settings of Triton, on which results on a GPU depend; empty if unused."""
    if device != "cuda" or gpu.load_kernels(device) is None:
        return []
    of_networks = ", of dense networks too" if has_gpu_steps(device) else ""
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items())
            if name.startswith("TRITON_") and "CACHE" not in name]  # fmt: skip
    return [f"Triton {version('triton')}{of_networks}", *settings]


def _matches_torch(device: str, rows: int, inputs: int, outputs: int) -> bool:
    """Check that the kernels' sum of a step is close to PyTorch's, on synthetic data."""
    from pasearch.training.recipe import Recipe

    layers = nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, 24), nn.ReLU()
    more = KeyedDropout(0.4), nn.Linear(24, 16).requires_grad_(False), nn.Sigmoid()
    network = nn.Sequential(*layers, *more, nn.Linear(16, 3)).to(device)
    prepared = PreparedNetwork(network)
    for parameter in network.parameters():
        wave = torch.linspace(-1.0, 1.0, parameter.numel()).sin_() / math.sqrt(len(parameter))
        parameter.detach().copy_(wave.view_as(parameter))
    (weights,) = flatten_parameters(prepared.parameters)
    x = torch.linspace(-2.0, 2.0, rows * inputs).sin_().view(rows, inputs)
    valid = torch.arange(rows) != 4
    y = torch.arange(rows) % 3
    bounding = FlatClipping(clip_norm=0.5)
    slots = DeviceRecords.move_to_device(device, x, y, valid)
    buffers = SumBuffers(prepared.parameters)
    expected = SumBuffers(prepared.parameters)
    streams = {name: Stream(bytes(32)).child(name) for name in ("batch", "noise", "dropout")}
    reseed_dropout(prepared, streams["dropout"], 0, slots.device)
    bounding.sums(prepared, slots.x, RecordLoss(slots.y), mask=slots.valid, buffers=expected)
    expected.write_back()
    recipe = Recipe(
        expected_batch_size=rows, steps=1, learning_rate=1.0, bounding=bounding, optimizer="sgd",
        average=None,
    )  # fmt: skip
    code = DenseSteps(
        prepared,
        slots,
        recipe,
        streams,
        buffers,
        weights,
        SgdUpdate([weights], 1.0),
        None,
        np.zeros_like,
    )
    code.start_steps(0, 1)
    right = code.count_valid_steps(0, 1) == 1  # waits for the device
    found, sought = buffers.flats[0], expected.flats[0]
    return right and bool((found - sought).norm() <= 1e-3 * sought.norm())
