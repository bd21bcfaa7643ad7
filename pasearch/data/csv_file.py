"""CSV files: one row per line, usually with a header.

A line with another number of cells than the header is a null record; it keeps its position.
Whether an error is raised depends only on the public format of the file, such as the header and the
numbers of columns and rows. `data.lines` defines the format.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from pasearch.data.cells import normalize_unicode
from pasearch.data.lines import (
    FAULTS,
    MAX_HEADER_BYTES,
    OTHER_SEPARATORS,
    SEPARATOR_FIRST_LINE,
    SEPARATOR_NAMES,
    SEPARATORS,
    Fault,
    HeaderTooLongError,
    LineEndError,
    LineForm,
    read_blocks,
    read_header,
    read_lines,
    read_start_without_header,
)
from pasearch.data.numbers import PLAIN_NUMBER_FORM
from pasearch.data.partitions import Dataset
from pasearch.data.source import SOURCES, DataDeclaration, Source, make_table_dataset
from pasearch.data.table_format import (
    MIN_COLUMNS,
    TableFormat,
    check_column_names,
    fit_schema_to_file,
    select_columns,
    split_target,
)
from pasearch.data.tables import AnySchema, TableSchema, load_schema
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError, find_closest_name, suggest_file

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files."""

DECOMPRESSION_ERRORS = (EOFError, zlib.error, lzma.LZMAError)
"""Exceptions for damaged compressed files, in addition to an OSError without `errno`."""


ZIP_REMEDY = "a zip archive: unpack it and use the table in it"
PARQUET_REMEDY = "a Parquet file: rename it so that its name ends in .parquet"
FEATHER_REMEDY = (
    "an Arrow (Feather) file: save it as Parquet "
    '(pandas: read_feather(path).to_parquet("table.parquet"))'
)
OTHER_FORMATS = (
    ((".zip",), b"PK\x03\x04", f"{ZIP_REMEDY}; or a spreadsheet: save it as CSV UTF-8"),
    ((), b"\x1f\x8b", "gzip: rename it so that its name ends in .csv.gz"),
    ((), b"BZh", "bzip2: rename it so that its name ends in .csv.bz2"),
    ((), b"\xfd7zXZ\0", "xz: rename it so that its name ends in .csv.xz"),
    ((), b"\x28\xb5\x2f\xfd", "zstd: rename it so that its name ends in .csv.zst"),
    ((), b"PAR1", PARQUET_REMEDY),
    ((".feather", ".arrow", ".ipc", ".fea"), b"ARROW1", FEATHER_REMEDY),
    ((), b"FEA1", FEATHER_REMEDY),
    ((".orc",), b"ORC", "an ORC file: save it as Parquet"),
    ((".sav", ".zsav"), b"$FL2", "an SPSS file: save it as CSV UTF-8 or Parquet"),
    ((".sqlite", ".db"), b"SQLite format 3", "an SQLite database: export the table as CSV UTF-8"),
    ((), b"\xd0\xcf\x11\xe0", "a spreadsheet or document: save it as CSV UTF-8"),
    ((), b"\xff\xfe", "UTF-16: save it as CSV UTF-8"),
    ((), b"\xfe\xff", "UTF-16: save it as CSV UTF-8"),
    ((".dta",), b"<stata_dta>", "a Stata file: save it as CSV UTF-8 or Parquet"),
    ((".json", ".jsonl"), b"\0json", "JSON: save it as CSV UTF-8 or Parquet"),
    ((".pkl", ".pickle"), b"\x80\x04", "a pickle, which is never opened: save it as Parquet"),
    ((".html", ".htm"), b"<!DOCTYPE", "a web page: save the table in it as CSV UTF-8"),
    ((".7z",), b"7z\xbc\xaf", "a 7z archive: unpack it and use the table in it"),
    ((".tar",), b"\0tar", "a tar archive: unpack it and use the table in it"),
)
"""Formats that are not CSV: suffixes of their files, first bytes, and description with a remedy."""


def describe_other_format(file: BinaryIO) -> str:
    """Return a description and a remedy if a file's first bytes are of another format; else ""."""
    start = cast(Any, file).peek(16)[:16]
    return next((remedy for _, magic, remedy in OTHER_FORMATS if start.startswith(magic)), "")


def describe_other_suffix(suffix: str) -> str:
    """Return a description and a remedy if a suffix is of another format than CSV; else ""."""
    return next((remedy for endings, _, remedy in OTHER_FORMATS if suffix in endings), "")


@contextmanager
def open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and decompress it while it is read if its suffix is in `COMPRESSION_SUFFIXES`.

    Raises:
        UsageError: The file cannot be read, is cut short, or has another format than its suffix
            states. The message does not reveal its content.
    """
    suffix = path.suffix.lower()
    try:
        opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(suffix, open)
        if suffix == ".zst":
            import pyarrow as pa

            stream = pa.CompressedInputStream(pa.OSFile(str(path), "rb"), "zstd")
            file: Any = io.BufferedReader(cast(Any, stream))
        else:
            file = opener(path, "rb")
        with file:
            yield cast(BinaryIO, file)
    except OSError as error:
        if error.errno is None and suffix in COMPRESSION_SUFFIXES:
            raise _build_damage_error(path, suffix) from None
        raise UsageError(f"{path} cannot be read: {error.strerror or 'it is broken'}.") from None
    except DECOMPRESSION_ERRORS:
        raise _build_damage_error(path, suffix) from None


def _build_damage_error(path: Path, suffix: str) -> UsageError:
    return UsageError(
        f"{path} cannot be unpacked: it is cut short, damaged, or not a {suffix} file. Copy "
        "or compress it again."
    )


def strip_suffixes(path: Path, suffixes: tuple[str, ...]) -> str:
    """Return a file's name without its suffixes, such as `.csv.gz`.

    Args:
        path: Path of the file.
        suffixes: Suffixes to remove, in lower case, in addition to that of a compressed file.
    """
    name = path.name
    for endings in (COMPRESSION_SUFFIXES, suffixes):
        for ending in endings:
            if name.lower().endswith(ending) and len(name) > len(ending):
                name = name[: -len(ending)]
                break
    return name


MAX_FIELD_CHARACTERS = 2**31 - 1
"""Maximum number of characters of a cell: the default of module `csv`, 131,072, is too small."""

TABLE_SUFFIXES = (".csv", ".tsv", ".data")
"""Suffixes of CSV files; the suffix of a compressed file may follow."""

SPREADSHEET_SUFFIXES = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")
"""Suffixes of spreadsheet files."""

MAX_INSPECTED_ROWS = 100
"""Maximum number of rows that `pasearch check` searches for a separator that fits the header."""

NO_SEPARATOR = "\x1f"
"""Separator for a file of one column: text does not contain it, so every line is one cell."""

SEPARATOR_ADVICE = ", or declare the separator, `separator=` ('space' for blanks)"
NO_HEADER_ADVICE = " If the file has no header, name its columns, `columns=`."


@SOURCES.register
class CsvFile(Source):
    """A table in a file of lines, with a header or without one."""

    name = "csv"
    kind = "a table"
    expected = (
        "the path of a table (.csv, .tsv or .data, optionally followed by .gz, .bz2, .xz or .zst)"
    )
    suffixes = (
        *TABLE_SUFFIXES,
        *(plain + packed for plain in TABLE_SUFFIXES for packed in COMPRESSION_SUFFIXES),
    )
    uses = ("target", "text", "schema", "quotes", "columns", "separator", "regression", "labels")

    def takes(self, data: str) -> bool:
        """Check that the name ends in one of the suffixes."""
        return Path(data).name.lower().endswith(self.suffixes)

    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Load the data set: every row after the header is a record."""
        schema = None if declared.schema is None else load_schema(declared.schema)
        table = read_table(
            data, declared.target, schema, quotes=declared.quotes, columns=declared.columns,
            separator=declared.separator,
        )  # fmt: skip
        return make_table_dataset(*table, declared)

    def new_records(self, data: str, schema: AnySchema) -> TextTable:
        """Read the cells of new records, (rows, columns).

        The file may have other columns too, in any order. If the training data had no header, the
        file needs a header, or the same columns in the same order, with or without the target.
        """
        if not isinstance(schema, TableSchema):
            raise UsageError(f"{data} is a table, and the model was trained on arrays.")
        path = Path(data)
        form = _find_new_records_format(path, TableFormat.of(schema), schema)
        try:
            with open_csv(path, form) as file:
                columns, _ = file.read()
        except UsageError as error:
            # The separator and the columns of new records cannot be declared.
            message = str(error).removesuffix(NO_HEADER_ADVICE).replace(SEPARATOR_ADVICE, "")
            raise UsageError(message) from None
        return select_columns(schema, dict(zip(file.header, columns, strict=True)), path)


def _find_new_records_format(path: Path, form: TableFormat, schema: TableSchema) -> TableFormat:
    """Find the format of a file of new records by its first line, which need not be charged."""
    names = frozenset(column.name for column in schema.columns if column.kind != "ignore")
    form = replace(form, names=names, min_columns=min(MIN_COLUMNS, len(names)))
    if form.columns is None:
        return form
    if form.names <= set(_read_first_cells(path, form, None)):
        return replace(form, columns=None, separator=None)
    if len(_read_first_cells(path, form, form.separator or ",")) == len(form.columns) - 1:
        return replace(form, columns=tuple(n for n in form.columns if n != schema.target.name))
    return form


def _read_first_cells(path: Path, form: TableFormat, separator: str | None) -> list[str]:
    """Read the cells of a file's first line; an empty list if it cannot be parsed."""
    try:
        with _open_table_file(path) as file:
            _, first = read_header(
                file, quotes=form.quotes, separator=separator, names=form.names
            )  # fmt: skip
    except (LineEndError, HeaderTooLongError):
        return []
    return [] if isinstance(first, Fault) else [normalize_unicode(name.strip()) for name in first]


def read_table(
    path: str | Path, target: str | None = None, schema: TableSchema | None = None, **form: Any
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Read a table from a CSV file in UTF-8, which may be compressed.

    Guarantee: every row keeps its position, and is read from its own bytes alone. A row is a null
        record (None in every cell) if it is not UTF-8, has an unclosed quotation mark, or has
        another number of cells than the header. Cells are stored unchanged.

    Args:
        path: Path of the file.
        target: Name of the target column; None for the schema's, or the last one.
        schema: Declared schema, or None.
        form: Format of the file: `quotes`, `columns` and `separator`, as in `TableFormat.of`.

    Returns:
        The schema in the file's order, the cells, (rows, columns), and the target's cells, (rows,).

    Raises:
        UsageError: The format of the file is invalid, or does not fit the schema.

    Cost: time and memory linear in the rows; `data.text_columns` states the bytes per cell.
    """
    return read_table_with_faults(path, target, schema, **form)[:3]


def read_table_with_faults(
    path: str | Path, target: str | None = None, schema: TableSchema | None = None, **form: Any
) -> tuple[TableSchema, TextTable, TextColumn, list[Fault | None]]:
    """Read a table as `read_table`, and also return each row's fault, or None.

    A fault is the reason why a row cannot be used. It is private: only `pasearch check` shows it.
    """
    path = Path(path)
    declared = TableFormat.of(schema, target=target, **form)
    with open_csv(path, declared) as file:
        header = file.header
        try:
            fitted = fit_schema_to_file(
                header, schema, path=path, name=strip_suffixes(path, TABLE_SUFFIXES), target=target
            )
        except UsageError as error:
            columns = () if schema is None else (*schema.columns, schema.target)
            known = [*(column.name for column in columns), target or ""]
            if declared.columns is None and not any(
                find_closest_name(name, header) for name in known
            ):
                raise UsageError(f"{error}{NO_HEADER_ADVICE}") from None
            raise
        used = file.form.separator
        fitted = replace(
            fitted,
            quotes=declared.quotes,
            order=declared.columns or (),
            # New records without a header need the separator; a header shows it.
            separator=used if declared.columns and used != "," else declared.separator,
        )
        found, faults = file.read()
    return *split_target(fitted, header, found, path), [FAULTS[fault] for fault in faults.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CsvReader:
    """Open CSV file whose header has been read.

    Args:
        path: Path of the file.
        header: Names of the columns.
        form: Format of the lines.
        file: The open file.
        start: First bytes of the records that were already read from `file`.
        has_header: Whether the first line of the file names the columns.
    """

    path: Path
    header: list[str]
    form: LineForm
    file: BinaryIO
    start: bytes
    has_header: bool

    def read(self) -> tuple[list[TextColumn], np.ndarray]:
        """Read all rows: the columns, and the index in `FAULTS` of each row's fault, (rows,).

        Raises:
            UsageError: The file has no row.
        """
        width = len(self.header)
        found = read_lines(self.form, read_blocks(self.file, self.start, width=width), width)
        if not len(found[1]):
            what = "has a header and no rows" if self.has_header else "is empty"
            raise UsageError(f"{self.path} {what}: expected at least one record.")
        return found

    def rows(self) -> Iterator[list[str] | None]:
        """Read the rows one by one; None is a null record."""
        for row in self.form.rows(self.file, self.start):
            yield row if isinstance(row, list) and len(row) == len(self.header) else None


def describe_row_widths(path: Path, schema: TableSchema) -> str:
    """Describe how many cells the rows of a file have, if no row fits the header.

    Only for `pasearch check`, because the description is private.
    """
    form = TableFormat.of(schema)
    with open_csv(path, form) as file:
        found = [*file.form.rows(file.file, file.start)]
    widths = sorted({len(row) for row in found if isinstance(row, list)})
    whole = all(isinstance(row, list) for row in found)
    every = "every row" if whole else "every row that can be read"
    many = f"{widths[0]:,}" if len(widths) == 1 else f"{widths[0]:,} to {widths[-1]:,}"
    cells, width = "cell" if widths[-1] == 1 else "cells", len(file.header)
    named = f"the header has {width:,}" if file.has_header else f"`columns=` names {width:,}"
    if not whole and Fault.QUOTES in found:
        advice = "A row is one line: replace line breaks inside quoted cells by spaces."
    elif widths == [width + 1] and file.has_header:
        advice = (
            "Name the first column, if it holds the names of rows, or remove the separator at the "
            "end of each row."
        )
    else:
        advice = _suggest_separator(path, form)
    return f"{path}: {every} has {many} {cells}, and {named}. {advice}"


def _suggest_separator(path: Path, form: TableFormat) -> str:
    """Return advice for a file whose rows do not fit its header, such as another separator."""
    with open_csv(path, form) as file:
        used, width = file.form, len(file.header)
        lines = used.split_lines(next(read_blocks(file.file, file.start, width=width)))[
            :MAX_INSPECTED_ROWS
        ]
    for each in SEPARATORS + OTHER_SEPARATORS:
        own = replace(used, separator=each)
        widths = [len(row) for row in map(own.parse_row, lines) if isinstance(row, list)]
        wanted = width if form.columns else len(_read_first_cells(path, form, each))
        if wanted > 1 and 2 * widths.count(wanted) > len(lines):
            name = next((name for name, known in SEPARATOR_NAMES.items() if known == each), each)
            return f"The separator seems to be {each!r}: use `separator={name!r}`."
        if each != used.separator and 2 * widths.count(width) > len(lines):
            return (
                f"The rows seem to have the separator {each!r}, and the header "
                f"{used.separator!r}: use the same in both."
            )
    if form.columns:
        return (
            "Give the names of all columns, in the file's order, `columns=`, or declare the "
            "separator, `separator=`."
        )
    return "Write a header with a name for every cell, or declare the separator, `separator=`."


@contextmanager
def open_csv(path: Path, form: TableFormat) -> Iterator[CsvReader]:
    """Open a file and read its header, if it has one.

    Raises:
        UsageError: The file is missing, its header is not UTF-8, or it has fewer than two columns
            or duplicate names. The message does not quote the file.
    """
    limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    try:
        with _open_table_file(path) as file:
            if form.columns is None:
                (lines, header), start = _read_column_names(path, file, form), b""
            else:
                tabs = ".tsv" in [suffix.lower() for suffix in path.suffixes]
                separator = form.separator or ("\t" if tabs else None)
                lines, start = read_start_without_header(
                    file, quotes=form.quotes, separator=separator
                )
                header = list(form.columns)
            yield CsvReader(
                path=path, header=header, form=lines, file=file, start=start,
                has_header=form.columns is None,
            )  # fmt: skip
    finally:
        csv.field_size_limit(limit)


@contextmanager
def _open_table_file(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder: expected {CsvFile.expected}, or of a .parquet file or a folder "
            "of these. Name a file in it."
        )
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist: expected a CSV file with a header.{suggest_file(path)}"
        )
    refuse_spreadsheet(path)
    with open_decompressed(path) as file:
        yield file


def _read_column_names(path: Path, file: BinaryIO, form: TableFormat) -> tuple[LineForm, list[str]]:
    """Read the header of a file: the format of its lines, and the names of its columns.

    A first line that contains all of `form.names` is certainly a header. The messages do not quote
    the line, because it may be a record.
    """
    if other := describe_other_format(file):
        raise UsageError(f"{path} is not a text file, despite its name. It is {other}.")
    try:
        lines, first = read_header(
            file, quotes=form.quotes, separator=form.separator, names=form.names
        )  # fmt: skip
    except LineEndError:
        raise UsageError(
            f"{path}: its first line has a carriage return that does not precede a line feed: "
            "lines must end with LF or CR LF. Convert the file, or remove the carriage return."
        ) from None
    except HeaderTooLongError:
        raise UsageError(
            f"{path}: its first line has more than {MAX_HEADER_BYTES:,} bytes: expected a header, "
            "the names of the columns."
        ) from None
    if first is Fault.EMPTY:
        raise UsageError(
            f"{path} is empty, or its first line is: expected a CSV file with a header."
        )
    if first is Fault.ENCODING:
        raise UsageError(f"{path}: its header is not UTF-8: save the file as CSV UTF-8.")
    row, declared = [] if isinstance(first, Fault) else first, form.names
    header = [normalize_unicode(name.strip()) for name in row]
    if len(header) < form.min_columns:
        raise UsageError(
            f"{path}: its first line is not a header of two or more columns, separated by commas, "
            f"semicolons, tabs or | : write the names of the columns there{SEPARATOR_ADVICE}."
        )
    if any("\0" in name for name in header):
        raise UsageError(
            f"{path}: its first line holds NUL characters, so it is UTF-16 or not text: save it as "
            "CSV UTF-8."
        )
    certain = bool(declared) and declared <= set(header)
    numbers = (
        []
        if certain
        else [name for name in header if not math.isnan(PLAIN_NUMBER_FORM.number(name))]
    )
    if numbers not in ([str(i + start) for i in range(len(numbers))] for start in (0, 1)):
        raise UsageError(
            f"{path}: its first line holds numbers, so it looks like a record: expected a header. "
            "If the numbers are the names of columns, name the target, `target=`. Otherwise write "
            f"the names of the columns into the first line.{NO_HEADER_ADVICE}"
        )
    check_column_names(header, str(path), NO_HEADER_ADVICE, min_columns=form.min_columns)
    if len(header) == 1 and form.separator is None:
        lines = replace(lines, separator=NO_SEPARATOR)
    return lines, header


def count_lines_above(path: Path, schema: TableSchema) -> int:
    """Count the lines above the records: a header, and a line such as `sep=;`."""
    if schema.order:
        return 0
    with _open_table_file(path) as file:
        first = file.readline(16).removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
    return 1 + (SEPARATOR_FIRST_LINE.fullmatch(first) is not None)


def refuse_spreadsheet(path: Path) -> None:
    """Raise UsageError if a file's suffix is of a spreadsheet or another format that is not text.

    Raises:
        UsageError: The message says how to save the file.
    """
    if path.suffix.lower() in SPREADSHEET_SUFFIXES:
        raise UsageError(f"{path} is a spreadsheet: save it as CSV UTF-8 (in Excel: Save as).")
    if path.is_file() and (remedy := describe_other_suffix(path.suffix.lower())):
        raise UsageError(f"{path} cannot be read as a table: it is {remedy}.")
