"""Images: the embedded digits, MNIST-like idx files, CIFAR-10, SVHN, or a folder of image files.

A folder of images has one sub-folder a class: the sub-folders' names are the layout, so they are
public, like a table's header; which file shows what is not. Every file is one slot, in the order of
its path. A file that is no image is a null record.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import gzip
import logging
import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from pasearch.accounting.checks import whole
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.errors import UsageError
from pasearch.files import check_memory

IDX_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
"""The torchvision class of each set, which is also the folder's name."""

TORCHVISION_SETS = ("cifar10", "svhn")

BUILT_IN = ("digits", *IDX_SETS, *TORCHVISION_SETS)

IMAGE_FILES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
"""What is read. Not TIFF: its library writes what it thinks of a file to the terminal."""

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""Of what such a file may hold: Pillow would go by the content, start Ghostscript for EPS, and let
libtiff write to the terminal."""

IMAGE_SIDE = 32
"""The side, in pixels, that images of a folder are scaled to unless the user says otherwise."""

MOST_SIDE = 1024
"""The largest side: an image of it has three million numbers, more than a network here can use."""

MOST_PIXELS = 50_000_000
"""The most pixels that are decoded of an image: 200 MB, and some decoders keep two copies. A JPEG
of up to `MOST_REDUCED` times as many is decoded at half its size; any other is a null record."""

MOST_REDUCED = 4

MOST_IDX = 2**28
"""The most bytes that an idx file announces: those of MNIST have 47 million."""


def built_in(source: str, *, data_root: str | Path, download: bool, public: bool) -> Dataset:
    """Return one of the sets of `BUILT_IN`.

    Args:
        source: Its name.
        data_root: Folder that holds `MNIST/raw/` and the like, in torchvision's layout.
        download: Let torchvision download what is not there.
        public: The user declares every record public.

    Raises:
        UsageError: Its files are not there, or of bad form.
    """
    if source == "digits":
        return _digits(public)
    if source in IDX_SETS:
        return _idx_set(source, Path(data_root), download=download, public=public)
    return _torchvision_set(source, Path(data_root), download=download, public=public)


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
            with path.open("rb") as file:
                raw = _within(file, axes)
        elif packed.is_file():
            with gzip.open(packed) as file:
                raw = _within(file, axes)
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
    if announced > MOST_IDX:
        raise UsageError(
            f"{path} announces {announced:,} bytes: expected at most {MOST_IDX:,}. Fetch it again."
        )
    if found != announced:
        raise UsageError(
            f"{path} is {'cut short' if found < announced else 'too long'}: its head announces "
            f"{announced:,} bytes, {found:,} follow. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _within(file: IO[bytes] | gzip.GzipFile, axes: int) -> bytes:
    """Return an idx file's head and what it announces, and a byte more if there is one."""
    head = file.read(4 + 4 * axes)
    announced = math.prod(struct.unpack(f">{axes}I", head[4:])) if len(head) == 4 + 4 * axes else 0
    return head + file.read(min(announced, MOST_IDX) + 1)


def _torchvision_set(name: str, root: Path, *, download: bool, public: bool) -> Dataset:
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
            f"{name} is not in {root}, or not whole ({type(error).__name__}): put torchvision's "
            "files there, name another folder with --data-root, or fetch them with --download."
        ) from None
    return Dataset(
        name=name,
        schema=Schema(shape=images[0].shape[1:], low=0.0, high=255.0, classes=10),
        features=np.concatenate(images),
        labels=np.concatenate(labels).astype(np.int64),
        public=public,
        official_test=len(labels[1]),
    )


def image_folder(root: Path, *, side: int | None, grey: bool, public: bool) -> Dataset:
    """Return the images under `root`/<class>/, scaled to squares of `side` pixels.

    Args:
        root: The folder.
        side: Height and width that every image is scaled to; None takes `IMAGE_SIDE`.
        grey: One channel instead of three.
        public: The user declares every record public.

    Raises:
        UsageError: Fewer than two sub-folders, no image file in them, or a side that is no side.
    """
    side = image_side(IMAGE_SIDE if side is None else side)
    try:
        folders = (each for each in root.iterdir() if each.is_dir())
        classes = sorted(each.name for each in folders if not each.name.startswith("."))
        files = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in IMAGE_FILES and path.is_file()
        ]
    except OSError as error:
        raise UsageError(f"{root} cannot be read ({error.strerror}): make it readable.") from None
    if len(classes) < 2 or not files:
        raise UsageError(
            f"{root} holds {len(classes)} folders and {len(files)} images: expected one folder a "
            "class, at least two, with image files in them."
        )
    shape = (side, side) if grey else (3, side, side)
    check_memory(
        f"{root}: {len(files):,} images of {side} x {side} pixels", len(files) * math.prod(shape),
        "take a smaller --image-side, or --grey",
    )  # fmt: skip
    images = np.zeros((len(files), *shape), np.uint8)
    labels = np.array([label for _, label in files], np.int64)
    for slot, (path, _) in enumerate(files):
        if (image := _read_image(path, side, grey)) is None:
            labels[slot] = -1
        else:
            images[slot] = image
    return Dataset(
        name=root.resolve().name,
        schema=Schema(shape=shape, low=0.0, high=255.0, classes=len(classes)),
        features=images,
        labels=labels,
        public=public,
    )


def image_side(side: int) -> int:
    """Return a side that images may be scaled to.

    Raises:
        UsageError: No whole number from 1 to `MOST_SIDE`.
    """
    return whole("image_side", side, most=MOST_SIDE, why="a network takes no more pixels")


def _read_image(path: Path, side: int, grey: bool) -> np.ndarray | None:
    """Return (side, side) or (3, side, side) bytes, or None for a file that is no image.

    In silence: what Pillow warns or logs of a file tells what is in it. Its own limit on pixels
    only warns, up to twice of it, so ours is held before anything is decoded.
    """
    from PIL import Image

    with warnings.catch_warnings(), _quiet("PIL"), _own_limit(Image):
        warnings.simplefilter("ignore")
        try:
            with Image.open(path, formats=FORMATS) as image:
                if not _decodable(image):
                    return None
                array = _bytes(image, side, "L" if grey else "RGB")
        except Exception:  # noqa: BLE001 - whatever a file does to a decoder, its slot is null
            return None
    return array if grey else array.transpose(2, 0, 1)


def _decodable(image: Any) -> bool:
    """Return whether an image, of which only the head is read, can be decoded within memory.

    A large JPEG is told to decode at a fraction. A progressive one keeps all of itself meanwhile.
    """
    width, height = image.size
    pixels = width * height
    if pixels <= MOST_PIXELS:
        return True
    reducible = image.format == "JPEG" and not image.info.get("progressive")
    if not (reducible and pixels <= MOST_REDUCED * MOST_PIXELS):
        return False
    image.draft(None, (width // 2, height // 2))
    return image.size[0] * image.size[1] <= MOST_PIXELS


def _bytes(image: Any, side: int, mode: str) -> np.ndarray:
    """Return an image's pixels as bytes, scaled to a square; 16 bits a pixel keep the upper 8."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    converted = image if image.mode == mode else image.convert(mode)
    return np.asarray(converted.resize((side, side)))


@contextmanager
def _own_limit(library: Any) -> Iterator[None]:
    """Set Pillow's limit on pixels to what `_decodable` may take, and give the user's back."""
    before = library.MAX_IMAGE_PIXELS
    library.MAX_IMAGE_PIXELS = MOST_REDUCED * MOST_PIXELS
    try:
        yield
    finally:
        library.MAX_IMAGE_PIXELS = before


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Switch a library's log off, and give the user's setting back."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    levels = [logging.getLogger(each) for each in list(logging.root.manager.loggerDict)]
    own = [each for each in levels if each.name.startswith(f"{name}.") and not each.disabled]
    for each in own:
        each.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
        for each in own:
            each.disabled = False
