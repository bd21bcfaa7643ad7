"""How much each column moves a linear model: by hand, from a network, and in a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pasearch
from pasearch import Budget, select_features, train
from pasearch.data.column import Column
from pasearch.data.tables import TableSchema
from pasearch.feature_effects import _affine_weights, rank_effects, rank_model_effects
from pasearch.results import read_document
from pasearch.verification.verify import verify


def schema(classes: tuple[str, ...] | None = ("no", "yes")) -> TableSchema:
    target = Column(name="ill", categories=classes)
    if classes is None:
        target = Column(name="cost", low=0.0, high=1000.0)
    return TableSchema(
        name="people",
        target=target,
        columns=(
            Column(name="age", low=0.0, high=100.0, bins=(50.0,)),
            Column(name="job", categories=("nurse", "driver")),
            Column(name="note", kind="text", vocabulary=("cough",)),
            Column(name="id", kind="ignore"),
        ),
    )


AGE = [2.0, 0.0, -3.0, 99.0]  # the number, below 50, above, missing
JOB = [0.5, -0.5, 99.0, -99.0]  # nurse, driver, other, missing
NOTE = [0.25, 99.0]  # has the word, missing


def by_column(found: list[dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    assert found is not None
    return {each["column"]: each for each in found}


@pytest.mark.unit
def test_the_reach_of_a_column_is_between_the_values_it_may_have():
    weights = np.array([[0.0] * 10, [*AGE, *JOB, *NOTE]])
    found = rank_effects(schema(), weights)
    named = by_column(found)
    # 2 v below 50 is 0 to 1; from 50 on 2 v - 3 is -2 to -1.
    assert named["age"] == {
        "column": "age", "reach": 3.0, "most": "0 to 50", "least": "50 to 100",
        "towards": "yes",
    }  # fmt: skip
    assert named["job"] == {
        "column": "job", "reach": 1.0, "most": "nurse", "least": "driver", "towards": "yes",
    }  # fmt: skip
    assert (named["note"]["most"], named["note"]["least"]) == (
        "note has 'cough'", "none of its words",
    )  # fmt: skip
    assert [each["column"] for each in found or []] == ["age", "job", "note"]


@pytest.mark.unit
def test_of_several_classes_the_one_that_is_moved_most_is_named():
    weights = np.zeros((3, 10))
    weights[2, 4:6] = [3.0, 0.0]
    (job,) = rank_effects(schema(("a", "b", "c")), weights) or []
    assert (job["column"], job["towards"], job["most"]) == ("job", "c", "nurse")
    assert job["reach"] == pytest.approx(2.0)  # less the mean of all three


@pytest.mark.unit
def test_a_number_is_moved_in_its_own_unit():
    weights = np.zeros((1, 10))
    weights[0, 0] = 0.25
    (age,) = rank_effects(schema(None), weights) or []
    assert (age["reach"], age["most"], age["least"], age["towards"]) == (
        250.0, "50 to 100", "0 to 50", None,
    )  # fmt: skip


@pytest.mark.unit
def test_only_an_affine_network_has_weights():
    linear = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 2))
    weights = _affine_weights(linear, 10)
    own = (linear[1].weight @ linear[0].weight).detach().numpy()
    assert weights is not None
    np.testing.assert_allclose(weights, own, atol=1e-5)
    torch.manual_seed(0)
    assert (
        _affine_weights(nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)), 10) is None
    )


ROWS = 400


def table(folder: Path) -> dict[str, Any]:
    """Age tells the class, nine times of ten; job and note tell nothing.

    Half of the notes hold the word: a column that is the same everywhere is scaled by noise alone,
    and its reach is noise of any size. The seed makes the noise the same in each run of the test.
    """
    rng = np.random.default_rng(0)
    age, job = rng.integers(0, 100, ROWS), rng.choice(["nurse", "driver"], ROWS)
    ill = np.where((age > 50) ^ (rng.random(ROWS) < 0.1), "yes", "no")
    note = rng.choice(["cough", ""], ROWS)
    rows = enumerate(zip(age, job, note, ill, strict=True))
    lines = [f"{a},{j},{text},{i},{y}" for i, (a, j, text, y) in rows]
    (folder / "people.csv").write_text("age,job,note,id,ill\n" + "\n".join(lines) + "\n")
    return {
        "data": folder / "people.csv", "schema": schema(), "budget": Budget(8.0),
        "out": folder / "run", "seed": 0,
    }  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize("task", [select_features, train])
def test_a_run_says_which_columns_count_and_verify_knows(task: Any, tmp_path: Path):
    linear = {"architecture": {"layers": []}, "steps": 40, "recipe": "default"}
    more = {"method": "all"} if task is select_features else linear
    task(**table(tmp_path), **more)
    document = read_document(tmp_path / "run")
    assert document["effects"][0]["column"] == "age"
    assert verify(tmp_path / "run")[1] == []
    file = tmp_path / "run" / "release" / "result.json"
    document["effects"][0]["reach"] *= 2
    file.chmod(0o600)
    file.write_text(json.dumps(document, indent=2) + "\n")
    assert any("effects" in each for each in verify(tmp_path / "run")[1])
    del document["effects"]
    file.write_text(json.dumps(document, indent=2) + "\n")
    assert any("effects" in each for each in verify(tmp_path / "run")[1])


@pytest.mark.contract
def test_a_network_with_layers_has_none(tmp_path: Path):
    result = pasearch.train(
        **table(tmp_path), steps=2, recipe="default",
        architecture={"layers": [{"kind": "dense", "units": 8}]},
    )  # fmt: skip
    content = (result.path / "release" / "model.pt").read_bytes()
    assert rank_model_effects(result.document, content) is None
    assert "effects" not in result.document


@pytest.mark.unit
def test_values_that_move_the_answer_alike_are_told_together():
    """As where a selection kept a few features: one of them would be picked by its place alone."""
    edges, jobs = (20.0, 40.0, 60.0), tuple("abcdefgh")
    columns = (
        Column(name="age", low=0.0, high=80.0, bins=edges), Column(name="job", categories=jobs),
        Column(name="half", categories=jobs), Column(name="place", categories=("x", "y", "z")),
    )  # fmt: skip
    made = TableSchema(
        name="people", target=Column(name="ill", categories=("no", "yes")), columns=columns
    )
    age = [0.0, -1.0, 0.0, 0.0, 0.0, 0.0]  # the number, four bins, missing
    job = [0.0, 2.0, *[0.0] * 6, 0.0, 0.0]  # eight, other, missing
    half = [*[1.5] * 4, *[0.0] * 4, 0.0, 0.0]
    place = [0.0, 1.0, 1.0, 0.0, 0.0]
    own = [*age, *job, *half, *place]
    named = by_column(rank_effects(made, np.array([[0.0] * len(own), own])))
    told = {name: (each["most"], each["least"]) for name, each in named.items()}
    assert told == {
        "age": ("20 to 80", "0 to 20"), "job": ("b", "all but b"),
        "half": ("a, b, c or 1 more", "e, f, g or 1 more"), "place": ("y or z", "x"),
    }  # fmt: skip
