"""Strategy auto: plan `fixed` and `insured`, predict both from a public study, and choose one.

The predicted accuracy is a mean over the study's data sets of the same kind. The data set at hand
is left out. On each data set the accuracy is

    fixed       a_1(s)              a_e(s): accuracy of entry e of the portfolio at signal s
    insured     E[a_w(s_final)]     w: entry that `insured` selects by noisy scores at s_look

s is the signal-to-noise ratio of each training in the plan of that strategy: low-budget evaluations
and scores use a part of the budget. `insured` costs some accuracy if the default is the best model,
and gains if the default is a bad choice. It is chosen if the predicted loss is at most
`MAX_PREDICTED_LOSS`. Outside the measured range nothing is predicted, and the default is trained.

All inputs are public: schema, n, budget, device. The study is a file of this package.

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

SIMULATED_RUNS = 2000  # number of simulated runs on each data set for one prediction
MAX_SECONDS_ON_CPU = 3600.0  # maximum duration of a search that auto chooses on a CPU, seconds

MAX_PREDICTED_LOSS = 0.003
"""Maximum predicted loss of accuracy by low-budget evaluations, at the quantile `LOSS_QUANTILE`."""

LOSS_QUANTILE = 0.9  # quantile of the loss over the study's data sets

MIN_SHRINKAGE = 0.1
"""Minimum shrinkage factor for which low-budget evaluations are worth their cost."""

MAX_COMPARED_CANDIDATES = 5
"""Maximum number of candidates of `insured`; a portfolio has at most as many entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOption:
    """A strategy that auto compares with others.

    Args:
        name: Name of the strategy.
        settings: Settings for `search.strategy.make_strategy`.
    """

    name: str
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def winner(self) -> str:
        """Name of the winner's training in `result.json`: alone, or after an evaluation."""
        return "one training" if self == FIXED_OPTION else "trained anew"


FIXED_OPTION = StrategyOption(name="fixed")  # one training without a search


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyChoice:
    """The strategy that auto chose, with the reason.

    Args:
        option: Chosen strategy.
        plan: Plan of that strategy.
        why: Reason in a few sentences.
        expected: Predicted accuracy of every option that fits the budget.
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
    """Return the study of a kind of data, with its models ranked for a budget.

    Args:
        schema: Declared schema.
        name: Name of the data set, which is left out of the study.
        budget: Budget with known delta.
        n: Number of records.
        most: Maximum number of categories that are estimated for a column.
    """
    study = load_study(schema, name).rescale_to_classes(bound_network_form(schema, most)[1])
    return study.sort_by_accuracy(_approximate_signal(schema, budget, n, most))


def choose_look_settings(
    study: Study, schema: AnySchema, budget: Budget, n: int, most: int, *, ours: bool
) -> dict[str, float]:
    """Choose the budget fractions of `insured`, as settings of the strategy.

    Args:
        study: Study from `rank_study`.
        schema: Declared schema.
        budget: Budget with known delta.
        n: Number of records.
        most: Maximum number of categories that are estimated for a column.
        ours: Whether the space is the study's portfolio.
    """
    return choose_look_share(study, _approximate_signal(schema, budget, n, most), ours=ours)


def _approximate_signal(schema: AnySchema, budget: Budget, n: int, most: int) -> float:
    """Approximate log10 of the signal-to-noise ratio of a training with the whole budget."""
    sigma = calibration.calibrate_min(
        lambda value: Gaussian(noise_multiplier=value), budget, 0.02, 1e7
    )
    return compute_signal(1.0 / sigma, n, bound_network_form(schema, most)[1])


def choose_strategy(
    study: Study | None, make: Callable[[StrategyOption], Plan], *, count: int, device: str
) -> StrategyChoice:
    """Choose between `insured` and `fixed` by their predicted accuracy.

    Args:
        study: Study from `rank_study`; None for a space of the user, which was not measured.
        make: Function from an option to its plan; a BudgetError excludes the option.
        count: Number of candidates of the space.
        device: "cpu" or "cuda"; on a CPU `MAX_SECONDS_ON_CPU` limits the search.

    Raises:
        BudgetError: Not even `fixed` fits the budget.
    """
    fixed = make(FIXED_OPTION)

    def choose_default(why: str) -> StrategyChoice:
        return StrategyChoice(
            option=FIXED_OPTION, plan=fixed, why=f"{why} So one good default is trained."
        )

    if study is not None:
        outputs, features = (
            bound_network_form(fixed.schema, fixed.most)[1],
            count_features(fixed.schema),
        )
        if outside := study.describe_extrapolation(
            _signal_of_training(fixed, fixed.trial_mu), outputs, features
        ):
            return choose_default(f"No prediction: {outside}")
    looks = min(count, MAX_COMPARED_CANDIDATES)
    if not looks > 1:
        return choose_default("The space has a single candidate.")
    option = StrategyOption(name=ProtectedHalving.name, settings=(("candidates", looks),))
    try:
        plan = make(option)
    except BudgetError:
        return choose_default("Low-budget evaluations of other candidates do not fit this budget.")
    if device == "cpu" and plan.seconds_per_training()[0] * (looks + 1) > MAX_SECONDS_ON_CPU:
        return choose_default("Low-budget evaluations of other candidates would take over an hour.")
    if study is None:
        why = (
            f"This space was not measured on public data. Its default is trained unless a "
            f"low-budget evaluation finds one of {looks - 1} others clearly better."
        )
        return StrategyChoice(option=option, plan=plan, why=why)
    return _compare_predictions(study, fixed, plan, option)


def _compare_predictions(
    study: Study, fixed: Plan, plan: Plan, option: StrategyOption
) -> StrategyChoice:
    """Choose between the plans of `fixed` and of `insured` (`plan`, `option`), with a reason."""
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
    loss = max(0.0, float(np.quantile(before - after, LOSS_QUANTILE)))
    is_chosen = (
        loss <= MAX_PREDICTED_LOSS
        and insured > alone - MAX_PREDICTED_LOSS
        and known.shrinkage > MIN_SHRINKAGE
    )
    better = np.maximum(known.final, 0.0).max(axis=1)
    lost = "nothing" if loss < 5e-5 else f"{loss:.4f} or less"
    why = (
        f"On {len(study.signals)} public data sets of this kind, at the same noise, the default "
        f"model reached accuracy {alone:.3f} on average. The best other model was better by "
        f"{float(np.median(better)):.3f} (median) and at most {float(better.max()):.3f}. "
        f"Low-budget evaluation of {plan.strategy.trials} candidates cost {lost} on 9 of "
        f"10 data sets, and reached {insured:.3f} on average."
    )
    if is_chosen and insured < alone:
        why += (
            f" That is {alone - insured:.4f} less than the default alone: the expected cost of "
            "protection against data for which the default is a bad choice."
        )
    if is_chosen:
        why += " So the default is trained unless an evaluation finds another clearly better."
    elif not known.shrinkage > MIN_SHRINKAGE:
        why += (
            " At this noise a low-budget evaluation has almost no information, so only the default "
            "is trained."
        )
    else:
        why += " So only the default is trained: evaluations would cost more than they gain."
    chosen = (option, plan) if is_chosen else (FIXED_OPTION, fixed)
    return StrategyChoice(option=chosen[0], plan=chosen[1], why=why, expected=expected)


def _signal_of_training(plan: Plan, mu: float | None) -> float:
    """Return log10 of the signal-to-noise ratio of a training with mu (Gaussian DP)."""
    assert mu is not None
    slots = plan.split.trial_size
    return compute_signal(mu, slots, bound_network_form(plan.schema, plan.most)[1])


def predict_default_accuracy(study: Study, plan: Plan) -> float:
    """Predict the accuracy of the study's first entry with strategy `fixed`."""
    return float(study.accuracy_at(_signal_of_training(plan, plan.trial_mu))[:, 0].mean())


def predict_accuracy(study: Study, plan: Plan) -> float:
    """Predict the accuracy of a plan of `insured`, by simulated runs on the study's data sets.

    For each data set, the rule of `insured` is estimated from the other data sets (leave-one-out).

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
