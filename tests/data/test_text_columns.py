"""Columns in little memory: every cell comes back, however it is kept, and is read the same."""

from __future__ import annotations

import csv
import hashlib
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from csv_rows import read_rows
from hypothesis import given
from hypothesis import strategies as st

from pasearch.data import text_columns as module
from pasearch.data.cells import convert_to_numbers, convert_to_strings, count_strings
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table
from pasearch.data.estimation import SchemaEstimate, read_public_schema
from pasearch.data.lines import BLOCK_BYTES
from pasearch.data.sources import load_dataset
from pasearch.data.tables import TableSchema, make_undeclared_schema
from pasearch.data.text_columns import DictionaryColumn, TextTable, build_columns
from pasearch.runs.keys import Keys

Cell = str | None

DECIMALS = st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,19})?", fullmatch=True)
ODD = st.sampled_from(
    ["", "?", " 5", "5 ", "+5", "-0", "-0.0", "00", "01.5", ".5", "5.", "1e5", "1_0", "٣", "٣.٣",
     "nan", "inf", "5\0", "1\n2", "é", "--1", "-", ".", "1.2.3", "-.5", "x" * 300, "free £"]
)  # fmt: skip
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
CELLS = st.one_of(st.none(), DECIMALS, ODD, TEXTS, st.integers(-99, 99).map(str))


def kept(*cells: Cell) -> DictionaryColumn:
    """Return a column of these cells."""
    return build_columns(iter([[cell] for cell in cells]), width=1)[0]  # type: ignore[list-item]


def plain(cells: Sequence[Cell]) -> np.ndarray:
    """Return the same as an array of objects."""
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


@contextmanager
def small(rows: int = 5) -> Iterator[None]:
    """Let a table be built of many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ROWS", rows)
        yield


FEW = [None, "a", " a", "7", "7.0", "?"] * 20
NUMBERS = [f"{i}.{i % 100:02}" for i in range(306)] + ["", None, "-3", "abc", "1e3"] * 9
MANY_TEXTS = [f"text {i} é" for i in range(66_000)] + ["5", "", None, "-3.50", "1e3"]
KEPT = {"few texts": FEW, "numbers": NUMBERS, "many texts": MANY_TEXTS}


class TestColumn:
    @pytest.mark.oracle
    @pytest.mark.parametrize("cells", KEPT.values(), ids=KEPT)
    def test_makes_whole_numbers_and_tells_nulls(self, cells: list[Cell]):
        def length(cell: Cell) -> int:
            return -1 if cell is None else len(cell)

        for column, own in ((kept(*cells), cells), (kept(*cells)[3:60], cells[3:60])):
            found = column.apply(length, np.int64)
            assert found.dtype == np.int64
            assert found.tolist() == list(map(length, own))
            assert column.present().tolist() == [cell is not None for cell in own]
        assert kept("a", "b").present().all()

    @pytest.mark.unit
    def test_gives_back_every_cell(self):
        for cells in KEPT.values():
            column = kept(*cells)
            assert column.tolist() == cells
            assert np.asarray(column).tolist() == cells
            assert (len(column), column.shape) == (len(cells), (len(cells),))
            order = np.random.default_rng(0).permutation(len(cells))
            assert column[order].tolist() == [cells[i] for i in order]
            assert column[order][3:7].tolist() == [cells[i] for i in order[3:7]]
            assert column[order % 2 == 0].tolist() == [
                c for c, i in zip(cells, order, strict=True) if i % 2 == 0
            ]

    @pytest.mark.property
    @given(cells=st.lists(CELLS, min_size=1, max_size=40))
    def test_gives_back_any_cell(self, cells: list[Cell]):
        with small():
            assert kept(*cells).tolist() == cells

    @pytest.mark.oracle
    @given(cells=st.lists(CELLS, min_size=1, max_size=40))
    def test_is_read_as_objects_are(self, cells: list[Cell]):
        with small():
            column, objects = kept(*cells), plain(cells)
            assert convert_to_strings(column) == convert_to_strings(objects)
            assert (
                count_strings(column)
                == count_strings(objects)
                == Counter(filter(None, convert_to_strings(objects)))
            )
            # Bit by bit, the sign of 0 included.
            assert convert_to_numbers(column).tobytes() == convert_to_numbers(objects).tobytes()

    @pytest.mark.oracle
    def test_numbers_are_the_nearest_to_their_texts(self):
        for decimals in [0, 1, 2, 6, 15, 16, 17]:
            draw = random.Random(decimals)
            cells = [f"{draw.uniform(-9, 9):.{decimals}f}" for _ in range(3000)]
            cells += [repr(draw.uniform(0, 1)) for _ in range(3000)]
            column = kept(*cells)
            assert convert_to_numbers(column).tolist() == [float(cell) for cell in cells]

    @pytest.mark.unit
    def test_shows_no_value(self):
        for cells in KEPT.values():
            table = TextTable(cells=(kept(*cells),))
            assert repr(table) == f"TextTable({len(cells)} rows, 1 columns)"
            assert repr(table.cells[0]).endswith(f"({len(cells)} cells)")


def mark(column: DictionaryColumn) -> str:
    digest = hashlib.sha256()
    column.update_digest(digest)
    return digest.hexdigest()


class TestFingerprint:
    @pytest.mark.property
    @given(cells=st.lists(CELLS, min_size=1, max_size=30), data=st.data())
    def test_depends_on_every_cell(self, cells: list[Cell], data: st.DataObject):
        at = data.draw(st.integers(0, len(cells) - 1))
        other = list(cells)
        other[at] = data.draw(CELLS.filter(lambda cell: cell != cells[at]))
        with small():
            assert mark(kept(*cells)) == mark(kept(*cells))
            assert mark(kept(*cells)) != mark(kept(*other))

    @pytest.mark.unit
    def test_depends_on_where_a_text_ends(self):
        one, other = kept(*MANY_TEXTS, "ab", "c"), kept(*MANY_TEXTS, "a", "bc")
        assert mark(one) != mark(other)

    @pytest.mark.unit
    def test_is_the_same_in_every_process(self, tmp_path: Path):
        path = write(tmp_path / "people.csv", rows(600))
        program = (
            "import sys; from pasearch.data.sources import load_dataset;"
            "print(load_dataset(sys.argv[1]).fingerprint())"
        )
        found = {
            subprocess.run(
                [sys.executable, "-c", program, str(path)], check=True, capture_output=True,
                text=True, env={**os.environ, "PYTHONHASHSEED": seed},
            ).stdout
            for seed in ("1", "2")
        }  # fmt: skip
        assert found == {load_dataset(str(path)).fingerprint() + "\n"}


HEADER = ["age", "job", "pay", "note", "id", "label"]
SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=20, high=60, bins=(30, 40)),
        Column(name="job", categories=("cook", "nurse")),
        Column(name="pay", low=0, high=5000),
        Column(name="note", vocabulary=("cat", "£")),
        Column(name="id", kind="ignore"),
    ),
    target=Column(name="label", categories=("no", "yes")),
)


def rows(n: int) -> list[list[str]]:
    """Return rows of every kind, some of them ragged, equal, or with strange cells."""
    draw = random.Random(n)
    made = [
        [
            draw.choice(["?", "", "old", " 33 ", *map(str, range(18, 70))]),
            draw.choice(["cook", " cook", "nurse", "spy", "?"]),
            draw.choice([f"{draw.uniform(-50, 6000):.2f}", repr(draw.random()), "1e3", "nan"]),
            " ".join(draw.choices(["cat", "dog", "£5", "?", "é", "mat"], k=3)),
            str(10**6 + i),
            draw.choice(["no", "yes", "yes", "perhaps", ""]),
        ]
        for i in range(n)
    ]
    made[7], made[11], made[-1] = made[7][:-1], [*made[11], "surplus"], list(made[3])
    return made


def write(path: Path, made: list[list[str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADER, *made])
    return path


def objects(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a file's features and labels as arrays of objects, row by row."""
    _, found = read_rows(path)
    table = np.array([[None] * len(HEADER) if row is None else row for row in found], object)
    return table[:, :-1], table[:, -1]


@pytest.fixture(params=["as it is", "in parts"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file whose columns are built at once, or of many parts."""
    made = write(tmp_path / "people.csv", rows(700))
    if request.param == "as it is":
        yield made
    else:
        with small(rows=64):
            yield made


class TestTable:
    @pytest.mark.oracle
    def test_holds_what_the_rows_hold(self, path: Path):
        schema, features, labels = read_table(path)
        cells, aims = objects(path)
        assert features.shape == cells.shape
        assert features.tolist() == cells.tolist() == np.asarray(features).tolist()
        assert labels.tolist() == aims.tolist()
        assert schema == make_undeclared_schema(HEADER, "label", "people")
        order = np.random.default_rng(1).permutation(len(cells))[:90]
        assert features[order].tolist() == cells[order].tolist()
        assert features[order][:, 2].tolist() == cells[order, 2].tolist()
        assert [each.tolist() for each in features.T] == cells.T.tolist()
        assert np.flatnonzero(~features.present()).tolist() == [7, 11]

    @pytest.mark.oracle
    def test_is_encoded_as_objects_are(self, path: Path):
        schema, features, labels = read_table(path, schema=SCHEMA)
        cells, aims = objects(path)
        slots = np.random.default_rng(2).permutation(len(cells))
        want, found = (np.zeros((len(cells), *schema.shape), np.float32) for _ in range(2))
        usable = schema.encode(cells[slots], out=want)
        np.testing.assert_array_equal(schema.encode(features[slots], out=found), usable)
        assert found.tobytes() == want.tobytes()
        pay = schema.completed({"label": Column(name="label", low=0, high=1)})
        for each in (schema, pay):
            for one, other in zip(
                each.encode_labels(labels[slots]), each.encode_labels(aims[slots]), strict=True
            ):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)

    @pytest.mark.oracle
    @pytest.mark.parametrize("target", ["label", "pay", "age"])
    def test_is_estimated_as_objects_are(self, path: Path, target: str):
        schema, features, labels = read_table(path, target)
        _, found = read_rows(path)
        table = np.array([[None] * len(HEADER) if row is None else row for row in found], object)
        aim = HEADER.index(target)
        cells, aims = np.delete(table, aim, axis=1), table[:, aim]
        estimate = SchemaEstimate(noise_multiplier=2.0, delta=1e-3, most=8)
        estimated = [
            estimate.estimate(schema, *data, Keys.from_seed(1).stream("schema", 0))
            for data in ((features, labels), (cells, aims))
        ]
        assert estimated[0] == estimated[1]
        assert not estimated[0].undeclared
        assert read_public_schema(schema, features, labels, 8) == read_public_schema(
            schema, cells, aims, 8
        )

    @pytest.mark.property
    def test_takes_a_tenth_of_what_objects_take_beside_a_block(self, tmp_path: Path):
        draw, rows, width = random.Random(0), 65536, 12
        path = tmp_path / "x.csv"
        with path.open("w", encoding="utf-8") as file:
            for i in range(rows + 1):
                cells = [f"{draw.uniform(0, 999):.2f}", f"value {draw.randrange(9)}"] * (width // 2)
                file.write(",".join(cells if i else map(str, range(width))) + "\n")
        tracemalloc.start()
        try:
            _, features, _labels = read_table(path)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        table = rows * width
        # Five bytes for two cells, beside a block of bytes and its cells while they are read.
        assert held < 3 * table
        assert peak < 3 * table + 7 * BLOCK_BYTES
        assert len(features) == rows
