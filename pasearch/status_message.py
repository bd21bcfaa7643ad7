"""A short status message for a long pause, which the progress bar shows (`progress.ProgressBar`).

A message may depend on public numbers only: see docs/rules.md, rule 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMPILING_STATUS = "compiling: about ten seconds, once"

MIN_DELAY_SECONDS = 1.0
"""Pause in seconds after which the message is shown."""

_now: list[tuple[str | Callable[[], str], float]] = []


@contextmanager
def show_status(text: str | Callable[[], str]) -> Iterator[None]:
    """Show a message on the progress bar if the block takes longer than `MIN_DELAY_SECONDS`.

    Args:
        text: Message, or a function that returns it when it is shown.
    """
    _now.append((text, time.monotonic()))
    try:
        yield
    finally:
        _now.pop()


def current_status() -> str:
    """Return the innermost message whose block has run for `MIN_DELAY_SECONDS`; else ""."""
    for text, since in reversed(_now):
        if time.monotonic() - since >= MIN_DELAY_SECONDS:
            return text if isinstance(text, str) else text()
    return ""
