"""Searching on public data: free, and no private record is opened before the one training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from doubles import Untouchable

from pasearch.accounting.budget import Budget
from pasearch.api import search as api
from pasearch.api.lifecycle import Prepared
from pasearch.api.resolve import check_same_schema
from pasearch.api.resume import resume
from pasearch.data.front_ends import PrincipalComponents, Raw
from pasearch.data.partitions import Dataset, Partition, PartitionCells, UnchargedReadError
from pasearch.data.schema import Schema
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.runs.ledger import Ledger, Receipt
from pasearch.search import candidate_training, engine
from pasearch.search.plan import Plan
from pasearch.search.proxy import Proxy
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.space import Portfolio

SCHEMA = Schema(shape=(4,), low=-3.0, high=3.0, classes=2)
BUDGET = Budget(3.0)
OPTIONS: dict[str, Any] = {"steps": 5, "batch": 20, "device": "cpu"}


def arrays(seed: int = 0, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, size=(n, 4))
    return x, (x[:, 0] > 0).astype(int)


def candidate(*units: int, rate: float = 1.0, front_end: Any = Raw()) -> Candidate:  # noqa: B008
    return Candidate(
        architecture=Architecture(layers=tuple(Dense(units=each) for each in units)),
        settings=(("learning_rate_scale", rate),),
        front_end=front_end,
    )


# The first hardly moves from where it starts; the second learns.
SLEEPY, AWAKE = candidate(3, rate=1e-6), candidate(3)
BOTH = Portfolio(name="both", entries=(SLEEPY, AWAKE))


def unreadable(schema: Schema = SCHEMA, n: int = 200) -> Dataset:
    return Dataset(
        name="people",
        schema=schema,
        features=Untouchable((n, *schema.shape), "f8"),  # type: ignore[arg-type]
        labels=Untouchable((n,), "i8"),  # type: ignore[arg-type]
    )


def public(n: int = 300, seed: int = 9, **schema: Any) -> Dataset:
    x, y = arrays(seed, n)
    form = Schema(**{"shape": (4,), "low": -3.0, "high": 3.0, "classes": 2, **schema})
    return Dataset(name="others", schema=form, features=x, labels=y, public=True)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    x, y = arrays(9, 300)
    path = tmp_path / "others.npz"
    np.savez(path, x=x, y=y, bounds=np.array([-3.0, 3.0]), classes=2)
    return path


@cache
def once(n: int = 200, steps: int = 60, epsilon: float = 8.0) -> Plan:
    """The plan of one training, whose signal the candidates are to have."""
    data = unreadable(n=n)
    return api.prepare(
        data, budget=Budget(epsilon), strategy="fixed", space=BOTH, steps=steps, batch=50
    ).plan


def best(on: Dataset, space: Portfolio = BOTH) -> Candidate:
    return Proxy(dataset=on).find_best(once(), space, device="cpu")


class TestForm:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "private",
        [
            Schema(shape=(5,), low=0, high=1, classes=2),
            Schema(shape=(2, 2), low=0, high=1, classes=2),
            Schema(shape=(4,), low=0, high=1, classes=3),
            Schema(shape=(4,), low=0, high=1, target=(0, 1), regression=True),
        ],
    )
    def test_data_of_another_form_are_refused(self, private: Schema):
        with pytest.raises(UsageError, match="`search_on=`: 'others'"):
            check_same_schema(public(), private, "search_on")

    @pytest.mark.unit
    def test_other_bounds_are_no_other_form(self):
        check_same_schema(public(), Schema(shape=(4,), low=0, high=255, classes=2), "search_on")

    @pytest.mark.contract
    def test_private_records_cannot_be_searched_on(self):
        x, y = arrays()
        private = Dataset(name="people", schema=SCHEMA, features=x, labels=y)
        for read in (
            lambda: best(private),
            lambda: Proxy(dataset=private).fit(PrincipalComponents(2)),
        ):
            with pytest.raises(UnchargedReadError):
                read()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Recipe, records and streams of every training on public records."""
    found: list[tuple[Any, ...]] = []
    genuine = candidate_training.train_candidate

    def train(tried, records, schema, recipe, streams, **options):
        found.append((recipe, records, streams))
        return genuine(tried, records, schema, recipe, streams, **options)

    monkeypatch.setattr(candidate_training, "train_candidate", train)
    return found


class TestBest:
    @pytest.mark.unit
    def test_is_the_one_that_does_best_there(self):
        for entries in ((SLEEPY, AWAKE), (AWAKE, SLEEPY)):
            assert best(public(), Portfolio(name="p", entries=entries)) == AWAKE

    @pytest.mark.unit
    def test_is_always_the_same(self):
        alike = Portfolio(name="alike", entries=tuple(candidate(each) for each in (2, 3, 4, 5)))
        assert len({best(public(), alike) for _ in range(3)}) == 1

    @pytest.mark.unit
    def test_one_that_fails_does_not_win(self, monkeypatch: pytest.MonkeyPatch):
        genuine = candidate_training.train_candidate

        def train(tried: Candidate, *arguments: Any, **options: Any):
            network = genuine(tried, *arguments, **options)
            return candidate_training.mark_failed(network) if tried == AWAKE else network

        monkeypatch.setattr(candidate_training, "train_candidate", train)
        assert best(public()) == SLEEPY

    @pytest.mark.unit
    @pytest.mark.parametrize("n", [60, 300, 3000])
    def test_is_trained_at_the_signal_of_the_private_training(
        self, trainings: list[tuple[Any, ...]], n: int
    ):
        best(public(n), Portfolio(name="one", entries=(AWAKE,)))
        ((recipe, records, _),) = trainings
        plan = once()
        assert len(records) == min(round(0.8 * n), plan.split.train)
        own = plan.trial_recipe(AWAKE)
        assert recipe.steps == own.steps
        assert recipe.noise_multiplier is not None
        assert own.noise_multiplier is not None
        # At full batches mu n is steps^.5 batch / sigma; sampling changes it a little.
        signal = recipe.expected_batch_size / recipe.noise_multiplier
        same = own.expected_batch_size / own.noise_multiplier
        assert signal == pytest.approx(same, rel=0.35)

    @pytest.mark.unit
    def test_scores_are_of_other_records_and_each_training_has_its_own_streams(
        self, trainings: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
    ):
        scored, counts = [], candidate_training.compute_metric_counts

        def score(network, records, *arguments, **options):
            scored.append(records.x)
            return counts(network, records, *arguments, **options)

        monkeypatch.setattr(candidate_training, "compute_metric_counts", score)
        best(public(), Portfolio(name="same", entries=(AWAKE, AWAKE, AWAKE)))
        trained = [{tuple(row.tolist()) for row in records.x} for _, records, _ in trainings]
        held = [{tuple(row.tolist()) for row in x} for x in scored]
        assert trained == trained[:1] * 3
        assert held == held[:1] * 3
        assert trained[0].isdisjoint(held[0])
        drawn = [each.seed64() for *_, streams in trainings for each in streams.values()]
        assert len(set(drawn)) == len(drawn) == 3 * 4

    @pytest.mark.unit
    def test_a_front_end_is_fitted_to_all_public_records_without_noise(self):
        on = Proxy(dataset=public())
        fitted = [on.fit(PrincipalComponents(2)).module.state_dict() for _ in range(2)]
        assert all(torch.equal(fitted[0][name], fitted[1][name]) for name in fitted[0])
        assert isinstance(on.fit(Raw()).module, torch.nn.Identity)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is charged, opened and trained, in order."""
    told: list[str] = []
    charge, opening, cells = Ledger._charge, Partition.open, PartitionCells.open
    private, elsewhere = engine.train_candidate, candidate_training.train_candidate

    def charged(ledger: Ledger, line: str, names: list[str], key: str) -> None:
        charge(ledger, line, names, key)
        told.append(f"charge {line}")

    def opened(partition: Partition, receipt: Receipt):
        told.append(f"open {partition.name}")
        return opening(partition, receipt)

    def opened_cells(part: PartitionCells, receipt: Receipt):
        told.append(f"cells {part.name}")
        return cells(part, receipt)

    def trained(*arguments: Any, **options: Any):
        told.append("train")
        return private(*arguments, **options)

    def tried(*arguments: Any, **options: Any):
        told.append("try")
        return elsewhere(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_charge", charged)
        patch.setattr(Partition, "open", opened)
        patch.setattr(PartitionCells, "open", opened_cells)
        patch.setattr(engine, "train_candidate", trained)
        patch.setattr(candidate_training, "train_candidate", tried)
        yield told


PCA = Portfolio(
    name="pca", entries=tuple(candidate(each, front_end=PrincipalComponents(2)) for each in (3, 4))
)


def prepared(on: Path, data: Any = None, **options: Any) -> Prepared:
    return api.prepare(
        arrays() if data is None else data, budget=BUDGET, search_on=on,
        **{"space": BOTH, "bounds": (-3, 3), "classes": 2, **OPTIONS, **options},
    )  # fmt: skip


class TestPlan:
    @pytest.mark.unit
    def test_costs_one_training_whatever_was_searched(self, others: Path):
        plan = prepared(others).plan
        assert [(line.name, line.partition, line.count) for line in plan.lines] == [
            ("training", "train", 1), ("test accuracy", "test", 1),
        ]  # fmt: skip
        alone = api.prepare(
            unreadable(), budget=BUDGET, strategy="fixed", space=BOTH, **OPTIONS
        ).plan
        assert plan.trial_mu == alone.trial_mu, "all of epsilon is left for the one training"
        assert plan.lines == alone.lines
        assert plan.searched_on == "others"
        assert plan.space.count() == 1
        assert plan.split.sizes() == {"train": 180, "test": 20}

    @pytest.mark.unit
    def test_a_front_end_fitted_to_public_records_costs_nothing(self, others: Path):
        plan = prepared(others, space=PCA).plan
        assert plan.space.front_ends() == (PrincipalComponents(2),)
        assert plan.front_noise == ()
        assert [line.name for line in plan.lines] == ["training", "test accuracy"]
        assert plan.trial_mu == prepared(others).plan.trial_mu
        private = api.prepare(
            unreadable(), budget=BUDGET, strategy="fixed", space=plan.space, **OPTIONS
        ).plan
        assert next(line.name for line in private.lines) == "front end pca:2"

    @pytest.mark.contract
    def test_is_made_without_a_private_value(self, others: Path, monkeypatch: pytest.MonkeyPatch):
        with watched(monkeypatch) as told:
            plan = prepared(others, unreadable()).plan
        assert told == ["try", "try"]
        assert plan.to_json() == prepared(others).plan.to_json() | {"data": plan.to_json()["data"]}

    @pytest.mark.unit
    def test_what_is_undeclared_is_taken_from_the_public_data(self, others: Path):
        plan = prepared(others, unreadable(Schema(shape=(4,)))).plan
        assert plan.schema == SCHEMA
        assert plan.schema_estimate is None
        assert plan.assumed_public == ("everything undeclared, from the public data others",)

    @pytest.mark.unit
    def test_a_private_search_and_its_settings_have_no_place_beside_it(self, others: Path):
        for strategy in ("rs", "mgrs", "paas", "stw"):
            with pytest.raises(UsageError, match=f"`strategy={strategy}` cannot be used"):
                prepared(others, strategy=strategy)
        with pytest.raises(UsageError, match="`candidates=`"):
            prepared(others, candidates=4)

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "one",
        [
            {"recipe": ["dpsgd", "auto-s"]},
            {"recipe": "rwt"},
            {"recipe": "dpsgd-tanh"},
            {"architecture": {"layers": [{"kind": "dense", "units": 3}]}},
        ],
    )
    def test_one_network_leaves_nothing_to_search(
        self, others: Path, monkeypatch: pytest.MonkeyPatch, one: dict[str, Any]
    ):
        said = (
            "`search_on=` searches for a network, but `architecture=`, several recipes, or a "
            "recipe that changes"
        )
        with watched(monkeypatch) as told, pytest.raises(UsageError, match=said):
            prepared(others, unreadable(), **{"space": "auto", **one})
        assert told == [], "refused before a candidate was tried"

    @pytest.mark.unit
    def test_bounds_of_the_private_file_say_nothing_of_built_in_data(self, tmp_path: Path):
        x = np.random.default_rng(0).uniform(0, 16, size=(200, 8, 8))
        data = x, np.arange(200) % 10
        plan = api.prepare(
            data, budget=BUDGET, search_on="digits", bounds=(0, 16), classes=10, space=BOTH,
            **OPTIONS,
        ).plan  # fmt: skip
        assert plan.searched_on == "digits"


class TestRun:
    @pytest.mark.contract
    def test_no_private_record_is_opened_before_the_one_training(
        self, tmp_path: Path, others: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with watched(monkeypatch) as told:
            result = api.run(prepared(others, space=PCA), out=tmp_path / "x", progress=None)
        assert told == [
            "try", "try", "charge training", "open train", "train", "charge test accuracy",
            "open test",
        ]  # fmt: skip
        assert result.document["searched_on"] == "others"
        assert "Searched on others, declared public" in result.card
        assert result.document["best"]["front_end"] == "pca:2"
        assert "curves" not in result.document
        assert result.predict(arrays(3, 7)[0]).shape == (7,)

    @pytest.mark.contract
    def test_a_search_on_private_records_would_be_seen(
        self, tmp_path: Path, others: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """The test above has teeth: a proxy that also looks at the private data is caught."""

        def peek(self: Proxy, *arguments: Any, **options: Any) -> Candidate:
            self.dataset.all_records(None)
            dataset.all_records(None)
            return AWAKE

        x, y = arrays()
        dataset = Dataset(name="people", schema=SCHEMA, features=x, labels=y)
        monkeypatch.setattr(Proxy, "find_best", peek)
        with pytest.raises(UnchargedReadError):
            prepared(others, dataset)

    @pytest.mark.unit
    def test_a_resumed_run_does_not_search_again(
        self, tmp_path: Path, others: Path, monkeypatch: pytest.MonkeyPatch
    ):
        made, genuine = prepared(others, space=PCA, seed=3), engine.train_candidate

        def stop(*arguments: Any, **options: Any) -> NoReturn:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine, "train_candidate", stop)
            with pytest.raises(InterruptedRunError):
                api.run(made, out=tmp_path / "x", progress=None)
        monkeypatch.setattr(Proxy, "find_best", stop)
        assert engine.train_candidate is genuine
        result = resume(tmp_path / "x", data=arrays())
        assert result.best == made.plan.space.candidate((0,))
        whole = api.run(made, out=tmp_path / "y", progress=None)
        assert whole.document == result.document
