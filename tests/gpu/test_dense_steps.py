"""Steps by a GPU's own kernels, interpreted: torch's steps, the bound, and who may share calls."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import interpreted
import pytest
import torch
from gpu.test_rounds import CLIP, SIGMA, STEPS, N, recipe, streams, weights
from gpu.test_rounds import RECIPES as ALL_RECIPES
from torch import Tensor, nn
from training import test_rounding_of_sums as rounding

from pasearch.data.partitions import Records
from pasearch.gpu import dense_kernels, dense_steps, gpu_training
from pasearch.gpu.bits import NO_STEP, STEPS_PER_BLOCK
from pasearch.gpu.dense_steps import HALVES_SLACK, DenseSteps, TrainingGroup, can_use_gpu_steps
from pasearch.gpu.gpu_training import GpuTraining
from pasearch.gpu.rounds import MAX_FLOAT32_ROWS
from pasearch.runs.keys import Keys
from pasearch.runs.normals import compute_grid_distance
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.modules import KeyedDropout, TemperedSigmoid
from pasearch.training.augmentation import Augmentation
from pasearch.training.clipping import (
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.encoded.noise import KolmogorovSmirnov
from pasearch.training.losses import RecordLoss
from pasearch.training.one_step import DeviceRecords, reseed_dropout, scale_class_weights
from pasearch.training.optimizers import SgdUpdate
from pasearch.training.per_example import PreparedNetwork
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers, flatten_parameters
from pasearch.training.schedules import StepDecay
from pasearch.training.trainer import Training

pytestmark = [
    # Rows that are not there divide by 0, and are left.
    pytest.mark.filterwarnings("ignore:divide by zero"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow encountered"),
]

CLASSES, SIDE = 3, 16


@pytest.fixture(autouse=True)
def code() -> Iterator[Any]:
    with interpreted.kernels() as found:
        yield found


def records(*, null: tuple[int, ...] = (), bad: tuple[int, ...] = (), n: int = N) -> Records:
    generator = torch.Generator().manual_seed(2)
    valid = torch.ones(n, dtype=torch.bool)
    valid[list(null)] = False
    x = torch.randn(n, SIDE, generator=generator)
    x[list(bad)] = math.nan
    return Records(
        x=x, y=torch.randint(0, CLASSES, (n,), generator=generator), valid=valid, public=False
    )


def numbers() -> Records:
    found = records(null=(3,))
    return replace(found, y=found.x[:, 0].tanh())


def plain() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(SIDE, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def linear() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE, CLASSES))


def deep() -> nn.Sequential:
    """All activations, dropout, a frozen layer, one without bias, and more numbers than a tile."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(SIDE, 70), nn.Sigmoid(), KeyedDropout(0.3), nn.Linear(70, 24, bias=False),
        nn.ReLU(), nn.Linear(24, 16).requires_grad_(False), TemperedSigmoid(), KeyedDropout(0.6),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


def frozen_first() -> nn.Sequential:
    torch.manual_seed(5)
    first = nn.Linear(SIDE, 9).requires_grad_(False)
    return nn.Sequential(first, KeyedDropout(0.2), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))


def frozen_relu() -> nn.Sequential:
    """Where a record that is no number would be zeros to what is trained."""
    torch.manual_seed(5)
    first = nn.Linear(SIDE, 9).requires_grad_(False)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def frozen_overflow() -> nn.Sequential:
    """Finite records of 10^32 are infinite behind the first layer, and none behind the second."""
    torch.manual_seed(5)
    layers = nn.Linear(SIDE, 9), nn.Linear(9, 9)
    for layer in layers:
        layer.requires_grad_(False).weight.mul_(1e8)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(9, CLASSES))


def of_numbers() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(SIDE, 8), nn.ReLU(), nn.Linear(8, 1))


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "plain": plain, "linear": linear, "deep": deep, "frozen first": frozen_first,
}  # fmt: skip

RECIPES = {
    name: ALL_RECIPES[name]
    for name in (
        "plain", "momentum and an average", "auto-s", "class weights", "capped", "reshuffled",
        "everybody", "less noise later",
    )
}  # fmt: skip


def begun(
    made: Recipe,
    model: nn.Module,
    data: Records,
    trial: int = 0,
    together: TrainingGroup | None = None,
) -> Training:
    training = GpuTraining(model, data, made, streams(trial), device="cpu", together=together)
    assert training._dense_steps is not None, "it is by kernels"
    return training


def trained(made: Recipe, model: nn.Module, data: Records, *, careful: bool = False) -> Tensor:
    """Return the weights after all steps, made in a round, or each with care."""
    training, done = begun(made, model, data), 0
    while done < made.steps:
        done += int(training.step()) if careful else training.steps(made.steps - done)
    training.finish()
    return weights(model)


def near(made: Recipe) -> float:
    """By how much weights may differ where sums are rounded to the next grid point."""
    assert made.bounding is not None
    rate, points = made.learning_rate, compute_grid_distance(SIGMA * made.bounding.sensitivity)
    assert rate is not None
    return 2 * made.steps * rate / made.expected_batch_size * points


def same_but_for_roundings(ours: Tensor, theirs: Tensor, made: Recipe) -> bool:
    apart = (ours - theirs).abs()
    return float(apart.max()) <= near(made) and float(apart.median()) <= 1e-5


# What steps compute


@pytest.mark.oracle
@pytest.mark.parametrize("name", RECIPES)
def test_steps_are_those_that_torch_makes_with_care(name: str):
    made, data = recipe(steps=3, **RECIPES[name]), records(null=(5,), bad=(7,))
    ours = trained(made, plain(), data)
    theirs = trained(made, plain(), data, careful=True)
    assert same_but_for_roundings(ours, theirs, made)
    assert not torch.allclose(ours, weights(plain()), atol=0.02)


@pytest.mark.oracle
@pytest.mark.parametrize("network", ["linear", "deep", "frozen first"])
def test_so_they_are_of_other_networks(network: str):
    made, data = recipe(steps=3, **RECIPES["momentum and an average"]), records(null=(5,), bad=(7,))
    ours = trained(made, NETWORKS[network](), data)
    theirs = trained(made, NETWORKS[network](), data, careful=True)
    assert same_but_for_roundings(ours, theirs, made)


@pytest.mark.oracle
def test_so_they_are_where_a_number_is_predicted():
    made = recipe(steps=3)
    ours, theirs = (trained(made, of_numbers(), numbers(), careful=c) for c in (False, True))
    assert same_but_for_roundings(ours, theirs, made)


@pytest.mark.unit
def test_without_noise_public_records_are_trained_on():
    made, data = recipe(steps=3).with_noise(None), replace(records(bad=(7,)), public=True)
    ours, theirs = (trained(made, plain(), data, careful=c) for c in (False, True))
    assert torch.allclose(ours, theirs, atol=1e-3)


@pytest.mark.unit
def test_a_step_depends_on_its_key_alone():
    """So a training in rounds of any length, and across blocks, is one training."""
    made, data = recipe(steps=STEPS_PER_BLOCK + 3, optimizer="momentum", average=0.1), records()
    models = linear(), linear()
    first, second = (begun(made, model, data) for model in models)
    for each in (first, second):
        assert each.max_round_steps == STEPS_PER_BLOCK
        each._finished = STEPS_PER_BLOCK - 5  # as if so many were made
    assert first.steps(2) == 2
    assert first.steps(1000) == 3
    assert first.steps(1) == 1
    for _ in range(2):
        first.begin_steps(1)
    assert (first.end_round(), first.end_round()) == (2, 0)
    assert (second.steps(1000), second.steps(3)) == (5, 3)
    for each in (first, second):
        each.finish()
    assert torch.equal(*map(weights, models))


# The bound


class Sums:
    """One network's sums of made-up records by kernels, without noise."""

    def __init__(self, network: nn.Sequential, x: Tensor, y: Tensor, bounding: ClippingMethod):
        torch.manual_seed(5)
        self.prepared, n = PreparedNetwork(network), len(x)
        (self.weights,) = flatten_parameters(self.prepared.parameters)
        self.buffers, self.x, self.y, self.bounding = (
            SumBuffers(self.prepared.parameters),
            x,
            y,
            bounding,
        )
        self.recipe = Recipe(
            expected_batch_size=n, steps=1, learning_rate=1.0, optimizer="sgd", average=None,
            bounding=bounding,
        )  # fmt: skip
        self.shares: Tensor | None = None

    def of(self, valid: Tensor, x: Tensor | None = None) -> Tensor:
        slots = DeviceRecords(self.x if x is None else x, self.y, valid, shares=self.shares)
        before = self.weights.clone()
        update = SgdUpdate([self.weights], 1.0)
        own = DenseSteps(
            self.prepared, slots, self.recipe, streams(), self.buffers, self.weights, update, None,
            lambda steps: steps,
        )  # fmt: skip
        own.start_steps(0, 1)
        self.right = own.count_valid_steps(0, 1) == 1
        self.weights.copy_(before)
        return self.buffers.flats[0].clone()

    def by_torch(self, valid: Tensor) -> Tensor:
        buffers = SumBuffers(self.prepared.parameters)
        reseed_dropout(self.prepared, streams()["dropout"], 0, self.x.device)
        self.bounding.sums(self.prepared, self.x, RecordLoss(self.y), mask=valid, buffers=buffers)
        buffers.write_back()
        return buffers.flats[0]


def of_size(n: int, size: float, network: nn.Sequential | None = None, **how: Any) -> Sums:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, SIDE, generator=generator) * size
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    return Sums(network or deep(), x, y, how.get("bounding", FlatClipping(clip_norm=CLIP)))


def only(n: int, *which: int) -> Tensor:
    return torch.isin(torch.arange(n), torch.tensor(which))


@pytest.mark.property
@pytest.mark.parametrize("size", [1e-6, 1.0, 100.0, 1e8])
@pytest.mark.parametrize("bounding", [FlatClipping(clip_norm=CLIP), AutoSClipping(bound=CLIP)])
def test_a_record_adds_at_most_the_bound_and_what_it_adds_alone(
    size: float, bounding: ClippingMethod
):
    n = 5
    sums = of_size(n, size, deep() if size == 1.0 else plain(), bounding=bounding)
    alone = [sums.of(only(n, k)).double() for k in range(n)]
    assert max(float(each.norm()) for each in alone) <= CLIP
    assert max(float(each.norm()) for each in alone) >= 0.9 * CLIP or size < 1.0
    everyone = sums.of(only(n, *range(n))).double()
    assert torch.allclose(everyone, sum(alone), atol=1e-5)


@pytest.mark.property
def test_the_worst_of_halves_is_within_the_bound():
    """Numbers just below a middle between two bfloat16 ones: both seconds and rests are largest."""
    worst = (1.0 + 2.0**-8) * (1 - 2.0**-18)
    x = torch.full((4, SIDE), worst) * torch.tensor([1.0, 2.0, -1.0, 64.0])[:, None]
    network = nn.Sequential(nn.Linear(SIDE, 1, bias=False))
    sums = Sums(network, x, torch.full((4,), -100.0 * worst), FlatClipping(clip_norm=1.0))
    with torch.no_grad():
        sums.weights.zero_()
    for k in range(4):
        found = float(sums.of(only(4, k)).double().norm())
        assert 1 - 2e-4 <= found <= 1.0
    assert HALVES_SLACK > 1 + 2.0**-14


@pytest.mark.unit
@pytest.mark.parametrize("network", [deep, linear])
def test_sums_are_torchs(network: Callable[[], nn.Sequential]):
    n = dense_steps.MAX_SMALL_BATCH + 4
    sums = of_size(n, 1.0, network())
    valid = torch.arange(n) % 7 != 0
    ours, theirs = sums.of(valid), sums.by_torch(valid)
    assert float((ours - theirs).norm()) <= 1e-3 * float(theirs.norm())
    assert sums.right


@pytest.mark.unit
@pytest.mark.parametrize(
    ("network", "value"),
    [
        *((network, value) for network in (plain, frozen_relu)
          for value in (math.nan, math.inf, -math.inf, 3.4e38)),
        (frozen_overflow, 1e32),
    ],
)  # fmt: skip
def test_a_record_that_is_not_finite_adds_exactly_nothing(
    network: Callable[[], nn.Sequential], value: float
):
    n = 10
    sums, bad = of_size(n, 1.0, network()), [1, 8]
    x = sums.x.clone()
    x[bad] = value
    everyone = only(n, *range(n))
    null = everyone.clone()
    null[bad] = False
    assert torch.equal(sums.of(everyone, x), sums.of(null))
    assert sums.of(null).any(), "others do"
    assert sums.right


@pytest.mark.unit
@pytest.mark.parametrize("weighted", [False, True])
def test_a_class_that_is_none_adds_exactly_nothing(weighted: bool):
    n = 8
    sums = of_size(n, 1.0, plain())
    if weighted:
        sums.shares = torch.tensor([1.0, 0.5, 0.25])
    null = only(n, 0, 1, 2, 3, 4)
    expected = sums.of(null)
    sums.y[5:] = torch.tensor([-1, CLASSES, 10**6])
    assert torch.equal(sums.of(only(n, *range(n))), expected)


@pytest.mark.unit
def test_a_record_whose_numbers_are_too_large_adds_nothing_however_small_its_gradient():
    """Times a tiny gradient its norm would be moderate, but halves of that have no digits left."""
    x = torch.ones(3, SIDE) * torch.tensor([1.0, 1e30, 1e18])[:, None]
    y = torch.tensor([1.0, 1e-30, 1e-18])
    sums = Sums(nn.Sequential(nn.Linear(SIDE, 1, bias=False)), x, y, FlatClipping(clip_norm=CLIP))
    with torch.no_grad():
        sums.weights.zero_()
    assert [bool(sums.of(only(3, k)).any()) for k in range(3)] == [True, False, True]


@pytest.mark.unit
def test_records_are_halved_once_for_all_that_share_calls():
    data, together = records(), TrainingGroup()
    both = [begun(recipe(), plain(), data, trial, together) for trial in (0, 1)]
    assert len({id(each._dense_steps._records) for each in both}) == 1  # pyright: ignore
    data.x.add_(1.0)  # others are halved anew
    other = begun(recipe(), plain(), data, 2, together)
    assert other._dense_steps._records is not both[0]._dense_steps._records  # pyright: ignore
    alone = [begun(recipe(), plain(), data) for _ in range(2)]
    assert alone[0]._dense_steps._records is not alone[1]._dense_steps._records  # pyright: ignore


@pytest.mark.property
def test_a_record_moves_a_sum_of_many_by_its_bound_at_most(
    monkeypatch: pytest.MonkeyPatch,
):
    """Records are made for its roundings (see test_rounding_of_sums.py)."""
    # Fewer programs. What is rounded are the sums of each block of records: those stay.
    wide = replace(
        dense_steps.LARGE_BATCH_TILES, first=dense_steps.LARGE_BATCH_TILES.first | {"M": 1024}
    )
    monkeypatch.setattr(dense_steps, "LARGE_BATCH_TILES", wide)
    monkeypatch.setattr(dense_kernels, "FACTOR_RECORDS", 1024)
    n, (build, one) = MAX_FLOAT32_ROWS, rounding.NETWORKS["one linear layer"]
    everybody, added = torch.ones(n, dtype=torch.bool), rounding.attacks(n)[0]
    sums = Sums(build(), one.expand(n, 1).clone(), -added, FlatClipping(clip_norm=1.0))
    moved = sums.of(everybody).double() - sums.of(everybody & ~only(n, 0)).double()
    assert 0.99 < float(moved.norm()) <= SUM_ROUNDING


@pytest.mark.unit
def test_the_bound_follows_from_the_sizes_of_blocks():
    """Three products of halves, units that cut off, and one rounding of the sum to float32."""
    from pasearch.gpu.dense_kernels import SUM_BLOCK_RECORDS

    assert {
        tiles.sums["K"] for tiles in (dense_steps.SMALL_BATCH_TILES, dense_steps.LARGE_BATCH_TILES)
    } == {SUM_BLOCK_RECORDS}
    in_block = 2 * 3 * SUM_BLOCK_RECORDS * (SUM_BLOCK_RECORDS + 1) * 2.0**-24
    assert 1.0 + in_block + 2 * MAX_FLOAT32_ROWS * 2.0**-24 <= SUM_ROUNDING


@pytest.mark.oracle
def test_a_sum_of_many_is_torchs():
    n = 520
    sums, everybody = of_size(n, 1.0, plain()), torch.ones(n, dtype=torch.bool)
    ours, torchs = sums.of(everybody), sums.by_torch(everybody)
    assert float((ours - torchs).norm()) <= 1e-3 * float(torchs.norm())


# Rounds


@pytest.mark.unit
def test_a_block_that_did_not_come_whole_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch):
    """Else its first step would have the key, and so the noise, of the block's before it."""
    made = recipe(steps=2 * STEPS_PER_BLOCK)
    training = begun(made, linear(), records())
    assert training.steps(1) == 1
    own = training._dense_steps
    assert own is not None
    before = own._given.clone()
    training._finished = STEPS_PER_BLOCK  # as if the first one's were made

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(dense_steps, "copy_to_device", full)
        with pytest.raises(torch.OutOfMemoryError):
            training.begin_steps(1)
    training.undo_round()
    assert training.steps(1) == 1
    assert not (own._given == before).all(1).any()


@pytest.mark.unit
def test_steps_are_not_looked_at_before_they_were_given():
    """Else the next block's keys would come before the last one's steps."""
    together = TrainingGroup()
    training = begun(recipe(steps=2 * STEPS_PER_BLOCK), linear(), records(), together=together)
    training._finished = STEPS_PER_BLOCK - 1
    training.begin_steps(1)
    with pytest.raises(RuntimeError, match="not started on the GPU"):
        training.begin_steps(1)
    together.run_pending()
    assert training.end_round() == 1
    training.begin_steps(1)
    together.run_pending()
    assert training.end_round() == 1


@pytest.mark.unit
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_step_that_may_be_wrong_is_made_again_with_care(at: int, monkeypatch: pytest.MonkeyPatch):
    made, data = recipe(optimizer="momentum", average=0.5, steps=3), records()
    expected, cared = trained(made, plain(), data), []
    model = plain()
    training = begun(made, model, data)
    training.begin_steps(made.steps)
    own = training._dense_steps
    assert own is not None
    own._wrong.fill_(at)
    own._weights.add_(100.0)  # what came of it must not be used
    honest = training._rounds.write_checked_sum  # pyright: ignore

    def noted(step: int, *more: Any) -> None:
        cared.append(step)
        honest(step, *more)

    monkeypatch.setattr(training._rounds, "write_checked_sum", noted)
    assert training.end_round() == made.steps
    training.finish()
    assert cared == [at]
    assert same_but_for_roundings(weights(model), expected, made)


@pytest.mark.unit
def test_batches_beyond_their_padding_are_made_with_care(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dense_steps, "PADDING_DEVIATIONS", -2.5)
    made, data = recipe(steps=5, expected_batch_size=9), records()
    training = begun(made, plain(), data)
    ours = trained(made, plain(), data)
    own = training._dense_steps
    assert own is not None
    own.copy_block_inputs(0)
    assert (own._over[:5] < NO_STEP).tolist() == [False, True, True, True, False]
    assert own.rows == 8
    assert same_but_for_roundings(ours, trained(made, plain(), data, careful=True), made)


@pytest.mark.unit
def test_an_empty_batch_is_noise_alone():
    made, data = recipe(expected_batch_size=1, steps=8), records()
    own = begun(made, plain(), data)._dense_steps
    assert own is not None
    own.copy_block_inputs(0)
    assert 0 in own._sizes[:8].tolist()
    ours, theirs = (trained(made, plain(), data, careful=c) for c in (False, True))
    assert same_but_for_roundings(ours, theirs, made)


@pytest.mark.unit
@pytest.mark.parametrize("together", [None, TrainingGroup()])
def test_a_round_that_nobody_looks_at_is_taken_back(together: TrainingGroup | None):
    made, model = recipe(optimizer="momentum", average=0.5), plain()
    training = begun(made, model, records(), together=together)
    before = weights(model)
    training.begin_steps(STEPS)
    if together is None:
        assert not torch.equal(weights(model), before)
    training.undo_round()
    assert torch.equal(weights(model), before)
    if together is not None:
        together.run_pending()  # it takes no part any more
        assert torch.equal(weights(model), before)


@pytest.mark.unit
def test_a_careful_step_moves_weights_by_the_kernel_that_every_step_has(
    monkeypatch: pytest.MonkeyPatch,
):
    """From one sum both make the same weights, memory and average, to the bit."""
    monkeypatch.setattr(dense_steps, "STORE_NOISY_SUMS", True)
    made, data, found = recipe(optimizer="momentum", average=0.5), records(), []
    for careful in (False, True):
        model = plain()
        training = begun(made, model, data)
        own = training._dense_steps
        assert own is not None
        training.steps(2)
        if careful:
            ours = found[0][0]
            monkeypatch.setattr(
                training._rounds, "write_checked_sum", lambda *_, to=own, of=ours: to._sum.copy_(of)
            )
            training.step()
        else:
            training.steps(1)
        (moment,), (mean,) = (
            [each["sum"].clone() for each in training._optimizer.states], training._average.means,
        )  # fmt: skip
        found.append((own._sum.clone(), weights(model), moment, mean.clone()))
        assert training.steps(1) == 1
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.unit
def test_a_round_that_could_not_be_taken_back_yet_is_when_it_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
):
    training = begun(recipe(), model := plain(), records())
    before = weights(model)
    training.begin_steps(STEPS)
    training._dense_steps._wrong.fill_(1)  # pyright: ignore
    honest = training._go_back

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_go_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.end_round()
    monkeypatch.setattr(training, "_go_back", honest)
    training.undo_round()
    assert torch.equal(weights(model), before)


@pytest.mark.unit
def test_a_block_stays_until_its_steps_were_looked_at():
    training = begun(recipe(steps=STEPS_PER_BLOCK + 3), linear(), records())
    training._finished = STEPS_PER_BLOCK - 2
    training.begin_steps(2)
    training._dense_steps._wrong.fill_(STEPS_PER_BLOCK - 1)  # pyright: ignore
    training.begin_steps(1)
    assert training._before is not None
    assert training._before.finished == STEPS_PER_BLOCK
    assert training.end_round() == 1


@pytest.mark.unit
def test_steps_behind_the_last_have_noise():
    made = recipe(steps=STEPS_PER_BLOCK, schedule=StepDecay(rate=0.8, period=1))
    training = begun(made, linear(), records())
    training._finished = STEPS_PER_BLOCK
    training.begin_steps(1)
    given = training._dense_steps._given.numpy().view("f8")  # pyright: ignore
    last = made.noise_multiplier_at(STEPS_PER_BLOCK - 1, N)
    assert last is not None
    assert (given[:, 0] * given[:, 1] == pytest.approx(last * SUM_ROUNDING * CLIP)) is True
    training.end_round()


# Together


@pytest.mark.unit
def test_what_a_training_gives_does_not_depend_on_the_others():
    data, made = records(null=(5,), bad=(7,)), recipe(optimizer="momentum", average=0.5, steps=3)
    short = replace(made, steps=2)
    asked = [("plain", made), ("deep", made), ("linear", short), ("plain", made)]

    def in_turns(which: list[int]) -> dict[int, Tensor]:
        together, models = TrainingGroup(), {k: NETWORKS[asked[k][0]]() for k in which}
        left = {
            k: begun(asked[k][1], models[k], data, trial=k, together=together) for k in which
        }  # fmt: skip
        done = 0
        for many in (2, 1):
            for training in left.values():
                training.begin_steps(many)
            if left:
                together.run_pending()
            assert all(training.end_round() == many for training in left.values())
            done += many
            for k in [k for k in left if asked[k][1].steps == done]:
                left.pop(k).finish()
        return {k: weights(model) for k, model in models.items()}

    every = in_turns([0, 1, 2, 3])
    for few in ([3, 1], [2], [0, 2]):
        for k, found in in_turns(few).items():
            assert torch.equal(found, every[k])


@pytest.mark.unit
@pytest.mark.parametrize("shares_calls", [False, True])
def test_memory_of_a_training_is_given_back_when_it_is_done(shares_calls: bool):
    """At once, not when Python next looks for cycles: a GPU's memory may be needed before."""
    together = TrainingGroup() if shares_calls else None
    training = begun(recipe(steps=1), linear(), records(), together=together)
    training.begin_steps(1)
    if together is not None:
        together.run_pending()
    training.end_round()
    left = weakref.ref(training._dense_steps)
    gc.collect()
    gc.disable()
    try:
        del training
        if together is not None:
            assert left() is not None, "others of its group may go on"
            together.run_pending()
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.unit
def test_each_training_has_noise_and_masks_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dense_steps, "STORE_NOISY_SUMS", True)
    made, data, together = recipe(), records(), TrainingGroup()
    models = [deep(), deep()]
    both = [begun(made, model, data, k, together) for k, model in enumerate(models)]
    for each in both:
        each.begin_steps(1)
    together.run_pending()
    apart = [each._sums.flats[0] for each in both]
    noise = (apart[0] - apart[1]) / (math.sqrt(2) * SIGMA * CLIP)
    assert 0.8 < float(noise.std()) < 1.2
    for each in both:
        each.end_round()


# Which trainings


@pytest.mark.unit
def test_a_loss_is_taken_within_one_tile():
    tiles = [
        tile
        for own in (dense_steps.SMALL_BATCH_TILES, dense_steps.LARGE_BATCH_TILES)
        for tile in (own.first, own.forward)
    ]
    assert min(tile["N"] for tile in tiles) >= dense_steps.MAX_NETWORK_OUTPUTS


@pytest.mark.unit
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "learning_rate": 0.01},
        {"bounding": PerLayerClipping(clip_norm=CLIP)}, {"denoising": KolmogorovSmirnov()},
        {"chunk": 5}, {"noise_multiplier": 1e22},
    ],
)  # fmt: skip
def test_other_recipes_are_torchs(changes: dict[str, Any]):
    training = GpuTraining(plain(), records(), recipe(**changes), streams(), device="cpu")
    assert training._dense_steps is None


@pytest.mark.unit
@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(KeyedDropout(0.2), nn.Linear(SIDE, CLASSES)),
        nn.Sequential(nn.Linear(SIDE, CLASSES), nn.Tanh()),
        nn.Sequential(nn.Linear(SIDE, CLASSES), KeyedDropout(0.2)),
        nn.Sequential(nn.Linear(SIDE, 65)), nn.Sequential(nn.Linear(SIDE, 9), nn.GELU()),
        nn.Sequential(nn.LayerNorm(SIDE), nn.Linear(SIDE, CLASSES)),
    ],
)  # fmt: skip
def test_other_networks_are_torchs(network: nn.Sequential):
    data = records()
    slots = DeviceRecords(data.x, data.y, data.valid)
    assert not can_use_gpu_steps(PreparedNetwork(network), slots, recipe(), streams())
    assert can_use_gpu_steps(PreparedNetwork(plain()), slots, recipe(), streams())
    wide = replace(slots, x=data.x.double())
    assert not can_use_gpu_steps(PreparedNetwork(plain().double()), wide, recipe(), streams())


@pytest.mark.unit
def test_class_weights_that_are_not_one_float32_a_class_are_torchs():
    data, made = records(), recipe(**RECIPES["class weights"])
    slots = DeviceRecords(data.x, data.y, data.valid)
    for shares, fits in (
        (torch.ones(CLASSES), True), (torch.ones(CLASSES - 1), False),
        (torch.ones(CLASSES + 1), False), (torch.ones(CLASSES, dtype=torch.float64), False),
    ):  # fmt: skip
        given = replace(slots, shares=shares)
        assert can_use_gpu_steps(PreparedNetwork(plain()), given, made, streams()) == fits
    short = replace(made, class_weights=made.class_weights[1:])  # pyright: ignore
    assert GpuTraining(plain(), data, short, streams(), device="cpu")._dense_steps is None
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        shares = scale_class_weights((1.0, 0.5), torch.device("cpu"))
    finally:
        torch.set_default_dtype(before)
    assert shares is not None
    assert shares.dtype is torch.float32


@pytest.mark.unit
@pytest.mark.parametrize(
    ("tallest", "longest"),
    [(128, 2 * N * (SIDE + CLASSES + 8)), (1000, (CLASSES + 1000) * (SIDE + 1))],
)
def test_matrices_of_more_places_than_32_bits_count_are_torchs(
    tallest: int, longest: int, monkeypatch: pytest.MonkeyPatch
):
    data, made = records(), recipe(**RECIPES["everybody"])
    asked = PreparedNetwork(linear()), DeviceRecords(data.x, data.y, data.valid), made, streams()
    monkeypatch.setattr(dense_steps, "MAX_TILE_ROWS", tallest)
    for places in (longest, longest + 1):
        monkeypatch.setattr(dense_steps, "MAX_INDEXED_NUMBERS", places)
        assert can_use_gpu_steps(*asked) == (places > longest)


@pytest.mark.unit
def test_secure_noise_views_and_a_lack_of_kernels_are_torchs(monkeypatch: pytest.MonkeyPatch):
    data = records()
    slots, keys = DeviceRecords(data.x, data.y, data.valid), Keys.from_seed(6, secure=True)
    secure = {name: keys.stream(name) for name in streams()}
    assert not can_use_gpu_steps(PreparedNetwork(plain()), slots, recipe(), secure)
    images = replace(slots, x=data.x.view(N, 1, 4, 4))
    flat = nn.Sequential(nn.Flatten(), plain())
    views = recipe(augmentation=Augmentation(views=2, shift=1))
    assert not can_use_gpu_steps(PreparedNetwork(flat), images, views, streams())
    assert can_use_gpu_steps(PreparedNetwork(flat), images, recipe(), streams())
    monkeypatch.setattr(gpu_training, "has_gpu_steps", lambda _: False)
    assert GpuTraining(plain(), data, recipe(), streams(), device="cpu")._dense_steps is None


@pytest.mark.slow
@pytest.mark.unit
def test_kernels_are_tried_on_few_and_on_many_rows(monkeypatch: pytest.MonkeyPatch):
    few, many = dense_steps.TEST_SHAPES
    with monkeypatch.context() as as_on_a_gpu:
        as_on_a_gpu.setattr(dense_kernels, "FACTOR_RECORDS", 1)
        as_on_a_gpu.setattr(dense_kernels, "FACTOR_COLUMNS", 1024)
        assert dense_steps._matches_torch("cpu", *few)
    assert dense_steps._matches_torch("cpu", *many)
    monkeypatch.setattr(DenseSteps, "list_backward_tiles", lambda *_, **__: [])
    assert not dense_steps._matches_torch("cpu", *few)


COMPILED = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pasearch.gpu import kernels as noise
from pasearch.gpu import dense_steps, dense_kernels as code

tables = dict.fromkeys(("trainings", "layers", "at", "rows", "doubts", "given"), "*i64")
counts = dict.fromkeys(("count", "step", "draw", "half"), "i32")
kinds = tables | counts | {"work": "*i32", "out": "*fp32"}

def ptx(kernel, options=None, **sizes):
    kind = {n: "constexpr" if n in sizes else kinds.get(n, "i64") for n in kernel.arg_names}
    kind |= {"out": "*i64"} if kernel is noise._words else {}
    places = {(kernel.arg_names.index(name),): value for name, value in sizes.items()}
    source = ASTSource(kernel, kind, constexprs=places)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

of = {"WIDE": code.TRAINING_FIELDS, "MANY": 4, "IS_EVEN": True}
products = "first", "forward", "backward", "sums"
few, many = dense_steps.SMALL_BATCH_TILES, dense_steps.LARGE_BATCH_TILES
for tiles, name in (*((few, each) for each in products), (many, "sums")):
    tile = dict(getattr(tiles, name))
    options = {option: tile.pop(option) for option in ("num_warps", "num_stages")}
    if name in ("first", "forward"):
        tile["OF_RECORDS"] = name == "first"
    kernel = getattr(code, "_forward" if name == "first" else f"_{name}")
    found = ptx(kernel, options, **of, **tile)
    assert "mma" in found and found.count("cp.async.cg") >= 4, name
ptx(code._factors, **of, M=code.FACTOR_RECORDS, K=code.FACTOR_COLUMNS)
of = {"WIDTH": code.TRAINING_FIELDS}
single = {"enable_fp_fusion": False}
exact = ptx(noise._release, single, MANY=noise.PAIRS_PER_PROGRAM, KEPT=True, **of)
assert "fma.rn.f32" not in exact and "sqrt.rn.f32" in exact and ".ftz" not in exact
assert "div" not in exact
settled = ptx(noise._settle, single, MANY=noise.SETTLE_BATCH, PROGRAMS=noise.SETTLE_PROGRAMS, **of)
assert "fma.rn.f32" not in settled
ptx(noise._uniform, MANY=1024), ptx(noise._words, MANY=256)
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.unit
@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings NVIDIA's assembler for Linux")
def test_kernels_compile_for_a_gpu_without_one():
    """Products on its matrix units, of what is copied 16 bytes at a time; noise uncontracted."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, timeout=500
    )  # fmt: skip
    assert found.stdout == "compiled\n", found.stderr
