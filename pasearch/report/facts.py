"""Facts that the card, the page, the notebook and the displays read from `result.json`.

All of them follow from released values, so they cost nothing.

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

SEARCH, TRAINING, CHOICE = "architecture search", "training", "recipe choice"
"""Tasks of a run of networks: a search, one training, or a choice among recipes."""

WEAK_PROTECTION_RATE = 0.2
"""True-positive rate of an attacker at a false-positive rate of 1 % from which on it is called
little protection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial whose score may be shown."""

    values: Values  # its entry in `trials`: `parameters` or `features`, and `noisy_correct`
    # its noisy fraction of the possible points; None if it failed, or if the number of public
    # records is unknown
    share: float | None
    # the same as a value of the metric; the points if no fraction is known; None if it failed
    score: float | None
    # standard deviation of the score's noise; None if it is unknown, as of a metric that is made
    # of several counts
    deviation: float | None
    released: bool  # whether the released model is of this candidate; several trials may be equal


def restore_recipe(values: Values) -> Recipe:
    """Restore the recipe of a `result.json`; one of an earlier version lacks some stages.

    Raises:
        UsageError: A field or a stage is unknown.
    """
    from pasearch.training.recipe import Recipe

    extra = {"sampling_probability", "name", "steps_made", "trainer"}
    renamed = {"order": "noise_before_clip"}  # by versions before the fourth
    return Recipe.from_json(
        {renamed.get(name, name): value for name, value in values.items() if name not in extra}
    )


def summarize_attack(document: Values) -> Values | None:
    """Translate the price into the success of the best attacker, per 100 people.

    Args:
        document: `result.json`, or its field `attack`.

    Returns:
        The first false-positive rate (`wrong`), true-positive rate (`right`) and their ratio
        (`odds`), all of them as `rows`, and whether the protection is weak; None if no accountant
        translates this price.
    """
    given = document.get("attack")
    if not given:
        return None

    def rounded_up(value: float) -> str:
        digits = 10.0 ** (math.floor(math.log10(value)) - 2)
        return f"{math.ceil(value / digits - 1e-9) * digits:.3g}"

    rows = [
        (f"{100 * wrong:g}", rounded_up(100 * rate), rounded_up(rate / wrong))
        for wrong, rate in given
    ]
    wrong, right, odds = rows[0]
    is_weak = given[0][1] > WEAK_PROTECTION_RATE
    return {"wrong": wrong, "right": right, "odds": odds, "rows": rows, "is_weak": is_weak}


def target_bounds(document: Values) -> tuple[float, float] | None:
    """Return the bounds of a numeric target in its own unit; None if there are none."""
    target = document["dataset"]["schema"].get("target")
    if isinstance(target, dict):
        target = (target.get("low"), target.get("high"))
    low, high = target or (None, None)
    return None if low is None or high is None else (low, high)


def ranking_metric(document: Values) -> Metric:
    """Return the metric that ranked the candidates; the test's own one unless stated."""
    from pasearch.training.metrics import find_metric_by_noun

    return find_metric_by_noun(document["strategy"].get("judged_by", document["score"]["metric"]))


def score_event(document: Values) -> Values | None:
    """Return the event of the candidates' scores; None if no private record was scored."""
    return next((each for each in document["events"] if each["name"] == "score"), None)


def score_name(document: Values) -> str:
    """Name the trials' scores: the metric, and the scored records."""
    noun = document["strategy"].get("judged_by", document["score"]["metric"])
    line = score_event(document)
    if line is None:  # the number of public records is in no document
        return f"Points by {noun}, exact, of public records"
    slots = document["dataset"]["slots"][line["partition"]]
    return f"Noisy {noun} on {slots:,} records ({line['partition']})"


def list_trials(document: Values) -> list[Trial]:
    """Return the trials of `result.json` in their order, with scores in the metric's unit."""
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
                noise = metric.noise(epsilon).standard_deviation / (slots * metric.max_points)
                deviation = abs(metric.slope(min(1.0, max(0.0, share)))) * noise
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
    """Check whether the noise alone explains how much each feature tells of the target."""
    given = [each["uncertainty"] for each in document.get("relevance") or ()]
    return bool(given) and max(given) <= document.get("relevance_of_noise", 0.0)


def find_result_warnings(document: Values, schema: AnySchema) -> list[str]:
    """Return warnings on a result that says little or nothing; all of them follow from releases.

    Args:
        document: `result.json`.
        schema: Schema that the document describes.
    """
    from pasearch.training.metrics import compute_score_error

    found, score = [], document["score"]
    if is_relevance_noise(document):
        found.append(
            "No feature is told apart from noise at this epsilon: the choice is as good as random."
        )
    if score["metric"] == "area under the ROC curve" and schema.outputs > 2:
        found.append(
            f"{schema.outputs} classes were found: the area under the ROC curve is of the first "
            "two alone."
        )
    if "scale" in score and score["test"] < compute_score_error(score):
        found.append("That error is smaller than its own standard error: it may be much larger.")
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
            f"The target's bounds were estimated privately, {low:g} to {high:g}: what lies beyond "
            "counts as the nearer one, in this error too. Declare low and high (`schema=`)."
        )
    return found
