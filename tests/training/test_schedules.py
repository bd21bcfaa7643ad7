"""Schedules: the papers' formulas, and a rule that knows accuracies only."""

from __future__ import annotations

import json
import math
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.errors import UsageError
from pasearch.training.schedules import (
    MIN_NOISE_FACTOR,
    SCHEDULES,
    ExponentialDecay,
    PolynomialDecay,
    Schedule,
    StepDecay,
    TimeDecay,
    UniformSchedule,
    ValidationSchedule,
    ValidationState,
)

FIXED = [
    UniformSchedule(),
    TimeDecay(rate=0.05),
    TimeDecay(rate=0.05, every=7),
    ExponentialDecay(rate=0.01),
    ExponentialDecay(rate=0.3, every=10),
    StepDecay(rate=0.6, period=10),
    StepDecay(rate=0.6, period=5, every=2),
    PolynomialDecay(power=3.0, end=0.2, period=100),
    PolynomialDecay(power=0.5, end=0.01, period=1),
    PolynomialDecay(power=1.0, end=0.5, period=4, every=3),
]
WATCHING = [
    ValidationSchedule(rate=0.7, threshold=0.01, average=5, period=10),
    ValidationSchedule(rate=0.8, threshold=0.0, every=3),
]
each_fixed = pytest.mark.parametrize("schedule", FIXED, ids=repr)


def told(rule: ValidationSchedule, accuracies: list[float]) -> list[float]:
    """Return the factor after each accuracy."""
    state, factors = rule.start(), []
    for accuracy in accuracies:
        state = state.tell(accuracy)
        factors.append(state.factor)
    return factors


@pytest.mark.unit
def test_the_formulas():
    for schedule, factors in [
        (UniformSchedule(), {0: 1.0, 99: 1.0}),
        (TimeDecay(rate=0.5), {0: 1.0, 1: 1 / 1.5, 2: 0.5, 10: 1 / 6}),
        (ExponentialDecay(rate=0.1), {0: 1.0, 1: math.exp(-0.1), 20: math.exp(-2)}),
        (StepDecay(rate=0.5, period=3), {0: 1.0, 2: 1.0, 3: 0.5, 5: 0.5, 6: 0.25}),
        (
            PolynomialDecay(power=2.0, end=0.2, period=10),
            {0: 1.0, 5: 0.8 * 0.25 + 0.2, 9: 0.8 * 0.01 + 0.2, 10: 0.2, 11: 0.2, 500: 0.2},
        ),
    ]:
        assert {t: schedule.factor(t) for t in factors} == pytest.approx(factors, rel=1e-14)


@pytest.mark.unit
def test_every_changes_the_noise_at_its_multiples_only():
    for make in [
        lambda every: TimeDecay(rate=0.05, every=every),
        lambda every: ExponentialDecay(rate=0.01, every=every),
        lambda every: StepDecay(rate=0.6, period=10, every=every),
        lambda every: PolynomialDecay(power=3.0, end=0.2, period=100, every=every),
    ]:
        each, seldom = make(1), make(7)
        for t in range(100):
            assert seldom.factor(t) == each.factor(t // 7)
        changes = [t for t in range(1, 100) if seldom.factor(t) != seldom.factor(t - 1)]
        assert changes
        assert all(t % 7 == 0 for t in changes)


@pytest.mark.contract
def test_a_factor_never_reaches_0():
    for schedule in [
        TimeDecay(rate=1e300),
        ExponentialDecay(rate=900.0),
        StepDecay(rate=1e-300, period=1),
        PolynomialDecay(power=1e300, end=1e-300, period=2),
    ]:
        assert [schedule.factor(t) for t in (0, 10, 10**9)] == [
            1.0,
            MIN_NOISE_FACTOR,
            MIN_NOISE_FACTOR,
        ]


@pytest.mark.property
@given(
    rate=st.floats(1e-9, 1e9),
    share=st.floats(1e-9, 1 - 1e-9),
    period=st.integers(1, 1000),
    every=st.integers(1, 50),
    epoch=st.integers(0, 10**6),
)
def test_any_factor_is_in_the_unit_interval(rate, share, period, every, epoch):
    for schedule in (
        TimeDecay(rate=rate, every=every),
        ExponentialDecay(rate=rate, every=every),
        StepDecay(rate=share, period=period, every=every),
        PolynomialDecay(power=rate, end=share, period=period, every=every),
    ):
        assert MIN_NOISE_FACTOR <= schedule.factor(epoch + every) <= schedule.factor(epoch) <= 1


@pytest.mark.contract
def test_a_schedule_survives_json():
    for schedule in [*FIXED, *WATCHING]:
        assert SCHEDULES.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
        assert schedule.to_json()["name"] == schedule.name
        assert SCHEDULES[schedule.name] is type(schedule)


@pytest.mark.contract
def test_the_names_are_the_papers():
    assert list(SCHEDULES) == [
        "uniform", "time", "exponential", "step", "polynomial", "validation"
    ]  # fmt: skip
    assert {schedule.name for schedule in [*FIXED, *WATCHING]} == set(SCHEDULES)


@pytest.mark.unit
def test_json_that_names_no_schedule_is_refused():
    for values, message in [
        ({"name": "cosine"}, "unknown"),
        ({"name": ["time"]}, "unknown"),
        ({"rate": 0.1}, "unknown"),
        ({"name": "uniform", "rate": 0.1}, "has no rate"),
        ({"name": "time", "rate": -0.1}, "rate"),
        ({"name": "time"}, "lacks rate"),
        ("time", "expected what `to_json` wrote"),
        (None, "expected what `to_json` wrote"),
    ]:
        with pytest.raises(UsageError, match=message):
            SCHEDULES.from_json(values)  # pyright: ignore[reportArgumentType]


GOOD = {
    "time": {"rate": 0.1},
    "exponential": {"rate": 0.1},
    "step": {"rate": 0.5, "period": 2},
    "polynomial": {"power": 1.0, "end": 0.5, "period": 2},
    "validation": {"rate": 0.5, "threshold": 0.1},
}
POSITIVE = [0.0, -1.0, math.nan, math.inf, True, "1", None]
FRACTION = [*POSITIVE, 1.0, 1.5]
COUNT = [0, -1, 1.0, math.nan, True, "1"]
WRONG = {
    ("time", "rate"): POSITIVE,
    ("exponential", "rate"): POSITIVE,
    ("step", "rate"): FRACTION,
    ("step", "period"): COUNT,
    ("polynomial", "power"): POSITIVE,
    ("polynomial", "end"): FRACTION,
    ("polynomial", "period"): COUNT,
    ("validation", "rate"): FRACTION,
    ("validation", "threshold"): [-0.1, math.nan, math.inf, True, "1", None],
    ("validation", "average"): COUNT,
    ("validation", "period"): COUNT,
    **{(name, "every"): COUNT for name in GOOD},
}


@pytest.mark.unit
def test_a_wrong_number_is_refused():
    for name, field in WRONG:
        assert SCHEDULES.from_json({"name": name, **GOOD[name]})
        for value in WRONG[name, field]:
            with pytest.raises(UsageError, match=field):
                pytest.fail(f"{SCHEDULES.from_json({'name': name, **GOOD[name], field: value})}")


@pytest.mark.unit
@each_fixed
def test_an_epoch_that_is_no_count_is_refused(schedule: Schedule):
    for epoch in (-1, 0.5, math.nan, True, "0", None):
        with pytest.raises(UsageError, match="epoch"):
            pytest.fail(f"{epoch!r}: {schedule.factor(epoch)}")  # pyright: ignore


@pytest.mark.unit
def test_the_noise_falls_when_the_accuracy_rises_by_no_more_than_the_threshold():
    rule = ValidationSchedule(rate=0.5, threshold=0.125)
    # The first accuracy is compared with 0; a rise of exactly the threshold counts as none.
    assert told(rule, [0.5, 0.75, 0.875, 0.75, 1.0]) == [1.0, 1.0, 0.5, 0.25, 0.25]
    assert told(rule, [0.125]) == [0.5]


@pytest.mark.unit
def test_means_are_compared_with_the_mean_at_the_last_comparison():
    rule = ValidationSchedule(rate=0.5, threshold=0.0, average=2, period=3)
    # Means of the last two at every third: .3 (rises from 0), .35 (rises), .3 (falls).
    accuracies = [0.9, 0.2, 0.4, 0.0, 0.3, 0.4, 1.0, 0.4, 0.2]
    assert told(rule, accuracies) == [1.0] * 8 + [0.5]
    # One at a time they would have fallen at once.
    assert told(ValidationSchedule(rate=0.5, threshold=0.0), accuracies)[1] == 0.5


@pytest.mark.unit
def test_a_period_shorter_than_the_mean_is_refused_and_left_out_it_is_as_long():
    with pytest.raises(UsageError, match="expected average \\(5\\) or above"):
        ValidationSchedule(rate=0.5, threshold=0.0, average=5, period=4)
    assert ValidationSchedule(rate=0.5, threshold=0.0, average=5).period == 5


@pytest.mark.property
@given(st.lists(st.floats(-1, 2), max_size=60), st.integers(1, 5), st.integers(0, 5))
def test_the_state_is_what_the_formula_says_of_all_accuracies(accuracies, average, more):
    rule = ValidationSchedule(rate=0.7, threshold=0.05, average=average, period=average + more)
    period = average + more
    means = [
        math.fsum(accuracies[end - average : end]) / average
        for end in range(period, len(accuracies) + 1, period)
    ]
    falls = sum(s - before <= 0.05 for before, s in zip([0.0, *means], means, strict=False))
    state = rule.start()
    for accuracy in accuracies:
        state = state.tell(accuracy)
    assert state.factor == pytest.approx(0.7**falls, rel=1e-12)
    assert len(state.recent) <= average


@pytest.mark.unit
def test_a_state_does_not_change_and_its_factor_never_reaches_0():
    first = ValidationSchedule(rate=0.01, threshold=0.0).start()
    assert isinstance(first, ValidationState)
    assert first.tell(0.0).factor == 0.01
    assert first.factor == 1.0
    assert [value for value, _ in groupby(told(first.rule, [0.0] * 200))][-1] == MIN_NOISE_FACTOR


@pytest.mark.unit
def test_an_accuracy_that_is_no_finite_number_is_refused():
    for accuracy in [math.nan, math.inf, True, "0.5", None]:
        with pytest.raises(UsageError, match="accuracy"):
            WATCHING[0].start().tell(accuracy)  # pyright: ignore[reportArgumentType]
