"""A data source in one file: the .jsonl of the extension guide, in a plan, a run and the parsers.

What is asked of it is asked of every source: the order of records and their number are the file's,
no value stops a load or changes another record, and what cannot be read is a null record.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pasearch
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration
from pasearch.data.sources import (
    describe_kinds_with,
    list_declarations,
    load_dataset,
    load_new_records,
)
from pasearch.errors import UsageError
from pasearch.registry import extension_files

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions" / "jsonl.py"
TOML = """
target = "income"
[columns.age]
low = 0
high = 100
[columns.job]
categories = ["clerk", "smith"]
[columns.income]
categories = ["no", "yes"]
"""
GOOD = b'{"age": 30, "job": "clerk", "income": "yes", "shoe": 43}'
NULL = {
    "empty": b"",
    "no JSON": b"{age: 30}",
    "cut short": GOOD[:-1],
    "no object": b'[30, "clerk", "yes"]',
    "no UTF-8": b'{"job": "\xff", "income": "yes"}',
    "too deep": b"[" * 100_000,
    "two values": GOOD + GOOD,
}
ODD = {
    "nothing": b"{}",
    "nested": b'{"age": {"in": "years"}, "job": ["clerk"], "income": "yes"}',
    "no number": b'{"age": NaN, "job": "smith", "income": "yes"}',
    "too large": b'{"age": 1' + b"0" * 5000 + b', "income": "no"}',
    "half a pair": b'{"job": "\\ud800", "income": "no"}',
    "truth": b'{"age": true, "job": false, "income": null}',
    "twice": b'{"age": 3, "age": 4, "income": "no"}',
    "another end": b'{"age": 3, "income": "no"}\r',
}


@pytest.fixture(scope="module", autouse=True)
def jsonl() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("jsonl", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jsonl"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["jsonl"]
    del SOURCES._kinds["jsonl"]


def load(folder: Path, *lines: bytes, end: bytes = b"\n") -> Dataset:
    (folder / "people.toml").write_text(TOML)
    (folder / "people.jsonl").write_bytes(b"\n".join(lines) + end)
    return load_dataset(str(folder / "people.jsonl"), schema=folder / "people.toml", public=True)


def encoded(dataset: Dataset) -> list[tuple[bytes, int, bool]]:
    records = dataset.all_records(None)
    each = zip(records.x.numpy(), records.y.tolist(), records.valid.tolist(), strict=True)
    return [(x.tobytes(), y, valid) for x, y, valid in each]


class TestRecords:
    @pytest.mark.unit
    def test_are_those_of_the_same_table_in_a_csv(self, tmp_path: Path):
        dataset = load(
            tmp_path, GOOD, b'{"income": "no", "job": "king", "age": 130.5}', NULL["empty"]
        )
        (tmp_path / "people.csv").write_text("age,job,income\n30,clerk,yes\n130.5,king,no\n\n")
        csv, schema = tmp_path / "people.csv", tmp_path / "people.toml"
        assert encoded(dataset) == encoded(load_dataset(str(csv), schema=schema, public=True))
        assert dataset.fingerprint() != load(tmp_path, GOOD, GOOD, NULL["empty"]).fingerprint()

    @pytest.mark.unit
    @pytest.mark.parametrize("end", [b"", b"\n"])
    @pytest.mark.parametrize("name", [*NULL, *ODD])
    def test_a_strange_line_keeps_its_slot_and_changes_no_other(
        self, name: str, end: bytes, tmp_path: Path
    ):
        strange = (NULL | ODD)[name]
        found = encoded(load(tmp_path, GOOD, strange, GOOD, end=end))
        assert found[0] == found[2] == encoded(load(tmp_path, GOOD))[0]
        assert len(found) == 3
        if name in NULL:
            assert found[1] == (bytes(len(found[0][0])), 0, False)

    @pytest.mark.property
    @given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=5))
    def test_any_bytes_are_as_many_records_as_lines(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
    ):
        folder = tmp_path_factory.mktemp("x")
        assert load(folder, GOOD, *lines).n == 1 + len(lines)
        records = load(folder, GOOD, *lines).all_records(None)
        assert np.isfinite(records.x.numpy()).all()

    @pytest.mark.unit
    def test_the_form_is_refused_and_no_value_shown(self, tmp_path: Path):
        path = tmp_path / "people.jsonl"
        with pytest.raises(UsageError, match="no header: declare"):
            load_dataset(str(path))
        (tmp_path / "people.toml").write_text(TOML)
        with pytest.raises(UsageError, match="cannot be read"):
            load_dataset(str(path), schema=tmp_path / "people.toml")
        with pytest.raises(UsageError, match=r"for a \.npz and does not apply to"):
            load_dataset(str(path), bounds=(0, 1))


class TestNewRecords:
    @pytest.mark.unit
    def test_of_another_kind_are_refused(self, tmp_path: Path):
        dataset = load(tmp_path, GOOD)
        arrays = load_dataset("digits").schema
        for name in ("people.jsonl", "people.csv"):
            (tmp_path / name).touch()
            with pytest.raises(UsageError, match="is a table, and the model was trained on arrays"):
                load_new_records(str(tmp_path / name), arrays)
        with pytest.raises(UsageError, match=r"not known: expected .*one of digits"):
            load_new_records("people.feather", dataset.schema)
        with pytest.raises(UsageError, match="cannot be loaded from built-in images"):
            load_new_records("digits", dataset.schema)


class TestRegistration:
    @pytest.mark.unit
    def test_errors_and_help_know_it(self):
        assert (
            list_declarations("x.jsonl")
            == SOURCES["jsonl"].uses
            == ("schema", "target", "regression")
        )
        assert set(describe_kinds_with("schema").split(" or ")) == {
            "a table", "a Parquet file", "a .jsonl",
        }  # fmt: skip
        with pytest.raises(UsageError, match=r"expected .* \.jsonl file, with a schema"):
            load_dataset("x.feather")

    @pytest.mark.contract
    def test_every_source_says_what_it_is(self):
        declared = set(DataDeclaration.__dataclass_fields__)
        for name, source in SOURCES.kinds().items():
            assert source.name == name
            assert source().describe() == source.kind
            assert source.expected
            assert set(source.uses) <= declared


def people(folder: Path, n: int = 400) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    rows = (
        {
            "age": int(age),
            "job": "clerk" if age % 2 else "smith",
            "income": "yes" if age > 50 else "no",
        }
        for age in rng.integers(18, 90, n)
    )
    (folder / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "people.toml").write_text(TOML)


@pytest.mark.unit
def test_the_command_line_plans_with_it(tmp_path: Path):
    """As a script, and as an installed package, which names it as an entry point."""
    people(tmp_path)
    info = tmp_path / "jsonl-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jsonl\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pasearch.extensions]\njsonl = jsonl\n")
    (tmp_path / "jsonl.py").write_text(EXAMPLE.read_text())
    options = ["plan", "arch", "people.jsonl", "--schema", "people.toml", "--eps", "2"]
    root = str(Path(pasearch.__file__).parents[1])
    plans = []
    for command, paths in [([str(EXAMPLE)], [root]), (["-m", "pasearch"], [root, str(tmp_path)])]:
        done = subprocess.run(
            [sys.executable, *command, *options], capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        plans.append(done.stdout)
    assert plans[0] == plans[1]
    assert "400" in plans[0]


@pytest.mark.unit
def test_a_run_s_keys_are_bound_to_its_file(jsonl: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """A source of a notebook's cell has none, and is refused."""
    assert extension_files() == [EXAMPLE]
    monkeypatch.delitem(sys.modules, "jsonl")
    with pytest.raises(UsageError, match="JsonLines is not defined in a file"):
        extension_files()


@pytest.mark.unit
def test_a_run_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path)
    result = pasearch.search_architecture(
        "people.jsonl", budget=pasearch.Budget(2.0, 1e-4), schema="people.toml", strategy="fixed",
        out="run", seed=1, device="cpu",
    )  # fmt: skip
    assert result.document["dataset"]["n"] == 400
    assert result.document["price"]["epsilon"] <= 2.0
    (tmp_path / "new.jsonl").write_bytes(b"\n".join([GOOD, NULL["cut short"], ODD["nested"]]))
    (tmp_path / "new.csv").write_text("job,age\nclerk,30\nx\n,\n")
    with pytest.warns(UserWarning, match="1 of 3 records of new.jsonl cannot be read"):
        assert len(result.predict("new.jsonl")) == 3
    with pytest.warns(UserWarning, match="cannot be read"):
        np.testing.assert_array_equal(
            result.predict_proba("new.jsonl"), result.predict_proba("new.csv")
        )
