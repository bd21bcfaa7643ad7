"""A crossover measured on private records: made of the noisy scores that a grid has released.

    error of a point = 1 - noisy points / most points
    spread           = deviation of points around their model's mean, pooled over a level's models;
                       never less than the noise of one score

The interval of a crossover is by drawing means anew with that spread. Epsilons are what one
training of each level costs by itself.

Cost: none: the scores were released and paid for.

Source: Bao et al., section III-C, Definition 2; strategy `grid`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.events import Composed, Event
from pasearch.crossover.curves import LEVEL, Crossover, critical_value, crossover_of_means
from pasearch.crossover.forecast import plain_name
from pasearch.search.grid import Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasearch.crossover.forecast import Own
    from pasearch.search.plan import Plan
    from pasearch.spaces.candidate import Candidate


def paid_crossover(
    plan: Plan, points: Sequence[float | None], own: Own, winner: Candidate
) -> dict[str, Any]:
    """Return the crossover report of a grid, as plain values.

    Args:
        plan: Of strategy `grid`.
        points: Noisy points of every trial, in order; None of one that failed.
        own: What the run released of its final model.
        winner: That model.
    """
    strategy = plan.strategy
    assert isinstance(strategy, Grid)
    most = plan.judged_by.most * plan.score_slots
    shape = (len(strategy.shares), strategy.candidates, strategy.repeats)
    shares = np.array([0.0 if each is None else each / most for each in points]).reshape(shape)
    means = shares.mean(axis=2).T  # (models, levels)
    spread, freedom = _spread(plan, shares)
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * spread
    tests = len(spread) * math.comb(strategy.candidates, 2)
    least = critical_value(max(1, tests), freedom) * math.sqrt(2.0) * spread
    epsilons = _epsilons(plan)
    candidates = [plan.space.candidate(each) for each in _places(plan)]
    schema = plan.schema
    sizes = [each.parameters(schema.shape, schema.outputs)[0] for each in candidates]
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    names = _names(candidates)
    found = [
        crossover_of_means(
            1.0 - means[a], 1.0 - means[b], half / float(stats.norm.ppf((1 + LEVEL) / 2)), epsilons,
            (names[a], names[b]), least,
        )
        for place, a in enumerate(order) for b in order[place + 1 :]
    ]  # fmt: skip
    taken = [int(each) for each in (means[order] >= means.max(axis=0) - least).argmax(axis=0)]
    return {
        "kind": "measured",
        "epsilons": list(epsilons),
        "repeats": strategy.repeats,
        "models": [
            {
                "name": names[place], "parameters": sizes[place],
                "roles": _roles(candidates[place] == winner, sizes[place], sizes),
                "accuracy": _rounded(means[place]),
                "low": _rounded(np.clip(means[place] - half, 0.0, 1.0)),
                "high": _rounded(np.clip(means[place] + half, 0.0, 1.0)),
            }
            for place in order
        ],
        "own": {"epsilon": own.epsilon, "score": own.score, "standard_error": round(own.error, 5)},
        "crossings": [_plain(each, epsilons) for each in found],
        "taken": [names[order[place]] for place in taken],
        "sentence": _sentence(
            [names[order[place]] for place in taken], epsilons, own.epsilon,
            best=names[int(means[:, -1].argmax())],
        ),
    }  # fmt: skip


def _names(candidates: Sequence[Candidate]) -> list[str]:
    """Return models in words; of two that are the same network, what is changed in the recipe."""
    names = [plain_name(each) for each in candidates]
    twice = {name for name in names if names.count(name) > 1}
    return [
        f"{name} ({each.describe().partition('; ')[2] or 'as usual'})" if name in twice else name
        for name, each in zip(names, candidates, strict=True)
    ]


def _spread(plan: Plan, shares: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the standard deviation of a mean at each level, and its degrees of freedom.

    Args:
        plan: Of the noisy scores.
        shares: (levels, models, repeats).
    """
    _, models, repeats = shares.shape
    noise = getattr(plan.score, "standard_deviation", 0.0) / (
        plan.judged_by.most * plan.score_slots
    )
    each = np.maximum(shares.var(axis=2, ddof=1).mean(axis=1), noise**2)
    return np.sqrt(each / repeats), models * (repeats - 1)


def _places(plan: Plan) -> list[Any]:
    """Return the genotypes that a grid trains, in its order."""
    strategy: Any = plan.strategy
    from pasearch.runs.keys import Keys
    from pasearch.search.ahead import distinct

    stream = Keys.from_seed(0).stream("unused")  # a small space is gone through in order
    return list(distinct(plan.space, strategy.candidates, stream))


def _epsilons(plan: Plan) -> tuple[float, ...]:
    """Return what one training of each level costs by itself, with its front end.

    Of several front ends the dearest is taken: whoever trains one model alone pays no more.
    """

    def epsilon(*events: Event) -> float:
        return price_partitions({"train": Composed(events)}, plan.delta)[0].epsilon

    fits = [each.event for each in plan.lines if each.name.startswith("front end ")]
    dearest = [max(fits, key=epsilon)] if fits else []
    lines = [each for each in plan.lines if each.name.startswith("training, level")]
    return tuple(float(f"{epsilon(each.event, *dearest):.3g}") for each in lines)


def _sentence(taken: list[str], epsilons: tuple[float, ...], total: float, best: str) -> str:
    """Return which model to take where, how sure that is, and of which epsilons it is."""
    first, last = epsilons[0], epsilons[-1]
    if len(set(taken)) == 1:
        said = f"Measured on your records: take {taken[0]}, at every epsilon from {first:g} to "
        said += f"{last:g}."
    else:
        changes = [
            f"from about {epsilon:.2g} on, {after}"
            for before, after, epsilon in zip(taken, taken[1:], epsilons[1:], strict=False)
            if before != after
        ]
        said = f"Measured on your records: at epsilon {first:g} take {taken[0]}; "
        said += f"{'; '.join(changes)}."
    if best != taken[-1]:
        said += (
            f" At {last:g} the best mean score is of {best}, which was released; the points cannot "
            f"tell it from {taken[-1]}, which is simpler."
        )
    if total > last:
        said += (
            f" The points end at epsilon {last:g}: above, up to your total of {total:g}, nothing "
            "was compared."
        )
    return said


def _plain(each: Crossover, epsilons: tuple[float, ...]) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if math.isinf(value) else float(f"{value:.3g}")

    return {
        "before": each.simple, "after": each.complex, "epsilon": number(each.epsilon),
        "low": number(each.low), "high": number(each.high), "text": each.text(epsilons),
        "sentence": each.sentence(epsilons),
    }  # fmt: skip


def _roles(released: bool, size: int, sizes: list[int]) -> list[str]:
    roles = (("released", released), ("simplest", size == min(sizes)),
             ("largest", size == max(sizes)))  # fmt: skip
    return [role for role, has in roles if has]


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(each), 4) for each in values]
