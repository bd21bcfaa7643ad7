"""A measured crossover: error over epsilon, and the epsilons at which the best model changes.

On public records nothing is charged (`CrossoverReport`). On private records, the crossover is
computed from the noisy scores that strategy `grid` has released and charged
(`make_private_crossover`):

    error of a training  =  1 - noisy score count / largest possible count
    standard deviation   =  of the errors around their model's mean, pooled over the models of a
                            level; at least that of the noise of one score

The confidence interval of such a crossover is from simulated means with this standard deviation.
The epsilon of a level is the privacy cost of a single training at this level.

Source: Bao et al., section III-C, Definition 2, and section VI-D (Fig. 8: several models).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from pasearch import notebooks
from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.events import Composition, Event
from pasearch.crossover.curves import (
    CONFIDENCE_LEVEL,
    Crossover,
    assign_roles,
    compute_critical_value,
    describe_changes,
    estimate_mean_and_half_width,
    find_best_models,
    find_crossover_of_means,
    find_simplest_models,
    round_to_four_decimals,
    round_to_three_digits,
)
from pasearch.crossover.forecast import describe_model
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.search.grid import Grid
from pasearch.search.successive_halving import draw_distinct_genotypes

if TYPE_CHECKING:
    from pasearch.crossover.forecast import MeasuredModel
    from pasearch.search.plan import Plan
    from pasearch.spaces.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossoverReport:
    """Error over epsilon of several models, and the epsilons at which the best one changes.

    Args:
        data: Name of the public data.
        n: Number of training records.
        delta: Delta of every training.
        metric: Name of the error: 1 - accuracy, or mean absolute error.
        names: Names of the models, by increasing number of trained parameters.
        parameters: Number of trained parameters of each model.
        epsilons: Epsilons, ascending.
        errors: Errors of trainings with privacy, (models, epsilons, repeats).
        plain: Errors of trainings without privacy, (models, repeats).
        crossovers: Crossovers of all pairs of models.
        assumes: Assumption under which the result applies to private data; empty without such data.
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
        """Number of trainings of each model at each epsilon."""
        return self.errors.shape[2]

    @property
    def best(self) -> tuple[str, ...]:
        """Name of the model with the smallest mean error at each epsilon."""
        return tuple(self.names[place] for place in find_best_models(self.errors))

    @property
    def recommended(self) -> tuple[str, ...]:
        """Name of the recommended model at each epsilon.

        It is the simplest model that is not significantly worse than the best one, by a two-sided
        paired t-test over repeats at 95 %, corrected for the number of tests. With a single repeat,
        it is the best model.
        """
        return tuple(self.names[place] for place in find_simplest_models(self.errors))

    def cost_of_privacy(self) -> np.ndarray:
        """Return the mean error with privacy minus that without, (models, epsilons)."""
        return self.errors.mean(axis=2) - self.plain.mean(axis=1)[:, None]

    def model_at(self, epsilon: float) -> str:
        """Return the name of the recommended model at the measured epsilon nearest to `epsilon`.

        Raises:
            UsageError: The epsilon is not above 0.
        """
        if not (epsilon > 0.0 and math.isfinite(epsilon)):
            raise UsageError(f"epsilon is {epsilon!r}: expected a number above 0.")
        logs = np.abs(np.log(self.epsilons) - math.log(epsilon))
        return self.recommended[int(logs.argmin())]

    def sentence(self) -> str:
        """Return the recommended model of each range of epsilons, in one or two sentences.

        The second sentence names the epsilons at which another model has the best mean.
        """
        taken = self.recommended
        first, last = self.epsilons[0], self.epsilons[-1]
        if changes := describe_changes(taken, self.epsilons):
            said = f"Recommended from epsilon {first:g} on: {taken[0]}; {changes}."
        else:
            said = f"Recommended at every epsilon from {first:g} to {last:g}: {taken[0]}."
        if self.repeats == 1:
            return f"{said} Each point is one training, so the significance is unknown."
        others = [
            epsilon
            for epsilon, simple, best in zip(self.epsilons, taken, self.best, strict=True)
            if simple != best
        ]
        if others:
            said += (
                " It is the simplest model that is not significantly worse than the best; at "
                f"{', '.join(f'{each:g}' for each in others)} another model has the best mean."
            )
        return said

    def plot(self, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the error of each model over epsilon, and the crossovers.

        Args:
            ax: Axes of matplotlib to draw on; None makes a figure.
            kwargs: Further arguments of `CrossoverDisplay.plot`.

        Returns:
            CrossoverDisplay: Its attributes `figure_` and `ax_` are the matplotlib objects.

        Raises:
            UsageError: matplotlib is not installed (`pip install 'pasearch[plots]'`).
        """
        return notebooks.plot_figure(self, ["crossover"], None, ax, **kwargs)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "data": self.data,
            "n": self.n,
            "delta": self.delta,
            "metric": self.metric,
            "repeats": self.repeats,
            "epsilons": list(self.epsilons),
            "models": [
                {
                    "name": name,
                    "parameters": size,
                    "error": np.round(means, 5).tolist(),
                    "half_width": np.round(halves, 5).tolist(),
                    "error_without_privacy": round(float(plain.mean()), 5),
                    "cost_of_privacy": np.round(cost, 5).tolist(),
                }
                for name, size, (means, halves), plain, cost in zip(
                    self.names,
                    self.parameters,
                    map(estimate_mean_and_half_width, self.errors),
                    self.plain,
                    self.cost_of_privacy(),
                    strict=True,
                )
            ],
            "best": list(self.best),
            "taken": list(self.recommended),
            "crossovers": [
                {
                    "simple": each.simple,
                    "complex": each.complex,
                    **each.to_json(self.epsilons, _round_to_five_decimals),
                    "every": [round(e, 4) for e in each.every],
                }
                for each in self.crossovers
            ],
            "sentence": self.sentence(),
            "assumes": self.assumes,
        }

    def as_accuracy(self, released: str) -> dict[str, Any]:
        """Return the crossover in terms of accuracy (1 - error), as `result.json` stores it.

        Args:
            released: Name of the model that the run released.
        """
        means, halves = np.array(
            [estimate_mean_and_half_width(each) for each in self.errors]
        ).transpose(1, 0, 2)
        return _crossover_json(
            self.epsilons, self.repeats, self.names, self.parameters,
            [name == released for name in self.names], 1.0 - means, halves, self.crossovers,
            _round_to_five_decimals, self.recommended,
            own={"epsilon": self.epsilons[-1], "score": None, "standard_error": 0.0},
            sentence=f"Measured on these public records. {self.sentence()}",
        )  # fmt: skip

    def table(self) -> str:
        """Format mean errors, half the width of their intervals, and crossovers as text."""
        width = max(19, *(len(name) + 2 for name in self.names))
        bands = [estimate_mean_and_half_width(each) for each in self.errors]
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


def _round_to_five_decimals(epsilon: float) -> float:
    """Round an epsilon to five decimals."""
    return round(epsilon, 5)


def _crossover_json(
    epsilons: Sequence[float], repeats: int, names: Sequence[str], sizes: Sequence[int],
    released: Sequence[bool], means: np.ndarray, halves: np.ndarray, found: Sequence[Crossover],
    rounded: Callable[[float], float], taken: Sequence[str], *, own: dict[str, Any], sentence: str,
) -> dict[str, Any]:  # fmt: skip
    """Return a measured crossover as plain values, as `result.json` stores it."""
    return {
        "kind": "measured",
        "epsilons": list(epsilons),
        "repeats": repeats,
        "models": [
            {
                "name": name, "parameters": size, "roles": roles,
                "accuracy": round_to_four_decimals(mean),
                "low": round_to_four_decimals(np.clip(mean - half, 0.0, 1.0)),
                "high": round_to_four_decimals(np.clip(mean + half, 0.0, 1.0)),
            }
            for name, size, roles, mean, half in zip(
                names, sizes, assign_roles(released, sizes), means, halves, strict=True
            )
        ],
        "own": own,
        "crossings": [
            {"before": each.simple, "after": each.complex,
             **each.to_json(tuple(epsilons), rounded)}
            for each in found
        ],
        "taken": list(taken),
        "sentence": sentence,
    }  # fmt: skip


def make_private_crossover(
    plan: Plan, points: Sequence[float | None], own: MeasuredModel, winner: Candidate
) -> dict[str, Any]:
    """Compute the crossover from the noisy scores of strategy `grid`.

    Args:
        plan: Plan of strategy `grid`.
        points: Noisy score counts of all trials, in order; None for a failed trial.
        own: Released model with its score.
        winner: Candidate of the released model.

    Returns:
        Plain values, as `result.json` stores them.

    Cost: none, because the scores were charged and released before.
    """
    strategy = plan.strategy
    assert isinstance(strategy, Grid)
    most = plan.ranking_metric.max_points * plan.score_slots
    levels, models, repeats = len(strategy.shares), strategy.candidates, strategy.repeats
    shares = np.array([0.0 if each is None else each / most for each in points])
    shares = shares.reshape(levels, models, repeats)
    noise = getattr(plan.score, "standard_deviation", 0.0) / most
    each_level = np.maximum(shares.var(axis=2, ddof=1).mean(axis=1), noise**2)
    spread, freedom = np.sqrt(each_level / repeats), models * (repeats - 1)
    half = float(stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, freedom)) * spread
    tests = max(1, levels * math.comb(models, 2))
    least = compute_critical_value(tests, freedom) * math.sqrt(2.0) * spread
    epsilons = _compute_level_epsilons(plan)
    # These are the genotypes of the grid, because a small space is enumerated, not sampled.
    genotypes = draw_distinct_genotypes(plan.space, models, Keys.from_seed(0).stream("unused"))
    trained = [plan.space.candidate(each) for each in genotypes]
    shape, outputs = plan.schema.shape, plan.schema.outputs
    sizes = [each.parameters(shape, outputs)[0] for each in trained]
    order = sorted(range(models), key=sizes.__getitem__)
    candidates, means = [trained[place] for place in order], shares.mean(axis=2).T[order]
    # Equal networks are distinguished by their settings.
    names = [describe_model(each) for each in candidates]
    names = [
        f"{name} ({each.describe().partition('; ')[2] or 'default settings'})"
        if names.count(name) > 1
        else name
        for name, each in zip(names, candidates, strict=True)
    ]
    deviation = half / float(stats.norm.ppf((1 + CONFIDENCE_LEVEL) / 2))
    found = [
        find_crossover_of_means(
            1.0 - means[a], 1.0 - means[b], deviation, epsilons, (names[a], names[b]), least
        )
        for a in range(models)
        for b in range(a + 1, models)
    ]
    simple = (means >= means.max(axis=0) - least).argmax(axis=0)
    taken = [names[place] for place in simple]
    first, last = epsilons[0], epsilons[-1]
    if changes := describe_changes(taken, epsilons):
        said = f"Measured on your records: at epsilon {first:g} use {taken[0]}; {changes}."
    else:
        said = f"Measured on your records: use {taken[0]} at every epsilon from {first:g} to "
        said += f"{last:g}."
    # If means are equal, the model that was trained first.
    last_means = shares[-1].mean(axis=1)
    best = names[order.index(int(last_means.argmax()))]
    if best != taken[-1]:
        said += (
            f" At {last:g}, {best} has the best mean score and was released; it is not "
            f"significantly better than {taken[-1]}, which is simpler."
        )
    if own.epsilon > last:
        said += (
            f" No models were compared above epsilon {last:g}, up to your total of {own.epsilon:g}."
        )
    return _crossover_json(
        epsilons, repeats, names, [sizes[place] for place in order],
        [each == winner for each in candidates], means, np.broadcast_to(half, means.shape), found,
        round_to_three_digits, taken,
        own={"epsilon": own.epsilon, "score": own.score, "standard_error": round(own.error, 5)},
        sentence=said,
    )  # fmt: skip


def _compute_level_epsilons(plan: Plan) -> tuple[float, ...]:
    """Return the epsilon of one training at each level, with the most expensive front end."""

    def compute_epsilon(*events: Event) -> float:
        return price_partitions({"train": Composition(events)}, plan.delta)[0].epsilon

    fits = [each.event for each in plan.lines if each.name.startswith("front end ")]
    worst_fit = [max(fits, key=compute_epsilon)] if fits else []
    lines = [each for each in plan.lines if each.name.startswith("training, level")]
    return tuple(round_to_three_digits(compute_epsilon(each.event, *worst_fit)) for each in lines)
