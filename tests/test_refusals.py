"""Runs that public facts show to fail are refused before a charge, and class lists are found."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pasearch import (
    Budget,
    compare_workflows,
    plan_architecture_search,
    plan_feature_selection,
    plan_training,
    search_architecture,
    select_features,
    train,
)
from pasearch.errors import BudgetError, ChargedError, UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.sklearn_api.estimators import PrivateArchitectureSearchClassifier

TINY = Budget(0.001)
NOISE = "signal-to-noise ratio"
BOUNDS = {"low": -4, "high": 4}
COLUMNS = {"a": BOUNDS, "b": BOUNDS}


def frame(target: Any, n: int = 2000) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"a": draw.normal(size=n), "b": draw.normal(size=n)})
    table["y"] = target(n) if callable(target) else target
    return table


def digits_01(n: int) -> np.ndarray:
    return np.arange(n) % 2


def dates_of(n: int) -> pd.DatetimeIndex:
    return pd.to_datetime(["2020-01-01", "2021-01-01"] * (n // 2))


def rare(n: int, count: int, path: Path) -> Path:
    """A table without a schema whose class "yes" has `count` records."""
    table = frame(["yes"] * count + ["no"] * (n - count), n).round(3)
    table.to_csv(path, index=False)
    return path


class TestSignal:
    @pytest.mark.unit
    @pytest.mark.parametrize("task", ["arch", "features", "train"])
    def test_a_run_that_can_only_guess_is_refused(self, run: Any, task: str):
        strategy = ["--strategy", "paas"] if task == "arch" else []
        code, out, error = run(task, "digits", "--eps", 0.0001, *strategy, "--out", "x")
        assert (code, out) == (3, "")
        assert error.startswith("Error: This run is certain to fail, so nothing was read or charg")
        assert NOISE in error
        assert "raise --eps" in error
        assert "use --force" in error
        assert not Path("x").exists()

    @pytest.mark.unit
    def test_its_plan_says_so_and_charges_nothing(self, run: Any):
        code, out, _ = run("plan", "arch", "digits", "--eps", 0.001)
        assert code == 3
        assert out.startswith(f"Refused: the {NOISE}")
        assert "with --force, about" in out
        assert run("plan", "arch", "digits", "--eps", 0.001, "--force")[0] == 0
        code, out, _ = run("plan", "arch", "digits", "--eps", 0.001, "--json")
        assert code == 3
        assert NOISE in json.loads(out)["refusals"][0]

    @pytest.mark.unit
    @pytest.mark.parametrize("plan", [plan_architecture_search, plan_feature_selection])
    def test_a_budget_that_is_enough_is_not_refused(self, plan: Any):
        assert plan("digits").refusals == ()
        assert plan("digits", budget=TINY, data_is_public=True).refusals == ()
        assert "Refused" not in str(plan("digits"))

    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("do", "more"),
        [(search_architecture, {"strategy": "fixed"}), (select_features, {}), (train, {})],
    )
    def test_force_runs_it(self, do: Any, more: dict[str, Any], tmp_path: Path):
        given = {"budget": TINY, "device": "cpu", "progress": False, **more}
        with pytest.raises(BudgetError, match=NOISE):
            do("digits", out=tmp_path / "a", **given)
        assert not (tmp_path / "a").exists()
        result = do("digits", out=tmp_path / "b", force=True, **given)
        assert result.price.epsilon <= TINY.epsilon
        assert any("below the noise level" in each for each in result.document["warnings"])

    @pytest.mark.unit
    def test_a_comparison_is_refused_the_same_way(self):
        with pytest.raises(BudgetError, match=r"force=True"):
            compare_workflows("digits", data_is_public=True, epsilon=0.01, space="fcn")

    @pytest.mark.unit
    def test_an_estimator_is_refused_and_may_be_forced(self):
        x, y = np.random.default_rng(0).random((60, 2)), np.arange(60) % 2
        given: Any = {
            "classes": [0, 1], "bounds": (0, 1), "epsilon": 0.1, "strategy": "fixed",
            "space": "fcn", "steps": 2, "device": "cpu",
        }  # fmt: skip
        with pytest.raises(BudgetError, match=NOISE):
            PrivateArchitectureSearchClassifier(**given).fit(x, y)
        fitted = PrivateArchitectureSearchClassifier(**given, force=True).fit(x, y)
        assert fitted.predict(x).shape == (60,)


FLOATS = {
    "numpy": lambda n: np.linspace(0, 1, n),
    "pandas": lambda n: pd.array(np.linspace(0, 1, n), dtype="Float64"),
    "arrow": lambda n: pd.array(np.linspace(0, 1, n), dtype=pd.ArrowDtype(pa.float32())),
    "decimal": lambda n: pd.array([Decimal("1.5")] * n, dtype=pd.ArrowDtype(pa.decimal128(8, 2))),
}


class TestTypes:
    @pytest.mark.unit
    @pytest.mark.parametrize("kind", FLOATS)
    @pytest.mark.parametrize("parquet", [False, True])
    def test_a_target_of_fractions_must_be_declared(self, kind: str, parquet: bool, tmp_path: Path):
        data: Any = frame(FLOATS[kind])
        if parquet:
            data.to_parquet(tmp_path / "t.parquet")
            data = tmp_path / "t.parquet"
        (reason,) = plan_training(data).refusals
        assert "type of target 'y' is" in reason
        assert "`regression=True`" in reason
        with pytest.raises(BudgetError, match="allows fractions"):
            train(data, out=tmp_path / "x")
        assert not (tmp_path / "x").exists()
        for told in ({"regression": True}, {"labels": "0,1"}):
            assert plan_training(data, **told).refusals == ()

    @pytest.mark.unit
    def test_in_a_csv_file_it_is_a_warning_with_the_option(self, run: Any, tmp_path: Path):
        frame(FLOATS["numpy"]).to_csv(tmp_path / "t.csv", index=False)
        code, out, _ = run("plan", "train", tmp_path / "t.csv")
        assert code == 0
        assert "Refused" not in out
        assert "the type of target 'y' is not declared" in out
        assert "use --regression" in out

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("target", "classes", "possible"),
        [
            (digits_01, ["no", "yes"], False),
            (digits_01, ["0", "1"], True),
            (digits_01, ["0", "1", "unknown"], True),
            (digits_01, ["0", "unknown"], False),
            (digits_01, ["0.5", "1.5"], False),
            (lambda n: digits_01(n) * 1.0, ["0", "1"], True),
            (lambda n: digits_01(n) * 1.0, ["no", "yes"], False),
            (lambda n: digits_01(n) == 1, ["no", "yes"], False),
            (lambda n: digits_01(n) == 1, ["True", "False"], True),
            (lambda n: pd.Categorical(["a", "b"] * (n // 2)), ["no", "yes"], False),
            (lambda n: pd.Categorical(["a", "b"] * (n // 2)), ["a", "b"], True),
            (lambda n: pd.array(digits_01(n), dtype="Int8"), ["no", "yes"], False),
            (lambda n: ["a", "b"] * (n // 2), ["no", "yes"], True),  # texts may be any
            (dates_of, ["2020-01-01", "2021-01-01"], False),
            (dates_of, ["2020-01-01 00:00:00", "2021-01-01 00:00:00"], True),
            (lambda n: digits_01(n) + 2**62, [str(2**62), str(2**62 + 1)], True),
        ],
    )
    @pytest.mark.parametrize("parquet", [False, True])
    def test_classes_that_the_type_cannot_hold_are_refused(
        self, target: Any, classes: list[str], possible: bool, parquet: bool, tmp_path: Path
    ):
        table = frame(target)
        data: Any = table
        if parquet:
            data = tmp_path / "t.parquet"
            table.to_parquet(data)
            # What a dictionary holds is no form of a Parquet file.
            possible = possible or isinstance(table["y"].dtype, pd.CategoricalDtype)
        schema = {"target": "y", "columns": {**COLUMNS, "y": {"categories": classes}}}
        reasons = plan_training(data, schema=schema).refusals
        assert (reasons == ()) == possible
        assert possible or "can occur" in reasons[0]

    @pytest.mark.unit
    @pytest.mark.parametrize("parquet", [False, True])
    def test_undeclared_dates_are_named_as_categories(self, parquet: bool, tmp_path: Path):
        table = frame(lambda n: ["no", "yes"] * (n // 2))
        table.insert(0, "when", dates_of(len(table)))
        data: Any = table
        if parquet:
            data = tmp_path / "t.parquet"
            table.to_parquet(data)
        assert "here 'when'" in " ".join(plan_training(data).notes)
        schema = {
            "target": "y",
            "columns": {"when": {"lower": "2020-01-01", "upper": "2021-12-31"}},
        }
        assert "here 'when'" not in " ".join(plan_training(data, schema=schema).notes)


class TestFewRecords:
    @pytest.mark.unit
    def test_a_schema_that_cannot_be_estimated_is_refused(self, tmp_path: Path):
        table = frame(["no", "yes"] * 60, 120).astype(str)
        plan = plan_training(table)
        assert "the undeclared schema would be estimated from 12 records" in plan.refusals[0]
        with pytest.raises(BudgetError, match="certain to fail"):
            train(table, out=tmp_path / "x")
        schema = {"target": "y", "columns": {**COLUMNS, "y": {"categories": ["no", "yes"]}}}
        assert plan_training(table, schema=schema).refusals == ()

    @pytest.mark.unit
    @pytest.mark.parametrize("plan", [plan_training, plan_feature_selection])
    @pytest.mark.parametrize(("epsilon", "refused"), [(0.03, True), (1.0, False)])
    def test_classes_that_cannot_be_found_are_refused(
        self, epsilon: float, refused: bool, plan: Any
    ):
        table, schema = frame(["no", "yes"] * 200, 400), {"target": "y", "columns": COLUMNS}
        found = plan(table, schema=schema, budget=Budget(epsilon)).refusals
        assert any("the undeclared classes would be" in each for each in found) == refused


class TestLabels:
    @pytest.mark.unit
    def test_are_the_shortest_declaration_of_classes(self, tmp_path: Path, run: Any):
        table = frame(["no", "yes"] * 1000)
        table.to_csv(tmp_path / "t.csv", index=False)
        table.to_parquet(tmp_path / "t.parquet")
        given: list[Any] = [table, tmp_path / "t.csv", tmp_path / "t.parquet"]
        for data in given:
            for labels in ("no,yes", "no, yes", ["no", "yes"]):
                target = plan_training(data, labels=labels).schema.target
                assert (target.kind, target.categories) == ("category", ("no", "yes"))
        code, out, _ = run("plan", "train", tmp_path / "t.csv", "--labels", "no,yes")
        assert code == 0
        assert "2 classes" in out
        assert "is not declared" not in out

    @pytest.mark.unit
    def test_of_numbers_are_written_as_the_table_does(self):
        plan = plan_training(frame(digits_01), labels=[0, 1])
        assert plan.schema.target.categories == ("0", "1")
        assert plan.refusals == ()

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("labels", "more", "told"),
        [
            ("no", {}, "has 1 class: expected two or more"),
            ("no,", {}, "a label that means missing"),
            (["no", None], {}, "a label that means missing"),
            ("no,yes", {"regression": True}, "regression=True. predicts a number"),
            ("no,no", {}, "no"),
            (
                "no,yes",
                {"schema": {"target": "y", "columns": {"y": {"categories": ["a", "b"]}}}},
                "already declares column .y. as classes",
            ),
        ],
    )
    def test_that_make_no_sense_are_refused(self, labels: Any, more: dict[str, Any], told: str):
        with pytest.raises(UsageError, match=told):
            plan_training(frame(["no", "yes"] * 1000), labels=labels, **more)

    @pytest.mark.unit
    def test_are_of_tables_only(self):
        with pytest.raises(UsageError, match="does not apply to"):
            plan_training("digits", labels="0,1")


class TestClassList:
    @pytest.mark.unit
    @pytest.mark.parametrize("n", [7800, 50_000])
    @pytest.mark.parametrize("plan", [plan_training, plan_feature_selection])
    def test_is_paid_by_the_training_records(self, plan: Any, n: int):
        found = plan(frame(["no"] * n, n).astype(str))
        (line,) = [each for each in found.lines if each.name == "classes"]
        assert (line.partition, line.count) == ("train", 1)
        assert line.event == found.class_estimate.event
        assert found.price.epsilon <= found.budget.epsilon
        # A class of 2 % is found; a larger table does not pay for less than 1 %.
        count = found.class_estimate.category_mechanism.compute_detectable_count(0.99)
        assert count <= 0.02 * found.split.train
        assert n < 10_000 or count >= 0.009 * found.split.train

    @pytest.mark.unit
    def test_a_class_of_the_stated_count_is_found_so_often(self):
        plan = plan_training(frame(["no"] * 7800, 7800).astype(str))
        stated = plan.class_estimate.category_mechanism.compute_detectable_count(0.99)
        keys, times = Keys.from_seed(5), 400
        schema = plan.schema
        labels = np.array(["yes"] * round(stated) + ["no"] * 2000, object)
        found = [
            len(
                plan.class_estimate.estimate_classes(
                    schema, labels, keys.stream("t", i)
                ).target.categories
            )
            for i in range(times)
        ]
        assert 0.97 * times <= found.count(2) < times

    @pytest.mark.contract
    def test_of_one_class_ends_the_run_before_the_training(self, tmp_path: Path):
        path, ledger = rare(4000, 3, tmp_path / "t.csv"), tmp_path / "l"
        with pytest.raises(ChargedError) as caught:
            train(
                path, out=tmp_path / "x", ledger=ledger, ledger_budget=(3.0, 1e-5), device="cpu",
                progress=False,
            )  # fmt: skip
        told = str(caught.value)
        assert "only 'no' was found, so no model was trained" in told
        assert "The whole plan stays charged" in told
        assert "`labels=no,yes`" in told
        assert caught.value.exit_code == 3
        private = tmp_path / "x" / "private"
        assert (private / "ledger.sqlite").exists()
        assert not (private / "keys").exists()
        assert not any((tmp_path / "x" / "release").iterdir())
        assert SharedLedger.open(ledger).spent().epsilon > 0.5

    @pytest.mark.contract
    @pytest.mark.parametrize("do", [train, select_features])
    def test_of_two_classes_trains(self, do: Any, tmp_path: Path):
        path = rare(4000, 400, tmp_path / "t.csv")
        result = do(path, out=tmp_path / "x", device="cpu", progress=False)
        assert sorted(result.schema.target.categories) == ["no", "yes"]
        assert result.price.epsilon <= 1.0
        assert [e["name"] for e in result.document["events"]].count("classes") == 1
