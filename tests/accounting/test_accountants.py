from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pasearch.accounting import accountants
from pasearch.accounting.accountants import (
    delta_for,
    price,
    price_partitions,
    rdp_price,
    rough_price,
)
from pasearch.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Gaussian,
    Geometric,
    NoRelease,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    SelfComposed,
    TruncatedPoissonGaussian,
    Worst,
)
from pasearch.accounting.renyi import Unsupported, rdp
from pasearch.accounting.selection import Law
from pasearch.errors import UsageError

DELTA = 1e-5
STEP = PoissonGaussian(0.05, 1.5)
EXAMPLES: list[Event] = [
    Gaussian(4.0),
    STEP,
    TruncatedPoissonGaussian(1000, 0.05, 110, 1.5),
    Geometric(0.1),
    Pure(0.3),
    DiscreteGaussian(8.0, 2.0),
    Composed((STEP, Geometric(0.1))),
    SelfComposed(STEP, 5),
    Worst((Gaussian(4.0), SelfComposed(STEP, 9))),
    RepeatAndSelect(Composed((SelfComposed(STEP, 5), Geometric(0.5))), Law(10, 0)),
    RepeatAndSelect(Gaussian(9.0), Law(5, "poisson")),
    RepeatAndSelect(Gaussian(9.0), Law(5, 1, cap=20)),
]
BY_RDP = [
    event
    for event in EXAMPLES
    if not isinstance(event, TruncatedPoissonGaussian)
    and not (isinstance(event, RepeatAndSelect) and event.law.cap)
]
named = pytest.mark.parametrize("event", EXAMPLES, ids=lambda e: type(e).__name__)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.contract
class TestEveryEvent:
    @named
    @pytest.mark.parametrize("count", [2, 6])
    def test_composed_costs_the_same_in_every_spelling(self, event: Event, count: int):
        together = price(SelfComposed(event, count), DELTA)
        assert price(Composed((event,) * count), DELTA) == together
        assert price(SelfComposed(Composed((event, NoRelease())), count), DELTA) == together
        assert together.epsilon > price(event, DELTA).epsilon

    @pytest.mark.parametrize("event", BY_RDP, ids=lambda e: type(e).__name__)
    def test_rdp_adds_up(self, event: Event):
        np.testing.assert_allclose(rdp(SelfComposed(event, 6)), 6 * rdp(event), rtol=1e-12)
        np.testing.assert_allclose(rdp(Composed((event,) * 6)), 6 * rdp(event), rtol=1e-12)
        assert rdp_price(event, DELTA).epsilon >= price(event, DELTA).epsilon

    @named
    def test_less_delta_costs_more_epsilon(self, event: Event):
        costs = [price(event, delta).epsilon for delta in (1e-9, 1e-7, 1e-5, 1e-3)]
        assert costs == sorted(costs, reverse=True)
        assert all(math.isfinite(cost) for cost in costs)

    @named
    def test_the_price_holds_both_ways_round(self, event: Event):
        found = price(event, DELTA)
        assert delta_for(event, found.epsilon) <= DELTA * (1 + 1e-6)
        assert delta_for(event, 0.9 * found.epsilon) > DELTA

    @named
    def test_a_quick_price_is_a_bound_too(self, event: Event):
        assert rough_price(event, DELTA).epsilon >= price(event, DELTA).epsilon - 1e-12

    @named
    def test_public_parts_are_free(self, event: Event):
        assert price(Composed((NoRelease(), event)), DELTA) == price(event, DELTA)

    @named
    def test_worst_costs_the_dearest(self, event: Event):
        cheap = Gaussian(50.0)
        both = price(Worst((event, cheap)), DELTA).epsilon
        assert price(event, DELTA).epsilon == pytest.approx(both, rel=2e-3)

    @named
    def test_a_selection_costs_more_than_a_run(self, event: Event):
        chosen = RepeatAndSelect(event, Law(3, 0))
        assert price(chosen, DELTA).epsilon > price(event, DELTA).epsilon


@pytest.mark.oracle
class TestKnownCosts:
    @pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0, 40.0])
    @pytest.mark.parametrize("count", [1, 7])
    def test_gaussians(self, sigma: float, count: int):
        found = price(SelfComposed(Gaussian(sigma), count), DELTA).epsilon
        mu = math.sqrt(count) / sigma
        assert gaussian_delta(mu, found) <= DELTA
        assert gaussian_delta(mu, 0.998 * found) > DELTA

    @pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 100), (0.3, 3.0, 20)])
    def test_sampled_gaussians_are_dp_accountings(self, q: float, sigma: float, steps: int):
        import dp_accounting as library
        from dp_accounting.pld import PLDAccountant

        theirs = PLDAccountant(library.NeighboringRelation.REPLACE_SPECIAL)
        theirs.compose(
            library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma)), count=steps
        )
        found = price(SelfComposed(PoissonGaussian(q, sigma), steps), DELTA).epsilon
        assert found == pytest.approx(theirs.get_epsilon(DELTA), rel=5e-3)

    def test_one_sampled_gaussian_exactly(self):
        """delta(e) = max over both directions of the integral of (p - e^e p')+."""
        q, sigma, epsilon = 0.2, 1.0, 0.7
        x, width = np.linspace(-12, 13, 2_000_001, retstep=True)
        without = norm.pdf(x, scale=sigma)
        with_ = (1 - q) * without + q * norm.pdf(x, loc=1, scale=sigma)
        exact = max(
            float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * width)
            for a, b in ((with_, without), (without, with_))
        )
        assert exact <= delta_for(PoissonGaussian(q, sigma), epsilon) <= 1.01 * exact

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.parametrize("epsilon", [0.05, 0.4, 2.0])
    def test_noisy_counts(self, epsilon: float, count: int):
        k = np.arange(-2000, 2001)
        one = np.exp(-epsilon * np.abs(k)) * math.tanh(epsilon / 2)
        here, there = one, np.roll(one, 1)
        for _ in range(count - 1):
            here, there = np.multiply.outer(here, one[1900:2101]), np.multiply.outer(
                there, np.roll(one, 1)[1900:2101]
            )  # fmt: skip
            here, there = here.ravel(), there.ravel()
            keep = here > 1e-14
            here, there = here[keep][:400_000], there[keep][:400_000]
        at = 0.6 * count * epsilon
        exact = float(np.maximum(there - math.exp(at) * here, 0).sum())
        assert delta_for(SelfComposed(Geometric(epsilon), count), at) >= exact * (1 - 1e-9)

    def test_a_count_costs_its_epsilon(self):
        assert price(Geometric(0.3), 1e-12).epsilon == pytest.approx(0.3, abs=1e-6)
        assert price(Pure(0.3), 1e-12).epsilon == pytest.approx(0.3, abs=1e-6)


class TestTraps:
    @pytest.mark.parametrize("of", [int, np.float32, np.float64, np.int64])
    def test_the_type_of_sigma_does_not_matter(self, of):
        right = price(SelfComposed(PoissonGaussian(100 / 60_000, 2.0), 1000), DELTA)
        assert price(SelfComposed(PoissonGaussian(100 / 60_000, of(2)), 1000), DELTA) == right
        assert rdp_price(SelfComposed(Gaussian(of(2)), 10), DELTA) == rdp_price(
            SelfComposed(Gaussian(2.0), 10), DELTA
        )

    def test_counts_of_pure_releases_are_not_lost(self):
        for kind in (Geometric, Pure):
            costs = [price(SelfComposed(kind(0.1), k), DELTA).epsilon for k in (1, 10, 100)]
            assert costs[0] < costs[1] / 2 < costs[2] / 4

    def test_only_the_own_table_has_prices(self):
        from dp_accounting import GaussianDpEvent

        class Mine(Event):
            pass

        for foreign in (GaussianDpEvent(1.0), Mine(), None, 1.0, "gaussian"):
            for pricer in (price, rough_price, rdp_price):
                with pytest.raises(Unsupported, match="own table"):
                    pricer(foreign, DELTA)
            with pytest.raises(Unsupported, match="own table"):
                delta_for(foreign, 1.0)  # type: ignore[arg-type]

    def test_what_only_one_accountant_has_is_refused_together(self):
        mixed = Composed((DiscreteGaussian(4.0, 1.0), TruncatedPoissonGaussian(99, 0.1, 60, 2.0)))
        with pytest.raises(Unsupported, match="has no price"):
            price(mixed, DELTA)

    def test_rdp_takes_over_where_loss_distributions_lack_an_event(self):
        assert price(DiscreteGaussian(4.0, 1.0), DELTA).accountant == "RDP"
        assert price(Composed((DiscreteGaussian(4.0, 1.0), STEP)), DELTA).accountant == "RDP"

    def test_a_numerical_failure_falls_back_and_says_so(self, monkeypatch: pytest.MonkeyPatch):
        def fail(*_: object) -> float:
            raise FloatingPointError("overflow")

        monkeypatch.setattr(accountants, "_epsilon", fail)
        event = SelfComposed(PoissonGaussian(0.031, 1.234), 17)
        found = price(event, DELTA)
        accountants._price.cache_clear()
        assert found.accountant == "RDP (PLD failed: overflow)"
        assert found.epsilon == rdp_price(event, DELTA).epsilon

    def test_a_nan_is_a_failure_and_never_a_price(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(accountants, "_epsilon", lambda *_: math.nan)
        found = price(SelfComposed(PoissonGaussian(0.032, 1.234), 17), DELTA)
        accountants._price.cache_clear()
        assert found.accountant.startswith("RDP (PLD failed")
        assert found.epsilon > 0

    @pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True])
    def test_delta_is_a_fraction(self, delta):
        with pytest.raises(UsageError, match="delta"):
            price(Gaussian(1.0), delta)

    @pytest.mark.parametrize("epsilon", [-1, math.nan, math.inf, "1", None])
    def test_epsilon_is_a_number(self, epsilon):
        with pytest.raises(UsageError, match="epsilon"):
            delta_for(Gaussian(1.0), epsilon)

    @pytest.mark.parametrize("sigma", [1e-3, 0.05, 1e4])
    def test_extreme_noise_has_a_price_that_holds(self, sigma: float):
        found = price(SelfComposed(PoissonGaussian(0.01, sigma), 100), DELTA)
        assert math.isfinite(found.epsilon)
        assert found.epsilon >= 0
        if sigma < 0.1:  # a record in the sample is as good as published
            assert found.epsilon > 50

    def test_nothing_released_costs_nothing(self):
        assert price(NoRelease(), DELTA).epsilon == 0.0
        assert price(SelfComposed(NoRelease(), 9), DELTA).accountant == "nothing released"

    @pytest.mark.parametrize("fineness", [3, 10, 30])
    def test_any_grid_of_losses_is_a_bound(self, monkeypatch: pytest.MonkeyPatch, fineness: int):
        """The exact Gaussian is the limit from above, coarse grids far above it."""
        event = SelfComposed(PoissonGaussian(0.2, 2.0), 50)
        fine = price(event, DELTA).epsilon
        clear()
        monkeypatch.setattr(accountants, "FINENESS", fineness)
        coarse = price(event, DELTA).epsilon
        clear()
        assert fine <= coarse + 1e-9
        assert coarse < 1.2 * fine


def clear() -> None:
    for cached in ("_price", "_rough_price", "_pld", "_single", "_profile", "_log_constant"):
        getattr(accountants, cached).cache_clear()


class TestPartitions:
    def test_cost_the_maximum(self):
        events = {"train": Gaussian(1.0), "validation": Gaussian(2.0), "public": NoRelease()}
        total, each = price_partitions(events, DELTA)
        assert total == each["train"]
        assert each["validation"].epsilon < total.epsilon
        assert each["public"].epsilon == 0

    def test_none_is_refused(self):
        with pytest.raises(UsageError, match="no partition"):
            price_partitions({}, DELTA)


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.02, 0.9), st.floats(0.7, 8), st.integers(1, 60), st.floats(1.01, 1.5)
)  # fmt: skip
def test_the_price_grows_with_sampling_and_steps_and_falls_with_noise(q, sigma, steps, factor):
    def cost(q: float, sigma: float, steps: int) -> float:
        return price(SelfComposed(PoissonGaussian(q, sigma), steps), DELTA).epsilon

    here = cost(q, sigma, steps)
    slack = 1 + 2e-3  # of two different grids
    assert cost(min(1.0, q * factor), sigma, steps) * slack >= here
    assert cost(q, sigma, steps + 1) * slack >= here
    assert cost(q, sigma * factor, steps) <= here * slack


@pytest.mark.property
@settings(max_examples=25, deadline=None)
@given(st.floats(1, 20), st.floats(0.05, 2), st.integers(1, 30))
def test_a_mixture_of_kinds_costs_at_most_the_sum(sigma: float, epsilon: float, count: int):
    parts = (Gaussian(sigma), SelfComposed(Geometric(epsilon), count))
    together = price(Composed(parts), DELTA).epsilon
    halves = [price(part, DELTA / 2).epsilon for part in parts]
    assert max(price(part, DELTA).epsilon for part in parts) <= together * (1 + 2e-3)
    assert together <= sum(halves) * (1 + 2e-3)
