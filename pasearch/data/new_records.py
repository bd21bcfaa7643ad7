"""New records in a file, for a trained model: what of them `predict` is given.

    a table     a .csv with the columns of the data, in any order; others, the target too, are left
    arrays      a .npz with the array x

A row that cannot be read has no value in any column, as in training.

Source: docs/rules.md, rule 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.arrays import stored_arrays
from pasearch.data.csv_file import opened
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError


def new_records(path: str | Path, schema: AnySchema) -> np.ndarray:
    """Return the records of a file, as `encode_new` of the schema takes them.

    Raises:
        UsageError: No such file, of another kind than the data, or without one of its columns.
    """
    path = Path(path)
    if not isinstance(schema, TableSchema):
        arrays, _ = stored_arrays(path, ("x",))
        if "x" not in arrays:
            raise UsageError(f"{path} has no array x: expected the new records there.")
        return arrays["x"].read()
    with opened(path, quotes=schema.quotes) as (header, lines):
        rows = list(lines)
    places: dict[str, Any] = {name: place for place, name in enumerate(header)}
    needed = [column.name for column in schema.columns if column.kind != "ignore"]
    if gone := [name for name in needed if name not in places]:
        raise UsageError(f"{path} has no column {', '.join(map(repr, gone))}: add it.")
    columns = [places.get(column.name) for column in schema.columns]
    cells = np.full((len(rows), len(columns)), None, dtype=object)
    for number, row in enumerate(rows):
        if row is not None:
            cells[number] = [None if place is None else row[place] for place in columns]
    return cells
