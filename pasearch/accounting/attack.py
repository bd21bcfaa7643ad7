"""Bound membership inference: the true-positive rate of the best attacker.

An attacker who knows all other records and all releases decides whether one record was in the data.
If its false-positive rate is alpha, its true-positive rate is at most

    TPR(alpha) = min over e >= 0 of  min( e^e alpha + delta(e),  1 - e^-e (1 - alpha - delta(e)) )

Each term is the definition of (e, delta(e))-DP for the event "member", or for its complement. Any e
gives an upper bound, and their minimum is nearly exact; a single e may be far too large.

Source: Kairouz, Oh and Viswanath 2015; Dong, Roth and Su 2022, Proposition 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from pasearch.accounting.accountants import compute_delta, price
from pasearch.accounting.checks import check_fraction
from pasearch.accounting.events import Event, count_atomic_releases

COARSE_POINTS = 24
FINE_POINTS = 12
"""Number of epsilons at which the bound is evaluated: first on all of the range, then near the
best."""


def true_positive_rate(event: Event, false_positive_rate: float) -> float:
    """Bound the true-positive rate of the best membership inference attack, in [alpha, 1].

    Guarantee: an upper bound for the event under zero-out adjacency.

    Args:
        event: All releases from a partition.
        false_positive_rate: alpha, the fraction of non-members called members, in (0, 1).

    Raises:
        UnsupportedEvent: No accountant has a bound for the event.

    Cost: nothing; this is arithmetic on public numbers.

    >>> from pasearch.accounting.events import PureDP
    >>> round(true_positive_rate(PureDP(epsilon=1.0), 0.01), 4)
    0.0272
    """
    return _cached_rate(event, check_fraction("false_positive_rate", false_positive_rate))


@lru_cache(maxsize=256)  # a run, its resume and its verification repeat the call
def _cached_rate(event: Event, alpha: float) -> float:
    if not count_atomic_releases(event):
        return alpha
    top = max(1e-3, min(price(event, 1e-9).epsilon, 700.0))
    epsilons = [top * (point / COARSE_POINTS) ** 2 for point in range(COARSE_POINTS + 1)]
    found = {epsilon: _rate_bound(event, epsilon, alpha) for epsilon in epsilons}
    best = min(found, key=found.__getitem__)
    index = epsilons.index(best)
    low, high = epsilons[max(0, index - 1)], epsilons[min(COARSE_POINTS, index + 1)]
    around = (low + (high - low) * share / FINE_POINTS for share in range(1, FINE_POINTS))
    least = min(found[best], *(_rate_bound(event, epsilon, alpha) for epsilon in around))
    return max(alpha, least)


def _rate_bound(event: Event, epsilon: float, alpha: float) -> float:
    delta = min(1.0, compute_delta(event, epsilon))
    direct = math.exp(epsilon) * alpha + delta
    other = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - alpha - delta)
    return min(1.0, direct, other)


def max_true_positive_rate(events: Mapping[str, Event], false_positive_rate: float) -> float:
    """Bound the rate for a whole run: a record is in one partition, so it is their maximum."""
    return max(true_positive_rate(event, false_positive_rate) for event in events.values())
