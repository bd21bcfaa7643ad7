"""What a run's plan costs: the price of each partition, and the releases that it pays for.

Partitions share no record, so the price of the run is the largest of theirs. Releases of the same
records are priced together: a share for each of them does not exist, and none is drawn.

Source: docs/rules.md, rules 1 and 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pasearch.displays.given import RESULT, Values, document_of, well_formed
from pasearch.displays.style import BLUE, DASHED, DELTA, EPSILON, GREY, SKY, drawing, text_of, tidy
from pasearch.planning import Charged

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure

    from pasearch.results import Result

ROOM = 1.12
"""How far the axis goes beyond the largest price and the budget, for the numbers at the bars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A part of the records, and what is released of it.

    Args:
        name: Of the partition.
        records: How many it has.
        epsilon: Its price, at the delta of the run.
        accountant: What priced it.
        lines: Name and count of every release, in words.
    """

    name: str
    records: int
    epsilon: float
    accountant: str
    lines: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class BudgetDisplay:
    """A plan's price as a figure: a bar a partition, its releases below, the budget as a line.

    Args:
        partitions: In the plan's order.
        budget: Epsilon that was asked for.
        delta: Of the whole run.

    `plot` sets `ax_`, `figure_` and `bars_`.
    """

    partitions: tuple[Partition, ...]
    budget: float
    delta: float
    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)
    bars_: BarContainer = field(init=False, repr=False)

    @classmethod
    def from_plan(cls, plan_or_result: Charged | Result | dict[str, Any] | str | Path) -> Self:
        """Return the display of a plan, or of a finished run.

        Args:
            plan_or_result: What a `plan_...` function or a search returned, its plain values, or
                the run's folder.

        Raises:
            UsageError: It is none of them, or not well formed.
        """
        given = plan_or_result
        values = given.priced_json() if isinstance(given, Charged) else document_of(given)
        with well_formed("The plan" if "lines" in values else RESULT):
            lines = values["lines"] if "lines" in values else values["events"]
            slots = values["split"] if "split" in values else values["dataset"]["slots"]
            partitions = tuple(
                Partition(
                    name=str(name), records=int(slots.get(name, 0)),
                    epsilon=float(price["epsilon"]), accountant=str(price["accountant"]),
                    lines=tuple(_words(each) for each in lines if each["partition"] == name),
                )
                for name, price in values["price_by_partition"].items()
            )  # fmt: skip
            budget = values["budget"]
            return cls(
                partitions=partitions, budget=float(budget["epsilon"]),
                delta=float(budget["delta"]),
            )  # fmt: skip

    @property
    def price(self) -> float:
        """Epsilon of the whole run: the largest of the partitions."""
        return max(each.epsilon for each in self.partitions)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw it.

        Args:
            ax: To draw on; None makes a figure.
            kwargs: Of `Axes.barh`, for the partitions' bars.

        Raises:
            UsageError: matplotlib is not installed.
        """
        places, height = self._places()
        self.figure_, self.ax_ = drawing(ax, 1.5 + 0.24 * height)
        ax = self.ax_
        most = ROOM * max([self.budget, *filter(math.isfinite, self._epsilons())])
        widths = [each if math.isfinite(each) else most for each in self._epsilons()]
        dearest = [each == self.price for each in self._epsilons()]
        style: dict[str, Any] = {
            "height": 1.0, "color": [BLUE if each else SKY for each in dearest],
            "hatch": ["" if each else "//" for each in dearest], "edgecolor": "white",
        }  # fmt: skip
        self.bars_ = ax.barh(places, widths, **{**style, **kwargs})
        for place, width, part in zip(places, widths, self.partitions, strict=True):
            ax.annotate(
                f"{part.epsilon:.3f}", (width, place), (5, 0),
                textcoords="offset points", va="center", fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            )  # fmt: skip
            together = "together " if len(part.lines) > 1 else ""
            for row, line in enumerate([*part.lines, f"priced {together}by {part.accountant}"]):
                ax.annotate(
                    text_of(line), (0, place + 1.1 + row), (6, 0), textcoords="offset points",
                    va="center", fontsize="small", color=GREY,
                    style="normal" if row < len(part.lines) else "italic",
                )  # fmt: skip
        self._label(ax, places, height, most)
        return self

    def _epsilons(self) -> list[float]:
        return [each.epsilon for each in self.partitions]

    def _places(self) -> tuple[list[float], float]:
        """Return where each bar stands, downwards in lines of text, and the height of all."""
        places, top = [], 0.0
        for part in self.partitions:
            places.append(top + 0.5)
            top += 2.9 + len(part.lines)
        return places, top

    def _label(self, ax: Axes, places: list[float], height: float, most: float) -> None:
        ax.axvline(
            self.budget, color="black", linestyle=DASHED, linewidth=1.2, zorder=0.9,
            label=f"budget, {self.budget:g}",
        )  # fmt: skip
        names = [
            text_of(each.name) + (f"\n{each.records:,} records" if each.records else "")
            for each in self.partitions
        ]
        ax.set_yticks(places, names)
        ax.set_ylim(height - 0.4, -0.5)
        ax.set_xlim(0.0, most)
        ax.set_ylabel("Partition")
        ax.set_xlabel(f"{EPSILON} of the partition, at {DELTA} {self.delta:g}")
        tidy(ax, "x")
        ax.tick_params(axis="y", length=0)
        ax.set_title(
            f"Price {self.price:.4g}: the largest of the partitions, as each record is in one",
            fontsize="medium", loc="left", pad=22,
        )  # fmt: skip
        dearest = self.bars_[self._epsilons().index(self.price)]
        (limit,), (name,) = ax.get_legend_handles_labels()
        ax.legend(
            [dearest, limit], ["the price of the run", name], loc="lower left", frameon=False,
            bbox_to_anchor=(0.0, 1.0), fontsize="small", ncols=2, borderaxespad=0.1,
        )  # fmt: skip


def _words(line: Values) -> str:
    """Return a release's name and how often it is made, which of a selection is secret."""
    times = "" if line["count"] == 1 else f", {line['count']:,} times"
    if line["event"]["type"] == "repeat-and-select":
        times += ", the best of a secret number"
    return f"{line['name']}{times}"
