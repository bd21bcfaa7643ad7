"""ONNX files: what another program computes from them is what `predict` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pasearch
from pasearch import Budget, Schema, UsageError
from pasearch.data import whitening
from pasearch.onnx_export import build_encoding_graph
from pasearch.results import Result

onnx = pytest.importorskip("onnx", reason="needs pasearch[onnx]")
pytest.importorskip("onnxscript", reason="needs pasearch[onnx]")
runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

BUDGET = Budget(8.0)
AGE = {"low": 18, "high": 90}
CITY = {"categories": ["Rome", "Oslo"]}
CLASSES: dict[str, Any] = {
    "target": "income",
    "columns": {"age": AGE, "city": CITY, "income": {"categories": ["low", "high"]}},
}
NUMBER: dict[str, Any] = {
    "target": "pay",
    "columns": {"age": {**AGE, "bins": 0}, "city": CITY, "pay": {"low": 0, "high": 9000}},
}


def people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    found = pd.DataFrame({"age": rng.uniform(10, 99, n), "city": rng.choice(["Rome", "Oslo"], n)})
    return found.assign(income=np.where(found["age"] > 50, "high", "low"), pay=found["age"] * 100.0)


def strange() -> pd.DataFrame:
    """New records at every edge: missing, infinite, of no known category, on an edge of a bin."""
    edges = np.linspace(18, 90, 11)
    age = np.concatenate([edges, [np.nan, np.inf, -np.inf, 0.0, 1e300, 30.0]])
    return pd.DataFrame({"age": age, "city": np.resize(["Rome", "", "?", "Paris", "Oslo"], 17)})


def ran(file: Path, given: dict[str, Any]) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(file))
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, given), strict=True))


def columns(table: pd.DataFrame) -> dict[str, np.ndarray]:
    return {"age": table["age"].to_numpy(float), "city": table["city"].to_numpy(object)}


def check_classes(result: Result, file: Path, given: dict[str, Any], new: Any) -> None:
    found = ran(file, given)
    assert list(found) == ["label", "probabilities"]
    assert found["probabilities"] == pytest.approx(result.predict_proba(new), abs=1e-5)
    assert (found["label"] == result.predict(new)).all()


@pytest.mark.oracle
class TestEqualToPredict:
    def test_of_digits(self, tmp_path: Path):
        result = pasearch.search_architecture(
            "digits", budget=BUDGET, strategy="fixed", steps=5, device="cpu", out=tmp_path / "run"
        )
        x = np.random.default_rng(0).uniform(-2, 18, (40, 8, 8))
        x[3, 2, 2], x[4, 0, 0] = np.nan, np.inf
        file = result.to_onnx(tmp_path / "model.onnx")
        check_classes(result, file, {"x": x}, x)
        check_classes(result, file, {"x": x[:1]}, x[:1])

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "front", ["raw", "max_pool:2", "pca:5", "standardise", "centred", "scattering", "whitened"]
    )
    def test_behind_every_front_end(
        self, front: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(
            whitening, "MAX_SYNTHETIC_IMAGES", 240
        )  # of as many directions as images / 2
        whitening.learn_directions.cache_clear()
        rng = np.random.default_rng(1)
        x, y = rng.random((200, 16, 16)), rng.integers(0, 2, 200)
        result = pasearch.search_architecture(
            (x, y), budget=BUDGET, bounds=(0, 1), classes=2, steps=2, strategy="fixed",
            device="cpu", space={"choices": {"front_end": [front], "units_1": [4]}},
            out=tmp_path / "run",
        )  # fmt: skip
        check_classes(result, result.to_onnx(tmp_path / "m.onnx"), {"x": x[:9]}, x[:9])
        whitening.learn_directions.cache_clear()

    @pytest.mark.parametrize("task", ["search", "features", "features by steps"])
    def test_of_a_table_with_an_input_a_column(self, task: str, tmp_path: Path):
        given: dict[str, Any] = {"budget": BUDGET, "schema": CLASSES, "out": tmp_path / "run"}
        table = people()[["age", "city", "income"]]
        if task == "search":
            result: Any = pasearch.search_architecture(
                table, **given, strategy="fixed", steps=5, device="cpu"
            )
        else:
            trainer = "dpsgd" if "steps" in task else "objective"
            result = pasearch.select_features(table, **given, trainer=trainer)
        file = result.to_onnx(tmp_path / "model.onnx")
        for new in (people(50), strange()):
            check_classes(result, file, columns(new), new)
        rows = result.schema.encode_new(strange())
        check_classes(
            result, result.to_onnx(tmp_path / "rows.onnx", encoded=True), {"encoded": rows},
            strange(),
        )  # fmt: skip

    @pytest.mark.parametrize("task", ["search", "features"])
    def test_of_a_number(self, task: str, tmp_path: Path):
        given: dict[str, Any] = {"budget": BUDGET, "schema": NUMBER, "out": tmp_path / "run"}
        table = people()[["age", "city", "pay"]]
        result: Any = (
            pasearch.train(table, **given, steps=5, device="cpu")
            if task == "search"
            else pasearch.select_features(table, **given)
        )
        found = ran(result.to_onnx(tmp_path / "model.onnx"), columns(strange()))
        assert list(found) == ["prediction"]
        assert found["prediction"] / 9000 == pytest.approx(
            result.predict(strange()) / 9000, abs=1e-5
        )


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Result:
    table = people()[["age", "city", "income"]].rename(columns={"city": "label"})
    parts = {"age": AGE, "label": CITY, "income": {"categories": ["low", "high"]}}
    return pasearch.select_features(
        table, budget=BUDGET, schema={"target": "income", "columns": parts},
        out=tmp_path_factory.mktemp("runs") / "run",
    )  # fmt: skip


@pytest.mark.unit
class TestFile:
    def test_it_says_its_schema_and_price(self, chosen: Result, tmp_path: Path):
        model = onnx.load(str(chosen.to_onnx(tmp_path / "m.onnx")))
        said = {each.key: each.value for each in model.metadata_props}
        assert json.loads(said["schema"]) == chosen.schema.to_json()
        assert float(said["epsilon"]) == chosen.price.epsilon

    def test_without_the_package_the_extra_is_named(
        self, chosen: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from pasearch import onnx_export

        def missing(name: str) -> Any:
            raise ImportError(name)

        monkeypatch.setattr(onnx_export, "import_module", missing)
        with pytest.raises(UsageError, match=re.escape("pasearch[onnx]")):
            chosen.to_onnx(tmp_path / "m.onnx")
        assert not list(tmp_path.iterdir())

    def test_texts_are_refused_with_what_to_do(self, tmp_path: Path):
        table = people()[["age", "income"]].assign(words="good or bad")
        parts = {**CLASSES["columns"], "words": {"kind": "text", "vocabulary": ["good", "bad"]}}
        del parts["city"]
        result = pasearch.select_features(
            table, budget=BUDGET, schema={"target": "income", "columns": parts},
            out=tmp_path / "run",
        )  # fmt: skip
        with pytest.raises(UsageError, match=r"'words' is of kind 'text'.*encoded=True"):
            result.to_onnx(tmp_path / "m.onnx")
        file = result.to_onnx(tmp_path / "m.onnx", encoded=True)
        check_classes(result, file, {"encoded": result.schema.encode_new(table)}, table)

    def test_the_command(
        self, chosen: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ):  # fmt: skip
        from pasearch.cli import main

        file = tmp_path / "m.onnx"
        for code, told in ((0, f"Model: {file}"), (2, "exists")):
            monkeypatch.setattr("sys.argv", ["pasearch", "export", str(chosen.path), str(file)])
            with pytest.raises(SystemExit) as ended:
                main()
            out, err = capsys.readouterr()
            assert ended.value.code == code
            assert told in out + err


@pytest.mark.oracle
def test_a_graph_reads_the_usual_spellings_of_a_category(tmp_path: Path):
    """2 and 2.0, composed and decomposed accents, and the same of what means missing."""
    schema = Schema.from_dict({
        "target": "y",
        "columns": {
            "k": {"categories": ["1", "2.0", "007"], "missing": ["-9", "é"]},
            "flag": {"categories": ["True", "False"]},
            "rate": {"categories": [0.5, 1, 2.25]},
            "y": {"categories": ["no", "yes"]},
        },
    })  # fmt: skip
    file = tmp_path / "encoding.onnx"
    file.write_bytes(build_encoding_graph(schema).SerializeToString())
    cells = {
        "k": ["1.0", "1", "2", "2.0", "007", "7", "-9.0", "e\u0301", "é", "", "2.00", "-9.000"],
        "flag": ["True", "true", "FALSE", "1", "0", "1.0", "0.00", "yes", "", " true", "?", "tRUE"],
        "rate": [
            "0.5",
            "0.50",
            "0.5000",
            "1",
            "1.0",
            "1.00",
            "2.25",
            "2.2500",
            "2.3",
            "",
            "1 ",
            "x",
        ],
    }
    table = {name: np.array(texts, object) for name, texts in cells.items()}
    expected = schema.encode_new(pd.DataFrame(table))
    assert (ran(file, table)["encoded"] == expected).all()


MARKERS: list[dict[str, Any]] = [
    {"columns": {"a": {"missing": [-999]}}},
    {"columns": {"a": {"missing": [-999.9, "-1", 1e30, "9999", "unknown"]}}},
    {"columns": {"a": {"missing": [-0.0, 1e300]}}},
    {"columns": {"a": {"missing": ["-9.999,5"]}}, "decimal": ",", "thousands": "."},
    {"missing": [-999.9, 50]},
    {"missing": [-999.9], "columns": {"a": {"missing": []}}},
    {},
]
"""What is declared to mean missing, in a number's column or above all columns."""


@pytest.mark.oracle
@pytest.mark.parametrize("bins", [None, 0, (10.0, 60.0)])
@pytest.mark.parametrize("declared", MARKERS)
def test_a_graph_takes_the_same_cells_for_missing(
    tmp_path: Path, declared: dict[str, Any], bins: Any
):
    numbers = [-999, -999.9, -1, 1e30, 9999, 0, 50, 1e300, 30, -9999.5, np.nan, np.inf]
    texts = ["-999", " -999", "-1.0 ", "unknown", "", " ", "red", " red ", "NA", "other", "?", "50"]
    parts: dict[str, Any] = declared.get("columns", {})
    number = {"low": 0, "high": 100, **({} if bins is None else {"bins": bins})}
    schema = Schema.from_dict({
        "target": "y",
        **declared,
        "columns": {
            "a": {**number, **parts.get("a", {})},
            "c": {"categories": ["red", "green"], **parts.get("a", {})},
            "y": {"categories": ["no", "yes"]},
        },
    })  # fmt: skip
    file = tmp_path / "encoding.onnx"
    file.write_bytes(build_encoding_graph(schema).SerializeToString())
    with np.errstate(over="ignore"):
        narrow = np.array(numbers).astype(np.float32)
    for given in (np.array(numbers), narrow):
        for cells in (given, given.astype(float)):
            table = pd.DataFrame({"a": cells, "c": texts})
            found = ran(file, {"a": cells.astype(float), "c": np.array(texts, object)})["encoded"]
            assert (found == schema.encode_new(table)).all()
