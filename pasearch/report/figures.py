"""Figures of the report: inline SVG, made by hand, coloured by the page's style sheet.

Each is a pure function from plain numbers to markup. Nothing is coloured here: shapes have classes,
and the page gives those their light, dark and printed colours. Widths of bars and charts are in per
cent, so that a figure fits a phone without its text being scaled. Every text is escaped.

    width of a box  =  NARROW + (WIDE - NARROW) log(1 + values) / log(1 + most values)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

NARROW, WIDE = 14.0, 124.0
"""Widths of the box of nothing and of the widest box, pixels."""

ROW, BOX, TEXT = 64.0, 14.0, 152.0
"""Height of a row, height of a box and left edge of the text of a network, pixels."""

NETWORK_WIDTH = 360.0
LONGEST = 32
"""The most characters of a line beside a box."""

PLOT = 180.0
"""Height of a chart without its labels, pixels."""

BELOW = 48.0
"""Height of the labels below it: numbers, and what they are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One box of a network.

    Args:
        title: What it is.
        notes: Up to two lines below.
        values: How many numbers leave it, 1 or more.
        tone: Its class in the style sheet: "given", "layer", "frozen" or "output".
    """

    title: str
    notes: tuple[str, ...]
    values: int
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named line of a chart.

    Args:
        name: Of the line.
        points: (x, y), finite.
    """

    name: str
    points: tuple[tuple[float, float], ...]


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """Return an element; children that are not markup, and attribute values, are escaped.

    Args:
        tag: Its name.
        children: What it holds.
        attributes: `class_` stands for class, `aria_label` for aria-label; None leaves one out.

    >>> element("text", "a < b", x=1.5, class_="soft")
    Markup('<text x="1.5" class="soft">a &lt; b</text>')
    """
    written = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{tag}{''.join(written)}>{Markup('').join(children)}</{tag}>")


def network(stages: Sequence[Stage]) -> Markup:
    """Return a network drawn downwards: one box a stage, wide where many numbers leave it."""
    most = max(stage.values for stage in stages)
    largest = math.log1p(most)
    widths = [NARROW + (WIDE - NARROW) * math.log1p(each.values) / largest for each in stages]
    centre, shapes = WIDE / 2, []
    for place, (upper, lower) in enumerate(pairwise(widths)):
        top, bottom = place * ROW + BOX, (place + 1) * ROW
        corners = [
            (centre - upper / 2, top), (centre + upper / 2, top),
            (centre + lower / 2, bottom), (centre - lower / 2, bottom),
        ]  # fmt: skip
        shapes.append(element("polygon", points=points_text(corners), class_="flow"))
    for place, (stage, width) in enumerate(zip(stages, widths, strict=True)):
        shapes += _stage(stage, place * ROW, centre - width / 2, width)
    height = ROW * len(stages) - 8
    said = "; ".join(", ".join((stage.title, *stage.notes)) for stage in stages)
    return element(
        "svg", *shapes, class_="network", role="img",
        aria_label=f"The network, from the record to its output: {said}.",
        viewBox=f"0 0 {NETWORK_WIDTH:g} {height:g}", width=NETWORK_WIDTH, height=height,
    )  # fmt: skip


def bar(share: float, label: str, *, tone: str = "plain", mark: float | None = None) -> Markup:
    """Return a horizontal bar, as wide as the place it is put in; a line stands at the mark.

    A share outside [0, 1] is drawn as 0 or 1. The label says in words what the bar shows, and the
    tone is its class in the style sheet.
    """
    shapes = [
        element("rect", width="100%", height="100%", class_="track"),
        element("rect", width=percent(share), height="100%", class_=f"fill {tone}"),
    ]
    if mark is not None:
        place = percent(mark)
        shapes.append(element("line", x1=place, x2=place, y1="-3", y2="11", class_="mark"))
    return element(
        "svg", *shapes, class_="bar", role="img", aria_label=label, width="100%", height="8"
    )


def interval(
    at: float, ends: tuple[float, float] | None, label: str, *, tone: str = "plain"
) -> Markup:
    """Return a point on a line from 0 to 1, and between which values it may lie.

    Args:
        at: The point; what lies outside is drawn at the line's end.
        ends: None where it is exact.
        label: What it shows, in words.
        tone: Its class in the style sheet.
    """
    shapes = [element("line", x1="0", x2="100%", y1="8", y2="8", class_="axis")]
    if ends is not None:
        left, right = (percent(each) for each in ends)
        shapes.append(element("line", x1=left, x2=right, y1="8", y2="8", class_=f"spread {tone}"))
    shapes.append(element("circle", cx=percent(at), cy="8", r="5", class_=f"point {tone}"))
    return element(
        "svg", *shapes, class_="interval", role="img", aria_label=label, width="100%", height="16"
    )


def scale(labels: Sequence[str]) -> Markup:
    """Return labels at equal distances below a line, for eyes alone: bars say their values."""
    sides = ("tick", *("tick middle" for _ in labels[1:-1]), "tick end")
    shapes = [
        element("text", label, x=percent(place / (len(labels) - 1)), y="12", class_=side)
        for place, (label, side) in enumerate(zip(labels, sides, strict=True))
    ]
    return element("svg", *shapes, class_="scale", aria_hidden="true", width="100%", height="16")


def swatch(place: int) -> Markup:
    """Return the sample of a chart's line that stands beside its name."""
    line = element("line", x1="0", x2="28", y1="5", y2="5", class_=line_class(place))
    return element("svg", line, class_="swatch", aria_hidden="true", width="28", height="10")


def axis_names(across: str, up: str) -> list[Markup]:
    """Return what the axes of a chart are of: below its numbers, and above its highest line."""
    return [
        element("text", across, x="100%", y=PLOT + 40, class_="tick end"),
        element("text", up, x="0", y="-12", class_="tick"),
    ]


def chart(curves: Sequence[Curve], label: str, axes: tuple[str, str]) -> Markup:
    """Return lines, one or more of a point or more, over a common axis from 0; y is a share.

    Args:
        curves: The lines.
        label: What they show, in words.
        axes: What is to the right, and what upwards.
    """
    most = max(x for curve in curves for x, _ in curve.points) or 1.0
    ticks = ticks_of([y for curve in curves for _, y in curve.points])
    low, high = ticks[0], ticks[-1]
    shapes = axis_names(*axes)
    for tick in ticks:
        y = PLOT * (high - tick) / (high - low)
        shapes.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        shapes.append(element("text", f"{tick:.3g}", x="-8", y=y + 4, class_="tick end"))
    for share, side in ((0.0, "tick"), (0.5, "tick middle"), (1.0, "tick end")):
        text = f"{share * most:,.1f}".removesuffix(".0")
        shapes.append(element("text", text, x=percent(share), y=PLOT + 20, class_=side))
    lines = []
    for place, curve in enumerate(curves):
        scaled = [(100 * x / most, 100 * (high - y) / (high - low)) for x, y in curve.points]
        # One point would draw nothing: it becomes a short stroke.
        drawn = scaled if len(scaled) > 1 else [*scaled, (scaled[0][0] + 1, scaled[0][1])]
        lines.append(element("polyline", points=points_text(drawn), class_=line_class(place)))
    # Only what is in here is stretched to the page's width; its strokes are not.
    inside = element(
        "svg", *lines, viewBox="0 0 100 100", preserveAspectRatio="none", width="100%", height=PLOT
    )
    return element(
        "svg", *shapes, inside, class_="chart", role="img", aria_label=label, width="100%",
        height=PLOT + BELOW,
    )  # fmt: skip


def calibration(points: Sequence[tuple[float, float, float, float]], label: str) -> Markup:
    """Return shares that came true over what was predicted, and a line where both are equal.

    Args:
        points: (predicted, share, and between which shares it may lie), each in [0, 1].
        label: What it shows, in words.
    """
    shapes = axis_names("probability that the model gives", "share that came true")
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = PLOT * (1.0 - tick)
        shapes.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        if tick in (0.0, 0.5, 1.0):
            name = f"{100 * tick:.0f} %"
            side = "tick" if tick == 0.0 else "tick end" if tick == 1.0 else "tick middle"
            shapes.append(element("text", name, x="-8", y=y + 4, class_="tick end"))
            shapes.append(element("text", name, x=percent(tick), y=PLOT + 20, class_=side))
    shapes.append(element("line", x1="0", x2="100%", y1=PLOT, y2="0", class_="diagonal"))
    for at, share, low, high in points:
        x, (y, top, bottom) = percent(at), (PLOT * (1.0 - each) for each in (share, high, low))
        shapes.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="spread accent"))
        shapes.append(element("circle", cx=x, cy=y, r="4", class_="point accent"))
    return element(
        "svg", *shapes, class_="chart", role="img", aria_label=label, width="100%",
        height=PLOT + BELOW,
    )  # fmt: skip


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, an ellipsis last if something is left out."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def _stage(stage: Stage, top: float, left: float, width: float) -> list[Markup]:
    shapes = [
        element("rect", x=left, y=top, width=width, height=BOX, rx=2, class_=f"box {stage.tone}"),
        element("text", shortened(stage.title, LONGEST), x=TEXT, y=top + 12, class_="title"),
    ]
    for line, note in enumerate(stage.notes, 1):
        text = shortened(note, LONGEST + 4)
        shapes.append(element("text", text, x=TEXT, y=top + 12 + 17 * line, class_="note"))
    return shapes


def ticks_of(values: Sequence[float]) -> list[float]:
    """Return two to six round values around shares: tenths, or hundredths if they lie close."""
    spread = max(values) - min(values)
    step = 0.02 if spread <= 0.08 else 0.05 if spread <= 0.2 else 0.1 if spread <= 0.5 else 0.2
    # Rounded first: .9 / .1 is 9.000000000000002 for a computer.
    low = math.floor(round(min(values) / step, 6))
    high = max(math.ceil(round(max(values) / step, 6)), low + 1)
    return [place * step for place in range(low, high + 1)]


def line_class(place: int) -> str:
    """Return the class of a chart's line in the style sheet."""
    return f"line line-{place % 4 + 1}"


def points_text(corners: Sequence[tuple[float, float]]) -> str:
    """Return points as SVG writes them."""
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)


def percent(share: float) -> str:
    """Return a share, cut to [0, 1], as a length in per cent."""
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
