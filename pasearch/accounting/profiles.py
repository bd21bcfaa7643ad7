"""Privacy profiles: upper bounds on delta as a function of epsilon.

    delta(e) = max over neighbours, both directions, of sup_S P(S) - exp(e) P'(S)

As a function of alpha = exp(e), delta is convex and non-increasing, so a chord between two points
is an upper bound. Below 0 it follows from the other direction,

    delta(-e) = 1 - exp(-e) + exp(-e) delta(e).

So a few points at e >= 0 bound the whole curve. A convex curve that is below g at some points is
also below their lower convex hull, which a privacy loss distribution can represent (Doroshenko et
al. 2022, "Connect the Dots").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

DELTA_FLOAT_ERROR = 1e-14  # rounding of the FFTs and sums in a sampled delta
LINEAR_STEPS = 64  # grid points one interval apart, before their spacing grows


def epsilon_grid(top: float, interval: float, growth: float = 1.01) -> Array:
    """Return multiples of `interval` from 0 to `top` or more: dense near 0, then geometric."""
    last = max(int(np.ceil(top / interval)), 1)
    steps = np.log(max(last / LINEAR_STEPS, 1.0)) / np.log(growth)
    spread = np.ceil(LINEAR_STEPS * growth ** np.arange(int(steps) + 1))
    whole = np.concatenate([np.arange(LINEAR_STEPS), spread])
    return np.unique(np.append(whole[whole < last], last)) * interval


@dataclass(frozen=True, slots=True, eq=False)
class PrivacyProfile:
    """An upper bound on delta(e) at every real e, for both directions of the adjacency.

    Args:
        epsilons: Ascending epsilons, (k,); the first is 0.
        deltas: Upper bounds on delta at these epsilons, (k,), in [0, 1].
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def sampled(cls, delta: Callable[[Array], Array], epsilons: Array) -> PrivacyProfile:
        """Evaluate delta at these epsilons, and add the floating-point error."""
        deltas = np.asarray(delta(epsilons)) * (1 + 1e-9) + DELTA_FLOAT_ERROR
        if not np.isfinite(deltas).all():
            raise FloatingPointError("a privacy profile is not finite")
        return cls(epsilons, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0)))

    @property
    def max_epsilon(self) -> float:
        """The largest epsilon at which the bound still decreases."""
        return float(self.epsilons[-1])

    def at(self, epsilon: float | Array) -> Array:
        """Evaluate the bound at any epsilon, including negative ones."""
        epsilon = np.asarray(epsilon, dtype=float)
        alpha = np.exp(np.minimum(np.abs(epsilon), self.max_epsilon))
        above = np.interp(alpha, np.exp(self.epsilons), self.deltas)
        below = -np.expm1(np.minimum(epsilon, 0)) + np.exp(np.minimum(epsilon, 0)) * above
        return np.where(epsilon >= 0, above, np.minimum(below, 1.0))

    def neighbour_probability(self, u: Array) -> Array:
        """Compute T(u): a neighbour's largest probability of an event of probability u.

        It is the minimum over e of exp(e) u + delta(e), at grid points: delta is convex in exp(e),
        so the best point is where its slope passes -u. Any other point would give a bound too.
        """
        epsilons = np.concatenate([-self.epsilons[:0:-1], self.epsilons])
        alphas, deltas = np.exp(epsilons), self.at(epsilons)
        slopes = np.minimum.accumulate(-np.diff(deltas) / np.diff(alphas))
        best: Any = np.searchsorted(-slopes, -u)
        return np.minimum(alphas[best] * u + deltas[best], 1.0)


def approximate_dp_profile(epsilon: float, delta: float) -> Callable[[Array], Array]:
    """Return the profile, for e >= 0, that bounds every (epsilon, delta)-DP release.

    It is the profile of randomised response that reveals everything with probability delta: delta +
    (1 - delta) max(0, 1 - exp(e - epsilon)) / (1 + exp(-epsilon)).

    Source: Kairouz, Oh and Viswanath 2015, Theorem 3.1.
    """
    scale = (1 - delta) / (1 + math.exp(-epsilon))
    return lambda e: delta - scale * np.expm1(np.minimum(e - epsilon, 0.0))


def lower_hull_indices(x: Array, y: Array) -> Array:
    """Find the lower convex hull of the points (x, y), x ascending (monotone chain)."""
    kept: list[int] = []
    for c in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if not (y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]):
                break  # b is below the chord from a to c
            kept.pop()
        kept.append(c)
    return np.array(kept)


def dominating_pld(delta: Callable[[Array], Array], top: float, interval: float) -> Any:
    """Construct a loss distribution that dominates each mechanism with a profile below `delta`.

    Args:
        delta: Vectorised bound on the profile for e >= 0, both directions.
        top: Epsilon beyond which the bound is constant (the rest becomes infinite loss).
        interval: Discretisation interval of the losses.

    Returns:
        dp_accounting's PrivacyLossDistribution, the same for both directions.

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
