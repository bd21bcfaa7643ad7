"""Figures and HTML of plans, results and reports for a notebook.

Plans and results may not import `pasearch.report` and `pasearch.displays`, which are higher layers.
The `__init__` of the package registers functions that import these two on first use.

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
"""Display class of each kind of figure, and its class method that creates the display."""


def plot_figure(given: Any, kinds: Sequence[str], kind: str | None, ax: Any, **options: Any) -> Any:
    """Plot a figure of a plan, a result or a report.

    Args:
        given: Plan, result or report.
        kinds: Kinds of figures that exist for it; the first is the default.
        kind: Requested kind; None selects the default.
        ax: Axes to draw on; None creates a figure.
        options: Keyword arguments of the display's `plot`.

    Raises:
        UsageError: The kind is not in `kinds`, or matplotlib is not installed.
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
    return MODULE_LOADERS["report"]().format_plan(plan)
