"""Losses for training and screening: sums of integer points, or exact means on public records.

Source and proof: docs/guarantees/screening.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from pasearch.errors import UsageError
from pasearch.training.screening import MAX_LOSS_POINTS

if TYPE_CHECKING:
    from pasearch.data.partitions import Records

MAX_CROSS_ENTROPY = 4.0
"""Maximum L of a record's cross entropy, nats: that of random predictions for 54 classes."""
MAX_SQUARED_ERROR = 0.5
"""Maximum L of a record's loss for a regression target scaled to [0, 1]: half the squared error."""


@torch.no_grad()
def sum_loss_points(
    network: nn.Module, records: Records, *, device: str = "cpu", chunk: int = 8192
) -> int:
    """Compute the private sum over records of round(G min(loss, L) / L), an integer.

    Guarantee: replacing one record by the null record changes the result by at most G =
    `MAX_LOSS_POINTS`, because the points of each record are clipped and rounded before the sum. A
    loss that is NaN counts as G.

    Args:
        network: Network with one output for a numeric target, otherwise one per class. Its training
            mode is restored.
        records: Records; null records add 0.
        device: Device of the network, "cpu" or "cuda".
        chunk: Number of records processed at once; it affects only memory.

    Cost: none in itself. Before it is used, the caller must add the noise of `NoisySum(epsilon,
    most=MAX_LOSS_POINTS)` and charge its event.
    """
    bound = find_max_loss(records.y)
    total = 0
    for losses, mask in _iterate_losses(network, records, device, chunk):
        clipped = losses.nan_to_num(nan=bound, posinf=bound).clamp(min=0.0, max=bound)
        points = (clipped * (MAX_LOSS_POINTS / bound)).round().clamp(max=MAX_LOSS_POINTS).long()
        total += int(points[mask].sum())
    return total


def points_to_mean_loss(points: float, y: Tensor) -> float:
    """Convert points, with or without noise, to a mean loss: points * L / (G n)."""
    return points * find_max_loss(y) / (MAX_LOSS_POINTS * max(1, len(y)))


def find_max_loss(y: Tensor) -> float:
    """Get the maximum L of the loss, for classes or numeric targets."""
    return MAX_SQUARED_ERROR if y.is_floating_point() else MAX_CROSS_ENTROPY


@torch.no_grad()
def compute_mean_loss(
    network: nn.Module, records: Records, *, device: str = "cpu", chunk: int = 8192
) -> float:
    """Compute the exact mean loss of public records; 0 if there are none.

    Raises:
        UsageError: The records were not declared public.
    """
    if records.public is not True:
        raise UsageError(
            "A validation query without noise requires public records. For private records, "
            "release `sum_loss_points` with noise and charge it."
        )
    total, count = 0.0, 0
    for losses, mask in _iterate_losses(network, records, device, chunk):
        total += float(losses[mask].double().sum())
        count += int(mask.sum())
    return total / max(1, count)


def compute_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Compute the loss of each record, (batch,): cross entropy, or half the squared error."""
    if y.is_floating_point():
        return 0.5 * (outputs.squeeze(1) - y).square()
    return functional.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """Loss of each record, and its gradient with respect to the outputs.

    Args:
        y: Classes, or regression targets, of the records, (batch,).
    """

    y: Tensor

    def __call__(self, outputs: Tensor) -> Tensor:
        """Compute the losses, (batch,)."""
        return compute_losses(outputs, self.y)

    def gradient(self, outputs: Tensor) -> Tensor:
        """Compute the gradient of each loss: softmax(outputs) - [class = y], or outputs - y."""
        if self.y.is_floating_point():
            return outputs - self.y[:, None]
        shares = functional.softmax(outputs, dim=1)
        minus = shares.new_full((1, 1), -1.0).expand(len(shares), 1)
        return shares.scatter_add_(1, self.y[:, None], minus)


def _iterate_losses(
    network: nn.Module, records: Records, device: str, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the losses of records and their mask (False for null records), part by part."""
    modes = [(module, module.training) for module in network.modules()]
    network.to(device).eval()
    try:
        for start in range(0, len(records.y), chunk):
            part = slice(start, start + chunk)
            mask = records.valid[part]
            outputs = network(records.x[part].to(device)).float().cpu()
            # The class of a null record is replaced by 0, so that its loss is finite.
            y = records.y[part].where(mask, 0)
            yield compute_losses(outputs, y), mask
    finally:
        for module, mode in modes:
            module.training = mode
