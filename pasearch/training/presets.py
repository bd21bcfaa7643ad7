"""Presets: training configurations of papers, by name.

A preset sets some fields of a recipe. Batch, steps and learning rate are those of the default
recipe, and the noise is always calibrated to the budget. The preset `dpsgd` is plain DP-SGD, the
baseline of the others.

Sources: key `source` of each preset; docs/search.md has the table.
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
"""Fields of plain DP-SGD: no momentum, no averaging of weights."""

ENCODED_DPSGD = {**PLAIN_DPSGD, "bounding": {"name": "encoded", "clip_norm": 1.0}}
"""Fields of plain DP-SGD with encoded gradients."""


RWT_TRAINED_LAYERS = 2
"""Number of layers that random-feature training (rwt) trains: the last hidden layer and the output
layer. Bao et al., section VII-C: 33,482 of the 1,362,122 weights of the network in Table XXIX.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Named training configuration.

    Args:
        about: Description, one line.
        source: Paper and section.
        recipe: Fields of `Recipe` that the preset sets, as JSON values.
        activation: Activation of every hidden layer. None: that of the architecture.
        trained_last: Number of last layers that are trained, including the output layer; earlier
            layers keep their random weights. None: all layers are trained.
        epochs: Number of epochs of the schedule in the paper; it is stretched to those of the run.
            None: it is not stretched.
        full_batches: Whether the settings of `make_full_batch_settings` are applied.
    """

    about: str
    source: str
    recipe: dict[str, Any] = field(default_factory=dict)
    activation: str | None = None
    trained_last: int | None = None
    epochs: int | None = None
    full_batches: bool = False


def _make_schedule_preset(about: str, epochs: int | None = None, **schedule: Any) -> Preset:
    """Make the preset of plain DP-SGD with a noise schedule."""
    recipe = {**PLAIN_DPSGD, "schedule": schedule}
    return Preset(about=about, source="Yu et al., section IV", recipe=recipe, epochs=epochs)


PRESETS: dict[str, Preset] = {
    "default": Preset(
        about="flat clipping, SGD with momentum, averaged weights",
        source="docs/search.md; Polyak and Juditsky 1992 (averaging)",
    ),
    "full-batches": Preset(
        about="full batches, weights averaged over half of the steps, learning rate scaled with "
        "the SNR; the recipe `pasearch features` uses, for front end `centred`",
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
        about="normalises every gradient to about one norm, instead of clipping it",
        source="Bu et al. 2022, AUTO-S",
        recipe={**PLAIN_DPSGD, "bounding": {"name": "auto-s", "bound": 1.0, "gamma": 0.01}},
    ),
    "sa-dpsgd": Preset(
        about="mostly undoes updates that raise the validation loss; screens every steps/20-th "
        "update, or each one with public validation records (paper: each one)",
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
        "noise falls from epoch to epoch, as a power of the remaining fraction",
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
        about="per-example noise on each clipped gradient, then clipping",
        source="Lin et al., order AC",
        recipe={**PLAIN_DPSGD, "noise_before_clip": {"record_bound": 1.0}},
    ),
    "adaptive-flat": Preset(
        about="adaptive clipping: the norm follows a noisy median of gradient norms",
        source="Lin et al.; Andrew et al. 2021",
        recipe={**PLAIN_DPSGD, "bounding": {"name": "adaptive", "clip_norm": 1.0}},
    ),
    "adaptive-per-layer": Preset(
        about="adaptive clipping per layer: each norm follows a noisy median of gradient norms",
        source="Lin et al.; Andrew et al. 2021",
        recipe={
            **PLAIN_DPSGD,
            "bounding": {"name": "adaptive", "clip_norm": 1.0, "per_layer": True},
        },
    ),
    "encoded-gaussian": Preset(
        about="encoded gradients: the nearest of 1,000 public vectors replaces each, rank by rank",
        source="Nasr et al., Algorithms 1 and 2",
        recipe=ENCODED_DPSGD,
    ),
    "encoded-student-t": Preset(
        about="encoded gradients with noise from Student's t distribution, 9 degrees of freedom",
        source="Nasr et al., section 5",
        recipe={**ENCODED_DPSGD, "noise": {"name": "student-t", "freedom": 9.0}},
    ),
    "encoded-laplace": Preset(
        about="encoded gradients with Laplace noise on every coordinate",
        source="Nasr et al., section 4",
        recipe={**ENCODED_DPSGD, "noise": {"name": "laplace"}},
    ),
    "denoised-gaussian": Preset(
        about="plain DP-SGD; each noisy sum is weighted by its distance from pure noise",
        source="Nasr et al., section 3.2",
        recipe={**PLAIN_DPSGD, "denoising": {"name": "kolmogorov-smirnov"}},
    ),
    "rwt": Preset(
        about="random-feature training: dpsgd on the last two layers, random frozen layers before",
        source="Bao et al., section VII-C (random weights training)",
        recipe=PLAIN_DPSGD,
        trained_last=RWT_TRAINED_LAYERS,
    ),
}


STAGE_EXAMPLES = {
    "noise": '{ name = "student-t", freedom = 9.0 }',
    **{name: registry.example for name, registry in TABLE_STAGES.items()},
}
"""Example of the table of each stage in a recipe file, for error messages."""

FORBIDDEN_FIELDS = {
    "noise_multiplier": "it is calibrated to the budget",
    "chunk": "it affects only memory and is set automatically",
    "sampling_probability": "it is expected_batch_size / n",
    "name": "use `preset` to name the base recipe",
    "steps_made": "it is a result of the training",
}
"""Fields of results or papers that a recipe file cannot set, and the reason."""

SETTABLE_FIELDS = frozenset(each.name for each in fields(Recipe)) - set(FORBIDDEN_FIELDS)
"""Fields that a recipe file can set."""

MIN_ANNOUNCED_LEVELS = 50
"""Minimum number of noise levels for which a message says that accounting takes time."""

logger = logging.getLogger(__name__)


def find_preset(name: str) -> Preset:
    """Find a preset by name.

    Raises:
        UsageError: The name is unknown.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise UsageError(
            f"Recipe {name!r} is not known: expected a .toml file or one of {', '.join(PRESETS)}."
            + suggest_name(name, PRESETS)
        )
    return PRESETS[name]


def read_recipe(given: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Read a recipe as JSON values: `preset`, and fields of `Recipe` that replace those of it.

    Args:
        given: Name of a preset, path of a TOML file, or such values.

    Raises:
        UsageError: The preset is unknown, the file cannot be read, or a field is invalid.
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
    """Convert the values of a recipe file to arguments of `Recipe`, including those of its preset.

    Args:
        values: Result of `read_recipe`.

    Raises:
        UsageError: The preset is unknown, or a field is invalid.
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
                f"A recipe has no field {name!r}: expected preset, "
                f"{', '.join(sorted(SETTABLE_FIELDS))}."
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
    """Select the values that a recipe file can set."""
    return {name: value for name, value in recipe.items() if name in SETTABLE_FIELDS}


def preset_to_json(name: str) -> dict[str, Any]:
    """Convert a preset to JSON values: all fields of the recipe that do not depend on the data.

    Batch, steps, learning rate, temperature and a stretched schedule are omitted.

    Raises:
        UsageError: The name is unknown.
    """
    preset = find_preset(name)
    made = Recipe(expected_batch_size=1, steps=1, **resolve_preset({"preset": name}))
    values = select_settable_fields(made.to_json())
    left = {"expected_batch_size", "steps", "learning_rate", "temperature"}
    left |= set() if preset.epochs is None else {"schedule"}
    left |= {"bounding", "average"} if preset.full_batches else set()
    return {"preset": name} | {key: values[key] for key in values if key not in left}


def preset_to_toml(name: str) -> str:
    """Convert a preset to the text of a recipe file, with the values of all fields as comments.

    Raises:
        UsageError: The name is unknown.
    """
    preset = find_preset(name)
    values = preset_to_json(name)
    lines = [f"# {preset.about} [{preset.source}]", f'preset = "{values.pop("preset")}"']
    lines += [
        f"# {key} = {_format_toml(value)}" for key, value in values.items() if value is not None
    ]
    return "\n".join(lines)


def _format_toml(value: Any) -> str:
    """Format a JSON value as TOML."""
    if not isinstance(value, dict):
        return json.dumps(value)
    inner = ", ".join(
        f"{key} = {_format_toml(each)}" for key, each in value.items() if each is not None
    )
    return f"{{ {inner} }}"


def stretch_schedule(recipe: Recipe, values: Mapping[str, Any], slots: int) -> Recipe:
    """Stretch the schedule of the preset to the number of epochs of a recipe.

    Args:
        recipe: Recipe with the arguments `resolve_preset(values)`.
        values: Result of `read_recipe`. If it sets a schedule, nothing is changed.
        slots: Number of training records n, null records included.
    """
    epochs = find_preset(values.get("preset", "default")).epochs
    if epochs is not None and "schedule" not in values:
        own = max(1, recipe.make_batching(slots).epoch(recipe.steps))
        recipe = replace(recipe, schedule=recipe.schedule.stretch(own / epochs))
    if (levels := len(recipe.levels(slots))) >= MIN_ANNOUNCED_LEVELS:
        logger.info(
            "Computing the privacy cost of %d noise levels: this may take half a minute. A "
            "schedule that changes every few epochs (`every`) has fewer levels.",
            levels,
        )
    return recipe
