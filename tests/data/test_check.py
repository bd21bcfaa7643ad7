"""The curator's check: each planted fault is found with its row, and the proposal is usable."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.data.check import MOST_CATEGORIES, SHOWN, CheckReport, Problem, check_table
from pasearch.data.check import _outwards as outwards
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

HEADER = ["id", "age", "pay", "work", "site", "note", "label"]
WORDS = "the cat sat on a mat and saw some birds fly by over his house today".split()
AGE = Column(name="age", low=20, high=60)
WORK = Column(name="work", categories=("cook", "nurse"))
LABEL = Column(name="label", categories=("no", "yes"))


def good_rows(n: int = 60) -> list[list[str]]:
    return [
        [
            str(1000 + i),
            str(20 + i % 41),
            f"{1234.5 + 7.25 * (i % 50):.2f}",
            ("cook", "nurse", "nurse")[i % 3],
            "north",
            " ".join(WORDS[(i * 7 + k * (1 + i % 5)) % len(WORDS)] for k in range(6)) + f" {i}",
            ("no", "yes")[i % 2],
        ]
        for i in range(n)
    ]


def check(path: Path, rows: list[list[str]], schema: TableSchema | None = None) -> CheckReport:
    text = "\n".join(",".join(row) for row in [HEADER, *rows])
    path = path / "people.csv"
    path.write_text(text + "\n", encoding="utf-8")
    return check_table(path, None, schema)


def found(report: CheckReport, column: str | None, what: str) -> Problem:
    hits = [p for p in report.problems if p.column == column and what in p.what]
    assert len(hits) == 1, [p.text() for p in report.problems]
    return hits[0]


def declared(*columns: Column, target: Column = LABEL) -> TableSchema:
    return TableSchema(columns=columns, target=target)


class TestProposal:
    @pytest.mark.unit
    def test_guesses_every_column(self, tmp_path: Path):
        report = check(tmp_path, good_rows())
        assert report.n == 60
        assert report.proposed == TableSchema(
            columns=(
                Column(name="id", kind="ignore"),
                Column(name="age", low=20, high=60),
                Column(name="pay", low=1230, high=1590),
                Column(name="work", categories=("nurse", "cook")),
                Column(name="site", kind="ignore"),
                Column(name="note", kind="ignore"),
            ),
            target=LABEL,
            name="people",
        )
        assert [(p.column, p.count) for p in report.problems] == [
            ("id", 0), ("site", 0), ("note", 0),
        ]  # fmt: skip
        found(report, "id", "identifier")
        found(report, "site", "always 'north'")
        found(report, "note", "looks like text")

    @pytest.mark.unit
    def test_is_a_file_that_the_reader_takes(self, tmp_path: Path):
        report = check(tmp_path, good_rows())
        path = tmp_path / "people.toml"
        path.write_text(report.toml(), encoding="utf-8")
        schema = TableSchema.from_toml(path)
        assert schema == report.proposed
        schema, features, labels = read_table(report.path, schema=schema)
        x = np.zeros((60, *schema.shape), np.float32)
        assert schema.encode(features, out=x).all()
        assert schema.encode_labels(labels)[1].all()

    @pytest.mark.unit
    def test_leaves_what_is_declared(self, tmp_path: Path):
        age = Column(name="age", low=0, high=120, bins=(18, 65))
        pay = Column(name="pay", kind="number", bins=4)
        note = Column(name="note", vocabulary=("cat",))
        columns = check(tmp_path, good_rows(), declared(age, pay, note)).proposed.columns
        assert columns[1] == age
        assert columns[2] == Column(name="pay", low=1230, high=1590, bins=4)
        assert columns[5] == note

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([str(i % 3) for i in range(60)], "category"),
            ([str(i) for i in range(60)], "number"),
            ([f"{i % 3}.5" for i in range(60)], "number"),
            ([f"c{i % 3}" for i in range(60)], "category"),
        ],
    )
    def test_a_target_of_few_whole_numbers_is_classes(
        self, tmp_path: Path, values: list[str], kind: str
    ):
        rows = [[*row[:-1], value] for row, value in zip(good_rows(), values, strict=True)]
        assert check(tmp_path, rows).proposed.target.kind == kind

    @pytest.mark.unit
    def test_an_identifier_may_repeat_where_its_name_says_it(self, tmp_path: Path):
        rows = good_rows()
        rows[3][0] = rows[2][0]
        assert check(tmp_path, rows).proposed.columns[0].kind == "ignore"
        for row in rows:
            row[1] = row[0]
        assert check(tmp_path, rows).proposed.columns[1] == Column(name="age", low=1000, high=1059)

    @pytest.mark.unit
    def test_the_most_frequent_categories_are_proposed(self, tmp_path: Path):
        rows = good_rows(400)
        for i, row in enumerate(rows):
            row[3] = f"job{i % 100}" if i < 200 else "most"
        report = check(tmp_path, rows)
        categories = report.proposed.columns[3].categories
        assert categories is not None
        assert (len(categories), categories[0]) == (MOST_CATEGORIES, "most")
        found(report, "work", "101 different values")

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("values", "bounds"),
        [
            ([17, 90], (17, 90)),
            ([12285, 1484705], (0, 1500000)),
            ([15.96, 53.13], (15, 54)),
            ([-0.01234, 0.999], (-0.1, 1.0)),
            ([0, 9.95], (0, 10)),
            ([-101, -99.5], (-101, -99.5)),
            ([2001, 2011], (2001, 2011)),
            ([*[90, 120, 180] * 100, -150, 16020], (90, 180)),
            ([*range(10, 60), *[30] * 200, 99], (10, 99)),
            ([5, 5], (2, 8)),
            ([0, 0], (-0.5, 0.5)),
            ([], (0, 1)),
        ],
        ids=str,
    )
    def test_bounds_are_rounded_outwards(self, values: list, bounds: tuple[float, float]):
        assert outwards(np.array(values, float)) == pytest.approx(bounds, rel=1e-12)

    @pytest.mark.property
    @given(st.lists(st.floats(-1e307, 1e307), min_size=1, max_size=5))
    def test_bounds_hold_every_value(self, values: list[float]):
        low, high = outwards(np.array(values))
        assert low <= min(values) <= max(values) <= high
        assert low < high
        assert math.isfinite(high - low)


class TestProblems:
    @pytest.mark.unit
    def test_rows_that_do_not_parse(self, tmp_path: Path):
        rows = good_rows()
        rows[4] = rows[4][:-1]
        rows[9] = [*rows[9], "surplus"]
        problem = found(check(tmp_path, rows), None, "as many values as the header")
        assert (problem.rows, problem.count) == ((6, 11), 2)
        assert not [p for p in check(tmp_path, rows).problems if "missing" in p.what]

    @pytest.mark.unit
    def test_rows_that_a_run_takes_as_null_records(self, tmp_path: Path):
        path, rows = tmp_path / "people.csv", [",".join(row).encode() for row in good_rows()]
        rows[2], rows[5], rows[8], rows[11] = b"1,\xff", rows[5] + b',"', b"", rows[11] + b"?"
        rows[20:21] = b'9,33,1300,cook,north,"two\nlines",no'.split(b"\n")
        path.write_bytes(b"\n".join([",".join(HEADER).encode(), *rows]) + b"\n")
        report = check_table(path, None, declared(AGE))
        assert report.n == 61
        assert found(report, None, "not UTF-8").rows == (4,)
        assert found(report, None, "not closed").rows == (7, 22)
        assert "spaces" in found(report, None, "`quotes=False`").what
        assert found(report, None, "an empty line").rows == (10,)
        assert found(report, None, "not as many values").rows == (23,)
        null = found(report, None, "count as errors in the test score")
        assert null.rows == (4, 7, 10, 13, 22, 23)
        again = check_table(path, None, declared(AGE), quotes=False)
        assert found(again, None, "not as many values").rows == (7, 22, 23)
        assert not again.proposed.quotes
        assert "quotes = false" in again.toml()

    @pytest.mark.unit
    def test_repeated_rows(self, tmp_path: Path):
        rows = good_rows()
        rows[8] = rows[30] = list(rows[2])
        problem = found(check(tmp_path, rows), None, "same as an earlier row")
        assert (problem.rows, problem.count) == ((10, 32), 2)

    @pytest.mark.unit
    def test_missing_values(self, tmp_path: Path):
        rows = good_rows()
        rows[0][3], rows[5][3], rows[7][1] = "", "?", " "
        report = check(tmp_path, rows)
        assert found(report, "work", "missing").rows == (2, 7)
        assert found(report, "age", "missing").rows == (9,)

    @pytest.mark.unit
    def test_what_is_no_number_among_numbers(self, tmp_path: Path):
        rows = good_rows()
        rows[3][1], rows[6][1] = "forty", "inf"
        report = check(tmp_path, rows)
        assert report.proposed.columns[1].kind == "number"
        problem = found(report, "age", "not a number")
        assert problem.rows == (5, 8)
        assert "'forty', 'inf'" in problem.what

    @pytest.mark.unit
    def test_values_outside_the_declared_bounds(self, tmp_path: Path):
        rows = good_rows()
        rows[3][1], rows[6][1], rows[7][1] = "19.9", "61", "1000"
        report = check(tmp_path, rows, declared(AGE))
        assert found(report, "age", "below the declared 20").rows == (5,)
        assert found(report, "age", "above the declared 60").rows == (8, 9)

    @pytest.mark.unit
    def test_values_that_are_not_declared(self, tmp_path: Path):
        rows = good_rows()
        rows[3][3], rows[6][3], rows[7][-1] = "pilot", "pilot", "perhaps"
        report = check(tmp_path, rows, declared(WORK))
        assert found(report, "work", "'pilot' is not declared").rows == (5, 8)
        assert found(report, "label", "'perhaps' is not declared").rows == (9,)

    @pytest.mark.unit
    def test_too_many_undeclared_values_are_counted(self, tmp_path: Path):
        rows = good_rows()
        for i in range(50):
            rows[i][3] = f"job{i}"
        problems = [p for p in check(tmp_path, rows, declared(WORK)).problems if p.column == "work"]
        assert len(problems) == SHOWN + 1
        assert "30 more values" in problems[-1].what

    @pytest.mark.unit
    def test_small_and_single_classes(self, tmp_path: Path):
        rows = good_rows()
        for i, row in enumerate(rows):
            row[-1] = "yes" if i < 9 else "no"
        assert "9 records" in found(check(tmp_path, rows), "label", "'yes'").what
        for row in rows:
            row[-1] = "no"
        report = check(tmp_path, rows)
        found(report, "label", "the target has 1 classes")
        assert "WARNING" in report.text()

    @pytest.mark.unit
    def test_an_ignored_column_is_left_alone(self, tmp_path: Path):
        schema = declared(Column(name="id", kind="ignore"), Column(name="site", kind="ignore"))
        assert [p.column for p in check(tmp_path, good_rows(), schema).problems] == ["note"]

    @pytest.mark.unit
    def test_a_bad_form_is_an_error_as_in_a_run(self, tmp_path: Path):
        with pytest.raises(UsageError, match="is not there"):
            check_table(tmp_path / "no.csv")
        with pytest.raises(UsageError, match="no column 'ages'"):
            check(tmp_path, good_rows(), declared(Column(name="ages", low=0, high=1)))


class TestReport:
    @pytest.mark.unit
    def test_begins_with_the_warning(self, tmp_path: Path):
        report = check(tmp_path, good_rows())
        first = report.text().splitlines()[0]
        assert first.startswith("WARNING. This shows private values.")
        assert "leave this machine" in first
        head = [line for line in report.toml().splitlines()[:3] if line.startswith("# ")]
        assert len(head) == 3
        assert "PRIVATE until you have edited it" in head[0]

    @pytest.mark.unit
    def test_lists_the_first_rows_and_counts_all(self, tmp_path: Path):
        rows = good_rows()
        for row in rows[:45]:
            row[1] = "?"
        problem = found(check(tmp_path, rows), "age", "missing")
        assert (len(problem.rows), problem.count) == (SHOWN, 45)
        assert problem.text().startswith("column 'age': missing (45 rows: 2, 3, 4, ")
        assert problem.text().endswith("20, 21, ...)")

    @pytest.mark.unit
    def test_says_when_nothing_is_wrong(self, tmp_path: Path):
        schema = declared(
            Column(name="id", kind="ignore"), Column(name="site", kind="ignore"),
            Column(name="note", vocabulary=("cat",)),
        )  # fmt: skip
        report = check(tmp_path, good_rows(), schema)
        assert report.problems == ()
        assert "no problem found" in report.text()
