"""The lattice attack on sums and on final weights: it finds the samplers of before, and not ours.

Two worlds: a canary's record is there, or null. The attacker knows everything but the noise. The
audit's teeth are the samplers that this program had: float32 normal numbers, float64 ones rounded
to float32, and float64 ones added in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from lattices import Attack, advantage, lower_bound
from torch import Tensor, nn
from torch.nn import functional

from pasearch.accounting.accountants import price
from pasearch.accounting.densities import Cauchy, Density, LaplaceNoise, StudentT
from pasearch.accounting.events import Gaussian
from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import count_pairs, normals_from_words
from pasearch.runs.sums import SUM_ROUNDING, GaussianSum
from pasearch.training import noise, one_step, training_loop
from pasearch.training.clipping import FlatClipping
from pasearch.training.encoded.noise import begin_noise, sample_noise
from pasearch.training.one_step import compute_noisy_sum
from pasearch.training.per_example import clipped_sum_and_counts
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

N, FEATURES, CLASSES, SIGMA, DELTA = 16, 784, 50, 20.0, 1e-5
SEEN = 2000
"""Coordinates that are attacked: of the first class's 784, and of the next ones'."""
RUNS, FEW = 60, 30
PAID = price(Gaussian(SIGMA), DELTA).epsilon


@cache
def records(present: bool) -> Records:
    made = torch.Generator().manual_seed(4)
    x, y = torch.rand(N, FEATURES, generator=made), torch.arange(N) % CLASSES
    valid = torch.ones(N, dtype=torch.bool)
    valid[0] = present
    return Records(x=x * valid[:, None], y=y, valid=valid, public=False)


def network() -> nn.Module:
    layer = nn.Linear(FEATURES, CLASSES, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def recipe(optimizer: str = "sgd", average: float | None = None) -> Recipe:
    return Recipe(
        expected_batch_size=N, steps=1, learning_rate=0.5, noise_multiplier=SIGMA,
        bounding=FlatClipping(clip_norm=1.0), optimizer=optimizer, average=average,
    )  # fmt: skip


def streams(present: bool, run: int) -> dict[str, Stream]:
    trial = Keys.from_seed(2 * run + present).stream("trial")
    return {name: trial.child(name) for name in ("batch", "noise", "dropout")}


@cache
def clean(present: bool) -> np.ndarray:
    """The sum without noise, float32, (SEEN,)."""
    data, model = records(present), network()

    def loss(outputs: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, data.y, reduction="none")

    (total,), _ = clipped_sum_and_counts(
        model, data.x, loss, FlatClipping(clip_norm=1.0), data.valid
    )
    return total.flatten()[:SEEN].numpy()


def added(z: np.ndarray, total: np.ndarray) -> np.ndarray:
    """What the old sampler's numbers went through: one float32 multiplication and addition."""
    scale = SIGMA * SUM_ROUNDING
    return torch.from_numpy(total.copy()).add_(torch.from_numpy(z), alpha=scale).numpy()


def stepped(made: Recipe) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The same, and then what turns a sum into weights: the trainer's own division and step."""

    return lambda z, total: moved(made, added(z, total))


def moved(made: Recipe, total: np.ndarray) -> np.ndarray:
    """What a released sum does to weights that begin at 0."""
    weights = torch.zeros(len(total))
    optimizer, average = (
        made.optimizer_stage.of([weights], made.learning_rate),
        training_loop.WeightAverage([weights], made),
    )
    weights.grad = torch.from_numpy(total.copy()).div_(made.expected_batch_size)
    optimizer.step()
    average.update(0)
    average.install()
    return weights.numpy()


def sums(present: bool, run: int) -> np.ndarray:
    data = records(present)
    slots = one_step.DeviceRecords(x=data.x, y=data.y, valid=data.valid)
    (total,) = compute_noisy_sum(network(), slots, recipe(), streams(present, run), 0)
    return total.flatten()[:SEEN].numpy()


def weights(made: Recipe) -> Callable[[bool, int], np.ndarray]:
    def release(present: bool, run: int) -> np.ndarray:
        model = network()
        train(model, records(present), made, streams(present, run))
        return model.weight.detach().flatten()[:SEEN].numpy()

    return release


TRAININGS = {
    "sgd": recipe(),
    "momentum": recipe("momentum"),
    "average": recipe(average=0.2),
    "momentum and average": recipe("momentum", 0.2),
    "adam": recipe("adam"),
}


def attacked(name: str, runs: int = RUNS) -> tuple[int, int]:
    made = TRAININGS.get(name, recipe())
    forward = added if name == "sum" else stepped(made)
    ends = [forward(np.full(SEEN, z, np.float32), clean(False)).mean() for z in (0.0, 1.0)]
    attack = Attack(forward, float(ends[1] - ends[0]))
    release = sums if name == "sum" else weights(made)
    return advantage(attack, release, (clean(False), clean(True)), runs)


class Old:
    """Noise as it was: float32 numbers, multiplied and added in float32."""

    def __init__(self, numbers: np.ndarray):
        self._numbers = torch.from_numpy(numbers)

    def add_to(self, each: list[Tensor], scale: float, team: object = None) -> None:
        parts = self._numbers.split([one.numel() for one in each])
        for one, part in zip(each, parts, strict=True):
            one.copy_(one.float().add_(part.view_as(one), alpha=scale))


def float32_normals(count: int, stream: Stream, step: int) -> np.ndarray:
    return stream.generator(step).standard_normal(count, dtype=np.float32)


def rounded_normals(count: int, stream: Stream, step: int) -> np.ndarray:
    return stream.generator(step).standard_normal(count).astype(np.float32)


def old_sampler(patch: pytest.MonkeyPatch, numbers: Callable[..., np.ndarray]) -> None:
    patch.setattr(
        one_step, "begin_gaussian_noise",
        lambda count, device, stream, step, **_: lambda: Old(numbers(count, stream, step)),
    )  # fmt: skip


NAMES = ["sum", "sgd", "momentum", "average", "momentum and average"]


@pytest.mark.statistical
def test_the_attack_finds_nothing():
    for name in [*NAMES, "adam"]:
        assert lower_bound(*attacked(name), RUNS, DELTA) <= PAID


@pytest.mark.statistical
@pytest.mark.parametrize("numbers", [float32_normals, rounded_normals])
@pytest.mark.parametrize("name", NAMES)
def test_the_attack_finds_the_samplers_of_before(
    name: str, numbers: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
):
    old_sampler(monkeypatch, numbers)
    hits, alarms = attacked(name, FEW)
    assert hits >= 0.95 * FEW
    assert lower_bound(hits, alarms, FEW, DELTA) > 10 * PAID


# --- on a GPU, by a double of its path on the CPU


def on_a_double(patch: pytest.MonkeyPatch) -> None:
    """Take the path of a GPU: words made on the device, all numbers at once, by torch alone."""

    def other(device: torch.device, count: int, stream: Stream, step: int) -> Any:
        seed, _ = stream.seed_and_offset(step)
        words = torch.empty(2 * count_pairs(count), dtype=torch.int64)
        words.random_(-(2**63), None, generator=torch.Generator().manual_seed(seed % 2**63))
        return normals_from_words(words, count, stream, step)

    patch.setattr(noise, "draw_device_normals", other)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["sum", "momentum and average"])
def test_on_a_gpus_path_the_attack_finds_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    on_a_double(monkeypatch)
    assert lower_bound(*attacked(name), RUNS, DELTA) <= PAID


# --- other densities


def with_density(law: Density, numbers: Callable[..., Any]) -> tuple[int, int]:
    def release(present: bool, run: int) -> np.ndarray:
        total = torch.from_numpy(clean(present).copy())
        drawn = numbers(law, SEEN, torch.device("cpu"), streams(present, run)["noise"], 0)
        drawn.add_to([total], SIGMA * SUM_ROUNDING)
        return total.numpy()

    attack = Attack(added, SIGMA * SUM_ROUNDING, ziggurat=False)
    return advantage(attack, release, (clean(False), clean(True)), RUNS)


@pytest.mark.statistical
def test_other_densities_have_no_lattice_and_had_one():
    for law in [LaplaceNoise(), StudentT(), Cauchy()]:
        hits, alarms = with_density(law, lambda *key: begin_noise(*key)())
        assert lower_bound(hits, alarms, RUNS, DELTA) <= 0.5
        hits, alarms = with_density(law, lambda *key: Old(sample_noise(*key).float().numpy()))
        assert hits >= 0.95 * RUNS
        assert lower_bound(hits, alarms, RUNS, DELTA) > 1.5


# --- sums that are released once


def once(old: bool, symmetric: bool, runs: int = RUNS, first: int = 0) -> tuple[int, int]:
    """Attack a noisy sum of vectors, or a second moment, in float64."""
    rows = np.random.default_rng(3).normal(size=(20, 40))
    rows /= 2 * np.linalg.norm(rows, axis=1, keepdims=True)

    def total(present: bool) -> np.ndarray:
        used = rows[0 if present else 1 :]
        found = used.T @ used
        return found if symmetric else np.repeat(found.sum(axis=0), 20)

    upper = np.triu_indices(40)

    def seen(found: np.ndarray) -> np.ndarray:
        return found[upper] if symmetric else found

    def forward(z: np.ndarray, known: np.ndarray) -> np.ndarray:
        return known + SIGMA * SUM_ROUNDING * z

    def release(present: bool, run: int) -> np.ndarray:
        stream = streams(present, first + run)["noise"]
        if old:
            clean_sum = seen(total(present))
            scale = SIGMA * SUM_ROUNDING
            return clean_sum + stream.generator().normal(0.0, scale, len(clean_sum))
        mechanism = GaussianSum(noise_multiplier=SIGMA)
        if symmetric:
            return seen(mechanism.release_symmetric(total(present), stream))
        return mechanism.release(total(present), stream)

    attack = Attack(forward, SIGMA * SUM_ROUNDING, kind=np.float64)
    return advantage(attack, release, (seen(total(False)), seen(total(True))), runs)


@pytest.mark.statistical
def test_released_sums_have_no_lattice_and_had_one():
    for symmetric in [False, True]:
        assert lower_bound(*once(False, symmetric), RUNS, DELTA) <= PAID
        hits, alarms = once(True, symmetric)
        assert hits >= 0.95 * RUNS
        assert lower_bound(hits, alarms, RUNS, DELTA) > 10 * PAID
