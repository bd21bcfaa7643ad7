"""What every density of noise is: even, falling on both sides of 0, positive, with a scale.

    z(x) = u(|x| / scale) / scale

These are the conditions under which `additive` has a proof. Fisher information is that of the
location, E[(d log z / dx)^2].

Source: Nasr, Shokri and Houmansadr 2020, Section 5. Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np

from pasearch.accounting.checks import positive
from pasearch.accounting.profiles import Array
from pasearch.registry import Checks, Stage

Generator = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Density(Stage):
    """A symmetric density on the line.

    Methods that begin with `unit` are of the density whose scale is 1; their x is 0 or above.

    Args:
        scale: Above 0; what it means beside the variance is each density's own.
    """

    name: ClassVar[str]
    light: ClassVar[bool] = False
    """Whether it falls so fast that a shift's density ratio has no bound."""
    checks: ClassVar[Checks] = {"scale": positive}
    scale: float = 1.0

    @abstractmethod
    def unit_log_density(self, x: Array) -> Array:
        """Return log z(x)."""

    @abstractmethod
    def unit_tail(self, x: Array) -> Array:
        """Return the probability above x, at most 1/2."""

    @abstractmethod
    def unit_moments(self) -> tuple[float, float, float]:
        """Return E|z|, E z^2 and the Fisher information; `inf` where there is none."""

    @abstractmethod
    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|, (size,)."""

    @abstractmethod
    def unit_steepest(self, x: float) -> float:
        """Return an upper bound on |d log z / dx| at x and beyond."""

    @property
    def grain(self) -> float:
        """A width over which the unit density hardly bends, for quadrature."""
        return 0.5

    @property
    def breaks(self) -> Array:
        """Where the unit density is not smooth, at 0 or above."""
        return np.zeros(1)

    @property
    def log_concave(self) -> bool:
        """Whether log z is concave: then log I_k(t) of `additive` is convex."""
        return True

    @property
    def inverse_convex(self) -> bool:
        """Whether 1/z is convex, as it is where log z is concave: then I_k(t)^(1/(k-1)) is too."""
        return True

    @property
    def mean_absolute(self) -> float:
        """E|z|: the l1 error of one coordinate."""
        return self.unit_moments()[0] * self.scale

    @property
    def variance(self) -> float:
        """E z^2, `inf` if there is none."""
        return self.unit_moments()[1] * self.scale**2

    @property
    def standard_deviation(self) -> float:
        """The l2 error of one coordinate."""
        return math.sqrt(self.variance)

    @property
    def fisher_information(self) -> float:
        """Of the location."""
        return self.unit_moments()[2] / self.scale**2

    @property
    def unit(self) -> Self:
        """The same density at scale 1."""
        return self.with_scale(1.0)

    def with_scale(self, scale: float) -> Self:
        """Return the same density at another scale."""
        return replace(self, scale=scale)

    def cdf(self, x: Array) -> Array:
        """Return the probability of x or less, of the shape of x."""
        values = np.asarray(x, dtype=float) / self.scale
        above = self.unit_tail(np.abs(values))
        return np.where(values > 0, 1.0 - above, above)

    def sample(self, generator: Generator, size: int | tuple[int, ...]) -> Array:
        """Draw from it, float64 of this size."""
        count = math.prod(size) if isinstance(size, tuple) else size
        signs = 1.0 - 2.0 * generator.integers(0, 2, count)
        return (signs * self.unit_magnitude(generator, count) * self.scale).reshape(size)

    def unit_log_rest(self, shift: float, orders: Array, start: float) -> Array:
        """Bound the log of what an excess integral (see `additive`) has beyond its start.

        Where the score is at most s, the log ratio of the density and its shift is at most
        r = s shift, and what is left is at most 4 sinh(k r / 2) sinh((k-1) r / 2) P[z > start'].

        Args:
            shift: t, above 0.
            orders: (m,) k.
            start: y, above t/2.

        Returns:
            (m,) upper bounds, `inf` where there is none.
        """
        near = start - shift / 2
        ratio = shift * self.unit_steepest(near)
        mass = float(self.unit_tail(np.array([near]))[0])
        if not mass > 0:
            return np.full(len(orders), -math.inf)
        halves = _log_twice_sinh(orders * ratio / 2) + _log_twice_sinh((orders - 1) * ratio / 2)
        return halves + math.log(mass)

    def words(self) -> str:
        own = [f"{f.name} {getattr(self, f.name):g}" for f in fields(self) if f.name != "scale"]
        return law_words(", ".join([self.name, *own]))


def _log_twice_sinh(x: Array) -> Array:
    """Return log(2 sinh(x)), x 0 or above."""
    with np.errstate(divide="ignore"):
        return x + np.log(-np.expm1(-2 * x))


def law_words(law: str) -> str:
    """Return what plan, card and report say of noise of a law."""
    return f"noise of a chosen law ({law}), as informative as Gaussian noise of that multiplier"
