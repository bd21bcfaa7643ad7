"""A table's schema as plain values and as a file: reading both, and writing the file.

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
from pasearch.data.column import COLUMN_KEYS, READING_KEYS, Column
from pasearch.data.schema import require_known
from pasearch.errors import UsageError, find_closest_name
from pasearch.terminal_escaping import escape_text

BARE_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""

TOP_KEYS = (
    "name", "target", "official_test", "quotes", "header", "separator", *READING_KEYS, "columns",
    "proposed",
)  # fmt: skip


def parse_schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a schema is made of, by the names of its arguments.

    Args:
        values: With the keys of a schema's file.

    Raises:
        UsageError: An unknown key, or a declaration that makes no sense.
    """
    check_keys("the file", values, TOP_KEYS)
    declared, target = values.get("columns", {}), values.get("target")
    if not (isinstance(target, str) and target):
        raise UsageError(
            'it does not say what is predicted: write target = "..." above the columns.'
        )
    if not isinstance(declared, Mapping) or not all(
        isinstance(each, Mapping) for each in declared.values()
    ):
        raise UsageError("its columns are not tables: write [columns.age] and the like.")
    name = values.get("name", "table")
    if not (isinstance(name, str) and name):
        raise UsageError(f"name is {name!r}: expected a name.")
    columns = {each: parse_column(each, declared[each]) for each in declared}
    order = _parse_order(values.get("header", True), columns, target)
    aim = columns.pop(target, Column(name=target))
    check_class_count(aim)
    # A file may declare the target alone; the others join in `for_header`.
    return {
        "columns": tuple(columns.values()), "target": aim, "name": name,
        "official_test": values.get("official_test", 0), "quotes": values.get("quotes", True),
        "order": order, "separator": values.get("separator"),
        "proposed": values.get("proposed", False),
        **{key: values.get(key) for key in READING_KEYS},
    }  # fmt: skip


def check_class_count(target: Column) -> None:
    """Refuse a target that is declared with fewer than two classes.

    Raises:
        UsageError: It is.
    """
    if target.categories is not None and not len(target.categories) >= 2:
        raise UsageError(
            f"Column {target.name!r} is the target and has {len(target.categories)} "
            f"class{'es' * (not target.categories)}: expected two or more."
        )


def declare_target(
    target: Column, *, regression: bool = False, labels: str | Sequence[Any] | None = None
) -> Column:
    """Return a table's target with the task that the user declares besides the schema.

    Args:
        target: As the schema declares it.
        regression: Whether a number is predicted.
        labels: Two or more classes: a sequence, or a string with commas between; None declares
            nothing.

    Raises:
        UsageError: The schema or `regression` declares another task, or the labels are not two or
            more different classes.
    """
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
            f"`labels=` declares classes, but column {target.name!r} is declared as {what} already:"
            " leave one of the two out."
        )
    each = labels.split(",") if isinstance(labels, str) else labels
    names = [convert_to_string(label) for label in each]
    if any(name in (None, "") for name in names):
        raise UsageError(
            f"`labels=` has a label that stands for a missing value: expected two or more classes "
            f"of column {target.name!r}, such as 'no,yes'."
        )
    target = replace(target, kind="category", categories=tuple(map(str, names)))
    check_class_count(target)
    return target


def _parse_order(header: object, columns: Mapping[str, Column], target: str) -> tuple[str, ...]:
    """Return the columns of a file without a header, in order."""
    if type(header) is not bool:
        raise UsageError(f"header is {header!r}: expected true or false.")
    if not header and (target not in columns or len(columns) < 2):
        raise UsageError(
            "it says `header = false`: write every column of the file under it, the target too, in "
            "the file's order, as [columns.age] and the like."
        )
    return () if header else tuple(columns)


def parse_column(name: str, values: Mapping[str, Any]) -> Column:
    """Return a column from plain values.

    Args:
        name: Of the column.
        values: With keys of `COLUMN_KEYS`.

    Raises:
        UsageError: An unknown key, or a declaration that makes no sense.
    """
    check_keys(f"column {name!r}", values, COLUMN_KEYS)
    if isinstance(values.get("low"), date) or isinstance(values.get("high"), date):
        raise UsageError(
            f"Column {name!r}: its bounds are days: call them lower and upper, of a date."
        )
    column = Column(name=name, **values)
    if column.kind == "number" and isinstance(column.bins, tuple) and column.low is not None:
        outside = [e for e in column.bins if not column.low < e < require_known(column.high)]
        if outside:
            raise UsageError(
                f"Column {name!r}: the edge {outside[0]:g} of its bins is not between low and "
                f"high, {column.low:g} and {column.high:g}: leave it out, or widen the bounds."
            )
    return column


def check_keys(where: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse keys that nothing is known by.

    Args:
        where: They are, for messages.
        values: With keys.
        known: Which there are.

    Raises:
        UsageError: Another key.
    """
    for key in values:
        if key not in known:
            raise UsageError(
                f"{where} has an unknown key {key!r}{suggest_name(str(key), known)}: "
                f"expected {', '.join(known)}."
            )


def suggest_name(name: str, names: Sequence[str]) -> str:
    """Return a hint to end a sentence with: which name is near, or the first that there are."""
    if near := find_closest_name(name, names):
        return f"; did you mean {near!r}?"
    more = ", ..." if len(names) > MAX_SUGGESTED_NAMES else ""
    return f"; there are {', '.join(map(repr, names[:MAX_SUGGESTED_NAMES]))}{more}"


def describe_missing_columns(where: str, gone: Sequence[str], others: Sequence[str]) -> str:
    """Return that columns are not there, and whether another one may be meant.

    Args:
        where: What lacks them.
        gone: Their names.
        others: Names there that no column has.
    """
    near = find_closest_name(gone[0], others)
    hint = f", or is {near!r} meant?" if near else "."
    return f"{where} has no column {', '.join(map(repr, gone))}: add it{hint}"


MAX_SUGGESTED_NAMES = 10
"""So many names are listed where none is near."""


FROM_RECORDS_COMMENT = "  # from the records"
"""The comment of a line whose value was read from the records."""


def format_schema_toml(
    top: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    read: Collection[tuple[str, str]] = (),
) -> str:
    """Return a schema's file.

    Args:
        top: What stands above the columns, by key.
        columns: Of each column, by name, what is declared.
        read: Columns ("" above them) and keys whose values were read from the records: their lines
            get a comment.
    """

    def line(column: str, key: str, value: object) -> str:
        first, *others = f"{key} = {_format_toml(value)}".split("\n")
        return "\n".join([first + FROM_RECORDS_COMMENT * ((column, key) in read), *others])

    lines = [line("", key, value) for key, value in top.items()]
    for name, values in columns.items():
        lines += [
            "",
            f"[columns.{name if BARE_KEY_PATTERN.fullmatch(name) else _quote_toml(name)}]",
        ]
        lines += [line(name, key, values[key]) for key in COLUMN_KEYS if key in values]
    return "\n".join(lines) + "\n"


def _format_toml(value: object) -> str:
    """Return a value as TOML, a long list over several lines."""
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
    """Return a TOML string: JSON's escapes are TOML's; nothing in it is obeyed by a terminal."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(c if escape_text(c) == c else f"\\U{ord(c):08x}" for c in plain)
