"""Cells of a table: which are missing, and what a text or a number is, whatever an object holds.

A cell is a text, a number, None, or any other object of a frame. Missing is an empty one, what is
declared to mean that or usually does (`USUAL_MARKS`), what pandas has for it, and what cannot be
written as UTF-8. No cell raises. Texts are normalised to Unicode's composed form (NFC).

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from pasearch.data.numbers import PLAIN, NumberForm
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError

ColumnCells = np.ndarray | TextColumn
TableCells = np.ndarray | TextTable
Made = TypeVar("Made")

MISSING = frozenset({"", "?"})
"""What an absent cell is written as, whatever else is declared."""

USUAL_MARKS = frozenset(
    {"NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "Null", "null", "NaT"}
)
"""What an absent cell is written as beside those, unless it is declared to be a category."""

MOST_MARKS = 100_000
"""The most texts that may be declared to mean an absent cell."""

ABSENT = ("NAType", "NaTType")
"""The types of pandas's own absent cells, by name: pandas need not be installed."""

TRUTH = {"False": 0.0, "FALSE": 0.0, "false": 0.0, "True": 1.0, "TRUE": 1.0, "true": 1.0}
"""The numbers that truth values are in a column that is declared as a number."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the cells of a column are read: public, as it is declared.

    Args:
        marks: Texts that mean an absent cell. A number that equals one of them is absent too.
        form: How numbers are written.
        truth: Whether truth values are the numbers 0 and 1.
    """

    marks: frozenset[str] = MISSING
    form: NumberForm = PLAIN
    truth: bool = False

    def number(self, cell: object) -> float:
        """Return the finite number that a cell holds, or NaN; a mark that is a number is one."""
        # What is no text is a number as Python has it, however texts are written.
        form = self.form if issubclass(type(cell), str | bytes) else PLAIN
        text = text_of(cell, self.marks)
        number = form.number(text)
        return TRUTH.get(text or "", number) if self.truth and math.isnan(number) else number

    @property
    def absent_numbers(self) -> list[float]:
        """The marks that are numbers, exactly and rounded to float32, as a file may hold them."""
        return _numbers_among(self.marks, self.form)


USUAL_READING = Reading()
"""Of cells about which nothing is declared."""


@lru_cache(maxsize=1024)
def _numbers_among(marks: frozenset[str], form: NumberForm) -> list[float]:
    exact = np.array([each.number(mark) for mark in marks for each in {PLAIN, form}])
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    found = np.concatenate([exact, rounded])
    return sorted(set(found[np.isfinite(found)].tolist()))


def checked_marks(marks: object) -> tuple[str, ...]:
    """Return what an absent cell is written as, texts without space around them, each once.

    Args:
        marks: Texts or numbers, as declared.

    Raises:
        UsageError: Anything else.
    """
    if not isinstance(marks, Sequence) or isinstance(marks, str):
        raise UsageError(f'missing is {marks!r}: expected a list, such as ["-", "unknown"].')
    found: dict[str, None] = {}
    for each in marks:
        number = isinstance(each, Real) and not isinstance(each, bool)
        if not (number or isinstance(each, str)) or len(found) >= MOST_MARKS:
            raise UsageError(
                f"missing holds {each!r}: expected texts or numbers, at most {MOST_MARKS:,}."
            )
        found[text_of(each, frozenset()) or ""] = None
    return tuple(found)


def each_cell(function: Callable[[Any], Made], cells: ColumnCells) -> list[Made]:
    """Return what a function makes of each cell; of equal cells it may be called for one."""
    if isinstance(cells, TextColumn):
        return cells.apply(function).tolist()
    return [function(cell) for cell in np.asarray(cells).tolist()]


def each_whole(function: Callable[[Any], int], cells: ColumnCells) -> np.ndarray:
    """Return the whole number that a function makes of each cell, int64; as of `each_cell`."""
    if isinstance(cells, TextColumn):
        return cells.apply(function, np.int64)
    return np.array(each_cell(function, cells), np.int64)


def present(cells: TableCells) -> np.ndarray:
    """Return which rows are no null records, bool, (rows,): those hold None everywhere."""
    if isinstance(cells, TextTable):
        return cells.present()
    return np.array([any(c is not None for c in row) for row in cells.tolist()], bool)


def as_text(cells: ColumnCells, reading: Reading = USUAL_READING) -> list[str | None]:
    """Return each cell as text without space around it; None where it is missing."""
    return each_cell(lambda cell: text_of(cell, reading.marks), cells)


def count_texts(cells: ColumnCells, reading: Reading = USUAL_READING) -> Counter[str]:
    """Return how often each text occurs; what is missing is not counted."""
    if not isinstance(cells, TextColumn):
        return Counter(text for text in as_text(cells, reading) if text is not None)
    counts: Counter[str] = Counter()
    for cell, times in cells.counts():
        if (text := text_of(cell, reading.marks)) is not None:
            counts[text] += times
    return counts


def as_numbers(cells: ColumnCells, reading: Reading = USUAL_READING) -> np.ndarray:
    """Return each cell as a number, float64, (cells,); NaN where it is no finite one."""
    absent = reading.absent_numbers
    if isinstance(cells, TextColumn):
        numbers = cells.numbers(reading.number, plain=reading.form.plain)
    else:
        cells = np.asarray(cells)
        with np.errstate(all="ignore"):
            if cells.dtype.kind in "iufb":
                numbers = cells.astype(np.float64)
            else:
                numbers = np.array([reading.number(cell) for cell in cells.tolist()], np.float64)
            numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    return np.where(np.isin(numbers, absent), np.nan, numbers) if absent else numbers


def text_of(cell: object, marks: frozenset[str] = MISSING) -> str | None:
    """Return a cell as text without space around it; None where it is missing.

    Args:
        cell: Any object.
        marks: What means that it is missing.

    Missing is also one that cannot be written as UTF-8: bytes of another encoding, half a
    surrogate pair, a whole number of thousands of digits, an object that raises when it is to be a
    text.
    """
    if cell is None or type(cell).__name__ in ABSENT:
        return None
    try:
        # Of a subclass, `strip` makes a plain text, whose methods are known.
        text = str.strip(cell if isinstance(cell, str) else _spelled(cell))
        if not text.isascii():
            text.encode()
            text = composed(text)
    except Exception:  # noqa: BLE001 - whatever a cell raises would tell of it
        return None
    return None if text in marks else text


def composed(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): an accented letter is one character."""
    return unicodedata.normalize("NFC", text)


def _spelled(cell: object) -> str:
    if isinstance(cell, bytes):
        return cell.decode()
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        # A class 2 that pandas turned into 2.0 beside an absent cell is the class 2.
        return str(int(cell) if cell.is_integer() else cell)
    return str(cell)


def number_of(text: str | None) -> float:
    """Return a finite number, or NaN."""
    return PLAIN.number(text)
