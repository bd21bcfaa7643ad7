r"""A table's cells in little memory: each different text once, a decimal number as its digits.

| what a column holds | what is kept of a cell | bytes a cell |
|---|---|---|
| up to `FEW` different texts | its place in the column's dictionary | 1 |
| decimal numbers, and up to `MOST` other texts | its digits, or its place | 2, 4 or 8 |
| more texts | its characters in UTF-8, and where they end | characters + 4 |

A cell comes back exactly as it was: a text, or None in a null record. "1", "1.0" and "01" are three
texts. What a column looks like decides how it is kept, and never what is read from it: whatever
has to be computed of a text is computed once for each different one.

A decimal number is `-?(0|[1-9][0-9]*)(\.[0-9]+)?` without -0: its digits make a whole number w, of
which k are decimals, and the cell is kept as `32 w + k`, plus `MOST` unless w < 0. Where abs(w) is
at most 2^53, w and 10^k are exact in float64, so w / 10^k is the number nearest to the text.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Protocol, TypeVar

import numpy as np

Made = TypeVar("Made")
Where = slice | np.ndarray

FEW = 256
"""Up to so many different texts, a column keeps places alone: one byte a cell."""

MOST = 2**15
"""Up to so many texts that are no decimal numbers, a column has a dictionary."""

ROWS = 512
"""How many rows are Python objects at a time, while a table is read or gone through: so few that
those of a hundred columns stay in a processor's cache."""

SHIFT = 5
STEP = 2**SHIFT
"""The distance of the codes of two whole numbers: more than a number has decimals."""

LONGEST = 24
"""The most characters of a decimal number: one of more is kept as a text."""

DIGITS = 17
"""The most digits of a decimal number, zeros in front not counted: their code fits in 64 bits."""

EXACT = 2**53
"""Up to here every whole number is a float64."""

POWERS = np.array([float(10**k) for k in range(STEP)])
"""The powers of ten; those that a decimal number needs are exact."""

NULL = b"\xff"
"""What stands for None among characters: no text in UTF-8 has this byte."""

WIDTHS = (np.uint8, np.uint16, np.int32, np.int64)
"""The types of codes, the narrowest first."""

ENDS = np.uint32
"""The type of where a cell ends, unless a column has more characters than that counts."""


class Hash(Protocol):
    """What a fingerprint is fed to."""

    def update(self, data: Any, /) -> None:
        """Take in bytes."""
        ...


class TextColumn(ABC):
    """The cells of one column, (rows,): an array of objects, as far as this package uses one.

    Guarantee: the cells are those that were put in, each a text or None.
    """

    __slots__ = ()

    dtype = np.dtype(object)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of cells."""

    @abstractmethod
    def __getitem__(self, where: Where) -> TextColumn:
        """Return the cells at some places: a slice, whole numbers or a mask."""

    @abstractmethod
    def counts(self) -> Iterator[tuple[str | None, int]]:
        """Go through the cells, equal ones together or apart: what they hold, and how many."""

    @abstractmethod
    def map(self, function: Callable[[str | None], Made]) -> list[Made]:
        """Return what a function makes of each cell."""

    @abstractmethod
    def whole(self, function: Callable[[str | None], int]) -> np.ndarray:
        """Return the whole number that a function makes of each cell, int64, (rows,)."""

    @abstractmethod
    def numbers(self, function: Callable[[str | None], float], *, plain: bool = True) -> np.ndarray:
        """Return each cell as a number, float64, (rows,).

        Args:
            function: What makes a number of a cell.
            plain: Whether it returns `float(text)` for every decimal number, so that it need not
                be asked for these.
        """

    @abstractmethod
    def feed(self, digest: Hash) -> None:
        """Feed every cell to a fingerprint."""

    def present(self) -> np.ndarray:
        """Return which cells are not None, bool, (rows,)."""
        return self.whole(lambda cell: cell is not None).astype(bool)

    @property
    def shape(self) -> tuple[int]:
        """The number of cells."""
        return (len(self),)

    def tolist(self) -> list[str | None]:
        """Return the cells."""
        return self.map(lambda cell: cell)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        cells = np.empty(len(self), object)
        cells[:] = self.tolist()
        return cells if dtype is None else cells.astype(dtype)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"{type(self).__name__}({len(self)} cells)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Coded(TextColumn):
    """A column of few texts, or of decimal numbers.

    Args:
        codes: Whole numbers, (rows,): 0 ... MOST - 1 a place in the dictionary, others a number.
        texts: The dictionary.
    """

    codes: np.ndarray
    texts: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, where: Where) -> Coded:
        return Coded(codes=self.codes[where], texts=self.texts)

    def counts(self) -> Iterator[tuple[str | None, int]]:
        codes, times = np.unique(self.codes, return_counts=True)
        return zip(self._decoded(codes), times.tolist(), strict=True)

    def map(self, function: Callable[[str | None], Made]) -> list[Made]:
        """Return what a function makes of each cell; it is called once for each different one."""
        codes, places = np.unique(self.codes, return_inverse=True)
        made = [function(cell) for cell in self._decoded(codes)]
        return [made[place] for place in places.tolist()]

    def whole(self, function: Callable[[str | None], int]) -> np.ndarray:
        """Return a whole number for each cell; the function is called as in `map`."""
        if self.codes.dtype != WIDTHS[0]:
            codes, places = np.unique(self.codes, return_inverse=True)
        else:  # of so few codes without sorting
            codes, places = np.arange(len(self.texts)), self.codes
        return np.array([function(cell) for cell in self._decoded(codes)], np.int64)[places]

    def present(self) -> np.ndarray:
        """Return which cells are not None: their code alone tells."""
        if None not in self.texts:
            return np.ones(len(self), bool)
        return self.codes != self.texts.index(None)

    def numbers(self, function: Callable[[str | None], float], *, plain: bool = True) -> np.ndarray:
        """Return each cell as a number; `function` is for texts and for more than 53 bits.

        Unless decimal numbers are plain: it is then for every different cell.
        """
        if not plain:
            return np.array(self.map(function), np.float64)
        whole, decimals = _split(self.codes)
        numbers = whole / POWERS[decimals]
        others = _is_text(self.codes) | (np.abs(whole) > EXACT)
        numbers[others] = self[others].map(function)
        return numbers

    def feed(self, digest: Hash) -> None:
        """Feed the codes and what they mean to a fingerprint."""
        digest.update(repr((len(self), self.codes.dtype.str, self.texts)).encode())
        digest.update(np.ascontiguousarray(self.codes).data)

    def _decoded(self, codes: np.ndarray) -> Iterator[str | None]:
        whole, decimals = (each.tolist() for each in _split(codes))
        for code, is_text, w, k in zip(
            codes.tolist(), _is_text(codes).tolist(), whole, decimals, strict=True
        ):
            yield self.texts[code] if is_text else _written(w, k)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Packed(TextColumn):
    """A column of many different texts.

    Args:
        characters: Of all cells, in UTF-8; `NULL` for None.
        starts: Where each cell starts, (rows,).
        stops: Where each cell ends, (rows,).
    """

    characters: bytearray
    starts: np.ndarray
    stops: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, where: Where) -> Packed:
        return Packed(
            characters=self.characters, starts=self.starts[where], stops=self.stops[where]
        )

    def counts(self) -> Iterator[tuple[str | None, int]]:
        return ((cell, 1) for cell in self._cells())

    def map(self, function: Callable[[str | None], Made]) -> list[Made]:
        return [function(cell) for cell in self._cells()]

    def whole(self, function: Callable[[str | None], int]) -> np.ndarray:
        return np.fromiter(map(function, self._cells()), np.int64, len(self))

    def numbers(self, function: Callable[[str | None], float], *, plain: bool = True) -> np.ndarray:
        return np.fromiter(map(function, self._cells()), np.float64, len(self))

    def feed(self, digest: Hash) -> None:
        """Feed the characters and where they belong to a fingerprint."""
        digest.update(repr((len(self), self.starts.dtype.str, len(self.characters))).encode())
        for each in (self.starts, self.stops):
            digest.update(np.ascontiguousarray(each).data)
        digest.update(self.characters)

    def _cells(self) -> Iterator[str | None]:
        for rows in _chunks(len(self)):
            ends = self.starts[rows].tolist(), self.stops[rows].tolist()
            for start, stop in zip(*ends, strict=True):
                found = self.characters[start:stop]
                yield None if found == NULL else found.decode()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TextTable:
    """Cells, (rows, columns): an array of objects, as far as this package uses one.

    Guarantee: as of `TextColumn`.

    Args:
        cells: One column or more, equally long.
    """

    cells: tuple[TextColumn, ...]

    dtype = np.dtype(object)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns."""
        return len(self), len(self.cells)

    @property
    def T(self) -> tuple[TextColumn, ...]:
        """The columns."""
        return self.cells

    def __len__(self) -> int:
        return len(self.cells[0])

    def __getitem__(self, where: Any) -> Any:
        """Return some rows, a table; or of one column, `[rows, place]`, a column."""
        if isinstance(where, tuple):
            rows, place = where
            return self.cells[place][rows]
        return TextTable(cells=tuple(cells[where] for cells in self.cells))

    def rows(self) -> Iterator[tuple[str | None, ...]]:
        """Go through the rows."""
        for where in _chunks(len(self)):
            yield from zip(*(cells[where].tolist() for cells in self.cells), strict=True)

    def present(self) -> np.ndarray:
        """Return which rows are no null records, bool, (rows,): those hold None everywhere."""
        # A row that is not null holds no None at all.
        return self.cells[0].present()

    def feed(self, digest: Hash) -> None:
        """Feed every cell to a fingerprint."""
        for cells in self.cells:
            cells.feed(digest)

    def tolist(self) -> list[list[str | None]]:
        """Return the rows."""
        return [list(row) for row in self.rows()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        table = np.empty(self.shape, object)
        for place, cells in enumerate(self.cells):
            table[:, place] = cells
        return table if dtype is None else table.astype(dtype)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"TextTable({self.shape[0]} rows, {self.shape[1]} columns)"


def build_columns(
    rows: Iterator[Sequence[str] | None], *, width: int, most_rows: int
) -> list[TextColumn]:
    """Return the columns of a table.

    Args:
        rows: Texts, `width` each; None is the null record.
        width: How many columns.
        most_rows: No more rows than these; memory is taken for those that come.

    Cost: time and memory linear in the rows.
    """
    growing = [_Growing(most_rows) for _ in range(width)]
    null = (None,) * width
    while chunk := [null if row is None else row for row in islice(rows, ROWS)]:
        for column, cells in zip(growing, zip(*chunk, strict=True), strict=True):
            column.add(cells)
    return [column.finished() for column in growing]


class _Growing:
    """A column while its cells come in; it changes how they are kept when it has to.

    Args:
        most_rows: How many cells there are at most; pages of memory without one take none.
    """

    def __init__(self, most_rows: int):
        self._most_rows, self._length = most_rows, 0
        self._codes = np.empty(most_rows, WIDTHS[0])
        self._places: dict[str | None, int] = {}
        self._few = True
        self._packing: _Packing | None = None

    def add(self, cells: Sequence[str | None]) -> None:
        """Take in the next cells."""
        if self._packing is None:
            codes = self._coded(cells)
            if len(self._places) <= MOST:
                self._store(codes)
                return
            self._packing = self._repacked()
        self._packing.add(cells)

    def finished(self) -> TextColumn:
        """Return the column."""
        if self._packing is not None:
            return self._packing.finished()
        return Coded(codes=self._codes[: self._length], texts=tuple(self._places))

    def _coded(self, cells: Sequence[str | None]) -> np.ndarray:
        """Return the codes of cells, int64; they mean nothing if the dictionary is too long."""
        places = self._places
        if self._few:
            try:
                return np.fromiter(map(places.__getitem__, cells), np.int64, len(cells))
            except KeyError:
                new = [cell for cell in dict.fromkeys(cells) if cell not in places]
            self._few = len(places) + len(new) <= FEW
            if self._few:
                places |= zip(new, count(len(places)))
                return self._coded(cells)
        codes, decimal = _decimal_codes(cells)
        for at in np.flatnonzero(~decimal).tolist():
            codes[at] = places.setdefault(cells[at], len(places))
        return codes

    def _store(self, codes: np.ndarray) -> None:
        least, most = int(codes.min()), int(codes.max())
        fits = next(w for w in WIDTHS if np.iinfo(w).min <= least and most <= np.iinfo(w).max)
        self._codes = _widened(self._codes, np.promote_types(self._codes.dtype, fits), self._length)
        end = self._length + len(codes)
        self._codes[self._length : end] = codes
        self._length = end

    def _repacked(self) -> _Packing:
        """Return what came so far as characters, and forget it here."""
        packing, before = _Packing(self._most_rows), self.finished()
        for rows in _chunks(len(before)):
            packing.add(before[rows].tolist())
        self._codes, self._places = np.empty(0, WIDTHS[0]), {}
        return packing


class _Packing:
    """A column of many different texts while its cells come in."""

    def __init__(self, most_rows: int):
        self._length, self._characters = 0, bytearray()
        self._ends = np.empty(most_rows + 1, ENDS)
        self._ends[0] = 0

    def add(self, cells: Sequence[str | None]) -> None:
        """Take in the next cells."""
        found = [NULL if cell is None else cell.encode() for cell in cells]
        ends = len(self._characters) + np.cumsum([len(each) for each in found])
        self._characters += b"".join(found)
        if ends[-1] > np.iinfo(self._ends.dtype).max:
            self._ends = _widened(self._ends, np.dtype(np.int64), self._length + 1)
        self._ends[self._length + 1 : self._length + 1 + len(found)] = ends
        self._length += len(found)

    def finished(self) -> Packed:
        """Return the column."""
        ends = self._ends[: self._length + 1]
        return Packed(characters=self._characters, starts=ends[:-1], stops=ends[1:])


def _widened(array: np.ndarray, dtype: np.dtype[Any], filled: int) -> np.ndarray:
    """Return an array as another type; only what is filled is copied, and takes memory."""
    if array.dtype == dtype:
        return array
    wider = np.empty(len(array), dtype)
    wider[:filled] = array[:filled]
    return wider


def _decimal_codes(cells: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return codes, int64, (cells,), and which of them are right: those of decimal numbers."""
    flat = np.frombuffer(_lines(cells) + bytes(LONGEST), np.uint8)
    ends = np.flatnonzero(flat == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts
    right = (sizes > 0) & (sizes <= LONGEST)
    negative = flat[starts] == ord("-")
    leading_zero = flat[starts + negative] == ord("0")
    # From here on (places, cells).
    places = np.arange(sizes[right].max(initial=1))[:, None]
    inside, characters = places < sizes, flat[starts + places]
    digits = characters - np.uint8(ord("0"))
    digit = inside & (digits <= 9)
    point = inside & (characters == ord("."))
    strange = inside & ~(digit | point)
    strange[0] &= ~negative
    # A point has been passed, or a digit above 0.
    pointed, begun = point.copy(), digit & (digits > 0)
    whole = np.zeros(len(cells), np.int64)
    for place in range(len(places)):
        pointed[place] |= pointed[place - 1] if place else False
        begun[place] |= begun[place - 1] if place else False
        whole *= 1 + 9 * digit[place]
        whole += digits[place] * digit[place]
    before, after = _how_many(digit & ~pointed), _how_many(digit & pointed)
    right &= ~strange.any(axis=0) & (_how_many(point) == (after > 0))
    right &= (before == 1) | ((before > 1) & ~leading_zero)
    right &= (_how_many(digit & begun) <= DIGITS) & ((whole > 0) | ~negative)
    return np.where(negative, -STEP * whole, STEP * whole + MOST) + after, right


def _lines(cells: Sequence[str | None]) -> bytes:
    """Return a line for each cell, one byte a character; a cell of several lines becomes empty.

    What is not ASCII becomes "?", which is in no number.
    """
    texts = [cell for cell in cells if cell is not None]
    lines = ("\n".join(texts) + "\n").encode("ascii", "replace")
    if len(texts) == lines.count(b"\n") == len(cells):
        return lines
    return _lines(["" if cell is None or "\n" in cell else cell for cell in cells])


def _how_many(true: np.ndarray) -> np.ndarray:
    """Return how many places of each cell are true; no cell has 256."""
    return np.add.reduce(true.view(np.uint8), axis=0, dtype=np.uint8)


def _split(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the whole numbers of codes, int64, and how many of the digits are decimals."""
    wide = codes.astype(np.int64)
    wide -= MOST * (wide >= 0)
    return wide >> SHIFT, wide & (STEP - 1)


def _is_text(codes: np.ndarray) -> np.ndarray:
    return (codes >= 0) & (codes < MOST)


def _written(whole: int, decimals: int) -> str:
    """Return a decimal number as the text that it was."""
    digits = str(abs(whole)).zfill(decimals + 1)
    sign, at = "-" if whole < 0 else "", len(digits) - decimals
    return f"{sign}{digits[:at]}.{digits[at:]}" if decimals else sign + digits


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, length, ROWS))
