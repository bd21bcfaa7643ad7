"""PAFS: sets of features evolve by the noisy scores of models trained on them, privately.

    N <- k random sets;  l times: train and score each;  N <- Evolve(N) unless it was the last
    the set of most points is kept                                    (Algorithm 4, `evolution`)

It is charged for the k l trainings that are planned, whether sets repeat or not: how many are
different depends on the data.

Source: Bao et al., sections VIII-B and VIII-C. Proof: docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pasearch.features.chosen import Array, Chosen, best_of
from pasearch.features.evolution import P_CO, P_MU, Evolving, labels, masks_of, recalled, unseen
from pasearch.features.selector import SELECTORS, Compared, Comparing, Reads
from pasearch.runs.keys import Stream


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyAwareFeatureSelection(Evolving, Comparing):
    """Evolves sets by what trains best.

    Args:
        population: k, sets a generation: few, because each is paid for.
        generations: l.
        alpha: Large, because they are few; p_co and p_mu: see `Evolution`.
    """

    name: ClassVar[str] = "pafs"
    does: ClassVar[str] = "a genetic search over sets, scored by privately trained models"
    does_on_public: ClassVar[str] = (
        "a genetic search over sets, scored by models trained as the private one will be"
    )
    no_size: ClassVar[str] = "searches over sizes too"
    share: ClassVar[float | None] = 0.6
    printed: ClassVar[str] = (
        "the paper prints 49.63 for its settings; this formula gives 49.607 for 2,313 distinct "
        "sets at epsilon 0.1, a number that depends on the records, and 103.8 for all 6,000"
    )
    population: int = 20
    generations: int = 3
    alpha: float = 0.3
    p_co: float = P_CO
    p_mu: float = P_MU

    def words(self, *, public: bool = False) -> str:
        return (self.does_on_public if public else self.does) + self.evolution_words()

    @property
    def trainings(self) -> int:
        return self.population * self.generations

    @property
    def rounds(self) -> int:
        return self.generations

    def choose(self, reads: Reads, stream: Stream) -> Chosen:
        return self.evolved(reads.means, reads.columns, reads.compared(), stream)

    def evolved(
        self, means: Array, columns: Array | None, compared: Compared, stream: Stream
    ) -> Chosen:
        """Return the best set, where sets evolve by their points.

        Args:
            means: Of all features, (d,).
            columns: Which column each feature belongs to, (d,), where sets are of whole columns.
            compared: Is asked for each different set once.
            stream: Of the genetic algorithm.
        """
        columns = np.arange(len(means)) if columns is None else columns
        width = int(columns.max()) + 1
        generation = self.evolution.begin(width, stream.child("begin").generator())
        known: dict[str, int] = {}
        for number in range(self.generations):
            if number:
                fitness = recalled(generation.masks, known)
                source = stream.child("tell", number - 1).generator()
                generation = self.evolution.tell(generation, fitness, source)
            masks = generation.masks[unseen(generation.masks, known)]
            if len(masks):
                trials = [f"trial {len(known) + each}" for each in range(len(masks))]
                known |= zip(labels(masks), compared(masks[:, columns], trials), strict=True)
        sets = masks_of(list(known), width)[:, columns]
        return best_of(means, sets, list(known.values()))
