"""The temperature: calibrated probabilities, the same labels, one place that divides the logits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax
from torch import nn

from pasearch import Budget, load, search_architecture, select_features, verify
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.results import Result
from pasearch.runs.keys import Keys
from pasearch.search.weights import Trajectory
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Dense
from pasearch.training.recipe import Recipe, make_default_recipe
from pasearch.training.settings import make_linear_recipe, tune_recipe
from pasearch.training.temperature import WEAK_FACTOR, compute_temperature, divide_logits
from pasearch.training.trainer import train

N, HELD_OUT = 9_000, 3_000
NEAR = 0.03
"""Nats of log loss that separate a public temperature from the best one for a table."""


STRENGTH = {2: 0.7, 5: 1.5}
"""Size of the weights that classes are drawn by: the accuracy is .8 to .85, as on public tables."""


def table(classes: int) -> pd.DataFrame:
    """Return records whose classes are drawn from known probabilities."""
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(N + HELD_OUT, 6))
    logits = x @ rng.normal(size=(6, classes)) * STRENGTH[classes] + np.linspace(0.6, 0.0, classes)
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(6)])
    return frame.assign(y=[f"class {each:02}" for each in drawn])


def schema(classes: int) -> dict[str, Any]:
    columns: dict[str, Any] = {f"x{place}": {"low": -3, "high": 3} for place in range(6)}
    columns["y"] = {"categories": [f"class {each:02}" for each in range(classes)]}
    return {"target": "y", "columns": columns}


def fitted(kind: str, classes: int, out: Path, **more: Any) -> tuple[Result, pd.DataFrame]:
    """Return a run on most records of a table, and its other records."""
    frame = table(classes)
    given: dict[str, Any] = {
        "schema": schema(classes), "budget": Budget(1.0), "seed": 3, "out": out, "device": "cpu",
    } | more  # fmt: skip
    if kind == "features":
        return select_features(frame.iloc[:N], method="all", **given), frame.iloc[N:]
    return search_architecture(frame.iloc[:N], strategy="fixed", **given), frame.iloc[N:]


def log_loss(chances: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(chances[np.arange(len(y)), y]).mean())


@pytest.mark.oracle
def test_probabilities_are_calibrated(tmp_path: Path):
    """Below the base rate, and near to the best temperature, on a table that no study has seen."""
    for kind, classes in [("features", 2), ("features", 5), ("arch", 2)]:
        result, held = fitted(kind, classes, tmp_path / f"{kind}-{classes}")
        y = np.searchsorted(result.classes_, held["y"].to_numpy(str))
        chances = result.predict_proba(held)
        logits = np.log(chances)
        best = min(
            -log_softmax(scale * logits, axis=1)[np.arange(len(y)), y].mean()
            for scale in np.geomspace(0.2, 5.0, 81)
        )
        shares = np.bincount(y, minlength=classes) / len(y)
        assert log_loss(chances, y) < -(shares * np.log(shares)).sum()
        assert log_loss(chances, y) < best + NEAR
        check_statement(result)
        again: Any = load(result.path)
        assert (again.predict_proba(held) == chances).all()


def check_statement(result: Result) -> None:
    """The result states the temperature, which `verify` recomputes, and the report says it."""
    recipe, slots = result.document["recipe"], result.document["dataset"]["slots"]["train"]
    signal = slots * math.sqrt(recipe["steps"] * math.expm1(recipe["noise_multiplier"] ** -2))
    classes = len(result.classes_)
    assert recipe["temperature"] == pytest.approx(compute_temperature(classes, signal), rel=1e-6)
    assert verify(result.path)[1] == []
    assert "ogits divided by the public temperature" in result.report


def network_and_records(outputs: int = 3) -> tuple[nn.Sequential, Records]:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.normal(size=(60, 5)).astype(np.float32))
    y = torch.from_numpy(generator.integers(outputs, size=60))
    hidden = Architecture(layers=(Dense(units=4, activation="tanh"),))
    network = hidden.build((5,), outputs, Keys.from_seed(1).stream("weights").generator())
    return network, Records(x=x, y=y, valid=torch.ones(60, dtype=torch.bool), public=False)


def trained(temperature: float | None) -> tuple[nn.Sequential, Records]:
    network, records = network_and_records()
    recipe = Recipe(
        expected_batch_size=30, steps=8, learning_rate=2.0, noise_multiplier=1.0,
        temperature=temperature,
    )  # fmt: skip
    streams = {name: Keys.from_seed(2).stream(name) for name in ("batch", "noise", "dropout")}
    train(network, records, recipe, streams)
    return network.eval(), records


@pytest.mark.contract
class TestTrainer:
    def test_divides_the_logits_and_nothing_else(self):
        (plain, records), (divided, _) = trained(None), trained(2.5)
        with torch.no_grad():
            given, found = plain(records.x), divided(records.x)
        assert torch.allclose(given / 2.5, found, atol=1e-6)
        assert (given.argmax(1) == found.argmax(1)).all()
        hidden = [name for name in plain.state_dict() if name.startswith("0.")]
        assert hidden
        for name in hidden:
            assert torch.equal(plain.state_dict()[name], divided.state_dict()[name])

    def test_iterates_that_variants_are_made_of_are_divided_too(self):
        network, records = network_and_records()
        logits = []
        for temperature in (None, 2.0):
            kept = Trajectory(4, temperature)
            for step in range(1, 5):
                kept.record(step, network)
            for weights in kept.make_variants(network, 3)[1:7]:
                network_of, _ = network_and_records()
                network_of.load_state_dict(weights)
                with torch.no_grad():
                    logits.append(network_of(records.x))
        for given, found in zip(logits[:6], logits[6:], strict=True):
            assert torch.allclose(given / 2.0, found, atol=1e-6)

    def test_divides_a_bias_like_a_weight(self):
        weights = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
        divide_logits(weights, 4.0)
        assert weights["weight"].tolist() == [[0.25] * 3] * 2
        assert weights["bias"].tolist() == [0.25] * 2


@pytest.mark.contract
class TestRule:
    def test_is_of_public_numbers_alone(self):
        for mu, slots in ((0.01, 500), (0.3, 20_000)):
            expected = compute_temperature(2, mu * slots)
            assert make_linear_recipe(slots, mu, False, 2).temperature == expected

    def test_falls_with_the_number_of_classes(self):
        found = [compute_temperature(classes, 1e5) for classes in (2, 3, 5, 10, 26, 1000)]
        assert found == sorted(found, reverse=True)
        assert 1.9 < found[0] < 2.4
        assert 1.0 < found[-1] < 1.05

    def test_rises_where_noise_dominates(self):
        found = [compute_temperature(2, signal) for signal in (1e-3, 50.0, 100.0, 260.0, 1e6)]
        assert found == sorted(found, reverse=True)
        assert found[0] == found[2] == pytest.approx(WEAK_FACTOR * found[-1], rel=1e-3)

    def test_is_1_without_classes_or_without_clipping(self):
        assert make_linear_recipe(1000, 0.2, True).temperature == 1.0
        assert tune_recipe(make_default_recipe(1000), (), None, 1000, outputs=2).temperature == 1.0

    def test_leaves_the_recipe_of_a_user(self):
        own = make_default_recipe(1000, temperature=1.5)
        assert tune_recipe(own, (), 0.2, 1000, outputs=2).temperature == 1.5

    def test_refuses_what_is_no_temperature(self):
        for wrong in [0.0, -1.0, math.nan, math.inf, True, "2"]:
            with pytest.raises(UsageError, match="temperature"):
                make_default_recipe(1000, temperature=wrong)

    def test_costs_nothing(self):
        recipe = make_default_recipe(1000, noise_multiplier=1.0)
        with_one = make_default_recipe(1000, noise_multiplier=1.0, temperature=3.0)
        assert recipe.event(1000) == with_one.event(1000)


@pytest.mark.unit
def test_an_output_layer_without_a_bias_is_refused():
    """Another layer's tensor would be divided, and labels would change."""
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))
    with pytest.raises(ValueError, match="no output layer"):
        divide_logits(network.state_dict(), 2.0)
    divide_logits(network.state_dict(), None)
