"""The plan of a feature selection: every release, calibrated before a record is read.

    partition    lines                                              fraction of epsilon
    train        feature means                                      MEANS_SHARE
                 reads of the selection (`selector`)                its share, or the rest
                 the final training                                 the rest
    validation   scores of candidates (pafs, one-hot, subsets)      all
    test         the printed accuracy                               all

Without a final model (`final=False`, as in `sklearn_api`) the selection gets all of epsilon, and
means are released only if candidates or components need them.

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
from pasearch.features.logistic import check_objective_memory
from pasearch.features.selector import SELECTION_SHARE, SELECTORS, Choice, DataMetadata
from pasearch.features.trainers import Trainer, select_trainer
from pasearch.plan_warnings import warn_of_test_noise
from pasearch.planning import (
    GAUSSIAN_NOISE,
    SCORE_NOISE,
    SIGMA_RANGE,
    TEST_LINE,
    CalibratedPlan,
    PlanCalibrator,
    PlanTerms,
    ReleaseTemplate,
    bound_network_form,
    check_affordable,
)
from pasearch.registry import check_descriptions
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import estimate_seconds, measure_step_work
from pasearch.spaces.portfolio import ASSUMED_CATEGORIES
from pasearch.training.metrics import ScoreNoise
from pasearch.training.recipe import Recipe
from pasearch.training.settings import make_linear_recipe

# Names of charges: each is a line of the plan.
MEANS_LINE = "feature means"
FINAL_LINE = "final training"
SCORES_LINE = "score"  # noisy scores of candidates

MEANS_SHARE = 0.1  # fraction of the training records' epsilon for the features' means
MAX_SELECTION_SHARE = 0.8  # maximum fraction of epsilon for the selection

MAX_FEATURES = 20_000
"""Maximum number of features d: the matrix of correlations between them has d^2 entries."""


@dataclass(frozen=True, kw_only=True)
class FeaturePlan(CalibratedPlan):
    """Calibrated plan of a selection, made by `make_feature_plan`.

    Args:
        choice: Selection method and training method.
        noises: Pairs (line name, calibrated noise parameter).
    """

    choice: Choice
    noises: tuple[tuple[str, float], ...]

    def noise(self, line: str) -> float:
        """Return the noise parameter of a line; KeyError if the plan has no such line."""
        return dict(self.noises)[line]

    def partition_of(self, line: str) -> str:
        """Return the partition that a line reads; the trial partition for an unknown line."""
        places = {each.name: each.partition for each in self.lines}
        return places.get(line, self.trial_partition)

    def has_line(self, line: str) -> bool:
        """Whether the plan has a line of this name."""
        return line in dict(self.noises)

    @property
    def trainer(self) -> type[Trainer]:
        """Training method of the models."""
        return select_trainer(self.choice.trainer, self.schema.regression)

    @property
    def signal(self) -> float | None:
        if not (self.has_line(FINAL_LINE) or self.choice.selector.trains_candidates):
            return None
        if self.trainer.noise_name == "mu" and self.model_noise is not None:
            return self.model_noise * self.split.train
        # Other trainers have no mu: take that of one Gaussian release with the whole budget.
        once = calibration.calibrate_min(
            lambda sigma: Gaussian(noise_multiplier=sigma), self.budget, *SIGMA_RANGE
        )
        return self.split.train / once

    @property
    def score(self) -> ScoreNoise | None:
        """Noise of a candidate's score; None if no candidates are compared."""
        return self._score(SCORES_LINE) if self.has_line(SCORES_LINE) else None

    @property
    def test(self) -> ScoreNoise:
        """Noise of the test score or its counts, for a plan that trains a model."""
        return self._score(TEST_LINE)

    def _score(self, line: str) -> ScoreNoise:
        return self.score_metric.make_noise(self.noise(line))

    @property
    def model_noise(self) -> float | None:
        """Noise parameter of the released model's training; None if no model is trained."""
        noises = dict(self.noises)
        return noises.get(FINAL_LINE, noises.get(self.choice.selector.training_line))

    @property
    def trainings(self) -> int | None:
        """Number of planned training rounds; None if their number is secret."""
        secret = self.choice.selector.selection_rule == "repeat-and-select"
        return None if secret else self.choice.selector.rounds + 1

    @property
    def recipe(self) -> Recipe | None:
        """DP-SGD training configuration of the released model; None for another trainer."""
        mu = self.model_noise
        if mu is None or self.trainer.noise_name != "mu":
            return None
        _, outputs = bound_network_form(self.schema, self.most)
        return make_linear_recipe(self.split.train, mu, self.schema.regression, outputs)

    def seconds_of_steps(self) -> float | None:
        """Estimate the time of all trainings together, in seconds, on two CPU cores.

        Each training is counted with all features that it may receive. Undeclared columns are
        counted as in `Plan.seconds_per_training`. None for models that are solved in closed form.
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
        """Composition rule of the selection, as written to result.json."""
        return (
            "not private" if self.searched_on is not None else self.choice.selector.selection_rule
        )

    @property
    def selection_description(self) -> str:
        """Description of the method."""
        return self.choice.selector.describe(public=self.searched_on is not None)

    def explain_idle_executors(self) -> dict[str, str]:
        """Return the reason why no training runs in workers, by executor; {} if one may."""
        why = ""
        if not self.choice.selector.trains_candidates:
            why = f"method {self.choice.selector.name!r} trains only one model"
        elif self.searched_on is not None:
            why = "the selection on public data runs in this process"
        elif not self.trainer.trains_separately:
            why = "one solver fits the models of all sets at once; `trainer='dpsgd'` uses workers"
        return dict.fromkeys(("process", "ray"), why) if why else {}

    def list_published_bounds(self) -> list[PublishedBound]:
        """Compute published bounds for comparison; they are never charged."""
        if self.searched_on is not None:
            return []
        form = DataMetadata(schema=self.schema, split=self.split, most=self.most)
        selector, noises = self.choice.selector, dict(self.noises)
        return selector.list_published_bounds(form, self.trainer, noises, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values; equal values mean equal plans."""
        recipe = self.recipe
        return {
            **self.plan_json(),
            "strategy": self.choice.to_json(),
            "winner": "retrained" if self.split.search else "kept",
            "recipe": None if recipe is None else recipe.to_json(),
            "searched_on": self.searched_on,
        }


def make_feature_plan(
    terms: PlanTerms, *, choice: Choice, selection_share: float | None = None, final: bool = True,
    searched_on: str | None = None, dials: NoiseParameters | None = None,
) -> FeaturePlan:  # fmt: skip
    """Calibrate the noise of every release of a feature selection.

    Args:
        terms: Data, budget and split.
        choice: Selection method and training method.
        selection_share: Fraction of epsilon for the selection, in (0, `MAX_SELECTION_SHARE`], if
            selection and model read the same records; None: the method's default.
        final: Whether a model is trained on the selected features, and tested.
        searched_on: Name of declared-public data on which features are selected for free.
        dials: Calibrated noise parameters; None calibrates against the budget.

    Returns:
        Plan with a privacy cost of at most the budget.

    Raises:
        UsageError: More features requested than exist, or data that the method cannot use.
        BudgetError: The largest noise still costs more than the budget.
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

    def solve(line: ReleaseTemplate, share: float) -> None:
        line = replace(line, partition=line.partition or form.split.trial_partition)
        try:
            noises[line.name] = solver.solve_line(line, share)
        except BudgetError as error:
            raise BudgetError(
                f"Line {line.name!r} (share {share:g} of epsilon {terms.budget.epsilon:g}): {error}"
            ) from None

    selector, split = choice.selector, form.split
    trainer = select_trainer(choice.trainer, terms.schema.regression)
    own = () if form.public else selector.list_releases(form, trainer)
    retrained = final and not (selector.keeps_winner and not split.search)
    share = 1.0 if split.search or not retrained else share  # no later line reads these records
    if final or selector.uses_means:
        solve(ReleaseTemplate(name=MEANS_LINE, knob=GAUSSIAN_NOISE, partition="train"), MEANS_SHARE)
    for line in own:
        if line.partition is None:
            solve(line, share * line.share)
    if retrained:
        knob = trainer.knob(split.train, terms.schema.regression)
        solve(ReleaseTemplate(name=FINAL_LINE, knob=knob, partition="train"), 1.0)
    for line in own:
        if line.partition is not None:
            solve(line, line.share)
    if final:
        solve(ReleaseTemplate(name=TEST_LINE, knob=SCORE_NOISE, partition="test"), 1.0)
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
        test_warnings = warn_of_test_noise(plan.score_metric, plan.test, plan.split.test)
        plan = replace(plan, warnings=(*plan.warnings, *test_warnings))
    check_affordable(plan, "raise `epsilon=`, or lower `selection_share=`")
    return plan


def _resolve_selection_share(choice: Choice, form: DataMetadata, given: float | None) -> float:
    """Return the fraction of epsilon for the selection, in (0, `MAX_SELECTION_SHARE`].

    Raises UsageError if a fraction is given although selection and model read different records.
    """
    selector, apart = choice.selector, bool(form.split.search) or form.public
    if given is not None and (apart or selector.share is None):
        why = (
            "the selection reads other records than the model"
            if apart
            else "the selection reads no training records"
        )
        raise UsageError(
            f"selection_share is {given:g}, but with method {selector.name!r} {why}: remove it."
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
    """Raise UsageError for too many features, or for settings that do not fit the data or split."""
    selector, features, split = choice.selector, form.features, form.split
    if (text := getattr(form.schema, "token_column", None)) is not None:
        raise UsageError(
            f"Column {text!r} is a sequence of words, which only recurrent networks can read: "
            "declare a vocabulary without a length, so that each word is one feature."
        )
    if selector.size is not None and not selector.size <= features:
        raise UsageError(
            f"k is {selector.size:,}, but the data has {features:,} features: use `k={features}` "
            "or less."
        )
    selector.check(form)
    if features > MAX_FEATURES:
        raise UsageError(
            f"The encoded records have {features:,} features: expected at most {MAX_FEATURES:,}. "
            "Declare columns with kind 'ignore', or fewer categories."
        )
    if form.public and not selector.public_description:
        able = [name for name, kind in SELECTORS.kinds().items() if kind.public_description]
        raise UsageError(
            f"`search_on=` selects features on public data, which method {selector.name!r} does "
            f"not use: choose {', '.join(able)}."
        )
    if form.public and split.search:
        raise UsageError(
            "`search_share=` reserves private records for the selection, and `search_on=` selects "
            "on public data: remove one of them."
        )
    if not form.public and selector.trains_candidates and not split.validation:
        raise UsageError(
            f"Method {selector.name!r} compares models on validation records, but the validation "
            "part of the split is empty: give it a positive fraction (`split=`)."
        )
    trainer = select_trainer(choice.trainer, form.schema.regression)
    if trainer.holds_all_records:
        check_objective_memory(split.train, selector.count_selected(features) or features)
        if selector.trains_candidates:
            check_objective_memory(split.trial_size, features)
    if split.search and not (selector.trains_candidates or selector.accepts_search_share):
        raise UsageError(
            f"`search_share=` reserves records for a search, but method {selector.name!r} does "
            "not search: remove it."
        )
