"""Noise multiplier and learning rate of the released training, step by step.

    sigma_t = sigma_0 factor(epoch of step t);    the learning rate is the same in every step

Source: docs/recipes.md; Yu et al., section IV.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pasearch.displays.given import RESULT, document_of, well_formed
from pasearch.displays.style import BLUE, VERMILION, drawing, tidy
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from pasearch.results import Result
    from pasearch.training.recipe import Recipe

MOST = 4000
"""At how many steps of a longer training it is asked."""

STEERED = "Noise as planned; it fell when the accuracy of validation queries stopped rising"
"""What is said of a schedule whose course the document does not hold."""

MARKS = 6
"""About how many markers a line has."""

Array = np.ndarray[Any, Any]


@dataclass(kw_only=True, eq=False)
class ScheduleDisplay:
    """A recipe's schedules as a figure: noise on the left axis, learning rate on the right one.

    Args:
        steps: Which of the training's steps, from 0; at most 4,000 of them.
        noise_multiplier: Of those steps; 0 of a training without privacy.
        learning_rate: Of those steps.
        steps_made: How many were made; fewer than planned where a filter ended the training. None:
            all of them.
        note: What else the reader should know, in a sentence; empty where nothing.

    `plot` sets `ax_` (of the noise), `learning_rate_ax_`, `figure_` and `lines_` (noise, rate).
    """

    steps: Array
    noise_multiplier: Array
    learning_rate: Array
    steps_made: int | None = None
    note: str = ""
    ax_: Axes = field(init=False, repr=False)
    learning_rate_ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)
    lines_: tuple[Line2D, Line2D] = field(init=False, repr=False)

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Return the display of a finished run.

        Args:
            result: What a search or `train` returned, its `result.json`, or its folder.

        Raises:
            UsageError: It is none of them, not well formed, or its model was not trained step by
                step.
        """
        from pasearch.report.facts import recipe_of

        document = document_of(result)
        with well_formed(RESULT):
            values = document["recipe"]
            if values.get("trainer") == "objective":
                raise UsageError(
                    "This run's model was trained in one piece, by objective perturbation or from "
                    "noisy moments: it has no steps to show."
                )
            recipe = recipe_of(values)
            slots = round(recipe.expected_batch_size / values["sampling_probability"])
            made = values.get("steps_made")
            return cls(**_by_step(recipe, slots), steps_made=None if made is None else int(made))

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw it.

        Args:
            ax: To draw on; None makes a figure. The learning rate has a second axis on its right.
            kwargs: Of `Axes.plot`, for both lines.

        Raises:
            UsageError: matplotlib is not installed.
        """
        self.figure_, self.ax_ = drawing(ax, 3.6)
        self.learning_rate_ax_ = self.ax_.twinx()
        shared = {
            "drawstyle": "steps-post", "linewidth": 1.8, "markersize": 6,
            "markevery": max(1, len(self.steps) // MARKS),
        }  # fmt: skip
        noise: dict[str, Any] = {
            **shared, "color": BLUE, "marker": "o", "linestyle": "-", "label": "noise multiplier"
        }  # fmt: skip
        rate: dict[str, Any] = {
            **shared, "color": VERMILION, "marker": "s", "linestyle": "-.",
            "markerfacecolor": "white", "label": "learning rate",
        }  # fmt: skip
        (first,) = self.ax_.plot(self.steps, self.noise_multiplier, **{**noise, **kwargs})
        (second,) = self.learning_rate_ax_.plot(
            self.steps, self.learning_rate, **{**rate, **kwargs}
        )
        self.lines_ = (first, second)
        self._label(self.ax_, self.learning_rate_ax_)
        return self

    def _label(self, ax: Axes, right: Axes) -> None:
        tidy(ax, "both")
        ax.set_xlabel("Step (from 0)")
        ax.set_ylabel("Noise multiplier\n(noise's deviation / sensitivity)")
        right.set_ylabel("Learning rate\n(per unit of mean gradient)")
        ax.yaxis.label.set_color(BLUE)
        right.yaxis.label.set_color(VERMILION)
        # Two flat lines would lie on each other, were both in the middle of their axes.
        ax.set_ylim(0.0, 1.2 * (float(self.noise_multiplier.max()) or 1.0))
        right.set_ylim(0.0, 1.8 * float(self.learning_rate.max()))
        right.spines["top"].set_visible(False)
        lines: list[Any] = list(self.lines_)
        if self.steps_made is not None and self.steps_made <= self.steps[-1]:
            label = f"ended after {self.steps_made:,} steps"
            lines.append(ax.axvline(self.steps_made, color="black", linewidth=1.0, label=label))
        if self.note:
            ax.set_title(
                self.note[:1].upper() + self.note[1:], fontsize="medium", loc="left", pad=24
            )
        ax.legend(
            handles=lines, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize="small",
            frameon=False, borderaxespad=0.1, handlelength=3.2,
        )  # fmt: skip


def _by_step(recipe: Recipe, slots: int) -> dict[str, Any]:
    """Return noise and rate of a training on so many records, at each of its steps or at many."""
    steps = np.unique(np.linspace(0, recipe.steps - 1, min(recipe.steps, MOST)).astype(int))
    noises = [recipe.noise_at(int(step), slots) or 0.0 for step in steps]
    if recipe.learning_rate is None:
        raise UsageError("The recipe of this result has no learning rate: it was never trained.")
    return {
        "steps": steps, "noise_multiplier": np.array(noises),
        "learning_rate": np.full(len(steps), recipe.learning_rate),
        "note": STEERED if recipe.schedule.steered else "",
    }  # fmt: skip
