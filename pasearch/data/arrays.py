"""Arrays in a .npz file or in a folder of .npy files, read only when needed.

A file of some megabytes may decompress to gigabytes. Therefore the header of an array is read
first. Its shape and type must agree with the size that the archive states and fit into memory. A
plan needs only the headers: arrays of more than `MAX_EAGER_BYTES` are read when a run begins.

Source: docs/rules.md, rule 13 (the metadata of a file may be read freely, its values may not).
"""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from types import SimpleNamespace
from typing import IO, Any

import numpy as np

from pasearch.errors import UsageError, suggest_file
from pasearch.files import check_memory

MAX_EAGER_BYTES = 2**26
"""Maximum size, in bytes, of an array that is read before the plan, so that damage is found early.
"""

BLOCK_BYTES = 2**24
"""Size of the blocks, in bytes, in which an array is read that is not held in memory."""

MAX_HEADER_BYTES = 10_000
"""Maximum size of an array's header, in bytes: numpy's limit, checked before numpy reads it."""

MAX_AXES = 8
"""Maximum number of axes of an array; records need four at most."""

READ_ERRORS = (
    ValueError, TypeError, KeyError, OSError, EOFError, MemoryError, NotImplementedError,
    RuntimeError, OverflowError, SyntaxError, TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions of numpy and zipfile for a file that is no .npz, is cut short or is not supported."""

SAVE_ADVICE = "Write it with numpy.savez(path, x=x, y=y), x and y arrays of numbers."

ArraySource = Path | bytes


class StoredArray:
    """Array in a file, whose header has been read; its numbers are read when they are needed.

    Args:
        source: Path of the file, or its content.
        member: Name of the array's file in the archive.
        shape: Shape given by the header.
        dtype: Type given by the header.
    """

    __slots__ = ("_member", "_numbers", "_source", "_stored_dtype", "dtype", "shape")

    def __init__(
        self, source: ArraySource, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ):
        self._source, self._member, self._stored_dtype = source, member, dtype
        self._numbers: np.ndarray | None = None
        self.shape, self.dtype = shape, dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Maximum size of the numbers in memory while they are read, in bytes."""
        return math.prod(self.shape) * max(self.dtype.itemsize, self._stored_dtype.itemsize)

    def astype(self, dtype: Any) -> StoredArray:
        """Return the same stored array, which is converted to another type when it is read."""
        other = StoredArray(self._source, self._member, self.shape, self._stored_dtype)
        other.dtype = np.dtype(dtype)
        return other

    def read(self) -> np.ndarray:
        """Return the numbers, which stay in memory, so that every reader gets the same array.

        Raises:
            UsageError: The file is damaged, was changed, or is too large for this machine.
        """
        if self._numbers is None:
            check_memory(
                f"{_describe_source(self._source)}: array {self._member!r}", self.nbytes,
                "use fewer records or a smaller type, such as float32",
            )  # fmt: skip
            with self._open_member() as file:
                numbers = np.lib.format.read_array(file, allow_pickle=False)
                self._numbers = numbers.astype(self.dtype, copy=False)
        return self._numbers

    def blocks(self) -> Iterator[np.ndarray]:
        """Iterate over the records in blocks; only one block is in memory at a time.

        Raises:
            UsageError: The file cannot be read, or its array is stored column by column.
        """
        size = math.prod(self.shape[1:]) * self._stored_dtype.itemsize
        step = max(1, BLOCK_BYTES // max(1, size))
        with self._open_member() as file:
            if b"'fortran_order': True" in _read_header(file).getvalue():
                raise UsageError(
                    f"{_describe_source(self._source)}: array {self._member!r} is stored column by "
                    "column, which is not supported for large arrays: save "
                    "numpy.ascontiguousarray(x)."
                )
            for start in range(0, len(self), step):
                many = min(step, len(self) - start)
                content = _read_exactly(file, many * size)
                block = np.frombuffer(content, self._stored_dtype).reshape(many, *self.shape[1:])
                yield block.astype(self.dtype, copy=False)

    @contextmanager
    def _open_member(self) -> Iterator[IO[bytes]]:
        """Open the array's file; raise UsageError if it is damaged or has another header now."""
        try:
            with _open_archive(self._source) as archive:
                if _read_shape_and_type(archive, self._member) != (self.shape, self._stored_dtype):
                    raise UsageError(f"{_describe_source(self._source)} was changed: start again.")
                with archive.open(self._member) as file:
                    yield file
        except READ_ERRORS:
            raise UsageError(
                f"{_describe_source(self._source)} {_describe_fault(self._source)}. {SAVE_ADVICE}"
            ) from None


@dataclass(frozen=True, slots=True)
class _FolderArchive:
    """Folder of .npy files with the methods of `zipfile.ZipFile` that are used here."""

    path: Path

    def __enter__(self) -> _FolderArchive:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each file is closed by its reader."""

    def namelist(self) -> list[str]:
        return [each.name for each in self.path.iterdir() if each.suffix == ".npy"]

    def open(self, member: str) -> IO[bytes]:
        return (self.path / member).open("rb")

    def getinfo(self, member: str) -> Any:
        return SimpleNamespace(file_size=(self.path / member).stat().st_size)


def is_folder_of_arrays(path: Path) -> bool:
    """Whether a folder contains the files x.npy and y.npy."""
    return all((path / f"{name}.npy").is_file() for name in ("x", "y"))


def find_stored_arrays(
    source: ArraySource, wanted: Iterable[str]
) -> tuple[dict[str, StoredArray], list[str]]:
    """Return the wanted arrays of a file without reading them, and the names of all its arrays.

    Args:
        source: Path of the file, or its content.
        wanted: Names of the arrays; others in the file are ignored.

    Raises:
        UsageError: The file is missing or is no .npz, or an array holds objects or has an invalid
            shape.

    Cost: a few kilobytes are read, whatever the size of the arrays.
    """
    if isinstance(source, Path) and not is_folder_of_arrays(source):
        if not source.is_file():
            fault = "is a folder" if source.is_dir() else "does not exist"
            raise UsageError(
                f"{source} {fault}: expected a .npz file with arrays x and y.{suggest_file(source)}"
            )
        if not source.stat().st_size > 0:
            raise UsageError(f"{source} is empty: expected a .npz file with arrays x and y.")
    try:
        with _open_archive(source) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            found = {
                name: StoredArray(
                    source, members[name], *_read_shape_and_type(archive, members[name])
                )
                for name in sorted(set(wanted) & set(members))
            }
    except READ_ERRORS:
        raise UsageError(
            f"{_describe_source(source)} {_describe_fault(source)}. {SAVE_ADVICE}"
        ) from None
    return found, sorted(members)


def _read_exactly(file: IO[bytes], many: int) -> bytes:
    """Read a number of bytes; raise EOFError if the file has fewer."""
    found = bytearray()
    while len(found) < many:
        if not (more := file.read(many - len(found))):
            raise EOFError
        found += more
    return bytes(found)


def _open_archive(source: ArraySource) -> zipfile.ZipFile | _FolderArchive:
    if isinstance(source, Path) and source.is_dir():
        return _FolderArchive(source)
    return zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)


def _read_shape_and_type(
    archive: zipfile.ZipFile | _FolderArchive, member: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and the type of an array from its header.

    Raises ValueError if the header is invalid, or if the size of the array differs from the
    uncompressed size that the archive states.
    """
    with archive.open(member) as file:
        head = _read_header(file)
    version = np.lib.format.read_magic(head)
    reader = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = reader(head)
    if dtype.hasobject or not len(shape) <= MAX_AXES or not all(side >= 0 for side in shape):
        raise ValueError("objects, or an invalid shape")
    announced = len(head.getvalue()) + math.prod(shape) * dtype.itemsize
    if archive.getinfo(member).file_size != announced:
        raise ValueError("size differs from the header")
    return tuple(shape), dtype


def _read_header(file: IO[bytes]) -> io.BytesIO:
    """Read the bytes of an array's header; raise ValueError if it is too long."""
    start = file.read(8)
    width = 2 if start[6:7] == b"\x01" else 4
    size = file.read(width)
    length = int.from_bytes(size, "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError("header too long")
    return io.BytesIO(start + size + file.read(length))


def _describe_source(source: ArraySource) -> str:
    """Return the subject of an error message about the file."""
    return "The file of arrays" if isinstance(source, bytes) else str(source)


def _describe_fault(source: ArraySource) -> str:
    """Return the predicate of an error message about a file that cannot be read."""
    if isinstance(source, bytes) or source.is_dir():
        return "is damaged"
    with open(os.fspath(source), "rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return "is a single array (.npy), not a .npz"
    if start[:2] != b"PK":
        return "is not a .npz file"
    if not zipfile.is_zipfile(source):
        return "is damaged or cut short"
    return "is damaged, or holds arrays of objects, which are not supported"
