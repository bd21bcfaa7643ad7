"""How all displays look, and the only place that imports matplotlib.

Colours are told apart by people with any kind of colour vision. In grey some are alike, so every
line has a marker and a pattern of its own, and every kind of bar a hatch. A line of short dashes is
left for what is not a model's curve.

Source: Okabe and Ito 2008, "Color Universal Design" (the colours, without the yellow).
"""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

from pasearch.errors import UsageError
from pasearch.shown import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PATTERNS = ("-", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)))

DASHED = (0, (4, 3))
"""The pattern of what is not a model's curve: a limit, or a value without privacy."""

GREY, PALE = "#555555", "#DDDDDD"

EPSILON, DELTA = "\N{GREEK SMALL LETTER EPSILON}", "\N{GREEK SMALL LETTER DELTA}"

WIDTH = 7.0
"""Of a figure, inches."""

LETTERS = 56
"""The most letters of a line of a sentence that stands in place of a figure."""


def drawing(ax: Axes | None, height: float) -> tuple[Figure, Axes]:
    """Return figure and axes to draw on.

    Args:
        ax: Of the user: nothing else of matplotlib is touched. None makes a figure with pyplot.
        height: Of such a figure, inches.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError:
        raise UsageError(
            "A display is drawn with matplotlib, which is not installed: install it with "
            "`pip install 'pasearch[plots]'`."
        ) from None
    if ax is not None:
        return ax.figure, ax  # pyright: ignore[reportReturnType] - or a part of a figure
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(WIDTH, height), layout="constrained")


def line_style(place: int) -> dict[str, Any]:
    """Return colour, marker and pattern of a line; after seven, patterns begin anew first.

    Args:
        place: Which of the lines it is, from 0.
    """
    kinds = len(COLOURS)
    return {
        "color": COLOURS[place % kinds],
        "marker": MARKERS[place % kinds],
        "linestyle": PATTERNS[(place + place // kinds) % kinds],
    }


def text_of(name: object) -> str:
    """Return a name as matplotlib draws it literally: no formula, no control characters.

    Args:
        name: Of a model, a feature or the like; a user's file may hold any.
    """
    text = shown(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # else a legend would leave it out


def tidy(ax: Axes, grid: str) -> None:
    """Take away what frames the axes, and draw a faint grid below everything.

    Args:
        ax: To change.
        grid: Which of its directions has the grid: "x", "y" or "both".
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, axis=grid, color=PALE, linewidth=0.7)  # pyright: ignore[reportArgumentType]
    ax.set_axisbelow(True)


def write_instead(ax: Axes, sentence: str) -> None:
    """Write why there is nothing to draw.

    Args:
        ax: Otherwise empty.
        sentence: What a reader is told.
    """
    ax.set_axis_off()
    ax.text(
        0.5, 0.5, fill(text_of(sentence), LETTERS), transform=ax.transAxes, ha="center",
        va="center", linespacing=1.5,
    )  # fmt: skip
