"""The report's part on trials: every network, or set of features, that may be shown."""

from __future__ import annotations

from typing import Any

from pasearch.report import figures
from pasearch.report.networks import parts_of

Values = dict[str, Any]

MOST_NAMES = 6
"""How many names a sentence lists."""


def network_trials(document: Values) -> list[Values]:
    """Return every trial that the document shows, in order; none where nothing was compared."""
    if document["selection"]["rule"] == "none":
        return []
    most = _most_points(document)
    own = {key: document["best"].get(key) for key in ("front_end", "layers", "settings")}
    found = []
    for number, trial in enumerate(document.get("trials") or [], 1):
        reached = trial["noisy_correct"]  # None: the training failed
        share = None if most is None or reached is None else reached / most
        found.append(
            {
                "number": number,
                **_trial_words(trial["parameters"]),
                "score": _score_words(document, share),
                "is_best": all(trial["parameters"].get(key) == own[key] for key in own),
                "bar": ""
                if share is None
                else figures.bar(share, f"Trial {number}: points {reached:g}"),
            }
        )
    return found


def _trial_words(parameters: Values) -> dict[str, str]:
    from pasearch.spaces.candidate import Candidate

    settings = parameters.get("settings") or {}
    words = ", ".join(f"{spaced(name)} {value:g}" for name, value in settings.items())
    return {"network": ", then ".join(parts_of(Candidate.from_json(parameters))), "settings": words}


def _most_points(document: Values) -> int | None:
    """Return what a perfect candidate scores; None where candidates have no score."""
    from pasearch.training.scoring import ERROR_GRID

    slots = document["dataset"]["slots"]
    scored = [
        slots.get(each["partition"]) for each in document["events"] if each["name"] == "score"
    ]
    if not scored or not scored[0]:
        return None
    return scored[0] * (1 if document["score"]["metric"] == "accuracy" else ERROR_GRID)


def set_trials(document: Values) -> list[Values]:
    """Return every set that was tried, where it may be shown."""
    most = _most_points(document)
    found = []
    for number, trial in enumerate(document.get("trials") or [], 1):
        share = None if most is None else trial["noisy_correct"] / most
        found.append(
            {
                "number": number,
                "network": f"{len(trial['features']):,} features",
                "settings": some(trial["features"]),
                "score": _score_words(document, share),
                "is_best": trial["features"] == document["best"]["features"],
                "bar": "" if share is None else figures.bar(share, f"Trial {number}"),
            }
        )
    return found


def _score_words(document: Values, share: float | None) -> str | None:
    """Return a trial's share of points as the report's table has it: an error is what lacks."""
    if share is None:
        return None
    score = share if document["score"]["metric"] == "accuracy" else 1.0 - share
    return f"{100 * score:.1f} %"


def spaced(name: str) -> str:
    """Return a name as words."""
    return str(name).replace("_", " ")


def some(names: list[str]) -> str:
    """Return a few names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
