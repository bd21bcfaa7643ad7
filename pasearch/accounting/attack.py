"""Upper bound of membership inference: the true-positive rate of the best attack.

An attacker who knows all releases and all other records guesses whether one record was in the data.
If the false-positive rate of the attack is alpha, its true-positive rate is at most

    TPR(alpha) = min over E >= 0 of  min( e^E alpha + delta(E),  1 - e^-E (1 - alpha - delta(E)) )

The two terms follow from (E, delta(E))-differential privacy for the answer "member" and for the
answer "no member". Every E gives an upper bound; the minimum over many E is nearly exact.

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
"""Number of epsilons, over the whole range, at which the bound is evaluated first."""
FINE_POINTS = 12
"""Number of parts into which the range around the best of these epsilons is divided then."""


def true_positive_rate(event: Event, false_positive_rate: float) -> float:
    """Compute an upper bound of the true-positive rate of any membership inference attack.

    Guarantee: the bound, in [alpha, 1], holds under zero-out adjacency.

    Args:
        event: All releases from a partition.
        false_positive_rate: Fraction alpha of non-members that the attack calls members, in (0, 1).

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
    """Compute `true_positive_rate`, for checked arguments."""
    if not count_atomic_releases(event):
        return alpha
    top = max(1e-3, min(price(event, 1e-9).epsilon, 700.0))
    epsilons = [top * (point / COARSE_POINTS) ** 2 for point in range(COARSE_POINTS + 1)]
    found = {epsilon: _bound_rate_at(event, epsilon, alpha) for epsilon in epsilons}
    best = min(found, key=found.__getitem__)
    index = epsilons.index(best)
    low, high = epsilons[max(0, index - 1)], epsilons[min(COARSE_POINTS, index + 1)]
    around = (low + (high - low) * share / FINE_POINTS for share in range(1, FINE_POINTS))
    least = min(found[best], *(_bound_rate_at(event, epsilon, alpha) for epsilon in around))
    return max(alpha, least)


def _bound_rate_at(event: Event, epsilon: float, alpha: float) -> float:
    """Compute the upper bound that follows from one epsilon."""
    delta = min(1.0, compute_delta(event, epsilon))
    direct = math.exp(epsilon) * alpha + delta
    other = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - alpha - delta)
    return min(1.0, direct, other)


def max_true_positive_rate(events: Mapping[str, Event], false_positive_rate: float) -> float:
    """Compute the bound for a whole run: the maximum over the events of its partitions."""
    return max(true_positive_rate(event, false_positive_rate) for event in events.values())
