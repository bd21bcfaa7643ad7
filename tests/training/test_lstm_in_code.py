"""LSTMs in machine code: torch's states, norms and sums, by any number of threads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pasearch.data.partitions import Records
from pasearch.errors import MachineError
from pasearch.runs import compiled as noise_loops
from pasearch.runs import normals
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.team import Team
from pasearch.spaces.modules import Lstm, Rows
from pasearch.training import (
    compiled,
    compiled_lstm,
    lstm_in_code,
    machine_code,
    products,
    trainer,
)
from pasearch.training.augmentation import Augmentation
from pasearch.training.bounding.adaptive import AdaptiveQuantile
from pasearch.training.bounding.auto_s import AutoS
from pasearch.training.bounding.bound import Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.bounding.per_layer import PerLayer
from pasearch.training.kernels import Captured, LstmKernel
from pasearch.training.losses import LossOf
from pasearch.training.lstm_in_code import LstmInCode
from pasearch.training.per_example import clipped_sum_and_counts
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training
from pasearch.training.watched import Watched, capture, trainable_parameters

each_number_of_threads = pytest.mark.parametrize("threads", [1, 2, 3])
SHAPES = [(7, 4, 3), (1, 4, 3), (2, 1, 1), (5, 6, 20), (30, 2, 9)]
"""Steps, inputs and units."""


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def kernel(threads: int = 1) -> LstmInCode:
    code = lstm_in_code.loops()
    assert code is not None
    return LstmInCode(code, Team(threads))


def in_code(network: nn.Module, threads: int = 1) -> Watched:
    watched = Watched(network)
    watched.take({each: kernel(threads) for each in watched.kernels if type(each) is Lstm})
    assert any(type(each) is LstmInCode for each in watched.kernels.values())
    return watched


def network_of(shape: tuple[int, int, int], biases: int = 1) -> nn.Sequential:
    _, inputs, units = shape
    torch.manual_seed(3)
    return nn.Sequential(Lstm(inputs, units, biases), nn.Linear(units, 3))


def records(shape: tuple[int, int, int], batch: int = 11) -> tuple[Tensor, LossOf]:
    steps, inputs, _ = shape
    generator = torch.Generator().manual_seed(4)
    x = 2.0 * torch.randn(batch, steps, inputs, generator=generator)
    return x, LossOf(torch.arange(batch) % 3)


def everyone(x: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.bool)


def flat(sums: list[Tensor]) -> Tensor:
    return torch.cat([each.detach().reshape(-1) for each in sums])


def sums_of(
    network: nn.Module | Watched, x: Tensor, loss: LossOf, bounding: Bound | None, mask: Tensor
) -> Tensor:
    return flat(clipped_sum_and_counts(network, x, loss, bounding, mask)[0])


@pytest.mark.oracle
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biases", [1, 2])
@pytest.mark.parametrize("bounding", [Flat(clip_norm=0.7), AutoS(), PerLayer(clip_norm=0.5), None])
@each_number_of_threads
def test_sums_are_torchs(
    shape: tuple[int, int, int], biases: int, bounding: Bound | None, threads: int
):
    network, (x, loss) = network_of(shape, biases), records(shape)
    mask = everyone(x)
    mask[3] = False
    watched = in_code(network, threads)
    for part in (slice(0, 11), slice(0, 1), slice(2, 9), slice(0, 11)):  # in one kernel's rooms
        given = x[part], LossOf(loss.y[part]), bounding, mask[part]
        torch.testing.assert_close(
            sums_of(watched, *given), sums_of(network, *given), rtol=2e-5, atol=2e-6
        )


@pytest.mark.oracle
@pytest.mark.parametrize("frozen", ["weight", "bias", "second_bias"])
def test_a_frozen_parameter_has_no_sum_and_no_part_in_norms(frozen: str):
    network, (x, loss) = network_of(SHAPES[0], 2), records(SHAPES[0])
    getattr(network[0], frozen).requires_grad_(False)
    given = x, loss, Flat(clip_norm=0.4), everyone(x)
    found = sums_of(in_code(network), *given)
    assert len(found) == sum(p.numel() for p in trainable_parameters(network))
    torch.testing.assert_close(found, sums_of(network, *given), rtol=2e-5, atol=2e-6)


class Branched(nn.Module):
    """No chain, so that hooks watch it and the layer is gone through again."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.last = Lstm(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.steps(x) + x[:, -1, :3])


@pytest.mark.oracle
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Lstm(6, 5), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 7)), nn.Conv2d(1, 2, 3), Rows(), Lstm(4, 3)),
        Branched,
    ],
    ids=["a layer below", "a convolution below", "no chain"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_lies_below_has_its_gradient_too(build: Any, threads: int):
    torch.manual_seed(5)
    network, (x, loss) = build(), records((7, 4, 3))
    given = x, loss, Flat(clip_norm=0.5), everyone(x)
    torch.testing.assert_close(
        sums_of(in_code(network, threads), *given), sums_of(network, *given), rtol=2e-5, atol=2e-6
    )


@pytest.mark.contract
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("cancelling", [False, True])
def test_norms_are_never_below_those_of_what_is_summed(
    shape: tuple[int, int, int], size: float, cancelling: bool
):
    network, (x, loss) = network_of(shape, 2), records(shape)
    x = x * size
    watched = in_code(network)
    seen = capture(watched, x, loss)[0]
    own = watched.kernels[seen.layer]
    if cancelling:  # what one step adds, the next one takes away, but for a rounding
        a, d = seen.kept["replayed"]
        a[:, 1::2] = a[:, : 2 * (a.shape[1] // 2) : 2]
        d[:, 1::2] = -d[:, : 2 * (d.shape[1] // 2) : 2] * (1.0 + 2.0**-23)
    for place, found in enumerate(own.squared_norms(seen).sqrt().tolist()):
        alone = Captured(seen.layer, seen.input, seen.output_gradient)
        alone.kept["replayed"] = tuple(each.clone() for each in seen.kept["replayed"])
        only = (torch.arange(len(x)) == place).float()
        exact = math.sqrt(sum(float(each.double().square().sum())
                              for _, each in own.weighted_sum(alone, only)))  # fmt: skip
        assert exact * (1 - 1e-6) <= found
        assert cancelling or found <= exact * (1 + 1e-3)


@pytest.mark.contract
@pytest.mark.parametrize("bounding", [Flat(clip_norm=0.3), Flat(clip_norm=1e-9), AutoS()])
@pytest.mark.parametrize("heat", [1e-12, 1.0, 1e12])
def test_no_record_moves_a_sum_by_more_than_the_bound(bounding: Bound, heat: float):
    network, (x, loss) = network_of((6, 4, 5)), records((6, 4, 5), 90)
    x *= torch.logspace(-38, 25, 90)[:, None, None]
    with torch.no_grad():
        network[1].weight *= heat
    watched = in_code(network)
    for place in range(90):
        part = slice(place, place + 1)
        found = sums_of(watched, x[part], LossOf(loss.y[part]), bounding, everyone(x[part]))
        assert found.isfinite().all()
        assert float(found.double().norm()) <= bounding.sensitivity * (1 + 1e-9)


@pytest.mark.contract
@pytest.mark.parametrize("size", [1e-18, 1e-10, 1.0, 1e10, 1e18, 1e20, 1e30])
@pytest.mark.parametrize("inputs_are_large", [True, False])
def test_a_square_that_float32_lacks_takes_its_record_out(size: float, inputs_are_large: bool):
    """Its partner is so small that the norm is 1, and times a factor it would have few bits."""
    network, (x, loss) = network_of((6, 4, 5)), records((6, 4, 5))
    watched = in_code(network)
    seen = capture(watched, x, loss)[0]
    a, d = seen.kept["replayed"]
    large, small = (a, d) if inputs_are_large else (d, a)
    large.zero_()
    small.zero_()
    large[:, 2, 0], small[:, 2, 1] = size, 1.0 / size
    norms = watched.kernels[seen.layer].squared_norms(seen).sqrt()
    if size > 1e18:
        assert norms.isinf().all()
        return
    of_bias = 1.0 / size if inputs_are_large else size
    assert norms.tolist() == pytest.approx(len(x) * [math.hypot(1.0, of_bias)], rel=1e-4)


@pytest.mark.contract
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("step", [0, 3, 6])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_record_that_is_not_finite_adds_exactly_what_a_null_one_does(
    value: float, step: int, threads: int
):
    network, (x, loss) = network_of(SHAPES[0]), records(SHAPES[0])
    bad, null = [2, 3, 10], everyone(x)
    null[bad] = False
    watched = in_code(network, threads)
    expected = sums_of(watched, x, loss, Flat(), null)
    assert expected.isfinite().all()
    x[bad, step, 1] = value
    assert torch.equal(sums_of(watched, x, loss, Flat(), everyone(x)), expected)
    assert torch.equal(sums_of(watched, x, loss, Flat(), null), expected)


@pytest.mark.contract
def test_a_pass_knows_nothing_of_the_one_before():
    """Rooms are used again, and lie otherwise for another batch."""
    network, (x, loss) = network_of((6, 4, 5)), records((6, 4, 5), 40)
    used, bound = in_code(network, 2), Flat(clip_norm=0.5)
    for batch in (40, 7, 40, 1, 23):
        given = x[:batch], LossOf(loss.y[:batch]), bound, everyone(x[:batch])
        assert torch.equal(sums_of(used, *given), sums_of(in_code(network, 2), *given))


@pytest.mark.contract
def test_a_shorter_sequence_knows_nothing_of_a_longer_one():
    """Norms take four steps of a sequence at once: rows behind the last may be an earlier one's."""
    network, used = network_of((7, 4, 5)), in_code(network_of((7, 4, 5)))
    for steps in (7, 5, 8, 2, 1, 3, 6, 1):
        x, loss = records((steps, 4, 5))
        for bound in (Flat(clip_norm=1e-3), AutoS()):
            given = x, loss, bound, everyone(x)
            assert torch.equal(sums_of(used, *given), sums_of(in_code(network), *given))


@pytest.mark.contract
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("of_a", "of_d"), [(math.inf, 0.0), (3e38, 1e30), (math.nan, 0.0)])
def test_no_value_is_told_by_a_warning(steps: int, of_a: float, of_d: float):
    network, (x, loss) = network_of((steps, 4, 5)), records((steps, 4, 5))
    watched = in_code(network)
    seen = capture(watched, x, loss)[0]
    a, d = seen.kept["replayed"]
    a[2], d[2] = of_a, of_d
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norms = watched.kernels[seen.layer].squared_norms(seen)
    assert not norms[2].isfinite()
    assert norms[torch.arange(len(x)) != 2].isfinite().all()


class Scaled(Lstm):
    """A subclass computes otherwise, and has a parameter of its own."""

    def __init__(self, inputs: int, units: int):
        super().__init__(inputs, units)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x)


@pytest.mark.contract
def test_a_subclass_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine_code, "WORTH", 0.0)
    network = nn.Sequential(Scaled(4, 5), nn.Linear(5, 3))
    training = Training(network, data(), recipe_of(), streams())
    assert LstmInCode not in kernels_of(training)
    training.step()
    assert float(training._sums.of[id(network[0].scale)].abs()) > 0


@pytest.mark.contract
def test_what_is_kept_of_machine_code_is_good_for_these_sources_alone():
    """Numba looks at a function's own file; some stand in the code of another one's."""
    if not noise_loops.CACHED:
        pytest.skip("no folder for machine code")
    kept = [
        each
        for module in (noise_loops, compiled, compiled_lstm)
        for each in vars(module).values()
        if getattr(getattr(each, "_cache", None), "cache_path", None)
    ]
    assert len(kept) > 15
    assert {each._cache._cache_file._source_stamp for each in kept} == {noise_loops.SOURCES}


def data(n: int = 120) -> Records:
    generator = torch.Generator().manual_seed(6)
    return Records(
        x=torch.randn(n, 6, 4, generator=generator),
        y=torch.randint(3, (n,), generator=generator),
        valid=torch.rand(n, generator=generator) > 0.2, public=False,
    )  # fmt: skip


def recipe_of(**given: Any) -> Recipe:
    usual: dict[str, Any] = {
        "expected_batch_size": 40, "steps": 5000, "learning_rate": 0.1, "noise_multiplier": 1.0,
        "bounding": Flat(clip_norm=0.7), "optimizer": "sgd",
    }  # fmt: skip
    return Recipe(**{**usual, **given})


def streams() -> dict[str, Stream]:
    keys = Keys.from_seed(1)
    return {name: keys.stream(name) for name in ("batch", "noise", "dropout")}


def kernels_of(training: Training) -> list[type]:
    return [type(each) for each in training._watched.kernels.values()]


@pytest.mark.unit
@pytest.mark.parametrize(
    "more",
    [
        {}, {"bounding": AdaptiveQuantile()}, {"bounding": PerLayer(clip_norm=0.7)},
        {"chunk": 16}, {"augmentation": Augmentation(views=2, shift=1)},
    ],
    ids=["plain", "adaptive", "by layer", "in chunks", "two views"],
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_is_torchs(threads: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    torch.set_num_threads(threads)
    monkeypatch.setattr(trainer, "SHARED", 0.0)
    made = []
    for worth in (0.0, math.inf):
        monkeypatch.setattr(machine_code, "WORTH", worth)
        training = Training(network_of((6, 4, 5)), data(), recipe_of(**more), streams())
        for _ in range(6):
            training.step()
        made.append(training)
    first, second = made
    assert LstmInCode in kernels_of(first)
    assert LstmKernel in kernels_of(second)
    grain = 4 * normals.grid(first._state.noise_deviation) / 40
    assert float((first._weights[0] - second._weights[0]).abs().max()) <= grain + 1e-5


@pytest.mark.unit
def test_what_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    def made(recipe: Recipe, network: nn.Module, given: Records, **more: Any) -> list[type]:
        return kernels_of(Training(network, given, recipe, streams(), **more))

    network = network_of((6, 4, 5))
    seconds = 6 * (lstm_in_code.CALLS + lstm_in_code.UNIT * 40 * 5)
    enough = math.ceil(machine_code.WORTH / seconds)
    assert LstmInCode in made(recipe_of(steps=enough), network, data())
    assert LstmInCode not in made(recipe_of(steps=enough - 1), network, data())
    assert LstmInCode not in made(recipe_of(), network, data(), in_rounds=True)
    halves = data()
    doubled = Records(x=halves.x.double(), y=halves.y, valid=halves.valid, public=False)
    assert LstmInCode not in made(recipe_of(), network.double(), doubled)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(24, 3))
    assert LstmInCode not in made(recipe_of(steps=2), dense, data())
    lstm_in_code.loops.cache_clear()
    machine_code.loops.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        assert LstmInCode not in made(recipe_of(), network_of((6, 4, 5)), data())
    lstm_in_code.loops.cache_clear()
    machine_code.loops.cache_clear()


@pytest.mark.unit
@pytest.mark.parametrize("name", ["forward", "backward", "squares", "weigh", "sum_up"])
def test_loops_that_find_other_numbers_are_an_error(name: str, monkeypatch: pytest.MonkeyPatch):
    lstm_in_code.loops.cache_clear()
    monkeypatch.setattr(compiled_lstm, name, lambda *given: None)
    with pytest.raises(MachineError, match="other numbers"):
        Training(network_of((6, 4, 5)), data(), recipe_of(), streams())
    lstm_in_code.loops.cache_clear()


@pytest.mark.unit
@pytest.mark.parametrize("of", [products.of_torch, products.of_scipy], ids=["torch", "scipy"])
def test_either_product_finds_torchs_sums(of: Any, monkeypatch: pytest.MonkeyPatch):
    if (made := of()) is None:
        pytest.skip("torch was built without MKL")
    monkeypatch.setattr(lstm_in_code, "product", lambda: made)
    network, (x, loss) = network_of(SHAPES[3]), records(SHAPES[3])
    given = x, loss, Flat(clip_norm=0.5), everyone(x)
    torch.testing.assert_close(
        sums_of(in_code(network, 2), *given), sums_of(network, *given), rtol=2e-5, atol=2e-6
    )


@pytest.mark.unit
def test_torch_has_one_thread_beside_it(monkeypatch: pytest.MonkeyPatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(trainer, "SHARED", 0.0)
    seen: list[int] = []
    honest = trainer.batch_sum
    monkeypatch.setattr(
        trainer, "batch_sum",
        lambda *given, **named: seen.append(torch.get_num_threads()) or honest(*given, **named),
    )  # fmt: skip
    Training(network_of((6, 4, 5)), data(), recipe_of(), streams()).step()
    assert seen == [1]
    assert torch.get_num_threads() == 2
