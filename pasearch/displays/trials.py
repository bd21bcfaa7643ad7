"""The noisy scores of a run's trials, where they may be shown.

    score = shown(points / (records G)),      its noise: sd(Z) / (records G) times the slope there

Source: docs/rules.md, rules 9 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pasearch.displays.given import RESULT, Values, document_of, unit_of, well_formed
from pasearch.displays.style import (
    BLUE,
    GREY,
    VERMILION,
    drawing,
    text_of,
    tidy,
    write_instead,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pasearch.results import Result

LABELLED = 16
"""The most trials that are named; of more, every row has its number alone."""

LETTERS = 40
"""The most letters of a trial's name."""

SECRET = (
    "The trials of this run are secret. Its price covers the best of a random number of trainings; "
    "to show how many there were, or how the others scored, would break that."
)
PICKED = (
    "The trials of this run are secret. One of them was picked privately, and the price covers the "
    "pick alone: to show the scores would break that."
)
NOTHING = "Nothing was compared in this run, so there are no trials to show."
"""What is written in place of a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial that may be shown.

    Args:
        name: What was trained, in words.
        score: With noise; None if the training failed.
        deviation: Standard deviation of that noise; None where it is not known.
        won: Whether it is what the run released.
    """

    name: str
    score: float | None
    deviation: float | None
    won: bool


@dataclass(kw_only=True, eq=False)
class TrialsDisplay:
    """The trials of a run as a figure: a row each, its noisy score, one deviation of the noise.

    Args:
        trials: In the order of their training; none where they may not be shown.
        measure: What their scores are, with its unit.
        reason: Why there is none, in a sentence that is then written; empty otherwise.

    `plot` sets `ax_` and `figure_`.
    """

    trials: tuple[Trial, ...]
    measure: str
    reason: str = ""
    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Return the display of a finished run.

        Args:
            result: What a search returned, its `result.json`, or its folder.

        Raises:
            UsageError: It is none of them, or not well formed.
        """
        document = document_of(result)
        with well_formed(RESULT):
            rule = document["selection"]["rule"]
            if rule in ("repeat-and-select", "disjoint portions"):
                picked = rule == "disjoint portions"
                return cls(trials=(), measure="", reason=PICKED if picked else SECRET)
            if rule == "none" or not document.get("trials"):
                return cls(trials=(), measure="", reason=NOTHING)
            return cls(**_scored(document))

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The noisy score of each trial; None where the training failed."""
        return tuple(each.score for each in self.trials)

    @property
    def deviations(self) -> tuple[float | None, ...]:
        """The standard deviation of each score's noise; None where it is not known."""
        return tuple(each.deviation for each in self.trials)

    def plot(self, ax: Axes | None = None, **kwargs: Any) -> Self:
        """Draw it, or write why there is nothing to draw.

        Args:
            ax: To draw on; None makes a figure.
            kwargs: Of `Axes.errorbar`, for the trials' scores.

        Raises:
            UsageError: matplotlib is not installed.
        """
        rows = len(self.trials)
        height = 2.2 if self.reason else min(9.0, 1.7 + rows * (0.36 if rows <= LABELLED else 0.13))
        self.figure_, self.ax_ = drawing(ax, height)
        if self.reason:
            write_instead(self.ax_, self.reason)
            return self
        for won in (False, True):
            self._draw(self.ax_, won, kwargs)
        for row, each in enumerate(self.trials, 1):
            if each.score is None:
                self.ax_.text(
                    0.01, row, "failed", transform=self.ax_.get_yaxis_transform(), va="center",
                    color=GREY, fontsize="small",
                )  # fmt: skip
        self._label(self.ax_)
        return self

    def _draw(self, ax: Axes, won: bool, options: dict[str, Any]) -> None:
        """Draw the trials that won, or the others."""
        rows = [
            (row, each.score, each.deviation or 0.0)
            for row, each in enumerate(self.trials, 1)
            if each.won is won and each.score is not None
        ]
        if not rows:
            return
        style: dict[str, Any] = {
            "color": VERMILION if won else BLUE, "marker": "D" if won else "o",
            "markersize": 8 if won else 6, "linestyle": "none", "capsize": 3,
            "label": "the winner" if won else "another trial", "zorder": 3,
            "markerfacecolor": VERMILION if won else "white",
        }  # fmt: skip
        places, scores, deviations = zip(*rows, strict=True)
        # A deviation that is not known has no bar at all, which would look like noise of 0.
        bars = deviations if any(deviations) else None
        ax.errorbar(scores, places, xerr=bars, **{**style, **options})

    def _label(self, ax: Axes) -> None:
        rows = range(1, len(self.trials) + 1)
        if len(self.trials) <= LABELLED:
            ax.set_yticks(
                list(rows),
                [f"{row}:  {text_of(t.name)}" for row, t in zip(rows, self.trials, strict=True)],
            )
        else:
            from matplotlib.ticker import MaxNLocator

            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(len(self.trials) + 0.6, 0.4)
        ax.set_ylabel("Trial, by its number")
        ax.set_xlabel(self.measure)
        tidy(ax, "x" if len(self.trials) <= LABELLED else "both")
        known = any(self.deviations)
        title = "Bars: one standard deviation of the noise, either way" if known else ""
        ax.set_title(title, fontsize="medium", loc="right", pad=24)
        ax.legend(
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize="small", frameon=False,
            borderaxespad=0.2, handletextpad=0.4, borderpad=0.2,
        )  # fmt: skip


def _scored(document: Values) -> Values:
    """Return the fields of the display of trials that may be shown."""
    from pasearch.report.facts import judged_by, score_event, score_name, trials_of
    from pasearch.report.figures import shortened
    from pasearch.report.wording import parts_of, setting_words, some
    from pasearch.spaces.candidate import Candidate

    metric, measure, trials = judged_by(document), score_name(document), []
    if score_event(document) is not None:
        better = "higher" if metric.shown(1.0) > metric.shown(0.0) else "lower"
        measure += f"\n({unit_of(metric.noun)}; {better} is better)"
    for each in trials_of(document):
        if "features" in each.values:
            names = each.values["features"]
            name = f"{len(names):,} features: {some(names)}"
        else:
            parameters = each.values["parameters"]
            settings = setting_words(parameters.get("settings") or {})
            network = ", ".join(parts_of(Candidate.from_json(parameters)))
            name = "; ".join([network, *(f"{name} {value}" for name, value in settings)])
        trials.append(
            Trial(
                name=shortened(name, LETTERS), score=each.score, deviation=each.deviation,
                won=each.released,
            )
        )  # fmt: skip
    return {"trials": tuple(trials), "measure": measure}
