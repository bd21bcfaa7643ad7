"""Noisy sums: their laws, their sensitivities by brute force, and audits that see broken ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import beta, chi2, chisquare, kstest, norm

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Gaussian, PureDP
from pasearch.errors import UsageError
from pasearch.runs import sums
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.normals import Normals
from pasearch.runs.sums import GaussianSum, NoisySum, clip_rows

Trial = Callable[[Stream], bool]
VALUES = (-3.0, -0.4, 0.0, 0.7, math.inf)


def audited_epsilon(here: Trial, there: Trial, delta: float, trials: int = 3000) -> float:
    """The least epsilon that two worlds allow, at 99.9% confidence (Clopper and Pearson)."""
    keys = Keys.from_seed(21)
    seen = sum(here(keys.stream("here", i)) for i in range(trials))
    other = sum(there(keys.stream("there", i)) for i in range(trials))
    low = beta.ppf(5e-4, seen, trials - seen + 1) if seen else 0.0
    high = beta.ppf(1 - 5e-4, other + 1, trials - other) if other < trials else 1.0
    return math.log((low - delta) / high) if low > delta else 0.0


def two_values(low: float = -2.0, high: float = 2.0) -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(low, high) | st.floats(width=64)
    return arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=numbers)


class TestWholeNumbers:
    @pytest.mark.statistical
    @pytest.mark.parametrize(("epsilon", "most"), [(1.0, 1), (1.0, 20), (0.3, 5)])
    def test_the_law_is_right_and_other_scales_are_rejected(self, epsilon: float, most: int):
        noise, keys = NoisySum(epsilon=epsilon, most=most), Keys.from_seed(1)
        drawn = np.array([noise.release(70, keys.stream("x", i)) - 70 for i in range(8000)])

        def pvalue(scale: float) -> float:
            a = math.exp(-epsilon * scale / most)
            edge = next(k for k in range(1, 999) if 8000 * a ** (k + 1) / (1 + a) < 10)
            cells = (1 - a) / (1 + a) * a ** np.abs(np.arange(-edge, edge + 1))
            cells[[0, -1]] = a**edge / (1 + a)
            observed = np.bincount(np.clip(drawn, -edge, edge) + edge, minlength=2 * edge + 1)
            return float(chisquare(observed, cells * 8000).pvalue)

        assert pvalue(1.0) > 1e-3
        assert pvalue(1.5) < 1e-9
        assert pvalue(1 / 1.5) < 1e-9
        assert drawn.std() == pytest.approx(noise.standard_deviation, rel=0.06)

    @pytest.mark.statistical
    @pytest.mark.parametrize(("assumed", "caught"), [(10, False), (5, True), (1, True)])
    def test_an_audit_sees_a_sensitivity_that_is_too_small(self, assumed: int, caught: bool):
        noise = NoisySum(epsilon=1.0, most=assumed)  # of records that add 10
        found = audited_epsilon(
            lambda s: noise.release(110, s) >= 110, lambda s: noise.release(100, s) >= 110, 0.0
        )
        assert (found > 1.0) == caught
        assert found > 0.7

    @pytest.mark.statistical
    def test_an_audit_sees_that_the_noise_is_off(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sums, "draw_discrete_laplace", lambda *_: 0)
        noise = NoisySum(epsilon=1.0, most=10)
        found = audited_epsilon(
            lambda s: noise.release(110, s) >= 110, lambda s: noise.release(100, s) >= 110, 0.0
        )
        assert found > 5.0

    @pytest.mark.unit
    def test_the_same_release_is_the_same_and_another_is_not(self):
        noise, stream = NoisySum(epsilon=0.01, most=7), Keys.from_seed(1).stream("score")
        assert noise.release(100, stream) == noise.release(np.int64(100), stream)
        assert noise.release(100, stream) - 100 != noise.release(101, stream) - 101
        assert noise.release(100, stream) != noise.release(100, stream.child("other"))
        assert type(noise.release(100, stream)) is int

    @pytest.mark.unit
    def test_other_sums_are_refused_and_not_named(self):
        for total in [True, 7531.0, np.float64(7531), "7531", None]:
            with pytest.raises(TypeError, match="a sum is an int") as caught:
                NoisySum(epsilon=1.0, most=2).release(total, Keys().stream("x"))  # type: ignore[arg-type]
            assert "7531" not in str(caught.value)

    @pytest.mark.unit
    def test_the_event_is_pure_and_no_count(self):
        assert NoisySum(epsilon=0.5, most=10).event == PureDP(epsilon=0.5)


class TestBoundedRows:
    @pytest.mark.property
    @settings(max_examples=300)
    @given(two_values())
    def test_have_an_exact_norm_of_at_most_1_whatever_they_held(self, x: np.ndarray):
        rows = clip_rows(x, np.ones(len(x), dtype=bool))
        assert rows.shape == x.shape
        for before, after in zip(x, rows, strict=True):
            norm_ = sum(Fraction(float(v)) ** 2 for v in after)
            assert norm_ <= 1
            if not np.isfinite(before).all():
                assert not after.any()
                continue
            exact = sum(Fraction(float(v)) ** 2 for v in before)
            if exact <= Fraction(1) - Fraction(1, 10**9):
                assert (before == after).all()
            if exact > 1:
                assert norm_ > Fraction(1) - Fraction(1, 10**9)
                same = [row / np.abs(row).max() for row in (before, after)]
                np.testing.assert_allclose(*same, rtol=1e-9, atol=1e-300)

    @pytest.mark.unit
    def test_of_null_records_are_0_and_each_row_is_by_itself(self):
        x = np.array([[3.0, 4.0], [0.3, 0.4], [math.nan, 0.1], [math.inf, 0.0], [5.0, 5.0]])
        valid = np.array([True, True, True, True, False])
        rows = clip_rows(x, valid)
        np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4], [0, 0], [0, 0], [0, 0]])
        for i in range(5):
            alone = clip_rows(x[i : i + 1], valid[i : i + 1])
            np.testing.assert_array_equal(alone[0], rows[i])
        assert x[0, 0] == 3.0  # a new array
        assert clip_rows(np.ones((2, 3), dtype=np.float32), valid[:2]).dtype == np.float64

    @pytest.mark.unit
    def test_of_other_shapes_are_refused(self):
        for x, valid in [((3,), (3,)), ((3, 2), (2,)), ((3, 2), (3, 2))]:
            with pytest.raises(UsageError, match="expected"):
                clip_rows(np.ones(x), np.ones(valid, dtype=bool))


class TestSensitivities:
    """Every data set of three slots over a few values, every record made null."""

    @staticmethod
    def changes(of: Callable[[np.ndarray], np.ndarray], bound: Callable) -> list[float]:
        found = []
        for filled in itertools.product(itertools.product(VALUES, repeat=2), repeat=2):
            # The third slot's record is null in both: what is there must not matter.
            x = np.array([*filled, (9.0, 9.0)])
            valid = np.array([True, True, False])
            whole = of(bound(x, valid))
            for gone in range(2):
                fewer = valid.copy()
                fewer[gone] = False
                found.append(float(np.linalg.norm(whole - of(bound(x, fewer)))))
        return found

    @staticmethod
    def total(rows: np.ndarray) -> np.ndarray:
        return rows.sum(axis=0)

    @staticmethod
    def upper(rows: np.ndarray) -> np.ndarray:
        return (rows.T @ rows)[np.triu_indices(2)]

    @staticmethod
    def unbounded(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
        return np.where(valid[:, None] & np.isfinite(x), x, 0.0)

    @pytest.mark.oracle
    def test_are_1(self):
        for of in (self.total, self.upper):
            found = max(self.changes(of, clip_rows))
            assert found == pytest.approx(1.0, abs=1e-9)
            assert found <= 1 + 1e-12

    @pytest.mark.oracle
    def test_are_seen_to_be_more_without_the_bound(self):
        assert max(self.changes(self.total, self.unbounded)) > 3
        assert max(self.changes(self.upper, self.unbounded)) > 9


class TestGaussianSums:
    SIGMA = 1.3

    def drawn(self, shape: tuple[int, ...], symmetric: bool, times: int) -> np.ndarray:
        mechanism, keys = GaussianSum(noise_multiplier=self.SIGMA), Keys.from_seed(2)
        total = np.full(shape, 5.0)
        streams = (keys.stream("x", i) for i in range(times))
        release = mechanism.release_symmetric if symmetric else mechanism.release
        return np.array([release(total, s) - total for s in streams])

    @pytest.mark.statistical
    @pytest.mark.parametrize("shape", [(5,), (2, 3)])
    def test_have_noise_of_the_right_scale_in_every_entry(self, shape: tuple[int, ...]):
        noise = self.drawn(shape, False, 1500)
        for entry in np.ndindex(*shape):
            drawn = noise[(slice(None), *entry)]
            assert kstest(drawn, norm(scale=self.SIGMA).cdf).pvalue > 1e-4
            assert kstest(drawn, norm(scale=1.5 * self.SIGMA).cdf).pvalue < 1e-6
            assert kstest(drawn, norm(scale=self.SIGMA / 1.5).cdf).pvalue < 1e-6
        flat = noise.reshape(1500, -1)
        mixed = np.corrcoef(flat.T) - np.eye(flat.shape[1])
        assert np.abs(mixed).max() < 0.12

    @pytest.mark.statistical
    def test_of_x_x_are_symmetric_and_no_entry_has_less_noise(self):
        noise = self.drawn((3, 3), True, 2500)
        np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
        for i, j in zip(*np.triu_indices(3), strict=True):

            def share(scale: float, i: int = i, j: int = j) -> float:
                return float(
                    chi2(2500).cdf((noise[:, i, j] ** 2).sum() / (scale * self.SIGMA) ** 2)
                )

            assert 1e-4 < share(1.0) < 1 - 1e-4
            assert share(1.5) < 1e-9
            assert share(1 / 1.5) > 1 - 1e-9
            assert share(math.sqrt(0.5)) > 1 - 1e-9  # a mirrored mean of two draws
        pairs = noise[:, *np.triu_indices(3)]
        assert np.abs(np.corrcoef(pairs.T) - np.eye(6)).max() < 0.1

    @pytest.mark.unit
    def test_of_x_x_read_the_upper_triangle_only(self):
        mechanism, stream = GaussianSum(noise_multiplier=1.0), Keys.from_seed(1).stream("x")
        total = np.arange(9.0).reshape(3, 3)
        other = np.triu(total) + np.tril(np.full((3, 3), 77.0), -1)
        np.testing.assert_array_equal(
            mechanism.release_symmetric(total, stream),
            mechanism.release_symmetric(other, stream),
        )

    @pytest.mark.unit
    def test_of_other_values_share_no_noise(self):
        mechanism, stream = GaussianSum(noise_multiplier=1.0), Keys.from_seed(1).stream("x")
        total = np.zeros(50)
        moved = total.copy()
        moved[7] = 1e-9
        first, second = mechanism.release(total, stream), mechanism.release(moved, stream)
        np.testing.assert_array_equal(first, mechanism.release(total.copy(), stream))
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.5
        assert np.std(first - second) > 1.0
        shaped = mechanism.release(total.reshape(5, 10), stream)
        assert abs(np.corrcoef(first, shaped.ravel())[0, 1]) < 0.5

    @pytest.mark.unit
    def test_other_arrays_are_refused(self):
        for total in [[7531.0], np.ones(3, dtype=np.float32), np.ones(3, dtype=int)]:
            with pytest.raises(UsageError, match="float64"):
                GaussianSum(noise_multiplier=1.0).release(total, Keys().stream("x"))  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_a_symmetric_sum_is_square(self):
        for shape in [(3,), (2, 3), (2, 2, 2)]:
            with pytest.raises(UsageError, match="square"):
                GaussianSum(noise_multiplier=1.0).release_symmetric(
                    np.ones(shape), Keys().stream("x")
                )

    @pytest.mark.unit
    def test_what_is_not_finite_is_refused_and_not_named(self):
        for bad in [math.nan, math.inf]:
            with pytest.raises(ValueError, match="not finite") as caught:
                GaussianSum(noise_multiplier=1.0).release(
                    np.array([7531.0, bad]), Keys().stream("x")
                )
            assert "7531" not in str(caught.value)

    @pytest.mark.unit
    def test_the_event_is_a_gaussian(self):
        assert GaussianSum(noise_multiplier=2).event == Gaussian(noise_multiplier=2.0)


class TestAuditOfGaussianSums:
    """One record of norm 3 in a direction, against none: the projection on it, over a threshold."""

    MECHANISM = GaussianSum(noise_multiplier=2.0)
    DELTA = 1e-2
    DIRECTION = np.array([1.0, 2.0, -2.0])  # of length 3

    def audit(
        self, bound: Callable = clip_rows, second_moments: bool = False, above: float = 1.0
    ) -> float:
        def part(rows: np.ndarray) -> np.ndarray:
            return np.triu(rows.T @ rows) if second_moments else rows.sum(axis=0)

        noise = self.MECHANISM
        release = noise.release_symmetric if second_moments else noise.release
        others = np.array([[0.1, 0.5, -0.3], [0.9, 0.0, 0.1]])
        x = np.vstack([others, self.DIRECTION])
        known = part(clip_rows(others, np.array([True, True])))
        along = part(self.DIRECTION[None, :])
        along = along / np.linalg.norm(along)

        def world(record: bool) -> Trial:
            total = part(bound(x, np.array([True, True, record])))

            def seen(s: Stream) -> bool:
                released = release(total, s)
                return float((along * (released - known)).sum()) > above

            return seen

        return audited_epsilon(world(True), world(False), self.DELTA)

    def claimed(self) -> float:
        return price(self.MECHANISM.event, self.DELTA).epsilon

    @pytest.mark.statistical
    @pytest.mark.parametrize("second_moments", [False, True])
    def test_finds_nothing_wrong(self, second_moments: bool):
        assert 0.15 < self.audit(second_moments=second_moments) <= self.claimed()

    @pytest.mark.statistical
    @pytest.mark.parametrize("second_moments", [False, True])
    def test_sees_that_rows_are_not_bounded(self, second_moments: bool):
        def unbounded(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
            return np.where(valid[:, None], x, 0.0)

        assert self.audit(unbounded, second_moments, above=2.0) > self.claimed()

    @pytest.mark.statistical
    @pytest.mark.parametrize("second_moments", [False, True])
    def test_sees_that_the_noise_is_off(self, monkeypatch, second_moments: bool):
        monkeypatch.setattr(Normals, "add_to", lambda *_: None)
        assert self.audit(clip_rows, second_moments, above=0.4) > 5 * self.claimed()
