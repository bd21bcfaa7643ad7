"""Steps in machine code: the batches and the noise of torch's steps, and their sums."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pasearch.api.binding import compiler, versions
from pasearch.data.partitions import Records
from pasearch.data.precision import full_precision
from pasearch.errors import MachineError
from pasearch.runs import compiled as noise_loops
from pasearch.runs import loops, normals
from pasearch.runs.keys import Keys, Stream
from pasearch.spaces.modules import Joined, KeyedDropout, TemperedSigmoid
from pasearch.training import compiled, compiled_activations, machine_code, products, trainer
from pasearch.training.batching import Poisson
from pasearch.training.bounding.adaptive import AdaptiveQuantile
from pasearch.training.bounding.auto_s import AutoS
from pasearch.training.bounding.bound import Bound
from pasearch.training.bounding.flat import Flat
from pasearch.training.bounding.per_layer import PerLayer
from pasearch.training.dense import NARROW
from pasearch.training.machine_code import EACH, MachineCode
from pasearch.training.one_step import EVEN
from pasearch.training.products import Product
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training, train

N, INPUTS, CLASSES = 400, 12, 3


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Linear(INPUTS, CLASSES)),
    "linear, without a bias": lambda: nn.Sequential(nn.Linear(INPUTS, CLASSES, bias=False)),
    "narrow first": lambda: nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "wide first": lambda: nn.Sequential(nn.Linear(INPUTS, NARROW), nn.ReLU(),
                                        nn.Linear(NARROW, CLASSES)),
    "deep": lambda: nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 30), nn.Tanh(),
                                  nn.Linear(30, 17, bias=False), nn.ReLU(), nn.Linear(17, 9),
                                  nn.Linear(9, CLASSES)),
    "a tempered sigmoid": lambda: nn.Sequential(nn.Linear(INPUTS, 20), TemperedSigmoid(),
                                                nn.Linear(20, CLASSES)),
    "dropout": lambda: nn.Sequential(
        nn.Linear(INPUTS, 21), nn.ReLU(), KeyedDropout(0.2), nn.Linear(21, 33), nn.Sigmoid(),
        KeyedDropout(0.7), nn.Linear(33, 5), nn.Tanh(), nn.Linear(5, 3), KeyedDropout(0.1),
    ),
    "dropout, narrow first": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(INPUTS, 3), KeyedDropout(0.5), nn.Linear(3, CLASSES)
    ),
    "frozen": lambda: nn.Sequential(
        frozen(nn.Linear(INPUTS, 30)), KeyedDropout(0.2), nn.Linear(30, 18), nn.Tanh(),
        frozen(nn.Linear(18, 33, bias=False)), nn.Sigmoid(), KeyedDropout(0.4),
        frozen(nn.Linear(33, 6)), nn.ReLU(), nn.Linear(6, 7, bias=False), nn.Linear(7, CLASSES),
    ),
    "frozen at its end": lambda: nn.Sequential(
        nn.Linear(INPUTS, 5), nn.Tanh(), frozen(nn.Linear(5, 4)), nn.ReLU(),
        frozen(nn.Linear(4, CLASSES)),
    ),
    "narrow and frozen first": lambda: nn.Sequential(
        frozen(nn.Linear(INPUTS, 5)), KeyedDropout(0.5), nn.Linear(5, CLASSES)
    ),
    "dropout of records": lambda: nn.Sequential(
        nn.Flatten(), KeyedDropout(0.6), nn.Linear(INPUTS, 3), nn.Tanh(), nn.Linear(3, CLASSES)
    ),
    "dropout of records, without more": lambda: nn.Sequential(
        KeyedDropout(0.3), nn.Linear(INPUTS, CLASSES, bias=False)
    ),
    "an activation at the end": lambda: nn.Sequential(nn.Linear(INPUTS, 20),
                                                      nn.Linear(20, CLASSES), nn.Tanh()),
    "joined": lambda: nn.Sequential(Joined(nn.Linear(INPUTS, 30), nn.Tanh()),
                                    nn.Linear(INPUTS + 30, CLASSES)),
    "joined, narrow first": lambda: nn.Sequential(
        nn.Flatten(), Joined(nn.Linear(INPUTS, 3), nn.ReLU()),
        nn.Linear(INPUTS + 3, 20, bias=False), nn.Sigmoid(), nn.Linear(20, CLASSES),
    ),
    "joined, with dropout": lambda: nn.Sequential(
        Joined(nn.Linear(INPUTS, 21, bias=False), nn.Sigmoid(), KeyedDropout(0.4)),
        nn.Linear(INPUTS + 21, 9), nn.Tanh(), KeyedDropout(0.2), nn.Linear(9, CLASSES),
    ),
    "joined and frozen": lambda: nn.Sequential(
        Joined(frozen(nn.Linear(INPUTS, 30)), nn.Tanh()), nn.Linear(INPUTS + 30, 5), nn.ReLU(),
        nn.Linear(5, CLASSES),
    ),
    "joined, frozen behind": lambda: nn.Sequential(
        Joined(nn.Linear(INPUTS, 30)), frozen(nn.Linear(INPUTS + 30, 5)), nn.Tanh(),
        nn.Linear(5, CLASSES),
    ),
}  # fmt: skip
BOUNDS = [Flat(clip_norm=0.7), AutoS(), None]
each_network = pytest.mark.parametrize("name", NETWORKS)
each_number_of_threads = pytest.mark.parametrize("threads", [1, 2, 3])


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def records(n: int = N, *, numbers: bool = False) -> Records:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, INPUTS, generator=generator)
    y = x[:, 0].clone() if numbers else torch.randint(CLASSES, (n,), generator=generator)
    valid = torch.rand(n, generator=generator) > 0.2
    return Records(x=x, y=y, valid=valid, public=True)


def recipe_of(**given: Any) -> Recipe:
    usual: dict[str, Any] = {
        "expected_batch_size": 80, "steps": 5000, "learning_rate": 0.1, "noise_multiplier": None,
        "bounding": Flat(clip_norm=0.7), "optimizer": "sgd", "average": None,
    }  # fmt: skip
    return Recipe(**{**usual, **given})


def streams() -> dict[str, Stream]:
    keys = Keys.from_seed(1)
    return {name: keys.stream(name) for name in ("batch", "noise", "dropout")}


def both(
    name: str, recipe: Recipe, data: Records, monkeypatch: pytest.MonkeyPatch, threads: int = 1
) -> tuple[Training, Training]:
    """The same training in machine code, and by torch."""
    made = []
    torch.set_num_threads(threads)
    monkeypatch.setattr(trainer, "MOVED", 0)
    monkeypatch.setattr(machine_code, "EACH", 0.1)
    for worth in (0.0, math.inf):
        monkeypatch.setattr(machine_code, "WORTH", worth)
        torch.manual_seed(3)
        made.append(Training(NETWORKS[name](), data, recipe, streams()))
    assert made[0]._in_code is not None
    assert len(made[0]._in_code._sum._plan.rooms) == threads
    assert made[1]._in_code is None
    return made[0], made[1]


def sums_of(training: Training, step: int = 0, sigma: float | None = None) -> Tensor:
    state = replace(training._state)
    with full_precision():
        if training._in_code is not None:
            training._in_code.sum(step, sigma, state)
        else:
            training._with_care(step, sigma, state)
    return training._sums.flats[0].clone()


@pytest.mark.unit
@pytest.mark.parametrize("bounding", BOUNDS, ids=repr)
@each_number_of_threads
@each_network
def test_sums_are_torchs(
    name: str, threads: int, bounding: Bound | None, monkeypatch: pytest.MonkeyPatch
):
    weights = None if bounding is None else (0.5, 2.0, 1.0)
    recipe = recipe_of(bounding=bounding, class_weights=weights)
    fast, plain = both(name, recipe, records(), monkeypatch, threads)
    for step in range(4):
        torch.testing.assert_close(sums_of(fast, step), sums_of(plain, step), rtol=1e-5, atol=2e-5)


@pytest.mark.unit
@pytest.mark.parametrize("batch", [1, 3, 7, 80, 400])
@pytest.mark.parametrize("at_once", [1, 4, 5, 64])
@each_number_of_threads
def test_of_any_batch_and_however_many_rows_at_once(
    batch: int, at_once: int, threads: int, monkeypatch: pytest.MonkeyPatch
):
    for kind in ("COPIED", "READ"):
        monkeypatch.setattr(machine_code, kind, (at_once, 1))
    for name in ("narrow first", "wide first"):
        recipe = recipe_of(expected_batch_size=batch)
        fast, plain = both(name, recipe, records(), monkeypatch, threads)
        for step in range(3):
            torch.testing.assert_close(
                sums_of(fast, step), sums_of(plain, step), rtol=1e-5, atol=2e-5
            )


@pytest.mark.unit
@pytest.mark.parametrize("batching", ["truncated", "reshuffled"])
def test_of_other_batches_and_of_numbers(batching: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        NETWORKS, "of numbers",
        lambda: nn.Sequential(nn.Linear(INPUTS, 4), nn.ReLU(), nn.Linear(4, 1)),
    )  # fmt: skip
    recipe = recipe_of(batching=batching)
    fast, plain = both("of numbers", recipe, records(numbers=True), monkeypatch)
    torch.testing.assert_close(sums_of(fast, 3), sums_of(plain, 3), rtol=1e-5, atol=2e-5)


@pytest.mark.unit
@each_network
def test_an_empty_batch_is_noise_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    fast, _ = both(name, recipe_of(expected_batch_size=1), records(), monkeypatch)
    assert fast._in_code is not None
    monkeypatch.setattr(fast._in_code, "_batch", lambda step: np.empty(0, np.int64))
    fast._sums.flats[0].fill_(7.0)
    assert not sums_of(fast).any()
    noisy = sums_of(fast, 5, 2.0)
    assert float(noisy.std()) == pytest.approx(2.0 * 0.7, rel=0.5)


@pytest.mark.unit
@pytest.mark.parametrize("bounding", BOUNDS[:2], ids=repr)
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-3, 1.0, 1e6, 1e15])
@each_network
def test_one_record_moves_a_sum_by_no_more_than_the_bound(
    name: str, size: float, bounding: Bound, monkeypatch: pytest.MonkeyPatch
):
    """Whatever the record: each alone in its batch, so that no rounding of a sum is in between."""
    data = records(64)
    data = replace(data, x=data.x * size, valid=torch.ones_like(data.valid))
    recipe = recipe_of(bounding=bounding, expected_batch_size=1)
    fast, plain = both(name, recipe, data, monkeypatch)
    for place in range(64):
        assert fast._in_code is not None
        monkeypatch.setattr(fast._in_code, "_batch", lambda step: np.array([step]))
        norm = float(sums_of(fast, place).double().norm())
        assert norm <= bounding.sensitivity * (1 + 1e-9)
        if size in (1.0, 1e6) and isinstance(bounding, Flat) and norm < 0.69:
            one = lambda n, stream, step: np.array([step])  # noqa: E731
            batch = SimpleNamespace(batch=one, sizes_vary=True)
            monkeypatch.setattr(type(plain._recipe), "batches", lambda self, n, b=batch: b)
            assert norm == pytest.approx(float(sums_of(plain, place).norm()), rel=1e-4)
            monkeypatch.undo()
            monkeypatch.setattr(machine_code, "WORTH", 0.0)


@pytest.mark.unit
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("bounding", [Flat(clip_norm=0.7), None], ids=repr)
@pytest.mark.parametrize("threads", [1, 2])
@each_network
def test_a_record_that_is_not_finite_adds_exactly_what_a_null_one_does(
    name: str, threads: int, bounding: Bound | None, value: float, monkeypatch: pytest.MonkeyPatch
):
    data = records()
    data = replace(data, valid=torch.ones_like(data.valid))
    recipe = recipe_of(bounding=bounding, expected_batch_size=N)
    bad = [0, 1, 2, 3, 10, N - 1]  # four in a row, one alone, and the last
    null = data.valid.clone()
    null[bad] = False
    absent, _ = both(name, recipe, replace(data, valid=null), monkeypatch, threads)
    x = data.x.clone()
    x[bad, 5 if "of records" not in name else slice(None)] = value  # of which one may be dropped
    broken, _ = both(name, recipe, replace(data, x=x), monkeypatch, threads)
    hidden, _ = both(name, recipe, replace(data, x=x, valid=null), monkeypatch, threads)
    expected = sums_of(absent)
    assert expected.isfinite().all()
    assert torch.equal(sums_of(broken), expected)
    assert torch.equal(sums_of(hidden), expected)


@pytest.mark.unit
@pytest.mark.parametrize("label", [-1, CLASSES, 2**40, -(2**62)])
def test_a_class_that_is_none_adds_nothing_and_writes_nowhere(
    label: int, monkeypatch: pytest.MonkeyPatch
):
    data = records()
    null = data.valid.clone()
    null[:9] = False
    y = data.y.clone()
    y[:9] = label
    recipe = recipe_of(expected_batch_size=N)
    for name in ("linear", "wide first"):
        absent, _ = both(name, recipe, replace(data, valid=null), monkeypatch)
        broken, _ = both(name, recipe, data, monkeypatch)
        assert broken._in_code is not None
        loop = broken._in_code._sum
        assert loop._records is not None
        loop._records = (loop._records[0], y.numpy(), *loop._records[2:])
        assert torch.equal(sums_of(broken), sums_of(absent))


@pytest.mark.unit
@pytest.mark.parametrize(
    "more",
    [
        {}, {"optimizer": "momentum", "average": 0.2}, {"optimizer": "adam"},
        {"optimizer": "adam-corrected"}, {"bounding": AutoS()}, {"batching": "reshuffled"},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["linear", "deep"])
def test_a_training_is_torchs(
    name: str, threads: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """With noise, but for grid points: where sums are rounded otherwise, some are the next ones."""
    data = replace(records(), public=False)
    recipe = recipe_of(**{"noise_multiplier": 0.8, "learning_rate": 0.01, **more})
    fast, plain = both(name, recipe, data, monkeypatch, threads)
    for _ in range(12):
        fast.step()
        plain.step()
    assert fast._state.noise_deviation == plain._state.noise_deviation > 0
    for training in (fast, plain):
        training.finish()
    grain = normals.grid(fast._state.noise_deviation) / recipe.expected_batch_size
    most = 5e-3 if "adam" in recipe.optimizer else 0.1 * grain + 1e-5
    for first, second in zip(fast._weights, plain._weights, strict=True):
        assert float((first - second).abs().max()) <= most


@pytest.mark.unit
def test_many_numbers_have_their_noise_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(
        NETWORKS, "large",
        lambda: nn.Sequential(nn.Linear(INPUTS, 400), nn.Tanh(), nn.Linear(400, CLASSES)),
    )  # fmt: skip
    fast, plain = both("large", recipe_of(noise_multiplier=1.0), records(), monkeypatch)
    assert fast._sums.flats[0].numel() > normals.FEW
    apart = (sums_of(fast, 2, 1.0) - sums_of(plain, 2, 1.0)).abs()
    assert float((apart > 0).double().mean()) < 0.01
    assert float(apart.max()) <= 1.01 * normals.grid(0.7)


@pytest.mark.unit
@pytest.mark.parametrize("count", [1, 2, 32, 33, 64, 65, 219, 1000, normals.FEW])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e9])
def test_few_numbers_are_added_as_by_arrays(count: int, size: float):
    stream = Keys.from_seed(5).stream("few", count)
    words = stream.first_words(2 * normals.pairs(count))
    for step in range(20):
        first = size * np.random.default_rng(step).normal(size=count)
        given = [first.astype(np.float32) for _ in range(2)]
        normals.add_few(given[0], 1.3, words.at(step), stream, step, noise_loops)
        normals.normals(count, stream, step).add_to(given[1], 1.3)
        assert np.array_equal(*given)
        assert not np.signbit(given[0][given[0] == 0]).any()


@pytest.mark.unit
def test_what_float64_cannot_tell_is_settled_by_more_digits(monkeypatch: pytest.MonkeyPatch):
    """Wherever U is near its ends, or the sum lies in the middle between two grid points."""
    stream, count = Keys.from_seed(6).stream("ends"), 128
    words = stream.words().take(2 * normals.pairs(count)).copy()
    words[:4] = 0, 1, 2**63 - 1, -(2**63)
    asked = []
    honest = normals.Normals._decided
    monkeypatch.setattr(
        normals.Normals, "_decided",
        lambda self, exact, place, wide: asked.append(place) or honest(self, exact, place, wide),
    )  # fmt: skip
    given = [np.linspace(-3.0, 3.0, count).astype(np.float32) for _ in range(2)]
    normals.add_few(given[0], 1.3, words, stream, 0, noise_loops)
    assert asked == [0, 1, 2, 3, 32, 33, 34, 35]
    normals.of_words(words, count, stream, 0).add_to(given[1], 1.3)
    assert np.array_equal(*given)


@pytest.mark.unit
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_a_grid_that_float32_cannot_divide_by_is_left_to_arrays(scale: float):
    stream = Keys.from_seed(7).stream("grids")
    words = stream.words().take(2 * normals.pairs(10)).copy()
    given = [np.ones(10, np.float32) for _ in range(2)]
    normals.add_few(given[0], scale, words, stream, 0, noise_loops)
    normals.of_words(words, 10, stream, 0).add_to(given[1], scale)
    assert np.array_equal(*given)


@pytest.mark.unit
def test_tanh_and_exp_are_right_to_a_few_units():
    x = np.linspace(-30.0, 30.0, 600_001).astype(np.float32)
    found = x.copy()
    compiled_activations.tanh_all(found, np.uint64(0), np.uint64(len(x)))
    assert np.abs(found - np.tanh(x.astype(float))).max() < 5e-7
    small = np.abs(x) < 0.6
    exact = np.tanh(x[small].astype(float))
    assert np.abs(found[small] / np.where(exact, exact, 1.0) - 1.0)[exact != 0].max() < 5e-7
    odd = np.array([math.nan, math.inf, -math.inf, 0.0, 1e30], np.float32)
    compiled_activations.tanh_all(odd, np.uint64(0), np.uint64(5))
    assert np.array_equal(odd, np.array([math.nan, 1, -1, 0, 1], np.float32), equal_nan=True)
    h, d = np.zeros(5, np.float32), np.zeros(5, np.float32)
    for outputs in (x[i : i + 5] for i in range(0, 600_000, 6007)):
        h[:] = outputs
        compiled.outward(h, d, np.uint64(0), np.uint64(5), 2, False)
        shares = np.exp(outputs.astype(float) - outputs.max())
        shares /= shares.sum()
        shares[2] -= 1.0
        assert np.abs(d - shares).max() < 3e-7


class Fetched:
    """Records that are no tensor, as of a file: batches alone are."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, x: Tensor):
        self.x, self.shape, self.asked = x, x.shape, []

    def to(self, device: str) -> Fetched:
        return self

    def is_floating_point(self) -> bool:
        return True

    def index_select(self, axis: int, places: Tensor) -> Tensor:
        self.asked.append(len(places))
        return self.x.index_select(axis, places)


@pytest.mark.unit
@pytest.mark.parametrize("chunk", [1, 64, 128, 4096])
@each_number_of_threads
@each_network
def test_records_that_are_no_tensor_have_the_same_sums(
    name: str, threads: int, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    for kind in ("COPIED", "READ"):
        monkeypatch.setattr(machine_code, kind, (16, 1))
    data, recipe = records(), recipe_of(expected_batch_size=300, chunk=chunk)
    x = data.x.clone()
    x[::7, 2] = math.nan
    fetched = Fetched(x)
    lies, _ = both(name, recipe, replace(data, x=x), monkeypatch, threads)
    comes, _ = both(name, recipe, replace(data, x=fetched), monkeypatch, threads)
    for step in range(3):
        sums = sums_of(lies, step), sums_of(comes, step)
        if "frozen first" in name:  # torch goes through that layer where records are a tensor
            torch.testing.assert_close(*sums, rtol=1e-5, atol=2e-5)
        else:
            assert torch.equal(*sums)
    assert max(fetched.asked) <= max(64 * threads, chunk)
    assert comes._in_code is not None
    monkeypatch.setattr(comes._in_code, "_batch", lambda step: np.empty(0, np.int64))
    assert not sums_of(comes).any()


def refused() -> dict[str, dict[str, Any]]:
    return {
        "a bound that follows counts": {"bounding": AdaptiveQuantile()},
        "bounds of layers": {"bounding": PerLayer(clip_norm=1.0)},
        "few steps": {"steps": 3},
    }


@pytest.mark.unit
@pytest.mark.parametrize("name", refused())
def test_what_is_left_to_torch(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "MOVED", 100 * INPUTS)
    torch.set_num_threads(2)
    recipe = recipe_of(**refused()[name])
    assert Training(NETWORKS["deep"](), records(), recipe, streams())._in_code is None
    usual = Training(NETWORKS["deep"](), records(), recipe_of(), streams())
    assert usual._in_code is not None
    assert len(usual._in_code._sum._plan.rooms) == 1
    assert (
        Training(NETWORKS["deep"]().double(), as_doubles(), recipe_of(), streams())._in_code is None
    )


@pytest.mark.unit
def test_each_thread_has_enough_records_and_sums_have_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trainer, "MOVED", 0)
    torch.set_num_threads(4)
    numbers = sum(p.numel() for p in NETWORKS["linear"]().parameters())

    def found(batch: int) -> int | None:
        recipe = recipe_of(expected_batch_size=batch)
        made = Training(NETWORKS["linear"](), records(), recipe, streams())._in_code
        return None if made is None else len(made._sum._plan.rooms)

    sizes = (EACH - 1, EACH, 2 * EACH - 1, 2 * EACH, 3 * EACH, 400)
    assert [found(size) for size in sizes] == [1, 1, 1, 2, 3, 4]
    monkeypatch.setattr(machine_code, "SUMS", 2 * numbers)
    assert found(400) == 2
    monkeypatch.setattr(machine_code, "SUMS", 2 * numbers - 1)
    assert found(400) is None  # by torch, several threads share a sum
    torch.set_num_threads(1)
    assert found(400) == 1


def as_doubles() -> Records:
    data = records()
    return replace(data, x=data.x.double())


@pytest.mark.unit
def test_loops_that_fail_or_find_other_sums_are_an_error(monkeypatch: pytest.MonkeyPatch):
    """Torch's do not take over: a resumed run, or another process, may not have other sums."""

    def full(name: str) -> Any:
        raise OSError(28, "No space left on device")

    honest = compiled.bounded_sum

    def other(*given: Any) -> None:
        honest(*given)
        given[-2][0] += 0.01

    for place, name, fault, told in (
        (loops.importlib, "import_module", full, "full"),
        (compiled, "bounded_sum", other, "other numbers"),
        (normals, "add_few", lambda total, *_: total.fill(0.0), "other numbers"),
        (normals, "compiled", lambda: None, "other numbers"),
        (machine_code, "product", lambda: Product(None, nullcontext, nullcontext), "TypingError"),
    ):
        machine_code.loops.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fault)
            with pytest.raises(MachineError, match=told):
                Training(NETWORKS["linear"](), records(), recipe_of(), streams())
    machine_code.loops.cache_clear()
    assert machine_code.loops() is compiled


@pytest.mark.unit
def test_machine_code_can_be_switched_off_and_a_run_is_bound_to_that(
    monkeypatch: pytest.MonkeyPatch,
):
    before = compiler()
    machine_code.loops.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        trained = Training(NETWORKS["linear"](), records(), recipe_of(), streams())
        assert trained._in_code is None
        assert compiler() == {**before, "NUMBA_DISABLE_JIT": "1"}
        patch.setenv("NUMBA_CACHE_DIR", "elsewhere")
        assert "NUMBA_CACHE_DIR" not in compiler()
    machine_code.loops.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(loops.importlib.util, "find_spec", lambda name: None)
        assert machine_code.loops() is None
    machine_code.loops.cache_clear()
    assert {"numba", "llvmlite"} <= set(versions())


@pytest.mark.unit
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hidden", [(), (5,), (NARROW,), (15, 15)])
def test_no_size_of_a_record_gets_past_a_small_bound(
    hidden: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch
):
    """Squares that underflow or overflow, in any layer: inputs from 1e-38 to 1e19, sure classes."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(120, INPUTS, generator=generator)
    x *= torch.logspace(-38, 19.2, 120)[:, None]
    data = Records(x=x, y=torch.arange(120) % CLASSES, valid=torch.ones(120, dtype=torch.bool),
                   public=True)  # fmt: skip

    def network() -> nn.Module:
        sizes, layers = (INPUTS, *hidden, CLASSES), []
        for first, second in pairwise(sizes):
            layers += [nn.Linear(first, second, bias=bias), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    monkeypatch.setitem(NETWORKS, "of any size", network)
    for bounding in (Flat(clip_norm=1e-12), Flat(clip_norm=1e-5), AutoS(gamma=1e-6), AutoS()):
        for scale in (1e-18, 1e-9, 1.0, 1e9):
            recipe = recipe_of(bounding=bounding, expected_batch_size=1)
            fast, _ = both("of any size", recipe, data, monkeypatch)
            for weights in fast._weights:
                weights *= scale
            assert fast._in_code is not None
            monkeypatch.setattr(fast._in_code, "_batch", lambda step: np.array([step]))
            for place in range(120):
                found = sums_of(fast, place)
                assert found.isfinite().all()
                assert float(found.double().norm()) <= bounding.sensitivity * (1 + 1e-9)


@pytest.mark.unit
def test_a_sure_class_and_a_large_record_stay_within_a_small_bound(
    monkeypatch: pytest.MonkeyPatch,
):
    """The gradient of the outputs is 1e-23, whose square no float32 has."""
    x = torch.zeros(1, INPUTS)
    x[0, 0] = 1.8e19
    data = Records(x=x, y=torch.zeros(1, dtype=torch.int64), valid=torch.ones(1, dtype=torch.bool),
                   public=True)  # fmt: skip
    for bounding in (Flat(clip_norm=1e-4), Flat(clip_norm=1e-12), AutoS(gamma=1e-6)):
        fast, _ = both("linear", recipe_of(bounding=bounding, expected_batch_size=1), data,
                       monkeypatch)  # fmt: skip
        with torch.no_grad():
            for parameter in fast._network.parameters():
                parameter.zero_()
            list(fast._network.parameters())[1][0] = 53.0
        assert float(sums_of(fast).double().norm()) <= bounding.sensitivity


@pytest.mark.unit
@pytest.mark.parametrize("size", np.logspace(20, 35, 31).tolist())
def test_a_hidden_number_whose_square_no_float32_has_adds_nothing(
    size: float, monkeypatch: pytest.MonkeyPatch
):
    """Its gradient times its factor would be rounded to few bits, and more than the bound."""

    def network() -> nn.Module:
        made = nn.Sequential(nn.Linear(INPUTS, 5, bias=False), nn.ReLU(),
                             nn.Linear(5, CLASSES, bias=False))  # fmt: skip
        with torch.no_grad():
            made[0].weight.zero_()
            made[2].weight.zero_()
            made[0].weight[0, 0] = size
            made[2].weight[0, 0] = 53.0 / size
        return made

    monkeypatch.setitem(NETWORKS, "large", network)
    data = Records(x=torch.eye(INPUTS)[:1], y=torch.zeros(1, dtype=torch.int64),
                   valid=torch.ones(1, dtype=torch.bool), public=True)  # fmt: skip
    for bounding in (Flat(clip_norm=1e-12), AutoS(bound=1e-12, gamma=1e-6)):
        recipe = recipe_of(bounding=bounding, expected_batch_size=1)
        fast, _ = both("large", recipe, data, monkeypatch)
        assert not sums_of(fast).any()


@pytest.mark.unit
def test_an_extension_that_changes_a_formula_goes_by_torch(monkeypatch: pytest.MonkeyPatch):
    class Half(Flat):
        def factors(self, norms: Tensor) -> Tensor:
            return super().factors(norms) / 2

    class Whole(Flat):
        @property
        def terms(self) -> tuple[float, float, float]:
            return self.clip_norm / 2, 0.0, 1.0

    for bounding, expected in ((Half(), False), (Whole(), True), (Flat(), True), (AutoS(), True)):
        assert machine_code.has_terms(bounding) is expected

    class Even(Poisson):
        def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
            return np.arange(0, n, 2)

    recipe = recipe_of()
    monkeypatch.setattr(Recipe, "batches", lambda self, n: Even(sampling_probability=0.1))
    assert machine_code._batches(recipe, 6, streams()["batch"])(0).tolist() == [0, 2, 4]
    numbers = records(numbers=True)
    several = Training(NETWORKS["linear"](), numbers, recipe, streams())
    assert several._in_code is None, "of three outputs for one number torch's way decides"


@pytest.mark.unit
def test_of_a_process_products_have_one_thread_and_then_what_they_had():
    assert products.of_scipy().address
    libraries = products._libraries()
    assert libraries
    before = [each.get_num_threads() for each in libraries]
    with products.of_scipy().in_process():
        assert all(each.get_num_threads() == 1 for each in libraries)
    assert [each.get_num_threads() for each in libraries] == before


@pytest.mark.unit
@pytest.mark.skipif(products.of_torch() is None, reason="torch was built without MKL")
def test_of_a_thread_products_have_one_thread_and_then_what_they_had():
    torch.set_num_threads(2)
    library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*"))))
    many, made = library.MKL_Get_Max_Threads, products.of_torch()
    assert made is not None
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(many).result()
        with made.in_thread():
            assert many() == 1
            assert pool.submit(many).result() == elsewhere
    assert many() == 2


@pytest.mark.unit
@pytest.mark.parametrize("of", [products.of_torch, products.of_scipy], ids=["torch", "scipy"])
@pytest.mark.parametrize("threads", [1, 2])
def test_either_product_finds_torchs_sums(
    of: Callable[[], Product | None], threads: int, monkeypatch: pytest.MonkeyPatch
):
    if (made := of()) is None:
        pytest.skip("torch was built without MKL")
    monkeypatch.setattr(machine_code, "product", lambda: made)
    fast, plain = both("deep", recipe_of(), records(), monkeypatch, threads)
    assert fast._in_code is not None
    assert fast._in_code._sum._plan.product is made
    torch.testing.assert_close(sums_of(fast), sums_of(plain), rtol=1e-5, atol=2e-5)


@pytest.mark.unit
def test_where_torch_hides_its_product_scipys_is_taken(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkl, "is_available", lambda: False)
        assert products.of_torch() is None
    monkeypatch.setattr(products.ctypes, "CDLL", lambda path: object())
    assert products.of_torch() is None
    products.product.cache_clear()
    assert products.product().address == products.of_scipy().address
    products.product.cache_clear()


@pytest.mark.unit
def test_a_thread_that_fails_is_an_error_and_no_sum(monkeypatch: pytest.MonkeyPatch):
    fast, _ = both("deep", recipe_of(), records(), monkeypatch, threads=3)
    assert fast._in_code is not None
    made, ended = fast._in_code._sum, []

    def loop(*given: Any) -> None:
        thread = given[9]
        if thread == 1:
            raise ValueError("thread 1")
        ended.append(thread)

    monkeypatch.setattr(made, "_plan", replace(made._plan, loop=loop))
    with pytest.raises(ValueError, match="thread 1"):
        sums_of(fast)
    assert sorted(ended) == [0, 2]


@pytest.mark.unit
@pytest.mark.parametrize("expected", [1, 2, 63, 64, 100, 129, 500, 2048, 30_000])
@each_number_of_threads
def test_most_batches_are_whole_blocks_for_every_thread(expected: int, threads: int):
    for width in (2, 110, 794, 4000):
        for copied in (True, False):
            least, numbers = machine_code.COPIED if copied else machine_code.READ
            rows = machine_code.rows_of_a_block(expected, threads, width, copied=copied)
            most = 1.5 * min(machine_code.MOST, max(least, numbers // width))
            assert rows % EVEN == 0 < rows <= most + EVEN
            usual = expected + 2 * expected**0.5
            turns = math.ceil(usual / (rows * threads))
            assert turns * rows * threads <= usual + turns * threads * EVEN


@pytest.mark.unit
@pytest.mark.parametrize("secure", [False, True])
def test_a_generator_that_is_wound_is_the_steps_own(secure: bool):
    stream = Keys.from_seed(2, secure=secure).stream("batch")
    wound = stream.generators()
    for step in (0, 5, 2, 2**63 + 1, 5):
        fresh = stream.generator(step)
        found = wound(step)
        assert np.array_equal(found.geometric(0.1, size=9), fresh.geometric(0.1, size=9))
        found.integers(2**32, size=3, dtype=np.uint32)  # half a word is left over
    if not secure:
        assert found.bit_generator.state["state"]["key"].tolist() == (
            stream.generator(0).bit_generator.state["state"]["key"].tolist()  # pyright: ignore[reportArgumentType, reportCallIssue]
        )


@pytest.mark.unit
@pytest.mark.parametrize("count", [1, 2, 7, 256])
def test_first_words_are_the_streams(count: int):
    stream = Keys.from_seed(2).stream("noise")
    words = stream.first_words(count)
    for step in (0, 3, 2**64 - 1, 1):
        assert np.array_equal(words.at(step), stream.words(step).take(count))


@pytest.mark.unit
def test_a_whole_training_is_private_and_its_own(monkeypatch: pytest.MonkeyPatch):
    """By `train`: the same keys give the same weights, others other ones."""
    monkeypatch.setattr(machine_code, "WORTH", 0.0)
    data = replace(records(), public=False)
    recipe = recipe_of(noise_multiplier=1.0, steps=5)
    asked: list[int] = []
    honest = MachineCode.sum
    monkeypatch.setattr(
        MachineCode, "sum",
        lambda self, step, *given: asked.append(step) or honest(self, step, *given),
    )  # fmt: skip
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(3)
        network, keys = NETWORKS["deep"](), Keys.from_seed(seed)
        own = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
        train(network, data, recipe, own)
        networks.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert asked == 3 * [0, 1, 2, 3, 4]
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])
