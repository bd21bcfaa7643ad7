"""The densities for the noise on one coordinate, and the table that files name them by.

    z(x) = u(|x| / scale) / scale

    gaussian            exp(-x^2/2)
    student-t           (1 + x^2/nu)^(-(nu+1)/2)                cauchy: nu = 1
    laplace             exp(-|x|)
    hyperbolic-secant   sech(pi x / 2)                          "Sech"
    logistic            sech(x / 2)^2
    generalised-normal  exp(-|x|^p)                             p >= 1
    variance-gamma      |x|^(l-1/2) K_(l-1/2)(|x|)              shape l >= 1; l = 1 is laplace
    tabulated           log u linear between knots, and after the last one

Here u is up to its constant. A user's own density becomes a `tabulated` one.

Source: Nasr, Shokri and Houmansadr 2020, Section 5 (gaussian, student-t, laplace, cauchy, variance
gamma, sech). Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy import special
from scipy.interpolate import CubicHermiteSpline

from pasearch.accounting.checks import kind_of, positive
from pasearch.accounting.density import Density, Generator
from pasearch.accounting.profiles import Array
from pasearch.accounting.quadrature import kronrod
from pasearch.accounting.tabulated import Tabulated
from pasearch.errors import UsageError
from pasearch.registry import Checks

CATALAN = 0.915965594177219015
LEAST_FREEDOM, MOST_FREEDOM = 0.5, 1e4
MOST_POWER, MOST_SHAPE = 32.0, 50.0


def _within(low: float, high: float) -> Callable[[str, object], float]:
    def check(name: str, value: object) -> float:
        number = positive(name, value)
        if not low <= number <= high:
            raise UsageError(f"{name} is {number}: expected a number from {low:g} to {high:g}.")
        return number

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Density):
    """Normal; the scale is its standard deviation."""

    name: ClassVar[str] = "gaussian"
    light: ClassVar[bool] = True

    @property
    def grain(self) -> float:
        return 1.0

    def unit_log_density(self, x: Array) -> Array:
        return -(x**2) / 2 - math.log(2 * math.pi) / 2

    def unit_tail(self, x: Array) -> Array:
        return special.ndtr(-x)

    def unit_moments(self) -> tuple[float, float, float]:
        return math.sqrt(2 / math.pi), 1.0, 1.0

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        return np.abs(generator.standard_normal(size))

    def unit_steepest(self, x: float) -> float:
        """The score is x: it has no bound."""
        return math.inf

    def unit_log_rest(self, shift: float, orders: Array, start: float) -> Array:
        """Bound the log of what is beyond, by the slope of the log of the integrand there."""
        return _log_rest_of_power(self, 2.0, 0.5, shift, orders, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentT(Density):
    """Student's t; its variance is scale^2 nu / (nu - 2), if nu > 2.

    Args:
        freedom: nu, from .5 to 10^4; whole or not.
    """

    name: ClassVar[str] = "student-t"
    checks: ClassVar[Checks] = {**Density.checks, "freedom": _within(LEAST_FREEDOM, MOST_FREEDOM)}
    freedom: float = 9.0

    @property
    def grain(self) -> float:
        return 0.5 * min(1.0, math.sqrt(self.freedom))

    @property
    def log_concave(self) -> bool:
        """It is not, in the tails; 1/z is convex."""
        return False

    def unit_log_density(self, x: Array) -> Array:
        nu = self.freedom
        constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2)
        return constant - math.log(nu * math.pi) / 2 - (nu + 1) / 2 * np.log1p(x**2 / nu)

    def unit_tail(self, x: Array) -> Array:
        return special.stdtr(self.freedom, -x)

    def unit_moments(self) -> tuple[float, float, float]:
        nu, first, second = self.freedom, math.inf, math.inf
        if nu > 1:
            gammas = math.exp(special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2))
            first = 2 * math.sqrt(nu / math.pi) * gammas / (nu - 1)
        if nu > 2:
            second = nu / (nu - 2)
        return first, second, (nu + 1) / (nu + 3)

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: a normal over the root of a chi square / nu."""
        chi = generator.chisquare(self.freedom, size) / self.freedom
        least = np.finfo(float).tiny  # a chi square of few degrees may round to 0
        return np.abs(generator.standard_normal(size)) / np.sqrt(np.maximum(chi, least))

    def unit_steepest(self, x: float) -> float:
        """(nu + 1) x / (nu + x^2), which falls beyond sqrt(nu)."""
        far = max(x, math.sqrt(self.freedom))
        return (self.freedom + 1) / (self.freedom / far + far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cauchy(Density):
    """Cauchy: no mean absolute value, no variance; the scale is its half width at half height."""

    name: ClassVar[str] = "cauchy"

    @property
    def log_concave(self) -> bool:
        """It is not, in the tails; 1/z is convex."""
        return False

    def unit_log_density(self, x: Array) -> Array:
        return -np.log1p(x**2) - math.log(math.pi)

    def unit_tail(self, x: Array) -> Array:
        return np.arctan2(1.0, x) / math.pi

    def unit_moments(self) -> tuple[float, float, float]:
        return math.inf, math.inf, 0.5

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        return np.abs(generator.standard_cauchy(size))

    def unit_steepest(self, x: float) -> float:
        """2 x / (1 + x^2), which falls beyond 1."""
        far = max(x, 1.0)
        return 2.0 / (1.0 / far + far)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(Density):
    """Laplace: the scale is its mean absolute value."""

    name: ClassVar[str] = "laplace"

    def unit_log_density(self, x: Array) -> Array:
        return -x - math.log(2)

    def unit_tail(self, x: Array) -> Array:
        return np.exp(-x) / 2

    def unit_moments(self) -> tuple[float, float, float]:
        return 1.0, 2.0, 1.0

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        return generator.standard_exponential(size)

    def unit_steepest(self, x: float) -> float:
        """It is 1 everywhere."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperbolicSecant(Density):
    """Hyperbolic secant ("Sech"); the scale is its standard deviation."""

    name: ClassVar[str] = "hyperbolic-secant"

    def unit_log_density(self, x: Array) -> Array:
        half = math.pi / 2 * x
        return -half - np.log1p(np.exp(-2 * half))

    def unit_tail(self, x: Array) -> Array:
        return 2 / math.pi * np.arctan(np.exp(-math.pi / 2 * x))

    def unit_moments(self) -> tuple[float, float, float]:
        return 8 * CATALAN / math.pi**2, 1.0, math.pi**2 / 8

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: the inverse of its own tail."""
        return -2 / math.pi * np.log(np.tan(math.pi / 4 * _uniform(generator, size)))

    def unit_steepest(self, x: float) -> float:
        """Pi/2 tanh(pi x / 2) is below pi/2."""
        return math.pi / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(Density):
    """Logistic; its variance is scale^2 pi^2 / 3."""

    name: ClassVar[str] = "logistic"

    def unit_log_density(self, x: Array) -> Array:
        return -x - 2 * np.log1p(np.exp(-x))

    def unit_tail(self, x: Array) -> Array:
        return special.expit(-x)

    def unit_moments(self) -> tuple[float, float, float]:
        return 2 * math.log(2), math.pi**2 / 3, 1 / 3

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: the inverse of its own tail."""
        uniform = _uniform(generator, size)
        return np.log((2.0 - uniform) / uniform)

    def unit_steepest(self, x: float) -> float:
        """Tanh(x / 2) is below 1."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralisedNormal(Density):
    """The density exp(-|x|^p): 1 is Laplace, 2 a Gaussian of variance 1/2, more is flatter.

    Args:
        power: p, from 1 to 32.
    """

    name: ClassVar[str] = "generalised-normal"
    light: ClassVar[bool] = True
    checks: ClassVar[Checks] = {**Density.checks, "power": _within(1.0, MOST_POWER)}
    power: float = 2.0

    @property
    def grain(self) -> float:
        return 1.0 / self.power

    def unit_log_density(self, x: Array) -> Array:
        return -(x**self.power) - math.log(2) - special.gammaln(1 + 1 / self.power)

    def unit_tail(self, x: Array) -> Array:
        return special.gammaincc(1 / self.power, x**self.power) / 2

    def unit_moments(self) -> tuple[float, float, float]:
        p = self.power
        one, two, three, rest = special.gamma([1 / p, 2 / p, 3 / p, 2 - 1 / p])
        return float(two / one), float(three / one), float(p**2 * rest / one)

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: a power of a gamma."""
        return generator.standard_gamma(1 / self.power, size) ** (1 / self.power)

    def unit_steepest(self, x: float) -> float:
        """P x^(p-1) has no bound for p > 1."""
        return 1.0 if self.power == 1 else math.inf

    def unit_log_rest(self, shift: float, orders: Array, start: float) -> Array:
        """Bound the log of what is beyond, by the slope of the log of the integrand there."""
        return _log_rest_of_power(self, self.power, 1.0, shift, orders, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceGamma(Density):
    """A normal whose variance is a gamma's: (1 + w^2)^-l is its characteristic function.

    Args:
        shape: l, from 1 (Laplace) to 50 (nearly normal); its variance is 2 l scale^2.
    """

    name: ClassVar[str] = "variance-gamma"
    checks: ClassVar[Checks] = {**Density.checks, "shape": _within(1.0, MOST_SHAPE)}
    shape: float = 2.0

    @property
    def grain(self) -> float:
        return 0.5 * math.sqrt(self.shape)

    def unit_log_density(self, x: Array) -> Array:
        order = self.shape - 0.5
        with np.errstate(all="ignore"):
            bessel = order * np.log(x) + np.log(special.kve(order, x)) - x
        at_0 = (order - 1) * math.log(2) + special.gammaln(order)
        bessel = np.where((x > 1e-12) & np.isfinite(bessel), bessel, at_0)
        constant = math.log(math.pi) / 2 + special.gammaln(self.shape) + order * math.log(2)
        return np.where(x < 1e5, bessel, order * np.log(np.maximum(x, 1.0)) - x) - constant

    def unit_tail(self, x: Array) -> Array:
        """Return the probability above x, to about 1e-11."""
        knots, spline = _tail_table(self.unit)
        inside = np.minimum(x, knots[-1])
        far = np.exp(self.unit_log_density(x)) / self._score(knots[-1:])
        return np.where(x <= knots[-1], np.clip(spline(inside), 0.0, 0.5), far)

    def unit_moments(self) -> tuple[float, float, float]:
        gammas = math.exp(special.gammaln(self.shape + 0.5) - special.gammaln(self.shape))
        return 2 / math.sqrt(math.pi) * gammas, 2 * self.shape, _information(self.unit)

    def unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |z|: a normal times the root of a gamma."""
        variance = 2 * generator.standard_gamma(self.shape, size)
        return np.sqrt(variance) * np.abs(generator.standard_normal(size))

    def unit_steepest(self, x: float) -> float:
        """K_(v-1)(x) / K_v(x), v = l - 1/2, is at most 1."""
        return 1.0

    def _score(self, x: Array) -> Array:
        order = self.shape - 0.5
        with np.errstate(all="ignore"):
            ratio = special.kve(order - 1, x) / special.kve(order, x)
        return np.where(np.isfinite(ratio), ratio, 0.0)


DENSITIES: dict[str, type[Density]] = {
    kind.name: kind
    for kind in (
        GaussianNoise,
        StudentT,
        Cauchy,
        LaplaceNoise,
        HyperbolicSecant,
        Logistic,
        GeneralisedNormal,
        VarianceGamma,
        Tabulated,
    )
}


def known(name: str, value: object) -> Density:
    """Return a density of the table, and of no subclass: that could draw what is not priced.

    Raises:
        UsageError: Something else.
    """
    if type(value) not in DENSITIES.values():
        raise UsageError(
            f"{name} is {value!r}: expected one of `accounting.densities` itself; a law of your "
            "own is read by `tabulated`."
        )
    return value  # pyright: ignore[reportReturnType]


def density_from_json(values: Mapping[str, Any]) -> Density:
    """Read what `to_json` wrote.

    Raises:
        UsageError: An unknown name or number.
    """
    kind, numbers = kind_of("density", DENSITIES, values)
    return kind(**numbers)


def _log_rest_of_power(
    density: Density, power: float, rate: float, shift: float, orders: Array, start: float
) -> Array:
    """Bound the rest of an excess integral for log z(x) = c - rate |x|^p.

    The integrand is at most 2 exp(G), G(y) = k log z(y - t/2) - (k-1) log z(y + t/2), and beyond
    the start G' is at most its value -s with the ratio r of the two distances frozen there:
    s = rate p (y - t/2)^(p-1) (k - (k-1) r^(p-1)). If s > 0, what is beyond is at most 2 e^G / s.
    """
    near, far = start - shift / 2, start + shift / 2
    logs = density.unit_log_density(np.array([near, far]))
    slope = rate * power * near ** (power - 1)
    slopes = slope * (orders - (orders - 1) * (far / near) ** (power - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        bound = math.log(2) + orders * logs[0] - (orders - 1) * logs[1] - np.log(slopes)
    return np.where(slopes > 0, bound, math.inf)


@lru_cache(maxsize=64)
def _tail_table(density: VarianceGamma) -> tuple[Array, CubicHermiteSpline]:
    reach = 12 * math.sqrt(2 * density.shape) + 40
    knots = np.concatenate([[0.0], np.geomspace(1e-7, 0.05, 400), np.arange(0.06, reach, 0.01)])
    x, weights, _ = kronrod(knots)
    masses = (weights * np.exp(density.unit_log_density(x))).sum(axis=1)
    last = math.exp(float(density.unit_log_density(knots[-1:])[0]))
    last /= float(density._score(knots[-1:])[0])
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0) + last
    return knots, CubicHermiteSpline(knots, above, -np.exp(density.unit_log_density(knots)))


@lru_cache(maxsize=64)
def _information(density: VarianceGamma) -> float:
    reach = 12 * math.sqrt(2 * density.shape) + 40
    knots = np.concatenate([[0.0], np.geomspace(1e-9, 0.2, 60), np.arange(0.3, reach, 0.1)])
    x, weights, _ = kronrod(knots)
    density_at = np.exp(density.unit_log_density(x))
    return float(2 * (weights * density_at * density._score(x) ** 2).sum())


def _uniform(generator: Generator, size: int) -> Array:
    """Uniform on (0, 1]: never 0."""
    return 1.0 - generator.random(size)
