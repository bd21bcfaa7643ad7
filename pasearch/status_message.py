"""What a process is at where a bar would stand still: a bar says so (`progress.Bar`).

Only what follows from public numbers may be said here: see docs/rules.md, rule 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMPILING_STATUS = "compiling machine code: some ten seconds, once"

MIN_DELAY_SECONDS = 1.0
"""Seconds before it is said."""

_now: list[tuple[str | Callable[[], str], float]] = []


@contextmanager
def show_status(text: str | Callable[[], str]) -> Iterator[None]:
    """Let it be said that a process is at something, within the block.

    Args:
        text: What is said, or what returns it when it is.
    """
    _now.append((text, time.monotonic()))
    try:
        yield
    finally:
        _now.pop()


def current_status() -> str:
    """Return what a process is at, if it has been for a while; else nothing. The last one first."""
    for text, since in reversed(_now):
        if time.monotonic() - since >= MIN_DELAY_SECONDS:
            return text if isinstance(text, str) else text()
    return ""
