"""Selectors that read no record: all features, random features, and max-pooled pixels.

The selection is independent of the records, so it costs nothing. Pooling transforms each record on
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.front_ends import MaxPool
from pasearch.errors import UsageError
from pasearch.features.selector import (
    SELECTORS,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    Selector,
    SizedSelector,
)
from pasearch.features.views import View
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllFeatures(Selector):
    """Selector that keeps every feature."""

    name: ClassVar[str] = "all"
    description: ClassVar[str] = "all features (no selection)"
    selection_rule: ClassVar[str] = "none"
    no_size_reason: ClassVar[str] = "keeps all features"

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        return SelectionResult(view=View.of(reads.means))

    def count_selected(self, features: int) -> int:
        return features


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFeatures(SizedSelector):
    """Selector of features drawn uniformly at random.

    Args:
        size: Number of features, 1 or above; None: d^(2/3) of d features.
    """

    name: ClassVar[str] = "random"
    description: ClassVar[str] = "features drawn at random"
    selection_rule: ClassVar[str] = "none"
    size: int | None = None

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        features = len(reads.means)
        order = stream.generator().permutation(features)[: self.resolve_size(features)].tolist()
        return SelectionResult.of(reads.means, order)

    def count_selected(self, features: int) -> int:
        return self.resolve_size(features)


MAX_POOL_SIDE = 1024  # maximum side of a pool, pixels


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPooling(AllFeatures):
    """Max pooling of neighbouring pixels; keeps every pooled pixel.

    Args:
        pool: Side of a pool, pixels, 1 to `MAX_POOL_SIDE`.
    """

    name: ClassVar[str] = "max-pool"
    description: ClassVar[str] = "max pooling of neighbouring pixels (no selection)"
    pool: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "pool", check_positive_integer("pool", self.pool, most=MAX_POOL_SIDE)
        )

    @property
    def pooling(self) -> MaxPool:
        return MaxPool(size=self.pool)

    def check(self, form: DataMetadata) -> None:
        """Raise UsageError for records that are not images, or smaller than a pool."""
        if len(form.shape) == 1:
            raise UsageError(
                f"Method 'max-pool' requires images; these records have shape {form.shape}. "
                "Use another method."
            )
        self.pooling.output_shape(form.shape)

    def describe(self, *, public: bool = False) -> str:
        return f"{self.description}, {self.pool} x {self.pool}"
