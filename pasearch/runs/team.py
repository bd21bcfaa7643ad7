"""Threads of machine code, which each do a part of one sum.

Torch's are not asked: between two sums they wait busily, and take a processor from these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise


class Team:
    """So many threads, the caller's among them.

    Args:
        threads: 1 or more.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def all(self, part: Callable[[int], None]) -> None:
        """Call it in every thread with its place, from 0 on.

        Guarantee: when this returns or raises, none of them is at it, nor will be.
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
            _wait_for(others)
        for each in others:
            each.result()

    def divided(self, count: int, part: Callable[[int, int, int], None], even: int = 1) -> None:
        """Call it in every thread with its place, and from where to where of so many it goes.

        All but the last end at a multiple of `even`.
        """
        edges = [even * (count // even * place // self.threads) for place in range(self.threads)]
        edges.append(count)
        parts = list(pairwise(edges))
        self.all(lambda place: part(place, *parts[place]))


def _wait_for(others: Sequence[Future[None]]) -> None:
    """Wait until all have ended, also where the user interrupts; then that is raised."""
    interrupted = None
    while not all(each.done() for each in others):
        try:
            wait(others)
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
