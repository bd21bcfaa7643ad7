"""Selection with disjoint subsets: candidates train on disjoint records, one is selected privately.

    the training records are split into k disjoint subsets of equal size
    candidate i is trained on subset i, and makes z_i errors on the validation records
    P(i is released)  ~  exp(-epsilon z_i / 2)

Each record is in one subset, so all k trainings together cost as much as one: the maximum over the
subsets (parallel composition). The selection costs epsilon on the validation records for any k
(exponential mechanism). The disadvantage is that a candidate is trained on 1/k of the records. If
records are reserved for the search (`search_share`), the subsets are taken from these, and the
winner is retrained on the other training records.

A space with k candidates is enumerated; from a larger space k candidates are drawn.

Source: Yu et al., section IV-A3, after Gupta et al. 2010. Proof: docs/guarantees/portions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.events import Geometric, PureDP
from pasearch.data.split import name_subset
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.randomized import draw_genotypes
from pasearch.search.strategy import (
    FULL_ROUND,
    PORTIONS_RULE,
    STRATEGIES,
    EventOfRound,
    SearchState,
    Strategy,
    TrialRound,
    check_candidate_count,
    check_multiple_candidates,
)

if TYPE_CHECKING:
    from pasearch.spaces.space import Space


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class DisjointPortions(Strategy):
    """One training per disjoint subset of the records; the exponential mechanism selects one.

    Args:
        candidates: Number k of candidates and subsets, 2 or more.

    Guarantee: the winner's weights, architecture and recipe together cost the most expensive
    training on the training records, and the epsilon of the selection on the validation records.
    """

    name: ClassVar[str] = "portions"
    selection_rule: ClassVar[str] = PORTIONS_RULE
    request_options: ClassVar[tuple[str, ...]] = ("candidates",)
    candidates: int = 4

    def __post_init__(self) -> None:
        check_multiple_candidates(self.candidates)

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        return cls(**{name: check_candidate_count(value) for name, value in given.items()})

    @property
    def candidate_count(self) -> int:
        return self.candidates

    @property
    def portions(self) -> int:
        return self.candidates

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return one line per subset for trainings, and the line of the selection for scores."""
        event = price(FULL_ROUND)
        if noun == "score":
            assert isinstance(event, Geometric), "a selection is accounted for by its epsilon"
            return [
                PlannedRelease(
                    name="pick", partition=partition, event=PureDP(event.epsilon), count=1
                )
            ]
        places = (self.partition_of_trial(partition, trial) for trial in range(self.candidates))
        return [
            PlannedRelease(name=noun, partition=place, event=event, count=1) for place in places
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key per training, and one key for all scores, which one selection reads."""
        return ("pick", "pick") if noun == "score" else (noun, f"portion {trial + 1}")

    def partition_of_trial(self, partition: str, trial: int) -> str:
        return name_subset(partition, trial)

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return all candidates in one round."""
        if state.rounds:
            return None
        if space.count() == self.candidates:
            every = tuple(product(*(range(size) for size in space.sizes)))
        else:
            every = draw_genotypes(space, stream.child("candidates"), self.candidates)
        return TrialRound(number=0, genotypes=every)

    @property
    def expected_trainings(self) -> float:
        return float(self.candidates)

    def describe(self) -> str:
        return f"{self.candidates} trainings on disjoint subsets of the records"
