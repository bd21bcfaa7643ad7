"""Quality of the released model: test score, confidence interval, baselines, per-class measures.

    interval   =  value -+ 1.96 standard errors, from sampling and DP noise together
    recall     =  fraction of the records of a class that the model predicts as this class
    precision  =  fraction of the records predicted as a class that belong to it

The baselines are a random prediction, the majority class and the median of the target. The last two
are computed from the released table of counts. The verdict compares the model with the best
baseline. Both use the same test records, so their difference has a smaller standard error than
either score. If the test released a single number, the majority-class baseline is not available.
Everything here is post-processing, without a privacy cost.

Source: docs/result.md, `score`; `training.metrics.compute_score_error`; `training.score_tables`.
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
"""Half-width of a 95 % confidence interval, in standard errors."""

METRICS_WITH_RANDOM_BASELINE = ("accuracy", "balanced accuracy", "area under the ROC curve")
"""Metrics whose value for a random prediction is known."""

MIN_KNOWN_FRACTION = 0.9
"""Minimum fraction of test records with a declared class, below which the report warns."""

MAX_LISTED_CLASSES = 12
"""Maximum number of classes for which all classes and the confusion matrix are shown."""

MAX_WORST_CLASSES = 10
"""Number of classes with the lowest recall that are listed if there are more classes."""

MAX_MISCALIBRATION = 3.0
"""Largest deviation of a well calibrated group of probabilities, in standard errors.

There are up to 20 groups, so 2 standard errors would often be exceeded by chance."""

MAX_NAME_LENGTH = 28
"""Maximum length of a class name in a sentence or a table, in characters."""

PERCENT_SIGN = "\u00a0%"
"""Percent sign after a no-break space, which keeps it on the line of its number."""

BELOW_NOISE_SENTENCE = (
    "The score is below the noise level and gives no information about the model."
)
"""Verdict for a score below the noise level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline with which the score is compared."""

    description: str  # noun phrase that follows "better than"
    at: float  # score of the baseline, in the unit of the metric
    margin: float  # lead of the model over the baseline; negative if the model is worse
    error: float  # standard error of the margin
    among: int = 1  # number of baselines from the same counts, of which this is the best

    @property
    def is_beaten(self) -> bool:
        """Whether the model is significantly better."""
        return self.margin - CI_STANDARD_ERRORS * self.error > 0

    @property
    def is_better(self) -> bool:
        """Whether the model is significantly worse.

        The best of several baselines is partly best by chance, so it needs a larger lead
        (Bonferroni correction).
        """
        often = (1 - NormalDist().cdf(CI_STANDARD_ERRORS)) / self.among
        return self.margin + NormalDist().inv_cdf(1 - often) * self.error < 0


def score_interval(score: Values) -> tuple[float, float]:
    """Return the 95 % confidence interval of the test score, in the unit of the metric."""
    from pasearch.training.metrics import compute_score_error, find_metric_by_noun

    error, value = compute_score_error(score), score["test"]
    if score["metric"] in METRICS_WITH_RANDOM_BASELINE:
        return compute_wilson_interval(value, error, CI_STANDARD_ERRORS)
    low, most = value - CI_STANDARD_ERRORS * error, find_metric_by_noun(score["metric"]).worst
    return max(0.0, low), min(most, value + CI_STANDARD_ERRORS * error)


def is_below_noise(score: Values) -> bool:
    """Check whether the interval of a released score is too wide to give information."""
    from pasearch.training.metrics import compute_score_error, find_metric_by_noun

    metric, (low, high) = find_metric_by_noun(score["metric"]), score_interval(score)
    return high - low > metric.worst / 2 or (
        metric.is_for_regression and compute_score_error(score) > score["test"]
    )


def describe_quality(document: Values, schema: AnySchema) -> Values:
    """Describe the test score for the report page: value, interval, baselines and verdict.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Returns:
        Values of the page's template: formatted numbers, sentences and SVG figures.
    """
    from pasearch.training.metrics import (
        MAX_TABLE_CLASSES,
        compute_score_error,
        find_metric_by_noun,
    )

    score, dataset = document["score"], document["dataset"]
    noun, value, table = score["metric"], score["test"], read_table(score)
    metric, error = find_metric_by_noun(noun), compute_score_error(score)
    (low, high), is_noise = score_interval(score), is_below_noise(score)
    scale, digits, unit = (1.0, 3, "") if metric.worst > 1.0 else (100.0, 1, " %")

    def format_score(share: float) -> str:
        return f"{scale * share:.{digits}f}{unit}"

    # Baselines: random prediction, majority class, median. `rival` is the best one.
    measures, target, rival = class_measures(document, schema), target_bounds(document), None
    rows: list[tuple[str, float, tuple[float, float] | None]] = [("This model", value, (low, high))]
    if noun in METRICS_WITH_RANDOM_BASELINE:
        guess = 0.5 if noun == METRICS_WITH_RANDOM_BASELINE[-1] else 1.0 / schema.outputs
        rows.append((f"Random baseline ({schema.outputs} classes)", guess, None))
        rival = Baseline(
            description="the random baseline", at=guess, margin=value - guess, error=error
        )
    # If its recall is unknown, this class may be the most common one by noise alone.
    most = measures["most_common"] if measures and noun == "accuracy" else None
    if most is not None and measures["recall"][most["class"]]["value"] is None:
        most = None
    if most is not None and rival is not None and table is not None:
        name = quote_name(measures["classes"][most["class"]])
        rows.append((f"Majority class ({name})", most["value"], measure_interval(most)))
        if most["value"] > rival.at:
            above = estimate_lead(table)
            rival = Baseline(
                description=f"the majority class {name}", at=most["value"], margin=above["value"],
                error=above["error"], among=len(measures["classes"]),
            )  # fmt: skip
    has_errors = table is not None and table.columns == ERROR_COLUMNS
    errors = compute_error_measures(table) if table is not None and has_errors else {}
    median = errors["median"] if errors and errors["median"]["value"] is not None else None
    if median is not None:
        words = "the median baseline"
        if target is not None:
            words += f" ({format_number(target[0] + (target[1] - target[0]) * median['at'])})"
        reach = CI_STANDARD_ERRORS * median["error"]
        between = max(0.0, median["value"] - reach), min(1.0, median["value"] + reach)
        rows.append((capitalize_first(words.removeprefix("the ")), median["value"], between))
        rival = Baseline(
            description=words, at=median["value"], margin=errors["lead"]["value"],
            error=errors["lead"]["error"],
        )  # fmt: skip
    unavailable = []
    if schema.regression:
        if median is None:
            unavailable.append(
                "Median baseline not available at this epsilon; its error may be as small as the "
                "model's."
            )
    elif noun in ("log loss", "Brier score"):
        unavailable.append(
            "Base-rate baseline not available: this test releases one number; it may be as good as "
            "the model."
        )
    elif noun == "accuracy" and most is None:
        many = schema.outputs > MAX_TABLE_CLASSES
        why = f"for more than {MAX_TABLE_CLASSES} classes" if many else "at this epsilon"
        unavailable.append(
            f"Majority-class baseline not available {why}; it may be as high as the model's "
            "accuracy."
        )

    in_unit = ""
    if target is not None and "error" in noun:
        column = getattr(getattr(schema, "target", None), "name", None)
        of = "the target" if column is None else quote_name(column)
        in_unit = f"In units of {of}: {format_number((target[1] - target[0]) * value)}. "
    sorts = (
        "" if is_noise or rival is None or rival.is_beaten else _describe_separation(noun, measures)
    )
    if is_noise:
        verdict = (
            "The test score is below the noise level and gives no information about the model. Use "
            "a larger epsilon or more test records."
        )
    elif rival is None:
        verdict = f"{in_unit}Lower is better."
    elif rival.is_beaten and unavailable:
        verdict = f"Random baseline {format_score(rival.at)}."  # another baseline may be better
    elif noun not in METRICS_WITH_RANDOM_BASELINE:
        how = f"not significantly different from {rival.description}"
        if rival.is_beaten or rival.is_better:
            way = "lower" if rival.is_beaten else "higher"
            how = f"significantly {way} than that of {rival.description}"
        verdict = f"{in_unit}The error is {how}, {format_score(rival.at)}."
    else:
        how = "Significantly worse than" if rival.is_better else "Not significantly different from"
        how = "Significantly better than" if rival.is_beaten else how
        verdict = f"{how} {rival.description} ({format_score(rival.at)})."

    noise = score["noise"]["standard_deviation"]
    unknown_classes = [] if is_noise else _warn_of_unknown_classes(document, measures)
    details = [
        f"On {score['of']:,} held-out test records, with DP noise. Standard error "
        f"{format_score(error)} (noise alone: {format_score(noise)})."
    ]
    if errors and errors["r2"]["value"] is not None:
        r2 = errors["r2"]
        details.append(
            f"R\N{SUPERSCRIPT TWO} {r2['value']:.2f} \N{PLUS-MINUS SIGN} {r2['error']:.2f} (1: no "
            "error; 0: mean baseline)."
        )
    details += unknown_classes
    recalls = [each["value"] for each in measures["recall"]] if measures and not is_noise else []
    if recalls and None not in recalls:
        least = recalls.index(min(recalls))
        details.append(
            f"Lowest recall of a class: {100 * recalls[least]:.0f} % "
            f"({quote_name(measures['classes'][least])})."
        )
    details += unavailable
    if "exact" in score and dataset["declared_public"]:
        details.append(
            f"Exact score: {format_score(score['exact'])} (the data were declared public)."
        )

    end = metric.worst  # right end of the drawn scale; for errors the next of .01, .02, .05, .1 ...
    if noun not in METRICS_WITH_RANDOM_BASELINE:
        most_drawn = max(high, *(at for _, at, _ in rows))
        steps = (lead * 10.0**power for power in range(-3, 9) for lead in (1, 2, 5))
        end = next((each for each in steps if most_drawn <= each), most_drawn)
    drawn = []
    for place, (name, at, between) in enumerate(rows):
        if is_noise and place == 0:
            drawn.append({"name": name, "value": "unknown", "bar": ""})
            continue
        label = f"{name}: {format_score(at)}"
        if between is not None:
            label += f", 95 % CI {format_score(between[0])} to {format_score(between[1])}"
            between = (between[0] / end, between[1] / end)
        bar = figures.draw_interval(at / end, between, label, tone="plain" if place else "accent")
        drawn.append({"name": name, "value": format_score(at), "bar": bar})
    return {
        "name": f"Test {noun}",
        "value": "unknown" if is_noise else f"{scale * value:.{digits}f}",
        "unit": "" if is_noise else unit.strip(),
        "interval": f"standard deviation of the noise: {format_score(noise)}"
        if is_noise
        else f"95 % CI {format_score(low).removesuffix(unit)}\N{EN DASH}{format_score(high)}",
        "baseline": "" if len(rows) < 2 else f"{rows[-1][0]}: {format_score(rows[-1][1])}",
        "verdict": f"{verdict} {sorts}".strip(),
        "is_known": not is_noise and bool(rival is None or rival.is_beaten or sorts),
        "rows": drawn,
        "unavailable": unavailable,
        "unknown_classes": unknown_classes,
        "scale": figures.draw_scale([f"{scale * end * share:.3g}{unit}" for share in (0, 0.5, 1)]),
        "details": details,
    }


def _describe_separation(metric: str, measures: Values) -> str:
    """Describe the separation of the classes by a model that is not better than a baseline."""
    if not measures or metric != "accuracy":
        return ""
    auc, balanced = measures["auc"], measures["balanced_accuracy"]
    if auc and auc["value"] is not None and measure_interval(auc)[0] > 0.5:
        return f"Its probabilities still separate the classes: AUC {auc['value']:.2f} (random 0.5)."
    known = sum(each["value"] is not None for each in measures["recall"])
    if balanced["value"] is None or not measure_interval(balanced)[0] > 1 / known:
        return ""
    return (
        f"It still separates the classes: balanced accuracy {100 * balanced['value']:.1f} % "
        f"(constant prediction: {100 / known:.1f} %)."
    )


def _warn_of_unknown_classes(document: Values, measures: Values) -> list[str]:
    """Warn if many test records have no declared class; empty otherwise."""
    table = read_table(document["score"])
    if not measures or table is None:
        return []
    known = float(table.totals.sum()) / table.of
    error = math.sqrt(table.counts.size) * table.noise / table.of
    if known + CI_STANDARD_ERRORS * error > MIN_KNOWN_FRACTION:
        return []
    schema = document["dataset"]["schema"]
    if schema.get("kind") != "arrays":
        remedy = "`pasearch check` lists them."
    elif schema.get("labels") is not None:
        remedy = "in a new run, list every label of y (`labels=`)."
    else:
        remedy = (
            f"this run assumed labels 0 to {schema['classes'] - 1}. If y has others, list all of "
            "them in a new run (`labels=1,2`)."
        )
    return [
        f"Only about {100 * max(0.0, known):.0f} % of the test records have a known class. The "
        f"others are unparseable or have an undeclared class, and count as errors: {remedy}"
    ]


def describe_score(document: Values, schema: AnySchema) -> tuple[str, str]:
    """Describe the test score in one line for the terminal.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Returns:
        Name of the score; its value with confidence interval and verdict, or "unknown ...".
    """
    found, score = describe_quality(document, schema), document["score"]
    exact = f"; exact score {score['exact']:.3f} (public data)" if "exact" in score else ""
    if found["value"] == "unknown":
        return found["name"], (
            f"unknown{exact}. {BELOW_NOISE_SENTENCE} A larger epsilon would reduce the noise, and "
            f"so would more than {score['of']:,} test records."
        )
    unit = " of the target's range" if "scale" in score else ""
    value = " ".join([found["value"], *([found["unit"]] if found["unit"] else [])])
    more = [found["verdict"], *found["unavailable"][:1], *found["unknown_classes"]]
    return found["name"], (
        f"{value}{unit} on {score['of']:,} test records ({found['interval']}){exact}. "
        f"{' '.join(more)}"
    )


# --- measures of the test's table of counts


def class_measures(document: Values, schema: AnySchema) -> Values:
    """Return the measures per class and overall; empty for regression, or if a class is missing."""
    measures = compute_score_measures(document["score"], schema)
    is_whole = len(measures.get("classes", ())) == schema.outputs
    return measures if is_whole and not schema.regression else {}


def quote_name(name: object) -> str:
    """Quote the name of a class, shortened and on one line."""
    return f"'{shorten_name(name)}'"


def shorten_name(name: object) -> str:
    """Shorten the name of a class to one line, and escape its control characters."""
    return escape_text(figures.shorten(" ".join(str(name).split()), MAX_NAME_LENGTH))


def measure_interval(measures: Measure) -> tuple[float, float]:
    """Return the 95 % confidence interval of a measure."""
    return compute_wilson_interval(measures["value"], measures["error"], CI_STANDARD_ERRORS)


def describe_test_table(document: Values, schema: AnySchema) -> Values | None:
    """Describe the table of test counts: measures, confusion matrix and calibration.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.

    Returns:
        Values of the page's template; None if the test released no table.
    """
    measures = class_measures(document, schema)
    if not measures:
        return None
    rows, unknown = _describe_overall_measures(document["score"]["metric"], measures)
    if len(measures["classes"]) == 2 and not measures["calibration"]:
        unknown.append(
            "Calibration is not available: the test has too few records."
            if measures["auc"] is not None
            else f"AUC and calibration are not available: {measures['reasons']['auc']}. They need "
            "more test records or a larger epsilon."
        )
    counts, error, confusion = measures["confusion"], measures["confusion_error"], None
    if counts is not None and len(measures["classes"]) <= MAX_LISTED_CLASSES:
        names = [shorten_name(each) for each in measures["classes"]]
        confusion = {
            "columns": names,
            "rows": [
                {
                    "name": name,
                    "cells": [
                        {
                            "count": f"{count:,}",
                            "kind": "hit" if place == other else "",
                            "soft": count < 2 * error,  # may be noise alone
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
        "classes": _describe_class_measures(measures),
        "confusion": confusion,
        "calibration": _describe_calibration(measures),
    }


def describe_miscalibration(document: Values, schema: AnySchema) -> str:
    """Describe the miscalibration of the probabilities; "" if they are well calibrated."""
    measures = class_measures(document, schema)
    found = _describe_calibration(measures) if measures else None
    return found["words"] if found is not None and found["is_poor"] else ""


def format_measures(document: Values, schema: AnySchema) -> str:
    """Format the overall measures with their standard errors in one line; "" without any."""
    measures = class_measures(document, schema)
    if not measures:
        return ""
    rows, _ = _describe_overall_measures(document["score"]["metric"], measures)
    most = measures["most_common"]
    name = quote_name(measures["classes"][most["class"]])
    always = f"majority-class baseline ({name}) {_format_percent(most['value'])}"
    return "; ".join([*(f"{each['name']} {each['with_error']}" for each in rows), always])


def _describe_overall_measures(metric: str, measures: Values) -> tuple[list[Values], list[str]]:
    """Return rows of the available measures except the metric, and sentences on missing ones."""
    second, mean = quote_name(measures["classes"][-1]), measures["balanced_accuracy"]
    constant = 100 / max(1, sum(each["value"] is not None for each in measures["recall"]))
    over = f", {mean['reason']}" if mean["reason"] else ""
    most = measures["most_common"]
    name = quote_name(measures["classes"][most["class"]])
    known = [
        (
            "accuracy", "accuracy", "accuracy",
            "fraction of records that are predicted correctly. Majority-class baseline "
            f"({name}): {_format_percent(most['value'])}",
        ),
        (
            "auc", "area under the ROC curve", "AUC",
            f"probability that a random record of {second} has a higher predicted probability of "
            f"{second} than a random record of the other class. Random baseline: 0.5",
        ),
        (
            "balanced_accuracy", "balanced accuracy", "balanced accuracy",
            f"mean of the recalls below{over}. Constant prediction: {constant:.1f}{PERCENT_SIGN}",
        ),
    ]  # fmt: skip
    rows, unknown = [], []
    for key, noun, name, words in known:
        each = measures[key]
        if noun == metric or each is None:
            continue
        if each["value"] is None:
            unknown.append(f"{capitalize_first(name)} is not available: {each['reason']}.")
            continue
        say = "{:.3f}".format if key == "auc" else _format_percent
        low, high = measure_interval(each)
        between = f"95 % CI {say(low)} to {say(high)}"
        value, title = say(each["value"]), capitalize_first(name)
        rows.append({
            "key": key, "name": name, "value": value,
            "with_error": f"{value} \u00b1 {say(each['error']).removesuffix(PERCENT_SIGN)}",
            "words": f"{title}: {words}. {between}.",
            "bar": figures.draw_interval(
                each["value"], (low, high), f"{title}: {value}, {between}", tone="accent"
            ),
        })  # fmt: skip
    return rows, unknown


def _describe_class_measures(measures: Values) -> Values:
    """Describe the recall and the precision of each class, or of the classes with the lowest."""
    recalls, precisions, classes = measures["recall"], measures["precision"], measures["classes"]
    listed = list(range(len(recalls)))
    if len(recalls) > MAX_LISTED_CLASSES:
        known = [place for place in listed if recalls[place]["value"] is not None]
        listed = sorted(known, key=lambda place: recalls[place]["value"])[:MAX_WORST_CLASSES]

    def describe_measure(measure: Measure, what: str) -> Values:
        if measure["value"] is None:
            return {"value": "unknown", "bar": ""}
        low, high = measure_interval(measure)
        value, *ends = map(_format_percent, (measure["value"], low, high))
        label = f"{what} {value}, 95 % CI {ends[0]} to {ends[1]}"
        digits = 1 if measure["error"] < 0.0995 else 0  # a larger error rounds to 10 % or more
        value, error = (f"{100 * measure[each]:.{digits}f}" for each in ("value", "error"))
        return {
            "value": f"{value}{PERCENT_SIGN} \u00b1 {error}",
            "bar": figures.draw_interval(measure["value"], (low, high), label),
        }

    rows = [
        {
            "name": shorten_name(classes[place]),
            "share": _format_percent(measures["shares"][place]["value"]),
            "recall": describe_measure(recalls[place], "recall"),
            "precision": None
            if precisions is None
            else describe_measure(precisions[place], "precision"),
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
            f"{what} of {join_names(gone)} is not available: {why}."
            for why, gone in reasons.items()
        ]
    if precisions is None:
        unknown.append(f"Precision is not available: {measures['reasons']['precision']}.")
    return {
        "rows": rows,
        "worst": len(rows) if len(recalls) > MAX_LISTED_CLASSES else 0,
        "of": len(recalls),
        "has_precision": precisions is not None,
        "unknown": unknown,
    }


def _describe_calibration(measures: Values) -> Values | None:
    """Describe and draw the calibration of the probabilities; None without enough counts."""
    groups, second = measures["calibration"], quote_name(measures["classes"][-1])
    if not groups:
        return None
    points = [
        (each["predicted"], each["share"], *measure_interval({**each, "value": each["share"]}))
        for each in groups
    ]
    said = "; ".join(
        f"predicted {100 * at:.0f} %, observed {100 * share:.0f} % (95 % CI {100 * low:.0f} to "
        f"{100 * high:.0f} %)"
        for at, share, low, high in points
    )
    # A group is an interval of log-odds: an observed fraction inside it is well calibrated.
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
        f"The predicted probabilities of {second} are well calibrated, as far as this test can "
        "resolve."
    )
    if is_poor:
        way = "low" if worst["share"] > worst["predicted"] else "high"
        words = (
            f"The predicted probabilities of {second} are miscalibrated. They are too {way} most "
            f"clearly near a predicted {100 * worst['predicted']:.0f}{PERCENT_SIGN}: observed "
            f"{100 * worst['share']:.0f}{PERCENT_SIGN} (\u00b1 {100 * worst['error']:.1f})."
        )
    return {
        "chart": figures.draw_calibration(points, f"Probabilities of {second}: {said}."),
        "words": words,
        "is_poor": is_poor,
        "class": second,
    }


def _format_percent(share: float) -> str:
    """Format a fraction in per cent, with one decimal."""
    return f"{100 * share:.1f}{PERCENT_SIGN}"
