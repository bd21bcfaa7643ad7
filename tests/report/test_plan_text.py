"""The plan as text: what a person must see before anything is read."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pasearch.accounting.budget import Budget
from pasearch.api.search import plan_architecture_search
from pasearch.data.column import Column
from pasearch.data.tables import TableSchema
from pasearch.report.plan import plan_text, task_of
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
    (found,) = (line for line in plan_text(plan).splitlines() if line.startswith(f"{name} "))
    return found


@pytest.mark.unit
def test_what_is_estimated_is_a_line_and_a_sentence():
    text = plan_text(planned())
    assert "  schema, 2 times             test" in text
    assert "a leak (delta " in text
    assert (
        "Undeclared, so estimated privately on `test` before the first training: bounds, target."
        in text
    )
    assert "estimated_privately" not in plan_text(planned(bounds=(0, 1), classes=2))


@pytest.mark.unit
def test_a_partition_with_several_lines_shows_its_price_as_a_sum():
    plan = planned()
    lines = [line for line in plan_text(plan).splitlines() if line.startswith("  ")]
    first, last = (line for line in lines if " test" in line and not line.startswith("      "))
    assert first.endswith(" test")
    assert last.endswith("PLD, together")


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
    assert row(planned(), "Model").endswith(", fixed beforehand: nothing is searched")
    for word in ("Strategy ", "Winner ", "Space "):
        assert f"\n{word}" not in text
        assert f"\n{word}" in plan_text(planned(strategy="rs"))
        assert f"\n{word}" in plan_text(planned(strategy="auto", space="auto"))
    assert "; each gradient clipped to norm 0.25; SGD with momentum 0.9, weights averaged" in text


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "changes", "task"),
    [
        ({}, {}, "training"),
        ({"strategy": "rs"}, {}, "architecture search"),
        ({"strategy": "auto", "space": "auto"}, {}, "architecture search"),
        ({}, {"searched_on": "others"}, "architecture search"),
    ],
)
def test_what_is_chosen_is_a_search(options: dict[str, Any], changes: dict[str, Any], task: str):
    assert task_of(replace(planned(**options), **changes)) == task


@pytest.mark.unit
def test_where_it_was_searched_and_what_is_assumed():
    plan = replace(planned(bounds=(0, 1), classes=2), searched_on="others")
    assert "searched on the public data others, which costs nothing" in row(plan, "Winner")
    assumed = replace(plan, assumed_public=("age", "city"), searched_on=None)
    assert "Warning: not charged, because you say it is public: age, city." in plan_text(assumed)


@pytest.mark.unit
def test_a_fitted_front_end_is_a_line():
    class Space(dict):
        def __hash__(self) -> int:  # type: ignore[override]
            return id(self)

    plan = planned(space=Space(choices={"front_end": ["pca:2"]}))
    assert "  front end pca:2             train" in plan_text(plan)


@pytest.mark.unit
def test_the_time_of_one_training_is_no_average(monkeypatch: pytest.MonkeyPatch):
    assert row(planned(), "Time") == "Time      about 1 s on this kind of CPU"
    assert "on average" in row(planned(strategy="rs"), "Time")


@pytest.mark.unit
def test_an_undeclared_table_is_described_by_its_columns():
    table = TableSchema(
        columns=(Column(name="age", low=0, high=9), Column(name="b")), target=Column(name="c")
    )
    assert row(replace(planned(), schema=table), "Data") == "Data      arrays: 2 columns, classes"


@pytest.mark.unit
def test_a_score_is_unknown_beforehand_and_never_promised():
    told = "unknown until it is measured, with noise, on"
    plan = planned(strategy="auto", space="auto")
    assert told in row(plan, "Score")
    assert "on public data" not in row(planned(), "Score")
    auto = {"chosen": "a, b", "why": "", "expected": [
        {"strategy": "a", "winner": "b", "expected": 0.87}]}  # fmt: skip
    said = row(replace(plan, auto=auto), "Score")
    assert said.endswith("; models like it reached about 0.87 on public data")
    assert told in said


@pytest.mark.contract
def test_the_first_line_is_the_budget_and_the_last_the_price():
    for plan in (planned(), planned(strategy="rs"), planned(strategy="auto", space="auto")):
        lines = plan_text(plan).splitlines()
        assert lines[0].startswith("Budget: epsilon 1, delta 0.001, for everything")
        assert lines[-1].startswith(f"Price: epsilon {plan.price.epsilon:.4f} at delta 0.001")


@pytest.mark.unit
def test_in_brief_it_says_what_is_released_and_not_how_the_noise_comes_about():
    for way in ("fixed", "rs"):
        plan = planned(strategy=way)
        summary, brief = plan_text(plan, detail="summary"), plan_text(plan, detail="prices")
        whole = plan_text(plan)
        assert len(summary.splitlines()) < len(brief.splitlines()) < len(whole.splitlines())
        for line in plan.lines:
            assert f"\n  {line.name}" in brief
            assert f"\n  {line.name}" not in summary
        for line in ("Budget: ", "Records ", "Model ", "Score ", "Warning: ", "Price: "):
            assert line in summary
            assert line in brief
        assert "Gaussian noise (multiplier" in whole
        assert "Gaussian noise (multiplier" not in brief
