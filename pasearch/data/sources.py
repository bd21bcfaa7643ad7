"""Selection of the data source that reads a name or path, and loading of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.data.text_columns import TextTable
from pasearch.errors import UsageError, suggest_file, suggest_name

DECLARATIONS = (
    "bounds", "classes", "regression", "labels", "target", "text", "schema", "quotes", "columns",
    "separator", "image_side", "grey",
)  # fmt: skip
"""Fields of `DataDeclaration` that apply to some kinds of data only."""


def load_dataset(data: str, **declarations: Any) -> Dataset:
    """Load a data set.

    Args:
        data: Name or path that one of `SOURCES` accepts.
        declarations: Fields of `DataDeclaration`.

    Returns:
        Data set, not yet partitioned.

    Raises:
        UsageError: Unknown or malformed data, or a declaration that does not apply to it.
    """
    source, declared = find_source(data), DataDeclaration(**declarations)
    if source is None:
        raise UsageError(describe_unknown_data(data))
    for name in DECLARATIONS:
        given = getattr(declared, name)
        is_default = given is None or given == getattr(DataDeclaration(), name)
        if name not in source.uses and not is_default:
            value = given if isinstance(given, bool) else ""
            raise UsageError(
                f"`{name}={value}` is for {describe_kinds_with(name)} and does not apply to "
                f"{data!r}, which is read as {source.kind}. Leave it out, or name other data."
            )
    dataset = source.load(data, declared)
    dataset.public = dataset.public and declared.public  # only the user declares records public
    return dataset


def describe_unknown_data(data: str) -> str:
    """Return an error message for data that no source accepts.

    Raises:
        UsageError: A file of a known type that must be converted first.
    """
    from pasearch.data.csv_file import refuse_spreadsheet

    refuse_spreadsheet(Path(data))
    if Path(data).is_file():
        return (
            f"The file name {data!r} has no known suffix: rename the file to .csv (text table), "
            ".parquet (Parquet table) or .npz (arrays)."
        )
    *others, last = sorted(each.expected for each in SOURCES.kinds().values())
    near = suggest_name(data, BUILT_IN_NAMES) or suggest_file(data)
    return f"Data {data!r} is not known: expected {', '.join(others)}, or {last}.{near}"


def load_new_records(data: str, schema: AnySchema) -> Any:
    """Load new records for a trained model, as `encode_new` of its schema accepts them.

    Raises:
        UsageError: No such file, another kind of data, or a missing column.
    """
    source = find_source(data)
    if source is None:
        raise UsageError(describe_unknown_data(data))
    if source.is_path and not Path(data).exists():
        raise UsageError(f"{data} does not exist: expected new records.{suggest_file(data)}")
    return source.new_records(data, schema)


def list_record_names(data: str) -> list[str] | None:
    """Return the names of new records (such as paths of images); None if they have none."""
    source = find_source(data)
    return None if source is None else source.record_names(data)


def count_header_rows(path: str | Path, schema: TableSchema) -> int:
    """Return the number of lines above the records of a table's file: 0 without a header."""
    from pasearch.data.csv_file import count_lines_above
    from pasearch.data.parquet_file import ParquetFile

    return 0 if ParquetFile().takes(str(path)) else count_lines_above(Path(path), schema)


def find_source(data: str) -> Source | None:
    """Return the source that accepts a name or path; None if there is none."""
    sources = (kind() for kind in SOURCES.kinds().values())
    return next((source for source in sources if source.takes(data)), None)


def list_declarations(data: str) -> tuple[str, ...]:
    """Return the `DECLARATIONS` that apply to the data; all of them if no source accepts it."""
    source = find_source(data)
    return DECLARATIONS if source is None else source.uses


def is_path(data: str) -> bool:
    """Whether the data is a path, which a resumed run must resolve from any directory."""
    source = find_source(data)
    return source is None or source.is_path


def describe_kinds_with(declaration: str) -> str:
    """List the kinds of data to which a declaration applies."""
    kinds = SOURCES.kinds().values()  # in the order in which their modules were imported
    return " or ".join(sorted(each.kind for each in kinds if declaration in each.uses))


def find_readable(records: Any) -> np.ndarray:
    """Find the records that could be read, bool, (rows,): rows of a table, or images."""
    if isinstance(records, TextTable):
        return records.present()
    if isinstance(records, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(records).reshape(len(records), -1)
        return np.logical_not(masked.all(axis=1))
    return np.ones(len(records), bool)
