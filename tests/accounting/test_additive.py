"""The price of a Poisson-sampled sum with noise of any density: exact, both ways, never too low."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from shortcuts import log_density

from pasearch.accounting import additive
from pasearch.accounting.additive import (
    MAX_ORDER,
    ORDERS,
    Shifts,
    additive_rdp,
    check_density,
)
from pasearch.accounting.calibration import compute_epsilon
from pasearch.accounting.densities import (
    DENSITIES,
    Cauchy,
    Density,
    GaussianNoise,
    GeneralisedNormal,
    HyperbolicSecant,
    LaplaceNoise,
    Logistic,
    StudentT,
    Tabulated,
    VarianceGamma,
    make_kronrod_rule,
)
from pasearch.accounting.events import PoissonGaussian
from pasearch.accounting.renyi import rdp_curve
from pasearch.errors import UsageError

FEW = ORDERS[:63]
CHORD = 4e-4
"""How far above log I_k a chord may lie, relatively: no further than a shift by as much more."""
ONE = Shifts(values=(1.0,), counts=(1,))
EACH: list[Density] = [
    GaussianNoise(scale=1.3),
    StudentT(freedom=3.0),
    StudentT(freedom=9.0, scale=0.8),
    Cauchy(),
    LaplaceNoise(),
    HyperbolicSecant(),
    Logistic(scale=0.7),
    GeneralisedNormal(power=1.5),
    GeneralisedNormal(power=3.0, scale=6.0),
    VarianceGamma(),
    Tabulated(knots=(0.0, 0.5, 1.5, 4.0), log_values=(0.0, -0.1, -1.0, -5.0)),
]


def one(shift: float) -> Shifts:
    return Shifts(values=(shift,), counts=(1,))


def grid(density: Density, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights over the line, fine around the kinks of the density and of its shift."""
    far = np.geomspace(1e-6, 2e7 if not density.is_light_tailed else 40.0, 300)
    fine = np.arange(0, 40, 0.1)
    ends = density.breaks * density.scale
    around = [c + s * e for c in (0.0, shift) for s in (-1, 1) for e in (far, fine, ends)]
    x, weights, _ = make_kronrod_rule(np.unique(np.concatenate(around)))
    return x.ravel(), weights.ravel()


def divergences(density: Density, shift: float, q: float, order: float) -> tuple[float, float]:
    """Both directions, integrated over the line as they are defined; one coordinate.

    E[L^a] = 1 + E[L^a - 1 - a (L - 1)], because E[L] = 1: else a small excess would be lost.
    """
    x, weights = grid(density, shift)
    absent = log_density(density, x)
    shifted = log_density(density, x - shift)
    present = shifted if q == 1 else np.logaddexp(math.log1p(-q) + absent, math.log(q) + shifted)

    def divergence(p: np.ndarray, r: np.ndarray) -> float:
        power = np.exp(order * p + (1 - order) * r)
        excess = power - np.exp(r) - order * (np.exp(p) - np.exp(r))
        return math.log1p(float(weights @ excess)) / (order - 1)

    return divergence(present, absent), divergence(absent, present)


class TestOneCoordinate:
    @pytest.mark.oracle
    def test_a_gaussian_has_its_closed_form(self):
        for shift in [1e-6, 1e-3, 0.21, 1.0, 3.7]:
            found = additive_rdp(GaussianNoise(scale=0.9), one(shift), 1.0)
            exact = ORDERS * (shift / 0.9) ** 2 / 2
            np.testing.assert_allclose(found, exact, rtol=1e-6)
            assert (found >= exact).all()

    @pytest.mark.oracle
    def test_integrals_of_a_gaussian_are_its_closed_form(self):
        """What is integrated for laws without a formula, where one is known."""
        steps = np.arange(-200, 60, 13)
        found = additive._compute_integral_rows(GaussianNoise(scale=1.0), steps, 64)
        orders = np.arange(2.0, 65.0)
        shifts = 2.0 ** (steps / additive.SHIFTS_PER_OCTAVE)
        exact = np.multiply.outer(shifts**2, orders * (orders - 1) / 2)
        known = np.isfinite(found)
        assert known.mean() > 0.9
        np.testing.assert_allclose(found[known], exact[known], rtol=1e-7, atol=1e-10)
        assert (found[known] >= exact[known] * (1 - 1e-12)).all()

    @pytest.mark.oracle
    def test_laplace_has_its_closed_form(self):
        """A e^((a-1) t) + (a-1) e^(-a t), over 2 a - 1."""
        for shift in [1e-3, 0.21, 1.0, 3.7, 20.0]:
            found = additive_rdp(LaplaceNoise(scale=2.0), one(2 * shift), 1.0)
            a, t = ORDERS, shift
            logs = np.logaddexp(np.log(a) + (a - 1) * t, np.log(a - 1) - a * t) - np.log(2 * a - 1)
            np.testing.assert_allclose(found, logs / (a - 1), rtol=CHORD)
            assert (found >= logs / (a - 1) * (1 - 1e-12)).all()

    @pytest.mark.oracle
    def test_cauchy_has_its_closed_form(self):
        """I_2 = 1 + t^2 / 2 and I_3 = 1 + 3 t^2 / 2 + 3 t^4 / 8, Legendre's polynomials."""
        for t in (0.01, 1.0, 5.0, 300.0):
            found = additive_rdp(Cauchy(scale=0.5), one(t / 2), 1.0, np.array([2.0, 3.0]))
            exact = [math.log1p(t**2 / 2), math.log1p(1.5 * t**2 + 0.375 * t**4) / 2]
            np.testing.assert_allclose(found, exact, rtol=CHORD)
            assert (found >= np.array(exact) * (1 - 1e-12)).all()

    @pytest.mark.oracle
    def test_a_sampled_gaussian_has_dp_accountings_price(self):
        for q, sigma in [(0.01, 2.5), (1e-3, 4.0), (0.4, 9.0)]:
            found = additive_rdp(GaussianNoise(scale=sigma), ONE, q)
            expected = rdp_curve(PoissonGaussian(q, sigma), ORDERS)
            known = np.isfinite(expected)
            assert known.sum() > 100
            # There 1e-12 is added for rounding, which is much where the price is nothing.
            np.testing.assert_allclose(found[known], expected[known], rtol=3e-6, atol=1.1e-12)

    @pytest.mark.oracle
    def test_it_is_the_divergence_of_adding_and_bounds_that_of_removing(self):
        for density in EACH:
            for q in [0.02, 0.5, 1.0]:
                for shift in [0.1, 2.3]:
                    for order in (2, 3, 7):
                        found = additive_rdp(density, one(shift), q, np.array([float(order)]))[0]
                        added, removed = divergences(density, shift, q, order)
                        more = CHORD if density.log_concave else 2 * CHORD
                        dearer, _ = divergences(density, shift * (1 + more), q, order)
                        assert added * (1 - 1e-9) <= found <= dearer
                        assert removed <= added * (1 + 1e-9)
                        # Both are the same where every record is in, and only there.
                        assert (removed == pytest.approx(added, rel=1e-7)) is (q == 1.0)

    @pytest.mark.oracle
    def test_between_whole_orders_it_is_above_the_divergence(self):
        for density in EACH:
            orders = np.array([1.05, 1.5, 2.4, 6.7])
            found = additive_rdp(density, one(0.8), 0.2, orders)
            exact = [divergences(density, 0.8, 0.2, a)[0] for a in orders]
            assert (found >= exact).all()
            assert found[3] <= exact[3] * 1.05

    @pytest.mark.oracle
    def test_without_symmetry_the_other_direction_can_cost_more(self):
        """Why the condition is there: one tail is exponential, the other normal."""
        x, weights, _ = make_kronrod_rule(np.arange(-12, 400, 0.05))
        x, weights = x.ravel(), weights.ravel()

        def logs(at: np.ndarray) -> np.ndarray:
            return np.where(at > 0, -at, -(at**2)) - math.log(1 + math.sqrt(math.pi) / 2)

        q, order, ratios = 0.9, 4, []
        for shift in (1.0, -1.0):
            absent = logs(x)
            present = np.logaddexp(math.log1p(-q) + absent, math.log(q) + logs(x - shift))
            added = logsumexp(order * present + (1 - order) * absent, b=weights)
            removed = logsumexp(order * absent + (1 - order) * present, b=weights)
            ratios.append(removed / added)
        assert max(ratios) > 1.0


class TestManyCoordinates:
    def test_of_equal_ones_are_their_product(self):
        """Independent coordinates: at q = 1 the divergences add up, for whatever density."""
        for density in (StudentT(), LaplaceNoise()):
            single = additive_rdp(density, one(0.3), 1.0)
            found = additive_rdp(density, Shifts(values=(0.3,), counts=(50,)), 1.0)
            np.testing.assert_allclose(found, 50 * single, rtol=1e-9)
            both = Shifts(values=(0.3, 0.1), counts=(2, 5))
            expected = 2 * single + 5 * additive_rdp(density, one(0.1), 1.0)
            np.testing.assert_allclose(additive_rdp(density, both, 1.0), expected, rtol=1e-9)

    def test_of_a_gaussian_cost_their_norm(self):
        rng = np.random.default_rng(1)
        vector = rng.standard_normal(30_000)
        vector /= np.linalg.norm(vector)
        shifts = Shifts.of(vector)
        assert 1 <= shifts.norm**2 < 1.005
        found = additive_rdp(GaussianNoise(scale=2.0), shifts, 0.05)
        expected = additive_rdp(GaussianNoise(scale=2.0 / shifts.norm), ONE, 0.05)
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_small_ones_cost_their_fisher_information(self):
        """A (a-1) / 2 q^2 J ||psi||^2 at most orders: why no law beats the Gaussian there."""
        shifts = Shifts(values=(1e-3,), counts=(1_000_000,))
        for density in EACH:
            same = density.unit.with_scale(math.sqrt(density.unit.fisher_information) * 6)
            found = additive_rdp(same, shifts, 0.02, ORDERS[:15])
            expected = additive_rdp(GaussianNoise(scale=6.0), ONE, 0.02, ORDERS[:15])
            np.testing.assert_allclose(found, expected, rtol=2e-3)

    def test_a_codebook_costs_at_least_each_of_its_vectors(self):
        rng = np.random.default_rng(2)
        vectors = rng.standard_normal((12, 40)) * rng.uniform(0.5, 1, (12, 1))
        each = [Shifts.of(v) for v in vectors]
        found = additive_rdp(StudentT(scale=4.0), each, 0.1, FEW)
        alone = np.array([additive_rdp(StudentT(scale=4.0), s, 0.1, FEW) for s in each])
        assert (found >= alone.max(axis=0) * (1 - 1e-12)).all()
        np.testing.assert_allclose(found, alone.max(axis=0), rtol=0.02)
        together = additive_rdp(StudentT(scale=4.0), Shifts.of(vectors), 0.1, FEW)
        assert (together >= alone.max(axis=0)).all()

    @pytest.mark.property
    @settings(max_examples=12)
    @given(
        st.sampled_from(EACH[:-1]),
        st.floats(1e-4, 3.0),
        st.floats(1.0, 1.3),
        st.floats(1e-3, 1.0),
    )
    def test_larger_shifts_cost_more(self, density: Density, shift: float, more: float, q: float):
        low = additive_rdp(density, one(shift), q, ORDERS[:15])
        high = additive_rdp(density, one(shift * more), q, ORDERS[:15])
        assert (high >= low * (1 - 1e-5)).all()

    def test_between_integrated_shifts_it_is_never_too_low(self):
        """Against integrals of its own, at shifts and densities that are off the grid."""
        rng = np.random.default_rng(4)
        for density in EACH:
            for shift in rng.uniform(0.01, 3, 2):
                added, _ = divergences(density, shift, 1.0, 5)
                found = additive_rdp(density, one(float(shift)), 1.0, np.array([5.0]))[0]
                assert added * (1 - 1e-9) <= found <= added * (1 + CHORD)

    @pytest.mark.oracle
    def test_where_a_curve_turns_within_a_cell_it_is_not_too_low(self):
        """log I_k by mpmath with 40 digits; a polynomial in log t was up to 7 % below."""
        for power, shift, order, exact in [
            (32.0, 7.664e-4, 45, 0.06315206978),
            (16.0, 0.00538, 17, 3.460367025),
            (8.0, 0.01159, 16, 0.4082463155),
        ]:
            density = GeneralisedNormal(power=power)
            found = additive_rdp(density, one(shift), 1.0, np.array([float(order)]))[0] * (
                order - 1
            )
            assert exact * (1 - 1e-8) <= found <= exact * 1.1

    @pytest.mark.oracle
    @pytest.mark.parametrize("rises", [False, True])
    def test_of_a_table_with_an_edge_it_is_not_too_low(self, rises: bool):
        """Piece by piece, as it is: an exponential on each."""
        knots, logs = (0.0, 1.0, 1.01, 1.02), (0.0, 0.0, -5.0, -6.0 if rises else -10.0)
        density = Tabulated(knots=knots, log_values=logs)
        assert density.log_concave is not rises

        def exact(shift: float, order: float) -> float:
            ends = np.array([*knots, *(-k for k in knots)])
            x, weights, _ = make_kronrod_rule(
                np.unique([*np.linspace(-3, 3, 6001), *ends, *(ends + shift)])
            )
            ratio = order * log_density(density, x - shift) - (order - 1) * log_density(density, x)
            return math.log(float((weights * np.exp(ratio)).sum()))

        for shift in np.geomspace(0.004, 0.03, 12).tolist():
            for order in (2.0, 3.0, 8.0):
                found = additive_rdp(density, one(shift), 1.0, np.array([order]))[0] * (order - 1)
                assert exact(shift, order) * (1 - 1e-6) <= found
                next_one = exact(shift * 2 ** (1 / additive.SHIFTS_PER_OCTAVE), order)
                assert found <= next_one * (1 + 1e-3) or np.isinf(found)
        assert np.isfinite(additive_rdp(density, one(0.004), 1.0, ORDERS[:3])).all()


class TestOrders:
    def test_above_the_highest_there_is_no_bound(self):
        found = additive_rdp(StudentT(), ONE, 0.1, np.array([256.0, 256.5, 1024.0]))
        assert np.isfinite(found[0])
        assert np.isinf(found[1:]).all()

    def test_an_integral_that_is_not_certain_has_no_bound(self):
        """A shift so large that the bulk of a light density's integral is out of reach."""
        for q in (0.1, 1.0):
            found = additive_rdp(GeneralisedNormal(power=2.0), one(40.0), q, ORDERS[:31])
            assert np.isfinite(found[:5]).all()
            assert np.isinf(found[-1])

    def test_beyond_the_last_panel_there_is_less_than_is_added(self):
        orders = np.array([2.0, 3.0, 9.0])
        for density in (each.unit for each in EACH):
            for shift, start in ((0.01, 2.0), (0.3, 5.0), (0.3, 30.0)):
                y, weights, _ = make_kronrod_rule(start * np.geomspace(1, 1e6, 3000))
                logs = density.unit_log_density(y - shift / 2)
                ratio = logs - density.unit_log_density(y + shift / 2)
                for k, bound in zip(
                    orders, density.unit_log_remainder(shift, orders, start), strict=True
                ):
                    # e^-r/2 of the middle's square root goes to its two factors.
                    falls = -np.expm1(-k * ratio) * -np.expm1(-(k - 1) * ratio)
                    rest = float((weights * np.exp(logs + (k - 1) * ratio) * falls).sum())
                    assert rest <= math.exp(bound) * (1 + 1e-6)

    def test_an_order_whose_bulk_is_beyond_the_panels_is_not_believed(self):
        """At k = 151 the integrand is level where the panels end: both rules agree, on half."""
        row = additive._compute_integral_row(GaussianNoise(), 2 * additive.SHIFTS_PER_OCTAVE, 256)
        k = np.arange(2, 257)
        assert (row >= k * (k - 1) / 2 * 16).all()
        assert np.isfinite(row[:100]).all()
        assert np.isinf(row[-50:]).all()

    def test_a_too_coarse_rule_is_found_out(self, monkeypatch):
        """Panels of 12 scales: the two rules differ, and the difference is added or refuses."""

        def coarse(density: Density, shift: float, orders: np.ndarray) -> np.ndarray:
            return np.array([0.0, shift / 2, 12.0, 24.0, 60.0])

        additive._compute_integral_row.cache_clear()
        monkeypatch.setattr(additive, "_choose_panel_edges", coarse)
        row = additive._compute_integral_row(GaussianNoise(), 0, 32)
        additive._compute_integral_row.cache_clear()
        k = np.arange(2, 33)
        assert (row >= k * (k - 1) / 2).all()
        assert np.isinf(row).any()

    def test_bad_ones_are_refused(self):
        for orders in [[1.0], [0.5], [math.nan], [math.inf], [], [[2.0]]]:
            with pytest.raises(UsageError, match="orders"):
                additive_rdp(GaussianNoise(), ONE, 0.5, np.array(orders))


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoModes(Density):
    """Peaks at 3 and -3 over a wide base: a shift of 6 puts one peak on the other."""

    name: ClassVar[str] = "two-modes"

    def unit_log_density(self, x: np.ndarray) -> np.ndarray:
        peaks = np.logaddexp(-8 * (x - 3) ** 2, -8 * (x + 3) ** 2) - math.log(
            math.sqrt(math.pi / 2)
        )
        return np.logaddexp(math.log(0.9) + peaks, math.log(0.1) - x / 30 - math.log(60))

    def unit_tail_probability(self, x: np.ndarray) -> np.ndarray:
        return 0.05 * np.exp(-x / 30) + np.where(x < 6, 0.45, 1e-20)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        raise NotImplementedError

    def draw_unit_magnitude(self, generator: np.random.Generator, size: int) -> np.ndarray:
        raise NotImplementedError

    def unit_max_slope(self, x: float) -> float:
        return 1 / 30 + (16 * 6 if x < 6 else 0)


class TestRefusals:
    def test_a_density_whose_divergence_falls_is_refused(self):
        """It claims one mode, and the numbers tell; up to a shift of 1 it has grown."""
        check_density(TwoModes(), 1.0, np.array([2.0]))
        for call in (
            lambda: check_density(TwoModes(), 6.0, np.array([2.0])),
            lambda: additive_rdp(TwoModes(), one(6.0), 0.1, np.array([2.0])),
        ):
            with pytest.raises(UsageError, match=r"divergence decreases.*one mode"):
                call()

    def test_what_is_no_density_is_refused(self):
        for density in [None, "gaussian", lambda x: -(x**2)]:
            with pytest.raises(UsageError, match="density"):
                additive_rdp(density, ONE, 0.5)

    def test_bad_probabilities_are_refused(self):
        for q in [0.0, 1.1, math.nan, "1"]:
            with pytest.raises(UsageError, match="sampling_probability"):
                additive_rdp(GaussianNoise(), ONE, q)

    def test_bad_reaches_are_refused(self):
        for reach in [0.0, math.nan, math.inf]:
            with pytest.raises(UsageError, match="reach"):
                check_density(GaussianNoise(), reach)

    def test_every_density_of_ours_passes(self):
        for density in EACH:
            check_density(density, 5.0, ORDERS[:31])

    def test_every_kind_is_tried_here(self):
        assert {type(density) for density in EACH} == set(DENSITIES.values())


class TestShifts:
    @pytest.mark.property
    @settings(max_examples=60)
    @given(
        st.lists(
            st.lists(st.floats(-1e3, 1e3), min_size=5, max_size=5), min_size=1, max_size=4
        ).filter(lambda rows: np.any(rows))
    )
    def test_are_at_least_every_vector_s_sorted(self, rows: list[list[float]]):
        shifts = Shifts.of(np.array(rows))
        spread = np.repeat(shifts.values, shifts.counts)
        assert len(spread) <= 5
        spread = np.append(spread, np.zeros(5 - len(spread)))
        for row in rows:
            assert (spread >= np.sort(np.abs(row))[::-1]).all()

    def test_zeros_cost_nothing_and_signs_do_not_matter(self):
        a = Shifts.of(np.array([0.5, 0.0, -0.25, 0.0]))
        assert a == Shifts.of(np.array([0.25, -0.5]))
        assert a.counts == (1, 1)
        assert a.reach == a.values[0] == pytest.approx(0.5, rel=4e-3)
        assert hash(a) == hash(Shifts.of(np.array([0.25, -0.5])))

    def test_are_read_from_what_they_wrote(self):
        shifts = Shifts.of(np.random.default_rng(0).standard_normal(1000))
        assert Shifts.from_json(shifts.to_json()) == shifts

    def test_rounding_costs_at_most_the_ratio(self):
        vector = np.random.default_rng(0).standard_normal(100_000)
        norm = np.linalg.norm(vector)
        assert norm < Shifts.of(vector).norm < norm * (1 + 2.0**-8)
        assert Shifts.of(vector, ratio=1.5).norm > 1.1 * norm

    def test_bad_numbers_are_refused(self):
        for changes in [
            {"values": ()},
            {"values": (1.0,)},
            {"values": (1.0, 2.0)},
            {"values": (1.0, 1.0)},
            {"values": (1.0, 0.0)},
            {"values": (math.nan, 0.5)},
            {"counts": (1, 0)},
            {"counts": (1, 1.0)},
            {"counts": (1, True)},
            {"counts": 3},
        ]:
            good = {"values": (1.0, 0.5), "counts": (1, 2)}
            assert Shifts(**good).norm == pytest.approx(math.sqrt(1.5))
            with pytest.raises(UsageError):
                Shifts(**{**good, **changes})
            with pytest.raises(UsageError):
                Shifts.from_json({**good, **changes, "more": 1})

    def test_bad_vectors_are_refused(self):
        for vector in [[0.0], [math.nan], [math.inf, 1], np.ones((2, 2, 2))]:
            with pytest.raises(UsageError, match="vectors"):
                Shifts.of(np.array(vector))

    def test_bad_ratios_are_refused(self):
        for ratio in [1.0, 0.5, math.nan]:
            with pytest.raises(UsageError, match="ratio"):
                Shifts.of(np.ones(3), ratio=ratio)


def test_a_failure_has_no_price_instead_of_none(monkeypatch):
    """NaN must not become epsilon 0."""
    monkeypatch.setattr(additive, "_compute_log_moments", lambda logs, q: np.full(64, np.nan))
    assert np.isinf(additive_rdp(GaussianNoise(), ONE, 0.5, FEW)).all()
    assert math.isinf(compute_epsilon(GaussianNoise(), ONE, 0.5, 1, 1e-5, FEW))


def test_the_highest_order_is_in_the_grid():
    assert ORDERS[0] == 2
    assert ORDERS[-1] == MAX_ORDER
