"""The report: one HTML file, made from `result.json` alone, that needs no network and no script.

It computes nothing private and reads no record. What a user chose (names of data, columns, classes,
spaces and genes) is text that Jinja2 escapes; characters that would change how the text around them
is read, such as a reversed direction, are shown as a replacement sign. Two reports of one document
are equal: there is no date in them, because no price covers when a run ended.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from pasearch.accounting.events import describe, from_json
from pasearch.errors import UsageError
from pasearch.report import figures, networks, stages
from pasearch.report.card import card_json
from pasearch.report.crossover import crossover
from pasearch.report.meaning import meaning
from pasearch.report.networks import capital, some, spaced
from pasearch.results import FEATURES, standard_error, tells_nothing
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

GUESSED = ("accuracy", "balanced accuracy", "area under the ROC curve")
"""Metrics of which guessing has a known value."""

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

    known = (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, UndefinedError)
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
    environment.filters |= {"marked": _marked, "short": figures.shortened}
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
        "score": _score(document, schema.outputs),
        "meaning": meaning(document),
        "asked": _asked(document, schema),
        "covered": _covered(document),
        "not_covered": _not_covered(document, card),
        "partitions": _partitions(document),
        "alternatives": _alternatives(document, schema.outputs),
        "crossover": crossover(document),
        "curves": _curves(document) if public else None,
        "compared": _compared(document) if public else None,
        "selection": _selection(document),
        "auto": _auto(document),
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
        "trials": networks.network_trials(document),
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
        "trials": networks.set_trials(document),
    }


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
    return _chart(curves, "Accuracy by number of features")


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


def _asked(document: Values, schema: AnySchema) -> str:
    searched = document["selection"]["rule"] != "none"
    what = "search and model together" if searched else "the model and its test"
    form, budget = schema.describe().replace(" x ", " \u00d7 "), document["budget"]
    return (
        f"{document['dataset']['n']:,} records, {form}. One budget for {what}: "
        f"\u03b5 {budget['epsilon']:g} at \u03b4 {budget['delta']:g}."
    )


def _score(document: Values, outputs: int) -> Values:
    from pasearch.training.metrics import of_noun

    score = document["score"]
    metric = of_noun(score["metric"])
    number, scale = metric.of_numbers, 1.0 if metric.worst > 1.0 else 100.0
    error, noise = standard_error(score), score["noise"]["standard_deviation"]
    digits = 3 if scale == 1.0 else 1
    at_most = "" if score["metric"] == "accuracy" else " at most"
    spread = f"\u00b1 {scale * error:.{digits}f}{at_most}, one standard error; "
    alone = f"noise alone {scale * noise:.{digits}f}"
    details = [(spread if metric.summed else "") + alone, f"on {score['of']:,} test records"]
    width = _target_width(document)
    if number and width is not None:
        own = _number(score["test"] * width)
        details.insert(0, f"of the target's range: {own} in its own unit")
    if score["metric"] in GUESSED:
        common = ", more if one is common" if score["metric"] == "accuracy" else ""
        share = 100.0 / (2 if score["metric"].startswith("area") else outputs)
        details.append(f"guessing among {outputs} classes: {share:.3g} %{common}")
    if "exact" in score and document["dataset"]["declared_public"]:
        unit = " %" if scale == 100.0 else ""
        details.append(f"exactly {scale * score['exact']:.{digits}f}{unit} (public data)")
    name = f"test {score['metric']}"
    value = f"{scale * score['test']:.{digits}f}"
    return {
        "value": value,
        "unit": "%" * (scale == 100.0),
        "name": capital(name),
        "details": details,
    }


def _target_width(document: Values) -> float | None:
    """Return how wide the bounds of the number to predict are, in its own unit."""
    target = document["dataset"]["schema"].get("target")
    if isinstance(target, dict):
        target = (target.get("low"), target.get("high"))
    low, high = target or (None, None)
    return None if low is None or high is None else high - low


def _covered(document: Values) -> list[str]:
    what = "features" if document["task"] == FEATURES else "architecture"
    reads = (f"{x['name']}, {_times(x)}: reads {x['partition']}" for x in document["events"])
    return [f"everything in release/: {what}, weights and test score, jointly", *reads]


def _not_covered(document: Values, card: Values) -> list[str]:
    """Return what is not covered in brief: the first sentence of each of the card's lines."""
    lines = [
        line.split(". ")[0].rstrip(".")
        for section in card["sections"]
        if section["title"] == "Not covered"
        for line in section["items"]
    ]
    if assumed := document["assumed_public"]:
        lines.insert(0, f"What is taken as public, and was not charged: {some(assumed)}")
    return lines


def _partitions(document: Values) -> list[Values]:
    """Return every partition with its price, bar and lines; the dearest is the price."""
    shares = document["price_by_partition"]
    budget = document["budget"]["epsilon"]
    most = max(share["epsilon"] for share in shares.values())
    scale = max(budget, most)
    dearest = next(name for name, share in shares.items() if share["epsilon"] == most)
    found = []
    for name, share in shares.items():
        epsilon, is_price = share["epsilon"], name == dearest
        words = f"Partition {name}: epsilon {epsilon:.4f} of a budget of {budget:g}"
        words += ": this is the price." if is_price else "."
        bar = figures.bar(epsilon / scale, words, tone=_tone(is_price), mark=budget / scale)
        lines = [_line(each) for each in document["events"] if each["partition"] == name]
        found.append({
            "name": name, "slots": document["dataset"]["slots"].get(name, 0),
            "epsilon": f"{epsilon:.4f}", "accountant": share["accountant"], "is_price": is_price,
            "bar": bar, "lines": lines,
        })  # fmt: skip
    return found


def _line(line: Values) -> Values:
    noise = describe(from_json(line["event"]))
    # Its description says already that the best of K is released.
    selected = line["event"]["type"] == "repeat-and-select" and line["count"] == 1
    return {"name": line["name"], "times": "" if selected else _times(line), "noise": noise}


def _alternatives(document: Values, outputs: int) -> list[Values]:
    """Return what other budgets would buy, by the plan's arithmetic, and what that means."""
    given = document.get("alternatives") or []
    signals = [each.get("signal_to_noise") or 0.0 for each in given]
    most = max(signals, default=0.0)
    budget = document["budget"]["epsilon"]
    own: Values = next((each for each in given if each["epsilon"] == budget), {})
    return [
        {
            "epsilon": f"{each['epsilon']:g}",
            "noise": _number(each.get("noise_multiplier")),
            "signal": _number(each.get("signal_to_noise")),
            "note": _meaning(each, own, outputs),
            "is_this": (this := each["epsilon"] == budget),
            "bar": figures.bar(
                signal / most,
                f"Signal to noise {signal:.3g} at epsilon {each['epsilon']:g}",
                tone=_tone(this),
            )
            if most
            else "",
        }
        for each, signal in zip(given, signals, strict=True)
    ]


def _meaning(each: Values, own: Values, outputs: int) -> str:
    """Return what a budget would mean in a sentence, measured by this run's own."""
    from pasearch.planning import LEAST_SIGNAL

    signal, noise = each.get("signal_to_noise"), each.get("noise_multiplier")
    if signal is None or noise is None:
        return "Too little for this plan: not even the most noise would fit."
    if signal < LEAST_SIGNAL * outputs:
        return "The noise is as large as what the records say: little better than guessing."
    signal_here, noise_here = own.get("signal_to_noise"), own.get("noise_multiplier")
    if each is own or not signal_here or not noise_here:
        share = f"{signal / outputs:,.0f} for each class" if outputs > 1 else f"{signal:,.0f}"
        return f"{share}. At {LEAST_SIGNAL:g} or less, a model does little better than guessing."
    return (
        f"{signal / signal_here:.2g} times the signal to noise of this run: "
        f"{noise / noise_here:.2g} times its noise in every step."
    )


def _curves(document: Values) -> Values | None:
    """Return the chart of accuracies over steps; points that are not finite are left out."""
    curves = []
    for each in document.get("curves") or []:
        pairs = zip(each["steps"], each["accuracy"], strict=True)
        points = tuple((x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y))
        if points:
            curves.append(figures.Curve(name=each["name"], points=points))
    return _chart(curves, "Accuracy over training steps") if curves else None


def _chart(curves: list[figures.Curve], title: str) -> Values:
    ends = "; ".join(f"{each.name} ends at {each.points[-1][1]:.3f}" for each in curves)
    names = [each.name for each in curves]
    return {"chart": figures.chart(curves, f"{title}: {ends}."), "names": names}


def _compared(document: Values) -> list[Values]:
    """Return this run beside the fixed strategy, each with its noisy and its exact score."""
    given = document.get("compared") or {}
    names = [("this", "This run"), ("fixed", "Fixed, nothing searched")]
    kinds = [("test", "as released, with noise"), ("exact", "exact")]
    return [
        {
            "name": name,
            "bars": [
                {
                    "kind": words,
                    "value": f"{100 * given[key][kind]:.1f} %",
                    "bar": figures.bar(
                        given[key][kind],
                        f"{name}, {words}: {100 * given[key][kind]:.1f} per cent",
                        tone=_tone(key == "this"),
                    ),
                }
                for kind, words in kinds
                if given[key].get(kind) is not None
            ],
        }
        for key, name in names
        if given.get(key)
    ]


def _choice(document: Values) -> Values:
    """Return how features were chosen, in words."""
    method, bound = document["strategy"]["name"], document["selection"]
    words = {
        "none": "Nothing was compared, so no choice was paid for.",
        "composition": "What was read to choose is charged, and so is the model.",
        "repeat-and-select": "Sets were drawn from one law, a model trained on each and scored "
        "with noise, and the best model was released. How many there were is secret: the price "
        "covers a random number of them, and knowing it would break that.",
        "not private": "The choice read data that were declared public, so it cost nothing.",
    }[bound["rule"]]
    if document.get("searched_on"):
        words = f"The choice read {document['searched_on']}, declared public, so it cost nothing."
    if document.get("trials") and bound["rule"] == "composition":
        words = "Every planned training and score is charged; the model was trained anew."
    rows = [("Method", f"{method}: {bound['law']}"), ("Bound", bound["bound"])]
    return {"words": words, "rows": rows, "genes": []}


def _selection(document: Values) -> Values:
    if document["task"] == FEATURES:
        return _choice(document)
    chosen, space = document["selection"], document["space"]
    rules = {
        "none": "Nothing was compared: one network, fixed beforehand, was trained.",
        "composition": "Candidates were trained one after another, and every one is charged.",
        "disjoint portions": "Each candidate was trained on records of its own, and one was picked "
        "by a private lottery that favours the better ones.",
        "repeat-and-select": "Candidates were drawn from one law, each trained and scored with "
        "noise, and the best was released. How many there were is secret: the price covers a "
        "random number of them, and knowing it would break that.",
        "not private": "The search read data that were declared public, so it cost nothing.",
    }
    place = {
        "kept": "The winner keeps the weights it was scored with.",
        "retrained": "The search read records of its own; the winner was trained on the others.",
        "trained anew": "Each candidate had a look with a small part of the privacy budget; the "
        "winner was then trained anew with the rest.",
    }
    keeps = "" if chosen["rule"] == "none" else place.get(document["winner"], document["winner"])
    genes = space.get("choices") or {}
    rows = [
        ("Strategy", document["strategy"]["name"]),
        ("Trainings", chosen["law"]),
        ("Bound", f"{chosen['bound']}; {chosen['formula']}"),
        ("Space", str(space.get("name", ""))),
    ]
    return {
        "words": f"{rules.get(chosen['rule'], chosen['rule'])} {keeps}".strip(),
        "rows": [] if document["task"] == stages.TRAINING else rows,
        "genes": [(spaced(name), _list(values)) for name, values in genes.items()],
    }


def _auto(document: Values) -> Values | None:
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
                "strategy": each["strategy"],
                "winner": each["winner"],
                "value": f"{each['expected']:.3f}",
                "is_chosen": (chosen := each is best),
                "bar": figures.bar(
                    each["expected"] / most if most > 0 else 0.0,
                    f"{each['strategy']}, {each['winner']}: expected {each['expected']:.3f}",
                    tone=_tone(chosen),
                ),
            }
            for each in expected
        ],
    }


def _times(line: Values) -> str:
    """Return how often a line reads its partition; how often a selection does is secret."""
    count = line["count"]
    if line["event"]["type"] != "repeat-and-select":
        return "once" if count == 1 else f"{count:,} times"
    return f"{f'{count:,} times ' if count > 1 else ''}the best of a secret number"


def _tone(chosen: bool) -> str:
    return "accent" if chosen else "plain"


def _number(value: float | None) -> str:
    if value is None:
        return "\N{EM DASH}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _list(values: object) -> str:
    if isinstance(values, list):
        return ", ".join(map(_list, values))
    if isinstance(values, bool):
        return "yes" if values else "no"
    return f"{values:g}" if isinstance(values, float) else spaced(str(values))
