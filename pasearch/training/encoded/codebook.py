"""Codebooks of encoded gradients: public vectors to which gradients are clamped rank by rank.

    psi_1 .. psi_m     sorted |N(0, 1)| entries, those below 1e-5 set to 0, scaled to norm C

`Codebook.dense` draws every entry, as the paper does, for small networks. In `Codebook.binned` a
psi is constant over bins of ranks, which are narrow for the largest magnitudes. Each constant is
the root mean square of the Gaussian magnitudes between two sampled order statistics. Both are
public and accounted for in the same way.

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
"""Public key of the codebook's random generator; the seed is added to it."""
MIN_ENTRY = 1e-5
"""Minimum entry before scaling; smaller entries are set to 0, as in the paper."""
RANKS_PER_BIN = 8
"""Minimum ratio of a bin's first rank to its width."""
MIN_BINS = 64
"""Minimum number of bins: a bin holds at most 1/64 of all ranks."""
MAX_DENSE_NUMBERS = 2**25
"""Maximum number of entries of a dense codebook: 128 MiB."""
MAX_DIMENSION = 2**24
"""Limit of the number of coordinates, below which float32 counts are exact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codebook:
    """Public vectors with descending entries and norm at most C, constant over bins of ranks.

    Guarantee: the vectors depend on the settings only. Gradients are clamped to exactly these
    float32 `values`, and `envelope` bounds them for the accountant.

    Args:
        values: Entries, float32, (vectors, bins), 0 or above, not increasing along a row.
        counts: Number of coordinates per bin, int64, (bins,); their sum is the dimension.
    """

    values: NDArray[np.float32]
    counts: NDArray[np.int64]

    @classmethod
    def binned(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw a codebook with one entry per bin of ranks: the root mean square of its magnitudes.

        The time is some milliseconds: vectors x bins numbers, about 130 bins for 10^5 coordinates.

        Args:
            dimension: Number of coordinates of a gradient, below 2^24.
            vectors: Number m of vectors, 1 or above.
            clip_norm: Norm C of every vector.
            seed: Public seed, 0 or above.
        """
        counts = _compute_bin_sizes(_check_dimension(dimension))
        generator = _make_seeded_generator(seed)
        # Gaps between uniform order statistics have the distribution of a Poisson process.
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
        edges = ndtri(tail / 2) ** 2  # a bin of one coordinate equals its order statistic
        return cls._of_norm(np.sqrt(np.where(counts == 1, edges, squares)), counts, clip_norm)

    @classmethod
    def dense(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw a codebook with one entry per coordinate, as in the paper; arguments as in `binned`.

        Raises:
            UsageError: The codebook has more than 2^25 entries.
        """
        size = _check_dimension(dimension) * check_positive_integer("vectors", vectors)
        if not size <= MAX_DENSE_NUMBERS:
            raise UsageError(
                f"{vectors} dense vectors of {dimension} entries are {size} numbers: expected at "
                f"most {MAX_DENSE_NUMBERS}. Use fewer vectors, or omit `exact`."
            )
        drawn = np.abs(_make_seeded_generator(seed).standard_normal((vectors, dimension)))
        drawn[:, ::-1].sort(axis=1)
        return cls._of_norm(drawn, np.ones(dimension, dtype=np.int64), clip_norm)

    @classmethod
    def _of_norm(
        cls, magnitudes: NDArray[np.float64], counts: NDArray[np.int64], clip_norm: float
    ) -> Codebook:
        """Make a codebook: set tiny entries to 0, scale to norm C, round to float32 towards 0."""
        kept = np.where(magnitudes < MIN_ENTRY, 0.0, magnitudes)
        norms = np.sqrt((kept**2 * counts).sum(axis=1, keepdims=True))
        scaled = (kept * (check_clip_norm("clip_norm", clip_norm) / norms)).astype(np.float32)
        values = np.nextafter(scaled, np.float32(0.0))
        values.setflags(write=False)
        counts.setflags(write=False)
        return cls(values=values, counts=counts)

    @property
    def dimension(self) -> int:
        """Number of coordinates of a gradient."""
        return int(self.counts.sum())

    @property
    def norms(self) -> NDArray[np.float64]:
        """Norm of every vector, (vectors,), at most C."""
        return np.sqrt((self.values.astype(np.float64) ** 2 * self.counts).sum(axis=1))

    def envelope(self, ratio: float | None = GRID_RATIO) -> Shifts:
        """Compute one vector that bounds all vectors rank by rank, for the accountant.

        Guarantee: for every t, an encoded gradient has at most as many magnitudes above t as the
        result.

        Args:
            ratio: Ratio, above 1, of the geometric grid to which entries are rounded up, so that a
                few hundred distinct ones remain. None: no rounding.
        """
        return make_shifts(self.values.max(axis=0), self.counts, ratio)


def _compute_bin_sizes(dimension: int) -> NDArray[np.int64]:
    """Compute the number of ranks per bin, from the largest magnitude down."""
    edges, widest = [0], max(1, dimension // MIN_BINS)
    while edges[-1] < dimension:
        width = min(max(1, edges[-1] // RANKS_PER_BIN), widest)
        edges.append(min(dimension, edges[-1] + width))
    return np.diff(np.array(edges, dtype=np.int64))


def make_shifts(
    values: NDArray[np.float32], counts: NDArray[np.int64], ratio: float | None
) -> Shifts:
    """Make `Shifts` of the values above 0: distinct values with their counts, descending.

    Args:
        values: Entries, (bins,).
        counts: Number of coordinates of each entry, (bins,).
        ratio: Ratio of the geometric grid to which values are rounded up. None: no rounding.
    """
    exact = values[values > 0].astype(np.float64)
    if ratio is not None:
        ratio = check_positive("ratio", ratio)
        if not ratio > 1.0:
            raise UsageError(f"ratio is {ratio}: expected above 1, such as 1.01.")
        # Slightly larger, so that a rounded value is never below the exact one.
        exact = ratio ** np.ceil(np.log(exact) / math.log(ratio)) * (1 + 1e-12)
    distinct, places = np.unique(exact, return_inverse=True)
    many = np.bincount(places, weights=counts[values > 0]).astype(np.int64)
    return Shifts(values=tuple(distinct[::-1].tolist()), counts=tuple(many[::-1].tolist()))


def _check_dimension(value: object) -> int:
    """Check the number of coordinates, and return it."""
    dimension = check_positive_integer("dimension", value)
    if not dimension < MAX_DIMENSION:
        raise UsageError(
            f"the network has {dimension} trainable parameters: expected fewer than "
            f"{MAX_DIMENSION}, the limit of exact float32 counts. Use a smaller network."
        )
    return dimension


def check_public_seed(value: object) -> int:
    """Check that a value is an integer in [0, 2^32), and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise UsageError(f"seed is {value!r}: expected an integer in [0, 2^32).")
    return value


def _make_seeded_generator(seed: int) -> np.random.Generator:
    """Make the generator of a codebook from its public seed."""
    return np.random.Generator(np.random.Philox(key=GENERATOR_KEY + check_public_seed(seed)))
