"""Optimizers: Adam's corrected form is Adam without noise, and has its scale with noise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pasearch.training.optimizers import (
    DIVISOR_FLOOR,
    SECOND_MOMENT_DECAY,
    AdamUpdate,
    SgdUpdate,
    UpdateRule,
)
from pasearch.training.recipe import Recipe

RATE = 0.01


def corrected(parameters: list, rate: float, first: float) -> AdamUpdate:
    made = AdamUpdate(parameters, rate, first)
    made.noise_variance = 0.0
    return made


def gradients(steps: int, size: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-4, 2, size)
    return scales * (torch.randn(steps, size, generator=generator) + 0.3)


def path(
    optimizer: torch.optim.Optimizer | UpdateRule, parameter: nn.Parameter, given_: torch.Tensor
):
    places = []
    for gradient in given_:
        parameter.grad = gradient.clone()
        optimizer.step()
        places.append(parameter.detach().clone())
    return places


@pytest.mark.oracle
def test_without_noise_it_goes_where_adam_goes():
    for first in [0.0, 0.5, 0.9]:
        ours, theirs = (nn.Parameter(torch.zeros(5)) for _ in range(2))
        made = corrected([ours], RATE, first)
        adam = torch.optim.Adam([theirs], lr=RATE, betas=(first, SECOND_MOMENT_DECAY), eps=1e-12)
        drawn = gradients(60)
        for one, other in zip(path(made, ours, drawn), path(adam, theirs, drawn), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)
        plain = nn.Parameter(torch.zeros(5))
        sgd = path(torch.optim.SGD([plain], lr=RATE), plain, drawn)
        assert not torch.allclose(sgd[-1], ours, rtol=0.1), "the test has no teeth"


@pytest.mark.oracle
def test_the_usual_ones_are_torchs_to_the_bit():
    for ours, theirs in [
        (lambda p: SgdUpdate(p, RATE), lambda p: torch.optim.SGD(p, lr=RATE)),
        (lambda p: SgdUpdate(p, RATE, 0.9), lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9)),
        (
            lambda p: AdamUpdate(p, RATE, 0.7),
            lambda p: torch.optim.Adam(p, lr=RATE, betas=(0.7, SECOND_MOMENT_DECAY)),
        ),
    ]:
        one, other = (nn.Parameter(torch.ones(5)) for _ in range(2))
        drawn = gradients(60)
        paths = path(ours([one]), one, drawn), path(theirs([other]), other, drawn)
        assert all(map(torch.equal, *paths))
        assert not torch.equal(paths[0][-1], paths[0][-2])


@pytest.mark.unit
def test_a_share_of_a_sum_moves_as_the_mean_does():
    for made in [
        lambda p: SgdUpdate(p, RATE),
        lambda p: SgdUpdate(p, RATE, 0.9),
        lambda p: AdamUpdate(p, RATE, 0.7),
    ]:
        one, other = (nn.Parameter(torch.ones(5)) for _ in range(2))
        mean, total = made([one]), made([other])
        total.share = 1 / 16
        drawn = gradients(20)
        paths = path(mean, one, drawn), path(total, other, [16 * each for each in drawn])
        for first, second in zip(*paths, strict=True):
            torch.testing.assert_close(first, second)
        assert not torch.equal(paths[0][-1], paths[0][-2])


@pytest.mark.oracle
@pytest.mark.property
@given(
    seed=st.integers(0, 2**20),
    deviations=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8),
    first=st.floats(0.0, 0.99),
)
def test_every_step_is_its_formula(seed: int, deviations: list[float], first: float):
    parameter = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    made = corrected([parameter], RATE, first)
    drawn = gradients(len(deviations), seed=seed).double()
    for t, deviation in enumerate(deviations):
        before = parameter.detach().clone()
        parameter.grad, made.noise_variance = drawn[t].clone(), deviation**2
        made.step()

        def average(values: list, beta: float, t: int = t) -> torch.Tensor:
            weights = [(1 - beta) * beta ** (t - k) for k in range(t + 1)]
            return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

        mean = average(list(drawn[: t + 1]), first)
        noise = average([d**2 for d in deviations[: t + 1]], SECOND_MOMENT_DECAY)
        clean = average(list(drawn[: t + 1].square()), SECOND_MOMENT_DECAY) - noise
        least = max(DIVISOR_FLOOR**2 * noise, 1e-16)
        expected = RATE * mean / clean.clamp(min=least).sqrt()
        assert torch.allclose(before - parameter.detach(), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.statistical
def test_the_second_moment_is_unbiased_under_noise_and_uncorrected_it_is_not():
    for changing in [False, True]:
        size, steps, signal = 40_000, 80, 0.7
        generator = torch.Generator().manual_seed(2)
        parameter = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        made = corrected([parameter], RATE, 0.9)
        for step in range(steps):
            deviation = 2.0 / (1 + 0.02 * step) if changing else 2.0
            noise = deviation * torch.randn(size, generator=generator, dtype=torch.float64)
            parameter.grad, made.noise_variance = signal + noise, deviation**2
            made.step()
        [state] = made.states
        started = 1 - SECOND_MOMENT_DECAY**steps
        raw = float(state["square"].mean()) / started
        found = raw - state["noise"] / started
        error = math.sqrt(2 * 2.0**4 + 4 * 2.0**2 * signal**2) / math.sqrt(size * steps)
        assert abs(found - signal**2) < 5 * error
        assert raw - signal**2 > 100 * error
        # Were the noise's standard deviation 2/3 or 3/2 of what it is said to be, it would show.
        for share in (2 / 3, 3 / 2):
            assert abs(raw - share**2 * state["noise"] / started - signal**2) > 100 * error


@pytest.mark.unit
def test_where_noise_is_all_there_is_a_step_stays_bounded():
    parameter = nn.Parameter(torch.zeros(1000))
    made = corrected([parameter], RATE, 0.0)
    generator = torch.Generator().manual_seed(4)
    for _ in range(50):
        before = parameter.detach().clone()
        made.noise_variance, parameter.grad = 4.0, 2.0 * torch.randn(1000, generator=generator)
        made.step()
        limit = RATE * parameter.grad.abs() / (DIVISOR_FLOOR * 2.0)
        assert ((parameter - before).abs() <= limit * (1 + 1e-4) + 1e-6).all()
    assert torch.isfinite(parameter).all()


@pytest.mark.unit
def test_its_state_can_be_taken_back():
    parameter = nn.Parameter(torch.zeros(5))
    made = corrected([parameter], RATE, 0.9)
    made.noise_variance = 0.3
    drawn = gradients(8)
    path(made, parameter, drawn[:4])
    kept, place = made.snapshot(), parameter.detach().clone()
    first = path(made, parameter, drawn[4:])
    made.restore(kept)
    with torch.no_grad():
        parameter.copy_(place)
    again = path(made, parameter, drawn[4:])
    assert all(map(torch.equal, first, again))


@pytest.mark.unit
def test_the_recipe_names_its_optimizer():
    for name, kind in [
        ("sgd", SgdUpdate),
        ("momentum", SgdUpdate),
        ("adam", AdamUpdate),
        ("adam-corrected", AdamUpdate),
    ]:
        made = Recipe(expected_batch_size=2, steps=1, optimizer=name).optimizer_stage.of(
            [nn.Parameter(torch.zeros(2))], RATE
        )
        assert type(made) is kind
        corrects = getattr(made, "noise_variance", None) is not None
        assert corrects == (name == "adam-corrected")
        assert made.rate == pytest.approx(RATE * (0.1 if name == "momentum" else 1))
        assert getattr(made, "momentum", 0) == (0.9 if name == "momentum" else 0)
