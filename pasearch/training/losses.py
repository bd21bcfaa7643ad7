"""Losses for screening: noisy integer points of private records, or exact means of public ones.

Source and proof: docs/guarantees/screening.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
"""Bound L of a record's cross entropy, nats: that of random predictions among 54 classes."""
MAX_SQUARED_ERROR = 0.5
"""Bound L of half the squared error, for a regression target scaled to [0, 1]."""


@torch.no_grad()
def sum_loss_points(
    network: nn.Module, records: Records, *, device: str = "cpu", chunk: int = 8192
) -> int:
    """Compute the sum over records of round(G min(loss, L) / L), in integer points.

    Guarantee: replacing one record by the null record changes the result by at most G: each
    record's points are clipped and rounded before the sum. A loss that is NaN counts as G.

    Args:
        network: Network with one output for a numeric target, else one per class; its mode is
            restored.
        records: Records; null records add 0.
        device: Device of the network, "cpu" or "cuda".
        chunk: Number of records processed at once; only memory depends on it.

    Cost: none by itself; add the noise of a `NoisySum(epsilon, most=MAX_LOSS_POINTS)` and charge
    its event.
    """
    bound = find_max_loss(records.y)
    total = 0
    for losses, mask in _iterate_losses(network, records, device, chunk):
        clipped = losses.nan_to_num(nan=bound, posinf=bound).clamp(min=0.0, max=bound)
        points = (clipped * (MAX_LOSS_POINTS / bound)).round().clamp(max=MAX_LOSS_POINTS).long()
        total += int(points[mask].sum())
    return total


def points_to_mean_loss(points: float, y: Tensor) -> float:
    """Convert points, noisy or not, to a mean loss, points L / (G n); all but points is public."""
    return points * find_max_loss(y) / (MAX_LOSS_POINTS * max(1, len(y)))


def find_max_loss(y: Tensor) -> float:
    """Find the bound L of the loss for classes or numeric targets: public."""
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
    """Compute each record's own loss, (batch,): cross entropy, or half the squared error."""
    if y.is_floating_point():
        return 0.5 * (outputs.squeeze(1) - y).square()
    return functional.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """Loss of each record, and its gradient in the outputs in closed form.

    Args:
        y: Classes, or regression targets, of the records, (batch,).
    """

    y: Tensor

    def __call__(self, outputs: Tensor) -> Tensor:
        """Compute the losses, (batch,)."""
        return compute_losses(outputs, self.y)

    def gradient(self, outputs: Tensor) -> Tensor:
        """Compute softmax(outputs) - [class = y], or the error: the gradient of each loss."""
        if self.y.is_floating_point():
            return outputs - self.y[:, None]
        shares = functional.softmax(outputs, dim=1)
        minus = shares.new_full((1, 1), -1.0).expand(len(shares), 1)
        return shares.scatter_add_(1, self.y[:, None], minus)


def _iterate_losses(
    network: nn.Module, records: Records, device: str, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the losses and the null-record mask, part by part; restore the network after."""
    with _evaluating(network, device):
        for start in range(0, len(records.y), chunk):
            part = slice(start, start + chunk)
            mask = records.valid[part]
            outputs = network(records.x[part].to(device)).float().cpu()
            # The class of a null record is never read; 0 keeps its loss finite.
            y = records.y[part].where(mask, 0)
            yield compute_losses(outputs, y), mask


@contextmanager
def _evaluating(network: nn.Module, device: str) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.to(device).eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
