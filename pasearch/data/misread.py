"""What a trained model does not understand of new records, in words for whoever has them.

A cell that is missing, or that cannot be read, is encoded as missing; a number beyond its bounds as
the bound. No value stops a prediction, so somebody has to say it. Of a row that cannot be told
apart into cells nothing is predicted. Rows are numbered as `pasearch check` does it.
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

SHOWN = 5
"""How many rows a line names."""


def misread(
    schema: TableSchema, cells: TableCells, used: Collection[str] | None = None, above: int = 0
) -> list[str]:
    """Return a line for all records, and one a column and reason; none where all was understood.

    Args:
        schema: What the model was trained under.
        cells: New records, (rows, columns), as of `TableSchema.encode`.
        used: The columns that the model looks at; None: all.
        above: How many rows the file has above its records: 1 of one with a header.
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
    """Return which records could be read, bool, (rows,): rows of a table, or images."""
    if isinstance(cells, TextTable):
        return cells.present()
    if isinstance(cells, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(cells).reshape(len(cells), -1)
        return np.array([not row.all() for row in masked], bool)
    return np.ones(len(cells), bool)


def _reasons(column: Column, cells: Any) -> Iterator[tuple[np.ndarray, str]]:
    """Yield which cells are not understood, bool, (rows,), and why."""
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
    """Name the first rows: the first record is 1, or as many more as stand above it."""
    places = np.flatnonzero(which) + 1 + above
    more = f" and {len(places) - SHOWN:,} more" if len(places) > SHOWN else ""
    word = "row" if len(places) == 1 else "rows"
    return f"{word} {', '.join(f'{place:,}' for place in places[:SHOWN])}{more}"
