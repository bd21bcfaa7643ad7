"""Random bits and noise by a GPU's kernels, interpreted: Philox, exact rounding, notes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import interpreted
import numpy as np
import pytest
import torch
from scipy.stats import kstest
from shortcuts import normal_transform

from pasearch.gpu import bits as gpu
from pasearch.gpu.bits import NO_STEP, STEP_NUMBERS, STEPS_PER_BLOCK
from pasearch.runs import compiled
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import COMPILED_BLOCK as AT_ONCE
from pasearch.runs.normals import GROUP, count_pairs, normals_from_words

pytestmark = [
    # Rows that are not there divide by 0, and are left.
    pytest.mark.filterwarnings("ignore:divide by zero"),
    pytest.mark.filterwarnings("ignore:invalid value"),
    pytest.mark.filterwarnings("ignore:overflow encountered"),
]


KERNELS = gpu.load_kernels

WIDE = 4096
"""Pairs of numbers that one program adds where there are many: few programs take less time."""


@pytest.fixture(scope="module")
def code() -> Iterator[Any]:
    with interpreted.kernels() as found:
        yield found


@pytest.fixture
def wide(code: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(code, "PAIRS_PER_PROGRAM", WIDE)
    return code


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox 4x32 with ten rounds, in whole numbers."""
    low = 2**32 - 1
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k, second & low, first >> 32 ^ d ^ m, first & low
        k, m = k + 0x9E3779B9 & low, m + 0xBB67AE85 & low
    return a, b, c, d


@pytest.mark.oracle
def test_the_oracle_passes_the_tests_of_philoxs_authors():
    top = 2**32 - 1
    assert philox((0, 0, 0, 0), (0, 0)) == gpu.PHILOX_TEST_WORDS
    assert philox((top,) * 4, (top,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.oracle
def test_words_are_philoxs(code: Any):
    for key in [0, 1, 2**63, 0xFEDCBA9876543210]:
        for begin, step in [(0, 0), (2**62 + 5, 255), (2**33 - 4, 3)]:
            half, low = 300, 2**32 - 1
            found = [
                each % 2**64
                for each in code.draw_philox_words(half, key, begin, step, "cpu").tolist()
            ]
            for pair in (0, 1, 255, 299):
                counter = (pair, step, begin & low, begin >> 32)
                a, b, c, d = philox(counter, (key & low, key >> 32))
                assert (found[pair], found[half + pair]) == (b << 32 | a, d << 32 | c)
            assert len(set(found)) == 2 * half


@pytest.mark.oracle
def test_uniform_numbers_are_the_first_words_upper_bits(code: Any):
    low, key = 2**32 - 1, 0xFEDCBA9876543210
    found = code.uniform((7, 300), key, 9, 2, "cpu").flatten()
    for place in (0, 1, 1024, 2099):
        first, *_ = philox((place, 9, 2, 0), (key & low, key >> 32))
        assert float(found[place]) == (first >> 8) / 2**24
    assert kstest(found.numpy(), "uniform").pvalue > 1e-3
    others = [code.uniform((7, 300), *other, "cpu").flatten() for other in
              ((key, 10, 2), (key, 9, 1), (key - 1, 9, 2))]  # fmt: skip
    assert all(len(set(found.tolist()) & set(each.tolist())) < 5 for each in others)


@pytest.mark.unit
def test_steps_blocks_and_purposes_have_keys_of_their_own():
    stream = Keys.from_seed(1).stream("noise")
    noise = {gpu.derive_noise_key(stream, step) for step in range(3 * STEPS_PER_BLOCK)}
    assert len(noise) == 3 * STEPS_PER_BLOCK
    assert len({key for key, _, _ in noise}) == len({begin for _, begin, _ in noise}) == 3
    assert gpu.derive_noise_key(stream, 5)[2] == 5
    masks = {
        gpu.derive_mask_key(stream.child(place), step)
        for place in (0, 1)
        for step in range(STEPS_PER_BLOCK)
    }
    assert len(masks) == 2 * STEPS_PER_BLOCK
    assert not {key for key, *_ in noise} & {key for key, _ in masks}


class Sums:
    """Flat sums, and what `release` is told of them."""

    def __init__(self, code: Any, sums: torch.Tensor, scale: float, *, steps: int = 1):
        self.code, self.sums, self.scale = code, sums, scale
        self.stream = Keys.from_seed(3).stream("noise")
        self.key, self.begin, _ = gpu.derive_noise_key(self.stream, 0)
        scales = [scale] * steps if scale else [1.0]
        self.given = torch.from_numpy(gpu.pack_noise_inputs(scales, self.key, self.begin))
        if not scale:
            self.given.zero_()
        self.noted = torch.full((), NO_STEP, dtype=torch.int32)
        self.doubts = code.allocate_doubts(len(sums), "cpu")
        self.moved: dict[int, torch.Tensor] = {}

    def release(self, step: int = 0) -> torch.Tensor:
        places = gpu.list_row_addresses(self.given, self.sums, self.noted, self.doubts)
        row = [*places, len(self.sums), STEP_NUMBERS]
        for place, each in self.moved.items():
            row[place] = each.data_ptr()
        work = self.code.list_work(len(self.sums), "cpu")
        self.code.release(work, torch.tensor([row]), torch.tensor(step))
        return self.sums

    def exact(self, sums: torch.Tensor, step: int = 0) -> torch.Tensor:
        """Return the sums with the same noise, by exact arithmetic."""
        words = self.code.draw_philox_words(
            count_pairs(len(sums)), self.key, self.begin, step, "cpu"
        )
        found = sums.clone()
        normals_from_words(words, len(sums), self.stream, step).add_to(found, self.scale)
        return found


def totals(count: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.linspace(-40.0, 40.0, count) if count > 1 else torch.tensor([1.5])) * scale


@pytest.mark.oracle
def test_noise_is_exact_to_the_bit(code: Any, monkeypatch: pytest.MonkeyPatch):
    for scale in [0.25, 0.2501, 0.4999, 1e-7, 3e5]:
        for size, counts in ((128, (1, 31, 32, 33, 64, 511, 512, 513)), (WIDE, (30_000,))):
            monkeypatch.setattr(code, "PAIRS_PER_PROGRAM", size)
            for count, step in itertools.product(counts, (0, STEPS_PER_BLOCK - 1)):
                own = Sums(code, totals(count, scale), scale)
                before = own.sums.clone()
                assert torch.equal(own.release(step), own.exact(before, step)), (count, step)
                assert int(own.noted) == NO_STEP, (count, step)


@pytest.mark.statistical
def test_its_law_is_normal_and_steps_are_apart(wide: Any):
    first, second = (Sums(wide, torch.zeros(40_000), 0.7).release(step) for step in (0, 1))
    assert kstest(first.numpy() / 0.7, "norm").pvalue > 1e-3
    assert kstest(first.numpy() / 0.5, "norm").pvalue < 1e-9
    correlation = float(first @ second) / 0.49 / math.sqrt(len(first))
    assert abs(correlation) < 4


@pytest.mark.oracle
def test_float32_numbers_are_machine_codes_to_the_bit(code: Any):
    """So their errors are those that were found by trying every U and V there is."""
    from normals_by_kernel import normal_numbers

    bits = Stream(bytes(32)).random_words().take(AT_ONCE).view("<i4").copy()
    edges = [
        compiled.MIN_U_BITS,
        compiled.MIN_U_BITS + 1,
        compiled.MAX_U_BITS - 1,
        compiled.MAX_U_BITS,
        2**30,
        2**31 - 2**15,
    ]
    bits[: len(edges)] = edges
    found, count = np.empty_like(bits, dtype=np.float32), len(bits) // 2
    own = torch.from_numpy(bits), torch.empty(len(bits))
    normal_numbers[(1,)](*own, N=count)
    in_groups = bits.reshape(2, -1, GROUP).swapaxes(0, 1).copy().reshape(-1)
    normal_transform()(in_groups, found)
    expected = found.reshape(-1, 2, GROUP).swapaxes(0, 1).reshape(-1)
    told = ~np.isnan(expected)
    assert told.mean() > 0.999
    assert np.array_equal(own[1].numpy()[told], expected[told])


@pytest.mark.unit
def test_nothing_is_contracted_where_errors_are_told(code: Any, monkeypatch: pytest.MonkeyPatch):
    """Nor where weights are moved: by other roundings, those that were settled could be told."""
    told: list[Any] = []

    class Noted:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *_, **how: told.append(how["enable_fp_fusion"])

    monkeypatch.setattr(code, "_release", Noted())
    monkeypatch.setattr(code, "_settle", Noted())
    Sums(code, totals(100), 1.0).release()
    assert told == [False, False]


@pytest.mark.unit
def test_what_float32_cannot_tell_is_settled_by_all_bits(
    wide: Any, monkeypatch: pytest.MonkeyPatch
):
    own = Sums(wide, totals(30_000), 0.2501)
    before = own.sums.clone()
    own.release()
    assert 5 < int(own.doubts[0]) < 100
    monkeypatch.setattr(wide, "SETTLE_PROGRAMS", 1)
    other = Sums(wide, before.clone(), 0.2501)
    assert torch.equal(other.release(), own.sums)
    few = Sums(wide, before.clone(), 0.2501)
    few.doubts[1] = 2
    few.release(7)
    assert int(few.noted) == 7, "where there is no room the step is noted"
    assert int((few.sums == before).sum()) >= int(own.doubts[0]) - 2


@pytest.mark.unit
def test_a_sum_that_is_not_finite_is_noted(code: Any):
    for total in [math.inf, -math.inf, math.nan, 1e30]:
        for scale in (1.0, 0.0):
            sums = totals(1000)
            sums[700] = total
            own = Sums(code, sums, scale)
            own.release(9)
            finite = math.isfinite(total)
            assert int(own.noted) == (NO_STEP if finite else 9)
            assert not finite or float(own.sums[700]) == pytest.approx(1e30)


@pytest.mark.unit
def test_what_127_bits_do_not_decide_is_noted_with_its_first_step(
    wide: Any, monkeypatch: pytest.MonkeyPatch
):
    import triton.language as tl

    monkeypatch.setattr(wide, "_FLOAT64_ERROR", tl.constexpr(0.4))
    own = Sums(wide, totals(30_000), 0.2501)
    own.release(11)
    assert int(own.noted) == 11
    own.doubts[0] = 0
    own.release(12)
    assert int(own.noted) == 11
    own.doubts[0] = 0
    own.release(4)
    assert int(own.noted) == 4


@pytest.mark.unit
def test_a_sum_of_very_many_grid_points_is_settled_too(code: Any):
    own = Sums(code, totals(1000, 1e7), 0.7)
    before = own.sums.clone()
    assert torch.equal(own.release(), own.exact(before))
    assert int(own.doubts[0]) > 900


@pytest.mark.unit
def test_without_noise_a_sum_stays_as_it_is(code: Any):
    own = Sums(code, totals(1000), 0.0)
    before = own.sums.clone()
    assert torch.equal(own.release(), before)
    assert int(own.noted) == NO_STEP


@pytest.mark.unit
def test_weights_are_moved_by_what_is_released(wide: Any):
    """Those of numbers that are settled later, too."""
    for momentum in [0.0, 0.9]:
        for mean in [0.0, 0.3]:
            count, own = 30_000, Sums(wide, totals(30_000), 0.2501)
            numbers = own.given.numpy().view(np.float64)
            numbers[:, 2:6] = 0.5, momentum, 1 / 8, mean
            weights, moment, average = (torch.randn(count) for _ in range(3))
            first, second = (torch.empty(count, dtype=torch.bfloat16) for _ in range(2))
            own.moved = {2: weights, 5: first, 6: second}
            own.moved |= {3: moment} if momentum else {}
            own.moved |= {4: average} if mean else {}
            before = [each.clone() for each in (weights, moment, average)]
            released = own.release()
            assert int(own.doubts[0]) > 5
            # Operation by operation, to the bit, whether a number was settled or not.
            taken = released * (1 / 8)
            taken = before[1] * np.float32(momentum) + taken if momentum else taken
            assert torch.equal(weights, before[0] - taken * 0.5)
            assert torch.equal(moment, taken if momentum else before[1])
            expected = before[2] + (weights - before[2]) * np.float32(mean)
            assert torch.equal(average, expected if mean else before[2])
            assert torch.allclose(weights, first.float() + second.float(), rtol=2.0**-16)
            assert (weights - first.float()).abs().max() <= 2.0**-8 * weights.abs().max()


@pytest.mark.unit
def test_weights_are_halved_as_torch_halves_them(code: Any):
    """Also in the middle between two, so that what a step finds does not depend on its round."""
    count = 1000
    own = Sums(code, torch.zeros(count), 0.0)
    own.given.numpy().view(np.float64)[:, 2:5] = 0.5, 0.0, 1.0
    middles = torch.arange(count, dtype=torch.int32) << 16 | 0x3F808000
    weights = middles.view(torch.float32)
    first, second = (torch.empty(count, dtype=torch.bfloat16) for _ in range(2))
    own.moved = {2: weights, 5: first, 6: second}
    own.release()
    expected = weights.bfloat16()
    assert torch.equal(weights, middles.view(torch.float32))
    assert torch.equal(first, expected)
    assert torch.equal(second, (weights - expected.float()).bfloat16())


@pytest.mark.unit
def test_kernels_are_tried_and_torch_takes_over_where_they_fail(
    wide: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu, "TEST_NUMBERS", 2**14)
    assert gpu._are_noise_kernels_exact(wide, "cpu")
    monkeypatch.setattr(wide, "_S0", wide.tl.constexpr(-1.95e-1))
    assert not gpu._are_noise_kernels_exact(wide, "cpu")
    monkeypatch.undo()
    name = "pasearch.gpu.kernels"
    with pytest.raises(ValueError, match="scales is empty"):
        gpu.pack_noise_inputs([], 1, 2)
    with pytest.warns(RuntimeWarning, match="results differ from PyTorch's"):
        assert gpu.load_if_usable(name, lambda _: False) is None
    with pytest.warns(RuntimeWarning, match="Triton ended with ValueError"):
        assert gpu.load_if_usable(name, lambda _: int("no compiler")) is None  # pyright: ignore


@pytest.mark.unit
def test_a_processor_has_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "load_kernels", KERNELS)
    assert gpu.load_kernels("cpu") is gpu.load_kernels(torch.device("cpu")) is None
    monkeypatch.setenv(gpu.NO_TRITON_VARIABLE, "1")
    assert gpu._load_noise_kernels.__wrapped__("cuda", 0) is None
