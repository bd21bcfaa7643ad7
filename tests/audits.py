"""What audits share: laws with two-sided p-values, their exact power, and what an event charges.

An audit standardises what was released by what the event says it cost. It accepts above `ACCEPT`;
it must reject below `REJECT` when the noise is 2/3 or 3/2 of that.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from scipy.stats import binom, chi2, chisquare, dlaplace, kstest, nbinom

from pasearch.accounting.events import Composition, Event, FilteredReleases, SelfComposition

ACCEPT, REJECT = 1e-6, 1e-12
WRONG = (2 / 3, 3 / 2)


def noise_multipliers(event: Event) -> list[float]:
    """Return the noise multiplier of every release that an event charges, in order."""
    match event:
        case FilteredReleases():
            return noise_multipliers(event.event)
        case SelfComposition():
            return noise_multipliers(event.event) * event.count
        case Composition():
            return [each for part in event.events for each in noise_multipliers(part)]
    return [event.noise_multiplier]  # type: ignore[attr-defined]


def scale_pvalues(rows: np.ndarray) -> np.ndarray:
    """Two-sided, of rows of independent N(0, 1): a sum of squares is chi-square."""
    totals, count = (rows**2).sum(axis=1), rows.shape[1]
    return np.minimum(1.0, 2 * np.minimum(chi2.cdf(totals, count), chi2.sf(totals, count)))


def scale_pvalue(numbers: np.ndarray) -> float:
    """The same, of all numbers together."""
    return float(scale_pvalues(numbers.reshape(1, -1))[0])


def gaussian_pvalue(releases: np.ndarray) -> float:
    """Of independent N(0, 1), (releases, coordinates).

    The scale of each release and of all, the law (Kolmogorov and Smirnov), and the scale of the
    sums over releases, which noise that is used twice would widen; times their number (Bonferroni).
    """
    sums = releases.sum(axis=0) / math.sqrt(len(releases))
    found = [*scale_pvalues(releases), scale_pvalue(releases), scale_pvalue(sums)]
    found.append(float(kstest(releases.ravel(), "norm").pvalue))
    return float(min(1.0, len(found) * min(found)))


def gaussian_power(count: int, share: float, tests: int) -> float:
    """Return the exact probability that `count` normals of this scale are rejected by it alone."""
    level = REJECT / (2 * tests)
    low, high = chi2.ppf(level, count), chi2.isf(level, count)
    return float(chi2.cdf(low / share**2, count) + chi2.sf(high / share**2, count))


def geometric_cdf(total: int, count: int, epsilon: float) -> float:
    """Return P(|Z_1| + ... + |Z_count| <= total), exactly, where P(Z = z) ~ exp(-epsilon |z|).

    |Z| is 0, or 1 and a geometric number: a binomial number of negative binomial ones.
    """
    a = math.exp(-epsilon)
    others = np.arange(count + 1)
    found = nbinom.cdf(total - others[1:], others[1:], 1 - a)
    return float(binom.pmf(others, count, 2 * a / (1 + a)) @ [float(total >= 0), *found])


def size_pvalue(total: int, count: int, epsilon: float) -> float:
    """Two-sided, of the sum of so many absolute values."""
    below = geometric_cdf(total, count, epsilon)
    return min(1.0, 2 * min(below, 1.0 - geometric_cdf(total - 1, count, epsilon)))


def geometric_pvalue(sample: np.ndarray, epsilon: float) -> float:
    """Of whole numbers with P(z) ~ exp(-epsilon |z|).

    Their size, and the law (chi-square of about twelve equally likely cells); times two.
    """
    cuts = np.unique(dlaplace.ppf(np.arange(1, 12) / 12, epsilon))
    expected = np.diff([0.0, *dlaplace.cdf(cuts, epsilon), 1.0]) * len(sample)
    observed = np.bincount(np.searchsorted(cuts, sample), minlength=len(expected))
    law = float(chisquare(observed, expected).pvalue)
    return min(1.0, 2 * min(law, size_pvalue(int(np.abs(sample).sum()), len(sample), epsilon)))


def geometric_power(count: int, epsilon: float, share: float) -> float:
    """Return the exact probability that so much noise is rejected, by its size alone."""
    totals = np.arange(int(20 * count / epsilon) + 1)

    def rejected(total: int) -> bool:
        return 2 * size_pvalue(int(total), count, epsilon) < REJECT

    middle = int(count / epsilon)
    low = bisect_left(totals[:middle], True, key=lambda total: not rejected(total)) - 1
    high = middle + bisect_left(totals[middle:], True, key=rejected)
    other = epsilon / share
    return geometric_cdf(low, count, other) + 1.0 - geometric_cdf(high - 1, count, other)
