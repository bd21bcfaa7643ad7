"""Rows of a CSV file. Each row is one line and is parsed alone, so no row changes another.

| public format of a file | definition |
|---|---|
| header | the first line, or the second after `sep=;`; or the columns that the user names |
| separator | declared by the user; otherwise the one that gives most cells in the header |
| end of a line | a line feed, with one optional carriage return before it; nothing else |
| refused header | one with any other carriage return, because lines may end with those alone |
| n | number of lines after the header; a last line without an end counts too |

Only the bytes of the header and its line end determine whether a file is refused.

A line is a null record if it is not UTF-8, if its quotation marks do not match, or if its number of
cells differs from the header. All other characters are parts of cells, such as NUL, a carriage
return that does not end a line, or a byte order mark after the start of the file. A quoted cell
must end in its line. A line feed in a cell therefore makes two rows, of which the first is null;
`pasearch check` reports it.

A space as separator means any run of spaces and tabs. Spaces and tabs at the ends of a line are
removed.

Two parsers give the same cells. `LineForm.parse_row` parses one line by module `csv`. pyarrow
parses many lines at once, but only *ordinary* lines, which the separators alone divide into cells.
An ordinary line is UTF-8, has more than one byte and no NUL, does not begin with a byte order mark,
has no carriage return except right before its end, and has quotation marks only at the ends of
cells. The bytes of a line and the number of columns determine which parser is used, so no line
changes another. `tests/data/test_blocks.py` compares the parsers.

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
"""Size of the blocks that are read, bytes: they fit into a processor's cache."""

# A table with many columns is read in larger blocks, because a block takes a constant time per
# column: one `BLOCK_BYTES` for each `COLUMNS_PER_BLOCK` columns, and at most `MAX_BLOCKS` of them.
COLUMNS_PER_BLOCK = 256
MAX_BLOCKS = 32

MAX_PARSED_BYTES = 2**30
"""Maximum size of a block that pyarrow parses, bytes; only a very long line makes a longer block.
"""

LINE_FEED_BYTE, RETURN_BYTE, QUOTE_BYTE = b'\n\r"'

MAX_HEADER_BYTES = 2**24
"""Maximum size of a header, bytes."""

SEPARATORS = ",;\t|"
"""Separators that are detected if none is declared."""

OTHER_SEPARATORS = ":^~!#&*/ "
"""Further separators, which must be declared."""

SEPARATOR_FIRST_LINE = re.compile(rb'"?sep=([,;\t|:^~!#&*/ ])"?')
"""Pattern of a first line by which a spreadsheet program declares the separator, such as `sep=;`.
"""

ALIGNED_HEADER = re.compile(r"\S(?: {2,}| *\t[ \t]*)\S")
"""Pattern of a header whose names are separated by tabs or several spaces, unlike a title."""

BLANK_SEPARATOR = " "
"""Separator that means a run of spaces and tabs."""

SEPARATOR_NAMES = {
    "tab": "\t",
    "\\t": "\t",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
}
"""Separators by name, because a shell interprets some of the characters."""

LINE_END_STAND_INS = {"\r": "\udc0d", "\n": "\udc0a"}
"""Replacements of characters at which `csv` would end a row; UTF-8 text cannot contain them."""


class HeaderTooLongError(Exception):
    """Error for a first line that is too long for a header."""


class LineEndError(Exception):
    """Error for a first line with a carriage return that is not part of its end."""


class Fault(Enum):
    """Reasons why a row cannot be used, in the words of `pasearch check`."""

    ENCODING = "not UTF-8, so it cannot be used: save the file as CSV UTF-8"
    QUOTES = (
        "a quotation mark is not closed at its cell's end, so it cannot be used: a row is one "
        "line. Replace line breaks inside cells by spaces; if quotation marks are ordinary "
        "characters, use `quotes=False`"
    )
    WIDTH = "not as many values as there are columns, so it cannot be used"
    EMPTY = "an empty line, so it cannot be used"


FAULTS = (None, *Fault)
"""Faults by the index that `read_lines` returns; None means that the row can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineForm:
    """Public format of a file's lines.

    Args:
        quotes: Whether quotation marks may enclose a cell; otherwise they are ordinary characters.
        separator: Separator of cells, one ASCII character.
    """

    quotes: bool = True
    separator: str = ","

    def split_lines(self, block: bytes) -> list[bytes]:
        """Split a block into lines without their ends."""
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        return [line.removesuffix(b"\r") for line in lines]

    def parse_row(self, line: bytes) -> list[str] | Fault:
        """Return the cells of a line, or its fault.

        Guarantee: no line raises an error.
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
        """Iterate over the cells or the fault of each line of an open file.

        Args:
            file: Open file; reading begins at its current position.
            start: Bytes to put before the first line.
        """
        for block in read_blocks(file, start):
            yield from map(self.parse_row, self.split_lines(block))


def read_lines(
    form: LineForm, blocks: Iterator[bytes], width: int
) -> tuple[list[TextColumn], np.ndarray]:
    """Read the columns of a file's rows.

    Args:
        form: Format of the file's lines.
        blocks: Blocks of whole lines.
        width: Number of columns of the header.

    Returns:
        The columns, and the index in `FAULTS` of each line's fault, uint8, (rows,). Cells are those
        of `LineForm.parse_row`, or None in every column if the line has a fault.

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
    """Return the columns of a block of lines as Arrow arrays, and each line's index in `FAULTS`."""
    import pyarrow as pa

    body = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(body == LINE_FEED_BYTE)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(body))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_ordinary = _find_ordinary_lines(form, block, body, starts, ends)
    ordinary: list[Any] = []
    if is_ordinary.any():
        sizes = np.minimum(ends + 1, len(body)) - starts
        some = block if is_ordinary.all() else body[np.repeat(is_ordinary, sizes)].tobytes()
        ordinary, wrong = _parse_ordinary_lines(form, some, width)
        is_ordinary[np.flatnonzero(is_ordinary)[wrong]] = False
    faults, others = np.zeros(len(ends), np.uint8), np.flatnonzero(~is_ordinary)
    if not len(others):
        return iter(ordinary), faults
    rows: list[list[str | None]] = []
    for line in others.tolist():
        row = form.parse_row(block[starts[line] : ends[line]].removesuffix(b"\r"))
        if isinstance(row, list) and len(row) != width:
            row = Fault.WIDTH
        faults[line] = FAULTS.index(row) if isinstance(row, Fault) else 0
        rows.append([None] * width if isinstance(row, Fault) else [*row])
    order = convert_to_arrow_integers(np.argsort(np.argsort(~is_ordinary, kind="stable")))
    return (
        pa.concat_arrays([*ordinary[place : place + 1], convert_to_arrow_cells(cells)]).take(order)
        for place, cells in enumerate(zip(*rows, strict=True))
    ), faults


def _parse_ordinary_lines(form: LineForm, block: bytes, width: int) -> tuple[list[Any], list[int]]:
    """Parse ordinary lines by pyarrow.

    Returns the columns without the lines that have another number of cells, and the indices of
    these lines.
    """
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


def _find_ordinary_lines(
    form: LineForm, block: bytes, body: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return whether each line is ordinary (see the module), bool, (lines,).

    Args:
        form: Format of the lines.
        block: Bytes of the lines.
        body: The same bytes as an array, uint8.
        starts: Index of the first byte of each line.
        ends: Index after the last byte of each line.
    """
    if form.separator == BLANK_SEPARATOR or len(block) > MAX_PARSED_BYTES:
        return np.zeros(len(ends), bool)
    # pyarrow drops a byte order mark, and finds no cell in a single carriage return.
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
    """Whether bytes are valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_blocks(file: BinaryIO, start: bytes = b"", *, width: int = 1) -> Iterator[bytes]:
    """Iterate over the rest of a file in blocks of whole lines; the last line may have no end.

    Args:
        file: Open file; reading begins at its current position.
        start: Bytes to put before the first block.
        width: Number of columns.
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
    """Return the declared separator as one character; None if none is declared.

    Args:
        separator: Character, key of `SEPARATOR_NAMES`, or None.

    Raises:
        UsageError: The separator is not supported.
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
    """Read the format of a file's lines and the cells of the first line.

    Args:
        file: File at its start; a byte order mark is skipped.
        quotes: Whether quotation marks may enclose a cell.
        separator: Separator of cells. None: the one of `SEPARATORS` that gives most cells in the
            header, the first of equals. If each gives one cell, the separator is a run of blanks if
            the header is aligned by blanks, or if blanks separate it into the declared names.
        names: Names of the declared columns.

    Guarantee: no byte after the header is used.

    Raises:
        LineEndError: The first line has a carriage return that does not precede its line feed.
        HeaderTooLongError: The first line has more than `MAX_HEADER_BYTES`.
    """
    first = file.readline(MAX_HEADER_BYTES)
    if found := SEPARATOR_FIRST_LINE.fullmatch(first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")):
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
        key=lambda form: 0 if isinstance(row := form.parse_row(line), Fault) else len(row),
    )
    row, blanks = form.parse_row(line), LineForm(quotes=quotes, separator=BLANK_SEPARATOR)
    if separator is None and not isinstance(row, Fault) and len(row) == 1:
        cells = blanks.parse_row(line)
        known = not isinstance(cells, Fault) and bool(names) and names <= set(cells)
        if known or ALIGNED_HEADER.search(row[0].strip()):
            return blanks, cells
    return form, row


def read_start_without_header(
    file: BinaryIO, *, quotes: bool, separator: str | None = None
) -> tuple[LineForm, bytes]:
    """Return the format of a file's lines if it has no header, and the bytes that were read.

    Args:
        file: File at its start; a byte order mark is skipped.
        quotes: Whether quotation marks may enclose a cell.
        separator: Separator of cells; None for a comma.

    Guarantee: no record is used.
    """
    start = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    return LineForm(quotes=quotes, separator=separator or SEPARATORS[0]), start
