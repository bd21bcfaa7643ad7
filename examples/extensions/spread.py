"""Spread, added from outside: the features that vary most, by one noisy release of all variances.

    v_j = sum over records of (x_j - m_j)^2 + N(0, sigma^2);   the k largest are kept

x_j is in [0, 1] and m_j, the released mean, too: a record moves the vector of d sums by at most
sqrt(d). It says nothing of the target, so its features need not be useful.

Proof: docs/guarantees/feature-selection.md (one Gaussian release of a sum of bounded rows).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pasearch.features.selector import (
    SELECTION_SHARE,
    SELECTORS,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    SizedSelector,
)
from pasearch.planning import GAUSSIAN_NOISE, ReleaseTemplate
from pasearch.runs.sums import GaussianSum

if TYPE_CHECKING:
    from pasearch.features.trainers import Trainer
    from pasearch.runs.keys import Stream

LINE = "variances"


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(SizedSelector):
    """Keeps the features that vary most.

    Args:
        size: How many; None takes d^(2/3) of d.
    """

    name: ClassVar[str] = "spread"
    description: ClassVar[str] = "the features that vary most, from noisy variances"
    public_description: ClassVar[str] = "the features that vary most"
    share: ClassVar[float | None] = SELECTION_SHARE
    uses_means: ClassVar[bool] = True
    size: int | None = None

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """Return one Gaussian release of all sums."""
        return (ReleaseTemplate(name=LINE, knob=GAUSSIAN_NOISE),)

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Return them, the one that varies most first."""
        with reads.open_line(LINE) as records:
            sums, width = np.zeros(len(reads.means)), math.sqrt(len(reads.means))
            for part in records.parts():
                rows = part.x.flatten(1).numpy().astype(np.float64) - reads.means
                sums += np.where(part.valid.numpy()[:, None], np.clip(rows, -1, 1) ** 2, 0).sum(0)
            if not reads.public:
                noise = GaussianSum(noise_multiplier=reads.noise(LINE))
                sums = width * noise.release(sums / width, stream.child(LINE))
        order = np.argsort(-sums, kind="stable")[: self.resolve_size(len(sums))]
        return SelectionResult.of(reads.means, order.tolist())

    def count_selected(self, features: int) -> int:
        """Return how many."""
        return self.resolve_size(features)
