"""Linear models and the ways to train them: whose randomness, which bound, whose moments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from selections import arrays
from shortcuts import points_of

from pasearch.data.means import ROW_NORM
from pasearch.data.partitions import Records
from pasearch.errors import UsageError
from pasearch.features import linear, logistic, trainers
from pasearch.features.trainers import DpSgdTrainer, LinearModel, MomentsTrainer, ObjectiveTrainer
from pasearch.features.views import MAX_NORM_FACTOR, View
from pasearch.runs.keys import Keys
from pasearch.training import settings
from pasearch.training.settings import make_linear_recipe

KEYS = Keys.from_seed(11)
MEANS = np.array([0.5, 0.5, 0.4, 0.6, 0.5, 0.5])
MASKS = np.array([[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1]], bool)
OBJECTIVE = ObjectiveTrainer(outputs=2, regression=False, noise=5.0)
MOMENTS = MomentsTrainer(outputs=1, regression=True, noise=0.5)
STEPS = DpSgdTrainer(outputs=2, regression=False, noise=0.05)


def records(n: int = 200, *, number: bool = False, public: bool = False) -> Records:
    x, y = arrays(n, number=number)
    kind = torch.float32 if number else torch.int64
    valid = torch.ones(n, dtype=torch.bool)
    return Records(
        x=torch.as_tensor(x, dtype=torch.float32), y=torch.as_tensor(y, dtype=kind), valid=valid,
        public=public,
    )  # fmt: skip


def streams(count: int) -> list[Any]:
    return [KEYS.stream("candidate", f"trial {number}") for number in range(count)]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)


class TestRandomness:
    @pytest.mark.contract
    def test_candidates_share_none(self):
        """The same set twice, from two streams, gives two models; from one stream, one."""
        for trainer in [OBJECTIVE, MOMENTS, STEPS]:
            given, masks = records(number=trainer.regression), MASKS[[1, 1]]
            first, second = trainer.fit_many(given, MEANS, masks, streams(2))
            assert not np.allclose(first.weights, second.weights, rtol=1e-3)
            again, same = trainer.fit_many(given, MEANS, masks, [streams(2)[0]] * 2)
            assert np.allclose(again.weights, same.weights, rtol=1e-9)
            assert np.allclose(again.weights, first.weights)

    @pytest.mark.contract
    def test_a_models_company_changes_nothing_but_rounding(self):
        for trainer in [OBJECTIVE, MOMENTS, STEPS]:
            given = records(number=trainer.regression)
            alone = [
                trainer.fit_many(given, MEANS, MASKS[[place]], [stream])[0]
                for place, stream in enumerate(streams(3))
            ]
            together = trainer.fit_many(given, MEANS, MASKS, streams(3))
            for one, other in zip(alone, together, strict=True):
                assert np.allclose(one.weights, other.weights, atol=1e-5)

    @pytest.mark.oracle
    def test_one_and_many_are_one_mechanism(self):
        for trainer in [OBJECTIVE, MOMENTS, STEPS]:
            given, [stream] = records(number=trainer.regression), streams(1)
            one = trainer.fit(given, View.of(MEANS), stream)
            [other] = trainer.fit_many(given, MEANS, MASKS[[1]], [stream])
            assert np.allclose(one.weights, other.weights, atol=1e-5)
            assert np.allclose(one.intercept, other.intercept, atol=1e-5)

    @pytest.mark.unit
    def test_purposes_of_steps_have_streams_of_their_own(self, monkeypatch: pytest.MonkeyPatch):
        seen: list[Any] = []
        monkeypatch.setattr(
            trainers, "train", lambda network, given, recipe, own, **others: seen.append(own)
        )
        STEPS.fit_many(records(), MEANS, MASKS, streams(3))
        every = [stream for own in seen for stream in own.values()]
        assert [set(own) for own in seen] == [{"batch", "noise", "dropout"}] * 3
        assert len(set(every)) == len(every) == 9


class TestBounds:
    @pytest.mark.unit
    def test_each_set_is_cut_at_the_norm_of_its_own_view(self, monkeypatch: pytest.MonkeyPatch):
        caught: dict[str, Any] = {}

        def fit_many(rows, y, valid, masks, mechanisms, own, *, device):
            caught.update(rows=rows, mechanisms=mechanisms)
            return np.zeros((len(masks), 1, 7))

        monkeypatch.setattr(logistic, "fit_many", fit_many)
        OBJECTIVE.fit_many(records(), MEANS, MASKS, streams(3))
        for mask, mechanism in zip(MASKS, caught["mechanisms"], strict=True):
            own = View.of(MEANS, mask).transform_features(records()).numpy()
            factor = (own / caught["rows"][:, mask]).mean()
            assert mechanism.data_norm * factor == pytest.approx(
                MAX_NORM_FACTOR * ROW_NORM, rel=1e-4
            )
            assert mechanism.epsilon == 5.0

    @pytest.mark.unit
    def test_moments_are_of_rows_cut_at_the_same(self, monkeypatch: pytest.MonkeyPatch):
        norms: list[float] = []
        genuine = linear._sum_second_moments

        def watched(x, y, valid, norm):
            norms.append(norm)
            total = genuine(x, y, valid, norm)
            assert np.trace(total) <= len(y)
            return total

        monkeypatch.setattr(linear, "_sum_second_moments", watched)
        MOMENTS.fit(records(number=True), View.of(MEANS), streams(1)[0])
        assert norms == [MAX_NORM_FACTOR * ROW_NORM]

    @pytest.mark.unit
    def test_steps_are_those_that_were_priced(self, monkeypatch: pytest.MonkeyPatch):
        seen: list[Any] = []
        monkeypatch.setattr(
            trainers, "train", lambda network, given, recipe, own, **others: seen.append(recipe)
        )
        STEPS.fit(records(), View.of(MEANS), streams(1)[0])
        assert seen == [make_linear_recipe(200, 0.05, regression=False, outputs=STEPS.outputs)]

    @pytest.mark.contract
    def test_a_null_record_is_as_none(self):
        """Junk in a null slot is never seen; the noise is keyed by what is seen."""
        for trainer in [OBJECTIVE, MOMENTS, STEPS]:
            given = records(number=trainer.regression)
            valid = given.valid.clone()
            valid[7] = False
            models = []
            for junk in (0.0, 0.7, float("nan")):
                x = given.x.clone()
                x[7] = junk
                model = trainer.fit(
                    replace(given, x=x, valid=valid), View.of(MEANS), streams(1)[0]
                )  # fmt: skip
                models.append(model)
            assert np.array_equal(models[0].weights, models[1].weights)
            assert np.array_equal(models[0].weights, models[2].weights)


class TestMoments:
    @pytest.mark.unit
    def test_once_released_serve_every_set(self, monkeypatch: pytest.MonkeyPatch):
        solved = MOMENTS.fit_all_sets(records(number=True), MEANS, KEYS.stream("all"))
        monkeypatch.setattr(linear.NoisyMoments, "add_noise", lambda *_: pytest.fail("once more"))
        together = solved(MASKS)
        for mask, model in zip(MASKS, together, strict=True):
            [alone] = solved(mask[None])
            assert np.allclose(alone.weights, model.weights, atol=1e-12)


class TestPublic:
    @pytest.mark.unit
    def test_training_without_noise_is_for_public_data(self):
        for trainer in [OBJECTIVE, MOMENTS]:
            view = View.of(MEANS)
            with pytest.raises(UsageError, match="declared public"):
                trainer.fit_public(records(number=trainer.regression), view)
            model = trainer.fit_public(records(number=trainer.regression, public=True), view)
            assert abs(model.weights).argmax() % 6 == 0, "the first feature tells most"


class TestModels:
    @pytest.mark.unit
    def test_points_are_whole_and_a_record_has_its_own(self):
        for number in [False, True]:
            given = records(40, number=number)
            outputs = 1 if number else 2
            model = LinearModel(
                weights=np.eye(outputs, 6), intercept=np.full(outputs, 0.2),
                link="identity" if number else "softmax",
            )  # fmt: skip
            most, whole = (100 if number else 1), points_of(model, given)
            assert isinstance(whole, int)
            for place in range(40):
                valid = given.valid.clone()
                valid[place] = False
                assert 0 <= whole - points_of(model, replace(given, valid=valid)) <= most

    @pytest.mark.unit
    def test_have_one_output_a_class(self):
        for trainer, outputs, link in [
            (OBJECTIVE, 2, "softmax"),
            (replace(OBJECTIVE, outputs=3), 3, "one-vs-rest"),
            (MOMENTS, 1, "identity"),
            (STEPS, 2, "softmax"),
        ]:
            model = trainer.fit(records(number=trainer.regression), View.of(MEANS), streams(1)[0])
            assert (model.weights.shape, model.intercept.shape) == ((outputs, 6), (outputs,))
            assert model.link == link

    @pytest.mark.unit
    def test_with_little_noise_are_good(self):
        for trainer in [OBJECTIVE, MOMENTS]:
            loud = replace(trainer, noise=1e-4 if trainer.regression else 1e4)
            given = records(number=trainer.regression)
            points = points_of(loud.fit(given, View.of(MEANS), streams(1)[0]), given)
            assert points > 0.9 * 200 * (100 if trainer.regression else 1)
