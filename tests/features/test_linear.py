"""Private linear regression: the closed form, the sensitivity by brute force, audits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta
from sklearn.linear_model import Ridge

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Gaussian
from pasearch.errors import UsageError
from pasearch.features import linear
from pasearch.features.linear import Moments, NoisyMoments, compute_public_moments
from pasearch.runs.keys import Keys
from pasearch.runs.normals import Normals

KEYS = Keys.from_seed(6)


def records(n: int = 60, d: int = 5, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.random((n, d))
    y = np.clip(x @ rng.normal(size=d) / d + 0.4 + rng.normal(size=n) * 0.05, 0, 1)
    valid = np.ones(n, bool)
    valid[2], x[4, 1], y[6] = False, math.nan, math.inf
    return x, y, valid


USED = [i for i in range(60) if i not in (2, 4, 6)]


@pytest.mark.oracle
def test_each_subset_has_the_ridge_solution():
    for ridge in [1e-3, 0.5]:
        x, y, valid = records()
        masks = np.random.default_rng(1).random((20, 5)) < 0.5
        moments = compute_public_moments(x, y, valid, data_norm=3.0)
        for mask, weights in zip(masks, moments.fit_many(masks, ridge=ridge), strict=True):
            rows = np.column_stack([x[USED][:, mask], np.ones(len(USED))])
            # Weights of records divided by T are the same, and the ridge is T^2 times as strong.
            theirs = Ridge(
                alpha=ridge * 11 * linear.ROUNDING_FACTOR**2, fit_intercept=False, tol=1e-12
            )
            expected = theirs.fit(rows, y[USED]).coef_
            np.testing.assert_allclose(weights[np.append(mask, True)], expected, atol=1e-8)
            assert (weights[:-1][~mask] == 0).all()


@pytest.mark.oracle
def test_one_record_moves_the_moments_by_1_at_most():
    values = (-30.0, 0.0, 0.5, 40.0, math.inf)
    x = np.array(list(itertools.product(values, repeat=2)))
    y = np.resize([0.0, 1.0, 7.0, 0.3], len(x))
    everyone = np.ones(len(x), bool)
    whole, found = linear._sum_second_moments(x, y, everyone, 1.5), []
    for gone in range(len(x)):
        fewer = everyone.copy()
        fewer[gone] = False
        moved = whole - linear._sum_second_moments(x, y, fewer, 1.5)
        found.append(float(np.linalg.norm(moved[np.triu_indices(4)])))
    assert 0.5 < max(found) <= 1.0
    assert min(found) == 0.0


@pytest.mark.unit
def test_a_null_record_adds_exactly_0_and_targets_are_clamped():
    x, y, valid = records()
    whole = compute_public_moments(x, y, valid, data_norm=3.0).matrix
    x[2], y[2] = 9.0, 1.0
    np.testing.assert_array_equal(whole, compute_public_moments(x, y, valid, data_norm=3.0).matrix)
    assert whole[-2, -2] == pytest.approx(len(USED) / 11)
    y[0] = 55.0
    high = compute_public_moments(x, y, valid, data_norm=3.0).matrix
    y[0] = 1.0
    np.testing.assert_array_equal(high, compute_public_moments(x, y, valid, data_norm=3.0).matrix)


@pytest.mark.unit
def test_the_release_has_the_noise_that_is_charged_once_for_all_subsets():
    x, y, valid = records()
    mechanism = NoisyMoments(noise_multiplier=2, data_norm=3.0)
    assert mechanism.event == Gaussian(noise_multiplier=2.0)
    exact = compute_public_moments(x, y, valid, data_norm=3.0).matrix
    upper = np.triu_indices(7)
    noise = np.array([
        (mechanism.release_parts([(x, y, valid)], KEYS.stream("m", i)).matrix - exact)[upper]
        for i in range(300)
    ])  # fmt: skip
    assert noise.std() == pytest.approx(2.0, rel=0.03)
    assert np.abs(noise.mean(axis=0)).max() < 0.6


@pytest.mark.unit
def test_weights_stay_finite_and_bounded_whatever_the_noise():
    for noise in [0.01, 1.0, 1e6]:
        x, y, valid = records()
        released = NoisyMoments(noise_multiplier=noise, data_norm=3.0).release_parts(
            [(x, y, valid)], KEYS.stream("x")
        )
        weights = released.fit_many(np.ones((1, 5), bool))[0]
        assert np.isfinite(weights).all()
        # No eigenvalue is below the ridge.
        along = np.linalg.norm(released.matrix[:-1, -1])
        assert (
            np.linalg.norm(weights) <= along / (linear.RIDGE_FACTOR * noise * math.sqrt(6)) + 1e-9
        )


class TestAudit:
    """A record far outside the bound, or the null record in its place."""

    MECHANISM = NoisyMoments(noise_multiplier=2.0, data_norm=1.0)
    DELTA, TIMES = 1e-2, 2000

    def found(self, above: float = 3.0) -> float:
        x, y = np.array([[0.2], [0.1], [9.0]]), np.array([0.5, 0.2, 1.0])
        counts = []
        for world in (True, False):
            valid = np.array([True, True, world])
            streams = (KEYS.stream(int(world), i) for i in range(self.TIMES))
            released = (
                self.MECHANISM.release_parts([(x, y, valid)], each).matrix for each in streams
            )
            counts.append(sum(float(each.sum()) > above for each in released))
        low = beta.ppf(5e-4, counts[0], self.TIMES - counts[0] + 1) if counts[0] else 0.0
        high = beta.ppf(1 - 5e-4, counts[1] + 1, self.TIMES - counts[1])
        return math.log((low - self.DELTA) / high) if low > self.DELTA else 0.0

    def claimed(self) -> float:
        return price(self.MECHANISM.event, self.DELTA).epsilon

    @pytest.mark.statistical
    def test_finds_nothing_wrong(self):
        assert 0.05 < self.found() <= self.claimed()

    @pytest.mark.statistical
    def test_sees_that_the_noise_is_off(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(Normals, "add_to", lambda *_: None)
        assert self.found() > self.claimed()

    @pytest.mark.statistical
    def test_sees_that_records_are_not_bounded(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(linear, "clip_rows", lambda x, valid: np.where(valid[:, None], x, 0))
        assert self.found(12.0) > self.claimed()


@pytest.mark.unit
def test_other_numbers_and_shapes_are_refused():
    x, y, valid = records()
    moments = compute_public_moments(x, y, valid, data_norm=3.0)
    for wrong in [
        lambda: NoisyMoments(noise_multiplier=0.0, data_norm=1.0),
        lambda: NoisyMoments(noise_multiplier=1.0, data_norm=math.nan),
        lambda: compute_public_moments(x, y[:-1], valid, data_norm=1.0),
        lambda: compute_public_moments(x[0], y, valid, data_norm=1.0),
        lambda: compute_public_moments(x, y, valid, data_norm=-1.0),
        lambda: moments.fit_many(np.ones((1, 4), bool)),
        lambda: moments.fit_many(np.ones((1, 5), bool), ridge=0.0),
        lambda: Moments(matrix=np.ones((3, 4)), data_norm=1.0, noise=0.0),
        lambda: Moments(matrix=np.ones((3, 3)), data_norm=1.0, noise=-1.0),
    ]:
        with pytest.raises(UsageError):
            wrong()
