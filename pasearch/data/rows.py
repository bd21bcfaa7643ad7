"""Features of records that become a tensor one batch at a time.

    Rows           interface: a shape, slices, `index_select`, `to`, as of a tensor
    CompactRows    encoded records of a table: 1 bit per feature that is 0 or 1, 4 bytes per number
    ComputedRows   records that a function computes, such as those of a mapped file

Training, scores and fits use only this interface of `Records.x`, so records that do not fit into
memory are trained on like others, and give the same numbers.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.data.cells import TableCells
from pasearch.data.tables import TableSchema

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Where = slice | np.ndarray | Tensor

# Numbers written at a time: about the size of a processor's cache.
CACHED_NUMBERS = 2**19
# Such parts written, side by side, before their pages are released.
PARALLEL_PARTS = 8
# Numbers up to which the encoded records of a partition are one tensor: 512 MiB.
MAX_TENSOR_NUMBERS = 2**27
# Numbers of a block of records, at most: 32 MiB.
BLOCK_NUMBERS = 2**23


@lru_cache(maxsize=1)
def _get_thread_pool(many: int) -> ThreadPoolExecutor:
    """Return threads that write: each its own records, so how many there are changes nothing."""
    return ThreadPoolExecutor(many, "rows")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rows(ABC):
    """Features, float32, (records, ...), with the methods of a tensor of them that are needed.

    Args:
        place: Device of batches: "cpu" or "cuda".
        mapped: Arrays, perhaps of mapped files: their pages are released after each read.
    """

    place: str = "cpu"
    mapped: tuple[np.ndarray, ...] = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The number of records, and the shape of one."""

    @property
    def device(self) -> torch.device:
        """Device of batches."""
        import torch

        return torch.device(self.place)

    @property
    def dtype(self) -> torch.dtype:
        """Type of a batch."""
        import torch

        return torch.float32

    @property
    def block(self) -> int:
        """The number of records of a block, of at most `BLOCK` numbers."""
        return max(1, BLOCK_NUMBERS // max(1, math.prod(self.shape[1:])))

    @abstractmethod
    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        """Write some records, few enough for a processor's cache.

        Args:
            rows: A slice without a step, or places, (some,).
            out: float32, (some, ...); overwritten.
        """

    def __getitem__(self, where: Where) -> Tensor:
        """Compute the given records as float32, (rows, ...), in CPU memory.

        Args:
            where: A slice without a step, or places, (some,).
        """
        import torch

        rows = convert_to_slice(where)
        start, stop = rows.indices(len(self))[:2] if isinstance(rows, slice) else (0, len(rows))
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.float32)
        step, many = (
            max(1, CACHED_NUMBERS // max(1, math.prod(self.shape[1:]))),
            torch.get_num_threads(),
        )

        def write(first: int) -> None:
            part = slice(first, min(first + step, stop))
            own = part if isinstance(rows, slice) else rows[part]
            self.write(own, out[part.start - start : part.stop - start])

        for first in range(start, stop, step * PARALLEL_PARTS):
            firsts = range(first, min(first + step * PARALLEL_PARTS, stop), step)
            for _ in (_get_thread_pool(many).map if many > 1 < len(firsts) else map)(write, firsts):
                pass
            for array in self.mapped:
                release_pages(array)
        return torch.from_numpy(out)

    def to(self, device: str | torch.device) -> Any:
        """Let batches go to a device: nothing is moved yet."""
        return self if str(device) == self.place else replace(self, place=str(device))

    def __len__(self) -> int:
        return self.shape[0]

    def is_floating_point(self) -> bool:
        """Return True, as of a tensor of float32."""
        return True

    def flatten(self, axis: int) -> Tensor:
        """Return all records with some axes made one: this takes the memory of them all."""
        return self[:].flatten(axis)

    def index_select(self, axis: int, places: Tensor) -> Tensor:
        """Return a batch, on the device.

        Args:
            axis: 0.
            places: (places,).
        """
        assert axis == 0
        return self[places].to(self.device)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"{type(self).__name__}({self.shape})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompactRows(Rows):
    """Encoded records of a table, (records, features), packed.

    Guarantee: `rows[where]` has, bit for bit, the float32 numbers that `TableSchema.encode` writes.
    How much is kept depends on the number of records and the schema only.

    Args:
        kept: Packed records of `packed_type`, (records,), in memory or mapped from a file.
        width: Number of features of an encoded record.
        features: Indices of those that are seen, rising, (features,); None: all.
        numbers: Indices of the kept numbers that are seen, (numbers,).
        numbers_at: Their positions among the features that are seen, (numbers,).
    """

    kept: np.ndarray
    width: int
    features: np.ndarray | None = None
    numbers: np.ndarray
    numbers_at: np.ndarray

    @classmethod
    def of(cls, schema: TableSchema, kept: np.ndarray) -> CompactRows:
        """Read packed records of a complete schema."""
        at = _find_number_features(schema)
        return cls(
            kept=kept,
            mapped=(kept,),
            width=schema.shape[0],
            numbers=np.arange(len(at)),
            numbers_at=at,
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.kept), self.width if self.features is None else len(self.features)

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        kept = np.asarray(self.kept[rows])
        bits = np.unpackbits(kept["bits"], axis=1, count=self.width)
        out[...] = bits if self.features is None else bits.take(self.features, axis=1)
        out[:, self.numbers_at] = kept["numbers"][:, self.numbers]

    def select_features(self, features: np.ndarray) -> CompactRows:
        """Select features of all records, which are not copied.

        Args:
            features: Their indices, rising, (some,).
        """
        _, numbers, at = np.intersect1d(
            self.numbers_at, features, assume_unique=True, return_indices=True
        )
        some = features if self.features is None else self.features[features]
        return replace(self, features=some, numbers=self.numbers[numbers], numbers_at=at)


def packed_type(width: int, numbers: int) -> np.dtype[Any]:
    """Return the type of a packed record: a bit per feature, and its numbers as float32."""
    return np.dtype([("bits", np.uint8, (-(-width // 8),)), ("numbers", np.float32, (numbers,))])


def pack_table(
    schema: TableSchema, cells_of: Callable[[slice], TableCells], valid: np.ndarray
) -> np.ndarray:
    """Encode rows of a table and pack them, (rows,), a block at a time.

    Args:
        schema: Complete.
        cells_of: Returns the cells of some rows, (rows, columns).
        valid: Whether each row has a known target, bool, (rows,); null records become False, and
            where it is False, all features are 0.
    """
    (width,), at = schema.shape, _find_number_features(schema)
    kept = np.empty(len(valid), packed_type(width, len(at)))
    step = min(len(valid), max(1, BLOCK_NUMBERS // max(1, width)))
    x = np.empty((step, width), np.float32)
    for start in range(0, len(valid), max(1, step)):
        part = slice(start, min(start + step, len(valid)))
        own = x[: part.stop - start]
        valid[part] &= schema.encode(cells_of(part), out=own)
        own[~valid[part]] = 0.0
        kept["bits"][part] = np.packbits(own != 0.0, axis=1)
        kept["numbers"][part] = own[:, at]
    return kept


def _find_number_features(schema: TableSchema) -> np.ndarray:
    """Find the features that are numbers; all others are 0 or 1."""
    pieces = schema.pieces
    starts = np.cumsum([0, *(piece.width for piece in pieces)])[:-1]
    numeric = np.array([piece.kind == "number" for piece in pieces], bool)
    return starts[numeric]


def release_pages(array: np.ndarray) -> None:
    """Release the memory of the pages of a mapped file; an array in memory stays."""
    held = getattr(array, "_mmap", None)
    if isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ComputedRows(Rows):
    """Records that are computed a batch at a time.

    Args:
        form: The number of records, and the shape of one.
        fill: Writes some records, as `write` does.
        whole: Whether another device gets one tensor of all records, moved once.
    """

    form: tuple[int, ...]
    fill: Callable[[slice | np.ndarray, np.ndarray], None]
    whole: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form

    def to(self, device: str | torch.device) -> Any:
        if self.whole and str(device) != "cpu":
            return self[:].to(device)
        return Rows.to(self, device)

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        self.fill(rows, out)


def select_rows(kept: np.ndarray, slots: np.ndarray, valid: np.ndarray) -> ComputedRows:
    """Select records of an array that several partitions share, such as a mapped file: no copy.

    Args:
        kept: float32, (all records, ...).
        slots: Indices of the records, (records,).
        valid: (records,) False marks a null record, which is 0.
    """

    def fill(rows: slice | np.ndarray, out: np.ndarray) -> None:
        np.take(kept, slots[rows], axis=0, out=out, mode="clip")
        out[~valid[rows]] = 0.0

    return ComputedRows(form=(len(slots), *kept.shape[1:]), fill=fill, whole=True)


def convert_to_slice(where: Where) -> slice | np.ndarray:
    """Return places as numpy's; those that follow each other as a slice: a full batch's do."""
    if isinstance(where, slice):
        return where
    places = where if isinstance(where, np.ndarray) else where.cpu().numpy()
    if len(places):
        start, stop = int(places[0]), int(places[-1]) + 1
        if start >= 0 and stop - start == len(places) and bool((np.diff(places) == 1).all()):
            return slice(start, stop)
    return places


def iterate_records(x: Any, valid: Any, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through records, some at a time: flattened features, and which are no null record.

    Args:
        x: A tensor or `Rows`, (n, ...).
        valid: bool, (n,).
        rows: How many at a time.
    """
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        yield x[part].flatten(1).numpy(), valid[part].numpy()
