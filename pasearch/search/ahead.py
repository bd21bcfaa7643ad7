"""AHEAD and INSURED: a short look at each candidate, then one full training of the best.

    mu     what the privacy budget allows one training alone
    looks  k candidates, each trained on all training records at mu sqrt(s / k), and scored
    final  the winner, trained anew on the same records with what is left, about mu sqrt(1 - s)

Gaussian budgets add in squares, so looks at a small share s leave nearly all of mu: s = .05 keeps
.975 of it. Looks, scores and final training are composed: every trial may be shown.

`ahead` takes the best score. `insured` has the default among its candidates, and takes another only
where that is expected to be better *at the final noise*, by what was measured on public data (the
study behind the portfolio):

    c_e + t (score_e - score_default) > 0,      t = Cov(look, final) / (Var(look) + noise^2)

look, final: how far candidate e is ahead of the default at the noise of a look, and of the final
training, over the study's data sets; c_e their mean lead at the end less t times that at the look.
That is the best linear prediction of the final lead. The more a score errs, the smaller is t, and
the default is kept. Of several scores the best is one that noise favours, so a lead must also be
`CAUTION` standard deviations of a difference of scores.

Source: ours; composition of Gaussian mechanisms as in Dong, Roth and Su 2022.
Proof: docs/guarantees/composition-and-partitions.md, "Ahead".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pasearch.accounting.checks import probability, whole
from pasearch.errors import UsageError
from pasearch.planning import planned_form
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import ExponentialPick
from pasearch.search.strategy import (
    STRATEGIES,
    WHOLE,
    Round,
    RoundPrice,
    State,
    Strategy,
    whole_candidates,
)
from pasearch.spaces.portfolio import Study, signal_of

if TYPE_CHECKING:
    from pasearch.search.plan import Plan
    from pasearch.spaces.space import Genotype, Space

DISAGREE = 0.25
"""On about which share of the records two candidates differ, where they differ much: it tells how
far a difference of two scores errs by the sample."""

CAUTION = 1.5
"""By how many standard deviations of a difference of scores another must be ahead."""


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead(Strategy):
    """Looks at the default and other candidates, one full training of the best of them.

    Args:
        candidates: k, 2 or more; the space's default is one of them.
        looks: s, the share of the squared budget of one training that all looks take together.

    Guarantee: every trial may be shown; looks and final training are composed on the same records.
    """

    name: ClassVar[str] = "ahead"
    selection_rule: ClassVar[str] = "composition"
    takes: ClassVar[tuple[str, ...]] = ("candidates",)
    unasked: ClassVar[tuple[str, ...]] = ("looks",)
    candidates: int = 4
    looks: float = 0.05

    def __post_init__(self) -> None:
        if not whole("candidates", self.candidates) >= 2:
            raise UsageError(
                f"candidates is {self.candidates}: expected 2 or more to choose among; a "
                "single one needs no choice: `strategy=fixed`."
            )
        if not 0.0 < probability("looks", self.looks) < 1.0:
            raise UsageError(f"looks is {self.looks}: expected a share above 0 and below 1.")

    @classmethod
    def asked(cls, **given: Any) -> Self:
        return cls(**{name: whole_candidates(value) for name, value in given.items()})

    def within(self, space: Space) -> Self:
        """Return it for a space, of which it looks at each candidate once.

        Raises:
            UsageError: There is one candidate alone.
        """
        if space.count() < 2:
            raise UsageError(
                f"Space {space.name!r} has one candidate, so there is nothing to choose: take "
                "`strategy=fixed`."
            )
        return replace(self, candidates=min(self.candidates, space.count()))

    @property
    def look_share(self) -> float:
        """The share of mu that one look has."""
        return math.sqrt(self.looks / self.candidates)

    def lines(self, price: RoundPrice, partition: str, noun: str) -> list[Line]:
        """Return a look, or a score, for each candidate."""
        return [
            Line(name=_named(noun), partition=partition, event=price(WHOLE), count=self.candidates)
        ]

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return a key a trial: each is a release of its own."""
        return _named(noun), f"trial {trial}"

    def ask(self, state: State, space: Space, stream: Stream) -> Round | None:
        """Return all candidates in one round: the default, then others, each once."""
        if state.rounds:
            return None
        return Round(number=0, genotypes=distinct(space, self.candidates, stream.child("others")))

    @property
    def expected_trainings(self) -> float:
        return float(self.candidates)

    def words(self) -> str:
        return self._looks() + self.unusual_words()

    def _looks(self) -> str:
        return (
            f"looks at {self.candidates} candidates with a small part of the privacy budget, then "
            "one training of the best with the rest"
        )


def _named(noun: str) -> str:
    return f"{noun}, look" if noun == "training" else noun


def distinct(space: Space, count: int, stream: Stream) -> tuple[Genotype, ...]:
    """Return different genotypes, the default first; as many as there are, if those are fewer.

    A space that is small is gone through in order.
    """
    default = space.fixed()
    if space.count() <= count:
        every = product(*(range(size) for size in space.sizes))
        return (default, *(each for each in every if each != default))
    if len(space.sizes) == 1:
        others = (place for place in range(space.sizes[0]) if (place,) != default)
        return (default, *((place,) for place, _ in zip(others, range(count - 1), strict=False)))
    generator, found = stream.generator(), {default: None}
    while len(found) < count:
        found[space.draw(generator)] = None
    return tuple(found)


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Insured(Ahead):
    """As `ahead`, but the default is kept unless another is expected to be better in the end.

    Args:
        trust: t, how much of a lead at the look is expected to last.
        handicaps: c_e of each candidate, in points of a score; the default's is 0. None: not
            known yet, `insured_by` sets them.
        least: The least lead that counts, in points.

    Guarantee: as of `ahead`: which candidate is taken follows from noisy scores and public numbers.
    """

    name: ClassVar[str] = "insured"
    unasked: ClassVar[tuple[str, ...]] = ("looks", "trust", "handicaps", "least")
    trust: float = 1.0
    handicaps: tuple[float, ...] | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        Ahead.__post_init__(self)
        if self.handicaps is not None:
            object.__setattr__(self, "handicaps", tuple(map(float, self.handicaps)))
        numbers = (self.trust, self.least, *(self.handicaps or ()))
        if not all(isinstance(each, float | int) and math.isfinite(each) for each in numbers):
            raise UsageError("trust, handicaps and least are finite numbers.")
        if self.handicaps is not None and len(self.handicaps) != self.candidates:
            raise UsageError(
                f"{len(self.handicaps)} handicaps for {self.candidates} candidates: expected one "
                "each."
            )

    def best(self, state: State) -> tuple[int, int]:
        """Return the candidate of the largest expected lead over the default."""
        scores = [score for score, _ in state.fitness[0]]
        if not math.isfinite(scores[0]):
            return Ahead.best(self, state)
        return 0, self.may_win(scores)[0]

    def may_win(self, scores: Sequence[float]) -> list[int]:
        if not math.isfinite(scores[0]):
            return Ahead.may_win(self, scores)
        handicaps = np.zeros(len(scores)) if self.handicaps is None else np.array(self.handicaps)
        finished = np.isfinite(scores)  # one that failed is never taken
        leads = np.where(finished, scores, scores[0]) - scores[0]
        expected = np.where(
            finished & (leads >= self.least),
            handicaps[: len(scores)] + self.trust * leads,
            -math.inf,
        )
        expected[0] = 0.0
        return [int(np.argmax(expected))]

    def unusual_words(self) -> str:
        """Return the settings that are not as usual: what the default is insured by among them."""
        unusual = self.unusual()
        own = f"; looks {self.looks:g}" if "looks" in unusual else ""
        if "least" in unusual:
            own += f"; another must be {self.least:g} points ahead at least"
        if "trust" in unusual:
            own += f", of which a share of {self.trust:g} is expected to last"
        if self.handicaps is not None:
            told = ", ".join(f"{each:g}" for each in self.handicaps)
            own += f"; points that each begins with, from public data: {told}"
        return own

    def words(self) -> str:
        return (
            f"{self._looks()}; the default is kept unless another is well ahead"
            f"{self.unusual_words()}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leads:
    """How far entries of a portfolio are ahead of its first, at a look and at the end.

    Args:
        look: Over the study's data sets, (data sets, entries), as accuracy.
        final: Likewise, at the noise of the final training.
        noise: Variance of the difference of two scores, as accuracy.
    """

    look: np.ndarray
    final: np.ndarray
    noise: float

    @property
    def trust(self) -> float:
        """t: how much of a lead at the look lasts, as far as a noisy score can tell."""
        look, final = (each - each.mean(axis=0) for each in (self.look, self.final))
        count = max(1, (len(look) - 1) * (look.shape[1] - 1))
        together, spread = float(np.sum(look * final)) / count, float(np.sum(look**2)) / count
        seen = spread + self.noise
        return float(np.clip(together / seen, 0.0, 1.0)) if seen > 0.0 else 0.0

    @property
    def handicaps(self) -> np.ndarray:
        """c_e, as accuracy: (entries,); the first one's is 0."""
        return self.final.mean(axis=0) - self.trust * self.look.mean(axis=0)


def difference_variance(plan: Plan) -> float:
    """Return the variance of the difference of two candidates' scores, as accuracy."""
    assert plan.score is not None
    assert not isinstance(plan.score, ExponentialPick)
    slots = plan.split.validation
    noise = plan.score.standard_deviation / (plan.points_each * slots)
    return 2 * noise**2 + DISAGREE / slots


def insured_by(plan: Plan, study: Study | None) -> Plan:
    """Return a plan of `insured` with the handicaps that follow from its noise and a study.

    The price is the same: scores are released whatever is then done with them.

    Args:
        plan: Solved; its strategy is `Insured`.
        study: The space is its portfolio; None where candidates are of another space.
    """
    strategy = plan.strategy
    assert isinstance(strategy, Insured)
    noise = difference_variance(plan)
    points = plan.points_each * plan.split.validation
    least = round(CAUTION * math.sqrt(noise) * points, 1)
    if study is None:
        return replace(plan, strategy=replace(strategy, trust=1.0, handicaps=None, least=least))
    found = leads(plan, study, strategy.candidates)
    own = tuple(float(each) for each in np.round(found.handicaps * points, 1))
    chosen = replace(strategy, trust=round(found.trust, 3), handicaps=own, least=least)
    return replace(plan, strategy=chosen)


def leads(plan: Plan, study: Study, candidates: int) -> Leads:
    """Return how far a study's first entries were ahead, at the noise of a plan's two trainings."""
    outputs = planned_form(plan.schema, plan.most)[1]
    assert plan.trial_mu is not None
    assert plan.final_mu is not None
    slots = plan.split.train
    look, final = (
        study.at(signal_of(mu, slots, outputs))[:, :candidates]
        for mu in (plan.trial_mu, plan.final_mu)
    )
    return Leads(
        look=look - look[:, :1], final=final - final[:, :1], noise=difference_variance(plan)
    )
