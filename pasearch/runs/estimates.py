"""Privacy cost and release of an estimated schema: categories, bounds and classes.

    categories   release every category c with n_c >= 1 and n_c + N(0, sigma^2) >= T, at most `most`
                 T the least integer that 1 + N(0, sigma^2), rounded to the noise's grid,
                 reaches with probability delta at most
    bounds       h_b + N(0, sigma^2) for 321 public bins b; release the edges of those in use
    classes      h_k + N(0, sigma^2) for the labels k = 0 .. most - 1; release 1 + the last in use

A record is in at most one category, bin or label, so it changes the counts by at most 1 in L2. A
category of a single record is released with probability at most delta; delta has no other use. Bins
and labels are public, whether or not they contain records.

Bin edges at quantiles are estimated in three releases, original to this project:

    first     h_b + N(0, 2 sigma^2) for 81 bins of magnitudes, each four of those that bounds of
              whole arrays are estimated from: edges are powers of 4
    cells     those bins, joined or divided into equal parts, so that each has about a fortieth of
              the records by the first release: public from then on
    second    c_j + N(0, 4 sigma^2) for the cells j, which are then joined and divided once more
    third     the same for these
    edges     the positions where the cells' counts, made monotone, reach 1/k, 2/k, ... ; a cell of
              many records, such as a frequent value, has its own bin

A record is in at most one bin and one cell of each release, and 1/2 + 1/4 + 1/4 = 1, so all three
together cost one Gaussian of sigma. Thus columns get useful bins even if their magnitude varies by
powers of ten, they are concentrated far from 0, or they have an outlier. With bins of equal width,
one bin would contain nearly all records (benchmarks/models).

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
from pasearch.runs.normals import grid_distance
from pasearch.runs.sums import GaussianRelease, GaussianSum

SIZE_EDGES: Array = np.array(
    # Square roots and powers of 2 are rounded by IEEE rules: every machine has these edges.
    [math.ldexp(math.sqrt(2.0) if k % 2 else 1.0, k // 2) for k in range(-40, 121)]
)
"""Edges of the bins of a number's magnitude: 2^(k/2), from a millionth to 10^18."""

UPPER_EDGES: Array = np.concatenate([-SIZE_EDGES[-2:0:-1], [0.0, 0.0], SIZE_EDGES[1:]])
"""Upper edge of every bin, ascending: negative magnitudes, 0 alone, positive magnitudes."""

LOWER_EDGES: Array = 0.0 - UPPER_EDGES[::-1]
"""Lower edge of every bin."""

ZERO_BIN = len(UPPER_EDGES) // 2
"""Bin of the number 0."""

MIN_DEVIATIONS = 5.0
"""Noise deviations from which a range of bins is in use: a false one in a thousand estimates."""

MAX_STRETCH_BINS = 16
"""Number of bins in the longest range that is tested: eight doublings of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCounts:
    """Noisy selection of unknown categories, the most frequent first.

    Guarantee: `release` costs `event` if each record is in at most one category, as far as float64
    noise is Gaussian.

    Args:
        noise_multiplier: Standard deviation of the noise in records, above 0.
        delta: Probability with which a category of one record may be released, in (0, 1).
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
        """Smallest noisy count of a released category, in records."""
        return _threshold(self.noise_multiplier, self.delta)

    def count_found(self, probability: float) -> float:
        """Return the number of records of a category that is released with this probability.

        Args:
            probability: Probability in (0, 1). The rarest categories are dropped if more than
                `most` pass.
        """
        return self.threshold + self.noise_multiplier * float(ndtri(probability))

    def release(self, counts: Mapping[str, int], stream: Stream) -> list[str]:
        """Release the categories whose noisy count reaches the threshold.

        The key of the noise contains all names and counts: a resumed run with the same counts
        releases the same categories, and other counts get new noise for every category.

        Args:
            counts: Number of records of every category, private, in any order. A category of 0
                records is equivalent to a missing one.
            stream: Random stream of this release.

        Returns:
            At most `most` names, by decreasing noisy count, ties by name.

        Raises:
            TypeError: A name is not a string or a count is not an integer (values are not named).
            ValueError: A count is below 0 (its value is not named).

        Cost: `event`, on every partition that was counted; charge it first.
        """
        for name, count in counts.items():  # an error must not name what it saw
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
    """Bounds that contain nearly all numbers of the records, on a public scale of magnitudes.

    Guarantee: `release` costs `event` if each record has at most one number, as far as float64
        noise is Gaussian. The unit of the noise is records.
    """

    __slots__ = ()

    def release(self, values: np.ndarray[Any, Any], stream: Stream) -> tuple[float, float]:
        """Release (low, high), low < high: each 0 or +-2^(k/2), or -1 and 1 if all numbers are 0.

        The key of the noise contains a hash of the histogram, as for `GaussianSum`.

        Args:
            values: Numbers of any type, shape (records,), private; non-finite values are not
                counted.
            stream: Random stream of this release.

        Cost: `event`, on every partition with these values; charge it first.
        """
        return self.bounds_of(self.look(values, stream))

    def look(self, values: np.ndarray[Any, Any], stream: Stream) -> Array:
        """Release the noisy histogram of magnitudes, shape (321,), for computing bounds."""
        return _add_noise(
            count_size_bins(values), self.noise_multiplier, stream.child("number bounds")
        )

    def bounds_of(self, noisy: Array) -> tuple[float, float]:
        """Compute the bounds from a noisy histogram (post-processing)."""
        return _bounds_of_bins(noisy, self.noise_multiplier, LOWER_EDGES, UPPER_EDGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount(GaussianRelease):
    """Noisy number of classes of integer labels from 0.

    Guarantee: `release` costs `event` if each record has at most one label, as far as float64 noise
        is Gaussian.

    Args:
        noise_multiplier: Standard deviation of the noise in records, above 0.
        most: Maximum number of classes, 1 or above; larger labels are not counted.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def release(self, labels: np.ndarray[Any, Any], stream: Stream) -> int:
        """Release the number of classes, 2 or above.

        The key of the noise contains a hash of the histogram, as for `GaussianSum`.

        Args:
            labels: Integers, shape (records,), private.
            stream: Random stream of this release.

        Cost: `event`, on every partition with these labels; charge it first.
        """
        known = labels[(labels >= 0) & (labels < self.most)].astype(np.int64)
        exact = np.bincount(known, minlength=self.most).astype(np.float64)
        noisy = _add_noise(exact, self.noise_multiplier, stream.child("class count"))
        return max(2, 1 + find_used_bins(noisy, self.noise_multiplier)[1])


def finite_values(values: np.ndarray[Any, Any]) -> Array:
    """Convert values to float64 and drop those that are not finite."""
    with np.errstate(all="ignore"):
        numbers = np.asarray(values).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def count_size_bins(values: np.ndarray[Any, Any]) -> Array:
    """Count the values in each of the 321 bins, float64.

    A value above 0 is in the bin (low, high] of its magnitude, one below 0 in [-high, -low), and 0
    has its own bin. The first and the last bin of magnitudes also contain smaller and larger
    values.

    Args:
        values: Numbers of any type, shape (records,); non-finite values are not counted.
    """
    numbers = finite_values(values)
    sizes = np.clip(np.searchsorted(SIZE_EDGES, np.abs(numbers)), 1, ZERO_BIN)
    bins = ZERO_BIN + np.sign(numbers).astype(np.int64) * sizes
    return np.bincount(bins, minlength=len(UPPER_EDGES)).astype(np.float64)


def find_used_bins(
    noisy: Array, noise_multiplier: float, certain: float | None = None
) -> tuple[int, int]:
    """Find the first and the last bin of all ranges with more records than noise explains.

    A range of w bins qualifies if the sum of its noisy counts is `certain` deviations, sigma
    sqrt(w): thus many bins with few records each are detected together. A range that contains a
    shorter qualifying one adds nothing. If no range qualifies, the range with the most deviations
    is returned.

    Args:
        noisy: Counts with independent noise, shape (bins,); already public.
        noise_multiplier: Standard deviation of the noise.
        certain: Required number of deviations; None: `MIN_DEVIATIONS`.
    """
    certain = MIN_DEVIATIONS if certain is None else certain
    sums = np.concatenate([[0.0], np.cumsum(noisy)])
    firsts, lasts, best = [], [], (-math.inf, 0, 0)
    covered = np.zeros(len(noisy) + 1, bool)
    for width in range(1, min(MAX_STRETCH_BINS, len(noisy)) + 1):
        deviations = (sums[width:] - sums[:-width]) / (noise_multiplier * math.sqrt(width))
        top = int(deviations.argmax())
        best = max(best, (float(deviations[top]), top, top + width - 1))
        holds, covered = deviations >= certain, covered[:-1] | covered[1:]
        starts = np.flatnonzero(holds & ~covered)
        firsts += starts.tolist()
        lasts += (starts + width - 1).tolist()
        covered |= holds
    return (min(firsts), max(lasts)) if firsts else best[1:]


def _bounds_of_bins(
    noisy: Array, sigma: float, lower: Array, upper: Array, certain: float | None = None
) -> tuple[float, float]:
    first, last = find_used_bins(noisy, sigma, certain)
    if first == last == len(lower) // 2:  # only 0 was found: rare numbers keep their sign
        return -1.0, 1.0
    return float(lower[first]), float(upper[last])


def _add_noise(exact: Array, noise_multiplier: float, stream: Stream) -> Array:
    return GaussianSum(noise_multiplier=noise_multiplier).release(exact, stream)


@lru_cache(maxsize=256)
def _threshold(noise_multiplier: float, delta: float) -> int:
    """Compute the least integer T that a noisy count of 1 reaches with probability at most delta.

    A noisy count is a grid point, and every value from half a grid distance below T is rounded to
    T.
    """
    deviations = -float(ndtri(delta))
    least = 1.0 + noise_multiplier * (deviations + 1e-9 * (1.0 + abs(deviations)))
    return math.ceil(least + grid_distance(noise_multiplier) / 2)


# --- bin edges at quantiles ---

BINS_PER_JOINED_BIN = 4
"""Number of magnitude bins per joined bin: rare large numbers are counted together, and later
releases separate them."""

MIDDLE_BIN = ZERO_BIN // BINS_PER_JOINED_BIN
"""Joined bin of the number 0 alone."""

_FROM_ZERO = np.arange(-ZERO_BIN, ZERO_BIN + 1)
JOINED_BIN_INDEX = MIDDLE_BIN + np.sign(_FROM_ZERO) * -(-np.abs(_FROM_ZERO) // BINS_PER_JOINED_BIN)
"""Joined bin of each magnitude bin."""

JOINED_UPPER_EDGES = np.array(
    [UPPER_EDGES[JOINED_BIN_INDEX == place].max() for place in range(2 * MIDDLE_BIN + 1)]
)
JOINED_LOWER_EDGES = np.array(
    [LOWER_EDGES[JOINED_BIN_INDEX == place].min() for place in range(2 * MIDDLE_BIN + 1)]
)
"""Lower edge of every joined bin, ascending; `JOINED_UPPER_EDGES` are the upper ones."""

MIN_JOINED_DEVIATIONS = 4.5
"""Noise deviations from which a range of joined bins is in use: one false range in about a hundred,
and empty bins do little harm."""

CELL_COUNT = 40
"""Approximate number of cells per release: more cells have more noise in total."""

HEAVY_FACTOR = 2.0
"""Multiple of its equal share of the records from which a cell gets its own bin."""

MIN_NOISE_RATIO = 32.0
"""Records per noise deviation from which several releases pay off, besides ten records per bin.
With fewer, one release of the bounds at the whole cost, and bins of equal width, were better."""

SPIKE_DEVIATIONS = 3.0
"""Noise deviations from which the number 0 gets its own cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberBins(GaussianRelease):
    """Noisy bounds of the records' numbers, and edges of bins with about equally many records.

    Guarantee: `release` costs `event` if each record has at most one number, as far as float64
        noise is Gaussian.

    Args:
        noise_multiplier: Noise multiplier of all releases together, in records, above 0.
        most: Maximum number of bins, 1 or more.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def has_enough_records(self, slots: int) -> bool:
        """Check whether `slots` records, a public number, suffice for more than one release."""
        return slots >= max(MIN_NOISE_RATIO * self.noise_multiplier, 10.0 * self.most)

    def release(
        self,
        values: np.ndarray[Any, Any],
        stream: Stream,
        bounds: tuple[float, float] | None = None,
    ) -> tuple[float, float, tuple[float, ...]]:
        """Release (low, high, edges); the edges are strictly ascending, between low and high.

        Args:
            values: Numbers of any type, shape (slots,), private; non-finite values are not counted.
            stream: Random stream of this release.
            bounds: Declared (low, high), public; None estimates them from the first release.

        Cost: `event`, on every partition with these values; charge it first.
        """
        if not self.has_enough_records(len(values)):
            alone = NumberBounds(noise_multiplier=self.noise_multiplier)
            low, high = bounds or alone.release(values, stream)
            return low, high, tuple(np.linspace(low, high, self.most + 1)[1:-1].tolist())
        wide, sigma = self.noise_multiplier * math.sqrt(2.0), self.noise_multiplier * 2.0
        noisy = release_size_counts(values, wide, stream)
        low, high = bounds or estimate_bounds(noisy, wide)
        known = np.clip(finite_values(values), low, high)
        used = (low <= JOINED_UPPER_EDGES) & (high >= JOINED_LOWER_EDGES)
        first = _edges_within(
            low,
            high,
            make_cell_edges(JOINED_LOWER_EDGES[used], JOINED_UPPER_EDGES[used], noisy[used], wide),
        )
        second = release_cell_counts(known, first, sigma, stream.child("second"))
        knots = _edges_within(low, high, make_cell_edges(first[:-1], first[1:], second, sigma))
        third = release_cell_counts(known, knots, sigma, stream.child("third"))
        counts = (second + third) / 2.0 if np.array_equal(knots, first) else third
        return low, high, cut_bins(knots, counts, self.most)


def exact_bin_edges(
    values: np.ndarray[Any, Any], low: float, high: float, most: int
) -> tuple[float, ...]:
    """Compute the edges without noise, for values that the user declared or assumed public."""
    known, counts = np.unique(np.clip(finite_values(values), low, high), return_counts=True)
    if not known.size:
        return ()
    knots = np.concatenate([[low], known, [high]])
    return cut_bins(knots, np.concatenate([[0.0], counts.astype(np.float64)]), most)


def release_size_counts(values: np.ndarray[Any, Any], sigma: float, stream: Stream) -> Array:
    """Release the noisy counts of the joined bins, shape (81,): the first release.

    Cost: `Gaussian(sigma)`.
    """
    exact = np.bincount(JOINED_BIN_INDEX, weights=count_size_bins(values)).astype(np.float64)
    return GaussianSum(noise_multiplier=sigma).release(exact, stream.child("number sizes"))


def estimate_bounds(noisy: Array, sigma: float) -> tuple[float, float]:
    """Compute the bounds from the first release (post-processing)."""
    edges = JOINED_LOWER_EDGES, JOINED_UPPER_EDGES
    return _bounds_of_bins(noisy, sigma, *edges, MIN_JOINED_DEVIATIONS)


def release_cell_counts(known: Array, knots: Array, sigma: float, stream: Stream) -> Array:
    """Release noisy counts of cells, shape (cells,); the key of the noise contains every edge.

    Args:
        known: Numbers within the bounds, private.
        knots: Edges of all cells, including the bounds, shape (cells + 1,); public.
        sigma: Standard deviation of the noise.
        stream: Random stream of this release.

    Cost: `Gaussian(sigma)`.
    """
    place = np.searchsorted(knots[1:-1], known, side="right")
    exact = np.bincount(place, minlength=len(knots) - 1).astype(np.float64)
    own = stream.child("number cells", *(each.hex() for each in knots.tolist()))
    return GaussianSum(noise_multiplier=sigma).release(exact, own)


def make_cell_edges(bottoms: Array, tops: Array, noisy: Array, sigma: float) -> Array:
    """Compute ascending edges of cells by joining bins, or dividing them into equal parts.

    Args:
        bottoms: Lower edge of each bin, ascending, shape (bins,).
        tops: Upper edge of each bin.
        noisy: Counts of the last release; already public.
        sigma: Standard deviation of their noise.
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


def _edges_within(low: float, high: float, edges: Array) -> Array:
    found = np.unique(edges)
    return np.array([low, *found[(found > low) & (found < high)], high])


def cut_bins(knots: Array, counts: Array, most: int) -> tuple[float, ...]:
    """Compute the edges between at most `most` bins with about equal counts.

    Args:
        knots: Edges of all cells, including the outer ones, shape (cells + 1,).
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
