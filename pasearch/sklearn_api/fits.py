"""Base class of estimators and selectors: settings of a fit, and checks of the metadata of X and y.

Before a charge, only the metadata of X and y are read: shape, data types, names of columns. A value
neither stops a fit nor appears in an error message. An unusable value is encoded as missing, or
makes its record the null record. Data types must not depend on values, as those of
`pandas.read_csv` do (docs/python.md). With `assume_public_schema`, undeclared metadata are read
from the values without a charge, and y is checked as in other estimators.

| X | without `bounds` | bounds=(low, high) | bounds per feature |
|---|---|---|---|
| numbers | range estimated with DP | as declared | as declared |
| booleans | categories False and True | the same; an array: as numbers | the same |
| strings, categories | categories estimated with DP | the same | the same |

A `schema` declares columns by name, and the target; it has priority over this table.

The total privacy cost of all fits on one data set is stored in the file `ledger`, not in the
estimator. A clone has the path of this file, so its fits are charged to the same budget. With a
ledger, `score` is noisy and charged too; without one, it is exact and warns.

Source: docs/rules.md, rules 1, 3, 12 and 13; scikit-learn, "Developing scikit-learn estimators".
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from pasearch.accounting.accountants import PrivacyCost
from pasearch.data.cells import PANDAS_MISSING_TYPES, convert_to_numbers, convert_to_strings
from pasearch.data.column import Column
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema, load_schema
from pasearch.errors import UsageError, suggest_name
from pasearch.runs.session import record_fit

Array = np.ndarray[Any, Any]
Pair = tuple[float, float]

DATASET_NAME = "arrays"
"""Name of the data in plan and card."""

BOOLEAN_CATEGORIES = ("False", "True")
"""Categories of a boolean column, declared by its type."""

LABEL_KINDS = {"i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans", "U": "strings"}
"""Supported kinds of labels, by `dtype.kind`; labels of dtype object can have any of them."""

ASSUMED_LABEL_TYPE = "the type of the labels (numbers or booleans)"
"""Name of what is assumed public if y is a list or of dtype object."""


def _parse_integer(name: str) -> int:
    """Parse an integer, also one that is written as 1.0; a ValueError for other strings."""
    try:
        return int(name)
    except ValueError:
        if not (number := float(name)).is_integer():
            raise
        return int(number)


LABEL_PARSERS = {
    "b": lambda name: bool(BOOLEAN_CATEGORIES.index(name)),
    "i": _parse_integer,
    "u": _parse_integer,
    "f": float,
}
"""Function that parses the name of a class, by `dtype.kind` of the labels; others stay strings."""


def check_features(X: Any, *, bounds: Any = None) -> Any:
    """Check the metadata of X, so that no later error of scikit-learn can print a value.

    Args:
        X: Records.
        bounds: Declared bounds. If X is a list, bounds per feature give the length of its rows.

    Returns:
        X, possibly converted to an array of dtype object.

    Raises:
        ValueError: Not two dimensions, or complex numbers; the message has only shape and type.
    """
    X = frame_to_cells(_drop_inferred_type(list_to_rows(_to_array(X), bounds=bounds)))
    if isinstance(X, np.ndarray) and X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got one of dim {X.ndim}, shape {X.shape}: rows of equal "
            "length. Reshape your data with .reshape(-1, 1), or (1, -1) for a single record."
        )
    return X


def list_to_rows(X: Any, *, bounds: Any = None) -> Any:
    """Convert a list of rows to an array; return other data unchanged.

    The length of a row is the number of bounds per feature, or the length of most rows, which is
    assumed public. In a row of another length, all cells are missing.

    Args:
        X: Records.
        bounds: Declared bounds.

    Returns:
        Cells of dtype object, (rows, columns); the list itself if it has one or three dimensions.
    """
    if not isinstance(X, list | tuple):
        return X
    rows = [_cells_of(row) for row in X]
    width = None  # number of bounds per feature
    if isinstance(bounds, list | tuple | np.ndarray):
        alike = len(bounds) == 2 and all(isinstance(each, Real) for each in bounds)
        width = None if alike else len(bounds)
    if width is None:
        width = _find_usual_length(rows)
        if width is None or width == NESTED_ROWS:
            return X  # one or three dimensions: rejected later by the shape
    missing = [None] * width
    cells = (row if row is not None and len(row) == width else missing for row in rows)
    flat = np.fromiter(chain.from_iterable(cells), dtype=object, count=len(rows) * width)
    return flat.reshape(len(rows), width)


NESTED_ROWS = -1  # result of `_find_usual_length` if most rows are lists of rows


def _find_usual_length(rows: list[list[Any] | None]) -> int | None:
    """Return the length of most rows; None if most entries are no rows.

    A single record changes the result only if two lengths are equally frequent.
    """
    lengths = Counter(
        None
        if row is None
        else NESTED_ROWS
        if row and all(_cells_of(cell) is not None for cell in row)
        else len(row)
        for row in rows
    )
    return max(lengths, key=lambda each: (lengths[each], each or 0), default=None)


def _cells_of(row: object) -> list[Any] | None:
    """Return the cells of a row as a list; None if the object is no row."""
    if isinstance(row, list | tuple):
        return list(row)
    one = type(row).__name__ == "Series" and hasattr(row, "iloc")
    if (isinstance(row, np.ndarray) and row.ndim) or one:
        return list(row)  # type: ignore[call-overload]
    return None


def frame_to_cells(X: Any) -> Any:
    """Convert a frame with other columns than numbers to dtype object; return other data unchanged.

    Without this, scikit-learn would convert booleans to numbers, and print a string in an error.

    Raises:
        ValueError: Complex numbers; the message has only their type.
    """
    _check_types("X", X)
    if set(column_kinds(X) or ["number"]) != {"number"} and hasattr(X, "astype"):
        return X.astype(object)
    return X


def check_labels(y: Any, *, read: bool) -> Any:
    """Check the metadata of targets, so that no later error of scikit-learn can print a value.

    Args:
        y: Targets.
        read: Whether the values may be read because they are assumed public; the type of a list is
            then inferred from them.

    Returns:
        The targets, possibly converted to an array of dtype object.
    """
    y = _to_array(y)
    y = y if read else _drop_inferred_type(_list_to_labels(y))
    _check_types("y", y)
    return y


def _list_to_labels(y: Any) -> Any:
    """Convert a list of labels, or of rows with one label, to an array of dtype object.

    A row of another length is a missing label. If most rows have another length, the list is
    returned unchanged, and rejected later by its shape.
    """
    if not isinstance(y, list | tuple):
        return y
    rows = [_cells_of(each) for each in y]
    if _find_usual_length(rows) not in (None, 1):
        return y
    own = (
        each if row is None else row[0] if len(row) == 1 else None
        for each, row in zip(y, rows, strict=True)
    )  # fmt: skip
    return np.fromiter(own, dtype=object, count=len(y))


def _check_types(name: str, given: Any) -> None:
    """Refuse data types that cannot be used, by a ValueError that contains no value."""
    if hasattr(given, "columns"):
        if not hasattr(given, "dtypes"):  # NumPy would infer the types from all values
            raise ValueError(
                f"{name} is a {type(given).__name__}, which has columns without `dtypes`: expected "
                "a pandas frame. Convert a pyarrow table by "
                "`.to_pandas(types_mapper=pandas.ArrowDtype)`."
            )
        dtypes = list(given.dtypes)
    else:
        try:
            dtypes = [given.dtype] if hasattr(given, "dtype") else [np.asarray(given).dtype]
        except (ValueError, TypeError, OverflowError):  # a list of rows with different lengths
            dtypes = []
    array = isinstance(given, np.ndarray)
    for dtype in dtypes:
        kind = getattr(dtype, "kind", "O")
        if kind not in "biufUSOMmV":
            raise ValueError(
                f"Complex data not supported: {name} has dtype {dtype}. Use numbers or strings."
            )
        if array and kind in ("MmV" if name == "X" else "V"):
            raise ValueError(
                f"{name} has dtype {dtype}: expected numbers or strings. Use a frame of named "
                "columns, or convert dates with .astype(str)."
            )


def _to_array(given: Any) -> Any:
    """Convert a tensor to an array, and an array of pyarrow or polars to a list.

    NumPy would convert all integers of the latter to floats, and all booleans to objects, if a
    single one is missing.
    """
    if isinstance(given, np.ndarray) or hasattr(given, "astype") or hasattr(given, "columns"):
        return given
    for name in ("to_pylist", "to_list"):
        if hasattr(given, name):
            return getattr(given, name)()
    return np.asarray(given) if hasattr(given, "__array__") else given


def _drop_inferred_type(given: Any) -> Any:
    """Convert data whose type was inferred from values to dtype object; arrays stay unchanged.

    NumPy infers the type of a list from all values, and pandas that of categories. A single record
    could then change the type, which is released.
    """
    if isinstance(given, np.ndarray) or hasattr(given, "columns"):
        return given
    if hasattr(given, "toarray"):  # sparse data are rejected later by their type
        return given
    dtype = getattr(given, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype):  # types of pandas
        return np.asarray(given.astype(object), dtype=object)
    if dtype is not None and hasattr(given, "index"):
        return given
    return np.asarray(given, dtype=object)


def declared_label_type(y: Any, labels: np.ndarray) -> np.dtype[Any]:
    """Return the dtype that y declares for the labels; object if it declares none.

    Args:
        y: Targets as the caller passed them.
        labels: Targets as an array, (records,).
    """
    dtype: Any = y.dtypes.iloc[0] if hasattr(y, "columns") else getattr(y, "dtype", None)
    if type(dtype).__name__ == "CategoricalDtype":  # pandas inferred its categories from values
        return np.dtype(object)
    if dtype is None or isinstance(dtype, np.dtype):
        return labels.dtype if dtype is None else dtype
    kind = getattr(dtype, "kind", "O")
    return np.dtype({"b": bool, "i": int, "u": int, "f": float}.get(kind, object))


def _check_label_type(dtype: np.dtype[Any]) -> None:
    """Refuse labels that are not numbers, booleans or strings."""
    if dtype.kind not in (*LABEL_KINDS, "O"):
        raise ValueError(
            f"Unknown label type: y is of type {dtype}, expected numbers, booleans or strings. "
            "np.asarray(y).astype(str) converts bytes and dates."
        )


def common_label_type(labels: np.ndarray) -> np.dtype[Any]:
    """Return the dtype of most labels in an array of dtype object; object for strings and bytes.

    Missing labels (None, NaN and those of pandas) are not counted. A single record changes the
    result only if two types are equally frequent.
    """
    kinds: Counter[type] = Counter()
    own_types = (type(each) for each in labels.tolist() if not _is_nan(each))
    for own, count in Counter(own_types).items():
        for base, kind in ((bool, bool), (np.bool_, bool), (Integral, int), (Real, float)):
            if issubclass(own, base):
                kinds[kind] += count
                break
        else:
            kinds[object] += count * (own.__name__ not in (*PANDAS_MISSING_TYPES, "NoneType"))
    return np.dtype(max(kinds, key=lambda kind: kinds[kind], default=object))


def _is_nan(label: object) -> bool:
    """Check whether a label is the float NaN; a label's own methods are not called."""
    return type(label) in (float, np.float64, np.float32) and label != label


def column_kind(dtype: Any) -> str | None:
    """Return the kind of a column: "number", "bool" or "category"; None if it is unknown."""
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf":
        return "number"
    if kind == "b":
        return "bool"
    return None if str(dtype) == "object" else "category"


def column_kinds(X: Any) -> list[str | None] | None:
    """Return the kind of each column; None if X is not a frame."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None or not hasattr(X, "columns"):
        return None
    return [column_kind(dtype) for dtype in dtypes]


def feature_names_of(estimator: Any, features: int) -> list[str]:
    """Return the names of the features, by default x0, x1 ..."""
    return list(getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(features)]))


def parse_bounds(name: str, given: Any) -> tuple[Any, Any]:
    """Parse the pair (low, high) of an argument `name`; the values are checked later."""
    try:
        low, high = given
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {given!r}: expected two numbers, (low, high).") from None
    return low, high


def parse_all_bounds(bounds: Any, features: int) -> tuple[list[tuple[Any, Any] | None], bool]:
    """Parse the argument `bounds`.

    Args:
        bounds: Argument of the user.
        features: Number of features.

    Returns:
        Bounds (low, high) of each feature, None if undeclared; and whether one pair was given for
        all features.

    Raises:
        UsageError: Another number of bounds.
    """
    if bounds is None:
        return [None] * features, False
    try:
        given = list(bounds)
    except TypeError:
        given = []
    if len(given) == 2 and all(isinstance(each, Real) for each in given):
        return [(given[0], given[1])] * features, True
    if len(given) != features:
        raise UsageError(
            f"bounds is {bounds!r}: expected one (low, high), or one for each of {features} "
            "features (None: estimated with DP)."
        )
    return [None if each is None else parse_bounds("bounds", each) for each in given], False


def make_array_schema(features: int, low: Any, high: Any, target: Column) -> Schema:
    """Make the schema of numeric features with common bounds."""
    if target.kind == "number":
        aim = None if target.low is None or target.high is None else (target.low, target.high)
        return Schema(shape=(features,), low=low, high=high, target=aim, regression=True)
    return Schema(shape=(features,), low=low, high=high, classes=len(target.categories or ()))


def make_column(
    name: str, kind: str | None, pair: tuple[Any, Any] | None, *, alike: bool, lone: bool
) -> Column:
    """Make the declared column of a feature.

    Args:
        name: Name of the feature.
        kind: Kind of the column from `column_kind`; None: unknown.
        pair: Bounds (low, high); None: not declared.
        alike: Whether one pair of bounds was given for all features.
        lone: Whether all features have this kind. If it is unknown, common bounds then apply to
            them.
    """
    if alike and not (kind == "number" or (kind is None and lone)):
        pair = None
    low, high = (None, None) if pair is None else pair
    if kind == "bool":
        return Column(name=name, kind="category", categories=BOOLEAN_CATEGORIES, low=low, high=high)
    bins = 0 if alike and pair is not None else None
    return Column(name=name, kind=kind, low=low, high=high, bins=bins)


def select_declared_columns(schema: TableSchema | None, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns that a schema declares, by the name of the feature.

    Args:
        schema: Declared schema; None declares nothing.
        names: Names of the features; the target may be among them if nothing is predicted.

    Raises:
        UsageError: The schema declares a column that X does not have.
    """
    if schema is None:
        return {}
    known = set(names)
    for column in schema.columns:
        if column.name not in known:
            raise UsageError(
                f"The schema declares column {column.name!r}, which X does not have: it has "
                f"{', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}."
                + suggest_name(column.name, names)
            )
    declared = {column.name: column for column in (*schema.columns, schema.target)}
    # A column without a kind declares nothing; its kind is then that of the frame's column.
    return {name: column for name, column in declared.items() if column.kind is not None}


def parse_schema_labels(names: Sequence[str], dtype: np.dtype[Any]) -> np.ndarray:
    """Parse the class names of a schema into labels of the type of y, sorted.

    Raises:
        UsageError: y contains numbers, and a label is not a number.
    """
    try:
        return np.unique(_parse_names(names, dtype))
    except ValueError:
        raise UsageError(
            f"The schema's classes are {', '.join(map(repr, names[:20]))}, but y contains "
            f"{LABEL_KINDS.get(dtype.kind, 'strings')}: expected classes as y has them."
        ) from None


def parse_declared_labels(classes: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Check the labels that the argument `classes` declares, and return them sorted."""
    try:
        labels = np.asarray(None if isinstance(classes, str) else list(classes))
    except (TypeError, ValueError):
        labels = np.asarray(None)
    if labels.ndim != 1 or labels.dtype.kind not in LABEL_KINDS or len(labels) < 2:
        raise UsageError(
            f"classes is {classes!r}: expected the labels, two or more numbers, booleans or "
            "strings, such as [0, 1]."
        )
    if dtype.kind in LABEL_KINDS and LABEL_KINDS[dtype.kind] != LABEL_KINDS[labels.dtype.kind]:
        raise UsageError(
            f"classes are {LABEL_KINDS[labels.dtype.kind]}, but y contains "
            f"{LABEL_KINDS[dtype.kind]}: expected classes of the same type as y."
        )
    if len(np.unique(labels)) != len(labels):
        raise UsageError(f"classes is {classes!r}, which contains a label twice: leave one out.")
    return np.unique(labels)


def find_labels(labels: np.ndarray) -> np.ndarray:
    """Return the sorted labels in y, which are read only if they are assumed public.

    Raises:
        ValueError: Labels that scikit-learn rejects, or a single class.
    """
    names = convert_to_strings(labels, Column(name="y").cell_format)
    if None in names:
        raise ValueError(
            "Input y contains a label that means a missing label, such as None, NaN, '' or 'NA', "
            "or that is no UTF-8 string: drop these records, or list it in `classes=`."
        )
    try:
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        found = np.unique(labels)
    except TypeError:
        kinds = sorted({type(each).__name__ for each in labels.tolist()})
        raise ValueError(
            f"y contains labels that cannot be sorted, of type {', '.join(kinds)}: expected all "
            "numbers, booleans or strings."
        ) from None
    if len(found) < 2:
        raise ValueError("y contains only one class: expected two or more.")
    return found


def names_to_labels(
    names: Sequence[str], known: np.ndarray | None, dtype: np.dtype[Any]
) -> np.ndarray:
    """Convert class names to labels.

    Args:
        names: Names of the classes.
        known: Declared labels; None: the labels were estimated.
        dtype: Type of the labels, if they were estimated.
    """
    if known is not None:
        places = {name: place for place, name in enumerate(convert_to_strings(known))}
        return known[[places[name] for name in names]]
    try:
        return _parse_names(names, dtype)
    except ValueError:  # a name cannot be parsed as this type, so all stay strings
        return np.array(list(names), object)


def _parse_names(names: Sequence[str], dtype: np.dtype[Any]) -> np.ndarray:
    """Parse class names as labels of a dtype; a ValueError if one cannot be parsed."""
    read = LABEL_PARSERS.get(dtype.kind, str)
    return np.array([read(name) for name in names], object if dtype.kind == "O" else None)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateFit(BaseEstimator):
    """Base class of estimators and selectors, whose `fit` spends one (epsilon, delta).

    Guarantee: all attributes that a fit sets are together (epsilon, delta)-DP under zero-out
    adjacency, as `result_.card` states. With a `ledger`, all fits that share it are together
    (epsilon, delta)-DP with the ledger's total. Without one, each fit states its own privacy cost,
    and the caller must compose them. Not covered: fits with `random_state`, and metadata that
    `assume_public_schema` reads.

    Args:
        epsilon: Total epsilon of a fit, above 0.
        delta: Total delta of a fit; None: the largest power of ten below 1/n.
        bounds: Declared (low, high) of all numbers, or a sequence with a (low, high) or None for
            each column. Undeclared bounds are estimated with DP from the records.
        schema: Declared columns and target: a dict with the keys of a schema file, such as
            {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}, a `pasearch.Schema`,
            or the path of a .toml. Names are those of a frame's columns, or x0, x1 ...; the target
            is y, with any name.
        assume_public_schema: Whether undeclared metadata is read from the records without charge.
        max_categories: Maximum number of categories, or classes, estimated with DP for a column.
        ledger: File of a shared privacy ledger: a fit that would exceed its total is refused.
            Clones share it.
        ledger_budget: Total (epsilon, delta) of a new ledger.
        force: Whether to fit and charge even if public facts predict accuracy near chance.
        random_state: Seed that makes the noise reproducible, and the fit not private: tests only.

    Attributes:
        result_: Released values of the fit; its `card` is the privacy card.
        price_: Privacy cost of the fit.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if X was a frame.

    Cost: epsilon and delta per fit; using the result costs nothing.
    """

    epsilon: float = 1.0
    delta: float | None = None
    bounds: Any = None
    schema: Any = None
    assume_public_schema: bool = False
    max_categories: int = 32
    ledger: str | Path | None = None
    ledger_budget: Pair | None = None
    force: bool = False
    random_state: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def _warn_of_random_state(self) -> None:
        """Warn that a fit with `random_state` is not private."""
        if self.random_state is not None:
            warnings.warn(
                "random_state makes the noise reproducible, so the fit is not private: leave it "
                "out for private data.",
                UserWarning,
                stacklevel=4,
            )

    def _count_fit(self, price: PrivacyCost) -> None:
        """Count a fit without a ledger; from the second one on, warn about the total cost."""
        if self.ledger is not None or self.random_state is not None:
            return
        spent = record_fit(price.epsilon)
        if len(spent) > 1:
            warnings.warn(
                f"{len(spent)} private fits so far in this process and its workers, without a "
                "ledger. On the same people's records, as in cross-validation or a grid search, "
                f"their total cost is epsilon {math.fsum(spent):.3g}, not {price.epsilon:.3g}, and "
                "scikit-learn's scores of them are exact and not private. Use `ledger=` to charge "
                "fits and scores to one file.",
                UserWarning,
                stacklevel=4,
            )

    def _cells(self, X: Any, **form: Any) -> Array:
        """Check the metadata of X, and return its cells, (rows, columns); `form` is of sklearn."""
        bounds = self.bounds if form.get("reset", True) else None
        X = frame_to_cells(X) if self.assume_public_schema else check_features(X, bounds=bounds)
        cells: Any = validate_data(self, X, dtype=None, ensure_all_finite=False, **form)
        return cells

    def _check_columns(self, X: Any, **form: Any) -> tuple[list[str | None], Array]:
        """Check the metadata of X for a fit; return the kinds of its columns and its cells."""
        kinds = column_kinds(X)
        self._types = (TYPES_DESCRIPTION,) if any(kinds or ()) else ()
        cells = self._cells(X, ensure_min_samples=2, **form)
        return kinds or [column_kind(cells.dtype)] * cells.shape[1], cells

    def _check_input(self, X: Any, y: Any) -> tuple[list[str | None], Array, Array]:
        """Check the metadata of X and y; return the kinds of columns, the cells and the labels."""
        y = y if y is None else check_labels(y, read=bool(self.assume_public_schema))
        # scikit-learn rejects y if it is None; its metadata are checked below otherwise.
        kinds, cells = self._check_columns(X, **({"y": None} if y is None else {}))
        labels = column_or_1d(y, warn=True)
        check_consistent_length(cells, labels)
        return kinds, cells, labels

    def _make_columns(self, kinds: list[str | None], cells: Array) -> tuple[Column, ...]:
        """Make the columns of the features from `schema`, `bounds` and the types of X."""
        pairs, alike = parse_all_bounds(self.bounds, len(kinds))
        lone = cells.dtype.kind not in "iufb" and len(set(kinds)) == 1
        names = feature_names_of(self, len(kinds))
        declared = select_declared_columns(self._load_schema(), names)
        return tuple(
            declared.get(name) or make_column(name, kind, pair, alike=alike, lone=lone)
            for name, kind, pair in zip(names, kinds, pairs, strict=True)
        )

    def _load_schema(self) -> TableSchema | None:
        """Load and check the argument `schema`; None without one."""
        if self.schema is None:
            return None
        schema = load_schema(self.schema)
        if schema.proposed and not self.assume_public_schema:
            raise UsageError(
                "The schema says `proposed = true`: its bounds and categories were read from the "
                "records, so they are as private as these. Edit them into what is publicly known "
                "and delete that line."
            )
        if schema.official_test:
            raise UsageError(
                "The schema says `official_test`: fit keeps no rows of X as a test set. Leave that "
                "key out, or call search_architecture with the whole table."
            )
        return schema

    def _target_of_schema(self) -> Column | None:
        """Return the target that `schema` declares; None if it declares none."""
        schema = self._load_schema()
        if schema is None:
            return None
        if schema.target.name in feature_names_of(self, getattr(self, "n_features_in_", 0)):
            raise UsageError(
                f"X has the column {schema.target.name!r}, which the schema says is predicted: "
                "leave it out of X, and give it as y."
            )
        return schema.target if schema.target.is_declared else None

    def _target_name(self, y: Any, features: int) -> str:
        """Return the name of y, changed if a feature has the same name."""
        name, taken = getattr(y, "name", None), feature_names_of(self, features)
        name = name if isinstance(name, str) and name else "target"
        while name in taken:
            name += "_"
        return name

    def _make_class_target(
        self, name: str, y: Any, labels: Array, classes: Any
    ) -> tuple[Column, Array | None, np.dtype[Any]]:
        """Make the target column of a classification.

        Args:
            name: Name of the column.
            y: Targets as the caller passed them; the type that y declares is public.
            labels: Targets as an array, (records,): private.
            classes: Declared labels; None: from `schema`, or estimated with DP.

        Returns:
            The column; the declared labels, None if they are estimated; the type of the labels.
        """
        dtype = declared_label_type(y, labels)
        _check_label_type(dtype)
        known, names = None, None
        aim = self._target_of_schema()
        if aim is not None:
            if aim.categories is None:
                raise UsageError(
                    f"The schema declares the target {aim.name!r} as a number, and classes are "
                    "predicted here: use a regressor, or `regression=True`."
                )
            if classes is not None:
                raise UsageError(
                    "The classes are declared twice, by `classes` and by the schema's target: "
                    "leave one out."
                )
            known = parse_schema_labels(aim.categories, dtype)
            names = tuple(convert_to_strings(known))
        elif classes is not None:
            known = parse_declared_labels(classes, dtype)
            names = tuple(convert_to_strings(known))
        elif self.assume_public_schema is True:
            known = find_labels(labels)
        if dtype.kind == "O" and classes is None and (known is None or aim is not None):
            known, dtype = None, common_label_type(labels)
            self._types += (ASSUMED_LABEL_TYPE,) if dtype.kind != "O" else ()
        # `Column` rejects names that are None or occur twice.
        column = Column(name=name, kind="category", categories=names)  # type: ignore[arg-type]
        return column, known, dtype

    def _make_number_target(
        self, name: str, labels: Array, bounds: Pair | None
    ) -> tuple[Column, Array]:
        """Make the target column of a regression; return it and the targets as numbers."""
        if labels.dtype.kind not in "iufbO":
            raise ValueError(f"y is of type {labels.dtype}: expected numbers.")
        numbers = convert_to_numbers(labels)
        low, high = None, None
        aim = self._target_of_schema()
        if aim is not None:
            if aim.bounds is None:
                raise UsageError(
                    f"The schema declares the target {aim.name!r} as classes, and a number is "
                    "predicted here: use a classifier, or leave `regression` out."
                )
            if bounds is not None:
                raise UsageError(
                    "The target's bounds are declared twice, by `target_bounds` and by the "
                    "schema: leave one out."
                )
            low, high = aim.bounds
        elif bounds is not None:
            low, high = parse_bounds("target_bounds", bounds)
        elif self.assume_public_schema is True:
            assert_all_finite(numbers, input_name="y")
        return Column(name=name, kind="number", low=low, high=high), numbers
