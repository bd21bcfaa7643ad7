"""Products of halves: torch's sums, nearly, and the bound, exactly."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from sums_in_code import CLASSES, Sums
from torch import nn

from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import KeyedDropout
from pasearch.training import compiled_products, halves, machine_code, products, trainer
from pasearch.training.bounding.auto_s import AutoS
from pasearch.training.bounding.bound import SLACK, Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.halves import Halved
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

pytestmark = pytest.mark.skipif(
    products.of_torch() is None, reason="torch was built without MKL, or hides its products"
)
SEEDS = range(20)
INPUTS = 12


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take products of halves on every processor: where there are no tiles, they are slow."""
    monkeypatch.setattr(products, "has_tiles", lambda: True)
    products.product.cache_clear()
    if not products.product().of_halves:
        pytest.skip("this torch has no product of bfloat16 matrices")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    products.product.cache_clear()


def chain(seed: int) -> nn.Sequential:
    """A chain of linear layers, some with dropout, some frozen."""
    draw, modules, given = random.Random(seed), [nn.Flatten()], INPUTS
    for _ in range(draw.randint(0, 3)):
        made = draw.randint(1, 60)
        layer = nn.Linear(given, made, bias=draw.random() < 0.7)
        modules += [layer.requires_grad_(draw.random() < 0.7), draw.choice(BENT)()]
        if draw.random() < 0.4:
            modules.append(KeyedDropout(draw.choice((0.2, 0.6))))
        given = made
    if draw.random() < 0.2:
        modules.insert(1, KeyedDropout(0.3))
    return nn.Sequential(*modules, nn.Linear(given, CLASSES))


BENT = (nn.Tanh, nn.ReLU, nn.Sigmoid)


@pytest.mark.unit
def test_a_number_is_two_halves_and_little_more():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10_007, generator=generator) * 10.0 ** torch.randint(-30, 30, (10_007,))
    first, second = (np.zeros(10_010, np.uint16) for _ in range(2))
    unsigned = np.uint64
    compiled_products.halve(x.numpy(), unsigned(2), unsigned(10_000), first, second, unsigned(3))
    x, found = x[2:10_002], []
    for half in (first, second):
        assert not half[:3].any()
        assert not half[10_003:].any()
        found.append(torch.from_numpy(half[3:10_003].view(np.int16)).view(torch.bfloat16).float())
    assert torch.equal(found[0], x.bfloat16().float())
    assert torch.equal(found[1], (x - found[0]).bfloat16().float())
    rest = (x.double() - found[0].double() - found[1].double()).abs()
    assert float((rest / x.double().abs()).max()) <= 2.0**-17
    assert float((found[1] / x).abs().max()) <= 2.0**-8


@pytest.mark.unit
def test_what_is_no_number_is_none_as_halves():
    """Whatever bits it has: those that are all ones would be rounded to 0."""
    bits = [0x7FFFFFFF, 0xFFFFFFFF, 0x7FFF8000, 0x7F800001, 0x7FC00000, 0xFF800001]
    x = np.array(bits, np.uint32).view(np.float32)
    first, second = (np.zeros(len(bits), np.uint16) for _ in range(2))
    none, count = np.uint64(0), np.uint64(len(bits))
    compiled_products.halve(x, none, count, first, second, none)
    for half in (first, second):
        assert torch.from_numpy(half.view(np.int16)).view(torch.bfloat16).isnan().all()


@pytest.mark.unit
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bounding", [Flat(clip_norm=0.5), AutoS()], ids=repr)
def test_sums_are_torchs_but_for_what_halves_leave_out(seed: int, bounding: Bound):
    sums = Sums(chain(seed), (INPUTS,), 70, bounding, of_halves=True)
    found, expected = sums.in_code(), sums.by_torch()
    assert float((found - expected).norm() / expected.norm()) < 1e-4
    exact = Sums(chain(seed), (INPUTS,), 70, bounding).in_code()
    assert not torch.equal(found, exact)  # of halves they are


@pytest.mark.unit
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_and_threads_are_added_up(seed: int, threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_code, "COPIED", (16, 1))
    sums = Sums(chain(seed), (INPUTS,), 131, Flat(clip_norm=0.5), of_halves=True, threads=threads)
    assert sums.plan.rows * threads < 131
    found, expected = sums.in_code(), sums.by_torch()
    assert float((found - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.unit
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e4, 1e12])
def test_one_record_moves_a_sum_by_no_more_than_the_bound(seed: int, size: float):
    """Each alone in its batch, so that no rounding of a sum is in between."""
    sums = Sums(chain(seed), (INPUTS,), 40, Flat(clip_norm=0.5), of_halves=True)
    slots = replace(sums.slots, x=sums.slots.x * size, valid=torch.ones(40, dtype=torch.bool))
    for place in range(40):
        assert float(sums.in_code([place], slots).double().norm()) <= 0.5 * (1 + 1e-9)


def longest(slack: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """The most that a record adds of those whose halves are the worst, over the bound.

    Numbers a little below a step of bfloat16 in one factor, and a little above in the other: the
    product of both rests has the other sign than theirs, and is left out.
    """
    monkeypatch.setattr(halves, "SLACK", slack)
    network = nn.Sequential(nn.Linear(300, 1, bias=False))
    found = 0.0
    for clip in np.linspace(0.5, 0.5 * (1 + 2.0**-6), 97).tolist():
        sums = Sums(network, (300,), 8, Flat(clip_norm=clip), of_halves=True)
        sums.plan.weights.zero_()
        x = torch.full((8, 300), 1.0 + 2.0**-8) + torch.linspace(-3e-5, 3e-5, 8)[:, None]
        y = torch.linspace(-1.01, -1.0, 8)  # whose product with the factor may be anything
        slots = replace(sums.slots, x=x, y=y, valid=torch.ones(8, dtype=torch.bool))
        for place in range(8):
            found = max(found, float(sums.in_code([place], slots).double().norm()) / clip)
    return found


@pytest.mark.unit
def test_halves_that_make_a_record_longer_are_reckoned_with(monkeypatch: pytest.MonkeyPatch):
    assert longest(halves.SLACK, monkeypatch) <= 1.0
    assert longest(SLACK, monkeypatch) > 1.0  # else this test shows nothing


@pytest.mark.unit
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30, 3.4e38])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_record_that_is_not_finite_adds_what_a_null_one_does(seed: int, value: float):
    sums = Sums(chain(seed), (INPUTS,), 21, Flat(clip_norm=0.5), of_halves=True)
    broken, null = sums.with_bad([0, 7, 20], value)
    absent = sums.in_code(slots=null)
    assert absent.isfinite().all()
    assert torch.equal(sums.in_code(slots=broken), absent)
    assert torch.equal(sums.in_code(slots=replace(broken, valid=null.valid)), absent)


@pytest.mark.unit
@pytest.mark.parametrize("threads", [1, 2])
def test_layers_have_them_where_they_pay(threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "MOVED", 0)
    torch.set_num_threads(threads)
    data = Records(
        x=torch.rand(2000, INPUTS), y=torch.arange(2000) % 3, valid=torch.ones(2000) > 0,
        public=False,
    )  # fmt: skip
    monkeypatch.setattr(halves, "NUMBERS", INPUTS * 40)
    streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}

    def plan(batch: int) -> machine_code.Plan:
        network = nn.Sequential(nn.Linear(INPUTS, 40), nn.Tanh(), nn.Linear(40, CLASSES))
        recipe = Recipe(expected_batch_size=batch, learning_rate=0.1, noise_multiplier=1.0,
                        steps=5000, bounding=Flat(clip_norm=0.5), optimizer="sgd")  # fmt: skip
        training = Training(network, data, recipe, streams)
        training.step()
        assert training._in_code is not None
        return training._in_code._sum._plan

    most = halves.ROWS * threads
    large, small = plan(most), plan(most - 1)
    assert len(large.rooms) == threads
    assert (large.form[7].tolist(), large.slack) == ([0, -1], halves.SLACK)
    assert (small.form[7].tolist(), small.slack) == ([-1, -1], SLACK)
    monkeypatch.setattr(products, "has_tiles", lambda: False)
    products.product.cache_clear()
    assert plan(most).form[7].tolist() == [-1, -1]


@pytest.mark.unit
def test_places_of_halves_do_not_meet():
    halved = Halved([5, 7, 2], [7, 2, 3], [True, False, True])
    places, ats, address = halved.form(11, products.Product(0, None, None, 99))  # pyright: ignore
    assert (places.tolist(), ats.tolist(), address) == ([0, -1, 35], [0, 0, 55], 99)
    assert [len(each) for each in halved.room(11)] == [41, 41, 77, 77, 77, 77]
