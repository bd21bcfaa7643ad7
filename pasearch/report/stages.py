"""What plan, card and report say of a training: every stage in its own words.

The card and the report read `result.json`: its recipe is made again, so that each stage is asked,
and one that is not known is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

Values = dict[str, Any]

SEARCH, TRAINING, CHOICE = "architecture search", "training", "recipe choice"
"""The task of a run, as `result.json` names it; the second had one network, fixed beforehand."""

BESIDE = frozenset({"sampling_probability", "name", "steps_made", "trainer"})
"""What the recipe of `result.json` has beside the fields of a `Recipe`."""

RENAMED = {"order": "noise_before_clip"}
"""What versions before the fourth called a field."""

NO_FIGURE = {
    "Yu et al. Theorem 3": "its formula is stated for sampling probabilities up to 1 / (16 sigma), "
    "and a step's is larger here",
    "Bao et al. Eq. 9, corrected": "its theorem needs more validation records than there are",
}
"""Why a paper's formula gives no number for a run; others exceed what a computer can hold."""


def recipe_of(values: Values) -> Recipe:
    """Return the recipe of a `result.json`; one of an earlier version lacks some stages.

    Raises:
        UsageError: A field or a stage that is not known.
    """
    from pasearch.training.recipe import Recipe

    return Recipe.from_json(
        {RENAMED.get(name, name): value for name, value in values.items() if name not in BESIDE}
    )


def batching_words(recipe: Recipe, values: Values) -> str:
    """Return how batches are drawn, by the released model's recipe and by its plain values."""
    slots = round(recipe.expected_batch_size / values["sampling_probability"])
    return recipe.batches(slots).words()


WEIGHTED = (
    "each bounded gradient multiplied by its class's share of the largest weight ({}: as declared, "
    "this run did not count them)"
)


def stage_words(recipe: Recipe) -> list[str]:
    """Return what is done beside batches, bound and optimizer, one phrase a stage."""
    words = [stage.words() for stage in recipe.stages()]
    if (weights := recipe.class_weights) is not None:
        words.append(WEIGHTED.format(", ".join(f"{each:g}" for each in weights)))
    if recipe.temperature not in (None, 1.0):
        words.append(
            f"logits divided by the public temperature {recipe.temperature:.3g} after the last "
            "step, which calibrates probabilities and changes no predicted class"
        )
    return words


def noise_words(recipe: Recipe) -> str:
    """Return the noise multiplier: of every step, or of the first where a schedule lowers it."""
    first = f"{recipe.noise_multiplier:.4f}"
    return f"{first} at first" if recipe.schedule.varies else first


def steps_words(recipe: Recipe, made: int | None = None) -> str:
    """Return how many steps: at most so many where training ends when its filter is full."""
    if not recipe.schedule.steered:
        return f"{recipe.steps:,}"
    return f"{'' if made is None else f'made {made:,} of '}at most {recipe.steps:,}"


def optimizer_words(recipe: Recipe) -> str:
    """Return the optimizer, and over how many steps weights are averaged."""
    words = recipe.optimizing.words()
    if recipe.average is None:
        return words
    return f"{words}, weights averaged over about the last {100 * recipe.average:g} % of the steps"


OF_RECIPE = (
    "recipe",
    "steps",
    "batch_share",
    "average",
    "clip_norm",
    "momentum",
    "learning_rate_most",
)
"""Settings that are not repeated beside the recipe that they give."""


def setting_words(settings: Values) -> list[tuple[str, str]]:
    """Return the candidate's own settings; neither its recipe, nor factors of 1 on it.

    What batch, bound and average they give is said where the recipe is.
    """
    return [
        (name.replace("_", " "), f"{value:g}")
        for name, value in settings.items()
        if not (name in OF_RECIPE or (name.endswith("_scale") and value == 1))
    ]


def claim_words(claim: Values) -> str:
    """Return a paper's figure and what it is worth; or why its formula gives none."""
    if claim.get("value", 0.0) is not None:
        return str(claim["text"])
    why = NO_FIGURE.get(claim["source"], "its formula exceeds every number that a computer holds")
    return f"claimed ({claim['source']}): no figure, because {why}; {claim['verdict']}"
