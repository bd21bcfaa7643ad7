"""Probability densities of the noise on one coordinate, of a gradient for example.

Each density is positive, symmetric around 0 and decreasing in |x|, and has a scale:

    z(x) = u(|x| / scale) / scale

The functions u, up to a constant factor:

    gaussian            exp(-x^2/2)
    student-t           (1 + x^2/nu)^(-(nu+1)/2)                cauchy: nu = 1
    laplace             exp(-|x|)
    hyperbolic-secant   sech(pi x / 2)                          "Sech"
    logistic            sech(x / 2)^2
    generalised-normal  exp(-|x|^p)                             p >= 1
    variance-gamma      |x|^(l-1/2) K_(l-1/2)(|x|)              shape l >= 1; l = 1 is laplace
    tabulated           log u linear between knots, and after the last one

The proof of the privacy cost (module `additive`) needs these conditions. Fisher information means
that of the location, E[(d log z / dx)^2]. A density of the user becomes a `tabulated` density: the
same table is accounted for and sampled, and a file holds only its numbers.

Sources: Nasr, Shokri and Houmansadr 2020, Section 5 (gaussian, student-t, laplace, cauchy, variance
gamma, sech); Gauss-Kronrod quadrature (7 and 15 nodes) for integrals. Proof:
docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from scipy import special
from scipy.interpolate import CubicHermiteSpline

from pasearch.accounting.checks import check_nonnegative, check_positive, resolve_named_type
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks, Stage

Generator = np.random.Generator
CATALAN_CONSTANT = 0.915965594177219015
MIN_DEGREES_OF_FREEDOM = 0.5  # of `StudentT`
MAX_DEGREES_OF_FREEDOM = 1e4  # of `StudentT`
MAX_EXPONENT = 32.0  # of `GeneralisedNormal`
MAX_GAMMA_SHAPE = 50.0  # of `VarianceGamma`
MAX_KNOTS = 1000  # of `Tabulated`
MAX_LOG_DECREASE = 600.0
"""Maximum of log z(0) - log z(last knot) of a table. Below e^-600 probabilities are near underflow,
and numerical integration might miss a steep piece that matters to a divergence.
"""
MAX_ASYMMETRY = 1e-9
"""Maximum relative difference of log u(x) and log u(-x) of a user's function: rounding only."""


# --- numerical integration: the line is divided into intervals, called panels ---

POSITIVE_KRONROD_NODES = np.array(
    [0.991455371120812639206854697526329, 0.949107912342758524526189684047851,
     0.864864423359769072789712788640926, 0.741531185599394439863864773280788,
     0.586087235467691130294144838258730, 0.405845151377397166906606412076961,
     0.207784955007898467600689403773245]
)  # fmt: skip
KRONROD_WEIGHTS = np.array(
    [0.022935322010529224963732008058970, 0.063092092629978553290700663189204,
     0.104790010322250183839876322541518, 0.140653259715525918745189590510238,
     0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
     0.204432940075298892414161999234649]
)  # fmt: skip
KRONROD_MIDDLE_WEIGHT = 0.209482141084727828012999174891714
GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(7)[1]


def make_kronrod_rule(edges: Array) -> tuple[Array, Array, Array]:
    """Compute nodes and weights of the Gauss-Kronrod rules on every panel.

    Args:
        edges: Ascending ends of the p panels, (p + 1,).

    Returns:
        Nodes; weights of the 15-point rule; and the differences between these and the weights of
        the 7-point rule, for an error estimate. Each has shape (p, 15).
    """
    nodes = np.concatenate([-POSITIVE_KRONROD_NODES, [0.0], POSITIVE_KRONROD_NODES[::-1]])
    weights = np.concatenate([KRONROD_WEIGHTS, [KRONROD_MIDDLE_WEIGHT], KRONROD_WEIGHTS[::-1]])
    gauss = np.zeros(15)
    gauss[1::2] = GAUSS_WEIGHTS
    half = np.diff(edges)[:, None] / 2
    middle = ((edges[1:] + edges[:-1]) / 2)[:, None]
    return middle + half * nodes, half * weights, half * (weights - gauss)


# --- interface of a density ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Density(Stage):
    """Symmetric density z on the real line.

    Methods whose name contains `unit` are for scale 1; their x is 0 or above.

    Args:
        scale: Scale, above 0; its relation to the variance depends on the density.
    """

    name: ClassVar[str]
    is_light_tailed: ClassVar[bool] = False
    """Whether z(x - t) / z(x) is unbounded in x for a shift t, as for a Gaussian."""
    checks: ClassVar[FieldChecks] = {"scale": check_positive}
    scale: float = 1.0

    @abstractmethod
    def unit_log_density(self, x: Array) -> Array:
        """Compute log z(x), in the shape of x."""

    @abstractmethod
    def unit_tail_probability(self, x: Array) -> Array:
        """Compute P[noise > x], at most 1/2."""

    @abstractmethod
    def unit_moments_and_information(self) -> tuple[float, float, float]:
        """Compute E|X|, E X^2 (`inf` if it does not exist) and the Fisher information."""

    @abstractmethod
    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw absolute values of the noise, (size,)."""

    @abstractmethod
    def unit_max_slope(self, x: float) -> float:
        """Compute an upper bound of |d log z / dx| on [x, inf); `inf` if there is none."""

    @property
    def panel_width(self) -> float:
        """Width of a panel on which numerical integration of the unit density is accurate."""
        return 0.5

    @property
    def breaks(self) -> Array:
        """Points, 0 or above, at which the unit density is not smooth."""
        return np.zeros(1)

    @property
    def log_concave(self) -> bool:
        """Whether log z is concave; then the log of the divergence integral I_k(t) is convex."""
        return True

    @property
    def inverse_convex(self) -> bool:
        """Whether 1/z is convex; then I_k(t)^(1/(k-1)) is convex. Implied by `log_concave`."""
        return True

    @property
    def mean_absolute(self) -> float:
        """Mean absolute value of the noise, E|X|."""
        return self.unit_moments_and_information()[0] * self.scale

    @property
    def variance(self) -> float:
        """Variance of the noise; `inf` if it does not exist."""
        return self.unit_moments_and_information()[1] * self.scale**2

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise; `inf` if it does not exist."""
        return math.sqrt(self.variance)

    @property
    def fisher_information(self) -> float:
        """Fisher information of the location."""
        return self.unit_moments_and_information()[2] / self.scale**2

    @property
    def unit(self) -> Self:
        """This density with scale 1."""
        return self.with_scale(1.0)

    def with_scale(self, scale: float) -> Self:
        """Copy this density with another scale."""
        return replace(self, scale=scale)

    def cdf(self, x: Array) -> Array:
        """Compute P[noise <= x], in the shape of x."""
        values = np.asarray(x, dtype=float) / self.scale
        above = self.unit_tail_probability(np.abs(values))
        return np.where(values > 0, 1.0 - above, above)

    def sample(self, generator: Generator, size: int | tuple[int, ...]) -> Array:
        """Draw independent noise, a float64 array of shape `size`."""
        count = math.prod(size) if isinstance(size, tuple) else size
        signs = 1.0 - 2.0 * generator.integers(0, 2, count)
        return (signs * self.draw_unit_magnitude(generator, count) * self.scale).reshape(size)

    def unit_log_remainder(self, shift: float, orders: Array, start: float) -> Array:
        """Compute an upper bound of the log of the remainder of an excess integral.

        The remainder is the part of the integral beyond `start`; see module `additive`. If
        |d log z / dx| is at most s there, the log ratio of the density and its shifted copy is at
        most r = s * shift, and the remainder at most 4 sinh(k r / 2) sinh((k-1) r / 2) P[noise >
        start - shift / 2].

        Args:
            shift: t, above 0.
            orders: Orders k, (m,).
            start: y, above t/2.

        Returns:
            Upper bounds, (m,); `inf` if there is none.
        """
        near = start - shift / 2
        ratio = shift * self.unit_max_slope(near)
        mass = float(self.unit_tail_probability(np.array([near]))[0])
        if not mass > 0:
            return np.full(len(orders), -math.inf)
        halves = _log_twice_sinh(orders * ratio / 2) + _log_twice_sinh((orders - 1) * ratio / 2)
        return halves + math.log(mass)

    def describe(self) -> str:
        own = [f"{f.name} {getattr(self, f.name):g}" for f in fields(self) if f.name != "scale"]
        return describe_noise(self.name, ", ".join(own))


def _log_twice_sinh(x: Array) -> Array:
    """Compute log(2 sinh(x)) for x >= 0 without overflow."""
    with np.errstate(divide="ignore"):
        return x + np.log(-np.expm1(-2 * x))


def describe_noise(name: str, parameters: str) -> str:
    """Describe the noise distribution for plan, privacy card and report."""
    shape = f" ({parameters})" if parameters else ""
    return f"{name} noise{shape} with the Fisher information of Gaussian noise of that multiplier"


# --- densities with a formula ---


def _make_range_check(low: float, high: float) -> Callable[[str, object], float]:
    """Make a check of a number's range, for `Density.checks`."""

    def check(name: str, value: object) -> float:
        number = check_positive(name, value)
        if not low <= number <= high:
            raise UsageError(f"{name} is {number}: expected a number from {low:g} to {high:g}.")
        return number

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise(Density):
    """Normal density; the scale is its standard deviation."""

    name: ClassVar[str] = "gaussian"
    is_light_tailed: ClassVar[bool] = True

    @property
    def panel_width(self) -> float:
        return 1.0

    def unit_log_density(self, x: Array) -> Array:
        return -(x**2) / 2 - math.log(2 * math.pi) / 2

    def unit_tail_probability(self, x: Array) -> Array:
        return special.ndtr(-x)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        return math.sqrt(2 / math.pi), 1.0, 1.0

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        return np.abs(generator.standard_normal(size))

    def unit_max_slope(self, x: float) -> float:
        """Return `inf`: |d log z / dx| = x has no bound."""
        return math.inf

    def unit_log_remainder(self, shift: float, orders: Array, start: float) -> Array:
        """Compute the bound from the slope of the integrand's log at the start."""
        return _bound_log_remainder_of_power(self, 2.0, 0.5, shift, orders, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentT(Density):
    """Student's t density; its variance is scale^2 nu / (nu - 2), if nu > 2.

    Args:
        freedom: Degrees of freedom nu, from .5 to 10^4, integer or not.
    """

    name: ClassVar[str] = "student-t"
    checks: ClassVar[FieldChecks] = {
        **Density.checks,
        "freedom": _make_range_check(MIN_DEGREES_OF_FREEDOM, MAX_DEGREES_OF_FREEDOM),
    }
    freedom: float = 9.0

    @property
    def panel_width(self) -> float:
        return 0.5 * min(1.0, math.sqrt(self.freedom))

    @property
    def log_concave(self) -> bool:
        """Whether log z is concave: no, because of the tails; but 1/z is convex."""
        return False

    def unit_log_density(self, x: Array) -> Array:
        nu = self.freedom
        constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2)
        return constant - math.log(nu * math.pi) / 2 - (nu + 1) / 2 * np.log1p(x**2 / nu)

    def unit_tail_probability(self, x: Array) -> Array:
        return special.stdtr(self.freedom, -x)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        nu, first, second = self.freedom, math.inf, math.inf
        if nu > 1:
            gammas = math.exp(special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2))
            first = 2 * math.sqrt(nu / math.pi) * gammas / (nu - 1)
        if nu > 2:
            second = nu / (nu - 2)
        return first, second, (nu + 1) / (nu + 3)

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |normal / sqrt(chi square / nu)|."""
        chi = generator.chisquare(self.freedom, size) / self.freedom
        least = np.finfo(float).tiny  # a chi square of few degrees may round to 0
        return np.abs(generator.standard_normal(size)) / np.sqrt(np.maximum(chi, least))

    def unit_max_slope(self, x: float) -> float:
        """Compute the bound from the slope (nu + 1) x / (nu + x^2), largest at sqrt(nu)."""
        far = max(x, math.sqrt(self.freedom))
        return (self.freedom + 1) / (self.freedom / far + far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cauchy(Density):
    """Cauchy density, without mean or variance; the scale is its half width at half maximum."""

    name: ClassVar[str] = "cauchy"

    @property
    def log_concave(self) -> bool:
        """Whether log z is concave: no, because of the tails; but 1/z is convex."""
        return False

    def unit_log_density(self, x: Array) -> Array:
        return -np.log1p(x**2) - math.log(math.pi)

    def unit_tail_probability(self, x: Array) -> Array:
        return np.arctan2(1.0, x) / math.pi

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        return math.inf, math.inf, 0.5

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        return np.abs(generator.standard_cauchy(size))

    def unit_max_slope(self, x: float) -> float:
        """Compute the bound from the slope 2 x / (1 + x^2), largest at 1."""
        far = max(x, 1.0)
        return 2.0 / (1.0 / far + far)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceNoise(Density):
    """Laplace density; the scale is its mean absolute value."""

    name: ClassVar[str] = "laplace"

    def unit_log_density(self, x: Array) -> Array:
        return -x - math.log(2)

    def unit_tail_probability(self, x: Array) -> Array:
        return np.exp(-x) / 2

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        return 1.0, 2.0, 1.0

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        return generator.standard_exponential(size)

    def unit_max_slope(self, x: float) -> float:
        """Return 1, the slope everywhere."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperbolicSecant(Density):
    """Hyperbolic secant density ("Sech"); the scale is its standard deviation."""

    name: ClassVar[str] = "hyperbolic-secant"

    def unit_log_density(self, x: Array) -> Array:
        half = math.pi / 2 * x
        return -half - np.log1p(np.exp(-2 * half))

    def unit_tail_probability(self, x: Array) -> Array:
        return 2 / math.pi * np.arctan(np.exp(-math.pi / 2 * x))

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        return 8 * CATALAN_CONSTANT / math.pi**2, 1.0, math.pi**2 / 8

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw absolute values by inversion of the tail probability."""
        return -2 / math.pi * np.log(np.tan(math.pi / 4 * _draw_uniform(generator, size)))

    def unit_max_slope(self, x: float) -> float:
        """Return pi/2, the limit of the slope pi/2 tanh(pi x / 2)."""
        return math.pi / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic(Density):
    """Logistic density; its variance is scale^2 pi^2 / 3."""

    name: ClassVar[str] = "logistic"

    def unit_log_density(self, x: Array) -> Array:
        return -x - 2 * np.log1p(np.exp(-x))

    def unit_tail_probability(self, x: Array) -> Array:
        return special.expit(-x)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        return 2 * math.log(2), math.pi**2 / 3, 1 / 3

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw absolute values by inversion of the tail probability."""
        uniform = _draw_uniform(generator, size)
        return np.log((2.0 - uniform) / uniform)

    def unit_max_slope(self, x: float) -> float:
        """Return 1, the limit of the slope tanh(x / 2)."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralisedNormal(Density):
    """Density proportional to exp(-|x|^p): p = 1 is Laplace, p = 2 a Gaussian of variance 1/2.

    Args:
        power: Exponent p, from 1 to 32.
    """

    name: ClassVar[str] = "generalised-normal"
    is_light_tailed: ClassVar[bool] = True
    checks: ClassVar[FieldChecks] = {
        **Density.checks,
        "power": _make_range_check(1.0, MAX_EXPONENT),
    }
    power: float = 2.0

    @property
    def panel_width(self) -> float:
        return 1.0 / self.power

    def unit_log_density(self, x: Array) -> Array:
        return -(x**self.power) - math.log(2) - special.gammaln(1 + 1 / self.power)

    def unit_tail_probability(self, x: Array) -> Array:
        return special.gammaincc(1 / self.power, x**self.power) / 2

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        p = self.power
        one, two, three, rest = special.gamma([1 / p, 2 / p, 3 / p, 2 - 1 / p])
        return float(two / one), float(three / one), float(p**2 * rest / one)

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw gamma values to the power 1/p."""
        return generator.standard_gamma(1 / self.power, size) ** (1 / self.power)

    def unit_max_slope(self, x: float) -> float:
        """Return 1 for p = 1, else `inf`: the slope p x^(p-1) has no bound."""
        return 1.0 if self.power == 1 else math.inf

    def unit_log_remainder(self, shift: float, orders: Array, start: float) -> Array:
        """Compute the bound from the slope of the integrand's log at the start."""
        return _bound_log_remainder_of_power(self, self.power, 1.0, shift, orders, start)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceGamma(Density):
    """Normal density with gamma-distributed variance; characteristic function (1 + w^2)^-l.

    Args:
        shape: Exponent l, from 1 (Laplace) to 50 (nearly normal); the variance is 2 l scale^2.
    """

    name: ClassVar[str] = "variance-gamma"
    checks: ClassVar[FieldChecks] = {
        **Density.checks,
        "shape": _make_range_check(1.0, MAX_GAMMA_SHAPE),
    }
    shape: float = 2.0

    @property
    def panel_width(self) -> float:
        return 0.5 * math.sqrt(self.shape)

    def unit_log_density(self, x: Array) -> Array:
        order = self.shape - 0.5
        with np.errstate(all="ignore"):
            bessel = order * np.log(x) + np.log(special.kve(order, x)) - x
        at_0 = (order - 1) * math.log(2) + special.gammaln(order)
        bessel = np.where((x > 1e-12) & np.isfinite(bessel), bessel, at_0)
        constant = math.log(math.pi) / 2 + special.gammaln(self.shape) + order * math.log(2)
        return np.where(x < 1e5, bessel, order * np.log(np.maximum(x, 1.0)) - x) - constant

    def unit_tail_probability(self, x: Array) -> Array:
        """Interpolate P[noise > x]; the error is about 1e-11."""
        knots, spline = _make_tail_table(self.unit)
        inside = np.minimum(x, knots[-1])
        far = np.exp(self.unit_log_density(x)) / self._slope(knots[-1:])
        return np.where(x <= knots[-1], np.clip(spline(inside), 0.0, 0.5), far)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        gammas = math.exp(special.gammaln(self.shape + 0.5) - special.gammaln(self.shape))
        return (
            2 / math.sqrt(math.pi) * gammas,
            2 * self.shape,
            _compute_fisher_information(self.unit),
        )

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw |normal| times the square root of a gamma value."""
        variance = 2 * generator.standard_gamma(self.shape, size)
        return np.sqrt(variance) * np.abs(generator.standard_normal(size))

    def unit_max_slope(self, x: float) -> float:
        """Return 1, an upper bound of the slope K_(v-1)(x) / K_v(x), v = l - 1/2."""
        return 1.0

    def _slope(self, x: Array) -> Array:
        """Compute -d log z / dx = K_(v-1)(x) / K_v(x), v = l - 1/2."""
        order = self.shape - 0.5
        with np.errstate(all="ignore"):
            ratio = special.kve(order - 1, x) / special.kve(order, x)
        return np.where(np.isfinite(ratio), ratio, 0.0)


# --- density of a user's function, as a table ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabulated(Density):
    """Density whose logarithm is linear between knots, and beyond the last one.

    Args:
        knots: Values of |x|, ascending, 2 to 1000; the first is 0.
        log_values: log z at the knots, up to a constant. They do not increase, and the last value
            is below the one before it.
    """

    name: ClassVar[str] = "tabulated"
    knots: tuple[float, ...]
    log_values: tuple[float, ...]

    def __post_init__(self) -> None:
        Density.__post_init__(self)
        for name in ("knots", "log_values"):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)):
                raise UsageError(f"{name} is {values!r}: expected a tuple of numbers.")
            check = check_nonnegative if name == "knots" else _check_finite
            object.__setattr__(self, name, tuple(check(name, value) for value in values))
        if len(self.knots) != len(self.log_values) or not 2 <= len(self.knots) <= MAX_KNOTS:
            raise UsageError(
                f"knots has {len(self.knots)} numbers and log_values {len(self.log_values)}: "
                f"expected equal numbers, from 2 to {MAX_KNOTS}."
            )
        steps = np.diff(self.knots)
        if not (self.knots[0] == 0 and (steps > 1e-9 * self.knots[-1]).all()):
            raise UsageError("knots: expected ascending numbers from 0, not too close together.")
        falls = np.diff(self.log_values)
        if not ((falls <= 0).all() and falls[-1] < 0):
            worst = self.knots[int(np.argmax(falls)) + 1]
            raise UsageError(
                f"log_values increases before |x| = {worst:g}, or is constant at the end: the "
                "density must decrease with |x| (one mode, at 0), because otherwise I_k(t) may "
                "decrease with the shift t, and the codebook is not the worst case."
            )
        if not self.log_values[0] - self.log_values[-1] <= MAX_LOG_DECREASE:
            raise UsageError(
                f"log_values decreases by {self.log_values[0] - self.log_values[-1]:g}: expected "
                f"at most {MAX_LOG_DECREASE:g} from the first knot to the last. Leave out the last "
                "knots: beyond the table, log_values continues with the slope of its end."
            )

    @property
    def panel_width(self) -> float:
        """Width of the first piece: the log density is linear on each piece."""
        return self.knots[1]

    @property
    def breaks(self) -> Array:
        """Knots, and points beyond them where z has decreased by e^1, e^10, e^100, e^600."""
        falls = (
            np.array([1.0, 10.0, 100.0, MAX_LOG_DECREASE])
            / -_compute_linear_pieces(self.unit).slopes[-1]
        )
        return np.append(self.knots, self.knots[-1] + falls)

    @property
    def log_concave(self) -> bool:
        """Whether every piece decreases at least as steeply as the previous one."""
        return bool((np.diff(_compute_linear_pieces(self.unit).slopes) <= 0).all())

    @property
    def inverse_convex(self) -> bool:
        """Whether 1/z is convex: only if log z is, because 1/z bends down where the slope rises."""
        return self.log_concave

    def unit_log_density(self, x: Array) -> Array:
        table = _compute_linear_pieces(self.unit)
        beyond = np.maximum(x - self.knots[-1], 0.0) * table.slopes[-1]
        return np.interp(x, self.knots, table.logs) + beyond

    def unit_tail_probability(self, x: Array) -> Array:
        table = _compute_linear_pieces(self.unit)
        at = np.minimum(np.searchsorted(self.knots, x, side="right") - 1, len(self.knots) - 1)
        left = x - np.array(self.knots)[at]
        part = np.exp(table.logs[at]) * _integrate_exponential(table.slopes[at], left)
        return np.clip(np.append(np.cumsum(table.masses[::-1])[::-1], 0.0)[at] - part, 0.0, 0.5)

    def unit_moments_and_information(self) -> tuple[float, float, float]:
        table = _compute_linear_pieces(self.unit)
        x, weights, _ = make_kronrod_rule(np.array(self.knots))
        density = weights.ravel() * np.exp(self.unit_log_density(x.ravel()))
        end, rate, mass = self.knots[-1], -table.slopes[-1], table.masses[-1]
        first = density @ x.ravel() + mass * (end + 1 / rate)
        second = density @ x.ravel() ** 2 + mass * (end**2 + 2 * end / rate + 2 / rate**2)
        return float(2 * first), float(2 * second), float(2 * table.masses @ table.slopes**2)

    def draw_unit_magnitude(self, generator: Generator, size: int) -> Array:
        """Draw a piece by its probability, then a position in it by inversion."""
        table = _compute_linear_pieces(self.unit)
        ends = np.cumsum(table.masses)
        at = np.searchsorted(ends, generator.random(size) * ends[-1], side="right")
        at = np.minimum(at, len(ends) - 1)
        # Within a piece the distribution is a truncated exponential.
        widths = np.append(np.diff(self.knots), 0.0)[at]
        last, falls = at == len(ends) - 1, -table.slopes[at] * widths
        uniform = generator.random(size)
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = -np.log1p(uniform * np.expm1(-np.where(last, np.inf, falls))) / -table.slopes[at]
        return np.array(self.knots)[at] + np.where(last | (falls > 1e-9), cut, uniform * widths)

    def unit_max_slope(self, x: float) -> float:
        """Compute the steepest slope of the pieces from x on."""
        slopes = _compute_linear_pieces(self.unit).slopes
        at = int(np.searchsorted(self.knots, x, side="right")) - 1
        return float(-np.min(slopes[at:]))

    def describe(self) -> str:
        return describe_noise(self.name, f"{len(self.knots):,} knots from 0 to {self.knots[-1]:g}")


def tabulate_density(
    log_kernel: Callable[[Array], Array],
    *,
    reach: float,
    scale: float = 1.0,
    knots: int = 100,
    even: bool = False,
) -> Tabulated:
    """Make a `Tabulated` density from a function that computes a log density.

    The result is linear in log z between knots and beyond the last one, so it differs slightly from
    the function's density. Accounting and sampling both use the table.

    Args:
        log_kernel: Function from numbers, (m,), to log densities up to a constant, (m,).
        reach: Last knot, in units of the scale; little probability should be beyond it.
        scale: Scale of the result, above 0: x of the function is noise / scale.
        knots: Number of knots, 8 to 1000; they are closer to each other near 0.
        even: Whether the function depends on |x| only. If so, it is never called for x < 0.

    Raises:
        UsageError: A value is not finite, increases with |x|, or differs between x and -x.

    >>> tabulate_density(lambda x: -abs(x), reach=20.0, knots=8).name
    'tabulated'
    """
    if not (isinstance(knots, int) and 8 <= knots <= MAX_KNOTS):
        raise UsageError(f"knots is {knots!r}: expected an integer from 8 to {MAX_KNOTS}.")
    bend = 3.0  # the last gap is about e^3 / 2 times the first
    x = check_positive("reach", reach) * np.sinh(bend * np.linspace(0, 1, knots)) / math.sinh(bend)
    values = np.asarray(log_kernel(x), dtype=float)
    if values.shape != x.shape or not np.isfinite(values).all():
        raise UsageError(
            "log_kernel returns values that are not finite, or another shape: expected a finite "
            "log density at every knot from 0 to the reach. Use a smaller reach."
        )
    if not even:
        mirrored = np.asarray(log_kernel(-x), dtype=float)
        gap = np.abs(mirrored - values)
        if not (gap <= MAX_ASYMMETRY * (1 + np.abs(values))).all():
            worst = x[int(np.argmax(np.where(np.isfinite(gap), gap, math.inf)))]
            raise UsageError(
                f"log_kernel differs between {worst:g} and {-worst:g}: the noise must be "
                "symmetric, because otherwise removing a record could cost more than adding one. "
                "Use a function of |x|."
            )
    return Tabulated(scale=scale, knots=tuple(x.tolist()), log_values=tuple(values.tolist()))


@dataclass(frozen=True, slots=True)
class _LinearPieces:
    """Normalised `Tabulated` density on x >= 0, as its pieces; the tail is the last piece.

    Args:
        logs: log z at the knots.
        slopes: Slope of log z on each piece.
        masses: Probability of each piece; they sum to 1/2.
    """

    logs: Array
    slopes: Array
    masses: Array


@lru_cache(maxsize=64)
def _compute_linear_pieces(density: Tabulated) -> _LinearPieces:
    knots, logs = np.array(density.knots), np.array(density.log_values)
    logs = logs - logs[0]
    slopes = np.diff(logs) / np.diff(knots)
    masses = np.exp(logs[:-1]) * _integrate_exponential(slopes, np.diff(knots))
    masses = np.append(masses, np.exp(logs[-1]) / -slopes[-1])
    total = 2 * masses.sum()
    return _LinearPieces(logs - math.log(total), np.append(slopes, slopes[-1]), masses / total)


def _integrate_exponential(slopes: Array, widths: Array) -> Array:
    """Compute the integral of exp(slope x) over x from 0 to the width."""
    return special.exprel(slopes * widths) * widths


def _check_finite(name: str, value: object) -> float:
    """Check that a value is a finite number of either sign; return it as a Python float."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
        return -check_positive(name, -value)
    return check_nonnegative(name, value)


# --- all densities by name ---

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


def check_known_density(name: str, value: object) -> Density:
    """Check that the value's class is one of `DENSITIES`, and return the value.

    A subclass is refused, because it could sample another density than the one accounted for.

    Raises:
        UsageError: The value's class is not in `DENSITIES`.
    """
    if type(value) not in DENSITIES.values():
        raise UsageError(
            f"{name} is {value!r}: expected a class of `accounting.densities`; use "
            "`tabulate_density` for another distribution."
        )
    return value  # pyright: ignore[reportReturnType]


def density_from_json(values: Mapping[str, Any]) -> Density:
    """Create a density from the dictionary that `to_json` returned.

    Raises:
        UsageError: A name is unknown, or a number is outside its range.
    """
    kind, numbers = resolve_named_type("density", DENSITIES, values)
    return kind(**numbers)


def _bound_log_remainder_of_power(
    density: Density, power: float, rate: float, shift: float, orders: Array, start: float
) -> Array:
    """Compute `Density.unit_log_remainder` for log z(x) = c - rate |x|^p.

    With y = start and t = shift, the integrand is at most 2 exp(G), G(y) = k log z(y - t/2) -
    (k-1) log z(y + t/2). Let r = (y + t/2) / (y - t/2). Beyond the start, G' is at most -s with
    s = rate p (y - t/2)^(p-1) (k - (k-1) r^(p-1)). If s > 0, the remainder is at most 2 e^G / s.
    """
    near, far = start - shift / 2, start + shift / 2
    logs = density.unit_log_density(np.array([near, far]))
    slope = rate * power * near ** (power - 1)
    slopes = slope * (orders - (orders - 1) * (far / near) ** (power - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        bound = math.log(2) + orders * logs[0] - (orders - 1) * logs[1] - np.log(slopes)
    return np.where(slopes > 0, bound, math.inf)


@lru_cache(maxsize=64)
def _make_tail_table(density: VarianceGamma) -> tuple[Array, CubicHermiteSpline]:
    """Make a table of P[noise > x]: knots and the spline through them."""
    reach = 12 * math.sqrt(2 * density.shape) + 40
    knots = np.concatenate([[0.0], np.geomspace(1e-7, 0.05, 400), np.arange(0.06, reach, 0.01)])
    x, weights, _ = make_kronrod_rule(knots)
    masses = (weights * np.exp(density.unit_log_density(x))).sum(axis=1)
    last = math.exp(float(density.unit_log_density(knots[-1:])[0]))
    last /= float(density._slope(knots[-1:])[0])
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0) + last
    return knots, CubicHermiteSpline(knots, above, -np.exp(density.unit_log_density(knots)))


@lru_cache(maxsize=64)
def _compute_fisher_information(density: VarianceGamma) -> float:
    reach = 12 * math.sqrt(2 * density.shape) + 40
    knots = np.concatenate([[0.0], np.geomspace(1e-9, 0.2, 60), np.arange(0.3, reach, 0.1)])
    x, weights, _ = make_kronrod_rule(knots)
    density_at = np.exp(density.unit_log_density(x))
    return float(2 * (weights * density_at * density._slope(x) ** 2).sum())


def _draw_uniform(generator: Generator, size: int) -> Array:
    """Draw uniform numbers from (0, 1], (size,)."""
    return 1.0 - generator.random(size)
