"""A Parquet file gives the cells of the same table as a frame; only its form is ever refused."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from pasearch.api.request import SearchRequest
from pasearch.api.resolve import make_dataset_from_frame
from pasearch.data.cells import convert_to_numbers, convert_to_strings, count_strings
from pasearch.data.column import Column
from pasearch.data.parquet_file import read_parquet
from pasearch.data.parquet_files import LargeColumn, ParquetFiles
from pasearch.data.sources import load_dataset, load_new_records
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

N = 400


def frame() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    some = draw.random(N) < 0.2
    return pd.DataFrame(
        {
            "whole": draw.integers(-5, 5, N),
            "large": draw.integers(2**60, 2**62, N),
            "byte": draw.integers(0, 255, N).astype("uint8"),
            "real": draw.normal(size=N),
            "single": draw.normal(size=N).astype("float32"),
            "absent": np.where(some, np.nan, draw.integers(0, 4, N)),
            "infinite": np.where(some, np.inf, -0.0),
            "text": draw.choice(["a", " b", "é", None, "?", "", "3.50"], N),
            "category": pd.Categorical(draw.choice(["x", "y"], N)),
            "bool": some,
            "bools": [True, None] * (N // 2),
            "nullable": pd.array(np.where(some, None, 1), dtype="Int64"),
            "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 9**5, N), "s"),
            "took": pd.to_timedelta(draw.integers(0, 9, N), "s"),
            "date": [datetime.date(2020, 1, 2), None] * (N // 2),
            "decimal": [decimal.Decimal("1.50"), None] * (N // 2),
            "bytes": [b"x", b"\xff"] * (N // 2),
            "label": draw.choice(["no", "yes"], N),
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    frame().to_parquet(tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


class TestCells:
    @pytest.mark.oracle
    @pytest.mark.parametrize("name", frame().columns[:-1])
    def test_are_those_of_the_frame(self, path: Path, name: str):
        schema, features, _ = read_parquet(path)
        column, found = schema.find(name, features, np.empty(0))
        assert column.name == name
        want = make_dataset_from_frame(frame(), SearchRequest()).features._array[  # type: ignore[union-attr]
            :, list(frame().columns).index(name)
        ]
        assert convert_to_strings(found) == convert_to_strings(want)
        np.testing.assert_array_equal(convert_to_numbers(found), convert_to_numbers(want))
        assert count_strings(found) == count_strings(want)
        assert convert_to_strings(found[5:90]) == convert_to_strings(want[5:90])
        assert found.present().all()

    @pytest.mark.oracle
    def test_are_encoded_as_those_of_the_frame(self, path: Path):
        schema = TableSchema(
            columns=(
                Column(name="absent", low=0, high=4, bins=2),
                Column(name="infinite", low=-1, high=1),
                Column(name="byte", categories=("7", "8", "9")),
                Column(name="text", categories=("a", "b", "3.50")),
                *(Column(name=n, kind="ignore") for n in frame().columns if n not in USED),
            ),
            target=Column(name="label", categories=("no", "yes")),
        )
        fitted, features, _ = read_parquet(path, schema=schema)
        want = make_dataset_from_frame(frame(), SearchRequest()).features._array  # type: ignore[union-attr]
        x, y = (np.zeros((N, *fitted.shape), np.float32) for _ in range(2))
        assert fitted.encode(features, out=x).all()
        fitted.encode(want, out=y)
        assert x.tobytes() == y.tobytes()
        assert x.any(axis=0).sum() > 9
        again = fitted.encode_new(load_new_records(str(path), fitted))
        assert again.tobytes() == x.tobytes()

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("array", "texts"),
        [
            (pa.array([1.5, None], pa.float16()), ["1.5", ""]),
            (pa.nulls(2), ["", ""]),
            (pa.array([2**62, 0], pa.timestamp("us")), ["", "1970-01-01 00:00:00"]),
            (pa.array([2**30, 0], pa.date32()), ["", "1970-01-01"]),
            (pa.array([2**64 - 1, None], pa.uint64()), ["18446744073709551615", ""]),
            (pa.array([2**53 + 1, None]), ["9007199254740993", ""]),
            (pa.array([3, None]).dictionary_encode(), ["3", ""]),
            (pa.array(["é" * 20, None], pa.string_view()), ["é" * 20, ""]),
            (pa.array([b"ab", b"\xff\xc3"], pa.binary(2)), ["ab", ""]),
            (pa.array([2**62, 1], pa.duration("s")), ["", "0 days 00:00:01"]),
            (pa.array([True, None]), ["True", ""]),
        ],
        ids=lambda each: str(getattr(each, "type", "")),
    )
    def test_no_value_raises(self, array: Any, texts: list[str], tmp_path: Path):
        parquet.write_table(pa.table({"a": array, "y": ["0", "1"]}), tmp_path / "x.parquet")
        _, features, _ = read_parquet(tmp_path / "x.parquet")
        assert features.T[0].tolist() == texts
        # A row's cells do not depend on what else is there.
        for row in (0, 1):
            alone = pa.table({"a": array, "y": ["0", "1"]}).slice(row, 1)
            parquet.write_table(alone, tmp_path / "x.parquet")
            assert read_parquet(tmp_path / "x.parquet")[1].T[0].tolist() == texts[row : row + 1]

    @pytest.mark.unit
    @pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.string()], ids=str)
    def test_cells_are_read_by_place(
        self, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("pasearch.data.parquet_files.BLOCK_ROWS", 3)
        texts = ["a", "é" * 20, None, "b", "", "c" * 40, "d"]
        cells = pa.array([None if each is None else each.encode() for each in texts], pa.binary())
        table = pa.table({"a": cells.cast(kind), "y": ["0"] * len(texts)})
        parquet.write_table(table, tmp_path / "x.parquet")
        files = ParquetFiles.of(tmp_path / "x.parquet")
        assert files.types["a"] == kind
        places = np.array([5, 0, 2, 5, 1, 6])
        expected = [texts[place] or "" for place in places]
        assert files.column("a", places).tolist() == expected
        assert LargeColumn(files, "a")[places].tolist() == expected


USED = {"absent", "infinite", "byte", "text", "label"}


class TestForm:
    @pytest.mark.unit
    def test_fingerprint_tells_values_apart(self, tmp_path: Path):
        found = set()
        for value in (1.0, 2.0, None):
            table = pa.table({"a": pa.array([0.0, value]), "y": ["0", "1"]})
            parquet.write_table(table, tmp_path / "x.parquet")
            one, other = (load_dataset(str(tmp_path / "x.parquet")) for _ in range(2))
            assert one.fingerprint() == other.fingerprint()
            found.add(one.fingerprint())
        assert len(found) == 3

    @pytest.mark.unit
    def test_statistics_of_values_decide_nothing(self, path: Path):
        marks = set()
        for statistics in (True, False):
            table = parquet.read_table(path)
            parquet.write_table(table, path, write_statistics=statistics, use_dictionary=statistics)
            marks.add(load_dataset(str(path)).fingerprint())
        assert len(marks) == 1

    @pytest.mark.unit
    def test_an_index_is_no_column(self, tmp_path: Path):
        made = frame()[["whole", "label"]].set_index(pd.Index(range(5, N + 5), name="person"))
        made.to_parquet(tmp_path / "x.parquet")
        schema = read_parquet(tmp_path / "x.parquet")[0]
        assert [column.name for column in schema.columns] == ["whole"]
        assert schema.name == "x"

    @pytest.mark.unit
    def test_nested_columns_are_refused_unless_ignored(self, tmp_path: Path):
        path = tmp_path / "x.parquet"
        parquet.write_table(pa.table({"a": [1, 2], "l": [["secret"], []], "y": ["0", "1"]}), path)
        with pytest.raises(UsageError, match="column 'l' has type list") as caught:
            read_parquet(path)
        assert "secret" not in str(caught.value)
        ignoring = TableSchema(columns=(Column(name="l", kind="ignore"),), target=Column(name="y"))
        _, features, _ = read_parquet(path, schema=ignoring)
        assert features.tolist() == [["1", ""], ["2", ""]]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("names", "match"),
        [(["a", " a"], "columns 1 and 2 have the same name"), (["", "b"], "column 1 has no name")],
    )
    def test_names_tell_columns_apart(self, names: list[str], match: str, tmp_path: Path):
        table = pa.table([[1], [2]], names=names)
        parquet.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(UsageError, match=match):
            read_parquet(tmp_path / "x.parquet")

    @pytest.mark.unit
    def test_no_row_no_column_and_no_target_are_refused(self, tmp_path: Path):
        path = tmp_path / "x.parquet"
        parquet.write_table(pa.table({"a": pa.array([], pa.int8()), "y": pa.array([])}), path)
        with pytest.raises(UsageError, match="has no row"):
            read_parquet(path)
        parquet.write_table(pa.table({"a": [1], "y": [2]}), path)
        with pytest.raises(UsageError, match="has no column 'z'"):
            read_parquet(path, "z")
        parquet.write_table(pa.table({"a": [1]}), path)
        with pytest.raises(UsageError, match="expected two columns or more"):
            read_parquet(path)
        with pytest.raises(UsageError, match=r"none\.parquet does not exist"):
            read_parquet(tmp_path / "none.parquet")

    @pytest.mark.property
    def test_damaged_files_are_refused_or_read(self, path: Path):
        content, draw, refused = path.read_bytes(), random.Random(0), list[str]()
        damaged = [b"", b"PAR1", b"a,b\n1,2\n", content[:-9], content[: len(content) // 2]]
        for _ in range(60):
            changed = bytearray(content)
            for _ in range(20):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            damaged.append(bytes(changed))
        for each in damaged:
            path.write_bytes(each)
            try:
                read_parquet(path)
            except UsageError as error:
                refused.append(str(error))
        assert len(refused) > 30
        assert all("Save it again" in message for message in refused)
