"""Sums over records: blocks in float32, totals in float64.

A running float32 sum lets one record decide how every later addition is rounded. So the gradients
of at most `BLOCK` records are added in float32, and the sums of blocks in float64 (`SumBuffers`).

Where a record has several positions or views, its terms may cancel and be far larger than what is
left of them: in a float32 sum they would round away digits of what other records add. Such sums are
float64 within the block, too.

Proof: docs/guarantees/floating-point.md ("The sum"), docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

BLOCK_RECORDS = 64
"""Records whose gradients are added in float32; the sums of blocks are added in float64."""
MAX_GROUP_BLOCKS = 2**16
"""Blocks whose sums are added to one float64 total; the totals of groups are added in turn."""


class SumBuffers:
    """Buffers for one step's sum over records: one block of them in float32, all in float64.

    Kernels write the sum of one block of at most `BLOCK` records into `views`; `add_block` adds it
    to `totals`. So one record changes how the sum is rounded within its own block, and by one
    float64 addition per later block.

    Guarantee: one record moves `totals` by at most `SUM_ROUNDING` times the sensitivity.

    Args:
        parameters: The network's trainable parameters, in their order.

    Attributes:
        flats: One flat buffer per run of parameters of one dtype and device: the sum of a block,
            and after `write_back` the step's (noisy) sum.
        views: One view of `flats` per parameter.
        of: The same views by a parameter's id.
        totals: Like `flats`, float64.

    Proof: docs/guarantees/floating-point.md ("The sum").
    """

    __slots__ = ("_blocks", "_groups", "_totals", "flats", "of", "views")

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self.views: list[Tensor] = []
        self.flats: list[Tensor] = []
        edges = [0]
        for place, (first, second) in enumerate(pairwise(parameters), 1):
            if (first.dtype, first.device) != (second.dtype, second.device):
                edges.append(place)
        for low, high in pairwise([*edges, len(parameters)]):
            own = parameters[low:high]
            flat = torch.zeros(
                sum(p.numel() for p in own), dtype=own[0].dtype, device=own[0].device
            )
            self.flats.append(flat)
            parts = flat.split([p.numel() for p in own])
            self.views += [part.view(p.shape) for part, p in zip(parts, own, strict=True)]
        self.of = {id(p): view for p, view in zip(parameters, self.views, strict=True)}
        self._totals: list[Tensor] = []
        self._groups: list[Tensor] = []
        self._blocks = 0

    @property
    def totals(self) -> list[Tensor]:
        """The float64 totals, allocated on first use."""
        if not self._totals:
            self._totals = [torch.zeros_like(flat, dtype=torch.float64) for flat in self.flats]
        return self._totals

    @property
    def total_views(self) -> list[Tensor]:
        """One view of `totals` per parameter."""
        found: list[Tensor] = []
        for total in self.totals:
            start = 0
            while start < len(total):
                shape = self.views[len(found)].shape
                found.append(total[start : start + shape.numel()].view(shape))
                start += shape.numel()
        return found

    def reset(self) -> None:
        """Set the totals to 0, before the first block of a step."""
        self._blocks, self._groups = 0, []
        for total in self.totals:
            total.zero_()

    def add_block(self) -> None:
        """Add the block's sum in `views` to the totals."""
        if self._blocks == MAX_GROUP_BLOCKS:
            self._end_group()
        self._blocks += 1
        for total, flat in zip(self.totals, self.flats, strict=True):
            total.add_(flat)

    def end(self) -> list[Tensor]:
        """Return the totals of all blocks added since `reset`."""
        if self._groups:
            self._end_group()
            for total, group in zip(self.totals, self._groups, strict=True):
                total.copy_(group)
            self._groups = []
        return self.totals

    def write_back(self) -> None:
        """Round the totals to the parameters' dtype, into `flats` and `views`."""
        for flat, total in zip(self.flats, self.totals, strict=True):
            flat.copy_(total)

    def _end_group(self) -> None:
        if not self._groups:
            self._groups = [torch.zeros_like(total) for total in self.totals]
        for group, total in zip(self._groups, self.totals, strict=True):
            group.add_(total)
            total.zero_()
        self._blocks = 0


@torch.no_grad()
def flatten_parameters(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Move parameters into flat buffers, which are returned; they stay views, without gradients."""
    buffers = SumBuffers(parameters)
    for parameter, view in zip(parameters, buffers.views, strict=True):
        view.copy_(parameter)
        parameter.data, parameter.grad = view, None
    return buffers.flats
