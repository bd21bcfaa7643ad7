"""auto: what it predicts, what it takes, and that it looks at nothing but form and budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from doubles import Untouchable

from pasearch.accounting.budget import Budget
from pasearch.api.search import plan_architecture_search
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import Split
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.mechanisms import NoisyCount
from pasearch.search.auto import (
    FIXED_OPTION,
    MAX_COMPARED_CANDIDATES,
    MAX_PREDICTED_LOSS,
    MAX_SECONDS_ON_CPU,
    StrategyOption,
    choose_strategy,
    predict_accuracy,
    predict_default_accuracy,
)
from pasearch.search.plan import Plan
from pasearch.search.strategy import make_strategy
from pasearch.spaces import portfolio
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.portfolio import Study, compute_signal
from pasearch.training.metrics import METRICS

SCHEMA = Schema(shape=(5,), low=0.0, high=1.0, classes=2)


def unreadable(name: str = "people", n: int = 1000, schema: Schema = SCHEMA) -> Dataset:
    return Dataset(
        name=name,
        schema=schema,
        features=Untouchable((n, *schema.shape), "f8"),  # type: ignore[arg-type]
        labels=Untouchable((n,), "i8"),  # type: ignore[arg-type]
    )


@cache
def planned(name: str = "people", epsilon: float = 1.0) -> Plan:
    return plan_architecture_search(unreadable(name), budget=Budget(epsilon), steps=5)


def entry(units: int) -> Candidate:
    return Candidate(architecture=Architecture(layers=(Dense(units=units),)))


def study(*curves: list[list[float]], signals: tuple[float, ...] = (0.0, 1.0, 2.0)) -> Study:
    """A study of as many data sets as curves: of each, one row an entry."""
    entries = tuple(entry(2 + number) for number in range(len(curves[0])))
    names = [f"set {number}" for number in range(len(curves))]
    return Study(
        kind="arrays",
        entries=entries,
        signals={name: np.array(signals) for name in names},
        accuracy={name: np.array(rows) for name, rows in zip(names, curves, strict=True)},
    )


@dataclass
class Pretended:
    """What auto asks of a plan, without the work of solving one."""

    strategy: Any
    trial_mu: float = 2e-3
    final_mu: float | None = None
    score: Any = field(default_factory=lambda: NoisyCount(epsilon=20.0))
    split: Split = field(default_factory=lambda: Split(train=10**5, test=10))
    seconds: float = 1.0
    schema: Schema = SCHEMA
    most: int = 32
    ranking_metric: Any = METRICS["accuracy"]
    score_slots: int = 10**6

    def seconds_per_training(self) -> tuple[float, float, float]:
        return self.seconds, self.seconds, self.seconds


def pretend(**changes: Any) -> Callable[[StrategyOption], Any]:
    """Return plans in which looks have a tenth of the signal, unless it is said otherwise."""

    def make(option: StrategyOption) -> Pretended:
        own = make_strategy(option.name, **dict(option.settings))
        if option == FIXED_OPTION:
            values = {name: changes[name] for name in ("schema", "seconds") if name in changes}
            return Pretended(strategy=own, trial_mu=changes.get("whole", 2e-3), **values)
        given = {name: value for name, value in changes.items() if name != "whole"}
        own = replace(own, looks=0.01 * own.candidates)
        return Pretended(**{"strategy": own, "final_mu": 1.9e-3, **given})

    return make


def chosen(of: Study | None, device: str = "cpu", count: int | None = None, **changes: Any):
    many = count if of is None or count is not None else len(of.entries)
    return choose_strategy(of, pretend(**changes), count=many or 1, device=device)


def made(of: Study, **changes: Any) -> Any:
    return pretend(**changes)(
        StrategyOption(name="insured", settings=(("candidates", len(of.entries)),))
    )


MIXED = study(
    [[0.5, 0.7, 0.8], [0.5, 0.6, 0.7]], [[0.5, 0.7, 0.8], [0.5, 0.6, 0.7]],
    [[0.5, 0.6, 0.6], [0.5, 0.8, 0.9]], [[0.5, 0.6, 0.6], [0.5, 0.8, 0.9]],
)  # fmt: skip
"""A study in which each entry is right on half of the data sets, and a look tells which."""


class TestPredicted:
    @pytest.mark.unit
    def test_fixed_is_the_first_entry_at_the_plans_signal(self):
        of = study([[0.1, 0.5, 0.9], [0.2, 0.2, 0.2]], [[0.3, 0.7, 0.9], [0.2, 0.2, 0.2]])
        assert compute_signal(2e-4, 10**5, 2) == pytest.approx(1.0)
        plan = pretend(whole=2e-4)(FIXED_OPTION)
        assert predict_default_accuracy(of, plan) == pytest.approx(0.6)

    @pytest.mark.unit
    def test_looks_without_noise_find_the_entry_that_is_right(self):
        assert predict_accuracy(MIXED, made(MIXED)) == pytest.approx(0.85, abs=0.02)

    @pytest.mark.unit
    @pytest.mark.parametrize("deaf", ["noise", "sample"])
    def test_scores_that_say_nothing_keep_the_default(self, deaf: str):
        slots = 1 if deaf == "sample" else 10**6
        score = NoisyCount(epsilon=1e-8 if deaf == "noise" else 20.0)
        of = study(*([[0.5, 0.7, 0.8], [0.5, 0.6, 0.7]],) * 3, [[0.5, 0.6, 0.6], [0.5, 0.62, 0.65]])
        found = predict_accuracy(of, made(of, score_slots=slots, score=score))
        assert found == pytest.approx(
            predict_default_accuracy(of, pretend(whole=1.9e-3)(FIXED_OPTION)), abs=0.01
        )

    @pytest.mark.unit
    def test_the_winner_is_worth_what_it_reaches_in_the_final_training(self):
        # At a look the second entry leads, in the end it is poor: everywhere, so that is known.
        of = study(*([[0.5, 0.5, 0.9], [0.5, 0.8, 0.3]],) * 3)
        assert predict_accuracy(of, made(of)) == pytest.approx(0.9, abs=0.02)


class TestChoose:
    @pytest.mark.unit
    def test_looks_that_find_something_are_taken(self):
        choice = chosen(MIXED)
        assert choice.option.name == "insured"
        assert choice.plan.strategy.candidates == 2  # type: ignore[attr-defined]
        assert "unless an evaluation finds another clearly better" in choice.why
        assert [each["strategy"] for each in choice.expected] == ["fixed", "insured"]

    @pytest.mark.unit
    def test_looks_that_cost_more_than_they_may_are_not(self):
        steep = study(
            *([[0.2, 0.5, 0.8], [0.2, 0.45, 0.7]],) * 3, [[0.2, 0.5, 0.8], [0.2, 0.5, 0.8]]
        )
        cheap, dear = chosen(steep, final_mu=2e-3), chosen(steep, final_mu=1.5e-3)
        assert dear.option == FIXED_OPTION
        assert dear.expected[1]["expected"] < dear.expected[0]["expected"] - MAX_PREDICTED_LOSS
        assert "cost more than they gain" in dear.why
        assert cheap.option.name == "insured"

    @pytest.mark.unit
    def test_a_look_that_tells_nothing_is_not_paid_for(self):
        flat = study([[0.7] * 3, [0.6] * 3], [[0.7] * 3, [0.6] * 3])
        choice = chosen(flat)
        assert choice.option == FIXED_OPTION
        assert "has almost no information" in choice.why

    @pytest.mark.unit
    def test_a_record_wider_than_any_that_was_measured_is_not_searched_on_a_promise(self):
        narrow = replace(MIXED, features={name: 2 for name in MIXED.signals})
        choice = chosen(narrow)
        assert choice.option == FIXED_OPTION
        assert "a record has 5 values; the study has data sets with at most 2" in choice.why
        wide = replace(MIXED, features={name: 3 for name in MIXED.signals})
        assert "a record has" not in chosen(wide).why
        table = replace(narrow, kind="table")
        assert "pasearch features" in chosen(table).why

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("whole", "side"), [(2e-9, "is below the range"), (20.0, "is above the range")]
    )
    def test_outside_the_signals_that_were_measured_nothing_is_predicted(
        self, whole: float, side: str
    ):
        choice = chosen(MIXED, whole=whole)
        assert choice.option == FIXED_OPTION
        assert choice.expected == ()
        assert side in choice.why
        assert "No prediction" in choice.why

    @pytest.mark.unit
    def test_nor_among_many_more_classes(self):
        of = replace(MIXED, classes=dict.fromkeys(MIXED.signals, 2))
        many = Schema(shape=(5,), low=0.0, high=1.0, classes=30)
        choice = chosen(of, schema=many, whole=3e-2)
        assert choice.option == FIXED_OPTION
        assert "30 classes" in choice.why

    @pytest.mark.unit
    def test_what_the_budget_does_not_buy_is_left_out(self):
        def poor(option: StrategyOption) -> Any:
            if option != FIXED_OPTION:
                raise BudgetError("too little")
            return pretend()(option)

        choice = choose_strategy(MIXED, poor, count=2, device="cpu")
        assert choice.option == FIXED_OPTION
        assert "do not fit this budget" in choice.why

    @pytest.mark.unit
    def test_when_nothing_fits_the_budget_it_says_so(self):
        def none(option: StrategyOption) -> Any:
            raise BudgetError("the least that it can cost is epsilon 7.")

        with pytest.raises(BudgetError, match="epsilon 7"):
            choose_strategy(MIXED, none, count=2, device="cpu")

    @pytest.mark.unit
    def test_on_a_cpu_what_takes_too_long_is_left_out(self):
        assert chosen(MIXED, seconds=MAX_SECONDS_ON_CPU / 2).option == FIXED_OPTION
        assert chosen(MIXED, seconds=MAX_SECONDS_ON_CPU / 2, device="cuda").option.name == "insured"

    @pytest.mark.unit
    def test_of_a_space_that_nobody_measured_the_default_is_insured(self):
        choice = chosen(None, count=50)
        assert choice.option.name == "insured"
        assert choice.plan.strategy.candidates == MAX_COMPARED_CANDIDATES  # type: ignore[attr-defined]
        assert "was not measured on public data" in choice.why
        assert chosen(None, count=1).option == FIXED_OPTION

    @pytest.mark.unit
    def test_its_reasons_are_plain_values(self):
        for of in (MIXED, None):
            values = chosen(of, count=2).to_json()
            assert json.loads(json.dumps(values, allow_nan=False)) == values
            assert set(values) == {"chosen", "why", "expected"}


class TestAmong:
    @pytest.mark.unit
    def test_what_is_above_guessing_stays_the_same_share(self):
        of = replace(study([[0.5, 0.75, 1.0]]), classes={"set 0": 2}).rescale_to_classes(11)
        assert of.accuracy["set 0"][0].tolist() == pytest.approx([1 / 11, 6 / 11, 1.0])

    @pytest.mark.unit
    def test_a_number_is_no_class(self):
        of = replace(study([[0.5, 0.75, 1.0]]), classes={"set 0": 1})
        assert of.rescale_to_classes(1).accuracy["set 0"].tolist() == of.accuracy["set 0"].tolist()


class TestThroughThePlan:
    @pytest.mark.contract
    def test_reads_no_record(self):
        plan = planned()
        assert plan.auto is not None
        assert plan.price.epsilon <= 1.0
        assert plan.to_json()["auto"] == plan.auto

    @pytest.mark.unit
    def test_is_deterministic(self):
        again = plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5)
        assert again.to_json() == planned().to_json()

    @pytest.mark.unit
    def test_the_data_at_hand_are_no_part_of_their_own_prediction(self):
        for name in portfolio._read_studies()["arrays"].signals:
            mine, others = planned(name).auto, planned().auto
            assert mine is not None
            assert others is not None
            assert "On 3 public data sets" in mine["why"]
            assert "On 4 public data sets" in others["why"]

    @pytest.mark.unit
    def test_nor_of_the_order_of_the_portfolio(self, monkeypatch: pytest.MonkeyPatch):
        own = study([[0.1] * 3, [0.9] * 3], [[0.5] * 3, [0.4] * 3])
        monkeypatch.setattr(portfolio, "_read_studies", lambda: {"arrays": own})
        for name, first in (("set 0", entry(2)), ("set 1", entry(3)), ("other", entry(3))):
            plan = plan_architecture_search(
                unreadable(name), budget=Budget(1.0), strategy="fixed", steps=5
            )
            assert plan.space.candidate(plan.space.default_genotype()) == first

    @pytest.mark.unit
    def test_fixed_trains_the_entry_that_is_best_at_this_budget(self, monkeypatch):
        crossing = study([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9]], signals=(-2.0, 1.5, 5.0))
        monkeypatch.setattr(portfolio, "_read_studies", lambda: {"arrays": crossing})
        for epsilon, first in ((0.01, entry(2)), (50.0, entry(3))):
            plan = plan_architecture_search(
                unreadable(), budget=Budget(epsilon), strategy="fixed", steps=5
            )
            assert plan.space.candidate(plan.space.default_genotype()) == first

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("more", "word"),
        [
            ({"candidates": 4}, "`candidates=`"),
            ({"generations": 2}, "`generations=`"),
            ({"law": "poisson"}, "`law=`"),
            ({"max_candidates": 9}, "`max_candidates=`"),
            ({"search_share": 0.2}, "`search_share=`"),
            ({"score_epsilon": 0.1}, "`score_epsilon=`"),
        ],
    )
    def test_settings_of_one_strategy_are_refused(self, more: dict, word: str):
        with pytest.raises(UsageError, match=f"^{word}: with strategy auto"):
            plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5, **more)

    @pytest.mark.unit
    def test_a_preset_names_its_strategy(self):
        plan = plan_architecture_search(
            unreadable(), budget=Budget(5.0), steps=5, strategy="paas-paper"
        )
        assert (plan.strategy.name, plan.auto) == ("paas", None)

    @pytest.mark.unit
    def test_the_space_may_be_named_and_the_strategy_left_to_auto(self):
        space = {"name": "mine", "choices": {"units_1": [2, 4]}}
        plan = plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5, space=space)
        assert (plan.space.name, plan.auto is not None) == ("mine", True)


def test_a_pretended_plan_has_what_a_genuine_one_has():
    """The doubles above stay honest: auto asks a plan for nothing that they lack."""
    genuine = plan_architecture_search(
        unreadable(), budget=Budget(1.0), strategy="insured", candidates=2, steps=5
    )
    values = {name: getattr(genuine, name) for name in Pretended.__dataclass_fields__
              if name != "seconds"}  # fmt: skip
    assert 0.0 < predict_accuracy(MIXED, Pretended(**values)) < 1.0  # type: ignore[arg-type]
