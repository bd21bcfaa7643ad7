"""Sums of bounded gradients: equal to one record at a time, and to Opacus; one record moves them
by no more than the sensitivity."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sums import clipped_sum
from torch import Tensor, nn
from torch.nn import functional

from pasearch.data.column import TOKEN_SCALE
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.spaces.modules import (
    Gru,
    KeyedDropout,
    Lstm,
    RowSequence,
    SkipConcat,
    TemperedSigmoid,
    TokenEmbedding,
    WeightStandardisedConv2d,
)
from pasearch.training import layer_rules, per_example
from pasearch.training.clipping import AutoSClipping, FlatClipping
from pasearch.training.layer_rules import (
    CapturedLayer,
    Conv2dRule,
    EmbeddingRule,
    GruRule,
    LayerRule,
    LinearRule,
    LstmRule,
    NormRule,
    WeightStandardisedRule,
)
from pasearch.training.per_example import list_trainable_layers, list_trainable_parameters, validate
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
BATCH = 5


class Tokens(nn.Module):
    """Words to numbers, as an embedding wants them."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x.abs() * 100).long() % 11)


class TokenNumbers(nn.Module):
    """Any numbers to few token numbers, so that tokens repeat, with padding and unknown ones."""

    def __init__(self, lowest: int = 0):
        super().__init__()
        self.lowest = lowest

    def forward(self, x: Tensor) -> Tensor:
        return ((x.abs() * 3).floor() + self.lowest) / TOKEN_SCALE + 0.0 * x


class Transposed(nn.Module):
    """(batch, channels, length) to (batch, length, channels)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Scaled(nn.Linear):
    """A subclass of Linear with a parameter more: no closed form."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.full((outputs,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def fcn() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 9), TemperedSigmoid(), nn.Linear(9, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


Build = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "fcn": (fcn, (12,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(12, 5, bias=False), nn.Tanh()), (12,)),
    "cnn": (cnn, (2, 10, 10)),
    "few positions": (lambda: nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Flatten()), (3, 12)),
    "many positions": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Flatten()), (20, 3)),
    "two axes of positions": (lambda: nn.Linear(3, 2), (4, 5, 3)),
    "one position": (lambda: nn.Linear(3, 2), (1, 3)),
    "embedding": (lambda: Tokens(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(24, 4)), (6,)),
    "padded embedding": (lambda: Tokens(nn.Embedding(11, 4, padding_idx=2)), (6,)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()),
        (2, 6, 6),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
        (12,),
    ),
    "group norm of vectors": (lambda: nn.GroupNorm(3, 12), (12,)),
    "group norm of sequences": (lambda: nn.GroupNorm(2, 4), (4, 7)),
    "layer norm of steps": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer norm of images": (lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    "layer norm without a bias": (lambda: nn.LayerNorm(6, bias=False), (4, 5, 6)),
    "joined": (
        lambda: nn.Sequential(SkipConcat(nn.Linear(6, 4), nn.Tanh()), nn.Linear(10, 3)),
        (6,),
    ),
    "lstm": (lambda: nn.Sequential(Lstm(6, 5), nn.Linear(5, 3)), (7, 6)),
    "lstm, two biases": (lambda: nn.Sequential(Lstm(6, 5, biases=2), nn.Tanh()), (7, 6)),
    "lstm, narrow and long": (lambda: Lstm(1, 2), (30, 1)),
    "lstm, one step": (lambda: Lstm(4, 3, biases=2), (1, 4)),
    "lstm behind layers": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), RowSequence(), Lstm(8, 4)),
        (1, 6, 6),
    ),
    "lstm of all states": (
        lambda: nn.Sequential(Lstm(6, 5, sequence=True), Lstm(5, 4), nn.Linear(4, 3)),
        (7, 6),
    ),
    "gru": (lambda: nn.Sequential(Gru(6, 5), nn.Linear(5, 3)), (7, 6)),
    "gru, two biases": (lambda: nn.Sequential(Gru(6, 5, biases=2), nn.Tanh()), (7, 6)),
    "gru, narrow and long": (lambda: Gru(1, 2), (30, 1)),
    "gru, one step": (lambda: Gru(4, 3, biases=2), (1, 4)),
    "gru of all states": (
        lambda: nn.Sequential(Gru(6, 5, sequence=True), Gru(5, 4), nn.Linear(4, 3)),
        (7, 6),
    ),
    "tokens": (lambda: nn.Sequential(TokenNumbers(), TokenEmbedding(4, 3)), (9,)),
    "one token": (lambda: nn.Sequential(TokenNumbers(1), TokenEmbedding(4, 3)), (1,)),
    "tokens, lstm": (
        lambda: nn.Sequential(TokenNumbers(), TokenEmbedding(7, 3), Lstm(3, 4), nn.Linear(4, 2)),
        (9,),
    ),
    "tokens, lstm and gru": (
        lambda: nn.Sequential(
            TokenNumbers(), TokenEmbedding(5, 3), Lstm(3, 4, sequence=True), Gru(4, 3)
        ),
        (9,),
    ),
    "weight-standardised": (
        lambda: nn.Sequential(WeightStandardisedConv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()),
        (2, 6, 7),
    ),
    "weight-standardised, grouped": (
        lambda: WeightStandardisedConv2d(4, 6, (2, 3), stride=2, padding=1, groups=2, bias=False),
        (4, 8, 7),
    ),
    "weight-standardised, one position": (lambda: WeightStandardisedConv2d(3, 4, 5), (3, 5, 5)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 5, 4)),
    "one-dimensional": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.PReLU(), Transposed(), nn.Linear(4, 2)),
        (3, 9),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "subclass": (lambda: Scaled(6, 4), (6,)),
}
CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "no bias": {"kernel_size": 3, "bias": False},
    "one by one": {"kernel_size": 1},
    "not square": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 0)},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "skipping": {"kernel_size": 2, "stride": 4},
    "whole image": {"kernel_size": (8, 7)},
    "same": {"kernel_size": 3, "padding": "same"},
    "same, even": {"kernel_size": (4, 2), "padding": "same"},
    "same, dilated": {"kernel_size": (2, 3), "padding": "same", "dilation": (3, 2)},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "grouped": {"kernel_size": 3, "groups": 2},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1, "out_channels": 8},
    "dilated": {"kernel_size": 2, "dilation": (2, 3), "stride": 2, "padding": 1},
    "grouped, strided, dilated": {
        "kernel_size": 3,
        "groups": 2,
        "stride": 2,
        "padding": 2,
        "dilation": 2,
    },
    "reflected": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "circular": {"kernel_size": 3, "padding": (1, 2), "padding_mode": "circular"},
}


def convolution(name: str) -> nn.Module:
    return nn.Conv2d(**{"in_channels": 4, "out_channels": 6, **CONVOLUTIONS[name]})


for convolved in CONVOLUTIONS:
    NETWORKS[f"convolution, {convolved}"] = (lambda name=convolved: convolution(name), (4, 8, 7))


def made(name: str, dtype: torch.dtype = torch.float64, batch: int = BATCH) -> tuple:
    """Return a network, records and each record's own numbers for the loss."""
    torch.manual_seed(3)
    build, shape = NETWORKS[name]
    network = build().to(dtype)
    x = torch.randn(batch, *shape, dtype=dtype)
    return network, x, torch.linspace(0.5, 2.0, batch, dtype=dtype)


def wave(own: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss for outputs of any shape, another for every record."""
    return lambda outputs: (outputs.flatten(1) * own[:, None]).sin().sum(dim=1)


class RecordingClip:
    """A bounding that keeps the norms it is given, and leaves the gradients as they are."""

    is_per_layer = False

    def factors(self, norms: Tensor) -> Tensor:
        self.norms = norms
        return torch.ones_like(norms)

    def within(self, norms: Tensor) -> None:
        return None


def one_by_one(network: nn.Module, x: Tensor, own: Tensor) -> Iterator[list[Tensor]]:
    """Yield each record's gradient, by autograd on a batch of one."""
    parameters = list_trainable_parameters(network)
    for i in range(len(x)):
        loss = wave(own[i : i + 1])(network(x[i : i + 1])).sum()
        yield [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(
                parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True
            )
        ]


def norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def expected_sum(gradients: list[list[Tensor]], bound: float) -> list[Tensor]:
    total = [torch.zeros_like(g) for g in gradients[0]]
    for each in gradients:
        factor = min(1.0, bound / (norm(each) * (1 + 1e-5)))
        total = [t + factor * g for t, g in zip(total, each, strict=True)]
    return total


def everyone(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool)


def assert_close(first: list[Tensor], second: list[Tensor], tolerance: float) -> None:
    scale = max(norm(second), 1e-30)
    assert norm([a - b for a, b in zip(first, second, strict=True)]) <= tolerance * scale


@pytest.mark.oracle
def test_norms_and_clipped_sums_are_those_of_one_record_at_a_time():
    for name in NETWORKS:
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            norms_and_clipped_sums_are_exact(name, dtype, tolerance)


def norms_and_clipped_sums_are_exact(name: str, dtype: torch.dtype, tolerance: float) -> None:
    network, x, own = made(name, dtype)
    gradients = list(one_by_one(network, x, own))
    norms = [norm(each) for each in gradients]
    clip = RecordingClip()
    plain = clipped_sum(network, x, wave(own), clip, everyone(x))  # pyright: ignore
    # Over positions a norm is taken too large by what rounding may hide, and never too small.
    for found, exact in zip(clip.norms.tolist(), norms, strict=True):
        assert (1 - tolerance) * exact <= found <= (1 + 30 * tolerance) * exact
    assert_close(plain, expected_sum(gradients, math.inf), tolerance)
    bound = sorted(norms)[BATCH // 2]
    clipped = clipped_sum(network, x, wave(own), FlatClipping(clip_norm=bound), everyone(x))
    assert [each.shape for each in clipped] == [p.shape for p in list_trainable_parameters(network)]
    assert_close(clipped, expected_sum(gradients, bound), 30 * tolerance)


@pytest.mark.oracle
def test_without_a_bound_the_sum_is_autograds():
    for name in NETWORKS:
        network, x, own = made(name)
        sums = clipped_sum(network, x, wave(own), None, everyone(x))
        loss = wave(own)(network(x)).sum()
        assert_close(
            sums, list(torch.autograd.grad(loss, list_trainable_parameters(network))), 1e-9
        )


@pytest.mark.oracle
def test_clipped_sums_are_opacus():
    for name in ["fcn", "no bias", "cnn", "group norm", "layer norm", "embedding"]:
        for bound in [0.3, 3.0]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opacus = pytest.importorskip("opacus")
                network, x, own = made(name)
                ours = clipped_sum(
                    network, x, wave(own), FlatClipping(clip_norm=bound), everyone(x)
                )
                theirs = opacus.GradSampleModule(network, loss_reduction="sum")
                wave(own)(theirs(x)).sum().backward()
                samples = [p.grad_sample for p in theirs.parameters()]
            gradients = [[s[i] for s in samples] for i in range(BATCH)]
            assert_close(ours, expected_sum(gradients, bound), 1e-9)


@pytest.mark.oracle
@pytest.mark.parametrize("name", [name for name in NETWORKS if name.startswith("convolution")])
def test_convolutions_unfolded_in_pieces_have_the_same_norms(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    network, x, own = made(name)
    whole, pieces = RecordingClip(), RecordingClip()
    clipped_sum(network, x, wave(own), whole, everyone(x))  # pyright: ignore
    monkeypatch.setitem(layer_rules.MAX_UNFOLDED_VALUES, "cpu", 1)
    clipped_sum(network, x, wave(own), pieces, everyone(x))  # pyright: ignore
    assert torch.allclose(whole.norms, pieces.norms, rtol=1e-12)


@pytest.mark.oracle
def test_gram_norms_hold_where_float32_cancels():
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    a = 100.0 + torch.randn(3, 8, 64)
    d = torch.randn(3, 8, 64)
    d = d - d.mean(dim=1, keepdim=True)
    exact = (d.double().transpose(1, 2) @ a.double()).flatten(1).square().sum(dim=1)
    assert 64 * 64 > 2 * 8**2, "the layer takes the Gram form"
    ours = LinearRule().squared_norms(CapturedLayer(layer, a, d))
    assert ours.dtype == torch.float32
    # What the weighted sum's rounding may be is added: here the terms cancel, so it shows.
    rounding = 2 * 8 * torch.finfo(torch.float32).eps
    added = rounding * a.flatten(1).norm(dim=1) * d.flatten(1).norm(dim=1)
    assert torch.allclose(ours.double(), (exact.sqrt() + added.double()).square(), rtol=1e-6)
    coarse = ((a @ a.transpose(1, 2)) * (d @ d.transpose(1, 2))).flatten(1).sum(dim=1)
    assert not torch.allclose(coarse.double(), exact, rtol=1e-4), "the test has no teeth"


@pytest.mark.oracle
def test_norms_are_right_at_any_length():
    """Equal numbers are the worst: every addition may round in the same direction."""
    for length in [255, 256, 257, 1000, 65_536, 65_537, 1_000_003]:
        for axis, shape in ((1, (2, length, 1)), (2, (2, 1, length))):
            for size in (1.0, 0.7, 1e-15, 1e15):
                values = torch.full(shape, size)
                values[1] = torch.randn(length).view(shape[1:])
                found = layer_rules.compute_norms_along(values, axis).flatten().double()
                exact = values.double().flatten(1).square().sum(dim=1).sqrt()
                assert ((found / exact - 1).abs() < 1e-6).all(), (size, axis)


@pytest.mark.oracle
def test_one_long_sum_would_be_wrong():
    """Why norms are taken of pieces; on a processor that adds otherwise there is nothing to see."""
    ones = torch.full((1, 2**24), 0.7)
    exact = float(ones.double().square().sum().sqrt())
    if abs(float(torch.linalg.vector_norm(ones, dim=1)) / exact - 1) < 1e-4:
        pytest.skip("torch adds long vectors up well here")
    assert abs(float(layer_rules.compute_norms_along(ones, 1)) / exact - 1) < 1e-6


@pytest.mark.contract
def test_parameters_gradients_and_hooks_are_left_as_they_were():
    for name in NETWORKS:
        network, x, own = made(name)
        before = [p.detach().clone() for p in network.parameters()]
        clipped_sum(network, x, wave(own), FlatClipping(), everyone(x))
        assert all(p.grad is None for p in network.parameters())
        assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
        assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.contract
def test_a_masked_record_adds_exactly_0():
    for name in NETWORKS:
        network, x, own = made(name, torch.float32)
        mask = everyone(x)
        mask[2] = False
        other, rest = x.clone(), torch.arange(BATCH) != 2
        other[2] = 7.0 * other[2] + 1.0
        for bounding in (FlatClipping(), AutoSClipping()):
            sums = clipped_sum(network, x, wave(own), bounding, mask)
            again = clipped_sum(network, other, wave(own), bounding, mask)
            assert all(map(torch.equal, sums, again)), bounding
            alone = clipped_sum(network, x[rest], wave(own[rest]), bounding, everyone(x[rest]))
            assert_close(sums, alone, 1e-5)
            nobody = clipped_sum(network, x, wave(own), bounding, torch.zeros_like(mask))
            assert norm(nobody) == 0.0, bounding


DENSE = [name for name in NETWORKS if "embedding" not in name]


@pytest.mark.contract
def test_a_record_that_is_not_finite_adds_exactly_0_and_the_others_what_they_did():
    for name in DENSE:
        network, x, own = made(name, torch.float32)
        mask = everyone(x)
        mask[1] = False
        expected = clipped_sum(network, x, wave(own), FlatClipping(), mask)
        for value in (math.nan, math.inf, -math.inf, 3e38):
            for place in (slice(None), slice(-1, None)):
                broken = x.clone()
                broken[1].view(-1)[place] = value
                clip = RecordingClip()
                clipped_sum(network, broken, wave(own), clip, everyone(x))  # pyright: ignore
                sums = clipped_sum(network, broken, wave(own), FlatClipping(), everyone(x))
                case = f"{value} at {place}"
                assert all(bool(torch.isfinite(each).all()) for each in sums), case
                if not torch.isfinite(clip.norms[1]):
                    assert all(map(torch.equal, sums, expected)), case
                else:
                    assert value == 3e38, f"only a number can have a finite gradient: {case}"
                    moved = norm([a - b for a, b in zip(sums, expected, strict=True)])
                    assert moved <= 1.0 + 1e-5, case


@pytest.mark.contract
def test_a_loss_that_is_not_finite_adds_exactly_0():
    for fault in [math.nan, math.inf]:
        network, x, own = made("cnn", torch.float32)
        mask = everyone(x)
        mask[3] = False
        expected = clipped_sum(network, x, wave(own), FlatClipping(), mask)
        wrong = own.clone()
        wrong[3] = fault
        assert all(
            map(torch.equal, clipped_sum(network, x, wave(wrong), FlatClipping(), mask), expected)
        )
        assert all(
            map(
                torch.equal,
                clipped_sum(network, x, wave(wrong), FlatClipping(), everyone(x)),
                expected,
            )
        )


@pytest.mark.contract
def test_nan_adds_exactly_0_even_where_nothing_is_bounded():
    network, x, own = made("cnn", torch.float32)
    mask = everyone(x)
    mask[0] = False
    expected = clipped_sum(network, x, wave(own), None, mask)
    x[0, 0, 0, 0] = math.nan
    assert all(map(torch.equal, clipped_sum(network, x, wave(own), None, everyone(x)), expected))


SENSITIVE = [
    "fcn",
    "cnn",
    "few positions",
    "many positions",
    "layer norm",
    "layer norm of steps",
    "group norm",
    "convolution, grouped",
    "lstm",
    "lstm, narrow and long",
    "gru",
    "gru, narrow and long",
    "tokens",
    "tokens, lstm and gru",
    "weight-standardised",
]


@pytest.mark.property
@pytest.mark.parametrize("name", SENSITIVE)
@settings(max_examples=25)
@given(
    scale=st.sampled_from([0.0, 1e-25, 1e-10, 1e-3, 1.0, 30.0, 1e5, 1e15, 1e30]),
    heat=st.sampled_from([1e-3, 1.0, 1e3]),
    bounding=st.sampled_from(
        [
            FlatClipping(clip_norm=0.1),
            FlatClipping(clip_norm=5.0),
            AutoSClipping(),
            AutoSClipping(bound=9.0),
        ]
    ),
    seed=st.integers(0, 2**20),
)
def test_one_record_to_null_moves_the_sum_by_no_more_than_the_sensitivity(
    name: str, scale: float, heat: float, bounding: FlatClipping | AutoSClipping, seed: int
):
    network, x, own = made(name, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    x[0] = torch.randn(x[0].shape, generator=generator) * scale
    own = own * heat
    mask = everyone(x)
    mask[0] = False
    without = clipped_sum(network, x, wave(own), bounding, mask)
    present = clipped_sum(network, x, wave(own), bounding, everyone(x))
    moved = norm([a - b for a, b in zip(present, without, strict=True)])
    assert moved <= bounding.sensitivity * (1 + 1e-5)  # two float32 sums are compared
    alone = clipped_sum(network, x[:1], wave(own[:1]), bounding, mask[1:2])
    assert norm(alone) <= bounding.sensitivity


@pytest.mark.contract
def test_a_gradient_is_bounded_even_where_the_squares_of_a_factor_underflow():
    for size, slope in [(1e-23, 1e18), (1e-23, 1e30), (1e-21, 1e21), (1e18, 1e-23), (1e30, 1e-23)]:
        x = torch.full((1, 6), size)
        for bounding in (
            FlatClipping(),
            FlatClipping(clip_norm=1e-6),
            AutoSClipping(),
            AutoSClipping(gamma=1e-6),
        ):
            for bias in (True, False):
                torch.manual_seed(0)
                network = nn.Linear(6, 3, bias=bias)
                sums = clipped_sum(
                    network, x, lambda y, k=slope: (y * k).sum(1), bounding, everyone(x)
                )
                assert norm(sums) <= bounding.sensitivity, (bounding, bias)


class Direction(nn.Module):
    """The direction of its input, which 0 does not have."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / x.norm(dim=-1, keepdim=True)


@pytest.mark.contract
def test_a_layer_without_a_gradient_at_0_gives_such_a_record_0():
    for value in [0.0, math.nan, math.inf]:
        for masked in [True, False]:
            x, own = torch.randn(4, 3), torch.ones(4)
            x[1] = value
            mask = everyone(x)
            mask[1] = not masked
            sums = clipped_sum(Direction(3), x, wave(own), FlatClipping(), mask)
            rest = torch.tensor([0, 2, 3])
            alone = clipped_sum(
                Direction(3), x[rest], wave(own[rest]), FlatClipping(), everyone(x[rest])
            )
            assert norm(alone) > 0.0
            assert_close(sums, alone, 1e-6)


@pytest.mark.contract
def test_frozen_parameters_have_no_sums_and_no_part_in_the_norms():
    for kept in ["weight", "bias"]:
        for name in [
            "fcn",
            "few positions",
            "cnn",
            "layer norm",
            "group norm",
            "layer norm of steps",
            "lstm",
            "lstm, two biases",
            "gru",
            "gru, two biases",
            "weight-standardised",
            "subclass",
        ]:
            network, x, own = made(name)
            for path, parameter in network.named_parameters():
                parameter.requires_grad_(path.endswith(kept))
            gradients = list(one_by_one(network, x, own))
            clip = RecordingClip()
            sums = clipped_sum(network, x, wave(own), clip, everyone(x))  # pyright: ignore
            assert len(sums) == len(gradients[0]) < len(list(network.parameters()))
            assert clip.norms.tolist() == pytest.approx(
                [norm(each) for each in gradients], rel=1e-9
            )
            assert_close(sums, expected_sum(gradients, math.inf), 1e-9)


@pytest.mark.contract
def test_a_frozen_layer_below_and_one_above_are_passed_through():
    network, x, own = made("cnn")
    network[3].requires_grad_(False)  # pyright: ignore
    gradients = list(one_by_one(network, x, own))
    sums = clipped_sum(network, x, wave(own), FlatClipping(clip_norm=0.5), everyone(x))
    assert len(sums) == 4
    assert_close(sums, expected_sum(gradients, 0.5), 1e-9)


class Idle(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.unit
def test_a_layer_that_is_not_used_has_the_sum_0():
    x = torch.randn(3, 4)
    sums = clipped_sum(Idle(), x, wave(torch.ones(3)), FlatClipping(), everyone(x))
    assert norm(sums[:2]) > 0.0
    assert norm(sums[2:]) == 0.0


class Odd(nn.Module):
    """A network with one layer and a forward pass of its own."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module):
        super().__init__()
        self.layer, self._pass = layer, forward

    def forward(self, x: Tensor) -> Tensor:
        return self._pass(self.layer, x)


class Second(nn.Linear):
    """A layer that takes two tensors."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:  # pyright: ignore
        return super().forward(x + other)


@pytest.mark.unit
def test_a_pass_that_hides_a_records_gradient_is_refused():
    for run, layer, message in [
        (lambda f, x: f(f(x)), nn.Linear(4, 4), "used twice"),
        (lambda f, x: f(x.reshape(-1, 2)).reshape(3, -1), nn.Linear(2, 2), "other rows"),
        (lambda f, x: f(x[:1]).expand(3, -1), nn.Linear(4, 4), "other rows"),
        (lambda f, x: f(x).tanh_().add_(1), nn.Linear(4, 4), "overwritten"),
        (lambda f, x: f(x, x), Second(4, 4), "one tensor to one tensor"),
        (lambda f, x: f(input=x), nn.Linear(4, 4), "one tensor to one tensor"),
        (lambda f, x: x * 2.0, nn.Linear(4, 4), "none of its trainable layers"),
        (lambda f, x: f(x[:, None])[:, 0], nn.Conv2d(3, 3, 1), "one image"),
    ]:
        x = torch.randn(3, 4)
        if isinstance(layer, nn.Conv2d):
            x = torch.randn(3, 3, 4)
            run = lambda f, x: f(x)  # noqa: E731
        network = Odd(run, layer)
        with pytest.raises(UsageError, match=message):
            clipped_sum(network, x, wave(torch.ones(3)), FlatClipping(), everyone(x))
        assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.contract
def test_networks_without_a_fault_are_accepted():
    assert {name: faults for name in NETWORKS if (faults := validate(made(name)[0]))} == {}


@pytest.mark.unit
def test_layers_without_a_proof_are_refused_by_path_with_what_to_use_instead():
    for layer, message in [
        (nn.BatchNorm1d(4), "nn.GroupNorm or nn.LayerNorm"),
        (nn.BatchNorm2d(4, affine=False), "nn.GroupNorm or nn.LayerNorm"),
        (nn.SyncBatchNorm(4), "nn.GroupNorm or nn.LayerNorm"),
        (nn.Dropout(0.5), "KeyedDropout"),
        (nn.Dropout2d(0.5), "KeyedDropout"),
        (nn.RReLU(), "nn.LeakyReLU"),
        (nn.FractionalMaxPool2d(2, output_size=2), "nn.MaxPool2d"),
        (nn.LSTM(4, 4), "pair"),
        (nn.GRU(4, 4), "pair"),
        (nn.MultiheadAttention(4, 2), "has no rule"),
        (nn.ParameterList([torch.zeros(3)]), "put them into a layer"),
        (nn.ParameterDict({"a": torch.zeros(3)}), "put them into a layer"),
        (nn.ReLU(inplace=True), "inplace=False"),
        (nn.Embedding(5, 3, max_norm=1.0), "max_norm=None"),
        (nn.Embedding(5, 3, sparse=True), "sparse=False"),
        (nn.Embedding(5, 3, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "buffers"),
        (nn.LayerNorm(4, eps=0.0), "constant"),
        (nn.GroupNorm(2, 4, eps=1e-50), "constant"),
        (nn.Linear(4, 4).half(), "float32"),
        (nn.Linear(4, 4).bfloat16(), "float32"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "put them into a layer"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), "buffers"),
    ]:
        network = nn.Sequential(nn.Linear(4, 4), layer)
        problems = validate(network)
        assert any(message in problem for problem in problems)
        assert all(problem.startswith("1") for problem in problems)


@pytest.mark.unit
def test_a_layer_with_hooks_is_refused():
    network = fcn()
    network[0].register_forward_hook(lambda *_: None)  # pyright: ignore
    assert ["hooks" in problem for problem in validate(network)] == [True]


@pytest.mark.unit
def test_a_layer_at_two_places_is_refused():
    layer = nn.Linear(4, 4)
    problems = validate(nn.Sequential(layer, nn.Tanh(), layer))
    assert len(problems) == 1
    assert "2 (Linear): is 0 (Linear) again" in problems[0]


@pytest.mark.unit
def test_shared_activations_are_accepted():
    tanh = nn.Tanh()
    assert validate(nn.Sequential(nn.Linear(4, 4), tanh, nn.Linear(4, 4), tanh)) == []


@pytest.mark.unit
def test_a_shared_parameter_is_refused():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    problems = validate(network)
    assert len(problems) == 1
    assert "shares a parameter with 0 (Linear)" in problems[0]


@pytest.mark.unit
def test_parameters_beside_layers_are_refused():
    network = Odd(lambda f, x: f(x), nn.Linear(4, 4))
    network.extra = nn.Parameter(torch.zeros(4))
    words = "the network (Odd): has parameters in addition to its layers"
    assert any(words in problem for problem in validate(network))


@pytest.mark.unit
def test_a_network_with_nothing_to_train_is_refused():
    assert "no trainable parameter" in validate(nn.Tanh())[0]
    assert "no trainable parameter" in validate(nn.Linear(2, 2).requires_grad_(False))[0]


@pytest.mark.unit
def test_keyed_dropout_is_accepted_and_its_mask_is_each_records_own():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), KeyedDropout(0.5), nn.Linear(8, 3)).double()
    assert validate(network) == []
    x, own = torch.randn(4, 6, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    mask = everyone(x)
    network[1].reseed(5)  # pyright: ignore
    sums = clipped_sum(network, x, wave(own), FlatClipping(clip_norm=0.2), mask)
    network[1].reseed(5)  # pyright: ignore
    kept = network[1](torch.ones(4, 8, dtype=torch.float64))
    gradients = []
    for i in range(4):
        hidden = network[0](x[i : i + 1]) * kept[i : i + 1]
        loss = wave(own[:1])(network[2](hidden)).sum()
        gradients.append(list(torch.autograd.grad(loss, list(network.parameters()))))
    assert_close(sums, expected_sum(gradients, 0.2), 1e-9)


CLOSED = {
    nn.Linear: LinearRule,
    nn.Conv2d: Conv2dRule,
    nn.GroupNorm: NormRule,
    nn.LayerNorm: NormRule,
    Lstm: LstmRule,
    Gru: GruRule,
    TokenEmbedding: EmbeddingRule,
    WeightStandardisedConv2d: WeightStandardisedRule,
}


@pytest.mark.contract
def test_a_layer_has_the_rule_of_its_exact_type():
    """Else the tests here would compare the fallback with itself."""
    assert not [
        (name, layer)
        for name in NETWORKS
        for layer in list_trainable_layers(made(name)[0])
        if type(layer_rules.find_rule(layer)) is not CLOSED.get(type(layer), LayerRule)
    ]
    own = {
        kind
        for kind, rule in layer_rules.RULES.items()
        if type(rule).squared_norms is not LayerRule.squared_norms
    }
    assert own == set(CLOSED)


@pytest.mark.oracle
def test_formed_gradients_are_those_of_one_record_at_a_time():
    for name in NETWORKS:
        network, x, own = made(name)
        gradients = list(one_by_one(network, x, own))
        parameters = list_trainable_parameters(network)
        for seen in per_example.capture_layers(network, x, wave(own)):
            names = dict(seen.layer.named_parameters(recurse=False))
            found = layer_rules.find_rule(seen.layer).form_gradients(seen)
            assert set(found) == {each for each, p in names.items() if p.requires_grad}
            for each, formed in found.items():
                place = next(i for i, p in enumerate(parameters) if p is names[each])
                exact = [gradient[place] for gradient in gradients]
                assert_close(list(formed), exact, 1e-9)


@pytest.mark.unit
def test_a_layer_norm_over_the_records_is_refused():
    x = torch.randn(3, 4)
    with pytest.raises(UsageError, match="normalises over records"):
        clipped_sum(nn.LayerNorm((3, 4)), x, wave(torch.ones(3)), FlatClipping(), everyone(x))


@pytest.mark.contract
def test_standardised_filters_whose_gradients_cancel_do_not_exceed_the_bound():
    """The Jacobian of a standardised filter takes out constants and the filter itself."""
    for scale in [1.0, 1e4, 1e8]:
        for kind in ["positions", "constant", "along the filter"]:
            torch.manual_seed(1)
            bounding = FlatClipping(clip_norm=1.0)
            layer = WeightStandardisedConv2d(8, 3, 3, bias=False)
            d = torch.randn(6, 3, 1, 1).abs()
            a = 5.0 + 1e-7 * torch.randn(6, 8, 3, 3)
            if kind == "along the filter":
                centred = layer.centred()[0].detach()
                a, d = (
                    centred[:1].repeat(6, 1, 1, 1),
                    torch.randn(6, 3, 1, 1) * torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1),
                )
            if kind == "positions":
                a, d = 5.0 + 1e-3 * torch.randn(6, 8, 12, 12), torch.randn(6, 3, 10, 10)
                d = d - d.mean(dim=(2, 3), keepdim=True)
            seen = CapturedLayer(layer, a, scale * d)
            kernel = WeightStandardisedRule()
            norms = kernel.squared_norms(seen).sqrt()
            for record in range(6):
                one = CapturedLayer(layer, a[record : record + 1], scale * d[record : record + 1])
                factor = bounding.factors(norms[record : record + 1])
                sums = dict(kernel.weighted_sum(one, factor))
                assert norm(list(sums.values())) <= bounding.sensitivity * (1 + 1e-6)


@pytest.mark.contract
def test_norms_whose_positions_cancel_do_not_exceed_the_bound():
    for scale in [1.0, 1e4, 1e8]:
        torch.manual_seed(1)
        bounding = FlatClipping(clip_norm=1.0)
        layer, x = nn.GroupNorm(1, 4), torch.randn(6, 4, 400)
        d = torch.randn(6, 4, 400)
        d = d - d.mean(dim=2, keepdim=True)
        xhat = functional.group_norm(x, 1, eps=layer.eps)
        for _ in range(3):
            d = d - xhat * (d * xhat).mean(dim=2, keepdim=True) / xhat.square().mean(
                2, keepdim=True
            )
            d = d - d.mean(dim=2, keepdim=True)
        seen = CapturedLayer(layer, x, scale * d)
        norms = NormRule().squared_norms(seen).sqrt()
        for record in range(6):
            one = CapturedLayer(layer, x[record : record + 1], scale * d[record : record + 1])
            factor = bounding.factors(norms[record : record + 1])
            sums = dict(NormRule().weighted_sum(one, factor))
            assert norm(list(sums.values())) <= bounding.sensitivity * (1 + 1e-6)


def test_positions_that_cancel_do_not_exceed_the_bound():
    """Where output gradients nearly cancel over positions, only rounding is left of the sum."""
    for scale in [1.0, 1e2, 1e4, 1e6, 1e8]:
        for kind in ["convolution", "positions"]:
            torch.manual_seed(1)
            bounding = FlatClipping(clip_norm=1.0)
            if kind == "convolution":
                layer, a, d = (
                    nn.Conv2d(1, 2, 3),
                    torch.rand(6, 1, 28, 28) + 5.0,
                    torch.randn(6, 2, 26, 26),
                )
                d = d - d.mean(dim=(2, 3), keepdim=True)
                a = a.mean(dim=(2, 3), keepdim=True) + 1e-3 * (a - a.mean(dim=(2, 3), keepdim=True))
            else:
                layer, a, d = (
                    nn.Linear(40, 30),
                    5.0 + 1e-3 * torch.randn(6, 200, 40),
                    torch.randn(6, 200, 30),
                )
                d = d - d.mean(dim=1, keepdim=True)
            seen = CapturedLayer(layer, a, scale * d)
            kernel = Conv2dRule() if kind == "convolution" else LinearRule()
            norms = kernel.squared_norms(seen).sqrt()
            for record in range(6):
                one = CapturedLayer(layer, a[record : record + 1], scale * d[record : record + 1])
                factor = bounding.factors(norms[record : record + 1])
                sums = dict(kernel.weighted_sum(one, factor))
                assert norm([value for value in sums.values()]) <= bounding.sensitivity * (1 + 1e-6)


@pytest.mark.contract
def test_the_bound_holds_for_long_records():
    """A norm of many equal numbers, added up in few float32 ones, comes out too small."""
    for bounding in [FlatClipping(clip_norm=0.5), AutoSClipping(bound=0.5, gamma=1e-6)]:
        network = nn.Linear(3 * 128 * 128, 2)
        nn.init.zeros_(network.weight)
        for value in torch.linspace(0.5, 1.0, 40):
            x = torch.full((1, network.in_features), float(value))
            sums = clipped_sum(network, x, wave(torch.tensor([3.0])), bounding, everyone(x))
            norm = math.sqrt(sum(float(each.double().square().sum()) for each in sums))
            assert 0.99 * bounding.sensitivity < norm <= bounding.sensitivity


@pytest.mark.contract
@pytest.mark.parametrize("seed", range(3))
def test_a_record_does_not_round_away_what_others_add_to_a_standardised_filter(seed: int):
    """A flat image's own gradient is next to 0, and what it is the difference of is not."""
    torch.manual_seed(seed)
    x, y = torch.rand(4096, 1, 3, 3), torch.arange(4096) % 2
    x[0] = 1.0
    network = nn.Sequential(
        WeightStandardisedConv2d(1, 1, 3, bias=False), nn.Flatten(), nn.Linear(1, 2)
    )
    network[2].requires_grad_(False)
    with torch.no_grad():
        network[2].weight[0] = torch.randn(1) * 1e3
        network[2].weight[1] = -network[2].weight[0]
    bounding = FlatClipping(clip_norm=1e-4)

    def loss(outputs: Tensor) -> Tensor:
        return 1e3 * nn.functional.cross_entropy(outputs / 1e3, y, reduction="none")

    mask = everyone(x)
    there = clipped_sum(network, x, loss, bounding, mask)
    mask[0] = False
    gone = clipped_sum(network, x, loss, bounding, mask)
    moved = torch.cat([(a.double() - b.double()).flatten() for a, b in zip(there, gone,
            strict=True)]).norm()  # fmt: skip
    assert float(moved) < 0.1 * bounding.sensitivity


def cut(layer: nn.Module, name: str, *rows: slice) -> nn.Module:
    """A layer one of whose parameters was replaced by a part of it."""
    setattr(layer, name, nn.Parameter(getattr(layer, name).detach()[rows].clone()))
    return layer


CUT = {
    "a kernel": [cut(nn.Conv2d(1, 1, 3), "weight", slice(None), slice(None), slice(2), slice(2)),
                 nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)],
    "filters": [cut(cut(nn.Conv2d(1, 4, 3), "weight", slice(2)), "bias", slice(2)), nn.Flatten(),
                nn.Linear(32, 3)],
    "channels": [nn.Conv2d(1, 2, 1), cut(nn.Conv2d(4, 2, 1), "weight", slice(None), slice(2)),
                 nn.Flatten(), nn.Linear(72, 3)],
    "a head": [nn.Conv2d(1, 2, 3), nn.Flatten(),
               cut(cut(nn.Linear(32, 9), "weight", slice(3)), "bias", slice(3))],
    "a bias": [nn.Conv2d(1, 2, 3), nn.Flatten(), cut(nn.Linear(32, 3), "bias", slice(1))],
    "a bias of a chain": [nn.Flatten(), cut(nn.Linear(36, 3), "bias", slice(1))],
    "a kernel, by torch": [cut(nn.Conv2d(1, 9, 3, groups=1, dilation=1, padding_mode="reflect",
                                         padding=1), "weight", slice(None), slice(None), slice(2)),
                           nn.Flatten(), nn.Linear(378, 3)],
}  # fmt: skip


@pytest.mark.unit
def test_a_parameter_of_another_size_than_its_layer_says_is_refused():
    """Torch goes by the parameter, and loops by the layer: a sum would have no bound."""
    for name in CUT:
        network = nn.Sequential(*CUT[name])
        assert network(torch.rand(2, 1, 6, 6)).shape == (2, 3)  # torch finds nothing wrong
        (problem,) = [each for each in validate(network) if "weight" in each] or validate(network)
        assert "its settings imply" in problem
        assert "create a new layer" in problem
        data = Records(x=torch.rand(50, 1, 6, 6), y=torch.arange(50) % 3, valid=torch.ones(50) > 0,
                       public=True)  # fmt: skip
        recipe = Recipe(
            expected_batch_size=10, steps=10**6, learning_rate=0.1, noise_multiplier=1.0,
            bounding=FlatClipping(clip_norm=0.5),
        )  # fmt: skip
        streams = {name: Keys.from_seed(1).stream(name) for name in ("batch", "noise", "dropout")}
        with pytest.raises(UsageError, match="its settings imply"):
            Training(network, data, recipe, streams)
