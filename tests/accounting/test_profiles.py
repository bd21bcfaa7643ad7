from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from pasearch.accounting.profiles import (
    PrivacyProfile,
    approximate_dp_profile,
    dominating_pld,
    epsilon_grid,
    lower_hull_indices,
)


def gaussian(mu: float):
    def delta(epsilon):
        epsilon = np.asarray(epsilon, dtype=float)
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    return delta


@pytest.fixture
def profile() -> PrivacyProfile:
    return PrivacyProfile.sampled(gaussian(0.8), epsilon_grid(8.0, 0.01))


def test_a_grid_is_of_multiples_from_zero_to_the_top():
    points = epsilon_grid(5.0, 0.01)
    assert points[0] == 0.0
    assert points[-1] >= 5.0
    np.testing.assert_allclose(points / 0.01, np.round(points / 0.01), atol=1e-9)
    assert (np.diff(points) > 0).all()
    assert len(points) < 400


def test_between_its_points_a_profile_is_above_the_curve(profile: PrivacyProfile):
    epsilons = np.linspace(-6, 12, 4001)
    assert (profile.at(epsilons) >= gaussian(0.8)(epsilons) - 1e-12).all()
    middle = np.linspace(-2, 3, 501)
    np.testing.assert_allclose(profile.at(middle), gaussian(0.8)(middle), atol=2e-4)


def test_beyond_its_top_a_profile_stays_and_never_vanishes(profile: PrivacyProfile):
    assert profile.at(100.0) == profile.at(profile.max_epsilon) > 0


def test_the_neighbour_s_probability_is_the_gaussian_trade_off(profile: PrivacyProfile):
    """Dong, Roth and Su 2022: the most a neighbour can give is Phi(Phi^-1(u) + mu)."""
    u = np.geomspace(1e-9, 1.0, 400)
    best = norm.cdf(norm.ppf(u) + 0.8)
    found = profile.neighbour_probability(u)
    assert (found >= best - 1e-12).all()
    typical = u > 1e-5
    np.testing.assert_allclose(found[typical], best[typical], rtol=5e-3)


def test_a_curve_that_is_not_finite_is_a_failure():
    with pytest.raises(FloatingPointError, match="not finite"):
        PrivacyProfile.sampled(lambda e: np.full(len(e), math.nan), epsilon_grid(1.0, 0.1))


@pytest.mark.property
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 10**6))
def test_a_hull_is_convex_and_below_its_points(values: list[float], seed: int):
    x = np.cumsum(np.random.default_rng(seed).random(len(values)) + 1e-3)
    y = np.array(values)
    kept = lower_hull_indices(x, y)
    assert kept[0] == 0
    assert kept[-1] == len(x) - 1
    assert (np.interp(x, x[kept], y[kept]) <= y + 1e-9).all()
    slopes = np.diff(y[kept]) / np.diff(x[kept])
    assert (np.diff(slopes) >= -1e-9).all()


@pytest.mark.oracle
def test_a_bounding_loss_distribution_has_at_least_the_profile():
    for mu in [0.3, 1.5]:
        losses = dominating_pld(gaussian(mu), 10 * mu, 0.005)
        for epsilon in np.linspace(0, 4 * mu, 41):
            exact = float(gaussian(mu)(epsilon))
            assert losses.get_delta_for_epsilon(float(epsilon)) >= exact * (1 - 1e-9) - 1e-15
            assert losses.get_delta_for_epsilon(float(epsilon)) <= exact * 1.05 + 1e-6


@pytest.mark.oracle
def test_bounding_loss_distributions_compose_to_a_bound():
    composed = dominating_pld(gaussian(0.4), 6.0, 0.002).self_compose(9)
    for epsilon in (0.5, 1.5, 3.0):
        exact = float(gaussian(1.2)(epsilon))
        assert exact <= composed.get_delta_for_epsilon(epsilon) <= 1.1 * exact


@pytest.mark.oracle
def test_a_leaky_response_is_its_four_outcomes():
    for delta in [1e-9, 0.01, 0.5]:
        for epsilon in [0.01, 1.0, 30.0]:
            odds = np.array([math.exp(epsilon), 1.0]) / (1 + math.exp(epsilon))
            here = np.array([delta, 0, *(1 - delta) * odds])
            there = here[[1, 0, 3, 2]]
            points = np.linspace(0, 1.5 * epsilon, 40)
            exact = [np.maximum(here - math.exp(e) * there, 0).sum() for e in points]
            np.testing.assert_allclose(
                approximate_dp_profile(epsilon, delta)(points), exact, rtol=1e-9, atol=1e-15
            )
            assert approximate_dp_profile(epsilon, delta)(points)[-1] == delta
