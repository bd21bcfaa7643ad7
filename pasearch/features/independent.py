"""Selectors that read no record: all features, random ones, and pooled pixels.

The choice depends on no record, so it costs nothing. Pooling reads one record at a time.
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
    """Keeps every feature."""

    name: ClassVar[str] = "all"
    description: ClassVar[str] = "every feature, nothing is chosen"
    selection_rule: ClassVar[str] = "none"
    no_size_reason: ClassVar[str] = "chooses nothing"

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        return SelectionResult(view=View.of(reads.means))

    def count_selected(self, features: int) -> int:
        return features


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFeatures(SizedSelector):
    """Draws features.

    Args:
        size: How many; None takes d^(2/3) of d.
    """

    name: ClassVar[str] = "random"
    description: ClassVar[str] = "features drawn at random"
    selection_rule: ClassVar[str] = "none"
    size: int | None = None

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        features = len(reads.means)
        order = stream.generator().permutation(features)[: self.count(features)].tolist()
        return SelectionResult.of(reads.means, order)

    def count_selected(self, features: int) -> int:
        return self.count(features)


MAX_POOL_SIDE = 1024
"""The largest side of a pool, pixels."""


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPooling(AllFeatures):
    """Keeps the largest of neighbouring pixels.

    Args:
        pool: The side of a pool, pixels.
    """

    name: ClassVar[str] = "max-pool"
    description: ClassVar[str] = "neighbouring pixels pooled, nothing is chosen"
    pool: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "pool", check_positive_integer("pool", self.pool, most=MAX_POOL_SIDE)
        )

    @property
    def pooling(self) -> MaxPool:
        return MaxPool(size=self.pool)

    def check(self, form: DataMetadata) -> None:
        """Refuse records that are no images, or smaller than a pool."""
        if len(form.shape) == 1:
            raise UsageError("Method 'max-pool' is for images: records here have no neighbours.")
        self.pooling.output_shape(form.shape)

    def describe(self, *, public: bool = False) -> str:
        return f"{self.description}, {self.pool} x {self.pool}"
