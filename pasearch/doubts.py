"""Why a result says little or nothing, where it does: of what is released, so it costs nothing."""

from __future__ import annotations

from typing import Any

from pasearch.results import schema_of, standard_error


def tells_nothing(document: dict[str, Any]) -> bool:
    """Return whether no feature of a choice tells more of the target than noise seems to."""
    given = [each["uncertainty"] for each in document.get("relevance") or ()]
    return bool(given) and max(given) <= document.get("relevance_of_noise", 0.0)


def _estimated_target(document: dict[str, Any]) -> dict[str, Any]:
    """Return the target of a table whose schema was estimated privately; of all others nothing."""
    target = document["dataset"]["schema"].get("target")
    if not (isinstance(target, dict) and document["estimated_privately"]):
        return {}
    declared = ((document.get("plan") or {}).get("declared") or {}).get("target") or {}
    known = declared.get("low") is not None or declared.get("categories") is not None
    return {} if known else target


def useless(document: dict[str, Any]) -> list[str]:
    """Return why a result says nothing, if it does; all of it is released already."""
    found, score = [], document["score"]
    if tells_nothing(document):
        found.append(
            "No feature is told apart from noise at this epsilon: the choice is as good as random."
        )
    classes = schema_of(document).outputs
    if score["metric"] == "area under the ROC curve" and classes > 2:
        found.append(
            f"{classes} classes were found: the area under the ROC curve is of the first two alone."
        )
    if "scale" in score and score["test"] < standard_error(score):
        found.append("That error is smaller than its own standard error: it may be much larger.")
    if "scale" in score and (target := _estimated_target(document)):
        low, high = target["low"], target["high"]
        found.append(
            f"The target's bounds were estimated privately, {low:g} to {high:g}: what lies beyond "
            "counts as the nearer one, in this error too. Declare low and high (`schema=`)."
        )
    return found
