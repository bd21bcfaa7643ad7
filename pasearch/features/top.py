"""Top: the k features most associated with the target, each picked privately.

    class shares    one Gaussian release of the classes' counts, a tenth of the choice's epsilon
    picks           k picks by points that these shares define (`picking`), the rest of it

Source: `picking`. Proof: docs/guarantees/picking-features.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar

import numpy as np

from pasearch.accounting.events import SelfComposed
from pasearch.data.partitions import AnyRecords
from pasearch.features.chosen import Array, Chosen
from pasearch.features.contingency import Attributes, attributes_of
from pasearch.features.knobs import GAUSSIAN, PURE, DialledLine
from pasearch.features.picking import (
    ClassShares,
    GumbelTop,
    PermuteAndFlip,
    class_tables,
    points_of_tables,
)
from pasearch.features.selector import SELECTION_SHARE, SELECTORS, Form, Reads, Sized, check_one_of
from pasearch.features.trainers import Trainer
from pasearch.runs.keys import Stream
from pasearch.runs.sums import GaussianSum

SHARES, PICKED = "class shares", "picks"
"""The lines of the two releases."""

PICKS = {"permute-and-flip": PermuteAndFlip, "gumbel": GumbelTop}

CLASS_SHARE = 0.1
"""The share of the choice's epsilon that class shares take."""


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Top(Sized):
    """Picks the features that tell most of the target.

    Args:
        size: How many; None takes d^(2/3) of d.
        pick: "permute-and-flip" or "gumbel".
    """

    name: ClassVar[str] = "top"
    does: ClassVar[str] = "the features most associated with the target, each picked privately"
    does_on_public: ClassVar[str] = "the features most associated with the target"
    share: ClassVar[float | None] = SELECTION_SHARE
    size: int | None = None
    pick: str = "permute-and-flip"

    def __post_init__(self) -> None:
        Sized.__post_init__(self)
        check_one_of("pick", self.pick, PICKS)

    def words(self, *, public: bool = False) -> str:
        words = self.does_on_public if public else f"{self.does}, by {self.pick}"
        return words + self.unusual("size")

    def lines(self, form: Form, trainer: type[Trainer]) -> tuple[DialledLine, ...]:
        """Return the class shares, and k picks."""
        count = self.count(form.features)
        return (
            DialledLine(name=SHARES, knob=GAUSSIAN, share=CLASS_SHARE),
            DialledLine(
                name=PICKED, knob=PURE, share=1.0 - CLASS_SHARE,
                composed=lambda pick: SelfComposed(event=pick, count=count),
            ),
        )  # fmt: skip

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        # No more than were planned: an estimated schema has at most as many features.
        ranked = self._on_public if reads.public else self._picked
        return Chosen.of(reads.means, ranked(reads, self.count(len(reads.means)), stream))

    def _picked(self, reads: Reads, size: int, stream: Stream) -> Sequence[int]:
        attributes = attributes_of(reads.schema)
        noise = GaussianSum(noise_multiplier=reads.noise(SHARES))
        with reads.opened(SHARES) as records:
            exact = _classes(records, attributes).astype(np.float64)
            noisy = noise.release(exact, stream.child("class shares"))
        shares = ClassShares.of(np.maximum(noisy, 1.0) / np.maximum(noisy, 1.0).sum())
        picks = PICKS[self.pick](epsilon=reads.noise(PICKED), k=size, most=shares.most)
        with reads.opened(PICKED) as records:
            points = points_of_tables(_tables(records, attributes), attributes, shares)
            return picks.release(points, stream.child("picks"))

    def _on_public(self, reads: Reads, size: int, stream: Stream) -> Sequence[int]:
        attributes = attributes_of(reads.schema)
        with reads.opened(PICKED) as records:
            tables = _tables(records, attributes)
            counted = np.maximum(_classes(records, attributes), 1.0)
        points = points_of_tables(tables, attributes, ClassShares.of(counted / counted.sum()))
        return np.argsort(-np.asarray(points, np.float64), kind="stable")[:size].tolist()

    def must_choose(self, features: int) -> int:
        return self.count(features)


def _classes(records: AnyRecords, attributes: Attributes) -> Array:
    """Return how many records are of each class, or bin of the target."""
    codes = attributes.items[-1].codes(records.y.numpy()[:, None])
    return np.bincount(codes[records.valid.numpy()], minlength=attributes.sizes[-1])


def _tables(records: AnyRecords, attributes: Attributes) -> Array:
    every = (class_tables(codes, attributes) for codes in attributes.codes_of(records))
    return reduce(add, every)
