"""Where records come from: a built-in set of images, a folder of images, a .npz, a table.

Only the *form* of a file (names, shapes, number types) may raise an error here; values never do.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.arrays import AT_ONCE, Stored, stored_arrays
from pasearch.data.images import BUILT_IN, built_in, image_folder
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.errors import UsageError

ARRAYS = {"x", "y", "bounds", "classes", "official_test", "name"}
"""What is read from a .npz; anything else in it is left alone."""

LONGEST_NOTE = 4096
"""The most bytes of what else is read of a .npz than x and y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the user says about data beside where it is.

    Args:
        public: Every record is public.
        bounds: (low, high) of the features of arrays.
        classes: Number of classes of arrays.
        regression: A number is to be predicted, not a class.
        target: Name of a table's column to predict; None takes the last one.
        schema: Path of a table's schema, TOML.
        quotes: False takes the quotation marks of a table as ordinary characters.
        image_side: Pixels that the images of a folder are scaled to.
        grey: Images of a folder get one channel.
        data_root: Folder of the built-in sets of images.
        download: Let torchvision download what is missing.
    """

    public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None
    regression: bool = False
    target: str | None = None
    schema: str | Path | None = None
    quotes: bool = True
    image_side: int | None = None
    grey: bool = False
    data_root: str | Path = "data"
    download: bool = False


BELONGS = {
    "bounds": "a .npz",
    "classes": "a .npz",
    "regression": "a .npz or a table",
    "target": "a table",
    "schema": "a table",
    "quotes": "a table",
    "image_side": "a folder of images",
    "grey": "a folder of images",
}
"""What each declaration is for; built-in data has its own."""


def load_dataset(source: str, **said: Any) -> Dataset:
    """Return the data set called `source`.

    Args:
        source: One of `BUILT_IN`, or the path of a .npz with arrays x and y, of a .csv with a
            header, or of a folder of images.
        said: What the user says about it: fields of `Declared`.

    Returns:
        Dataset: Not yet partitioned.

    Raises:
        UsageError: No such data, data of bad form, or a declaration that it has no use for.
    """
    path, declared = Path(source), Declared(**said)
    _check_use(source, declared, useful(source))
    if source in BUILT_IN:
        return built_in(
            source, data_root=declared.data_root, download=declared.download, public=declared.public
        )
    if path.suffix == ".npz":
        return _npz(path, declared)
    if path.suffix.lower() == ".csv":
        return _table(path, declared)
    if source and path.is_dir():
        return image_folder(
            path, side=declared.image_side, grey=declared.grey, public=declared.public
        )
    raise UsageError(
        f"Data {source!r} is not known: expected one of {', '.join(BUILT_IN)}, or the path of a "
        ".csv file with a header, a .npz file with arrays x and y, or a folder of images."
    )


def useful(source: str) -> tuple[str, ...]:
    """Return which declarations of `BELONGS` this kind of data has a use for."""
    path = Path(source)
    if source in BUILT_IN:
        return ()
    if path.suffix == ".npz":
        return ("bounds", "classes", "regression")
    if path.suffix.lower() == ".csv":
        return ("target", "schema", "quotes", "regression")
    if source and path.is_dir():
        return ("image_side", "grey")
    return tuple(BELONGS)


def _check_use(source: str, declared: Declared, useful: tuple[str, ...]) -> None:
    """Refuse what the user said about other kinds of data than this."""
    for name, kind in BELONGS.items():
        said = getattr(declared, name)
        if name not in useful and said is not None and said != getattr(Declared(), name):
            option = "no-quotes" if name == "quotes" else name.replace("_", "-")
            raise UsageError(
                f"--{option} is for {kind}: {source!r} has no use for it. Leave it out."
            )


def _table(path: Path, declared: Declared) -> Dataset:
    from pasearch.data.csv_file import read_table
    from pasearch.data.tables import TableSchema

    schema = None if declared.schema is None else TableSchema.from_toml(declared.schema)
    schema, features, labels = read_table(path, declared.target, schema, quotes=declared.quotes)
    if declared.regression:
        if schema.target.kind not in (None, "number"):
            raise UsageError(
                f"--regression predicts a number, but the schema declares column "
                f"{schema.target.name!r} as a {schema.target.kind}: change one of them."
            )
        schema = replace(schema, target=replace(schema.target, kind="number"))
    return Dataset(
        name=schema.name,
        schema=schema,
        features=features,
        labels=labels,
        public=declared.public,
        official_test=schema.official_test,
    )


def _npz(path: Path, declared: Declared) -> Dataset:
    arrays = _open_npz(path)
    bounds, classes = _declared_bounds(path, arrays), _declared_classes(path, arrays)
    if declared.regression and declared.classes is not None:
        raise UsageError(
            "--regression predicts a number, so there are no --classes: leave one out."
        )
    bounds = bounds if declared.bounds is None else declared.bounds
    classes = classes if declared.classes is None else declared.classes
    pair = arrays["x"], arrays["y"]
    at_once = sum(each.nbytes for each in pair) <= AT_ONCE
    x, y = (each.read() if at_once else each for each in pair)
    dataset = from_arrays(
        x,
        y,
        name=str(arrays["name"].read()) if "name" in arrays else path.stem,
        where=str(path),
        public=declared.public,
        bounds=bounds,
        classes=None if declared.regression else classes,
        regression=declared.regression,
    )
    tail = _whole_array(path, arrays, "official_test")
    if not 0 <= tail < dataset.n:
        raise UsageError(f"{path}: `official_test` is {tail}: expected less than {dataset.n}.")
    return replace(dataset, official_test=tail)


def from_arrays(
    x: np.ndarray | Stored,
    y: np.ndarray | Stored,
    *,
    name: str = "arrays",
    where: str = "data",
    **said: Any,
) -> Dataset:
    """Return a data set of arrays in memory.

    Args:
        x: Numbers, (n, features), (n, height, width) or (n, channels, height, width).
        y: Whole numbers, (n,); any numbers for a regression.
        name: What the plan and the card call it.
        where: What an error message calls it.
        said: What the user says about them, fields of `Declared`: the rest is bought. Bytes (uint8)
            have the bounds 0 and 255 by their type, bool 0 and 1.

    Raises:
        UsageError: Arrays of another form, of different length or empty.
    """
    declared = Declared(**said)
    _check_arrays(x, y, where, declared.regression)
    if len(x) != len(y):
        raise UsageError(f"{where}: x has {len(x)} records and y has {len(y)}: expected as many.")
    if not len(x) > 0:
        raise UsageError(f"{where}: there is no record in it.")
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
        shape=x.shape[1:], low=low, high=high, classes=declared.classes,
        regression=declared.regression,
    )  # fmt: skip
    labels = y if declared.regression else y.astype(np.int64)
    return Dataset(name=name, schema=schema, features=x, labels=labels, public=declared.public)


def _check_arrays(x: object, y: object, where: str, regression: bool) -> None:
    if not isinstance(x, np.ndarray | Stored) or not isinstance(y, np.ndarray | Stored):
        raise UsageError(
            f"{where}: x is {type(x).__name__} and y is {type(y).__name__}: expected two numpy "
            "arrays (numpy.asarray makes them)."
        )
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "iufb":
        raise UsageError(
            f"{where}: x has shape {x.shape} and type {x.dtype}: expected numbers, (n, features), "
            "(n, height, width) or (n, channels, height, width)."
        )
    if y.ndim != 1 or y.dtype.kind not in ("iuf" if regression else "iu"):
        raise UsageError(
            f"{where}: y has shape {y.shape} and type {y.dtype}: expected "
            f"{'numbers' if regression else 'whole numbers'}, (n,)."
        )


def _open_npz(path: Path) -> dict[str, Stored]:
    arrays, names = stored_arrays(path, ARRAYS)
    if missing := {"x", "y"} - set(names):
        raise UsageError(
            f"{path} has no array {' and no array '.join(sorted(missing))}: "
            f"it holds {', '.join(names[:20]) or 'nothing'}."
        )
    for name in set(arrays) - {"x", "y"}:
        if arrays[name].nbytes > LONGEST_NOTE:
            raise UsageError(
                f"{path}: `{name}` has {arrays[name].nbytes:,} bytes: expected a number or a word."
            )
    return arrays


def _declared_bounds(path: Path, arrays: dict[str, Stored]) -> tuple[float, float] | None:
    if "bounds" not in arrays:
        return None
    bounds = arrays["bounds"].read()
    if bounds.shape != (2,) or bounds.dtype.kind not in "iuf":
        raise UsageError(f"{path}: `bounds` has shape {bounds.shape}: expected two numbers.")
    return float(bounds[0]), float(bounds[1])


def _declared_classes(path: Path, arrays: dict[str, Stored]) -> int | None:
    return _whole_array(path, arrays, "classes") if "classes" in arrays else None


def _whole_array(path: Path, arrays: dict[str, Stored], name: str) -> int:
    """Return the one whole number that an array of the file holds; 0 when it is not there."""
    number = arrays[name].read() if name in arrays else np.array(0)
    if number.shape not in ((), (1,)) or number.dtype.kind not in "iu":
        raise UsageError(f"{path}: `{name}` is {number.dtype}{number.shape}: expected a number.")
    return int(number.reshape(-1)[0])
