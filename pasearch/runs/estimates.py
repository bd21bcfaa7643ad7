"""What a schema that nobody declared costs: categories, bounds and classes, from noisy histograms.

    categories   release every category c with n_c >= 1 and n_c + N(0, sigma^2) >= T, at most `most`
                 T the least whole number that 1 + N(0, sigma^2), rounded to the noise's grid,
                 reaches with probability delta at most
    bounds       h_b + N(0, sigma^2) for 321 public bins b; release the edges of those in use
    classes      h_k + N(0, sigma^2) for the labels k = 0 .. most - 1; release 1 + the last in use

A record is in one category, bin or label at most, so it moves the counts by at most 1 in L2. A
category that one record alone has is released with probability delta at most; that is all that
delta is for. Bins and labels are public, whoever is in them.

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
"""The edges between the bins of a number's size: 2^(k/2), from a millionth to 10^18."""

UPPER_EDGES: Array = np.concatenate([-SIZE_EDGES[-2:0:-1], [0.0, 0.0], SIZE_EDGES[1:]])
"""The upper edge of every bin, rising: sizes below 0, 0 by itself, sizes above 0."""

LOWER_EDGES: Array = 0.0 - UPPER_EDGES[::-1]
"""The lower edge of every bin."""

ZERO_BIN = len(UPPER_EDGES) // 2
"""The bin of the number 0."""

MIN_DEVIATIONS = 5.0
"""How many deviations of its noise a stretch of bins holds: by chance one range in a thousand."""

MAX_STRETCH_BINS = 16
"""The most bins of a stretch: eight doublings of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryCounts:
    """The categories that occur where none was known beforehand, the most frequent first.

    Guarantee: `release` costs `event` if each record is in at most one category, as far as float64
    noise is Gaussian.

    Args:
        noise_multiplier: The noise's standard deviation, in records, above 0.
        delta: The most probability with which a category of one record is released, in (0, 1).
        most: The most categories that are released, 1 or above.
    """

    noise_multiplier: float
    delta: float
    most: int
    __post_init__ = make_post_init(
        noise_multiplier=check_positive, delta=check_fraction, most=check_positive_integer
    )

    @property
    def event(self) -> Event:
        """What one release costs."""
        leak = ApproximateDP(epsilon=0.0, delta=self.delta)
        return Composition(events=(Gaussian(noise_multiplier=self.noise_multiplier), leak))

    @property
    def threshold(self) -> int:
        """The least noisy count that is released, in records."""
        return _threshold(self.noise_multiplier, self.delta)

    def count_found(self, probability: float) -> float:
        """Return the number of records of a category that is released with this probability.

        Args:
            probability: In (0, 1). If more than `most` categories pass, the rarest are left out.
        """
        return self.threshold + self.noise_multiplier * float(ndtri(probability))

    def release(self, counts: Mapping[str, int], stream: Stream) -> list[str]:
        """Return the categories that are kept.

        The noise's key contains all names and counts: a resumed run that counts the same releases
        the same, and one that counts otherwise draws afresh for every category.

        Args:
            counts: Number of records of every category that occurs, private, in any order; a
                category of 0 records is as good as missing.
            stream: The release's own randomness.

        Returns:
            At most `most` names, by decreasing noisy count, ties by name.

        Raises:
            TypeError: A name that is no text or a count that is no whole number (not named).
            ValueError: A count below 0 (not named).

        Cost: `event`, on every partition that the counts were taken from; charge it first.
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
    """Bounds between which nearly all of the records' numbers lie, on a public scale of sizes.

    Guarantee: `release` costs `event` if each record has at most one number, as far as float64
    noise is Gaussian. The noise is in records.
    """

    __slots__ = ()

    def release(self, values: np.ndarray[Any, Any], stream: Stream) -> tuple[float, float]:
        """Return (low, high), low < high: each 0, or +-2^(k/2), or -1 and 1 where all is 0.

        The noise's key contains a hash of the histogram, as a `GaussianSum`'s contains its sum.

        Args:
            values: (records,) numbers of any type, private; what is not finite is no record.
            stream: The release's own randomness.

        Cost: `event`, on every partition that the values were taken from; charge it first.
        """
        return self.bounds_of(self.look(values, stream))

    def look(self, values: np.ndarray[Any, Any], stream: Stream) -> Array:
        """Return the noisy histogram of sizes, (321,): the release that bounds are made of."""
        return _add_noise(
            count_size_bins(values), self.noise_multiplier, stream.child("number bounds")
        )

    def bounds_of(self, noisy: Array) -> tuple[float, float]:
        """Return the bounds that a noisy histogram tells: post-processing."""
        first, last = find_used_bins(noisy, self.noise_multiplier)
        # 0 alone is hardly all there is: what is rare keeps its sign.
        return (
            (-1.0, 1.0)
            if first == last == ZERO_BIN
            else (float(LOWER_EDGES[first]), float(UPPER_EDGES[last]))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCount(GaussianRelease):
    """How many classes there are, of labels that are whole numbers from 0.

    Guarantee: `release` costs `event` if each record has at most one label, as far as float64 noise
    is Gaussian.

    Args:
        noise_multiplier: The noise's standard deviation, in records, above 0.
        most: The most classes there may be, 1 or above; labels beyond are not counted.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def release(self, labels: np.ndarray[Any, Any], stream: Stream) -> int:
        """Return a number of classes, 2 or above.

        The noise's key contains a hash of the histogram, as a `GaussianSum`'s contains its sum.

        Args:
            labels: (records,) whole numbers, private.
            stream: The release's own randomness.

        Cost: `event`, on every partition that the labels were taken from; charge it first.
        """
        known = labels[(labels >= 0) & (labels < self.most)].astype(np.int64)
        exact = np.bincount(known, minlength=self.most).astype(np.float64)
        noisy = _add_noise(exact, self.noise_multiplier, stream.child("class count"))
        return max(2, 1 + find_used_bins(noisy, self.noise_multiplier)[1])


def finite_values(values: np.ndarray[Any, Any]) -> Array:
    """Return those values that are finite as float64: (at most as many,)."""
    with np.errstate(all="ignore"):
        numbers = np.asarray(values).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def count_size_bins(values: np.ndarray[Any, Any]) -> Array:
    """Return how many values are in each of the 321 bins, float64.

    A value above 0 is in the bin (low, high] of its size, one below 0 in [-high, -low), 0 in a bin
    of its own. The bins of the least and of the largest size hold whatever is smaller, or larger.

    Args:
        values: (records,) numbers of any type; what is not finite is in no bin.
    """
    numbers = finite_values(values)
    sizes = np.clip(np.searchsorted(SIZE_EDGES, np.abs(numbers)), 1, ZERO_BIN)
    bins = ZERO_BIN + np.sign(numbers).astype(np.int64) * sizes
    return np.bincount(bins, minlength=len(UPPER_EDGES)).astype(np.float64)


def find_used_bins(
    noisy: Array, noise_multiplier: float, certain: float | None = None
) -> tuple[int, int]:
    """Return the first and the last bin of all stretches that hold more than noise would.

    A stretch of w bins does if its noisy counts add up to so many deviations, sigma sqrt(w): many
    bins with few records each are seen together. A stretch with a shorter one inside it says no
    more than that one. Where there is none, the one of the most deviations is all that is returned.

    Args:
        noisy: (bins,) counts, each with noise of its own; public by now.
        noise_multiplier: The noise's standard deviation.
        certain: How many deviations; None: `CERTAIN`.
    """
    certain = MIN_DEVIATIONS if certain is None else certain
    sums = np.concatenate([[0.0], np.cumsum(noisy)])
    firsts, lasts, best = [], [], (-math.inf, 0, 0)
    told = np.zeros(len(noisy) + 1, bool)
    for width in range(1, min(MAX_STRETCH_BINS, len(noisy)) + 1):
        deviations = (sums[width:] - sums[:-width]) / (noise_multiplier * math.sqrt(width))
        top = int(deviations.argmax())
        best = max(best, (float(deviations[top]), top, top + width - 1))
        holds, told = deviations >= certain, told[:-1] | told[1:]
        starts = np.flatnonzero(holds & ~told)
        firsts += starts.tolist()
        lasts += (starts + width - 1).tolist()
        told |= holds
    return (min(firsts), max(lasts)) if firsts else best[1:]


def _add_noise(exact: Array, noise_multiplier: float, stream: Stream) -> Array:
    return GaussianSum(noise_multiplier=noise_multiplier).release(exact, stream)


@lru_cache(maxsize=256)
def _threshold(noise_multiplier: float, delta: float) -> int:
    """Return the least whole T that a noisy count of 1 reaches with probability delta at most.

    A noisy count is a grid point, and the one at T is reached from half a step below it on.
    """
    deviations = -float(ndtri(delta))
    least = 1.0 + noise_multiplier * (deviations + 1e-9 * (1.0 + abs(deviations)))
    return math.ceil(least + grid_distance(noise_multiplier) / 2)
