"""Validation queries in a training: adaptive noise schedules, and screening of updates.

Screening accepts an update that increases the loss with a decreasing probability only:

    dE = J(w_new) - J(w)          P = 1 if dE <= 0, else exp(-dE Q)          Q = q0 accepted
    accepted  if  uniform draw <= P  or  rejected_in_a_row >= mu0

J(w), the paper's energy, is the mean loss that a validation query returned. It is stored, so each
screening needs one more query. As printed, Q is q0 at the first screening, and q0 * 0 = 0 if that
one was rejected: then the next update is always accepted.

A query reads public records, or is a noisy sum over private ones (`sum_loss_points`), charged for
every screening, and for the first J, whether or not its update is accepted. Every update is charged
too: Theorem 1 of the paper, which charges only accepted updates, is not a valid bound. The
decisions are post-processing of released values.

Source: Fu, Chen and Ling, Algorithm 2; docs/rules.md, rules 6 and 9. Proof:
docs/guarantees/screening.md and filters.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.accounting.checks import (
    check_nonnegative,
    check_nonnegative_integer,
    check_positive_integer,
)
from pasearch.accounting.events import Event, FilteredReleases
from pasearch.accounting.published_bounds import PublishedBound, fu_theorem_1
from pasearch.accounting.renyi import PrivacyFilter
from pasearch.errors import BudgetError, UsageError
from pasearch.registry import FieldChecks, Registry, Stage, TrainingSteps

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pasearch.runs.keys import Stream
    from pasearch.training.batching import Batching
    from pasearch.training.optimizers import UpdateRule
    from pasearch.training.schedules import Schedule

ValidationQuery = Callable[["nn.Module", int], float]
"""Function of the network and the number of earlier queries; returns a mean loss or accuracy of
public records, or a noisy release that was charged.
"""

MAX_LOSS_POINTS = 100
"""G, the largest number of points of one record: the sensitivity of `sum_loss_points`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingState:
    """State of a screening.

    Args:
        loss: Loss J(w) of the last accepted weights, as the validation query returned it.
        accepted: Number tau of screenings that accepted an update.
        rejected_in_a_row: Number mu of rejections since the last accepted update.
    """

    loss: float
    accepted: int = 0
    rejected_in_a_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Annealing(Stage):
    """Screening rule: a pure function of losses and random numbers.

    Guarantee: it reads only results of validation queries and random numbers, so it has no further
    privacy cost.

    Args:
        q0: Increase Q_0 of the inverse temperature with each accepted update, 0 or above.
        mu0: Number of rejections in a row after which an update is accepted anyway; 0 accepts all.
        every: Number of updates from one screening to the next, accepted or undone together; 1 or
            more.
    """

    name: ClassVar[str] = "annealing"
    checks: ClassVar[FieldChecks] = {
        "q0": check_nonnegative, "mu0": check_nonnegative_integer, "every": check_positive_integer,
    }  # fmt: skip
    named: ClassVar[bool] = False
    q0: float
    mu0: int
    every: int = 1

    def start(self, loss: float) -> AnnealingState:
        """Create the first state, from the loss before the first update."""
        return AnnealingState(loss=_replace_nan(loss))

    def is_screened(self, finished: int) -> bool:
        """Check whether an update is screened, the first being number 1."""
        return finished % self.every == 0

    def count_validation_queries(self, steps: int) -> int:
        """Count the queries of a training: floor(steps / every) + 1, with the first J."""
        return check_positive_integer("steps", steps) // self.every + 1

    def probability(self, state: AnnealingState, new_loss: float) -> float:
        """Compute the acceptance probability P, without the limit on rejections."""
        new = _replace_nan(new_loss)
        first = state.accepted == state.rejected_in_a_row == 0
        temperature = self.q0 * (1 if first else state.accepted)
        if new <= state.loss or temperature == 0:
            return 1.0
        return math.exp(-min((new - state.loss) * temperature, 1e4))

    def decide(
        self, state: AnnealingState, new_loss: float, coin: float
    ) -> tuple[AnnealingState, bool]:
        """Decide whether an update is accepted.

        Args:
            state: State of the screening.
            new_loss: Loss J(w_new), released or of public records. NaN counts as the largest loss,
                so no value stops a training.
            coin: Random number, uniform in [0, 1), secret, used for this screening only.

        Raises:
            UsageError: A random number outside [0, 1].
        """
        if isinstance(coin, bool) or not isinstance(coin, Real) or not 0 <= float(coin) <= 1:
            raise UsageError(
                f"coin is {coin!r}: expected a number in [0, 1], as from `draw_uniform`."
            )
        forced = state.rejected_in_a_row >= self.mu0
        if forced or float(coin) <= self.probability(state, new_loss):
            return AnnealingState(loss=_replace_nan(new_loss), accepted=state.accepted + 1), True
        return replace(state, rejected_in_a_row=state.rejected_in_a_row + 1), False

    def describe(self) -> str:
        steps, they = ("step", "it")
        if self.every > 1:
            steps, they = f"{self.every:,} steps (the paper: every step)", "they"
        return (
            f"a validation query after every {steps}: if the loss rose, {they} may be undone "
            f"(annealing, Q0 {self.q0:g}, mu0 {self.mu0:,})"
        )

    def claims(self, steps: TrainingSteps) -> list[PublishedBound]:
        """Evaluate Theorem 1 of Fu et al., which charges accepted updates only."""
        return [
            fu_theorem_1(
                sampling_probability=steps.sampling_probability,
                noise_multiplier=steps.noise_multiplier,
                accepted=max(1, steps.count // 2),
                delta=steps.delta,
                condition="if half of the updates are accepted",
            )
        ]


SCREENINGS = Registry(
    "screening", Annealing, "pasearch.training.screening", default=Annealing.name,
    example="{ q0 = 10.0, mu0 = 10, every = 1 }",
)  # fmt: skip
SCREENINGS.register(Annealing)


def draw_uniform(stream: Stream, screening: int) -> float:
    """Draw the random number of one screening, uniform in [0, 1), from its own stream."""
    return float(stream.generator(screening).random())


def _replace_nan(value: float) -> float:
    return math.inf if math.isnan(value) else float(value)


class ValidationDrivenNoise:
    """Noise of a validation-driven schedule, and the filter that ends the training.

    Guarantee: all steps together cost at most `limit`, whatever the queries return.

    Args:
        schedule: Validation-driven schedule.
        batches: Sampling of a step's records.
        limit: Privacy cost of the training; None without noise, on public data.
        query: Query of the accuracy.
    """

    def __init__(
        self, schedule: Schedule, batches: Batching, limit: Event | None, query: ValidationQuery
    ):
        self._schedule, self._query, self._batches = schedule, query, batches
        self._state = schedule.start()
        self._filter = None
        if isinstance(limit, FilteredReleases):
            self._filter = PrivacyFilter(limit.event, limit.highest_order)
        self._asked = 0

    def spend(self, first: float) -> float | None:
        """Charge the next step to the filter, and return its sigma; None if it does not fit.

        Args:
            first: Noise multiplier sigma of the first step.
        """
        assert self._filter is not None
        sigma = first * self._state.factor
        try:
            self._filter.spend(self._batches.event(sigma))
        except BudgetError:
            return None
        return sigma

    def query_after_step(self, step: int, network: nn.Module) -> None:
        """Query the accuracy after each epoch that the schedule names."""
        epoch = self._batches.epoch(step + 1)
        if epoch > self._batches.epoch(step) and self._schedule.queries_after(epoch):
            self._state = self._state.tell(self._query(network, self._asked))
            self._asked += 1
            network.train()


class UpdateScreening:
    """Screening of a training: updates are kept, or weights and optimizer are restored.

    Post-processing of noisy sums that are all charged, and of released losses.
    """

    def __init__(
        self,
        annealing: Annealing,
        network: nn.Module,
        optimizer: UpdateRule,
        coins: Stream,
        query: ValidationQuery,
    ):
        self._annealing, self._network, self._optimizer = annealing, network, optimizer
        self._coins, self._query = coins, query
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._state = annealing.start(self._loss(0))
        self._kept = self._snapshot()
        self._asked = 1

    def screen_updates(self, step: int) -> None:
        """Keep the updates since the last screening, or undo them."""
        if not self._annealing.is_screened(step + 1):
            return
        loss = self._loss(self._asked)
        self._asked += 1
        drawn = draw_uniform(self._coins, step)
        self._state, accepted = self._annealing.decide(self._state, loss, drawn)
        if accepted:
            self._kept = self._snapshot()
            return
        weights, optimizer = self._kept
        for parameter, kept in zip(self._parameters, weights, strict=True):
            parameter.detach().copy_(kept)
        self._optimizer.restore(optimizer)

    def _loss(self, asked: int) -> float:
        loss = self._query(self._network, asked)
        self._network.train()
        return loss

    def _snapshot(self) -> tuple[list[Tensor], list[dict[str, Any]]]:
        weights = [p.detach().clone() for p in self._parameters]
        return weights, self._optimizer.snapshot()
