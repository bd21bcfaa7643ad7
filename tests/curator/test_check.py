"""The curator's check: each planted fault is found with its row, and the proposal is usable."""

from __future__ import annotations

import gzip
import math
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.curator.check import CheckReport, check_table
from pasearch.curator.column_profile import MAX_CATEGORIES, round_bounds_outwards
from pasearch.curator.problems import MAX_LISTED_ROWS, Problem
from pasearch.data.column import Column
from pasearch.data.csv_file import read_table
from pasearch.data.schema_file import FROM_RECORDS_COMMENT
from pasearch.data.sources import load_dataset
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
                Column(name="pay", low=1220, high=1600),
                Column(name="work", categories=("cook", "nurse")),
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
    def test_many_texts_named_as_what_tells_people_apart_are_ignored(self, tmp_path: Path):
        """Though most come several times, so that no other sign of an identifier is there."""
        rows = [f"name{i % 30},{i % 4 + 20},{'yes' if i % 3 else 'no'}" for i in range(120)]
        for name, kind in (("Surname", "ignore"), ("first_name", "ignore"), ("town", None)):
            path = tmp_path / f"{name}.csv"
            path.write_text("\n".join([f"{name},age,label", *rows]) + "\n")
            report = check_table(path)
            assert report.proposed.columns[0].kind == (kind or "category")
            said = [each.what for each in report.problems if each.column == name]
            told = '30 distinct strings and an identifier-like name; proposed kind = "ignore"'
            assert (told in said) == (kind is not None)

    @pytest.mark.unit
    def test_leaves_what_is_declared(self, tmp_path: Path):
        age = Column(name="age", low=0, high=120, bins=(18, 65))
        pay = Column(name="pay", kind="number", bins=4)
        note = Column(name="note", vocabulary=("cat",))
        tokens = Column(name="note", length=9)  # its vocabulary is for a private estimate
        assert check(tmp_path, good_rows(), declared(tokens)).proposed.columns[5] == tokens
        columns = check(tmp_path, good_rows(), declared(age, pay, note)).proposed.columns
        assert columns[1] == age
        assert columns[2] == Column(name="pay", low=1220, high=1600, bins=4)
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
    def test_the_most_frequent_categories_are_proposed(self, tmp_path: Path):
        rows = good_rows(400)
        for i, row in enumerate(rows):
            row[3] = f"job{i % 100}" if i < 200 else "most"
        report = check(tmp_path, rows)
        categories = report.proposed.columns[3].categories
        assert categories is not None
        assert (len(categories), categories[-1]) == (MAX_CATEGORIES, "most")
        assert list(categories) == sorted(categories)
        found(report, "work", "101 distinct values")

    @pytest.mark.unit
    def test_bounds_are_rounded_outwards(self):
        for values, bounds in [
            ([17, 90], (15, 90)),
            ([15.96, 53.13], (14, 54)),
            ([0, 9.95], (0, 10)),
            ([2001, 2011], (2000, 2015)),
            ([7, 9], (5, 10)),
            ([0.31, 2.27], (0.3, 2.3)),
            ([*range(10, 60), *[30] * 200, 99], (10, 100)),
            ([0, 0], (-1, 1)),
        ]:
            assert round_bounds_outwards(np.array(values, float)) == pytest.approx(
                bounds, rel=1e-12
            )

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("values", "bounds", "bins"),
        [
            ([str(i % 6) for i in range(60)], (0, 5), (0.5, 1.5, 2.5, 3.5, 4.5)),
            ([str(i % 2) for i in range(60)], (0, 1), (0.5,)),
            ([str(i % 3 - 1) for i in range(60)], (-1, 1), (-0.5, 0.5)),
            ([f"{i % 3 + 7},0" for i in range(60)], (5, 10), tuple(i + 5.5 for i in range(5))),
            ([str(2001 + i % 11) for i in range(60)], (2000, 2015),
             tuple(2000.5 + i for i in range(15))),
            ([str(i % 21) for i in range(60)], (0, 20), tuple(i + 0.5 for i in range(20))),
            (["-" if i == 7 else str(i % 4) for i in range(60)], (0, 3), (0.5, 1.5, 2.5)),
            (["-999" if i % 6 == 0 else str(i % 7) for i in range(60)], (0, 6),
             (0.5, 1.5, 2.5, 3.5, 4.5, 5.5)),
            ([str(i % 22) for i in range(60)], (0, 22), None),
            ([f"{i % 5}.5" for i in range(60)], None, None),
            (["0.5", *[str(i % 5) for i in range(59)]], (0, 4), None),
            ([str(10**17 + i % 3 * 16) for i in range(60)], None, None),
        ],
        ids=lambda value: str(value)[:20],
    )  # fmt: skip
    def test_few_whole_numbers_get_a_bin_each(
        self,
        tmp_path: Path,
        values: list[str],
        bounds: tuple[float, float] | None,
        bins: tuple[float, ...] | None,
    ):
        report = table(tmp_path, {"x": values, "y": YES})
        x = column(report, "x")
        assert (x.kind, x.bins) == ("number", bins)
        if bounds is not None:
            assert x.bounds == bounds
        if bins is not None:
            low, high = (int(each) for each in bounds or ())
            toml = " ".join(report.toml().replace(FROM_RECORDS_COMMENT, "").split()).replace(
                "[ ", "["
            )
            assert f"low = {low} high = {high} bins = [{bins[0]}" in toml
            numbers = range(low, high + 1)
            out = np.zeros((len(numbers), x.width), np.float32)
            plain = replace(x, decimal=None, thousands=None)
            plain.encode(np.array([str(each) for each in numbers], object), out=out)
            assert (out[:, 1:-1] == np.eye(len(numbers))).all(), "a bin for each"

    @pytest.mark.property
    @given(st.lists(st.floats(-1e307, 1e307), min_size=1, max_size=5))
    def test_bounds_hold_every_value(self, values: list[float]):
        low, high = round_bounds_outwards(np.array(values))
        assert low <= min(values) <= max(values) <= high
        assert low < high
        assert math.isfinite(high - low)


class TestProblems:
    @pytest.mark.unit
    def test_rows_that_do_not_parse(self, tmp_path: Path):
        rows = good_rows()
        rows[4] = rows[4][:-1]
        rows[9] = [*rows[9], "surplus"]
        problem = found(check(tmp_path, rows), None, "not as many values as there are columns")
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
        null = found(report, None, "each counts as an error in the test score")
        assert "cannot be used in a run (unreadable, or target is not a known class)" in null.what
        assert null.rows == (4, 7, 10, 13, 22, 23)
        again = check_table(path, None, declared(AGE), quotes=False)
        assert found(again, None, "not as many values").rows == (7, 22, 23)
        assert not again.proposed.quotes
        assert "quotes = false" in again.toml()

    @pytest.mark.unit
    def test_repeated_rows(self, tmp_path: Path):
        rows = good_rows()
        rows[8] = rows[30] = list(rows[2])
        problem = found(check(tmp_path, rows), None, "duplicate rows")
        assert problem.what.endswith("a person who contributes several rows has weaker protection")
        assert (problem.rows, problem.count) == ((10, 32), 2)

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
    def test_small_and_single_classes(self, tmp_path: Path):
        rows = good_rows()
        for i, row in enumerate(rows):
            row[-1] = "yes" if i < 9 else "no"
        assert "9 records" in found(check(tmp_path, rows), "label", "'yes'").what
        for row in rows:
            row[-1] = "no"
        report = check(tmp_path, rows)
        found(report, "label", "the target has 1 class: expected two or more")
        assert "WARNING" in report.text()

    @pytest.mark.unit
    def test_a_name_that_no_run_takes_is_a_problem(self, tmp_path: Path):
        check(tmp_path, good_rows())
        packed = tmp_path / "people.gz"
        packed.write_bytes(gzip.compress((tmp_path / "people.csv").read_bytes()))
        found(check_table(packed), None, "rename the file to end in .csv.gz")
        (tmp_path / "people.csv").rename(tmp_path / "people.txt")
        found(check_table(tmp_path / "people.txt"), None, "rename the file to end in .csv")
        with pytest.raises(UsageError, match=r"rename the file to \.csv"):
            load_dataset(str(tmp_path / "people.txt"))

    @pytest.mark.unit
    def test_a_bad_form_is_an_error_as_in_a_run(self, tmp_path: Path):
        with pytest.raises(UsageError, match="does not exist"):
            check_table(tmp_path / "no.csv")
        np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.zeros(9, int))
        for data, why in (
            ("digits", "is already declared, so there is nothing to check"),
            (tmp_path / "a.npz", "a.npz.* is .* For this kind of data, declare `bounds=`"),
        ):
            with pytest.raises(UsageError, match=why):
                check_table(data)
        with pytest.raises(UsageError, match="no column 'ages'"):
            check(tmp_path, good_rows(), declared(Column(name="ages", low=0, high=1)))


NAMES = "a,b,c,d,e,f,g,h,y"


def numbers_between(separator: str, n: int = 60, width: int = 9) -> str:
    return "".join(separator.join(f"{i + k}" for k in range(width)) + "\n" for i in range(n))


class TestWidth:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("separator", "name"),
        [(";", "semicolon"), ("\t", "tab"), ("|", "pipe"), (":", ":"), (" ", "space")],
    )
    def test_another_separator_is_found(self, tmp_path: Path, separator: str, name: str):
        path = tmp_path / "mine.csv"
        path.write_text(numbers_between(separator))
        with pytest.raises(UsageError) as caught:
            check_table(path, columns=NAMES)
        assert str(caught.value) == (
            f"{path}: every row has 1 cell, and `columns=` names 9. The separator seems to be "
            f"{separator!r}: use `separator={name!r}`."
        )
        assert check_table(path, columns=NAMES, separator=name).n == 60

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("text", "options", "said"),
        [
            (numbers_between(",", width=3), {"columns": NAMES},
             "every row has 3 cells, and `columns=` names 9. Give the names"),
            ("1\n2,3\n4,5,6\n", {"columns": NAMES},
             "every row has 1 to 3 cells, and `columns=` names 9. Give the names"),
            ('"1\n2,3\n', {"columns": NAMES}, "every row that can be read has 2 cells"),
            (NAMES + "\n" + numbers_between(";"), {},
             "every row has 1 cell, and the header has 9. The rows seem to have the separator "
             "';', and the header ','"),
            (NAMES + "\n" + numbers_between(",", width=3), {},
             "every row has 3 cells, and the header has 9. Write a header with a name for every"),
            ("a,b;c;y,z\n1;2;3\n4;5;6\n", {"separator": ","},
             "every row has 1 cell, and the header has 3. The separator seems to be ';': use "
             "`separator='semicolon'`."),
            ("a,b,y\n" + numbers_between(",", width=4), {},
             "every row has 4 cells, and the header has 3. Name the first column"),
            ("a,b,y\n" + '1,"x\nz",2\n' * 9, {},
             "every row that can be read has 2 cells, and the header has 3. A row is one line"),
            ('"1\n"2\n\n', {"columns": NAMES}, "no row can be used. Most frequent problem: a quot"),
        ],
    )  # fmt: skip
    def test_a_file_of_which_no_row_fits_is_refused(
        self, tmp_path: Path, text: str, options: dict[str, Any], said: str
    ):
        path = tmp_path / "mine.csv"
        path.write_text(text)
        with pytest.raises(UsageError) as caught:
            check_table(path, **options)
        assert str(caught.value).startswith(f"{path}: {said}")

    @pytest.mark.unit
    def test_one_row_that_fits_is_enough_for_a_report(self, tmp_path: Path):
        (tmp_path / "mine.csv").write_text(numbers_between(";") + numbers_between(",", n=1))
        report = check_table(tmp_path / "mine.csv", columns=NAMES)
        assert found(report, None, "not as many values").count == 60
        assert report.text().startswith("60 of 61 rows cannot be used: ")

    @pytest.mark.unit
    def test_the_first_record_is_row_1_without_a_header_and_row_2_below_one(self, tmp_path: Path):
        path, rows = tmp_path / "mine.csv", ["1,yes,1"] + ["1,yes", "2,no"] * 30
        path.write_text("\n".join(rows) + "\n")
        assert found(check_table(path, columns="x,y"), None, "not as many values").rows == (1,)
        own = TableSchema.from_json(check_table(path, columns="x,y").proposed.to_json())
        assert found(check_table(path, schema=own), None, "not as many values").rows == (1,)
        path.write_text("\n".join(["x,y", *rows]) + "\n")
        assert found(check_table(path), None, "not as many values").rows == (2,)


class TestReport:
    @pytest.mark.unit
    def test_begins_with_the_warning(self, tmp_path: Path):
        report = check(tmp_path, good_rows())
        first = report.text().splitlines()[0]
        assert first.startswith("WARNING. This output contains private values.")
        assert "keep it on this machine" in first
        head = [line for line in report.toml().splitlines()[:3] if line.startswith("# ")]
        assert len(head) == 3
        assert "PRIVATE until you have edited it" in head[0]
        assert "a run refuses this file as long as it contains that line." in report.toml()

    @pytest.mark.unit
    @pytest.mark.parametrize(("bad", "said"), [(6, False), (7, True)])
    def test_many_rows_that_cannot_be_used_are_said_before_all_else(
        self, tmp_path: Path, bad: int, said: bool
    ):
        rows = good_rows()
        rows[:bad] = [["33", "cook"]] * bad
        first = check(tmp_path, rows).text().splitlines()[0]
        told = (
            f"{bad} of 60 rows cannot be used: correct the file first (see below). The "
            "proposal is based on the others."
        )
        assert first.startswith(told if said else "WARNING. ")
        assert "WARNING. This output contains private values." in check(tmp_path, rows).text()

    @pytest.mark.unit
    def test_every_line_read_from_the_records_says_so(self, tmp_path: Path):
        age = Column(name="age", low=0, high=120)
        text = check(tmp_path, good_rows(), declared(age)).toml()
        own, others = text.split("[columns.age]")[1].split("[columns.pay]")
        assert "from the records" not in own
        lines = [line for line in others.splitlines() if " = " in line]
        read = [line for line in lines if line.endswith("  # from the records")]
        assert (
            read
            == lines[: len(read)]
            == [
                'kind = "number"  # from the records',
                "low = 1220  # from the records",
                "high = 1600  # from the records",
                *(line for line in lines[3:] if "records" in line),
            ]
        )
        path = tmp_path / "proposed.toml"
        path.write_text(text, encoding="utf-8")
        assert TableSchema.from_toml(path).complete

    @pytest.mark.unit
    def test_lists_the_first_rows_and_counts_all(self, tmp_path: Path):
        rows = good_rows()
        for row in rows[:45]:
            row[1] = "?"
        problem = found(check(tmp_path, rows), "age", "missing")
        assert (len(problem.rows), problem.count) == (MAX_LISTED_ROWS, 45)
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


def table(path: Path, columns: dict[str, list[str]], **options: Any) -> CheckReport:
    """Check a table of these columns; the last one is the target."""
    lines = [";".join(row) for row in zip(*columns.values(), strict=True)]
    file = path / "table.csv"
    file.write_text("\n".join([";".join(columns), *lines]) + "\n", encoding="utf-8")
    report = check_table(file, **options)
    written = path / "table.toml"
    written.write_text(report.toml(), encoding="utf-8")
    again = TableSchema.from_toml(written)
    assert again == report.proposed, "what is proposed is a file that is read back"
    _, features, labels = read_table(file, schema=again)
    x = np.zeros((len(labels), *again.shape), np.float32)
    again.encode(features, out=x)
    return report


YES = ["yes", "no"] * 30
INTS = [str(i % 37) for i in range(60)]


def column(report: CheckReport, name: str) -> Column:
    return next(c for c in (*report.proposed.columns, report.proposed.target) if c.name == name)


class TestNumberForms:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("values", "decimal", "thousands", "bounds"),
        [
            ([f"{i + 10},{i:03}" for i in range(60)], None, ",", (10000, 70000)),
            ([f"{i},5" for i in range(60)], ",", None, (0, 60)),
            ([f"1.{i:03},50" for i in range(60)], ",", ".", (1000, 1060)),
            ([f"1,{i:03}.50" for i in range(60)], None, ",", (1000, 1060)),
            ([f"1 {i:03},50" for i in range(60)], ",", " ", (1000, 1060)),
            ([f"1'{i:03}.50" for i in range(60)], None, "'", (1000, 1060)),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_of_one_column_is_proposed_there(
        self,
        tmp_path: Path,
        values: list[str],
        decimal: str | None,
        thousands: str | None,
        bounds: tuple[float, float],
    ):
        report = table(tmp_path, {"x": values, "n": INTS, "y": YES})
        x = column(report, "x")
        assert (x.kind, x.decimal, x.thousands) == ("number", decimal, thousands)
        assert x.bounds == pytest.approx(bounds)
        assert (report.proposed.decimal, report.proposed.thousands) == (None, None)
        assert column(report, "n").decimal is None
        found(report, "x", "proposed notation")

    @pytest.mark.unit
    def test_of_several_columns_is_proposed_for_the_table(self, tmp_path: Path):
        a, b = [f"{i},5" for i in range(60)], [f"1.{i:03},50" for i in range(60)]
        report = table(tmp_path, {"a": a, "b": b, "n": INTS, "y": YES})
        assert (report.proposed.decimal, report.proposed.thousands) == (",", ".")
        assert "decimal" not in report.toml().split("[columns.a]")[1]
        assert column(report, "a").bounds == (0, 60)
        assert column(report, "n").bounds == pytest.approx((0, 36))

    @pytest.mark.unit
    def test_what_can_be_read_in_two_ways_is_said(self, tmp_path: Path):
        groups = [f"{i + 10},{i:03}" for i in range(60)]
        alone = table(tmp_path, {"x": groups, "y": YES})
        assert column(alone, "x").thousands == ","
        found(alone, "x", "'10,000' could mean 10000 or 10")
        commas = [f"{i},5" for i in range(60)]
        beside = table(tmp_path, {"x": groups, "commas": commas, "y": YES})
        assert (beside.proposed.decimal, column(beside, "x").bounds) == (",", (10, 70))
        points = [each.replace(",", ".") for each in groups]
        beside = table(tmp_path, {"x": points, "commas": commas, "y": YES})
        assert (beside.proposed.decimal, beside.proposed.thousands) == (",", ".")
        assert column(beside, "x").bounds == (10000, 70000)
        found(beside, "x", "'10.000' could mean 10000 or 10")

    @pytest.mark.unit
    def test_a_declared_number_is_told_what_would_read_it(self, tmp_path: Path):
        schema = TableSchema(columns=(Column(name="x", low=0, high=60),), target=Column(name="y"))
        report = table(tmp_path, {"x": [f"{i},5" for i in range(60)], "y": YES}, schema=schema)
        problem = found(report, "x", 'decimal = "," would parse it')
        assert problem.count == 60
        assert report.proposed.columns == schema.columns


class TestMarks:
    @pytest.mark.unit
    @pytest.mark.parametrize("mark", ["-", "--", ".", "unknown", "Unknown", "n.a.", "none", "*"])
    def test_among_numbers_are_proposed(self, tmp_path: Path, mark: str):
        values = [mark if i % 3 == 0 else str(i % 17) for i in range(60)]
        report = table(tmp_path, {"x": values, "y": YES})
        assert (column(report, "x").kind, column(report, "x").missing) == ("number", (mark,))
        assert report.proposed.missing is None
        problem = found(report, "x", "occurs among numbers: proposed to mean missing")
        assert (problem.count, problem.rows[:2]) == (20, (2, 5))
        assert not [p for p in report.problems if "not a number" in p.what]

    @pytest.mark.unit
    def test_declared_ones_are_listed_quietly_and_apart_from_others(self, tmp_path: Path):
        values = ["-", "N/A", "", "-999", *map(str, range(56))]
        own = Column(name="x", low=0, high=60, missing=("-", "-999"))
        schema = TableSchema(columns=(own,), target=Column(name="y"))
        report = table(tmp_path, {"x": values, "y": YES}, schema=schema)
        assert [(p.what, p.rows) for p in report.problems] == [
            ("missing, also written 'N/A'", (3, 4)), ("missing, as declared", (2, 5)),
        ]  # fmt: skip

    @pytest.mark.unit
    def test_of_several_columns_are_proposed_for_the_table(self, tmp_path: Path):
        a = ["-" if i % 5 == 0 else str(i % 17) for i in range(60)]
        b = ["unknown" if i % 5 == 0 else "-" if i == 1 else str(i % 17) for i in range(60)]
        c = [("-", "cook", "nurse")[i % 3] for i in range(60)]
        report = table(tmp_path, {"a": a, "b": b, "c": c, "y": YES})
        assert report.proposed.missing == ("-", "unknown")
        assert column(report, "c").categories == ("cook", "nurse")
        assert "missing" not in report.toml().split("[columns.a]")[1]
        assert found(report, "c", "'-' is proposed to mean missing").count == 20
        assert not any("if it means missing" in p.what for p in report.problems)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (["-1" if i % 6 == 0 else str(i) for i in range(60)], True),
            (["99" if i % 6 == 0 else str(i) for i in range(60)], True),
            (["-999" if i == 0 else str(i) for i in range(60)], False),
            ([str(i % 5 - 2) for i in range(60)], False),
            (["-999"] * 57 + ["1", "2", "3"], False),
        ],
        ids=["near", "near above", "once", "among others", "nothing else"],
    )
    def test_other_numbers_are_at_most_said(self, tmp_path: Path, values: list[str], said: bool):
        report = table(tmp_path, {"x": values, "y": YES})
        assert column(report, "x").missing is None
        assert any("if so: missing" in p.what for p in report.problems) is said

    @pytest.mark.unit
    def test_a_slip_of_the_pen_is_said(self, tmp_path: Path):
        values = [*[str(i % 50) for i in range(199)], "16020"]
        report = table(tmp_path, {"x": values, "y": ["yes", "no"] * 100})
        assert found(report, "x", "far from all others, such as '16020'").rows == (201,)


class TestSentinels:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("code", "others"),
        [
            ("-200", [f"{i % 97 / 10:.1f}" for i in range(300)]),
            ("-32768", [f"{i % 49}.5" for i in range(300)]),
            ("65535", [str(i % 300) for i in range(300)]),
            ("-2147483648", [str(i % 7) for i in range(300)]),
            ("8", [str(i % 3 + 1) for i in range(300)]),
            ("0", [str(1950 + i % 60) for i in range(300)]),
            ("12345", [str(i % 90) for i in range(300)]),
        ],
    )
    def test_a_number_far_from_all_others_is_proposed(
        self, tmp_path: Path, code: str, others: list[str]
    ):
        values = [code if i % 10 == 3 else value for i, value in enumerate(others)]
        report = table(tmp_path, {"x": values, "y": ["yes", "no"] * 150})
        marks = column(report, "x").missing or ()
        assert [float(mark) for mark in marks] == [float(code)]
        low, high = column(report, "x").bounds or (0, 0)
        assert not low <= float(code) <= high
        found(report, "x", "may mean missing; proposed")

    @pytest.mark.unit
    def test_several_at_one_end_are_proposed_together(self, tmp_path: Path):
        values = [str((97, 98, 99)[i % 3]) if i % 9 < 3 else str(i % 11) for i in range(300)]
        report = table(tmp_path, {"x": values, "y": ["yes", "no"] * 150})
        assert column(report, "x").missing == ("97", "98", "99")
        assert column(report, "x").bounds == (0, 10)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "values",
        [
            [str(min(99, 80 + (i * 7) % 30)) for i in range(300)],
            [str(2 ** (i % 7)) for i in range(300)],
            [str((1, 2, 4)[i % 3]) for i in range(300)],
            [str(i % 2) for i in range(300)],
            [str(i % 5 + 1) for i in range(300)],
            [str(max(0, i % 60 - 40)) for i in range(300)],
            [str(i % 3 - 1) for i in range(300)],
        ],
        ids=["up to 99", "powers", "few", "truth", "grades", "many zeros", "signs"],
    )
    def test_the_end_of_a_scale_is_none(self, tmp_path: Path, values: list[str]):
        report = table(tmp_path, {"x": values, "y": ["yes", "no"] * 150})
        assert column(report, "x").missing is None
        assert not [p for p in report.problems if "may mean missing" in p.what]


class TestUnits:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("written", "declared", "largest"),
        [
            ("${:,.2f}", {"units": (("$", 1.0),), "thousands": ","}, 89_999),
            ("{:.1f}%", {"units": (("%", 1.0),)}, 90_000),
            ("€{:.1f}M", {"units": (("M", 1e6), ("€", 1.0))}, 9e10),
            ("({:.1f})", {}, -500),
        ],
    )
    def test_are_proposed_and_read(
        self, tmp_path: Path, written: str, declared: dict[str, Any], largest: float
    ):
        numbers = np.random.default_rng(1).uniform(600, 90_000, 300)
        values = [written.format(each) for each in numbers]
        rows = [f'"{value}",{("yes", "no")[i % 2]}' for i, value in enumerate(values)]
        path = tmp_path / "t.csv"
        path.write_text("\n".join(["x,y", *rows, ""]), encoding="utf-8")
        report = check_table(path)
        x = column(report, "x")
        assert x.kind == "number"
        assert {key: getattr(x, key) for key in ("units", "thousands", "decimal")} == (
            {"units": None, "thousands": None, "decimal": None} | declared
        )
        low, high = x.bounds or (0, 0)
        assert low < largest <= high * 1.001 if largest > 0 else -100_000 <= low < high <= 0
        assert not [p for p in report.problems if "not a number" in p.what]
        file = tmp_path / "t.toml"
        file.write_text(report.toml(), encoding="utf-8")
        schema = TableSchema.from_toml(file)
        assert schema == report.proposed == TableSchema.from_json(schema.to_json())
        _, cells, _ = read_table(path, schema=schema)
        known = schema.columns[0].scale_numbers(cells[:, 0])[0]
        expected = (np.sign(largest) * numbers * max(1, largest / 90_000) - low) / (high - low)
        assert known == pytest.approx(expected, abs=1e-4)

    @pytest.mark.unit
    def test_of_several_sizes_have_their_factors(self, tmp_path: Path):
        money = [f"€{i / 10 + 1:.1f}M" if i % 2 else f"€{i + 100}K" for i in range(60)]
        weight = [f"{i / 10 + 1:.1f} kg" if i % 3 else f"{i + 100} g" for i in range(60)]
        report = table(tmp_path, {"money": money, "weight": weight, "y": YES})
        assert dict(column(report, "money").units or ()) == {"€": 1, "M": 1e6, "K": 1e3}
        assert dict(column(report, "weight").units or ()) == {"kg": 1, "g": 1e-3}
        assert column(report, "weight").bounds == pytest.approx((0, 7), abs=0.5)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "values",
        [
            [f"A{i % 30}" for i in range(60)],
            [f"{i % 30}{'ABCDEF'[i % 6]}" for i in range(60)],
            [f"{i % 7 * 10}-{i % 7 * 10 + 9}" for i in range(60)],
            [f"type {i % 3}" for i in range(60)],
        ],
    )
    def test_codes_have_none(self, tmp_path: Path, values: list[str]):
        assert column(table(tmp_path, {"x": values, "y": YES}), "x").kind == "category"


class TestCodes:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "codes",
        [
            ("00501", "00502", "10001"), ("01", "02", "12"), ("007", "7", "0012"),
            ("9007199254740993", "9007199254740992"), ("00", "10"),
        ],
        ids=str,
    )  # fmt: skip
    def test_with_leading_zeros_or_too_long_for_a_number_are_categories(
        self, tmp_path: Path, codes: tuple[str, ...]
    ):
        report = table(tmp_path, {"x": [codes[i % len(codes)] for i in range(60)], "y": YES})
        assert column(report, "x").categories == tuple(sorted(codes))
        found(report, "x", "digit codes")
        for target in (True, False):
            name = "x" if target else "y"
            cells = {"x": [codes[i % len(codes)] for i in range(60)], "y": YES}
            own = table(tmp_path, cells, target=name)
            assert own.proposed.target.kind == "category"

    @pytest.mark.unit
    def test_one_slip_makes_no_codes(self, tmp_path: Path):
        values = ["07", *[str(i % 90) for i in range(299)]]
        report = table(tmp_path, {"x": values, "y": ["yes", "no"] * 150})
        assert column(report, "x").kind == "number"

    @pytest.mark.unit
    def test_numbers_of_several_spellings_are_one_class(self, tmp_path: Path):
        values = ["0.0", "1.0", "0", "1"] * 15
        report = table(tmp_path, {"x": [str(i) for i in range(60)], "y": values})
        assert report.proposed.target.categories == ("0", "1")
        frame = table(tmp_path, {"x": INTS, "y": ["10.0", "9.0", "2.0"] * 20})
        assert frame.proposed.target.categories == ("2", "9", "10")


class TestDates:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("pattern", "days", "lower", "upper", "parts"),
        [
            (None, 1, "2020-02-01", "2020-04-30", None),
            ("T", 1, "2020-02-01", "2020-04-30", ("year", "month", "weekday", "hour")),
            ("%d.%m.%Y", 30, "2020-01-01", "2025-12-31", None),
            ("%m/%d/%Y", 1, "2020-02-01", "2020-04-30", None),
            ("%d %b %Y", 1, "2020-02-01", "2020-04-30", None),
            ("%Y%m%d", 1, "2020-02-01", "2020-04-30", None),
            ("%d.%m.%y %H:%M", 1, "2020-02-01", "2020-04-30", ("year", "month", "weekday", "hour")),
            ("%Y-%m", 30, "2020-01-01", "2025-12-31", ("year", "month")),
        ],
    )
    def test_are_proposed(
        self,
        tmp_path: Path,
        pattern: str | None,
        days: int,
        lower: str,
        upper: str,
        parts: tuple[str, ...] | None,
    ):
        first = datetime(2020, 2, 10, 9, 30)
        moments = [first + timedelta(days=days * i) for i in range(61)]
        form = {None: "%Y-%m-%d", "T": "%Y-%m-%dT%H:%M:%SZ"}.get(pattern, pattern)
        values = [moment.strftime(form or "") for moment in moments]
        report = table(tmp_path, {"x": values, "y": [*YES, "no"]})
        x = column(report, "x")
        assert (x.kind, x.format or form, x.parts) == ("date", form, parts)
        assert (x.lower, x.upper) == (lower, upper)
        assert not [p for p in report.problems if p.column == "x"]

    @pytest.mark.unit
    def test_a_mark_and_what_is_no_date_are_said(self, tmp_path: Path):
        values = ["unknown", "31.02.2020", *[f"{i % 28 + 1:02}.03.2020" for i in range(58)]]
        report = table(tmp_path, {"x": values, "y": YES})
        assert column(report, "x").missing == ("unknown",)
        assert found(report, "x", "'unknown' occurs among dates").rows == (2,)
        assert found(report, "x", "not a date in format %d.%m.%Y").rows == (3,)

    @pytest.mark.unit
    def test_declared_ones_are_held_against_the_records(self, tmp_path: Path):
        signed = Column(name="x", lower="2020-03-05", upper="2020-03-20")
        schema = TableSchema(columns=(signed,), target=Column(name="y"))
        values = [f"2020-03-{i % 28 + 1:02}" for i in range(59)] + ["05.03.2020"]
        report = table(tmp_path, {"x": values, "y": YES}, schema=schema)
        assert found(report, "x", "before the declared 2020-03-05").count == 11
        assert found(report, "x", "after the declared 2020-03-20").count == 16
        found(report, "x", 'format = "%d.%m.%Y" would')


class TestCategories:
    @pytest.mark.unit
    def test_that_differ_in_capitals_are_proposed_as_one(self, tmp_path: Path):
        values = ["Cook", "cook", "cook", "nurse", "NURSE", "nurse"] * 10
        report = table(tmp_path, {"x": values, "y": ["Yes", "yes", "no"] * 20})
        assert column(report, "x").categories == ("cook", "nurse")
        assert column(report, "x").case is column(report, "y").case is False
        found(report, "x", "'Cook', 'cook' differ only in case")
        assert column(report, "y").categories == ("no", "Yes")

    @pytest.mark.unit
    def test_a_declared_one_of_other_capitals_is_named(self, tmp_path: Path):
        values = ["cook", "Nurse"] * 30
        jobs = Column(name="x", categories=("cook", "nurse"))
        for case, problems in ((None, 1), (False, 0)):
            schema = TableSchema(columns=(replace(jobs, case=case),), target=Column(name="y"))
            report = table(tmp_path, {"x": values, "y": YES}, schema=schema)
            assert len([p for p in report.problems if "but 'nurse' is" in p.what]) == problems
            assert len([p for p in report.problems if p.column == "x"]) == problems

    @pytest.mark.unit
    def test_few_whole_numbers_are_classes_unless_a_number_is_predicted(self, tmp_path: Path):
        grades = [str(i % 5 + 1) for i in range(60)]
        report = table(tmp_path, {"x": INTS, "y": grades})
        assert report.proposed.target.kind == "category"
        found(report, "y", "5 distinct integers: proposed as classes")
        report = table(tmp_path, {"x": INTS, "y": grades}, regression=True)
        assert (report.proposed.target.kind, report.proposed.target.bounds) == ("number", (1, 5))
        schema = TableSchema(columns=(), target=Column(name="y", categories=("1", "2")))
        with pytest.raises(UsageError, match="predicts a number, but the schema"):
            table(tmp_path, {"x": INTS, "y": grades}, schema=schema, regression=True)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            *[
                st.one_of(
                    st.text(st.characters(codec="utf-8", exclude_characters=';"\r\n'), max_size=8),
                    st.sampled_from(
                        ["1,5", "1.500", "12,300", "-", "N/A", "-999", "2020-01-01", "01.02.2020",
                         "03/04/2021", "20200101", "7", "yes", "YES", "9999-12-31", "1e400"]
                    ),
                )
            ] * 3
        ),
        min_size=1,
        max_size=30,
    )
)  # fmt: skip
def test_no_cells_stop_it_and_what_is_proposed_is_read_back(rows: list, tmp_path_factory):
    path = tmp_path_factory.mktemp("check")
    columns = {name: [row[i] or "x" for row in rows] for i, name in enumerate(("a", "b", "y"))}
    for regression in (False, True):
        try:
            table(path, columns, regression=regression)
        except UsageError as error:
            told = str(error)
        else:
            continue
        # Of such tables the report says so, and the file of its schema is refused.
        assert re.search("class(es)?: expected two or more", told)
