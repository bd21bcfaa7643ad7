"""Renyi differential privacy (RDP): upper bounds of Renyi divergences by order a, and conversion.

A curve is an array of bounds, one for each order of a grid. Bounds of each type of event:

    Gaussian                  a / (2 sigma^2)
    discrete Gaussian         a Delta^2 / (2 sigma^2)
    Poisson-sampled Gaussian  dp_accounting's RdpAccountant (Mironov, Talwar and Zhang 2019)
    separately noisy records  log(1 - q + q e^((a-1) a / (2 sigma^2))) / (a-1)
    noise of any density      the binomial sum of module `additive` (Nasr et al. 2020)
    geometric, any pure DP    log(p e^((a-1) eps) + (1-p) e^(-(a-1) eps)) / (a-1),
                              p = e^eps / (1 + e^eps)
    any (eps, delta)-DP       that of eps-DP, except with probability delta, its additive delta
    composition               sum over atomic releases of count times bound
    worst of several          maximum at each order
    filtered releases         bound of the limit at the next order of the grid
    repeat and select         truncated negative binomial (TNB):
                                  eps(a) + (1+eta) min over b of [(1-1/b) eps(b) + log(1/gamma)/b]
                                  + log(m)/(a-1)
                              Poisson:
                                  eps(a) + mean delta_Q(log(a/(a-1))) + log(m)/(a-1)

A curve is converted at the best order:

    epsilon(delta) = min over a of eps(a) + log(1 - 1/a) - log(a delta)/(a-1)

The sum of additive deltas is subtracted from delta before the conversion.

A `PrivacyFilter` accepts adaptively chosen releases, under a limit B that is fixed before the run.
A release e after k others is accepted only if

    eps_1(a) + ... + eps_k(a) + eps_e(a)  <=  B(a)    for every order a of the grid

The privacy cost of a filter is the conversion of B at the best order, never of the spent sum, which
depends on the data. The filter theorem holds for each order separately, so B bounds the whole
curve. There is no such theorem for privacy loss distributions, so the cost of a filter is computed
by RDP only.

Sources: Papernot and Steinke 2022, Theorems 2 and 6; Canonne, Kamath and Steinke 2020, Proposition
12; for the geometric line, randomised response dominates every pure-DP release (Kairouz, Oh and
Viswanath 2015) and the geometric mechanism's loss has the same two values; the same theorem for
additive deltas (docs/guarantees/estimated-schema.md); docs/guarantees/noise-before-clip.md for
records with separate noise; Feldman and Zrnic 2021, Theorem 4.3, and Lecuyer 2021 for filters
(docs/guarantees/filters.md).
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from threading import Lock
from typing import NoReturn

import numpy as np

from pasearch.accounting import events
from pasearch.accounting.additive import additive_rdp
from pasearch.accounting.events import (
    MAX_ORDER,
    Event,
    FilteredReleases,
    count_atomic_releases,
    describe_event,
)
from pasearch.accounting.profiles import Array
from pasearch.accounting.selection import POISSON, RunCountDistribution
from pasearch.errors import BudgetError, UsageError

ORDERS: Array = np.array(
    [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 128, 256, 512, MAX_ORDER], dtype=float
)
"""Orders of the grid."""
LOG_MOMENT_ERROR = 1e-12
"""Maximum rounding error of log A(a) of a sampled Gaussian, by log-binomials up to order 1024."""
FILTER_SLACK = 1e-8
"""Relative increase of a filter's limit, for the rounding errors of 10^7 additions."""


class UnsupportedEvent(UsageError):
    """Error for an event whose privacy cost an accountant cannot bound."""


def rdp_curve(event: Event, orders: Array = ORDERS) -> Array:
    """Compute an upper bound of the Renyi divergence of an event at each order, in both directions.

    Args:
        event: All releases.
        orders: Ascending orders above 1, (k,).

    Returns:
        Bounds, (k,), each 0 or above; `inf` if no bound is known.

    Raises:
        UnsupportedEvent: A part of the event has no RDP bound; the message names it.
    """
    if additive_delta(event) > 0:
        raise UnsupportedEvent(
            f"RDP has no bound for [{describe_event(event)}], which has an additive delta; use "
            "`rdp_epsilon`, which subtracts it from delta, or PLD."
        )
    return _sum_curves(event, orders)


def rdp_epsilon(event: Event, delta: float) -> float:
    """Compute epsilon at delta by RDP; `inf` if the additive delta is at least delta."""
    left = delta - additive_delta(event)
    curve = _grid_curve(event)
    return epsilon_from_rdp(curve, left) if left > 0 else math.inf


def rdp_delta(event: Event, epsilon: float) -> float:
    """Compute delta at epsilon >= 0 by RDP, including the additive delta."""
    return min(1.0, additive_delta(event) + delta_from_rdp(_grid_curve(event), epsilon))


@lru_cache(maxsize=256)
def additive_delta(event: Event) -> float:
    """Compute the part of delta that does not depend on epsilon, in [0, 1]."""
    leaks = (
        count * _atom_additive_delta(atom) for atom, count in count_atomic_releases(event).items()
    )
    return min(1.0, math.fsum(leaks))


def filter_rdp_limit(event: Event, highest_order: float = MAX_ORDER) -> Array:
    """Compute the RDP limit of a filter at each of `ORDERS`.

    Args:
        event: Event whose RDP is the limit.
        highest_order: Maximum order with a limit; above it the result is `inf`.

    Raises:
        UnsupportedEvent: A part of the event has no RDP bound, or an additive delta.
    """
    kept = np.where(ORDERS <= highest_order, rdp_curve(event), np.inf)
    return make_monotone(kept) * (1 + FILTER_SLACK)


def find_best_order(event: Event, delta: float) -> float:
    """Find the order at which the conversion of an event's curve gives the smallest epsilon."""
    return float(ORDERS[np.argmin(_epsilons_by_order(rdp_curve(event), delta, ORDERS))])


def make_monotone(values: Array) -> Array:
    """Replace each bound by the smallest bound at its order or above.

    The results are bounds, too, because a Renyi divergence increases with its order.
    """
    return np.minimum.accumulate(values[::-1])[::-1]


def _atom_additive_delta(atom: Event) -> float:
    """Compute the additive delta of an atomic release."""
    match atom:
        case events.ApproximateDP():
            return atom.delta
        case events.WorstCase(several):
            return max(map(additive_delta, several))
        case events.RepeatAndSelect(inner, law):
            return law.mean * additive_delta(inner)
    return 0.0


def _sum_curves(event: Event, orders: Array) -> Array:
    """Compute the curve of an event without its additive delta: the sum over atomic releases."""
    total = np.zeros(len(orders))
    for atom, count in count_atomic_releases(event).items():
        values = _compute_atom_curve(atom, orders)
        # A NaN or negative bound is a numerical failure: there is no bound at that order.
        total = total + count * np.where(values >= 0, values, np.inf)
    return total


@lru_cache(maxsize=256)  # a profile uses the curve of one event at a hundred epsilons
def _grid_curve(event: Event) -> Array:
    """Compute the curve of an event at `ORDERS`, without its additive delta; cached."""
    curve = _sum_curves(event, ORDERS)
    curve.flags.writeable = False  # callers share the cached array
    return curve


def epsilon_from_rdp(values: Array, delta: float, orders: Array = ORDERS) -> float:
    """Convert a curve to the smallest epsilon at delta.

    It is 0 if the Kullback-Leibler divergence is at most -log(1 - delta^2), because then the total
    variation distance is at most delta.
    """
    if np.any(-np.expm1(-values) < delta**2):
        return 0.0
    return max(0.0, float(np.min(_epsilons_by_order(values, delta, orders))))


def _epsilons_by_order(values: Array, delta: float, orders: Array) -> Array:
    """Convert the bound at each order to epsilon at delta."""
    sound = np.where(np.isnan(values), np.inf, values)  # no bound: never the minimum
    return sound + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)


def delta_from_rdp(values: Array, epsilon: float, orders: Array = ORDERS) -> float:
    """Convert a curve to the smallest delta at epsilon >= 0, like `epsilon_from_rdp`."""
    logs = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    variation = math.sqrt(float(np.min(-np.expm1(-values))))
    return min(1.0, variation, math.exp(min(0.0, float(np.min(logs)))))


def _compute_atom_curve(event: Event, orders: Array) -> Array:
    """Compute the curve of an atomic release, without its additive delta."""
    match event:
        case events.Gaussian():
            return _gaussian_curve(1.0, event.noise_multiplier, orders)
        case events.DiscreteGaussian():
            return _gaussian_curve(event.sensitivity, event.sigma, orders)
        case events.PoissonGaussian():
            return _poisson_gaussian_curve(event, tuple(orders.tolist()))
        case events.NoisyRecords():
            return _noisy_records_curve(event.sampling_probability, event.noise_multiplier, orders)
        case events.AdditiveNoise():
            return _additive_curve(event, tuple(orders.tolist()))
        case events.Geometric() | events.PureDP() | events.ApproximateDP():
            return _two_valued_curve(event.epsilon, orders)
        case events.WorstCase():
            return np.max([_sum_curves(each, orders) for each in event.events], axis=0)
        case events.RepeatAndSelect():
            return _selection_curve(rdp_curve(event.event, orders), event.law, orders)
        case events.FilteredReleases():
            limit = filter_rdp_limit(event.event, event.highest_order)
            known = np.append(limit, np.inf)  # no bound above the grid
            return known[np.searchsorted(ORDERS, orders)]
    raise UnsupportedEvent(
        f"RDP has no bound for [{describe_event(event)}]; use an event that PLD or RDP supports."
    )


def _gaussian_curve(sensitivity: float, sigma: float, orders: Array) -> Array:
    """Compute the curve of a Gaussian release."""
    with np.errstate(all="ignore"):
        return orders * (np.float64(sensitivity) / sigma) ** 2 / 2


@lru_cache(maxsize=4096)
def _poisson_gaussian_curve(event: events.PoissonGaussian, orders: tuple[float, ...]) -> Array:
    """Compute the curve of a Gaussian release on a Poisson sample, by dp_accounting."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_SPECIAL)
    step = GaussianDpEvent(event.noise_multiplier)
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)  # hide warnings of diverging series; see `_sum_curves`
    try:
        accountant.compose(PoissonSampledDpEvent(event.sampling_probability, step))
    finally:
        logger.setLevel(before)
    return accountant.rdp + LOG_MOMENT_ERROR / (np.array(orders) - 1)


@lru_cache(maxsize=256)
def _additive_curve(event: events.AdditiveNoise, orders: tuple[float, ...]) -> Array:
    """Compute the curve of a Poisson-sampled sum with noise of any density; cached."""
    q = event.sampling_probability
    return additive_rdp(event.density, event.shifts, q, np.array(orders))


def _noisy_records_curve(q: float, noise_multiplier: float, orders: Array) -> Array:
    """Compute the curve of a step with separately noisy records in a public sample."""
    with np.errstate(all="ignore"):
        x = (orders - 1) * _gaussian_curve(1.0, noise_multiplier, orders)
        near = np.log1p(q * np.expm1(np.minimum(x, 1.0)))
        far = np.logaddexp(np.log1p(-q), math.log(q) + x)
        return np.where(x <= 1, near, far) / (orders - 1)


def _two_valued_curve(epsilon: float, orders: Array) -> Array:
    """Compute the curve of a release with the two privacy losses +-epsilon."""
    x = (orders - 1) * epsilon
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    # Two formulas of the same sum: the first avoids cancellation, the second overflow.
    near = np.log1p(2 * np.sinh(small / 2) ** 2 + math.tanh(epsilon / 2) * np.sinh(small))
    far = np.logaddexp(large, -large - epsilon) - math.log1p(math.exp(-epsilon))
    return np.where(x <= 1, near, far) / (orders - 1)


def _selection_curve(values: Array, law: RunCountDistribution, orders: Array) -> Array:
    """Compute the curve of repeat-and-select from the curve of one run."""
    if law.cap is not None:
        raise UnsupportedEvent("RDP has no bound if K is capped; the privacy profile has one.")
    if law.shape == POISSON:
        hats = [delta_from_rdp(values, math.log(a / (a - 1)), orders) for a in orders]
        constant = law.base_mean * np.array(hats)
    else:
        each = (1 - 1 / orders) * values + law.log_inverse_gamma / orders
        constant = (1 + float(law.shape)) * np.min(each)
    bound = values + constant + math.log(law.mean) / (orders - 1)
    return make_monotone(bound)


class PrivacyFilter:
    """Privacy filter for adaptively chosen releases on one partition.

    Guarantee: all spent events together cost at most `claim`, even if each was chosen depending on
    earlier releases. A filter cannot be copied or pickled: two copies would spend the limit twice.

    Args:
        limit: Event whose RDP is the limit B, fixed before a record is read.
        highest_order: Maximum order with a limit, also fixed in advance.

    Raises:
        UnsupportedEvent: The limit has no RDP bound at any order, or an additive delta.

    Cost: the whole `claim`, in advance, even if less is spent.
    """

    __slots__ = ("_limit", "_lock", "_most", "_spent")

    def __init__(self, limit: Event, highest_order: float = MAX_ORDER):
        self._limit = FilteredReleases(limit, highest_order)
        self._most = filter_rdp_limit(limit, self._limit.highest_order)
        if not np.isfinite(self._most).any():
            raise UnsupportedEvent(
                f"RDP bounds [{describe_event(limit)}] at no order, so it limits nothing: use one "
                "with an RDP bound."
            )
        self._spent = np.zeros_like(self._most)
        self._lock = Lock()

    @property
    def claim(self) -> FilteredReleases:
        """Event to charge for all releases together, independent of what is spent."""
        return self._limit

    @property
    def spent(self) -> Array:
        """Upper bound of the spent RDP at each order of the grid; it must not be published.

        It depends on adaptive choices. Only `claim` is a privacy cost.
        """
        return self._spent.copy()

    def spend(self, event: Event) -> None:
        """Spend the cost of an event, which may be released afterwards.

        Args:
            event: Event that depends on public numbers and earlier releases only.

        Raises:
            BudgetError: The event does not fit. Nothing is spent, and it must not be released.
            UnsupportedEvent: The event has no RDP bound, or an additive delta. Nothing is spent.
        """
        with self._lock:
            total = self._with(event)
            if not self._fits(total):
                raise BudgetError(
                    f"[{describe_event(event)}] does not fit into the remaining budget of "
                    f"[{describe_event(self._limit.event)}]: stop, or use a cheaper release. "
                    "Nothing was spent."
                )
            self._spent = total

    def _with(self, event: Event) -> Array:
        """Compute the spent RDP including one more event, rounded up."""
        added = make_monotone(rdp_curve(event))
        return np.where(added == 0, self._spent, np.nextafter(self._spent + added, np.inf))

    def _fits(self, total: Array) -> bool:
        """Check that a spent RDP is at most the limit, at every order."""
        return bool(np.all(total <= self._most))  # false for NaN, which `rdp_curve` never returns

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A Filter is never copied or pickled: two copies would spend twice.")
