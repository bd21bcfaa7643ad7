"""Correlation-based feature selection: CFS-Greedy and CFS-GA, sets of features by their merit.

    CFS-Greedy    S = {}; add the feature with the largest merit(S + it), until S has k features
    CFS-GA        k random sets; l times: the fittest alpha share by merit become parents of the
                  next k; the set with the largest merit of the last k

merit is Eq. 7 (`merit`), a function of how well features tell the class (`to_class`) and one
another (`between`). Both of these were released before, or are public: searching among them reads
no record and costs nothing, however many sets are looked at.

The merits of a whole generation, or of all features that may come next, are two matrix products.

Source: Bao et al., section VIII-B, Algorithms 3 and 4; Hall 1999. Our reading of them, and how
alpha, p_co and p_mu were chosen: docs/features-search.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pasearch.accounting.checks import whole
from pasearch.errors import UsageError
from pasearch.features.evolution import ALPHA, P_CO, P_MU, Evolution
from pasearch.features.merit import merit_of_sums, merits

Values = npt.NDArray[np.float64]

EQUAL = 1e-12
"""Merits are equal within this share of them: that much a sum's order may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What CFS-Greedy found: all features, in the order in which they were added.

    Args:
        features: All d of them, by place; the first was added first.
        merits: Of the first 1, 2, ..., d of them.
        size: How many are chosen.
    """

    features: tuple[int, ...]
    merits: tuple[float, ...]
    size: int

    @property
    def chosen(self) -> tuple[int, ...]:
        """The chosen features, in the order in which they were added."""
        return self.features[: self.size]

    @property
    def merit(self) -> float:
        """The merit of the chosen features."""
        return self.merits[self.size - 1]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "method": "cfs-greedy",
            "features": list(self.features),
            "merits": list(self.merits),
            "size": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What CFS-GA found.

    Args:
        chosen: The fittest set of the last generation, by place, in order.
        merit: Its merit.
        best: The largest merit of each generation, the first and the last included: l + 1.
    """

    chosen: tuple[int, ...]
    merit: float
    best: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "method": "cfs-ga",
            "chosen": list(self.chosen),
            "merit": self.merit,
            "best": list(self.best),
        }


def greedy(
    to_class: Values, between: Values, size: int | None = None, *, until_no_gain: bool = False
) -> Order:
    """Return the order in which CFS-Greedy adds features (Algorithm 3).

    Guarantee: every step adds the feature with the largest merit, the first of equals.

    Args:
        to_class: Correlation of each feature with the class, (d,), in [0, 1].
        between: Correlation of each two features, (d, d), in [0, 1] and symmetric; its diagonal is
            not read.
        size: How many features are chosen, 1 to d; else as many as have the largest merit.
        until_no_gain: Choose up to the first step that does not raise the merit, instead.

    Raises:
        UsageError: Other shapes; more features than there are; both a size and `until_no_gain`.

    Cost: none; both arguments are released or public already.
    """
    to_class, between = _checked(to_class, between)
    if size is not None and (until_no_gain or not whole("size", size) <= len(to_class)):
        raise UsageError(
            f"size is {size}: expected 1 to {len(to_class)}, the number of features, and no "
            "`until_no_gain` beside it. Leave one out."
        )
    features, values = _ordered(to_class, between)
    if size is None:
        rises = np.diff(values) > EQUAL * np.abs(values[1:])
        size = 1 + (int(np.append(rises, False).argmin()) if until_no_gain else _first_best(values))
    return Order(features=tuple(features), merits=tuple(values), size=size)


def _ordered(to_class: Values, between: Values) -> tuple[list[int], list[float]]:
    """Return all features in the order of adding, and the merit after each."""
    left = np.arange(len(to_class))
    relevance, redundancy, to_chosen = 0.0, 0.0, np.zeros(len(to_class))
    features, values = [], []
    for size in range(1, len(to_class) + 1):
        relevances = relevance + to_class[left]
        redundancies = redundancy + 2 * to_chosen[left]
        found = merit_of_sums(relevances, redundancies, size)
        place = _first_best(found)
        relevance, redundancy = relevances[place], redundancies[place]
        features.append(int(left[place]))
        values.append(float(found[place]))
        to_chosen += between[features[-1]]
        left = np.delete(left, place)
    return features, values


def _first_best(values: npt.ArrayLike) -> int:
    """Return the place of the largest, the first of equals."""
    found = np.asarray(values)
    return int(np.argmax(found >= found.max() - EQUAL * abs(found.max())))


def genetic(
    to_class: Values,
    between: Values,
    *,
    generator: np.random.Generator,
    population: int = 5000,
    generations: int = 10,
    alpha: float = ALPHA,
    p_co: float = P_CO,
    p_mu: float = P_MU,
) -> Found:
    """Return the set that CFS-GA finds (Algorithm 4).

    Guarantee: the set is not empty, and depends on the arguments alone.

    Args:
        to_class: As of `greedy`.
        between: As of `greedy`.
        generator: All its randomness.
        population: k, sets a generation.
        generations: l, how often a generation is followed by another.
        alpha: Share of the fittest that become parents.
        p_co: Probability of a crossover.
        p_mu: Probability of a mutation; p_co + p_mu is at most 1.

    Raises:
        UsageError: Other shapes, or numbers that `Evolution` refuses.

    Cost: none; `to_class` and `between` are released or public already. (l + 1) k merits.
    """
    to_class, between = _checked(to_class, between)
    evolution = Evolution(population=population, alpha=alpha, p_co=p_co, p_mu=p_mu)
    generation = evolution.begin(len(to_class), generator)
    fitness = merits(generation.masks, to_class, between)
    best = [float(fitness.max())]
    for _ in range(whole("generations", generations)):
        generation = evolution.tell(generation, fitness, generator)
        fitness = merits(generation.masks, to_class, between)
        best.append(float(fitness.max()))
    chosen = np.flatnonzero(generation.masks[np.argmax(fitness)])
    return Found(chosen=tuple(chosen.tolist()), merit=best[-1], best=tuple(best))


def _checked(to_class: npt.ArrayLike, between: npt.ArrayLike) -> tuple[Values, Values]:
    first, second = (np.asarray(values, dtype=np.float64) for values in (to_class, between))
    shapes = first.ndim == 1 and len(first) >= 1 and second.shape == (len(first), len(first))
    if not (shapes and np.isfinite(first).all() and np.isfinite(second).all()):
        raise UsageError(
            f"to_class has the shape {first.shape}, between {second.shape}: expected finite "
            "numbers, (d,) and (d, d), of one feature or more."
        )
    return first, second
