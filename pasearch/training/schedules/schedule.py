"""How the noise changes from epoch to epoch: what every schedule says of itself.

    sigma_t = sigma_0 factor(t),        t = floor(epoch / every), epochs counted from 0

A schedule that is fixed before the data is composed step by step. One that is steered by validation
queries (`validation`) has the price of a Renyi filter whose limit is the uniform plan; the queries
are of public records, or are charged.

Source: Yu et al., Sections IV-A1 and IV-A2. Proof: docs/guarantees/schedules.md.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, Protocol, Self

from pasearch.accounting.claims import Claim, yu_theorem3_schedule
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage, Steps

LEAST = 1e-6
"""The smallest factor: where a formula gives less, this is used, and priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steepness:
    """How steep a decay may be, for solving how long a budget lasts (`training.length`).

    Args:
        field: Of the schedule, that makes it steep.
        flattest: Where the dial may stand at least.
        steepest: And at most.
        falling: Whether the field is exp(-dial), and not the dial itself.
    """

    field: str
    flattest: float
    steepest: float
    falling: bool = False


class Course(Protocol):
    """Where a steered schedule stands."""

    @property
    def factor(self) -> float:
        """sigma_t / sigma_0 from now on, in (0, 1]."""
        ...

    def tell(self, accuracy: float) -> Self:
        """Return the next state, after a validation query."""
        ...


class Schedule(Stage):
    """A schedule of the noise: `factor` is all that one fixed before the data needs."""

    __slots__ = ()

    varies: ClassVar[bool] = True
    """Whether the noise changes at all."""
    steered: ClassVar[bool] = False
    """Whether validation queries steer it: then a filter ends the training, and `factor` is 1."""
    steepness: ClassVar[Steepness | None] = None
    """Of a decay whose rate can be solved for."""

    @abstractmethod
    def factor(self, epoch: int) -> float:
        """Return sigma_t / sigma_0, in (0, 1], as it is planned."""

    def words(self) -> str:
        every = getattr(self, "every", 1)
        return Stage.words(self) + ("" if every == 1 else f"; {every:,} epochs count as one")

    def stretched(self, factor: float) -> Schedule:
        """Return a schedule whose fall takes `factor` times as many epochs.

        A paper's numbers are for its own number of epochs; over ten times as many, the same rate
        would leave next to no noise at the end, and so need next to no signal before. A schedule
        that follows something else than epochs stays as it is.

        Args:
            factor: Above 0.
        """
        return self

    def validation_queries(self, epochs: int) -> int:
        """Return how many validation queries so many epochs have, at most."""
        return 0

    def asks_after(self, epoch: int) -> bool:
        """Return whether a validation query follows so many epochs; only where it is steered."""
        return False

    def start(self) -> Course:
        """Return the state before the first validation query, of a schedule that is steered."""
        raise NotImplementedError(f"{self.name} is not steered")

    def claims(self, steps: Steps) -> list[Claim]:
        """Return Theorem 3 of Yu et al., which is for noise that varies on Poisson samples."""
        if not (self.varies and steps.sampled) or self.steered:
            return []
        q = steps.sampling_probability
        return [yu_theorem3_schedule([(q, *each) for each in steps.noises], steps.delta)]


SCHEDULES = Registry(
    "schedule", Schedule, "pasearch.training.schedules",
    example='{ name = "exponential", rate = 0.01 }',
)  # fmt: skip


def changes(epoch: int, every: int) -> int:
    """Return t, the number of changes before an epoch."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not int(epoch) >= 0:
        raise UsageError(f"epoch is {epoch!r}; expected a whole number, 0 or above.")
    return int(epoch) // every


def bounded(factor: float) -> float:
    """Return a factor in (0, 1]."""
    return min(1.0, max(LEAST, factor))
