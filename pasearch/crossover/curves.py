"""Curves of error over a grid of epsilons, and where another model becomes the best.

    cost(eps, h) = err_eps(h) - err(h)                                       the cost of privacy
    crossover(h1, h2) = max { eps : err_eps(h1) < err_eps(h2) }              h1 the simpler model

On a grid the maximum lies where the mean difference last changes sign, on a logarithmic scale
between two epsilons. It is 0 where the simple model never wins and infinite where it always does:
of a grid, that is "below the first" and "above the last". (The paper's formula says infinite where
the set is empty, which would advise the simple model where it never wins: a misprint.)

The interval is of the bootstrap over repeats, which both models share: means of resampled repeats,
their deviations from the mean widened by Student's t over the normal quantile, because few repeats
say little about their own spread.

A difference between two models at one epsilon is significant by a two-sided paired t-test over
repeats. Its level is divided by the number of tests, pairs of models times epsilons (Bonferroni),
so that in 95 % of comparisons of equal models none is significant.

Source: Bao et al., section III, Eq. 2 and Definition 2; Efron 1979; Dunn 1961, "Multiple
comparisons among means".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from pasearch.errors import UsageError

BOOTSTRAP_RESAMPLES = 2000
CONFIDENCE_LEVEL = 0.95

Array = np.ndarray[Any, np.dtype[np.float64]]


def parse_epsilon_grid(given: str | Sequence[float]) -> tuple[float, ...]:
    """Parse a rising grid of epsilons.

    Args:
        given: Numbers, with commas if they are text; or "low:high:logN".

    Raises:
        UsageError: It is not rising, not above 0, or of one epsilon.
    """
    refusal = UsageError(
        f"A grid of epsilons is {given!r}: expected rising numbers above 0, two or more, such as "
        ".1,1,10, or low:high:logN, such as .1:10:log12."
    )
    try:
        if not isinstance(given, str):
            values = [float(each) for each in given]
        elif match := re.fullmatch(r"([0-9.e+-]+):([0-9.e+-]+):log([0-9]+)", given.strip(), re.I):
            low, high, count = float(match[1]), float(match[2]), int(match[3])
            if not (0.0 < low < high < math.inf and 2 <= count <= 1000):
                raise refusal
            values = [float(f"{each:.4g}") for each in np.geomspace(low, high, count)]
        else:
            values = [float(each) for each in given.split(",")]
    except ValueError:
        raise refusal from None
    rising = all(a < b for a, b in pairwise(values))
    if not (len(values) >= 2 and rising and values[0] > 0.0 and math.isfinite(values[-1])):
        raise refusal
    return tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Up to which epsilon the simpler of two models is the better one."""

    simple: str  # name of the simpler model
    complex: str  # name of the other model
    epsilon: float  # 0: never, on the grid; infinity: at all of its epsilons
    low: float  # low end of its 95 % interval
    high: float  # high end of that interval
    every: tuple[float, ...]  # all epsilons at which the mean difference changes sign, rising
    significant: bool = False  # whether the models differ significantly at one epsilon at least

    def text(self, epsilons: tuple[float, ...]) -> str:
        """Format the crossover with its interval; values outside the grid are marked."""

        def of(value: float) -> str:
            if value < epsilons[0]:
                return f"< {epsilons[0]:g}"
            return f"> {epsilons[-1]:g}" if value > epsilons[-1] else f"{value:.3g}"

        end = "" if self.significant else ", not significant"
        if math.isclose(self.low, self.high) or self.low == self.high:
            return f"{of(self.epsilon)} (in every resample){end}"
        return f"{of(self.epsilon)} ({of(self.low)} to {of(self.high)}){end}"

    def sentence(self, epsilons: tuple[float, ...]) -> str:
        """Return the significantly better model by epsilon, with the interval of the change."""
        if not self.significant:
            return f"{self.simple} and {self.complex}: no significant difference at any epsilon."
        between = self.text(epsilons).partition("(")[2].partition(")")[0]
        between = "in every resample" if between.startswith("in every") else f"95 %: {between}"
        if self.epsilon < epsilons[0]:
            return f"{self.complex} is better than {self.simple} at every epsilon ({between})."
        if self.epsilon > epsilons[-1]:
            return f"{self.simple} is better than {self.complex} at every epsilon ({between})."
        return (
            f"{self.simple} is better than {self.complex} up to epsilon {self.epsilon:.3g} "
            f"({between})."
        )

    def to_json(
        self, epsilons: tuple[float, ...], rounded: Callable[[float], float]
    ) -> dict[str, Any]:
        """Return plain values; None for what is beyond the largest epsilon."""

        def number(value: float) -> float | None:
            return None if math.isinf(value) else rounded(value)

        return {
            "epsilon": number(self.epsilon), "low": number(self.low), "high": number(self.high),
            "text": self.text(epsilons), "sentence": self.sentence(epsilons),
        }  # fmt: skip


def find_crossover(
    simple: Array, other: Array, epsilons: tuple[float, ...], names: tuple[str, str], seed: int = 0,
    pairs: int = 1,
) -> Crossover:  # fmt: skip
    """Find the largest epsilon at which the simple model is better, with its interval.

    Args:
        simple: Error of the simple model, (epsilons, repeats).
        other: Error of the other model on the same records at each repeat, (epsilons, repeats).
        epsilons: Epsilons, rising.
        names: Names of both models.
        seed: Seed of the bootstrap.
        pairs: Number of pairs of models that are compared on the same repeats.
    """
    lead = np.asarray(simple, float) - np.asarray(other, float)
    mean, repeats, resampled = lead.mean(axis=1), lead.shape[1], None
    if repeats > 1:
        drawn = np.random.default_rng(seed).integers(repeats, size=(BOOTSTRAP_RESAMPLES, repeats))
        means = lead[:, drawn].mean(axis=2).T  # (resamples, epsilons)
        wider = stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, repeats - 1) / stats.norm.ppf(
            (1 + CONFIDENCE_LEVEL) / 2
        )
        resampled = mean + wider * math.sqrt(repeats / (repeats - 1)) * (means - mean)
    return _make_crossover(
        mean, resampled, epsilons, names, _min_significant_difference(lead, pairs)
    )


def _make_crossover(
    mean: Array, resampled: Array | None, epsilons: tuple[float, ...], names: tuple[str, str],
    least: Array,
) -> Crossover:  # fmt: skip
    """Return the crossover of a mean difference, (epsilons,), with the interval of its resamples.

    Without resamples nothing is known of its spread. `least` is the smallest significant
    difference, (epsilons,).
    """
    found, low, high = float(_find_last_crossings(mean[None], epsilons)[0]), 0.0, math.inf
    if resampled is not None:
        ends = [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2]
        every = _find_last_crossings(resampled, epsilons)
        low, high = map(float, np.quantile(every, ends, method="closest_observation"))
    logs, below = np.log(epsilons), mean < 0
    return Crossover(
        simple=names[0], complex=names[1], epsilon=found, low=min(low, found),
        high=max(high, found), significant=bool((np.abs(mean) > least).any()),
        every=tuple(
            _interpolate_crossing(mean, place, logs)
            for place in range(len(mean) - 1)
            if below[place] != below[place + 1]
        ),
    )  # fmt: skip


def critical_value(tests: int, freedom: int) -> float:
    """Return the critical value of a two-sided t-test at 95 %, corrected for the number of tests.

    Args:
        tests: Number of tests.
        freedom: Degrees of freedom.
    """
    return float(stats.t.ppf(1 - (1 - CONFIDENCE_LEVEL) / (2 * tests), freedom))


def _min_significant_difference(lead: Array, pairs: int) -> Array:
    epsilons, repeats = lead.shape
    if repeats < 2:
        return np.full(epsilons, np.inf)
    limit = critical_value(pairs * epsilons, repeats - 1) / math.sqrt(repeats)
    return limit * lead.std(axis=1, ddof=1)


def find_crossover_of_means(
    simple: Array, other: Array, spread: Array, epsilons: tuple[float, ...], names: tuple[str, str],
    least: Array,
) -> Crossover:  # fmt: skip
    """Find a crossover from mean errors with known standard deviation, with its interval.

    Args:
        simple: Mean error of the simple model, (epsilons,).
        other: Mean error of the other model, (epsilons,).
        spread: Standard deviation of a mean at each epsilon.
        epsilons: Epsilons, rising.
        names: Names of both models.
        least: The smallest significant difference at each epsilon.
    """
    mean = np.asarray(simple, float) - np.asarray(other, float)
    drawn = np.random.default_rng(0).standard_normal((BOOTSTRAP_RESAMPLES, len(mean)))
    resampled = mean + math.sqrt(2.0) * spread * drawn
    return _make_crossover(mean, resampled, epsilons, names, least)


def _find_last_crossings(leads: Array, epsilons: tuple[float, ...]) -> Array:
    """Return the last epsilon at which each lead is below 0: (curves,)."""
    logs = np.log(epsilons)
    found = np.empty(len(leads))
    for place, lead in enumerate(leads):
        wins = np.flatnonzero(lead < 0)
        if not len(wins):
            found[place] = 0.0
        elif wins[-1] == len(lead) - 1:
            found[place] = math.inf
        else:
            found[place] = _interpolate_crossing(lead, int(wins[-1]), logs)
    return found


def _interpolate_crossing(lead: Array, place: int, logs: Array) -> float:
    low, high = lead[place], lead[place + 1]
    share = -low / (high - low)
    return float(np.exp(logs[place] + share * (logs[place + 1] - logs[place])))


def estimate_mean_and_half_width(errors: Array) -> tuple[Array, Array]:
    """Return mean errors and half the width of their 95 % interval, (epsilons,)."""
    errors = np.asarray(errors, float)
    repeats = errors.shape[-1]
    if repeats < 2:
        return errors.mean(axis=-1), np.zeros(errors.shape[:-1])
    half = stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, repeats - 1) / math.sqrt(repeats)
    return errors.mean(axis=-1), half * errors.std(axis=-1, ddof=1)


def find_best_models(errors: Array) -> Array:
    """Return the index of the model with the least mean error at each epsilon, (epsilons,).

    Args:
        errors: (models, epsilons, repeats).
    """
    return np.asarray(errors).mean(axis=2).argmin(axis=0)


def find_simplest_models(errors: Array) -> Array:
    """Return the first model at each epsilon that is not significantly worse than the best.

    The test is that of a crossover, so both lead to one conclusion. With one repeat, the best.

    Args:
        errors: (models, epsilons, repeats), the simplest model first.

    Returns:
        Indices of models, (epsilons,).
    """
    errors = np.asarray(errors, float)
    best: Any = find_best_models(errors)
    models, _, repeats = errors.shape
    if repeats < 2:
        return best
    lead = errors - np.take_along_axis(errors, best[None, :, None], axis=0)
    pairs = max(1, math.comb(models, 2))
    worse = np.stack(
        [each.mean(axis=1) > _min_significant_difference(each, pairs) for each in lead]
    )
    return (~worse).argmax(axis=0)


def assign_roles(released: Sequence[bool], sizes: Sequence[int]) -> list[list[str]]:
    """Assign the roles released, simplest and largest to the models.

    Args:
        released: Whether the run released it, for each model.
        sizes: Number of parameters of each model.
    """
    return [
        ["released"] * own
        + ["simplest"] * (size == min(sizes))
        + ["largest"] * (size == max(sizes))
        for own, size in zip(released, sizes, strict=True)
    ]


def round_to_three_digits(epsilon: float) -> float:
    """Round an epsilon to three significant digits."""
    return float(f"{epsilon:.3g}")


def round_to_four_decimals(values: Array) -> list[float]:
    """Round accuracies for a document."""
    return [round(float(each), 4) for each in values]


def describe_changes(taken: Sequence[str], epsilons: Sequence[float]) -> str:
    """Describe the epsilons at which the recommended model changes; empty without a change."""
    return "; ".join(
        f"from about {epsilon:.2g} on, {after}"
        for before, after, epsilon in zip(taken, taken[1:], epsilons[1:], strict=False)
        if before != after
    )
