"""The page of a measured crossover: which of several models is the best at which epsilon."""

from __future__ import annotations

import math

from pasearch.report.crossover import Values, chart
from pasearch.report.html import environment


def crossover_html(measured: Values) -> str:
    """Return the page of a measured crossover, one self-contained HTML file.

    Args:
        measured: As `CrossoverReport.to_json` gives it.
    """
    models = [
        {
            "accuracy": [1.0 - error for error in each["error"]],
            "low": [max(0.0, 1.0 - e - half) for e, half in zip(*_error_of(each), strict=True)],
            "high": [min(1.0, 1.0 - e + half) for e, half in zip(*_error_of(each), strict=True)],
        }
        for each in measured["models"]
    ]
    drawn = {
        "epsilons": measured["epsilons"], "models": models, "sentence": measured["sentence"],
        "own": {"score": None, "epsilon": 0.0},
    }  # fmt: skip
    rows = [
        {
            "epsilon": f"{epsilon:g}",
            "cells": [
                f"{each['error'][place]:.4f} \u00b1 {each['half_width'][place]:.4f}"
                for each in measured["models"]
            ],
            "best": measured["best"][place],
            "take": measured["taken"][place],
        }
        for place, epsilon in enumerate(measured["epsilons"])
    ]
    plain = [each["error_without_privacy"] for each in measured["models"]]
    least = measured["models"][plain.index(min(plain))]["name"]
    rows.append(
        {"epsilon": "none", "cells": [f"{each:.4f}" for each in plain], "best": least, "take": ""}
    )
    names = "data", "n", "repeats", "sentence", "models", "crossovers", "metric", "assumes"
    shown = {name: measured[name] for name in names}
    metric = measured["metric"]
    measure, of_errors = metric.removeprefix("1 - "), not metric.startswith("1 - ")
    tests = max(1, math.comb(len(models), 2) * len(measured["epsilons"]))
    page = environment().get_template("crossover.html.j2")
    return page.render(
        **shown, chart=chart(drawn, measure, of_errors=of_errors), rows=rows,
        delta=f"{measured['delta']:g}", measure=measure[0].upper() + measure[1:], tests=tests,
    )  # fmt: skip


def _error_of(model: Values) -> tuple[list[float], list[float]]:
    return model["error"], model["half_width"]
