"""Running a plan: charges before reads, trials never redrawn, resumes that pay nothing twice."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audits import ACCEPT, REJECT, geometric_pvalue
from torch import nn

from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Geometric
from pasearch.api import search as api
from pasearch.api.lifecycle import Prepared, estimate_schema
from pasearch.data.estimation import SchemaEstimate
from pasearch.data.front_ends import FittedFrontEnd, PrincipalComponents, Raw, Standardise
from pasearch.data.partitions import Dataset, Partition, PartitionCells, UnchargedReadError
from pasearch.errors import BudgetError, UsageError
from pasearch.progress import Progress
from pasearch.runs.folder import RunFolder
from pasearch.runs.journal import Journal, TrialRecord
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, Receipt
from pasearch.runs.mechanisms import NoisyCount
from pasearch.search import engine
from pasearch.search.candidate_training import compute_metric_counts
from pasearch.search.engine import SearchEngine, SearchOutcome

SPACE = {
    "name": "small",
    "choices": {"layers": [1, 2], "units_1": [2, 4], "units_2": [2, 3], "dropout": [0.0, 0.2]},
}
DECLARED: dict[str, Any] = {"bounds": (-3, 3), "classes": 2}
UNDECLARED: dict[str, Any] = {"bounds": None, "classes": None}
PCA = {"name": "pca", "choices": {"front_end": ["pca:2"], "units_1": [2, 4]}}
WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"strategy": "fixed"},
    "rs": {"strategy": "rs", "candidates": 3},
    "rs retrained": {"strategy": "rs", "candidates": 3, "search_share": 0.3},
    "mgrs": {"strategy": "mgrs", "candidates": 5, "generations": 2},
    "paas": {"strategy": "paas", "candidates": 3, "generations": 2},
    "paas retrained": {"strategy": "paas", "candidates": 3, "generations": 2, "search_share": 0.3},
    "rs pca": {"strategy": "rs", "candidates": 3, "space": PCA},
    "paas pca retrained": {
        "strategy": "paas", "candidates": 3, "generations": 2, "space": PCA, "search_share": 0.3,
    },
    "portions": {"strategy": "portions", "candidates": 3},
    "portions retrained": {"strategy": "portions", "candidates": 2, "search_share": 0.5},
    "stw": {"strategy": "stw", "candidates": 3, "generations": 2, "data_is_public": True},
}  # fmt: skip


def arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    x = generator.normal(size=(200, 3))
    return x, (x[:, 0] > 0).astype(int)


@cache
def prepared(way: str, **options: Any) -> Prepared:
    settings = {"space": SPACE, "steps": 4, "batch": 30, "device": "cpu", **WAYS[way]}
    return api.prepare(arrays(), budget=Budget(3.0), **{**settings, **DECLARED, **options})


class Memory(Journal):
    """A journal that is not on disk, which is quicker; a resume needs the genuine one."""

    __slots__ = ()

    def __init__(self) -> None:
        self._records = {}

    def add(self, number, parameters, value, attributes):
        assert number not in self._records
        content = json.loads(json.dumps([parameters, value, attributes], allow_nan=False))
        record = TrialRecord(
            number=number, parameters=content[0], value=content[1], attributes=content[2]
        )
        self._records[number] = record
        return record

    def close(self) -> None:
        pass


@contextmanager
def searching(
    path: Path, way: str, seed: int = 1, stored: bool = False, **options: Any
) -> Iterator[SearchEngine]:
    """Set a search up in a folder; the second time, as a resume does."""
    plan = prepared(way, **options)
    if path.exists():
        folder = RunFolder.open(path)
        ledger = Ledger.open(folder.private / "ledger.sqlite")
    else:
        folder = RunFolder.create(path, "test")
        ledger = Ledger.create(folder.private / "ledger.sqlite", plan.plan.lines)
    keys = Keys.from_seed(seed)
    x, y = arrays()
    dataset = Dataset(
        name="arrays", schema=plan.dataset.schema, features=x, labels=y, public=plan.plan.public
    )
    dataset.partition(plan.plan.split, keys.stream("split").generator())
    journal = Journal(folder.private / "trials.sqlite") if stored else Memory()
    try:
        with ledger:
            yield SearchEngine(
                plan=plan.plan, strategy=plan.plan.strategy, dataset=dataset, ledger=ledger,
                journal=journal, keys=keys, folder=folder, device="cpu", progress=Progress(),
            )  # fmt: skip
    finally:
        journal.close()


def weights(outcome: SearchOutcome) -> list[torch.Tensor]:
    return list(outcome.network.state_dict().values())


def same(first: SearchOutcome, second: SearchOutcome) -> bool:
    return (
        first.candidate == second.candidate
        and first.test == second.test
        and all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))
    )


def records_of(search: SearchEngine) -> list:
    return search.journal.all()


class TestTable:
    """The test's table: one charge, one release, each count with the noise that was charged."""

    @pytest.mark.statistical
    def test_has_the_noise_of_the_charged_epsilon_in_every_count(self, tmp_path: Path):
        with searching(tmp_path / "x", "fixed") as search:
            outcome, metric = search.run(), search.plan.test_metric
            assert len(outcome.test.cells) == metric.count_entries(2) > 1
            front = search._fit_front_end(outcome.candidate.front_end)
            opened = search.dataset["test"].with_front_end(front)
            with search.ledger.charged("test accuracy", opened, key="test") as records:
                exact = compute_metric_counts(outcome.network, records, metric, device="cpu")
            found = [
                replace(search, keys=Keys.from_seed(seed))._release_test_score(
                    outcome.candidate, outcome.network
                )
                for seed in range(300)
            ]
            spent = [count for line, *_, count in search.ledger.spent() if line == "test accuracy"]
        event = search.ledger.lines[-1].event
        assert (spent, event) == ([1], Geometric(epsilon=search.plan.test.epsilon))
        assert sum(exact) == search.plan.split.test, "every record is in one cell"
        noise = np.array([score.cells for score, _ in found]) - exact
        for own in noise.T:
            assert geometric_pvalue(own, event.epsilon) > ACCEPT
        assert geometric_pvalue(0 * noise.ravel(), event.epsilon) < REJECT, "none is seen"
        assert geometric_pvalue(noise.ravel(), 2 * event.epsilon) < REJECT, "half is seen"
        correlated = np.corrcoef(noise.T) - np.eye(len(noise.T))
        assert np.abs(correlated).max() < 0.35, "each has its own"
        for score, _ in found:
            assert score.points == sum(metric.select_correct([*score.cells]))


@pytest.mark.contract
@pytest.mark.parametrize("way", WAYS)
class TestEveryWay:
    def test_charges_then_reads_what_the_plan_says_and_writes_to_private(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        opened: list[str] = []
        genuine = Partition.open
        with searching(tmp_path / "x", way) as search:

            def watched(partition: Partition, receipt: Receipt):
                written = {part for _, part, _, _ in search.ledger.spent()}
                assert partition.name in written, "the charge was on disk before the read"
                opened.append(partition.name)
                return genuine(partition, receipt)

            monkeypatch.setattr(Partition, "open", watched)
            outcome = search.run()
            spent = {(line, part): (event, n) for line, part, event, n in search.ledger.spent()}
        assert set(opened) == {line.partition for line in search.plan.lines}
        planned = {(each.name, each.partition): each for each in search.plan.lines}
        assert set(spent) == set(planned), "every line was charged"
        for where, (event, count) in spent.items():
            assert event == planned[where].event
            assert count <= planned[where].count
            if not search.strategy.memoised:
                assert count == planned[where].count
        assert not outcome.network.training
        assert all(bool(torch.isfinite(value).all()) for value in weights(outcome))
        written = [each for each in (tmp_path / "x").rglob("*") if each.is_file()]
        assert written
        assert all((tmp_path / "x" / "private") in each.parents for each in written)

    def test_the_keys_decide_everything(self, tmp_path: Path, way: str):
        outcomes = []
        for name, seed in (("x", 1), ("y", 1), ("z", 2)):
            with searching(tmp_path / name, way, seed) as search:
                outcomes.append(search.run())
        assert same(outcomes[0], outcomes[1])
        assert not same(outcomes[0], outcomes[2])

    def test_a_read_without_a_charge_would_be_caught(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        """The test above has teeth: an engine that skips the ledger stops at the first read."""

        @contextmanager
        def free(ledger: Ledger, line: str, *partitions: Partition, key: str):
            yield partitions[0].open(None)  # type: ignore[arg-type]

        monkeypatch.setattr(Ledger, "charged", free)
        with searching(tmp_path / "x", way) as search, pytest.raises(UnchargedReadError):
            search.run()

    def test_an_interruption_costs_nothing_twice(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        with searching(tmp_path / "whole", way) as search:
            whole = search.run()
            spent = search.ledger.spent()
            trials = len(records_of(search))
        genuine, path = engine.train_candidate, tmp_path / "x"
        for _ in range(trials + 2):
            calls = itertools.count()

            def once(*arguments, calls=calls, **options):
                if next(calls) == 1:
                    raise KeyboardInterrupt
                return genuine(*arguments, **options)

            monkeypatch.setattr(engine, "train_candidate", once)
            try:
                with searching(path, way, stored=True) as search:
                    outcome = search.run()
                    assert search.ledger.spent() == spent
                    assert len(records_of(search)) == trials
                break
            except KeyboardInterrupt:
                assert not list((path / "release").iterdir())
        else:
            pytest.fail("the search never ended")
        assert same(outcome, whole)


class TestMemory:
    ONE = json.dumps({"name": "one", "choices": {"units_1": [3]}})

    @pytest.mark.unit
    def test_equal_candidates_of_paas_are_trained_and_planned_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        calls = count_trainings(monkeypatch)
        with searching(tmp_path / "x", "paas", space=Frozen(self.ONE)) as search:
            outcome = search.run()
            spent = {line: count for line, _, _, count in search.ledger.spent()}
        assert len(calls) == 1
        assert spent == {"training": 1, "score": 1, "test accuracy": 1}
        assert {line.name: line.count for line in search.plan.lines}["training"] == 1
        assert len(outcome.trials) == 6
        assert len({trial.attributes["tie_break"] for trial in outcome.trials}) == 6
        assert len({trial.value for trial in outcome.trials}) == 1

    @pytest.mark.unit
    @pytest.mark.parametrize("way", ["rs", "mgrs"])
    def test_repeat_and_select_trains_equal_candidates_anew(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        calls = count_trainings(monkeypatch)
        with searching(tmp_path / "x", way, seed=1, space=Frozen(self.ONE)) as search:
            search.run()
            trials = records_of(search)
        assert len(calls) == len(trials) > 2
        files = [tmp_path / "x/private/trials" / trial.attributes["weights"] for trial in trials]
        assert len({file.read_bytes() for file in files}) == len(files)


class Frozen(dict):
    """A dictionary that a cache can keep."""

    def __init__(self, text: str):
        super().__init__(json.loads(text))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self))


def count_trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    genuine = engine.train_candidate

    def counted(*arguments, **options):
        calls.append(1)
        return genuine(*arguments, **options)

    monkeypatch.setattr(engine, "train_candidate", counted)
    return calls


class TestFailures:
    def break_some(self, monkeypatch: pytest.MonkeyPatch, broken: Callable[[int], bool]) -> None:
        genuine, calls = engine.train_candidate, itertools.count()

        def train(*arguments, **options):
            if broken(next(calls)):
                raise torch.OutOfMemoryError("too large")
            return genuine(*arguments, **options)

        monkeypatch.setattr(engine, "train_candidate", train)

    @pytest.mark.unit
    @pytest.mark.parametrize("way", ["rs", "mgrs", "paas"])
    def test_a_failed_trial_counts_and_is_never_redrawn(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        with searching(tmp_path / "whole", way, seed=3) as search:
            search.run()
            first = [t.parameters for t in records_of(search)]
            spent = search.ledger.spent()
        self.break_some(monkeypatch, lambda number: number == 0)
        with searching(tmp_path / "x", way, seed=3) as search:
            outcome = search.run()
            trials = records_of(search)
            assert search.ledger.spent() == spent or way == "paas"
        assert [t.value for t in trials].count(None) == 1
        assert len(trials) == len(first) > 1
        alike = 3 if way == "paas" else 1
        assert [t.parameters for t in trials][:alike] == first[:alike]
        assert all(bool(torch.isfinite(value).all()) for value in weights(outcome))

    @pytest.mark.unit
    @pytest.mark.parametrize("way", ["fixed", "rs", "rs retrained", "mgrs", "paas"])
    def test_when_all_fail_the_run_still_ends_and_pays_in_full(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        self.break_some(monkeypatch, lambda number: True)
        with searching(tmp_path / "x", way) as search:
            outcome = search.run()
            charged = {line for line, *_ in search.ledger.spent()}
        assert charged == {line.name for line in search.plan.lines}
        assert all(bool(torch.isnan(value).all()) for value in weights(outcome))
        scale = search.plan.test.standard_deviation
        assert abs(outcome.test.points) < 40 * scale, "noise around no right answer"

    @pytest.mark.unit
    def test_another_error_is_no_failed_trial(self, tmp_path: Path, monkeypatch):
        def wrong(*arguments, **options):
            raise ZeroDivisionError

        monkeypatch.setattr(engine, "train_candidate", wrong)
        with searching(tmp_path / "x", "rs") as search, pytest.raises(ZeroDivisionError):
            search.run()


class TestTies:
    @pytest.mark.unit
    def test_every_trial_draws_its_own(self, tmp_path: Path):
        with searching(tmp_path / "x", "paas") as search:
            search.run()
            breaks = [trial.attributes["tie_break"] for trial in records_of(search)]
        assert len(set(breaks)) == len(breaks) == 6
        with searching(tmp_path / "y", "paas", seed=2) as search:
            search.run()
            assert set(breaks).isdisjoint(t.attributes["tie_break"] for t in records_of(search))

    @pytest.mark.unit
    def test_equal_scores_have_no_favourite(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(SearchEngine, "_release_score", lambda *arguments: 5)
        monkeypatch.setattr(
            engine, "train_candidate",
            lambda candidate, *others, **options: candidate.architecture.build(
                (3,), 2, np.random.default_rng(0)
            ),
        )  # fmt: skip
        winners = set()
        for seed in range(9):
            with searching(tmp_path / str(seed), "paas", seed) as search:
                search.run()
                last = [t.attributes["tie_break"] for t in records_of(search)][3:]
                winners.add(last.index(max(last)))
        assert winners == {0, 1, 2}


class TestProgress:
    @pytest.mark.unit
    def test_tells_rounds_steps_and_the_final_training(self, tmp_path: Path):
        told: list[tuple] = []

        class Told(Progress):
            def search(self, number: int, finished: int, total: int) -> None:
                told.append(("search", number, finished, total))

            def final(self) -> None:
                told.append(("final",))

            def step(self, finished: int, total: int) -> None:
                told.append(("step", finished, total))

        with searching(tmp_path / "x", "paas retrained") as search:
            object.__setattr__(search, "progress", Told())
            search.run()
        assert [each[1:] for each in told if each[0] == "search"] == [
            (number, finished, 3) for number in (0, 1) for finished in (0, 1, 2)
        ]
        assert ("final",) in told
        assert told[-1] == ("step", 4, 4)


@pytest.mark.parametrize("way", WAYS)
def test_no_two_trainings_and_no_two_scores_share_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
):
    trainings, scores = [], []
    train, release, fit = engine.train_candidate, NoisyCount.release, PrincipalComponents.fit

    def watched_train(candidate, records, schema, recipe, streams, **more):
        trainings.extend(stream.seed64() for stream in streams.values())
        return train(candidate, records, schema, recipe, streams, **more)

    def watched_release(self, count, stream):
        scores.append(stream.seed64())
        return release(self, count, stream)

    def watched_fit(self, x, valid, noise_multiplier, stream, form):
        trainings.append(stream.seed64())
        return fit(self, x, valid, noise_multiplier, stream, form)

    monkeypatch.setattr(engine, "train_candidate", watched_train)
    monkeypatch.setattr(NoisyCount, "release", watched_release)
    monkeypatch.setattr(PrincipalComponents, "fit", watched_fit)
    for seed in (1, 2, 3):
        with searching(tmp_path / str(seed), way, seed=seed) as search:
            search.run()
    assert len(trainings) > 2
    assert len(scores) > 2
    assert len(set(trainings + scores)) == len(trainings + scores)


def estimate(search: SearchEngine) -> SearchEngine:
    """What a run does between its keys and its first trial."""
    plan = estimate_schema(search.plan, search.dataset, search.ledger, search.keys, search.folder)
    object.__setattr__(search, "plan", plan)
    return search


def estimated_of(search: SearchEngine) -> dict[tuple[str, str], int]:
    """How often each line of the private estimation was charged, by line and partition."""
    lines = "schema", "classes"
    return {(line, part): n for line, part, _, n in search.ledger.spent() if line in lines}


class TestEstimate:
    @pytest.mark.contract
    @pytest.mark.parametrize("way", ["fixed", "rs", "paas retrained"])
    def test_is_charged_in_full_before_a_cell_is_used(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        told: list[str] = []
        opening, estimating = PartitionCells.open, SchemaEstimate.estimate

        with searching(tmp_path / "x", way, **UNDECLARED) as search:

            def opened(cells: PartitionCells, receipt: Receipt):
                # The charge was on disk before the read.
                assert estimated_of(search)["schema", search.plan.estimate_partition] == 1
                assert cells.name == search.plan.estimate_partition
                told.append("schema")
                return opening(cells, receipt)

            def estimated(estimate: SchemaEstimate, schema, features, labels, stream):
                assert len(features) == len(search.dataset[search.plan.estimate_partition])
                told.append("estimate")
                return estimating(estimate, schema, features, labels, stream)

            monkeypatch.setattr(PartitionCells, "open", opened)
            monkeypatch.setattr(SchemaEstimate, "estimate", estimated)
            before = search.plan
            assert before.schema.undeclared == ("bounds", "target")
            estimate(search)
            assert told == ["schema", "estimate"]
            assert estimated_of(search) == {
                ("schema", search.plan.estimate_partition): 1, ("classes", "train"): 1,
            }  # fmt: skip
            after = search.plan
            assert after.schema.undeclared == ()
            assert search.dataset.schema == after.schema
            assert (after.lines, after.price, after.trial_mu) == (
                before.lines, before.price, before.trial_mu,
            )  # fmt: skip
            search.run()
            spent = {line: count for line, _, _, count in search.ledger.spent()}
            assert (spent["schema"], spent["classes"]) == (1, 1)
        assert len(after.estimated_privately()) == 2

    @pytest.mark.contract
    def test_cells_open_under_their_own_charge_only(self, tmp_path: Path):
        with searching(tmp_path / "x", "rs", **UNDECLARED) as search:
            cells = search.dataset["validation"].cells()
            for receipt in (None, Receipt("train"), Receipt("validation")):
                if receipt is not None and receipt.partition == "validation":
                    receipt.active = False
                with pytest.raises(UnchargedReadError):
                    cells.open(receipt)  # type: ignore[arg-type]
            assert "SealedArray" in repr(search.dataset.features)
            with (
                pytest.raises(BudgetError, match="no line 'schema' for partition 'train'"),
                search.ledger.charged("schema", search.dataset["train"].cells(), key="item 0"),
            ):
                pytest.fail("opened")
            estimate(search)
            with (
                pytest.raises(BudgetError, match="all are charged"),
                search.ledger.charged("schema", cells, key="item 2"),
            ):
                pytest.fail("opened")

    @pytest.mark.contract
    def test_after_a_crash_it_is_not_estimated_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with searching(tmp_path / "whole", "rs", **UNDECLARED) as search:
            whole = estimate(search).run()
            schema, spent = search.plan.schema, search.ledger.spent()
        path = tmp_path / "x"
        with monkeypatch.context() as patch:
            patch.setattr(engine, "train_candidate", stopped)
            with (
                pytest.raises(KeyboardInterrupt),
                searching(path, "rs", stored=True, **UNDECLARED) as search,
            ):
                estimate(search).run()
        monkeypatch.setattr(
            SchemaEstimate, "estimate", lambda *arguments: pytest.fail("estimated twice")
        )
        with searching(path, "rs", stored=True, **UNDECLARED) as search:
            outcome = estimate(search).run()
            assert search.plan.schema == schema
            assert search.ledger.spent() == spent
        assert same(outcome, whole)

    @pytest.mark.contract
    def test_a_crash_before_it_is_kept_gives_the_same_schema_for_the_same_charge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        with searching(tmp_path / "whole", "rs", **UNDECLARED) as search:
            schema = estimate(search).plan.schema
        path = tmp_path / "x"
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "atomic_write", stopped)
            with pytest.raises(KeyboardInterrupt), searching(path, "rs", **UNDECLARED) as search:
                estimate(search)
        with searching(path, "rs", **UNDECLARED) as search:
            charged = {("schema", "validation"): 1, ("classes", "train"): 1}
            assert estimated_of(search) == charged, "paid for, whatever became of it"
            assert estimate(search).plan.schema == schema
            assert estimated_of(search) == charged

    @pytest.mark.unit
    def test_the_same_prepared_search_may_be_run_twice(self, tmp_path: Path):
        made = api.prepare(
            arrays(), budget=Budget(3.0), strategy="fixed", space=SPACE, steps=4, batch=30,
            device="cpu",
        )  # fmt: skip
        found = [api.run(made, out=tmp_path / name, progress=None) for name in ("x", "y")]
        assert [len(each.document["estimated_privately"]) for each in found] == [2, 2]


def stopped(*arguments: Any, **options: Any) -> None:
    raise KeyboardInterrupt


class TestFits:
    """A fitted front end is released once, for all candidates, and never anew."""

    MIXED = json.dumps({"name": "mixed", "choices": {"front_end": ["pca:2", "standardise"]}})

    @pytest.fixture
    def fits(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        found: list[str] = []
        for kind in (PrincipalComponents, Standardise):

            def fit(self, x, valid, noise_multiplier, stream, form, genuine=kind.fit):
                assert noise_multiplier is not None
                found.append(self.text)
                return genuine(self, x, valid, noise_multiplier, stream, form)

            monkeypatch.setattr(kind, "fit", fit)
        return found

    @pytest.mark.contract
    @pytest.mark.parametrize("way", ["rs pca", "paas pca retrained"])
    def test_one_for_all_candidates(self, tmp_path: Path, way: str, fits: list[str]):
        with searching(tmp_path / "x", way) as search:
            outcome = search.run()
            trials = len(records_of(search))
            spent = {line: (part, n) for line, part, _, n in search.ledger.spent()}
        assert trials > 1
        assert fits == ["pca:2"]
        assert spent["front end pca:2"] == (search.plan.trial_partition, 1)
        assert search.plan.estimated_privately() == ["front end pca:2"]
        assert outcome.front.front_end.text == "pca:2"
        kept = torch.load(tmp_path / "x/private/front_ends/pca-2.pt", weights_only=True)
        released = outcome.front.module.state_dict()
        assert all(torch.equal(kept[name], released[name]) for name in released)

    @pytest.mark.contract
    def test_under_repeat_and_select_what_was_drawn_is_not_told(self, tmp_path: Path, monkeypatch):
        """Which front ends were fitted tells of the candidates that lost."""
        told = set()
        for seed in range(4):
            with searching(
                tmp_path / str(seed), "rs", seed=seed, space=Frozen(self.MIXED)
            ) as search:
                search.run()
                told.add(tuple(search.plan.estimated_privately()))
        assert told == {("front end pca:2", "front end standardise")}

    @pytest.mark.contract
    @pytest.mark.parametrize("crash", ["after the fit", "before it is kept"])
    def test_a_resume_pays_for_it_once(
        self, tmp_path: Path, crash: str, fits: list[str], monkeypatch: pytest.MonkeyPatch
    ):
        with searching(tmp_path / "whole", "rs pca") as search:
            whole, spent = search.run(), search.ledger.spent()
        fits.clear()
        with monkeypatch.context() as patch:
            name = "train_candidate" if crash == "after the fit" else "save_weights"
            patch.setattr(engine, name, stopped)
            with (
                pytest.raises(KeyboardInterrupt),
                searching(tmp_path / "x", "rs pca", stored=True) as search,
            ):
                search.run()
        with searching(tmp_path / "x", "rs pca", stored=True) as search:
            outcome = search.run()
            assert search.ledger.spent() == spent
        assert fits == ["pca:2"] * (1 if crash == "after the fit" else 2)
        assert same(outcome, whole), "made twice from the same key, it is one release"

    @pytest.mark.unit
    def test_records_go_through_it_where_the_run_computes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(Raw, "learned", True)  # so that it is kept
        with searching(tmp_path / "x", "fixed") as search:
            assert search._fit_front_end(Raw()).device == "cpu"
            kept = replace(search, device="cuda")._fit_front_end(Raw())
            (tmp_path / "x" / "private" / "front_ends" / "raw.pt").unlink()
            made = replace(search, device="cuda")._fit_front_end(Raw())
        assert [kept.device, made.device] == ["cuda", "cuda"]
        first = nn.Sequential(kept.module, nn.Identity())
        assert FittedFrontEnd(Standardise(), nn.Identity()).compose_after(kept).device == "cuda"
        monkeypatch.setattr(Standardise, "first_stage", Raw())
        both = FittedFrontEnd(Standardise(), first, "cuda").first_stage
        assert both is not None
        assert both.device == "cuda"


class TestCurves:
    @pytest.mark.unit
    def test_looking_changes_no_weight(self, tmp_path: Path):
        outcomes = []
        for public in (False, True):
            with searching(tmp_path / str(public), "paas", data_is_public=public) as search:
                outcomes.append(search.run())
        assert same(*outcomes)


@pytest.mark.unit
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04" + bytes(200), b"\x80\x04N."])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes):
    (tmp_path / "0.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"A file of weights in .* is damaged .*start a new one"):
        engine.load_weights(torch.nn.Linear(2, 1), tmp_path / "0.pt")
    with pytest.raises(UsageError) as caught:
        engine.load_weights(torch.nn.Linear(2, 1), tmp_path / "0.pt")
    assert "0.pt" not in str(caught.value), "only the winner's file is read again"
    other = io.BytesIO()
    torch.save(torch.nn.Linear(3, 1).state_dict(), other)
    (tmp_path / "0.pt").write_bytes(other.getvalue())
    with pytest.raises(UsageError, match="is damaged"):
        engine.load_weights(torch.nn.Linear(2, 1), tmp_path / "0.pt")
