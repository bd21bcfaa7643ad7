"""How a linear model is trained by DP-SGD: full batches, momentum, averaged weights.

For a given price, the noise of a full batch is least for a record. Measured on Adult and Breast
Cancer (benchmarks/features): half of the steps averaged, and a rate that grows with the signal.
"""

from __future__ import annotations

from pasearch.training.bounding.flat import Flat
from pasearch.training.recipe import Recipe

STEPS = 160
"""Steps of DP-SGD: full batches, so more of them cost time and no epsilon."""

CLIP_NORM = 1.0
"""Norm that a record's gradient is cut to; records have a root mean square norm of ROW_NORM."""

ROW_NORM = 5.0
"""The root mean square norm that records are scaled to, by the released means."""

REACH = 1.25
"""Longer rows than REACH times ROW_NORM are cut, where a method bounds rows and not gradients."""


def linear_recipe(slots: int, mu: float, regression: bool) -> Recipe:
    """Return how a linear model is trained on so many slots, with the dial at mu."""
    recipe = Recipe(
        expected_batch_size=slots, steps=STEPS, bounding=Flat(clip_norm=CLIP_NORM), average=0.5,
        learning_rate=learning_rate(mu * slots, regression),
    )  # fmt: skip
    return recipe.with_noise(recipe.noise_for_mu(mu, slots))


def learning_rate(signal: float, regression: bool) -> float:
    """Return the rate for a signal mu n, from public numbers only; a squared error bends more."""
    rate = 2.5 * signal / 1000.0
    return min(1.5, 0.3 * rate) if regression else min(10.0, rate)
