"""Solving for noise, counts and budgets, always from the private side.

A root finder ends near the root; which side is luck. Here the answer is a value whose exact price
was computed and is at most the budget, and that is asserted at the end.

    noise_for_mu:  sigma = 1 / sqrt(log(1 + (mu / q)^2 / T))

is the central limit rule of Gaussian differential privacy, mu = q sqrt(T (exp(1/sigma^2) - 1)): a
dial that gives trainings with different steps T comparable noise. It only proposes; the exact
price of what it proposes is what is compared with the budget.

Source: Bu, Dong, Long and Su 2020 (the rule); privacy.md, rule 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pasearch.accounting.accountants import price, rough_price
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Event
from pasearch.errors import BudgetError

ACCURACY = 1e-3
"""How far below the budget the price may stay, relatively."""


def noise_for_mu(mu: float, sampling_probability: float, steps: int) -> float:
    """Return the noise multiplier of a step for the whole training's mu (central limit rule)."""
    return 1.0 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))


def largest(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return the largest value in [low, high] whose event costs at most the budget.

    Args:
        make_event: From a value to an event whose price grows with the value.
        budget: With its delta known.
        low: Where the price is least, above 0.
        high: Where it is most.

    Raises:
        BudgetError: Even `low` costs more; the message says how much.
    """
    value, cost = low, _rough(make_event(low), budget)
    over, over_cost = high, math.inf
    for turn in range(100):
        if cost >= budget.epsilon * (1 - ACCURACY) or value == high:
            break
        middle = _between(value, cost, over, over_cost, budget.epsilon, turn)
        found = _rough(make_event(middle), budget)
        if found <= budget.epsilon:
            value, cost = middle, found
        elif middle <= low:
            break
        else:
            over, over_cost = middle, found
    # The exact price differs in the fourth digit: step back until it is on the private side.
    while not (exact := _cost(make_event(value), budget)) <= budget.epsilon:
        if value == low:
            raise _too_small(budget, exact)
        value = max(low, value * (1 - ACCURACY) * min(1.0, budget.epsilon / exact))
    return value


def _between(
    value: float, cost: float, over: float, over_cost: float, target: float, turn: int
) -> float:
    """Return the next value to try: the price is close to a power of it.

    Before an upper end is known the power is taken to be 1, stepping a little beyond the target;
    after that both ends give it, every third step halves, in case it is not one.
    """
    if not math.isfinite(over_cost):
        growth = 1.05 * target / cost if cost > 0 else 100.0
        return min(over, value * min(100.0, growth))
    share = 0.5
    if turn % 3 and cost > 0:
        aim = math.log(target * (1 - ACCURACY / 3) / cost)
        share = min(0.98, max(0.02, aim / math.log(over_cost / cost)))
    return value * (over / value) ** share


def smallest(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return the smallest value in [low, high], such as a noise, that costs at most the budget.

    Args:
        make_event: From a value to an event whose price falls with the value.
        budget: With its delta known.
        low: Where the price is most, above 0.
        high: Where it is least.

    Raises:
        BudgetError: Even `high` costs more; the message says how much.
    """
    return 1.0 / largest(lambda inverse: make_event(1.0 / inverse), budget, 1.0 / high, 1.0 / low)


def largest_count(make_event: Callable[[int], Event], budget: Budget, high: int) -> int:
    """Return the largest count in [1, high] whose event costs at most the budget.

    Raises:
        BudgetError: One costs more already; the message says how much.
    """
    if not (cost := _cost(make_event(1), budget)) <= budget.epsilon:
        raise _too_small(budget, cost)
    low, over = 1, 2
    while over <= high and _fits(make_event(over), budget):
        low, over = over, over * 2
    over = min(over, high + 1)
    while over - low > 1:
        middle = (low + over) // 2
        low, over = (middle, over) if _fits(make_event(middle), budget) else (low, middle)
    return low


def smallest_count(
    make_event: Callable[[int], Event], budget: Budget, low: int, high: int
) -> int:
    """Return the smallest count in [low, high], such as n, whose event costs at most the budget.

    Raises:
        BudgetError: Even `high` costs more; the message says how much.
    """
    if _fits(make_event(low), budget):
        return low
    if not (cost := _cost(make_event(high), budget)) <= budget.epsilon:
        raise _too_small(budget, cost)
    over, fits = low, low * 2
    while fits < high and not _fits(make_event(fits), budget):
        over, fits = fits, fits * 2
    fits = min(fits, high)
    while fits - over > 1:
        middle = (over + fits) // 2
        over, fits = (over, middle) if _fits(make_event(middle), budget) else (middle, fits)
    return fits


def _cost(event: Event, budget: Budget) -> float:
    assert budget.delta is not None
    return price(event, budget.delta).epsilon


def _rough(event: Event, budget: Budget) -> float:
    assert budget.delta is not None
    return rough_price(event, budget.delta).epsilon


def _fits(event: Event, budget: Budget) -> bool:
    return _cost(event, budget) <= budget.epsilon


def _too_small(budget: Budget, cost: float) -> BudgetError:
    return BudgetError(
        f"The budget of epsilon {budget.epsilon:g} at delta {budget.delta:g} is too small: the "
        f"least that this plan can cost is epsilon {_up(cost):g}. Raise --eps, or plan less."
    )


def _up(value: float) -> float:
    """Round to three digits, upwards."""
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit) * unit
