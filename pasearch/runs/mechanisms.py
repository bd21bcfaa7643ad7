"""A noisy count, and a pick by counts: exact mechanisms, in integers only.

    release = count + Z,    P(Z = z) = (1 - e^-epsilon) / (1 + e^-epsilon) * e^(-epsilon |z|)
    pick i with               P(i) ~ e^(epsilon points_i / (2 most))

One record changes a count by at most 1, and every points_i by at most `most`, so each is epsilon-
differentially private. Floating point would miss the far tail (and Laplace noise in floats leaks
outright), so both are drawn with rational arithmetic from uniform integers: epsilon is the float's
exact value, and no digit is lost.

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
"""Exact randomness: below(n) is a uniform whole number in [0, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCount:
    """Counts of records, with two-sided geometric noise.

    Guarantee: `release` is epsilon-DP for a count that one record changes by at most 1, exactly.

    Args:
        epsilon: The price of one release, above 0.
    """

    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def event(self) -> Geometric:
        """What one release costs."""
        return Geometric(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """The noise's standard deviation, in records: sqrt(2 e^-epsilon) / (1 - e^-epsilon)."""
        return math.sqrt(2) * math.exp(-self.epsilon / 2) / -math.expm1(-self.epsilon)

    def release(self, count: int, stream: Stream) -> int:
        """Return the count plus noise; it may be negative.

        The noise's key contains the count: a resumed run that counts the same releases the same,
        and one that counts otherwise draws afresh, so two releases never share their noise.

        Args:
            count: Number of records, private.
            stream: The release's own randomness.

        Raises:
            TypeError: The count is not a whole number (its value is private and not named).

        Cost: `event`, on every partition that the count was taken from; charge it first.
        """
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"a count is an int, not {type(count).__name__}: count records.")
        number = int(count)
        source = stream.child("noisy count", self.epsilon.hex(), number).integers()
        return number + discrete_laplace(Fraction(self.epsilon), source.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Counts of cells, each record in one at most, each with two-sided geometric noise.

    Guarantee: `release` is epsilon-DP if one record changes one count, by at most 1, exactly.

    Args:
        epsilon: The price of one release of all counts, above 0.
    """

    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def event(self) -> Geometric:
        """What one release costs: the noise of one cell alone tells of a record."""
        return Geometric(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Of each count's noise, in records."""
        return NoisyCount(epsilon=self.epsilon).standard_deviation

    def release(self, counts: list[int], stream: Stream) -> list[int]:
        """Return the counts plus noise; some may be negative.

        The noise's key contains all counts: where one is another, all noise is drawn afresh.

        Args:
            counts: Numbers of records, private.
            stream: The release's own randomness.

        Raises:
            TypeError: A count that is not a whole number.

        Cost: `event`, on every partition that the counts were taken from; charge it first.
        """
        each, own = NoisyCount(epsilon=self.epsilon), stream.child("noisy counts", *counts)
        return [each.release(count, own.child(cell)) for cell, count in enumerate(counts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism:
    """One of several candidates, the better the likelier: the exponential mechanism.

    Guarantee: `pick` is epsilon-DP if one record changes each candidate's points by at most `most`.

    Args:
        epsilon: The price of one pick, above 0.
        most: By how much one record may change the points of a candidate, 1 or more.
    """

    epsilon: float
    most: int = 1
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """What one pick costs, over any number of candidates."""
        return PureDP(epsilon=self.epsilon)

    def pick(self, points: Sequence[int], stream: Stream) -> int:
        """Return the index of the one that was picked.

        Exact: an index is drawn uniformly and kept with probability e^(-epsilon gap / (2 most)),
        gap = what it is behind the best, until one is kept.

        Args:
            points: Of each candidate, private.
            stream: The pick's own randomness; its key contains the points, as of a count.

        Cost: `event`, on every partition that the points were taken from; charge it first.
        """
        below = stream.child("pick", self.epsilon.hex(), *map(int, points)).integers().below
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
    """Return Z with P(Z = z) proportional to exp(-epsilon |z|), exactly (Algorithm 2).

    With epsilon = s/t: X = U + t V, where U in [0, t) is accepted with probability e^(-U/t) and V
    counts coins of probability 1/e, has P(X = x) ~ e^(-x/t); so floor(X / s) has the ratio
    e^(-s/t), and a fair sign (with -0 refused) makes it two-sided.
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

    Algorithm 1: the first k at which a coin of probability gamma/k fails is odd with probability
    1 - gamma + gamma^2/2 - ... = exp(-gamma).
    """
    k = 1
    while below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
