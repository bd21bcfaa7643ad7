"""Feature selections: plan one, or run it.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.checks import whole
from pasearch.api.lifecycle import (
    Made,
    Prepared,
    estimate_schema,
    head,
    made_by,
    new_run,
    opened,
    publish,
    score_json,
    tail,
)
from pasearch.api.request import FeatureRequest, takes
from pasearch.api.resolve import (
    assume_public,
    dataset_of,
    device_of,
    public_data,
    split_of,
    terms_of,
)
from pasearch.api.trainers import check_trainers
from pasearch.data.partitions import Dataset
from pasearch.errors import UsageError
from pasearch.features.auto import choose
from pasearch.features.plan import FeaturePlan, make_feature_plan
from pasearch.features.selector import SELECTORS, Choice, Chosen, make_choice, setting_names
from pasearch.features.trainers import TRAINERS
from pasearch.results import FEATURES, FeatureResult
from pasearch.runs.folder import RunFolder

if TYPE_CHECKING:
    from pasearch.features.engine import FeatureOutcome
    from pasearch.progress import Progress


CALLED = {"logistic": "objective"}
"""Other names of trainers."""


@takes(FeatureRequest)
def plan_feature_selection(request: FeatureRequest) -> FeaturePlan:
    """Return the plan of a selection: what it would release, with its noise solved, and the price.

    Returns:
        FeaturePlan: `print` shows it as text, a notebook as a table; `price`, `lines` and `plot()`.

    Cost: none: it depends on n, columns and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_feature_selection
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> plan = plan_feature_selection(frame, schema=schema, budget=Budget(1.0))
        >>> print(plan)
    """
    return prepared(request).plan


@takes(FeatureRequest)
def select_features(request: FeatureRequest) -> FeatureResult:
    """Choose features and train a linear model on them, under one budget that pays for both.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        FeatureResult: The features, the model, its price and its card.

    Cost: the budget, at most: `plan_feature_selection` gives the price beforehand.

    Example:
        >>> from pasearch import Budget, select_features
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> result = select_features(frame, schema=schema, budget=Budget(1.0))
        >>> result.features, result.price, result.predict(new)
    """
    return run(prepared(request))


def prepared(request: FeatureRequest, dataset: Dataset | None = None) -> Prepared[FeaturePlan]:
    """Load the data's form and solve the plan; nothing is written."""
    trainer = CALLED.get(request.trainer, request.trainer)
    for name, value, known in (
        ("method", request.method, SELECTORS), ("trainer", trainer, TRAINERS),
    ):  # fmt: skip
        if value not in ("auto", *known):
            raise UsageError(f"{name} is {value!r}: expected auto, or one of {', '.join(known)}.")
    if request.k is not None:
        whole("k", request.k)
    dataset = dataset or dataset_of(request.data, request)
    public, assumed = None, ()
    if request.search_on is not None:
        if request.method == "auto":
            raise UsageError(
                "`search_on=` says where features are chosen: say how too, such as `method=pca`."
            )
        source = str(request.search_on)
        public, dataset, assumed = public_data("search_on", source, request, dataset)
    if request.assume_public_schema or dataset.public:
        dataset, read = assume_public(dataset, request.max_categories)
        assumed = (*assumed, *read)
    method, trainer, auto = choose(request.method, trainer, dataset.schema, request.k)
    choice = choice_of(request, method, trainer)
    split = split_of(
        request, dataset, search_share=request.search_share,
        scored=choice.selector.trains_candidates and request.search_on is None,
    )  # fmt: skip
    plan = make_feature_plan(
        terms_of(request, dataset, split, assumed),
        choice=choice,
        selection_share=request.selection_share,
        searched_on=None if public is None else public.name,
    )
    plan = replace(plan, auto=auto)
    check_trainers(request.executor, device_of(request), why_none(plan))
    return Prepared(request=request, dataset=dataset, plan=plan, searched_on=public)


prepare = takes(FeatureRequest)(prepared)


def why_none(plan: FeaturePlan) -> dict[str, str]:
    """Return why no training of a plan is handed over, by executor; empty where some is."""
    why = ""
    if not plan.choice.selector.trains_candidates:
        why = f"method {plan.choice.selector.name!r} trains no candidates, only one model"
    elif plan.searched_on is not None:
        why = "the choice on public data is made by this process"
    elif not plan.trainer.apart:
        why = "one solver finds the models of all sets at once (`trainer='dpsgd'` does not)"
    return dict.fromkeys(("process", "ray"), why) if why else {}


def choice_of(request: FeatureRequest, method: str, trainer: str) -> Choice:
    """Return how features are chosen, with what `auto` has left open filled in.

    Raises:
        UsageError: A setting that this method has no use for.
    """
    given = {name: getattr(request, name, None) for name in setting_names()}
    return make_choice(method, trainer, size=request.k, **given)


def run(
    prepared: Prepared[FeaturePlan],
    *,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> FeatureResult:
    """Run a prepared selection in a new folder."""
    with new_run(prepared, out) as folder:
        return carried_out(prepared, folder, resumed=False, progress=progress)


def carried_out(
    prepared: Prepared[FeaturePlan],
    folder: RunFolder,
    *,
    resumed: bool,
    progress: Progress | bool | None = None,
) -> FeatureResult:
    """Carry out a plan in its folder, from the start or from where it stopped."""
    from pasearch.features.engine import FeatureSearch
    from pasearch.progress import heard

    plan, dataset = prepared.plan, prepared.dataset
    device = device_of(prepared.request)
    progress = prepared.request.progress if progress is None else progress
    with (
        prepared.request.trainers() as trainers,
        opened(prepared, folder, device, resumed=resumed) as (ledger, keys),
    ):
        dataset.partition(plan.split, keys.stream("split").generator())
        dataset.workspace = folder.private / "cache"
        dataset.check_room(max_categories=plan.most)
        plan = estimate_schema(plan, dataset, ledger, keys, folder)
        prepared = replace(prepared, plan=plan)
        outcome = FeatureSearch(
            plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device,
            public=prepared.searched_on, progress=heard(progress, plan.trainings),
            executor=trainers, private=folder.private,
        ).run()  # fmt: skip
        result = _publish(prepared, outcome, folder, device, keys.reproducible)
        keys.destroy()
    shutil.rmtree(folder.private / "cache", ignore_errors=True)
    return result


def _publish(
    prepared: Prepared[FeaturePlan],
    outcome: FeatureOutcome,
    folder: RunFolder,
    device: str,
    reproducible: bool,
) -> FeatureResult:
    from pasearch.features.model import feature_names, packed
    from pasearch.results import digest

    weights, chosen = packed(outcome.model.weights, outcome.model.intercept), outcome.chosen
    names = feature_names(prepared.plan.schema, outcome.model.weights.shape[1])
    if prepared.plan.selection_rule == "repeat-and-select":
        chosen = replace(chosen, trials=())  # losers, and how many there were, are secret
    best, shown = chosen_json(chosen, names)
    found = Found(
        best=best,
        width=chosen.view.width,
        test_points=outcome.test.points,
        test_cells=outcome.test.cells,
        exact_points=outcome.exact_points,
        sha256=digest(weights),
        link=outcome.model.link,
        shown=shown | ({"by_size": list(outcome.curve)} if outcome.curve else {}),
    )
    made = made_by(prepared, device, reproducible)
    document = result_document(prepared.plan, found, made)
    card = publish(folder, document, weights)
    return FeatureResult(path=folder.path, document=document, card=card)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What only the run can tell: everything else in `result.json` follows from its plan.

    Args:
        best: Which features were chosen, as `chosen_json` has it.
        width: How many numbers of a record the model is given: features, or directions in them.
        test_points: Noisy points on the test slots.
        exact_points: The same without noise; declared-public data only.
        test_cells: The counts that they are made of, row by row, where a table was released.
        sha256: Of the model's file.
        link: From scores to probabilities.
        shown: What was released to choose them, as `chosen_json` has it, and curves.
    """

    best: dict[str, Any]
    width: int
    test_points: int
    exact_points: int | None
    sha256: str
    link: str
    shown: dict[str, Any]
    test_cells: Sequence[int] = ()


def result_document(plan: FeaturePlan, found: Found, made: Made) -> dict[str, Any]:
    """Return `result.json`, but for what is made of it; docs/result.md describes every field."""
    pooling, parameters = plan.choice.selector.pooling, (found.width + 1) * plan.schema.outputs
    return {
        **head(plan, FEATURES, plan.selection_rule, plan.selection_words),
        "space": {"name": f"sets of {found.best['of']:,} features"},
        "recipe": _recipe(plan),
        "best": {
            **found.best,
            "columns": columns_of(found.best["features"], plan.schema),
            "parameters": parameters,
            "trainable_parameters": parameters,
        },
        "score": score_json(plan, found.test_points, found.exact_points, found.test_cells),
        "model": {
            "file": "model.npz",
            "sha256": found.sha256,
            "link": found.link,
            "pool": 0 if pooling is None else pooling.size,
        },
        "estimated_privately": plan.estimated_privately(),
        "alternatives": [],
        "searched_on": plan.searched_on,
        "validated_on": None,
        **tail(plan, made),
        "plan": plan.basis,
        **found.shown,
    }


def chosen_json(chosen: Chosen, names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which features were chosen, and what was released to choose them.

    Args:
        chosen: By the engine.
        names: Of all features.
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


def columns_of(names: list[str], schema: Any) -> list[str]:
    """Return the columns that features come from, in order; arrays have none."""
    columns = {name: c.name for c in getattr(schema, "columns", ()) for name in c.feature_names()}
    return list(dict.fromkeys(columns[name] for name in names if name in columns))


def _recipe(plan: FeaturePlan) -> dict[str, Any]:
    """Return how the released model was trained."""
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
