"""Curves of error over a grid of epsilons, and the epsilons at which another model becomes best.

    cost(eps, h) = err_eps(h) - err(h)                              cost of privacy of model h
    crossover(h1, h2) = max { eps : err_eps(h1) < err_eps(h2) }     h1 is the simpler model

On a grid, the crossover is the point at which the mean difference changes its sign for the last
time, interpolated between two epsilons on a logarithmic scale. It is 0 if the simple model is never
better, and infinite if it is better at the last epsilon. (For an empty set the paper's formula says
infinite, a misprint: it would recommend a simple model that is never better.)

The confidence interval is from a bootstrap over repeats. Both models share the split of a repeat,
so repeats are resampled in pairs. Deviations of the resampled means are multiplied by the ratio of
the quantiles of Student's t and the normal distribution, because few repeats estimate their own
variance poorly.

A difference between two models at one epsilon is significant by a two-sided paired t-test over
repeats. Its level is divided by the number of tests, pairs of models times epsilons (Bonferroni),
so that no difference is significant in 95 % of the comparisons of equal models.

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

BOOTSTRAP_RESAMPLES = 2000  # number of resamples of a bootstrap
CONFIDENCE_LEVEL = 0.95  # confidence level of intervals and tests

Array = np.ndarray[Any, np.dtype[np.float64]]


def parse_epsilon_grid(given: str | Sequence[float]) -> tuple[float, ...]:
    """Parse an ascending grid of epsilons.

    Args:
        given: Numbers, or a string with numbers separated by commas, or "low:high:logN".

    Raises:
        UsageError: The numbers do not ascend, are not above 0, or there is only one.
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
    """Epsilon up to which the simpler of two models is better, with its confidence interval."""

    simple: str  # name of the simpler model
    complex: str  # name of the other model
    epsilon: float  # 0: the simpler model is never better; infinity: it is at the last epsilon
    low: float  # lower end of the 95 % interval
    high: float  # upper end of the 95 % interval
    every: tuple[float, ...]  # all epsilons at which the mean difference changes sign, ascending
    significant: bool = False  # whether the models differ significantly at any epsilon

    def text(self, epsilons: tuple[float, ...]) -> str:
        """Format the crossover with its interval; values outside the grid get < or >."""

        def format_epsilon(value: float) -> str:
            if value < epsilons[0]:
                return f"< {epsilons[0]:g}"
            return f"> {epsilons[-1]:g}" if value > epsilons[-1] else f"{value:.3g}"

        end = "" if self.significant else ", not significant"
        if math.isclose(self.low, self.high) or self.low == self.high:
            return f"{format_epsilon(self.epsilon)} (in every resample){end}"
        low, high = format_epsilon(self.low), format_epsilon(self.high)
        return f"{format_epsilon(self.epsilon)} ({low} to {high}){end}"

    def sentence(self, epsilons: tuple[float, ...]) -> str:
        """Return a sentence on the better model below and above the crossover."""
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
        """Return plain values; None for infinity.

        Args:
            epsilons: Epsilons of the grid.
            rounded: Function that rounds an epsilon.
        """

        def to_plain_number(value: float) -> float | None:
            return None if math.isinf(value) else rounded(value)

        return {
            **{name: to_plain_number(getattr(self, name)) for name in ("epsilon", "low", "high")},
            "text": self.text(epsilons), "sentence": self.sentence(epsilons),
        }  # fmt: skip


def find_crossover(
    simple: Array, other: Array, epsilons: tuple[float, ...], names: tuple[str, str], seed: int = 0,
    pairs: int = 1,
) -> Crossover:  # fmt: skip
    """Find the epsilon up to which the simple model is better, with its confidence interval.

    Args:
        simple: Errors of the simple model, (epsilons, repeats).
        other: Errors of the other model, (epsilons, repeats), with the same records at each repeat.
        epsilons: Epsilons, ascending.
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
    """Make the crossover of a mean difference.

    Args:
        mean: Mean error of the simple model minus that of the other, (epsilons,).
        resampled: Resamples of `mean`, (resamples, epsilons); None: the interval is (0, inf).
        epsilons: Epsilons, ascending.
        names: Names of both models.
        least: Smallest significant difference at each epsilon, (epsilons,).
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


def compute_critical_value(tests: int, freedom: int) -> float:
    """Return the critical value of two-sided t-tests at 95 %, corrected for their number.

    Args:
        tests: Number of tests.
        freedom: Degrees of freedom.
    """
    return float(stats.t.ppf(1 - (1 - CONFIDENCE_LEVEL) / (2 * tests), freedom))


def _min_significant_difference(lead: Array, pairs: int) -> Array:
    """Return the smallest significant mean of differences, (epsilons,); infinite for one repeat."""
    epsilons, repeats = lead.shape
    if repeats < 2:
        return np.full(epsilons, np.inf)
    limit = compute_critical_value(pairs * epsilons, repeats - 1) / math.sqrt(repeats)
    return limit * lead.std(axis=1, ddof=1)


def find_crossover_of_means(
    simple: Array, other: Array, spread: Array, epsilons: tuple[float, ...], names: tuple[str, str],
    least: Array,
) -> Crossover:  # fmt: skip
    """Find a crossover from mean errors with known standard deviations, with its interval.

    Args:
        simple: Mean error of the simple model, (epsilons,).
        other: Mean error of the other model, (epsilons,).
        spread: Standard deviation of a mean error at each epsilon, (epsilons,).
        epsilons: Epsilons, ascending.
        names: Names of both models.
        least: Smallest significant difference at each epsilon, (epsilons,).
    """
    mean = np.asarray(simple, float) - np.asarray(other, float)
    drawn = np.random.default_rng(0).standard_normal((BOOTSTRAP_RESAMPLES, len(mean)))
    resampled = mean + math.sqrt(2.0) * spread * drawn
    return _make_crossover(mean, resampled, epsilons, names, least)


def _find_last_crossings(leads: Array, epsilons: tuple[float, ...]) -> Array:
    """Return the epsilon up to which each curve of differences is below 0, (curves,)."""
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
    """Return the epsilon at which a curve crosses 0 behind an index; `logs` are log epsilons."""
    low, high = lead[place], lead[place + 1]
    share = -low / (high - low)
    return float(np.exp(logs[place] + share * (logs[place + 1] - logs[place])))


def estimate_mean_and_half_width(errors: Array) -> tuple[Array, Array]:
    """Return the mean over the last axis, and half the width of its 95 % interval."""
    errors = np.asarray(errors, float)
    repeats = errors.shape[-1]
    if repeats < 2:
        return errors.mean(axis=-1), np.zeros(errors.shape[:-1])
    half = stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, repeats - 1) / math.sqrt(repeats)
    return errors.mean(axis=-1), half * errors.std(axis=-1, ddof=1)


def find_best_models(errors: Array) -> Array:
    """Return the index of the model with the smallest mean error at each epsilon, (epsilons,).

    Args:
        errors: Errors, (models, epsilons, repeats).
    """
    return np.asarray(errors).mean(axis=2).argmin(axis=0)


def find_simplest_models(errors: Array) -> Array:
    """Return the index of the simplest model that is not significantly worse than the best.

    The test is the same as for a crossover. With a single repeat, the best model is returned.

    Args:
        errors: Errors, (models, epsilons, repeats), the simplest model first.

    Returns:
        Index of the model at each epsilon, (epsilons,).
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
    """Return the roles of each model, any of "released", "simplest" and "largest".

    Args:
        released: Whether the run released the model, for each model.
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
    """Round each value to four decimals, and return a list."""
    return [round(float(each), 4) for each in values]


def describe_changes(taken: Sequence[str], epsilons: Sequence[float]) -> str:
    """Describe the epsilons at which the recommended model changes; empty without a change."""
    return "; ".join(
        f"from about {epsilon:.2g} on, {after}"
        for before, after, epsilon in zip(taken, taken[1:], epsilons[1:], strict=False)
        if before != after
    )
