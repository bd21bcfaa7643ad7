"""Many lines at once are what each of them is by itself: the cells of every file are the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from csv_rows import read_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pasearch.data import lines
from pasearch.data.column import Column
from pasearch.data.csv_file import MAX_FIELD_CHARACTERS, NO_SEPARATOR, read_table
from pasearch.data.lines import FAULTS, Fault, LineForm, read_blocks, read_lines
from pasearch.data.tables import TableSchema

SCHEMA = TableSchema(
    columns=(
        Column(name="age", low=20, high=60, bins=(30, 40)),
        Column(name="job", categories=("cook", "nurse")),
        Column(name="note", vocabulary=("cat", "£")),
    ),
    target=Column(name="label", categories=("no", "yes")),
)
HEAD, GOOD = b"age,job,note,label\n", b"33,cook,a cat,yes\n"
MANY = b"".join(
    b"%d,%s,text %d,%s\n" % (i % 90, (b"cook", b"nurse", b"?")[i % 3], i, (b"no", b"yes")[i % 2])
    for i in range(700)
)

MESSY = {
    "ordinary": GOOD * 3,
    "no end": GOOD + GOOD[:-1],
    "no end, a carriage return": GOOD + GOOD[:-1] + b"\r",
    "CR LF": GOOD.replace(b"\n", b"\r\n") * 3,
    "CR LF and LF": GOOD + GOOD.replace(b"\n", b"\r\n") + GOOD,
    "CR CR LF": GOOD + GOOD.replace(b"\n", b"\r\r\n") + GOOD,
    "CR inside": GOOD + b"33,co\rok,cat,yes\n" + GOOD,
    "CR first": GOOD + b"\r33,cook,cat,yes\n" + GOOD,
    "CR alone": GOOD + b"\r\n\r\n" + GOOD,
    "empty lines": b"\n" + GOOD + b"\n\n" + GOOD + b"\n\n\n",
    "spaces": GOOD + b"   \n\t\n" + GOOD,
    "too few": GOOD + b"33,cook\n" + GOOD,
    "too many": GOOD + b"33,cook,cat,yes,yes\n" + GOOD,
    "commas": b",,,\n" + GOOD + b",,\n,,,,\n,,,",
    "quoted": b'"33","cook","a cat","yes"\n' + GOOD,
    "comma in quotes": b'33,cook,"a cat, or two",yes\n' + GOOD,
    "quotes in quotes": b'33,cook,"a ""cat""",yes\n' + GOOD,
    "empty quotes": b'"","","",""\n' + GOOD + b'33,"",cat,""\n',
    "open quote": GOOD + b'33,"cook,cat,yes\n' + GOOD,
    "open quotes, two lines": GOOD + b'33,cook,"a cat\n,yes"\n' + GOOD,
    "line feed in quotes": GOOD + b'33,cook,"a\ncat",yes\n' + GOOD,
    "quote at the end": b'33,cook,cat,"yes\n' + GOOD + b'33,cook,cat,yes"\n',
    "quote inside": b'33,co"ok,cat,yes\n33,c"oo"k,cat,yes\n' + GOOD,
    "quotes around a comma inside": b'33,co"ok,c"at,yes,no\n' + GOOD,
    "text after a quote": b'33,"cook"s,cat,yes\n33,"cook" ,cat,yes\n' + GOOD,
    "space before a quote": b'33, "cook",cat,yes\n33, "co,ok",cat,yes\n' + GOOD,
    "only quotes": b'"\n""\n"""\n""""\n","\n",",",",\n' + GOOD,
    "single quotes": b"33,'co,ok',yes\n'33',cook,cat,yes\n" + GOOD,
    "NUL": GOOD + b"33,co\0ok,cat,yes\n\0\n33\0,cook\0,,yes\0\n" + GOOD,
    "a text and NUL": b"33,a,,yes\n33,a\0,,yes\n33,a\0\0,,yes\n33,,\0,yes\n" * 2,
    "not UTF-8": GOOD + b"33,caf\xe9,cat,yes\n" + GOOD,
    "UTF-8 cut by a comma": GOOD + b"33,\xc3,\xa9,yes\n" + GOOD,
    "UTF-8 cut by a line end": GOOD + b"33,cook,cat,\xc3\n\xa9,cook,cat,yes\n" + GOOD,
    "overlong, surrogates": b"33,\xc0\xaf,a,yes\n33,\xed\xa0\x80,a,yes\n" + GOOD,
    "UTF-8": "33,cafë,£ 日本語,yes\n٣٣,\u2028,\x85,no\n".encode() + GOOD,
    "marks": b"\xef\xbb\xbf33,cook,cat,yes\n" + GOOD,
    "other line ends": b"33,a\x0bb,c\x0cd\x1c,yes\n" + GOOD,
    "UTF-16": "33,cook,cat,yes\n".encode("utf-16") * 3 + GOOD,
    "numbers": b"1e3,0x1f,-0,nan\n 5,+5,5.,.5\n1_0,00.5,--1,inf\n1e999,-0.0,1.2.3,-inf\n",
    "long numbers": b"%s,%s,%s,0.%s\n" % (b"9" * 16, b"9" * 17, b"9" * 18, b"3" * 22) + GOOD,
    "a long cell": GOOD + b"33,cook," + b"c" * 3_000_000 + b",yes\n" + GOOD,
    "a long cell, open": GOOD + b'33,cook,"' + b"c" * 3_000_000 + b"\n" + GOOD,
    "a long line of commas": GOOD + b"," * 3_000_000 + b"\n" + GOOD,
    "many": MANY,
    "many, messy": MANY + b'1,"\n\xff\n\r\n' + MANY + b"\xff,a,b,c\n" + MANY,
    "words of eight": b"".join(b"%s,%s,,yes\n" % (b"a" * k, b"b" * (9 * k)) for k in range(12)),
    "many texts": b"".join(b"%d,t%d,%d x,yes\n" % (i, i, i % 300) for i in range(2000)),
}  # fmt: skip
"""What may follow a header."""


@pytest.fixture(autouse=True, scope="module")
def _cells_of_any_length() -> Iterator[None]:
    limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    yield
    csv.field_size_limit(limit)


@cache
def read_alone(content: bytes, form: LineForm) -> list[list[str] | Fault]:
    """Every row, each read alone."""
    return [form.parse_row(line) for line in form.split_lines(content)]


def by_itself(content: bytes, form: LineForm, width: int) -> list[list[str] | None]:
    """Every row, each read alone; None where it is faulty."""
    return [
        None if isinstance(row, Fault) or len(row) != width else row
        for row in read_alone(content, form)
    ]


def at_once(content: bytes, form: LineForm, width: int) -> list[list[str] | None]:
    """The rows of the columns that are read from blocks."""
    columns, faults = read_lines(form, read_blocks(io.BytesIO(content), width=width), width)
    want = read_alone(content, form)
    assert [FAULTS[fault] for fault in faults] == [
        row if isinstance(row, Fault) else None if len(row) == width else Fault.WIDTH
        for row in want
    ]
    rows = [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    assert all((None in row) == (set(row) == {None}) for row in rows)
    return [None if None in row else row for row in rows]  # type: ignore[misc]


def test_there_are_messy_files_enough():
    assert len(MESSY) >= 37


@pytest.mark.oracle
@pytest.mark.parametrize("quotes", [True, False], ids=["quotes", "no quotes"])
class TestMessyFiles:
    @pytest.mark.parametrize("block", [1, 60, 1000, lines.BLOCK_BYTES])
    def test_have_the_cells_of_each_line_by_itself_wherever_a_block_ends(
        self, quotes: bool, block: int, monkeypatch: pytest.MonkeyPatch
    ):
        form = LineForm(quotes=quotes)
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        for name, content in MESSY.items():
            if len(content) > 5000 * block:  # takes long in so small blocks
                continue
            for width in (2, 4):
                want = by_itself(content, form, width)
                assert at_once(content, form, width) == want, name

    def test_are_encoded_alike(self, quotes: bool, tmp_path: Path):
        for name, content in MESSY.items():
            path = tmp_path / "x.csv"
            path.write_bytes(HEAD + content)
            schema, features, labels = read_table(path, schema=SCHEMA, quotes=quotes)
            rows = [[None] * 4 if row is None else row for row in read_rows(path, quotes=quotes)[1]]
            table = np.array(rows, object).reshape(len(rows), 4)
            want, x = (np.zeros((len(rows), *schema.shape), np.float32) for _ in range(2))
            usable = schema.encode(table[:, :-1], out=want)
            np.testing.assert_array_equal(schema.encode(features, out=x), usable, err_msg=name)
            assert x.tobytes() == want.tobytes(), name
            for one, other in zip(
                schema.encode_labels(labels), schema.encode_labels(table[:, -1]), strict=True
            ):
                np.testing.assert_array_equal(one, other, err_msg=name)


PIECES = [
    b"\n", b"\n", b"\r\n", b"\r", b",", b",", b'"', b'"', b'""', b";", b"x", b"cook", b"12.5",
    b"-3", b"\0", b"\xff", b"\xc3", b"\xa9", b"\xc3\xa9", b" ", b"012345678", b"a" * 9, b"a" * 33,
    b"\xef\xbb\xbf", b"#", b'1,"x', b'x",1', b'"a,b",c\n', b"1,2,3\n", b"4,5,6\n",
]  # fmt: skip

LINE_PIECES = [piece for piece in PIECES if b"\n" not in piece]


@pytest.mark.property
@settings(max_examples=600, deadline=None)
@given(
    content=st.one_of(
        st.binary(max_size=80), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)
    ),
    separator=st.sampled_from([*lines.SEPARATORS, lines.BLANK_SEPARATOR, NO_SEPARATOR]),
    quotes=st.booleans(),
    width=st.integers(1, 4),
    block=st.sampled_from([1, 7, 50, lines.BLOCK_BYTES]),
)
@example(b'a"b,c"d,e\n', ",", True, 2, 50)
@example(b'"a,b",c\nx",1\n1,2\n', ",", True, 2, 50)
def test_any_bytes_are_read_alike(
    content: bytes, separator: str, quotes: bool, width: int, block: int
):
    form = LineForm(quotes=quotes, separator=separator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        assert at_once(content, form, width) == by_itself(content, form, width)


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(
    found=st.lists(st.lists(st.sampled_from(LINE_PIECES), max_size=8).map(b"".join), min_size=1),
    other=st.lists(st.sampled_from(LINE_PIECES), max_size=8).map(b"".join),
    data=st.data(),
)
def test_a_changed_line_changes_only_its_own_row(
    found: list[bytes], other: bytes, data: st.DataObject
):
    at, form = data.draw(st.integers(0, len(found) - 1)), LineForm()
    changed = [*found[:at], other, *found[at + 1 :]]
    one, two = (
        at_once(b"".join(line + b"\n" for line in each), form, 3) for each in (found, changed)
    )
    assert len(one) == len(two) == len(found)
    assert [*one[:at], *one[at + 1 :]] == [*two[:at], *two[at + 1 :]]


@pytest.mark.unit
def test_no_line_by_itself_is_needed_for_an_ordinary_file(monkeypatch: pytest.MonkeyPatch):
    """What is quick stays quick: quoted cells, CR LF and UTF-8 are ordinary too."""

    def never(self: LineForm, line: bytes) -> None:
        raise AssertionError(line)

    monkeypatch.setattr(LineForm, "parse_row", never)
    content = '1,"a, b",é\r\n"2","",\r\n'.encode() * 50
    columns, _ = read_lines(LineForm(), read_blocks(io.BytesIO(content)), 3)
    assert [column.tolist()[:2] for column in columns] == [["1", "2"], ["a, b", ""], ["é", ""]]
    with pytest.raises(AssertionError):
        read_lines(LineForm(), read_blocks(io.BytesIO(b'1,a"b,c\n')), 3)
