"""Calibration of noise parameters and counts to a privacy budget, never above the budget.

The exact privacy cost of every returned value was computed and is at most the budget. (A plain root
finder could end on either side of the root.)

    compute_noise_multiplier_for_mu:  sigma = 1 / sqrt(log(1 + (mu / q)^2 / T))

is the central limit theorem of Gaussian differential privacy, mu = q sqrt(T (exp(1/sigma^2) - 1)).
With it, trainings with different numbers of steps T get comparable noise. It only proposes a value;
the exact cost of this value is compared with the budget.

Except for calibrated noise parameters, a plan is arithmetic on public numbers. `NoiseParameters`
calibrates the noise parameters of a plan and stores them, so that a result can state them.
`StatedNoiseParameters` checks stated values, without calibration: it reports a release that costs
more than its part of the budget, or does not use its part (docs/verify.md).

`compare_densities` calibrates noise densities to equal cost, and ranks them by the error of one
coordinate (Nasr et al. 2020, Fig. 6): l1 = E|noise| and l2 = sqrt(E noise^2). For small shifts the
cost depends only on the Fisher information J of the location, as a (a-1) q^2 J ||psi||^2 / 2 in A_a
(module `additive`). Then the Gaussian has the smallest l2 (Cramer and Rao), and no density has an
l1 below .9921 times that of the Gaussian; the squared Airy function attains this value. If a record
changes few coordinates, other densities can have smaller l1 and l2.

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
"""Maximum relative distance of a calibrated cost below the budget, as the aim of a search."""

MAX_ITERATIONS = 40
"""Maximum number of costs that one search computes; usually a few are enough."""

MAX_UNUSED_FRACTION = 0.01
"""Maximum fraction of its budget that a stated parameter may leave unused. After calibration it is
at most `RELATIVE_ACCURACY`.
"""

COST_TOLERANCE = 1e-6
"""Maximum relative difference between two computations of the same cost."""

EventFactory = Callable[[float], Event]
"""Function from a noise parameter to the event that is charged."""

CostFunction = Callable[[float], float]
"""Function from a parameter to its epsilon."""


def compute_noise_multiplier_for_mu(mu: float, sampling_probability: float, steps: int) -> float:
    """Compute the noise multiplier at which a training has about this mu (central limit theorem).

    >>> round(compute_noise_multiplier_for_mu(mu=1.0, sampling_probability=0.01, steps=1000), 3)
    0.646
    """
    return 1.0 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))


def calibrate_max(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Find about the largest value in [low, high] whose event costs at most the budget.

    Guarantee: the exact cost of the returned value's event was computed and is at most the budget.

    Args:
        make_event: Function from a value to an event. The cost increases with the value.
        budget: Privacy budget with delta set.
        low: Value with the lowest cost, above 0.
        high: Value with the highest cost.

    Raises:
        BudgetError: Even `low` costs more. The message states a sufficient epsilon.

    >>> from pasearch.accounting.events import PureDP
    >>> round(calibrate_max(PureDP, Budget(1.0, 1e-5), 0.01, 10.0), 2)
    1.0
    """

    def exact_epsilon(value: float) -> float:
        return _compute_exact_epsilon(make_event(value), budget)

    value, _ = _search_by_fast_price(make_event, budget, low, high)
    cost = exact_epsilon(value)
    if not cost >= budget.epsilon * (1 - RELATIVE_ACCURACY) and value < high:
        # RDP gives a lower cost than the fast bound, so a larger value may fit.
        value = _search_value(exact_epsilon, budget.epsilon, value, low, high)
        cost = exact_epsilon(value)
    while not cost <= budget.epsilon:
        if not value > low:
            raise _make_budget_error(budget, cost)
        value = max(low, value * (1 - RELATIVE_ACCURACY) * min(1.0, budget.epsilon / cost))
        cost = exact_epsilon(value)
    return value


def approximate_max(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Approximate the result of `calibrate_max` quickly; the value must not be used for a release.

    Raises:
        BudgetError: Even `low` costs more.
    """
    value, fast_epsilon = _search_by_fast_price(make_event, budget, low, high)
    if not fast_epsilon(value) <= budget.epsilon:
        raise _make_budget_error(budget, fast_epsilon(value))
    return value


def calibrate_min(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> float:
    """Find about the smallest value, such as a noise multiplier, that costs at most the budget.

    Guarantee: the exact cost of the returned value's event was computed and is at most the budget.

    Args:
        make_event: Function from a value to an event. The cost decreases with the value.
        budget: Privacy budget with delta set.
        low: Minimum value, above 0, with the highest cost.
        high: Maximum value, with the lowest cost.

    Raises:
        BudgetError: Even `high` costs more. The message states a sufficient epsilon.

    >>> from pasearch.accounting.events import Gaussian
    >>> round(calibrate_min(Gaussian, Budget(1.0, 1e-5), 0.1, 100.0), 1)
    3.7
    """

    def invert(value: float) -> float:
        return min(high, max(low, high * low / value))

    return invert(calibrate_max(lambda value: make_event(invert(value)), budget, low, high))


def calibrate_max_count(make_event: Callable[[int], Event], budget: Budget, high: int) -> int:
    """Find the largest count in [1, high] whose event costs at most the budget.

    Guarantee: the exact cost was computed. A count that is larger by one costs more than the
    budget, or is above `high`.

    Raises:
        BudgetError: A count of 1 costs more. The message states a sufficient epsilon.
    """
    return _search_count(make_event, budget, 1, high + 1)


def calibrate_min_count(
    make_event: Callable[[int], Event], budget: Budget, low: int, high: int
) -> int:
    """Find the smallest count in [low, high], such as n, whose event costs at most the budget.

    Guarantee: the exact cost was computed. A count that is smaller by one costs more than the
    budget, or is below `low`.

    Raises:
        BudgetError: Even `high` costs more. The message states a sufficient epsilon.
    """
    return _search_count(make_event, budget, high, low - 1)


def _search_by_fast_price(
    make_event: Callable[[float], Event], budget: Budget, low: float, high: float
) -> tuple[float, CostFunction]:
    """Approximate the largest value that fits, by `fast_price`.

    Returns:
        The value, and the function from values to epsilon by `fast_price`.
    """
    delta = _get_delta(budget)

    def fast_epsilon(value: float) -> float:
        return fast_price(make_event(value), delta).epsilon

    below, above = low, high
    for _ in range(14):  # bisect to the value at which the central limit estimate meets the budget
        middle = math.sqrt(below * above)
        exceeds = estimate_epsilon(make_event(middle), delta) > budget.epsilon
        below, above = (below, middle) if exceeds else (middle, above)
    start = math.sqrt(below * above)
    return _search_value(fast_epsilon, budget.epsilon, start, low, high), fast_epsilon


def _search_value(
    cost: CostFunction, target: float, start: float, low: float, high: float
) -> float:
    """Find a value whose cost is just below the target; `low` if no value below it was found.

    It is a secant search in logarithms, in which the cost is nearly linear. The search stays
    between the largest value known to cost at most the target and the smallest one known to cost
    more. Every fourth step bisects.
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
        aim = _compute_secant_step(previous, (value, now), goal)
        previous = value, now
        if turn % 4 == 3 or not below < aim < above:
            # Bisect, or try the upper end if no value that fits is known.
            untried = aim >= above and not found
            aim = above if untried else math.sqrt(below * above)
        value = aim
    return below


def _compute_secant_step(
    previous: tuple[float, float] | None, last: tuple[float, float], goal: float
) -> float:
    """Compute the value at which the line through two points (log value, log cost) has the goal."""
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
    """Find the last count that fits, from `good`, which must fit, towards `bad`.

    Every third iteration bisects. The others interpolate the costs of the two ends in logarithms.
    """
    delta, target = _get_delta(budget), budget.epsilon
    costs = {good: _compute_exact_epsilon(make_event(good), budget)}
    if not costs[good] <= target:
        raise _make_budget_error(budget, costs[good])
    aim = _guess_count(make_event, target, delta, good, bad)
    for turn in range(200):
        if abs(good - bad) <= 1:
            break
        middle = _clamp_between(good, bad, aim)
        costs[middle] = _compute_exact_epsilon(make_event(middle), budget)
        good, bad = (middle, bad) if costs[middle] <= target else (good, middle)
        aim = (good + bad) // 2 if turn % 3 == 2 else _interpolate_count(costs, good, bad, target)
    return good


def _clamp_between(good: int, bad: int, aim: int) -> int:
    """Clamp a count to the counts strictly between `good` and `bad`."""
    low, high = min(good, bad) + 1, max(good, bad) - 1
    return min(high, max(low, aim))


def _guess_count(
    make_event: Callable[[int], Event], target: float, delta: float, good: int, bad: int
) -> int:
    """Guess the last count that fits, by the central limit approximation of costs."""
    while abs(good - bad) > max(1, min(good, bad) // 1000):
        middle = _clamp_between(good, bad, round(math.sqrt(max(1, good) * max(1, bad))))
        if middle in (good, bad):
            break
        fits = estimate_epsilon(make_event(middle), delta) <= target
        good, bad = (middle, bad) if fits else (good, middle)
    return good


def _interpolate_count(costs: dict[int, float], good: int, bad: int, target: float) -> int:
    """Interpolate (or extrapolate) the count at which the cost equals the target."""
    if bad not in costs:
        # Only one cost is known. It grows about like a power of the count.
        ratio = target / costs[good] if costs[good] > 0 else 100.0
        step = min(100.0, max(1.001, ratio)) ** 1.5
        return round(good * step) + 1 if bad > good else round(good / step) - 1
    low, high = math.log(costs[good] or 1e-300), math.log(min(costs[bad], 1e300))
    share = (math.log(target) - low) / (high - low) if high > low else 0.5
    aim = math.exp(math.log(good) + share * math.log(max(1, bad) / good))
    # Round towards `good`, so that the next count may be the first that does not fit.
    return math.floor(aim) if bad > good else math.ceil(aim)


def _compute_exact_epsilon(event: Event, budget: Budget) -> float:
    """Compute the exact epsilon of an event at the budget's delta."""
    return price(event, _get_delta(budget)).epsilon


def _get_delta(budget: Budget) -> float:
    """Get the delta of a resolved budget."""
    assert budget.delta is not None, "resolve the budget first"
    return budget.delta


def _make_budget_error(budget: Budget, cost: float) -> BudgetError:
    """Create the error for a plan that costs more; the cost is rounded up to three digits."""
    if math.isfinite(cost) and cost > 0:
        unit = 10.0 ** (math.floor(math.log10(cost)) - 2)
        cost = math.ceil(cost / unit) * unit
    return BudgetError(
        f"The budget of epsilon {budget.epsilon:g} at delta {budget.delta:g} is too small: "
        f"this plan costs at least epsilon {cost:g}. Raise epsilon, or plan less."
    )


# --- the noise parameters of a plan ---


class NoiseParameters:
    """Noise parameters of a plan by name, each calibrated to its part of the budget."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def calibrate_max(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Find the largest value whose event costs at most the budget, and store it by name."""
        self.values[name] = calibrate_max(make_event, budget, low, high)
        return self.values[name]

    def calibrate_min(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Find the smallest value whose event costs at most the budget, and store it by name."""
        self.values[name] = calibrate_min(make_event, budget, low, high)
        return self.values[name]


class StatedNoiseParameters(NoiseParameters):
    """Noise parameters that a result states; they are checked instead of calibrated.

    Args:
        stated: Noise parameters by name, as read from a file.

    Attributes:
        problems: Descriptions of stated values that cost too much, or do not use the budget.
    """

    def __init__(self, stated: Mapping[str, Any]) -> None:
        super().__init__()
        self.stated = stated
        self.problems: list[str] = []

    def calibrate_max(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Get the stated value, and check that it uses up the budget or equals `high`."""
        return self._check_stated(name, make_event, budget, low, high, last=high)

    def calibrate_min(
        self, name: str, make_event: EventFactory, budget: Budget, low: float, high: float
    ) -> float:
        """Get the stated value, and check that it uses up the budget or equals `low`."""
        return self._check_stated(name, make_event, budget, low, high, last=low)

    def list_unknown_names(self) -> list[str]:
        """List the stated names that the plan does not have."""
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
        """Check the stated value; `last` is the cheapest value for utility, at an end."""
        if name not in self.stated:
            raise UsageError(f"the plan states no noise parameter for {name!r}.")
        value = check_positive(f"the noise of {name!r}", self.stated[name])
        if not low * (1 - COST_TOLERANCE) <= value <= high * (1 + COST_TOLERANCE):
            raise UsageError(f"the noise of {name!r} is {value:g}: expected {low:g} to {high:g}.")
        self.values[name] = value
        assert budget.delta is not None
        cost = price(make_event(value), budget.delta).epsilon
        if not cost <= budget.epsilon * (1 + COST_TOLERANCE):
            self.problems.append(
                f"{name}: its noise costs epsilon {cost:.4g}, more than its part of the budget, "
                f"{budget.epsilon:.4g}."
            )
        at_end = abs(value - last) <= COST_TOLERANCE * last
        if not (cost >= budget.epsilon * (1 - MAX_UNUSED_FRACTION) or at_end):
            self.problems.append(
                f"{name}: its noise costs only epsilon {cost:.4g}; a plan uses up its part of the "
                f"budget, {budget.epsilon:.4g}."
            )
        return value


# --- noise densities at equal cost ---

SCALE_ACCURACY = 1e-4
"""Maximum relative distance of a calibrated scale above the smallest possible scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedDensity:
    """Noise density with a calibrated scale.

    Args:
        density: Density with its scale.
        price: Privacy cost: epsilon at delta, or the Renyi divergence at one order.
    """

    density: Density
    price: float

    @property
    def mean_absolute(self) -> float:
        """Mean absolute noise of one coordinate (l1); `inf` if it does not exist."""
        return self.density.mean_absolute

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise of one coordinate (l2); `inf` if it does not exist."""
        return self.density.standard_deviation

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values; an infinite error becomes null."""
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
    """Calibrate noise densities to equal cost by RDP, and sort them by mean absolute noise.

    Guarantee: the cost of each returned density was computed, and is at most epsilon.

    Args:
        densities: Noise densities, with any scale.
        shifts: One or several upper bounds of the sorted magnitudes that one record adds.
        sampling_probability: q, in (0, 1].
        steps: Number of composed steps.
        epsilon: Total epsilon, above 0.
        delta: Total delta, in (0, 1).
        orders: Renyi orders above 1, (m,). Fewer orders are faster, and may need more noise.

    Raises:
        BudgetError: No scale up to 10^9 has a cost of at most epsilon.
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
    """Compute epsilon at delta of several steps with additive noise, by RDP at the given orders."""
    values = check_positive_integer("steps", steps) * additive_rdp(
        density, shifts, sampling_probability, orders
    )
    return epsilon_from_rdp(values, check_fraction("delta", delta), orders)


def calibrate_scale(cost: Callable[[float], float], target: float) -> float:
    """Find the smallest scale whose cost is at most the target, up to `SCALE_ACCURACY`.

    Guarantee: the cost at the returned scale was computed, and is at most the target.

    Args:
        cost: Function from a scale to its cost, which decreases as the scale grows.
        target: Maximum cost, above 0.

    Raises:
        BudgetError: The cost at a scale of 10^9 is above the target.
        UsageError: The cost at a scale of 10^-9 is below the target.
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
