"""The five lines of a plan and of a finished run: data, model, quality, price, report."""

from __future__ import annotations

from typing import Any

import pytest

from pasearch.data.schema import Schema
from pasearch.report import wording
from pasearch.report.facts import summarize_attack
from pasearch.report.score import BELOW_NOISE_SENTENCE, describe_quality, describe_score

ARRAYS = Schema(shape=(4,), low=0.0, high=1.0, classes=2)
STRONG, WEAK, NONE = (
    [[0.01, 0.05], [0.1, 0.3]],
    [[0.01, 0.3], [0.1, 0.8]],
    [[0.01, 1.0], [0.1, 1.0]],
)


def document(attack: Any = None, **changed: Any) -> dict[str, Any]:
    """Return what of a `result.json` the lines are made of."""
    score = {
        "metric": "accuracy", "test": 0.9, "points": 900, "of": 1000,
        "noise": {"mechanism": "two-sided geometric", "epsilon": 1.0, "standard_deviation": 0.01},
    }  # fmt: skip
    return {
        "schema_version": 4, "task": "training", "attack": attack, "reproducible": False,
        "dataset": {"name": "people", "n": 10_000, "declared_public": False,
                    "schema": ARRAYS.to_json()},
        "budget": {"epsilon": 2.0, "delta": 1e-5}, "events": [], "warnings": [], "auto": None,
        "assumed_public": [],
        "score": score, **changed,
    }  # fmt: skip


@pytest.mark.unit
class TestOdds:
    def test_where_no_bound_is_known_none_is_told(self):
        for attack in [None, []]:
            told = wording.describe_attack_bound(summarize_attack(document(attack)))
            assert told == wording.NO_ATTACK_BOUND
            assert not any(digit.isdigit() for digit in told)

    def test_rates_are_rounded_up(self):
        attack = summarize_attack({"attack": [[0.01, 0.07381]]})
        assert attack is not None
        assert (attack["detected"], attack["ratio"]) == ("7.39", "7.39")


@pytest.mark.unit
class TestProtection:
    def test_it_is_said_how_little_it_is(self):
        for attack, begins in [
            (STRONG, "Membership inference bound: an"),
            (WEAK, "Weak protection. Membership"),
            (NONE, "No protection. Membership"),
            (None, "Membership inference bound: not"),
        ]:
            assert wording.describe_protection(document(attack)).startswith(begins)

    def test_public_data_and_a_seed_protect_nobody_whatever_the_price(self):
        public = document(STRONG)
        public["dataset"]["declared_public"] = True
        told = wording.describe_protection(public)
        assert told == "No protection: the data were declared public."
        seeded = wording.describe_protection(document(STRONG, reproducible=True))
        assert seeded == "No protection: anyone who knows the seed can subtract the noise."


@pytest.mark.unit
class TestScore:
    def test_a_known_one_has_its_records_its_interval_and_a_verdict(self):
        name, told = describe_score(document(), ARRAYS)
        found = describe_quality(document(), ARRAYS)
        assert name == "Test accuracy"
        assert told == (
            f"90.0 % on 1,000 test records ({found['interval']}). {found['verdict']} Majority-"
            "class baseline not available at this epsilon; it may be as high as the model's "
            "accuracy."
        )
        assert "Random baseline" in told

    def test_one_that_noise_drowns_is_unknown_and_no_number_is_given(self):
        drowned = document()
        drowned["score"]["noise"]["standard_deviation"] = 0.4
        _, told = describe_score(drowned, ARRAYS)
        assert told.startswith(f"unknown. {BELOW_NOISE_SENTENCE}")
        assert "90" not in told
        assert " %" not in told
        assert "more than 1,000 test records" in told

    def test_of_public_data_the_exact_score_stands_beside_it(self):
        public = document()
        public["score"]["exact"] = 0.913
        assert "; exact score 0.913 (public data)" in describe_score(public, ARRAYS)[1]


@pytest.mark.unit
class TestDataAndModel:
    def test_chosen_features_are_named(self):
        for best, told in [
            (
                {"features": ["a", "b"], "of": 2, "directions": None},
                "linear model on all 2 features, selected by cfs",
            ),
            (
                {"features": ["a", "b"], "of": 9, "directions": None},
                "linear model on 2 of 9 features, selected by cfs: a, b",
            ),
            (
                {"features": [], "of": 9, "directions": 3},
                "linear model on 3 projections of all 9 features",
            ),
        ]:
            assert wording.describe_features({"best": best, "strategy": {"name": "cfs"}}) == told


@pytest.mark.unit
def test_what_was_taken_as_public_is_left_out_of_what_is_promised():
    told = wording.describe_protection(document(STRONG, assumed_public=["age", "city"]))
    assert "excludes what was assumed public and not charged (age, city)" in told
    assert "what it reveals has no bound" in told
    assert " excludes " not in wording.describe_protection(document(STRONG))
