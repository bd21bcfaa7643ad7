"""A recipe's stages in words: what plan, card and report say of how a network is trained.

It reads the recipe of `result.json`; results of earlier versions lack some stages.
"""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

SEARCH, TRAINING, CHOICE = "architecture search", "training", "recipe choice"
"""The task of a run, as `result.json` names it; the second had one network, fixed beforehand."""

BATCHING = {
    "poisson": "Poisson",
    "truncated": "Poisson, capped",
    "reshuffled": "reshuffled every epoch",
}

OPTIMIZERS = {
    "sgd": "plain SGD",
    "momentum": "SGD with momentum {momentum:g}",
    "adam": "Adam",
    "adam-corrected": "Adam, the noise's variance taken off",
}

SCHEDULES = {
    "uniform": "the same noise in every epoch",
    "time": "noise falls from epoch to epoch, as 1 / (1 + {rate:.3g} epoch)",
    "exponential": "noise falls from epoch to epoch, as exp(-{rate:.3g} epoch)",
    "step": "noise times {rate:g} every {period:g} epochs",
    "polynomial": "noise falls to {end:g} of its start in {period:g} epochs, by the power "
    "{power:g} of what is left",
    "validation": "noise times {rate:g} when the accuracy that it looks at (mean of the last "
    "{average:g}, compared every {period:g} looks) rises by {threshold:g} or less",
}
"""Each schedule, with its own numbers."""

LAW_NUMBERS = ("freedom", "power", "shape")
"""What a law of the noise has beside its scale, which the recipe leaves to the noise multiplier."""

NO_FIGURE = {
    "Yu et al. Theorem 3": "its formula is stated for sampling probabilities up to 1 / (16 sigma), "
    "and a step's is larger here",
    "Bao et al. Eq. 9, corrected": "its theorem needs more validation records than there are",
}
"""Why a paper's formula gives no number for a run; others exceed what a computer can hold."""


def batching_words(recipe: Values) -> str:
    """Return how batches are drawn."""
    return BATCHING[recipe.get("batching", "poisson")]


def bound_words(bounding: Values) -> str:
    """Return what is done to each record's gradient."""
    norm = f"norm {bounding.get('clip_norm', 1.0):g}"
    match bounding["name"]:
        case "auto-s":
            bound, gamma = bounding["bound"], bounding["gamma"]
            return f"scaled to about norm {bound:g}, large or small (AUTO-S, gamma {gamma:g})"
        case "encoded":
            vectors = f"{bounding['vectors']:,} public vectors of {norm}"
            return f"clamped, rank by rank, to the nearest of {vectors}"
        case "per-layer" if bounding.get("clip_norms"):
            each = ", ".join(f"{value:g}" for value in bounding["clip_norms"])
            return f"clipped layer by layer, to norms {each}"
        case "per-layer":
            return f"clipped layer by layer, to {norm} in all"
        case "adaptive":
            where = "layer by layer, each to a norm" if bounding["per_layer"] else "to a norm"
            return (
                f"clipped {where} that follows the noisy quantile {bounding['quantile']:g} of all "
                f"norms ({bounding['clip_norm']:g} at first, rate {bounding['rate']:g}; the counts "
                f"take {100 * bounding['count_share']:g} % of a step)"
            )
    return f"clipped to {norm}"


def stage_words(recipe: Values) -> list[str]:
    """Return what differs from plain DP-SGD beside bound and batching, one phrase a stage."""
    words = []
    if (schedule := _schedule(recipe))["name"] != "uniform":
        words.append(_schedule_words(schedule))
    if (noise := recipe.get("noise")) is not None:
        words.append(_noise_law(noise))
    if recipe.get("denoising") is not None:
        words.append("each noisy sum is weighed by its distance from pure noise: free of charge")
    if (order := recipe.get("order")) is not None:
        bound = order["record_bound"]
        size = "of any norm" if bound is None else f"of norm at most {bound:g}"
        words.append(f"noise on each record's gradient, {size}, and the clip after it")
    if (screening := recipe.get("screening")) is not None:
        every = screening["every"]
        steps, they = ("every step", "it") if every == 1 else (f"every {every:,} steps", "they")
        words.append(
            f"{steps} the loss is looked at: if it rose, {they} may be undone (annealing, Q0 "
            f"{screening['q0']:g}, mu0 {screening['mu0']:g})"
        )
    if (views := recipe.get("augmentation")) is not None:
        words.append(_view_words(views))
    return words


def noise_words(recipe: Values) -> str:
    """Return the noise multiplier: of every step, or of the first where a schedule lowers it."""
    first = f"{recipe['noise_multiplier']:.4f}"
    return first if _schedule(recipe)["name"] == "uniform" else f"{first} at first"


def steps_words(recipe: Values) -> str:
    """Return how many steps: at most so many where training ends when its filter is full."""
    if _schedule(recipe)["name"] != "validation":
        return f"{recipe['steps']:,}"
    made = recipe.get("steps_made")
    return f"{'' if made is None else f'made {made:,} of '}at most {recipe['steps']:,}"


def optimizer_words(recipe: Values) -> str:
    """Return the optimizer, and whether weights are averaged."""
    average = "" if recipe["average"] is None else ", averaged weights"
    return OPTIMIZERS[recipe["optimizer"]].format_map(recipe) + average


def setting_words(settings: Values) -> list[tuple[str, str]]:
    """Return the candidate's own settings; neither its recipe, nor factors of 1 on it."""
    return [
        (name.replace("_", " "), f"{value:g}")
        for name, value in settings.items()
        if not (name == "recipe" or (name.endswith("_scale") and value == 1))
    ]


def claim_words(claim: Values) -> str:
    """Return a paper's figure and what it is worth; or why its formula gives none."""
    if claim.get("value", 0.0) is not None:
        return str(claim["text"])
    why = NO_FIGURE.get(claim["source"], "its formula exceeds every number that a computer holds")
    return f"claimed ({claim['source']}): no figure, because {why}; {claim['verdict']}"


def _schedule(recipe: Values) -> Values:
    return recipe.get("schedule") or {"name": "uniform"}


def _schedule_words(schedule: Values) -> str:
    words = SCHEDULES[schedule["name"]].format_map(schedule)
    if (every := schedule.get("every", 1)) == 1:
        return words
    if schedule["name"] == "validation":
        return f"{words}; a look every {every:,} epochs"
    return f"{words}; {every:,} epochs count as one"


def _noise_law(noise: Values) -> str:
    """Return the noise's law; a multiplier says how informative it is, as of a Gaussian."""
    own = [f"{name} {value:g}" for name, value in noise.items() if name in LAW_NUMBERS]
    law = ", ".join([noise["name"], *own])
    return f"noise of another law ({law}), as informative as Gaussian noise of that multiplier"


def _view_words(views: Values) -> str:
    pixels = "pixel" if views["shift"] == 1 else "pixels"
    moves = [f"moved by up to {views['shift']:,} {pixels}"] if views["shift"] else []
    moves += ["mirrored at random"] if views["flip"] else []
    how = f", {' and '.join(moves)}" if moves else ""
    return f"{views['views']:,} views of each record{how}; their gradients averaged before the clip"
