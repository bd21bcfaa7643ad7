"""The Python API of feature selection: plan one, run it, resume it.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import whole
from pasearch.api import lifecycle as running
from pasearch.api import request as asking
from pasearch.api.lifecycle import (
    LEDGER_LEAK,
    Made,
    found_run,
    head,
    made_by,
    new_run,
    opened,
    publish,
    score_json,
    tail,
)
from pasearch.api.request import (
    MEMORY,
    anywhere,
    assume_public,
    check_options,
    dataset_of,
    device_of,
    name_of,
    public_data,
    read_request,
    shares_of,
)
from pasearch.data.partitions import Dataset, Split, make_split
from pasearch.errors import UsageError
from pasearch.features.auto import choose
from pasearch.features.plan import METHODS, OWN, TRAINERS, Choice, FeaturePlan, make_feature_plan
from pasearch.planning import PURCHASE_DELTA
from pasearch.results import FEATURES, FeatureResult, without_classes

if TYPE_CHECKING:
    from pasearch.features.engine import Chosen, FeatureOutcome
    from pasearch.progress import Progress
    from pasearch.runs.folder import RunFolder

COMMAND = "features"
"""What finishes a selection that was interrupted."""

SAID_OF = {"mean": "candidates"}
"""What a request calls a setting of a `Choice`, where it has another name."""


class Options(asking.Options, TypedDict, total=False):
    """Everything that may be said about a selection beside data and budget; see `Request`."""

    method: str
    trainer: str
    k: int | None
    merits: str | None
    until_no_gain: bool | None
    population: int | None
    generations: int | None
    alpha: float | None
    p_co: float | None
    p_mu: float | None
    pick: str | None
    law: str | None
    candidates: float | None
    pool: int | None
    selection_share: float | None
    search_on: str | Path | None


@dataclass(frozen=True, kw_only=True)
class Request(asking.Request):
    """What a selection is asked for, beside what every run is.

    Args:
        method: One of `features.plan.METHODS`, or "auto".
        trainer: One of `features.plan.TRAINERS`, or "auto".
        k: How many features; None leaves it to the method.
        merits: Of cfs: "tables" or "entropies". This and what follows are refused with a method
            that has no use for them; None takes the default of `features.plan.Choice`.
        until_no_gain: Of cfs-greedy: stop at the first feature that does not raise the merit.
        population: Of pafs and cfs-ga: k of Algorithm 4, sets a generation.
        generations: Of pafs and cfs-ga: l.
        alpha: Of pafs and cfs-ga: share of the fittest that become parents.
        p_co: Of pafs and cfs-ga: probability of a crossover.
        p_mu: Of pafs and cfs-ga: probability of a mutation; with p_co at most 1.
        pick: Of top: "permute-and-flip" or "gumbel".
        law: Of subsets: law of the number of trainings.
        candidates: Its mean.
        pool: Of max-pool: side of a pool, pixels.
        selection_share: Share of epsilon that the choice takes; None takes the usual one.
        search_on: Declared-public data of the same form, to choose features on for nothing; the
            whole budget is then the model's.
    """

    method: str = "auto"
    trainer: str = "auto"
    k: int | None = None
    merits: str | None = None
    until_no_gain: bool | None = None
    population: int | None = None
    generations: int | None = None
    alpha: float | None = None
    p_co: float | None = None
    p_mu: float | None = None
    pick: str | None = None
    law: str | None = None
    candidates: float | None = None
    pool: int | None = None
    selection_share: float | None = None
    search_on: str | Path | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        super().__post_init__()
        for name, known in (("method", METHODS), ("trainer", TRAINERS)):
            if (value := getattr(self, name)) not in ("auto", *known):
                raise UsageError(
                    f"{name} is {value!r}: expected auto, or one of {', '.join(known)}."
                )
        if self.k is not None:
            whole("k", self.k)

    def choice(self, method: str, trainer: str) -> Choice:
        """Return how features are chosen, with what `auto` has left open filled in.

        Raises:
            UsageError: A setting that this method has no use for.
        """
        given = {name: getattr(self, SAID_OF.get(name, name)) for name in OWN}
        given = {name: value for name, value in given.items() if value is not None}
        for name in given:
            if method not in OWN[name]:
                said = SAID_OF.get(name, name).replace("_", "-")
                raise UsageError(
                    f"--{said} is of --method {' or '.join(OWN[name])}, and "
                    f"method {method!r} has no use for it: leave it out, or name that method."
                )
        return Choice(method=method, trainer=trainer, size=self.k, **given)


@dataclass(frozen=True, kw_only=True)
class Prepared(running.Prepared):
    """A request with its data set and solved plan; nothing private was read."""

    request: Request
    plan: FeaturePlan
    public: Dataset | None = None

    @property
    def trainings(self) -> int | None:
        """How many rounds of trainings are planned; None where their number is secret."""
        choice = self.plan.choice
        if choice.way == "repeat-and-select":
            return None
        return choice.rounds + 1


def plan_feature_selection(
    data: Any, target: str | None = None, *, budget: Budget, **options: Unpack[Options]
) -> FeaturePlan:
    """Return the plan of a selection: what it would release, with its noise solved, and the price.

    Args, raises: as of `select_features`.

    Cost: none: it depends on n, columns and declared bounds only.
    """
    return prepare(data, target, budget=budget, **options).plan


def select_features(
    data: Any,
    target: str | None = None,
    budget: Budget | None = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> FeatureResult:
    """Choose features and train a linear model on them, under one budget that pays for both.

    Guarantee: everything in the run's `release/` folder together is (epsilon, delta)-DP under
    zero-out adjacency, as the privacy card states.

    Args:
        data: A pandas frame, a .csv, a built-in name, a .npz, (x, y) arrays, or a data set.
        target: The column to predict; None takes the last one.
        budget: Epsilon and delta of the whole run; None takes epsilon 1.
        out: The run's folder, which must not exist; None takes runs/<name>-<number>.
        progress: What to report while it runs.
        options: See `Request`.

    Returns:
        FeatureResult: The features, the model, its price and its card.

    Raises:
        UsageError: Data or settings of bad form; nothing was written.
        BudgetError: The budget is too small; nothing was written.

    Cost: the budget, at most: `plan_feature_selection` gives the price beforehand.
    """
    prepared = prepare(data, target, budget=budget or Budget(1.0), **options)
    result = run(prepared, out=out, progress=progress)
    if line := without_classes(result.document):
        warnings.warn(line, UserWarning, stacklevel=2)
    return result


def prepare(
    data: Any, target: str | None = None, *, budget: Budget, **options: Unpack[Options]
) -> Prepared:
    """Load the data's form and solve the plan; nothing is written."""
    check_options(budget, options, Options.__annotations__)
    request = Request(
        data=name_of(data), epsilon=budget.epsilon, delta=budget.delta, target=target, **options
    )
    return _prepare(request, _dataset(data, request))


def _dataset(data: Any, request: Request) -> Dataset:
    framed = hasattr(data, "columns") and hasattr(data, "iloc")
    return of_frame(data, request) if framed else dataset_of(data, request)


def of_frame(frame: Any, request: Request) -> Dataset:
    """Return a pandas frame as a data set: its columns' names and types are its form."""
    from pasearch.data.tables import TableSchema, undeclared

    names = [str(name) for name in frame.columns]
    declared = None if request.schema is None else TableSchema.from_toml(request.schema)
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(f"The frame's column {name!r} is there twice: rename one.")
    for name, dtype in zip(names, frame.dtypes, strict=True):
        if getattr(dtype, "kind", "O") == "c":
            raise UsageError(
                f"The frame's column {name!r} is of type {dtype}: expected numbers or texts. Make "
                "two columns of it, or leave it out."
            )
    if len(names) < 2:
        raise UsageError("The frame has fewer than two columns: expected features and a target.")
    schema = undeclared(names, names[-1]) if declared is None else declared
    schema = schema.for_header(names, where="The frame", target=request.target)
    if request.regression:
        schema = replace(schema, target=replace(schema.target, kind="number"))
    cells = frame.astype(object).to_numpy()
    places = {name: place for place, name in enumerate(names)}
    columns = [places[column.name] for column in schema.columns]
    return Dataset(
        name="frame" if declared is None else declared.name,
        schema=schema,
        features=cells[:, columns],
        labels=cells[:, places[schema.target.name]],
        public=request.data_is_public,
        official_test=schema.official_test,
    )


def _prepare(request: Request, dataset: Dataset) -> Prepared:
    public, assumed = None, ()
    if request.search_on is not None:
        if request.method == "auto":
            raise UsageError(
                "--search-on says where features are chosen: say how too, such as --method pca."
            )
        source = str(request.search_on)
        public, dataset, assumed = public_data("--search-on", source, request, dataset)
    if request.assume_public_schema or dataset.public:
        dataset, read = assume_public(dataset, request.max_categories)
        assumed = (*assumed, *read)
    method, trainer, auto = choose(request.method, request.trainer, dataset.schema, request.k)
    choice = request.choice(method, trainer)
    plan = make_feature_plan(
        name=dataset.name,
        schema=dataset.schema,
        public=dataset.public,
        budget=request.budget,
        split=_split(request, dataset, choice),
        choice=choice,
        selection_share=request.selection_share,
        most_categories=request.max_categories,
        assumed_public=assumed,
        leak_share=PURCHASE_DELTA if request.ledger is None else LEDGER_LEAK,
        searched_on=None if public is None else public.name,
    )
    plan = replace(plan, auto=auto)
    return Prepared(request=request, dataset=dataset, plan=plan, public=public)


def _split(request: Request, dataset: Dataset, choice: Choice) -> Split:
    return make_split(
        dataset.n,
        shares=shares_of(request.split),
        search_share=request.search_share,
        scored=choice.trains_candidates and request.search_on is None,
        official_test=dataset.official_test,
        paper=request.split == "paper",
    )


def run(
    prepared: Prepared, *, out: str | Path | None = None, progress: Progress | None = None
) -> FeatureResult:
    """Run a prepared selection in a new folder."""
    with new_run(prepared, out, anywhere(prepared.request), COMMAND) as folder:
        return _run(prepared, folder, resumed=False, progress=progress)


def resume_selection(
    path: str | Path, *, data: Any = None, progress: Progress | None = None
) -> FeatureResult:
    """Finish a selection that was interrupted; what it has paid for is not paid for again.

    Args:
        path: The run's folder.
        data: The same records again, if they were in memory.
        progress: What to report.

    Raises:
        UsageError: No run there, or a finished one.
        BudgetError: Data, plan, code, versions or device differ from the run that began.
    """
    with found_run(path, COMMAND) as folder:
        request = read_request(folder.private, Request, COMMAND)
        if data is None and request.data == MEMORY:
            raise UsageError(f"{path} began on records in memory: pass them again as `data`.")
        dataset = _dataset(request.data if data is None else data, request)
        return _run(_prepare(request, dataset), folder, resumed=True, progress=progress)


def _run(
    prepared: Prepared, folder: RunFolder, *, resumed: bool, progress: Progress | None
) -> FeatureResult:
    from pasearch.api.lifecycle import buy_schema
    from pasearch.features.engine import FeatureSearch
    from pasearch.progress import heard

    plan, dataset = prepared.plan, prepared.dataset
    device = device_of(prepared.request)
    with opened(prepared, folder, device, prepared.public, resumed=resumed) as (ledger, keys):
        dataset.partition(plan.split, keys.stream("split").generator())
        plan = buy_schema(plan, dataset, ledger, keys, folder)
        prepared = replace(prepared, plan=plan)
        outcome = FeatureSearch(
            plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device,
            public=prepared.public, progress=heard(progress, prepared.trainings),
        ).run()  # fmt: skip
        result = _publish(prepared, outcome, folder, device, keys.reproducible)
        keys.destroy()
    return result


def _publish(
    prepared: Prepared, outcome: FeatureOutcome, folder: RunFolder, device: str, reproducible: bool
) -> FeatureResult:
    from pasearch.features.model import feature_names, packed
    from pasearch.results import digest

    weights, chosen = packed(outcome.model.weights, outcome.model.intercept), outcome.chosen
    names = feature_names(prepared.plan.schema, outcome.model.weights.shape[1])
    best, shown = chosen_json(chosen, names)
    found = Found(
        best=best,
        width=chosen.view.width,
        test_points=outcome.test_points,
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


def result_document(plan: FeaturePlan, found: Found, made: Made) -> dict[str, Any]:
    """Return `result.json`, but for what is made of it; docs/result.md describes every field."""
    choice, parameters = plan.choice, (found.width + 1) * plan.schema.outputs
    return {
        **head(plan, FEATURES, plan.selection_way, plan.selection_words),
        "space": {"name": f"sets of {found.best['of']:,} features"},
        "recipe": _recipe(plan, choice),
        "best": {
            **found.best,
            "columns": columns_of(found.best["features"], plan.schema),
            "parameters": parameters,
            "trainable_parameters": parameters,
        },
        "score": score_json(plan, found.test_points, found.exact_points),
        "model": {
            "file": "model.npz",
            "sha256": found.sha256,
            "link": found.link,
            "pool": choice.pool if choice.method == "max-pool" else 0,
        },
        "bought": plan.bought(),
        "alternatives": [],
        "searched_on": plan.searched_on,
        "judged_on": None,
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


def _recipe(plan: FeaturePlan, choice: Choice) -> dict[str, Any]:
    """Return how the released model was trained."""
    recipe = plan.recipe
    if recipe is None:
        return {
            "trainer": "objective",
            "epsilon": plan.final_epsilon or plan.trial_epsilon,
            "noise_multiplier": plan.final_sigma or plan.trial_sigma,
            "bounding": None,
        }
    slots = plan.split.train
    return {
        "trainer": "dpsgd",
        **recipe.to_json(),
        "sampling_probability": recipe.sampling_probability(slots),
        "name": "",
    }
