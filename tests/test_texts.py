"""Texts, from a table to a recurrent network, its privacy cost, its files and its predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pasearch
from pasearch import Budget, UsageError
from pasearch.results import Result

DECLARED = {"target": "label", "labels": "ham,spam", "text": "message", "space": "rnn"}


def messages(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    spam = rng.random(rows) < 0.5
    words = np.where(spam, "win a free prize now", "see you at home later")
    return pd.DataFrame({"message": words, "label": np.where(spam, "spam", "ham")})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("texts")
    messages().to_csv(folder / "messages.csv", index=False)
    return pasearch.search_architecture(
        folder / "messages.csv", **DECLARED, budget=Budget(20.0), strategy="fixed", steps=40,
        out=folder / "run",
    )  # fmt: skip


@pytest.mark.contract
def test_a_recurrent_network_learns_from_a_privately_estimated_vocabulary(result: Result):
    schema = result.document["dataset"]["schema"]
    (column,) = schema["columns"]
    assert {"win", "free", "prize", "home"} <= set(column["vocabulary"])
    assert column["length"] == 150
    assert "message: a text, its first 150 of" in result.document["estimated_privately"][0]
    assert next(each["name"] for each in result.document["events"]) == "schema"
    assert result.test_score > 0.8
    assert result.document["price"]["epsilon"] <= 20.0
    assert pasearch.verify(result.path)[1] == []


@pytest.mark.contract
def test_a_vocabulary_that_no_estimate_gives_is_not_verified(result: Result, tmp_path: Path):
    for column, words in [
        ({"vocabulary": [f"w{i}" for i in range(999)]}, "more words than could be estimated"),
        ({"length": 140}, "another kind than was declared"),
    ]:
        folder = tmp_path / words.replace(" ", "-")
        shutil.copytree(result.path, folder)
        file = folder / "release" / "result.json"
        document = json.loads(file.read_text())
        document["dataset"]["schema"]["columns"][0] |= column
        file.write_text(json.dumps(document))
        assert any(words in each for each in pasearch.verify(folder)[1]), words


@pytest.mark.contract
def test_it_predicts_new_texts_from_its_files(result: Result, tmp_path: Path):
    again = pasearch.load_result(result.path)
    new = pd.DataFrame({"message": ["WIN a prize!", "see you later at home", "", None]})
    assert again.predict(new).tolist()[:2] == ["spam", "ham"]
    new.to_csv(tmp_path / "new.csv", index=False)
    assert len(again.predict(tmp_path / "new.csv")) == 4


@pytest.mark.unit
def test_onnx_is_refused_in_one_sentence(result: Result, tmp_path: Path):
    for encoded in (False, True):
        with pytest.raises(UsageError, match="read texts word by word cannot be exported"):
            result.to_onnx(tmp_path / "m.onnx", encoded=encoded)
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.unit
def test_other_data_and_other_models_are_refused(tmp_path: Path):
    table = messages().assign(age=3)
    text = {"message": {"length": 9}, "label": {"categories": ["ham", "spam"]}}
    schema = {"target": "label", "columns": {**text, "age": {"kind": "ignore"}}}
    mixed = {**schema, "columns": {**text, "age": {"low": 0, "high": 9}}}
    plain = {"target": "label", "columns": {"label": text["label"], "age": {"low": 0, "high": 9}}}
    embedding = {"kind": "embedding", "units": 3}
    for task, options, words in [
        ("search_architecture", {"schema": mixed, "space": "rnn"}, "only feature column"),
        ("search_architecture", {"schema": schema}, "cannot read: use `space=rnn`"),
        ("search_architecture", {"schema": schema, "space": "fcn"}, "cannot read"),
        ("search_architecture", {"schema": schema, "architecture": {"layers": []}}, "cannot read"),
        ("search_architecture", {"schema": plain, "space": "rnn"}, "no column"),
        (
            "search_architecture",
            {"schema": schema, "architecture": {"layers": [embedding], "front_end": "centred"}},
            "front end raw",
        ),
        ("select_features", {"schema": schema}, "only recurrent networks"),
    ]:
        table_of = table[["age", "label"]] if schema is plain else table
        with pytest.raises(UsageError, match=words):
            getattr(pasearch, task)(table_of, **options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
