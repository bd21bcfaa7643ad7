"""How good the released model is: test score, interval, baselines, and measures of each class.

    interval   =  value -+ 1.96 standard errors, of the sample and of the noise together
    recall     =  of the records of a class, the fraction that the model finds
    precision  =  of the records that it puts in a class, the fraction that belongs to it

The baselines are a random answer, the majority class or the median of the target; the last two are
post-processing of the released table of counts. The verdict compares with the best of them. The
lead over the majority class, or over the median, has a smaller error than either score, because
both are of the same records. If the test released one number, the page says that the baseline is
not available. Everything here follows from counts that were released and paid for.

Source: docs/result.md, `score`; `training.metrics.error_of`; `training.from_cells`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from pasearch.data.tables import AnySchema
from pasearch.report import figures
from pasearch.report.facts import target_bounds
from pasearch.report.wording import capitalize_first, format_number, join_names
from pasearch.terminal_escaping import escape_text
from pasearch.training.score_tables import (
    ERROR_COLUMNS,
    Measure,
    compute_error_measures,
    compute_score_measures,
    compute_wilson_interval,
    estimate_lead,
    read_table,
)

Values = dict[str, Any]

CI_STANDARD_ERRORS = 1.96
"""Half the width of a 95 % confidence interval, in standard errors."""

METRICS_WITH_RANDOM_BASELINE = ("accuracy", "balanced accuracy", "area under the ROC curve")
"""Metrics with a known random baseline."""

MIN_KNOWN_FRACTION = 0.9
"""Fraction of test records with a known class, below which the data are probably misread."""

MAX_LISTED_CLASSES = 12
"""Number of classes up to which all are listed, with their confusion matrix."""

MAX_WORST_CLASSES = 10
"""Number of classes that are listed if there are more: those with the lowest recall."""

MAX_MISCALIBRATION = 3.0
"""Standard errors from which on a group of probabilities is called wrong: of up to 20 groups."""

MAX_NAME_LENGTH = 28
"""Characters of a class's name in a sentence or a table."""

PERCENT_SIGN = "\u00a0%"
"""The percent sign, kept on the line of its number."""

BELOW_NOISE_SENTENCE = "The noise is larger than the figure: this says nothing about the model."
"""Sentence on a score below the noise level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline that a score is compared with."""

    description: str  # description, as it follows "better than"
    at: float  # its score
    margin: float  # lead of the model over the baseline; negative if the model is worse
    error: float  # standard error of the margin
    among: int = 1  # number of baselines of which it is the best, by the same counts

    @property
    def beaten(self) -> bool:
        """Whether the model is significantly better."""
        return self.margin - CI_STANDARD_ERRORS * self.error > 0

    @property
    def wins(self) -> bool:
        """Whether the model is significantly worse.

        The best of several baselines is the best partly by chance, so it must be ahead by more.
        """
        often = (1 - NormalDist().cdf(CI_STANDARD_ERRORS)) / self.among
        return self.margin + NormalDist().inv_cdf(1 - often) * self.error < 0


def score_interval(score: Values) -> tuple[float, float]:
    """Return the 95 % confidence interval of the score on all records."""
    from pasearch.training.metrics import compute_score_error, find_metric_by_noun

    error, value = compute_score_error(score), score["test"]
    if score["metric"] in METRICS_WITH_RANDOM_BASELINE:
        return compute_wilson_interval(value, error, CI_STANDARD_ERRORS)
    low, most = value - CI_STANDARD_ERRORS * error, find_metric_by_noun(score["metric"]).worst
    return max(0.0, low), min(most, value + CI_STANDARD_ERRORS * error)


def is_below_noise(score: Values) -> bool:
    """Check whether a released score is below the noise level."""
    from pasearch.training.metrics import compute_score_error, find_metric_by_noun

    metric, (low, high) = find_metric_by_noun(score["metric"]), score_interval(score)
    return high - low > metric.worst / 2 or (
        metric.is_for_regression and compute_score_error(score) > score["test"]
    )


def describe_quality(document: Values, schema: AnySchema) -> Values:
    """Describe the test score for the page: value, interval, baselines, verdict and details.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.
    """
    from pasearch.training.metrics import (
        MAX_TABLE_CLASSES,
        compute_score_error,
        find_metric_by_noun,
    )

    score, dataset = document["score"], document["dataset"]
    noun, value, table = score["metric"], score["test"], read_table(score)
    metric, error, (low, high), drowned = (
        find_metric_by_noun(noun),
        compute_score_error(score),
        score_interval(score),
        is_below_noise(score),
    )
    scale, digits, unit = (1.0, 3, "") if metric.worst > 1.0 else (100.0, 1, " %")

    def said(share: float) -> str:
        return f"{scale * share:.{digits}f}{unit}"

    # Baselines: a random answer, the majority class, the median. The rival is the best of them.
    told, target, rival = class_measures(document, schema), target_bounds(document), None
    rows: list[tuple[str, float, tuple[float, float] | None]] = [("This model", value, (low, high))]
    if noun in METRICS_WITH_RANDOM_BASELINE:
        guess = 0.5 if noun == METRICS_WITH_RANDOM_BASELINE[-1] else 1.0 / schema.outputs
        rows.append((f"Random baseline ({schema.outputs} classes)", guess, None))
        rival = Baseline(
            description="the random baseline", at=guess, margin=value - guess, error=error
        )
    # Noise alone may have made a class the most common; by other metrics one answer is a guess.
    most = told["most_common"] if told and noun == "accuracy" else None
    if most is not None and told["recall"][most["class"]]["value"] is None:
        most = None
    if most is not None and rival is not None and table is not None:
        name = quote_name(told["classes"][most["class"]])
        rows.append((f"Majority class ({name})", most["value"], measure_interval(most)))
        if most["value"] > rival.at:
            above = estimate_lead(table)
            rival = Baseline(
                description=f"always answering {name}", at=most["value"], margin=above["value"],
                error=above["error"], among=len(told["classes"]),
            )  # fmt: skip
    errors = (
        compute_error_measures(table)
        if table is not None and table.columns == ERROR_COLUMNS
        else {}
    )
    median = errors["median"] if errors and errors["median"]["value"] is not None else None
    if median is not None:
        words = "always answering the median"
        if target is not None:
            words += f", {format_number(target[0] + (target[1] - target[0]) * median['at'])}"
        reach = CI_STANDARD_ERRORS * median["error"]
        between = max(0.0, median["value"] - reach), min(1.0, median["value"] + reach)
        rows.append((capitalize_first(words), median["value"], between))
        rival = Baseline(
            description=words, at=median["value"], margin=errors["lead"]["value"],
            error=errors["lead"]["error"],
        )  # fmt: skip
    untold = []
    if schema.regression:
        if median is None:
            untold.append(
                "Median baseline not available at this epsilon; its error may be as small as the "
                "model's."
            )
    elif noun in ("log loss", "Brier score"):
        untold.append(
            "Base-rate baseline not available: this test releases one number; it may be as good as "
            "the model."
        )
    elif noun == "accuracy" and most is None:
        many = schema.outputs > MAX_TABLE_CLASSES
        why = f"for more than {MAX_TABLE_CLASSES} classes" if many else "at this epsilon"
        untold.append(
            f"Majority-class baseline not available {why}; it may be as high as the model's "
            "accuracy."
        )

    in_unit = ""
    if target is not None and "error" in noun:
        column = getattr(getattr(schema, "target", None), "name", None)
        of = "the target" if column is None else quote_name(column)
        in_unit = f"That is {format_number((target[1] - target[0]) * value)} in the unit of {of}. "
    sorts = "" if drowned or rival is None or rival.beaten else _describe_separation(noun, told)
    if drowned:
        verdict = (
            "The noise is too large: this test says nothing about the model. A larger epsilon, or "
            "more test records, would."
        )
    elif rival is None:
        verdict = f"{in_unit}Smaller is better."
    elif rival.beaten and untold:
        verdict = f"Random baseline {said(rival.at)}."  # the majority class may reach more
    elif noun not in METRICS_WITH_RANDOM_BASELINE:
        how = "smaller" if rival.beaten else "larger" if rival.wins else "not told apart"
        than = "from that" if how == "not told apart" else "than that"
        verdict = f"{in_unit}The error is {how} {than} of {rival.description}, {said(rival.at)}."
    else:
        how = (
            "Better than" if rival.beaten else "Worse than" if rival.wins else "Not told apart from"
        )
        verdict = f"{how} {rival.description}, which reaches {said(rival.at)}."

    noise, unread = (
        score["noise"]["standard_deviation"],
        [] if drowned else _warn_of_unknown_classes(document, told),
    )
    details = [
        f"On {score['of']:,} test records that the training did not see, with noise. "
        f"Standard error {said(error)}, of which noise {said(noise)}."
    ]
    if errors and errors["r2"]["value"] is not None:
        r2 = errors["r2"]
        details.append(
            f"R\N{SUPERSCRIPT TWO} {r2['value']:.2f} \N{PLUS-MINUS SIGN} {r2['error']:.2f} (1: no "
            "error; 0: as always answering the mean)."
        )
    details += unread
    recalls = [each["value"] for each in told["recall"]] if told and not drowned else []
    if recalls and None not in recalls:
        least = recalls.index(min(recalls))
        details.append(
            f"Of the classes it finds {quote_name(told['classes'][least])} least: "
            f"{100 * recalls[least]:.0f} of 100 such records."
        )
    details += untold
    if "exact" in score and dataset["declared_public"]:
        details.append(
            f"Exactly {said(score['exact'])}, shown because the data were declared public."
        )

    end = metric.worst  # of the scale; an error's is the next of .01, .02, .05, .1 ...
    if noun not in METRICS_WITH_RANDOM_BASELINE:
        most_drawn = max(high, *(at for _, at, _ in rows))
        steps = (lead * 10.0**power for power in range(-3, 9) for lead in (1, 2, 5))
        end = next((each for each in steps if most_drawn <= each), most_drawn)
    drawn = []
    for place, (name, at, between) in enumerate(rows):
        if drowned and place == 0:
            drawn.append({"name": name, "value": "unknown", "bar": ""})
            continue
        label = f"{name}: {said(at)}"
        if between is not None:
            label += f", between {said(between[0])} and {said(between[1])}"
            between = (between[0] / end, between[1] / end)
        bar = figures.draw_interval(at / end, between, label, tone="plain" if place else "accent")
        drawn.append({"name": name, "value": said(at), "bar": bar})
    return {
        "name": f"Test {noun}",
        "value": "unknown" if drowned else f"{scale * value:.{digits}f}",
        "unit": "" if drowned else unit.strip(),
        "interval": f"the noise alone has a standard deviation of {said(noise)}"
        if drowned
        else f"95 % CI {said(low).removesuffix(unit)}\N{EN DASH}{said(high)}",
        "baseline": "" if len(rows) < 2 else f"{rows[-1][0]}: {said(rows[-1][1])}",
        "verdict": f"{verdict} {sorts}".strip(),
        "is_known": not drowned and bool(rival is None or rival.beaten or sorts),
        "rows": drawn,
        "untold": untold,
        "unread": unread,
        "scale": figures.draw_scale([f"{scale * end * share:.3g}{unit}" for share in (0, 0.5, 1)]),
        "details": details,
    }


def _describe_separation(metric: str, told: Values) -> str:
    """Describe how a model that beats no baseline still separates the classes; "" if it does not.

    Args:
        metric: Name of the test score's metric.
        told: Measures of the test's table (`measured`).
    """
    if not told or metric != "accuracy":
        return ""
    auc, balanced = told["auc"], told["balanced_accuracy"]
    if auc and auc["value"] is not None and measure_interval(auc)[0] > 0.5:
        return (
            "Its probabilities do tell the classes apart: of two records, one of each class, it "
            f"gives the right one the higher probability {100 * auc['value']:.0f} times in 100; a "
            "guess does so 50 times."
        )
    known = sum(each["value"] is not None for each in told["recall"])
    if balanced["value"] is None or not measure_interval(balanced)[0] > 1 / known:
        return ""
    return (
        f"It does tell the classes apart: of a class it finds {100 * balanced['value']:.1f} % on "
        f"average, and any one answer {100 / known:.1f} %."
    )


def _warn_of_unknown_classes(document: Values, told: Values) -> list[str]:
    """Warn that many test records have no known class, if the table shows it."""
    table = read_table(document["score"])
    if not told or table is None:
        return []
    known = float(table.totals.sum()) / table.of
    error = math.sqrt(table.counts.size) * table.noise / table.of
    if known + CI_STANDARD_ERRORS * error > MIN_KNOWN_FRACTION:
        return []
    schema = document["dataset"]["schema"]
    if schema.get("kind") != "arrays":
        remedy = "`pasearch check` lists them."
    elif schema.get("labels") is not None:
        remedy = "in a new run, list every label that y has (`labels=`)."
    else:
        remedy = (
            f"this run took the labels as 0 to {schema['classes'] - 1}. If y has others, list them "
            "all in a new run (`labels=1,2`)."
        )
    return [
        f"Only about {100 * max(0.0, known):.0f} of 100 test records have a known class. The "
        f"others could not be read, or have another class, and count as errors: {remedy}"
    ]


def describe_score(document: Values, schema: AnySchema) -> tuple[str, str]:
    """Describe the test score in one line of the terminal.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Returns:
        Name of the score, and its value with interval and verdict, or that it is unknown.
    """
    found, score = describe_quality(document, schema), document["score"]
    exact = f"; exactly {score['exact']:.3f} (public data)" if "exact" in score else ""
    if found["value"] == "unknown":
        return found["name"], (
            f"unknown{exact}. {BELOW_NOISE_SENTENCE} A larger epsilon would reduce the noise, and "
            f"so would more than {score['of']:,} test records."
        )
    unit = " of the target's range" if "scale" in score else ""
    value = " ".join([found["value"], *([found["unit"]] if found["unit"] else [])])
    more = [found["verdict"], *found["untold"][:1], *found["unread"]]
    return found["name"], (
        f"{value}{unit} on {score['of']:,} test records ({found['interval']}){exact}. "
        f"{' '.join(more)}"
    )


# --- measures of the test's table of counts


def class_measures(document: Values, schema: AnySchema) -> Values:
    """Return `compute_score_measures` of a table of classes; empty if it lacks a class."""
    told = compute_score_measures(document["score"], schema)
    return told if len(told.get("classes", ())) == schema.outputs and not schema.regression else {}


def quote_name(name: object) -> str:
    """Quote a class's name, shortened and on one line."""
    return f"'{shorten_name(name)}'"


def shorten_name(name: object) -> str:
    """Shorten a class's name to one line and spell out its control characters."""
    return escape_text(figures.shorten(" ".join(str(name).split()), MAX_NAME_LENGTH))


def measure_interval(told: Measure) -> tuple[float, float]:
    """Return the 95 % confidence interval of a measure."""
    return compute_wilson_interval(told["value"], told["error"], CI_STANDARD_ERRORS)


def describe_test_table(document: Values, schema: AnySchema) -> Values | None:
    """Describe a test's table for the page: overall, by class, confusion matrix and calibration.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Returns:
        None if the test released no table.
    """
    told = class_measures(document, schema)
    if not told:
        return None
    rows, unknown = _describe_overall(document["score"]["metric"], told)
    if len(told["classes"]) == 2 and not told["calibration"]:
        unknown.append(
            "How far to trust the probabilities is unknown: the test has too few records."
            if told["auc"] is not None
            else "AUC, and how far to trust the probabilities, are unknown: "
            f"{told['reasons']['auc']}. More test records, or a larger epsilon, would allow a "
            "table that tells it."
        )
    counts, error, confusion = told["confusion"], told["confusion_error"], None
    if counts is not None and len(told["classes"]) <= MAX_LISTED_CLASSES:
        names = [shorten_name(each) for each in told["classes"]]
        confusion = {
            "columns": names,
            "rows": [
                {
                    "name": name,
                    "cells": [
                        {
                            "count": f"{count:,}",
                            "kind": "hit" if place == other else "",
                            "soft": count < 2 * error,  # noise alone may have made it
                        }
                        for other, count in enumerate(row)
                    ],
                }
                for place, (name, row) in enumerate(zip(names, counts, strict=True))
            ],
            "error": f"{error:.2g}",
        }
    return {
        "summary": ", ".join(f"{each['name']} {each['value']}" for each in rows),
        "rows": rows,
        "scale": figures.draw_scale(["0 %", "50 %", "100 %"]),
        "unknown": unknown,
        "classes": _describe_classes(told),
        "confusion": confusion,
        "calibration": _describe_calibration(told),
    }


def describe_miscalibration(document: Values, schema: AnySchema) -> str:
    """Describe the probabilities that the test found to be wrong; "" if it found none."""
    told = class_measures(document, schema)
    found = _describe_calibration(told) if told else None
    return found["words"] if found is not None and found["is_poor"] else ""


def list_measures(document: Values, schema: AnySchema) -> str:
    """List the measures of all classes together, each with its standard error; "" without any."""
    told = class_measures(document, schema)
    if not told:
        return ""
    rows, _ = _describe_overall(document["score"]["metric"], told)
    most = told["most_common"]
    name = quote_name(told["classes"][most["class"]])
    always = f"accuracy of always answering {name} {_format_percent(most['value'])}"
    return "; ".join([*(f"{each['name']} {each['with_error']}" for each in rows), always])


def _describe_overall(metric: str, told: Values) -> tuple[list[Values], list[str]]:
    """Describe the measures of all classes together, except the headline.

    Returns:
        Rows of the known measures, and sentences on the unknown ones.
    """
    second, mean = quote_name(told["classes"][-1]), told["balanced_accuracy"]
    constant = 100 / max(1, sum(each["value"] is not None for each in told["recall"]))
    over = f", {mean['reason']}" if mean["reason"] else ""
    most = told["most_common"]
    always = f"always answering {quote_name(told['classes'][most['class']])}"
    known = [
        (
            "accuracy", "accuracy", "accuracy",
            f"of all records, how many are answered rightly. Of {always} it is "
            f"{_format_percent(most['value'])}",
        ),
        (
            "auc", "area under the ROC curve", "AUC",
            f"of two records, one of each class, how often that of {second} is given the higher "
            f"probability of {second}. A guess reaches 0.5",
        ),
        (
            "balanced_accuracy", "balanced accuracy", "balanced accuracy",
            f"the mean of the recalls below{over}. Any one answer for all records reaches "
            f"{constant:.1f}{PERCENT_SIGN}",
        ),
    ]  # fmt: skip
    rows, unknown = [], []
    for key, noun, name, words in known:
        each = told[key]
        if noun == metric or each is None:
            continue
        if each["value"] is None:
            unknown.append(f"{capitalize_first(name)} is unknown: {each['reason']}.")
            continue
        say = "{:.3f}".format if key == "auc" else _format_percent
        low, high = measure_interval(each)
        between = f"between {say(low)} and {say(high)}"
        value, title = say(each["value"]), capitalize_first(name)
        rows.append({
            "key": key, "name": name, "value": value,
            "with_error": f"{value} \u00b1 {say(each['error']).removesuffix(PERCENT_SIGN)}",
            "words": f"{title}: {words}. 95 times in 100 it lies {between}.",
            "bar": figures.draw_interval(
                each["value"], (low, high), f"{title}: {value}, {between}", tone="accent"
            ),
        })  # fmt: skip
    return rows, unknown


def _describe_classes(told: Values) -> Values:
    """Describe recall and precision by class; if there are many, of those with low recall."""
    recalls, precisions, classes = told["recall"], told["precision"], told["classes"]
    listed = list(range(len(recalls)))
    if len(recalls) > MAX_LISTED_CLASSES:
        known = [place for place in listed if recalls[place]["value"] is not None]
        listed = sorted(known, key=lambda place: recalls[place]["value"])[:MAX_WORST_CLASSES]

    def row(measure: Measure, what: str) -> Values:
        if measure["value"] is None:
            return {"value": "unknown", "bar": ""}
        low, high = measure_interval(measure)
        value, *ends = map(_format_percent, (measure["value"], low, high))
        label = f"{value} {what}, between {ends[0]} and {ends[1]}"
        digits = 1 if measure["error"] < 0.0995 else 0  # a larger error rounds to 10 % or more
        value, error = (f"{100 * measure[each]:.{digits}f}" for each in ("value", "error"))
        return {
            "value": f"{value}{PERCENT_SIGN} \u00b1 {error}",
            "bar": figures.draw_interval(measure["value"], (low, high), label),
        }

    rows = [
        {
            "name": shorten_name(classes[place]),
            "share": _format_percent(told["shares"][place]["value"]),
            "recall": row(recalls[place], "of this class are found"),
            "precision": None
            if precisions is None
            else row(precisions[place], "of these answers are right"),
        }
        for place in listed
    ]
    unknown = []
    for what, given in (("Recall", recalls), ("Precision", precisions or [])):
        reasons: dict[str, list[str]] = {}
        for name, each in zip(classes, given, strict=False):
            if each["value"] is None:
                reasons.setdefault(str(each["reason"]), []).append(quote_name(name))
        unknown += [
            f"{what} of {join_names(gone)} is unknown: {why}." for why, gone in reasons.items()
        ]
    if precisions is None:
        unknown.append(f"Precision is unknown: {told['reasons']['precision']}.")
    return {
        "rows": rows,
        "worst": len(rows) if len(recalls) > MAX_LISTED_CLASSES else 0,
        "of": len(recalls),
        "has_precision": precisions is not None,
        "unknown": unknown,
    }


def _describe_calibration(told: Values) -> Values | None:
    """Draw predicted probabilities against the fractions that came true; None without groups."""
    groups, second = told["calibration"], quote_name(told["classes"][-1])
    if not groups:
        return None
    points = [
        (each["predicted"], each["share"], *measure_interval({**each, "value": each["share"]}))
        for each in groups
    ]
    said = "; ".join(
        f"given {100 * at:.0f} per cent, {100 * share:.0f} came true, between {100 * low:.0f} and "
        f"{100 * high:.0f}"
        for at, share, low, high in points
    )
    # A group is known by the ends of its log-odds: a fraction that lies between them is right.
    off = []
    for each in groups:
        low, high = (
            end if each[name] is None else 1.0 / (1.0 + math.exp(-each[name]))
            for name, end in (("low", 0.0), ("high", 1.0))
        )
        off.append(max(low - each["share"], each["share"] - high) / each["error"])
    worst = groups[off.index(max(off))]
    is_poor = max(off) > MAX_MISCALIBRATION
    words = (
        f"The probabilities of {second} come true as often as they say, as far as this test can "
        "tell."
    )
    if is_poor:
        way = "low" if worst["share"] > worst["predicted"] else "high"
        words = (
            f"Not all probabilities of {second} can be trusted. They are too {way} most clearly "
            f"where the model says about {100 * worst['predicted']:.0f}{PERCENT_SIGN}: "
            f"{100 * worst['share']:.0f}{PERCENT_SIGN} "
            f"(\u00b1 {100 * worst['error']:.1f}) came true."
        )
    return {
        "chart": figures.draw_calibration(points, f"Probabilities of {second}: {said}."),
        "words": words,
        "is_poor": is_poor,
        "class": second,
    }


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f}{PERCENT_SIGN}"
