"""The report's part on networks: the released one, how it was trained, and what else was tried."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pasearch.data.front_ends.parsing import front_end
from pasearch.report import figures, stages
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Conv, Dense, Layer, Pool

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.training.metrics import Metric

Values = dict[str, Any]

MOST_NAMES = 6
"""How many names a sentence lists."""


def stages_of(candidate: Candidate, schema: AnySchema) -> list[figures.Stage]:
    """Return the drawing's boxes, from a record to the output."""
    front, architecture = candidate.front_end, candidate.architecture
    shape = tuple(schema.shape)
    boxes = [_given("A record", shape)]
    if front.text != "raw":
        first, _, more = front.words().partition(" and ")
        title = capital(first)
        boxes.append(_given(title, front.output_shape(shape), f"and {more}" if more else ""))
    shapes = architecture.shapes(front.output_shape(shape))
    for layer, entering, leaving in zip(architecture.layers, shapes[:-1], shapes[1:], strict=True):
        boxes.append(_stage(layer, layer.parameters(entering), leaving))
    last = Dense(units=schema.outputs).parameters(shapes[-1])
    title = "A number" if schema.regression else f"{schema.outputs} classes"
    notes = ("output layer", f"{_count(last, 'parameter')}")
    return [*boxes, figures.Stage(title=title, notes=notes, values=schema.outputs, tone="output")]


def _given(title: str, shape: tuple[int, ...], more: str = "") -> figures.Stage:
    values = math.prod(shape)
    notes = (_count(values, "number"),)
    if len(shape) > 1:
        notes = (_sides(shape), *notes)
    if more:  # a long title goes on below
        notes = (more, *notes)[:2]
    return figures.Stage(title=title, notes=notes, values=values, tone="given")


def _stage(layer: Layer, parameters: int, leaving: tuple[int, ...]) -> figures.Stage:
    frozen = not getattr(layer, "trainable", True)
    more = [_count(parameters, "parameter")] if parameters else ["no parameters"]
    more += ["frozen"] if frozen else []
    if dropout := getattr(layer, "dropout", 0.0):
        more.append(f"dropout {dropout:g}")
    return figures.Stage(
        title=capital(_layer_words(layer)),
        notes=(f"{_sides(leaving)} out", ", ".join(more)),
        values=math.prod(leaving),
        tone="frozen" if frozen else "layer",
    )


def _layer_words(layer: Layer) -> str:
    match layer:
        case Dense():
            return f"{layer.units} {_activation(layer.activation)} units"
        case Conv():
            side = f"{layer.kernel} \u00d7 {layer.kernel}"
            return f"{layer.filters} {_activation(layer.activation)} filters of {side}"
        case Pool():
            name = "average" if layer.average else "max"
            return f"{layer.size} \u00d7 {layer.size} {name} pooling"
    return Architecture(layers=(layer,)).describe()


def _activation(name: str) -> str:
    kind, _, numbers = name.partition(":")
    return kind.replace("_", " ") + (f" ({numbers.replace(',', ', ')})" if numbers else "")


def network_words(candidate: Candidate, schema: AnySchema) -> str:
    """Return the network in one sentence."""
    front = candidate.front_end
    classes = f"one output for each of {schema.outputs} classes"
    output = "one predicted number" if schema.regression else classes
    if candidate.architecture.layers:
        return f"A network of {', then '.join(parts_of(candidate))}, then {output}."
    behind = "the features" if front.text == "raw" else front.words()
    return f"A linear model: {output}, straight from {behind}."


def training_rows(document: Values) -> list[tuple[str, str]]:
    """Return how the released network was trained, as names and values."""
    values, best = document["recipe"], document["best"]
    recipe = stages.recipe_of(values)
    slots = round(recipe.expected_batch_size / values["sampling_probability"])
    total, trained = best["parameters"], best["trainable_parameters"]
    expected = ", expected" if recipe.sampling.sampled else ""
    sampling = stages.batching_words(recipe, values)
    batch = f"{recipe.expected_batch_size:,} of {slots:,} records{expected} ({sampling})"
    if recipe.expected_batch_size == slots:
        batch = f"all {slots:,} records"
    rows = [
        ("Input", capital(front_end(best["front_end"]).words())),
        ("Parameters", f"{total:,}, {'all' if total == trained else f'{trained:,}'} trained"),
        ("Steps", stages.steps_words(recipe, values.get("steps_made"))),
        ("Batch", batch),
        ("Learning rate", f"{recipe.learning_rate:.4g} (how far one step moves the weights)"),
        ("Optimizer", capital(stages.optimizer_words(recipe))),
    ]
    if document.get("variant") is not None:
        rows.append(("Weights", f"{capital(document['variant'])}, by a private pick of variants"))
    if recipe.bounding is None:
        return [*rows, ("Gradients", "without bound or noise, on data declared public")]
    name = values.get("name")
    return [
        *([("Recipe", name)] if name else []),
        *rows,
        ("Each gradient", capital(recipe.bounding.words())),
        ("Noise multiplier", stages.noise_words(recipe)),
        *(("Also", capital(words)) for words in stages.stage_words(recipe)),
        *((capital(name), value) for name, value in stages.setting_words(best["settings"])),
    ]


def most_points(document: Values) -> int | None:
    """Return what a perfect candidate scores; None where candidates have no score."""
    slots = document["dataset"]["slots"]
    scored = [
        slots.get(each["partition"]) for each in document["events"] if each["name"] == "score"
    ]
    if not scored or not scored[0]:
        return None
    return scored[0] * judged_by(document).most


def judged_by(document: Values) -> Metric:
    """Return by what trials were compared: the result's own metric, if nothing else is said."""
    from pasearch.training.metrics import of_noun

    return of_noun(document["strategy"].get("judged_by", document["score"]["metric"]))


def shown_score(document: Values, points: int | None) -> float | None:
    """Return a trial's score as every page, frame and figure shows it; None if it failed.

    Args:
        document: `result.json`.
        points: Of the trial, noisy; exact of public records, and then shown as they are.
    """
    if points is None:
        return None
    most = most_points(document)
    return float(points) if most is None else judged_by(document).shown(points / most)


def score_name(document: Values) -> str:
    """Return the name of the trials' scores: the metric, and of which records."""
    noun = document["strategy"].get("judged_by", document["score"]["metric"])
    line = next((each for each in document["events"] if each["name"] == "score"), None)
    if line is None:  # the number of public records is in no document
        return f"Points by {noun}, exact, of public records"
    slots = document["dataset"]["slots"][line["partition"]]
    return f"Noisy {noun} on {slots:,} records ({line['partition']})"


def spaced(name: str) -> str:
    """Return a name as words."""
    return str(name).replace("_", " ")


def some(names: list[str]) -> str:
    """Return a few names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def parts_of(candidate: Candidate) -> list[str]:
    """Return front end and layers in words; a network without hidden layers is linear."""
    front = candidate.front_end
    layers = [_layer_words(layer) for layer in candidate.architecture.layers] or ["linear"]
    return layers if front.text == "raw" else [front.words(), *layers]


def number(value: float) -> str:
    """Return a number in three digits, or whole where it is large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _sides(shape: Iterable[int]) -> str:
    return " \u00d7 ".join(f"{side:,}" for side in shape)
