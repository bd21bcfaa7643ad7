"""Reconstruction of the plan and of `result.json` of a finished run.

    plan         =  g(public numbers, noise parameters)
    result.json  =  f(plan, outputs of the run)

The outputs of a run are the winner, its noisy score count, and the trials that may be shown. These
and the public numbers are read from `result.json`. The whole document is then made again from them,
and a difference from the original shows that the original was changed. docs/verify.md lists the
values that cannot be checked in this way.

Source: docs/verify.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import StatedNoiseParameters
from pasearch.accounting.checks import check_positive
from pasearch.api.features import FeatureRunOutput
from pasearch.api.lifecycle import RunEnvironment, make_result_document
from pasearch.api.search import SearchRunOutput
from pasearch.data.column import DEFAULT_BINS, MAX_ESTIMATED_WORDS, Column
from pasearch.data.split import Split, name_subset
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.documents import malformed_error, short_repr
from pasearch.features.plan import MAX_FEATURES, FeaturePlan, make_feature_plan
from pasearch.features.selector import choice_from_json
from pasearch.files import parse_json
from pasearch.planning import PlanTerms
from pasearch.report.facts import find_result_warnings
from pasearch.results import FEATURE_SELECTION, restore_schema
from pasearch.runs.cluster import Cluster
from pasearch.runs.estimates import LOWER_EDGES, UPPER_EDGES
from pasearch.runs.journal import STORES
from pasearch.search.plan import RECIPE_SETTING, Plan, make_plan
from pasearch.search.strategy import strategy_from_json
from pasearch.spaces.candidate import SETTINGS, Candidate
from pasearch.spaces.module_space import ModuleSpace
from pasearch.spaces.space import Portfolio, SearchSpace, Space, check_settings
from pasearch.training.recipe import Recipe

Document = dict[str, Any]

DEVICES = ("cpu", "cuda")  # devices that a run may state

SIZE_DEPENDENT_FIELDS = ("expected_batch_size", "steps", "cap", "schedule", "screening")
"""Fields of a recipe that depend on the number of training records."""

ESTIMABLE_BOUNDS = {float(each) for edges in (LOWER_EDGES, UPPER_EDGES) for each in edges}
"""Possible values of privately estimated bounds: the edges of a public scale of magnitudes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """The reconstructed plan and document of a run.

    Args:
        plan: Plan for the inputs that the original document states, with the complete schema.
        document: `result.json`, made again from this plan and the outputs of the run.
        problems: Values of the original document that no plan has, one sentence each.
    """

    plan: Plan | FeaturePlan
    document: Document
    problems: tuple[str, ...]


def reconstruct(document: Document) -> Reconstruction:
    """Reconstruct the plan and the document of a run.

    Args:
        document: Well-formed `result.json`.

    Raises:
        UsageError: No plan exists for the stated inputs.
        BudgetError: The plan costs more than the stated budget.
    """
    dials = StatedNoiseParameters(document["plan"]["dials"])
    of_features = document["task"] == FEATURE_SELECTION
    plan, made = (_reconstruct_features if of_features else _reconstruct_search)(document, dials)
    declared = declared_schema(document)
    made["warnings"] += find_result_warnings(made, plan.schema)
    copied = ("schema_version", "versions", "files", "effects")
    made |= {name: document[name] for name in copied if name in document}
    unknown = (
        f"plan.dials has {short_repr(x)}, and the plan does not."
        for x in dials.list_unknown_names()
    )
    recipes = _check_recipes(document["plan"])
    problems = (*dials.problems, *_check_schema(declared, plan), *recipes, *unknown)
    again = parse_json(json.dumps(made), "result.json")
    return Reconstruction(plan=plan, document=again, problems=problems)


def _reconstruct_search(document: Document, dials: StatedNoiseParameters) -> tuple[Plan, Document]:
    """Reconstruct the plan and the document of a run that trained networks."""
    basis, strategy = document["plan"], strategy_from_json(document["plan"]["strategy"])
    split = _read_split(document, strategy.portions)
    recipes = {
        split.train: _read_recipes(basis["finals"]),
        split.trial_size: _read_recipes(basis["recipes"]),
    }
    score, picks = basis["score_epsilon"], basis.get("variants", False)
    if not isinstance(picks, bool):
        raise malformed_error("plan.variants is neither true nor false")
    plan = make_plan(
        _read_plan_terms(document, split),
        strategy=strategy,
        space=read_space(document["space"]),
        make_recipes=recipes.__getitem__,
        score_epsilon=None if score is None else check_positive("score_epsilon", score),
        free_front_ends=basis["free_front_ends"],
        validated_on=document["validated_on"],
        picks=picks,
        dials=dials,
    )
    names = tuple(basis["recipe_names"])
    if len(names) != len(plan.recipes):
        raise malformed_error("plan.recipe_names and plan.recipes have different lengths")
    plan = replace(
        plan, schema=restore_schema(document), recipe_names=names,
        searched_on=document["searched_on"], auto=document["auto"],
    )  # fmt: skip
    found = SearchRunOutput(
        candidate=read_candidate(document["best"]),
        test_points=document["score"]["points"],
        exact_points=_compute_exact_count(document, plan),
        test_cells=_read_cells(document, plan),
        sha256=document["model"]["sha256"],
        trials=tuple(
            (each["parameters"], each["noisy_correct"]) for each in document.get("trials", ())
        ),
        steps_made=document["recipe"].get("steps_made", 0),
        variant=document.get("variant"),
    )
    # Fields that only a run on public data has; they are copied unchecked.
    public_fields = ("curves", "compared", "measured_crossover") if plan.public else ()
    extra = {name: document[name] for name in public_fields if name in document}
    return plan, make_result_document(plan, found, _read_environment(document)) | extra


def _read_plan_terms(document: Document, split: Split) -> PlanTerms:
    """Read the public inputs of the plan."""
    basis, budget = document["plan"], document["budget"]
    return PlanTerms(
        name=document["dataset"]["name"], schema=declared_schema(document),
        public=document["dataset"]["declared_public"],
        budget=Budget(budget["epsilon"], budget["delta"]), split=split,
        most=basis["most_categories"], assumed_public=tuple(document["assumed_public"]),
        leak_share=basis["leak_share"], metric=basis.get("metric"),
    )  # fmt: skip


def _reconstruct_features(
    document: Document, dials: StatedNoiseParameters
) -> tuple[FeaturePlan, Document]:
    """Reconstruct the plan and the document of a feature selection."""
    basis = document["plan"]
    plan = make_feature_plan(
        _read_plan_terms(document, _read_split(document, 1)),
        choice=choice_from_json(basis["choice"]),
        selection_share=basis["selection_share"],
        searched_on=document["searched_on"],
        dials=dials,
    )
    plan = replace(plan, schema=restore_schema(document), auto=document["auto"])
    found = _read_feature_output(document, plan)
    made = make_result_document(plan, found, _read_environment(document))
    if "temperature" not in document["recipe"]:  # a missing temperature means 1
        made["recipe"].pop("temperature", None)
    return plan, made


def declared_schema(document: Document) -> AnySchema:
    """Return the schema as declared, before any part was estimated privately."""
    return restore_schema({"dataset": {"schema": document["plan"]["declared"]}})


def _read_recipes(values: list[Document]) -> tuple[Recipe, ...]:
    """Restore recipes; a missing temperature means 1."""
    return tuple(Recipe.from_json({"temperature": 1.0} | each) for each in values)


def _read_split(document: Document, portions: int) -> Split:
    """Read the sizes of the partitions; `portions` is the number of disjoint subsets."""
    sizes = dict(document["dataset"]["slots"])
    fixed_tail, unused = document["plan"]["fixed_tail"], document["plan"].get("unused", 0)
    if portions > len(sizes):
        raise malformed_error(f"the plan has {portions} portions, and dataset.slots fewer")
    if portions > 1:
        cut = "search" if name_subset("search", 0) in sizes else "train"
        cuts = [name_subset(cut, number) for number in range(portions)]
        others = sum(size for name, size in sizes.items() if name not in cuts)
        sizes = {name: size for name, size in sizes.items() if name not in cuts}
        sizes[cut] = document["dataset"]["n"] - others - unused  # includes an unused remainder
    if unknown := sorted(set(sizes) - {"search", "train", "validation", "test"}):
        raise malformed_error(f"dataset.slots has an unknown partition {short_repr(unknown[0])}")
    return Split(
        **{"train": 0, "test": 0, **sizes}, fixed_tail=fixed_tail, portions=portions, unused=unused
    )


def read_space(values: Document) -> Space:
    """Restore the search space of a `result.json`."""
    if values.get("family") == Portfolio.family:
        entries = tuple(read_candidate(each) for each in values["entries"])
        return Portfolio(name=values["name"], entries=entries)
    return (ModuleSpace if "class" in values else SearchSpace).from_dict(values)


def read_candidate(values: Document) -> Candidate:
    """Restore a candidate from plain values, with its settings in the same order."""
    plain = Candidate.from_json({**values, "settings": {}})
    settings = values["settings"]
    if unknown := sorted(set(settings) - {*SETTINGS, RECIPE_SETTING}):
        raise malformed_error(f"a candidate has no setting {short_repr(unknown[0])}")
    check_settings({name: value for name, value in settings.items() if name != RECIPE_SETTING})
    return replace(plain, settings=tuple(settings.items()))


def _check_recipes(basis: Document) -> Iterator[str]:
    """Check that the recipes of trials and of the final training are the same, without noise."""
    recipes, finals = basis.get("recipes") or [], basis.get("finals") or []
    if any(each.get("noise_multiplier") is not None for each in (*recipes, *finals)):
        yield "plan.recipes has a noise_multiplier, which only plan.dials may determine."
    kept = [
        [
            {name: value for name, value in each.items() if name not in SIZE_DEPENDENT_FIELDS}
            for each in these
        ]
        for these in (recipes, finals)
    ]
    if finals and kept[0] != kept[1]:
        yield "plan.recipes and plan.finals are not the same recipes."


def _check_schema(declared: AnySchema, plan: Plan | FeaturePlan) -> Iterator[str]:
    """Check that the complete schema differs from the declared one by possible estimates only."""
    complete = plan.schema
    target = complete.target.name if isinstance(complete, TableSchema) else ""
    if complete.undeclared:
        yield f"dataset.schema leaves {', '.join(complete.undeclared)} open."
    if declared.completed_by(complete) != complete:
        yield "dataset.schema differs from plan.declared where nothing was estimated privately."
    found = {each.name: each for each in _list_columns(complete)}
    for each in _list_columns(declared):
        now = found.get(each.name)
        if now is None or each.is_declared:
            continue  # reported above
        name = short_repr(each.name)
        same_bins = each.has_undeclared_edges or each.bins == now.bins
        if each.kind not in (None, now.kind) or each.length != now.length or not same_bins:
            yield f"column {name} is of another kind than was declared."
        if each.low not in (None, now.low) or each.high not in (None, now.high):
            yield f"column {name} has other bounds than were declared."
        if len(now.vocabulary or ()) > MAX_ESTIMATED_WORDS:
            yield f"column {name} has more words than could be estimated privately."
        if len(now.categories or ()) > plan.most:
            yield f"column {name} has more categories than could be estimated privately."
        if (
            now.kind == "number"
            and each.low is None
            and not ESTIMABLE_BOUNDS.issuperset((now.low, now.high))
        ):
            yield f"column {name} has bounds that no estimate gives."
        if now.kind == "number" and each.has_undeclared_edges and each.name != target:
            # Estimated bins are a tuple of edges between the bounds.
            bins, bounds = now.bins, now.bounds
            if not (
                isinstance(bins, tuple)
                and bounds is not None
                and len(bins) < DEFAULT_BINS
                and all(bounds[0] < edge < bounds[1] for edge in bins)
            ):
                yield f"column {name} has bins that no estimate gives."


def _list_columns(schema: AnySchema) -> tuple[Column, ...]:
    """List the columns of a table with its target; empty for arrays."""
    return (*schema.columns, schema.target) if isinstance(schema, TableSchema) else ()


def _read_environment(document: Document) -> RunEnvironment:
    """Read the environment of the run."""
    known = {"device": DEVICES, "storage": (None, *STORES), "executor": (None, Cluster.name)}
    for name, values in known.items():
        if document.get(name) not in values:
            raise malformed_error(
                f"{name} is {short_repr(document.get(name))}, which is not a known {name}"
            )
    same = ("device", "reproducible", "secure_noise", "ledger")
    return RunEnvironment(
        **{name: document[name] for name in same}, storage=document.get("storage"),
        cluster="executor" in document, data_root="data_root" in document,
    )  # fmt: skip


def _compute_exact_count(document: Document, plan: Plan | FeaturePlan) -> int | None:
    """Compute the exact score count of the test from the exact score; None for private data."""
    if not plan.public:
        return None
    share = plan.score_metric.to_share(document["score"]["exact"])
    return round(share * plan.split.test * plan.max_count_per_record)


def _read_cells(document: Document, plan: Plan | FeaturePlan) -> list[int]:
    """Read the noisy table of test counts as a list; the plan determines its length."""
    metric, rows = plan.test_metric, document["score"].get("cells")
    if not metric.columns:
        return []
    if rows is None:
        raise malformed_error(
            "score.cells is missing, and the plan's test releases a table of counts"
        )
    cells, planned = (
        [each for row in rows for each in row],
        metric.count_entries(plan.schema.outputs),
    )
    if len(cells) != planned:
        raise malformed_error(
            f"score.cells has {len(cells)} counts, and the plan's test releases {planned}"
        )
    return cells


def _read_feature_output(document: Document, plan: FeaturePlan) -> FeatureRunOutput:
    """Read the output of a feature selection."""
    from pasearch.features.model import feature_names

    choice, best, shape = plan.choice, document["best"], plan.schema.shape
    if (pooling := choice.selector.pooling) is not None:
        shape = pooling.output_shape(shape)
    if math.prod(shape) > MAX_FEATURES:
        raise malformed_error(f"dataset.schema has more than {MAX_FEATURES:,} features")
    names = feature_names(plan.schema, math.prod(shape))
    places = best["places"]
    if not all(0 <= place < len(names) for place in places) or len(set(places)) != len(places):
        raise malformed_error("best.places has a feature twice, or one that does not exist")
    # Released values by which the features were selected; they depend on the method.
    released: Document = {}
    if choice.selector.uses_merit:
        given = [each["uncertainty"] for each in document["relevance"]]
        if len(given) != len(names):
            raise malformed_error("relevance does not have one entry per feature")
        released["relevance_of_noise"] = document["relevance_of_noise"]
        released["relevance"] = [
            {"feature": name, "uncertainty": value}
            for name, value in zip(names, given, strict=True)
        ]
    if choice.selector.shows_trials:
        released["trials"] = document["trials"]
        released["unique_trials"] = len(document["trials"])
    if document["dataset"]["declared_public"] and "by_size" in document:
        released["by_size"] = document["by_size"]
    return FeatureRunOutput(
        best={
            "features": [names[place] for place in places],
            "places": places,
            "of": len(names),
            "directions": best["directions"],
            "merit": best["merit"],
        },
        width=len(places) if best["directions"] is None else best["directions"],
        test_points=document["score"]["points"],
        exact_points=_compute_exact_count(document, plan),
        test_cells=_read_cells(document, plan),
        sha256=document["model"]["sha256"],
        link=plan.trainer.link(plan.schema.outputs, plan.schema.regression),
        shown=released,
    )
