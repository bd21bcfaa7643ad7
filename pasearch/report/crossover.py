"""The report's answer to "simple or complex, at my epsilon?": a chart and what it says.

    x = log(epsilon / first) / log(last / first)

Source: docs/result.md, `crossover`.
"""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from pasearch.crossover.forecast import range_words
from pasearch.report.figures import (
    BELOW,
    PLOT,
    axis_names,
    element,
    line_class,
    percent,
    points_text,
    ticks_of,
)

Values = dict[str, Any]

LEAST, MOST = -0.2, 1.2
"""Between which shares a chart is drawn."""

LABELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Which epsilons have a label."""


def crossover(document: Values) -> Values | None:
    """Return what the template writes of a forecast, or of a grid; None where there is neither."""
    found = document.get("measured_crossover") or document.get("crossover")
    if not found:
        return None
    measured, of_numbers = found["kind"] == "measured", "error" in document["score"]["metric"]
    measure = document["score"]["metric"]
    if (
        "measured_crossover" in document
    ):  # made by the default metric, whatever the run is scored by
        measure = "mean absolute error" if of_numbers else "accuracy"
    return {
        "sentence": found["sentence"],
        "measure": measure,
        "chart": chart(found, measure, of_errors=of_numbers),
        "data_sets": found.get("data_sets"),
        "repeats": found.get("repeats"),
        "paid": "measured_crossover" not in document,
        "has_point": _has_point(found),
        "models": [{"name": each["name"], "note": _note(each)} for each in found["models"]],
        "crossings": [
            each["sentence"] if measured else _crossing(each, found["epsilons"])
            for each in found["crossings"]
        ],
    }


def _has_point(found: Values) -> bool:
    own, epsilons = found["own"], found["epsilons"]
    return own["score"] is not None and epsilons[0] <= own["epsilon"] <= epsilons[-1]


def _note(model: Values) -> str:
    roles = {
        "released": "released by this run",
        "simplest": "the simplest",
        "largest": "the largest",
    }
    said = [roles[role] for role in model["roles"] if role in roles]
    return ", ".join([f"{model['parameters']:,} parameters", *said])


def _crossing(each: Values, epsilons: list[float]) -> str:
    return (
        f"From about epsilon {each['epsilon']:g} on, {each['after']} instead of {each['before']} "
        f"({range_words(each, epsilons)})."
    )


def chart(found: Values, measure: str, *, of_errors: bool = False) -> Markup:
    """Return the models' scores over epsilon, with bands, and the run's own point.

    Args:
        found: A crossover, as `result.json` has it.
        measure: Name of the vertical axis.
        of_errors: Whether to draw errors, 1 minus the values of `found`.
    """
    found = _as_errors(found) if of_errors else found
    epsilons, models, own = found["epsilons"], found["models"], found["own"]
    values = [y for each in models for y in (*each["low"], *each["high"])]
    if own["score"] is not None:
        values.append(own["score"])
    # A noisy score may be no share, and a forged one anything: neither asks for a million ticks.
    ticks = ticks_of([min(MOST, max(LEAST, value)) for value in values])
    low, high = ticks[0], ticks[-1]
    first, last = math.log(epsilons[0]), math.log(epsilons[-1])

    def x(epsilon: float) -> float:
        return 100 * (math.log(epsilon) - first) / (last - first)

    def y(share: float) -> float:
        return 100 * (high - share) / (high - low)

    shapes = axis_names("epsilon (logarithmic)", measure)
    for tick in ticks:
        at = PLOT * (high - tick) / (high - low)
        shapes.append(element("line", x1="0", x2="100%", y1=at, y2=at, class_="grid"))
        shapes.append(element("text", f"{tick:.3g}", x="-8", y=at + 4, class_="tick end"))
    for label in (each for each in LABELS if epsilons[0] <= each <= epsilons[-1]):
        place = x(label) / 100
        shapes.append(
            element("text", f"{label:g}", x=percent(place), y=PLOT + 20, class_="tick middle")
        )
    inside = []
    for place, each in enumerate(models):
        up = [(x(e), y(v)) for e, v in zip(epsilons, each["high"], strict=True)]
        down = [(x(e), y(v)) for e, v in zip(epsilons, each["low"], strict=True)]
        corners = points_text([*up, *reversed(down)])
        inside.append(element("polygon", points=corners, class_=f"band band-{place % 4 + 1}"))
    for place, each in enumerate(models):
        drawn = [(x(e), y(v)) for e, v in zip(epsilons, each["accuracy"], strict=True)]
        inside.append(element("polyline", points=points_text(drawn), class_=line_class(place)))
    shapes.append(
        element("svg", *inside, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%",
                height=PLOT)
    )  # fmt: skip
    if _has_point(found):
        shapes += _own(own, x(own["epsilon"]), lambda share: PLOT * y(share) / 100)
    return element(
        "svg", *shapes, class_="chart", role="img", aria_label=found["sentence"], width="100%",
        height=PLOT + BELOW,
    )  # fmt: skip


def _as_errors(found: Values) -> Values:
    """Return a crossover with errors instead of 1 minus the error."""

    def errors(values: list[float]) -> list[float]:
        return [1.0 - each for each in values]

    score = found["own"]["score"]
    own = found["own"] | {"score": None if score is None else 1.0 - score}
    models = [
        each
        | {"accuracy": errors(each["accuracy"]), "low": errors(each["high"]),
           "high": errors(each["low"])}
        for each in found["models"]
    ]  # fmt: skip
    return {**found, "own": own, "models": models}


def _own(own: Values, place: float, height: Any) -> list[Markup]:
    """Return the run's own score: a point, and a line of one standard error either way."""
    at, ends = percent(place / 100), (own["score"] - own["standard_error"],
                                      own["score"] + own["standard_error"])  # fmt: skip
    return [
        element("line", x1=at, x2=at, y1=height(ends[0]), y2=height(ends[1]), class_="mark"),
        element("circle", cx=at, cy=height(own["score"]), r="4.5", class_="own"),
    ]
