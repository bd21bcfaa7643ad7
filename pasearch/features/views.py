"""What a linear model sees of a record: chosen features, centred and scaled by noisy means.

    means       m = (sum of x_i + N(0, (sigma B)^2)) / n,    each ||x_i|| <= B, public
    a view      z_j = K / sqrt(sum of v) * (x_j - m_j) / v_j^(1/4),   v_j = max(m_j (1 - m_j), v_0)

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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting.checks import checked, positive
from pasearch.data.compact import CompactRows
from pasearch.data.partitions import AnyRecords, CompactRecords, Records
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.features.recipe import REACH, ROW_NORM
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianRelease, GaussianSum, bounded_rows

Array = np.ndarray[Any, Any]

LEAST_VARIANCE = 0.05**2
"""v_0: a category of fewer records than a four-hundredth is not blown up further."""

ROWS = 65_536
"""Records at a time: only memory depends on it."""


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
    __post_init__ = checked(noise_multiplier=positive, row_bound=positive)

    def release(self, records: AnyRecords, stream: Stream) -> Array:
        """Return the means, float64 (d,), in [0, 1]; the divisor is n, public.

        Args:
            records: Of an open partition, charged by the caller.
            stream: The release's own randomness.

        Cost: `event`, on that partition.
        """
        total = np.zeros(math.prod(records.x.shape[1:]))
        for each in records.parts():
            x, valid = each.x.flatten(1).numpy(), each.valid.numpy()
            for start in range(0, len(x), ROWS):
                part = slice(start, start + ROWS)
                total += bounded_rows(x[part] / self.row_bound, valid[part]).sum(axis=0)
        noise = GaussianSum(noise_multiplier=self.noise_multiplier)
        noisy = noise.release(total, stream) * self.row_bound / len(records)
        return np.clip(noisy, 0.0, 1.0)


def row_bound(schema: AnySchema) -> float:
    """Return the largest norm of an encoded record: public.

    A category or a bin is 1 once, a number at most 1 beside it, and every word may be there.
    """
    if not isinstance(schema, TableSchema):
        return math.sqrt(math.prod(schema.shape))
    most = 0
    for column in schema.columns:
        if column.kind == "text":
            most += len(column.vocabulary or ())
        elif column.kind != "ignore":
            most += 2 if column.kind == "number" else 1
    return math.sqrt(most)


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
        variance = shift * (1.0 - shift)
        scale = np.maximum(variance, LEAST_VARIANCE) ** -0.25
        length = math.sqrt(max(float(np.sum(scale**2 * variance)), 1e-12))
        scale = scale * (ROW_NORM / length)
        return cls(features=len(means), columns=columns, shift=shift, scale=scale)

    def rotated(self, rotation: Array) -> View:
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

    def seen(self, records: AnyRecords) -> Records:
        """Return records as the model sees them, to train on.

        Args:
            records: As of `rows`; of compact ones only a batch becomes float32 at a time.
        """
        x: Any = (
            self.rows(records) if isinstance(records, Records) else CompactView.of(self, records)
        )
        return Records(x=x, y=records.y, valid=records.valid, public=records.public)

    def _centre(self, z: Tensor, valid: Tensor) -> Tensor:
        """Return chosen features, (n, c), centred, scaled and rotated; they are overwritten."""
        shift, scale = (torch.from_numpy(e.astype(np.float32)) for e in (self.shift, self.scale))
        z.sub_(shift).mul_(scale).index_fill_(0, torch.nonzero(~valid)[:, 0], 0.0)
        return z if self.rotation is None else z @ torch.from_numpy(self.rotation).float()

    def composed(self, weights: Array, intercept: Array) -> tuple[Array, Array]:
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
    def of(cls, view: View, records: CompactRecords) -> CompactView:
        """Return the view of an open partition's records."""
        kept = records.x.taking(view.columns)
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


def second_moments(view: View, records: AnyRecords) -> Array:
    """Return X'X, float64, of rows as a view shows them, cut to norm 1: private.

    Args:
        view: d features.
        records: Open; null ones add nothing.

    Returns:
        (d, d); one record moves it by at most 1 in Frobenius norm.
    """
    total = np.zeros((view.width, view.width))
    for part in records.parts():
        rows = view.rows(part).numpy() / (REACH * ROW_NORM)
        rows = bounded_rows(rows, part.valid.numpy())
        total += rows.T @ rows
    return total
