"""The errors a user can cause, each with the exit code of the command line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from pasearch.shown import shown

FIELD = re.compile(r"`(\w+)=([^`]*)`")
"""How a message names an option, and perhaps its value: as Python has it, `search_share=.2`."""


def nearest(name: object, known: Iterable[str]) -> str:
    """Return what ends a message about a name that is not known: what was probably meant.

    Args:
        name: As the user wrote it.
        known: What there is.

    Returns:
        " Did you mean 'x'?", or nothing where no name is near.
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


class PasearchError(Exception):
    """An error whose message says what is wrong, where, what was expected, and what to do.

    Args:
        message: One line.
        items: Further lines, below it: each a problem.
    """

    exit_code = 1

    def __init__(self, message: object = "", *items: object):
        super().__init__("\n  - ".join(map(shown, (message, *items))))

    @property
    def fields(self) -> tuple[str, ...]:
        """The options that the message names."""
        return tuple(name for name, _ in FIELD.findall(str(self)))


class UsageError(PasearchError):
    """Bad usage or input of bad form. Nothing was read under a charge and nothing was written."""

    exit_code = 2


class BudgetError(PasearchError):
    """The budget is too small for what was asked, or would be exceeded."""

    exit_code = 3


class InterruptedRunError(PasearchError):
    """A run was interrupted; the folder it names can be resumed."""

    exit_code = 130

    def __init__(self, path: object):
        super().__init__(f"Interrupted. Nothing is lost: finish it with `pasearch resume {path}`.")
