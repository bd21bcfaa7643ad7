"""Reading of a table from its Parquet files: metadata, and rows in blocks.

A table is one file, or a folder of files in the order of their names. Only the metadata is read
when a file is opened: names, types, and the number of rows. Cells are read when they are needed, so
a table may be larger than memory: all columns in blocks, or one column as a whole. Numbers keep
their type; all other cells become strings.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.cells import convert_to_string, normalize_unicode
from pasearch.data.lines import is_utf_8
from pasearch.data.numbers import convert_to_shortest_decimals
from pasearch.data.table_format import check_column_names
from pasearch.data.text_columns import (
    GrowingColumn,
    TextColumn,
    TextTable,
    Where,
    build_constant_column,
)
from pasearch.errors import UsageError, suggest_file

BLOCK_ROWS = 2**15
"""Number of rows that are read at a time."""

READ_AHEAD_BYTES = 2**20
"""Number of bytes of a column that are read from the disk at a time."""

HASH_BLOCK_BYTES = 2**22
"""Number of bytes of a file that are hashed at a time."""

PARQUET_SUFFIXES = (".parquet", ".pq")


OTHER_TABLE_SUFFIXES = (
    ".csv",
    ".tsv",
    ".data",
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
    ".arrow",
    ".feather",
    ".orc",
)
"""Suffixes of other files that may hold rows of a table."""


def find_partition_folders(folder: Path) -> list[str]:
    """Find the subfolders of a partitioned table, such as `year=2024`."""
    return sorted(each.name for each in folder.iterdir() if "=" in each.name and each.is_dir())


def find_parquet_files(folder: Path) -> list[Path]:
    """Find the Parquet files in a folder, by name; hidden files are ignored.

    Raises:
        UsageError: The folder has other files of tables, which would be silently omitted.
    """
    seen = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    found = [each for each in seen if each.suffix.lower() in PARQUET_SUFFIXES]
    others = [each.name for each in seen if each.suffix.lower() in OTHER_TABLE_SUFFIXES]
    if found and others:
        raise UsageError(
            f"{folder} holds Parquet files and {others[0]}: expected Parquet files only, because "
            "others would be omitted. Save them as Parquet too, or move them away."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ParquetFiles:
    """Parquet files of one table, whose metadata has been read.

    Args:
        paths: Paths in the order of the rows.
        counts: Number of rows of each file.
        names: Index of each column in a file, by the column's name.
        types: Arrow type of each column, by its name.
    """

    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    names: dict[str, int]
    types: dict[str, Any]
    _marks: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> ParquetFiles:
        """Read the metadata of a table's files; no value is read.

        Raises:
            UsageError: A file is missing or unreadable, or the files differ in columns or types.
        """
        folder = path.is_dir()
        if folder and (parts := find_partition_folders(path)):
            raise UsageError(
                f"{path} is a partitioned table ({parts[0]}, ...), which is not supported: "
                'save it as one file (pandas: read_parquet(path).to_parquet("table.parquet"), or '
                'pyarrow.dataset with partitioning="hive" for other files).'
            )
        paths = find_parquet_files(path) if folder else [path]
        if not paths:
            raise UsageError(f"{path} is a folder without a Parquet file: expected at least one.")
        counts, marks, form = [], [], None
        for each in paths:
            with open_parquet(each) as (file, names):
                types = {name: file.schema_arrow.types[at] for name, at in names.items()}
                form = form or (each, names, types)
                first, first_names, first_types = form
                if list(names) != list(first_names):
                    raise UsageError(
                        f"{each} has other columns than {first}, or another order: expected the "
                        "same in every file of a folder. Move it away, or save it again."
                    )
                for name, kind in types.items():
                    if kind != first_types[name]:
                        raise UsageError(
                            f"{each}: column {name!r} has type {kind}, and in {first} type "
                            f"{first_types[name]}: expected the same in every file of a folder. "
                            "Save the file again."
                        )
                counts.append(file.metadata.num_rows)
                marks.append(_read_change_mark(each))
        if not sum(counts):
            raise UsageError(f"{path} has no row: expected at least one record.")
        assert form is not None
        return cls(
            paths=tuple(paths), counts=tuple(counts), names=form[1], types=form[2], _marks=marks
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return sum(self.counts)

    def check_not_nested(self, names: Sequence[str]) -> None:
        """Raise UsageError if a column contains lists or other nested values."""
        import pyarrow.types as types

        for name in names:
            if types.is_nested(_unwrap_type(kind := self.types[name])):
                raise UsageError(
                    f"{self.paths[0]}: column {name!r} has type {kind}: expected numbers, strings "
                    "or dates. Split it into columns, remove it, or ignore it in a schema."
                )

    def blocks(self, names: Sequence[str]) -> Iterator[list[TextColumn]]:
        """Read some columns in blocks of at most `BLOCK_ROWS` rows."""
        for arrays in self._arrays(names):
            yield [_build_column([array]) for array in arrays]

    def columns(self, names: Sequence[str]) -> list[TextColumn]:
        """Read some columns as a whole."""
        return [_build_column(arrays) for arrays in zip(*self._arrays(names), strict=True)]

    def column(self, name: str, slots: np.ndarray) -> TextColumn:
        """Read one column of the rows at the given indices, in that order.

        No other row is kept in memory.
        """
        import pyarrow as pa

        found, by_place, start = [], np.argsort(slots, kind="stable"), 0
        rising = slots[by_place]
        for (array,) in self._arrays([name]):
            first, last = np.searchsorted(rising, [start, start + len(array)])
            found.append(array.take(pa.array(rising[first:last] - start)))
            start += len(array)
        back = np.empty_like(by_place)
        back[by_place] = np.arange(len(by_place))
        return _build_column(found)[back]

    def update_digest(self, digest: Any) -> None:
        """Add every byte of the files to a fingerprint."""
        for path, mark in zip(self.paths, self._marks, strict=True):
            digest.update(repr(mark[0]).encode())
            with _require_unchanged(path, mark), path.open("rb") as file:
                while content := file.read(HASH_BLOCK_BYTES):
                    digest.update(content)

    def _arrays(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Read blocks of rows as plain Arrow arrays."""
        for path, mark in zip(self.paths, self._marks, strict=True):
            with _require_unchanged(path, mark), open_parquet(path) as (file, places):
                own = [file.schema_arrow.names[places[name]] for name in names]
                for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=own):
                    yield [_unwrap_array(batch.column(name)) for name in own]


def _read_change_mark(path: Path) -> tuple[int, int]:
    """Return the size and the modification time of a file, which show whether it changed."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@contextmanager
def _require_unchanged(path: Path, mark: tuple[int, int]) -> Iterator[None]:
    """Raise UsageError if a file changed since its metadata was read, before or in the block."""
    _check_unchanged(path, mark)
    yield
    _check_unchanged(path, mark)


def _check_unchanged(path: Path, mark: tuple[int, int]) -> None:
    try:
        same = _read_change_mark(path) == mark
    except OSError:
        same = False
    if not same:
        raise UsageError(f"{path} was changed since it was opened: start again.")


@contextmanager
def open_parquet(path: Path) -> Iterator[tuple[Any, dict[str, int]]]:
    """Open a Parquet file, and yield it with the index of each column by name.

    Raises:
        UsageError: The file is missing or unreadable, or its column names are ambiguous.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {fault}: expected a Parquet file.{suggest_file(path)}")
    try:
        with parquet.ParquetFile(path, buffer_size=READ_AHEAD_BYTES, pre_buffer=False) as file:
            schema = file.schema_arrow
            metadata = schema.pandas_metadata
            index = metadata.get("index_columns") if isinstance(metadata, dict) else None
            # Index columns that pandas adds are hidden.
            hidden = [each for each in index if isinstance(each, str)] if (
                isinstance(index, list)
            ) else []  # fmt: skip
            places = [place for place, name in enumerate(schema.names) if name not in hidden]
            names = [normalize_unicode(schema.names[place].strip()) for place in places]
            check_column_names(names, str(path), min_columns=1)  # new records may have one column
            yield file, dict(zip(names, places, strict=True))
    # Messages of pyarrow may quote values; metadata of pandas may be invalid JSON.
    except (OSError, ValueError, pa.ArrowException):
        raise UsageError(
            f"{path} cannot be read as Parquet: it is cut short, damaged, encrypted, or of another "
            "format. Save it again (pandas: to_parquet(path))."
        ) from None


def _unwrap_type(kind: Any) -> Any:
    """Return the type of a column's values, without dictionary or extension type."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _unwrap_type(kind.storage_type)
    return _unwrap_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _unwrap_array(array: Any) -> Any:
    """Convert an array to a plain type; strings become bytes, because they may be invalid UTF-8."""
    import pyarrow as pa
    from pyarrow import types

    if isinstance(array, pa.ExtensionArray):
        return _unwrap_array(array.storage)
    if types.is_dictionary(array.type):
        return _unwrap_array(array.dictionary_decode())
    if types.is_string_view(array.type):
        array = array.cast(pa.binary_view())
    kinds = (
        types.is_string, types.is_large_string, types.is_binary, types.is_binary_view,
        types.is_fixed_size_binary,
    )  # fmt: skip
    return array.cast(pa.large_binary()) if any(is_a(array.type) for is_a in kinds) else array


def _build_column(arrays: Sequence[Any]) -> TextColumn:
    """Build a column from Arrow arrays of its cells, in order."""
    import pyarrow as pa
    from pyarrow import types

    kind = arrays[0].type
    if types.is_integer(kind) or types.is_floating(kind):
        missing = [array.is_null().to_numpy(zero_copy_only=False) for array in arrays]
        values = np.concatenate(
            [array.fill_null(0).to_numpy(zero_copy_only=False) for array in arrays]
        )
        values = convert_to_shortest_decimals(values) if values.dtype.kind == "f" else values
        return NumberColumn(values=values, missing=np.concatenate(missing))
    growing = GrowingColumn()
    for array in arrays:
        if types.is_large_binary(kind):
            array = array.fill_null(b"")
            try:
                array.cast(pa.large_string())
            except pa.ArrowInvalid:
                cells = [cell if is_utf_8(cell) else b"" for cell in array.to_pylist()]
                array = pa.array(cells, pa.large_binary())
        else:
            array = pa.array(_convert_to_bytes(array), pa.large_binary())
        growing.add(array)
    return growing.finish()


def _convert_to_bytes(array: Any) -> list[bytes]:
    """Convert Arrow values of any type to UTF-8 strings, as `str` does; b"" if missing."""
    import pyarrow as pa

    try:
        coded = array.dictionary_encode(null_encoding="encode")
        values, places = coded.dictionary, coded.indices.to_pylist()
    except pa.ArrowException:
        values, places = array, range(len(array))
    texts = []
    for value in values:
        try:
            found = value.as_py()
            if isinstance(found, timedelta):
                import pandas as pd

                found = pd.Timedelta(found)
        except Exception:  # noqa: BLE001 - an exception would reveal the value
            found = None
        texts.append((convert_to_string(found) or "").encode())
    return [texts[place] for place in places]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NumberColumn(TextColumn):
    """Column whose cells are stored as numbers, not as strings.

    Args:
        values: Numbers, float64 or integers, (rows,).
        missing: Mask of missing values, bool, (rows,).
    """

    values: np.ndarray
    missing: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: Where) -> NumberColumn:
        return NumberColumn(values=self.values[where], missing=self.missing[where])

    def distinct(self) -> tuple[Iterable[str | None], np.ndarray]:
        values, indices = np.unique(self.values[~self.missing], return_inverse=True)
        found = np.zeros(len(self), np.int64)
        found[~self.missing] = 1 + indices.ravel()
        return ["", *(convert_to_string(value) or "" for value in values.tolist())], found

    def convert_to_floats(
        self, function: Callable[[str | None], float], *, plain: bool = True
    ) -> np.ndarray:
        """Return the cells as float64, (rows,), NaN if missing; both arguments are ignored."""
        values = self.values.astype(np.float64)
        return np.where(self.missing | ~np.isfinite(values), np.nan, values)

    def update_digest(self, digest: Any) -> None:
        digest.update(repr((len(self), self.values.dtype.str)).encode())
        for each in (self.values, self.missing):
            digest.update(np.ascontiguousarray(each).data)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LargeTable:
    """Table whose cells, (rows, columns), stay in their files until they are needed.

    Args:
        files: Files of the table.
        names: Names of the columns.
        ignored: Names of the columns that are not read.
        slots: Indices of the visible rows; None for all.
    """

    files: ParquetFiles
    names: tuple[str, ...]
    ignored: frozenset[str] = frozenset()
    slots: np.ndarray | None = None

    dtype = np.dtype(object)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of columns."""
        return len(self), len(self.names)

    def __len__(self) -> int:
        return len(self.files) if self.slots is None else len(self.slots)

    def __getitem__(self, where: Any) -> Any:
        """Select rows; or select and read rows of one column, `[rows, index]`."""
        if isinstance(where, tuple):
            rows, place = where
            return LargeColumn(self.files, self.names[place], self.slots)[rows]
        slots = np.arange(len(self)) if self.slots is None else self.slots
        return LargeTable(self.files, self.names, self.ignored, slots[where])

    def blocks(self, target: str) -> Iterator[tuple[TextTable, TextColumn]]:
        """Iterate over all rows of the files in blocks: features and target."""
        read = [name for name in self.names if name not in self.ignored]
        for *found, labels in self.files.blocks([*read, target]):
            nothing = build_constant_column("", len(labels))
            own = dict(zip(read, found, strict=True))
            yield TextTable(cells=tuple(own.get(name, nothing) for name in self.names)), labels

    def update_digest(self, digest: Any) -> None:
        """Add the files to a fingerprint."""
        digest.update(repr(self.names).encode())
        self.files.update_digest(digest)

    def __repr__(self) -> str:
        """Show the shape, never a value."""
        return f"LargeTable({self.shape[0]} rows, {self.shape[1]} columns)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LargeColumn:
    """Column whose cells, (rows,), stay in their files until they are needed.

    Args:
        files: Files of the table.
        name: Name of the column.
        slots: Indices of the visible rows; None for all.
    """

    files: ParquetFiles
    name: str
    slots: np.ndarray | None = None

    dtype = np.dtype(object)

    @property
    def shape(self) -> tuple[int]:
        """Number of cells."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.files) if self.slots is None else len(self.slots)

    def __getitem__(self, where: Where) -> TextColumn:
        """Select cells, and read them."""
        if self.slots is None and isinstance(where, slice) and where == slice(None):
            return self.files.columns([self.name])[0]
        slots = np.arange(len(self)) if self.slots is None else self.slots
        return self.files.column(self.name, slots[where])

    def update_digest(self, digest: Any) -> None:
        """Add the name to a fingerprint; the table adds the content."""
        digest.update(self.name.encode())
