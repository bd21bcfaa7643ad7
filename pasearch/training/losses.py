"""The losses that a screening asks for, of private records in whole points and of public ones.

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
"""L: where a record's cross entropy is clipped, in nats; guessing among 54 classes costs it."""
MAX_SQUARED_ERROR = 0.5
"""L of half the square of an error, a number's target being in [0, 1]."""


@torch.no_grad()
def sum_loss_points(
    network: nn.Module, records: Records, *, device: str = "cpu", chunk: int = 8192
) -> int:
    """Return the sum over records of round(G min(loss, L) / L), in whole points.

    Guarantee: replacing one record by the null record changes the result by at most G: each
    record's points are clipped and rounded before they are added. A loss that is no number has G.

    The network has one output for a number, else one a class; its mode is given back. Null records
    add 0. `chunk` is how many records are looked at once; only memory depends on it.

    Cost: none by itself; add the noise of a `NoisySum(epsilon, most=GRID)` and charge its event.
    """
    bound = find_max_loss(records.y)
    total = 0
    for losses, mask in _iterate_losses(network, records, device, chunk):
        clipped = losses.nan_to_num(nan=bound, posinf=bound).clamp(min=0.0, max=bound)
        points = (clipped * (MAX_LOSS_POINTS / bound)).round().clamp(max=MAX_LOSS_POINTS).long()
        total += int(points[mask].sum())
    return total


def points_to_mean_loss(points: float, y: Tensor) -> float:
    """Return points, noisy or not, as a mean loss: points L / (G slots), all public but points."""
    return points * find_max_loss(y) / (MAX_LOSS_POINTS * max(1, len(y)))


def find_max_loss(y: Tensor) -> float:
    """Return L, by whether classes or numbers are predicted: public."""
    return MAX_SQUARED_ERROR if y.is_floating_point() else MAX_CROSS_ENTROPY


@torch.no_grad()
def compute_mean_loss(
    network: nn.Module, records: Records, *, device: str = "cpu", chunk: int = 8192
) -> float:
    """Return the mean loss of public records, neither clipped nor noisy; 0 if there are none.

    Raises:
        UsageError: The records were not declared public.
    """
    if records.public is not True:
        raise UsageError(
            "a validation query without noise is for records declared public: give public records, "
            "or release `sum_loss_points` with noise and charge it."
        )
    total, count = 0.0, 0
    for losses, mask in _iterate_losses(network, records, device, chunk):
        total += float(losses[mask].double().sum())
        count += int(mask.sum())
    return total / max(1, count)


def compute_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Return each record's own loss, (batch,): cross entropy, or half the square of an error."""
    if y.is_floating_point():
        return 0.5 * (outputs.squeeze(1) - y).square()
    return functional.cross_entropy(outputs, y, reduction="none")


@dataclass(frozen=True, slots=True)
class RecordLoss:
    """Each record's own loss, and what it asks of the outputs, in closed form.

    Args:
        y: Classes, or numbers, of the records.
    """

    y: Tensor

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the losses, (batch,)."""
        return compute_losses(outputs, self.y)

    def gradient(self, outputs: Tensor) -> Tensor:
        """Return the gradient of each loss with respect to its outputs, like these.

        softmax(outputs) - [class = y], or the error.
        """
        if self.y.is_floating_point():
            return outputs - self.y[:, None]
        shares = functional.softmax(outputs, dim=1)
        minus = shares.new_full((1, 1), -1.0).expand(len(shares), 1)
        return shares.scatter_add_(1, self.y[:, None], minus)


def _iterate_losses(
    network: nn.Module, records: Records, device: str, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each record's own loss and whether it is there; the network is as it was, after."""
    with _evaluating(network, device):
        for start in range(0, len(records.y), chunk):
            part = slice(start, start + chunk)
            mask = records.valid[part]
            outputs = network(records.x[part].to(device)).float().cpu()
            # A null record's class is never read: whatever stands there, its loss is a number.
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
