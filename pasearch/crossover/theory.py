"""Conditions under which a simpler model is better: theorems of the paper, and a fitted curve.

    exact         leave feature m out  <=>  -sqrt(c^2 + d) - c <= theta_m x_m <= sqrt(c^2 + d) - c
    Lemma 1       leave feature m out  <=   |theta_m| <= (sqrt(c^2 + d) - |c|) / |x_m|
    Corollary 1   c = 0, equal noise:       leave feature m out  <=>  |theta_m| <= sigma
    sample size   eps = ln(alpha + beta / n): the epsilon that n records need for a target

The model is linear, with noise of standard deviation sigma on each coefficient. c = y - theta . x
is the residual without noise, d = (sigma |x|)^2 - (sigma' |x'|)^2, x' is the record without feature
m, and sigma' is the noise of the model without feature m. The expected squared error is
c^2 + (sigma |x|)^2 with the feature, and (c + theta_m x_m)^2 + (sigma' |x'|)^2 without it. The
exact condition compares the two.

The paper prints Lemma 1 as "if and only if". Only "if" holds: leaving the feature out may cancel
part of the residual. Counterexample: x = (1, 1), theta_m = 1, c = -1, sigma = sigma' = 0.5. The
bound of Lemma 1 is 0.118, but the expected error is 1.5 with the feature and 0.25 without it.

Source: Bao et al., section III-B (Lemma 1, Corollary 1) and VI-B.
"""

from __future__ import annotations

import math

import numpy as np

from pasearch.accounting.checks import check_nonnegative, check_positive, check_positive_integer
from pasearch.errors import UsageError


def find_coefficients_to_drop(
    x: np.ndarray, residual: float, sigma: float, sigma_without: float | None = None
) -> tuple[float, float] | None:
    """Return the interval of coefficients for which leaving out the last feature is better.

    The condition is exact: for one record, the expected squared error without the feature is at
    most that with the feature if and only if its coefficient theta_m is in the interval.

    Args:
        x: Record, (m,). The last entry is the value of the feature, which is not 0.
        residual: Label minus the prediction of the model with the feature, without noise.
        sigma: Standard deviation of the noise on every coefficient, 0 or above.
        sigma_without: Standard deviation for the model without the feature; None: `sigma`.

    Returns:
        The ends of the interval, (low, high). None if it is empty, because the noise of the model
        without the feature exceeds the whole error with it.

    Raises:
        UsageError: The last entry of the record is 0, or a number is not finite.

    >>> find_coefficients_to_drop(np.array([1.0, 1.0]), residual=-1.0, sigma=0.5)
    (-0.118..., 2.118...)
    """
    x = np.asarray(x, float)
    finite = math.isfinite(residual) and np.isfinite(x).all()
    if not (finite and x.ndim == 1 and len(x) and x[-1] != 0):
        raise UsageError("Lemma 1 needs one record whose last feature is not 0, and its residual.")
    without = check_nonnegative("sigma_without", sigma if sigma_without is None else sigma_without)
    more = (check_nonnegative("sigma", sigma) * np.linalg.norm(x)) ** 2
    square = residual**2 + float(more - (without * np.linalg.norm(x[:-1])) ** 2)
    if square < 0.0:
        return None
    ends = ((side * math.sqrt(square) - residual) / float(x[-1]) for side in (-1.0, 1.0))
    low, high = sorted(ends)
    return low, high


def largest_coefficient_to_drop(
    x: np.ndarray, error: float, sigma: float, sigma_without: float | None = None
) -> float:
    """Return the bound of Lemma 1 on the absolute coefficient, which ignores the residual's sign.

    Leaving out a feature is better if its absolute coefficient is at most this bound. It may also
    be better for a larger coefficient (`find_coefficients_to_drop` is exact).

    Args:
        x: Record, (m,). The last entry is the value of the feature, which is not 0.
        error: Squared error of the model with the feature, without noise, 0 or above.
        sigma: Standard deviation of the noise on every coefficient, 0 or above.
        sigma_without: Standard deviation for the model without the feature; None: `sigma`.

    Raises:
        UsageError: The last entry of the record is 0, or the model without the feature has more
            noise.
    """
    found = find_coefficients_to_drop(
        x, math.sqrt(check_nonnegative("error", error)), sigma, sigma_without
    )
    if found is None or not found[0] <= 0.0 <= found[1]:
        raise UsageError("Lemma 1 does not hold if the model without the feature has more noise.")
    return min(abs(each) for each in found)


def find_features_above_noise(coefficients: np.ndarray, sigma: float) -> np.ndarray:
    """Return the mask of the coefficients that exceed the noise (Corollary 1), bool, (m,)."""
    return np.abs(np.asarray(coefficients, float)) > sigma


def min_epsilon_for_feature(coefficient: float, sensitivity: float, delta: float) -> float:
    """Return the smallest epsilon at which a feature is worth its noise; infinite if it is useless.

    This is Corollary 1, solved for epsilon.

    Args:
        coefficient: Coefficient of the feature; 0 means a useless feature.
        sensitivity: L2 sensitivity of the coefficients.
        delta: Delta of the Gaussian mechanism.
    """
    if not coefficient:
        return math.inf
    return sensitivity * math.sqrt(2.0 * math.log(1.25 / delta)) / abs(coefficient)


def fit_sample_size_curve(n: np.ndarray, epsilon: np.ndarray) -> tuple[float, float]:
    """Fit alpha and beta of eps = ln(alpha + beta / n), by least squares of e^eps on 1 / n.

    Args:
        n: Numbers of records, with two or more different values.
        epsilon: Epsilon at which each number of records reached the same accuracy.

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


def predict_epsilon(n: int, alpha: float, beta: float) -> float:
    """Predict the epsilon that n records need for the target accuracy, 0 or above."""
    inside = alpha + beta / check_positive_integer("n", n)
    return max(0.0, math.log(inside)) if inside > 0.0 else 0.0


def predict_records(epsilon: float, alpha: float, beta: float) -> float:
    """Predict the number of records for the target accuracy at epsilon; infinite if impossible."""
    room = math.exp(check_positive("epsilon", epsilon)) - alpha
    if room <= 0.0:
        return math.inf
    return max(1.0, math.ceil(beta / room))
