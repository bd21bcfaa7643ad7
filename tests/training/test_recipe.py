"""Recipes: what they refuse, what they cost, and that files give back what was written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Gaussian, PoissonGaussian, SelfComposition
from pasearch.errors import UsageError
from pasearch.training.batching import Poisson
from pasearch.training.clipping import CLIPPING_METHODS, AutoSClipping, FlatClipping
from pasearch.training.noise_before_clip import NoiseBeforeClip
from pasearch.training.optimizers import OPTIMIZERS
from pasearch.training.recipe import Recipe, make_default_recipe, tune_learning_rate


def recipe(**changes: Any) -> Recipe:
    settings = {"expected_batch_size": 20, "steps": 50, "noise_multiplier": 1.5}
    return Recipe(**{**settings, **changes})


@pytest.mark.unit
def test_counts_that_are_no_whole_number_above_0_are_refused():
    for field in ["expected_batch_size", "steps", "chunk"]:
        for value in [0, -3, 2.0, True, "5", None, math.nan]:
            with pytest.raises(UsageError, match=field):
                recipe(**{field: value})


@pytest.mark.unit
def test_rates_and_noise_that_are_no_positive_number_are_refused():
    for field in ["learning_rate", "noise_multiplier"]:
        for value in [0.0, -1.0, math.nan, math.inf, True, "1"]:
            with pytest.raises(UsageError, match=field):
                recipe(**{field: value})


@pytest.mark.unit
def test_momentum_outside_0_to_1_is_refused():
    for value in [-0.1, 1.0, 1.5, math.nan, math.inf, None, True]:
        with pytest.raises(UsageError, match="momentum"):
            recipe(momentum=value)


@pytest.mark.unit
def test_an_average_outside_0_to_1_is_refused():
    for value in [0.0, 1.0, -0.5, math.nan, True]:
        with pytest.raises(UsageError, match="average"):
            recipe(average=value)


@pytest.mark.unit
def test_class_weights_are_several_numbers_that_are_not_all_0():
    for value in [(), (1.0,), (0.0, 0.0), (1.0, -1.0), (1.0, math.nan), "12", 3.0, (1.0, True)]:
        with pytest.raises(UsageError, match="class_weights"):
            recipe(class_weights=value)


@pytest.mark.unit
def test_class_weights_are_refused_where_noise_comes_before_them():
    with pytest.raises(UsageError, match="class_weights' requires"):
        recipe(class_weights=(1.0, 2.0), noise_before_clip=NoiseBeforeClip(record_bound=1.0))
    with pytest.raises(UsageError, match="class_weights' requires"):
        recipe(class_weights=(1.0, 2.0), bounding=CLIPPING_METHODS.from_json({"name": "encoded"}))


@pytest.mark.unit
def test_an_unknown_optimizer_is_refused_and_the_known_are_named():
    for value in ["adamw", "SGD", None, 1]:
        with pytest.raises(UsageError, match="sgd, momentum, adam"):
            recipe(optimizer=value)


@pytest.mark.unit
def test_what_is_no_bounding_is_refused():
    for value in [1.0, "flat", {"name": "flat"}, FlatClipping]:
        with pytest.raises(UsageError, match=r"expected one of .*AdaptiveClipping.*, Encoded"):
            recipe(bounding=value)


@pytest.mark.unit
def test_noise_without_a_bound_is_refused():
    with pytest.raises(UsageError, match="without clipping"):
        recipe(bounding=None)
    assert recipe(bounding=None, noise_multiplier=None).bounding is None


@pytest.mark.unit
def test_numbers_become_plain_python_numbers():
    made = recipe(noise_multiplier=2, learning_rate=1, momentum=0)
    assert type(made.noise_multiplier) is type(made.learning_rate) is type(made.momentum) is float


@pytest.mark.contract
def test_the_event_is_steps_times_the_batchs_own_event():
    made = recipe()
    assert made.event(80) == SelfComposition(PoissonGaussian(0.25, 1.5), 50)
    assert made.event(20) == SelfComposition(Gaussian(1.5), 50)
    assert made.make_batching(80) == Poisson(sampling_probability=0.25)
    assert made.sampling_probability(80) == made.make_batching(80).sampling_probability


@pytest.mark.contract
def test_the_price_does_not_depend_on_what_costs_nothing():
    plain = price(recipe().event(400), 1e-3).epsilon
    others = [
        {"bounding": AutoSClipping(bound=9.0)},
        {"learning_rate": 5.0},
        {"optimizer": "adam"},
        {"momentum": 0.0},
        {"average": None},
        {"class_weights": (1.0, 9.0)},
        {"chunk": 3},
    ]
    assert {price(recipe(**each).event(400), 1e-3).epsilon for each in others} == {plain}
    assert price(recipe(steps=51).event(400), 1e-3).epsilon > plain
    assert price(recipe(noise_multiplier=1.4).event(400), 1e-3).epsilon > plain
    assert price(recipe(expected_batch_size=22).event(400), 1e-3).epsilon > plain


@pytest.mark.unit
def test_a_batch_larger_than_the_partition_is_refused_with_the_flag_to_set():
    with pytest.raises(UsageError, match="`batch=19` or less"):
        recipe().event(19)
    with pytest.raises(UsageError, match="`batch=19` or less"):
        recipe().make_batching(19)


@pytest.mark.unit
def test_a_recipe_without_noise_has_no_price():
    with pytest.raises(UsageError, match="no privacy guarantee"):
        recipe(noise_multiplier=None).event(80)


@pytest.mark.unit
def test_with_noise_changes_the_noise_and_nothing_else():
    made = recipe(bounding=AutoSClipping(bound=2.0), optimizer="adam")
    changed = made.with_noise(3.0)
    assert changed.noise_multiplier == 3.0
    assert changed.with_noise(1.5) == made


@pytest.mark.unit
def test_without_noise_nothing_is_bounded_either():
    bare = recipe().with_noise(None)
    assert bare.noise_multiplier is None
    assert bare.bounding is None
    with pytest.raises(UsageError, match="without clipping"):
        bare.with_noise(1.0)


@pytest.mark.property
@given(
    made=st.builds(
        Recipe,
        expected_batch_size=st.integers(1, 10**6),
        steps=st.integers(1, 10**6),
        learning_rate=st.none() | st.floats(1e-9, 1e6),
        noise_multiplier=st.none() | st.floats(1e-3, 1e3),
        bounding=st.builds(FlatClipping, clip_norm=st.floats(1e-6, 1e6))
        | st.builds(AutoSClipping, bound=st.floats(1e-6, 1e6), gamma=st.floats(1e-6, 1.0)),
        optimizer=st.sampled_from(list(OPTIMIZERS)),
        momentum=st.floats(0.0, 0.999),
        average=st.none() | st.floats(0.001, 0.999),
        class_weights=st.none() | st.tuples(st.floats(0.0, 9.0), st.floats(0.1, 9.0)),
        chunk=st.integers(1, 10**6),
    )
)
def test_a_recipe_survives_json(made: Recipe):
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.unit
def test_a_recipe_without_bound_survives_json():
    bare = recipe().with_noise(None)
    assert Recipe.from_json(json.loads(json.dumps(bare.to_json()))) == bare


@pytest.mark.unit
def test_a_file_that_is_no_recipe_is_refused():
    for changes, message in [
        ({"warmup": 3}, "has no warmup"),
        ({"steps": "many"}, "steps"),
        ({"bounding": {"name": "none"}}, "unknown"),
        ({"bounding": "flat"}, "expected what `to_json` wrote"),
        ({"bounding": None}, "without clipping"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
    ]:
        with pytest.raises(UsageError, match=message):
            Recipe.from_json({**recipe().to_json(), **changes})


@pytest.mark.unit
def test_a_file_that_lacks_the_batch_or_the_steps_is_refused():
    with pytest.raises(UsageError, match="lacks expected_batch_size, steps"):
        Recipe.from_json({})


@pytest.mark.unit
def test_the_default_follows_the_number_of_slots():
    for slots, batch, steps in [
        (1, 1, 100),
        (3, 1, 100),
        (400, 100, 100),
        (1600, 400, 200),
        (60_000, 2048, 1225),
    ]:
        made = make_default_recipe(slots)
        assert (made.expected_batch_size, made.steps) == (batch, steps)
        assert made.learning_rate is None
        assert made.noise_multiplier is None


@pytest.mark.unit
def test_the_default_has_at_most_1500_steps_and_takes_what_is_given():
    assert make_default_recipe(10**7).steps == 1500
    made = make_default_recipe(1600, batch=7, steps=9, optimizer="adam", average=None)
    assert (made.expected_batch_size, made.steps) == (7, 9)
    assert (made.optimizer, made.average) == ("adam", None)


@pytest.mark.property
@given(slots=st.integers(1, 10**7))
def test_the_default_batch_fits_every_partition(slots: int):
    assert 0 < make_default_recipe(slots).sampling_probability(slots) <= 1


@pytest.mark.unit
def test_the_tuned_rate_is_its_formula():
    made = recipe(bounding=FlatClipping(clip_norm=0.5))
    rate = tune_learning_rate(made, 0.01, 2000)
    assert rate * 50 * 0.5 == pytest.approx(1.3 * 20**0.8)


@pytest.mark.unit
def test_the_tuned_rate_moves_the_weights_alike_for_every_bound_and_number_of_steps():
    rates = [
        tune_learning_rate(recipe(bounding=bounding, steps=steps), 0.01, 2000)
        * bounding.sensitivity
        * steps
        for bounding in (
            FlatClipping(clip_norm=0.1),
            FlatClipping(clip_norm=2.0),
            AutoSClipping(bound=0.7),
        )
        for steps in (10, 1000)
    ]
    assert rates == pytest.approx([rates[0]] * len(rates))


@pytest.mark.unit
def test_the_rate_without_noise_and_adams_are_constants():
    assert tune_learning_rate(recipe(), None, 2000) == 0.5
    assert tune_learning_rate(recipe().with_noise(None), 0.01, 2000) == 0.5
    assert tune_learning_rate(recipe(optimizer="adam"), 0.01, 2000) == 1e-3
