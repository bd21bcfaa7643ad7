"""Ctrl-C that arrives: one that a library swallows is asked for again.

Python drops an exception that is raised while an object is being taken away (a weak reference's
callback, say), and with it a Ctrl-C that happens to arrive just then. So a run that was asked to
end, and has not after a second, is asked once more.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ONCE_MORE = 1.0
"""After so many seconds."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C, and the signal that ends a process, raise KeyboardInterrupt within the block."""

    def asked(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, ONCE_MORE)
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {each: signal.signal(each, asked) for each in signals}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for each, handler in before.items():
            signal.signal(each, handler)
