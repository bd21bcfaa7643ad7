"""`schema=` in its forms: a file, a dict, the object; and what a resumed run reads of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pasearch
from pasearch import Budget, Schema, UsageError
from pasearch.api.lifecycle import read_request
from pasearch.api.request import SearchRequest
from pasearch.data.tables import load_schema, to_plain_json

DECLARED: dict[str, Any] = {
    "target": "income",
    "columns": {
        "age": {"low": 18, "high": 90, "bins": [30, 60]},
        "income": {"categories": ["low", "high"]},
    },
}


def people() -> pd.DataFrame:
    age = np.random.default_rng(0).integers(18, 90, 200)
    return pd.DataFrame({"age": age, "income": np.where(age > 50, "high", "low")})


@pytest.mark.unit
class TestForms:
    def test_a_dict_is_read_as_its_file_is(self, tmp_path: Path):
        schema = load_schema(DECLARED)
        (tmp_path / "s.toml").write_text(schema.to_toml_text())
        assert load_schema(tmp_path / "s.toml") == schema
        assert load_schema(str(tmp_path / "s.toml")) == schema
        assert load_schema(schema) is schema
        assert schema.columns[0].bins == (30.0, 60.0)

    def test_arrays_ranges_and_sets_are_read_as_lists(self):
        of_lists = {"code": {"categories": [0, 1]}, "age": {"bins": [1, 2], "missing": [-1]}}
        of_arrays = {
            "code": {"categories": range(2)},
            "age": {"bins": np.array([1.0, 2.0]), "missing": {-1}},
        }
        for many in (np.array(["low", "high"]), pd.Series(["low", "high"]).unique()):
            own = {"target": "y", "columns": {**of_arrays, "y": {"categories": many}}}
            plain = {"target": "y", "columns": {**of_lists, "y": {"categories": ["low", "high"]}}}
            assert load_schema(own) == load_schema(plain)

    def test_plain_values_come_back_and_stay_proposed(self):
        for proposed in (False, True):
            schema = load_schema({**DECLARED, "proposed": proposed})
            again = load_schema(json.loads(json.dumps(schema, default=to_plain_json)))
            assert again == schema
            assert again.proposed is proposed

    def test_what_makes_no_sense_is_refused(self):
        for given, told in [
            ({"columns": {}}, "the target is not declared"),
            ({**DECLARED, "colums": {}}, "did you mean 'columns'"),
            ({"target": "income", "columns": {"age": {"lo": 1}}}, "unknown key 'lo'"),
            ({"target": "income", "columns": [1]}, "must be TOML tables"),
            (3, "of type int"),
        ]:
            with pytest.raises(UsageError, match=told):
                load_schema(given)


@pytest.mark.unit
@pytest.mark.parametrize("source", ["frame", "file"])
def test_a_run_and_its_resume_know_it(source: str, tmp_path: Path):
    data: Any = people()
    if source == "file":
        data = tmp_path / "people.csv"
        people().to_csv(data, index=False)
    result = pasearch.train(
        data, schema=DECLARED, budget=Budget(8.0), steps=2, device="cpu", out=tmp_path / "run"
    )
    assert isinstance(result.schema, Schema)
    assert result.schema.columns == load_schema(DECLARED).columns
    assert not any("age" in each for each in result.document["estimated_privately"])
    kinds: Any = {"arch": SearchRequest}
    again = read_request(tmp_path / "run" / "private", kinds, data if source == "frame" else None)
    assert again.schema == load_schema(DECLARED)


@pytest.mark.unit
def test_a_proposed_dict_is_refused_for_private_records():
    with pytest.raises(UsageError, match="proposed = true"):
        pasearch.plan_training(people(), schema={**DECLARED, "proposed": True})
