"""Successive halving (`ahead`) and default-protected successive halving (`insured`).

    mu      mu (Gaussian DP) of a training with the whole privacy budget
    looks   low-budget evaluations: k candidates trained on all training records at mu sqrt(s / k)
    scores  of these networks, on the same records, each at epsilon mu sqrt(c / k)
    final   the winner, retrained on the same records with the rest, about mu sqrt(1 - s - c)

Squared values of mu add up, so small fractions s and c leave most of mu: .08 and .03 leave .943 of
it, and no record is reserved. Low-budget evaluations, scores and final training are composed, so
every trial may be shown. A low-budget training has too little signal to overfit its records. If the
run reports accuracy, candidates are ranked by the Brier score: it also detects a learning rate that
is far too low, which reduces the confidence but hardly the accuracy.

With `rungs` (rounds of successive halving), the better half of the candidates is evaluated again,
each with twice the squared budget.

`ahead` selects the best score. `insured` has the default among its candidates. It selects another
candidate e only if e is expected to be better *at the final noise*, according to measurements on
public data (the study behind the portfolio):

    c_e + t (score_e - score_default) > 0,      t = Cov(look, final) / (Var(look) + noise^2)

Here `look` is the lead of candidate e over the default at the noise of a low-budget evaluation, and
`final` the lead at the noise of the final training; both vary over the data sets of the study. t is
a shrinkage factor (regression slope), and c_e is the mean of `final` minus t times the mean of
`look`. This is the best linear prediction of the final lead. Noisier scores give a smaller t, so
that the default is kept. The best of several noisy scores is too high on average, so a lead must
also be at least `MIN_LEAD_DEVIATIONS` standard deviations of a difference of scores. The
evaluations use the largest fraction in `LOOK_SHARES` that reduces the accuracy of the default by at
most `MAX_PREDICTED_LOSSES` in the study.

Source: original to this project; composition of Gaussian mechanisms as in Dong, Roth and Su 2022;
successive halving as in Jamieson and Talwalkar 2016.
Proof: docs/guarantees/composition-and-partitions.md, "Ahead".
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
from pasearch.runs.ledger import PlannedRelease
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
"""Assumed fraction of records for which exactly one of two candidates is correct.

It is the sampling variance of a difference of two scores of one record. For candidates that differ
much it is about this large, and for Brier scores it is smaller."""

MIN_LEAD_DEVIATIONS = 1.5
"""Minimum lead over the default, in standard deviations of a difference of scores."""

LOOK_SHARES = (0.2, 0.12, 0.08, 0.05, 0.03, 0.02)
"""Fractions of the squared mu from which `insured` chooses one for low-budget evaluations."""

SCORE_TO_LOOK_RATIO = 0.4
"""Squared mu of all scores, as a fraction of that of all low-budget evaluations."""

MAX_PREDICTED_LOSSES = {True: (0.0025, 0.9), False: (0.003, 0.8)}
"""Maximum loss of accuracy by evaluations if the default is the best model, with its quantile.

The quantile is over the data sets of the study. The key says whether the study has measured the
default. A default that was not measured is a bad choice more often, so its limit is less strict."""


@STRATEGIES.register
@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessiveHalving(Strategy):
    """Low-budget evaluations of several candidates, then one full training of the best.

    Args:
        candidates: Number k of candidates, 2 or more; the space's default is one of them.
        rungs: Number of successive-halving rounds, 1 or more.
        looks: Fraction s of the squared mu for all low-budget evaluations.
        scores: Fraction c of the squared mu for all scores.

    Guarantee: every trial may be shown; low-budget evaluations, scores and final training are
    composed on the same records.
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
        if not check_positive_integer("rungs", self.rungs) <= (
            most := compute_max_rounds(self.candidates)
        ):
            raise UsageError(
                f"rungs is {self.rungs}: expected at most {most} for {self.candidates} candidates, "
                "because each round keeps half of them."
            )
        shares = check_probability("looks", self.looks), check_probability("scores", self.scores)
        if not (min(shares) > 0.0 and sum(shares) < 1.0):
            raise UsageError(
                f"looks is {self.looks} and scores is {self.scores}: expected two fractions above "
                "0 with a sum below 1."
            )

    @classmethod
    def from_request(cls, **given: Any) -> Self:
        if "candidates" in given:
            given["candidates"] = check_candidate_count(given["candidates"])
        return cls(**given)

    def within(self, space: Space) -> Self:
        """Adapt the number of candidates to a space.

        Raises:
            UsageError: The space has a single candidate.
        """
        if space.count() < 2:
            raise UsageError(
                f"Space {space.name!r} has one candidate, so there is nothing to choose: use "
                "`strategy=fixed`."
            )
        candidates = min(self.candidates, space.count())
        return replace(
            self, candidates=candidates, rungs=min(self.rungs, compute_max_rounds(candidates))
        )

    @property
    def candidate_count(self) -> int:
        return self.candidates

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of candidates of each round."""
        return tuple(max(2, math.ceil(self.candidates / 2**rung)) for rung in range(self.rungs))

    def shape(self, rung: int) -> RoundShape:
        """Return the shape of the evaluations in a round, by its index."""
        return RoundShape(mu=math.sqrt(self.looks / (self.rungs * self.sizes[rung])))

    @property
    def look_share(self) -> float:
        """Fraction of mu of an evaluation in the last round."""
        return self.shape(self.rungs - 1).mu

    @property
    def score_share(self) -> float:
        """Fraction of mu of one score."""
        return math.sqrt(self.scores / sum(self.sizes))

    def ranking_metric(self, metric: Metric) -> Metric:
        """Return the Brier score instead of accuracy: it has less variance at low budgets."""
        return METRICS["brier"] if metric.name == "accuracy" else metric

    def list_releases(self, price: EventOfRound, partition: str, noun: str) -> list[PlannedRelease]:
        """Return the lines of the evaluations of each round, or of all scores."""
        if noun != "training":
            count = sum(self.sizes)
            return [
                PlannedRelease(name=noun, partition=partition, event=price(FULL_ROUND), count=count)
            ]
        return [
            PlannedRelease(
                name=self._line(rung), partition=partition, event=price(self.shape(rung)),
                count=size,
            )
            for rung, size in enumerate(self.sizes)
        ]  # fmt: skip

    def charge(self, noun: str, number: int, trial: int) -> tuple[str, str]:
        """Return one key per trial: each trial is a separate release."""
        return self._line(number) if noun == "training" else noun, f"trial {trial}"

    def _line(self, rung: int) -> str:
        """Return the name of the line of a round, by its index."""
        return "training, look" + (f", rung {rung + 1}" if self.rungs > 1 else "")

    def ask(self, state: SearchState, space: Space, stream: Stream) -> TrialRound | None:
        """Return the first round (the default and others), or the best of the previous round."""
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
        """Return the indices of the `size` best scores, in rising order."""
        return sorted(sorted(range(len(scores)), key=lambda place: -scores[place])[:size])

    def trace_rounds(self, scores: Sequence[float]) -> list[list[int]]:
        """Return the indices of the candidates of each round, counted in the first round.

        Args:
            scores: Scores of all evaluations, in order.
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
        """Return the indices of the candidates of the last round that may win; several if tied.

        Args:
            scores: Scores of the last round.
            places: Indices of its candidates in the first round.
        """
        return [place for place, score in enumerate(scores) if score == max(scores)]

    @property
    def expected_trainings(self) -> float:
        return float(sum(self.sizes))

    def describe(self) -> str:
        return self._describe_evaluations() + self.describe_changed_settings()

    def _describe_evaluations(self) -> str:
        """Describe the evaluations and the final training, without changed settings."""
        more = f" in {self.rungs} successive-halving rounds" if self.rungs > 1 else ""
        return (
            f"low-budget evaluation of {self.candidates} candidates{more} (a small fraction of the "
            "privacy budget, scores included), then one training of the best with the rest"
        )


def compute_max_rounds(candidates: int) -> int:
    """Return the maximum number of rounds, such that the last round has two candidates."""
    return max(1, math.ceil(math.log2(candidates)))


def draw_distinct_genotypes(space: Space, count: int, stream: Stream) -> tuple[Genotype, ...]:
    """Draw different genotypes, the default first.

    A space with at most `count` genotypes, or with a single gene, is enumerated in order.

    Args:
        space: Space to draw from.
        count: Number of genotypes; fewer are returned if the space has fewer.
        stream: Random stream of the draw.
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
    """Successive halving that keeps the default unless another is expected to be better finally.

    Args:
        trust: Shrinkage factor t: the fraction of a lead that is expected to remain at the final
            noise.
        handicaps: Prior lead c_e of each candidate, in score counts; 0 for the default. None: not
            known yet (`set_prior_leads`).
        least: Minimum lead that is considered, in score counts.

    Guarantee: the same as for successive halving, because the choice depends on noisy scores and
    public numbers only.
    """

    name: ClassVar[str] = "insured"
    internal_settings: ClassVar[tuple[str, ...]] = (
        "looks", "scores", "trust", "handicaps", "least",
    )  # fmt: skip
    trust: float = 1.0
    handicaps: tuple[float, ...] | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        SuccessiveHalving.__post_init__(self)
        if self.handicaps is not None:
            object.__setattr__(self, "handicaps", tuple(map(float, self.handicaps)))
        numbers = (self.trust, self.least, *(self.handicaps or ()))
        if not all(isinstance(each, float | int) and math.isfinite(each) for each in numbers):
            raise UsageError("trust, handicaps and least: expected finite numbers.")
        if self.handicaps is not None and len(self.handicaps) != self.candidates:
            raise UsageError(
                f"handicaps has {len(self.handicaps)} numbers for {self.candidates} candidates: "
                "expected one each."
            )

    def best(self, state: SearchState) -> tuple[int, int]:
        """Return the candidate with the largest expected lead over the default."""
        every = [[score for score, _ in rung] for rung in state.fitness]
        places = self.trace_rounds([score for rung in every for score in rung])[-1]
        if not math.isfinite(every[-1][0]):
            return SuccessiveHalving.best(self, state)
        return len(every) - 1, self.find_winners(every[-1], places)[0]

    def select_survivors(self, scores: Sequence[float], size: int) -> list[int]:
        """Return the index of the default, and those of the best other scores."""
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
        finished = np.isfinite(scores)  # a failed candidate is never selected
        leads = np.where(finished, scores, scores[0]) - scores[0]
        expected = np.where(
            finished & (leads >= self.least), own[places] + self.trust * leads, -math.inf
        )
        expected[0] = 0.0
        return [int(np.argmax(expected))]

    @property
    def may_replace_default(self) -> bool:
        """Whether any scores would select another candidate than the default."""
        own = self.handicaps or (0.0,)
        return self.trust > 0.0 or max(own) > 0.0

    def describe_changed_settings(self) -> str:
        """Describe the settings that differ from their defaults."""
        unusual = self.changed_settings()
        shares = ((name, unusual[name]) for name in ("looks", "scores") if name in unusual)
        own = "".join(f"; {name} use {share:g} of the squared budget" for name, share in shares)
        if "least" in unusual:
            own += (
                f"; another is chosen only if its score count exceeds the default's by "
                f"{self.least:g} or more"
            )
        if "trust" in unusual:
            own += f"; shrinkage {self.trust:g} of a lead"
        if self.handicaps is not None:
            leads = ", ".join(f"{each:g}" for each in self.handicaps)
            own += f"; prior leads from public data, in score counts: {leads}"
        return own

    def describe(self) -> str:
        return (
            f"{self._describe_evaluations()}; the default is kept unless another is clearly better"
            f"{'' if self.may_replace_default else ', which cannot be detected at this noise'}"
            f"{self.describe_changed_settings()}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLeads:
    """Leads of a portfolio's entries over its first entry, on the data sets of the study.

    Args:
        look: Leads in accuracy at the noise of a low-budget evaluation, (data sets, entries).
        final: Leads in accuracy at the noise of the final training, (data sets, entries).
        noise: Variance of the difference of two noisy scores, in units of squared accuracy.
    """

    look: np.ndarray
    final: np.ndarray
    noise: float

    @property
    def shrinkage(self) -> float:
        """Shrinkage factor t: regression slope of the final lead on the noisy lead, in [0, 1]."""
        look, final = (each - each.mean(axis=0) for each in (self.look, self.final))
        count = max(1, (len(look) - 1) * (look.shape[1] - 1))
        covariance, variance = (float(np.sum(look * each)) / count for each in (final, look))
        total = variance + self.noise
        return float(np.clip(covariance / total, 0.0, 1.0)) if total > 0.0 else 0.0

    @property
    def prior_leads(self) -> np.ndarray:
        """Prior lead c_e of each entry, in accuracy, (entries,); 0 for the first."""
        return self.final.mean(axis=0) - self.shrinkage * self.look.mean(axis=0)


def compute_difference_variance(plan: Plan) -> float:
    """Return the variance of the difference of two noisy scores, in units of squared accuracy."""
    assert plan.score is not None
    assert not isinstance(plan.score, ExponentialMechanism)
    slots = plan.score_slots
    noise = plan.score.standard_deviation / (plan.ranking_metric.max_points * slots)
    return 2 * noise**2 + DISAGREEMENT_RATE / slots


def choose_look_share(study: Study, signal: float, *, ours: bool) -> dict[str, float]:
    """Choose the settings `looks` and `scores` of `insured` from the study on public data.

    Args:
        study: Study of this kind of data, with its models in the order of the portfolio.
        signal: log10 of the signal-to-noise ratio of a training with the whole budget.
        ours: Whether the space is the portfolio of the study.
    """
    alone, (most, usually) = study.accuracy_at(signal)[:, 0], MAX_PREDICTED_LOSSES[ours]

    known = [place for place, each in enumerate(study.signals.values()) if each[0] < signal]

    def predict_loss(share: float) -> float:
        left = study.accuracy_at(
            signal + math.log10(1.0 - share * (1.0 + SCORE_TO_LOOK_RATIO)) / 2
        )[:, 0]
        return float(np.quantile((alone - left)[known], usually)) if known else math.inf

    share = next((each for each in LOOK_SHARES if predict_loss(each) <= most), LOOK_SHARES[-1])
    return {"looks": share, "scores": round(SCORE_TO_LOOK_RATIO * share, 6)}


def set_prior_leads(plan: Plan, study: Study, *, ours: bool) -> Plan:
    """Set the prior leads, the shrinkage and the minimum lead in a plan of `insured`.

    They are computed from the noise of the plan and the study on public data. If the space is not
    the portfolio of the study, the study may still contain some of the candidates. A candidate that
    improves more than the others from evaluation to final training gets the difference as its prior
    lead. Candidates outside the study get the average lead.

    The privacy cost is unchanged, because the settings affect post-processing of released scores.

    Args:
        plan: Calibrated plan with strategy `ProtectedHalving`.
        study: Study of this kind of data, with its models in the order of the portfolio.
        ours: Whether the space is the portfolio of the study.
    """
    strategy = plan.strategy
    assert isinstance(strategy, ProtectedHalving)
    noise = compute_difference_variance(plan)
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
    """Estimate the prior leads of a user's candidates that are in the study, (candidates,)."""
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
    """Estimate the leads of the study's first entries at the noise of the plan's trainings."""
    look, final = (each[:, :candidates] for each in _interpolate_study(plan, study))
    return StudyLeads(
        look=look - look[:, :1], final=final - final[:, :1], noise=compute_difference_variance(plan)
    )


def _interpolate_study(plan: Plan, study: Study) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of evaluations and accuracies of final trainings, (data sets, entries) each."""
    outputs, slots = bound_network_form(plan.schema, plan.most)[1], plan.split.train
    assert plan.trial_mu is not None
    assert plan.final_mu is not None
    assert plan.strategy.look_share is not None
    look = study.trial_score_at(
        compute_signal(plan.trial_mu * plan.strategy.look_share, slots, outputs)
    )
    return look, study.accuracy_at(compute_signal(plan.final_mu, slots, outputs))
