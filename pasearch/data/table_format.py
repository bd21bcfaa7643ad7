"""What is public about a table's file: names of columns, separator, quotation marks.

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
"""The most columns of a file."""

MIN_COLUMNS = 2
"""The fewest columns of a table to train on: a feature and the target."""

MAX_NAMES_BYTES = 2**24
"""The most bytes of a file of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """What is said of a table's file.

    Args:
        quotes: Whether a quotation mark around a cell is none of its characters.
        columns: Names of the columns, in order, of a file without a header; None: it has one.
        separator: What stands between two cells; None: the header tells, and a comma does where
            there is none.
        names: Declared columns: a first line that holds all of them is a header, whatever else is
            in it.
        min_columns: The fewest columns that it may have, 1 or more.
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
        """Return what the user says of a file, or else the schema.

        Args:
            schema: What is declared, if anything.
            quotes: False takes quotation marks as ordinary characters.
            columns: As of `read_column_names`.
            separator: As of `parse_separator`.
            target: The column to predict, if that is declared.

        Raises:
            UsageError: No names of columns, or no separator.
        """
        names, separator = read_column_names(columns), parse_separator(separator)
        aim = frozenset[str]() if target is None else frozenset({normalize_unicode(target)})
        if schema is None:
            return cls(quotes=quotes, columns=names, separator=separator, names=aim)
        return cls(
            quotes=quotes and schema.quotes,
            columns=names or schema.order or None,
            separator=separator or schema.separator,
            names=aim | {column.name for column in (*schema.columns, schema.target)},
        )


def read_column_names(columns: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of the columns of a file without a header.

    Args:
        columns: The names; as one text with commas between them; or the path of a .txt file with
            one on a line. None: nothing is said.

    Raises:
        UsageError: Fewer than two names, or one that is empty or there twice.
    """
    if columns is None:
        return None
    where = "`columns=`"
    if isinstance(columns, Path) or (isinstance(columns, str) and columns.endswith(".txt")):
        where = f"`columns=` ({columns})"
        content = read_bytes(
            columns, "the names of the columns, one on a line", most=MAX_NAMES_BYTES
        )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError(f"{columns} is not UTF-8: save the names as UTF-8.") from None
        names: list[object] = [line for line in text.splitlines() if line.strip()]
    else:
        names = list(columns.split(",") if isinstance(columns, str) else columns)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}: expected the names of the columns, texts, in order.")
    found = tuple(normalize_unicode(str(name).strip()) for name in names)
    check_column_names(found, where)
    return found


def check_column_names(
    names: Sequence[str], where: str, hint: str = "", *, min_columns: int = MIN_COLUMNS
) -> None:
    """Refuse names of columns that do not tell them apart.

    Args:
        names: Of all columns.
        where: What an error begins with.
        hint: What it ends with.
        min_columns: The fewest names, 1 or more.

    Raises:
        UsageError: Fewer than that, too many, one that is empty, or two that are the same.
    """
    if len(names) < min_columns:
        raise UsageError(f"{where}: expected two columns or more, features and a target.{hint}")
    if len(names) > MAX_COLUMNS:
        raise UsageError(
            f"{where} has {len(names):,} columns: expected at most {MAX_COLUMNS:,}. Keep those "
            "that could matter; pixels and the like belong into a .npz file."
        )
    first: dict[str, int] = {}
    for place, name in enumerate(names):
        if not name:
            raise UsageError(
                f"{where}: column {place + 1} has no name: give it one, or leave the column out "
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
        names: Of its columns.
        schema: What is declared; nothing if None.
        path: The file, for messages.
        name: What the data set is called.
        target: The column to predict; the schema's, or the last one, if None.

    Raises:
        UsageError: A column that is not in the file.
    """
    declared = make_undeclared_schema(names, names[-1]) if schema is None else schema
    return replace(declared.for_header(names, where=str(path), target=target), name=name)


def split_target(
    schema: TableSchema, names: Sequence[str], columns: list[TextColumn], path: Path
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Return a table as a data set takes it: the schema, the features' cells, the target's.

    Raises:
        UsageError: The schema has a test set of as many rows as there are.
    """
    cells = dict(zip(names, columns, strict=True))
    labels = cells.pop(schema.target.name)
    check_official_test(schema, len(labels), path)
    return schema, TextTable(cells=tuple(cells.values())), labels


def check_official_test(schema: TableSchema, rows: int, path: Path) -> None:
    """Refuse a schema with a test set of as many rows as there are."""
    if not schema.official_test < rows:
        raise UsageError(
            f"{path}: the schema says that the last {schema.official_test:,} rows are the test "
            f"set, the file has {rows:,}: correct official_test, or leave it out."
        )


def select_columns(schema: TableSchema, columns: dict[str, TextColumn], path: Path) -> TextTable:
    """Return the cells of new records, in the schema's order.

    Args:
        schema: Of the data that a model was trained on.
        columns: The file's columns, in any order, with others.
        path: The file, for messages.

    Raises:
        UsageError: A column is not there.
    """
    needed = [column.name for column in schema.columns if column.kind != "ignore"]
    if gone := [name for name in needed if name not in columns]:
        others = [name for name in columns if name not in needed]
        raise UsageError(describe_missing_columns(str(path), gone, others))
    # What is ignored need not be there, and is not looked at.
    other = columns[needed[0]]
    return TextTable(cells=tuple(columns.get(each.name, other) for each in schema.columns))
