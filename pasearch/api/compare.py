"""Comparison of two workflows on public data: choose without privacy, or with privacy in mind.

    standard workflow, STW        candidates trained without privacy  ->  the best one of those
    privacy-aware workflow, PAW   the same candidates, trained with privacy  ->  the best of those
    both winners                  trained again, several times, with privacy and without  ->  test

All candidates have the same training records and are scored exactly on the same validation records.
If scores are equal, the candidate with the fewest parameters wins. Test records are read only after
both workflows have chosen. "Without privacy" means the same recipe without noise, with the learning
rate for a noise of 0; gradients are still clipped. All records are declared public, so nothing is
charged.

    gap  =  PAW - STW (accuracy), or STW - PAW (an error): how much better the PAW model is
    PR   =  trained parameters of the STW model / those of the PAW model

Source: Bao et al., section V-A (both workflows), section VIII-A (STW is the same search, trained
without privacy), Table I (gap and PR).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive_integer
from pasearch.api.crossover import MAX_TRAININGS, make_setting
from pasearch.api.request import DATA_OPTIONS, SearchRequest, make_executor
from pasearch.api.resolve import assume_public, choose_device, resolve_dataset
from pasearch.api.resolve_search import prepare_search
from pasearch.crossover.curves import estimate_mean_and_half_width
from pasearch.crossover.trainings import (
    MAX_SERIAL_TRAININGS,
    CheckpointFile,
    CrossoverStudy,
    Model,
    Point,
    ProgressCallback,
    measure_points,
)
from pasearch.errors import BudgetError, UsageError
from pasearch.plan_warnings import MIN_SIGNAL
from pasearch.runs.keys import Keys
from pasearch.search.successive_halving import draw_distinct_genotypes
from pasearch.spaces.parsing import make_space as named_space
from pasearch.terminal_escaping import escape_text
from pasearch.training.metrics import find_metric_by_noun

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.search.plan import Plan
    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.space import Space

ACCEPTED_OPTIONS = (
    *DATA_OPTIONS, "data_is_public", "steps", "batch", "learning_rate", "device", "force",
)  # fmt: skip
"""Options of `search_architecture` that `compare_workflows` accepts too."""

MIN_SECONDS_FOR_PROCESSES = 60.0
"""Minimum estimated time of all trainings, at which worker processes are started, seconds."""

MAX_GENOTYPES = 4096  # maximum number of genotypes drawn in search of different candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """A candidate with its validation scores, in the metric's unit."""

    name: str  # layers, front end and settings
    parameters: int  # number of trained parameters
    private: float  # score of a training with privacy
    plain: float  # score of a training without privacy


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """The choice of one workflow with its test scores, in the metric's unit (a row of Table I).

    Args:
        name: "STW" or "PAW".
        candidate: Chosen candidate.
        parameters: Number of trained parameters.
        private: Scores of its trainings with privacy.
        plain: Scores of its trainings without privacy.
    """

    name: str
    candidate: Candidate
    parameters: int
    private: tuple[float, ...]
    plain: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""

        def scores_json(scores: tuple[float, ...]) -> dict[str, Any]:
            mean, half = estimate_mean_and_half_width(np.array(scores))
            return {
                "mean": round(float(mean), 5), "half_width": round(float(half), 5),
                "every": [round(each, 5) for each in scores],
            }  # fmt: skip

        return {
            "workflow": self.name, "model": self.candidate.describe(),
            "candidate": self.candidate.to_json(), "parameters": self.parameters,
            "with_privacy": scores_json(self.private), "without_privacy": scores_json(self.plain),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The standard and the privacy-aware workflow on the same public data, at one epsilon.

    Args:
        data: Name of the data.
        train: Number of training records of every candidate and of both winners.
        validation: Number of validation records, by which both workflows chose.
        test: Number of test records of both winners.
        epsilon: Epsilon of every training with privacy.
        delta: Delta of every training with privacy.
        signal: Signal-to-noise ratio of a training with privacy, per class (in total for
            regression). Below 5, accuracy is near chance.
        metric: Name of the score: accuracy, mean absolute error ...
        space: Name of the space of the candidates.
        tried: Scored candidates, by increasing number of trained parameters.
        standard: Choice of the standard workflow.
        aware: Choice of the privacy-aware workflow.

    Source: Bao et al., section V-A and Table I.
    """

    data: str
    train: int
    validation: int
    test: int
    epsilon: float
    delta: float
    signal: float
    metric: str
    space: str
    tried: tuple[ScoredCandidate, ...]
    standard: Workflow
    aware: Workflow

    @property
    def repeats(self) -> int:
        """Number of trainings of each winner with privacy; as many are made without."""
        return len(self.aware.private)

    @property
    def is_same_model(self) -> bool:
        """Whether both workflows chose the same model."""
        return self.standard.candidate == self.aware.candidate

    @property
    def ratio(self) -> float:
        """PR: trained parameters of the STW model, divided by those of the PAW model."""
        return self.standard.parameters / max(1, self.aware.parameters)

    def gap(self, private: bool = True) -> tuple[float, float]:
        """Return the lead of the PAW model on the test records, in the metric's unit.

        Args:
            private: Whether to compare the trainings with privacy, or those without.

        Returns:
            The mean over repeats, and half the width of its 95 % interval (Student's t; 0 for one
            repeat). A mean below 0 says that the STW model is better.
        """
        both = (self.aware, self.standard)
        aware, standard = (np.array(each.private if private else each.plain) for each in both)
        metric = find_metric_by_noun(self.metric)
        is_higher_better = metric.to_metric_value(1.0) > metric.to_metric_value(0.0)
        sign = 1.0 if is_higher_better else -1.0
        mean, half = estimate_mean_and_half_width(sign * (aware - standard))
        return float(mean), float(half)

    def sentence(self) -> str:
        """Return the result in one sentence."""
        aware, standard = (f"{np.mean(e.private):.4f}" for e in (self.aware, self.standard))
        if self.is_same_model:
            return (
                f"Both workflows chose the same model, {self.aware.candidate.describe()}: at "
                f"epsilon {self.epsilon:g} its {self.metric} is {aware}."
            )
        gap, half = self.gap()
        size = "has as many parameters"
        if self.ratio != 1.0:
            size = f"has {1.0 / self.ratio:.3g} times the parameters"
        if self.repeats < 2:
            lead = (
                f"the difference is {abs(gap):.4f}; its significance is unknown with one training "
                "of each (use more repeats)"
            )
        elif not abs(gap) > half:
            lead = (
                f"the difference, {abs(gap):.4f}, is within the noise of {self.repeats:,} "
                "trainings of each"
            )
        else:
            chosen, scores = "with", f"{aware} against {standard}"
            if gap < 0:
                chosen, scores = "without", f"{standard} against {aware}"
            lead = (
                f"the model chosen {chosen} privacy in mind is {abs(gap):.4f} better "
                f"({self.metric} {scores})"
            )
        return f"With privacy {lead}; the model chosen with privacy in mind {size}."

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        gaps = {"with_privacy": self.gap(True), "without_privacy": self.gap(False)}
        return {
            "data": self.data, "train": self.train, "validation": self.validation,
            "test": self.test, "epsilon": self.epsilon, "delta": self.delta,
            "signal": round(self.signal, 3), "metric": self.metric, "repeats": self.repeats,
            "space": self.space,
            "candidates": [
                {"model": each.name, "parameters": each.parameters,
                 "with_privacy": round(each.private, 5), "without_privacy": round(each.plain, 5)}
                for each in self.tried
            ],
            "workflows": [self.standard.to_json(), self.aware.to_json()],
            "gap": {
                name: {"mean": round(mean, 5), "half_width": round(half, 5)}
                for name, (mean, half) in gaps.items()
            },
            "parameter_ratio": round(self.ratio, 4), "same_model": self.is_same_model,
            "sentence": self.sentence(),
        }  # fmt: skip

    def table(self) -> str:
        """Format the comparison as text: a table with a row per workflow, and the chosen models."""

        def format_interval(mean: Any, half: Any, sign: str = "") -> str:
            return f"{mean:{sign}.4f}" + (f" +- {half:.4f}" if self.repeats > 1 else "")

        rows = [["workflow", "parameters", f"{self.metric} with privacy", "without privacy"]]
        for word, each in (("standard", self.standard), ("privacy-aware", self.aware)):
            scores = (
                format_interval(*estimate_mean_and_half_width(np.array(e)))
                for e in (each.private, each.plain)
            )
            rows.append([f"{word} ({each.name})", f"{each.parameters:,}", *scores])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        gap = "Gap: none, both chose the same model."
        if not self.is_same_model:
            private, plain = (format_interval(*self.gap(each), "+") for each in (True, False))
            gap = f"Gap (lead of the PAW model): {private} with privacy, {plain} without."
        repeats = "one training each" if self.repeats == 1 else f"{self.repeats:,} trainings each"
        if self.repeats > 1:
            repeats += ", with 95 % intervals over them on these test records"
        lines = [
            f"{self.data}: {self.train:,} training, {self.validation:,} validation and "
            f"{self.test:,} test records, all declared public, so nothing is charged.",
            f"Every training with privacy is at epsilon {self.epsilon:g}, delta {self.delta:g}: "
            f"signal-to-noise ratio {self.signal:.3g} per output (below {MIN_SIGNAL:g}, accuracy "
            "is near chance).",
            "",
            *(
                "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                for row in rows
            ),
            "",
            gap,
            f"PR: {self.ratio:.2f} (parameters of STW / PAW). Epsilon: {self.epsilon:g}.",
            f"STW chose {self.standard.candidate.describe()}.",
            f"PAW chose {self.aware.candidate.describe()}.",
            f"Both chose among {len(self.tried):,} candidates of {self.space}; tests are of "
            f"{repeats}.",
            self.sentence(),
        ]
        return "\n".join(map(escape_text, lines))


def compare_workflows(
    data: Any, *, space: str | Path | dict[str, Any] | Space = "fcn-paper", epsilon: float = 2.0,
    delta: float | None = None, candidates: int = 10, repeats: int = 5, seed: int = 0,
    workers: int | None = None, on_training: ProgressCallback | None = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Compare a model chosen among trainings without privacy with one chosen among private ones.

    The same candidates are trained once without privacy (the standard workflow) and once with it
    (the privacy-aware one), on the same training records, and scored exactly on the same validation
    records. Each workflow chooses its best candidate. Both winners are then trained with privacy
    and without, and tested.

    Guarantee: no test record affects a choice; the same seed gives the same comparison for any
    number of `workers`.

    Args:
        data: Data declared public (`data_is_public=True`): a name, a path, a frame or arrays.
        space: Search space: a name, a .toml file or a `Space`.
        epsilon: Epsilon of every training with privacy, above 0.
        delta: Delta of every training with privacy, below 1/n; None: the power of ten below 1/n.
        candidates: Number of candidates, 2 or more: the default of the space, and others drawn at
            random; all candidates of a smaller space.
        repeats: Number of trainings of each winner with privacy, and again without: 1 or more; an
            interval requires 2 or more.
        seed: Seed of split, candidates, batches and noise, 0 to 2^64 - 1; nothing here is private.
        workers: Number of worker processes; None: one per core.
        on_training: Callback with (finished trainings, all trainings).
        options: Options of `search_architecture` for its data (schema, target, bounds, metric,
            split ...), and steps, batch, learning_rate, device, force.

    Raises:
        UsageError: Private records, an unknown or unsuitable space, a space with one candidate, or
            another invalid argument; nothing was trained.
        BudgetError: An epsilon at which accuracy would be near chance, without `force=True`;
            nothing was trained.

    Cost: none: only records that were declared public are read.

    Example:
        >>> from pasearch import compare_workflows
        >>> small = {"candidates": 2, "repeats": 1, "steps": 10, "data_is_public": True}
        >>> compare_workflows("digits", epsilon=2.0, **small).metric
        'accuracy'

    Source: Bao et al., section V-A, Table I.
    """
    if unknown := [name for name in options if name not in ACCEPTED_OPTIONS]:
        raise UsageError(
            f"`{unknown[0]}=`: unknown option of a comparison of workflows; expected its "
            f"arguments, or one of {', '.join(ACCEPTED_OPTIONS)}."
        )
    if not check_positive_integer("candidates", candidates) >= 2:
        raise UsageError("candidates is 1: expected 2 or more, to choose among.")
    if (
        trainings := 2 * candidates + 4 * check_positive_integer("repeats", repeats)
    ) > MAX_TRAININGS:
        raise UsageError(
            f"The comparison has {trainings:,} trainings: expected at most {MAX_TRAININGS:,}. Use "
            "fewer candidates or repeats."
        )
    with make_executor("auto", workers) as executor:
        request = SearchRequest(
            data, strategy="stw", space=space, budget=Budget(epsilon, delta), seed=seed, **options
        )
        study, test, plans, name = _plan_comparison(request, candidates)
        metric, slow = plans[0].score_metric, sum(2 * e.seconds_per_training()[0] for e in plans)
        assert plans[0].signal is not None
        signal = plans[0].signal / plans[0].schema.outputs
        if not (signal >= MIN_SIGNAL or request.force):
            raise BudgetError(
                f"epsilon is {plans[0].budget.epsilon:g}: {study.train:,} training records have a "
                f"signal-to-noise ratio of {signal:.2g} per output there; below {MIN_SIGNAL:g}, "
                "every model is near chance. Raise `epsilon=`, add records, or compare anyway "
                "with `force=True`."
            )
        done, every = 0, 0

        def report_progress(finished: int, _: int) -> None:
            if on_training is not None:
                on_training(done + finished, every)

        def measure_errors(study: CrossoverStudy, models: list[int], numbers: range) -> np.ndarray:
            """Return the errors of the repeats `numbers`, (models, 2, numbers): private, plain."""
            points: list[Point] = [
                (model, place, repeat)
                for model in models for place in (0, 1) for repeat in numbers
            ]  # fmt: skip
            found = measure_points(
                study, points, CheckpointFile(None, {}), executor=executor,
                on_training=report_progress,
                max_serial=1 if slow > MIN_SECONDS_FOR_PROCESSES else MAX_SERIAL_TRAININGS,
            )  # fmt: skip
            shape = len(models), 2, len(numbers)
            return np.array([found[point] for point in points]).reshape(shape)

        every = 2 * len(study.models) + 4 * repeats
        choice = measure_errors(study, list(range(len(study.models))), range(1))[:, :, 0]
        aware, standard = map(int, choice.argmin(axis=0))
        winners = sorted({standard, aware})
        # Repeat 0 was used for the choice, so tested trainings have independent draws.
        done = 2 * len(study.models)
        every = done + 2 * repeats * len(winners)
        assert study.places is not None
        tested = replace(study, places=(study.places[0], test))
        tests = measure_errors(tested, winners, range(1, repeats + 1))

    def convert_to_scores(errors: np.ndarray) -> tuple[float, ...]:
        return tuple(float(metric.to_metric_value(1.0 - each)) for each in errors)

    def make_workflow(name: str, place: int) -> Workflow:
        model, (private, plain) = study.models[place], tests[winners.index(place)]
        return Workflow(
            name=name, candidate=model.candidate, parameters=model.parameters,
            private=convert_to_scores(private), plain=convert_to_scores(plain),
        )  # fmt: skip

    return Comparison(
        data=study.dataset.name,
        train=len(study.places[0]),
        validation=len(study.places[1]),
        test=len(test),
        epsilon=plans[0].budget.epsilon,
        delta=plans[0].delta,
        signal=signal,
        metric=metric.noun,
        space=name,
        tried=tuple(
            ScoredCandidate(
                name=model.name, parameters=model.parameters, private=private, plain=plain
            )
            for model, errors in zip(study.models, choice, strict=True)
            for private, plain in [convert_to_scores(errors)]
        ),
        standard=make_workflow("STW", standard),
        aware=make_workflow("PAW", aware),
    )


def _plan_comparison(
    request: SearchRequest, candidates: int
) -> tuple[CrossoverStudy, np.ndarray, list[Plan], str]:
    """Plan a comparison from a request of strategy `stw`.

    Returns:
        The trainings by which both workflows choose; the indices of the test records; the plan of
        one training of each candidate; and the name of the space.

    Raises:
        UsageError: The records are private, or the space has a single candidate.
    """
    if request.space != "auto":
        named_space(request.space)  # an unknown name is refused before anything else
    dataset = resolve_dataset(request.data, request)
    if not dataset.public:
        raise UsageError(
            "A comparison of workflows requires public data, because one workflow trains every "
            "candidate without privacy. Use `data_is_public=True` if these records are public; "
            "otherwise name public data of the same kind."
        )
    dataset, _ = assume_public(dataset, request.max_categories)
    plan, keys = prepare_search(request, dataset).plan, Keys.from_seed(request.seed or 0)
    found = draw_candidates(plan.space, candidates, keys.stream("candidates"))
    if len(found) < 2:
        raise UsageError(
            f"Space {plan.space.name!r} has one candidate, so both workflows would choose it: use "
            "a space with two or more (`space=`)."
        )
    named = (Model(name=e.describe(), candidate=e).with_parameters(dataset.schema) for e in found)
    models = sorted(named, key=lambda model: model.parameters)
    # A plan without comparison would also train on the validation records. The split of each plan
    # therefore counts them as test records, so that the noise is that of `split.train` records.
    split = plan.split
    least = 0.25 / split.n  # a fraction above 0, as a split requires, that rounds to 0 records
    train = split.train / split.n - least
    single = replace(
        request, strategy="fixed", space="auto", variants=False,
        split=f"{train!r},{least!r},{1.0 - train - least!r}",
    )  # fmt: skip
    plans = [
        prepare_search(replace(single, architecture=each.candidate), dataset).plan
        for each in models
    ]
    assert all(each.split.train == split.train for each in plans)
    slots = split.draw_positions(keys.stream("split").generator())
    study = CrossoverStudy(
        dataset=dataset, models=models, settings=[[make_setting(each)] for each in plans],
        train=split.train, test=split.validation, metric=plan.score_metric.name,
        seed=request.seed or 0, device=choose_device(request),
        places=(slots["train"], slots["validation"]),
    )  # fmt: skip
    return study, slots["test"], plans, plan.space.name


def draw_candidates(space: Space, most: int, stream: Stream) -> tuple[Candidate, ...]:
    """Draw different candidates of a space, its default first.

    Several genotypes may encode the same candidate, so genotypes are drawn until enough candidates
    are found.

    Args:
        space: Space to draw from.
        most: Number of candidates to return; fewer if the space has fewer.
        stream: Random stream of the draw.
    """
    count = most
    while True:
        genotypes = draw_distinct_genotypes(space, count, stream)
        found = tuple(dict.fromkeys(space.candidate(each) for each in genotypes))
        if len(found) >= most or count >= min(space.count(), MAX_GENOTYPES):
            return found[:most]
        count = min(2 * count, space.count(), MAX_GENOTYPES)
