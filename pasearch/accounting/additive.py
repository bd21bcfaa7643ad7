"""Renyi differential privacy of a Poisson-sampled sum with noise of any density on each coordinate.

Let Q be the distribution of the noise, and Q_v its copy shifted by the vector v that one record
adds. A step compares Q with P = (1-q) Q + q Q_v. With the density z of one coordinate, the Renyi
divergence of order a, in both directions, is at most log(A_a) / (a-1), where

    I_k(t) = integral of z(x-t)^k z(x)^(1-k) dx                           the divergence integral
    A_a    = sum over k of C(a, k) (1-q)^(a-k) q^k  product over coordinates j of I_k(psi_j)

for a = 2, 3, ... and a record whose sorted magnitudes |v|_(j) are at most psi_j. Between integer
orders log(A_a) is interpolated linearly, which is an upper bound. The density z is symmetric and
decreases with |x|, so I_k grows with |t|. `Shifts` holds the psi_j, rounded up to a grid, with
their counts. For several possible vectors (a codebook), the largest product is used for each k.

As I_0 = I_1 = 1, the following formulas have no cancellation, also for small shifts:

    A_a - 1    = sum over k >= 2 of C(a, k) (1-q)^(a-k) q^k (product of I_k - 1)
    I_k(t) - 1 = integral over y > 0 of  4 sqrt(z(y-t/2) z(y+t/2)) sinh(k r/2) sinh((k-1) r/2) dy
    r(y)       = log z(y-t/2) - log z(y+t/2)

The second integral is called the excess integral. It is computed by the 15-point Gauss-Kronrod rule
on panels (intervals). Three terms are added, so that the result is an upper bound: the difference
from the 7-point rule; a bound of the remainder beyond the last panel; and an allowance for
rounding. An order has no bound (`inf`) if its integral diverges or has an error above 0.1 %.

Source: Nasr, Shokri and Houmansadr 2020, Lemmas 4 and 5 (where 1/(1-a) is a misprint); Mironov,
Talwar and Zhang 2019 (both directions). Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from scipy.special import gammaln

from pasearch.accounting.checks import check_positive, check_positive_integer, check_probability
from pasearch.accounting.densities import Density, GaussianNoise, make_kronrod_rule
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError

MAX_ORDER = 256
"""Maximum Renyi order with a bound."""
ORDERS: Array = np.arange(2.0, MAX_ORDER + 1)
"""Default Renyi orders: 2, 3, ..., 256."""
SHIFTS_PER_OCTAVE = 20
"""Number of shifts from t to 2 t at which I_k is integrated; between them it is interpolated."""
GRID_RATIO = 1 + 2.0**-8
"""Default ratio of the grid of magnitudes; rounding up by .2 % on average adds .4 % to the RDP."""
MIN_RELATIVE_MAGNITUDE = 1 / 64
"""Minimum magnitude, divided by the root mean square; smaller ones are rounded up to it."""
MAX_INTEGRAL_ERROR = 1e-3
"""Maximum relative error of an integral; with a larger one the order has no bound."""
ROUNDING_ALLOWANCE = 1e-9
"""Relative or absolute increase of logarithms, for floating-point rounding."""
MAX_PANELS = 600
"""Limit of integration for light-tailed densities, in panel widths."""
MIN_SHIFT = 1e-9
"""Minimum shift, in units of the scale; smaller ones are rounded up to it."""
ORDERS_PER_BLOCK = 32
"""Number of orders that are integrated at once, so that arrays fit into a cache."""
CHECKED_OCTAVES = 16
"""Number of octaves below the largest shift in which `check_density` checks that I_k grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """Upper bounds of the sorted magnitudes that one record adds to the coordinates of a sum.

    Args:
        values: Distinct magnitudes above 0, descending.
        counts: Number of coordinates with each magnitude.
    """

    values: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("values", "counts"):
            if not isinstance(getattr(self, name), (tuple, list)) or not getattr(self, name):
                raise UsageError(f"{name} is {getattr(self, name)!r}: expected a list of numbers.")
        object.__setattr__(self, "values", tuple(check_positive("values", v) for v in self.values))
        object.__setattr__(
            self, "counts", tuple(check_positive_integer("counts", c) for c in self.counts)
        )
        if len(self.values) != len(self.counts):
            raise UsageError(
                f"{len(self.values)} values and {len(self.counts)} counts: expected equal numbers."
            )
        if any(a <= b for a, b in zip(self.values, self.values[1:], strict=False)):
            raise UsageError("values: expected strictly descending numbers.")

    @classmethod
    def of(cls, vectors: Array, ratio: float = GRID_RATIO) -> Self:
        """Compute shifts that bound the sorted magnitudes of each of several vectors.

        Guarantee: the j-th largest shift is at least the j-th largest magnitude of each vector.

        Args:
            vectors: Finite vectors, (coordinates,) or (vectors, coordinates).
            ratio: Ratio of the geometric grid to which magnitudes are rounded up, in (1, 2]. A
                smaller ratio is slower and gives a lower privacy cost.
        """
        rows = np.abs(np.atleast_2d(np.asarray(vectors, dtype=float)))
        if rows.ndim != 2 or not (np.isfinite(rows).all() and rows.any()):
            raise UsageError("vectors: expected finite numbers, not all 0, in one or two axes.")
        top = np.sort(rows, axis=1).max(axis=0)
        top = top[top > 0]
        low = MIN_RELATIVE_MAGNITUDE * math.sqrt(np.mean(top**2))
        if not 1 < check_positive("ratio", ratio) <= 2:
            raise UsageError(f"ratio is {ratio}: expected a number above 1, such as {GRID_RATIO}.")
        step = math.log(ratio)
        # Slightly larger, so that a rounded value is never below the exact one.
        exponents = np.ceil(np.log(np.maximum(top, low)) / step - 1e-9).astype(int)
        grid, counts = np.unique(exponents, return_counts=True)
        values = np.exp(grid * step) * (1 + 1e-8)
        return cls(values=tuple(values[::-1].tolist()), counts=tuple(counts[::-1].tolist()))

    @property
    def coordinates(self) -> int:
        """Number of coordinates that a record changes."""
        return sum(self.counts)

    @property
    def reach(self) -> float:
        """Largest magnitude."""
        return self.values[0]

    @property
    def norm(self) -> float:
        """L2 norm, an upper bound of the norm of the vector that a record adds."""
        return math.sqrt(
            math.fsum(c * v * v for v, c in zip(self.values, self.counts, strict=True))
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values."""
        return {"values": list(self.values), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create shifts from JSON values as written by `to_json`; others raise a UsageError."""
        if not isinstance(values, Mapping) or set(values) != {"values", "counts"}:
            raise UsageError("shifts: expected `values` and `counts`, as `to_json` wrote them.")
        return cls(values=values["values"], counts=values["counts"])


def additive_rdp(
    density: Density,
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    orders: Array = ORDERS,
) -> Array:
    """Compute an upper bound of the Renyi divergence of one step, in both directions, by order.

    Guarantee: holds if each record is sampled independently (Poisson sampling), and the sorted
    magnitudes that it adds are at most those of one of the shifts.

    Args:
        density: Density of the noise, which is independent on every coordinate.
        shifts: One or several (for the vectors of a codebook); the bound holds for all of them.
        sampling_probability: q, in (0, 1].
        orders: Renyi orders above 1, (m,), integers or not.

    Returns:
        Bounds, (m,), 0 or above; `inf` above order 256, and if an integral is not accurate enough.

    Raises:
        UsageError: A number is invalid, or I_k of the density decreases somewhere
            (`check_density`).
    """
    q = check_probability("sampling_probability", sampling_probability)
    several = [shifts] if isinstance(shifts, Shifts) else list(shifts)
    orders = _check_orders(orders)
    check_density(density, max(each.reach for each in several), orders)
    values = np.unique(np.concatenate([each.values for each in several]))
    counts = np.zeros((len(several), len(values)))
    for row, each in zip(counts, several, strict=True):
        row[np.searchsorted(values, each.values)] = each.counts
    logs = _bound_log_integrals(
        density.unit, values / density.scale, _highest_integral_order(orders)
    )
    unknown = np.isinf(logs)
    products = counts @ np.where(unknown, 0.0, logs)
    products[(counts > 0).astype(float) @ unknown > 0] = np.inf
    moments = _compute_log_moments(products.max(axis=0), q)
    return _interpolate_orders(moments, orders)


def check_density(density: Density, reach: float, orders: Array = ORDERS) -> None:
    """Check that the integrals I_k(t) of a density do not decrease as t grows to the reach.

    For a symmetric density that decreases with |x| they never do (encoding.md). The computed
    numbers are checked because the proof does not cover numerical errors.

    Args:
        density: Noise density.
        reach: Largest shift, above 0.
        orders: Renyi orders above 1, (m,). Every k up to the largest order is checked.

    Raises:
        UsageError: An I_k decreases. The message states k and t.
    """
    if not isinstance(density, Density):
        raise UsageError(f"density is {density!r}: expected one of `accounting.densities`.")
    highest = _highest_integral_order(_check_orders(orders))
    top = _compute_octave_index(np.array([check_positive("reach", reach) / density.scale]))[0] + 1
    steps = np.arange(top - CHECKED_OCTAVES * SHIFTS_PER_OCTAVE, top + 1, SHIFTS_PER_OCTAVE)
    _reject_falling(density, steps, _compute_integral_rows(density.unit, steps, highest))


def _check_orders(orders: Array) -> Array:
    """Check that orders are finite numbers above 1, and return a float array."""
    values = np.asarray(orders, dtype=float)
    if not (values.ndim == 1 and values.size and (values > 1).all() and np.isfinite(values).all()):
        raise UsageError(f"orders is {orders!r}: expected finite numbers above 1 in one axis.")
    return values


def _highest_integral_order(orders: Array) -> int:
    """Compute the largest k to integrate: 16, 32, 64, 128 or 256, so that few tables are made."""
    most = min(MAX_ORDER, float(np.max(orders)))
    return 2 ** max(4, math.ceil(math.log2(most)))


def _compute_log_moments(logs: Array, q: float) -> Array:
    """Compute log A_a for a = 1, 2, ..., from log of the product of I_k for k = 2, 3, ..."""
    if q == 1:
        return np.append(0.0, logs)
    with np.errstate(divide="ignore"):
        terms = _compute_log_binomials(q, len(logs) + 1) + _log_expm1(logs)
    terms[np.triu_indices(len(terms), 1)] = -np.inf  # terms with k > a do not exist
    peaks = terms.max(axis=1)
    peaks = np.where(peaks < np.inf, peaks, 0.0)
    with np.errstate(over="ignore"):
        sums = peaks + np.log(np.exp(terms - peaks[:, None]).sum(axis=1))
    return np.append(0.0, np.logaddexp(0.0, sums) * (1 + ROUNDING_ALLOWANCE))


@lru_cache(maxsize=64)
def _compute_log_binomials(q: float, highest: int) -> Array:
    """Compute log of C(a, k) (1-q)^(a-k) q^k for a, k = 2, ..., highest; arbitrary for k > a."""
    orders = np.arange(2, highest + 1)
    a, k = orders[:, None], orders[None, :]
    rest = np.maximum(a - k, 0)
    binomials = gammaln(a + 1) - gammaln(k + 1) - gammaln(rest + 1)
    return binomials + rest * math.log1p(-q) + k * math.log(q)


def _interpolate_orders(moments: Array, orders: Array) -> Array:
    """Compute bounds at any orders; log A_a is convex in a, so interpolation is an upper bound."""
    below = np.clip(np.floor(orders).astype(int), 1, len(moments))
    above = np.clip(np.ceil(orders).astype(int), 1, len(moments))
    share = orders - below
    with np.errstate(invalid="ignore"):
        chord = (1 - share) * moments[below - 1] + share * moments[above - 1]
    bounds = np.where(share == 0, moments[below - 1], chord) / (orders - 1)
    return np.where((orders <= MAX_ORDER) & (bounds >= 0), bounds, np.inf)  # NaN: no bound


def _compute_octave_index(shifts: Array) -> Array:
    """Compute the index of the largest integrated shift that is at most each shift."""
    return np.floor(np.log2(shifts) * SHIFTS_PER_OCTAVE).astype(int)


def _bound_log_integrals(density: Density, shifts: Array, highest: int) -> Array:
    """Compute upper bounds of log I_k(t), (shifts, k = 2, ..., highest).

    Between integrated shifts, log I_k or I_k^(1 / (k-1)) is interpolated linearly in t, whichever
    is convex (encoding.md). If neither is known to be convex, the value at the next larger
    integrated shift is used. For a Gaussian there is a formula.
    """
    shifts = np.maximum(shifts, MIN_SHIFT)
    if isinstance(density, GaussianNoise):  # closed form: k (k-1) t^2 / 2
        orders = np.arange(2.0, highest + 1)
        return np.multiply.outer(shifts**2, orders * (orders - 1) / 2) * (1 + ROUNDING_ALLOWANCE)
    cells, place = np.unique(_compute_octave_index(shifts), return_inverse=True)
    steps = np.unique(np.append(cells, cells + 1))
    rows = _compute_integral_rows(density, steps, highest)
    _reject_falling(density, steps, rows)
    at = np.searchsorted(steps, cells)[place]
    below, above = rows[at], rows[at + 1]
    if not density.inverse_convex:
        return above
    share = (shifts / 2.0 ** (cells[place] / SHIFTS_PER_OCTAVE) - 1) / (
        2.0 ** (1 / SHIFTS_PER_OCTAVE) - 1
    )
    # Rounded up, because the farther end may be larger by many powers of ten.
    share = np.clip(share + 1e-12, 0.0, 1.0)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        if density.log_concave:
            found = (1.0 - share) * below + share * above
        else:
            powers = np.arange(1.0, rows.shape[1] + 1)
            near, far = (_log_expm1(each / powers) for each in (below, above))
            chord = np.logaddexp(np.log1p(-share) + near, np.log(share) + far)
            found = powers * np.logaddexp(0.0, chord)
    return np.where(np.isfinite(above), np.minimum(found * (1 + ROUNDING_ALLOWANCE), above), above)


def _log_expm1(x: Array) -> Array:
    """Compute log(e^x - 1) for x >= 0."""
    return x + np.log(-np.expm1(-x))


def _reject_falling(density: Density, steps: Array, rows: Array) -> None:
    """Raise an error if a column of `rows`, log I_k by shift, decreases clearly."""
    known = np.where(np.isfinite(rows), rows, 0.0)
    highest = np.maximum.accumulate(known, axis=0)[:-1]
    falls = rows[1:] < highest * (1 - 2 * MAX_INTEGRAL_ERROR)
    if falls.any():
        at, k = np.argwhere(falls)[0]
        shift = 2.0 ** (steps[at + 1] / SHIFTS_PER_OCTAVE) * density.scale
        raise UsageError(
            f"The privacy cost of {density.name!r} noise cannot be bounded: its divergence "
            f"decreases as the shift grows to {shift:g}, so the largest encoded gradient is "
            f"not the worst case (integral of order {k + 2}). Use a density with one mode, at 0."
        )


def _compute_integral_rows(density: Density, steps: Array, highest: int) -> Array:
    """Compute `_compute_integral_row` for several shifts, (steps, k)."""
    return np.stack([_compute_integral_row(density, int(step), highest) for step in steps])


@lru_cache(maxsize=8192)
def _compute_integral_row(density: Density, step: int, highest: int) -> Array:
    """Compute upper bounds of log I_k(t), k = 2 .. highest, at t = 2^(step/SHIFTS_PER_OCTAVE)."""
    shift = 2.0 ** (step / SHIFTS_PER_OCTAVE)
    orders = np.arange(2.0, highest + 1)
    edges = _choose_panel_edges(density, shift, orders)
    y, weights, differences = make_kronrod_rule(edges)
    near = density.unit_log_density(np.abs(y - shift / 2)).ravel()
    far = density.unit_log_density(y + shift / 2).ravel()
    ratio, middle = np.abs(near - far), (near + far) / 2
    rest = density.unit_log_remainder(shift, orders, float(edges[-1]))
    excess = np.full(len(orders), np.inf)
    for first in range(0, len(orders), ORDERS_PER_BLOCK):
        part = slice(first, first + ORDERS_PER_BLOCK)
        ks = orders[part]
        # 4 sinh(k r/2) sinh((k-1) r/2) = e^((k-1/2) r) (1 - e^(-k r)) (1 - e^(-(k-1) r))
        logs = np.multiply.outer(ks - 0.5, ratio) + middle
        peaks = logs.max(axis=1)
        falls = -np.expm1(np.multiply.outer(-np.append(ks[0] - 1, ks), ratio))
        heights = np.exp(logs - peaks[:, None]) * falls[1:] * falls[:-1]
        total = heights @ weights.ravel()
        panels = np.einsum("kpn,pn->kp", heights.reshape(-1, *y.shape), differences)
        errors = np.abs(panels).sum(axis=1) + np.exp(np.minimum(rest[part] - peaks, 700.0))
        bound = peaks + np.log(total + errors) + ROUNDING_ALLOWANCE + 1e-15 / shift
        excess[part] = np.where(errors <= MAX_INTEGRAL_ERROR * total, bound, np.inf)
    row = np.logaddexp(0.0, excess)
    row.flags.writeable = False
    return row


def _choose_panel_edges(density: Density, shift: float, orders: Array) -> Array:
    """Choose the ends of the panels on y >= 0; panels are narrow around t/2, the density's mode."""
    grain = density.panel_width
    end = _choose_integration_end(density, shift, orders)
    near = grain * 3.0 ** np.arange(-14, 0)
    core = end if density.is_light_tailed else min(end, 24 * grain)
    # Beyond the core, each panel is 25 % longer than the previous one.
    growing = np.geomspace(core, end, 2 + math.ceil(math.log(end / core) / math.log(1.25)))
    spread = np.append(np.arange(grain, core, grain), growing)
    distances = np.concatenate([[0.0], near, spread])
    breaks = density.breaks
    middle = shift / 2
    both = [middle + distances, middle - distances, middle + breaks, np.abs(middle - breaks), [0.0]]
    ends = np.concatenate(both)
    return np.unique(ends[ends >= 0])


def _choose_integration_end(density: Density, shift: float, orders: Array) -> float:
    """Choose the limit of integration, as a distance from t/2; the rest is negligible."""
    some = orders[[0, len(orders) // 8, -1]]
    goals = np.log(some * (some - 1.0)) + 2 * math.log(min(shift, 1.0)) - 34
    grain = density.panel_width
    most = MAX_PANELS * grain if density.is_light_tailed else 1e15
    end = 16 * grain
    while end < most:
        rest = density.unit_log_remainder(shift, some, shift / 2 + end)
        if (rest <= goals).all():
            break
        end *= 1.25
    return min(end, most)
