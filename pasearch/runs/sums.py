"""Noisy sums over records: bounded whole numbers, vectors and second moments, bounded once.

    whole numbers   sum of x_i, each in 0 .. G, + Z      P(Z = z) ~ exp(-epsilon |z| / G)
    vectors         sum of x_i, ||x_i|| <= 1, + N(0, sigma^2 I)
    X'X             upper triangle, diagonal included, + N(0, sigma^2), then mirrored

The sensitivities, when a record becomes the null record, which adds 0:

    whole numbers   G      in absolute value
    vectors         1      in L2
    X'X             1      in L2 of the upper triangle, as sum of x_i^2 x_j^2 over i <= j is at most
                           (sum of x_i^2)^2

`clip_rows` makes norms at most 1, and is the only place that does.

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

NORM_SLACK = 1e-12  # of a norm, beside one rounding for each of its terms

SUM_ROUNDING = 1.0 + 2.0**-10
"""R: one record moves a sum, as computed in floating point, by at most R times what it adds to the
exact one. Gaussian noise on sums is scaled by it. Proof: docs/guarantees/floating-point.md ("The
sum")."""

MAX_SUM_RECORDS = 2**15
"""Records that are added up at once: fewer than a float64 sum may have in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySum:
    """Sums of whole numbers, with two-sided geometric noise: the score of a regression.

    Guarantee: `release` is epsilon-DP for a sum of one number in 0 .. most per record, exactly.

    Args:
        epsilon: The price of one release, above 0.
        most: The most that a record can add, 1 or above.
    """

    epsilon: float
    most: int
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """What one release costs; a record may add less than `most`, so it is not a count's."""
        return PureDP(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """The noise's standard deviation, in the sum's own unit."""
        return NoisyCount(epsilon=self.epsilon / self.most).standard_deviation

    def release(self, total: int, stream: Stream) -> int:
        """Return the sum plus noise; it may be negative.

        The noise's key contains the sum, as a `NoisyCount`'s contains its count.

        Args:
            total: The sum, private.
            stream: The release's own randomness.

        Raises:
            TypeError: The sum is not a whole number (its value is private and not named).

        Cost: `event`, on every partition that the sum was taken from; charge it first.
        """
        if isinstance(total, bool) or not isinstance(total, Integral):
            raise TypeError(f"a sum is an int, not {type(total).__name__}: round each record's.")
        number = int(total)
        source = stream.child("noisy sum", self.epsilon.hex(), self.most, number).integers()
        return number + discrete_laplace(Fraction(self.epsilon) / self.most, source.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRelease:
    """What costs one Gaussian.

    Args:
        noise_multiplier: The noise's standard deviation, above 0, in units of the sensitivity.
    """

    noise_multiplier: float
    __post_init__ = make_post_init(noise_multiplier=check_positive)

    @property
    def event(self) -> Gaussian:
        """What one release costs."""
        return Gaussian(noise_multiplier=self.noise_multiplier)


class GaussianSum(GaussianRelease):
    """Sums of vectors or matrices of norm at most 1 each, with Gaussian noise.

    Guarantee: `release` costs `event` for a sum that one record changes by at most 1 in L2: what is
    released is a rounding of the sum plus exact Gaussian noise of `SUM_ROUNDING` times the noise
    multiplier, because a sum of vectors is itself rounded. The sensitivity is 1.
    """

    __slots__ = ()

    def release(self, total: Array, stream: Stream) -> Array:
        """Return the sum plus noise, float64 of the same shape.

        The noise's key contains a hash of the sum: the same sum is released the same again, and
        another draws afresh.

        Args:
            total: The sum, float64 of any shape, private.
            stream: The release's own randomness.

        Raises:
            UsageError: Not a float64 array.
            ValueError: The sum is not finite (its values are private and not named).

        Cost: `event`, on every partition that the sum was taken from; charge it first.
        """
        source = stream.child("gaussian sum", *_check_float64(total).shape)
        return self._noised(total.ravel(), source).reshape(total.shape)

    def release_symmetric(self, total: Array, stream: Stream) -> Array:
        """Return X'X of bounded rows plus symmetric noise, as `release`.

        Only the upper triangle, diagonal included, is read; each of its entries gets noise of its
        own, and it is mirrored.

        Args:
            total: (d, d) float64, private.
            stream: The release's own randomness.

        Raises:
            UsageError: Not a float64 array, or not square.
            ValueError: The sum is not finite (its values are private and not named).

        Cost: `event`, as `release`.
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
            raise ValueError("a sum is not finite: bound every record's part first.")
        sigma = self.noise_multiplier
        source = stream.child(sigma.hex(), hashlib.sha256(entries.tobytes()).hexdigest())
        noisy = entries.copy()
        draw_normals(len(noisy), source).add_to(noisy, SUM_ROUNDING * sigma)
        return noisy


def clip_rows(x: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> Array:
    """Return the rows with norm at most 1: longer ones are shortened, unusable ones are 0.

    Guarantee: the exact norm of every row that comes back, as float64, is at most 1, whatever stood
    in it; a row within 1 comes back as it was. Each row depends on itself alone.

    Args:
        x: (n, d) one row for each slot.
        valid: (n,) False for the null record; a row that is not finite counts as null as well.

    Returns:
        (n, d) float64, a new array.

    Raises:
        UsageError: The shapes do not fit.
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
            "a sum for Gaussian noise is no float64 array: add the rows up in float64."
        )
    return total
