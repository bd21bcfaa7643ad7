"""What a choice of features hands over, and sets of features as masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pasearch.features.trainers import LinearModel
from pasearch.features.views import Array, View


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
