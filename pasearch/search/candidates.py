"""How a plan's candidates are trained, and what one training of any of them costs.

Candidates may differ in their number of steps and in their recipe: the dial is mu, which gives each
its noise multiplier by the CLT rule, and the price is the worst over the space (event `Worst`).

Source: docs/rules.md, rule 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pasearch.accounting.events import Event, Worst
from pasearch.search.strategy import WHOLE, RoundShape, Settings
from pasearch.training.recipe import Recipe, tuned_learning_rate

if TYPE_CHECKING:
    from pasearch.spaces.candidate import Candidate

RECIPE = "recipe"
"""The setting that says which of a plan's recipes a candidate has."""

STRONG_SIGNAL = 4000.0
"""Training records times mu from which `learning_rate_growth` makes a candidate's rate grow, as the
square root. Measured for a linear model on scattering features (benchmarks/portfolio)."""


def recipe_of(settings: Settings) -> int:
    """Return which of a plan's recipes a candidate has."""
    return int(dict(settings).get(RECIPE, 0))


def candidate_recipe(
    recipes: tuple[Recipe, ...],
    candidate: Candidate,
    mu: float | None,
    slots: int,
    shape: RoundShape = WHOLE,
) -> Recipe:
    """Return how a candidate is trained: its steps, their noise, and a learning rate to match.

    `steps_scale` and `learning_rate_scale` are factors on the recipe's own; `learning_rate_growth`
    is one more, where the signal mu n is strong; a candidate's own `learning_rate` is taken as it
    is. In a shorter round it is the same training, with fewer steps.
    """
    recipe = recipes[recipe_of(candidate.settings)]
    noised = noised_recipe(recipe, steps_of(recipe, candidate.settings), mu, slots)
    rate = _learning_rate(noised, candidate, mu, slots)
    return replace(noised, learning_rate=rate, steps=shape.shortened(noised.steps))


def _learning_rate(noised: Recipe, candidate: Candidate, mu: float | None, slots: int) -> float:
    """Return the learning rate of a candidate's whole training."""
    settings = dict(candidate.settings)
    if "learning_rate" in settings:
        return float(settings["learning_rate"])
    rate = noised.learning_rate
    if rate is None:
        rate = tuned_learning_rate(noised, mu, slots) * candidate.rate_factor()
    rate *= settings.get("learning_rate_scale", 1.0)
    most = settings.get("learning_rate_growth", 1.0)
    if mu is not None and most > 1.0:
        rate *= min(most, max(1.0, math.sqrt(mu * slots / STRONG_SIGNAL)))
    return rate


def steps_of(recipe: Recipe, settings: Settings) -> int:
    """Return a candidate's number of steps: all that its settings change in the price."""
    values = dict(settings)
    return max(1, round(values.get("steps", recipe.steps * values.get("steps_scale", 1.0))))


def noised_recipe(recipe: Recipe, steps: int, mu: float | None, slots: int) -> Recipe:
    """Return the recipe with so many steps and the noise that the dial gives them."""
    recipe = replace(recipe, steps=steps)
    if mu is None:
        return recipe.with_noise(None)
    return recipe.with_noise(recipe.noise_for_mu(mu, slots))


def training_event(
    recipes: tuple[Recipe, ...],
    settings: list[Settings],
    slots: int,
    mu: float,
    dimensions: tuple[int | None, ...] = (None,),
    shape: RoundShape = WHOLE,
) -> Event:
    """Return the price of one training with any of these settings: the worst of them."""
    used = [(recipes[recipe_of(each)], each) for each in settings]
    kinds = dict.fromkeys((recipe, steps_of(recipe, each)) for recipe, each in used)
    whole = [noised_recipe(recipe, steps, mu, slots) for recipe, steps in kinds]
    noised = [replace(each, steps=shape.shortened(each.steps)) for each in whole]
    priced = [(each, d) for each in noised for d in (dimensions if each.noise else (None,))]
    events = tuple(each.event(slots, dimension) for each, dimension in priced)
    return events[0] if len(events) == 1 else Worst(events=events)
