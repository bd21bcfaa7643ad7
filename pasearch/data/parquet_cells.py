"""The columns of a Parquet file as cells: numbers as they are, everything else as texts.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from pasearch.data.cells import Made, text_of
from pasearch.data.numbers import decimals_of
from pasearch.data.text_columns import GrowingColumn, Hash, TextColumn, Where


class GrowingColumns:
    """Some columns of files of one form, while their cells come in.

    Args:
        types: Of each column.
    """

    def __init__(self, types: Sequence[Any]):
        self._columns = [_growing(_plain_type(each)) for each in types]

    def add(self, arrays: Sequence[Any]) -> None:
        """Take in the next cells of every column."""
        for column, array in zip(self._columns, arrays, strict=True):
            column.add(_plain(array))

    def finished(self) -> list[TextColumn]:
        """Return the columns."""
        return [column.finished() for column in self._columns]


def is_nested(kind: Any) -> bool:
    """Return whether a column of this type holds lists or other nested values."""
    import pyarrow.types as types

    return types.is_nested(_plain_type(kind))


def _growing(kind: Any) -> _GrowingNumbers | _GrowingTexts:
    import pyarrow.types as types

    numbers = types.is_integer(kind) or types.is_floating(kind)
    return _GrowingNumbers() if numbers else _GrowingTexts(kind)


def _plain_type(kind: Any) -> Any:
    """Return the type of `_plain` values."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    return _plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _plain(array: Any) -> Any:
    """Return values as they are, however they are kept: of views their bytes."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    # Texts as bytes, for what is said to be UTF-8 may be none.
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.binary_view())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def taken(array: Any, places: np.ndarray) -> Any:
    """Return the cells at some places; pyarrow takes none of views, so of these their bytes."""
    import pyarrow as pa

    kind = _plain_type(array.type)
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return (_plain(array) if is_view else array).take(pa.array(places))


class _GrowingNumbers:
    """A column of numbers while its cells come in."""

    def __init__(self) -> None:
        self._values: list[np.ndarray] = []
        self._missing: list[np.ndarray] = []

    def add(self, array: Any) -> None:
        """Take in the next cells."""
        self._missing.append(array.is_null().to_numpy(zero_copy_only=False))
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
        self._values.append(decimals_of(values) if values.dtype.kind == "f" else values)

    def finished(self) -> TextColumn:
        """Return the column."""
        if not self._values:
            return Numbers(values=np.empty(0), missing=np.empty(0, bool))
        return Numbers(values=np.concatenate(self._values), missing=np.concatenate(self._missing))


class _GrowingTexts:
    """A column of anything else while its cells come in.

    Args:
        kind: The type of its cells.
    """

    def __init__(self, kind: Any):
        import pyarrow.types as types

        self._column = GrowingColumn()
        self._is_text = any(
            is_one(kind)
            for is_one in (
                types.is_string, types.is_large_string, types.is_string_view,
                types.is_binary, types.is_large_binary, types.is_binary_view,
                types.is_fixed_size_binary,
            )
        )  # fmt: skip

    def add(self, array: Any) -> None:
        """Take in the next cells."""
        import pyarrow as pa

        if not self._is_text:
            texts = _texts(array)
            array = pa.array(texts, pa.large_binary())
        # Texts as bytes, for what is said to be UTF-8 may be none.
        array = array.cast(pa.large_binary())
        self._column.add(_readable(array))

    def finished(self) -> TextColumn:
        """Return the column."""
        return self._column.finished()


def _readable(array: Any) -> Any:
    """Return an array of bytes; what is absent or not UTF-8 becomes empty."""
    import pyarrow as pa

    array = array.fill_null(b"")
    try:
        array.cast(pa.large_string())
    except pa.ArrowInvalid:
        cells = [cell if _is_utf_8(cell) else b"" for cell in array.to_pylist()]
        return pa.array(cells, pa.large_binary())
    return array


def _is_utf_8(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts(array: Any) -> list[bytes]:
    """Return values of any type as texts, as Python writes them; each different one once."""
    import pyarrow as pa

    try:
        coded = array.dictionary_encode(null_encoding="encode")
        values, places = coded.dictionary, coded.indices.to_pylist()
    except pa.ArrowException:
        values, places = array, range(len(array))
    texts = [_text(value) for value in values]
    return [texts[place] for place in places]


def _text(value: Any) -> bytes:
    """Return a value of pyarrow's as a text, empty if there is none."""
    try:
        found = value.as_py()
        if isinstance(found, timedelta):
            import pandas as pd

            found = pd.Timedelta(found)
    except Exception:  # noqa: BLE001 - whatever a value raises would tell of it
        return b""
    return (text_of(found) or "").encode()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Numbers(TextColumn):
    """A column of numbers that were never texts.

    Args:
        values: float64, or whole numbers, (rows,).
        missing: Which of them are absent, bool, (rows,).
    """

    values: np.ndarray
    missing: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: Where) -> Numbers:
        return Numbers(values=self.values[where], missing=self.missing[where])

    def _different(self) -> tuple[list[str], np.ndarray]:
        """Return every different text, and which of them each cell is."""
        values, places = np.unique(self.values[~self.missing], return_inverse=True)
        found = np.zeros(len(self), np.int64)
        found[~self.missing] = 1 + places.ravel()
        return ["", *(text_of(value) or "" for value in values.tolist())], found

    def counts(self) -> Iterator[tuple[str | None, int]]:
        texts, places = self._different()
        times = np.bincount(places, minlength=len(texts)).tolist()
        return ((text, often) for text, often in zip(texts, times, strict=True) if often)

    def map(self, function: Callable[[str | None], Made]) -> list[Made]:
        """Return what a function makes of each cell; it is called once for each different one."""
        texts, places = self._different()
        made = [function(text) for text in texts]
        return [made[place] for place in places.tolist()]

    def whole(self, function: Callable[[str | None], int]) -> np.ndarray:
        """Return a whole number for each cell; the function is called as in `map`."""
        texts, places = self._different()
        return np.array([function(text) for text in texts], np.int64)[places]

    def present(self) -> np.ndarray:
        """Return which cells are not None: all, for what is missing is an empty text."""
        return np.ones(len(self), bool)

    def numbers(self, function: Callable[[str | None], float], *, plain: bool = True) -> np.ndarray:
        """Return each cell as it is, NaN where it is absent; `function` is for texts."""
        values = self.values.astype(np.float64)
        return np.where(self.missing | ~np.isfinite(values), np.nan, values)

    def feed(self, digest: Hash) -> None:
        """Feed the values to a fingerprint."""
        digest.update(repr((len(self), self.values.dtype.str)).encode())
        for each in (self.values, self.missing):
            digest.update(np.ascontiguousarray(each).data)
