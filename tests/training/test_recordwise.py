"""Modules of the user: one record at a time, per-example gradients by vmap, refused modules."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from pasearch.errors import UsageError
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.modules import KeyedDropout, LogitScale, Lstm, PerRecord, RowSequence
from pasearch.training.clipping import FlatClipping
from pasearch.training.encoded.gradients import EncodedClipping
from pasearch.training.losses import RecordLoss
from pasearch.training.per_example import (
    PreparedNetwork,
    clipped_sum_and_counts,
    form_gradients,
    validate,
)
from pasearch.training.recordwise import LooseParameters, find_module_problems

SHAPE, CLIP = (3, 4), FlatClipping(clip_norm=0.1)


class Base(nn.Module):
    """Two linear layers with a function between."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.tanh, outputs: int = 3):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(12, 6), nn.Linear(6, outputs), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x.flatten(1))))


class Reused(Base):
    """A layer called twice, a loose parameter, a residual connection and dropout."""

    def __init__(self):
        super().__init__()
        self.scale, self.c, self.norm = (
            nn.Parameter(torch.ones(3)),
            nn.Linear(6, 6),
            nn.LayerNorm(6),
        )
        self.drop = KeyedDropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.a(x.flatten(1))))
        return self.b(h + self.c(torch.relu(self.c(h)))) * self.scale


class Tied(Base):
    """Two layers with one weight, of which one also enters elsewhere."""

    def __init__(self):
        super().__init__()
        self.c, self.d = nn.Linear(6, 6), nn.Linear(6, 6)
        self.d.weight = self.c.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.d(torch.tanh(self.c(self.a(x.flatten(1)))))
        return self.b(h @ self.b.weight.T @ self.b.weight)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True))
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x[:, None]).flatten(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.transpose(0, 1)  # records are the second axis
        return self.head(self.attend(steps, steps, steps)[0].mean(0))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(RowSequence(), Lstm(4, 5), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x[:, None])


MODULES = {
    "two layers": (Base, []),
    "reused": (Reused, ["scale", "c.weight", "c.bias"]),
    "tied": (Tied, ["b.weight", "b.bias", "c.weight", "c.bias", "d.bias"]),
    "convolutions": (Convolutions, []),
    "attention": (Attention, ["attend.in_proj_weight", "attend.in_proj_bias",
                              "attend.out_proj.weight", "attend.out_proj.bias"]),
    "recurrent": (Recurrent, []),
}  # fmt: skip
"""Module, and its parameters whose gradients are formed."""


def made(name: str) -> tuple[nn.Sequential, Tensor, RecordLoss]:
    torch.manual_seed(1)
    network = nn.Sequential(PerRecord(MODULES[name][0](), SHAPE, 3), LogitScale(3))
    return network, torch.randn(6, *SHAPE), RecordLoss(torch.tensor([0, 1, 2, 2, 1, 0]))


def reseed(prepared: PreparedNetwork) -> None:
    for each in prepared.keyed:
        each(7)


def naive_gradients(prepared: PreparedNetwork, x: Tensor, y: Tensor) -> Tensor:
    """Compute each record's gradient by autograd, (batch, parameters), with the same masks."""
    rows = []
    for place in range(len(x)):
        reseed(prepared)
        loss = RecordLoss(y)(prepared.network(x))[place]
        found = torch.autograd.grad(loss, prepared.parameters)
        rows.append(torch.cat([each.flatten() for each in found]))
    return torch.stack(rows)


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODULES)
def test_clipped_sums_equal_a_loop_over_records(name: str):
    network, x, loss = made(name)
    assert validate(network) == []
    prepared = PreparedNetwork(network)
    assert sorted(prepared._recordwise.loose) == sorted(MODULES[name][1])
    own = naive_gradients(prepared, x, loss.y)
    reseed(prepared)
    assert torch.allclose(form_gradients(prepared, x, loss), own, atol=1e-5)
    mask = torch.tensor([True, True, False, True, True, True])
    reseed(prepared)
    found = clipped_sum_and_counts(prepared, x, loss, CLIP, mask)[0]
    clipped = own * CLIP.factors(own.norm(dim=1))[:, None] * mask[:, None]
    assert torch.allclose(torch.cat([f.flatten() for f in found]), clipped.sum(0), atol=1e-6)


@pytest.mark.contract
@pytest.mark.parametrize("name", MODULES)
def test_a_record_moves_the_sum_by_at_most_its_bound(name: str):
    network, x, loss = made(name)
    prepared, mask = PreparedNetwork(network), torch.ones(6, dtype=torch.bool)

    def sums(values: Tensor, valid: Tensor) -> Tensor:
        reseed(prepared)
        found = clipped_sum_and_counts(prepared, values, loss, CLIP, valid)[0]
        return torch.cat([each.flatten() for each in found]).double()

    for extreme in (0.0, 1e-20, 1e4, 1e30, torch.inf, torch.nan):
        changed = x.clone()
        changed[2] = extreme
        without = mask.clone()
        without[2] = False
        moved = sums(changed, mask) - sums(changed, without)
        assert moved.norm() <= CLIP.sensitivity * SUM_ROUNDING
        assert torch.equal(sums(changed, without), sums(x, without))  # a null record adds 0
        if extreme != extreme or extreme == torch.inf:
            assert not moved.any()


def centre_large(h: Tensor) -> Tensor:
    """Subtract the batch mean only if a value is large, which no small synthetic record shows."""
    return torch.where(h.abs().max() > 50, h - h.mean(0), h)


@pytest.mark.contract
@pytest.mark.parametrize("between", [centre_large, lambda h: h - h.mean(0), lambda h: h.softmax(0)])
def test_a_module_that_mixes_records_sees_one_record_in_training_and_prediction(between: Callable):
    """The second line of defence: even an accepted module cannot mix records."""
    torch.manual_seed(1)
    network = nn.Sequential(PerRecord(Base(between), SHAPE, 3), LogitScale(3))
    prepared, loss = PreparedNetwork(network), RecordLoss(torch.tensor([0, 1, 2, 0]))
    x = torch.randn(4, *SHAPE)
    other = x.clone()
    other[0] = 1e4
    kept = torch.tensor([False, True, True, True])
    found = [clipped_sum_and_counts(prepared, each, loss, CLIP, kept)[0] for each in (x, other)]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert torch.equal(network(x)[1:], network(other)[1:])


class MeanLayer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Running(Base):
    def __init__(self):
        super().__init__(self.centre)
        self.register_buffer("mean", torch.zeros(6))

    def centre(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.mean(0)
        return h - self.mean


class InPlace(Running):
    def centre(self, h: Tensor) -> Tensor:
        return h - self.mean.mul_(0.9).add_(h.mean(0))


class Kept(Base):
    def __init__(self):
        super().__init__(lambda h: h + self.kept["first"] if self.kept else h)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.kept["first"] = self.a(x.flatten(1))
        return super().forward(x)


class Unused(Base):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(2))


EARLIER: list[Tensor] = []


def add_earlier(h: Tensor) -> Tensor:
    EARLIER.append(h)
    return h + EARLIER[0]


def one_hot(h: Tensor) -> Tensor:
    return nn.functional.one_hot((h > 0).long(), 2)[..., 0] + torch.tanh(h)


class Memory:
    """Object that is no module and keeps what it saw; its list belongs to the class."""

    seen: ClassVar[list[Tensor]] = []

    def __call__(self, h: Tensor) -> Tensor:
        self.seen.append(h)
        return torch.tanh(h)


class Noisy(Base):
    """Dropout and, in training, a random factor that no key determines."""

    def __init__(self):
        super().__init__()
        self.drop = KeyedDropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        factor = random.random() if self.training else 1.0
        return super().forward(self.drop(x) * factor)


class Twins(nn.Module):
    """Two layers with one weight below a layer that starts at 0, so that all gradients are 0."""

    def __init__(self):
        super().__init__()
        self.c, self.d, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.d.weight, self.d.bias = self.c.weight, self.c.bias
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(self.c(x[:, :6]) + self.d(x[:, 6:]))


class Lookup(Base):
    """Rows of a table at indices that are values of the record; too large ones raise an error."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.table((5.0 + 4.0 * x).long())[..., 0])


class ZeroLookup(Base):
    """A lookup that raises an error for a record of zeros only."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        is_zero = (x.abs().sum() == 0).long()
        return super().forward(x) + self.table(2 * is_zero)


class Catching(Lookup):
    """A lookup whose error is caught, so that one record would change the rows of all others."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except IndexError:
            return Base.forward(self, torch.ones_like(x))


class BatchCentre(torch.autograd.Function):
    """Identity of one record; its rule for vmap subtracts the batch mean of large values."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Tensor:
        return d[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return BatchCentre.apply(torch.where(x.abs().max() > 50, x - x.mean(0), x)), 0


@torch.library.custom_op("pasearch_tests::centre", mutates_args=())
def centre(x: Tensor) -> Tensor:
    return x.clone()


@centre.register_vmap
def _centre_batch(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
    return x - x.mean(0), 0


def catch_all_errors(h: Tensor) -> Tensor:
    try:
        return BatchCentre.apply(h)
    except UsageError:
        return h


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


REFUSED = {
    "rule for vmap": (lambda: Base(BatchCentre.apply), "BatchCentre: may have a rule for vmap"),
    "custom operator": (lambda: Base(centre), "centre.default: may have a rule for vmap"),
    "error for zeros": (ZeroLookup, "table (Embedding): fails on one record"),
    "error caught": (lambda: Base(catch_all_errors), "catches an error of PyTorch"),
    "batch mean": (lambda: Base(lambda h: h - h.mean(0)), "the network (Base): mixes records"),
    "later records": (lambda: Base(lambda h: h.cumsum(0)), "the network (Base): mixes records"),
    "batch softmax": (lambda: Base(lambda h: h.softmax(0)), "the network (Base): mixes records"),
    "batch norm of a vector": (lambda: Base(lambda h: h / h.norm()), "mixes records"),
    "layer inside": (lambda: Base(MeanLayer()), "between (MeanLayer): mixes records"),
    "without running statistics": (
        lambda: Base(nn.BatchNorm1d(6, track_running_stats=False)), "between (BatchNorm1d): mixes",
    ),
    "branch": (lambda: Base(lambda h: h if h.sum() > 0 else -h), "control flow that depends on"),
    "item": (lambda: Base(lambda h: h * h.sum().item()), "to a Python number"),
    "numpy": (lambda: Base(lambda h: h + torch.tensor(h.tolist())), "to numpy or a list"),
    "shape by values": (lambda: Base(lambda h: h[h > 0]), "shape depends on a record"),
    "random": (lambda: Base(lambda h: h + torch.randn_like(h)), "torch's global state"),
    "dropout": (lambda: Base(nn.Dropout(0.5)), "between (Dropout): draws from torch's global"),
    "buffer replaced": (Running, "(Running).mean: changes when the network runs"),
    "buffer in place": (InPlace, "writes a record into a tensor or buffer"),
    "attribute": (Kept, "(Kept).kept: changes when the network runs"),
    "global variable": (lambda: Base(add_earlier), "keeps a tensor of a record"),
    "another object": (lambda: Base(Memory()), "keeps a tensor of a record"),
    "random beside dropout": (lambda: Noisy(), "gives two outputs for the same record"),
    "one-hot": (lambda: Base(one_hot), "gradients cannot be computed record by record"),
    "unused": (Unused, "spare: does not reach the output"),
    "detached": (lambda: Base(lambda h: h.detach()), "a.weight: does not reach the output"),
    "outputs": (lambda: Base(outputs=7), "maps a record to shape (7,); expected (3,)"),
    "no trainable": (lambda: Base().requires_grad_(False), "no trainable parameter"),
    "float64": (lambda: Base().double(), "a (Linear): has weight of type torch.float64"),
    "recurrent": (Gru, "body (GRU): has no rule for one record at a time"),
    "fails": (lambda: Base(lambda h: h @ torch.ones(2, 2)), "fails on one record of shape (1, 3,"),
}  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize("name", REFUSED)
def test_unsuitable_modules_are_refused_with_path_and_fix(name: str):
    build, expected = REFUSED[name]
    torch.manual_seed(0)
    problems = find_module_problems(PerRecord(build(), SHAPE, 3))
    assert any(expected in each for each in problems), problems
    assert all("; " in each for each in problems)


@pytest.mark.unit
def test_all_problems_are_reported_at_once():
    module = Base(nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), MeanLayer()), outputs=3)
    module.spare = nn.Parameter(torch.ones(2))
    found = " ".join(find_module_problems(PerRecord(module, SHAPE, 3)))
    for part in ("between.0 (Batch", "between.1 (Drop", "between.2 (MeanLayer): mixes", "spare: "):
        assert part in found


@pytest.mark.unit
def test_masks_of_dropout_differ_between_records_and_repeat_with_their_key():
    alone = PerRecord(KeyedDropout(0.5), (64,), 64)
    x, (drop,) = torch.ones(8, 64), [alone.module]
    drop.reseed(3)
    first, second = alone(x), alone(x)
    assert len({tuple(row.tolist()) for row in first}) == 8
    assert not torch.equal(first, second)
    drop.reseed(3)
    assert torch.equal(alone(x), first)


@pytest.mark.unit
def test_loose_parameters_are_one_layer():
    prepared = PreparedNetwork(made("reused")[0])
    assert [type(each) for each in prepared.rules].count(LooseParameters) == 1


@pytest.mark.contract
@pytest.mark.parametrize("exact", [None, False, True])
def test_two_layers_with_one_weight_move_the_sum_by_at_most_their_bound(exact: bool | None):
    torch.manual_seed(1)
    alone = PerRecord(Twins(), SHAPE, 3)
    prepared = PreparedNetwork(nn.Sequential(alone, LogitScale(3)))
    assert "c.weight" in prepared._recordwise.loose
    with torch.no_grad():
        alone.module.head.weight.normal_()  # as after some steps
    half = 5.0 * torch.randn(20, 1, 6)
    for place, x in enumerate(half.repeat(1, 1, 2).reshape(20, 1, *SHAPE)):
        given = prepared, x, RecordLoss(torch.tensor([place % 3]))
        mask = torch.ones(1, dtype=torch.bool)
        if exact is None:
            bounding, found = CLIP, clipped_sum_and_counts(*given, CLIP, mask)[0]
        else:
            bounding = EncodedClipping(clip_norm=0.1, vectors=64, exact=exact)
            found = bounding.sums(*given, mask)[0]
        norm = torch.cat([each.flatten() for each in found]).double().norm()
        assert norm <= bounding.sensitivity * SUM_ROUNDING


@pytest.mark.contract
@pytest.mark.parametrize("kind", [Lookup, Catching])
def test_a_record_for_which_the_module_raises_an_error_adds_0_and_stops_nothing(
    kind: type[nn.Module],
):
    torch.manual_seed(1)
    network = nn.Sequential(PerRecord(kind(), SHAPE, 3), LogitScale(3))
    assert validate(network) == []
    prepared = PreparedNetwork(network)
    x, loss = torch.rand(7, *SHAPE), RecordLoss(torch.arange(7) % 3)
    bad = x.clone()
    bad[[2, 5]] = 40.0
    mask = torch.ones(7, dtype=torch.bool)
    without = mask.clone()
    without[[2, 5]] = False
    found = clipped_sum_and_counts(prepared, bad, loss, CLIP, mask)[0]
    expected = clipped_sum_and_counts(prepared, x, loss, CLIP, without)[0]
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(found, expected, strict=True))
    with torch.no_grad():
        outputs = network(bad)
    assert outputs.isfinite().all(dim=1).tolist() == without.tolist()
    assert torch.allclose(outputs[without], network(x)[without])
