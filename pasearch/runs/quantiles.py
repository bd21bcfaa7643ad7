"""Bin edges of a numeric column at quantiles, estimated privately in three releases.

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

Source: original to this project. Proof: docs/guarantees/estimated-schema.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from pasearch.accounting.checks import check_positive, check_positive_integer, make_post_init
from pasearch.accounting.profiles import Array
from pasearch.runs.estimates import (
    LOWER_EDGES,
    UPPER_EDGES,
    ZERO_BIN,
    NumberBounds,
    count_size_bins,
    find_used_bins,
    finite_values,
)
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum

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
        noise is
    Gaussian.

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
    first, last = find_used_bins(noisy, sigma, MIN_JOINED_DEVIATIONS)
    if first == last == MIDDLE_BIN:
        return -1.0, 1.0
    return float(JOINED_LOWER_EDGES[first]), float(JOINED_UPPER_EDGES[last])


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
