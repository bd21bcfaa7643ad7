"""Cells of a table: missing values, strings and numbers, for any object in a cell.

A cell is a string, a number, None, or any other object of a data frame. A cell is missing if it is
empty, equals a declared or default missing mark (`DEFAULT_MISSING_MARKS`), is a missing value of
pandas, or cannot be written as UTF-8. No cell raises an error. Strings are normalised to Unicode's
composed form (NFC).

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
MappedType = TypeVar("MappedType")

MISSING_MARKS = frozenset({"", "?"})
"""Strings that always mean a missing value."""

DEFAULT_MISSING_MARKS = frozenset(
    {"NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "Null", "null", "NaT"}
)
"""Further strings that mean a missing value, unless they are declared as a category."""

MAX_MISSING_MARKS = 100_000
"""Maximum number of strings that may be declared to mean a missing value."""

PANDAS_MISSING_TYPES = ("NAType", "NaTType")
"""Names of the types of pandas's missing values, which are compared because pandas is optional."""

BOOLEAN_NUMBERS = {"False": 0.0, "FALSE": 0.0, "false": 0.0, "True": 1.0, "TRUE": 1.0, "true": 1.0}
"""Numbers for Boolean values in a column that is declared as numeric."""


@dataclass(frozen=True, slots=True)
class CellFormat:
    """Rules that parse the cells of a column: public, from its declaration.

    Args:
        marks: Strings that mean a missing value. A number equal to one of them is missing too.
        form: Number format of the strings.
        accepts_booleans: Whether Boolean values are converted to the numbers 0 and 1.
    """

    marks: frozenset[str] = MISSING_MARKS
    form: NumberForm = PLAIN_NUMBER_FORM
    accepts_booleans: bool = False

    def number(self, cell: object) -> float:
        """Convert a cell to a finite number, or to NaN; numeric missing marks are converted too."""
        # The declared number format applies to strings only.
        form = self.form if issubclass(type(cell), str | bytes) else PLAIN_NUMBER_FORM
        text = convert_to_string(cell, self.marks)
        number = form.number(text)
        return (
            BOOLEAN_NUMBERS.get(text or "", number)
            if self.accepts_booleans and math.isnan(number)
            else number
        )

    @property
    def missing_numbers(self) -> list[float]:
        """Missing marks that are numbers: exact, and rounded to float32."""
        return _find_numeric_marks(self.marks, self.form)


DEFAULT_CELL_FORMAT = CellFormat()
"""Format of cells without a declaration."""


@lru_cache(maxsize=1024)
def _find_numeric_marks(marks: frozenset[str], form: NumberForm) -> list[float]:
    """Return the value of `CellFormat.missing_numbers`, sorted."""
    exact = np.array([each.number(mark) for mark in marks for each in {PLAIN_NUMBER_FORM, form}])
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32).astype(np.float64)
    found = np.concatenate([exact, rounded])
    return sorted(set(found[np.isfinite(found)].tolist()))


def check_missing_marks(marks: object) -> tuple[str, ...]:
    """Return declared missing marks as distinct strings without surrounding space.

    Args:
        marks: Strings or numbers.

    Raises:
        UsageError: The value is not a sequence of at most `MAX_MISSING_MARKS` strings or numbers.
    """
    if not isinstance(marks, Sequence) or isinstance(marks, str):
        raise UsageError(f'missing is {marks!r}: expected a list, such as ["-", "unknown"].')
    found: dict[str, None] = {}
    for each in marks:
        number = isinstance(each, Real) and not isinstance(each, bool)
        if not (number or isinstance(each, str)) or len(found) >= MAX_MISSING_MARKS:
            raise UsageError(
                f"missing holds {each!r}: expected strings or numbers, at most "
                f"{MAX_MISSING_MARKS:,}."
            )
        found[convert_to_string(each, frozenset()) or ""] = None
    return tuple(found)


def map_cells(function: Callable[[Any], MappedType], cells: ColumnCells) -> list[MappedType]:
    """Return a function's value for each cell; it may be called only once for equal cells."""
    if isinstance(cells, TextColumn):
        return cells.apply(function).tolist()
    return [function(cell) for cell in np.asarray(cells).tolist()]


def convert_to_strings(
    cells: ColumnCells, cell_format: CellFormat = DEFAULT_CELL_FORMAT
) -> list[str | None]:
    """Convert cells to strings without surrounding space; None for missing values."""
    return map_cells(lambda cell: convert_to_string(cell, cell_format.marks), cells)


def count_strings(
    cells: ColumnCells, cell_format: CellFormat = DEFAULT_CELL_FORMAT
) -> Counter[str]:
    """Return the number of cells with each string, without missing values."""
    if not isinstance(cells, TextColumn):
        return Counter(text for text in convert_to_strings(cells, cell_format) if text is not None)
    counts: Counter[str] = Counter()
    texts, indices = cells.distinct()
    for cell, times in zip(texts, np.bincount(indices).tolist(), strict=False):
        if times and (text := convert_to_string(cell, cell_format.marks)) is not None:
            counts[text] += times
    return counts


def convert_to_numbers(
    cells: ColumnCells, cell_format: CellFormat = DEFAULT_CELL_FORMAT
) -> np.ndarray:
    """Convert cells to numbers, float64, (cells,); NaN if a cell is not a finite number."""
    absent = cell_format.missing_numbers
    if isinstance(cells, TextColumn):
        numbers = cells.convert_to_floats(
            cell_format.number, plain=cell_format.form.has_decimal_point
        )
    else:
        cells = np.asarray(cells)
        with np.errstate(all="ignore"):
            if cells.dtype.kind in "iufb":
                numbers = cells.astype(np.float64)
            else:
                numbers = np.array(
                    [cell_format.number(cell) for cell in cells.tolist()], np.float64
                )
            numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    return np.where(np.isin(numbers, absent), np.nan, numbers) if absent else numbers


def convert_to_string(cell: object, marks: frozenset[str] = MISSING_MARKS) -> str | None:
    """Convert a cell to a string without surrounding space; None if it is missing.

    A cell is also missing if it cannot be written as UTF-8: bytes of another encoding, an unpaired
    surrogate, an integer of thousands of digits, or an object that raises when it is converted.

    Args:
        cell: Any object.
        marks: Strings that mean a missing value.
    """
    if cell is None or type(cell).__name__ in PANDAS_MISSING_TYPES:
        return None
    try:
        # `str.strip` converts an instance of a subclass, whose methods could raise, to `str`.
        text = str.strip(cell if isinstance(cell, str) else _convert_to_plain_string(cell))
        if not text.isascii():
            text.encode()
            text = normalize_unicode(text)
    except Exception:  # noqa: BLE001 - an exception would reveal the cell
        return None
    return None if text in marks else text


def normalize_unicode(text: str) -> str:
    """Convert a string to Unicode's composed form (NFC): an accented letter is one character."""
    return unicodedata.normalize("NFC", text)


def _convert_to_plain_string(cell: object) -> str:
    """Convert a cell that is not a string to a string; integers and equal floats become alike."""
    if isinstance(cell, bytes):
        return cell.decode()
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        # pandas turns a class 2 into 2.0 if the column has a missing value.
        return str(int(cell) if cell.is_integer() else cell)
    return str(cell)
