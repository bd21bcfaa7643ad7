"""Successive halving, added from outside: many short trainings first, few whole ones at the end.

    rung 1:   n candidates, uniform in the space, each trained for 2^-(r-1) of its steps
    rung i:   the better half of the rung before, trained anew for twice as many steps
    price:    all trainings of all rungs, composed

Every score is released, and the next rung depends on all of them: so everything is composed. A
short training has the noise of a whole one and fewer steps, so it costs less.

Source: Jamieson and Talwalkar 2016. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import check_positive_integer
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.randomized import draw_genotypes
from pasearch.search.strategy import (
    STRATEGIES,
    EventOfRound,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
    check_candidate_count,
)

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.spaces.space import Space


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessiveHalving(Strategy):
    """Rungs of fewer and longer trainings.

    Args:
        candidates: n, of the first rung.
        rungs: r.

    Guarantee: every trial may be shown; all of them together cost the composition of the rungs.
    """

    name: ClassVar[str] = "halving"
    selection_rule: ClassVar[str] = "composition"
    request_options: ClassVar[tuple[str, ...]] = ("candidates", "generations")
    candidates: int = 8
    rungs: int = 3

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_positive_integer("candidates", self.candidates, most=10_000)
        check_positive_integer("rungs", self.rungs, most=20)

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        """Create the strategy: `generations` is its number of rungs."""
        own = {"rungs": given["generations"]} if "generations" in given else {}
        if "candidates" in given:
            own["candidates"] = check_candidate_count(given["candidates"])
        return cls(**own)

    def count(self, number: int) -> int:
        """Return how many candidates a rung has: half of the one before, one at least."""
        return max(1, self.candidates >> number)

    def shape(self, number: int) -> RoundShape:
        """Return how long a rung's trainings are: the last one's are whole."""
        return RoundShape(steps=2.0 ** (number + 1 - self.rungs))

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return a line a rung."""
        return [
            PlannedRelease(
                name=self.charge(noun, number, 0)[0],
                partition=partition,
                event=price(self.shape(number)),
                count=self.count(number),
            )
            for number in range(self.rungs)
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return a key a trial: each is a release of its own."""
        return f"{noun}, rung {number + 1}", f"trial {trial}"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the next rung."""
        number = len(state.rounds)
        if number == self.rungs:
            return None
        if not number:
            genotypes = draw_genotypes(space, stream.child("candidates"), self.candidates)
        else:
            before, fitness = state.rounds[-1].genotypes, state.fitness[-1]
            ranked = sorted(range(len(before)), key=fitness.__getitem__, reverse=True)
            genotypes = tuple(before[place] for place in ranked[: self.count(number)])
        return TrialRound(number=number, genotypes=genotypes, shape=self.shape(number))

    @property
    def finalists(self) -> int:
        """Those of the last rung."""
        return self.count(self.rungs - 1)

    @property
    def expected_trainings(self) -> float:
        """Short ones included."""
        return float(sum(map(self.count, range(self.rungs))))

    @property
    def expected_work(self) -> float:
        """Each by its share of a whole one."""
        return sum(self.count(each) * self.shape(each).steps for each in range(self.rungs))

    def describe(self) -> str:
        """Return the rungs."""
        rungs = [f"{self.count(n)} of {self.shape(n).steps:g}" for n in range(self.rungs)]
        return (
            f"{self.candidates} candidates halved over {self.rungs} rungs, all charged: "
            f"{', '.join(rungs)} of the steps"
        )
