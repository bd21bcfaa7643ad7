"""Where records come from: the embedded digits, MNIST-like idx files, or a .npz of the user's.

Only the *form* of a file (names, shapes, number types) may raise an error here; values never do.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.errors import UsageError

IDX_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
"""The torchvision class of each set, which is also the folder's name."""

BUILT_IN = ("digits", *IDX_SETS)

ARRAYS = {"x", "y", "bounds", "classes"}
"""What is read from a .npz; anything else in it is left alone."""

UNREADABLE = (
    ValueError, TypeError, KeyError, OSError, EOFError, MemoryError, NotImplementedError,
    RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What numpy and zipfile raise on a file that is no .npz, is cut short or uses what they lack."""


def load_dataset(
    source: str,
    *,
    data_root: str | Path = "data",
    download: bool = False,
    public: bool = False,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
) -> Dataset:
    """Return the data set called `source`.

    Args:
        source: `digits`, `mnist`, `fashion-mnist`, or the path of a .npz with arrays x and y.
        data_root: Folder that holds `MNIST/raw/` and the like (idx files, or their .gz).
        download: Let torchvision download what is not there.
        public: The user declares every record public.
        bounds: Declared (low, high) of the features of a .npz.
        classes: Declared number of classes of a .npz.

    Returns:
        Dataset: Not yet partitioned.

    Raises:
        UsageError: No such data, or data of bad form.
    """
    if source in BUILT_IN and (bounds is not None or classes is not None):
        raise UsageError(f"--bounds and --classes are for .npz files: {source!r} has its own.")
    if source == "digits":
        return _digits(public)
    if source in IDX_SETS:
        return _idx_set(source, Path(data_root), download=download, public=public)
    if Path(source).suffix == ".npz":
        return _npz(Path(source), public=public, bounds=bounds, classes=classes)
    raise UsageError(
        f"Data {source!r} is not known: expected one of {', '.join(BUILT_IN)}, "
        "or the path of a .npz file with arrays x and y."
    )


def _digits(public: bool) -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(
        name="digits",
        schema=Schema(shape=(8, 8), low=0.0, high=16.0, classes=10),
        features=bunch.images,  # pyright: ignore[reportAttributeAccessIssue]
        labels=bunch.target,  # pyright: ignore[reportAttributeAccessIssue]
        public=public,
    )


def _idx_set(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
    folder = root / IDX_SETS[name] / "raw"
    if download:
        _download(IDX_SETS[name], root)
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(folder / f"{part}-images-idx3-ubyte", axes=3)
        labels = _read_idx(folder / f"{part}-labels-idx1-ubyte", axes=1)
        if len(images) != len(labels):
            raise UsageError(
                f"{folder}: {part} has {len(images)} images and {len(labels)} labels: "
                "the files do not belong together."
            )
        parts.append((images, labels))
    sides = {images.shape[1:] for images, _ in parts}
    if len(sides) > 1 or not all(len(labels) for _, labels in parts):
        raise UsageError(
            f"{folder}: train and t10k have images of sides {sorted(sides)}, "
            f"{' and '.join(str(len(labels)) for _, labels in parts)} of them: expected one size "
            "and at least one image each."
        )
    return Dataset(
        name=name,
        schema=Schema(shape=parts[0][0].shape[1:], low=0.0, high=255.0, classes=10),
        features=np.concatenate([images for images, _ in parts]),
        labels=np.concatenate([labels for _, labels in parts]),
        public=public,
        official_test=len(parts[1][1]),
    )


def _download(torchvision_class: str, root: Path) -> None:
    from torchvision import datasets

    try:
        getattr(datasets, torchvision_class)(root, download=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"Could not download {torchvision_class} into {root}: {error}. "
            "Put the idx files there yourself, or point --data-root at them."
        ) from None


def _read_idx(path: Path, *, axes: int) -> np.ndarray:
    """Read an idx file of bytes: magic number, one big-endian size an axis, then the bytes."""
    packed = path.with_name(path.name + ".gz")
    try:
        if path.is_file():
            raw = path.read_bytes()
        elif packed.is_file():
            raw = gzip.decompress(packed.read_bytes())
        else:
            raise UsageError(
                f"{path} (or its .gz) is not there: put the file there, name another folder with "
                "--data-root, or let torchvision download it with --download."
            )
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    head = 4 + 4 * axes
    if len(raw) < head or raw[:4] != bytes([0, 0, 8, axes]):
        raise UsageError(f"{path} is not an idx file of bytes with {axes} axes.")
    shape = struct.unpack(f">{axes}I", raw[4:head])
    announced, found = math.prod(shape), len(raw) - head
    if found != announced:
        raise UsageError(
            f"{path} is {'cut short' if found < announced else 'too long'}: its head announces "
            f"{announced:,} bytes, {found:,} follow. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _npz(
    path: Path,
    *,
    public: bool,
    bounds: tuple[float, float] | None,
    classes: int | None,
) -> Dataset:
    arrays = _open_npz(path)
    return from_arrays(
        arrays["x"], arrays["y"], name=path.stem, where=str(path), public=public,
        bounds=bounds if bounds is not None else _declared_bounds(path, arrays),
        classes=classes if classes is not None else _declared_classes(path, arrays),
    )  # fmt: skip


def from_arrays(
    x: np.ndarray,
    y: np.ndarray,
    *,
    name: str = "arrays",
    where: str = "data",
    public: bool = False,
    bounds: tuple[float, float] | None = None,
    classes: int | None = None,
) -> Dataset:
    """Return a data set of arrays in memory.

    Args:
        x: Numbers, (n, features), (n, height, width) or (n, channels, height, width).
        y: Whole numbers, (n,).
        name: What the plan and the card call it.
        where: What an error message calls it.
        public: The user declares every record public.
        bounds: Declared (low, high) of x; bytes (uint8) have 0 and 255 by their type.
        classes: Declared number of classes.

    Raises:
        UsageError: Arrays of another form, of different length or empty, or nothing declared.
    """
    _check_arrays(x, y, where)
    if len(x) != len(y):
        raise UsageError(f"{where}: x has {len(x)} records and y has {len(y)}: expected as many.")
    if not len(x) > 0:
        raise UsageError(f"{where}: there is no record in it.")
    if bounds is None and x.dtype == np.uint8:
        bounds = (0.0, 255.0)
    if bounds is None and x.dtype == np.bool_:
        bounds = (0.0, 1.0)
    if bounds is None:
        raise UsageError(
            f"{where}: the bounds of x are not declared, and reading them from the records would "
            "leak. Declare public bounds with --bounds LOW HIGH, or an array `bounds` in the file."
        )
    if classes is None:
        raise UsageError(
            f"{where}: the number of classes is not declared, and counting them would leak. "
            "Declare it with --classes K, or an array `classes` in the file."
        )
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise UsageError(f"{where}: bounds are {bounds!r}: expected two numbers.") from None
    schema = Schema(shape=x.shape[1:], low=low, high=high, classes=classes)
    return Dataset(name=name, schema=schema, features=x, labels=y.astype(np.int64), public=public)


def _check_arrays(x: object, y: object, where: str) -> None:
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        raise UsageError(
            f"{where}: x is {type(x).__name__} and y is {type(y).__name__}: expected two numpy "
            "arrays (numpy.asarray makes them)."
        )
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "iufb":
        raise UsageError(
            f"{where}: x has shape {x.shape} and type {x.dtype}: expected numbers, (n, features), "
            "(n, height, width) or (n, channels, height, width)."
        )
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UsageError(
            f"{where}: y has shape {y.shape} and type {y.dtype}: expected whole numbers, (n,)."
        )


def _open_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{path} {fault}: expected a .npz file with arrays x and y.")
    if not path.stat().st_size > 0:
        raise UsageError(f"{path} is empty: expected a .npz file with arrays x and y.")
    try:
        # Opened here: of a damaged archive, numpy would leave its own handle open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = set(archive.files)
            arrays = {name: archive[name] for name in sorted(names & ARRAYS)}
    except UNREADABLE:
        raise UsageError(
            f"{path} {_fault(path)}. Write it with numpy.savez(path, x=x, y=y), x and y arrays of "
            "numbers."
        ) from None
    if missing := {"x", "y"} - names:
        raise UsageError(
            f"{path} has no array {' and no array '.join(sorted(missing))}: "
            f"it holds {', '.join(sorted(names)) or 'nothing'}."
        )
    return arrays


def _fault(path: Path) -> str:
    """Say why a file is no .npz of plain arrays."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return "is a single array (.npy), not a .npz"
    if start[:2] != b"PK":
        return "is no .npz file"
    return (
        "is damaged or cut short"
        if not zipfile.is_zipfile(path)
        else ("is damaged, or holds arrays of objects, which are not read")
    )


def _declared_bounds(path: Path, arrays: dict[str, np.ndarray]) -> tuple[float, float] | None:
    if "bounds" not in arrays:
        return None
    bounds = arrays["bounds"]
    if bounds.shape != (2,) or bounds.dtype.kind not in "iuf":
        raise UsageError(f"{path}: `bounds` has shape {bounds.shape}: expected two numbers.")
    return float(bounds[0]), float(bounds[1])


def _declared_classes(path: Path, arrays: dict[str, np.ndarray]) -> int | None:
    if "classes" not in arrays:
        return None
    classes = arrays["classes"]
    if classes.shape not in ((), (1,)) or classes.dtype.kind not in "iu":
        raise UsageError(f"{path}: `classes` is {classes.dtype}{classes.shape}: expected a number.")
    return int(classes.reshape(-1)[0])
