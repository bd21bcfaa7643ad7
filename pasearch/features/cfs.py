"""Correlation-based feature selection: CFS-Greedy and CFS-GA, sets of features by their merit.

    H(x)      = - sum over values v of (n(v) / n) log2(n(v) / n)               0 log 0 = 0
    SU(x, y)  = 2 (1 - H(x, y) / (H(x) + H(y)))                                0: one is constant
    merit(S)  = sum of SU(x, class) / sqrt(k + sum over x != x' of SU(x, x'))  x, x' in S

    CFS-Greedy    S = {}; add the feature with the largest merit(S + it), until S has k features
    CFS-GA        k random sets; l times: the fittest alpha share by merit become parents of the
                  next k; the set with the largest merit of the last k

merit is Eq. 7, with k features in S: k times a mean over k features, and k (k - 1) times a mean
over as many pairs. All of it is post-processing of released tables, so the search costs nothing,
however many sets it evaluates. The merits of a whole generation, or of all features that may come
next, are two matrix products.

The paper's own route adds noise to the entropies instead of the tables, one release for each of
k (k + 1) / 2; between neighbours an entropy moves by

    a record becomes null:   (log2 n) / n                  attained: a value that one record has
    a record moves:          (log2 n + 1 / ln 2) / n       at most

Source: Bao et al., section VIII-B, Algorithms 3 and 4, Eq. 7, VIII-C; Hall 1999; Bindschaedler,
Shokri and Gunter 2017. Our reading of the algorithms, and how alpha, p_co and p_mu were chosen:
docs/features.md. Proof: docs/guarantees/contingency-tables.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pasearch.accounting.checks import (
    check_fraction,
    check_positive,
    check_positive_integer,
    make_post_init,
)
from pasearch.accounting.events import Event, SelfComposition
from pasearch.accounting.profiles import Array
from pasearch.accounting.published_bounds import PublishedBound, bao_equation_8
from pasearch.errors import UsageError
from pasearch.features.contingency import (
    Attributes,
    ContingencyTables,
    JointCounts,
    make_attributes,
)
from pasearch.features.evolution import (
    CROSSOVER_PROBABILITY,
    MUTATION_PROBABILITY,
    PARENT_FRACTION,
    Evolution,
    EvolvingSelector,
)
from pasearch.features.selector import (
    SELECTION_SHARE,
    SELECTORS,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    Selector,
    SizedSelector,
    check_one_of,
)
from pasearch.features.trainers import Trainer
from pasearch.planning import GAUSSIAN_NOISE, PURE_NOISE, LineTemplate
from pasearch.runs.keys import Stream
from pasearch.runs.sums import NoisySum

MIN_ENTROPY = 1e-12
"""Below so many bits of entropy a variable is constant."""

ENTROPY_GRID_STEPS = 2**12
"""Into how many steps an entropy's sensitivity is divided: its noise is in whole steps."""


def compute_symmetrical_uncertainty(
    joint: JointCounts, attributes: Attributes
) -> tuple[Array, Array]:
    """Return how much every feature tells of the class, and of every other feature.

    Args:
        joint: Exact tables (private), or released ones (post-processing: no cost).
        attributes: Their columns.

    Returns:
        To the class (d,), and between features (d, d), symmetric: in [0, 1], 0 where one of the two
        is constant, 1 of a feature with itself.
    """
    return uncertainties_from_entropies(
        _compute_entropies(joint, *_group_feature_codes(attributes))
    )


def uncertainties_from_entropies(entropies: Array) -> tuple[Array, Array]:
    """Return symmetrical uncertainty from entropies.

    Args:
        entropies: (k, k) of pairs, of one variable by itself on the diagonal; the class is last.

    Returns:
        To the class (k - 1,), and between the others (k - 1, k - 1).
    """
    alone = np.diag(entropies)
    both = alone[:, None] + alone
    varies = (alone > MIN_ENTROPY)[:, None] & (alone > MIN_ENTROPY)
    found = np.divide(2 * (both - entropies), both, out=np.zeros_like(both), where=varies)
    found = np.clip(found, 0.0, 1.0)
    return found[:-1, -1], found[:-1, :-1]


def compute_merits(masks: np.ndarray, to_class: Array, between: Array) -> Array:
    """Return the merits of many sets at once, Eq. 7: (p,); of an empty set 0.

    Args:
        masks: (p, d) bool, True of a member.
        to_class: (d,).
        between: (d, d); its diagonal is not looked at.
    """
    chosen = np.asarray(masks, np.float64)
    others = between - np.diag(np.diag(between))
    redundancy = np.einsum("pd,pd->p", chosen @ others, chosen)
    return merits_from_sums(chosen @ to_class, redundancy, chosen.sum(axis=1))


def merits_from_sums(relevance: Array, redundancy: Array, size: Array | int) -> Array:
    """Return the merits of sets, Eq. 7, from their sums: (p,); of an empty set 0.

    Args:
        relevance: Sum of `to_class` over the members of each, (p,).
        redundancy: Sum of `between` over their ordered pairs, (p,).
        size: How many members each has, (p,) or one number.
    """
    spread = size + redundancy
    return np.divide(relevance, np.sqrt(spread), out=np.zeros(len(relevance)), where=spread != 0)


def entropy_sensitivity(n: int, *, moved: bool = False) -> float:
    """Return the most by which one record of n changes the entropy of counts / n, in bits.

    Args:
        n: Slots, 2 or more: public, null ones included.
        moved: A record takes another value, where it else becomes null (our neighbours).
    """
    if not check_positive_integer("n", n) > 1:
        raise UsageError("n is 1: expected 2 records or more, one alone has no entropy.")
    return (math.log2(n) + (1 / math.log(2) if moved else 0.0)) / n


def published_sensitivity(n: int) -> float:
    """Return the sensitivity that Bindschaedler, Shokri and Gunter state: valid, not tight."""
    return (2 + 1 / math.log(2) + 2 * math.log2(n)) / n


NOISE_SIMULATIONS = 100
"""How often it is simulated what noise would show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyEntropies:
    """The paper's route: Laplace noise on the entropy of every variable and of every pair.

    Guarantee: `release` costs `event`, exactly: entropies are rounded to a grid and the noise is
    drawn in whole numbers of its steps.

    Args:
        epsilon: The price of one entropy, above 0.
        attributes: The columns, of k features, the class among them.
    """

    epsilon: float
    attributes: Attributes
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def count(self) -> int:
        """How many entropies there are: k single ones and k (k - 1) / 2 of pairs."""
        k = self.attributes.width + 1
        return k * (k + 1) // 2

    @property
    def event(self) -> SelfComposition:
        """What the release of all of them costs."""
        return SelfComposition(event=self._noise.event, count=self.count)

    @property
    def _noise(self) -> NoisySum:
        """The noise in steps of the grid: rounding adds up to one step, floating point another."""
        return NoisySum(epsilon=self.epsilon, most=ENTROPY_GRID_STEPS + 2)

    def scale(self, n: int) -> float:
        """Return the noise's scale, its mean absolute value, in bits."""
        return self._noise.most / self.epsilon * self._step(n)

    def _step(self, n: int) -> float:
        return entropy_sensitivity(n) / ENTROPY_GRID_STEPS

    def release(self, joint: JointCounts, stream: Stream) -> Array:
        """Return all entropies with noise, (k, k) in bits, for `uncertainties`.

        Args:
            joint: Of all records, all pairs, exact: private.
            stream: The release's own randomness; its keys contain the entropies.

        Cost: `event`, on every partition that was counted; charge it first.
        """
        step, noise = self._step(joint.slots), self._noise
        exact = _compute_entropies(
            joint, *_group_feature_codes(self.attributes), records=joint.slots
        )
        released = np.empty_like(exact)
        for i, j in zip(*np.triu_indices(len(exact)), strict=True):
            own = stream.child("entropy", int(i), int(j))
            released[i, j] = released[j, i] = step * noise.release(round(exact[i, j] / step), own)
        return released

    def simulate_noise(self, released: Array, n: int, generator: np.random.Generator) -> Array:
        """Return uncertainties with the class that noise would show of features that tell nothing.

        Cost: none; it is made of released entropies, as if pairs were independent.

        Args:
            released: As `release` returned it, (k, k).
            n: Slots.
            generator: Not the release's own.

        Returns:
            Array: (simulations, k - 1), clipped to [0, 1].
        """
        alone, k = np.diag(released), len(released)
        own, pair = generator.laplace(scale=self.scale(n), size=(2, NOISE_SIMULATIONS, k - 1))
        of_class = generator.laplace(scale=self.scale(n), size=(NOISE_SIMULATIONS, 1))
        both = alone[:-1] + alone[-1]
        varies = (alone[:-1] > MIN_ENTROPY) & (alone[-1] > MIN_ENTROPY)
        noise = 2 * (own + of_class - pair)
        found = np.divide(noise, both, out=np.zeros_like(noise), where=varies)
        return np.clip(found, 0.0, 1.0)

    def claim(self, *, n: int, delta: float) -> PublishedBound:
        """Return what the paper's formulas charge for the same noise.

        Args:
            n: Slots.
            delta: Slack of the composition, in (0, 1).
        """
        one = published_sensitivity(n) / self.scale(n)
        times = published_sensitivity(n) / entropy_sensitivity(n, moved=True)
        return PublishedBound(
            value=bao_equation_8(
                epsilon=one, runs=self.count, delta_prime=check_fraction("delta", delta)
            ).value,
            source="Bindschaedler et al. 2017, as Bao et al. use it",
            verdict=f"a valid bound, from a sensitivity {times:.2f} times what is needed",
            formula="Eq. 8 of e = (2 + 1/ln 2 + 2 log2 n) / (n b) over all entropies, b the scale",
        )


VariableGroups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Variables as sums of codes: (S, T) which codes a value is; where the values of each of k
variables begin, (k,); the column that each is of, (k,)."""


def _group_feature_codes(attributes: Attributes) -> VariableGroups:
    """Return the features in a record's order, and the class."""
    columns, starts, owners = [], [], []
    total = sum(attributes.sizes)
    for place, (item, start) in enumerate(
        zip(attributes.items, attributes.starts.tolist(), strict=True)
    ):
        for values in item.features or (tuple(range(item.size)),):
            starts.append(len(columns))
            owners.append(place)
            for value in range(max(values) + 1):
                indicator = np.zeros(total)
                indicator[start : start + item.size] = np.equal(values, value)
                columns.append(indicator)
    return np.stack(columns, axis=1), np.array(starts), np.array(owners)


def _compute_entropies(
    joint: JointCounts,
    values: np.ndarray,
    starts: np.ndarray,
    owners: np.ndarray,
    *,
    records: float | None = None,
) -> Array:
    """Return the entropies of variables, see `VariableGroups`, and of their pairs, (k, k) in bits.

    Counts are divided by `records`; by how many were counted, if None.
    """
    tables = values.T @ joint.counts @ values
    # Each column's codes add up to how many records were counted.
    divisor = np.trace(joint.counts) / (owners[-1] + 1) if records is None else records
    shares = tables / max(divisor, 1.0)
    bits = np.zeros_like(shares)
    np.log2(shares, out=bits, where=shares > 0)
    bits *= -shares
    return np.add.reduceat(np.add.reduceat(bits, starts, axis=0), starts, axis=1)


Values = npt.NDArray[np.float64]

TABLES_LINE, ENTROPIES_LINE = "contingency tables", "entropies"
"""The lines of the one release: all tables at once, or every entropy by itself."""

MERIT_SOURCES = ("tables", "entropies")

IRRELEVANCE_QUANTILE = 0.95
"""Of features that tell nothing, the share that noise makes look less telling than `blank`."""

MERIT_TOLERANCE = 1e-12
"""Merits are equal within this share of them: that much a sum's order may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CfsGreedyResult:
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
    def selected(self) -> tuple[int, ...]:
        """The chosen features, in the order in which they were added."""
        return self.features[: self.size]

    @property
    def merit(self) -> float:
        """The merit of the chosen features."""
        return self.merits[self.size - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CfsGaResult:
    """What CFS-GA found: the fittest set of the last generation, by place, in order; its merit.

    And `best`, the largest merit of each generation, the first and the last included: l + 1.
    """

    selected: tuple[int, ...]
    merit: float
    best: tuple[float, ...]


def cfs_greedy(
    to_class: Values, between: Values, size: int | None = None, *, until_no_gain: bool = False
) -> CfsGreedyResult:
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
    to_class, between = _check_uncertainties(to_class, between)
    if size is not None and (
        until_no_gain or not check_positive_integer("size", size) <= len(to_class)
    ):
        raise UsageError(
            f"size is {size}: expected 1 to {len(to_class)}, the number of features, and no "
            "`until_no_gain` beside it. Leave one out."
        )
    features, values = _add_greedily(to_class, between)
    if size is None:
        rises = np.diff(values) > MERIT_TOLERANCE * np.abs(values[1:])
        size = 1 + (
            int(np.append(rises, False).argmin())
            if until_no_gain
            else _index_of_first_maximum(values)
        )
    return CfsGreedyResult(features=tuple(features), merits=tuple(values), size=size)


def _add_greedily(to_class: Values, between: Values) -> tuple[list[int], list[float]]:
    """Return all features in the order of adding, and the merit after each."""
    left = np.arange(len(to_class))
    relevance, redundancy, to_chosen = 0.0, 0.0, np.zeros(len(to_class))
    features, values = [], []
    for size in range(1, len(to_class) + 1):
        relevances = relevance + to_class[left]
        redundancies = redundancy + 2 * to_chosen[left]
        found = merits_from_sums(relevances, redundancies, size)
        place = _index_of_first_maximum(found)
        relevance, redundancy = relevances[place], redundancies[place]
        features.append(int(left[place]))
        values.append(float(found[place]))
        to_chosen += between[features[-1]]
        left = np.delete(left, place)
    return features, values


def _index_of_first_maximum(values: npt.ArrayLike) -> int:
    """Return the place of the largest, the first of equals."""
    found = np.asarray(values)
    return int(np.argmax(found >= found.max() - MERIT_TOLERANCE * abs(found.max())))


def cfs_genetic(
    to_class: Values,
    between: Values,
    *,
    generator: np.random.Generator,
    population: int = 5000,
    generations: int = 10,
    alpha: float = PARENT_FRACTION,
    p_co: float = CROSSOVER_PROBABILITY,
    p_mu: float = MUTATION_PROBABILITY,
) -> CfsGaResult:
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
    to_class, between = _check_uncertainties(to_class, between)
    evolution = Evolution(population=population, alpha=alpha, p_co=p_co, p_mu=p_mu)
    generation = evolution.begin(len(to_class), generator)
    fitness = compute_merits(generation.masks, to_class, between)
    best = [float(fitness.max())]
    for _ in range(check_positive_integer("generations", generations)):
        generation = evolution.tell(generation, fitness, generator)
        fitness = compute_merits(generation.masks, to_class, between)
        best.append(float(fitness.max()))
    chosen = np.flatnonzero(generation.masks[np.argmax(fitness)])
    return CfsGaResult(selected=tuple(chosen.tolist()), merit=best[-1], best=tuple(best))


def _check_uncertainties(to_class: npt.ArrayLike, between: npt.ArrayLike) -> tuple[Values, Values]:
    first, second = (np.asarray(values, dtype=np.float64) for values in (to_class, between))
    shapes = first.ndim == 1 and len(first) >= 1 and second.shape == (len(first), len(first))
    if not (shapes and np.isfinite(first).all() and np.isfinite(second).all()):
        raise UsageError(
            f"to_class has the shape {first.shape}, between {second.shape}: expected finite "
            "numbers, (d,) and (d, d), of one feature or more."
        )
    return first, second


PRINTED_CLAIM = PublishedBound(
    value=2.31,
    source="Bao et al., CFS-Greedy and CFS-GA",
    verdict="not a bound for this run: printed for the paper's settings, not reproduced from its "
    "text, and without the training of the released model",
    formula="none is stated",
)
"""The paper's figure for the choice of features."""


class MeritSelector(Selector):
    """What CFS-Greedy and CFS-GA share: the noisy uncertainties that merits are made of."""

    share: ClassVar[float | None] = SELECTION_SHARE
    accepts_search_share: ClassVar[bool] = True
    uses_merit: ClassVar[bool] = True
    merits: str

    def check(self, form: DataMetadata) -> None:
        """Refuse entropies of an unknown number of columns, or without noise."""
        if self.merits == "tables":
            return
        if form.schema.undeclared:
            raise UsageError(
                "Noisy entropies are one release for each pair of features, so their number must "
                "be known: declare the schema, or take `merits=tables`."
            )
        if form.public:
            raise UsageError(
                "`merits=entropies` is a way to add noise, and `search_on=` has none: leave it out."
            )

    def describe_with_merits(self, *, public: bool) -> str:
        """Return what it does, with its merits."""
        words = self.public_description if public else self.description
        return words.replace("tables", self.merits)

    def lines(self, form: DataMetadata, trainer: type[Trainer]) -> tuple[LineTemplate, ...]:
        """Return one Gaussian release of all tables, or every entropy: the paper's way."""
        if self.merits == "tables":
            return (LineTemplate(name=TABLES_LINE, knob=GAUSSIAN_NOISE),)
        count = NoisyEntropies(epsilon=1.0, attributes=make_attributes(form.schema)).count

        def composed(event: Event) -> Event:
            return SelfComposition(event=event, count=count)

        return (LineTemplate(name=ENTROPIES_LINE, knob=PURE_NOISE, composed=composed),)

    def claims(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Return the paper's printed figure, and what noisy entropies cost by its formulas."""
        if self.merits == "tables":
            return [PRINTED_CLAIM]
        attributes = make_attributes(form.schema)
        entropies = NoisyEntropies(epsilon=noises[ENTROPIES_LINE], attributes=attributes)
        return [entropies.claim(n=form.split.trial_size, delta=delta), PRINTED_CLAIM]

    def uncertainties(self, reads: RecordAccess, stream: Stream) -> tuple[Values, Values, float]:
        """Return symmetrical uncertainties: with the target, with each other; what noise shows."""
        attributes = make_attributes(reads.schema)
        if reads.public:
            with reads.open_line(TABLES_LINE) as records:
                return *compute_symmetrical_uncertainty(
                    attributes.count_pairs(records), attributes
                ), 0.0
        if self.merits == "tables":
            tables = ContingencyTables(noise_multiplier=reads.noise(TABLES_LINE))
            with reads.open_line(TABLES_LINE) as records:
                exact = attributes.count_pairs(records)
                noisy = tables.release(exact, attributes, stream.child("tables"))
            # The same noise on tables of independent columns, made of the release: free.
            apart = noisy.simulate_independent(attributes, stream.child("independent").generator())
            blank = tables.release(apart, attributes, stream.child("blank"))
            shown = compute_symmetrical_uncertainty(blank, attributes)[0]
            return *compute_symmetrical_uncertainty(noisy, attributes), float(
                np.quantile(shown, IRRELEVANCE_QUANTILE)
            )
        entropies = NoisyEntropies(epsilon=reads.noise(ENTROPIES_LINE), attributes=attributes)
        with reads.open_line(ENTROPIES_LINE) as records:
            exact = attributes.count_pairs(records)
            released = entropies.release(exact, stream.child("entropies"))
        apart = stream.child("independent").generator()
        shown = entropies.simulate_noise(released, reads.slots, apart)
        return *uncertainties_from_entropies(released), float(
            np.quantile(shown, IRRELEVANCE_QUANTILE)
        )


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class CFSGreedy(MeritSelector, SizedSelector):
    """Adds one feature after another.

    Args:
        size: How many features, or whole columns; None takes where the merit is largest.
        merits: "tables" (Gaussian noise on all contingency tables) or "entropies" (Laplace noise
            on every entropy, the paper's way).
        until_no_gain: Stop at the first feature that does not raise the merit, where it may rise
            again later.
    """

    name: ClassVar[str] = "cfs-greedy"
    description: ClassVar[str] = (
        "correlation-based selection from noisy tables, one feature after another"
    )
    public_description: ClassVar[str] = "correlation-based selection, one feature after another"
    size: int | None = None
    merits: str = "tables"
    until_no_gain: bool = False

    def __post_init__(self) -> None:
        check_one_of("merits", self.merits, MERIT_SOURCES)
        if type(self.until_no_gain) is not bool:
            raise UsageError(f"until_no_gain is {self.until_no_gain!r}: expected true or false.")
        if self.until_no_gain and self.size is not None:
            raise UsageError(
                f"until_no_gain is set beside k, which is {self.size}: either says how many "
                "features are chosen. Leave one out."
            )
        SizedSelector.__post_init__(self)

    def describe(self, *, public: bool = False) -> str:
        stops = ", until one raises the merit no more" if self.until_no_gain else ""
        return self.describe_with_merits(public=public) + stops + self.describe_changes("size")

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Return the first features of the order of adding."""
        return self.choose_by_uncertainties(
            reads.means, reads.columns, *self.uncertainties(reads, stream)
        )

    def choose_by_uncertainties(
        self, means: Values, columns: Any, to_class: Values, between: Values, blank: float
    ) -> SelectionResult:
        """Return the choice by uncertainties.

        Args:
            means: Of all features, (d,).
            columns: Which column each feature belongs to, (d,), where as many columns as the choice
                has a size are to be chosen; None chooses as many features.
            to_class: Uncertainty of each feature with the target, (d,).
            between: Of each with each other, (d, d).
            blank: See `Chosen`.
        """
        order = cfs_greedy(to_class, between, until_no_gain=self.until_no_gain)
        if self.size is not None:
            owners = np.arange(len(means)) if columns is None else columns
            begun = np.unique(owners[list(order.features)], return_index=True)[1]
            order = replace(order, size=int(np.sort(begun)[self.count(len(begun)) - 1]) + 1)
        return SelectionResult.of(
            means, order.selected, to_class=to_class, blank=blank, merit=order.merit
        )

    def count_selected(self, features: int) -> int | None:
        return self.size


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class CFSGenetic(MeritSelector, EvolvingSelector):
    """Evolves sets by their merit, which costs nothing: so there are many.

    Args:
        merits: As of `CFSGreedy`.
        population: k, like generations (l), alpha, p_co and p_mu: see `Evolution`.
    """

    name: ClassVar[str] = "cfs-ga"
    description: ClassVar[str] = (
        "correlation-based selection from noisy tables, by a genetic algorithm"
    )
    public_description: ClassVar[str] = "correlation-based selection, by a genetic algorithm"
    no_size_reason: ClassVar[str] = "searches over sizes too"
    merits: str = "tables"
    population: int = 5000
    generations: int = 10
    alpha: float = PARENT_FRACTION
    p_co: float = CROSSOVER_PROBABILITY
    p_mu: float = MUTATION_PROBABILITY

    def __post_init__(self) -> None:
        check_one_of("merits", self.merits, MERIT_SOURCES)
        EvolvingSelector.__post_init__(self)

    def describe(self, *, public: bool = False) -> str:
        return self.describe_with_merits(public=public) + self.describe_evolution()

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Return the fittest set of the last generation."""
        return self.choose_by_uncertainties(reads.means, *self.uncertainties(reads, stream), stream)

    def choose_by_uncertainties(
        self, means: Values, to_class: Values, between: Values, blank: float, stream: Stream
    ) -> SelectionResult:
        """Return the choice by uncertainties; see `CFSGreedy.found`."""
        found = cfs_genetic(
            to_class, between, generator=stream.child("genetic").generator(),
            generations=self.generations, **asdict(self.evolution),
        )  # fmt: skip
        return SelectionResult.of(
            means, found.selected, to_class=to_class, blank=blank, merit=found.merit
        )
