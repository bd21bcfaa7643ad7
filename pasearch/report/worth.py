"""Beside the run: other budgets, no search, and how the training went, where that may be shown."""

from __future__ import annotations

import math
from typing import Any

from pasearch.report import figures

Values = dict[str, Any]


def alternatives(document: Values, outputs: int) -> list[tuple[str, str]]:
    """Return what other budgets would buy, by the plan's arithmetic, in words.

    A signal is mu n: half of it is what half as many records would give.
    """
    from pasearch.cautions import LEAST_SIGNAL

    given = document.get("alternatives") or []
    budget = document["budget"]["epsilon"]
    own: Values = next((each for each in given if each["epsilon"] == budget), {})
    here, noise_here = own.get("signal_to_noise"), own.get("noise_multiplier")

    def words(each: Values) -> str:
        signal, noise = each.get("signal_to_noise"), each.get("noise_multiplier")
        if signal is None or noise is None:
            return "Too little for this plan: not even the most noise would fit."
        drowned = " Noise drowns it: little better than guessing."
        drowned = drowned if signal < LEAST_SIGNAL * outputs else ""
        if not here or not noise_here:
            return "It could have been trained." + drowned
        return (
            f"Noise {noise / noise_here:.2g} times as large: like training on "
            f"{signal / here:.2g} times as many records.{drowned}"
        )

    said = [each for each in given if each is not own or not here]
    return [(f"\u03b5 {each['epsilon']:g}", words(each)) for each in said]


def heading(crossover: Values | None, compared: list[Values] | None) -> str:
    """Return what the section of other models and budgets is called: measured, or a forecast."""
    if crossover:
        return "Other models as measured" if crossover["repeats"] else "A forecast of other models"
    return "Beside no search" if compared else "Other budgets"


def curves(document: Values, *, of_numbers: bool) -> Values | None:
    """Return the chart of accuracies over steps; points that are not finite are left out."""
    found = []
    for each in document.get("curves") or []:
        pairs = zip(each["steps"], each["accuracy"], strict=True)
        points = tuple((x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y))
        if points:
            found.append(figures.Curve(name=each["name"], points=points))
    up = "points, as a share" if of_numbers else "accuracy"
    return chart(found, "Accuracy over training steps", ("training steps", up)) if found else None


def chart(found: list[figures.Curve], title: str, axes: tuple[str, str]) -> Values:
    """Return a chart of lines, and what they are called; title and axes in words."""
    ends = "; ".join(f"{each.name} ends at {each.points[-1][1]:.3f}" for each in found)
    names = [each.name for each in found]
    return {"chart": figures.chart(found, f"{title}: {ends}.", axes), "names": names}


def compared(document: Values) -> list[Values]:
    """Return this run beside the fixed strategy, each with its noisy and its exact score."""
    given = document.get("compared") or {}
    names = [("this", "This run"), ("fixed", "One fixed network, nothing searched")]
    kinds = [("test", "as released, with noise"), ("exact", "exact")]
    return [
        {
            "name": name,
            "bars": [
                {
                    "kind": words,
                    "value": f"{100 * given[key][kind]:.1f} %",
                    "bar": figures.bar(
                        given[key][kind],
                        f"{name}, {words}: {100 * given[key][kind]:.1f} per cent",
                        tone="accent" if key == "this" else "plain",
                    ),
                }
                for kind, words in kinds
                if given[key].get(kind) is not None
            ],
        }
        for key, name in names
        if given.get(key)
    ]


def searching(document: Values) -> Values | None:
    """Return why `auto` searched or did not, and what it expected of each way."""
    if not (auto := document.get("auto")):
        return None
    expected = auto.get("expected") or []
    most = max((each["expected"] for each in expected), default=0.0)
    best = next((e for e in expected if f"{e['strategy']}, {e['winner']}" == auto["chosen"]), None)
    return {
        "chosen": auto["chosen"],
        "why": auto["why"],
        "expected": [
            {
                "strategy": each["strategy"],
                "winner": each["winner"],
                "value": f"{each['expected']:.3f}",
                "is_chosen": each is best,
                "bar": figures.bar(
                    each["expected"] / most if most > 0 else 0.0,
                    f"{each['strategy']}, {each['winner']}: expected {each['expected']:.3f}",
                    tone="accent" if each is best else "plain",
                ),
            }
            for each in expected
        ],
    }
