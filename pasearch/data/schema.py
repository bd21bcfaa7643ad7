"""What is public about a data set of arrays: shape, bounds and classes, declared or estimated.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from pasearch.errors import UsageError

MAX_CLASSES = 100_000
"""The most classes: a network has an output for each."""

MAX_LISTED_CLASSES = 10
"""The most class names in one line of a description."""

MAX_ARRAY_FEATURES = 2**24
"""The most numbers of one record: 64 MB as float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedColumn:
    """Where a column stands in an encoded record: public.

    Args:
        start: Its first feature; of a number the number itself, its bins after it.
        width: How many features it has.
        edges: Of a number: the edges between its bins, as the number is scaled, in [0, 1], rising;
            none without bins. None of a category: its features are indicators.
        may_miss: Whether its last feature says that the value is missing.
    """

    start: int
    width: int
    edges: tuple[float, ...] | None = ()
    may_miss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """What is public about an encoded record, besides its shape.

    Args:
        bound: The largest norm that it can have.
        columns: Those that may be paired with others: numbers and categories.
    """

    bound: float
    columns: tuple[EncodedColumn, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The declared form of records with numeric features, and a class or a number to predict.

    What is None is not declared: it is estimated privately before the first training, or read where
    the user assumes it public (`data.estimation`). Exactly one of `classes` and `target` is for the
    task: `regression` says which.

    Args:
        shape: Shape of one record: (features,), (height, width) or (channels, height, width).
        low: Lower bound of every feature, in the data's own units; values below are clamped.
        high: Upper bound of every feature.
        classes: Number of classes; a label that is none of `labels` makes a null record.
        labels: The label of each class, sorted; None: 0 ... classes - 1.
        target: Bounds (low, high) of the number to predict; values outside are clamped.
        regression: Whether a number is predicted.
        class_names: Names of the classes, in their order, such as the sub-folders of a folder of
            images; None: the classes are numbers.

    Raises:
        UsageError: Names that are not one distinct text for each class, bounds that are not finite
            or not low < high, fewer than two classes, or an empty shape.
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
            texts = all(isinstance(name, str) and name for name in names)
            if not texts or not len({*names}) == len(names) == self.classes:
                raise UsageError(
                    f"The names of the classes are {self.class_names!r}: expected a different text "
                    f"for each of the {self.classes} classes."
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
                raise UsageError("A number is predicted, so there are no classes: leave them out.")
            if self.target is not None:
                object.__setattr__(
                    self, "target", _check_bounds("Bounds of the target", self.target)
                )
        elif self.target is not None:
            raise UsageError("The target has bounds, so a number is predicted: say regression.")
        elif self.classes is not None:
            if not (_is_integer(self.classes) and self.classes >= 2):
                raise UsageError(
                    f"The number of classes is {self.classes!r}: expected a whole number, "
                    "2 or above."
                )
            if not self.classes <= MAX_CLASSES:
                raise UsageError(
                    f"The number of classes is above {MAX_CLASSES:,}: expected at most as many, "
                    "because a network has an output for each."
                )
            object.__setattr__(self, "classes", int(self.classes))
        if self.labels is not None:
            if self.classes != len(self.labels) or sorted(set(self.labels)) != [*self.labels]:
                raise UsageError(
                    f"The labels are {list_labels(self.labels)}: expected one for each class, "
                    "sorted."
                )
            object.__setattr__(self, "labels", tuple(self.labels))
        if not self.shape or not all(_is_integer(side) and side > 0 for side in self.shape):
            raise UsageError(f"A record's shape is {self.shape}: expected at least one feature.")
        if not math.prod(int(side) for side in self.shape) <= MAX_ARRAY_FEATURES:
            raise UsageError(
                f"A record's shape is {self.shape}: expected at most {MAX_ARRAY_FEATURES:,} "
                "features."
            )
        object.__setattr__(self, "shape", tuple(int(side) for side in self.shape))

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record: one a class, or the prediction."""
        return 1 if self.regression else self.classes or 0

    @property
    def undeclared_task(self) -> str | None:
        """The target of a table that is undeclared: of arrays the type of y tells the task."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features: arrays have none."""
        return ()

    @property
    def undeclared(self) -> tuple[str, ...]:
        """What must be estimated privately before a record can be encoded."""
        aim = self.target if self.regression else self.classes
        return (("bounds",) if self.low is None else ()) + (("target",) if aim is None else ())

    def max_shape(self, most: int) -> tuple[int, ...]:
        """Return the shape of an encoded record, at most, whatever is estimated privately."""
        return self.shape

    @property
    def row_bound(self) -> float:
        """The largest norm of an encoded record: public."""
        return math.sqrt(math.prod(self.shape))

    @property
    def row_layout(self) -> RowLayout:
        """What is public about an encoded record: each feature is a column, but of images."""
        features = range(self.shape[0] if len(self.shape) == 1 else 0)
        columns = tuple(EncodedColumn(start=place, width=1) for place in features)
        return RowLayout(bound=self.row_bound, columns=columns)

    def encode(self, features: np.ndarray, *, out: np.ndarray) -> np.ndarray:
        """Clamp to the bounds and scale to [0, 1]; return which records are finite.

        In float64, so that a value too large for float32 is clamped, not null; and silently,
        because a warning would tell of a value.

        Args:
            features: (rows, *shape), in the data's own units.
            out: float32, (rows, *shape); written to.

        Returns:
            bool, (rows,).
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
        """Return classes, int64, or numbers scaled to [0, 1], float32; and which are valid.

        Args:
            labels: (rows,), in the data's own units.
        """
        if self.labels is not None:
            known = np.asarray(self.labels)
            with np.errstate(all="ignore"):  # a warning would tell of a value
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
        """Return the schema with what is undeclared taken from the schema of other data."""
        if not isinstance(other, Schema) or other.regression != self.regression:
            raise UsageError("The public data are of another kind than the private ones.")
        low, high = (self.low, self.high) if self.low is not None else (other.low, other.high)
        classes = self.classes if self.classes is not None else other.classes
        target = self.target if self.target is not None else other.target
        labels = self.labels if self.classes is not None else other.labels
        return replace(self, low=low, high=high, classes=classes, target=target, labels=labels)

    def encode_new(self, records: Any) -> np.ndarray:
        """Return new records, float32 (rows, *shape), as in training; one not finite becomes 0.

        Raises:
            UsageError: Records of another shape.
        """
        array = np.asarray(records)
        if array.shape[1:] != self.shape or array.dtype.kind not in "iufb":
            raise UsageError(
                f"The records are {array.dtype} of shape {array.shape}: expected numbers, "
                f"(rows, {', '.join(map(str, self.shape))})."
            )
        x = np.zeros(array.shape, np.float32)
        x[~self.encode(array, out=x)] = 0.0
        return x

    def decode_class(self, classes: np.ndarray) -> np.ndarray:
        """Return the labels of classes: as declared, the names of the classes, or 0, 1 ..."""
        known = self.class_names if self.labels is None else self.labels
        return classes if known is None else np.array(known)[classes]

    def decode_number(self, scaled: np.ndarray) -> np.ndarray:
        """Return predictions in the target's own units."""
        low, high = require_known(self.target)
        return low + scaled * (high - low)

    def check_arrays(self, where: str, features: ArrayMetadata, labels: ArrayMetadata) -> None:
        """Refuse arrays whose form does not fit; no value is looked at.

        Raises:
            UsageError: A record of another shape, or arrays of another type.
        """
        if features.shape[1:] != self.shape:
            raise UsageError(
                f"Data {where!r}: a record has shape {features.shape[1:]}, "
                f"the schema says {self.shape}."
            )
        kinds = features.dtype.kind, labels.dtype.kind
        expected = "iuf" if self.regression else get_label_kinds(self.labels)
        if kinds[0] not in "iufb" or kinds[1] not in expected:
            raise UsageError(
                f"Data {where!r}: features are of type {features.dtype} and labels of "
                f"{labels.dtype}: expected numbers, and whole numbers."
            )

    def describe(self) -> str:
        """Return one readable line."""
        shape = " x ".join(map(str, self.shape))
        inside = "" if self.low is None else f" in [{self.low:g}, {self.high:g}]"
        return f"{shape} features{inside}, {self.describe_task()}"

    def describe_task(self) -> str:
        """Return what is predicted."""
        if self.regression:
            bounds = "" if self.target is None else " in [{:g}, {:g}]".format(*self.target)
            return f"a number{bounds}"
        if (known := self.class_names or self.labels) is not None:
            return f"{self.classes} classes ({list_labels(known)})"
        return "classes" if self.classes is None else f"{self.classes} classes"

    def describe_items(self) -> list[str]:
        """Return bounds and target in words, one line each: what an estimate of them released."""
        task = f"to predict: {self.describe_task()}"
        return [f"bounds of the features: {self.low:g} to {self.high:g}", task]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        target = None if self.target is None else list(self.target)
        plain = {"kind": "arrays", **asdict(self), "shape": list(self.shape), "target": target}
        for key in ("class_names", "labels"):
            known = plain.pop(key)
            if known is not None:
                plain[key] = list(known)
        return plain

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Schema:
        """Read what `request_to_json` wrote.

        Raises:
            UsageError: Anything else.
        """
        try:
            target, shape = values.get("target"), tuple(values["shape"])
            plain = {name: value for name, value in values.items() if name != "kind"}
            aim = None if target is None else tuple(target)
            for key in ("class_names", "labels"):
                plain[key] = None if plain.get(key) is None else tuple(plain[key])
            return cls(**{**plain, "shape": shape, "target": aim})
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"The schema of arrays is not well formed ({error!r}).") from None


def get_label_kinds(labels: Sequence[Any] | None) -> str:
    """Return the kinds of number types (numpy's letters) that y may have for declared labels."""
    kind = "i" if labels is None else np.asarray(labels).dtype.kind
    return "iu" if labels is None else "iuf" if kind in "iuf" else kind


def list_labels(labels: Sequence[Any]) -> str:
    """Return labels as text, the first few of many."""
    more = ", ..." if len(labels) > MAX_LISTED_CLASSES else ""
    return ", ".join(map(str, labels[:MAX_LISTED_CLASSES])) + more


class ArrayMetadata(Protocol):
    """What may be known of a sealed array: its shape and number type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its number type."""
        ...


def _check_bounds(name: str, bounds: object) -> tuple[float, float]:
    """Return (low, high) as floats."""
    low, high = bounds if isinstance(bounds, Sequence) and len(bounds) == 2 else (None, None)
    if (found := parse_bounds(low, high)) is None:
        raise UsageError(f"{name} are {low!r}, {high!r}: expected two finite numbers, low < high.")
    return found


def parse_bounds(low: Any, high: Any) -> tuple[float, float] | None:
    """Return two finite numbers, low < high, as floats; None of anything else."""
    try:
        plain = all(isinstance(b, Real) and not isinstance(b, bool) for b in (low, high))
        low, high = (float(low), float(high)) if plain else (math.nan, math.nan)
    except OverflowError:
        return None
    # A width that overflows would scale every value to 0.
    return (low, high) if math.isfinite(high - low) and low < high else None


def require_known(value: Any) -> Any:
    """Return what is declared or estimated by now; a read before that is a bug in the program."""
    if value is None:
        raise RuntimeError("A record was to be encoded before its schema was complete.")
    return value


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
