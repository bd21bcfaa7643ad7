"""How a plan's candidates are trained, and what one training of any of them costs.

Candidates may differ in their number of steps and in their recipe: the dial is mu, which gives each
its noise multiplier by the CLT rule, and the price is the worst over the space (event `Worst`).

Source: docs/rules.md, rule 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pasearch.accounting.events import Event, Worst
from pasearch.search.strategy import WHOLE, RoundShape
from pasearch.training.recipe import Recipe
from pasearch.training.settings import Settings, noised, priced, tuned

if TYPE_CHECKING:
    from pasearch.spaces.candidate import Candidate

RECIPE = "recipe"
"""The setting that says which of a plan's recipes a candidate has."""


def recipe_of(settings: Settings) -> int:
    """Return which of a plan's recipes a candidate has."""
    return int(dict(settings).get(RECIPE, 0))


def candidate_recipe(
    recipes: tuple[Recipe, ...],
    candidate: Candidate,
    mu: float | None,
    slots: int,
    shape: RoundShape = WHOLE,
    *,
    outputs: int,
) -> Recipe:
    """Return how a candidate is trained: its steps, their noise, and a learning rate to match.

    `training.settings` says what a candidate's settings change. In a shorter round it is the same
    training, with fewer steps; in one of less mu, with more noise. `outputs` is the number of
    classes, 1 for a regression target: the temperature depends on it.
    """
    recipe, own = recipes[recipe_of(candidate.settings)], None if mu is None else mu * shape.mu
    whole = tuned(recipe, candidate.settings, own, slots, candidate.rate_factor(), outputs)
    return replace(whole, steps=shape.shortened(whole.steps))


def training_event(
    recipes: tuple[Recipe, ...],
    settings: list[Settings],
    slots: int,
    mu: float,
    dimensions: tuple[int | None, ...] = (None,),
    shape: RoundShape = WHOLE,
) -> Event:
    """Return the price of one training with any of these settings: the worst of them."""
    kinds = dict.fromkeys((recipes[recipe_of(each)], priced(each)) for each in settings)
    whole = [noised(recipe, each, mu * shape.mu, slots) for recipe, each in kinds]
    made = [replace(each, steps=shape.shortened(each.steps)) for each in whole]
    sized = [(each, d) for each in made for d in (dimensions if each.noise else (None,))]
    events = tuple(each.event(slots, dimension) for each, dimension in sized)
    return events[0] if len(events) == 1 else Worst(events=events)
