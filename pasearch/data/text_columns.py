r"""The cells of a table's columns: distinct texts once, decimal numbers as integers.

| content of a column | what is stored for each cell | bytes per cell |
|---|---|---|
| at most `MAX_PLAIN_TEXTS` distinct texts | its index in the column's dictionary | 1 |
| decimal numbers and at most `MAX_TEXTS` other texts | its digits, or its index | 2, 4 or 8 |
| more distinct texts | its characters in UTF-8, and where they end | characters + 4 |

A cell is returned exactly as it was stored: a text, or None in a null record. "1", "1.0" and "01"
are three texts. The content of a column decides how it is stored, never which cells are read from
it. Whatever is computed from a text is computed once per distinct text.

A decimal number is `-?(0|[1-9][0-9]*)(\.[0-9]+)?` except -0. Its digits form an integer w, of
which the last k are decimals; the cell's code is `32 w + k`, plus `MAX_TEXTS` unless w < 0. If
abs(w) is at most 2^53, w and 10^k are exact in float64, so w / 10^k is the float nearest to the
text.

pyarrow is imported when a column is built, not with this module.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

Made = TypeVar("Made")
Where = slice | np.ndarray

MAX_PLAIN_TEXTS = 256
"""Distinct texts up to which every cell is an index in the dictionary: one byte."""

MAX_TEXTS = 2**15
"""Texts in a dictionary, at most; codes from here on are decimal numbers."""

MAX_CHARACTERS = 24
"""Characters of a decimal number, at most; a longer one is stored as a text."""

MAX_DIGITS = 17
"""Digits of a decimal number without leading zeros, at most: its code fits in 64 bits."""

SHIFT = 5
"""Bits of a decimal number's code that hold its number of decimals."""

MAX_EXACT = 2**53
"""The integers up to which all are exact in float64."""

POWERS = np.array([float(10**k) for k in range(2**SHIFT)])
"""Powers of ten by exponent; those that a decimal number needs are exact."""

ROWS = 4096
"""Rows that are Python objects at a time, while a table is built or iterated."""

NULL = b"\xff"
"""Stands for None among the characters of a packed column: no text in UTF-8 has this byte."""

CODE_TYPES = [
    (kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.uint8, np.uint16, np.int32, np.int64)
]
"""The types of codes with their ranges, each wider than the one before."""

END_TYPE = np.uint32
"""The type of the position where a packed cell ends; int64 if the column has more characters."""

UNICODE = {"encoding": "utf-8", "errors": "surrogatepass"}
"""How texts become bytes: a text of an extension may hold half a surrogate pair."""


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
        codes: Integers, (rows,): below `MAX_TEXTS` an index of the dictionary, unless negative;
            otherwise a decimal number.
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
        if self.codes.dtype != np.uint8:
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
        others = _is_text(self.codes) | (np.abs(whole) > MAX_EXACT)
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


def build_columns(rows: Iterator[Sequence[str] | None], *, width: int) -> list[TextColumn]:
    """Build the columns of a table from its rows.

    Args:
        rows: Rows of `width` texts; None is the null record.
        width: Number of columns.

    Cost: time and memory linear in the rows.
    """
    growing = [GrowingColumn() for _ in range(width)]
    null = (None,) * width
    while chunk := [null if row is None else row for row in islice(rows, ROWS)]:
        for column, cells in zip(growing, zip(*chunk, strict=True), strict=True):
            column.add(arrow_cells(cells))
    return [column.finished() for column in growing]


class GrowingColumn:
    """A column that is built from Arrow arrays of cells.

    The first `MAX_PLAIN_TEXTS` distinct texts are indices of the dictionary. From the first cell
    with another text on, decimal numbers are their own codes. A column whose dictionary would have
    more than `MAX_TEXTS` texts is stored as characters.
    """

    def __init__(self) -> None:
        self._texts: Any = None  # the dictionary, an Arrow array
        self._codes: list[np.ndarray] = []
        self._plain = True
        self._characters = bytearray()
        self._is_packed = False
        self._sizes: list[np.ndarray] = []

    def add(self, array: Any) -> None:
        """Add cells: an Arrow array of type large_binary in UTF-8, null for None."""
        if not len(array):
            return
        if not self._is_packed:
            codes = self._encode(array)
            if len(self._texts) <= MAX_TEXTS:
                self._codes.append(_narrowed(codes))
                return
            self._repack()
        self._pack(array)

    def finished(self) -> TextColumn:
        """Return the column, once."""
        if not self._is_packed:
            return self._coded()
        is_long = len(self._characters) > np.iinfo(END_TYPE).max
        sizes = np.concatenate([np.zeros(1, np.int64), *self._sizes])
        ends = np.cumsum(sizes, dtype=np.int64 if is_long else END_TYPE)
        return Packed(characters=self._characters, starts=ends[:-1], stops=ends[1:])

    def _encode(self, array: Any) -> np.ndarray:
        """Return the codes of cells, int64; new texts are added to the dictionary."""
        if self._plain:
            codes = self._look_up(array, MAX_PLAIN_TEXTS)
            known = int(np.argmin(codes)) if (codes < 0).any() else len(codes)
            if known == len(codes):
                return codes
            self._plain = False
            return np.concatenate([codes[:known], self._encode(array[known:])])
        codes, is_decimal = encode_decimals(array)
        if not is_decimal.all():
            codes[~is_decimal] = self._look_up(_filtered(array, ~is_decimal), None)
        return codes

    def _look_up(self, array: Any, limit: int | None) -> np.ndarray:
        """Return the index of each text in the dictionary, which grows up to `limit`; or -1."""
        import pyarrow as pa
        from pyarrow.compute import SetLookupOptions, call_function

        if self._texts is None:
            self._texts = array[:0]
        indices = call_function("index_in", [array], SetLookupOptions(self._texts))
        if indices.null_count:
            new = array.filter(indices.is_null()).unique()
            room = len(new) if limit is None else limit - len(self._texts)
            self._texts = pa.concat_arrays([self._texts, new[:room]])
            indices = call_function("index_in", [array], SetLookupOptions(self._texts))
        return _integers(indices)

    def _coded(self) -> Coded:
        texts = [] if self._texts is None else self._texts.to_pylist()
        parts, self._codes = self._codes or [np.empty(0, np.uint8)], []
        return Coded(
            codes=np.concatenate(parts),
            texts=tuple(None if text is None else text.decode(**UNICODE) for text in texts),
        )

    def _repack(self) -> None:
        """Store the cells so far as characters."""
        before = self._coded()
        self._texts, self._is_packed = None, True
        for rows in _chunks(len(before)):
            self._pack(arrow_cells(before[rows].tolist()))

    def _pack(self, array: Any) -> None:
        offsets, content = _buffers_of(array)
        is_null = ~_is_valid(array)
        self._characters += np.insert(content, offsets[:-1][is_null], ord(NULL)).data
        self._sizes.append(_narrowed(np.diff(offsets) + is_null))


def encode_decimals(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Encode the decimal numbers among some cells.

    Args:
        array: The cells, one at least: an Arrow array of type large_binary, whose null cells have
            no bytes.

    Returns:
        The cells' codes, int64, (cells,), and which cells are decimal numbers, bool, (cells,). The
        code of another cell is 0.
    """
    import pyarrow as pa
    from pyarrow.compute import MatchSubstringOptions, TrimOptions, call_function

    offsets, content = _buffers_of(array)
    sizes = np.diff(offsets)
    padded = np.concatenate([content, np.zeros(2, np.uint8)])
    point = _integers(call_function("find_substring", [array], MatchSubstringOptions(".")))
    has_point = point >= 0
    is_negative = (padded[offsets[:-1]] == ord("-")) & (sizes > 0)
    has_zero = padded[offsets[:-1] + is_negative] == ord("0")
    is_digit = content - np.uint8(ord("0")) <= 9
    digits = content[is_digit]
    marks = has_point + is_negative.astype(np.int64)
    if len(content) - len(digits) != marks.sum():
        so_far = np.concatenate([[0], np.cumsum(~is_digit)])
        plain = np.diff(so_far[offsets]) == marks
        codes, is_decimal = np.zeros(len(array), np.int64), plain.copy()
        if plain.any():
            codes[plain], is_decimal[plain] = encode_decimals(_filtered(array, plain))
        return codes, is_decimal
    decimals = np.where(has_point, sizes - point - 1, 0)
    before_point = sizes - decimals - marks
    is_decimal = (before_point == 1) | ((before_point > 1) & ~has_zero)
    is_decimal &= (decimals > 0) | ~has_point
    is_decimal &= sizes <= MAX_CHARACTERS
    ends = np.concatenate([[0], np.cumsum(sizes - marks)])
    texts = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(digits))
    if sizes.max() > MAX_DIGITS:
        trimmed = call_function("ascii_ltrim", [texts], TrimOptions("0"))
        is_decimal &= _integers(call_function("binary_length", [trimmed])) <= MAX_DIGITS
    if not is_decimal.all():
        texts = _filtered(texts, is_decimal)
    whole = np.zeros(len(array), np.int64)
    whole[is_decimal] = _integers(texts.cast(pa.int64()))
    is_decimal &= (whole > 0) | ~is_negative
    codes = (whole << SHIFT) + MAX_TEXTS
    codes = np.where(is_negative, -(whole << SHIFT), codes) + decimals
    return codes * is_decimal, is_decimal


def _split(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the integers of decimal codes, int64, and their numbers of decimals."""
    wide = codes.astype(np.int64)
    wide -= MAX_TEXTS * (wide >= 0)
    return wide >> SHIFT, wide & (2**SHIFT - 1)


def _is_text(codes: np.ndarray) -> np.ndarray:
    return (codes >= 0) & (codes < MAX_TEXTS)


def _written(whole: int, decimals: int) -> str:
    """Return the text of a decimal number."""
    digits = str(abs(whole)).zfill(decimals + 1)
    sign, at = "-" if whole < 0 else "", len(digits) - decimals
    return f"{sign}{digits[:at]}.{digits[at:]}" if decimals else sign + digits


def _narrowed(codes: np.ndarray) -> np.ndarray:
    """Return integers in the narrowest type that holds them."""
    least, most = int(codes.min()), int(codes.max())
    return codes.astype(
        next(kind for kind, low, high in CODE_TYPES if low <= least and most <= high)
    )


# pyarrow.array, Array.to_numpy and Array.fill_null import pandas, which takes .4 s and 45 MB: the
# functions below convert by buffers instead.


def arrow_cells(cells: Sequence[str | None]) -> Any:
    """Return cells as an Arrow array of type large_binary."""
    import pyarrow as pa

    texts = [b"" if cell is None else cell.encode(**UNICODE) for cell in cells]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    is_valid = np.packbits([cell is not None for cell in cells], bitorder="little")
    buffers = [pa.py_buffer(each) for each in (is_valid, ends, b"".join(texts))]
    return pa.Array.from_buffers(pa.large_binary(), len(cells), buffers)


def _buffers_of(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets, from 0, and the bytes of a non-empty Arrow array of type large_binary."""
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]]
    return ends - ends[0], content


def _integers(array: Any) -> np.ndarray:
    """Return the values of an Arrow array of integers, -1 for null."""
    values = np.frombuffer(array.buffers()[1], f"i{array.type.bit_width // 8}")
    values = values[array.offset : array.offset + len(array)]
    return np.where(_is_valid(array), values, -1) if array.null_count else values


def _is_valid(array: Any) -> np.ndarray:
    """Return which elements of an Arrow array are not null, bool."""
    if not array.null_count:
        return np.ones(len(array), bool)
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].view(bool)


def _filtered(array: Any, mask: np.ndarray) -> Any:
    """Return the elements of an Arrow array at which a mask is true."""
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return array.filter(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits]))


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, length, ROWS))
