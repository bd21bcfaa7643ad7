"""The rows of a CSV file. A row is a line and is read by itself, so no row changes another.

| the form of a file, public | is |
|---|---|
| its header | the first line |
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

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import BinaryIO

BLOCK = 2**16
"""How many bytes are read at a time: few enough for a processor's cache."""

LONGEST_HEADER = 2**24
"""The most bytes of a header."""

STAND_INS = {"\r": "\udc0d", "\n": "\udc0a"}
"""What stands for a character that `csv` would end a row at: no text in UTF-8 has these."""


class HeaderTooLongError(Exception):
    """The first line of a file is too long for a header."""


class LineEndError(Exception):
    """The first line of a file has a carriage return that is not part of its end."""


class Fault(Enum):
    """Why a line is a null record, in the words of the curator's check."""

    ENCODING = "not UTF-8, so a null record: save the file as CSV UTF-8"
    QUOTES = (
        "a quotation mark is not closed at its cell's end, so a null record: a row is one line. "
        "Replace line breaks inside cells by spaces; if quotation marks are ordinary characters "
        "here, say `quotes=False`"
    )
    WIDTH = "not as many values as the header has columns: a null record"
    EMPTY = "an empty line: a null record"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineForm:
    """What is public about a file's lines.

    Args:
        quotes: Whether a quotation mark around a cell is none of its characters.
    """

    quotes: bool = True

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
        plain = text
        for character, other in STAND_INS.items():
            plain = plain.replace(character, other)
        try:
            (row,) = self._reader([plain])
        except csv.Error:
            return Fault.QUOTES
        if not row:
            return Fault.EMPTY
        return row if plain == text else [_restored(cell) for cell in row]

    def rows(self, file: BinaryIO) -> Iterator[list[str] | Fault]:
        """Go through the rows of an open file, from where it stands.

        Guarantee: each is what `row` makes of its line alone.
        """
        for block in self._blocks(file):
            found = self._rows_at_once(block)
            yield from map(self.row, self.lines(block)) if found is None else found

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield blocks of whole lines; only the last line may have no end."""
        pieces: list[bytes] = []
        while part := file.read(BLOCK):
            if cut := part.rfind(b"\n") + 1:
                yield b"".join((*pieces, part[:cut]))
                pieces = []
            pieces.append(part[cut:])
        if last := b"".join(pieces):
            yield last

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
        try:
            rows = list(self._reader(lines))
        except csv.Error:
            return None
        # A row takes a line or more: if there are as many, each has taken its own.
        return rows if len(rows) == len(lines) and all(rows) else None

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, strict=True, quoting=quoting)


def _restored(cell: str) -> str:
    for character, other in STAND_INS.items():
        cell = cell.replace(other, character)
    return cell


def header_of(file: BinaryIO, *, quotes: bool) -> tuple[LineForm, list[str] | Fault]:
    """Return the form of a file's lines and the cells of the first; the file stands behind it.

    Args:
        file: At its start; a byte order mark there is left out.
        quotes: As of `LineForm`.

    Guarantee: nothing behind the first line feed is looked at.

    Raises:
        LineEndError: A carriage return in the first line that is not right before its line feed.
        HeaderTooLongError: It has more than `LONGEST_HEADER` bytes.
    """
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    first = file.readline(LONGEST_HEADER)
    line = first.removesuffix(b"\n")
    if line != first:
        line = line.removesuffix(b"\r")
    if b"\r" in line:
        raise LineEndError
    if len(first) == LONGEST_HEADER:
        raise HeaderTooLongError
    form = LineForm(quotes=quotes)
    return form, form.row(line)
