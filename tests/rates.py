"""The decay that Yu et al. would have solved for, by rho alone: Table III is made of it."""

from __future__ import annotations

from typing import Any

from zcdp import steepest_rate

from pasearch.errors import UsageError
from pasearch.training.schedules import SCHEDULES, Schedule

RATES = {
    "time": ("rate", 1e-12, 1e12),
    "exponential": ("rate", 1e-12, 1e3),
    "step": ("rate", 1.0 - 1e-12, 1e-12),
    "polynomial": ("power", 1e-12, 1e12),
}
"""Each decay's rate: its field, and its range from the flattest to the steepest."""


def solve_rate(
    kind: str, *, noise_multiplier: float, rho: float, epochs: int, **settings: Any
) -> float:
    """Return the steepest decay of a kind at which so many reshuffled epochs cost rho at most.

    All of rho is spent, but for rounding. Flatter decays, down to (and without) the rate of one
    epoch more, have the same number of epochs. Table III has the least rate of a grid among all
    these: for "step" the first at or above this one, else the first above that of one epoch more.

    Source: Yu et al., Section V-B2 ("The effect of decay functions").
    """
    if kind not in RATES:
        raise UsageError(f"kind is {kind!r}: expected one of {', '.join(RATES)}.")
    name, flat, steep = RATES[kind]

    def make(rate: float) -> Schedule:
        return SCHEDULES.from_json({**settings, "name": kind, name: rate})

    return steepest_rate(
        make, flat=flat, steep=steep, noise_multiplier=noise_multiplier, rho=rho, epochs=epochs
    )
