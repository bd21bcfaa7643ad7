"""What a measured comparison found: error over epsilon, and where the best model changes.

Source: Bao et al., section III-C, Definition 2, and section VI-D (Fig. 8: the envelope of several).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pasearch import notebooks
from pasearch.crossover.curves import Crossover, band, envelope, simplest
from pasearch.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossoverReport:
    """Error over epsilon of several models, and where the best of them changes.

    Args:
        data: What it was measured on.
        n: Training records.
        delta: Of every training.
        metric: What an error is: 1 - accuracy, or the mean absolute error.
        names: Of the models, the one with the fewest trained parameters first.
        parameters: How many each trains.
        epsilons: Rising.
        errors: (models, epsilons, repeats).
        plain: Without privacy, (models, repeats).
        crossovers: Of every pair.
        assumes: What must hold for it to tell of other records; nothing, of these.
    """

    data: str
    n: int
    delta: float
    metric: str
    names: tuple[str, ...]
    parameters: tuple[int, ...]
    epsilons: tuple[float, ...]
    errors: np.ndarray
    plain: np.ndarray
    crossovers: tuple[Crossover, ...]
    assumes: str = ""

    @property
    def repeats(self) -> int:
        """How often each model was trained at each epsilon."""
        return self.errors.shape[2]

    @property
    def best(self) -> tuple[str, ...]:
        """The model of least mean error at each epsilon."""
        return tuple(self.names[place] for place in envelope(self.errors))

    @property
    def taken(self) -> tuple[str, ...]:
        """The model to take at each epsilon: the simplest not significantly worse than the best.

        By a two-sided paired t-test over repeats at 95 %, corrected for the number of tests. With
        one repeat, the best.
        """
        return tuple(self.names[place] for place in simplest(self.errors))

    def cost_of_privacy(self) -> np.ndarray:
        """Return cost(eps, h) = err_eps(h) - err(h), means over repeats, (models, epsilons)."""
        return self.errors.mean(axis=2) - self.plain.mean(axis=1)[:, None]

    def model_at(self, epsilon: float) -> str:
        """Return the model to take at an epsilon, as `taken` at the nearest one measured.

        Raises:
            UsageError: It is not above 0.
        """
        if not (epsilon > 0.0 and math.isfinite(epsilon)):
            raise UsageError(f"epsilon is {epsilon!r}: expected a number above 0.")
        logs = np.abs(np.log(self.epsilons) - math.log(epsilon))
        return self.taken[int(logs.argmin())]

    def sentence(self) -> str:
        """Return which model to take where, in one or two sentences.

        Where that is not the best on average, the best is named too.
        """
        taken, changes = self.taken, []
        for before, after, epsilon in zip(taken, taken[1:], self.epsilons[1:], strict=False):
            if before != after:
                changes.append(f"from about {epsilon:.2g} on, {after}")
        first, last = self.epsilons[0], self.epsilons[-1]
        if changes:
            said = f"From epsilon {first:g} on take {taken[0]}; {'; '.join(changes)}."
        else:
            said = f"Take {taken[0]}, at every epsilon from {first:g} to {last:g}."
        if self.repeats == 1:
            return f"{said} Each point is one training: how sure that is, one cannot tell."
        others = [
            epsilon
            for epsilon, simple, best in zip(self.epsilons, taken, self.best, strict=True)
            if simple != best
        ]
        if others:
            said += (
                " That is the simplest model that the repeats cannot tell from the best; at "
                f"{', '.join(f'{each:g}' for each in others)} another has the best mean."
            )
        return said

    def plot(self, ax: Any = None, **kwargs: Any) -> Any:
        """Draw error over epsilon of every model, and where another becomes the best.

        Args:
            ax: Axes of matplotlib to draw on; None makes a figure.
            kwargs: As of `CrossoverDisplay.plot`.

        Returns:
            CrossoverDisplay: With `figure_` and `ax_`.

        Raises:
            UsageError: matplotlib is not installed (`pip install 'pasearch[plots]'`).
        """
        return notebooks.plotted(self, ["crossover"], None, ax, **kwargs)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "data": self.data, "n": self.n, "delta": self.delta, "metric": self.metric,
            "repeats": self.repeats, "epsilons": list(self.epsilons),
            "models": [
                {
                    "name": name, "parameters": size, "error": np.round(means, 5).tolist(),
                    "half_width": np.round(halves, 5).tolist(),
                    "error_without_privacy": round(float(plain.mean()), 5),
                    "cost_of_privacy": np.round(cost, 5).tolist(),
                }
                for name, size, (means, halves), plain, cost in zip(
                    self.names, self.parameters, map(band, self.errors), self.plain,
                    self.cost_of_privacy(), strict=True,
                )
            ],
            "best": list(self.best), "taken": list(self.taken),
            "crossovers": [
                {
                    "simple": each.simple, "complex": each.complex,
                    "epsilon": _number(each.epsilon), "low": _number(each.low),
                    "high": _number(each.high), "every": [round(e, 4) for e in each.every],
                    "text": each.text(self.epsilons), "sentence": each.sentence(self.epsilons),
                }
                for each in self.crossovers
            ],
            "sentence": self.sentence(),
            "assumes": self.assumes,
        }  # fmt: skip

    def as_accuracy(self, released: str) -> dict[str, Any]:
        """Return what a run's report shows of it, as a grid's: one minus the error of each model.

        Args:
            released: Name of the model that the run released.
        """
        bands = [band(each) for each in self.errors]
        sizes = self.parameters
        return {
            "kind": "measured",
            "epsilons": list(self.epsilons),
            "repeats": self.repeats,
            "models": [
                {
                    "name": name, "parameters": size,
                    "roles": [
                        role
                        for role, has in (("released", name == released),
                                          ("simplest", size == min(sizes)),
                                          ("largest", size == max(sizes)))
                        if has
                    ],
                    "accuracy": np.round(1.0 - means, 4).tolist(),
                    "low": np.round(np.clip(1.0 - means - halves, 0.0, 1.0), 4).tolist(),
                    "high": np.round(np.clip(1.0 - means + halves, 0.0, 1.0), 4).tolist(),
                }
                for name, size, (means, halves) in zip(self.names, sizes, bands, strict=True)
            ],
            "own": {"epsilon": self.epsilons[-1], "score": None, "standard_error": 0.0},
            "crossings": [
                {"before": each.simple, "after": each.complex, "epsilon": _number(each.epsilon),
                 "low": _number(each.low), "high": _number(each.high),
                 "text": each.text(self.epsilons), "sentence": each.sentence(self.epsilons)}
                for each in self.crossovers
            ],
            "taken": list(self.taken),
            "sentence": f"Measured on these public records. {self.sentence()}",
        }  # fmt: skip

    def table(self) -> str:
        """Return mean errors, half the width of their intervals, and crossovers, as text."""
        width = max(19, *(len(name) + 2 for name in self.names))
        bands = [band(each) for each in self.errors]
        lines = [f"{'epsilon':>8}" + "".join(f"{name:>{width}}" for name in self.names)]
        for place, epsilon in enumerate(self.epsilons):
            cells = (
                f"{means[place]:.4f}" + (f" +- {halves[place]:.4f}" if self.repeats > 1 else "")
                for means, halves in bands
            )
            lines.append(f"{epsilon:8.3g}" + "".join(f"{cell:>{width}}" for cell in cells))
        plain = "".join(f"{f'{each.mean():.4f}':>{width}}" for each in self.plain)
        lines += [f"{'none':>8}{plain}", ""]
        lines += [each.sentence(self.epsilons) for each in self.crossovers]
        return "\n".join([*lines, self.sentence()])


def _number(epsilon: float) -> float | None:
    """Return an epsilon as JSON has it: nothing for one beyond every grid."""
    return None if math.isinf(epsilon) else round(epsilon, 5)
