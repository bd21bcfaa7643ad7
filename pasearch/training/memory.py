"""How many records a step works on at once, so that its memory stays bounded whatever the batch.

    numbers a record   its inputs, outputs and their gradients in every layer, and its own gradient
                       where one is formed
    rows at once       `HELD` numbers / numbers a record; a larger batch is summed part by part

Both follow from the network and from public shapes alone, never from how much memory is free: so
the sums, to the last bit, are the same on every machine of one kind.

Source: docs/rules.md, rule 7 (large batches in chunks).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pasearch.training.watched import Watched

HELD = {"cpu": 2**28, "cuda": 2**31}
"""Float32 numbers that a step holds at once, about, by kind of device: 1 GiB and 8 GiB."""

TIMES = 4
"""How often a layer's output is held: itself, its gradient, and a copy of each where needed."""


@torch.no_grad()
def numbers_a_record(watched: Watched, records: Tensor) -> int:
    """Return how many numbers a step holds of each record, about.

    Args:
        watched: The network.
        records: Made-up ones, of the right shape.
    """
    found = [records[0].numel()]

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):
            found.append(TIMES * output.numel() // len(records))
        if isinstance(output, Tensor) and module in watched.kernels:
            found.append(watched.kernels[module].formed(module, output))

    hooks = [
        module.register_forward_hook(note)
        for module in watched.network.modules()
        if not isinstance(module, nn.Sequential)
    ]
    try:
        watched.network(records)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


def rows_at_once(watched: Watched, records: Tensor, device: str) -> int:
    """Return how many records fit, at least one: see the top. Arguments as above."""
    return max(1, HELD.get(device, HELD["cpu"]) // max(1, numbers_a_record(watched, records)))


def is_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory; on a processor torch raises a plain one."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "allocate" in str(error)
    )
