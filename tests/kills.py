"""Kill a function at each of its system calls, as a power cut or `kill -9` would."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

TRACE_ME, TRACE_CALLS = 0, 24
"""Requests of ptrace(2): be traced by the parent; go on to the next entry or exit of a call."""


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Run an action in a forked process and kill it at a system call.

    Args:
        step: Number of entries and exits of system calls before the kill, from 1.
        action: What is run. It should import nothing for the first time.

    Returns:
        bool: False if the action ended before.
    """
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    child = os.fork()
    if not child:
        try:
            ptrace(TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            action()
        finally:
            os._exit(0)
    for _ in range(step):
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            return False
        ptrace(TRACE_CALLS, child, None, None)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True
