"""Charts of results as SVG files: named lines, with a legend above them."""

from __future__ import annotations

from collections.abc import Sequence

from pasearch.report.figures import Curve, draw_lines, draw_swatch, make_element

WIDTH, HEIGHT, LEFT, TOP = 720, 340, 60, 76
STYLE = """
text { font: 13px sans-serif; fill: #444 } .tick { font-size: 12px } .name { fill: #111 }
.middle { text-anchor: middle } .end { text-anchor: end }
svg { overflow: visible } .grid { stroke: #ddd } .band { opacity: .15 }
.line { fill: none; stroke: #1a5fb4; stroke-width: 2; vector-effect: non-scaling-stroke }
.line-2 { stroke: #b35000; stroke-dasharray: 6 3 } .band-1 { fill: #1a5fb4 }
.line-3 { stroke: #26734d; stroke-dasharray: 2 3 } .band-2 { fill: #b35000 }
.line-4 { stroke: #8a3ab9; stroke-dasharray: 10 3 2 3 } .band-3 { fill: #26734d }
.band-4 { fill: #8a3ab9 }
"""


def draw_chart(
    title: str, axes: tuple[str, str], curves: Sequence[Curve], *, logarithmic: bool = False
) -> str:
    """Draw up to four lines as an SVG document of its own, with its style sheet.

    Args:
        title: Text above the chart.
        axes: Names of the horizontal and the vertical axis.
        curves: Lines, at least one.
        logarithmic: Whether the horizontal axis is logarithmic.
    """
    names = [
        make_element(
            "svg",
            draw_swatch(place),
            make_element("text", curve.name, x=34, y=10, class_="name"),
            x=LEFT + (WIDTH - LEFT) / 2 * (place % 2),
            y=26 + 17 * (place // 2),
        )
        for place, curve in enumerate(curves)
    ]
    inner = make_element(
        "svg",
        draw_lines(curves, title, axes, logarithmic=logarithmic),
        x=LEFT,
        y=TOP + 10,
        width=WIDTH - LEFT - 20,
        height=250,
    )
    return make_element(
        "svg",
        make_element("style", STYLE.strip()),
        make_element("rect", width="100%", height="100%", fill="#fff"),
        make_element("text", title, x=LEFT, y=18, class_="name"),
        *names,
        inner,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
    )
