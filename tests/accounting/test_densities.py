"""Densities: normalised, symmetric, one mode, their moments, laws and files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from shortcuts import log_density

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
    density_from_json,
    make_kronrod_rule,
    tabulate_density,
)
from pasearch.errors import UsageError


def of_normal(x: np.ndarray) -> np.ndarray:
    return -(x**2) / 2


ALL: list[Density] = [
    GaussianNoise(scale=0.7),
    StudentT(scale=2.0),
    StudentT(freedom=0.5),
    StudentT(freedom=1e4),
    Cauchy(scale=3.0),
    LaplaceNoise(scale=0.1),
    HyperbolicSecant(scale=5.0),
    Logistic(scale=0.5),
    GeneralisedNormal(power=1.0),
    GeneralisedNormal(power=1.5, scale=2.0),
    GeneralisedNormal(power=32.0),
    VarianceGamma(shape=1.0),
    VarianceGamma(scale=0.3),
    VarianceGamma(shape=50.0),
    tabulate_density(of_normal, reach=6.0, scale=1.5),
    Tabulated(knots=(0.0, 1.0, 2.0), log_values=(0.0, 0.0, -1.0)),
]


def names(density: Density) -> str:
    rest = [getattr(density, each, None) for each in ("freedom", "power", "shape")]
    return density.name + "".join(f" {each:g}" for each in rest if each is not None)


def panels(density: Density, far: float) -> np.ndarray:
    """Panels on x >= 0 of the unit density, out to where `far` is all that is left above."""
    end = 1.0
    while density.unit_tail_probability(np.array([end]))[0] > far:
        end *= 1.5
    fine = np.concatenate([[0.0], np.geomspace(1e-9, 1, 200), np.arange(1, min(end, 60), 0.05)])
    far_out = np.geomspace(60, max(end, 61), 200)
    return np.unique(np.concatenate([fine[fine <= end], far_out, density.breaks]))


def integral(density: Density, power: int = 0) -> float:
    x, weights, _ = make_kronrod_rule(panels(density, 1e-15))
    return 2 * float((weights * x**power * np.exp(log_density(density.unit, x))).sum())


@pytest.mark.contract
def test_every_kind_is_tried_here():
    assert {type(density) for density in ALL} == set(DENSITIES.values())


@pytest.mark.contract
class TestEveryDensity:
    def test_is_one_in_all(self):
        for density in ALL:
            # What is left above the last panel of the heaviest is about 1e-8.
            assert integral(density) == pytest.approx(1.0, abs=3e-8)

    def test_is_symmetric_and_never_rises(self):
        for density in ALL:
            x = np.concatenate([[0.0], np.geomspace(1e-12, 1e4, 5000)]) * density.scale
            logs = log_density(density, x)
            assert np.isfinite(logs).all()
            np.testing.assert_array_equal(logs, log_density(density, -x))
            assert (np.diff(logs) <= 1e-12 * (1 + np.abs(logs[1:]))).all()

    def test_has_the_moments_that_it_says(self):
        for density in ALL:
            if math.isfinite(density.mean_absolute):
                expected = integral(density, 1) * density.scale
                assert density.mean_absolute == pytest.approx(expected, rel=1e-6)
            if math.isfinite(density.variance):
                expected = integral(density, 2) * density.scale**2
                rel = 2e-4 if isinstance(density, StudentT) else 1e-6
                assert density.variance == pytest.approx(expected, rel=rel)
                assert density.standard_deviation == math.sqrt(density.variance)

    def test_has_the_fisher_information_that_it_says(self):
        """By the slopes of its logarithm, over steps that are short and keep off the kinks."""
        for density in ALL:
            x, weights, _ = make_kronrod_rule(panels(density, 1e-15))
            unit, step = density.unit, 1e-6
            inner = x * (1 - step), x * (1 + step)
            slopes = (log_density(unit, inner[1]) - log_density(unit, inner[0])) / (2 * step * x)
            found = 2 * float((weights * np.exp(log_density(unit, x)) * slopes**2).sum())
            assert unit.fisher_information == pytest.approx(found, rel=1e-4)
            assert density.fisher_information == pytest.approx(found / density.scale**2, rel=1e-4)

    def test_no_density_of_this_variance_tells_less(self):
        """Cramer and Rao: the Fisher information is at least 1 / variance."""
        for density in ALL:
            assert density.fisher_information * density.variance >= 1 - 1e-9

    def test_its_distribution_function_is_its_integral(self):
        for density in ALL:
            x = np.array([0.0, 0.03, 0.5, 1.0, 3.0, 10.0]) * density.scale
            found = density.cdf(x)
            np.testing.assert_allclose(density.cdf(-x), 1 - found, atol=1e-12)
            for low, high, first, last in zip(x, x[1:], found, found[1:], strict=False):
                edges = np.concatenate(
                    [np.linspace(low, high, 200), density.breaks * density.scale]
                )
                edges = np.unique(edges[(edges >= low) & (edges <= high)])
                nodes, weights, _ = make_kronrod_rule(edges)
                mass = float((weights * np.exp(log_density(density, nodes))).sum())
                assert last - first == pytest.approx(mass, abs=1e-9)
            assert found[0] == pytest.approx(0.5, abs=1e-12)

    def test_its_score_is_bounded_where_it_says(self):
        for density in ALL:
            unit = density.unit
            for start in (0.01, 1.0, 4.0):
                x = np.geomspace(start, start * 1e3, 3000)
                slopes = np.abs(np.diff(log_density(unit, x)) / np.diff(x))
                assert slopes.max() <= unit.unit_max_slope(start) * (1 + 1e-6)

    @pytest.mark.statistical
    def test_is_drawn(self):
        """Kolmogorov and Smirnov, 50,000 draws; a scale 10 % larger is told apart in every case.

        The statistic's critical value at one in a thousand is .0087; by the scale it grows by .008
        for the heaviest of them, and by .02 to .03 for most.
        """
        for density in ALL:
            draws = density.sample(np.random.default_rng(5), 50_000)
            assert draws.dtype == np.float64
            assert np.isfinite(draws).all()
            assert stats.kstest(draws, density.cdf, method="asymp").pvalue > 1e-3
            assert stats.kstest(draws * 1.1, density.cdf, method="asymp").pvalue < 1e-3

    def test_is_drawn_in_a_shape_and_from_the_generator_alone(self):
        for density in ALL:
            one = density.sample(np.random.default_rng(3), (4, 5))
            assert one.shape == (4, 5)
            np.testing.assert_array_equal(one, density.sample(np.random.default_rng(3), (4, 5)))

    def test_scales(self):
        for density in ALL:
            twice = density.with_scale(2 * density.scale)
            x = np.linspace(-3, 3, 31)
            expected = log_density(density, x / 2) - math.log(2)
            np.testing.assert_allclose(log_density(twice, x), expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(twice.cdf(x), density.cdf(x / 2), atol=1e-12)
            assert twice.unit == density.unit

    def test_is_read_from_what_it_wrote(self):
        for density in ALL:
            assert density_from_json(density.to_json()) == density
            assert hash(density_from_json(density.to_json())) == hash(density)


@pytest.mark.oracle
def test_densities_are_scipys():
    for density, other in [
        (GaussianNoise(scale=0.7), stats.norm(scale=0.7)),
        (StudentT(scale=2.0), stats.t(9, scale=2.0)),
        (Cauchy(scale=3.0), stats.cauchy(scale=3.0)),
        (LaplaceNoise(scale=0.1), stats.laplace(scale=0.1)),
        (HyperbolicSecant(scale=math.pi / 2), stats.hypsecant()),
        (Logistic(scale=0.5), stats.logistic(scale=0.5)),
        (GeneralisedNormal(power=1.5, scale=2.0), stats.gennorm(1.5, scale=2.0)),
        (VarianceGamma(shape=1.0), stats.laplace()),
    ]:
        x = np.linspace(-8, 8, 101) * density.scale
        np.testing.assert_allclose(log_density(density, x), other.logpdf(x), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(density.cdf(x), other.cdf(x), atol=1e-10)
        if math.isfinite(density.variance):
            assert density.variance == pytest.approx(other.var(), rel=1e-9)


@pytest.mark.quick
@pytest.mark.unit
def test_pins_of_the_design():
    """At equal Fisher information t(9) has 7.1 % more variance, and .797 for .798 of E|z|."""
    t = StudentT(freedom=9.0)
    t = t.with_scale(math.sqrt(t.fisher_information))
    gaussian = GaussianNoise()
    assert t.fisher_information == pytest.approx(1.0)
    assert t.variance == pytest.approx(1.0714, abs=1e-4)
    assert t.mean_absolute == pytest.approx(0.7971, abs=1e-4)
    assert gaussian.mean_absolute == pytest.approx(0.7979, abs=1e-4)


class TestTabulated:
    def test_of_a_normal_is_nearly_normal(self):
        found = tabulate_density(of_normal, reach=8.0, knots=1000)
        assert found.variance == pytest.approx(1.0, rel=1e-3)
        assert found.fisher_information == pytest.approx(1.0, rel=1e-3)
        x = np.linspace(-5, 5, 50)
        np.testing.assert_allclose(found.cdf(x), stats.norm.cdf(x), atol=1e-4)

    def test_a_function_of_the_magnitude_is_never_called_below_0(self):
        found = tabulate_density(lambda x: -np.sqrt(1 + x) - x, reach=9.0, even=True)
        assert log_density(found, np.array([-2.0])) == log_density(found, np.array([2.0]))

    def test_what_has_no_proof_is_refused(self):
        for kernel, match in [
            (lambda x: -(x**2) + 0.1 * x, "symmetric"),
            (lambda x: np.where(x < 0, np.nan, -x), "symmetric"),
            (lambda x: np.logaddexp(-((x - 3) ** 2), -((x + 3) ** 2)), "one mode"),
            (lambda x: np.where(np.abs(x) < 1, -(x**2), np.nan), "not finite"),
            (lambda x: -np.abs(x)[:3], "shape"),
            (lambda x: 0 * x, "one mode"),
        ]:
            with pytest.raises(UsageError, match=match):
                tabulate_density(kernel, reach=6.0)

    def test_bad_numbers_are_refused(self):
        for changes in [
            {"knots": (0.0, 1.0)},
            {"knots": (0.1, 1.0, 2.0)},
            {"knots": (0.0, 2.0, 1.0)},
            {"knots": (0.0, 1.0, math.nan)},
            {"knots": 3.0},
            {"log_values": (0.0, math.nan, -1.0)},
            {"log_values": (0.0, -1.0, -math.inf)},
            {"log_values": (0.0, -1.0, -1.0)},
            {"log_values": ("0", "1", "2")},
        ]:
            good = {"knots": (0.0, 1.0, 2.0), "log_values": (0.0, -1.0, -3.0)}
            with pytest.raises(UsageError):
                Tabulated(**{**good, **changes})

    @settings(max_examples=25)
    @given(st.lists(st.floats(0.01, 3), min_size=2, max_size=8), st.floats(0.0, 20.0))
    @pytest.mark.property
    def test_any_table_is_one_in_all(self, falls: list[float], at: float):
        knots = tuple(float(i) for i in range(len(falls) + 1))
        density = Tabulated(knots=knots, log_values=(0.0, *(-np.cumsum(falls)).tolist()))
        assert integral(density) == pytest.approx(1.0, abs=1e-9)
        below = float(density.cdf(np.array([at]))[0])
        assert 0.5 - 1e-12 <= below <= 1.0


@pytest.mark.unit
def test_bad_files_are_refused():
    for values in [
        {"name": "gauss"},
        {"name": None},
        {"name": ["gaussian"]},
        {"name": "gaussian", "sigma": 1.0},
        {"name": "gaussian", "scale": "1"},
        {"name": "gaussian", "scale": math.nan},
        {"name": "student-t", "freedom": 0.0},
        {"name": "generalised-normal", "power": 0.9},
        {"name": "variance-gamma", "shape": 0.9},
        {"name": "tabulated", "scale": 1.0},
        "gaussian",
    ]:
        with pytest.raises(UsageError):
            density_from_json(values)


@pytest.mark.unit
def test_the_two_rules_of_a_panel_are_exact_for_polynomials():
    """The 15 points for powers up to 22, the 7 up to 13; so their difference is 0 up to 13."""
    x, weights, differences = make_kronrod_rule(np.array([0.0, 2.0]))
    for power in range(23):
        exact = 2.0 ** (power + 1) / (power + 1)
        assert float((weights * x**power).sum()) == pytest.approx(exact, rel=1e-13)
    for power in range(14):
        assert abs(float((differences * x**power).sum())) < 1e-12 * 2.0**power
    assert abs(float((differences * x**14).sum())) > 1e-6


@pytest.mark.unit
def test_a_table_falls_as_far_as_floats_reach_and_no_further():
    assert Tabulated(knots=(0.0, 1.0), log_values=(3.0, -597.0)).log_values[1] == -597.0
    with pytest.raises(UsageError, match="log_values decreases by 601: expected at most 600"):
        Tabulated(knots=(0.0, 1.0), log_values=(0.0, -601.0))


@pytest.mark.unit
def test_which_densities_are_log_concave():
    """Second differences say the same: of log z, and of 1/z where that is all there is."""
    x = np.arange(0.01, 12.0, 0.01)
    for kind in DENSITIES.values():
        if kind is Tabulated:
            continue
        logs = kind().unit_log_density(x)
        assert kind().inverse_convex
        assert (np.diff(logs, 2) <= 1e-12).all() == kind().log_concave
        assert (np.diff(np.exp(-logs), 2) >= -1e-9 * np.exp(-logs[2:])).all()
