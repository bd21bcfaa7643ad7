"""When a simpler model is the better one: what the papers prove, and rules of thumb from runs.

    Lemma 1       leave feature m out   <=>   |theta_m| <= (sqrt(c^2 + d) - |c|) / |x_m|
    Corollary 1   c = 0, one noise      <=>   |theta_m| <= sigma
    sample size   eps = ln(alpha + beta / n): the epsilon that n records need for a target

c^2 is the error of the model without noise, d = (sigma |x|)^2 - (sigma' |x'|)^2, x' the record
without feature m, sigma' the noise without it.

Source: Bao et al., section III-B (Lemma 1, Corollary 1) and VI-B.
"""

from __future__ import annotations

import math

import numpy as np

from pasearch.accounting.checks import positive, whole
from pasearch.errors import UsageError


def noise_scale(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the paper's sigma of output perturbation, Delta sqrt(2 ln(1.25 / delta)) / eps.

    An illustration: it is no price (the formula holds for epsilon up to 1).
    """
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / positive("epsilon", epsilon)


def largest_coefficient_to_drop(
    x: np.ndarray, error: float, sigma: float, sigma_without: float | None = None
) -> float:
    """Return up to which size a coefficient is better left out (Lemma 1), for one record.

    Args:
        x: The record, (m,); its last entry is the feature's, not 0.
        error: The squared error of the model without noise on it, 0 or above.
        sigma: Standard deviation of the noise on every coefficient.
        sigma_without: Of the noise of the model without the feature; None: the same.

    Raises:
        UsageError: The record has no such feature, or the model without it has more noise.
    """
    x = np.asarray(x, float)
    if not (x.ndim == 1 and len(x) and x[-1] != 0 and error >= 0.0):
        raise UsageError("Lemma 1 is of one record whose last feature is not 0, and an error.")
    without = sigma if sigma_without is None else sigma_without
    d = float((sigma * np.linalg.norm(x)) ** 2 - (without * np.linalg.norm(x[:-1])) ** 2)
    if d < 0.0:
        raise UsageError("The model without the feature has more noise: Lemma 1 is not of that.")
    return (math.sqrt(error + d) - math.sqrt(error)) / abs(float(x[-1]))


def features_worth_their_noise(coefficients: np.ndarray, sigma: float) -> np.ndarray:
    """Return which coefficients are larger than the noise (Corollary 1), bool, (m,)."""
    return np.abs(np.asarray(coefficients, float)) > sigma


def epsilon_of_one_more_feature(coefficient: float, sensitivity: float, delta: float) -> float:
    """Return from which epsilon on a feature of this coefficient is worth its noise.

    Corollary 1 solved for epsilon; infinite of a coefficient of 0.
    """
    if not coefficient:
        return math.inf
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / abs(coefficient)


def sample_size_curve(n: np.ndarray, epsilon: np.ndarray) -> tuple[float, float]:
    """Return (alpha, beta) of eps = ln(alpha + beta / n): least squares of e^eps on 1 / n.

    Args:
        n: Numbers of records, two different ones or more.
        epsilon: The epsilon at which each of them reached the same accuracy.

    Raises:
        UsageError: Fewer than two different numbers, or values that are not above 0.
    """
    n, epsilon = np.asarray(n, float), np.asarray(epsilon, float)
    if n.shape != epsilon.shape or len(np.unique(n)) < 2 or not (n > 0).all():
        raise UsageError("Give an epsilon for each of two or more different numbers of records.")
    if not (np.isfinite(epsilon) & (epsilon > 0)).all():
        raise UsageError("Every epsilon is above 0 and finite.")
    beta, alpha = np.polyfit(1.0 / n, np.exp(epsilon), 1)
    return float(alpha), float(beta)


def epsilon_needed(n: int, alpha: float, beta: float) -> float:
    """Return the epsilon that n records need; 0 where the fit says that they need none."""
    inside = alpha + beta / whole("n", n)
    return max(0.0, math.log(inside)) if inside > 0.0 else 0.0


def records_needed(epsilon: float, alpha: float, beta: float) -> float:
    """Return the smallest number of records for a target at epsilon; infinite if none will do."""
    room = math.exp(positive("epsilon", epsilon)) - alpha
    if room <= 0.0:
        return math.inf
    return max(1.0, math.ceil(beta / room))
