"""A table of any format with why some of its rows are null records: for the curator's check.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pasearch.data.csv_file import read_table, row_faults
from pasearch.data.lines import Fault
from pasearch.data.parquet_file import ParquetFile, read_parquet
from pasearch.data.tables import TableSchema
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError


def read_with_faults(
    path: str | Path,
    target: str | None = None,
    schema: TableSchema | None = None,
    *,
    quotes: bool = True,
    columns: str | Path | Sequence[str] | None = None,
    separator: str | None = None,
) -> tuple[tuple[TableSchema, TextTable, TextColumn], list[Fault | None]]:
    """Return a table as `read_table` does, and for each row why it is a null record, or None.

    Args:
        path: The file; its name says of which format it is.
        target: As of `read_table`, like all others.
        schema: See there.
        quotes: Of a file of lines only, like columns and separator.
        columns: See there.
        separator: See there.

    Raises:
        UsageError: The file's form is bad, or does not fit the schema.
    """
    path = Path(path)
    if ParquetFile().takes(str(path)):
        if not quotes or columns is not None or separator is not None:
            raise UsageError(
                f"{path}: a Parquet file has no quotation marks and no separators, and names its "
                "columns: leave `quotes=`, `columns=` and `separator=` out."
            )
        table = read_parquet(path, target, schema)
        return table, [None] * len(table[2])
    table = read_table(path, target, schema, quotes=quotes, columns=columns, separator=separator)
    return table, list(row_faults(path, table[0]))
