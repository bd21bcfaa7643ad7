"""The linear model of `features` is a front end and a recipe that `arch` and `train` have too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selections import table

import pasearch as api
from pasearch.accounting.budget import Budget
from pasearch.data.front_ends import Centred, CentredPairs
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.features.trainers import DpSgdTrainer
from pasearch.features.views import View
from pasearch.runs.keys import Keys
from pasearch.search import engine
from pasearch.search.candidate_training import train_candidate, training_streams
from pasearch.search.plan import Plan, make_candidate_recipe
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.training import settings
from pasearch.training.recipe import make_default_recipe
from pasearch.training.settings import make_full_batch_settings, make_linear_recipe

LINEAR = {"layers": [], "front_end": "centred"}
STREAM = Keys.from_seed(5).stream("training")


def arch_plan(data: Any, **more: Any) -> Plan:
    given = {"architecture": LINEAR, "recipe": "full-batches", **more}
    return api.plan_architecture_search(data, budget=Budget(1.0), **given)


def candidate_of(plan: Plan) -> Candidate:
    return plan.space.candidate(plan.space.default_genotype())


@pytest.mark.contract
@pytest.mark.parametrize("number", [False, True])
def test_both_plans_release_the_same(number: bool):
    arch = arch_plan(table(number=number))
    features = api.plan_feature_selection(
        table(number=number), budget=Budget(1.0), method="all", trainer="dpsgd"
    )
    assert arch.split == features.split
    assert dict(arch.front_noise) == {"centred": features.noise("feature means")}
    assert arch.trial_mu == features.noise("final training")
    assert arch.trial_recipe(candidate_of(arch)) == features.recipe
    assert arch.test == features.test
    assert arch.price == features.price
    assert [(each.partition, each.event) for each in arch.lines] == [
        (each.partition, each.event) for each in features.lines
    ]


@pytest.mark.oracle
@pytest.mark.parametrize("number", [False, True])
def test_one_stream_trains_the_same_model(number: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 6)
    data = table(200, number=number, public=True)
    schema, records = data.schema, data.all_records(None)
    fitted = Centred().fit(records.x, records.valid, None, STREAM, schema.row_layout)
    means = fitted.module.shift.numpy().astype(np.float64)  # type: ignore[union-attr]
    view = View.of(means)
    own = make_full_batch_settings(number)
    candidate = Candidate(
        architecture=Architecture(layers=()), settings=own, front_end=parse_front_end("centred")
    )
    outputs = schema.outputs
    recipe = make_candidate_recipe(
        (make_default_recipe(200),), candidate, 0.3, 200, outputs=outputs
    )
    assert recipe == make_linear_recipe(200, 0.3, number, outputs)
    seen = Records(x=fitted.module(records.x), y=records.y, valid=records.valid, public=True)
    streams = training_streams(STREAM)
    network = train_candidate(candidate, seen, schema, recipe, streams, device="cpu")
    trainer = DpSgdTrainer(noise=0.3, outputs=schema.outputs, regression=number)
    model = trainer.fit(records, view, STREAM)
    scores = network(seen.x).detach().numpy()
    assert np.allclose(scores, model.compute_scores(records.x).numpy(), atol=2e-4)
    assert np.abs(scores).max() > 0.01, "it has moved from 0"


@pytest.mark.unit
def test_a_linear_network_starts_at_zero_and_others_do_not():
    generator = np.random.default_rng(0)
    for layers, zero in (((), True), ((Dense(units=4),), False)):
        network = Architecture(layers=layers).build((7,), 3, generator)
        assert all(not bool(p.any()) for p in network.parameters()) == zero


class TestTheUserSaysMore:
    """Options and a recipe's own fields stand instead of what a portfolio's entry says."""

    OPTIONS = (
        ({"steps": 33}, "steps"), ({"batch": 50}, "batch_share"),
        ({"learning_rate": 0.2}, "learning_rate_scale"),
        ({"learning_rate": 0.2}, "learning_rate_most"),
        ({"recipe": {"preset": "full-batches", "average": 0.1}}, "average"),
        ({"recipe": {"preset": "full-batches", "steps": 9}}, "steps"),
        (
            {"recipe": {"preset": "full-batches", "bounding": {"name": "auto-s", "bound": 1.0}}},
            "clip_norm",
        ),
    )  # fmt: skip

    @pytest.mark.unit
    @pytest.mark.parametrize(("options", "gone"), OPTIONS)
    def test_than_the_recipe(self, options: dict[str, Any], gone: str):
        plan = arch_plan(table(), **options)
        own = dict(candidate_of(plan).settings)
        assert gone not in own
        assert set(own) < set(dict(make_full_batch_settings(False)))
        made = plan.trial_recipe(candidate_of(plan))
        if "steps" in options:
            assert made.steps == 33
        if "batch" in options:
            assert made.expected_batch_size == 50
        if "learning_rate" in options:
            assert made.learning_rate == 0.2

    @pytest.mark.unit
    def test_than_an_entry_of_the_portfolio(self):
        usual = arch_plan(table(3000), architecture=None, recipe="default", strategy="fixed")
        assert dict(candidate_of(usual).settings)["batch_share"] == 1.0
        assert usual.recipe.expected_batch_size == usual.split.train
        other = arch_plan(table(3000), architecture=None, recipe="dpsgd", strategy="fixed")
        assert candidate_of(other).settings == ()
        assert candidate_of(other).front_end == CentredPairs()
        assert other.recipe.expected_batch_size < other.split.train

    @pytest.mark.unit
    def test_but_not_than_a_network_of_their_own(self):
        own = {**LINEAR, "settings": {"steps": 12}}
        plan = arch_plan(table(), architecture=own, recipe="dpsgd", steps=50)
        assert candidate_of(plan).settings == (("steps", 12),)

    @pytest.mark.unit
    def test_portions_take_entries_that_no_fit_reads_all_records_for(self):
        plan = arch_plan(
            table(3000), architecture=None, recipe="default", strategy="portions", candidates=2
        )
        assert not any(each.fitted for each in plan.space.front_ends())
        assert plan.front_noise == ()


class Stopped(Exception):
    """The machine went down."""


@pytest.mark.contract
@pytest.mark.parametrize("recipe", ["dpsgd-tanh", "full-batches", ["dpsgd", "auto-s"], "default"])
def test_a_run_whose_options_replace_settings_is_resumed(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An entry of the portfolio is not kept as if the user had given it, with its settings."""
    options = {"recipe": recipe, "steps": 8, "out": tmp_path / "run"}
    with monkeypatch.context() as patched:
        patched.setattr(engine, "train_candidate", lambda *_, **__: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            api.train("digits", budget=Budget(4.0), **options)
    found = api.resume(tmp_path / "run")
    assert found.document["recipe"]["steps"] == 8
    assert api.verify(tmp_path / "run")[1] == []


@pytest.mark.unit
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_share": math.nan}, "batch_share"),
        ({"batch_share": -1.0}, "batch_share"),
        ({"steps": 2.6}, "integer"),
        ({"learning_rate_most": 0.0}, "learning_rate_most"),
        ({"learning_rate_scale": "x"}, "learning_rate_scale"),
        ({"average": 1.0}, "a fraction in"),
    ],
)
def test_settings_of_a_network_are_checked_before_anything_is_charged(
    settings: dict[str, Any], words: str
):
    with pytest.raises(UsageError, match=words):
        arch_plan(table(), architecture={**LINEAR, "settings": settings}, recipe="default")


@pytest.mark.unit
def test_a_papers_figure_is_of_the_training_that_is_made():
    own = {"layers": [], "settings": {"batch_share": 0.05, "steps": 160}}
    plan = api.plan_training(table(3000), budget=Budget(3.0), architecture=own, recipe="sa-dpsgd")
    (claim,) = plan.list_published_bounds()
    trained = plan.trial_recipe(candidate_of(plan))
    (wanted,) = trained.list_published_bounds(plan.split.train, plan.delta)
    assert claim == wanted
    assert trained.expected_batch_size == round(0.05 * plan.split.train)
