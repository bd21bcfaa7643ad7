"""Randomized searches RS and MGRS: independent candidates; the best noisy score wins.

    RS      K is drawn once from a data-independent distribution, and kept secret; a_1 ... a_K are
            drawn uniformly from the space; each is trained and scored; only the weights of the
            winner are released
    MGRS    generation 1 is RS; generation i > 1 has K_i candidates, each with probability p a
            mutation of the winner of generation i - 1, otherwise a new uniform draw

Given the previous winner, which is released, the candidates of a generation are independent draws
from one distribution. So each generation is one repeat-and-select, and the generations are
composed. Losing trials are never read again. No result is reused, and no training starts from
another one's weights.

The paper uses a theorem of Gupta et al. (Eq. 9), which requires a pure-DP candidate run. Here the
privacy cost is that of repeat-and-select (Papernot and Steinke 2022), by Renyi divergences or by
privacy profiles, whichever is smaller.

Source: Bao et al., section VIII-A, "Randomized Search" and "Multi-Generation Randomized Search",
and IX-A (means 40, 20 and 10; mutation .7, resampling .3).
Proof: docs/guarantees/repeat-and-select.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.events import RepeatAndSelect
from pasearch.accounting.published_bounds import PublishedBound, bao_equation_9_corrected
from pasearch.accounting.selection import MAX_RUNS, RunCountDistribution
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.genetic import mutate_to_other_candidate
from pasearch.search.strategy import (
    FULL_ROUND,
    STRATEGIES,
    EventOfRound,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
)

if TYPE_CHECKING:
    from pasearch.spaces.space import Genotype, Space


def draw_count(law: RunCountDistribution, stream: Stream) -> int:
    """Draw the number K of trainings from a distribution, by one uniform number of the stream."""
    return law.sample(stream.uniform())


def make_trial_distribution(law: str, mean: float, cap: int | None) -> RunCountDistribution:
    """Make the distribution of the number of trainings.

    Args:
        law: Name of the distribution, such as "geometric".
        mean: Mean number of trainings, already checked.
        cap: Maximum at which the distribution is truncated; None: no maximum.

    Raises:
        UsageError: The maximum is below 2.
    """
    if cap is not None and not cap >= 2:
        raise UsageError(
            f"max_candidates is {cap}: expected 2 or more; a single training needs no selection: "
            "`strategy=fixed`."
        )
    return RunCountDistribution.from_name(law, mean=mean, cap=cap)


def check_mean_trials(candidates: float) -> None:
    """Refuse a mean number of trainings that is at most 1, or too large."""
    if not 1 < candidates <= MAX_RUNS:
        raise UsageError(
            f"candidates is {candidates:g}: expected the mean number of trainings, above 1 (a "
            f"single one needs no selection: `strategy=fixed`) and at most {MAX_RUNS:,}."
        )


class SecretCountStrategy(Strategy):
    """Base class of strategies with a secret number of trainings.

    Guarantee: only the distribution of the number is released.
    """

    selection_rule: ClassVar[str] = "repeat-and-select"
    printed: ClassVar[str] = "the paper prints 3.51 for its settings, this formula gives 3.486"
    """Comparison of the bound's formula with the number that the paper prints."""

    def list_published_bounds(
        self, cost: Callable[[RoundShape], float], *, delta: float, validation: int
    ) -> list[PublishedBound]:
        """Return the published bound (Eq. 9, corrected), which is never charged."""
        if not (epsilon := cost(FULL_ROUND)) > 0.0:
            return []
        return [
            bao_equation_9_corrected(
                acceptable_loss=0.05,
                validation_size=validation,
                failure_probability=0.05,
                runs=[max(1, round(law.mean)) for law in self.trial_distributions],
                epsilon=epsilon,
            ).with_printed_figure(self.printed)
        ]


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedSearch(SecretCountStrategy):
    """RS: repeat-and-select over candidates that are drawn uniformly from the space.

    Args:
        law: Distribution of the number of trainings.

    Guarantee: the winner's weights and architecture together cost one `RepeatAndSelect`.
    """

    name: ClassVar[str] = "rs"
    request_options: ClassVar[tuple[str, ...]] = ("candidates", "law", "max_candidates")
    law: RunCountDistribution

    @classmethod
    def from_request(  # pyright: ignore[reportIncompatibleMethodOverride] - of its options alone
        cls, candidates: float = 10.0, law: str = "geometric", max_candidates: int | None = None
    ) -> Self:
        check_mean_trials(candidates)
        return cls(law=make_trial_distribution(law, candidates, max_candidates))

    @classmethod
    def from_values(cls, **values: Any) -> Self:
        return cls(law=RunCountDistribution.from_json(values["law"]))

    @property
    def trial_distributions(self) -> tuple[RunCountDistribution, ...]:
        return (self.law,)

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the line of one repeat-and-select, which is charged before the first trial."""
        selection = RepeatAndSelect(event=price(FULL_ROUND), law=self.law)
        return [PlannedRelease(name=noun, partition=partition, event=selection, count=1)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return the same key for all trials, because together they are one release."""
        return noun, "search"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        if state.rounds:
            return None
        count = draw_count(self.law, stream.child("count"))
        return TrialRound(
            number=0, genotypes=draw_genotypes(space, stream.child("candidates"), count)
        )

    @property
    def expected_trainings(self) -> float:
        return self.law.mean

    def quantile(self, share: float) -> int:
        return self.law.quantile(share)

    def describe(self) -> str:
        return self.law.describe()


def draw_genotypes(space: Space, stream: Stream, count: int) -> tuple[Genotype, ...]:
    """Draw `count` independent genotypes of a space."""
    generator = stream.generator()
    return tuple(space.draw(generator) for _ in range(count))


MAX_GENERATIONS = 30
"""Maximum number of generations; each has half of the trainings of the previous one."""


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiGenerationRandomizedSearch(SecretCountStrategy):
    """MGRS: one repeat-and-select per generation; only its winner is used in the next generation.

    Args:
        laws: Distribution of the number of trainings, for each generation.
        mutation: Probability p that a candidate is a mutation of the previous winner.

    Guarantee: the winners of all generations together cost the composition of one
    `RepeatAndSelect` per generation.
    """

    name: ClassVar[str] = "mgrs"
    request_options: ClassVar[tuple[str, ...]] = (
        "candidates",
        "generations",
        "law",
        "max_candidates",
    )
    internal_settings: ClassVar[tuple[str, ...]] = ("mutation",)
    printed: ClassVar[str] = (
        "the paper prints 8.53 for its settings, this formula gives 9.419: not reproduced"
    )
    laws: tuple[RunCountDistribution, ...]
    mutation: float = 0.7

    def __post_init__(self) -> None:
        if not self.laws:
            raise UsageError("mgrs has no generation: expected one distribution or more in laws.")
        if not 0.0 <= self.mutation <= 1.0:
            raise UsageError(f"mutation is {self.mutation!r}: expected a number in [0, 1].")

    @classmethod
    def from_request(  # pyright: ignore[reportIncompatibleMethodOverride] - of its options alone
        cls,
        candidates: float = 40.0,
        generations: int = 3,
        law: str = "geometric",
        max_candidates: int | None = None,
    ) -> Self:
        """Make a search from options of a request.

        Args:
            candidates: Mean number of trainings in the first generation; each further generation
                has half of the previous mean.
            generations: Number of generations.
            law: Name of the distribution of the number of trainings.
            max_candidates: Maximum at which each distribution is truncated; None: no maximum.
        """
        check_mean_trials(candidates)
        count = check_positive_integer("generations", generations, most=MAX_GENERATIONS)
        means = [candidates / 2**number for number in range(count)]
        if law != "poisson" and not means[-1] > 1:
            raise UsageError(
                f"candidates is {candidates:g}: expected above {2 ** (count - 1)}, because the "
                f"mean is halved in each of {count} generations and must stay above 1."
            )
        return cls(laws=tuple(make_trial_distribution(law, mean, max_candidates) for mean in means))

    @classmethod
    def from_values(cls, **values: Any) -> Self:
        laws = values["laws"]
        if not isinstance(laws, list):
            raise UsageError(f"Strategy {cls.name!r} has laws {laws!r}: expected a list.")
        return cls(
            **{**values, "laws": tuple(RunCountDistribution.from_json(each) for each in laws)}
        )

    @property
    def trial_distributions(self) -> tuple[RunCountDistribution, ...]:
        return self.laws

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the line of one repeat-and-select per generation."""
        event = price(FULL_ROUND)
        return [
            PlannedRelease(
                name=self.charge(noun, number, 0)[0],
                partition=partition,
                event=RepeatAndSelect(event=event, law=law),
                count=1,
            )
            for number, law in enumerate(self.laws)
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key per generation, because its trials together are one release."""
        return f"{noun}, generation {number + 1}", "search"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        number = len(state.rounds)
        if number == len(self.laws):
            return None
        count = draw_count(self.laws[number], stream.child("count", number))
        source = stream.child("candidates", number)
        if not number:
            return TrialRound(number=0, genotypes=draw_genotypes(space, source, count))
        winner = state.rounds[-1].genotypes[state.winner(number - 1)]
        genotypes = []
        for index in range(count):
            own = source.child(index)
            generator = own.generator()
            descends = generator.random() < self.mutation
            genotypes.append(
                mutate_to_other_candidate(winner, space, own.child("mutation"))
                if descends
                else space.draw(generator)
            )
        return TrialRound(number=number, genotypes=tuple(genotypes))

    @property
    def expected_trainings(self) -> float:
        return sum(law.mean for law in self.laws)

    def quantile(self, share: float) -> int:
        """Return an upper bound of the quantile of the total number of trainings (union bound)."""
        return sum(law.quantile(1.0 - (1.0 - share) / len(self.laws)) for law in self.laws)

    def describe(self) -> str:
        return (
            "; then ".join(law.describe() for law in self.laws) + self.describe_changed_settings()
        )
