"""Who trains: this process, others of this machine, or a Ray cluster; the same to the bit.

    coordinator   has ledger, budget and keys: it charges, hands works over, and takes results back
    worker        is given works: charged before, each with the stream of its own training alone

What a work gives follows from the work, not from who does it, or when. So one that is lost with its
worker is done again, by the same keys: the same result, and no second charge.

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
    """Where works read what was opened for them; hashable, so that it is sent once."""

    @property
    def kept(self) -> bool:
        """Whether a worker may keep what it has read for its next work: public things only."""
        ...

    def load(self) -> Any:
        """Return what is read, on the machine of the coordinator."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Charged work, and everything that its result follows from: a worker is given no more.

    Args:
        key: Its name among others.
        do: Called with what `reads` hold, to return weights, say; can be pickled.
        reads: What was opened for it.
    """

    key: str
    do: Callable[..., bytes]
    reads: tuple[Source, ...] = ()

    def done(self) -> bytes:
        """Do it here."""
        return self.do(*(each.load() for each in self.reads))


class Executor(ABC):
    """One way to have works done; use it in a `with` block."""

    name: ClassVar[str]
    is_remote: ClassVar[bool] = False
    """Whether works leave this machine, so that even a single one is handed over."""
    gpus: float = 0.0
    """Of each work."""

    @property
    def device_of_works(self) -> str | None:
        """Where works that leave this machine compute: "cpu" or "cuda"; None where they stay."""
        return ("cuda" if self.gpus else "cpu") if self.is_remote else None

    def takes(self, count: int, *, long: bool) -> bool:
        """Return whether so many works are handed over; `long` if starting processes pays."""
        return count > 1

    def results(self, works: Sequence[Work], threads: int, room: int) -> Iterator[bytes]:
        """Yield what works give, in their order.

        Guarantee: the same to the bit for every executor and number of workers, and where a worker
        is lost.

        Args:
            works: Charged.
            threads: Of each.
            room: How many this machine has threads for at a time.

        Cost: none beside what was charged for the works.
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
        """Yield places of works and what they give, in any order."""

    def close(self) -> None:  # noqa: B027 - not every one has something to give back
        """Give back processes or connections, if there are any."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LocalExecutor(Executor):
    """Works are done one by one, in this process."""

    name = "local"

    def takes(self, count: int, *, long: bool) -> bool:
        return False

    def finished(
        self, works: Sequence[Work], threads: int, room: int
    ) -> Generator[tuple[int, bytes], None, None]:
        for place, work in enumerate(works):
            yield place, work.done()


class ProcessExecutor(Executor):
    """Works are done side by side, in processes of this machine.

    Args:
        workers: How many at a time; None: as many as there is room for.
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
        """Yield what finished works give; end early where a process was killed."""
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
        """End the processes that wait for work."""
        if self._begun:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            self._begun = False


class AutomaticExecutor(ProcessExecutor):
    """Processes of this machine where that pays, and this process alone where it does not."""

    name = "auto"

    def takes(self, count: int, *, long: bool) -> bool:
        return count > 1 and long


def _run_indexed(place: int, work: Work) -> tuple[int, bytes]:
    try:
        return place, work.done()
    finally:
        release_memory()


def release_memory() -> None:
    """Let this process have no more memory than it uses, where its C library can do that.

    What a training has kept for its next step would look like a leak: joblib ends such a process,
    begins another, and warns its user.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # another system's library
        return
