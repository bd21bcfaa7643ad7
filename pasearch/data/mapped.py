"""A file of rows of one size, mapped into memory: what was read of it is let go again.

    write_ordered     rows that come by slot are written in another order, in bounded memory: first
                      each to the heap of the stretch where it goes, then stretch by stretch
    Mapped, Field     the rows of a file, and one field of them

Pages that are looked at count as this process's memory until they are let go. The system keeps
them as long as it has room, and reads them again where it had none.

The files hold records: they lie in a folder that nobody but the user can enter. Which of their
pages are read during a training follows from the batches, which are secret: whoever sees what the
disk does is inside the trust boundary, as whoever sees the memory is.
"""

from __future__ import annotations

import math
import mmap
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pasearch.errors import UsageError

if TYPE_CHECKING:
    from pasearch.data.rows import Rows

HEAP = 2**26
"""How many bytes of rows are put in order at a time, 64 MiB."""

MOST_HEAPS = 256
"""How many files are written to side by side, at most."""


class Kept(Protocol):
    """What is kept of records, in memory or in a file."""

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        """Return it of some records."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mapped:
    """Rows of a file, some of them: those from `first` on. Pickled, it is its path.

    Args:
        path: The file: nothing but rows.
        dtype: Of a row.
        first: Which is the first that is seen.
        count: How many are seen.
        owner: What deletes the file when nobody holds it any more; not pickled.
    """

    path: Path
    dtype: np.dtype[Any]
    first: int
    count: int
    owner: Any = None
    _map: list[np.memmap] = field(default_factory=list, init=False)

    def __len__(self) -> int:
        return self.count

    @property
    def rows(self) -> np.ndarray:
        """The rows, mapped: whoever reads them lets them go."""
        if not self._map:
            if self.path.stat().st_size < (self.first + self.count) * self.dtype.itemsize:
                raise UsageError(f"{self.path} is cut short: start a new run.")
            self._map.append(np.memmap(self.path, self.dtype, mode="r"))
        return self._map[0][self.first : self.first + self.count]

    def part(self, first: int, count: int) -> Mapped:
        """Return some of the rows."""
        assert 0 <= first <= first + count <= self.count
        return replace(self, first=self.first + first, count=count)

    def let_go(self) -> None:
        """Let what was read be no memory of this process any more."""
        for each in self._map:
            held = getattr(each, "_mmap", None)
            if isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                held.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self.path, self.dtype, self.first, self.count)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Field:
    """One field of the rows of a file.

    Args:
        file: The rows.
        name: Of the field.
    """

    file: Mapped
    name: str

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        return self.file.rows[self.name][rows]


def write_ordered(path: Path, blocks: Iterator[np.ndarray], order: np.ndarray | None) -> Mapped:
    """Write rows to a file in another order than they come in.

    Args:
        path: A new file, in a folder of its own: the heaps are beside it for a while.
        blocks: The rows by slot, some at a time, all of one type; at least one.
        order: The slots in the order of the file, (rows,): each once. None: as they come.

    Cost: the rows are written twice and read once, if they are put in order. Memory: a block, a
        heap, and 8 bytes a row.
    """
    if order is None:
        return _written(path, blocks)
    first = next(blocks)
    rows, size = len(order), first.dtype.itemsize
    stretch = max(1, HEAP // size, -(-rows // MOST_HEAPS))
    heap_of = np.empty(rows, np.uint16)
    for heap, start in enumerate(range(0, rows, stretch)):
        heap_of[order[start : start + stretch]] = heap
    heaps = [path.with_suffix(f".{heap}") for heap in range(-(-rows // stretch))]
    _put_on_heaps(chain([first], blocks), heap_of, heaps)
    with path.open("xb") as file:
        path.chmod(0o600)
        for heap, start in zip(heaps, range(0, rows, stretch), strict=True):
            slots = order[start : start + stretch]
            found = np.fromfile(heap, first.dtype)
            # A heap has its rows by slot: the smallest slot's is its first.
            ordered = np.empty_like(found)
            ordered[np.argsort(slots)] = found
            ordered.tofile(file)
            heap.unlink()
    return Mapped(path, first.dtype, 0, rows)


def _put_on_heaps(blocks: Iterator[np.ndarray], heap_of: np.ndarray, heaps: list[Path]) -> None:
    """Append each row to its heap."""
    files = [heap.open("xb", buffering=0) for heap in heaps]
    try:
        start = 0
        for block in blocks:
            own = heap_of[start : start + len(block)]
            start += len(block)
            by_heap = np.argsort(own, kind="stable")
            ends = np.cumsum(np.bincount(own, minlength=len(heaps)))[:-1]
            for file, places in zip(files, np.split(by_heap, ends), strict=True):
                if len(places):
                    block[places].tofile(file)
    finally:
        for file in files:
            file.close()


def _written(path: Path, blocks: Iterator[np.ndarray]) -> Mapped:
    rows, dtype = 0, np.dtype(np.uint8)
    with path.open("xb") as file:
        path.chmod(0o600)
        for block in blocks:
            rows, dtype = rows + len(block), block.dtype
            block.tofile(file)
    return Mapped(path, dtype, 0, rows)


def save_rows(path: Path, rows: Rows) -> None:
    """Write rows as numpy writes an array, a block at a time.

    Raises:
        UsageError: The disk has no room for them.
    """
    check_disk(path, 4 * math.prod(rows.shape), "Records for trainings side by side",
               "free some, or let one process train (`executor='local'`)")  # fmt: skip
    step = max(1, HEAP // (4 * math.prod(rows.shape[1:])))
    with path.open("xb") as file:
        form = {"descr": "<f4", "fortran_order": False, "shape": rows.shape}
        np.lib.format.write_array_header_1_0(file, form)
        for start in range(0, len(rows), step):
            rows[start : start + step].numpy().tofile(file)


def check_disk(folder: Path, needed: int, what: str, advice: str) -> None:
    """Refuse to begin what would fill the disk.

    Args:
        folder: Where it would be written; it need not be there yet.
        needed: Bytes, from public numbers only.
        what: That takes them, for the message.
        advice: What to do about it.

    Raises:
        UsageError: The disk has less room.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise UsageError(
            f"{what} would take {needed / 1e9:,.1f} GB on the disk of {folder}, which has "
            f"{free / 1e9:,.1f} GB free: {advice}."
        )
