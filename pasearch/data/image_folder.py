"""Data source: a folder of image files, with one subfolder for each class.

The names of the subfolders are the names of the classes. They are public, like the header of a
table. The content of each file is private. Every file with the suffix of an image is one record, in
the order of the paths. It is a null record if its content is not an image.

Hidden files and folders, and those created by other programs (`SYSTEM_FILE_NAMES`), are skipped at
any depth.

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
from pasearch.data.cells import normalize_unicode
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.source import SOURCES, DataDeclaration, Source
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.files import check_memory
from pasearch.terminal_escaping import escape_text

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
"""Suffixes of image files. TIFF is excluded because its library writes to the terminal."""

SYSTEM_FILE_NAMES = frozenset({
    "__macosx", "@eadir", "@__thumb", "#recycle", "#snapshot", "$recycle.bin", "recycler",
    "system volume information", "lost+found", "__pycache__", "network trash folder",
    "temporary items", "picasaoriginals", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r",
    "picasa.ini", ".ds_store", ".ipynb_checkpoints", ".git", ".appledouble", ".thumbnails",
    ".trashes", ".spotlight-v100", ".fseventsd", ".picasa.ini", ".nomedia",
})  # fmt: skip
"""Names, in lower case, of files and folders that systems and programs create. A plan shows only
these names, because others may reveal a record."""

SPLIT_NAMES = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})
"""Names, in lower case, of subfolders that divide a data set into parts."""

MAX_LISTED_NAMES = 20
"""Maximum number of skipped names that a plan lists."""

IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
"""Formats that are decoded. Others are excluded because Pillow would start Ghostscript for EPS, and
let libtiff write to the terminal."""

DEFAULT_IMAGE_SIDE = 32
"""Default side of the scaled images of a folder, pixels."""

MAX_IMAGE_SIDE = 1024
"""Maximum side of the scaled images, pixels: an image then has three million numbers."""

MAX_DECODED_PIXELS = 50_000_000
"""Maximum number of decoded pixels of an image: 200 MB, and some decoders keep two copies. Larger
images are null records, except JPEG images of up to `MAX_REDUCTION` times as many pixels."""

MAX_REDUCTION = 4
"""Factor by which a large JPEG image is reduced while it is decoded, in pixels: half of each side.
"""


@SOURCES.register
class ImageFolder(Source):
    """A folder with a subfolder of image files for each class."""

    name = "folder"
    kind = "a folder of images"
    expected = "the path of a folder of images"
    uses = ("image_side", "grey")

    def takes(self, data: str) -> bool:
        """Whether the data is an image file, or a folder without the suffix of another source."""
        suffix, kinds = Path(data).suffix.lower(), SOURCES.kinds().values()
        others = any(suffix in kind.suffixes for kind in kinds)
        return suffix in IMAGE_SUFFIXES or (bool(data) and Path(data).is_dir() and not others)

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Load the data set: every image file is a record."""
        side, grey = declared.image_side, declared.grey
        return load_image_folder(Path(data), side=side, grey=grey, public=declared.public)

    def new_records(self, data: str, schema: AnySchema) -> np.ma.MaskedArray:
        """Read the images of a folder, of its subfolders, or of one file.

        Returns:
            Images, uint8, (images, *shape), in the order of their paths. The image of a file that
            cannot be decoded is masked.
        """
        shape = schema.shape
        side, channels = shape[-1], shape[:-2]
        squares = shape[-2:] == (side, side) and channels in ((), (3,))
        if not (isinstance(schema, Schema) and squares and (schema.low, schema.high) == (0, 255)):
            raise UsageError(
                f"{data} holds images, and the model was trained on other records: "
                f"{schema.describe()}. Use new records of that kind."
            )
        files = _find_images(Path(data))
        check_memory(
            f"{data}: {len(files):,} images", len(files) * math.prod(shape), "use fewer at a time"
        )
        images = np.ma.zeros((len(files), *shape), np.uint8)
        for place, path in enumerate(files):
            image = _read_image(path, side, grey=not channels)
            images[place] = np.ma.masked if image is None else image
        return images

    def record_names(self, data: str) -> list[str]:
        """Return the paths of the images, relative to the folder."""
        root = Path(data)
        if root.is_file():
            return [root.name]
        return [path.relative_to(root).as_posix() for path in _find_images(root)]


def _find_images(root: Path) -> list[Path]:
    """List the image files in a folder, in the order of their paths; a file alone is its own list.

    Raises:
        UsageError: There is no image file, or the folder cannot be read.
    """
    files = [root] if root.is_file() else _find_files(root, root)[0]
    if not files:
        raise UsageError(
            f"{root} holds no image: expected files with the suffixes "
            f"{', '.join(sorted(IMAGE_SUFFIXES))}, in the folder or in its subfolders."
        )
    return files


def _find_files(root: Path, folder: Path) -> tuple[list[Path], set[str]]:
    """List the image files in a folder, and describe the skipped files and folders.

    Args:
        root: Folder of the data, for messages.
        folder: The same folder, or a folder in it.

    Returns:
        The image files in the order of their paths. For what is skipped: names in
        `SYSTEM_FILE_NAMES`, and suffixes of other files.

    Raises:
        UsageError: A folder cannot be read.
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
                skipped.add(f"*{each.suffix}" if each.suffix else "files without a suffix")
    except OSError as error:
        raise UsageError(f"{root} cannot be read ({error.strerror}): make it readable.") from None
    return found, skipped


def _is_junk(path: Path) -> bool:
    """Whether a file or folder is hidden, or created by a system or another program."""
    return path.name.startswith(".") or path.name.lower() in SYSTEM_FILE_NAMES


def load_image_folder(root: Path, *, side: int | None, grey: bool, public: bool) -> Dataset:
    """Load the images in `root`/<class>/ as a data set, scaled to squares of `side` pixels.

    Args:
        root: Path of the folder.
        side: Height and width of the scaled images, pixels; None for `DEFAULT_IMAGE_SIDE`.
        grey: Whether images have one channel instead of three.
        public: Whether the user declares every record public.

    Raises:
        UsageError: There are fewer than two subfolders or no image file, or the side is invalid.
    """
    side = check_image_side(DEFAULT_IMAGE_SIDE if side is None else side)
    if root.is_file():
        raise UsageError(
            f"{root} is one image: expected a folder with two or more subfolders of image files, "
            "one for each class."
        )
    found, skipped = _find_files(root, root)
    folders = [each for each in sorted(root.iterdir()) if each.is_dir() and not _is_junk(each)]
    classes = sorted({_make_class_name(each) for each in folders})
    labels_of = {name: label for label, name in enumerate(classes)}
    inside = [(path, normalize_unicode(path.relative_to(root).parts[0])) for path in found]
    files = [(path, labels_of[name]) for path, name in inside if name in labels_of]
    if len(classes) < 2 or not files:
        raise UsageError(f"{root} {_describe_missing_images(root, folders, len(files))}")
    if {name.lower() for name in classes} <= SPLIT_NAMES and any(
        each.is_dir() and not _is_junk(each) for folder in folders for each in folder.iterdir()
    ):
        raise UsageError(
            f"{root} has the subfolders {', '.join(classes)}, which are parts of a data set and no "
            f"classes: name one of them, such as {folders[-1]}, or merge their class folders."
        )
    loose = len(found) - len(files)
    empty = sorted({*classes} - {name for _, name in inside})
    shape = (side, side) if grey else (3, side, side)
    check_memory(
        f"{root}: {len(files):,} images of {side} x {side} pixels", len(files) * math.prod(shape),
        "use a smaller `image_side=`, or `grey=True`",
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


def _make_class_name(folder: Path) -> str:
    """Make the name of a class from that of its folder, in one Unicode form for all systems."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{escape_text(folder)}: the name of this folder, a class, is not UTF-8: rename it."
        ) from None
    return normalize_unicode(folder.name)


def _describe_skipped(skipped: set[str], loose: int, empty: list[str]) -> Iterator[str]:
    """Yield sentences for the plan about files that are not read; their names are public.

    Args:
        skipped: Descriptions of skipped files and folders, as `_find_files` returns them.
        loose: Number of images outside of all class folders.
        empty: Names of classes without an image.
    """
    if skipped:
        yield (
            f"skipped in the folder, at any depth: {_join_names(sorted(skipped))} (hidden, created "
            f"by another program, or without a suffix of {', '.join(sorted(IMAGE_SUFFIXES))})."
        )
    if loose:
        yield f"skipped: {loose:,} images outside of the subfolders, because they have no class."
    if empty:
        yield (
            f"subfolders without an image file: {_join_names(empty)}. They count as classes: "
            "delete those that are none."
        )


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES:,} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


def _describe_missing_images(root: Path, folders: list[Path], images: int) -> str:
    """Return the end of an error message for a folder without classes of images, with a remedy."""
    endings = tuple(suffix for kind in SOURCES.kinds().values() for suffix in kind.suffixes)
    data = sorted(each.name for each in root.iterdir() if each.name.lower().endswith(endings))
    if data:
        what = data[0] if len(data) == 1 else f"{len(data)} data files, such as {data[0]}"
        return (
            f"is a folder with {what}: expected a folder of Parquet files (.parquet) or of images. "
            f"Name one file, such as {root / data[0]}; combine several files into one, or save "
            "them as Parquet."
        )
    count, only = len(folders), folders[0] if len(folders) == 1 else None
    nested = only is not None and 1 < sum(
        each.is_dir() and not _is_junk(each) for each in only.iterdir()
    )
    hint = f" Name the inner folder, {only}, if its subfolders are the classes." if nested else ""
    return (
        f"is a folder with {count} subfolder{'s' * (count != 1)} and {images} images in "
        f"{'it' if only else 'them'}; hidden folders do not count. Expected at least two "
        "folders of image files, one folder for each class; or Parquet files; or x.npy and y.npy."
        + hint
    )


def check_image_side(side: int) -> int:
    """Return the side of scaled images, pixels, after checking it.

    Raises:
        UsageError: The side is not an integer from 1 to `MAX_IMAGE_SIDE`.
    """
    return check_positive_integer(
        "image_side", side, most=MAX_IMAGE_SIDE, why="networks here accept no more pixels"
    )


def _read_image(path: Path, side: int, grey: bool) -> np.ndarray | None:
    """Read an image, uint8, (side, side) or (3, side, side); None if it cannot be decoded.

    Warnings and log messages of Pillow are suppressed because they reveal the content of the file.
    Pillow's own pixel limit is not sufficient, because a smaller excess only causes a warning.
    """
    from PIL import Image

    with _restrict_pillow(Image):
        try:
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                if not _has_allowed_pixel_count(image):
                    return None
                decoded, mode = image, "L" if grey else "RGB"
                if image.mode.startswith("I;16"):  # of 16 bits per pixel, the upper 8 are kept
                    decoded = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
                converted = decoded if decoded.mode == mode else decoded.convert(mode)
                array = np.asarray(converted.resize((side, side)))
        except Exception:  # noqa: BLE001 - an invalid file may raise anything
            return None
    return array if grey else array.transpose(2, 0, 1)


def _has_allowed_pixel_count(image: Any) -> bool:
    """Whether an image will have at most `MAX_DECODED_PIXELS` when decoded; reads its header only.

    A large JPEG image is set to be decoded at half of each side. This is impossible for a
    progressive one, which decoders keep as a whole.
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


@contextmanager
def _restrict_pillow(library: Any) -> Iterator[None]:
    """Suppress Pillow's warnings and log messages in the block, and set its pixel limit.

    The limit is the maximum that `_has_allowed_pixel_count` accepts.
    """
    library.init()  # loads the modules of all formats, which create their loggers
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    enabled = [each for each in loggers if f"{each.name}.".startswith("PIL.") and not each.disabled]
    limit, library.MAX_IMAGE_PIXELS = library.MAX_IMAGE_PIXELS, MAX_REDUCTION * MAX_DECODED_PIXELS
    for each in enabled:
        each.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.MAX_IMAGE_PIXELS = limit
        for each in enabled:
            each.disabled = False
