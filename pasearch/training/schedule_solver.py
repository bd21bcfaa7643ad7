"""How long a schedule lasts under a budget, and how steep it may be to last so long.

    epochs(schedule, sigma_0)   the most epochs with    price(recipe of so many epochs) <= budget
    rate(kind, sigma_0, epochs) the steepest decay with price(recipe of so many epochs) <= budget

The two questions of Yu et al., who fix sigma_0 and let the training end when the budget does. (A
plan turns it round: the steps are fixed, and sigma_0 is solved.) Prices are the sound ones: of
Poisson batches or, by the epoch, of reshuffled ones.

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

MAX_EPOCHS = 100_000
"""No budget is followed for longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSolver:
    """Trainings of one schedule, for any number of epochs.

    Args:
        noise_multiplier: sigma_0, above 0.
        batch: The (expected) batch size, 1 to n.
        n: Records trained on.
        budget: Epsilon and delta; delta None takes the default for n.
        batching: "poisson" or "reshuffled".
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
        """Return the recipe of so many whole epochs."""
        once = Recipe(
            expected_batch_size=self.batch, steps=1, noise_multiplier=self.noise_multiplier,
            batching=self.batching, schedule=schedule,
        )  # fmt: skip
        # A reshuffled epoch ends with a smaller batch, and is a whole number of steps.
        whole_steps = epochs * math.ceil(self.n / self.batch)
        sampled = math.ceil(epochs * self.n / self.batch)
        return replace(once, steps=sampled if once.sampling.sampled else whole_steps)

    def event(self, schedule: Schedule, epochs: int) -> Event:
        """Return what so many epochs cost."""
        return self.recipe(schedule, epochs).event(self.n)

    def price(self, schedule: Schedule, epochs: int) -> PrivacyCost:
        """Return the price of so many epochs."""
        assert self.budget.delta is not None
        return price(self.event(schedule, epochs), self.budget.delta)

    def epochs(self, schedule: Schedule) -> int:
        """Return how many epochs the budget lasts for.

        Raises:
            BudgetError: Not for one.
            UsageError: For more than 100,000 epochs, or ten million steps, or a thousand different
                noises; or one epoch has more than ten million steps.
        """
        most = min(MAX_EPOCHS, MAX_STEPS // math.ceil(self.n / self.batch))
        if not most:
            raise UsageError(
                f"an epoch has {math.ceil(self.n / self.batch):,} steps: expected at most "
                f"{MAX_STEPS:,}. Take a larger batch."
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
                f"the budget lasts for more than {most:,} epochs: take less noise, or a smaller "
                "budget."
            )
        return found

    def rate(self, kind: str, epochs: int, **settings: Any) -> Schedule:
        """Return the steepest decay of a kind with which the budget lasts for so many epochs.

        Args:
            kind: "time", "exponential", "step" or "polynomial" (whose rate is its power).
            epochs: 1 or more.
            settings: The schedule's other fields, such as `period`.

        Raises:
            UsageError: An unknown kind or setting; or no decay uses the budget up.
            BudgetError: So many epochs cost more even if the noise does not fall.
        """
        epochs = check_positive_integer("epochs", epochs)
        steepness = _solvable_schedule(kind)[1]
        low, high = steepness.min_value, steepness.max_value

        def made(dial: float) -> Schedule:
            field = {steepness.field: math.exp(-dial) if steepness.falling else dial}
            return SCHEDULES.from_json({**settings, "name": kind, **field})

        if self.price(made(high), epochs).epsilon <= self.budget.epsilon:
            raise UsageError(
                f"{epochs} epochs cost less than the budget however fast the noise falls from "
                f"{self.noise_multiplier:g}: take less noise, more epochs, or another decay."
            )
        try:
            dial = calibration.calibrate_max(
                lambda value: self.event(made(value), epochs), self.budget, low, high
            )
        except BudgetError:
            raise BudgetError(
                f"{epochs} epochs cost epsilon {self.price(made(low), epochs).epsilon:.4g} even if "
                f"the noise stays at {self.noise_multiplier:g}: take more noise or fewer epochs."
            ) from None
        return made(dial)


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedSchedule:
    """A schedule, how long the budget lasts with it, and what that costs.

    Args:
        solved: "epochs", or the name of the decay's rate.
        schedule: With its rate.
        epochs: How many fit.
        first: Noise multiplier of the first epoch.
        last: Of the last epoch.
        price: Of so many epochs, at most the budget.
    """

    solved: str
    schedule: Schedule
    epochs: int
    first: float
    last: float
    price: PrivacyCost

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "schedule": self.schedule.to_json()}

    def describe(self) -> str:
        """Return one line; what was solved comes first."""
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
    """Answer one of the two questions: `rate` is given, or `epochs` is.

    `kind` is "uniform", or a decay; noise, n, batch, budget and batching are those of a
    `TrainingHistory`;
    `settings` are the schedule's other fields: None and 1 are left out where it has none such.

    Raises:
        UsageError: Neither or both are given; a schedule that is none.
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
                "uniform has no rate: leave `rate=` and `epochs=` out, or see a decay."
            )
        schedule: Schedule = UniformSchedule()
    elif (rate is None) == (epochs is None):
        raise UsageError("give `rate=`, and the epochs are solved; or `epochs=`, and the rate is.")
    else:
        names, steepness = _solvable_schedule(kind)
        own = {name: v for name, v in settings.items() if name in names or v not in (None, 1)}
        own = {name: value for name, value in own.items() if value is not None}
        if epochs is None:
            assert rate is not None
            schedule = SCHEDULES.from_json({**own, "name": kind, steepness.field: rate})
        else:
            schedule, solved = course.rate(kind, epochs, **own), steepness.field
    found = course.epochs(schedule) if epochs is None else epochs
    sigma = course.noise_multiplier
    return SolvedSchedule(
        solved=solved, schedule=schedule, epochs=found,
        first=sigma * schedule.factor(0), last=sigma * schedule.factor(found - 1),
        price=course.price(schedule, found),
    )  # fmt: skip


def _solvable_schedule(kind: str) -> tuple[list[str], DecayRange]:
    """Return the fields of a schedule whose rate can be solved for, and how steep it may be."""
    known = {name: each for name, each in SCHEDULES.kinds().items() if each.steepness is not None}
    if kind not in known:
        raise UsageError(f"kind is {kind!r}: expected one of uniform, {', '.join(known)}.")
    steepness = known[kind].steepness
    assert steepness is not None
    return known[kind].field_names(), steepness
