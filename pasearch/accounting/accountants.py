"""Privacy cost of events: the lowest of several proven upper bounds.

    RDP    Renyi divergences by order (`renyi.rdp_curve`), converted at the best order
    PLD    privacy loss distributions of dp_accounting, composed by FFT. For other mechanisms, the
           distribution that dominates an upper bound of the privacy profile delta(e) is used:
               repeat and select           min(1, m delta_Q(e - log c)), see module `selection`
               separately noisy records    q delta_Gaussian(e) for e >= 0

An (epsilon, delta)-DP release has an additive delta. PLD counts it as infinite loss; RDP subtracts
it from the total delta.

All bounds hold under zero-out adjacency, so their minimum does, too. For `WorstCase`, the maximum
over events is taken, of RDP at each order or of the privacy profiles. A record is in one partition,
so the cost of several partitions is their maximum, at the same delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from pasearch.accounting import events
from pasearch.accounting.checks import check_fraction, check_nonnegative
from pasearch.accounting.events import Event, count_atomic_releases, describe_event
from pasearch.accounting.gdp_approximation import compute_tail_loss, estimate_size
from pasearch.accounting.profiles import (
    Array,
    PrivacyProfile,
    approximate_dp_profile,
    dominating_pld,
    epsilon_grid,
)
from pasearch.accounting.renyi import UnsupportedEvent, additive_delta, rdp_delta, rdp_epsilon
from pasearch.accounting.selection import RunCountDistribution, selection_log_constant
from pasearch.errors import UsageError

GRID_POINTS_PER_DEVIATION = 30
"""Grid points per standard deviation of the loss of one release; any number gives a valid bound."""
MAX_GRID_POINTS = 40_000
"""Maximum number of grid points of the loss of one release."""
MAX_TOTAL_GRID_POINTS = 1_000_000
"""Maximum number of grid points of the loss of all releases together."""
TYPICAL_DELTA = 1e-6
"""Delta that is used only to choose grids."""
MAX_LOSS = 500.0
"""Maximum privacy loss; larger ones count as infinite. exp(500) is still a float."""
NUMERICAL_ERRORS = (ArithmeticError, ValueError, MemoryError, IndexError)
"""Errors after which the bound of the other accountant is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyCost:
    """Privacy cost (epsilon, delta), with the name of the accountant that computed it."""

    epsilon: float
    delta: float
    accountant: str


def price(event: Event, delta: float) -> PrivacyCost:
    """Compute the privacy cost of an event at delta.

    Guarantee: the event is (epsilon, delta)-DP under zero-out adjacency. Numerical steps round
    epsilon up, and the result is never NaN.

    Args:
        event: All releases, fixed in advance.
        delta: Failure probability, in (0, 1).

    Raises:
        UnsupportedEvent: No accountant has a bound for the whole event.

    Cost: nothing; this is arithmetic on public numbers.

    >>> from pasearch.accounting.events import Gaussian
    >>> round(price(Gaussian(noise_multiplier=2.0), 1e-5).epsilon, 2)
    1.99
    """
    return _cached_price(_check_event(event), check_fraction("delta", delta))


def fast_price(event: Event, delta: float) -> PrivacyCost:
    """Compute a slightly larger upper bound than `price`, faster: RDP is used only without PLD."""
    return _cached_fast_price(_check_event(event), check_fraction("delta", delta))


def compute_delta(event: Event, epsilon: float) -> float:
    """Compute the smallest delta at which the event costs at most epsilon >= 0."""
    epsilon = check_nonnegative("epsilon", epsilon)
    found, _ = _choose_lowest_bound(
        _check_event(event), lambda: rdp_delta(event, epsilon), lambda: _pld_delta(event, epsilon)
    )
    return min(1.0, found)


def price_partitions(
    events: Mapping[str, Event], delta: float
) -> tuple[PrivacyCost, dict[str, PrivacyCost]]:
    """Compute the privacy cost of events on disjoint partitions (parallel composition).

    Args:
        events: All releases from each partition, by its name.
        delta: Failure probability of every partition, in (0, 1).

    Returns:
        Total cost, which is the maximum because a record is in one partition; and the cost of each
        partition, by name.
    """
    if not events:
        raise UsageError("events is empty: expected at least one partition with its event.")
    prices = {name: price(event, delta) for name, event in events.items()}
    return max(prices.values(), key=lambda each: each.epsilon), prices


@lru_cache(maxsize=4096)
def _cached_price(event: Event, delta: float) -> PrivacyCost:
    """Compute `price`, for checked arguments."""
    if not count_atomic_releases(event):
        return PrivacyCost(epsilon=0.0, delta=delta, accountant="nothing released")
    epsilon, accountant = _choose_lowest_bound(
        event, lambda: rdp_epsilon(event, delta), lambda: _pld_epsilon(event, delta)
    )
    return PrivacyCost(epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=4096)
def _cached_fast_price(event: Event, delta: float) -> PrivacyCost:
    """Compute `fast_price`, for checked arguments."""
    try:
        epsilon = _pld_epsilon(event, delta)
    except (UnsupportedEvent, *NUMERICAL_ERRORS):
        return _cached_price(event, delta)
    if not math.isfinite(epsilon):
        return _cached_price(event, delta)
    return PrivacyCost(epsilon=max(0.0, epsilon), delta=delta, accountant=_pld_name(event))


def _choose_lowest_bound(
    event: Event, by_rdp: Callable[[], float], by_pld: Callable[[], float]
) -> tuple[float, str]:
    """Choose the lower of two bounds.

    Returns:
        Bound, and the name of its accountant, which also states a numerical failure of the other.
    """
    bounds, missing, failed = [], [], ""
    for bound, accountant in ((by_pld, _pld_name(event)), (by_rdp, "RDP")):
        try:
            value = bound()
            if math.isnan(value):
                raise FloatingPointError("the bound is NaN")
            bounds.append((max(0.0, value), accountant))
        except UnsupportedEvent as reason:
            missing.append(str(reason))
        except NUMERICAL_ERRORS as reason:
            failed = f" ({accountant} failed: {reason})"
            missing.append(f"{accountant} failed: {reason}")
    if not bounds:
        raise UnsupportedEvent(f"no bound for [{describe_event(event)}]: {'; '.join(missing)}")
    value, accountant = min(bounds)
    return value, accountant + failed


def _pld_epsilon(event: Event, delta: float) -> float:
    """Compute epsilon at delta by PLD, or by the profile if the event is a single selection."""
    match _single_atom(event):
        case events.WorstCase(several):
            return max(_pld_epsilon(each, delta) for each in several)
        case events.RepeatAndSelect(inner, law):
            return _pld_epsilon(inner, delta / law.mean) + _selection_log_constant(inner, law)
    return float(_composed_pld(event).get_epsilon_for_delta(delta))


def _pld_delta(event: Event, epsilon: float) -> float:
    """Compute delta at any real epsilon, like `_pld_epsilon`."""
    match _single_atom(event):
        case events.WorstCase(several):
            return max(_pld_delta(each, epsilon) for each in several)
        case events.RepeatAndSelect(inner, law):
            base = _pld_delta(inner, epsilon - _selection_log_constant(inner, law))
            return min(1.0, law.mean * base)
    return float(_composed_pld(event).get_delta_for_epsilon(float(epsilon)))


@lru_cache(maxsize=256)
def _selection_log_constant(inner: Event, law: RunCountDistribution) -> float:
    """Compute log c of a selection among runs of `inner`; cached."""
    return selection_log_constant(law, _privacy_profile(inner))


@lru_cache(maxsize=64)
def _privacy_profile(event: Event) -> PrivacyProfile:
    """Compute the privacy profile of an event on a grid fine enough for composition."""
    match _single_atom(event):
        case events.WorstCase(several):
            profiles = [_privacy_profile(each) for each in several]
            unit = 1e-6 * max(1e-9, *(each.max_epsilon for each in profiles))
            all_points = np.concatenate([each.epsilons for each in profiles])
            shared = np.unique(np.floor(all_points / unit)) * unit
            return PrivacyProfile(shared, np.max([each.at(shared) for each in profiles], axis=0))
        case events.RepeatAndSelect(inner, law):
            bound, top = _selection_bound(inner, law)
            shared = epsilon_grid(top, _grid_interval(event))
            return PrivacyProfile(shared, bound(shared))
    losses, leak = _composed_pld(event), additive_delta(event)
    tails = (leak + tail for tail in (1e-13, 1e-11, 1e-9, 1e-6, 1e-3, 0.1))
    tops = (losses.get_epsilon_for_delta(tail) for tail in tails)
    top = next((float(top) for top in tops if math.isfinite(top)), 0.0)
    return PrivacyProfile.sampled(
        losses.get_delta_for_epsilon, epsilon_grid(min(top, MAX_LOSS), _grid_interval(event))
    )


def _selection_bound(
    inner: Event, law: RunCountDistribution
) -> tuple[Callable[[Array], Array], float]:
    """Make the bound of a selection's privacy profile, e -> min(1, m delta_Q(e - log c)).

    The second result is the epsilon beyond which the bound is constant.
    """
    base, log_c = _privacy_profile(inner), _selection_log_constant(inner, law)
    return lambda e: np.minimum(1.0, law.mean * base.at(e - log_c)), base.max_epsilon + log_c


@lru_cache(maxsize=64)
def _composed_pld(event: Event) -> Any:
    """Compose the privacy loss distribution of an event from its atomic releases."""
    from dp_accounting.pld import privacy_loss_distribution

    interval = _grid_interval(event)
    total = privacy_loss_distribution.identity(interval)
    for index, (atom, count) in enumerate(count_atomic_releases(event).items()):
        if isinstance(atom, events.Gaussian):
            losses = privacy_loss_distribution.from_gaussian_mechanism(
                atom.noise_multiplier / math.sqrt(count), value_discretization_interval=interval
            )
        else:
            losses = _single_release_pld(atom, interval)
            losses = losses if count == 1 else losses.self_compose(count)
        total = losses if index == 0 else total.compose(losses)
    return total


@lru_cache(maxsize=64)
def _single_release_pld(atom: Event, interval: float) -> Any:
    """Make the privacy loss distribution of an atomic release on a grid of losses."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    match atom:
        case events.PoissonGaussian():
            return losses.from_gaussian_mechanism(
                atom.noise_multiplier,
                value_discretization_interval=interval,
                sampling_prob=atom.sampling_probability,
                neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
            )
        case events.TruncatedPoissonGaussian():
            return losses.from_truncated_subsampled_gaussian_mechanism(
                dataset_size=atom.dataset_size,
                sampling_probability=atom.sampling_probability,
                truncated_batch_size=atom.truncated_batch_size,
                noise_multiplier=atom.noise_multiplier,
                value_discretization_interval=interval,
                neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
            )
        case events.NoisyRecords(q, noise_multiplier):
            bound = _revealed_sample_profile(q, noise_multiplier)
            return dominating_pld(
                bound, min(compute_tail_loss(noise_multiplier), MAX_LOSS), interval
            )
        case events.Geometric() | events.PureDP():
            return losses.from_discrete_laplace_mechanism(
                atom.epsilon, value_discretization_interval=interval, use_connect_dots=True
            )
        case events.ApproximateDP(epsilon, delta):
            return dominating_pld(approximate_dp_profile(epsilon, delta), epsilon, interval)
        case events.WorstCase():
            profile = _privacy_profile(atom)
            return dominating_pld(profile.at, profile.max_epsilon, interval)
        case events.RepeatAndSelect(inner, law):
            return dominating_pld(*_selection_bound(inner, law), interval)
    raise UnsupportedEvent(
        f"PLD has no bound for [{describe_event(atom)}]; use an event that PLD or RDP supports."
    )


def _revealed_sample_profile(q: float, noise_multiplier: float) -> Callable[[Array], Array]:
    """Make the privacy profile, for e >= 0, of a Gaussian release if the Poisson sample is public.

    Source: Balle and Wang 2018, Theorem 8, for the Gaussian; docs/guarantees/noise-before-clip.md.
    """
    mu = 1 / noise_multiplier

    def delta(epsilon: Array) -> Array:
        head = log_ndtr(mu / 2 - epsilon / mu)
        tail = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        rounding = 1e-13 * (1 + np.abs(head) + np.abs(epsilon))  # relative error, by logarithms
        return q * np.exp(head) * (rounding - np.expm1(np.minimum(tail - head, 0.0)))

    return delta


def _single_atom(event: Event) -> Event | None:
    """Get the only atomic release of an event if it is made once; else None."""
    found = count_atomic_releases(event)
    return next(iter(found)) if list(found.values()) == [1] else None


def _pld_name(event: Event) -> str:
    """Name the PLD accountant of an event, for the user."""
    return "PLD, selection by privacy profile" if _contains_selection(event) else "PLD"


def _contains_selection(event: Event) -> bool:
    """Check whether an event contains a repeat-and-select."""
    return any(
        isinstance(atom, events.RepeatAndSelect)
        or (isinstance(atom, events.WorstCase) and any(map(_contains_selection, atom.events)))
        for atom in count_atomic_releases(event)
    )


def _grid_interval(event: Event) -> float:
    """Choose the grid interval of losses: a fraction of the standard deviation of one release.

    Rounding losses to a grid with interval h adds at most h^2 / 4 to their variance. Releases with
    the two losses +-epsilon are an exception: their grid contains epsilon itself.
    """
    size = estimate_size(event, TYPICAL_DELTA)
    interval = max(
        math.sqrt(size.variance / size.count) / GRID_POINTS_PER_DEVIATION,
        size.width / MAX_GRID_POINTS,
    )
    # The grid is coarse only if the losses are far above any useful epsilon.
    interval = min(max(interval, 1e-9), max(0.1, size.width * size.count / MAX_TOTAL_GRID_POINTS))
    two_valued = events.Geometric, events.PureDP, events.ApproximateDP
    # The loss 0 (of an additive delta) is on every grid.
    values = {
        atom.epsilon for atom in count_atomic_releases(event) if isinstance(atom, two_valued)
    } - {0.0}
    if not values:
        return interval
    if len(values) == 1:
        (epsilon,) = values
        # Slightly more than epsilon / integer, so that the last grid point is not below epsilon.
        return epsilon / math.ceil(epsilon / interval) * (1 + 1e-15)
    return max(min(interval, 1e-3 * min(values)), max(values) / MAX_GRID_POINTS)


def _check_event(event: object) -> Event:
    """Check that a value is an event of `EVENT_TYPES`, and return it."""
    if type(event) not in events.EVENT_TYPES.values():
        raise UnsupportedEvent(
            f"{event!r} is not an event class of `accounting.events`: it has no bound."
        )
    return event  # type: ignore[return-value]
