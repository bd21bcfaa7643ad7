"""What a search strategy is: explicit state, `init / ask / tell`, and a price known beforehand.

    state = strategy.init()
    while (round := strategy.ask(state, space, stream)) is not None:
        state = strategy.tell(state, round, fitness of every genotype of the round)
    strategy.best(state)

A strategy draws all its randomness from the stream it is given, by round, so that the same keys
and the same fitness give the same search: that is all a resumed run needs.

`lines` states what the whole search costs before any trial exists. Q below is one candidate run:
one training (and, on the validation records, one noisy score).

| strategy | training records | why |
|---|---|---|
| `fixed` | one training | nothing is compared |
| `rs` | repeat-and-select of Q | K from a fixed law, the winner only (Papernot and Steinke 2022) |
| `mgrs` | one repeat-and-select a generation, composed | the next one sees released winners only |
| `paas` | generations x population copies of Q | adaptive, so composed; equal ones are one |
| `portions` | the worst of its trainings | each has its own records (Yu et al.) |
| `ahead`, `insured` | short trials, then one training | composed, on the same records |
| `grid` | every candidate at every level, then one training | composed, on the same records |
| `stw` | nothing | the search is not private: declared-public data only |

A strategy is one file: docs/extending.md.

Source: docs/rules.md, rules 8 and 10. Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import (
    check_positive,
    check_positive_integer,
    check_probability,
    resolve_named_type,
)
from pasearch.accounting.events import Event
from pasearch.accounting.selection import MAX_RUNS, RunCountDistribution
from pasearch.errors import UsageError, suggest_name
from pasearch.planning import check_selection_rule
from pasearch.registry import NamedComponent, Registry
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import Line

if TYPE_CHECKING:
    from pasearch.accounting.published_bounds import PublishedBound
    from pasearch.data.front_ends import FrontEnd
    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.space import Genotype, Space
    from pasearch.training.metrics import Metric
    from pasearch.training.settings import Settings


PORTIONS_RULE = "disjoint portions"
"""The selection rule under which every candidate has records of its own."""

Fitness = tuple[float, int]
"""(noisy score, the trial's own tie-break); a failed trial scores minus infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """How long the trainings of a round are: all of a round that changes their price.

    Args:
        steps: How much of a whole training each of them is, in (0, 1]. It has the noise of a whole
            one and fewer steps, so it costs less.
        mu: Which share of the dial of a whole one they have, in (0, 1]: all steps, and more noise.
    """

    steps: float = 1.0
    mu: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "mu"):
            object.__setattr__(self, name, check_probability(name, getattr(self, name)))

    def shortened(self, steps: int) -> int:
        """Return how many steps of so many are made, one at least."""
        return max(1, round(steps * self.steps))


FULL_ROUND = RoundShape()
"""A round of whole trainings."""

EventOfRound = Callable[[RoundShape], Event]
"""The price of one candidate's access to a partition, in a round of that shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRound:
    """Candidates that may be trained side by side: none depends on another's outcome.

    Args:
        number: Rounds are counted from 0.
        genotypes: The candidates to train, repeats included.
        shape: How long their trainings are, as `lines` asked the price of.
    """

    number: int
    genotypes: tuple[Genotype, ...]
    shape: RoundShape = FULL_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """Everything a strategy knows: the rounds so far and the fitness of their candidates."""

    rounds: tuple[TrialRound, ...] = ()
    fitness: tuple[tuple[Fitness, ...], ...] = ()

    def winner(self, number: int) -> int:
        """Return the index of the fittest candidate of a round."""
        fitness = self.fitness[number]
        return max(range(len(fitness)), key=fitness.__getitem__)


class Strategy(NamedComponent, ABC):
    """A search strategy: a frozen dataclass of its settings. See the module for the protocol."""

    selection_rule: ClassVar[str]
    """How candidates are chosen among, which decides the price: `planning.SELECTION_RULES`."""
    request_options: ClassVar[tuple[str, ...]] = ()
    """What of candidates, generations, law and max_candidates a request may set; see
    `from_request`."""
    internal_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that no request sets: told, in words and JSON, only where they are not as usual."""
    scored: ClassVar[bool] = True
    """Whether candidates are compared."""
    scored_on: ClassVar[str] = "validation"
    """The partition that scores are of: "validation", or "train", which then pays for them too."""
    memoised: ClassVar[bool] = False
    """Whether a repeated candidate re-uses its result (allowed under composition only)."""
    private_trials: ClassVar[bool] = True
    """Whether trials are trained with differential privacy."""

    @property
    def look_share(self) -> float | None:
        """The share of mu that each look has, where the winner is trained anew on the same records.

        It has what is left. None where nothing of the kind is done.
        """
        return None

    @property
    def score_share(self) -> float | None:
        """The share of mu that each score has, where scores are of training records."""
        return None

    def ranking_metric(self, metric: Metric) -> Metric:
        """Return by what candidates are compared, where the test is reported by a metric."""
        return metric

    @property
    def needs_validation(self) -> bool:
        """Whether records are kept apart that candidates are compared on."""
        return self.scored and self.scored_on == "validation"

    @property
    def retrains_winner(self) -> bool:
        """Whether the winner is trained anew, whatever records the search reads."""
        return self.look_share is not None or not self.private_trials

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a rule that has no theorem."""
        super().__init_subclass__(**options)
        check_selection_rule(cls)

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        """Return it with a request's settings: those of `takes` that were given.

        A subclass names them, with the defaults of a request.
        """
        return cls(**given)

    @classmethod
    def from_values(cls, **values: Any) -> Self:
        """Return it from the plain values of its fields, as `to_json` writes them."""
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `strategy_from_json` makes it again."""
        told = {**self._fields(unasked=False), **self.changed_settings()}
        return {
            "name": self.name,
            **{name: _to_plain_values(value) for name, value in told.items()},
        }

    def changed_settings(self) -> dict[str, float]:
        """Return the fields of `internal_settings` that are not as usual."""
        usual = {each.name: each.default for each in fields(self)}  # pyright: ignore[reportArgumentType]
        return {n: v for n, v in self._fields(unasked=True).items() if v != usual[n]}

    def _fields(self, *, unasked: bool) -> dict[str, Any]:
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        return {n: getattr(self, n) for n in names if (n in self.internal_settings) is unasked}

    def describe_changed_settings(self) -> str:
        """Return them in words, behind a semicolon; nothing where there are none."""
        return "".join(f"; {name} {value:g}" for name, value in self.changed_settings().items())

    def summary(self) -> dict[str, Any]:
        """Return what `result.json` says of it."""
        return {"name": self.name, "rule": self.selection_rule, "trainings": self.describe()}

    @property
    def hides_trials(self) -> bool:
        """Whether the number of trials and all losing ones must stay in `private/` (rule 10)."""
        return self.selection_rule in ("repeat-and-select", PORTIONS_RULE)

    @property
    def candidate_count(self) -> int | None:
        """How many candidates are compared, a public constant; None where that is drawn."""
        return None

    @property
    def trial_distributions(self) -> tuple[RunCountDistribution, ...]:
        """The law of each round's secret number of trainings, where it has one."""
        return ()

    def within(self, space: Space) -> Self:
        """Return it for a space: what it plans may follow from how many candidates that has."""
        return self

    @property
    def trials(self) -> int:
        """How many trials are told of, where they may be shown."""
        return round(self.expected_trainings)

    def possible_winners(self, scores: Sequence[float]) -> list[int]:
        """Return which trials `best` may have taken, by the scores of all; equal ones are several.

        Args:
            scores: Noisy points of every trial, in order; minus infinity of one that failed.
        """
        return [place for place, score in enumerate(scores) if score == max(scores)]

    @abstractmethod
    def lines(self, price: EventOfRound, partition: str, noun: str) -> list[Line]:
        """Return what the search is charged on one partition.

        Args:
            price: Of one candidate's access to the partition, in a round of some shape.
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

    def partition_of_trial(self, partition: str, trial: int) -> str:
        """Return the name of the slots that a trial is trained on."""
        return partition

    @abstractmethod
    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the next round, or None when the search is over."""

    @property
    @abstractmethod
    def expected_trainings(self) -> float:
        """The expected number of trainings: a public constant."""

    @property
    def expected_work(self) -> float:
        """How many whole trainings their steps are together, on average."""
        return self.expected_trainings

    @abstractmethod
    def describe(self) -> str:
        """Return the law of the number of trainings, one line that names every setting."""

    def claims(
        self, cost: Callable[[RoundShape], float], *, delta: float, validation: int
    ) -> list[PublishedBound]:
        """Return what the papers would charge for the search; never charged.

        Args:
            cost: Epsilon of one training, in a round of some shape; 0 where it has no noise.
            delta: Of the run.
            validation: How many records candidates are scored on.
        """
        return []

    def init(self) -> SearchState:
        """Return the state before the first round."""
        return SearchState()

    def tell(
        self, state: SearchState, finished: TrialRound, fitness: tuple[Fitness, ...]
    ) -> SearchState:
        """Return the state after a round."""
        return SearchState(rounds=(*state.rounds, finished), fitness=(*state.fitness, fitness))

    def best(self, state: SearchState) -> tuple[int, int]:
        """Return (round, index) of the candidate that won: the fittest of the last round."""
        last = len(state.rounds) - 1
        return last, state.winner(last)

    def single_candidate(self, space: Space) -> Candidate | None:
        """Return the one candidate that is trained whatever happens; None if they are drawn."""
        return None

    def settings(self, space: Space) -> list[Settings]:
        """Return every combination of recipe settings that a candidate may have."""
        only = self.single_candidate(space)
        return space.settings() if only is None else [only.settings]

    def front_ends(self, space: Space) -> tuple[FrontEnd, ...]:
        """Return every front end that a candidate may have."""
        only = self.single_candidate(space)
        return space.front_ends() if only is None else (only.front_end,)

    def quantile(self, share: float) -> int:
        """Return a number of trainings not exceeded with probability `share`."""
        return round(self.expected_trainings)


def _to_plain_values(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain_values(each) for each in value]
    return value.to_json() if isinstance(value, RunCountDistribution) else value


def check_candidate_count(candidates: float) -> int:
    """Return a request's number of candidates, which a strategy counts."""
    number = check_positive("candidates", candidates)
    if not number.is_integer():
        raise UsageError(f"candidates is {candidates}: expected a whole number, 1 or above.")
    return check_positive_integer("candidates", int(number), most=MAX_RUNS)


def check_multiple_candidates(candidates: object) -> None:
    """Refuse fewer than two candidates.

    Raises:
        UsageError: It is no whole number, or below 2.
    """
    if not check_positive_integer("candidates", candidates) >= 2:
        raise UsageError(
            f"candidates is {candidates}: expected 2 or more to choose among; a single one needs "
            "no choice: `strategy=fixed`."
        )


STRATEGIES = Registry(
    "strategy", Strategy, "pasearch.search.randomized",
    "pasearch.search.genetic", "pasearch.search.portions", "pasearch.search.successive_halving",
    "pasearch.search.grid",
)  # fmt: skip


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrategy(Strategy):
    """Train the space's default candidate once, with the whole budget.

    Guarantee: the candidate is chosen before data is read, so only its training is charged.
    """

    name: ClassVar[str] = "fixed"
    selection_rule: ClassVar[str] = "none"
    scored: ClassVar[bool] = False

    def lines(self, price: EventOfRound, partition: str, noun: str) -> list[Line]:
        """Return one training; there is no score."""
        return [Line(name=noun, partition=partition, event=price(FULL_ROUND), count=1)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return the one line's key."""
        return noun, "only"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        return None if state.rounds else TrialRound(number=0, genotypes=(space.default_genotype(),))

    def single_candidate(self, space: Space) -> Candidate:
        return space.candidate(space.default_genotype())

    @property
    def expected_trainings(self) -> float:
        return 1.0

    def describe(self) -> str:
        return "one training of the space's default architecture; nothing is compared"


def make_strategy(name: str, **settings: Any) -> Strategy:
    """Return a strategy.

    Args:
        name: One of `STRATEGIES`.
        settings: candidates, generations, rungs, law, max_candidates, shares and repeats, where the
            strategy takes them; None leaves one as usual.

    Raises:
        UsageError: An unknown name, or a setting that the strategy does not have.
    """
    if (kind := STRATEGIES.find(name)) is None:
        raise UsageError(
            f"Strategy {name!r} is not known: expected one of auto, {', '.join(STRATEGIES)}, "
            f"paas-paper.{suggest_name(name, ('auto', *STRATEGIES, 'paas-paper'))}"
        )
    given = {setting: value for setting, value in settings.items() if value is not None}
    if unknown := [setting for setting in given if setting not in kind.request_options]:
        has = ", ".join(f"`{each}=`" for each in kind.request_options) or "no settings"
        raise UsageError(f"Strategy {name!r} takes no `{unknown[0]}=`: it has {has}.")
    return kind.from_request(**given)


def strategy_from_json(values: object) -> Strategy:
    """Read what a strategy's `to_json` wrote.

    Raises:
        UsageError: An unknown strategy, a field it lacks, or a value that it refuses.
    """
    kind, given = resolve_named_type("strategy", STRATEGIES.kinds(), values)
    return kind.from_values(**given)
