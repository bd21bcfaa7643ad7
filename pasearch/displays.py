"""Figures of results, drawn with matplotlib: `from_...` reads the numbers, `plot` draws them.

The classes have the interface of the displays of scikit-learn. The report page has other figures
(`report.figures`), because `pasearch verify` renders the page again byte for byte, with any version
of matplotlib.

The colours can be distinguished by colour-blind readers. For prints in grey, lines differ by marker
and pattern, and bars by hatch. Dashed lines are limits, or values without privacy.

Source: Okabe and Ito 2008, "Color Universal Design" (the colours, without the yellow);
docs/rules.md, rules 1, 4, 9 and 10; docs/crossover.md; Bao et al., section III-C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pasearch.documents import PARSING_ERRORS
from pasearch.documents import short_repr as shown_error
from pasearch.errors import UsageError
from pasearch.files import read_json
from pasearch.planning import CalibratedPlan
from pasearch.results import FEATURE_SELECTION, Result, read_document, trained_model
from pasearch.terminal_escaping import escape_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from pasearch.crossover.report import CrossoverReport
    from pasearch.report.facts import Trial

__all__ = [
    "BudgetDisplay",
    "CrossoverDisplay",
    "FeaturesDisplay",
    "ScheduleDisplay",
    "TrialsDisplay",
]

Values = dict[str, Any]
Array = np.ndarray[Any, Any]

RESULT_FILE, CROSSOVER_FILE = "result.json", "crossover.json"
"""Names of the files that displays read."""

BLUE = "#0072B2"
VERMILION = "#D55E00"
SKY = "#56B4E9"
LINE_COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", SKY, "#000000")
LINE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINE_PATTERNS = (
    "-", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (9, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)),
)  # fmt: skip
"""Matplotlib line styles, in the order of the models of a crossover."""

DASHED_PATTERN = (0, (4, 3))
"""Line pattern of a limit, or of a value without privacy."""

GREY = "#555555"
PALE_GREY = "#DDDDDD"

EPSILON, DELTA = "\N{GREEK SMALL LETTER EPSILON}", "\N{GREEK SMALL LETTER DELTA}"

MAX_NAME_LENGTH = 40
"""Maximum length of the name of a trial or a feature, in characters."""

LEGEND_STYLE: Values = {"fontsize": "small", "frameon": False, "borderaxespad": 0.1}
"""Style of a legend above the axes."""


# --- common parts of all displays


def load_document(given: Any) -> Values:
    """Load the `result.json` of a run.

    Args:
        given: Result of a finished run, its document, or its folder.

    Raises:
        UsageError: The argument is none of these, or the folder has no result.
    """
    if isinstance(given, (str, Path)):
        return read_document(given)
    document = given.document if isinstance(given, Result) else given
    if isinstance(document, Mapping):
        return dict(document)
    raise UsageError(
        f"A display cannot be made from type {type(given).__name__}: expected the result of a "
        "finished run, its result.json as a dictionary, or its folder."
    )


@contextmanager
def refuse_malformed(name: str) -> Iterator[None]:
    """Convert exceptions from reading a malformed document to a UsageError that names it."""
    try:
        yield
    except PARSING_ERRORS as error:
        raise UsageError(f"{name} is not well formed: {shown_error(error)}.") from None


def score_unit(noun: str) -> str:
    """Return the unit of a metric, by the name of the metric in a document."""
    units = {
        "accuracy": "fraction of records",
        "balanced accuracy": "fraction of records, mean over classes",
        "log loss": "nats",
        "mean absolute error": "fraction of the target's range",
        "root mean squared error": "fraction of the target's range",
    }
    return units.get(noun, "from 0 to 1")


@dataclass(kw_only=True, eq=False)
class Display:
    """Base class of displays; `plot` sets the attributes `ax_` (matplotlib axes) and `figure_`."""

    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw the figure.

        Args:
            ax: Axes to draw on; None creates a figure with pyplot.
            kwargs: Options of matplotlib for the main lines or bars (`Axes.plot`, `Axes.barh` or
                `Axes.errorbar`). A `FeaturesDisplay` also has `most`, the maximum number of drawn
                features.

        Raises:
            UsageError: matplotlib is not installed, or `most` is below 1.
        """
        try:
            import matplotlib  # noqa: F401 - fails if it is not installed
        except ImportError:
            raise UsageError(
                "A display requires matplotlib, which is not installed: use "
                "`pip install 'pasearch[plots]'`."
            ) from None
        if ax is None:
            from matplotlib import pyplot

            self.figure_, self.ax_ = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
            self.figure_.set_figheight(self._draw(self.ax_, self.figure_, **kwargs))
        else:
            self.figure_, self.ax_ = ax.figure, ax  # pyright: ignore - may be a subfigure
            self._draw(ax, None, **kwargs)
        return self

    def _draw(self, ax: Axes, own: Figure | None, **kwargs: Any) -> float:
        """Draw on axes.

        Args:
            ax: Axes to draw on.
            own: Figure that the display created; None if the axes are those of the user.
            kwargs: Options of matplotlib.

        Returns:
            Suitable height of the figure, inches.
        """
        raise NotImplementedError


def escape_label(name: object) -> str:
    """Escape a name, so that matplotlib draws it literally and legends include it."""
    text = escape_text(name).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # legends omit names that begin with "_"


def style_axes(ax: Axes, grid: str) -> None:
    """Remove the frame of the axes, and draw a faint grid along the axis "x", "y" or "both"."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, axis=grid, color=PALE_GREY, linewidth=0.7)  # pyright: ignore[reportArgumentType]
    ax.set_axisbelow(True)


# --- budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Partition of the records, with its releases and their privacy cost."""

    name: str  # name of the partition
    records: int  # number of records
    epsilon: float  # privacy cost, for the delta of the run
    accountant: str  # accountant that computed this cost
    lines: tuple[str, ...]  # name and count of every release


@dataclass(kw_only=True, eq=False)
class BudgetDisplay(Display):
    """Privacy cost of a plan: a bar per partition with its releases, and a line for the budget.

    Partitions are disjoint, so the total cost is the maximum over partitions. The cost of several
    releases on the same records is computed jointly, so no release has a separate cost.

    Args:
        partitions: Partitions in the order of the plan.
        budget: Total epsilon that the user requested.
        delta: Delta of the run.

    `plot` also sets `bars_`.
    """

    partitions: tuple[Partition, ...]
    budget: float
    delta: float
    bars_: BarContainer = field(init=False, repr=False)

    @classmethod
    def from_plan(
        cls, plan_or_result: CalibratedPlan | Result | dict[str, Any] | str | Path
    ) -> Self:
        """Create the display of a plan or of a finished run.

        Args:
            plan_or_result: Plan from a `plan_...` function, a result, plain values of either, or
                the folder of a run.

        Raises:
            UsageError: The argument is none of these, or malformed.
        """
        given = plan_or_result
        values = given.plan_json() if isinstance(given, CalibratedPlan) else load_document(given)
        with refuse_malformed("The plan" if "lines" in values else RESULT_FILE):
            releases: dict[str, list[str]] = {name: [] for name in values["price_by_partition"]}
            for line in values["lines"] if "lines" in values else values["events"]:
                words = line["name"] + ("" if line["count"] == 1 else f" ({line['count']:,} times)")
                if line["event"]["type"] == "repeat-and-select":
                    words += ", the best of a secret number"
                releases.setdefault(line["partition"], []).append(words)
            slots = values["split"] if "split" in values else values["dataset"]["slots"]
            partitions = tuple(
                Partition(
                    name=str(name), records=int(slots.get(name, 0)),
                    epsilon=float(price["epsilon"]), accountant=str(price["accountant"]),
                    lines=tuple(releases[name]),
                )
                for name, price in values["price_by_partition"].items()
            )  # fmt: skip
            budget, delta = float(values["budget"]["epsilon"]), float(values["budget"]["delta"])
            return cls(partitions=partitions, budget=budget, delta=delta)

    @property
    def price(self) -> float:
        """Epsilon of the run: maximum over partitions."""
        return max(each.epsilon for each in self.partitions)

    def _draw(self, ax: Axes, own: Figure | None, **kwargs: Any) -> float:
        places, height = [], 0.0  # positions from top to bottom, in lines of text
        for part in self.partitions:
            places.append(height + 0.5)
            height += 2.9 + len(part.lines)
        epsilons = [each.epsilon for each in self.partitions]
        # The axis leaves space for the numbers behind the bars.
        most = 1.12 * max([self.budget, *filter(math.isfinite, epsilons)])
        widths = [each if math.isfinite(each) else most for each in epsilons]
        style: dict[str, Any] = {
            "height": 1.0, "color": [BLUE if each == self.price else SKY for each in epsilons],
            "hatch": ["" if each == self.price else "//" for each in epsilons],
            "edgecolor": "white",
        }  # fmt: skip
        self.bars_ = ax.barh(places, widths, **{**style, **kwargs})
        for place, width, part in zip(places, widths, self.partitions, strict=True):
            ax.annotate(
                f"{part.epsilon:.3f}", (width, place), (5, 0),
                textcoords="offset points", va="center", fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            )  # fmt: skip
            subtotal = "subtotal " if len(part.lines) > 1 else ""
            for row, line in enumerate([*part.lines, f"{subtotal}by {part.accountant}"]):
                ax.annotate(
                    escape_label(line), (0, place + 1.1 + row), (6, 0), textcoords="offset points",
                    va="center", fontsize="small", color=GREY,
                    style="normal" if row < len(part.lines) else "italic",
                )  # fmt: skip
        ax.axvline(
            self.budget, color="black", linestyle=DASHED_PATTERN, linewidth=1.2, zorder=0.9,
            label=f"budget, {self.budget:g}",
        )  # fmt: skip
        names = [
            escape_label(each.name) + (f"\n{each.records:,} records" if each.records else "")
            for each in self.partitions
        ]
        ax.set_yticks(places, names)
        ax.set_ylim(height - 0.4, -0.5)
        ax.set_xlim(0.0, most)
        ax.set_ylabel("Partition")
        ax.set_xlabel(f"{EPSILON} of the partition, at {DELTA} {self.delta:g}")
        style_axes(ax, "x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(
            f"Privacy cost {EPSILON} {self.price:.4g}: maximum over disjoint partitions",
            fontsize="medium", loc="left", pad=22,
        )  # fmt: skip
        (limit,), (name,) = ax.get_legend_handles_labels()
        ax.legend(
            [self.bars_[epsilons.index(self.price)], limit], ["total of the run", name],
            loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, **LEGEND_STYLE,
        )  # fmt: skip
        return 1.5 + 0.24 * height


# --- crossover


MODEL_FIELDS = ("name", "parameters", "error", "half_width", "error_without_privacy")
"""Fields of a model in crossover.json that the display reads."""

CROSSING_FIELDS = ("simple", "complex", "epsilon", "low", "high", "text")
"""Fields of a crossover in crossover.json that the display reads."""


@dataclass(kw_only=True, eq=False)
class CrossoverDisplay(Display):
    """Measured crossover: error of each model over epsilon, with confidence bands.

    Args:
        epsilons: Epsilons of the grid, ascending.
        models: Models, the simplest first, as in crossover.json: `name`, `parameters`, `error` and
            `half_width` (of a 95 % interval) at each epsilon, and `error_without_privacy`.
        crossings: Crossovers of every pair of models, as in crossover.json: names `simple` and
            `complex`, `epsilon` with its interval `low` to `high`, and `text`.
        metric: Name of the error, such as "1 - accuracy".
        data: Name of the data.
        n: Number of training records.
        repeats: Number of trainings of each model at each epsilon.

    `plot` sets `lines_`, one per model, and `crossing_lines_`, one for each crossover between the
    first and the last epsilon.
    """

    epsilons: tuple[float, ...]
    models: tuple[Values, ...]
    crossings: tuple[Values, ...]
    metric: str
    data: str
    n: int
    repeats: int
    lines_: list[Line2D] = field(init=False, repr=False)
    crossing_lines_: list[Line2D] = field(init=False, repr=False)

    @classmethod
    def from_report(cls, report: CrossoverReport | dict[str, Any] | str | Path) -> Self:
        """Create the display of a measured crossover.

        Args:
            report: Report from `measure_crossover`, its plain values, a crossover.json, or the
                folder with this file.

        Raises:
            UsageError: The argument is none of these, or malformed.
        """
        from pasearch.crossover.report import CrossoverReport

        values: Any = report
        if isinstance(report, (str, Path)):
            file = Path(report) / CROSSOVER_FILE if Path(report).is_dir() else Path(report)
            values = read_json(file, "a measured crossover (crossover.json)")
        elif isinstance(report, CrossoverReport):
            values = report.to_json()
        if not isinstance(values, Mapping):
            raise UsageError(
                f"A display cannot be made from type {type(values).__name__}: expected a "
                "CrossoverReport, its crossover.json as a dictionary, or the file."
            )
        with refuse_malformed(CROSSOVER_FILE):
            return cls(
                epsilons=tuple(map(float, values["epsilons"])),
                models=tuple(
                    {name: each[name] for name in MODEL_FIELDS} for each in values["models"]
                ),
                crossings=tuple(
                    {name: each[name] for name in CROSSING_FIELDS} for each in values["crossovers"]
                ),
                metric=str(values["metric"]), data=str(values["data"]), n=int(values["n"]),
                repeats=int(values["repeats"]),
            )  # fmt: skip

    def _draw(self, ax: Axes, own: Figure | None, **kwargs: Any) -> float:
        from matplotlib.lines import Line2D

        self.lines_, self.crossing_lines_ = [], []
        first, last, kinds = self.epsilons[0], self.epsilons[-1], len(LINE_COLOURS)
        ax.set_xscale("log")
        for place, model in enumerate(self.models):
            # After seven lines, the pattern of each colour changes, so that all lines differ.
            colour, marker = LINE_COLOURS[place % kinds], LINE_MARKERS[place % kinds]
            style: dict[str, Any] = {
                "color": colour, "marker": marker,
                "linestyle": LINE_PATTERNS[(place + place // kinds) % kinds], "markersize": 6,
                "linewidth": 1.8,
                "label": f"{escape_label(model['name'])} ({model['parameters']:,} parameters)",
                **kwargs,
            }  # fmt: skip
            errors, halves = np.array(model["error"]), np.array(model["half_width"])
            self.lines_ += ax.plot(self.epsilons, errors, **style)
            if halves.any():
                ax.fill_between(
                    self.epsilons, errors - halves, errors + halves, color=colour, alpha=0.16,
                    linewidth=0,
                )  # fmt: skip
            ax.plot(
                [first, last], [model["error_without_privacy"]] * 2, color=colour,
                linestyle=DASHED_PATTERN,
                linewidth=1.1, marker=marker, markevery=[0], markersize=7, markerfacecolor="white",
                clip_on=False, zorder=1.5,
            )  # fmt: skip
        for place, crossing in enumerate(self.crossings):
            epsilon, low, high = (crossing[name] for name in ("epsilon", "low", "high"))
            label = (
                f"{escape_label(crossing['simple'])} better than "
                f"{escape_label(crossing['complex'])} up to {EPSILON} "
                f"{escape_label(crossing['text'])}"
            )
            if epsilon is None or not first <= epsilon <= last:
                ax.add_line(Line2D([], [], linestyle="none", label=label))  # only in the legend
                continue
            pattern = ("-", "-.", ":")[place % 3]
            line = ax.axvline(epsilon, color=GREY, linewidth=1.3, label=label, linestyle=pattern)
            self.crossing_lines_.append(line)
            low = first if low is None else max(first, low)
            high = last if high is None else min(last, high)
            ax.axvspan(low, high, facecolor=GREY, alpha=0.13, linewidth=0, zorder=0.5)

        noun = self.metric.removeprefix("1 - ")
        name = f"Error, 1 \N{MINUS SIGN} {noun}"
        if noun == self.metric:
            name = self.metric[:1].upper() + self.metric[1:]
        ax.set_ylabel(f"{escape_label(name)} ({score_unit(noun)})")
        ax.set_xlabel(f"{EPSILON} of the training (logarithmic)")
        labelled = (lead * 10.0**power for power in range(-4, 5) for lead in (1, 2, 5))
        ticks = [each for each in labelled if first * 0.999 <= each <= last * 1.001]
        if 1 < len(ticks) <= 12:
            ax.set_xticks(ticks, [f"{each:g}" for each in ticks])
            ax.set_xticks([], minor=True)
        ax.set_xlim(first / (last / first) ** 0.02, last * (last / first) ** 0.02)
        ax.set_ylim(bottom=min(0.0, *(min(each["error"]) for each in self.models)))
        style_axes(ax, "both")
        band = "bands: 95 % CI" if self.repeats > 1 else "one repeat, so no confidence intervals"
        title = f"{escape_label(self.data)}, {self.n:,} training records; {band}"
        ax.set_title(title, fontsize="medium", loc="left")

        plain = Line2D(
            [], [], color=GREY, linestyle=DASHED_PATTERN, linewidth=1.1, marker="o", markersize=6,
            markerfacecolor="white", label="the same model without privacy",
        )  # fmt: skip
        handles, labels = ax.get_legend_handles_labels()
        models = len(self.models)
        handles[models:models], labels[models:models] = [plain], [str(plain.get_label())]
        legend: dict[str, Any] = {"fontsize": "small", "handlelength": 3.2}
        if own is not None:  # below the axes, where the legend hides no line
            half = (len(labels) + 1) // 2
            fits = max(map(len, labels[:half])) + max(map(len, labels[half:])) <= 88
            legend |= {"loc": "outside lower left", "ncols": 2 if fits else 1, "frameon": False}
            own.legend(handles, labels, **legend)
        else:
            ax.legend(handles, labels, loc="upper right", framealpha=0.9, **legend)
        return 4.2 + 0.1 * (len(self.models) + len(self.crossings))


# --- features


@dataclass(kw_only=True, eq=False)
class FeaturesDisplay(Display):
    """Selected features of a run: a bar per feature, the longest first.

    The length of a bar is a coefficient of the released linear model (features are in [0, 1]):

        two classes         w_1 - w_0, coefficient of the difference of the two logits
        regression          w
        several classes     |w|, Euclidean norm of a feature's weights over the classes

    Args:
        names: Names of the features by descending value; without values, in order of selection.
        values: One value per feature; empty if the document has none.
        measure: Name of the values, with their unit.
        of: Number of features of an encoded record.
        directions: Effects of positive and of negative values; empty if values have no sign.
        noise: Relevance that one in twenty irrelevant features exceeds by noise; None if unknown.
    """

    names: tuple[str, ...]
    values: tuple[float, ...]
    measure: str
    of: int
    directions: tuple[str, ...] = ()
    noise: float | None = None

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Create the display of a finished feature selection.

        Args:
            result: Result of `select_features` or its folder, which show the coefficients of the
                released model; or its `result.json`, which shows the noisy relevance of each
                feature if the method has estimated it, and otherwise the names.

        Raises:
            UsageError: The argument is none of these, malformed, or of another task.
        """
        document = load_document(result)
        with refuse_malformed(RESULT_FILE):
            if document["task"] != FEATURE_SELECTION:
                raise UsageError(
                    f"The task of this run is {document['task']!r}: a FeaturesDisplay requires a "
                    f"{FEATURE_SELECTION} (`select_features`)."
                )
            path, of = result.path if isinstance(result, Result) else result, document["best"]["of"]
            if not isinstance(path, Mapping):
                return cls._of_model(trained_model(path), of)
            kept = document["best"]["features"]
            relevance = {
                each["feature"]: each["uncertainty"] for each in document.get("relevance") or ()
            }
            if not set(kept) <= set(relevance):
                unknown = "Selected features (the run's folder has their coefficients)"
                return cls(names=tuple(kept), values=(), measure=unknown, of=of)
            ranked = sorted(kept, key=lambda name: -relevance[name])
            return cls(
                names=tuple(ranked), values=tuple(float(relevance[name]) for name in ranked),
                measure="Noisy symmetrical uncertainty with the target (0 to 1)", of=of,
                noise=document.get("relevance_of_noise"),
            )  # fmt: skip

    @classmethod
    def _of_model(cls, model: Any, of: int) -> Self:
        """Create the display of the coefficients of a linear model on `of` features."""
        weights = np.asarray(model.coef_, float)
        per = "per unit of the encoded feature"
        directions: tuple[str, ...] = ()
        if len(weights) == 1:
            values, measure = weights[0], f"Coefficient (fraction of the target's range {per})"
            directions = ("raises the prediction", "lowers the prediction")
        elif len(weights) == 2:
            values, measure = weights[1] - weights[0], f"Coefficient (logit {per})"
            directions = tuple(
                f"raises the probability of {name}" for name in model.classes_[[1, 0]]
            )
        else:
            if model.link == "softmax":  # the mean over classes does not affect probabilities
                weights = weights - weights.mean(axis=0)
            values = np.sqrt((weights**2).sum(axis=0))
            measure = f"Norm of the coefficients over {len(weights)} classes\n(logit {per})"
        ranked = [
            each for each in np.argsort(-np.abs(values), kind="stable") if values[each] != 0.0
        ]
        return cls(
            names=tuple(model.feature_names_[each] for each in ranked),
            values=tuple(float(values[each]) for each in ranked),
            measure=measure, of=of, directions=directions,
        )  # fmt: skip

    def _draw(self, ax: Axes, own: Figure | None, *, most: int = 25, **kwargs: Any) -> float:
        from pasearch.report.figures import shorten

        if not most >= 1:
            raise UsageError(f"most is {most!r}: expected an integer, 1 or above.")
        names, values = self.names[:most], np.asarray(self.values[:most])
        rows = np.arange(1, len(names) + 1)
        if self.values:
            # A negative value has another colour and a hatch.
            kinds = ((values >= 0, BLUE, ""), (values < 0, VERMILION, "////"))
            for place, (among, colour, hatch) in enumerate(kinds):
                if among.any():
                    label = escape_label(self.directions[place]) if self.directions else None
                    style: dict[str, Any] = {
                        "height": 0.72, "color": colour, "hatch": hatch, "edgecolor": "white",
                        "label": label, **kwargs,
                    }  # fmt: skip
                    ax.barh(rows[among], values[among], **style)
            if self.directions:
                ax.axvline(0.0, color="black", linewidth=0.8)
            if self.noise is not None:
                label = "exceeded by one in twenty irrelevant features"
                ax.axvline(
                    self.noise, color="black", linestyle=DASHED_PATTERN, linewidth=1.2, label=label
                )
        else:
            ax.plot(np.zeros(len(rows)), rows, "o", color=BLUE)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
        ax.set_yticks(rows, [escape_label(shorten(each, MAX_NAME_LENGTH)) for each in names])
        ax.set_ylim(len(names) + 0.6, 0.4)
        ax.set_xlabel(self.measure)
        ax.set_ylabel("Feature" if self.values else "Feature, in order of selection")
        style_axes(ax, "x")
        ax.tick_params(axis="y", length=0)
        few = f", {len(names):,} of them shown" if len(names) < len(self.names) else ""
        legend = bool(ax.get_legend_handles_labels()[1])
        ax.set_title(
            f"{len(self.names):,} of {self.of:,} features selected{few}", fontsize="medium",
            loc="right", pad=22 if legend else 6,
        )  # fmt: skip
        if legend:
            ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, **LEGEND_STYLE)
        return 1.6 + 0.26 * len(names)


# --- schedule


@dataclass(kw_only=True, eq=False)
class ScheduleDisplay(Display):
    """Schedules of a training: noise multiplier (left axis) and learning rate (right axis).

        sigma_t = sigma_0 factor(epoch of step t);    the learning rate is constant

    Args:
        steps: Indices of the drawn steps, from 0; at most 4,000.
        noise_multiplier: Noise multiplier of these steps; 0 without privacy.
        learning_rate: Learning rate of these steps.
        steps_made: Number of steps that were run, if it may be below the plan; otherwise None.
        note: Title of the figure; "" for none.

    `plot` sets `ax_` (axes of the noise), `learning_rate_ax_` and `lines_` (noise, rate).
    """

    steps: Array
    noise_multiplier: Array
    learning_rate: Array
    steps_made: int | None = None
    note: str = ""
    learning_rate_ax_: Axes = field(init=False, repr=False)
    lines_: tuple[Line2D, Line2D] = field(init=False, repr=False)

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Create the display of a finished run.

        Args:
            result: Result of a search or of `train`, its `result.json`, or its folder.

        Raises:
            UsageError: The argument is none of these, malformed, or its model was not trained in
                steps.
        """
        from pasearch.report.facts import restore_recipe

        document = load_document(result)
        with refuse_malformed(RESULT_FILE):
            values = document["recipe"]
            if values.get("trainer") == "objective":
                raise UsageError(
                    "The model of this run was trained by objective perturbation or from noisy "
                    "moments, so it has no steps to show."
                )
            recipe, made = restore_recipe(values), values.get("steps_made")
            slots = round(recipe.expected_batch_size / values["sampling_probability"])
            count = min(recipe.steps, 4000)
            steps = np.unique(np.linspace(0, recipe.steps - 1, count).astype(int))
            noises = [recipe.noise_multiplier_at(int(step), slots) or 0.0 for step in steps]
            if recipe.learning_rate is None:
                raise UsageError(
                    "The recipe of this result has no learning rate, so it was never trained."
                )
            # The document does not contain the noise that an adaptive schedule really used.
            note = "Planned noise; it decreased when the validation accuracy stopped rising"
            return cls(
                steps=steps, noise_multiplier=np.array(noises),
                learning_rate=np.full(len(steps), recipe.learning_rate),
                note=note if recipe.schedule.is_validation_driven else "",
                steps_made=None if made is None else int(made),
            )  # fmt: skip

    def _draw(self, ax: Axes, own: Figure | None, **kwargs: Any) -> float:
        self.learning_rate_ax_ = right = ax.twinx()
        shared: dict[str, Any] = {
            "drawstyle": "steps-post", "linewidth": 1.8, "markersize": 6,
            "markevery": max(1, len(self.steps) // 6),
        }  # fmt: skip
        noise = {
            **shared, "color": BLUE, "marker": "o", "linestyle": "-", "label": "noise multiplier"
        }  # fmt: skip
        rate = {
            **shared, "color": VERMILION, "marker": "s", "linestyle": "-.",
            "markerfacecolor": "white", "label": "learning rate",
        }  # fmt: skip
        (first,) = ax.plot(self.steps, self.noise_multiplier, **{**noise, **kwargs})
        (second,) = right.plot(self.steps, self.learning_rate, **{**rate, **kwargs})
        self.lines_ = (first, second)
        style_axes(ax, "both")
        ax.set_xlabel("Step (from 0)")
        ax.set_ylabel("Noise multiplier\n(standard deviation / sensitivity)")
        right.set_ylabel("Learning rate\n(per unit of mean gradient)")
        ax.yaxis.label.set_color(BLUE)
        right.yaxis.label.set_color(VERMILION)
        # Different limits keep two constant lines apart.
        ax.set_ylim(0.0, 1.2 * (float(self.noise_multiplier.max()) or 1.0))
        right.set_ylim(0.0, 1.8 * float(self.learning_rate.max()))
        right.spines["top"].set_visible(False)
        lines: list[Any] = list(self.lines_)
        if self.steps_made is not None and self.steps_made <= self.steps[-1]:
            label = f"ended after {self.steps_made:,} steps"
            lines.append(ax.axvline(self.steps_made, color="black", linewidth=1.0, label=label))
        if self.note:
            ax.set_title(self.note, fontsize="medium", loc="left", pad=24)
        ax.legend(
            handles=lines, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, handlelength=3.2,
            **LEGEND_STYLE,
        )  # fmt: skip
        return 3.6


# --- trials


@dataclass(kw_only=True, eq=False)
class TrialsDisplay(Display):
    """Trials of a run: one row each, with the noisy score and a standard deviation of the noise.

    Args:
        trials: Trials in the order of training; empty if they may not be shown.
        measure: Name of the scores, with their unit.
        reason: Sentence that is drawn instead if there is no trial to show; "" otherwise.
    """

    trials: tuple[Trial, ...]
    measure: str
    reason: str = ""

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Create the display of a finished run.

        Args:
            result: Result of a search, its `result.json`, or its folder.

        Raises:
            UsageError: The argument is none of these, or malformed.
        """
        from pasearch.report.facts import (
            describe_trial_scores,
            list_trials,
            ranking_metric,
            score_event,
        )

        secret = {
            "repeat-and-select": "The trials of this run are secret. The privacy cost covers only "
            "the best of a random number of trainings, not their number or the other scores.",
            "disjoint portions": "The trials of this run are secret. The privacy cost covers only "
            "the private selection of one of them, not the scores.",
        }
        document = load_document(result)
        with refuse_malformed(RESULT_FILE):
            rule = document["selection"]["rule"]
            if rule in secret:
                return cls(trials=(), measure="", reason=secret[rule])
            if rule == "none" or not document.get("trials"):
                nothing = "This run compared no candidates, so there are no trials to show."
                return cls(trials=(), measure="", reason=nothing)
            metric, measure = ranking_metric(document), describe_trial_scores(document)
            if score_event(document) is not None:
                is_higher = metric.to_metric_value(1.0) > metric.to_metric_value(0.0)
                better = "higher" if is_higher else "lower"
                measure += f"\n({score_unit(metric.noun)}; {better} is better)"
            return cls(trials=tuple(list_trials(document)), measure=measure)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each trial: its network and settings, or its features."""
        from pasearch.report.figures import shorten
        from pasearch.report.wording import describe_parts, format_settings, join_names
        from pasearch.spaces.candidate import Candidate

        names = []
        for each in self.trials:
            if "features" in each.values:
                features = each.values["features"]
                name = f"{len(features):,} features: {join_names(features)}"
            else:
                parameters = each.values["parameters"]
                settings = format_settings(parameters.get("settings") or {})
                network = ", ".join(describe_parts(Candidate.from_json(parameters)))
                name = "; ".join([network, *(f"{key} {value}" for key, value in settings)])
            names.append(shorten(name, MAX_NAME_LENGTH))
        return tuple(names)

    @property
    def scores(self) -> tuple[float | None, ...]:
        """Noisy score of each trial; None if the training failed."""
        return tuple(each.score for each in self.trials)

    @property
    def deviations(self) -> tuple[float | None, ...]:
        """Standard deviation of the noise of each score; None if it is unknown."""
        return tuple(each.deviation for each in self.trials)

    def _draw(self, ax: Axes, own: Figure | None, **kwargs: Any) -> float:
        # The rows have names if there are few.
        rows, few = range(1, len(self.trials) + 1), len(self.trials) <= 16
        if self.reason:
            ax.set_axis_off()
            ax.text(
                0.5, 0.5, fill(escape_label(self.reason), 56), transform=ax.transAxes, ha="center",
                va="center", linespacing=1.5,
            )  # fmt: skip
            return 2.2
        for released in (False, True):
            drawn = [
                (row, each.score, each.deviation or 0.0)
                for row, each in zip(rows, self.trials, strict=True)
                if each.released is released and each.score is not None
            ]
            if drawn:
                style: dict[str, Any] = {
                    "color": VERMILION if released else BLUE, "marker": "D" if released else "o",
                    "markersize": 8 if released else 6, "linestyle": "none", "capsize": 3,
                    "label": "selected" if released else "other trial", "zorder": 3,
                    "markerfacecolor": VERMILION if released else "white", **kwargs,
                }  # fmt: skip
                places, scores, deviations = zip(*drawn, strict=True)
                # Error bars of length 0 would suggest scores without noise.
                ax.errorbar(scores, places, xerr=deviations if any(deviations) else None, **style)
        for row, each in zip(rows, self.trials, strict=True):
            if each.score is None:
                ax.text(
                    0.01, row, "failed", transform=ax.get_yaxis_transform(), va="center",
                    color=GREY, fontsize="small",
                )  # fmt: skip
        if few:
            named = zip(rows, self.names, strict=True)
            ax.set_yticks(list(rows), [f"{row}:  {escape_label(name)}" for row, name in named])
        else:
            from matplotlib.ticker import MaxNLocator

            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(len(self.trials) + 0.6, 0.4)
        ax.set_ylabel("Trial number")
        ax.set_xlabel(self.measure)
        style_axes(ax, "x" if few else "both")
        title = "Error bars: one standard deviation of the noise"
        ax.set_title(title if any(self.deviations) else "", fontsize="medium", loc="right", pad=24)
        ax.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, handletextpad=0.4, **LEGEND_STYLE
        )
        return min(9.0, 1.7 + len(rows) * (0.36 if few else 0.13))
