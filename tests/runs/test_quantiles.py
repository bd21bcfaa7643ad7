"""Bins at privately estimated quantiles: where they are cut, what they cost, and an audit of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from pasearch.accounting.events import Gaussian
from pasearch.runs import estimates, sums
from pasearch.runs.estimates import (
    JOINED_BIN_LOWER_EDGES,
    JOINED_BIN_UPPER_EDGES,
    JOINED_ZERO_BIN,
    NumberBins,
    compute_exact_bin_edges,
    make_cell_edges,
)
from pasearch.runs.keys import Keys, Stream

Trial = Callable[[Stream], bool]


def stream(*context: object) -> Stream:
    return Keys.from_seed(5).stream("bins", *context)


def always_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few slots there are."""
    monkeypatch.setattr(NumberBins, "has_enough_records", lambda self, slots: True)


def shares(values: np.ndarray, edges: tuple[float, ...]) -> np.ndarray:
    places = np.searchsorted(edges, values, side="right")
    return np.bincount(places, minlength=len(edges) + 1) / len(values)


class TestEdges:
    @pytest.mark.unit
    def test_hold_about_equally_many_of_a_long_tail(self):
        for sigma in [1.0, 12.0]:
            for scale in [1e-4, 1.0, 1e6]:
                values = scale * np.exp(2.0 * np.random.default_rng(1).standard_normal(1500))
                low, high, edges = NumberBins(noise_multiplier=sigma, most=10).release(
                    values, stream()
                )
                assert low < min(edges)
                assert max(edges) < high
                assert 7 <= len(edges) <= 9
                assert shares(values, edges) == pytest.approx(0.1, abs=0.02 + 0.006 * sigma)

    @pytest.mark.unit
    def test_a_value_that_is_often_repeated_has_a_bin_of_its_own(self):
        draw = np.random.default_rng(2)
        values = np.where(draw.random(5000) < 0.6, 0.0, np.exp(8 + draw.standard_normal(5000)))
        _, _, edges = NumberBins(noise_multiplier=5.0, most=10).release(values, stream())
        zero = np.searchsorted(edges, 0.0, side="right")
        assert not np.any((values > 0) & (np.searchsorted(edges, values, side="right") == zero))
        assert len(edges) >= 6, "and the others are cut too"
        assert max(np.delete(shares(values, edges), zero)) < 0.15

    @pytest.mark.unit
    @settings(max_examples=200, deadline=None)
    @given(
        st.sampled_from([40, 40_000]),
        st.sampled_from([0.5, 20.0, 1000.0]),
        st.lists(
            st.one_of(
                st.floats(allow_nan=True, allow_infinity=True, width=64),
                st.sampled_from([0.0, 1.0, -1.0, 1e300, 5e-324]),
            ),
            max_size=40,
        ),
    )
    def test_of_anything_rise_strictly_between_the_bounds(
        self, slots: int, sigma: float, values: list[float]
    ):
        mechanism = NumberBins(noise_multiplier=sigma, most=10)
        assert mechanism.has_enough_records(slots) == (slots > 40)
        whole = np.resize(np.array([*values, math.nan]), slots)
        low, high, edges = mechanism.release(whole, stream(str(sigma)))
        assert all(a < b for a, b in pairwise((low, *edges, high)))
        assert len(edges) < 10

    @pytest.mark.unit
    def test_of_few_records_are_of_equal_width(self):
        values = np.exp(np.random.default_rng(8).standard_normal(40))
        low, high, edges = NumberBins(noise_multiplier=3.0, most=10).release(values, stream())
        assert np.diff([low, *edges, high]) == pytest.approx((high - low) / 10)

    @pytest.mark.unit
    def test_without_noise_they_are_the_quantiles(self):
        values = np.arange(1000.0)
        assert compute_exact_bin_edges(values, 0.0, 999.0, 4) == pytest.approx((250, 500, 750))
        assert compute_exact_bin_edges(np.array([math.nan]), 0.0, 1.0, 4) == ()
        assert compute_exact_bin_edges(np.full(9, 3.0), 0.0, 5.0, 4) == (3.0,)
        spike = np.concatenate([np.zeros(9000), np.arange(1.0, 1001.0)])
        found = compute_exact_bin_edges(spike, 0.0, 1000.0, 10)
        assert found[0] <= 1.0, "what is often repeated has a bin of its own"
        assert shares(spike[9000:], found[1:]) == pytest.approx(1 / len(found), abs=0.01)


class TestCells:
    @pytest.mark.unit
    def test_a_bin_of_many_is_cut_and_bins_of_few_are_joined(self):
        noisy = np.zeros(len(JOINED_BIN_UPPER_EDGES))
        noisy[JOINED_ZERO_BIN + 10 : JOINED_ZERO_BIN + 15] = 1.0
        noisy[JOINED_ZERO_BIN + 15] = 1000.0
        found = make_cell_edges(
            JOINED_BIN_LOWER_EDGES[JOINED_ZERO_BIN:],
            JOINED_BIN_UPPER_EDGES[JOINED_ZERO_BIN:],
            noisy[JOINED_ZERO_BIN:],
            1.0,
        )
        edge = float(JOINED_BIN_UPPER_EDGES[JOINED_ZERO_BIN + 14])
        assert np.count_nonzero(found < edge) <= 1
        assert np.count_nonzero(found > edge) > 30


def hits(trial: Trial, trials: int, name: str) -> int:
    return sum(trial(stream(name, number)) for number in range(trials))


class TestAudit:
    """All looks together tell a record from none by no more than one Gaussian of sigma."""

    SIGMA = 1.0
    TRIALS = 3000

    def audited_mu(self, monkeypatch: pytest.MonkeyPatch) -> float:
        """The least mu that a test of all looks allows, at 99.9% confidence."""
        always_twice(monkeypatch)
        mechanism = NumberBins(noise_multiplier=self.SIGMA, most=10)
        seen: dict[str, float] = {}
        first, later = estimates.release_magnitude_counts, estimates.release_cell_counts

        def sizes(values: np.ndarray, sigma: float, source: Stream) -> np.ndarray:
            noisy = first(values, sigma, source)
            seen.clear()
            seen["first"] = float(noisy[JOINED_ZERO_BIN + 11])
            return noisy

        def look(known: np.ndarray, knots: np.ndarray, sigma: float, source: Stream) -> np.ndarray:
            noisy = later(known, knots, sigma, source)
            place = np.searchsorted(knots[1:-1], 1.2, side="right")
            seen[f"look {len(seen)}"] = float(noisy[place])
            return noisy

        monkeypatch.setattr(estimates, "release_magnitude_counts", sizes)
        monkeypatch.setattr(estimates, "release_cell_counts", look)

        def look_full(count: int) -> Trial:
            def trial(source: Stream) -> bool:
                mechanism.release(np.full(count, 1.2), source, (0.0, 1.5))
                assert len(seen) == 3
                first, second, third = seen.values()  # weighed by 1 / variance
                return 2.0 * first + second + third > 22.0

            return trial

        here = hits(look_full(6), self.TRIALS, "here")
        there = hits(look_full(5), self.TRIALS, "there")
        low = beta.ppf(5e-4, here, self.TRIALS - here + 1) if here else 0.0
        high = beta.ppf(1 - 5e-4, there + 1, self.TRIALS - there) if there < self.TRIALS else 1.0
        return float(norm.ppf(low) - norm.ppf(high))

    @pytest.mark.unit
    def test_costs_one_gaussian(self):
        assert NumberBins(noise_multiplier=3.0, most=10).event == Gaussian(noise_multiplier=3.0)

    @pytest.mark.statistical
    def test_finds_nothing_wrong(self, monkeypatch: pytest.MonkeyPatch):
        assert 0.6 < self.audited_mu(monkeypatch) <= 1.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("root", [1.0, 0.5])
    def test_sees_that_each_look_has_the_noise_of_one(
        self, root: float, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(estimates.math, "sqrt", lambda _: root)
        assert self.audited_mu(monkeypatch) > 1.0

    @pytest.mark.unit
    def test_the_noise_of_all_looks_adds_up_to_the_price(self, monkeypatch: pytest.MonkeyPatch):
        drawn: list[float] = []
        honest = sums.GaussianSum.release

        def release(self: sums.GaussianSum, total: np.ndarray, source: Stream) -> np.ndarray:
            drawn.append(self.noise_multiplier)
            return honest(self, total, source)

        monkeypatch.setattr(sums.GaussianSum, "release", release)
        NumberBins(noise_multiplier=4.0, most=10).release(np.arange(500.0), stream())
        assert sum(1 / each**2 for each in drawn) == pytest.approx(1 / 4.0**2)

    @pytest.mark.unit
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), st.integers(0, 19))
    def test_a_record_moves_a_later_look_by_one_at_most(self, values: list[float], gone: int):
        counted: list[np.ndarray] = []
        inner = np.unique(
            make_cell_edges(
                JOINED_BIN_LOWER_EDGES,
                JOINED_BIN_UPPER_EDGES,
                np.zeros(len(JOINED_BIN_UPPER_EDGES)) + 5.0,
                1.0,
            )
        )
        for each in (values, [v for place, v in enumerate(values) if place != gone % len(values)]):
            place = np.searchsorted(inner, np.clip(np.array(each), -1e6, 1e6), side="right")
            counted.append(np.bincount(place, minlength=len(inner) + 1))
        assert np.abs(counted[0] - counted[1]).sum() == 1
