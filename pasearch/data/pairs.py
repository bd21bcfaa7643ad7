"""Standardised features, and products of two columns: pairwise interactions for a linear model.

A column consists of one or more *parts*, each shifted to mean 0 by the released means m:

    number      one part, its height: a value in [0, 1] that is piecewise linear in the number and
                rises by the same amount in each bin. Its mean and variance follow from the means of
                the bins' indicators. The part of a missing number is 0
    category    one part per category, p_j = x_j - m_j, of variance v_j = m_j (1 - m_j)

A product p_i p_j of parts of two columns has approximately the variance v_i v_j. The products with
the largest variances are used, up to the requested number, so rare categories have none. The
outputs are

    main        sqrt(1 - s) times the output of `centred`
    products    K sqrt(s) p_i p_j (v_i v_j)^(-1/4) / length

with s = `PRODUCT_NORM_FRACTION` and K = `ROW_NORM`. `length` is chosen so that the root mean square
norm of all products together is about K sqrt(s).

Everything is post-processing of the released means and of public facts about the columns.

Accuracy without and with products, without other privacy costs, for tables with known quantiles and
noise as at a total epsilon of about 1: eeg-eye-state .718 -> .790, nursery .922 -> .942, magic .845
-> .857, online-shoppers .897 -> .896.

Source: Original to this project; pairs of columns as in Lou et al. 2013 (GA2M). Proof of the means:
    docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.means import MIN_VARIANCE, ROW_NORM, compute_feature_scales
from pasearch.data.schema import EncodedColumn

PRODUCT_NORM_FRACTION = 0.3
"""Fraction s of a record's squared norm that the products have."""

KNOTS_PER_PART = 17
"""Number of points between which a part is linear in a number; of more bin edges, some are omitted.
"""

MAX_PARTS = 512
"""Maximum number of parts that are paired, those with the largest variances: at most 130,816 pairs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts of which products are formed; every array has one entry or row per part.

    Args:
        column: Index of the part's column.
        feature: Index, in an encoded record, of the feature that the part is computed from.
        missing: Index of the feature that indicates a missing value; -1 for none.
        knots: Values of the feature between which the part is linear, ascending,
            (parts, KNOTS_PER_PART).
        heights: Values of the part at the knots, before its mean is subtracted,
            (parts, KNOTS_PER_PART).
        mean: Mean of the heights.
        variance: Variance of the heights.
    """

    column: np.ndarray
    feature: np.ndarray
    missing: np.ndarray
    knots: np.ndarray
    heights: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


class CentredPairs(nn.Module):
    """Module that computes the standardised features and the products.

    Args:
        features: Number of features of a record.
        pairs: Number of products; if a table has fewer, the others are 0.
    """

    shift: Tensor
    scale: Tensor
    feature: Tensor
    missing: Tensor
    knots: Tensor
    heights: Tensor
    mean: Tensor
    first: Tensor
    second: Tensor
    weight: Tensor

    def __init__(self, features: int, pairs: int):
        super().__init__()
        for name in ("shift", "scale"):
            self.register_buffer(name, torch.zeros(features))
        parts = 2 * pairs
        self.register_buffer("feature", torch.zeros(parts, dtype=torch.int64))
        self.register_buffer("missing", torch.full((parts,), -1, dtype=torch.int64))
        self.register_buffer("knots", torch.zeros(parts, KNOTS_PER_PART))
        self.register_buffer("heights", torch.zeros(parts, KNOTS_PER_PART))
        self.register_buffer("mean", torch.zeros(parts))
        for name in ("first", "second"):
            self.register_buffer(name, torch.zeros(pairs, dtype=torch.int64))
        self.register_buffer("weight", torch.zeros(pairs))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs, (batch, features) to (batch, features + pairs)."""
        return torch.cat([(x - self.shift) * self.scale, self.products(x)], dim=1)

    def products(self, x: Tensor) -> Tensor:
        """Compute the products, (batch, pairs), which take much longer than the other outputs."""
        # Parts after the last one in use are padding.
        many = slice(0, 1 + int(torch.maximum(self.first, self.second).max()))
        feature, missing, mean = self.feature[many], self.missing[many], self.mean[many]
        own = x[:, feature]
        widths, rises = self.knots[many].diff(dim=1), self.heights[many].diff(dim=1)
        slopes = torch.where(widths > 0, rises / widths.clamp(min=1e-30), 0.0)
        found = self.heights[many, 0].expand(own.shape)
        for knot in range(KNOTS_PER_PART - 1):
            # Most parts are indicators, which are linear and have one segment.
            bent = torch.nonzero(widths[:, knot])[:, 0]
            along = (own[:, bent] - self.knots[bent, knot]).clamp(min=0.0)
            steps = torch.minimum(along, widths[bent, knot]) * slopes[bent, knot]
            found = found.index_add(1, bent, steps)
        has_marker = missing >= 0
        present = torch.where(has_marker, 1.0 - x[:, missing.clamp(min=0)], 1.0)
        parts = (found - mean) * present
        return parts[:, self.first] * parts[:, self.second] * self.weight


def build_pairs_map(
    means: np.ndarray, columns: tuple[EncodedColumn, ...], pairs: int
) -> CentredPairs:
    """Build the module from the released means of features: post-processing.

    Args:
        means: Released means, (features,), in [0, 1].
        columns: Columns of an encoded record: public.
        pairs: Maximum number of products.
    """
    module = CentredPairs(len(means), pairs)
    parts = _collect_parts(means, columns)
    first, second = np.triu_indices(len(parts.column), 1)
    apart = parts.column[first] != parts.column[second]
    first, second = first[apart], second[apart]
    variance = parts.variance[first] * parts.variance[second]
    kept = np.argsort(-variance, kind="stable")[:pairs]
    kept = kept[variance[kept] > 0]
    first, second, variance = first[kept], second[kept], variance[kept]
    share = PRODUCT_NORM_FRACTION if len(kept) else 0.0
    used, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    # The minimum variance limits the amplification of rarely nonzero products.
    weight = np.maximum(variance, MIN_VARIANCE**2) ** -0.25
    length = np.sqrt(max(float(np.sum(weight**2 * variance)), 1e-12))
    values = {
        "shift": means,
        "scale": compute_feature_scales(means) * np.sqrt(1.0 - share),
        "feature": parts.feature[used],
        "missing": parts.missing[used],
        "knots": parts.knots[used],
        "heights": parts.heights[used],
        "mean": parts.mean[used],
        "first": place[: len(kept)],
        "second": place[len(kept) :],
        "weight": weight * (ROW_NORM * np.sqrt(share) / length),
    }
    for name, value in values.items():
        buffer = getattr(module, name)
        buffer[: len(value)] = torch.from_numpy(np.ascontiguousarray(value)).to(buffer.dtype)
    return module


def _collect_parts(means: np.ndarray, columns: tuple[EncodedColumn, ...]) -> _Parts:
    """Return the parts of all columns, or the `MAX_PARTS` ones with the largest variances."""
    found: list[tuple[int, int, int, np.ndarray, np.ndarray, float, float]] = []
    indicator = _resample_knots(np.array([0.0, 1.0]))
    for number, column in enumerate(columns):
        if column.edges is None:
            for feature in range(column.start, column.start + column.width):
                mean = float(means[feature])
                found.append((number, feature, -1, indicator, indicator, mean, mean * (1 - mean)))
            continue
        missing = column.start + column.width - 1 if column.may_miss else -1
        knots = np.array([0.0, *column.edges, 1.0])
        heights = _resample_knots(np.linspace(0.0, 1.0, len(knots)))
        own = _estimate_height_moments(means[column.start :][: len(knots)], len(column.edges))
        found.append((number, column.start, missing, _resample_knots(knots), heights, *own))
    order = np.argsort([-each[-1] for each in found], kind="stable")[:MAX_PARTS]
    kept = [found[place] for place in sorted(order)]
    return _Parts(
        column=np.array([each[0] for each in kept], np.int64),
        feature=np.array([each[1] for each in kept], np.int64),
        missing=np.array([each[2] for each in kept], np.int64),
        knots=np.array([each[3] for each in kept]).reshape(-1, KNOTS_PER_PART),
        heights=np.array([each[4] for each in kept]).reshape(-1, KNOTS_PER_PART),
        mean=np.array([each[5] for each in kept]),
        variance=np.array([each[6] for each in kept]),
    )


def _estimate_height_moments(means: np.ndarray, edges: int) -> tuple[float, float]:
    """Estimate mean and variance of a number's height from the means of its features.

    Args:
        means: Released means of the scaled number and of the bins' indicators.
        edges: Number of edges between the bins; without bins, a uniform distribution is assumed.
    """
    own, shares = float(means[0]), means[1:]
    total = float(shares.sum())
    if not (edges and total > 0):
        return own, own * (1.0 - own) / 3
    middles = (np.arange(edges + 1) + 0.5) / (edges + 1)
    mean = float(shares @ middles) / total
    return mean, float(shares @ (middles - mean) ** 2) / total


def _resample_knots(points: np.ndarray) -> np.ndarray:
    """Return `KNOTS_PER_PART` of the points, ends included; if there are fewer, repeat the last."""
    if len(points) > KNOTS_PER_PART:
        return points[np.linspace(0, len(points) - 1, KNOTS_PER_PART).round().astype(int)]
    return np.concatenate([points, np.full(KNOTS_PER_PART - len(points), points[-1])])
