"""What a price means: how often the best attacker is right, from the whole privacy profile.

An attacker who knows all other records and sees everything that is released says whether one given
record was in the data. If it says so wrongly with probability alpha, it is right with at most

    TPR(alpha) = min over e >= 0 of  min( e^e alpha + delta(e),  1 - e^-e (1 - alpha - delta(e)) )

Each term is the definition of (e, delta(e))-DP for the event "it says so", or for its complement,
so any e gives an upper bound, and the least is nearly exact; at one e alone,
it may be far too large.

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
"""At how many epsilons the bound is looked at, and at how many around the best of them."""


def true_positive_rate(event: Event, false_positive_rate: float) -> float:
    """Return how often the best attacker is right at most, in [alpha, 1].

    Guarantee: an upper bound for the event under zero-out adjacency.

    Args:
        event: Everything that is released of a partition.
        false_positive_rate: alpha, in (0, 1): how often it may be wrong about a record that is not
            in the data.

    Raises:
        Unsupported: No accountant has a bound for the event.

    Cost: nothing; this is arithmetic on public numbers.
    """
    return _cached_rate(event, check_fraction("false_positive_rate", false_positive_rate))


@lru_cache(maxsize=256)  # a run, its resume and its check ask for the same
def _cached_rate(event: Event, alpha: float) -> float:
    if not count_atomic_releases(event):
        return alpha
    top = max(1e-3, min(price(event, 1e-9).epsilon, 700.0))
    epsilons = [top * (place / COARSE_POINTS) ** 2 for place in range(COARSE_POINTS + 1)]
    found = {epsilon: _rate_bound(event, epsilon, alpha) for epsilon in epsilons}
    best = min(found, key=found.__getitem__)
    place = epsilons.index(best)
    low, high = epsilons[max(0, place - 1)], epsilons[min(COARSE_POINTS, place + 1)]
    around = (low + (high - low) * share / FINE_POINTS for share in range(1, FINE_POINTS))
    least = min(found[best], *(_rate_bound(event, epsilon, alpha) for epsilon in around))
    return max(alpha, least)


def _rate_bound(event: Event, epsilon: float, alpha: float) -> float:
    delta = min(1.0, compute_delta(event, epsilon))
    direct = math.exp(epsilon) * alpha + delta
    other = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - alpha - delta)
    return min(1.0, direct, other)


def max_true_positive_rate(events: Mapping[str, Event], false_positive_rate: float) -> float:
    """Return the same of a whole run: a record is in one partition, so the most of any."""
    return max(true_positive_rate(event, false_positive_rate) for event in events.values())
