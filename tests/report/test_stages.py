"""A recipe in words: every stage says its own, and plan, card and report show them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from papers import yu_theorem3

from pasearch.accounting.budget import Budget
from pasearch.accounting.densities import (
    DENSITIES,
    Density,
    density_from_json,
)
from pasearch.accounting.published_bounds import bao_equation_8, bao_equation_9_corrected
from pasearch.api.lifecycle import RunEnvironment, make_result_document
from pasearch.api.search import SearchRunOutput, plan_architecture_search
from pasearch.data.front_ends import FRONT_ENDS, FrontEnd
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.errors import UsageError
from pasearch.registry import Stage
from pasearch.report.card import card_markdown
from pasearch.report.facts import restore_recipe
from pasearch.report.html import report_html
from pasearch.report.plan import plan_text
from pasearch.report.wording import (
    describe_claim,
    describe_stages,
    format_noise_multiplier,
    format_settings,
    format_steps,
)
from pasearch.search.plan import Plan
from pasearch.training.clipping import PerLayerClipping
from pasearch.training.encoded.gradients import EncodedClipping
from pasearch.training.recipe import NAMED_STAGES, TABLE_STAGES, Recipe
from pasearch.training.schedules import TimeDecay, UniformSchedule, ValidationSchedule


def recipe(**changes: Any) -> Recipe:
    return Recipe(expected_batch_size=10, steps=1000, noise_multiplier=2.0, **changes)


# --- every shipped stage, found by its registry

PLACES = {**TABLE_STAGES, **NAMED_STAGES, "front_end": FRONT_ENDS}
SHIPPED: list[tuple[str, type[Stage]]] = [
    *((place, each) for place, found in PLACES.items() for each in found.kinds().values()),
    *(("noise", each) for each in DENSITIES.values()),
]
SHIPPED = [(place, each) for place, each in SHIPPED if each.__module__.startswith("pasearch.")]
NOT_ITS_OWN = {
    "batching": {"sampling_probability", "n", "expected_batch_size", "batch_size"},
    "noise": {"scale"},
}
"""Numbers that are not a stage's own: the recipe's, and what the noise multiplier sets."""
VALUES = (0.37, 3, 7, 40, 2, True, False, (0.5, 1.5), (0.0, 1.0), (0.0, -1.0), (0.0, 0.5, 2.0))


def made(kind: type[Stage], **given: Any) -> Stage | None:
    """A stage with such numbers, and whatever else it needs; None where it takes none such."""
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.name not in given]  # pyright: ignore
    for values in product(VALUES, repeat=len(needed)):
        try:
            return kind(**given, **dict(zip(needed, values, strict=True)))
        except (UsageError, TypeError, ValueError):
            continue
    return None


def unusual(place: str, kind: type[Stage]) -> Iterator[tuple[str, Any, Stage]]:
    """A stage for each of its own numbers, in which that is not the usual one."""
    for field in fields(kind):  # pyright: ignore[reportArgumentType]
        if field.name in NOT_ITS_OWN.get(place, set()):
            continue
        different = (v for v in VALUES if v != field.default or type(v) is not type(field.default))
        found = [
            (field.name, value, stage)
            for value in different
            if (stage := made(kind, **{field.name: value})) is not None
            and getattr(stage, field.name) == value
        ]
        assert found, f"{kind.__name__}: no other value of {field.name} was found"
        yield found[0]


def spellings(value: Any) -> list[str]:
    return [f"{value:g}", f"{value:,}", f"{100 * value:g} %"]


@pytest.mark.contract
def test_the_words_of_a_stage_name_every_unusual_number():
    for place, kind in SHIPPED:
        usual = made(kind)
        assert usual is not None
        assert usual.describe()
        for name, value, stage in unusual(place, kind):
            words = stage.describe()
            for each in value if isinstance(value, tuple) else (value,):
                named = any(
                    re.search(rf"(?<![\d.]){re.escape(said)}(?![\d]|\.\d)", words)
                    for said in spellings(each)
                )
                long = kind.name == "tabulated"  # a table: how many numbers, and its end
                assert named or isinstance(value, bool) or long, f"{name} {value}: {words}"
            if isinstance(value, bool):
                assert words != made(kind, **{name: not value}).describe(), words  # type: ignore[union-attr]
            assert not re.search(
                r"_|None|True|False|\{|\}|look|judge|energ|estimated privately|slots", words
            )


@pytest.mark.contract
def test_a_stage_comes_back_from_its_plain_values():
    for place, kind in SHIPPED:
        for _, _, stage in [("", None, made(kind)), *unusual(place, kind)]:
            assert stage is not None
            plain = json.loads(json.dumps(stage.to_json()))
            if isinstance(stage, FrontEnd):
                assert parse_front_end(stage.text) == stage
            elif isinstance(stage, Density):
                assert density_from_json(plain) == stage
            else:
                assert PLACES[place].from_json(plain) == stage
                with pytest.raises(UsageError, match="unknown"):
                    PLACES[place].from_json({**plain, "name": "none-such"})


@cache
def plan_of(front: str = "raw") -> Plan:
    space = {
        "name": "small",
        "choices": {"front_end": [front], "units_1": [4]},
    }
    shape = (300, 6) if front.startswith("centred_pairs") else (300, 16, 16)
    return plan_architecture_search(
        (np.zeros(shape), np.zeros(300, int)), budget=Budget(1.0), strategy="fixed",
        space=space, steps=5, batch=20, device="cpu", bounds=(0, 1), classes=2,
    )  # fmt: skip


def told(plan: Plan) -> dict[str, str]:
    """What plan, card and report say of a run, as lines without markup."""
    candidate = plan.space.candidate(plan.space.default_genotype())
    found = SearchRunOutput(candidate=candidate, test_points=3, exact_points=None, sha256="")
    document = make_result_document(plan, found, RunEnvironment(device="cpu", reproducible=False))
    document = json.loads(json.dumps(document))
    report = html.unescape(re.sub(r"<[^>]+>", "", report_html(document)))
    return {"plan": plan_text(plan), "card": card_markdown(document), "report": report}


def with_stage(place: str, stage: Stage) -> Plan:
    """A plan whose training has this stage."""
    if isinstance(stage, FrontEnd):
        return plan_of(stage.text)
    changes: dict[str, Any] = {place: stage}
    if place == "noise":
        changes["bounding"] = EncodedClipping()
    if place in NAMED_STAGES:
        changes = {
            name: getattr(stage, name) for name in ("cap", "momentum") if hasattr(stage, name)
        }
        changes[place] = stage.name
    plan = plan_of()
    made = Recipe(expected_batch_size=20, steps=5, **changes)
    return replace(plan, recipes=(made,), dimensions=(2000,))


@pytest.mark.contract
def test_plan_card_and_report_show_the_words_of_a_stage():
    for place, kind in SHIPPED:
        for _, _, stage in [("", None, made(kind)), *unusual(place, kind)][:2][-1:]:
            assert stage is not None
            if place == "batching":
                stage = kind.of(240, 20, 60 if kind.has_cap else None)  # type: ignore[attr-defined]
            if isinstance(stage, PerLayerClipping) and stage.clip_norms is not None:
                continue  # a network needs one number for each of its layers
            plan = with_stage(place, stage)
            for where, text in told(plan).items():
                assert stage.describe().lower() in text.lower(), where


# --- single stages


@pytest.mark.unit
def test_a_run_that_ends_with_its_budget_says_how_far_it_came():
    for made, words in [(None, "at most 1,000"), (312, "312 of at most 1,000")]:
        assert (
            format_steps(recipe(schedule=ValidationSchedule(rate=0.7, threshold=0.01)), made)
            == words
        )
        assert format_steps(recipe(), 1000) == "1,000"


@pytest.mark.unit
def test_a_document_of_an_earlier_version_is_told():
    values = recipe().to_json()
    kept = ("steps", "noise_multiplier", "optimizer", "average", "expected_batch_size", "bounding")
    old = restore_recipe({key: values[key] for key in kept})
    assert describe_stages(old) == [UniformSchedule().describe()]
    assert (format_steps(old), format_noise_multiplier(old)) == ("1,000", "2.0000")
    assert format_noise_multiplier(recipe(schedule=TimeDecay(rate=0.1))) == "2.0000 initially"
    first = {**{key: values[key] for key in kept}, "order": {"record_bound": 0.5}}
    assert "clipped to norm 0.5 before" in describe_stages(restore_recipe(first))[0]


@pytest.mark.contract
def test_a_stage_that_is_not_known_is_an_error_and_no_default_sentence():
    for place in TABLE_STAGES:
        values = {**recipe().to_json(), place: {"name": "none-such", "bound": 0.3}}
        with pytest.raises(UsageError, match=r"'none-such' \(its `name`\) is unknown"):
            restore_recipe(values)


@pytest.mark.unit
def test_a_factor_of_one_is_no_setting():
    settings = {"steps_scale": 1.0, "learning_rate_scale": 0.5, "learning_rate": 1.0, "recipe": 2}
    assert format_settings(settings) == [("learning rate scale", "0.5"), ("learning rate", "1")]


def without_figure() -> dict[str, tuple[Any, str]]:
    few = {"acceptable_loss": 0.05, "validation_size": 50, "failure_probability": 0.05}
    step = {"sampling_probability": 0.25, "noise_multiplier": 6.0, "steps": 9}
    return {
        "eq9": (
            bao_equation_9_corrected(**few, runs=(400,), epsilon=2.0),
            "more validation records",
        ),
        "theorem 3": (yu_theorem3(**step, delta=1e-5), "up to 1 / (16 sigma)"),
        "eq8": (
            bao_equation_8(epsilon=700.0, runs=10**12, delta_prime=1e-5),
            "exceeds the range",
        ),
    }


@pytest.mark.unit
def test_a_claim_without_a_figure_says_why():
    for name in without_figure():
        claim, why = without_figure()[name]
        words = describe_claim(claim.to_json())
        assert claim.value is None
        assert f"({claim.source}): no value, because" in words
        assert why in words
        assert words.endswith(claim.verdict)
