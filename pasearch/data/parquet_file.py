"""Data source: a table in Parquet files, whose rows are records. No value raises an error.

| type of a column | cells |
|---|---|
| numbers | as in a pandas data frame: 2.0 is the string 2 if a string is needed |
| strings, bytes | strings; those that are not UTF-8 are missing |
| Boolean values, dates, times, decimal numbers | strings as by Python's `str` |
| lists and other nested values | refused, unless the schema ignores the column |

Names, types and the number of rows are public, as for a data frame. Statistics in the file
(minimum, maximum, number of distinct values) are never read. Null values are missing. A row is
never a null record, because each row has all columns.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pasearch.data.frames import (
    describe_undeclared_dates,
    find_target_failures,
    find_text_failures,
)
from pasearch.data.parquet_files import (
    PARQUET_SUFFIXES,
    LargeColumn,
    LargeTable,
    ParquetFiles,
    find_parquet_files,
    find_partition_folders,
)
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration, Source, make_table_dataset
from pasearch.data.table_format import (
    check_column_names,
    check_official_test,
    fit_schema_to_file,
    select_columns,
    split_target,
)
from pasearch.data.tables import AnySchema, TableSchema, load_schema
from pasearch.data.text_columns import TextColumn, TextTable, build_constant_column
from pasearch.errors import UsageError

MAX_EAGER_CELLS = 2**25
"""Maximum number of cells of a table that is read into memory; larger tables stay in files."""


@SOURCES.register
class ParquetFile(Source):
    """A table in a Parquet file, or in a folder of them."""

    name = "parquet"
    kind = "a Parquet file"
    expected = "the path of a .parquet file, or of a folder of them"
    suffixes = PARQUET_SUFFIXES
    uses = ("target", "text", "schema", "regression", "labels")

    def takes(self, data: str) -> bool:
        """Whether the name has the suffix of a Parquet file, or the folder contains such files."""
        path = Path(data)
        if path.suffix.lower() in PARQUET_SUFFIXES:
            return True
        return (
            bool(data)
            and path.is_dir()
            and bool(find_partition_folders(path) or find_parquet_files(path))
        )

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Load the data set: every row is a record."""
        schema = None if declared.schema is None else load_schema(declared.schema)
        path = Path(data)
        files = ParquetFiles.of(path)
        if len(files) * len(files.names) <= MAX_EAGER_CELLS:
            cells = _read_into_memory(files, path, declared.target, schema)
        else:
            fitted, read = _fit_schema(files, path, declared.target, schema)
            check_official_test(fitted, len(files), path)
            names = tuple(column.name for column in fitted.columns)
            features = LargeTable(files, names, frozenset(names) - frozenset(read))
            cells = fitted, features, LargeColumn(files, fitted.target.name)
        dataset = make_table_dataset(*cells, declared)
        table = dataset.schema
        assert isinstance(table, TableSchema)
        dtypes = [files.types[column.name] for column in table.columns]
        return replace(
            dataset,
            type_failures=(
                *find_target_failures(table.target, files.types[table.target.name]),
                *find_text_failures(table.columns, dtypes),
            ),
            notes=describe_undeclared_dates(table.columns, dtypes),
        )

    def new_records(self, data: str, schema: AnySchema) -> TextTable:
        """Read the cells of new records, (rows, columns).

        The file may have other columns too, in any order.
        """
        if not isinstance(schema, TableSchema):
            raise UsageError(f"{data} is a table, and the model was trained on arrays.")
        path = Path(data)
        files = ParquetFiles.of(path)
        wanted = {column.name for column in schema.columns if column.kind != "ignore"}
        found = [name for name in files.names if name in wanted]
        files.check_not_nested(found)
        return select_columns(schema, dict(zip(found, files.columns(found), strict=True)), path)


def read_parquet(
    path: str | Path, target: str | None = None, schema: TableSchema | None = None
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Read a Parquet file, or a folder of them, into memory.

    Guarantee: every row keeps its position, and is read from its own values alone. No value raises
        an error.

    Args:
        path: Path of the file or of the folder.
        target: Name of the target column; None for the schema's, or the last one.
        schema: Declared schema, or None.

    Returns:
        The schema in the file's order, the cells, (rows, columns), and the target's cells, (rows,).

    Raises:
        UsageError: The file is missing, damaged or not Parquet, or does not fit the schema.

    Cost: time and memory linear in the rows.
    """
    path = Path(path)
    return _read_into_memory(ParquetFiles.of(path), path, target, schema)


def _read_into_memory(
    files: ParquetFiles, path: Path, target: str | None, schema: TableSchema | None
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Return the schema, the cells of the features, and those of the target, in memory."""
    fitted, read = _fit_schema(files, path, target, schema)
    columns = dict(zip(read, files.columns(read), strict=True))
    nothing = build_constant_column("", len(files))
    cells = [columns.get(name, nothing) for name in files.names]
    return split_target(fitted, [*files.names], cells, path)


def _fit_schema(
    files: ParquetFiles, path: Path, target: str | None, schema: TableSchema | None
) -> tuple[TableSchema, list[str]]:
    """Return the schema in the order of the columns, and the names of the columns to read."""
    check_column_names([*files.names], str(path))
    fitted = fit_schema_to_file([*files.names], schema, path=path, name=path.stem, target=target)
    fitted = replace(fitted, quotes=True, order=(), separator=None)
    ignored = {column.name for column in fitted.columns if column.kind == "ignore"}
    read = [name for name in files.names if name not in ignored]
    files.check_not_nested(read)
    return fitted, read
