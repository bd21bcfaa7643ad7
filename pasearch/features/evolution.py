"""Genetic search over sets of features: the operators of Algorithm 4, with explicit state.

    first_generation  k sets, uniform among the 2^d - 1 nonempty sets
    tell              parents = the fittest fraction alpha; each of the k children is, with S1 and
                      S2 two of them,
                      crossover(S1, S2)   with probability p_co       each feature from either, 1/2
                      mutate(S1)          with probability p_mu       each feature flipped, 1/d
                      S1                  otherwise

A child without features is replaced by S1, so no set is empty. A generation is an immutable value,
and the random generator is an argument. The fitness of a set is its merit in CFS-GA, and the number
of correct predictions of a privately trained model in PAFS. `find_unseen` and `look_up_fitness`
avoid training on the same set twice.

Source: Bao et al., section VIII-B, Algorithm 4. Interpretation: docs/features.md.
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

Masks = npt.NDArray[np.bool_]  # sets of features, (p, d): a row is a set, True for its members

# Defaults original to this project: measured on noise-free merits of Adult (benchmarks/features).
PARENT_FRACTION = 0.03  # fraction of the sets that become parents
CROSSOVER_PROBABILITY = 0.8
MUTATION_PROBABILITY = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """Sets of one generation, to be scored next.

    Args:
        number: Index of the generation, 0 or above.
        masks: Sets, (k, d), two or more, none empty; made read-only.
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
"""Maximum number of sets per generation, a memory limit: each set has one bool per feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """Parameters and steps of Algorithm 4, the genetic search.

    Guarantee: `first_generation` and `tell` return `population` sets, none empty, that depend on
    their arguments alone. They read no record, so only the fitness has a privacy cost.

    Args:
        population: Number of sets per generation, k, 2 or more.
        alpha: Fraction of the fittest sets that become parents, in (0, 1]; at least two do.
        p_co: Probability of a crossover, in [0, 1].
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
            raise UsageError(
                "population is 1: expected 2 or above, because a child has two parents."
            )
        if not self.p_co + self.p_mu <= 1.0:
            raise UsageError(
                f"p_co + p_mu is {self.p_co:g} + {self.p_mu:g} = {self.p_co + self.p_mu:g}: "
                "expected at most 1, the probability of either. Lower one of them."
            )

    @property
    def parents(self) -> int:
        """Number of parents of a generation: alpha k, rounded up, at least 2."""
        return max(2, math.ceil(self.alpha * self.population - 1e-9))

    def first_generation(self, features: int, generator: np.random.Generator) -> Generation:
        """Draw the first generation of sets of `features` features."""
        return Generation(
            0, draw_masks(self.population, check_positive_integer("features", features), generator)
        )

    def tell(
        self, generation: Generation, fitness: npt.ArrayLike, generator: np.random.Generator
    ) -> Generation:
        """Compute the next generation from the fitness of a generation.

        Args:
            generation: Scored generation.
            fitness: Fitness of each of its sets, (k,), higher is better; -inf for a failed one.
                Equal fitness ranks the earlier set first.
            generator: Random generator of this step alone.

        Raises:
            UsageError: A fitness of another length, or NaN.
        """
        values = np.asarray(fitness, dtype=np.float64)
        if values.shape != generation.masks.shape[:1] or np.isnan(values).any():
            raise UsageError(
                f"fitness has the shape {values.shape}: expected a number for each of "
                f"{len(generation.masks)} sets, -inf for one that failed."
            )
        order = np.argsort(-values, kind="stable")
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


MAX_GENERATIONS = 1000  # maximum number of generations of a genetic search


class EvolvingSelector(Selector):
    """Base class of selectors that search sets by Algorithm 4, with its parameters as fields."""

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
        """Genetic search with these parameters."""
        return Evolution(
            population=self.population, alpha=self.alpha, p_co=self.p_co, p_mu=self.p_mu
        )

    def describe_evolution(self) -> str:
        """Describe the parameters of the genetic search."""
        told = f"; {self.generations} generations of {self.population} sets"
        return told + self.describe_changes("alpha", "p_co", "p_mu")


def draw_masks(count: int, features: int, generator: np.random.Generator) -> Masks:
    """Draw sets uniformly from the nonempty sets of features, (count, features)."""
    masks = np.zeros((count, features), dtype=np.bool_)
    while (empty := ~masks.any(axis=1)).any():
        masks[empty] = generator.integers(2, size=(int(empty.sum()), features), dtype=np.bool_)
    return masks


def crossover(first: Masks, second: Masks, generator: np.random.Generator) -> Masks:
    """Return children with each feature copied from either parent with probability 1/2."""
    return np.where(generator.integers(2, size=first.shape, dtype=np.bool_), first, second)


def mutate(masks: Masks, generator: np.random.Generator) -> Masks:
    """Return sets with each of the d features added or removed with probability 1/d."""
    return masks ^ (generator.random(masks.shape) * masks.shape[1] < 1.0)


def label_masks(masks: Masks) -> list[str]:
    """Return a unique string for each set: its mask in hexadecimal."""
    return [row.tobytes().hex() for row in np.packbits(masks, axis=1)]


def masks_from_labels(names: list[str], features: int) -> Masks:
    """Parse sets of `features` features from the strings of `label_masks`.

    Raises:
        UsageError: A string that is not a set of `features` features.
    """
    width = -(-check_positive_integer("features", features) // 8)
    try:
        packed = np.frombuffer(b"".join(map(bytes.fromhex, names)), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(len(names), width), axis=1).astype(np.bool_)
    except ValueError:
        bits = np.ones((1, 8 * width + 1), dtype=np.bool_)
    if bits[:, features:].any():
        raise UsageError(
            f"a label is not a set of {features} features: expected a result of `label_masks`."
        )
    return bits[:, :features]


def find_unseen(masks: Masks, known: Mapping[str, float]) -> npt.NDArray[np.intp]:
    """Return the indices of the sets with unknown fitness, each set once, in order."""
    names = label_masks(masks)
    new = {name: place for place, name in reversed(list(enumerate(names))) if name not in known}
    return np.array(sorted(new.values()), dtype=np.intp)


def look_up_fitness(masks: Masks, known: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Return the known fitness of each set, (p,).

    Args:
        masks: Sets, all of them known.
        known: Fitness of each known set, by its label.
    """
    return np.array([known[name] for name in label_masks(masks)], dtype=np.float64)
