"""More about the test: what its table of noisy counts tells, class by class, in plain words.

    recall     =  of the records of a class, how many the model finds
    precision  =  of the records that it puts in a class, how many belong to it

All of it follows from counts that were released and paid for. A test that released one number has
no such part.

Source: `training.from_cells`; docs/result.md, `score`.
"""

from __future__ import annotations

import math
from typing import Any

from pasearch.data.tables import AnySchema
from pasearch.planning import TEST
from pasearch.report import figures
from pasearch.report.networks import capital, some
from pasearch.shown import shown
from pasearch.training.from_cells import ANSWER, ERROR, ODDS, RIGHT, Measure, interval, measures_of

Values = dict[str, Any]

DEVIATIONS = 1.96
"""Standard errors to either side that hold the true value 95 times in 100."""

FAR = 3.0
"""Standard errors that a group of a calibration is off, to be called off: there are up to 20."""

MOST_CLASSES = 12
"""The most classes of which all are listed, and whose answers are shown class by class."""

PERCENT = "\u00a0%"
"""The sign behind a number, on the same line."""

COARSE = 0.0995
"""From this standard error on a share has no digits behind the point."""

WORST = 10
"""How many classes are listed where there are more: those that the model finds least often."""

LONGEST = 28
"""The most characters of a class's name in a sentence or a table."""

KINDS = {
    ODDS: "of the true class and how sure the model is",
    ANSWER: "of the true class and the class that the model answers",
    RIGHT: "of the true class and whether the answer is right",
    ERROR: "of the target's value and the size of the error",
}
"""What the counts of a table are by."""


def release_name(name: str, noun: str) -> str:
    """Return the name of a release for a reader: that of the test names the run's metric."""
    return f"test {noun}" if name == TEST else name


def counts_words(document: Values, name: str, noise: str) -> str:
    """Return what a release is: of a test with a table, many counts at the price of one.

    Args:
        document: `result.json`; a selector's fit has no score.
        name: Of the release.
        noise: Of one count, in words.
    """
    score = document.get("score") or {}
    if name != TEST or not score.get("cells"):
        return noise
    cells = sum(map(len, score["cells"]))
    return (
        f"a table of {cells:,} noisy counts, {KINDS[score['columns']]}. A record is in one of "
        f"them at most, so the table costs what one count does. Each is {noise}"
    )


def measured(document: Values, schema: AnySchema) -> Values:
    """Return the measures of a table of classes, as `measures_of`; empty if it lacks a class."""
    told = measures_of(document["score"], schema)
    return told if len(told.get("classes", ())) == schema.outputs and not schema.regression else {}


def named(name: object) -> str:
    """Return a class's name between quotation marks, in one short line."""
    return f"'{short(name)}'"


def short(name: object) -> str:
    """Return a class's name in one short line, of which nothing acts on what is around it."""
    return shown(figures.shortened(" ".join(str(name).split()), LONGEST))


def ends_of(told: Measure) -> tuple[float, float]:
    """Return between which shares a measure lies 95 times in 100."""
    return interval(told["value"], told["error"], DEVIATIONS)


def more(document: Values, schema: AnySchema) -> Values | None:
    """Return what the template writes of a test's table; None where there is none."""
    told = measured(document, schema)
    if not told:
        return None
    rows, unknown = _overall(document["score"]["metric"], told)
    few = len(told["classes"]) <= MOST_CLASSES
    return {
        "summary": ", ".join(f"{each['name']} {each['value']}" for each in rows),
        "rows": rows,
        "scale": figures.scale(["0 %", "50 %", "100 %"]),
        "unknown": [*unknown, *_unsure(told)],
        "classes": _classes(told),
        "confusion": _confusion(told) if few else None,
        "calibration": _calibration(told),
    }


def distrust(document: Values, schema: AnySchema) -> str:
    """Return in a sentence which probabilities the test found to be wrong; nothing of others."""
    told = measured(document, schema)
    found = _calibration(told) if told else None
    return found["words"] if found is not None and found["is_poor"] else ""


def one_line(document: Values, schema: AnySchema) -> str:
    """Return the measures of all classes together, each with its standard error; "" of none."""
    told = measured(document, schema)
    if not told:
        return ""
    rows, _ = _overall(document["score"]["metric"], told)
    most = told["most_common"]
    name = named(told["classes"][most["class"]])
    always = f"accuracy of always answering {name} {_percent(most['value'])}"
    return "; ".join([*(f"{each['name']} {each['with_error']}" for each in rows), always])


def _overall(metric: str, told: Values) -> tuple[list[Values], list[str]]:
    """Return the measures of all classes together but the headline, and why some are unknown."""
    second, mean = named(told["classes"][-1]), told["balanced_accuracy"]
    constant = 100 / max(1, sum(each["value"] is not None for each in told["recall"]))
    over = f", {mean['reason']}" if mean["reason"] else ""
    most = told["most_common"]
    always = f"always answering {named(told['classes'][most['class']])}"
    known = [
        (
            "accuracy",
            "accuracy",
            "accuracy",
            f"of all records, how many are answered rightly. Of {always} it is "
            f"{_percent(most['value'])}",
        ),
        (
            "auc",
            "area under the ROC curve",
            "AUC",
            f"of two records, one of each class, how often that of {second} is given the higher "
            f"probability of {second}. A guess reaches 0.5",
        ),
        (
            "balanced_accuracy",
            "balanced accuracy",
            "balanced accuracy",
            f"the mean of the recalls below{over}. Any one answer for all records reaches "
            f"{constant:.1f}{PERCENT}",
        ),
    ]
    rows, unknown = [], []
    for key, noun, name, words in known:
        each = told[key]
        if noun == metric or each is None:
            continue
        if each["value"] is None:
            unknown.append(f"{capital(name)} is unknown: {each['reason']}.")
            continue
        say = _point if key == "auc" else _percent
        low, high = ends_of(each)
        between = f"between {say(low)} and {say(high)}"
        value, title = say(each["value"]), capital(name)
        rows.append({
            "key": key, "name": name, "value": value,
            "with_error": f"{value} \u00b1 {say(each['error']).removesuffix(PERCENT)}",
            "words": f"{title}: {words}. 95 times in 100 it lies {between}.",
            "bar": figures.interval(
                each["value"], (low, high), f"{title}: {value}, {between}", tone="accent"
            ),
        })  # fmt: skip
    return rows, unknown


def _classes(told: Values) -> Values:
    """Return recall and precision class by class; of many classes those that are found least."""
    recalls, precisions = told["recall"], told["precision"]
    places = list(range(len(recalls)))
    known = [place for place in places if recalls[place]["value"] is not None]
    listed = places
    if len(places) > MOST_CLASSES:
        listed = sorted(known, key=lambda place: recalls[place]["value"])[:WORST]
    rows = [
        {
            "name": short(told["classes"][place]),
            "share": _percent(told["shares"][place]["value"]),
            "recall": _measure(recalls[place], "of this class are found"),
            "precision": None
            if precisions is None
            else _measure(precisions[place], "of these answers are right"),
        }
        for place in listed
    ]
    unknown = [
        f"{what} of {some(gone)} is unknown: {reason}."
        for what, given in (("Recall", recalls), ("Precision", precisions or []))
        for reason, gone in _reasons(told["classes"], given)
    ]
    if precisions is None:
        unknown.append(f"Precision is unknown: {told['reasons']['precision']}.")
    return {
        "rows": rows,
        "worst": len(rows) if len(places) > MOST_CLASSES else 0,
        "of": len(places),
        "has_precision": precisions is not None,
        "unknown": unknown,
    }


def _measure(told: Measure, what: str) -> Values:
    """Return a share of a class with its standard error, and its picture."""
    if told["value"] is None:
        return {"value": "unknown", "bar": ""}
    low, high = ends_of(told)
    label = f"{_percent(told['value'])} {what}, between {_percent(low)} and {_percent(high)}"
    digits = 1 if told["error"] < COARSE else 0
    value, error = (f"{100 * told[each]:.{digits}f}" for each in ("value", "error"))
    return {
        "value": f"{value}{PERCENT} \u00b1 {error}",
        "bar": figures.interval(told["value"], (low, high), label),
    }


def _reasons(names: list[Any], given: list[Measure]) -> list[tuple[str, list[str]]]:
    """Return why measures are unknown, each reason with the classes of which it holds."""
    found: dict[str, list[str]] = {}
    for name, each in zip(names, given, strict=False):
        if each["value"] is None:
            found.setdefault(str(each["reason"]), []).append(named(name))
    return [*found.items()]


def _confusion(told: Values) -> Values | None:
    """Return the table of answers; a count that noise alone may have made is marked."""
    counts, error = told["confusion"], told["confusion_error"]
    if counts is None:
        return None
    names = [short(each) for each in told["classes"]]
    return {
        "columns": names,
        "rows": [
            {
                "name": name,
                "cells": [
                    {
                        "count": f"{count:,}",
                        "kind": "hit" if place == other else "",
                        "soft": count < 2 * error,
                    }
                    for other, count in enumerate(row)
                ],
            }
            for place, (name, row) in enumerate(zip(names, counts, strict=True))
        ],
        "error": f"{error:.2g}",
        "small": f"{2 * error:.2g}",
    }


def _calibration(told: Values) -> Values | None:
    """Return the picture of probabilities beside what came true, where there are groups of both."""
    groups, second = told["calibration"], named(told["classes"][-1])
    if not groups:
        return None
    points = [
        (each["predicted"], each["share"], *ends_of({**each, "value": each["share"]}))
        for each in groups
    ]
    said = "; ".join(
        f"given {100 * at:.0f} per cent, {100 * share:.0f} came true, between {100 * low:.0f} and "
        f"{100 * high:.0f}"
        for at, share, low, high in points
    )
    off, worst = _furthest(groups)
    return {
        "chart": figures.calibration(points, f"Probabilities of {second}: {said}."),
        "words": _trusted(off, worst, second),
        "is_poor": off > FAR,
        "class": second,
    }


def _unsure(told: Values) -> list[str]:
    """Return why nothing is told of probabilities, where two classes would have some."""
    if len(told["classes"]) != 2 or told["calibration"]:
        return []
    if told["auc"] is not None:
        return ["How far to trust the probabilities is unknown: the test has too few records."]
    return [
        f"AUC, and how far to trust the probabilities, are unknown: {told['reasons']['auc']}. More "
        "test records, or a larger epsilon, would allow a table that tells it."
    ]


def _furthest(groups: list[Values]) -> tuple[float, Values]:
    """Return by how many standard errors a group is off at most, and which one.

    Of a group it is known between which probabilities its records are, and not where: a share that
    lies between them is right.
    """
    off = []
    for each in groups:
        low, high = (_chance(each[end], at) for end, at in (("low", 0.0), ("high", 1.0)))
        off.append(max(low - each["share"], each["share"] - high) / each["error"])
    return max(off), groups[off.index(max(off))]


def _trusted(off: float, worst: Values, second: str) -> str:
    """Return in a sentence whether the probabilities came true, and where they did so least."""
    if off <= FAR:
        return (
            f"The probabilities of {second} come true as often as they say, as far as this test "
            "can tell."
        )
    way = "low" if worst["share"] > worst["predicted"] else "high"
    return (
        f"Not all probabilities of {second} can be trusted. They are too {way} most clearly where "
        f"the model says about {100 * worst['predicted']:.0f}{PERCENT}: "
        f"{100 * worst['share']:.0f}{PERCENT} "
        f"(\u00b1 {100 * worst['error']:.1f}) came true."
    )


def _chance(odds: float | None, end: float) -> float:
    """Return the probability of log-odds; of none, that at the end."""
    return end if odds is None else 1.0 / (1.0 + math.exp(-odds))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}{PERCENT}"


def _point(share: float) -> str:
    return f"{share:.3f}"
