"""Micro-batches of encoded gradients: the mean of their gradients is encoded, at twice the norm."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional

from pasearch.accounting.events import NoisyRecords, SelfComposition
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.training.encoded.gradients import EncodedClipping, encode_by_sorting
from pasearch.training.one_step import DeviceRecords, expand_micro_batches, sum_clipped_gradients
from pasearch.training.one_step import TrainingState as State
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers
from pasearch.training.trainer import train

N, M, CLIP = 23, 4, EncodedClipping(clip_norm=0.5, vectors=20, exact=True)
UNITS = math.ceil(N / M)


def recipe(**more) -> Recipe:
    given = {"expected_batch_size": 12, "steps": 3, "learning_rate": 0.1, "noise_multiplier": 1.5}
    return Recipe(**{**given, "bounding": CLIP, "micro_batch": M, "average": None, **more})


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(N, 5, generator=generator), torch.arange(N) % 3


def total(x: Tensor, y: Tensor, valid: Tensor, units: list[int]) -> Tensor:
    """Compute the sum of a step over chosen micro-batches, float64."""
    prepared, own = PreparedNetwork(network()), recipe()
    buffers, chosen = SumBuffers(prepared.parameters), (torch.tensor(units), None)
    slots = DeviceRecords(x=x, y=y, valid=valid)
    stream = Keys.from_seed(1).stream("batch")
    sum_clipped_gradients(prepared, slots, own, stream, chosen, 0, State(), buffers, 2)
    return torch.cat(buffers.totals)


def naive_total(x: Tensor, y: Tensor, valid: Tensor, units: list[int]) -> Tensor:
    model = network()
    size = sum(p.numel() for p in model.parameters())
    result = torch.zeros(size, dtype=torch.float64)
    for unit in units:
        mean = torch.zeros(size)
        for record in range(unit, N, UNITS):
            if valid[record]:
                loss = functional.cross_entropy(
                    model(x[record : record + 1]), y[record : record + 1]
                )
                parts = torch.autograd.grad(loss, list(model.parameters()))
                mean += torch.cat([part.flatten() for part in parts]) / M
        result += encode_by_sorting(mean[None], CLIP.codebook(size))[0].double()
    return result


@pytest.mark.oracle
def test_the_sum_is_that_of_a_loop_over_micro_batches():
    x, y = data()
    valid = torch.ones(N, dtype=torch.bool)
    valid[[0, 7]] = False
    for units in ([0, 1, 5], [3], list(range(UNITS))):
        assert torch.allclose(total(x, y, valid, units), naive_total(x, y, valid, units), atol=1e-6)


@pytest.mark.contract
def test_a_record_moves_the_sum_by_at_most_twice_the_norm():
    x, y = data()
    valid, units = torch.ones(N, dtype=torch.bool), list(range(UNITS))
    for extreme in (0.0, -3.0, 1e20, math.inf, math.nan):
        changed, without = x.clone(), valid.clone()
        changed[7], without[7] = extreme, False
        moved = total(changed, y, valid, units) - total(changed, y, without, units)
        assert moved.norm() <= 2 * CLIP.clip_norm * SUM_ROUNDING
        others = [unit for unit in units if unit != 7 % UNITS]
        assert torch.equal(total(changed, y, valid, others), total(x, y, valid, others))
    assert not total(x, y, ~valid, units).any()  # null records alone add exactly 0


@pytest.mark.contract
def test_a_record_is_always_in_the_same_micro_batch():
    rows, real = expand_micro_batches(torch.arange(UNITS), None, recipe(), N)
    assert sorted(rows[real].tolist()) == list(range(N))
    assert (rows[real] % UNITS == torch.arange(UNITS).repeat_interleave(M)[real]).all()
    padding = torch.zeros(UNITS, dtype=torch.bool)
    assert not expand_micro_batches(torch.arange(UNITS), padding, recipe(), N)[1].any()


@pytest.mark.contract
def test_the_cost_is_that_of_a_revealed_sample_and_twice_the_norm():
    assert recipe().event(N) == SelfComposition(NoisyRecords(3 / UNITS, 0.75), 3)
    assert recipe(micro_batch=1).event(N) != recipe().event(N)


def log_density(x: float, q: float, sigma: float, shift: float) -> float:
    absent = norm.logpdf(x, 0.0, sigma) + math.log1p(-q) if q < 1 else -math.inf
    return float(np.logaddexp(absent, norm.logpdf(x, shift, sigma) + math.log(q)))


def divergence(order: int, q: float, sigma: float) -> float:
    """Integrate p^a r^(1-a), where the sampled vector +1 of p is -1 in r."""

    def integrand(x: float) -> float:
        one, other = (log_density(x, q, sigma, shift) for shift in (1.0, -1.0))
        return math.exp(order * one + (1 - order) * other)

    return sum(quad(integrand, *each)[0] for each in pairwise(np.linspace(-40, 40, 41)))


@pytest.mark.oracle
@pytest.mark.parametrize(("q", "sigma"), [(0.1, 1.5), (0.5, 0.8), (1.0, 2.0)])
def test_the_charged_divergence_is_above_that_of_two_opposite_vectors(q: float, sigma: float):
    """The worst pair on one axis; with q = 1 both are equal, so the bound is not loose there."""
    for order in (2, 3, 8):
        charged = 1 - q + q * math.exp(order * (order - 1) * 4 / (2 * sigma**2))
        assert 1.0 < divergence(order, q, sigma) <= charged * (1 + 1e-7)
        without = 1 - q + q * math.exp(order * (order - 1) / (2 * sigma**2))
        assert divergence(order, q, sigma) > without or q < 1


@pytest.mark.unit
def test_a_training_runs_and_other_stages_are_refused():
    x, y = data()
    records = Records(x=x, y=y, valid=torch.ones(N, dtype=torch.bool), public=False)
    streams = {k: Keys.from_seed(2).stream(k) for k in ("batch", "noise", "dropout")}
    model = network()
    train(model, records, recipe(), streams)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert recipe().with_noise(None).micro_batch == 1
    assert Recipe.from_json(recipe().to_json()) == recipe()
    for more in ({"bounding": EncodedClipping()}, {"batching": "reshuffled"}):
        with pytest.raises(UsageError, match="'micro_batch' requires"):
            recipe(**more)
