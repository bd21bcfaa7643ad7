"""Sums over records: blocks in float32, totals in float64.

In a running float32 sum, one record would change the rounding of every later addition. So the
gradients of at most `BLOCK_RECORDS` records are added in float32, and the sums of blocks in float64
(`SumBuffers`).

If a record has several positions or views, its terms may be far larger than their sum. In a float32
sum they would change the rounding of other records' terms. Such sums use float64 within the block,
too.

Proof: docs/guarantees/floating-point.md ("The sum"), docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

BLOCK_RECORDS = 64
"""Maximum number of records whose gradients are added in float32, as one block."""
MAX_GROUP_BLOCKS = 2**16
"""Maximum number of blocks whose sums are added to one float64 total, as one group."""


class SumBuffers:
    """Buffers for the sum of one training step over records: one block float32, the total float64.

    Kernels write the sum of a block of at most `BLOCK_RECORDS` records into `views`, and
    `add_block` adds it to `totals`. So a record influences float32 rounding in its own block only,
    and one float64 addition per later block.

    Guarantee: one record changes `totals` by at most `SUM_ROUNDING` times the sensitivity.

    Args:
        parameters: Trainable parameters, in the network's order.

    Attributes:
        flats: Flat buffers, one per group of consecutive parameters with equal dtype and device.
            They hold the sum of a block; after `write_back`, the (noisy) sum of the step.
        views: One view of `flats` per parameter, in the parameter's shape.
        of: The same views, by id of the parameter.
        totals: Float64 buffers of the same sizes as `flats`.

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
        """Float64 sum of all blocks of the step; allocated on first use."""
        if not self._totals:
            self._totals = [torch.zeros_like(flat, dtype=torch.float64) for flat in self.flats]
        return self._totals

    @property
    def total_views(self) -> list[Tensor]:
        """One view of `totals` per parameter, in the parameter's shape."""
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
        """Finish the sum, and return the totals of all blocks added since `reset`."""
        if self._groups:
            self._end_group()
            for total, group in zip(self.totals, self._groups, strict=True):
                total.copy_(group)
            self._groups = []
        return self.totals

    def write_back(self) -> None:
        """Copy the totals to `flats` and `views`, rounded to the parameters' dtype."""
        for flat, total in zip(self.flats, self.totals, strict=True):
            flat.copy_(total)

    def _end_group(self) -> None:
        """Add the totals to the sum of groups, and set them to 0."""
        if not self._groups:
            self._groups = [torch.zeros_like(total) for total in self.totals]
        for group, total in zip(self._groups, self.totals, strict=True):
            group.add_(total)
            total.zero_()
        self._blocks = 0


@torch.no_grad()
def flatten_parameters(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Make parameters views of flat buffers, which are returned; gradients are removed."""
    buffers = SumBuffers(parameters)
    for parameter, view in zip(parameters, buffers.views, strict=True):
        view.copy_(parameter)
        parameter.data, parameter.grad = view, None
    return buffers.flats
