"""Named image data sets: digits, MNIST-like idx files, CIFAR-10, SVHN.

Source: docs/rules.md, rules 3 and 13.
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
"""torchvision class of each data set, which is also the name of its folder."""

TORCHVISION_NAMES = ("cifar10", "svhn")

BUILT_IN_NAMES = ("digits", *IDX_CLASSES, *TORCHVISION_NAMES)

MAX_IDX_BYTES = 2**28
"""Maximum size of an idx file's content, in bytes: MNIST has 47 million."""


@SOURCES.register
class BuiltIn(Source):
    """A data set of `BUILT_IN_NAMES`: in `data_root` in torchvision's layout, or downloaded."""

    name = "built-in"
    kind = "built-in images"
    expected = f"one of {', '.join(BUILT_IN_NAMES)}"
    is_path = False

    def takes(self, data: str) -> bool:
        return data in BUILT_IN_NAMES

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        if data == "digits":
            return _load_digits(declared.public)
        load = _load_idx_set if data in IDX_CLASSES else _load_torchvision_set
        root, download = Path(declared.data_root), declared.download
        return load(data, root, download=download, public=declared.public)


def _load_digits(public: bool) -> Dataset:
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
    folder = root / IDX_CLASSES[name] / "raw"
    if download:
        _download(IDX_CLASSES[name], root)
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


def _download(torchvision_class: str, root: Path) -> None:
    from torchvision import datasets

    try:
        getattr(datasets, torchvision_class)(root, download=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"Could not download {torchvision_class} into {root}: {error}. "
            "Copy the idx files there, or set `data_root=` to their folder."
        ) from None


def _read_idx(path: Path, *, axes: int) -> np.ndarray:
    """Read an idx file of bytes: magic number, one big-endian size per axis, then the bytes."""
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
                f"{path} (or its .gz) is not there: copy the file there, set `data_root=` to "
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
    """Read an idx file's header, the bytes that it announces, and one byte more if there is one."""
    head = file.read(4 + 4 * axes)
    announced = math.prod(struct.unpack(f">{axes}I", head[4:])) if len(head) == 4 + 4 * axes else 0
    return head + file.read(min(announced, MAX_IDX_BYTES) + 1)


def _load_torchvision_set(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
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
