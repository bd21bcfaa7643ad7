"""Tables: a cell is encoded alone and into [0, 1], no value raises, a bad form says what to do."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csv_rows import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.data.cells import convert_to_numbers, convert_to_strings
from pasearch.data.column import DEFAULT_BINS, TOKEN_SCALE, Column
from pasearch.data.csv_file import read_table
from pasearch.data.rows import CompactRows, pack_table
from pasearch.data.tables import TableSchema, declare_text
from pasearch.errors import UsageError

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
EXAMPLES = {
    "adult": "tabular/adult.csv",
    "breast-cancer": "tabular/breast-cancer.csv",
    "breast-cancer-wisconsin": "tabular/breast-cancer-wisconsin.csv",
    "insurance": "tabular/insurance.csv",
    "sms-spam": "text/sms_spam.csv",
}

AGE = Column(name="age", low=20, high=60, bins=(30, 40))
WORK = Column(name="work", categories=("Private", "State"))
NOTE = Column(name="note", vocabulary=("free", "don't", "£"))
ID = Column(name="id", kind="ignore")
INCOME = Column(name="income", categories=("<=50K", ">50K"))
CHARGES = Column(name="charges", low=0, high=1000)
SCHEMA = TableSchema(columns=(AGE, WORK, ID, NOTE), target=INCOME, name="people")


def cells(*rows: tuple[object, ...]) -> np.ndarray:
    table = np.empty((len(rows), len(rows[0])), object)
    for i, row in enumerate(rows):
        table[i] = row
    return table


def column_of(*values: object) -> np.ndarray:
    return cells(*((value,) for value in values))[:, 0]


def encoded(schema: TableSchema, features: np.ndarray) -> np.ndarray:
    out = np.full((len(features), *schema.shape), 7.0, np.float32)
    schema.encode(features, out=out)
    return out


def encoded_column(column: Column, *values: object) -> np.ndarray:
    out = np.zeros((len(values), column.width), np.float32)
    column.encode(column_of(*values), out=out)
    return out


def write(path: Path, text: str, *, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


class TestNumbers:
    @pytest.mark.unit
    def test_are_clamped_scaled_and_put_into_a_bin(self):
        assert AGE.feature_names() == [
            "age", "age < 30", "age in [30, 40)", "age >= 40", "age missing",
        ]  # fmt: skip
        found = encoded_column(AGE, "20", "30", " 39.9 ", "40", "60", "-5", "1e9", 30, 30.0)
        want = [
            [0, 1, 0, 0, 0],
            [0.25, 0, 1, 0, 0],
            [0.4975, 0, 1, 0, 0],
            [0.5, 0, 0, 1, 0],
            [1, 0, 0, 1, 0],
            [0, 1, 0, 0, 0],
            [1, 0, 0, 1, 0],
            [0.25, 0, 1, 0, 0],
            [0.25, 0, 1, 0, 0],
        ]
        np.testing.assert_allclose(found, want, rtol=1e-6)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "value",
        [
            "",
            "?",
            "nan",
            "-1e999",
            None,
            float("nan"),
            pytest.param(10**5000, id="huge"),
        ],
    )
    def test_that_are_none_are_missing(self, value: object):
        np.testing.assert_array_equal(encoded_column(AGE, value), [[0, 0, 0, 0, 1]])

    @pytest.mark.unit
    def test_have_ten_bins_of_equal_width_by_default(self):
        column = Column(name="x", low=0, high=100)
        assert column.edges == (10, 20, 30, 40, 50, 60, 70, 80, 90)
        assert column.width == DEFAULT_BINS + 2
        found = encoded_column(column, *range(0, 101, 5))
        np.testing.assert_array_equal(
            found[:, 1:-1].argmax(1), np.minimum(np.arange(0, 101, 5) // 10, 9)
        )
        np.testing.assert_array_equal(found[:, 1:-1].sum(1), 1)


class TestCategories:
    @pytest.mark.unit
    def test_are_one_hot_with_other_and_missing(self):
        found = encoded_column(WORK, "Private", " State", "state", "Unheard-of", "?", "", None)
        places = [0, 1, 2, 2, 3, 3, 3]
        np.testing.assert_array_equal(found, np.eye(4)[places])
        assert WORK.feature_names() == [
            "work = Private", "work = State", "work = other", "work missing",
        ]  # fmt: skip

    @pytest.mark.unit
    def test_a_whole_float_is_the_category_of_its_number(self):
        column = Column(name="grade", categories=(2, 4))  # type: ignore[arg-type]
        assert column.categories == ("2", "4")
        found = encoded_column(column, 2.0, np.float64(4), 2, "4", 2.5)
        np.testing.assert_array_equal(found.argmax(1), [0, 1, 0, 1, 2])

    @pytest.mark.unit
    def test_pandas_absent_cells_are_missing(self):
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame({"work": pd.array(["Private", pd.NA], "string")})
        assert convert_to_strings(np.asarray(frame["work"], object)) == ["Private", None]
        assert convert_to_strings(column_of(pd.NaT, pd.NA, np.nan)) == [None, None, None]


class TestText:
    @pytest.mark.unit
    def test_is_which_words_occur(self):
        found = encoded_column(NOTE, "FREE free! £5", "freedom", "I don't", "d o n t", "?", None)
        want = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
        np.testing.assert_array_equal(found, want)
        assert NOTE.feature_names()[0] == "note has 'free'"


class TestTokens:
    """Texts as sequences of words."""

    COLUMN = Column(name="note", vocabulary=("free", "don't", "1", "01"), length=4)

    @pytest.mark.unit
    def test_words_are_tokens_in_their_order_behind_padding(self):
        texts = "FREE free! win", "I don't", "", None, "1 01 1.0", "a b free c d free", "?"
        found = encoded_column(self.COLUMN, *texts) * TOKEN_SCALE
        want = [
            [0, 2, 2, 1], [0, 0, 1, 3], [0, 0, 0, 0], [0, 0, 0, 0], [4, 5, 4, 1], [1, 1, 2, 1],
            [0, 0, 0, 0],
        ]  # fmt: skip
        np.testing.assert_array_equal(found, want)
        assert self.COLUMN.feature_names() == [f"note word {i}" for i in (1, 2, 3, 4)]
        assert self.COLUMN.describe() == "note: a text, its first 4 of 4 known words"

    @pytest.mark.unit
    def test_tokens_survive_compact_storage_and_json(self):
        schema = TableSchema(columns=(AGE, self.COLUMN, WORK), target=INCOME)
        features = cells(("30", "win free", "State"), ("x", "don't", "?"), (None, None, None))
        valid = np.ones(3, bool)
        kept = pack_table(schema, lambda rows: features[rows], valid)
        x = CompactRows.of(schema, kept)[:].numpy()
        np.testing.assert_array_equal(x[:2], encoded(schema, features)[:2])
        assert not x[2].any()
        assert valid.tolist() == [True, True, False]
        assert TableSchema.from_json(schema.to_json()) == schema
        assert schema.token_column == "note"

    @pytest.mark.unit
    def test_bad_lengths_are_refused_and_a_vocabulary_may_be_missing(self):
        for length in (0, -1, 2.5, True, "3", 10_001):
            with pytest.raises(UsageError, match="length"):
                Column(name="note", length=length)  # pyright: ignore[reportArgumentType]
        assert not Column(name="note", length=4).is_declared
        assert Column(name="note", length=4).width == 4
        assert Column(name="note", length=4, vocabulary=()).is_declared

    @pytest.mark.unit
    def test_the_option_declares_a_text_of_150_words(self):
        schema = TableSchema(columns=(Column(name="note"), AGE), target=INCOME)
        found = declare_text(schema, "note").columns[0]
        assert (found.kind, found.length, found.vocabulary) == ("text", 150, None)
        assert declare_text(schema, None) == schema
        for name, words in (("notes", "did you mean 'note'"), ("age", "as a number")):
            with pytest.raises(UsageError, match=words):
                declare_text(schema, name)


class TestColumn:
    @pytest.mark.unit
    def test_what_is_declared_can_be_encoded(self):
        assert all(c.is_declared for c in (AGE, WORK, NOTE, ID))
        assert Column(name="x", categories=()).is_declared
        for column in (
            Column(name="x"), Column(name="x", kind="number"), Column(name="x", kind="category"),
            Column(name="x", bins=3),
        ):  # fmt: skip
            assert not column.is_declared
        with pytest.raises(RuntimeError, match="before the schema is complete"):
            encoded_column(Column(name="x", kind="number", bins=()), "3")

    @pytest.mark.unit
    def test_what_makes_no_sense_is_refused(self):
        for declared, match in [
            ({"kind": "numbers"}, "expected one of number"),
            ({"low": 3, "high": 3}, "low < high"),
            ({"low": 0, "high": float("nan")}, "low < high"),
            ({"low": 0, "high": 1, "bins": -1}, "bins"),
            ({"low": 0, "high": 9, "bins": (3, float("nan"))}, "bins"),
            ({"categories": ("a", "b", "a")}, "'a' twice"),
            ({"categories": ("a", "?")}, "always mean missing"),
            ({"categories": ("a", None)}, "strings or numbers"),
            ({"categories": ("2", "2.0")}, "'2.0' twice, also as '2'"),
            ({"categories": (2, 2.5, 2.50)}, "'2.5' twice"),
            ({"categories": ("Zu\u0308rich", "Zürich")}, "'Zürich' twice"),
            ({"categories": ("1", "2"), "missing": ("2.0",)}, "and a missing mark"),
            ({"categories": "ab"}, "a list"),
            ({"categories": ("a", "b"), "low": 0, "high": 1}, "is not valid for kind"),
            ({"kind": "ignore", "categories": ("a",)}, "key categories is not valid"),
            ({"kind": "category", "bins": 3}, "key bins is not valid"),
            ({"kind": "number", "vocabulary": ("a",)}, "key vocabulary is not valid"),
            ({"kind": "text"}, "requires a vocabulary"),
            ({"vocabulary": ("two words",)}, "one word"),
            ({"vocabulary": ("a", "a")}, "twice"),
            ({"categories": ("a", "b"), "case": 0}, "case is 0: expected true or false"),
            ({"categories": ("a", "A"), "case": False}, "'A' twice"),
            (
                {"categories": ("a", "-"), "missing": ("-",)},
                "is both a category and a missing mark",
            ),
            ({"kind": "number", "case": False}, "key case is not valid"),
            ({"missing": "-"}, "missing is '-': expected a list"),
            ({"missing": (True,)}, "missing holds True: expected strings or numbers"),
            ({"missing": (None,)}, "missing holds None"),
            ({"decimal": ";"}, "decimal is ';': expected"),
            ({"decimal": ""}, "decimal is ''"),
            ({"thousands": "."}, "different from decimal, which is '.'"),
            ({"decimal": ",", "thousands": ","}, "different from decimal, which is ','"),
            ({"thousands": "_"}, "thousands is '_'"),
        ]:
            with pytest.raises(UsageError, match=match) as caught:
                Column(name="some column", **declared)
            assert "some column" in str(caught.value)


ODD = st.one_of(
    st.none(), st.text(max_size=8), st.floats(), st.integers(), st.booleans(),
    st.binary(max_size=3),
    st.sampled_from(["25", "Private", "free £", "?", ">50K", "1e400", "١٢", "\0", 10**5000]),
)  # fmt: skip
ROW = st.tuples(ODD, ODD, ODD, ODD)


class TestEncode:
    @pytest.mark.property
    @given(rows=st.lists(ROW, min_size=1, max_size=8))
    def test_a_row_depends_on_its_own_cells_alone_and_no_value_raises(self, rows: list[tuple]):
        together = encoded(SCHEMA, cells(*rows))
        assert np.isfinite(together).all()
        assert together.min() >= 0.0
        assert together.max() <= 1.0
        alone = np.concatenate([encoded(SCHEMA, cells(row)) for row in rows])
        np.testing.assert_array_equal(together, alone)

    @pytest.mark.property
    @given(values=st.lists(ODD, min_size=1, max_size=8))
    @pytest.mark.parametrize("target", [INCOME, CHARGES], ids=["classes", "number"])
    def test_a_target_depends_on_its_own_cell_alone(self, target: Column, values: list):
        schema = TableSchema(columns=(AGE,), target=target)
        y, valid = schema.encode_labels(column_of(*values))
        assert np.isfinite(y).all()
        assert y.min() >= 0
        assert y.max() <= 1
        alone = [schema.encode_labels(column_of(value)) for value in values]
        np.testing.assert_array_equal(y, np.concatenate([a for a, _ in alone]))
        np.testing.assert_array_equal(valid, np.concatenate([v for _, v in alone]))

    @pytest.mark.unit
    def test_names_say_what_each_number_is(self):
        names = list(SCHEMA.names)
        assert SCHEMA.shape == (len(names),) == (5 + 4 + 0 + 4,)
        found = encoded(SCHEMA, cells(("35", "State", "17", "win £")))[0]
        assert [n for n, v in zip(names, found, strict=True) if v] == [
            "age", "age in [30, 40)", "work = State", "note has '£'",
        ]  # fmt: skip

    @pytest.mark.unit
    def test_a_row_of_none_is_a_null_record_and_a_row_of_missing_values_is_not(self):
        features = cells((None,) * 4, ("?", "", "?", ""), ("25", None, None, None))
        out = np.zeros((3, *SCHEMA.shape), np.float32)
        np.testing.assert_array_equal(SCHEMA.encode(features, out=out), [False, True, True])

    @pytest.mark.unit
    def test_classes_that_are_not_declared_are_not_valid(self):
        labels = column_of(">50K", " <=50K", ">50K.", "", "?", None, 7)
        y, valid = SCHEMA.encode_labels(labels)
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, [1, 0, 0, 0, 0, 0, 0])
        np.testing.assert_array_equal(valid, [True, True] + [False] * 5)

    @pytest.mark.unit
    def test_numbers_to_predict_are_clamped_and_scaled(self):
        schema = TableSchema(columns=(AGE,), target=CHARGES)
        y, valid = schema.encode_labels(column_of("250", "-3", "1e9", "x", None, "nan"))
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, [0.25, 0, 1, 0, 0, 0])
        np.testing.assert_array_equal(valid, [True] * 3 + [False] * 3)

    @pytest.mark.unit
    def test_takes_arrays_of_numbers_and_frames(self):
        pd = pytest.importorskip("pandas")
        schema = TableSchema(columns=(AGE, Column(name="b", low=0, high=1)), target=INCOME)
        numbers = np.array([[25.0, 0.5], [np.nan, 2.0]])
        frame = pd.DataFrame(numbers, columns=["age", "b"])
        want = encoded(schema, cells(("25", "0.5"), ("", "2")))
        np.testing.assert_array_equal(encoded(schema, numbers), want)
        np.testing.assert_array_equal(encoded(schema, frame), want)


class TestSchema:
    @pytest.mark.unit
    def test_says_what_is_predicted(self):
        assert (SCHEMA.classes, SCHEMA.outputs, SCHEMA.regression) == (2, 2, False)
        assert SCHEMA.class_names == ("<=50K", ">50K")
        assert (SCHEMA.low, SCHEMA.high, SCHEMA.target_bounds) == (0.0, 1.0, None)
        assert SCHEMA.describe() == "4 columns, 13 features, 2 classes"
        number = TableSchema(columns=(AGE,), target=CHARGES)
        assert (number.classes, number.outputs, number.regression) == (None, 1, True)
        assert number.class_names == ()
        assert number.target_bounds == (0.0, 1000.0)
        assert number.describe() == "1 column, 5 features, a number in [0, 1000]"

    @pytest.mark.unit
    @pytest.mark.parametrize("found", [(), ("x",)], ids=["none", "one"])
    def test_a_estimate_that_finds_too_few_classes_leaves_two(self, found: tuple[str, ...]):
        estimated = Column(name="b", kind="category", categories=found)
        schema = TableSchema(columns=(AGE,), target=estimated)
        assert schema.classes == schema.outputs == len(schema.class_names) == 2
        _, valid = schema.encode_labels(column_of("x", "y", None))
        np.testing.assert_array_equal(valid, ["x" in found, False, False])

    @pytest.mark.unit
    def test_no_estimate_is_wider_than_the_widest(self):
        for kind in [None, "number", "category"]:
            for bins in [None, 0, 1, 40, (), (0.2, 0.6)]:
                declared = {} if bins is None or kind != "number" else {"bins": bins}
                schema = TableSchema(
                    columns=(WORK, Column(name="x", kind=kind, **declared)), target=INCOME
                )
                names = tuple(map(str, range(5)))
                estimated = [
                    *([Column(name="x", low=0, high=1, **declared)] if kind != "category" else []),
                    *([Column(name="x", categories=names)] if kind != "number" else []),
                ]
                widths = [schema.completed({"x": column}).shape[0] for column in estimated]
                assert schema.max_shape(5) == (max(widths),)
                assert SCHEMA.max_shape(5) == SCHEMA.shape

    @pytest.mark.unit
    def test_what_makes_no_sense_is_refused(self):
        for change, match in [
            ({"columns": (AGE, AGE)}, "'age' occurs twice"),
            ({"columns": (AGE, INCOME)}, "'income' occurs twice"),
            ({"target": Column(name="t", kind="ignore")}, "is the target"),
            ({"target": Column(name="t", low=0, high=1, bins=3)}, "with bins"),
            ({"official_test": -1}, "official_test"),
            ({"missing": "-"}, "missing is '-': expected a list"),
            ({"decimal": ";"}, "decimal is ';'"),
            ({"thousands": "."}, "thousands is '.'"),
            (
                {"missing": ("Private",), "columns": (WORK,)},
                "write missing = \\[\\] for this column",
            ),
        ]:
            with pytest.raises(UsageError, match=match):
                TableSchema(**({"columns": (AGE,), "target": INCOME} | change))

    @pytest.mark.unit
    def test_refuses_arrays_of_another_form(self):
        good = np.empty((3, 4), object), np.empty(3, object)
        SCHEMA.check_arrays("people", *good)
        for features, labels in (
            (np.empty((3, 5), object), good[1]),
            (np.empty(4, object), good[1]),
            (good[0], np.empty((3, 1), object)),
        ):
            with pytest.raises(UsageError, match="'people'"):
                SCHEMA.check_arrays("people", features, labels)
        nothing = TableSchema(columns=(ID,), target=INCOME)
        with pytest.raises(UsageError, match="except the target 'income' are ignored"):
            nothing.check_arrays("people", np.empty((3, 1), object), good[1])


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
FINITE = st.floats(-1e300, 1e300)
MARKS = ("-", "n.a.", "-999", "\u2013")
READINGS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "missing": st.lists(st.sampled_from(MARKS), unique=True),
        "decimal": st.just(","),
        "thousands": st.sampled_from([" ", "'"]),
    },
)


@st.composite
def columns(draw: st.DrawFn, name: str, *, is_target: bool) -> Column:
    kinds = ["number", "category"] + ([] if is_target else ["none", "ignore", "text", "date"])
    kind = draw(st.sampled_from(kinds))
    reading = draw(READINGS)
    if kind == "number":
        edges = draw(st.lists(FINITE, min_size=2, max_size=5, unique=True))
        low, *inner, high = sorted(edges)
        bins = None if is_target else draw(st.sampled_from([None, 0, 7, tuple(inner)]))
        return Column(name=name, low=low, high=high, bins=bins, **reading)
    if kind == "category":
        texts = NAMES.filter(lambda text: text.strip() not in ("", "?", *MARKS))
        unique = st.lists(texts, min_size=2, max_size=30, unique_by=lambda t: t.strip().casefold())
        case = draw(st.sampled_from([None, True, False]))
        return Column(name=name, categories=tuple(draw(unique)), case=case, **reading)
    if kind == "text":
        return Column(name=name, vocabulary=("free", "£"), **reading)
    if kind == "date":
        days = sorted(draw(st.lists(st.dates(), min_size=2, max_size=2, unique=True)))
        form = draw(st.sampled_from([None, "%d.%m.%Y", "%b %d, %Y"]))
        parts = draw(st.none() | st.lists(st.sampled_from(["year", "hour"]), unique=True))
        return Column(name=name, lower=days[0], upper=days[1], format=form, parts=parts, **reading)
    return Column(name=name, kind=None if kind == "none" else kind, **reading)


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    made = [draw(columns(name, is_target=i == 0)) for i, name in enumerate(names)]
    tail = draw(st.integers(0, 9))
    return TableSchema(
        columns=tuple(made[1:]), target=made[0], official_test=tail, name=draw(NAMES),
        **draw(READINGS),
    )  # fmt: skip


class TestToml:
    @pytest.mark.property
    @settings(max_examples=200)
    @given(schema=schemas())
    def test_is_written_and_read_back(self, schema: TableSchema, tmp_path_factory):
        path = tmp_path_factory.mktemp("toml") / "schema.toml"
        path.write_bytes(schema.to_toml_text().encode())
        assert TableSchema.from_toml(path) == schema
        assert TableSchema.from_dict(tomllib.loads(path.read_text("utf-8"))) == schema
        assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema

    @pytest.mark.unit
    def test_a_long_list_is_written_over_several_lines(self):
        many = Column(name="x", categories=tuple(f"category {i}" for i in range(40)))
        text = TableSchema(columns=(many,), target=INCOME).to_toml_text()
        assert max(map(len, text.splitlines())) <= 100
        assert tomllib.loads(text)["columns"]["x"]["categories"] == list(many.categories or ())

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("", "the target is not declared"),
            ("target = 'y'\ntest = 3", "unknown key 'test'.*expected name, target"),
            ("target = 'y'\n[column.x]", "unknown key 'column'; did you mean 'columns'"),
            ("target = 'y'\n[columns.x]\nmin = 3", "column 'x' has an unknown key 'min'"),
            ("target = 'y'\n[columns.x]\nlow = 3\nhigh = 2", "Column 'x'.*low < high"),
            ("target = 'y'\n[columns.x]\ncategories = ['a', 'a']", "Column 'x'.*'a' twice"),
            ("target = 'y'\n[columns.x]\nlow = 0\nhigh = 2\nbins = [1, 2]", "'x'.*edge 2"),
            ("target = 'y'\n[columns.y]\ncategories = ['a']", "'y' is the target and has 1"),
            ("target = 'y'\n[columns.y]\nkind = 'ignore'", "'y' is the target"),
            ("target = 'y'\ncolumns = 3", "must be TOML tables"),
            ("target = 'y'\nname = 3", "name is 3"),
            ("target = 'y'\nofficial_test = 'no'", "official_test is 'no'"),
            ("target = 'y'\nmissing = 3", "missing is 3: expected a list"),
            ("target = 'y'\nmissings = ['-']", "unknown key 'missings'; did you mean 'missing'"),
            ("target = 'y'\ndecimal = ';'", "decimal is ';'"),
            ("target = 'y'\nthousands = '.'", "thousands is '.'"),
            ("target = 'y'\n[columns.x]\nlow = 2020-01-01\nhigh = 2021-01-01", "lower and upper"),
            ("target = 'y'\n[columns.x]\nkind = 'date'", "'x'.*expected two days"),
            ("target = 'y'\n[columns.x]\nformats = 'x'", "did you mean 'format'"),
            ("target = 'y'\n[columns.x]\ncase = false\nlow = 1\nhigh = 2", "key case is not valid"),
            ("target = ", "cannot be read as TOML"),
        ],
        ids=lambda text: text[:40],
    )
    def test_an_error_names_the_file_and_what_is_wrong(self, tmp_path: Path, text: str, match: str):
        path = write(tmp_path / "schema.toml", text)
        with pytest.raises(UsageError, match=match) as caught:
            TableSchema.from_toml(path)
        assert str(caught.value).startswith(str(path))


READ = """
target = "won"
missing = ["-", -999]
decimal = ","
thousands = "."
[columns.signed]
lower = 2015-01-01
upper = "2024-12-31"
format = "%d.%m.%Y"
parts = ["year"]
[columns.price]
low = 0
high = 10000
[columns.share]
low = 0
high = 1
decimal = "."
missing = []
[columns.region]
categories = ["North", "South"]
case = false
[columns.won]
categories = ["yes", "no"]
"""


class TestReading:
    @pytest.mark.unit
    def test_what_a_table_says_holds_for_columns_that_say_nothing_else(self, tmp_path: Path):
        schema = TableSchema.from_toml(write(tmp_path / "deals.toml", READ))
        signed, price, share, region = schema.columns
        assert (signed.lower, signed.upper) == ("2015-01-01", "2024-12-31")
        assert (price.decimal, price.thousands, price.missing) == (",", ".", ("-", "-999"))
        assert (share.decimal, share.thousands, share.missing) == (".", None, ())
        assert region.missing == schema.target.missing == ("-", "-999")
        rows = encoded(schema, cells(
            ("01.07.2020", "2.500,0", "0.5", "NORTH"), ("-", "-999,0", "-999", "-"),
        ))  # fmt: skip
        found = dict(zip(schema.names, rows.T.tolist(), strict=True))
        assert found["signed.year = 2020"] == [1, 0]
        assert (found["price"], found["price missing"]) == ([0.25, 0], [0, 1])
        assert (found["share"], found["share missing"]) == ([0.5, 0], [0, 0])
        assert (found["region = North"], found["region missing"]) == ([1, 0], [0, 1])
        assert found["signed.days missing"] == [0, 1]

    @pytest.mark.unit
    def test_is_said_once_in_a_file(self, tmp_path: Path):
        schema = TableSchema.from_toml(write(tmp_path / "deals.toml", READ))
        text = schema.to_toml_text()
        assert text.count("thousands") == text.count("'-'") + 1 == 1
        values = schema.to_json()
        assert values["missing"] == ["-", "-999"]
        assert "missing" not in values["columns"][0]

    @pytest.mark.unit
    def test_capitals_do_not_matter_where_it_says_so(self):
        column = Column(name="x", categories=("Yes", "Na"), case=False, missing=("-", "unknown"))
        found = column.encode_categories(
            column_of("YES", "yes", "NA", "na", "Unknown", "n/a", "N/a", "no")
        )
        assert found.tolist() == [0, 0, 1, 1, 3, 3, 3, 2]
        exact = Column(name="x", categories=("Yes", "NA"))
        assert exact.encode_categories(column_of("YES", "Yes", "NA", "n/a", "na")).tolist() == [
            2,
            0,
            1,
            3,
            2,
        ]

    @pytest.mark.property
    @given(values=st.lists(ODD, min_size=1, max_size=12), case=st.sampled_from([None, False]))
    def test_categories_are_counted_as_they_are_encoded(self, values: list, case: bool | None):
        column = Column(name="x", kind="category", case=case, missing=("private",))
        counts = column.count_categories(column_of(*values))
        found = replace(column, categories=tuple(counts))
        codes = found.encode_categories(column_of(*values)).tolist()
        assert [codes.count(place) for place in range(len(counts))] == list(counts.values())
        assert codes.count(len(counts)) == 0, "nothing is another category"


class TestHeader:
    @pytest.mark.unit
    def test_a_schema_takes_the_files_order_and_buys_the_rest(self):
        schema = SCHEMA.for_header(["note", "new", "income", "id", "age", "work"], where="x.csv")
        assert [c.name for c in schema.columns] == ["note", "new", "id", "age", "work"]
        assert schema.undeclared == ("new",)
        assert schema.columns[3] is AGE

    @pytest.mark.unit
    def test_a_column_that_is_not_there_is_named_with_its_near_matches(self):
        message = r"x\.csv has no column 'age', which the schema declares; did you mean 'ages'\."
        with pytest.raises(UsageError, match=message):
            SCHEMA.for_header(["ages", "work", "id", "note", "income"], where="x.csv")
        header = ["homes", "age", "work", "id", "note", "income"]
        with pytest.raises(UsageError, match="no column 'bogus'; there are 'homes', 'age'"):
            SCHEMA.for_header([*header, "hours"], where="x.csv", target="bogus")
        many = [*header, *(f"x{i}" for i in range(90))]
        with pytest.raises(UsageError, match=r"no column 'zzz'; there are .* 'x3', \.\.\.\."):
            SCHEMA.for_header(many, where="x.csv", target="zzz")


SMALL = "age,work,income\n25,Private,<=50K\n40,?,>50K\n"


class TestRead:
    @pytest.mark.unit
    def test_another_target_is_taken_out_of_its_place(self, tmp_path: Path):
        schema, features, labels = read_table(write(tmp_path / "people.csv", SMALL), "age")
        assert [c.name for c in schema.columns] == ["work", "income"]
        assert features.tolist() == [["Private", "<=50K"], ["?", ">50K"]]
        assert labels.tolist() == ["25", "40"]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("text", "rows"),
        [
            ("a,b\r\n1,2\r\n3,4\r\n", [["1", "2"], ["3", "4"]]),
            ("\ufeffa,b\n1,2", [["1", "2"]]),
            ('a,b\n"x, y","said ""hi"""\n', [["x, y", 'said "hi"']]),
            ('a,b\n"x, y","line\nbreak"\n1,2\n', [None, None, ["1", "2"]]),
            ("a,b\n1,x\ry\n3,4\n", [["1", "x\ry"], ["3", "4"]]),
            ("a,b\r\n1,2\n3,4\r\n", [["1", "2"], ["3", "4"]]),
            ('a,b\nsaid "hi",5" pipe\n', [['said "hi"', '5" pipe']]),
            ("a,b\n1,2\n\n\n", [["1", "2"], None, None]),
            ("a,b\n1,\ufeffx\n", [["1", "\ufeffx"]]),
            ("a,b\nx\0y,2\n", [["x\0y", "2"]]),
            (" a , b \nNA,nan\n", [["NA", "nan"]]),
            ("0,1,label\n3,4,x\n", [["3", "4", "x"]]),
            ("1,2\n3,4\n", [["3", "4"]]),
            ("a,b\n" + "x" * 200_000 + ",2\n", [["x" * 200_000, "2"]]),
        ],
        ids=[
            "crlf",
            "bom",
            "quoted",
            "break",
            "bare cr",
            "mixed",
            "inside",
            "end",
            "mark",
            "nul",
            "spaces",
            "0",
            "1",
            "long",
        ],
    )
    def test_follows_the_rules_of_csv(self, tmp_path: Path, text: str, rows: list):
        limit = csv.field_size_limit()
        header, found = read_rows(write(tmp_path / "x.csv", text))
        assert found == rows
        assert all(name == name.strip() and not name.startswith("\ufeff") for name in header)
        assert csv.field_size_limit() == limit

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("", "is empty"),
            ("a,b\n", "no row"),
            ("a,b\r1,secret\r", "LF or CR LF"),
            ("a\nsecret\n", "two or more columns"),
            ("a:b\nsecret:2\n", "separated by commas, semicolons, tabs"),
            ("a,,b\nsecret,2,3\n", "column 2 has no name"),
            ("a, a\nsecret,2\n", "columns 1 and 2 have the same name"),
            ("39,secret,<=50K\n40,x,y\n", "looks like a record"),
            ("secret,x,x\n1,2,3\n", "columns 2 and 3 have the same"),
        ],
        ids=lambda text: repr(text)[:24],
    )
    def test_a_bad_form_is_refused_and_no_value_is_named(
        self, tmp_path: Path, text: str, match: str
    ):
        path = write(tmp_path / "x.csv", text)
        with pytest.raises(UsageError, match=match) as caught:
            read_table(path)
        assert str(caught.value).startswith(str(path))
        assert "secret" not in str(caught.value).removeprefix(str(path))

    @pytest.mark.unit
    def test_what_is_no_file_or_has_no_header_of_utf_8_is_refused(self, tmp_path: Path):
        with pytest.raises(UsageError, match="does not exist"):
            read_table(tmp_path / "no.csv")
        with pytest.raises(UsageError, match="is a folder: expected the path of a table") as found:
            read_table(tmp_path)
        assert ".parquet file or a folder of these. Name a file in it." in str(found.value)
        for encoding, told in (
            ("latin-1", "its header is not UTF-8"),
            ("utf-16", "UTF-16: save it"),
        ):
            with pytest.raises(UsageError, match=told):
                read_table(write(tmp_path / "x.csv", "a,é\n1,2\n", encoding=encoding))

    @pytest.mark.unit
    def test_a_target_or_a_test_set_that_is_not_there_is_refused(self, tmp_path: Path):
        path = write(tmp_path / "people.csv", SMALL)
        with pytest.raises(UsageError, match="no column 'incom'; did you mean 'income'"):
            read_table(path, "incom")
        schema = TableSchema(columns=(AGE,), target=INCOME, official_test=2)
        with pytest.raises(UsageError, match="test set of the schema has 2 rows"):
            read_table(path, schema=schema)

    @pytest.mark.unit
    def test_quotation_marks_may_be_ordinary_characters(self, tmp_path: Path):
        path = write(tmp_path / "x.csv", 'a,b\n"x,"y"\n5",""\n')
        schema, features, labels = read_table(path, quotes=False)
        assert not schema.quotes
        assert features.tolist() == [['"x'], ['5"']]
        assert labels.tolist() == ['"y"', '""']
        for again in (schema, TableSchema.from_json(json.loads(json.dumps(schema.to_json())))):
            assert read_table(path, schema=again)[1].tolist() == features.tolist()
        toml = write(tmp_path / "x.toml", schema.to_toml_text())
        assert not TableSchema.from_toml(toml).quotes
        assert "quotation marks are ordinary characters" in schema.describe()
        assert read_table(path)[0].quotes
        with pytest.raises(UsageError, match="quotes is 'no'"):
            TableSchema(columns=(AGE,), target=INCOME, quotes="no")  # type: ignore[arg-type]


class TestExamples:
    @pytest.mark.contract
    def test_each_is_tested(self):
        assert {path.stem for path in (ROOT / "examples").glob("*.toml")} == set(EXAMPLES)

    @pytest.mark.contract
    @pytest.mark.parametrize("name", EXAMPLES)
    def test_is_complete_and_goes_round(self, name: str, tmp_path: Path):
        schema = TableSchema.from_toml(ROOT / "examples" / f"{name}.toml")
        assert schema.complete
        path = write(tmp_path / f"{name}.toml", schema.to_toml_text())
        assert TableSchema.from_toml(path) == schema

    @pytest.mark.contract
    @pytest.mark.parametrize("name", EXAMPLES)
    def test_covers_its_data(self, name: str):
        path = SHARED / EXAMPLES[name]
        if not path.is_file():
            pytest.skip(f"{name} is not on this machine")
        schema = TableSchema.from_toml(ROOT / "examples" / f"{name}.toml")
        schema, features, labels = read_table(path, schema=schema)
        assert schema.complete
        x = np.zeros((len(features), *schema.shape), np.float32)
        assert schema.encode(features, out=x).all()
        assert schema.encode_labels(labels)[1].all()
        others = [i for i, n in enumerate(schema.names) if n.endswith("= other")]
        assert not x[:, others].any()
        for column, cells_of in zip(schema.columns, features.T, strict=True):
            if column.kind == "number":
                values = convert_to_numbers(cells_of)
                assert column.low is not None
                assert column.high is not None
                assert np.nanmin(values) >= column.low
                assert np.nanmax(values) <= column.high

    @pytest.mark.oracle
    def test_a_linear_model_without_privacy_is_as_good_as_known_on_adult(self):
        path = SHARED / EXAMPLES["adult"]
        if not path.is_file():
            pytest.skip("adult is not on this machine")
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score

        schema = TableSchema.from_toml(ROOT / "examples" / "adult.toml")
        schema, features, labels = read_table(path, schema=schema)
        x = np.zeros((len(features), *schema.shape), np.float32)
        schema.encode(features, out=x)
        y, _ = schema.encode_labels(labels)
        cut = len(x) - schema.official_test
        assert cut == 32_561
        model = LogisticRegression(max_iter=1000).fit(x[:cut], y[:cut])
        assert model.score(x[cut:], y[cut:]) > 0.864
        assert roc_auc_score(y[cut:], model.decision_function(x[cut:])) > 0.918


@pytest.mark.unit
def test_dates_commas_and_marks_go_the_whole_way(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    draw = np.random.default_rng(0)
    rows = ["signed;price;region;won"]
    for i in range(300):
        day, month, year = draw.integers(1, 29), draw.integers(1, 13), draw.integers(2015, 2025)
        price = f"{draw.integers(1, 9)}.{draw.integers(0, 1000):03},{draw.integers(0, 100):02}"
        region = draw.choice(["North", "north", "South", "N/A"])
        signed = f"{day:02}.{month:02}.{year}" if i % 9 else "-"
        rows.append(f"{signed};{price if i % 7 else '-'};{region};{draw.choice(['yes', 'no'])}")
    table = write(tmp_path / "deals.csv", "\n".join(rows) + "\n")
    code, out, err = run("check", table, "--propose", "deals.toml")
    assert code == 0, err
    schema = (tmp_path / "deals.toml").read_text()
    for line in ('decimal = ","', 'format = "%d.%m.%Y"', 'missing = ["-"]', "case = false"):
        assert line in schema
    (tmp_path / "deals.toml").write_text(schema.replace("proposed = true\n", ""))
    options = ["--schema", "deals.toml", "--strategy", "fixed", "--space", "tables", "--steps", 5,
               "--batch", 20, "--eps", 4]  # fmt: skip
    code, out, err = run("arch", table, *options, "--out", "x")
    assert code == 0, err
    document = json.loads((tmp_path / "x/release/result.json").read_text())
    assert not any(name in str(document["estimated_privately"]) for name in ("signed", "price"))
    assert run("verify", "x")[0] == 0
    new = write(tmp_path / "new.csv", "\n".join(each.rsplit(";", 1)[0] for each in rows) + "\n")
    code, out, err = run("predict", "x", new)
    assert code == 0, err
    assert set(out.split()) - {"won", "prediction", "label", "class"} <= {"yes", "no"}
    # What cells hold changes nothing that is printed before the budget is spent.
    other = [rows[0], *(f"soon;{i}.5;?;no" for i in range(300))]
    code, plan, err = run("plan", "arch", table, *options)
    write(table, "\n".join(other) + "\n")
    assert run("plan", "arch", table, *options) == (code, plan, err)
