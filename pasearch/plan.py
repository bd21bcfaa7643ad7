"""The plan: everything that will be released, with the noise solved, before a record is read.

    price = max over partitions of the composed price of that partition's lines  <=  budget

Three dials are solved, each on the private side of the budget:
    noise of a candidate's training   on `train` (in place) or `search` (aside)
    noise of a candidate's score      on `validation`, which has the whole epsilon for scores
    noise of the printed accuracy     on `test`, likewise
and, aside, the noise of the final training on `train`; for a recipe that looks at validation
records while it trains (screening, a validation-driven schedule), the noise of each look. Before
them stand what is bought of an undeclared schema (three quarters of the epsilon of `validation`, or
of `test`) and the fit of front ends (a tenth of the epsilon each, where candidates are trained).
Candidates may differ in their number of steps and in their recipe: the dial is then mu, which gives
each its noise multiplier by the CLT rule, and the exact price is the worst over the space (event
`Worst`).

Everything here is arithmetic on public numbers: n, shapes, the space, the strategy.

Source: docs/rules.md, rules 1 and 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pasearch.accounting import calibration
from pasearch.accounting.accountants import Price, price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.claims import (
    Claim,
    eq8,
    eq9_corrected,
    fu_theorem1,
    yu_theorem3_schedule,
)
from pasearch.accounting.dials import Dials
from pasearch.accounting.events import Composed, Event, Gaussian, Geometric, SelfComposed, Worst
from pasearch.data.partitions import Split
from pasearch.data.purchase import Purchase
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import ExponentialPick, NoisyCount
from pasearch.runs.sums import NoisySum
from pasearch.spaces.architecture import MOST_PARAMETERS
from pasearch.spaces.space import Portfolio
from pasearch.training.recipe import Recipe, tuned_learning_rate
from pasearch.training.schedules import Uniform, Validation
from pasearch.training.screening import GRID

if TYPE_CHECKING:
    from pasearch.data.front_ends import FrontEnd
    from pasearch.data.partitions import AnySchema
    from pasearch.spaces.space import Candidate, Space

Settings = tuple[tuple[str, float], ...]
ScoreNoise = NoisyCount | NoisySum
Release = ScoreNoise | ExponentialPick

RECIPE = "recipe"
"""The setting that says which of a plan's recipes a candidate has."""

LOOK = "look while training"
"""The name of the line of a recipe's looks at validation slots."""

PURCHASE_SHARE = 0.75
"""The share of epsilon that an undeclared schema may take, of the slots it is bought from."""

PURCHASE_DELTA = 0.1
"""The share of delta that goes to categories which one record alone might show."""

WORST_LOSS = 0.1
"""The share of slots that a bought category may need, before the plan warns of it."""

FRONT_END_SHARE = 0.1
"""The share of epsilon that the fit of one front end takes, of the slots it reads."""

ERROR_GRID = 100
"""How finely one record's error is told; the noise grows with it, so that 1 % is enough."""

MU_RANGE = (1e-4, 50.0)
"""Where the training dial may stand: sigma from 10^4 steps-free to next to none."""

SIGMA_RANGE = (0.05, 1e6)
"""Where the noise multiplier of a front end's fit, or of a purchase, may stand."""

SCORE_RANGE = (1e-5, 50.0)
"""Where the epsilon of one score may stand."""

ADJACENCY = "zero-out (the record is replaced by a null record; n is public)"
UNIT = "one record"


STRONG_SIGNAL = 4000.0
"""Training records times mu from which `learning_rate_growth` makes a candidate's rate grow, as the
square root. Measured for a linear model on scattering features (benchmarks/portfolio)."""

LEAST_SIGNAL = 5.0
"""Training records times mu, a class: below it accuracy is close to guessing."""


class Priced(Protocol):
    """What the plan needs to know of a search strategy."""

    name: ClassVar[str]
    """The strategy's name."""

    scored: ClassVar[bool]
    """Whether candidates are compared."""

    private_trials: ClassVar[bool]
    """Whether trials are trained privately."""

    way: ClassVar[str]
    """How candidates are chosen among."""

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

    def settings(self, space: Space) -> list[Settings]:
        """Return every combination of recipe settings that a candidate may have."""
        ...

    def front_ends(self, space: Space) -> tuple[FrontEnd, ...]:
        """Return every front end that a candidate may have."""
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
class Charged:
    """What every solved plan has, and what it can say of itself from its lines alone.

    Args:
        name: The data set's name.
        schema: The declared form of the data.
        public: Whether the user declared the data public.
        budget: Epsilon and delta of the whole run.
        split: Sizes of the partitions.
        lines: Everything that will be charged.
        purchase: How what the schema leaves undeclared is bought; None when nothing is.
        assumed_public: What was read from the records for nothing, because the user said so.
        most: The most categories that an undeclared column is bought with.
        auto: Why `auto` took this way, where it did.
        warnings: What the user should know before it runs.
        basis: What it was solved from and is in no other field of a result, as plain values: with
            it a result's plan can be made again (`verification`).
    """

    name: str
    schema: AnySchema
    public: bool
    budget: Budget
    split: Split
    lines: tuple[Line, ...]
    purchase: Purchase | None = None
    assumed_public: tuple[str, ...] = ()
    most: int = 32
    auto: dict[str, Any] | None = field(default=None, hash=False)
    warnings: tuple[str, ...] = ()
    basis: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

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

    @property
    def purchase_partition(self) -> str:
        """The partition that an undeclared schema is bought from: it has epsilon to spare."""
        return purchase_partition(self.split)

    @property
    def trial_partition(self) -> str:
        """The partition that candidates are trained on: `search` if there is one."""
        return self.split.trial_partition

    @property
    def points_each(self) -> int:
        """How many points the best answer to a record has: 1, or the grid of an error."""
        return ERROR_GRID if self.schema.regression else 1

    def bought(self) -> list[str]:
        """Return what is bought beside the model, one line each: all of it is released.

        Of a schema that is not bought yet, there is nothing to say.
        """
        return [] if self.purchase is None else list(self.schema.describe_items())

    def priced_json(self) -> dict[str, Any]:
        """Return what every plan says of itself as plain values: data, budget, lines, prices."""
        from pasearch.accounting.events import to_json

        total, by_partition = self.prices
        return {
            "budget": {"epsilon": self.budget.epsilon, "delta": self.delta},
            "split": self.split.sizes(),
            "fixed_tail": self.split.fixed_tail,
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
            "data": {"name": self.name, "n": self.split.n, **self.schema.to_json()},
            "purchase": None if self.purchase is None else self.purchase.to_json(),
            "assumed_public": list(self.assumed_public),
            "data_is_public": self.public,
            "auto": self.auto,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, kw_only=True)
class Plan(Charged):
    """A solved plan of a search. Made by `make_plan`; nothing runs outside it.

    Args:
        strategy: Who is tried.
        space: What it is drawn from.
        recipes: How candidates are trained, before their own settings and their noise: each
            candidate by one of them, the first unless its settings say otherwise.
        finals: The same for the final training; empty when the winner's weights are kept.
        trial_mu: The solved dial of the candidates' noise; None when trials are not private.
        final_mu: The solved dial of the final training; None when the winner's weights are kept.
        score: The noise of a candidate's score; None when nothing is compared.
        test: The noise of the printed accuracy.
        front_noise: Noise multipliers of the fitted front ends, by their text.
        searched_on: Name of the declared-public data that the candidate was found on, if any.
        judge: The noise of each look at the validation slots while training; None when there is
            none, or when public records are looked at instead.
        judged_on: Name of those public records, if any.
        recipe_names: What the user calls each recipe, and what it does; empty for the default.
        dimensions: How many numbers the networks train, where a recipe's price depends on it.
    """

    strategy: Priced
    space: Space
    recipes: tuple[Recipe, ...]
    finals: tuple[Recipe, ...]
    trial_mu: float | None
    final_mu: float | None
    score: Release | None
    test: ScoreNoise
    front_noise: tuple[tuple[str, float], ...] = ()
    searched_on: str | None = None
    judge: ScoreNoise | None = None
    judged_on: str | None = None
    recipe_names: tuple[str, ...] = ("",)
    dimensions: tuple[int | None, ...] = (None,)

    def bought(self) -> list[str]:
        """Return what is bought beside the model: front ends, and what the schema left open."""
        return [*(f"front end {text}" for text, _ in self.front_noise), *super().bought()]

    @property
    def aside(self) -> bool:
        """Whether the winner's architecture is trained anew on slots the search did not see."""
        return bool(self.finals)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the released network's training, or the first that it may have."""
        return (self.finals or self.recipes)[0]

    @property
    def kept_slots(self) -> int:
        """How many slots the released network is trained on."""
        return self.split.train if self.aside else self.split.trial_slots

    def recipe_name(self, candidate: Candidate) -> str:
        """Return what the user calls a candidate's recipe, and what it does."""
        return self.recipe_names[recipe_of(candidate.settings)]

    def trial_recipe(self, candidate: Candidate) -> Recipe:
        """Return how a candidate is trained in the search."""
        return candidate_recipe(self.recipes, candidate, self.trial_mu, self.split.trial_slots)

    def final_recipe(self, candidate: Candidate) -> Recipe:
        """Return how the winner is trained anew."""
        assert self.aside
        return candidate_recipe(self.finals, candidate, self.final_mu, self.split.train)

    def seconds_per_training(self) -> tuple[float, float]:
        """Return how long the default and the largest candidate take, roughly, on two CPU cores.

        A step costs a fixed 1 ms and 8 operations a parameter and record, at 1e11 a second
        (measured on fully connected networks; a convolution re-uses its weights and takes longer).
        """
        recipe = self.recipe
        default, largest = self.space.parameter_range(*planned_form(self.schema, self.most))
        return tuple(  # pyright: ignore[reportReturnType]
            recipe.steps * (1e-3 + recipe.expected_batch_size * each * 8 / 1e11)
            for each in (default, largest)
        )

    def alternatives(self, factors: tuple[float, ...] = (0.5, 1.0, 2.0)) -> list[dict[str, Any]]:
        """Return about what other budgets would buy: the noise of the released model's training.

        Args:
            factors: Of the budget's epsilon.

        Returns:
            One dictionary a factor: epsilon, noise_multiplier, signal_to_noise (mu n). Both are
            None where the budget would be too small.
        """
        slots = self.kept_slots
        found = []
        for factor in factors:
            budget = Budget(factor * self.budget.epsilon, self.delta)
            try:
                mu = self._mu(budget) if factor != 1.0 else self.final_mu or self.trial_mu
            except BudgetError:
                mu = None
            recipe = self.recipe
            noise = None if mu is None else noised_recipe(recipe, recipe.steps, mu, slots)
            found.append(
                {
                    "epsilon": budget.epsilon,
                    "noise_multiplier": None if noise is None else noise.noise_multiplier,
                    "signal_to_noise": None if mu is None else mu * slots,
                }
            )
        return found

    def _mu(self, budget: Budget) -> float:
        """Return about the dial of the released model's training under another budget."""
        if self.aside:
            lines = _final_lines(self._of_mu(self.finals, self.split.train))
        else:
            of_mu = self._of_mu(self.recipes, self.split.trial_slots)
            lines = _trial_lines(self.strategy, self.split, of_mu)
        fronts = self.strategy.front_ends(self.space) if self.front_noise else ()
        _, fits = solve_front_ends(fronts, self.trial_partition, budget, Dials())
        return calibration.about(_dialled(lines, fits), budget, *MU_RANGE)

    def claims(self) -> list[Claim]:
        """Return what the papers' own formulas would charge for this run; never charged here."""
        recipes = self.finals or self.recipes
        recipe = list(dict.fromkeys(claim for each in recipes for claim in self._of_recipe(each)))
        compared = self.strategy.way in ("composition", "repeat-and-select")
        if not compared or self.trial_mu is None:
            return recipe
        event = self._of_mu(self.recipes, self.split.trial_slots)(self.trial_mu)
        one = price_partitions({"train": event}, self.delta)[0].epsilon
        if not one > 0.0:
            return recipe
        runs = max(1, round(self.strategy.expected_trainings))
        if self.strategy.hides_trials:
            return [
                *recipe,
                eq9_corrected(
                    acceptable_loss=0.05,
                    validation_size=self.split.validation,
                    failure_probability=0.05,
                    runs=runs,
                    epsilon=one,
                ),
            ]
        return [*recipe, eq8(epsilon=one, runs=runs, delta_prime=self.delta)]

    def _of_recipe(self, recipe: Recipe) -> list[Claim]:
        """Return what the papers would charge for one training of the released network."""
        slots, mu = self.kept_slots, self.final_mu if self.aside else self.trial_mu
        if mu is None or recipe.noise is not None:  # their theorems are for Gaussian noise
            return []
        sigma, q = recipe.noise_for_mu(mu, slots), recipe.sampling_probability(slots)
        if recipe.screening is not None:
            return [
                fu_theorem1(
                    sampling_probability=q,
                    noise_multiplier=sigma,
                    accepted=max(1, recipe.steps // 2),
                    delta=self.delta,
                    condition="if half of the updates are accepted",
                )
            ]
        if isinstance(recipe.schedule, Uniform | Validation) or recipe.batching != "poisson":
            return []
        releases = [(q, sigma * factor, count) for factor, count in recipe.levels(slots)]
        return [yu_theorem3_schedule(releases, self.delta)]

    def _of_mu(self, recipes: tuple[Recipe, ...], slots: int) -> Callable[[float], Event]:
        return _of_mu(self.strategy, self.space, recipes, slots, self.dimensions)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values; two plans are the same when these are."""
        return {
            **self.priced_json(),
            "strategy": self.strategy.to_json(),
            "way": "aside" if self.aside else "in place",
            "space": self.space.to_json(),
            "recipe": self.recipe.to_json(),
            "recipes": [recipe.to_json() for recipe in self.recipes],
            "searched_on": self.searched_on,
            "judged_on": self.judged_on,
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


def recipe_of(settings: Settings) -> int:
    """Return which of a plan's recipes a candidate has."""
    return int(dict(settings).get(RECIPE, 0))


def candidate_recipe(
    recipes: tuple[Recipe, ...], candidate: Candidate, mu: float | None, slots: int
) -> Recipe:
    """Return how a candidate is trained: its steps, their noise, and a learning rate to match.

    `steps_scale` and `learning_rate_scale` are factors on the recipe's own; `learning_rate_growth`
    is one more, where the signal mu n is strong; a candidate's own `learning_rate` is taken as it
    is.
    """
    recipe = recipes[recipe_of(candidate.settings)]
    noised = noised_recipe(recipe, _steps(recipe, candidate.settings), mu, slots)
    settings = dict(candidate.settings)
    if "learning_rate" in settings:
        return replace(noised, learning_rate=float(settings["learning_rate"]))
    rate = noised.learning_rate
    if rate is None:
        rate = tuned_learning_rate(noised, mu, slots) * candidate.rate_factor()
    rate *= settings.get("learning_rate_scale", 1.0)
    most = settings.get("learning_rate_growth", 1.0)
    if mu is not None and most > 1.0:
        rate *= min(most, max(1.0, math.sqrt(mu * slots / STRONG_SIGNAL)))
    return replace(noised, learning_rate=rate)


def _steps(recipe: Recipe, settings: Settings) -> int:
    """Return a candidate's number of steps: all that its settings change in the price."""
    values = dict(settings)
    return max(1, round(values.get("steps", recipe.steps * values.get("steps_scale", 1.0))))


def noised_recipe(recipe: Recipe, steps: int, mu: float | None, slots: int) -> Recipe:
    """Return the recipe with so many steps and the noise that the dial gives them."""
    recipe = replace(recipe, steps=steps)
    if mu is None:
        return recipe.with_noise(None)
    return recipe.with_noise(recipe.noise_for_mu(mu, slots))


def training_event(
    recipes: tuple[Recipe, ...],
    settings: list[Settings],
    slots: int,
    mu: float,
    dimensions: tuple[int | None, ...] = (None,),
) -> Event:
    """Return the price of one training with any of these settings: the worst of them."""
    used = [(recipes[recipe_of(each)], each) for each in settings]
    kinds = dict.fromkeys((recipe, _steps(recipe, each)) for recipe, each in used)
    noised = [noised_recipe(recipe, steps, mu, slots) for recipe, steps in kinds]
    priced = [(each, d) for each in noised for d in (dimensions if each.noise else (None,))]
    events = tuple(each.event(slots, dimension) for each, dimension in priced)
    return events[0] if len(events) == 1 else Worst(events=events)


def make_plan(
    *,
    name: str,
    schema: AnySchema,
    public: bool,
    budget: Budget,
    split: Split,
    strategy: Priced,
    space: Space,
    make_recipes: Callable[[int], tuple[Recipe, ...]],
    score_epsilon: float | None = None,
    most_categories: int = 32,
    assumed_public: tuple[str, ...] = (),
    free_front_ends: bool = False,
    leak_share: float = PURCHASE_DELTA,
    judged_on: str | None = None,
    dials: Dials | None = None,
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
        make_recipes: How networks are trained on a partition of so many slots, before their
            noise: candidates have one of them each.
        score_epsilon: Epsilon of one score, instead of the most that fits.
        most_categories: The most categories that an undeclared column may be bought with.
        assumed_public: What was read from the records for nothing, because the user said so.
        free_front_ends: Whether front ends are fitted to public data, and so cost nothing.
        leak_share: The share of delta that may go to categories which one record might show.
        judged_on: Name of the public records that a recipe looks at while it trains, if it does.
        dials: What solves the noise; None solves it against the budget.

    Returns:
        Plan: Its price is at most the budget.

    Raises:
        UsageError: The space does not fit the records; delta or the batch is too large; a
            strategy that is not private on data that was not declared public.
        BudgetError: Even the most noise costs more than the budget.
    """
    budget, dials = budget.resolve(split.n), dials or Dials()
    form = planned_form(schema, most_categories)
    space.check_fits(*form)
    _check_size(space, *form)
    if not strategy.private_trials and not public:
        raise UsageError(
            f"Strategy {strategy.name!r} trains its candidates without privacy: it runs on data "
            "that you declare public (--data-is-public), or take rs, mgrs or paas."
        )
    trial_on, slots = split.trial_partition, split.trial_slots
    recipes = make_recipes(slots)
    if not strategy.private_trials:
        recipes[0].with_noise(None)  # what needs noise is refused here
    aside = bool(split.search) or not strategy.private_trials
    finals = make_recipes(split.train) if aside else ()
    looks = _most_looks(recipes, strategy.settings(space), slots)
    if looks and judged_on is None:
        _check_judge(strategy, split, aside)
    _check_views(recipes, space, form[0])
    dimensions = _dimensions(recipes, strategy, space, schema, form)

    purchase, bought = solve_purchase(schema, split, budget, most_categories, leak_share, dials)
    fitted = () if free_front_ends else strategy.front_ends(space)
    if split.portions > 1 and any(each.fitted for each in fitted):
        raise UsageError(
            "A front end that is fitted (pca, standardise) would read the records of every "
            "portion: take another front end, or a strategy without portions."
        )
    front_noise, fits = solve_front_ends(fitted, trial_on, budget, dials)
    lines: list[Line] = [*bought, *fits]
    trial_mu = final_mu = score = None
    if strategy.private_trials:
        of_mu = _of_mu(strategy, space, recipes, slots, dimensions)
        trial_lines = _trial_lines(strategy, split, of_mu)
        trial_mu, charged = solve(trial_lines, budget, MU_RANGE, lines, dials)
        lines += charged
    else:
        lines += strategy.lines(Geometric(epsilon=1.0), trial_on, "training")
    if aside:
        final_lines = _final_lines(_of_mu(strategy, space, finals, split.train, dimensions))
        final_mu, charged = solve(final_lines, budget, MU_RANGE, lines, dials)
        lines += charged
    if strategy.scored:
        score, charged = _solve_score(strategy, budget, score_epsilon, lines, dials)
        lines += charged
    judge = None
    if looks and judged_on is None:
        value, charged = solve(
            lambda value: [
                Line(name=LOOK, partition="validation", event=Geometric(epsilon=value), count=looks)
            ],
            budget,
            SCORE_RANGE,
            lines,
            dials,
        )
        screens = recipes[0].screening is not None
        judge = (
            NoisySum(epsilon=value, most=GRID) if screens else score_noise(schema.regression, value)
        )
        lines += charged
    epsilon, charged = solve(
        lambda value: [accuracy_line(Geometric(epsilon=value))], budget, SCORE_RANGE, lines, dials
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
        recipes=recipes,
        finals=finals,
        trial_mu=trial_mu,
        final_mu=final_mu,
        score=None if score is None else _score_release(split, schema.regression, score),
        test=score_noise(schema.regression, epsilon),
        lines=tuple(lines),
        warnings=(
            *budget.warnings(split.n),
            *untold(schema),
            *unbought(purchase, split),
            *drowned(trial_mu if final_mu is None else final_mu, split.train, form[1]),
        ),
        purchase=purchase,
        front_noise=front_noise,
        assumed_public=assumed_public,
        most=most_categories,
        judge=judge,
        judged_on=judged_on if looks else None,
        dimensions=dimensions,
        basis={
            "declared": schema.to_json(),
            "most_categories": most_categories,
            "leak_share": leak_share,
            "fixed_tail": split.fixed_tail,
            "recipes": [each.to_json() for each in recipes],
            "finals": [each.to_json() for each in finals],
            "score_epsilon": score_epsilon,
            "free_front_ends": free_front_ends,
            "dials": dials.values,
        },
    )
    if not plan.price.epsilon <= budget.epsilon:
        raise BudgetError(
            f"The plan costs epsilon {plan.price.epsilon:.4g}, the budget is {budget.epsilon:.4g}: "
            "lower the epsilon of the scores, or raise --eps."
        )
    return plan


def score_noise(regression: bool, epsilon: float) -> ScoreNoise:
    """Return how a score is released: correct answers, or points of at most `ERROR_GRID` each.

    Both are epsilon-DP, and both are priced as `Geometric`, which bounds every epsilon-DP release.
    """
    if regression:
        return NoisySum(epsilon=epsilon, most=ERROR_GRID)
    return NoisyCount(epsilon=epsilon)


def _score_release(split: Split, regression: bool, epsilon: float) -> Release:
    """Return how the candidates' scores are released: each by itself, or in one pick."""
    if split.portions > 1:
        return ExponentialPick(epsilon=epsilon, most=ERROR_GRID if regression else 1)
    return score_noise(regression, epsilon)


def purchase_partition(split: Split) -> str:
    """Return where an undeclared schema is bought: where epsilon is to spare."""
    return "validation" if split.validation else "test"


def solve_purchase(
    schema: AnySchema, split: Split, budget: Budget, most: int, leak_share: float, dials: Dials
) -> tuple[Purchase | None, list[Line]]:
    """Return how what is undeclared is bought, and its lines; None where all is declared."""
    items = len(schema.undeclared)
    if not items:
        return None, []
    partition = purchase_partition(split)
    delta = leak_share * known_delta(budget) / items

    def purchase(sigma: float) -> Purchase:
        return Purchase(noise_multiplier=sigma, delta=delta, most=most)

    sigma = dials.smallest(
        "schema",
        lambda value: SelfComposed(event=purchase(value).event, count=items),
        Budget(PURCHASE_SHARE * budget.epsilon, budget.delta),
        *SIGMA_RANGE,
    )
    event = purchase(sigma).event
    return purchase(sigma), [Line(name="schema", partition=partition, event=event, count=items)]


def solve_front_ends(
    front_ends: tuple[FrontEnd, ...], partition: str, budget: Budget, dials: Dials
) -> tuple[tuple[tuple[str, float], ...], list[Line]]:
    """Return the noise of every fitted front end, and their lines."""
    noise, lines = [], []
    share = Budget(FRONT_END_SHARE * budget.epsilon, budget.delta)
    for each in dict.fromkeys(front for front in front_ends if front.fitted):
        name = f"front end {each.text}"
        sigma = dials.smallest(
            name, lambda value: Gaussian(noise_multiplier=value), share, *SIGMA_RANGE
        )
        event = Gaussian(noise_multiplier=sigma)
        noise.append((each.text, sigma))
        lines.append(Line(name=name, partition=partition, event=event, count=1))
    return tuple(noise), lines


def untold(schema: AnySchema) -> list[str]:
    """Warn when nobody said whether a class or a number is to be predicted."""
    aim = schema.task_untold
    if aim is None:
        return []
    return [f"column {aim!r} is taken as classes; if it is a number to predict, say --regression."]


def unbought(purchase: Purchase | None, split: Split) -> list[str]:
    """Warn when a category must be common to be bought."""
    if purchase is None:
        return []
    slots = getattr(split, purchase_partition(split))
    if not purchase.least > WORST_LOSS * slots:
        return []
    return [
        f"the undeclared schema is bought from {slots:,} slots, and only what at least about "
        f"{purchase.least} of them hold will be found: rarer categories and classes are lost. "
        "Declare the schema, or have larger scored parts (--split)."
    ]


def drowned(mu: float | None, slots: int, classes: int) -> list[str]:
    """Warn when the training's noise is as large as what its records can say together.

    Measured with `fixed` on digits: epsilon .05 is warned of and guesses; .1 is not and gets .5.
    """
    if mu is None or mu * slots >= LEAST_SIGNAL * classes:
        return []
    return [
        f"{slots:,} training records at this budget say no more than the noise: expect little "
        "better than guessing. More records or a larger --eps would help; more trainings would not."
    ]


def planned_form(schema: AnySchema, most: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of a record and the outputs of a network, at most, whatever is bought.

    Args:
        schema: Declared, or to be bought.
        most: The most categories, or classes, that are bought for a column.
    """
    return schema.widest_shape(most), schema.outputs or max(2, most)


def _check_size(space: Space, shape: tuple[int, ...], outputs: int) -> None:
    """Refuse now what could only fail when it is drawn: under a secret law that would tell."""
    largest = space.parameter_range(shape, outputs)[1]
    if largest > MOST_PARAMETERS:
        raise UsageError(
            f"Space {space.name!r}: its largest network has {largest:,} parameters: expected at "
            f"most {MOST_PARAMETERS:,}. Take fewer units, filters or layers."
        )


def _dimensions(
    recipes: tuple[Recipe, ...],
    strategy: Priced,
    space: Space,
    schema: AnySchema,
    form: tuple[tuple[int, ...], int],
) -> tuple[int | None, ...]:
    """Return how many numbers any candidate trains, if a recipe's price depends on it."""
    named = next((each.noise.name for each in recipes if each.noise is not None), None)
    if named is None:
        return (None,)
    if schema.undeclared:
        raise UsageError(
            f"{named} noise is priced for the network's size, which an undeclared schema leaves "
            "open: declare the schema, or take Gaussian noise."
        )
    if getattr(getattr(strategy, "law", None), "cap", None) is not None:
        raise UsageError(
            f"{named} noise has no loss distribution, which a capped number of trainings needs: "
            "leave --max-candidates out, or take Gaussian noise."
        )
    if strategy.name == "fixed":
        candidates = [space.candidate(space.fixed())]
    elif isinstance(space, Portfolio):
        candidates = list(space.entries)
    else:
        raise UsageError(
            f"{named} noise is priced for the network's size, and space {space.name!r} has too "
            "many: take one network, a portfolio, or Gaussian noise."
        )
    return tuple(sorted({each.parameters(*form)[1] for each in candidates}))


def _check_views(recipes: tuple[Recipe, ...], space: Space, shape: tuple[int, ...]) -> None:
    """Refuse views that records behind a front end do not have, before anything is charged."""
    for augmentation in (each.augmentation for each in recipes if each.augmentation is not None):
        for front_end in space.front_ends():
            augmentation.check_fits(front_end.output_shape(shape))


Dial = Callable[[float], list[Line]]
"""From where a dial stands to the lines that it sets."""


def _of_mu(
    strategy: Priced,
    space: Space,
    recipes: tuple[Recipe, ...],
    slots: int,
    dimensions: tuple[int | None, ...],
) -> Callable[[float], Event]:
    """Return what one training of any candidate costs, from the dial mu."""
    settings = strategy.settings(space)
    return lambda mu: training_event(recipes, settings, slots, mu, dimensions)


def _trial_lines(strategy: Priced, split: Split, of_mu: Callable[[float], Event]) -> Dial:
    """Return the dial of the candidates' trainings: mu to their lines."""
    return lambda mu: strategy.lines(of_mu(mu), split.trial_partition, "training")


def _final_lines(of_mu: Callable[[float], Event]) -> Dial:
    """Return the dial of the winner's training anew: mu to its line."""
    return lambda mu: [Line(name="final training", partition="train", event=of_mu(mu), count=1)]


def accuracy_line(event: Event) -> Line:
    """Return the line of the score that is printed."""
    return Line(name="test accuracy", partition="test", event=event, count=1)


def solve(
    make_lines: Dial,
    budget: Budget,
    bounds: tuple[float, float],
    others: list[Line] | None,
    dials: Dials,
) -> tuple[float, list[Line]]:
    """Turn a dial up (more epsilon, less noise) as far as the budget of its partition goes.

    Args:
        make_lines: The lines of a value of the dial.
        budget: Of the whole run.
        bounds: Where the dial may stand.
        others: Lines solved before; those on the same partition count.
        dials: What turns it.
    """
    name = make_lines(bounds[0])[0].name
    value = dials.largest(name, _dialled(make_lines, others or []), budget, *bounds)
    return value, make_lines(value)


def _dialled(make_lines: Dial, others: list[Line]) -> Callable[[float], Event]:
    """Return the composition of what a dial sets and what else is charged to its partition.

    On several partitions, it is the worst of theirs: no record is in two.
    """

    def event(value: float) -> Event:
        own = make_lines(value)
        places = {line.partition for line in own}
        beside = [line for line in others if line.partition in places]
        found = tuple(dict.fromkeys(events_by_partition([*beside, *own]).values()))
        return found[0] if len(found) == 1 else Worst(events=found)

    return event


def _most_looks(recipes: tuple[Recipe, ...], settings: list[Settings], slots: int) -> int:
    """Return how often any candidate's training looks at validation slots, at most."""
    used = [(recipes[recipe_of(each)], each) for each in settings]
    return max(replace(r, steps=_steps(r, each)).judgements(slots) for r, each in used)


def _check_judge(strategy: Priced, split: Split, aside: bool) -> None:
    """Refuse looks at private records in a search: each candidate would need lines of its own."""
    if strategy.scored or not strategy.private_trials or aside:
        raise UsageError(
            "This recipe looks at validation records while it trains, and in a search every "
            "candidate would pay for its looks. Give public records of the same kind "
            "(--energy-on), or train one architecture (pasearch train, or --strategy fixed)."
        )
    if not split.validation > 0:
        raise UsageError(
            "This recipe looks at validation records while it trains: give the split a validation "
            "share, or public records of the same kind (--energy-on)."
        )


def _solve_score(
    strategy: Priced,
    budget: Budget,
    score_epsilon: float | None,
    others: list[Line],
    dials: Dials,
) -> tuple[float, list[Line]]:
    def lines(value: float) -> list[Line]:
        return strategy.lines(Geometric(epsilon=value), "validation", "score")

    if not strategy.private_trials:
        return budget.epsilon, lines(budget.epsilon)
    if score_epsilon is None:
        return solve(lines, budget, SCORE_RANGE, others, dials)
    return score_epsilon, lines(score_epsilon)


def known_delta(budget: Budget) -> float:
    """Return the delta of a resolved budget."""
    assert budget.delta is not None
    return budget.delta
