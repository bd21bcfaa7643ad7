r"""PAAS, the genetic privacy-aware architecture search, and STW, its non-private twin.

    N <- k uniform candidates                                         (Algorithm 1)
    for each of l generations: train and score N; N <- Evolve(N) unless it was the last
    return the fittest of the last generation

    Evolve: N_alpha <- the top alpha share; N_beta <- a random beta share of N \ N_alpha;
            k children, each the crossover of two parents of N_alpha + N_beta, mutated with
            probability p_mu                                          (Algorithm 2)

The paper prints N_t for N_alpha and takes a union of sets, which can loop for ever on a small
space: ours is a multiset. It states neither alpha, beta nor p_mu: ours are .4, .1 and .2.
Repeats are memoised, but the number of unique candidates depends on the data: the planned
maximum, k l trainings, is charged. Crossover and mutation are DEAP's, on plain lists of indices.

Source: Bao et al., section VIII-A, Algorithms 1 and 2. Proof: docs/guarantees/accounting.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.checks import whole
from pasearch.accounting.claims import Claim, eq8
from pasearch.accounting.events import NoRelease
from pasearch.accounting.selection import MOST_RUNS
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import Line
from pasearch.search.strategy import (
    STRATEGIES,
    WHOLE,
    Fitness,
    Round,
    RoundPrice,
    RoundShape,
    State,
    Strategy,
    whole_candidates,
)

if TYPE_CHECKING:
    from pasearch.spaces.space import Genotype, Space


@contextmanager
def global_random(stream: Stream) -> Iterator[None]:
    """Lend DEAP, which uses Python's global `random`, a keyed state; give the old one back."""
    saved = random.getstate()
    random.seed(int(stream.generator().integers(2**63)))
    try:
        yield
    finally:
        random.setstate(saved)


def crossover(first: Genotype, second: Genotype, stream: Stream) -> Genotype:
    """Return a child that has each gene from either parent with probability 1/2."""
    from deap import tools

    with global_random(stream):
        child, _ = tools.cxUniform(list(first), list(second), indpb=0.5)
    return tuple(child)


def mutate(genotype: Genotype, space: Space, stream: Stream) -> Genotype:
    """Return the genotype with each gene redrawn with probability 1 / genes."""
    from deap import tools

    if not genotype:
        return genotype
    top = [size - 1 for size in space.sizes]
    with global_random(stream):
        (mutant,) = tools.mutUniformInt(
            list(genotype), low=[0] * len(top), up=top, indpb=1.0 / len(top)
        )
    return tuple(mutant)


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyAwareArchitectureSearch(Strategy):
    """PAAS: Algorithms 1 and 2, composed over its planned maximum of trainings.

    Args:
        population: k, candidates a generation.
        generations: l.
        alpha: Share of the fittest that become parents.
        beta: Share of the others that become parents, at random.
        mutation: p_mu, the probability that a child is mutated.

    Guarantee: every trial may be shown; all of them together cost `population * generations`
    copies of one candidate run.
    """

    name: ClassVar[str] = "paas"
    selection_rule: ClassVar[str] = "composition"
    takes: ClassVar[tuple[str, ...]] = ("candidates", "generations")
    unasked: ClassVar[tuple[str, ...]] = ("alpha", "beta", "mutation")
    memoised: ClassVar[bool] = True
    population: int = 10
    generations: int = 6
    alpha: float = 0.4
    beta: float = 0.1
    mutation: float = 0.2

    def __post_init__(self) -> None:
        whole("candidates a generation", self.population)
        whole("generations", self.generations)
        for name in ("alpha", "beta", "mutation"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} is {getattr(self, name)!r}: expected a number in [0, 1].")

    @classmethod
    def asked(cls, **given: Any) -> Self:
        own: dict[str, int] = {}
        if "candidates" in given:
            own["population"] = whole_candidates(given["candidates"])
        if "generations" in given:
            own["generations"] = whole("generations", given["generations"], most=MOST_RUNS)
        return cls(**own)

    @property
    def finalists(self) -> int:
        return self.population

    def lines(self, price: RoundPrice, partition: str, noun: str) -> list[Line]:
        """Return the planned maximum of candidate runs."""
        count = self.population * self.generations
        return [Line(name=noun, partition=partition, event=price(WHOLE), count=count)]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return a key a trial: each is a release of its own."""
        return noun, f"trial {trial}"

    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        number = len(state.rounds)
        if number == self.generations:
            return None
        source = stream.child("generation", number)
        if not number:
            generator = source.generator()
            drawn = tuple(space.draw(generator) for _ in range(self.population))
            return Round(number=0, genotypes=drawn)
        return Round(
            number=number,
            genotypes=self.evolve(state.rounds[-1].genotypes, state.fitness[-1], space, source),
        )

    def evolve(
        self,
        population: tuple[Genotype, ...],
        fitness: tuple[Fitness, ...],
        space: Space,
        stream: Stream,
    ) -> tuple[Genotype, ...]:
        """Return the next generation (Algorithm 2)."""
        generator = stream.generator()
        ranked = sorted(range(len(population)), key=fitness.__getitem__, reverse=True)
        top = max(1, _share(self.alpha, len(ranked)))
        rest = ranked[top:]
        lucky = generator.permutation(len(rest))[: _share(self.beta, len(rest))]
        parents = [population[i] for i in ranked[:top]] + [population[rest[i]] for i in lucky]
        children = []
        for child in range(len(population)):
            first, second = (parents[int(i)] for i in generator.integers(len(parents), size=2))
            genotype = crossover(first, second, stream.child("crossover", child))
            if generator.random() < self.mutation:
                genotype = mutate(genotype, space, stream.child("mutation", child))
            children.append(genotype)
        return tuple(children)

    @property
    def expected_trainings(self) -> float:
        return float(self.population * self.generations)

    def words(self) -> str:
        return (
            f"at most {self.generations} generations of {self.population}: "
            f"{self.population * self.generations} trainings, all charged{self.unusual_words()}"
        )

    def claims(
        self, cost: Callable[[RoundShape], float], *, delta: float, validation: int
    ) -> list[Claim]:
        """Return the paper's own price (Eq. 8): beside, never charged."""
        if not (epsilon := cost(WHOLE)) > 0.0:
            return []
        return [eq8(epsilon=epsilon, runs=round(self.expected_trainings), delta_prime=delta)]


def _share(share: float, count: int) -> int:
    """Return that share of a count, rounded up, with none more for a rounding error."""
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

    def lines(self, price: RoundPrice, partition: str, noun: str) -> list[Line]:
        """Return reads that release nothing private, because the data is public."""
        free = NoRelease()
        return PrivacyAwareArchitectureSearch.lines(self, lambda shape: free, partition, noun)
