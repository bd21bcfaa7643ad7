"""Feature selection: its plan and its run.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pasearch.accounting.checks import check_positive_integer
from pasearch.api.lifecycle import Prepared, RunOutput, Session, release_result, run
from pasearch.api.request import FeatureRequest, accept_request_fields, check_executor
from pasearch.api.resolve import (
    assume_public,
    choose_device,
    load_public_data,
    make_plan_terms,
    make_request_split,
    resolve_dataset,
)
from pasearch.data.partitions import Dataset
from pasearch.errors import UsageError
from pasearch.features.auto import choose_method
from pasearch.features.plan import FeaturePlan, make_feature_plan
from pasearch.features.selector import (
    SELECTORS,
    Choice,
    SelectionResult,
    list_setting_names,
    make_choice,
)
from pasearch.features.trainers import TRAINERS
from pasearch.results import FEATURE_SELECTION, FeatureResult, compute_digest

TRAINER_ALIASES = {"logistic": "objective"}  # trainer of each alias


@accept_request_fields(FeatureRequest)
def plan_feature_selection(request: FeatureRequest) -> FeaturePlan:
    """Plan a selection: every release, its calibrated noise, and the total privacy cost.

    Returns:
        FeaturePlan: `print` shows it as text, a notebook as a table. It has `price`, `lines` and
            `plot()`.

    Cost: none: it depends on n, columns and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_feature_selection
        >>> plan = plan_feature_selection("digits", budget=Budget(epsilon=2.0))
        >>> round(plan.price.epsilon, 2)
        2.0
    """
    return prepare_run(request).plan


@accept_request_fields(FeatureRequest)
def select_features(request: FeatureRequest) -> FeatureResult:
    """Select features and train a linear model on them, under one budget for both.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        FeatureResult: The features, the model, its price and its card.

    Cost: the budget, at most: `plan_feature_selection` gives the price beforehand.

    Example:
        >>> from pasearch import Budget, select_features
        >>> result = select_features("digits", budget=Budget(epsilon=2.0), method="all")
        >>> round(result.price.epsilon, 2), len(result.features)
        (2.0, 64)
    """
    return run(prepare_run(request))


def prepare_run(request: FeatureRequest, dataset: Dataset | None = None) -> PreparedSelection:
    """Read the data's metadata and calibrate the plan; nothing is written."""
    trainer = TRAINER_ALIASES.get(request.trainer, request.trainer)
    for name, value, known in (
        ("method", request.method, SELECTORS), ("trainer", trainer, TRAINERS),
    ):  # fmt: skip
        if value not in ("auto", *known):
            raise UsageError(f"{name} is {value!r}: expected auto, or one of {', '.join(known)}.")
    if request.k is not None:
        check_positive_integer("k", request.k)
    dataset = dataset or resolve_dataset(request.data, request)
    public, assumed = None, ()
    if request.search_on is not None:
        if request.method == "auto":
            raise UsageError("`search_on=` requires a method, such as `method=pca`.")
        source = str(request.search_on)
        public, dataset, assumed = load_public_data("search_on", source, request, dataset)
    if request.assume_public_schema or dataset.public:
        dataset, read = assume_public(dataset, request.max_categories)
        assumed = (*assumed, *read)
    method, trainer, auto = choose_method(request.method, trainer, dataset.schema, request.k)
    choice = make_selection_choice(request, method, trainer)
    split = make_request_split(
        request, dataset, search_share=request.search_share,
        scored=choice.selector.trains_candidates and request.search_on is None,
    )  # fmt: skip
    plan = make_feature_plan(
        make_plan_terms(request, dataset, split, assumed),
        choice=choice,
        selection_share=request.selection_share,
        searched_on=None if public is None else public.name,
    )
    plan = replace(plan, auto=auto)
    check_executor(request.executor, choose_device(request), plan.explain_idle_executors())
    return PreparedSelection(request=request, dataset=dataset, plan=plan, searched_on=public)


prepare = accept_request_fields(FeatureRequest)(prepare_run)


def make_selection_choice(request: FeatureRequest, method: str, trainer: str) -> Choice:
    """Make the choice of a selector and a trainer, with default values for unset settings.

    Raises:
        UsageError: The request has a setting that this method does not have.
    """
    given = {name: getattr(request, name, None) for name in list_setting_names()}
    return make_choice(method, trainer, size=request.k, **given)


class PreparedSelection(Prepared[FeaturePlan]):
    """A feature selection with its calibrated plan, ready to run."""

    def execute(self, session: Session) -> FeatureResult:
        from pasearch.features.engine import FeatureSearch
        from pasearch.features.model import feature_names, pack_model

        plan = self.plan
        outcome = FeatureSearch(
            plan=plan, dataset=self.dataset, public=self.searched_on, **session.engine_fields()
        ).run()
        model, chosen = outcome.model, outcome.chosen
        weights = pack_model(model.weights, model.intercept)
        if plan.selection_rule == "repeat-and-select":
            chosen = replace(chosen, trials=())  # losers, and how many there were, are secret
        best, shown = selection_json(chosen, feature_names(plan.schema, model.weights.shape[1]))
        found = FeatureRunOutput(
            best=best, width=chosen.view.width, test_points=outcome.test.points,
            test_cells=outcome.test.cells, exact_points=outcome.exact_points,
            sha256=compute_digest(weights), link=model.link,
            shown=shown | ({"by_size": list(outcome.curve)} if outcome.curve else {}),
        )  # fmt: skip
        return FeatureResult(**release_result(self, session, found, weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRunOutput(RunOutput):
    """Output of a feature selection that does not follow from its plan.

    Args:
        best: Selected features, from `selection_json`.
        width: Number of inputs of the model: features, or principal directions.
        link: Name of the function from linear scores to predictions.
        shown: Released values of the selection, from `selection_json`, and curves.
    """

    best: dict[str, Any]
    width: int
    link: str
    shown: dict[str, Any]

    def make_task_fields(self, plan: FeaturePlan, score: dict[str, Any]) -> dict[str, Any]:
        pooling, parameters = plan.choice.selector.pooling, (self.width + 1) * plan.schema.outputs
        return {
            "task": FEATURE_SELECTION,
            "space": {"name": f"sets of {self.best['of']:,} features"},
            "recipe": _recipe_json(plan),
            "best": {
                **self.best,
                "columns": list_source_columns(self.best["features"], plan.schema),
                "parameters": parameters,
                "trainable_parameters": parameters,
            },
            "model": {
                "file": "model.npz",
                "sha256": self.sha256,
                "link": self.link,
                "pool": 0 if pooling is None else pooling.size,
            },
            **self.shown,
        }


def selection_json(
    chosen: SelectionResult, names: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `result.json` on the selection.

    Args:
        chosen: Selection of the engine.
        names: Names of all features.

    Returns:
        The field `best` with the selected features; and fields with the noisy values by which they
        were selected.
    """
    order = chosen.order or tuple(chosen.view.columns.tolist())
    best = {
        "features": [names[place] for place in order],
        "places": list(order),
        "of": len(names),
        "directions": None if chosen.view.rotation is None else chosen.view.width,
        "merit": chosen.merit,
    }
    shown: dict[str, Any] = (
        {} if chosen.blank is None else {"relevance_of_noise": round(chosen.blank, 6)}
    )
    if chosen.to_class is not None:
        shown["relevance"] = [
            {"feature": name, "uncertainty": round(float(value), 6)}
            for name, value in zip(names, chosen.to_class, strict=True)
        ]
    if chosen.trials:
        shown["trials"] = [
            {"features": [names[place] for place in places], "noisy_correct": score}
            for places, score in chosen.trials
        ]
        shown["unique_trials"] = len(chosen.trials)
    return best, shown


def list_source_columns(names: list[str], schema: Any) -> list[str]:
    """Return the table columns that features were encoded from, in order; empty for arrays."""
    columns = {name: c.name for c in getattr(schema, "columns", ()) for name in c.feature_names()}
    return list(dict.fromkeys(columns[name] for name in names if name in columns))


def _recipe_json(plan: FeaturePlan) -> dict[str, Any]:
    """Return the field `recipe` of `result.json`: how the linear model was trained."""
    recipe = plan.recipe
    if recipe is None:
        assert plan.model_noise is not None
        noise: dict[str, float | None] = {"epsilon": None, "noise_multiplier": None}
        noise[plan.trainer.noise_name] = plan.model_noise
        return {"trainer": plan.choice.trainer, **noise, "bounding": None}
    slots = plan.split.train
    return {
        "trainer": plan.choice.trainer,
        **recipe.to_json(),
        "sampling_probability": recipe.sampling_probability(slots),
        "name": "",
    }
