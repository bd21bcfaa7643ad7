"""Screening: an update that makes the loss worse is taken with a falling probability only.

    dE = J(w_new) - J(w)          P = 1 if dE <= 0, else exp(-dE Q)          Q = q0 accepted
    taken  if  coin <= P  or  rejected_in_a_row >= mu0

J(w), the paper's energy, is the mean loss that a validation query told, and is *stored*: so each
screening needs one query more, and no more. As printed, Q is q0 at the very first screening, and
q0 * 0 = 0 if that one was rejected: then the next update is taken for sure.

A query is of public records, or a noisy sum over private ones (`loss_points`), charged for every
screening, and for the first J, whatever is taken. Every update is charged too, taken or not: the
paper's Theorem 1, which charges the taken ones only, is no valid bound.

Source: Fu, Chen and Ling, Algorithm 2; docs/rules.md, rule 9. Proof: docs/guarantees/screening.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

from pasearch.accounting.checks import nonnegative, whole
from pasearch.accounting.claims import Claim, fu_theorem1
from pasearch.errors import UsageError
from pasearch.registry import Checks, Registry, Stage, Steps

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream

GRID = 100
"""G: the most points a record adds to a query; the sensitivity of `loss_points`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingState:
    """Where a screening stands.

    Args:
        loss: J(w) of the weights that were kept last, as the validation query told it then.
        accepted: tau, screenings that ended with the update taken.
        rejected_in_a_row: mu, since the last one.
    """

    loss: float
    accepted: int = 0
    rejected_in_a_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Annealing(Stage):
    """Which updates are taken, as a pure function of losses and coins.

    Guarantee: sees the answers of validation queries and coins only, so it costs nothing beside.

    Args:
        q0: Q_0, the rise of the inverse temperature with each accepted update, 0 or above.
        mu0: After so many rejections in a row an update is taken anyway; 0 takes all.
        every: Updates from one screening to the next, taken or undone together; 1 or more.
    """

    name: ClassVar[str] = "annealing"
    checks: ClassVar[Checks] = {
        "q0": nonnegative, "mu0": lambda name, value: _count(name, value), "every": whole,
    }  # fmt: skip
    named: ClassVar[bool] = False
    q0: float
    mu0: int
    every: int = 1

    def start(self, loss: float) -> AnnealingState:
        """Return the first state, from the loss before the first update."""
        return AnnealingState(loss=_loss(loss))

    def screens(self, finished: int) -> bool:
        """Return whether an update is screened, the first being number 1."""
        return finished % self.every == 0

    def validation_queries(self, steps: int) -> int:
        """Return how many queries a training makes: floor(steps / every) + 1, with the first J."""
        return whole("steps", steps) // self.every + 1

    def probability(self, state: AnnealingState, new_loss: float) -> float:
        """Return P, that an update is taken, before the limit on rejections counts."""
        new = _loss(new_loss)
        first = state.accepted == state.rejected_in_a_row == 0
        temperature = self.q0 * (1 if first else state.accepted)
        if new <= state.loss or temperature == 0:
            return 1.0
        return math.exp(-min((new - state.loss) * temperature, 1e4))

    def decide(
        self, state: AnnealingState, new_loss: float, coin: float
    ) -> tuple[AnnealingState, bool]:
        """Return the next state, and whether the update is taken.

        Args:
            state: Where the screening stands.
            new_loss: J(w_new): released, or of public records. One that is no number counts as
                the worst, so no value stops a training.
            coin: Uniform in [0, 1), secret, and of this screening alone.

        Raises:
            UsageError: A coin outside [0, 1].
        """
        if isinstance(coin, bool) or not isinstance(coin, Real) or not 0 <= float(coin) <= 1:
            raise UsageError(f"coin is {coin!r}: expected a number in [0, 1); see `coin`.")
        forced = state.rejected_in_a_row >= self.mu0
        if forced or float(coin) <= self.probability(state, new_loss):
            return AnnealingState(loss=_loss(new_loss), accepted=state.accepted + 1), True
        kept = AnnealingState(
            loss=state.loss, accepted=state.accepted, rejected_in_a_row=state.rejected_in_a_row + 1
        )
        return kept, False

    def words(self) -> str:
        steps, they = ("step", "it")
        if self.every > 1:
            steps, they = f"{self.every:,} steps (the paper: every step)", "they"
        return (
            f"a validation query after every {steps}: if the loss rose, {they} may be undone "
            f"(annealing, Q0 {self.q0:g}, mu0 {self.mu0:,})"
        )

    def claims(self, steps: Steps) -> list[Claim]:
        """Return Theorem 1 of Fu et al., which charges accepted updates only."""
        return [
            fu_theorem1(
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


def coin(stream: Stream, screening: int) -> float:
    """Return the coin of one screening, uniform in [0, 1); no two screenings share one.

    The stream is of the coins alone, another than the batches' and the noise's.
    """
    return float(stream.generator(screening).random())


def _loss(value: float) -> float:
    return math.inf if math.isnan(value) else float(value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= 0:
        raise UsageError(f"{name} is {value!r}: expected a whole number, 0 or above.")
    return int(value)
