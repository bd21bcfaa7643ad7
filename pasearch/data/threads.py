"""How many threads compute a sum: its last bit may change with it.

    threads of a training  =  max(1, threads of the run / candidates of the generation)
    threads of a step      =  those, or one where its products are small (`training.trainer`)

Source: docs/rules.md, rule 11 (a resumed release is computed as it was).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def divide_threads(candidates: int, at_hand: int) -> tuple[int, int]:
    """Return the threads of a training, and how many trainings there is room for.

    Args:
        candidates: Of the generation, 1 or more.
        at_hand: Threads that the run may use.

    >>> shares(10, 2), shares(4, 16), shares(3, 16)
    ((1, 2), (4, 4), (5, 3))
    """
    each = max(1, at_hand // candidates)
    return each, max(1, at_hand // each)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with so many threads within the block, and as before behind it.

    Args:
        count: 1 or more.
    """
    import torch

    if (before := torch.get_num_threads()) == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
