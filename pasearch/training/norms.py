"""Norms of per-example gradients at many positions, and what roundings may hide in them.

    g_i = D_i A_i^T         ||g_i||^2 from g_i itself, or sum((A_i^T A_i) * (D_i^T D_i))

Every norm that is returned is at least the exact one, up to the `SLACK` of the bounds.

Source: Bu et al. 2022; Higham 2002, section 3.1. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from functools import cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

ROUNDINGS = 2.0
"""How many roundings a term of a sum over positions meets, in units of a float's own: the product
and the sum, in the norm and again in the weighted sum, half a unit each."""

PIECE = 256
"""A longer norm is that of the norms of its pieces."""


FORMED = "formed"
"""Under which gradients are kept that a convolution's norms have formed."""

Kept = dict[str, tuple[Tensor, ...]]


class Factors(Protocol):
    """What a sum takes of a bound: see `bounding.bound`."""

    layered: ClassVar[bool]
    """Whether every layer's norm has a factor of its own."""

    def factors(self, norms: Tensor) -> Tensor:
        """Return what gradients are multiplied by, from their norms."""
        ...

    def within(self, norms: Tensor) -> Tensor | None:
        """Return whether each norm is within the bound; None where that is not counted."""
        ...


def bounded(
    norms: Tensor,
    total: Tensor,
    bounding: Factors | None,
    mask: Tensor,
    weights: Tensor | None,
    *,
    look: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what gradients are multiplied by, their norms, and whose are not finite, if any are.

    A null record has the factor 0; so has one that is not finite, whose norm is then infinite.

    Args:
        norms: (batch,), or (layers, batch) where every layer has its own bound, as is returned.
        total: The squared norms of all layers together, (batch,).
        bounding: None leaves gradients as they are.
        mask: bool, (batch,); False for null records.
        weights: (batch,), clamped to 0 to 1; None: 1.
        look: Whether to look for records that are not finite, for which a GPU is waited for. If
            not, the sums of a batch that has one may not be finite, and then must not be used.
    """
    factors = torch.ones_like(norms) if bounding is None else bounding.factors(norms)
    if weights is not None:
        factors = factors * weights.clamp(0.0, 1.0)
    if look and math.isfinite(float(total.sum())):
        return torch.where(mask, factors, 0.0), norms, None
    finite = total < math.inf
    factors = torch.where(mask & finite, factors, 0.0)
    return factors, norms.where(finite, math.inf), ~finite if look else None


def positions(
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    d: Tensor,
    a_norms: Tensor | None = None,
    kept: Kept | None = None,
) -> Tensor:
    """||g_i||^2 of a layer applied at L positions, too large by what rounding may hide.

    Terms at different positions may cancel: then g_i is small, and the rounding of the sum over
    positions, here or in `weighted_sum`, is not. It is at most u L ||A_i|| ||D_i|| for the weight
    and u L sqrt(L) ||D_i|| for the bias (Higham 2002, section 3.1), so that much is added. a is
    (batch, groups, inputs, L), d (batch, groups, outputs, L); a_norms are ||A_i||, or above. If
    g_i of the weight is formed it is kept, with that of the bias, as `FORMED`.
    """
    squares = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    inputs, length = a.shape[2:]
    rounding = ROUNDINGS * length * torch.finfo(a.dtype).eps if length > 1 else 0.0
    biased = bias is not None and bias.requires_grad
    d_norms = at_least_norms(d) if weight.requires_grad or biased else squares
    if weight.requires_grad:
        if formed_is_cheaper(inputs, d.shape[2], length):
            # Of three axes: of four, `matmul` takes half as long again.
            gradient = torch.bmm(d.flatten(0, 1), a.flatten(0, 1).transpose(1, 2))
            gradient = gradient.unflatten(0, a.shape[:2])
            computed = norms_along(gradient.flatten(1), 1)
            if kept is not None:
                kept[FORMED] = gradient, d.sum(dim=3)
        else:
            a64, d64 = a.double(), d.double()
            gram = (a64.transpose(2, 3) @ a64) * (d64.transpose(2, 3) @ d64)
            computed = gram.sum(dim=(1, 2, 3)).clamp(min=0.0).sqrt().to(squares.dtype)
        a_norms = at_least_norms(a) if a_norms is None else a_norms
        squares = squares + (computed + rounding * a_norms * d_norms).square()
    if biased:
        computed = norms_along(d.sum(dim=3).flatten(1), 1)
        squares = squares + (computed + rounding * length**0.5 * d_norms).square()
    return squares


def formed_is_cheaper(inputs: int, outputs: int, length: int) -> bool:
    """Whether g_i takes less time than two Gram matrices in float64, which count double.

    Each number of g_i, and each that is made a float64, takes as long as some eight products.
    """
    formed = (length + 8) * inputs * outputs
    return formed <= 2 * (length + 8) * length * (inputs + outputs)


def squares_of(gradients: Tensor, views: int) -> Tensor:
    """||g_i||^2 of formed gradients, (batch * views, ...), with what a sum over views may hide."""
    rows = gradients.reshape(len(gradients), -1)
    if views == 1:
        return rows.square().sum(dim=1)
    parts = rows.unflatten(0, (-1, views))
    sizes = norms_along(parts, 2).sum(dim=1)
    hidden = ROUNDINGS * views * torch.finfo(parts.dtype).eps * sizes
    return (norms(parts.sum(dim=1)) + hidden).square()


def side_by_side(values: Tensor, views: int) -> Tensor:
    """(batch * views, ..., L) to (batch, ..., views * L): the views of a record as positions."""
    if views == 1:
        return values
    return values.unflatten(0, (-1, views)).movedim(1, -2).flatten(-2)


def norms_along(values: Tensor, axis: int, out: Tensor | None = None) -> Tensor:
    """||v|| along one axis, right to 1e-6 of itself at any length.

    On a CPU torch adds the squares up in few float32 numbers: the norm of a million equal ones is
    too small by 1e-3. Of pieces it is by 5e-7, a tenth of the time that float64 takes.
    """
    length, norm = values.shape[axis], torch.linalg.vector_norm
    if length <= PIECE:
        return norm(values, dim=axis, out=out)
    piece = _equal_piece(length)
    whole = length - length % piece
    pieces = values if whole == length else values.narrow(axis, 0, whole)
    found = norm(pieces.unflatten(axis, (-1, piece)), dim=axis + 1)
    if whole < length:
        rest = values.narrow(axis, whole, length - whole)
        found = torch.cat([found, norm(rest, dim=axis, keepdim=True)], dim=axis)
    return norms_along(found, axis, out)


@cache
def _equal_piece(length: int) -> int:
    """Return the longest piece that a length is a multiple of, or `PIECE` if all are short."""
    equal = max(each for each in range(1, PIECE + 1) if length % each == 0)
    return equal if equal >= PIECE // 4 else PIECE


def at_least_norms(values: Tensor) -> Tensor:
    """||v_i|| or a little more, (batch,): one pass, for what roundings hide.

    A sum of n squares errs by n roundings at most, and the norm by half of that.
    """
    axes, many = tuple(range(1, values.ndim)), values[0].numel()  # no `flatten`, which may copy
    norms = torch.linalg.vector_norm(values, dim=axes)
    return norms * (1.0 + many * torch.finfo(values.dtype).eps)


def norms(values: Tensor) -> Tensor:
    """||v_i||, (batch,), of whatever lies behind the first axis."""
    return norms_along(values.flatten(1), 1)


def row_squares(values: Tensor) -> Tensor:
    """||v_i||^2, (batch,), too large by what squares of tiny numbers may lose to underflow."""
    lost = 2 * values.shape[1] * torch.finfo(values.dtype).tiny
    return norms_along(values, 1).square() + lost


def weighted(d: Tensor, factors: Tensor) -> Tensor:
    """Return rows times their factors."""
    return d * factors.view(-1, *(1 for _ in d.shape[1:]))


def zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    """Return the values with the marked rows set to 0."""
    # A copy of the same layout: sums over another are rounded otherwise.
    return values.clone().masked_fill_(bad.view(-1, *(1 for _ in values.shape[1:])), 0)
