"""GRID: every candidate at every epsilon of a grid, several times; then one training of the best.

    mu        mu (Gaussian DP) of a training with the whole privacy budget
    points    k candidates, L levels, r repeats, each trained on all training records at s_i mu
    scores    of these networks on the validation records, with the whole epsilon there
    final     the best of the last level, retrained with the rest, about mu sqrt(1 - k r sum s_i^2)

A level is one epsilon of the grid. The grid measures on private records what `crossover` measures
on public records: the epsilon at which another model becomes the best. All trainings and scores are
composed, so all of them may be shown.

Source: Bao et al., sections III-C and VI-C (Definition 2); the composition is that of `ahead`.
Proof: docs/guarantees/composition-and-partitions.md, "Ahead".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive_integer, check_probability
from pasearch.accounting.gdp_approximation import compute_gaussian_epsilon, compute_gaussian_mu
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.strategy import (
    FULL_ROUND,
    STRATEGIES,
    EventOfRound,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
    check_multiple_candidates,
)
from pasearch.search.successive_halving import draw_distinct_genotypes

if TYPE_CHECKING:
    from pasearch.spaces.space import Space

MAX_SQUARED_SHARE = 0.9
"""Maximum fraction of the squared mu for the grid; the rest trains the released model."""

DEFAULT_SQUARED_SHARE = 0.3  # fraction of the squared mu for a grid with the default levels
DEFAULT_LEVELS = (0.16, 0.25, 0.4, 0.63, 1.0)
"""Default levels of a grid, each as a fraction of the mu of the last level."""

DEFAULT_REPEATS = 2  # default number of trainings of each model at each level
MAX_MODELS = 8  # maximum number of models; a budget does not suffice for more
MAX_LEVELS = 100  # maximum number of epsilons of a grid


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Strategy):
    """Every candidate at every level, several times; then one full training of the best.

    Args:
        candidates: Number k of candidates, all of the space, 2 to `MAX_MODELS`.
        shares: Fractions s_i of mu at each level, ascending, in (0, 1).
        repeats: Number r of trainings of each candidate at each level, 2 or more.

    Guarantee: every trial may be shown; all trainings are composed on the training records, and all
    scores on the validation records.
    """

    name: ClassVar[str] = "grid"
    selection_rule: ClassVar[str] = "composition"
    request_options: ClassVar[tuple[str, ...]] = ("eps_grid", "repeats")
    candidates: int = 2
    shares: tuple[float, ...] = (0.1, 0.2)
    repeats: int = DEFAULT_REPEATS

    def __post_init__(self) -> None:
        check_multiple_candidates(self.candidates)
        if not self.candidates <= MAX_MODELS:
            raise UsageError(
                f"A grid compares at most {MAX_MODELS} models, and the space has "
                f"{self.candidates}: use a space of kind portfolio with fewer (docs/search.md)."
            )
        object.__setattr__(
            self, "shares", tuple(check_probability("shares", s) for s in self.shares)
        )
        rising = all(a < b for a, b in zip(self.shares, self.shares[1:], strict=False))
        if not (rising and 2 <= len(self.shares) <= MAX_LEVELS and 0.0 < self.shares[0]):
            raise UsageError(f"shares: expected 2 to {MAX_LEVELS} rising levels above 0.")
        if not check_positive_integer("repeats", self.repeats) >= 2:
            raise UsageError(
                f"repeats is {self.repeats}: expected 2 or more, to estimate the variance."
            )
        if not self.squared_share <= MAX_SQUARED_SHARE:
            raise UsageError(
                f"The grid uses {self.squared_share:.2f} of the squared privacy budget: expected "
                f"at most {MAX_SQUARED_SHARE}."
            )

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        """Make the strategy from options; the caller has converted `eps_grid` to shares of mu."""
        shares = {"shares": given.pop("eps_grid")} if "eps_grid" in given else {}
        return cls(**shares, **given)

    @property
    def squared_share(self) -> float:
        """Fraction of the squared mu that all trainings of the grid use."""
        return self.candidates * self.repeats * math.fsum(share**2 for share in self.shares)

    def within(self, space: Space) -> Self:
        """Adapt the number of candidates to a space, because every candidate is trained."""
        if space.count() < 2:
            raise UsageError(
                f"Space {space.name!r} has one candidate, so there is nothing to compare."
            )
        return replace(self, candidates=space.count())

    @property
    def candidate_count(self) -> int:
        return self.candidates

    @property
    def look_share(self) -> float:
        """Fraction of mu at the last level."""
        return self.shares[-1]

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the lines of the trainings of each level, or of all scores."""
        each = self.candidates * self.repeats
        if noun != "training":
            count = each * len(self.shares)
            return [
                PlannedRelease(name=noun, partition=partition, event=price(FULL_ROUND), count=count)
            ]
        return [
            PlannedRelease(
                name=self._line(level), partition=partition,
                event=price(RoundShape(mu=share)), count=each,
            )
            for level, share in enumerate(self.shares)
        ]  # fmt: skip

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key per trial: each trial is a separate release."""
        return self._line(number) if noun == "training" else noun, f"trial {trial}"

    def _line(self, level: int) -> str:
        """Return the name of the line of a level, by its index."""
        return f"training, level {level + 1} of the grid"

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the next level: `repeats` copies of every candidate."""
        level = len(state.rounds)
        if level == len(self.shares):
            return None
        every = draw_distinct_genotypes(space, self.candidates, stream)
        genotypes = tuple(each for each in every for _ in range(self.repeats))
        return TrialRound(
            number=level, genotypes=genotypes, shape=RoundShape(mu=self.shares[level])
        )

    def best(self, state: SearchState) -> tuple[int, int]:
        """Return a trial of the candidate with the best mean score at the last level."""
        last = state.fitness[-1]
        winners = self._find_winners([score for score, _ in last])
        return len(state.rounds) - 1, max(winners, key=lambda place: last[place][1])

    def possible_winners(self, scores: Sequence[float]) -> list[int]:
        start = len(scores) - self.candidates * self.repeats
        return [start + place for place in self._find_winners(scores[start:])]

    def _find_winners(self, scores: Sequence[float]) -> list[int]:
        """Return the index of the last trial of each candidate with the best mean score.

        A failed trial has the score -inf.
        """
        ends = range(self.repeats, len(scores) + 1, self.repeats)
        sums = [math.fsum(scores[end - self.repeats : end]) for end in ends]
        return [end - 1 for end, each in zip(ends, sums, strict=True) if each == max(sums)]

    @property
    def expected_trainings(self) -> float:
        return float(self.candidates * self.repeats * len(self.shares))

    def describe(self) -> str:
        shares = ", ".join(f"{share:.3g}" for share in self.shares)
        return (
            f"{self.candidates} models, each trained {self.repeats} times at each of "
            f"{len(self.shares)} noise levels (signal-to-noise ratio {shares} of that of a single "
            "training with the whole budget), then one training of the best model with the rest "
            "of the budget"
        )


def convert_epsilons_to_shares(
    epsilons: Sequence[float], budget: Budget, points: int
) -> tuple[float, ...]:
    """Convert the epsilons of a grid to fractions of the run's mu (Gaussian approximation).

    Args:
        epsilons: Ascending epsilons of the grid.
        budget: Budget of the run with known delta.
        points: Number of trainings at each level.

    Raises:
        BudgetError: The grid exceeds the budget; the message names the smallest that fits.
    """
    delta = budget.delta
    assert delta is not None
    levels = [compute_gaussian_mu(epsilon, delta) for epsilon in epsilons]
    mu = compute_gaussian_mu(budget.epsilon, delta)
    total = points * math.fsum(level**2 for level in levels)
    if not total <= MAX_SQUARED_SHARE * mu**2:
        least = compute_gaussian_epsilon(math.sqrt(total / MAX_SQUARED_SHARE), delta)
        digits = 10.0 ** (math.floor(math.log10(least)) - 2)
        least = math.ceil(least / digits) * digits  # three digits, rounded up
        raise BudgetError(
            f"A grid of {points * len(levels)} trainings up to epsilon {epsilons[-1]:g} does not "
            f"fit into epsilon {budget.epsilon:g}: use a total of {least:g} or more, fewer or "
            "smaller epsilons, or fewer models or repeats."
        )
    return tuple(round(level / mu, 6) for level in levels)


def make_default_shares(points: int) -> tuple[float, ...]:
    """Return the default levels as fractions of the run's mu, using `DEFAULT_SQUARED_SHARE`.

    Args:
        points: Number of trainings at each level.
    """
    top = math.sqrt(
        DEFAULT_SQUARED_SHARE / (points * math.fsum(each**2 for each in DEFAULT_LEVELS))
    )
    return tuple(round(top * each, 6) for each in DEFAULT_LEVELS)
