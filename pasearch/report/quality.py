"""How good the released model is: its test score with its interval, and the baselines.

    interval  =  value -+ 1.96 standard errors, of the sample and of the noise together

The baselines are a random answer, the majority class or the median of the target; the last two are
post-processing of the released table of counts. The verdict compares with the best of them. The
lead over the majority class, or over the median, has a smaller error than either score, because
both are of the same records. If the test released one number, the page says that the baseline is
not available.

Source: docs/result.md, `score`; `training.metrics.error_of`; `training.from_cells.lead`,
`training.from_cells.error_measures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from markupsafe import Markup

from pasearch.data.tables import AnySchema
from pasearch.report import classes, figures
from pasearch.report.classes import DEVIATIONS
from pasearch.report.networks import capital, number
from pasearch.training.from_cells import ERROR, error_measures, interval, lead, table_of

Values = dict[str, Any]

GUESSED = ("accuracy", "balanced accuracy", "area under the ROC curve")
"""Metrics of which guessing has a known value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """An answer without a model, that a score is compared with.

    Args:
        words: What it does, after "better than".
        at: What it reaches.
        margin: By how much the model is better; worse where it is below 0.
        error: The standard error of that.
        among: Of how many answers it is the best, by the same counts.
    """

    words: str
    at: float
    margin: float
    error: float
    among: int = 1

    @property
    def beaten(self) -> bool:
        """Whether the model is told apart from it, as the better one."""
        return self.margin - DEVIATIONS * self.error > 0

    @property
    def wins(self) -> bool:
        """Whether the model is told apart from it, as the worse one.

        The best of several is the best partly by chance, so it must be ahead by more.
        """
        often = (1 - NormalDist().cdf(DEVIATIONS)) / self.among
        return self.margin + NormalDist().inv_cdf(1 - often) * self.error < 0


def ends(score: Values) -> tuple[float, float]:
    """Return between what the score of all records lies, 95 times in 100."""
    from pasearch.training.metrics import error_of, of_noun

    error, value = error_of(score), score["test"]
    if score["metric"] in GUESSED:
        return interval(value, error, DEVIATIONS)
    low, most = value - DEVIATIONS * error, of_noun(score["metric"]).worst
    return max(0.0, low), min(most, value + DEVIATIONS * error)


def is_drowned(score: Values) -> bool:
    """Whether a released score says nothing: its noise is larger than what it could tell."""
    from pasearch.training.metrics import error_of, of_noun

    metric, (low, high) = of_noun(score["metric"]), ends(score)
    return high - low > metric.worst / 2 or (metric.of_numbers and error_of(score) > score["test"])


def quality(document: Values, schema: AnySchema) -> Values:
    """Return what the template writes of the test score."""
    from pasearch.training.metrics import error_of, of_noun

    score = document["score"]
    metric, error, (low, high) = of_noun(score["metric"]), error_of(score), ends(score)
    scale, value = (1.0 if metric.worst > 1.0 else 100.0), score["test"]
    digits, unit = (3, "") if scale == 1.0 else (1, " %")

    def said(share: float) -> str:
        return f"{scale * share:.{digits}f}{unit}"

    drowned = is_drowned(score)
    guess, told = _guess(score["metric"], schema), classes.measured(document, schema)
    always, rival = _always(document, told), _rival(document, schema, told, error)
    sorts = "" if drowned or rival is None or rival.beaten else _sorts(score["metric"], told)
    rows: list[tuple[str, float, tuple[float, float] | None]] = [("This model", value, (low, high))]
    if guess is not None:
        rows.append((f"Random baseline ({schema.outputs} classes)", guess, None))
    rows += [each for each in (always, _median(document)) if each is not None]
    most = metric.worst
    if score["metric"] not in GUESSED:
        most = _round_up(max(high, *(at for _, at, _ in rows)))
    noise = score["noise"]["standard_deviation"]
    verdict = _verdict(document, schema, drowned, rival, said)
    untold, unread = _untold(document, schema), [] if drowned else _unread(document, told)
    return {
        "name": f"Test {score['metric']}",
        "value": "unknown" if drowned else f"{scale * value:.{digits}f}",
        "unit": "" if drowned else unit.strip(),
        "interval": f"the noise alone has a standard deviation of {said(noise)}"
        if drowned
        else f"95 % CI {said(low).removesuffix(unit)}\N{EN DASH}{said(high)}",
        "baseline": "" if len(rows) < 2 else f"{rows[-1][0]}: {said(rows[-1][1])}",
        "verdict": f"{verdict} {sorts}".strip(),
        "is_known": not drowned and bool(rival is None or rival.beaten or sorts),
        "rows": _drawn(rows, most, said, drowned),
        "untold": untold,
        "unread": unread,
        "scale": figures.scale([f"{scale * most * share:.3g}{unit}" for share in (0, 0.5, 1)]),
        "details": [
            f"On {score['of']:,} test records that the training did not see, with noise. "
            f"Standard error {said(error)}, of which noise {said(noise)}.",
            *_explained(document),
            *unread,
            *([] if drowned else _weakest(told)),
            *untold,
            *(
                [f"Exactly {said(score['exact'])}, shown because the data were declared public."]
                if "exact" in score and document["dataset"]["declared_public"]
                else []
            ),
        ],
    }  # fmt: skip


def _drawn(
    rows: list[tuple[str, float, tuple[float, float] | None]], most: float,
    said: Callable[[float], str], drowned: bool,
) -> list[Values]:  # fmt: skip
    """Return rows with their pictures; the first is the model's own, which noise may drown."""
    return [
        {
            "name": each[0],
            "value": "unknown" if drowned and place == 0 else said(each[1]),
            "bar": ""
            if drowned and place == 0
            else _bar(*each, most, said, "plain" if place else "accent"),
        }
        for place, each in enumerate(rows)
    ]


def _bar(
    name: str, at: float, ends: tuple[float, float] | None, most: float,
    said: Callable[[float], str], tone: str,
) -> Markup:  # fmt: skip
    """Return the picture of a value, of `most` at the end of its line."""
    between = "" if ends is None else f", between {said(ends[0])} and {said(ends[1])}"
    drawn = None if ends is None else (ends[0] / most, ends[1] / most)
    return figures.interval(at / most, drawn, f"{name}: {said(at)}{between}", tone=tone)


def _verdict(
    document: Values, schema: AnySchema, drowned: bool, rival: Rival | None,
    said: Callable[[float], str],
) -> str:  # fmt: skip
    """Return in one sentence whether the score says that the model is good."""
    score = document["score"]
    if drowned:
        return (
            "The noise is too large: this test says nothing about the model. A larger epsilon, or "
            "more test records, would."
        )
    unit = _own_unit(document, schema, score["test"])
    if rival is None:
        return f"{unit}Smaller is better."
    if rival.beaten and _untold(document, schema):
        return f"Random baseline {said(rival.at)}."  # the majority class may reach more
    if score["metric"] not in GUESSED:
        how = "smaller" if rival.beaten else "larger" if rival.wins else "not told apart"
        than = "from that" if how == "not told apart" else "than that"
        return f"{unit}The error is {how} {than} of {rival.words}, {said(rival.at)}."
    how = "Better than" if rival.beaten else "Worse than" if rival.wins else "Not told apart from"
    return f"{how} {rival.words}, which reaches {said(rival.at)}."


def _rival(document: Values, schema: AnySchema, told: Values, error: float) -> Rival | None:
    """Return the best answer without a model; None where nothing is known of any.

    Args:
        document: `result.json`.
        schema: That it describes.
        told: As of `classes.measured`.
        error: The score's standard error.
    """
    score, metric = document["score"], document["score"]["metric"]
    if (numbers := _errors(document)) and numbers["median"]["value"] is not None:
        return Rival(
            words=_median_words(document), at=numbers["median"]["value"],
            margin=numbers["lead"]["value"], error=numbers["lead"]["error"],
        )  # fmt: skip
    guess = _guess(metric, schema)
    if guess is None:
        return None
    if _always(document, told) is None or told["most_common"]["value"] <= guess:
        margin = score["test"] - guess
        return Rival(words="the random baseline", at=guess, margin=margin, error=error)
    most, table = told["most_common"], table_of(score)
    assert table is not None
    above = lead(table)
    return Rival(
        words=f"always answering {classes.named(told['classes'][most['class']])}",
        at=most["value"], margin=above["value"], error=above["error"], among=len(told["classes"]),
    )  # fmt: skip


def _always(document: Values, told: Values) -> tuple[str, float, tuple[float, float]] | None:
    """Return what always answering the most common class reaches, with its name and interval.

    None where no table tells it, where noise may have made that class the most common, or where the
    score is not the share of right answers: by the others any one answer is as good as a guess.
    """
    if not told or document["score"]["metric"] != "accuracy":
        return None
    most = told["most_common"]
    if told["recall"][most["class"]]["value"] is None:
        return None
    name = classes.named(told["classes"][most["class"]])
    return f"Majority class ({name})", most["value"], classes.ends_of(most)


def _errors(document: Values) -> Values:
    """Return what a table of errors contains, as `error_measures`; empty without one."""
    table = table_of(document["score"])
    return error_measures(table) if table is not None and table.columns == ERROR else {}


def _median(document: Values) -> tuple[str, float, tuple[float, float]] | None:
    """Return the error of always answering the median, with its name and interval."""
    told = _errors(document).get("median")
    if told is None or told["value"] is None:
        return None
    reach = DEVIATIONS * told["error"]
    ends = max(0.0, told["value"] - reach), min(1.0, told["value"] + reach)
    words = _median_words(document)
    return words[0].upper() + words[1:], told["value"], ends


def _median_words(document: Values) -> str:
    """Return the median baseline in words, with the median in the target's own unit."""
    target, width = target_bounds(document), target_width(document)
    if target is None or width is None:
        return "always answering the median"
    median = target[0] + width * _errors(document)["median"]["at"]
    return f"always answering the median, {number(median)}"


def _explained(document: Values) -> list[str]:
    """Return R2 in a sentence, if the test released a table of errors."""
    told = _errors(document).get("r2")
    if told is None or told["value"] is None:
        return []
    return [
        f"R\N{SUPERSCRIPT TWO} {told['value']:.2f} \N{PLUS-MINUS SIGN} {told['error']:.2f} (1: no "
        "error; 0: as always answering the mean)."
    ]


def _sorts(metric: str, told: Values) -> str:
    """Return that a model which is no better than one answer tells classes apart all the same."""
    if not told or metric != "accuracy":
        return ""
    auc, balanced = told["auc"], told["balanced_accuracy"]
    if auc and auc["value"] is not None and classes.ends_of(auc)[0] > 0.5:
        return (
            "Its probabilities do tell the classes apart: of two records, one of each class, it "
            f"gives the right one the higher probability {100 * auc['value']:.0f} times in 100; a "
            "guess does so 50 times."
        )
    known = sum(each["value"] is not None for each in told["recall"])
    if balanced["value"] is None or not classes.ends_of(balanced)[0] > 1 / known:
        return ""
    return (
        f"It does tell the classes apart: of a class it finds {100 * balanced['value']:.1f} % on "
        f"average, and any one answer {100 / known:.1f} %."
    )


def _unread(document: Values, told: Values) -> list[str]:
    """Return that many test records have no known class, where the table shows it."""
    table = table_of(document["score"])
    if not told or table is None:
        return []
    known = float(table.totals.sum()) / table.of
    error = math.sqrt(table.counts.size) * table.noise / table.of
    if known + DEVIATIONS * error > MOSTLY_KNOWN:
        return []
    return [
        f"Only about {100 * max(0.0, known):.0f} of 100 test records have a known class. The "
        f"others could not be read, or have another class, and count as errors: {_remedy(document)}"
    ]


def _remedy(document: Values) -> str:
    """Return what to do if many records have no known class."""
    schema = document["dataset"]["schema"]
    if schema.get("kind") != "arrays":
        return "`pasearch check` lists them."
    if schema.get("labels") is not None:
        return "in a new run, list every label that y has (`labels=`)."
    return (
        f"this run took the labels as 0 to {schema['classes'] - 1}. If y has others, list them all "
        "in a new run (`labels=1,2`)."
    )


MOSTLY_KNOWN = 0.9
"""The share of test records with a known class, below which something is wrong with the file."""


def _weakest(told: Values) -> list[str]:
    """Return which class the model finds least, and how often, where that is known of all."""
    recalls = [each["value"] for each in told["recall"]] if told else []
    if not recalls or None in recalls:
        return []
    least = min(range(len(recalls)), key=lambda place: recalls[place])
    return [
        f"Of the classes it finds {classes.named(told['classes'][least])} least: "
        f"{100 * recalls[least]:.0f} of 100 such records."
    ]


def _untold(document: Values, schema: AnySchema) -> list[str]:
    """Return that the baseline is not available, and why; nothing if it is."""
    from pasearch.training.metrics import MOST_CLASSES

    score = document["score"]
    if schema.regression:
        if _median(document) is not None:
            return []
        return [
            "Median baseline not available at this epsilon; its error may be as small as the "
            "model's."
        ]
    if score["metric"] in ("log loss", "Brier score"):
        return [
            "Base-rate baseline not available: this test releases one number; it may be as good as "
            "the model."
        ]
    if score["metric"] != "accuracy" or _always(document, classes.measured(document, schema)):
        return []
    why = "at this epsilon"
    if schema.outputs > MOST_CLASSES:
        why = f"for more than {MOST_CLASSES} classes"
    return [
        f"Majority-class baseline not available {why}; it may be as high as the model's accuracy."
    ]


def _guess(noun: str, schema: AnySchema) -> float | None:
    """Return the score of a random answer; None if it is not known."""
    if noun not in GUESSED:
        return None
    return 0.5 if noun == GUESSED[-1] else 1.0 / schema.outputs


def _own_unit(document: Values, schema: AnySchema, value: float) -> str:
    """Say what an error is in the target's own unit, where it is a share of its range."""
    width = target_width(document)
    if width is None or "error" not in document["score"]["metric"]:
        return ""
    name = getattr(getattr(schema, "target", None), "name", None)
    unit = "the target" if name is None else classes.named(name)
    return f"That is {number(width * value)} in the unit of {unit}. "


def target_bounds(document: Values) -> tuple[float, float] | None:
    """Return the bounds of a numeric target in its own unit, or None."""
    target = document["dataset"]["schema"].get("target")
    if isinstance(target, dict):
        target = (target.get("low"), target.get("high"))
    low, high = target or (None, None)
    return None if low is None or high is None else (low, high)


def target_width(document: Values) -> float | None:
    """Return the width of the bounds of a numeric target in its own unit, or None."""
    bounds = target_bounds(document)
    return None if bounds is None else bounds[1] - bounds[0]


def _round_up(value: float) -> float:
    """Return the next of .01, .02, .05, .1 ... for the end of a scale."""
    step = 0.001
    while True:
        for times in (1, 2, 5):
            if value <= times * step:
                return times * step
        step *= 10


def heading(document: Values) -> str:
    """Return what was done, as the page's eyebrow."""
    searched = document["selection"]["rule"] != "none"
    if document["task"] == "architecture search" and not searched:
        return "Training of one network"
    return capital(document["task"])
