"""Settings of a candidate of the search, which change the recipe of the run.

    steps           `steps`, or the number of the recipe times `steps_scale`
    batch           `batch_share`, the fraction of the records in a batch; 1: full batches
    batch size      `batch`, at most all records
    average         `average`, the horizon of the moving average of weights
    clipping        `clip_norm`, for a clipping method that has one
    learning rate   `learning_rate`; or the rate of the recipe, or of `tune_learning_rate`, times
                    `learning_rate_scale`, and for a strong signal mu n times
                    `learning_rate_growth`; at most `learning_rate_most`; with
                    `learning_rate_end`, it falls linearly to this fraction until the last epoch
    optimizer       `momentum`, `weight_decay`

Steps and batch change the privacy cost. The function `apply_settings` is used for both accounting
and training.

`make_full_batch_settings` makes the settings of a linear model. At a given privacy cost, full
batches have the smallest noise per record. Averaging over half of the steps, and a learning rate
that grows with the signal up to a maximum, were measured on Adult and Breast Cancer
(benchmarks/features).

Source: original to this project; docs/rules.md, rule 4. Proof:
docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pasearch.errors import UsageError
from pasearch.spaces.candidate import PRIVACY_SETTINGS
from pasearch.training.clipping import ClippingMethod
from pasearch.training.optimizers import LearningRateDecay
from pasearch.training.recipe import Recipe, make_default_recipe, tune_learning_rate
from pasearch.training.temperature import compute_temperature

Settings = tuple[tuple[str, float], ...]  # pairs (name, value); see `spaces.candidate.SETTINGS`

STRONG_SIGNAL = 4000.0
"""Signal mu n above which the learning rate grows with its square root, up to
`learning_rate_growth`. Measured for a linear model on scattering features (benchmarks/portfolio).
"""

FULL_BATCH_STEPS = 160
"""Number of steps with full batches; more steps take more time at the same epsilon."""


def make_full_batch_settings(regression: bool) -> Settings:
    """Make the settings of a linear model, for records with a root mean square norm of 5.

    Residuals of a regression target are small, and so is the clipping norm: on three tables at
    three signals, .2 gives mean absolute errors .001 to .01 below those with 1.
    """
    clip_norm, scale, most = (0.2, 0.12, 4.0) if regression else (1.0, 1.2, 10.0)
    return (
        ("batch_share", 1.0), ("steps", FULL_BATCH_STEPS), ("average", 0.5),
        ("clip_norm", clip_norm),
        ("learning_rate_scale", scale), ("learning_rate_most", most),
    )  # fmt: skip


def make_linear_recipe(slots: int, mu: float, regression: bool, outputs: int = 1) -> Recipe:
    """Make the recipe of a linear model, with noise and learning rate.

    Args:
        slots: Number of training records n, null records included.
        mu: Noise parameter mu of the whole training.
        regression: Whether the target is numeric.
        outputs: Number of classes, 1 for a regression target.
    """
    return tune_recipe(
        make_default_recipe(slots), make_full_batch_settings(regression), mu, slots, outputs=outputs
    )


def select_cost_settings(settings: Settings) -> Settings:
    """Select the settings on which the privacy cost can depend."""
    return tuple((name, value) for name, value in settings if name in PRIVACY_SETTINGS)


def count_steps(recipe: Recipe, settings: Settings) -> int:
    """Compute the number of steps of a candidate."""
    values = dict(settings)
    return max(1, round(values.get("steps", recipe.steps * values.get("steps_scale", 1.0))))


def apply_settings(recipe: Recipe, settings: Settings, slots: int) -> Recipe:
    """Apply the settings of a candidate to a recipe, except for the learning rate.

    Args:
        recipe: Recipe of the run.
        settings: Settings of the candidate.
        slots: Number of training records n, null records included.
    """
    values = dict(settings)
    own: dict[str, Any] = {"steps": count_steps(recipe, settings)}
    if "batch_share" in values:
        own["expected_batch_size"] = max(1, round(values["batch_share"] * slots))
    if "batch" in values:
        own["expected_batch_size"] = min(round(values["batch"]), slots)
    kept = ("average", "momentum", "weight_decay")
    own |= {name: values[name] for name in kept if name in values}
    if "clip_norm" in values:
        own["bounding"] = _replace_clip_norm(recipe.bounding, values["clip_norm"])
    if (end := values.get("learning_rate_end", 1.0)) < 1.0:
        made = replace(recipe, **own)
        epochs = max(1, made.make_batching(slots).epoch(made.steps))
        own["learning_rate_schedule"] = LearningRateDecay(end=end, period=epochs)
    return replace(recipe, **own)


def _replace_clip_norm(bounding: ClippingMethod | None, clip_norm: float) -> ClippingMethod:
    """Copy a clipping method with another clipping norm.

    Raises:
        UsageError: The method has no clipping norm.
    """
    if bounding is None or "clip_norm" not in bounding.field_names():
        raise UsageError(
            "Setting clip_norm requires a clipping method with a clipping norm (flat, adaptive, "
            "encoded): use such a recipe, or leave clip_norm out."
        )
    values = {name: getattr(bounding, name) for name in bounding.field_names()}
    return type(bounding)(**values | {"clip_norm": clip_norm})


def apply_settings_and_noise(
    recipe: Recipe, settings: Settings, mu: float | None, slots: int
) -> Recipe:
    """Apply the settings of a candidate, and set the noise for a total mu; None: no noise."""
    own = apply_settings(recipe, settings, slots)
    return own.with_noise(None if mu is None else own.compute_noise_multiplier_for_mu(mu, slots))


def tune_recipe(
    recipe: Recipe, settings: Settings, mu: float | None, slots: int, factor: float = 1.0,
    outputs: int = 1,
) -> Recipe:  # fmt: skip
    """Apply the settings of a candidate, and set noise, temperature and learning rate.

    Args:
        recipe: Recipe of the run.
        settings: Settings of the candidate.
        mu: Noise parameter mu of the whole training. None: no noise, for public data.
        slots: Number of training records n, null records included.
        factor: Factor on the tuned learning rate, for the architecture of the candidate.
        outputs: Number of classes, 1 for a regression target. With noise and two or more classes,
            the temperature is that of `compute_temperature`, unless the recipe sets one.
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
