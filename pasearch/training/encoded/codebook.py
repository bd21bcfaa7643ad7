"""The codebook of encoded gradients: public vectors that gradients are clamped to, rank by rank.

    psi_1 .. psi_m     N(0, 1) entries, below 1e-5 set to 0, sorted, of norm C

A psi is held as constants over bins of ranks, fine at the top: each is the root mean square of the
Gaussian's magnitudes between two order statistics, which are drawn. That is a codebook of its own,
public like the paper's and priced as it is; `Codebook.dense` is the paper's, for small networks.

Source: Nasr et al., Algorithm 1; proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pasearch.accounting.additive import GRID_RATIO, Shifts
from pasearch.accounting.checks import check_positive, check_positive_integer
from pasearch.errors import UsageError
from pasearch.training.clipping import check_clip_norm

GENERATOR_KEY = 0x6E617372_2D656E63_6F64696E_67000000
"""Of the codebook's generator, to which its seed is added: not a secret."""
MIN_ENTRY = 1e-5
"""Below it an entry of N(0, 1) is set to 0, as in the paper."""
RANKS_PER_BIN = 8
"""A bin of ranks is at most an 8th as wide as the ranks above it are many."""
MIN_BINS = 64
"""A bin of ranks holds at most a 64th of all, where a psi has as many entries."""
MAX_DENSE_NUMBERS = 2**25
"""Most numbers in a dense codebook: 128 MiB."""
MAX_DIMENSION = 2**24
"""Below it float32 counts coordinates without rounding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codebook:
    """Public vectors, sorted, each of norm at most C; constant over bins of ranks.

    Guarantee: a function of its settings alone. `values` are what gradients are clamped to, bit by
    bit, and what `envelope` prices.

    Args:
        values: float32, (vectors, bins), 0 or above, not increasing along a row.
        counts: int64, (bins,), how many coordinates a bin holds; together the dimension.
    """

    values: NDArray[np.float32]
    counts: NDArray[np.int64]

    @classmethod
    def binned(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw the order statistics at the bins' edges, and take what lies between for its mean.

        Cost: vectors x bins numbers, about 130 bins at 10^5 coordinates: milliseconds.

        A gradient has `dimension` coordinates, below 2^24; m is `vectors`, 1 or above, each of norm
        C; the seed is public, 0 or above.
        """
        counts = _bin_sizes(_check_dimension(dimension))
        generator = _seeded_generator(seed)
        # The gaps between the order statistics of uniform numbers are those of a Poisson process.
        gaps = generator.standard_gamma(
            counts, size=(check_positive_integer("vectors", vectors), len(counts))
        )
        rest = generator.standard_exponential(len(gaps))
        tail = np.cumsum(gaps, axis=1)
        tail /= (tail[:, -1] + rest)[:, None]
        above = np.pad(tail[:, :-1], ((0, 0), (1, 0)))
        nodes, weights = np.polynomial.legendre.leggauss(3)
        squares = sum(
            weight / 2 * ndtri((above + (tail - above) * (1 + node) / 2) / 2) ** 2
            for node, weight in zip(nodes, weights, strict=True)
        )
        edges = ndtri(tail / 2) ** 2  # a bin of one coordinate is that order statistic
        return cls._of_norm(np.sqrt(np.where(counts == 1, edges, squares)), counts, clip_norm)

    @classmethod
    def dense(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw every entry, as the paper has it.

        Raises:
            UsageError: More than 2^25 numbers.
        """
        size = _check_dimension(dimension) * check_positive_integer("vectors", vectors)
        if not size <= MAX_DENSE_NUMBERS:
            raise UsageError(
                f"{vectors} dense vectors of {dimension} entries are {size} numbers: expected at "
                f"most {MAX_DENSE_NUMBERS}. Take fewer vectors, or leave `exact` out."
            )
        drawn = np.abs(_seeded_generator(seed).standard_normal((vectors, dimension)))
        drawn[:, ::-1].sort(axis=1)
        return cls._of_norm(drawn, np.ones(dimension, dtype=np.int64), clip_norm)

    @classmethod
    def _of_norm(
        cls, magnitudes: NDArray[np.float64], counts: NDArray[np.int64], clip_norm: float
    ) -> Codebook:
        """Set tiny entries to 0, scale to norm C, and round to float32 towards 0."""
        kept = np.where(magnitudes < MIN_ENTRY, 0.0, magnitudes)
        norms = np.sqrt((kept**2 * counts).sum(axis=1, keepdims=True))
        scaled = (kept * (check_clip_norm("clip_norm", clip_norm) / norms)).astype(np.float32)
        values = np.nextafter(scaled, np.float32(0.0))
        values.setflags(write=False)
        counts.setflags(write=False)
        return cls(values=values, counts=counts)

    @property
    def dimension(self) -> int:
        """How many coordinates a gradient has."""
        return int(self.counts.sum())

    @property
    def norms(self) -> NDArray[np.float64]:
        """Every vector's norm, (vectors,): at most C."""
        return np.sqrt((self.values.astype(np.float64) ** 2 * self.counts).sum(axis=1))

    def envelope(self, ratio: float | None = GRID_RATIO) -> Shifts:
        """Return what an accountant prices: one vector that bounds them all, rank by rank.

        Guarantee: whatever t, a record's encoded vector has at most as many magnitudes above t.

        A ratio above 1 rounds every value up to a power of it, so that few hundred are left; None
        leaves them as they are.
        """
        return shifts_of(self.values.max(axis=0), self.counts, ratio)


def _bin_sizes(dimension: int) -> NDArray[np.int64]:
    """Return how many ranks each bin holds, from the largest magnitude down."""
    edges, widest = [0], max(1, dimension // MIN_BINS)
    while edges[-1] < dimension:
        width = min(max(1, edges[-1] // RANKS_PER_BIN), widest)
        edges.append(min(dimension, edges[-1] + width))
    return np.diff(np.array(edges, dtype=np.int64))


def shifts_of(
    values: NDArray[np.float32], counts: NDArray[np.int64], ratio: float | None
) -> Shifts:
    """Return distinct values above 0, rounded up to a grid if one is given, and their counts."""
    exact = values[values > 0].astype(np.float64)
    if ratio is not None:
        ratio = check_positive("ratio", ratio)
        if not ratio > 1.0:
            raise UsageError(f"ratio is {ratio}: expected above 1, such as 1.01.")
        # A grain more, so that rounding can't leave a value above its grid point.
        exact = ratio ** np.ceil(np.log(exact) / math.log(ratio)) * (1 + 1e-12)
    distinct, places = np.unique(exact, return_inverse=True)
    many = np.bincount(places, weights=counts[values > 0]).astype(np.int64)
    return Shifts(values=tuple(distinct[::-1].tolist()), counts=tuple(many[::-1].tolist()))


def _check_dimension(value: object) -> int:
    dimension = check_positive_integer("dimension", value)
    if not dimension < MAX_DIMENSION:
        raise UsageError(
            f"the network has {dimension} trainable numbers: expected fewer than "
            f"{MAX_DIMENSION}, up to which float32 counts exactly. Train a smaller one."
        )
    return dimension


def check_public_seed(value: object) -> int:
    """Return a seed in [0, 2^32)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise UsageError(f"seed is {value!r}: expected a whole number in [0, 2^32).")
    return value


def _seeded_generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=GENERATOR_KEY + check_public_seed(seed)))
