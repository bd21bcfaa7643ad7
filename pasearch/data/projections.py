"""Modules of the feature extractors, and private estimation of those that are fitted to records.

Source: Dwork, Talwar, Thakurta and Zhang 2014 (Analyze Gauss); docs/rules.md, "Sensitivities".
    Proofs: docs/guarantees/released-sums.md; for `centred`, feature-selection.md.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.means import (
    BLOCK_RECORDS,
    ROW_NORM,
    FeatureMeans,
    FitInput,
    compute_common_scale,
    compute_feature_scales,
    compute_public_means,
)
from pasearch.data.rows import iterate_records
from pasearch.data.scattering import Scattering, normalize_groups
from pasearch.runs.sums import GaussianSum, clip_rows

TYPICAL_NORM = 8.0
"""Typical L2 norm of normalised records: that of a raw image, so that learning rates need not be
changed.
"""

MIN_DEVIATION = 0.02
"""Minimum standard deviation of a feature in [0, 1]: it limits the amplification of noise."""


class NormalisedScattering(nn.Module):
    """Scattering, normalised in groups of each record to the norm of a raw record."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.transform = Scattering(shape)
        self.scale = TYPICAL_NORM / math.sqrt(math.prod(self.transform.output_shape))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features, (batch, *shape) to (batch, channels, height / 4, width / 4)."""
        return normalize_groups(self.transform(x)) * self.scale


class Affine(nn.Module):
    """Module that computes (x - shift) * scale for each feature.

    Args:
        shape: Shape of one record.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Shift and scale records, (batch, *shape)."""
        return (x - self.shift) * self.scale


class Projection(nn.Module):
    """Module that projects a flattened record on given directions.

    Args:
        features: Number of features of a record.
        components: Number of directions, the outputs per record.
    """

    directions: Tensor

    def __init__(self, features: int, components: int):
        super().__init__()
        self.register_buffer("directions", torch.zeros(features, components))

    def forward(self, x: Tensor) -> Tensor:
        """Project records, (batch, *shape) to (batch, components)."""
        return x.flatten(1) @ self.directions


def fit_standardisation(given: FitInput) -> Affine:
    """Build the map of `standardise` from noisy first and second moments of every feature.

    Cost: `Gaussian(noise_multiplier)`, because (x, x^2) / sqrt(2 d) has norm at most 1.
    """
    shape = given.x.shape[1:]
    features = math.prod(shape)
    width, sums = math.sqrt(2 * features), np.zeros(2 * features)
    for own, there in iterate_records(given.x, given.valid, BLOCK_RECORDS):
        rows = np.where(there[:, None], own.astype(np.float64), 0.0)
        sums = sums + np.concatenate([rows.sum(0), np.square(rows).sum(0)])
    total = _add_noise(sums / width, given) * width / len(given)
    mean, square = np.split(total, 2)
    mean = np.clip(mean, 0.0, 1.0)
    deviation = np.sqrt(np.maximum(square - mean**2, MIN_DEVIATION**2))
    return _build_affine(mean, TYPICAL_NORM / (deviation * math.sqrt(features)), shape)


def estimate_means(given: FitInput) -> np.ndarray:
    """Estimate the mean of every feature, float64 (features,), in [0, 1].

    Rows are clipped to the public bound on an encoded record's norm.

    Cost: `Gaussian(noise_multiplier)`.
    """
    form = given.form
    row_bound = math.sqrt(math.prod(given.x.shape[1:])) if form is None else form.bound
    if given.noise_multiplier is None:
        return np.clip(compute_public_means(given, row_bound), 0.0, 1.0)
    mechanism = FeatureMeans(noise_multiplier=given.noise_multiplier, row_bound=row_bound)
    return mechanism.release(given, given.stream)


def build_centring_map(means: np.ndarray, shape: tuple[int, ...]) -> Affine:
    """Build the map of `centred` from the released means of features: post-processing."""
    return _build_affine(means, compute_feature_scales(means), shape)


def fit_centring(given: FitInput) -> Affine:
    """Build the map that subtracts the noisy mean of records, which are clipped to norm `ROW_NORM`.

    It also scales the difference, so that the root mean square norm is `ROW_NORM` again.

    Cost: `Gaussian(noise_multiplier)`.
    """
    if given.noise_multiplier is None:
        means = compute_public_means(given, ROW_NORM)
    else:
        mechanism = FeatureMeans(noise_multiplier=given.noise_multiplier, row_bound=ROW_NORM)
        means = mechanism.release_signed(given, given.stream)
    return _build_affine(
        means, np.full(len(means), compute_common_scale(means, ROW_NORM)), given.x.shape[1:]
    )


def _build_affine(shift: np.ndarray, scale: np.ndarray, shape: tuple[int, ...]) -> Affine:
    affine = Affine(tuple(shape))
    affine.shift.copy_(torch.from_numpy(shift).reshape(shape))
    affine.scale.copy_(torch.from_numpy(scale).reshape(shape))
    return affine


def fit_components(given: FitInput, components: int) -> Projection:
    """Build the projection on the leading eigenvectors of the noisy second moments.

    Cost: `Gaussian(noise_multiplier)`, because records are clipped to norm 1.
    """
    features = math.prod(given.x.shape[1:])
    total = np.zeros((features, features))
    for own, there in iterate_records(given.x, given.valid, BLOCK_RECORDS):
        rows = clip_rows(own, there)
        total = total + rows.T @ rows
    _, vectors = np.linalg.eigh(_add_noise(total, given))
    projection = Projection(features, components)
    # A table with an estimated schema may have fewer features; the other coordinates are then 0.
    leading = torch.from_numpy(vectors[:, ::-1][:, :components].copy())
    projection.directions[:, : leading.shape[1]].copy_(leading)
    return projection


def _add_noise(total: np.ndarray, given: FitInput) -> np.ndarray:
    """Release a sum with noise; on public data, return it unchanged."""
    if given.noise_multiplier is None:
        return total
    noise = GaussianSum(noise_multiplier=given.noise_multiplier)
    release = noise.release if total.ndim == 1 else noise.release_symmetric
    return release(total, given.stream)
