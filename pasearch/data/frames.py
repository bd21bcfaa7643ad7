"""What the names and types of a frame's columns say about them; no value is looked at.

A type says nothing of the records if it was chosen before them: by a database's table, a Parquet
file, or whoever wrote `dtype=`. `pandas.read_csv` chooses it from all values: one cell that is no
number makes texts of a whole column. So types are listed among what is taken as public.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from pasearch.data.cells import convert_to_numbers, convert_to_string, normalize_unicode
from pasearch.data.column import KEYS_BY_KIND, Column
from pasearch.data.numbers import convert_to_shortest_decimals
from pasearch.data.schema_file import parse_column, suggest_name
from pasearch.errors import UsageError

TYPES_DESCRIPTION = "the types of the frame's columns"
"""What is taken as public of a frame that has others than texts."""

BOOLEAN_CATEGORIES = ("False", "True")
"""The categories of a column of truth values, which its type declares."""

KIND_KEYS = {"kind", *(key for keys in KEYS_BY_KIND.values() for key in keys)}
"""What tells the kind of a column by being declared."""

REQUIRED_DECLARATIONS = {
    "number": '"low" and "high"; or "categories", if its numbers are codes or classes',
    "date": '"lower" and "upper"',
    "category": '"categories", or say that those of its type are public',
    None: '"categories", "vocabulary", or "low" and "high"',
}
"""What must be declared of a column by what its type says."""


def build_frame_columns(
    frame: Any,
    declared: Mapping[str, Mapping[str, Any]],
    *,
    estimate: bool,
    categories_are_public: bool,
) -> dict[str, Column]:
    """Return the columns of a frame, by name; arguments and errors as of `Schema.from_frame`."""
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes")):
        raise UsageError(f"frame is a {type(frame).__name__}: expected a pandas frame.")
    types = dict(zip(get_column_names(frame), frame.dtypes, strict=True))
    if len(types) < len(frame.columns):
        raise UsageError("The frame has two columns of one name: rename one.")
    if len(types) < 2:
        raise UsageError("The frame has fewer than two columns: expected features and a target.")
    declared = {normalize_unicode(str(name)): values for name, values in declared.items()}
    for name, values in declared.items():
        if name not in types:
            raise UsageError(f"The frame has no column {name!r}{suggest_name(name, list(types))}.")
        if not isinstance(values, Mapping):
            raise UsageError(
                f"declared[{name!r}] is {values!r}: expected what is known of the column, such as "
                '{"low": 0, "high": 120}.'
            )
    found, open_ = {}, []
    for name, dtype in types.items():
        kind = infer_kind(dtype)
        told = dict(declared.get(name, {}))
        # What says another kind than the type does is the user's to say.
        if not KIND_KEYS & set(told):
            if kind == "truth":
                told |= {"categories": list(BOOLEAN_CATEGORIES), "case": False}
            if kind == "category" and categories_are_public:
                told["categories"] = [convert_to_string(each) or "" for each in dtype.categories]
            if kind == "number":
                told["kind"] = "number"
        column = parse_column(name, told) if told else Column(name=name)
        if not (column.is_declared or estimate or name in declared):
            open_.append(f"{name!r} ({dtype}): {REQUIRED_DECLARATIONS[kind]}")
        found[name] = column
    if open_:
        raise UsageError(
            "Nothing is declared of these columns, and their types do not tell what they may hold. "
            'Declare them, `declared={"age": {"low": 0, "high": 120}}`, leave them out with '
            '{"kind": "ignore"}, or let the run estimate them privately, `estimate=True`:',
            *open_,
        )
    return found


def get_column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns as a schema has them."""
    return [normalize_unicode(str(name)) for name in frame.columns]


def extract_cells(frame: Any) -> np.ndarray:
    """Return the cells of a frame, (rows, columns), as objects."""
    cells = frame.astype(object).to_numpy(copy=True)
    for place, dtype in enumerate(frame.dtypes):
        kind = np.dtype(getattr(dtype, "numpy_dtype", None) or "O")
        kind = dtype if isinstance(dtype, np.dtype) else kind
        if kind in (np.float16, np.float32):
            known = np.array([isinstance(each, Real) for each in cells[:, place]], bool)
            cells[known, place] = convert_to_shortest_decimals(cells[known, place].astype(kind))
    return cells


def find_target_failures(target: Column, dtype: Any) -> tuple[str, ...]:
    """Return the reasons why the type of the target's column makes a run fail: public facts.

    Args:
        target: Declared or not.
        dtype: Type of the column in its source: of numpy, pandas or pyarrow.

    Returns:
        At most one sentence that ends with what to change.
    """
    kind, known = _infer_kind_and_values(dtype)
    if target.kind is None and kind == "float":
        return (
            f"target {target.name!r} is of type {dtype}, which has fractions, and it is not "
            "declared whether it is a number or holds classes: use `regression=True`, or declare "
            "the classes (`labels=`).",
        )
    if target.categories is None or (kind not in ("float", "integer") and known is None):
        return ()
    numbers = (
        []
        if known is not None
        else convert_to_numbers(np.array(target.categories, object)).tolist()
    )
    cells = numbers if kind == "float" else [int(x) for x in numbers if x == x // 1]
    cells = np.array([*(known or cells), None], object)[:-1]
    found = set(target.encode_categories(cells).tolist()) & set(range(len(target.categories)))
    if len(found) >= 2:
        return ()
    listed = ", ".join(map(repr, target.categories[:MAX_LISTED_CLASSES]))
    more = ", ..." if len(target.categories) > MAX_LISTED_CLASSES else ""
    return (
        f"target {target.name!r} is of type {dtype}, in which fewer than two of its declared "
        f"classes ({listed}{more}) can occur: declare the classes as this type writes them, or "
        "convert the column.",
    )


MAX_LISTED_CLASSES = 5
"""Number of declared classes that a message names."""


def _infer_kind_and_values(dtype: Any) -> tuple[str | None, list[object] | None]:
    """Return "float", "integer" or None, and all values of the type if they are few and known."""
    dtype = getattr(dtype, "pyarrow_dtype", dtype)
    if type(dtype).__name__ == "CategoricalDtype":
        return None, [*dtype.categories]
    if not hasattr(dtype, "kind"):
        return _infer_arrow_kind(dtype)
    kind = {"f": "float", "i": "integer", "u": "integer"}.get(dtype.kind)
    return kind, [False, True] if dtype.kind == "b" else None


def _infer_arrow_kind(kind: Any) -> tuple[str | None, list[object] | None]:
    """Do the same for a type of pyarrow."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _infer_arrow_kind(kind.value_type)
    if types.is_boolean(kind):
        return None, [False, True]
    decimal = types.is_decimal(kind)
    if types.is_floating(kind) or (decimal and kind.scale > 0):
        return "float", None
    return "integer" if types.is_integer(kind) or decimal else None, None


def infer_kind(dtype: Any) -> str | None:
    """Return what a type says of its cells: a number, truth, a category, a date; None: nothing."""
    if type(dtype).__name__ == "CategoricalDtype":
        return "category"
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        return "number"
    return {"b": "truth", "M": "date"}.get(kind)
