"""Number of records that a step processes at once, so that memory does not grow with the batch.

    numbers per record   its inputs, outputs and their gradients in every layer, and its own
                         gradient where one is formed
    rows at once         `MAX_STEP_NUMBERS` / numbers per record; larger batches are split

Both follow from the network and from public shapes, never from free memory. So the sums are
identical, to the last bit, on every machine of one kind.

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
"""Approximate maximum of float32 numbers that a step holds, by device: 1 GiB and 8 GiB."""

MAX_KEPT_BYTES = 2**30  # freed bytes that a process keeps
MAX_KEPT_PIECE_BYTES = 2**27  # largest single block that it keeps

COPIES_PER_OUTPUT = 4
"""Number of copies of a layer's output: itself, its gradient, and a copy of each."""


@torch.no_grad()
def count_record_numbers(prepared: PreparedNetwork, records: Tensor) -> int:
    """Count the numbers that a step holds per record, approximately.

    Args:
        prepared: Prepared network.
        records: Synthetic records of the right shape.
    """
    found = [records[0].numel()]

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):
            found.append(COPIES_PER_OUTPUT * output.numel() // len(records))
        if isinstance(output, Tensor) and module in prepared.rules:
            found.append(prepared.rules[module].count_formed_gradient_values(module, output))

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
    """Limit the number of records processed at once, at least 1, to bound memory."""
    return max(
        1,
        MAX_STEP_NUMBERS.get(device, MAX_STEP_NUMBERS["cpu"])
        // max(1, count_record_numbers(prepared, records)),
    )


@cache
def keep_freed_memory() -> bool:
    """Keep the CPU memory that a step frees, for the next step of this process.

    Without it glibc returns large blocks to the system, which clears each page of a new one: a
    fifth of a step of a convolutional network. Settings of glibc's own variables (MALLOC_...,
    GLIBC_TUNABLES) are respected.

    Returns:
        Whether memory is kept.
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
    """Check whether an error reports missing memory; on a CPU torch raises a RuntimeError."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("allocate", "out of memory"))
    )
