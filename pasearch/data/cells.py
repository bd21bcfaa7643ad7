"""Cells of a table: which are missing, and what a text or a number is, whatever an object holds.

A cell is a text, a number, None, or any other object of a frame. Missing is an empty one, `?`, what
pandas has for it, and what cannot be written as UTF-8. No cell raises.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from pasearch.data.text_columns import TextColumn, TextTable

ColumnCells = np.ndarray | TextColumn
TableCells = np.ndarray | TextTable
Made = TypeVar("Made")

MISSING = frozenset({"", "?"})
"""What an absent cell is written as."""

ABSENT = ("NAType", "NaTType")
"""The types of pandas's own absent cells, by name: pandas need not be installed."""


def each_cell(function: Callable[[Any], Made], cells: ColumnCells) -> list[Made]:
    """Return what a function makes of each cell; of equal cells it may be called for one."""
    if isinstance(cells, TextColumn):
        return cells.map(function)
    return [function(cell) for cell in np.asarray(cells).tolist()]


def each_whole(function: Callable[[Any], int], cells: ColumnCells) -> np.ndarray:
    """Return the whole number that a function makes of each cell, int64; as of `each_cell`."""
    if isinstance(cells, TextColumn):
        return cells.whole(function)
    return np.array(each_cell(function, cells), np.int64)


def present(cells: TableCells) -> np.ndarray:
    """Return which rows are no null records, bool, (rows,): those hold None everywhere."""
    if isinstance(cells, TextTable):
        return cells.present()
    return np.array([any(c is not None for c in row) for row in cells.tolist()], bool)


def as_text(cells: ColumnCells) -> list[str | None]:
    """Return each cell as text without space around it; None where it is missing."""
    return each_cell(text_of, cells)


def count_texts(cells: ColumnCells) -> Counter[str]:
    """Return how often each text occurs; what is missing is not counted."""
    if not isinstance(cells, TextColumn):
        return Counter(text for text in as_text(cells) if text is not None)
    counts: Counter[str] = Counter()
    for cell, times in cells.counts():
        if (text := text_of(cell)) is not None:
            counts[text] += times
    return counts


def as_numbers(cells: ColumnCells) -> np.ndarray:
    """Return each cell as a number, float64, (cells,); NaN where it is no finite one."""
    if isinstance(cells, TextColumn):
        return cells.numbers(lambda cell: number_of(text_of(cell)))
    cells = np.asarray(cells)
    with np.errstate(all="ignore"):
        if cells.dtype.kind in "iufb":
            numbers = cells.astype(np.float64)
        else:
            numbers = np.array([number_of(text) for text in as_text(cells)], np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)


def text_of(cell: object) -> str | None:
    """Return a cell as text without space around it; None where it is missing.

    So is one that cannot be written as UTF-8: bytes of another encoding, half a surrogate pair, a
    whole number of thousands of digits, an object that raises when it is to be a text.
    """
    if cell is None or type(cell).__name__ in ABSENT:
        return None
    try:
        # Of a subclass, `strip` makes a plain text, whose methods are known.
        text = str.strip(cell if isinstance(cell, str) else _spelled(cell))
        if not text.isascii():
            text.encode()
    except Exception:  # noqa: BLE001 - whatever a cell raises would tell of it
        return None
    return None if text in MISSING else text


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
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
