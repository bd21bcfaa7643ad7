"""Symmetrical uncertainty, the merit of a set of features, and merits from noisy entropies.

    H(x)      = - sum over values v of (n(v) / n) log2(n(v) / n)               0 log 0 = 0
    SU(x, y)  = 2 (1 - H(x, y) / (H(x) + H(y)))                                0: one is constant
    merit(S)  = sum of SU(x, class) / sqrt(k + sum over x != x' of SU(x, x'))  x, x' in S

with k features in S, which is Eq. 7: k times a mean over k features, and k (k - 1) times a mean
over so many pairs. All of it is post-processing of released tables. The paper's own route adds
noise to the entropies instead, one release for each of k (k + 1) / 2; between neighbours an entropy
moves by

    a record becomes null:   (log2 n) / n                  attained: a value that one record has
    a record moves:          (log2 n + 1 / ln 2) / n       at most

Source: Bao et al. Section VIII-B, Eq. 7 and VIII-C; Hall 1999; Bindschaedler, Shokri and Gunter
2017. Proof: docs/guarantees/contingency-tables.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pasearch.accounting.checks import checked, fraction, positive, whole
from pasearch.accounting.claims import Claim, eq8
from pasearch.accounting.events import SelfComposed
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.features.contingency import Attributes, Joint
from pasearch.runs.keys import Stream
from pasearch.runs.sums import NoisySum

CONSTANT = 1e-12
"""Below so many bits of entropy a variable is constant."""

GRID = 2**12
"""Into how many steps an entropy's sensitivity is divided: its noise is in whole steps."""


def symmetrical_uncertainty(joint: Joint, attributes: Attributes) -> tuple[Array, Array]:
    """Return how much every feature tells of the class, and of every other feature.

    Args:
        joint: Exact tables (private), or released ones (post-processing: no cost).
        attributes: Their columns.

    Returns:
        To the class (d,), and between features (d, d), symmetric: in [0, 1], 0 where one of the two
        is constant, 1 of a feature with itself.
    """
    return uncertainties(_entropies(joint, *_features(attributes)))


def uncertainties(entropies: Array) -> tuple[Array, Array]:
    """Return symmetrical uncertainty from entropies.

    Args:
        entropies: (k, k) of pairs, of one variable by itself on the diagonal; the class is last.

    Returns:
        To the class (k - 1,), and between the others (k - 1, k - 1).
    """
    alone = np.diag(entropies)
    both = alone[:, None] + alone
    varies = (alone > CONSTANT)[:, None] & (alone > CONSTANT)
    found = np.divide(2 * (both - entropies), both, out=np.zeros_like(both), where=varies)
    found = np.clip(found, 0.0, 1.0)
    return found[:-1, -1], found[:-1, :-1]


def merits(masks: np.ndarray, to_class: Array, between: Array) -> Array:
    """Return the merits of many sets at once, Eq. 7: (p,); of an empty set 0.

    Args:
        masks: (p, d) bool, True of a member.
        to_class: (d,).
        between: (d, d); its diagonal is not looked at.
    """
    chosen = np.asarray(masks, np.float64)
    others = between - np.diag(np.diag(between))
    redundancy = np.einsum("pd,pd->p", chosen @ others, chosen)
    return merit_of_sums(chosen @ to_class, redundancy, chosen.sum(axis=1))


def merit_of_sums(relevance: Array, redundancy: Array, size: Array | int) -> Array:
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
    if not whole("n", n) > 1:
        raise UsageError("n is 1: expected 2 records or more, one alone has no entropy.")
    return (math.log2(n) + (1 / math.log(2) if moved else 0.0)) / n


def claimed_sensitivity(n: int) -> float:
    """Return the sensitivity that Bindschaedler, Shokri and Gunter state: valid, not tight."""
    return (2 + 1 / math.log(2) + 2 * math.log2(n)) / n


SIMULATIONS = 100
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
    __post_init__ = checked(epsilon=positive)

    @property
    def count(self) -> int:
        """How many entropies there are: k single ones and k (k - 1) / 2 of pairs."""
        k = self.attributes.width + 1
        return k * (k + 1) // 2

    @property
    def event(self) -> SelfComposed:
        """What the release of all of them costs."""
        return SelfComposed(event=self._noise.event, count=self.count)

    @property
    def _noise(self) -> NoisySum:
        """The noise in steps of the grid: rounding adds up to one step, floating point another."""
        return NoisySum(epsilon=self.epsilon, most=GRID + 2)

    def scale(self, n: int) -> float:
        """Return the noise's scale, its mean absolute value, in bits."""
        return self._noise.most / self.epsilon * self._step(n)

    def _step(self, n: int) -> float:
        return entropy_sensitivity(n) / GRID

    def release(self, joint: Joint, stream: Stream) -> Array:
        """Return all entropies with noise, (k, k) in bits, for `uncertainties`.

        Args:
            joint: Of all records, all pairs, exact: private.
            stream: The release's own randomness; its keys contain the entropies.

        Cost: `event`, on every partition that was counted; charge it first.
        """
        step, noise = self._step(joint.slots), self._noise
        exact = _entropies(joint, *_features(self.attributes), records=joint.slots)
        released = np.empty_like(exact)
        for i, j in zip(*np.triu_indices(len(exact)), strict=True):
            own = stream.child("entropy", int(i), int(j))
            released[i, j] = released[j, i] = step * noise.release(round(exact[i, j] / step), own)
        return released

    def of_noise(self, released: Array, n: int, generator: np.random.Generator) -> Array:
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
        own, pair = generator.laplace(scale=self.scale(n), size=(2, SIMULATIONS, k - 1))
        of_class = generator.laplace(scale=self.scale(n), size=(SIMULATIONS, 1))
        both = alone[:-1] + alone[-1]
        varies = (alone[:-1] > CONSTANT) & (alone[-1] > CONSTANT)
        noise = 2 * (own + of_class - pair)
        found = np.divide(noise, both, out=np.zeros_like(noise), where=varies)
        return np.clip(found, 0.0, 1.0)

    def claim(self, *, n: int, delta: float) -> Claim:
        """Return what the paper's formulas charge for the same noise.

        Args:
            n: Slots.
            delta: Slack of the composition, in (0, 1).
        """
        one = claimed_sensitivity(n) / self.scale(n)
        times = claimed_sensitivity(n) / entropy_sensitivity(n, moved=True)
        return Claim(
            value=eq8(epsilon=one, runs=self.count, delta_prime=fraction("delta", delta)).value,
            source="Bindschaedler et al. 2017, as Bao et al. use it",
            verdict=f"a valid bound, from a sensitivity {times:.2f} times what is needed",
            formula="Eq. 8 of e = (2 + 1/ln 2 + 2 log2 n) / (n b) over all entropies, b the scale",
        )


Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Variables as sums of codes: (S, T) which codes a value is; where the values of each of k
variables begin, (k,); the column that each is of, (k,)."""


def _features(attributes: Attributes) -> Groups:
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


def _entropies(
    joint: Joint,
    values: np.ndarray,
    starts: np.ndarray,
    owners: np.ndarray,
    *,
    records: float | None = None,
) -> Array:
    """Return the entropies of variables, see `Groups`, and of their pairs, (k, k) in bits.

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
