"""ahead and insured: what looks cost, that the default is insured, and who is taken."""

from __future__ import annotations

import math
import re
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
from pasearch.runs.ledger import PlannedRelease
from pasearch.search.candidate_training import FAILED_SCORE
from pasearch.search.plan import Plan
from pasearch.search.strategy import SearchState, TrialRound, make_strategy, strategy_from_json
from pasearch.search.successive_halving import (
    DISAGREEMENT_RATE,
    LOOK_SHARES,
    MAX_PREDICTED_LOSSES,
    MIN_LEAD_DEVIATIONS,
    SCORE_TO_LOOK_RATIO,
    ProtectedHalving,
    StudyLeads,
    SuccessiveHalving,
    choose_look_share,
    draw_distinct_genotypes,
    set_prior_leads,
)
from pasearch.spaces.parsing import make_space
from pasearch.spaces.portfolio import Study
from pasearch.spaces.space import Portfolio


def stream(*context: str | int) -> Stream:
    return Keys.from_seed(5).stream("ahead", *context)


def planned(name: str = "ahead", epsilon: float = 1.0, **more: object) -> Plan:
    return api.plan_architecture_search("digits", budget=Budget(epsilon), strategy=name, **more)


def judged(search: SuccessiveHalving, *scores: float) -> int:
    """Return which candidate is taken."""
    asked = TrialRound(number=0, genotypes=tuple((place,) for place in range(len(scores))))
    state = SearchState(rounds=(asked,), fitness=(tuple((score, 0) for score in scores),))
    return search.best(state)[1]


class TestPrice:
    @pytest.mark.statistical
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
    def test_looks_at_four_leave_nearly_all_of_the_budget(self, epsilon: float):
        plan, alone = planned(epsilon=epsilon), planned("fixed", epsilon)
        assert plan.final_mu is not None
        assert plan.trial_mu == pytest.approx(alone.trial_mu, rel=0.01)
        assert plan.final_mu / alone.trial_mu == pytest.approx(math.sqrt(1 - 0.11), abs=0.02)  # type: ignore[operator]
        assert plan.split == alone.split, "no record is set aside for scores"
        assert plan.price.epsilon <= epsilon

    @pytest.mark.oracle
    def test_a_look_and_its_score_have_their_shares_of_mu(self):
        plan = planned()
        candidate = plan.space.candidate(plan.space.default_genotype())
        look = plan.trial_recipe(candidate, plan.strategy.shape(0))  # type: ignore[attr-defined]
        whole = plan.trial_recipe(candidate)
        ratio = look.noise_multiplier / whole.noise_multiplier  # type: ignore[operator]
        assert ratio == pytest.approx(math.sqrt(4 / 0.08), rel=0.1)
        assert plan.score is not None
        assert plan.score.epsilon == pytest.approx(plan.trial_mu * math.sqrt(0.03 / 4))  # type: ignore[operator]

    @pytest.mark.oracle
    @pytest.mark.parametrize("rungs", [1, 2])
    def test_a_look_is_trained_with_the_noise_that_its_line_has_priced(self, rungs: int):
        plan = planned(rungs=rungs)
        search = plan.strategy
        assert isinstance(search, SuccessiveHalving)
        for rung in range(rungs):
            line = next(
                each for each in plan.lines if each.name == search.charge("training", rung, 0)[0]
            )
            entries = plan.space.entries[: search.candidates]  # type: ignore[attr-defined]
            made = [plan.trial_recipe(each, search.shape(rung)) for each in entries]
            priced = set(re.findall(r"noise_multiplier=([0-9.e+-]+)", repr(line.event)))
            assert {repr(each.noise_multiplier) for each in made} <= priced

    @pytest.mark.oracle
    def test_the_price_is_that_of_all_looks_and_the_final_training_together(self):
        plan = planned()
        found, _ = price_partitions(events_by_partition(plan.lines), plan.delta)
        assert found.epsilon == pytest.approx(plan.price.epsilon)
        train = [line for line in plan.lines if line.partition == "train"]
        assert [(line.name, line.count) for line in train] == [
            ("training, look", 4), ("score", 4), ("final training", 1)
        ]  # fmt: skip
        for left_out in ("training, look", "score"):
            without = [line for line in train if line.name != left_out]
            less, _ = price_partitions(events_by_partition(without), plan.delta)
            assert less.epsilon < plan.price.epsilon - 0.01

    @pytest.mark.unit
    def test_rungs_are_priced_each_at_its_own_noise(self):
        plan = planned(candidates=4, rungs=2)
        train = [line for line in plan.lines if line.partition == "train"]
        assert [(line.name, line.count) for line in train] == [
            ("training, look, rung 1", 4), ("training, look, rung 2", 2), ("score", 6),
            ("final training", 1),
        ]  # fmt: skip
        search = plan.strategy
        assert isinstance(search, SuccessiveHalving)
        spent = sum(size * search.shape(rung).mu ** 2 for rung, size in enumerate(search.sizes))
        assert spent == pytest.approx(search.looks)
        assert search.shape(1).mu == pytest.approx(math.sqrt(2) * search.shape(0).mu)

    @pytest.mark.unit
    def test_records_apart_have_no_place(self):
        with pytest.raises(UsageError, match="search_share="):
            planned(search_share=0.2)


class TestCandidates:
    @pytest.mark.unit
    def test_the_default_is_the_first_and_all_differ(self):
        wide = make_space("fcn")
        found = draw_distinct_genotypes(wide, 12, stream())
        assert found[0] == wide.default_genotype()
        assert len(set(found)) == 12

    @pytest.mark.unit
    def test_of_a_small_space_all_are_looked_at(self):
        small = make_space({"name": "small", "choices": {"units_1": [2, 4], "layers": [1, 2]}})
        assert len(draw_distinct_genotypes(small, 9, stream())) == 4
        assert make_strategy("ahead", candidates=9).within(small).candidates == 4  # type: ignore[attr-defined]

    @pytest.mark.unit
    def test_of_a_portfolio_the_first_are_looked_at(self):
        portfolio = planned("fixed").space
        assert draw_distinct_genotypes(portfolio, 3, stream()) == ((0,), (1,), (2,))

    @pytest.mark.unit
    def test_one_candidate_leaves_nothing_to_choose(self):
        one = make_space({"name": "one", "choices": {"units_1": [2]}})
        with pytest.raises(UsageError, match="strategy=fixed"):
            make_strategy("insured").within(one)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "wrong",
        [
            {"candidates": 1},
            {"looks": 0.0},
            {"looks": 1.0},
            {"looks": math.nan},
            {"scores": 0.0},
            {"looks": 0.6, "scores": 0.4},
            {"rungs": 0},
            {"rungs": 3},
            {"rungs": 1.5},
        ],
        ids=str,
    )
    def test_bad_settings_are_refused(self, wrong: dict):
        with pytest.raises(UsageError):
            SuccessiveHalving(**wrong)


class TestRungs:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("candidates", "rungs", "sizes"), [(4, 2, (4, 2)), (5, 3, (5, 3, 2)), (8, 3, (8, 4, 2))]
    )
    def test_each_keeps_half(self, candidates: int, rungs: int, sizes: tuple[int, ...]):
        assert SuccessiveHalving(candidates=candidates, rungs=rungs).sizes == sizes

    @pytest.mark.unit
    @pytest.mark.parametrize("kind", [SuccessiveHalving, ProtectedHalving])
    def test_the_better_half_is_looked_at_again_and_the_default_always(
        self, kind: type[SuccessiveHalving]
    ):
        search = kind(candidates=4, rungs=2)
        wide = make_space("fcn")
        first = search.ask(SearchState(), wide, stream())
        assert first is not None
        scores = (1.0, 9.0, 5.0, 7.0)
        state = search.tell(SearchState(), first, tuple((each, 0) for each in scores))
        second = search.ask(state, wide, stream())
        assert second is not None
        kept = (0, 1) if kind is ProtectedHalving else (1, 3)
        assert second.genotypes == tuple(first.genotypes[place] for place in kept)
        assert second.shape.mu > first.shape.mu
        state = search.tell(state, second, ((3.0, 0), (8.0, 0)))
        assert search.ask(state, wide, stream()) is None
        assert search.best(state) == (1, 1)
        assert search.possible_winners([*scores, 3.0, 8.0]) == [5]
        assert search.trace_rounds([*scores, 3.0, 8.0]) == [[0, 1, 2, 3], list(kept)]

    @pytest.mark.unit
    def test_handicaps_go_with_their_candidates(self):
        search = ProtectedHalving(candidates=4, rungs=2, handicaps=(0.0, 0.0, 0.0, -50.0))
        assert search.possible_winners([0, 1, 2, 9, 0, 9]) == [4], "the fourth is 50 points behind"
        assert search.possible_winners([0, 1, 9, 2, 0, 9]) == [5]

    @pytest.mark.unit
    def test_a_space_of_few_candidates_has_fewer_rungs(self):
        small = make_space({"name": "small", "choices": {"units_1": [2, 4, 8]}})
        found = make_strategy("ahead", candidates=8, rungs=3).within(small)
        assert (found.candidates, found.rungs) == (3, 2)  # type: ignore[attr-defined]


class TestAffordable:
    @staticmethod
    def study(rise: float) -> Study:
        """Accuracy rises by so much a tenfold signal."""
        return Study(
            kind="arrays",
            entries=planned("fixed").space.entries[:1],  # type: ignore[attr-defined]
            signals={"one": np.array([0.0, 4.0])},
            accuracy={"one": np.array([[0.1, 0.1 + 4 * rise]])},
        )

    @pytest.mark.unit
    def test_a_default_that_nobody_has_measured_may_be_looked_at_more_closely(self):
        known, unknown = (
            choose_look_share(self.study(0.04), 2.0, ours=ours) for ours in (True, False)
        )
        assert unknown["looks"] > known["looks"]

    @pytest.mark.unit
    def test_where_nobody_has_measured_the_least_is_taken(self):
        assert choose_look_share(self.study(0.0), -1.0, ours=True)["looks"] == min(LOOK_SHARES)

    @pytest.mark.unit
    def test_where_accuracy_does_not_rise_looks_may_have_much(self):
        assert choose_look_share(self.study(0.0), 2.0, ours=True)["looks"] == max(LOOK_SHARES)

    @pytest.mark.oracle
    @pytest.mark.parametrize("rise", [0.06, 0.1, 0.15])
    def test_the_default_loses_no_more_than_it_may(self, rise: float):
        found = choose_look_share(self.study(rise), 2.0, ours=True)
        lost = -rise * math.log10(1 - found["looks"] - found["scores"]) / 2
        assert lost <= MAX_PREDICTED_LOSSES[True][0]
        more = min(each for each in LOOK_SHARES if each > found["looks"])
        assert (
            -rise * math.log10(1 - more * (1 + SCORE_TO_LOOK_RATIO)) / 2
            > MAX_PREDICTED_LOSSES[True][0]
        )

    @pytest.mark.unit
    def test_where_it_is_steep_the_least_is_taken(self):
        assert choose_look_share(self.study(2.0), 2.0, ours=True)["looks"] == min(LOOK_SHARES)


class TestInsured:
    @pytest.mark.unit
    def test_ahead_takes_the_best_score_and_insured_only_one_that_is_well_ahead(self):
        handicaps = (0.0, -10.0, -2.0)
        search = ProtectedHalving(candidates=3, trust=0.5, handicaps=handicaps)
        assert judged(SuccessiveHalving(candidates=3), 100, 105, 101) == 1
        assert judged(search, 100, 105, 101) == 0
        assert judged(search, 100, 121, 101) == 1
        assert judged(search, 100, 105, 106) == 2
        assert judged(search, 100, 100, 100) == 0
        cautious = replace(search, least=10.0)
        assert judged(cautious, 100, 105, 106) == 0
        assert judged(cautious, 100, 105, 110) == 2

    @pytest.mark.unit
    def test_a_default_that_failed_insures_nothing(self):
        search = ProtectedHalving(candidates=3, handicaps=(0.0, -50.0, -50.0))
        assert judged(search, FAILED_SCORE, 3, 5) == 2
        assert judged(search, FAILED_SCORE, FAILED_SCORE, 5) == 2
        assert judged(search, 7, FAILED_SCORE, FAILED_SCORE) == 0
        nothing = ProtectedHalving(candidates=3, trust=0.0, handicaps=(0.0, -5.0, -5.0))
        assert judged(nothing, 90, 95, FAILED_SCORE) == 0

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
            ProtectedHalving(**wrong)

    @pytest.mark.unit
    def test_it_comes_back_from_its_json(self):
        search = ProtectedHalving(candidates=3, trust=0.25, handicaps=(0.0, -1.5, 2.0))
        assert strategy_from_json(search.to_json()) == search
        assert strategy_from_json(ProtectedHalving().to_json()) == ProtectedHalving()


def leads(look: list[list[float]], final: list[list[float]], noise: float) -> StudyLeads:
    return StudyLeads(look=np.array(look), final=np.array(final), noise=noise)


class TestLeads:
    @pytest.mark.oracle
    def test_shrinkage_is_the_slope_of_the_best_linear_prediction(self):
        draw = np.random.default_rng(1)
        look = np.zeros((400, 2))
        look[:, 1] = draw.normal(0, 0.03, 400)
        final = 0.6 * look + np.array([0.0, -0.01])
        found = StudyLeads(look=look, final=final, noise=0.02**2)
        seen = look[:, 1] + draw.normal(0, 0.02, 400)
        slope, start = np.polyfit(seen, final[:, 1], 1)
        assert found.shrinkage == pytest.approx(slope, abs=0.05)
        assert found.prior_leads[1] == pytest.approx(start, abs=0.003)

    @pytest.mark.unit
    def test_where_scores_say_nothing_the_default_is_kept(self):
        found = leads([[0, 0.1], [0, -0.1]], [[0, 0.1], [0, -0.2]], noise=1e6)
        assert found.shrinkage < 1e-6
        assert found.prior_leads[1] < 0

    @pytest.mark.unit
    def test_without_noise_a_lead_that_lasts_is_trusted(self):
        found = leads([[0, 0.1], [0, -0.1]], [[0, 0.1], [0, -0.1]], noise=0.0)
        assert found.shrinkage == pytest.approx(1.0)
        assert found.prior_leads.tolist() == pytest.approx([0.0, 0.0])

    @pytest.mark.unit
    def test_a_lead_that_turns_round_is_not_trusted(self):
        assert leads([[0, 0.1], [0, -0.1]], [[0, -0.1], [0, 0.1]], noise=0.0).shrinkage == 0.0

    @pytest.mark.property
    @settings(deadline=None, max_examples=50)
    @given(noise=st.floats(0, 1e3), scale=st.floats(0, 1))
    def test_every_number_is_finite(self, noise: float, scale: float):
        found = leads([[0, scale]], [[0, -scale]], noise)
        assert 0.0 <= found.shrinkage <= 1.0
        assert np.isfinite(found.prior_leads).all()


class TestPlanned:
    @pytest.mark.unit
    def test_the_handicaps_follow_from_the_study_and_cost_nothing(self):
        plan = planned("insured")
        found = plan.strategy
        assert isinstance(found, ProtectedHalving)
        assert found.handicaps is not None
        assert found.handicaps[0] == 0.0
        bare = replace(plan, strategy=replace(found, trust=1.0, handicaps=None))
        assert plan.price == bare.price
        assert [line.event for line in plan.lines] == [line.event for line in bare.lines]

    @pytest.mark.unit
    def test_of_another_space_each_must_be_well_ahead(self):
        plan = planned("insured", space="fcn", candidates=3)
        found = plan.strategy
        assert isinstance(found, ProtectedHalving)
        assert found.trust == 1.0
        assert found.handicaps is None
        assert plan.score is not None
        assert plan.ranking_metric.name == "brier"
        most, slots = plan.ranking_metric.max_points, plan.split.train
        spread = 2 * plan.score.standard_deviation**2 + DISAGREEMENT_RATE * slots * most**2  # type: ignore[union-attr]
        assert found.least == pytest.approx(MIN_LEAD_DEVIATIONS * math.sqrt(spread), abs=0.06)

    @pytest.mark.unit
    def test_a_study_of_one_candidate_alone_changes_nothing(self):
        plan = planned("insured", candidates=2)
        study = Study(
            kind="arrays",
            entries=plan.space.entries[:2],  # type: ignore[attr-defined]
            signals={"one": np.array([0.0, 5.0])},
            accuracy={"one": np.array([[0.5, 0.9], [0.5, 0.9]])},
        )
        found = set_prior_leads(plan, study, ours=True).strategy
        assert isinstance(found, ProtectedHalving)
        assert found.handicaps == (0.0, 0.0)

    @pytest.mark.unit
    def test_of_another_space_what_is_known_of_some_candidates_is_used(self):
        """Both networks do as well at a look, and one gains more until the end."""
        plan = planned("insured", candidates=3)
        first, late, early = plan.space.entries[:3]  # type: ignore[attr-defined]
        unknown = replace(first, settings=(("learning_rate_scale", 0.01),))
        space = Portfolio(name="mine", entries=(unknown, late, early))
        study = Study(
            kind="arrays", entries=(early, late), signals={"one": np.array([0.0, 5.0])},
            accuracy={"one": np.array([[0.5, 0.5], [0.5, 0.9]])},
        )  # fmt: skip
        found = set_prior_leads(replace(plan, space=space), study, ours=False).strategy
        assert isinstance(found, ProtectedHalving)
        assert found.handicaps is not None
        own = np.array(found.handicaps)
        assert own[0] == 0.0
        assert own[1] > 0.0 > own[2]
        assert own[1] == pytest.approx(-own[2], abs=0.2)

    @pytest.mark.unit
    def test_the_plan_says_what_becomes_of_the_winner(self):
        from pasearch.report.plan import plan_text

        text = plan_text(planned("insured"))
        assert "retrained on the same records, with the remaining privacy budget" in text
        assert "training, look (4 times)" in text
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
def test_a_run_with_rungs_is_verified(tmp_path: Path):
    result = api.search_architecture(
        "digits", budget=Budget(2.0), strategy="ahead", candidates=4, rungs=2, seed=3, steps=8,
        out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    assert len(result.trials) == 6
    assert not api.verify(tmp_path / "run")[1]


@pytest.mark.slow
def test_it_has_teeth_a_score_that_is_not_charged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Scores read the training records: planned on others, none is read."""

    def elsewhere(
        self: SuccessiveHalving, price, partition: str, noun: str
    ) -> list[PlannedRelease]:
        found = lines_of(self, price, partition, noun)
        return found if noun == "training" else [replace(each, partition="test") for each in found]

    lines_of = SuccessiveHalving.list_releases
    monkeypatch.setattr(SuccessiveHalving, "list_releases", elsewhere)
    with pytest.raises(UsageError, match="not one of its lines"):
        api.search_architecture(
            "digits", budget=Budget(2.0), strategy="ahead", candidates=3, seed=3, steps=4,
            out=tmp_path / "run", device="cpu",
        )  # fmt: skip


@pytest.mark.slow
def test_it_has_teeth_a_look_that_is_not_charged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A strategy that plans one look fewer than it makes runs into its ledger."""

    def fewer(self: SuccessiveHalving, price, partition: str, noun: str) -> list[PlannedRelease]:
        return [
            replace(line, count=line.count - 1) for line in lines_of(self, price, partition, noun)
        ]

    lines_of = SuccessiveHalving.list_releases
    monkeypatch.setattr(SuccessiveHalving, "list_releases", fewer)
    with pytest.raises(api.BudgetError):
        api.search_architecture(
            "digits", budget=Budget(2.0), strategy="ahead", candidates=3, seed=3, steps=4,
            out=tmp_path / "run", device="cpu",
        )  # fmt: skip
