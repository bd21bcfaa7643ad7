"""A recipe in words: every stage is said without the names that a file has for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pasearch.accounting.claims import eq8, eq9_corrected, yu_theorem3
from pasearch.accounting.densities import GeneralisedNormal, LaplaceNoise, StudentT, VarianceGamma
from pasearch.accounting.density import Density
from pasearch.report.stages import (
    bound_words,
    claim_words,
    noise_words,
    optimizer_words,
    setting_words,
    stage_words,
    steps_words,
)
from pasearch.training.augmentation import Augmentation
from pasearch.training.bounding.adaptive import AdaptiveQuantile
from pasearch.training.bounding.bound import BOUNDINGS
from pasearch.training.bounding.per_layer import PerLayer
from pasearch.training.encoded.bound import Encoded
from pasearch.training.encoded.denoising import KolmogorovSmirnov
from pasearch.training.optimizers import OPTIMIZERS
from pasearch.training.presets import PRESETS
from pasearch.training.recipe import Recipe
from pasearch.training.schedules.decays import TimeBased
from pasearch.training.schedules.schedule import SCHEDULES
from pasearch.training.schedules.validation import Validation
from pasearch.training.screening import Annealing

SETTINGS: dict[str, dict[str, Any]] = {
    "time": {"rate": 0.05},
    "exponential": {"rate": 0.01},
    "step": {"rate": 0.6, "period": 10},
    "polynomial": {"power": 3.0, "end": 0.2, "period": 100},
    "validation": {"rate": 0.7, "threshold": 0.01, "average": 5, "period": 10},
}


def values(**changes: Any) -> dict[str, Any]:
    recipe = Recipe(expected_batch_size=10, steps=1000, noise_multiplier=2.0, **changes)
    return recipe.to_json()


def schedule(name: str, **more: Any) -> dict[str, Any]:
    return values(schedule=SCHEDULES[name](**SETTINGS[name], **more))


@pytest.mark.contract
@pytest.mark.parametrize("name", PRESETS)
def test_no_preset_is_told_by_identifiers(name: str):
    recipe = values(**PRESETS[name].recipe)
    told = [bound_words(recipe["bounding"]), optimizer_words(recipe), *stage_words(recipe)]
    for words in told:
        assert not re.search(r"_|\(rate|auto-s|noise-first|None|True|False|per layer yes", words)
    if recipe["schedule"]["name"] != "uniform":
        assert any("noise" in words for words in told)


@pytest.mark.contract
@pytest.mark.parametrize("name", [each for each in SCHEDULES if each != "uniform"])
def test_every_schedule_has_words_with_all_its_numbers(name: str):
    (words,) = stage_words(schedule(name))
    for number in SETTINGS[name].values():
        assert f"{number:g}" in words
    (slow,) = stage_words(schedule(name, every=7))
    assert slow.startswith(words)
    assert "7 epochs" in slow


@pytest.mark.contract
@pytest.mark.parametrize("kind", BOUNDINGS.values())
def test_every_bound_is_said(kind: Any):
    words = bound_words(kind().to_json())
    assert "norm" in words
    assert re.search(r"\b1\b", words)


@pytest.mark.unit
def test_layers_are_said():
    assert "norms 1, 2" in bound_words(PerLayer(clip_norms=(1.0, 2.0)).to_json())
    one, each = (bound_words(AdaptiveQuantile(per_layer=per).to_json()) for per in (False, True))
    assert "layer by layer" not in one
    assert "layer by layer" in each


@pytest.mark.contract
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_words(name: str):
    words = optimizer_words(values(optimizer=name, momentum=0.5, average=None))
    assert words != name
    assert ("0.5" in words) == (name == "momentum")
    assert optimizer_words(values()).endswith("averaged weights")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("made", "words"), [(None, "at most 1,000"), (312, "made 312 of at most 1,000")]
)
def test_a_run_that_ends_with_its_budget_says_how_far_it_came(made: int | None, words: str):
    recipe = values(schedule=Validation(rate=0.7, threshold=0.01))
    assert steps_words({**recipe, **({} if made is None else {"steps_made": made})}) == words
    assert steps_words({**values(), "steps_made": 1000}) == "1,000"


@pytest.mark.unit
def test_a_document_without_stages_is_plain():
    recipe = values()
    old = {key: recipe[key] for key in ("steps", "noise_multiplier", "optimizer", "average")}
    assert stage_words(old) == []
    assert (steps_words(old), noise_words(old)) == ("1,000", "2.0000")
    assert noise_words(values(schedule=TimeBased(rate=0.1))) == "2.0000 at first"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("views", "words"),
    [
        (Augmentation(), "4 views of each record, moved by up to 2 pixels;"),
        (Augmentation(shift=1, flip=True), "moved by up to 1 pixel and mirrored at random;"),
        (Augmentation(views=2, shift=0), "2 views of each record; their gradients averaged"),
    ],
)
def test_views_are_said(views: Augmentation, words: str):
    assert words in stage_words(values(augmentation=views))[0]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("law", "words"),
    [
        (StudentT(freedom=9.0, scale=7.0), "(student-t, freedom 9)"),
        (GeneralisedNormal(power=1.76), "(generalised-normal, power 1.76)"),
        (VarianceGamma(shape=2.0), "(variance-gamma, shape 2)"),
        (LaplaceNoise(), "(laplace)"),
    ],
)
def test_the_law_of_the_noise_is_said_without_its_scale(law: Density, words: str):
    (said,) = stage_words(values(bounding=Encoded(), noise=law))
    assert words in said
    assert stage_words(values(bounding=Encoded())) == []


@pytest.mark.unit
def test_encoding_and_denoising_are_said():
    words = bound_words(Encoded(clip_norm=0.5, vectors=2000).to_json())
    assert words == "clamped, rank by rank, to the nearest of 2,000 public vectors of norm 0.5"
    (said,) = stage_words(values(denoising=KolmogorovSmirnov()))
    assert "distance from pure noise: free of charge" in said


@pytest.mark.unit
def test_screening_is_said():
    for every, words in ((1, "every step the loss"), (9, "every 9 steps the loss")):
        assert words in stage_words(values(screening=Annealing(q0=10, mu0=3, every=every)))[0]


@pytest.mark.unit
def test_a_factor_of_one_is_no_setting():
    settings = {"steps_scale": 1.0, "learning_rate_scale": 0.5, "learning_rate": 1.0, "recipe": 2}
    assert setting_words(settings) == [("learning rate scale", "0.5"), ("learning rate", "1")]


def without_figure() -> dict[str, tuple[Any, str]]:
    few = {"acceptable_loss": 0.05, "validation_size": 50, "failure_probability": 0.05}
    step = {"sampling_probability": 0.25, "noise_multiplier": 6.0, "steps": 9}
    return {
        "eq9": (eq9_corrected(**few, runs=400, epsilon=2.0), "more validation records"),
        "theorem 3": (yu_theorem3(**step, delta=1e-5), "up to 1 / (16 sigma)"),
        "eq8": (eq8(epsilon=700.0, runs=10**12, delta_prime=1e-5), "exceeds every number"),
    }


@pytest.mark.unit
@pytest.mark.parametrize("name", without_figure())
def test_a_claim_without_a_figure_says_why(name: str):
    claim, why = without_figure()[name]
    words = claim_words(claim.to_json())
    assert claim.value is None
    assert f"({claim.source}): no figure, because" in words
    assert why in words
    assert words.endswith(claim.verdict)


@pytest.mark.unit
def test_a_claim_with_a_figure_is_its_text():
    claim = eq8(epsilon=0.1, runs=60, delta_prime=1e-5)
    assert claim_words(claim.to_json()) == claim.describe()
    assert claim_words({"text": "x"}) == "x", "as earlier versions had it"
