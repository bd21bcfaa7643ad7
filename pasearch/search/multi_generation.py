"""MGRS, multi-generation randomized search: one randomized search a generation.

    generation 1:      K_1 candidates, uniform in the space
    generation i > 1:  K_i candidates, each the released winner of generation i - 1, mutated, with
                       probability p; or a fresh uniform draw with probability 1 - p
    price:             the repeat-and-selects of the generations, composed

Given the winner, the candidates of a generation are i.i.d. from a law that is public by then, so
each generation is a repeat-and-select on its own. Losing trials are never looked at again.

Source: Bao et al., section VIII-A, "Multi-Generation Randomized Search", and IX-A (means 40, 20
and 10; mutation .7, resampling .3). Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.events import Event, RepeatAndSelect
from pasearch.accounting.selection import Law
from pasearch.errors import UsageError
from pasearch.runs.ledger import Line
from pasearch.search.genetic import mutate
from pasearch.search.randomized import draw_count
from pasearch.search.strategy import Round, State, Strategy

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.spaces.space import Genotype, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGenerationRandomizedSearch(Strategy):
    """One repeat-and-select a generation, composed; winners alone carry over.

    Args:
        laws: The law of the number of trainings of each generation.
        mutation: Probability p that a candidate is the winner, mutated.

    Guarantee: the winners of all generations, together, cost the composition of their
    `RepeatAndSelect` events.
    """

    name: ClassVar[str] = "mgrs"
    way: ClassVar[str] = "repeat-and-select"
    laws: tuple[Law, ...]
    mutation: float = 0.7

    def __post_init__(self) -> None:
        if not self.laws:
            raise UsageError("mgrs has no generation: expected the law of one at least.")
        if not 0.0 <= self.mutation <= 1.0:
            raise UsageError(f"mutation is {self.mutation!r}: expected a number in [0, 1].")

    def lines(self, event: Event, partition: str, noun: str) -> list[Line]:
        """Return one repeat-and-select a generation."""
        return [
            Line(
                name=self.charge(noun, number, 0)[0],
                partition=partition,
                event=RepeatAndSelect(event=event, law=law),
                count=1,
            )
            for number, law in enumerate(self.laws)
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key a generation: its trials together are one release."""
        return f"{noun}, generation {number + 1}", "search"

    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        """Return the next generation."""
        number = len(state.rounds)
        if number == len(self.laws):
            return None
        count = draw_count(self.laws[number], stream.child("count", number))
        source = stream.child("candidates", number)
        if not number:
            generator = source.generator()
            return Round(number=0, genotypes=tuple(space.draw(generator) for _ in range(count)))
        winner = state.rounds[-1].genotypes[state.winner(number - 1)]
        genotypes = tuple(
            self._descend(winner, space, source.child(index)) for index in range(count)
        )
        return Round(number=number, genotypes=genotypes)

    def _descend(self, winner: Genotype, space: Space, stream: Stream) -> Genotype:
        generator = stream.generator()
        if generator.random() < self.mutation:
            return mutate(winner, space, stream.child("mutation"))
        return space.draw(generator)

    @property
    def expected_trainings(self) -> float:
        """The sum of the laws' means."""
        return sum(law.mean for law in self.laws)

    def quantile(self, share: float) -> int:
        """Return a bound by the union over the generations."""
        return sum(law.quantile(1.0 - (1.0 - share) / len(self.laws)) for law in self.laws)

    def describe(self) -> str:
        """Return the laws."""
        return "; then ".join(law.describe() for law in self.laws)
