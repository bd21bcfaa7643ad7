"""The Python API of feature selection: plan it, run it, resume it; see `api` for the way of a run.

Source: Bao et al., sections V-B and VIII-B; docs/rules.md, rules 1, 11 and 12; docs/result.md.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from pasearch import api
from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import whole
from pasearch.data.partitions import Dataset, Split, make_split
from pasearch.errors import InterruptedRunError, PasearchError, UsageError
from pasearch.features.auto import choose
from pasearch.features.plan import METHODS, TRAINERS, Choice, FeaturePlan, make_feature_plan
from pasearch.plan import PURCHASE_DELTA
from pasearch.results import FEATURES, FeatureResult

if TYPE_CHECKING:
    from pasearch.features.engine import FeatureOutcome
    from pasearch.runs.keys import Keys


class Options(TypedDict, total=False):
    """Everything that may be said about a selection beside data and budget; see `Request`."""

    method: str
    trainer: str
    k: int | None
    merits: str
    population: int
    generations: int
    pick: str
    law: str
    candidates: float
    pool: int
    selection_share: float | None
    split: str | None
    search_share: float
    ledger: str | Path | None
    ledger_budget: tuple[float, float] | None
    data_is_public: bool
    bounds: tuple[float, float] | None
    classes: int | None
    regression: bool
    schema: str | Path | None
    image_side: int | None
    grey: bool
    max_categories: int
    assume_public_schema: bool
    data_root: str
    download: bool
    device: str
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for, as plain values: kept in `private/` so that a run can be resumed.

    Args:
        data: A built-in name, a path, or "arrays" for records in memory.
        epsilon: Of the whole run.
        delta: Of the whole run; None takes the largest power of ten below 1/n.
        method: One of `features.plan.METHODS`, or "auto".
        trainer: One of `features.plan.TRAINERS`, or "auto".
        k: How many features; None leaves it to the method.
        merits: Of cfs: "tables" or "entropies".
        population: k of PAFS's algorithm: sets a generation.
        generations: l of it.
        pick: Of top: "permute-and-flip" or "gumbel".
        law: Of subsets: law of the number of trainings.
        candidates: Its mean.
        pool: Of max-pool: side of a pool, pixels.
        selection_share: Share of epsilon that the choice takes; None takes the usual one.
        split: None for the data's own test set, or shares; "paper"; or three shares.
        search_share: Share of the training slots that only the choice reads.
        ledger: See `api.Request`, like everything below.
        ledger_budget: See there.
        data_is_public: See there.
        bounds: See there.
        classes: See there.
        regression: See there.
        target: See there.
        schema: See there.
        image_side: See there.
        grey: See there.
        max_categories: See there.
        assume_public_schema: See there.
        data_root: See there.
        download: See there.
        device: See there.
        seed: See there.
    """

    data: str
    epsilon: float
    delta: float | None = None
    method: str = "auto"
    trainer: str = "auto"
    k: int | None = None
    merits: str = "tables"
    population: int = 20
    generations: int = 3
    pick: str = "permute-and-flip"
    law: str = "geometric"
    candidates: float = 8.0
    pool: int = 2
    selection_share: float | None = None
    split: str | None = None
    search_share: float = 0.0
    ledger: str | Path | None = None
    ledger_budget: tuple[float, float] | None = None
    data_is_public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None
    regression: bool = False
    target: str | None = None
    schema: str | Path | None = None
    image_side: int | None = None
    grey: bool = False
    max_categories: int = 32
    assume_public_schema: bool = False
    data_root: str = "data"
    download: bool = False
    device: str = "auto"
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks; the rest as in an architecture search."""
        for name, known in (("method", METHODS), ("trainer", TRAINERS)):
            if (value := getattr(self, name)) not in ("auto", *known):
                raise UsageError(
                    f"{name} is {value!r}: expected auto, or one of {', '.join(known)}."
                )
        if self.k is not None:
            whole("k", self.k)
        shared = {f.name for f in fields(api.Request)} & {f.name for f in fields(self)}
        own = {"law", "candidates", "generations"}
        api.Request(**{name: getattr(self, name) for name in sorted(shared - own)})

    def choice(self, method: str, trainer: str) -> Choice:
        """Return how features are chosen, with what `auto` has left open filled in."""
        return Choice(
            method=method, trainer=trainer, size=self.k, merits=self.merits,
            population=self.population, generations=self.generations, pick=self.pick,
            law=self.law, mean=self.candidates, pool=self.pool,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request with its data set and solved plan; nothing private was read."""

    request: Request
    dataset: Dataset
    plan: FeaturePlan


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
        options: See `Request`.

    Returns:
        FeatureResult: The features, the model, its price and its card.

    Raises:
        UsageError: Data or settings of bad form; nothing was written.
        BudgetError: The budget is too small; nothing was written.

    Cost: the budget, at most: `plan_feature_selection` gives the price beforehand.
    """
    return run(prepare(data, target, budget=budget or Budget(1.0), **options), out=out)


def prepare(
    data: Any, target: str | None = None, *, budget: Budget, **options: Unpack[Options]
) -> Prepared:
    """Load the data's form and solve the plan; nothing is written."""
    if not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}: expected Budget(epsilon=..., delta=...).")
    if unknown := sorted(set(options) - set(Options.__annotations__)):
        raise UsageError(
            f"{', '.join(unknown)}: no such option: expected one of "
            f"{', '.join(Options.__annotations__)}."
        )
    name = str(data) if isinstance(data, (str, Path)) else "arrays"
    request = Request(
        data=name, epsilon=budget.epsilon, delta=budget.delta, target=target, **options
    )
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        data = of_frame(data, request)
    return _prepare(request, api.dataset_of(data, request))


def of_frame(frame: Any, request: Request) -> Dataset:
    """Return a pandas frame as a data set: its columns' names and types are its form."""
    from pasearch.data.tables import TableSchema, undeclared

    names = [str(name) for name in frame.columns]
    declared = None if request.schema is None else TableSchema.from_toml(request.schema)
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(f"The frame's column {name!r} is there twice: rename one.")
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
    assumed: tuple[str, ...] = ()
    if request.assume_public_schema or dataset.public:
        dataset, assumed = api.assume_public(dataset, request.max_categories)
    budget = Budget(request.epsilon, request.delta)
    method, trainer, auto = choose(request.method, request.trainer, dataset.schema, request.k)
    choice = request.choice(method, trainer)
    plan = make_feature_plan(
        name=dataset.name,
        schema=dataset.schema,
        public=dataset.public,
        budget=budget,
        split=_split(request, dataset, choice),
        choice=choice,
        selection_share=request.selection_share,
        most_categories=request.max_categories,
        assumed_public=assumed,
        leak_share=PURCHASE_DELTA if request.ledger is None else api.LEDGER_LEAK,
    )
    return Prepared(request=request, dataset=dataset, plan=replace(plan, auto=auto))


def _split(request: Request, dataset: Dataset, choice: Choice) -> Split:
    return make_split(
        dataset.n,
        shares=api.shares_of(request.split),
        search_share=request.search_share,
        scored=choice.trains_candidates,
        official_test=dataset.official_test,
        paper=request.split == "paper",
    )


def run(prepared: Prepared, *, out: str | Path | None = None) -> FeatureResult:
    """Run a prepared selection in a new folder."""
    from pasearch.runs.folder import RunFolder

    api.device_of(prepared.request)
    if not prepared.plan.public:
        api.check_total(prepared.request)
    request = json.dumps({"kind": FEATURES, **asdict(_anywhere(prepared.request))}, default=str)
    folder = RunFolder.create(out, prepared.dataset.name)
    try:
        folder.atomic_write("request.json", request)
        return _run(prepared, folder, resumed=False)
    except PasearchError:
        if not api.has_spent(folder):
            shutil.rmtree(folder.path)
        raise
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path, "features") from None


def resume_selection(path: str | Path, *, data: Any = None) -> FeatureResult:
    """Finish a selection that was interrupted; what it has paid for is not paid for again.

    Args:
        path: The run's folder.
        data: The same records again, if they were in memory.

    Raises:
        UsageError: No run there, or a finished one.
        BudgetError: Data, plan, code, versions or device differ from the run that began.
    """
    from pasearch.runs.folder import RunFolder

    api.destroy_left_keys(Path(path))
    folder = RunFolder.open(path)
    request = read_request(folder.private)
    if data is None and request.data == "arrays":
        raise UsageError(f"{path} began on records in memory: pass them again as `data`.")
    given = request.data if data is None else data
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        given = of_frame(given, request)
    try:
        return _run(_prepare(request, api.dataset_of(given, request)), folder, resumed=True)
    except KeyboardInterrupt:
        raise InterruptedRunError(folder.path, "features") from None


def read_request(private: Path) -> Request:
    """Return what a selection was asked for.

    Raises:
        UsageError: It never began, or is no feature selection.
    """
    try:
        values = json.loads((private / "request.json").read_text(encoding="utf-8"))
        if values.pop("kind", None) != FEATURES:
            raise UsageError(
                f"{private.parent} is no feature selection: finish it with `pasearch arch "
                "--resume`."
            )
        for name in ("bounds", "ledger_budget"):
            values[name] = None if values[name] is None else tuple(values[name])
        return Request(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise api.unreadable(private, error) from None


def _anywhere(request: Request) -> Request:
    """Return the request as a resume from another working directory needs it."""
    from pasearch.data.images import BUILT_IN

    paths: dict[str, Any] = {
        name: str(Path(path).absolute())
        for name in ("data_root", "schema", "ledger")
        if (path := getattr(request, name)) is not None
    }
    if request.data not in ("arrays", *BUILT_IN):
        paths["data"] = str(Path(request.data).absolute())
    return replace(request, **paths)


def _run(prepared: Prepared, folder: Any, *, resumed: bool) -> FeatureResult:
    from pasearch.buying import buy_schema
    from pasearch.features.engine import FeatureSearch

    plan, dataset = prepared.plan, prepared.dataset
    device = api.device_of(prepared.request)
    with api.opened(prepared, folder, device, resumed=resumed) as (ledger, keys):
        dataset.partition(plan.split, keys.stream("split").generator())
        plan = buy_schema(plan, dataset, ledger, keys, folder)
        prepared = replace(prepared, plan=plan)
        outcome = FeatureSearch(
            plan=plan, dataset=dataset, ledger=ledger, keys=keys, device=device
        ).run()
        elapsed = time.time() - folder.started
        result = _publish(prepared, outcome, folder, device, keys, elapsed)
        keys.destroy()
    return result


def _publish(
    prepared: Prepared,
    outcome: FeatureOutcome,
    folder: Any,
    device: str,
    keys: Keys,
    elapsed: float,
) -> FeatureResult:
    from pasearch.features.model import packed
    from pasearch.report.card import card_json, card_markdown
    from pasearch.report.html import report_html

    weights = packed(outcome.model.weights, outcome.model.intercept)
    document = result_document(prepared, outcome, weights, device, keys.reproducible)
    folder.atomic_write("timings.json", json.dumps({"seconds_since_start": round(elapsed, 1)}))
    card = card_markdown(document)
    folder.publish(
        {
            "result.json": json.dumps(document, indent=2) + "\n",
            "privacy-card.md": card,
            "privacy-card.json": json.dumps(card_json(document), indent=2) + "\n",
            "report.html": report_html(document),
            "model.npz": weights,
        }
    )
    return FeatureResult(path=folder.path, document=document, card=card)


def result_document(
    prepared: Prepared, outcome: FeatureOutcome, weights: bytes, device: str, reproducible: bool
) -> dict[str, Any]:
    """Return `result.json`; docs/result.md describes every field."""
    from pasearch.features.model import feature_names
    from pasearch.results import SCHEMA_VERSION, digest

    plan, chosen, choice = prepared.plan, outcome.chosen, prepared.plan.choice
    planned, features = plan.to_json(), outcome.model.weights.shape[1]
    names = feature_names(plan.schema, features)
    order = chosen.order or tuple(chosen.view.columns.tolist())
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": FEATURES,
        "dataset": api.data_json(plan),
        "budget": planned["budget"],
        "price": planned["price"],
        "price_by_partition": planned["price_by_partition"],
        "events": planned["lines"],
        "way": planned["way"],
        "selection": api.selection_json(choice.way, choice.describe(), plan.price.accountant),
        "strategy": planned["strategy"],
        "space": {"name": f"sets of {features:,} features"},
        "recipe": _recipe(plan, choice),
        "best": {
            "features": [names[place] for place in order],
            "places": list(order),
            "of": features,
            "directions": None if chosen.view.rotation is None else chosen.view.width,
            "merit": chosen.merit,
            "columns": columns_of([names[place] for place in order], plan.schema),
            "parameters": (chosen.view.width + 1) * plan.schema.outputs,
            "trainable_parameters": (chosen.view.width + 1) * plan.schema.outputs,
        },
        "score": api.score_json(plan, outcome.test_points, outcome.exact_points),
        "model": {
            "file": "model.npz",
            "sha256": digest(weights),
            "link": outcome.model.link,
            "pool": choice.pool if choice.method == "max-pool" else 0,
        },
        "bought": list(plan.schema.describe_items()) if plan.purchase is not None else [],
        "assumed_public": list(plan.assumed_public),
        "claims": [claim.to_json() for claim in plan.claims()],
        "crossover": None,
        "alternatives": [],
        "auto": plan.auto,
        "searched_on": None,
        "judged_on": None,
        "ledger": api.shared_ledger(prepared),
        "device": device,
        "reproducible": reproducible,
        "randomness": api.randomness_words(device, reproducible),
        "warnings": planned["warnings"],
        "versions": api.versions(),
    }
    if chosen.to_class is not None:
        document["relevance"] = [
            {"feature": name, "uncertainty": round(float(value), 6)}
            for name, value in zip(names, chosen.to_class, strict=True)
        ]
    if chosen.trials:
        document["trials"] = [
            {"features": [names[place] for place in places], "noisy_correct": score}
            for places, score in chosen.trials
        ]
        document["unique_trials"] = len(chosen.trials)
    if outcome.curve:
        document["by_size"] = list(outcome.curve)
    return document


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
