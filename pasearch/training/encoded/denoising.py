"""Denoising by the Kolmogorov-Smirnov distance of a noisy sum from pure noise.

    weight = KS(noisy sum, noise) = sup over x of |F_n(x) - F(x)|,      noisy sum  <-  weight * sum
    relative: weight / mean of the weights so far

F_n is the empirical distribution of the noisy sum's d coordinates, F that of the noise that was
added to one of them. The weight lies in [0, 1]: about .87 / sqrt(d) where the sum is all noise, at
most 1 where a signal has one sign, and 1/2 where it is as often above 0 as below. It is computed
from the released sum and the public law: post-processing, which costs nothing.

Without sorting: between the edges of cells, at which F is known, neither F_n nor F can do more than
grow, so the supremum over the edges is too small by no more than F's largest growth within a cell.

Source: Nasr et al., Section 3.2. Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting.checks import whole
from pasearch.accounting.densities import Density
from pasearch.errors import UsageError
from pasearch.registry import Checks
from pasearch.training.bounding.bound import flag
from pasearch.training.denoising import DENOISINGS, Denoising
from pasearch.training.encoded.laws import distribution, edges, edges_on, places

MOST_CELLS = 2**24
"""The most cells that a distance is counted in."""


def _cells(name: str, value: object) -> int | None:
    if value is None:
        return None
    cells = whole(name, value, most=MOST_CELLS)
    if not cells >= 2:
        raise UsageError(f"{name} is {cells}: expected 2 or more; usual is 4096.")
    return cells


@DENOISINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class KolmogorovSmirnov(Denoising):
    """Weigh a noisy sum by its distance from pure noise.

    Cost: price 0.

    Args:
        cells: How many the line is cut into, 2 or above; None sorts instead, without an error.
        relative: Weights are divided by their mean over the steps so far, so that a learning rate
            means the same with and without denoising; False is the paper's.
    """

    name: ClassVar[str] = "kolmogorov-smirnov"
    checks: ClassVar[Checks] = {"relative": flag, "cells": _cells}
    cells: int | None = 4096
    relative: bool = True

    def weight(self, noisy: Tensor, density: Density) -> Tensor:
        """Return the Kolmogorov-Smirnov distance, a scalar in [0, 1] on the same device.

        Arguments are as of `Denoising`.

        Guarantee: a function of its two arguments. By cells, it is at most `error(density)` too
        small, and never too large, but for rounding; and nothing waits for the device.
        """
        if self.cells is None:
            return _by_sorting(noisy, density)
        inside = edges_on(density, self.cells, noisy.device)
        counts = _counts(places(noisy, density.scale, self.cells), self.cells)
        below = counts.cumsum(0)[:-1] / len(noisy)
        return (below - inside).abs().amax()

    def error(self, density: Density) -> float:
        """Return by how much a weight may be too small."""
        return 0.0 if self.cells is None else edges(density, self.cells)[1]

    def words(self) -> str:
        cells = "by sorting" if self.cells is None else f"in {self.cells:,} cells"
        mean = "" if self.relative else "; not divided by the mean of the weights so far"
        return (
            "each noisy sum is weighed by its distance from pure noise, which costs nothing "
            f"(Kolmogorov-Smirnov, {cells}{mean})"
        )


def _by_sorting(noisy: Tensor, density: Density) -> Tensor:
    if noisy.device.type == "cpu":
        ordered = torch.from_numpy(np.sort(noisy.detach().numpy()))  # torch's takes ten times more
    else:
        ordered = noisy.sort().values
    expected = distribution(density, ordered).double()
    ranks = torch.arange(len(ordered) + 1, device=noisy.device, dtype=torch.float64)
    ranks /= len(ordered)
    return torch.maximum(ranks[1:] - expected, expected - ranks[:-1]).amax().to(noisy.dtype)


def _counts(at: Tensor, cells: int) -> Tensor:
    """Return how many lie in each cell; on CUDA without waiting for the device."""
    if at.device.type == "cpu":
        return torch.bincount(at.int(), minlength=cells)
    ones = torch.ones(at.shape, device=at.device, dtype=torch.int32)
    return ones.new_zeros(cells).scatter_add_(0, at.long(), ones)
