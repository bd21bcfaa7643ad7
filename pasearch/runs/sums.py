"""Noisy sums over records: bounded integers, clipped vectors and second moments.

    integers   sum of x_i in [0, G] + Z,            P(Z = z) proportional to exp(-epsilon |z| / G)
    vectors    sum of x_i + N(0, sigma^2 I),        ||x_i|| <= 1
    X'X        upper triangle with diagonal + N(0, sigma^2) for each entry, then mirrored

Sensitivities, if one record becomes the null record, which adds 0:

    integers   G      in absolute value
    vectors    1      in L2 norm
    X'X        1      in L2 norm of the upper triangle, because for one row x the sum of x_i^2 x_j^2
                      over i <= j is at most (sum of x_i^2)^2

All norms are clipped to 1 by the function `clip_rows`.

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
from pasearch.runs.mechanisms import NoisyCount, draw_discrete_laplace
from pasearch.runs.normals import draw_normals

NORM_SLACK = 1e-12
"""Maximum relative error of a computed norm, in addition to one rounding error per term."""

SUM_ROUNDING = 1.0 + 2.0**-10
"""Factor R: one record changes a sum computed in floating point by at most R times the exact
change. The standard deviation of Gaussian noise on sums is multiplied by R. Proof:
docs/guarantees/floating-point.md ("The sum").
"""

MAX_SUM_RECORDS = 2**15
"""Maximum number of records that are added to one float64 sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySum:
    """Mechanism that adds two-sided geometric noise to a sum of bounded integers.

    Guarantee: `release` is exactly epsilon-DP for a sum of one integer in [0, most] per record.

    Args:
        epsilon: Epsilon of one release, above 0.
        most: Maximum contribution of a record, 1 or above.
    """

    epsilon: float
    most: int
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """Privacy event of one release; not `Geometric`, because a contribution may be below G."""
        return PureDP(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise, in the unit of the sum."""
        return NoisyCount(epsilon=self.epsilon / self.most).standard_deviation

    def release(self, total: int, stream: Stream) -> int:
        """Release the sum plus noise; the result may be negative.

        The key of the noise is derived from the sum, as for `NoisyCount`.

        Args:
            total: Exact sum, private.
            stream: Random stream of this release.

        Raises:
            TypeError: The sum is not an integer. The message does not contain the private value.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        if isinstance(total, bool) or not isinstance(total, Integral):
            raise TypeError(
                f"a sum is an int, not {type(total).__name__}: round each contribution."
            )
        number = int(total)
        source = stream.child("noisy sum", self.epsilon.hex(), self.most, number).integers()
        return number + draw_discrete_laplace(Fraction(self.epsilon) / self.most, source.draw_below)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRelease:
    """Base class of mechanisms whose release costs one Gaussian event.

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
    """Mechanism that adds Gaussian noise to a sum of vectors or matrices with norm at most 1.

    Guarantee: `release` costs `event` for a sum that one record changes by at most 1 in L2 norm.
        The noise is exactly Gaussian before the result is rounded. Its standard deviation is
        `SUM_ROUNDING` times the noise multiplier, because the sum itself has rounding errors.
    """

    __slots__ = ()

    def release(self, total: Array, stream: Stream) -> Array:
        """Release the sum plus noise, float64 of the same shape.

        The key of the noise is derived from a hash of the sum: the same sum gives the same result,
        and another sum gets new noise.

        Args:
            total: Sum, float64 of any shape, private.
            stream: Random stream of this release.

        Raises:
            UsageError: The sum is not a float64 array.
            ValueError: The sum is not finite. The message does not contain private values.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        source = stream.child("gaussian sum", *_check_float64(total).shape)
        return self._add_noise_to_entries(total.ravel(), source).reshape(total.shape)

    def release_symmetric(self, total: Array, stream: Stream) -> Array:
        """Release X'X of clipped rows X plus symmetric noise, float64, (d, d).

        Only the upper triangle, including the diagonal, is read. Each of its entries gets
        independent noise, and the result is mirrored.

        Args:
            total: Matrix X'X, shape (d, d), float64, private.
            stream: Random stream of this release.

        Raises:
            UsageError: The matrix is not a square float64 array.
            ValueError: The matrix is not finite. The message does not contain private values.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        if _check_float64(total).ndim != 2 or total.shape[0] != total.shape[1]:
            raise UsageError(
                f"a symmetric sum has the shape {total.shape}: expected a square, X'X."
            )
        upper = np.triu_indices(len(total))
        noisy = self._add_noise_to_entries(
            total[upper], stream.child("symmetric gaussian sum", len(total))
        )
        released = np.empty(total.shape)
        released[upper] = noisy
        released.T[upper] = noisy
        return released

    def _add_noise_to_entries(self, entries: Array, stream: Stream) -> Array:
        """Compute flat entries plus independent noise."""
        if not np.isfinite(entries).all():
            raise ValueError("a sum is not finite: bound each contribution first.")
        sigma = self.noise_multiplier
        source = stream.child(sigma.hex(), hashlib.sha256(entries.tobytes()).hexdigest())
        noisy = entries.copy()
        draw_normals(len(noisy), source).add_to(noisy, SUM_ROUNDING * sigma)
        return noisy


def clip_rows(x: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> Array:
    """Clip rows to L2 norm 1; null records and rows that are not finite become 0.

    Guarantee: the exact norm of every returned row is at most 1, for any input. A row with a norm
        clearly below 1 is unchanged. Each returned row depends only on its own input row.

    Args:
        x: Rows, one per record, shape (n, d).
        valid: Bool, shape (n,); False for null records.

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
        outside = ~(_compute_row_norms(rows) * grown <= 1)
        longer = rows[outside]
        # Division by the largest entry first, so that no square overflows.
        longer /= np.abs(longer).max(axis=1, initial=0.0, keepdims=True)
        rows[outside] = longer / (_compute_row_norms(longer) * grown)[:, None]
    return rows


def _compute_row_norms(rows: Array) -> Array:
    """Compute the L2 norm of each row."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def _check_float64(total: Array) -> Array:
    """Check that a sum is a float64 array, and return it."""
    if not isinstance(total, np.ndarray) or total.dtype != np.float64:
        raise UsageError(
            "a sum for Gaussian noise is not a float64 array: sum the rows in float64."
        )
    return total
