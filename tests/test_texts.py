"""Texts, from a table to a recurrent network, its privacy cost, its files and its predictions."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pasearch
from pasearch import Budget, UsageError
from pasearch.curator.check import check_table
from pasearch.errors import BudgetError
from pasearch.report.facts import find_result_warnings
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
        ("search_architecture", {"schema": schema}, "use `pasearch arch` with `space=rnn`"),
        (
            "search_architecture",
            {"schema": schema, "space": "fcn"},
            "only recurrent networks can read",
        ),
        (
            "search_architecture",
            {"schema": schema, "architecture": {"layers": []}},
            "only recurrent networks can read",
        ),
        ("search_architecture", {"schema": plain, "space": "rnn"}, "no column"),
        ("search_architecture", {"text": "label", "target": "label"}, "is the target"),
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


@pytest.mark.unit
def test_a_plan_of_texts_speaks_of_words(tmp_path: Path):
    table = messages(60)
    plan = pasearch.plan_architecture_search
    (refused,) = plan(table, **DECLARED, budget=Budget(1.0), strategy="fixed").refusals
    assert "a word is found only if about" in refused
    assert "more than there are: declare the vocabulary" in refused
    text = str(plan(messages(4000), **DECLARED, budget=Budget(20.0), strategy="rs"))
    assert "private vocabulary estimation (1 item)" in text
    assert "Not declared: The vocabulary of message" in text
    assert "A declaration (`schema=`) has no privacy cost" in text
    with pytest.raises(UsageError, match="not a table with a text column"):
        plan("digits", space="rnn")
    with pytest.raises(UsageError, match="or leave `candidates=` out"):
        plan("digits", candidates=2)


@pytest.mark.unit
@pytest.mark.parametrize("parquet", [False, True])
def test_numbers_as_a_text_are_refused_before_the_charge(parquet: bool, tmp_path: Path):
    data: Any = messages(4000).assign(message=1.5)
    if parquet:
        data.to_parquet(tmp_path / "t.parquet")
        data = tmp_path / "t.parquet"
    with pytest.raises(BudgetError, match="declared as a text, but its type is"):
        pasearch.search_architecture(
            data, **DECLARED, budget=Budget(20.0), strategy="fixed", steps=1, out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.unit
def test_a_tiny_vocabulary_is_noted_in_the_result(result: Result):
    document, schema = result.document, result.schema
    assert not any(
        "the model knows little" in each for each in find_result_warnings(document, schema)
    )
    column = replace(schema.columns[0], vocabulary=("win",))
    (found,) = find_result_warnings(document, replace(schema, columns=(column,)))
    assert "The vocabulary of column 'message' has 1 word," in found


@pytest.mark.unit
def test_check_proposes_a_text_without_words(tmp_path: Path):
    messages().to_csv(tmp_path / "m.csv", index=False)
    proposed = check_table(tmp_path / "m.csv", text="message").toml()
    assert '[columns.message]\nkind = "text"\nlength = 150\n' in proposed
    assert "prize" not in proposed


@pytest.mark.unit
def test_a_list_of_texts_must_be_a_list_of_rows(result: Result):
    with pytest.raises(UsageError, match=r"such as \[\[\.\.\.\]\], with 1 cells? per row"):
        result.predict(["free prize call now"])
    assert len(result.predict([["free prize call now"]])) == 1


@pytest.mark.unit
def test_a_declared_vocabulary_sizes_the_embedding_and_the_bounds_are_told_apart():
    schema = {
        "target": "label",
        "columns": {
            "message": {"length": 9, "vocabulary": ["win", "free", "prize"]},
            "label": {"categories": ["ham", "spam"]},
        },
    }
    given: Any = {"schema": schema, "budget": Budget(20.0), "strategy": "fixed"}
    text = str(pasearch.plan_architecture_search(messages(), space="rnn", **given))
    assert "embedding 5 x 50" in text
    assert "Membership inference bound by partition: train " in text
    own = {"family": "rnn", "choices": {"tokens": [4]}}
    assert "embedding 4 x 50" in str(
        pasearch.plan_architecture_search(messages(), space=own, **given)
    )


@pytest.mark.unit
def test_advice_on_one_undeclared_column_mentions_a_text():
    found = pasearch.advise(messages(4000), epsilon=7.0, target="label", labels="ham,spam")
    assert any(dict(each.options).get("text") == "message" for each in found.alternatives)
