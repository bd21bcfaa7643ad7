"""Declarations of columns from the names and types of a data frame's columns; no value is read.

A type reveals nothing about the records if it was chosen before they were read: by a database
table, a Parquet file, or argument `dtype=`. However, `pandas.read_csv` chooses it from all values:
one cell that is not a number turns a whole column into strings. Therefore a run lists types among
the facts that are assumed public.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from numbers import Real
from typing import Any

import numpy as np

from pasearch.data.cells import convert_to_numbers, convert_to_string, normalize_unicode
from pasearch.data.column import KEYS_BY_KIND, Column
from pasearch.data.numbers import convert_to_shortest_decimals
from pasearch.data.schema_file import parse_column, suggest_name
from pasearch.errors import UsageError

TYPES_DESCRIPTION = "the types of the frame's columns"
"""Item of the assumed-public list for a frame with other types than strings."""

BOOLEAN_CATEGORIES = ("False", "True")
"""Categories of a Boolean column, which its type declares."""

KIND_KEYS = {"kind", *(key for keys in KEYS_BY_KIND.values() for key in keys)}
"""Keys whose declaration determines the kind of a column."""

REQUIRED_DECLARATIONS = {
    "number": '"low" and "high"; or "categories", if its numbers are codes or classes',
    "date": '"lower" and "upper"',
    "category": '"categories", or `categories_are_public=True`',
    None: '"categories", "vocabulary", or "low" and "high"',
}
"""Keys that must be declared for a column, by the kind that its type implies."""


def build_frame_columns(
    frame: Any,
    declared: Mapping[str, Mapping[str, Any]],
    *,
    estimate: bool,
    categories_are_public: bool,
) -> dict[str, Column]:
    """Build the declarations of a frame's columns, by name.

    The arguments and errors are those of `TableSchema.from_frame`.
    """
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes")):
        raise UsageError(f"frame is a {type(frame).__name__}: expected a pandas data frame.")
    types = dict(zip(get_column_names(frame), frame.dtypes, strict=True))
    if len(types) < len(frame.columns):
        raise UsageError("The frame has two columns with the same name: rename one.")
    if len(types) < 2:
        raise UsageError("The frame has fewer than two columns: expected features and a target.")
    declared = {normalize_unicode(str(name)): values for name, values in declared.items()}
    for name, values in declared.items():
        if name not in types:
            raise UsageError(f"The frame has no column {name!r}{suggest_name(name, list(types))}.")
        if not isinstance(values, Mapping):
            raise UsageError(
                f"declared[{name!r}] is {values!r}: expected a dictionary for the column, such as "
                '{"low": 0, "high": 120}.'
            )
    found, open_ = {}, []
    for name, dtype in types.items():
        kind = infer_kind(dtype)
        given = dict(declared.get(name, {}))
        # A declaration of the kind takes precedence over the type.
        if not KIND_KEYS & set(given):
            if kind == "bool":
                given |= {"categories": list(BOOLEAN_CATEGORIES), "case": False}
            if kind == "category" and categories_are_public:
                given["categories"] = [convert_to_string(each) or "" for each in dtype.categories]
            if kind == "number":
                given["kind"] = "number"
        column = parse_column(name, given) if given else Column(name=name)
        if not (column.is_declared or estimate or name in declared):
            open_.append(f"{name!r} ({dtype}): {REQUIRED_DECLARATIONS[kind]}")
        found[name] = column
    if open_:
        raise UsageError(
            "These columns are not declared, and their types do not imply bounds or categories. "
            'Declare them, `declared={"age": {"low": 0, "high": 120}}`, exclude them with '
            '{"kind": "ignore"}, or estimate them privately with `estimate=True`:',
            *open_,
        )
    return found


def get_column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns in Unicode's composed form."""
    return [normalize_unicode(str(name)) for name in frame.columns]


def extract_cells(frame: Any) -> np.ndarray:
    """Return the cells of a frame as objects, (rows, columns)."""
    cells = frame.astype(object).to_numpy(copy=True)
    for place, dtype in enumerate(frame.dtypes):
        kind = np.dtype(getattr(dtype, "numpy_dtype", None) or "O")
        kind = dtype if isinstance(dtype, np.dtype) else kind
        if kind in (np.float16, np.float32):
            known = np.array([isinstance(each, Real) for each in cells[:, place]], bool)
            cells[known, place] = convert_to_shortest_decimals(cells[known, place].astype(kind))
    return cells


def find_target_failures(target: Column, dtype: Any) -> tuple[str, ...]:
    """Return the reason why the type of the target column makes every run fail, if there is one.

    Args:
        target: Target column, declared or not.
        dtype: Type of the column in its source: of numpy, pandas or pyarrow.

    Returns:
        At most one sentence, which ends with a remedy; it is public.
    """
    kind, known = _infer_kind_and_values(dtype)
    if target.kind is None and kind == "float":
        return (
            f"the type of target {target.name!r} is {dtype}, which allows fractions, and its task "
            "is not declared: use `regression=True`, or declare the classes (`labels=`).",
        )
    if target.categories is None or (kind is None and known is None):
        return ()
    cells = np.array([*(known or _find_possible_cells(target.categories, kind)), None], object)[:-1]
    found = set(target.encode_categories(cells).tolist()) & set(range(len(target.categories)))
    if len(found) >= 2:
        return ()
    listed = ", ".join(map(repr, target.categories[:MAX_LISTED_CLASSES]))
    more = ", ..." if len(target.categories) > MAX_LISTED_CLASSES else ""
    return (
        f"the type of target {target.name!r} is {dtype}, in which fewer than two of the declared "
        f"classes ({listed}{more}) can occur: declare the classes in the format of this type, or "
        "convert the column.",
    )


def find_text_failures(columns: Sequence[Column], dtypes: Sequence[Any]) -> tuple[str, ...]:
    """Return the reasons why the types of sequences of words cannot contain any.

    Args:
        columns: Feature columns.
        dtypes: Type of each column in its source: of numpy, pandas or pyarrow.
    """
    return tuple(
        f"column {column.name!r} is declared as a text, but its type is {dtype}: name a column of "
        "strings (`text=`)."
        for column, dtype in zip(columns, dtypes, strict=True)
        if column.length is not None and _infer_kind_and_values(dtype)[0] is not None
    )


def describe_undeclared_dates(columns: Sequence[Column], dtypes: Sequence[Any]) -> tuple[str, ...]:
    """Return a remark for the plan on undeclared columns of dates, which are read as categories.

    Args:
        columns: Feature columns.
        dtypes: Type of each column in its source: of numpy, pandas or pyarrow.
    """
    names = [
        repr(column.name)
        for column, dtype in zip(columns, dtypes, strict=True)
        if column.kind is None and _infer_kind_and_values(dtype)[0] == "moment"
    ]
    if not names:
        return ()
    listed = ", ".join(names[:MAX_LISTED_CLASSES]) + ", ..." * (len(names) > MAX_LISTED_CLASSES)
    return (
        f"dates without declared bounds are read as categories, here {listed}. Declare the first "
        "and the last day (keys `lower` and `upper` of a schema), or ignore the column.",
    )


def _find_possible_cells(names: Sequence[str], kind: str | None) -> list[object]:
    """Return the cells of a column with this kind of type that declared class names can match.

    Args:
        names: Declared class names.
        kind: Kind of the type: "float", "integer", or "moment" for a date or time.
    """
    if kind == "moment":
        return [each for each in map(_parse_moment, names) if each is not None]
    numbers = convert_to_numbers(np.array(names, object)).tolist()
    if kind == "float":
        return numbers
    whole = [(name, x) for name, x in zip(names, numbers, strict=True) if x == x // 1]
    return [int(name) if name.lstrip("+-").isdecimal() else int(x) for name, x in whole]


def _parse_moment(name: str) -> datetime | None:
    """Parse a date or time in ISO format; None if it is not one."""
    try:
        return datetime.fromisoformat(name)
    except ValueError:
        return None


MAX_LISTED_CLASSES = 5
"""Maximum number of declared classes that a message lists."""


def _infer_kind_and_values(dtype: Any) -> tuple[str | None, list[object] | None]:
    """Return "float", "integer", "moment" or None, and all values of the type if it has few.

    A moment is a date or time. The second item is None if the type has many values.
    """
    dtype = getattr(dtype, "pyarrow_dtype", dtype)
    if type(dtype).__name__ == "CategoricalDtype":
        return None, [*dtype.categories]
    if not hasattr(dtype, "kind"):
        return _infer_arrow_kind(dtype)
    kind = {"f": "float", "i": "integer", "u": "integer", "M": "moment"}.get(dtype.kind)
    return kind, [False, True] if dtype.kind == "b" else None


def _infer_arrow_kind(kind: Any) -> tuple[str | None, list[object] | None]:
    """Return the same as `_infer_kind_and_values` for an Arrow type."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _infer_arrow_kind(kind.value_type)
    if types.is_boolean(kind):
        return None, [False, True]
    if types.is_timestamp(kind):
        return "moment", None
    decimal = types.is_decimal(kind)
    if types.is_floating(kind) or (decimal and kind.scale > 0):
        return "float", None
    return "integer" if types.is_integer(kind) or decimal else None, None


def infer_kind(dtype: Any) -> str | None:
    """Infer the kind of a column from its type; None if the type does not determine it.

    The kinds are "number", "bool", "category" and "date".
    """
    if type(dtype).__name__ == "CategoricalDtype":
        return "category"
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        return "number"
    return {"b": "bool", "M": "date"}.get(kind)
