"""The plan of a search: every candidate's noise, calibrated before a record is read.

The noise of these releases is calibrated to the budget, each in its partition of the records:

| release | partition |
|---|---|
| a candidate's training | `search` if records are reserved for the search, else `train` |
| a candidate's score | `validation`; `train` for low-budget evaluations |
| final training of the winner, if it is retrained | `train` |
| validation queries of a recipe (screening, validation-driven schedule) | `validation` |
| selection of a variant of the trained network | `validation` |
| test score | `test` |

Candidates may differ in their number of steps and in their recipe. One parameter mu (Gaussian DP)
determines the noise multiplier of each by the central limit theorem. The privacy cost is the worst
case over all candidates of the space (event `WorstCase`).

Source: docs/rules.md, rules 1 and 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pasearch.accounting import calibration
from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import NoiseParameters
from pasearch.accounting.events import Event, Geometric, WorstCase
from pasearch.accounting.published_bounds import PublishedBound
from pasearch.data.schema import Schema
from pasearch.data.schema_file import MAX_SUGGESTED_NAMES
from pasearch.data.split import Split
from pasearch.errors import BudgetError, UsageError
from pasearch.plan_warnings import warn_of_test_noise
from pasearch.planning import (
    CLASSES_LINE,
    MU_RANGE,
    SCORE_NOISE,
    SCORE_RANGE,
    TEST_LINE,
    CalibratedPlan,
    LinesOfValue,
    NoiseParameter,
    PlanCalibrator,
    PlanTerms,
    ReleaseTemplate,
    bound_network_form,
    check_affordable,
    check_class_weights,
    compose_with,
)
from pasearch.registry import check_descriptions
from pasearch.runs.ledger import PlannedRelease
from pasearch.runs.mechanisms import ExponentialMechanism
from pasearch.runs.sums import NoisySum
from pasearch.search import variants
from pasearch.search.strategy import FULL_ROUND, PORTIONS_RULE, EventOfRound, RoundShape, Strategy
from pasearch.spaces.architecture import MAX_PARAMETERS
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.cost import estimate_seconds, measure_step_work
from pasearch.spaces.module_space import ModuleSpace
from pasearch.spaces.portfolio import ASSUMED_CATEGORIES
from pasearch.spaces.space import Portfolio, Space
from pasearch.training.metrics import (
    Metric,
    ScoreNoise,
    SumNoise,
    make_default_noise,
)
from pasearch.training.recipe import Recipe
from pasearch.training.screening import MAX_LOSS_POINTS
from pasearch.training.settings import (
    Settings,
    apply_settings,
    apply_settings_and_noise,
    select_cost_settings,
    tune_recipe,
)

if TYPE_CHECKING:
    from pasearch.data.front_ends import FrontEnd
    from pasearch.data.tables import AnySchema


def check_space(strategy: Strategy, space: Space, terms: PlanTerms) -> None:
    """Refuse spaces with candidates that cannot be trained, before the search.

    A failure during the search could reveal the number of trials, which may be secret.
    """
    check_texts(space, terms.schema)
    form = bound_network_form(terms.schema, terms.most)
    space.check_fits(*form)
    if isinstance(space, ModuleSpace):
        check_modules(space, *form)
    largest = space.parameter_range(*form)[1]
    if largest > MAX_PARAMETERS:
        raise UsageError(
            f"Space {space.name!r}: its largest network has {largest:,} parameters: expected at "
            f"most {MAX_PARAMETERS:,}. Use fewer units, filters or layers."
        )
    if not strategy.private_trials and not terms.public:
        raise UsageError(
            f"Strategy {strategy.name!r} requires data that you declare public "
            "(`data_is_public=True`), because it trains candidates without privacy. For private "
            "data use rs, mgrs or paas."
        )


def check_modules(space: ModuleSpace, shape: tuple[int, ...], outputs: int) -> None:
    """Build and run every network of a class on synthetic records, and refuse all problems at once.

    Raises:
        UsageError: A line per problem, with the networks that have it if not all have it.
    """
    from pasearch.training.per_example import validate

    found: dict[str, list[str]] = {}
    networks = list(space.iterate_shapes())
    for each in networks:
        for problem in validate(each.build(shape, outputs)):
            found.setdefault(problem, []).append(each.architecture.describe())
    if found:
        told = (
            f"({number}) {problem}" + (f" In {where[0]}." if len(where) < len(networks) else "")
            for number, (problem, where) in enumerate(found.items(), start=1)
        )
        raise UsageError(f"{space.name} cannot be trained privately: {' '.join(told)}")


def check_texts(space: Space, schema: AnySchema) -> None:
    """Refuse networks that would read token numbers as quantities, or quantities as tokens."""
    text = getattr(schema, "token_column", None)
    if space.reads_tokens and text is None:
        missing = "no column is declared as such: name it (`text=`)"
        if isinstance(schema, Schema):
            missing = "this data is not a table with a text column: name such a table"
        raise UsageError(
            f"Space {space.name!r} reads texts as sequences of words, but {missing}, or use "
            "another space."
        )
    if not (text is None or space.reads_tokens or isinstance(space, ModuleSpace)):
        raise UsageError(
            f"Column {text!r} is a sequence of words, which only recurrent networks can read: use "
            "`pasearch arch` with `space=rnn`, or declare a vocabulary without a length."
        )
    read = [column.name for column in getattr(schema, "columns", ()) if column.kind != "ignore"]
    if text is not None and len(read) > 1:
        others = [repr(name) for name in read if name != text]
        more = ", ..." if len(others) > MAX_SUGGESTED_NAMES else ""
        raise UsageError(
            f"Column {text!r} is a sequence of words, so it must be the only feature column: "
            f'declare {", ".join(others[:MAX_SUGGESTED_NAMES])}{more} with kind = "ignore" in a '
            "schema file (`schema=`)."
        )


def list_trained_sizes(
    recipes: tuple[Recipe, ...], strategy: Strategy, space: Space, terms: PlanTerms
) -> tuple[int | None, ...]:
    """Return the numbers of trained parameters of all candidates, or (None,).

    They are needed if a recipe has noise other than Gaussian, whose privacy cost depends on them.
    """
    named = next((each.noise.name for each in recipes if each.noise is not None), None)
    if named is None:
        return (None,)
    if terms.schema.undeclared:
        raise UsageError(
            f"{named} noise requires a declared schema, because its privacy cost depends on the "
            "network's size: declare the schema, or use Gaussian noise."
        )
    if any(law.cap is not None for law in strategy.trial_distributions):
        raise UsageError(
            f"`max_candidates=` cannot be used with {named} noise, which has no privacy loss "
            "distribution: leave `max_candidates=` out, or use Gaussian noise."
        )
    if (only := strategy.single_candidate(space)) is not None:
        candidates = [only]
    elif isinstance(space, Portfolio):
        candidates = list(space.entries)
    else:
        raise UsageError(
            f"{named} noise requires a list of networks, because its privacy cost depends on the "
            f"number of parameters, and the networks of space {space.name!r} are too many to list: "
            "use one network, a portfolio, or Gaussian noise."
        )
    form = bound_network_form(terms.schema, terms.most)
    return tuple(sorted({each.parameters(*form)[1] for each in candidates}))


def check_recipes(recipes: tuple[Recipe, ...], space: Space, terms: PlanTerms) -> None:
    """Refuse augmentations and class weights that do not fit the records."""
    shape = bound_network_form(terms.schema, terms.most)[0]
    for recipe in recipes:
        check_class_weights(recipe.class_weights, terms.schema)
        if (views := recipe.augmentation) is not None:
            for front_end in space.front_ends():
                views.check_fits(front_end.output_shape(shape))


def check_portions(strategy: Strategy) -> None:
    """Refuse a strategy with disjoint subsets but another selection rule, or vice versa."""
    if (strategy.portions > 1) != (strategy.selection_rule == PORTIONS_RULE):
        raise UsageError(
            f"Strategy {strategy.name!r} has {strategy.portions} portions and selection_rule "
            f"{strategy.selection_rule!r}: several portions are for {PORTIONS_RULE!r}, whose "
            "scores are exact and stay private."
        )


RECIPE_SETTING = "recipe"  # name of the candidate setting that holds the index of its recipe


def recipe_index(settings: Settings) -> int:
    """Return the index of a candidate's recipe in the plan."""
    return int(dict(settings).get(RECIPE_SETTING, 0))


def make_candidate_recipe(
    recipes: tuple[Recipe, ...], candidate: Candidate, mu: float | None, slots: int,
    shape: RoundShape = FULL_ROUND, *, outputs: int,
) -> Recipe:  # fmt: skip
    """Make the recipe of a candidate: its steps, noise multiplier and learning rate.

    Args:
        recipes: Recipes of the plan; the candidate's settings name one of them.
        candidate: Candidate, whose settings change the recipe (`training.settings`).
        mu: mu (Gaussian DP) of a full training; None: no noise.
        slots: Number of training records, including null records.
        shape: Fractions of steps and of mu in the round.
        outputs: Number of classes, 1 for regression; the temperature depends on it.
    """
    recipe, own = recipes[recipe_index(candidate.settings)], None if mu is None else mu * shape.mu
    whole = tune_recipe(
        recipe, candidate.settings, own, slots, candidate.learning_rate_factor(), outputs
    )
    return replace(whole, steps=shape.shorten_steps(whole.steps))


def make_training_event(
    recipes: tuple[Recipe, ...], settings: list[Settings], slots: int, mu: float,
    dimensions: tuple[int | None, ...] = (None,), shape: RoundShape = FULL_ROUND,
) -> Event:  # fmt: skip
    """Return the privacy event of one training: the worst case over possible settings.

    Args:
        recipes: Recipes of the plan.
        settings: Settings that a candidate may have.
        slots: Number of training records, including null records.
        mu: mu (Gaussian DP) of a full training.
        dimensions: Numbers of trained parameters from `list_trained_sizes`.
        shape: Fractions of steps and of mu in the round.
    """
    kinds = dict.fromkeys(
        (recipes[recipe_index(each)], select_cost_settings(each)) for each in settings
    )
    whole = [apply_settings_and_noise(recipe, each, mu * shape.mu, slots) for recipe, each in kinds]
    made = [replace(each, steps=shape.shorten_steps(each.steps)) for each in whole]
    sized = [(each, d) for each in made for d in (dimensions if each.noise else (None,))]
    events = tuple(each.event(slots, dimension) for each, dimension in sized)
    return events[0] if len(events) == 1 else WorstCase(events=events)


ScoreRelease = ScoreNoise | ExponentialMechanism
"""Mechanism that releases scores: noise on each, or the index of the best score alone."""

VALIDATION_QUERY_LINE = "validation query"
"""Name of the line for a recipe's validation queries during training."""


@dataclass(frozen=True, kw_only=True)
class Plan(CalibratedPlan):
    """Calibrated plan of a search, made by `make_plan`; a run releases nothing else.

    Args:
        strategy: Search strategy.
        space: Search space.
        recipes: Recipes of the trials, before the settings and the noise of a candidate. A
            candidate uses the first one, unless its settings name another.
        finals: Recipes of the final training; empty if the winner's weights are reused.
        trial_mu: mu of a trial's training (Gaussian DP); None if trials are not private. For
            low-budget evaluations: mu of a training with the whole budget, which each evaluation
            multiplies by its fraction.
        final_mu: mu of the final training; None if the winner's weights are reused.
        score: Release mechanism of a candidate's score; None if nothing is compared.
        test: Noise of the test score, or of each entry of a released confusion matrix.
        front_noise: Noise multipliers of fitted feature extractors, as (text, value) pairs.
        validation_noise: Noise of each validation query during training; None without private
            queries.
        recipe_names: Name and description of each recipe; empty for the default.
        dimensions: Numbers of trained parameters, if a recipe's privacy cost depends on them.
        pick: Mechanism that selects a variant of the trained network; None: no variants.
    """

    strategy: Strategy
    space: Space
    recipes: tuple[Recipe, ...]
    finals: tuple[Recipe, ...]
    trial_mu: float | None
    final_mu: float | None
    score: ScoreRelease | None
    test: ScoreNoise
    front_noise: tuple[tuple[str, float], ...] = ()
    validation_noise: SumNoise | None = None
    recipe_names: tuple[str, ...] = ("",)
    dimensions: tuple[int | None, ...] = (None,)
    pick: ScoreRelease | None = None

    def estimated_privately(self) -> list[str]:
        """Describe the private estimates: fitted feature extractors and undeclared schema items."""
        return [
            *(f"front end {text}" for text, _ in self.front_noise),
            *super().estimated_privately(),
        ]

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self, *self.space.front_ends())

    @property
    def front_ends(self) -> tuple[FrontEnd, ...]:
        return self.strategy.front_ends(self.space)

    @property
    def selection_rule(self) -> str:
        """Selection rule of the strategy, as in `result.json`."""
        return self.strategy.selection_rule

    @property
    def selection_description(self) -> str:
        """Description of the strategy and the distribution of its number of trainings."""
        return self.strategy.describe()

    def explain_idle_executors(self) -> dict[str, str]:
        """Return the reason why an executor would train nothing, for each such executor."""
        why = ""
        if all(
            each.screening is not None or each.schedule.is_validation_driven
            for each in self.recipes
        ):
            why = "its recipe makes validation queries, which only this process may charge"
        elif self.pick is not None and not self.retrained:
            why = (
                "post-training selection records the training's iterates in this process "
                "(`variants=False` turns it off)"
            )
        if why:
            return dict.fromkeys(("process", "ray"), why)
        once = self.strategy.expected_trainings <= 1
        return {"process": "it trains one network"} if once else {}

    @property
    def retrained(self) -> bool:
        """Whether the winner's architecture is retrained on the `train` partition."""
        return bool(self.finals)

    @property
    def winner(self) -> str:
        """Origin of the released weights, as stated in `result.json`."""
        if self.strategy.look_share is not None:
            return "trained anew"
        return "retrained" if self.retrained else "kept"

    @property
    def trainings(self) -> int | None:
        """Number of planned trainings; None if it is secret."""
        if self.strategy.selection_rule == "repeat-and-select":
            return None
        return round(self.strategy.expected_trainings) + self.retrained

    @property
    def recipe(self) -> Recipe:
        """Recipe of the released network's training; the first one if several are possible.

        It has no noise and learning rate yet. If the plan has a single candidate, its settings are
        applied.
        """
        recipes = self.finals or self.recipes
        if (only := self.strategy.single_candidate(self.space)) is None:
            return recipes[0]
        return apply_settings(
            recipes[recipe_index(only.settings)], only.settings, self.released_slots
        )

    @property
    def released_slots(self) -> int:
        """Number of training records of the released network, including null records."""
        return self.split.train if self.retrained else self.split.trial_size

    @property
    def signal(self) -> float | None:
        mu = self.final_mu if self.retrained else self.trial_mu
        return None if mu is None else mu * self.released_slots

    @property
    def ranking_metric(self) -> Metric:
        return self.strategy.ranking_metric(self.score_metric)

    @property
    def score_slots(self) -> int:
        return getattr(self.split, self.strategy.scored_on)

    def recipe_name(self, candidate: Candidate) -> str:
        """Return the name and description of a candidate's recipe."""
        return self.recipe_names[recipe_index(candidate.settings)]

    def trial_recipe(self, candidate: Candidate, shape: RoundShape = FULL_ROUND) -> Recipe:
        """Make the recipe of a candidate's trial in a round of the search."""
        slots, (_, outputs) = self.split.trial_size, bound_network_form(self.schema, self.most)
        return make_candidate_recipe(
            self.recipes, candidate, self.trial_mu, slots, shape, outputs=outputs
        )

    def final_recipe(self, candidate: Candidate) -> Recipe:
        """Make the recipe of the winner's final training."""
        assert self.retrained
        slots, (_, outputs) = self.split.train, bound_network_form(self.schema, self.most)
        return make_candidate_recipe(self.finals, candidate, self.final_mu, slots, outputs=outputs)

    def seconds_per_training(self) -> tuple[float, float, float]:
        """Estimate the duration of one training on two CPU cores, in seconds.

        Each candidate has the steps and batches of its settings. An undeclared column counts as
        `ASSUMED_CATEGORIES` categories.

        Returns:
            Three estimates: for the default candidate, the mean over candidates, and the maximum.
        """
        recipes = self.finals or self.recipes

        def estimate_training(each: Candidate) -> float:
            recipe = apply_settings(
                recipes[recipe_index(each.settings)], each.settings, self.released_slots
            )
            return self._estimate_seconds(each, recipe)

        usual = estimate_training(self.space.candidate(self.space.default_genotype()))
        every = [*map(estimate_training, self.space.iterate_shapes())]
        return usual, sum(every) / len(every), max(usual, *every)

    def preprocessing_seconds(self) -> float | None:
        """Estimate the duration of feature extraction for all records on two CPU cores, in seconds.

        None if a feature extractor has no estimate.
        """
        shape, _ = bound_network_form(self.schema, min(self.most, ASSUMED_CATEGORIES))
        firsts = {each.first_stage or each for each in self.front_ends}
        found = [each.seconds(shape, self.split.n) for each in firsts]
        return None if None in found else math.fsum(each or 0.0 for each in found)

    def sort_longest_first(self, candidates: Sequence[Candidate], shape: RoundShape) -> list[int]:
        """Sort candidates by expected training time, the longest first, and return their indices.

        Parallel trainings then end at about the same time. The order depends on public numbers.
        """
        seconds = [self._estimate_seconds(e, self.trial_recipe(e, shape)) for e in candidates]
        return sorted(range(len(candidates)), key=lambda place: -seconds[place])

    def _estimate_seconds(self, candidate: Candidate, recipe: Recipe) -> float:
        """Estimate the duration of a training on two CPU cores, in seconds."""
        shape, outputs = bound_network_form(self.schema, min(self.most, ASSUMED_CATEGORIES))
        work = measure_step_work(
            candidate.architecture, candidate.front_end.output_shape(shape), outputs
        )
        return estimate_seconds(work, recipe.expected_batch_size, recipe.steps)

    def alternatives(
        self, released: Candidate | None = None, factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    ) -> list[dict[str, Any]]:
        """Approximate the noise of the released model's training at other budgets.

        Args:
            released: Released candidate; None if it is not known yet.
            factors: Factors by which the epsilon of the budget is multiplied.

        Returns:
            One dictionary per factor: `epsilon`, `noise_multiplier`, `signal_to_noise` (mu n). The
            last two are None if the budget is too small.
        """
        slots, recipe, settings = self.released_slots, self.recipe, ()
        if released is not None:
            settings = released.settings
            recipe = (self.finals or self.recipes)[recipe_index(settings)]
        found = []
        for factor in factors:
            budget = Budget(factor * self.budget.epsilon, self.delta)
            try:
                mu = (
                    self._approximate_mu(budget)
                    if factor != 1.0
                    else self.final_mu or self.trial_mu
                )
            except BudgetError:
                mu = None
            noise = None if mu is None else apply_settings_and_noise(recipe, settings, mu, slots)
            found.append(
                {
                    "epsilon": budget.epsilon,
                    "noise_multiplier": None if noise is None else noise.noise_multiplier,
                    "signal_to_noise": None if mu is None else mu * slots,
                }
            )
        return found

    def _approximate_mu(self, budget: Budget) -> float:
        """Approximate the mu of the released model's training with another budget."""
        solver = PlanCalibrator(terms=replace(self, budget=budget))
        if self.retrained:  # low-budget evaluations are neglected: they use a few per cent
            make_lines = _make_final_line(self._of_mu(self.finals, self.split.train)).make_lines
        else:
            of_mu = self._of_mu(self.recipes, self.split.trial_size)
            make_lines = _make_trial_lines(self.strategy, self.split, of_mu)
        if self.front_noise:
            solver.solve_front_ends(self.front_ends, self.trial_partition)
        if (classes := self.class_estimate) is not None:
            factor = budget.epsilon / self.budget.epsilon
            event = replace(classes, noise_multiplier=classes.noise_multiplier / factor).event
            solver.lines.append(
                PlannedRelease(name=CLASSES_LINE, partition="train", event=event, count=1)
            )
        return calibration.approximate_max(
            compose_with(make_lines, solver.lines), budget, *MU_RANGE
        )

    def list_published_bounds(self) -> list[PublishedBound]:
        """Return the published bounds of the run's privacy cost; they are never charged."""
        recipes = self.finals or self.recipes
        slots, released = self.released_slots, self.final_mu if self.retrained else self.trial_mu
        only = self.strategy.single_candidate(self.space)
        settings = () if only is None else only.settings
        noisy = [] if released is None else [
            apply_settings_and_noise(each, settings, released, slots) for each in recipes
        ]  # fmt: skip
        of_training = [
            claim for each in noisy for claim in each.list_published_bounds(slots, self.delta)
        ]
        recipe = list(dict.fromkeys(of_training))
        if (mu := self.trial_mu) is None:
            return recipe
        price = self._of_mu(self.recipes, self.split.trial_size)(mu)

        def cost(shape: RoundShape) -> float:
            return price_partitions({"train": price(shape)}, self.delta)[0].epsilon

        validation = self.split.validation
        return [
            *recipe,
            *self.strategy.list_published_bounds(cost, delta=self.delta, validation=validation),
        ]

    def _of_mu(self, recipes: tuple[Recipe, ...], slots: int) -> EventOfMu:
        """Return the function from mu to the event of a training with these recipes."""
        return _make_event_of_mu(self.strategy, self.space, recipes, slots, self.dimensions)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, which are equal for equal plans."""
        return {
            **self.plan_json(),
            "strategy": {**self.strategy.summary(), "judged_by": self.ranking_metric.noun},
            "winner": self.winner,
            "space": self.space.to_json(),
            "recipe": self.recipe.to_json(),
            "recipes": [recipe.to_json() for recipe in self.recipes],
            "searched_on": self.searched_on,
            "validated_on": self.validated_on,
        }


EventOfMu = Callable[[float], EventOfRound]
"""Function from mu to a function that maps a round's shape to the event of a training."""


def make_plan(
    terms: PlanTerms, *, strategy: Strategy, space: Space,
    make_recipes: Callable[[int], tuple[Recipe, ...]], score_epsilon: float | None = None,
    free_front_ends: bool = False, validated_on: str | None = None, picks: bool = False,
    dials: NoiseParameters | None = None,
) -> Plan:  # fmt: skip
    """Calibrate the noise of all releases of a run.

    Args:
        terms: Public inputs of the plan: schema, budget, split ...
        strategy: Search strategy.
        space: Search space.
        make_recipes: Function from the number of training records to the recipes, without noise.
        score_epsilon: Epsilon of one score; None: the largest that fits.
        free_front_ends: Whether feature extractors are fitted to public data, at no cost.
        validated_on: Name of the public data of the validation queries; None: private records.
        picks: Whether a variant of the trained network is selected on validation records.
        dials: Source of the noise parameters; None calibrates them to the budget.

    Returns:
        Plan: Plan whose privacy cost is at most the budget.

    Raises:
        UsageError: The space does not fit the records; delta or the batch is too large; a
            strategy without privacy on data that is not declared public.
        BudgetError: The budget is too small even for the largest noise.
    """
    taken = (front.describe_public_inputs() for front in space.front_ends())
    assumed = dict.fromkeys((*terms.assumed_public, *filter(None, taken)))
    terms, split = replace(terms, assumed_public=tuple(assumed)).resolved(), terms.split
    check_space(strategy, space, terms)
    recipes = make_recipes(split.trial_size)
    if not strategy.private_trials:
        recipes[0].with_noise(None)  # refuses recipes that require noise
    finals = make_recipes(split.train) if split.search or strategy.retrains_winner else ()
    check_recipes(recipes, space, terms)
    check_portions(strategy)
    dimensions = list_trained_sizes(recipes, strategy, space, terms)
    check_descriptions((strategy, recipes, finals, space.front_ends()))
    slots = split.trial_size
    queries = max(
        apply_settings(recipes[recipe_index(each)], each, slots).count_validation_queries(slots)
        for each in strategy.settings(space)
    )
    private_queries = 0 if validated_on is not None else queries
    if private_queries:
        check_queries(strategy, split, retrained=bool(finals))

    solver = PlanCalibrator(terms=terms, dials=dials or NoiseParameters())
    estimate, classes = solver.solve_estimates()
    front_noise = ()
    if not free_front_ends:
        front_ends = strategy.front_ends(space)
        if split.portions > 1 and any(each.fitted for each in front_ends):
            raise UsageError(
                "Strategy portions requires a feature extractor without a fit: pca, standardise "
                "and centred would read the records of all subsets. Use another front end, "
                "or another strategy."
            )
        front_noise = solver.solve_front_ends(front_ends, split.trial_partition)
    trial_mu = _solve_trials(
        solver, strategy, _make_event_of_mu(strategy, space, recipes, slots, dimensions)
    )
    score = _solve_score(solver, strategy, score_epsilon, trial_mu)
    final_mu = None
    if finals:
        final = _make_event_of_mu(strategy, space, finals, split.train, dimensions)
        final_mu = solver.solve_line(_make_final_line(final))
    validation_noise = None
    if private_queries:
        line = ReleaseTemplate(
            name=VALIDATION_QUERY_LINE, knob=SCORE_NOISE, times=queries, partition="validation"
        )
        value, regression = solver.solve_line(line), terms.schema.regression
        screens = recipes[0].screening is not None
        validation_noise = (
            NoisySum(epsilon=value, most=MAX_LOSS_POINTS)
            if screens
            else make_default_noise(regression, value)
        )
    pick = None
    if picks:
        if private_queries or strategy.needs_validation:
            raise UsageError(
                "`variants=` requires validation records that nothing else reads: leave it out, or "
                "use `strategy=fixed` or a halving strategy, and a recipe without such queries."
            )
        if not strategy.private_trials:
            raise UsageError("`variants=` requires a training with privacy: leave it out.")
        make_lines = variants.make_lines_of_epsilon(terms.score_metric, terms.schema.outputs)
        pick = variants.make_mechanism(terms.score_metric, solver.solve(make_lines, SCORE_RANGE))
    test = terms.score_metric.make_noise(
        solver.solve_line(ReleaseTemplate(name=TEST_LINE, knob=SCORE_NOISE, partition="test"))
    )
    plan = Plan(
        **vars(terms), schema_estimate=estimate, class_estimate=classes, strategy=strategy,
        space=space, recipes=recipes,
        finals=finals, trial_mu=trial_mu, final_mu=final_mu, score=score, test=test,
        lines=tuple(solver.lines), front_noise=front_noise, validation_noise=validation_noise,
        validated_on=validated_on if queries else None, dimensions=dimensions, pick=pick,
        warnings=(
            *terms.collect_warnings(estimate, classes, trial_mu if final_mu is None else final_mu),
            *warn_of_test_noise(terms.score_metric, test, split.test),
        ),
        basis={
            **terms.basis_json(), "recipes": [each.to_json() for each in recipes],
            "finals": [each.to_json() for each in finals], "score_epsilon": score_epsilon,
            "free_front_ends": free_front_ends, "variants": picks, "dials": solver.dials.values,
        },
    )  # fmt: skip
    check_affordable(plan, "lower the epsilon of the scores, or raise `epsilon=`")
    return plan


def _solve_trials(solver: PlanCalibrator, strategy: Strategy, of_mu: EventOfMu) -> float | None:
    """Calibrate the mu of a trial's training and add its lines; None without privacy."""
    split = solver.terms.split
    if not strategy.private_trials:
        free = Geometric(epsilon=1.0)
        solver.lines += strategy.list_releases(
            lambda shape: free, split.trial_partition, "training"
        )
        return None
    make_lines = _make_trial_lines(strategy, split, of_mu)
    if strategy.look_share is None:
        return solver.solve(make_lines, MU_RANGE)
    if split.search:
        raise UsageError(
            f"`search_share=` cannot be used with strategy {strategy.name!r}, which trains the "
            "winner on the records of the search: leave it out."
        )
    # The mu of an evaluation is a fraction of that of a training with the whole budget.
    alone = solver.calibrate(_make_final_line(of_mu, "final training alone").make_lines, MU_RANGE)
    solver.lines += make_lines(alone)
    return alone


def _solve_score(
    solver: PlanCalibrator, strategy: Strategy, given: float | None, trial_mu: float | None
) -> ScoreRelease | None:
    """Calibrate the release of the candidates' scores and add its lines; None without scores.

    Scores on the training records share the budget of low-budget evaluations. For small values,
    geometric noise of epsilon costs about as much as Gaussian noise of mu = epsilon.
    """
    terms, metric = solver.terms, strategy.ranking_metric(solver.terms.score_metric)
    if not strategy.scored:
        return None

    def make_lines(value: float) -> list[PlannedRelease]:
        event = Geometric(epsilon=value)
        return strategy.list_releases(lambda shape: event, strategy.scored_on, "score")

    epsilon = given if strategy.private_trials else terms.budget.epsilon
    if epsilon is None and (share := strategy.score_share) is not None:
        assert trial_mu is not None
        epsilon = trial_mu * share
    if epsilon is None:
        epsilon = solver.solve(make_lines, SCORE_RANGE)
    else:
        solver.lines += make_lines(epsilon)
    if terms.split.portions > 1:
        if not metric.is_sum:
            raise UsageError(
                f"Strategy portions requires a metric that is a sum over records, and "
                f"{metric.name!r} is not: use accuracy, log-loss, brier, mae or rmse, or another "
                "strategy."
            )
        return ExponentialMechanism(epsilon=epsilon, most=metric.max_points)
    return metric.make_noise(epsilon)


def check_queries(strategy: Strategy, split: Split, *, retrained: bool) -> None:
    """Refuse validation queries on private records in a search, or without such records."""
    once = strategy.expected_trainings == 1 and strategy.private_trials
    if strategy.scored or not once or retrained:
        raise UsageError(
            "A recipe with validation queries requires public validation records in a search "
            "(`validate_on=`), because the queries of each candidate would be charged. Or train "
            "one architecture (pasearch train, or `strategy=fixed`)."
        )
    if not split.validation > 0:
        raise UsageError(
            "A recipe with validation queries requires validation records: give a validation "
            "fraction in `split=`, or public records of the same kind (`validate_on=`)."
        )


def _make_event_of_mu(
    strategy: Strategy,
    space: Space,
    recipes: tuple[Recipe, ...],
    slots: int,
    dimensions: tuple[int | None, ...],
) -> EventOfMu:
    """Return the function from mu to the event of one training of any candidate."""
    settings = strategy.settings(space)
    return lambda mu: (
        lambda shape: make_training_event(recipes, settings, slots, mu, dimensions, shape)
    )


def _make_trial_lines(strategy: Strategy, split: Split, of_mu: EventOfMu) -> LinesOfValue:
    """Return the function from mu to the lines of all trials' trainings."""
    return lambda mu: strategy.list_releases(of_mu(mu), split.trial_partition, "training")


def _make_final_line(of_mu: EventOfMu, name: str = "final training") -> ReleaseTemplate:
    """Return the line of the final training, before its mu is calibrated."""
    knob = NoiseParameter(bounds=MU_RANGE, event=lambda mu: of_mu(mu)(FULL_ROUND))
    return ReleaseTemplate(name=name, knob=knob, partition="train")
