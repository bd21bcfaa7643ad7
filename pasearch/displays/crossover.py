"""Error over epsilon of several models, and where another one becomes the best.

Source: docs/crossover.md; Bao et al., section III-C.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pasearch.displays.given import CROSSOVER, measured_of, unit_of, well_formed
from pasearch.displays.style import DASHED, EPSILON, GREY, drawing, line_style, text_of, tidy

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from pasearch.crossover.report import CrossoverReport

TICKS = tuple(lead * 10.0**power for power in range(-4, 5) for lead in (1, 2, 5))
"""Which epsilons may have a label."""

MOST_TICKS = 12
LETTERS = 88
"""How many letters of a legend stand side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The curve of a model.

    Args:
        name: Of the model.
        parameters: How many are trained.
        errors: Mean error at each epsilon.
        half_widths: Half the width of its 95 % interval, likewise; 0 where there was one repeat.
        error_without_privacy: Mean error of trainings without noise.
    """

    name: str
    parameters: int
    errors: tuple[float, ...]
    half_widths: tuple[float, ...]
    error_without_privacy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Up to which epsilon the simpler of two models is the better one.

    Args:
        simple: Its name.
        complex: The other's.
        epsilon: 0: at none of the epsilons; None: at all of them.
        low: Of the bootstrap's interval of 95 %, likewise.
        high: Likewise.
        text: In words, the interval included.
    """

    simple: str
    complex: str
    epsilon: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(kw_only=True, eq=False)
class CrossoverDisplay:
    """A measured crossover as a figure: a line a model, with bands, over a logarithmic epsilon.

    Args:
        epsilons: Rising.
        models: Their curves, the simplest first.
        crossings: Of every pair of models.
        metric: What an error is, such as "1 - accuracy".
        data: What it was measured on.
        n: Training records.
        repeats: How often each model was trained at each epsilon.

    `plot` sets `ax_`, `figure_`, `lines_` (one a model) and `crossing_lines_` (one for each
    crossover between the first and the last epsilon).
    """

    epsilons: tuple[float, ...]
    models: tuple[Measured, ...]
    crossings: tuple[Crossing, ...]
    metric: str
    data: str
    n: int
    repeats: int
    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)
    lines_: list[Line2D] = field(init=False, repr=False)
    crossing_lines_: list[Line2D] = field(init=False, repr=False)

    @classmethod
    def from_report(cls, report: CrossoverReport | dict[str, Any] | str | Path) -> Self:
        """Return the display of a measured crossover.

        Args:
            report: What `measure_crossover` returned, its `to_json()`, or a crossover.json.

        Raises:
            UsageError: It is none of them, or not well formed.
        """
        values = measured_of(report)
        with well_formed(CROSSOVER):
            return cls(
                epsilons=tuple(map(float, values["epsilons"])),
                models=tuple(
                    Measured(
                        name=str(each["name"]), parameters=int(each["parameters"]),
                        errors=tuple(map(float, each["error"])),
                        half_widths=tuple(map(float, each["half_width"])),
                        error_without_privacy=float(each["error_without_privacy"]),
                    )
                    for each in values["models"]
                ),
                crossings=tuple(
                    Crossing(**{name: each[name] for name in Crossing.__slots__})
                    for each in values["crossovers"]
                ),
                metric=str(values["metric"]), data=str(values["data"]), n=int(values["n"]),
                repeats=int(values["repeats"]),
            )  # fmt: skip

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw it.

        Args:
            ax: To draw on; None makes a figure.
            kwargs: Of `Axes.plot`, for the models' lines.

        Raises:
            UsageError: matplotlib is not installed.
        """
        self.figure_, self.ax_ = drawing(ax, 4.2 + 0.1 * (len(self.models) + len(self.crossings)))
        own, ax, self.lines_, self.crossing_lines_ = ax is None, self.ax_, [], []
        ax.set_xscale("log")
        for place, model in enumerate(self.models):
            self._draw_model(ax, place, model, kwargs)
        for place, crossing in enumerate(self.crossings):
            self._draw_crossing(ax, place, crossing)
        self._label(ax)
        self._explain(ax, own)
        return self

    def _draw_model(self, ax: Axes, place: int, model: Measured, options: dict[str, Any]) -> None:
        style = line_style(place)
        name = f"{text_of(model.name)} ({model.parameters:,} parameters)"
        line_options = {**style, "markersize": 6, "linewidth": 1.8, "label": name, **options}
        self.lines_ += ax.plot(self.epsilons, model.errors, **line_options)
        pairs = list(zip(model.errors, model.half_widths, strict=True))
        if any(half > 0.0 for half in model.half_widths):
            ax.fill_between(
                self.epsilons, [mean - half for mean, half in pairs],
                [mean + half for mean, half in pairs], color=style["color"], alpha=0.16,
                linewidth=0,
            )  # fmt: skip
        ends = [self.epsilons[0], self.epsilons[-1]]
        ax.plot(
            ends, [model.error_without_privacy] * 2, color=style["color"], linestyle=DASHED,
            linewidth=1.1, marker=style["marker"], markevery=[0], markersize=7,
            markerfacecolor="white", clip_on=False, zorder=1.5,
        )  # fmt: skip

    def _draw_crossing(self, ax: Axes, place: int, crossing: Crossing) -> None:
        """Draw one; what is not between the first and the last epsilon is told in words alone."""
        from matplotlib.lines import Line2D

        first, last = self.epsilons[0], self.epsilons[-1]
        label = (
            f"{text_of(crossing.simple)} better than {text_of(crossing.complex)} up to "
            f"{EPSILON} {text_of(crossing.text)}"
        )
        if crossing.epsilon is None or not first <= crossing.epsilon <= last:
            ax.add_line(Line2D([], [], linestyle="none", label=label))
            return
        self.crossing_lines_.append(
            ax.axvline(
                crossing.epsilon, color=GREY, linewidth=1.3, label=label,
                linestyle=("-", "-.", ":")[place % 3],
            )
        )  # fmt: skip
        low = first if crossing.low is None else max(first, crossing.low)
        high = last if crossing.high is None else min(last, crossing.high)
        ax.axvspan(
            low, high, facecolor=GREY, alpha=0.13, linewidth=0, zorder=0.5,
        )  # fmt: skip

    def _label(self, ax: Axes) -> None:
        first, last = self.epsilons[0], self.epsilons[-1]
        noun = self.metric.removeprefix("1 - ")
        name = self.metric[:1].upper() + self.metric[1:]
        if noun != self.metric:
            name = f"Error, 1 \N{MINUS SIGN} {noun}"
        ax.set_ylabel(f"{text_of(name)} ({unit_of(noun)})")
        ax.set_xlabel(f"{EPSILON} of the training (logarithmic)")
        ticks = [each for each in TICKS if first * 0.999 <= each <= last * 1.001]
        if 1 < len(ticks) <= MOST_TICKS:
            ax.set_xticks(ticks, [f"{each:g}" for each in ticks])
            ax.set_xticks([], minor=True)
        ax.set_xlim(first / (last / first) ** 0.02, last * (last / first) ** 0.02)
        ax.set_ylim(bottom=min(0.0, *(min(each.errors) for each in self.models)))
        tidy(ax, "both")
        band = "bands: 95 % intervals" if self.repeats > 1 else "one repeat, so no intervals"
        ax.set_title(
            f"{text_of(self.data)}, {self.n:,} training records; {band}", fontsize="medium",
            loc="left",
        )  # fmt: skip

    def _explain(self, ax: Axes, own: bool) -> None:
        """Add the legend: below a figure of its own, so that it hides nothing; else inside."""
        from matplotlib.lines import Line2D

        plain = Line2D(
            [], [], color=GREY, linestyle=DASHED, linewidth=1.1, marker="o", markersize=6,
            markerfacecolor="white", label="the same model without privacy",
        )  # fmt: skip
        handles, labels = ax.get_legend_handles_labels()
        models = len(self.models)
        handles[models:models], labels[models:models] = [plain], [str(plain.get_label())]
        style: dict[str, Any] = {"fontsize": "small", "handlelength": 3.2}
        if own:
            half = (len(labels) + 1) // 2
            beside = max(map(len, labels[:half])) + max(map(len, labels[half:])) <= LETTERS
            style |= {"loc": "outside lower left", "ncols": 2 if beside else 1, "frameon": False}
            self.figure_.legend(handles, labels, **style)
        else:
            ax.legend(handles, labels, loc="upper right", framealpha=0.9, **style)
