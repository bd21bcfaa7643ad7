"""Contract: one record moves a step's sum, as computed, by at most R times the clipping norm.

The attack. Records are made so that a running sum in one precision stands just above a power of 2
with record 0 and just below it without. All later records add a little less than half of what
float32 numbers above that power are apart. Above it every such addition is rounded away, below it
every one is rounded up: the two sums drift apart (docs/guarantees/floating-point.md).

Every backend of a step, every kind of layer and several sizes of a batch are attacked.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from doubles import start_training
from torch import Tensor, nn

from pasearch.accounting.densities import StudentT
from pasearch.data.column import TOKEN_SCALE
from pasearch.data.mapping import full_precision
from pasearch.data.partitions import Records
from pasearch.gpu.gpu_training import GpuTraining
from pasearch.runs.keys import Keys
from pasearch.runs.normals import draw_normals
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.spaces.modules import (
    Gru,
    KeyedDropout,
    Lstm,
    TokenEmbedding,
    WeightStandardisedConv2d,
)
from pasearch.training import layer_rules, linear_backend, record_sums
from pasearch.training.augmentation import Augmentation
from pasearch.training.clipping import (
    AdaptiveClipping,
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
)
from pasearch.training.encoded.gradients import EncodedClipping
from pasearch.training.per_example import clipped_sum_and_counts, validate
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import SumBuffers

BATCHES = 64, 4096
NEAR = 1.0 - 2.0**-20
"""What one record adds at most, in units of the largest gradient: clipping never starts."""


class Scale(nn.Module):
    """One weight that multiplies its input: a layer without a closed form."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def zeroed(*layers: nn.Module, ones: tuple[int, ...] = ()) -> nn.Sequential:
    """Return layers whose weights are 0, but 1 in those at the indices `ones`."""
    network = nn.Sequential(*layers)
    for parameter in network.parameters():
        parameter.detach().zero_()
    for index in ones:
        network[index].weight.detach().fill_(1.0)  # pyright: ignore[reportCallIssue]
    return network


def standardised() -> nn.Sequential:
    network = nn.Sequential(
        WeightStandardisedConv2d(1, 1, 2, bias=False), nn.Flatten(), nn.Linear(1, 1, bias=False)
    )
    network[0].weight.detach().copy_(torch.tensor([[[[1.0, -1.0], [1.0, -1.0]]]]))  # pyright: ignore
    network[2].weight.detach().fill_(0.0)  # pyright: ignore[reportCallIssue]
    return network


IMAGE = torch.tensor([[[1.0, 1.0], [-1.0, 1.0]]])
NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], Tensor]] = {
    "one linear layer": (lambda: zeroed(nn.Linear(1, 1, bias=False)), torch.ones(1)),
    "many inputs": (lambda: zeroed(nn.Linear(20, 1, bias=False)), torch.ones(20)),
    "a bias": (lambda: zeroed(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)), torch.zeros(1)),
    "two linear layers": (
        lambda: zeroed(nn.Linear(1, 16, bias=False), nn.ReLU(), nn.Linear(16, 1, bias=False),
                       ones=(0,)),
        torch.ones(1),
    ),
    "positions": (
        lambda: zeroed(nn.Linear(1, 1, bias=False), nn.Flatten(), nn.Linear(4, 1, bias=False),
                       ones=(2,)),
        torch.ones(4, 1),
    ),
    "a convolution": (
        lambda: zeroed(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), nn.Linear(1, 1, bias=False),
                       ones=(2,)),
        torch.ones(1, 1, 1),
    ),
    "a convolution of several places": (
        lambda: zeroed(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 1), ones=(2,)),
        torch.ones(1, 2, 2),
    ),
    "standardised filters": (standardised, IMAGE),
    "group norm": (
        lambda: zeroed(nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(4, 1, bias=False), ones=(2,)),
        IMAGE,
    ),
    "layer norm": (
        lambda: zeroed(nn.LayerNorm(3), nn.Linear(3, 1, bias=False), ones=(1,)),
        torch.tensor([1.0, -1.0, 0.5]),
    ),
    "lstm": (lambda: zeroed(Lstm(1, 1), nn.Linear(1, 1, bias=False), ones=(1,)), torch.ones(1, 1)),
    "lstm of several steps": (
        lambda: zeroed(Lstm(1, 1, biases=2), nn.Linear(1, 1, bias=False), ones=(1,)),
        torch.ones(3, 1),
    ),
    "gru of several steps": (
        lambda: zeroed(Gru(1, 1, biases=2), nn.Linear(1, 1, bias=False), ones=(1,)),
        torch.ones(3, 1),
    ),
    "tokens": (
        lambda: zeroed(TokenEmbedding(4, 1), nn.Flatten(), nn.Linear(4, 1, bias=False), ones=(2,)),
        torch.tensor([2, 2, 0, 3]) / TOKEN_SCALE,
    ),
    "any layer": (lambda: zeroed(Scale()), torch.ones(1)),
}  # fmt: skip


def attacks(batch: int) -> list[Tensor]:
    """Return what records add, each in [-1, 1], (batch,): one attack for each way to sum.

    Of every `stride`-th record (a sum may run in so many lanes) the first `lead` build the lane's
    sum up to a power of 2, less a part of record 0. The others push: by about half of what float32
    numbers below that power are apart, all one way or in turns.
    """
    found = []
    for stride in (1, 4, 16):
        lane = batch // stride
        for lead in sorted({min(512, lane // 2), lane // 2}):
            below = lead * 2.0**-24  # float32 numbers just below `lead` are so far apart
            for pushes in ((-0.5001, -0.5001), (1.02, -0.98)) if lead > 1 else ():
                own = torch.empty(lane, dtype=torch.float64)
                own[0], own[1 : lead + 1] = NEAR, (lead - 0.5) / lead
                rest = lane - lead - 1
                turns = torch.tensor(pushes, dtype=torch.float64).repeat(lane)
                own[lead + 1 :] = below * turns[:rest]
                y = torch.zeros(batch, dtype=torch.float64)
                y[::stride] = own
                found.append(y.float())
    return found


def gradient_norm(network: nn.Sequential, x: Tensor) -> float:
    """Return the norm of the gradient of one record whose error is 1."""
    twin = copy.deepcopy(network)
    twin(x[None]).sum().backward()
    trained = [p for p in twin.parameters() if p.grad is not None]
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in trained))  # pyright: ignore


def largest_move(
    build: Callable[[], nn.Sequential],
    x: Tensor,
    batch: int,
    bounding: ClippingMethod | None = None,
    *,
    in_rounds: bool = False,
    augmentation: Augmentation | None = None,
) -> float:
    """Return the largest move of the sum of a full batch by record 0, in clipping norms."""
    clip = gradient_norm(build(), x) * 1.0001
    bounding = FlatClipping(clip_norm=clip) if bounding is None else bounding
    recipe = Recipe(
        expected_batch_size=batch, steps=2000, learning_rate=0.1, noise_multiplier=None,
        bounding=bounding, optimizer="sgd", average=None, augmentation=augmentation,
    )  # fmt: skip
    every = torch.ones(batch, dtype=torch.bool)
    without = every.clone()
    without[0] = False
    # The output is 0, so the gradient of the squared error is -y times that of the output.
    records = Records(x=x.expand(batch, *x.shape).clone(), y=-torch.ones(batch), valid=every,
                      public=True)  # fmt: skip
    streams = {name: Keys.from_seed(3).stream(name) for name in ("batch", "noise", "dropout")}
    training = start_training(build(), records, recipe, streams, in_rounds=in_rounds)
    worst = 0.0
    for added in attacks(batch):
        sums = []
        for valid in (every, without):
            slots = replace(training._slots, y=-added, valid=valid)
            training._slots = slots
            state = replace(training._state)
            with full_precision():
                if training._linear is not None:
                    inner = training._linear
                    inner._records = (inner._records[0], slots.y.numpy(), valid.numpy(),
                                      inner._records[3])  # pyright: ignore  # fmt: skip
                    training._linear.write_sum(0, None, state)
                elif isinstance(training, GpuTraining):
                    training._rounds.slots = slots
                    training._rounds.write_sum(0, None, state)
                else:
                    training._write_torch_sum(0, None, state)
            sums.append(torch.cat([total.clone() for total in training._sums.end()]))
        worst = max(worst, float((sums[0] - sums[1]).norm()))
    return worst / bounding.sensitivity


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch):
    """Let the linear backend make the steps of every training that it accepts."""
    monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", 0.0)


def check(move: float) -> None:
    assert 0.99 < move <= SUM_ROUNDING


@pytest.mark.contract
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NETWORKS)
def test_by_torch(name: str, batch: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", math.inf)
    check(largest_move(*NETWORKS[name], batch))


@pytest.mark.contract
@pytest.mark.parametrize("batch", [*BATCHES, 32_768])
@pytest.mark.parametrize("name", ["one linear layer", "many inputs", "a bias"])
def test_by_the_linear_backend(name: str, batch: int, linear: None):
    check(largest_move(*NETWORKS[name], batch))


@pytest.mark.contract
def test_in_rounds():
    for name in ["two linear layers", "a convolution", "any layer"]:
        check(largest_move(*NETWORKS[name], 4096, in_rounds=True))


@pytest.mark.contract
def test_other_ways_to_clip():
    for bounding in [
        PerLayerClipping(clip_norm=2.0),
        AutoSClipping(bound=1.0, gamma=1e-6),
        AdaptiveClipping(clip_norm=1.01),
        EncodedClipping(clip_norm=1.0, vectors=4),
        EncodedClipping(clip_norm=1.0, vectors=4, exact=True),
    ]:
        move = largest_move(*NETWORKS["one linear layer"], 32_768, bounding)
        assert 0.4 < move <= SUM_ROUNDING


@pytest.mark.contract
def test_groups_of_blocks(monkeypatch: pytest.MonkeyPatch):
    """Totals of groups add up to what one total adds up to."""
    network = zeroed(nn.Linear(3, 2))
    buffers, whole = (SumBuffers(list(network.parameters())) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    blocks = [torch.randn(8, generator=generator) for _ in range(11)]
    for each in blocks:
        whole.flats[0].copy_(each)
        whole.add_block()
    expected = whole.end()[0].clone()
    monkeypatch.setattr(record_sums, "MAX_GROUP_BLOCKS", 3)
    for _ in range(2):  # the second step begins with nothing of the first
        buffers.reset()
        for each in blocks:
            buffers.flats[0].copy_(each)
            buffers.add_block()
        for _ in range(2):  # asked again, they are the same
            np.testing.assert_allclose(buffers.end()[0], expected, rtol=1e-14)


@pytest.mark.contract
@pytest.mark.parametrize("views", [1, 2])
def test_a_sum_takes_the_gradient_whose_norm_was_taken(views: int, monkeypatch: pytest.MonkeyPatch):
    """A second pass may round, or draw, otherwise: here it gives a thousand times as much."""
    passes: list[int] = []
    honest = layer_rules.LayerRule.form_gradients

    def other(self: layer_rules.LayerRule, seen: layer_rules.CapturedLayer) -> dict[str, Tensor]:
        passes.append(len(seen.input))
        return {
            name: each * 1000.0 ** (len(passes) - 1) for name, each in honest(self, seen).items()
        }

    monkeypatch.setattr(layer_rules.LayerRule, "form_gradients", other)
    x, mask = torch.ones(130 * views, 1), torch.arange(130) == 0
    (total,), _ = clipped_sum_and_counts(
        zeroed(Scale()), x, lambda out: out[:, 0], FlatClipping(clip_norm=0.5), mask, views=views
    )
    assert passes == [130 * views]
    assert abs(float(total)) <= 0.5


@pytest.mark.unit
def test_a_layer_that_draws_within_itself_is_refused():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.drop = nn.Parameter(torch.ones(1)), KeyedDropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x) * self.weight

    (problem,) = validate(nn.Sequential(Drawing(), nn.Linear(1, 1)))
    assert "draws random numbers inside a layer" in problem


@pytest.mark.unit
def test_the_bound_follows_from_the_sizes_of_blocks():
    """R covers blocks, their rounding, groups, and products of halves; see the proof."""
    block, groups = record_sums.BLOCK_RECORDS, 2**9
    in_block = block * (block + 1) * 2.0**-24 * (1 + 2.0**-5) + 2 * block * 2.0**-24
    in_groups = (record_sums.MAX_GROUP_BLOCKS + 1.0) ** 2 * block * 2.0**-53
    of_groups = (groups + 1.0) ** 2 * record_sums.MAX_GROUP_BLOCKS * block * 2.0**-53
    assert 1.0 + in_block + in_groups + of_groups <= SUM_ROUNDING


@pytest.mark.contract
@pytest.mark.parametrize("way", ["linear", "torch", "rounds", "another density"])
def test_noise_is_scaled_to_what_a_record_moves(way: str, monkeypatch: pytest.MonkeyPatch):
    """Noise of every backend has the standard deviation sigma R C, measurably above sigma C."""
    monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", 0.0 if way == "linear" else math.inf)
    network, sigma, clip = zeroed(nn.Linear(999, 4)), 1.5, 0.5
    density = StudentT(freedom=9.0) if way == "another density" else None
    bounding = (
        EncodedClipping(clip_norm=clip, vectors=4) if density else FlatClipping(clip_norm=clip)
    )
    recipe = Recipe(
        expected_batch_size=8, steps=2000, learning_rate=0.1, noise_multiplier=sigma, noise=density,
        bounding=bounding, optimizer="sgd", average=None,
    )  # fmt: skip
    if density is not None:
        expected = recipe.density(sigma).scale * SUM_ROUNDING
        assert recipe.drawn_density(sigma).scale == pytest.approx(expected, rel=1e-12)
    null = Records(x=torch.zeros(64, 999), y=torch.zeros(64, dtype=torch.int64),
                   valid=torch.zeros(64, dtype=torch.bool), public=False)  # fmt: skip
    streams = {name: Keys.from_seed(3).stream(name) for name in ("batch", "noise", "dropout")}
    training = start_training(network, null, recipe, streams, in_rounds=way == "rounds")
    assert (training._linear is not None) == (way == "linear")
    training.steps(1)
    released = training._sums.flats[0].double().numpy()
    if density is None:
        exact = draw_normals(len(released), streams["noise"], 0).compute().values
        scale = float(released @ exact) / float(exact @ exact)
        assert scale == pytest.approx(SUM_ROUNDING * sigma * clip, rel=2e-4)
    else:
        drawn = recipe.drawn_density(sigma)
        assert np.abs(released).mean() == pytest.approx(drawn.mean_absolute, rel=0.1)


@pytest.mark.unit
def test_the_attack_finds_one_running_float32_sum():
    """The attack has teeth: numbers added one by one in float32 move by far more than R."""
    worst = 0.0
    for added in attacks(32_768):
        totals = []
        for first in (added[0], torch.tensor(0.0)):
            numbers = added.clone()
            numbers[0] = first
            totals.append(float(np.cumsum(numbers.numpy(), dtype=np.float32)[-1]))
        worst = max(worst, abs(totals[0] - totals[1]))
    assert worst > 2.0
