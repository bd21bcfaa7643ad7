"""Labels of arrays: mapped as declared, or refused before a charge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pasearch
from pasearch.accounting.budget import Budget
from pasearch.data.array_file import from_arrays
from pasearch.data.schema import Schema
from pasearch.errors import UsageError

N = 300
X = np.random.default_rng(0).random((N, 3))
PLACES = np.digitize(X[:, 0], [0.4, 0.7])
LABELS: dict[str, tuple[list[Any], Any]] = {
    "-1, 1": ([-1, 1], [-1, 1]),
    "1, 2": ([1, 2], "1,2"),
    "3, 7": ([7, 3], (3, 7)),
    "bytes": (np.array([3, 7], np.uint8), "3, 7"),
    "large": ([0, 2**62], [0, 2**62]),
    "three": ([10, -5, 3], "-5,3,10"),
    "floats": ([0.0, 1.0], [0, 1]),
    "halves": ([0.5, 1.5], "0.5,1.5"),
    "texts": (["lo", "hi"], "hi,lo"),
    "texts that are numbers": (["01", "1"], ["01", "1"]),
    "truth values, undeclared": ([False, True], None),
    "truth values, counted": ([False, True], 2),
    "truth values, listed": ([False, True], [True, False]),
    "from 0, listed": ([0, 1, 2], range(3)),
}


def of(labels: Any) -> np.ndarray:
    return np.asarray(labels)[PLACES % len(labels)]


@pytest.mark.contract
def test_declared_labels_are_mapped_and_come_back():
    for kind in LABELS:
        labels, declared = LABELS[kind]
        y = of(labels)
        schema: Any = from_arrays(X, y, bounds=(0, 1), classes=declared).schema
        classes, valid = schema.encode_labels(y)
        assert valid.all()
        assert set(classes.tolist()) == set(range(schema.classes))
        assert (schema.decode_class(classes) == y).all()
        again = Schema.from_json(schema.to_json())
        assert again == schema
        schema.check_arrays("x", X, y)


@pytest.mark.unit
def test_other_labels_make_null_records():
    schema: Any = from_arrays(X, of([-1, 1]), bounds=(0, 1), classes=[-1, 1]).schema
    given = np.array([-1, 0, 1, 2, -(2**60)])
    assert schema.encode_labels(given)[1].tolist() == [True, False, True, False, False]
    with np.errstate(all="raise"):
        numbers = np.array([-1.0, np.nan, np.inf, 1.0])
        assert schema.encode_labels(numbers)[1].tolist() == [True, False, False, True]


@pytest.mark.unit
def test_labels_that_cannot_match_are_refused_by_their_type():
    for labels, declared in [
        (["lo", "hi"], 2),
        (["lo", "hi"], None),
        ([False, True], 3),
        ([0, 1], "no,yes"),
        ([0, 1], [1, 1]),
        ([0, 1], [1]),
        ([0, 1], "x"),
        ([False, True], [0, 1]),
        ([0, 1], [0, float("nan")]),
    ]:
        with pytest.raises(UsageError, match="classes"):
            from_arrays(X, of(labels), bounds=(0, 1), classes=declared)


@pytest.mark.unit
def test_strings_are_compared_without_blanks_and_in_one_unicode_form():
    y = of([" Bern", "Zu\u0308rich  "])
    for declared in (["Bern", "Z\u00fcrich"], [" Bern ", "Zu\u0308rich"], "Bern, Z\u00fcrich"):
        schema: Any = from_arrays(X, y, bounds=(0, 1), classes=declared).schema
        classes, valid = schema.encode_labels(y)
        assert valid.all()
        assert set(schema.decode_class(classes)) == {"Bern", "Z\u00fcrich"}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (X, of([1, 2])[:, None], "y.ravel"),
        (X, of(["a", "b"]).astype(object), r"y.astype\(str\)"),
        (X, of([b"a", b"b"]), r"y.astype\(str\)"),
        (X, of([1, 2]).tolist(), "numpy.asarray"),
        (np.matrix(X), of([1, 2]), "numpy.asarray"),
        (np.ma.masked_less(X, 0.1), of([1, 2]), "filled"),
        (X, np.ma.masked_less(of([1, 2]), 2), "filled"),
    ],
)
def test_other_arrays_are_refused_with_a_remedy(x: Any, y: Any, words: str):
    with pytest.raises(UsageError, match=words):
        from_arrays(x, y, bounds=(0, 1), classes=[1, 2])


PLAIN = {"bounds": (0, 1), "classes": [0, 1]}


@pytest.mark.contract
@pytest.mark.parametrize(
    "given",
    [
        {"classes": range(2)},
        {"classes": np.arange(2)},
        {"classes": {1, 0}},
        {"classes": None, "labels": pd.Index([0, 1])},
        {"bounds": np.array([0, 1])},
        {"ledger_budget": np.array([9, 1e-3])},
    ],
    ids=str,
)
def test_a_run_takes_arrays_ranges_and_sets_as_settings(given: dict[str, Any], tmp_path: Path):
    arguments = {**PLAIN, "ledger": tmp_path / "l", "ledger_budget": (9, 1e-3), **given}
    result = pasearch.search_architecture(
        (X, of([0, 1])), budget=Budget(2.0), strategy="fixed", steps=2, device="cpu",
        out=tmp_path / "run", progress=False, **arguments,
    )  # fmt: skip
    assert pasearch.load(result.path).classes_.tolist() == [0, 1]


@pytest.mark.unit
def test_settings_that_cannot_be_stored_are_refused():
    for given in ({"labels": [b"a", b"b"]}, {"classes": [object(), 1]}, {"target": 3}):
        with pytest.raises(UsageError, match=f"{next(iter(given))}.* of type"):
            pasearch.plan_architecture_search((X, of([0, 1])), **given)


@pytest.mark.contract
@pytest.mark.parametrize("kind", ["-1, 1", "halves", "texts", "truth values, undeclared"])
def test_a_run_predicts_labels_as_y_has_them(tmp_path: Path, kind: str):
    labels, declared = LABELS[kind]
    y = of(labels)
    np.savez(tmp_path / "mine.npz", x=X, y=y)
    pasearch.search_architecture(
        tmp_path / "mine.npz", budget=Budget(8.0), bounds=(0, 1), classes=declared,
        strategy="fixed", steps=60, device="cpu", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    model = pasearch.load(tmp_path / "run")
    assert sorted(model.classes_.tolist()) == sorted(np.unique(y).tolist())
    assert np.mean(model.predict(X) == y) > 0.6
    assert model.score(X, y) == np.mean(model.predict(X) == y)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"labels": "1,2", "classes": 2}, "remove one of them"),
        ({"labels": "2"}, "at least two different labels"),
        ({"labels": "1,2", "regression": True}, "remove `classes=`"),
    ],
)
def test_labels_and_another_declaration_are_refused(said: dict[str, Any], words: str):
    with pytest.raises(UsageError, match=words):
        from_arrays(X, of([1, 2]), **said)


@pytest.mark.unit
@pytest.mark.parametrize(("classes", "taken"), [(2, "the labels 0 to 1"), (None, "using 0, 1, 2")])
def test_a_plan_names_the_labels_that_a_count_stands_for(classes: int | None, taken: str):
    from pasearch.report.plan import plan_text

    plan = pasearch.plan_architecture_search(
        (X, of([1, 2])), budget=Budget(8.0), bounds=(0, 1), classes=classes, strategy="fixed"
    )
    lines = plan_text(plan, detail="prices").splitlines()
    (note,) = [place for place, line in enumerate(lines) if line.startswith("Note ")]
    assert lines[note - 2].startswith("Report "), "directly below the summary"
    assert taken in lines[note]
    assert "`labels=1,2`" in lines[note]
    listed = pasearch.plan_architecture_search(
        (X, of([1, 2])), budget=Budget(8.0), bounds=(0, 1), labels=[1, 2], strategy="fixed"
    )
    assert "using 0, 1, 2" not in plan_text(listed, detail="prices")


@pytest.mark.contract
def test_a_result_tells_of_labels_that_a_count_leaves_out(tmp_path: Path):
    from pasearch.report.score import describe_score

    result = pasearch.search_architecture(
        (X, of([1, 2])), budget=Budget(8.0), bounds=(0, 1), classes=2, strategy="fixed", steps=20,
        device="cpu", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    line = describe_score(result.document, result.schema)[1]
    assert "test records have a known class" in line
    assert "assumed labels 0 to 1" in line
    assert "`labels=1,2`" in line
    assert "pasearch check" not in line


@pytest.mark.contract
@pytest.mark.parametrize("named", [("--labels", "1,2"), ("--classes", "1,2")])
@pytest.mark.parametrize(
    "command",
    [
        ("advise", "--eps", "2"),
        ("compare", "--data-is-public", "--candidates", "2", "--repeats", "1", "--steps", "2"),
        ("crossover", "linear", "fcn", "--data-is-public", "--repeats", "2", "--steps", "2",
         "--eps-grid", "1,2"),
    ],
)  # fmt: skip
def test_commands_without_a_run_take_labels(
    tmp_path: Path, command: tuple[str, ...], named: tuple[str, str]
):
    from typer.testing import CliRunner

    from pasearch.cli.app import app

    np.savez(tmp_path / "mine.npz", x=X, y=of([1, 2]))
    words = [command[0], str(tmp_path / "mine.npz"), *command[1:], "--bounds", "0", "1", *named]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    if command[0] == "advise":
        assert "2 classes (1, 2)" in done.output
        assert " ".join(named) in done.output
