"""What an event costs: the least of the bounds that are proved for it, and its name.

    RDP                           `renyi.rdp`, converted at the best order
    PLD                           dp_accounting's privacy loss distributions, composed by FFT
    PLD, selection by profile     eps_Q(delta / m) + log c (`selection`); composed with others as
                                  the loss distribution dominating min(1, m delta_Q(e - log c))
    PLD, records with own noise   the loss distribution dominating q delta_Gaussian(e), e >= 0

An (epsilon, delta)-DP release leaks its delta: PLD counts it as infinite loss, RDP takes it from
the delta of the whole.

All are upper bounds under zero-out adjacency, so the least is one too. `Worst` is the maximum of
RDP curves order by order, and the pointwise largest profile. A partition's records meet only that
partition's events, so several partitions cost the maximum, at the same delta.
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
from pasearch.accounting.checks import fraction, nonnegative
from pasearch.accounting.events import Event, describe, parts
from pasearch.accounting.profiles import Array, Profile, bounding_pld, grid, leaky_response
from pasearch.accounting.renyi import Unsupported, leaked_delta, rdp_delta, rdp_epsilon
from pasearch.accounting.selection import Law, log_constant
from pasearch.accounting.sketch import reach, sketch
from pasearch.errors import UsageError

FINENESS = 30  # grid points to a standard deviation; any grid gives an upper bound
MOST_POINTS = 40_000  # of one release's losses
MOST_LOSSES = 1_000_000  # of all releases' losses together
TYPICAL_DELTA = 1e-6  # only for choosing grids
MOST_LOSS = 500.0  # whatever is larger counts as infinite; exp of it is still a float
FAILURES = (ArithmeticError, ValueError, MemoryError, IndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a procedure costs: (epsilon, delta), and the accountant whose bound it is."""

    epsilon: float
    delta: float
    accountant: str


def price(event: Event, delta: float) -> Price:
    """The price of an event at delta.

    Guarantee: the event is (epsilon, delta)-DP under zero-out adjacency; every numerical step
    rounds to more epsilon, and a NaN is never a price.

    Args:
        event: what is released, fixed in advance.
        delta: strictly between 0 and 1.

    Raises:
        Unsupported: no accountant has a bound for the whole event.

    Cost: nothing; this is arithmetic on public numbers.
    """
    return _price(_known(event), fraction("delta", delta))


def rough_price(event: Event, delta: float) -> Price:
    """An upper bound on the price that is quicker to compute: RDP only where PLD has no bound."""
    return _rough_price(_known(event), fraction("delta", delta))


def delta_for(event: Event, epsilon: float) -> float:
    """The least delta at which the event costs at most epsilon >= 0."""
    epsilon = nonnegative("epsilon", epsilon)
    found, _ = _best(
        _known(event), lambda: rdp_delta(event, epsilon), lambda: _delta(event, epsilon)
    )
    return min(1.0, found)


def price_partitions(events: Mapping[str, Event], delta: float) -> tuple[Price, dict[str, Price]]:
    """The price of events on disjoint partitions, and each partition's own.

    Guarantee: parallel composition. A record is in one partition, so the whole costs the maximum.

    Args:
        events: everything that a partition is charged with, by the partition's name.
        delta: the same for every partition, strictly between 0 and 1.
    """
    if not events:
        raise UsageError("no partition is given; expected at least one with its event.")
    prices = {name: price(event, delta) for name, event in events.items()}
    return max(prices.values(), key=lambda each: each.epsilon), prices


@lru_cache(maxsize=4096)
def _price(event: Event, delta: float) -> Price:
    if not parts(event):
        return Price(epsilon=0.0, delta=delta, accountant="nothing released")
    epsilon, accountant = _best(
        event, lambda: rdp_epsilon(event, delta), lambda: _epsilon(event, delta)
    )
    return Price(epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=4096)
def _rough_price(event: Event, delta: float) -> Price:
    try:
        epsilon = _epsilon(event, delta)
    except (Unsupported, *FAILURES):
        return _price(event, delta)
    if not math.isfinite(epsilon):
        return _price(event, delta)
    return Price(epsilon=max(0.0, epsilon), delta=delta, accountant=_pld_name(event))


def _best(
    event: Event, by_rdp: Callable[[], float], by_pld: Callable[[], float]
) -> tuple[float, str]:
    """The lesser of two bounds and its name; one that fails numerically is left out, and named."""
    bounds, missing, failed = [], [], ""
    for bound, accountant in ((by_pld, _pld_name(event)), (by_rdp, "RDP")):
        try:
            value = bound()
            if math.isnan(value):
                raise FloatingPointError("the bound is not a number")
            bounds.append((max(0.0, value), accountant))
        except Unsupported as reason:
            missing.append(str(reason))
        except FAILURES as reason:
            failed = f" ({accountant} failed: {reason})"
            missing.append(f"{accountant} failed: {reason}")
    if not bounds:
        raise Unsupported(f"[{describe(event)}] has no price: {'; '.join(missing)}")
    value, accountant = min(bounds)
    return value, accountant + failed


def _epsilon(event: Event, delta: float) -> float:
    """Epsilon at delta by loss distributions and profiles; a single selection needs no hull."""
    match _only(event):
        case events.Worst(several):
            return max(_epsilon(each, delta) for each in several)
        case events.RepeatAndSelect(inner, law):
            return _epsilon(inner, delta / law.mean) + _log_constant(inner, law)
    return float(_pld(event).get_epsilon_for_delta(delta))


def _delta(event: Event, epsilon: float) -> float:
    """Delta at any real epsilon, the same way."""
    match _only(event):
        case events.Worst(several):
            return max(_delta(each, epsilon) for each in several)
        case events.RepeatAndSelect(inner, law):
            base = _delta(inner, epsilon - _log_constant(inner, law))
            return min(1.0, law.mean * base)
    return float(_pld(event).get_delta_for_epsilon(float(epsilon)))


@lru_cache(maxsize=256)
def _log_constant(inner: Event, law: Law) -> float:
    return log_constant(law, _profile(inner))


@lru_cache(maxsize=64)
def _profile(event: Event) -> Profile:
    """The profile of an event on a grid dense enough to compose and to select from."""
    match _only(event):
        case events.Worst(several):
            profiles = [_profile(each) for each in several]
            unit = 1e-6 * max(1e-9, *(each.top for each in profiles))
            all_points = np.concatenate([each.epsilons for each in profiles])
            shared = np.unique(np.floor(all_points / unit)) * unit
            return Profile(shared, np.max([each.at(shared) for each in profiles], axis=0))
        case events.RepeatAndSelect(inner, law):
            bound, top = _selection_bound(inner, law)
            shared = grid(top, _interval(event))
            return Profile(shared, bound(shared))
    losses, leak = _pld(event), leaked_delta(event)
    tails = (leak + tail for tail in (1e-13, 1e-11, 1e-9, 1e-6, 1e-3, 0.1))
    tops = (losses.get_epsilon_for_delta(tail) for tail in tails)
    top = next((float(top) for top in tops if math.isfinite(top)), 0.0)
    return Profile.sampled(
        losses.get_delta_for_epsilon, grid(min(top, MOST_LOSS), _interval(event))
    )


def _selection_bound(inner: Event, law: Law) -> tuple[Callable[[Array], Array], float]:
    """E -> min(1, m delta_Q(e - log c)), and where it stops falling."""
    base, log_c = _profile(inner), _log_constant(inner, law)
    return lambda e: np.minimum(1.0, law.mean * base.at(e - log_c)), base.top + log_c


@lru_cache(maxsize=64)
def _pld(event: Event) -> Any:
    """The loss distribution of an event: each atom composed `count` times, then all of them."""
    from dp_accounting.pld import privacy_loss_distribution

    interval = _interval(event)
    total = privacy_loss_distribution.identity(interval)
    for index, (atom, count) in enumerate(parts(event).items()):
        losses = _repeated(atom, count, interval)
        total = losses if index == 0 else total.compose(losses)
    return total


def _repeated(atom: Event, count: int, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(atom, events.Gaussian):
        sigma = atom.noise_multiplier / math.sqrt(count)
        return privacy_loss_distribution.from_gaussian_mechanism(
            sigma, value_discretization_interval=interval
        )
    single = _single(atom, interval)
    return single if count == 1 else single.self_compose(count)


@lru_cache(maxsize=64)
def _single(atom: Event, interval: float) -> Any:
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
            bound = _revealed_sample(q, noise_multiplier)
            return bounding_pld(bound, min(reach(noise_multiplier), MOST_LOSS), interval)
        case events.Geometric() | events.Pure():
            return losses.from_discrete_laplace_mechanism(
                atom.epsilon, value_discretization_interval=interval, use_connect_dots=True
            )
        case events.Approximate(epsilon, delta):
            return bounding_pld(leaky_response(epsilon, delta), epsilon, interval)
        case events.Worst():
            profile = _profile(atom)
            return bounding_pld(profile.at, profile.top, interval)
        case events.RepeatAndSelect(inner, law):
            return bounding_pld(*_selection_bound(inner, law), interval)
    raise Unsupported(f"PLD has no bound for [{describe(atom)}]; use an event that PLD or RDP has.")


def _revealed_sample(q: float, noise_multiplier: float) -> Callable[[Array], Array]:
    """The profile, for e >= 0, of a Gaussian release that happens with probability q, seen.

    Source: Balle and Wang 2018, Theorem 8, for the Gaussian; docs/guarantees/noise-before-clip.md.
    """
    mu = 1 / noise_multiplier

    def delta(epsilon: Array) -> Array:
        head = log_ndtr(mu / 2 - epsilon / mu)
        tail = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        rounding = 1e-13 * (1 + np.abs(head) + np.abs(epsilon))  # of logs, so that it is a share
        return q * np.exp(head) * (rounding - np.expm1(np.minimum(tail - head, 0.0)))

    return delta


def _only(event: Event) -> Event | None:
    """The one atom of an event that is released once, if that is all there is."""
    found = parts(event)
    return next(iter(found)) if list(found.values()) == [1] else None


def _pld_name(event: Event) -> str:
    return "PLD, selection by privacy profile" if _selects(event) else "PLD"


def _selects(event: Event) -> bool:
    return any(
        isinstance(atom, events.RepeatAndSelect)
        or (isinstance(atom, events.Worst) and any(map(_selects, atom.events)))
        for atom in parts(event)
    )


def _interval(event: Event) -> float:
    """The grid of losses: a share of one release's standard deviation.

    Losses on a grid of interval h gain at most h^2 / 4 in variance. Releases with two values +-eps
    have no small losses to average over: the grid then holds eps itself.
    """
    size = sketch(event, TYPICAL_DELTA)
    interval = max(math.sqrt(size.variance / size.count) / FINENESS, size.width / MOST_POINTS)
    # Coarse grids are for losses so large that nobody would pay them.
    interval = min(max(interval, 1e-9), max(0.1, size.width * size.count / MOST_LOSSES))
    two_valued = events.Geometric, events.Pure, events.Approximate
    # A leak's loss, 0, is on every grid.
    values = {atom.epsilon for atom in parts(event) if isinstance(atom, two_valued)} - {0.0}
    if not values:
        return interval
    if len(values) == 1:
        (epsilon,) = values
        # A grain more than a whole share: no rounding may leave the grid's last point below eps.
        return epsilon / math.ceil(epsilon / interval) * (1 + 1e-15)
    return max(min(interval, 1e-3 * min(values)), max(values) / MOST_POINTS)


def _known(event: object) -> Event:
    if type(event) not in events.TYPES.values():
        raise Unsupported(f"{event!r} is no event of pasearch's own table, so it has no price.")
    return event  # type: ignore[return-value]
