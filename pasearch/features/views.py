"""What a linear model sees of a record: chosen features, centred and scaled by noisy means.

The means and what is done by them stand in `data.means`; a view is that for a set of the features,
its rows again of root mean square norm ROW_NORM, and of directions in them.

Source: ours. Proof: docs/guarantees/feature-selection.md.
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
"""Longer rows than REACH times ROW_NORM are cut, where a method bounds rows and not gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Chosen features of a record, centred and scaled: what a linear model is given.

    Args:
        features: d, of an encoded record.
        columns: Which of them, rising, (c,).
        shift: Their means, (c,).
        scale: What the centred ones are multiplied by, (c,).
        rotation: Directions in them, (c, k); None takes them as they are.
    """

    features: int
    columns: Array
    shift: Array
    scale: Array
    rotation: Array | None = None

    @classmethod
    def of(cls, means: Array, mask: Array | None = None) -> View:
        """Return the view of some features, from the means of all of them; None: of all."""
        columns = np.arange(len(means)) if mask is None else np.flatnonzero(mask)
        shift = means[columns]
        return cls(
            features=len(means), columns=columns, shift=shift, scale=compute_feature_scales(shift)
        )

    def with_rotation(self, rotation: Array) -> View:
        """Return the view of directions in these features, (c, k)."""
        return replace(self, rotation=rotation)

    @property
    def width(self) -> int:
        """How many numbers a record becomes."""
        return len(self.columns) if self.rotation is None else self.rotation.shape[1]

    def rows(self, records: Records) -> Tensor:
        """Return records as the model sees them, float32 (n, width), null records 0.

        Args:
            records: Encoded, in [0, 1].
        """
        # Advanced indexing copies, so what follows can be done in place.
        return self._centre(records.x.flatten(1)[:, torch.from_numpy(self.columns)], records.valid)

    def transform_records(self, records: Records) -> Records:
        """Return records as the model sees them, to train on.

        Args:
            records: As of `rows`; of compact ones only a batch becomes float32 at a time.
        """
        compact = isinstance(records.x, CompactRows)
        x: Any = CompactView.of(self, records) if compact else self.rows(records)
        return Records(x=x, y=records.y, valid=records.valid, public=records.public)

    def _centre(self, z: Tensor, valid: Tensor) -> Tensor:
        """Return chosen features, (n, c), centred, scaled and rotated; they are overwritten."""
        shift, scale = (torch.from_numpy(e.astype(np.float32)) for e in (self.shift, self.scale))
        z.sub_(shift).mul_(scale).index_fill_(0, torch.nonzero(~valid)[:, 0], 0.0)
        return z if self.rotation is None else z @ torch.from_numpy(self.rotation).float()

    def compose_weights(self, weights: Array, intercept: Array) -> tuple[Array, Array]:
        """Return a model of this view as one of encoded records: (outputs, d) and (outputs,).

        Args:
            weights: Of the model on this view, (outputs, width).
            intercept: Of that, (outputs,).
        """
        own = weights if self.rotation is None else weights @ self.rotation.T
        own = own * self.scale
        whole = np.zeros((len(own), self.features))
        whole[:, self.columns] = own
        return whole, intercept - own @ self.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactView:
    """What a model sees of compact records: as much of a tensor as a training asks for.

    Guarantee: a batch is what `View.rows` gives of the same records.

    Args:
        view: What is seen.
        kept: The view's features of all records.
        valid: (n,) False marks a null record.
        device: Where batches go.
    """

    view: View
    kept: CompactRows
    valid: Tensor = field(repr=False)
    device: torch.device

    @classmethod
    def of(cls, view: View, records: Records) -> CompactView:
        """Return the view of an open partition's records."""
        assert isinstance(records.x, CompactRows)
        kept = records.x.select_features(view.columns)
        return cls(view=view, kept=kept, valid=records.valid, device=torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole tensor."""
        return len(self.kept), self.view.width

    @property
    def dtype(self) -> torch.dtype:
        """Of a batch."""
        return torch.float32

    def is_floating_point(self) -> bool:
        """Return True, as of a tensor of float32."""
        return True

    def to(self, device: str | torch.device) -> CompactView:
        """Return the same, whose batches go to a device."""
        return replace(self, device=torch.device(device))

    def index_select(self, axis: int, places: Tensor) -> Tensor:
        """Return a batch, float32 (places, width).

        Args:
            axis: 0.
            places: (places,).
        """
        assert axis == 0
        places = places.cpu()
        z = self.view._centre(self.kept[places.numpy()], self.valid.index_select(0, places))
        return z.to(self.device)


def second_moments(view: View, records: Records) -> Array:
    """Return X'X, float64, of rows as a view shows them, cut to norm 1: private.

    Args:
        view: d features.
        records: Open; null ones add nothing.

    Returns:
        (d, d); one record moves it by at most 1 in Frobenius norm.
    """
    total = np.zeros((view.width, view.width))
    for part in records.parts():
        rows = view.rows(part).numpy() / (MAX_NORM_FACTOR * ROW_NORM)
        rows = clip_rows(rows, part.valid.numpy())
        for low in range(0, len(rows), MAX_SUM_RECORDS):
            own = rows[low : low + MAX_SUM_RECORDS]
            total += own.T @ own
    return total
