"""The plan of a search: every candidate's noise, solved before a record is read.

Three dials are solved, each on the private side of the budget:
    noise of a candidate's training   on `train` (kept) or `search` (retrained)
    noise of a candidate's score      on `validation`, which has the whole epsilon for scores
    noise of the printed accuracy     on `test`, likewise
and, if the winner is retrained, the noise of that training on `train`; for a recipe with
validation queries (screening, a validation-driven schedule), the noise of each.
Candidates may differ in their number of steps and in their recipe: the dial is then mu, which gives
each its noise multiplier by the CLT rule, and the exact price is the worst over the space (event
`Worst`).

Source: docs/rules.md, rules 1 and 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.claims import Claim, eq8, eq9_corrected
from pasearch.accounting.dials import Dials
from pasearch.accounting.events import Event, Geometric, Worst
from pasearch.errors import BudgetError, UsageError
from pasearch.planning import (
    MU_RANGE,
    PURCHASE_DELTA,
    SCORE_RANGE,
    Charged,
    Dial,
    ScoreNoise,
    accuracy_line,
    dialled,
    drowned,
    planned_form,
    score_noise,
    solve,
    solve_front_ends,
    solve_purchase,
    unbought,
    untold,
)
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import ExponentialPick
from pasearch.runs.sums import NoisySum
from pasearch.spaces.architecture import MOST_PARAMETERS
from pasearch.spaces.space import Portfolio
from pasearch.training.recipe import Recipe, tuned_learning_rate
from pasearch.training.scoring import ERROR_GRID
from pasearch.training.screening import GRID

if TYPE_CHECKING:
    from pasearch.data.split import Split
    from pasearch.data.tables import AnySchema
    from pasearch.search.strategy import Settings, Strategy
    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.space import Space

Release = ScoreNoise | ExponentialPick

RECIPE = "recipe"
"""The setting that says which of a plan's recipes a candidate has."""

VALIDATION_QUERY = "validation query"
"""The name of the line of a recipe's queries of validation records while it trains."""

STRONG_SIGNAL = 4000.0
"""Training records times mu from which `learning_rate_growth` makes a candidate's rate grow, as the
square root. Measured for a linear model on scattering features (benchmarks/portfolio)."""


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
        validation_noise: Of each validation query while training; None when there is none, or
            when the queries are of public records.
        validated_on: Name of those public records, if any.
        recipe_names: What the user calls each recipe, and what it does; empty for the default.
        dimensions: How many numbers the networks train, where a recipe's price depends on it.
    """

    strategy: Strategy
    space: Space
    recipes: tuple[Recipe, ...]
    finals: tuple[Recipe, ...]
    trial_mu: float | None
    final_mu: float | None
    score: Release | None
    test: ScoreNoise
    front_noise: tuple[tuple[str, float], ...] = ()
    searched_on: str | None = None
    validation_noise: ScoreNoise | None = None
    validated_on: str | None = None
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
    def trainings(self) -> int | None:
        """How many trainings are planned; None where that is secret."""
        if self.strategy.way == "repeat-and-select":
            return None
        return round(self.strategy.expected_trainings) + self.aside

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
        return calibration.about(dialled(lines, fits), budget, *MU_RANGE)

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
        if mu is None:
            return []
        return noised_recipe(recipe, recipe.steps, mu, slots).claims(slots, self.delta)

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
            "validated_on": self.validated_on,
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
    strategy: Strategy,
    space: Space,
    make_recipes: Callable[[int], tuple[Recipe, ...]],
    score_epsilon: float | None = None,
    most_categories: int = 32,
    assumed_public: tuple[str, ...] = (),
    free_front_ends: bool = False,
    leak_share: float = PURCHASE_DELTA,
    validated_on: str | None = None,
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
        validated_on: Name of the public records that validation queries are of, if they are.
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
    queries = _most_queries(recipes, strategy.settings(space), slots)
    if queries and validated_on is None:
        _check_queries(strategy, split, aside)
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
    validation_noise = None
    if queries and validated_on is None:
        value, charged = solve(_query_lines(queries), budget, SCORE_RANGE, lines, dials)
        screens = recipes[0].screening is not None
        validation_noise = (
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
        validation_noise=validation_noise,
        validated_on=validated_on if queries else None,
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


def _score_release(split: Split, regression: bool, epsilon: float) -> Release:
    """Return how the candidates' scores are released: each by itself, or in one pick."""
    if split.portions > 1:
        return ExponentialPick(epsilon=epsilon, most=ERROR_GRID if regression else 1)
    return score_noise(regression, epsilon)


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
    strategy: Strategy,
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


def _of_mu(
    strategy: Strategy,
    space: Space,
    recipes: tuple[Recipe, ...],
    slots: int,
    dimensions: tuple[int | None, ...],
) -> Callable[[float], Event]:
    """Return what one training of any candidate costs, from the dial mu."""
    settings = strategy.settings(space)
    return lambda mu: training_event(recipes, settings, slots, mu, dimensions)


def _trial_lines(strategy: Strategy, split: Split, of_mu: Callable[[float], Event]) -> Dial:
    """Return the dial of the candidates' trainings: mu to their lines."""
    return lambda mu: strategy.lines(of_mu(mu), split.trial_partition, "training")


def _final_lines(of_mu: Callable[[float], Event]) -> Dial:
    """Return the dial of the winner's training anew: mu to its line."""
    return lambda mu: [Line(name="final training", partition="train", event=of_mu(mu), count=1)]


def _most_queries(recipes: tuple[Recipe, ...], settings: list[Settings], slots: int) -> int:
    """Return how many validation queries any candidate's training has, at most."""
    used = [(recipes[recipe_of(each)], each) for each in settings]
    return max(replace(r, steps=_steps(r, each)).validation_queries(slots) for r, each in used)


def _query_lines(count: int) -> Dial:
    """Return the dial of the validation queries: the epsilon of each to their line."""
    return lambda epsilon: [
        Line(
            name=VALIDATION_QUERY,
            partition="validation",
            event=Geometric(epsilon=epsilon),
            count=count,
        )
    ]


def _check_queries(strategy: Strategy, split: Split, aside: bool) -> None:
    """Refuse queries of private records in a search: each candidate would need lines of its own."""
    if strategy.scored or not strategy.private_trials or aside:
        raise UsageError(
            "This recipe makes validation queries while it trains, and in a search every candidate "
            "would pay for its own. Give public records of the same kind (--validate-on), or train "
            "one architecture (pasearch train, or --strategy fixed)."
        )
    if not split.validation > 0:
        raise UsageError(
            "This recipe makes validation queries while it trains: give the split a validation "
            "share, or public records of the same kind (--validate-on)."
        )


def _solve_score(
    strategy: Strategy,
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
