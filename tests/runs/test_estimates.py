"""Estimated categories, bounds and classes have their laws, and an audit sees each broken one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, norm

from pasearch.accounting.accountants import price
from pasearch.accounting.events import ApproximateDP, Composition, Gaussian
from pasearch.errors import UsageError
from pasearch.runs import estimates
from pasearch.runs.estimates import (
    LOWER_EDGES,
    MAGNITUDE_EDGES,
    MIN_RANGE_DEVIATIONS,
    UPPER_EDGES,
    ZERO_BIN,
    CategoryCounts,
    ClassCount,
    NumberBounds,
    count_magnitude_bins,
    find_used_bins,
)
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import compute_grid_distance

Trial = Callable[[Stream], bool]


def hits(trial: Trial, trials: int, name: str) -> int:
    keys = Keys.from_seed(20)
    return sum(trial(keys.stream(name, i)) for i in range(trials))


def audited_mu(here: Trial, there: Trial, trials: int) -> float:
    """The least mu of a Gaussian release that two worlds allow, at 99.9% confidence."""
    seen, other = hits(here, trials, "here"), hits(there, trials, "there")
    low = beta.ppf(5e-4, seen, trials - seen + 1) if seen else 0.0
    high = beta.ppf(1 - 5e-4, other + 1, trials - other) if other < trials else 1.0
    return float(norm.ppf(low) - norm.ppf(high))


def scaled_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Noise of another size, at unchanged thresholds."""
    right = estimates.GaussianSum

    def wrong(*, noise_multiplier: float):
        return right(noise_multiplier=max(1e-9, factor * noise_multiplier))

    monkeypatch.setattr(estimates, "GaussianSum", wrong)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is in its bin and in the one above."""
    right = estimates.count_magnitude_bins

    def wrong(values: np.ndarray) -> np.ndarray:
        counts = right(values)
        return counts + np.append([0.0], counts[:-1])

    monkeypatch.setattr(estimates, "count_magnitude_bins", wrong)


class TestCategories:
    @pytest.mark.statistical
    @pytest.mark.parametrize("sigma", [1.0, 20.0])
    @pytest.mark.parametrize("above", [-1.0, 1.0])
    def test_are_kept_as_often_as_the_law_says_and_no_other_law(self, sigma: float, above: float):
        mechanism = CategoryCounts(noise_multiplier=sigma, delta=1e-3, most=1)
        count, trials = round(mechanism.threshold + above * sigma), 3000
        kept = hits(lambda s: mechanism.release({"c": count}, s) == ["c"], trials, "keep")

        def pvalue(value: float) -> float:
            rate = norm.sf((mechanism.threshold - count) / value)
            return binomtest(kept, trials, rate).pvalue

        assert pvalue(sigma) > 1e-3
        assert pvalue(sigma * 1.5) < 1e-9
        assert pvalue(sigma / 1.5) < 1e-9

    @pytest.mark.oracle
    @settings(max_examples=200)
    @given(st.floats(0.05, 1e6), st.floats(1e-40, 0.9))
    def test_the_threshold_is_the_least_that_is_rare_enough(self, sigma: float, delta: float):
        threshold = CategoryCounts(noise_multiplier=sigma, delta=delta, most=1).threshold

        def lone(t: int) -> float:  # log P[1 + N(0, sigma^2) >= t - grid / 2]
            return float(norm.logsf((t - compute_grid_distance(sigma) / 2 - 1) / sigma))

        # Below delta by more than logsf can be wrong; one less would not be, but for a hair.
        assert lone(threshold) <= math.log(delta) - 1e-10
        assert lone(threshold - 1) > math.log(delta) - 1e-6

    @pytest.mark.oracle
    @pytest.mark.parametrize(("delta", "threshold"), [(1e-4, 40), (1e-6, 6), (1e-8, 10)])
    def test_the_threshold_is_of_counts_as_they_are_rounded(self, delta: float, threshold: int):
        """1 + sigma d lies just below a whole number: rounding alone would reach it."""
        sigma = (threshold - 1) / -float(norm.ppf(delta)) * (1 - 3e-9)
        step = compute_grid_distance(sigma)

        def rounded(least: int) -> float:  # P[step round((1 + sigma z) / step) >= least]
            return float(norm.sf(((math.ceil(least / step) - 0.5) * step - 1) / sigma))

        found = CategoryCounts(noise_multiplier=sigma, delta=delta, most=1).threshold
        assert rounded(found) <= delta
        assert rounded(threshold) > delta, "without the grid it would be this one"

    @pytest.mark.unit
    def test_come_by_falling_count_and_at_most_as_many_as_asked(self):
        mechanism = CategoryCounts(
            noise_multiplier=1e-3, delta=1e-6, most=3
        )  # no noise to speak of
        counts = {"b": 7, "a": 8, "z": 900, "rare": 1, "none": 0, "c": 6}
        stream = Keys.from_seed(1).stream("x")
        assert mechanism.release(counts, stream) == ["z", "a", "b"]
        wider = CategoryCounts(noise_multiplier=1e-3, delta=1e-6, most=100)
        assert wider.release(counts, stream) == ["z", "a", "b", "c"]
        assert mechanism.release({}, stream) == []
        assert mechanism.release({"none": 0}, stream) == []

    @pytest.mark.unit
    def test_of_other_counts_share_no_noise(self, monkeypatch):
        noise: list[np.ndarray] = []
        right = estimates._add_noise

        def seen(exact: np.ndarray, sigma: float, stream: Stream) -> np.ndarray:
            noisy = right(exact, sigma, stream)
            noise.append(noisy - exact)
            return noisy

        monkeypatch.setattr(estimates, "_add_noise", seen)
        mechanism = CategoryCounts(noise_multiplier=9.0, delta=0.4, most=9)
        stream = Keys.from_seed(3).stream("x")
        for counts in ({"a": 5, "b": 5}, {"b": 5, "a": 5}, {"a": 5, "b": 6}, {"a": 5, "c": 5}):
            mechanism.release(counts, stream)
        # A count or a name elsewhere changes the noise of every category.
        first, again, recounted, renamed = noise
        np.testing.assert_array_equal(first, again)
        assert not np.isclose(first, recounted).any()
        assert not np.isclose(first, renamed).any()

    @pytest.mark.unit
    def test_other_counts_are_refused_and_not_named(self):
        for counts in [
            {"secret": 1.0},
            {"secret": True},
            {7531: 1},
            {"secret": "7"},
            {"secret": -7531},
        ]:
            mechanism = CategoryCounts(noise_multiplier=1.0, delta=1e-6, most=3)
            with pytest.raises((TypeError, ValueError)) as caught:
                mechanism.release(counts, Keys().stream("x"))
            assert "secret" not in str(caught.value)
            assert "7531" not in str(caught.value)

    @pytest.mark.unit
    def test_other_numbers_are_refused(self):
        for numbers in [
            (0, 1e-6, 3),
            (1.0, 0, 3),
            (1.0, 1.0, 3),
            (1.0, 1e-6, 0),
            (math.nan, 1e-6, 3),
        ]:
            sigma, delta, most = numbers
            with pytest.raises(UsageError):
                CategoryCounts(noise_multiplier=sigma, delta=delta, most=most)

    @pytest.mark.unit
    def test_cost_their_event(self):
        mechanism = CategoryCounts(noise_multiplier=5.0, delta=1e-6, most=3)
        assert mechanism.event == Composition((Gaussian(5.0), ApproximateDP(0.0, 1e-6)))

    @pytest.mark.oracle
    @pytest.mark.parametrize("sigma", [0.7, 2.0])
    @pytest.mark.parametrize("delta", [0.01, 0.2])
    def test_the_price_holds_for_every_pair_of_counts(self, sigma: float, delta: float):
        # The law of one noisy count, shown from T on, else nothing; for all pairs, both directions.
        mechanism = CategoryCounts(noise_multiplier=sigma, delta=delta, most=1)
        edges = np.linspace(mechanism.threshold, mechanism.threshold + 40 * sigma, 4000)

        def law(count: int) -> np.ndarray:
            if not count:
                return np.append(np.zeros(len(edges)), 1.0)
            tails = norm.sf((edges - count) / sigma)
            return np.append(tails - np.append(tails[1:], 0.0), 1 - tails[0])

        for total in (0.3 * delta, delta, 1.5 * delta, 0.5):
            epsilon = price(mechanism.event, total).epsilon
            assert math.isfinite(epsilon) == (total > delta)
            worst = max(
                float(np.maximum(law(one) - math.exp(min(epsilon, 50.0)) * law(two), 0).sum())
                for count in range(1, mechanism.threshold + 9)
                for one, two in ((count, count - 1), (count - 1, count))
            )
            assert worst <= (total if total > delta else delta) * (1 + 1e-6)


class TestAuditOfCategories:
    """One record alone in its category against none, or one of thirty against twenty-nine."""

    MECHANISM = CategoryCounts(noise_multiplier=1.0, delta=0.01, most=5)

    def lone(self) -> float:
        """At least how often the category of one record is released."""
        shown = hits(lambda s: bool(self.MECHANISM.release({"me": 1}, s)), 4000, "lone")
        return float(beta.ppf(1e-3, shown, 2500 - shown + 1)) if shown else 0.0

    def pair(self) -> float:
        """At least the mu that a record costs whose category may or may not pass."""
        edge = math.ceil(self.MECHANISM.threshold)

        def shown(count: int) -> Trial:
            return lambda s: self.MECHANISM.release({"we": count}, s) == ["we"]

        return audited_mu(shown(edge), shown(edge - 1), 2500)

    @pytest.mark.statistical
    def test_finds_nothing_wrong(self):
        assert self.lone() <= self.MECHANISM.delta
        assert 0.8 < self.pair() <= 1.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("threshold", [1, 2, 3])
    def test_sees_that_the_threshold_is_off(self, monkeypatch, threshold: int):
        monkeypatch.setattr(estimates, "_compute_threshold", lambda *_: threshold)
        assert self.lone() > self.MECHANISM.delta

    @pytest.mark.statistical
    @pytest.mark.parametrize("factor", [1 / 2, 2 / 3])
    def test_sees_that_the_noise_is_too_small(self, monkeypatch, factor: float):
        scaled_noise(monkeypatch, factor)
        assert self.pair() > 1.0

    @pytest.mark.statistical
    def test_sees_that_the_noise_is_off(self, monkeypatch):
        scaled_noise(monkeypatch, 0.0)
        monkeypatch.setattr(estimates, "_compute_threshold", lambda *_: 9.5)
        assert self.pair() > 5.0


class TestBins:
    @pytest.mark.unit
    def test_cover_every_number_once(self):
        assert len(UPPER_EDGES) == len(LOWER_EDGES) == 321
        np.testing.assert_allclose(MAGNITUDE_EDGES, 2.0 ** (np.arange(-40, 121) / 2), rtol=1e-15)
        np.testing.assert_array_equal(LOWER_EDGES[1:], UPPER_EDGES[:-1])
        assert LOWER_EDGES[ZERO_BIN] == UPPER_EDGES[ZERO_BIN] == 0.0
        assert UPPER_EDGES[-1] == -LOWER_EDGES[0] == 2.0**60
        assert (np.delete(LOWER_EDGES, ZERO_BIN) < np.delete(UPPER_EDGES, ZERO_BIN)).all()
        assert max(b / a for a, b in pairwise(MAGNITUDE_EDGES.tolist())) < 1.4143
        assert not np.signbit(LOWER_EDGES[ZERO_BIN])

    @pytest.mark.property
    @given(st.floats(allow_nan=True, allow_infinity=True))
    def test_hold_a_number_in_one_of_them_or_in_none(self, value: float):
        counts = count_magnitude_bins(np.array([value]))
        assert counts.sum() == math.isfinite(value)
        if not math.isfinite(value):
            return
        (place,) = np.flatnonzero(counts)
        low, high = LOWER_EDGES[place], UPPER_EDGES[place]
        if value == 0:
            assert place == ZERO_BIN
        elif value > 0:
            assert low < value <= high or (value > high == UPPER_EDGES[-1])
        else:
            assert low <= value < high or (value < low == LOWER_EDGES[0])

    @pytest.mark.property
    @given(st.lists(st.floats(), max_size=8), st.integers(0, 7))
    def test_a_record_moves_them_by_one_at_most(self, values: list[float], gone: int):
        fewer = [v for i, v in enumerate(values) if i != gone]
        moved = count_magnitude_bins(np.array(values, float)) - count_magnitude_bins(
            np.array(fewer, float)
        )
        assert np.linalg.norm(moved) <= 1


class TestInUse:
    def quiet(self, **counts: float) -> np.ndarray:
        noisy = np.zeros(40)
        for place, count in counts.items():
            noisy[int(place[1:])] = count
        return noisy

    @pytest.mark.property
    @given(st.lists(st.floats(-20, 20), min_size=1, max_size=40))
    def test_agrees_with_the_definition_spelled_out(self, counts: list[float]):
        noisy = np.array(counts)
        stretches = [(a, b) for a in range(len(counts)) for b in range(a, min(a + 16, len(counts)))]
        sums = np.concatenate([[0.0], np.cumsum(noisy)])
        size = {(a, b): (sums[b + 1] - sums[a]) / math.sqrt(b + 1 - a) for a, b in stretches}
        hold = [each for each in stretches if size[each] >= MIN_RANGE_DEVIATIONS]
        least = [
            (a, b)
            for a, b in hold
            if not any((c, d) != (a, b) and a <= c and d <= b for c, d in hold)
        ]
        if least:
            expected = min(a for a, _ in least), max(b for _, b in least)
            assert find_used_bins(noisy, 1.0) == expected
        else:
            assert size[find_used_bins(noisy, 1.0)] == pytest.approx(max(size.values()))

    @pytest.mark.statistical
    def test_noise_alone_rarely_widens_it(self):
        noise = np.random.default_rng(4)
        wrong = 0
        for _ in range(2000):
            noisy = noise.normal(size=len(UPPER_EDGES))
            noisy[ZERO_BIN] += 100
            wrong += find_used_bins(noisy, 1.0) != (ZERO_BIN, ZERO_BIN)
        assert wrong <= 8  # one or two are expected


class TestBounds:
    @staticmethod
    def estimated_privately(
        values: np.ndarray, sigma: float, trials: int = 20
    ) -> list[tuple[float, float]]:
        mechanism, keys = NumberBounds(noise_multiplier=sigma), Keys.from_seed(7)
        return [mechanism.release(values, keys.stream("b", i)) for i in range(trials)]

    @pytest.mark.unit
    def test_are_within_a_factor_of_sqrt_2_of_the_numbers(self):
        draw = np.random.default_rng(1)
        for low, high in ((0, 16), (17, 90), (1, 5), (-3, 3), (-99, -30)):
            values = draw.integers(low, high + 1, 5000)
            for found in self.estimated_privately(values, 20.0):
                for given_, bound in zip((low, high), found, strict=True):
                    assert bound == 0 or 1 / 1.5 < given_ / bound < 1.5
                    assert (bound == 0) == (given_ == 0)

    @pytest.mark.unit
    def test_find_a_long_tail_of_which_no_bin_stands_out(self):
        tail = 2.0 ** np.linspace(8, 16, 600)
        values = np.concatenate([np.zeros(4000), tail])
        assert count_magnitude_bins(tail).max() < MIN_RANGE_DEVIATIONS * 20.0 / 2
        found = self.estimated_privately(values, 20.0)
        assert sum(2.0**13 <= high <= 2.0**18 for _, high in found) >= 17

    @pytest.mark.unit
    def test_cost_their_event_and_other_noise_is_refused(self):
        assert NumberBounds(noise_multiplier=5).event == Gaussian(5.0)
        for bad in (0, -1.0, math.nan, math.inf, True, "1", None):
            with pytest.raises(UsageError, match="noise_multiplier is"):
                NumberBounds(noise_multiplier=bad)  # type: ignore[arg-type]


class TestAuditOfBounds:
    """Five records, or four, far above many others: do the bounds reach them?"""

    def audit(self, records: int = 5) -> float:
        mechanism, many = NumberBounds(noise_multiplier=1.0), np.zeros(100)

        def reaches(count: int) -> Trial:
            values = np.concatenate([many, np.full(count, 1000.0)])
            return lambda s: mechanism.release(values, s)[1] > 900

        return audited_mu(reaches(records), reaches(records - 1), 2000)

    @pytest.mark.statistical
    @pytest.mark.parametrize("records", [4, 5])
    def test_finds_nothing_wrong(self, records: int):
        assert 0.5 < self.audit(records) <= 1.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("factor", [1 / 2, 2 / 3])
    def test_sees_that_the_noise_is_too_small(self, monkeypatch, factor: float):
        scaled_noise(monkeypatch, factor)
        assert self.audit() > 1.0

    @pytest.mark.statistical
    def test_sees_that_the_noise_is_off(self, monkeypatch):
        scaled_noise(monkeypatch, 0.0)
        monkeypatch.setattr(estimates, "MIN_RANGE_DEVIATIONS", 4.5)
        assert self.audit() > 4.0

    @pytest.mark.statistical
    def test_sees_that_a_record_is_counted_in_two_bins(self, monkeypatch):
        counted_twice(monkeypatch)
        assert self.audit(4) > 1.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("sigma", [3.0])
    def test_a_bin_is_in_use_as_often_as_the_law_says_and_no_other_law(self, monkeypatch, sigma):
        monkeypatch.setattr(estimates, "MAX_RANGE_BINS", 1)
        mechanism = NumberBounds(noise_multiplier=sigma)
        values = np.concatenate([np.zeros(1000), np.full(17, 1000.0)])
        trials = 2000
        seen = hits(lambda s: mechanism.release(values, s)[1] > 900, trials, "law")

        def pvalue(value: float) -> float:
            # One of the 14 bins above may pass as well: 3e-7 each.
            return binomtest(
                seen, trials, norm.sf((MIN_RANGE_DEVIATIONS * sigma - 17) / value)
            ).pvalue

        assert pvalue(sigma) > 1e-3
        assert pvalue(sigma * 1.5) < 1e-6
        assert pvalue(sigma / 1.5) < 1e-6


class TestClasses:
    @staticmethod
    def estimated_privately(labels: np.ndarray, sigma: float, most: int = 32) -> list[int]:
        mechanism, keys = ClassCount(noise_multiplier=sigma, most=most), Keys.from_seed(9)
        return [mechanism.release(labels, keys.stream("c", i)) for i in range(50)]

    @pytest.mark.unit
    def test_cost_their_event_and_other_numbers_are_refused(self):
        assert ClassCount(noise_multiplier=5, most=3).event == Gaussian(5.0)
        for sigma, most in ((0, 3), (math.nan, 3), (1.0, 0), (1.0, 2.0)):
            with pytest.raises(UsageError):
                ClassCount(noise_multiplier=sigma, most=most)  # type: ignore[arg-type]

    @pytest.mark.statistical
    @pytest.mark.parametrize("factor", [1.0, 2 / 3, 0.0])
    def test_an_audit_sees_noise_that_is_too_small(self, monkeypatch, factor: float):
        scaled_noise(monkeypatch, factor)
        mechanism = ClassCount(noise_multiplier=1.0, most=20)

        def nine(count: int) -> Trial:
            labels = np.repeat([0, 9], [100, count])
            return lambda s: mechanism.release(labels, s) == 10

        found = audited_mu(nine(5), nine(4), 700)
        assert 0.5 < found <= 1.0 if factor == 1.0 else found > 1.0
