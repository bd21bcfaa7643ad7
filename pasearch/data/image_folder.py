"""A folder of image files, with one sub-folder for each class.

The sub-folders' names are the layout, so they are public, like a table's header, and they are the
names of the classes. Which file shows what is private. Every file with an image's ending is one
record, in the order of its path; if it holds no image it is a null record.

Hidden files and folders, and those that other programs leave behind (`JUNK`),
are skipped at any depth.

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

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.files import check_memory

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
"""What is read. Not TIFF: its library writes what it thinks of a file to the terminal."""

SYSTEM_FILE_NAMES = frozenset({
    "__macosx", "@eadir", "@__thumb", "#recycle", "#snapshot", "$recycle.bin", "recycler",
    "system volume information", "lost+found", "__pycache__", "network trash folder",
    "temporary items", "picasaoriginals", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r",
    "picasa.ini", ".ds_store", ".ipynb_checkpoints", ".git", ".appledouble", ".thumbnails",
    ".trashes", ".spotlight-v100", ".fseventsd", ".picasa.ini", ".nomedia",
})  # fmt: skip
"""Files and folders that systems and programs make next to a user's own, in lower case: a plan
names these alone, because other names may tell of a record."""

MAX_LISTED_NAMES = 20
"""The most names of skipped files that a plan lists."""

IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""Of what such a file may hold: Pillow would go by the content, start Ghostscript for EPS, and let
libtiff write to the terminal."""

DEFAULT_IMAGE_SIDE = 32
"""The side, in pixels, that images of a folder are scaled to unless the user says otherwise."""

MAX_IMAGE_SIDE = 1024
"""The largest side: an image of it has three million numbers, more than a network here can use."""

MAX_DECODED_PIXELS = 50_000_000
"""The most pixels that are decoded of an image: 200 MB, and some decoders keep two copies. A JPEG
of up to `MAX_REDUCTION` times as many is decoded at half its size; any other is a null record."""

MAX_REDUCTION = 4


@SOURCES.register
class ImageFolder(Source):
    """A folder with a sub-folder of image files for each class."""

    name = "folder"
    kind = "a folder of images"
    expected = "the path of a folder of images"
    uses = ("image_side", "grey")

    def takes(self, data: str) -> bool:
        """Return whether it is an image by its name, or a folder not named as another kind."""
        suffix, kinds = Path(data).suffix.lower(), SOURCES.kinds().values()
        others = any(suffix in kind.suffixes for kind in kinds)
        return suffix in IMAGE_SUFFIXES or (bool(data) and Path(data).is_dir() and not others)

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Return the data set: every image file is a slot."""
        side, grey = declared.image_side, declared.grey
        return load_image_folder(Path(data), side=side, grey=grey, public=declared.public)

    def new_records(self, data: str, schema: AnySchema) -> np.ma.MaskedArray:
        """Return the images of a folder, of its sub-folders, or of one file.

        Returns:
            bytes, (images, *shape), in the order of their paths; masked if a file is no image.
        """
        shape = schema.shape
        side, channels = shape[-1], shape[:-2]
        squares = shape[-2:] == (side, side) and channels in ((), (3,))
        if not (isinstance(schema, Schema) and squares and (schema.low, schema.high) == (0, 255)):
            raise UsageError(
                f"{data} holds images, and the model was trained on other records: "
                f"{schema.describe()}. Name new records of that form."
            )
        files = _find_images(Path(data))
        check_memory(
            f"{data}: {len(files):,} images", len(files) * math.prod(shape), "name fewer at a time"
        )
        images = np.ma.zeros((len(files), *shape), np.uint8)
        for place, path in enumerate(files):
            image = _read_image(path, side, grey=not channels)
            images[place] = np.ma.masked if image is None else image
        return images

    def record_names(self, data: str) -> list[str]:
        """Return the paths of the images, from the folder on."""
        root = Path(data)
        if root.is_file():
            return [root.name]
        return [path.relative_to(root).as_posix() for path in _find_images(root)]


def _find_images(root: Path) -> list[Path]:
    """Return the image files of a folder, in the order of their paths; or the one file.

    Raises:
        UsageError: There is none, or the folder cannot be read.
    """
    files = [root] if root.is_file() else _find_files(root, root)[0]
    if not files:
        raise UsageError(
            f"{root} holds no image: expected files whose names end in "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}, in the folder or in its sub-folders."
        )
    return files


def _find_files(root: Path, folder: Path) -> tuple[list[Path], set[str]]:
    """Return the image files below a folder, in the order of their paths, and what was skipped.

    Args:
        root: The data's own folder, for messages.
        folder: It, or a folder in it.

    Returns:
        The files; and names of skipped folders and files, of other files their endings.

    Raises:
        UsageError: A folder that cannot be read.
    """
    found: list[Path] = []
    skipped: set[str] = set()
    try:
        for each in sorted(folder.iterdir()):
            if _is_junk(each):
                skipped.add(
                    each.name
                    if each.name.lower() in SYSTEM_FILE_NAMES
                    else "hidden files or folders"
                )
            elif each.is_dir() and (folder == root or not each.is_symlink()):
                inside, left = _find_files(root, each)
                found += inside
                skipped |= left
            elif each.suffix.lower() in IMAGE_SUFFIXES and each.is_file():
                found.append(each)
            else:
                skipped.add(f"*{each.suffix}" if each.suffix else "files without an ending")
    except OSError as error:
        raise UsageError(f"{root} cannot be read ({error.strerror}): make it readable.") from None
    return found, skipped


def _is_junk(path: Path) -> bool:
    """Return whether a file or folder is hidden, or made by a system, as its name says."""
    return path.name.startswith(".") or path.name.lower() in SYSTEM_FILE_NAMES


def load_image_folder(root: Path, *, side: int | None, grey: bool, public: bool) -> Dataset:
    """Return the images under `root`/<class>/, scaled to squares of `side` pixels.

    Args:
        root: The folder.
        side: Height and width that every image is scaled to; None takes `IMAGE_SIDE`.
        grey: One channel instead of three.
        public: The user declares every record public.

    Raises:
        UsageError: Fewer than two sub-folders, no image file in them, or a side that is no side.
    """
    side = check_image_side(DEFAULT_IMAGE_SIDE if side is None else side)
    if root.is_file():
        raise UsageError(
            f"{root} is one image: expected a folder with one sub-folder for each class, two or "
            "more, with image files in them."
        )
    found, skipped = _find_files(root, root)
    folders = (each for each in root.iterdir() if each.is_dir())
    classes = sorted(each.name for each in folders if not _is_junk(each))
    labels_of = {name: label for label, name in enumerate(classes)}
    inside = [(path, path.relative_to(root).parts[0]) for path in found]
    files = [(path, labels_of[name]) for path, name in inside if name in labels_of]
    if len(classes) < 2 or not files:
        raise UsageError(f"{root} {_describe_missing_images(root, len(classes), len(files))}")
    loose = len(found) - len(files)
    empty = sorted({*classes} - {name for _, name in inside})
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
        schema=Schema(
            shape=shape, low=0.0, high=255.0, classes=len(classes), class_names=tuple(classes)
        ),
        features=images,
        labels=labels,
        public=public,
        notes=tuple(_describe_skipped(skipped, loose, empty)),
    )


def _describe_skipped(skipped: set[str], loose: int, empty: list[str]) -> Iterator[str]:
    """Yield what a plan says of what was not read; names of files are public.

    Args:
        skipped: Names of files and folders.
        loose: Number of images in no class's folder.
        empty: Classes without an image.
    """
    if skipped:
        yield (
            f"skipped in the folder, at any depth: {_join_names(sorted(skipped))} (hidden, left by "
            f"another program, or not named as an image: {', '.join(sorted(IMAGE_SUFFIXES))})."
        )
    if loose:
        yield f"skipped: {loose:,} images that are in no sub-folder, so they have no class."
    if empty:
        yield (
            f"no image file in the sub-folder of a class: {_join_names(empty)}. It is a class all "
            "the same: delete the folder if it is none."
        )


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES:,} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


def _describe_missing_images(root: Path, classes: int, images: int) -> str:
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


def check_image_side(side: int) -> int:
    """Return a side that images may be scaled to.

    Raises:
        UsageError: No whole number from 1 to `MAX_IMAGE_SIDE`.
    """
    return check_positive_integer(
        "image_side", side, most=MAX_IMAGE_SIDE, why="a network takes no more pixels"
    )


def _read_image(path: Path, side: int, grey: bool) -> np.ndarray | None:
    """Return (side, side) or (3, side, side) bytes, or None for a file that is no image.

    In silence: what Pillow warns or logs of a file tells what is in it. Its own limit on pixels
    only warns, up to twice of it, so ours is held before anything is decoded.
    """
    from PIL import Image

    with warnings.catch_warnings(), _silence_logger("PIL"), _set_pixel_limit(Image):
        warnings.simplefilter("ignore")
        try:
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                if not _is_decodable(image):
                    return None
                array = _resize_to_bytes(image, side, "L" if grey else "RGB")
        except Exception:  # noqa: BLE001 - whatever a file does to a decoder, its slot is null
            return None
    return array if grey else array.transpose(2, 0, 1)


def _is_decodable(image: Any) -> bool:
    """Return whether an image, of which only the head is read, can be decoded within memory.

    A large JPEG is told to decode at a fraction. A progressive one keeps all of itself meanwhile.
    """
    width, height = image.size
    pixels = width * height
    if pixels <= MAX_DECODED_PIXELS:
        return True
    reducible = image.format == "JPEG" and not image.info.get("progressive")
    if not (reducible and pixels <= MAX_REDUCTION * MAX_DECODED_PIXELS):
        return False
    image.draft(None, (width // 2, height // 2))
    return image.size[0] * image.size[1] <= MAX_DECODED_PIXELS


def _resize_to_bytes(image: Any, side: int, mode: str) -> np.ndarray:
    """Return an image's pixels as bytes, scaled to a square; 16 bits a pixel keep the upper 8."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    converted = image if image.mode == mode else image.convert(mode)
    return np.asarray(converted.resize((side, side)))


@contextmanager
def _set_pixel_limit(library: Any) -> Iterator[None]:
    """Set Pillow's limit on pixels to what `_decodable` may take, and give the user's back."""
    before = library.MAX_IMAGE_PIXELS
    library.MAX_IMAGE_PIXELS = MAX_REDUCTION * MAX_DECODED_PIXELS
    try:
        yield
    finally:
        library.MAX_IMAGE_PIXELS = before


@contextmanager
def _silence_logger(name: str) -> Iterator[None]:
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
