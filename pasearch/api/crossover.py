"""Measurement on public data of the epsilon at which one model becomes better than another.

    for every model and epsilon: a plan of one training with calibrated noise (as for `arch`)
    for every repeat: the same training and test records for all models; each model is trained on
    them at each epsilon and once without noise; exact error on the test records

Nothing private is read: the records are declared public. With a private table as `data` and public
records as `proxy`, only the schema and n of the private table are used. The noise is then chosen so
that each training has the signal-to-noise ratio mu n of a training on these n private records.

Source: Bao et al., sections III, VI-C and VI-D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive_integer
from pasearch.api.request import SearchRequest, check_executor
from pasearch.api.resolve import assume_public, choose_device, load_public_data, resolve_dataset
from pasearch.api.resolve_search import prepare_search
from pasearch.crossover.curves import find_crossover, parse_epsilon_grid
from pasearch.crossover.report import CrossoverReport
from pasearch.crossover.trainings import (
    CheckpointFile,
    CrossoverStudy,
    Model,
    ProgressCallback,
    TrainingSetting,
    measure_points,
    parse_model,
    parse_models,
)
from pasearch.errors import UsageError
from pasearch.search.grid import Grid
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.space import Portfolio, Space

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset
    from pasearch.search.plan import Plan

SHARED_OPTIONS = (
    "steps", "batch", "device", "metric", "executor", "workers", "ray_address", "gpus_per_worker",
)  # fmt: skip
"""Options of a run on public data that also apply to the crossover measured after it."""

COMPANION_REPEATS = 5
"""Number of trainings of each model at each epsilon, in a crossover measured after a run."""

COMPANION_GRID = ".1:10:log8"
"""Epsilons of a crossover that is measured after a run on public data."""

MAX_TRAININGS = 100_000  # maximum number of trainings of a measurement; more would take days


def measure_crossover(
    data: Any, models: Sequence[str | Path | Candidate], *,
    epsilons: str | Sequence[float] = ".1:10:log12", repeats: int = 10, delta: float | None = None,
    proxy: str | Path | None = None, seed: int = 0, workers: int | None = None,
    store: str | Path | None = None, on_training: ProgressCallback | None = None, **options: Any,
) -> CrossoverReport:  # fmt: skip
    """Measure the error of models at several epsilons, and the epsilons at which the best changes.

    Args:
        data: Public data with `data_is_public=True`; or private data, which then require `proxy`.
        models: Two or more: "linear", "fcn", "cnn" or a network's file; behind a "+", a front end
            (`linear+scattering`), `rwt` (random weights training), `full-batches`, `recipe:NAME`,
            or input features: `cfs:6`, `random:6`, `columns:age,sex`, `numbers`.
        epsilons: Two or more rising epsilons, or "low:high:logN".
        repeats: Number of trainings of each model at each epsilon, 2 or more for an interval.
        delta: Delta of each training; None: the default for n.
        proxy: Public data with the same schema, measured at the n of `data`.
        seed: Seed of splits and noise, which need no secrecy on public data.
        workers: Number of trainings at a time, without effect on the result; None: all that fit.
        store: File that stores finished trainings, which a repeated measurement reuses.
        on_training: Callback with (finished trainings, all trainings).
        options: Options of `search_architecture` for the data and training: bounds, classes,
            schema, target, data_root, steps, batch, device, executor ...

    Raises:
        UsageError: Unsuitable grid, models or data; nothing was trained.

    Cost: none: only records that were declared public are read.

    Example:
        >>> from pasearch import measure_crossover
        >>> small = {"epsilons": [1.0, 8.0], "repeats": 2, "steps": 10, "data_is_public": True}
        >>> measure_crossover("digits", ("linear", "fcn"), **small).errors.shape
        (2, 2, 2)
    """
    grid, number = parse_epsilon_grid(epsilons), check_positive_integer("repeats", repeats)
    request = SearchRequest(data, **options)
    dataset, planned, assumes = _resolve_public_records(proxy, request)
    if (trainings := len(grid) * number * len(models)) > MAX_TRAININGS:
        raise UsageError(
            f"The grid has {trainings:,} trainings: expected at most {MAX_TRAININGS:,}. Use fewer "
            "epsilons or repeats."
        )
    found = parse_models(models, dataset.schema)
    plans: list[list[Plan]] = []
    for each in found:
        own = {"recipe": each.recipe} if each.recipe is not None else {}
        asked = replace(request, architecture=each.candidate, strategy="fixed", **own)
        budgets = [Budget(epsilon, delta) for epsilon in grid]
        plans.append([prepare_search(replace(asked, budget=b), planned).plan for b in budgets])
    first = plans[0][0]
    study = CrossoverStudy(
        dataset=dataset, models=found, settings=[[make_setting(p) for p in row] for row in plans],
        train=first.split.train, test=first.split.test, metric=first.score_metric.name, seed=seed,
        device=choose_device(request),
    )  # fmt: skip
    check_executor(request.executor, study.device, {})
    points = list(product(range(len(found)), range(len(grid) + 1), range(number)))
    stored = {
        "data": study.dataset.name, "records": study.dataset.n, "train": study.train,
        "test": study.test, "delta": first.delta, "metric": study.metric, "seed": seed,
        "epsilons": list(grid),
        "models": [[each.name, each.candidate.to_json(), each.recipe] for each in found],
        "steps": [[each.recipes[0].steps for each in row] for row in study.settings],
        "batches": [[e.recipes[0].expected_batch_size for e in row] for row in study.settings],
    }  # fmt: skip
    kept = CheckpointFile(None if store is None else Path(store), stored)
    errors = np.empty((len(found), len(grid) + 1, number))
    with replace(request, workers=workers).make_executor() as trainers:
        every = measure_points(study, points, kept, executor=trainers, on_training=on_training)
    for point, error in every.items():
        errors[point] = error
    metric, noisy = first.score_metric, errors[:, :-1]
    held = min(first.split.test, max(1, dataset.n // 5))
    pairs = list(combinations(range(len(found)), 2))
    return CrossoverReport(
        data=dataset.name, delta=first.delta,
        n=min(first.split.train, dataset.n - held),  # public records may be fewer than yours
        metric=metric.noun if metric.is_for_regression else f"1 - {metric.noun}",
        names=tuple(each.name for each in found),
        parameters=tuple(each.parameters for each in found), epsilons=grid, errors=noisy,
        plain=errors[:, -1],
        crossovers=tuple(
            find_crossover(
                noisy[a], noisy[b], grid, (found[a].name, found[b].name), pairs=len(pairs)
            )
            for a, b in pairs
        ),
        assumes=assumes,
    )  # fmt: skip


def measure_public_crossover(
    request: SearchRequest, dataset: Dataset, space: Space, winner: Candidate
) -> dict[str, Any]:
    """Measure the crossover of the winner of a public run with a simple and the largest model.

    Args:
        request: Request of the run.
        dataset: Declared-public data set.
        space: Search space of the run, which contributes its smallest and largest entries if it is
            a portfolio, and its default otherwise.
        winner: Released candidate.

    Returns:
        Plain values of the crossover, as `result.json` stores them.

    Cost: none: the records were declared public.
    """
    shape, outputs = dataset.schema.shape, dataset.schema.outputs
    others = (
        list(space.entries)
        if isinstance(space, Portfolio)
        else [space.candidate(space.default_genotype())]
    )
    others.sort(key=lambda each: each.parameters(shape, outputs)[0])
    plain = Candidate(architecture=Architecture(layers=()))
    models = list(dict.fromkeys((winner, others[0], others[-1], plain)))[:3]
    options = {name: getattr(request, name) for name in SHARED_OPTIONS}
    found = measure_crossover(
        dataset, models, epsilons=COMPANION_GRID, repeats=COMPANION_REPEATS, seed=request.seed or 0,
        **options,
    )  # fmt: skip
    return found.as_accuracy(winner.describe_network())


def make_grid_options(
    data: Any, models: Sequence[str | Path | Candidate], **options: Any
) -> dict[str, Any]:
    """Make the options of `search_architecture` that measure a crossover on private records.

    The run then charges every training of the grid to one budget (strategy `grid`).

    Args:
        data: Private data, of which only metadata are read.
        models: Models as in `measure_crossover`, but without feature choices and recipes: features
            would have to be selected privately.
        options: Further options of `search_architecture`.

    Raises:
        UsageError: Unknown models, or models with a feature choice or a recipe.
    """
    request = SearchRequest(data, **options)
    schema = resolve_dataset(request.data, request).schema
    found = []
    for each in models:
        model = each if isinstance(each, Candidate) else parse_model(str(each), schema.regression)
        if isinstance(model, Model) and (model.features is not None or model.recipe is not None):
            raise UsageError(
                f"Model {model.name!r} has a feature choice or a recipe: on private records all "
                "models use all features and one recipe. Leave it out, or measure on public "
                "records (`proxy=`)."
            )
        found.append(model.candidate if isinstance(model, Model) else model)
    if len(set(found)) < max(2, len(found)):
        raise UsageError("A crossover requires two or more different models: name another.")
    space = Portfolio(name="models of a crossover", entries=tuple(found))
    return {"strategy": Grid.name, "space": space, **options}


def make_setting(plan: Plan) -> TrainingSetting:
    """Return the recipes and noise of a calibrated plan of strategy `fixed`."""
    assert plan.trial_mu is not None
    noise = next((noise for _, noise in plan.front_noise), None)
    return TrainingSetting(recipes=plan.recipes, mu=plan.trial_mu, front_noise=noise)


def _resolve_public_records(
    proxy: str | Path | None, request: SearchRequest
) -> tuple[Dataset, Dataset, str]:
    """Return the public records, the data set to plan for, and the assumption made (a sentence)."""
    dataset = resolve_dataset(request.data, request)
    if proxy is None:
        if not dataset.public:
            raise UsageError(
                "A crossover measurement requires public data: use `data_is_public=True` if these "
                "are public, or give public records with the same schema (`proxy=`), which are "
                "measured at your number of records."
            )
        dataset, _ = assume_public(dataset, request.max_categories)
        return dataset, dataset, ""
    records, sized, _ = load_public_data("proxy", str(proxy), request, dataset)
    said = (
        f"measured on {records.name} at the signal of {dataset.n:,} records of {dataset.name}; it "
        "applies to your data only if both have similar difficulty and need similar models"
    )
    return records, sized, said
