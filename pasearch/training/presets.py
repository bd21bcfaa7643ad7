"""The papers' optimizers by name: each is a choice at a few stages of the recipe.

A preset changes what it names and leaves the rest of the default recipe: batch, steps and a
learning rate tuned to the noise. The noise is always what the budget allows, whatever the paper
used. `dpsgd` is the plain method, which the others are compared with.

Sources: one a preset, in `source`; docs/search.md has the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pasearch.errors import UsageError, suggest_name
from pasearch.files import read_toml
from pasearch.training.recipe import STAGE_READERS, TABLE_STAGES, Recipe

PLAIN_DPSGD: dict[str, Any] = {
    "bounding": {"name": "flat", "clip_norm": 1.0},
    "optimizer": "sgd",
    "momentum": 0.0,
    "average": None,
}
"""Plain DP-SGD: no momentum, no average."""

ENCODED_DPSGD = {**PLAIN_DPSGD, "bounding": {"name": "encoded", "clip_norm": 1.0}}
"""Plain DP-SGD on encoded gradients."""


RWT_TRAINED_LAYERS = 2
"""Layers that random weights training trains: the last hidden layer and the output layer.

Bao et al., section VII-C: 33,482 of the 1,362,122 weights of Table XXIX's network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named recipe.

    Args:
        about: One line.
        source: Paper, and where in it.
        recipe: Fields of `Recipe`, as plain values.
        activation: Of every hidden layer, instead of the architecture's own; None keeps it.
        trained_last: Number of last layers with weights that are trained, the output layer
            included; the layers before them keep their random start. None trains all layers.
        epochs: What the paper's schedule is made for; it is stretched to a run's own epochs.
        full_batches: Whether the settings of `make_full_batch_settings` apply.
    """

    about: str
    source: str
    recipe: dict[str, Any] = field(default_factory=dict)
    activation: str | None = None
    trained_last: int | None = None
    epochs: int | None = None
    full_batches: bool = False


def _make_schedule_preset(about: str, epochs: int | None = None, **schedule: Any) -> Preset:
    """Return plain DP-SGD with one of Yu et al.'s schedules."""
    recipe = {**PLAIN_DPSGD, "schedule": schedule}
    return Preset(about=about, source="Yu et al., section IV", recipe=recipe, epochs=epochs)


PRESETS: dict[str, Preset] = {
    "default": Preset(
        about="momentum and averaged weights on flat clipping",
        source="docs/search.md; Polyak and Juditsky 1992 (averaging)",
    ),
    "full-batches": Preset(
        about="all records at every step, half of the steps averaged, a rate that follows the "
        "signal: as features trains its linear model, for `centred` input",
        source="benchmarks/features",
        full_batches=True,
    ),
    "dpsgd": Preset(
        about="Poisson batches, flat clipping, plain SGD",
        source="Abadi et al. 2016, Algorithm 1",
        recipe=PLAIN_DPSGD,
    ),
    "dpsgd-tanh": Preset(
        about="dpsgd with tanh, a tempered sigmoid, at every hidden layer",
        source="Papernot et al. 2020",
        recipe=PLAIN_DPSGD,
        activation="tanh",
    ),
    "auto-s": Preset(
        about="every gradient scaled to about one norm, instead of clipped",
        source="Bu et al. 2022, AUTO-S",
        recipe={**PLAIN_DPSGD, "bounding": {"name": "auto-s", "bound": 1.0, "gamma": 0.01}},
    ),
    "sa-dpsgd": Preset(
        about="updates that raise the loss of validation records are mostly undone; the paper "
        "screens every update; here every steps/20-th is, or every one by public records",
        source="Fu et al., Algorithm 2",
        recipe={**PLAIN_DPSGD, "screening": {"q0": 10.0, "mu0": 10}},
    ),
    "dynamic-uniform": _make_schedule_preset(
        "constant noise multiplier; baseline of the schedules", name="uniform"
    ),
    "dynamic-time": _make_schedule_preset(
        "noise falls from epoch to epoch, as 1 / (1 + k epoch)", 38, name="time", rate=0.05
    ),
    "dynamic-exponential": _make_schedule_preset(
        "noise falls from epoch to epoch, as exp(-k epoch)", 71, name="exponential", rate=0.01
    ),
    "dynamic-step": _make_schedule_preset(
        "noise is multiplied by k < 1 every few epochs", 31, name="step", rate=0.6, period=10
    ),
    "dynamic-polynomial": _make_schedule_preset(
        "noise falls from epoch to epoch, as a power of what is left",
        44,
        name="polynomial",
        power=3.0,
        end=0.2,
        period=100,
    ),
    "dynamic-validation": _make_schedule_preset(
        "less noise when the validation accuracy stops rising, until the budget ends",
        name="validation",
        rate=0.7,
        threshold=0.01,
        average=5,
        period=10,
    ),
    "noisy-gradient": Preset(
        about="noise on each record's bounded gradient, and the clip after it",
        source="Lin et al., order AC",
        recipe={**PLAIN_DPSGD, "noise_before_clip": {"record_bound": 1.0}},
    ),
    "adaptive-flat": Preset(
        about="one bound that follows the noisy median of the norms",
        source="Lin et al.; Andrew et al. 2021",
        recipe={**PLAIN_DPSGD, "bounding": {"name": "adaptive", "clip_norm": 1.0}},
    ),
    "adaptive-per-layer": Preset(
        about="a bound for every layer, which follows the noisy median of its norms",
        source="Lin et al.; Andrew et al. 2021",
        recipe={
            **PLAIN_DPSGD,
            "bounding": {"name": "adaptive", "clip_norm": 1.0, "per_layer": True},
        },
    ),
    "encoded-gaussian": Preset(
        about="every gradient clamped, rank by rank, to the nearest of 1,000 public vectors",
        source="Nasr et al., Algorithms 1 and 2",
        recipe=ENCODED_DPSGD,
    ),
    "encoded-student-t": Preset(
        about="the same, with noise of Student's t law, 9 degrees of freedom",
        source="Nasr et al., section 5",
        recipe={**ENCODED_DPSGD, "noise": {"name": "student-t", "freedom": 9.0}},
    ),
    "encoded-laplace": Preset(
        about="the same, with Laplace noise on every coordinate",
        source="Nasr et al., section 4",
        recipe={**ENCODED_DPSGD, "noise": {"name": "laplace"}},
    ),
    "denoised-gaussian": Preset(
        about="plain DP-SGD, each noisy sum weighed by its distance from pure noise",
        source="Nasr et al., section 3.2",
        recipe={**PLAIN_DPSGD, "denoising": {"name": "kolmogorov-smirnov"}},
    ),
    "rwt": Preset(
        about="dpsgd on the last two layers; the layers before them keep their random start",
        source="Bao et al., section VII-C (random weights training)",
        recipe=PLAIN_DPSGD,
        trained_last=RWT_TRAINED_LAYERS,
    ),
}


STAGE_EXAMPLES = {
    "noise": '{ name = "student-t", freedom = 9.0 }',
    **{name: registry.example for name, registry in TABLE_STAGES.items()},
}
"""A table for each stage that is one."""

FORBIDDEN_FIELDS = {
    "noise_multiplier": "the budget sets it",
    "chunk": "it only divides the work, and the program sets it",
    "sampling_probability": "it is expected_batch_size / n",
    "name": "`preset` says what the rest is taken from",
    "steps_made": "it is counted while the network is trained",
    "micro_batch": "gradients are taken one by one, and an average of several has no price here",
}
"""What somebody might say in a recipe file, as results have it or a paper, and may not; and why."""

SETTABLE_FIELDS = frozenset(each.name for each in fields(Recipe)) - set(FORBIDDEN_FIELDS)
"""What a recipe file may set."""

MIN_ANNOUNCED_LEVELS = 50
"""From so many noises on, pricing them takes seconds, and is announced."""

logger = logging.getLogger(__name__)


def find_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        UsageError: There is none of that name.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(
            f"Recipe {name!r} is not known: expected a .toml file or one of {', '.join(PRESETS)}."
            + suggest_name(name, PRESETS)
        )
    return PRESETS[name]


def read_recipe(given: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe as plain values: `preset`, and fields of `Recipe` that differ from it.

    Given is a preset's name, a TOML path, or such values.

    Raises:
        UsageError: No such preset or file, no TOML, or a field that a recipe lacks or refuses.
    """
    if isinstance(given, Mapping):
        values = dict(given)
        resolve_preset(values)
        return values
    if str(given) in PRESETS:
        return {"preset": str(given)}
    if not str(given).endswith(".toml"):
        find_preset(str(given))
    values = read_toml(given, "a recipe (TOML)")
    try:
        resolve_preset(values)
    except UsageError as error:
        raise UsageError(f"{given}: {error}") from None
    return values


def resolve_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `Recipe`, ready to be given to it: the preset's, with the others' changes.

    Values are what `read_recipe` returned; a UsageError is raised as there.
    """
    settings = {
        name: STAGE_READERS[name](value) if name in STAGE_READERS else value
        for name, value in find_preset(values.get("preset", "default")).recipe.items()
    }
    for name, value in values.items():
        if name == "preset":
            continue
        if name in FORBIDDEN_FIELDS:
            raise UsageError(
                f"A recipe file cannot set {name}: {FORBIDDEN_FIELDS[name]}. Leave it out."
            )
        if name not in SETTABLE_FIELDS:
            raise UsageError(
                f"A recipe has no {name!r}: expected preset, {', '.join(sorted(SETTABLE_FIELDS))}."
            )
        reads = STAGE_READERS.get(name)
        if reads is not None and isinstance(value, (str, bool, int, float, list)):
            raise UsageError(
                f"{name} is {value!r}: expected a table, such as {STAGE_EXAMPLES[name]}."
            )
        settings[name] = value if reads is None or not isinstance(value, Mapping) else reads(value)
    probe: dict[str, Any] = {"expected_batch_size": 1, "steps": 1, "noise_multiplier": 1.0}
    Recipe(**{**probe, **settings})
    return settings


def select_settable_fields(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a recipe's plain values a recipe file may say."""
    return {name: value for name, value in recipe.items() if name in SETTABLE_FIELDS}


def preset_to_json(name: str) -> dict[str, Any]:
    """Return a preset as `read_recipe` takes it, every field spelt out.

    Batch, steps, learning rate and temperature are left out: they fit the data. Of a preset whose
    schedule is stretched to the run's epochs, so is the schedule.

    Raises:
        UsageError: There is none of that name.
    """
    preset = find_preset(name)
    made = Recipe(expected_batch_size=1, steps=1, **resolve_preset({"preset": name}))
    values = select_settable_fields(made.to_json())
    left = {"expected_batch_size", "steps", "learning_rate", "temperature"}
    left |= set() if preset.epochs is None else {"schedule"}
    left |= {"bounding", "average"} if preset.full_batches else set()
    return {"preset": name} | {key: values[key] for key in values if key not in left}


def preset_to_toml(name: str) -> str:
    """Return a preset as a recipe file to change; what it has already stands in comments.

    Raises:
        UsageError: There is none of that name.
    """
    preset = find_preset(name)
    values = preset_to_json(name)
    lines = [f"# {preset.about} [{preset.source}]", f'preset = "{values.pop("preset")}"']
    lines += [
        f"# {key} = {_format_toml(value)}" for key, value in values.items() if value is not None
    ]
    return "\n".join(lines)


def _format_toml(value: Any) -> str:
    """Return a value of a recipe as TOML, which has no null."""
    if not isinstance(value, dict):
        return json.dumps(value)
    inner = ", ".join(
        f"{key} = {_format_toml(each)}" for key, each in value.items() if each is not None
    )
    return f"{{ {inner} }}"


def stretch_schedule(recipe: Recipe, values: Mapping[str, Any], slots: int) -> Recipe:
    """Return the recipe with its preset's schedule stretched to as many epochs as it has.

    The recipe was made from `resolve_preset(values)`. A schedule set in the file stays unchanged.
    `slots` is the number of training records n, including null records.
    """
    epochs = find_preset(values.get("preset", "default")).epochs
    if epochs is not None and "schedule" not in values:
        own = max(1, recipe.make_batching(slots).epoch(recipe.steps))
        recipe = replace(recipe, schedule=recipe.schedule.stretch(own / epochs))
    if (levels := len(recipe.levels(slots))) >= MIN_ANNOUNCED_LEVELS:
        logger.info(
            "Pricing %d noise levels, each on its own: this may take half a minute. A schedule "
            "that changes every few epochs (`every`) has fewer.",
            levels,
        )
    return recipe
