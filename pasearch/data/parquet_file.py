"""Parquet files: columns with a name and a type, every row a record. A value never raises.

| what a column holds | what its cells are |
|---|---|
| numbers | the same as of a pandas frame: 2.0 is the text 2 where a text is needed |
| texts, bytes | the texts; those that are not UTF-8 are missing |
| true or false, dates, times, decimal numbers | as Python writes them |
| lists and other nested values | refused, unless the schema ignores the column |

Names, types and the number of rows are form, as of a frame in memory. What the file says of its
values (least, most, how many are different) is never read. A value that is absent is missing; a
row is never the null record, for each has all columns.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.byte_cells import BEFORE, Cells, block_of
from pasearch.data.byte_columns import ByteColumn
from pasearch.data.cells import Made, text_of
from pasearch.data.declared import schema_of_given
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, Declared, Source, table_dataset
from pasearch.data.table_form import check_names, fitted_schema, new_table, taken_apart
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.data.text_columns import Coded, Hash, TextColumn, TextTable, Where
from pasearch.errors import UsageError

ROWS = 2**15
"""How many rows are read at a time."""

SUFFIXES = (".parquet", ".pq")


@SOURCES.register
class ParquetFile(Source):
    """A table in a Parquet file."""

    name = "parquet"
    kind = "a Parquet file"
    expected = "the path of a .parquet file"
    suffixes = SUFFIXES
    uses = ("target", "schema", "regression")

    def load(self, data: str, declared: Declared) -> Dataset:
        """Return the data set: every row is a slot."""
        schema = None if declared.schema is None else schema_of_given(declared.schema)
        return table_dataset(*read_parquet(data, declared.target, schema), declared)

    def new_records(self, data: str, schema: AnySchema) -> TextTable:
        """Return the cells, (rows, columns); the columns may come in any order, with others."""
        if not isinstance(schema, TableSchema):
            raise UsageError(f"{data} is a table, and the model was trained on arrays.")
        path = Path(data)
        needed = {column.name for column in schema.columns if column.kind != "ignore"}
        with _opened(path) as (file, names):
            columns = _columns(file, path, {n: at for n, at in names.items() if n in needed})
        return new_table(schema, columns, path)


def read_parquet(
    path: str | Path, target: str | None = None, schema: TableSchema | None = None
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Read a Parquet file.

    Guarantee: every row keeps its slot, and is read from its own values alone; no value raises.

    Args:
        path: The file.
        target: The column to predict; the schema's, or the last one, if None.
        schema: What is declared; nothing if None.

    Returns:
        As of `data.csv_file.read_table`.

    Raises:
        UsageError: No Parquet file, a damaged one, or its form does not fit the schema.

    Cost: time and memory linear in the rows.
    """
    path = Path(path)
    with _opened(path) as (file, names):
        fitted = fitted_schema([*names], schema, path=path, name=path.stem, target=target)
        fitted = replace(fitted, quotes=True, order=(), separator=None)
        ignored = {column.name for column in fitted.columns if column.kind == "ignore"}
        needed = {name: at for name, at in names.items() if name not in ignored}
        columns = _columns(file, path, needed)
        nothing = Coded(codes=np.zeros(file.metadata.num_rows, np.uint8), texts=("",))
    return taken_apart(fitted, [*names], [columns.get(name, nothing) for name in names], path)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, int]]]:
    """Open a Parquet file; give it and the places of its columns by name.

    Raises:
        UsageError: No such file, none that can be read, or names that do not tell columns apart.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{path} {fault}: expected a Parquet file.")
    try:
        with parquet.ParquetFile(path) as file:
            yield file, _names(file.schema_arrow, path)
            if not file.metadata.num_rows:
                raise UsageError(f"{path} has no row: expected at least one record.")
    # What pyarrow says of it may hold values; what pandas left there may be no JSON.
    except (OSError, ValueError, pa.ArrowException):
        raise UsageError(
            f"{path} cannot be read as Parquet: it is cut short, damaged, encrypted, or of another "
            "kind. Save it again (pandas: to_parquet(path))."
        ) from None


def _names(schema: Any, path: Path) -> dict[str, int]:
    """Return the columns' places by name, without the index that pandas keeps beside them."""
    left = schema.pandas_metadata
    index = left.get("index_columns") if isinstance(left, dict) else None
    hidden = {each for each in index if isinstance(each, str)} if isinstance(index, list) else ()
    places = [place for place, name in enumerate(schema.names) if name not in hidden]
    names = [schema.names[place].strip() for place in places]
    check_names(names, str(path))
    return dict(zip(names, places, strict=True))


def _columns(file: Any, path: Path, places: dict[str, int]) -> dict[str, TextColumn]:
    """Return some columns of a file, by name.

    Args:
        file: Open.
        path: Where it is, for messages.
        places: Of the columns, by name.

    Raises:
        UsageError: One holds lists or other nested values.
    """
    import pyarrow.types as types

    growing: dict[str, _GrowingNumbers | _GrowingTexts] = {}
    for name, place in places.items():
        kind = _plain_type(file.schema_arrow.types[place])
        if types.is_nested(kind):
            raise UsageError(
                f"{path}: column {name!r} is of type {kind}: expected numbers, texts, dates or the "
                "like. Make columns of it, leave it out, or ignore it in a schema."
            )
        numbers = types.is_integer(kind) or types.is_floating(kind)
        growing[name] = _GrowingNumbers() if numbers else _GrowingTexts(kind)
    own = [file.schema_arrow.names[place] for place in places.values()]
    for batch in file.iter_batches(batch_size=ROWS, columns=own):
        for column, found in zip(growing.values(), map(batch.column, own), strict=True):
            column.add(_plain(found))
    return {name: column.finished() for name, column in growing.items()}


def _plain_type(kind: Any) -> Any:
    """Return the type of `_plain` values."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    return _plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _plain(array: Any) -> Any:
    """Return values as they are, however they are kept."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    return _plain(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


class _GrowingNumbers:
    """A column of numbers while its cells come in."""

    def __init__(self) -> None:
        self._values: list[np.ndarray] = []
        self._missing: list[np.ndarray] = []

    def add(self, array: Any) -> None:
        """Take in the next cells."""
        import pyarrow as pa

        if pa.types.is_float16(array.type):
            array = array.cast(pa.float32())
        self._missing.append(array.is_null().to_numpy(zero_copy_only=False))
        values = array.fill_null(0).to_numpy(zero_copy_only=False)
        self._values.append(values.astype(np.float64) if values.dtype.kind == "f" else values)

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

        self._column = ByteColumn()
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
        if pa.types.is_string_view(array.type):
            array = array.cast(pa.binary_view())
        array = array.cast(pa.large_binary())
        self._column.add(_cells(array))

    def finished(self) -> TextColumn:
        """Return the column."""
        return self._column.finished()


def _cells(array: Any) -> Cells:
    """Return an array of bytes as cells; what is absent or no UTF-8 is empty."""
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    data = b"" if content is None else content.to_pybytes()
    starts, sizes = ends[:-1], np.diff(ends)
    sizes = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, sizes)
    for at in _not_utf_8(data, starts, sizes).tolist():
        sizes[at] = 0
    return Cells(block_of(data), starts + len(BEFORE), sizes)


def _not_utf_8(data: bytes, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return which cells are not UTF-8."""
    if data.isascii():
        return np.empty(0, np.int64)
    cells = zip(starts.tolist(), sizes.tolist(), strict=True)
    wrong = [at for at, (start, size) in enumerate(cells) if not _is_utf_8(data, start, size)]
    return np.array(wrong, np.int64)


def _is_utf_8(data: bytes, start: int, size: int) -> bool:
    try:
        data[start : start + size].decode()
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
