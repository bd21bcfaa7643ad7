"""Interface of search strategies: explicit state, `init / ask / tell`, and a planned privacy cost.

    state = strategy.init()
    while (round := strategy.ask(state, space, stream)) is not None:
        state = strategy.tell(state, round, fitness of every genotype of the round)
    strategy.best(state)

A strategy draws all its randomness from the given stream, by round. The same keys and the same
fitness therefore give the same search, so that a resumed run can repeat it.

`list_releases` states the privacy cost of the whole search before any trial. Q is one candidate
run: one training on the training records, and one noisy score on the validation records.

| strategy | charged releases | reason |
|---|---|---|
| `fixed` | one training | nothing is compared |
| `rs` | one repeat-and-select of Q | a secret number of runs; only the winner is released |
| `mgrs` | one repeat-and-select per generation | composition; only winners are passed on |
| `paas` | generations x population copies of Q | composition; equal candidates count once |
| `portions` | the worst of its trainings | they read disjoint records (Yu et al.) |
| `ahead`, `insured` | low-budget evaluations, one training | composition on the same records |
| `grid` | every candidate at every level, one training | composition on the same records |
| `stw` | none | the search is not private: declared-public data only |

docs/extending.md explains how to write a strategy.

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
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.names import ALIASES, show_strategy

if TYPE_CHECKING:
    from pasearch.accounting.published_bounds import PublishedBound
    from pasearch.data.front_ends import FrontEnd
    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.space import Genotype, Space
    from pasearch.training.metrics import Metric
    from pasearch.training.settings import Settings


PORTIONS_RULE = "disjoint portions"
"""Selection rule for candidates that are trained on disjoint subsets of the records."""

Fitness = tuple[float, int]
"""Pair (noisy score, random tie-break) of a trial; the score of a failed trial is -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShape:
    """Length and noise of the trainings of a round, relative to a full training.

    Args:
        steps: Fraction of the steps of a full training, in (0, 1]. The noise is unchanged, so the
            training costs less.
        mu: Fraction of the mu of a full training (Gaussian DP), in (0, 1]. The number of steps is
            unchanged, and the noise is larger.
    """

    steps: float = 1.0
    mu: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "mu"):
            object.__setattr__(self, name, check_probability(name, getattr(self, name)))

    def shorten_steps(self, steps: int) -> int:
        """Return the number of steps of a training in this round, at least 1."""
        return max(1, round(steps * self.steps))


FULL_ROUND = RoundShape()  # shape of a round of full trainings

EventOfRound = Callable[[RoundShape], Event]
"""Function from a round's shape to the event of one candidate's access to a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRound:
    """Round of trials, which may run in parallel because none depends on another's result.

    Args:
        number: Index of the round, from 0.
        genotypes: Genotypes of the candidates, possibly with repeats.
        shape: Length and noise of the trainings; one of the shapes of `list_releases`.
    """

    number: int
    genotypes: tuple[Genotype, ...]
    shape: RoundShape = FULL_ROUND


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """State of a search: the finished rounds and the fitness of their candidates."""

    rounds: tuple[TrialRound, ...] = ()
    fitness: tuple[tuple[Fitness, ...], ...] = ()

    def winner(self, number: int) -> int:
        """Return the index of the candidate with the highest fitness in a round."""
        fitness = self.fitness[number]
        return max(range(len(fitness)), key=fitness.__getitem__)


class Strategy(NamedComponent, ABC):
    """Base class of search strategies, which are frozen dataclasses of their settings."""

    selection_rule: ClassVar[str]
    """Selection rule, a key of `planning.SELECTION_RULES`; it determines the privacy cost."""
    request_options: ClassVar[tuple[str, ...]] = ()
    """Options of a request that the strategy accepts, the arguments of `from_request`."""
    internal_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that no option sets. Descriptions and JSON contain those that were changed."""
    scored: ClassVar[bool] = True  # whether candidates are compared
    scored_on: ClassVar[str] = "validation"
    """Partition whose records score the candidates: "validation" or "train"."""
    memoised: ClassVar[bool] = False
    """Whether a repeated candidate reuses its result; allowed only with rule "composition"."""
    private_trials: ClassVar[bool] = True  # whether trials are trained with differential privacy

    @property
    def look_share(self) -> float | None:
        """Fraction of mu of each low-budget evaluation; None if the strategy makes none.

        The winner is then retrained on the same records with the remaining budget.
        """
        return None

    @property
    def score_share(self) -> float | None:
        """Fraction of mu of each score, if candidates are scored on training records."""
        return None

    def ranking_metric(self, metric: Metric) -> Metric:
        """Return the metric that ranks candidates, given the metric of the test."""
        return metric

    @property
    def needs_validation(self) -> bool:
        """Whether candidates are compared on separate validation records."""
        return self.scored and self.scored_on == "validation"

    @property
    def retrains_winner(self) -> bool:
        """Whether the winner is retrained even if no records are reserved for the search."""
        return self.look_share is not None or not self.private_trials

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a selection rule without a privacy proof."""
        super().__init_subclass__(**options)
        check_selection_rule(cls)

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        """Make the strategy from options of a request, those in `request_options`."""
        return cls(**given)

    @classmethod
    def from_values(cls, **values: Any) -> Self:
        """Make the strategy from the plain values of its fields, as `to_json` returns them."""
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `strategy_from_json` restores the strategy."""
        shown = {**self._fields(unasked=False), **self.changed_settings()}
        return {
            "name": self.name,
            **{name: _to_plain_values(value) for name, value in shown.items()},
        }

    def changed_settings(self) -> dict[str, float]:
        """Return the fields in `internal_settings` that differ from their defaults."""
        usual = {each.name: each.default for each in fields(self)}  # pyright: ignore[reportArgumentType]
        return {n: v for n, v in self._fields(unasked=True).items() if v != usual[n]}

    def _fields(self, *, unasked: bool) -> dict[str, Any]:
        """Return the fields that are, or are not, in `internal_settings`."""
        names = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType]
        return {n: getattr(self, n) for n in names if (n in self.internal_settings) is unasked}

    def describe_changed_settings(self) -> str:
        """Describe the changed internal settings, each after a semicolon; "" without any."""
        return "".join(f"; {name} {value:g}" for name, value in self.changed_settings().items())

    def summary(self) -> dict[str, Any]:
        """Return the fields of `result.json` that describe the strategy."""
        return {"name": self.name, "rule": self.selection_rule, "trainings": self.describe()}

    @property
    def hides_trials(self) -> bool:
        """Whether the number of trials and all losing trials must stay in `private/` (rule 10)."""
        return self.selection_rule in ("repeat-and-select", PORTIONS_RULE)

    @property
    def candidate_count(self) -> int | None:
        """Number of compared candidates, which is public; None if it is random."""
        return None

    @property
    def trial_distributions(self) -> tuple[RunCountDistribution, ...]:
        """Distribution of the secret number of trainings of each round; empty if it is public."""
        return ()

    def within(self, space: Space) -> Self:
        """Return the strategy adapted to a space, such as to its number of candidates."""
        return self

    @property
    def trials(self) -> int:
        """Number of trials in the result, if they may be shown."""
        return round(self.expected_trainings)

    def possible_winners(self, scores: Sequence[float]) -> list[int]:
        """Return the indices of the trials that `best` may have chosen; several if scores tie.

        Args:
            scores: Noisy score counts of all trials, in order; minus infinity for a failed one.
        """
        return [place for place, score in enumerate(scores) if score == max(scores)]

    @abstractmethod
    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the plan lines of the search on one partition.

        Args:
            price: Function from a round's shape to the event of one access to the partition.
            partition: Name of the partition.
            noun: "training" or "score", with which the names of the lines begin.
        """

    @abstractmethod
    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return the name of the line and the key of the release to which a trial is charged.

        Trials with the same line and key are charged once.

        Args:
            noun: "training" or "score".
            number: Index of the round.
            trial: Index of the trial over all rounds.
        """

    @property
    def portions(self) -> int:
        """Number of disjoint subsets of the training records, one per candidate; 1: no subsets."""
        return 1

    def partition_of_trial(self, partition: str, trial: int) -> str:
        """Return the name of the partition, or of its subset, on which a trial is trained."""
        return partition

    @abstractmethod
    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the next round of trials; None at the end of the search."""

    @property
    @abstractmethod
    def expected_trainings(self) -> float:
        """Expected number of trainings, which is public."""

    @property
    def expected_work(self) -> float:
        """Expected total number of steps, divided by that of a full training."""
        return self.expected_trainings

    @abstractmethod
    def describe(self) -> str:
        """Describe the trainings of the search in one line that names every setting."""

    def list_published_bounds(
        self, cost: Callable[[RoundShape], float], *, delta: float, validation: int
    ) -> list[PublishedBound]:
        """Return the published bounds of the search's privacy cost; they are never charged.

        Args:
            cost: Function from a round's shape to the epsilon of one training; 0 without noise.
            delta: Delta of the run.
            validation: Number of records that candidates are scored on.
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
        """Return the winner as (index of the round, index in it): the fittest of the last round."""
        last = len(state.rounds) - 1
        return last, state.winner(last)

    def single_candidate(self, space: Space) -> Candidate | None:
        """Return the only candidate; None if candidates are drawn from the space."""
        return None

    def settings(self, space: Space) -> list[Settings]:
        """Return every combination of recipe settings that a candidate may have."""
        only = self.single_candidate(space)
        return space.settings() if only is None else [only.settings]

    def front_ends(self, space: Space) -> tuple[FrontEnd, ...]:
        """Return every feature extractor that a candidate may have."""
        only = self.single_candidate(space)
        return space.front_ends() if only is None else (only.front_end,)

    def quantile(self, share: float) -> int:
        """Return the number of trainings that is not exceeded with probability `share`."""
        return round(self.expected_trainings)


def _to_plain_values(value: Any) -> Any:
    """Convert the value of a field to JSON values."""
    if isinstance(value, tuple):
        return [_to_plain_values(each) for each in value]
    return value.to_json() if isinstance(value, RunCountDistribution) else value


def check_candidate_count(candidates: float) -> int:
    """Return a number of candidates as an integer, after checks."""
    number = check_positive("candidates", candidates)
    if not number.is_integer():
        raise UsageError(f"candidates is {candidates}: expected an integer, 1 or above.")
    return check_positive_integer("candidates", int(number), most=MAX_RUNS)


def check_multiple_candidates(candidates: object) -> None:
    """Refuse fewer than two candidates.

    Raises:
        UsageError: The value is not an integer, or below 2.
    """
    if not check_positive_integer("candidates", candidates) >= 2:
        raise UsageError(
            f"candidates is {candidates}: expected 2 or more to choose among; for a single one use "
            "`strategy=fixed`."
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

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the line of one training; there is no score."""
        return [PlannedRelease(name=noun, partition=partition, event=price(FULL_ROUND), count=1)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return the key of the only line."""
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
    """Make a strategy from its name and the options of a request.

    Args:
        name: Name of the strategy, one of `STRATEGIES` or an alias.
        settings: Values of options in `request_options` of the strategy; None means the default.

    Raises:
        UsageError: Unknown name, or a setting that the strategy does not have.
    """
    if (kind := STRATEGIES.find(ALIASES.get(name, name))) is None:
        known = ("auto", *map(show_strategy, STRATEGIES), "paas-paper")
        raise UsageError(
            f"Strategy {name!r} is unknown: expected one of {', '.join(known)}."
            f"{suggest_name(name, known)}"
        )
    given = {setting: value for setting, value in settings.items() if value is not None}
    if unknown := [setting for setting in given if setting not in kind.request_options]:
        has = ", ".join(f"`{each}=`" for each in kind.request_options) or "no settings"
        raise UsageError(f"Strategy {name!r} has no option `{unknown[0]}=`: it has {has}.")
    return kind.from_request(**given)


def strategy_from_json(values: object) -> Strategy:
    """Restore a strategy from the values that `to_json` returned.

    Raises:
        UsageError: An unknown strategy or field, or an invalid value.
    """
    kind, given = resolve_named_type("strategy", STRATEGIES.kinds(), values)
    return kind.from_values(**given)
