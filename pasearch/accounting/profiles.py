"""Privacy profiles: upper bounds of delta as a function of epsilon.

    delta(e) = max over neighbouring data sets of sup over S of P(S) - exp(e) P'(S)

As a function of alpha = exp(e), delta is convex and non-increasing, so linear interpolation in
alpha between two points is an upper bound. For negative arguments

    delta(-e) = 1 - exp(-e) + exp(-e) delta(e).

So a few points at e >= 0 bound the whole profile. A convex function that is below some points is
also below their lower convex hull, for which there is a privacy loss distribution (Doroshenko et
al. 2022, "Connect the Dots").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

DELTA_FLOAT_ERROR = 1e-14  # maximum rounding error of a computed delta
LINEAR_STEPS = 64  # number of grid points next to 0 with constant spacing, before it grows


def epsilon_grid(top: float, interval: float, growth: float = 1.01) -> Array:
    """Make a grid of multiples of `interval` from 0 to at least `top`, denser near 0.

    Args:
        top: Epsilon that the last point reaches.
        interval: Spacing near 0.
        growth: Ratio of consecutive points far from 0.
    """
    last = max(int(np.ceil(top / interval)), 1)
    steps = np.log(max(last / LINEAR_STEPS, 1.0)) / np.log(growth)
    spread = np.ceil(LINEAR_STEPS * growth ** np.arange(int(steps) + 1))
    whole = np.concatenate([np.arange(LINEAR_STEPS), spread])
    return np.unique(np.append(whole[whole < last], last)) * interval


@dataclass(frozen=True, slots=True, eq=False)
class PrivacyProfile:
    """Upper bound of delta(e) at every real e, for both directions of the adjacency.

    Args:
        epsilons: Ascending epsilons, (k,); the first is 0.
        deltas: Upper bounds of delta at these epsilons, (k,), in [0, 1].
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def sampled(cls, delta: Callable[[Array], Array], epsilons: Array) -> PrivacyProfile:
        """Make a profile from a function, and add its floating-point error.

        Args:
            delta: Function from epsilons >= 0 to deltas.
            epsilons: Ascending epsilons, (k,); the first is 0.
        """
        deltas = np.asarray(delta(epsilons)) * (1 + 1e-9) + DELTA_FLOAT_ERROR
        if not np.isfinite(deltas).all():
            raise FloatingPointError("a privacy profile is not finite")
        return cls(epsilons, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0)))

    @property
    def max_epsilon(self) -> float:
        """Epsilon beyond which the bound is constant."""
        return float(self.epsilons[-1])

    def at(self, epsilon: float | Array) -> Array:
        """Evaluate the bound at any epsilons, also negative ones."""
        epsilon = np.asarray(epsilon, dtype=float)
        alpha = np.exp(np.minimum(np.abs(epsilon), self.max_epsilon))
        above = np.interp(alpha, np.exp(self.epsilons), self.deltas)
        below = -np.expm1(np.minimum(epsilon, 0)) + np.exp(np.minimum(epsilon, 0)) * above
        return np.where(epsilon >= 0, above, np.minimum(below, 1.0))

    def neighbour_probability(self, u: Array) -> Array:
        """Compute T(u): the maximum probability, on a neighbouring data set, of an output set S.

        u is the probability of S on the original data set. T(u) is the minimum over e of exp(e) u +
        delta(e), evaluated at grid points. As delta is convex in exp(e), the best grid point is
        where its slope is -u. Every other point gives an upper bound, too.
        """
        epsilons = np.concatenate([-self.epsilons[:0:-1], self.epsilons])
        alphas, deltas = np.exp(epsilons), self.at(epsilons)
        slopes = np.minimum.accumulate(-np.diff(deltas) / np.diff(alphas))
        best: Any = np.searchsorted(-slopes, -u)
        return np.minimum(alphas[best] * u + deltas[best], 1.0)


def approximate_dp_profile(epsilon: float, delta: float) -> Callable[[Array], Array]:
    """Make the largest privacy profile, for e >= 0, of all (epsilon, delta)-DP releases.

    It is that of randomised response which reveals everything with probability delta:
    delta + (1 - delta) max(0, 1 - exp(e - epsilon)) / (1 + exp(-epsilon)).

    Source: Kairouz, Oh and Viswanath 2015, Theorem 3.1.
    """
    scale = (1 - delta) / (1 + math.exp(-epsilon))
    return lambda e: delta - scale * np.expm1(np.minimum(e - epsilon, 0.0))


def lower_hull_indices(x: Array, y: Array) -> Array:
    """Find the indices of the points (x, y) on their lower convex hull, x ascending."""
    kept: list[int] = []
    for c in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if not (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]):
                break  # b is below the line from a to c
            kept.pop()
        kept.append(c)
    return np.array(kept)


def dominating_pld(delta: Callable[[Array], Array], top: float, interval: float) -> Any:
    """Make a privacy loss distribution that dominates all mechanisms with a profile below a bound.

    Args:
        delta: Upper bound of the profile for e >= 0 and both directions, a function of arrays.
        top: Epsilon beyond which the bound is constant; this constant becomes infinite loss.
        interval: Grid interval of the losses.

    Returns:
        PrivacyLossDistribution of dp_accounting, equal for both directions.

    Source: Doroshenko et al. 2022, Algorithm 1, on the convex hull of the bound.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    half = epsilon_grid(top, interval)
    above = np.clip(delta(half), 0.0, 1.0)
    mirrored = -np.expm1(-half) + np.exp(-half) * above
    epsilons = np.concatenate([-half[:0:-1], half])
    deltas = np.minimum.accumulate(np.concatenate([mirrored[:0:-1], above]))
    alphas = np.concatenate([[0.0], np.exp(epsilons)])
    vertices: Any = (
        lower_hull_indices(alphas, np.concatenate([[1.0], deltas]))[1:] - 1
    )  # (0, 1) is always on it
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        interval, np.round(epsilons[vertices] / interval).astype(int), deltas[vertices]
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)
