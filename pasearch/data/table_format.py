"""Public format of a table's file (column names, separator, quotation marks), and its schema.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pasearch.data.cells import normalize_unicode
from pasearch.data.lines import parse_separator
from pasearch.data.schema_file import describe_missing_columns
from pasearch.data.tables import TableSchema, make_undeclared_schema
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError
from pasearch.files import read_bytes

MAX_COLUMNS = 20_000
"""Maximum number of columns of a file."""

MIN_COLUMNS = 2
"""Minimum number of columns of a table for training: a feature and the target."""

MAX_NAMES_BYTES = 2**24
"""Maximum size, in bytes, of a file of column names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """Declared format of a table's file.

    Args:
        quotes: Whether quotation marks enclose cells; False: they are ordinary characters.
        columns: Names of the columns, in order, of a file without a header; None: it has a header.
        separator: Separator of cells; None: detected in the header, or a comma without a header.
        names: Names of declared columns: a first line that contains all of them is a header.
        min_columns: Minimum number of columns, 1 or more.
    """

    quotes: bool = True
    columns: tuple[str, ...] | None = None
    separator: str | None = None
    names: frozenset[str] = frozenset()
    min_columns: int = MIN_COLUMNS

    @classmethod
    def of(
        cls,
        schema: TableSchema | None,
        *,
        quotes: bool = True,
        columns: str | Path | Sequence[str] | None = None,
        separator: str | None = None,
        target: str | None = None,
    ) -> TableFormat:
        """Return the format from the user's options, or else from the schema.

        Args:
            schema: Declared schema, if any.
            quotes: Whether quotation marks enclose cells.
            columns: Names of the columns, in any form that `read_column_names` accepts.
            separator: Separator of cells, in any form that `parse_separator` accepts.
            target: Name of the declared column to predict, if any.

        Raises:
            UsageError: Invalid column names, or an invalid separator.
        """
        names, separator = read_column_names(columns), parse_separator(separator)
        target_names = (
            frozenset[str]() if target is None else frozenset({normalize_unicode(target)})
        )
        if schema is None:
            return cls(quotes=quotes, columns=names, separator=separator, names=target_names)
        return cls(
            quotes=quotes and schema.quotes,
            columns=names or schema.order or None,
            separator=separator or schema.separator,
            names=target_names | {column.name for column in (*schema.columns, schema.target)},
        )


def read_column_names(columns: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the user's names of the columns of a file without a header; None if undeclared.

    Args:
        columns: Names: a sequence, a string with commas between, or the path of a .txt file with
            one name per line. None: undeclared.

    Raises:
        UsageError: Fewer than two names, or one that is empty or repeated.
    """
    if columns is None:
        return None
    where = "`columns=`"
    if isinstance(columns, Path) or (isinstance(columns, str) and columns.endswith(".txt")):
        where = f"`columns=` ({columns})"
        content = read_bytes(columns, "the column names, one per line", most=MAX_NAMES_BYTES)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError(f"{columns} is not UTF-8: save the names as UTF-8.") from None
        names: list[object] = [line for line in text.splitlines() if line.strip()]
    else:
        names = list(columns.split(",") if isinstance(columns, str) else columns)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}: expected the column names, strings, in order.")
    found = tuple(normalize_unicode(str(name).strip()) for name in names)
    check_column_names(found, where)
    return found


def check_column_names(
    names: Sequence[str], where: str, hint: str = "", *, min_columns: int = MIN_COLUMNS
) -> None:
    """Raise UsageError if column names are not distinct, or empty, or too few or many.

    Args:
        names: Names of all columns.
        where: Beginning of an error message.
        hint: End of an error message.
        min_columns: Minimum number of names, 1 or more.

    Raises:
        UsageError: Too few or too many names, an empty one, or two equal ones.
    """
    if len(names) < min_columns:
        raise UsageError(f"{where}: expected two columns or more, features and a target.{hint}")
    if len(names) > MAX_COLUMNS:
        raise UsageError(
            f"{where} has {len(names):,} columns: expected at most {MAX_COLUMNS:,}. Keep relevant "
            "columns only, or store images and signals in a .npz file."
        )
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if not name:
            raise UsageError(
                f"{where}: column {place + 1} has no name: name the column or remove it "
                f"(pandas: to_csv(path, index=False)).{hint}"
            )
        if first.setdefault(name, place) < place:
            raise UsageError(
                f"{where}: columns {first[name] + 1} and {place + 1} have the same name: "
                f"rename one.{hint}"
            )


def fit_schema_to_file(
    names: Sequence[str], schema: TableSchema | None, *, path: Path, name: str, target: str | None
) -> TableSchema:
    """Return the schema of a file, in the order of its columns.

    Args:
        names: Names of the file's columns.
        schema: Declared schema; None: nothing is declared.
        path: Path of the file, for messages.
        name: Name of the data set.
        target: Name of the column to predict; None: that of the schema, or the last one.

    Raises:
        UsageError: A declared column that is not in the file.
    """
    declared = make_undeclared_schema(names, names[-1]) if schema is None else schema
    return replace(declared.for_header(names, where=str(path), target=target), name=name)


def split_target(
    schema: TableSchema, names: Sequence[str], columns: list[TextColumn], path: Path
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Return the schema, the cells of the features, and the cells of the target.

    Args:
        schema: Schema of the file.
        names: Names of the file's columns.
        columns: Cells of each column, in the same order.
        path: Path of the file, for messages.

    Raises:
        UsageError: The official test set of the schema is not smaller than the table.
    """
    cells = dict(zip(names, columns, strict=True))
    labels = cells.pop(schema.target.name)
    check_official_test(schema, len(labels), path)
    return schema, TextTable(cells=tuple(cells.values())), labels


def check_official_test(schema: TableSchema, rows: int, path: Path) -> None:
    """Raise UsageError if the official test set of the schema is not smaller than the table."""
    if not schema.official_test < rows:
        raise UsageError(
            f"{path}: the official test set of the schema has {schema.official_test:,} rows, but "
            f"the file has {rows:,} rows in total: correct official_test or remove it."
        )


def select_columns(schema: TableSchema, columns: dict[str, TextColumn], path: Path) -> TextTable:
    """Return the cells of new records, with the columns in the schema's order.

    Args:
        schema: Schema of the data that a model was trained on.
        columns: Columns of the file, in any order; others are ignored.
        path: Path of the file, for messages.

    Raises:
        UsageError: A missing column.
    """
    needed = [column.name for column in schema.columns if column.kind != "ignore"]
    if gone := [name for name in needed if name not in columns]:
        others = [name for name in columns if name not in needed]
        raise UsageError(describe_missing_columns(str(path), gone, others))
    # Ignored columns may be absent and are not read.
    other = columns[needed[0]]
    return TextTable(cells=tuple(columns.get(each.name, other) for each in schema.columns))
