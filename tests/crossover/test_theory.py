"""Lemma 1, Corollary 1 and the sample-size curve: against simulation, and against themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.crossover.theory import (
    find_coefficients_to_drop,
    fit_sample_size_curve,
    largest_coefficient_to_drop,
    min_epsilon_for_feature,
    predict_epsilon,
    predict_records,
)
from pasearch.errors import UsageError


def simulated(
    theta: float, x: np.ndarray, residual: float, sigma: float, without: float
) -> tuple[float, float]:
    """Return the mean squared error with and without the last feature, over draws of noise.

    The other coefficients are arbitrary, and the label is what gives the residual. Both models are
    built and evaluated as such: nothing here uses the formulas under test.
    """
    draw, draws = np.random.default_rng(0), 100_000
    coefficients = np.r_[draw.normal(size=len(x) - 1), theta]
    label = residual + coefficients @ x
    full = label - (coefficients + draw.normal(0.0, sigma, (draws, len(x)))) @ x
    noise = draw.normal(0.0, without, (draws, len(x) - 1))
    less = label - (coefficients[:-1] + noise) @ x[:-1]
    return float(np.mean(full**2)), float(np.mean(less**2))


X = np.array([0.3, -1.0, 0.8])


class TestLemma1:
    @pytest.mark.statistical
    def test_the_exact_condition_is_where_a_simulation_changes_sign(self):
        for last in [0.8, -0.8]:
            for residual in [-0.5, 0.0, 0.5]:
                for without in [1.0, 0.6, 1.2]:
                    x = np.array([0.3, -1.0, last])
                    interval = find_coefficients_to_drop(x, residual, 1.0, without)
                    assert interval is not None
                    width = interval[1] - interval[0]
                    for end, outwards in zip(interval, (-1, 1), strict=True):
                        full, less = simulated(
                            end - 0.1 * width * outwards, x, residual, 1.0, without
                        )
                        assert less < full, "inside the interval the feature is better left out"
                        full, less = simulated(
                            end + 0.1 * width * outwards, x, residual, 1.0, without
                        )
                        assert less > full, "outside the interval the feature is worth its noise"

    @pytest.mark.statistical
    def test_the_papers_bound_is_sufficient_at_both_signs(self):
        for residual in [-0.5, 0.5]:
            for sign in [-1, 1]:
                limit = largest_coefficient_to_drop(X, residual**2, 1.0, 0.6)
                full, less = simulated(0.95 * sign * limit, X, residual, 1.0, 0.6)
                assert less < full

    @pytest.mark.statistical
    def test_the_papers_bound_is_not_necessary(self):
        x = np.array([1.0, 1.0])
        assert largest_coefficient_to_drop(x, 1.0, 0.5) == pytest.approx(0.118, abs=5e-4)
        assert find_coefficients_to_drop(x, -1.0, 0.5) == pytest.approx((-0.118, 2.118), abs=5e-4)
        full, less = simulated(1.0, x, -1.0, 0.5, 0.5)
        assert full == pytest.approx(1.5, abs=0.02)
        assert less == pytest.approx(0.25, abs=0.005)

    @pytest.mark.property
    @settings(deadline=None, max_examples=60)
    @given(sigma=st.floats(1e-3, 1e3), last=st.floats(0.01, 100.0))
    def test_corollary_1_is_the_case_without_error(self, sigma: float, last: float):
        x = np.array([0.5, last])
        assert largest_coefficient_to_drop(x, 0.0, sigma) == pytest.approx(sigma, rel=1e-6)

    @pytest.mark.unit
    def test_the_epsilon_of_one_more_feature_is_where_its_noise_is_as_large(self):
        epsilon = min_epsilon_for_feature(0.25, 0.1, 1e-5)
        assert 0.1 * math.sqrt(2.0 * math.log(1.25e5)) / epsilon == pytest.approx(0.25)
        assert min_epsilon_for_feature(0.0, 0.1, 1e-5) == math.inf

    @pytest.mark.unit
    def test_a_record_without_the_feature_is_refused(self):
        for x in [[0.0], [1.0, 0.0], []]:
            with pytest.raises(UsageError, match="Lemma 1"):
                largest_coefficient_to_drop(np.array(x), 0.0, 1.0)


class TestSampleSize:
    @pytest.mark.oracle
    def test_a_curve_is_found_again(self):
        n = np.array([500, 1000, 5000, 20_000])
        alpha, beta = fit_sample_size_curve(n, np.log(1.02 + 900 / n))
        assert (alpha, beta) == pytest.approx((1.02, 900))
        assert predict_epsilon(1000, alpha, beta) == pytest.approx(math.log(1.92))
        assert predict_records(math.log(1.92), alpha, beta) == pytest.approx(1000, abs=1)

    @pytest.mark.unit
    def test_what_no_number_of_records_reaches(self):
        assert predict_records(0.01, 1.5, 900) == math.inf
        assert predict_epsilon(10**9, 0.5, 1.0) == 0.0

    @pytest.mark.unit
    def test_points_that_make_no_curve_are_refused(self):
        for n, epsilon in [([100, 100], [1, 2]), ([100], [1]), ([0, 5], [1, 2]), ([1, 2], [0, 1])]:
            with pytest.raises(UsageError):
                fit_sample_size_curve(np.array(n), np.array(epsilon, float))
