"""What runs on the same records cost together, each planned after a look at the ones before.

Whoever plans a run has seen what the ones before released, so the runs are chosen adaptively, and
the price of a plan fixed in advance is no bound for them. What is: run i is at most its profile,
cut at a failure probability d_i,

    t_i(e) = (delta_i(e) - d_i)+ / (1 - d_i),     d_i = delta / (4 i (i + 1)), summing to delta / 4
    r_i(a) = log(1 + a (a-1) int_0^inf (exp((a-1) e) + exp(-a e)) t_i(e) de) / (a-1)

    epsilon = min over orders a of sum r_i(a) + log(1 - 1/a) - log(a delta_a) / (a-1),
              the delta_a summing to 5 delta / 8; or sum r_i(inf), r_i(inf) where t_i ends

and the first run alone costs its own price (at delta / 8 once there is a second).

Sources: Feldman and Zrnic 2021 (the filter of one order), Rogers et al. 2016 (failures add up),
Sason and Verdu 2016 (moments of a profile). Proof: docs/guarantees/allowance.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp

from pasearch.accounting.accountants import Price, delta_for, price
from pasearch.accounting.events import Event, NoRelease, Worst, parts, to_json
from pasearch.accounting.profiles import Array, Profile

# Few orders, as they share delta: each further one costs log(count) / (order - 1).
ORDERS: Array = np.array([1.5, 2, 3, 4, 6, 8, 11, 16, 23, 32, 64, 256])
FIRST, FAILURES = 1 / 8, 1 / 4  # shares of delta; the orders have the rest
SAMPLES, CELLS = 120, 2000  # of a profile, and of its integral
MOST_LOSS = 500.0  # exp() of it is still a number

ROOM = 1.02
"""By how much a total for several runs is above what they cost: others of that budget fit too."""

Run = tuple[Event, Array]  # what it releases, and its `loss_curve`


def worst(events: Mapping[str, Event]) -> Event:
    """The worst partition of a run, spelt the same whatever the partitions' names and order."""
    by_text = {json.dumps(to_json(event), sort_keys=True): event for event in events.values()}
    private = [by_text[text] for text in sorted(by_text) if parts(by_text[text])]
    if len(private) < 2:
        return private[0] if private else NoRelease()
    return Worst(events=tuple(private))


def failure(number: int, delta: float) -> float:
    """The failure probability d of run `number` = 1, 2, ...: fixed in advance, delta/4 in all."""
    return FAILURES * delta / (number * (number + 1))


def adaptive_price(runs: list[Run], delta: float) -> Price:
    """The price of runs, each chosen knowing what those before have released.

    Guarantee: if runs go on only while this is at most a fixed epsilon, then everything that they
    release is (epsilon, delta)-DP.

    Args:
        runs: each run's event and its `loss_curve` at its `failure`, in order.
        delta: the total's, strictly between 0 and 1.
    """
    if not runs:
        return Price(epsilon=0.0, delta=delta, accountant="nothing released")
    first = runs[0][0]
    if len(runs) == 1:
        return price(first, delta)
    moments = (1 - FIRST - FAILURES) * delta / len(ORDERS)
    curve = np.sum([curve for _, curve in runs], axis=0)
    epsilons = curve[:-1] + np.log1p(-1 / ORDERS) - np.log(moments * ORDERS) / (ORDERS - 1)
    # The first run was let in by its own price, so it needs a share of delta of its own.
    epsilon = max(price(first, FIRST * delta).epsilon, min(float(np.min(epsilons)), curve[-1]))
    return Price(
        epsilon=float(epsilon), delta=delta, accountant=f"Renyi filter over {len(runs)} runs"
    )


def loss_curve(event: Event, failure: float) -> Array:
    """A run's Renyi divergences, outside of an event of probability `failure`.

    Guarantee: in both directions, upper bounds: the profile is sampled from above, a chord lies
    above a convex curve, and each cell of the integral takes its larger end.

    Args:
        event: what the run releases.
        failure: strictly between 0 and 1.

    Returns:
        (orders + 1,) bounds at ORDERS and, last, on the loss itself, 0 or above; all infinite where
        the profile does not reach `failure`.
    """
    return _loss_curve(event, failure).copy()


@lru_cache(maxsize=256)  # a run, its resume and its check ask for the same
def _loss_curve(event: Event, failure: float) -> Array:
    if not parts(event):
        return np.zeros(len(ORDERS) + 1)
    top = price(event, failure / 2).epsilon
    if not top > 0:
        return np.zeros(len(ORDERS) + 1)
    if not top < MOST_LOSS:
        return np.full(len(ORDERS) + 1, np.inf)
    profile = Profile.sampled(
        lambda points: np.array([delta_for(event, float(e)) for e in points]),
        np.linspace(0.0, top, SAMPLES),
    )
    if not profile.at(top) <= failure:  # a delta below what floats resolve
        return np.full(len(ORDERS) + 1, np.inf)
    ends = np.linspace(0.0, top, CELLS + 1)
    cut = np.clip((profile.at(ends[:-1]) - failure) / (1 - failure), 0.0, 1.0)
    return np.append(np.minimum(_divergences(cut, ends), top), top)


def _divergences(cut: Array, ends: Array) -> Array:
    """The second line of the formula above, for a profile that is `cut[i]` at most in cell i."""
    a, width = ORDERS[:, None], np.diff(ends)
    with np.errstate(divide="ignore"):
        logs = np.log(cut)
    rising = (a - 1) * ends[1:] + np.log(-np.expm1(-(a - 1) * width) / (a - 1))
    falling = -a * ends[:-1] + np.log(-np.expm1(-a * width) / a)
    integral = logsumexp(np.concatenate([logs + rising, logs + falling], axis=1), axis=1)
    return np.logaddexp(0.0, np.log(ORDERS * (ORDERS - 1)) + integral) / (ORDERS - 1)


def total_for(events: Mapping[str, Event], delta: float, count: int = 2) -> float:
    """Return an epsilon in which so many runs like this one fit, and little more, at a delta.

    Guarantee: an allowance of that total lets `count` runs with these events in, one after another.

    Args:
        events: Of one run, by partition.
        delta: The total's, strictly between 0 and 1.
        count: How many runs, 1 or more.

    Returns:
        Above the price by `ROOM`, rounded up to two digits; infinite where there is no bound.
    """
    event = worst(events)
    runs = [(event, loss_curve(event, failure(number, delta))) for number in range(1, count + 1)]
    epsilon = ROOM * adaptive_price(runs, delta).epsilon
    if not 0.0 < epsilon < math.inf:
        return epsilon
    digit = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
    return float(f"{math.ceil(epsilon / digit) * digit:.2g}")
