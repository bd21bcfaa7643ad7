"""Schema of array data: shape, bounds and classes, declared or estimated.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from pasearch.data.cells import convert_to_string
from pasearch.errors import UsageError

MAX_CLASSES = 100_000
"""Maximum number of classes: a network has one output per class."""

MAX_LISTED_CLASSES = 10
"""Maximum number of class names in one line of a description."""

MAX_ARRAY_FEATURES = 2**24
"""Maximum number of features of one record: 64 MB as float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedColumn:
    """Position of one column in an encoded record: public.

    Args:
        start: Index of the first feature of the column; for a number, the scaled number, which the
            indicators of its bins follow.
        width: Number of features.
        edges: Edges between the bins of a number, scaled to [0, 1], rising; empty without bins.
            None for a category, whose features are indicators.
        may_miss: Whether the last feature indicates a missing value.
    """

    start: int
    width: int
    edges: tuple[float, ...] | None = ()
    may_miss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """Public description of an encoded record, in addition to its shape.

    Args:
        bound: Maximum L2 norm of a record.
        columns: Columns of which pairwise products can be formed: numbers and categories.
    """

    bound: float
    columns: tuple[EncodedColumn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Declaration of records with numeric features, and of the class or number to predict.

    Values that are None are undeclared: they are estimated privately before the first training, or
    read from the records if the user assumes them public (`data.estimation`). Either `classes` or
    `target` applies, depending on `regression`.

    Args:
        shape: Shape of one record: (features,), (height, width) or (channels, height, width).
        low: Lower bound of every feature, in the original units; smaller values are clamped.
        high: Upper bound of every feature.
        classes: Number of classes, 2 or more; a record with any other label is a null record.
        labels: Label of each class, sorted; None: 0 ... classes - 1.
        target: Bounds (low, high) of the regression target; values outside are clamped.
        regression: Whether a number is predicted instead of a class.
        class_names: Names of the classes, in order, such as sub-folders; None: they are numbers.

    Raises:
        UsageError: Class names that are not distinct strings, one per class; bounds that are not
            finite with low < high; fewer than two classes; or an empty shape.
    """

    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    classes: int | None = None
    target: tuple[float, float] | None = None
    regression: bool = False
    class_names: tuple[str, ...] | None = None
    labels: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.class_names is not None:
            names = tuple(self.class_names)
            are_strings = all(isinstance(name, str) and name for name in names)
            if not are_strings or not len({*names}) == len(names) == self.classes:
                raise UsageError(
                    f"The class names are {self.class_names!r}: expected {self.classes} distinct "
                    "strings, one per class."
                )
            object.__setattr__(self, "class_names", names)
        if (self.low is None) != (self.high is None):
            raise UsageError(f"Bounds are {self.low!r}, {self.high!r}: expected both or neither.")
        if self.low is not None:
            low, high = _check_bounds("Bounds", (self.low, self.high))
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)
        if self.regression:
            if self.classes is not None:
                raise UsageError("Regression predicts a number and has no classes: remove them.")
            if self.target is not None:
                bounds = _check_bounds("Bounds of the target", self.target)
                object.__setattr__(self, "target", bounds)
        elif self.target is not None:
            raise UsageError("Bounds of the target require regression: set `regression=True`.")
        elif self.classes is not None:
            if not (is_integer(self.classes) and self.classes >= 2):
                raise UsageError(
                    f"The number of classes is {self.classes!r}: expected an integer, 2 or more."
                )
            if not self.classes <= MAX_CLASSES:
                raise UsageError(
                    f"The number of classes is above {MAX_CLASSES:,}, the maximum: a network has "
                    "one output per class."
                )
            object.__setattr__(self, "classes", int(self.classes))
        if self.labels is not None:
            if self.classes != len(self.labels) or sorted(set(self.labels)) != [*self.labels]:
                raise UsageError(
                    f"The labels are {list_labels(self.labels)}: expected one for each class, "
                    "sorted."
                )
            object.__setattr__(self, "labels", tuple(self.labels))
        if not self.shape or not all(is_integer(side) and side > 0 for side in self.shape):
            raise UsageError(f"A record's shape is {self.shape}: expected at least one feature.")
        if not math.prod(int(side) for side in self.shape) <= MAX_ARRAY_FEATURES:
            raise UsageError(
                f"A record's shape is {self.shape}: expected at most {MAX_ARRAY_FEATURES:,} "
                "features."
            )
        object.__setattr__(self, "shape", tuple(int(side) for side in self.shape))

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: one per class, or 1 for regression."""
        return 1 if self.regression else self.classes or 0

    @property
    def undeclared_task(self) -> str | None:
        """Name of the target if its kind is undeclared: always None, because y has a dtype."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features; empty for arrays."""
        return ()

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Items that must be estimated privately before records can be encoded."""
        target = self.target if self.regression else self.classes
        return (("bounds",) if self.low is None else ()) + (("target",) if target is None else ())

    def max_shape(self, most: int) -> tuple[int, ...]:
        """Return the shape of an encoded record; `most` applies to tables only."""
        return self.shape

    @property
    def row_bound(self) -> float:
        """Maximum L2 norm of an encoded record: public."""
        return math.sqrt(math.prod(self.shape))

    @property
    def row_layout(self) -> RowLayout:
        """Layout of an encoded record: one column per feature, none for images."""
        features = range(self.shape[0] if len(self.shape) == 1 else 0)
        columns = tuple(EncodedColumn(start=place, width=1) for place in features)
        return RowLayout(bound=self.row_bound, columns=columns)

    def encode(self, features: np.ndarray, *, out: np.ndarray) -> np.ndarray:
        """Clamp features to the bounds and scale them to [0, 1].

        The computation uses float64, so that a value too large for float32 is clamped and not null.
        Warnings are disabled, because they would reveal a value.

        Args:
            features: Features, (rows, *shape), in the original units.
            out: Output array, float32, (rows, *shape).

        Returns:
            bool, (rows,): whether all features of a record are finite.
        """
        low, high = require_known(self.low), require_known(self.high)
        with np.errstate(all="ignore"):
            values = features.astype(np.float64)
            finite = np.asarray(np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
            np.clip(values, low, high, out=values)
            values -= low
            values /= high - low
            out[...] = values
        return finite

    def encode_labels(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode labels as classes or scaled numbers, and return which are valid.

        Args:
            labels: Labels, (rows,), in the original units.

        Returns:
            Classes, int64, or numbers scaled to [0, 1], float32, (rows,). Whether each is valid,
            bool, (rows,).
        """
        if self.labels is not None:
            known = np.asarray(self.labels)
            if known.dtype.kind == "U":  # spelled like a cell of a table
                cells = (convert_to_string(each, frozenset()) or "" for each in labels.tolist())
                labels = np.array(["", *cells])[1:]
            with np.errstate(all="ignore"):  # a warning would reveal a value
                classes = np.searchsorted(known, labels).clip(max=len(known) - 1)
                valid = known[classes] == labels
            return np.where(valid, classes, 0).astype(np.int64), valid
        if not self.regression:
            valid = (labels >= 0) & (labels < require_known(self.classes))
            return np.where(valid, labels, 0).astype(np.int64), valid
        low, high = require_known(self.target)
        with np.errstate(all="ignore"):
            values = labels.astype(np.float64)
            valid = np.isfinite(values)
            scaled = (np.clip(np.where(valid, values, low), low, high) - low) / (high - low)
        return scaled.astype(np.float32), valid

    def completed_by(self, other: object) -> Schema:
        """Return the schema with undeclared items copied from the schema of other data."""
        if not isinstance(other, Schema) or other.regression != self.regression:
            raise UsageError("The public data differ in task: expected that of the private data.")
        low, high = (self.low, self.high) if self.low is not None else (other.low, other.high)
        classes = self.classes if self.classes is not None else other.classes
        target = self.target if self.target is not None else other.target
        labels = self.labels if self.classes is not None else other.labels
        return replace(self, low=low, high=high, classes=classes, target=target, labels=labels)

    def encode_new(self, records: Any) -> np.ndarray:
        """Return encoded new records, float32, (rows, *shape); a record with NaN or infinity is 0.

        Raises:
            UsageError: Records of another shape, or not numeric.
        """
        array = np.asarray(records)
        if array.shape[1:] != self.shape or array.dtype.kind not in "iufb":
            raise UsageError(
                f"The records have dtype {array.dtype} and shape {array.shape}: expected numbers, "
                f"(rows, {', '.join(map(str, self.shape))})."
            )
        x = np.zeros(array.shape, np.float32)
        x[~self.encode(array, out=x)] = 0.0
        return x

    def decode_class(self, classes: np.ndarray) -> np.ndarray:
        """Return the label of each class index, (rows,): declared label, class name or integer."""
        known = self.class_names if self.labels is None else self.labels
        return classes if known is None else np.array(known)[classes]

    def decode_number(self, scaled: np.ndarray) -> np.ndarray:
        """Return predictions in the original units of the target."""
        low, high = require_known(self.target)
        return low + scaled * (high - low)

    def check_arrays(self, where: str, features: ArrayMetadata, labels: ArrayMetadata) -> None:
        """Raise UsageError if shapes or dtypes of arrays do not fit; no value is read.

        Raises:
            UsageError: Records of another shape, or arrays of another dtype.
        """
        if features.shape[1:] != self.shape:
            raise UsageError(
                f"Data {where!r}: a record has shape {features.shape[1:]}, "
                f"the schema expects {self.shape}."
            )
        kinds = features.dtype.kind, labels.dtype.kind
        kind = "i" if self.labels is None else np.asarray(self.labels).dtype.kind
        expected = "iu" if self.labels is None else "iuf" if kind in "iuf" else kind
        expected = "iuf" if self.regression else expected
        if kinds[0] not in "iufb" or kinds[1] not in expected:
            raise UsageError(
                f"Data {where!r}: features are of type {features.dtype} and labels of "
                f"{labels.dtype}: expected numbers, and integers."
            )

    def describe(self) -> str:
        """Describe the schema in one line."""
        shape = " x ".join(map(str, self.shape))
        inside = "" if self.low is None else f" in [{self.low:g}, {self.high:g}]"
        return f"{shape} features{inside}, {self.describe_task()}"

    def describe_task(self) -> str:
        """Describe the prediction task."""
        if self.regression:
            bounds = "" if self.target is None else " in [{:g}, {:g}]".format(*self.target)
            return f"a number{bounds}"
        if (known := self.class_names or self.labels) is not None:
            return f"{self.classes} classes ({list_labels(known)})"
        return "classes" if self.classes is None else f"{self.classes} classes"

    def describe_items(self) -> list[str]:
        """Return one line of description for the bounds, and one for the target."""
        task = f"to predict: {self.describe_task()}"
        return [f"bounds of the features: {self.low:g} to {self.high:g}", task]

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        target = None if self.target is None else list(self.target)
        plain = {"kind": "arrays", **asdict(self), "shape": list(self.shape), "target": target}
        for key in ("class_names", "labels"):
            known = plain.pop(key)
            if known is not None:
                plain[key] = list(known)
        return plain

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Schema:
        """Create a schema from the output of `to_json`.

        Raises:
            UsageError: Malformed values.
        """
        try:
            target, shape = values.get("target"), tuple(values["shape"])
            plain = {name: value for name, value in values.items() if name != "kind"}
            target = None if target is None else tuple(target)
            for key in ("class_names", "labels"):
                plain[key] = None if plain.get(key) is None else tuple(plain[key])
            return cls(**{**plain, "shape": shape, "target": target})
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"The JSON schema of arrays is malformed ({error!r}).") from None


def list_labels(labels: Sequence[Any]) -> str:
    """Return the first `MAX_LISTED_CLASSES` labels, separated by commas."""
    more = ", ..." if len(labels) > MAX_LISTED_CLASSES else ""
    return ", ".join(map(str, labels[:MAX_LISTED_CLASSES])) + more


class ArrayMetadata(Protocol):
    """Public metadata of a sealed array: shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...


def _check_bounds(name: str, bounds: object) -> tuple[float, float]:
    low, high = bounds if isinstance(bounds, Sequence) and len(bounds) == 2 else (None, None)
    if (found := parse_bounds(low, high)) is None:
        raise UsageError(f"{name} are {low!r}, {high!r}: expected two finite numbers, low < high.")
    return found


def parse_bounds(low: Any, high: Any) -> tuple[float, float] | None:
    """Return finite bounds with low < high as floats; None if they are anything else."""
    try:
        plain = all(isinstance(b, Real) and not isinstance(b, bool) for b in (low, high))
        low, high = (float(low), float(high)) if plain else (math.nan, math.nan)
    except OverflowError:
        return None
    # A width that overflows would scale every value to 0.
    return (low, high) if math.isfinite(high - low) and low < high else None


def require_known(value: Any) -> Any:
    """Return a declared or estimated value; raise RuntimeError if it is None."""
    if value is None:
        raise RuntimeError("Records cannot be encoded before the schema is complete.")
    return value


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, but not a Boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)
