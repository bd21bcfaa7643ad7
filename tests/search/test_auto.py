"""auto: what it predicts, what it takes, and that it looks at nothing but form and budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
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
from pasearch.search.auto import GAIN, PATIENCE, RETRAINED_SHARE, Option, choose, options, predicted
from pasearch.search.plan import Plan
from pasearch.search.strategies import strategy
from pasearch.search.strategy import STRATEGIES, Strategy
from pasearch.spaces import portfolio
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.portfolio import Study, signal_of

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


def flat(*accuracies: float) -> Study:
    """A study in which noise changes nothing."""
    return study([[each] * 3 for each in accuracies])


@dataclass
class Pretended:
    """What auto asks of a plan, without the work of solving one."""

    trial_mu: float = 0.1
    final_mu: float | None = None
    score: Any = field(default_factory=lambda: NoisyCount(epsilon=20.0))
    split: Split = field(default_factory=lambda: Split(train=10**5, validation=10**6, test=10))
    seconds: float = 1.0
    schema: Schema = SCHEMA
    most: int = 32
    points_each: int = 1

    @property
    def retrained(self) -> bool:
        return self.final_mu is not None

    def seconds_per_training(self) -> tuple[float, float]:
        return self.seconds, self.seconds


def pretend(plan_of: Callable[[Option], Pretended]) -> Callable[[Option], Any]:
    def make(option: Option) -> tuple[Pretended, Strategy]:
        return plan_of(option), strategy(option.name, **dict(option.settings))

    return make


def chosen(of: Study, plan_of: Callable[[Option], Pretended], device: str = "cpu"):
    return choose(of, pretend(plan_of), device=device)


class TestPredicted:
    @pytest.mark.unit
    def test_fixed_is_the_first_entry_at_the_plans_signal(self):
        of = study([[0.1, 0.5, 0.9], [0.2, 0.2, 0.2]], [[0.3, 0.7, 0.9], [0.2, 0.2, 0.2]])
        plan = Pretended(trial_mu=2e-4)
        assert signal_of(2e-4, 10**5, 2) == pytest.approx(1.0)
        assert predicted(of, plan, strategy("fixed")) == pytest.approx(0.6)  # type: ignore[arg-type]

    @pytest.mark.unit
    @pytest.mark.parametrize("count", [1, 2, 8])
    def test_a_search_without_noise_finds_the_best_it_drew(self, count: int):
        paas = strategy("paas", candidates=count, generations=1)
        found = predicted(flat(0.2, 0.9), Pretended(), paas)  # type: ignore[arg-type]
        assert found == pytest.approx(0.9 - 0.7 / 2**count, abs=0.03)

    @pytest.mark.unit
    def test_the_number_of_candidates_follows_the_law(self):
        found = predicted(flat(0.2, 0.9), Pretended(), strategy("rs", candidates=5))  # type: ignore[arg-type]
        # K geometric with mean 5: E[2^-K] = 1/6.
        assert found == pytest.approx(0.9 - 0.7 / 6, abs=0.03)
        assert abs(found - (0.9 - 0.7 / 32)) > 0.06, "as if K were always 5"

    @pytest.mark.unit
    @pytest.mark.parametrize("deaf", ["noise", "sample"])
    def test_scores_that_say_nothing_choose_at_random(self, deaf: str):
        paas = strategy("paas", candidates=8, generations=1)
        split = Split(train=10**5, validation=1 if deaf == "sample" else 10**6, test=10)
        score = NoisyCount(epsilon=1e-8 if deaf == "noise" else 20.0)
        found = predicted(flat(0.45, 0.55), Pretended(split=split, score=score), paas)  # type: ignore[arg-type]
        assert found == pytest.approx(0.5, abs=0.02 if deaf == "noise" else 0.04)

    @pytest.mark.unit
    def test_retrained_the_winner_is_worth_what_it_reaches_with_its_own_training(self):
        # Where the search trains, the first entry leads; where the winner is trained, it is poor.
        of = study([[0.9, 0.9, 0.3], [0.5, 0.5, 0.8]])
        plan = Pretended(trial_mu=2e-5, final_mu=2e-3)
        paas = strategy("paas", candidates=12, generations=1)
        assert predicted(of, plan, paas) == pytest.approx(0.3, abs=0.02)  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_the_same_plan_has_the_same_prediction(self):
        of, rs = study([[0.3, 0.5, 0.6], [0.2, 0.6, 0.7]]), strategy("rs", candidates=5)
        plan = Pretended(score=NoisyCount(epsilon=0.01))
        assert len({predicted(of, plan, rs) for _ in range(3)}) == 1  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_global_generators_are_left_alone(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        predicted(flat(0.2, 0.9), Pretended(), strategy("rs"))  # type: ignore[arg-type]
        assert (before == np.random.get_state()[1]).all()  # noqa: NPY002


class TestChoose:
    @pytest.mark.unit
    def test_ties_go_to_fixed(self):
        choice = chosen(flat(0.7, 0.7, 0.7), lambda option: Pretended())
        assert choice.option.name == "fixed"
        assert {each["expected"] for each in choice.expected} == {0.7}
        assert choice.why.startswith("Do not search: none is predicted to gain")
        losing = chosen(flat(0.7, 0.5, 0.5), lambda option: Pretended())
        assert losing.why.startswith("Do not search: n is too small")

    @pytest.mark.unit
    def test_a_gain_within_the_studys_error_goes_to_fixed_too(self):
        gains = {0.9 * GAIN: "fixed", 3 * GAIN: "paas"}
        for gain, name in gains.items():
            assert chosen(flat(0.5, 0.5 + gain), lambda _: Pretended()).option.name in (name, "rs")
        assert chosen(flat(0.5, 0.5 + 0.9 * GAIN), lambda _: Pretended()).option.name == "fixed"

    @pytest.mark.unit
    def test_a_search_that_pays_is_taken(self):
        choice = chosen(flat(0.2, 0.9, 0.9), lambda option: Pretended())
        assert choice.option.name != "fixed"
        best = max(choice.expected, key=lambda each: each["expected"])
        assert (best["strategy"], best["winner"]) == (choice.option.name, choice.option.winner)
        assert choice.strategy.name == choice.option.name
        assert "is predicted to reach" in choice.why

    @pytest.mark.unit
    def test_a_search_that_loses_more_signal_than_it_finds_is_not(self):
        of = study([[0.1, 0.5, 0.9], [0.2, 0.55, 0.91]])
        signals = {"fixed": 2e-3}
        choice = chosen(of, lambda option: Pretended(trial_mu=signals.get(option.name, 2e-4)))
        assert choice.option.name == "fixed"

    @pytest.mark.unit
    def test_what_the_budget_does_not_buy_is_left_out(self):
        def poor(option: Option) -> Pretended:
            if option.name in ("rs", "mgrs"):
                raise BudgetError("too little")
            return Pretended()

        choice = chosen(flat(0.2, 0.9), poor)
        assert {each["strategy"] for each in choice.expected} == {"fixed", "paas"}

        def poorer(option: Option) -> Pretended:
            if option.name != "fixed":
                raise BudgetError("too little")
            return Pretended()

        choice = chosen(flat(0.2, 0.9), poorer)
        assert choice.option.name == "fixed"
        assert choice.why.startswith("No search fits this budget")

    @pytest.mark.unit
    def test_when_nothing_fits_the_budget_it_says_so(self):
        def none(option: Option) -> Pretended:
            raise BudgetError("the least that it can cost is epsilon 7.")

        with pytest.raises(BudgetError, match="epsilon 7"):
            chosen(flat(0.2, 0.9), none)

    @pytest.mark.unit
    def test_on_a_cpu_what_takes_too_long_is_left_out(self):
        def slow(option: Option) -> Pretended:
            return Pretended(seconds=PATIENCE / 6)

        assert {each["strategy"] for each in chosen(flat(0.2, 0.9), slow).expected} == {
            "fixed", "rs",
        }  # fmt: skip
        cuda = {each["strategy"] for each in chosen(flat(0.2, 0.9), slow, "cuda").expected}
        assert cuda == {"fixed", "rs", "mgrs", "paas"}
        endless = chosen(flat(0.2, 0.9), lambda _: Pretended(seconds=100 * PATIENCE))
        assert [each["strategy"] for each in endless.expected] == ["fixed"], "it is never left out"

    @pytest.mark.contract
    def test_every_private_search_is_compared_its_winner_kept_and_retrained(self):
        known = {"fixed", "portions"}  # portions have no study: their candidates see few records
        private = {n for n in STRATEGIES if strategy(n).private_trials and n not in known}
        assert {(each.name, each.search_share) for each in options()} == {
            ("fixed", 0.0),
            *((name, share) for name in private for share in (0.0, RETRAINED_SHARE)),
        }  # fmt: skip
        assert options()[0].name == "fixed"
        for each in options():
            strategy(each.name, **dict(each.settings))

    @pytest.mark.unit
    def test_its_reasons_are_plain_values(self):
        values = chosen(flat(0.2, 0.9), lambda option: Pretended()).to_json()
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert set(values) == {"chosen", "why", "expected"}
        assert len(values["expected"]) == len(options())


class TestThroughThePlan:
    @pytest.mark.contract
    def test_reads_no_record(self):
        plan = planned()
        assert plan.auto is not None
        assert plan.price.epsilon <= 1.0
        assert plan.to_json()["auto"] == plan.auto

    @pytest.mark.contract
    def test_the_double_has_teeth(self):
        with pytest.raises(AssertionError, match="touched"):
            unreadable().fingerprint()

    @pytest.mark.unit
    def test_is_deterministic(self):
        again = plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5)
        assert again.to_json() == planned().to_json()

    @pytest.mark.unit
    def test_the_data_at_hand_are_no_part_of_their_own_prediction(self):
        for name in portfolio._studies()["arrays"].signals:
            assert planned(name).auto is not None
            assert name not in planned(name).auto["why"]  # type: ignore[index]
            assert name in planned().auto["why"]  # type: ignore[index]

    @pytest.mark.unit
    def test_nor_of_the_order_of_the_portfolio(self, monkeypatch: pytest.MonkeyPatch):
        own = study([[0.1] * 3, [0.9] * 3], [[0.5] * 3, [0.4] * 3])
        monkeypatch.setattr(portfolio, "_studies", lambda: {"arrays": own})
        for name, first in (("set 0", entry(2)), ("set 1", entry(3)), ("other", entry(3))):
            plan = plan_architecture_search(
                unreadable(name), budget=Budget(1.0), strategy="fixed", steps=5
            )
            assert plan.space.candidate(plan.space.fixed()) == first

    @pytest.mark.unit
    def test_fixed_trains_the_entry_that_is_best_at_this_budget(self, monkeypatch):
        crossing = study([[0.9, 0.5, 0.1], [0.1, 0.5, 0.9]], signals=(-2.0, 1.5, 5.0))
        monkeypatch.setattr(portfolio, "_studies", lambda: {"arrays": crossing})
        for epsilon, first in ((0.01, entry(2)), (50.0, entry(3))):
            plan = plan_architecture_search(
                unreadable(), budget=Budget(epsilon), strategy="fixed", steps=5
            )
            assert plan.space.candidate(plan.space.fixed()) == first

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
        with pytest.raises(UsageError, match=f"^{word}: auto chooses"):
            plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5, **more)

    @pytest.mark.unit
    def test_a_preset_names_its_strategy(self):
        plan = plan_architecture_search(
            unreadable(), budget=Budget(5.0), steps=5, strategy="paas-paper"
        )
        assert (plan.strategy.name, plan.auto) == ("paas", None)

    @pytest.mark.unit
    def test_a_budget_that_buys_nothing(self):
        with pytest.raises(BudgetError, match="epsilon"):
            plan_architecture_search(unreadable(), budget=Budget(1e-9, 1e-9), steps=5)

    @pytest.mark.unit
    def test_the_space_may_be_named_and_the_strategy_left_to_auto(self):
        space = {"name": "mine", "choices": {"units_1": [2, 4]}}
        plan = plan_architecture_search(unreadable(), budget=Budget(1.0), steps=5, space=space)
        assert (plan.space.name, plan.auto is not None) == ("mine", True)


def test_a_pretended_plan_has_what_a_genuine_one_has():
    """The doubles above stay honest: auto asks a plan for nothing that they lack."""
    genuine, rs = planned(), strategy("rs", candidates=5)
    values = {name: getattr(genuine, name) for name in Pretended.__dataclass_fields__
              if name not in ("seconds", "score", "split")}  # fmt: skip
    split = Split(train=800, validation=100, test=100)
    double = SimpleNamespace(
        **values, score=NoisyCount(epsilon=0.1), split=split, retrained=genuine.retrained
    )
    assert 0.0 < predicted(flat(0.2, 0.9), double, rs) < 1.0  # type: ignore[arg-type]
