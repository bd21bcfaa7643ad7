"""Status message that the progress bar shows during a long pause (`progress.ProgressBar`).

A message may depend on public numbers only (docs/rules.md, rule 10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMPILING_STATUS = "compiling: about ten seconds, once"  # message while kernels are compiled

MIN_DELAY_SECONDS = 1.0
"""Minimum duration of a pause for which the message is shown, seconds."""

_active_messages: list[tuple[str | Callable[[], str], float]] = []


@contextmanager
def show_status(text: str | Callable[[], str]) -> Iterator[None]:
    """Show a message on the progress bar if the block takes longer than `MIN_DELAY_SECONDS`.

    Args:
        text: Message, or a function that returns it when it is shown.
    """
    _active_messages.append((text, time.monotonic()))
    try:
        yield
    finally:
        _active_messages.pop()


def current_status() -> str:
    """Return the message of the innermost block that has run for `MIN_DELAY_SECONDS`, or ""."""
    for text, since in reversed(_active_messages):
        if time.monotonic() - since >= MIN_DELAY_SECONDS:
            return text if isinstance(text, str) else text()
    return ""
