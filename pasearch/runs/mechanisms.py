"""Noisy counts and the exponential mechanism, exact in integer arithmetic.

    noisy count      count + Z,  P(Z = z) = (1 - e^-epsilon) / (1 + e^-epsilon) e^(-epsilon |z|)
    selection of i   P(i) proportional to e^(epsilon points_i / (2 most))

points_i is the integer score of candidate i. If one record changes a count by at most 1, and every
points_i by at most `most`, both are epsilon-differentially private. Both are drawn from uniform
integers with rational arithmetic. In floating point, the tail of the distribution would be cut off,
and Laplace noise would reveal the count. Epsilon is the exact value of the float.

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
"""Function of n that draws an exactly uniform integer from [0, n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCount:
    """Mechanism that adds two-sided geometric noise to a count of records.

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
        """Release the count plus noise; the result may be negative.

        The key of the noise is derived from the count. So a resumed run with the same count
        releases the same number, and two different counts never get the same noise.

        Args:
            count: Number of records, private.
            stream: Random stream of this release.

        Raises:
            TypeError: The count is not an integer. The message does not contain the private value.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise TypeError(f"a count is an int, not {type(count).__name__}: count records.")
        number = int(count)
        source = stream.child("noisy count", self.epsilon.hex(), number).integers()
        return number + draw_discrete_laplace(Fraction(self.epsilon), source.draw_below)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Mechanism that adds two-sided geometric noise to counts of disjoint groups of records.

    Guarantee: `release` is exactly epsilon-DP if one record changes one count, by at most 1.

    Args:
        epsilon: Epsilon of one release of all counts, above 0.
    """

    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)

    @property
    def event(self) -> Geometric:
        """Privacy event of one release of all counts: a record changes only one of them."""
        return Geometric(epsilon=self.epsilon)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of each count's noise, in records."""
        return NoisyCount(epsilon=self.epsilon).standard_deviation

    def release(self, counts: list[int], stream: Stream) -> list[int]:
        """Release the counts plus noise; results may be negative.

        The key of the noise is derived from all counts: if one count differs, all noise is new.

        Args:
            counts: Numbers of records, private.
            stream: Random stream of this release.

        Raises:
            TypeError: A count is not an integer.

        Cost: `event`, charged by the caller, before, to each partition of the records.
        """
        each, own = NoisyCount(epsilon=self.epsilon), stream.child("noisy counts", *counts)
        return [each.release(count, own.child(cell)) for cell, count in enumerate(counts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism:
    """Private selection of one of several candidates by their scores (exponential mechanism).

    Guarantee: `pick` is epsilon-DP if one record changes each score by at most `most`.

    Args:
        epsilon: Epsilon of one selection, above 0.
        most: Sensitivity: maximum change of a score by one record, 1 or more.
    """

    epsilon: float
    most: int = 1
    __post_init__ = make_post_init(epsilon=check_positive, most=check_positive_integer)

    @property
    def event(self) -> PureDP:
        """Privacy event of one selection, for any number of candidates."""
        return PureDP(epsilon=self.epsilon)

    def pick(self, points: Sequence[int], stream: Stream) -> int:
        """Select a candidate privately, and return its index.

        Sampling is exact, by rejection: a uniform index is accepted with probability e^(-epsilon
        gap / (2 most)), where gap is the best score minus the score of this candidate. The key of
        the random numbers is derived from the scores.

        Args:
            points: Integer score of each candidate, private.
            stream: Random stream of this selection.

        Cost: `event`, charged by the caller, before, to each partition of the scored records.
        """
        below = stream.child("pick", self.epsilon.hex(), *map(int, points)).integers().draw_below
        best, share = max(points), Fraction(self.epsilon) / (2 * self.most)
        while True:
            index = below(len(points))
            if draw_bernoulli_exp(share * (best - points[index]), below):
                return index


def draw_bernoulli_exp(gamma: Fraction, below: DrawBelow) -> bool:
    """Draw True with probability exp(-gamma), exactly, for gamma >= 0."""
    certain = all(draw_bernoulli_exp_below_1(1, 1, below) for _ in range(math.floor(gamma)))
    left = gamma - math.floor(gamma)
    return certain and draw_bernoulli_exp_below_1(left.numerator, left.denominator, below)


def draw_discrete_laplace(epsilon: Fraction, below: DrawBelow) -> int:
    """Draw Z with P(Z = z) proportional to exp(-epsilon |z|), exactly (Algorithm 2).

    Let epsilon = s/t. U is uniform in [0, t) and accepted with probability e^(-U/t). V is the
    number of Bernoulli(1/e) successes before the first failure. Then X = U + t V has P(X = x)
    proportional to e^(-x/t), and P(floor(X / s) = k) is proportional to e^(-k s/t). A random sign
    makes it two-sided; -0 is rejected.
    """
    s, t = epsilon.numerator, epsilon.denominator
    while True:
        u = below(t)
        if not draw_bernoulli_exp_below_1(u, t, below):
            continue
        v = 0
        while draw_bernoulli_exp_below_1(1, 1, below):
            v += 1
        magnitude = (u + t * v) // s
        negative = below(2) == 1
        if negative and magnitude == 0:
            continue
        return -magnitude if negative else magnitude


def draw_bernoulli_exp_below_1(numerator: int, denominator: int, below: DrawBelow) -> bool:
    """Draw True with probability exp(-gamma), exactly, gamma = numerator/denominator in [0, 1].

    Algorithm 1: Bernoulli draws with probability gamma/k are made for k = 1, 2, ... until one
    fails. The number k of the failure is odd with probability 1 - gamma + gamma^2/2 - ... =
    exp(-gamma).
    """
    k = 1
    while below(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
