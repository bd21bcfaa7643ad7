"""What the best attacker reaches: exact on Gaussians and coins, and never less than it can."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from pasearch.accounting.attack import max_true_positive_rate, true_positive_rate
from pasearch.accounting.events import (
    Gaussian,
    Geometric,
    NoRelease,
    PoissonGaussian,
    SelfComposition,
)


@pytest.mark.unit
class TestRate:
    def test_of_a_gaussian_it_is_the_exact_trade_off(self):
        for mu in [0.05, 0.5, 1.0, 2.0, 5.0]:
            for alpha in [0.001, 0.01, 0.1, 0.5]:
                exact = float(norm.cdf(norm.ppf(alpha) + mu))
                found = true_positive_rate(Gaussian(1.0 / mu), alpha)
                assert exact - 1e-9 <= found <= exact + max(0.004, 0.01 * exact)

    def test_composed_gaussians_are_one(self):
        found = true_positive_rate(SelfComposition(Gaussian(4.0), 16), 0.01)
        assert found == pytest.approx(true_positive_rate(Gaussian(1.0), 0.01), rel=0.01)

    def test_of_a_coin_it_is_what_pure_privacy_allows(self):
        for epsilon in [0.1, 1.0, 3.0]:
            for alpha in (0.01, 0.2):
                exact = min(math.exp(epsilon) * alpha, 1 - math.exp(-epsilon) * (1 - alpha))
                found = true_positive_rate(Geometric(epsilon=epsilon), alpha)
                assert exact * (1 - 1e-6) <= found <= exact * 1.03

    def test_one_point_of_the_profile_says_far_too_much(self):
        """From (epsilon, delta) alone the bound is e^epsilon alpha + delta."""
        from pasearch.accounting.accountants import price

        event = Gaussian(1.0)
        epsilon = price(event, 1e-5).epsilon
        alone = min(1.0, math.exp(epsilon) * 0.01 + 1e-5)
        assert true_positive_rate(event, 0.01) < 0.3 * alone

    def test_nothing_released_tells_nothing(self):
        assert true_positive_rate(NoRelease(), 0.01) == 0.01

    def test_more_noise_tells_less_and_a_run_what_its_worst_partition_does(self):
        loud, quiet = (
            SelfComposition(PoissonGaussian(sampling_probability=0.1, noise_multiplier=sigma), 100)
            for sigma in (4.0, 1.0)
        )
        rates = true_positive_rate(loud, 0.01), true_positive_rate(quiet, 0.01)
        assert 0.01 < rates[0] < rates[1] < 1.0
        assert max_true_positive_rate({"train": loud, "test": quiet}, 0.01) == rates[1]
