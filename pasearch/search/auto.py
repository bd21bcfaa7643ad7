"""auto: price every strategy, predict each from a study on public data, take the best.

Predicted accuracy = mean over the study's data sets of the same kind (the one at hand left out) of

    fixed            a_1(s)                  a_e(s): what entry e reached there at signal s
    rs, mgrs, paas   E[a_w(s')]              w: the entry with the best noisy score at s'
    winner retrained E[a_w(s_final)]         w chosen at s_search, then trained anew

s is the signal of each training under that strategy's own plan: a search's trainings may cost less
each, or have fewer records, and that is what it pays. The number of candidates follows the plan's
law; a score errs by its noise and by its sample. Everything read here is public: schema, n, budget,
device; the study is a file of this package.

Source: docs/rules.md, rule 1 (auto reads schema, n, budget and device only).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.errors import BudgetError
from pasearch.planning import planned_form
from pasearch.runs.mechanisms import ExponentialPick
from pasearch.spaces.portfolio import Study, signal_of

if TYPE_CHECKING:
    from pasearch.search.plan import Plan
    from pasearch.search.strategy import Strategy

DRAWS = 2000
"""How many searches are imagined for one prediction."""

PATIENCE = 3600.0
"""A strategy that would train longer than this many seconds on a CPU, on average, is left out."""

GAIN = 0.002
"""By how much a search must be predicted to beat `fixed`: less is within the study's own error."""

RETRAINED_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A strategy that auto compares.

    Args:
        name: Of the strategy.
        settings: As `search.strategies.strategy` takes them.
        search_share: Share of the training slots set aside for the search; 0 keeps the winner.
    """

    name: str
    settings: tuple[tuple[str, float], ...] = ()
    search_share: float = 0.0

    @property
    def winner(self) -> str:
        """What becomes of the winner: kept, retrained, or one training without any other."""
        if self == FIXED:
            return "one training"
        return "retrained" if self.search_share else "kept"


FIXED = Option(name="fixed")
"""The one training that every search is compared with."""


def options() -> list[Option]:
    """Return what is compared: `fixed`, and every private search, its winner kept or retrained."""
    searches = (
        ("rs", (("candidates", 5),)),
        ("mgrs", (("candidates", 8), ("generations", 2))),
        ("paas", (("candidates", 4), ("generations", 2))),
    )
    return [FIXED] + [
        Option(name=name, settings=settings, search_share=share)
        for name, settings in searches
        for share in (0.0, RETRAINED_SHARE)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What auto took, and why.

    Args:
        option: The strategy.
        plan: Its plan.
        strategy: The strategy, made.
        why: One or two sentences.
        expected: Predicted accuracy of every option that could be priced.
    """

    option: Option
    plan: Plan
    strategy: Strategy
    why: str
    expected: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        chosen = f"{self.option.name}, {self.option.winner}"
        return {"chosen": chosen, "why": self.why, "expected": list(self.expected)}


def choose(study: Study, make: Callable[[Option], tuple[Plan, Strategy]], *, device: str) -> Choice:
    """Return the strategy that is predicted to be best.

    Args:
        study: Of the kind of data at hand, without the data at hand, in the portfolio's order.
        make: From an option to its plan and strategy; a BudgetError leaves the option out.
        device: "cpu" leaves out what would take longer than `PATIENCE`.

    Raises:
        BudgetError: Not even `fixed` fits the budget.
    """
    found: list[tuple[float, Option, Plan, Strategy]] = []
    for option in options():
        try:
            plan, strategy = make(option)
        except BudgetError:
            if option == FIXED:
                raise
            continue
        seconds = plan.seconds_per_training()[0] * strategy.expected_work
        if found and device == "cpu" and seconds > PATIENCE:
            continue
        found.append((predicted(study, plan, strategy), option, plan, strategy))
    fixed = found[0]
    best = max(found, key=lambda each: each[0])
    if not best[0] > fixed[0] + GAIN:
        best = fixed
    expected = tuple(
        {"strategy": option.name, "winner": option.winner, "expected": round(float(value), 4)}
        for value, option, _, _ in found
    )
    why = _why(best[1], fixed[0], found, study)
    return Choice(option=best[1], plan=best[2], strategy=best[3], why=why, expected=expected)


def predicted(study: Study, plan: Plan, strategy: Strategy) -> float:
    """Return the accuracy that a plan is predicted to reach, in [0, 1].

    Guarantee: the same plan and study give the same number.
    """
    outputs = planned_form(plan.schema, plan.most)[1]
    trial_mu, split = plan.trial_mu, plan.split
    assert trial_mu is not None
    here = study.at(signal_of(trial_mu, split.trial_slots, outputs))
    if not strategy.scored:
        return float(here[:, 0].mean())
    then = here
    if plan.retrained and plan.final_mu is not None:
        then = study.at(signal_of(plan.final_mu, split.train, outputs))
    assert plan.score is not None
    assert not isinstance(plan.score, ExponentialPick), "auto compares no picks"
    noise = plan.score.standard_deviation / (plan.points_each * split.validation)
    generator = np.random.default_rng(0)
    counts = _counts(strategy, generator)
    return float(
        np.mean([_won(seen, kept, counts, noise, split.validation, generator)
                 for seen, kept in zip(here, then, strict=True)])
    )  # fmt: skip


def _counts(strategy: Strategy, generator: np.random.Generator) -> np.ndarray:
    """Return numbers of trainings as the strategy's law draws them, at least 1, (DRAWS,)."""
    uniform = generator.random(DRAWS)
    if not strategy.counts:
        return np.full(DRAWS, round(strategy.expected_trainings))
    return np.array([strategy.counts[-1].sample(float(each)) for each in uniform])


def _won(
    seen: np.ndarray,
    kept: np.ndarray,
    counts: np.ndarray,
    noise: float,
    sample: int,
    generator: np.random.Generator,
) -> float:
    """Return the mean accuracy of the winner on one data set.

    Args:
        seen: Accuracy of every entry where it is scored, (entries,).
        kept: Accuracy of every entry where it is released, (entries,).
        counts: Numbers of trainings, (DRAWS,).
        noise: Standard deviation of a score's noise, as an accuracy.
        sample: Records that a score is taken on.
        generator: Of the imagined searches.
    """
    width = int(min(counts.max(), 64))
    drawn = generator.integers(len(seen), size=(DRAWS, width))
    spread = np.hypot(noise, np.sqrt(np.clip(seen * (1 - seen), 1e-4, None) / sample))
    scores = seen[drawn] + spread[drawn] * generator.standard_normal((DRAWS, width))
    scores[np.arange(width) >= counts[:, None]] = -math.inf
    winners = drawn[np.arange(DRAWS), scores.argmax(axis=1)]
    return float(kept[winners].mean())


def _why(
    chosen: Option, fixed: float, found: list[tuple[float, Option, Plan, Strategy]], study: Study
) -> str:
    basis = f"on {len(study.signals)} public data sets of this kind ({', '.join(study.signals)})"
    searches = [each for each in found if each[1] != FIXED]
    if not searches:
        return "No search fits this budget and machine, so one good default is trained."
    value, option, *_ = max(searches, key=lambda each: each[0])
    named = f"{option.name} (winner {option.winner})"
    if chosen == FIXED:
        reached = (
            f"At these trainings' signal to noise {basis} the portfolio's first entry reached "
            f"{fixed:.3f}, the best search, {named}, {value:.3f}"
        )
        if value < fixed - GAIN:
            return (
                "Do not search: n is too small for this budget to pay for it. "
                f"{reached}: the best candidate gains less than its search costs."
            )
        return (
            f"Do not search: none is predicted to gain. {reached}. So little apart, yours may "
            "differ from them: `strategy=rs` would cost no more than this plan."
        )
    return (
        f"{named} is predicted to reach {value:.3f} and the portfolio's first entry {fixed:.3f}, "
        f"{basis}, at the signal to noise that each would have here."
    )
