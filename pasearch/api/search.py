"""Architecture searches and the training of one network: plan one, or run it.

    request  ->  plan (`resolve_search`)  ->  run (`lifecycle`)  ->  result.json

Source: docs/rules.md, rules 1, 11, 12 and 13; docs/result.md.
"""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from pasearch.api.lifecycle import RunOutput, Session, make_score_json, release_result, run
from pasearch.api.request import SearchRequest, TrainRequest, accept_request_fields, check_executor
from pasearch.api.resolve import choose_device, resolve_dataset
from pasearch.api.resolve_search import PlannedSearch, assemble_plan, expand_request, prepare_search
from pasearch.data.partitions import Dataset
from pasearch.results import SearchResult, compute_digest
from pasearch.search.auto import FIXED_OPTION
from pasearch.search.grid import Grid
from pasearch.search.plan import Plan
from pasearch.search.proxy import Proxy, store_public_fits
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import BUILT_IN_NAMES as SPACES
from pasearch.training.metrics import find_default_metric

if TYPE_CHECKING:
    from pasearch.search.engine import SearchOutcome


@accept_request_fields(SearchRequest)
def plan_architecture_search(request: SearchRequest) -> Plan:
    """Plan a search: every release, its calibrated noise, and the total privacy cost.

    Returns:
        Plan: `print` shows it as text, a notebook as a table. It has `price`, `lines`, `plot()`.

    Cost: none: it depends on n, shapes and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_architecture_search
        >>> plan = plan_architecture_search("digits", budget=Budget(epsilon=2.0))
        >>> round(plan.price.epsilon, 2)
        2.0
    """
    return prepare_run(request).plan


@accept_request_fields(SearchRequest)
def search_architecture(request: SearchRequest) -> SearchResult:
    """Search for the best architecture under one budget, and return its trained model.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        SearchResult: The model, its price and its card.

    Cost: at most the budget; `plan_architecture_search` gives the exact cost beforehand.

    Example:
        >>> from pasearch import Budget, search_architecture
        >>> result = search_architecture("digits", budget=Budget(epsilon=2.0))
        >>> round(result.price.epsilon, 2), len(result.predict([[[0.0] * 8] * 8]))
        (2.0, 1)
    """
    return run(prepare_run(request))


@accept_request_fields(TrainRequest)
def plan_training(request: TrainRequest) -> Plan:
    """Plan a training: every release, its calibrated noise, and the total privacy cost.

    Returns:
        Plan: `print` shows it as text, a notebook as a table. It has `price`, `lines`, `plot()`.

    Cost: none: it depends on n, shapes and declared bounds only.

    Example:
        >>> from pasearch import Budget, plan_training
        >>> plan = plan_training("digits", budget=Budget(epsilon=2.0))
        >>> round(plan.price.epsilon, 2)
        2.0
    """
    return prepare_run(request).plan


@accept_request_fields(TrainRequest)
def train(request: TrainRequest) -> SearchResult:
    """Train one network under one budget, and select the best recipe if several are given.

    Without `architecture`, the first network of the portfolio for this kind of data is trained.
    Several recipes are compared on disjoint subsets of the records.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Returns:
        SearchResult: The model, its price and its card.

    Cost: the budget, at most: `plan_training` gives the price beforehand.

    Example:
        >>> from pasearch import Budget, train
        >>> result = train("digits", budget=Budget(epsilon=2.0))
        >>> round(result.price.epsilon, 2), len(result.predict([[[0.0] * 8] * 8]))
        (2.0, 1)
    """
    return run(prepare_run(request))


def prepare_run(request: TrainRequest, dataset: Dataset | None = None) -> PreparedSearch:
    """Read the metadata of the data and calibrate the plan; nothing is written."""
    if not isinstance(request, SearchRequest):  # one network, or a choice among recipes
        values = {each.name: getattr(request, each.name) for each in fields(request)}
        request = SearchRequest(**values, strategy="auto" if len(request.recipes) > 1 else "fixed")
    planned = prepare_search(request, dataset or resolve_dataset(request.data, request))
    found = PreparedSearch(**vars(planned))
    check_executor(request.executor, choose_device(request), found.plan.explain_idle_executors())
    return found


prepare = accept_request_fields(SearchRequest)(prepare_run)


@dataclass(frozen=True, kw_only=True)
class PreparedSearch(PlannedSearch):
    """A search with its calibrated plan, ready to run."""

    def make_resume_fields(self) -> dict[str, Any]:
        request, plan = self.request, self.plan
        assert isinstance(request, SearchRequest)
        found: dict[str, Any] = {"recipe": expand_request(request).recipe}
        named = isinstance(request.space, str) and request.space in ("auto", *SPACES)
        if not named or plan.searched_on is not None:
            found["space"] = plan.space.to_json()
        if request.storage is not None:
            found["storage"] = str(request.storage)  # without its password
        if self.given is not None and request.architecture is not None:
            found["architecture"] = self.given.to_json()  # a file may be gone when it is resumed
        return found

    def execute(self, session: Session) -> SearchResult:
        import torch

        from pasearch.search.engine import SearchEngine

        plan = self.plan
        if self.searched_on is not None:
            store_public_fits(plan, Proxy(dataset=self.searched_on), session.folder, session.device)
        outcome = SearchEngine(
            plan=plan, strategy=plan.strategy, dataset=self.dataset, public=self.validated_on,
            journal=session.trials(session.keys.stream("journal")), **session.engine_fields(),
        ).run()  # fmt: skip
        extra = measure_public_run(self, outcome, session)
        buffer = io.BytesIO()
        network = torch.nn.Sequential(outcome.front.module, outcome.network)
        torch.save(network.state_dict(), buffer)
        found = SearchRunOutput(
            candidate=outcome.candidate,
            test_points=outcome.test.points,
            test_cells=outcome.test.cells,
            exact_points=outcome.exact_points,
            sha256=compute_digest(buffer.getvalue()),
            trials=tuple((trial.parameters, trial.value) for trial in outcome.trials),
            steps_made=outcome.steps_made,
            variant=outcome.variant,
        )
        released = release_result(self, session, found, buffer.getvalue(), extra)
        return SearchResult(**released, trials=outcome.trials)


def measure_public_run(
    prepared: PreparedSearch, outcome: SearchOutcome, session: Session
) -> dict[str, Any]:
    """Measure additional results of a run on public data: none of them on private data.

    Returns:
        Fields of `result.json`: accuracy over steps, a measured crossover if requested, and the
        test score of a run of strategy `fixed` with the same budget.
    """
    plan, request, folder = prepared.plan, prepared.request, session.folder
    assert isinstance(request, SearchRequest)
    if not plan.public:
        return {}
    accuracy = [round(value, 4) for _, value in outcome.curve]
    curve = {"name": "released network", "steps": [s for s, _ in outcome.curve]}
    shown: dict[str, Any] = {"curves": [{**curve, "accuracy": accuracy}]} if accuracy else {}
    if request.crossover:
        from pasearch.api.crossover import measure_public_crossover

        shown["measured_crossover"] = measure_public_crossover(
            request, prepared.dataset, plan.space, outcome.candidate
        )
    if not plan.strategy.scored:
        return shown
    once = replace(expand_request(request), score_epsilon=None)
    fixed_plan = assemble_plan(
        once, prepared.dataset, plan.assumed_public, plan.space, FIXED_OPTION
    )
    fixed_run = replace(
        prepared, plan=fixed_plan, searched_on=None, request=replace(request, storage=None)
    )
    fixed_folder = folder.private / "fixed"
    shutil.rmtree(fixed_folder, ignore_errors=True)
    fixed = run(fixed_run, out=fixed_folder, progress=session.progress).document
    score = make_score_json(plan, outcome.test.points, outcome.exact_points, outcome.test.cells)
    shown["compared"] = {
        "this": {"name": plan.strategy.name, **score},
        "fixed": {"name": "fixed", **fixed["score"]},
    }
    fixed_curves = [{**each, "name": "fixed"} for each in fixed.get("curves", ())]
    shown["curves"] = shown.get("curves", []) + fixed_curves
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRunOutput(RunOutput):
    """Output of a search that does not follow from its plan.

    Args:
        candidate: Winning candidate.
        trials: (parameters, noisy score count) of all trials, if they may be shown.
        steps_made: Number of steps of the released network's training.
        variant: Name of the released variant, if one was selected.
    """

    candidate: Candidate
    trials: tuple[tuple[dict[str, Any], float | int | None], ...] = ()
    steps_made: int = 0
    variant: str | None = None

    def make_task_fields(self, plan: Plan, score: dict[str, Any]) -> dict[str, Any]:
        from pasearch.report.plan import find_task

        candidate, schema, strategy = self.candidate, plan.schema, plan.strategy
        total, trainable = candidate.parameters(schema.shape, schema.outputs)
        recipe = plan.final_recipe(candidate) if plan.retrained else plan.trial_recipe(candidate)
        found = {
            "task": find_task(plan),
            "space": plan.space.to_json(),
            "recipe": {
                **recipe.to_json(),
                "sampling_probability": recipe.sampling_probability(plan.released_slots),
                "name": plan.recipe_name(candidate),
                **({"steps_made": self.steps_made} if recipe.schedule.is_validation_driven else {}),
            },
            "best": {
                **candidate.to_json(),
                "architecture": candidate.describe(),
                "parameters": total,
                "trainable_parameters": trainable,
            },
            "model": {"file": "model.pt", "sha256": self.sha256},
            "alternatives": plan.alternatives(candidate),
            "crossover": self._find_crossover(plan, score),
            "plan": {
                **plan.basis,
                "strategy": strategy.to_json(),
                "recipe_names": list(plan.recipe_names),
            },
        }
        if plan.pick is not None:
            found["variant"] = self.variant
        if not strategy.hides_trials:
            found["trials"] = [
                {"parameters": parameters, "noisy_correct": value}
                for parameters, value in self.trials
            ]
            found["unique_trials"] = len({repr(parameters) for parameters, _ in self.trials})
        return found

    def _find_crossover(self, plan: Plan, score: dict[str, Any]) -> dict[str, Any] | None:
        """Return the crossover measured by strategy grid, or else a forecast from public data.

        None if the public data have no measurement for this kind of data and metric.
        """
        from pasearch.crossover.forecast import MeasuredModel, forecast_crossover
        from pasearch.crossover.report import make_private_crossover
        from pasearch.report.score import is_below_noise
        from pasearch.results import standard_error

        mu = plan.final_mu or plan.trial_mu
        if mu is None:
            return None
        test = float(score["test"])
        share = 1.0 - test if plan.schema.regression else test  # higher is better, as in the study
        usual = score["metric"] == find_default_metric(plan.schema.regression).noun
        usable = usual and not is_below_noise(score)
        own = MeasuredModel(
            epsilon=plan.budget.epsilon, delta=plan.delta, mu=mu, slots=plan.released_slots,
            score=share if usable else None, error=float(standard_error(score)),
            has_compared=plan.strategy.scored,
        )  # fmt: skip
        if isinstance(plan.strategy, Grid):
            return make_private_crossover(
                plan, [value for _, value in self.trials], own, self.candidate
            )
        if not usable:  # the study has no curves of this metric, or no score to anchor them
            return None
        return forecast_crossover(
            plan.schema, plan.name, own, self.candidate, plan.schema.outputs, plan.space.contains
        )
