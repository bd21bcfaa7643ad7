"""The forecast of where the best model changes: its curves, its crossings, and what it says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from left_out import Compared, LeftOut, left_out, pairs, shown

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.accounting.gdp_approximation import compute_gaussian_epsilon, compute_gaussian_mu
from pasearch.crossover import forecast as forecasts
from pasearch.crossover.forecast import (
    FORECAST_EPSILONS,
    MeasuredModel,
    StudyModel,
    choose_models,
    find_crossings,
    find_last_lead,
    find_pair_crossing,
    summarize_forecast,
)
from pasearch.data.schema import Schema
from pasearch.report.html import describe_crossover
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.portfolio import Study, compute_signal, load_studies

GRID = np.log10(FORECAST_EPSILONS)
SCHEMA = Schema(shape=(5,), low=0.0, high=1.0, classes=2)
LINEAR = Candidate(architecture=Architecture(layers=()))
NETWORK = Candidate(architecture=Architecture(layers=(Dense(units=8),)))


def line(level: float, slope: float) -> np.ndarray:
    """A curve over log10 epsilon."""
    return level + slope * GRID


def own(**changes: Any) -> MeasuredModel:
    given = {"epsilon": 1.0, "delta": 1e-5, "mu": 0.05, "slots": 2000, "score": 0.8, "error": 0.01}
    return MeasuredModel(**{**given, **changes})


def forecast(*given: Any, searched: Any = lambda candidate: True) -> dict[str, Any] | None:
    """The forecast of a run that searched all models of the study."""
    return forecasts.forecast_crossover(*given, searched)


def entries(*names: str, released: str) -> list[StudyModel]:
    return [
        StudyModel(name=name, parameters=place, released=name == released)
        for place, name in enumerate(names)
    ]


def said(curves: np.ndarray, released: int, epsilon: float, **changes: Any) -> str:
    """The sentence of a run that released one of the models a, b, c."""
    names = ["a", "b", "c"][: len(curves)]
    route = choose_models(curves, released, epsilon)
    return summarize_forecast(
        find_crossings(route, curves, names), route, curves,
        entries(*names, released=names[released]), own(epsilon=epsilon, **changes),
    )  # fmt: skip


def shifted(*lines: np.ndarray) -> np.ndarray:
    """Curves of several models on five data sets, which differ in height alone."""
    heights = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])[:, None]
    return np.stack([each + heights for each in lines])


def study(*curves: tuple[list[float], list[float]]) -> Study:
    """A study of a linear model and a network, at three signals."""
    names = [f"set {number}" for number in range(len(curves))]
    return Study(
        kind="arrays", entries=(LINEAR, NETWORK),
        signals={name: np.array([0.0, 1.7, 3.4]) for name in names},
        accuracy={name: np.array(rows) for name, rows in zip(names, curves, strict=True)},
        classes=dict.fromkeys(names, 2),
    )  # fmt: skip


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(([0.7, 0.8, 0.82], [0.6, 0.78, 0.9]), ([0.7, 0.8, 0.82], [0.6, 0.8, 0.92]))
    monkeypatch.setattr(forecasts, "load_study", lambda schema, name: found)


@pytest.mark.usefixtures("of_two")
class TestForecast:
    @pytest.mark.unit
    def test_the_released_model_passes_through_its_own_score(self):
        for winner in (LINEAR, NETWORK):
            found = forecast(SCHEMA, "mine", own(), winner, 2)
            assert found is not None
            (model,) = [each for each in found["models"] if "released" in each["roles"]]
            at = np.interp(0.0, np.log10(found["epsilons"]), model["accuracy"])
            assert at == pytest.approx(0.8, abs=1e-3)
            assert found["own"] == {"epsilon": 1.0, "score": 0.8, "standard_error": 0.01}

    @pytest.mark.unit
    def test_only_models_of_the_searched_space_are_compared(self):
        assert forecast(SCHEMA, "mine", own(), LINEAR, 2, searched=lambda e: e == LINEAR) is None
        assert forecast(SCHEMA, "mine", own(), LINEAR, 2, searched=lambda e: e != LINEAR) is None

    @pytest.mark.unit
    def test_nothing_is_said_of_what_nobody_measured(self):
        assert forecast(SCHEMA, "mine", own(mu=1e-6), LINEAR, 2) is None
        assert forecast(SCHEMA, "mine", own(slots=10**9), LINEAR, 2) is None
        assert forecast(SCHEMA, "mine", own(), LINEAR, 40) is None

    @pytest.mark.unit
    def test_more_epsilon_does_no_harm(self, monkeypatch: pytest.MonkeyPatch):
        falling = study(([0.7, 0.9, 0.8], [0.6, 0.78, 0.9]))
        monkeypatch.setattr(forecasts, "load_study", lambda schema, name: falling)
        found = forecast(SCHEMA, "mine", own(), NETWORK, 2)
        assert found is not None
        for each in found["models"]:
            assert np.all(np.diff(each["accuracy"]) >= 0)

    @pytest.mark.property
    @settings(deadline=None, max_examples=25)
    @given(score=st.floats(-0.5, 1.5), epsilon=st.floats(0.3, 3.0))
    def test_it_is_plain_finite_json(self, score: float, epsilon: float):
        found = forecast(SCHEMA, "mine", own(score=score, epsilon=epsilon), LINEAR, 2)
        assert found is not None
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        for each in found["models"]:
            assert all(0 <= low <= high <= 1 for low, high in zip(each["low"], each["high"],
                                                                  strict=True))  # fmt: skip


class TestSignal:
    @pytest.mark.oracle
    def test_a_tenth_of_the_budget_has_the_signal_that_a_gaussian_release_has(self):
        mu = compute_gaussian_mu(0.1, 1e-5)
        assert compute_gaussian_epsilon(mu, 1e-5) == pytest.approx(0.1, rel=1e-3)
        assert compute_signal(1.0, 100, 2) == pytest.approx(math.log10(50))


class TestCrossings:
    @pytest.mark.oracle
    def test_a_known_crossing_is_found(self):
        curves = shifted(line(0.8, 0.02), line(0.78, 0.08))  # equal at log10 epsilon = 1 / 3
        route = choose_models(curves, 0, 1.0)
        (found,) = find_crossings(route, curves, ["simple", "complex"])
        assert (found.before, found.after) == ("simple", "complex")
        # The lead is clear from one point on, at log10 epsilon = 1 / 2; the grid is rough.
        assert found.epsilon == pytest.approx(10**0.5, rel=0.2)
        assert found.low <= 10 ** (1 / 3) * 1.01
        assert found.high is not None
        assert found.high >= found.epsilon

    @pytest.mark.unit
    def test_there_is_none_without_a_clear_lead(self):
        for other in (line(0.7, 0.02), line(0.799, 0.02), line(0.798, 0.01)):
            curves = shifted(line(0.8, 0.02), other)
            assert choose_models(curves, 0, 1.0) == [0] * len(FORECAST_EPSILONS)
            assert find_crossings([0] * len(FORECAST_EPSILONS), curves, ["a", "b"]) == []

    @pytest.mark.unit
    def test_a_lead_within_the_noise_of_the_study_is_none(self):
        noise = np.array([-0.4, 0.4, -0.3, 0.3, 0.1])[:, None]
        curves = np.stack([line(0.5, 0.0) + 0 * noise, line(0.5, 0.06) + noise])
        assert choose_models(curves, 0, 0.2) == [0] * len(FORECAST_EPSILONS)


def lead(*zeros: float) -> np.ndarray:
    """Curves of two models that cross at these epsilons, one a data set."""
    other = [0.8 + 0.05 * (GRID - math.log10(zero)) for zero in zeros]
    return np.array([[np.full(len(FORECAST_EPSILONS), 0.8)] * len(zeros), other])


class TestPairCrossing:
    @pytest.mark.oracle
    def test_it_is_the_last_epsilon_at_which_the_first_is_better(self):
        for zero in [0.13, 0.5, 1.0, 7.0]:
            (simple,), (other,) = lead(zero)
            assert find_last_lead(simple, other) == pytest.approx(zero)
            assert find_last_lead(simple, simple - 0.1) == math.inf
            assert find_last_lead(simple, simple + 0.1) == 0.0

    @pytest.mark.unit
    def test_the_range_is_the_shortest_of_four_in_five_and_one_more(self):
        low = find_pair_crossing(lead(0.3, 0.4, 0.5, 0.6, 0.7, 0.5, 0.5, 0.5, 0.5, 9.0), 0, 1)
        assert low[1:] == pytest.approx((0.3, 0.7))
        high = find_pair_crossing(lead(0.9, 4.0, 5.0, 6.0, 7.0, 5.0, 5.0, 5.0, 5.0, 5.0), 0, 1)
        assert high[1:] == pytest.approx((4.0, 7.0))
        two = find_pair_crossing(lead(0.9, 4.0, 5.0, 6.0, 7.0, 5.0, 5.0, 5.0, 5.0, 9.0), 0, 1)
        assert two[1:] == pytest.approx((4.0, 9.0))

    @pytest.mark.unit
    def test_of_four_it_holds_all_and_of_fewer_everything(self):
        assert find_pair_crossing(lead(0.3, 0.4, 0.5, 0.6), 0, 1)[1:] == pytest.approx((0.3, 0.6))
        assert find_pair_crossing(lead(0.3, 0.4, 0.5), 0, 1)[1:] == (0.0, math.inf)

    @pytest.mark.property
    @settings(deadline=None, max_examples=40)
    @given(zeros=st.lists(st.floats(0.02, 50.0), min_size=1, max_size=12))
    def test_it_holds_enough_of_them_and_the_mean(self, zeros: list[float]):
        curves = lead(*zeros)
        epsilon, low, high = find_pair_crossing(curves, 0, 1)
        assert low <= epsilon <= high
        found = [find_last_lead(*each) for each in curves.transpose(1, 0, 2)]
        assert sum(low <= each <= high for each in found) >= 0.8 * len(zeros)


@pytest.fixture(scope="module")
def left() -> list[LeftOut]:
    return [each for study in load_studies() for each in left_out(study)]


def share(found: list[Compared]) -> float:
    return float(np.mean([each.covered for each in found]))


class TestLeftOut:
    @pytest.mark.statistical
    def test_the_range_holds_four_in_five_of_the_crossings_that_were_measured(
        self, left: list[LeftOut]
    ):
        every = [pair for each in left for pair in pairs(each)]
        assert len(every) > 200
        assert share(every) >= 0.8
        for kind in {each.kind for each in left}:
            assert share([each for each in every if each.kind == kind]) >= 0.8
        drawn = [crossing for each in left for crossing in shown(each)]
        assert not drawn or share(drawn) >= 0.8

    @pytest.mark.statistical
    def test_it_does_so_not_because_every_range_is_everything(self, left: list[LeftOut]):
        every = [pair for each in left for pair in pairs(each)]
        told = [each for each in every if not each.whole]
        assert len(told) > 0.4 * len(every)
        assert share(told) > 0.65


@pytest.mark.usefixtures("of_two")
class TestReport:
    @pytest.mark.unit
    def test_a_range_is_told_as_far_as_it_tells(self):
        found = forecast(SCHEMA, "digits", own(), LINEAR, 2)
        crossing = {"epsilon": 0.5, "low": 0.2, "high": 0.9, "before": "a", "after": "b"}
        assert found is not None
        for changed, said in (
            ({}, "(on most of the data sets between 0.2 and 0.9)"),
            (
                {"low": 0.0},
                f"(on most of the data sets between {found['epsilons'][0]:g} or below and 0.9)",
            ),
            (
                {"high": None},
                f"(on most of the data sets between 0.2 and {found['epsilons'][-1]:g} or above)",
            ),
        ):
            document = {**found, "crossings": [{**crossing, **changed}]}
            told = describe_crossover({"crossover": document, "score": {"metric": "accuracy"}})
            assert told is not None
            assert told["crossings"] == [f"From about epsilon 0.5 on, b instead of a {said}."]


class TestSentence:
    @pytest.mark.unit
    def test_equal_models_get_one_sentence(self):
        curves = shifted(line(0.8, 0.02), line(0.805, 0.02))
        assert said(curves, 0, 1.0) == (
            "From epsilon 0.1 to 10 no difference of more than one point is expected; the simplest "
            "model was released."
        )
        assert said(curves, 0, 1.0, score=None).endswith("the simplest model is planned.")
        assert said(curves, 1, 1.0) == (
            "From epsilon 0.1 to 10 no other model of the searched space is expected to be better "
            "than the released one by more than one point."
        )

    @pytest.mark.unit
    def test_it_says_from_where_on_something_else_is_better(self):
        curves = shifted(line(0.8, 0.02), line(0.78, 0.08))
        low = said(curves, 0, 0.5)
        assert low.startswith("From epsilon 0.1 to 2.6 no other model")
        assert low.endswith("From about epsilon 2.6 on, b is expected to be better.")
        high = said(curves, 1, 8.0)
        assert "Below about epsilon 1.5, a is expected to be better." in high

    @pytest.mark.unit
    def test_a_run_that_released_a_clearly_worse_model_says_why(self):
        curves = shifted(line(0.8, 0.0), line(0.83, 0.0))
        told = said(curves, 0, 1.0, has_compared=True)
        assert told.startswith(
            "At epsilon 1, b is expected to be better than the released model, a, by 3.0 points"
        )
        assert "noisy scores on your own records preferred the released model." in told
        assert "noisy scores" not in said(curves, 0, 1.0)


@pytest.mark.usefixtures("of_two")
@pytest.mark.unit
def test_a_forged_number_does_not_fill_memory():
    for odd in [1e15, -1e15, 1e308]:
        found = forecast(SCHEMA, "mine", own(), LINEAR, 2)
        assert found is not None
        found["models"][0]["low"][0] = odd
        found["own"]["score"] = odd
        told = describe_crossover({"crossover": found, "score": {"metric": "accuracy"}})
        assert told is not None
        assert len(told["chart"]) < 50_000


@pytest.mark.slow
def test_every_run_has_one_and_verify_makes_it_again(tmp_path):
    result = api.search_architecture(
        "digits", budget=Budget(2.0), strategy="fixed", seed=1, out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    found = result.document["crossover"]
    assert found["kind"] == "forecast"
    assert found["own"]["score"] == result.document["score"]["test"]
    assert "digits" not in json.dumps(found)
    assert not api.verify(tmp_path / "run")[1]
    page = (tmp_path / "run" / "release" / "report.html").read_text()
    assert ">Forecast for other models</h2>" in page
    assert found["sentence"].split(".")[0] in page
    place = tmp_path / "run" / "release" / "result.json"
    document = json.loads(place.read_text())
    document["crossover"]["sentence"] = "Take the largest."
    place.write_text(json.dumps(document))
    assert api.verify(tmp_path / "run")[1]
