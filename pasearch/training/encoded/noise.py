"""Noise of any density on tensors, and denoising of noisy sums (Kolmogorov-Smirnov).

Noise is drawn in float64, by NumPy with a 128-bit key or on CUDA. Module `training.noise` rounds it
so that the floating-point representation reveals nothing. Distribution functions that torch lacks
are read from tables. Their cells have equal widths in x / (|x| + scale), which suits both light and
heavy tails.

Denoising multiplies the noisy sum of each step by a weight:

    weight = KS(noisy sum, noise) = sup over x of |F_n(x) - F(x)|
    relative weight = weight / mean of the weights so far

F_n is the empirical distribution function of the d coordinates of the noisy sum, F the distribution
function of the noise on one coordinate. The weight is in [0, 1]: about .87 / sqrt(d) for pure
noise, at most 1 if the sum has one sign, and 1/2 if half of its large coordinates are negative. It
depends only on the released sum and the public distribution: post-processing, which costs nothing.

Without sorting, F_n and F are compared at the edges of cells. Both can only increase within a cell,
so this supremum is too small by at most the largest increase of F within a cell.

Source: Nasr et al., Sections 3.2 and 5; Bailey 1994 (Student's t from two uniforms). Proof:
docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting import densities
from pasearch.accounting.checks import check_boolean, check_positive_integer
from pasearch.accounting.densities import Density
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks
from pasearch.runs.keys import Stream
from pasearch.training.noise import (
    DENOISINGS,
    Denoising,
    Noise,
    NoiseSource,
    draw_device_normals,
    make_cuda_generator,
    run_in_thread,
)

TABLE_CELLS = 2**16
"""Number of cells of the table of a distribution function that torch lacks."""


def evaluate_cdf(density: Density, x: Tensor) -> Tensor:
    """Evaluate the cumulative distribution function at x, in the shape and dtype of x.

    Densities in `UNIT_TAILS` have a closed formula. For the others (Student's t, variance-gamma,
    tabulated) a table of 2^16 cells is interpolated, with an error of at most the largest increase
    within a cell.
    """
    if type(density) in UNIT_TAILS:
        unit = x / density.scale
        above = UNIT_TAILS[type(density)](density, unit.abs())
        return torch.where(unit > 0, 1.0 - above, above)
    knots = evaluate_cdf_at_edges_on(density, TABLE_CELLS, x.device).to(x.dtype)
    knots = torch.cat([knots.new_zeros(1), knots, knots.new_ones(1)])
    at = compute_cell_positions(x, density.scale, TABLE_CELLS)
    left = at.floor().clamp_(0, TABLE_CELLS - 1)
    whole_part = left.long()
    return torch.lerp(knots[whole_part], knots[whole_part + 1], (at - left).clamp_(0.0, 1.0))


def compute_cell_positions(x: Tensor, scale: float, cells: int) -> Tensor:
    """Compute the positions of numbers in units of cells, in [0, cells); 0 for NaN."""
    at = x / (x.abs() + scale)
    return at.add_(1.0).mul_(cells / 2).nan_to_num_(0.0).clamp_(0.0, cells - 0.5)


@lru_cache(maxsize=16)
def evaluate_cdf_at_edges(density: Density, cells: int) -> tuple[Tensor, float]:
    """Evaluate the distribution function at the edges between cells, float64, (cells - 1,).

    The second result is its largest increase within a cell.
    """
    middle = np.arange(1, cells) * (2.0 / cells) - 1.0
    inside = density.cdf(density.scale * middle / (1.0 - np.abs(middle)))
    growth = np.diff(inside, prepend=0.0, append=1.0)
    return torch.from_numpy(inside), float(growth.max())


@lru_cache(maxsize=16)
def evaluate_cdf_at_edges_on(density: Density, cells: int, device: torch.device) -> Tensor:
    """Evaluate the distribution function at the edges between cells, on a device; cached."""
    return evaluate_cdf_at_edges(density, cells)[0].to(device)


def _generalised_normal_tail(density: Density, x: Tensor) -> Tensor:
    """Compute P[noise > x] at scale 1 by the incomplete gamma function."""
    assert isinstance(density, densities.GeneralisedNormal)
    shape = torch.full_like(x, 1 / density.power)
    return torch.special.gammaincc(shape, x**density.power) / 2


UNIT_TAILS: dict[type[Density], Callable[[Density, Tensor], Tensor]] = {
    densities.GaussianNoise: lambda _, x: torch.special.ndtr(-x),
    densities.LaplaceNoise: lambda _, x: torch.exp(-x) / 2,
    densities.Logistic: lambda _, x: torch.sigmoid(-x),
    densities.Cauchy: lambda _, x: torch.atan2(torch.ones_like(x), x) / math.pi,
    densities.HyperbolicSecant: lambda _, x: (
        torch.atan(torch.exp(-math.pi / 2 * x)) * (2 / math.pi)
    ),
    densities.GeneralisedNormal: _generalised_normal_tail,
}
"""Functions that compute P[noise > x], x >= 0, at scale 1; for densities with a torch function."""


def begin_noise(
    density: Density,
    count: int,
    device: torch.device,
    stream: Stream,
    step: int,
    *,
    spare: bool = False,
) -> NoiseSource:
    """Start to draw the noise of a step; call the returned function to get it.

    Guarantee: the numbers depend only on density, count, stream, step and device type; different
    steps and streams use different random numbers.

    Args:
        density: Density of the noise on one coordinate.
        count: Number of coordinates.
        device: Device of the noise.
        stream: Random stream of the trial's noise.
        step: Number of the step.
        spare: Whether a thread is free to draw much noise while the gradients are computed.
    """

    def make() -> Noise:
        if isinstance(density, densities.GaussianNoise):
            return Noise(draw_device_normals(device, count, stream, step), scale=density.scale)
        smooth = draw_device_normals(device, count, stream.child("smoothing"), step)
        values = sample_noise(density.unit, count, device, stream, step)
        return Noise(smooth, values, density.scale)

    return run_in_thread(make, count, spare)


def sample_noise(
    density: Density, count: int, device: torch.device, stream: Stream, step: int
) -> Tensor:
    """Draw float64 noise of a density, (count,)."""
    if device.type == "cpu" or stream.secure or type(density) not in MAGNITUDE_SAMPLERS:
        drawn = torch.from_numpy(density.sample(stream.generator(step), count))
        return drawn.to(device)
    return draw_on_generator(density, count, make_cuda_generator(device, stream, step))


def draw_on_generator(density: Density, count: int, generator: torch.Generator) -> Tensor:
    """Draw float64 noise of a density in `MAGNITUDE_SAMPLERS`, (count,), on a CUDA device."""

    def uniform() -> Tensor:
        drawn = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
        return 1.0 - drawn  # never 0

    def gamma(shape: float) -> Tensor:
        shapes = torch.full((count,), shape, device=generator.device, dtype=torch.float64)
        # torch.distributions supports only the global generator.
        return torch._standard_gamma(shapes, generator=generator)  # pyright: ignore

    signs = torch.where(uniform() > 0.5, 1.0, -1.0)
    return signs * MAGNITUDE_SAMPLERS[type(density)](density, uniform, gamma) * density.scale


Uniform = Callable[[], Tensor]
Gamma = Callable[[float], Tensor]


def _draw_student_t(density: Density, uniform: Uniform, _: Gamma) -> Tensor:
    """Draw |Student's t| by Bailey's polar method."""
    assert isinstance(density, densities.StudentT)
    nu = density.freedom
    squares = nu * torch.expm1(torch.log(uniform()) * (-2.0 / nu))
    return squares.sqrt_() * torch.cos(2 * math.pi * uniform()).abs_()


def _draw_generalised_normal(density: Density, _: Uniform, gamma: Gamma) -> Tensor:
    """Draw gamma values to the power 1/p."""
    assert isinstance(density, densities.GeneralisedNormal)
    return gamma(1 / density.power) ** (1 / density.power)


def _draw_variance_gamma(density: Density, uniform: Uniform, gamma: Gamma) -> Tensor:
    """Draw |normal| times the square root of a gamma value."""
    assert isinstance(density, densities.VarianceGamma)
    normal = torch.sqrt(-2.0 * torch.log(uniform())) * torch.cos(2 * math.pi * uniform())
    return torch.sqrt(2.0 * gamma(density.shape)) * normal.abs_()


MAGNITUDE_SAMPLERS: dict[type[Density], Callable[[Density, Uniform, Gamma], Tensor]] = {
    densities.StudentT: _draw_student_t,
    densities.Cauchy: lambda _, uniform, __: torch.tan(math.pi / 2 * (1.0 - uniform())),
    densities.LaplaceNoise: lambda _, uniform, __: -torch.log(uniform()),
    densities.Logistic: lambda _, uniform, __: torch.log(2.0 / uniform() - 1.0),
    densities.HyperbolicSecant: lambda _, uniform, __: (
        -2 / math.pi * torch.log(torch.tan(math.pi / 4 * uniform()))
    ),
    densities.GeneralisedNormal: _draw_generalised_normal,
    densities.VarianceGamma: _draw_variance_gamma,
}
"""Functions that draw |noise| at scale 1 with torch; NumPy draws all other densities."""


def _check_cells(name: str, value: object) -> int | None:
    """Check a number of cells, or None."""
    if value is None:
        return None
    cells = check_positive_integer(name, value, most=2**24)
    if not cells >= 2:
        raise UsageError(f"{name} is {cells}: expected 2 or more (default: 4096).")
    return cells


@DENOISINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class KolmogorovSmirnov(Denoising):
    """Denoising that multiplies a noisy sum by its Kolmogorov-Smirnov distance from pure noise.

    Cost: nothing (post-processing).

    Args:
        cells: Number of cells into which the real line is divided, 2 or above. None: exact, by
            sorting.
        relative: Whether weights are divided by their mean over the steps so far, so that the
            learning rate keeps its meaning. False: as in the paper.
    """

    name: ClassVar[str] = "kolmogorov-smirnov"
    checks: ClassVar[FieldChecks] = {"relative": check_boolean, "cells": _check_cells}
    cells: int | None = 4096
    relative: bool = True

    def weight(self, noisy: Tensor, density: Density) -> Tensor:
        """Compute the Kolmogorov-Smirnov distance, a scalar in [0, 1] on the same device.

        Guarantee: the result depends only on the two arguments. With cells, it is too small by at
        most `error(density)`, and never too large except for rounding. It does not wait for the
        device.

        Args:
            noisy: Released noisy sum, (d,).
            density: Density of the noise on one coordinate.
        """
        if self.cells is None:
            return _distance_by_sorting(noisy, density)
        inside = evaluate_cdf_at_edges_on(density, self.cells, noisy.device)
        counts = _count_cells(compute_cell_positions(noisy, density.scale, self.cells), self.cells)
        below = counts.cumsum(0)[:-1] / len(noisy)
        return (below - inside).abs().amax()

    def error(self, density: Density) -> float:
        """Compute the maximum error by which `weight` may be too small; 0 without cells."""
        return 0.0 if self.cells is None else evaluate_cdf_at_edges(density, self.cells)[1]

    def describe(self) -> str:
        cells = "by sorting" if self.cells is None else f"in {self.cells:,} cells"
        mean = "" if self.relative else "; not divided by the mean of the weights so far"
        return (
            "each noisy sum is multiplied by its distance from pure noise, at no privacy cost "
            f"(Kolmogorov-Smirnov, {cells}{mean})"
        )


def _distance_by_sorting(noisy: Tensor, density: Density) -> Tensor:
    """Compute the Kolmogorov-Smirnov distance exactly."""
    if noisy.device.type == "cpu":  # NumPy sorts ten times faster than torch
        ordered = torch.from_numpy(np.sort(noisy.detach().numpy()))
    else:
        ordered = noisy.sort().values
    expected = evaluate_cdf(density, ordered).double()
    ranks = torch.arange(len(ordered) + 1, device=noisy.device, dtype=torch.float64)
    ranks /= len(ordered)
    return torch.maximum(ranks[1:] - expected, expected - ranks[:-1]).amax().to(noisy.dtype)


def _count_cells(at: Tensor, cells: int) -> Tensor:
    """Count the positions in each cell, (cells,); on CUDA without waiting for the device."""
    if at.device.type == "cpu":
        return torch.bincount(at.int(), minlength=cells)
    ones = torch.ones(at.shape, device=at.device, dtype=torch.int32)
    return ones.new_zeros(cells).scatter_add_(0, at.long(), ones)
