"""What a search's plan is refused for, before anything is priced."""

from __future__ import annotations

from pasearch.errors import UsageError
from pasearch.planning import Terms, check_class_weights, planned_form
from pasearch.search.strategy import PORTIONS, Strategy
from pasearch.spaces.architecture import MOST_PARAMETERS
from pasearch.spaces.space import Portfolio, Space
from pasearch.training.recipe import Recipe


def check_space(strategy: Strategy, space: Space, terms: Terms) -> None:
    """Refuse now what could only fail when it is drawn: under a secret law that would tell."""
    form = planned_form(terms.schema, terms.most)
    space.check_fits(*form)
    largest = space.parameter_range(*form)[1]
    if largest > MOST_PARAMETERS:
        raise UsageError(
            f"Space {space.name!r}: its largest network has {largest:,} parameters: expected at "
            f"most {MOST_PARAMETERS:,}. Take fewer units, filters or layers."
        )
    if not strategy.private_trials and not terms.public:
        raise UsageError(
            f"Strategy {strategy.name!r} trains its candidates without privacy: it runs on data "
            "that you declare public (`data_is_public=True`), or take rs, mgrs or paas."
        )


def dimensions_of(
    recipes: tuple[Recipe, ...], strategy: Strategy, space: Space, terms: Terms
) -> tuple[int | None, ...]:
    """Return how many numbers any candidate trains, if a recipe's price depends on it."""
    named = next((each.noise.name for each in recipes if each.noise is not None), None)
    if named is None:
        return (None,)
    if terms.schema.undeclared:
        raise UsageError(
            f"{named} noise is priced for the network's size, which an undeclared schema leaves "
            "open: declare the schema, or take Gaussian noise."
        )
    if any(law.cap is not None for law in strategy.counts):
        raise UsageError(
            f"{named} noise has no loss distribution, which a capped number of trainings needs: "
            "leave `max_candidates=` out, or take Gaussian noise."
        )
    if (only := strategy.only(space)) is not None:
        candidates = [only]
    elif isinstance(space, Portfolio):
        candidates = list(space.entries)
    else:
        raise UsageError(
            f"{named} noise is priced for the network's size, and space {space.name!r} has too "
            "many: take one network, a portfolio, or Gaussian noise."
        )
    form = planned_form(terms.schema, terms.most)
    return tuple(sorted({each.parameters(*form)[1] for each in candidates}))


def check_recipes(recipes: tuple[Recipe, ...], space: Space, terms: Terms) -> None:
    """Refuse views and weights that the records do not have, before anything is charged."""
    shape = planned_form(terms.schema, terms.most)[0]
    for recipe in recipes:
        check_class_weights(recipe.class_weights, terms.schema)
        if (views := recipe.augmentation) is not None:
            for front_end in space.front_ends():
                views.check_fits(front_end.output_shape(shape))


def check_portions(strategy: Strategy) -> None:
    """Refuse portions without their selection rule, and the rule without portions."""
    if (strategy.portions > 1) != (strategy.selection_rule == PORTIONS):
        raise UsageError(
            f"Strategy {strategy.name!r} has {strategy.portions} portions and selection_rule "
            f"{strategy.selection_rule!r}: several portions are for {PORTIONS!r}, whose scores are "
            "exact and stay private."
        )
