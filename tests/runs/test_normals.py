"""Gaussian noise on a grid: every rounding is the exact one, and every grid point is as likely."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm
from shortcuts import normal_transform

from pasearch.runs import compiled
from pasearch.runs import normals as made
from pasearch.runs.keys import Keys, RandomWords, Stream
from pasearch.runs.normals import (
    COMPILED_BLOCK,
    FLOAT64_ERROR,
    GROUP,
    LOW_63_BITS,
    MAX_U_BITS,
    MIN_U_BITS,
    Normals,
    box_muller,
    compute_grid_distance,
    draw_normals,
    normals_from_words,
)
from pasearch.runs.processor import ThreadTeam

KINDS = (np.float32, np.float64)


def stream_of(*name: str | int) -> Stream:
    return Keys.from_seed(31).stream("normals", *name)


def decided(numbers: Normals, total: float, place: int, scale: float) -> float:
    """The rounding of total + scale z by its definition, with 400 bits."""
    grain = Fraction(compute_grid_distance(scale))
    with mpmath.workprec(400):
        whole = Fraction(total) / grain
        exact = mpmath.mpf(whole.numerator) / whole.denominator
        noisy = exact + mpmath.mpf(scale) / mpmath.mpf(float(grain)) * numbers.compute_exactly(
            place
        )
        return float(mpmath.nint(noisy) * float(grain))


def released(numbers: Normals, start: np.ndarray, scale: float) -> np.ndarray:
    noisy = start.copy()
    on_device = isinstance(numbers.given_words, torch.Tensor)
    numbers.add_to(torch.from_numpy(noisy) if on_device else noisy, scale)
    return noisy


def on_a_device(count: int, stream: Stream) -> Normals:
    """The numbers as a GPU makes them, from words of its own."""
    words = np.random.default_rng(7).integers(-(2**63), 2**63, size=2 * made.count_pairs(count))
    return normals_from_words(torch.from_numpy(words), count, stream, 0)


WAYS: dict[str, Callable[[int, Stream], Normals]] = {
    "arrays": draw_normals,
    "machine code": partial(draw_normals, code=compiled),
    "a device": on_a_device,
}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.unit
@given(scale=st.floats(1e-300, 1e300))
def test_a_grid_is_a_power_of_two_between_a_128th_and_half_of_one_of_the_scale(scale: float):
    assert math.frexp(compute_grid_distance(scale))[0] == 0.5
    assert 2**7 <= scale / compute_grid_distance(scale) < 2**8


def largest_error(numbers: Normals) -> float:
    """The largest error of some of the values, against their 191 and 192 bits."""
    count, values = numbers.count, numbers.compute().values
    assert len(values) == count
    places = [i for i in range(0, count, max(1, count // 200)) if not math.isnan(values[i])]
    return max(
        (abs(float(numbers.compute_exactly(i)) - float(values[i])) for i in places), default=0.0
    )


@pytest.mark.oracle
@pytest.mark.parametrize("count", [0, 1, 2, 5, 5000, 3 * COMPILED_BLOCK + 1001])
def test_numbers_are_those_of_their_bits(count: int, monkeypatch: pytest.MonkeyPatch):
    """The same check finds values that are rounded to few digits."""
    for way in ("arrays", "a device"):
        assert largest_error(WAYS[way](count, stream_of(count))) < FLOAT64_ERROR / 2
    if count == 5000:
        coarse = lambda *given: [each.round(decimals=8) for each in box_muller(*given)]  # noqa: E731
        monkeypatch.setattr(made, "box_muller", coarse)
        for way in ("arrays", "a device"):
            assert largest_error(WAYS[way](count, stream_of(count))) > FLOAT64_ERROR


@pytest.mark.oracle
def test_machine_code_errs_by_what_was_found_of_all_bits():
    """Some of the bits that benchmarks/floating_point/exhaustive.py tries all of."""
    for function in ["radius", "turn"]:
        if function == "radius":
            lengths = np.concatenate([
                np.arange(compiled.MIN_U_BITS, compiled.MAX_U_BITS, 4099),
                compiled.MIN_U_BITS + np.arange(4096),
                compiled.MAX_U_BITS - np.arange(4096),
            ])  # fmt: skip
            turns = np.zeros(len(lengths))
        else:
            lengths = np.full(2**20, round(2**31 * math.exp(-0.5)))  # a radius of 1
            turns = np.arange(-(2**31), 2**31, 4096)
        size = GROUP * (len(turns) // GROUP)
        bits = np.stack([lengths[:size], turns[:size]]).astype(np.int32)
        values = np.empty(2 * size, dtype=np.float32)
        in_groups = np.ascontiguousarray(bits.reshape(2, -1, GROUP).swapaxes(0, 1)).ravel()
        normal_transform()(in_groups, values)
        exact = box_muller(bits[0].astype(float), bits[1].astype(float), 31)
        found = values.reshape(-1, 2, GROUP).swapaxes(0, 1).reshape(2, -1)
        assert np.abs(found - np.stack(exact)).max() < 2.0**-21


@pytest.mark.oracle
def test_machine_code_leaves_numbers_of_too_few_bits_to_the_second_stage():
    outside = [0, 1, compiled.MIN_U_BITS - 1, compiled.MAX_U_BITS + 1, 2**31 - 1]
    for length in [*outside, compiled.MIN_U_BITS, compiled.MAX_U_BITS]:
        bits = np.zeros(2 * GROUP, dtype=np.int32)
        bits[:GROUP] = length
        values = np.empty(2 * GROUP, dtype=np.float32)
        normal_transform()(bits, values)
        assert np.isnan(values).all() == (length in outside)


@pytest.mark.unit
def test_machine_code_a_team_and_arrays_release_the_same_numbers():
    for count, size in [
        (made.MAX_SINGLE_PIECE_COUNT + 1, 1.0),
        (2**16 + 37, 1e-30),
        (2**16 + 37, 1e9),
        (3 * COMPILED_BLOCK + 1001, 1.0),
    ]:
        stream = stream_of("same")
        start = (np.random.default_rng(5).normal(size=count) * size).astype(np.float32)
        expected = released(draw_normals(count, stream), start, 1.3)
        for threads in (1, 2, 3, 7):
            found = start.copy()
            draw_normals(count, stream, code=compiled).add_to(found, 1.3, team=ThreadTeam(threads))
            assert np.array_equal(found, expected)


@pytest.mark.unit
@each_way
def test_no_zero_is_negative(way: str):
    """Its sign would tell whether the sum was below 0 or above."""
    scale = 1.0
    for kind in KINDS:
        for size in (-0.4, -1e-9):
            start = np.full(100_000, size * compute_grid_distance(scale), dtype=kind)
            noisy = released(WAYS[way](len(start), stream_of("zeros")), start, scale)
            assert len(noisy[noisy == 0]) > 100
            assert not np.signbit(noisy[noisy == 0]).any()


@pytest.mark.unit
def test_machine_code_is_loaded_when_it_pays(monkeypatch: pytest.MonkeyPatch):
    made.load_compiled.cache_clear()
    monkeypatch.setattr(made, "_drawn_count", 0)
    assert draw_normals(5000, stream_of("few")).code is None
    monkeypatch.setattr(made, "_drawn_count", made.MIN_COMPILED_NUMBERS)
    assert draw_normals(5000, stream_of("few")).code is compiled


def missing(name: str) -> Any:
    if name == compiled.__name__:
        raise ImportError("numba")
    return sys.modules[name]


def damaged(*_: Any) -> None:
    raise EOFError("Ran out of input")


def other_numbers(honest: Any, bits: Any, total: Any, *given: Any) -> int:
    found = honest(bits, total, *given)
    total[7] += 0.5
    return found


@pytest.mark.unit
@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (importlib, "import_module", missing),
        (compiled, "round_uncertain", damaged),
        (compiled, "add_noise", partial(other_numbers, compiled.add_noise)),
    ],
)
def test_machine_code_that_fails_or_releases_other_numbers_is_not_used(
    place: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(made, "_drawn_count", made.MIN_COMPILED_NUMBERS)
    made.load_compiled.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(place, name, fault)
        assert draw_normals(5000, stream_of("few")).code is None
    made.load_compiled.cache_clear()


@pytest.mark.oracle
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e5, 1e12])
@each_way
def test_a_noisy_sum_is_the_rounding_of_the_exact_one(size: float, way: str):
    scale, count = 3.7, 6000
    numbers = WAYS[way](count, stream_of("sum"))
    for kind in KINDS:
        start = (np.random.default_rng(1).normal(size=count) * size).astype(kind)
        noisy = released(numbers, start, scale)
        for place in range(0, count, 23):
            assert noisy[place] == kind(decided(numbers, float(start[place]), place, scale))


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_no_number_of_many_is_rounded_otherwise_than_by_all_its_bits(
    kind: type, monkeypatch: pytest.MonkeyPatch
):
    scale, count, stream = 0.7, 400_000, stream_of("many")
    start = np.random.default_rng(4).normal(size=count).astype(kind)
    values = draw_normals(count, stream).compute().values
    expected = (
        np.rint((start + values * scale) / compute_grid_distance(scale))
        * compute_grid_distance(scale)
    ).astype(kind)
    for way in ("arrays", "machine code"):
        assert np.array_equal(released(WAYS[way](count, stream), start, scale), expected)
    compiled.grid_settings.cache_clear()
    monkeypatch.setattr(compiled, "COMPILED_ERROR", 0.0)
    blunt = released(draw_normals(count, stream, code=compiled), start, scale)
    compiled.grid_settings.cache_clear()
    assert not np.array_equal(blunt, expected), "by float32 alone some go wrong"


@pytest.mark.unit
def test_what_lies_between_two_grid_points_is_decided_by_more_digits(
    monkeypatch: pytest.MonkeyPatch,
):
    """Sums are chosen so that the noisy one is half a grid point, up to what a float can tell."""
    scale, count = 2.0, 400
    grain = compute_grid_distance(scale)
    numbers = draw_normals(count, stream_of("half"))
    halves = np.array([float(numbers.compute_exactly(i)) for i in range(count)]) * scale
    start = np.floor(halves / grain) * grain + 0.5 * grain - halves
    # Half a float to either side: which one is nearer, no float64 can tell.
    expected = np.array([decided(numbers, start[i], i, scale) for i in range(count)])
    assert np.array_equal(released(numbers, start, scale), expected)
    monkeypatch.setattr(made, "FLOAT64_ERROR", -1.0)
    blunt = released(numbers, start, scale)
    assert (blunt != expected).mean() > 0.02, "by float64 alone some go wrong"


@pytest.mark.oracle
def test_the_longest_and_shortest_numbers_are_exact_too():
    for length in [
        0,
        1,
        2**20,
        MIN_U_BITS - 1,
        MIN_U_BITS,
        MAX_U_BITS,
        MAX_U_BITS + 1,
        2**63 - 2,
        2**63 - 1,
        -1,
        -(2**63),
    ]:
        turns = np.array([0, 1, -1, 2**61, -(2**62), 2**63 - 1, 12345, -(2**63)], dtype=np.int64)
        lengths = np.full(GROUP, length, dtype=np.int64)
        words = torch.from_numpy(np.concatenate([lengths, np.resize(turns, GROUP)]))
        numbers = normals_from_words(words, 2 * GROUP, stream_of("ends"), 0)
        inside = MIN_U_BITS <= length & LOW_63_BITS <= MAX_U_BITS
        assert int(numbers.values.isnan().sum()) == (0 if inside else 2 * GROUP)
        start = np.random.default_rng(2).normal(size=2 * GROUP) * 30
        noisy = released(numbers, start, 1.0)
        assert noisy.tolist() == [decided(numbers, start[i], i, 1.0) for i in range(2 * GROUP)]


@pytest.mark.oracle
def test_what_float32_is_too_coarse_for_is_exact_too():
    """Every number that lies near a middle, or at an end of U, and goes on to float64."""
    for kind in KINDS:
        count, scale = 40_000, 0.37
        numbers = draw_normals(count, stream_of("coarse"), code=compiled)
        start = np.random.default_rng(3).normal(size=count).astype(kind)
        noisy = released(numbers, start, scale)
        values = draw_normals(count, stream_of("coarse")).compute().values
        rest = (start.astype(float) + values * scale) / compute_grid_distance(scale)
        asked = np.flatnonzero(~(np.abs(rest - np.rint(rest)) <= 0.499))
        assert len(asked) > 60
        for place in map(int, asked):
            assert noisy[place] == kind(decided(numbers, float(start[place]), place, scale))


@pytest.mark.unit
def test_further_bits_are_no_bits_that_were_drawn():
    count, stream = 40_000, stream_of("further")
    half = made.count_pairs(count)
    lengths, turns = draw_normals(count, stream)._bits(0, half)
    drawn = stream.random_words().take(half).view(np.uint32)
    first = np.concatenate([lengths >> 32 & 0x7FFFFFFF, turns >> 32 & 0xFFFFFFFF])
    assert np.isin(first, np.concatenate([drawn & 0x7FFFFFFF, drawn])).all()
    later = np.concatenate([lengths & 0xFFFFFFFF, turns & 0xFFFFFFFF])
    assert len(np.unique(later)) > 2 * half - 10, "no two alike, but by chance"
    assert np.isin(later, drawn).sum() < 10


@pytest.mark.unit
def test_sums_and_noise_of_any_size_meet():
    for scale in [1e-30, 1e-12, 1e30]:
        numbers = draw_normals(5000, stream_of("any size"))
        for size in (1e-40, 1.0, 1e25, 3e38):
            start = (np.random.default_rng(3).uniform(-1, 1, size=5000) * size).astype(np.float32)
            noisy = released(numbers, start, scale)
            for place in range(0, 5000, 97):
                expected = np.float32(decided(numbers, float(start[place]), place, scale))
                assert noisy[place] == expected


def points(numbers: Normals, count: int, scale: float = 1.0) -> np.ndarray:
    noisy = released(numbers, np.full(count, 0.3 * compute_grid_distance(scale)), scale)
    return np.rint(noisy / compute_grid_distance(scale)).astype(int)


def pvalue_of_points(found: np.ndarray, scale: float = 1.0) -> float:
    """Chi square of the 400 points in the middle, each on its own, and of what lies outside."""
    near = np.arange(-200, 201)
    edges = (np.append(near, 201) - 0.5 - 0.3) * compute_grid_distance(scale) / scale
    chances = np.diff(norm.cdf(edges))
    seen = np.array([(found == each).sum() for each in near])
    rest = len(found) - seen.sum()
    expected = len(found) * np.append(chances, 1 - chances.sum())
    return float(chisquare(np.append(seen, rest), expected).pvalue)


@pytest.mark.statistical
def test_every_grid_point_is_as_likely_as_the_law_says(monkeypatch: pytest.MonkeyPatch):
    count = 300_000
    assert pvalue_of_points(points(draw_normals(count, stream_of("points")), count)) > 1e-3

    def coarse(*given: Any) -> Any:
        return [each.round(2) for each in box_muller(*given)]

    monkeypatch.setattr(made, "box_muller", coarse)
    assert pvalue_of_points(points(draw_normals(count, stream_of("points")), count)) < 1e-9


@pytest.mark.unit
def test_pieces_of_a_sum_get_the_noise_of_their_place():
    for way in ("arrays", "machine code"):
        together, apart = np.ones(50_000), np.ones(50_000)
        numbers = WAYS[way](50_000, stream_of("pieces"))
        numbers.add_to(together, 2.0)
        numbers.add_to(apart[:20_003], 2.0)
        numbers.add_to(apart[20_003:], 2.0, start=20_003)
        assert np.array_equal(together, apart)


# --- the words


@pytest.mark.unit
def test_words_may_begin_with_a_later_one():
    for first in [0, 2, 64, 100_000]:
        stream = stream_of("later")
        whole = stream.random_words(7).take(first + 50).copy()
        assert np.array_equal(stream.random_words(7, first).take(50), whole[first:])
        with pytest.raises(AssertionError):
            stream.random_words(7, first + 1)


@pytest.mark.oracle
def test_words_are_aes_in_counter_mode():
    """The first example of NIST SP 800-38A, F.5.5: AES-256 in counter mode."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    step, block = int(counter[:16], 16), int(counter[16:], 16)
    drawn = RandomWords(key, step).at(np.array([2 * block, 2 * block + 1])).tobytes()
    text = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert bytes(a ^ b for a, b in zip(drawn, text, strict=True)).hex() == (
        "601ec313775789a5b7a7f504bbf3d228"
    )


@pytest.mark.unit
@settings(max_examples=50)
@given(places=st.lists(st.integers(0, 5000)), step=st.integers(0, 2**64 - 1))
def test_words_are_found_by_their_places(places: list[int], step: int):
    words = stream_of("place").random_words(step)
    found = words.at(np.array(places, dtype=np.int64))
    assert found.tolist() == words.take(5001)[places].tolist()


@pytest.mark.unit
def test_steps_purposes_and_streams_share_no_word():
    kinds = [
        stream_of("a").random_words(), stream_of("a").random_words(1),
        stream_of("b").random_words(), stream_of("a").child("further", 0).random_words(),
    ]  # fmt: skip
    drawn = [set(each.take(2000).tolist()) for each in kinds]
    assert all(len(each) == 2000 for each in drawn)
    assert len(set.union(*drawn)) == 8000
