"""What a search strategy is: explicit state, `init / ask / tell`, and a price known beforehand.

    state = strategy.init()
    while (round := strategy.ask(state, space, stream)) is not None:
        state = strategy.tell(state, round, fitness of every genotype of the round)
    strategy.best(state)

A strategy draws all its randomness from the stream it is given, by round, so that the same keys
and the same fitness give the same search: that is all a resumed run needs.

`lines` says what the whole search costs before any trial exists. Q below is one candidate run:
one training (and, on the validation slots, one noisy score).

| strategy | training slots | why |
|---|---|---|
| `fixed` | one training | nothing is compared |
| `rs` | repeat-and-select of Q | K from a fixed law, the winner only (Papernot and Steinke 2022) |
| `mgrs` | one repeat-and-select a generation, composed | the next one sees released winners only |
| `paas` | generations x population copies of Q | adaptive, so composed; repeats are planned for |
| `portions` | the worst of its trainings | each has records of its own (Yu et al.) |
| `stw` | nothing | the search is not private: declared-public data only |

Source: docs/rules.md, rules 8 and 10. Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pasearch.accounting.events import Event
    from pasearch.data.front_ends import FrontEnd
    from pasearch.runs.keys import Stream
    from pasearch.runs.ledger import Line
    from pasearch.spaces.space import Genotype, Space

Settings = tuple[tuple[str, float], ...]
"""What a candidate changes in the recipe; see `spaces.candidate.SETTINGS`."""

PORTIONS = "disjoint portions"
"""The way of choosing in which every candidate has records of its own."""

Fitness = tuple[float, int]
"""(noisy score, the trial's own tie-break); a failed trial scores minus infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Candidates that may be trained side by side: none depends on another's outcome.

    Args:
        number: Rounds are counted from 0.
        genotypes: The candidates to train, repeats included.
    """

    number: int
    genotypes: tuple[Genotype, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything a strategy knows: the rounds so far and the fitness of their candidates."""

    rounds: tuple[Round, ...] = ()
    fitness: tuple[tuple[Fitness, ...], ...] = ()

    def winner(self, number: int) -> int:
        """Return the index of the fittest candidate of a round."""
        fitness = self.fitness[number]
        return max(range(len(fitness)), key=fitness.__getitem__)


class Strategy(ABC):
    """A search strategy: a frozen value. See the module for the protocol."""

    name: ClassVar[str]
    way: ClassVar[str]
    """How candidates are chosen among: none, composition, repeat-and-select, disjoint portions,
    not private."""
    scored: ClassVar[bool] = True
    """Whether candidates are compared, so that validation slots are needed."""
    memoised: ClassVar[bool] = False
    """Whether a repeated candidate re-uses its result (allowed under composition only)."""
    private_trials: ClassVar[bool] = True
    """Whether trials are trained with differential privacy."""

    @property
    def hides_trials(self) -> bool:
        """Whether the number of trials and all losing ones must stay in `private/` (rule 10)."""
        return self.way in ("repeat-and-select", PORTIONS)

    @abstractmethod
    def lines(self, event: Event, partition: str, noun: str) -> list[Line]:
        """Return what the search is charged on one partition.

        Args:
            event: The price of one candidate's access to the partition.
            partition: The partition's name.
            noun: "training" or "score": the first word of the lines' names.
        """

    @abstractmethod
    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return (the line's name, key of the release) for a trial of a round.

        Args:
            noun: "training" or "score".
            number: The round's number.
            trial: The trial's, over all rounds.
        """

    @property
    def portions(self) -> int:
        """Into how many disjoint parts the slots are cut that candidates are trained on."""
        return 1

    def place(self, partition: str, trial: int) -> str:
        """Return the name of the slots that a trial is trained on."""
        return partition

    @abstractmethod
    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        """Return the next round, or None when the search is over."""

    @property
    @abstractmethod
    def expected_trainings(self) -> float:
        """The expected number of trainings: a public constant."""

    @abstractmethod
    def describe(self) -> str:
        """Return the law of the number of trainings, one line."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, "way": self.way, "trainings": self.describe()}

    def init(self) -> State:
        """Return the state before the first round."""
        return State()

    def tell(self, state: State, finished: Round, fitness: tuple[Fitness, ...]) -> State:
        """Return the state after a round."""
        return State(rounds=(*state.rounds, finished), fitness=(*state.fitness, fitness))

    def best(self, state: State) -> tuple[int, int]:
        """Return (round, index) of the candidate that won: the fittest of the last round."""
        last = len(state.rounds) - 1
        return last, state.winner(last)

    def settings(self, space: Space) -> list[Settings]:
        """Return every combination of recipe settings that a candidate may have."""
        return space.settings()

    def front_ends(self, space: Space) -> tuple[FrontEnd, ...]:
        """Return every front end that a candidate may have."""
        return space.front_ends()

    def quantile(self, share: float) -> int:
        """Return a number of trainings not exceeded with probability `share`."""
        return round(self.expected_trainings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Strategy):
    """Train the space's default candidate once, with the whole budget.

    Guarantee: the candidate is chosen before data is read, so only its training is charged.
    """

    name: ClassVar[str] = "fixed"
    way: ClassVar[str] = "none"
    scored: ClassVar[bool] = False

    def lines(self, event: Event, partition: str, noun: str) -> list[Line]:
        """Return one training; there is no score."""
        from pasearch.runs.ledger import Line

        return [Line(name=noun, partition=partition, event=event, count=1)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return the one line's key."""
        return noun, "only"

    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        """Return the default candidate, once."""
        return None if state.rounds else Round(number=0, genotypes=(space.fixed(),))

    def settings(self, space: Space) -> list[Settings]:
        """Return those of the default candidate, the only one there is."""
        return [space.candidate(space.fixed()).settings]

    def front_ends(self, space: Space) -> tuple[FrontEnd, ...]:
        """Return the default candidate's."""
        return (space.candidate(space.fixed()).front_end,)

    @property
    def expected_trainings(self) -> float:
        """One."""
        return 1.0

    def describe(self) -> str:
        """Return the law of the number of trainings."""
        return "one training of the space's default architecture; nothing is compared"
