"""Which source a data set comes from, and loading it: shipped kinds, and those of extensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError, suggest_file, suggest_name

DECLARATIONS = (
    "bounds", "classes", "regression", "labels", "target", "schema", "quotes", "columns",
    "separator",
    "image_side", "grey",
)  # fmt: skip
"""The fields of `DataDeclaration` that are for some kinds of data only."""


def load_dataset(data: str, **said: Any) -> Dataset:
    """Return the data set called `data`.

    Args:
        data: A name or a path that one of `SOURCES` takes.
        said: What the user says about it: fields of `DataDeclaration`.

    Returns:
        Dataset: Not yet partitioned.

    Raises:
        UsageError: No such data, data of bad form, or a declaration that it has no use for.
    """
    source, declared = find_source(data), DataDeclaration(**said)
    if source is None:
        raise UsageError(describe_unknown_data(data))
    for name in DECLARATIONS:
        given = getattr(declared, name)
        if (
            name not in source.uses
            and given is not None
            and given != getattr(DataDeclaration(), name)
        ):
            value = given if isinstance(given, bool) else ""
            raise UsageError(
                f"`{name}={value}` is for {describe_kinds_with(name)} and does not apply to "
                f"{data!r}. Leave it out."
            )
    dataset = source.load(data, declared)
    dataset.public = dataset.public and declared.public  # only the user declares records public
    return dataset


def describe_unknown_data(data: str) -> str:
    """Return what is said of data that no kind takes.

    Raises:
        UsageError: It is a file of a known kind that has to be converted first.
    """
    from pasearch.data.csv_file import refuse_spreadsheet

    refuse_spreadsheet(Path(data))
    if Path(data).is_file():
        return (
            f"{data!r} is not called like a file of data: rename it so that its name ends in .csv "
            "if it is a table, in .parquet if it is one of those, or in .npz if it holds arrays."
        )
    near = suggest_name(data, BUILT_IN_NAMES) or suggest_file(data)
    return f"Data {data!r} is not known: expected {describe_accepted_data()}.{near}"


def load_new_records(data: str, schema: AnySchema) -> Any:
    """Return the records of a file for a trained model, as `encode_new` of its schema takes them.

    Raises:
        UsageError: No such file, of another kind than the data, or without one of its columns.
    """
    source = find_source(data)
    if source is None:
        raise UsageError(describe_unknown_data(data))
    if source.is_path and not Path(data).exists():
        raise UsageError(f"{data} is not there: expected new records.{suggest_file(data)}")
    return source.new_records(data, schema)


def list_record_names(data: str) -> list[str] | None:
    """Return what each of the records of `load_new_records` is called; None if nothing is."""
    source = find_source(data)
    return None if source is None else source.record_names(data)


def count_header_rows(path: str | Path, schema: TableSchema) -> int:
    """Return how many rows a table has above its records: a header, in a file of lines."""
    from pasearch.data.csv_file import count_lines_above
    from pasearch.data.parquet_file import ParquetFile

    return 0 if ParquetFile().takes(str(path)) else count_lines_above(Path(path), schema)


def find_source(data: str) -> Source | None:
    """Return the kind of data that a name or path is; None if no kind takes it."""
    sources = (kind() for kind in SOURCES.kinds().values())
    return next((source for source in sources if source.takes(data)), None)


def list_declarations(data: str) -> tuple[str, ...]:
    """Return which of `DECLARATIONS` this data has a use for; all if no kind takes it."""
    source = find_source(data)
    return DECLARATIONS if source is None else source.uses


def is_path(data: str) -> bool:
    """Return whether data is named by a path, which a resumed run must find from anywhere."""
    source = find_source(data)
    return source is None or source.is_path


def describe_kinds_with(declaration: str) -> str:
    """Return what has a use for a declaration, in words."""
    return " or ".join(each.kind for each in SOURCES.kinds().values() if declaration in each.uses)


def describe_accepted_data() -> str:
    """Return what data may be, in words."""
    *others, last = [each.expected for each in SOURCES.kinds().values()]
    return f"{', '.join(others)}, or {last}"
