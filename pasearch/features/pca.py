"""PCA: the leading eigenvectors of the features' noisy second moments (Analyze Gauss).

    S = X'X + symmetric Gaussian noise,  rows of X clipped to norm 1;  eigenvectors of S with the
    largest eigenvalues

Source: Dwork et al. 2014; Bao et al., section VIII-C. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pasearch.features.selector import (
    SELECTION_SHARE,
    SELECTORS,
    Array,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    SizedSelector,
)
from pasearch.features.trainers import Trainer
from pasearch.features.views import View, compute_second_moments
from pasearch.planning import GAUSSIAN_NOISE, ReleaseTemplate
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianSum

MOMENTS_LINE = "second moments"  # name of the charge for the noisy second moments


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalComponents(SizedSelector):
    """Projection of the features on noisy principal components.

    Args:
        size: Number of components, 1 or above; None: d^(2/3) of d features.
    """

    name: ClassVar[str] = "pca"
    description: ClassVar[str] = "principal components of noisy second moments"
    public_description: ClassVar[str] = "principal components"
    share: ClassVar[float | None] = SELECTION_SHARE
    uses_means: ClassVar[bool] = True
    size: int | None = None

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """Return the charge of one Gaussian release of all second moments."""
        return (ReleaseTemplate(name=MOMENTS_LINE, knob=GAUSSIAN_NOISE),)

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Choose the components with the largest noisy eigenvalues."""
        view = View.of(reads.means)
        moments = self.compute_moments(reads, view, stream)
        size = self.resolve_size(len(reads.means))
        directions = np.linalg.eigh(moments)[1][:, ::-1][:, :size]
        return SelectionResult(view=view.with_rotation(np.ascontiguousarray(directions)))

    def compute_moments(self, reads: RecordAccess, view: View, stream: Stream) -> Array:
        """Release second moments of the view's rows, clipped to norm 1, (d, d).

        They are noisy on private records, and exact on public records.
        """
        with reads.open_line(MOMENTS_LINE) as records:
            exact = compute_second_moments(view, records)
            if reads.public:
                return exact
            noise = GaussianSum(noise_multiplier=reads.noise(MOMENTS_LINE))
            return noise.release_symmetric(exact, stream.child("second moments"))

    def count_selected(self, features: int) -> int:
        """Return the number of features: every component uses all of them."""
        return features

    def count_components(self, features: int) -> int:
        """Return the number of components."""
        return self.resolve_size(features)
