"""Number of threads of a training, on which the last bits of a sum may depend.

    threads of a training  =  max(1, threads of the run / candidates of the generation)
    threads of a step      =  the same, or one if its products are small (`training.training_loop`)

Source: docs/rules.md, rule 11 (a resumed run computes releases in the same way).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def divide_threads(candidates: int, at_hand: int) -> tuple[int, int]:
    """Return the number of threads of a training, and the number of parallel trainings.

    Args:
        candidates: Number of candidates of the generation, 1 or more.
        at_hand: Number of threads that the run may use.

    >>> divide_threads(10, 2), divide_threads(4, 16), divide_threads(3, 16)
    ((1, 2), (4, 4), (5, 3))
    """
    each = max(1, at_hand // candidates)
    return each, max(1, at_hand // each)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads in the block, and restore it afterwards.

    Args:
        count: Number of threads, 1 or more.
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
