"""What values show of themselves in a notebook: a card and a figure, made by parts above them.

A plan and a result stand below the report and the displays, so these are found by their names, as a
registry finds what it holds.

Source: docs/python.md, "In a notebook".
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pasearch.errors import UsageError

FIGURES = {
    "trials": ("TrialsDisplay", "from_result"),
    "features": ("FeaturesDisplay", "from_result"),
    "budget": ("BudgetDisplay", "from_plan"),
    "schedule": ("ScheduleDisplay", "from_result"),
    "crossover": ("CrossoverDisplay", "from_report"),
}
"""Each kind of figure: its display, and what makes it of a value."""


def plotted(given: Any, kinds: Sequence[str], kind: str | None, ax: Any, **options: Any) -> Any:
    """Return a display of a value, drawn.

    Args:
        given: A plan, a result or a report.
        kinds: That it has; the first is taken if none is asked for.
        kind: Which one; None takes the first.
        ax: The axes to draw on; None makes a figure.
        options: As of the display's `plot`.

    Raises:
        UsageError: It has no such figure, or matplotlib is not installed.
    """
    if kind is not None and kind not in kinds:
        raise UsageError(f"kind is {kind!r}: expected one of {', '.join(kinds)}.")
    display, maker = FIGURES[kinds[0] if kind is None else kind]
    made = getattr(getattr(import_module("pasearch.displays"), display), maker)(given)
    return made.plot(ax=ax, **options)


def plan_html(plan: Any) -> str:
    """Return what a notebook shows of a plan."""
    return import_module("pasearch.report.notebook").plan_html(plan)


def plan_text(plan: Any) -> str:
    """Return a plan as text, as the command line prints it."""
    return import_module("pasearch.report.notebook").text_of(plan)
