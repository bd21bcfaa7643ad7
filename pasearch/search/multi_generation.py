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
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import whole
from pasearch.accounting.events import RepeatAndSelect
from pasearch.accounting.selection import Law
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import Line
from pasearch.search.genetic import mutated
from pasearch.search.randomized import Secret, check_mean, draw_count, law_asked
from pasearch.search.strategy import STRATEGIES, WHOLE, Round, RoundPrice, State

if TYPE_CHECKING:
    from pasearch.spaces.space import Genotype, Space


MOST_HALVINGS = 30
"""The most generations: each has half of the trainings of the one before."""


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGenerationRandomizedSearch(Secret):
    """One repeat-and-select a generation, composed; winners alone carry over.

    Args:
        laws: The law of the number of trainings of each generation.
        mutation: Probability p that a candidate is the winner, mutated.

    Guarantee: the winners of all generations, together, cost the composition of their
    `RepeatAndSelect` events.
    """

    name: ClassVar[str] = "mgrs"
    takes: ClassVar[tuple[str, ...]] = ("candidates", "generations", "law", "max_candidates")
    unasked: ClassVar[tuple[str, ...]] = ("mutation",)
    printed: ClassVar[str] = (
        "the paper prints 8.53 for its settings, this formula gives 9.419: not reproduced"
    )
    laws: tuple[Law, ...]
    mutation: float = 0.7

    def __post_init__(self) -> None:
        if not self.laws:
            raise UsageError("mgrs has no generation: expected the law of one at least.")
        if not 0.0 <= self.mutation <= 1.0:
            raise UsageError(f"mutation is {self.mutation!r}: expected a number in [0, 1].")

    @classmethod
    def asked(  # pyright: ignore[reportIncompatibleMethodOverride] - of `takes` alone
        cls,
        candidates: float = 40.0,
        generations: int = 3,
        law: str = "geometric",
        max_candidates: int | None = None,
    ) -> Self:
        """Return the search whose first generation has so many trainings in the mean.

        Every next one has half of the one before, each at most `max_candidates` (priced).
        """
        check_mean(candidates)
        count = whole("generations", generations, most=MOST_HALVINGS)
        means = [candidates / 2**number for number in range(count)]
        if law != "poisson" and not means[-1] > 1:
            raise UsageError(
                f"candidates is {candidates:g}: expected above {2 ** (count - 1)}, since its mean "
                f"is halved in each of {count} generations and the last must be above 1."
            )
        return cls(laws=tuple(law_asked(law, mean, max_candidates) for mean in means))

    @classmethod
    def from_values(cls, **values: Any) -> Self:
        laws = values["laws"]
        if not isinstance(laws, list):
            raise UsageError(f"Strategy {cls.name!r} has laws {laws!r}: expected a list of laws.")
        return cls(**{**values, "laws": tuple(Law.from_json(each) for each in laws)})

    @property
    def counts(self) -> tuple[Law, ...]:
        return self.laws

    def lines(self, price: RoundPrice, partition: str, noun: str) -> list[Line]:
        """Return one repeat-and-select a generation."""
        event = price(WHOLE)
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
            return mutated(winner, space, stream.child("mutation"))
        return space.draw(generator)

    @property
    def expected_trainings(self) -> float:
        return sum(law.mean for law in self.laws)

    def quantile(self, share: float) -> int:
        """Return a bound by the union over the generations."""
        return sum(law.quantile(1.0 - (1.0 - share) / len(self.laws)) for law in self.laws)

    def words(self) -> str:
        return "; then ".join(law.describe() for law in self.laws) + self.unusual_words()
