"""A table's declared schema, in whichever form the user gives it: a file, a dict, or the object.

    a path          ->  the file, as of `TableSchema.from_toml`
    a dict          ->  with the keys of that file: {"target": "income", "columns": {"age": {...}}}
    a TableSchema   ->  itself

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

KIND = "table"
"""What a schema's plain values say of themselves, and no file does."""

DeclaredSchema = str | Path | Mapping[str, Any] | TableSchema
"""What `schema=` may be."""


def schema_of_given(given: DeclaredSchema) -> TableSchema:
    """Return a declared schema.

    Args:
        given: A path, a dict with the keys of a schema's file, or a schema.

    Raises:
        UsageError: None of them, or a declaration that makes no sense.
    """
    if isinstance(given, TableSchema):
        return given
    if isinstance(given, Mapping):
        if given.get("kind") == KIND:
            values = dict(given)
            proposed = values.pop("proposed", False)
            return replace(TableSchema.from_json(values), proposed=proposed)
        try:
            return TableSchema.from_dict(given)
        except UsageError as error:
            raise UsageError(f"schema: {error}") from None
    if isinstance(given, (str, Path)):
        return TableSchema.from_toml(given)
    raise UsageError(
        f"schema is of type {type(given).__name__}: expected the path of a .toml, a dict with its "
        'keys such as {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}, or a '
        "pasearch.Schema."
    )


def plain_json(value: Any) -> Any:
    """Return a schema, a number of numpy's or a path as JSON can hold it.

    Of a schema `schema_of_given` reads it: a resumed run needs that.
    """
    if isinstance(value, TableSchema):
        return {**value.to_json(), **({"proposed": True} if value.proposed else {})}
    return value.item() if hasattr(value, "item") else os.fspath(value)
