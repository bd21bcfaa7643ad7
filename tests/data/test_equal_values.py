"""One value, many spellings: a file, a frame, Parquet and a schema mean the same by it."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch import Schema
from pasearch.api.request import Request
from pasearch.api.resolve import make_dataset_from_frame
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table
from pasearch.data.frames import extract_cells
from pasearch.data.numbers import canonicalize_number, convert_to_shortest_decimals
from pasearch.data.parquet_file import read_parquet
from pasearch.data.sources import load_new_records
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

LABEL = Column(name="y", categories=("no", "yes"))


def encodings(path: Path, column: Column, cells: Any, dtype: Any = None) -> list[np.ndarray]:
    """Return what a column's cells become in a CSV file, a frame and a Parquet file."""
    frame = pd.DataFrame({column.name: pd.Series(cells, dtype=dtype), "y": "no"})
    frame.to_csv(path / "t.csv", index=False)
    frame.to_parquet(path / "t.parquet")
    schema = TableSchema(columns=(column,), target=LABEL)
    found = [schema.encode_new(frame)]
    return found + [
        schema.encode_new(load_new_records(str(path / name), schema))
        for name in ("t.csv", "t.parquet")
    ]


class TestNumbers:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("cells", "dtype"),
        [
            ([1, 2, 3], "int64"), ([1, 2, 3], "int8"), ([1, 2, 3], "uint16"),
            ([1.0, 2.0, 3.0], "float64"), ([1.0, 2.0, 3.0], "float32"), ([1, 2, 3], "Int64"),
            ([1, 2, 3], "Float32"), (["1", "2", "3"], "string"), (["1.0", "2.00", "3e0"], object),
            (["1", "+2", "3."], object), (["10e-1", "0.2E1", "3.000"], object),
            ([Decimal("1.0"), Decimal("2.00"), Decimal("3")], object),
        ],
        ids=str,
    )  # fmt: skip
    @pytest.mark.parametrize("names", [("1", "2", "3"), ("1.0", "2.0", "3.0"), (1, 2.0, 3)])
    def test_a_category_compares_as_a_number(
        self, tmp_path: Path, cells: list, dtype: Any, names: tuple
    ):
        for x in encodings(tmp_path, Column(name="k", categories=names), cells, dtype):
            assert (x == np.eye(5)[:3]).all()

    @pytest.mark.unit
    @pytest.mark.parametrize("dtype", ["float16", "float32", "Float32", "float64"])
    def test_fractions_of_a_narrow_type_are_those_of_the_file(self, tmp_path: Path, dtype: str):
        for x in encodings(
            tmp_path, Column(name="k", categories=("0.1", ".70")), [0.1, 0.7], dtype
        ):
            assert (x == np.eye(4)[:2]).all()
        bins = Column(name="k", low=0, high=1, bins=(0.1, 0.7))
        assert len({x.tobytes() for x in encodings(tmp_path, bins, [0.1, 0.7], dtype)}) == 1

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("names", "cells", "dtype"),
        [
            (("0", "1"), [False, True], bool), (("0", "1"), [False, True], "boolean"),
            (("0", "1"), ["false", "TRUE"], object), ((False, True), [0, 1], "int64"),
            (("False", "True"), [0.0, 1.0], float), (("FALSE", "TRUE"), ["False", "True"], object),
        ],
        ids=str,
    )  # fmt: skip
    def test_truth_values_are_0_and_1(self, tmp_path: Path, names: tuple, cells: list, dtype: Any):
        for x in encodings(tmp_path, Column(name="k", categories=names), cells, dtype):
            assert (x == np.eye(4)[:2]).all()
        number = Column(name="k", low=0, high=1, bins=0)
        for x in encodings(tmp_path, number, cells, dtype):
            assert x.tolist() == [[0, 0], [1, 0]]

    @pytest.mark.unit
    def test_codes_with_leading_zeros_and_long_ones_stay_apart(self, tmp_path: Path):
        codes = ("00501", "501", "9007199254740993", "9007199254740992")
        column = Column(name="k", categories=codes)
        for x in encodings(tmp_path, column, list(codes), object):
            assert (x == np.eye(6)[:4]).all()
        for x in encodings(tmp_path, column, [501, 9007199254740993], "int64"):
            assert x.argmax(axis=1).tolist() == [1, 2]

    @pytest.mark.unit
    @pytest.mark.parametrize("names", [("0.0", "1.0"), ("0", "1"), (0, 1)])
    def test_classes_are_the_same_from_everywhere(self, tmp_path: Path, names: tuple):
        schema = TableSchema(
            columns=(Column(name="x", low=0, high=9),), target=Column(name="y", categories=names)
        )
        for dtype in ("int64", "float64", "float32", "Int64", "bool", "string"):
            frame = pd.DataFrame({"x": [3.0] * 4, "y": pd.Series([0, 1, 1, 0]).astype(dtype)})
            frame.to_csv(tmp_path / "t.csv", index=False)
            frame.to_parquet(tmp_path / "t.parquet")
            for labels in (
                extract_cells(frame)[:, 1],
                read_table(tmp_path / "t.csv", schema=schema)[2],
                read_parquet(tmp_path / "t.parquet", schema=schema)[2],
            ):
                classes, known = schema.encode_labels(labels)
                assert (classes.tolist(), known.all()) == ([0, 1, 1, 0], True), dtype

    @pytest.mark.unit
    def test_spellings_are_counted_as_one(self):
        cells = np.array(["2", "2.0", 2, 2.0, "2e0", "02", "b"], object)
        counts = Column(name="k").count_categories(cells)
        assert counts == {"2": 5, "02": 1, "b": 1}

    @pytest.mark.property
    @given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-40, 40))
    def test_equal_decimals_have_one_spelling(self, number: Decimal, power: int):
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        same = Decimal((sign, (*digits, *[0] * abs(power)), exponent - abs(power)))
        found = canonicalize_number(str(number))
        assert found is not None
        assert found == canonicalize_number(str(same)) == canonicalize_number(f"{number:E}")
        assert Decimal(found) == number
        assert canonicalize_number(found) == found

    @pytest.mark.oracle
    @given(st.floats(width=32, allow_nan=False, allow_infinity=False))
    def test_a_narrow_float_is_its_shortest_decimal(self, number: float):
        (found,) = convert_to_shortest_decimals(np.array([number], np.float32))
        assert np.float32(found) == np.float32(number)
        if 1e-8 < abs(number) < 1e8:
            assert found == float(str(np.float32(number)))


class TestUnicode:
    NAMES = ("Zürich", "Genève", "Bern")

    @pytest.mark.unit
    @pytest.mark.parametrize("declared", ["NFC", "NFD"])
    @pytest.mark.parametrize("written", ["NFC", "NFD"])
    def test_both_forms_are_one_text(self, tmp_path: Path, declared: Any, written: Any):
        own = [unicodedata.normalize(declared, each) for each in ("Città", *self.NAMES)]
        cells = [unicodedata.normalize(written, each) for each in self.NAMES]
        column = Column(name=own[0], categories=tuple(own[1:]))
        for x in encodings(tmp_path, column, cells):
            assert (x == np.eye(5)[:3]).all()
        frame = pd.DataFrame({unicodedata.normalize(written, "Città"): cells, "y": ["no"] * 3})
        schema = TableSchema(columns=(column,), target=LABEL)
        assert schema.encode_new(frame)[:, :3].all(axis=None) == np.eye(3).all()
        assert make_dataset_from_frame(frame, Request(schema=schema)).schema.columns == (column,)
        frame.to_csv(tmp_path / "n.csv", index=False)
        read, cells, _ = read_table(tmp_path / "n.csv", schema=schema)
        assert (read.encode(cells, out=np.zeros((3, 5), np.float32))).all()
        assert read.columns == (column,)

    @pytest.mark.unit
    def test_vocabulary_marks_and_capitals(self, tmp_path: Path):
        nfd = [unicodedata.normalize("NFD", each) for each in ("über", "zürich", "#é")]
        text = Column(name="k", vocabulary=("über", "zürich"), missing=("#é",))
        for x in encodings(tmp_path, text, nfd):
            assert (x == np.eye(3)).all()
        folded = Column(name="k", categories=("ZÜRICH",), case=False)
        for x in encodings(tmp_path, folded, [nfd[1]]):
            assert x.tolist() == [[1, 0, 0]]


class TestHeaderOfNumbers:
    SCHEMA: ClassVar = {
        "target": "label",
        "columns": {
            **{str(year): {"low": 0, "high": 1} for year in (1978, 1979, 1981)},
            "label": {"categories": ["up", "down"]},
        },
    }

    @pytest.mark.unit
    def test_is_one_where_the_schema_or_the_target_names_it(self, tmp_path: Path):
        path = tmp_path / "years.csv"
        path.write_text("1978,1979,1981,label\n.1,.2,.3,up\n.3,.2,.1,down\n")
        schema = Schema.from_dict(self.SCHEMA)
        for declared, target in ((schema, None), (None, "label"), (schema, "label")):
            found, cells, _ = read_table(path, target, declared)
            assert [each.name for each in found.columns] == ["1978", "1979", "1981"]
            assert len(cells) == 2
        with pytest.raises(UsageError, match="If the numbers are the names of columns"):
            read_table(path)
        with pytest.raises(UsageError, match="If the numbers are the names of columns"):
            read_table(path, "level")
        lone = tmp_path / "new.csv"
        lone.write_text("1981,1979,1978\n.3,.2,.1\n")
        assert schema.encode_new(load_new_records(str(lone), schema)).shape == (1, schema.shape[0])
