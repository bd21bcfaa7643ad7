"""The linear backend: the batches and the noise of PyTorch's steps, and their sums."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pasearch.api.binding import list_versions, read_compiler_environment
from pasearch.data.mapping import full_precision
from pasearch.data.partitions import Records
from pasearch.errors import MachineError
from pasearch.runs import compiled as noise_loops
from pasearch.runs import normals
from pasearch.runs import processor as loops
from pasearch.runs.keys import Keys, Stream
from pasearch.spaces.modules import KeyedDropout
from pasearch.training import linear_backend, linear_kernel, training_loop
from pasearch.training.batching import Poisson
from pasearch.training.clipping import (
    NORM_SLACK,
    AdaptiveClipping,
    AutoSClipping,
    ClippingMethod,
    FlatClipping,
    PerLayerClipping,
    has_factor_terms,
)
from pasearch.training.linear_backend import MIN_THREAD_RECORDS, LinearBackend
from pasearch.training.recipe import Recipe
from pasearch.training.record_sums import BLOCK_RECORDS
from pasearch.training.trainer import Training, train

N, INPUTS, CLASSES = 400, 12, 3
MODELS = {
    "plain": lambda: nn.Sequential(nn.Linear(INPUTS, CLASSES)),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, CLASSES)),
    "without a bias": lambda: nn.Sequential(nn.Linear(INPUTS, CLASSES, bias=False)),
    "many classes": lambda: nn.Sequential(nn.Linear(INPUTS, 26)),
    "behind a frozen layer": lambda: nn.Sequential(
        nn.Linear(INPUTS, 600).requires_grad_(False), nn.Tanh(), nn.Linear(600, CLASSES)
    ),
}
BOUNDS = [FlatClipping(clip_norm=0.7), AutoSClipping(), None]
each_model = pytest.mark.parametrize("name", MODELS)
each_number_of_threads = pytest.mark.parametrize("threads", [1, 3])


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def records(n: int = N, *, numeric: bool = False) -> Records:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, INPUTS, generator=generator)
    y = x[:, 0].clone() if numeric else torch.randint(CLASSES, (n,), generator=generator)
    valid = torch.rand(n, generator=generator) > 0.2
    return Records(x=x, y=y, valid=valid, public=True)


def recipe_of(**given: Any) -> Recipe:
    defaults: dict[str, Any] = {
        "expected_batch_size": 80, "steps": 5000, "learning_rate": 0.1, "noise_multiplier": None,
        "bounding": FlatClipping(clip_norm=0.7), "optimizer": "sgd", "average": None,
    }  # fmt: skip
    return Recipe(**{**defaults, **given})


def streams(seed: int = 1) -> dict[str, Stream]:
    keys = Keys.from_seed(seed)
    return {name: keys.stream(name) for name in ("batch", "noise", "dropout")}


def both(
    name: str, recipe: Recipe, data: Records, monkeypatch: pytest.MonkeyPatch, threads: int = 1
) -> tuple[Training, Training]:
    """Create the same training with the linear backend and with PyTorch."""
    made = []
    torch.set_num_threads(threads)
    monkeypatch.setattr(training_loop, "MIN_SHARED_BATCH_NUMBERS", 0)
    monkeypatch.setattr(linear_backend, "MIN_THREAD_RECORDS", 0.1)
    for worth in (0.0, math.inf):
        monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", worth)
        torch.manual_seed(3)
        made.append(Training(MODELS[name](), data, recipe, streams()))
    assert made[0]._linear is not None
    assert len(made[0]._linear._scratch) == threads
    assert made[1]._linear is None
    return made[0], made[1]


def sums_of(training: Training, step: int = 0, sigma: float | None = None) -> Tensor:
    state = replace(training._state)
    with full_precision():
        if training._linear is not None:
            training._linear.write_sum(step, sigma, state)
        else:
            training._write_torch_sum(step, sigma, state)
    return training._sums.flats[0].clone()


def set_batch(training: Training, indices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert training._linear is not None
    monkeypatch.setattr(training._linear, "_batch", lambda step: np.array(indices, np.int64))


class TestSums:
    @pytest.mark.oracle
    @pytest.mark.parametrize("bounding", BOUNDS, ids=repr)
    @each_number_of_threads
    @each_model
    def test_equal_those_of_pytorch(
        self,
        name: str,
        threads: int,
        bounding: ClippingMethod | None,
        monkeypatch: pytest.MonkeyPatch,
    ):
        weights = None if bounding is None or name == "many classes" else (0.5, 2.0, 1.0)
        recipe = recipe_of(bounding=bounding, class_weights=weights)
        fast, plain = both(name, recipe, records(), monkeypatch, threads)
        for step in range(4):
            torch.testing.assert_close(
                sums_of(fast, step), sums_of(plain, step), rtol=1e-5, atol=2e-5
            )

    @pytest.mark.oracle
    @pytest.mark.parametrize("batch", [1, 3, 7, 63, 64, 65, 80, 400])
    @each_number_of_threads
    def test_equal_for_batches_of_any_size(
        self, batch: int, threads: int, monkeypatch: pytest.MonkeyPatch
    ):
        fast, plain = both("plain", recipe_of(), records(), monkeypatch, threads)
        monkeypatch.setattr(Poisson, "batch", lambda *_: np.arange(batch)[::-1].copy())
        set_batch(fast, np.arange(batch)[::-1], monkeypatch)
        torch.testing.assert_close(sums_of(fast), sums_of(plain), rtol=1e-5, atol=2e-5)

    @pytest.mark.oracle
    @pytest.mark.parametrize("batching", ["truncated", "reshuffled"])
    def test_equal_for_other_batches_and_numeric_targets(
        self, batching: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setitem(MODELS, "numeric", lambda: nn.Sequential(nn.Linear(INPUTS, 1)))
        recipe = recipe_of(batching=batching)
        fast, plain = both("numeric", recipe, records(numeric=True), monkeypatch)
        torch.testing.assert_close(sums_of(fast, 3), sums_of(plain, 3), rtol=1e-5, atol=2e-5)

    @pytest.mark.contract
    @each_model
    def test_of_an_empty_batch_are_noise_alone(self, name: str, monkeypatch: pytest.MonkeyPatch):
        fast, _ = both(name, recipe_of(), records(), monkeypatch)
        set_batch(fast, [], monkeypatch)
        fast._sums.flats[0].fill_(7.0)
        assert not sums_of(fast).any()
        assert float(sums_of(fast, 5, 2.0).std()) == pytest.approx(2.0 * 0.7, rel=0.5)

    @pytest.mark.contract
    @pytest.mark.parametrize("bounding", BOUNDS[:2], ids=repr)
    @pytest.mark.parametrize("size", [0.0, 1e-20, 1e-3, 1.0, 1e6, 1e15])
    @each_model
    def test_of_one_record_are_within_the_bound(
        self, name: str, size: float, bounding: ClippingMethod, monkeypatch: pytest.MonkeyPatch
    ):
        data = records(64)
        data = replace(data, x=data.x * size, valid=torch.ones_like(data.valid))
        fast, _ = both(name, recipe_of(bounding=bounding, expected_batch_size=1), data, monkeypatch)
        for place in range(64):
            set_batch(fast, [place], monkeypatch)
            assert float(sums_of(fast).double().norm()) <= bounding.sensitivity * (1 + 1e-9)

    @pytest.mark.contract
    @pytest.mark.parametrize("bias", [True, False])
    def test_of_records_of_any_size_are_within_a_small_bound(
        self, bias: bool, monkeypatch: pytest.MonkeyPatch
    ):
        """Squares that underflow or overflow: inputs from 1e-38 to 1e19, certain classes."""
        generator = torch.Generator().manual_seed(8)
        x = torch.randn(120, INPUTS, generator=generator) * torch.logspace(-38, 19.2, 120)[:, None]
        data = Records(x=x, y=torch.arange(120) % CLASSES, valid=torch.ones(120, dtype=torch.bool),
                       public=True)  # fmt: skip
        for bounding in (
            FlatClipping(clip_norm=1e-12),
            FlatClipping(clip_norm=1e-5),
            AutoSClipping(gamma=1e-6),
            AutoSClipping(),
        ):
            for scale in (1e-18, 1e-9, 1.0, 1e9):
                name = "plain" if bias else "without a bias"
                fast, _ = both(
                    name, recipe_of(bounding=bounding, expected_batch_size=1), data, monkeypatch
                )
                for weights in fast._weights:
                    weights *= scale
                for place in range(120):
                    set_batch(fast, [place], monkeypatch)
                    found = sums_of(fast)
                    assert found.isfinite().all()
                    assert float(found.double().norm()) <= bounding.sensitivity * (1 + 1e-9)

    @pytest.mark.contract
    def test_of_a_large_record_of_a_certain_class_are_within_a_small_bound(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """The gradient of the logits is 1e-23, whose square float32 cannot hold."""
        x = torch.zeros(1, INPUTS)
        x[0, 0] = 1.8e19
        data = Records(x=x, y=torch.zeros(1, dtype=torch.int64),
                       valid=torch.ones(1, dtype=torch.bool), public=True)  # fmt: skip
        for bounding in (
            FlatClipping(clip_norm=1e-4),
            FlatClipping(clip_norm=1e-12),
            AutoSClipping(gamma=1e-6),
        ):
            fast, _ = both(
                "plain", recipe_of(bounding=bounding, expected_batch_size=1), data, monkeypatch
            )
            set_batch(fast, [0], monkeypatch)
            with torch.no_grad():
                for parameter in fast._network.parameters():
                    parameter.zero_()
                list(fast._network.parameters())[1][0] = 53.0
            assert 0.0 < float(sums_of(fast).double().norm()) <= bounding.sensitivity

    @pytest.mark.contract
    def test_of_a_gradient_whose_factor_float32_cannot_hold_are_zero(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """A factor of 1e-43 has two digits, so what is multiplied by it could exceed the bound."""
        monkeypatch.setitem(MODELS, "numeric", lambda: nn.Sequential(nn.Linear(INPUTS, 1)))
        x = torch.full((1, INPUTS), 1e18)
        data = Records(x=x, y=torch.full((1,), 3e18), valid=torch.ones(1, dtype=torch.bool),
                       public=True)  # fmt: skip
        recipe = recipe_of(bounding=FlatClipping(clip_norm=1e-5), expected_batch_size=1)
        fast, _ = both("numeric", recipe, data, monkeypatch)
        set_batch(fast, [0], monkeypatch)
        assert not sums_of(fast).any()

    @pytest.mark.contract
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
    @pytest.mark.parametrize("bounding", [FlatClipping(clip_norm=0.7), None], ids=repr)
    @each_number_of_threads
    @pytest.mark.parametrize("name", ["plain", "without a bias", "many classes"])
    def test_of_a_record_that_is_not_finite_are_those_of_a_null_record(
        self, name: str, threads: int, bounding: ClippingMethod | None, value: float,
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        data = records()
        data = replace(data, valid=torch.ones_like(data.valid))
        recipe = recipe_of(bounding=bounding, expected_batch_size=N)
        bad = [0, 1, 2, 3, 10, *range(64, 128), N - 1]  # a whole block of them, too
        null, x = data.valid.clone(), data.x.clone()
        null[bad], x[bad, 5] = False, value
        absent, _ = both(name, recipe, replace(data, valid=null), monkeypatch, threads)
        broken, _ = both(name, recipe, replace(data, x=x), monkeypatch, threads)
        hidden, _ = both(name, recipe, replace(data, x=x, valid=null), monkeypatch, threads)
        for each in (absent, broken, hidden):
            set_batch(each, np.arange(N), monkeypatch)
        expected = sums_of(absent)
        assert expected.isfinite().all()
        assert expected.any()
        assert torch.equal(sums_of(broken), expected)
        assert torch.equal(sums_of(hidden), expected)

    @pytest.mark.contract
    @pytest.mark.parametrize("label", [-1, CLASSES, 2**40, -(2**62)])
    def test_of_a_label_that_is_no_class_are_those_of_a_null_record(
        self, label: int, monkeypatch: pytest.MonkeyPatch
    ):
        data = records()
        null, y = data.valid.clone(), data.y.clone()
        null[:9], y[:9] = False, label
        recipe = recipe_of(expected_batch_size=N, class_weights=(0.5, 2.0, 1.0))
        absent, _ = both("plain", recipe, replace(data, valid=null), monkeypatch)
        broken, _ = both("plain", recipe, data, monkeypatch)
        backend = broken._linear
        assert backend is not None
        assert backend._records is not None
        backend._records = (backend._records[0], y.numpy(), *backend._records[2:])
        for each in (absent, broken):
            set_batch(each, np.arange(N), monkeypatch)
        assert torch.equal(sums_of(broken), sums_of(absent))

    @pytest.mark.contract
    @pytest.mark.parametrize("chunk", [1, 64, 4096])
    @each_number_of_threads
    @pytest.mark.parametrize("name", ["plain", "without a bias"])
    def test_of_records_that_are_fetched_are_those_in_memory(
        self, name: str, threads: int, chunk: int, monkeypatch: pytest.MonkeyPatch
    ):
        data, recipe = records(), recipe_of(expected_batch_size=300, chunk=chunk)
        x = data.x.clone()
        x[::7, 2] = math.nan
        fetched = Fetched(x)
        inside, _ = both(name, recipe, replace(data, x=x), monkeypatch, threads)
        outside, _ = both(name, recipe, replace(data, x=fetched), monkeypatch, threads)
        for step in range(3):
            first, second = sums_of(inside, step), sums_of(outside, step)
            torch.testing.assert_close(first, second, rtol=0.0, atol=1e-6)
        assert max(fetched.asked) <= max(64 * threads, chunk)
        set_batch(outside, [], monkeypatch)
        assert not sums_of(outside).any()

    @pytest.mark.contract
    def test_of_one_record_are_the_same_wherever_it_is(self):
        """To the bit: in batches of any size, at any index, among null records."""
        for outputs in [1, 2, 3, 10, 17]:
            for inputs in [1, 2, 7, 16, 33, 108, 511, 513, 1025]:
                draw = np.random.default_rng(7)
                n, shape = 400, np.array([inputs, outputs, 0, inputs * outputs], np.int64)
                x = draw.normal(size=(n, inputs)).astype(np.float32)
                y = (
                    draw.normal(size=n).astype(np.float32)
                    if outputs == 1
                    else np.arange(n) % outputs
                )
                squares = (x.astype(float) ** 2).sum(1).astype(np.float32)
                weights = draw.normal(size=(inputs + 1) * outputs).astype(np.float32)
                found = set()
                for size in (1, 2, 5, 9, 63, 64, 65, 130, 399):
                    for place in {0, 1, 2, 3, 4, 7, size // 2, size - 2, size - 1} & set(
                        range(size)
                    ):
                        indices, total = np.arange(1, size + 1), np.zeros(len(weights))
                        indices[place] = 0
                        linear_kernel.add_clipped_gradients(
                            x.ravel(), y, np.arange(n) == 0, squares, np.ones(outputs, np.float32),
                            outputs == 1, indices, 0, 1, weights, shape,
                            (0.7, 0.0, NORM_SLACK, 1.0),
                            (np.zeros(BLOCK_RECORDS * outputs, np.float32),
                             np.zeros(inputs * outputs, np.float32)), total,
                        )  # fmt: skip
                        found.add((total + 0.0).tobytes())  # -0 and 0 are one number
                assert len(found) == 1
                assert 0.0 < np.linalg.norm(total) <= 0.7

    @pytest.mark.unit
    def test_are_an_error_if_a_thread_fails(self, monkeypatch: pytest.MonkeyPatch):
        fast, _ = both("plain", recipe_of(), records(), monkeypatch, threads=3)
        assert fast._linear is not None
        ended = []

        class Kernel:
            @staticmethod
            def add_clipped_gradients(*given: Any) -> None:
                if given[7] == 1:
                    raise ValueError("thread 1")
                ended.append(given[7])

        monkeypatch.setattr(fast._linear, "_kernel", Kernel)
        with pytest.raises(ValueError, match="thread 1"):
            sums_of(fast)
        assert sorted(ended) == [0, 2]


class TestTrainings:
    @pytest.mark.oracle
    @pytest.mark.parametrize(
        "more",
        [
            {}, {"optimizer": "momentum", "average": 0.2}, {"optimizer": "adam"},
            {"optimizer": "adam-corrected"}, {"bounding": AutoSClipping()},
            {"batching": "reshuffled"},
        ],
        ids=repr,
    )  # fmt: skip
    @each_number_of_threads
    @pytest.mark.parametrize("name", ["plain", "behind a frozen layer"])
    def test_equal_those_of_pytorch(
        self, name: str, threads: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ):
        """With noise; where sums are rounded differently, a neighbouring grid point is released."""
        data = replace(records(), public=False)
        recipe = recipe_of(**{"noise_multiplier": 0.8, "learning_rate": 0.01, **more})
        fast, plain = both(name, recipe, data, monkeypatch, threads)
        for _ in range(12):
            fast.step()
            plain.step()
        assert fast._state.noise_deviation == plain._state.noise_deviation > 0
        for training in (fast, plain):
            training.finish()
        grain = (
            normals.compute_grid_distance(fast._state.noise_deviation) / recipe.expected_batch_size
        )
        most = 5e-3 if "adam" in recipe.optimizer else 0.1 * grain + 1e-5
        for first, second in zip(fast._weights, plain._weights, strict=True):
            assert float((first - second).abs().max()) <= most

    @pytest.mark.oracle
    def test_with_many_parameters_have_the_noise_of_pytorch(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(MODELS, "large", lambda: nn.Sequential(nn.Linear(INPUTS, 1000)))
        fast, plain = both("large", recipe_of(noise_multiplier=1.0), records(), monkeypatch)
        assert fast._sums.flats[0].numel() > normals.MAX_SINGLE_PIECE_COUNT
        apart = (sums_of(fast, 2, 1.0) - sums_of(plain, 2, 1.0)).abs()
        assert float((apart > 0).double().mean()) < 0.01
        assert float(apart.max()) <= 1.01 * normals.compute_grid_distance(0.7)

    @pytest.mark.contract
    def test_follow_from_their_keys(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(linear_backend, "MIN_SAVED_SECONDS", 0.0)
        data = replace(records(), public=False)
        recipe = recipe_of(noise_multiplier=1.0, steps=5)
        asked: list[int] = []
        honest = LinearBackend.write_sum
        monkeypatch.setattr(
            LinearBackend, "write_sum",
            lambda self, step, *given: asked.append(step) or honest(self, step, *given),
        )  # fmt: skip
        networks = []
        for seed in (1, 1, 2):
            torch.manual_seed(3)
            network = MODELS["plain"]()
            train(network, data, recipe, streams(seed))
            networks.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        assert asked == 3 * [0, 1, 2, 3, 4]
        assert torch.equal(networks[0], networks[1])
        assert not torch.equal(networks[0], networks[2])


class TestChoice:
    """Which trainings the backend accepts, from public numbers."""

    @pytest.mark.unit
    def test_leaves_others_to_pytorch(self):
        for given, network, data in [
            ({"bounding": AdaptiveClipping()}, "plain", {}),
            ({"bounding": PerLayerClipping(clip_norm=1.0)}, "plain", {}),
            ({"steps": 3}, "plain", {}),
            ({}, nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, 3)), {}),
            ({}, nn.Sequential(nn.Linear(INPUTS, 3), nn.Tanh()), {}),
            ({}, nn.Sequential(KeyedDropout(0.3), nn.Linear(INPUTS, 3)), {}),
            ({}, nn.Sequential(nn.Linear(INPUTS, 3), KeyedDropout(0.3)), {}),
            ({}, "plain", {"dtype": torch.float64}),
            ({}, "plain", {"numeric": True}),
        ]:
            own = records(numeric=data.get("numeric", False))
            model = MODELS[network]() if isinstance(network, str) else network
            if "dtype" in data:
                own, model = replace(own, x=own.x.double()), model.double()
            assert Training(model, own, recipe_of(**given), streams())._linear is None

    @pytest.mark.unit
    def test_gives_each_thread_enough_records(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(training_loop, "MIN_SHARED_BATCH_NUMBERS", 0)
        torch.set_num_threads(4)

        def found(batch: int) -> int | None:
            recipe = recipe_of(expected_batch_size=batch)
            made = Training(MODELS["plain"](), records(), recipe, streams())._linear
            return None if made is None else len(made._scratch)

        each = MIN_THREAD_RECORDS
        sizes = each - 1, each, 2 * each - 1, 2 * each, 3 * each, 400
        assert [found(size) for size in sizes] == [1, 1, 1, 2, 3, 4]
        torch.set_num_threads(1)
        assert found(400) == 1

    @pytest.mark.unit
    def test_leaves_a_clipping_method_with_a_formula_of_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        class Half(FlatClipping):
            def factors(self, norms: Tensor) -> Tensor:
                return super().factors(norms) / 2

        class Whole(FlatClipping):
            @property
            def terms(self) -> tuple[float, float, float]:
                return self.clip_norm / 2, 0.0, 1.0

        for bounding, expected in ((Half(), False), (Whole(), True), (AutoSClipping(), True)):
            assert has_factor_terms(bounding) is expected

        class Even(Poisson):
            def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
                return np.arange(0, n, 2)

        recipe = recipe_of()
        monkeypatch.setattr(Recipe, "make_batching", lambda self, n: Even(sampling_probability=0.1))
        assert linear_backend._make_batch_function(recipe, 6, streams()["batch"])(0).tolist() == [
            0,
            2,
            4,
        ]


class TestLoading:
    @pytest.mark.unit
    def test_a_kernel_that_fails_or_finds_other_sums_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        """PyTorch does not take over: a resumed run must not compute other sums."""

        def full(name: str) -> Any:
            raise OSError(28, "No space left on device")

        honest = linear_kernel.add_clipped_gradients

        def other(*given: Any) -> None:
            honest(*given)
            given[-1][0] += 0.01

        for place, name, fault, told in (
            (loops.importlib, "import_module", full, "full"),
            (linear_kernel, "add_clipped_gradients", other, "other numbers"),
            (normals, "add_small_noise", lambda total, *_: total.fill(0.0), "other numbers"),
            (normals, "load_compiled", lambda: None, "other numbers"),
        ):
            linear_backend.load_kernel.cache_clear()
            with monkeypatch.context() as patch:
                patch.setattr(place, name, fault)
                with pytest.raises(MachineError, match=told):
                    Training(MODELS["plain"](), records(), recipe_of(), streams())
        linear_backend.load_kernel.cache_clear()
        assert linear_backend.load_kernel() is linear_kernel

    @pytest.mark.unit
    def test_compiled_code_can_be_switched_off_and_a_run_is_bound_to_that(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        before = read_compiler_environment()
        linear_backend.load_kernel.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv("NUMBA_DISABLE_JIT", "1")
            trained = Training(MODELS["plain"](), records(), recipe_of(), streams())
            assert trained._linear is None
            assert read_compiler_environment() == {**before, "NUMBA_DISABLE_JIT": "1"}
            patch.setenv("NUMBA_CACHE_DIR", "elsewhere")
            assert "NUMBA_CACHE_DIR" not in read_compiler_environment()
        linear_backend.load_kernel.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(loops.importlib.util, "find_spec", lambda name: None)
            assert linear_backend.load_kernel() is None
        linear_backend.load_kernel.cache_clear()
        assert {"numba", "llvmlite"} <= set(list_versions())


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
def test_few_numbers_are_added_as_by_arrays():
    for count in [1, 2, 32, 33, 64, 65, 219, 1000, normals.MAX_SINGLE_PIECE_COUNT]:
        for size in [1e-30, 1.0, 1e9]:
            stream = Keys.from_seed(5).stream("few", count)
            words = stream.first_words(2 * normals.count_pairs(count))
            for step in range(20):
                first = size * np.random.default_rng(step).normal(size=count)
                given = [first.astype(np.float32) for _ in range(2)]
                normals.add_small_noise(given[0], 1.3, words.at(step), stream, step, noise_loops)
                normals.draw_normals(count, stream, step).add_to(given[1], 1.3)
                assert np.array_equal(*given)
                assert not np.signbit(given[0][given[0] == 0]).any()


@pytest.mark.unit
def test_what_float64_cannot_tell_is_settled_by_more_digits(monkeypatch: pytest.MonkeyPatch):
    """Wherever U is near its ends, or the sum lies in the middle between two grid points."""
    stream, count = Keys.from_seed(6).stream("ends"), 128
    words = stream.random_words().take(2 * normals.count_pairs(count)).copy()
    words[:4] = 0, 1, 2**63 - 1, -(2**63)
    asked = []
    honest = normals.Normals._round_exactly
    monkeypatch.setattr(
        normals.Normals, "_round_exactly",
        lambda self, exact, place, wide: asked.append(place) or honest(self, exact, place, wide),
    )  # fmt: skip
    given = [np.linspace(-3.0, 3.0, count).astype(np.float32) for _ in range(2)]
    normals.add_small_noise(given[0], 1.3, words, stream, 0, noise_loops)
    assert asked == [0, 1, 2, 3, 32, 33, 34, 35]
    normals.normals_from_words(words, count, stream, 0).add_to(given[1], 1.3)
    assert np.array_equal(*given)


@pytest.mark.unit
def test_a_grid_that_float32_cannot_divide_by_is_left_to_arrays():
    for scale in [1e-30, 1e30]:
        stream = Keys.from_seed(7).stream("grids")
        words = stream.random_words().take(2 * normals.count_pairs(10)).copy()
        given = [np.ones(10, np.float32) for _ in range(2)]
        normals.add_small_noise(given[0], scale, words, stream, 0, noise_loops)
        normals.normals_from_words(words, 10, stream, 0).add_to(given[1], scale)
        assert np.array_equal(*given)


@pytest.mark.unit
def test_a_generator_that_is_wound_is_the_steps_own():
    for secure in [False, True]:
        stream = Keys.from_seed(2, secure=secure).stream("batch")
        wound = stream.make_generator_function()
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
def test_first_words_are_the_streams():
    for count in [1, 2, 7, 256]:
        stream = Keys.from_seed(2).stream("noise")
        words = stream.first_words(count)
        for step in (0, 3, 2**64 - 1, 1):
            assert np.array_equal(words.at(step), stream.random_words(step).take(count))


@pytest.mark.unit
def test_every_file_with_compiled_code_is_in_the_hash_that_its_cache_is_bound_to():
    """Numba looks at a function's own file alone, so a changed callee would go unnoticed."""
    package = Path(noise_loops.__file__).parent.parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(
            r"\bnjit\b|\bruns\.compiled import\b.*\bcompile_loop\b", path.read_text("utf-8")
        )
    }
    assert found == set(noise_loops.COMPILED_FILES)
