"""A declared schema in the estimators and selectors: what it says is not estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from pasearch import PAFS, PrivateCFS, PrivatePCA, UsageError
from pasearch import PrivateArchitectureSearchClassifier as Classifier
from pasearch import PrivateArchitectureSearchRegressor as Regressor

SCHEMA: dict[str, Any] = {
    "target": "income",
    "columns": {
        "age": {"low": 18, "high": 90},
        "city": {"categories": ["Rome", "Oslo"]},
        "income": {"categories": ["0", "1"]},
    },
}
NUMBER: dict[str, Any] = {
    "target": "pay",
    "columns": {**SCHEMA["columns"], "pay": {"low": 0, "high": 9000}},
}
del NUMBER["columns"]["income"]
SMALL: dict[str, Any] = {"epsilon": 8.0, "strategy": "fixed", "steps": 20, "device": "cpu"}
KINDS = {
    "classifier": lambda schema: Classifier(schema=schema, **SMALL),
    "cfs": lambda schema: PrivateCFS(epsilon=8.0, schema=schema, k=1),
    "pafs": lambda schema: PAFS(epsilon=8.0, schema=schema, population=3, generations=2),
    "pca": lambda schema: PrivatePCA(epsilon=8.0, schema=schema),
}


def records() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(5)
    x = pd.DataFrame({"age": rng.integers(18, 90, 300), "city": rng.choice(["Rome", "Oslo"], 300)})
    return x, (x["age"] > 50).to_numpy(int)


@pytest.mark.contract
def test_nothing_that_it_declares_is_estimated():
    for kind in KINDS:
        x, y = records()
        fitted = KINDS[kind](SCHEMA).fit(x, y)
        named = " ".join(fitted.result_.document["estimated_privately"])
        assert not any(column in named for column in ("age", "city", "income"))
        table = fitted.result_.document["dataset"]["schema"]
        assert {each["name"]: each["kind"] for each in table["columns"]} == {
            "age": "number", "city": "category",
        }  # fmt: skip
        bare = KINDS[kind](None).fit(x, y)
        assert "age" in " ".join(bare.result_.document["estimated_privately"])


@pytest.mark.unit
def test_of_a_number_the_target_is_declared_too():
    x, _ = records()
    fitted = Regressor(schema=NUMBER, **SMALL).fit(x, x["age"] * 100.0)
    assert fitted.result_.schema.target_bounds == (0.0, 9000.0)
    chosen = PrivateCFS(epsilon=8.0, schema=NUMBER, regression=True).fit(x, x["age"] * 100.0)
    assert chosen.result_.document["estimated_privately"] == []


@pytest.mark.unit
def test_columns_that_it_does_not_name_are_estimated():
    x, y = records()
    part = {"target": "income", "columns": {"city": {"categories": ["Rome", "Oslo"]}}}
    named = " ".join(PrivateCFS(epsilon=8.0, schema=part).fit(x, y).result_.document[
        "estimated_privately"])  # fmt: skip
    assert "age" in named
    assert "city" not in named


@pytest.mark.contract
def test_scikit_learn_keeps_it_as_it_was_given():
    estimator = Classifier(schema=SCHEMA, **SMALL)
    copy = clone(estimator)
    assert copy.get_params()["schema"] == SCHEMA
    copy.set_params(schema=None)
    assert estimator.schema is SCHEMA
    x, y = records()
    chosen, model = PrivateCFS(epsilon=8.0), Classifier(classes=[0, 1], **SMALL)
    line = make_pipeline(chosen, model)
    line.set_params(privatecfs__schema=SCHEMA).fit(x, y)
    assert len(line.predict(x)) == len(x)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("schema", "more", "told"),
    [
        ({"target": "i", "columns": {"agee": {"low": 1, "high": 2}}}, {}, "'agee', which X does"),
        (SCHEMA, {"classes": [0, 1]}, "declared twice"),
        (4, {}, "of type int"),
        ({"target": "i", "columns": {"i": {"categories": ["a", "b"]}}}, {}, "y contains numbers"),
        (
            {"target": "i", "columns": {"i": {"low": 0, "high": 1}}},
            {},
            "declares the target 'i' as",
        ),
        ({**SCHEMA, "proposed": True}, {}, "proposed = true"),
        ({**SCHEMA, "official_test": 3}, {}, "official_test"),
        ({"target": "age", "columns": {}}, {}, "X has the column 'age'"),
        ({"columns": {}}, {}, "schema: "),
    ],
)
@pytest.mark.parametrize("kind", [Classifier, PrivateCFS])
def test_what_makes_no_sense_is_refused_before_a_charge(
    kind: Any, schema: Any, more: dict[str, Any], told: str, tmp_path: Path
):
    ledger = tmp_path / "ledger"
    estimator = kind(schema=schema, ledger=ledger, ledger_budget=(5.0, 1e-5), **more)
    with pytest.raises(UsageError, match=told):
        estimator.fit(*records())
    assert not ledger.exists()
