"""The plan: everything that will be released, with the noise solved, before a record is read.

    price = max over partitions of the composed price of that partition's lines  <=  budget

Three dials are solved, each on the private side of the budget:
    noise of a candidate's training   on `train` (in place) or `search` (aside)
    noise of a candidate's score      on `validation`, which has the whole epsilon for scores
    noise of the printed accuracy     on `test`, likewise
and, aside, the noise of the final training on `train`. Candidates may differ in their number of
steps: the dial is then mu, which gives each its noise multiplier by the CLT rule, and the exact
price is the worst over the space (event `Worst`).

Everything here is arithmetic on public numbers: n, shapes, the space, the strategy.

Source: docs/rules.md, rules 1 and 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pasearch.accounting import calibration
from pasearch.accounting.accountants import Price, price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.claims import Claim, eq8, eq9_corrected
from pasearch.accounting.events import Composed, Event, Geometric, SelfComposed, Worst
from pasearch.data.partitions import Split
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import NoisyCount
from pasearch.training.recipe import Recipe, tuned_learning_rate

if TYPE_CHECKING:
    from pasearch.data.schema import Schema
    from pasearch.spaces.space import Candidate, SearchSpace

Settings = tuple[tuple[str, float], ...]

MU_RANGE = (1e-4, 50.0)
"""Where the training dial may stand: sigma from 10^4 steps-free to next to none."""

SCORE_RANGE = (1e-5, 50.0)
"""Where the epsilon of one score may stand."""

ADJACENCY = "zero-out (the record is replaced by a null record; n is public)"
UNIT = "one record"


LEAST_SIGNAL = 5.0
"""Training records times mu, a class: below it accuracy is close to guessing."""

MOST_PARAMETERS = 2**28
"""The largest network that may be drawn: its weights and their gradients take 2 GiB."""


class Priced(Protocol):
    """What the plan needs to know of a search strategy."""

    name: ClassVar[str]
    """The strategy's name."""

    scored: ClassVar[bool]
    """Whether candidates are compared."""

    private_trials: ClassVar[bool]
    """Whether trials are trained privately."""

    @property
    def hides_trials(self) -> bool:
        """Whether the trials stay in `private/`."""
        ...

    @property
    def expected_trainings(self) -> float:
        """The expected number of trainings."""
        ...

    def lines(self, event: Event, partition: str, noun: str) -> list[Line]:
        """Return what the search is charged on one partition."""
        ...

    def settings(self, space: SearchSpace) -> list[Settings]:
        """Return every combination of recipe settings that a candidate may have."""
        ...

    def quantile(self, share: float) -> int:
        """Return a number of trainings not exceeded with probability `share`."""
        ...

    def describe(self) -> str:
        """Return the law of the number of trainings."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A solved plan. Made by `make_plan`; nothing runs outside it.

    Args:
        name: The data set's name.
        schema: The declared form of the data.
        public: Whether the user declared the data public.
        budget: Epsilon and delta of the whole run.
        split: Sizes of the partitions.
        strategy: Who is tried.
        space: What it is drawn from.
        recipe: How a candidate is trained, before its own settings and its noise.
        final: The same for the final training; None when the winner's weights are kept.
        trial_mu: The solved dial of the candidates' noise; None when trials are not private.
        final_mu: The solved dial of the final training; None when the winner's weights are kept.
        score: The noise of a candidate's score; None when nothing is compared.
        test: The noise of the printed accuracy.
        lines: Everything that will be charged.
    """

    name: str
    schema: Schema
    public: bool
    budget: Budget
    split: Split
    strategy: Priced
    space: SearchSpace
    recipe: Recipe
    final: Recipe | None
    trial_mu: float | None
    final_mu: float | None
    score: NoisyCount | None
    test: NoisyCount
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def aside(self) -> bool:
        """Whether the winner's architecture is trained anew on slots the search did not see."""
        return self.final is not None

    @property
    def trial_partition(self) -> str:
        """The partition that candidates are trained on."""
        return self.split.trial_partition

    @property
    def delta(self) -> float:
        """The resolved delta."""
        assert self.budget.delta is not None
        return self.budget.delta

    @cached_property
    def prices(self) -> tuple[Price, dict[str, Price]]:
        """The price of the whole run, and of each partition."""
        return price_partitions(events_by_partition(self.lines), self.delta)

    @property
    def price(self) -> Price:
        """The price of the whole run: the maximum over its partitions."""
        return self.prices[0]

    def trial_recipe(self, candidate: Candidate) -> Recipe:
        """Return how a candidate is trained in the search."""
        return candidate_recipe(self.recipe, candidate, self.trial_mu, self.split.trial_slots)

    def final_recipe(self, candidate: Candidate) -> Recipe:
        """Return how the winner is trained anew."""
        assert self.final is not None
        return candidate_recipe(self.final, candidate, self.final_mu, self.split.train)

    def seconds_per_training(self) -> tuple[float, float]:
        """Return how long the default and the largest candidate take, roughly, on two CPU cores.

        A step costs a fixed 1 ms and 8 operations a parameter and record, at 1e11 a second
        (measured on fully connected networks; a convolution re-uses its weights and takes longer).
        """
        recipe = self.final or self.recipe
        default, largest = self.space.parameter_range(self.schema.shape, self.schema.classes)
        return tuple(  # pyright: ignore[reportReturnType]
            recipe.steps * (1e-3 + recipe.expected_batch_size * each * 8 / 1e11)
            for each in (default, largest)
        )

    def claims(self) -> list[Claim]:
        """Return what the papers' own formulas would charge for this run; never charged here."""
        if not self.strategy.scored or not self.strategy.private_trials or self.trial_mu is None:
            return []
        one = price_partitions({"train": self._trial_event()}, self.delta)[0].epsilon
        runs = max(1, round(self.strategy.expected_trainings))
        if self.strategy.hides_trials:
            return [
                eq9_corrected(
                    acceptable_loss=0.05,
                    validation_size=self.split.validation,
                    failure_probability=0.05,
                    runs=runs,
                    epsilon=one,
                )
            ]
        return [eq8(epsilon=one, runs=runs, delta_prime=self.delta)]

    def _trial_event(self) -> Event:
        assert self.trial_mu is not None
        settings = self.strategy.settings(self.space)
        return training_event(self.recipe, settings, self.split.trial_slots, self.trial_mu)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values; two plans are the same when these are."""
        from pasearch.accounting.events import to_json

        total, by_partition = self.prices
        return {
            "data": {"name": self.name, "n": self.split.n, **self.schema.to_json()},
            "data_is_public": self.public,
            "budget": {"epsilon": self.budget.epsilon, "delta": self.delta},
            "split": self.split.sizes(),
            "strategy": self.strategy.to_json(),
            "way": "aside" if self.aside else "in place",
            "space": self.space.to_json(),
            "recipe": self.recipe.to_json(),
            "lines": [
                {
                    "name": line.name,
                    "partition": line.partition,
                    "count": line.count,
                    "event": to_json(line.event),
                }
                for line in self.lines
            ],
            "price": {
                "epsilon": total.epsilon,
                "delta": total.delta,
                "accountant": total.accountant,
                "adjacency": ADJACENCY,
                "unit": UNIT,
            },
            "price_by_partition": {
                name: {"epsilon": price.epsilon, "accountant": price.accountant}
                for name, price in by_partition.items()
            },
            "warnings": list(self.warnings),
        }


def events_by_partition(lines: tuple[Line, ...] | list[Line]) -> dict[str, Event]:
    """Return the composition of each partition's lines."""
    grouped: dict[str, list[Event]] = {}
    for line in lines:
        repeated = (
            line.event if line.count == 1 else SelfComposed(event=line.event, count=line.count)
        )
        grouped.setdefault(line.partition, []).append(repeated)
    return {
        partition: events[0] if len(events) == 1 else Composed(events=tuple(events))
        for partition, events in grouped.items()
    }


def candidate_recipe(recipe: Recipe, candidate: Candidate, mu: float | None, slots: int) -> Recipe:
    """Return how a candidate is trained: its steps, their noise, and a learning rate to match.

    `steps_scale` and `learning_rate_scale` are factors on the recipe's own; a candidate's own
    `learning_rate` is taken as it is.
    """
    noised = noised_recipe(recipe, _steps(recipe, candidate.settings), mu, slots)
    settings = dict(candidate.settings)
    if "learning_rate" in settings:
        return replace(noised, learning_rate=float(settings["learning_rate"]))
    rate = noised.learning_rate
    if rate is None:
        rate = tuned_learning_rate(noised, mu, slots) * candidate.architecture.rate_factor()
    return replace(noised, learning_rate=rate * settings.get("learning_rate_scale", 1.0))


def _steps(recipe: Recipe, settings: Settings) -> int:
    """Return a candidate's number of steps: all that its settings change in the price."""
    values = dict(settings)
    return max(1, round(values.get("steps", recipe.steps * values.get("steps_scale", 1.0))))


def noised_recipe(recipe: Recipe, steps: int, mu: float | None, slots: int) -> Recipe:
    """Return the recipe with so many steps and the noise that the dial gives them."""
    recipe = replace(recipe, steps=steps)
    if mu is None:
        return recipe.with_noise(None)
    rate = recipe.sampling_probability(slots)
    return recipe.with_noise(calibration.noise_for_mu(mu, rate, recipe.steps))


def training_event(recipe: Recipe, settings: list[Settings], slots: int, mu: float) -> Event:
    """Return the price of one training with any of these settings: the worst of them."""
    counts = dict.fromkeys(_steps(recipe, each) for each in settings)
    events = tuple(noised_recipe(recipe, steps, mu, slots).event(slots) for steps in counts)
    return events[0] if len(events) == 1 else Worst(events=events)


def make_plan(
    *,
    name: str,
    schema: Schema,
    public: bool,
    budget: Budget,
    split: Split,
    strategy: Priced,
    space: SearchSpace,
    make_recipe: Callable[[int], Recipe],
    score_epsilon: float | None = None,
) -> Plan:
    """Solve the noise of everything a run will release.

    Args:
        name: The data set's name.
        schema: The declared form of the data.
        public: Whether the user declared the data public.
        budget: Epsilon and delta of the whole run; delta None takes the default for n.
        split: Sizes of the partitions.
        strategy: Who is tried.
        space: What it is drawn from.
        make_recipe: How a network is trained on a partition of so many slots, before its noise.
        score_epsilon: Epsilon of one score, instead of the most that fits.

    Returns:
        Plan: Its price is at most the budget.

    Raises:
        UsageError: The space does not fit the records; delta or the batch is too large; a
            strategy that is not private on data that was not declared public.
        BudgetError: Even the most noise costs more than the budget.
    """
    budget = budget.resolve(split.n)
    space.check_fits(schema.shape, schema.classes)
    _check_size(space, schema)
    if not strategy.private_trials and not public:
        raise UsageError(
            f"Strategy {strategy.name!r} trains its candidates without privacy: it runs on data "
            "that you declare public (--data-is-public), or take rs, mgrs or paas."
        )
    trial_on, slots = split.trial_partition, split.trial_slots
    recipe = make_recipe(slots)
    aside = bool(split.search) or not strategy.private_trials
    final = make_recipe(split.train) if aside else None

    settings = strategy.settings(space)
    lines: list[Line] = []
    trial_mu = final_mu = score = None
    if strategy.private_trials:
        trial_mu, charged = _solve(
            lambda mu: strategy.lines(
                training_event(recipe, settings, slots, mu), trial_on, "training"
            ),
            budget,
            MU_RANGE,
        )
        lines += charged
    else:
        lines += strategy.lines(Geometric(epsilon=1.0), trial_on, "training")
    if final is not None:
        final_mu, charged = _solve(
            lambda mu: [_final_line(training_event(final, settings, split.train, mu))],
            budget,
            MU_RANGE,
        )
        lines += charged
    if strategy.scored:
        score, charged = _solve_score(strategy, budget, score_epsilon)
        lines += charged
    epsilon, charged = _solve(
        lambda value: [_test_line(Geometric(epsilon=value))], budget, SCORE_RANGE
    )
    lines += charged
    plan = Plan(
        name=name,
        schema=schema,
        public=public,
        budget=budget,
        split=split,
        strategy=strategy,
        space=space,
        recipe=recipe,
        final=final,
        trial_mu=trial_mu,
        final_mu=final_mu,
        score=score,
        test=NoisyCount(epsilon=epsilon),
        lines=tuple(lines),
        warnings=(
            *budget.warnings(split.n),
            *_drowned(trial_mu if final_mu is None else final_mu, split.train, schema.classes),
        ),
    )
    if not plan.price.epsilon <= budget.epsilon:
        raise BudgetError(
            f"The plan costs epsilon {plan.price.epsilon:.4g}, the budget is {budget.epsilon:.4g}: "
            "lower the epsilon of the scores, or raise --eps."
        )
    return plan


def _drowned(mu: float | None, slots: int, classes: int) -> list[str]:
    """Warn when the training's noise is as large as what its records can say together.

    Measured with `fixed` on digits: epsilon .05 is warned of and guesses; .1 is not and gets .5.
    """
    if mu is None or mu * slots >= LEAST_SIGNAL * classes:
        return []
    return [
        f"{slots:,} training records at this budget say no more than the noise: expect little "
        "better than guessing. More records or a larger --eps would help; more trainings would not."
    ]


def _check_size(space: SearchSpace, schema: Schema) -> None:
    """Refuse now what could only fail when it is drawn: under a secret law that would tell."""
    largest = space.parameter_range(schema.shape, schema.classes)[1]
    if largest > MOST_PARAMETERS:
        raise UsageError(
            f"Space {space.name!r}: its largest network has {largest:,} parameters: expected at "
            f"most {MOST_PARAMETERS:,}. Take fewer units, filters or layers."
        )


def _final_line(event: Event) -> Line:
    return Line(name="final training", partition="train", event=event, count=1)


def _test_line(event: Event) -> Line:
    return Line(name="test accuracy", partition="test", event=event, count=1)


def _solve(
    make_lines: Callable[[float], list[Line]], budget: Budget, bounds: tuple[float, float]
) -> tuple[float, list[Line]]:
    """Turn a dial up (more epsilon, less noise) as far as the budget of its partition goes."""

    def event(value: float) -> Event:
        (composed,) = events_by_partition(make_lines(value)).values()
        return composed

    value = calibration.largest(event, budget, *bounds)
    return value, make_lines(value)


def _solve_score(
    strategy: Priced, budget: Budget, score_epsilon: float | None
) -> tuple[NoisyCount, list[Line]]:
    def lines(value: float) -> list[Line]:
        return strategy.lines(Geometric(epsilon=value), "validation", "score")

    if not strategy.private_trials:
        return NoisyCount(epsilon=budget.epsilon), lines(budget.epsilon)
    if score_epsilon is None:
        value, charged = _solve(lines, budget, SCORE_RANGE)
        return NoisyCount(epsilon=value), charged
    return NoisyCount(epsilon=score_epsilon), lines(score_epsilon)
