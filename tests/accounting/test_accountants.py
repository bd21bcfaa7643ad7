from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from shortcuts import rdp_price

from pasearch.accounting import accountants
from pasearch.accounting.accountants import (
    compute_delta,
    fast_price,
    price,
    price_partitions,
)
from pasearch.accounting.events import (
    ApproximateDP,
    Composition,
    DiscreteGaussian,
    Event,
    FilteredReleases,
    Gaussian,
    Geometric,
    NoisyRecords,
    NoRelease,
    PoissonGaussian,
    PureDP,
    RepeatAndSelect,
    SelfComposition,
    TruncatedPoissonGaussian,
    WorstCase,
)
from pasearch.accounting.renyi import UnsupportedEvent, rdp_curve
from pasearch.accounting.selection import RunCountDistribution
from pasearch.errors import UsageError

DELTA = 1e-5
STEP = PoissonGaussian(0.05, 1.5)
EXAMPLES: list[Event] = [
    Gaussian(4.0),
    STEP,
    TruncatedPoissonGaussian(1000, 0.05, 110, 1.5),
    NoisyRecords(0.05, 2.0),
    Geometric(0.1),
    PureDP(0.3),
    ApproximateDP(0.3, 1e-10),
    DiscreteGaussian(8.0, 2.0),
    Composition((STEP, Geometric(0.1))),
    SelfComposition(STEP, 5),
    WorstCase((Gaussian(4.0), SelfComposition(STEP, 9))),
    RepeatAndSelect(
        Composition((SelfComposition(STEP, 5), Geometric(0.5))), RunCountDistribution(10, 0)
    ),
    RepeatAndSelect(Gaussian(9.0), RunCountDistribution(5, "poisson")),
    RepeatAndSelect(Gaussian(9.0), RunCountDistribution(5, 1, cap=20)),
    FilteredReleases(Composition((SelfComposition(STEP, 5), Geometric(0.1)))),
]
BY_RDP = [
    event
    for event in EXAMPLES
    if not isinstance(event, TruncatedPoissonGaussian | ApproximateDP)
    and not (isinstance(event, RepeatAndSelect) and event.law.cap)
]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.contract
class TestEveryEvent:
    def test_composed_costs_the_same_in_every_spelling(self):
        for event in EXAMPLES:
            for count in [2, 6]:
                together = price(SelfComposition(event, count), DELTA)
                assert price(Composition((event,) * count), DELTA) == together
                assert (
                    price(SelfComposition(Composition((event, NoRelease())), count), DELTA)
                    == together
                )
                assert together.epsilon > price(event, DELTA).epsilon

    def test_rdp_adds_up(self):
        for event in BY_RDP:
            np.testing.assert_allclose(
                rdp_curve(SelfComposition(event, 6)), 6 * rdp_curve(event), rtol=1e-12
            )
            np.testing.assert_allclose(
                rdp_curve(Composition((event,) * 6)), 6 * rdp_curve(event), rtol=1e-12
            )
            assert rdp_price(event, DELTA).epsilon >= price(event, DELTA).epsilon

    def test_less_delta_costs_more_epsilon(self):
        for event in EXAMPLES:
            costs = [price(event, delta).epsilon for delta in (1e-9, 1e-7, 1e-5, 1e-3)]
            assert costs == sorted(costs, reverse=True)
            assert all(math.isfinite(cost) for cost in costs)

    def test_the_price_holds_both_ways_round(self):
        for event in EXAMPLES:
            found = price(event, DELTA)
            assert compute_delta(event, found.epsilon) <= DELTA * (1 + 1e-6)
            assert compute_delta(event, 0.9 * found.epsilon) > DELTA

    def test_a_quick_price_is_a_bound_too(self):
        for event in EXAMPLES:
            assert fast_price(event, DELTA).epsilon >= price(event, DELTA).epsilon - 1e-12

    def test_worst_costs_the_dearest(self):
        for event in EXAMPLES:
            cheap = Gaussian(50.0)
            both = price(WorstCase((event, cheap)), DELTA).epsilon
            assert price(event, DELTA).epsilon == pytest.approx(both, rel=2e-3)

    def test_a_selection_costs_more_than_a_run(self):
        for event in EXAMPLES:
            chosen = RepeatAndSelect(event, RunCountDistribution(3, 0))
            assert price(chosen, DELTA).epsilon > price(event, DELTA).epsilon


@pytest.mark.oracle
class TestKnownCosts:
    def test_gaussians(self):
        for sigma in [0.3, 1.0, 4.0, 40.0]:
            for count in [1, 7]:
                found = price(SelfComposition(Gaussian(sigma), count), DELTA).epsilon
                mu = math.sqrt(count) / sigma
                assert gaussian_delta(mu, found) <= DELTA
                assert gaussian_delta(mu, 0.998 * found) > DELTA

    def test_sampled_gaussians_are_dp_accountings(self):
        for q, sigma, steps in [(0.01, 1.0, 100), (0.3, 3.0, 20)]:
            import dp_accounting as library
            from dp_accounting.pld import PLDAccountant

            theirs = PLDAccountant(library.NeighboringRelation.REPLACE_SPECIAL)
            theirs.compose(
                library.PoissonSampledDpEvent(q, library.GaussianDpEvent(sigma)), count=steps
            )
            found = price(SelfComposition(PoissonGaussian(q, sigma), steps), DELTA).epsilon
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
        assert exact <= compute_delta(PoissonGaussian(q, sigma), epsilon) <= 1.01 * exact

    def test_noisy_counts(self):
        for count in [1, 3]:
            for epsilon in [0.05, 0.4, 2.0]:
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
                assert compute_delta(SelfComposition(Geometric(epsilon), count), at) >= exact * (
                    1 - 1e-9
                )

    @pytest.mark.parametrize(
        ("q", "noise", "steps"),
        [(1.0, 20.0, 50), (0.01, 1.0, 100), (0.01, 10.0, 4000), (0.5, 0.3, 1), (1e-3, 3.0, 900)],
    )
    def test_noisy_records_are_a_mixture_of_gaussians_by_the_number_of_draws(self, q, noise, steps):
        """All coins are seen: k draws are k Gaussian releases, with a binomial weight."""
        event = SelfComposition(NoisyRecords(q, noise), steps)
        draws = np.arange(1, steps + 1)
        weights = binom.pmf(draws, steps, q)

        def exact(at: float) -> float:
            seen = draws[weights > 1e-18]
            each = [gaussian_delta(math.sqrt(k) / noise, at) for k in seen]
            return float(weights[weights > 1e-18] @ np.array(each))

        found = price(event, DELTA)
        assert found.accountant == "PLD"
        assert exact(found.epsilon) <= DELTA
        assert exact(0.99 * found.epsilon - 1e-3) > DELTA
        assert found.epsilon < rdp_price(event, DELTA).epsilon
        for at in (0.1, 0.5 * found.epsilon, found.epsilon):
            assert exact(at) <= compute_delta(event, at) <= 1.03 * exact(at) + 1e-12

    def test_noisy_records_of_extreme_noise_have_a_price_that_holds(self):
        for kind in [NoisyRecords, PoissonGaussian]:
            for noise in [1e-3, 0.05, 1e4]:
                found = price(SelfComposition(kind(0.01, noise), 100), DELTA).epsilon
                assert math.isfinite(found)
                assert found > 50 if noise < 0.1 else found >= 0

    def test_a_count_costs_its_epsilon(self):
        assert price(Geometric(0.3), 1e-12).epsilon == pytest.approx(0.3, abs=1e-6)
        assert price(PureDP(0.3), 1e-12).epsilon == pytest.approx(0.3, abs=1e-6)


def optimal_delta(releases: list[tuple[float, float]], at: float) -> float:
    # Kairouz, Oh and Viswanath 2015, outcome by outcome.
    nothing_leaks = math.prod(1 - delta for _, delta in releases)
    total = 0.0
    for signs in itertools.product((1, -1), repeat=len(releases)):
        losses = [sign * epsilon for sign, (epsilon, _) in zip(signs, releases, strict=True)]
        probability = math.prod(1 / (1 + math.exp(-loss)) for loss in losses)
        total += probability * max(0.0, -math.expm1(at - sum(losses)))
    return 1 - nothing_leaks * (1 - total)


class TestApproximateReleases:
    @pytest.mark.property
    @settings(max_examples=60)
    @given(st.floats(1e-3, 20), st.floats(1e-12, 0.1), st.floats(1.0, 10.0))
    def test_cost_their_epsilon_at_their_delta_and_anything_below(self, epsilon, delta, factor):
        event = ApproximateDP(epsilon, delta)
        assert price(event, delta).epsilon == pytest.approx(epsilon, rel=1e-9)
        more = price(event, min(0.99, delta * factor)).epsilon
        assert more <= epsilon * (1 + 1e-9)
        assert price(event, delta * 0.999).epsilon == math.inf
        assert compute_delta(event, epsilon * 1.001) == pytest.approx(delta, rel=1e-6)
        assert compute_delta(event, epsilon * 0.9) > delta

    def test_of_one_kind_are_the_optimal_composition(self):
        for epsilon, delta in [(0.1, 1e-8), (0.7, 1e-5), (3.0, 1e-3)]:
            for count in [1, 2, 3, 6]:
                together = SelfComposition(ApproximateDP(epsilon, delta), count)
                for i in range(count // 2 + 1):
                    at = (count - 2 * i) * epsilon
                    sums = [
                        math.comb(count, j)
                        * (
                            math.exp((count - j) * epsilon)
                            - math.exp((count - 2 * i + j) * epsilon)
                        )
                        for j in range(i)
                    ]
                    least = sum(sums) / (1 + math.exp(epsilon)) ** count
                    exact = 1 - (1 - delta) ** count * (1 - least)  # the theorem as it is printed
                    assert compute_delta(together, at) == pytest.approx(exact, rel=1e-6)
                    assert price(together, exact * (1 + 1e-6)).epsilon == pytest.approx(
                        at, rel=1e-4
                    )
                    assert optimal_delta([(epsilon, delta)] * count, at) == pytest.approx(
                        exact, rel=1e-6
                    )

    @pytest.mark.property
    @settings(max_examples=40)
    @given(
        st.lists(st.tuples(st.floats(0.05, 3), st.floats(1e-9, 1e-2)), min_size=2, max_size=4),
        st.floats(0, 1),
    )
    def test_of_several_kinds_are_bounded_by_both_accountants(self, releases, share):
        event = Composition(tuple(ApproximateDP(*each) for each in releases))
        at = share * sum(epsilon for epsilon, _ in releases)
        exact = optimal_delta(releases, at)
        assert compute_delta(event, at) >= exact * (1 - 1e-9)
        # The grid of losses is a thousandth of the least epsilon; each release may round by one.
        near = at - 4e-3 * min(epsilon for epsilon, _ in releases)
        assert compute_delta(event, at) <= optimal_delta(releases, max(0.0, near)) * 1.02 + 1e-12
        by_rdp = rdp_price(event, min(0.5, exact)).epsilon if exact > 0 else math.inf
        assert by_rdp >= at * (1 - 1e-9)

    def test_with_gaussians_they_lose_their_delta_and_no_more(self):
        pair = [
            SelfComposition(PoissonGaussian(0.05, 1.5), 40),
            SelfComposition(ApproximateDP(0.1, 1e-7), 9),
        ]
        found = price(Composition(tuple(pair)), DELTA).epsilon
        rest = Composition((pair[0], SelfComposition(PureDP(0.1), 9)))
        assert price(rest, DELTA).epsilon <= found
        assert found <= price(rest, DELTA - 9e-7).epsilon * (1 + 1e-3)

    def test_of_epsilon_0_only_take_their_delta_from_the_rest(self):
        for count in [1, 15, 300]:
            leak = 1e-6 / count
            item = Composition((Gaussian(20.0), ApproximateDP(0.0, leak)))
            told = -math.expm1(count * math.log1p(-leak))
            mu = math.sqrt(count) / 20
            for at in (0.0, mu, 3 * mu):
                exact = told + (1 - told) * gaussian_delta(mu, at)
                found = compute_delta(SelfComposition(item, count), at)
                assert exact * (1 - 1e-9) <= found <= exact * 1.02
                if exact < 0.5:
                    cost = price(SelfComposition(item, count), exact).epsilon
                    assert at - 1e-9 <= cost <= at * 1.01 + 1e-3
            assert price(SelfComposition(item, count), told * 0.99).epsilon == math.inf

    def test_of_epsilon_0_do_not_spoil_the_grid_of_two_valued_releases(self):
        leak, count = ApproximateDP(0.0, 1e-9), SelfComposition(Geometric(0.05), 20)
        together = price(Composition((leak, count)), DELTA).epsilon
        assert together == pytest.approx(price(count, DELTA - 1e-9).epsilon, rel=1e-4)
        assert price(leak, 1e-8).epsilon == price(SelfComposition(leak, 9), 1e-8).epsilon == 0.0
        assert price(leak, 0.9e-9).epsilon == math.inf
        mixed = Composition((leak, ApproximateDP(0.3, 1e-9), count))
        rest = price(Composition((PureDP(0.3), count)), DELTA - 2e-9).epsilon
        assert price(mixed, DELTA).epsilon == pytest.approx(rest, rel=1e-3)

    def test_are_no_dearer_than_the_librarys_own_bound(self):
        from dp_accounting.pld import common, privacy_loss_distribution

        theirs = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(0.25, 1e-7), value_discretization_interval=1e-4
        ).self_compose(20)
        found = price(SelfComposition(ApproximateDP(0.25, 1e-7), 20), DELTA).epsilon
        assert found <= theirs.get_epsilon_for_delta(DELTA) * (1 + 1e-9)
        assert found == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=2e-3)

    def test_in_a_worst_or_a_selection_the_profile_keeps_their_delta(self):
        leaky, law = ApproximateDP(0.3, 1e-7), RunCountDistribution(10, 0)
        for event, leak in (
            (WorstCase((leaky, Gaussian(5.0))), 1e-7),
            (Composition((WorstCase((leaky, Gaussian(5.0))), Gaussian(4.0))), 1e-7),
            (RepeatAndSelect(leaky, law), law.mean * 1e-7),
            (Composition((RepeatAndSelect(leaky, law), Gaussian(9.0))), law.mean * 1e-7),
        ):
            assert price(event, 0.99 * leak).epsilon == math.inf
            assert compute_delta(event, 50.0) == pytest.approx(leak, rel=1e-3)
            assert math.isfinite(price(event, 1.1 * leak).epsilon)


class TestTraps:
    def test_the_type_of_sigma_does_not_matter(self):
        for of in [int, np.float32, np.float64, np.int64]:
            right = price(SelfComposition(PoissonGaussian(100 / 60_000, 2.0), 1000), DELTA)
            assert (
                price(SelfComposition(PoissonGaussian(100 / 60_000, of(2)), 1000), DELTA) == right
            )
            assert rdp_price(SelfComposition(Gaussian(of(2)), 10), DELTA) == rdp_price(
                SelfComposition(Gaussian(2.0), 10), DELTA
            )

    def test_counts_of_pure_releases_are_not_lost(self):
        for kind in (Geometric, PureDP):
            costs = [price(SelfComposition(kind(0.1), k), DELTA).epsilon for k in (1, 10, 100)]
            assert costs[0] < costs[1] / 2 < costs[2] / 4

    def test_only_the_own_table_has_prices(self):
        from dp_accounting import GaussianDpEvent

        class Mine(Event):
            pass

        for foreign in (GaussianDpEvent(1.0), Mine(), None, 1.0, "gaussian"):
            for pricer in (price, fast_price, rdp_price):
                with pytest.raises(UnsupportedEvent, match="event class"):
                    pricer(foreign, DELTA)
            with pytest.raises(UnsupportedEvent, match="event class"):
                compute_delta(foreign, 1.0)  # type: ignore[arg-type]

    def test_what_only_one_accountant_has_is_refused_together(self):
        mixed = Composition(
            (DiscreteGaussian(4.0, 1.0), TruncatedPoissonGaussian(99, 0.1, 60, 2.0))
        )
        with pytest.raises(UnsupportedEvent, match="no bound for"):
            price(mixed, DELTA)

    def test_a_filter_has_no_loss_distribution_wherever_it_stands(self):
        limit = SelfComposition(STEP, 5)
        for event in (
            FilteredReleases(limit),
            Composition((FilteredReleases(limit), Geometric(0.1))),
            SelfComposition(FilteredReleases(limit), 3),
            WorstCase((Gaussian(9.0), FilteredReleases(limit))),
            RepeatAndSelect(
                Composition((FilteredReleases(limit), Geometric(0.1))), RunCountDistribution(5, 0)
            ),
            Composition((WorstCase((Gaussian(9.0), FilteredReleases(limit))), STEP)),
        ):
            for by_loss in (accountants._pld_epsilon, accountants._pld_delta):
                with pytest.raises(UnsupportedEvent, match="PLD has no bound"):
                    by_loss(event, DELTA)
            assert price(event, DELTA) == rdp_price(event, DELTA) == fast_price(event, DELTA)

    def test_a_filter_is_never_cheaper_than_its_limit(self):
        limit = Composition((SelfComposition(STEP, 20), Geometric(0.1)))
        found = rdp_price(FilteredReleases(limit), DELTA).epsilon
        assert 0 <= found - rdp_price(limit, DELTA).epsilon <= 1e-6

    def test_a_filter_that_leaks_has_no_price(self):
        with pytest.raises(UnsupportedEvent, match="no bound for"):
            price(FilteredReleases(Composition((STEP, ApproximateDP(0.1, 1e-9)))), DELTA)

    def test_rdp_takes_over_where_loss_distributions_lack_an_event(self):
        assert price(DiscreteGaussian(4.0, 1.0), DELTA).accountant == "RDP"
        assert price(Composition((DiscreteGaussian(4.0, 1.0), STEP)), DELTA).accountant == "RDP"

    def test_a_numerical_failure_falls_back_and_says_so(self, monkeypatch: pytest.MonkeyPatch):
        def fail(*_: object) -> float:
            raise FloatingPointError("overflow")

        monkeypatch.setattr(accountants, "_pld_epsilon", fail)
        event = SelfComposition(PoissonGaussian(0.031, 1.234), 17)
        found = price(event, DELTA)
        accountants._cached_price.cache_clear()
        assert found.accountant == "RDP (PLD failed: overflow)"
        assert found.epsilon == rdp_price(event, DELTA).epsilon

    def test_a_nan_is_a_failure_and_never_a_price(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(accountants, "_pld_epsilon", lambda *_: math.nan)
        found = price(SelfComposition(PoissonGaussian(0.032, 1.234), 17), DELTA)
        accountants._cached_price.cache_clear()
        assert found.accountant.startswith("RDP (PLD failed")
        assert found.epsilon > 0

    def test_delta_is_a_fraction(self):
        for delta in [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True]:
            with pytest.raises(UsageError, match="delta"):
                price(Gaussian(1.0), delta)

    def test_epsilon_is_a_number(self):
        for epsilon in [-1, math.nan, math.inf, "1", None]:
            with pytest.raises(UsageError, match="epsilon"):
                compute_delta(Gaussian(1.0), epsilon)

    def test_nothing_released_costs_nothing(self):
        assert price(NoRelease(), DELTA).epsilon == 0.0
        assert price(SelfComposition(NoRelease(), 9), DELTA).accountant == "nothing released"

    @pytest.mark.parametrize("fineness", [3, 10, 30])
    def test_any_grid_of_losses_is_a_bound(self, monkeypatch: pytest.MonkeyPatch, fineness: int):
        """The exact Gaussian is the limit from above, coarse grids far above it."""
        event = SelfComposition(PoissonGaussian(0.2, 2.0), 50)
        fine = price(event, DELTA).epsilon
        clear()
        monkeypatch.setattr(accountants, "GRID_POINTS_PER_DEVIATION", fineness)
        coarse = price(event, DELTA).epsilon
        clear()
        assert fine <= coarse + 1e-9
        assert coarse < 1.2 * fine


def clear() -> None:
    for cached in (
        "_cached_price",
        "_cached_fast_price",
        "_composed_pld",
        "_single_release_pld",
        "_privacy_profile",
        "_selection_log_constant",
    ):
        getattr(accountants, cached).cache_clear()


class TestPartitions:
    def test_cost_the_maximum(self):
        events = {"train": Gaussian(1.0), "validation": Gaussian(2.0), "public": NoRelease()}
        total, each = price_partitions(events, DELTA)
        assert total == each["train"]
        assert each["validation"].epsilon < total.epsilon
        assert each["public"].epsilon == 0

    def test_none_is_refused(self):
        with pytest.raises(UsageError, match="at least one partition"):
            price_partitions({}, DELTA)


@pytest.mark.property
@settings(max_examples=10)
@given(
    st.floats(0.02, 0.9), st.floats(0.7, 8), st.integers(1, 60), st.floats(1.01, 1.5)
)  # fmt: skip
def test_the_price_grows_with_sampling_and_steps_and_falls_with_noise(q, sigma, steps, factor):
    def cost(q: float, sigma: float, steps: int) -> float:
        return price(SelfComposition(PoissonGaussian(q, sigma), steps), DELTA).epsilon

    here = cost(q, sigma, steps)
    slack = 1 + 2e-3  # of two different grids
    assert cost(min(1.0, q * factor), sigma, steps) * slack >= here
    assert cost(q, sigma, steps + 1) * slack >= here
    assert cost(q, sigma * factor, steps) <= here * slack


@pytest.mark.property
@settings(max_examples=25)
@given(st.floats(1, 20), st.floats(0.05, 2), st.integers(1, 30))
def test_a_mixture_of_kinds_costs_at_most_the_sum(sigma: float, epsilon: float, count: int):
    parts = (Gaussian(sigma), SelfComposition(Geometric(epsilon), count))
    together = price(Composition(parts), DELTA).epsilon
    halves = [price(part, DELTA / 2).epsilon for part in parts]
    assert max(price(part, DELTA).epsilon for part in parts) <= together * (1 + 2e-3)
    assert together <= sum(halves) * (1 + 2e-3)
