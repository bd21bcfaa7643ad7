"""Steps of dense networks in machine code: a call each for their batch, their sum and their noise.

A step of a small network takes longer to be called than to be computed: a logistic regression's
has some hundred calls of torch, and of .6 ms they compute for .06. Here slots and bits are those of
`one_step`, and the formulas too, but for roundings of the sum: a step in machine code and one by
torch release other grid points where these differ, under the same price.

Whether a training goes this way follows from its network, its recipe, n and how many threads it
has, which are public; a run that is resumed finds all of them as they were, or is refused.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch import busy
from pasearch.errors import MachineError, system_words
from pasearch.runs import normals
from pasearch.runs.keys import Stream
from pasearch.runs.team import Team
from pasearch.training.batching import Poisson
from pasearch.training.bounding.bound import SLACK, Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.dense import CODES, NARROW, Dense
from pasearch.training.losses import LossOf
from pasearch.training.one_step import Slots, State, denoise
from pasearch.training.products import Product, product
from pasearch.training.watched import Room, Watched, flattened

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

WORTH = 1.0
"""Seconds that a training must save for the loops to be loaded: that takes half a second a process,
and some eight where they have to be compiled."""

CALLS, ROW = 5e-4, 2e-7
"""Seconds that a step saves, and each record of it: of a logistic regression, on one core."""

COPIED, READ, MOST = (256, 2**19), (16, 2**16), 1024
"""Records that are worked on at once: at least so many, and as many as have so many numbers, their
own and in the network, so that they stay in a processor's cache. Of those that are copied for a
product, of those that are read where they lie, and at most."""

LINE = 16
"""Numbers of a line of a processor's cache: what comes out of each layer begins with one."""

EACH, WIDE = 64, 2**20
"""Several threads pay where each has so many records of a batch, in the mean, and the network at
most so many trained numbers, as each has a sum of its own."""

OFF = "NUMBA_DISABLE_JIT"
"""What switches machine code off, if the environment has it."""

KINDS, KNOWN = (nn.Tanh, nn.ReLU), {(torch.float32, "cpu")}
"""What may follow a layer, and of what kind the numbers have to be, and where."""

UNBOUNDED = math.inf, 0.0, 1.0
"""The terms of factors that are all 1."""

NO_PRODUCT = Product(0, nullcontext, nullcontext)
"""Of a linear model whose records are read where they lie."""


class MachineCode:
    """The sums of a training's steps: see `of`.

    Args:
        dense: The network, of float32 on a processor.
        slots: The records; of a tensor, with the squared norms of what the first layer is given.
        recipe: One that `fits`.
        streams: As for `trainer.train`.
        room: Where sums go: one flat place.
        weights: The network's parameters, flat.
        team: The threads of a step.
        loops: `compiled`.
    """

    def __init__(
        self,
        dense: Dense,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        room: Room,
        weights: Tensor,
        team: Team,
        loops: ModuleType,
    ):
        self._recipe, self._stream, self._room = recipe, streams["noise"], room
        self._batch = _batches(recipe, len(slots.y), streams["batch"])
        terms = UNBOUNDED if recipe.bounding is None else recipe.bounding.terms
        of_batch = recipe.expected_batch_size, recipe.chunk
        self._team, self._sum = team, _Sum(dense, slots, terms, weights, loops, *of_batch, team)
        self._total: Any = room.flats[0].numpy()
        few, count = len(self._total) <= normals.FEW, 2 * normals.pairs(len(self._total))
        self._words = self._stream.first_words(count) if few else None

    @classmethod
    def of(
        cls,
        watched: Watched,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        room: Room,
        weights: list[Tensor],
        *,
        team: Team,
    ) -> MachineCode | None:
        """Return a training's steps in machine code; None where torch's are taken.

        Args:
            watched: The network.
            slots: The records, on the device.
            recipe: How it is trained.
            streams: As for `trainer.train`.
            room: Where sums go.
            weights: The network's parameters, flat.
            team: The threads of a step: one where several would be slower.
        """
        if not fits(watched, slots, recipe, team.threads) or (code := loops()) is None:
            return None
        assert watched.dense is not None
        return cls(watched.dense, slots, recipe, streams, room, weights[0], team, code)

    def sum(self, step: int, sigma: float | None, state: State) -> None:
        """Leave a step's noisy sum in the room, and move the state on: see `one_step.batch_sum`."""
        recipe, bounding = self._recipe, self._recipe.bounding
        self._sum(self._batch(step), self._total)
        if sigma is None or bounding is None:
            return
        scale = state.noise_deviation = sigma * bounding.sensitivity
        code = normals.compiled()
        assert code is not None, "it is loaded"
        if self._words is None:
            made = normals.normals(len(self._total), self._stream, step, code)
            made.add_to(self._total, scale, team=self._team)
        else:
            words = self._words.at(step)
            normals.add_few(self._total, scale, words, self._stream, step, code)
        if recipe.denoising is not None:
            denoise(self._room.flats, recipe.denoising, recipe.density(sigma), state)


class _Sum:
    """What `compiled.bounded_sum` is given, made once a training."""

    def __init__(
        self,
        dense: Dense,
        slots: Slots,
        terms: tuple[float, float, float] | None,
        weights: Tensor,
        loops: ModuleType,
        expected: int,
        chunk: int,
        team: Team,
    ):
        assert terms is not None
        self._dense, self._slots, self._loop = dense, slots, loops.bounded_sum
        alike = torch.ones(len(dense.weights[-1]))
        shares = alike if slots.shares is None else slots.shares
        self._shares = shares.numpy(), slots.y.is_floating_point()
        self._records = None
        if slots.squares is not None:
            self._records = _flat(slots.x, slots.y, slots.valid, slots.squares)
        outputs = [len(weight) for weight in dense.weights]
        inputs = dense.weights[0].shape[1]
        copied = inputs if outputs[0] >= NARROW else 0
        self._product = product() if copied or len(outputs) > 1 else NO_PRODUCT
        width = inputs + sum(outputs)
        rows = rows_of_a_block(expected, team.threads, width, copied=bool(copied))
        room = LINE * math.ceil((rows + int(loops.SPARE)) / LINE)
        together = rows * team.threads
        self._most = together * max(1, min(chunk, slots.rows) // together)
        self._rows, self._weights = rows, weights.detach().numpy()
        top, plus, most = terms
        self._form = _form(dense, weights, room), (top, plus, SLACK, most)
        sizes = rows * copied, room * sum(outputs), room * sum(outputs)
        self._rooms = [_room(*sizes, rows) for _ in range(team.threads)]
        self._others = [_zeros(len(weights)) for _ in range(team.threads - 1)]
        self._team = team

    def __call__(self, places: Any, total: Any) -> None:
        """Write the sum of some slots' bounded gradients.

        Records that are no tensor are fetched part by part, of whole blocks for each thread: the
        sums are the same.
        """
        if self._records is not None:
            self._add(self._records, places, 0.0, total)
        else:
            self._fetched(places, total)
        if self._others:
            self._team.divided(len(total), lambda _, low, high: self._join(total, low, high))

    def _fetched(self, places: Any, total: Any) -> None:
        for each in (total, *self._others):
            each[:] = 0.0
        for low in range(0, len(places), self._most):
            part = torch.from_numpy(places[low : low + self._most])
            x, loss, mask = self._slots.at(part)
            own = _flat(x, loss.y, mask, self._dense.squares_of_inputs(x))
            self._add(own, np.arange(len(part)), 1.0 if low else 0.0, total)

    def _add(self, records: tuple[Any, ...], places: Any, kept: float, total: Any) -> None:
        """Let every thread add its blocks to its own sum; that of the first is the total."""
        sums, threads = (total, *self._others), self._team.threads

        def blocks(thread: int) -> None:
            with self._product.in_thread():
                self._loop(
                    *records, *self._shares, places, np.float32(kept), self._rows, thread, threads,
                    self._weights, *self._form, self._rooms[thread], sums[thread],
                    self._product.address,
                )  # fmt: skip

        with self._product.in_process():
            self._team.all(blocks)

    def _join(self, total: Any, low: int, high: int) -> None:
        for each in self._others:
            total[low:high] += each[low:high]


def rows_of_a_block(expected: int, threads: int, width: int, *, copied: bool) -> int:
    """Return how many records a block has, so that most batches are whole blocks.

    Args:
        expected: Records of a batch, in the mean.
        threads: Each takes every so many-th block.
        width: Numbers of a record, its own and in the network.
        copied: Whether records are copied for a product.
    """
    least, numbers = COPIED if copied else READ
    most = min(MOST, max(least, numbers // width))
    usual = expected + 2.0 * math.sqrt(expected)
    blocks = max(1, round(usual / (threads * most)))
    return math.ceil(usual / (threads * blocks))


def _room(copies: int, h: int, d: int, rows: int) -> tuple[Any, ...]:
    """Return a thread's own places: see `compiled.bounded_sum`."""
    return _zeros(copies), _zeros(h), _zeros(d), np.zeros(rows), _zeros(rows)


def _zeros(count: int) -> Any:
    """Return float32 numbers where torch puts them: products may round by where they lie."""
    return torch.zeros(count).numpy()


def _flat(x: Tensor, *more: Tensor) -> tuple[Any, ...]:
    """Return records one after another, and what else there is of them, as arrays."""
    return (x.reshape(-1).numpy(), *(each.numpy() for each in more))


def fits(watched: Watched, slots: Slots, recipe: Recipe, threads: int) -> bool:
    """Whether a training's steps are taken in machine code, where that is to be had.

    Not where each of several threads would have few records, but a sum of all numbers to add to.
    Arguments as of `MachineCode.of`.
    """
    bounding, dense, x, y = recipe.bounding, watched.dense, slots.x, slots.y
    plain = recipe.noise is None and recipe.noise_before_clip is None
    plain &= recipe.augmentation is None and not watched.keyed
    if dense is None or not (plain and (bounding is None or _has_terms(bounding))):
        return False
    outputs = [len(weight) for weight in dense.weights]
    saved = recipe.steps * (CALLS + ROW * recipe.expected_batch_size)
    numbers = sum(p.numel() for p in watched.parameters)
    shared = recipe.expected_batch_size >= EACH * threads and numbers <= WIDE
    kinds = {(p.dtype, p.device.type) for p in (*watched.parameters, x)}
    known = y.dtype is torch.int64 or (y.dtype is torch.float32 and outputs[-1] == 1)
    known &= dense.takes(x) and (type(x) is not Tensor or x.is_contiguous())
    return (threads == 1 or shared) and saved >= WORTH and known and kinds == KNOWN


def _has_terms(bounding: Bound) -> bool:
    """Whether a bound's sums are those of factors that its terms say."""
    kind, named = type(bounding), bounding.terms is not None
    return named and kind.sums is Bound.sums and kind.factors is Bound.factors


def _said_by(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def _batches(recipe: Recipe, n: int, stream: Stream) -> Callable[[int], Any]:
    """Return what gives a step's slots: those of `Batching.batch`."""
    batching = recipe.batches(n)
    if isinstance(batching, Poisson) and _said_by(type(batching), "batch") is Poisson:
        generator = stream.generators()
        return lambda step: batching.indices(n, generator(step))
    return lambda step: batching.batch(n, stream, step)


def _form(dense: Dense, weights: Tensor, room: int) -> tuple[Any, ...]:
    """Return what `compiled.bounded_sum` is told of the layers, with room for so many records."""

    def place(of: Tensor | None) -> int:
        return -1 if of is None else (of.data_ptr() - weights.data_ptr()) // of.element_size()

    outputs = [len(weight) for weight in dense.weights]
    ats = [0, *(room * np.cumsum([0, *outputs[:-1]])).tolist()]
    return (
        np.array([place(each) for each in dense.weights], np.uint64),
        np.array([place(each) for each in dense.biases], np.int64),
        np.array([dense.weights[0].shape[1], *outputs], np.uint64),
        np.array([CODES[each] for each in dense.activations], np.int64),
        np.array(ats, np.uint64),
    )


@cache
def loops() -> ModuleType | None:
    """Load the loops of dense networks and try them on public numbers: see `loaded`."""

    def agrees(code: ModuleType) -> bool:
        nets = ((each, kind) for each in ((3,), (NARROW - 1, 3), (NARROW, 3)) for kind in KINDS)
        return _adds_the_same() and all(_agrees(*each, code) for each in nets)

    return loaded("pasearch.training.compiled", agrees)


def loaded(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Load loops and try them on public numbers; None where numba is missing or switched off.

    Raises:
        MachineError: They cannot be loaded, or find other sums. Torch's do not take over then: a
            run that is resumed, or whose candidates are trained in several processes, has to have
            the same sums everywhere.
    """
    if os.environ.get(OFF, "0") != "0" or importlib.util.find_spec("numba") is None:
        return None
    try:
        with busy.at(busy.COMPILING):
            code = importlib.import_module(module)
            agreed = agrees(code)
        if agreed:
            return code
        told = "It finds other numbers than torch."
    except Exception as error:  # noqa: BLE001 - no room for its files, or damaged ones
        told = system_words(error) or f"numba ended with {type(error).__name__}."
    raise MachineError(
        f"The machine code that trains networks cannot be used here. {told} If its files are "
        "the reason, name a folder that can be written to in NUMBA_CACHE_DIR; then give the same "
        f"command again, or resume the run. A new run with {OFF}=1 does without, more slowly."
    )


def _adds_the_same() -> bool:
    """Whether few numbers are added as by arrays, to the bit."""
    if (code := normals.compiled()) is None:
        return False
    stream, first = Stream(bytes(32)), np.linspace(-9.0, 9.0, 1000)
    totals = [first.astype(np.float32) for _ in range(2)]
    words = stream.words().take(2 * normals.pairs(1000)).copy()
    normals.add_few(totals[0], 1.5, words, stream, 0, code)
    normals.of_words(words, 1000, stream, 0).add_to(totals[1], 1.5)
    return np.array_equal(totals[0], totals[1])


def _agrees(outputs: tuple[int, ...], kind: type[nn.Module], code: ModuleType) -> bool:
    """Whether the loops find torch's sums, of made-up records of five numbers and three classes."""
    layers = [nn.Linear(*each) for each in zip((5, *outputs), outputs, strict=False)]
    dense = Dense(layers, [*(kind for _ in outputs[:-1]), None], flattened=False)
    parameters = [p for layer in layers for p in layer.parameters()]
    (weights,), x = flattened(parameters), torch.linspace(-2.0, 2.0, 45).view(9, 5)
    weights.copy_(torch.linspace(-1.0, 1.0, len(weights)).sin_())
    valid, y = torch.arange(9) != 4, torch.arange(9) % 3
    slots, bounding = Slots(x, y, valid, dense.squares_of_inputs(x)), Flat(clip_norm=0.5)
    room = Room(parameters)
    loss = LossOf(y, slots.squares)
    dense.sums(x, loss, bounding, valid, None, room.of)
    total = np.empty(len(weights), np.float32)
    made = _Sum(dense, slots, bounding.terms, weights, code, len(x), len(x), Team(1))
    made(np.arange(9), total)
    return bool(np.allclose(total, room.flats[0].numpy(), atol=1e-5))
