from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import (
    calibrate_max,
    calibrate_max_count,
    calibrate_min,
    calibrate_min_count,
    compute_noise_multiplier_for_mu,
)
from pasearch.accounting.events import (
    Composition,
    Event,
    Gaussian,
    Geometric,
    PoissonGaussian,
    RepeatAndSelect,
    SelfComposition,
    TruncatedPoissonGaussian,
    WorstCase,
)
from pasearch.accounting.selection import RunCountDistribution
from pasearch.errors import BudgetError

BUDGETS = [Budget(0.05, 1e-7), Budget(1.0, 1e-5), Budget(8.0, 1e-5), Budget(60.0, 1e-3)]


def training(sigma: float) -> Event:
    return SelfComposition(PoissonGaussian(0.02, sigma), 500)


MECHANISMS = {
    "one release": Gaussian,
    "training": training,
    "training and score": lambda s: Composition((training(s), Geometric(0.02))),
    "selection": lambda s: RepeatAndSelect(training(s), RunCountDistribution(10, 0)),
    "selection, Poisson": lambda s: RepeatAndSelect(
        training(s), RunCountDistribution(10, "poisson")
    ),
    "worst": lambda s: WorstCase((training(s), Gaussian(s))),
    "capped batches": lambda s: SelfComposition(TruncatedPoissonGaussian(5000, 0.02, 160, s), 5),
}


@pytest.mark.contract
def test_noise_ends_on_the_private_side_and_near_the_budget():
    for budget in BUDGETS:
        for mechanism in MECHANISMS:
            make = MECHANISMS[mechanism]
            sigma = calibrate_min(make, budget, 0.05, 1e5)
            assert budget.delta is not None
            spent = price(make(sigma), budget.delta).epsilon
            assert spent <= budget.epsilon
            assert spent >= 0.99 * budget.epsilon


@pytest.mark.parametrize("over", [1.005, 1.2])
def test_a_root_on_the_wrong_side_is_moved_to_the_private_one(
    monkeypatch: pytest.MonkeyPatch, over: float
):
    """The last word has the price itself, whatever the search for a root returns."""
    budget, exact = Budget(1.0, 1e-5), calibrate_min(Gaussian, Budget(1.0, 1e-5), 0.05, 1e5)
    assert budget.delta is not None
    assert price(Gaussian(exact / over), budget.delta).epsilon > budget.epsilon
    dial = 0.05 * 1e5 / (exact / over)
    monkeypatch.setattr(calibration, "_search_value", lambda *_: dial)
    assert price(Gaussian(calibrate_min(Gaussian, budget, 0.05, 1e5)), 1e-5).epsilon <= 1.0


def test_a_score_takes_the_budget_that_is_there():
    for budget in BUDGETS[1:]:
        epsilon = calibrate_max(lambda e: SelfComposition(Geometric(e), 20), budget, 1e-5, 50.0)
        assert budget.delta is not None
        spent = price(SelfComposition(Geometric(epsilon), 20), budget.delta).epsilon
        assert 0.99 * budget.epsilon <= spent <= budget.epsilon


@pytest.mark.property
@settings(max_examples=10)
@given(
    st.floats(0.1, 20),
    st.sampled_from([1e-4, 1e-6, 1e-9]),
    st.floats(0.001, 1.0),
    st.integers(1, 3000),
)
def test_calibrated_noise_is_never_too_small(epsilon, delta, q, steps):
    def make(sigma: float) -> Event:
        return SelfComposition(PoissonGaussian(q, sigma), steps)

    sigma = calibrate_min(make, Budget(epsilon, delta), 0.02, 1e6)
    assert price(make(sigma), delta).epsilon <= epsilon
    assert price(make(0.97 * sigma), delta).epsilon > epsilon or sigma < 0.021


def test_a_price_below_the_budget_everywhere_takes_the_end():
    assert calibrate_max(lambda x: Gaussian(100 / x), Budget(50.0, 1e-5), 1e-3, 2.0) > 1.999


@pytest.mark.parametrize("count", [1, 2, 17, 400])
def test_the_largest_count_is_exactly_the_last_that_fits(count: int):
    def make(k: int) -> Event:
        return SelfComposition(Gaussian(40.0), k)

    epsilon = (price(make(count), 1e-5).epsilon + price(make(count + 1), 1e-5).epsilon) / 2
    assert calibrate_max_count(make, Budget(epsilon, 1e-5), 10_000) == count


def test_the_smallest_count_is_exactly_the_first_that_fits():
    def make(n: int) -> Event:
        return SelfComposition(PoissonGaussian(50 / n, 1.2), 200)

    n = calibrate_min_count(make, Budget(1.0, 1e-5), 50, 10**6)
    assert price(make(n), 1e-5).epsilon <= 1.0 < price(make(n - 1), 1e-5).epsilon


def test_counts_stop_at_their_ends():
    assert calibrate_max_count(lambda k: Gaussian(100.0 / k), Budget(9.0, 1e-5), 3) == 3
    assert calibrate_min_count(lambda n: Gaussian(float(n)), Budget(9.0, 1e-5), 20, 90) == 20


def test_too_small_a_budget_says_what_would_do():
    for solve in [
        lambda b: calibrate_min(Gaussian, b, 0.1, 2.0),
        lambda b: calibrate_max(Geometric, b, 0.5, 3.0),
        lambda b: calibrate_max_count(lambda k: SelfComposition(Gaussian(2.0), k), b, 99),
        lambda b: calibrate_min_count(lambda n: Gaussian(n / 10), b, 1, 20),
    ]:
        with pytest.raises(BudgetError, match=r"at least epsilon ([0-9.]+)") as refused:
            solve(Budget(0.01, 1e-5))
        enough = float(str(refused.value).split("at least epsilon ")[1].split(". ")[0])
        solve(Budget(enough, 1e-5))


def test_noise_for_mu_is_the_central_limit_rule():
    sigma = compute_noise_multiplier_for_mu(0.5, 0.02, 700)
    assert 0.02 * math.sqrt(700 * math.expm1(1 / sigma**2)) == pytest.approx(0.5)


def test_trainings_of_one_mu_cost_about_the_same_whatever_their_steps():
    costs = [
        price(
            SelfComposition(
                PoissonGaussian(0.05, compute_noise_multiplier_for_mu(0.6, 0.05, steps)), steps
            ),
            1e-5,
        )
        for steps in (200, 500, 2000)
    ]
    assert max(c.epsilon for c in costs) < 1.15 * min(c.epsilon for c in costs)
