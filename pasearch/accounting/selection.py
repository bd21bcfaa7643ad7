"""Privacy cost of repeat-and-select: the best of K runs is released, where K is secret and random.

Let Q be one run including its noisy score, with density q and privacy profile delta_Q, and F the
distribution function of the score. Let phi be the generating function of K, and m = E[K] = phi'(1).
The winner has the density q(y) phi'(F(y)). F' is the distribution function on a neighbouring data
set. If phi'(F) <= c phi'(F') for all neighbouring data sets, then the profile of the selection is

    delta(e) <= m delta_Q(e - log c),    so    eps(delta) <= eps_Q(delta / m) + log c

With u = 1 - F, and the upper bound T(u) of 1 - F', the constant is

    log c = max over u in [0, 1] of log phi'(1 - u) - log phi'(1 - T(u))
    T(u)  = min(1, min over e of exp(e) u + delta_Q(e))

Distributions of K (x = log(1/gamma)):

    truncated negative binomial, shape eta:  phi'(s) = m (gamma / (1 - (1-gamma) s))^(eta+1)
        m = eta expm1(x) / (1 - exp(-eta x));  eta = 0 (logarithmic): m = expm1(x) / x
    Poisson(mean) given K >= 1:  phi'(s) = m exp(-mean (1 - s)),  m = mean / (1 - exp(-mean))
        log c = mean delta_Q(0)
    binomial: N runs, each made with probability mean / N, given K >= 1
    with a cap, K is redrawn until K <= cap:  phi'(s) = sum of k p_k s^(k-1)
        the cap of a binomial distribution is N

Source: Papernot and Steinke 2022 ("Hyperparameter Tuning with Renyi Differential Privacy") for the
distributions and the RDP bounds (in `renyi`); docs/guarantees/repeat-and-select.md for the profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from pasearch.accounting.checks import (
    check_fraction,
    check_nonnegative,
    check_positive,
    check_positive_integer,
)
from pasearch.accounting.profiles import Array, PrivacyProfile
from pasearch.errors import UsageError

MAX_RUNS = 10_000  # maximum mean number of runs
POISSON = "poisson"  # value of `shape`
BINOMIAL = "binomial"  # value of `shape`


@dataclass(frozen=True, slots=True, init=False, repr=False)
class RunCountDistribution:
    """Distribution of the secret number of runs K >= 1 of a repeat-and-select.

    Args:
        mean: Mean before conditioning on K >= 1 (Poisson, binomial) and on K <= cap; above 1
            (Poisson: above 0) and at most 10,000. The attribute `mean` is E[K] after conditioning.
        shape: 0: logarithmic; 1: geometric; any other number above 0: truncated negative binomial;
            "poisson"; or "binomial".
        cap: Maximum of K; larger values are redrawn. None: no maximum. For a binomial distribution,
            the number of trials N, above the mean.

    Raises:
        UsageError: A number is out of its range, or the shape is unknown.

    Cost: `RepeatAndSelect(event, law)`. K is secret: only its distribution may be published.

    >>> RunCountDistribution.from_name("geometric", mean=10.0).quantile(0.5)
    7
    """

    NAMES: ClassVar[dict[str, float | str]] = {
        "logarithmic": 0.0,
        "geometric": 1.0,
        "poisson": POISSON,
        "binomial": BINOMIAL,
    }

    base_mean: float
    shape: float | Literal["poisson", "binomial"]
    cap: int | None

    def __init__(self, mean: float, shape: float | str, cap: int | None = None) -> None:
        base_mean = check_positive("mean", mean)
        if isinstance(shape, str):
            if shape not in (POISSON, BINOMIAL):
                raise UsageError(
                    f"shape is {shape!r}; expected a number >= 0, {POISSON!r} or {BINOMIAL!r}."
                )
        else:
            shape = check_nonnegative("shape", shape)
            if not shape <= MAX_RUNS:
                raise UsageError(f"shape is {shape:g}; expected at most {MAX_RUNS}.")
        if not base_mean <= MAX_RUNS or not (shape == POISSON or base_mean > 1):
            raise UsageError(
                f"mean is {base_mean:g}; expected a mean number of runs above 1 (a single run "
                f"needs no selection) and at most {MAX_RUNS:,}."
            )
        object.__setattr__(self, "base_mean", base_mean)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "cap", None if cap is None else check_positive_integer("cap", cap))
        if self.cap is not None and not self.cap <= 100 * MAX_RUNS:
            raise UsageError(f"cap is {cap}; expected at most {100 * MAX_RUNS}, or none.")
        if shape == BINOMIAL and not (self.cap is not None and self.cap > base_mean):
            raise UsageError(
                f"cap is {cap}; expected the largest number of trainings, above its mean, "
                f"{base_mean:g}, for a binomial distribution."
            )

    @classmethod
    def from_name(cls, name: str, *, mean: float, cap: int | None = None) -> RunCountDistribution:
        """Create a distribution by its name: "logarithmic", "geometric", "poisson" or "binomial".

        The default cap of a binomial distribution is twice the mean, so that each run is made with
        probability 1/2.
        """
        if name not in cls.NAMES:
            raise UsageError(f"law {name!r} is unknown; expected one of {', '.join(cls.NAMES)}.")
        if name == BINOMIAL and cap is None:
            cap = math.ceil(2 * check_positive("mean", mean))
        return cls(mean, cls.NAMES[name], cap)

    @property
    def name(self) -> str:
        """Common name of the distribution."""
        names = {shape: name for name, shape in self.NAMES.items()}
        return names.get(self.shape, f"negative binomial (shape {self.shape})")

    @property
    def mean(self) -> float:
        """Mean number of runs E[K], after conditioning on K >= 1 and K <= cap."""
        if self.cap is not None:
            weights = _compute_pmf(self)
            return float(weights @ np.arange(1, len(weights) + 1))
        if self.shape == POISSON:
            return self.base_mean / -math.expm1(-self.base_mean)
        return self.base_mean

    @property
    def log_inverse_gamma(self) -> float:
        """Parameter x = log(1 / gamma) of the truncated negative binomial distribution."""
        if isinstance(self.shape, str):
            raise UsageError(f"a {self.shape} distribution has no gamma.")
        return _find_log_inverse_gamma(self.base_mean, float(self.shape))

    def quantile(self, p: float) -> int:
        """Compute the smallest k with P(K <= k) >= p, p in (0, 1)."""
        cumulative = _compute_cdf(self)
        return 1 + int(np.searchsorted(cumulative[:-1], check_fraction("p", p)))

    def sample(self, uniform: float) -> int:
        """Convert a secret uniform number in (0, 1) to K, by inversion; K must be kept secret."""
        return self.quantile(uniform)

    def derivative(self, s: Array | float) -> Array:
        """Compute the derivative phi'(s) = E[K s^(K-1)] of the generating function, s in [0, 1]."""
        s = np.asarray(s, dtype=float)
        if self.cap is not None:
            weights = _compute_pmf(self)
            counts = np.arange(1, len(weights) + 1)
            return np.asarray(np.polynomial.polynomial.polyval(s, weights * counts), dtype=float)
        if self.shape == POISSON:
            return self.mean * np.exp(-self.base_mean * (1 - s))
        gamma = math.exp(-self.log_inverse_gamma)
        return self.mean * (gamma / (gamma + (1 - gamma) * (1 - s))) ** (float(self.shape) + 1)

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values."""
        return {"mean": self.base_mean, "shape": self.shape, "cap": self.cap}

    @classmethod
    def from_json(cls, document: object) -> RunCountDistribution:
        """Create a distribution from JSON values as written by `to_json`."""
        if not isinstance(document, Mapping) or set(document) != {"mean", "shape", "cap"}:
            raise UsageError(
                f"law is {document!r}; expected an object with exactly mean, shape and cap."
            )
        return cls(document["mean"], document["shape"], document["cap"])

    def describe(self) -> str:
        """Describe the distribution with its 99.9 % quantile, for the plan."""
        cap = "" if self.cap is None else f", redrawn above {self.cap}"
        cap = f", at most {self.cap}" if self.shape == BINOMIAL else cap
        return (
            f"{self.name} with mean {self.mean:.4g}{cap} (99.9%: {self.quantile(0.999)} or fewer)"
        )

    def __reduce__(self) -> tuple[type[RunCountDistribution], tuple[object, ...]]:
        return (RunCountDistribution, (self.base_mean, self.shape, self.cap))

    def __repr__(self) -> str:
        return f"Law(mean={self.base_mean!r}, shape={self.shape!r}, cap={self.cap!r})"


def selection_log_constant(law: RunCountDistribution, profile: PrivacyProfile) -> float:
    """Compute log c, the increase of epsilon by a selection (see the docstring of the module).

    Guarantee: the result is at least the maximum over u in [0, 1]. On an interval of u, the maximum
    is at most log phi'(1 - low) - log phi'(1 - T(high)). Intervals whose bound exceeds the largest
    value found so far by more than 1e-5 are divided, at most 8 times.

    Args:
        law: Distribution of the number of runs.
        profile: Privacy profile of one run.

    Source: docs/guarantees/repeat-and-select.md.
    """
    if law.shape == POISSON and law.cap is None:
        return law.base_mean * float(profile.at(0.0))
    edges = np.concatenate([[0.0], np.geomspace(1e-18, 1.0, 1500)])
    low, high = edges[:-1], edges[1:]
    attained = worst = 0.0  # u = 1 gives log c = 0
    for _ in range(8):
        top = np.log(law.derivative(1 - low))
        bound = top - np.log(law.derivative(1 - profile.neighbour_probability(high)))
        reached = top - np.log(law.derivative(1 - profile.neighbour_probability(low)))
        if np.isnan(bound).any() or np.isnan(reached).any():
            return math.inf
        attained = max(attained, float(reached.max()))
        open_ = bound > attained + 1e-5
        if not open_.any():
            return attained + 1e-5
        worst = max(attained + 1e-5, float(bound.max()))
        low, high = low[open_], high[open_]
        edges = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 7)  # six equal pieces
        edges[:, -1] = high
        low, high = edges[:, :-1].ravel(), edges[:, 1:].ravel()
    return worst


@lru_cache(maxsize=256)
def _find_log_inverse_gamma(mean: float, shape: float) -> float:
    """Find x = log(1 / gamma) of the truncated negative binomial with a mean, by bisection."""
    low, high = 0.0, 64.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _compute_tnb_mean(middle, shape) < mean else (low, middle)
    return high  # the larger x gives the smaller gamma and the higher cost


def _compute_tnb_mean(x: float, shape: float) -> float:
    """Compute the mean of a truncated negative binomial distribution from x = log(1 / gamma)."""
    if shape * x < 1e-12:
        return math.expm1(x) / x
    return shape * math.expm1(x) / -math.expm1(-shape * x)


@lru_cache(maxsize=8)
def _compute_pmf(law: RunCountDistribution) -> Array:
    """Compute P(K = 1), P(K = 2), ... up to the cap, or until the rest is below 2^-54."""
    if law.shape == POISSON:
        length = law.cap or math.ceil(law.base_mean + 12 * math.sqrt(law.base_mean) + 60)
        ratios = law.base_mean / np.arange(2, length + 1)
    elif law.shape == BINOMIAL:
        assert law.cap is not None
        k = np.arange(1, law.cap)
        ratios = (law.cap - k) / (k + 1) * law.base_mean / (law.cap - law.base_mean)
    else:
        x, shape = law.log_inverse_gamma, float(law.shape)
        length = law.cap or math.ceil((60 + shape + 12 * math.sqrt(shape)) * math.exp(x))
        k = np.arange(1, length)
        ratios = -math.expm1(-x) * (k + shape) / (k + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


@lru_cache(maxsize=8)
def _compute_cdf(law: RunCountDistribution) -> Array:
    """Compute P(K <= 1), P(K <= 2), ... like `_compute_pmf`."""
    return np.cumsum(_compute_pmf(law))
