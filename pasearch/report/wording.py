"""Phrases that the plan, the card, the page, the notebook and the terminal share.

The card and the page read `result.json`: its recipe is restored, so that each stage describes
itself, and an unknown stage is an error.

Source: docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pasearch.planning import TEST_LINE
from pasearch.report.facts import summarize_attack
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Conv, Dense, Layer, Pool
from pasearch.training.score_tables import (
    CORRECTNESS_COLUMNS,
    ERROR_COLUMNS,
    LOG_ODDS_COLUMNS,
    PREDICTION_COLUMNS,
)

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.spaces.candidate import Candidate
    from pasearch.training.recipe import Recipe

Values = dict[str, Any]

MAX_LISTED_NAMES = 6
"""Number of names that a sentence lists."""

NO_ATTACK_BOUND = (
    "no bound on what an attacker finds is known, beyond epsilon and delta themselves."
)
"""Sentence on a price that no accountant translates into an attack."""


# --- words


def replace_underscores(name: str) -> str:
    """Replace the underscores of a name by spaces."""
    return str(name).replace("_", " ")


def join_names(names: list[str]) -> str:
    """Join a few names, with the number of those left out."""
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def format_number(value: float) -> str:
    """Format a number with three digits, or as an integer from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def capitalize_first(text: str) -> str:
    """Capitalise the first letter of a string."""
    return text[:1].upper() + text[1:]


# --- the training


def describe_stages(recipe: Recipe) -> list[str]:
    """Describe the optional training stages (schedule, denoising, ...), one phrase each."""
    words = [stage.describe() for stage in recipe.stages()]
    if (weights := recipe.class_weights) is not None:
        words.append(
            "each bounded gradient multiplied by its class's share of the largest weight "
            f"({', '.join(f'{each:g}' for each in weights)}: as declared, this run did not count "
            "them)"
        )
    if recipe.temperature not in (None, 1.0):
        words.append(
            f"logits divided by the public temperature {recipe.temperature:.3g} after the last "
            "step, which calibrates probabilities and changes no predicted class"
        )
    return words


def describe_batching(recipe: Recipe, values: Values) -> str:
    """Describe the sampling of batches of a released model.

    Args:
        recipe: The model's recipe.
        values: The same recipe in `result.json`, which states the sampling probability.
    """
    slots = round(recipe.expected_batch_size / values["sampling_probability"])
    return recipe.make_batching(slots).describe()


def format_noise_multiplier(recipe: Recipe) -> str:
    """Format the noise multiplier: of every step, or of the first if a schedule lowers it."""
    first = f"{recipe.noise_multiplier:.4f}"
    return f"{first} at first" if recipe.schedule.varies else first


def format_steps(recipe: Recipe, made: int | None = None) -> str:
    """Format the number of steps, a maximum if the privacy filter ends the training."""
    if not recipe.schedule.is_validation_driven:
        return f"{recipe.steps:,}"
    return f"{'' if made is None else f'made {made:,} of '}at most {recipe.steps:,}"


def describe_optimizer(recipe: Recipe) -> str:
    """Describe the optimizer and the averaging of weights."""
    words = recipe.optimizer_stage.describe()
    if recipe.average is None:
        return words
    return f"{words}, weights averaged over about the last {100 * recipe.average:g} % of the steps"


def format_settings(settings: Values) -> list[tuple[str, str]]:
    """Format a candidate's settings, except those that its recipe states, and factors of 1."""
    of_recipe = {
        "recipe", "steps", "batch_share", "average", "clip_norm", "momentum", "learning_rate_most",
    }  # fmt: skip
    return [
        (replace_underscores(name), f"{value:g}")
        for name, value in settings.items()
        if not (name in of_recipe or (name.endswith("_scale") and value == 1))
    ]


# --- releases and claims


def release_name(name: str, noun: str) -> str:
    """Name a release for a reader: the test's release is named after the run's metric."""
    return f"test {noun}" if name == TEST_LINE else name


def describe_counts(document: Values, name: str, noise: str) -> str:
    """Describe the noise of a release: a test's table has many counts at the cost of one.

    Args:
        document: `result.json`; a selector's fit has no score.
        name: Name of the release.
        noise: Description of the noise of one count.
    """
    score = document.get("score") or {}
    if name != TEST_LINE or not score.get("cells"):
        return noise
    axes = {
        LOG_ODDS_COLUMNS: "of the true class and how sure the model is",
        PREDICTION_COLUMNS: "of the true class and the class that the model answers",
        CORRECTNESS_COLUMNS: "of the true class and whether the answer is right",
        ERROR_COLUMNS: "of the target's value and the size of the error",
    }
    cells = sum(map(len, score["cells"]))
    return (
        f"a table of {cells:,} noisy counts, {axes[score['columns']]}. A record is in one of "
        f"them at most, so the table costs what one count does. Each is {noise}"
    )


def describe_claim(claim: Values) -> str:
    """Describe a paper's figure and its worth, or why its formula gives no figure."""
    if claim.get("value", 0.0) is not None:
        return str(claim["text"])
    reasons = {
        "Yu et al. Theorem 3": "its formula is stated for sampling probabilities up to 1 / (16 "
        "sigma), and a step's is larger here",
        "Bao et al. Eq. 9, corrected": "its theorem needs more validation records than there are",
    }
    why = reasons.get(claim["source"], "its formula exceeds every number that a computer holds")
    return f"claimed ({claim['source']}): no figure, because {why}; {claim['verdict']}"


# --- data, network, features and protection


def describe_layer(layer: Layer) -> str:
    """Describe a layer: its size and its activation."""
    kind, _, numbers = getattr(layer, "activation", "").partition(":")
    activation = replace_underscores(kind) + (f" ({numbers.replace(',', ', ')})" if numbers else "")
    match layer:
        case Dense():
            return f"{layer.units} {activation} units"
        case Conv():
            side = f"{layer.kernel} \u00d7 {layer.kernel}"
            return f"{layer.filters} {activation} filters of {side}"
        case Pool():
            name = "average" if layer.average else "max"
            return f"{layer.size} \u00d7 {layer.size} {name} pooling"
    return Architecture(layers=(layer,)).describe()


def describe_parts(candidate: Candidate) -> list[str]:
    """Describe the front end and each layer; a network without hidden layers is linear."""
    front = candidate.front_end
    layers = [describe_layer(layer) for layer in candidate.architecture.layers] or ["linear"]
    return layers if front.text == "raw" else [front.describe(), *layers]


def describe_network(candidate: Candidate) -> str:
    """Describe a network with its front end in one phrase."""
    *given, last = describe_parts(candidate)
    if last == "linear":
        return f"a linear model{' on ' if given else ''}{', then '.join(given)}"
    return ", then ".join([*given, last])


def describe_data(name: str, n: int, schema: AnySchema) -> str:
    """Describe the data and their target in one phrase.

    Args:
        name: Name of the data in this run.
        n: Number of records.
        schema: Declared, estimated or still to be estimated.
    """
    target = getattr(getattr(schema, "target", None), "name", None)
    column = "" if target is None else f" (column {target!r} is predicted)"
    return f"{name}: {n:,} records, {schema.describe()}{column}"


def describe_features(document: Values) -> str:
    """Describe the features of the model of a feature selection."""
    best, method = document["best"], document["strategy"]["name"]
    chosen = best["features"]
    if best["directions"] is not None:
        return f"a linear model of {best['directions']} directions in all {best['of']} features"
    if len(chosen) == best["of"]:
        return f"a linear model of all {best['of']} features"
    return (
        f"a linear model of {len(chosen)} of {best['of']} features, chosen by {method}: "
        f"{join_names(chosen)}"
    )


def _degree_and_odds(told: Values) -> tuple[str, str]:
    """Return how little a price protects ("none", "little" or ""), and the attacker's success."""
    degree = "none" if float(told["right"]) > 99.0 else "little" if told["is_weak"] else ""
    return degree, (
        "suppose somebody knows all other records, and says whose were used. If they are wrong "
        f"about {told['wrong']} of 100 people whose records were not, they are right about at most "
        f"{told['right']} of 100 whose records were (blind guessing: {told['wrong']})."
    )


def describe_attack_bound(told: Values | None) -> str:
    """Describe the protection of a plan.

    Args:
        told: What the price means (`facts.meaning`); None if no accountant translates it.
    """
    if told is None:
        return capitalize_first(NO_ATTACK_BOUND)
    degree, odds = _degree_and_odds(told)
    begins = {
        "none": "That protects nobody", "little": "That is little protection", "": "That means",
    }  # fmt: skip
    return f"{begins[degree]}: {odds}"


def describe_protection(document: Values) -> str:
    """Describe the protection of a finished run (`result.json`), or why it protects nobody."""
    if document["dataset"]["declared_public"]:
        return "none, because the data were declared public."
    if document["reproducible"]:
        return "none, because whoever knows the seed can take the noise away."
    told = summarize_attack(document)
    if told is None:
        return NO_ATTACK_BOUND
    found = ": ".join(each for each in _degree_and_odds(told) if each)
    return found + describe_uncovered(document["assumed_public"])


def describe_uncovered(assumed_public: Sequence[str]) -> str:
    """Warn of what a price does not cover because it was taken as public; "" without any."""
    if not assumed_public:
        return ""
    return (
        " That leaves out what was taken as public and not charged "
        f"({join_names(list(assumed_public))}): if it was read from these records, there is no "
        "bound on what it tells of them."
    )
