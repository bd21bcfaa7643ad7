"""What is public about a data set before a record is read: shape, bounds and classes, declared.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Integral, Real
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
        UsageError: Bounds that are not finite or not low < high, fewer than two classes, or an
            empty shape.
    """

    shape: tuple[int, ...]
    low: float
    high: float
    classes: int

    def __post_init__(self) -> None:
        bounds = self.low, self.high
        numbers = all(isinstance(b, Real) and not isinstance(b, bool) for b in bounds)
        # A width that overflows would scale every feature to 0.
        width = float(self.high) - float(self.low) if numbers else math.nan
        if not (math.isfinite(width) and width > 0.0):
            raise UsageError(
                f"Bounds are {self.low!r}, {self.high!r}: expected two finite numbers, low < high."
            )
        if not (_whole(self.classes) and self.classes >= 2):
            raise UsageError(
                f"The number of classes is {self.classes!r}: expected a whole number, 2 or above."
            )
        if not self.shape or not all(_whole(side) and side > 0 for side in self.shape):
            raise UsageError(f"A record's shape is {self.shape}: expected at least one feature.")
        plain = {
            "low": float(self.low),
            "high": float(self.high),
            "classes": int(self.classes),
            "shape": tuple(int(side) for side in self.shape),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Schema:
        """Read what `to_json` wrote."""
        return cls(**{**values, "shape": tuple(values["shape"])})


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
