"""Centred features, and products of two columns: what a linear model of them may find together.

A column is one or several *parts*, each moved to mean 0 by the released means m:

    a number     how far up its bins a value is, piecewise linear between their edges, in [0, 1];
                 its mean and variance are those of its bins' means; a missing number is 0
    a category   one indicator each, p_j = x_j - m_j, of variance v_j = m_j (1 - m_j)

A product p_i p_j of parts of two columns has about the variance v_i v_j. The products with the
largest are kept, as many as are asked for, so rare categories have none. Then

    main      sqrt(1 - s) times what `centred` makes of a record
    product   K sqrt(s) p_i p_j (v_i v_j)^(-1/4) / length,    so that all together are about K long

with s = `SHARE`. Measured without privacy's other costs, on tables cut at known quantiles, at a
signal of .25 (about a total of 1): eeg-eye-state .718 -> .790, nursery .922 -> .942, magic .845 ->
.857, online-shoppers .897 -> .896.

All of it is post-processing of the released means, and of what is public of the columns.

Source: ours; pairs of columns as in Lou et al. 2013 (GA2M). Proof of the means:
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
"""s: how much of a record's squared norm the products have."""

KNOTS_PER_PART = 17
"""At most so many points that a number is linear between; finer bins are thinned out."""

MAX_PARTS = 512
"""Only so many parts, those of the largest variance, are paired: 130,816 pairs at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is paired: arrays over parts.

    Args:
        column: Which column each is of.
        feature: Where it stands in a row.
        missing: Where the row says that it is missing; -1 where nothing does.
        knots: (parts, KNOTS): rising values of the feature.
        heights: (parts, KNOTS): what the part is there.
        mean: Of the part.
        variance: Of the part.
    """

    column: np.ndarray
    feature: np.ndarray
    missing: np.ndarray
    knots: np.ndarray
    heights: np.ndarray
    mean: np.ndarray
    variance: np.ndarray


class CentredPairs(nn.Module):
    """The map, with the same number of outputs for every table of the same width.

    Args:
        features: Of a record.
        pairs: How many products; where a table has fewer, the others are 0.
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
        """Map (batch, features) to (batch, features + pairs)."""
        return torch.cat([(x - self.shift) * self.scale, self.products(x)], dim=1)

    def products(self, x: Tensor) -> Tensor:
        """Return the products, (batch, pairs): many times as costly as the rest."""
        parts = self._parts(x)
        return parts[:, self.first] * parts[:, self.second] * self.weight

    def _parts(self, x: Tensor) -> Tensor:
        """Return the parts of records, (batch, parts), of mean 0."""
        # Behind those that some product has are places that this table has no use for.
        many = slice(0, 1 + int(torch.maximum(self.first, self.second).max()))
        feature, missing, mean = self.feature[many], self.missing[many], self.mean[many]
        own = x[:, feature]
        widths, rises = self.knots[many].diff(dim=1), self.heights[many].diff(dim=1)
        slopes = torch.where(widths > 0, rises / widths.clamp(min=1e-30), 0.0)
        found = self.heights[many, 0].expand(own.shape)
        for knot in range(KNOTS_PER_PART - 1):
            # Most parts are indicators, which are linear all the way: they have one stretch.
            bent = torch.nonzero(widths[:, knot])[:, 0]
            along = (own[:, bent] - self.knots[bent, knot]).clamp(min=0.0)
            steps = torch.minimum(along, widths[bent, knot]) * slopes[bent, knot]
            found = found.index_add(1, bent, steps)
        told = missing >= 0
        there = torch.where(told, 1.0 - x[:, missing.clamp(min=0)], 1.0)
        return (found - mean) * there


def build_pairs_map(
    means: np.ndarray, columns: tuple[EncodedColumn, ...], pairs: int
) -> CentredPairs:
    """Return the map from the means of features: post-processing.

    Args:
        means: Released, (features,), in [0, 1].
        columns: Of a row, public.
        pairs: How many products, at most.
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
    # A product that varies less than two rare categories do is not blown up further.
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
    """Return the parts of all columns, those of the largest variance."""
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
    """Return mean and variance of how far up a number is, from its own mean and its bins'."""
    own, shares = float(means[0]), means[1:]
    total = float(shares.sum())
    if not (edges and total > 0):
        return own, own * (1.0 - own) / 3
    middles = (np.arange(edges + 1) + 0.5) / (edges + 1)
    mean = float(shares @ middles) / total
    return mean, float(shares @ (middles - mean) ** 2) / total


def _resample_knots(points: np.ndarray) -> np.ndarray:
    """Return `KNOTS` of these points, the first and the last among them; the last may repeat."""
    if len(points) > KNOTS_PER_PART:
        return points[np.linspace(0, len(points) - 1, KNOTS_PER_PART).round().astype(int)]
    return np.concatenate([points, np.full(KNOTS_PER_PART - len(points), points[-1])])
