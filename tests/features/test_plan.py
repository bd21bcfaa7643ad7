"""The plan of a selection: its lines, its price, and what it refuses, all from public numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from doubles import Untouchable
from selections import BUDGET, FEW, METHODS, SIZELESS, WAYS, dataset_for, plan_of, planned

from pasearch.accounting.accountants import price, price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import (
    Gaussian,
    Geometric,
    PureDP,
    RepeatAndSelect,
    SelfComposition,
)
from pasearch.accounting.published_bounds import bao_equation_8
from pasearch.accounting.selection import RunCountDistribution
from pasearch.api.features import plan_feature_selection
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.data.split import make_split
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError, UsageError
from pasearch.features import plan as planning
from pasearch.features.cfs import NoisyEntropies
from pasearch.features.contingency import make_attributes
from pasearch.features.plan import MEANS_SHARE
from pasearch.features.selector import SELECTION_SHARE, SizedSelector, make_choice
from pasearch.features.trainers import select_trainer
from pasearch.features.wrappers import PrivacyAwareFeatureSelection
from pasearch.planning import events_by_partition
from pasearch.report.plan import feature_plan_text
from pasearch.training.settings import make_linear_recipe

MEANS, FINAL = ("feature means", "train", 1), ("final training", "train", 1)
TEST = ("test accuracy", "test", 1)
LINES: dict[str, list[tuple[str, str, int]]] = {
    "all": [MEANS, FINAL, TEST],
    "random": [MEANS, FINAL, TEST],
    "max-pool": [MEANS, FINAL, TEST],
    "cfs-greedy": [MEANS, ("contingency tables", "train", 1), FINAL, TEST],
    "cfs-ga": [MEANS, ("contingency tables", "train", 1), FINAL, TEST],
    "top": [MEANS, ("class shares", "train", 1), ("picks", "train", 1), FINAL, TEST],
    "pca": [MEANS, ("second moments", "train", 1), FINAL, TEST],
    "pafs": [
        MEANS, ("candidate training", "train", 8), FINAL, ("score", "validation", 8), TEST,
    ],
    "one-hot": [
        MEANS, ("candidate training", "train", 2), FINAL, ("score", "validation", 2), TEST,
    ],
    "subsets": [MEANS, ("training", "train", 1), ("score", "validation", 1), TEST],
}  # fmt: skip


def shown(lines) -> list[tuple[str, str, int]]:
    return [(line.name, line.partition, line.count) for line in lines]


def table(**more: Any) -> TableSchema:
    columns = (
        Column(name="age", low=0, high=100),
        Column(name="city", **more.get("city", {"categories": ("Rome", "Oslo")})),
    )
    return TableSchema(columns=columns, target=Column(name="pay", categories=("low", "high")))


def made(schema, **choice: Any):
    given = make_choice(**{"name": "all", "trainer": "objective", **choice})
    split = make_split(300, scored=given.selector.trains_candidates)
    return planned(name="x", schema=schema, public=False, budget=BUDGET, split=split, choice=given)


def count_of(name: str, features: int, **settings: Any) -> int:
    selector = make_choice(name, **settings).selector
    assert isinstance(selector, SizedSelector)
    return selector.resolve_size(features)


class TestLines:
    @pytest.mark.contract
    def test_are_those_of_the_page(self):
        for method in METHODS:
            for trainer in ["objective", "dpsgd"]:
                assert shown(plan_of(method, trainer).lines) == LINES[method]

    @pytest.mark.contract
    def test_cost_no_more_than_the_budget_and_nearly_all_of_it(self):
        for method, more in WAYS:
            plan = plan_of(method, **more)
            total, parts = price_partitions(events_by_partition(plan.lines), 1e-5)
            assert plan.price == total
            assert 0.97 * BUDGET.epsilon < parts["train"].epsilon <= BUDGET.epsilon
            assert 0.97 * BUDGET.epsilon < parts["test"].epsilon <= BUDGET.epsilon

    @pytest.mark.unit
    def test_none_is_free(self):
        """Leaving any line out would price the run too low: each of them is paid for."""
        for method, more in WAYS:
            plan = plan_of(method, **more)
            parts = plan.prices[1]
            for left_out in plan.lines:
                others = tuple(line for line in plan.lines if line is not left_out)
                cheaper = price_partitions(events_by_partition(others), 1e-5)[1]
                place = left_out.partition
                own = cheaper[place].epsilon if place in cheaper else 0.0
                assert own < 0.999 * parts[place].epsilon, left_out.name

    @pytest.mark.unit
    def test_of_a_choice_take_their_shares(self):
        plan = plan_of("cfs-greedy")
        for sigma, share in (
            (plan.noise("feature means"), MEANS_SHARE),
            (plan.noise("contingency tables"), SELECTION_SHARE),
        ):
            assert price(Gaussian(sigma), 1e-5).epsilon == pytest.approx(2.0 * share, rel=2e-3)

    @pytest.mark.unit
    def test_a_share_may_be_given(self):
        usual = plan_of("cfs-greedy")
        data: dict[str, Any] = dict(
            name="x", schema=usual.schema, public=False, budget=BUDGET, split=usual.split
        )
        more = planned(**data, choice=usual.choice, selection_share=0.7)
        assert more.noise("contingency tables") < usual.noise("contingency tables")
        assert more.noise("final training") < usual.noise("final training")
        for share in (0.0, 1.5, math.nan, -1.0):
            with pytest.raises(UsageError, match="selection_share"):
                planned(**data, choice=usual.choice, selection_share=share)
        with pytest.raises(UsageError, match=r"selection_share is 0\.9: expected at most 0\.8"):
            planned(**data, choice=usual.choice, selection_share=0.9)


class TestPafs:
    @pytest.mark.unit
    def test_second_moments_are_released_once_for_all(self):
        plan = plan_of("pafs", number=True)
        counts = {line.name: line.count for line in plan.lines}
        assert (counts["candidate training"], counts["score"]) == (1, 8)
        selector = plan.choice.selector
        assert isinstance(selector, PrivacyAwareFeatureSelection)
        assert selector.count_charged_trainings(select_trainer("objective", True)) == 1
        assert selector.count_charged_trainings(select_trainer("objective", False)) == 8
        assert selector.count_charged_trainings(select_trainer("dpsgd", True)) == 8

    @pytest.mark.unit
    def test_prints_the_papers_figure_beside(self):
        plan = plan_of("pafs")
        claim = bao_equation_8(epsilon=plan.noise("candidate training"), runs=8, delta_prime=1e-5)
        (found,) = plan.list_published_bounds()
        assert (found.value, found.source) == (claim.value, claim.source)
        assert "the paper prints 49.63" in found.describe()
        assert (
            plan_of("all").list_published_bounds()
            == plan_of("pafs", number=True).list_published_bounds()
            == []
        )

    @pytest.mark.unit
    def test_a_training_of_dp_sgd_enters_the_papers_figure_with_its_own_price(self):
        plan = plan_of("pafs", "dpsgd")
        knob = select_trainer("dpsgd", False).knob(plan.split.trial_size, False)
        one = price(knob.event(plan.noise("candidate training")), 1e-5).epsilon
        (found,) = plan.list_published_bounds()
        assert found.value == bao_equation_8(epsilon=one, runs=8, delta_prime=1e-5).value
        assert one < plan.price.epsilon < found.value

    @pytest.mark.unit
    def test_correlation_based_selection_prints_the_papers_figure(self):
        for method in ["cfs-greedy", "cfs-ga"]:
            (found,) = plan_of(method).list_published_bounds()
            assert found.value == 2.31
            assert "not reproducible" in found.describe()
            assert found.describe() in feature_plan_text(plan_of(method))

    @pytest.mark.unit
    def test_noisy_entropies_print_what_the_paper_charges_for_them(self):
        entropies = plan_of("cfs-greedy", merits="entropies")
        mechanism = NoisyEntropies(
            epsilon=entropies.noise("entropies"), attributes=make_attributes(entropies.schema)
        )
        claim, printed = entropies.list_published_bounds()
        assert printed.value == 2.31
        assert claim == mechanism.claim(n=entropies.split.train, delta=1e-5)
        assert claim.value is not None
        assert claim.value > entropies.price.epsilon  # from a sensitivity that is not tight


class TestSubsets:
    @pytest.mark.unit
    def test_one_law_for_trainings_and_scores(self):
        for law in ["geometric", "logarithmic", "poisson"]:
            for number in [False, True]:
                plan = plan_of("subsets", number=number, law=law, candidates=4.0)
                events = {line.name: line.event for line in plan.lines}
                for name, each in (("training", (PureDP, Gaussian)), ("score", (Geometric,))):
                    event = events[name]
                    assert isinstance(event, RepeatAndSelect)
                    assert event.law == RunCountDistribution.from_name(law, mean=4.0)
                    assert isinstance(event.event, each)

    @pytest.mark.unit
    def test_the_winner_is_not_trained_again_unless_it_has_records_of_its_own(self):
        assert not plan_of("subsets").has_line("final training")
        apart = plan_of("subsets", search_share=0.5)
        assert ("training", "search", 1) in shown(apart.lines)
        assert FINAL in shown(apart.lines)


class TestAside:
    @pytest.mark.unit
    def test_a_choice_has_the_whole_epsilon_of_its_own_slots(self):
        for method in ["cfs-greedy", "cfs-ga", "pafs", "subsets"]:
            plan = plan_of(method, search_share=0.5)
            parts = plan.prices[1]
            for name in ("search", "train"):
                assert 0.97 * 2.0 < parts[name].epsilon <= 2.0

    @pytest.mark.unit
    def test_other_methods_have_no_use_for_it(self):
        for method in ["all", "random", "top", "pca"]:
            with pytest.raises(UsageError, match="search_share="):
                plan_of(method, search_share=0.5)


class TestCounts:
    @pytest.mark.unit
    def test_every_entropy_is_charged(self):
        plan = plan_of("cfs-greedy", merits="entropies")
        line = next(line for line in plan.lines if line.name == "entropies")
        assert isinstance(line.event, SelfComposition)
        entropies = NoisyEntropies(epsilon=1.0, attributes=make_attributes(plan.schema))
        assert line.event.count == entropies.count == 6 + 1 + 7 * 6 // 2
        assert line.event.event == PureDP(plan.noise("entropies"))

    @pytest.mark.unit
    def test_every_pick_is_charged(self):
        plan = plan_of("top", size=4)
        line = next(line for line in plan.lines if line.name == "picks")
        assert line.event == SelfComposition(event=PureDP(plan.noise("picks")), count=4)

    @pytest.mark.unit
    def test_how_many_are_chosen(self):
        for size, features, found in [
            (None, 1, 1),
            (None, 27, 9),
            (None, 1000, 100),
            (3, 10, 3),
            (30, 10, 10),
        ]:
            assert count_of("top", features, size=size) == found


class TestRecipe:
    @pytest.mark.unit
    def test_what_is_trained_is_what_is_priced(self):
        for method, place in [("all", "train"), ("pafs", "search")]:
            plan = plan_of(method, "dpsgd", search_share=0.5 if place == "search" else 0.0)
            line = next(
                line for line in plan.lines if line.partition == place and "train" in line.name
            )
            slots = getattr(plan.split, place)
            recipe = make_linear_recipe(slots, plan.noise(line.name), regression=False)
            assert line.event == recipe.event(slots)
            assert recipe.expected_batch_size == slots, "full batches: no sampling is counted on"
            assert plan.recipe is not None
            assert plan.recipe.expected_batch_size == plan.split.train
            assert plan_of("all").recipe is None

    @pytest.mark.unit
    def test_the_rate_grows_with_the_signal_between_limits(self):
        for number in (False, True):
            mus = (1e-3, 1e-2, 1.0, 4.0, 1e6, 1e9)
            rates = [make_linear_recipe(1000, mu, number).learning_rate or 0.0 for mu in mus]
            assert rates == sorted(rates)
            assert 0.0 < rates[0] < rates[2]
            assert rates[-1] == rates[-2]


class TestPublicNumbers:
    @pytest.mark.contract
    def test_no_record_is_read(self):
        for method in METHODS:
            usual = dataset_for(method)
            data = Dataset(
                name="sealed",
                schema=usual.schema,
                features=Untouchable(usual.features.shape, usual.features.dtype.str),  # type: ignore[arg-type]
                labels=Untouchable((300,), usual.labels.dtype.str),  # type: ignore[arg-type]
            )
            few = {("k" if name == "size" else name): v for name, v in FEW.get(method, {}).items()}
            plan = plan_feature_selection(
                data, budget=BUDGET, method=method, trainer="objective", **few
            )
            assert plan.price.epsilon <= 2.0

    @pytest.mark.unit
    def test_the_price_does_not_depend_on_what_is_estimated(self):
        open_, known = table(city={}), table()
        plans = [made(schema, name="cfs-greedy") for schema in (open_, known)]
        assert plans[0].lines[0].name == "schema"
        assert plans[0].prices[1]["train"] == plans[1].prices[1]["train"]

    @pytest.mark.unit
    def test_says_what_the_method_uses_and_no_more(self):
        strategies = {m: plan_of(m).to_json()["strategy"] for m in METHODS}
        assert strategies["all"] == {"name": "all", "trainer": "objective", "size": None}
        evolved = {"population", "generations", "alpha", "p_co", "p_mu"}
        assert set(strategies["pafs"]) == {"name", "trainer", "size", *evolved}
        assert set(strategies["cfs-ga"]) == {"name", "trainer", "size", "merits", *evolved}
        assert set(strategies["subsets"]) == {"name", "trainer", "size", "law", "candidates"}
        assert plan_of("all").to_json() == plan_of("all").to_json()
        assert plan_of("all").to_json() != plan_of("random").to_json()


class TestRefusals:
    @pytest.mark.unit
    def test_of_a_choice(self):
        for given, message in [
            ({"name": "magic"}, "method is 'magic'"),
            ({"trainer": "magic"}, "trainer is 'magic'"),
            ({"name": "cfs-greedy", "merits": "x"}, "merits is 'x'"),
            ({"name": "cfs-ga", "merits": "x"}, "merits is 'x'"),
            ({"name": "top", "pick": "x"}, "pick is 'x'"),
            ({"name": "top", "size": 0}, "k is 0"),
            ({"name": "pca", "size": 2.5}, "k is 2.5"),
            ({"name": "subsets", "candidates": math.nan}, "candidates"),
            ({"name": "subsets", "candidates": 0}, "candidates"),
            ({"name": "subsets", "law": "normal"}, "law 'normal'"),
            ({"name": "pafs", "population": 1}, "population"),
            ({"name": "pafs", "generations": 0}, "generations"),
            ({"name": "pafs", "alpha": 1.5}, "alpha"),
            ({"name": "cfs-ga", "p_co": 0.7, "p_mu": 0.4}, "p_co"),
            ({"name": "cfs-greedy", "until_no_gain": 1}, "until_no_gain"),
            ({"name": "cfs-greedy", "until_no_gain": True, "size": 3}, "remove one of them"),
            ({"name": "max-pool", "pool": -1}, "pool"),
            ({"pool": 2}, "`pool=` requires method max-pool, not 'all'"),
        ]:
            with pytest.raises(UsageError, match=message):
                make_choice(**{"name": "all", **given})

    @pytest.mark.unit
    def test_a_size_where_the_method_takes_none(self):
        for method in SIZELESS:
            schema = Schema(shape=(4, 4), low=0.0, high=1.0, classes=2)
            with pytest.raises(UsageError, match="Remove `k=`"):
                made(schema, name=method, size=3)

    @pytest.mark.unit
    def test_more_features_than_there_are(self):
        with pytest.raises(UsageError, match="k is 7, but the data has 6 features"):
            plan_of("top", size=7)

    @pytest.mark.unit
    def test_more_features_than_can_be_correlated(self):
        schema = Schema(shape=(planning.MAX_FEATURES + 1,), low=0.0, high=1.0, classes=2)
        with pytest.raises(UsageError, match="20,001 features"):
            made(schema)

    @pytest.mark.unit
    def test_pools_of_what_is_no_image_or_smaller(self):
        with pytest.raises(UsageError, match="requires images"):
            made(Schema(shape=(6,), low=0.0, high=1.0, classes=2), name="max-pool")
        for pool, message in ((5, "larger than an image"), (1, "size 1")):
            image = Schema(shape=(4, 4), low=0.0, high=1.0, classes=2)
            with pytest.raises(UsageError, match=message):
                made(image, name="max-pool", pool=pool)

    @pytest.mark.unit
    def test_entropies_of_an_unknown_number_of_columns(self):
        with pytest.raises(UsageError, match="merits=tables"):
            made(table(city={}), name="cfs-greedy", merits="entropies")

    @pytest.mark.unit
    def test_scores_without_validation_slots(self):
        usual = plan_of("subsets")
        split = make_split(300, scored=False)
        with pytest.raises(UsageError, match="validation part of the split is empty"):
            planned(
                name="x", schema=usual.schema, public=False, budget=BUDGET, split=split,
                choice=usual.choice,
            )  # fmt: skip

    @pytest.mark.unit
    def test_a_budget_that_buys_nothing(self):
        with pytest.raises(BudgetError):
            plan_of("all", budget=Budget(1e-6, 1e-12))
