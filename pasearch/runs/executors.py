"""Execution backends: this process, other processes, or a Ray cluster; the same results to the bit.

    coordinator   has ledger, budget and keys: it charges, submits works, and receives results
    worker        receives works: already charged, each with the stream of its training only

The result of a work depends only on the work, not on the worker or the time. So a work that is lost
with its worker is repeated with the same keys: the same result, and no second charge.

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
    """Opened data that works read; hashable, so that it is sent once."""

    @property
    def kept(self) -> bool:
        """Whether a worker may keep the data for its next work: only if they are public."""
        ...

    def load(self) -> Any:
        """Load the data on the coordinator's machine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A charged computation with everything that its result depends on.

    Args:
        key: Name of the work, unique among all works.
        do: Picklable function of the data in `reads` that returns bytes, such as weights.
        reads: Opened data that the function reads.
    """

    key: str
    do: Callable[..., bytes]
    reads: tuple[Source, ...] = ()

    def done(self) -> bytes:
        """Run the work in this process."""
        return self.do(*(each.load() for each in self.reads))


class Executor(ABC):
    """An execution backend for works; used in a `with` block."""

    name: ClassVar[str]
    is_remote: ClassVar[bool] = False
    """Whether works leave this machine, so that even a single one is submitted."""
    gpus: float = 0.0
    """GPUs per work."""

    @property
    def device_of_works(self) -> str | None:
        """Device of works that leave this machine: "cpu" or "cuda"; None if they stay."""
        return ("cuda" if self.gpus else "cpu") if self.is_remote else None

    def takes(self, count: int, *, long: bool) -> bool:
        """Check whether `count` works are submitted; `long` if starting processes pays off."""
        return count > 1

    def results(self, works: Sequence[Work], threads: int, room: int) -> Iterator[bytes]:
        """Yield the results of works in their order.

        Guarantee: the same to the bit for every executor and number of workers, and if workers are
            lost.

        Args:
            works: Charged works.
            threads: Number of threads per work.
            room: Number of works that this machine has threads for at a time.

        Cost: none in addition to the charge for the works.
        """
        found: dict[int, bytes] = {}
        with closing(self.finished(works, threads, room)) as finished:
            for place in range(len(works)):
                while place not in found:
                    at, result = next(finished)
                    found[at] = result
                yield found.pop(place)

    @abstractmethod
    def finished(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        """Yield indices of works and their results, in any order."""

    def close(self) -> None:  # noqa: B027 - not every one has something to give back
        """End processes or connections, if there are any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalExecutor(Executor):
    """Executor that runs works one after another in this process."""

    name = "local"

    def takes(self, count: int, *, long: bool) -> bool:
        return False

    def finished(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        for place, work in enumerate(works):
            yield place, work.done()


class ProcessExecutor(Executor):
    """Executor that runs works in parallel processes of this machine.

    Args:
        workers: Maximum number of parallel works; None: the number for which there is room.
    """

    name = "process"

    def __init__(self, workers: int | None = None):
        self._workers, self._begun = workers, False

    def finished(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        left, count = dict(enumerate(works)), min(self._workers or room, len(works))
        if count > 1:
            with closing(self._in_processes(works, threads, count)) as found:
                for place, result in found:
                    del left[place]
                    yield place, result
        for place, work in left.items():
            yield place, work.done()

    def _in_processes(
        self, works: Sequence[Work], threads: int, count: int
    ) -> Generator[tuple[int, bytes], None, None]:
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
                missing -= 1  # before it is handed out: who has all asks no more
                yield each
        except BrokenProcessPool:  # the system killed one, for its memory say
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
    """Executor that uses processes of this machine if that pays off, else this process alone."""

    name = "auto"

    def takes(self, count: int, *, long: bool) -> bool:
        return count > 1 and long


def _run_indexed(place: int, work: Work) -> tuple[int, bytes]:
    try:
        return place, work.done()
    finally:
        release_memory()


def release_memory() -> None:
    """Return unused memory to the system, if the C library can do that.

    Memory that a training keeps for its next step would look like a leak: joblib would end the
    process, start another, and warn the user.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another system's library
        return
