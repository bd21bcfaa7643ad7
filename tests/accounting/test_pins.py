"""Figures recomputed elsewhere, to the digits printed there: delta is 1e-5 unless it is named.

Two grids of losses bound the same thing: where a pin was computed on dp_accounting's default grid,
ours may be a few thousandths lower, and never higher than the last printed digit.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from shortcuts import rdp_price

from pasearch.accounting.accountants import PrivacyCost, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import calibrate_min
from pasearch.accounting.events import (
    DiscreteGaussian,
    Gaussian,
    Geometric,
    PoissonGaussian,
    RepeatAndSelect,
    SelfComposition,
    TruncatedPoissonGaussian,
)
from pasearch.accounting.renyi import rdp_curve
from pasearch.accounting.selection import RunCountDistribution

pytestmark = [pytest.mark.oracle, pytest.mark.quick]

DELTA = 1e-5
TRAINING = SelfComposition(PoissonGaussian(100 / 60_000, 2.0), 180_000)
LONG_TRAINING = SelfComposition(PoissonGaussian(100 / 60_000, 2.0), 300_000)


def digits(figure: str) -> float:
    """Half a unit of the last digit printed."""
    return 0.500001 * 10.0 ** -len(figure.partition(".")[2])


def assert_is(found: PrivacyCost | float, figure: str) -> None:
    value = found.epsilon if isinstance(found, PrivacyCost) else found
    assert value == pytest.approx(float(figure), abs=digits(figure))


def assert_bounds_as_well_as(found: PrivacyCost, figure: str) -> None:
    assert 0.997 * float(figure) <= found.epsilon <= float(figure) + digits(figure)


def test_trainings_by_rdp():
    for event, figure in [
        (TRAINING, "1.590"),
        (SelfComposition(TRAINING, 60), "17.19"),
        (LONG_TRAINING, "2.106"),
        (SelfComposition(LONG_TRAINING, 54), "22.345"),
        (SelfComposition(LONG_TRAINING, 60), "23.954"),
        (SelfComposition(TRAINING, 10), "5.80"),
    ]:
        assert_is(rdp_price(event, DELTA), figure)


def test_by_loss_distributions():
    for event, delta, figure in [
        (TRAINING, DELTA, "1.461"),
        (LONG_TRAINING, DELTA, "1.939"),
        (SelfComposition(PoissonGaussian(512 / 60_000, 1.23), 4698), DELTA, "2.366"),
        (SelfComposition(PoissonGaussian(2048 / 60_000, 2.15), 1157), DELTA, "2.373"),
        (SelfComposition(PoissonGaussian(1024 / 50_000, 1.54), 1435), DELTA, "2.361"),
        (SelfComposition(PoissonGaussian(0.01, 6.0), 40_000), DELTA, "1.283"),
        (SelfComposition(Geometric(0.02), 60), DELTA, "0.541"),
    ]:
        found = price(event, delta)
        assert found.accountant == "PLD"
        assert_bounds_as_well_as(found, figure)


def test_shuffled_batches_are_no_poisson_sample():
    poisson = price(SelfComposition(PoissonGaussian(1e-4, 0.5), 10_000), 1e-6)
    assert poisson.epsilon == pytest.approx(1.953, abs=0.001)
    assert_is(price(Gaussian(0.5), 1e-6), "10.997")


def test_candidates_that_share_batches_cost_more_than_ten_apart():
    shared = SelfComposition(PoissonGaussian(100 / 60_000, 2 / math.sqrt(10)), 180_000)
    assert_is(price(shared, DELTA), "12.65")
    assert_is(rdp_price(shared, DELTA), "13.72")


def test_a_cap_on_the_batch():
    for cap, figure in [(150, "1.6846"), (120, "4.32"), (100, "6.20")]:
        found = price(TruncatedPoissonGaussian(1000, 0.1, cap, 1.0), DELTA)
        assert found.accountant == "PLD"
        assert found.epsilon == pytest.approx(float(figure), abs=2 * digits(figure))


def test_no_cap_on_the_batch():
    assert price(PoissonGaussian(0.1, 1.0), DELTA).epsilon == pytest.approx(1.6845, abs=1e-4)


def test_the_rdp_of_a_noisy_count():
    assert_is(float(rdp_curve(Geometric(0.1), np.array([2.0]))[0]), "0.009959")


def test_a_discrete_gaussian_is_never_priced_as_a_gaussian():
    """Exactly, by summing over the integers: 4.430; the continuous one costs 4.377."""
    k = np.arange(-200, 201)
    weights = np.exp(-(k**2) / 2)
    here, there = weights / weights.sum(), np.roll(weights, 1) / weights.sum()

    def delta(epsilon: float) -> float:
        return float(np.maximum(there - math.exp(epsilon) * here, 0).sum())

    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    assert_is(high, "4.430")
    assert_bounds_as_well_as(price(Gaussian(1.0), DELTA), "4.378")
    assert price(DiscreteGaussian(1.0, 1.0), DELTA).epsilon >= 4.430


def test_repeat_and_select_by_rdp():
    for mean, shape, figure in [
        (10, 0, "2.729"),
        (60, 0, "3.146"),
        (400, 0, "3.507"),
        (10, 1, "3.263"),
        (60, 1, "3.941"),
        (400, 1, "4.532"),
    ]:
        event = RepeatAndSelect(TRAINING, RunCountDistribution(mean, shape))
        assert_is(rdp_price(event, DELTA), figure)
        assert price(event, DELTA).epsilon < rdp_price(event, DELTA).epsilon


def test_the_base_epsilon_that_fits_a_total_of_one():
    for law, pricer, figure in [
        (RunCountDistribution(10, 0), rdp_price, "0.501"),
        (RunCountDistribution(10, 1), rdp_price, "0.406"),
        (RunCountDistribution(10, 0), price, "0.651"),
        (RunCountDistribution(10, 1), price, "0.603"),
        (RunCountDistribution(10, "poisson"), price, "0.433"),
    ]:
        low, high = 0.5, 100.0
        for _ in range(40):
            middle = math.sqrt(low * high)
            fits = pricer(RepeatAndSelect(Gaussian(middle), law), DELTA).epsilon <= 1.0
            low, high = (low, middle) if fits else (middle, high)
        assert_is(price(Gaussian(high), DELTA), figure)


def test_the_base_epsilon_of_ten_composed_runs():
    sigma = calibrate_min(
        lambda s: SelfComposition(Gaussian(s), 10), Budget(1.0, DELTA), 0.1, 1000.0
    )
    assert price(Gaussian(sigma), DELTA).epsilon == pytest.approx(0.285, abs=0.001)
