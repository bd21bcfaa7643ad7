"""Figures and cards of plans, results and reports in a notebook.

Plans and results are below the report and the displays, and import neither. The package's
`__init__` registers how these two are loaded.

Source: docs/python.md, "In a notebook".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pasearch.errors import UsageError

MODULE_LOADERS: dict[str, Callable[[], ModuleType]] = {}
"""Functions that import `pasearch.displays` ("displays") and `pasearch.report.notebook`
("report")."""

FIGURES = {
    "trials": ("TrialsDisplay", "from_result"),
    "features": ("FeaturesDisplay", "from_result"),
    "budget": ("BudgetDisplay", "from_plan"),
    "schedule": ("ScheduleDisplay", "from_result"),
    "crossover": ("CrossoverDisplay", "from_report"),
}
"""Each kind of figure: its display, and what makes it of a value."""


def plot_figure(given: Any, kinds: Sequence[str], kind: str | None, ax: Any, **options: Any) -> Any:
    """Draw a figure of a plan, a result or a report.

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
    made = getattr(getattr(MODULE_LOADERS["displays"](), display), maker)(given)
    return made.plot(ax=ax, **options)


def render_plan_html(plan: Any) -> str:
    """Render a plan as HTML, for a notebook."""
    return MODULE_LOADERS["report"]().plan_html(plan)


def render_plan_text(plan: Any) -> str:
    """Render a plan as text, as the command line prints it."""
    return MODULE_LOADERS["report"]().text_of(plan)
