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
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pasearch.data.column import Column, Encoded
from pasearch.data.mapped import Kept, Mapped
from pasearch.data.rows import PlacedRows

MOST = 2**27
"""Up to so many numbers, 512 MiB, the encoded records of a partition are one tensor."""

BLOCK = 2**23
"""How many numbers a block has at most: 32 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Plane(ABC):
    """Some features of all records.

    Args:
        kept: What is kept of each record, (rows, ...): an array, or a field of a file.
        at: Where its features are in a row that is written, rising, (features,).
    """

    kept: Kept
    at: np.ndarray

    @abstractmethod
    def taking(self, some: np.ndarray, at: np.ndarray) -> Self:
        """Return the plane of some of its features, by their places here; they go elsewhere."""

    @abstractmethod
    def write(self, rows: slice | np.ndarray, out: np.ndarray, look: Look) -> None:
        """Write some records into their rows, which are `look.zero` so far."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Ones(_Plane):
    """Features of which each is 1 at one code of a column.

    Args:
        places: Where the feature is that a code makes 1, (columns, codes); -1: nowhere.
    """

    places: np.ndarray

    def taking(self, some: np.ndarray, at: np.ndarray) -> Self:
        moved = np.full(int(self.at.max(initial=0)) + 2, -1)  # the last one is of -1
        moved[self.at[some]] = at
        return replace(self, at=at, places=moved[self.places])

    def write(self, rows: slice | np.ndarray, out: np.ndarray, look: Look) -> None:
        columns, codes = self.places.shape
        own = self.places.ravel().take(self.kept[rows] + codes * np.arange(columns))
        length = out.strides[0] // out.itemsize  # of a row: `out` may be a part of wider ones
        flat = as_strided(out, ((len(out) - 1) * length + out.shape[1],), out.strides[1:])
        at = own + (length * np.arange(len(out)))[:, None]
        if self.places.min() < 0 and not (there := own >= 0).all():
            own, at = own[there], at[there]
        flat[at] = 1.0 if look.one is None else look.one.take(own)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Numbers(_Plane):
    """Features that are kept as they are.

    Args:
        columns: Which of the kept numbers each feature is, (features,).
    """

    columns: np.ndarray

    def taking(self, some: np.ndarray, at: np.ndarray) -> Self:
        return replace(self, at=at, columns=self.columns[some])

    def write(self, rows: slice | np.ndarray, out: np.ndarray, look: Look) -> None:
        out[:, self.at] = look.of(self.kept[rows].take(self.columns, axis=1), self.at)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Words(_Plane):
    """Features of a bit each.

    Args:
        bits: Which bit each feature is, (features,).
    """

    bits: np.ndarray

    def taking(self, some: np.ndarray, at: np.ndarray) -> Self:
        return replace(self, at=at, bits=self.bits[some])

    def write(self, rows: slice | np.ndarray, out: np.ndarray, look: Look) -> None:
        """Unpack the bits, eight of each kept byte."""
        bits = np.unpackbits(self.kept[rows], axis=1).take(self.bits, axis=1)
        first, last = int(self.at[0]), int(self.at[-1])
        whole = last - first + 1 == len(self.at)
        # A slice is several times as fast as places.
        own = look.of(bits.astype(np.float32), self.at)
        out[:, slice(first, last + 1) if whole else self.at] = own


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Look:
    """What a feature x is written as: itself, or (x - shift) * scale, float32, feature by feature.

    Args:
        zero: What 0 is written as.
        one: What 1 is written as; None: itself.
        shift: Of each feature; None: all are written as they are.
        scale: See there.
    """

    zero: float | np.ndarray = 0.0
    one: np.ndarray | None = None
    shift: np.ndarray | None = None
    scale: np.ndarray | None = None

    @classmethod
    def moved(cls, shift: np.ndarray, scale: np.ndarray) -> Look:
        """Return what features are written as that are moved and scaled, to the bits of torch."""
        return cls((0 - shift) * scale, (1 - shift) * scale, shift, scale)

    def of(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return features, (rows, some), as they are written at these places."""
        if self.shift is None or self.scale is None:
            return x
        return (x - self.shift[at]) * self.scale[at]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CompactRows(PlacedRows):
    """Encoded records, (rows, features), as far as they are read block by block.

    Guarantee: `rows[where]` is, bit for bit, what encoding at once gives there.

    Args:
        form: How many records and features.
        planes: What is kept; a later one overwrites what an earlier one wrote.
        file: Where it is kept; None: in memory.
        look: What features are written as.
    """

    form: tuple[int, int]
    planes: tuple[_Plane, ...]
    file: Mapped | None = None
    look: Look = field(default_factory=Look)

    @property
    def shape(self) -> tuple[int, int]:
        return self.form

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        out[...] = self.look.zero
        for plane in self.planes:
            plane.write(rows, out, self.look)

    def moved(self, shift: np.ndarray, scale: np.ndarray) -> CompactRows:
        """Return the same records, every feature x written as (x - shift) * scale.

        A null record is written as one whose features are all 0.

        Args:
            shift: float32, (features,).
            scale: See there.
        """
        return replace(self, look=Look.moved(shift, scale))

    def let_go(self) -> None:
        if self.file is not None:
            self.file.let_go()

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
        return replace(self, form=(len(self), len(features)), planes=tuple(planes))


class Room:
    """Where the encoded records of a table are put, a column of a block at a time.

    Args:
        columns: The pieces of the schema, complete.
        rows: How many records.
    """

    __slots__ = ("_columns", "kept")

    def __init__(self, columns: Sequence[Column], rows: int):
        self._columns = columns
        self.kept = np.empty(rows, row_type(columns))

    def put(self, place: int, rows: slice, encoded: Encoded, valid: np.ndarray) -> None:
        """Keep what the cells of one column become.

        Args:
            place: Of the column.
            rows: Where the block is among all records.
            encoded: Of the block.
            valid: (rows,) False marks a null record.
        """
        if encoded.words is not None:
            bits = np.packbits(encoded.words & valid[:, None], axis=1)
            self.kept[_field(_WORDS, place)][rows] = bits
        if encoded.ones is not None:
            codes = np.where(valid, encoded.ones, self._columns[place].width)
            field, own = next((f, own) for f, own in _coded(self._columns) if place in own)
            self.kept[field][rows, own.index(place)] = codes
        if encoded.numbers is not None:
            own = _of_kind(self._columns, "number")
            self.kept[_NUMBERS][rows, own.index(place)] = np.where(valid, encoded.numbers, 0.0)

    def finished(self) -> CompactRows:
        """Return the records."""
        return compact_rows(self._columns, len(self.kept), self.kept.__getitem__)


_NUMBERS, _WORDS = "numbers", "words"


def row_type(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return what is kept of a record of these columns, as a numpy type of several fields."""
    fields: list[tuple[str, Any, tuple[int]]] = []
    if numbers := _of_kind(columns, "number"):
        fields.append((_NUMBERS, np.float32, (len(numbers),)))
    widest_first = sorted(_coded(columns), key=lambda each: each[0], reverse=True)
    fields += [(name, np.dtype(name[-2:]), (len(own),)) for name, own in widest_first]
    for i in _of_kind(columns, "text"):
        fields.append((_field(_WORDS, i), np.uint8, (-(-columns[i].width // 8),)))
    return np.dtype(fields, align=True)


def compact_rows(
    columns: Sequence[Column], rows: int, kept: Any, file: Mapped | None = None
) -> CompactRows:
    """Return records of which everything is kept.

    Args:
        columns: The pieces of the schema, complete.
        rows: How many records.
        kept: Called with the name of a field of `row_type`: what is kept there.
        file: As of `CompactRows`.
    """
    widths = [column.width for column in columns]
    starts = np.cumsum([0, *widths])
    each_at = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
    planes: list[_Plane] = []
    for name, own in _coded(columns):
        places = np.full((len(own), max(widths[i] for i in own) + 1), -1)
        for row, i in zip(places, own, strict=True):
            row[: widths[i]] = each_at[i]
        at = np.concatenate([each_at[i] for i in own])
        planes.append(_Ones(kept=kept(name), at=at, places=places))
    for i in _of_kind(columns, "text"):
        own_bits = kept(_field(_WORDS, i))
        planes.append(_Words(kept=own_bits, at=each_at[i], bits=np.arange(widths[i])))
    if numbers := _of_kind(columns, "number"):
        places = np.arange(len(numbers))
        planes.append(_Numbers(kept=kept(_NUMBERS), at=starts[numbers], columns=places))
    return CompactRows(form=(rows, int(starts[-1])), planes=tuple(planes), file=file)


def _of_kind(columns: Sequence[Column], *kinds: str) -> list[int]:
    return [place for place, column in enumerate(columns) if column.kind in kinds]


def _coded(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """Return the columns of which a code is kept, by the field of their type."""
    found: dict[str, list[int]] = {}
    for i in _of_kind(columns, "number", "category"):
        # One code more than there are features, at which none is 1: of null records.
        code = np.min_scalar_type(columns[i].width).str[1:]
        found.setdefault(f"codes {code}", []).append(i)
    return list(found.items())


def _field(kind: str, place: int) -> str:
    return f"{kind} {place}"
