"""Features of records that are converted to a tensor one batch at a time.

    Rows           interface: shape, slices, `index_select` and `to`, like those of a tensor
    CompactRows    encoded records of a table: 1 bit per feature that is 0 or 1, 4 bytes per number
    ComputedRows   records that a function computes, such as those of a memory-mapped file

Trainings, scores and fits read `Records.x` through this interface only, so records that do not fit
into memory give the same results as others.

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

# Number of values written at a time: about the size of a processor's cache.
CACHED_NUMBERS = 2**19
# Number of such parts that are written in parallel before their pages are released.
PARALLEL_PARTS = 8
# Maximum size of a partition whose encoded records are one tensor, numbers: 512 MiB.
MAX_TENSOR_NUMBERS = 2**27
# Maximum size of a block of records, numbers: 32 MiB.
BLOCK_NUMBERS = 2**23


@lru_cache(maxsize=1)
def _get_thread_pool(many: int) -> ThreadPoolExecutor:
    """Return the pool of `many` threads that write rows; their number does not change the rows."""
    return ThreadPoolExecutor(many, "rows")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Rows(ABC):
    """Features, float32, (records, ...), with those methods of a tensor that trainings use.

    Args:
        place: Device of batches: "cpu" or "cuda".
        mapped: Arrays that are read. If they are memory-mapped, their pages are released after each
            read.
    """

    place: str = "cpu"
    mapped: tuple[np.ndarray, ...] = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Number of records, and shape of one record."""

    @property
    def device(self) -> torch.device:
        """Device of batches."""
        import torch

        return torch.device(self.place)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a batch: float32."""
        import torch

        return torch.float32

    @property
    def block(self) -> int:
        """Number of records of a block that has at most `BLOCK_NUMBERS` numbers."""
        return max(1, BLOCK_NUMBERS // max(1, math.prod(self.shape[1:])))

    @abstractmethod
    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        """Write some records, few enough for a processor's cache.

        Args:
            rows: Slice without a step, or indices, (some,).
            out: Output, float32, (some, ...); overwritten.
        """

    def __getitem__(self, where: Where) -> Tensor:
        """Compute the given records as float32, (rows, ...), in CPU memory.

        Args:
            where: Slice without a step, or indices, (some,).
        """
        import torch

        rows = convert_to_slice(where)
        start, stop = rows.indices(len(self))[:2] if isinstance(rows, slice) else (0, len(rows))
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.float32)
        step = max(1, CACHED_NUMBERS // max(1, math.prod(self.shape[1:])))
        many = torch.get_num_threads()

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
        """Return the rows with another device of batches; no record is moved yet."""
        return self if str(device) == self.place else replace(self, place=str(device))

    def __len__(self) -> int:
        return self.shape[0]

    def is_floating_point(self) -> bool:
        """Return True, like a tensor of float32."""
        return True

    def flatten(self, axis: int) -> Tensor:
        """Return all records as one tensor, flattened from an axis on."""
        return self[:].flatten(axis)

    def index_select(self, axis: int, places: Tensor) -> Tensor:
        """Return a batch of records on the device.

        Args:
            axis: Axis of the records: always 0.
            places: Indices of the records, (batch,).
        """
        assert axis == 0
        return self[places].to(self.device)

    def __repr__(self) -> str:
        """Show the shape, never a value."""
        return f"{type(self).__name__}({self.shape})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompactRows(Rows):
    """Packed encoded records of a table, (records, features).

    Guarantee: `rows[where]` equals the float32 output of `TableSchema.encode`, bit for bit. The
        amount of stored data depends only on the number of records and the schema.

    Args:
        kept: Packed records of `make_packed_type`, (records,), in memory or mapped from a file.
        width: Number of features of an encoded record.
        features: Indices of the visible features, rising, (features,); None for all.
        numbers: Indices, among the stored numbers, of those that are visible, (numbers,).
        numbers_at: Index of each of them among the visible features, (numbers,).
    """

    kept: np.ndarray
    width: int
    features: np.ndarray | None = None
    numbers: np.ndarray
    numbers_at: np.ndarray

    @classmethod
    def of(cls, schema: TableSchema, kept: np.ndarray) -> CompactRows:
        """Build the rows from packed records of a complete schema."""
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
        """Return the same records with some of the features, without copying.

        Args:
            features: Indices of the features, rising, (some,).
        """
        _, numbers, at = np.intersect1d(
            self.numbers_at, features, assume_unique=True, return_indices=True
        )
        some = features if self.features is None else self.features[features]
        return replace(self, features=some, numbers=self.numbers[numbers], numbers_at=at)


def make_packed_type(width: int, numbers: int) -> np.dtype[Any]:
    """Return the element type of packed records: a bit per feature, and the numbers as float32.

    Args:
        width: Number of features of an encoded record.
        numbers: Number of features that are numbers, not 0 or 1.
    """
    return np.dtype([("bits", np.uint8, (-(-width // 8),)), ("numbers", np.float32, (numbers,))])


def pack_table(
    schema: TableSchema, cells_of: Callable[[slice], TableCells], valid: np.ndarray
) -> np.ndarray:
    """Encode rows of a table block by block, and return them packed, (rows,).

    Args:
        schema: Complete schema.
        cells_of: Function that returns the cells of some rows, (rows, columns).
        valid: Mask of rows with a known target, bool, (rows,). The function also sets it to False
            for null records. The features of rows with False are 0.
    """
    (width,), at = schema.shape, _find_number_features(schema)
    kept = np.empty(len(valid), make_packed_type(width, len(at)))
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
    """Return the indices of the features that are numbers; all others are 0 or 1."""
    found, start = [], 0
    for piece in schema.pieces:
        found.append(np.arange(start, start + piece.number_features))
        start += piece.width
    return np.concatenate(found)


def release_pages(array: np.ndarray) -> None:
    """Release the memory of a memory-mapped array's pages; other arrays are unchanged."""
    held = getattr(array, "_mmap", None)
    if isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ComputedRows(Rows):
    """Records that are computed one batch at a time.

    Args:
        form: Number of records, and the shape of one.
        fill: Function that writes some records, with the arguments of `write`.
        whole: Whether `to` another device moves all records there as one tensor.
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
    """Return some records of an array that several partitions share, without copying it.

    Args:
        kept: Records, float32, (all records, ...), perhaps memory-mapped.
        slots: Indices of the selected records, (records,).
        valid: Mask, (records,): False marks a null record, which becomes 0.
    """

    def fill(rows: slice | np.ndarray, out: np.ndarray) -> None:
        np.take(kept, slots[rows], axis=0, out=out, mode="clip")
        out[~valid[rows]] = 0.0

    return ComputedRows(form=(len(slots), *kept.shape[1:]), fill=fill, whole=True)


def convert_to_slice(where: Where) -> slice | np.ndarray:
    """Return indices as a slice if they are consecutive, such as those of a full batch.

    Other indices are returned as a numpy array.
    """
    if isinstance(where, slice):
        return where
    places = where if isinstance(where, np.ndarray) else where.cpu().numpy()
    if len(places):
        start, stop = int(places[0]), int(places[-1]) + 1
        if start >= 0 and stop - start == len(places) and bool((np.diff(places) == 1).all()):
            return slice(start, stop)
    return places


def iterate_records(x: Any, valid: Any, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over blocks of records: flattened features, and a mask of records that are not null.

    Args:
        x: Features, a tensor or `Rows`, (n, ...).
        valid: Mask of records, bool, (n,).
        rows: Number of records in a block.
    """
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        yield x[part].flatten(1).numpy(), valid[part].numpy()
