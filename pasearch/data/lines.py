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

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

from pasearch.errors import UsageError

BLOCK = 2**20
"""How many bytes are read at a time: few enough for a processor's cache."""

WIDE, MOST_BLOCKS = 256, 32
"""Of each so many columns one `BLOCK` is read at a time, so that it has rows enough to be worth it:
columns are made from a block at once, of few rows at the price of many. So many blocks at most."""

LONGEST_HEADER = 2**24
"""The most bytes of a header."""

SEPARATORS = ",;\t|"
"""What may stand between two cells, if nobody says what does."""

OTHER_SEPARATORS = ":^~!#&*/ "
"""What may separate cells beside `SEPARATORS`, where the user says so."""

DECLARED = re.compile(rb'"?sep=([,;\t|:^~!#&*/ ])"?')
"""A first line by which a spreadsheet program declares the separator of a file."""

ALIGNED = re.compile(r"\S(?: {2,}| *\t[ \t]*)\S")
"""A header of names with runs of blanks between them, not a title of words."""

BLANK = " "
"""The separator that stands for a run of spaces and tabs."""

SPELT = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""Separators by name: a shell takes some of them for itself."""

STAND_INS = {"\r": "\udc0d", "\n": "\udc0a"}
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
        plain = text = self._trimmed(text)
        for character, other in STAND_INS.items():
            plain = plain.replace(character, other)
        try:
            (row,) = self._reader([plain])
        except csv.Error:
            return Fault.QUOTES
        if not row:
            return Fault.EMPTY
        return row if plain == text else [_restored(cell) for cell in row]

    def rows(self, file: BinaryIO, start: bytes = b"") -> Iterator[list[str] | Fault]:
        """Go through the rows of an open file, from where it stands, `start` before it.

        Guarantee: each is what `row` makes of its line alone.
        """
        for block in blocks(file, start):
            found = self._rows_at_once(block)
            yield from map(self.row, self.lines(block)) if found is None else found

    def read(self, lines: list[bytes]) -> list[list[str] | Fault]:
        """Return the rows of lines without ends: each is what `row` makes of it."""
        found = None
        if sum(map(len, lines)) <= BLOCK:
            block = b"".join(line + b"\n" for line in lines)
            # A carriage return at a line's end is the line's here, and no part of the end.
            found = None if b"\r" in block else self._rows_at_once(block)
        return [self.row(line) for line in lines] if found is None else [*found]

    def _rows_at_once(self, block: bytes) -> list[list[str]] | None:
        """Return the rows of a block in which nothing is wrong; None where `row` must look."""
        try:
            text = block.decode()
        except UnicodeDecodeError:
            return None
        text = text.replace("\r\n", "\n")
        if "\r" in text:
            return None
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        lines = [self._trimmed(line) for line in lines] if self.separator == BLANK else lines
        try:
            rows = list(self._reader(lines))
        except csv.Error:
            return None
        # A row takes a line or more: if there are as many, each has taken its own.
        return rows if len(rows) == len(lines) and all(rows) else None

    def _trimmed(self, line: str) -> str:
        """Return a line with spaces alone between its cells, and nothing around them."""
        return line.replace("\t", " ").strip(" ") if self.separator == BLANK else line

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(
            lines, strict=True, quoting=quoting, delimiter=self.separator,
            skipinitialspace=self.separator == BLANK,
        )  # fmt: skip


def block_size(width: int) -> int:
    """Return how many bytes of a file are read at a time.

    Args:
        width: How many columns the header has: public.
    """
    return BLOCK * min(MOST_BLOCKS, max(1, width // WIDE))


def blocks(file: BinaryIO, start: bytes = b"", *, width: int = 1) -> Iterator[bytes]:
    """Yield the rest of a file in blocks of whole lines; only the last line may have no end.

    Args:
        file: Open; from where it stands.
        start: What comes before that.
        width: How many columns it has.
    """
    pieces = [start]
    while part := file.read(block_size(width)):
        if cut := part.rfind(b"\n") + 1:
            yield b"".join((*pieces, part[:cut]))
            pieces = []
        pieces.append(part[cut:])
    if last := b"".join(pieces):
        yield last


def separator_of(separator: str | None) -> str | None:
    """Return the separator that a user names, by itself or by `SPELT`; None if none is named.

    Raises:
        UsageError: Nothing that may separate cells.
    """
    if separator is None:
        return None
    known = SPELT.get(separator, separator) if isinstance(separator, str) else ""
    if len(known) == 1 and known in SEPARATORS + OTHER_SEPARATORS:
        return known
    raise UsageError(
        f"separator is {separator!r}: expected one character, "
        f"{' '.join((SEPARATORS + OTHER_SEPARATORS).replace(chr(9), '').strip())}, tab or space."
    )


def _restored(cell: str) -> str:
    for character, other in STAND_INS.items():
        cell = cell.replace(other, character)
    return cell


def header_of(
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
        HeaderTooLongError: It has more than `LONGEST_HEADER` bytes.
    """
    first = file.readline(LONGEST_HEADER)
    if found := DECLARED.fullmatch(first.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")):
        separator = separator or found[1].decode()
        first = file.readline(LONGEST_HEADER)
    line = first.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n")
    if first.endswith(b"\n"):
        line = line.removesuffix(b"\r")
    if b"\r" in line:
        raise LineEndError
    if len(first) == LONGEST_HEADER:
        raise HeaderTooLongError
    forms = [LineForm(quotes=quotes, separator=each) for each in separator or SEPARATORS]
    form = max(forms, key=lambda form: _width(form.row(line)))
    row, blanks = form.row(line), LineForm(quotes=quotes, separator=BLANK)
    if separator is None and not isinstance(row, Fault) and len(row) == 1:
        cells = blanks.row(line)
        known = not isinstance(cells, Fault) and bool(names) and names <= set(cells)
        if known or ALIGNED.search(row[0].strip()):
            return blanks, cells
    return form, row


def _width(row: list[str] | Fault) -> int:
    return 0 if isinstance(row, Fault) else len(row)


def without_header(
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
