"""What was tried: every candidate that may be shown, with its size and its score's uncertainty.

Scores are shown where the price covers them; else the candidates are, and their scores are secret.
A space that lists its candidates is shown whole, whatever was trained.

Source: docs/result.md, `space`, `trials`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError
from pasearch.report import figures, networks, stages
from pasearch.report.networks import capital, most_points, parts_of, spaced
from pasearch.results import FEATURES, standard_error
from pasearch.spaces.candidate import Candidate

if TYPE_CHECKING:
    from pasearch.training.metrics import Metric

Values = dict[str, Any]

SHOWN = 4
"""How many candidates with scores stand on the page before it is unfolded."""

MOST_LISTED = 200
"""The most candidates that are listed at all."""

RATE = "Learning rate: how far one step of the training moves the weights."

SECRET = "Their scores are secret: the price holds only if the losing ones are not shown."


def tried(document: Values, schema: AnySchema) -> Values | None:
    """Return what the template writes of candidates; None of features, unless sets were tried."""
    rows = _scored(document, schema)
    if rows:
        return _filled(rows, document, _why_not_first(rows, document))
    if document["task"] == FEATURES:
        return None
    listed = _listed(document, schema)
    if len(listed) < 2:
        return None
    compared = document["selection"]["rule"] not in ("none", "not private")
    return _filled(listed, document, SECRET if compared else "")


def _filled(rows: list[Values], document: Values, note: str) -> Values:
    scored = rows[0]["score"] is not None
    return {
        "rows": rows[: SHOWN * scored],
        "more": rows[SHOWN * scored : MOST_LISTED],
        "count": len(rows),
        "note": note,
        "scored": scored,
        "rate": RATE * any("learning rate" in each["settings"] for each in rows),
        "lower": scored and _is_error(networks.judged_by(document)),
    }


NOT_FIRST = {
    "insured": "Each look is a short and noisy training, so a lead in this table is partly luck. "
    "The usual model is kept unless another is so far ahead that neither the noise nor what is "
    "known from public data explains it.",
    "ahead": "The looks were made in rounds, of which each keeps the better half, and only the "
    "last round decides.",
    "grid": "Each model was trained several times with several shares of the privacy budget. What "
    "decides is the mean of its scores with the largest share.",
    "paas": "Here only the last generation of candidates decides.",
}
"""Why the candidate with the best score may not be the released one, by strategy."""


def _is_error(metric: Metric) -> bool:
    """Return whether lower is better: all points are the least that is shown."""
    return metric.shown(1.0) < metric.shown(0.0)


def _why_not_first(rows: list[Values], document: Values) -> str:
    """Return why another than the best-looking candidate was released, where that is so."""
    best = next((row["order"] for row in rows if row["is_best"]), None)
    if best is None or not best < rows[0]["order"]:
        return ""
    why = NOT_FIRST.get(document["strategy"]["name"], "The method decides by more than one score.")
    return f"The released one is not the one with the best score here. {why}"


def _scored(document: Values, schema: AnySchema) -> list[Values]:
    """Return the trials with scores, the best first; what was tried again is not said again."""
    if document["selection"]["rule"] == "none" or not document.get("trials"):
        return []
    most = most_points(document)
    of_features = document["task"] == FEATURES
    own = {key: document["best"].get(key) for key in ("front_end", "layers", "settings")}
    found, seen = [], set()
    for trial in document["trials"]:
        if repr(trial) in seen:
            continue
        seen.add(repr(trial))
        reached = trial["noisy_correct"]
        share = None if most is None or reached is None else reached / most
        if of_features:
            row = _set(trial, document)
        else:
            parameters = trial["parameters"]
            row = _network(parameters, schema)
            row["is_best"] = all(parameters.get(key) == own[key] for key in own)
        found.append({**row, "order": share, **_score(document, share, row["name"])})
    return sorted(found, key=lambda row: math.inf if row["order"] is None else -row["order"])


def _listed(document: Values, schema: AnySchema) -> list[Values]:
    """Return the candidates of a space that lists them, the released one marked."""
    own = Candidate.from_json(document["best"])
    found = []
    for each in (document["space"].get("entries") or [])[:MOST_LISTED]:
        row = _network(each, schema)
        found.append(
            {
                **row,
                "settings": "",
                "is_best": Candidate.from_json(each) == own,
                "score": None,
                "bar": "",
            }
        )
    return sorted(found, key=lambda row: row["size"])


def _network(values: Values, schema: AnySchema) -> Values:
    candidate = Candidate.from_json(values)
    try:
        size, _ = candidate.parameters(schema.shape, schema.outputs)
    except UsageError:
        size = None
    settings = (values.get("settings") or {}).items()
    plain = [f"{spaced(name)} {value:g}" for name, value in settings if value != 1.0]
    return {
        "name": capital(", then ".join(parts_of(candidate))),
        "settings": ", ".join(plain),
        "size": size,
    }


def _set(trial: Values, document: Values) -> Values:
    return {
        "name": f"{len(trial['features']):,} features",
        "settings": networks.some(trial["features"]),
        "size": None,
        "is_best": trial["features"] == document["best"]["features"],
    }


def _score(document: Values, share: float | None, name: str) -> Values:
    """Return a score from its share of points, with its interval where the noise is known."""
    if share is None:
        return {"score": None, "bar": ""}
    metric = networks.judged_by(document)
    value = metric.shown(min(1.0, max(0.0, share)))
    scale, unit = (1.0, "") if metric.worst > 1.0 else (100.0, " %")
    text = f"{scale * value:.{3 if scale == 1.0 else 1}f}{unit}"
    if (error := _error(document, value)) is None:
        ends = None
    else:
        ends = (max(0.0, value - error) / metric.worst, (value + error) / metric.worst)
        text += f" \u00b1 {scale * error:.{3 if scale == 1.0 else 1}f}"
    return {"score": text, "bar": figures.interval(value / metric.worst, ends, f"{name}: {text}")}


def _error(document: Values, value: float) -> float | None:
    """Return the standard error of a candidate's score, of the sample and of the noise."""
    metric, slots = networks.judged_by(document), document["dataset"]["slots"]
    for line in document["events"]:
        epsilon = _of_geometric(line["event"])
        if line["name"] == "score" and epsilon and metric.summed:
            ratio = math.exp(-epsilon / metric.most)
            noise = math.sqrt(2 * ratio) / (1 - ratio)
            of = slots[line["partition"]]
            deviation = metric.slope(metric.share(value)) * noise / (of * metric.most)
            return standard_error({
                "metric": metric.noun, "of": of, "test": value,
                "noise": {"standard_deviation": deviation},
            })  # fmt: skip
    return None


def _of_geometric(event: Values) -> float | None:
    """Return epsilon of the one geometric release that an event is, once or several times."""
    while event["type"] in ("self-composed", "repeat-and-select"):
        event = event["event"]
    return event["epsilon"] if event["type"] == "geometric" else None


def chosen(document: Values) -> Values:
    """Return how the released model was chosen, in words, and what it was chosen from."""
    selection, space = document["selection"], document["space"]
    words = _features_words(document) if document["task"] == FEATURES else _network_words(document)
    rows = [
        ("Strategy", document["strategy"]["name"]),
        ("Trainings", selection["law"]),
        ("Bound", f"{selection['bound']}; {selection['formula']}"),
        ("Space", str(space.get("name", ""))),
    ]
    if document["task"] == FEATURES:
        rows = [
            ("Method", f"{document['strategy']['name']}: {selection['law']}"),
            ("Bound", selection["bound"]),
        ]
    return {
        "words": words,
        "rows": [] if document["task"] == stages.TRAINING else rows,
        "genes": [
            (spaced(name), _list(values)) for name, values in (space.get("choices") or {}).items()
        ],
    }


RULES = {
    "none": "Nothing was compared: one network, fixed beforehand, was trained.",
    "composition": "Every candidate that was trained is charged.",
    "disjoint portions": "Each candidate was trained on records of its own, and one was picked "
    "by a private lottery that favours the better ones.",
    "repeat-and-select": "Candidates were drawn from one law, each trained and scored with "
    "noise, and the best was released. How many there were is secret: the price covers a "
    "random number of them, and knowing it would break that.",
    "not private": "The search read data that were declared public, so it cost nothing.",
}
WINNERS = {
    "kept": "The winner keeps the weights it was scored with.",
    "retrained": "The search read records of its own; the winner was trained on the others.",
    "trained anew": "Each candidate had a look with a small part of the privacy budget; the "
    "winner was then trained anew with the rest.",
}


def _network_words(document: Values) -> str:
    rule = document["selection"]["rule"]
    keeps = "" if rule == "none" else WINNERS.get(document["winner"], document["winner"])
    return f"{RULES.get(rule, rule)} {keeps}".strip()


def _features_words(document: Values) -> str:
    rule = document["selection"]["rule"]
    if document.get("searched_on"):
        return f"The choice read {document['searched_on']}, declared public, so it cost nothing."
    if document.get("trials") and rule == "composition":
        return "Every planned training and score is charged; the model was trained anew."
    return {
        "none": "Nothing was compared, so no choice was paid for.",
        "composition": "What was read to choose is charged, and so is the model.",
        "repeat-and-select": "Sets were drawn from one law, a model trained on each and scored "
        "with noise, and the best model was released. How many there were is secret: the price "
        "covers a random number of them, and knowing it would break that.",
        "not private": "The choice read data that were declared public, so it cost nothing.",
    }[rule]


def _list(values: object) -> str:
    if isinstance(values, list):
        return ", ".join(map(_list, values))
    if isinstance(values, bool):
        return "yes" if values else "no"
    return f"{values:g}" if isinstance(values, float) else spaced(str(values))
