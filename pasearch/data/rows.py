"""Features of records that are no tensor: they become one where they are asked for, batch by batch.

A training, a score and a fit use of `Records.x` what `Rows` has: a shape, slices, `index_select`,
`to`. So records that memory does not hold are trained on like others, and give the same numbers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Where = slice | np.ndarray | Tensor


CACHED = 2**19
"""How many numbers are written at a time: about what a processor's cache holds."""

SIDE = 8
"""How many of these are written, side by side, before pages are let go."""


@lru_cache(maxsize=1)
def _pool(many: int) -> ThreadPoolExecutor:
    """Return threads that write: each its own records, so how many there are changes nothing."""
    return ThreadPoolExecutor(many, "rows")


class Rows(ABC):
    """Features, float32, (records, ...), as far as this package uses a tensor of them."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """How many records, and the shape of one."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where batches go."""

    @property
    def dtype(self) -> torch.dtype:
        """Of a batch."""
        import torch

        return torch.float32

    @abstractmethod
    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        """Write some records, few enough for a processor's cache.

        Args:
            rows: A slice without a step, or places, (some,).
            out: float32, (some, ...); overwritten.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Let what was read of a file be no memory of this process any more."""

    def __getitem__(self, where: Where) -> Tensor:
        """Return some records, float32 (some, ...), in the processor's memory.

        Args:
            where: A slice without a step, or places, (some,).
        """
        import torch

        rows = where_of(where)
        start, stop = rows.indices(len(self))[:2] if isinstance(rows, slice) else (0, len(rows))
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.float32)
        step, many = max(1, CACHED // max(1, math.prod(self.shape[1:]))), torch.get_num_threads()

        def write(first: int) -> None:
            part = slice(first, min(first + step, stop))
            own = part if isinstance(rows, slice) else rows[part]
            self.write(own, out[part.start - start : part.stop - start])

        for first in range(start, stop, step * SIDE):
            firsts = range(first, min(first + step * SIDE, stop), step)
            for _ in (_pool(many).map if many > 1 < len(firsts) else map)(write, firsts):
                pass
            self.let_go()
        return torch.from_numpy(out)

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Return the same, whose batches go to a device: nothing is moved yet."""

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlacedRows(Rows):
    """Features whose batches go where they are told to.

    Args:
        place: Where batches go: "cpu" or "cuda".
    """

    place: str = "cpu"

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device(self.place)

    def to(self, device: str | torch.device) -> Self:
        return replace(self, place=str(device))

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"{type(self).__name__}({self.shape})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PickedRows(Rows):
    """Some of the records of an array that several share, such as a mapped file's: no copy.

    Args:
        kept: float32, (all records, ...).
        slots: Which of them are seen, (records,).
        valid: (records,) False marks a null record, which is 0.
    """

    kept: np.ndarray
    slots: np.ndarray
    valid: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.slots), *self.kept.shape[1:]

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def to(self, device: str | torch.device) -> Any:
        """Return the same; of another device than the processor a tensor, which is moved once."""
        return self if str(device) == "cpu" else self[:].to(device)

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        np.take(self.kept, self.slots[rows], axis=0, out=out, mode="clip")
        out[~self.valid[rows]] = 0.0

    def let_go(self) -> None:
        """Keep the pages: they are shared."""

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"PickedRows({self.shape})"


def where_of(where: Where) -> slice | np.ndarray:
    """Return places as numpy's; those that follow each other as a slice: a full batch's do."""
    if isinstance(where, slice):
        return where
    places = where if isinstance(where, np.ndarray) else where.cpu().numpy()
    if len(places):
        start, stop = int(places[0]), int(places[-1]) + 1
        if start >= 0 and stop - start == len(places) and bool((np.diff(places) == 1).all()):
            return slice(start, stop)
    return places


def parts_of(x: Any, valid: Any, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Go through records, some at a time: flattened features, and which are no null record.

    Args:
        x: A tensor or `Rows`, (n, ...).
        valid: bool, (n,).
        rows: How many at a time.
    """
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        yield x[part].flatten(1).numpy(), valid[part].numpy()
