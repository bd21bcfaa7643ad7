"""Reading of files that a user or another program wrote, within limits, and writing of new files.

A path may name a folder or a device. A file may be truncated or gigabytes large, or contain a
number of a million digits or brackets nested a hundred thousand deep. TOML and JSON files are read
by `read_toml` and `read_json`, which refuse all of these with a `UsageError` that names the file.

| limit | reason |
|---|---|
| `MAX_TOML_BYTES`, `MAX_JSON_BYTES` | parsing takes up to 25 bytes of memory per byte |
| `MAX_DEPTH` levels of brackets | parsers are recursive |
| `MAX_INTEGER` | no count needs more than 64 bits, and large integers print slowly |
| `MAX_KEY_PARTS` of a dotted key (TOML) | the parser's time grows with their square |
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tomllib
import zipfile
from typing import Any

from pasearch.errors import UsageError

MAX_TOML_BYTES = 2**24  # maximum size of a TOML file
MAX_JSON_BYTES = 2**25  # maximum size of a JSON file
MAX_DEPTH = 100  # maximum number of nested brackets
MAX_INTEGER = 2**64  # maximum absolute value of an integer
MAX_KEY_PARTS = 50  # maximum number of parts of a dotted key in TOML

_STRING_PATTERN = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|' + r"'[^'\n]*+'?")
_KEY_PART = r'(?:[\w-]++|"")'
_LONG_KEY_PATTERN = re.compile(
    rf"(?<![\w\"-]){_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{MAX_KEY_PARTS}}}"
)


def read_bytes(path: str | os.PathLike[str], what: str, *, most: int, follow: bool = True) -> bytes:
    """Read a regular file.

    Args:
        path: The file.
        what: Description of the expected content for messages, such as "a schema (TOML)".
        most: Maximum number of bytes.
        follow: False refuses a symbolic link, for files that only this program writes.

    Raises:
        UsageError: The file is missing, a folder, a device, a broken or forbidden link, not
            readable or too large.
    """
    # Without O_NONBLOCK, opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is a pipe or a device: expected {what}, in a plain file.")
            content = file.read(most + 1)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist: expected {what}.") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder: expected {what}.") from None
    except (OSError, ValueError) as error:
        linked = not follow and os.path.islink(path)
        reason = "it is a link" if linked else getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read ({reason}): expected {what}.") from None
    if len(content) > most:
        raise UsageError(f"{path} has more than {most:,} bytes: expected {what} below this limit.")
    return content


def read_toml(path: str | os.PathLike[str], what: str = "a TOML file") -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        UsageError: `read_bytes` refuses the file, it is not TOML in UTF-8, or it exceeds a limit.
    """
    content = read_bytes(path, what, most=MAX_TOML_BYTES)
    try:
        text = _decode_utf8(content)
        if _LONG_KEY_PATTERN.search(_STRING_PATTERN.sub('""', text)):
            raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")
        return _check_limits(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise _parse_error(path, "TOML", error, what) from None


def read_json(
    path: str | os.PathLike[str], what: str = "a JSON file", *, follow: bool = True
) -> Any:
    """Read a JSON file; NaN, Infinity and -Infinity are accepted as numbers.

    Args:
        path: The file.
        what: Description of the expected content for messages.
        follow: False refuses a symbolic link.

    Raises:
        UsageError: `read_bytes` refuses the file, it is not JSON in UTF-8, or it exceeds a limit.
    """
    return parse_json(read_bytes(path, what, most=MAX_JSON_BYTES, follow=follow), str(path), what)


def parse_json(content: str | bytes, where: str, what: str = "JSON") -> Any:
    """Parse JSON text within the limits.

    Args:
        content: Text, or its bytes in UTF-8.
        where: Name of the source for error messages.
        what: Description of the expected content for messages.

    Raises:
        UsageError: The content is not JSON in UTF-8, or exceeds a limit.
    """
    if len(content) > MAX_JSON_BYTES:
        raise UsageError(f"{where} has more than {MAX_JSON_BYTES:,} bytes: expected {what}.")
    try:
        return _check_limits(
            json.loads(_decode_utf8(content) if isinstance(content, bytes) else content)
        )
    except (ValueError, RecursionError) as error:
        raise _parse_error(where, "JSON", error, what) from None


def write_new_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a new file with mode 0600, completely or not at all.

    Args:
        path: Path of the file.
        content: Content; file names in it that are not UTF-8 are written as the system has them.

    Raises:
        UsageError: The path exists, also as a link, or cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    created = False
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            created = True
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
    except FileExistsError:
        raise UsageError(f"{path} exists: name a new file.") from None
    except (OSError, ValueError) as error:
        if created:  # such as on a full disk
            os.unlink(path)
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be written ({reason}): name a file elsewhere.") from None


def check_memory(what: str, needed: int, advice: str) -> None:
    """Refuse a computation that needs more memory than the machine has, before it begins.

    Args:
        what: Name of the computation for the message.
        needed: Needed memory in bytes, computed from public numbers only.
        advice: Remedy for the user.

    Raises:
        UsageError: The machine has less memory.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UsageError(
            f"{what} needs {needed / 1e9:,.1f} GB of memory, but this machine has "
            f"{there / 1e9:,.1f} GB: {advice}."
        )


def _decode_utf8(content: bytes) -> str:
    """Decode UTF-8 with or without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _check_limits(value: Any) -> Any:
    """Return a parsed value; refuse brackets that are nested too deep, and large integers."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"brackets more than {MAX_DEPTH} deep")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, int) and not -MAX_INTEGER <= each <= MAX_INTEGER:
                raise ValueError("an integer of more than 64 bits")
        level = below
    return value


def _parse_error(
    path: str | os.PathLike[str], kind: str, error: Exception, what: str
) -> UsageError:
    """Make the error for a file that cannot be parsed."""
    reason = str(error)
    if isinstance(error, RecursionError):
        reason = f"brackets more than {MAX_DEPTH} deep"
    elif "int_max_str_digits" in reason:
        reason = "an integer of more than 64 bits"
    return UsageError(f"{path} cannot be read as {kind} ({reason}): expected {what}.")


def check_uncompressed(weights: bytes) -> None:
    """Refuse a zip archive that would grow when it is unpacked, by a ValueError."""
    with zipfile.ZipFile(io.BytesIO(weights)) as archive:
        members = archive.infolist()
    if any(each.compress_type != zipfile.ZIP_STORED for each in members):
        raise ValueError("a member is compressed")
    if sum(each.file_size for each in members) > len(weights):
        raise ValueError("its members are larger than the file")
