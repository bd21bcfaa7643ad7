"""Privacy bounds as papers state them, printed next to the privacy cost and never charged.

    Bao et al. Eq. 8    cost of c runs: eps sqrt(2 c ln(1/d')) + c eps (e^eps - 1)
    Bao et al. Eq. 9    eps + 8 e', with the smallest e' such that x v >= (4/e') ln(1/(e' d p)),
                        p = 1/k; summed over the generations of a search
    Fu et al. Thm. 1    min over a of tau rdp(a) + log(1/delta)/(a-1), with only the number tau of
                        accepted updates
    Yu et al. Thm. 3    rho + 2 sqrt(rho ln(1/delta)), rho = sum of q^2 / sigma_t^2, for orders up
                        to U = sigma^2 ln(1/(q sigma)) + 1; if ln(1/delta) > rho (U-1)^2:
                        rho U + ln(1/delta) / (U-1)

Each result contains a verdict: why the bound is not valid here, or on which condition it is. The
last one is a conjecture of the paper, and wrong: for sigma 1, q .04 and order 4 (below U = 4.22)
the divergence is .00690, but 4 q^2 / sigma^2 is .00640.

Sources: Bao, Bauer and Bindschaedler, Section VIII-C; Gupta, Ligett, McSherry, Roth and Talwar
2010, Theorem 10.2 (as in Abadi et al. 2016, Appendix D); Fu, Chen and Ling, Theorem 1; Yu et al.,
Section IV-B. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pasearch.accounting.checks import (
    check_fraction,
    check_positive,
    check_positive_integer,
    check_probability,
)

MAX_EPSILON_PRIME = 0.5
"""Upper end of the interval (0, 1/2) of epsilon' for which Eq. 9 is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBound:
    """Privacy bound as a paper states it.

    Args:
        value: Epsilon by the formula of the paper. None: the formula gives no finite number.
        source: Paper and equation.
        verdict: Statement about the validity of the value.
        formula: Formula that was evaluated.
    """

    value: float | None
    source: str
    verdict: str
    formula: str

    def describe(self) -> str:
        """Describe the bound in one line, for plan and privacy card."""
        shown = "no figure" if self.value is None else f"epsilon {self.value:.4g}"
        return f"claimed ({self.source}): {shown}; {self.verdict}"

    def with_printed_figure(self, printed: str) -> PublishedBound:
        """Copy the bound with a text about the figure in the paper added to its verdict."""
        return replace(self, verdict=f"{self.verdict}; {printed}") if printed else self

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary of JSON values, including the one-line description."""
        return {**asdict(self), "text": self.describe()}


def bao_equation_8(*, epsilon: float, runs: int, delta_prime: float) -> PublishedBound:
    """Evaluate the advanced-composition bound of Bao et al. (Eq. 8) for several trainings.

    Args:
        epsilon: Epsilon of one training, above 0.
        runs: Number c of trainings, 1 or more.
        delta_prime: Additional delta d' of the composition, in (0, 1).

    Source: Bao et al. Eq. 8.

    >>> round(bao_equation_8(epsilon=0.1, runs=2313, delta_prime=1e-6).value, 3)
    49.607
    """
    epsilon, runs = check_positive("epsilon", epsilon), check_positive_integer("runs", runs)
    slack = math.log(1 / check_fraction("delta_prime", delta_prime))
    drift = runs * epsilon * math.expm1(epsilon) if epsilon < 500 else math.inf
    return PublishedBound(
        value=_finite_or_none(epsilon * math.sqrt(2 * runs * slack) + drift),
        source="Bao et al. Eq. 8",
        verdict="not a valid bound here: it holds for pure DP, and drops c delta",
        formula="eps sqrt(2c ln(1/d')) + c eps (e^eps - 1)",
    )


def bao_equation_9_corrected(
    *,
    acceptable_loss: float,
    validation_size: int,
    failure_probability: float,
    runs: Sequence[int],
    epsilon: float,
) -> PublishedBound:
    """Evaluate Eq. 9 of Bao et al., corrected: with ln(k/(e' d)) as in the theorem that it cites.

    Args:
        acceptable_loss: Fraction x of the target accuracy that may be lost, in (0, 1).
        validation_size: Number v of validation records.
        failure_probability: Probability d that the target is missed, in (0, 1).
        runs: Number k of trainings of each generation. Randomized search (RS) has one generation.
        epsilon: Epsilon of one training, above 0.

    Source: Gupta et al. 2010, Theorem 10.2, with p = 1/k; the sum: Bao et al., section VIII-C.

    >>> table_viii = dict(acceptable_loss=0.05, validation_size=5000, failure_probability=0.05)
    >>> round(bao_equation_9_corrected(**table_viii, epsilon=2.11, runs=(400,)).value, 3)
    3.486
    >>> round(bao_equation_9_corrected(**table_viii, epsilon=2.11, runs=(40, 20, 10)).value, 3)
    9.419
    """
    values = [
        _bao_equation_9_value(
            epsilon,
            _find_epsilon_prime(acceptable_loss, validation_size, failure_probability, 1 / k),
        )
        for k in runs
    ]
    several = len(values) > 1
    return PublishedBound(
        value=None if None in values else _finite_or_none(math.fsum(filter(None, values))),
        source="Bao et al. Eq. 9, corrected",
        verdict="not a valid bound here: the theorem needs trainings of pure DP",
        formula=f"{'sum over generations of ' * several}eps + 8 e', x v e' = 4 ln(k/(e' d))",
    )


def fu_theorem_1(
    *,
    sampling_probability: float,
    noise_multiplier: float,
    accepted: int,
    delta: float,
    condition: str = "",
) -> PublishedBound:
    """Evaluate Theorem 1 of Fu et al., which counts accepted updates only.

    A logarithm that is missing in the printed theorem is added.

    Args:
        sampling_probability: q = B / N, in (0, 1].
        noise_multiplier: Noise multiplier sigma, above 0.
        accepted: Number tau of accepted updates, 1 or more.
        delta: Failure probability, in (0, 1).
        condition: Text about `accepted` for the verdict, if the number is not known yet.

    Source: Fu et al. Theorem 1, orders 2..64.
    """
    q = check_probability("sampling_probability", sampling_probability)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    accepted = check_positive_integer("accepted", accepted)
    slack = math.log(1 / check_fraction("delta", delta))
    values = [
        (accepted * _compute_log_moment(order, q, sigma) + slack) / (order - 1)
        for order in range(2, 65)
    ]
    worth = "not a valid bound: the rejected updates, and the choice between them, cost too"
    return PublishedBound(
        value=_finite_or_none(min(values)),
        source="Fu et al. Theorem 1",
        verdict="; ".join(filter(None, (condition, worth))),
        formula="min over a in 2..64 of tau rdp(a) + log(1/delta)/(a-1)",
    )


def _find_epsilon_prime(x: float, v: int, d: float, p: float) -> float | None:
    """Find the smallest e' in (0, 1/2) with x v e' >= 4 ln(1/(e' d p)); None if there is none."""
    weight = check_fraction("acceptable_loss", x) * check_positive_integer("validation_size", v)
    share = check_fraction("failure_probability", d) * p

    def holds(prime: float) -> bool:
        return weight * prime >= -4 * math.log(prime * share)

    low, high = 0.0, MAX_EPSILON_PRIME
    if not holds(high):
        return None
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _bao_equation_9_value(epsilon: float, prime: float | None) -> float | None:
    """Compute eps + 8 e'; None if there is no e'."""
    return (
        None if prime is None else _finite_or_none(check_positive("epsilon", epsilon) + 8 * prime)
    )


def _compute_log_moment(order: int, q: float, sigma: float) -> float:
    """Compute (a - 1) rdp(a) of the sampled Gaussian at an integer order a, in one direction."""
    i = np.arange(order + 1)
    choose = np.array([math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
                       for k in i])  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        absent = np.where(i == order, 0.0, (order - i) * np.log1p(-q))
    return float(
        np.logaddexp.reduce(choose + absent + i * math.log(q) + i * (i - 1) / 2 / sigma**2)
    )


def _finite_or_none(value: float) -> float | None:
    """Replace an infinite value by None."""
    return value if math.isfinite(value) else None


def compute_order_limit(sampling_probability: float, noise_multiplier: float) -> float | None:
    """Compute the maximum order U in Theorem 3 of Yu et al.; None if q > 1 / (16 sigma).

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: Noise multiplier sigma, above 0.
    """
    q = check_probability("sampling_probability", sampling_probability)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    if not q * sigma <= 1 / 16:
        return None
    return sigma**2 * -math.log(q * sigma) + 1


def estimate_sampled_epsilon(
    releases: Iterable[tuple[float, float, int]], delta: float
) -> float | None:
    """Estimate epsilon at delta of steps on Poisson samples; it is not a valid bound.

    Args:
        releases: Triples (q, sigma, number of steps).
        delta: Failure probability, in (0, 1).

    Returns:
        Estimate; None if the paper gives none.

    Source: Yu et al., Theorem 3 and the paragraph on composition, P = q^2 / sigma^2.
    """
    slack = -math.log(check_fraction("delta", delta))
    rhos, limits = [], []
    for q, sigma, steps in releases:
        q, sigma = check_probability("q", q), check_positive("sigma", sigma)
        limit = compute_order_limit(q, sigma)
        if limit is None:
            return None
        limits.append(limit)
        rhos.append(check_positive_integer("steps", steps) * (q / sigma) ** 2)
    if not rhos:
        return 0.0
    rho, most = math.fsum(rhos), min(limits)
    if slack <= rho * (most - 1) ** 2:
        return rho + 2 * math.sqrt(rho * slack)
    return rho * most + slack / (most - 1)


def yu_theorem_3_schedule(
    releases: Iterable[tuple[float, float, int]], delta: float
) -> PublishedBound:
    """Evaluate Theorem 3 of Yu et al. for sampled batches; no value if a q is above 1 / (16 sigma).

    Args:
        releases: Triples (q, sigma, number of steps), which are composed.
        delta: Failure probability, in (0, 1).
    """
    value = estimate_sampled_epsilon(releases, delta)
    return PublishedBound(
        value=None if value is None else _finite_or_none(value),
        source="Yu et al. Theorem 3",
        verdict="not a valid bound: an estimate from a conjecture, which fails at sigma 1, q .04",
        formula="rho + 2 sqrt(rho ln(1/delta)), or rho U + ln(1/delta) / (U - 1); "
        "rho = steps q^2 / sigma^2, U = sigma^2 ln(1/(q sigma)) + 1",
    )
