"""Data source: data sets with a name (digits, MNIST, Fashion-MNIST, CIFAR-10, SVHN, Purchase-100).

Source: docs/rules.md, rules 3 and 13; Bao et al., section IV-A (SVHN in grey, Purchase-100).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np

from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.errors import UsageError

IDX_CLASSES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
"""Class of torchvision for each data set in idx files; also the name of its folder."""

TORCHVISION_NAMES = ("cifar10", "svhn")  # data sets that torchvision reads

GREY_SVHN, PURCHASE = "svhn-grey", "purchase-100"

BUILT_IN_NAMES = ("digits", *IDX_CLASSES, *TORCHVISION_NAMES, GREY_SVHN, PURCHASE)

GREY_WEIGHTS = np.array([19595, 38470, 7471], dtype=np.uint32)
"""Weights of red, green and blue in grey, out of 2^16: those of `grey=True` (ITU-R 601-2)."""

PURCHASE_FILE = "dataset_purchase"
"""Text file of Shokri et al.: a class from 1 to 100 and `PURCHASE_FEATURES` cells per line."""
PURCHASE_FEATURES = 600  # number of features of Purchase-100, each 0 or 1
PURCHASE_CLASSES = 100  # number of classes of Purchase-100

MAX_IDX_BYTES = 2**28
"""Maximum size of an idx file's content, in bytes: MNIST has 47 million."""


@SOURCES.register
class BuiltIn(Source):
    """Data set with a name in `BUILT_IN_NAMES`, from `data_root` in torchvision's layout."""

    name = "built-in"
    kind = "built-in images"
    expected = f"one of {', '.join(BUILT_IN_NAMES)}"
    is_path = False

    def takes(self, data: str) -> bool:
        return data in BUILT_IN_NAMES

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        if data == "digits":
            return _load_digits(declared.public)
        root, download = Path(declared.data_root), declared.download
        if data == PURCHASE:
            return _load_purchase(root, download=download, public=declared.public)
        if data == GREY_SVHN:
            return _load_grey_svhn(data, root, download=download, public=declared.public)
        load = _load_idx_set if data in IDX_CLASSES else _load_torchvision_set
        return load(data, root, download=download, public=declared.public)


def _load_digits(public: bool) -> Dataset:
    """Load the digits of scikit-learn, 8 x 8 pixels."""
    found = find_spec("sklearn")
    folder = Path(found.origin).parent if found and found.origin else Path()
    file = folder / "datasets/data/digits.csv.gz"
    if file.is_file():  # importing scikit-learn takes a second
        cells = np.loadtxt(file, delimiter=",")
        features, labels = cells[:, :-1], cells[:, -1].astype(np.int64)
    else:
        from sklearn.datasets import load_digits

        features, labels = map(np.asarray, load_digits(return_X_y=True))
    return Dataset(
        name="digits",
        schema=Schema(shape=(8, 8), low=0.0, high=16.0, classes=10),
        features=features.reshape(-1, 8, 8),
        labels=labels,
        public=public,
    )


def _load_idx_set(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
    """Load a data set of idx files, training images first."""
    folder = root / IDX_CLASSES[name] / "raw"
    if download:
        from torchvision import datasets

        try:
            getattr(datasets, IDX_CLASSES[name])(root, download=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"Could not download {IDX_CLASSES[name]} into {root}: {error}. "
                "Copy the idx files there, or set `data_root=` to their folder."
            ) from None
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(folder / f"{part}-images-idx3-ubyte", axes=3)
        labels = _read_idx(folder / f"{part}-labels-idx1-ubyte", axes=1)
        if len(images) != len(labels):
            raise UsageError(
                f"{folder}: {part} has {len(images)} images and {len(labels)} labels: "
                "expected equal numbers."
            )
        parts.append((images, labels))
    sides = {images.shape[1:] for images, _ in parts}
    if len(sides) > 1 or not all(len(labels) for _, labels in parts):
        raise UsageError(
            f"{folder}: train and t10k have "
            f"{' and '.join(str(len(labels)) for _, labels in parts)} images of sides "
            f"{sorted(sides)}: expected one size, and at least one image in each."
        )
    return Dataset(
        name=name,
        schema=Schema(shape=parts[0][0].shape[1:], low=0.0, high=255.0, classes=10),
        features=np.concatenate([images for images, _ in parts]),
        labels=np.concatenate([labels for _, labels in parts]),
        public=public,
        official_test=len(parts[1][1]),
    )


def _read_idx(path: Path, *, axes: int) -> np.ndarray:
    """Read an array of bytes, with this number of axes, from an idx file.

    The file has a magic number, one big-endian size per axis, and then the bytes.
    """
    packed = path.with_name(path.name + ".gz")
    try:
        if path.is_file():
            with path.open("rb") as file:
                raw = _read_announced(file, axes)
        elif packed.is_file():
            with gzip.open(packed) as file:
                raw = _read_announced(file, axes)
        else:
            raise UsageError(
                f"{path} (or its .gz) does not exist: copy the file there, set `data_root=` to "
                "another folder, or download it with `download=True`."
            )
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    head = 4 + 4 * axes
    if len(raw) < head or raw[:4] != bytes([0, 0, 8, axes]):
        raise UsageError(f"{path} is not an idx file: expected bytes with {axes} axes.")
    shape = struct.unpack(f">{axes}I", raw[4:head])
    announced, found = math.prod(shape), len(raw) - head
    if announced > MAX_IDX_BYTES:
        raise UsageError(
            f"{path} announces {announced:,} bytes: expected at most {MAX_IDX_BYTES:,}. "
            "Download it again."
        )
    if found != announced:
        raise UsageError(
            f"{path} is {'cut short' if found < announced else 'too long'}: its header announces "
            f"{announced:,} bytes, and {found:,} follow. Download it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _read_announced(file: IO[bytes] | gzip.GzipFile, axes: int) -> bytes:
    """Read the header of an idx file and the number of bytes that it states, plus one.

    The additional byte shows that a file is too long.
    """
    head = file.read(4 + 4 * axes)
    announced = math.prod(struct.unpack(f">{axes}I", head[4:])) if len(head) == 4 + 4 * axes else 0
    return head + file.read(min(announced, MAX_IDX_BYTES) + 1)


def _load_torchvision_set(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
    """Load a data set of `TORCHVISION_NAMES`, training images first."""
    from torchvision import datasets

    try:
        if name == "cifar10":
            parts = [
                datasets.CIFAR10(root, train=train, download=download) for train in (True, False)
            ]
            images = [part.data.transpose(0, 3, 1, 2) for part in parts]
            labels = [np.asarray(part.targets) for part in parts]
        else:
            parts = [datasets.SVHN(root, split=s, download=download) for s in ("train", "test")]
            images = [part.data for part in parts]
            labels = [np.asarray(part.labels) for part in parts]
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UsageError(
            f"{name} is not in {root}, or incomplete ({type(error).__name__}): copy the files of "
            "torchvision there, set `data_root=` to another folder, or use `download=True`."
        ) from None
    return Dataset(
        name=name,
        schema=Schema(shape=images[0].shape[1:], low=0.0, high=255.0, classes=10),
        features=np.concatenate(images),
        labels=np.concatenate(labels).astype(np.int64),
        public=public,
        official_test=len(labels[1]),
    )


def _load_grey_svhn(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
    """Load SVHN in grey, 32 x 32 pixels, training images first, from the two .mat files."""
    if download:
        _load_torchvision_set("svhn", root, download=True, public=public)
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for part in ("train", "test"):
        file = root / f"{part}_32x32.mat"
        found = _read_mat(file)
        x, y = (np.asarray(found.get(key, ())) for key in ("X", "y"))
        if x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or y.shape != (*x.shape[3:], 1):
            raise UsageError(
                f"{file} has X of shape {x.shape} and type {x.dtype}, and y of shape {y.shape}: "
                "expected (32, 32, 3, n), uint8, and (n, 1), as in the file of SVHN, format 2."
            )
        # Part by part, because the products need four times the memory of the images.
        grey = [(GREY_WEIGHTS @ each + 2**15) >> 16 for each in x.transpose(3, 0, 2, 1)]
        images.append(np.array(grey, dtype=np.uint8).reshape(-1, 32, 32))
        labels.append(y[:, 0].astype(np.int64))
    every = np.concatenate(labels)
    return Dataset(
        name=name,
        schema=Schema(shape=(32, 32), low=0.0, high=255.0, classes=10),
        features=np.concatenate(images),
        labels=np.where(every == 10, 0, every),  # the files have 10 for the digit 0
        public=public,
        official_test=len(labels[1]),
    )


def _read_mat(file: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a MATLAB file."""
    from scipy.io import loadmat

    if not file.is_file():
        raise UsageError(
            f"{file} does not exist: copy train_32x32.mat and test_32x32.mat of SVHN there, set "
            "`data_root=` to another folder, or use `download=True`."
        )
    try:
        return loadmat(file, variable_names=("X", "y"))
    except Exception as error:  # noqa: BLE001 - the reader has many exceptions for damaged files
        raise UsageError(
            f"{file} cannot be read as a MATLAB file ({type(error).__name__}): copy it again."
        ) from None


def _load_purchase(root: Path, *, download: bool, public: bool) -> Dataset:
    """Load Purchase-100; a line that cannot be read is a null record."""
    file = root / PURCHASE_FILE
    where = f"unpack dataset_purchase.tgz of Shokri et al. (2017), to get {file}"
    if download:
        raise UsageError(f"{PURCHASE} cannot be downloaded by pasearch: {where}.")
    if not file.is_file():
        raise UsageError(f"{file} does not exist: {where}, or set `data_root=` to its folder.")
    with file.open("rb") as stream:
        lines = [line.strip() for line in stream]
    # No single record can stop a run: one line of the right form suffices.
    if not any(line.count(b",") == PURCHASE_FEATURES for line in lines):
        raise UsageError(
            f"{file} has no line of {PURCHASE_FEATURES + 1} columns separated by commas, a class "
            f"and {PURCHASE_FEATURES} features: {where}."
        )
    rows = [_parse_purchase_line(line) for line in lines]
    labels, features = zip(*rows, strict=True)
    return Dataset(
        name=PURCHASE,
        schema=Schema(shape=(PURCHASE_FEATURES,), low=0.0, high=1.0, classes=PURCHASE_CLASSES),
        features=np.array(features),
        labels=np.array(labels, dtype=np.int64),
        public=public,
    )


def _parse_purchase_line(line: bytes) -> tuple[int, np.ndarray]:
    """Parse one line; the class is -1, a null record, if a cell is no integer or one is missing."""
    label, _, rest = line.partition(b",")
    cells = np.frombuffer(rest, dtype=np.uint8)
    features, commas = cells[::2] - ord("0"), cells[1::2]
    plain = len(cells) == 2 * PURCHASE_FEATURES - 1 and (commas == ord(",")).all()
    if plain and (features <= 1).all() and label.isdigit() and len(label) <= 3:
        return int(label) - 1, features
    return -1, np.zeros(PURCHASE_FEATURES, dtype=np.uint8)
