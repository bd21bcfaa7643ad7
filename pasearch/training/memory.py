"""How many records a step works on at once, so that its memory stays bounded whatever the batch.

    numbers a record   its inputs, outputs and their gradients in every layer, and its own gradient
                       where one is formed
    rows at once       `HELD` numbers / numbers a record; a larger batch is summed part by part

Both follow from the network and from public shapes alone, never from how much memory is free: so
the sums, to the last bit, are the same on every machine of one kind.

What a step gives back, the next one asks for again: see `keep_freed_memory`.

Source: docs/rules.md, rule 7 (large batches in chunks).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import torch
from torch import Tensor, nn

from pasearch.training.per_example import PreparedNetwork

MAX_STEP_NUMBERS = {"cpu": 2**28, "cuda": 2**31}
"""Float32 numbers that a step holds at once, about, by kind of device: 1 GiB and 8 GiB."""

MAX_KEPT_BYTES, MAX_KEPT_PIECE_BYTES = 2**30, 2**27
"""Bytes that a process keeps of what it gave back, and the most of one piece that is kept."""

COPIES_PER_OUTPUT = 4
"""How often a layer's output is held: itself, its gradient, and a copy of each where needed."""


@torch.no_grad()
def count_record_numbers(prepared: PreparedNetwork, records: Tensor) -> int:
    """Return how many numbers a step holds of each record, about.

    Args:
        prepared: The network.
        records: Made-up ones, of the right shape.
    """
    found = [records[0].numel()]

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):
            found.append(COPIES_PER_OUTPUT * output.numel() // len(records))
        if isinstance(output, Tensor) and module in prepared.rules:
            found.append(prepared.rules[module].count_formed_numbers(module, output))

    hooks = [
        module.register_forward_hook(note)
        for module in prepared.network.modules()
        if not isinstance(module, nn.Sequential)
    ]
    try:
        prepared.network(records)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


def limit_rows_in_memory(prepared: PreparedNetwork, records: Tensor, device: str) -> int:
    """Return how many records fit, at least one: see the top. Arguments as above."""
    return max(
        1,
        MAX_STEP_NUMBERS.get(device, MAX_STEP_NUMBERS["cpu"])
        // max(1, count_record_numbers(prepared, records)),
    )


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that a step on a processor gives back, for the next one.

    Without it glibc gives large pieces back to the system, which has to empty each page of a new
    one: a fifth of a step of a convolutional network. Whoever has set glibc's own variables
    (MALLOC_..., GLIBC_TUNABLES) has said how it shall be.

    Returns:
        Whether it will.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        settle = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system's library
        return False
    trim, pieces = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    return bool(settle(trim, MAX_KEPT_BYTES)) and bool(settle(pieces, MAX_KEPT_PIECE_BYTES))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory; on a processor torch raises a plain one."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("allocate", "out of memory"))
    )
