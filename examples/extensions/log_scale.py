"""A feature extractor: log(1 + k x) / log(1 + k) of every feature x in [0, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.front_ends import FRONT_ENDS, FrontEnd, Shape
from pasearch.registry import FieldChecks


@FRONT_ENDS.register
@dataclass(frozen=True, slots=True)
class LogScale(FrontEnd):
    """Small values drawn apart: each record by itself, so it changes no price.

    Args:
        steepness: k, 1 or more.
    """

    name: ClassVar[str] = "log"
    description_template: ClassVar[str] = "the logarithm of every feature, steepness {steepness}"
    checks: ClassVar[FieldChecks] = {"steepness": check_positive_integer}
    steepness: int = 10

    def output_shape(self, shape: Shape) -> Shape:
        """Return the same shape."""
        return shape

    def module(self, shape: Shape) -> nn.Module:
        """Return the map."""
        return Logarithm(self.steepness)


class Logarithm(nn.Module):
    """log(1 + k x) / log(1 + k)."""

    def __init__(self, steepness: int):
        super().__init__()
        self.steepness = steepness

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, *shape) to the same shape."""
        return (self.steepness * x).log1p() / math.log1p(self.steepness)
