"""Sets of features that evolve: the operators of Algorithm 4, for any fitness, as explicit state.

    begin     k sets, uniform among the 2^d - 1 that are not empty
    tell      parents = the fittest alpha share; each of the k children is, S1 and S2 two of them,
                  crossover(S1, S2)   with probability p_co       each feature from either, 1/2
                  mutate(S1)          with probability p_mu       each feature flipped, 1/d
                  S1                  otherwise

A child without features is S1 instead, so no set is ever empty. Nothing is hidden: a generation is
a value, and randomness is an argument. CFS-GA tells it merits;
PAFS tells it what a privately trained model got right, which comes from outside. A set seen before
need not be trained again: `unseen` and `recalled` look a set up by its label.

Source: Bao et al., section VIII-B, Algorithm 4. Our reading of it: docs/features.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pasearch.accounting.checks import check_nonnegative, check_positive_integer, check_probability
from pasearch.errors import UsageError
from pasearch.features.selector import Selector

Masks = npt.NDArray[np.bool_]
"""Sets of features, (p, d): a row is a set, True where it has the feature."""

PARENT_FRACTION, CROSSOVER_PROBABILITY, MUTATION_PROBABILITY = 0.03, 0.8, 0.2
"""Original to this project, measured on noise-free merits of Adult
(benchmarks/features/README.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """One generation: what is to be scored next.

    Args:
        number: From 0 on.
        masks: Its sets, (k, d), two or more, none of them empty; kept read-only.
    """

    number: int
    masks: Masks

    def __post_init__(self) -> None:
        check_positive_integer("the generation's number + 1", self.number + 1)
        masks = np.array(self.masks, dtype=np.bool_)
        if masks.ndim != 2 or not len(masks) >= 2 or not masks.any(axis=1).all():
            raise UsageError(
                f"masks have the shape {masks.shape}: expected (sets, features), two sets or more, "
                "each with one feature or more."
            )
        masks.flags.writeable = False
        object.__setattr__(self, "masks", masks)


MAX_POPULATION = 100_000
"""The most sets a generation: each has a mark for every feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The operators of Algorithm 4.

    Guarantee: `begin` and `tell` give `population` sets, none empty, that depend on their arguments
    alone. What they cost is what the fitness cost: they read no record.

    Args:
        population: k, sets a generation, 2 or more.
        alpha: Share of the fittest that become parents, in (0, 1]; two at least do.
        p_co: Probability of a crossover.
        p_mu: Probability of a mutation; p_co + p_mu is at most 1.
    """

    population: int = 5000
    alpha: float = PARENT_FRACTION
    p_co: float = CROSSOVER_PROBABILITY
    p_mu: float = MUTATION_PROBABILITY

    def __post_init__(self) -> None:
        population = check_positive_integer("population", self.population, most=MAX_POPULATION)
        object.__setattr__(self, "population", population)
        object.__setattr__(self, "alpha", check_probability("alpha", self.alpha))
        for name in ("p_co", "p_mu"):
            object.__setattr__(self, name, check_nonnegative(name, getattr(self, name)))
        if not self.population >= 2:
            raise UsageError("population is 1: expected 2 or above, a child has two parents.")
        if not self.p_co + self.p_mu <= 1.0:
            raise UsageError(
                f"p_co + p_mu is {self.p_co:g} + {self.p_mu:g} = {self.p_co + self.p_mu:g}: "
                "expected at most 1, since a child is one or the other, or a copy. Lower one."
            )

    @property
    def parents(self) -> int:
        """How many of a generation become parents: alpha k, rounded up, 2 at least."""
        return max(2, math.ceil(self.alpha * self.population - 1e-9))

    def begin(self, features: int, generator: np.random.Generator) -> Generation:
        """Return the first generation of sets of so many features."""
        return Generation(
            0, draw_masks(self.population, check_positive_integer("features", features), generator)
        )

    def tell(
        self, generation: Generation, fitness: npt.ArrayLike, generator: np.random.Generator
    ) -> Generation:
        """Return the next generation.

        Args:
            generation: What was scored.
            fitness: Of each of its sets, (k,), the higher the better; -inf for one that failed.
                Of equals the earlier ranks first.
            generator: Randomness of this step, and of no other.

        Raises:
            UsageError: The fitness has another length, or is not a number somewhere.
        """
        order = np.argsort(-_check_fitness(fitness, generation.masks), kind="stable")
        parents = generation.masks[order[: self.parents]]
        first = generator.integers(len(parents), size=self.population)
        second = generator.integers(len(parents) - 1, size=self.population)
        second += second >= first
        fate = generator.random(self.population)
        crossed = np.flatnonzero(fate < self.p_co)
        mutated = np.flatnonzero((fate >= self.p_co) & (fate < self.p_co + self.p_mu))

        children = parents[first]
        children[crossed] = crossover(children[crossed], parents[second[crossed]], generator)
        children[mutated] = mutate(children[mutated], generator)
        empty = ~children.any(axis=1)
        children[empty] = parents[first[empty]]
        return Generation(generation.number + 1, children)


MAX_GENERATIONS = 1000
"""The most generations of a genetic search."""


class EvolvingSelector(Selector):
    """What selectors share whose sets evolve: k, l, alpha, p_co and p_mu of Algorithm 4."""

    population: int
    generations: int
    alpha: float
    p_co: float
    p_mu: float

    def __post_init__(self) -> None:
        count = check_positive_integer("generations", self.generations, most=MAX_GENERATIONS)
        for name, value in {"generations": count, **asdict(self.evolution)}.items():
            object.__setattr__(self, name, value)

    @property
    def evolution(self) -> Evolution:
        """The operators with these numbers."""
        return Evolution(
            population=self.population, alpha=self.alpha, p_co=self.p_co, p_mu=self.p_mu
        )

    def describe_evolution(self) -> str:
        """Return the numbers in words."""
        told = f"; {self.generations} generations of {self.population} sets"
        return told + self.describe_changes("alpha", "p_co", "p_mu")


def draw_masks(count: int, features: int, generator: np.random.Generator) -> Masks:
    """Return so many sets, uniform among those that are not empty."""
    masks = np.zeros((count, features), dtype=np.bool_)
    while (empty := ~masks.any(axis=1)).any():
        masks[empty] = generator.integers(2, size=(int(empty.sum()), features), dtype=np.bool_)
    return masks


def crossover(first: Masks, second: Masks, generator: np.random.Generator) -> Masks:
    """Return children that have each feature as either parent has it, with probability 1/2."""
    return np.where(generator.integers(2, size=first.shape, dtype=np.bool_), first, second)


def mutate(masks: Masks, generator: np.random.Generator) -> Masks:
    """Return the sets with each feature put in or left out anew with probability 1/d."""
    return masks ^ (generator.random(masks.shape) * masks.shape[1] < 1.0)


def label_masks(masks: Masks) -> list[str]:
    """Return a text for each set, the same if and only if the set is: its bits, hexadecimal."""
    return [row.tobytes().hex() for row in np.packbits(masks, axis=1)]


def masks_from_labels(names: list[str], features: int) -> Masks:
    """Return the sets of so many features that `labels` named.

    Raises:
        UsageError: One of them is no set of so many features.
    """
    width = -(-check_positive_integer("features", features) // 8)
    try:
        packed = np.frombuffer(b"".join(map(bytes.fromhex, names)), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(len(names), width), axis=1).astype(np.bool_)
    except ValueError:
        bits = np.ones((1, 8 * width + 1), dtype=np.bool_)
    if bits[:, features:].any():
        raise UsageError(f"a label names no set of {features} features: expected `labels`' own.")
    return bits[:, :features]


def find_unseen(masks: Masks, known: Mapping[str, float]) -> npt.NDArray[np.intp]:
    """Return the places of the sets whose fitness is not known, each set once, in order."""
    names = label_masks(masks)
    new = {name: place for place, name in reversed(list(enumerate(names))) if name not in known}
    return np.array(sorted(new.values()), dtype=np.intp)


def look_up_fitness(masks: Masks, known: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return the known fitness of each set, (p,).

    Args:
        masks: Sets, all of them known.
        known: Fitness by label: plain JSON, so a resumed run has it too.
    """
    return np.array([known[name] for name in label_masks(masks)], dtype=np.float64)


def _check_fitness(fitness: npt.ArrayLike, masks: Masks) -> npt.NDArray[np.float64]:
    values = np.asarray(fitness, dtype=np.float64)
    if values.shape != masks.shape[:1] or np.isnan(values).any():
        raise UsageError(
            f"fitness has the shape {values.shape}: expected a number for each of {len(masks)} "
            "sets, -inf for one that failed."
        )
    return values
