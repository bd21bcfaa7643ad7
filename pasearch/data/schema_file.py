"""Schema files: parsing of their values into a table's schema, and rendering of a schema as TOML.

Source: docs/rules.md, rule 13; docs/data.md lists the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from pasearch.data.cells import convert_to_string
from pasearch.data.column import COLUMN_KEYS, NOTATION_KEYS, Column
from pasearch.data.schema import require_known
from pasearch.errors import UsageError, find_closest_name
from pasearch.terminal_escaping import escape_text

BARE_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
"""Pattern of keys that TOML accepts without quotes."""

# Keys above the tables of columns.
TOP_KEYS = (
    "name", "target", "official_test", "quotes", "header", "separator", *NOTATION_KEYS, "columns",
    "proposed",
)  # fmt: skip


DEFAULT_TEXT_LENGTH = 150
"""Number of words of a text, as in Bao et al., Tables XXVII and XXVIII."""


def parse_schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the keys of a schema file into the arguments of `TableSchema`.

    Args:
        values: Contents of a schema file.

    Raises:
        UsageError: An unknown key, or an invalid declaration.
    """
    check_keys("the file", values, TOP_KEYS)
    declared, target = values.get("columns", {}), values.get("target")
    if not (isinstance(target, str) and target):
        raise UsageError('the target is not declared: write target = "..." above the columns.')
    if not isinstance(declared, Mapping) or not all(
        isinstance(each, Mapping) for each in declared.values()
    ):
        raise UsageError("columns must be TOML tables, such as [columns.age].")
    name = values.get("name", "table")
    if not (isinstance(name, str) and name):
        raise UsageError(f"name is {name!r}: expected a non-empty string.")
    columns = {each: parse_column(each, declared[each]) for each in declared}
    if type(header := values.get("header", True)) is not bool:
        raise UsageError(f"header is {header!r}: expected true or false.")
    if not header and (target not in columns or len(columns) < 2):
        raise UsageError(
            "`header = false` requires every column of the file, the target included, in the "
            "file's order: add tables such as [columns.age]."
        )
    order = () if header else tuple(columns)
    target_column = columns.pop(target, Column(name=target))
    check_class_count(target_column)
    # A file may declare only the target; `for_header` adds the other columns.
    return {
        "columns": tuple(columns.values()), "target": target_column, "name": name,
        "official_test": values.get("official_test", 0), "quotes": values.get("quotes", True),
        "order": order, "separator": values.get("separator"),
        "proposed": values.get("proposed", False),
        **{key: values.get(key) for key in NOTATION_KEYS},
    }  # fmt: skip


def check_class_count(target: Column) -> None:
    """Raise UsageError if a target is declared with fewer than two classes."""
    if target.categories is not None and not len(target.categories) >= 2:
        raise UsageError(
            f"Column {target.name!r} is the target and has {len(target.categories)} "
            f"class{'es' * (not target.categories)}: expected two or more."
        )


def declare_target(
    target: Column, *, regression: bool = False, labels: str | Sequence[Any] | None = None
) -> Column:
    """Return a table's target column with the task that the user declares outside the schema.

    Args:
        target: Target column of the schema.
        regression: Whether a number is predicted.
        labels: Two or more classes: a sequence, or a comma-separated string; None: undeclared.

    Raises:
        UsageError: The schema or `regression` declares another task, or there are fewer than two
            distinct labels.
    """
    if regression and labels is not None:
        raise UsageError(
            "`labels=` declares classes, but `regression=True` predicts a number: leave one out."
        )
    if regression:
        if target.kind not in (None, "number"):
            raise UsageError(
                f"`regression=True` predicts a number, but the schema declares column "
                f"{target.name!r} as a {target.kind}: change one of them."
            )
        target = replace(target, kind="number")
    if labels is None:
        return target
    if target.kind == "number" or target.categories is not None:
        what = "classes" if target.categories is not None else "a number"
        raise UsageError(
            f"`labels=` declares classes, but the schema already declares column {target.name!r} "
            f"as {what}: remove one of the two declarations."
        )
    each = labels.split(",") if isinstance(labels, str) else labels
    names = [convert_to_string(label) for label in each]
    if any(name in (None, "") for name in names):
        raise UsageError(
            f"`labels=` contains a label that means missing: expected two or more classes "
            f"of column {target.name!r}, such as 'no,yes'."
        )
    target = replace(target, kind="category", categories=tuple(map(str, names)))
    check_class_count(target)
    return target


def parse_column(name: str, values: Mapping[str, Any]) -> Column:
    """Create a column from plain values.

    Args:
        name: Name of the column.
        values: Values with keys of `COLUMN_KEYS`.

    Raises:
        UsageError: An unknown key, or an invalid declaration.
    """
    check_keys(f"column {name!r}", values, COLUMN_KEYS)
    if isinstance(values.get("low"), date) or isinstance(values.get("high"), date):
        raise UsageError(f"Column {name!r}: low and high are dates: use lower and upper instead.")
    column = Column(name=name, **values)
    if column.kind == "number" and isinstance(column.bins, tuple) and column.low is not None:
        outside = [e for e in column.bins if not column.low < e < require_known(column.high)]
        if outside:
            raise UsageError(
                f"Column {name!r}: the bin edge {outside[0]:g} is not between low and high, "
                f"{column.low:g} and {column.high:g}: remove it or widen the bounds."
            )
    return column


def check_keys(where: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise UsageError for the first unknown key.

    Args:
        where: Location of the keys, for messages.
        values: Mapping whose keys are checked.
        known: Valid keys.

    Raises:
        UsageError: An unknown key.
    """
    for key in values:
        if key not in known:
            raise UsageError(
                f"{where} has an unknown key {key!r}{suggest_name(str(key), known)}: "
                f"expected {', '.join(known)}."
            )


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message: a similar valid name, or the first valid names."""
    if near := find_closest_name(name, names):
        return f"; did you mean {near!r}?"
    more = ", ..." if len(names) > MAX_SUGGESTED_NAMES else ""
    return f"; there are {', '.join(map(repr, names[:MAX_SUGGESTED_NAMES]))}{more}"


def describe_missing_columns(where: str, gone: Sequence[str], others: Sequence[str]) -> str:
    """Return an error message for missing columns, with a similar name if there is one.

    Args:
        where: Name of the data, for the message.
        gone: Names of the missing columns.
        others: Names in the data that are not in the schema.
    """
    near = find_closest_name(gone[0], others)
    hint = f", or is {near!r} meant?" if near else "."
    return f"{where} has no column {', '.join(map(repr, gone))}: add it{hint}"


MAX_SUGGESTED_NAMES = 10
"""Maximum number of valid names that a message lists if none is similar."""


FROM_RECORDS_COMMENT = "  # from the records"
"""Comment on a TOML line whose value was read from the records."""


def format_schema_toml(
    top: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    read: Collection[tuple[str, str]] = (),
) -> str:
    """Return the text of a schema file.

    Args:
        top: Values above the columns, by key.
        columns: Declared values of each column, by name and key.
        read: Pairs (column, key) whose values were read from the records; the column is "" for keys
            above the columns. Their lines get a comment.
    """

    def line(column: str, key: str, value: object) -> str:
        first, *others = f"{key} = {_format_toml(value)}".split("\n")
        return "\n".join([first + FROM_RECORDS_COMMENT * ((column, key) in read), *others])

    lines = [line("", key, value) for key, value in top.items()]
    for name, values in columns.items():
        key = name if BARE_KEY_PATTERN.fullmatch(name) else _quote_toml(name)
        lines += ["", f"[columns.{key}]"]
        lines += [line(name, key, values[key]) for key in COLUMN_KEYS if key in values]
    return "\n".join(lines) + "\n"


def _format_toml(value: object) -> str:
    """Return a value in TOML; long lists have several lines."""
    if isinstance(value, str):
        return _quote_toml(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        items = (f"{_quote_toml(key)} = {_format_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(items)} }}"
    if not isinstance(value, list | tuple):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        return repr(int(value) if whole else value)  # type: ignore[arg-type]
    lines, items = [""], [_format_toml(each) for each in value]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > 90:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{item},"
    if len(lines) == 1:
        return f"[{lines[0].removesuffix(',')}]"
    return "[\n" + "".join(f"    {line}\n" for line in lines) + "]"


def _quote_toml(text: str) -> str:
    """Return a TOML string with quotes and escapes; JSON escapes are valid in TOML."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(c if escape_text(c) == c else f"\\U{ord(c):08x}" for c in plain)
