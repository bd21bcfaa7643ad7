"""Max-pool: neighbouring pixels are pooled by their largest, and no pixel is chosen.

Pooling reads one record at a time, so it costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pasearch.accounting.checks import whole
from pasearch.data.front_ends import MaxPool
from pasearch.errors import UsageError
from pasearch.features.all_features import AllFeatures
from pasearch.features.selector import SELECTORS, Form

MOST_POOL = 1024
"""The largest side of a pool, pixels."""


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPooling(AllFeatures):
    """Keeps the largest of neighbouring pixels.

    Args:
        pool: The side of a pool, pixels.
    """

    name: ClassVar[str] = "max-pool"
    does: ClassVar[str] = "neighbouring pixels pooled, nothing is chosen"
    pool: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", whole("pool", self.pool, most=MOST_POOL))

    @property
    def pooling(self) -> MaxPool:
        return MaxPool(size=self.pool)

    def check(self, form: Form) -> None:
        """Refuse records that are no images, or smaller than a pool."""
        if len(form.shape) == 1:
            raise UsageError("Method 'max-pool' is for images: records here have no neighbours.")
        self.pooling.output_shape(form.shape)

    def words(self, *, public: bool = False) -> str:
        return f"{self.does}, {self.pool} x {self.pool}"
