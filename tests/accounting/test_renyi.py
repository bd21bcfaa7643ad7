from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.accounting.events import (
    ApproximateDP,
    Composition,
    DiscreteGaussian,
    FilteredReleases,
    Gaussian,
    Geometric,
    NoisyRecords,
    PoissonGaussian,
    PureDP,
    RepeatAndSelect,
    SelfComposition,
    TruncatedPoissonGaussian,
    WorstCase,
)
from pasearch.accounting.renyi import (
    ORDERS,
    UnsupportedEvent,
    additive_delta,
    delta_from_rdp,
    epsilon_from_rdp,
    filter_rdp_limit,
    make_monotone,
    rdp_curve,
    rdp_delta,
    rdp_epsilon,
)
from pasearch.accounting.selection import RunCountDistribution


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    seen = (p > 1e-290) & (q > 1e-290)
    logs = order * np.log(p[seen]) + (1 - order) * np.log(q[seen])
    return float(np.logaddexp.reduce(logs) / (order - 1))


@pytest.mark.oracle
def test_the_curve_of_a_noisy_count_is_the_divergence_itself():
    for epsilon in [1e-4, 0.02, 0.1, 1.0, 5.0]:
        for kind in [Geometric, PureDP]:
            k = np.arange(-3000, 3001)
            if epsilon < 0.01:
                k = np.arange(-400_000, 400_001)
            here = np.exp(-epsilon * np.abs(k)) * math.tanh(epsilon / 2)
            orders = np.array([1.1, 2.0, 7.5, 64.0])
            found = rdp_curve(kind(epsilon), orders)
            for order, value in zip(orders, found, strict=True):
                exact = divergence(here[:-1], here[1:], float(order))
                assert value == pytest.approx(exact, rel=1e-4)
            assert (found <= epsilon).all()


@pytest.mark.oracle
def test_the_curve_of_a_sampled_gaussian_bounds_the_divergence():
    for q, sigma in [(0.01, 1.0), (0.3, 0.8), (1.0, 2.0), (0.5, 0.2)]:
        x, width = np.linspace(-30 * sigma, 64 + 30 * sigma, 400_001, retstep=True)
        logs = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        moved = -(((x - 1) / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
        mixed = np.logaddexp(math.log1p(-q) if q < 1 else -np.inf, moved - logs + math.log(q))
        for order in (1.5, 2.0, 5.0, 16.0):
            moments = [
                np.logaddexp.reduce(logs + power * mixed) + math.log(width)
                for power in (order, 1 - order)  # the record is there or null, either way round
            ]
            exact = max(moments) / (order - 1)
            found = float(rdp_curve(PoissonGaussian(q, sigma), np.array([order]))[0])
            assert found >= exact - 1e-6
            assert not math.isfinite(found) or found <= exact * (1.1 if order % 1 else 1.001) + 1e-6


class TestNoisyRecords:
    @pytest.mark.quick
    @pytest.mark.oracle
    def test_the_pin(self):
        found = rdp_curve(NoisyRecords(0.01, 1.0), np.array([2.0]))[0]
        assert found == pytest.approx(0.017037, abs=5.00001e-7)

    @pytest.mark.oracle
    def test_the_curve_is_the_divergence_itself(self):
        """The outcome is "not drawn", the same in both worlds, or a Gaussian."""
        for q, noise in [(0.01, 1.0), (0.3, 0.8), (1.0, 2.0), (1e-4, 5.0)]:
            x, width = np.linspace(-40 * noise, 64 + 40 * noise, 400_001, retstep=True)
            for order in (1.1, 2.0, 7.5, 33.0):
                powers = order * norm_logs(x - 1, noise) + (1 - order) * norm_logs(x, noise)
                drawn = np.logaddexp.reduce(powers) + math.log(width)
                missed = math.log1p(-q) if q < 1 else -math.inf
                exact = np.logaddexp(missed, math.log(q) + drawn) / (order - 1)
                found = float(rdp_curve(NoisyRecords(q, noise), np.array([order]))[0])
                assert found == pytest.approx(exact, rel=1e-6, abs=1e-12)

    def test_every_record_drawn_is_a_gaussian(self):
        np.testing.assert_allclose(
            rdp_curve(NoisyRecords(1.0, 3.0)), rdp_curve(Gaussian(3.0)), rtol=1e-12
        )

    def test_no_order_overflows_or_loses_a_small_bound(self):
        for noise in [1e-200, 1e-3, 1e8]:
            for q in [1e-12, 0.5, 1.0]:
                found = rdp_curve(NoisyRecords(q, noise))
                assert (found > 0).all()
                assert np.isfinite(found).all() == (noise > 1e-200)
                if noise > 1:  # all of it is first order in q
                    np.testing.assert_allclose(found, q * ORDERS / (2 * noise**2), rtol=1e-6)

    def test_amplification_is_less_than_of_secret_coins(self):
        assert (
            rdp_curve(NoisyRecords(0.01, 1.0))
            >= make_monotone(rdp_curve(PoissonGaussian(0.01, 1.0)))
        ).all()


class TestFiltered:
    def test_has_its_limit_s_curve_with_a_grain_for_rounding(self):
        limit = Composition((Gaussian(3.0), Geometric(0.2)))
        np.testing.assert_allclose(rdp_curve(FilteredReleases(limit)), rdp_curve(limit), rtol=2e-8)
        assert (rdp_curve(FilteredReleases(limit)) > rdp_curve(limit)).all()

    def test_k_filters_are_k_times_one(self):
        one = FilteredReleases(SelfComposition(Gaussian(3.0), 7))
        np.testing.assert_allclose(
            rdp_curve(SelfComposition(one, 5)), 5 * rdp_curve(one), rtol=1e-12
        )

    def test_between_orders_of_the_grid_the_next_one_holds_and_above_it_none(self):
        """A filter looks at the grid only: the limit's own value between is no bound."""
        limit = Gaussian(2.0)
        orders = np.array([1.01, 2.0, 2.01, 70.0, 1024.0, 1025.0])
        found = rdp_curve(FilteredReleases(limit), orders)
        expected = rdp_curve(limit, np.array([1.1, 2.0, 2.1, 128.0, 1024.0, 9999.0]))
        np.testing.assert_allclose(found[:-1], expected[:-1], rtol=2e-8)
        assert np.isinf(found[-1])

    def test_orders_without_a_bound_take_the_next_that_has_one(self):
        limit = PoissonGaussian(0.1, 1.0 + 1e-9)
        assert np.isinf(rdp_curve(limit)).any()
        assert np.isfinite(filter_rdp_limit(limit)).all()
        assert (np.diff(filter_rdp_limit(limit)) >= 0).all()


def norm_logs(x: np.ndarray, scale: float) -> np.ndarray:
    return -((x / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))


def test_gaussians_have_their_closed_form():
    np.testing.assert_allclose(rdp_curve(Gaussian(3.0)), ORDERS / 18, rtol=1e-12)
    np.testing.assert_allclose(rdp_curve(DiscreteGaussian(6.0, 2.0)), ORDERS / 18, rtol=1e-12)


def test_the_worst_is_the_maximum_order_by_order():
    a, b = Gaussian(3.0), Geometric(0.4)
    np.testing.assert_array_equal(
        rdp_curve(WorstCase((a, b))), np.maximum(rdp_curve(a), rdp_curve(b))
    )


@pytest.mark.oracle
def test_a_selection_is_the_theorem_s_formula():
    for shape in [0.0, 1.0, 0.5]:
        law = RunCountDistribution(10, shape)
        base = rdp_curve(Gaussian(5.0))
        gamma_log = law.log_inverse_gamma
        for index in (20, 60, 110):
            constant = min(
                (1 - 1 / b) * e + gamma_log / b for b, e in zip(ORDERS, base, strict=True)
            )
            bound = base[index] + (1 + shape) * constant + math.log(10) / (ORDERS[index] - 1)
            assert rdp_curve(RepeatAndSelect(Gaussian(5.0), law))[index] <= bound + 1e-12


def test_an_event_without_a_curve_is_named():
    with pytest.raises(UnsupportedEvent, match="at most 150"):
        rdp_curve(TruncatedPoissonGaussian(1000, 0.1, 150, 1.0))


def test_orders_that_do_not_converge_have_no_bound_and_say_nothing(caplog):
    with caplog.at_level(logging.WARNING):
        values = rdp_curve(PoissonGaussian(0.1, 1.0 + 1e-9))
    assert not caplog.records
    assert np.isinf(values).any()
    assert math.isfinite(epsilon_from_rdp(values, 1e-5))


class TestLeaks:
    def test_add_up_and_the_worst_is_the_maximum(self):
        one = ApproximateDP(1.0, 1e-6)
        assert additive_delta(one) == 1e-6
        assert additive_delta(SelfComposition(one, 5)) == pytest.approx(5e-6, rel=1e-14)
        assert (
            additive_delta(Composition((one, Gaussian(1.0), ApproximateDP(9.0, 1e-3)))) == 1.001e-3
        )
        assert (
            additive_delta(WorstCase((SelfComposition(one, 3), ApproximateDP(2.0, 2e-6)))) == 3e-6
        )
        assert additive_delta(RepeatAndSelect(one, RunCountDistribution(10, 0))) == pytest.approx(
            1e-5
        )
        assert additive_delta(SelfComposition(ApproximateDP(1.0, 0.3), 9)) == 1.0
        assert additive_delta(RepeatAndSelect(Gaussian(1.0), RunCountDistribution(10, 0))) == 0.0

    def test_are_taken_from_delta_and_the_rest_is_pure(self):
        event = Composition((SelfComposition(ApproximateDP(0.2, 1e-7), 30), Gaussian(3.0)))
        rest = Composition((SelfComposition(PureDP(0.2), 30), Gaussian(3.0)))
        found = rdp_epsilon(event, 1e-5)
        assert found == pytest.approx(epsilon_from_rdp(rdp_curve(rest), 7e-6), rel=1e-12)
        assert found > epsilon_from_rdp(rdp_curve(rest), 1e-5)
        assert rdp_delta(event, found) == pytest.approx(1e-5, rel=1e-6)

    def test_of_epsilon_0_have_the_curve_0(self):
        items = SelfComposition(Composition((Gaussian(9.0), ApproximateDP(0.0, 1e-7))), 20)
        found = rdp_epsilon(items, 1e-5)
        rest = epsilon_from_rdp(rdp_curve(SelfComposition(Gaussian(9.0), 20)), 8e-6)
        assert found == pytest.approx(rest, rel=1e-12)
        assert rdp_epsilon(ApproximateDP(0.0, 1e-7), 1e-5) == 0.0

    def test_no_epsilon_pays_for_them(self):
        assert rdp_epsilon(ApproximateDP(0.2, 1e-5), 1e-5) == math.inf
        assert rdp_epsilon(ApproximateDP(0.2, 1e-5), 9e-6) == math.inf
        assert math.isfinite(rdp_epsilon(ApproximateDP(0.2, 1e-5), 1.1e-5))
        assert rdp_delta(ApproximateDP(0.2, 1e-5), 1e6) >= 1e-5

    def test_no_curve_holds_for_them_and_none_is_given(self):
        for event in [
            ApproximateDP(0.2, 1e-9),
            WorstCase((Gaussian(2.0), ApproximateDP(0.2, 1e-9))),
        ]:
            for whole in (
                event,
                Composition((Gaussian(1.0), event)),
                RepeatAndSelect(event, RunCountDistribution(5, 0)),
            ):
                with pytest.raises(UnsupportedEvent, match="additive delta"):
                    rdp_curve(whole)

    def test_a_selection_from_them_has_no_bound_here(self):
        with pytest.raises(UnsupportedEvent, match="additive delta"):
            rdp_epsilon(RepeatAndSelect(ApproximateDP(0.2, 1e-9), RunCountDistribution(5, 0)), 1e-5)


@pytest.mark.property
@given(st.floats(0.1, 30), st.floats(1e-12, 0.1))
def test_conversion_there_and_back(sigma: float, delta: float):
    values = rdp_curve(Gaussian(sigma))
    epsilon = epsilon_from_rdp(values, delta)
    assert delta_from_rdp(values, epsilon) <= delta * (1 + 1e-9)


def test_a_tiny_divergence_costs_no_epsilon():
    assert epsilon_from_rdp(rdp_curve(Gaussian(1e7)), 1e-5) == 0.0


@pytest.mark.unit
def test_an_order_that_is_no_number_bounds_nothing():
    curve = np.full(len(ORDERS), math.nan)
    assert epsilon_from_rdp(curve, 1e-5) == math.inf
    curve[20] = 0.5
    assert epsilon_from_rdp(curve, 1e-5) == epsilon_from_rdp(
        np.where(np.isnan(curve), math.inf, curve), 1e-5
    )
