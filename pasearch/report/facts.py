"""Values computed from `result.json` for the card, the page, the notebook and the displays.

They depend on released values alone, so they have no privacy cost.

Source: docs/result.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.training.metrics import Metric
    from pasearch.training.recipe import Recipe

Values = dict[str, Any]

SEARCH, TRAINING, RECIPE_CHOICE = "architecture search", "training", "recipe choice"
"""Tasks of a run that trains networks: a search, one training, or the selection of a recipe."""

WEAK_PROTECTION_RATE = 0.2
"""Maximum true-positive rate of an attacker, at a 1 % false-positive rate, without a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial (candidate) whose score may be shown."""

    values: Values  # entry of `trials` in result.json: `parameters` or `features`, `noisy_correct`
    # noisy score count divided by the largest possible count; None if the training failed, or if
    # the number of scored public records is unknown
    share: float | None
    # score in the unit of the metric; the score count if `share` is None; None if the training
    # failed
    score: float | None
    # standard deviation of the score's noise; None if it is unknown, such as for a metric that
    # combines several counts
    deviation: float | None
    released: bool  # whether this candidate is the released model; several trials may be equal


def restore_recipe(values: Values) -> Recipe:
    """Restore the recipe from its values in `result.json`, also those of earlier versions.

    Raises:
        UsageError: A field or a stage is unknown.
    """
    from pasearch.training.recipe import Recipe

    extra = {"sampling_probability", "name", "steps_made", "trainer"}
    renamed = {"order": "noise_before_clip"}  # name before version 4 of the document
    return Recipe.from_json(
        {renamed.get(name, name): value for name, value in values.items() if name not in extra}
    )


def summarize_attack(document: Values) -> Values | None:
    """Format the success rate of the best possible membership inference attack.

    Args:
        document: `result.json`, or a dictionary with its field `attack`.

    Returns:
        `false_positives` and `detected` (false- and true-positive rate, in per cent, as strings)
        and their `ratio`, for the first false-positive rate; `rows`, the same for all rates; and
        `is_weak`, whether the protection is weak. None if no accountant bounds the attack.
    """
    given = document.get("attack")
    if not given:
        return None

    def format_rounded_up(value: float) -> str:
        digits = 10.0 ** (math.floor(math.log10(value)) - 2)
        return f"{math.ceil(value / digits - 1e-9) * digits:.3g}"

    rows = [
        (
            f"{100 * false_positives:g}",
            format_rounded_up(100 * rate),
            format_rounded_up(rate / false_positives),
        )
        for false_positives, rate in given
    ]
    false_positives, detected, ratio = rows[0]
    is_weak = given[0][1] > WEAK_PROTECTION_RATE
    return {
        "false_positives": false_positives, "detected": detected, "ratio": ratio, "rows": rows,
        "is_weak": is_weak,
    }  # fmt: skip


def target_bounds(document: Values) -> tuple[float, float] | None:
    """Return the bounds of a numeric target, in the unit of its column; None without bounds."""
    target = document["dataset"]["schema"].get("target")
    if isinstance(target, dict):
        target = (target.get("low"), target.get("high"))
    low, high = target or (None, None)
    return None if low is None or high is None else (low, high)


def ranking_metric(document: Values) -> Metric:
    """Return the metric that ranked the candidates: the test metric, unless another is stated."""
    from pasearch.training.metrics import find_metric_by_noun

    return find_metric_by_noun(document["strategy"].get("judged_by", document["score"]["metric"]))


def score_event(document: Values) -> Values | None:
    """Return the event of the candidates' scores; None if no private record was scored."""
    return next((each for each in document["events"] if each["name"] == "score"), None)


def describe_trial_scores(document: Values) -> str:
    """Describe the scores of the trials in one phrase: metric, noise and scored records."""
    noun = document["strategy"].get("judged_by", document["score"]["metric"])
    line = score_event(document)
    if line is None:  # result.json does not state the number of public records
        return f"Score count ({noun}), exact, on public records"
    slots = document["dataset"]["slots"][line["partition"]]
    return f"Noisy {noun} on {slots:,} records ({line['partition']})"


def list_trials(document: Values) -> list[Trial]:
    """Return the trials of `result.json` in order, with scores in the unit of the metric."""
    best, line, trials = document["best"], score_event(document), []
    slots, epsilon = None, None
    if line is not None:
        slots, event = document["dataset"]["slots"].get(line["partition"]), line["event"]
        while event["type"] in ("self-composed", "repeat-and-select"):
            event = event["event"]
        epsilon = event["epsilon"] if event["type"] == "geometric" else None
    for each in document.get("trials") or []:
        points, share, deviation = each["noisy_correct"], None, None
        score = None if points is None else float(points)
        if points is not None and slots:
            metric = ranking_metric(document)
            share = points / (slots * metric.max_points)
            score = metric.to_metric_value(share)
            if metric.is_sum and epsilon:
                noise = metric.make_noise(epsilon).standard_deviation / (slots * metric.max_points)
                deviation = abs(metric.compute_slope(min(1.0, max(0.0, share)))) * noise
                deviation = deviation if math.isfinite(deviation) else None
        if "features" in each:
            released = each["features"] == best["features"]
        else:
            own = ("front_end", "layers", "settings")
            released = all(each["parameters"].get(name) == best.get(name) for name in own)
        trials.append(
            Trial(values=each, share=share, score=score, deviation=deviation, released=released)
        )
    return trials


def is_relevance_noise(document: Values) -> bool:
    """Check whether noise alone explains the relevance of every feature."""
    given = [each["uncertainty"] for each in document.get("relevance") or ()]
    return bool(given) and max(given) <= document.get("relevance_of_noise", 0.0)


MIN_VOCABULARY = 10
"""Minimum number of words in the vocabulary of a text, without a warning."""


def find_result_warnings(document: Values, schema: AnySchema) -> list[str]:
    """Return warnings on a result that is not informative, as sentences.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.
    """
    from pasearch.training.metrics import compute_score_error

    found, score = [], document["score"]
    if is_relevance_noise(document):
        found.append(
            "No feature's relevance exceeds the noise at this epsilon: the selection is no better "
            "than random."
        )
    if score["metric"] == "area under the ROC curve" and schema.outputs > 2:
        found.append(
            f"{schema.outputs} classes were found: the area under the ROC curve covers the first "
            "two only."
        )
    if "scale" in score and score["test"] < compute_score_error(score):
        found.append("The error is smaller than its standard error: it may be much larger.")
    target = document["dataset"]["schema"].get("target")
    declared = ((document.get("plan") or {}).get("declared") or {}).get("target") or {}
    # The declared target of a table is an object; that of arrays is a list of bounds.
    is_declared = not isinstance(declared, dict) or any(
        declared.get(name) is not None for name in ("low", "categories")
    )
    estimated = isinstance(target, dict) and document["estimated_privately"] and not is_declared
    if "scale" in score and estimated:
        low, high = target["low"], target["high"]
        found.append(
            f"The target's bounds were estimated privately: {low:g} to {high:g}. Values outside "
            "count as the nearer bound, also in this error. Declare low and high (`schema=`)."
        )
    declared = ((document.get("plan") or {}).get("declared") or {}).get("columns") or ()
    open_ = {each["name"] for each in declared if each.get("vocabulary") is None}
    for column in getattr(schema, "columns", ()):
        words = len(column.vocabulary or ())
        if column.length is not None and column.name in open_ and words < MIN_VOCABULARY:
            found.append(
                f"The vocabulary of column {column.name!r} has {words} word{'s' * (words != 1)}, "
                "so the model knows little. Is the column a text? If so, declare words chosen "
                "without looking at the records (`schema=`), or raise `epsilon=`."
            )
    return found
