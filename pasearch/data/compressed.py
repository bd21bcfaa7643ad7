"""Files of bytes as they are, or compressed: what they hold is read from the front, once.

Source: docs/rules.md, rule 13: what a file is compressed by is form, and its name says it.
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

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""How the names of compressed files end."""

BROKEN = (EOFError, zlib.error, lzma.LZMAError)
"""What is raised by what cannot be unpacked, beside errors without a number of the system's."""


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file; what its name says that it is compressed by is unpacked while it is read.

    Raises:
        UsageError: It cannot be read, is cut short, or is not what its name says. The message tells
            nothing of what is in it.
    """
    suffix = path.suffix.lower()
    try:
        with _file(path, suffix) as file:
            yield cast(BinaryIO, file)
    except OSError as error:
        if error.errno is None and suffix in COMPRESSED:
            raise _broken(path, suffix) from None
        raise UsageError(f"{path} cannot be read: {error.strerror or 'it is broken'}.") from None
    except BROKEN:
        raise _broken(path, suffix) from None


def _file(path: Path, suffix: str) -> Any:
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


def _broken(path: Path, suffix: str) -> UsageError:
    return UsageError(
        f"{path} cannot be unpacked: it is cut short, damaged, or no {suffix} file. Copy or "
        "compress it again."
    )


def stem(path: Path, suffixes: tuple[str, ...]) -> str:
    """Return a file's name without what says that it is compressed, and without its ending.

    Args:
        path: The file.
        suffixes: Endings, in lower case, compressed ones left out.
    """
    name = path.name
    for endings in (COMPRESSED, suffixes):
        for ending in endings:
            if name.lower().endswith(ending) and len(name) > len(ending):
                name = name[: -len(ending)]
                break
    return name
