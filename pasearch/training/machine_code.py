"""Steps of chains of linear layers in machine code: a call each for their batch, sum and noise.

A step of a small network takes longer to be called than to be computed: a logistic regression's
has some hundred calls of torch, and of .6 ms they compute for .06. Batches, noise and formulas are
those of `one_step`, but for roundings of the sum: a compiled step and one by torch release other
grid points where these differ, at the same privacy cost.

Whether a training goes this way follows from its network, its recipe, n and how many threads it
has, which are public; a run that is resumed finds all of them as they were, or is refused.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.runs import normals
from pasearch.runs.keys import Stream
from pasearch.runs.loops import loaded
from pasearch.runs.team import Team
from pasearch.spaces.cost import WORTH
from pasearch.spaces.modules import KeyedDropout
from pasearch.training.batching import Poisson
from pasearch.training.bounding.bound import SLACK, Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.dense import CODES, NARROW, Dense, laid_out, room, zeros
from pasearch.training.dropout import Dropouts, bits_for
from pasearch.training.halves import Halved
from pasearch.training.losses import LossOf
from pasearch.training.one_step import (
    EVEN,
    Slots,
    State,
    denoise,
    reseed_dropout,
    rows_of_a_part,
)
from pasearch.training.products import Product, product
from pasearch.training.record_sums import SumBuffers, flattened
from pasearch.training.watched import Watched

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

CALLS, ROW, NUMBER = 5e-4, 2e-7, 1.5e-9
"""Seconds that a step saves, and each record of it, and each number that a dense layer is given of
it, on one core."""

COPIED, READ, MOST = (256, 2**19), (16, 2**16), 1024
"""Records that are worked on at once: at least so many, and as many as have so many numbers, their
own and in the network, so that they stay in a processor's cache. Of those that are copied for a
product, of those that are read where they lie, and at most."""

LINE = 16
"""Numbers of a line of a processor's cache: what comes out of each layer begins with one."""

EACH, SUMS = 32, 2**24
"""Several threads pay where each has so many records of a batch, in the mean; all their sums, of
which each has its own, have at most so many numbers together."""

MAX_BATCH = 2**22
"""Records of a batch, in the mean: more are summed by torch, in groups of blocks."""

KINDS, KNOWN = (nn.Tanh, nn.ReLU, nn.Sigmoid), {(torch.float32, "cpu")}
"""What may follow a layer, and of what kind the numbers have to be, and where."""

UNBOUNDED = math.inf, 0.0, 1.0
"""The terms of factors that are all 1."""

NO_PRODUCT = Product(0, nullcontext, nullcontext)
"""Of a linear model whose records are read where they lie."""


class MachineCode:
    """The sums of a training's steps: see `of`.

    Args:
        watched: The network, whose dropout has a key of each step.
        plan: What computes its sums, of float32 on a processor.
        slots: The records; of a dense network's tensor, with the squared norms of its rows.
        recipe: One that `fits`.
        streams: As for `trainer.train`.
        room: Where sums go: one flat place.
        team: The threads of a step.
    """

    def __init__(
        self,
        watched: Watched,
        plan: Plan,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        room: SumBuffers,
        team: Team,
    ):
        self._watched, self._masks = watched, streams["dropout"]
        self._recipe, self._stream = recipe, streams["noise"]
        self._batch = _batches(recipe, len(slots.y), streams["batch"])
        terms = UNBOUNDED if recipe.bounding is None else recipe.bounding.terms
        part = rows_of_a_part(recipe, len(slots.y), slots.rows, team.threads)
        self._team, self._sum = team, _Sum(plan, slots, terms, part, team)
        self._room, self._total = room, room.totals[0].numpy()
        few, count = len(self._total) <= normals.FEW, 2 * normals.pairs(len(self._total))
        self._words = self._stream.first_words(count) if few else None

    @classmethod
    def of(
        cls,
        watched: Watched,
        slots: Slots,
        recipe: Recipe,
        streams: Mapping[str, Stream],
        room: SumBuffers,
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
        chain = chain_of(watched, slots.x)
        if chain is None or threads_in_code(watched, slots, recipe, team.threads) is None:
            return None
        if (code := loops()) is None:
            return None
        plan = Plan.of(chain, weights[0], recipe.expected_batch_size, team.threads, code)
        return cls(watched, plan, slots, recipe, streams, room, team)

    def sum(self, step: int, sigma: float | None, state: State) -> None:
        """Leave a step's noisy sum in the room, and move the state on: see `one_step.batch_sum`."""
        recipe, bounding = self._recipe, self._recipe.bounding
        reseed_dropout(self._watched, self._masks, step)
        self._sum(self._batch(step), self._total)
        if sigma is None or bounding is None:
            self._room.write_back()
            return
        scale = state.noise_deviation = sigma * bounding.computed_sensitivity
        code = normals.compiled()
        assert code is not None, "it is loaded"
        if self._words is None:
            made = normals.normals(len(self._total), self._stream, step, code)
            made.add_to(self._total, scale, team=self._team)
        else:
            words = self._words.at(step)
            normals.add_few(self._total, scale, words, self._stream, step, code)
        self._room.write_back()
        if recipe.denoising is not None:
            denoise(self._room.flats, recipe.denoising, recipe.drawn_density(sigma), state)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a network's sums are computed by.

    Args:
        loop: A `bounded_sum`.
        form: What that is told of the network.
        weights: The network's parameters, flat.
        outputs: Of the network.
        dropouts: Of its layers; of a dense one's records first.
        squares: From records to what the loop asks of each beside: the squared norm of its input,
            where that goes to a linear layer.
        rows: Records of a block, at most.
        rooms: Of each thread.
        product: What multiplies.
        slack: How much too large norms are taken.
    """

    loop: Callable[..., None]
    form: tuple[Any, ...]
    weights: Tensor
    outputs: int
    dropouts: Sequence[KeyedDropout | None]
    squares: Callable[[Tensor], Tensor]
    rows: int
    rooms: list[tuple[Any, ...]]
    product: Product
    slack: float = SLACK

    @classmethod
    def of(
        cls,
        chain: Dense,
        weights: Tensor,
        expected: int,
        threads: int,
        code: ModuleType,
        *,
        halved: Halved | None = None,
    ) -> Plan:
        """Return the plan of a network.

        Args:
            chain: The network.
            weights: Its parameters, flat.
            expected: Records of a batch, in the mean.
            threads: Of a step.
            code: `loops_of` the network.
            halved: The layers of a dense one whose products are of halves. Default: where they pay.
        """
        outputs, inputs = [len(weight) for weight in chain.weights], chain.weights[0].shape[1]
        by = product()
        halved = halved or Halved.of(chain, by, expected / threads)
        dropped = chain.dropouts[0] is not None
        copied = inputs if dropped or (outputs[0] >= NARROW and not halved.layers[0]) else 0
        whole = bool(copied) or halved.layers[0]
        rows = rows_of_a_block(expected, threads, sum(chain.widths), copied=whole)
        lines = LINE * math.ceil((rows + int(code.SPARE)) / LINE)
        bits = bits_for(chain.dropouts, [inputs, *outputs])
        sizes = rows * copied, lines * sum(chain.widths[1:]), rows, bits
        form = *_form(chain, weights, lines), *halved.form(rows, by), *_outwards(chain)
        largest = max(weight.numel() for weight in chain.weights if weight.requires_grad)
        return cls(
            loop=code.bounded_sum, form=form, weights=weights,
            outputs=chain.outputs, dropouts=chain.dropouts, squares=chain.squares_of_inputs,
            rows=rows,
            rooms=[
                (*room(*sizes), *halved.room(rows), zeros(largest))
                for _ in range(threads)
            ],
            product=by if copied or any(halved.layers) or len(outputs) > 1 else NO_PRODUCT,
            slack=halved.slack,
        )  # fmt: skip


class _Sum:
    """What a plan's loop is given, made once a training."""

    def __init__(
        self,
        plan: Plan,
        slots: Slots,
        terms: tuple[float, float, float] | None,
        part: int,
        team: Team,
    ):
        assert terms is not None
        self._plan, self._slots, self._team = plan, slots, team
        self._dropouts = Dropouts(plan.dropouts, part)
        alike = torch.ones(plan.outputs) if slots.shares is None else slots.shares
        self._shares = alike.numpy(), slots.y.is_floating_point()
        self._records = None
        if type(slots.x) is Tensor:
            squares = plan.squares(slots.x) if slots.squares is None else slots.squares
            self._records = _flat(slots.x, slots.y, slots.valid, squares)
        rows = plan.rows * team.threads
        self._most = rows * max(1, part // rows)
        top, plus, most = terms
        self._weights, self._terms = plan.weights.detach().numpy(), (top, plus, plan.slack, most)
        self._others = [np.zeros(len(plan.weights)) for _ in range(team.threads - 1)]

    def __call__(self, places: Any, total: Any) -> None:
        """Write the sum of some slots' bounded gradients.

        Records that are no tensor are fetched part by part, of whole blocks for each thread, whose
        sums are taken by themselves: all are the same.
        """
        for each in (total, *self._others):
            each[:] = 0.0
        if self._records is not None:
            self._add(self._records, places, 0, total)
        else:
            self._fetched(places, total)
        if self._others:
            self._team.divided(len(total), lambda _, low, high: self._join(total, low, high))

    def _fetched(self, places: Any, total: Any) -> None:
        for low in range(0, len(places), self._most):
            part = torch.from_numpy(places[low : low + self._most])
            x, loss, mask = self._slots.at(part)
            own = _flat(x, loss.y, mask, self._plan.squares(x))
            self._add(own, np.arange(len(part)), low, total)

    def _add(self, records: tuple[Any, ...], places: Any, row: int, total: Any) -> None:
        """Let every thread add its blocks to its own sum; that of the first is the total.

        The first place is that of a row of the batch.
        """
        sums, threads, plan = (total, *self._others), self._team.threads, self._plan
        drops = self._dropouts.of_this_step()

        def blocks(thread: int) -> None:
            with plan.product.in_thread():
                plan.loop(
                    *records, *self._shares, places, row, plan.rows, thread, threads,
                    self._weights, plan.form, drops, self._terms, plan.rooms[thread], sums[thread],
                    plan.product.address,
                )  # fmt: skip

        with plan.product.in_process():
            self._team.all(blocks)

    def _join(self, total: Any, low: int, high: int) -> None:
        for each in self._others:
            total[low:high] += each[low:high]


def rows_of_a_block(expected: int, threads: int, width: int, *, copied: bool) -> int:
    """Return how many records a block has, so that most batches are whole blocks; `EVEN` or more.

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
    return EVEN * math.ceil(usual / (threads * blocks * EVEN))


def _flat(x: Tensor, *more: Tensor) -> tuple[Any, ...]:
    """Return records one after another, and what else there is of them, as arrays."""
    return (x.reshape(-1).numpy(), *(each.numpy() for each in more))


def chain_of(watched: Watched, x: Tensor) -> Dense | None:
    """Return a network as loops know it; None if they do not.

    Args:
        watched: The network.
        x: Records, (batch, ...), or what is fetched as such.
    """
    return watched.dense if watched.dense is not None and watched.dense.takes(x) else None


def fits(watched: Watched, chain: Dense, slots: Slots, recipe: Recipe) -> bool:
    """Whether a training's steps are taken in machine code, where that is to be had.

    Args:
        watched: As for `MachineCode.of`; like the rest.
        chain: The network as loops know it.
        slots: See there.
        recipe: See there.
    """
    bounding, x, y, batch = recipe.bounding, slots.x, slots.y, recipe.expected_batch_size
    plain = recipe.noise is None and recipe.noise_before_clip is None
    plain &= recipe.augmentation is None
    if not (plain and (bounding is None or has_terms(bounding))):
        return False
    of_record = ROW + NUMBER * sum(chain.widths)
    parameters = list(watched.network.parameters())
    kinds = {(p.dtype, p.device.type) for p in (*parameters, x)}
    known = y.dtype is torch.int64 or (y.dtype is torch.float32 and chain.outputs == 1)
    known &= type(x) is not Tensor or x.is_contiguous()
    known &= all(p.numel() for p in parameters)
    known &= batch <= MAX_BATCH
    saved = recipe.steps * (CALLS + of_record * batch)
    return saved >= WORTH and known and kinds == KNOWN


def threads_in_code(watched: Watched, slots: Slots, recipe: Recipe, threads: int) -> int | None:
    """Return how many threads a step has in machine code, at most so many.

    None: its steps are torch's. So they are where a dense network of very many numbers might have
    several threads, as each would need a sum of its own. Arguments as for `fits`.
    """
    chain = chain_of(watched, slots.x)
    if chain is None or not fits(watched, chain, slots, recipe):
        return None
    numbers = sum(p.numel() for p in watched.parameters)
    if threads > 1 and 2 * numbers > SUMS:
        return None
    return max(1, min(threads, int(recipe.expected_batch_size // EACH), SUMS // numbers))


def has_terms(bounding: Bound) -> bool:
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
    outputs, widths = [len(weight) for weight in dense.weights], dense.widths
    layers = zip(dense.weights, dense.biases, widths, outputs, strict=False)
    parts = [((weight, given * out), (bias, out)) for weight, bias, given, out in layers]
    places, frozen = laid_out(parts, weights)
    starts, biases = zip(*((w, -1 if bias is None else bias) for w, bias in places), strict=True)
    return (
        np.array(starts, np.uint64), np.array(biases, np.int64), np.array(widths, np.uint64),
        np.array([CODES[each] for each in dense.activations], np.int64),
        np.array([0, *(room * np.cumsum([0, *widths[1:-1]])).tolist()], np.uint64),
        np.array([each.requires_grad for each in dense.weights]), frozen,
    )  # fmt: skip


def _outwards(dense: Dense) -> tuple[Any, ...]:
    """Return how many numbers come out of each layer, and whether the first is joined."""
    return np.array([len(weight) for weight in dense.weights], np.uint64), dense.joined


@cache
def loops() -> ModuleType | None:
    """Load the loops of dense networks and try them on public numbers: see `runs.loops`."""

    def agrees(code: ModuleType) -> bool:
        nets = [(each, kind) for each in ((3,), (NARROW - 1, 3), (NARROW, 3)) for kind in KINDS]
        made = [*(_made_up(*each) for each in nets), _with_more()]
        return _adds_the_same() and all(
            _agrees(each, (5,), code, of_halves=of_halves)
            for of_halves in {False, product().of_halves > 0} for each in made
        )  # fmt: skip

    return loaded("pasearch.training.compiled", agrees)


def _adds_the_same() -> bool:
    """Whether few numbers are added as by arrays, to the bit."""
    if (code := normals.compiled()) is None:
        return False
    stream, first = Stream(bytes(32)), np.linspace(-9.0, 9.0, 1000)
    totals = [first.copy() for _ in range(2)]
    words = stream.words().take(2 * normals.pairs(1000)).copy()
    normals.add_few(totals[0], 1.5, words, stream, 0, code)
    normals.of_words(words, 1000, stream, 0).add_to(totals[1], 1.5)
    return np.array_equal(totals[0], totals[1])


def _made_up(outputs: tuple[int, ...], kind: type[nn.Module]) -> nn.Sequential:
    layers = [nn.Linear(*each) for each in zip((5, *outputs), outputs, strict=False)]
    modules = [module for layer in layers[:-1] for module in (layer, kind())]
    return nn.Sequential(*modules, layers[-1])


def _with_more() -> nn.Sequential:
    """Return layers with dropout, a frozen one, and some without a bias."""
    return nn.Sequential(
        KeyedDropout(0.2), nn.Linear(5, 18), nn.Sigmoid(), KeyedDropout(0.4),
        nn.Linear(18, 7).requires_grad_(False), nn.ReLU(), nn.Linear(7, 4, bias=False),
        nn.Linear(4, 3),
    )  # fmt: skip


def _agrees(
    network: nn.Sequential, shape: tuple[int, ...], code: ModuleType, *, of_halves: bool = False
) -> bool:
    """Whether loops find torch's sums, of made-up weights and records and three classes."""
    watched = Watched(network)
    for parameter in network.parameters():
        parameter.detach().copy_(
            torch.linspace(-1.0, 1.0, parameter.numel()).sin_().view_as(parameter)
        )
    (weights,) = flattened(watched.parameters)
    x = torch.linspace(-2.0, 2.0, 21 * math.prod(shape)).sin_().view(21, *shape)
    valid, y, bounding = torch.arange(21) != 4, torch.arange(21) % 3, Flat(clip_norm=0.5)
    slots, room = Slots(x, y, valid).known_to(watched), SumBuffers(watched.parameters)
    reseed_dropout(watched, None, 0)
    bounding.sums(watched, x, LossOf(y, slots.squares), mask=valid, room=room)
    room.write_back()
    chain = chain_of(watched, x)
    assert chain is not None, "it is one"
    halved = Halved.all_of(chain) if of_halves else None
    plan = Plan.of(chain, weights, 21, 1, code, halved=halved)
    total, near = np.empty(len(weights)), 1e-3 if of_halves else 1e-5
    _Sum(plan, slots, bounding.terms, 21, Team(1))(np.arange(21), total)
    return bool(np.allclose(total, room.flats[0].numpy(), atol=near))
