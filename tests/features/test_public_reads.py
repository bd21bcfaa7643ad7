"""Choosing on public records: exact, for nothing, and of no private record but the means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selections import (
    BUDGET,
    FEW,
    METHODS,
    SHARED,
    dataset,
    feature_points,
    planned,
    search_of,
    table,
    watch_doors,
    wrap_trainers,
)

from pasearch.accounting.accountants import price_partitions
from pasearch.data.partitions import Dataset, UnchargedReadError
from pasearch.data.split import make_split
from pasearch.errors import UsageError
from pasearch.features import engine
from pasearch.features.cfs import CFSGreedy, compute_symmetrical_uncertainty
from pasearch.features.contingency import count_tables, make_attributes
from pasearch.features.engine import FeatureSearch, PublicRecordAccess
from pasearch.features.pca import PrincipalComponents
from pasearch.features.plan import FeaturePlan
from pasearch.features.selector import RecordAccess, make_choice
from pasearch.features.top_features import ClassShares, TopSelector
from pasearch.features.trainers import (
    DpSgdTrainer,
    LinearModel,
    MomentsTrainer,
    ObjectiveTrainer,
    Trainer,
    select_trainer,
)
from pasearch.features.views import View
from pasearch.planning import MU_RANGE, events_by_partition
from pasearch.runs.keys import Keys
from pasearch.runs.sums import GaussianSum
from pasearch.training import settings
from pasearch.training.metrics import find_default_metric

N = 300
WIDTH = table().schema.shape[0]
STRONG: list[tuple[type[Trainer], float]] = [
    (ObjectiveTrainer, 8.0),
    (MomentsTrainer, 0.01),
    (DpSgdTrainer, 0.1),
]
MEANS = np.random.default_rng(3).uniform(0.1, 0.9, WIDTH)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "FULL_BATCH_STEPS", 4)


def others(n: int = 400, *, number: bool = False, public: bool = True) -> Dataset:
    """Return public records, of which some are null."""
    data = table(n, number=number, seed=9, public=public)
    data.features._array[::40, 0] = None  # type: ignore[union-attr]
    data.labels._array[::50] = None  # type: ignore[union-attr]
    return data


def plan_on(
    method: str, trainer: str = "objective", *, number: bool = False, **more: Any
) -> FeaturePlan:
    return planned(**{
        "name": "table", "schema": table(number=number).schema, "public": False,
        "budget": BUDGET, "split": make_split(N, scored=False), "searched_on": "others",
        "choice": make_choice(method, trainer=trainer, **FEW.get(method, {})), **more,
    })  # fmt: skip


def search_on(
    plan: FeaturePlan, folder: Path, *, private: Dataset | None = None, on: Dataset | None = None
) -> FeatureSearch:
    number = plan.schema.regression
    search = search_of(plan, folder, data=table(N, number=number) if private is None else private)
    return replace(search, public=others(number=number) if on is None else on)


def reads(on: Dataset, trainer: str = "objective", slots: int = 240) -> PublicRecordAccess:
    regression = on.schema.regression
    kind = select_trainer(trainer, regression)
    noise = dict(STRONG)[kind]
    strong = kind(outputs=on.schema.outputs, regression=regression, noise=noise)
    return PublicRecordAccess(
        dataset=on, schema=on.schema, means=MEANS, trainer=strong, slots=slots,
        metric=find_default_metric(on.schema.regression),
    )  # fmt: skip


STREAM = Keys.from_seed(1).stream("selection")


def uncertainties(given: RecordAccess) -> Any:
    return CFSGreedy().release_uncertainties(given, STREAM)


def ranked(given: RecordAccess, size: int) -> list[int]:
    return list(TopSelector(size=size).choose(given, STREAM).order)


def moments(given: RecordAccess, view: View) -> np.ndarray:
    return PrincipalComponents().compute_moments(given, view, STREAM)


def unlike(number: bool = False) -> Dataset:
    """Return private records of which none is as those of `table`."""
    data = table(N, number=number, seed=77)
    data.features._array[:, 2] = "w"  # type: ignore[union-attr]
    data.features._array[::3] = None  # type: ignore[union-attr]
    data.labels._array[:] = data.labels._array[::-1].copy()  # type: ignore[union-attr]
    return data


class TestPlan:
    @pytest.mark.contract
    def test_has_no_line_of_a_choice(self):
        for method in SHARED:
            for trainer in ["objective", "dpsgd"]:
                for number in [False, True]:
                    plan = plan_on(method, trainer, number=number)
                    assert [(line.name, line.partition, line.count) for line in plan.lines] == [
                        ("feature means", "train", 1), ("final training", "train", 1),
                        ("test accuracy", "test", 1),
                    ]  # fmt: skip
                    assert plan.score is None
                    assert plan.list_published_bounds() == []
                    assert plan.selection_rule == "not private"
                    assert plan.to_json()["searched_on"] == "others"
                    total, parts = price_partitions(events_by_partition(plan.lines), 1e-5)
                    assert total == plan.price
                    for name in ("train", "test"):
                        assert 0.97 * BUDGET.epsilon < parts[name].epsilon <= BUDGET.epsilon

    @pytest.mark.unit
    def test_leaves_the_model_more_than_a_private_choice_does(self):
        for method in SHARED:
            on = plan_on(method)
            private = plan_on(method, searched_on=None, split=make_split(N))
            assert on.noise("final training") > 1.2 * private.noise("final training")

    @pytest.mark.unit
    def test_other_methods_are_refused(self):
        for method in [each for each in METHODS if each not in SHARED]:
            schema = dataset(image=method == "max-pool").schema
            with pytest.raises(UsageError, match=r"on public data.*choose .*cfs-greedy"):
                plan_on(method, schema=schema, split=make_split(N))

    @pytest.mark.unit
    def test_nothing_else_may_be_set_aside_for_the_choice(self):
        with pytest.raises(UsageError, match="`search_share=` reserves private records"):
            plan_on("pafs", split=make_split(N, scored=False, search_share=0.3))
        with pytest.raises(UsageError, match="other records than the model"):
            plan_on("top", selection_share=0.3)


class TestIndependence:
    """Of what the private records decide, the choice sees the released means at most."""

    @pytest.mark.contract
    @pytest.mark.parametrize("method", SHARED)
    @pytest.mark.parametrize("number", [False, True])
    def test_of_the_choice(
        self, method: str, number: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        plan = plan_on(method, number=number)
        if method in ("pafs", "one-hot", "pca"):
            monkeypatch.setattr(FeatureSearch, "_release_means", lambda self: MEANS)
        found = []
        for private in (table(N, number=number), unlike(number)):
            doors: list[str] = []
            with monkeypatch.context() as patch:
                watch_doors(patch, doors.append)
                chosen = search_on(plan, tmp_path, private=private).run().chosen
            means = ["train"] * (method not in ("pafs", "one-hot", "pca"))
            assert doors == [*means, "train", "test"], "means, the final training, the test"
            rotation = chosen.view.rotation
            found.append((
                chosen.order, chosen.merit, chosen.trials, chosen.blank,
                None if chosen.to_class is None else chosen.to_class.tolist(),
                None if rotation is None else rotation.tolist(),
            ))  # fmt: skip
        assert found[0] == found[1]

    @pytest.mark.contract
    def test_a_choice_on_private_records_would_be_seen(self, tmp_path: Path):
        """The test above has teeth: chosen on the private records, features differ."""
        plan = plan_on("cfs-greedy")
        merits = [
            search_on(plan, tmp_path, on=replace(private, public=True)).run().chosen.merit
            for private in (table(N), unlike())
        ]
        assert merits[0] != merits[1]

    @pytest.mark.unit
    def test_components_are_of_the_released_means(self, tmp_path: Path):
        search = search_on(plan_on("pca"), tmp_path)
        means, chosen = search._release_means(), search.run().chosen
        view = View.of(means)
        assert np.array_equal(chosen.view.shift, means)
        exact = moments(search.open_access(means), view)
        want = np.linalg.eigh(exact)[1][:, ::-1][:, :2]
        assert chosen.view.rotation is not None
        assert np.array_equal(chosen.view.rotation, want)
        assert not np.allclose(exact, moments(search.open_access(means), View.of(MEANS)))

    @pytest.mark.contract
    def test_data_that_were_not_declared_public_are_not_read(self):
        for read in [
            uncertainties,
            lambda it: ranked(it, 2),
            lambda it: moments(it, View.of(MEANS)),
            lambda it: it.make_scorer()(np.ones((1, WIDTH), bool), ["trial 0"]),
        ]:
            read(reads(others()))
            with pytest.raises(UnchargedReadError, match="is private"):
                read(reads(others(public=False)))

    @pytest.mark.contract
    def test_nor_by_a_search(self, tmp_path: Path):
        for method in SHARED:
            search = search_on(plan_on(method), tmp_path, on=others(public=False))
            with pytest.raises(UnchargedReadError):
                search.run()


class TestExact:
    """What is read has no noise, and is what the private releases are noisy versions of."""

    @pytest.mark.oracle
    def test_uncertainties(self):
        for number in [False, True]:
            data = others(number=number)
            attributes, records = make_attributes(data.schema), data.all_records(None)
            assert 0 < int((~records.valid).sum()) < 30
            joint = count_tables(attributes.codes(records.x, records.y, records.valid), attributes)
            to_class, between, blank = uncertainties(reads(data))
            want = compute_symmetrical_uncertainty(joint, attributes)
            assert np.array_equal(to_class, want[0])
            assert np.array_equal(between, want[1])
            assert blank == 0.0

    @pytest.mark.oracle
    def test_ranks(self):
        for number in [False, True]:
            data = others(number=number)
            attributes, records = make_attributes(data.schema), data.all_records(None)
            codes = attributes.codes(records.x, records.y, records.valid)
            last = codes[codes[:, -1] >= 0, -1]
            shares = np.maximum(np.bincount(last, minlength=attributes.sizes[-1]), 1)
            points = feature_points(codes, attributes, ClassShares.of(shares / shares.sum()))
            found = ranked(reads(data), WIDTH)
            assert sorted(found) == list(range(WIDTH))
            told = np.asarray(points)[found]
            assert (np.diff(told) <= 0).all()
            assert ranked(reads(data), 3) == found[:3]
            # Where two features have the same points, the first of them comes first.
            ties = [
                (a, b) for a, b, d in zip(found, found[1:], np.diff(told), strict=False) if d == 0
            ]
            assert all(a < b for a, b in ties)

    @pytest.mark.oracle
    def test_ranks_and_moments_are_those_of_a_private_choice_without_noise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """The same records, once public, once private with all noise taken away."""
        monkeypatch.setattr(
            GaussianSum, "_add_noise_to_entries", lambda self, entries, stream: entries
        )
        data = others(N)
        for method in ("top", "pca"):
            plan = plan_on(method, searched_on=None)
            loud = tuple((name, 1e6 if name == "picks" else v) for name, v in plan.noises)
            search = search_of(replace(plan, noises=loud), tmp_path, data=data)
            private = search.open_access(MEANS)
            slots = search.dataset["train"]._slots
            cells, labels = (each._array[slots] for each in (data.features, data.labels))  # type: ignore[union-attr]
            same = Dataset(
                name="same", schema=data.schema, features=cells, labels=labels, public=True
            )
            if method == "top":
                assert ranked(private, 2) == ranked(reads(same), 2)
            else:
                exact = moments(reads(same), View.of(MEANS))
                assert np.allclose(moments(private, View.of(MEANS)), exact, rtol=1e-12)
                assert 1.0 < np.trace(exact) <= len(slots)


class TestCompared:
    SETS = np.array([np.ones(WIDTH), np.arange(WIDTH) < 2, np.arange(WIDTH) == WIDTH - 1], bool)
    TRIALS = ("trial 0", "trial 1", "trial 2")

    @pytest.mark.unit
    @pytest.mark.parametrize("trainer", ["objective", "dpsgd"])
    @pytest.mark.parametrize("number", [False, True])
    def test_models_are_scored_on_records_that_they_have_not_seen(
        self, trainer: str, number: bool, monkeypatch: pytest.MonkeyPatch
    ):
        seen: dict[str, Any] = {}
        score = engine.count_for_models

        def watching(genuine: Any) -> Any:
            def fitting(self: Trainer, records: Any, *rest: Any) -> list[LinearModel]:
                seen["train"] = records
                return genuine(self, records, *rest)

            return fitting

        def scoring(models: Any, records: Any, metric: Any) -> list[list[int]]:
            seen["test"] = records
            counts = score(models, records, metric)
            seen["points"] = [each for (each,) in counts]
            return counts

        wrap_trainers(monkeypatch, "fit_many", watching)
        monkeypatch.setattr(engine, "count_for_models", scoring)
        data = others(number=number)
        found = reads(data, trainer).make_scorer()(self.SETS, self.TRIALS)
        assert found == seen["points"], "without noise"
        assert (len(seen["train"]), len(seen["test"])) == (320, 80)
        rows = [
            {row.tobytes() for row in np.column_stack([each.x.numpy(), each.y.numpy()])}
            for each in (seen["train"], seen["test"], data.all_records(None))
        ]
        null = np.zeros(WIDTH + 1, np.float32).tobytes()
        assert rows[0] & rows[1] <= {null, null * 2}
        assert len(rows[2]) > 300
        if trainer == "objective":
            assert found[1] > found[2], "features that tell the target win over one that does not"
        again = reads(data, trainer).make_scorer()(self.SETS, self.TRIALS)
        assert again == found

    @pytest.mark.unit
    def test_candidates_share_no_randomness(self, monkeypatch: pytest.MonkeyPatch):
        models: list[LinearModel] = []
        monkeypatch.setattr(
            engine, "count_for_models",
            lambda found, records, metric: models.extend(found) or [[0]] * len(found),
        )  # fmt: skip
        reads(others()).make_scorer()(self.SETS[[0, 0]], self.TRIALS[:2])
        assert not np.array_equal(models[0].weights, models[1].weights)

    @pytest.mark.unit
    def test_noise_gives_the_signal_of_the_final_training(self):
        """What a record of n moves, over the noise: epsilon n, n / sigma, or mu n."""
        each = [kind(noise=noise, outputs=1, regression=True) for kind, noise in STRONG]
        strong = [it.reduce_noise(3200 / 320).noise for it in each]
        assert strong == pytest.approx([80.0, 0.001, 1.0])
        weak = [it.reduce_noise(3200 / 32000).noise for it in each]
        assert weak == pytest.approx([0.8, 0.1, 0.01])
        assert each[2].reduce_noise(3200.0).noise == MU_RANGE[1]

    @pytest.mark.unit
    def test_so_do_the_trainings_of_candidates(self, monkeypatch: pytest.MonkeyPatch):
        seen: list[float] = []

        def watching(genuine: Any) -> Any:
            def fitting(self: Trainer, *given: Any) -> list[LinearModel]:
                seen.append(self.noise)
                return genuine(self, *given)

            return fitting

        wrap_trainers(monkeypatch, "fit_many", watching)
        reads(others(), slots=3200).make_scorer()(self.SETS, self.TRIALS)
        assert seen == pytest.approx([8.0 * 3200 / 320])
