"""A density read from a function: log u linear between knots, and straight after the last one.

A user's own density becomes one of these: what is priced is what is drawn, whatever function it was
read from, and a file holds numbers and no code.

Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy import special

from pasearch.accounting.checks import nonnegative, positive
from pasearch.accounting.density import Density, Generator, law_words
from pasearch.accounting.profiles import Array
from pasearch.accounting.quadrature import kronrod
from pasearch.errors import UsageError

MOST_KNOTS = 1000
MOST_FALL = 600.0
"""How far a table's logarithm may fall: what lies lower has no probability that a float holds, and
a piece so steep that an integral might not see it could still matter to a divergence."""
EVEN = 1e-9
"""How far log u(x) and log u(-x) of a user's function may differ, for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulated(Density):
    """A density whose logarithm is linear between knots, and goes on straight after the last.

    Args:
        knots: Ascending, 2 to 1000; the first is 0.
        log_values: log z at the knots, up to a constant; may not rise, the last must fall.
    """

    name: ClassVar[str] = "tabulated"
    knots: tuple[float, ...]
    log_values: tuple[float, ...]

    def __post_init__(self) -> None:
        Density.__post_init__(self)
        for name in ("knots", "log_values"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if len(self.knots) != len(self.log_values) or not 2 <= len(self.knots) <= MOST_KNOTS:
            raise UsageError(
                f"knots has {len(self.knots)} numbers and log_values {len(self.log_values)}: "
                f"expected as many of each, from 2 to {MOST_KNOTS}."
            )
        steps = np.diff(self.knots)
        if not (self.knots[0] == 0 and (steps > 1e-9 * self.knots[-1]).all()):
            raise UsageError("knots: expected ascending numbers that start at 0, not too close.")
        falls = np.diff(self.log_values)
        if not ((falls <= 0).all() and falls[-1] < 0):
            worst = self.knots[int(np.argmax(falls)) + 1]
            raise UsageError(
                f"log_values rises before |x| = {worst:g}, or is level at the end: the density "
                "must fall with |x| (one mode, at 0). Otherwise its divergence integral I_k(t) "
                "may fall as the shift t grows, and the codebook would not be the worst case."
            )
        if not self.log_values[0] - self.log_values[-1] <= MOST_FALL:
            raise UsageError(
                f"log_values falls by {self.log_values[0] - self.log_values[-1]:g}: expected at "
                f"most {MOST_FALL:g}. Let the last knot be nearer to 0: beyond it the table goes "
                "on straight."
            )

    @property
    def grain(self) -> float:
        """The first knot: between knots it does not bend at all."""
        return self.knots[1]

    @property
    def breaks(self) -> Array:
        """Its knots, and where its tail falls: by a power of e^1, e^10, e^100, e^600."""
        falls = np.array([1.0, 10.0, 100.0, MOST_FALL]) / -_pieces(self.unit).slopes[-1]
        return np.append(self.knots, self.knots[-1] + falls)

    @property
    def log_concave(self) -> bool:
        """Whether no piece falls less steeply than the one before."""
        return bool((np.diff(_pieces(self.unit).slopes) <= 0).all())

    @property
    def inverse_convex(self) -> bool:
        """The same: at a knot where the slope rises, 1/z bends down."""
        return self.log_concave

    def unit_log_density(self, x: Array) -> Array:
        table = _pieces(self.unit)
        beyond = np.maximum(x - self.knots[-1], 0.0) * table.slopes[-1]
        return np.interp(x, self.knots, table.logs) + beyond

    def unit_tail(self, x: Array) -> Array:
        table = _pieces(self.unit)
        at = np.minimum(np.searchsorted(self.knots, x, side="right") - 1, len(self.knots) - 1)
        left = x - np.array(self.knots)[at]
        part = np.exp(table.logs[at]) * _exponential_mass(table.slopes[at], left)
        return np.clip(np.append(np.cumsum(table.masses[::-1])[::-1], 0.0)[at] - part, 0.0, 0.5)

    def unit_moments(self) -> tuple[float, float, float]:
        table = _pieces(self.unit)
        x, weights, _ = kronrod(np.array(self.knots))
        density = weights.ravel() * np.exp(self.unit_log_density(x.ravel()))
        end, rate, mass = self.knots[-1], -table.slopes[-1], table.masses[-1]
        first = density @ x.ravel() + mass * (end + 1 / rate)
        second = density @ x.ravel() ** 2 + mass * (end**2 + 2 * end / rate + 2 / rate**2)
        return float(2 * first), float(2 * second), float(2 * table.masses @ table.slopes**2)

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: a piece, then the inverse of its own law."""
        table = _pieces(self.unit)
        ends = np.cumsum(table.masses)
        at = np.searchsorted(ends, generator.random(size) * ends[-1], side="right")
        at = np.minimum(at, len(ends) - 1)
        # The law within a piece is that of an exponential, cut at the piece's width.
        widths = np.append(np.diff(self.knots), 0.0)[at]
        last, falls = at == len(ends) - 1, -table.slopes[at] * widths
        uniform = generator.random(size)
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = -np.log1p(uniform * np.expm1(-np.where(last, np.inf, falls))) / -table.slopes[at]
        return np.array(self.knots)[at] + np.where(last | (falls > 1e-9), cut, uniform * widths)

    def unit_steepest(self, x: float) -> float:
        """The steepest piece at x or beyond."""
        slopes = _pieces(self.unit).slopes
        at = int(np.searchsorted(self.knots, x, side="right")) - 1
        return float(-np.min(slopes[at:]))

    def words(self) -> str:
        return law_words(f"{self.name}, {len(self.knots):,} knots from 0 to {self.knots[-1]:g}")


def tabulated(
    log_kernel: Callable[[Array], Array],
    *,
    reach: float,
    scale: float = 1.0,
    knots: int = 100,
    even: bool = False,
) -> Tabulated:
    """Read a density from a function: its logarithm, up to a constant, at so many knots.

    Between them, and beyond the last, the result is straight: another density than the function's,
    but the one that is priced *and* drawn.

    Args:
        log_kernel: From (m,) numbers to (m,) logarithms.
        reach: The last knot, in units of the scale; a good one leaves little probability beyond.
        scale: The unit of the function's argument.
        knots: How many, 8 to 1000: closer near 0.
        even: The function is one of |x| and never called below 0.

    Raises:
        UsageError: A value that is not finite, rises with |x|, or differs between x and -x.
    """
    if not (isinstance(knots, int) and 8 <= knots <= MOST_KNOTS):
        raise UsageError(f"knots is {knots!r}: expected a whole number from 8 to {MOST_KNOTS}.")
    bend = 3.0  # the last knots are e^3 / 2 times as far apart as the first, about
    x = positive("reach", reach) * np.sinh(bend * np.linspace(0, 1, knots)) / math.sinh(bend)
    values = np.asarray(log_kernel(x), dtype=float)
    if values.shape != x.shape or not np.isfinite(values).all():
        raise UsageError(
            "log_kernel gives values that are not finite, or of another shape: expected a finite "
            "log density at every knot from 0 to the reach. Choose a smaller reach."
        )
    if not even:
        mirrored = np.asarray(log_kernel(-x), dtype=float)
        gap = np.abs(mirrored - values)
        if not (gap <= EVEN * (1 + np.abs(values))).all():
            worst = x[int(np.argmax(np.where(np.isfinite(gap), gap, math.inf)))]
            raise UsageError(
                f"log_kernel differs between {worst:g} and {-worst:g}: the noise must be "
                "symmetric, or removing a record could cost more than adding one: use a function "
                "of |x|."
            )
    return Tabulated(scale=scale, knots=tuple(x.tolist()), log_values=tuple(values.tolist()))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The normalised log values at the knots; each piece's slope and mass, the tail's last."""

    logs: Array
    slopes: Array
    masses: Array


@lru_cache(maxsize=64)
def _pieces(density: Tabulated) -> _Pieces:
    knots, logs = np.array(density.knots), np.array(density.log_values)
    logs = logs - logs[0]
    slopes = np.diff(logs) / np.diff(knots)
    masses = np.exp(logs[:-1]) * _exponential_mass(slopes, np.diff(knots))
    masses = np.append(masses, np.exp(logs[-1]) / -slopes[-1])
    total = 2 * masses.sum()
    return _Pieces(logs - math.log(total), np.append(slopes, slopes[-1]), masses / total)


def _exponential_mass(slopes: Array, widths: Array) -> Array:
    """Return the integral of exp(slope x) from 0 to the width."""
    return special.exprel(slopes * widths) * widths


def _numbers(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list)):
        raise UsageError(f"{name} is {values!r}: expected a tuple of numbers.")
    check = nonnegative if name == "knots" else _finite
    return tuple(check(name, value) for value in values)


def _finite(name: str, value: object) -> float:
    """A finite number, 0 below and above."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return -positive(name, -value)
    return nonnegative(name, value)
