"""What a candidate changes in its recipe: one function for the price and for the training."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pasearch.accounting.events import Gaussian, SelfComposition, WorstCase
from pasearch.errors import UsageError
from pasearch.search.plan import make_candidate_recipe, make_training_event
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import PRIVACY_SETTINGS, SETTINGS, Candidate
from pasearch.spaces.space import check_settings
from pasearch.training.clipping import AutoSClipping, FlatClipping
from pasearch.training.optimizers import LearningRateDecay
from pasearch.training.recipe import Recipe, make_default_recipe, tune_learning_rate
from pasearch.training.settings import (
    apply_settings,
    apply_settings_and_noise,
    make_full_batch_settings,
    make_linear_recipe,
    select_cost_settings,
    tune_recipe,
)

SLOTS = 2000
VALUES = {
    "learning_rate": 0.3, "learning_rate_scale": 2.0, "learning_rate_growth": 2.0,
    "learning_rate_most": 1.0, "steps": 70, "steps_scale": 0.5, "batch_share": 0.5,
    "average": 0.3, "clip_norm": 2.0, "momentum": 0.5, "batch": 100, "weight_decay": 0.1,
    "learning_rate_end": 0.2,
}  # fmt: skip


def recipe(**more: Any) -> Recipe:
    return make_default_recipe(SLOTS, **more)


def linear(**settings: float) -> Candidate:
    return Candidate(architecture=Architecture(layers=()), settings=tuple(settings.items()))


class TestChanged:
    @pytest.mark.contract
    def test_every_setting_is_walked_over(self):
        assert set(VALUES) == set(SETTINGS)
        assert set(PRIVACY_SETTINGS) <= set(SETTINGS)

    @pytest.mark.unit
    def test_nothing_leaves_the_recipe_alone(self):
        assert apply_settings(recipe(), (), SLOTS) == recipe()

    @pytest.mark.unit
    def test_each_changes_one_thing(self):
        for name, value, field, expected in [
            ("steps", 70, "steps", 70),
            ("steps_scale", 0.001, "steps", 1),
            ("batch_share", 1.0, "expected_batch_size", SLOTS),
            ("batch_share", 0.25, "expected_batch_size", SLOTS // 4),
            ("batch_share", 1e-9, "expected_batch_size", 1),
            ("batch", 100, "expected_batch_size", 100),
            ("batch", 10**6, "expected_batch_size", SLOTS),
            ("weight_decay", 0.1, "weight_decay", 0.1),
            ("learning_rate_end", 1.0, "learning_rate_schedule", None),
            ("average", 0.3, "average", 0.3),
            ("clip_norm", 2.0, "bounding", FlatClipping(clip_norm=2.0)),
        ]:
            made = apply_settings(recipe(), ((name, value),), SLOTS)
            assert getattr(made, field) == expected
            assert {**made.to_json(), field: 0} == {**recipe().to_json(), field: 0}

    @pytest.mark.unit
    def test_a_learning_rate_falls_until_the_last_epoch(self):
        made = apply_settings(recipe(steps=80), (("learning_rate_end", 0.2),), SLOTS)
        assert made.learning_rate_schedule == LearningRateDecay(end=0.2, period=20)  # batch n / 4
        rates = [made.learning_rate_factor_at(step, SLOTS) for step in (0, 3, 40, 79, 10**6)]
        assert rates == pytest.approx([1.0, 1.0, 0.6, 0.24, 0.2])

    @pytest.mark.unit
    def test_a_clip_norm_is_for_a_bound_that_has_one(self):
        with pytest.raises(UsageError, match="clip_norm requires a clipping method"):
            apply_settings(recipe(bounding=AutoSClipping(bound=1.0)), (("clip_norm", 2.0),), SLOTS)

    @pytest.mark.unit
    def test_a_share_is_one(self):
        for name in ["batch_share", "average"]:
            for value in [0.0, 1.5, -1.0, math.nan, "all", True]:
                with pytest.raises(UsageError, match="a fraction in"):
                    check_settings({name: value})


class TestPrice:
    @pytest.mark.contract
    def test_is_that_of_the_training(self):
        """Whatever the setting: what is charged is the event of what is trained."""
        for name in SETTINGS:
            candidate = linear(**{name: VALUES[name]})
            trained = make_candidate_recipe((recipe(),), candidate, 0.2, SLOTS, outputs=2)
            charged = make_training_event((recipe(),), [candidate.settings], SLOTS, 0.2)
            assert charged == trained.event(SLOTS)

    @pytest.mark.contract
    def test_does_not_depend_on_the_others(self):
        for name in sorted(set(SETTINGS) - set(PRIVACY_SETTINGS)):
            assert select_cost_settings(((name, VALUES[name]),)) == ()
            plain = apply_settings_and_noise(recipe(), (), 0.2, SLOTS).event(SLOTS)
            assert (
                apply_settings_and_noise(recipe(), ((name, VALUES[name]),), 0.2, SLOTS).event(SLOTS)
                == plain
            )

    @pytest.mark.contract
    def test_is_the_worst_of_several(self):
        own = [linear(batch_share=share).settings for share in (0.1, 1.0)]
        found = make_training_event((recipe(),), own, SLOTS, 0.2)
        assert isinstance(found, WorstCase)
        assert found.events == tuple(
            apply_settings_and_noise(recipe(), e, 0.2, SLOTS).event(SLOTS) for e in own
        )

    @pytest.mark.unit
    def test_of_full_batches_is_one_gaussian_a_step(self):
        own = make_linear_recipe(SLOTS, 0.2, regression=False)
        sigma = own.noise_multiplier
        assert sigma == pytest.approx(math.sqrt(160) / 0.2, rel=1e-3)
        event = own.event(SLOTS)
        assert isinstance(event, SelfComposition)
        assert event.count == 160
        assert sigma is not None
        assert event.event == Gaussian(noise_multiplier=sigma)


class TestRate:
    @pytest.mark.unit
    def test_follows_the_rule_and_its_factors(self):
        plain = tune_recipe(recipe(), (), 0.2, SLOTS)
        rule = tune_learning_rate(apply_settings_and_noise(recipe(), (), 0.2, SLOTS), 0.2, SLOTS)
        assert plain.learning_rate == rule
        twice = tune_recipe(recipe(), (("learning_rate_scale", 2.0),), 0.2, SLOTS, 0.7)
        assert twice.learning_rate == pytest.approx(1.4 * rule)
        most = tune_recipe(recipe(), (("learning_rate_most", rule / 3),), 0.2, SLOTS)
        assert most.learning_rate == rule / 3

    @pytest.mark.unit
    def test_grows_only_where_the_signal_is_strong(self):
        growth = (("learning_rate_growth", 2.0),)
        for mu, factor in ((0.2, 1.0), (2.0 * math.sqrt(2.0), math.sqrt(math.sqrt(2.0))), (9, 2)):
            grown, plain = (tune_recipe(recipe(), s, mu, SLOTS).learning_rate for s in (growth, ()))
            assert grown == pytest.approx(factor * (plain or math.nan))

    @pytest.mark.unit
    def test_of_a_number_is_lower(self):
        same = ("batch_share", "steps", "average")
        number, classes = (dict(make_full_batch_settings(each)) for each in (True, False))
        assert all(number[name] == classes[name] for name in same)
        for signal in (1.0, 1e2, 1e4, 1e6):
            classes, number = (
                make_linear_recipe(SLOTS, signal / SLOTS, each).learning_rate
                for each in (False, True)
            )
            assert classes is not None
            assert number is not None
            assert number * 0.2 < classes / 3, "a step of clipped gradients"
            assert classes <= 10.0

    @pytest.mark.unit
    def test_given_by_the_recipe_is_scaled_and_by_the_candidate_taken(self):
        given = recipe(learning_rate=0.1)
        assert tune_recipe(given, (("learning_rate_scale", 2.0),), 0.2, SLOTS).learning_rate == 0.2
        assert tune_recipe(given, (("learning_rate", 0.7),), 0.2, SLOTS).learning_rate == 0.7
