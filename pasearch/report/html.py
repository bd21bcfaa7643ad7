"""The report page of a run or a measured crossover: one HTML file, without script or network.

The page is a function of `result.json` alone and reads no record. Jinja2 escapes names that a user
chose (data, columns, classes, spaces). Characters that change the direction of the text are shown
as escape codes. The page has no date, because no privacy cost covers the time of a run.

    mu  =  sqrt(sum over Gaussian releases of 1 / sigma^2), if all releases are Gaussian

Source: docs/result.md describes every field; Dong, Roth and Su 2022, Corollary 3.3 (mu).
"""

from __future__ import annotations

import math
import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pasearch.accounting.budget import Budget
from pasearch.accounting.events import describe_event, event_from_json
from pasearch.crossover.forecast import describe_range
from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.errors import OPTION_REFERENCE, UsageError
from pasearch.plan_warnings import MIN_SIGNAL
from pasearch.report import figures, score, wording
from pasearch.report.card import ASSUMED_PUBLIC, PUBLISHED_BOUNDS, card_json
from pasearch.report.facts import (
    TRAINING,
    is_relevance_noise,
    list_trials,
    ranking_metric,
    restore_recipe,
    score_event,
    summarize_attack,
)
from pasearch.report.wording import (
    capitalize_first,
    describe_parts,
    format_number,
    join_names,
    replace_underscores,
)
from pasearch.results import FEATURE_SELECTION
from pasearch.search.names import show_strategy
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.terminal_escaping import escape_values

if TYPE_CHECKING:
    from jinja2 import Environment

    from pasearch.data.tables import AnySchema

Values = dict[str, Any]

SECRECY_SENTENCE = (
    "The number of candidates is secret: the privacy cost covers a random number of them, and does "
    "not hold if it is revealed."
)

MAX_LISTED_FEATURES = 25
"""Maximum number of features listed in a table."""

MAX_LISTED_CANDIDATES = 200
"""Maximum number of candidates listed on the page."""

MAX_UNFOLDED_CANDIDATES = 4
"""Number of scored candidates shown before the reader unfolds the list."""


def report_html(document: dict[str, Any]) -> str:
    """Render the report of a finished run as one self-contained HTML file.

    Args:
        document: `result.json`. The optional fields `alternatives`, `auto`, `curves` and `compared`
            each have a section; the last two only if the data were declared public.

    Raises:
        UsageError: A field is missing or malformed.

    Cost: none.
    """
    from jinja2 import UndefinedError

    from pasearch.results import restore_schema

    known = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, UndefinedError)
    try:
        # The schema needs the original names, because two names may be equal after escaping.
        page = _page_values(escape_values(document, breaks=" "), restore_schema(document))
        return _template_environment().get_template("report.html.j2").render(page)
    except known as error:
        raise UsageError(f"result.json is not well formed ({error!r}).") from None


def crossover_html(measured: Values) -> str:
    """Render a measured crossover as one self-contained HTML file.

    Args:
        measured: Plain values of a crossover (`CrossoverReport.to_json`).
    """
    epsilons, models = measured["epsilons"], measured["models"]
    accuracies = []
    for each in models:
        pairs = list(zip(each["error"], each["half_width"], strict=True))
        accuracies.append({
            "name": each["name"],
            "accuracy": [1.0 - error for error, _ in pairs],
            "low": [max(0.0, 1.0 - error - half) for error, half in pairs],
            "high": [min(1.0, 1.0 - error + half) for error, half in pairs],
        })  # fmt: skip
    chart_values = {
        "epsilons": epsilons, "models": accuracies, "sentence": measured["sentence"],
        "own": {"score": None, "epsilon": 0.0},
    }  # fmt: skip
    rows = [
        {
            "epsilon": f"{epsilon:g}",
            "cells": [
                f"{each['error'][place]:.4f} \u00b1 {each['half_width'][place]:.4f}"
                for each in models
            ],
            "best": measured["best"][place],
            "take": measured["taken"][place],
        }
        for place, epsilon in enumerate(epsilons)
    ]
    plain = [each["error_without_privacy"] for each in models]
    rows.append({
        "epsilon": "none", "cells": [f"{each:.4f}" for each in plain],
        "best": models[plain.index(min(plain))]["name"], "take": "",
    })  # fmt: skip
    names = "data", "n", "repeats", "sentence", "models", "crossovers", "metric", "assumes"
    metric = measured["metric"]
    measure = metric.removeprefix("1 - ")
    chart = draw_crossover(chart_values, measure, of_errors=measure == metric)
    return _template_environment().get_template("crossover.html.j2").render(
        **{name: measured[name] for name in names}, chart=chart, rows=rows,
        delta=f"{measured['delta']:g}", measure=capitalize_first(measure),
        tests=max(1, math.comb(len(models), 2) * len(epsilons)),
    )  # fmt: skip


@cache
def _template_environment() -> Environment:
    """Return the Jinja2 environment of the page, with its filters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def render_markdown(text: str) -> Markup:
        """Render `names` in a line of the card as code, and *words* as emphasis."""
        pieces = text.split("`")
        if len(pieces) % 2 == 0:
            return escape(text)
        return Markup("").join(
            Markup("<code>{}</code>").format(piece)
            if place % 2
            else Markup(re.sub(r"\*(\w+)\*", r"<em>\1</em>", str(escape(piece))))
            for place, piece in enumerate(pieces)
        )

    def prevent_flag_breaks(text: str) -> Markup:
        """Render a command so that no line breaks inside a flag such as --data-root."""
        words = (
            Markup('<span class="flag">{}</span>').format(each)
            if each.startswith("-")
            else escape(each)
            for each in text.split(" ")
        )
        return Markup(" ").join(words)

    def strip_options(warning: str) -> str:
        """Replace references to options, such as `search_share=`, by plain words."""
        without_options = re.sub(r" \(`\w+=[^`]*`\)", "", warning)
        named = OPTION_REFERENCE.sub(lambda found: found[1].replace("_", " "), without_options)
        return re.sub(r"`([^`]*)`", r"\1", named)

    environment = Environment(
        loader=PackageLoader("pasearch.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "marked": render_markdown, "short": figures.shorten, "capital": capitalize_first,
        "command": prevent_flag_breaks, "plain": strip_options,
    }  # fmt: skip
    environment.globals |= {"swatch": figures.draw_swatch}
    return environment


def _page_values(document: Values, schema: AnySchema) -> Values:
    """Return the values of the page's template, by name."""
    card, assumed, budget = card_json(document), document["assumed_public"], document["budget"]
    public = document["dataset"]["declared_public"]
    of_features = document["task"] == FEATURE_SELECTION
    searched = document["selection"]["rule"] != "none"
    heading = capitalize_first(document["task"])
    if document["task"] == "architecture search" and not searched:
        heading = "Training of one architecture"
    what = "search and model" if searched else "the model and its test"
    form = schema.describe().replace(" x ", " \u00d7 ")
    # The first sentence of each line of the card's section.
    not_covered = [
        line.split(". ")[0].rstrip(".")
        for section in card["sections"]
        if section["title"] == "Not covered"
        for line in section["items"]
    ]
    read = "every access to a record"
    if assumed:
        not_covered.insert(0, f"Data assumed public, which were not charged: {join_names(assumed)}")
        read += f", except data assumed public ({join_names(assumed)})"
    others = "Comparison with no search" if public and document.get("compared") else "Other budgets"
    if crossover := describe_crossover(document):
        measured = crossover["repeats"]
        others = "Measured comparison of models" if measured else "Forecast for other models"
    elsewhere = (PUBLISHED_BOUNDS, ASSUMED_PUBLIC, "Versions")
    quality = score.describe_quality(document, schema)
    return {
        **(_describe_feature_model if of_features else _describe_network_model)(document, schema),
        "document": document,
        "private": card["private"],
        "public": public,
        "heading": heading,
        "quality": quality,
        "more": score.describe_test_table(document, schema),
        "attack": summarize_attack(document),
        "bound": wording.describe_attack_bound(
            summarize_attack(document), "knows all other records, sees everything in release/"
        ),
        "uncovered": wording.describe_assumed_public(assumed),
        "asked": f"{document['dataset']['n']:,} records, {form}. Total privacy budget of "
        f"{what}: \u03b5 {budget['epsilon']:g} at \u03b4 {budget['delta']:g}.",
        "covered": f"The privacy cost {'would cover' if public else 'covers'} everything in "
        f"release/ ({'features' if of_features else 'architecture'}, weights, test score), and "
        f"{read}.",
        "not_covered": not_covered,
        "partitions": _partition_rows(document),
        "alternatives": _alternative_rows(document, schema.outputs),
        "crossover": crossover,
        "curves": _draw_curves(document, schema) if public else None,
        "compared": _comparison_rows(document) if public else None,
        "others": others,
        "auto": _describe_auto(document),
        "tried": _candidate_table(document, schema),
        "chosen": _describe_selection(document),
        "effects": _effect_rows(document),
        "next": next_steps(document, quality["is_known"]),
        "claims": [wording.describe_claim(claim) for claim in document["claims"]],
        "items": escape_values(schema.describe_items(), breaks=" "),
        "card": [each for each in card["sections"] if each["title"] not in elsewhere],
    }


# --- the released model


def _describe_network_model(document: Values, schema: AnySchema) -> Values:
    """Describe the released network: a sentence, its stages and its training."""
    candidate = Candidate.from_json(document["best"])
    output = "one predicted number" if schema.regression else f"{schema.outputs} classes"
    return {
        "found": f"{capitalize_first(wording.describe_network(candidate))}; output: {output}.",
        "network": _network_rows(candidate, schema),
        "features": None,
        "training": _training_rows(document),
    }


def _network_rows(candidate: Candidate, schema: AnySchema) -> list[Values]:
    """Return one row per stage of the network, with a logarithmic bar of its number of outputs."""

    def format_shape(shape: tuple[int, ...]) -> str:
        return " \u00d7 ".join(f"{side:,}" for side in shape)

    def format_count(number: int, name: str) -> str:
        return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"

    def describe_stage(title: str, shape: tuple[int, ...]) -> tuple[str, list[str], int]:
        values = math.prod(shape)
        notes = [*([format_shape(shape)] if len(shape) > 1 else []), format_count(values, "number")]
        return title, notes, values

    front, architecture, shape = candidate.front_end, candidate.architecture, tuple(schema.shape)
    stages = [describe_stage("A record", shape)]
    if front.text != "raw":
        stages.append(describe_stage(capitalize_first(front.describe()), front.output_shape(shape)))
    shapes = architecture.shapes(front.output_shape(shape))
    *hidden, last = architecture.list_all_layers(schema.outputs)
    for layer, entering, leaving in zip(hidden, shapes[:-1], shapes[1:], strict=False):
        parameters = layer.parameters(entering)
        notes = [f"{format_shape(leaving)} out"]
        notes.append(format_count(parameters, "parameter") if parameters else "no parameters")
        notes += ["frozen"] * (not getattr(layer, "trainable", True))
        if dropout := getattr(layer, "dropout", 0.0):
            notes.append(f"dropout {dropout:g}")
        title = capitalize_first(wording.describe_layer(layer))
        stages.append((title, notes, math.prod(leaving)))
    number = last.parameters(shapes[len(hidden)])
    title = "A number" if schema.regression else f"{schema.outputs} classes"
    where = "output layer" if isinstance(last, Dense) else last.describe()
    notes = [where, format_count(number, "parameter")]
    stages.append((title, notes, schema.outputs))
    most = math.log1p(max(values for _, _, values in stages))
    return [
        {
            "title": title,
            "notes": ", ".join(notes),
            "bar": figures.draw_bar(math.log1p(values), f"{values:,} out", of=most),
        }
        for title, notes, values in stages
    ]


def _training_rows(document: Values) -> list[tuple[str, str]]:
    """Return pairs (name, value) that describe the training of the released network."""
    values, best = document["recipe"], document["best"]
    recipe = restore_recipe(values)
    slots = round(recipe.expected_batch_size / values["sampling_probability"])
    total, trained = best["parameters"], best["trainable_parameters"]
    expected = ", expected" if recipe.sampling.sampled else ""
    sampling = wording.describe_batching(recipe, values)
    batch = f"{recipe.expected_batch_size:,} of {slots:,} records{expected} ({sampling})"
    if recipe.expected_batch_size == slots:
        batch = f"all {slots:,} records"
    rows = [
        ("Input", capitalize_first(parse_front_end(best["front_end"]).describe())),
        ("Parameters", f"{total:,}, {'all' if total == trained else f'{trained:,}'} trained"),
        ("Steps", wording.format_steps(recipe, values.get("steps_made"))),
        ("Batch", batch),
        ("Learning rate", f"{recipe.learning_rate:.4g}"),
        ("Optimizer", capitalize_first(wording.describe_optimizer(recipe))),
    ]
    if document.get("variant") is not None:
        chosen = f"{capitalize_first(document['variant'])}, by private post-training selection"
        rows.append(("Weights", chosen))
    if recipe.bounding is None:
        return [*rows, ("Gradients", "no clipping or noise (data declared public)")]
    name = values.get("name")
    return [
        *([("Recipe", name)] if name else []),
        *rows,
        ("Each gradient", capitalize_first(recipe.bounding.describe())),
        ("Noise multiplier", wording.format_noise_multiplier(recipe)),
        *(("Also", capitalize_first(words)) for words in wording.describe_stages(recipe)),
        *(
            (capitalize_first(name), value)
            for name, value in wording.format_settings(best["settings"])
        ),
    ]


def _describe_feature_model(document: Values, schema: AnySchema) -> Values:
    """Describe the released linear model: a sentence, its features and its training."""
    best, recipe, blank = document["best"], document["recipe"], document.get("relevance_of_noise")
    chosen, count = best["features"], len(best["features"])
    every = count == best["of"]
    found = wording.describe_features(document, unselected=" (no selection)", names=False)
    ranked = sorted(document.get("relevance") or [], key=lambda each: -each["uncertainty"])[
        :MAX_LISTED_FEATURES
    ]
    most = max((each["uncertainty"] for each in ranked), default=0.0)
    relevance = [
        {
            "feature": each["feature"],
            "value": f"{each['uncertainty']:.3f}",
            "is_chosen": each["feature"] in chosen,
            "bar": figures.draw_bar(
                each["uncertainty"],
                f"{each['feature']}: symmetrical uncertainty {each['uncertainty']:.3f}",
                of=most,
                tone="accent" if each["feature"] in chosen else "plain",
            ),
        }
        for each in ranked
    ]
    curve, sizes = None, document.get("by_size") or []
    if sizes and document["dataset"]["declared_public"]:
        epsilon = document["budget"]["epsilon"]
        names = ("private", f"at epsilon {epsilon:g}"), ("without", "without privacy")
        curves = [
            figures.Curve(name=name, points=tuple((each["features"], each[key]) for each in sizes))
            for key, name in names
        ]
        curve = _draw_chart(curves, "Accuracy by number of features", ("features", "accuracy"))

    training = [("Trained parameters", f"{best['parameters']:,}")]
    if recipe["trainer"] == "objective" and recipe["noise_multiplier"] is not None:
        noise = f"{recipe['noise_multiplier']:.4g}"
        training += [("Training", "noisy second moments"), ("Noise multiplier", noise)]
    elif recipe["trainer"] == "objective":
        own = f"{recipe['epsilon']:.4g} (pure DP)"
        training += [("Training", "objective perturbation"), ("Epsilon of the training", own)]
    else:
        trained = restore_recipe(recipe)
        assert trained.bounding is not None
        training += [
            ("Training", "DP-SGD, full batches"),
            ("Steps", wording.format_steps(trained)),
            ("Learning rate", f"{trained.learning_rate:.4g}"),
            ("Optimizer", capitalize_first(wording.describe_optimizer(trained))),
            ("Each gradient", capitalize_first(trained.bounding.describe())),
            ("Noise multiplier", wording.format_noise_multiplier(trained)),
            *(("Also", capitalize_first(words)) for words in wording.describe_stages(trained)),
        ]
    public = document.get("searched_on")
    merits = f"from noisy {document['strategy'].get('merits', 'tables')}"
    return {
        "found": f"{capitalize_first(found)}.",
        "network": None,
        "features": {
            "rows": relevance,
            "read_from": "from public data" if public else merits,
            "blank": "" if blank is None else f"{blank:.3f}",
            "tells_nothing": is_relevance_noise(document),
            "names": []
            if every or best["directions"] is not None
            else chosen[:MAX_LISTED_FEATURES],
            "more": 0 if every else max(0, count - MAX_LISTED_FEATURES),
            "columns": best["columns"],
            "curve": curve,
        },
        "training": training,
    }


def _effect_rows(document: Values) -> list[Values]:
    """Return one row per column with its effect on the prediction, as a number and a bar."""
    given = document.get("effects") or []
    most = max((each["reach"] for each in given), default=0.0)
    return [
        {
            **each,
            "value": format_number(each["reach"]),
            "bar": figures.draw_bar(
                each["reach"],
                f"{each['column']}: changes the prediction by up to {each['reach']:.3g}",
                of=most,
            ),
        }
        for each in given
    ]


# --- the privacy cost


def _partition_rows(document: Values) -> list[Values]:
    """Return one row per partition of the records: its releases and their joint privacy cost."""
    shares, budget = document["price_by_partition"], document["budget"]["epsilon"]
    most = max(share["epsilon"] for share in shares.values())
    scale = max(budget, most)
    largest = next(name for name, share in shares.items() if share["epsilon"] == most)
    noun, found = (document.get("score") or {}).get("metric", ""), []
    for name, share in shares.items():
        epsilon, is_price = share["epsilon"], name == largest
        words = f"Partition {name}: epsilon {epsilon:.4f} of a budget of {budget:g}"
        words += ": this is the total." if is_price else "."
        own = [each for each in document["events"] if each["partition"] == name]
        lines = []
        for each in own:
            # The number of trainings of a selection is secret; its description says "best of K".
            count, selected = each["count"], each["event"]["type"] == "repeat-and-select"
            times = "" if count == 1 or not selected else "each the best of a secret number"
            noise = describe_event(event_from_json(each["event"]))
            lines.append({
                "name": wording.release_name(each["name"], noun, count).strip(),
                "times": times,
                "noise": wording.describe_release_noise(document, each["name"], noise),
            })  # fmt: skip
        mu = compute_gaussian_mu([(each["event"], each["count"]) for each in own])
        tone = "accent" if is_price else "plain"
        found.append({
            "name": name, "slots": document["dataset"]["slots"].get(name, 0),
            "epsilon": f"{epsilon:.4f}", "accountant": share["accountant"], "is_price": is_price,
            "bar": figures.draw_bar(epsilon, words, of=scale, tone=tone, mark=budget),
            "lines": lines,
            "mu": None if mu is None else f"{mu:.3g}",
        })  # fmt: skip
    return found


def compute_gaussian_mu(events: list[tuple[Values, int]]) -> float | None:
    """Compute the parameter mu of Gaussian DP of several releases; None if one is not Gaussian.

    Args:
        events: All releases of a partition, as pairs (event, count).
    """

    def compute_squared_mu(event: Values) -> float | None:
        match event:
            case {"type": "no-release"}:
                return 0.0
            case {"type": "gaussian", "noise_multiplier": float() | int() as sigma} if sigma > 0:
                return 1.0 / sigma**2
            case {"type": "self-composed", "event": dict() as inner, "count": int() as count}:
                one = compute_squared_mu(inner)
                return None if one is None else count * one
            case {"type": "composed", "events": list() as inner}:
                found = [compute_squared_mu(each) for each in inner]
                return None if None in found else sum(each or 0.0 for each in found)
        return None

    squares = [compute_squared_mu(event) for event, _ in events]
    if not squares or None in squares:
        return None
    total = sum(count * (each or 0.0) for (_, count), each in zip(events, squares, strict=True))
    return math.sqrt(total) if total > 0 else None


# --- other models and budgets


def describe_crossover(document: Values) -> Values | None:
    """Describe the forecast or measured crossover of models for the page; None without either."""
    found = document.get("measured_crossover") or document.get("crossover")
    if not found:
        return None
    measure, epsilons, own = document["score"]["metric"], found["epsilons"], found["own"]
    of_errors, crossings = "error" in measure, found["crossings"]
    if "measured_crossover" in document:  # it uses the default metric
        measure = "mean absolute error" if of_errors else "accuracy"
    roles = {
        "released": "released by this run", "simplest": "simplest", "largest": "largest",
    }  # fmt: skip
    return {
        "sentence": found["sentence"],
        "measure": measure,
        "chart": draw_crossover(found, measure, of_errors=of_errors),
        "data_sets": found.get("data_sets"),
        "repeats": found.get("repeats"),
        "paid": "measured_crossover" not in document,
        "has_point": own["score"] is not None and epsilons[0] <= own["epsilon"] <= epsilons[-1],
        "models": [
            {
                "name": each["name"],
                "note": ", ".join([
                    f"{each['parameters']:,} parameters",
                    *(roles[role] for role in each["roles"] if role in roles),
                ]),
            }
            for each in found["models"]
        ],
        "crossings": [
            each["sentence"]
            if found["kind"] == "measured"
            else f"From about epsilon {each['epsilon']:g} on, {each['after']} instead of "
            f"{each['before']} ({describe_range(each, epsilons)})."
            for each in crossings
        ],
    }  # fmt: skip


def draw_crossover(found: Values, measure: str, *, of_errors: bool) -> Markup:
    """Draw the scores of models over epsilon with their uncertainty, and the score of the run.

    Args:
        found: Crossover as in `result.json`; its values are accuracies, or 1 minus an error.
        measure: Name of the vertical axis.
        of_errors: Whether to draw errors, 1 minus the values of `found`.
    """

    def to_axis_value(value: float) -> float:
        return 1.0 - value if of_errors else value

    curves = [
        figures.Curve(
            name=each["name"],
            points=tuple(
                (x, to_axis_value(y))
                for x, y in zip(found["epsilons"], each["accuracy"], strict=True)
            ),
            band=tuple(
                (min(ends), max(ends))
                for low, high in zip(each["low"], each["high"], strict=True)
                for ends in [(to_axis_value(low), to_axis_value(high))]
            ),
        )
        for each in found["models"]
    ]
    own = found["own"]
    score = None
    if own["score"] is not None:
        score = own["epsilon"], to_axis_value(own["score"]), own["standard_error"]
    axes = ("epsilon (logarithmic)", measure)
    return figures.draw_lines(curves, found["sentence"], axes, logarithmic=True, score=score)


def _alternative_rows(document: Values, outputs: int) -> list[tuple[str, str]]:
    """Return pairs (epsilon, sentence): how the training would change with other budgets."""
    given, budget = document.get("alternatives") or [], document["budget"]["epsilon"]
    own: Values = next((each for each in given if each["epsilon"] == budget), {})
    here, noise_here = own.get("signal_to_noise"), own.get("noise_multiplier")
    rows = []
    for each in given:
        if each is own and here:
            continue
        signal, noise = each.get("signal_to_noise"), each.get("noise_multiplier")
        if signal is None or noise is None:
            words = "Too small for this plan, even with the largest noise."
        elif not here or not noise_here:
            words = "The training fits this budget."
        else:
            words = (
                f"Noise {noise / noise_here:.2g} times as large, as if training on "
                f"{signal / here:.2g} times as many records."
            )
        if signal is not None and noise is not None and signal < MIN_SIGNAL * outputs:
            words += " Accuracy would be near chance."
        rows.append((f"\u03b5 {each['epsilon']:g}", words))
    return rows


def _draw_curves(document: Values, schema: AnySchema) -> Values | None:
    """Draw the accuracy over training steps; None if `result.json` has no curve."""
    curves = []
    for each in document.get("curves") or []:
        pairs = zip(each["steps"], each["accuracy"], strict=True)
        points = tuple((x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y))
        if points:
            curves.append(figures.Curve(name=each["name"], points=points))
    up = "score count (fraction)" if schema.regression else "accuracy"
    axes = ("training steps", up)
    return _draw_chart(curves, "Accuracy over training steps", axes) if curves else None


def _draw_chart(curves: list[figures.Curve], title: str, axes: tuple[str, str]) -> Values:
    """Draw curves, with their final values in the description for screen readers."""
    ends = "; ".join(f"{each.name} ends at {each.points[-1][1]:.3f}" for each in curves)
    chart = figures.draw_lines(curves, f"{title}: {ends}.", axes)
    return {"chart": chart, "names": [each.name for each in curves]}


def _comparison_rows(document: Values) -> list[Values]:
    """Return one row each for this run and a run without search, with their test scores."""
    given, rows = document.get("compared") or {}, []
    for key, name in ("this", "This run"), ("fixed", "Fixed network, no search"):
        if not given.get(key):
            continue
        bars = [
            {
                "kind": words,
                "value": f"{100 * given[key][kind]:.1f} %",
                "bar": figures.draw_bar(
                    given[key][kind],
                    f"{name}, {words}: {100 * given[key][kind]:.1f} per cent",
                    tone="accent" if key == "this" else "plain",
                ),
            }
            for kind, words in (("test", "released, with noise"), ("exact", "exact"))
            if given[key].get(kind) is not None
        ]
        rows.append({"name": name, "bars": bars})
    return rows


def _describe_auto(document: Values) -> Values | None:
    """Describe the automatic choice of the strategy; None if the user named one."""
    if not (auto := document.get("auto")):
        return None
    expected = auto.get("expected") or []
    most = max((each["expected"] for each in expected), default=0.0)
    best = next((e for e in expected if f"{e['strategy']}, {e['winner']}" == auto["chosen"]), None)
    return {
        "chosen": auto["chosen"],
        "why": auto["why"],
        "expected": [
            {
                "strategy": show_strategy(each["strategy"]),
                "winner": each["winner"],
                "value": f"{each['expected']:.3f}",
                "is_chosen": each is best,
                "bar": figures.draw_bar(
                    each["expected"],
                    f"{show_strategy(each['strategy'])}, {each['winner']}: "
                    f"expected {each['expected']:.3f}",
                    of=most,
                    tone="accent" if each is best else "plain",
                ),
            }
            for each in expected
        ],
    }


# --- the candidates


def _candidate_table(document: Values, schema: AnySchema) -> Values | None:
    """List the candidates with their scores and the uncertainty of these.

    Scores are shown if the privacy cost covers them. If they are secret, the candidates of a
    portfolio are listed without scores. None if fewer than two candidates can be listed.
    """
    rule, of_features = document["selection"]["rule"], document["task"] == FEATURE_SELECTION
    from pasearch.training.metrics import compute_score_error

    metric, rows, note, seen = ranking_metric(document), [], "", set()
    scale, digits, unit = (1.0, 3, "") if metric.worst > 1.0 else (100.0, 1, " %")
    for trial in list_trials(document) if rule != "none" else []:
        if repr(trial.values) in seen:  # the same candidate with the same score
            continue
        seen.add(repr(trial.values))
        if of_features:
            names = trial.values["features"]
            row = {"name": f"{len(names):,} features", "settings": join_names(names), "size": None}
        else:
            row = _candidate_row(trial.values["parameters"], schema)
        text, bar, line = None, "", score_event(document)
        if trial.share is not None:
            value = metric.to_metric_value(min(1.0, max(0.0, trial.share)))
            text, interval = f"{scale * value:.{digits}f}{unit}", None
            if trial.deviation is not None and line is not None:
                error = compute_score_error({
                    "metric": metric.noun, "test": value,
                    "of": document["dataset"]["slots"][line["partition"]],
                    "noise": {"standard_deviation": trial.deviation},
                })  # fmt: skip
                interval = max(0.0, value - error) / metric.worst, (value + error) / metric.worst
                text += f" \u00b1 {scale * error:.{digits}f}"
            bar = figures.draw_interval(value / metric.worst, interval, f"{row['name']}: {text}")
        rows.append(
            {**row, "is_best": trial.released, "order": trial.share, "score": text, "bar": bar}
        )
    if rows:
        rows.sort(key=lambda row: math.inf if row["order"] is None else -row["order"])
        best = next((row["order"] for row in rows if row["is_best"]), None)
        if best is not None and best < rows[0]["order"]:
            insured = (
                "Each low-budget evaluation is short and noisy, so a lead in this table is partly "
                "luck. The default is kept unless another candidate leads by more than the noise "
                "and public prior knowledge explain."
            )
            ahead = (
                "Low-budget evaluations ran in successive-halving rounds, each of which keeps "
                "the better half. Only the last round decides."
            )
            reasons = {
                "insured": insured, "protected-halving": insured,
                "ahead": ahead, "successive-halving": ahead,
                "grid": "Each model was trained several times, with several fractions of the "
                "privacy budget. The mean score at the largest fraction decides.",
                "paas": "Only the last generation of candidates decides.",
            }  # fmt: skip
            other = "The method uses more than one score."
            why = reasons.get(document["strategy"]["name"], other)
            note = f"The released candidate does not have the best score in this table. {why}"
    elif not of_features:
        own = Candidate.from_json(document["best"])
        for each in (document["space"].get("entries") or [])[:MAX_LISTED_CANDIDATES]:
            is_best = Candidate.from_json(each) == own
            row = _candidate_row(each, schema)
            rows.append({**row, "settings": "", "is_best": is_best, "score": None, "bar": ""})
        rows.sort(key=lambda row: row["size"])
        if rule not in ("none", "not private"):
            note = "Their scores are secret: the privacy cost does not cover losing candidates."
    if not rows or (not seen and len(rows) < 2):
        return None
    scored = rows[0]["score"] is not None
    return {
        "rows": rows[: MAX_UNFOLDED_CANDIDATES * scored],
        "more": rows[MAX_UNFOLDED_CANDIDATES * scored : MAX_LISTED_CANDIDATES],
        "count": len(rows),
        "note": note,
        "scored": scored,
        "lower": scored and metric.to_metric_value(1.0) < metric.to_metric_value(0.0),
    }


def _candidate_row(values: Values, schema: AnySchema) -> Values:
    """Return the name, the settings and the number of parameters of a candidate."""
    candidate = Candidate.from_json(values)
    try:
        size, _ = candidate.parameters(schema.shape, schema.outputs)
    except UsageError:
        size = None
    settings = (values.get("settings") or {}).items()
    plain = [f"{replace_underscores(name)} {value:g}" for name, value in settings if value != 1.0]
    name = capitalize_first(", then ".join(describe_parts(candidate)))
    return {"name": name, "settings": ", ".join(plain), "size": size}


def _describe_selection(document: Values) -> Values:
    """Describe how the released candidate or the features were selected."""
    selection, space = document["selection"], document["space"]
    strategy = show_strategy(document["strategy"]["name"])
    rule, bound = selection["rule"], selection["bound"]
    if document["task"] == FEATURE_SELECTION:
        rows = [("Method", f"{strategy}: {selection['law']}"), ("Bound", bound)]
        words = {
            "none": "No comparison, so the selection has no privacy cost.",
            "composition": "The accesses for the selection and the model are both charged.",
            "repeat-and-select": "Feature sets were drawn from one distribution. A model was "
            "trained on each and scored with noise, and the best model was released. "
            + SECRECY_SENTENCE,
            "not private": "The selection read data declared public, so it has no privacy cost.",
        }
        chosen = words.get(rule)
        if document.get("searched_on"):
            chosen = (
                f"The selection read {document['searched_on']}, declared public: no privacy cost."
            )
        elif document.get("trials") and rule == "composition":
            chosen = "Every planned training and score is charged; the model was retrained."
        if chosen is None:
            raise KeyError(rule)
    else:
        rows = [
            ("Strategy", strategy),
            ("Trainings", selection["law"]),
            ("Bound", f"{bound}; {selection['formula']}"),
            ("Space", str(space.get("name", ""))),
        ]
        words = {
            "none": "No comparison: one data-independent network was trained.",
            "composition": "Every trained candidate is charged.",
            "disjoint portions": "Each candidate was trained on a disjoint subset of the records. "
            "The exponential mechanism selected one of them.",
            "repeat-and-select": "Candidates were drawn from one distribution, trained, and scored "
            "with noise; the best was released. " + SECRECY_SENTENCE,
            "not private": "The search read data declared public, so it has no privacy cost.",
        }
        winners = {
            "kept": "The winner keeps the weights that were scored.",
            "retrained": "The search and the training of the winner read disjoint records.",
            "trained anew": "Each candidate had a low-budget evaluation; the winner was retrained "
            "with the remaining budget.",
        }
        winner = document["winner"]
        keeps = "" if rule == "none" else winners.get(winner, winner)
        chosen = f"{words.get(rule, rule)} {keeps}".strip()

    def format_choice(values: object) -> str:
        if isinstance(values, list):
            return ", ".join(map(format_choice, values))
        if isinstance(values, bool):
            return "yes" if values else "no"
        return f"{values:g}" if isinstance(values, float) else replace_underscores(str(values))

    genes = (space.get("choices") or {}).items()
    return {
        "words": chosen,
        "rows": [] if document["task"] == TRAINING else rows,
        "genes": [(replace_underscores(name), format_choice(values)) for name, values in genes],
    }


# --- next steps


def next_steps(document: Values, is_known: bool) -> list[tuple[str, str]]:
    """Recommend commands to the reader, as pairs (purpose, command), the most urgent first.

    RUN, DATA, SCHEMA and DATA_ROOT are placeholders for the user's paths.

    Args:
        document: `result.json`.
        is_known: Whether the model is significantly better than the baseline.
    """
    commands = {"architecture search": "arch", "training": "train", FEATURE_SELECTION: "features"}
    command, budget = commands.get(document["task"], "arch"), document["budget"]
    data, table = data_arguments(document), document["dataset"]["schema"].get("kind") == "table"
    found = []
    if not is_known:
        found.append((
            "The model is not significantly better than a baseline. Plan a larger budget (free):",
            f"pasearch plan {command} {data} --eps {4 * budget['epsilon']:g}",
        ))  # fmt: skip
    if table and set(document["assumed_public"]) - {TYPES_DESCRIPTION}:
        found.append((
            "Bounds and categories were read from the records without a charge. Before you publish "
            "a model, declare them from public knowledge:",
            "pasearch check DATA --propose schema.toml",
        ))  # fmt: skip
    records = "new.csv" if table else "new.npz"
    if is_known:
        found.append(("Use the model:", f"pasearch predict RUN {records} --out predictions.csv"))
    check = "Verify the privacy cost from release/ alone:"
    found.append((check, "pasearch verify RUN"))
    total, public = document.get("two_runs"), document["dataset"]["declared_public"]
    if document.get("ledger") is None and not public and total is not None:
        default = Budget(budget["epsilon"]).resolve(document["dataset"]["n"]).delta
        delta = "" if budget["delta"] == default else f" --delta {budget['delta']!r}"
        found += [
            (
                "Each further run on these records adds to the privacy cost. This run used no "
                "shared ledger. Create one that contains it and has budget for one more such run:",
                "pasearch ledger people.ledger --add RUN --ledger-budget "
                f"{total['epsilon']:g} {total['delta']!r}",
            ),
            (
                "Pass this ledger to every further run on these records, for example:",
                f"pasearch {command} {data} --eps {budget['epsilon']:g}{delta} --ledger "
                "people.ledger",
            ),
        ]
    return found


def data_arguments(document: Values) -> str:
    """Build the command-line arguments that describe the data, quoted for a shell."""

    def quote_labels(labels: list[Any]) -> str:
        return shlex.quote(",".join(map(str, labels)))

    declared = (document.get("plan") or {}).get("declared") or {}
    words = ["DATA"]
    if declared.get("kind") == "table":
        target, columns = declared.get("target") or {}, declared.get("columns") or []
        labels = target.get("categories")
        # The option separates labels by commas, so a label cannot contain one.
        fits = labels is not None and len(labels) > 1 and not any("," in each for each in labels)
        known = {"name", "kind"} | ({"categories"} if fits else set())
        if any(len(each) > 1 for each in columns) or set(target) - known:
            words.append("--schema SCHEMA")
        else:
            words += [f"--target {shlex.quote(str(target['name']))}"] * ("name" in target)
            words += ["--regression"] * (target.get("kind") == "number")
            words += [f"--labels {quote_labels(labels)}"] if labels else []
    elif declared.get("kind") == "arrays" and document["dataset"]["name"] not in BUILT_IN_NAMES:
        low, high, classes = (declared.get(name) for name in ("low", "high", "classes"))
        words += ["--regression"] * bool(declared.get("regression"))
        if low is not None and high is not None:
            words.append(f"--bounds {low:g} {high:g}")
        if (labels := declared.get("labels")) is not None:
            words.append(f"--labels {quote_labels(labels)}")
        elif classes is not None:
            words.append(f"--classes {classes}")
    words += ["--data-root DATA_ROOT"] * ("data_root" in document)
    return " ".join(words)
