"""The plan as text: what a person must see before anything is read."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pasearch.accounting.budget import Budget
from pasearch.api.search import plan_architecture_search
from pasearch.plan_warnings import NOISE_PHRASE
from pasearch.report import wording
from pasearch.report.plan import describe_ledger, plan_text
from pasearch.runs.shared_ledger import Forecast
from pasearch.search.plan import Plan

SPACE = {"name": "small", "choices": {"units_1": [4, 8]}}


@cache
def planned(epsilon: float = 1.0, **options: Any) -> Plan:
    settings = {"strategy": "fixed", "steps": 5, "batch": 20, "device": "cpu", **options}
    if "space" not in settings:
        settings["space"] = SPACE
    data = np.zeros((300, 4)), np.zeros(300, int)
    return plan_architecture_search(data, budget=Budget(epsilon), **settings)


def row(plan: Plan, name: str) -> str:
    (found,) = (line for line in plan_text(plan).splitlines() if line.startswith(f"{name:<10}"))
    return found


@pytest.mark.unit
def test_why_auto_took_a_strategy_is_there_with_every_prediction():
    plan = planned(strategy="auto", space="auto")
    assert plan.auto is not None
    why = row(plan, "Why")
    assert plan.auto["why"] in why
    for each in plan.auto["expected"]:
        assert f"{each['strategy']}" in why
        assert f"{each['expected']:.3f}" in why
    assert "Why " not in plan_text(planned())
    assert "Hint: " not in plan_text(plan), "auto has said so already"
    assert "Hint: " in plan_text(planned(strategy="rs"))


@pytest.mark.unit
def test_a_training_names_its_network_and_no_search():
    text = plan_text(planned())
    assert row(planned(), "Model") == "Model     MLP with 4 tanh units (data-independent choice)"
    chosen = row(planned(strategy="auto", space="auto"), "Model")
    assert chosen.endswith("no search: not predicted to improve accuracy at this budget)")
    assert row(planned(strategy="rs"), "Model") == (
        "Model     best of 2 candidates, selected by strategy rs"
    )
    for word in ("Strategy ", "Winner ", "Space "):
        assert f"\n{word}" not in text
        assert f"\n{word}" in plan_text(planned(strategy="rs"))
        assert f"\n{word}" in plan_text(planned(strategy="auto", space="auto"))
    assert "; each gradient clipped to norm 0.25; SGD with momentum 0.9, weights averaged" in text


UNKNOWN = "Score     test accuracy: not yet measured (noisy, on 30 test records)."
AUTO = {
    "chosen": "a, b", "why": "", "expected": [{"strategy": "a", "winner": "b", "expected": 0.87}],
}  # fmt: skip


@pytest.mark.unit
def test_quality_is_unknown_beforehand_and_never_promised():
    assert row(planned(epsilon=4.0), "Score") == UNKNOWN
    plan = replace(planned(epsilon=4.0, bounds=(0, 1), classes=2), auto=AUTO, warnings=())
    assert row(plan, "Score") == (
        f"{UNKNOWN} Mean accuracy of such models on other, public data sets: 87 % (yours may "
        "differ)."
    )


@pytest.mark.unit
def test_public_data_let_expect_nothing_of_other_scores_or_classes_or_of_noise():
    plan = replace(planned(epsilon=4.0, bounds=(0, 1), classes=2), auto=AUTO, warnings=())
    noise = (f"300 training records {NOISE_PHRASE}.",)
    for other in (
        replace(plan, metric="auc"),
        replace(plan, warnings=noise),
        replace(plan, auto={**AUTO, "chosen": "c, d"}),
        replace(planned(epsilon=4.0), auto=AUTO),
    ):
        noun = other.score_metric.noun
        assert row(other, "Score") == UNKNOWN.replace("accuracy", noun)


@pytest.mark.unit
def test_a_giant_epsilon_is_said_to_protect_nobody_and_overflows_nowhere():
    for epsilon in [1000.0, 1e9]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan = planned(epsilon=epsilon, bounds=(0, 1), classes=2)
            text = plan_text(plan)
        assert "No protection. Membership inference bound" in row(plan, "Privacy")
        assert f"Warning: epsilon {epsilon:g} gives almost no protection" in text
        weak = plan_text(planned(epsilon=2.0, bounds=(0, 1), classes=2))
        assert "almost no protection" not in weak


@pytest.mark.contract
def test_the_first_line_is_the_budget_and_the_last_the_price():
    for plan in (planned(), planned(strategy="rs"), planned(strategy="auto", space="auto")):
        lines = plan_text(plan).splitlines()
        assert lines[0].startswith("Budget: epsilon 1, delta 0.001, for everything")
        assert lines[-1].startswith(f"Privacy cost: epsilon {plan.price.epsilon:.4f}, delta 0.001")


@pytest.mark.unit
def test_in_brief_it_says_what_is_released_and_not_how_the_noise_comes_about():
    for way in ("fixed", "rs"):
        plan = planned(strategy=way)
        summary, brief = plan_text(plan, detail="summary"), plan_text(plan, detail="prices")
        whole = plan_text(plan)
        assert len(summary.splitlines()) < len(brief.splitlines()) < len(whole.splitlines())
        for line in plan.lines:
            name = wording.release_name(line.name, plan.score_metric.noun, line.count)
            assert f"\n  {name}" in brief
            assert f"\n  {name}" not in summary
        for line in ("Budget: ", "Data ", "Model ", "Score ", "Privacy ", "Warning: "):
            assert f"\n{line}" in f"\n{summary}"
            assert f"\n{line}" in f"\n{brief}"
        for line in ("Records ", "Privacy cost: "):
            assert f"\n{line}" not in summary
            assert f"\n{line}" in brief
        assert "Gaussian noise (multiplier" in whole
        assert "Gaussian noise (multiplier" not in brief


@pytest.mark.unit
def test_a_plan_says_what_it_costs_in_the_ledger_and_what_is_left():
    found = Forecast(total=Budget(4.5, 1e-4), before=2.0, count=1, alone=1.0, after=3.2, left=1.25)
    plan = planned(bounds=(0, 1), classes=2)
    text = plan_text(plan, detail="summary", ledger=describe_ledger("people.ledger", found))
    assert (
        "Ledger    people.ledger: 1 previous run: epsilon 2; this run: 1; total: 3.2. Budget of "
        "all runs: epsilon 4.5 at delta 0.0001. Remaining budget after this run: a run of about "
        "epsilon 1.2." in text
    )
    assert "Remaining budget after this run: none for another run." in describe_ledger(
        "x", replace(found, left=0.0)
    )
    refused = describe_ledger("x", replace(found, after=4.6, left=0.0))
    assert "total: 4.6" in refused
    assert "The total exceeds this budget: the run will be refused." in refused
    assert "x does not exist yet." in describe_ledger("x", None)
    assert "Ledger " not in plan_text(plan)
