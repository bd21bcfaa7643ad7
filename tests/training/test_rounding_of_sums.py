"""How far records can push the roundings of a batch's float32 sum, in machine code.

Records are made for it: most of a sum is near a power of two, and what is left are numbers that lie
just behind the middle between two float32 ones, on either side in turn. Without the first record
they are rounded the other way. If a sum went on from record to record, or from block to block,
that would move it by 2 C at 8,192 records, by 17 C at 32,768 (docs/guarantees/floating-point.md).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pasearch.runs.team import Team
from pasearch.training import machine_code
from pasearch.training.bounding.flat import Flat
from pasearch.training.halves import Halved
from pasearch.training.machine_code import Plan
from pasearch.training.one_step import Slots
from pasearch.training.watched import Watched, flattened

BATCH = 8192


def made(up: float, down: float, shift: float, batch: int = BATCH) -> Tensor:
    """Return what records add: numbers that sum up to half the batch, then tiny ones."""
    step = 2.0**-23 * batch / 4  # twice what float32 numbers below half of it are apart
    y = torch.zeros(batch, dtype=torch.float64)
    y[: batch // 2] = -0.9999
    place, left = batch // 2, batch / 2 * 0.0001
    while left > 1e-9:
        y[place] = -min(0.9999, left)
        left, place = left + float(y[place]), place + 1
    tiny = torch.tensor([-up * step, down * step]).repeat(batch)[: batch - place]
    y[place:] = tiny
    y[1] += shift
    return y.float()


def moved(network: nn.Sequential, x: Tensor, y: Tensor, halves: bool) -> float:
    """Return by how many bounds the first record moves the sum of all."""
    watched = Watched(network)
    (weights,) = flattened(list(network.parameters()))
    valid = torch.ones(BATCH, dtype=torch.bool)
    slots = Slots(x, y, valid).known_to(watched)
    chain = machine_code.chain_of(watched, x)
    assert chain is not None
    code = machine_code.loops_of(chain)
    assert code is not None
    every = Halved.all_of(chain)  # pyright: ignore[reportArgumentType]
    halved = every if halves else replace(every, layers=[False] * len(every.layers))
    plan, bound = Plan.of(chain, weights, BATCH, 1, code, halved=halved), Flat(clip_norm=1.0)
    without, found = valid.clone(), []
    without[0] = False
    for each in (slots, replace(slots, valid=without)):
        total = np.zeros(len(weights), np.float32)
        machine_code._Sum(plan, each, bound.terms, BATCH, Team(1))(np.arange(BATCH), total)
        found.append(torch.from_numpy(total).double())
    return float((found[0] - found[1]).norm())


def of_weights() -> nn.Sequential:
    """A network whose first hidden unit is its input, and which gives 0."""
    network = nn.Sequential(nn.Linear(1, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False))
    for parameter in network.parameters():
        parameter.detach().zero_()
    network[0].weight.detach()[0] = 1.0  # pyright: ignore[reportIndexIssue]
    return network


def of_few() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(1, 1, bias=False))
    network[0].weight.detach().zero_()  # pyright: ignore[reportCallIssue]
    return network


def of_a_bias() -> nn.Sequential:
    """One whose hidden units are all off: a record adds to the last bias alone."""
    network = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    for parameter in network.parameters():
        parameter.detach().zero_()
    network[0].bias.detach().fill_(-9.0)  # pyright: ignore[reportCallIssue]
    return network


@pytest.mark.unit
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("network", [of_weights, of_few, of_a_bias])
def test_a_record_moves_a_sum_by_hardly_more_than_its_bound(network, halves: bool):
    if halves and not machine_code.product().of_halves:
        pytest.skip("this processor has no tiles for bfloat16")
    most, x = 0.0, torch.ones(BATCH, 1)
    for up, down in ((1.02, 0.98), (1.0, 1.0), (2.04, 1.96), (8.16, 7.84), (32.64, 31.36)):
        for shift in (0.0, 0.3, -0.3, 0.7):
            most = max(most, moved(network(), x, made(up, down, shift), halves))
    assert 0.9 < most <= 1.003
