"""CSV files: a header, and a row a line. The form may raise; what a row holds never does.

A line that cannot be told apart into the header's columns is the null record in its slot. Only the
form of a file (header, number of columns and of rows) may raise; `data.lines` says what of a file
is its form.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.cells import number_of
from pasearch.data.lines import LONGEST_HEADER, Fault, HeaderTooLongError, LineEndError, header_of
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, Declared, Source, table_dataset
from pasearch.data.tables import AnySchema, TableSchema, undeclared
from pasearch.data.text_columns import TextColumn, TextTable, build_columns
from pasearch.errors import UsageError

LONGEST_FIELD = 2**31 - 1
"""The most characters of a cell: csv's own limit of 131,072 would refuse a long text."""

MOST_COLUMNS = 20_000
"""The most columns of a file."""


@SOURCES.register
class CsvFile(Source):
    """A .csv file with a header."""

    name = "csv"
    kind = "a table"
    expected = "the path of a .csv file with a header"
    suffixes = (".csv",)
    uses = ("target", "schema", "quotes", "regression")

    def load(self, data: str, declared: Declared) -> Dataset:
        """Return the data set: every row but the header is a slot."""
        schema = None if declared.schema is None else TableSchema.from_toml(declared.schema)
        table = read_table(data, declared.target, schema, quotes=declared.quotes)
        return table_dataset(*table, declared)

    def new_records(self, data: str, schema: AnySchema) -> np.ndarray:
        """Return the cells, (rows, columns); the columns may come in any order, with others."""
        if not isinstance(schema, TableSchema):
            raise UsageError(f"{data} is a table, and the model was trained on arrays.")
        with opened(Path(data), quotes=schema.quotes) as (header, rows):
            places: dict[str, Any] = {name: place for place, name in enumerate(header)}
            needed = [column.name for column in schema.columns if column.kind != "ignore"]
            if gone := [name for name in needed if name not in places]:
                raise UsageError(f"{data} has no column {', '.join(map(repr, gone))}: add it.")
            columns = [places.get(column.name) for column in schema.columns]
            null = [None] * len(header)
            found = [[None if at is None else (row or null)[at] for at in columns] for row in rows]
        return np.array(found, object).reshape(len(found), len(columns))


def read_table(
    path: str | Path,
    target: str | None = None,
    schema: TableSchema | None = None,
    *,
    quotes: bool = True,
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Read a CSV file with a header: UTF-8, separated by commas, a row a line (`data.lines`).

    Guarantee: every row keeps its slot, and is read from its own bytes alone. One that is not
    UTF-8, does not close its quotation marks or does not have the header's number of columns is
    the null record: None in every cell. No cell is changed by how it is kept.

    Args:
        path: The file.
        target: The column to predict; the schema's, or the last one, if None.
        schema: What is declared; nothing if None.
        quotes: False takes quotation marks as ordinary characters, and so does a schema that says
            so.

    Returns:
        The schema in the file's order, the cells, (rows, columns), and the target's cells, (rows,).

    Raises:
        UsageError: The file's form is bad, or does not fit the schema.

    Cost: time and memory linear in the rows, about as many bytes as `data.text_columns` says.
    """
    path, quotes = Path(path), quotes and (schema is None or schema.quotes)
    with opened(path, quotes=quotes) as (header, rows):
        fitted = undeclared(header, header[-1]) if schema is None else schema
        fitted = fitted.for_header(header, where=str(path), target=target)
        fitted = replace(fitted, name=path.stem, quotes=quotes)
        columns = build_columns(rows, width=len(header), most_rows=_most_rows(path))
    labels = columns.pop(header.index(fitted.target.name))
    if not fitted.official_test < len(labels):
        raise UsageError(
            f"{path}: the schema says that the last {fitted.official_test:,} rows are the test "
            f"set, the file has {len(labels):,}: correct official_test, or leave it out."
        )
    return fitted, TextTable(cells=tuple(columns)), labels


Lines = Iterator[list[str] | Fault]
Rows = Iterator[list[str] | None]


@contextmanager
def opened(path: Path, *, quotes: bool = True) -> Iterator[tuple[list[str], Rows]]:
    """Give a CSV file's header and rows, one by one; None is the null record.

    Raises:
        UsageError: No such file, no header in UTF-8, no row, fewer than two columns, or two of one
            name. The message quotes nothing of the file.
    """
    with _parsed(path, quotes) as (header, lines):
        yield header, _slots(lines, len(header), path)


@contextmanager
def _parsed(path: Path, quotes: bool) -> Iterator[tuple[list[str], Lines]]:
    """Give a CSV file's header and what each line is, of whatever width."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{path} {fault}: expected a CSV file with a header.")
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open("rb") as file:
            form, first = header_of(file, quotes=quotes)
            if first is Fault.EMPTY:
                raise UsageError(
                    f"{path} is empty, or its first line is: expected a CSV file with a header."
                )
            if first is Fault.ENCODING:
                raise UsageError(
                    f"{path}: its header is not UTF-8, so the file hardly is: save it as CSV UTF-8."
                )
            header = _check_header(path, None if isinstance(first, Fault) else first)
            yield header, form.rows(file)
    except LineEndError:
        raise UsageError(
            f"{path}: its first line has a carriage return that is not right before a line feed: "
            "lines must end with LF or CR LF. Convert the file, or take the carriage return out of "
            "the header."
        ) from None
    except HeaderTooLongError:
        raise UsageError(
            f"{path}: its first line has more than {LONGEST_HEADER:,} bytes: expected a header, "
            "the names of the columns."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    finally:
        csv.field_size_limit(limit)


def row_faults(path: str | Path, *, quotes: bool = True) -> Iterator[Fault | None]:
    """Go through a CSV file's slots: why each is a null record, None if it is none.

    Only for the curator's check; raises as `opened` does.
    """
    with _parsed(Path(path), quotes) as (header, lines):
        for row in lines:
            if isinstance(row, Fault):
                yield row
            else:
                yield None if len(row) == len(header) else Fault.WIDTH


def _slots(lines: Lines, width: int, path: Path) -> Rows:
    """Yield a row for each slot, None for one that is no row of this width.

    Raises:
        UsageError: There is no slot.
    """
    slots = 0
    for row in lines:
        yield row if not isinstance(row, Fault) and len(row) == width else None
        slots += 1
    if not slots:
        raise UsageError(f"{path} has a header and no row: expected at least one record.")


def _most_rows(path: Path) -> int:
    """Return how many lines a file has, or one more."""
    with path.open("rb") as file:
        parts = iter(lambda: file.read(2**20), b"")
        return 1 + sum(part.count(b"\n") for part in parts)


def _check_header(path: Path, row: list[str] | None) -> list[str]:
    """Return the names of the columns; an error gives places, for the row may be a record."""
    header = [name.strip() for name in row or ()]
    if not len(header) > 1:
        raise UsageError(
            f"{path}: its first line is not a header of two or more columns, separated by commas: "
            "write the names of the columns there."
        )
    if len(header) > MOST_COLUMNS:
        raise UsageError(
            f"{path} has {len(header):,} columns: expected at most {MOST_COLUMNS:,}. Keep those "
            "that could matter; pixels and the like belong into a .npz file."
        )
    numbers = [name for name in header if not math.isnan(number_of(name))]
    if numbers not in ([str(i + start) for i in range(len(numbers))] for start in (0, 1)):
        raise UsageError(
            f"{path}: its first line holds numbers, so it looks like a record: expected a header. "
            "Write the names of the columns into the first line."
        )
    first: dict[str, int] = {}
    for place, name in enumerate(header):
        if not name:
            raise UsageError(
                f"{path}: column {place + 1} has no name: give it one in the header, or leave the "
                "column out (pandas: to_csv(path, index=False))."
            )
        if first.setdefault(name, place) < place:
            raise UsageError(
                f"{path}: columns {first[name] + 1} and {place + 1} have the same name: "
                "rename one in the header."
            )
    return header
