r"""PAAS, the genetic privacy-aware architecture search, and STW, its non-private version.

    N <- k uniform candidates                                         (Algorithm 1)
    for each of l generations: train and score N; N <- Evolve(N) except after the last
    return the fittest of the last generation                         (here: of all generations)

    Evolve: N_alpha <- the fraction alpha of N with the best scores   (Algorithm 2)
            N_beta <- a random fraction beta of N \ N_alpha
            k children, each the crossover of two parents of N_alpha + N_beta, mutated with
            probability p_mu

The paper prints N_t for N_alpha and uses a union of sets, which may loop forever on a small space;
this implementation uses a multiset. The paper does not state alpha, beta and p_mu: here they are
.4, .1 and .2. A repeated candidate gives no new information, so a child that repeats one is mutated
again. If it still repeats one, the result of the earlier trial is reused. The number of such trials
depends on the data, so the planned maximum is charged: k l trainings, or one per candidate of a
smaller space. The selection of the returned candidate is post-processing of released scores.
Crossover and mutation are those of the package DEAP, on lists of indices.

Source: Bao et al., section VIII-A, Algorithms 1 and 2. Proof: docs/guarantees/accounting.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import check_positive_integer
from pasearch.accounting.events import NoRelease
from pasearch.accounting.published_bounds import PublishedBound, bao_equation_8
from pasearch.accounting.selection import MAX_RUNS
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.strategy import (
    FULL_ROUND,
    STRATEGIES,
    EventOfRound,
    Fitness,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
    check_candidate_count,
)

if TYPE_CHECKING:
    from pasearch.spaces.space import Genotype, Space


MAX_MUTATION_ATTEMPTS = 50
"""Maximum number of mutations of a repeated candidate; after these the repeat is accepted."""

MAX_ENUMERATED_GENOTYPES = 4096
"""Maximum number of genotypes of a space in which different candidates are counted exactly."""

RETURN_CHOICES = ("best", "last")
"""Values of `returns`: the best candidate of all generations, or of the last one (paper)."""


@contextmanager
def seed_global_random(stream: Stream) -> Iterator[None]:
    """Seed Python's global `random`, which DEAP uses, and restore its state afterwards."""
    saved = random.getstate()
    random.seed(int(stream.generator().integers(2**63)))
    try:
        yield
    finally:
        random.setstate(saved)


def cross_genotypes(first: Genotype, second: Genotype, stream: Stream) -> Genotype:
    """Make a child that has each gene from either parent with probability 1/2."""
    from deap import tools

    with seed_global_random(stream):
        child, _ = tools.cxUniform(list(first), list(second), indpb=0.5)
    return tuple(child)


def mutate(genotype: Genotype, space: Space, stream: Stream) -> Genotype:
    """Redraw each gene of a genotype with probability 1 / number of genes."""
    from deap import tools

    if not genotype:
        return genotype
    top = [size - 1 for size in space.sizes]
    with seed_global_random(stream):
        (mutant,) = tools.mutUniformInt(
            list(genotype), low=[0] * len(top), up=top, indpb=1.0 / len(top)
        )
    return tuple(mutant)


def mutate_to_other_candidate(genotype: Genotype, space: Space, stream: Stream) -> Genotype:
    """Mutate a genotype until it encodes another candidate, at most `MAX_MUTATION_ATTEMPTS` times.

    Several attempts may be needed, because a mutation may redraw the same value, or a gene that the
    candidate does not use.
    """
    own = space.candidate(genotype)
    for number in range(MAX_MUTATION_ATTEMPTS):
        mutant = mutate(genotype, space, stream.child("try", number))
        if space.candidate(mutant) != own:
            return mutant
    return genotype


def count_candidates(space: Space, most: int) -> int:
    """Count the different candidates of a space; return `most` if it may have more."""
    if space.count() > MAX_ENUMERATED_GENOTYPES:
        return most
    every = product(*(range(size) for size in space.sizes))
    return min(most, len({space.candidate(each) for each in every}))


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyAwareArchitectureSearch(Strategy):
    """PAAS: genetic search by Algorithms 1 and 2, with the planned number of trainings charged.

    Args:
        population: Number k of candidates per generation.
        generations: Number l of generations.
        alpha: Fraction of the fittest that become parents, in [0, 1].
        beta: Fraction of the others that become parents at random, in [0, 1].
        mutation: Probability p_mu that a child is mutated.
        returns: "best" to return the best candidate of all generations, "last" for that of the last
            generation.
        distinct: Number of different candidates of the space, if it is below k l; else None.

    Guarantee: every trial may be shown; all of them together cost `trainings` copies of one
    candidate run.
    """

    name: ClassVar[str] = "paas"
    selection_rule: ClassVar[str] = "composition"
    request_options: ClassVar[tuple[str, ...]] = ("candidates", "generations", "returns")
    internal_settings: ClassVar[tuple[str, ...]] = (
        "alpha", "beta", "mutation", "returns", "distinct",
    )  # fmt: skip
    memoised: ClassVar[bool] = True
    population: int = 10
    generations: int = 6
    alpha: float = 0.4
    beta: float = 0.1
    mutation: float = 0.2
    returns: str = "best"
    distinct: int | None = None

    def __post_init__(self) -> None:
        check_positive_integer("candidates a generation", self.population)
        check_positive_integer("generations", self.generations)
        if self.distinct is not None:
            check_positive_integer("distinct", self.distinct)
        if self.returns not in RETURN_CHOICES:
            raise UsageError(
                f"returns is {self.returns!r}: expected best (of all generations) or last (of the "
                "last generation, as in the paper)."
            )
        for name in ("alpha", "beta", "mutation"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} is {getattr(self, name)!r}: expected a number in [0, 1].")

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        own: dict[str, Any] = {"returns": given["returns"]} if "returns" in given else {}
        if "candidates" in given:
            own["population"] = check_candidate_count(given["candidates"])
        if "generations" in given:
            own["generations"] = check_positive_integer(
                "generations", given["generations"], most=MAX_RUNS
            )
        return cls(**own)

    @property
    def trials(self) -> int:
        return self.population * self.generations

    def possible_winners(self, scores: Sequence[float]) -> list[int]:
        first = len(scores) - self.population if self.returns == "last" else 0
        return [first + place for place in Strategy.possible_winners(self, scores[first:])]

    @property
    def trainings(self) -> int:
        """Maximum number of trainings: equal candidates are trained once."""
        return self.trials if self.distinct is None else min(self.trials, self.distinct)

    def within(self, space: Space) -> Self:
        """Limit the number of trainings to the number of candidates in a space."""
        found = count_candidates(space, self.trials)
        return replace(self, distinct=found if found < self.trials else None)

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the line of the planned maximum number of trainings, or of scores."""
        return [
            PlannedRelease(
                name=noun, partition=partition, event=price(FULL_ROUND), count=self.trainings
            )
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key per trial: each trial is a separate release."""
        return noun, f"trial {trial}"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        number = len(state.rounds)
        if number == self.generations:
            return None
        source = stream.child("generation", number)
        if number:
            found = self.evolve(state.rounds[-1].genotypes, state.fitness[-1], space, source)
        else:
            generator = source.generator()
            found = tuple(space.draw(generator) for _ in range(self.population))
        seen = {space.candidate(each) for asked in state.rounds for each in asked.genotypes}
        fresh: list[Genotype] = []
        for place, own in enumerate(found):
            retry = source.child("unseen", place)
            for attempt in range(MAX_MUTATION_ATTEMPTS):
                if space.candidate(own) not in seen:
                    break
                own = mutate(own, space, retry.child(attempt))
            seen.add(space.candidate(own))
            fresh.append(own)
        return TrialRound(number=number, genotypes=tuple(fresh))

    def best(self, state: SearchState) -> tuple[int, int]:
        """Return the fittest candidate of all generations, or of the last one (`returns`)."""
        rounds = range(len(state.rounds))
        if self.returns == "last":
            rounds = rounds[-1:]
        number = max(rounds, key=lambda each: state.fitness[each][state.winner(each)][0])
        return number, state.winner(number)

    def evolve(
        self,
        population: tuple[Genotype, ...],
        fitness: tuple[Fitness, ...],
        space: Space,
        stream: Stream,
    ) -> tuple[Genotype, ...]:
        """Return the genotypes of the next generation (Algorithm 2)."""
        generator = stream.generator()
        ranked = sorted(range(len(population)), key=fitness.__getitem__, reverse=True)
        top = max(1, _count_share(self.alpha, len(ranked)))
        rest = ranked[top:]
        lucky = generator.permutation(len(rest))[: _count_share(self.beta, len(rest))]
        parents = [population[i] for i in ranked[:top]] + [population[rest[i]] for i in lucky]
        children = []
        for child in range(len(population)):
            first, second = (parents[int(i)] for i in generator.integers(len(parents), size=2))
            genotype = cross_genotypes(first, second, stream.child("crossover", child))
            if generator.random() < self.mutation:
                genotype = mutate(genotype, space, stream.child("mutation", child))
            children.append(genotype)
        return tuple(children)

    @property
    def expected_trainings(self) -> float:
        return float(self.trainings)

    def describe_changed_settings(self) -> str:
        """Describe the settings that differ from their defaults."""
        names = [name for name in self.changed_settings() if name not in ("returns", "distinct")]
        own = "".join(f"; {name} {getattr(self, name):g}" for name in names)
        return own + "; the best of the last generation is returned" * (self.returns == "last")

    def describe(self) -> str:
        few = "" if self.distinct is None else f" (the space has {self.distinct} candidates)"
        return (
            f"at most {self.generations} generations of {self.population}: "
            f"{self.trainings} trainings, all charged{few}{self.describe_changed_settings()}"
        )

    def list_published_bounds(
        self, cost: Callable[[RoundShape], float], *, delta: float, validation: int
    ) -> list[PublishedBound]:
        """Return the published bound (Eq. 8), which is never charged."""
        if not (epsilon := cost(FULL_ROUND)) > 0.0:
            return []
        return [
            bao_equation_8(epsilon=epsilon, runs=round(self.expected_trainings), delta_prime=delta)
        ]


def _count_share(share: float, count: int) -> int:
    """Multiply a count by a fraction and round up, without an effect of rounding errors."""
    return math.ceil(share * count - 1e-9)


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class StandardWorkflow(PrivacyAwareArchitectureSearch):
    """STW: PAAS with non-private training; its winner is then trained privately.

    Guarantee: none for the search, which is why it runs on declared-public data only.

    Source: Bao et al., sections III-D and VIII-A, "the standard workflow".
    """

    name: ClassVar[str] = "stw"
    selection_rule: ClassVar[str] = "not private"
    private_trials: ClassVar[bool] = False

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the lines of reads without a private release, because the data is public."""
        free = NoRelease()
        return PrivacyAwareArchitectureSearch.list_releases(
            self, lambda shape: free, partition, noun
        )
