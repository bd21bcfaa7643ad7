"""Features' means, released, and what centring and scaling by them makes of a record.

    means       m = (sum of x_i + N(0, (sigma B)^2)) / n,    each ||x_i|| <= B, public; shrunk
    centred     z_j = K / sqrt(sum of v) * (x_j - m_j) / v_j^(1/4),   v_j = max(m_j (1 - m_j), v_0)

B is known from the schema: a row has one indicator a column. Centred rows are about half as long as
rows are; dividing by the root of the deviation lets rare categories move sooner. K = ROW_NORM is
then the rows' root mean square norm, so a clip and a learning rate fit every data set. Measured on
Adult (benchmarks/features/choices.py, three seeds): accuracy .856 instead of .848 at epsilon .1,
.865 instead of .862 at 1, where without either all of epsilon goes to the training, at the best of
five learning rates. Scaling does most of it: centred alone has .850 and .861. Everything after the
means is post-processing.

Source: ours; docs/rules.md, "Sensitivities". Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pasearch.accounting.checks import check_positive, make_post_init
from pasearch.data.rows import iterate_records
from pasearch.data.schema import RowForm
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum, bounded_rows

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, Any]

ROW_NORM = 5.0
"""The root mean square norm that records are scaled to, by the released means."""

LEAST_VARIANCE = 0.05**2
"""v_0: a category of fewer records than a four-hundredth is not blown up further."""

ROWS = 8_192
"""Records at a time: only memory depends on it."""


class InParts(Protocol):
    """Records that memory may not hold at once; their length is the number of slots."""

    def parts(self) -> Iterable[Any]:
        """Go through all: each with x, (n, *shape), and valid, (n,) False for a null record."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInput:
    """What a front end is fitted to privately: the records of an open partition, in one part.

    Args:
        x: float32, (slots, *shape), in [0, 1]: a tensor, or `Rows`.
        valid: bool, (slots,); a null record adds nothing.
        noise_multiplier: Noise of the released sum, above 0; None on declared-public data.
        stream: The release's own randomness.
        form: Public form of an encoded record; None: a record's norm may be as large as the root
            of its number of features.
    """

    x: Any
    valid: Tensor
    noise_multiplier: float | None
    stream: Stream
    form: RowForm | None = None

    def parts(self) -> tuple[FitInput]:
        """Return all records."""
        return (self,)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMeans(GaussianRelease):
    """The mean of every feature, over all slots.

    Guarantee: `release` costs `event`: a row is cut to norm B before it is added, and a null
    record adds 0.

    Args:
        noise_multiplier: The noise's standard deviation on the sum of rows / B, above 0.
        row_bound: B, public.
    """

    row_bound: float
    __post_init__ = make_post_init(noise_multiplier=check_positive, row_bound=check_positive)

    def release(self, records: InParts, stream: Stream) -> Array:
        """Return the means of features in [0, 1], float64 (d,), in [0, 1]; as `release_signed`."""
        return np.clip(self.release_signed(records, stream), 0.0, 1.0)

    def release_signed(self, records: InParts, stream: Stream) -> Array:
        """Return the means, float64 (d,); the divisor is n, public.

        Args:
            records: Of an open partition, charged by the caller.
            stream: The release's own randomness.

        Cost: `event`, on that partition.
        """
        noise = GaussianSum(noise_multiplier=self.noise_multiplier)
        noisy = noise.release(_total(records, self.row_bound), stream)
        unit = self.row_bound / len(records)
        return shrunk(noisy * unit, self.noise_multiplier * unit)


def public_means(records: InParts, row_bound: float) -> Array:
    """Return the means without noise; row_bound is as of `FeatureMeans`.

    Cost: none is charged, so the records must be public.
    """
    return _total(records, row_bound) * row_bound / len(records)


def shrunk(noisy: Array, deviation: float) -> Array:
    """Return noisy means nearer to their own mean, the more of their spread is noise.

        m' = m~ + (1 - (d - 3) s^2 / sum of (m_j - m~)^2)^+ (m - m~)

    Post-processing (James and Stein 1961, around the mean): where the noise hides all differences,
    features are centred alike, and none is scaled by what noise made of it.

    Args:
        noisy: m, (d,).
        deviation: s, of each one's noise, public.
    """
    middle = noisy.mean()
    spread = float(np.sum((noisy - middle) ** 2))
    noise = max(len(noisy) - 3, 0) * deviation**2
    kept = 1.0 if not noise > 0.0 else max(0.0, 1.0 - noise / max(spread, noise))
    return middle + kept * (noisy - middle)


def centring(means: Array) -> Array:
    """Return what centred features are multiplied by: post-processing.

    Args:
        means: Of the features that are seen, (c,).

    Returns:
        (c,): the expected squared norm of a centred and scaled record is `ROW_NORM` squared.
    """
    variance = means * (1.0 - means)
    scale = np.maximum(variance, LEAST_VARIANCE) ** -0.25
    length = math.sqrt(max(float(np.sum(scale**2 * variance)), 1e-12))
    return scale * (ROW_NORM / length)


def recentring(means: Array, norm: float) -> float:
    """Return what records of one norm, less their mean, are multiplied by: post-processing.

    Their squared norm is norm^2 - ||m||^2 then, on average, and becomes `ROW_NORM` squared.
    """
    left = norm**2 - float(np.sum(np.square(means)))
    return ROW_NORM / math.sqrt(max(left, (norm / 4) ** 2))


def _total(records: InParts, row_bound: float) -> Array:
    """Return the sum of bounded rows, over B: private."""
    total: Array = np.zeros(())
    for each in records.parts():
        for x, valid in iterate_records(each.x, each.valid, ROWS):
            total = total + bounded_rows(x / row_bound, valid).sum(axis=0)
    return total
