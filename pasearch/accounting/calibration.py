"""Solving for noise, counts and budgets, always from the private side.

A root finder ends near the root; which side is luck. Here the answer is a value whose exact price
was computed and is at most the budget, and that is asserted at the end.

    noise_for_mu:  sigma = 1 / sqrt(log(1 + (mu / q)^2 / T))

is the central limit rule of Gaussian differential privacy, mu = q sqrt(T (exp(1/sigma^2) - 1)): a
dial that gives trainings with different steps T comparable noise. It only proposes; the exact
price of what it proposes is what is compared with the budget.

A plan is arithmetic on public numbers except for the calibrated noise parameters.
`NoiseParameters` calibrates and records them, so that a result can state them.
`StatedNoiseParameters` takes the stated values without solving, and reports those that differ from
a solution: a release that costs more than its part of the budget, or one that leaves some of it
over (docs/verify.md).

`compare` calibrates densities to equal price and ranks them by the error of one coordinate (Nasr
et al. 2020, Fig. 6): l1 = E|z| and l2 = sqrt(E z^2). For small shifts the price depends on the
Fisher information J of the location alone, as a (a-1) q^2 J ||psi||^2 / 2 in A_a. There the
Gaussian has the least l2 (Cramer and Rao), and no density has an l1 below .9921 of its: that is of
Airy's function, squared. If a record adds to few coordinates, others can have less of both.

Source: Bu, Dong, Long and Su 2020 (the rule); docs/rules.md, rule 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pasearch.accounting.accountants import fast_price, price
from pasearch.accounting.additive import ORDERS, Shifts, additive_rdp
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_fraction, check_positive, check_positive_integer
from pasearch.accounting.densities import Density
from pasearch.accounting.events import Event
from pasearch.accounting.gdp_approximation import estimate_epsilon
from pasearch.accounting.profiles import Array
from pasearch.accounting.renyi import epsilon_from_rdp
from pasearch.errors import BudgetError, UsageError

RELATIVE_ACCURACY = 1e-3
"""How far below the budget the price may stay, relatively."""

MAX_ITERATIONS = 40
"""The most prices a search may compute; a few are usual."""

MAX_UNUSED_FRACTION = 0.01
"""The share of its budget that a solved dial may leave; `calibration.ACCURACY` is usual."""

COST_TOLERANCE = 1e-6
"""How much two computations of one price may differ, relatively."""

EventFactory = Callable[[float], Event]
"""From where a dial stands to what that costs."""

CostFunction = Callable[[float], float]


def noise_multiplier_for_mu(mu: float, sampling_probability: float, steps: int) -> float:
    """Return the noise multiplier of a step for the whole training's mu (central limit rule)."""
    return 1.0 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))


def calibrate_max(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return the largest value in [low, high] whose event costs at most the budget.

    Guarantee: `price` of the returned value's event is at most the budget; it was computed.

    Args:
        make_event: From a value to an event whose price grows with the value.
        budget: With its delta known.
        low: Where the price is least, above 0.
        high: Where it is most.

    Raises:
        BudgetError: Even `low` costs more; the message says how much would do.
    """

    def exact_epsilon(value: float) -> float:
        return _exact_epsilon(make_event(value), budget)

    value, _ = _search_by_fast_price(make_event, budget, low, high)
    cost = exact_epsilon(value)
    if not cost >= budget.epsilon * (1 - RELATIVE_ACCURACY) and value < high:
        # RDP bounds less than the rough price did: there is room above.
        value = _search_value(exact_epsilon, budget.epsilon, value, low, high)
        cost = exact_epsilon(value)
    while not cost <= budget.epsilon:
        if not value > low:
            raise _budget_error(budget, cost)
        value = max(low, value * (1 - RELATIVE_ACCURACY) * min(1.0, budget.epsilon / cost))
        cost = exact_epsilon(value)
    return value


def approximate_max(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return about what `largest` would, quickly and without its guarantee: never to be charged.

    Args, raises: as of `largest`.
    """
    value, fast_epsilon = _search_by_fast_price(make_event, budget, low, high)
    if not fast_epsilon(value) <= budget.epsilon:
        raise _budget_error(budget, fast_epsilon(value))
    return value


def calibrate_min(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return the smallest value in [low, high], such as a noise, that costs at most the budget.

    Guarantee: as of `largest`.

    Args:
        make_event: From a value to an event whose price falls with the value.
        budget: With its delta known.
        low: Where the price is most, above 0.
        high: Where it is least.

    Raises:
        BudgetError: Even `high` costs more; the message says how much would do.
    """

    def value(dial: float) -> float:
        return min(high, max(low, high * low / dial))

    return value(calibrate_max(lambda dial: make_event(value(dial)), budget, low, high))


def calibrate_max_count(make_event: Callable[[int], Event], budget: Budget, high: int) -> int:
    """Return the largest count in [1, high] whose event costs at most the budget.

    Guarantee: as of `largest`; one more costs more than the budget, or is above `high`.

    Raises:
        BudgetError: One costs more already; the message says how much would do.
    """
    return _search_count(make_event, budget, 1, high + 1)


def calibrate_min_count(
    make_event: Callable[[int], Event], budget: Budget, low: int, high: int
) -> int:
    """Return the smallest count in [low, high], such as n, whose event costs at most the budget.

    Guarantee: as of `largest`; one less costs more than the budget, or is below `low`.

    Raises:
        BudgetError: Even `high` costs more; the message says how much would do.
    """
    return _search_count(make_event, budget, high, low - 1)


def _search_by_fast_price(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> tuple[float, CostFunction]:
    """Return about the largest value that fits, and the rough price by which it does."""

    def fast_epsilon(value: float) -> float:
        return fast_price(make_event(value), _resolved_delta(budget)).epsilon

    start = _guess_value(make_event, budget, low, high)
    return _search_value(fast_epsilon, budget.epsilon, start, low, high), fast_epsilon


def _guess_value(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Return about where the central limit estimate meets the budget."""
    delta = _resolved_delta(budget)
    for _ in range(14):
        middle = math.sqrt(low * high)
        if estimate_epsilon(make_event(middle), delta) > budget.epsilon:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def _search_value(
    cost: CostFunction, target: float, start: float, low: float, high: float
) -> float:
    """Return a value that costs nearly the target; `low` if none was found that costs less.

    A secant in logarithms, where a price is close to a straight line, kept between the best value
    below the target and the least above it; where it does not settle, those two are halved.
    """
    goal = target * (1 - RELATIVE_ACCURACY / 2)
    below, above, value = low, high, start
    previous: tuple[float, float] | None = None
    found = False
    for turn in range(MAX_ITERATIONS):
        now = cost(value)
        if now <= target:
            below, found = value, True
        else:
            above = value
        settled = target * (1 - RELATIVE_ACCURACY) <= now <= target
        if settled or above <= below * (1 + 1e-9) or (found and value >= high):
            break
        aim = _secant_step(previous, (value, now), goal)
        previous = value, now
        if turn % 4 == 3 or not below < aim < above:
            # Between the two ends, or an end whose cost is not known yet.
            untried = aim >= above and not found
            aim = above if untried else math.sqrt(below * above)
        value = aim
    return below


def _secant_step(
    previous: tuple[float, float] | None, last: tuple[float, float], goal: float
) -> float:
    """Return where the line through two points (log value, log cost) meets the goal."""
    value, cost = last
    if not (cost > 0 and math.isfinite(cost)):
        return value * (100.0 if cost <= 0 else 0.01)
    slope = 1.0
    if previous is not None and previous[1] > 0 and math.isfinite(previous[1]):
        run = math.log(value / previous[0])
        slope = math.log(cost / previous[1]) / run if run else 1.0
    if not 0.05 < slope < 20:
        slope = 1.0
    step = math.log(goal / cost) / slope
    return value * math.exp(min(5.0, max(-5.0, step)))


def _search_count(make_event: Callable[[int], Event], budget: Budget, good: int, bad: int) -> int:
    """Return the last count from `good`, which must fit, towards `bad`, which does not or is none.

    Every third try halves; the others interpolate the two ends in logarithms.
    """
    delta, target = _resolved_delta(budget), budget.epsilon
    costs = {good: _exact_epsilon(make_event(good), budget)}
    if not costs[good] <= target:
        raise _budget_error(budget, costs[good])
    aim = _guess_count(make_event, target, delta, good, bad)
    for turn in range(200):
        if abs(good - bad) <= 1:
            break
        middle = _clamp_between(good, bad, aim)
        costs[middle] = _exact_epsilon(make_event(middle), budget)
        good, bad = (middle, bad) if costs[middle] <= target else (good, middle)
        aim = (good + bad) // 2 if turn % 3 == 2 else _interpolate_count(costs, good, bad, target)
    return good


def _clamp_between(good: int, bad: int, aim: int) -> int:
    low, high = min(good, bad) + 1, max(good, bad) - 1
    return min(high, max(low, aim))


def _guess_count(
    make_event: Callable[[int], Event], target: float, delta: float, good: int, bad: int
) -> int:
    while abs(good - bad) > max(1, min(good, bad) // 1000):
        middle = _clamp_between(good, bad, round(math.sqrt(max(1, good) * max(1, bad))))
        if middle in (good, bad):
            break
        fits = estimate_epsilon(make_event(middle), delta) <= target
        good, bad = (middle, bad) if fits else (good, middle)
    return good


def _interpolate_count(costs: dict[int, float], good: int, bad: int, target: float) -> int:
    """Return the count between the ends at which the price would be the target."""
    if bad not in costs:
        # Only one side is known so far: the price grows about like a power of the count.
        ratio = target / costs[good] if costs[good] > 0 else 100.0
        step = min(100.0, max(1.001, ratio)) ** 1.5
        return round(good * step) + 1 if bad > good else round(good / step) - 1
    low, high = math.log(costs[good] or 1e-300), math.log(min(costs[bad], 1e300))
    share = (math.log(target) - low) / (high - low) if high > low else 0.5
    aim = math.exp(math.log(good) + share * math.log(max(1, bad) / good))
    # Rounded towards `good` at first, so that the next try may be its neighbour that does not fit.
    return math.floor(aim) if bad > good else math.ceil(aim)


def _exact_epsilon(event: Event, budget: Budget) -> float:
    return price(event, _resolved_delta(budget)).epsilon


def _resolved_delta(budget: Budget) -> float:
    assert budget.delta is not None, "resolve the budget first"
    return budget.delta


def _budget_error(budget: Budget, cost: float) -> BudgetError:
    return BudgetError(
        f"The budget of epsilon {budget.epsilon:g} at delta {budget.delta:g} is too small: the "
        f"least that this plan can cost is epsilon {_round_up(cost):g}. "
        "Raise epsilon, or plan less."
    )


def _round_up(value: float) -> float:
    """Round to three digits, upwards."""
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit) * unit


# --- the calibrated parameters of a plan ---


class NoiseParameters:
    """Turns each dial as far as its budget goes, and remembers where it stands, by name."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def calibrate_max(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Return the largest value whose event costs at most the budget; see `calibration`."""
        self.values[name] = calibrate_max(make_event, budget, low, high)
        return self.values[name]

    def calibrate_min(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Return the smallest value whose event costs at most the budget; see `calibration`."""
        self.values[name] = calibrate_min(make_event, budget, low, high)
        return self.values[name]


class StatedNoiseParameters(NoiseParameters):
    """Takes where each dial stands from a result, and checks it.

    Args:
        stated: Where each dial stands, by name, as a file has it.
    """

    def __init__(self, stated: Mapping[str, Any]) -> None:
        super().__init__()
        self.stated = stated
        self.problems: list[str] = []

    def calibrate_max(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Return the stated value, which must use the budget up or be `high`."""
        return self._check_stated(name, make_event, budget, low, high, last=high)

    def calibrate_min(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Return the stated value, which must use the budget up or be `low`."""
        return self._check_stated(name, make_event, budget, low, high, last=low)

    def unknown_names(self) -> list[str]:
        """Return the names of dials that the plan does not have."""
        return sorted(set(self.stated) - set(self.values))

    def _check_stated(
        self,
        name: str,
        make_event: EventFactory,
        budget: Budget,
        low: float,
        high: float,
        *,
        last: float,
    ) -> float:
        if name not in self.stated:
            raise UsageError(f"the plan does not state how large the noise of {name!r} is.")
        value = check_positive(f"the noise of {name!r}", self.stated[name])
        if not low * (1 - COST_TOLERANCE) <= value <= high * (1 + COST_TOLERANCE):
            raise UsageError(
                f"the noise of {name!r} stands at {value:g}: expected {low:g} to {high:g}."
            )
        self.values[name] = value
        assert budget.delta is not None
        cost = price(make_event(value), budget.delta).epsilon
        if not cost <= budget.epsilon * (1 + COST_TOLERANCE):
            self.problems.append(
                f"{name}: its noise costs epsilon {cost:.4g}, and its part of the budget is "
                f"{budget.epsilon:.4g}."
            )
        at_end = abs(value - last) <= COST_TOLERANCE * last
        if not (cost >= budget.epsilon * (1 - MAX_UNUSED_FRACTION) or at_end):
            self.problems.append(
                f"{name}: its noise costs epsilon {cost:.4g} only; a plan uses up its part of the "
                f"budget, {budget.epsilon:.4g}."
            )
        return value


# --- densities at equal price ---

SCALE_ACCURACY = 1e-4
"""How much larger than the least a solved scale may be, relatively."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedDensity:
    """What a density's noise is like at the scale at which it costs what the others cost.

    Args:
        density: At that scale.
        price: Epsilon at delta, or the divergence at one order.
    """

    density: Density
    price: float

    @property
    def mean_absolute(self) -> float:
        """The l1 error of a coordinate; `inf` if there is none."""
        return self.density.mean_absolute

    @property
    def standard_deviation(self) -> float:
        """The l2 error of a coordinate; `inf` if there is none."""
        return self.density.standard_deviation

    def to_json(self) -> dict[str, Any]:
        """Return plain values; null for an error that is infinite."""
        names = ("mean_absolute", "standard_deviation", "fisher_information")
        numbers = {"price": self.price} | {name: getattr(self.density, name) for name in names}
        finite = {name: v if math.isfinite(v) else None for name, v in numbers.items()}
        return {"density": self.density.to_json(), **finite}


def compare_densities(
    densities: Iterable[Density],
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    steps: int,
    epsilon: float,
    delta: float,
    *,
    orders: Array = ORDERS,
) -> list[CalibratedDensity]:
    """Return the densities at equal price, least l1 error first.

    Guarantee: the price of each was computed, and is at most epsilon.

    Args:
        densities: Of the noise, at any scale.
        shifts: See `additive_rdp`.
        sampling_probability: q, in (0, 1].
        steps: How many are composed.
        epsilon: Above 0.
        delta: In (0, 1).
        orders: (m,) above 1: fewer are faster and may cost more.

    Raises:
        BudgetError: No scale within reach is cheap enough.
    """
    target = check_positive("epsilon", epsilon)

    def cost(density: Density) -> float:
        return compute_epsilon(density, shifts, sampling_probability, steps, delta, orders)

    def at_cost(density: Density) -> CalibratedDensity:
        at = density.with_scale(
            calibrate_scale(lambda scale: cost(density.with_scale(scale)), target)
        )
        return CalibratedDensity(density=at, price=cost(at))

    return sorted(map(at_cost, densities), key=lambda row: row.mean_absolute)


def compute_epsilon(
    density: Density,
    shifts: Shifts | Sequence[Shifts],
    sampling_probability: float,
    steps: int,
    delta: float,
    orders: Array = ORDERS,
) -> float:
    """Return the price at delta of so many steps, by RDP at these orders; args as of `compare`."""
    values = check_positive_integer("steps", steps) * additive_rdp(
        density, shifts, sampling_probability, orders
    )
    return epsilon_from_rdp(values, check_fraction("delta", delta), orders)


def calibrate_scale(cost: Callable[[float], float], target: float) -> float:
    """Return the least scale whose cost is at most the target, or at most `SCALE_ACCURACY` more.

    Guarantee: the cost at the returned scale was computed, and is at most the target.

    Args:
        cost: From a scale to what falls as it grows.
        target: Above 0.

    Raises:
        BudgetError: No scale up to 10^9 is cheap enough.
        UsageError: A scale of 10^-9 is cheap enough.
    """
    low, high = 1.0, 1.0
    while not cost(high) <= target:
        low, high = high, high * 2
        if not high < 1e9:
            raise BudgetError(
                f"No scale up to {high:g} costs at most {target:g}: raise epsilon, or plan less."
            )
    while low == high or cost(low) <= target:
        high, low = low, low / 2
        if not low > 1e-9:
            raise UsageError(f"Noise of scale {low:g} costs less than {target:g}: lower epsilon.")
    while high > low * (1 + SCALE_ACCURACY):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    assert cost(high) <= target
    return high
