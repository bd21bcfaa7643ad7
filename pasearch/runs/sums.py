"""Noisy sums over records: bounded integers, clipped vectors and second moments.

    integers   sum of x_i, each in 0 .. G, + Z      P(Z = z) ~ exp(-epsilon |z| / G)
    vectors    sum of x_i, ||x_i|| <= 1, + N(0, sigma^2 I)
    X'X        upper triangle, diagonal included, + N(0, sigma^2), then mirrored

The sensitivities, when a record becomes the null record, which adds 0:

    integers   G      in absolute value
    vectors    1      in L2
    X'X        1      in L2 of the upper triangle, as sum of x_i^2 x_j^2 over i <= j is at most
                      (sum of x_i^2)^2

`clip_rows` clips norms to 1, and is the only function that does.

Source: docs/rules.md, rule 9; Dwork, Talwar, Thakurta and Zhang 2014 ("Analyze Gauss"). Proof:
docs/guarantees/released-sums.md, docs/guarantees/floating-point.md (the noise).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np

from pasearch.accounting.checks import check_positive, check_positive_integer, make_post_init
from pasearch.accounting.events import Gaussian, PureDP
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.mechanisms import NoisyCount, discrete_laplace
from pasearch.runs.normals import draw_normals

NORM_SLACK = 1e-12  # relative error of a norm, besides one rounding per term

SUM_ROUNDING = 1.0 + 2.0**-10
"""R: one record moves a sum, as computed in floating point, by at most R times what it adds to the
exact one. Gaussian noise on sums is scaled by it. Proof: docs/guarantees/floating-point.md ("The
sum")."""

MAX_SUM_RECORDS = 2**15
"""Number of records that are summed at once, below the limit of one float64 sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySum:
    """Sums of integers with two-sided geometric noise: the score of a regression.

    Guarantee: `release` is exactly epsilon-DP for a sum of one integer in 0 .. most per record.

    Args:
        epsilon: Epsilon of one release, above 0.
        most: Largest contribution of a record, 1 or above.
    """

    epsilon: float
    most: int
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """Privacy event of one release; not that of a count, because contributions vary."""
        return PureDP(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise, in the unit of the sum."""
        return NoisyCount(epsilon=self.epsilon / self.most).standard_deviation

    def release(self, total: int, stream: Stream) -> int:
        """Release the sum plus noise; it may be negative.

        The key of the noise contains the sum, as for `NoisyCount`.

        Args:
            total: Exact sum, private.
            stream: Random stream of this release.

        Raises:
            TypeError: The sum is not an integer (its value is private and not named).

        Cost: `event`, on every partition that was summed; charge it first.
        """
        if isinstance(total, bool) or not isinstance(total, Integral):
            raise TypeError(
                f"a sum is an int, not {type(total).__name__}: round each contribution."
            )
        number = int(total)
        source = stream.child("noisy sum", self.epsilon.hex(), self.most, number).integers()
        return number + discrete_laplace(Fraction(self.epsilon) / self.most, source.draw_below)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRelease:
    """A release that costs one Gaussian event.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the sensitivity, above 0.
    """

    noise_multiplier: float
    __post_init__ = make_post_init(noise_multiplier=check_positive)

    @property
    def event(self) -> Gaussian:
        """Privacy event of one release."""
        return Gaussian(noise_multiplier=self.noise_multiplier)


class GaussianSum(GaussianRelease):
    """Sums of vectors or matrices of norm at most 1 each, with Gaussian noise.

    Guarantee: `release` costs `event` for a sum that one record changes by at most 1 in L2. The
        result is a rounding of the sum plus exact Gaussian noise of `SUM_ROUNDING` times the noise
        multiplier, because a sum of vectors is itself rounded. The sensitivity is 1.
    """

    __slots__ = ()

    def release(self, total: Array, stream: Stream) -> Array:
        """Release the sum plus noise, float64 of the same shape.

        The key of the noise contains a hash of the sum: the same sum gives the same release again,
        and another sum gets new noise.

        Args:
            total: Exact sum, float64 of any shape, private.
            stream: Random stream of this release.

        Raises:
            UsageError: The sum is not a float64 array.
            ValueError: The sum is not finite (its values are private and not named).

        Cost: `event`, on every partition that was summed; charge it first.
        """
        source = stream.child("gaussian sum", *_check_float64(total).shape)
        return self._noised(total.ravel(), source).reshape(total.shape)

    def release_symmetric(self, total: Array, stream: Stream) -> Array:
        """Release X'X of clipped rows plus symmetric noise.

        Only the upper triangle, including the diagonal, is read; each entry gets independent noise,
        and the result is mirrored.

        Args:
            total: Exact matrix, shape (d, d), float64, private.
            stream: Random stream of this release.

        Raises:
            UsageError: The matrix is not a square float64 array.
            ValueError: The matrix is not finite (its values are private and not named).

        Cost: `event`, on every partition that was summed; charge it first.
        """
        if _check_float64(total).ndim != 2 or total.shape[0] != total.shape[1]:
            raise UsageError(
                f"a symmetric sum has the shape {total.shape}: expected a square, X'X."
            )
        upper = np.triu_indices(len(total))
        noisy = self._noised(total[upper], stream.child("symmetric gaussian sum", len(total)))
        released = np.empty(total.shape)
        released[upper] = noisy
        released.T[upper] = noisy
        return released

    def _noised(self, entries: Array, stream: Stream) -> Array:
        if not np.isfinite(entries).all():
            raise ValueError("a sum is not finite: bound each contribution first.")
        sigma = self.noise_multiplier
        source = stream.child(sigma.hex(), hashlib.sha256(entries.tobytes()).hexdigest())
        noisy = entries.copy()
        draw_normals(len(noisy), source).add_to(noisy, SUM_ROUNDING * sigma)
        return noisy


def clip_rows(x: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> Array:
    """Clip rows to norm 1; null and non-finite rows become 0.

    Guarantee: the exact norm of every returned row, as float64, is at most 1 for any input. A row
        with a norm within 1 is unchanged. Each row depends on itself alone.

    Args:
        x: Rows, shape (n, d), one per record position.
        valid: Flags, shape (n,); False for the null record. A non-finite row counts as null too.

    Returns:
        New float64 array, shape (n, d).

    Raises:
        UsageError: The shapes do not match.
    """
    rows = np.array(x, dtype=np.float64)
    usable = np.asarray(valid, dtype=bool)
    if rows.ndim != 2 or usable.shape != rows.shape[:1]:
        raise UsageError(
            f"rows are {rows.shape} and valid is {usable.shape}: expected (n, d) and (n,)."
        )
    rows[~(usable & np.isfinite(rows).all(axis=1))] = 0.0
    grown = 1 + NORM_SLACK + rows.shape[1] * np.finfo(np.float64).eps
    with np.errstate(over="ignore", under="ignore"):
        outside = ~(_norms(rows) * grown <= 1)
        longer = rows[outside]
        # By the largest entry first, so that no square overflows.
        longer /= np.abs(longer).max(axis=1, initial=0.0, keepdims=True)
        rows[outside] = longer / (_norms(longer) * grown)[:, None]
    return rows


def _norms(rows: Array) -> Array:
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def _check_float64(total: Array) -> Array:
    if not isinstance(total, np.ndarray) or total.dtype != np.float64:
        raise UsageError(
            "a sum for Gaussian noise is not a float64 array: sum the rows in float64."
        )
    return total
