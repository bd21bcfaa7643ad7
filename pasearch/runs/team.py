"""Threads of machine code, which each do a part of one sum.

Torch's are not asked: between two sums they wait busily, and take a processor from these.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
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
        """Call it in every thread with its place, from 0 on; wait for all, whatever one raises."""
        if self._pool is None:
            return part(0)
        others = [self._pool.submit(part, place) for place in range(1, self.threads)]
        try:
            part(0)
        finally:
            wait(others)
        for each in others:
            each.result()

    def divided(self, count: int, part: Callable[[int, int, int], None]) -> None:
        """Call it in every thread with its place, and from where to where of so many it goes."""
        edges = [count * place // self.threads for place in range(self.threads + 1)]
        parts = list(pairwise(edges))
        self.all(lambda place: part(place, *parts[place]))
