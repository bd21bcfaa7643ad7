"""What a linear model sees: the noisy means, their price, and views that are post-processing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from audits import ACCEPT, REJECT, WRONG, gaussian_power, gaussian_pvalue
from hypothesis import given, settings
from hypothesis import strategies as st
from selections import arrays
from shortcuts import not_shrunk

from pasearch.accounting.events import Gaussian
from pasearch.data import means as means_of
from pasearch.data.column import Column
from pasearch.data.means import ROW_NORM, FeatureMeans
from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features.views import View
from pasearch.runs.keys import Keys
from pasearch.runs.sums import GaussianSum

QUIET = 1e-9
STREAM = Keys.from_seed(3).stream("means")


def records(x: Any, valid: Any = None) -> Records:
    rows = torch.as_tensor(np.asarray(x, np.float32))
    usable = torch.ones(len(rows), dtype=torch.bool) if valid is None else torch.as_tensor(valid)
    return Records(x=rows, y=torch.zeros(len(rows), dtype=torch.int64), valid=usable, public=False)


def nulled(given: Records, place: int) -> Records:
    x, valid = given.x.clone(), given.valid.clone()
    x[place], valid[place] = 0.0, False
    return Records(x=x, y=given.y, valid=valid, public=False)


def summed(given: Records, bound: float, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What noise is added to: the vector of sensitivity 1."""
    caught: list[np.ndarray] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            GaussianSum, "release", lambda _, total, stream: caught.append(total) or total
        )
        FeatureMeans(noise_multiplier=1.0, row_bound=bound).release(given, STREAM)
    return caught[0]


class TestMeans:
    @pytest.mark.unit
    def test_without_noise_are_sums_over_the_public_number_of_slots(self):
        x = arrays(50)[0]
        valid = np.arange(50) % 5 > 0
        means = FeatureMeans(noise_multiplier=QUIET, row_bound=3.0).release(
            records(x, valid), STREAM
        )
        # In float32, as records are; 50 slots and not the 40 valid ones.
        assert means == pytest.approx(x[valid].astype(np.float32).sum(axis=0) / 50, abs=1e-6)

    @pytest.mark.unit
    def test_are_shrunk_as_far_as_their_spread_is_noise(self):
        draw = np.random.default_rng(0)
        true, noise = draw.random(200), draw.standard_normal(200)
        for deviation, kept in ((0.0, 1.0), (1e-3, 1.0), (0.3, 0.5), (100.0, 0.0)):
            noisy = true + deviation * noise
            found = means_of.shrink_means(noisy, deviation)
            slope = np.polyfit(noisy, found, 1)[0]
            assert slope == pytest.approx(kept, abs=0.12)
            assert found.mean() == pytest.approx(noisy.mean())
            nearer = np.sum((found - true) ** 2), np.sum((noisy - true) ** 2)
            assert nearer[0] <= nearer[1] * 1.01
        assert np.array_equal(means_of.shrink_means(noise[:2], 50.0), noise[:2]), "two say nothing"

    @pytest.mark.unit
    def test_junk_in_a_null_slot_adds_nothing(self, monkeypatch: pytest.MonkeyPatch):
        x = arrays(20)[0]
        valid = np.arange(20) > 0
        found = summed(records(x, valid), 3.0, monkeypatch)
        for junk in (np.nan, np.inf, 1e30, -7.0):
            x[0] = junk
            assert np.array_equal(summed(records(x, valid), 3.0, monkeypatch), found)

    @pytest.mark.property
    @settings(max_examples=60)
    @given(
        st.lists(
            st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, -1.0, 1e20, math.inf, math.nan]),
                     min_size=3, max_size=3), min_size=2, max_size=4,
        ),
        st.sampled_from([0.5, math.sqrt(3), 4.0]),
    )  # fmt: skip
    def test_a_record_moves_the_sum_by_one_at_most(self, rows: list[list[float]], bound: float):
        given_, patch = records(rows), pytest.MonkeyPatch()
        before = summed(given_, bound, patch)
        for place in range(len(rows)):
            moved = before - summed(nulled(given_, place), bound, patch)
            assert np.linalg.norm(moved) <= 1.0

    @pytest.mark.unit
    def test_the_bound_is_attained_and_without_it_exceeded(self, monkeypatch: pytest.MonkeyPatch):
        far = records([[0.0, 0.0], [30.0, 40.0]])

        def moves() -> float:
            apart = summed(far, 2.0, monkeypatch) - summed(nulled(far, 1), 2.0, monkeypatch)
            return float(np.linalg.norm(apart))

        assert 0.999 < moves() <= 1.0
        monkeypatch.setattr(means_of, "clip_rows", lambda x, valid: x * valid[:, None])
        assert moves() > 20

    @pytest.mark.unit
    def test_rows_of_another_part_are_added_too(self, monkeypatch: pytest.MonkeyPatch):
        given_ = records(arrays(50)[0])
        whole = summed(given_, 3.0, monkeypatch)
        monkeypatch.setattr(means_of, "BLOCK_RECORDS", 7)
        assert summed(given_, 3.0, monkeypatch) == pytest.approx(whole)

    @pytest.mark.unit
    def test_stay_in_the_unit_interval(self):
        released = FeatureMeans(noise_multiplier=1e3, row_bound=3.0).release
        drawn = [released(records(arrays(50)[0]), STREAM.child(n)) for n in range(5)]
        assert np.min(drawn) == 0.0
        assert np.max(drawn) == 1.0

    @pytest.mark.unit
    def test_numbers_are_checked(self):
        for wrong in [0.0, -1.0, math.nan, math.inf, "1"]:
            for name in ("noise_multiplier", "row_bound"):
                with pytest.raises(UsageError, match=name):
                    FeatureMeans(**{"noise_multiplier": 1.0, "row_bound": 1.0, name: wrong})

    @pytest.mark.statistical
    def test_noise_is_what_the_event_says(self, monkeypatch: pytest.MonkeyPatch):
        """300 releases of 6 numbers; 2/3 and 3/2 of the noise are rejected with power .999."""
        not_shrunk(monkeypatch)
        x = arrays(400)[0] * 0.2 + 0.4
        bound, count = math.sqrt(6), 300
        exact = records(x).x.numpy().astype(np.float64).sum(axis=0)
        mechanism = FeatureMeans(noise_multiplier=2.0, row_bound=bound)
        assert mechanism.event == Gaussian(noise_multiplier=2.0)
        released = np.array(
            [mechanism.release(records(x), STREAM.child(number)) for number in range(count)]
        )
        noise = (released * 400 - exact) / bound
        assert gaussian_pvalue(noise / 2.0) > ACCEPT
        for share in WRONG:
            assert gaussian_power(count * 6, share, 303) > 0.999
            assert gaussian_pvalue(noise * share / 2.0) < REJECT
        assert gaussian_pvalue(np.zeros_like(noise)) < REJECT


SCHEMAS = [
    Schema(shape=(6,), low=0.0, high=1.0, classes=2),
    Schema(shape=(1, 3, 3), low=0.0, high=1.0, classes=2),
    TableSchema(
        columns=(
            Column(name="city", categories=("Rome", "Oslo")),
            Column(name="age", low=0, high=9),
            Column(name="height", low=0, high=9, bins=0),
            Column(name="word", kind="text", vocabulary=("good", "bad")),
            Column(name="id", kind="ignore"),
        ),
        target=Column(name="pay", categories=("low", "high")),
    ),
]


class TestRowBound:
    @pytest.mark.unit
    def test_no_encoded_record_is_longer(self):
        for schema in SCHEMAS:
            if isinstance(schema, Schema):
                rows = np.array([np.ones(schema.shape), np.full(schema.shape, 1e30)])
            else:
                cells = [
                    [city, age, age, word, "1"]
                    for city in ("Rome", "?", None)
                    for age in (0, 4, 9, 1e9, "x", None)
                    for word in ("good bad", "", None)
                ]
                rows = np.array(cells, dtype=object)
            encoded = schema.encode_new(rows).reshape(len(rows), -1)
            longest = np.linalg.norm(encoded, axis=1).max()
            assert 0.8 * schema.row_bound < longest <= schema.row_bound * (1 + 1e-6)


class TestView:
    MEANS = np.array([0.5, 0.1, 0.9, 0.001, 0.3, 0.7])

    @pytest.mark.unit
    def test_is_the_formula(self):
        x = arrays(9)[0]
        mask = np.array([1, 0, 1, 1, 0, 0], bool)
        rows = View.of(self.MEANS, mask).transform_features(records(x)).numpy()
        m = self.MEANS[mask]
        v = m * (1 - m)
        scale = np.maximum(v, means_of.MIN_VARIANCE) ** -0.25
        factor = ROW_NORM / math.sqrt(sum(scale**2 * v))
        assert rows == pytest.approx(factor * scale * (x[:, mask] - m), abs=1e-4)

    @pytest.mark.unit
    def test_a_null_record_stays_zero(self):
        """Centred, it would be minus the means: a record that tells where it is."""
        x, valid = np.zeros((3, 6)), np.array([True, False, True])
        for view in (View.of(self.MEANS), View.of(self.MEANS).with_rotation(np.eye(6)[:, :2])):
            rows = view.transform_features(records(x, valid)).numpy()
            assert not rows[1].any()
            assert rows[0].any()

    @pytest.mark.unit
    def test_a_row_depends_on_its_own_record(self):
        x = arrays(5)[0]
        view = View.of(self.MEANS)
        before = view.transform_features(records(x)).numpy()
        x[3] = 0.25
        after = view.transform_features(records(x)).numpy()
        assert (before != after).any(axis=1).tolist() == [False, False, False, True, False]

    @pytest.mark.property
    @settings(max_examples=30)
    @given(st.lists(st.booleans(), min_size=6, max_size=6).filter(any), st.booleans())
    def test_a_model_of_it_is_a_model_of_encoded_records(self, mask: list[bool], rotated: bool):
        view, generator = View.of(self.MEANS, np.array(mask)), np.random.default_rng(0)
        if rotated:
            view = view.with_rotation(generator.normal(size=(sum(mask), 2)))
        weights, intercept = generator.normal(size=(3, view.width)), generator.normal(size=3)
        x = arrays(20)[0]
        own = view.transform_features(records(x)).numpy() @ weights.T + intercept
        whole, shifted = view.compose_weights(weights, intercept)
        assert whole.shape == (3, 6)
        assert x @ whole.T + shifted == pytest.approx(own, abs=1e-3)
        assert not whole[:, ~np.array(mask)].any()

    @pytest.mark.unit
    def test_rows_have_the_public_length_on_average(self):
        """Where features are indicators whose means are known, and independent."""
        generator = np.random.default_rng(0)
        means = np.array([0.5, 0.2, 0.8, 0.1])
        x = generator.random((40_000, 4)) < means
        rows = View.of(means).transform_features(records(x)).numpy()
        assert math.sqrt((rows**2).sum(axis=1).mean()) == pytest.approx(ROW_NORM, rel=0.02)

    @pytest.mark.unit
    def test_means_at_the_ends_make_finite_views(self):
        rows = View.of(np.array([0.0, 1.0])).transform_features(records([[0.0, 1.0], [1.0, 0.0]]))
        assert torch.isfinite(rows).all()
