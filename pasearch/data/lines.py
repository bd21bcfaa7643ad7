"""The rows of a CSV file. A row is a line and is read by itself, so no row changes another.

| the form of a file, public | is |
|---|---|
| its header | the first line, or the second behind `sep=;`; or the columns that the user names |
| what separates cells | what the user says; otherwise what finds most cells in the header |
| what ends a line | a line feed, one carriage return before it included; nothing else |
| whether a header with any other carriage return is read | no: lines may end with those alone |
| n | how many lines follow the header; if the file ends without a line end, the rest is one more |

That header is refused by its own bytes, its line end included. In such a file no line feed tells
records apart, so none of them is read. And a file without a final line end has no neighbour whose
last line is empty: no file can hold an empty line without an end.

A line is the null record if it is not UTF-8, if its quotation marks do not match, or if it has not
as many cells as the header. Every other character belongs to its cell: a carriage return that
ends no line, NUL, a byte order mark after the file's start. A quoted cell ends in its line, so
one with a line feed in it makes two rows, of which the first is null: `pasearch check` finds it.

A space as separator means any run of spaces and tabs; those around a line belong to no cell.

`LineForm.row` reads one line, by `csv`. Where its separators alone divide a line into as many cells
as the header has, pyarrow gives the same cells and reads many lines at once: such a line is UTF-8,
has more than one byte and no NUL, does not begin with a byte order mark, has no carriage return
except right before its end, and has a quotation mark only where a cell begins or ends. A line's own
bytes and the header's number of columns decide which of both reads it, so no line changes another;
`tests/data/test_blocks.py` compares them.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO

import numpy as np

from pasearch.data.text_columns import (
    GrowingColumn,
    TextColumn,
    convert_to_arrow_cells,
    convert_to_arrow_integers,
)
from pasearch.errors import UsageError

BLOCK_BYTES = 2**20
"""How many bytes are read at a time: few enough for a processor's cache."""

COLUMNS_PER_BLOCK, MAX_BLOCKS = 256, 32
"""One `BLOCK` is read at a time for each `WIDE` columns, at most `MAX_BLOCKS`: a block costs a
constant time per column, so it needs many rows."""

MAX_PARSED_BYTES = 2**30
"""Bytes of a block that pyarrow parses, at most: a longer one has a line of that length."""

LINE_FEED_BYTE, RETURN_BYTE, QUOTE_BYTE = b'\n\r"'

MAX_HEADER_BYTES = 2**24
"""The most bytes of a header."""

SEPARATORS = ",;\t|"
"""What may stand between two cells, if nobody says what does."""

OTHER_SEPARATORS = ":^~!#&*/ "
"""What may separate cells beside `SEPARATORS`, where the user says so."""

SEPARATOR_LINE = re.compile(rb'"?sep=([,;\t|:^~!#&*/ ])"?')
"""A first line by which a spreadsheet program declares the separator of a file."""

ALIGNED_HEADER = re.compile(r"\S(?: {2,}| *\t[ \t]*)\S")
"""A header of names with runs of blanks between them, not a title of words."""

BLANK_SEPARATOR = " "
"""The separator that stands for a run of spaces and tabs."""

SEPARATOR_NAMES = {
    "tab": "\t",
    "\\t": "\t",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
}
"""Separators by name: a shell takes some of them for itself."""

LINE_END_STAND_INS = {"\r": "\udc0d", "\n": "\udc0a"}
"""What stands for a character that `csv` would end a row at: no text in UTF-8 has these."""


class HeaderTooLongError(Exception):
    """The first line of a file is too long for a header."""


class LineEndError(Exception):
    """The first line of a file has a carriage return that is not part of its end."""


class Fault(Enum):
    """Why a row cannot be used (it is a null record), in the words of the curator's check."""

    ENCODING = "not UTF-8, so it cannot be used: save the file as CSV UTF-8"
    QUOTES = (
        "a quotation mark is not closed at its cell's end, so it cannot be used: a row is one "
        "line. Replace line breaks inside cells by spaces; if quotation marks are ordinary "
        "characters here, say `quotes=False`"
    )
    WIDTH = "not as many values as there are columns, so it cannot be used"
    EMPTY = "an empty line, so it cannot be used"


FAULTS = (None, *Fault)
"""Whether and why a row cannot be used, by the index that `read_lines` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineForm:
    """What is public about a file's lines.

    Args:
        quotes: Whether a quotation mark around a cell is none of its characters.
        separator: What stands between two cells: one character of ASCII.
    """

    quotes: bool = True
    separator: str = ","

    def lines(self, block: bytes) -> list[bytes]:
        """Return the lines of a block without their ends."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return [line.removesuffix(b"\r") for line in lines]

    def row(self, line: bytes) -> list[str] | Fault:
        """Return the cells of a line.

        Guarantee: no line raises.
        """
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return Fault.ENCODING
        if self.separator == BLANK_SEPARATOR:
            text = text.replace("\t", " ").strip(" ")
        plain = text
        for character, other in LINE_END_STAND_INS.items():
            plain = plain.replace(character, other)
        reader = csv.reader(
            [plain], strict=True, delimiter=self.separator,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
            skipinitialspace=self.separator == BLANK_SEPARATOR,
        )  # fmt: skip
        try:
            (row,) = reader
        except csv.Error:
            return Fault.QUOTES
        if not row:
            return Fault.EMPTY
        if plain != text:
            for character, other in LINE_END_STAND_INS.items():
                row = [cell.replace(other, character) for cell in row]
        return row

    def rows(self, file: BinaryIO, start: bytes = b"") -> Iterator[list[str] | Fault]:
        """Read the lines of an open file one by one, from its position, `start` before them."""
        for block in read_blocks(file, start):
            yield from map(self.row, self.lines(block))


def read_lines(
    form: LineForm, blocks: Iterator[bytes], width: int
) -> tuple[list[TextColumn], np.ndarray]:
    """Read the columns of a file's rows.

    Args:
        form: Form of the file's lines.
        blocks: Blocks of whole lines.
        width: Number of columns of the header.

    Returns:
        The columns, and the index in `FAULTS` of each line's fault, uint8, (rows,). The cells are
        those that `LineForm.row` reads from each line, None in every column if it has a fault.

    Cost: time and memory linear in the bytes.
    """
    columns, faults = [GrowingColumn() for _ in range(width)], [np.empty(0, np.uint8)]
    for block in blocks:
        arrays, own = _parse_block(form, block, width)
        faults.append(own)
        for column, array in zip(columns, arrays, strict=True):
            column.add(array)
    return [column.finish() for column in columns], np.concatenate(faults)


def _parse_block(form: LineForm, block: bytes, width: int) -> tuple[Iterator[Any], np.ndarray]:
    """Parse the lines of a block to columns, Arrow arrays, and the lines' faults."""
    import pyarrow as pa

    body = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(body == LINE_FEED_BYTE)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(body))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_ordinary = _find_ordinary(form, block, body, starts, ends)
    ordinary: list[Any] = []
    if is_ordinary.any():
        sizes = np.minimum(ends + 1, len(body)) - starts
        some = block if is_ordinary.all() else body[np.repeat(is_ordinary, sizes)].tobytes()
        ordinary, wrong = _parse_ordinary(form, some, width)
        is_ordinary[np.flatnonzero(is_ordinary)[wrong]] = False
    faults, others = np.zeros(len(ends), np.uint8), np.flatnonzero(~is_ordinary)
    if not len(others):
        return iter(ordinary), faults
    rows: list[list[str | None]] = []
    for line in others.tolist():
        row = form.row(block[starts[line] : ends[line]].removesuffix(b"\r"))
        if isinstance(row, list) and len(row) != width:
            row = Fault.WIDTH
        faults[line] = FAULTS.index(row) if isinstance(row, Fault) else 0
        rows.append([None] * width if isinstance(row, Fault) else [*row])
    order = convert_to_arrow_integers(np.argsort(np.argsort(~is_ordinary, kind="stable")))
    return (
        pa.concat_arrays([*ordinary[place : place + 1], convert_to_arrow_cells(cells)]).take(order)
        for place, cells in enumerate(zip(*rows, strict=True))
    ), faults


def _parse_ordinary(form: LineForm, block: bytes, width: int) -> tuple[list[Any], list[int]]:
    """Parse ordinary lines to columns, and find those of another width, which are left out."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    wrong: list[int] = []

    def leave_out(row: arrow_csv.InvalidRow) -> str:
        wrong.append(row.number - 1)
        return "skip"

    names = [str(place) for place in range(width)]
    table = arrow_csv.read_csv(
        pa.BufferReader(block),
        read_options=arrow_csv.ReadOptions(
            column_names=names, use_threads=False, block_size=len(block) + 1
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=form.separator,
            quote_char='"' if form.quotes else False,
            ignore_empty_lines=False,
            invalid_row_handler=leave_out,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_binary()), strings_can_be_null=False
        ),
    )
    return [column.combine_chunks() for column in table.columns], wrong


def _find_ordinary(
    form: LineForm, block: bytes, body: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Mark ordinary lines, whatever their number of cells: bool, (lines,).

    Args:
        form: Form of the lines.
        block: Their bytes.
        body: The same as an array, uint8.
        starts: Where the lines start.
        ends: Where they end.
    """
    if form.separator == BLANK_SEPARATOR or len(block) > MAX_PARSED_BYTES:
        return np.zeros(len(ends), bool)
    # pyarrow drops a byte order mark, and finds no cell in a carriage return alone.
    is_ordinary = (ends - starts > 1) & (body[starts] != 0xEF)
    if b"\0" in block:
        is_ordinary[np.searchsorted(ends, np.flatnonzero(body == 0))] = False
    if b"\r" in block:
        returns = np.flatnonzero(body == RETURN_BYTE)
        own = np.searchsorted(ends, returns)
        is_ordinary[own[returns + 1 != ends[own]]] = False
    if form.quotes and b'"' in block:
        quotes = np.flatnonzero(body == QUOTE_BYTE)
        own, before = np.searchsorted(ends, quotes), np.searchsorted(quotes, starts)
        opens = (np.arange(len(quotes)) - before[own]) % 2 == 0
        padded = np.concatenate([[LINE_FEED_BYTE], body, [LINE_FEED_BYTE]]).astype(np.uint8)
        beside = np.where(opens, padded[quotes], padded[quotes + 2])
        is_edge = (
            (beside == ord(form.separator)) | (beside == LINE_FEED_BYTE) | (beside == RETURN_BYTE)
        )
        is_ordinary[own[~is_edge]] = False
        is_ordinary[np.diff(before, append=len(quotes)) % 2 == 1] = False
    if not is_utf_8(block):
        for line in np.unique(np.searchsorted(ends, np.flatnonzero(body >= 0x80))).tolist():
            is_ordinary[line] &= is_utf_8(block[starts[line] : ends[line]])
    return is_ordinary


def is_utf_8(content: bytes) -> bool:
    """Check that bytes are UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_blocks(file: BinaryIO, start: bytes = b"", *, width: int = 1) -> Iterator[bytes]:
    """Yield the rest of a file in blocks of whole lines; only the last line may have no end.

    Args:
        file: Open; from where it stands.
        start: What comes before that.
        width: How many columns it has.
    """
    pieces = [start]
    size = BLOCK_BYTES * min(MAX_BLOCKS, max(1, width // COLUMNS_PER_BLOCK))
    while part := file.read(size):
        if cut := part.rfind(b"\n") + 1:
            yield b"".join((*pieces, part[:cut]))
            pieces = []
        pieces.append(part[cut:])
    if last := b"".join(pieces):
        yield last


def parse_separator(separator: str | None) -> str | None:
    """Return the separator that a user names, by itself or by `SPELT`; None if none is named.

    Raises:
        UsageError: Nothing that may separate cells.
    """
    if separator is None:
        return None
    known = SEPARATOR_NAMES.get(separator, separator) if isinstance(separator, str) else ""
    if len(known) == 1 and known in SEPARATORS + OTHER_SEPARATORS:
        return known
    raise UsageError(
        f"separator is {separator!r}: expected one character, "
        f"{' '.join((SEPARATORS + OTHER_SEPARATORS).replace(chr(9), '').strip())}, tab or space."
    )


def read_header(
    file: BinaryIO,
    *,
    quotes: bool,
    separator: str | None = None,
    names: frozenset[str] = frozenset(),
) -> tuple[LineForm, list[str] | Fault]:
    """Return the form of a file's lines and the cells of the first; the file stands behind it.

    Args:
        file: At its start; a byte order mark there is left out.
        quotes: As of `LineForm`.
        separator: As of `LineForm`; None: the one of `SEPARATORS` that tells the most cells of the
            header apart, the earlier of two. If none does, blanks do where the header is aligned
            by them, or is made of declared names.
        names: Declared columns.

    Guarantee: nothing behind the header is looked at.

    Raises:
        LineEndError: A carriage return in the first line that is not right before its line feed.
        HeaderTooLongError: It has more than `MAX_HEADER_BYTES` bytes.
    """
    first = file.readline(MAX_HEADER_BYTES)
    if found := SEPARATOR_LINE.fullmatch(first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")):
        separator = separator or found[1].decode()
        first = file.readline(MAX_HEADER_BYTES)
    line = first.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n")
    if first.endswith(b"\n"):
        line = line.removesuffix(b"\r")
    if b"\r" in line:
        raise LineEndError
    if len(first) == MAX_HEADER_BYTES:
        raise HeaderTooLongError
    form = max(
        (LineForm(quotes=quotes, separator=each) for each in separator or SEPARATORS),
        key=lambda form: 0 if isinstance(row := form.row(line), Fault) else len(row),
    )
    row, blanks = form.row(line), LineForm(quotes=quotes, separator=BLANK_SEPARATOR)
    if separator is None and not isinstance(row, Fault) and len(row) == 1:
        cells = blanks.row(line)
        known = not isinstance(cells, Fault) and bool(names) and names <= set(cells)
        if known or ALIGNED_HEADER.search(row[0].strip()):
            return blanks, cells
    return form, row


def start_without_header(
    file: BinaryIO, *, quotes: bool, separator: str | None = None
) -> tuple[LineForm, bytes]:
    """Return the form of a file's lines, of which the first is a record, and what was read of it.

    Args:
        file: At its start; a byte order mark there is left out.
        quotes: As of `LineForm`.
        separator: As of `LineForm`; None: a comma.

    Guarantee: no record is looked at.
    """
    start = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    return LineForm(quotes=quotes, separator=separator or SEPARATORS[0]), start
