"""Warnings about cells of new records that a trained model does not understand.

A cell that is missing or unparseable is encoded as missing, a number beyond its bounds as the
bound. No value stops a prediction, so these warnings report it. A row that cannot be split into
cells gets no prediction. Rows are numbered as in `pasearch check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from pasearch.data.cells import TableCells, as_numbers
from pasearch.data.column import Column
from pasearch.data.schema import needed
from pasearch.data.tables import TableSchema
from pasearch.data.text_columns import TextTable

# Rows that a line names.
MAX_LISTED_ROWS = 5


def describe_unread_cells(
    schema: TableSchema, cells: TableCells, used: Collection[str] | None = None, above: int = 0
) -> list[str]:
    """Describe the unread cells: a line for all records, then one per column and reason.

    Args:
        schema: The schema that the model was trained under.
        cells: New records, (rows, columns).
        used: Names of the columns that the model uses; None: all.
        above: Number of rows that the file has above its records: 1 if it has a header.
    """
    known = readable(cells)
    concerned, told = np.zeros(len(cells), bool), list[str]()
    for place, column in enumerate(schema.columns):
        if used is not None and column.name not in used:
            continue
        for which, why in _reasons(column, cells[:, place]):
            if (which := which & known).any():
                concerned |= which
                told.append(f"  column {column.name!r}: {why} ({_named(which, above)})")
    lost = [] if known.all() else [
        f"Nothing is predicted for {(~known).sum():,} of {len(cells):,} rows, which cannot be read "
        f"({_named(~known, above)}): they have more or fewer cells than the header, an open "
        "quotation mark, or are not UTF-8. A row ends with its line, within quotation marks too."
    ]  # fmt: skip
    if not told:
        return lost
    return [
        *lost,
        f"{concerned.sum():,} of {len(cells):,} rows have cells that the model did not "
        "understand, and were predicted as well as can be without them:",
        *told,
    ]


def readable(cells: TableCells) -> np.ndarray:
    """Find the records that could be read, bool, (rows,): rows of a table, or images."""
    if isinstance(cells, TextTable):
        return cells.present()
    if isinstance(cells, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(cells).reshape(len(cells), -1)
        return np.array([not row.all() for row in masked], bool)
    return np.ones(len(cells), bool)


def _reasons(column: Column, cells: Any) -> Iterator[tuple[np.ndarray, str]]:
    """Yield the cells that are not understood, bool, (rows,), and the reason."""
    if column.kind == "category":
        codes, known = column.codes(cells), len(column.categories or ())
        yield codes == known, "no known category"
        yield codes > known, "missing"
    elif column.kind in ("number", "date"):
        dated = column.kind == "date"
        values = column.days(cells) if dated else as_numbers(cells, column.reading)
        low, high = column.day_bounds if dated else needed(column.bounds)
        known = np.isfinite(values)
        yield ~known, f"missing, or no {column.kind}"
        ends = (column.lower, column.upper) if dated else (f"{low:g}", f"{high:g}")
        why = f"beyond {ends[0]} to {ends[1]}, taken as the nearest"
        yield known & (np.clip(values, low, high) != values), why


def _named(which: np.ndarray, above: int) -> str:
    """Name the first rows: the first record is 1 plus the rows above it."""
    places = np.flatnonzero(which) + 1 + above
    more = f" and {len(places) - MAX_LISTED_ROWS:,} more" if len(places) > MAX_LISTED_ROWS else ""
    word = "row" if len(places) == 1 else "rows"
    return f"{word} {', '.join(f'{place:,}' for place in places[:MAX_LISTED_ROWS])}{more}"
