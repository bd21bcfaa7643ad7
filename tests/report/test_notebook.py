"""What a notebook shows of a result."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import pasearch as api
from pasearch.accounting.budget import Budget
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
            "trial", "network", "parameters", "settings", "score", "released",
        ]  # fmt: skip
        assert sorted(frame["trial"]) == [1, 2, 3]
        assert frame["score"].is_monotonic_decreasing
        assert frame["released"].tolist() == [True, False, False]
        assert frame["parameters"][0] == result.document["best"]["parameters"]

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
