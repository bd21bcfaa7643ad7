"""RS, randomized search: K independent candidates, the best noisy score wins.

    K ~ law (fixed beforehand, drawn once, kept secret);  a_1 ... a_K i.i.d. uniform in the space;
    train and score each;  release the weights of the winner only.

The paper charges Gupta et al.'s theorem (Eq. 9), which needs a pure-DP base. We charge repeat-and-
select (Papernot and Steinke 2022), by Renyi or by privacy profile, whichever is less. Nothing is
memoised, warm-started or deduplicated.

Source: Bao et al., section VIII-A, "Randomized Search".
Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.events import Event, RepeatAndSelect
from pasearch.accounting.selection import Law
from pasearch.runs.ledger import Line
from pasearch.search.strategy import Round, State, Strategy

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream
    from pasearch.spaces.space import Genotype, Space


def draw_count(law: Law, stream: Stream) -> int:
    """Return K, drawn from the law with 52 bits of the stream: the same at every resume."""
    return law.sample(stream.uniform())


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedSearch(Strategy):
    """Repeat-and-select over candidates drawn uniformly from the space.

    Args:
        law: The law of the number of trainings.

    Guarantee: the winner's weights and architecture, together, cost one `RepeatAndSelect`.
    """

    name: ClassVar[str] = "rs"
    way: ClassVar[str] = "repeat-and-select"
    law: Law

    def lines(self, event: Event, partition: str, noun: str) -> list[Line]:
        """Return one repeat-and-select, charged before the first trial."""
        selection = RepeatAndSelect(event=event, law=self.law)
        return [Line(name=noun, partition=partition, event=selection, count=1)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key for all trials: together they are one release."""
        return noun, "search"

    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        """Return all K candidates in one round."""
        if state.rounds:
            return None
        count = draw_count(self.law, stream.child("count"))
        return Round(number=0, genotypes=draw(space, stream.child("candidates"), count))

    @property
    def expected_trainings(self) -> float:
        """The law's mean."""
        return self.law.mean

    def quantile(self, share: float) -> int:
        """Return the law's quantile."""
        return self.law.quantile(share)

    def describe(self) -> str:
        """Return the law."""
        return self.law.describe()


def draw(space: Space, stream: Stream, count: int) -> tuple[Genotype, ...]:
    """Return `count` independent genotypes."""
    generator = stream.generator()
    return tuple(space.draw(generator) for _ in range(count))
