"""Gaussian noise on a grid: every rounding is the exact one, and every grid point is as likely."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from pasearch.runs import normals as made
from pasearch.runs.keys import Keys, Stream, Words
from pasearch.runs.normals import LEAST, MASK, MOST, Normals, box_muller, grid, normals, pairs

each_library = pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])


def stream_of(*name: str | int) -> Stream:
    return Keys.from_seed(31).stream("normals", *name)


def decided(numbers: Normals, total: float, place: int, scale: float) -> float:
    """The rounding of total + scale z by its definition, with 400 bits."""
    grain = Fraction(grid(scale))
    with mpmath.workprec(400):
        whole = Fraction(total) / grain
        exact = mpmath.mpf(whole.numerator) / whole.denominator
        noisy = exact + mpmath.mpf(scale) / mpmath.mpf(float(grain)) * numbers.exactly(place)
        return float(mpmath.nint(noisy) * float(grain))


@pytest.mark.unit
@given(scale=st.floats(1e-300, 1e300))
def test_a_grid_is_a_power_of_two_between_a_thousandth_and_half_of_one_of_the_scale(scale: float):
    assert math.frexp(grid(scale))[0] == 0.5
    assert 2**10 <= scale / grid(scale) < 2**11


@pytest.mark.oracle
@each_library
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40_001])
def test_numbers_are_those_of_their_bits(count: int, xp: Any):
    numbers = normals(count, stream_of(count), 3, xp)
    assert len(numbers.values) == count
    step = max(1, count // 300)
    gaps = [
        abs(float(numbers.exactly(i)) - float(numbers.values[i])) for i in range(0, count, step)
    ]
    assert max(gaps, default=0.0) < 1e-14, "the proof allows 2^-36"
    half = pairs(count)
    for i in range(0, min(count, half), step):
        pair = (
            float(numbers.exactly(i)),
            float(numbers.exactly(i + half)) if i + half < count else 0,
        )
        length = (numbers.words(i)[0] & MASK) / 2**63
        assert math.hypot(*pair) <= math.sqrt(-2 * math.log(length)) + 1e-6


@pytest.mark.oracle
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e5, 1e12])
@each_library
def test_a_noisy_sum_is_the_rounding_of_the_exact_one(size: float, kind: type, xp: Any):
    scale, count = 3.7, 3000
    numbers = normals(count, stream_of("sum"), 0, xp)
    start = (np.random.default_rng(1).normal(size=count) * size).astype(kind)
    noisy = start.copy() if xp is np else torch.from_numpy(start.copy())
    numbers.add_to(noisy, scale)
    for place in range(0, count, 7):
        expected = kind(decided(numbers, float(start[place]), place, scale))
        assert float(noisy[place]) == float(expected)


@pytest.mark.unit
def test_what_lies_between_two_grid_points_is_decided_by_more_digits(
    monkeypatch: pytest.MonkeyPatch,
):
    """Sums are chosen so that the noisy one is half a grid point, up to what a float can tell."""
    scale, count = 2.0, 400
    grain = grid(scale)
    numbers = normals(count, stream_of("half"))
    halves = np.array([float(numbers.exactly(i)) for i in range(count)]) * scale
    start = np.floor(halves / grain) * grain + 0.5 * grain - halves
    # Half a float to either side: which one is nearer, no float64 can tell.
    expected = np.array([decided(numbers, start[i], i, scale) for i in range(count)])
    found = start.copy()
    numbers.add_to(found, scale)
    assert np.array_equal(found, expected)
    monkeypatch.setattr(made, "NEAR", -1.0)
    blunt = start.copy()
    numbers.add_to(blunt, scale)
    assert (blunt != expected).mean() > 0.02, "by float64 alone some go wrong"


class Given:
    """A stream whose words are given."""

    def __init__(self, words: np.ndarray):
        self._words = words

    def words(self, step: int = 0, *, first: int = 0) -> Any:
        rest = iter([self._words[first:]])
        return type("Taken", (), {"take": lambda _, count: next(rest)[:count]})()

    def word(self, place: int, step: int = 0) -> int:
        return int(self._words[place])

    def child(self, *context: str | int) -> Stream:
        return stream_of("child", *context)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "length", [0, 1, 2**20, LEAST - 1, LEAST, MOST, MOST + 1, 2**63 - 2, 2**63 - 1, -1, -(2**63)]
)
def test_the_longest_and_shortest_numbers_are_exact_too(length: int):
    turns = np.array([0, 1, -1, 2**61, -(2**62), 2**63 - 1, 12345, -(2**63)], dtype=np.int64)
    stream = Given(np.concatenate([np.full(8, length, dtype=np.int64), turns]))
    numbers = normals(16, stream)  # pyright: ignore[reportArgumentType]
    inside = LEAST <= length & MASK <= MOST
    assert len(numbers.extremes()) == (0 if inside else 16)
    start = np.random.default_rng(2).normal(size=16) * 30
    noisy = start.copy()
    numbers.add_to(noisy, 1.0)
    assert noisy.tolist() == [decided(numbers, start[i], i, 1.0) for i in range(16)]


def points(numbers: Normals, count: int, scale: float = 1.0) -> np.ndarray:
    noisy = np.full(count, 0.3 * grid(scale))
    numbers.add_to(noisy, scale)
    return np.rint(noisy / grid(scale)).astype(int)


def pvalue_of_points(found: np.ndarray, scale: float = 1.0) -> float:
    """Chi square of the 400 points in the middle, each on its own, and of what lies outside."""
    near = np.arange(-200, 201)
    edges = (np.append(near, 201) - 0.5 - 0.3) * grid(scale) / scale
    chances = np.diff(norm.cdf(edges))
    seen = np.array([(found == each).sum() for each in near])
    rest = len(found) - seen.sum()
    expected = len(found) * np.append(chances, 1 - chances.sum())
    return float(chisquare(np.append(seen, rest), expected).pvalue)


@pytest.mark.statistical
def test_every_grid_point_is_as_likely_as_the_law_says(monkeypatch: pytest.MonkeyPatch):
    count = 300_000
    assert pvalue_of_points(points(normals(count, stream_of("points")), count)) > 1e-3
    honest = box_muller

    def coarse(lengths: Any, turns: Any, cosines: Any, sines: Any, xp: Any) -> None:
        honest(lengths, turns, cosines, sines, xp)
        for each in (cosines, sines):
            each[:] = each.round(3)

    monkeypatch.setattr(made, "box_muller", coarse)
    assert pvalue_of_points(points(normals(count, stream_of("points")), count)) < 1e-9


@pytest.mark.statistical
@pytest.mark.parametrize("digits", [3, 6, 9, 12])
def test_numbers_with_few_digits_are_caught(digits: int, monkeypatch: pytest.MonkeyPatch):
    """What `numbers_are_those_of_their_bits` asserts, of numbers that are rounded."""
    honest = box_muller

    def coarse(lengths: Any, turns: Any, cosines: Any, sines: Any, xp: Any) -> None:
        honest(lengths, turns, cosines, sines, xp)
        for each in (cosines, sines):
            each[:] = each.round(digits)

    monkeypatch.setattr(made, "box_muller", coarse)
    with pytest.raises(AssertionError, match="the proof allows"):
        test_numbers_are_those_of_their_bits(5, np)


@pytest.mark.contract
def test_numpy_and_torch_give_the_same_noise():
    first, second = (normals(3001, stream_of("both"), 0, xp) for xp in (np, torch))
    noisy = [np.zeros(3001), torch.zeros(3001, dtype=torch.float64)]
    first.add_to(noisy[0], 0.7)
    second.add_to(noisy[1], 0.7)
    assert np.array_equal(noisy[0], np.asarray(noisy[1]))


@pytest.mark.unit
def test_pieces_of_a_sum_get_the_noise_of_their_place():
    numbers = normals(50_000, stream_of("pieces"))
    together, apart = np.ones(50_000), np.ones(50_000)
    numbers.add_to(together, 2.0)
    numbers.add_to(apart[:20_003], 2.0)
    numbers.add_to(apart[20_003:], 2.0, start=20_003)
    assert np.array_equal(together, apart)


# --- the words


@pytest.mark.oracle
def test_words_are_aes_in_counter_mode():
    """The first example of NIST SP 800-38A, F.5.5: AES-256 in counter mode."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
    step, block = int(counter[:16], 16), int(counter[16:], 16)
    drawn = Words(key, step, 2 * block).take(2).tobytes()
    text = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert bytes(a ^ b for a, b in zip(drawn, text, strict=True)).hex() == (
        "601ec313775789a5b7a7f504bbf3d228"
    )


@pytest.mark.unit
@settings(max_examples=50)
@given(first=st.integers(0, 5000), step=st.integers(0, 2**64 - 1))
def test_a_word_is_found_by_its_place(first: int, step: int):
    stream = stream_of("place")
    assert stream.word(first, step) == int(stream.words(step).take(first + 1)[first])


@pytest.mark.unit
def test_steps_purposes_and_streams_share_no_word():
    kinds = [
        stream_of("a").words(), stream_of("a").words(1), stream_of("b").words(),
        stream_of("a").child("further", 0).words(),
    ]  # fmt: skip
    drawn = [set(each.take(2000).tolist()) for each in kinds]
    assert all(len(each) == 2000 for each in drawn)
    assert len(set.union(*drawn)) == 8000
