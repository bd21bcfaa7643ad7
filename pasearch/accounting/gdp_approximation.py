"""Gaussian (central limit) approximation of privacy costs, for grids and initial guesses only.

By the central limit theorem, the sum of many small privacy losses is about that of a Gaussian
release, N(mu^2 / 2, mu^2). So an event is approximated by its variance mu^2:

    Gaussian                  1 / sigma^2
    Poisson-sampled Gaussian  q^2 (exp(1 / sigma^2) - 1)
    separately noisy records  log(1 + q (exp(1 / sigma^2) - 1))
    two losses +-eps          2 eps tanh(eps / 2)
    composition               sum
    worst of several          maximum
    filtered releases         that of the limit
    repeat and select         that of a Gaussian release with the approximate epsilon

Source: Bu, Dong, Long and Su 2020 (the second line); Dong, Roth and Su 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from pasearch.accounting import events
from pasearch.accounting.events import Event, count_atomic_releases
from pasearch.accounting.selection import RunCountDistribution

MAX_VALUE = 1e150
"""Maximum of all computed values, so that their products do not overflow."""


@dataclass(frozen=True, slots=True)
class EventSize:
    """Approximate size of an event.

    Args:
        variance: Variance mu^2 of the privacy loss.
        count: Number of releases.
        width: Privacy loss of one release that is hardly ever exceeded; the largest of all.
    """

    variance: float
    count: int
    width: float


def estimate_epsilon(event: Event, delta: float) -> float:
    """Estimate epsilon of an event at delta; the estimate is monotone in the privacy cost."""
    return compute_gaussian_epsilon(math.sqrt(estimate_size(event, delta).variance), delta)


def estimate_size(event: Event, delta: float) -> EventSize:
    """Estimate the size of an event; delta is used for selections only."""
    variance, releases, width = 0.0, 0, 0.0
    for atom, count in count_atomic_releases(event).items():
        size, loss = _estimate_atom_size(atom, delta)
        variance += count * size
        releases += 1 if isinstance(atom, events.Gaussian) else count
        width = max(width, loss)
    return EventSize(min(variance, MAX_VALUE), max(1, releases), min(width, MAX_VALUE))


def compute_gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute epsilon at delta of a Gaussian release with mu = sensitivity / sigma.

    >>> round(compute_gaussian_epsilon(mu=1.0, delta=1e-5), 2)
    4.38
    """
    if not mu > 0:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * (1 + math.sqrt(-2 * math.log(delta)))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _gaussian_delta(mu, middle) > delta else (low, middle)
    return high


@lru_cache(maxsize=4096)
def compute_gaussian_mu(epsilon: float, delta: float) -> float:
    """Compute mu = sensitivity / sigma of a Gaussian release with about this epsilon at delta."""
    low, high = 1e-9, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if compute_gaussian_epsilon(middle, delta) <= epsilon else (low, middle)
        )
    return low


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Compute delta at epsilon of a Gaussian release with mu = sensitivity / sigma."""
    head = log_ndtr(mu / 2 - epsilon / mu)
    tail = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return math.exp(head) * -math.expm1(min(0.0, tail - head))


@lru_cache(maxsize=4096)
def _estimate_atom_size(atom: Event, delta: float) -> tuple[float, float]:
    """Estimate variance and width (see `EventSize`) of an atomic release."""
    match atom:
        case events.Gaussian():
            return _capped_square(1 / atom.noise_multiplier), compute_tail_loss(
                atom.noise_multiplier
            )
        case events.DiscreteGaussian():
            ratio = atom.sigma / atom.sensitivity
            return _capped_square(1 / ratio), compute_tail_loss(ratio)
        case events.PoissonGaussian():
            return _estimate_poisson_gaussian_size(atom.sampling_probability, atom.noise_multiplier)
        case events.TruncatedPoissonGaussian():
            # A tight cap replaces one record by another: twice the sensitivity in the tail.
            size, _ = _estimate_poisson_gaussian_size(
                atom.sampling_probability, atom.noise_multiplier
            )
            return size, compute_tail_loss(atom.noise_multiplier / 2)
        case events.AdditiveNoise():
            # For small shifts, the divergence is that of a Gaussian with equal Fisher information.
            sigma = 1 / (atom.shifts.norm * math.sqrt(atom.density.fisher_information))
            return _estimate_poisson_gaussian_size(atom.sampling_probability, sigma)
        case events.NoisyRecords():
            q, size = atom.sampling_probability, _capped_square(1 / atom.noise_multiplier)
            grown = size + math.log(q) if size > 300 else math.log1p(q * math.expm1(size))
            return grown, compute_tail_loss(atom.noise_multiplier)
        case events.Geometric() | events.PureDP() | events.ApproximateDP():
            return 2 * atom.epsilon * math.tanh(atom.epsilon / 2), atom.epsilon
        case events.WorstCase(several):
            sketches = [estimate_size(each, delta) for each in several]
            return max(s.variance for s in sketches), max(_total_tail_loss(s) for s in sketches)
        case events.FilteredReleases(inner):
            size = estimate_size(inner, delta)
            return size.variance, _total_tail_loss(size)
        case events.RepeatAndSelect(inner, law):
            size = estimate_size(inner, delta)
            mu = math.sqrt(size.variance)
            shift = _approximate_log_constant(mu, law)
            epsilon = compute_gaussian_epsilon(mu, delta / max(1.0, law.base_mean)) + shift
            variance = _capped_square(_find_gaussian_mu(epsilon, delta))
            return variance, _total_tail_loss(size) + shift
    return 0.0, 0.0


def _approximate_log_constant(mu: float, law: RunCountDistribution) -> float:
    """Approximate log c of a selection if one run is a Gaussian release with mu.

    It is the minimum over e0 of (eta + 1) (e0 + log(1 + delta_Q(e0) / (gamma e^e0))).
    """
    if isinstance(law.shape, str):
        return law.base_mean * _gaussian_delta(mu, 0.0)
    x = law.log_inverse_gamma
    guesses = mu * mu / 2 + mu * np.linspace(0.0, 6.0, 25)
    logs = [
        e + math.log1p(_gaussian_delta(mu, e) * math.exp(x - e)) for e in guesses if x - e < 700
    ]
    return (1 + float(law.shape)) * min(logs, default=x)


def _find_gaussian_mu(epsilon: float, delta: float) -> float:
    """Compute mu of a Gaussian release with any epsilon at delta, by bisection."""
    low, high = 0.0, math.sqrt(2 * epsilon) + 1e-12
    while compute_gaussian_epsilon(high, delta) < epsilon and high < MAX_VALUE:
        high *= 2
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if compute_gaussian_epsilon(middle, delta) < epsilon else (low, middle)
        )
    return high


def _estimate_poisson_gaussian_size(q: float, sigma: float) -> tuple[float, float]:
    """Estimate variance and width of a Gaussian release on a Poisson sample."""
    exponent = _capped_square(1 / sigma)
    size = q * q * math.expm1(exponent) if exponent < 300 else MAX_VALUE
    most = compute_tail_loss(sigma)
    grown = most + math.log(q) if most > 100 else math.log1p(q * math.expm1(most))
    return min(size, MAX_VALUE), max(grown, 0.0)


def compute_tail_loss(sigma: float) -> float:
    """Compute the privacy loss of a Gaussian release that is exceeded with probability e^-50."""
    return min(MAX_VALUE, (10 + 0.5 / sigma) / sigma)


def _total_tail_loss(size: EventSize) -> float:
    """Compute a privacy loss of all releases together that is hardly ever exceeded."""
    return size.variance / 2 + 8 * math.sqrt(size.variance) + size.width


def _capped_square(value: float) -> float:
    """Square a number, at most `MAX_VALUE`."""
    return min(value * value, MAX_VALUE)
