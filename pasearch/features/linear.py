"""Private linear regression of a bounded target from one noisy matrix, for every feature subset.

    v_i = (x_i, 1, y_i) / T,  T = sqrt(data_norm^2 + 2), y in [0, 1];  a null record has v_i = 0
    A   = sum v_i v_i' + symmetric Gaussian noise                   released once (Analyze Gauss)
    w_S = argmin over the features S of  w'A w - 2 w'a + ridge ||w||^2         free, for any S

One release serves all subsets, so a search over them pays for it once. Noise can give A negative
eigenvalues. Therefore the eigenvalues are first raised so that the smallest is at least 0.

Source: Dwork, Talwar, Thakurta and Zhang 2014 ("Analyze Gauss"); Wang 2018 (ridge by the noise).
Proof: docs/guarantees/objective-perturbation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from pasearch.accounting.checks import check_nonnegative, check_positive, make_post_init
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.features.logistic import ROUNDING_FACTOR, append_intercept
from pasearch.runs.keys import Stream
from pasearch.runs.sums import MAX_SUM_RECORDS, GaussianRelease, GaussianSum, clip_rows

RIDGE_FACTOR = 2.0
"""Default ridge in units of noise * sqrt(features + 1); measured, see the proof page."""
PUBLIC_RIDGE = 1e-6  # default ridge without noise; it makes linearly dependent features solvable


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyMoments(GaussianRelease):
    """Gaussian release of the second moments of bounded records: features, 1 and target.

    Guarantee: `release_parts` costs `event`, for any number of models fitted to the result, if
    float64 noise is Gaussian.

    Args:
        noise_multiplier: Standard deviation of the noise, above 0; the sensitivity is 1.
        data_norm: Public bound of the L2 norm of a record's features, above 0. Longer records are
            scaled down to it.
    """

    data_norm: float
    __post_init__ = make_post_init(noise_multiplier=check_positive, data_norm=check_positive)

    def release_parts(self, parts: Iterable[tuple[Any, Any, Any]], stream: Stream) -> Moments:
        """Release the noisy moments of all parts together.

        Args:
            parts: Tuples (x, y, valid), one or more. x: features, (n, d); a record with a
                non-finite feature is treated as null. y: targets, (n,), clamped to [0, 1]. valid:
                False for a null record, (n,).
            stream: Random stream of this release alone; the noise also depends on the sums.

        Raises:
            UsageError: Arrays of other shapes.

        Cost: `event`, on every partition that the records are from; charge it first.
        """
        return self.add_noise(self.sum_moments(parts), stream)

    def sum_moments(self, parts: Iterable[tuple[Any, Any, Any]]) -> Array:
        """Sum the exact second moments of all parts, (d + 2, d + 2): private."""
        return reduce(add, (_sum_second_moments(*part, self.data_norm) for part in parts))

    def add_noise(self, total: Array, stream: Stream) -> Moments:
        """Release exact moments with noise.

        Args:
            total: Result of `sum_moments`, (d + 2, d + 2): private.
            stream: Random stream of this release alone; the noise also depends on the sums.

        Cost: `event`, on every partition that the records are from; charge it first.
        """
        noisy = GaussianSum(noise_multiplier=self.noise_multiplier).release_symmetric(total, stream)
        return Moments(matrix=noisy, data_norm=self.data_norm, noise=self.noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Released second moments; any computation from them is free post-processing.

    Args:
        matrix: Noisy sum of v v' over the records, (d + 2, d + 2). v contains the d features, the
            intercept's 1 and the target, in this order.
        data_norm: Bound of the features' norm that the release used, above 0.
        noise: Standard deviation of the noise of each entry; 0 for public records.
    """

    matrix: Array
    data_norm: float
    noise: float

    def __post_init__(self) -> None:
        matrix = np.array(self.matrix, dtype=np.float64)
        square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] >= 3
        if not (square and np.isfinite(matrix).all()):
            raise UsageError(
                f"matrix has the shape {matrix.shape}: expected a square of finite numbers, with 3 "
                "rows or more."
            )
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "data_norm", check_positive("data_norm", self.data_norm))
        object.__setattr__(self, "noise", check_nonnegative("noise", self.noise))

    def fit_many(self, masks: Any, *, ridge: float | None = None) -> Array:
        """Fit one model for each subset of the features, in closed form.

        Args:
            masks: Features of each model, (p, d) bool.
            ridge: Ridge penalty for records of norm at most 1, above 0. None: `RIDGE_FACTOR` times
                noise times sqrt(features + 1), or `PUBLIC_RIDGE` without noise.

        Returns:
            float64 (p, d + 1): weights, 0 for unused features; the intercept is last.

        Raises:
            UsageError: Masks of another shape, or a ridge that is not a number above 0.

        Cost: none; the release is already charged.
        """
        used = np.asarray(masks, dtype=bool)
        features = len(self.matrix) - 2
        if used.ndim != 2 or used.shape[1] != features:
            raise UsageError(f"masks are {used.shape}: expected (p, {features}).")
        given = None if ridge is None else check_positive("ridge", ridge)
        found = np.zeros((len(used), features + 1))
        # Subsets of equal size are solved as one stack of matrices.
        sizes = used.sum(axis=1)
        for size in np.unique(sizes):
            at = np.flatnonzero(sizes == size)
            columns = np.full((len(at), size + 1), features)
            columns[:, :-1] = np.nonzero(used[at])[1].reshape(len(at), size)
            default = RIDGE_FACTOR * self.noise * math.sqrt(size + 1) or PUBLIC_RIDGE
            values, vectors = np.linalg.eigh(self.matrix[columns[:, :, None], columns[:, None]])
            least = default if given is None else given
            values = values - np.minimum(values[:, :1], 0.0) + least
            along = np.einsum("sij,si->sj", vectors, self.matrix[columns, -1])
            found[at[:, None], columns] = np.einsum("sij,sj->si", vectors, along / values)
        # The weights need no division by T: the release divided features and target by it.
        return found


def compute_public_moments(x: Any, y: Any, valid: Any, *, data_norm: float) -> Moments:
    """Compute the moments of public records, without noise.

    Args:
        x: Features, (n, d); a record with a non-finite feature is null.
        y: Targets, (n,), clamped to [0, 1].
        valid: False for a null record, (n,).
        data_norm: Bound of the L2 norm of a record's features, above 0.

    Cost: none is charged, so the records must be public.
    """
    norm = check_positive("data_norm", data_norm)
    return Moments(matrix=_sum_second_moments(x, y, valid, norm), data_norm=norm, noise=0.0)


def _sum_second_moments(x: Any, y: Any, valid: Any, data_norm: float) -> Array:
    """Compute the sum of v v' over records, each v of L2 norm at most 1, (d + 2, d + 2)."""
    targets, usable = np.asarray(y, dtype=np.float64), np.asarray(valid, dtype=bool)
    if targets.shape != usable.shape:
        raise UsageError(f"y has the shape {targets.shape}: expected one target per record.")
    usable = usable & np.isfinite(targets)
    rows = append_intercept(x, usable)
    # Only the features are scaled down: the 1 and the target of a long record stay unchanged.
    rows[:, :-1] = clip_rows(rows[:, :-1] / data_norm, usable) * data_norm
    aims = np.where(usable & (rows[:, -1] == 1.0), np.clip(np.nan_to_num(targets), 0.0, 1.0), 0.0)
    whole = np.column_stack([rows, aims]) / (math.sqrt(data_norm**2 + 2) * ROUNDING_FACTOR)
    bounded = clip_rows(whole, usable)
    parts = np.split(bounded, range(MAX_SUM_RECORDS, len(bounded), MAX_SUM_RECORDS))
    return np.sum([part.T @ part for part in parts], axis=0)
