"""The features of a feature selection, ranked by what the released linear model makes of them.

    two classes         w_1 - w_0, of the score that decides between them
    a number            w
    several classes     |w|, the length over classes of one feature's weights

Weights are of encoded features, each in [0, 1], so they can be compared. They were released with
the model, so the figure costs nothing.

Source: docs/result.md, "Of a feature selection".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pasearch.displays.given import RESULT, Values, document_of, well_formed
from pasearch.displays.style import (
    BLUE,
    DASHED,
    VERMILION,
    drawing,
    text_of,
    tidy,
)
from pasearch.errors import UsageError
from pasearch.results import FEATURES, Result, trained_model

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 25
"""How many features are drawn where nothing else is said."""

UNTOLD = "Kept (how much each counts is in the run's folder)"
"""What is said of features whose document has no number for them."""

LETTERS = 40
"""The most letters of a feature's name."""


@dataclass(kw_only=True, eq=False)
class FeaturesDisplay:
    """The kept features of a run as a figure: a bar each, the longest first.

    Args:
        names: Of the features, the one that counts most first; of those without values, in the
            order in which they were chosen.
        values: A number for each; none where the document has none.
        measure: What the values are, with their unit.
        of: How many features an encoded record has.
        directions: What values above and below 0 speak for; empty where they have no sign.
        noise: Which value a feature that tells nothing may have by noise; None: not known.

    `plot` sets `ax_` and `figure_`.
    """

    names: tuple[str, ...]
    values: tuple[float, ...]
    measure: str
    of: int
    directions: tuple[str, ...] = ()
    noise: float | None = None
    ax_: Axes = field(init=False, repr=False)
    figure_: Figure = field(init=False, repr=False)

    @classmethod
    def from_result(cls, result: Result | dict[str, Any] | str | Path) -> Self:
        """Return the display of a finished feature selection.

        Args:
            result: What `select_features` returned or its folder: coefficients of the released
                model. Or its `result.json`, which holds none: how much each kept feature tells of
                the target, where the method estimated that, else their names alone.

        Raises:
            UsageError: It is none of them, not well formed, or of another task.
        """
        document = document_of(result)
        with well_formed(RESULT):
            if document["task"] != FEATURES:
                raise UsageError(
                    f"This run's task was {document['task']!r}: a FeaturesDisplay is of a "
                    f"{FEATURES} (`select_features`)."
                )
            path = result.path if isinstance(result, Result) else result
            if not isinstance(path, Mapping):
                return cls(**_coefficients(document, trained_model(path)))
            return cls(**_kept(document))

    def plot(self, ax: Axes | None = None, *, most: int = MOST, **kwargs: Any) -> Self:
        """Draw it.

        Args:
            ax: To draw on; None makes a figure.
            most: How many features are drawn, 1 or more.
            kwargs: Of `Axes.barh`, for the features' bars.

        Raises:
            UsageError: matplotlib is not installed; `most` is not above 0.
        """
        if not most >= 1:
            raise UsageError(f"most is {most!r}: expected a whole number, 1 or above.")
        names = self.names[:most]
        self.figure_, self.ax_ = drawing(ax, 1.6 + 0.26 * len(names))
        ax, rows = self.ax_, np.arange(1, len(names) + 1)
        if self.values:
            self._draw(ax, rows, np.asarray(self.values[:most]), kwargs)
        else:
            ax.plot(np.zeros(len(rows)), rows, "o", color=BLUE)
            ax.set_xticks([])
            ax.spines["bottom"].set_visible(False)
        self._label(ax, rows, names)
        return self

    def _draw(self, ax: Axes, rows: Any, values: Any, options: dict[str, Any]) -> None:
        """Draw a bar each; what speaks against has another colour and a hatch."""
        kinds = ((values >= 0, BLUE, ""), (values < 0, VERMILION, "////"))
        for place, (own, colour, hatch) in enumerate(kinds):
            if not own.any():
                continue
            label = text_of(self.directions[place]) if self.directions else None
            style = {"height": 0.72, "color": colour, "hatch": hatch, "edgecolor": "white"}
            ax.barh(rows[own], values[own], **{**style, "label": label, **options})
        if self.directions:
            ax.axvline(0.0, color="black", linewidth=0.8)
        if self.noise is not None:
            label = "reached by one in ten features that tell nothing"
            ax.axvline(self.noise, color="black", linestyle=DASHED, linewidth=1.2, label=label)

    def _label(self, ax: Axes, rows: Any, names: tuple[str, ...]) -> None:
        from pasearch.report.figures import shortened

        ax.set_yticks(rows, [text_of(shortened(each, LETTERS)) for each in names])
        ax.set_ylim(len(names) + 0.6, 0.4)
        ax.set_xlabel(self.measure)
        ax.set_ylabel("Feature" if self.values else "Feature, in the order of choice")
        tidy(ax, "x")
        ax.tick_params(axis="y", length=0)
        shown = f", {len(names):,} of them shown" if len(names) < len(self.names) else ""
        legend = bool(ax.get_legend_handles_labels()[1])
        ax.set_title(
            f"{len(self.names):,} of {self.of:,} features kept{shown}", fontsize="medium",
            loc="right", pad=22 if legend else 6,
        )  # fmt: skip
        if legend:
            ax.legend(
                loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize="small",
                frameon=False, borderaxespad=0.1,
            )  # fmt: skip


def _coefficients(document: Values, model: Any) -> Values:
    """Return what a display has of the released model, its features by their coefficients."""
    weights = np.asarray(model.coef_, float)
    per = "per unit of the encoded feature"
    directions: tuple[str, ...] = ()
    if len(weights) == 1:
        values, measure = weights[0], f"Coefficient (share of the target's width {per})"
        directions = ("raises the prediction", "lowers the prediction")
    elif len(weights) == 2:
        values = weights[1] - weights[0]
        directions = tuple(f"speaks for {name}" for name in model.classes_[[1, 0]])
        measure = f"Coefficient (score {per})"
    else:
        if model.link == "softmax":  # what all classes share decides nothing
            weights = weights - weights.mean(axis=0)
        values = np.sqrt((weights**2).sum(axis=0))
        measure = f"Length of the coefficients over {len(weights)} classes\n(score {per})"
    names = model.feature_names_
    kept = [place for place in np.argsort(-np.abs(values), kind="stable") if values[place] != 0.0]
    return {
        "names": tuple(names[place] for place in kept),
        "values": tuple(float(values[place]) for place in kept),
        "measure": measure, "of": document["best"]["of"], "directions": directions,
    }  # fmt: skip


def _kept(document: Values) -> Values:
    """Return what a display has of a document alone."""
    kept, of = document["best"]["features"], document["best"]["of"]
    told = {each["feature"]: each["uncertainty"] for each in document.get("relevance") or ()}
    if not set(kept) <= set(told):
        return {"names": tuple(kept), "values": (), "measure": UNTOLD, "of": of}
    ranked = sorted(kept, key=lambda name: -told[name])
    return {
        "names": tuple(ranked), "values": tuple(float(told[name]) for name in ranked),
        "measure": "Noisy symmetrical uncertainty with the target (0 to 1)", "of": of,
        "noise": document.get("relevance_of_noise"),
    }  # fmt: skip
