"""Exceptions for errors that a user can cause, each with its exit code of the command line."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path

from pasearch.terminal_escaping import escape_text

OPTION_REFERENCE = re.compile(r"`(\w+)=([^`]*)`")
"""Pattern of a reference to an option in a message, such as `search_share=.2` or `search_share=`.

The command line replaces it by the flag."""


def suggest_name(name: object, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name most similar to a mistyped one, or "".

    Args:
        name: Name as the user wrote it.
        known: Valid names.
    """
    near = find_closest_name(name, known)
    return f" Did you mean {near!r}?" if near else ""


def find_closest_name(name: object, known: Iterable[str]) -> str:
    """Find the known name most similar to a mistyped one; "" if none is similar enough.

    Args:
        name: Name as the user wrote it, in upper or lower case.
        known: Valid names.
    """
    small, given = {each.lower(): each for each in map(str, known)}, str(name).lower()
    near = difflib.get_close_matches(given, list(small), n=1, cutoff=MIN_NAME_SIMILARITY)
    # `difflib` finds neither `fnc` and `fcn` nor `batch-size` and `batch` similar enough.
    for each in small:
        short, long = sorted((each, given), key=len)
        is_swapped = len(short) == len(long) and sorted(short) == sorted(long)
        if is_swapped or (len(short) >= MIN_PREFIX_LENGTH and long.startswith(short)):
            near.append(each)
    return small[near[0]] if near else ""


MIN_NAME_SIMILARITY = 0.7
"""Minimum similarity (`difflib`, 0 to 1) of a known name to a mistyped one.

It is above .6, the similarity of the unrelated words `bogus` and `hours`."""

MIN_PREFIX_LENGTH = 3  # minimum length of a name that is accepted as the prefix of another, letters


def suggest_file(path: str | Path) -> str:
    """Return " Did you mean ...?" with the most similar file of the same folder, or "".

    Args:
        path: Path as the user wrote it. The result is "" if it exists.
    """
    path = Path(path)
    if path.exists():
        return ""
    try:
        near = find_closest_name(path.name, (each.name for each in path.parent.iterdir()))
    except (OSError, ValueError):
        near = ""
    return f" Did you mean {escape_text(path.with_name(near))}?" if near else ""


def describe_system_error(error: BaseException) -> str | None:
    """Describe an error of the operating system and its remedy, in one or two sentences.

    The description contains no path, because the name of a file in a run's private folder may
    reveal something about the records.

    Args:
        error: Exception; the exceptions that caused it are examined too.

    Returns:
        The sentences, or None if the operating system is not the cause.
    """
    description, each = None, error
    while description is None and each is not None:
        description, each = _describe_one_error(each), each.__cause__
    return description


def _describe_one_error(error: BaseException) -> str | None:
    """Describe an error of the operating system, without the exceptions that caused it."""
    text, kind = str(error).lower(), type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if (
        isinstance(error, MemoryError)
        or number == errno.ENOMEM
        or any(each in text for each in OUT_OF_MEMORY_MESSAGES)
    ):
        return (
            "Not enough memory. Close other programs, use a smaller `batch=` or a smaller model, "
            "or a machine with more memory."
        )
    if number in DISK_FULL_ERRNOS or (kind == "OperationalError" and "disk is full" in text):
        return "The disk is full. Free some space."
    if number in NO_PERMISSION_ERRNOS or (
        kind == "OperationalError" and ("readonly" in text or "unable to open" in text)
    ):
        return (
            "Permission to read or write a file was denied. Name another folder, or change its "
            "permissions."
        )
    if kind == "OperationalError" and "disk i/o error" in text:
        return "The system refused a file operation (disk I/O error)."
    if number == errno.EMFILE:
        return "Too many open files. Raise the limit (`ulimit -n`), or close other programs."
    if isinstance(error, OSError):
        return f"The system refused a file operation ({error.strerror or kind})."
    return None


OUT_OF_MEMORY_MESSAGES = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory",
)  # fmt: skip
"""Parts of messages by which torch and the operating system report insufficient memory."""

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk or an exceeded quota."""

NO_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of a missing permission."""


class PasearchError(Exception):
    """An error whose message names the problem, its place, what was expected and what to do.

    Args:
        message: One line.
        items: Further lines, one problem each.
    """

    exit_code = 1

    def __init__(self, message: object = "", *items: object):
        super().__init__("\n  - ".join(map(escape_text, (message, *items))))

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the options in the message."""
        return tuple(name for name, _ in OPTION_REFERENCE.findall(str(self)))


class MachineError(PasearchError):
    """Failure of the machine, such as a full disk. The message contains no path and no value."""


class UsageError(PasearchError):
    """Wrong usage or malformed input. Nothing was charged, read or written."""

    exit_code = 2


class BudgetError(PasearchError):
    """A budget that is too small for the request, or would be exceeded."""

    exit_code = 3


class ChargedError(BudgetError):
    """A run that ended without a model. Its whole plan stays charged, and its folder is kept."""


class InterruptedRunError(PasearchError):
    """An interrupted run, whose folder can be resumed.

    Args:
        path: Folder of the run.
        finish: Command that finishes the run, if it is not `pasearch resume`.
    """

    exit_code = 130

    def __init__(self, path: object, finish: str = ""):
        way = finish or f"`pasearch resume {path}`"
        super().__init__(
            f"Interrupted. Finish the run with {way}; no result that was charged is lost. Data, "
            "versions and threads must be unchanged: with changed data the run cannot be resumed. "
            "The budget spent by this run is not refunded."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error means that memory is exhausted; on a CPU torch has a RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)  # torch.OutOfMemoryError is one
        and (
            type(error).__name__ == "OutOfMemoryError"
            or any(words in str(error) for words in ("allocate", "out of memory"))
        )
    )
