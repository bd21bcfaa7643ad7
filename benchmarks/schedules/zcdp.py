"""Zero-concentrated DP as Yu et al. plan by it: one number rho, which adds up; nothing is charged.

    a Gaussian release              rho = 1 / (2 sigma^2)
    an epoch of disjoint batches    the largest rho of its batches                      Theorem 2
    epsilon(delta)                  rho + 2 sqrt(rho log(1 / delta))

For the paper's own tables: how long a budget lasts, and which decay makes it last so long.

Source: Yu et al., Sections II-C and IV-B; Bun and Steinke 2016 (Propositions 1.3 and 1.6). Proof:
docs/guarantees/schedules.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol

from pasearch.accounting.checks import (
    check_fraction,
    check_nonnegative,
    check_positive,
    check_positive_integer,
)
from pasearch.errors import UsageError

MOST_EPOCHS = 100_000
"""No budget is followed for longer."""


class Decay(Protocol):
    """How the noise falls; `training.schedules` has the papers'."""

    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, above 0; epochs are counted from 0."""
        ...


def rho_gaussian(noise_multiplier: float) -> float:
    """Return rho of one Gaussian release, 1 / (2 sigma^2).

    >>> rho_gaussian(8.0) * 100
    0.78125
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    rho = 0.5 / sigma / sigma
    if not math.isfinite(rho):
        raise UsageError(f"noise_multiplier is {sigma}: so little noise has no finite rho.")
    return rho


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return epsilon at delta of rho-zCDP.

    Args:
        rho: 0 or above.
        delta: In (0, 1).

    Source: Yu et al., Proposition 1.
    """
    rho = check_nonnegative("rho", rho)
    return rho + 2 * math.sqrt(rho * -math.log(check_fraction("delta", delta)))


def spent(schedule: Decay, *, noise_multiplier: float, epochs: int) -> float:
    """Return rho of so many epochs of reshuffled batches, rounded up.

    Args:
        schedule: How the noise falls.
        noise_multiplier: sigma_0, above 0.
        epochs: 1 or more.
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    return _rounded_up(_spent(schedule, sigma, check_positive_integer("epochs", epochs)))


def epochs_within(schedule: Decay, *, noise_multiplier: float, rho: float) -> int:
    """Return how many epochs of reshuffled batches cost rho at most.

    Args:
        schedule: How the noise falls.
        noise_multiplier: sigma_0, above 0.
        rho: The budget, above 0.

    Raises:
        UsageError: More than 100,000 epochs.
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    left = Fraction(check_positive("rho", rho))
    for epoch in range(MOST_EPOCHS + 1):
        left -= _rho(sigma * schedule.factor(epoch))
        if left < 0:
            return epoch
    raise UsageError(
        f"rho {rho} lasts for more than {MOST_EPOCHS:,} epochs: take less noise or a smaller rho."
    )


def uniform_noise(*, rho: float, epochs: int) -> float:
    """Return the noise multiplier at which so many epochs of uniform noise cost rho at most.

    sqrt(epochs / (2 rho)), rounded up: `epochs_within` gives the epochs back.
    """
    rho, epochs = check_positive("rho", rho), check_positive_integer("epochs", epochs)
    sigma = math.sqrt(epochs / (2 * rho))
    while epochs * _rho(sigma) > Fraction(rho):
        sigma = math.nextafter(sigma, math.inf)
    return sigma


def steepest_rate(
    make: Callable[[float], Decay],
    *,
    flat: float,
    steep: float,
    noise_multiplier: float,
    rho: float,
    epochs: int,
) -> float:
    """Return the steepest of a family of decays at which so many epochs cost rho at most.

    All of rho is spent, but for rounding. Flatter ones, down to where one epoch more fits, have the
    same number of epochs.

    Args:
        make: The decay of a rate.
        flat: The rate, above 0, of hardly any decay.
        steep: The rate, above 0, of the fastest; between the two the cost rises.
        noise_multiplier: sigma_0, above 0.
        rho: The budget, above 0.
        epochs: 1 or more.

    Returns:
        The rate, on the side that costs rho at most.

    Raises:
        UsageError: No rate does that: sigma_0 is too small even if it never falls, or so large that
            any decay leaves a rest.
    """
    sigma, epochs = (
        check_positive("noise_multiplier", noise_multiplier),
        check_positive_integer("epochs", epochs),
    )
    budget = Fraction(check_positive("rho", rho))

    def fits(rate: float) -> bool:
        return _spent(make(rate), sigma, epochs) <= budget

    if not fits(flat):
        raise UsageError(
            f"{epochs} epochs cost more than rho {rho} even if the noise stays at {sigma:g}: take "
            f"{uniform_noise(rho=rho, epochs=epochs):.6g} or above, or fewer epochs."
        )
    if fits(steep):
        raise UsageError(
            f"{epochs} epochs cost less than rho {rho} however fast the noise falls from "
            f"{sigma:g}: take less noise, more epochs, or another decay."
        )
    # Geometric halving gets near over any scale; the arithmetic one ends between neighbours.
    while not 0.5 < flat / steep < 2:
        middle = math.sqrt(flat * steep)
        flat, steep = (middle, steep) if fits(middle) else (flat, middle)
    while (middle := (flat + steep) / 2) not in (flat, steep):
        flat, steep = (middle, steep) if fits(middle) else (flat, middle)
    return flat


def _rho(noise_multiplier: float) -> Fraction:
    """Return rho of one Gaussian, as the exact value of its float: sums are then exact."""
    return Fraction(rho_gaussian(noise_multiplier))


def _spent(schedule: Decay, sigma: float, epochs: int) -> Fraction:
    return sum((_rho(sigma * schedule.factor(epoch)) for epoch in range(epochs)), Fraction(0))


def _rounded_up(number: Fraction) -> float:
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)
