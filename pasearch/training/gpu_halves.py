"""Numbers as bfloat16 halves on a GPU, as its products take them, and where those of a layer lie.

a number   the bfloat16 number next to it, and the one next to what is left (`halves`)
a row      first all the first halves, then as many second ones; behind the last are zeros

With a = a1 + a2 + rest and d = d1 + d2 + rest, what a record adds to a sum is
(d1 + d2)(a1 + a2)^T - d2 a2^T. As |rest| <= 2^-17 |a| and |a2| <= 2^-8 |a|, and the same for d, its
norm is at most |d| |a| ((1 + 2^-17)^2 + 2^-16) < |d| |a| (1 + 2^-14): norms are multiplied by that.

Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pasearch.training.clipping import SLACK as FLOAT32_SLACK

SLACK = FLOAT32_SLACK * (1.0 + 2.0**-14)  # factor on norms of gradients that are products of halves
EVEN, PART = 8, 4096
"""Halves that are read at once, and records that are halved at once."""


@dataclass(frozen=True, slots=True)
class Outs:
    """Where a layer's outputs go, the halves of those with dropout, and gradients and theirs."""

    out: Tensor
    goes: Tensor
    d: Tensor
    halved: Tensor

    @classmethod
    def of(cls, like: Tensor, rows: int, outputs: int) -> Outs:
        """Return places like some numbers."""
        goes, halved = (halves_of(like, rows, outputs) for _ in range(2))
        out, d = (like.new_zeros((rows, goes.shape[1] // 2)) for _ in range(2))
        return cls(out, goes, d, halved)


class HalvedRecords:
    """Records as halves, (n, 2, numbers of a record), and their squared norms, float64, (n,)."""

    def __init__(self, x: Tensor):
        rows = x.flatten(1)
        self.x = x  # so that nothing else comes to lie there
        shape, device = (len(rows), 2, rows.shape[1]), x.device
        self.halves = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self.squares = torch.empty(len(rows), dtype=torch.float64, device=device)
        parts = rows.split(PART), self.halves.split(PART), self.squares.split(PART)
        for part, own, squares in zip(*parts, strict=True):
            halve(part, own[:, 0], own[:, 1])
            squares.copy_(own.double().sum(1).square_().sum(1))
        self.ready = event_of(device)


def halves_of(like: Tensor, rows: int, width: int) -> Tensor:
    """Return a place for rows of halves, on a device."""
    return like.new_zeros((rows, 2 * EVEN * -(-width // EVEN)), dtype=torch.bfloat16)


def halve(values: Tensor, first: Tensor, second: Tensor) -> None:
    """Write the bfloat16 number next to each float32 one, and the one next to what is left."""
    first.copy_(values)
    second.copy_(values - first.float())


def halved(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return a flat place for the halves of numbers, with them."""
    first, second = (torch.empty_like(values, dtype=torch.bfloat16) for _ in range(2))
    halve(values.detach(), first, second)
    return first, second


def event_of(device: torch.device) -> Any:
    """Return what tells that all which was given to the device until now is done."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_for(event: Any) -> None:
    """Let what is given to the device from now on wait."""
    if event is not None:
        event.wait()
