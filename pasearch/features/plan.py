"""The plan of a feature selection: every release, priced and solved, before a record is read.

    partition    lines                                              of the epsilon of the partition
    train        feature means                                      MEANS_SHARE
                 what the method reads to choose (`selectors`)      its share, or the rest
                 the final training                                 the rest
    validation   scores of candidates (pafs, one-hot, subsets)      all
    test         the accuracy that is printed                       all

Without a final model (`final=False`, as in `sklearn_api`) the choice has all of epsilon, and means
are released only where candidates or components need them.

Source: Bao et al., sections V-B and VIII-B, VIII-C; docs/rules.md, rules 1, 4, 8 to 10. Proof:
docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pasearch.accounting import calibration
from pasearch.accounting.calibration import NoiseParameters
from pasearch.accounting.checks import check_fraction
from pasearch.accounting.events import Gaussian
from pasearch.accounting.published_bounds import PublishedBound
from pasearch.errors import BudgetError, UsageError
from pasearch.features.logistic import check_objective
from pasearch.features.selector import SELECTION_SHARE, SELECTORS, Choice, DataMetadata
from pasearch.features.trainers import Trainer, select_trainer
from pasearch.plan_warnings import warn_of_test_noise
from pasearch.planning import (
    GAUSSIAN_NOISE,
    SCORE_NOISE,
    SIGMA_RANGE,
    TEST_LINE,
    CalibratedPlan,
    LineTemplate,
    PlanCalibrator,
    PlanTerms,
    bound_network_form,
    check_affordable,
)
from pasearch.registry import check_descriptions
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import estimate_seconds, measure_step_work
from pasearch.spaces.portfolio import ASSUMED_CATEGORIES
from pasearch.training.metrics import Metric, ScoreNoise, choose_test_metric
from pasearch.training.recipe import Recipe
from pasearch.training.settings import make_linear_recipe

MEANS_LINE, FINAL_LINE, SCORES_LINE = "feature means", "final training", "score"
"""Lines that are no method's own."""

MEANS_SHARE = 0.1
"""The share of epsilon that the features' means take, of the slots that are trained on."""

MAX_SELECTION_SHARE = 0.8
"""The largest share that the choice may take."""

MAX_FEATURES = 20_000
"""The most features: their correlations take a square of them."""


@dataclass(frozen=True, kw_only=True)
class FeaturePlan(CalibratedPlan):
    """A solved plan of a selection. Made by `make_feature_plan`; nothing runs outside it.

    Args:
        choice: How features are chosen and the model is trained.
        noises: The solved noise of each line by its name: see the line's `NoiseParameter`.
    """

    choice: Choice
    noises: tuple[tuple[str, float], ...]

    def noise(self, line: str) -> float:
        """Return the noise of a line; a KeyError, if the plan has no such line."""
        return dict(self.noises)[line]

    def partition_of(self, line: str) -> str:
        """Return the partition that a line reads; of no such line, what the ledger will refuse."""
        places = {each.name: each.partition for each in self.lines}
        return places.get(line, self.trial_partition)

    def has_line(self, line: str) -> bool:
        """Return whether there is such a line."""
        return line in dict(self.noises)

    @property
    def trainer(self) -> type[Trainer]:
        """How models are trained."""
        return select_trainer(self.choice.trainer, self.schema.regression)

    @property
    def signal(self) -> float | None:
        if not (self.has_line(FINAL_LINE) or self.choice.selector.trains_candidates):
            return None
        if self.trainer.noise_name == "mu" and self.model_noise is not None:
            return self.model_noise * self.split.train
        # Other trainers have no mu of their own: at most that of the whole budget.
        once = calibration.calibrate_min(
            lambda sigma: Gaussian(noise_multiplier=sigma), self.budget, *SIGMA_RANGE
        )
        return self.split.train / once

    @property
    def score(self) -> ScoreNoise | None:
        """The noise of a candidate's score; None when nothing is compared."""
        return self._score(SCORES_LINE) if self.has_line(SCORES_LINE) else None

    @property
    def test(self) -> ScoreNoise:
        """The noise of the printed accuracy, or of its counts, of a plan that trains a model."""
        return self._score(TEST_LINE)

    @property
    def test_metric(self) -> Metric:
        """By what the released model is tested, of a complete schema: more than its score."""
        return choose_test_metric(
            self.score_metric, outputs=self.schema.outputs, slots=self.split.test,
            epsilon=self.test.epsilon,
        )  # fmt: skip

    def _score(self, line: str) -> ScoreNoise:
        return self.score_metric.noise(self.noise(line))

    @property
    def model_noise(self) -> float | None:
        """The noise of the released model's training; None where no model is trained."""
        noises = dict(self.noises)
        return noises.get(FINAL_LINE, noises.get(self.choice.selector.training_line))

    @property
    def trainings(self) -> int | None:
        """How many rounds of trainings are planned; None where their number is secret."""
        secret = self.choice.selector.selection_rule == "repeat-and-select"
        return None if secret else self.choice.selector.rounds + 1

    @property
    def recipe(self) -> Recipe | None:
        """How the released model is trained by DP-SGD; None if it is not."""
        mu = self.model_noise
        if mu is None or self.trainer.noise_name != "mu":
            return None
        _, outputs = bound_network_form(self.schema, self.most)
        return make_linear_recipe(self.split.train, mu, self.schema.regression, outputs)

    def seconds_of_steps(self) -> float | None:
        """Return about how long all trainings take together, on two CPU cores.

        Each with all features that it may be given; what is not declared yet is reckoned as in
        `Plan.seconds_per_training`. None where models are solved at once, and not step by step.
        """
        if self.trainer.noise_name != "mu":
            return None
        shape, outputs = bound_network_form(self.schema, min(self.most, ASSUMED_CATEGORIES))
        features, selector = math.prod(shape), self.choice.selector

        def seconds(slots: int, width: int) -> float:
            recipe = make_linear_recipe(slots, 1.0, self.schema.regression)
            work = measure_step_work(Architecture(layers=()), (width,), outputs)
            return estimate_seconds(work, recipe.expected_batch_size, recipe.steps)

        alone = seconds(self.split.train, selector.count_selected(features) or features)
        found = alone if self.has_line(FINAL_LINE) else 0.0
        if self.has_line(selector.training_line):
            found += selector.expected_trainings * seconds(self.split.trial_size, features)
        return found

    @property
    def selection_rule(self) -> str:
        """How features are chosen, in the words of result.json."""
        return (
            "not private" if self.searched_on is not None else self.choice.selector.selection_rule
        )

    @property
    def selection_description(self) -> str:
        """What the method does."""
        return self.choice.selector.describe(public=self.searched_on is not None)

    def explain_idle_executors(self) -> dict[str, str]:
        """Return why no training is handed over, by executor; empty where some is."""
        why = ""
        if not self.choice.selector.trains_candidates:
            why = f"method {self.choice.selector.name!r} trains no candidates, only one model"
        elif self.searched_on is not None:
            why = "the choice on public data is made by this process"
        elif not self.trainer.trains_separately:
            why = "one solver finds the models of all sets at once (`trainer='dpsgd'` does not)"
        return dict.fromkeys(("process", "ray"), why) if why else {}

    def claims(self) -> list[PublishedBound]:
        """Return what the papers' own formulas would charge for this run; never charged here."""
        if self.searched_on is not None:
            return []
        form = DataMetadata(schema=self.schema, split=self.split, most=self.most)
        selector, noises = self.choice.selector, dict(self.noises)
        return selector.claims(form, self.trainer, noises, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values; two plans are the same when these are."""
        recipe = self.recipe
        return {
            **self.plan_json(),
            "strategy": self.choice.to_json(),
            "winner": "retrained" if self.split.search else "kept",
            "recipe": None if recipe is None else recipe.to_json(),
            "searched_on": self.searched_on,
        }


def make_feature_plan(
    terms: PlanTerms,
    *,
    choice: Choice,
    selection_share: float | None = None,
    final: bool = True,
    searched_on: str | None = None,
    dials: NoiseParameters | None = None,
) -> FeaturePlan:
    """Solve the noise of everything a feature selection will release.

    Args:
        terms: Data, budget and split.
        choice: How features are chosen and the model is trained.
        selection_share: The share of epsilon that the choice takes, where model and choice read the
            same slots; None takes the method's own.
        final: Whether a model is trained on what was chosen, and tested.
        searched_on: Name of declared-public data that features are chosen on, for nothing.
        dials: What solves the noise; None solves it against the budget.

    Returns:
        FeaturePlan: Its price is at most the budget.

    Raises:
        UsageError: More features asked for than there are; a method without a use for the data.
        BudgetError: Even the most noise costs more than the budget.
    """
    terms = terms.resolved()
    form = DataMetadata(
        schema=terms.schema, split=terms.split, most=terms.most, public=searched_on is not None
    )
    check_descriptions(choice)
    _check_choice(choice, form)
    share = _resolve_selection_share(choice, form, selection_share)
    solver, noises = (
        PlanCalibrator(terms=terms, dials=dials or NoiseParameters()),
        dict[str, float](),
    )
    estimate, classes = solver.solve_estimates()

    def solve(line: LineTemplate, share: float) -> None:
        """Calibrate a line on a share of epsilon; all of it: next to the lines before."""
        line = replace(line, partition=line.partition or form.split.trial_partition)
        try:
            noises[line.name] = solver.solve_line(line, share)
        except BudgetError as error:
            raise BudgetError(
                f"For {line.name}, which has a share of {share:g} of epsilon "
                f"{terms.budget.epsilon:g}: {error}"
            ) from None

    selector, split = choice.selector, form.split
    trainer = select_trainer(choice.trainer, terms.schema.regression)
    own = () if form.public else selector.lines(form, trainer)
    retrained = final and not (selector.keeps_winner and not split.search)
    share = 1.0 if split.search or not retrained else share  # nothing else is read there after
    if final or selector.uses_means:
        solve(LineTemplate(name=MEANS_LINE, knob=GAUSSIAN_NOISE, partition="train"), MEANS_SHARE)
    for line in own:
        if line.partition is None:
            solve(line, share * line.share)
    if retrained:
        knob = trainer.knob(split.train, terms.schema.regression)
        solve(LineTemplate(name=FINAL_LINE, knob=knob, partition="train"), 1.0)
    for line in own:
        if line.partition is not None:
            solve(line, line.share)
    if final:
        solve(LineTemplate(name=TEST_LINE, knob=SCORE_NOISE, partition="test"), 1.0)
    mu = noises.get(FINAL_LINE, noises.get(selector.training_line))
    plan = FeaturePlan(
        **vars(terms), choice=choice, lines=tuple(solver.lines), schema_estimate=estimate,
        class_estimate=classes,
        noises=tuple(noises.items()), searched_on=searched_on,
        basis={
            **terms.basis_json(), "choice": choice.to_json(), "selection_share": selection_share,
            "dials": solver.dials.values,
        },
        warnings=terms.collect_warnings(
            estimate, classes, mu if trainer.noise_name == "mu" else None
        ),
    )  # fmt: skip
    if final:
        untold = warn_of_test_noise(plan.score_metric, plan.test, plan.split.test)
        plan = replace(plan, warnings=(*plan.warnings, *untold))
    check_affordable(plan, "raise `epsilon=`, or lower `selection_share=`")
    return plan


def _resolve_selection_share(choice: Choice, form: DataMetadata, given: float | None) -> float:
    """Return the share of epsilon that the choice takes, where it shares it with the model."""
    selector, apart = choice.selector, bool(form.split.search) or form.public
    if given is not None and (apart or selector.share is None):
        why = (
            "the choice has records of its own"
            if apart
            else "no choice shares an epsilon with the model"
        )
        raise UsageError(
            f"selection_share is {given:g}, and with method {selector.name!r} {why}: leave it out."
        )
    default = SELECTION_SHARE if selector.share is None else selector.share
    share = default if given is None else check_fraction("selection_share", given)
    if not share <= MAX_SELECTION_SHARE:
        raise UsageError(
            f"selection_share is {share:g}: expected at most {MAX_SELECTION_SHARE}, because the "
            f"features' means take {MEANS_SHARE} and the model needs the rest."
        )
    return share


def _check_choice(choice: Choice, form: DataMetadata) -> None:
    """Refuse what this data has no use for, and more features than there are."""
    selector, features, split = choice.selector, form.features, form.split
    if selector.size is not None and not selector.size <= features:
        raise UsageError(
            f"k is {selector.size:,}, but the data has {features:,} features: take `k={features}` "
            "or less."
        )
    selector.check(form)
    if features > MAX_FEATURES:
        raise UsageError(
            f"The records become {features:,} features: expected at most {MAX_FEATURES:,}. "
            "Declare columns as kind 'ignore', or fewer categories."
        )
    if form.public and not selector.public_description:
        able = [name for name, kind in SELECTORS.kinds().items() if kind.public_description]
        raise UsageError(
            f"`search_on=` chooses on public data, and method {selector.name!r} has no use for "
            f"them: take {', '.join(able)}."
        )
    if form.public and split.search:
        raise UsageError(
            "`search_share=` sets private slots aside for a choice, and `search_on=` makes it on "
            "public data: leave one of them out."
        )
    if not form.public and selector.trains_candidates and not split.validation:
        raise UsageError(
            f"Method {selector.name!r} compares models, and the split has no validation part."
        )
    trainer = select_trainer(choice.trainer, form.schema.regression)
    if trainer.holds_all_records:
        check_objective(split.train, selector.count_selected(features) or features)
        if selector.trains_candidates:
            check_objective(split.trial_size, features)
    if split.search and not (selector.trains_candidates or selector.accepts_search_share):
        raise UsageError(
            f"`search_share=` sets slots aside for a search, and method {selector.name!r} makes "
            "none: leave it out."
        )
