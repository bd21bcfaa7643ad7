"""A filter: whatever is spent, its sum stays below the limit at every order, and the claim is B."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shortcuts import fits, rdp_price

from pasearch.accounting import renyi as filters
from pasearch.accounting.accountants import price
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
    SelfComposition,
    TruncatedPoissonGaussian,
    WorstCase,
)
from pasearch.accounting.renyi import (
    ORDERS,
    PrivacyFilter,
    UnsupportedEvent,
    filter_rdp_limit,
    find_best_order,
    make_monotone,
    rdp_curve,
    rdp_epsilon,
)
from pasearch.errors import BudgetError, UsageError

DELTA = 1e-5
STEP = PoissonGaussian(0.05, 1.5)
LIMIT = Composition((SelfComposition(STEP, 100), Geometric(0.3)))
small = st.one_of(
    st.builds(Gaussian, st.floats(2, 60)),
    st.builds(PoissonGaussian, st.sampled_from([0.01, 0.05]), st.sampled_from([0.8, 1.5, 4.0])),
    st.builds(NoisyRecords, st.floats(1e-3, 0.1), st.floats(1, 9)),
    st.builds(PureDP, st.floats(1e-3, 0.5)),
    st.builds(DiscreteGaussian, st.floats(2, 60), st.just(1.0)),
    st.just(NoRelease()),
)
spendable = st.builds(SelfComposition, small, st.integers(1, 60))


def overspent(kept: list[Event], limit: Event) -> float:
    """By what factor the exact sum of what was spent exceeds the claimed curve, at its worst."""
    claimed = rdp_curve(FilteredReleases(limit))
    curves = [make_monotone(rdp_curve(event)) for event in kept]
    sums = np.array([math.fsum(column) for column in zip(*curves, strict=True)])
    return float(np.max(sums / claimed)) if curves else 0.0


def spend_all(sequence: list[Event], limit: Event) -> list[Event]:
    kept, held = [], PrivacyFilter(limit)
    for event in sequence:
        fitted = fits(held, event)
        before = held.spent
        try:
            held.spend(event)
        except BudgetError:
            assert not fitted
            np.testing.assert_array_equal(held.spent, before)
        else:
            assert fitted
            kept.append(event)
    assert held.claim == FilteredReleases(limit)
    return kept


@pytest.mark.property
@settings(max_examples=60)
@given(st.lists(spendable, max_size=25))
def test_whatever_is_spent_the_sum_is_below_the_limit_at_every_order(sequence):
    kept = spend_all(sequence, LIMIT)
    assert overspent(kept, LIMIT) <= 1.0
    together = Composition((*kept, NoRelease()))
    assert (
        rdp_price(together, DELTA).epsilon <= price(FilteredReleases(LIMIT), DELTA).epsilon + 1e-12
    )


# Pure releases are dear at low orders and cheap at high ones, Gaussians the other way round.
CROSSING = [SelfComposition(PureDP(0.4), 9), *[Gaussian(9.0)] * 300]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda total, most: bool((total <= most).any()), id="at some order"),
        pytest.param(lambda total, most: bool(total[-1] <= most[-1]), id="at one order"),
        pytest.param(lambda total, most: not (total / 2 > most).any(), id="twice the limit"),
        pytest.param(lambda total, most: not (total > most).all(), id="not above at all"),
    ],
)
def test_a_filter_that_looks_at_fewer_orders_is_seen(monkeypatch: pytest.MonkeyPatch, broken):
    assert overspent(spend_all(CROSSING, LIMIT), LIMIT) <= 1.0
    monkeypatch.setattr(PrivacyFilter, "_fits", lambda self, total: broken(total, self._most))
    assert overspent(spend_all(CROSSING, LIMIT), LIMIT) > 1.01


def test_a_filter_that_forgets_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        PrivacyFilter,
        "_with",
        lambda self, event: np.maximum(self._spent, make_monotone(rdp_curve(event))),
    )
    assert overspent(spend_all(CROSSING, LIMIT), LIMIT) > 1.01


def test_a_plan_that_is_followed_fits_to_its_last_step_and_not_one_more():
    for step in [STEP, Gaussian(30.0), Geometric(0.1), NoisyRecords(0.1, 3.0)]:
        for count in [1, 3, 49, 1000]:
            held = PrivacyFilter(SelfComposition(step, count))
            for _ in range(count):
                held.spend(step)
            assert not fits(held, step)
            with pytest.raises(BudgetError, match="Nothing was spent"):
                held.spend(step)
            assert fits(held, NoRelease())


def test_what_is_kept_of_the_spending_is_never_below_its_exact_sum():
    held, tiny = PrivacyFilter(SelfComposition(STEP, 10**4)), make_monotone(rdp_curve(STEP))
    for count in range(1, 400):
        held.spend(STEP)
        assert all(map(operator.ge, held.spent.tolist(), (count * Fraction(x) for x in tiny)))


def test_rounding_of_many_steps_is_within_the_grain():
    held, tiny = PrivacyFilter(SelfComposition(STEP, 10**6)), make_monotone(rdp_curve(STEP))
    spent = np.zeros_like(tiny)
    for _ in range(10**5):
        spent = np.nextafter(spent + tiny, np.inf)
    assert (spent >= 1e5 * tiny).all()
    assert (spent <= 1e5 * tiny * (1 + 1e-10)).all()  # a hundred times as many: 1e-8 at most
    assert fits(held, SelfComposition(STEP, 10**6))


def test_the_claim_is_the_limit_s_and_never_what_was_spent():
    held = PrivacyFilter(LIMIT)
    for event in (Gaussian(50.0), STEP):
        held.spend(event)
        assert held.claim == FilteredReleases(LIMIT)
        assert price(held.claim, DELTA).epsilon > 3 * rdp_price(event, DELTA).epsilon
    assert price(held.claim, DELTA).accountant == "RDP"


def test_an_order_at_which_the_limit_has_a_bound_and_the_release_none_does_not_fit():
    """NaN and infinity are no bound: they never pass."""
    held = PrivacyFilter(LIMIT)
    for bad in (math.nan, math.inf, -math.inf):
        curve = np.array(rdp_curve(Gaussian(1e6)))
        curve[-1] = bad
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filters, "rdp_curve", lambda event, curve=curve: curve)
            total = held._with(Gaussian(1e6))
        assert held._fits(total) is (bad == -math.inf)
    assert held._fits(np.full(len(ORDERS), math.nan)) is False


def test_what_has_no_curve_is_refused_as_a_limit_and_as_a_release():
    for event in [
        TruncatedPoissonGaussian(1000, 0.1, 150, 1.0),
        ApproximateDP(0.1, 1e-9),
        WorstCase((Gaussian(90.0), ApproximateDP(0.1, 1e-9))),
    ]:
        with pytest.raises(UnsupportedEvent):
            PrivacyFilter(event)
        held = PrivacyFilter(LIMIT)
        for ask in (lambda event, held=held: fits(held, event), held.spend):
            with pytest.raises(UnsupportedEvent):
                ask(event)
        np.testing.assert_array_equal(held.spent, 0.0)


def test_a_limit_of_no_order_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filters, "filter_rdp_limit", lambda *_: np.full(len(ORDERS), math.inf))
    with pytest.raises(UnsupportedEvent, match="limits nothing"):
        PrivacyFilter(Gaussian(1.0))


def test_an_event_of_another_table_is_refused():
    class Mine(Event):
        pass

    for foreign in (Mine(), None, 1.0):
        with pytest.raises(Exception, match=r"expected an event class|bound"):
            PrivacyFilter(foreign)  # type: ignore[arg-type]
        with pytest.raises(Exception, match=r"expected an event class|bound"):
            PrivacyFilter(LIMIT).spend(foreign)  # type: ignore[arg-type]


def test_a_limit_of_nothing_lets_nothing_through():
    held = PrivacyFilter(NoRelease())
    assert fits(held, NoRelease())
    assert not fits(held, Gaussian(1e6))
    assert price(held.claim, DELTA).epsilon == 0.0


def test_is_never_copied():
    held = PrivacyFilter(LIMIT)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="spend twice"):
            duplicate(held)


def test_what_is_shown_cannot_be_changed_from_outside():
    held = PrivacyFilter(LIMIT)
    held.spend(STEP)
    held.spent[:] = 0.0
    assert (held.spent > 0).all()


def test_threads_do_not_spend_the_same_twice():
    held, spent = PrivacyFilter(SelfComposition(STEP, 200)), []

    def work() -> None:
        for _ in range(100):
            try:
                held.spend(STEP)
            except BudgetError:
                return
            spent.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(spent) == 200


def test_the_limit_is_the_curve_that_is_priced():
    np.testing.assert_array_equal(filter_rdp_limit(LIMIT), rdp_curve(FilteredReleases(LIMIT)))


@pytest.mark.unit
def test_orders_that_are_not_kept_neither_stop_a_release_nor_carry_a_claim():
    limit, louder = SelfComposition(STEP, 200), PoissonGaussian(0.05, 1.2)
    order = find_best_order(limit, DELTA)
    assert 1.5 < order < 100
    every, kept = PrivacyFilter(limit), PrivacyFilter(limit, order)
    made = {name: count_of(held, louder) for name, held in (("every", every), ("kept", kept))}
    assert made["kept"] > 1.5 * made["every"] > 0
    assert kept.claim == FilteredReleases(limit, order)
    curve, spent = rdp_curve(kept.claim), kept.spent
    assert np.isinf(curve[order < ORDERS]).all()
    assert (spent <= curve).all()
    # So at what is claimed, what was spent is paid for: by the same epsilon as with every order.
    assert price(kept.claim, DELTA).epsilon == pytest.approx(price(every.claim, DELTA).epsilon)
    claimed = price(kept.claim, DELTA).epsilon
    assert rdp_epsilon(SelfComposition(louder, made["kept"]), DELTA) <= claimed
    assert rdp_epsilon(SelfComposition(louder, made["kept"] + 20), DELTA) > claimed


def count_of(held: PrivacyFilter, event: Event) -> int:
    """How often an event fits."""
    count = 0
    while fits(held, event):
        held.spend(event)
        count += 1
    return count


@pytest.mark.unit
def test_an_order_that_is_none_is_refused():
    for order in [0.0, -1.0, math.nan, math.inf]:
        with pytest.raises(UsageError):
            PrivacyFilter(LIMIT, order)
