"""Sums over records and their positions or views, in float64.

A record's terms at several places may cancel, and be far larger than what is left of them: in a
float32 sum they would round away digits of what other records add.

Proof: docs/guarantees/floating-point.md ("The sum itself"), docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

PART = {"cpu": 2**22, "cuda": 2**27}
"""Most numbers that are made float64 at once, by kind of device, so that memory stays flat."""


def products(
    weight: Tensor, biases: Sequence[Tensor | None], a: Tensor, d: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a weight with d^T a, and biases with the sum of d.

    Args:
        weight: (outputs, inputs); like the biases, left out if it is not trained.
        biases: (outputs,) each, or None.
        a: (..., inputs).
        d: (..., outputs).
    """
    rows = a.flatten(0, -2), d.flatten(0, -2)
    if weight.requires_grad:
        found = torch.zeros(weight.shape, dtype=torch.float64, device=d.device)
        for own_a, own_d in _parts(*rows):
            found.addmm_(own_d.T, own_a)
        yield weight, found.to(d.dtype)
    for bias in biases:
        if bias is not None and bias.requires_grad:
            yield bias, over(rows[1], 0)


def of_filters(layer: nn.Conv2d, x: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of a convolution's filters, float64, like its weight.

    Args:
        layer: Of any stride, groups and dilation.
        x: What it is given, padded: (batch, channels, height, width).
        d: The gradient of its output, (batch, outputs, ...).
    """
    found = torch.zeros(layer.weight.shape, dtype=torch.float64, device=d.device)
    unfolded = layer.weight[0].numel() * layer.groups * d[0, 0].numel()  # torch does, in float64
    for own_x, own_d in _parts(x, d, more=unfolded):
        found += conv2d_weight(
            own_x, layer.weight.shape, own_d,
            stride=layer.stride,  # pyright: ignore[reportArgumentType]
            dilation=layer.dilation,  # pyright: ignore[reportArgumentType]
            groups=layer.groups,
        )  # fmt: skip
    return found


def over(values: Tensor, *axes: int) -> Tensor:
    """Return a sum over some axes."""
    return values.sum(dim=axes, dtype=torch.float64).to(values.dtype)


def _parts(*values: Tensor, more: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Yield some of their rows as float64, until all were there; each row takes more numbers."""
    of_row = more + sum(each[:1].numel() for each in values)
    rows = max(1, PART.get(values[0].device.type, PART["cpu"]) // max(1, of_row))
    for part in zip(*(each.split(rows) for each in values), strict=True):
        yield tuple(each.double() for each in part)
