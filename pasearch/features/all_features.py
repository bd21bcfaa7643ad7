"""All: every feature is kept, so nothing is read and nothing is paid for the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pasearch.features.chosen import Chosen
from pasearch.features.selector import SELECTORS, Reads, Selector
from pasearch.features.views import View
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class AllFeatures(Selector):
    """Keeps every feature."""

    name: ClassVar[str] = "all"
    does: ClassVar[str] = "every feature, nothing is chosen"
    selection_rule: ClassVar[str] = "none"
    no_size: ClassVar[str] = "chooses nothing"

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        return Chosen(view=View.of(reads.means))

    def must_choose(self, features: int) -> int:
        return features
