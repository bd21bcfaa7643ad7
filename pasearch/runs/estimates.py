"""Privacy cost and release of an estimated schema: categories, bounds and classes.

    categories   release every category c with n_c >= 1 and n_c + N(0, sigma^2) >= T, at most `most`
                 T the least integer that 1 + N(0, sigma^2), rounded to the noise's grid,
                 reaches with probability delta at most
    bounds       h_b + N(0, sigma^2) for 321 public bins b; release the edges of those in use
    classes      h_k + N(0, sigma^2) for the labels k = 0 .. most - 1; release 1 + the last in use

A record is in at most one category, bin or label, so it changes the counts by at most 1 in L2. A
category of a single record is released with probability at most delta; delta has no other use. Bins
and labels are public, whether or not they contain records.

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
        noise is
    Gaussian. The unit of the noise is records.
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
        first, last = find_used_bins(noisy, self.noise_multiplier)
        # 0 alone is hardly all there is: what is rare keeps its sign.
        return (
            (-1.0, 1.0)
            if first == last == ZERO_BIN
            else (float(LOWER_EDGES[first]), float(UPPER_EDGES[last]))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount(GaussianRelease):
    """Noisy number of classes of integer labels from 0.

    Guarantee: `release` costs `event` if each record has at most one label, as far as float64 noise
        is
    Gaussian.

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
