"""Architecture searches: plan one, or run it.

Source: docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from pasearch.api.request import SearchRequest, takes
from pasearch.api.resolve import dataset_of, device_of
from pasearch.api.resolve_search import assemble, prepared_search, spelt_out
from pasearch.api.trainers import check_trainers
from pasearch.data.partitions import Dataset
from pasearch.results import SearchResult
from pasearch.runs.folder import RunFolder
from pasearch.search.auto import Option
from pasearch.search.grid import Grid
from pasearch.search.plan import Plan
from pasearch.search.strategy import Strategy
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import BUILT_IN as SPACES
from pasearch.training.metrics import usual_metric

if TYPE_CHECKING:
    from pasearch.progress import Progress
    from pasearch.search.engine import Outcome


@takes(SearchRequest)
def plan_architecture_search(request: SearchRequest) -> Plan:
    """Return the plan of a search: what it would release, with its noise solved, and the price.

    Returns:
        Plan: `print` shows it as text, a notebook as a table; `price`, `lines` and `plot()`.

    Cost: none: it depends on n, shapes and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_architecture_search
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> plan = plan_architecture_search(frame, schema=schema, budget=Budget(1.0))
        >>> print(plan)
    """
    return prepared(request).plan


@takes(SearchRequest)
def search_architecture(request: SearchRequest) -> SearchResult:
    """Search for the best architecture under one budget, and return its trained model.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        SearchResult: The model, its price and its card.

    Cost: the budget, at most: `plan_architecture_search` gives the price beforehand.

    Example:
        >>> from pasearch import Budget, search_architecture
        >>> schema = {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}
        >>> result = search_architecture(frame, schema=schema, budget=Budget(1.0))
        >>> result.price, result.test_score, result.predict(new)
    """
    return run(prepared(request))


def prepared(request: SearchRequest, dataset: Dataset | None = None) -> Prepared[Plan]:
    """Load the data's form and solve the plan; nothing is written."""
    found = prepared_search(request, dataset or dataset_of(request.data, request))
    check_trainers(request.executor, device_of(request), why_none(found.plan))
    return found


prepare = takes(SearchRequest)(prepared)


def run(
    prepared: Prepared[Plan],
    *,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> SearchResult:
    """Run a prepared search, or the training of one network, in a new folder."""
    request: Any = prepared.request
    effective, plan = spelt_out(request), prepared.plan
    found: dict[str, Any] = {"recipe": effective.recipe}
    named = isinstance(request.space, str) and request.space in ("auto", *SPACES)
    if not named or plan.searched_on is not None:
        found["space"] = plan.space.to_json()
    if request.storage is not None:
        found["storage"] = str(request.storage)  # without its password
    if prepared.given is not None and request.architecture is not None:
        found["architecture"] = prepared.given.to_json()  # a file may be gone when it is resumed
    with new_run(prepared, out, **found) as folder:
        return carried_out(prepared, folder, resumed=False, progress=progress)


def carried_out(
    prepared: Prepared[Plan], folder: Any, *, resumed: bool, progress: Progress | bool | None = None
) -> SearchResult:
    """Carry out a plan in its folder, from the start or from where it stopped."""
    from pasearch.api.trials import trials_of
    from pasearch.progress import heard
    from pasearch.search.engine import Search
    from pasearch.search.proxy import Proxy, place_fits

    plan, dataset, request = prepared.plan, prepared.dataset, prepared.request
    assert isinstance(request, SearchRequest)
    device, progress = device_of(request), request.progress if progress is None else progress
    with (
        request.trainers() as trainers,
        trials_of(folder, request) as trials,
        opened(prepared, folder, device, resumed=resumed) as (ledger, keys),
    ):
        dataset.partition(plan.split, keys.stream("split").generator())
        dataset.workspace = own = folder.private / "cache"
        dataset.cache = Path(request.cache or own)
        dataset.check_room(*plan.strategy.front_ends(plan.space), max_categories=plan.most)
        plan = estimate_schema(plan, dataset, ledger, keys, folder)
        if prepared.searched_on is not None:
            place_fits(plan, Proxy(dataset=prepared.searched_on), folder, device)
        prepared = replace(prepared, plan=plan)
        outcome = Search(
            plan=plan,
            strategy=plan.strategy,
            dataset=dataset,
            ledger=ledger,
            journal=trials(keys.stream("journal")),
            keys=keys,
            folder=folder,
            device=device,
            progress=heard(progress, plan.trainings),
            public=prepared.validated_on,
            executor=trainers,
        ).run()
        extra = _on_public(prepared, outcome, folder, progress)
        result = _publish(prepared, outcome, folder, device, keys.reproducible, extra)
        keys.destroy()
    shutil.rmtree(folder.private / "cache", ignore_errors=True)
    return result


def _on_public(
    prepared: Prepared[Plan], outcome: Outcome, folder: Any, progress: Progress | bool | None
) -> dict[str, Any]:
    """Return what may be shown of public data only: curves, and `fixed` at the same total."""
    plan, request = prepared.plan, prepared.request
    assert isinstance(request, SearchRequest)
    if not plan.public:
        return {}
    accuracy = [round(value, 4) for _, value in outcome.curve]
    curve = {"name": "released network", "steps": [s for s, _ in outcome.curve]}
    shown: dict[str, Any] = {"curves": [{**curve, "accuracy": accuracy}]} if accuracy else {}
    if request.crossover:
        from pasearch.api.crossover import measured_beside

        shown["measured_crossover"] = measured_beside(
            request, prepared.dataset, plan.space, outcome.candidate
        )
    if not plan.strategy.scored:
        return shown
    once = replace(spelt_out(request), score_epsilon=None)
    fixed_plan = assemble(
        once, prepared.dataset, plan.assumed_public, plan.space, Option(name="fixed")
    )
    beside = replace(
        prepared, plan=fixed_plan, searched_on=None, request=replace(request, storage=None)
    )
    place = folder.private / "fixed"
    shutil.rmtree(place, ignore_errors=True)
    fixed = run(beside, out=place, progress=progress).document
    shown["compared"] = {
        "this": {
            "name": plan.strategy.name,
            **score_json(plan, outcome.test.points, outcome.exact_points, outcome.test.cells),
        },
        "fixed": {"name": "fixed", **fixed["score"]},
    }
    beside_it = [{**each, "name": "fixed"} for each in fixed.get("curves", ())]
    shown["curves"] = shown.get("curves", []) + beside_it
    return shown


def _publish(
    prepared: Prepared[Plan],
    outcome: Outcome,
    folder: RunFolder,
    device: str,
    reproducible: bool,
    extra: dict[str, Any],
) -> SearchResult:
    import io

    import torch

    from pasearch.results import SearchResult, digest

    buffer = io.BytesIO()
    torch.save(torch.nn.Sequential(outcome.front.module, outcome.network).state_dict(), buffer)
    weights = buffer.getvalue()
    found = Found(
        candidate=outcome.candidate,
        test_points=outcome.test.points,
        test_cells=outcome.test.cells,
        exact_points=outcome.exact_points,
        sha256=digest(weights),
        trials=tuple((trial.parameters, trial.value) for trial in outcome.trials),
        steps_made=outcome.steps_made,
        variant=outcome.variant,
    )
    made = made_by(prepared, device, reproducible)
    document = result_document(prepared.plan, prepared.plan.strategy, found, made) | extra
    card = publish(folder, document, weights)
    return SearchResult(path=folder.path, document=document, card=card, trials=outcome.trials)


def _crossover(plan: Plan, found: Found, score: dict[str, Any]) -> dict[str, Any] | None:
    """Return the crossover that a grid has measured, or else the forecast from public data.

    None if nothing like these data was measured there in the metric of the run.
    """
    from pasearch.crossover.forecast import Own, forecast
    from pasearch.crossover.report import paid_crossover
    from pasearch.report.score import is_drowned
    from pasearch.results import standard_error

    mu = plan.final_mu or plan.trial_mu
    if mu is None:
        return None
    test = float(score["test"])
    share = 1.0 - test if plan.schema.regression else test  # of points, as the study has it
    usable = score["metric"] == usual_metric(plan.schema.regression).noun and not is_drowned(score)
    own = Own(
        epsilon=plan.budget.epsilon, delta=plan.delta, mu=mu, slots=plan.kept_slots,
        score=share if usable else None, error=float(standard_error(score)),
        compared=plan.strategy.scored,
    )  # fmt: skip
    if isinstance(plan.strategy, Grid):
        return paid_crossover(plan, [value for _, value in found.trials], own, found.candidate)
    if not usable:  # the study has no curves of this metric, or there is no score to anchor them
        return None
    return forecast(
        plan.schema, plan.name, own, found.candidate, plan.schema.outputs, plan.space.contains
    )


def why_none(plan: Plan) -> dict[str, str]:
    """Return why no training of a plan is handed over, by executor; empty where some is."""
    asking = all(r.screening is not None or r.schedule.steered for r in plan.recipes)
    if asking:
        why = "its recipe asks validation queries, which this process alone may charge"
        return dict.fromkeys(("process", "ray"), why)
    if plan.pick is not None and not plan.retrained:
        why = "variants of the one training are compared as it goes on (`variants=False` does not)"
        return dict.fromkeys(("process", "ray"), why)
    return {"process": "it trains one network"} if plan.strategy.expected_trainings <= 1 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What only the run can tell: everything else in `result.json` follows from its plan.

    Args:
        candidate: The winner.
        test_points: Noisy points on the test slots.
        exact_points: The same without noise; declared-public data only.
        test_cells: The counts that they are made of, row by row, where a table was released.
        sha256: Of the model's file.
        trials: (parameters, noisy points) of every trial, where they may be shown.
        steps_made: How many steps the released network's training made.
        variant: Which of its variants is released, where one was picked.
    """

    candidate: Candidate
    test_points: int
    exact_points: int | None
    sha256: str
    test_cells: Sequence[int] = ()
    trials: tuple[tuple[dict[str, Any], float | int | None], ...] = ()
    steps_made: int = 0
    variant: str | None = None


def result_document(plan: Plan, strategy: Strategy, found: Found, made: Made) -> dict[str, Any]:
    """Return `result.json`, but for what is made of it; docs/result.md describes every field."""
    from pasearch.report.plan import task_of

    candidate, schema = found.candidate, plan.schema
    total, trainable = candidate.parameters(schema.shape, schema.outputs)
    recipe = plan.final_recipe(candidate) if plan.retrained else plan.trial_recipe(candidate)
    document: dict[str, Any] = {
        **head(plan, task_of(plan), strategy.selection_rule, strategy.words()),
        "space": plan.space.to_json(),
        "recipe": {
            **recipe.to_json(),
            "sampling_probability": recipe.sampling_probability(plan.kept_slots),
            "name": plan.recipe_name(candidate),
        },
        "best": {
            **candidate.to_json(),
            "architecture": candidate.describe(),
            "parameters": total,
            "trainable_parameters": trainable,
        },
        "score": score_json(plan, found.test_points, found.exact_points, found.test_cells),
        "model": {"file": "model.pt", "sha256": found.sha256},
        "estimated_privately": plan.estimated_privately(),
        "alternatives": plan.alternatives(candidate),
        "searched_on": plan.searched_on,
        "validated_on": plan.validated_on,
        **tail(plan, made),
        "plan": {
            **plan.basis,
            "strategy": strategy.to_json(),
            "recipe_names": list(plan.recipe_names),
        },
    }
    document["crossover"] = _crossover(plan, found, document["score"])
    if plan.pick is not None:
        document["variant"] = found.variant
    if recipe.schedule.steered:
        document["recipe"]["steps_made"] = found.steps_made
    if not strategy.hides_trials:
        document["trials"] = [
            {"parameters": parameters, "noisy_correct": value} for parameters, value in found.trials
        ]
        document["unique_trials"] = len({repr(parameters) for parameters, _ in found.trials})
    return document
