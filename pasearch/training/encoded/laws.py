"""Noise of any density on tensors: its distribution, and drawing it.

Distributions that torch has no function for are read from tables, whose cells are even in
x / (|x| + scale): that suits light and heavy tails.

Drawing: on a CPU by numpy in float64, under a 128-bit key; on CUDA in float64 too. What hides the
lattice of such draws is in `noise`.

Source: Nasr et al., Section 5; Bailey 1994 (Student's t from two uniforms). Proof:
docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting import densities
from pasearch.accounting.densities import Density
from pasearch.runs.keys import Stream
from pasearch.training.noise import Drawn, Noise, beside, cuda_generator, normals_on

TABLE = 2**16
"""Cells of the table of a distribution that torch has no function for."""


def distribution(density: Density, x: Tensor) -> Tensor:
    """Return the probability of x or less, of the shape and kind of x.

    Student's t, variance-gamma and tabulated densities are read from a table of 2^16 cells, with an
    error of at most its largest growth within a cell; the others are closed forms.
    """
    if type(density) in TAILS:
        unit = x / density.scale
        above = TAILS[type(density)](density, unit.abs())
        return torch.where(unit > 0, 1.0 - above, above)
    knots = edges_on(density, TABLE, x.device).to(x.dtype)
    knots = torch.cat([knots.new_zeros(1), knots, knots.new_ones(1)])
    at = places(x, density.scale, TABLE)
    left = at.floor().clamp_(0, TABLE - 1)
    whole_part = left.long()
    return torch.lerp(knots[whole_part], knots[whole_part + 1], (at - left).clamp_(0.0, 1.0))


def places(x: Tensor, scale: float, cells: int) -> Tensor:
    """Return where numbers lie, in cells from the left: from 0 to that many, what is not one 0."""
    at = x / (x.abs() + scale)
    return at.add_(1.0).mul_(cells / 2).nan_to_num_(0.0).clamp_(0.0, cells - 0.5)


@lru_cache(maxsize=16)
def edges(density: Density, cells: int) -> tuple[Tensor, float]:
    """Return the distribution at the edges between cells, float64, and its largest growth."""
    middle = np.arange(1, cells) * (2.0 / cells) - 1.0
    inside = density.cdf(density.scale * middle / (1.0 - np.abs(middle)))
    growth = np.diff(inside, prepend=0.0, append=1.0)
    return torch.from_numpy(inside), float(growth.max())


@lru_cache(maxsize=16)
def edges_on(density: Density, cells: int, device: torch.device) -> Tensor:
    """Return the distribution at the edges between cells, on a device."""
    return edges(density, cells)[0].to(device)


def _of_power(density: Density, x: Tensor) -> Tensor:
    assert isinstance(density, densities.GeneralisedNormal)
    shape = torch.full_like(x, 1 / density.power)
    return torch.special.gammaincc(shape, x**density.power) / 2


TAILS: dict[type[Density], Callable[[Density, Tensor], Tensor]] = {
    densities.GaussianNoise: lambda _, x: torch.special.ndtr(-x),
    densities.LaplaceNoise: lambda _, x: torch.exp(-x) / 2,
    densities.Logistic: lambda _, x: torch.sigmoid(-x),
    densities.Cauchy: lambda _, x: torch.atan2(torch.ones_like(x), x) / math.pi,
    densities.HyperbolicSecant: lambda _, x: (
        torch.atan(torch.exp(-math.pi / 2 * x)) * (2 / math.pi)
    ),
    densities.GeneralisedNormal: _of_power,
}
"""The probability above x, 0 or more, at scale 1: where torch has it."""


def begin_noise(
    density: Density,
    count: int,
    device: torch.device,
    stream: Stream,
    step: int,
    *,
    spare: bool = False,
) -> Drawn:
    """Begin to draw a step's noise of a density; call what is returned to get it.

    Guarantee: the numbers depend on density, count, stream, step and the kind of device alone; no
    two steps and no two streams share any.

    Where a thread is spare many are drawn in it, while the gradients are computed.
    """

    def make() -> Noise:
        if isinstance(density, densities.GaussianNoise):
            return Noise(normals_on(device, count, stream, step), scale=density.scale)
        smooth = normals_on(device, count, stream.child("smoothing"), step)
        values = sample_noise(density.unit, count, device, stream, step)
        return Noise(smooth, values, density.scale)

    return beside(make, count, spare)


def sample_noise(
    density: Density, count: int, device: torch.device, stream: Stream, step: int
) -> Tensor:
    """Return noise of a density as float64 draws it, (count,)."""
    if device.type == "cpu" or stream.secure or type(density) not in MAGNITUDES:
        drawn = torch.from_numpy(density.sample(stream.generator(step), count))
        return drawn.to(device)
    return drawn_on(density, count, cuda_generator(device, stream, step))


def drawn_on(density: Density, count: int, generator: torch.Generator) -> Tensor:
    """Draw on a generator's own device, float64; of a density in `MAGNITUDES`."""

    def uniform() -> Tensor:
        """Never 0."""
        drawn = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
        return 1.0 - drawn

    def gamma(shape: float) -> Tensor:
        shapes = torch.full((count,), shape, device=generator.device, dtype=torch.float64)
        # torch.distributions draws from the global generator alone.
        return torch._standard_gamma(shapes, generator=generator)  # pyright: ignore

    signs = torch.where(uniform() > 0.5, 1.0, -1.0)
    return signs * MAGNITUDES[type(density)](density, uniform, gamma) * density.scale


Uniform = Callable[[], Tensor]
Gamma = Callable[[float], Tensor]


def _student(density: Density, uniform: Uniform, _: Gamma) -> Tensor:
    assert isinstance(density, densities.StudentT)
    nu = density.freedom
    squares = nu * torch.expm1(torch.log(uniform()) * (-2.0 / nu))
    return squares.sqrt_() * torch.cos(2 * math.pi * uniform()).abs_()


def _powered(density: Density, _: Uniform, gamma: Gamma) -> Tensor:
    assert isinstance(density, densities.GeneralisedNormal)
    return gamma(1 / density.power) ** (1 / density.power)


def _mixed(density: Density, uniform: Uniform, gamma: Gamma) -> Tensor:
    assert isinstance(density, densities.VarianceGamma)
    normal = torch.sqrt(-2.0 * torch.log(uniform())) * torch.cos(2 * math.pi * uniform())
    return torch.sqrt(2.0 * gamma(density.shape)) * normal.abs_()


MAGNITUDES: dict[type[Density], Callable[[Density, Uniform, Gamma], Tensor]] = {
    densities.StudentT: _student,
    densities.Cauchy: lambda _, uniform, __: torch.tan(math.pi / 2 * (1.0 - uniform())),
    densities.LaplaceNoise: lambda _, uniform, __: -torch.log(uniform()),
    densities.Logistic: lambda _, uniform, __: torch.log(2.0 / uniform() - 1.0),
    densities.HyperbolicSecant: lambda _, uniform, __: (
        -2 / math.pi * torch.log(torch.tan(math.pi / 4 * uniform()))
    ),
    densities.GeneralisedNormal: _powered,
    densities.VarianceGamma: _mixed,
}
"""|noise| at scale 1, drawn by torch; a tabulated density is drawn by numpy on every device."""
