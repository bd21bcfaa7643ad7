"""All contingency tables of a CSV file in one pass: time linear in its rows, memory flat.

The package counts records that are in memory; this counts as many as a disk holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.column import Column
from pasearch.data.csv_file import open_csv
from pasearch.data.table_format import TableFormat
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features.contingency import (
    JointCounts,
    _attributes_of_column,
    count_tables,
    make_attributes,
)

CHUNK = 16_384
"""How many rows of a file are counted at a time."""

PART = 1024
"""How many rows of a file are texts at a time: few enough for a processor's cache."""

MOST_TEXTS = 2**14
"""The most different texts of a column whose codes are remembered: 2 MB a column."""


def count_csv(
    path: str | Path, schema: TableSchema, *, rows: int = CHUNK, keep: np.ndarray | None = None
) -> JointCounts:
    """Return all tables of a CSV file, read once: time linear in its rows, memory flat.

    Guarantee: the same as `count` of what `read_table` and the schema make of the file; a row that
    cannot be told apart, or whose class is unknown, is a null record in its slot.

    Args:
        path: The file, with a header; columns that the schema does not have are not read.
        schema: Complete.
        rows: How many are counted at a time, in parts of `PART`.
        keep: (n,) False leaves a row out, as if it were null: public, such as one partition's rows
            (a schema's `official_test` leaves nothing out by itself). None counts all.

    Raises:
        UsageError: The file's form is bad or does not fit the schema, or is not as long as `keep`.

    Cost: nothing by itself: the counts are as private as the records. Charge their release first.
    """
    size, attributes = check_positive_integer("rows", rows), make_attributes(schema)
    mask, found = None if keep is None else np.asarray(keep, bool), None
    with open_csv(Path(path), TableFormat.of(None, quotes=schema.quotes)) as file:
        schema.for_header(file.header, where=str(path))
        parts = _codes_of(file.header, file.rows(), schema, min(size, PART))
        while block := list(islice(parts, -(-size // PART))):
            codes, start = np.concatenate(block), 0 if found is None else found.slots
            if mask is not None:
                kept = mask[start : start + len(codes)]
                if len(kept) != len(codes):
                    raise _refused_keep(mask, path)
                codes[~kept] = -1
            joint = count_tables(codes, attributes)
            found = joint if found is None else found + joint
    if found is None:
        raise UsageError(f"{path} has no row: expected at least one record.")
    if mask is not None and len(mask) != found.slots:
        raise _refused_keep(mask, path)
    return found


def _refused_keep(keep: np.ndarray, path: str | Path) -> UsageError:
    return UsageError(f"{path}: keep has {len(keep):,} entries: expected one for each row.")


def _codes_of(
    header: Sequence[str], lines: Iterator[list[str] | None], schema: TableSchema, part: int
) -> Iterator[np.ndarray]:
    """Yield the codes of so many rows at a time, (rows, m) int16."""
    coders = [_Coder.of(each) for each in schema.columns if each.kind != "ignore"]
    coders.append(_Coder.of_target(schema))
    places = [header.index(coder.name) for coder in coders]
    null = (None,) * len(header)
    while rows := list(islice(lines, part)):
        cells = list(zip(*(null if row is None else row for row in rows), strict=True))
        codes = np.hstack([each.codes(cells[at]) for each, at in zip(coders, places, strict=True)])
        codes[[row is None for row in rows]] = -1
        yield codes


class _Coder:
    """From a column's cells to their codes, by the schema's own encoding of each different text.

    Args:
        name: Of the column.
        encode: From cells, (k,), to codes, (k, attributes).
    """

    __slots__ = ("_encode", "_places", "_table", "name")

    def __init__(self, name: str, encode: Callable[[np.ndarray], np.ndarray]):
        self.name, self._encode = name, encode
        self._places: dict[str | None, int] = {}
        self._table = encode(np.empty(0, object)).astype(np.int16)

    @classmethod
    def of(cls, column: Column) -> _Coder:
        """Return the coder of a column of features."""
        items = _attributes_of_column(column)

        def encode(cells: np.ndarray) -> np.ndarray:
            block = np.zeros((len(cells), column.width), np.float32)
            column.encode(cells, out=block)
            if column.kind != "text":
                return items[0].codes(block)[:, None]
            return np.stack([each.codes(block[:, [i]]) for i, each in enumerate(items)], axis=1)

        return cls(column.name, encode)

    @classmethod
    def of_target(cls, schema: TableSchema) -> _Coder:
        """Return the coder of the target: -1 where a record is null for it."""
        target = make_attributes(schema).items[-1]

        def encode(cells: np.ndarray) -> np.ndarray:
            y, known = schema.encode_labels(cells)
            return np.where(known, target.codes(y[:, None]), -1)[:, None]

        return cls(schema.target.name, encode)

    def codes(self, cells: Sequence[str | None]) -> np.ndarray:
        """Return the codes of cells, (rows, attributes) int16."""
        found = list(map(self._places.get, cells))
        if None in found:
            self._learn(cells)
            found = list(map(self._places.get, cells))
        return self._table[np.array(found, np.intp)]

    def _learn(self, cells: Sequence[str | None]) -> None:
        new = list(set(cells).difference(self._places))
        if len(self._places) + len(new) > MOST_TEXTS:
            self._places, self._table, new = {}, self._table[:0], list(set(cells))
        array = np.empty(len(new), object)
        array[:] = new
        self._places |= {cell: len(self._places) + i for i, cell in enumerate(new)}
        self._table = np.concatenate([self._table, self._encode(array).astype(np.int16)])
