"""What a notebook shows of a plan and of a result."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.displays import TrialsDisplay
from pasearch.errors import UsageError
from pasearch.results import SearchResult


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    return api.search_architecture(
        "digits", budget=Budget(2.0), strategy="ahead", candidates=3, steps=6, seed=1,
        device="cpu", out=tmp_path_factory.mktemp("runs") / "run",
    )  # fmt: skip


@pytest.mark.slow
class TestLeaderboard:
    def test_every_trial_is_there_and_the_best_is_first(self, result: SearchResult):
        frame = result.leaderboard()
        assert list(frame.columns) == [
            "trial", "network", "parameters", "settings", "score", "released", "metric",
        ]  # fmt: skip
        assert sorted(frame["trial"]) == [1, 2, 3]
        lower = frame["metric"][0].startswith("Noisy Brier")
        assert frame["score"].is_monotonic_increasing is lower
        assert frame["released"].tolist() == [True, False, False]
        assert frame["parameters"][0] == result.document["best"]["parameters"]

    def test_frame_and_figure_show_one_number_under_one_name(self, result: SearchResult):
        for noun in ["accuracy", "Brier score", "log loss"]:
            document = copy.deepcopy(result.document)
            document["strategy"]["judged_by"] = noun
            shown = SearchResult(path=result.path, document=document, card=result.card)
            frame, figure = shown.leaderboard(), TrialsDisplay.from_result(document)
            scores = dict(zip(frame["trial"], frame["score"], strict=True))
            assert [scores[trial] for trial in (1, 2, 3)] == list(figure.scores)
            assert set(frame["metric"]) == {figure.measure.splitlines()[0]}
            assert noun in figure.measure
            assert frame["score"].is_monotonic_decreasing is (noun == "accuracy")

    def test_secret_trials_stay_secret(self, result: SearchResult):
        document = copy.deepcopy(result.document)
        document["selection"]["rule"] = "repeat-and-select"
        hidden = SearchResult(path=result.path, document=document, card=result.card)
        with pytest.raises(UsageError, match="secret"):
            hidden.leaderboard()

    def test_a_notebook_shows_score_and_price_and_escapes_names(self, result: SearchResult):
        shown = result._repr_html_()
        assert f"{result.document['score']['test']:.3f}" in shown
        assert f"{result.price.epsilon:.4f}" in shown
        assert "NOT PRIVATE" in shown, "it was given a seed"
        document = copy.deepcopy(result.document)
        document["dataset"]["name"] = "<b>mine</b>"
        evil = SearchResult(path=Path("<b>run</b>"), document=document, card=result.card)
        assert "<b>" not in evil._repr_html_()


def two_columns() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((300, 4))
    return x, (x[:, 0] > 0.5).astype(int)


OF_ARRAYS: dict[str, Any] = {"bounds": (0, 1), "classes": 2, "budget": Budget(4.0)}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> api.FeatureResult:
    return api.select_features(
        two_columns(), **OF_ARRAYS, method="pafs", population=3, generations=2, seed=1,
        out=tmp_path_factory.mktemp("runs") / "run",
    )  # fmt: skip


@pytest.mark.unit
class TestPlan:
    def test_it_shows_budget_price_and_every_release(self):
        for plan in [
            api.plan_architecture_search("digits", budget=Budget(2.0)),
            api.plan_training("digits", budget=Budget(2.0)),
            api.plan_feature_selection("digits", budget=Budget(2.0)),
        ]:
            shown = plan._repr_html_()
            assert "no private record was read" in shown
            assert f"epsilon {plan.price.epsilon:.4f}" in shown
            assert "epsilon 2 at delta 0.0001" in shown
            for line in plan.lines:
                assert line.name in shown
            assert str(plan).startswith("Budget: epsilon 2,")
            assert str(plan).splitlines()[-1].startswith("Privacy cost: epsilon")

    def test_the_number_of_trainings_stays_secret(self):
        plan = api.plan_architecture_search("digits", budget=Budget(8.0), strategy="rs")
        assert "the best of a secret number" in plan._repr_html_()

    def test_names_are_escaped(self):
        x, y = two_columns()
        frame = pd.DataFrame({"<b>a</b>": x[:, 0], "y": y})
        shown = api.plan_training(frame, budget=Budget(8.0))._repr_html_()
        assert "<b>a" not in shown
        assert "&lt;b&gt;a" in shown
        assert "No schema given, so estimated with DP" in shown


@pytest.mark.unit
class TestFeatures:
    def test_a_notebook_shows_the_features(self, chosen: api.FeatureResult):
        shown = chosen._repr_html_()
        assert f"{len(chosen.features)} of 4" in shown
        assert f"epsilon {chosen.price.epsilon:.4f}" in shown
        for line in chosen.document["events"]:
            assert line["name"] in shown


@pytest.fixture
def pyplot() -> Iterator[Any]:
    matplotlib = pytest.importorskip("matplotlib", reason="needs pasearch[plots]")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.mark.unit
class TestPlot:
    def test_every_figure_of_a_result(self, chosen: api.FeatureResult, pyplot: Any):
        for kind, display in (
            (None, "TrialsDisplay"), ("trials", "TrialsDisplay"), ("features", "FeaturesDisplay"),
            ("budget", "BudgetDisplay"),
        ):  # fmt: skip
            drawn = chosen.plot(kind)
            assert type(drawn).__name__ == display
            assert drawn.figure_ is drawn.ax_.figure
        own = pyplot.subplots()[1]
        assert chosen.plot("budget", ax=own).ax_ is own

    def test_of_a_network_that_was_compared_with_none(self, tmp_path: Path, pyplot: Any):
        result = api.train(two_columns(), **OF_ARRAYS, steps=2, device="cpu", out=tmp_path / "x")
        assert type(result.plot()).__name__ == "BudgetDisplay"
        assert type(result.plot("schedule")).__name__ == "ScheduleDisplay"

    def test_no_such_figure(self, chosen: api.FeatureResult):
        with pytest.raises(UsageError, match="expected one of trials, features, budget"):
            chosen.plot("schedule")
