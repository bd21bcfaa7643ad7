"""Convolutional networks in machine code: torch's sums, whatever the chain, and its bound."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sums_in_code import CLASSES, Sums
from torch import Tensor, nn

from pasearch.data.partitions import Records
from pasearch.errors import MachineError, UsageError
from pasearch.runs.keys import Keys
from pasearch.training import convolutional, machine_code
from pasearch.training.bounding.auto_s import AutoS
from pasearch.training.bounding.bound import Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.convolutional import LANES, Convolutional
from pasearch.training.dense import check_parts
from pasearch.training.losses import LossOf
from pasearch.training.per_example import validate
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training
from pasearch.training.watched import Watched

SEEDS = range(30)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def chain(seed: int) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """A network that machine code takes, and the shape of its records."""
    draw = random.Random(seed)
    while True:
        shape = (draw.randint(1, 3), draw.randint(4, 11), draw.randint(4, 11))
        network, given = [], shape
        for _ in range(draw.randint(1, 4)):
            module = _layer(draw, given)
            network.append(module)
            if isinstance(module, nn.Conv2d) and draw.random() < 0.7:
                network.append(draw.choice((nn.ReLU, nn.Tanh))())
            try:
                made = module(torch.zeros(1, *given)).shape[1:]
            except RuntimeError:  # a window larger than what is left
                break
            given = tuple(made)
        else:
            numbers, bias = math.prod(given), draw.random() < 0.7
            network += [
                nn.Flatten(),
                nn.Linear(numbers, 5, bias=bias),
                nn.Tanh(),
                nn.Linear(5, CLASSES),
            ]
            if Convolutional.of(network, shape) is not None:
                return nn.Sequential(*network), shape


def _layer(draw: random.Random, given: tuple[int, ...]) -> nn.Module:
    sides = draw.randint(1, 3), draw.randint(1, 4)
    strides = draw.randint(1, 2), draw.randint(1, 3)
    if draw.random() < 0.35:
        return draw.choice((nn.MaxPool2d, nn.AvgPool2d))(sides, draw.choice((strides, 1, None)))
    same = draw.random() < 0.2
    sides = (1, 3) if same else sides
    return nn.Conv2d(
        given[0], draw.randint(1, 5), sides, stride=1 if same else strides,
        padding="same" if same else (draw.randint(0, 2), draw.randint(0, 1)),
        bias=draw.random() < 0.7,
    )  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bounding", [Flat(clip_norm=0.5), AutoS()], ids=repr)
def test_sums_are_torchs_whatever_the_chain(seed: int, bounding: Bound):
    sums = Sums(*chain(seed), n=37, bounding=bounding)
    torch.testing.assert_close(sums.in_code(), sums.by_torch(), rtol=1e-4, atol=2e-5)


@pytest.mark.unit
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e4, 1e12])
def test_one_record_moves_a_sum_by_no_more_than_the_bound(seed: int, size: float):
    """Each alone in its batch, so that no rounding of a sum is in between."""
    sums = Sums(*chain(seed), n=20, bounding=Flat(clip_norm=0.5))
    slots = replace(sums.slots, x=sums.slots.x * size, valid=torch.ones(20, dtype=torch.bool))
    for place in range(20):
        assert float(sums.in_code([place], slots).double().norm()) <= 0.5 * (1 + 1e-9)


@pytest.mark.unit
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_that_is_not_finite_adds_what_a_null_one_does(seed: int, value: float):
    """Unless no window holds the pixel; the others' terms are the same to the bit."""
    sums = Sums(*chain(seed), n=LANES + 5, bounding=Flat(clip_norm=0.5))
    broken, null = sums.with_bad([0, 7, LANES + 4], value)
    absent = sums.in_code(slots=null)
    assert absent.isfinite().all()
    assert torch.equal(sums.in_code(slots=broken), absent)


@pytest.mark.unit
def test_records_that_cancel_are_clipped_by_what_is_left():
    """A filter's gradient at two places, one the other's negative: its norm is what is summed."""
    network = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(2, CLASSES))
    sums = Sums(network, (1, 1, 2), n=40, bounding=Flat(clip_norm=0.5))
    with torch.no_grad():
        network[2].weight[:, 1] = -network[2].weight[:, 0] * (1 + 1e-6)
    slots = replace(sums.slots, x=torch.full((40, 1, 1, 2), 1e3), valid=torch.ones(40) > 0)
    for place in range(40):
        assert float(sums.in_code([place], slots).double().norm()) <= 0.5 * (1 + 1e-9)


@pytest.mark.unit
@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_goes_that_way_where_it_saves_a_second(
    threads: int, monkeypatch: pytest.MonkeyPatch
):
    torch.set_num_threads(threads)
    batch = machine_code.EACH_OF_IMAGES * threads
    saved = machine_code.CALLS + machine_code.IMAGE * batch
    steps = math.ceil(machine_code.WORTH / saved)
    x = torch.rand(300, 8, 8)
    data = Records(x=x, y=torch.arange(300) % 3, valid=torch.ones(300) > 0, public=True)
    streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}

    def training(**given: Any) -> Training:
        usual: dict[str, Any] = {
            "expected_batch_size": batch, "learning_rate": 0.1, "noise_multiplier": 1.0,
            "steps": steps, "bounding": Flat(clip_norm=0.5), "optimizer": "sgd",
        }  # fmt: skip
        network = nn.Sequential(
            nn.Unflatten(1, (1, 8)), nn.MaxPool2d(2), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(27, 3),
        )  # fmt: skip
        return Training(network, data, Recipe(**{**usual, **given}), streams)

    made = training()._in_code
    assert made is not None
    assert len(made._sum._plan.rooms) == threads
    assert training(steps=steps - 2)._in_code is None
    alone = training(expected_batch_size=batch - 1, steps=2 * steps)._in_code
    assert alone is not None  # too few records for more than one thread
    assert len(alone._sum._plan.rooms) == 1
    monkeypatch.setattr(convolutional, "WIDEST", 27 * 3 - 1)
    assert training()._in_code is None


@pytest.mark.unit
@pytest.mark.parametrize(
    "network",
    [
        [nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 3)],  # channels that are not there
        [nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(26, 3)],
        [nn.Conv2d(1, 3, 5), nn.Flatten(), nn.Linear(3, 3)],  # a window that is too large
        [nn.Conv2d(1, 3, 2), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3, 3)],
    ],
    ids=repr,
)
def test_what_does_not_fit_is_left_for_torch_to_say(network: list[nn.Module]):
    assert Convolutional.of(network, (1, 4, 4)) is None
    with pytest.raises(RuntimeError):
        nn.Sequential(*network)(torch.zeros(1, 1, 4, 4))


def cut(layer: nn.Module, name: str, *rows: slice) -> nn.Module:
    """A layer one of whose parameters was replaced by a part of it."""
    setattr(layer, name, nn.Parameter(getattr(layer, name).detach()[rows].clone()))
    return layer


CUT = {
    "a kernel": [cut(nn.Conv2d(1, 1, 3), "weight", slice(None), slice(None), slice(2), slice(2)),
                 nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)],
    "filters": [cut(cut(nn.Conv2d(1, 4, 3), "weight", slice(2)), "bias", slice(2)), nn.Flatten(),
                nn.Linear(32, 3)],
    "channels": [nn.Conv2d(1, 2, 1), cut(nn.Conv2d(4, 2, 1), "weight", slice(None), slice(2)),
                 nn.Flatten(), nn.Linear(72, 3)],
    "a head": [nn.Conv2d(1, 2, 3), nn.Flatten(),
               cut(cut(nn.Linear(32, 9), "weight", slice(3)), "bias", slice(3))],
    "a bias": [nn.Conv2d(1, 2, 3), nn.Flatten(), cut(nn.Linear(32, 3), "bias", slice(1))],
    "a bias of a chain": [nn.Flatten(), cut(nn.Linear(36, 3), "bias", slice(1))],
    "a kernel, by torch": [cut(nn.Conv2d(1, 9, 3, groups=1, dilation=1, padding_mode="reflect",
                                         padding=1), "weight", slice(None), slice(None), slice(2)),
                           nn.Flatten(), nn.Linear(378, 3)],
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("name", CUT)
def test_a_parameter_of_another_size_than_its_layer_says_is_refused(name: str):
    """Torch goes by the parameter, and loops by the layer: a sum would have no bound."""
    network = nn.Sequential(*CUT[name])
    assert network(torch.rand(2, 1, 6, 6)).shape == (2, 3)  # torch finds nothing wrong
    (problem,) = [each for each in validate(network) if "weight" in each] or validate(network)
    assert "where its settings say" in problem
    assert "make a new layer" in problem
    data = Records(x=torch.rand(50, 1, 6, 6), y=torch.arange(50) % 3, valid=torch.ones(50) > 0,
                   public=True)  # fmt: skip
    recipe = Recipe(expected_batch_size=10, steps=10**6, learning_rate=0.1, noise_multiplier=1.0,
                    bounding=Flat(clip_norm=0.5))  # fmt: skip
    streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}
    with pytest.raises(UsageError, match="where its settings say"):
        Training(network, data, recipe, streams)


@pytest.mark.unit
def test_parts_of_a_buffer_that_meet_or_leave_something_out_are_an_error():
    check_parts([(4, 2), (0, 4)], 6)
    for parts, count in (
        ([(0, 4), (3, 3)], 6),
        ([(0, 4), (5, 1)], 6),
        ([(0, 4)], 6),
        ([(0, 7)], 6),
    ):
        with pytest.raises(ValueError, match="expected"):
            check_parts(parts, count)


@pytest.mark.unit
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_numbers_and_other_flattenings_are_left_to_torch():
    class Flatten(nn.Flatten):
        pass

    def taken(*modules: nn.Module) -> object:
        return machine_code.chain_of(Watched(nn.Sequential(*modules)), torch.rand(2, 1, 3, 3))

    layers = nn.Conv2d(1, 2, 2), nn.Linear(8, 3)
    assert taken(layers[0], nn.Flatten(), layers[1]) is not None
    assert taken(layers[0], Flatten(), layers[1]) is None
    assert taken(Flatten(), nn.Linear(9, 3)) is None
    assert taken(layers[0], nn.Flatten(), nn.Linear(8, 0), nn.Linear(0, 3)) is None


@pytest.mark.unit
def test_a_room_that_would_be_large_is_none(monkeypatch: pytest.MonkeyPatch):
    network, shape = chain(1)
    found = Convolutional.of(list(network), shape)
    assert found is not None
    assert sum(found.sizes) == sum(
        each.size for each in found.room()[1:] if each.dtype == np.float32
    ) - (found.sizes[0] + LANES)
    monkeypatch.setattr(convolutional, "ROOM", sum(found.sizes))
    assert Convolutional.of(list(network), shape) is not None
    monkeypatch.setattr(convolutional, "ROOM", sum(found.sizes) - 1)
    assert Convolutional.of(list(network), shape) is None


@pytest.mark.unit
def test_loops_that_find_other_sums_are_an_error(monkeypatch: pytest.MonkeyPatch):
    right = Convolutional.form

    def wrong(self: Convolutional, weights: Tensor) -> Any:
        told, hiding, *more = right(self, weights)
        return (told, hiding + 1.0, *more)

    machine_code.convolutional_loops.cache_clear()
    monkeypatch.setattr(Convolutional, "form", wrong)
    with pytest.raises(MachineError, match="finds other numbers than torch"):
        machine_code.convolutional_loops()
    machine_code.convolutional_loops.cache_clear()


@pytest.mark.unit
def test_norms_are_those_of_float64():
    network, shape = chain(3)
    sums = Sums(network, shape, n=30, bounding=AutoS())
    top, plus, _ = sums.bounding.terms or (0.0, 0.0, 0.0)
    double = nn.Sequential(*network).double()
    for place in range(30):
        if not sums.slots.valid[place]:
            continue
        x, y = sums.slots.x[place : place + 1].double(), sums.slots.y[place : place + 1]
        loss = LossOf(y)(double(x.double())).sum()
        exact = torch.cat([g.flatten() for g in torch.autograd.grad(loss, double.parameters())])
        expected = exact * top / (exact.norm() + plus)
        network.float()
        torch.testing.assert_close(sums.in_code([place]).double(), expected, rtol=1e-3, atol=1e-5)
        double.double()
