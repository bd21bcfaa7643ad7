"""Comparing two workflows on public data: choose without privacy, or with privacy in mind.

    request  ->  space, split (train, validation, test) and budget, as `arch` would
             ->  for every candidate: a plan of one training on the training records, noise solved
             ->  both choices, then both winners tested

Nothing private is read: the records are declared public.

Source: Bao et al., section V-A and Table I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import whole
from pasearch.api.crossover import MAX_TRAININGS, setting_of
from pasearch.api.request import DATA_OPTIONS, SearchRequest, executor_of
from pasearch.api.resolve import assume_public, dataset_of, device_of
from pasearch.api.search import prepared_search
from pasearch.cautions import LEAST_SIGNAL
from pasearch.crossover.trainings import FEW, Study, Told
from pasearch.crossover.workflows import (
    Comparison,
    candidates_of,
    chosen_and_tested,
    comparison,
    models_to_compare,
)
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.space import space as named_space

if TYPE_CHECKING:
    from pasearch.crossover.models import Model
    from pasearch.data.partitions import Dataset
    from pasearch.data.split import Split
    from pasearch.search.plan import Plan
    from pasearch.spaces.space import Space

TAKES = (
    *DATA_OPTIONS, "data_is_public", "steps", "batch", "learning_rate", "device", "force",
)  # fmt: skip
"""Options of `search_architecture` that a comparison has too."""

LONG = 60.0
"""Seconds of training, about, from which on other processes are worth starting."""


def compare_workflows(
    data: Any,
    *,
    space: str | Path | dict[str, Any] | Space = "fcn-paper",
    epsilon: float = 2.0,
    delta: float | None = None,
    candidates: int = 10,
    repeats: int = 5,
    seed: int = 0,
    workers: int | None = None,
    on_training: Told | None = None,
    **options: Any,
) -> Comparison:
    """Compare the model that is chosen without privacy with the one chosen with privacy in mind.

    The same candidates are trained once without privacy (the standard workflow) and once with it
    (the privacy-aware one), on the same training records, and scored exactly on the same validation
    records. Each workflow takes its best. Both winners are then trained with privacy and without,
    and tested.

    Guarantee: no test record has a part in a choice; the same seed gives the same comparison,
    whatever `workers` is.

    Args:
        data: As of `search_architecture`, declared public (`data_is_public=True`).
        space: What candidates are drawn from, as of `search_architecture`.
        epsilon: Of every training with privacy, above 0.
        delta: Likewise, below 1/n; None: the power of ten below 1/n.
        candidates: How many, 2 or more: the space's default and drawn ones; all of a space that
            has no more.
        repeats: How often each winner is trained with privacy, and as often without: 1 or more, 2
            or more for an interval.
        seed: Of split, candidates, batches and noise: nothing here is private. 0 to 2^64 - 1.
        workers: How many processes train side by side; None: one a core.
        on_training: Called with (trainings finished, all trainings).
        options: Others of `search_architecture`, those of its data (schema, target, bounds, metric,
            split ...) and steps, batch, learning_rate, device, force.

    Raises:
        UsageError: Private records, a space that is not known, does not fit or has one candidate,
            or another argument that cannot be; nothing was trained.
        BudgetError: An epsilon at which a model would guess, without `force=True`; nothing was
            trained.

    Cost: none: only records that were declared public are read.

    Source: Bao et al., section V-A, Table I.
    """
    _check_sizes(candidates, repeats, options)
    asked = {"space": space, "budget": Budget(epsilon, delta), "seed": seed, **options}
    with executor_of("auto", workers) as executor:
        trained = {"repeats": repeats, "executor": executor, "told": on_training}
        return _compared(SearchRequest(data, strategy="stw", **asked), candidates, trained)


def _compared(request: SearchRequest, candidates: int, trained: dict[str, Any]) -> Comparison:
    """Return the comparison of a request, whose strategy is `stw`; `trained` says how."""
    if request.space != "auto":
        named_space(request.space)  # a name that is not known is told before anything else
    dataset = _public(request)
    plan, keys = prepared_search(request, dataset).plan, Keys.from_seed(request.seed or 0)
    models = _models(plan, dataset, candidates, keys)
    plan_of = _alone(request, dataset, plan.split)
    plans = [plan_of(each) for each in models]
    signal = _checked_signal(plans[0], force=request.force)
    slots = plan.split.slots(keys.stream("split").generator())
    study = Study(
        dataset=dataset, models=models, settings=[[setting_of(each)] for each in plans],
        train=plan.split.train, test=plan.split.validation, metric=plan.scored_by.name,
        seed=request.seed or 0, device=device_of(request),
        places=(slots["train"], slots["validation"]),
    )  # fmt: skip
    found = chosen_and_tested(study, slots["test"], few=_few(plans), **trained)
    return comparison(
        study, found, plan.scored_by, len(slots["test"]), epsilon=plan.budget.epsilon,
        delta=plan.delta, signal=signal, space=plan.space.name,
    )  # fmt: skip


def _check_sizes(candidates: int, repeats: int, options: dict[str, Any]) -> None:
    """Refuse options of another task, nothing to choose among, and a comparison of days."""
    if unknown := [name for name in options if name not in TAKES]:
        raise UsageError(
            f"`{unknown[0]}=`: a comparison of workflows does not take it. It takes "
            f"{', '.join(TAKES)}, and arguments of its own."
        )
    if not whole("candidates", candidates) >= 2:
        raise UsageError("candidates is 1: expected 2 or more, to choose among.")
    if (trainings := 2 * candidates + 4 * whole("repeats", repeats)) > MAX_TRAININGS:
        raise UsageError(
            f"That is {trainings:,} trainings: expected at most {MAX_TRAININGS:,}. Take fewer "
            "candidates or repeats."
        )


def _few(plans: list[Plan]) -> int:
    """Return how many trainings are too few to start other processes for."""
    seconds = sum(2 * each.seconds_per_training()[0] for each in plans)
    return 1 if seconds > LONG else FEW


def _public(request: SearchRequest) -> Dataset:
    """Return the records, declared public, with their schema completed from them.

    Raises:
        UsageError: They are private.
    """
    dataset = dataset_of(request.data, request)
    if not dataset.public:
        raise UsageError(
            "Two workflows are compared on public data only: one of them trains every candidate "
            "without privacy, and no budget pays for that. Say `data_is_public=True` if these "
            "records are public; if not, name public data of the same kind in their place."
        )
    return assume_public(dataset, request.max_categories)[0]


def _models(plan: Plan, dataset: Dataset, candidates: int, keys: Keys) -> list[Model]:
    """Return what is compared, the one with the fewest trained parameters first.

    Raises:
        UsageError: The space has one candidate alone.
    """
    found = candidates_of(plan.space, candidates, keys.stream("candidates"))
    if len(found) < 2:
        raise UsageError(
            f"Space {plan.space.name!r} has one candidate, so both workflows would choose it: name "
            "a space with two or more (`space=`)."
        )
    return models_to_compare(found, dataset.schema)


def _alone(request: SearchRequest, dataset: Dataset, split: Split) -> Callable[[Model], Plan]:
    """Return what plans one training of a model on the training records, and no other records.

    A plan that compares nothing has no validation records and would train on them: its split has
    them with the test records, so that its noise is that of a training on `split.train` records.
    """
    n = split.n
    least = 0.25 / n  # of no record, as a split wants a share above 0
    train = split.train / n - least
    shares = f"{train!r},{least!r},{1.0 - train - least!r}"

    def planned(model: Model) -> Plan:
        asked = replace(
            request, architecture=model.candidate, strategy="fixed", space="auto", split=shares,
            variants=False,
        )  # fmt: skip
        plan = prepared_search(asked, dataset).plan
        assert plan.split.train == split.train
        return plan

    return planned


def _checked_signal(plan: Plan, *, force: bool) -> float:
    """Return the signal-to-noise ratio per output of a training with privacy.

    Raises:
        BudgetError: It is so low that a model would guess, and that is not forced.
    """
    assert plan.signal is not None
    signal = plan.signal / plan.schema.outputs
    if not (signal >= LEAST_SIGNAL or force):
        raise BudgetError(
            f"epsilon is {plan.budget.epsilon:g}: {plan.split.train:,} training records have a "
            f"signal-to-noise ratio of {signal:.2g} per output there, and below {LEAST_SIGNAL:g} a "
            "model guesses, whichever is chosen. Raise `epsilon=`, add records, or compare all the "
            "same with `force=True`."
        )
    return signal
