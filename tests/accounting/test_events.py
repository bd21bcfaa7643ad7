from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.accounting import events
from pasearch.accounting.additive import Shifts
from pasearch.accounting.densities import StudentT
from pasearch.accounting.events import (
    AdditiveNoise,
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
    count_atomic_releases,
    describe_event,
    event_from_json,
    event_to_json,
)
from pasearch.accounting.selection import RunCountDistribution
from pasearch.errors import UsageError

EXAMPLES: list[Event] = [
    NoRelease(),
    Gaussian(2.0),
    PoissonGaussian(0.01, 1.1),
    TruncatedPoissonGaussian(1000, 0.1, 150, 1.0),
    NoisyRecords(0.01, 1.1),
    AdditiveNoise(0.01, StudentT(freedom=9.0), Shifts(values=(0.5, 0.25), counts=(1, 3))),
    Geometric(0.1),
    PureDP(0.3),
    ApproximateDP(0.3, 1e-7),
    ApproximateDP(0.0, 1e-7),
    DiscreteGaussian(4.0, 2.0),
    Composition((Gaussian(2.0), Geometric(0.1))),
    SelfComposition(PoissonGaussian(0.01, 1.1), 70),
    WorstCase((Gaussian(2.0), Gaussian(3.0))),
    RepeatAndSelect(Composition((Gaussian(3.0), Geometric(0.2))), RunCountDistribution(10, 0)),
    RepeatAndSelect(Gaussian(3.0), RunCountDistribution(10, "poisson", cap=30)),
    FilteredReleases(SelfComposition(PoissonGaussian(0.01, 1.1), 70)),
]
atoms = st.one_of(
    st.builds(Gaussian, st.floats(0.1, 100)),
    st.builds(PoissonGaussian, st.floats(1e-6, 1), st.floats(0.1, 100)),
    st.builds(NoisyRecords, st.floats(1e-6, 1), st.floats(0.1, 100)),
    st.builds(Geometric, st.floats(1e-3, 5)),
    st.builds(PureDP, st.floats(1e-3, 5)),
    st.builds(ApproximateDP, st.just(0.0) | st.floats(1e-3, 5), st.floats(1e-15, 0.5)),
    st.builds(DiscreteGaussian, st.floats(0.1, 50), st.floats(0.1, 5)),
    st.just(NoRelease()),
)
laws = st.builds(
    RunCountDistribution, st.floats(1.5, 50), st.one_of(st.floats(0, 3), st.just("poisson"))
)
trees = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(Composition, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(WorstCase, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(SelfComposition, inner, st.integers(1, 1000)),
        st.builds(RepeatAndSelect, inner, laws),
        st.builds(FilteredReleases, inner),
    ),
    max_leaves=6,
)


def test_the_examples_are_the_whole_table():
    assert {type(event) for event in EXAMPLES} == set(events.EVENT_TYPES.values())


@pytest.mark.contract
class TestEveryEvent:
    def test_comes_back_from_json(self):
        for event in EXAMPLES:
            assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event

    def test_is_a_frozen_hashable_value(self):
        for event in EXAMPLES:
            assert hash(event) == hash(pickle.loads(pickle.dumps(event)))
            for name in event_to_json(event).keys() - {"type"}:
                with pytest.raises((AttributeError, TypeError)):
                    setattr(event, name, 1.0)

    def test_says_what_it_is_in_one_line(self):
        for event in EXAMPLES:
            assert describe_event(event).strip()
            assert "\n" not in describe_event(event)
            assert "Gaussian(" not in describe_event(event)

    def test_composed_k_times_has_the_same_parts_in_every_spelling(self):
        for event in EXAMPLES:
            spelled = [
                SelfComposition(event, 6),
                Composition((event,) * 6),
                SelfComposition(SelfComposition(event, 2), 3),
                Composition((SelfComposition(event, 4), NoRelease(), Composition((event, event)))),
            ]
            assert all(
                count_atomic_releases(each) == count_atomic_releases(spelled[0]) for each in spelled
            )

    def test_an_unknown_field_is_refused(self):
        for event in EXAMPLES:
            with pytest.raises(UsageError, match="expected exactly"):
                event_from_json({**event_to_json(event), "note": 1})

    def test_a_missing_field_is_refused(self):
        for event in EXAMPLES:
            document = event_to_json(event)
            for name in document.keys() - {"type"}:
                with pytest.raises(UsageError, match="expected exactly"):
                    event_from_json({key: value for key, value in document.items() if key != name})


@pytest.mark.property
@given(trees)
def test_any_tree_comes_back_from_json(event: Event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@pytest.mark.property
@given(trees, st.integers(1, 50))
def test_counts_multiply(event: Event, count: int):
    once, often = count_atomic_releases(event), count_atomic_releases(SelfComposition(event, count))
    assert often == {atom: count * each for atom, each in once.items()}


def test_every_number_is_a_python_float():
    for kind, numbers in [
        (Gaussian, (2,)),
        (PoissonGaussian, (0.5, 2)),
        (NoisyRecords, (0.5, 2)),
        (Geometric, (2,)),
        (PureDP, (2,)),
        (ApproximateDP, (2, 0.5)),
        (DiscreteGaussian, (2, 1)),
    ]:
        for of in [int, np.float32, np.float64]:
            given_ = [of(value) if value != 0.5 else value for value in numbers]
            event = kind(*given_)
            values = [value for name, value in event_to_json(event).items() if name != "type"]
            assert all(type(value) is float for value in values)
            assert event == kind(*map(float, numbers))


def test_a_bad_number_never_enters_an_event():
    for make in [
        Gaussian,
        lambda x: PoissonGaussian(0.1, x),
        lambda x: PoissonGaussian(x, 1.0),
        lambda x: NoisyRecords(0.1, x),
        lambda x: NoisyRecords(x, 1.0),
        Geometric,
        PureDP,
        lambda x: ApproximateDP(1.0, x),
        lambda x: DiscreteGaussian(x, 1.0),
        lambda x: DiscreteGaussian(1.0, x),
        lambda x: TruncatedPoissonGaussian(1000, 0.1, 150, x),
        lambda x: SelfComposition(Gaussian(1.0), x),
    ]:
        for bad in (0, -1.0, float("nan"), float("inf"), "1", True, None, [1.0]):
            with pytest.raises(UsageError):
                pytest.fail(f"{bad!r}: {make(bad)}")


def test_a_leak_may_be_all_there_is_and_no_less():
    for bad in [-1e-9, float("nan"), float("inf"), "0", False, None]:
        assert ApproximateDP(0, 1e-6) == ApproximateDP(0.0, 1e-6)
        assert describe_event(ApproximateDP(0.0, 1e-6)) == "an additive delta (1e-06)"
        with pytest.raises(UsageError, match="0 or above"):
            ApproximateDP(bad, 1e-6)


def test_a_leak_is_below_1():
    for bad in [1, 1.0, 1.5]:
        with pytest.raises(UsageError, match="strictly between 0 and 1"):
            ApproximateDP(1.0, bad)


def test_a_count_is_whole():
    for bad in [1.0, 2.5, np.float64(3)]:
        with pytest.raises(UsageError, match="integer"):
            SelfComposition(Gaussian(1.0), bad)


def test_a_file_of_bad_form_is_refused():
    for bad in [
        None,
        [],
        "gaussian",
        {},
        {"type": "GaussianDpEvent", "noise_multiplier": 1.0},
        {"type": "os.system", "command": "true"},
        {"type": ["gaussian"], "noise_multiplier": 1.0},
        {"type": "gaussian", "noise_multiplier": "1.0"},
        {"type": "gaussian", "noise_multiplier": -1.0},
        {"type": "composed", "events": []},
        {"type": "composed", "events": {"type": "no-release"}},
        {"type": "self-composed", "event": {"type": "no-release"}, "count": 0},
        {"type": "repeat-and-select", "event": {"type": "no-release"}, "law": "geometric"},
        {"type": "repeat-and-select", "event": {"type": "no-release"}, "law": {"mean": 10}},
    ]:
        with pytest.raises(UsageError):
            event_from_json(bad)


def test_nesting_is_bounded():
    document = event_to_json(Gaussian(1.0))
    for _ in range(events.MAX_EVENT_DEPTH + 1):
        document = {"type": "self-composed", "event": document, "count": 1}
    with pytest.raises(UsageError, match="nested deeper"):
        event_from_json(document)


def test_an_event_of_another_table_is_refused():
    class Mine(Event):
        pass

    makers = (
        lambda e: SelfComposition(e, 2),
        lambda e: Composition((e,)),
        lambda e: WorstCase((e,)),
        FilteredReleases,
    )
    for make in makers:
        with pytest.raises(UsageError, match="event class"):
            make(Mine())
    with pytest.raises(UsageError, match="event class"):
        event_to_json(Mine())


def test_the_worst_of_equal_events_is_that_event():
    assert count_atomic_releases(WorstCase((Gaussian(2.0), Gaussian(2)))) == {Gaussian(2.0): 1}


def test_nothing_released_has_no_parts():
    assert count_atomic_releases(SelfComposition(Composition((NoRelease(), NoRelease())), 5)) == {}
    assert (
        count_atomic_releases(
            SelfComposition(FilteredReleases(Composition((NoRelease(), NoRelease()))), 5)
        )
        == {}
    )


def test_a_filter_is_atomic_and_so_many_of_them_are_so_many_filters():
    one = FilteredReleases(SelfComposition(Gaussian(2.0), 7))
    assert count_atomic_releases(one) == {one: 1}
    assert count_atomic_releases(SelfComposition(one, 5)) == {one: 5}
