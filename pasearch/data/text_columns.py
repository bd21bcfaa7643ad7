"""Columns of a table in memory: each distinct string is stored once, and an index for each cell.

A cell is returned exactly as it was stored: a string, or None in a null record. "1", "1.0" and "01"
are three strings. An index takes 1, 2 or 4 bytes, depending on the number of distinct strings. A
string takes its characters in UTF-8 and 8 bytes. A function of cells is called once per distinct
string.

pyarrow is imported when a column is built, not with this module.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

Where = slice | np.ndarray

CHUNK_ROWS = 4096
"""Number of rows that are converted to or from Python objects at a time."""

NULL_BYTES = b"\xff"
"""Representation of None in Arrow arrays: UTF-8 text does not contain this byte."""

DECIMAL_PATTERN = r"^-?[0-9]{1,17}(\.[0-9]{1,17})?$"
"""Pattern of strings that `float` and every number format with a decimal point convert alike."""

TEXT_ENCODING = {"encoding": "utf-8", "errors": "surrogatepass"}
"""Encoding of strings; a string of an extension's source may contain an unpaired surrogate."""


class TextColumn(ABC):
    """Cells of one column, (rows,), with some methods of an array of objects.

    Guarantee: the cells are those that were stored, each a string or None.
    """

    __slots__ = ()

    dtype = np.dtype(object)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, where: Where) -> TextColumn:
        """Select cells by a slice, by indices or by a mask."""

    @abstractmethod
    def distinct(self) -> tuple[Iterable[str | None], np.ndarray]:
        """Return the distinct cells, and the index of each row's cell among them, (rows,)."""

    @abstractmethod
    def convert_to_floats(
        self, function: Callable[[str | None], float], *, plain: bool = True
    ) -> np.ndarray:
        """Convert each cell to a number, float64, (rows,).

        Args:
            function: Function that converts one cell.
            plain: Whether the function equals `float` for every string that `DECIMAL_PATTERN`
                matches. Then it is not called for these.
        """

    @abstractmethod
    def update_digest(self, digest: Any) -> None:
        """Add every cell to a fingerprint."""

    def present(self) -> np.ndarray:
        """Return whether each cell is not None, bool, (rows,)."""
        return self.apply(lambda cell: cell is not None, bool)

    @property
    def shape(self) -> tuple[int]:
        """Number of cells."""
        return (len(self),)

    def apply(self, function: Callable[[str | None], Any], dtype: Any = object) -> np.ndarray:
        """Return a function's value for each cell, (rows,); it is called once per distinct cell."""
        texts, indices = self.distinct()
        return np.fromiter(map(function, texts), dtype)[indices]

    def tolist(self) -> list[str | None]:
        """List the cells."""
        return self.apply(lambda cell: cell).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.apply(lambda cell: cell).astype(dtype or object)

    def __repr__(self) -> str:
        """Show the number of cells, never a value."""
        return f"{type(self).__name__}({len(self)} cells)"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DictionaryColumn(TextColumn):
    """Column of strings, each distinct one stored once.

    Args:
        texts: Distinct strings: an Arrow array of type large_binary in UTF-8. `NULL_BYTES` means
            None.
        codes: Index of each cell's string, unsigned integers, (rows,).
    """

    texts: Any
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, where: Where) -> DictionaryColumn:
        return DictionaryColumn(texts=self.texts, codes=self.codes[where])

    def distinct(self) -> tuple[Iterable[str | None], np.ndarray]:
        texts, indices = self._used()
        return _decode_texts(texts), indices

    def convert_to_floats(
        self, function: Callable[[str | None], float], *, plain: bool = True
    ) -> np.ndarray:
        import pyarrow as pa
        from pyarrow.compute import MatchSubstringOptions, call_function

        texts, indices = self._used()
        if not plain:
            return np.fromiter(map(function, _decode_texts(texts)), np.float64)[indices]
        matches = call_function(
            "match_substring_regex", [texts], MatchSubstringOptions(DECIMAL_PATTERN)
        )
        decimals = call_function("indices_nonzero", [matches])
        found, at = np.empty(len(texts)), np.asarray(np.from_dlpack(decimals), np.int64)
        found[at] = np.from_dlpack(texts.take(decimals).cast(pa.large_string()).cast(pa.float64()))
        others = np.delete(np.arange(len(texts)), at)
        found[others] = [
            function(text) for text in _decode_texts(texts.take(convert_to_arrow_integers(others)))
        ]
        return found[indices]

    def update_digest(self, digest: Any) -> None:
        digest.update(repr((len(self), self.codes.dtype.str, len(self.texts))).encode())
        digest.update(np.ascontiguousarray(self.codes).data)
        for rows in _split_rows(len(self.texts)):
            digest.update(repr(self.texts[rows].to_pylist()).encode())

    def _used(self) -> tuple[Any, np.ndarray]:
        """Return the strings that occur in cells, and the index of each cell's string."""
        if len(self.texts) <= len(self.codes):  # sorting does not pay for few strings
            return self.texts, self.codes
        used, indices = np.unique(self.codes, return_inverse=True)
        return self.texts.take(convert_to_arrow_integers(used)), indices


def build_constant_column(text: str, rows: int) -> DictionaryColumn:
    """Build a column of `rows` equal cells."""
    return DictionaryColumn(texts=convert_to_arrow_cells([text]), codes=np.zeros(rows, np.uint8))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TextTable:
    """Table of strings, (rows, columns), with some methods of an array of objects.

    Args:
        cells: Columns of equal length, one or more.
    """

    cells: tuple[TextColumn, ...]

    dtype = np.dtype(object)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of columns."""
        return len(self), len(self.cells)

    @property
    def T(self) -> tuple[TextColumn, ...]:
        """Columns of the table."""
        return self.cells

    def __len__(self) -> int:
        return len(self.cells[0])

    def __getitem__(self, where: Any) -> Any:
        """Select rows as a table, or rows of one column, `[rows, index]`, as a column."""
        if isinstance(where, tuple):
            rows, index = where
            return self.cells[index][rows]
        return TextTable(cells=tuple(cells[where] for cells in self.cells))

    def present(self) -> np.ndarray:
        """Return whether each row is not a null record, bool, (rows,)."""
        # A null record has None in every cell, and other rows have no None.
        return self.cells[0].present()

    def update_digest(self, digest: Any) -> None:
        """Add every cell to a fingerprint."""
        for cells in self.cells:
            cells.update_digest(digest)

    def tolist(self) -> list[list[str | None]]:
        """List the rows."""
        return np.asarray(self).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack([np.asarray(cells) for cells in self.cells], axis=1, dtype=dtype)

    def __repr__(self) -> str:
        """Show the shape, never a value."""
        return f"TextTable({self.shape[0]} rows, {self.shape[1]} columns)"


def build_columns(rows: Iterable[Sequence[str] | None], *, width: int) -> list[TextColumn]:
    """Build the columns of a table from its rows.

    Args:
        rows: Rows of `width` strings each; None means a null record.
        width: Number of columns.

    Cost: time and memory linear in the rows.
    """
    growing = [GrowingColumn() for _ in range(width)]
    null, rows = (None,) * width, iter(rows)
    while chunk := [null if row is None else row for row in islice(rows, CHUNK_ROWS)]:
        for column, cells in zip(growing, zip(*chunk, strict=True), strict=True):
            column.add(convert_to_arrow_cells(cells))
    return [column.finish() for column in growing]


class GrowingColumn:
    """Builder of a column from Arrow arrays of its cells."""

    def __init__(self) -> None:
        self._parts: list[Any] = [convert_to_arrow_cells([]).dictionary_encode()]

    def add(self, array: Any) -> None:
        """Append cells: an Arrow array of type large_binary in UTF-8, `NULL_BYTES` for None."""
        self._parts.append(array.dictionary_encode())

    def finish(self) -> DictionaryColumn:
        """Build the column from all appended cells."""
        import pyarrow as pa

        parts = pa.chunked_array(self._parts).unify_dictionaries().chunks
        texts = parts[-1].dictionary
        kind = np.min_scalar_type(len(texts))
        codes = [np.from_dlpack(part.indices).astype(kind) for part in parts]
        return DictionaryColumn(texts=texts, codes=np.concatenate(codes))


# The functions below convert by buffers, because pyarrow.array and Array.to_numpy import pandas,
# which takes .4 s and 45 MB.


def convert_to_arrow_cells(cells: Sequence[str | None]) -> Any:
    """Convert cells to an Arrow array of type large_binary, `NULL_BYTES` for None."""
    import pyarrow as pa

    texts = [NULL_BYTES if cell is None else cell.encode(**TEXT_ENCODING) for cell in cells]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.large_binary(), len(cells), buffers)


def convert_to_arrow_integers(values: np.ndarray) -> Any:
    """Convert integers to an Arrow array of type int64."""
    import pyarrow as pa

    buffer = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, buffer])


def _decode_texts(texts: Any) -> Iterator[str | None]:
    """Iterate over the strings of an Arrow array; None for `NULL_BYTES`."""
    for rows in _split_rows(len(texts)):
        for text in texts[rows].to_pylist():
            yield None if text == NULL_BYTES else text.decode(**TEXT_ENCODING)


def _split_rows(length: int) -> Iterator[slice]:
    """Iterate over slices of at most `CHUNK_ROWS` rows."""
    return (slice(start, start + CHUNK_ROWS) for start in range(0, length, CHUNK_ROWS))
