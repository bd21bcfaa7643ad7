"""Choosing features on public data, from end to end: what is told, refused, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selections import SHARED, arrays, table

from pasearch import Budget, plan_feature_selection, select_features
from pasearch.api.resume import resume
from pasearch.data.partitions import Dataset, UnchargedReadError
from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.features.engine import PublicRecordAccess
from pasearch.results import FeatureResult, read_document
from pasearch.runs.ledger import Ledger
from pasearch.training import settings
from pasearch.verification.verify import verify

BUDGET = Budget(2.0, 1e-5)
OWN: dict[str, dict[str, Any]] = {
    "cfs-ga": {"population": 50, "generations": 2},
    "pafs": {"population": 4, "generations": 2},
    "top": {"k": 3},
}
SCHEMA = """target = "y"
columns.a = {low = 0, high = 1, bins = 4}
columns.b = {low = 0, high = 1, bins = 0}
columns.c = {categories = ["u", "v", "w"]}
columns.d = {categories = ["no", "yes"]}
columns.e = {vocabulary = ["one", "two"]}
columns.y = {categories = ["0", "1"]}
"""
OPEN = "".join(line for line in SCHEMA.splitlines(keepends=True) if ".c " not in line)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)


def write(path: Path, n: int = 300, seed: int = 0) -> Path:
    data = table(n, seed=seed)
    frame = pd.DataFrame(data.features._array, columns=list("abcde"))  # type: ignore[union-attr]
    frame.assign(y=data.labels._array).to_csv(path, index=False)  # type: ignore[union-attr]
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Private records, public ones, and what is declared of both."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return {
        "data": write(tmp_path / "people.csv"),
        "search_on": write(tmp_path / "others.csv", 400, 9),
        "schema": tmp_path / "schema.toml",
    }


def options(files: dict[str, Any], method: str, **more: Any) -> dict[str, Any]:
    return {
        "budget": BUDGET, "method": method, "trainer": "objective", "device": "cpu",
        **files, **OWN.get(method, {}), **more,
    }  # fmt: skip


def released(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "release").iterdir())}


class TestTold:
    @pytest.mark.contract
    @pytest.mark.parametrize("method", SHARED)
    def test_by_card_report_and_result(self, files: dict[str, Any], method: str, tmp_path: Path):
        result = select_features(out=tmp_path / "x", **options(files, method))
        document = read_document(tmp_path / "x")
        assert document == result.document
        assert document["searched_on"] == "others"
        assert document["selection"]["rule"] == "not private"
        assert [line["name"] for line in document["events"]] == [
            "feature means", "final training", "test accuracy"
        ]  # fmt: skip
        assert document["dataset"]["slots"] == {"train": 270, "test": 30}
        assert 0.97 * 2.0 < result.price.epsilon <= 2.0
        assert document["assumed_public"] == document["estimated_privately"] == []
        assert verify(tmp_path / "x")[1] == []
        assert ("trials" in document) == (method in ("pafs", "one-hot"))
        cfs = method.startswith("cfs")
        assert document.get("relevance_of_noise") == (0.0 if cfs else None)
        assert "Features selected on others, declared public" in result.card
        page = (tmp_path / "x/release/report.html").read_text()
        assert "others" in page
        assert ("from public data" in page) == cfs
        assert str(tmp_path).encode() not in b"".join(released(tmp_path / "x").values())

    @pytest.mark.unit
    def test_by_the_plan(self, files: dict[str, Any]):
        from pasearch.report.plan import feature_plan_text

        text = feature_plan_text(plan_feature_selection(**options(files, "top")))
        assert "on the public data others (no privacy cost)" in text
        assert "permute-and-flip" not in text, "nothing is picked privately"

    @pytest.mark.contract
    def test_of_a_private_choice_nothing_of_it_is(self, files: dict[str, Any], tmp_path: Path):
        del files["search_on"]
        result = select_features(out=tmp_path / "x", **options(files, "cfs-greedy"))
        assert result.document["searched_on"] is None
        assert result.document["selection"]["rule"] == "composition"
        assert result.document["relevance_of_noise"] > 0.0
        assert "Features selected on" not in result.card

    @pytest.mark.contract
    def test_with_what_is_taken_from_the_public_data(self, files: dict[str, Any], tmp_path: Path):
        files["schema"].write_text(OPEN)
        result = select_features(out=tmp_path / "x", **options(files, "one-hot"))
        document = result.document
        assert document["assumed_public"] == ["everything undeclared, from the public data others"]
        assert document["estimated_privately"] == []
        assert "schema" not in {line["name"] for line in document["events"]}
        assert "c = u" in document["trials"][0]["features"]

    @pytest.mark.contract
    def test_arrays(self, tmp_path: Path):
        x, y = arrays(400, seed=9)
        np.savez(tmp_path / "others.npz", x=x, y=y, bounds=np.array([0.0, 1.0]), classes=2)
        given: dict[str, Any] = {"bounds": (0.0, 1.0), "classes": 2, "trainer": "objective"}
        given["search_on"] = tmp_path / "others.npz"
        result = select_features(
            arrays(), budget=BUDGET, method="cfs-greedy", k=2, out=tmp_path / "x", device="cpu",
            **given,
        )  # fmt: skip
        assert result.document["best"]["places"][0] == 0
        assert len(result.features) == 2


class TestNothingPrivate:
    @pytest.mark.contract
    def test_is_in_the_plan(self, files: dict[str, Any], tmp_path: Path):
        plans = []
        for seed in (0, 5):
            write(tmp_path / "people.csv", 300, seed)
            plans.append(plan_feature_selection(**options(files, "pca")).to_json())
        assert plans[0] == plans[1]

    @pytest.mark.contract
    def test_is_read_without_a_charge(
        self, files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Teeth: reads of the private data in place of the public ones are stopped."""
        genuine = PublicRecordAccess.__init__

        def peeking(self: PublicRecordAccess, *, dataset: Dataset, **more: Any) -> None:
            genuine(self, dataset=private[0], **more)

        private: list[Dataset] = []
        partition = Dataset.partition
        monkeypatch.setattr(
            Dataset, "partition",
            lambda self, *rest: private.append(self) or partition(self, *rest),
        )  # fmt: skip
        monkeypatch.setattr(PublicRecordAccess, "__init__", peeking)
        for method in SHARED:
            private.clear()
            # After the means were charged, so the run can be resumed: it is not thrown away.
            with pytest.raises((UnchargedReadError, InterruptedRunError)) as caught:
                select_features(out=tmp_path / method, **options(files, method))
            assert "is private" in str(caught.value) + str(caught.value.__cause__)


class TestRefusals:
    def refused(self, files: dict[str, Any], message: str, **given: Any) -> None:
        folder = Path(files["search_on"]).parent
        before = sorted(folder.iterdir())
        with pytest.raises(UsageError, match=message):
            select_features(out=folder / "x", **options({**files, **given}, given["method"]))
        assert sorted(folder.iterdir()) == before

    @pytest.mark.unit
    def test_auto(self, files: dict[str, Any]):
        self.refused(files, "requires a method, such as `method=pca`", method="auto")

    @pytest.mark.unit
    def test_the_private_data_and_as_many_records(self, files: dict[str, Any], tmp_path: Path):
        same = "as many records as the private data, 300.*leave one record out"
        self.refused(files, same, method="top", search_on=files["data"])
        self.refused(files, same, method="top", search_on=write(tmp_path / "twin.csv", 300, 4))
        taken = write(tmp_path / "fewer.csv", 299, 4)
        assert plan_feature_selection(**options({**files, "search_on": taken}, "top")).searched_on

    @pytest.mark.unit
    def test_built_in_data_of_the_same_name(self):
        given: dict[str, Any] = {"data": "digits", "method": "top", "search_on": "digits"}
        with pytest.raises(UsageError, match="may be the private data themselves"):
            plan_feature_selection(budget=BUDGET, **given)

    @pytest.mark.unit
    @pytest.mark.parametrize("change", [
        lambda frame: frame.drop(columns="b"),
        lambda frame: frame.rename(columns={"b": "z"}),
        lambda frame: frame[[*"bacde", "y"]],
    ])  # fmt: skip
    def test_another_form(self, files: dict[str, Any], change: Any):
        """Without a schema, the public columns are told by their names and order."""
        path = files["search_on"]
        change(pd.read_csv(path, dtype=str)).to_csv(path, index=False)
        del files["schema"]
        self.refused(files, "expected the same|order|column", method="top", target="y")


class Crash(KeyboardInterrupt):
    """The run is interrupted."""


class TestResume:
    def stop(self, folder: Path, at: str, given: dict[str, Any]) -> None:
        genuine = Ledger._charge

        def charge(ledger: Ledger, line: str, *rest: Any) -> None:
            genuine(ledger, line, *rest)
            if line == at:
                raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "_charge", charge)
            with pytest.raises(InterruptedRunError):
                select_features(out=folder, **given)

    @pytest.mark.contract
    @pytest.mark.parametrize("method", ["cfs-ga", "one-hot"])
    def test_at_any_charge_gives_the_same(
        self, files: dict[str, Any], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        given = options({**files, "search_on": "others.csv"}, method, seed=9)
        whole = select_features(out=tmp_path / "whole", **given)
        for line in ("feature means", "final training", "test accuracy"):
            folder = tmp_path / line
            self.stop(folder, line, given)
            with monkeypatch.context() as patch:
                patch.chdir("/")  # what was named is found from elsewhere too
                assert isinstance(resume(folder), FeatureResult)
            assert released(folder) == released(tmp_path / "whole")
        assert whole.document["searched_on"] == "others"

    @pytest.mark.contract
    def test_is_refused_when_the_public_data_changed(self, files: dict[str, Any], tmp_path: Path):
        self.stop(tmp_path / "x", "feature means", options(files, "top"))
        path = files["search_on"]
        text = path.read_text()
        path.write_text(text.replace(",no,", ",yes,", 1))
        assert path.read_text() != text
        with pytest.raises(BudgetError):
            resume(tmp_path / "x")
        assert not (tmp_path / "x" / "private" / "keys").exists()
        path.write_text(text)
        with pytest.raises(UsageError):
            resume(tmp_path / "x")
