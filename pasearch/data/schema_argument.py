"""Conversion of the `schema` argument: a file, a dict, or a `TableSchema`.

    a path          ->  the file, read by `TableSchema.from_toml`
    a dict          ->  same keys as that file: {"target": "income", "columns": {"age": {...}}}
    a TableSchema   ->  unchanged

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

TABLE_KIND = "table"
"""Value of the key "kind" in the JSON form of a table's schema; TOML files have no such key."""

SchemaArgument = str | Path | Mapping[str, Any] | TableSchema
"""Accepted types of the `schema` argument."""


def load_schema(given: SchemaArgument) -> TableSchema:
    """Convert a `schema` argument to a `TableSchema`.

    Args:
        given: Path of a schema file, dict with the keys of such a file, or schema.

    Raises:
        UsageError: Another type, or an invalid declaration.
    """
    if isinstance(given, TableSchema):
        return given
    if isinstance(given, Mapping):
        if given.get("kind") == TABLE_KIND:
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


def to_plain_json(value: Any) -> Any:
    """Convert a schema, NumPy scalar or path to a JSON-compatible value.

    `load_schema` reads a converted schema, so that a run can be resumed.
    """
    if isinstance(value, TableSchema):
        return {**value.to_json(), **({"proposed": True} if value.proposed else {})}
    return value.item() if hasattr(value, "item") else os.fspath(value)
