"""What a candidate changes in its recipe: absolute values, factors, and what follows the signal.

    steps      `steps`, or the recipe's own times `steps_scale`
    batch      `batch_share` of the records: 1 is all of them, at every step
    average    `average`, the horizon of the weights' moving average
    bound      `clip_norm`, of a bound that has one
    rate       `learning_rate`; or the recipe's own, or the rule `tune_learning_rate`, times
               `learning_rate_scale`, and where the signal mu n is strong `learning_rate_growth`;
               `learning_rate_most` at most

Steps and batch change the price; one function, `apply_settings`, gives both price and training.

`make_full_batch_settings` is how a linear model is trained. For a given price, the noise of a full
batch is least for a record; averaging half of the steps, and a rate that grows with the signal
up to a bound, were measured on Adult and Breast Cancer (benchmarks/features).

Source: ours; docs/rules.md, rule 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pasearch.errors import UsageError
from pasearch.spaces.candidate import PRIVACY_SETTINGS
from pasearch.training.clipping import ClippingMethod
from pasearch.training.recipe import Recipe, make_default_recipe, tune_learning_rate
from pasearch.training.temperature import compute_temperature

Settings = tuple[tuple[str, float], ...]
"""Pairs (name, value); see `spaces.candidate.SETTINGS`."""

STRONG_SIGNAL = 4000.0
"""Training records times mu from which `learning_rate_growth` makes a candidate's rate grow, as the
square root. Measured for a linear model on scattering features (benchmarks/portfolio)."""

FULL_BATCH_STEPS = 160
"""Steps of a training on full batches: more of them cost time and no epsilon."""


def make_full_batch_settings(regression: bool) -> Settings:
    """Return how a linear model is trained on records of root mean square norm 5.

    Where a number is predicted, residuals are small, so is the clip: measured on three tables at
    three signals, a fifth has mean absolute errors .001 to .01 below those of 1.
    """
    clip_norm, scale, most = (0.2, 0.12, 4.0) if regression else (1.0, 1.2, 10.0)
    return (
        ("batch_share", 1.0), ("steps", FULL_BATCH_STEPS), ("average", 0.5),
        ("clip_norm", clip_norm),
        ("learning_rate_scale", scale), ("learning_rate_most", most),
    )  # fmt: skip


def make_linear_recipe(slots: int, mu: float, regression: bool, outputs: int = 1) -> Recipe:
    """Return how a linear model is trained on so many slots, with the dial at mu.

    `outputs` is the number of classes, as of `tune_recipe`.
    """
    return tune_recipe(
        make_default_recipe(slots), make_full_batch_settings(regression), mu, slots, outputs=outputs
    )


def select_cost_settings(settings: Settings) -> Settings:
    """Return those that the price may depend on."""
    return tuple((name, value) for name, value in settings if name in PRIVACY_SETTINGS)


def count_steps(recipe: Recipe, settings: Settings) -> int:
    """Return a candidate's number of steps."""
    values = dict(settings)
    return max(1, round(values.get("steps", recipe.steps * values.get("steps_scale", 1.0))))


def apply_settings(recipe: Recipe, settings: Settings, slots: int) -> Recipe:
    """Return the recipe as a candidate has it, before noise and learning rate.

    Args:
        recipe: Before both.
        settings: The candidate's.
        slots: n, of the partition that is trained on.
    """
    values = dict(settings)
    own: dict[str, Any] = {"steps": count_steps(recipe, settings)}
    if "batch_share" in values:
        own["expected_batch_size"] = max(1, round(values["batch_share"] * slots))
    own |= {name: values[name] for name in ("average", "momentum") if name in values}
    if "clip_norm" in values:
        own["bounding"] = _replace_clip_norm(recipe.bounding, values["clip_norm"])
    return replace(recipe, **own)


def _replace_clip_norm(bounding: ClippingMethod | None, clip_norm: float) -> ClippingMethod:
    """Return a bound with a norm of its own.

    Raises:
        UsageError: It has none.
    """
    if bounding is None or "clip_norm" not in bounding.field_names():
        raise UsageError(
            "The setting clip_norm is of a recipe whose bound has one (flat, adaptive, encoded): "
            "take such a recipe, or leave clip_norm out."
        )
    values = {name: getattr(bounding, name) for name in bounding.field_names()}
    return type(bounding)(**values | {"clip_norm": clip_norm})


def apply_settings_and_noise(
    recipe: Recipe, settings: Settings, mu: float | None, slots: int
) -> Recipe:
    """Return a candidate's recipe with the noise that the dial gives its steps; None: without."""
    own = apply_settings(recipe, settings, slots)
    return own.with_noise(None if mu is None else own.noise_multiplier_for_mu(mu, slots))


def tune_recipe(
    recipe: Recipe, settings: Settings, mu: float | None, slots: int, factor: float = 1.0,
    outputs: int = 1,
) -> Recipe:  # fmt: skip
    """Return a candidate's recipe with its noise, its temperature and its learning rate.

    Args:
        recipe: Before both.
        settings: The candidate's.
        mu: The dial of the whole training's noise; None trains without, on public data.
        slots: n, of the partition that is trained on.
        factor: Of the rate that the rule gives, for the candidate's architecture.
        outputs: Number of classes, 1 for a regression target. A clipped training of two classes or
            more has the temperature of `compute_temperature`, if the recipe sets none.
    """
    own, values = apply_settings_and_noise(recipe, settings, mu, slots), dict(settings)
    if own.temperature is None:
        divisor = 1.0 if mu is None or outputs < 2 else compute_temperature(outputs, mu * slots)
        own = replace(own, temperature=divisor)
    if "learning_rate" in values:
        return replace(own, learning_rate=float(values["learning_rate"]))
    rate = own.learning_rate
    if rate is None:
        rate = tune_learning_rate(own, mu, slots) * factor
    rate *= values.get("learning_rate_scale", 1.0)
    most = values.get("learning_rate_growth", 1.0)
    if mu is not None and most > 1.0:
        rate *= min(most, max(1.0, math.sqrt(mu * slots / STRONG_SIGNAL)))
    return replace(own, learning_rate=min(rate, values.get("learning_rate_most", math.inf)))
