"""The method `one-hot`: all features or those that are no indicators, by two scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selections import BUDGET, PLAIN, plan_of, planned, search_of

from pasearch import select_features
from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.budget import Budget
from pasearch.data.column import Column
from pasearch.data.schema import Schema
from pasearch.data.split import Split, make_split
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError, UsageError
from pasearch.features import wrappers
from pasearch.features.engine import PrivateRecordAccess
from pasearch.features.model import feature_names
from pasearch.features.plan import FeaturePlan
from pasearch.features.selector import Choice, make_choice
from pasearch.features.wrappers import make_one_hot_sets
from pasearch.planning import events_by_partition
from pasearch.verification.verify import verify

ONE_HOT = make_choice("one-hot", trainer="objective")
TARGET = Column(name="y", categories=("no", "yes"))
NUMBER = Column(name="a", low=0.0, high=9.0, bins=3)
TWO, THREE = ("left", "right"), ("red", "green", "blue")


def of_columns(*columns: Column) -> TableSchema:
    return TableSchema(columns=columns, target=TARGET)


def made(schema: Any, split: Split | None = None, choice: Choice = ONE_HOT) -> FeaturePlan:
    return planned(
        name="x", schema=schema, public=False, budget=BUDGET, choice=choice,
        split=make_split(300) if split is None else split,
    )  # fmt: skip


class TestSets:
    @pytest.mark.unit
    def test_are_all_features_and_those_that_are_no_indicators(self):
        schema = of_columns(
            NUMBER,
            Column(name="b", low=-1.0, high=1.0, bins=0),
            Column(name="c", categories=THREE),
            Column(name="d", categories=TWO),
            Column(name="e", vocabulary=("one", "two")),
            Column(name="f", kind="ignore"),
            Column(name="g", categories=("alone",)),
            Column(name="h", low=0.0, high=1.0, bins=(0.2, 0.7)),
        )
        every, plain = make_one_hot_sets(schema)
        names = np.array(feature_names(schema, math.prod(schema.shape)))
        assert every.all()
        assert len(every) == len(plain) == len(names)
        assert names[plain].tolist() == ["a", "b", "d = left", "h"]

    @pytest.mark.unit
    def test_of_one_kind_of_column(self):
        for columns, plain in [
            ((NUMBER,), ["a"]),
            ((Column(name="d", categories=TWO),), ["d = left"]),
            ((Column(name="c", categories=THREE), NUMBER), ["a"]),
        ]:
            schema = of_columns(*columns)
            names = np.array(feature_names(schema, math.prod(schema.shape)))
            assert names[make_one_hot_sets(schema)[1]].tolist() == plain
            assert made(schema).price.epsilon <= BUDGET.epsilon

    @pytest.mark.unit
    def test_a_table_with_nothing_to_compare_is_refused(self):
        for columns in [
            (Column(name="c", categories=THREE),),
            (Column(name="e", vocabulary=("one", "two")),),
            (Column(name="c", categories=THREE), Column(name="e", vocabulary=("one",))),
        ]:
            with pytest.raises(UsageError, match=r"numbers only.*method=all"):
                made(of_columns(*columns))

    @pytest.mark.unit
    def test_arrays_are_refused(self):
        for shape in ((6,), (4, 4)):
            with pytest.raises(UsageError, match=r"requires a table.*method=all"):
                made(Schema(shape=shape, low=0.0, high=1.0, classes=2))


class TestPlan:
    @pytest.mark.unit
    def test_two_models_and_two_scores(self):
        for trainer, number, trainings in [
            ("objective", False, 2),
            ("dpsgd", False, 2),
            ("objective", True, 1),
            ("dpsgd", True, 2),
        ]:
            plan = plan_of("one-hot", trainer, number=number)
            counts = {line.name: line.count for line in plan.lines}
            assert (counts["candidate training"], counts["score"]) == (trainings, 2)
            total, parts = price_partitions(events_by_partition(plan.lines), 1e-5)
            assert total == plan.price
            for name in ("train", "validation", "test"):
                assert 0.97 * BUDGET.epsilon < parts[name].epsilon <= BUDGET.epsilon
            once = [
                replace(line, count=1) if line.name in ("candidate training", "score") else line
                for line in plan.lines
            ]
            cheaper = price_partitions(events_by_partition(once), 1e-5)[1]
            assert cheaper["validation"].epsilon < 0.9 * parts["validation"].epsilon
            if trainings == 2:
                assert cheaper["train"].epsilon < 0.95 * parts["train"].epsilon


class TestRun:
    @pytest.mark.contract
    @pytest.mark.parametrize("trainer", ["objective", "dpsgd"])
    @pytest.mark.parametrize("number", [False, True])
    @pytest.mark.parametrize("winner", [0, 1])
    def test_the_larger_noisy_score_wins(
        self, trainer: str, number: bool, winner: int, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        plan = plan_of("one-hot", trainer, number=number)
        search, genuine = search_of(plan, tmp_path), PrivateRecordAccess.score_models

        def scored(self: PrivateRecordAccess, models: Any, trials: Any, keys: Any) -> list[int]:
            found = genuine(self, models, trials, keys)
            found[winner] = max(found) + 1
            return found

        monkeypatch.setattr(PrivateRecordAccess, "score_models", scored)
        chosen = search.run().chosen
        names = np.array(feature_names(plan.schema, math.prod(plan.schema.shape)))
        every = tuple(names)
        assert tuple(names[list(chosen.order)]) == (every, PLAIN)[winner]
        assert [tuple(names[list(places)]) for places, _ in chosen.trials] == [every, PLAIN]
        points = [score for _, score in chosen.trials]
        assert all(isinstance(each, int) for each in points)
        assert np.argmax(points) == winner
        assert chosen.view.columns.tolist() == sorted(chosen.order)
        assert chosen.model is None, "the winner is trained again, on what is left of epsilon"

    @pytest.mark.contract
    def test_a_third_set_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        genuine = make_one_hot_sets

        def three(schema: Any) -> np.ndarray:
            sets = genuine(schema)
            return np.concatenate([sets, ~sets[1:]])

        monkeypatch.setattr(wrappers, "make_one_hot_sets", three)
        for trainer, number, line in (
            ("objective", False, "candidate training"),
            ("dpsgd", False, "candidate training"),
            ("objective", True, "score"),
        ):
            search = search_of(plan_of("one-hot", trainer, number=number), tmp_path)
            with pytest.raises(BudgetError, match=f"'{line}' pays for 2 releases"):
                search.run()

    @pytest.mark.contract
    def test_under_a_schema_that_was_estimated(self, tmp_path: Path):
        pd = pytest.importorskip("pandas")
        rng = np.random.default_rng(0)
        age, city = rng.uniform(0, 100, 1500), rng.choice(["Rome", "Oslo", "Bonn"], 1500)
        frame = pd.DataFrame(
            {"age": age.round(1), "city": city, "pay": np.where(age > 50, "high", "low")}
        )
        result = select_features(
            frame, target="pay", budget=Budget(8.0), out=tmp_path / "x", method="one-hot",
            trainer="objective", max_categories=4, seed=1,
        )  # fmt: skip
        document = result.document
        assert document["events"][0]["name"] == "schema"
        assert verify(tmp_path / "x")[1] == []
        every, plain = (trial["features"] for trial in document["trials"])
        assert len(every) == document["best"]["of"]
        assert plain == ["age"]
        assert document["best"]["features"] in (every, plain)

    @pytest.mark.contract
    def test_whose_columns_all_turn_out_to_be_categories(self, tmp_path: Path):
        pd = pytest.importorskip("pandas")
        rng = np.random.default_rng(0)
        city = rng.choice(["Rome", "Oslo", "Bonn"], 1500)
        frame = pd.DataFrame({"city": city, "pay": np.where(city == "Rome", "high", "low")})
        result = select_features(
            frame, target="pay", budget=Budget(8.0), out=tmp_path / "x", method="one-hot",
            trainer="objective", max_categories=4, seed=1,
        )  # fmt: skip
        first, second = result.document["trials"]
        assert first["features"] == second["features"]
        assert len(result.features) == result.document["best"]["of"]
