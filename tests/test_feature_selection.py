"""Feature selection from end to end: what a run takes, leaves, hides, and resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selections import COLUMNS, METHODS, WAYS, arrays, table

import pasearch
from pasearch import Budget, plan_feature_selection, select_features
from pasearch.accounting.selection import RunCountDistribution
from pasearch.api import lifecycle
from pasearch.api.resume import resume
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.features import wrappers
from pasearch.features.engine import PrivateRecordAccess
from pasearch.features.model import ReleasedClassifier, ReleasedRegressor
from pasearch.features.selector import SelectionResult
from pasearch.report.card import card_json, card_markdown
from pasearch.report.html import report_html
from pasearch.results import FeatureResult, load_result, read_document
from pasearch.runs.ledger import Ledger
from pasearch.training import settings
from pasearch.verification.verify import verify

BUDGET = Budget(2.0, 1e-5)
FILES = ["model.npz", "privacy-card.json", "privacy-card.md", "report.html", "result.json"]
OPTIONS: dict[str, Any] = {
    "trainer": "objective",
    "bounds": (0.0, 1.0),
    "classes": 2,
    "device": "cpu",
}
OWN: dict[str, dict[str, Any]] = {
    "cfs-ga": {"population": 50, "generations": 2},
    "pafs": {"population": 4, "generations": 2},
    "subsets": {"candidates": 3.0},
}
FEATURES = {"max-pool": 4, "one-hot": sum(column.width for column in COLUMNS)}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)


def select(out: Path, method: str, **options: Any) -> FeatureResult:
    given: Any = {**OPTIONS, **OWN.get(method, {}), "method": method, **options}
    if method == "one-hot":
        del given["bounds"], given["classes"]
    return select_features(data_of(method), budget=BUDGET, out=out, **given)


def data_of(method: str) -> Any:
    return table() if method == "one-hot" else arrays(image=method == "max-pool")


def fresh(method: str) -> Any:
    """Records to predict."""
    if method == "one-hot":
        return table(40, seed=5).features._array  # type: ignore[union-attr]
    return arrays(40, image=method == "max-pool", seed=5)[0]


def frame(n: int = 300) -> pd.DataFrame:
    x, y = arrays(n)
    return pd.DataFrame(
        {
            "age": (100 * x[:, 0]).round(1),
            "city": np.where(x[:, 1] > 0.5, "Rome", "Oslo"),
            "note": np.where(x[:, 2] > 0.5, "good", ""),
            "pay": np.where(y == 1, "high", "low"),
        }
    )


SCHEMA = """target = "pay"
[columns.age]
low = 0
high = 100
[columns.city]
categories = ["Rome", "Oslo"]
[columns.note]
vocabulary = ["good"]
[columns.pay]
categories = ["low", "high"]
"""


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "people.toml"
    path.write_text(SCHEMA)
    return path


def released(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "release").iterdir())}


class TestReports:
    @pytest.mark.unit
    def test_errors_of_a_number_are_what_lacks(self, tmp_path: Path):
        result = select_features(
            arrays(number=True), budget=Budget(50.0, 1e-5), out=tmp_path / "x", bounds=(0.0, 1.0),
            regression=True, trainer="dpsgd", method="pafs", population=3, generations=1,
            device="cpu",
        )  # fmt: skip
        document = result.document
        page = (tmp_path / "x/release/report.html").read_text()
        assert "Noisy mean absolute error" in page
        most = 100 * document["dataset"]["slots"]["validation"]
        for trial in document["trials"]:
            assert f">{100 * (1 - trial['noisy_correct'] / most):.1f} %" in page

    @pytest.mark.unit
    def test_names_are_escaped_in_markdown_alone(self, tmp_path: Path):
        document = select(tmp_path / "x", "all").document
        document = {**document, "estimated_privately": ["age: a number in [1, 2]"]}
        assert "age: a number in [1, 2]" in report_html(document)
        assert "age: a number in [1, 2]" in json.dumps(card_json(document))
        assert r"age: a number in \[1, 2\]" in card_markdown(document)

    @pytest.mark.unit
    @pytest.mark.parametrize(("told", "useless"), [(0.0, True), (0.01, True), (0.5, False)])
    def test_a_choice_that_noise_has_made_is_said_to_be(
        self, told: float, useless: bool, tmp_path: Path
    ):
        document = select(tmp_path / "x", "cfs-greedy").document
        seen = [{**each, "uncertainty": 0.0} for each in document["relevance"]]
        seen[1]["uncertainty"] = told
        # The run's own noise may have given it this warning.
        document = {**document, "warnings": [], "relevance": seen, "relevance_of_noise": 0.02}
        page = report_html(document)
        assert ("the selection is no better than random" in page) == useless


class TestEveryMethod:
    @pytest.mark.contract
    @pytest.mark.parametrize(("method", "more"), WAYS)
    @pytest.mark.parametrize("public", [False, True])
    def test_leaves_a_result_that_can_be_checked(
        self, method: str, more: Any, public: bool, tmp_path: Path
    ):
        result = select(tmp_path / "x", method, data_is_public=public, **more)
        assert sorted(released(tmp_path / "x")) == FILES
        assert not (tmp_path / "x" / "private" / "keys").exists()
        started = json.loads((tmp_path / "x" / "private" / "run.json").read_text())["started"]
        for each in (tmp_path / "x", tmp_path / "x" / "private", tmp_path / "x" / "release"):
            assert each.stat().st_mtime_ns == started * 10**9
        assert result.price.epsilon <= 2.0
        price, problems = verify(tmp_path / "x")
        assert problems == []
        assert price.epsilon == pytest.approx(result.price.epsilon)

        document = read_document(tmp_path / "x")
        assert document["task"] == "feature selection"
        assert document["strategy"]["name"] == method
        assert ("trials" in document) == (method in ("pafs", "one-hot"))
        assert ("relevance" in document) == method.startswith("cfs")
        assert ("by_size" in document) == public
        assert ("exact" in document["score"]) == public
        if public:
            sizes = [each["features"] for each in document["by_size"]]
            assert sizes == sorted(set(sizes))
            assert sizes[-1] == document["best"]["of"] == FEATURES.get(method, 6)
            assert all(
                0 <= each[k] <= 1 for each in document["by_size"] for k in each if k[0] != "f"
            )

        assert np.flatnonzero(result.support).tolist() == sorted(document["best"]["places"])
        places = document["best"]["places"]
        assert len(places) == len(result.features) == len(set(result.features))
        assert report_html(document) == (tmp_path / "x/release/report.html").read_text()
        card = (tmp_path / "x/release/privacy-card.md").read_text()
        for line in document["events"]:
            assert f"{line['name']}: reads `{line['partition']}`" in card
        again = load_result(tmp_path / "x")
        assert isinstance(again, FeatureResult)
        assert again.document == result.document
        assert again.card == result.card == card

    @pytest.mark.contract
    @pytest.mark.parametrize("method", METHODS)
    def test_hands_over_a_fitted_estimator(self, method: str, tmp_path: Path):
        result = select(tmp_path / "x", method)
        x, model = fresh(method), pasearch.load(tmp_path / "x")
        assert isinstance(model.model, ReleasedClassifier)
        assert model.predict(x).tolist() == result.predict(x).tolist()
        chances = model.predict_proba(x)
        assert chances.sum(axis=1) == pytest.approx(1)
        assert model.classes_[chances.argmax(axis=1)].tolist() == model.predict(x).tolist()
        second = model.predict(x) == model.classes_[1]
        assert ((model.decision_function(x) > 0) == second).all()
        unused = np.setdiff1d(np.arange(model.coef_.shape[1]), result.document["best"]["places"])
        assert not model.coef_[:, unused].any()
        with pytest.raises(UsageError, match="already trained with differential privacy"):
            model.fit(x, None)

    @pytest.mark.contract
    @pytest.mark.parametrize("method", ["all", "pafs", "subsets"])
    def test_by_steps(self, method: str, tmp_path: Path):
        result = select(tmp_path / "x", method, trainer="dpsgd")
        assert result.document["recipe"]["trainer"] == "dpsgd"
        assert verify(tmp_path / "x")[1] == []
        assert pasearch.load(tmp_path / "x").predict(arrays(5)[0]).shape == (5,)

    @pytest.mark.contract
    @pytest.mark.parametrize("method", ["all", "cfs-greedy", "top", "pca", "pafs", "subsets"])
    def test_of_a_number(self, method: str, tmp_path: Path):
        x, y = arrays(number=True)
        given = {**OPTIONS, **OWN.get(method, {}), "method": method}
        given |= {"classes": None, "regression": True}
        result = select_features((x, y), budget=BUDGET, out=tmp_path / "x", **given)
        model = pasearch.load(tmp_path / "x")
        assert isinstance(model.model, ReleasedRegressor)
        assert model.predict(x).shape == (300,)
        assert verify(tmp_path / "x")[1] == []
        assert result.price.epsilon <= 2.0


class TestSources:
    @pytest.mark.contract
    def test_a_frame_and_its_file_are_one_data_set(self, tmp_path: Path, schema: Path):
        path = tmp_path / "people.csv"
        frame().to_csv(path, index=False)
        options: dict[str, Any] = {
            "method": "cfs-greedy",
            "trainer": "objective",
            "schema": schema,
            "seed": 4,
        }
        plans = [
            plan_feature_selection(data, budget=BUDGET, **options).to_json()
            for data in (frame(), path)
        ]
        assert plans[0]["lines"] == plans[1]["lines"]
        for name, data in (("frame", frame()), ("file", path)):
            result = select_features(data, budget=BUDGET, out=tmp_path / name, **options)
            assert set(result.columns) <= {"age", "city", "note"}
            assert set(result.predict(frame(5))) <= {"low", "high"}
            assert result.document["assumed_public"] == (
                [TYPES_DESCRIPTION] if name == "frame" else []
            )
            assert result.document["estimated_privately"] == []

    @pytest.mark.contract
    def test_what_is_undeclared_is_estimated(self, tmp_path: Path):
        result = select_features(
            frame(1200), target="pay", budget=Budget(8.0), out=tmp_path / "x", method="top",
            trainer="objective", k=3, max_categories=4,
        )  # fmt: skip
        document = result.document
        assert len(document["estimated_privately"]) == 4
        assert document["events"][0]["name"] == "schema"
        assert verify(tmp_path / "x")[1] == []
        assert len(result.features) <= 3

    @pytest.mark.unit
    @pytest.mark.parametrize(("given", "message"), [
        ({"methods": "all"}, "methods: unknown option"),
        ({"epsilon": 1.0}, r"epsilon: unknown option.*budget=Budget\(epsilon"),
        ({"k": 99, "method": "top"}, "k is 99"),
        ({"device": "abacus"}, "abacus"),
        ({"data_is_public": "yes"}, "data_is_public"),
        ({"split": "0.5,0.5"}, "split"),
        ({"generations": 9, "method": "auto"}, "`generations=` requires method cfs-ga or pafs"),
        ({"until_no_gain": True, "method": "cfs-ga"}, "`until_no_gain=` requires method cfs-"),
        ({"selection_share": 0.3}, "'all' the selection reads no training records"),
        ({"selection_share": 0.3, "method": "subsets"}, "'subsets' the selection reads no"),
        ({"selection_share": 0.3, "method": "pafs", "search_share": 0.2}, "than the model: remove"),
    ])  # fmt: skip
    def test_refusals_leave_nothing(
        self, given: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        options: Any = {**OPTIONS, "method": "all", **given}
        with pytest.raises(UsageError, match=message):
            select_features(arrays(), budget=BUDGET, **options)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.unit
    def test_frames_without_a_form(self, tmp_path: Path):
        for bad, message in (
            (frame()[["pay"]], "fewer than two columns"),
            (frame().assign(pay=1 + 2j), "column 'pay' is of type complex128"),
            (pd.concat([frame()[["age"]], frame()], axis=1), "2 columns 'age'"),
            (frame()[:0], "has no rows"),
        ):
            with pytest.raises(UsageError, match=message):
                select_features(bad, out=tmp_path / "x")
        with pytest.raises(UsageError, match="salary"):
            select_features(frame(), target="salary", out=tmp_path / "x")
        with pytest.raises(UsageError, match=r"budget is 1\.0"):
            select_features(frame(), target="pay", budget=1.0, out=tmp_path / "x")  # type: ignore[arg-type]
        assert not (tmp_path / "x").exists()


class TestSecrets:
    """How many sets repeat-and-select trained, and which lost, is in no released file."""

    def of_count(self, count: int, folder: Path, trainer: str) -> dict[str, bytes]:
        """The release of a run whose first candidate wins, among so many."""

        def first(self, models, trials, keys):
            with self.open_line("score", *keys):
                return [1000, *([0] * (len(models) - 1))]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunCountDistribution, "sample", lambda law, uniform: count)
            patch.setattr(PrivateRecordAccess, "score_models", first)
            select(folder, "subsets", seed=5, trainer=trainer)
        return released(folder)

    @pytest.mark.contract
    def test_releases_do_not_depend_on_the_number_of_runs(self, tmp_path: Path):
        few, many = (self.of_count(k, tmp_path / f"k{k}", "dpsgd") for k in (1, 17))
        assert few == many

    @pytest.mark.contract
    def test_a_leak_of_it_would_be_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        genuine, counts = wrappers.draw_masks, []
        monkeypatch.setattr(
            wrappers,
            "draw_masks",
            lambda count, *rest: counts.append(count) or genuine(count, *rest),
        )
        of = SelectionResult.of

        def leaking(means, order, **more):
            told = np.full(len(means), counts[-1] / 10)
            return of(means, order, **more, to_class=told, blank=0.0)

        monkeypatch.setattr(SelectionResult, "of", leaking)
        few, many = (self.of_count(k, tmp_path / f"k{k}", "objective") for k in (1, 4))
        for name in ("result.json", "report.html"):
            assert few[name] != many[name]

    @pytest.mark.contract
    def test_only_the_law_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        result = select(tmp_path / "x", "subsets")
        document = result.document
        assert "secret" in document["selection"]["law"]
        assert not {"trials", "unique_trials", "curves"} & set(document)
        assert {line["count"] for line in document["events"]} == {1}
        assert "geometric with mean 3" in result.card
        assert capsys.readouterr() == ("", "")

    @pytest.mark.contract
    def test_nothing_released_tells_the_time_or_a_path(self, tmp_path: Path):
        select(tmp_path / "x", "subsets")
        for content in released(tmp_path / "x").values():
            assert str(tmp_path).encode() not in content
            assert b"seconds_since_start" not in content


class Crash(KeyboardInterrupt):
    """The run is interrupted."""


class TestResume:
    def crashing(self, at: int, after: bool, patch: pytest.MonkeyPatch) -> list[str]:
        """Let the charge of this number fail, or the read after it."""
        charged: list[str] = []
        genuine = Ledger._charge

        def charge(ledger: Ledger, line: str, names: list[str], keys: list[str]) -> None:
            charged.append(line)
            if len(charged) - 1 == at and not after:
                raise Crash
            genuine(ledger, line, names, keys)
            if len(charged) - 1 == at:
                raise Crash

        patch.setattr(Ledger, "_charge", charge)
        return charged

    def resumed(self, method: str, folder: Path, **options: Any) -> None:
        """A run that is interrupted at any charge ends as one that is not."""
        options = {"seed": 9, **options}
        with pytest.MonkeyPatch.context() as patch:
            charges = len(self.crashing(-1, False, patch))
            charged = self.crashing(-1, False, patch)
            select(folder / "whole", method, **options)
            charges = len(charged)
        whole = released(folder / "whole")
        assert charges > 2
        for at in range(charges):
            path = folder / f"{at}"
            with pytest.MonkeyPatch.context() as patch:
                self.crashing(at, at % 2 == 0, patch)
                with pytest.raises(InterruptedRunError):
                    select(path, method, **options)
            assert isinstance(resume(path, data=data_of(method)), FeatureResult)
            assert released(path) == whole
            with Ledger.open(path / "private" / "ledger.sqlite") as ledger:
                again = ledger.spent()
            with Ledger.open(folder / "whole" / "private" / "ledger.sqlite") as ledger:
                assert ledger.spent() == again

    @pytest.mark.contract
    @pytest.mark.parametrize("method", ["top", "cfs-ga", "pca", "one-hot", "subsets", "max-pool"])
    def test_at_any_charge_gives_the_same(self, method: str, tmp_path: Path):
        self.resumed(method, tmp_path)

    @pytest.mark.contract
    def test_of_a_genetic_search_gives_the_same(self, tmp_path: Path):
        self.resumed("pafs", tmp_path, population=2)

    @pytest.mark.unit
    def test_a_frame_and_a_file_from_elsewhere(
        self, tmp_path: Path, schema: Path, monkeypatch: pytest.MonkeyPatch
    ):
        frame().to_csv(tmp_path / "people.csv", index=False)
        options: dict[str, Any] = {
            "budget": BUDGET,
            "schema": schema,
            "trainer": "objective",
            "method": "pca",
        }
        monkeypatch.chdir(tmp_path)
        for name, data in (("frame", frame()), ("file", "people.csv")):
            with monkeypatch.context() as patch:
                self.crashing(1, True, patch)
                with pytest.raises(InterruptedRunError):
                    select_features(data, out=tmp_path / name, **options)
        (tmp_path / "there").mkdir()
        monkeypatch.chdir(tmp_path / "there")
        assert resume("../file").price.epsilon <= 2.0
        assert resume("../frame", data=frame()).price.epsilon <= 2.0

    @pytest.mark.unit
    def test_an_error_before_anything_was_spent_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def refuse(*arguments, **options):
            raise UsageError("no")

        monkeypatch.setattr(lifecycle, "compute_fingerprint", refuse)
        with pytest.raises(UsageError, match="no"):
            select(tmp_path / "x", "all")
        assert not (tmp_path / "x").exists()
