"""A selection on more records than one tensor holds: the same, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from selections import BUDGET, FEW, WAYS, feature_points, planned, search_of

from pasearch.data import rows
from pasearch.data.column import Column
from pasearch.data.means import FeatureMeans
from pasearch.data.partitions import Dataset, Records
from pasearch.data.split import make_split
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError
from pasearch.features import logistic
from pasearch.features.contingency import count_tables, make_attributes
from pasearch.features.engine import FeatureOutcome
from pasearch.features.selector import make_choice
from pasearch.features.top_features import ClassShares, count_class_tables, score_tables
from pasearch.features.trainers import MomentsTrainer, ObjectiveTrainer, count_for_models
from pasearch.features.views import View
from pasearch.runs.keys import Keys
from pasearch.runs.sums import GaussianSum
from pasearch.training import settings
from pasearch.training.metrics import find_default_metric

N = 400
COLUMNS = (
    Column(name="a", low=0.0, high=1.0, bins=4),
    Column(name="b", low=0.0, high=1.0, bins=0),
    Column(name="c", categories=("u", "v", "w")),
    Column(name="d", vocabulary=("one", "two")),
)
CLASSES = Column(name="y", categories=("no", "yes"))
NUMBER = Column(name="y", low=0.0, high=1.0)
KEYS = Keys.from_seed(5)
METHODS = [(method, more) for method, more in WAYS if method != "max-pool"]


def dataset(*, number: bool = False, public: bool = False) -> Dataset:
    rng = np.random.default_rng(0)
    numbers, cells = rng.random((N, 2)), np.empty((N, 4), object)
    cells[:, :2] = np.round(numbers, 3).astype(str)
    cells[:, 2] = rng.choice(["u", "v", "w", "?"], N)
    cells[:, 3] = rng.choice(["one", "two", "one two", "", "three"], N)
    cells[::50] = None
    score = 0.8 * numbers[:, 0] + 0.2 * (cells[:, 2] == "u")
    labels = score.astype(str) if number else np.where(score > 0.5, "yes", "no")
    schema = TableSchema(columns=COLUMNS, target=NUMBER if number else CLASSES)
    return Dataset(
        name="table", schema=schema, features=cells, labels=labels.astype(object), public=public
    )


def outcome(
    method: str, trainer: str, folder: Path, *, number: bool = False, public: bool = False,
    **more: Any,
) -> FeatureOutcome:  # fmt: skip
    choice = make_choice(method, trainer=trainer, **{**FEW.get(method, {}), **more})
    data = dataset(number=number, public=public)
    plan = planned(
        name="table", schema=data.schema, public=public, budget=BUDGET, choice=choice,
        split=make_split(N, scored=choice.selector.trains_candidates),
    )  # fmt: skip
    return search_of(plan, folder, data=data).run()


def records(*, number: bool = False) -> tuple[Records, Records]:
    """Return all records, in one tensor and compact."""
    found: list[Records] = []
    for most in (2**60, 0):
        data = dataset(number=number, public=True)
        data.partition(make_split(N, scored=False), np.random.default_rng(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "MAX_TENSOR_NUMBERS", most)
            found.append(data["train"].public_records())
    whole, parts = found
    assert isinstance(whole.x, torch.Tensor)
    assert isinstance(parts.x, rows.CompactRows)
    return whole, parts


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """Many parts, and no noise on sums: a last digit of a sum would draw another."""
    monkeypatch.setattr(rows, "BLOCK_NUMBERS", 70 * dataset().schema.shape[0])
    monkeypatch.setattr(GaussianSum, "_add_noise_to_entries", lambda self, entries, stream: entries)


class TestSelection:
    @pytest.mark.oracle
    @pytest.mark.parametrize("number", [False, True])
    @pytest.mark.parametrize("trainer", ["dpsgd", "objective"])
    @pytest.mark.parametrize(("method", "more"), METHODS)
    def test_of_compact_records_in_one_part_is_the_same(
        self, method: str, more: dict[str, Any], trainer: str, number: bool, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        want = outcome(method, trainer, tmp_path, number=number, **more)
        monkeypatch.setattr(rows, "MAX_TENSOR_NUMBERS", 0)
        found = outcome(method, trainer, tmp_path, number=number, **more)
        assert found.test == want.test
        assert found.chosen.order == want.chosen.order
        assert found.chosen.trials == want.chosen.trials
        # The layout of a batch in memory may change the order of a sum, in float32.
        rtol, atol = (0.0, 0.0) if trainer == "objective" else (1e-4, 1e-6)
        for name in ("weights", "intercept"):
            one, other = getattr(found.model, name), getattr(want.model, name)
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)

    @pytest.mark.oracle
    @pytest.mark.usefixtures("small")
    @pytest.mark.parametrize(("method", "more"), METHODS)
    def test_of_many_parts_is_the_same_but_for_rounding(
        self, method: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        want = outcome(method, "dpsgd", tmp_path, **more)
        monkeypatch.setattr(rows, "MAX_TENSOR_NUMBERS", 0)
        found = outcome(method, "dpsgd", tmp_path, **more)
        assert found.chosen.order == want.chosen.order
        np.testing.assert_allclose(found.model.weights, want.model.weights, rtol=1e-3, atol=1e-5)

    @pytest.mark.unit
    def test_draws_no_curve_of_so_many_public_records(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        assert outcome("all", "dpsgd", tmp_path, public=True).curve
        monkeypatch.setattr(rows, "MAX_TENSOR_NUMBERS", 0)
        assert not outcome("all", "dpsgd", tmp_path, public=True).curve

    @pytest.mark.contract
    def test_never_opens_one_tensor_of_many(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(rows, "MAX_TENSOR_NUMBERS", 0)
        monkeypatch.setattr(Dataset, "_apply_front_end", lambda *_: pytest.fail("one tensor"))
        for method in ("top", "cfs-greedy", "pca", "all"):
            outcome(method, "dpsgd", tmp_path)


@pytest.mark.usefixtures("small")
class TestPasses:
    @pytest.mark.oracle
    def test_there_are_many_parts(self):
        assert len(list(records()[1].parts())) == 6

    @pytest.mark.oracle
    def test_of_tables_points_and_classes_count_the_same(self):
        whole, parts = records()
        attributes = make_attributes(dataset().schema)
        codes = attributes.codes(whole.x, whole.y, whole.valid)
        want, found = count_tables(codes, attributes), attributes.count_pairs(parts)
        assert np.array_equal(found.counts, want.counts)
        assert found.slots == want.slots == len(whole)
        shares = ClassShares.of([0.3, 0.7])
        tables = sum(
            count_class_tables(each, attributes) for each in attributes.encode_parts(parts)
        )
        points = score_tables(tables, attributes, shares)  # type: ignore[arg-type]
        assert points == feature_points(codes, attributes, shares)

    @pytest.mark.oracle
    def test_of_means_moments_and_points_add_up_to_the_same(self):
        whole, parts = records(number=True)
        means = FeatureMeans(noise_multiplier=1.0, row_bound=3.0)
        stream = KEYS.stream("means")
        want = means.release(whole, stream)
        assert means.release(parts, stream) == pytest.approx(want, rel=1e-12)
        moments = MomentsTrainer(outputs=1, regression=True, noise=1.0)
        models = []
        for each in (whole, parts):
            solved = moments.fit_all_sets(each, want, stream)
            models.append(moments.fit(each, View.of(want), stream))
            models += solved(np.ones((1, len(want)), bool))
        for each in models[1:]:
            np.testing.assert_allclose(each.weights, models[0].weights, rtol=1e-7, atol=1e-9)
        metric = find_default_metric(regression=True)
        own = models[0].compute_counts(whole, metric)
        assert count_for_models(models * 40, parts, metric) == [own] * 160

    @pytest.mark.oracle
    def test_a_batch_is_that_of_the_whole_view(self):
        for rotated in [False, True]:
            whole, parts = records()
            rng = np.random.default_rng(2)
            means, mask = rng.random(whole.x.shape[1]), rng.random(whole.x.shape[1]) < 0.6
            view = View.of(means, mask)
            if rotated:
                view = view.with_rotation(rng.normal(size=(view.width, 2)))
            seen, x = view.transform_records(parts), view.transform_features(whole)
            assert torch.equal(view.transform_records(whole).x, x)
            assert seen.x.shape == tuple(x.shape)
            assert (seen.x.dtype, seen.x.device) == (x.dtype, x.device)
            assert seen.x.to("cpu").is_floating_point()
            for places in (np.arange(len(x)), rng.permutation(len(x))[:50], np.arange(0), [3]):
                at = torch.as_tensor(places)
                torch.testing.assert_close(
                    seen.x.index_select(0, at), x.index_select(0, at), rtol=1e-6, atol=1e-6
                )
            assert not bool(seen.x.index_select(0, torch.nonzero(~parts.valid)[:, 0]).any())
            assert not bool(parts.valid.all())
            elsewhere = seen.x.to("meta")
            assert elsewhere.device.type == "meta"
            assert elsewhere.index_select(0, torch.arange(3)).device.type == "meta"
            assert "tensor" not in repr(seen)
            assert "tensor" not in repr(seen.x)

    @pytest.mark.oracle
    def test_objective_perturbation_is_given_one_array(self):
        whole, parts = records()
        trainer = ObjectiveTrainer(outputs=2, regression=False, noise=2.0)
        view, stream = View.of(np.full(whole.x.shape[1], 0.4)), KEYS.stream("one")
        want, found = (trainer.fit(each, view, stream) for each in (whole, parts))
        assert np.array_equal(want.weights, found.weights)


class TestSize:
    @pytest.mark.unit
    def test_too_many_for_objective_perturbation_are_refused_by_their_form(self):
        logistic.check_objective_memory(4_500_000, 70)
        with pytest.raises(UsageError, match=r"4,500,000 positions of 112 features.*23 GiB.*dpsgd"):
            logistic.check_objective_memory(4_500_000, 112)

    @pytest.mark.unit
    def test_a_fit_of_too_many_takes_no_memory(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(logistic, "MAX_MEMORY_BYTES", 1000)
        trainer = ObjectiveTrainer(outputs=2, regression=False, noise=2.0)
        whole, parts = records()
        means = np.full(whole.x.shape[1], 0.4)
        for each in (whole, parts):
            with pytest.raises(UsageError, match="all records at once"):
                trainer.fit(each, View.of(means), KEYS.stream("one"))
        # Of a number, second moments are added up part by part.
        moments = MomentsTrainer(outputs=1, regression=True, noise=1.0)
        for each in records(number=True):
            moments.fit(each, View.of(means), KEYS.stream("one"))
