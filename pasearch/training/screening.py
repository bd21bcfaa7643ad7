"""Validation queries in a training: for adaptive noise schedules, and for screening of updates.

Screening compares the mean loss J before and after an update, and undoes some updates that increase
it. The probability P to accept such an update decreases during the training:

    dE = J(w_new) - J(w)        P = 1 if dE <= 0, else exp(-dE Q)        Q = q0 * accepted updates
    accept the update  if  uniform random number <= P  or  rejections in a row >= mu0

J ("energy" in the paper) is the result of a validation query. J(w) is stored, so each screening
makes one query. As in the printed algorithm, Q is q0 at the first screening. If the first update is
rejected, Q = q0 * 0 = 0, so the next update is always accepted.

A validation query reads public records, or it is a noisy sum over private records
(`sum_loss_points`). In the second case every query is charged, also the first one and those of
rejected updates. Every update is charged, too: Theorem 1 of the paper, which charges only accepted
updates, is not a valid bound. The decisions depend on released values only (post-processing).

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
"""Function of the network and the number of earlier queries. It returns a mean loss or an accuracy,
from public records or from a noisy release that was charged.
"""

MAX_LOSS_POINTS = 100
"""Maximum number of points G of one record: the sensitivity of `sum_loss_points`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingState:
    """State of a screening.

    Args:
        loss: Mean loss J(w) of the last accepted weights, from a validation query.
        accepted: Number of accepted updates.
        rejected_in_a_row: Number of rejections since the last accepted update.
    """

    loss: float
    accepted: int = 0
    rejected_in_a_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Annealing(Stage):
    """Screening of updates by simulated annealing.

    Guarantee: decisions depend only on results of validation queries and on random numbers, so they
    have no further privacy cost.

    Args:
        q0: Increase of the inverse temperature Q with each accepted update, 0 or above.
        mu0: Number of rejections in a row after which an update is always accepted. 0: all are
            accepted.
        every: Number of updates, 1 or more, that are screened (accepted or undone) together.
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
        """Make the initial state, from the mean loss before the first update."""
        return AnnealingState(loss=_convert_nan_to_infinity(loss))

    def is_screened(self, finished: int) -> bool:
        """Check whether there is a screening after a number of finished updates."""
        return finished % self.every == 0

    def count_validation_queries(self, steps: int) -> int:
        """Count the validation queries of a training: floor(steps / every) + 1."""
        return check_positive_integer("steps", steps) // self.every + 1

    def probability(self, state: AnnealingState, new_loss: float) -> float:
        """Compute the probability P to accept an update, without the rule for mu0."""
        new = _convert_nan_to_infinity(new_loss)
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
            new_loss: Mean loss J(w_new) from a validation query. NaN counts as infinite, so that
                no value stops a training.
            coin: Secret uniform random number in [0, 1), used for this screening only.

        Returns:
            Next state, and whether the update is accepted.

        Raises:
            UsageError: The random number is outside [0, 1].
        """
        if isinstance(coin, bool) or not isinstance(coin, Real) or not 0 <= float(coin) <= 1:
            raise UsageError(
                f"coin is {coin!r}: expected a number in [0, 1], as from `draw_uniform`."
            )
        forced = state.rejected_in_a_row >= self.mu0
        if forced or float(coin) <= self.probability(state, new_loss):
            return AnnealingState(
                loss=_convert_nan_to_infinity(new_loss), accepted=state.accepted + 1
            ), True
        return replace(state, rejected_in_a_row=state.rejected_in_a_row + 1), False

    def describe(self) -> str:
        steps, they = ("step", "it")
        if self.every > 1:
            steps, they = f"{self.every:,} steps (the paper: every step)", "they"
        return (
            f"a validation query after every {steps}: if the loss rose, {they} may be undone "
            f"(annealing, Q0 {self.q0:g}, mu0 {self.mu0:,})"
        )

    def list_published_bounds(self, steps: TrainingSteps) -> list[PublishedBound]:
        """Evaluate Theorem 1 of Fu et al., which counts only accepted updates; never charged."""
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
    """Draw the random number of a screening, uniform in [0, 1)."""
    return float(stream.generator(screening).random())


def _convert_nan_to_infinity(value: float) -> float:
    """Replace NaN by infinity."""
    return math.inf if math.isnan(value) else float(value)


class ValidationDrivenNoise:
    """Noise of a validation-driven schedule, with the privacy filter that ends the training.

    Guarantee: all steps together cost at most `limit`, for any results of the queries.

    Args:
        schedule: Validation-driven schedule.
        batches: Sampling method of batches.
        limit: Privacy event of the training. None: no noise, for public data.
        query: Validation query that returns an accuracy.
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
        """Spend the cost of the next step from the filter, and return its noise multiplier.

        None is returned if the step does not fit; the training must end then.

        Args:
            first: Noise multiplier of the first step.
        """
        assert self._filter is not None
        sigma = first * self._state.factor
        try:
            self._filter.spend(self._batches.event(sigma))
        except BudgetError:
            return None
        return sigma

    def query_after_step(self, step: int, network: nn.Module) -> None:
        """Make a validation query if the schedule has one after this step."""
        epoch = self._batches.epoch(step + 1)
        if epoch > self._batches.epoch(step) and self._schedule.queries_after(epoch):
            self._state = self._state.tell(self._query(network, self._asked))
            self._asked += 1
            network.train()


class UpdateScreening:
    """Screening of the updates of a training: to undo one, weights and optimizer are restored.

    This is post-processing of noisy sums, which are all charged, and of released losses.

    Args:
        annealing: Screening rule.
        network: Network in training.
        optimizer: Its optimizer.
        coins: Random stream, used for the decisions only.
        query: Validation query that returns a mean loss.
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
        """Accept or undo the updates since the last screening, if there is one after this step."""
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
        """Make the validation query with a number."""
        loss = self._query(self._network, asked)
        self._network.train()
        return loss

    def _snapshot(self) -> tuple[list[Tensor], list[dict[str, Any]]]:
        """Copy the weights and the state of the optimizer."""
        weights = [p.detach().clone() for p in self._parameters]
        return weights, self._optimizer.snapshot()
