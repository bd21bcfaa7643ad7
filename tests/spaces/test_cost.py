"""The work of a step: counted by hand, and beside torch's own count."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import cost, norm_operations, planned_seconds, positions
from pasearch.spaces.layers import Conv, Dense, Lstm, Pool

NETWORKS = {
    "linear": (Architecture(layers=()), (50,)),
    "fcn": (Architecture(layers=(Dense(units=300), Dense(units=128))), (784,)),
    "frozen": (Architecture(layers=(Dense(units=300), Dense(units=128))).frozen(1), (784,)),
    "cnn": (
        Architecture(
            layers=(
                Pool(size=2), Conv(filters=16, kernel=5), Pool(size=2),
                Conv(filters=32, kernel=3, padding="same"), Dense(units=64),
            )
        ),
        (28, 28),
    ),
    "lstm": (Architecture(layers=(Lstm(units=64),)), (28, 28)),
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.quick
def test_the_work_of_a_linear_model_by_hand():
    found = cost(Architecture(layers=()), (7,), 3)
    assert (found.held, found.parameters, found.trained) == (7, 24, 24)
    assert found.plain == 2 * 24 * 2  # forward, and the sum: nothing below wants a gradient
    assert found.operations == found.plain + norm_operations(24, 1)
    assert found.moved(10) == 8 * 7 * 10 + 16 * 24
    assert found.random == 4 * 24


@pytest.mark.oracle
@pytest.mark.parametrize("name", NETWORKS)
def test_torch_counts_as_many_operations_of_a_plain_step(name: str):
    """Its count leaves biases out, and takes the input's gradient where nothing below wants it."""
    architecture, shape = NETWORKS[name]
    network = architecture.build(shape, 10, Keys.from_seed(1).stream("start").generator())
    x, y = torch.rand(8, *shape), torch.randint(10, (8,))
    with FlopCounterMode(display=False) as counted:
        cross_entropy(network(x), y, reduction="sum").backward()
    assert cost(architecture, shape, 10).plain == pytest.approx(
        counted.get_total_flops() / 8, rel=0.05
    )


@pytest.mark.unit
def test_a_norm_takes_the_cheaper_form():
    few, many = norm_operations(10_000, 4), norm_operations(10_000, 400)
    assert few == 2 * 4**2 * 2 * math.sqrt(10_000)
    assert many == 4 * 10_000
    assert norm_operations(10_000, 1) < few


@pytest.mark.unit
def test_places_at_which_weights_are_used():
    assert positions(Dense(units=3), (4,)) == 1
    assert positions(Conv(filters=2, kernel=5), (1, 28, 28)) == 24 * 24
    assert positions(Lstm(units=4), (28, 5)) == 28


@pytest.mark.unit
def test_a_plan_reckons_with_a_step_its_operations_and_its_numbers():
    assert planned_seconds(0, 0, 100) == 1e-3
    assert planned_seconds(10**6, 100, 1000) == pytest.approx(1e-3 + 1000 * (8e-5 + 4e-7))
