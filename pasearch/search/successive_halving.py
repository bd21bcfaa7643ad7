"""AHEAD and INSURED: a short look at each candidate, then one full training of the best.

    mu      what the privacy budget allows one training alone
    looks   k candidates, each trained on all training records at mu sqrt(s / k)
    scores  of those looks, on the same records, each at epsilon mu sqrt(c / k)
    final   the winner, trained anew on the same records with what is left, about mu sqrt(1 - s - c)

Gaussian budgets add in squares, so small shares s and c leave nearly all of mu: .08 and .03 keep
.943 of it, with no record set aside. Looks, scores and final training are composed: every trial may
be shown. A look is trained with so little signal that it knows its records no better than others.
It is judged by its Brier score where the run reports accuracy: a network whose rate is far too low
is right as often as another at a look, and unsure.

With `rungs` (successive halving) the better half of the candidates is looked at once more, with
twice the squared budget each, as often as is said.

`ahead` takes the best score. `insured` has the default among its candidates, and takes another only
where that is expected to be better *at the final noise*, by what was measured on public data (the
study behind the portfolio):

    c_e + t (score_e - score_default) > 0,      t = Cov(look, final) / (Var(look) + noise^2)

look, final: how far candidate e is ahead of the default at the noise of a look, and of the final
training, over the study's data sets; c_e their mean lead at the end less t times that at the look.
That is the best linear prediction of the final lead. The more a score errs, the smaller is t, and
the default is kept. Of several scores the best is one that noise favours, so a lead must also be
`CAUTION` standard deviations of a difference of scores. How much `insured` spends follows from the
study too: the largest of `SHARES` that costs the default no more than `COST` there.

Source: ours; composition of Gaussian mechanisms as in Dong, Roth and Su 2022; successive halving as
in Jamieson and Talwalkar 2016. Proof: docs/guarantees/composition-and-partitions.md, "Ahead".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pasearch.accounting.checks import check_positive_integer, check_probability
from pasearch.errors import UsageError
from pasearch.planning import bound_network_form
from pasearch.runs.keys import Stream
from pasearch.runs.ledger import Line
from pasearch.runs.mechanisms import ExponentialMechanism
from pasearch.search.strategy import (
    FULL_ROUND,
    STRATEGIES,
    EventOfRound,
    RoundShape,
    SearchState,
    Strategy,
    TrialRound,
    check_candidate_count,
    check_multiple_candidates,
)
from pasearch.spaces.portfolio import Study, compute_signal
from pasearch.spaces.space import Portfolio
from pasearch.training.metrics import METRICS, Metric

if TYPE_CHECKING:
    from pasearch.search.plan import Plan
    from pasearch.spaces.space import Genotype, Space

DISAGREEMENT_RATE = 0.25
"""On about which share of the records two candidates differ, where they differ much: it tells how
far a difference of two scores errs by the sample. Of Brier scores it is less."""

MIN_LEAD_DEVIATIONS = 1.5
"""By how many standard deviations of a difference of scores another must be ahead."""

LOOK_SHARES = (0.2, 0.12, 0.08, 0.05, 0.03, 0.02)
"""What share of the squared budget `insured` may spend on looks."""

SCORE_TO_LOOK_RATIO = 0.4
"""What scores have of that beside, as a share of it."""

MAX_PREDICTED_LOSSES = {True: (0.0025, 0.9), False: (0.003, 0.8)}
"""How much accuracy looks may cost a default that is right, and on which share of the study's data
sets; by whether the default was measured there. One that nobody has measured is more often wrong.
"""


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessiveHalving(Strategy):
    """Looks at the default and other candidates, one full training of the best of them.

    Args:
        candidates: k, 2 or more; the space's default is one of them.
        rungs: How often looks are made, each time at half of the candidates before.
        looks: s, the share of the squared budget of one training that all looks take together.
        scores: c, the share that their scores take, likewise.

    Guarantee: every trial may be shown; looks, scores and final training are composed on the same
    records.
    """

    name: ClassVar[str] = "ahead"
    selection_rule: ClassVar[str] = "composition"
    request_options: ClassVar[tuple[str, ...]] = ("candidates", "rungs")
    internal_settings: ClassVar[tuple[str, ...]] = ("looks", "scores")
    scored_on: ClassVar[str] = "train"
    candidates: int = 4
    rungs: int = 1
    looks: float = 0.08
    scores: float = 0.03

    def __post_init__(self) -> None:
        check_multiple_candidates(self.candidates)
        if not check_positive_integer("rungs", self.rungs) <= (most := max_rounds(self.candidates)):
            raise UsageError(
                f"rungs is {self.rungs}: half of the candidates are left after each, so "
                f"{self.candidates} have {most} at most."
            )
        shares = check_probability("looks", self.looks), check_probability("scores", self.scores)
        if not (min(shares) > 0.0 and sum(shares) < 1.0):
            raise UsageError(
                f"looks is {self.looks} and scores is {self.scores}: expected two shares above 0, "
                "together below 1."
            )

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        if "candidates" in given:
            given["candidates"] = check_candidate_count(given["candidates"])
        return cls(**given)

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
        candidates = min(self.candidates, space.count())
        return replace(self, candidates=candidates, rungs=min(self.rungs, max_rounds(candidates)))

    @property
    def candidate_count(self) -> int:
        return self.candidates

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many candidates each rung looks at."""
        return tuple(max(2, math.ceil(self.candidates / 2**rung)) for rung in range(self.rungs))

    def shape(self, rung: int) -> RoundShape:
        """Return how much of mu a look of a rung has."""
        return RoundShape(mu=math.sqrt(self.looks / (self.rungs * self.sizes[rung])))

    @property
    def look_share(self) -> float:
        """The share of mu that a look of the last rung has."""
        return self.shape(self.rungs - 1).mu

    @property
    def score_share(self) -> float:
        """The share of mu that one score has."""
        return math.sqrt(self.scores / sum(self.sizes))

    def ranking_metric(self, metric: Metric) -> Metric:
        """Return the Brier score in place of accuracy: of a look it tells more."""
        return METRICS["brier"] if metric.name == "accuracy" else metric

    def lines(self, price: EventOfRound, partition: str, noun: str) -> list[Line]:
        """Return the looks of each rung, or all scores."""
        if noun != "training":
            count = sum(self.sizes)
            return [Line(name=noun, partition=partition, event=price(FULL_ROUND), count=count)]
        return [
            Line(
                name=self._line(rung), partition=partition, event=price(self.shape(rung)),
                count=size,
            )
            for rung, size in enumerate(self.sizes)
        ]  # fmt: skip

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return a key a trial: each is a release of its own."""
        return self._line(number) if noun == "training" else noun, f"trial {trial}"

    def _line(self, rung: int) -> str:
        return "training, look" + (f", rung {rung + 1}" if self.rungs > 1 else "")

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the next rung: the default and others, each once; then the better of the last."""
        rung = len(state.rounds)
        if not rung:
            genotypes = draw_distinct_genotypes(space, self.candidates, stream.child("others"))
        elif rung < self.rungs:
            last = state.rounds[-1].genotypes
            kept = self.select_survivors(
                [score for score, _ in state.fitness[-1]], self.sizes[rung]
            )
            genotypes = tuple(last[place] for place in kept)
        else:
            return None
        return TrialRound(number=rung, genotypes=genotypes, shape=self.shape(rung))

    def select_survivors(self, scores: Sequence[float], size: int) -> list[int]:
        """Return the places of a rung that the next one looks at: the best scores, in order."""
        return sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[:size])

    def trace_rounds(self, scores: Sequence[float]) -> list[list[int]]:
        """Return which of the first rung's candidates each rung looks at.

        Args:
            scores: Of every look, rung by rung.
        """
        rungs, start = [list(range(self.candidates))], 0
        for size in self.sizes[1:]:
            last = rungs[-1]
            kept = self.select_survivors(scores[start : start + len(last)], size)
            start += len(last)
            rungs.append([last[place] for place in kept])
        return rungs

    def possible_winners(self, scores: Sequence[float]) -> list[int]:
        places = self.trace_rounds(scores)[-1]
        start = len(scores) - len(places)
        return [start + place for place in self.find_winners(scores[start:], places)]

    def find_winners(self, scores: Sequence[float], places: list[int]) -> list[int]:
        """Return which of the last rung may be taken; equal ones are several.

        Args:
            scores: Of the last rung.
            places: Which of the first rung's candidates they are.
        """
        return [place for place, score in enumerate(scores) if score == max(scores)]

    @property
    def expected_trainings(self) -> float:
        return float(sum(self.sizes))

    def describe(self) -> str:
        return self._looks() + self.describe_changed_settings()

    def _looks(self) -> str:
        more = f", in {self.rungs} rungs of which each keeps half" if self.rungs > 1 else ""
        return (
            f"looks at {self.candidates} candidates{more}, with a small part of the privacy budget "
            "that pays for their scores too, then one training of the best with the rest"
        )


def max_rounds(candidates: int) -> int:
    """Return how many rungs end with two candidates or more."""
    return max(1, math.ceil(math.log2(candidates)))


def draw_distinct_genotypes(space: Space, count: int, stream: Stream) -> tuple[Genotype, ...]:
    """Return different genotypes, the default first; as many as there are, if those are fewer.

    A space that is small is gone through in order.
    """
    default = space.default_genotype()
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
class ProtectedHalving(SuccessiveHalving):
    """As `ahead`, but the default is kept unless another is expected to be better in the end.

    Args:
        trust: t, how much of a lead at the look is expected to last.
        handicaps: c_e of each candidate, in points of a score; the default's is 0. None: not
            known yet, `set_prior_leads` sets them.
        least: The least lead that counts, in points.

    Guarantee: as of `ahead`: which candidate is taken follows from noisy scores and public numbers.
    """

    name: ClassVar[str] = "insured"
    internal_settings: ClassVar[tuple[str, ...]] = (
        "looks",
        "scores",
        "trust",
        "handicaps",
        "least",
    )
    trust: float = 1.0
    handicaps: tuple[float, ...] | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        SuccessiveHalving.__post_init__(self)
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

    def best(self, state: SearchState) -> tuple[int, int]:
        """Return the candidate of the largest expected lead over the default."""
        every = [[score for score, _ in rung] for rung in state.fitness]
        places = self.trace_rounds([score for rung in every for score in rung])[-1]
        if not math.isfinite(every[-1][0]):
            return SuccessiveHalving.best(self, state)
        return len(every) - 1, self.find_winners(every[-1], places)[0]

    def select_survivors(self, scores: Sequence[float], size: int) -> list[int]:
        """Return the default's place, and the best scores of the others."""
        return [
            0,
            *(
                1 + place
                for place in SuccessiveHalving.select_survivors(self, scores[1:], size - 1)
            ),
        ]

    def find_winners(self, scores: Sequence[float], places: list[int]) -> list[int]:
        if not math.isfinite(scores[0]):
            return SuccessiveHalving.find_winners(self, scores, places)
        own = np.zeros(self.candidates) if self.handicaps is None else np.array(self.handicaps)
        finished = np.isfinite(scores)  # one that failed is never taken
        leads = np.where(finished, scores, scores[0]) - scores[0]
        expected = np.where(
            finished & (leads >= self.least), own[places] + self.trust * leads, -math.inf
        )
        expected[0] = 0.0
        return [int(np.argmax(expected))]

    @property
    def may_lose(self) -> bool:
        """Whether any look could take the default's place."""
        own = self.handicaps or (0.0,)
        return self.trust > 0.0 or max(own) > 0.0

    def describe_changed_settings(self) -> str:
        """Return the settings that are not as usual: what the default is insured by among them."""
        unusual = self.changed_settings()
        shares = ((name, unusual[name]) for name in ("looks", "scores") if name in unusual)
        own = "".join(f"; {name} have {share:g} of the squared budget" for name, share in shares)
        if "least" in unusual:
            own += (
                "; another is taken only if its score, the sum of the points that each record "
                f"gives, is higher by {self.least:g} or more"
            )
        if "trust" in unusual:
            own += f"; of a lead at the look, a share of {self.trust:g} is expected to last"
        if self.handicaps is not None:
            told = ", ".join(f"{each:g}" for each in self.handicaps)
            own += f"; points that each is given beforehand, from public data: {told}"
        return own

    def describe(self) -> str:
        return (
            f"{self._looks()}; the default is kept unless another is well ahead"
            f"{'' if self.may_lose else ', which at this noise no look can show'}"
            f"{self.describe_changed_settings()}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLeads:
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
    def shrinkage(self) -> float:
        """t: how much of a lead at the look lasts, as far as a noisy score can tell."""
        look, final = (each - each.mean(axis=0) for each in (self.look, self.final))
        count = max(1, (len(look) - 1) * (look.shape[1] - 1))
        together, spread = float(np.sum(look * final)) / count, float(np.sum(look**2)) / count
        seen = spread + self.noise
        return float(np.clip(together / seen, 0.0, 1.0)) if seen > 0.0 else 0.0

    @property
    def prior_leads(self) -> np.ndarray:
        """c_e, as accuracy: (entries,); the first one's is 0."""
        return self.final.mean(axis=0) - self.shrinkage * self.look.mean(axis=0)


def difference_variance(plan: Plan) -> float:
    """Return the variance of the difference of two candidates' scores, as accuracy."""
    assert plan.score is not None
    assert not isinstance(plan.score, ExponentialMechanism)
    slots = plan.score_slots
    noise = plan.score.standard_deviation / (plan.ranking_metric.max_points * slots)
    return 2 * noise**2 + DISAGREEMENT_RATE / slots


def choose_look_share(study: Study, signal: float, *, ours: bool) -> dict[str, float]:
    """Return the shares of the squared budget that looks and scores take: `insured`'s settings.

    Args:
        study: Of such data, in the portfolio's order.
        signal: Of one training with the whole budget.
        ours: Whether the space is its portfolio.
    """
    alone, (most, usually) = study.accuracy_at(signal)[:, 0], MAX_PREDICTED_LOSSES[ours]

    known = [place for place, each in enumerate(study.signals.values()) if each[0] < signal]

    def cost(share: float) -> float:
        left = study.accuracy_at(
            signal + math.log10(1.0 - share * (1.0 + SCORE_TO_LOOK_RATIO)) / 2
        )[:, 0]
        return float(np.quantile((alone - left)[known], usually)) if known else math.inf

    share = next((each for each in LOOK_SHARES if cost(each) <= most), LOOK_SHARES[-1])
    return {"looks": share, "scores": round(SCORE_TO_LOOK_RATIO * share, 6)}


def set_prior_leads(plan: Plan, study: Study, *, ours: bool) -> Plan:
    """Return a plan of `insured` with the handicaps that follow from its noise and a study.

    Of a space that is not the study's portfolio, the study may know some candidates all the same:
    those that gain more than the others from a look to the end begin with what they gain more. A
    candidate that nobody has measured is taken to gain as much as these do on average.

    The price is the same: scores are released whatever is then done with them.

    Args:
        plan: Solved; its strategy is `ProtectedHalving`.
        study: Of such data, in the portfolio's order.
        ours: Whether the space is its portfolio.
    """
    strategy = plan.strategy
    assert isinstance(strategy, ProtectedHalving)
    noise = difference_variance(plan)
    points = plan.ranking_metric.max_points * plan.score_slots
    least = round(MIN_LEAD_DEVIATIONS * math.sqrt(noise) * points, 1)
    if ours:
        found = estimate_leads(plan, study, strategy.candidates)
        trust, handicaps = round(found.shrinkage, 3), found.prior_leads
    else:
        trust, handicaps = 1.0, _estimate_gains(plan, study, strategy.candidates)
    own = None
    if handicaps is not None:
        own = tuple(float(each) for each in np.round(handicaps * points, 1))
    return replace(plan, strategy=replace(strategy, trust=trust, handicaps=own, least=least))


def _estimate_gains(plan: Plan, study: Study, candidates: int) -> np.ndarray | None:
    """Return how much more than others candidates gain that a study knows, (candidates,)."""
    entries = plan.space.entries[:candidates] if isinstance(plan.space, Portfolio) else ()
    places = {
        place: study.entries.index(each)
        for place, each in enumerate(entries)
        if each in study.entries
    }
    if len(places) < 2:
        return None
    look, final = (each[:, list(places.values())] for each in _interpolate_study(plan, study))
    gain = (final - look).mean(axis=0)
    own = np.zeros(candidates)
    own[list(places)] = gain - gain.mean()
    return own - own[0]


def estimate_leads(plan: Plan, study: Study, candidates: int) -> StudyLeads:
    """Return how far a study's first entries were ahead, at the noise of a plan's two trainings."""
    look, final = (each[:, :candidates] for each in _interpolate_study(plan, study))
    return StudyLeads(
        look=look - look[:, :1], final=final - final[:, :1], noise=difference_variance(plan)
    )


def _interpolate_study(plan: Plan, study: Study) -> tuple[np.ndarray, np.ndarray]:
    """Return what the study's looks are judged by, and final accuracy: (data sets, entries)."""
    outputs, slots = bound_network_form(plan.schema, plan.most)[1], plan.split.train
    assert plan.trial_mu is not None
    assert plan.final_mu is not None
    assert plan.strategy.look_share is not None
    look = study.trial_score_at(
        compute_signal(plan.trial_mu * plan.strategy.look_share, slots, outputs)
    )
    return look, study.accuracy_at(compute_signal(plan.final_mu, slots, outputs))
