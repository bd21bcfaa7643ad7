"""Cells of a table: which are missing, and what a text or a number is, whatever an object holds.

A cell is a text, a number, None, or any other object of a frame. Missing is an empty one, what is
declared to mean that or usually does (`DEFAULT_MISSING_MARKS`), what pandas has for it, and what
cannot be written as UTF-8. No cell raises. Texts are normalised to Unicode's composed form (NFC).

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

from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError

ColumnCells = np.ndarray | TextColumn
TableCells = np.ndarray | TextTable
MappedType = TypeVar("Made")

MISSING_MARKS = frozenset({"", "?"})
"""What an absent cell is written as, whatever else is declared."""

DEFAULT_MISSING_MARKS = frozenset(
    {"NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "Null", "null", "NaT"}
)
"""What an absent cell is written as beside those, unless it is declared to be a category."""

MAX_MISSING_MARKS = 100_000
"""The most texts that may be declared to mean an absent cell."""

PANDAS_MISSING_TYPES = ("NAType", "NaTType")
"""The types of pandas's own absent cells, by name: pandas need not be installed."""

BOOLEAN_NUMBERS = {"False": 0.0, "FALSE": 0.0, "false": 0.0, "True": 1.0, "TRUE": 1.0, "true": 1.0}
"""The numbers that truth values are in a column that is declared as a number."""


@dataclass(frozen=True, slots=True)
class CellFormat:
    """How the cells of a column are read: public, as it is declared.

    Args:
        marks: Texts that mean an absent cell. A number that equals one of them is absent too.
        form: How numbers are written.
        truth: Whether truth values are the numbers 0 and 1.
    """

    marks: frozenset[str] = MISSING_MARKS
    form: NumberForm = PLAIN_NUMBER_FORM
    truth: bool = False

    def number(self, cell: object) -> float:
        """Return the finite number that a cell holds, or NaN; a mark that is a number is one."""
        # What is no text is a number as Python has it, however texts are written.
        form = self.form if issubclass(type(cell), str | bytes) else PLAIN_NUMBER_FORM
        text = convert_to_string(cell, self.marks)
        number = form.number(text)
        return (
            BOOLEAN_NUMBERS.get(text or "", number) if self.truth and math.isnan(number) else number
        )

    @property
    def missing_numbers(self) -> list[float]:
        """The marks that are numbers, exactly and rounded to float32, as a file may hold them."""
        return _find_numeric_marks(self.marks, self.form)


DEFAULT_CELL_FORMAT = CellFormat()
"""Of cells about which nothing is declared."""


@lru_cache(maxsize=1024)
def _find_numeric_marks(marks: frozenset[str], form: NumberForm) -> list[float]:
    exact = np.array([each.number(mark) for mark in marks for each in {PLAIN_NUMBER_FORM, form}])
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    found = np.concatenate([exact, rounded])
    return sorted(set(found[np.isfinite(found)].tolist()))


def check_missing_marks(marks: object) -> tuple[str, ...]:
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
        if not (number or isinstance(each, str)) or len(found) >= MAX_MISSING_MARKS:
            raise UsageError(
                f"missing holds {each!r}: expected texts or numbers, at most {MAX_MISSING_MARKS:,}."
            )
        found[convert_to_string(each, frozenset()) or ""] = None
    return tuple(found)


def map_cells(function: Callable[[Any], MappedType], cells: ColumnCells) -> list[MappedType]:
    """Return what a function makes of each cell; of equal cells it may be called for one."""
    if isinstance(cells, TextColumn):
        return cells.apply(function).tolist()
    return [function(cell) for cell in np.asarray(cells).tolist()]


def map_cells_to_integers(function: Callable[[Any], int], cells: ColumnCells) -> np.ndarray:
    """Return the whole number that a function makes of each cell, int64; as of `map_cells`."""
    if isinstance(cells, TextColumn):
        return cells.apply(function, np.int64)
    return np.array(map_cells(function, cells), np.int64)


def find_present_rows(cells: TableCells) -> np.ndarray:
    """Return which rows are no null records, bool, (rows,): those hold None everywhere."""
    if isinstance(cells, TextTable):
        return cells.present()
    return np.array([any(c is not None for c in row) for row in cells.tolist()], bool)


def convert_to_strings(
    cells: ColumnCells, reading: CellFormat = DEFAULT_CELL_FORMAT
) -> list[str | None]:
    """Return each cell as text without space around it; None where it is missing."""
    return map_cells(lambda cell: convert_to_string(cell, reading.marks), cells)


def count_strings(cells: ColumnCells, reading: CellFormat = DEFAULT_CELL_FORMAT) -> Counter[str]:
    """Return how often each text occurs; what is missing is not counted."""
    if not isinstance(cells, TextColumn):
        return Counter(text for text in convert_to_strings(cells, reading) if text is not None)
    counts: Counter[str] = Counter()
    for cell, times in cells.counts():
        if (text := convert_to_string(cell, reading.marks)) is not None:
            counts[text] += times
    return counts


def convert_to_numbers(cells: ColumnCells, reading: CellFormat = DEFAULT_CELL_FORMAT) -> np.ndarray:
    """Return each cell as a number, float64, (cells,); NaN where it is no finite one."""
    absent = reading.missing_numbers
    if isinstance(cells, TextColumn):
        numbers = cells.numbers(reading.number, plain=reading.form.has_decimal_point)
    else:
        cells = np.asarray(cells)
        with np.errstate(all="ignore"):
            if cells.dtype.kind in "iufb":
                numbers = cells.astype(np.float64)
            else:
                numbers = np.array([reading.number(cell) for cell in cells.tolist()], np.float64)
            numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    return np.where(np.isin(numbers, absent), np.nan, numbers) if absent else numbers


def convert_to_string(cell: object, marks: frozenset[str] = MISSING_MARKS) -> str | None:
    """Return a cell as text without space around it; None where it is missing.

    Args:
        cell: Any object.
        marks: What means that it is missing.

    Missing is also one that cannot be written as UTF-8: bytes of another encoding, half a
    surrogate pair, a whole number of thousands of digits, an object that raises when it is to be a
    text.
    """
    if cell is None or type(cell).__name__ in PANDAS_MISSING_TYPES:
        return None
    try:
        # Of a subclass, `strip` makes a plain text, whose methods are known.
        text = str.strip(cell if isinstance(cell, str) else _spell_cell(cell))
        if not text.isascii():
            text.encode()
            text = normalize_unicode(text)
    except Exception:  # noqa: BLE001 - whatever a cell raises would tell of it
        return None
    return None if text in marks else text


def normalize_unicode(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): an accented letter is one character."""
    return unicodedata.normalize("NFC", text)


def _spell_cell(cell: object) -> str:
    if isinstance(cell, bytes):
        return cell.decode()
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        # A class 2 that pandas turned into 2.0 beside an absent cell is the class 2.
        return str(int(cell) if cell.is_integer() else cell)
    return str(cell)


def parse_number(text: str | None) -> float:
    """Return a finite number, or NaN."""
    return PLAIN_NUMBER_FORM.number(text)
