"""Private feature means, and standardisation of records by them.

    means         m = (sum of x_i + N(0, (sigma B)^2)) / n,    each ||x_i|| <= B, public; shrunk
    standardised  z_j = K / sqrt(sum of v) * (x_j - m_j) / v_j^(1/4),  v_j = max(m_j (1 - m_j), v_0)

B follows from the schema: a table's record has one indicator per column. The norm of a centred
record is about half as large. Division by the root of the deviation speeds up the training on rare
categories. The root mean square norm of standardised records is K = ROW_NORM, so one clip norm and
one learning rate fit every data set. Everything after the means is post-processing.

Measured on Adult (benchmarks/features/choices.py, three seeds): accuracy .856 instead of .848 at
epsilon .1, and .865 instead of .862 at epsilon 1. The baseline does not centre or scale, spends all
of epsilon on training, and has the best of five learning rates. Scaling causes most of the
improvement: the accuracies with centring alone are .850 and .861.

Source: original work; docs/rules.md, "Sensitivities". Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pasearch.accounting.checks import check_positive, make_post_init
from pasearch.data.rows import iterate_records
from pasearch.data.schema import RowLayout
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum, clip_rows

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, Any]

ROW_NORM = 5.0
"""Root mean square norm of standardised records."""

MIN_VARIANCE = 0.05**2
"""Minimum variance v_0 of a feature in the scaling: that of a category in 1 of 400 records."""

BLOCK_RECORDS = 8_192
"""Number of records processed at a time; it affects only memory."""


class RecordBlocks(Protocol):
    """Interface of records that are read in blocks; `len` counts null records too."""

    def parts(self) -> Iterable[Any]:
        """Iterate over blocks with x, (n, *shape), and valid, (n,), False for a null record."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInput:
    """Records of an open partition to which a feature extractor is fitted privately.

    Args:
        x: Features, float32, (records, *shape), in [0, 1]: a tensor, or `Rows`.
        valid: Mask, bool, (records,); a null record (False) adds nothing.
        noise_multiplier: Noise multiplier of the released sum, above 0; None for public data.
        stream: Random stream of the release.
        form: Public layout of a record, with a bound of its L2 norm; None: the bound is the square
            root of the number of features.
    """

    x: Any
    valid: Tensor
    noise_multiplier: float | None
    stream: Stream
    form: RowLayout | None = None

    def parts(self) -> tuple[FitInput]:
        """Return all records as one block."""
        return (self,)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMeans(GaussianRelease):
    """Private mean of every feature over all records, null records included.

    Guarantee: `release` costs `event`: records are clipped to norm B, and a null record adds 0.

    Args:
        noise_multiplier: Standard deviation of the noise on the sum of records / B, above 0.
        row_bound: Maximum norm B of a record, public, above 0.
    """

    row_bound: float
    __post_init__ = make_post_init(noise_multiplier=check_positive, row_bound=check_positive)

    def release(self, records: RecordBlocks, stream: Stream) -> Array:
        """Release the means of features in [0, 1], clamped to [0, 1], float64, (d,).

        Cost: that of `release_signed`.
        """
        return np.clip(self.release_signed(records, stream), 0.0, 1.0)

    def release_signed(self, records: RecordBlocks, stream: Stream) -> Array:
        """Release the means without clamping, float64, (d,).

        Args:
            records: Records of an open partition, charged by the caller.
            stream: Random stream of the release.

        Cost: `event`, on that partition.
        """
        noise = GaussianSum(noise_multiplier=self.noise_multiplier)
        noisy = noise.release(_sum_rows(records, self.row_bound), stream)
        unit = self.row_bound / len(records)
        return shrink_means(noisy * unit, self.noise_multiplier * unit)


def compute_public_means(records: RecordBlocks, row_bound: float) -> Array:
    """Compute the means without noise.

    Args:
        records: Public records.
        row_bound: Maximum norm of a record, above 0; larger records are clipped.

    Cost: none is charged, so the records must be public.
    """
    return _sum_rows(records, row_bound) * row_bound / len(records)


def shrink_means(noisy: Array, deviation: float) -> Array:
    """Return noisy means shrunk towards their average m~, (d,): post-processing.

        m' = m~ + (1 - (d - 3) s^2 / sum of (m_j - m~)^2)^+ (m - m~)

    The larger the share of noise in the spread of the means, the more they are shrunk. If they
    differ by noise alone, all features get the same mean and scale.

    Source: James and Stein 1961.

    Args:
        noisy: Noisy means m, (d,).
        deviation: Standard deviation s of the noise of each mean, public.
    """
    middle = noisy.mean()
    spread = float(np.sum((noisy - middle) ** 2))
    noise = max(len(noisy) - 3, 0) * deviation**2
    kept = 1.0 if not noise > 0.0 else max(0.0, 1.0 - noise / max(spread, noise))
    return middle + kept * (noisy - middle)


def compute_feature_scales(means: Array) -> Array:
    """Compute the factors by which centred features are multiplied: post-processing.

    Args:
        means: Released means of the features, (c,), in [0, 1].

    Returns:
        Factors, (c,). The expected squared norm of a standardised record is `ROW_NORM` squared, if
        every feature is 0 or 1.
    """
    variance = means * (1.0 - means)
    scale = np.maximum(variance, MIN_VARIANCE) ** -0.25
    length = math.sqrt(max(float(np.sum(scale**2 * variance)), 1e-12))
    return scale * (ROW_NORM / length)


def compute_common_scale(means: Array, norm: float) -> float:
    """Compute the factor of centred records whose norms were equal before: post-processing.

    The mean squared norm of centred records is norm^2 - ||m||^2. After multiplication by the factor
    it is `ROW_NORM` squared.

    Args:
        means: Released means of the features, m, (d,).
        norm: Norm of every record before centring, above 0.
    """
    left = norm**2 - float(np.sum(np.square(means)))
    return ROW_NORM / math.sqrt(max(left, (norm / 4) ** 2))


def _sum_rows(records: RecordBlocks, row_bound: float) -> Array:
    """Sum x / row_bound over all records, each clipped to norm 1, float64, (d,): private."""
    total: Array = np.zeros(())
    for each in records.parts():
        for x, valid in iterate_records(each.x, each.valid, BLOCK_RECORDS):
            total = total + clip_rows(x / row_bound, valid).sum(axis=0)
    return total
