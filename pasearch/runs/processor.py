"""The processor: instructions, compiled loops and threads, which determine the last bits of sums.

The same keys on another processor could be used with another sum. So a run is bound to
`describe_processor`, and the nodes of a cluster must agree in it. Compiled loops are compared with
other code on public numbers before they are used. They have their own threads, because torch's
threads wait in a busy loop between two sums and would occupy their processors.

MKL, which computes torch's matrix products, has two modes: the fastest kernel for the shape and the
address of each matrix, or (`MKL_CBWR`) a kernel whose roundings do not depend on the address. On
Intel processors the fastest kernels have this property at the numbers of rows used here; on others
they do not.

Source: docs/rules.md, rule 11. Proof: docs/guarantees/dp-sgd.md ("The number of rows").
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from pasearch import status_message
from pasearch.errors import MachineError, describe_system_error

SETTING_PREFIXES = ("ATEN_", "MKL_", "ONEDNN_", "DNNL_")
"""Prefixes of the environment variables that select instructions."""


MKL_MODE_VARIABLE, MKL_MODE = "MKL_CBWR", "AUTO"
"""MKL mode whose roundings do not depend on the address of a matrix."""


def set_consistent_rounding() -> None:
    """Make MKL round a record's products independently of its position in the batch.

    Call it before the first product of a process, because MKL reads the variable once. A value that
    the user has set is kept.
    """
    if not _is_intel():
        os.environ.setdefault(MKL_MODE_VARIABLE, MKL_MODE)


def _is_intel() -> bool:
    name = os.environ.get("PROCESSOR_IDENTIFIER", "")  # of Windows
    try:
        name += Path("/proc/cpuinfo").read_text(errors="replace")[:4096]
    except OSError:
        pass  # another system
    return "GenuineIntel" in name


def describe_processor() -> list[str]:
    """Describe torch's instructions, its build and the environment variables that affect them."""
    torch = importlib.import_module("torch")  # slow import
    chosen = (name for name in os.environ if name.startswith(SETTING_PREFIXES))
    return [
        torch.backends.cpu.get_cpu_capability(),
        torch.__config__.show(),
        *(f"{name}={os.environ[name]}" for name in sorted(chosen)),
    ]


# --- compiled loops ---

GROUP = 32
"""Pairs of normal numbers whose first members are adjacent, followed by their second members."""

JIT_SWITCH_VARIABLE = "NUMBA_DISABLE_JIT"
"""Environment variable that disables compiled code."""


def load_checked_loops(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Load compiled loops and test them on public numbers; None if numba is missing or disabled.

    Raises:
        MachineError: The loops cannot be loaded, or compute other sums. Torch is no substitute
            then: a resumed run, or one whose candidates are trained in several processes, needs the
            same sums everywhere.
    """
    if os.environ.get(JIT_SWITCH_VARIABLE, "0") != "0" or importlib.util.find_spec("numba") is None:
        return None
    try:
        with status_message.show_status(status_message.COMPILING_STATUS):
            code = importlib.import_module(module)
            agreed = agrees(code)
        if agreed:
            return code
        reason = "It computes other numbers than torch."
    except Exception as error:  # noqa: BLE001 - no room for its files, or damaged ones
        reason = describe_system_error(error) or f"numba ended with {type(error).__name__}."
    raise MachineError(
        f"The compiled code of pasearch cannot be used. {reason} If its files are the reason, name "
        "a folder that can be written to in NUMBA_CACHE_DIR; then give the same command again, or "
        f"resume the run. A new run with {JIT_SWITCH_VARIABLE}=1 does without, more slowly."
    )


# --- threads ---


class ThreadTeam:
    """A group of threads that includes the calling thread.

    Args:
        threads: Number of threads, 1 or more.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def run_all(self, part: Callable[[int], None]) -> None:
        """Call a function in every thread with the thread's index, from 0.

        Guarantee: when this returns or raises, no thread runs the function any more.
        """
        if self._pool is None:
            return part(0)
        others: list[Future[None]] = []
        try:
            for place in range(1, self.threads):
                others.append(self._pool.submit(part, place))
            part(0)
        finally:
            if len(others) < self.threads - 1:  # one that could not be begun may wait in the pool
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = ThreadPoolExecutor(self.threads - 1)
            interrupted = None  # by the user: raised when all have ended
            while not all(each.done() for each in others):
                try:
                    wait(others)
                except KeyboardInterrupt as error:
                    interrupted = error
            if interrupted is not None:
                raise interrupted
        for each in others:
            each.result()

    def run_divided(self, count: int, part: Callable[[int, int, int], None], even: int = 1) -> None:
        """Divide `count` items among the threads: call a function with thread index, first and end.

        All parts but the last end at a multiple of `even`.
        """
        edges = [even * (count // even * place // self.threads) for place in range(self.threads)]
        edges.append(count)
        parts = list(pairwise(edges))
        self.run_all(lambda place: part(place, *parts[place]))
