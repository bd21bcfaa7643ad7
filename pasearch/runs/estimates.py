"""Private estimation of an undeclared schema: categories, bounds and number of classes.

    categories   add N(0, sigma^2) to the count n_c >= 1 of each category c, and release the
                 categories with a noisy count of T or more, at most `most`. T is the smallest
                 integer such that a category of one record is released with probability <= delta
    bounds       add N(0, sigma^2) to the counts of 321 public bins of magnitude, and release the
                 outer edges of the bins that contain records beyond the noise
    classes      add N(0, sigma^2) to the counts of the labels 0 .. most - 1, and release 1 + the
                 largest label that contains records beyond the noise

A record is in at most one category, bin or label, so it changes the counts by at most 1 in L2. For
categories, delta is the probability that a category of a single record is released. Bins and labels
are public, whether or not they contain records.

Edges of bins with about equal counts (quantiles) are estimated in three releases, a method that is
original to this project:

    first     counts of 81 public bins of magnitude with noise N(0, 2 sigma^2). The edges of these
              bins are powers of 4: each joins four of the 321 bins
    cells     bins with many records are divided into equal parts, and bins with few records are
              joined, so that each cell has about 1/40 of the records by the first release
    second    counts of the cells with noise N(0, 4 sigma^2); cells are divided and joined again
    third     counts of the new cells with noise N(0, 4 sigma^2)
    edges     the positions where the cumulative counts of the cells, made monotone, reach 1/k,
              2/k, ... of the total; a cell with many records, such as a frequent value, becomes a
              bin

A record is in at most one bin or cell of each release, and 1/2 + 1/4 + 1/4 = 1, so the three
releases together cost as much as one Gaussian release with sigma. So columns get useful bins even
if their magnitude varies by powers of ten, if values are concentrated far from 0, or if there are
outliers. With bins of equal width, one bin would often contain nearly all records
(benchmarks/models).

Sources: Korolova, Kenthapadi, Mishra and Ntoulas 2009; Wilkins, Kifer, Zhang and Karrer 2024
(Gaussian noise). Proof: docs/guarantees/estimated-schema.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import ndtri

from pasearch.accounting.checks import (
    check_fraction,
    check_positive,
    check_positive_integer,
    make_post_init,
)
from pasearch.accounting.events import ApproximateDP, Composition, Event, Gaussian
from pasearch.accounting.profiles import Array
from pasearch.runs.keys import Stream
from pasearch.runs.normals import compute_grid_distance
from pasearch.runs.sums import GaussianRelease, GaussianSum

MAGNITUDE_EDGES: Array = np.array(
    # Square roots and powers of 2 are rounded by IEEE rules, so all machines have equal edges.
    [math.ldexp(math.sqrt(2.0) if k % 2 else 1.0, k // 2) for k in range(-40, 121)]
)
"""Edges of the bins of |value|: 2^(k/2), from a millionth to 10^18."""

UPPER_EDGES: Array = np.concatenate([-MAGNITUDE_EDGES[-2:0:-1], [0.0, 0.0], MAGNITUDE_EDGES[1:]])
"""Upper edge of each of the 321 bins, ascending: of negative values, of 0, of positive values."""

LOWER_EDGES: Array = 0.0 - UPPER_EDGES[::-1]
"""Lower edge of each of the 321 bins."""

ZERO_BIN = len(UPPER_EDGES) // 2
"""Index of the bin that contains only 0."""

MIN_RANGE_DEVIATIONS = 5.0
"""Minimum count of a range of bins, in standard deviations of its noise, to be taken as real: one
false range in a thousand estimates.
"""

MAX_RANGE_BINS = 16
"""Maximum number of bins of a range that is tested: a factor of 256 in magnitude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCounts:
    """Private selection of the most frequent categories, if the categories are unknown.

    Guarantee: `release` costs `event` if each record is in at most one category.

    Args:
        noise_multiplier: Standard deviation of the noise in records, above 0.
        delta: Maximum probability that a category of one record is released, in (0, 1).
        most: Maximum number of released categories, 1 or above.
    """

    noise_multiplier: float
    delta: float
    most: int
    __post_init__ = make_post_init(
        noise_multiplier=check_positive, delta=check_fraction, most=check_positive_integer
    )

    @property
    def event(self) -> Event:
        """Privacy event of one release."""
        leak = ApproximateDP(epsilon=0.0, delta=self.delta)
        return Composition(events=(Gaussian(noise_multiplier=self.noise_multiplier), leak))

    @property
    def threshold(self) -> int:
        """Minimum noisy count of a released category, in records."""
        return _compute_threshold(self.noise_multiplier, self.delta)

    def compute_detectable_count(self, probability: float) -> float:
        """Compute how many records a category needs to reach the threshold with a probability.

        Args:
            probability: Probability in (0, 1). It does not include that the rarest categories are
                dropped if more than `most` reach the threshold.
        """
        return self.threshold + self.noise_multiplier * float(ndtri(probability))

    def release(self, counts: Mapping[str, int], stream: Stream) -> list[str]:
        """Release the categories whose noisy count reaches the threshold.

        The key of the noise is derived from all names and counts. So a resumed run with the same
        counts releases the same categories, and with other counts all noise is new.

        Args:
            counts: Number of records of each category, private, in any order. A category with 0
                records is treated like a missing one.
            stream: Random stream of this release.

        Returns:
            At most `most` names, by decreasing noisy count, ties by name.

        Raises:
            TypeError: A name is not a string or a count is not an integer. The message contains no
                value.
            ValueError: A count is below 0. The message contains no value.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        for name, count in counts.items():  # the messages must not contain private values
            if not isinstance(name, str):
                raise TypeError(
                    f"a category is a str, not {type(name).__name__}: write it as text."
                )
            if isinstance(count, bool) or not isinstance(count, Integral):
                raise TypeError(f"a count is an int, not {type(count).__name__}: count records.")
            if not int(count) >= 0:
                raise ValueError("a count is below 0: count records.")
        found = sorted((str(name), int(count)) for name, count in counts.items() if count)
        names = [name for name, _ in found]
        exact = np.array([count for _, count in found], np.float64)
        source = stream.child("category counts", self.delta.hex(), *names)
        noisy = _add_noise(exact, self.noise_multiplier, source).tolist()
        kept = [pair for pair in zip(noisy, names, strict=True) if pair[0] >= self.threshold]
        return [name for _, name in sorted(kept, key=lambda pair: (-pair[0], pair[1]))][: self.most]


class NumberBounds(GaussianRelease):
    """Private bounds that contain nearly all values of a numeric column.

    Guarantee: `release` costs `event` if each record has at most one value. The unit of the noise
        is records.
    """

    __slots__ = ()

    def release(self, values: np.ndarray[Any, Any], stream: Stream) -> tuple[float, float]:
        """Release (low, high), low < high: each 0 or +-2^(k/2), or -1 and 1 if all values are 0.

        The key of the noise is derived from a hash of the histogram, as for `GaussianSum`.

        Args:
            values: Numbers of any type, shape (records,), private; values that are not finite are
                not counted.
            stream: Random stream of this release.

        Cost: `event`, charged by the caller, before, to each partition of the values.
        """
        noisy = _add_noise(
            count_magnitude_bins(values), self.noise_multiplier, stream.child("number bounds")
        )
        return _select_bounds(noisy, self.noise_multiplier, LOWER_EDGES, UPPER_EDGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount(GaussianRelease):
    """Private estimate of the number of classes, for integer labels from 0.

    Guarantee: `release` costs `event` if each record has at most one label.

    Args:
        noise_multiplier: Standard deviation of the noise in records, above 0.
        most: Maximum number of classes, 1 or above; labels from `most` on are not counted.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def release(self, labels: np.ndarray[Any, Any], stream: Stream) -> int:
        """Release the number of classes, 2 or above.

        The key of the noise is derived from a hash of the histogram, as for `GaussianSum`.

        Args:
            labels: Integers, shape (records,), private.
            stream: Random stream of this release.

        Cost: `event`, charged by the caller, before, to each partition of the labels.
        """
        known = labels[(labels >= 0) & (labels < self.most)].astype(np.int64)
        exact = np.bincount(known, minlength=self.most).astype(np.float64)
        noisy = _add_noise(exact, self.noise_multiplier, stream.child("class count"))
        return max(2, 1 + find_used_bins(noisy, self.noise_multiplier)[1])


def select_finite_values(values: np.ndarray[Any, Any]) -> Array:
    """Convert values to float64, and keep only finite ones."""
    with np.errstate(all="ignore"):
        numbers = np.asarray(values).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def count_magnitude_bins(values: np.ndarray[Any, Any]) -> Array:
    """Count the values in each of the 321 bins of magnitude, float64, (321,).

    A value above 0 is in a bin (low, high], a value below 0 in [-high, -low), and 0 has its own
    bin. The bins next to 0 also contain values closer to 0, and the outer bins all larger ones.

    Args:
        values: Numbers of any type, shape (records,); values that are not finite are not counted.
    """
    numbers = select_finite_values(values)
    sizes = np.clip(np.searchsorted(MAGNITUDE_EDGES, np.abs(numbers)), 1, ZERO_BIN)
    bins = ZERO_BIN + np.sign(numbers).astype(np.int64) * sizes
    return np.bincount(bins, minlength=len(UPPER_EDGES)).astype(np.float64)


def find_used_bins(
    noisy: Array, noise_multiplier: float, certain: float | None = None
) -> tuple[int, int]:
    """Find the first and the last bin that contain more records than noise explains.

    Ranges of adjacent bins are tested, because several bins with few records each may be
    significant only together. The noise of a range of w bins has the standard deviation
    noise_multiplier * sqrt(w). A range is significant if the sum of its noisy counts is at least
    `certain` standard deviations. A range that contains a shorter significant range is ignored. If
    no range is significant, the most significant one is used.

    Args:
        noisy: Counts with independent noise, shape (bins,); already public.
        noise_multiplier: Standard deviation of the noise of each count.
        certain: Required number of standard deviations. None: `MIN_RANGE_DEVIATIONS`.

    Returns:
        Indices of the first and the last bin of all significant ranges.
    """
    certain = MIN_RANGE_DEVIATIONS if certain is None else certain
    sums = np.concatenate([[0.0], np.cumsum(noisy)])
    firsts, lasts, best = [], [], (-math.inf, 0, 0)
    covered = np.zeros(len(noisy) + 1, bool)
    for width in range(1, min(MAX_RANGE_BINS, len(noisy)) + 1):
        deviations = (sums[width:] - sums[:-width]) / (noise_multiplier * math.sqrt(width))
        top = int(deviations.argmax())
        best = max(best, (float(deviations[top]), top, top + width - 1))
        holds, covered = deviations >= certain, covered[:-1] | covered[1:]
        starts = np.flatnonzero(holds & ~covered)
        firsts += starts.tolist()
        lasts += (starts + width - 1).tolist()
        covered |= holds
    return (min(firsts), max(lasts)) if firsts else best[1:]


def _select_bounds(
    noisy: Array, sigma: float, lower: Array, upper: Array, certain: float | None = None
) -> tuple[float, float]:
    """Select the outer edges of the bins that contain records beyond the noise."""
    first, last = find_used_bins(noisy, sigma, certain)
    if first == last == len(lower) // 2:  # only 0 was found; other values keep their sign
        return -1.0, 1.0
    return float(lower[first]), float(upper[last])


def _add_noise(exact: Array, noise_multiplier: float, stream: Stream) -> Array:
    """Release counts with Gaussian noise."""
    return GaussianSum(noise_multiplier=noise_multiplier).release(exact, stream)


@lru_cache(maxsize=256)
def _compute_threshold(noise_multiplier: float, delta: float) -> int:
    """Compute the least integer T that a noisy count of 1 reaches with probability at most delta.

    Noisy counts are rounded to a grid, so values from half a grid distance below T count as T.
    """
    deviations = -float(ndtri(delta))
    least = 1.0 + noise_multiplier * (deviations + 1e-9 * (1.0 + abs(deviations)))
    return math.ceil(least + compute_grid_distance(noise_multiplier) / 2)


# --- edges of bins with equal counts ---

BINS_PER_JOINED_BIN = 4
"""Number of magnitude bins per joined bin: few counts, so little noise; later releases refine them.
"""

JOINED_ZERO_BIN = ZERO_BIN // BINS_PER_JOINED_BIN
"""Index of the joined bin that contains only 0."""

_FROM_ZERO = np.arange(-ZERO_BIN, ZERO_BIN + 1)
JOINED_BIN_INDEX = JOINED_ZERO_BIN + np.sign(_FROM_ZERO) * -(
    -np.abs(_FROM_ZERO) // BINS_PER_JOINED_BIN
)
"""Index of the joined bin of each of the 321 bins."""

JOINED_BIN_UPPER_EDGES = np.array(
    [UPPER_EDGES[JOINED_BIN_INDEX == place].max() for place in range(2 * JOINED_ZERO_BIN + 1)]
)
JOINED_BIN_LOWER_EDGES = np.array(
    [LOWER_EDGES[JOINED_BIN_INDEX == place].min() for place in range(2 * JOINED_ZERO_BIN + 1)]
)
"""Lower edges of the 81 joined bins, ascending; `JOINED_BIN_UPPER_EDGES` has the upper ones."""

MIN_JOINED_DEVIATIONS = 4.5
"""Like `MIN_RANGE_DEVIATIONS`, for ranges of joined bins: one false range in about a hundred
estimates. A false range does little harm here.
"""

CELL_COUNT = 40
"""Approximate number of cells per release; the noise of more cells would be larger in total."""

HEAVY_FACTOR = 2.0
"""A cell with more than this multiple of 1/k of the records, for k bins, becomes a bin."""

MIN_NOISE_RATIO = 32.0
"""Minimum number of records, in standard deviations of the noise, for three releases; in addition
ten records per bin are required. With fewer records, one release of the bounds at the whole cost,
and bins of equal width, were better.
"""

SPIKE_DEVIATIONS = 3.0
"""Minimum count of the value 0, in standard deviations of the noise, for a cell of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberBins(GaussianRelease):
    """Private bounds of a numeric column, and edges of bins with about equal counts.

    Guarantee: `release` costs `event` if each record has at most one value.

    Args:
        noise_multiplier: Noise multiplier of the three releases together, above 0.
        most: Maximum number of bins, 1 or more.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def has_enough_records(self, slots: int) -> bool:
        """Check whether there are enough records (`slots`, public) for three releases."""
        return slots >= max(MIN_NOISE_RATIO * self.noise_multiplier, 10.0 * self.most)

    def release(
        self,
        values: np.ndarray[Any, Any],
        stream: Stream,
        bounds: tuple[float, float] | None = None,
    ) -> tuple[float, float, tuple[float, ...]]:
        """Release (low, high, inner edges); the edges are strictly ascending, between low and high.

        Args:
            values: Numbers of any type, shape (slots,), private; values that are not finite are not
                counted.
            stream: Random stream of these releases.
            bounds: Declared (low, high), public. None: estimated from the first release.

        Cost: `event`, charged by the caller, before, to each partition of the values.
        """
        if not self.has_enough_records(len(values)):
            alone = NumberBounds(noise_multiplier=self.noise_multiplier)
            low, high = bounds or alone.release(values, stream)
            return low, high, tuple(np.linspace(low, high, self.most + 1)[1:-1].tolist())
        wide, sigma = self.noise_multiplier * math.sqrt(2.0), self.noise_multiplier * 2.0
        noisy = release_magnitude_counts(values, wide, stream)
        low, high = bounds or estimate_bounds(noisy, wide)
        known = np.clip(select_finite_values(values), low, high)
        used = (low <= JOINED_BIN_UPPER_EDGES) & (high >= JOINED_BIN_LOWER_EDGES)
        first = _clip_edges(
            low,
            high,
            make_cell_edges(
                JOINED_BIN_LOWER_EDGES[used], JOINED_BIN_UPPER_EDGES[used], noisy[used], wide
            ),
        )
        second = release_cell_counts(known, first, sigma, stream.child("second"))
        knots = _clip_edges(low, high, make_cell_edges(first[:-1], first[1:], second, sigma))
        third = release_cell_counts(known, knots, sigma, stream.child("third"))
        counts = (second + third) / 2.0 if np.array_equal(knots, first) else third
        return low, high, compute_equal_count_edges(knots, counts, self.most)


def compute_exact_bin_edges(
    values: np.ndarray[Any, Any], low: float, high: float, most: int
) -> tuple[float, ...]:
    """Compute the inner edges of bins with equal counts without noise, for public values only."""
    known, counts = np.unique(np.clip(select_finite_values(values), low, high), return_counts=True)
    if not known.size:
        return ()
    knots = np.concatenate([[low], known, [high]])
    return compute_equal_count_edges(
        knots, np.concatenate([[0.0], counts.astype(np.float64)]), most
    )


def release_magnitude_counts(values: np.ndarray[Any, Any], sigma: float, stream: Stream) -> Array:
    """Release the noisy counts of the joined bins, shape (81,): the first of three releases.

    Cost: `Gaussian(sigma)`.
    """
    exact = np.bincount(JOINED_BIN_INDEX, weights=count_magnitude_bins(values)).astype(np.float64)
    return GaussianSum(noise_multiplier=sigma).release(exact, stream.child("number sizes"))


def estimate_bounds(noisy: Array, sigma: float) -> tuple[float, float]:
    """Compute (low, high) from the result of `release_magnitude_counts` (post-processing)."""
    edges = JOINED_BIN_LOWER_EDGES, JOINED_BIN_UPPER_EDGES
    return _select_bounds(noisy, sigma, *edges, MIN_JOINED_DEVIATIONS)


def release_cell_counts(known: Array, knots: Array, sigma: float, stream: Stream) -> Array:
    """Release noisy counts of cells, shape (cells,): the second or third of three releases.

    The key of the noise is derived from all edges.

    Args:
        known: Values within the bounds, private.
        knots: Edges of the cells, including the bounds, shape (cells + 1,); public.
        sigma: Standard deviation of the noise.
        stream: Random stream of this release.

    Cost: `Gaussian(sigma)`.
    """
    place = np.searchsorted(knots[1:-1], known, side="right")
    exact = np.bincount(place, minlength=len(knots) - 1).astype(np.float64)
    own = stream.child("number cells", *(each.hex() for each in knots.tolist()))
    return GaussianSum(noise_multiplier=sigma).release(exact, own)


def make_cell_edges(bottoms: Array, tops: Array, noisy: Array, sigma: float) -> Array:
    """Compute ascending edges of cells that contain about equal counts by the previous release.

    Bins with many records are divided into equal parts, and adjacent bins with few records are
    joined. Bins are the joined bins (before the second release), or cells (before the third).

    Args:
        bottoms: Lower edge of each bin, ascending, shape (bins,).
        tops: Upper edge of each bin.
        noisy: Noisy count of each bin from the previous release; already public.
        sigma: Standard deviation of the noise.
    """
    zero = (bottoms >= 0.0) & (tops <= UPPER_EDGES[ZERO_BIN + 1])
    counts = np.maximum(noisy, 0.0)
    share = max(float(counts[~zero].sum()) / CELL_COUNT, sigma)
    edges: list[float] = []
    held = 0.0
    for low, high, count, alone in zip(bottoms, tops, counts, zero, strict=True):
        if alone:
            if count >= SPIKE_DEVIATIONS * sigma:
                edges += [0.0, UPPER_EDGES[ZERO_BIN + 1]]
                held = 0.0
            continue
        held += count
        parts = max(1, round(count / share))
        if parts > 1:
            edges.append(low)
        if parts > 1 or held >= share:
            edges += np.linspace(low, high, parts + 1)[1:].tolist()
            held = 0.0
    return np.array(edges, np.float64)


def _clip_edges(low: float, high: float, edges: Array) -> Array:
    """Select the distinct edges between low and high, and add these two."""
    found = np.unique(edges)
    return np.array([low, *found[(found > low) & (found < high)], high])


def compute_equal_count_edges(knots: Array, counts: Array, most: int) -> tuple[float, ...]:
    """Compute the inner edges of at most `most` bins with about equal counts, by interpolation.

    Args:
        knots: Edges of the cells, including the outer ones, shape (cells + 1,).
        counts: Noisy counts of the cells, shape (cells,); already public.
        most: Maximum number of bins.
    """
    rising = isotonic_regression(np.concatenate([[0.0], np.cumsum(counts)])).x
    total = rising[-1] - rising[0]
    if not total > 0.0:
        return ()
    shares = np.diff(rising) / total
    heaviest = np.argsort(-shares, kind="stable")[: (most - 1) // 3]
    heavy = heaviest[shares[heaviest] > HEAVY_FACTOR / most]
    rest = shares.copy()
    rest[heavy] = 0.0
    before = np.concatenate([[0.0], np.cumsum(rest)])
    left = most - 2 * len(heavy)
    light = np.interp(np.arange(1, left) / left * before[-1], before, knots)
    found = np.unique(np.concatenate([knots[heavy], knots[heavy + 1], light]))
    return tuple(found[(found > knots[0]) & (found < knots[-1])].tolist())
