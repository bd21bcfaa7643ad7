"""A noisy count and the exponential mechanism on counts, exact in integer arithmetic.

    release = count + Z,    P(Z = z) = (1 - e^-epsilon) / (1 + e^-epsilon) * e^(-epsilon |z|)
    pick i with               P(i) ~ e^(epsilon points_i / (2 most))

One record changes a count by at most 1, and every points_i by at most `most`, so each is epsilon-
differentially private. Floating point would truncate the far tail (and Laplace noise in floats
reveals the count), so both are drawn with rational arithmetic from uniform integers. Epsilon is the
exact value of the float.

Source: Canonne, Kamath and Steinke 2020 (arXiv 2004.00010), Algorithms 1 and 2; Ghosh,
Roughgarden and Sundararajan 2009; McSherry and Talwar 2007 (the exponential mechanism). Proof:
docs/guarantees/randomness.md, docs/guarantees/portions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral

from pasearch.accounting.checks import check_positive, check_positive_integer, make_post_init
from pasearch.accounting.events import Geometric, PureDP
from pasearch.runs.keys import Stream

DrawBelow = Callable[[int], int]
"""Source of exact randomness: a function of n that returns a uniform integer in [0, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCount:
    """Counts of records with two-sided geometric noise.

    Guarantee: `release` is exactly epsilon-DP for a count that one record changes by at most 1.

    Args:
        epsilon: Epsilon of one release, above 0.
    """

    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def event(self) -> Geometric:
        """Privacy event of one release."""
        return Geometric(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise in records: sqrt(2 e^-epsilon) / (1 - e^-epsilon)."""
        return math.sqrt(2) * math.exp(-self.epsilon / 2) / -math.expm1(-self.epsilon)

    def release(self, count: int, stream: Stream) -> int:
        """Release the count plus noise; it may be negative.

        The key of the noise contains the count: a resumed run with the same count releases the same
        number, and another count gets new noise, so two releases never share their noise.

        Args:
            count: Number of records, private.
            stream: Random stream of this release.

        Raises:
            TypeError: The count is not an integer (its value is private and not named).

        Cost: `event`, on every partition that was counted; charge it first.
        """
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"a count is an int, not {type(count).__name__}: count records.")
        number = int(count)
        source = stream.child("noisy count", self.epsilon.hex(), number).integers()
        return number + discrete_laplace(Fraction(self.epsilon), source.draw_below)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Counts of cells with two-sided geometric noise; each record is in at most one cell.

    Guarantee: `release` is exactly epsilon-DP if one record changes one count, by at most 1.

    Args:
        epsilon: Epsilon of one release of all counts, above 0.
    """

    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def event(self) -> Geometric:
        """Privacy event of one release: a record affects only one cell."""
        return Geometric(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of each count's noise, in records."""
        return NoisyCount(epsilon=self.epsilon).standard_deviation

    def release(self, counts: list[int], stream: Stream) -> list[int]:
        """Release the counts plus noise; some may be negative.

        The key of the noise contains all counts: if one differs, all noise is new.

        Args:
            counts: Numbers of records, private.
            stream: Random stream of this release.

        Raises:
            TypeError: A count is not an integer.

        Cost: `event`, on every partition that was counted; charge it first.
        """
        each, own = NoisyCount(epsilon=self.epsilon), stream.child("noisy counts", *counts)
        return [each.release(count, own.child(cell)) for cell, count in enumerate(counts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism:
    """Private selection of one of several candidates by the exponential mechanism.

    Guarantee: `pick` is epsilon-DP if one record changes each candidate's score count by at most
    `most`.

    Args:
        epsilon: Epsilon of one selection, above 0.
        most: Sensitivity of a candidate's score count to one record, 1 or more.
    """

    epsilon: float
    most: int = 1
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """Privacy event of one selection, for any number of candidates."""
        return PureDP(epsilon=self.epsilon)

    def pick(self, points: Sequence[int], stream: Stream) -> int:
        """Select a candidate and return its index.

        Exact rejection sampling: an index is drawn uniformly and accepted with probability
        e^(-epsilon gap / (2 most)), where gap is its distance from the best score count.

        Args:
            points: Score count of each candidate, private.
            stream: Random stream of this selection; its key contains the score counts.

        Cost: `event`, on every partition that the score counts were computed from; charge it first.
        """
        below = stream.child("pick", self.epsilon.hex(), *map(int, points)).integers().draw_below
        best, share = max(points), Fraction(self.epsilon) / (2 * self.most)
        while True:
            index = below(len(points))
            if bernoulli_decay(share * (best - points[index]), below):
                return index


def bernoulli_decay(gamma: Fraction, below: DrawBelow) -> bool:
    """Return True with probability exp(-gamma), gamma 0 or above."""
    certain = all(bernoulli_exp(1, 1, below) for _ in range(math.floor(gamma)))
    left = gamma - math.floor(gamma)
    return certain and bernoulli_exp(left.numerator, left.denominator, below)


def discrete_laplace(epsilon: Fraction, below: DrawBelow) -> int:
    """Draw Z with P(Z = z) proportional to exp(-epsilon |z|), exactly (Algorithm 2).

    With epsilon = s/t: X = U + t V, where U in [0, t) is accepted with probability e^(-U/t) and V
    counts Bernoulli successes of probability 1/e, has P(X = x) ~ e^(-x/t). So floor(X / s) has the
    ratio e^(-s/t), and a fair sign (with -0 rejected) makes it two-sided.
    """
    s, t = epsilon.numerator, epsilon.denominator
    while True:
        u = below(t)
        if not bernoulli_exp(u, t, below):
            continue
        v = 0
        while bernoulli_exp(1, 1, below):
            v += 1
        magnitude = (u + t * v) // s
        negative = below(2) == 1
        if negative and magnitude == 0:
            continue
        return -magnitude if negative else magnitude


def bernoulli_exp(numerator: int, denominator: int, below: DrawBelow) -> bool:
    """Return True with probability exp(-gamma), gamma = numerator/denominator in [0, 1].

    Algorithm 1: the first k at which a Bernoulli draw of probability gamma/k fails is odd with
    probability 1 - gamma + gamma^2/2 - ... = exp(-gamma).
    """
    k = 1
    while below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
