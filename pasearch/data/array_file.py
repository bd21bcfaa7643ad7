"""Data source: arrays x and y, in memory, in a .npz file, or in a folder of .npy files.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.arrays import (
    MAX_EAGER_BYTES,
    StoredArray,
    find_stored_arrays,
    is_folder_of_arrays,
)
from pasearch.data.cells import convert_to_string
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError

ARRAY_NAMES = {"x", "y", "bounds", "classes", "official_test", "name"}
"""Names of the arrays that are read from a .npz file; others are ignored."""

MAX_METADATA_BYTES = 4096
"""Maximum size of each array other than x and y, in bytes."""


@SOURCES.register
class ArrayFile(Source):
    """A .npz file with arrays x and y, or a folder with x.npy and y.npy."""

    name = "npz"
    kind = "a .npz"
    expected = "the path of a .npz file with arrays x and y, or of a folder with x.npy and y.npy"
    suffixes = (".npz",)
    uses = ("bounds", "classes", "regression", "labels")

    def takes(self, data: str) -> bool:
        """Whether the name ends in .npz, or the folder contains x.npy and y.npy."""
        return super().takes(data) or (bool(data) and is_folder_of_arrays(Path(data)))

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Load the data set; large arrays are read when a run begins."""
        path = Path(data)
        arrays, names = find_stored_arrays(path, ARRAY_NAMES)
        if missing := {"x", "y"} - set(names):
            raise UsageError(
                f"{path} has no array {' and no array '.join(sorted(missing))}: "
                f"found {', '.join(names[:20]) or 'no array'}."
            )
        for name in set(arrays) - {"x", "y"}:
            if arrays[name].nbytes > MAX_METADATA_BYTES:
                raise UsageError(
                    f"{path}: `{name}` has {arrays[name].nbytes:,} bytes: expected a number or a "
                    "string."
                )
        bounds: tuple[float, float] | None = None
        if "bounds" in arrays:
            ends = arrays["bounds"].read()
            if ends.shape != (2,) or ends.dtype.kind not in "iuf":
                raise UsageError(f"{path}: `bounds` has shape {ends.shape}: expected two numbers.")
            bounds = float(ends[0]), float(ends[1])
        classes: Any = None
        if "classes" in arrays:  # the number of classes, or their labels
            is_count = math.prod(arrays["classes"].shape) == 1
            classes = (
                _read_integer(path, arrays, "classes")
                if is_count
                else arrays["classes"].read().ravel().tolist()
            )
        given = _get_declared_classes(declared)
        if declared.regression and given is not None:
            name = "labels" if declared.classes is None else "classes"
            raise UsageError(
                f"`regression=True` predicts a number, so `{name}=` does not apply: remove one of "
                "them."
            )
        bounds = bounds if declared.bounds is None else declared.bounds
        classes = classes if given is None else given
        pair = arrays["x"], arrays["y"]
        at_once = sum(each.nbytes for each in pair) <= MAX_EAGER_BYTES
        x, y = (each.read() if at_once else each for each in pair)
        dataset = from_arrays(
            x, y, name=str(arrays["name"].read()) if "name" in arrays else path.stem,
            where=str(path), public=declared.public, bounds=bounds,
            classes=None if declared.regression else classes, regression=declared.regression,
        )  # fmt: skip
        tail = _read_integer(path, arrays, "official_test")
        if not 0 <= tail < dataset.n:
            raise UsageError(f"{path}: `official_test` is {tail}: expected less than {dataset.n}.")
        return replace(dataset, official_test=tail)

    def new_records(self, data: str, schema: AnySchema) -> np.ndarray:
        """Read the array x of a file."""
        arrays, _ = find_stored_arrays(Path(data), ("x",))
        if "x" not in arrays:
            raise UsageError(f"{data} has no array x: expected the new records in it.")
        return arrays["x"].read()


def from_arrays(
    x: np.ndarray | StoredArray,
    y: np.ndarray | StoredArray,
    *,
    name: str = "arrays",
    where: str = "data",
    **said: Any,
) -> Dataset:
    """Build a data set from arrays.

    Args:
        x: Features, numeric: (n, features), (n, height, width) or (n, channels, height, width).
        y: Labels, (n,): integers, or values of the type of the declared labels. Any numbers for a
            regression.
        name: Name of the data set in the plan and the privacy card.
        where: Name of the data in error messages.
        said: Declarations of the user, fields of `DataDeclaration`; the rest is estimated
            privately. The types uint8 and bool imply the bounds 0 to 255 and 0 to 1.

    Raises:
        UsageError: The arrays have another shape or type, different lengths, or no record.
    """
    declared = DataDeclaration(**said)
    _check_arrays(x, y, where, declared.regression)
    given = _get_declared_classes(declared)
    if declared.regression and given is not None:
        raise UsageError("`regression=True` predicts a number: remove `classes=` and `labels=`.")
    classes, known = (None, None) if declared.regression else (
        resolve_classes(given, y.dtype, where)
    )  # fmt: skip
    if len(x) != len(y):
        raise UsageError(
            f"{where}: x has {len(x)} records and y has {len(y)}: expected equal numbers."
        )
    if not len(x) > 0:
        raise UsageError(f"{where} has no records: expected at least one.")
    bounds = declared.bounds
    if bounds is None and x.dtype == np.uint8:
        bounds = (0.0, 255.0)
    if bounds is None and x.dtype == np.bool_:
        bounds = (0.0, 1.0)
    try:
        low, high = (None, None) if bounds is None else bounds
    except (TypeError, ValueError):
        raise UsageError(f"{where}: bounds are {bounds!r}: expected two numbers.") from None
    schema = Schema(
        shape=x.shape[1:], low=low, high=high, classes=classes, labels=known,
        regression=declared.regression,
    )  # fmt: skip
    labels, notes = y, ()
    if not declared.regression and known is None:
        labels = y.astype(np.int64)
        assumed = (
            "no labels declared: using 0, 1, 2, ..."
            if classes is None
            else f"`classes={classes}` declares the labels 0 to {classes - 1}"
        )
        notes = (
            f"{assumed}. Records with other labels cannot be used. If your labels differ, list all "
            "of them (`labels=1,2`).",
        )
    return Dataset(
        name=name, schema=schema, features=x, labels=labels, public=declared.public, notes=notes
    )


def _check_arrays(x: object, y: object, where: str, regression: bool) -> None:
    """Raise UsageError if x or y has an invalid type or shape."""
    masked = any(isinstance(each, np.ma.MaskedArray) for each in (x, y))
    if (
        masked
        or isinstance(x, np.matrix)
        or not isinstance(x, np.ndarray | StoredArray)
        or not isinstance(y, np.ndarray | StoredArray)
    ):
        how = "x.filled(numpy.nan) or y.filled(-1)" if masked else "numpy.asarray"
        raise UsageError(
            f"{where}: x is {type(x).__name__} and y is {type(y).__name__}: expected two numpy "
            f"arrays ({how} makes them)."
        )
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "iufb":
        raise UsageError(
            f"{where}: x has shape {x.shape} and type {x.dtype}: expected numbers, (n, features), "
            "(n, height, width) or (n, channels, height, width)."
        )
    kinds = "iuf" if regression else "iufbU"
    if y.ndim != 1 or y.dtype.kind not in kinds:
        column = y.ndim == 2 and y.shape[1] == 1
        remedy = " Use y.ravel()." if column and y.dtype.kind in kinds else ""
        if not regression and y.dtype.kind in "OSM":
            remedy = " y.astype(str) converts strings, bytes and dates."
        raise UsageError(
            f"{where}: y has shape {y.shape} and type {y.dtype}: expected "
            f"{'numbers' if regression else 'labels: integers or strings'}, (n,).{remedy}"
        )


def _get_declared_classes(declared: DataDeclaration) -> Any:
    """Return the number of classes, or the labels, that the user declares; None if neither.

    Raises UsageError if `classes` and `labels` are both given.
    """
    if declared.labels is None:
        return declared.classes
    if declared.classes is not None:
        raise UsageError("`labels=` and `classes=` both declare the classes: remove one of them.")
    labels = declared.labels
    return labels.split(",") if isinstance(labels, str) else labels  # a list is never a number


def resolve_classes(
    given: Any, dtype: np.dtype[Any], where: str
) -> tuple[int | None, tuple[Any, ...] | None]:
    """Return the number of classes (None if undeclared), and their labels (None if 0, 1, ...).

    Args:
        given: Number of classes, or the labels: a sequence, or one string separated by commas.
            None: undeclared.
        dtype: Type of y; public.
        where: Name of the data in error messages.

    Raises:
        UsageError: The labels do not have the type of y, or a number of classes is given and y does
            not hold integers.
    """
    many = given
    if isinstance(given, str) and "," not in given and given.strip().lstrip("+").isdecimal():
        many = int(given)
    if many is None or isinstance(many, Integral):
        if dtype.kind == "b" and many in (None, 2):
            return 2, (False, True)
        if dtype.kind in "iu":
            return many, None  # type: ignore[return-value]
        raise UsageError(
            f"{where}: y has type {dtype}, and classes is {given!r}: list the labels as they occur "
            "in y, such as `classes='no,yes'`"
            + (", or use `regression=True` to predict a number." if dtype.kind == "f" else ".")
        )
    try:
        parts = given.split(",") if isinstance(given, str) else list(given)
        texts = [convert_to_string(part, frozenset()) or "" for part in parts]
        if dtype.kind == "U":
            labels: list[Any] = texts
        elif dtype.kind == "b":
            labels = [bool(("False", "True").index(text)) for text in texts]
        else:
            labels = [_parse_label_number(text) for text in texts]
    except (TypeError, ValueError):
        labels = []
    if "" in labels or len(set(labels)) != len(labels) or len(labels) < 2:
        raise UsageError(
            f"{where}: the declared classes are {given!r}, and y has type {dtype}: expected the "
            "number of classes, or at least two different labels of this type."
        )
    labels.sort()
    plain = dtype.kind in "iu" and labels == list(range(len(labels)))
    return len(labels), None if plain else tuple(labels)


def _parse_label_number(text: str) -> int | float:
    """Parse a label as an integer if possible, else as a float; raise ValueError if not finite."""
    try:
        return int(text)
    except ValueError:
        if not math.isfinite(number := float(text)):
            raise
        return int(number) if number.is_integer() else number


def _read_integer(path: Path, arrays: dict[str, StoredArray], name: str) -> int:
    """Read an array of the file that holds one integer; 0 if the array is missing."""
    number = arrays[name].read() if name in arrays else np.array(0)
    if number.shape not in ((), (1,)) or number.dtype.kind not in "iu":
        raise UsageError(f"{path}: `{name}` is {number.dtype}{number.shape}: expected a number.")
    return int(number.reshape(-1)[0])
