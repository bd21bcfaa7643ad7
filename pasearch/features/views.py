"""The input of a linear model: selected features, centred and scaled by noisy means.

Module `data.means` releases the means and computes the scales from them. A view centres and scales
a subset of the features, so that the root mean square norm of a row is about ROW_NORM. It can also
project the result on components.

Source: original to this project. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pasearch.data.means import ROW_NORM, Array, compute_feature_scales
from pasearch.data.partitions import Records
from pasearch.data.rows import CompactRows
from pasearch.runs.sums import MAX_SUM_RECORDS, clip_rows

MAX_NORM_FACTOR = 1.25
"""Maximum row norm in units of ROW_NORM: methods that bound rows, not gradients, scale down longer
ones.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Transformation of encoded records to model inputs: selected features, centred and scaled.

    Args:
        features: Number of features of an encoded record, d.
        columns: Indices of the selected features, ascending, (c,).
        shift: Means of the selected features, (c,).
        scale: Factors of the centred features, (c,), above 0.
        rotation: Components on which the scaled features are projected, (c, k); None:
            no projection.
    """

    features: int
    columns: Array
    shift: Array
    scale: Array
    rotation: Array | None = None

    @classmethod
    def of(cls, means: Array, mask: Array | None = None) -> View:
        """Make a view from the means of all features.

        Args:
            means: Means of all features, (d,).
            mask: True for a selected feature, (d,) bool; None selects all.
        """
        columns = np.arange(len(means)) if mask is None else np.flatnonzero(mask)
        shift = means[columns]
        return cls(
            features=len(means), columns=columns, shift=shift, scale=compute_feature_scales(shift)
        )

    def with_rotation(self, rotation: Array) -> View:
        """Return a copy of the view that projects its features on components, (c, k)."""
        return replace(self, rotation=rotation)

    @property
    def width(self) -> int:
        """Number of inputs of the model."""
        return len(self.columns) if self.rotation is None else self.rotation.shape[1]

    def transform_features(self, records: Records) -> Tensor:
        """Transform records into model inputs, float32 (n, width); null records are 0.

        Args:
            records: Encoded records with features in [0, 1].
        """
        # Advanced indexing copies, so what follows can be done in place.
        return self._centre(records.x.flatten(1)[:, torch.from_numpy(self.columns)], records.valid)

    def transform_records(self, records: Records) -> Records:
        """Transform records into model inputs for training.

        Args:
            records: Encoded records with features in [0, 1]; compact records become float32 only
                one batch at a time.
        """
        compact = isinstance(records.x, CompactRows)
        x: Any = CompactView.of(self, records) if compact else self.transform_features(records)
        return Records(x=x, y=records.y, valid=records.valid, public=records.public)

    def _centre(self, z: Tensor, valid: Tensor) -> Tensor:
        """Centre, scale and project selected features, and set null records to 0; changes `z`."""
        shift, scale = (torch.from_numpy(e.astype(np.float32)) for e in (self.shift, self.scale))
        z.sub_(shift).mul_(scale).index_fill_(0, torch.nonzero(~valid)[:, 0], 0.0)
        return z if self.rotation is None else z @ torch.from_numpy(self.rotation).float()

    def compose_weights(self, weights: Array, intercept: Array) -> tuple[Array, Array]:
        """Return the model's weights, (outputs, d), and intercepts for encoded records.

        Args:
            weights: Weights of the model on this view, (outputs, width).
            intercept: Intercept of the model on this view, (outputs,).
        """
        own = weights if self.rotation is None else weights @ self.rotation.T
        own = own * self.scale
        whole = np.zeros((len(own), self.features))
        whole[:, self.columns] = own
        return whole, intercept - own @ self.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactView:
    """Tensor-like view of compact records, which transforms only the requested batch.

    Guarantee: a batch equals `View.transform_features` of the same records.

    Args:
        view: Transformation of the records.
        kept: Packed features of the view, for all records.
        valid: False for a null record, (n,).
        device: Torch device of the batches.
    """

    view: View
    kept: CompactRows
    valid: Tensor = field(repr=False)
    device: torch.device

    @classmethod
    def of(cls, view: View, records: Records) -> CompactView:
        """Make the view of an open partition's records."""
        assert isinstance(records.x, CompactRows)
        kept = records.x.select_features(view.columns)
        return cls(view=view, kept=kept, valid=records.valid, device=torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole tensor."""
        return len(self.kept), self.view.width

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a batch."""
        return torch.float32

    def is_floating_point(self) -> bool:
        """Return True: batches are float32."""
        return True

    def to(self, device: str | torch.device) -> CompactView:
        """Return a copy whose batches are on a device."""
        return replace(self, device=torch.device(device))

    def index_select(self, axis: int, places: Tensor) -> Tensor:
        """Return a batch, float32 (batch, width).

        Args:
            axis: Axis of the records; only 0.
            places: Record indices, (batch,).
        """
        assert axis == 0
        places = places.cpu()
        z = self.view._centre(self.kept[places.numpy()], self.valid.index_select(0, places))
        return z.to(self.device)


def compute_second_moments(view: View, records: Records) -> Array:
    """Compute X'X of a view's rows, scaled and clipped to norm 1, float64 (d, d): private.

    Guarantee: one record changes the result by at most 1 in Frobenius norm; a null record adds 0.

    Args:
        view: View with d features.
        records: Open records.
    """
    total = np.zeros((view.width, view.width))
    for part in records.parts():
        rows = view.transform_features(part).numpy() / (MAX_NORM_FACTOR * ROW_NORM)
        rows = clip_rows(rows, part.valid.numpy())
        for low in range(0, len(rows), MAX_SUM_RECORDS):
            own = rows[low : low + MAX_SUM_RECORDS]
            total += own.T @ own
    return total
