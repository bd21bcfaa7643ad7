"""Limits of memory: the number of records that a step processes at once.

    values per record   inputs, outputs and their gradients in every layer, and the gradient of the
                        record in layers that form it
    rows at once        `MAX_STEP_NUMBERS` / values per record; larger batches are divided

Both depend on the network and on public shapes, not on the free memory. So the sums are
bit-identical on machines of the same type.

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
"""Approximate maximum count of float32 numbers in memory in a step, by device: 1 GiB and 8 GiB."""

MAX_KEPT_BYTES = 2**30
"""Maximum size of freed memory that a process keeps, bytes."""
MAX_KEPT_PIECE_BYTES = 2**27
"""Maximum size of a single freed block that a process keeps, bytes."""

COPIES_PER_OUTPUT = 4
"""Number of tensors of the size of a layer's output: the output, its gradient, a copy of each."""


@torch.no_grad()
def count_values_per_record(prepared: PreparedNetwork, records: Tensor) -> int:
    """Count the numbers per record that are in memory in a step, approximately.

    Args:
        prepared: Prepared network.
        records: Synthetic records with the shape of the real ones.
    """
    records = prepared.select_observed(records)
    found = [records[0].numel(), prepared.count_loose_values()]

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
        prepared.run_observed(records)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


def limit_rows_in_memory(prepared: PreparedNetwork, records: Tensor, device: str) -> int:
    """Compute the maximum number of records processed at once, at least 1.

    Args:
        prepared: Prepared network.
        records: Synthetic records with the shape of the real ones.
        device: Device type, "cpu" or "cuda".
    """
    return max(
        1,
        MAX_STEP_NUMBERS.get(device, MAX_STEP_NUMBERS["cpu"])
        // max(1, count_values_per_record(prepared, records)),
    )


@cache
def keep_freed_memory() -> bool:
    """Configure the C library to keep freed memory for the next step, instead of returning it.

    By default glibc returns large blocks to the operating system, which clears new ones. This takes
    a fifth of the time of a step of a convolutional network. If the user has set environment
    variables of glibc (MALLOC_..., GLIBC_TUNABLES), nothing is changed.

    Returns:
        Whether freed memory is kept.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        settle = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another system's library
        return False
    trim, pieces = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    return bool(settle(trim, MAX_KEPT_BYTES)) and bool(settle(pieces, MAX_KEPT_PIECE_BYTES))
