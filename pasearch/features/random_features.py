"""Random: features drawn at random, which depend on no record and cost nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pasearch.features.chosen import Chosen
from pasearch.features.selector import SELECTORS, Reads, Sized
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFeatures(Sized):
    """Draws features.

    Args:
        size: How many; None takes d^(2/3) of d.
    """

    name: ClassVar[str] = "random"
    does: ClassVar[str] = "features drawn at random"
    selection_rule: ClassVar[str] = "none"
    size: int | None = None

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        features = len(reads.means)
        order = stream.generator().permutation(features)[: self.count(features)].tolist()
        return Chosen.of(reads.means, order)

    def must_choose(self, features: int) -> int:
        return self.count(features)
