"""The errors a user can cause, each with the exit code of the command line."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path

from pasearch.terminal_escaping import escape_text

OPTION_REFERENCE = re.compile(r"`(\w+)=([^`]*)`")
"""How a message names an option, and perhaps its value: as Python has it, `search_share=.2`."""


def suggest_name(name: object, known: Iterable[str]) -> str:
    """Return what ends a message about a name that is not known: what was probably meant.

    Args:
        name: As the user wrote it.
        known: What there is.

    Returns:
        " Did you mean 'x'?", or nothing where no name is near.
    """
    near = find_closest_name(name, known)
    return f" Did you mean {near!r}?" if near else ""


def find_closest_name(name: object, known: Iterable[str]) -> str:
    """Return the name that was probably meant, or nothing where none is near.

    Args:
        name: As the user wrote it, in capital letters or small ones.
        known: What there is.
    """
    small, given = {each.lower(): each for each in map(str, known)}, str(name).lower()
    near = difflib.get_close_matches(given, list(small), n=1, cutoff=MIN_NAME_SIMILARITY)
    near += [each for each in small if _is_swapped_or_prefix(each, given)]
    return small[near[0]] if near else ""


def _is_swapped_or_prefix(one: str, other: str) -> bool:
    """Return whether two names are of the same letters, or one is how the other begins.

    `fnc` and `fcn`, `batch-size` and `batch`: of these too few letters are in the same places.
    """
    if len(one) == len(other):
        return sorted(one) == sorted(other)
    short, long = sorted((one, other), key=len)
    return len(short) >= MIN_PREFIX_LENGTH and long.startswith(short)


MIN_NAME_SIMILARITY = 0.7
"""How alike two names are, of 1, if one is a slip of the hand: `bogus` and `hours` are .6."""

MIN_PREFIX_LENGTH = 3
"""Letters of a name that may be the beginning of another."""


def suggest_file(path: str | Path) -> str:
    """Return what ends a message about a file that is not there: which of its folder was meant.

    Args:
        path: As the user wrote it; of what is there nothing is said.
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
    """Return what the machine refused and what to do about it, in a sentence or two.

    No path is named: in a run's private folder even a file's name may tell of the records.

    Args:
        error: What was raised.

    Returns:
        None where the error is none of the machine's.
    """
    told, each = None, error
    while told is None and each is not None:  # a library's own error may stand before it
        told, each = _describe_one_error(each), each.__cause__
    return told


def _describe_one_error(error: BaseException) -> str | None:
    """Return what an error of the machine's says, without what caused it."""
    text, kind = str(error).lower(), type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if (
        isinstance(error, MemoryError)
        or number == errno.ENOMEM
        or any(each in text for each in OUT_OF_MEMORY_MESSAGES)
    ):
        return (
            "The memory is full. Close other programs, take a smaller `batch=` or a smaller model, "
            "or a machine with more memory."
        )
    if number in DISK_FULL_ERRNOS or (kind == "OperationalError" and "disk is full" in text):
        return "The disk is full. Make room on it."
    if number in NO_PERMISSION_ERRNOS or (
        kind == "OperationalError" and ("readonly" in text or "unable to open" in text)
    ):
        return (
            "The system does not permit to read or write a file there. Name a folder of your own, "
            "or change its permissions."
        )
    if kind == "OperationalError" and "disk i/o error" in text:
        return "The system refused a file operation (disk I/O error)."
    if number == errno.EMFILE:
        return "Too many files are open. Raise the limit (`ulimit -n`), or close other programs."
    if isinstance(error, OSError):
        return f"The system refused a file operation ({error.strerror or kind})."
    return None


OUT_OF_MEMORY_MESSAGES = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory",
)  # fmt: skip
"""How torch and the system say that the memory is full."""

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of the system's errors of a disk that is full."""

NO_PERMISSION_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of those of a file that may not be read or written."""


class PasearchError(Exception):
    """An error whose message says what is wrong, where, what was expected, and what to do.

    Args:
        message: One line.
        items: Further lines, below it: each a problem.
    """

    exit_code = 1

    def __init__(self, message: object = "", *items: object):
        super().__init__("\n  - ".join(map(escape_text, (message, *items))))

    @property
    def fields(self) -> tuple[str, ...]:
        """The options that the message names."""
        return tuple(name for name, _ in OPTION_REFERENCE.findall(str(self)))


class MachineError(PasearchError):
    """The machine refused: its disk or memory is full, say. No path and no value is named."""


class UsageError(PasearchError):
    """Bad usage or input of bad form. Nothing was read under a charge and nothing was written."""

    exit_code = 2


class BudgetError(PasearchError):
    """The budget is too small for what was asked, or would be exceeded."""

    exit_code = 3


class ChargedError(BudgetError):
    """A run has ended without a model, and its whole plan stays charged. Its folder stays, too."""


class InterruptedRunError(PasearchError):
    """A run was interrupted; the folder it names can be resumed.

    Args:
        path: The folder.
        finish: With what, if not with `pasearch resume`.
    """

    exit_code = 130

    def __init__(self, path: object, finish: str = ""):
        way = finish or f"`pasearch resume {path}`"
        super().__init__(
            "Interrupted. Nothing paid for is lost: with nothing changed on this machine (data, "
            f"versions, threads), finish it with {way}. Changed data end it for good. What was "
            "charged stays charged, also if you do not."
        )
