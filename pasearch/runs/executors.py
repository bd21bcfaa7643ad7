"""Execution backends (this process, other processes, a Ray cluster) with bit-identical results.

    work          a computation whose privacy cost is charged, such as the training of a candidate
    coordinator   process with ledger, budget and keys: it charges, submits works, receives results
    worker        process that runs works; each work contains only the random stream of its training

The result of a work depends only on the work, not on the worker or the time. So if a worker is
lost, its work is repeated with the same keys: the result is the same, and nothing more is charged.

Source: docs/rules.md, rules 8, 10, 11 and 12.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self


class Source(Protocol):
    """Data that works read; hashable, so that they are sent to a cluster once."""

    @property
    def kept(self) -> bool:
        """Whether a worker may keep the data in memory for its next work; public data only."""
        ...

    def load(self) -> Any:
        """Load the data in the current process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Charged computation with everything on which its result depends.

    Args:
        key: Unique name of the work.
        do: Picklable function of the loaded `reads` that returns bytes, such as weights.
        reads: Data that the function reads.
    """

    key: str
    do: Callable[..., bytes]
    reads: tuple[Source, ...] = ()

    def run(self) -> bytes:
        """Run the work in this process, and return its result."""
        return self.do(*(each.load() for each in self.reads))


class Executor(ABC):
    """Execution backend for works; used in a `with` block."""

    name: ClassVar[str]
    is_remote: ClassVar[bool] = False
    """Whether works run on other machines, so that even a single work is submitted."""
    gpus: float = 0.0
    """Number of GPUs per work, possibly a fraction."""

    @property
    def device(self) -> str | None:
        """Device of works on other machines, "cpu" or "cuda"; None if works stay on this one."""
        return ("cuda" if self.gpus else "cpu") if self.is_remote else None

    def accepts(self, count: int, *, long: bool) -> bool:
        """Check whether this executor should run `count` works, instead of the caller itself.

        Args:
            count: Number of works.
            long: Whether the works take long compared with the start of processes.
        """
        return count > 1

    def run_in_order(self, works: Sequence[Work], threads: int, room: int) -> Iterator[bytes]:
        """Run works, and yield their results in the order of the works.

        Guarantee: bit-identical for every executor and number of workers, also if workers are lost.

        Args:
            works: Charged works.
            threads: Number of threads per work.
            room: Maximum number of parallel works on this machine, by its number of cores.

        Cost: none in addition to what was charged for the works.
        """
        found: dict[int, bytes] = {}
        with closing(self.run_in_any_order(works, threads, room)) as finished:
            for place in range(len(works)):
                while place not in found:
                    at, result = next(finished)
                    found[at] = result
                yield found.pop(place)

    @abstractmethod
    def run_in_any_order(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        """Run works, and yield (index of the work, result) in any order; as `run_in_order`."""

    def close(self) -> None:  # noqa: B027 - not every executor has something to close
        """End processes or connections, if there are any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalExecutor(Executor):
    """Executor that runs works one after another in this process."""

    name = "local"

    def accepts(self, count: int, *, long: bool) -> bool:
        return False

    def run_in_any_order(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        for place, work in enumerate(works):
            yield place, work.run()


class ProcessExecutor(Executor):
    """Executor that runs works in parallel processes of this machine.

    Args:
        workers: Maximum number of parallel works. None: decided by the number of cores.
    """

    name = "process"

    def __init__(self, workers: int | None = None):
        self._workers, self._begun = workers, False

    def run_in_any_order(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        left, count = dict(enumerate(works)), min(self._workers or room, len(works))
        if count > 1:
            with closing(self._in_processes(works, threads, count)) as found:
                for place, result in found:
                    del left[place]
                    yield place, result
        for place, work in left.items():
            yield place, work.run()

    def _in_processes(
        self, works: Sequence[Work], threads: int, count: int
    ) -> Generator[tuple[int, bytes], None, None]:
        """Run works in processes, and yield the results until a process is lost."""
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import BrokenProcessPool

        with parallel_config(backend="loky", inner_max_num_threads=threads):
            pool = Parallel(n_jobs=count, return_as="generator_unordered", batch_size=1)  # pyright: ignore[reportArgumentType]
            found: Any = pool(
                delayed(_run_indexed)(place, work) for place, work in enumerate(works)
            )
        self._begun, missing = True, len(works)
        try:
            for each in found:
                missing -= 1  # before `yield`, because a caller with all results does not return
                yield each
        except BrokenProcessPool:  # the system ended a process, for example for lack of memory
            pass
        finally:
            if missing:
                self.close()

    def close(self) -> None:
        """End the idle processes."""
        if self._begun:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            self._begun = False


class AutomaticExecutor(ProcessExecutor):
    """Executor that uses processes of this machine for long works, otherwise only this process."""

    name = "auto"

    def accepts(self, count: int, *, long: bool) -> bool:
        return count > 1 and long


def _run_indexed(place: int, work: Work) -> tuple[int, bytes]:
    """Run a work in a worker process, and return its index with the result."""
    try:
        return place, work.run()
    finally:
        release_memory()


def release_memory() -> None:
    """Return unused memory to the operating system, if the C library can do that.

    Otherwise joblib would take the memory that a training keeps for its next step for a leak: it
    would end the process, start another one, and warn the user.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another system's library
        return
