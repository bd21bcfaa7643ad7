"""A data source in one file: .jsonl, a JSON object a line, its columns declared in a schema.

A file of this kind has no header: which names occur in its lines is a value, not its form. So the
columns are those of the schema; a name beside them is left alone, and one that a line lacks is a
missing cell. A line that is no JSON object is the null record in its slot.

    python examples/extensions/jsonl.py plan arch people.jsonl --schema people.toml --eps 2
"""

from __future__ import annotations

import json
from pathlib import Path

from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration, Source, make_table_dataset
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.data.text_columns import TextColumn, TextTable, build_columns
from pasearch.errors import UsageError


@SOURCES.register
class JsonLines(Source):
    """A .jsonl file with a JSON object a line."""

    name = "jsonl"
    kind = "a .jsonl"
    expected = "the path of a .jsonl file, with a schema"
    suffixes = (".jsonl",)
    uses = ("schema", "target", "regression")

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Return the data set: every line is a slot."""
        if declared.schema is None:
            raise UsageError(f"{data} has no header: declare its columns in a schema (TOML).")
        schema = TableSchema.from_toml(declared.schema)
        names = [column.name for column in (*schema.columns, schema.target)]
        schema = schema.for_header(names, where=str(declared.schema), target=declared.target)
        columns = _columns(data, names)
        labels = columns.pop(names.index(schema.target.name))
        return make_table_dataset(schema, TextTable(cells=tuple(columns)), labels, declared)

    def new_records(self, data: str, schema: AnySchema) -> TextTable:
        """Return the cells of records for a trained model: `predict` reads the file too."""
        if not isinstance(schema, TableSchema):
            raise UsageError(f"{data} is a table, and the model was trained on arrays.")
        columns = _columns(data, [column.name for column in schema.columns])
        return TextTable(cells=tuple(columns))


def _columns(data: str, names: list[str]) -> list[TextColumn]:
    """Return the cells of a file, column by column."""
    try:
        lines = Path(data).read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise UsageError(f"{data} cannot be read: {error.strerror}.") from None
    rows = (_row(line, names) for line in lines)
    return build_columns(rows, width=len(names))


def _row(line: bytes, names: list[str]) -> list[str] | None:
    """Return the cells of a line, or None for the null record; no line raises."""
    try:
        # Numbers stay as they are written: none is rounded, or too long.
        found = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return [_cell(found.get(name)) for name in names] if isinstance(found, dict) else None


def _cell(value: object) -> str:
    """Return a cell as text; empty, so missing, where JSON has no text, number or truth there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else ""
    return "" if any("\ud800" <= c <= "\udfff" for c in text) else text


if __name__ == "__main__":
    from pasearch.cli import main

    main()
