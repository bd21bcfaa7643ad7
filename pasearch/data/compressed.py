"""Files that may be compressed: their bytes are read once, from the beginning.

Source: docs/rules.md, rule 13: the compression is public, because the file's name states it.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from pasearch.errors import UsageError

COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files."""

DECOMPRESSION_ERRORS = (EOFError, zlib.error, lzma.LZMAError)
"""Exceptions for damaged files; an OSError without a number is one too."""


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
"""Other formats: their suffixes, their first bytes, and their description with a remedy."""


def describe_other_format(file: BinaryIO) -> str:
    """Describe another format and a remedy by a file's first bytes; "" if it may be a table."""
    start = cast(Any, file).peek(16)[:16]
    return next((remedy for _, magic, remedy in OTHER_FORMATS if start.startswith(magic)), "")


def describe_other_suffix(suffix: str) -> str:
    """Describe another format and a remedy by the suffix of a name; "" if it may be a table."""
    return next((remedy for endings, _, remedy in OTHER_FORMATS if suffix in endings), "")


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and unpack it while it is read if its suffix is that of a compressed file.

    Raises:
        UsageError: The file cannot be read, is cut short, or has another format than its name
            states. The message does not reveal its content.
    """
    suffix = path.suffix.lower()
    try:
        with _open_by_suffix(path, suffix) as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        if error.errno is None and suffix in COMPRESSION_SUFFIXES:
            raise _build_damage_error(path, suffix) from None
        raise UsageError(f"{path} cannot be read: {error.strerror or 'it is broken'}.") from None
    except DECOMPRESSION_ERRORS:
        raise _build_damage_error(path, suffix) from None


def _open_by_suffix(path: Path, suffix: str) -> Any:
    if suffix == ".gz":
        return gzip.open(path, "rb")
    if suffix == ".bz2":
        return bz2.open(path, "rb")
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path), "rb"), "zstd"))
    return path.open("rb")


def _build_damage_error(path: Path, suffix: str) -> UsageError:
    return UsageError(
        f"{path} cannot be unpacked: it is cut short, damaged, or not a {suffix} file. Copy "
        "or compress it again."
    )


def strip_suffixes(path: Path, suffixes: tuple[str, ...]) -> str:
    """Return a file's name without the suffix of a compressed file and without its own suffix.

    Args:
        path: Path of the file.
        suffixes: Suffixes of the uncompressed files, in lower case.
    """
    name = path.name
    for endings in (COMPRESSION_SUFFIXES, suffixes):
        for ending in endings:
            if name.lower().endswith(ending) and len(name) > len(ending):
                name = name[: -len(ending)]
                break
    return name
