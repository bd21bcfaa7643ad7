"""Steps of dense networks on a GPU by own kernels, of all trainings of a generation at once.

    a step    forward of each layer, backward of each, factors, sums, noise and update: nine calls
              for three layers, however many trainings take part
    a block   1,024 steps: its batches, keys and noise multipliers are put on the GPU before it
    a round   steps of one block: the calls of `AHEAD` steps are captured once, as a CUDA graph, and
              replayed; the GPU counts the steps

The result of a training follows from its own keys, not from others that it shares calls with. At a
round's end the GPU has noted the first step that may be wrong, if there is one: some number was not
decided by 127 bits, or a batch has more records than its padding. Steps before it are right, and
that one is made again with care (`rounds`), from the same keys.

Products are of bfloat16 halves:

a number   the bfloat16 number next to it, and the one next to the rest (`halve`)
a row      first all first halves, then all second ones; behind the last are zeros

With a = a1 + a2 + rest and d = d1 + d2 + rest, a record adds (d1 + d2)(a1 + a2)^T - d2 a2^T to a
sum. As |rest| <= 2^-17 |a| and |a2| <= 2^-8 |a|, and the same for d, its norm is at most
|d| |a| ((1 + 2^-17)^2 + 2^-16) < |d| |a| (1 + 2^-14): norms are multiplied by that.

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
from pasearch.gpu.bits import BLOCK, GIVEN, NEVER
from pasearch.gpu.rounds import MAX_FLOAT32_ROWS, Blocks, given_of, moderate, moved, padded
from pasearch.runs.keys import Stream, signed
from pasearch.runs.normals import pairs
from pasearch.spaces.modules import KeyedDropout
from pasearch.training.clipping import NO_CLIPPING, Flat, has_terms
from pasearch.training.clipping import SLACK as FLOAT32_SLACK
from pasearch.training.dense import ACTIVATION_CODES, check_parts, place_of
from pasearch.training.losses import LossOf
from pasearch.training.one_step import Slots, reseed_dropout
from pasearch.training.optimizers import Descent
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.record_sums import SumBuffers, flattened

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

SLACK = FLOAT32_SLACK * (1.0 + 2.0**-14)  # factor on norms of gradients that are products of halves
EVEN = 8  # halves that are read at once
PART = 4096  # records that are halved at once


@dataclass(frozen=True, slots=True)
class Outs:
    """Where a layer's outputs go, the halves of those with dropout, and gradients and theirs."""

    out: Tensor
    goes: Tensor
    d: Tensor
    halved: Tensor

    @classmethod
    def of(cls, like: Tensor, rows: int, outputs: int) -> Outs:
        """Return places like some numbers."""
        goes, halved = (halves_of(like, rows, outputs) for _ in range(2))
        out, d = (like.new_zeros((rows, goes.shape[1] // 2)) for _ in range(2))
        return cls(out, goes, d, halved)


class HalvedRecords:
    """Records as halves, (n, 2, numbers of a record), and their squared norms, float64, (n,)."""

    def __init__(self, x: Tensor):
        rows = x.flatten(1)
        self.x = x  # so that nothing else comes to lie there
        shape, device = (len(rows), 2, rows.shape[1]), x.device
        self.halves = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self.squares = torch.empty(len(rows), dtype=torch.float64, device=device)
        parts = rows.split(PART), self.halves.split(PART), self.squares.split(PART)
        for part, own, squares in zip(*parts, strict=True):
            halve(part, own[:, 0], own[:, 1])
            squares.copy_(own.double().sum(1).square_().sum(1))
        self.ready = event_of(device)


def halves_of(like: Tensor, rows: int, width: int) -> Tensor:
    """Return a place for rows of halves, on a device."""
    return like.new_zeros((rows, 2 * EVEN * -(-width // EVEN)), dtype=torch.bfloat16)


def halve(values: Tensor, first: Tensor, second: Tensor) -> None:
    """Write the bfloat16 number next to each float32 one, and the one next to what is left."""
    first.copy_(values)
    second.copy_(values - first.float())


def halved(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a flat place for the halves of numbers, with them."""
    first, second = (torch.empty_like(values, dtype=torch.bfloat16) for _ in range(2))
    halve(values.detach(), first, second)
    return first, second


def event_of(device: torch.device) -> Any:
    """Return what tells that all which was given to the device until now is done."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_for(event: Any) -> None:
    """Let what is given to the device from now on wait."""
    if event is not None:
        event.wait()


OUTPUTS = 64
"""Most outputs of a network: its loss is taken within one tile."""

AHEAD = 16
"""Steps of one graph."""

KEPT = False
"""Whether a step's noisy sum stays where it was: nobody asks for it but tests."""

DEVIATIONS = 6.0
"""By how many standard deviations the padding of a batch goes beyond its mean: rows behind the last
one cost nothing here."""

TALLEST, PLACES = 128, 2**31
"""Most rows of a tile; and of what there are fewer records, numbers of a layer's rows, and weights
(the rest of each layer's last tile included), so that 32 bits count them."""

LAYERS = 8
"""Rows about a training and its layers are a multiple of this, as kernels are compiled for each."""

SMALL = 256
"""Rows of a batch up to which it counts as few."""

Tile = dict[str, int]
"""Rows and columns of what a program finds, how much it goes through at once, and its warps."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of each product: forward of the first layer and of the others, backward, sums."""

    first: Tile
    forward: Tile
    backward: Tile
    sums: Tile


FEW = Tiles(
    first={"M": 32, "N": 128, "K": 64, "num_warps": 4, "num_stages": 3},
    forward={"M": 16, "N": 64, "K": 64, "num_warps": 4, "num_stages": 4},
    backward={"M": 16, "N": 32, "K": 32, "num_warps": 4, "num_stages": 2},
    sums={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 4},
)
MANY = Tiles(
    first={"M": 64, "N": 64, "K": 64, "num_warps": 4, "num_stages": 3},
    forward={"M": 64, "N": 64, "K": 64, "num_warps": 4, "num_stages": 3},
    backward={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 3},
    sums={"M": 64, "N": 64, "K": 32, "num_warps": 4, "num_stages": 3},
)

Work = list[tuple[int, int, int]]
"""A layer, and two places of a tile."""


def fits_gpu_code(
    prepared: PreparedNetwork, slots: Slots, recipe: Recipe, streams: Mapping[str, Stream]
) -> bool:
    """Whether a training's steps are made by these kernels, where there are any."""
    dense, bounding, x, y = prepared.dense, recipe.bounding, slots.x, slots.y
    if dense is None or dense.joined or type(x) is not Tensor:
        return False
    if not (dense.takes(x) and x.is_contiguous()):
        return False
    plain = recipe.noise is None and recipe.noise_before_clip is None
    plain &= recipe.augmentation is None and recipe.denoising is None and recipe.screening is None
    plain &= not recipe.schedule.steered and (bounding is None or has_terms(bounding))
    plain &= recipe.optimizer in ("sgd", "momentum") and not streams["noise"].secure
    known = y.dtype is torch.int64 or (y.dtype is torch.float32 and dense.outputs == 1)
    known &= {p.dtype for p in (*prepared.network.parameters(), x)} == {torch.float32}
    known &= dense.activations[-1] is None and dense.dropouts[-1] is None
    known &= dense.dropouts[0] is None and dense.outputs <= OUTPUTS
    n, most = len(y), min(recipe.chunk, slots.rows)
    known &= moderate(recipe, n)
    rows = padded(recipe.batches(n), n, DEVIATIONS)
    known &= rows <= MAX_FLOAT32_ROWS
    shares = slots.shares
    known &= shares is None or (shares.dtype is torch.float32 and len(shares) == dense.outputs)
    widest = max(sum(weight.shape) for weight in dense.weights) + EVEN
    numbers = sum((len(weight) + TALLEST) * (weight.shape[1] + 1) for weight in dense.weights)
    counted = max(n, 2 * rows * widest, numbers) < PLACES
    return plain and known and rows <= most and counted


class GpuCode:
    """A training's steps: what kernels are told of it, and the places that they need.

    Args:
        prepared: The network, dense.
        slots: The records, on the device.
        recipe: One that fits.
        streams: As for `trainer.train`.
        buffers: Where sums go: one flat place.
        weights: The network's parameters, flat.
        optimizer: What remembers earlier sums.
        average: The weights' average, flat, if there is one.
        shares: From steps to how much of the weights goes into that.
        together: Whose records, as halves, it shares.
    """

    def __init__(
        self,
        prepared: PreparedNetwork,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        buffers: SumBuffers,
        weights: Tensor,
        optimizer: Descent,
        average: Tensor | None,
        shares: Callable[[Any], Any],
        together: Together | None = None,
    ):
        assert prepared.dense is not None
        self._dense, self._slots, self._recipe = prepared.dense, slots, recipe
        self._noise, self._optimizer, self._shares = streams["noise"], optimizer, shares
        self._masks = _masks(prepared, streams["dropout"])
        n, device = len(slots.y), slots.device
        self.blocks = Blocks(
            recipe.batches(n), n, streams["batch"], device, steps=BLOCK, deviations=DEVIATIONS
        )
        self.layers, self.rows = len(self._dense.weights), self.blocks.width
        self._sum, self._weights, self._average = buffers.flats[0], weights, average
        if optimizer.momentum and not optimizer.states[0]:
            optimizer.states[0]["sum"] = torch.zeros_like(weights)
        self._given = torch.zeros((BLOCK, GIVEN + self.layers), dtype=torch.int64, device=device)
        self._places = torch.zeros((BLOCK, self.rows), dtype=torch.int32, device=device)
        self._sizes, self._over = (
            torch.zeros(BLOCK, dtype=torch.int32, device=device) for _ in range(2)
        )
        self._wrong = torch.full((), NEVER, dtype=torch.int32, device=device)
        self._doubts = noise_kernels().room_for_doubts(len(weights), device)
        sides = self._sides()
        self._beside = halves_of(weights, self.rows, sides[0][0])
        self._outs = [Outs.of(weights, self.rows, outputs) for _, outputs in sides]
        self._records = (Together() if together is None else together).records_of(slots.x)
        self._halves = halved(weights)
        self._frozen = {
            layer: halved(weight)
            for layer, weight in enumerate(self._dense.weights) if not weight.requires_grad
        }  # fmt: skip
        self._block, self._plan = -1, None
        self.count, self.device, self.ready = len(weights), device, None

    # Before and after a round

    def prepare(self, first: int) -> None:
        """Put what a step's block needs on the device, if it is not there."""
        for event in (self._records.ready, self.ready):
            wait_for(event)
        if self._block != (block := first // BLOCK):
            self._block = -1  # if it does not come whole, no step has the keys of another block
            places, real, beyond = self.blocks.block(block)
            self._places.copy_(places)
            self._sizes.copy_(real.sum(1))
            steps = torch.arange(BLOCK, dtype=torch.int32, device=beyond.device)
            self._over.copy_(steps.where(beyond < len(self._slots.y), NEVER))
            moved(self._told(block * BLOCK), self._given)
            self._block = block
        halve(self._weights.detach(), *self._halves)  # others may have moved them
        self.ready = event_of(self.device)

    def make(self, first: int, many: int) -> None:
        """Give the device steps of one block, of this training alone."""
        self.prepare(first)
        self._plan = self._plan or _Plan([self])
        self._plan.make([self], first % BLOCK, many)

    def right(self, first: int, many: int) -> int:
        """Return how many of the last steps are right, from the first on: waits for the device."""
        wait_for(self.ready)
        low = first % BLOCK
        found = int(torch.minimum(self._over[low : low + many].min(), self._wrong))
        self._wrong.fill_(NEVER)
        return min(many, found - low)

    def move(self, step: int) -> None:
        """Move the weights by the sum that stands there, of a step that was made with care.

        It is the same kernel as in every step: by other roundings weights would tell which was so.
        """
        self.prepare(step)
        still, row, code = self._given.clone(), self.row(), noise_kernels()
        still[:, :2] = 0  # there is noise in the sum
        row[0] = still.data_ptr()
        at = torch.full((), step % BLOCK, dtype=torch.int64, device=self.device)
        work = code.work_of(self.count, self.device)
        self._doubts[:1].zero_()
        code.release(work, torch.tensor([row]).to(self.device), at)
        self._wrong.fill_(NEVER)
        self.ready = event_of(self.device)

    def wait(self) -> None:
        """Let what is given to the device from now on come after all of these steps."""
        wait_for(self.ready)

    def _told(self, first: int) -> np.ndarray[Any, Any]:
        """Return what is given of each step of a block: see `gpu.kernels`."""
        optimizer, n = self._optimizer, len(self._slots.y)
        told = given_of(self._recipe, n, self._noise, first, self.layers)
        numbers = told.view(np.float64)
        numbers[:, 2:5] = optimizer.rate, optimizer.momentum, optimizer.share
        if self._average is not None:
            numbers[:, 5] = self._shares(np.arange(first, first + BLOCK))
        for layer, stream in self._masks.items():
            told[:, GIVEN + layer] = signed(gpu.mask_key(stream, first)[0])
        return told

    # What kernels are told

    def row(self) -> list[int]:
        """Return the training's row: see `dense_kernels`."""
        slots, moment = self._slots, self._optimizer.states[0].get("sum")
        bounding = self._recipe.bounding
        top, plus, most = NO_CLIPPING if bounding is None else bounding.terms or NO_CLIPPING
        about_moves = self._given, self._sum, self._weights, moment, self._average, *self._halves
        records = self._records
        about = records.halves, slots.y, slots.valid, self._places, self._sizes, records.squares
        return [
            *map(_at, about_moves), *map(_at, (self._wrong, self._doubts)), self.count,
            self._given.shape[1],
            *map(_at, about), self.rows, self.layers, _at(slots.shares),
            int(slots.y.is_floating_point()), *map(_bits, (top, plus, SLACK, most)),
        ]  # fmt: skip

    def layer_rows(self) -> list[list[int]]:
        """Return a row of the records and one of each layer: see there."""
        dense, beside, parts = self._dense, self._beside, []
        rows = [[*6 * [0], _at(beside), *9 * [0], beside.shape[1] // 2, 0]]
        for place, (inputs, outputs) in enumerate(self._sides()):
            weight, bias, out = dense.weights[place], dense.biases[place], self._outs[place]
            _check_like(weight, (outputs, inputs))
            if bias is not None:
                _check_like(bias, (outputs,))
                if bias.requires_grad != weight.requires_grad:
                    raise ValueError("A layer is half frozen.")
            at = [-1, -1]
            for k, own in enumerate((weight, bias)):
                if own is not None and own.requires_grad:
                    at[k] = place_of(own, self._weights)
                    parts.append((at[k], own.numel()))
            halves = [
                each.data_ptr() + 2 * max(at[0], 0)
                for each in self._frozen.get(place, self._halves)
            ]  # fmt: skip
            dropout = dense.dropouts[place + 1] if place in self._masks else None
            rate = 0.0 if dropout is None else dropout.rate
            least = math.ceil(float(np.float32(rate)) * 2**24)
            rows.append([
                *halves, _at(bias), inputs, outputs, *map(_at, (out.out, out.goes, out.d)),
                _at(out.halved), ACTIVATION_CODES[dense.activations[place]],
                int(weight.requires_grad), *at,
                least, _bits(1.0 / (1.0 - rate)), GIVEN + place, out.out.shape[1],
                int(not (inputs % EVEN or max(at[0], 0) % EVEN)),
            ])  # fmt: skip
        check_parts(parts, len(self._weights))
        return rows

    def _sides(self) -> list[tuple[int, int]]:
        return [(weight.shape[1], weight.shape[0]) for weight in self._dense.weights]

    # Which tiles there are

    def forward(self, layer: int) -> Work:
        """Return the tiles of what a layer gives; none of one that is not there."""
        if layer >= self.layers:
            return []
        tile = self.tiles.forward if layer else self.tiles.first
        return _tiles(layer, self.rows, len(self._dense.weights[layer]), tile)

    def backward(self, layer: int) -> Work:
        """Return the tiles of the gradient of what a layer is given; none where nobody asks."""
        if not self._dense.trained[0] < layer < self.layers:
            return []
        return _tiles(layer, self.rows, self._dense.weights[layer].shape[1], self.tiles.backward)

    def sums(self) -> Work:
        """Return the tiles of all layers' sums; those of a bias have no column."""
        dense, tile, found = self._dense, self.tiles.sums, []
        for layer in dense.trained:
            outputs, inputs = dense.weights[layer].shape
            found += _tiles(layer, outputs, inputs, tile)
            if dense.biases[layer] is not None:
                found += [(layer, row, -1) for row in range(-(-outputs // tile["M"]))]
        return found

    def rows_of_factors(self) -> Work:
        """Return the blocks of records whose factors are found."""
        from pasearch.gpu.dense_kernels import RECORDS

        return [(0, block, 0) for block in range(-(-self.rows // RECORDS))]

    @cached_property
    def even(self) -> bool:
        """Whether rows of the first layer's halves begin at multiples of 16 bytes."""
        return bool(self.layer_rows()[1][-1])

    @cached_property
    def tiles(self) -> Tiles:
        """What programs find."""
        return FEW if self.rows <= SMALL else MANY


def noise_kernels() -> ModuleType:
    """Load the kernels of random bits and noise, which need Triton."""
    from pasearch.gpu import kernels

    return kernels


class Together:
    """Trainings that share calls: each is added to a round, and then all of them are given."""

    def __init__(self) -> None:
        self._asked: list[tuple[GpuCode, int, int]] = []
        self._plans: dict[int, dict[tuple[GpuCode, ...], _Plan]] = {}
        self._records: dict[tuple[Any, ...], HalvedRecords] = {}

    def records_of(self, x: Tensor) -> HalvedRecords:
        """Return records as halves, which they become once for all trainings."""
        key = x.data_ptr(), tuple(x.shape), x._version
        if key not in self._records:
            self._records[key] = HalvedRecords(x)
        return self._records[key]

    def add(self, code: GpuCode, first: int, many: int) -> None:
        """Let a training take part in the next round, by steps of one block."""
        code.prepare(first)
        self._asked.append((code, first, many))

    def asked_for(self, code: GpuCode) -> bool:
        """Whether steps of a training wait to be given to the device."""
        return any(each[0] is code for each in self._asked)

    def drop(self, code: GpuCode) -> None:
        """Let a training that was added take no part."""
        self._asked = [each for each in self._asked if each[0] is not code]

    def go(self, group: int = 0) -> None:
        """Give the device the steps that were asked for since the last time, all of one group.

        What a group was given before is kept for as long as it asks for the same.
        """
        asked, self._asked = self._asked, []
        kinds: dict[tuple[int, int, bool, bool], list[GpuCode]] = {}
        for code, first, many in asked:
            kind = first % BLOCK, many, code.tiles is FEW, code.even
            kinds.setdefault(kind, []).append(code)
        before, self._plans[group] = self._plans.get(group, {}), {}
        for (low, many, *_), codes in kinds.items():
            plan = self._plans[group][*codes,] = before.get((*codes,)) or _Plan(codes)
            plan.make(codes, low, many)


class _Plan:
    """The calls of a step of some trainings: what they are told stays on the device.

    It does not hold the trainings, whose own it may be: so their memory is given back at once.
    """

    def __init__(self, codes: Sequence[GpuCode]):
        from pasearch.gpu import dense_kernels as kernels

        noise = noise_kernels()
        device, most = codes[0].device, max(code.layers for code in codes)
        buffers = LAYERS * -(-(most + 1) // LAYERS)  # kernels are compiled for it
        self._device, self._noise, self._kernels = device, noise, kernels
        rows = torch.tensor([code.row() for code in codes])
        layers = torch.zeros((len(codes), buffers, kernels.OF_LAYER), dtype=torch.int64)
        for place, code in enumerate(codes):
            layers[place, : code.layers + 1] = torch.tensor(code.layer_rows())
        self._tables = rows.to(device), layers.to(device)
        self._at = torch.zeros((AHEAD, 2), dtype=torch.int64, device=device)[:, 0]  # 16 bytes each
        self._ahead = torch.arange(AHEAD, device=device)
        sizes = {"WIDE": rows.shape[1], "MANY": buffers, "IS_EVEN": codes[0].even}
        tiles = codes[0].tiles
        calls: list[tuple[str, Callable[[GpuCode], Work], Tile]] = [
            ("first", partial(GpuCode.forward, layer=0), tiles.first),
            *(("forward", partial(GpuCode.forward, layer=k), tiles.forward)
              for k in range(1, most)),
            *(("backward", partial(GpuCode.backward, layer=k), tiles.backward)
              for k in reversed(range(1, most))),
            ("factors", GpuCode.rows_of_factors, {"M": kernels.RECORDS, "K": kernels.COLUMNS}),
            ("sums", GpuCode.sums, tiles.sums),
        ]  # fmt: skip
        work = ([(k, *each) for k, code in enumerate(codes) for each in of(code)]
                for _, of, _ in calls)  # fmt: skip
        self._calls = [
            (name, _work(own, device), sizes | tile)
            for own, (name, _, tile) in zip(work, calls, strict=True) if own
        ]  # fmt: skip
        blocks = [(k, b) for k, code in enumerate(codes)
                  for b in range(-(-pairs(code.count) // noise.PAIRS))]  # fmt: skip
        self._blocks = _work(blocks, device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def make(self, codes: Sequence[GpuCode], low: int, many: int) -> None:
        """Give the device so many steps, the first of which is this one of its block."""
        for code in codes:
            wait_for(code.ready)
        try:
            self._make(low, many)
        finally:  # who takes them back, waits for as many as there are
            done = event_of(self._device)
            for code in codes:
                code.ready = done

    def _make(self, low: int, many: int) -> None:
        self._at.copy_(self._ahead).add_(low)
        while many:
            at_once = AHEAD if many >= AHEAD else 1
            if (graph := self._graphs.get(at_once)) is not None:
                graph.replay()
            else:
                self._steps(at_once)  # as they are: kernels are compiled and loaded
                if self._device.type == "cuda" and many > at_once:
                    self._graphs[at_once] = self._captured(at_once)
            many -= at_once

    def _captured(self, many: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(self._device)):
            self._steps(many)
        return graph

    def _steps(self, many: int) -> None:
        for at in self._at[:many]:
            for name, work, about in self._calls:
                self._kernels.run(name, work, *self._tables, at, **about)
            self._noise.release(self._blocks, self._tables[0], at, kept=KEPT)
        self._at.add_(many)


def _masks(prepared: PreparedNetwork, stream: Stream) -> dict[int, Stream]:
    """Return the streams of layers' masks, as `one_step.reseed_dropout` names them."""
    assert prepared.dense is not None
    keyed = [getattr(each, "__self__", None) for each in prepared.keyed]
    return {
        layer: stream.child(keyed.index(each))
        for layer, each in enumerate(prepared.dense.dropouts[1:])
        if each is not None and each.rate and each.training
    }


def _tiles(layer: int, rows: int, columns: int, tile: Tile) -> Work:
    """Return the tiles of a layer's matrix."""
    sides = -(-rows // tile["M"]), -(-columns // tile["N"])
    return [(layer, k, l) for l in range(sides[1]) for k in range(sides[0])]  # noqa: E741


def _work(work: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(work, dtype=torch.int32).to(device)


def _check_like(values: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(values.shape) != shape or not values.is_contiguous():
        raise ValueError(f"A layer's numbers are {tuple(values.shape)}: expected {shape}.")


def _at(values: Tensor | None) -> int:
    return 0 if values is None else values.data_ptr()


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


TRIED = (83, 5, 70), (300, 72, 136)
"""Rows, inputs and outputs that the kernels are tried with: few rows of few numbers, and more of
both than a tile has, which are even."""


def gpu_code(device: str) -> bool:
    """Whether a device has such kernels: tried on public numbers, once a process and GPU."""
    return _tried(device, gpu.number_of(device))


@cache
def _tried(device: str, number: int) -> bool:
    if gpu.kernels(device) is None:
        return False
    tried = lambda _: all(_agrees(device, *sides) for sides in TRIED)  # noqa: E731
    return gpu.usable("pasearch.gpu.dense_kernels", tried) is not None


def gpu_libraries(device: str) -> list[str]:
    """Return what computes sums on a GPU beside torch: a run is bound to it."""
    if device != "cuda" or gpu.kernels(device) is None:
        return []
    of_networks = ", of dense networks too" if gpu_code(device) else ""
    told = [f"{name}={value}" for name, value in sorted(os.environ.items())
            if name.startswith("TRITON_") and "CACHE" not in name]  # fmt: skip
    return [f"Triton {version('triton')}{of_networks}", *told]


def _agrees(device: str, rows: int, inputs: int, outputs: int) -> bool:
    """Whether a step finds torch's sum, of made-up weights and records and three classes."""
    from pasearch.training.recipe import Recipe

    layers = nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, 24), nn.ReLU()
    more = KeyedDropout(0.4), nn.Linear(24, 16).requires_grad_(False), nn.Sigmoid()
    network = nn.Sequential(*layers, *more, nn.Linear(16, 3)).to(device)
    prepared = PreparedNetwork(network)
    for parameter in network.parameters():
        wave = torch.linspace(-1.0, 1.0, parameter.numel()).sin_() / math.sqrt(len(parameter))
        parameter.detach().copy_(wave.view_as(parameter))
    (weights,) = flattened(prepared.parameters)
    x = torch.linspace(-2.0, 2.0, rows * inputs).sin_().view(rows, inputs)
    valid, y, bounding = torch.arange(rows) != 4, torch.arange(rows) % 3, Flat(clip_norm=0.5)
    slots, buffers = Slots.on(device, x, y, valid), SumBuffers(prepared.parameters)
    expected = SumBuffers(prepared.parameters)
    streams = {name: Stream(bytes(32)).child(name) for name in ("batch", "noise", "dropout")}
    reseed_dropout(prepared, streams["dropout"], 0, slots.device)
    bounding.sums(prepared, slots.x, LossOf(slots.y), mask=slots.valid, buffers=expected)
    expected.write_back()
    recipe = Recipe(
        expected_batch_size=rows, steps=1, learning_rate=1.0, bounding=bounding, optimizer="sgd",
        average=None,
    )  # fmt: skip
    code = GpuCode(
        prepared,
        slots,
        recipe,
        streams,
        buffers,
        weights,
        Descent([weights], 1.0),
        None,
        np.zeros_like,
    )
    code.make(0, 1)
    right = code.right(0, 1) == 1  # waits for it
    found, sought = buffers.flats[0], expected.flats[0]
    return right and bool((found - sought).norm() <= 1e-3 * sought.norm())
