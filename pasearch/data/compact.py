"""Encoded records of a table in little memory, written out as float32 a block at a time.

| what a column is | what is kept of a record | bytes |
|---|---|---|
| category | which of its features is 1 | 1; 2 from 255 features on |
| number | the same, and the scaled number | 4 more |
| text | for each word, whether it occurs | 1 for 8 words |

`Column.encode` writes the same parts into one array, so both ways give the same float32 numbers. A
null record is 0 everywhere. How much is kept depends on slots and schema only.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from pasearch.data.column import Column, Encoded

if TYPE_CHECKING:
    import torch

MOST = 2**27
"""Up to so many numbers, 512 MiB, the encoded records of a partition are one tensor."""

BLOCK = 2**23
"""How many numbers a block has at most: 32 MiB."""

CACHED = 2**19
"""How many numbers are written at a time: about what a processor's cache holds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Plane(ABC):
    """Some features of all records.

    Args:
        kept: What is kept of each record, (rows, ...).
        at: Where its features are in a row that is written, rising, (features,).
    """

    kept: np.ndarray
    at: np.ndarray

    @abstractmethod
    def features(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the features of some records, (rows, features)."""

    def taking(self, some: np.ndarray, at: np.ndarray) -> Self:
        """Return the plane of some of its features, by their places here; they go elsewhere."""
        own = [each.name for each in fields(self) if each.name not in ("kept", "at")]
        return replace(self, at=at, **{name: getattr(self, name)[some] for name in own})

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        """Write the features of some records into their rows."""
        first, last = int(self.at[0]), int(self.at[-1])
        whole = last - first + 1 == len(self.at)
        # A slice is several times as fast as places.
        out[:, slice(first, last + 1) if whole else self.at] = self.features(rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Ones(_Plane):
    """Features of which each is 1 at one code of a column.

    Args:
        columns: Whose code each feature looks at, rising, (features,).
        codes: The code at which it is 1, (features,), of the type of what is kept.
    """

    columns: np.ndarray
    codes: np.ndarray

    def features(self, rows: slice | np.ndarray) -> np.ndarray:
        """Compare the codes, (rows, columns), with those of the features."""
        return self.kept[rows].take(self.columns, axis=1) == self.codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Numbers(_Plane):
    """Features that are kept as they are.

    Args:
        columns: Which of the kept numbers each feature is, (features,).
    """

    columns: np.ndarray

    def features(self, rows: slice | np.ndarray) -> np.ndarray:
        return self.kept[rows].take(self.columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Words(_Plane):
    """Features of a bit each.

    Args:
        bits: Which bit each feature is, (features,).
    """

    bits: np.ndarray

    def features(self, rows: slice | np.ndarray) -> np.ndarray:
        """Unpack the bits, eight of each kept byte."""
        return np.unpackbits(self.kept[rows], axis=1).take(self.bits, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompactRows:
    """Encoded records, (rows, features), as far as they are read block by block.

    Guarantee: `rows[where]` is, bit for bit, what encoding at once gives there.

    Args:
        shape: How many records and features.
        planes: What is kept; a later one overwrites what an earlier one wrote.
    """

    shape: tuple[int, int]
    planes: tuple[_Plane, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: slice | np.ndarray) -> torch.Tensor:
        """Return some records, float32 (some, features).

        Args:
            where: A slice without a step, or places, (some,).
        """
        import torch

        rows = _slice_of(where)
        start, stop = rows.indices(len(self))[:2] if isinstance(rows, slice) else (0, len(rows))
        out = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        step = max(1, CACHED // max(1, self.shape[1]))
        for first in range(start, stop, step):
            part = slice(first, min(first + step, stop))
            block = out[part.start - start : part.stop - start]
            for plane in self.planes:
                plane.write(part if isinstance(rows, slice) else rows[part], block)
        return torch.from_numpy(out)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"CompactRows({self.shape[0]} rows, {self.shape[1]} features)"

    @property
    def block(self) -> int:
        """How many records a block has."""
        return max(1, BLOCK // max(1, self.shape[1]))

    def taking(self, features: np.ndarray) -> CompactRows:
        """Return the same records with some of their features: nothing is copied.

        Args:
            features: Their places, rising, (some,).
        """
        planes = []
        for plane in self.planes:
            _, some, at = np.intersect1d(
                plane.at, features, assume_unique=True, return_indices=True
            )
            if len(some):
                planes.append(plane.taking(some, at))
        return CompactRows(shape=(len(self), len(features)), planes=tuple(planes))


class Room:
    """Where the encoded records of a table are put, a column of a block at a time.

    Args:
        columns: The pieces of the schema, complete.
        rows: How many records.
    """

    __slots__ = ("_bits", "_numbers", "_ones", "_shape", "_widths")

    def __init__(self, columns: Sequence[Column], rows: int):
        self._widths = [column.width for column in columns]
        self._shape = rows, sum(self._widths)
        words = [i for i, each in enumerate(columns) if each.kind == "text"]
        numbers = [i for i, each in enumerate(columns) if each.kind == "number"]
        others = [i for i, each in enumerate(columns) if each.kind in ("number", "category")]
        # One code more than there are features, at which none is 1: of null records.
        types = {i: np.min_scalar_type(self._widths[i]) for i in others}
        of_type = {t: [i for i in others if types[i] == t] for t in dict.fromkeys(types.values())}
        self._bits = {i: np.empty((rows, -(-self._widths[i] // 8)), np.uint8) for i in words}
        self._ones = [(own, np.empty((rows, len(own)), t)) for t, own in of_type.items()]
        self._numbers = numbers, np.empty((rows, len(numbers)), np.float32)

    def put(self, place: int, rows: slice, encoded: Encoded, valid: np.ndarray) -> None:
        """Keep what the cells of one column become.

        Args:
            place: Of the column.
            rows: Where the block is among all records.
            encoded: Of the block.
            valid: (rows,) False marks a null record.
        """
        if encoded.words is not None:
            self._bits[place][rows] = np.packbits(encoded.words & valid[:, None], axis=1)
        if encoded.ones is not None:
            codes = np.where(valid, encoded.ones, self._widths[place])
            own, kept = next(each for each in self._ones if place in each[0])
            kept[rows, own.index(place)] = codes
        if encoded.numbers is not None:
            own, kept = self._numbers
            kept[rows, own.index(place)] = np.where(valid, encoded.numbers, 0.0)

    def finished(self) -> CompactRows:
        """Return the records."""
        starts = np.cumsum([0, *self._widths])
        each_at = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
        planes: list[_Plane] = []
        for own, kept in self._ones:
            widths = [self._widths[i] for i in own]
            codes = np.concatenate([np.arange(width) for width in widths]).astype(kept.dtype)
            at = np.concatenate([each_at[i] for i in own])
            columns = np.repeat(np.arange(len(own)), widths)
            planes.append(_Ones(kept=kept, at=at, columns=columns, codes=codes))
        for i, kept in self._bits.items():
            planes.append(_Words(kept=kept, at=each_at[i], bits=np.arange(self._widths[i])))
        if numbers := self._numbers[0]:
            at, columns = starts[numbers], np.arange(len(numbers))
            planes.append(_Numbers(kept=self._numbers[1], at=at, columns=columns))
        return CompactRows(shape=self._shape, planes=tuple(planes))


def _slice_of(where: slice | np.ndarray) -> slice | np.ndarray:
    """Return places that follow each other as a slice: those of a full batch do."""
    if isinstance(where, np.ndarray) and len(where):
        start, stop = int(where[0]), int(where[-1]) + 1
        if start >= 0 and stop - start == len(where) and bool((np.diff(where) == 1).all()):
            return slice(start, stop)
    return where
