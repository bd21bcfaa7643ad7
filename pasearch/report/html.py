"""The report: one HTML file, made from `result.json` alone, that needs no network and no script.

It computes nothing private and reads no record. What a user chose (names of data, columns, classes,
spaces and genes) is text that Jinja2 escapes; characters that would change how the text around them
is read, such as a reversed direction, are shown as a replacement sign. Two reports of one document
are equal: there is no date in them, because no price covers when a run ended.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pasearch.doubts import tells_nothing
from pasearch.errors import FIELD, UsageError
from pasearch.report import (
    classes,
    figures,
    networks,
    priced,
    quality,
    stages,
    summary,
    tried,
    worth,
)
from pasearch.report.advice import next_steps
from pasearch.report.card import card_json
from pasearch.report.crossover import crossover
from pasearch.report.meaning import meaning
from pasearch.report.networks import capital, number
from pasearch.results import FEATURES
from pasearch.shown import shown
from pasearch.spaces.candidate import Candidate

if TYPE_CHECKING:
    from jinja2 import Environment

    from pasearch.data.tables import AnySchema

Values = dict[str, Any]

SHOWN_APART = frozenset(
    {"Claims of the papers, beside", "Assumed public, read without a charge", "Versions"}
)
"""Sections of the card that the report has sections of its own for."""

IN_BRACKETS = re.compile(r" \(`\w+=[^`]*`\)")
"""An option that a warning names beside what it says in words."""

MOST_ROWS = 25
"""How many features a table lists."""


def report_html(document: dict[str, Any]) -> str:
    """Return the report of a finished run, one self-contained HTML file.

    Args:
        document: `result.json`. What it may hold beside the documented fields, `alternatives`,
            `auto`, `curves` and `compared`, each has a section, which is left out without it; the
            last two only on declared-public data.

    Raises:
        UsageError: A field is missing or of the wrong form.

    Cost: none; it says what the document says.
    """
    from jinja2 import UndefinedError

    from pasearch.results import schema_of

    known = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, UndefinedError)
    try:
        # The schema takes the names as they are: two may look alike once they are made visible.
        page = _page(_visible(document), schema_of(document))
        return environment().get_template("report.html.j2").render(page)
    except known as error:
        raise UsageError(f"result.json is not well formed ({error!r}).") from None


@cache
def environment() -> Environment:
    """Return what renders the pages."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pasearch.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"marked": _marked, "short": figures.shortened, "capital": capital,
                            "command": _command, "plain": _plain}  # fmt: skip
    environment.globals |= {"swatch": figures.swatch}
    return environment


def _page(document: Values, schema: AnySchema) -> Values:
    """Return everything that the template writes."""
    card = card_json(document)
    public = document["dataset"]["declared_public"]
    of_task = _of_features if document["task"] == FEATURES else _of_network
    return {
        **of_task(document, schema),
        "document": document,
        "private": card["private"],
        "public": public,
        "heading": quality.heading(document),
        "quality": (good := quality.quality(document, schema)),
        "more": classes.more(document, schema),
        "meaning": meaning(document),
        "beside": summary.beside(document["assumed_public"]),
        "asked": _asked(document, schema),
        "covered": priced.covered(document),
        "not_covered": priced.not_covered(document, card),
        "partitions": priced.partitions(document),
        "alternatives": worth.alternatives(document, schema.outputs),
        "crossover": (found := crossover(document)),
        "curves": worth.curves(document, of_numbers=schema.regression) if public else None,
        "compared": (compared := worth.compared(document) if public else None),
        "others": worth.heading(found, compared),
        "auto": worth.searching(document),
        "tried": tried.tried(document, schema),
        "chosen": tried.chosen(document),
        "effects": _effects(document),
        "next": next_steps(document, good["is_known"]),
        "claims": [stages.claim_words(claim) for claim in document["claims"]],
        "items": _visible(schema.describe_items()),
        "card": [each for each in card["sections"] if each["title"] not in SHOWN_APART],
    }


def _of_network(document: Values, schema: AnySchema) -> Values:
    """Return what the template writes of an architecture search, or of one training."""
    candidate = Candidate.from_json(document["best"])
    return {
        "found": networks.network_words(candidate, schema),
        "network": figures.network(networks.stages_of(candidate, schema)),
        "features": None,
        "training": networks.training_rows(document),
    }


def _of_features(document: Values, schema: AnySchema) -> Values:
    """Return what the template writes of a feature selection."""
    best, method = document["best"], document["strategy"]["name"]
    chosen, count = best["features"], len(best["features"])
    every, blank = count == best["of"], document.get("relevance_of_noise")
    if best["directions"] is not None:
        found = f"A linear model on {best['directions']} directions in all {best['of']:,} features."
    elif every:
        found = f"A linear model on all {count:,} features: none was selected."
        if method not in ("all", "max-pool"):
            found = f"A linear model on all {count:,} features, chosen by {method}."
    else:
        found = f"A linear model on {count:,} of {best['of']:,} features, chosen by {method}."
    return {
        "found": found,
        "network": None,
        "features": {
            "rows": _relevance(document),
            "read_from": "from public data"
            if document.get("searched_on")
            else f"from noisy {document['strategy'].get('merits', 'tables')}",
            "blank": "" if blank is None else f"{blank:.3f}",
            "tells_nothing": tells_nothing(document),
            "names": [] if every or best["directions"] is not None else chosen[:MOST_ROWS],
            "more": 0 if every else max(0, count - MOST_ROWS),
            "columns": best["columns"],
            "curve": _by_size(document),
        },
        "training": _linear_training(document),
    }


def _effects(document: Values) -> list[Values]:
    """Return the columns that move a linear model's answer most, in words."""
    given = document.get("effects") or []
    most = max((each["reach"] for each in given), default=0.0)
    return [
        {
            "column": each["column"],
            "value": number(each["reach"]),
            "most": each["most"],
            "least": each["least"],
            "towards": each["towards"],
            "bar": figures.bar(
                each["reach"] / most if most > 0 else 0.0,
                f"{each['column']}: moves the answer by {each['reach']:.3g}",
            ),
        }
        for each in given
    ]


def _relevance(document: Values) -> list[Values]:
    """Return the features that tell most of the target, with their noisy uncertainty."""
    given = document.get("relevance") or []
    ranked = sorted(given, key=lambda each: -each["uncertainty"])[:MOST_ROWS]
    most = max((each["uncertainty"] for each in ranked), default=0.0)
    chosen = set(document["best"]["features"])
    return [
        {
            "feature": each["feature"],
            "value": f"{each['uncertainty']:.3f}",
            "is_chosen": each["feature"] in chosen,
            "bar": figures.bar(
                each["uncertainty"] / most if most > 0 else 0.0,
                f"{each['feature']}: symmetrical uncertainty {each['uncertainty']:.3f}",
                tone=_tone(each["feature"] in chosen),
            ),
        }
        for each in ranked
    ]


def _by_size(document: Values) -> Values | None:
    """Return the chart of accuracy by number of features, on declared-public data only."""
    given = document.get("by_size") or []
    if not (given and document["dataset"]["declared_public"]):
        return None
    epsilon = document["budget"]["epsilon"]
    names = [("private", f"at epsilon {epsilon:g}"), ("without", "without privacy")]
    curves = [
        figures.Curve(name=name, points=tuple((each["features"], each[key]) for each in given))
        for key, name in names
    ]
    return worth.chart(curves, "Accuracy by number of features", ("features", "accuracy"))


def _linear_training(document: Values) -> list[tuple[str, str]]:
    """Return how the released model was trained, as names and values."""
    recipe, best = document["recipe"], document["best"]
    rows = [("Numbers trained", f"{best['parameters']:,}")]
    if recipe["noise_multiplier"] is not None and recipe["trainer"] == "objective":
        noise = f"{recipe['noise_multiplier']:.4g}"
        return [*rows, ("Training", "noisy second moments"), ("Noise multiplier", noise)]
    if recipe["trainer"] == "objective":
        own = f"{recipe['epsilon']:.4g}, pure"
        return [*rows, ("Training", "objective perturbation"), ("Its epsilon", own)]
    trained = stages.recipe_of(recipe)
    assert trained.bounding is not None
    return [
        *rows,
        ("Training", "DP-SGD, full batches"),
        ("Steps", stages.steps_words(trained)),
        ("Learning rate", f"{trained.learning_rate:.4g}"),
        ("Optimizer", capital(stages.optimizer_words(trained))),
        ("Each gradient", capital(trained.bounding.words())),
        ("Noise multiplier", stages.noise_words(trained)),
        *(("Also", capital(words)) for words in stages.stage_words(trained)),
    ]


def _visible(value: Any) -> Any:
    """Return plain values with every character that acts on others spelt out."""
    if isinstance(value, dict):
        return {_visible(key): _visible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(each) for each in value]
    return shown(re.sub(r"[\n\r\t]", " ", value)) if isinstance(value, str) else value


def _marked(text: str) -> Markup:
    """Return a line of the card, its `names` set as code and its *words* stressed."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece)
        if place % 2
        else Markup(re.sub(r"\*(\w+)\*", r"<em>\1</em>", str(escape(piece))))
        for place, piece in enumerate(pieces)
    )


def _command(text: str) -> Markup:
    """Return a command, of which no line ends inside a word that begins with a dash."""
    words = (
        Markup('<span class="flag">{}</span>').format(each)
        if each.startswith("-")
        else escape(each)
        for each in text.split(" ")
    )
    return Markup(" ").join(words)


def _plain(warning: str) -> str:
    """Return a warning for who gives no commands: an option is called by its plain name."""
    named = FIELD.sub(lambda found: found[1].replace("_", " "), IN_BRACKETS.sub("", warning))
    return re.sub(r"`([^`]*)`", r"\1", named)


def _asked(document: Values, schema: AnySchema) -> str:
    searched = document["selection"]["rule"] != "none"
    what = "search and model together" if searched else "the model and its test"
    form, budget = schema.describe().replace(" x ", " \u00d7 "), document["budget"]
    return (
        f"{document['dataset']['n']:,} records, {form}. One budget for {what}: "
        f"\u03b5 {budget['epsilon']:g} at \u03b4 {budget['delta']:g}."
    )


def _tone(chosen: bool) -> str:
    return "accent" if chosen else "plain"
