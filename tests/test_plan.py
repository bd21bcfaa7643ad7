"""The plan: made from public numbers alone, within the budget, and close to it."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from doubles import Untouchable
from hypothesis import given, settings
from hypothesis import strategies as st

from pasearch.accounting.accountants import price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import (
    Gaussian,
    Geometric,
    RepeatAndSelect,
    SelfComposition,
    WorstCase,
)
from pasearch.accounting.published_bounds import bao_equation_9_corrected
from pasearch.api.search import plan_architecture_search
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import Split
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError, UsageError
from pasearch.plan_warnings import (
    MIN_GOOD_SIGNAL,
    MIN_SIGNAL,
    warn_of_rare_categories,
    warn_of_test_noise,
    warn_of_weak_signal,
)
from pasearch.planning import (
    ESTIMATE_SHARE,
    FRONT_END_SHARE,
    bound_network_form,
    events_by_partition,
)
from pasearch.report.plan import plan_text, time_text
from pasearch.search.plan import Plan, make_candidate_recipe
from pasearch.spaces.cost import estimate_seconds, measure_step_work
from pasearch.training.metrics import METRICS, find_default_metric, find_metric
from pasearch.training.recipe import Recipe, tune_learning_rate

KNOWN = Schema(shape=(5,), low=0.0, high=1.0, classes=3)


def unreadable(
    n: int = 1000, *, public: bool = False, official_test: int = 0,
    schema: Schema | TableSchema = KNOWN, name: str = "people",
) -> Dataset:  # fmt: skip
    table = isinstance(schema, TableSchema)
    shape = (len(schema.columns),) if table else schema.shape
    return Dataset(
        name=name,
        schema=schema,
        features=Untouchable((n, *shape), "O" if table else "f8"),  # type: ignore[arg-type]
        labels=Untouchable((n,), "O" if table else "i8"),  # type: ignore[arg-type]
        public=public,
        official_test=official_test,
    )


SPACE = {"name": "small", "choices": {"layers": [1, 2], "units_1": [4, 8]}}
WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"strategy": "fixed"},
    "rs": {"strategy": "rs", "candidates": 4},
    "rs logarithmic": {"strategy": "rs", "candidates": 4, "law": "logarithmic"},
    "rs poisson": {"strategy": "rs", "candidates": 4, "law": "poisson", "max_candidates": 9},
    "rs retrained": {"strategy": "rs", "candidates": 4, "search_share": 0.25},
    "mgrs": {"strategy": "mgrs", "candidates": 8, "generations": 2},
    "paas": {"strategy": "paas", "candidates": 4, "generations": 3},
    "paas retrained": {"strategy": "paas", "search_share": 0.25},
    "stw": {"strategy": "stw", "data_is_public": True},
}


@cache
def planned(way: str, epsilon: float = 2.0) -> Plan:
    options = {"space": SPACE, "steps": 40, "batch": 100, **WAYS[way]}
    return plan_architecture_search(unreadable(), budget=Budget(epsilon), **options)


def small(n: int = 1000, epsilon: float = 1.0, delta: float | None = None, **options: Any) -> Plan:
    settings = {"space": SPACE, "steps": 20, "strategy": "fixed", **options}
    return plan_architecture_search(unreadable(n), budget=Budget(epsilon, delta), **settings)


@pytest.mark.contract
@pytest.mark.parametrize("way", WAYS)
class TestEveryPlan:
    def test_reads_no_value_not_even_to_be_printed(self, way: str):
        plan = planned(way)
        assert plan_text(plan).startswith("Budget: epsilon 2, delta 0.0001")
        assert json.loads(json.dumps(plan.to_json(), allow_nan=False))

    def test_costs_the_budget_at_most_and_nearly_all_of_it(self, way: str):
        total, by_partition = planned(way).prices
        assert 0.99 * 2.0 <= total.epsilon <= 2.0
        assert total.delta == 1e-4
        for name, price in by_partition.items():
            assert price.epsilon <= 2.0
            if (way, name) not in [("stw", "train"), ("stw", "validation")]:
                assert price.epsilon >= 0.99 * 2.0, f"{name} has the whole epsilon"

    def test_its_price_is_the_largest_of_its_partitions(self, way: str):
        plan = planned(way)
        total, by_partition = plan.prices
        assert total.epsilon == max(price.epsilon for price in by_partition.values())
        again, _ = price_partitions(events_by_partition(plan.lines), plan.delta)
        assert again == total

    def test_its_lines_cover_its_partitions(self, way: str):
        plan = planned(way)
        assert {line.partition for line in plan.lines} == set(plan.split.sizes())
        assert len({(line.name, line.partition) for line in plan.lines}) == len(plan.lines)
        assert plan.split.n == 1000

    def test_a_larger_budget_buys_less_noise(self, way: str):
        small, large = planned(way, 1.0), planned(way)
        for dial in ("trial_mu", "final_mu"):
            if getattr(large, dial) is not None:
                assert getattr(small, dial) < getattr(large, dial)
        assert small.test.epsilon < large.test.epsilon
        assert small.price.epsilon < large.price.epsilon

    def test_the_text_names_every_release_and_the_price(self, way: str):
        plan = planned(way)
        text = plan_text(plan)
        for line in plan.lines:
            assert line.name in text
            assert line.partition in text
        assert f"Privacy cost: epsilon {plan.price.epsilon:.4f}" in text
        assert ("99.9%" in text) == (plan.strategy.hides_trials)
        assert time_text(plan) in text

    def test_what_is_trained_has_the_noise_that_was_priced(self, way: str):
        plan = planned(way)
        priced = {str(line.event) for line in plan.lines}
        for genotype in itertools.product(*map(range, plan.space.sizes)):
            candidate = plan.space.candidate(genotype)
            if plan.retrained:
                recipe = plan.final_recipe(candidate)
                assert str(recipe.event(plan.split.train)) in priced
            recipe = plan.trial_recipe(candidate)
            if way == "stw":
                assert (recipe.noise_multiplier, recipe.bounding) == (None, None)
                continue
            event = str(recipe.event(getattr(plan.split, plan.trial_partition)))
            assert any(event in text for text in priced)


class TestWays:
    @pytest.mark.unit
    def test_in_place_keeps_the_winner(self):
        plan = planned("rs")
        assert (plan.retrained, plan.finals, plan.final_mu) == (False, (), None)
        assert plan.trial_partition == "train"
        assert plan.to_json()["winner"] == "kept"
        assert [line.name for line in plan.lines] == ["training", "score", "test accuracy"]

    @pytest.mark.unit
    def test_retraining_gives_the_final_training_the_whole_epsilon(self):
        plan = planned("rs retrained")
        assert plan.trial_partition == "search"
        assert plan.split.sizes() == {"search": 200, "train": 600, "validation": 100, "test": 100}
        assert plan.to_json()["winner"] == "retrained"
        (final,) = (line for line in plan.lines if line.partition == "train")
        assert (final.name, final.count) == ("final training", 1)
        assert plan.prices[1]["train"].epsilon >= 0.99 * 2.0
        assert plan.prices[1]["search"].epsilon >= 0.99 * 2.0
        assert plan.final_mu is not None
        assert plan.trial_mu is not None
        assert plan.final_mu > plan.trial_mu, "one training costs less than a search"

    @pytest.mark.unit
    def test_fixed_has_no_validation_slots_and_no_score(self):
        plan = planned("fixed")
        assert plan.score is None
        assert plan.split.sizes() == {"train": 900, "test": 100}
        assert plan.list_published_bounds() == []

    @pytest.mark.unit
    def test_a_given_score_epsilon_is_taken(self):
        plan = small(strategy="paas", candidates=3, generations=2, score_epsilon=0.02)
        assert plan.score is not None
        assert plan.score.epsilon == 0.02
        assert plan.prices[1]["validation"].epsilon < 0.99

    @pytest.mark.unit
    def test_stw_searches_for_nothing_and_pays_for_its_winner(self):
        plan = planned("stw")
        assert plan.trial_mu is None
        assert plan.final_mu is not None
        with pytest.raises(UsageError, match="data_is_public="):
            small(strategy="stw")

    @pytest.mark.unit
    def test_candidates_with_other_steps_are_priced_at_their_worst(self):
        space = {"choices": {"steps_scale": [0.5, 1.0, 2.0], "learning_rate_scale": [0.5, 2.0]}}
        plan = small(space=space, strategy="rs", candidates=3)
        (training,) = (line for line in plan.lines if line.name == "training")
        assert isinstance(training.event, RepeatAndSelect)
        assert isinstance(training.event.event, WorstCase)
        steps = [each.count for each in training.event.event.events]  # type: ignore[attr-defined]
        assert steps == [10, 20, 40]
        noises = {
            plan.trial_recipe(plan.space.candidate((i, 0))).noise_multiplier for i in range(3)
        }
        assert len(noises) == 3

    @pytest.mark.unit
    def test_the_papers_split(self):
        dataset = unreadable(700, official_test=100)
        plan = plan_architecture_search(
            dataset, budget=Budget(1.0), strategy="rs", split="paper", space=SPACE, steps=20
        )
        assert plan.split.sizes() == {"train": 600, "validation": 50, "test": 50}

    @pytest.mark.unit
    def test_the_papers_figure_of_mgrs_is_summed_over_its_generations(self):
        plan = small(20_000, strategy="mgrs", candidates=8, generations=2)
        (claim,) = plan.list_published_bounds()
        one = plan.strategy.list_published_bounds(
            lambda _: 1.0, delta=1e-5, validation=plan.split.validation
        )
        settings = {"acceptable_loss": 0.05, "failure_probability": 0.05, "epsilon": 1.0}
        size = {"validation_size": plan.split.validation}
        assert one[0].value == bao_equation_9_corrected(**settings, **size, runs=(8, 4)).value  # type: ignore[arg-type]
        assert "prints 8.53" in claim.describe()

    @pytest.mark.unit
    def test_learning_rates_are_public(self):
        plan = planned("fixed")
        candidate = plan.space.candidate(plan.space.default_genotype())
        recipe = plan.trial_recipe(candidate)
        expected = tune_learning_rate(recipe, plan.trial_mu, 900)
        assert recipe.learning_rate == expected * candidate.architecture.learning_rate_factor()
        given = Recipe(expected_batch_size=10, steps=10, learning_rate=0.3)
        assert make_candidate_recipe((given,), candidate, 0.5, 900, outputs=2).learning_rate == 0.3


class TestGrouping:
    @pytest.mark.unit
    def test_counts_are_compositions(self):
        plan = planned("paas")
        events = events_by_partition(plan.lines)
        assert isinstance(events["train"], SelfComposition)
        assert events["train"].count == plan.strategy.expected_trainings == 4  # not 12: there are 4
        assert isinstance(events["test"], Geometric)


class TestRefusals:
    @pytest.mark.unit
    @pytest.mark.parametrize("law", ["geometric", "logarithmic"])
    def test_a_budget_too_small_names_the_smallest_that_would_do(self, law: str):
        epsilon = 1e-6
        for _ in range(3):  # training, score and accuracy each name their own
            try:
                plan = small(100, epsilon, strategy="rs", law=law)
                break
            except BudgetError as error:
                found = re.search(r"costs at least epsilon (\S+)\. ", str(error))
                assert found is not None
                assert float(found[1]) > epsilon
                epsilon = float(found[1])
        else:
            pytest.fail("no named budget did")
        assert 1e-6 < plan.price.epsilon <= epsilon
        with pytest.raises(BudgetError):
            small(100, 0.9 * plan.price.epsilon, strategy="rs", law=law)

    @pytest.mark.unit
    def test_scores_that_cost_too_much(self):
        with pytest.raises(BudgetError, match="lower the epsilon of the scores"):
            small(strategy="paas", candidates=3, generations=2, score_epsilon=3.0)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"batch": 901}, "901"),
            ({"batch": 1001}, "1,001"),
            ({"batch": 500, "strategy": "rs", "search_share": 0.2}, "only 160 records"),
            ({"batch": 2.5}, "batch"),
            ({"learning_rate": 0.0}, "learning_rate"),
            ({"space": {"choices": {"units_1": []}}}, "empty"),
            ({"space": {"family": "cnn", "choices": {}}}, "does not fit"),
            ({"split": "0.9,0.1"}, "or fractions 'train"),
            ({"split": "paper"}, "the paper reports no split"),
            ({"strategy": "paas", "score_epsilon": 0.0}, "epsilon"),
            ({"strategy": "paas", "score_epsilon": float("nan")}, "epsilon"),
            ({"seed": True}, "True"),
            ({"seed": 1.5}, "1.5"),
            ({"seed": float("nan")}, "nan"),
            ({"seed": "3"}, "'3'"),
        ],
        ids=lambda value: str(value) if isinstance(value, dict) else "",
    )
    def test_bad_options_say_which(self, options: dict, word: str):
        with pytest.raises(UsageError, match=re.escape(word)):
            small(**options)

    @pytest.mark.unit
    def test_a_batch_of_all_records_is_full_batch_descent(self):
        plan = small(batch=900)
        assert plan.recipe.sampling_probability(plan.split.train) == 1.0

    @pytest.mark.unit
    @pytest.mark.parametrize(("n", "delta"), [(999, 1e-3), (1000, 1e-4), (1001, 1e-4)])
    def test_delta_is_the_largest_power_of_ten_below_one_over_n(self, n: int, delta: float):
        assert small(n).delta == delta

    @pytest.mark.unit
    def test_a_delta_near_one_over_n_is_warned_of(self):
        plan = small(delta=5e-4)
        assert any("0.0005" in warning for warning in plan.warnings)
        assert "Warning: " in plan_text(plan)

    @pytest.mark.unit
    def test_few_records_still_have_a_plan(self):
        assert small(5).split.sizes() == {"train": 4, "test": 1}


def priced(schema: Schema | TableSchema, epsilon: float = 1.0, **options: Any) -> Plan:
    """A plan of unreadable records of this form."""
    settings = {"space": SPACE, "steps": 20, "strategy": "fixed", **options}
    dataset = unreadable(schema=schema, public=settings.pop("public", False))
    return plan_architecture_search(dataset, budget=Budget(epsilon), **settings)


def named(plan: Plan, name: str) -> list:
    return [line for line in plan.lines if line.name == name]


AGE = Column(name="age", low=0, high=90)
UNDECLARED: dict[str, tuple[Schema | TableSchema, int, bool]] = {
    "bounds": (Schema(shape=(5,), classes=3), 1, False),
    "classes": (Schema(shape=(5,), low=0.0, high=1.0), 0, True),
    "both": (Schema(shape=(5,)), 1, True),
    "a number": (Schema(shape=(5,), regression=True), 2, False),
    "table": (TableSchema(columns=(AGE, Column(name="b")), target=Column(name="c")), 1, True),
    "target": (TableSchema(columns=(AGE,), target=Column(name="c", kind="number")), 1, False),
}
"""Schemas, how many items of them are estimated from the scored slots, and whether a class list."""


class TestUndeclared:
    """What is not declared is estimated privately from the slots of scores, or of the test."""

    @pytest.mark.unit
    @pytest.mark.parametrize("strategy", ["fixed", "rs"])
    @pytest.mark.parametrize("what", UNDECLARED)
    def test_has_one_line_that_counts_its_items(self, what: str, strategy: str):
        schema, items, classes = UNDECLARED[what]
        plan = priced(schema, strategy=strategy)
        assert items + classes == len(schema.undeclared)
        for line in named(plan, "schema"):
            assert line.count == items
            assert line.partition == plan.estimate_partition
            assert line.partition == ("validation" if strategy == "rs" else "test")
            assert plan.schema_estimate is not None
            assert line.event == plan.schema_estimate.event
        for line in named(plan, "classes"):
            assert (line.count, line.partition) == (1, "train")
            assert plan.class_estimate is not None
            assert line.event == plan.class_estimate.event
        assert len(named(plan, "schema")) == bool(items)
        assert len(named(plan, "classes")) == classes
        assert "estimated privately from" in plan_text(plan)
        for name in schema.undeclared:
            assert name in plan_text(plan)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("least", "told"),
        [(20, ""), (2754, "from 3,000 records, and only what at least about 2,754 of them hold"),
         (3001, "from 3,000 records, and that is too few to find any category or class")],
    )  # fmt: skip
    def test_a_warning_says_what_will_be_found_of_so_many_records(self, least: int, told: str):
        estimate: Any = SimpleNamespace(min_records=least)
        found = " ".join(warn_of_rare_categories(estimate, Split(train=10, test=3000)))
        assert told in found
        assert bool(found) == bool(told)

    @pytest.mark.unit
    @pytest.mark.parametrize(("epsilon", "told"), [(0.01, "47 %"), (0.1, ""), (1.0, "")])
    def test_a_test_that_will_tell_nothing_is_warned_of(self, epsilon: float, told: str):
        metric = find_metric("accuracy", regression=False, outputs=2)
        found = " ".join(warn_of_test_noise(metric, metric.make_noise(epsilon), 300))
        assert told in found
        assert bool(found) == bool(told)
        points = find_metric("mae", regression=True, outputs=1)
        assert bool(warn_of_test_noise(points, points.make_noise(epsilon), 300)) == bool(told)
        loss = find_metric("log-loss", regression=False, outputs=2)
        assert warn_of_test_noise(loss, loss.make_noise(epsilon), 300) == []

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("signal", "told"),
        [(MIN_SIGNAL - 0.1, "accuracy near chance"), (MIN_SIGNAL, "well below what more"),
         (MIN_GOOD_SIGNAL - 0.1, "well below what more"), (MIN_GOOD_SIGNAL, "")],
    )  # fmt: skip
    def test_records_that_stand_little_out_are_warned_of(self, signal: float, told: str):
        found = " ".join(warn_of_weak_signal(signal * 3 / 1000, 1000, 3))
        assert told in found
        assert bool(found) == bool(told)
        assert warn_of_weak_signal(None, 1000, 3) == []

    @pytest.mark.unit
    def test_a_plan_says_both(self):
        plan = priced(Schema(shape=(3,), low=0.0, high=1.0, classes=2), 0.002, strategy="fixed")
        said = " ".join(plan.warnings)
        assert "too large to measure the model's quality" in said
        assert "expect an accuracy near chance" in said

    @pytest.mark.property
    @settings(max_examples=12)
    @given(
        epsilon=st.floats(0.1, 20.0),
        what=st.sampled_from(sorted(UNDECLARED)),
        strategy=st.sampled_from(["fixed", "rs"]),
    )
    def test_leaves_training_its_whole_epsilon(self, epsilon: float, what: str, strategy: str):
        schema, items, classes = UNDECLARED[what]
        plan = priced(schema, epsilon, strategy=strategy)
        total, by_partition = plan.prices
        assert total.epsilon <= epsilon
        assert by_partition["train"].epsilon >= 0.98 * epsilon
        own = priced(KNOWN, epsilon, strategy=strategy)
        # A dial is solved to within a thousandth, from where the other lines leave it.
        paid = 0.1 if classes else 1e-3  # the list takes at most a quarter of epsilon
        assert plan.trial_mu == pytest.approx(own.trial_mu, rel=paid), "but for the class list"
        if not items:
            return
        alone = price_partitions({"x": events_by_partition(named(plan, "schema"))[
            plan.estimate_partition]}, plan.delta)[0]  # fmt: skip
        assert alone.epsilon <= ESTIMATE_SHARE * epsilon
        assert by_partition[plan.estimate_partition].epsilon > alone.epsilon

    @pytest.mark.unit
    def test_more_items_share_the_same_epsilon(self):
        one, two = (priced(UNDECLARED[what][0]) for what in ("bounds", "a number"))
        assert one.schema_estimate is not None
        assert two.schema_estimate is not None
        assert two.schema_estimate.noise_multiplier > one.schema_estimate.noise_multiplier
        assert one.test.epsilon == pytest.approx(two.test.epsilon, rel=0.05)

    @pytest.mark.unit
    def test_a_declared_schema_buys_nothing(self):
        plan = priced(KNOWN)
        assert (plan.schema_estimate, named(plan, "schema")) == (None, [])
        assert plan.to_json()["schema_estimate"] is None
        assert "estimated_privately" not in plan_text(plan)

    @pytest.mark.unit
    def test_networks_are_checked_at_the_widest_that_may_be_estimated(self):
        table = UNDECLARED["table"][0]
        assert bound_network_form(table, 7) == ((12 + 12,), 7)
        assert bound_network_form(table, 70) == ((12 + 72,), 70)
        wide = {"choices": {"units_1": [50_000]}}
        assert priced(table, space=wide, max_categories=20)
        with pytest.raises(UsageError, match="largest network"):
            priced(table, space=wide, max_categories=100_000)


IMAGES = Schema(shape=(8, 8), low=0.0, high=1.0, classes=3)


class TestFrontEnds:
    """A fitted front end is a release on the slots it reads; the others cost nothing."""

    @pytest.mark.unit
    @pytest.mark.parametrize("text", ["pca:3", "standardise"])
    @pytest.mark.parametrize("share", [0.0, 0.25])
    def test_a_fitted_one_is_a_line_of_the_trials_partition(self, text: str, share: float):
        space = {"choices": {"front_end": [text, "raw"], "units_1": [4]}}
        options = {"strategy": "rs", "search_share": share}
        plan = priced(IMAGES, space=space, **options)
        (line,) = named(plan, f"front end {text}")
        assert (line.partition, line.count) == ("search" if share else "train", 1)
        (noise,) = dict(plan.front_noise).values()
        assert line.event == Gaussian(noise_multiplier=noise)
        alone = price_partitions({"x": line.event}, plan.delta)[0].epsilon
        assert 0.95 * FRONT_END_SHARE <= alone <= FRONT_END_SHARE
        raw = priced(IMAGES, space={"choices": {"units_1": [4]}}, **options)
        assert plan.trial_mu is not None
        assert raw.trial_mu is not None
        assert plan.trial_mu < raw.trial_mu, "the fit is paid for by the trainings beside it"
        assert plan.final_mu == raw.final_mu, "the final training reads other records"
        assert plan.price.epsilon <= 1.0

    @pytest.mark.unit
    def test_every_fitted_one_is_paid_for_once(self):
        space = {"choices": {"front_end": ["pca:3", "pca:4", "standardise", "raw"]}}
        plan = priced(IMAGES, space=space, strategy="paas", candidates=4, generations=2)
        fits = {line.name: line.count for line in plan.lines if line.name.startswith("front")}
        assert fits == dict.fromkeys(
            ("front end pca:3", "front end pca:4", "front end standardise"), 1
        )
        assert plan.price.epsilon <= 1.0

    @pytest.mark.unit
    def test_one_that_knows_no_other_record_costs_nothing(self):
        raw = priced(IMAGES, space={"choices": {"units_1": [4]}})
        for text in ("raw", "max_pool:2"):
            plan = priced(IMAGES, space={"choices": {"front_end": [text], "units_1": [4]}})
            assert (plan.lines, plan.trial_mu, plan.front_noise) == (raw.lines, raw.trial_mu, ())

    @pytest.mark.unit
    def test_fixed_pays_for_its_own_only(self):
        choices = {"front_end": ["pca:3", "raw"], "units_1": [4]}
        assert named(priced(IMAGES, space={"choices": choices}), "front end pca:3")
        raw = {"choices": choices, "default": {"front_end": "raw"}}
        assert not named(priced(IMAGES, space=raw), "front end pca:3")

    @pytest.mark.unit
    def test_one_that_does_not_fit_is_refused(self):
        with pytest.raises(UsageError, match="16 x 16"):
            priced(IMAGES, space={"choices": {"front_end": ["scattering"]}})

    @pytest.mark.unit
    @pytest.mark.parametrize("front", ["raw", "pca:3"])
    def test_another_budget_is_told_as_it_would_be_planned(self, front: str):
        space = {"choices": {"front_end": [front], "units_1": [4]}}
        told = priced(IMAGES, 1.0, space=space, strategy="rs").alternatives()
        for epsilon, each in zip((0.5, 1.0, 2.0), told, strict=True):
            plan = priced(IMAGES, epsilon, space=space, strategy="rs")
            assert plan.trial_mu is not None
            assert each["epsilon"] == epsilon
            signal = plan.trial_mu * plan.split.train
            assert each["signal_to_noise"] == pytest.approx(signal, rel=5e-3)


class TestRegression:
    @pytest.mark.unit
    def test_errors_are_counted_on_a_grid_at_the_same_price(self):
        number = Schema(shape=(5,), low=0.0, high=1.0, target=(0.0, 9.0), regression=True)
        plan, classes = (priced(each, strategy="rs") for each in (number, KNOWN))
        assert plan.lines == classes.lines
        grid = METRICS["mae"].max_points
        assert (plan.max_count_per_record, classes.max_count_per_record) == (grid, 1)
        ratio = plan.test.standard_deviation / classes.test.standard_deviation
        assert ratio == pytest.approx(grid, rel=0.2)
        assert bound_network_form(number, 32)[1] == 1

    @pytest.mark.property
    @given(epsilon=st.floats(1e-4, 10.0))
    def test_both_scores_have_the_epsilon_that_is_charged(self, epsilon: float):
        for regression in (False, True):
            assert find_default_metric(regression).make_noise(epsilon).epsilon == epsilon


class TestAssumedPublic:
    @pytest.mark.unit
    def test_is_warned_of_and_buys_nothing(self):
        generator = np.random.default_rng(0)
        data = generator.normal(size=(200, 3)), generator.integers(3, size=200)
        plan = plan_architecture_search(
            data, budget=Budget(1.0), strategy="fixed", space=SPACE, steps=5,
            assume_public_schema=True,
        )  # fmt: skip
        assert plan.assumed_public == ("bounds", "target")
        assert (plan.schema_estimate, plan.schema.classes) == (None, 3)
        assert "assumed public, so not charged: bounds, target" in plan_text(plan)
        assert plan.to_json()["assumed_public"] == ["bounds", "target"]

    @pytest.mark.unit
    def test_only_then_a_value_is_read(self):
        with pytest.raises(AssertionError, match="touched"):
            priced(UNDECLARED["both"][0], assume_public_schema=True)
        with pytest.raises(AssertionError, match="touched"):
            priced(UNDECLARED["both"][0], public=True)
        assert priced(KNOWN, assume_public_schema=True).assumed_public == ()


@pytest.mark.unit
def test_the_double_has_teeth():
    with pytest.raises(AssertionError, match="touched"):
        unreadable().fingerprint()
    for look in (lambda a: a[0], np.asarray, lambda a: a == 1, lambda a: a.mean()):
        with pytest.raises(AssertionError, match="touched"):
            look(Untouchable((3, 2), "f8"))


WEIGHTED = {"preset": "default", "class_weights": [1.0, 4.0, 2.0]}


@pytest.mark.unit
def test_class_weights_are_in_the_plan_and_change_no_price():
    plain, weighted = small(), small(recipe=WEIGHTED)
    assert weighted.recipe.class_weights == (1.0, 4.0, 2.0)
    assert weighted.price.epsilon == plain.price.epsilon
    shown = " ".join(plan_text(weighted).split())
    assert "relative to the largest (1, 4, 2; declared by the user" in shown


@pytest.mark.unit
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (Schema(shape=(5,), low=0.0, high=1.0, classes=4), "3 numbers, but there are 4 classes"),
        (
            Schema(shape=(5,), low=0.0, high=1.0, target=(0.0, 1.0), regression=True),
            "requires classes",
        ),
    ],
)
def test_class_weights_of_other_classes_are_refused_before_a_record_is_read(
    schema: Schema, message: str
):
    with pytest.raises(UsageError, match=message):
        plan_architecture_search(
            unreadable(schema=schema), budget=Budget(1.0), space=SPACE, strategy="fixed",
            recipe=WEIGHTED,
        )  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("ID", True), ("id", True), ("CustomerId", True), ("patient_id", True), ("RowNumber", True),
        ("Unnamed: 0", True), ("uuid", True), ("Surname", True), ("e-mail", True), ("idle", False),
        ("humidity", False), ("paid", False), ("valid", False), ("acid", False), ("rowing", False),
        ("age", False),
    ],
)  # fmt: skip
def test_a_column_that_is_called_as_identifiers_are_is_warned_of(
    tmp_path: pathlib.Path, name: str, warned: bool
):
    rows = [f"{place},{place % 7},{'ab'[place % 2]}" for place in range(300)]
    (tmp_path / "table.csv").write_text("\n".join([f"{name},x,y", *rows]) + "\n")
    plan = plan_architecture_search(
        tmp_path / "table.csv", target="y", budget=Budget(3.0), strategy="fixed", steps=5
    )
    assert any("looks like an identifier" in each for each in plan.warnings) is warned
    (tmp_path / "schema.toml").write_text(f'target = "y"\n[columns."{name}"]\nkind = "ignore"\n')
    plan = plan_architecture_search(
        tmp_path / "table.csv", schema=tmp_path / "schema.toml", budget=Budget(3.0),
        strategy="fixed", steps=5,
    )  # fmt: skip
    assert not any("looks like an identifier" in each for each in plan.warnings)


@pytest.mark.contract
def test_each_candidate_is_reckoned_with_as_it_is_trained():
    x, y = np.zeros((4000, 6)), np.zeros(4000, int)
    known = {"bounds": (0.0, 1.0), "classes": 2, "budget": Budget(1.0)}
    plan = plan_architecture_search((x, y), strategy="insured", **known)
    default = plan.space.candidate(plan.space.default_genotype())
    recipe = plan.final_recipe(default) if plan.retrained else plan.trial_recipe(default)
    shape = default.front_end.output_shape((6,))
    work = measure_step_work(default.architecture, shape, 2)
    planned = estimate_seconds(work, recipe.expected_batch_size, recipe.steps)
    assert plan.seconds_per_training()[0] == planned


@pytest.mark.contract
def test_undeclared_columns_are_planned_with_the_default_number_of_categories(
    tmp_path: pathlib.Path,
):
    path = tmp_path / "x.csv"
    path.write_text("a,b,y\n" + "1,u,v\n" * 3000)
    few, many = (
        plan_architecture_search(
            str(path), budget=Budget(1.0), strategy="fixed", max_categories=most
        ).seconds_per_training()[0]
        for most in (32, 200)
    )
    assert few == pytest.approx(many, rel=0.2)
