"""A recipe's stages in words: what plan, card and report say of how a network is trained.

It reads the recipe of `result.json`; results of earlier versions lack some stages.
"""

from __future__ import annotations

from typing import Any

BATCHING = {
    "poisson": "Poisson",
    "truncated": "Poisson, capped",
    "reshuffled": "reshuffled every epoch",
}


def batching_words(recipe: dict[str, Any]) -> str:
    """Return how batches are drawn."""
    return BATCHING[recipe.get("batching", "poisson")]


def bound_words(bounding: dict[str, Any]) -> str:
    """Return the bound and its numbers."""
    numbers = [
        f"{name.replace('_', ' ')} {_number(value)}"
        for name, value in bounding.items()
        if name != "name" and value is not None
    ]
    return f"{bounding['name']} ({', '.join(numbers)})"


def stage_words(recipe: dict[str, Any]) -> list[str]:
    """Return what differs from plain DP-SGD beside bound and batching, one phrase a stage."""
    words = []
    schedule = recipe.get("schedule") or {"name": "uniform"}
    if schedule["name"] != "uniform":
        words.append(f"noise by the schedule {_named(schedule)}")
    if (order := recipe.get("order")) is not None:
        bound = order["record_bound"]
        words.append(
            "noise on each record before the clip, on gradients of norm at most "
            f"{'unbounded' if bound is None else _number(bound)}"
        )
    if (screening := recipe.get("screening")) is not None:
        words.append(
            f"updates screened by annealing (Q0 {_number(screening['q0'])}, mu0 "
            f"{screening['mu0']}), every {_ordinal(screening['every'])}"
        )
    if (views := recipe.get("augmentation")) is not None:
        words.append(f"{views['views']} views of each record, averaged before the bound")
    return words


def noise_words(recipe: dict[str, Any]) -> str:
    """Return the noise multiplier: of every step, or of the first where a schedule lowers it."""
    first = f"{recipe['noise_multiplier']:.4f}"
    name = (recipe.get("schedule") or {"name": "uniform"})["name"]
    return first if name == "uniform" else f"{first} at first, then less by the schedule {name}"


def steps_words(recipe: dict[str, Any]) -> str:
    """Return how many steps: at most so many where training ends when its filter is full."""
    watched = (recipe.get("schedule") or {}).get("name") == "validation"
    return f"at most {recipe['steps']:,}" if watched else f"{recipe['steps']:,}"


def optimizer_words(recipe: dict[str, Any]) -> str:
    """Return the optimizer, and whether weights are averaged."""
    momentum = f" {recipe['momentum']:g}" if recipe["optimizer"] == "momentum" else ""
    average = "" if recipe["average"] is None else ", averaged weights"
    return f"{recipe['optimizer']}{momentum}{average}"


def _named(values: dict[str, Any]) -> str:
    numbers = [
        f"{name} {_number(value)}"
        for name, value in values.items()
        if name != "name" and value is not None
    ]
    return f"{values['name']} ({', '.join(numbers)})"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _ordinal(number: int) -> str:
    return "step" if number == 1 else f"{number} steps"
