"""Two workflows beside each other: the model chosen without privacy, and the one chosen with it.

    standard workflow, STW        candidates trained without privacy  ->  the best one of those
    privacy-aware workflow, PAW   the same candidates, trained with privacy  ->  the best of those
    both winners                  trained anew, several times, with privacy and without  ->  test

All candidates have the same training records and are scored exactly on the same validation records;
of equal ones the one with the fewest parameters is taken. Test records are read when both workflows
have chosen, and never before. "Without privacy" is the same recipe without noise, at the learning
rate that goes with it; the gradients are bounded all the same. All records are declared public:
nothing here is charged.

    gap = by how much the PAW model is better than the STW model          PR = their parameters, STW
    (accuracy: PAW - STW; an error: STW - PAW)                                 divided by PAW

Source: Bao et al., section V-A (both workflows), section VIII-A (STW is the same search, trained
without privacy), Table I (gap and PR).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.cautions import LEAST_SIGNAL
from pasearch.crossover.curves import band
from pasearch.crossover.models import Model
from pasearch.crossover.trainings import FEW, Kept, Point, Study, Told, measured
from pasearch.search.ahead import distinct
from pasearch.shown import shown
from pasearch.training.metrics import Metric, of_noun

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.runs.executors import Executor
    from pasearch.runs.keys import Stream
    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.space import Space

LISTED = 4096
"""How many genotypes are looked at, at most, to find candidates that differ."""

PRIVATE, PLAIN = 0, 1
"""Places of a study of one epsilon: with privacy, and without."""

COUNTS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip
PARTS = {
    2: "half", 3: "a third", 4: "a quarter", 5: "a fifth", 6: "a sixth", 7: "a seventh",
    8: "an eighth", 9: "a ninth", 10: "a tenth",
}  # fmt: skip


def candidates_of(space: Space, most: int, stream: Stream) -> tuple[Candidate, ...]:
    """Return different candidates of a space, its default first: all, or as many as are wanted.

    Two genotypes may mean one candidate: candidates are counted, not genotypes.

    Args:
        space: What they are drawn from.
        most: How many, at most; a space with fewer gives all of its own.
        stream: Of the draw.
    """
    count = most
    while True:
        genotypes = distinct(space, count, stream)
        found = tuple(dict.fromkeys(space.candidate(each) for each in genotypes))
        if len(found) >= most or count >= min(space.count(), LISTED):
            return found[:most]
        count = min(2 * count, space.count(), LISTED)


def models_to_compare(candidates: tuple[Candidate, ...], schema: AnySchema) -> list[Model]:
    """Return candidates as models, the one with the fewest trained parameters first.

    Args:
        candidates: All different.
        schema: Complete.
    """
    made = (Model(name=each.describe(), candidate=each).sized(schema) for each in candidates)
    return sorted(made, key=lambda model: model.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What trainings of both workflows came to, as shares of error in [0, 1].

    Args:
        choice: Of each candidate on the validation records, (candidates, 2): with privacy, without.
        standard: Place of the candidate that the standard workflow chose.
        aware: Place of the candidate that the privacy-aware workflow chose.
        tests: Of both on the test records, by their place, (2, repeats) each: with, without.
    """

    choice: np.ndarray
    standard: int
    aware: int
    tests: dict[int, np.ndarray]


def chosen_and_tested(
    study: Study,
    test: np.ndarray,
    *,
    repeats: int,
    executor: Executor,
    few: int = FEW,
    told: Told | None = None,
) -> Found:
    """Let both workflows choose, then test what they chose.

    Guarantee: no test record has a part in a choice; the result does not depend on who trains.

    Args:
        study: Of one epsilon, its places fixed: training and validation records.
        test: Places of the test records.
        repeats: How often both winners are trained with privacy, and as often without.
        executor: Who trains; open.
        few: For so few trainings it does not pay to begin processes.
        told: Called with (trainings finished, all trainings).

    Cost: none: only records that were declared public are read.
    """
    assert study.places is not None
    models, how = range(len(study.models)), {"executor": executor, "few": few}
    points: list[Point] = [(model, place, 0) for model in models for place in (PRIVATE, PLAIN)]
    made, expected = len(points), 4 * repeats
    nothing = Kept(None, {})
    every = measured(study, points, nothing, told=_later(told, 0, made + expected), **how)
    choice = np.array([[every[model, place, 0] for place in (PRIVATE, PLAIN)] for model in models])
    aware, standard = (int(choice[:, place].argmin()) for place in (PRIVATE, PLAIN))
    winners = sorted({standard, aware})
    tested = replace(study, places=(study.places[0], test))
    # Repeat 0 was the choice's: the trainings that are tested have draws of their own.
    points = [
        (model, place, repeat)
        for model in winners for place in (PRIVATE, PLAIN) for repeat in range(1, repeats + 1)
    ]  # fmt: skip
    every = measured(tested, points, nothing, told=_later(told, made, made + len(points)), **how)
    tests = {
        model: np.array(
            [[every[model, place, r] for r in range(1, repeats + 1)] for place in (PRIVATE, PLAIN)]
        )
        for model in winners
    }
    return Found(choice=choice, standard=standard, aware=aware, tests=tests)


def _later(told: Told | None, before: int, every: int) -> Told | None:
    """Return what is told of one part of the trainings, as of all of them."""
    return None if told is None else lambda done, _: told(before + done, every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate as both workflows saw it.

    Args:
        name: Its layers, front end and settings.
        parameters: How many are trained.
        private: Its score on the validation records, trained with privacy, in the metric's unit.
        plain: Likewise, trained without.
    """

    name: str
    parameters: int
    private: float
    plain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A row of Table I: what one workflow chose, and how good that is.

    Args:
        name: "STW" or "PAW".
        candidate: What it chose.
        parameters: How many are trained.
        private: Test scores of its trainings with privacy, in the metric's unit.
        plain: Test scores of its trainings without.
    """

    name: str
    candidate: Candidate
    parameters: int
    private: tuple[float, ...]
    plain: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "workflow": self.name, "model": self.candidate.describe(),
            "candidate": self.candidate.to_json(), "parameters": self.parameters,
            "with_privacy": _json(self.private), "without_privacy": _json(self.plain),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The standard and the privacy-aware workflow on the same public data, at one epsilon.

    Args:
        data: What they were compared on.
        train: How many records every candidate and both winners were trained on.
        validation: How many both workflows chose by.
        test: How many both winners were tested on.
        epsilon: Of every training with privacy.
        delta: Likewise.
        signal: Signal-to-noise of such a training, per output of a network: one a class, or one
            for a number. Below 5 a model guesses.
        metric: What a score is, in words: accuracy, mean absolute error ...
        space: What the candidates were drawn from.
        tried: The candidates, the one with the fewest trained parameters first.
        standard: What the standard workflow chose.
        aware: What the privacy-aware workflow chose.

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
    tried: tuple[Tried, ...]
    standard: Workflow
    aware: Workflow

    @property
    def repeats(self) -> int:
        """How often both winners were trained with privacy, and as often without."""
        return len(self.aware.private)

    @property
    def same(self) -> bool:
        """Whether both workflows chose the same model."""
        return self.standard.candidate == self.aware.candidate

    @property
    def ratio(self) -> float:
        """PR: trained parameters of the STW model, divided by those of the PAW model."""
        return self.standard.parameters / max(1, self.aware.parameters)

    def gap(self, private: bool = True) -> tuple[float, float]:
        """Return by how much the PAW model is better on the test records, in the metric's unit.

        Args:
            private: Trained with privacy, or without.

        Returns:
            The mean over repeats, and half the width of its 95 % interval (Student's t; 0 of one
            repeat). Below 0 the STW model is better.
        """
        both = (self.aware, self.standard)
        aware, standard = (np.array(each.private if private else each.plain) for each in both)
        better = 1.0 if more_is_better(of_noun(self.metric)) else -1.0
        mean, half = band(better * (aware - standard))
        return float(mean), float(half)

    def sentence(self) -> str:
        """Return what the comparison says, in a sentence."""
        aware = _mean(self.aware.private)
        if self.same:
            return (
                f"Both workflows chose the same model, {self.aware.candidate.describe()}: at "
                f"epsilon {self.epsilon:g} its {self.metric} is {aware}."
            )
        gap, half = self.gap()
        few = _count(self.repeats, "training")
        size = f"has {share_in_words(self.ratio)}"
        if self.repeats < 2 or not abs(gap) > half:
            lead = (
                f"the difference, {abs(gap):.4f}, is within the noise of {few} of each"
                if self.repeats > 1
                else f"the difference is {abs(gap):.4f}, and one training of each cannot tell it "
                "from noise (take more repeats)"
            )
            return f"With privacy {lead}; the model chosen with privacy in mind {size}."
        chosen, against = ("with", "without") if gap > 0 else ("without", "with")
        means = (aware, _mean(self.standard.private))
        first, second = means if gap > 0 else means[::-1]
        said = (
            f"With privacy the model chosen {chosen} privacy in mind is {abs(gap):.4f} better "
            f"({self.metric} {first} against {second})"
        )
        if gap > 0:
            return f"{said}, and {size}."
        return f"{said}; the one chosen {against} privacy in mind {size}."

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
            "parameter_ratio": round(self.ratio, 4), "same_model": self.same,
            "sentence": self.sentence(),
        }  # fmt: skip

    def table(self) -> str:
        """Return a row of Table I for each workflow, what they chose, and the sentence, as text."""
        heads = ("workflow", "parameters", f"{self.metric} with privacy", "without privacy")
        rows = [
            (f"{word} ({each.name})", f"{each.parameters:,}", _pair(each.private),
             _pair(each.plain))
            for word, each in (("standard", self.standard), ("privacy-aware", self.aware))
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        gaps = [self.gap(private) for private in (True, False)]
        said = [
            f"{mean:+.4f}" + (f" +- {half:.4f}" if self.repeats > 1 else "") for mean, half in gaps
        ]
        lines = [
            f"{self.data}: {self.train:,} records to train on, {self.validation:,} to choose by, "
            f"{self.test:,} to test on; all declared public, so nothing is charged.",
            f"Every training with privacy is at epsilon {self.epsilon:g}, delta {self.delta:g}: "
            f"signal-to-noise {self.signal:.3g} per output (below {LEAST_SIGNAL:g} a model "
            "guesses).",
            "",
            *(
                "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
                for row in (heads, *rows)
            ),
            "",
            "Gap: none, both chose the same model."
            if self.same
            else f"Gap, how much better the PAW model is: {said[0]} with privacy, {said[1]} "
            "without.",
            f"PR: {self.ratio:.2f} (parameters of STW / PAW). Epsilon: {self.epsilon:g}.",
            f"STW chose {self.standard.candidate.describe()}.",
            f"PAW chose {self.aware.candidate.describe()}.",
            f"Both chose among {len(self.tried):,} candidates of {self.space}; {self._tests()}.",
            self.sentence(),
        ]
        return "\n".join(map(shown, lines))

    def _tests(self) -> str:
        times = _count(self.repeats, "training")
        wide = ", with 95 % intervals over them on these test records" if self.repeats > 1 else ""
        return f"tests are of {times} each{wide}"


def comparison(study: Study, found: Found, metric: Metric, test: int, **told: Any) -> Comparison:
    """Return what was found, in the metric's own unit.

    Args:
        study: Of the trainings.
        found: Of it.
        metric: Of its errors.
        test: How many test records there are.
        told: The other fields of a `Comparison`.
    """
    assert study.places is not None

    def scores(errors: np.ndarray) -> tuple[float, ...]:
        return tuple(float(metric.shown(1.0 - each)) for each in errors)

    def workflow(name: str, place: int) -> Workflow:
        model, (private, plain) = study.models[place], found.tests[place]
        return Workflow(
            name=name, candidate=model.candidate, parameters=model.parameters,
            private=scores(private), plain=scores(plain),
        )  # fmt: skip

    tried = [
        (model, *scores(errors)) for model, errors in zip(study.models, found.choice, strict=True)
    ]
    return Comparison(
        data=study.dataset.name, train=len(study.places[0]), validation=len(study.places[1]),
        test=test, metric=metric.noun,
        tried=tuple(
            Tried(name=model.name, parameters=model.parameters, private=private, plain=plain)
            for model, private, plain in tried
        ),
        standard=workflow("STW", found.standard), aware=workflow("PAW", found.aware), **told,
    )  # fmt: skip


def more_is_better(metric: Metric) -> bool:
    """Return whether a larger number of what the metric shows is better: not so of an error."""
    return metric.shown(1.0) > metric.shown(0.0)


def share_in_words(ratio: float) -> str:
    """Return which share of another model's parameters a model has, in words.

    Args:
        ratio: The other's parameters, divided by its own: above 0.

    >>> share_in_words(7.0), share_in_words(32.1)
    ('a seventh of the parameters', '1/32 of the parameters')
    >>> share_in_words(1.25), share_in_words(0.5)
    ('80 % of the parameters', '2 times the parameters')
    """
    if ratio == 1.0:
        return "as many parameters"
    if ratio < 1.0:
        return f"{1.0 / ratio:.3g} times the parameters"
    whole = round(ratio)
    if whole == 1 or abs(ratio - whole) > 0.1 * whole:
        return f"{100.0 / ratio:.0f} % of the parameters"
    about = "about " if abs(ratio - whole) > 0.02 * whole else ""
    return f"{about}{PARTS.get(whole, f'1/{whole}')} of the parameters"


def _count(number: int, noun: str) -> str:
    word = COUNTS[number] if number < len(COUNTS) else f"{number:,}"
    return f"{word} {noun}{'s' if number > 1 else ''}"


def _mean(scores: tuple[float, ...]) -> str:
    return f"{np.mean(scores):.4f}"


def _pair(scores: tuple[float, ...]) -> str:
    mean, half = band(np.array(scores))
    return f"{mean:.4f}" + (f" +- {half:.4f}" if len(scores) > 1 else "")


def _json(scores: tuple[float, ...]) -> dict[str, Any]:
    mean, half = band(np.array(scores))
    return {
        "mean": round(float(mean), 5), "half_width": round(float(half), 5),
        "every": [round(each, 5) for each in scores],
    }  # fmt: skip
