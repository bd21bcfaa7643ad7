"""auto: price `fixed` and `insured`, predict both from a study on public data, and take one.

Predicted accuracy = mean over the study's data sets of the same kind (the one at hand left out) of

    fixed       a_1(s)              a_e(s): what entry e reached there at signal s
    insured     E[a_w(s_final)]     w: the entry that `insured` takes by noisy scores at s_look

s is the signal of each training under that strategy's own plan: looks and scores take a part of
the budget and of the records. `insured` is taken where it is predicted to cost less than
`MAX_PREDICTED_LOSS`: that is what it costs to find out that the default is wrong for these
records. Outside
what it has measured, nothing is predicted and one good default is trained.

Everything read here is public: schema, n, budget, device; the study is a file of this package.

Source: docs/rules.md, rule 1 (auto reads schema, n, budget and device only).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Gaussian
from pasearch.errors import BudgetError
from pasearch.planning import bound_network_form
from pasearch.search.successive_halving import (
    MIN_LEAD_DEVIATIONS,
    ProtectedHalving,
    StudyLeads,
    choose_look_share,
    estimate_leads,
)
from pasearch.spaces.portfolio import Study, compute_signal, count_features, load_study

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.search.plan import Plan

SIMULATED_RUNS = 2000
"""How many runs are imagined on each data set for one prediction."""

MAX_SECONDS_ON_CPU = 3600.0
"""Looks that would take longer than this many seconds on a CPU are left out."""

MAX_PREDICTED_LOSS = 0.003
"""How much accuracy looks may be predicted to cost, and are made: on `USUALLY` of the data sets."""

LOSS_QUANTILE = 0.9
"""The share of the study's data sets on which looks may cost no more."""

MIN_SHRINKAGE = 0.1
"""Where less of a lead at a look would last, looks are not worth their price."""

MAX_COMPARED_CANDIDATES = 5
"""How many candidates `insured` looks at, at most: every entry of a portfolio has been enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOption:
    """A strategy that auto compares.

    Args:
        name: Of the strategy.
        settings: As `search.strategy.make_strategy` takes them.
    """

    name: str
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def winner(self) -> str:
        """What becomes of the winner: one training without any other, or one after looks."""
        return "one training" if self == FIXED_OPTION else "trained anew"


FIXED_OPTION = StrategyOption(name="fixed")
"""The one training that a search is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChoice:
    """What auto took, and why.

    Args:
        option: The strategy.
        plan: Its plan.
        why: A few sentences.
        expected: Predicted accuracy of every option that could be priced.
    """

    option: StrategyOption
    plan: Plan
    why: str
    expected: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        chosen = f"{self.option.name}, {self.option.winner}"
        return {"chosen": chosen, "why": self.why, "expected": list(self.expected)}


def rank_study(schema: AnySchema, name: str, budget: Budget, n: int, most: int) -> Study:
    """Return the study of a kind of data, in order of what is best at about this budget's signal.

    Args:
        schema: As declared.
        name: Of the data set, which is left out.
        budget: With its delta known.
        n: Records.
        most: The most categories that are estimated privately for a column.
    """
    study = load_study(schema, name).rescale_to_classes(bound_network_form(schema, most)[1])
    return study.sort_by_accuracy(_approximate_signal(schema, budget, n, most))


def choose_look_settings(
    study: Study, schema: AnySchema, budget: Budget, n: int, most: int, *, ours: bool
) -> dict[str, float]:
    """Return what `insured` may spend, as its settings.

    Args:
        study: As `rank_study` gives it.
        schema: As there.
        budget: As there.
        n: As there.
        most: As there.
        ours: Whether the space is the study's portfolio.
    """
    return choose_look_share(study, _approximate_signal(schema, budget, n, most), ours=ours)


def _approximate_signal(schema: AnySchema, budget: Budget, n: int, most: int) -> float:
    """Return about the signal of one training with the whole budget and all records."""
    sigma = calibration.calibrate_min(
        lambda value: Gaussian(noise_multiplier=value), budget, 0.02, 1e7
    )
    return compute_signal(1.0 / sigma, n, bound_network_form(schema, most)[1])


def choose_strategy(
    study: Study | None, make: Callable[[StrategyOption], Plan], *, count: int, device: str
) -> StrategyChoice:
    """Return `insured`, or `fixed` where that is predicted to be better, or nothing is predicted.

    Args:
        study: Of the kind of data at hand, without the data at hand, in the portfolio's order, as
            accuracy among as many classes; None where the space is the user's own.
        make: From an option to its plan; a BudgetError leaves the option out.
        count: How many candidates the space has.
        device: "cpu" leaves out what would take longer than `PATIENCE`.

    Raises:
        BudgetError: Not even `fixed` fits the budget.
    """
    fixed = make(FIXED_OPTION)

    def default(why: str) -> StrategyChoice:
        return StrategyChoice(
            option=FIXED_OPTION, plan=fixed, why=f"{why} So one good default is trained."
        )

    if study is not None:
        outputs, features = (
            bound_network_form(fixed.schema, fixed.most)[1],
            count_features(fixed.schema),
        )
        if outside := study.outside(_signal_of_training(fixed, fixed.trial_mu), outputs, features):
            return default(f"Nothing is predicted: {outside}")
    looks = min(count, MAX_COMPARED_CANDIDATES)
    if not looks > 1:
        return default("There is one candidate alone.")
    option = StrategyOption(name=ProtectedHalving.name, settings=(("candidates", looks),))
    try:
        plan = make(option)
    except BudgetError:
        return default("Looks at other candidates do not fit this budget.")
    if device == "cpu" and plan.seconds_per_training()[0] * (looks + 1) > MAX_SECONDS_ON_CPU:
        return default("Looks at other candidates would take over an hour.")
    if study is None:
        why = (
            f"Nobody has measured this space on public data. Its default is trained, unless a look "
            f"finds one of {looks - 1} others well ahead."
        )
        return StrategyChoice(option=option, plan=plan, why=why)
    return _compare_predictions(study, fixed, plan, option)


def _compare_predictions(
    study: Study, fixed: Plan, plan: Plan, option: StrategyOption
) -> StrategyChoice:
    """Return the better of both as the study predicts them."""
    alone, insured = predict_default_accuracy(study, fixed), predict_accuracy(study, plan)
    expected = tuple(
        {"strategy": each.name, "winner": each.winner, "expected": round(value, 4)}
        for each, value in ((FIXED_OPTION, alone), (option, insured))
    )
    known = estimate_leads(plan, study, plan.strategy.trials)
    before, after = (
        study.accuracy_at(_signal_of_training(each, mu))[:, 0]
        for each, mu in ((fixed, fixed.trial_mu), (plan, plan.final_mu))
    )
    price = max(0.0, float(np.quantile(before - after, LOSS_QUANTILE)))
    took = (
        price <= MAX_PREDICTED_LOSS
        and insured > alone - MAX_PREDICTED_LOSS
        and known.shrinkage > MIN_SHRINKAGE
    )
    why = _explain_choice(study, plan, known, (alone, insured, price), took)
    chosen = (option, plan) if took else (FIXED_OPTION, fixed)
    return StrategyChoice(option=chosen[0], plan=chosen[1], why=why, expected=expected)


def _signal_of_training(plan: Plan, mu: float | None) -> float:
    assert mu is not None
    slots = plan.split.trial_size
    return compute_signal(mu, slots, bound_network_form(plan.schema, plan.most)[1])


def predict_default_accuracy(study: Study, plan: Plan) -> float:
    """Return the accuracy that the study's first entry is predicted to reach by `fixed`."""
    return float(study.accuracy_at(_signal_of_training(plan, plan.trial_mu))[:, 0].mean())


def predict_accuracy(study: Study, plan: Plan) -> float:
    """Return the accuracy that a plan of `insured` is predicted to reach.

    Each data set of the study stands for the one at hand, and only the others are known of.

    Guarantee: the same plan and study give the same number.
    """
    strategy = plan.strategy
    assert isinstance(strategy, ProtectedHalving)
    known = estimate_leads(plan, study, strategy.candidates)
    reached = study.accuracy_at(_signal_of_training(plan, plan.final_mu))[:, : strategy.candidates]
    generator = np.random.default_rng(0)
    found = []
    for place in range(len(reached)):
        others = [other for other in range(len(reached)) if other != place] or [place]
        rule = StudyLeads(look=known.look[others], final=known.final[others], noise=known.noise)
        errs = np.sqrt(known.noise / 2) * generator.standard_normal(
            (SIMULATED_RUNS, reached.shape[1])
        )
        scores = known.look[place] + errs
        apart = scores - scores[:, :1]
        counts = apart >= MIN_LEAD_DEVIATIONS * math.sqrt(known.noise)
        ahead = np.where(counts, rule.prior_leads + rule.shrinkage * apart, -math.inf)
        ahead[:, 0] = 0.0
        found.append(reached[place][ahead.argmax(axis=1)].mean())
    return float(np.mean(found))


def _explain_choice(
    study: Study, plan: Plan, known: StudyLeads, expected: tuple[float, float, float], took: bool
) -> str:
    """Say what the default would do, what looks may find, and what they cost."""
    alone, insured, price = expected
    better = np.maximum(known.final, 0.0).max(axis=1)
    lost = "nothing" if price < 5e-5 else f"{price:.4f} or less"
    said = (
        f"On {len(study.signals)} public data sets of this kind, with as much noise, the default "
        f"model reached {alone:.3f} on average. The best of the others was better by "
        f"{float(np.median(better)):.3f} (median), and by {float(better.max()):.3f} at most. To "
        f"compare {plan.strategy.trials} candidates by looks (trainings with a small part of the "
        f"budget) cost {lost} on nine data sets of ten, and reached {insured:.3f} on "
        "average."
    )
    if took and insured < alone:
        said += (
            f" That is {alone - insured:.4f} less than the default alone, the expected cost of a "
            "protection against data on which the default is a bad choice."
        )
    if took:
        return f"{said} So the default is trained, unless a look finds another well ahead."
    if not known.shrinkage > MIN_SHRINKAGE:
        return (
            f"{said} With so much noise a look tells next to nothing, so the default is trained "
            "alone."
        )
    return f"{said} So the default is trained alone: looks would lose more than they find."
