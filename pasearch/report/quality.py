"""How good the released model is: its test score with its interval, beside what costs nothing.

    interval  =  value -+ 1.96 standard errors, of the sample and of the noise together

Beside it stand what guessing reaches, what always answering the most common class would reach where
that was released with the score, and what public data sets let expect before the run.

Source: docs/result.md, `score`; `results.standard_error`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pasearch.data.tables import AnySchema
from pasearch.report import figures
from pasearch.report.networks import capital, number
from pasearch.results import standard_error

Values = dict[str, Any]

GUESSED = ("accuracy", "balanced accuracy", "area under the ROC curve")
"""Metrics of which guessing has a known value."""

DEVIATIONS = 1.96
"""Standard errors to either side that hold the true value 95 times in 100."""


def quality(document: Values, schema: AnySchema) -> Values:
    """Return what the template writes of the test score."""
    from pasearch.training.metrics import of_noun

    score = document["score"]
    metric, error = of_noun(score["metric"]), standard_error(score)
    scale, value = (1.0 if metric.worst > 1.0 else 100.0), score["test"]
    digits, unit = (3, "") if scale == 1.0 else (1, " %")

    def said(share: float) -> str:
        return f"{scale * share:.{digits}f}{unit}"

    low = max(0.0, value - DEVIATIONS * error)
    high = min(metric.worst, value + DEVIATIONS * error)
    drowned = high - low > metric.worst / 2 or (metric.of_numbers and error > value)
    guess = _guess(score["metric"], schema)
    chance = guess is not None and (high >= guess if metric.of_numbers else low <= guess)
    known = [(_guess_words(metric.of_numbers, schema), guess)]
    known.append(("Expected before the run", _ahead(document, schema)))
    rows: list[tuple[str, float, tuple[float, float] | None]] = [
        ("This model", value, (low, high)),
        *((name, at, None) for name, at in known if at is not None),
    ]
    most = metric.worst
    if score["metric"] not in GUESSED:
        most = _round_up(max(high, *(at for _, at, _ in rows)))
    noise = score["noise"]["standard_deviation"]
    return {
        "name": f"Test {score['metric']}",
        "value": "unknown" if drowned else f"{scale * value:.{digits}f}",
        "unit": "" if drowned else unit.strip(),
        "interval": f"95 times in 100 between {said(low)} and {said(high)}",
        "verdict": _verdict(document, drowned, guess, said),
        "is_known": not (drowned or chance),
        "rows": [
            {
                "name": name,
                "value": "unknown" if drowned and ends else said(at),
                "bar": figures.interval(
                    at / most,
                    None if ends is None else (ends[0] / most, ends[1] / most),
                    f"{name}: {said(at)}"
                    + ("" if ends is None else f", between {said(ends[0])} and {said(ends[1])}"),
                    tone="accent" if ends is not None else "plain",
                ),
            }
            for name, at, ends in rows
        ],
        "scale": figures.scale([f"{scale * most * share:.3g}{unit}" for share in (0, 0.5, 1)]),
        "details": [
            f"On {score['of']:,} test records that the training did not see, with noise. "
            f"Standard error {said(error)}, of which noise {said(noise)}.",
            *(
                [f"Exactly {said(score['exact'])}, shown because the data were declared public."]
                if "exact" in score and document["dataset"]["declared_public"]
                else []
            ),
        ],
    }  # fmt: skip


def _verdict(
    document: Values, drowned: bool, guess: float | None, said: Callable[[float], str]
) -> str:
    """Return in one sentence whether the score says that the model is good."""
    score = document["score"]
    value, error = score["test"], standard_error(score)
    if drowned:
        return (
            "The noise is too large: this test says nothing about the model. A larger epsilon, or "
            "more test records, would."
        )
    if score["metric"] not in GUESSED:
        return f"The {score['metric']} is {said(value)}{_own_unit(document, value)}."
    assert guess is not None
    if value - DEVIATIONS * error <= guess:
        return f"Not told apart from guessing, which reaches {said(guess)}."
    return f"Better than guessing, which reaches {said(guess)}."


def _guess(noun: str, schema: AnySchema) -> float | None:
    """Return what an answer without a model reaches; None where nothing is known of it."""
    if noun in GUESSED:
        return 0.5 if noun == GUESSED[-1] else 1.0 / schema.outputs
    return 0.5 if noun == "mean absolute error" else None


def _guess_words(of_numbers: bool, schema: AnySchema) -> str:
    if of_numbers:
        return "The middle of the range, at worst"
    return f"Guessing among {schema.outputs} classes"


def _ahead(document: Values, schema: AnySchema) -> float | None:
    """Return the accuracy that was expected of what was run, from public data; None if unknown."""
    from pasearch.planning import LEAST_SIGNAL

    auto, budget = document.get("auto") or {}, document["budget"]["epsilon"]
    if document["score"]["metric"] != "accuracy":
        return None
    for each in document.get("alternatives") or []:
        signal = each.get("signal_to_noise")
        if each["epsilon"] == budget and (signal or 0.0) < LEAST_SIGNAL * schema.outputs:
            return None  # the study behind it has no model that noise drowns
    for each in auto.get("expected") or []:
        if f"{each['strategy']}, {each['winner']}" == auto["chosen"]:
            return float(each["expected"])
    return None


def _own_unit(document: Values, value: float) -> str:
    """Return what an error is in the target's own unit, where it is a share of its range."""
    width = target_width(document)
    if width is None or "error" not in document["score"]["metric"]:
        return ""
    return f" of the target's range: {number(width * value)} in its unit"


def target_width(document: Values) -> float | None:
    """Return how wide the bounds of the number to predict are, in its own unit."""
    target = document["dataset"]["schema"].get("target")
    if isinstance(target, dict):
        target = (target.get("low"), target.get("high"))
    low, high = target or (None, None)
    return None if low is None or high is None else high - low


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
