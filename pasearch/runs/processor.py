"""Processor, compiled loops and threads, on which the last bits of floating-point sums depend.

The same noise must not be added to two different sums. But on another processor, the same run could
compute sums with other last bits. So the keys of a run are bound to `describe_processor`, and all
nodes of a cluster must have the same description. Compiled loops are compared with other code on
public numbers before they are used. They use their own threads, because torch's threads wait in
busy loops and would occupy the processor cores.

The library MKL computes torch's matrix products. By default it uses the fastest code for the shape
and the memory address of each matrix. With `MKL_CBWR` it uses code whose rounding does not depend
on the address. On Intel processors, the fastest code has this property for the numbers of rows used
here; on other processors it does not.

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
"""Prefixes of the environment variables that select the instructions of torch's libraries."""


MKL_MODE_VARIABLE = "MKL_CBWR"
"""Environment variable with the mode of MKL."""
MKL_MODE = "AUTO"
"""Mode of MKL in which rounding does not depend on the memory address of a matrix."""


def set_consistent_rounding() -> None:
    """Set the mode of MKL such that a record's results do not depend on its position in the batch.

    This must be called before the first matrix product of a process, because MKL reads the
    environment variable once. A value set by the user is kept.
    """
    if not _is_intel():
        os.environ.setdefault(MKL_MODE_VARIABLE, MKL_MODE)


def _is_intel() -> bool:
    """Check whether the processor is by Intel."""
    name = os.environ.get("PROCESSOR_IDENTIFIER", "")  # on Windows
    try:
        name += Path("/proc/cpuinfo").read_text(errors="replace")[:4096]  # on Linux
    except OSError:
        pass
    return "GenuineIntel" in name


def describe_processor() -> list[str]:
    """Describe the processor's instruction set, torch's build and related environment variables."""
    torch = importlib.import_module("torch")  # slow import
    chosen = (name for name in os.environ if name.startswith(SETTING_PREFIXES))
    return [
        torch.backends.cpu.get_cpu_capability(),
        torch.__config__.show(),
        *(f"{name}={os.environ[name]}" for name in sorted(chosen)),
    ]


# --- compiled loops ---

GROUP = 32
"""Number of pairs of normal numbers in a group: 32 first numbers, then their 32 second numbers."""

JIT_SWITCH_VARIABLE = "NUMBA_DISABLE_JIT"
"""Environment variable that disables compiled code."""


def load_checked_loops(module: str, agrees: Callable[[ModuleType], bool]) -> ModuleType | None:
    """Import a module of compiled loops and test it; None if numba is missing or disabled.

    Args:
        module: Name of the module.
        agrees: Test of the module on public numbers; True if its results are correct.

    Raises:
        MachineError: The loops cannot be loaded, or the test fails. Torch is not used instead,
            because a resumed run, or a run with several processes, needs identical sums everywhere.
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
    except Exception as error:  # noqa: BLE001 - its files cannot be written, or are damaged
        reason = describe_system_error(error) or f"numba ended with {type(error).__name__}."
    raise MachineError(
        f"The compiled code of pasearch cannot be used. {reason} If its files are the reason, name "
        "a folder that can be written to in NUMBA_CACHE_DIR; then give the same command again, or "
        f"resume the run. A new run with {JIT_SWITCH_VARIABLE}=1 does without, more slowly."
    )


# --- threads ---


class ThreadTeam:
    """Threads that run one function together; the calling thread is one of them.

    Args:
        threads: Number of threads, including the calling one, 1 or more.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def run_all(self, part: Callable[[int], None]) -> None:
        """Call a function once in every thread, with the index of the thread, from 0.

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
            if len(others) < self.threads - 1:  # a call that was not submitted may still be queued
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = ThreadPoolExecutor(self.threads - 1)
            interrupted = None  # Ctrl-C of the user, raised after all threads have ended
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
        """Divide `count` items among the threads, and process the parts in parallel.

        Args:
            count: Number of items.
            part: Function of the thread index, the first item and the end of its part.
            even: All parts but the last end at a multiple of this number.
        """
        edges = [even * (count // even * place // self.threads) for place in range(self.threads)]
        edges.append(count)
        parts = list(pairwise(edges))
        self.run_all(lambda place: part(place, *parts[place]))
