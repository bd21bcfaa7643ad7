"""A folder of image files, one sub-folder a class.

The sub-folders' names are the layout, so they are public, like a table's header; which file shows
what is not. Every file is one slot, in the order of its path. A file that is no image is a null
record.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.accounting.checks import whole
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.source import SOURCES, Declared, Source
from pasearch.errors import UsageError
from pasearch.files import check_memory

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


@SOURCES.register
class ImageFolder(Source):
    """A folder with a sub-folder of image files for each class."""

    name = "folder"
    kind = "a folder of images"
    expected = "the path of a folder of images"
    uses = ("image_side", "grey")

    def takes(self, data: str) -> bool:
        """Return whether there is such a folder, and its name does not end as another kind's."""
        suffix, kinds = Path(data).suffix.lower(), SOURCES.kinds().values()
        others = any(suffix in kind.suffixes for kind in kinds)
        return bool(data) and Path(data).is_dir() and not others

    def load(self, data: str, declared: Declared) -> Dataset:
        """Return the data set: every image file is a slot."""
        side, grey = declared.image_side, declared.grey
        return image_folder(Path(data), side=side, grey=grey, public=declared.public)


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
        raise UsageError(f"{root} {_no_images(root, len(classes), len(files))}")
    shape = (side, side) if grey else (3, side, side)
    check_memory(
        f"{root}: {len(files):,} images of {side} x {side} pixels", len(files) * math.prod(shape),
        "take a smaller `image_side=`, or `grey=True`",
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


def _no_images(root: Path, classes: int, images: int) -> str:
    """Return what a folder holds in place of images, and what to do: names of files are form."""
    endings = tuple(suffix for kind in SOURCES.kinds().values() for suffix in kind.suffixes)
    data = sorted(each.name for each in root.iterdir() if each.name.lower().endswith(endings))
    if data:
        what = data[0] if len(data) == 1 else f"{len(data)} data files, such as {data[0]}"
        return (
            f"is a folder with {what}: of a folder only Parquet files (.parquet) or images are "
            f"read. Name one file, such as {root / data[0]}; a table in several files must be put "
            "into one, or written as Parquet."
        )
    return (
        f"is a folder with {classes} folders and {images} images in them: expected one folder for "
        "each class, two or more, with image files in them; or Parquet files; or x.npy and y.npy."
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
