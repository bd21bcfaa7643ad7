"""The algorithms that choose features, from numbers that were released or are public.

    cfs-greedy, cfs-ga    sets by their merit, from uncertainties
    pca                   the first directions of second moments
    pafs                  sets that evolve by the points of models trained on them
    one-hot               all features, or those that are no indicators, by the same points

Everything here is post-processing: `engine` and `public_reads` say where the numbers come from.

Source: Bao et al., Algorithms 3 and 4, sections VIII-C and C-D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.checks import whole
from pasearch.features.cfs import genetic, greedy
from pasearch.features.evolution import labels, masks_of, recalled, unseen
from pasearch.features.plan import Choice, chosen_size
from pasearch.features.views import View

if TYPE_CHECKING:
    from pasearch.features.trainers import LinearModel
    from pasearch.runs.keys import Stream

Array = np.ndarray[Any, Any]
Compared = Callable[[Array, Sequence[str]], list[int]]
"""Gives the points of a model trained on each of some sets, (p, d), by the names of the trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which features the model uses, and what was released on the way.

    Args:
        view: What the model is given of a record.
        to_class: Symmetrical uncertainty of each feature with the target, where released.
        blank: Above it are about one in ten features that tell nothing.
        order: Features in the order in which they were chosen, where there is one.
        merit: Of the chosen set, where there is one.
        trials: (features, points) of every candidate, where they may be shown.
        model: On encoded records, where the winner's weights are kept.
    """

    view: View
    to_class: Array | None = field(default=None, repr=False)
    blank: float | None = None
    order: tuple[int, ...] = ()
    merit: float | None = None
    trials: tuple[tuple[tuple[int, ...], int], ...] = ()
    model: LinearModel | None = None

    @classmethod
    def of(cls, means: Array, order: Sequence[int], **more: Any) -> Chosen:
        """Return the choice of these features, in the order in which they were chosen."""
        return cls(view=View.of(means, mask_of(order, len(means))), order=tuple(order), **more)


def drawn(choice: Choice, means: Array, stream: Stream) -> Chosen:
    """Return features drawn at random."""
    size = chosen_size(choice, len(means))
    return Chosen.of(means, stream.generator().permutation(len(means))[:size].tolist())


def by_merit(
    choice: Choice,
    means: Array,
    columns: Array | None,
    to_class: Array,
    between: Array,
    blank: float,
    stream: Stream,
) -> Chosen:
    """Return the set of the largest merit that CFS finds.

    Args:
        choice: cfs-greedy or cfs-ga.
        means: Of all features, (d,).
        columns: Which column each feature belongs to, (d,), where as many columns as the choice
            has a size are to be chosen; None chooses as many features.
        to_class: Uncertainty of each feature with the target, (d,).
        between: Of each with each other, (d, d).
        blank: See `Chosen`.
        stream: Of the genetic algorithm.
    """
    if choice.method == "cfs-ga":
        found = genetic(
            to_class, between, generator=stream.child("genetic").generator(),
            generations=whole("generations", choice.generations), **asdict(choice.evolution),
        )  # fmt: skip
        return Chosen.of(means, found.chosen, to_class=to_class, blank=blank, merit=found.merit)
    order = greedy(to_class, between, until_no_gain=choice.until_no_gain)
    if choice.size is not None:
        owners = np.arange(len(means)) if columns is None else columns
        begun = np.unique(owners[list(order.features)], return_index=True)[1]
        size = int(np.sort(begun)[chosen_size(choice, len(begun)) - 1]) + 1
        order = replace(order, size=size)
    return Chosen.of(means, order.chosen, to_class=to_class, blank=blank, merit=order.merit)


def components(choice: Choice, means: Array, moments: Array) -> Chosen:
    """Return the first directions of second moments, (d, d), of the centred features."""
    size = chosen_size(choice, len(means))
    directions = np.linalg.eigh(moments)[1][:, ::-1][:, :size]
    return Chosen(view=View.of(means).rotated(np.ascontiguousarray(directions)))


def evolved(
    choice: Choice, means: Array, columns: Array | None, compared: Compared, stream: Stream
) -> Chosen:
    """Return the best set of PAFS: sets evolve by the points of models trained on them.

    Args:
        choice: pafs.
        means: Of all features, (d,).
        columns: Which column each feature belongs to, (d,), where sets are of whole columns.
        compared: Is asked for each different set once.
        stream: Of the genetic algorithm.
    """
    evolution = choice.evolution
    columns = np.arange(len(means)) if columns is None else columns
    width = int(columns.max()) + 1
    generation = evolution.begin(width, stream.child("begin").generator())
    known: dict[str, int] = {}
    for number in range(choice.rounds):
        if number:
            fitness = recalled(generation.masks, known)
            source = stream.child("tell", number - 1).generator()
            generation = evolution.tell(generation, fitness, source)
        masks = generation.masks[unseen(generation.masks, known)]
        if len(masks):
            trials = [f"trial {len(known) + each}" for each in range(len(masks))]
            known |= zip(labels(masks), compared(masks[:, columns], trials), strict=True)
    sets = masks_of(list(known), width)[:, columns]
    return best_of(means, sets, list(known.values()))


def best_of(means: Array, sets: Array, points: Sequence[int]) -> Chosen:
    """Return the set of most points, the first of them, with all that were compared.

    Args:
        means: Of all features, (d,).
        sets: (p, d) bool.
        points: p of them.
    """
    chosen = [places_of(mask) for mask in sets]
    best = max(range(len(chosen)), key=points.__getitem__)
    shown = tuple(zip(map(tuple, chosen), points, strict=True))
    return Chosen.of(means, chosen[best], trials=shown)


def mask_of(places: Sequence[int], features: int) -> Array:
    """Return which features a set has, (features,) bool."""
    mask = np.zeros(features, bool)
    mask[list(places)] = True
    return mask


def places_of(mask: Array) -> list[int]:
    """Return the features of a set, rising."""
    return np.flatnonzero(mask).tolist()
