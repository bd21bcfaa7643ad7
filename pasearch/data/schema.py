"""What is public about a data set before a record is read: shape, bounds and classes, declared.

Source: privacy.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pasearch.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The declared form of records with numeric features and a class.

    Args:
        shape: Shape of one record: (features,), (height, width) or (channels, height, width).
        low: Lower bound of every feature, in the data's own units; values below are clamped.
        high: Upper bound of every feature.
        classes: Number of classes; labels are 0 ... classes - 1, any other label is a null record.

    Raises:
        UsageError: Bounds that are not finite or not low < high, fewer than two classes.
    """

    shape: tuple[int, ...]
    low: float
    high: float
    classes: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UsageError(
                f"Bounds are {self.low}, {self.high}: expected two finite numbers, low < high."
            )
        if not self.classes >= 2:
            raise UsageError(f"Classes is {self.classes}: expected at least 2.")
        if not self.shape or not all(side > 0 for side in self.shape):
            raise UsageError(f"A record's shape is {self.shape}: expected at least one feature.")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Schema:
        """Read what `to_json` wrote."""
        return cls(**{**values, "shape": tuple(values["shape"])})
