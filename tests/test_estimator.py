"""What `pasearch.load` gives: one estimator for every task, which scikit-learn takes as fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

import pasearch
from pasearch import Budget, TrainedClassifier, TrainedRegressor, UsageError
from pasearch.features.model import ReleasedClassifier

SCHEMA: dict[str, Any] = {
    "target": "income",
    "columns": {
        "age": {"low": 18, "high": 90},
        "city": {"categories": ["Rome", "Oslo"]},
        "note": {"kind": "ignore"},
        "income": {"categories": ["low", "high"]},
    },
}
BUDGET = Budget(8.0)


def frame(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    found = pd.DataFrame({"age": rng.integers(18, 90, n), "city": rng.choice(["Rome", "Oslo"], n)})
    found["note"] = "x"
    return found.assign(income=np.where(found["age"] > 50, "high", "low"))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.random((200, 4, 4))
    return x, (x[:, 0, 0] > 0.5).astype(int)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of every task."""
    folder, options = tmp_path_factory.mktemp("runs"), {"budget": BUDGET, "device": "cpu"}
    of_table: dict[str, Any] = {**options, "schema": SCHEMA}
    of_arrays: dict[str, Any] = {**options, "bounds": (0, 1), "steps": 3}
    x, y = arrays()
    numbers = {"age": SCHEMA["columns"]["age"], "pay": {"low": 0, "high": 9000}}
    pay = frame().assign(pay=lambda table: table["age"] * 100.0)[["age", "pay"]]
    made = {
        "search": pasearch.search_architecture(
            frame(), **of_table, strategy="fixed", steps=30, out=folder / "search"
        ),
        "training": pasearch.train((x, y), **of_arrays, classes=2, out=folder / "training"),
        "features": pasearch.select_features(frame(), **of_table, out=folder / "features"),
        "number": pasearch.train(
            (x, x[:, 0, 0]), **of_arrays, regression=True, out=folder / "number"
        ),
        "features of a number": pasearch.select_features(
            pay, **options, schema={"target": "pay", "columns": numbers}, out=folder / "numbers"
        ),
    }
    return {task: result.path for task, result in made.items()}


TABLES = ("search", "features")


@pytest.mark.contract
class TestEveryTask:
    @pytest.mark.parametrize("task", ["search", "training", "features"])
    def test_of_classes(self, runs: dict[str, Path], task: str):
        model = pasearch.load(runs[task])
        assert isinstance(model, TrainedClassifier)
        assert is_classifier(model)
        new = frame() if task in TABLES else arrays()[0]
        chances = model.predict_proba(new)
        assert chances.shape == (len(new), len(model.classes_))
        assert chances.sum(axis=1) == pytest.approx(1)
        assert (model.classes_[chances.argmax(axis=1)] == model.predict(new)).all()
        assert (
            (model.decision_function(new) > 0) == (model.predict(new) == model.classes_[1])
        ).all()
        own = pasearch.load_result(runs[task])
        assert (own.predict(new) == model.predict(new)).all()
        assert model.price == own.price

    @pytest.mark.parametrize("task", ["number", "features of a number"])
    def test_of_a_number(self, runs: dict[str, Path], task: str):
        model = pasearch.load(runs[task])
        assert isinstance(model, TrainedRegressor)
        assert is_regressor(model)
        new: Any = arrays()[0] if task == "number" else frame()
        aims = new[:, 0, 0] if task == "number" else new["age"] * 100.0
        assert model.predict(new).shape == (len(new),)
        assert model.score(new, aims) <= 1.0
        assert not hasattr(model, "predict_proba")
        assert not hasattr(model, "classes_")

    def test_names_and_numbers_of_columns(self, runs: dict[str, Path]):
        for task in TABLES:
            model = pasearch.load(runs[task])
            assert list(model.feature_names_in_) == ["age", "city", "note"]
            assert model.n_features_in_ == 3
        model = pasearch.load(runs["training"])
        assert model.n_features_in_ == 16
        assert list(model.feature_names_in_[:2]) == ["x0", "x1"]

    def test_the_model_itself_is_there(self, runs: dict[str, Path]):
        network, linear = pasearch.load(runs["training"]), pasearch.load(runs["features"])
        assert isinstance(network.model, nn.Module)
        assert isinstance(linear.model, ReleasedClassifier)
        assert linear.coef_.shape[0] == len(linear.intercept_) == 2
        assert not hasattr(network, "coef_")

    def test_scikit_learn_takes_it_as_fitted(self, runs: dict[str, Path]):
        model = pasearch.load(runs["search"])
        assert clone(model) is model
        line = make_pipeline(FunctionTransformer(), model)
        new = frame()
        assert (line.predict(new) == model.predict(new)).all()
        assert line.score(new, new["income"]) == model.score(new)
        with pytest.raises(UsageError, match="already trained with differential privacy"):
            model.fit(new, new["income"])

    @pytest.mark.parametrize("task", ["search", "training", "features", "number"])
    def test_a_score_takes_a_column_of_labels_and_refuses_rows(
        self, runs: dict[str, Path], task: str
    ):
        model, table = pasearch.load(runs[task]), task in TABLES
        new = frame() if table else arrays()[0]
        aims = frame()["income"].to_numpy() if table else new[:, 0, 0]
        want = model.score(new, aims)
        for each in (aims[:, None], aims[:, None].tolist(), pd.DataFrame(aims)):
            assert model.score(new, each) == want
        with pytest.raises(UsageError, match="expected one value for each record"):
            model.score(new, aims[None])


@pytest.mark.unit
class TestRecords:
    @pytest.mark.parametrize("task", TABLES)
    def test_columns_come_in_any_order_and_from_a_file(
        self, runs: dict[str, Path], task: str, tmp_path: Path
    ):
        model, new = pasearch.load(runs[task]), frame()
        own = model.predict(new)
        assert (model.predict(new[["city", "income", "age"]]) == own).all()
        new.to_csv(tmp_path / "new.csv", index=False)
        assert (model.predict(tmp_path / "new.csv") == own).all()
        cells = new[["age", "city", "note"]].to_numpy()
        assert (model.predict(cells) == own).all()

    def test_wrong_columns_and_widths_are_refused(self, runs: dict[str, Path]):
        table, of_arrays = pasearch.load(runs["search"]), pasearch.load(runs["training"])
        with pytest.raises(UsageError, match="no column 'city'"):
            table.predict(frame()[["age"]])
        with pytest.raises(UsageError, match="with 3 cells per row"):
            table.predict(frame()[["age"]].to_numpy())
        with pytest.raises(UsageError, match=r"expected numbers, \(rows, 4, 4\)"):
            of_arrays.predict(np.zeros((3, 15)))

    def test_a_score_is_the_exact_accuracy(self, runs: dict[str, Path]):
        model, new = pasearch.load(runs["search"]), frame()
        right = float((model.predict(new) == new["income"].to_numpy()).mean())
        assert model.score(new) == model.score(new, new["income"]) == right
        assert right > 0.7
        with pytest.raises(UsageError, match="the column 'income'"):
            model.score(new[["age", "city"]])
        with pytest.raises(UsageError, match="pass them as y"):
            pasearch.load(runs["training"]).score(arrays()[0])

    def test_classes_that_are_numbers_are_compared_as_texts(self, tmp_path: Path):
        columns = {**SCHEMA["columns"], "income": {"categories": ["0", "1"]}}
        new = frame().assign(income=lambda table: (table["age"] > 50).astype(int))
        pasearch.select_features(
            new, budget=BUDGET, schema={**SCHEMA, "columns": columns}, out=tmp_path / "x"
        )
        assert pasearch.load(tmp_path / "x").score(new) > 0.7
