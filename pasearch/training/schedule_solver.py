"""Solver for noise schedules: computes the number of epochs, or the decay rate, for a budget.

    epochs   for a given decay rate, the maximum number such that the privacy cost <= budget
    rate     for a given number of epochs, the fastest decay such that the privacy cost <= budget

In both cases sigma_0 is given, as in Yu et al., who train until the budget is spent. (In a plan it
is the reverse: the steps are given, and sigma_0 is calibrated.) Costs are computed by valid bounds,
for Poisson batches or for reshuffled batches.

Source: Yu et al., sections IV-A2 and V-B2. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from pasearch.accounting import calibration
from pasearch.accounting.accountants import PrivacyCost, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.events import Event
from pasearch.accounting.gdp_approximation import estimate_epsilon
from pasearch.errors import BudgetError, UsageError
from pasearch.training.recipe import MAX_STEPS, Recipe
from pasearch.training.schedules import SCHEDULES, DecayRange, Schedule, UniformSchedule

MAX_EPOCHS = 100_000  # maximum number of epochs of a solution


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSolver:
    """Solver for the epochs or the decay rate of trainings with a given sigma_0, batch and budget.

    Args:
        noise_multiplier: Noise multiplier sigma_0 of the first epoch, above 0.
        batch: Expected batch size, 1 to n.
        n: Number of training records.
        budget: Total epsilon and delta. Delta None: the default for n.
        batching: Sampling method, "poisson" or "reshuffled".
    """

    noise_multiplier: float
    batch: int
    n: int
    budget: Budget
    batching: str = "poisson"

    def __post_init__(self) -> None:
        for name in ("n", "batch"):
            object.__setattr__(self, name, check_positive_integer(name, getattr(self, name)))
        object.__setattr__(self, "budget", self.budget.resolve(self.n))
        self.recipe(UniformSchedule(), 1).sampling_probability(self.n)
        if self.recipe(UniformSchedule(), 1).sampling.has_cap:
            raise UsageError(f"batching is {self.batching!r}: expected poisson or reshuffled.")

    def recipe(self, schedule: Schedule, epochs: int) -> Recipe:
        """Make the recipe of a training with a number of epochs."""
        once = Recipe(
            expected_batch_size=self.batch, steps=1, noise_multiplier=self.noise_multiplier,
            batching=self.batching, schedule=schedule,
        )  # fmt: skip
        # An epoch of reshuffled batches is a whole number of steps; its last batch is smaller.
        whole_steps = epochs * math.ceil(self.n / self.batch)
        sampled = math.ceil(epochs * self.n / self.batch)
        return replace(once, steps=sampled if once.sampling.sampled else whole_steps)

    def event(self, schedule: Schedule, epochs: int) -> Event:
        """Compute the privacy event of a training with a number of epochs."""
        return self.recipe(schedule, epochs).event(self.n)

    def price(self, schedule: Schedule, epochs: int) -> PrivacyCost:
        """Compute the privacy cost of a training with a number of epochs."""
        assert self.budget.delta is not None
        return price(self.event(schedule, epochs), self.budget.delta)

    def solve_epochs(self, schedule: Schedule) -> int:
        """Compute the maximum number of epochs within the budget.

        Raises:
            BudgetError: One epoch exceeds the budget.
            UsageError: The budget allows more than 100,000 epochs, ten million steps or a thousand
                different noise levels; or one epoch has more than ten million steps.
        """
        most = min(MAX_EPOCHS, MAX_STEPS // math.ceil(self.n / self.batch))
        if not most:
            raise UsageError(
                f"an epoch has {math.ceil(self.n / self.batch):,} steps: expected at most "
                f"{MAX_STEPS:,}. Use a larger batch."
            )
        high, roughly, delta = 1, self.budget.epsilon * 1.5, self.budget.delta
        assert delta is not None
        while high < most and estimate_epsilon(self.event(schedule, high), delta) <= roughly:
            high = min(most, 2 * high)
        found = calibration.calibrate_max_count(
            lambda epochs: self.event(schedule, epochs), self.budget, high
        )
        if found == most:
            raise UsageError(
                f"The budget allows more than {most:,} epochs: use less noise or a smaller budget."
            )
        return found

    def solve_rate(self, kind: str, epochs: int, **settings: Any) -> Schedule:
        """Compute the schedule with the fastest decay such that the epochs are within the budget.

        Args:
            kind: Name of the schedule: "time", "exponential", "step" or "polynomial" (whose power
                is computed).
            epochs: Number of epochs, 1 or more.
            settings: Other fields of the schedule, such as `period`.

        Raises:
            UsageError: The kind or a setting is unknown, or no decay spends the whole budget.
            BudgetError: The epochs exceed the budget even with constant noise.
        """
        epochs = check_positive_integer("epochs", epochs)
        steepness = _find_solvable_schedule(kind)[1]
        low, high = steepness.min_value, steepness.max_value

        def make_schedule(parameter: float) -> Schedule:
            value = math.exp(-parameter) if steepness.falling else parameter
            return SCHEDULES.from_json({**settings, "name": kind, steepness.field: value})

        if self.price(make_schedule(high), epochs).epsilon <= self.budget.epsilon:
            raise UsageError(
                f"{epochs} epochs cost less than the budget for any decay of the noise from "
                f"{self.noise_multiplier:g}: use less noise, more epochs or another schedule."
            )
        try:
            parameter = calibration.calibrate_max(
                lambda value: self.event(make_schedule(value), epochs), self.budget, low, high
            )
        except BudgetError:
            raise BudgetError(
                f"{epochs} epochs cost epsilon "
                f"{self.price(make_schedule(low), epochs).epsilon:.4g} even if "
                f"the noise stays at {self.noise_multiplier:g}: use more noise or fewer epochs."
            ) from None
        return make_schedule(parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedSchedule:
    """Schedule with a number of epochs, one of which was computed, and the privacy cost.

    Args:
        solved: Name of the computed quantity: "epochs", or the field of the schedule.
        schedule: Schedule with its rate.
        epochs: Number of epochs.
        first: Noise multiplier of the first epoch.
        last: Noise multiplier of the last epoch.
        price: Privacy cost of all epochs, within the budget.
    """

    solved: str
    schedule: Schedule
    epochs: int
    first: float
    last: float
    price: PrivacyCost

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values."""
        return {**asdict(self), "schedule": self.schedule.to_json()}

    def describe(self) -> str:
        """Describe the schedule in one line; the computed quantity is first."""
        values = self.schedule.to_json()
        values.pop("name")
        numbers = {"epochs": f"{self.epochs:,}", **{k: f"{v:.6g}" for k, v in values.items()}}
        first = numbers.pop(self.solved)
        rest = ", ".join(f"{name} {value}" for name, value in numbers.items())
        cost = self.price
        return (
            f"{self.solved} {first}   with {self.schedule.name}, {rest}; noise {self.first:.6g} to "
            f"{self.last:.6g}; epsilon {cost.epsilon:.6g} at delta {cost.delta:.3g}, by "
            f"{cost.accountant}"
        )


def solve_schedule(
    kind: str,
    *,
    noise_multiplier: float,
    n: int,
    batch: int,
    epsilon: float,
    delta: float | None = None,
    epochs: int | None = None,
    rate: float | None = None,
    batching: str = "poisson",
    **settings: Any,
) -> SolvedSchedule:
    """Compute the number of epochs for a given `rate`, or the decay rate for given `epochs`.

    Args:
        kind: Name of the schedule: "uniform" or a decay.
        noise_multiplier: Noise multiplier sigma_0 of the first epoch, above 0.
        n: Number of training records.
        batch: Expected batch size, 1 to n.
        epsilon: Total epsilon, above 0.
        delta: Total delta. None: the default for n.
        epochs: Number of epochs. None: it is computed.
        rate: Rate of the decay. None: it is computed.
        batching: Sampling method, "poisson" or "reshuffled".
        settings: Other fields of the schedule; None and 1 are ignored if it has no such field.

    Raises:
        UsageError: Neither or both of `rate` and `epochs` are given, or the schedule is unknown.
        BudgetError: The budget is too small.
    """
    course = ScheduleSolver(
        noise_multiplier=noise_multiplier, batch=batch, n=n, batching=batching,
        budget=Budget(epsilon, delta),
    )  # fmt: skip
    solved = "epochs"
    if kind == UniformSchedule.name:
        if rate is not None or epochs is not None:
            raise UsageError(
                "Schedule uniform has no rate: leave rate and epochs out, or choose a decay."
            )
        schedule: Schedule = UniformSchedule()
    elif (rate is None) == (epochs is None):
        raise UsageError("Set exactly one of rate and epochs: the other one is solved for.")
    else:
        names, steepness = _find_solvable_schedule(kind)
        own = {name: v for name, v in settings.items() if name in names or v not in (None, 1)}
        own = {name: value for name, value in own.items() if value is not None}
        if epochs is None:
            assert rate is not None
            schedule = SCHEDULES.from_json({**own, "name": kind, steepness.field: rate})
        else:
            schedule, solved = course.solve_rate(kind, epochs, **own), steepness.field
    found = course.solve_epochs(schedule) if epochs is None else epochs
    sigma = course.noise_multiplier
    return SolvedSchedule(
        solved=solved, schedule=schedule, epochs=found,
        first=sigma * schedule.factor(0), last=sigma * schedule.factor(found - 1),
        price=course.price(schedule, found),
    )  # fmt: skip


def _find_solvable_schedule(kind: str) -> tuple[list[str], DecayRange]:
    """Get the fields of a decay, and the range of its rate, by the name of the schedule."""
    known = {name: each for name, each in SCHEDULES.kinds().items() if each.steepness is not None}
    if kind not in known:
        raise UsageError(f"kind is {kind!r}: expected one of uniform, {', '.join(known)}.")
    steepness = known[kind].steepness
    assert steepness is not None
    return known[kind].field_names(), steepness
