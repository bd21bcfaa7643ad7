"""How many threads compute a sum: its last bit may change with it.

Source: docs/rules.md, rule 11 (a resumed release is computed as it was).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads within the block, and as before behind it.

    Args:
        count: 1 or more.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
