"""Figures of the report page: inline SVG, coloured by the style sheet of the page.

Each figure is a pure function from numbers to markup. Shapes have classes, and the style sheet sets
their light, dark and printed colours. Widths are in per cent, so that a figure fits a phone without
scaling its text. Every string is escaped.

Unlike `pasearch.displays`, they do not use matplotlib: `pasearch verify` remakes the page byte for
byte with any installed versions, and matplotlib is an optional dependency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

PLOT_HEIGHT = 180.0
"""Height of the drawing area of a chart, in pixels."""

LABEL_HEIGHT = 48.0
"""Height of the tick labels and the axis name below a chart, in pixels."""

MIN_AXIS_VALUE = -0.2
MAX_AXIS_VALUE = 1.2
"""Limits of a vertical axis, as fractions; noisy or forged scores may be outside."""

LABELLED_EPSILONS = (
    0.0001, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    1000.0, 10_000.0, 100_000.0,
)  # fmt: skip
"""Epsilons that get a label on a logarithmic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A named line of a chart."""

    name: str  # name in the legend
    points: tuple[tuple[float, float], ...]  # (x, y), finite; y is a fraction
    # (low, high) of y at each point; empty without a band
    band: tuple[tuple[float, float], ...] = ()


def make_element(tag: str, *children: str, **attributes: object) -> Markup:
    """Make an SVG element; children that are not markup, and attribute values, are escaped.

    Args:
        tag: Name of the element.
        children: Content of the element.
        attributes: Attributes; `class_` means class, `aria_label` aria-label; None omits one.

    >>> make_element("text", "a < b", x=1.5, class_="soft")
    Markup('<text x="1.5" class="soft">a &lt; b</text>')
    """
    written = ""
    for name, value in attributes.items():
        if value is not None:
            text = escape(f"{value:.6g}" if isinstance(value, float) else str(value))
            written += f' {name.rstrip("_").replace("_", "-")}="{text}"'
    return Markup(f"<{tag}{written}>{Markup('').join(children)}</{tag}>")


def draw_bar(
    value: float, label: str, *, of: float = 1.0, tone: str = "plain", mark: float | None = None
) -> Markup:
    """Draw a horizontal bar, as wide as its container.

    Args:
        value: Length of the bar, clipped to [0, of].
        label: Description for a screen reader.
        of: Value of a bar with full width; 0 draws no bar.
        tone: Class in the style sheet, "plain" or "accent".
        mark: Value at which a line is drawn; None: no line.
    """
    share = value / of if of > 0 else 0.0
    shapes = [
        make_element("rect", width="100%", height="100%", class_="track"),
        make_element("rect", width=format_percent(share), height="100%", class_=f"fill {tone}"),
    ]
    if mark is not None:
        place = format_percent(mark / of)
        shapes.append(make_element("line", x1=place, x2=place, y1="-3", y2="11", class_="mark"))
    return make_element(
        "svg", *shapes, class_="bar", role="img", aria_label=label, width="100%", height="8"
    )


def draw_interval(
    at: float, ends: tuple[float, float] | None, label: str, *, tone: str = "plain"
) -> Markup:
    """Draw a point and its interval on a line from 0 to 1.

    Args:
        at: Position of the point, clipped to [0, 1].
        ends: Ends of the interval, (low, high); None if the value is exact.
        label: Description for a screen reader.
        tone: Class in the style sheet, "plain" or "accent".
    """
    shapes = [make_element("line", x1="0", x2="100%", y1="8", y2="8", class_="axis")]
    if ends is not None:
        left, right = (format_percent(each) for each in ends)
        shapes.append(
            make_element("line", x1=left, x2=right, y1="8", y2="8", class_=f"spread {tone}")
        )
    shapes.append(
        make_element("circle", cx=format_percent(at), cy="8", r="5", class_=f"point {tone}")
    )
    return make_element(
        "svg", *shapes, class_="interval", role="img", aria_label=label, width="100%", height="16"
    )


def draw_scale(labels: Sequence[str]) -> Markup:
    """Draw the labels of a scale at equal distances, hidden from screen readers."""
    sides = ("tick", *("tick middle" for _ in labels[1:-1]), "tick end")
    shapes = [
        make_element(
            "text", label, x=format_percent(place / (len(labels) - 1)), y="12", class_=side
        )
        for place, (label, side) in enumerate(zip(labels, sides, strict=True))
    ]
    return make_element(
        "svg", *shapes, class_="scale", aria_hidden="true", width="100%", height="16"
    )


def draw_swatch(place: int) -> Markup:
    """Draw a sample of the line at position `place` of a chart, for the legend."""
    line = make_element("line", x1="0", x2="28", y1="5", y2="5", class_=line_class(place))
    return make_element("svg", line, class_="swatch", aria_hidden="true", width="28", height="10")


def draw_axis_names(across: str, up: str) -> list[Markup]:
    """Draw the names of the horizontal and the vertical axis of a chart."""
    return [
        make_element("text", across, x="100%", y=PLOT_HEIGHT + 40, class_="tick end"),
        make_element("text", up, x="0", y="-12", class_="tick"),
    ]


def draw_lines(
    curves: Sequence[Curve], label: str, axes: tuple[str, str], *, logarithmic: bool = False,
    score: tuple[float, float, float] | None = None,
) -> Markup:  # fmt: skip
    """Draw lines in a chart whose horizontal axis starts at 0 or is logarithmic.

    Args:
        curves: Lines, at least one, each with at least one point.
        label: Description of the figure for a screen reader.
        axes: Names of the horizontal and the vertical axis.
        logarithmic: Whether the x axis is logarithmic and begins at the smallest x.
        score: Single point (x, y, standard error); omitted if x is outside the range of the lines.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    ys += [y for curve in curves for ends in curve.band for y in ends]
    ys += [] if score is None else [score[1]]
    ticks = choose_ticks([min(MAX_AXIS_VALUE, max(MIN_AXIS_VALUE, y)) for y in ys])
    low, high = ticks[0], ticks[-1]
    first, last = (min(xs), max(xs)) if logarithmic else (0.0, max(xs) or 1.0)

    def to_width(x: float) -> float:
        if logarithmic:
            return 100 * (math.log(x) - math.log(first)) / (math.log(last) - math.log(first))
        return 100 * x / last

    def to_height(y: float) -> float:
        return 100 * (high - y) / (high - low)

    shapes = draw_axis_names(*axes)
    for tick in ticks:
        y = PLOT_HEIGHT * (high - tick) / (high - low)
        shapes.append(make_element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        shapes.append(make_element("text", f"{tick:.3g}", x="-8", y=y + 4, class_="tick end"))
    labels = [
        (each, f"{each:g}", "tick middle") for each in LABELLED_EPSILONS if first <= each <= last
    ]
    if not logarithmic:
        sides = (0.0, "tick"), (0.5 * last, "tick middle"), (last, "tick end")
        labels = [(x, f"{x:,.1f}".removesuffix(".0"), side) for x, side in sides]
    for x, text, side in labels:
        at = format_percent(to_width(x) / 100)
        shapes.append(make_element("text", text, x=at, y=PLOT_HEIGHT + 20, class_=side))
    drawn = [[(to_width(x), to_height(y)) for x, y in curve.points] for curve in curves]
    inside = []
    for place, (curve, points) in enumerate(zip(curves, drawn, strict=True)):
        up = [(x, to_height(end)) for (x, _), (_, end) in zip(points, curve.band, strict=False)]
        below = [(x, to_height(end)) for (x, _), (end, _) in zip(points, curve.band, strict=False)]
        if corners := format_points([*up, *reversed(below)]):
            inside.append(
                make_element("polygon", points=corners, class_=f"band band-{place % 4 + 1}")
            )
    for place, points in enumerate(drawn):
        # A single point is drawn as a short stroke.
        stroke = points if len(points) > 1 else [*points, (points[0][0] + 1, points[0][1])]
        inside.append(
            make_element("polyline", points=format_points(stroke), class_=line_class(place))
        )
    # This element alone is stretched to the width of the page; its strokes keep their width.
    shapes.append(
        make_element("svg", *inside, viewBox="0 0 100 100", preserveAspectRatio="none",
                     width="100%", height=PLOT_HEIGHT)
    )  # fmt: skip
    if score is not None and first <= score[0] <= last:
        x, y, error = score
        at = format_percent(to_width(x) / 100)
        ends = [PLOT_HEIGHT * to_height(y + by) / 100 for by in (-error, error)]
        shapes += [
            make_element("line", x1=at, x2=at, y1=ends[0], y2=ends[1], class_="mark"),
            make_element(
                "circle", cx=at, cy=PLOT_HEIGHT * to_height(y) / 100, r="4.5", class_="own"
            ),
        ]
    return make_element(
        "svg", *shapes, class_="chart", role="img", aria_label=label, width="100%",
        height=PLOT_HEIGHT + LABEL_HEIGHT,
    )  # fmt: skip


def draw_calibration(points: Sequence[tuple[float, float, float, float]], label: str) -> Markup:
    """Draw observed fractions over predicted probabilities, with the diagonal.

    Args:
        points: (predicted, observed, low, high) of each group, in [0, 1]; low and high are the ends
            of the confidence interval.
        label: Description for a screen reader.
    """
    shapes = draw_axis_names("predicted probability", "observed fraction")
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = PLOT_HEIGHT * (1.0 - tick)
        shapes.append(make_element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        if tick in (0.0, 0.5, 1.0):
            name = f"{100 * tick:.0f} %"
            side = "tick" if tick == 0.0 else "tick end" if tick == 1.0 else "tick middle"
            shapes.append(make_element("text", name, x="-8", y=y + 4, class_="tick end"))
            shapes.append(
                make_element("text", name, x=format_percent(tick), y=PLOT_HEIGHT + 20, class_=side)
            )
    shapes.append(
        make_element("line", x1="0", x2="100%", y1=PLOT_HEIGHT, y2="0", class_="diagonal")
    )
    for at, share, low, high in points:
        x = format_percent(at)
        y, top, bottom = (PLOT_HEIGHT * (1.0 - each) for each in (share, high, low))
        shapes.append(make_element("line", x1=x, x2=x, y1=top, y2=bottom, class_="spread accent"))
        shapes.append(make_element("circle", cx=x, cy=y, r="4", class_="point accent"))
    return make_element(
        "svg", *shapes, class_="chart", role="img", aria_label=label, width="100%",
        height=PLOT_HEIGHT + LABEL_HEIGHT,
    )  # fmt: skip


def shorten(text: str, most: int) -> str:
    """Shorten a string to at most `most` characters, with an ellipsis at its end."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def choose_ticks(values: Sequence[float]) -> list[float]:
    """Choose two to six round tick values that enclose fractions."""
    spread = max(values) - min(values)
    step = 0.02 if spread <= 0.08 else 0.05 if spread <= 0.2 else 0.1 if spread <= 0.5 else 0.2
    # Rounded first, because .9 / .1 is 9.000000000000002 in floating point.
    low = math.floor(round(min(values) / step, 6))
    high = max(math.ceil(round(max(values) / step, 6)), low + 1)
    return [place * step for place in range(low, high + 1)]


def line_class(place: int) -> str:
    """Return the style sheet's class of the line at position `place` of a chart."""
    return f"line line-{place % 4 + 1}"


def format_points(corners: Sequence[tuple[float, float]]) -> str:
    """Format points as the attribute `points` of an SVG element."""
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)


def format_percent(share: float) -> str:
    """Format a fraction, clipped to [0, 1], as an SVG length in per cent."""
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"
