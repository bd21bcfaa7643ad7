"""Where the bins of a number are cut: at quantiles, estimated privately in three looks.

    first     h_b + N(0, 2 sigma^2) for 81 bins of sizes, each four of those that bounds of whole
              arrays are estimated from: edges are powers of 4
    cells     those bins, joined or cut into equal parts, so that each holds about a fortieth of the
              records by the first look: public from then on
    second    c_j + N(0, 4 sigma^2) for the cells j, which are then joined and cut once more
    third     the same for these
    edges     where the cells' counts, made to rise, reach 1/k, 2/k, ... ; a cell of many records,
              such as a value that is often repeated, has a bin of its own

A record is in one bin and in one cell of each look at most, and 1/2 + 1/4 + 1/4 = 1, so all looks
together cost one Gaussian of sigma. Numbers whose size varies by powers of ten, that lie close
together far from 0, or with one value far away, have useful bins so; of equal width, one bin would
hold nearly all of them (benchmarks/models).

Source: ours. Proof: docs/guarantees/estimated-schema.md.
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
"""How many of the bins of sizes are one here: rare large numbers are then seen together, and the
later looks tell them apart."""

MIDDLE_BIN = ZERO_BIN // BINS_PER_JOINED_BIN
"""The joined bin of the number 0, alone."""

_FROM_ZERO = np.arange(-ZERO_BIN, ZERO_BIN + 1)
JOINED_BIN_INDEX = MIDDLE_BIN + np.sign(_FROM_ZERO) * -(-np.abs(_FROM_ZERO) // BINS_PER_JOINED_BIN)
"""Which of the joined bins each bin of sizes is in."""

JOINED_UPPER_EDGES = np.array(
    [UPPER_EDGES[JOINED_BIN_INDEX == place].max() for place in range(2 * MIDDLE_BIN + 1)]
)
JOINED_LOWER_EDGES = np.array(
    [LOWER_EDGES[JOINED_BIN_INDEX == place].min() for place in range(2 * MIDDLE_BIN + 1)]
)
"""The upper and the lower edge of every joined bin, rising."""

MIN_JOINED_DEVIATIONS = 4.5
"""How many deviations of its noise a stretch of joined bins holds: by chance one range in some
hundred, and bins of no record do little harm."""

CELL_COUNT = 40
"""About how many cells a look counts: more of them have more noise together."""

HEAVY_FACTOR = 2.0
"""How many times its share of the records a cell holds that has a bin of its own."""

MIN_NOISE_RATIO = 32.0
"""How many deviations of the noise there must be slots for more than one look, and ten a bin. For
fewer, one look at the bounds, with all of the price, and bins of equal width were better."""

SPIKE_DEVIATIONS = 3.0
"""How many deviations of the noise the count of the number 0 shows for a cell of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberBins(GaussianRelease):
    """Bounds of the records' numbers, and edges between them that hold about equally many each.

    Guarantee: `release` costs `event` if each record has at most one number, as far as float64
    noise is Gaussian.

    Args:
        noise_multiplier: Of all looks together, in records, above 0.
        most: The most bins, 1 or more.
    """

    most: int
    __post_init__ = make_post_init(noise_multiplier=check_positive, most=check_positive_integer)

    def has_enough_records(self, slots: int) -> bool:
        """Return whether so many slots, a public number, are enough for more than one look."""
        return slots >= max(MIN_NOISE_RATIO * self.noise_multiplier, 10.0 * self.most)

    def release(
        self,
        values: np.ndarray[Any, Any],
        stream: Stream,
        bounds: tuple[float, float] | None = None,
    ) -> tuple[float, float, tuple[float, ...]]:
        """Return (low, high, edges): edges rise strictly, between low and high.

        Args:
            values: (slots,) numbers of any type, private; what is not finite is no record.
            stream: The release's own randomness.
            bounds: Declared (low, high), public; None estimates them from the first look.

        Cost: `event`, on every partition that the values were taken from; charge it first.
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
    """Return the edges without noise, of values that the user declared or assumed public."""
    known, counts = np.unique(np.clip(finite_values(values), low, high), return_counts=True)
    if not known.size:
        return ()
    knots = np.concatenate([[low], known, [high]])
    return cut_bins(knots, np.concatenate([[0.0], counts.astype(np.float64)]), most)


def release_size_counts(values: np.ndarray[Any, Any], sigma: float, stream: Stream) -> Array:
    """Return the first look: noisy counts of the joined bins, (81,).

    Cost: `Gaussian(sigma)`.
    """
    exact = np.bincount(JOINED_BIN_INDEX, weights=count_size_bins(values)).astype(np.float64)
    return GaussianSum(noise_multiplier=sigma).release(exact, stream.child("number sizes"))


def estimate_bounds(noisy: Array, sigma: float) -> tuple[float, float]:
    """Return the bounds that a first look tells: post-processing."""
    first, last = find_used_bins(noisy, sigma, MIN_JOINED_DEVIATIONS)
    if first == last == MIDDLE_BIN:
        return -1.0, 1.0
    return float(JOINED_LOWER_EDGES[first]), float(JOINED_UPPER_EDGES[last])


def release_cell_counts(known: Array, knots: Array, sigma: float, stream: Stream) -> Array:
    """Return noisy counts of cells, (cells,); the noise's key holds every edge.

    Args:
        known: Numbers within the bounds, private.
        knots: The edges of all cells, the bounds included, (cells + 1,); public.
        sigma: The deviation of the noise.
        stream: The look's own randomness.

    Cost: `Gaussian(sigma)`.
    """
    place = np.searchsorted(knots[1:-1], known, side="right")
    exact = np.bincount(place, minlength=len(knots) - 1).astype(np.float64)
    own = stream.child("number cells", *(each.hex() for each in knots.tolist()))
    return GaussianSum(noise_multiplier=sigma).release(exact, own)


def make_cell_edges(bottoms: Array, tops: Array, noisy: Array, sigma: float) -> Array:
    """Return the edges of cells, rising: those of bins that are joined, or cut into equal parts.

    Args:
        bottoms: The lower edge of each bin, rising, (bins,).
        tops: The upper edge of each.
        noisy: Counts of the last look; public by now.
        sigma: The deviation of their noise.
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
    """Return the bounds and the edges between them, rising strictly."""
    found = np.unique(edges)
    return np.array([low, *found[(found > low) & (found < high)], high])


def cut_bins(knots: Array, counts: Array, most: int) -> tuple[float, ...]:
    """Return the edges between at most so many bins of about equal counts.

    Args:
        knots: The edges of all cells, the outer ones included, (cells + 1,).
        counts: Of the cells, with noise, (cells,); public by now.
        most: Bins.
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
