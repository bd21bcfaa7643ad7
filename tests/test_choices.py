"""What every strategy and selector keeps to: its words, its JSON, and what plan and report tell."""

from __future__ import annotations

import html
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extensions import extended
from selections import METHODS, dataset_for, plan_of

from pasearch.accounting.accountants import price
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Composition, SelfComposition
from pasearch.accounting.selection import RunCountDistribution
from pasearch.api import search as api
from pasearch.api.features import FeatureRunOutput, select_features
from pasearch.api.lifecycle import RunEnvironment, make_result_document, render_release_files
from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.features.selector import SELECTORS, Selector, choice_from_json, make_choice
from pasearch.report.plan import feature_plan_text, plan_text
from pasearch.search import engine
from pasearch.search.strategy import STRATEGIES, Strategy, make_strategy, strategy_from_json
from pasearch.verification.verify import verify

SHIPPED = [
    name for name, kind in STRATEGIES.kinds().items() if kind.__module__.startswith("pasearch.")
]
OTHER: dict[str, Any] = {
    "law": RunCountDistribution(7.5, 0.0, 30), "laws": (RunCountDistribution(9.0, 1.0),),
    "mutation": 0.25, "population": 7,
    "generations": 5, "alpha": 0.35, "beta": 0.15, "candidates": 5, "rungs": 2, "size": 3,
    "merits": "entropies", "until_no_gain": True, "p_co": 0.6, "p_mu": 0.1, "pick": "gumbel",
    "pool": 3, "returns": "last", "distinct": 9, "looks": 0.125, "scores": 0.0625,
    "trust": 0.25, "shares": (0.125, 0.375), "repeats": 3,
    "handicaps": (0.0, -1.5, 2.0, -7.0), "least": 12.5,
}  # fmt: skip
"""A value of every setting that is not the usual one."""

BUDGET = Budget(3.0, 1e-3)
MADE = RunEnvironment(device="cpu", reproducible=False)
OPTIONS: dict[str, Any] = {
    "space": {"name": "small", "choices": {"layers": [1], "units_1": [2, 4, 8]}},
    "steps": 8, "batch": 40, "bounds": (-3.0, 3.0), "classes": 2, "device": "cpu",
}  # fmt: skip


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(200, 3))
    return x, (x[:, 0] > 0).astype(int)


def changes(value: Strategy | Selector, **own: Any) -> list[tuple[str, Any]]:
    """Every setting with a value that is not the usual one."""
    return [(each.name, {**OTHER, **own}[each.name]) for each in fields(value)]  # type: ignore[arg-type]


def told(value: Any) -> str:
    """How a setting's value stands in words; of a choice by name, nothing is promised."""
    if isinstance(value, tuple):
        return ("; then " if isinstance(value[0], RunCountDistribution) else ", ").join(
            map(told, value)
        )
    if isinstance(value, RunCountDistribution):
        return value.describe()
    return "" if isinstance(value, (bool, str)) else f"{value:g}"


def of_selector(plan: Any) -> dict[str, Any]:
    """The document of a selection, with made-up features."""
    best = {"features": [], "places": [], "of": 6, "directions": None, "merit": None}
    found = FeatureRunOutput(
        best=best, width=1, test_points=20, exact_points=None, sha256="", link="softmax", shown={}
    )
    return make_result_document(plan, found, MADE)


@pytest.mark.contract
@pytest.mark.parametrize("name", SHIPPED)
class TestStrategy:
    def test_words_name_every_setting_and_json_keeps_it(self, name: str):
        usual = make_strategy(name)
        for setting, value in changes(usual):
            other = replace(usual, **{setting: value})  # type: ignore[type-var]
            assert other.describe() != usual.describe(), setting
            assert told(value) in other.describe(), setting
            again = strategy_from_json(json.loads(json.dumps(other.to_json())))
            assert again == other != usual
        assert strategy_from_json(usual.to_json()) == usual

    def test_plan_card_and_report_show_them(self, name: str):
        own = {"data_is_public": name == "stw", "batch": 10 if name == "portions" else 40}
        plan = api.plan_architecture_search(
            arrays(), budget=BUDGET, strategy=name, **{**OPTIONS, **own}
        )
        candidate = plan.space.candidate(plan.space.default_genotype())
        trials = tuple(
            (candidate.to_json(), 9) for _ in range(plan.strategy.trials if name == "grid" else 0)
        )
        found = api.SearchRunOutput(
            candidate=candidate, test_points=9, exact_points=None, sha256="", trials=trials
        )
        document = make_result_document(plan, found, MADE)
        texts = [plan_text(plan), *map(html.unescape, render_release_files(document).values())]
        told = json.loads(json.dumps(document["strategy"]))
        assert told == {**plan.strategy.summary(), "judged_by": plan.ranking_metric.noun}
        for text in texts:
            if plan.strategy.single_candidate(plan.space) is None:
                assert plan.strategy.describe() in text
            else:
                assert re.search("data-independent (choice|network)", text)


@pytest.mark.contract
@pytest.mark.parametrize("name", METHODS)
class TestSelector:
    def test_words_name_every_setting_and_json_keeps_it(self, name: str):
        usual = make_choice(name)
        for setting, value in changes(usual.selector, law="poisson"):
            other = replace(usual, selector=replace(usual.selector, **{setting: value}))  # type: ignore[type-var]
            words, before = (each.selector.describe() for each in (other, usual))
            assert words != before, setting
            assert told(value) in words, setting
            again = choice_from_json(json.loads(json.dumps(other.to_json())))
            assert again == other != usual
        assert choice_from_json(usual.to_json()) == usual

    def test_a_setting_of_another_method_is_refused(self, name: str):
        for setting in set(OTHER) - {each.name for each in fields(SELECTORS[name])} - {"size"}:
            with pytest.raises((UsageError, TypeError)):
                SELECTORS[name](**{setting: OTHER[setting]})
            if setting in ("merits", "pick", "pool", "alpha"):
                with pytest.raises(UsageError, match="requires method"):
                    make_choice(name, **{setting: OTHER[setting]})

    def test_plan_card_and_report_show_them(self, name: str):
        plan = plan_of(name)
        texts = render_release_files(of_selector(plan)).values()
        for text in (feature_plan_text(plan), *map(html.unescape, texts)):
            assert plan.selection_description in text


@pytest.mark.unit
class TestRegistry:
    def test_a_rule_without_a_theorem_is_refused(self):
        with pytest.raises(UsageError, match="selection_rule 'trust me'"):

            class Trusted(Strategy):
                name = "trusted"
                selection_rule = "trust me"

        assert "trusted" not in STRATEGIES

    def test_a_name_that_is_taken_is_refused(self):
        class Another(Selector):
            name = "top"

        with pytest.raises(
            UsageError, match=r"'top' belongs to pasearch\.features\.top_features\."
        ):
            SELECTORS.register(Another)
        assert SELECTORS["top"].__module__ == "pasearch.features.top_features"

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(UsageError, match="'magic'"):
            strategy_from_json({"name": "magic"})
        with pytest.raises(UsageError, match="'magic'"):
            choice_from_json({"name": "magic", "trainer": "dpsgd", "size": None})
        with pytest.raises(UsageError, match="'magic'"):
            choice_from_json({"name": "all", "trainer": "magic", "size": None})


class TestHalving:
    """A strategy in one file, whose rounds differ in length: planned, priced, run and told."""

    @pytest.fixture(autouse=True)
    def halving(self):
        with extended("halving") as module:
            yield module

    def asked(self, **more: Any) -> dict[str, Any]:
        return {"strategy": "halving", "candidates": 5, "generations": 3, **OPTIONS, **more}

    @pytest.mark.contract
    def test_each_rung_is_priced_at_its_own_length(self):
        plan = api.plan_architecture_search(arrays(), budget=BUDGET, **self.asked())
        lines = [line for line in plan.lines if line.name.startswith("training")]
        assert [(line.name, line.count) for line in lines] == [
            ("training, rung 1", 5), ("training, rung 2", 2), ("training, rung 3", 1),
        ]  # fmt: skip
        steps, noises = zip(*((e.event.count, e.event.event) for e in lines), strict=True)  # type: ignore[attr-defined]
        assert steps == (2, 4, 8)
        assert len(set(noises)) == 1, "a short training has the noise of a whole one"
        every = Composition(
            events=tuple(SelfComposition(event=each.event, count=each.count) for each in lines)
        )
        spent = price(every, plan.delta).epsilon
        assert plan.prices[1]["train"].epsilon == pytest.approx(spent)
        assert 0.97 * 3.0 < spent <= 3.0
        whole = SelfComposition(event=lines[-1].event, count=8)
        assert price(whole, plan.delta).epsilon > 1.2 * spent, "what equal rounds would cost"

    @pytest.mark.contract
    def test_is_run_told_verified_and_resumed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        trained: list[tuple[int, float]] = []
        genuine = engine.train_candidate

        def train(candidate: Any, records: Any, schema: Any, recipe: Any, *rest: Any, **more: Any):
            trained.append((recipe.steps, recipe.noise_multiplier))
            if len(trained) == 7:
                raise KeyboardInterrupt
            return genuine(candidate, records, schema, recipe, *rest, **more)

        monkeypatch.setattr(engine, "train_candidate", train)
        asked = self.asked(seed=1, out=tmp_path / "x")
        with pytest.raises(InterruptedRunError):
            api.search_architecture(arrays(), budget=BUDGET, **asked)
        from pasearch.api.resume import resume

        result: Any = resume(tmp_path / "x", data=arrays())
        assert [steps for steps, _ in trained] == [2] * 5 + [4] * 2 + [4] + [8]
        assert len({noise for _, noise in trained}) == 1
        document = result.document
        assert verify(tmp_path / "x")[1] == []
        words = "5 candidates halved over 3 rungs, all charged: 5 of 0.25, 2 of 0.5, 1 of 1 of the"
        for text in (result.card, html.unescape(result.report)):
            assert words in text
        assert document["strategy"]["rule"] == document["selection"]["rule"] == "composition"
        assert len(document["trials"]) == 8
        assert document["best"]["layers"] == document["trials"][-1]["parameters"]["layers"]
        names = {line["name"]: line["count"] for line in document["events"]}
        assert names["score, rung 2"] == 2

    @pytest.mark.unit
    def test_the_plan_tells_it_and_its_time(self):
        plan = api.plan_architecture_search(arrays(), budget=BUDGET, **self.asked())
        assert "halving: 5 candidates halved over 3 rungs" in plan_text(plan)
        assert plan.strategy.expected_trainings == 8
        assert plan.strategy.expected_work == 5 / 4 + 2 / 2 + 1
        for setting, value in changes(plan.strategy):
            other = replace(plan.strategy, **{setting: value})  # type: ignore[type-var]
            assert strategy_from_json(other.to_json()) == other
        with pytest.raises(UsageError, match="has no option `law="):
            make_strategy("halving", law="geometric")


class TestSpread:
    """A selector in one file: planned, priced, run and told."""

    @pytest.fixture(autouse=True)
    def spread(self):
        with extended("spread") as module:
            yield module

    @pytest.mark.contract
    def test_is_planned_run_told_and_verified(self, tmp_path: Path):
        x, y = arrays()
        x[:, 1] /= 100.0
        options: dict[str, Any] = {"bounds": (-3.0, 3.0), "classes": 2, "device": "cpu"}
        result = select_features(
            (x, y), budget=Budget(40.0, 1e-3), method="spread", k=2, seed=1,
            trainer="objective", out=tmp_path / "x", **options,
        )  # fmt: skip
        document = result.document
        assert [line["name"] for line in document["events"]] == [
            "feature means", "variances", "final training", "test accuracy",
        ]  # fmt: skip
        assert sorted(document["best"]["places"]) == [0, 2]
        assert verify(tmp_path / "x")[1] == []
        for text in (result.card, html.unescape(result.report)):
            assert "the features that vary most, from noisy variances; k 2" in text
        again = choice_from_json(document["plan"]["choice"])
        assert again == make_choice("spread", "objective", size=2)

    @pytest.mark.contract
    def test_its_noise_is_the_plans_and_a_line_that_lacks_is_a_refusal(self, tmp_path: Path):
        from selections import planned, search_of

        data = dataset_for("all")
        plan = planned(
            name="small", schema=data.schema, budget=Budget(2.0, 1e-5),
            split=plan_of("all").split, choice=make_choice("spread", "objective"),
        )  # fmt: skip
        assert plan.noise("variances") > 0.0
        assert 0.97 * 2.0 < plan.prices[1]["train"].epsilon <= 2.0
        lines = tuple(line for line in plan.lines if line.name != "variances")
        with pytest.raises(BudgetError, match="no line 'variances'"):
            search_of(plan, tmp_path, lines=lines, data=data).run()
