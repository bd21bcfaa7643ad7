"""ahead and insured: what looks cost, that the default is insured, and who is taken."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pasearch as api
from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.budget import Budget
from pasearch.errors import UsageError
from pasearch.planning import events_by_partition
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.ledger import Line
from pasearch.search.ahead import (
    CAUTION,
    DISAGREE,
    Ahead,
    Insured,
    Leads,
    distinct,
    insured_by,
)
from pasearch.search.fitness import WORST
from pasearch.search.plan import Plan
from pasearch.search.strategies import from_json, strategy
from pasearch.search.strategy import Round, State
from pasearch.spaces.portfolio import Study
from pasearch.spaces.space import space


def stream(*context: str | int) -> Stream:
    return Keys.from_seed(5).stream("ahead", *context)


def planned(name: str = "ahead", epsilon: float = 1.0, **more: object) -> Plan:
    return api.plan_architecture_search("digits", budget=Budget(epsilon), strategy=name, **more)


def judged(search: Ahead, *scores: float) -> int:
    """Return which candidate is taken."""
    asked = Round(number=0, genotypes=tuple((place,) for place in range(len(scores))))
    state = State(rounds=(asked,), fitness=(tuple((score, 0) for score in scores),))
    return search.best(state)[1]


class TestPrice:
    @pytest.mark.statistical
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_looks_at_four_leave_nearly_all_of_the_budget(self, epsilon: float):
        plan, alone = planned(epsilon=epsilon), planned("fixed", epsilon)
        assert plan.final_mu is not None
        assert alone.trial_mu is not None
        assert 0.96 < plan.final_mu / alone.trial_mu <= 1.0
        assert plan.trial_mu == pytest.approx(alone.trial_mu * math.sqrt(0.05 / 4), rel=0.02)
        assert plan.price.epsilon <= epsilon

    @pytest.mark.oracle
    def test_the_price_is_that_of_all_looks_and_the_final_training_together(self):
        plan = planned()
        found, _ = price_partitions(events_by_partition(plan.lines), plan.delta)
        assert found.epsilon == pytest.approx(plan.price.epsilon)
        train = [line for line in plan.lines if line.partition == "train"]
        assert [(line.name, line.count) for line in train] == [
            ("training, look", 4), ("final training", 1)
        ]  # fmt: skip
        without = [line for line in train if line.name == "final training"]
        alone, _ = price_partitions(events_by_partition(without), plan.delta)
        assert alone.epsilon < plan.price.epsilon - 0.01

    @pytest.mark.unit
    def test_a_score_is_paid_for_each_candidate(self):
        line = next(line for line in planned().lines if line.partition == "validation")
        assert (line.name, line.count) == ("score", 4)

    @pytest.mark.unit
    def test_records_apart_have_no_place(self):
        with pytest.raises(UsageError, match="search_share="):
            planned(search_share=0.2)

    @pytest.mark.unit
    def test_more_looks_leave_less(self):
        few, many = planned(candidates=2), planned(candidates=4)
        assert few.final_mu == pytest.approx(many.final_mu, rel=0.01)
        assert few.trial_mu > many.trial_mu  # type: ignore[operator]


class TestCandidates:
    @pytest.mark.unit
    def test_the_default_is_the_first_and_all_differ(self):
        wide = space("fcn")
        found = distinct(wide, 12, stream())
        assert found[0] == wide.fixed()
        assert len(set(found)) == 12

    @pytest.mark.unit
    def test_of_a_small_space_all_are_looked_at(self):
        small = space({"name": "small", "choices": {"units_1": [2, 4], "layers": [1, 2]}})
        assert len(distinct(small, 9, stream())) == 4
        assert strategy("ahead", candidates=9).within(small).candidates == 4  # type: ignore[attr-defined]

    @pytest.mark.unit
    def test_of_a_portfolio_the_first_are_looked_at(self):
        portfolio = planned("fixed").space
        assert distinct(portfolio, 3, stream()) == ((0,), (1,), (2,))

    @pytest.mark.unit
    def test_one_candidate_leaves_nothing_to_choose(self):
        one = space({"name": "one", "choices": {"units_1": [2]}})
        with pytest.raises(UsageError, match="strategy=fixed"):
            strategy("insured").within(one)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "wrong",
        [{"candidates": 1}, {"looks": 0.0}, {"looks": 1.0}, {"looks": math.nan}],
        ids=str,
    )
    def test_bad_settings_are_refused(self, wrong: dict):
        with pytest.raises(UsageError):
            Ahead(**wrong)


class TestInsured:
    @pytest.mark.unit
    def test_ahead_takes_the_best_score_and_insured_only_one_that_is_well_ahead(self):
        handicaps = (0.0, -10.0, -2.0)
        search = Insured(candidates=3, trust=0.5, handicaps=handicaps)
        assert judged(Ahead(candidates=3), 100, 105, 101) == 1
        assert judged(search, 100, 105, 101) == 0
        assert judged(search, 100, 121, 101) == 1
        assert judged(search, 100, 105, 106) == 2
        assert judged(search, 100, 100, 100) == 0
        cautious = replace(search, least=10.0)
        assert judged(cautious, 100, 105, 106) == 0
        assert judged(cautious, 100, 105, 110) == 2

    @pytest.mark.unit
    def test_a_default_that_failed_insures_nothing(self):
        search = Insured(candidates=3, handicaps=(0.0, -50.0, -50.0))
        assert judged(search, WORST, 3, 5) == 2
        assert judged(search, WORST, WORST, 5) == 2
        assert judged(search, 7, WORST, WORST) == 0
        nothing = Insured(candidates=3, trust=0.0, handicaps=(0.0, -5.0, -5.0))
        assert judged(nothing, 90, 95, WORST) == 0

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "wrong",
        [
            {"handicaps": (0.0,)}, {"handicaps": (0.0, math.nan, 0.0, 0.0)}, {"trust": math.inf},
            {"trust": "much"}, {"least": math.nan},
        ],
        ids=str,
    )  # fmt: skip
    def test_bad_handicaps_are_refused(self, wrong: dict):
        with pytest.raises(UsageError):
            Insured(**wrong)

    @pytest.mark.unit
    def test_it_comes_back_from_its_json(self):
        search = Insured(candidates=3, trust=0.25, handicaps=(0.0, -1.5, 2.0))
        assert from_json(search.to_json()) == search
        assert from_json(Insured().to_json()) == Insured()


def leads(look: list[list[float]], final: list[list[float]], noise: float) -> Leads:
    return Leads(look=np.array(look), final=np.array(final), noise=noise)


class TestLeads:
    @pytest.mark.oracle
    def test_trust_is_the_slope_of_the_best_linear_prediction(self):
        draw = np.random.default_rng(1)
        look = np.zeros((400, 2))
        look[:, 1] = draw.normal(0, 0.03, 400)
        final = 0.6 * look + np.array([0.0, -0.01])
        found = Leads(look=look, final=final, noise=0.02**2)
        seen = look[:, 1] + draw.normal(0, 0.02, 400)
        slope, start = np.polyfit(seen, final[:, 1], 1)
        assert found.trust == pytest.approx(slope, abs=0.05)
        assert found.handicaps[1] == pytest.approx(start, abs=0.003)

    @pytest.mark.unit
    def test_where_scores_say_nothing_the_default_is_kept(self):
        found = leads([[0, 0.1], [0, -0.1]], [[0, 0.1], [0, -0.2]], noise=1e6)
        assert found.trust < 1e-6
        assert found.handicaps[1] < 0

    @pytest.mark.unit
    def test_without_noise_a_lead_that_lasts_is_trusted(self):
        found = leads([[0, 0.1], [0, -0.1]], [[0, 0.1], [0, -0.1]], noise=0.0)
        assert found.trust == pytest.approx(1.0)
        assert found.handicaps.tolist() == pytest.approx([0.0, 0.0])

    @pytest.mark.unit
    def test_a_lead_that_turns_round_is_not_trusted(self):
        assert leads([[0, 0.1], [0, -0.1]], [[0, -0.1], [0, 0.1]], noise=0.0).trust == 0.0

    @pytest.mark.property
    @settings(deadline=None, max_examples=50)
    @given(noise=st.floats(0, 1e3), scale=st.floats(0, 1))
    def test_every_number_is_finite(self, noise: float, scale: float):
        found = leads([[0, scale]], [[0, -scale]], noise)
        assert 0.0 <= found.trust <= 1.0
        assert np.isfinite(found.handicaps).all()


class TestPlanned:
    @pytest.mark.unit
    def test_the_handicaps_follow_from_the_study_and_cost_nothing(self):
        plan = planned("insured")
        found = plan.strategy
        assert isinstance(found, Insured)
        assert found.handicaps is not None
        assert found.handicaps[0] == 0.0
        bare = replace(plan, strategy=replace(found, trust=1.0, handicaps=None))
        assert plan.price == bare.price
        assert [line.event for line in plan.lines] == [line.event for line in bare.lines]

    @pytest.mark.unit
    def test_of_another_space_each_must_be_well_ahead(self):
        plan = planned("insured", space="fcn", candidates=3)
        found = plan.strategy
        assert isinstance(found, Insured)
        assert found.trust == 1.0
        assert found.handicaps is None
        assert plan.score is not None
        spread = 2 * plan.score.standard_deviation**2 + DISAGREE * plan.split.validation  # type: ignore[union-attr]
        assert found.least == pytest.approx(CAUTION * math.sqrt(spread), abs=0.06)

    @pytest.mark.unit
    def test_a_study_of_one_candidate_alone_changes_nothing(self):
        plan = planned("insured", candidates=2)
        study = Study(
            kind="arrays",
            entries=plan.space.entries[:2],  # type: ignore[attr-defined]
            signals={"one": np.array([0.0, 5.0])},
            accuracy={"one": np.array([[0.5, 0.9], [0.5, 0.9]])},
        )
        found = insured_by(plan, study).strategy
        assert isinstance(found, Insured)
        assert found.handicaps == (0.0, 0.0)

    @pytest.mark.unit
    def test_the_plan_says_what_becomes_of_the_winner(self):
        from pasearch.report.plan import plan_text

        text = plan_text(planned("insured"))
        assert "trained anew on the same records" in text
        assert "training, look, 4 times" in text
        assert planned("insured").winner == "trained anew"


@pytest.mark.slow
def test_a_run_is_charged_for_looks_and_final_and_is_verified(tmp_path: Path):
    result = api.search_architecture(
        "digits", budget=Budget(2.0), strategy="insured", candidates=3, seed=3, steps=8,
        out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    assert len(result.trials) == 3
    found, problems = api.verify(tmp_path / "run")
    assert not problems
    assert found.epsilon <= 2.0
    charged = {(each["name"], each["count"]) for each in result.document["events"]}
    assert {("training, look", 3), ("final training", 1), ("score", 3)} <= charged


@pytest.mark.slow
def test_it_has_teeth_a_look_that_is_not_charged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A strategy that plans one look fewer than it makes runs into its ledger."""

    def fewer(self: Ahead, price, partition: str, noun: str) -> list[Line]:
        return [
            replace(line, count=line.count - 1) for line in lines_of(self, price, partition, noun)
        ]

    lines_of = Ahead.lines
    monkeypatch.setattr(Ahead, "lines", fewer)
    with pytest.raises(api.BudgetError):
        api.search_architecture(
            "digits", budget=Budget(2.0), strategy="ahead", candidates=3, seed=3, steps=4,
            out=tmp_path / "run", device="cpu",
        )  # fmt: skip
