"""Formulas of the papers that nothing charges or prints: what their own figures are held against.

Sources: with each; Bao et al. Eq. 9 as printed, Yu et al. Theorem 2 and Section V-A, Abadi et al.
2016, Section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from zcdp import _rho, _rounded_up, epsilon_of_rho, rho_gaussian

from pasearch.accounting.checks import (
    check_fraction,
    check_positive,
    check_positive_integer,
    check_probability,
)
from pasearch.accounting.published_bounds import (
    PublishedBound,
    _bao_equation_9_value,
    _compute_log_moment,
    _find_epsilon_prime,
    _finite_or_none,
    yu_theorem_3_schedule,
)


def eq9_as_printed(
    *,
    acceptable_loss: float,
    validation_size: int,
    failure_probability: float,
    runs: Sequence[int],
    epsilon: float,
) -> PublishedBound:
    """Evaluate Eq. 9 as printed, with ln(1/(e' d k)); arguments of `bao_equation_9_corrected`."""
    (k,) = runs
    prime = _find_epsilon_prime(acceptable_loss, validation_size, failure_probability, float(k))
    return PublishedBound(
        value=_bao_equation_9_value(epsilon, prime),
        source="Bao et al. Eq. 9, as printed",
        verdict="not a valid bound: a misprint, ln(1/(e' d k)) for ln(k/(e' d))",
        formula="eps + 8 e', x v e' = 4 ln(1/(e' d k))",
    )


def rho_reshuffled(epochs: Iterable[Sequence[float]]) -> float:
    """Return rho of epochs of disjoint batches: each costs its largest, and they add up.

    Args:
        epochs: The noise multipliers of each epoch's batches, all that might be used of them. An
            epoch that was started counts whole; one without batches costs nothing.

    Source: Yu et al., Theorem 2.
    """
    return _rounded_up(
        sum((max(map(_rho, batches), default=Fraction(0)) for batches in epochs), Fraction(0))
    )


def moments_accountant(
    *, sampling_probability: float, noise_multiplier: float, steps: int, delta: float
) -> PublishedBound:
    """Return the moments accountant's figure for Poisson samples: orders 2..33.

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: sigma, above 0.
        steps: 1 or more.
        delta: In (0, 1).

    Source: Abadi et al. 2016, Section 3.2, as in Yu et al. Section V-A.
    """
    q = check_probability("sampling_probability", sampling_probability)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    steps = check_positive_integer("steps", steps)
    slack = -math.log(check_fraction("delta", delta))
    values = [
        (steps * _compute_log_moment(order, q, sigma) + slack) / (order - 1)
        for order in range(2, 34)
    ]
    return PublishedBound(
        value=_finite_or_none(min(values)),
        source="Abadi et al., moments accountant",
        verdict="a valid bound for Poisson samples, and larger than the price; for reshuffled "
        "batches not a valid bound",
        formula="min over a in 2..33 of steps rdp(a) + log(1/delta)/(a-1)",
    )


def yu_strong_composition(
    *, sampling_probability: float, noise_multiplier: float, steps: int, delta: float
) -> PublishedBound:
    """Return strong composition's figure for sampled batches, delta split evenly.

    q d = d' = delta / (steps + 1) as in the paper's Section II-D: each step is (e, d)-DP with
    e = sqrt(2 ln(1.25/d)) / sigma, on a sample (ln(1 + q (e^e - 1)), q d)-DP. The paper prints 34.3
    for q .01, sigma 6, 40 000 steps, delta 1e-5, and not how it splits delta: this gives 33.8.

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: sigma, above 0.
        steps: 1 or more.
        delta: In (0, 1).

    Source: Yu et al. Sections II-D and V-A; Dwork, Rothblum and Vadhan 2010.
    """
    q = check_probability("sampling_probability", sampling_probability)
    sigma = check_positive("noise_multiplier", noise_multiplier)
    steps = check_positive_integer("steps", steps)
    part = check_fraction("delta", delta) / (steps + 1)
    one = math.sqrt(2 * math.log(1.25 / min(1.0, part / q))) / sigma
    sampled = math.log1p(q * math.expm1(one)) if one < 500 else one
    drift = steps * sampled * math.expm1(sampled) if sampled < 500 else math.inf
    return PublishedBound(
        value=_finite_or_none(sampled * math.sqrt(-2 * steps * math.log(part)) + drift),
        source="Yu et al., strong composition",
        verdict="not a valid bound where a step's own epsilon is above 1, as its formula is proved "
        "for less; much larger than the price",
        formula="e sqrt(2 k ln(1/d')) + k e (e^e - 1), e = ln(1 + q (e^e1 - 1)), "
        "e1 = sqrt(2 ln(1.25/d)) / sigma, q d = d' = delta / (k + 1)",
    )


def yu_reshuffled(*, noise_multiplier: float, epochs: int, delta: float) -> PublishedBound:
    """Return zCDP's figure for epochs of reshuffled batches, at the same noise throughout.

    Args:
        noise_multiplier: sigma, above 0.
        epochs: That were started, 1 or more.
        delta: In (0, 1).

    Source: Yu et al. Theorem 2 and Proposition 1.

    >>> round(yu_reshuffled(noise_multiplier=6.0, epochs=400, delta=1e-5).value, 3)
    21.551
    """
    rho = check_positive_integer("epochs", epochs) * rho_gaussian(noise_multiplier)
    return PublishedBound(
        value=_finite_or_none(epsilon_of_rho(rho, delta)),
        source="Yu et al. Theorem 2",
        verdict="a valid bound for reshuffled batches under zero-out, and larger than the price",
        formula="rho + 2 sqrt(rho ln(1/delta)), rho = epochs / (2 sigma^2)",
    )


def yu_theorem3(
    *, sampling_probability: float, noise_multiplier: float, steps: int, delta: float
) -> PublishedBound:
    """Return the paper's easy estimate for sampled batches; none where q > 1 / (16 sigma).

    Args:
        sampling_probability: q, in (0, 1].
        noise_multiplier: sigma, above 0.
        steps: 1 or more.
        delta: In (0, 1).

    Source: Yu et al. Theorem 3, P = q^2 / sigma^2.

    >>> settings = {"sampling_probability": 0.01, "noise_multiplier": 6.0, "steps": 40_000}
    >>> round(yu_theorem3(**settings, delta=1e-5).value, 3)
    2.373
    """
    return yu_theorem_3_schedule([(sampling_probability, noise_multiplier, steps)], delta)
