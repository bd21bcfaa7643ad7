"""Correlation-based feature selection: CFS-Greedy and CFS-GA select sets of features by merit.

    H(x)      = - sum over values v of (n(v) / n) log2(n(v) / n)               0 log 0 = 0
    SU(x, y)  = 2 (1 - H(x, y) / (H(x) + H(y)))                                0: one is constant
    merit(S)  = sum of SU(x, class) / sqrt(k + sum over x != x' of SU(x, x'))  x, x' in S

    CFS-Greedy    S = {}; add the feature with the largest merit(S + it), until S has k features
    CFS-GA        k random sets; l times: the fittest fraction alpha by merit become parents of the
                  next k; the set with the largest merit of the last k

merit(S) is Eq. 7 for a set S of k features. The paper writes means over k features and over
k (k - 1) pairs; here they are sums. Only released tables are used, so the search costs no privacy,
for any number of sets. Two matrix products compute the merits of a whole generation, or of all
candidate features.

The paper adds noise to the entropies instead of the tables: one release for each of k (k + 1) / 2
entropies. Between neighbouring data sets, an entropy changes by at most

    (log2 n) / n                if a record becomes null (attained if no other record has its value)
    (log2 n + 1 / ln 2) / n     if a record changes its value

Source: Bao et al., section VIII-B, Algorithms 3 and 4, Eq. 7, VIII-C; Hall 1999; Bindschaedler,
Shokri and Gunter 2017. Interpretation of the algorithms, and choice of alpha, p_co and p_mu:
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
from pasearch.planning import GAUSSIAN_NOISE, PURE_NOISE, ReleaseTemplate
from pasearch.runs.keys import Stream
from pasearch.runs.sums import NoisySum

MIN_ENTROPY = 1e-12  # minimum entropy of a variable that is not constant, bits

ENTROPY_GRID_STEPS = 2**12
"""Sensitivity of an entropy in grid steps; entropies and their noise are integer multiples of one
step.
"""


def compute_symmetrical_uncertainty(
    joint: JointCounts, attributes: Attributes
) -> tuple[Array, Array]:
    """Compute the symmetrical uncertainty of features with the class, and with each other.

    Args:
        joint: Exact tables (private), or released ones (post-processing: no cost).
        attributes: Columns of the tables.

    Returns:
        Uncertainty of each feature with the class, (d,), and of each pair of features, (d, d),
        symmetric: in [0, 1], 0 if one of the two is constant, 1 for a feature with itself.
    """
    return compute_uncertainties(_compute_entropies(joint, *_group_feature_codes(attributes)))


def compute_uncertainties(entropies: Array) -> tuple[Array, Array]:
    """Compute the symmetrical uncertainties of features with the class, and with each other.

    Args:
        entropies: Entropies of the pairs of k variables, (k, k), in bits, with the entropies of
            single variables on the diagonal. The class is the last variable.

    Returns:
        Uncertainty of each feature with the class, (k - 1,), and of each pair of features,
        (k - 1, k - 1).
    """
    alone = np.diag(entropies)
    both = alone[:, None] + alone
    varies = (alone > MIN_ENTROPY)[:, None] & (alone > MIN_ENTROPY)
    found = np.divide(2 * (both - entropies), both, out=np.zeros_like(both), where=varies)
    found = np.clip(found, 0.0, 1.0)
    return found[:-1, -1], found[:-1, :-1]


def compute_merits(masks: np.ndarray, to_class: Array, between: Array) -> Array:
    """Compute the merit (Eq. 7) of each of p sets, (p,); 0 for an empty set.

    Args:
        masks: Sets of features, (p, d) bool; True for a member.
        to_class: Correlation of each feature with the class, (d,).
        between: Correlation of each pair of features, (d, d); its diagonal is ignored.
    """
    chosen = np.asarray(masks, np.float64)
    others = between - np.diag(np.diag(between))
    redundancy = np.einsum("pd,pd->p", chosen @ others, chosen)
    return compute_merits_from_sums(chosen @ to_class, redundancy, chosen.sum(axis=1))


def compute_merits_from_sums(relevance: Array, redundancy: Array, size: Array | int) -> Array:
    """Compute the merit (Eq. 7) of each of p sets from sums over its members, (p,).

    The merit of an empty set is 0.

    Args:
        relevance: Sum of `to_class` over the members of each set, (p,).
        redundancy: Sum of `between` over the ordered pairs of members, (p,).
        size: Number of members of each set, (p,) or one integer.
    """
    spread = size + redundancy
    return np.divide(relevance, np.sqrt(spread), out=np.zeros(len(relevance)), where=spread != 0)


def entropy_sensitivity(n: int, *, replace_one: bool = False) -> float:
    """Return the maximum change of the entropy of counts / n by one record, in bits.

    Args:
        n: Number of records, null records included: public, 2 or more.
        replace_one: Whether one record changes its value; False: it becomes a null record (zero-out
            adjacency).
    """
    if not check_positive_integer("n", n) > 1:
        raise UsageError("n is 1: expected 2 records or more, one alone has no entropy.")
    return (math.log2(n) + (1 / math.log(2) if replace_one else 0.0)) / n


def published_sensitivity(n: int) -> float:
    """Return the published sensitivity of an entropy (Bindschaedler, Shokri and Gunter), in bits.

    It is valid for a record that changes its value, but about twice as large as necessary.
    """
    return (2 + 1 / math.log(2) + 2 * math.log2(n)) / n


NOISE_SIMULATIONS = 100  # number of simulations of irrelevant features under the same noise


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyEntropies:
    """The paper's mechanism: Laplace noise on the entropy of every variable and of every pair.

    Guarantee: `release` costs `event` exactly, because entropies are rounded to a grid and the
    noise is an integer number of grid steps.

    Args:
        epsilon: Privacy cost of one entropy, above 0.
        attributes: Columns of the data, with k - 1 features; the class is the k-th variable.
    """

    epsilon: float
    attributes: Attributes
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def count(self) -> int:
        """Number of entropies: k of single variables and k (k - 1) / 2 of pairs."""
        k = self.attributes.width + 1
        return k * (k + 1) // 2

    @property
    def event(self) -> SelfComposition:
        """Privacy event of all releases together."""
        return SelfComposition(event=self._noise.event, count=self.count)

    @property
    def _noise(self) -> NoisySum:
        """Noise of one entropy, in grid steps.

        Rounding adds up to one step to the sensitivity, and floating-point errors add another.
        """
        return NoisySum(epsilon=self.epsilon, most=ENTROPY_GRID_STEPS + 2)

    def noise_scale(self, n: int) -> float:
        """Return the scale of the noise, its mean absolute value, in bits."""
        return self._noise.most / self.epsilon * self._step(n)

    def _step(self, n: int) -> float:
        return entropy_sensitivity(n) / ENTROPY_GRID_STEPS

    def release(self, joint: JointCounts, stream: Stream) -> Array:
        """Release the entropies of all pairs of variables with noise, (k, k), in bits.

        The result is an argument of `compute_uncertainties`.

        Args:
            joint: Exact counts of all pairs over all records: private.
            stream: Random stream of this release alone; the noise also depends on the entropies.

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

    def simulate_irrelevant_features(
        self, released: Array, n: int, generator: np.random.Generator
    ) -> Array:
        """Simulate the noisy uncertainties of irrelevant features with the class.

        An irrelevant feature is independent of the class, so noise alone causes its uncertainty.

        Args:
            released: Result of `release`, (k, k).
            n: Number of records, null records included.
            generator: Random generator, independent of the release.

        Returns:
            Uncertainties, (`NOISE_SIMULATIONS`, k - 1), in [0, 1].

        Cost: none, because only released entropies are used.
        """
        alone, k = np.diag(released), len(released)
        own, pair = generator.laplace(scale=self.noise_scale(n), size=(2, NOISE_SIMULATIONS, k - 1))
        of_class = generator.laplace(scale=self.noise_scale(n), size=(NOISE_SIMULATIONS, 1))
        both = alone[:-1] + alone[-1]
        varies = (alone[:-1] > MIN_ENTROPY) & (alone[-1] > MIN_ENTROPY)
        noise = 2 * (own + of_class - pair)
        found = np.divide(noise, both, out=np.zeros_like(noise), where=varies)
        return np.clip(found, 0.0, 1.0)

    def claim(self, *, n: int, delta: float) -> PublishedBound:
        """Compute the privacy bound that the paper's formulas give for this noise.

        Args:
            n: Number of records, null records included.
            delta: Additive delta of the composition, in (0, 1).
        """
        one = published_sensitivity(n) / self.noise_scale(n)
        times = published_sensitivity(n) / entropy_sensitivity(n, replace_one=True)
        return PublishedBound(
            value=bao_equation_8(
                epsilon=one, runs=self.count, delta_prime=check_fraction("delta", delta)
            ).value,
            source="Bindschaedler et al. 2017, as Bao et al. use it",
            verdict=f"a valid bound; its sensitivity is {times:.2f} times the necessary one",
            formula="Eq. 8 of e = (2 + 1/ln 2 + 2 log2 n) / (n b) over all entropies, b the scale",
        )


VariableGroups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Values of k variables (the features and the class) in terms of the S codes of all columns.

Three arrays. Indicators, (S, T): entry (s, t) is 1 if code s means value t, where T counts the
values of all variables. Index of each variable's first value, (k,). Column index of each variable,
(k,).
"""


def _group_feature_codes(attributes: Attributes) -> VariableGroups:
    """Group the codes of all columns by the value of each feature and of the class."""
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
    joint: JointCounts, values: np.ndarray, starts: np.ndarray, owners: np.ndarray, *,
    records: float | None = None,
) -> Array:  # fmt: skip
    """Compute the entropies of k variables (diagonal) and of their pairs, (k, k), in bits.

    The last three arrays are `VariableGroups`. Counts are divided by `records`, or by the number of
    counted records if it is None.
    """
    tables = values.T @ joint.counts @ values
    # The codes of each column sum to the number of counted records.
    divisor = np.trace(joint.counts) / (owners[-1] + 1) if records is None else records
    shares = tables / max(divisor, 1.0)
    bits = np.zeros_like(shares)
    np.log2(shares, out=bits, where=shares > 0)
    bits *= -shares
    return np.add.reduceat(np.add.reduceat(bits, starts, axis=0), starts, axis=1)


Values = npt.NDArray[np.float64]

TABLES_LINE = "contingency tables"  # name of the charge for all noisy tables, `merits=tables`
ENTROPIES_LINE = "entropies"  # name of the charge for all noisy entropies, `merits=entropies`

MERIT_SOURCES = ("tables", "entropies")

IRRELEVANCE_QUANTILE = 0.95
"""Fraction of simulated irrelevant features whose uncertainty with the class is at most `blank`."""

MERIT_TOLERANCE = 1e-12
"""Relative tolerance of equal merits; the order of a sum can change a merit by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CfsGreedyResult:
    """Result of CFS-Greedy: an order of all features, and the number of selected ones.

    Args:
        features: Indices of all d features; the first was added first.
        merits: Merits of the first 1, 2, ..., d features.
        size: Number of selected features.
    """

    features: tuple[int, ...]
    merits: tuple[float, ...]
    size: int

    @property
    def selected(self) -> tuple[int, ...]:
        """Indices of the selected features, in the order in which they were added."""
        return self.features[: self.size]

    @property
    def merit(self) -> float:
        """Merit of the selected features."""
        return self.merits[self.size - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CfsGaResult:
    """Result of CFS-GA.

    Args:
        selected: Feature indices of the fittest set of the last generation, ascending.
        merit: Merit of that set.
        best: Largest merit of each generation, the first and the last included: l + 1.
    """

    selected: tuple[int, ...]
    merit: float
    best: tuple[float, ...]


def cfs_greedy(
    to_class: Values, between: Values, size: int | None = None, *, until_no_gain: bool = False
) -> CfsGreedyResult:
    """Order features by CFS-Greedy (Algorithm 3).

    Guarantee: every step adds the feature with the largest merit, the first of equals.

    Args:
        to_class: Correlation of each feature with the class, (d,), in [0, 1].
        between: Correlation of each pair of features, (d, d), in [0, 1] and symmetric; its diagonal
            is ignored.
        size: Number of selected features, 1 to d; None: the number with the largest merit.
        until_no_gain: Whether selection stops at the first step that does not raise the merit; then
            `size` must be None.

    Raises:
        UsageError: Other shapes; more features than exist; both a size and `until_no_gain`.

    Cost: none; both arguments are released or public already.

    >>> cfs_greedy(np.array([0.6, 0.5, 0.1]), np.eye(3), size=2).selected
    (0, 1)
    """
    to_class, between = _check_uncertainties(to_class, between)
    if size is not None and (
        until_no_gain or not check_positive_integer("size", size) <= len(to_class)
    ):
        raise UsageError(
            f"size is {size}: expected 1 to {len(to_class)}, the number of features, and no "
            "`until_no_gain`. Remove one of them."
        )
    left = np.arange(len(to_class))  # features that are not in the set yet
    relevance, redundancy, to_chosen = 0.0, 0.0, np.zeros(len(to_class))
    features, values = [], []
    for members in range(1, len(to_class) + 1):
        relevances = relevance + to_class[left]
        redundancies = redundancy + 2 * to_chosen[left]
        merits = compute_merits_from_sums(relevances, redundancies, members)
        best = _index_of_first_maximum(merits)
        relevance, redundancy = relevances[best], redundancies[best]
        features.append(int(left[best]))
        values.append(float(merits[best]))
        to_chosen += between[features[-1]]
        left = np.delete(left, best)
    if size is None:
        rises = np.diff(values) > MERIT_TOLERANCE * np.abs(values[1:])
        size = 1 + (
            int(np.append(rises, False).argmin())
            if until_no_gain
            else _index_of_first_maximum(values)
        )
    return CfsGreedyResult(features=tuple(features), merits=tuple(values), size=size)


def _index_of_first_maximum(values: npt.ArrayLike) -> int:
    """Return the index of the first value that equals the maximum, up to `MERIT_TOLERANCE`."""
    found = np.asarray(values)
    return int(np.argmax(found >= found.max() - MERIT_TOLERANCE * abs(found.max())))


def cfs_genetic(
    to_class: Values, between: Values, *, generator: np.random.Generator, population: int = 5000,
    generations: int = 10, alpha: float = PARENT_FRACTION, p_co: float = CROSSOVER_PROBABILITY,
    p_mu: float = MUTATION_PROBABILITY,
) -> CfsGaResult:  # fmt: skip
    """Search for the set of features with the largest merit by CFS-GA (Algorithm 4).

    Guarantee: the set is not empty, and depends on the arguments alone.

    Args:
        to_class: Correlation of each feature with the class, (d,), in [0, 1].
        between: Correlation of each pair of features, (d, d), in [0, 1] and symmetric.
        generator: Random generator of the whole search.
        population: Number of sets per generation, k, 2 or more.
        generations: Number of generations after the first, l, 1 or more.
        alpha: Fraction of the fittest sets that become parents, in (0, 1].
        p_co: Probability of a crossover, in [0, 1].
        p_mu: Probability of a mutation; p_co + p_mu is at most 1.

    Raises:
        UsageError: Other shapes, or numbers that `Evolution` rejects.

    Cost: none; `to_class` and `between` are released or public already. The search computes
        (l + 1) k merits.
    """
    to_class, between = _check_uncertainties(to_class, between)
    evolution = Evolution(population=population, alpha=alpha, p_co=p_co, p_mu=p_mu)
    generation = evolution.first_generation(len(to_class), generator)
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
    verdict="not a bound for this run: printed for the paper's settings, not reproducible from its "
    "text, and without the training of the released model",
    formula="none is stated",
)
"""Privacy cost that the paper prints for the selection of features."""


class MeritSelector(Selector):
    """Base class of CFS-Greedy and CFS-GA: releases the noisy uncertainties for merits."""

    share: ClassVar[float | None] = SELECTION_SHARE
    accepts_search_share: ClassVar[bool] = True
    uses_merit: ClassVar[bool] = True
    merits: str

    def check(self, form: DataMetadata) -> None:
        """Raise UsageError for noisy entropies of undeclared columns, or of public data."""
        if self.merits == "tables":
            return
        if form.schema.undeclared:
            raise UsageError(
                "`merits=entropies` requires a declared schema, because each pair of features is a "
                "release: declare it, or use `merits=tables`."
            )
        if form.public:
            raise UsageError(
                "`merits=entropies` adds noise, but selection on public data (`search_on=`) is "
                "exact: remove it."
            )

    def describe_with_merits(self, *, public: bool) -> str:
        """Describe the method and the release that it computes merits from."""
        words = self.public_description if public else self.description
        return words.replace("tables", self.merits)

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """Return the charge of one Gaussian release of all tables, or of all noisy entropies."""
        if self.merits == "tables":
            return (ReleaseTemplate(name=TABLES_LINE, knob=GAUSSIAN_NOISE),)
        count = NoisyEntropies(epsilon=1.0, attributes=make_attributes(form.schema)).count

        def compose(event: Event) -> Event:
            return SelfComposition(event=event, count=count)

        return (ReleaseTemplate(name=ENTROPIES_LINE, knob=PURE_NOISE, composed=compose),)

    def list_published_bounds(
        self, form: DataMetadata, trainer: type[Trainer], noises: Mapping[str, float], delta: float
    ) -> list[PublishedBound]:
        """Return the paper's printed bound, and the bound of noisy entropies by its formulas."""
        if self.merits == "tables":
            return [PRINTED_CLAIM]
        attributes = make_attributes(form.schema)
        entropies = NoisyEntropies(epsilon=noises[ENTROPIES_LINE], attributes=attributes)
        return [entropies.claim(n=form.split.trial_size, delta=delta), PRINTED_CLAIM]

    def release_uncertainties(
        self, reads: RecordAccess, stream: Stream
    ) -> tuple[Values, Values, float]:
        """Release symmetrical uncertainties, or compute them exactly on public records.

        Returns:
            Uncertainty of each feature with the target, (d,). Uncertainty of each pair of features,
            (d, d). The `IRRELEVANCE_QUANTILE` of the uncertainties of simulated irrelevant features
            with the target; 0 on public records.
        """
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
            # The same noise on simulated tables of independent columns: free post-processing.
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
        shown = entropies.simulate_irrelevant_features(released, reads.slots, apart)
        return *compute_uncertainties(released), float(np.quantile(shown, IRRELEVANCE_QUANTILE))


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class CFSGreedy(MeritSelector, SizedSelector):
    """Correlation-based selection that adds one feature after another.

    Args:
        size: Number of features, or of whole columns, 1 or above; None: the number with the largest
            merit.
        merits: Release that the merits are computed from: "tables" (Gaussian noise on all
            contingency tables) or "entropies" (Laplace noise on every entropy, as in the paper).
        until_no_gain: Whether selection stops at the first feature that does not raise the merit,
            even if the merit rises again later.
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
                f"until_no_gain and k ({self.size}) both set the number of features: remove one of "
                "them."
            )
        SizedSelector.__post_init__(self)

    def describe(self, *, public: bool = False) -> str:
        stops = ", until the merit no longer rises" if self.until_no_gain else ""
        return self.describe_with_merits(public=public) + stops + self.describe_changes("size")

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        """Choose the features that CFS-Greedy adds first."""
        return self.choose_by_uncertainties(
            reads.means, reads.columns, *self.release_uncertainties(reads, stream)
        )

    def choose_by_uncertainties(
        self, means: Values, columns: Any, to_class: Values, between: Values, blank: float
    ) -> SelectionResult:
        """Choose features by CFS-Greedy from released uncertainties.

        Args:
            means: Means of all features, (d,).
            columns: Column index of each feature, (d,), if `size` counts whole columns; None: it
                counts features.
            to_class: Uncertainty of each feature with the target, (d,).
            between: Uncertainty of each pair of features, (d, d).
            blank: Uncertainty that about one in twenty irrelevant features exceeds.
        """
        order = cfs_greedy(to_class, between, until_no_gain=self.until_no_gain)
        if self.size is not None:
            owners = np.arange(len(means)) if columns is None else columns
            begun = np.unique(owners[list(order.features)], return_index=True)[1]
            order = replace(order, size=int(np.sort(begun)[self.resolve_size(len(begun)) - 1]) + 1)
        return SelectionResult.of(
            means, order.selected, to_class=to_class, blank=blank, merit=order.merit
        )

    def count_selected(self, features: int) -> int | None:
        return self.size


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class CFSGenetic(MeritSelector, EvolvingSelector):
    """Correlation-based selection by a genetic algorithm with a large population.

    Args:
        merits: Release that the merits are computed from: "tables" (Gaussian noise on all
            contingency tables) or "entropies" (Laplace noise on every entropy, as in the paper).
        population: Number of sets per generation, k, 2 or more.
        generations: Number of generations after the first, l, 1 or more.
        alpha: Fraction of the fittest sets that become parents, in (0, 1].
        p_co: Probability of a crossover, in [0, 1].
        p_mu: Probability of a mutation; p_co + p_mu is at most 1.
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
        """Choose the fittest set of the last generation."""
        return self.choose_by_uncertainties(
            reads.means, *self.release_uncertainties(reads, stream), stream
        )

    def choose_by_uncertainties(
        self, means: Values, to_class: Values, between: Values, blank: float, stream: Stream
    ) -> SelectionResult:
        """Choose features by CFS-GA from released uncertainties.

        Args:
            means: Means of all features, (d,).
            to_class: Uncertainty of each feature with the target, (d,).
            between: Uncertainty of each pair of features, (d, d).
            blank: Uncertainty that about one in twenty irrelevant features exceeds.
            stream: Random stream of the whole selection.
        """
        found = cfs_genetic(
            to_class, between, generator=stream.child("genetic").generator(),
            generations=self.generations, **asdict(self.evolution),
        )  # fmt: skip
        return SelectionResult.of(
            means, found.selected, to_class=to_class, blank=blank, merit=found.merit
        )
