"""Phrases shared by the plan, the card, the report page, the notebook and the terminal.

The card and the page restore the recipe object from `result.json` and use the descriptions of its
stages. An unknown stage is an error.

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
"""Maximum number of names listed in a sentence; the rest are counted."""

NO_ATTACK_BOUND = (
    "Membership inference bound: not available from this accountant; only epsilon and delta limit "
    "what an attacker learns."
)
"""Sentence for a privacy cost whose accountant bounds no attacker's detection rate."""


# --- words


def replace_underscores(name: str) -> str:
    """Replace the underscores in a name by spaces."""
    return str(name).replace("_", " ")


def join_names(names: list[str]) -> str:
    """Join the first names by commas, and count the rest: "a, b and 3 more"."""
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
    """Return one phrase per optional training stage (schedule, denoising, screening, ...)."""
    words = [stage.describe() for stage in recipe.stages()]
    if recipe.micro_batch > 1:
        words.append(f"encoded means of micro-batches of {recipe.micro_batch:,} records")
    if (weights := recipe.class_weights) is not None:
        listed = ", ".join(f"{each:g}" for each in weights)
        words.append(
            f"clipped gradients multiplied by class weights relative to the largest ({listed}; "
            "declared by the user, not computed from the data)"
        )
    if recipe.temperature not in (None, 1.0):
        words.append(
            f"logits divided by the public temperature {recipe.temperature:.3g} after training "
            "(calibrates probabilities, changes no predicted class)"
        )
    return words


def describe_batching(recipe: Recipe, values: Values) -> str:
    """Describe how the batches of a released model were sampled.

    Args:
        recipe: Recipe of the model.
        values: The same recipe in `result.json`, which states the sampling probability.
    """
    records = round(recipe.expected_batch_size / values["sampling_probability"])
    return recipe.make_batching(records).describe()


def format_noise_multiplier(recipe: Recipe) -> str:
    """Format the noise multiplier of every step, or of the first step if a schedule lowers it."""
    first = f"{recipe.noise_multiplier:.4f}"
    return f"{first} initially" if recipe.schedule.varies else first


def format_steps(recipe: Recipe, made: int | None = None) -> str:
    """Format the number of steps, which is a maximum if a privacy filter may end the training.

    Args:
        recipe: Recipe of the training.
        made: Number of steps that were run; None before the run, or if all steps were run.
    """
    if not recipe.schedule.is_validation_driven:
        return f"{recipe.steps:,}"
    return f"{'' if made is None else f'{made:,} of '}at most {recipe.steps:,}"


def describe_optimizer(recipe: Recipe) -> str:
    """Describe the optimizer and the averaging of weights."""
    words = recipe.optimizer_stage.describe()
    if recipe.weight_decay:
        words += f", weight decay {recipe.weight_decay:g}"
    if recipe.average is None:
        return words
    return f"{words}, weights averaged over about the last {100 * recipe.average:g} % of the steps"


def format_settings(settings: Values) -> list[tuple[str, str]]:
    """Return pairs (name, value) of a candidate's settings that change its training.

    Settings that the description of the recipe includes, and scale factors of 1, are left out.
    """
    of_recipe = {
        "recipe", "steps", "batch", "batch_share", "average", "clip_norm", "momentum",
        "learning_rate_most", "learning_rate_end", "weight_decay",
    }  # fmt: skip
    return [
        (replace_underscores(name), f"{value:g}")
        for name, value in settings.items()
        if not (name in of_recipe or (name.endswith("_scale") and value == 1))
    ]


# --- releases and published bounds


def release_name(name: str, noun: str, count: int = 1, estimated: str = "schema") -> str:
    """Return the name of a release for a reader, with the number of such releases.

    Args:
        name: Name of the release in the plan and in `result.json`.
        noun: Name of the run's metric.
        count: Number of releases of that name; 1 adds no number.
        estimated: Noun for the items that are estimated privately.
    """
    if name == "schema":
        return f"private {estimated} estimation ({count:,} item{'s' * (count != 1)})"
    name = f"test {noun}" if name == TEST_LINE else name
    return name if count == 1 else f"{name} ({count:,} times)"


def describe_release_noise(document: Values, name: str, noise: str) -> str:
    """Describe the noise of a release, and the structure of a table of test counts.

    Args:
        document: `result.json`; a selector's fit has no score.
        name: Name of the release.
        noise: Description of the noise of one count.
    """
    score = document.get("score") or {}
    if name != TEST_LINE or not score.get("cells"):
        return noise
    axes = {
        LOG_ODDS_COLUMNS: "true class by binned log-odds",
        PREDICTION_COLUMNS: "true class by predicted class",
        CORRECTNESS_COLUMNS: "true class by correct or wrong prediction",
        ERROR_COLUMNS: "binned target by binned absolute error",
    }
    counts = sum(map(len, score["cells"]))
    return (
        f"a table of {counts:,} noisy counts ({axes[score['columns']]}). Each record changes at "
        f"most one of them, so the table has the privacy cost of one count. Each is {noise}"
    )


def describe_claim(claim: Values) -> str:
    """Describe a published bound and its validity; if it has no value, give the reason."""
    if claim.get("value", 0.0) is not None:
        return str(claim["text"])
    reasons = {
        "Yu et al. Theorem 3": "its formula holds for sampling probabilities up to 1 / (16 sigma), "
        "and that of this run is larger",
        "Bao et al. Eq. 9, corrected": "its theorem needs more validation records than this run "
        "has",
    }
    reason = reasons.get(claim["source"], "its value exceeds the range of floating-point numbers")
    return f"claimed ({claim['source']}): no value, because {reason}; {claim['verdict']}"


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
    """Return one phrase for the feature extractor and one per layer ("linear" without layers)."""
    front = candidate.front_end
    layers = [describe_layer(layer) for layer in candidate.architecture.layers] or ["linear"]
    return layers if front.text == "raw" else [front.describe(), *layers]


def describe_network(candidate: Candidate) -> str:
    """Describe a network in one phrase: its kind, its hidden layers and its feature extractor."""
    front, layers = candidate.front_end, candidate.architecture.layers
    on = "" if front.text == "raw" else f" on {front.describe()}"
    if not layers:
        return f"linear model{on}"
    is_mlp = all(isinstance(layer, Dense) for layer in layers)
    kind = "MLP" if is_mlp else "CNN" if any(isinstance(e, Conv) for e in layers) else "network"
    return f"{kind} with {', then '.join(map(describe_layer, layers))}{on}"


def describe_data(name: str, n: int, schema: AnySchema) -> str:
    """Describe the data and their target in one phrase.

    Args:
        name: Name of the data in this run.
        n: Number of records.
        schema: Schema of the data: declared, estimated, or still to be estimated.
    """
    target = getattr(getattr(schema, "target", None), "name", None)
    column = "" if target is None else f" (target: column {target!r})"
    return f"{name}: {n:,} records, {schema.describe()}{column}"


def describe_features(document: Values, *, unselected: str = "", names: bool = True) -> str:
    """Describe the linear model of a feature selection in one phrase.

    Args:
        document: `result.json` of a feature selection.
        unselected: Text after a model on all features, if no method selected them.
        names: Whether to list selected features.
    """
    best, method = document["best"], document["strategy"]["name"]
    chosen, total = best["features"], f"{best['of']:,}"
    if best["directions"] is not None:
        return f"linear model on {best['directions']} projections of all {total} features"
    if len(chosen) == best["of"]:
        selected = unselected if method in ("all", "max-pool") else f", selected by {method}"
        return f"linear model on all {total} features{selected}"
    listed = f": {join_names(chosen)}" if names else ""
    return f"linear model on {len(chosen):,} of {total} features, selected by {method}{listed}"


def describe_attack_bound(attack: Values | None, attacker: str = "knows all other records") -> str:
    """Describe the membership inference bound of a privacy cost in one sentence.

    Args:
        attack: Success of the attacker (`facts.summarize_attack`); None if it is not available.
        attacker: Knowledge of the attacker, as a verb phrase.
    """
    if attack is None:
        return NO_ATTACK_BOUND
    degree = "Weak protection. " if attack["is_weak"] else ""
    degree = "No protection. " if float(attack["detected"]) > 99.0 else degree
    return (
        f"{degree}Membership inference bound: an attacker who {attacker} and accepts a "
        f"{attack['false_positives']} % false-positive rate detects at most {attack['detected']} % "
        f"of the people in the data (random guessing: {attack['false_positives']} %)."
    )


def describe_protection(document: Values) -> str:
    """Describe the protection of a finished run (`result.json`), or why it has none."""
    if document["dataset"]["declared_public"]:
        return "No protection: the data were declared public."
    if document["reproducible"]:
        return "No protection: anyone who knows the seed can subtract the noise."
    attack = describe_attack_bound(summarize_attack(document))
    return attack + describe_assumed_public(document["assumed_public"])


def describe_assumed_public(assumed_public: Sequence[str]) -> str:
    """Return a sentence on assumed-public items, which the bound does not cover; "" without any."""
    if not assumed_public:
        return ""
    names = join_names(list(assumed_public))
    return (
        f" The bound excludes what was assumed public and not charged ({names}): if it was "
        "computed from these records, what it reveals has no bound."
    )
