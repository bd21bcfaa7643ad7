"""How the noise of a release is found: a dial that is turned up, as far as its budget goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pasearch.accounting.events import Event, Gaussian, Geometric, Pure
from pasearch.planning import SCORE_RANGE, SIGMA_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A dial, and what it means where it stands.

    Args:
        bounds: Where the dial may stand.
        event: What the release costs there.
        noise: What the release is told of it, and the plan keeps.
    """

    bounds: tuple[float, float]
    event: Callable[[float], Event]
    noise: Callable[[float], float] = float


GAUSSIAN = Knob(
    bounds=(1.0 / SIGMA_RANGE[1], 1.0 / SIGMA_RANGE[0]),
    event=lambda inverse: Gaussian(1.0 / inverse),
    noise=lambda inverse: 1.0 / inverse,
)
"""A Gaussian release, told its noise multiplier."""

PURE = Knob(bounds=SCORE_RANGE, event=Pure)
"""A release by an epsilon-DP mechanism, told epsilon."""

SCORE = Knob(bounds=SCORE_RANGE, event=lambda epsilon: Geometric(epsilon=epsilon))
"""A noisy count of right answers, told its epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialledLine:
    """A line of a plan before its noise is solved.

    Args:
        name: Of the line, by which its noise is asked for.
        knob: How its noise is found.
        share: Of the epsilon that the choice has.
        times: How often it is released.
        composed: What is charged for all that one release lets be read; itself, if left out.
        partition: What is read; None is what the choice reads.
    """

    name: str
    knob: Knob
    share: float = 1.0
    times: int = 1
    composed: Callable[[Event], Event] | None = None
    partition: str | None = None
