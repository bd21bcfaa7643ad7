"""The API from end to end: what a run pays, reads, writes, and does when it is taken up again."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from pasearch.accounting.budget import Budget
from pasearch.api import binding
from pasearch.api import lifecycle as running
from pasearch.api import search as api
from pasearch.api.binding import compute_fingerprint, list_versions
from pasearch.api.lifecycle import Prepared
from pasearch.api.request import SearchRequest
from pasearch.api.resume import resume
from pasearch.api.search import search_architecture
from pasearch.data.array_file import from_arrays
from pasearch.data.partitions import Dataset, Partition
from pasearch.errors import BudgetError, InterruptedRunError, MachineError, UsageError
from pasearch.report.score import is_below_noise, score_interval
from pasearch.results import SearchResult, load_result
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, Receipt
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.search import engine, randomized
from pasearch.verification.verify import verify

BUDGET = Budget(3.0)
FILES = ["model.pt", "privacy-card.json", "privacy-card.md", "report.html", "result.json"]
OPTIONS: dict[str, Any] = {
    "strategy": "fixed",
    "space": {"name": "small", "choices": {"layers": [1, 2], "units_1": [2, 4]}},
    "steps": 4,
    "batch": 40,
    "bounds": (-3.0, 3.0),
    "classes": 2,
    "device": "cpu",
}
WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"strategy": "fixed"},
    "rs": {"strategy": "rs", "candidates": 3},
    "rs aside": {"strategy": "rs", "candidates": 3, "search_share": 0.3},
    "mgrs": {"strategy": "mgrs", "candidates": 5, "generations": 2},
    "paas": {"strategy": "paas", "candidates": 3, "generations": 2},
    "stw": {"strategy": "stw", "candidates": 2, "generations": 2, "data_is_public": True},
}
HIDING = ("rs", "rs aside", "mgrs")


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(seed))
    x = generator.normal(size=(200, 3))
    return x, (x[:, 0] > 0).astype(int)


@cache
def prepared(way: str, **options: Any) -> Prepared:
    return api.prepare(arrays(), budget=BUDGET, **{**OPTIONS, **WAYS[way], **options})


def run(path: Path, way: str, **options: Any) -> SearchResult:
    return api.run(prepared(way, **options), out=path, progress=None)


def spent(path: Path) -> dict[tuple[str, str], tuple[Any, int]]:
    with Ledger.open(path / "private" / "ledger.sqlite") as ledger:
        return {(line, part): (event, count) for line, part, event, count in ledger.spent()}


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let the training with this number be interrupted."""
    genuine, calls = engine.train_candidate, itertools.count()

    def train(*arguments, **options):
        if next(calls) == at:
            raise KeyboardInterrupt
        return genuine(*arguments, **options)

    monkeypatch.setattr(engine, "train_candidate", train)


class Finished:
    """One watched run of each way, for all tests that only look at what it left."""

    def __init__(self, folder: Path, way: str):
        self.path = folder / way.replace(" ", "-")
        self.charged: list[str] = []
        self.opened: list[str] = []
        charge, genuine = Ledger._charge, Partition.open

        def charging(ledger: Ledger, line: str, names: list[str], key: str) -> None:
            charge(ledger, line, names, key)
            self.charged.extend(names)

        def opening(partition: Partition, receipt: Receipt):
            self.opened.append(partition.name)
            assert self.charged == self.opened, "one charge on disk before each read"
            return genuine(partition, receipt)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "_charge", charging)
            patch.setattr(Partition, "open", opening)
            self.result = run(self.path, way)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    folder = tmp_path_factory.mktemp("finished")
    return cache(lambda way: Finished(folder, way))


@pytest.mark.contract
@pytest.mark.parametrize("way", WAYS)
class TestEveryRun:
    def test_costs_what_was_planned(self, finished: Callable[[str], Finished], way: str):
        plan, result, path = prepared(way).plan, finished(way).result, finished(way).path
        assert result.price == plan.price
        assert result.price.epsilon <= 3.0
        assert result.document["events"] == plan.to_json()["lines"]
        recomputed, problems = verify(path)
        assert (recomputed.epsilon, problems) == (plan.price.epsilon, [])
        charged = spent(path)
        planned = {(line.name, line.partition): (line.event, line.count) for line in plan.lines}
        assert set(charged) == set(planned)
        for where, (event, count) in charged.items():
            assert event == planned[where][0]
            exact = way not in ("paas", "stw")  # those remember repeats
            assert count == planned[where][1] if exact else count <= planned[where][1]

    def test_every_read_was_charged_before(self, finished: Callable[[str], Finished], way: str):
        assert set(finished(way).opened) == {each.partition for each in prepared(way).plan.lines}

    def test_its_result_has_every_field(self, finished: Callable[[str], Finished], way: str):
        result, path = finished(way).result, finished(way).path
        document = result.document
        assert document == json.loads((path / "release/result.json").read_text())
        assert set(document) >= {
            "schema_version", "task", "dataset", "budget", "price", "price_by_partition", "events",
            "winner", "selection", "strategy", "space", "recipe", "best", "score", "model",
            "estimated_privately",
            "assumed_public", "claims", "alternatives", "auto", "searched_on", "ledger", "two_runs",
            "device", "reproducible", "randomness", "warnings", "versions",
        }  # fmt: skip
        assert document["dataset"]["n"] == sum(document["dataset"]["slots"].values()) == 200
        assert document["strategy"]["name"] == WAYS[way]["strategy"]
        assert document["reproducible"] is False
        assert 0.0 <= result.test_accuracy <= 1.0
        assert result.best == load_result(path).best
        assert result.model(torch.zeros(5, 3)).shape == (5, 2)
        assert ("trials" in document) == (way not in HIDING)
        assert "timings" not in document
        assert ("exact" in document["score"]) == (way == "stw")
        assert result.best.describe() in repr(result)
        told = (
            "unknown (below the noise level)"
            if is_below_noise(document["score"])
            else "test accuracy 0."
        )
        assert told in repr(result)

    def test_release_is_complete_and_private_is_closed(
        self, finished: Callable[[str], Finished], way: str
    ):
        path = finished(way).path
        assert sorted(os.listdir(path / "release")) == FILES
        assert sorted(os.listdir(path)) == ["private", "release"]
        for folder in (path, path / "private"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not (path / "private" / "keys").exists()

    def test_no_time_but_below_private_tells_when_it_ended(
        self, finished: Callable[[str], Finished], way: str
    ):
        assert times(finished(way).path) == {started(finished(way).path)}


def times(path: Path) -> set[int]:
    """Return the times, nanoseconds, of what a run leaves but the files below `private/`."""
    every = (path, path / "private", path / "release", *(path / "release").iterdir())
    return {each.stat().st_mtime_ns for each in every}


def started(path: Path) -> int:
    """Return when a run started, nanoseconds."""
    return json.loads((path / "private" / "run.json").read_text())["started"] * 10**9


@pytest.mark.contract
@pytest.mark.parametrize("way", ["fixed", "rs aside", "mgrs", "paas"])
def test_an_interrupted_run_is_taken_up_and_pays_once(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
):
    run(tmp_path / "whole", way, seed=4)
    with monkeypatch.context() as patch:
        interrupt(patch, at=0 if way == "fixed" else 1)
        with pytest.raises(InterruptedRunError, match="pasearch resume"):
            run(tmp_path / "x", way, seed=4)
    assert not os.listdir(tmp_path / "x" / "release")
    assert spent(tmp_path / "x")
    resume(tmp_path / "x", data=arrays())
    assert spent(tmp_path / "x") == spent(tmp_path / "whole")
    documents = [load_result(tmp_path / name).document for name in ("x", "whole")]
    assert documents[0] == documents[1], "an interruption changes nothing that is released"
    assert times(tmp_path / "x") == {started(tmp_path / "x")}


class TestInputs:
    @pytest.mark.unit
    def test_a_file_arrays_and_a_data_set_are_the_same_data(self, tmp_path: Path):
        x, y = arrays()
        np.savez(tmp_path / "people.npz", x=x, y=y)
        options = {**OPTIONS, "strategy": "fixed", "seed": 7}
        dataset = from_arrays(x, y, bounds=(-3, 3), classes=2)
        accuracies, weights = set(), set()
        for number, data in enumerate(((x, y), tmp_path / "people.npz", dataset)):
            out = tmp_path / str(number)
            result = search_architecture(data, budget=BUDGET, out=out, **options)
            accuracies.add(result.document["score"]["points"])
            weights.add(result.document["model"]["sha256"])
        assert len(accuracies) == len(weights) == 1

    @pytest.mark.unit
    def test_values_that_cannot_be_used_stop_nothing(self, tmp_path: Path, capsys, recwarn):
        x, y = arrays()
        x[3, 1], x[10], y[20], y[21] = np.nan, np.inf, -5, 99
        options = {**OPTIONS, "strategy": "paas", "candidates": 2, "generations": 1}
        result = search_architecture((x, y), budget=BUDGET, out=tmp_path / "x", **options)
        assert result.document["dataset"]["n"] == 200
        assert result.price == search_architecture(
            arrays(), budget=BUDGET, out=tmp_path / "y", **options
        ).price  # fmt: skip
        assert capsys.readouterr() == ("", "")
        assert not list(recwarn)

    @pytest.mark.unit
    def test_data_of_nothing_but_null_records_runs(self, tmp_path: Path):
        x, y = arrays()
        options = {**OPTIONS, "strategy": "rs", "candidates": 2}
        result = search_architecture((x * np.nan, y), budget=BUDGET, out=tmp_path / "x", **options)
        assert np.isfinite(result.test_accuracy)

    @pytest.mark.unit
    @pytest.mark.parametrize("regression", [False, True])
    def test_a_null_record_counts_as_an_error_of_the_test(self, tmp_path: Path, regression: bool):
        """Any other divisor than the slots would be a count of records, which is private."""
        x, y = arrays()
        options = {**OPTIONS, "strategy": "fixed", "data_is_public": True, "regression": regression}
        options["seed"] = 1
        if regression:
            options |= {"classes": None, "assume_public_schema": True, "learning_rate": 0.01}
        found = []
        for share in (0.0, 0.9):
            null = np.arange(len(x)) < share * len(x)
            data = np.where(null[:, None], np.nan, x), y.astype(float) if regression else y
            out = tmp_path / str(share)
            score = search_architecture(data, budget=BUDGET, out=out, **options).document["score"]
            assert score["of"] == prepared("fixed").plan.split.test
            found.append(1.0 - score["exact"] if regression else score["exact"])
        assert found[0] > 0.3
        assert found[1] < 0.3

    @pytest.mark.unit
    def test_numbers_of_numpy_are_numbers(self, tmp_path: Path):
        options = {**OPTIONS, "strategy": "fixed", "steps": np.int64(4), "seed": np.int64(7)}
        options["bounds"] = (np.float32(-3), np.float64(3))
        result = search_architecture(arrays(), budget=BUDGET, out=tmp_path / "x", **options)
        plain = run(tmp_path / "y", "fixed", seed=7)
        assert result.document["model"] == plain.document["model"]


class TestFolders:
    @pytest.mark.unit
    def test_an_existing_folder_is_refused_untouched(self, tmp_path: Path):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "mine").write_text("mine")
        with pytest.raises(UsageError, match="exists"):
            run(tmp_path / "x", "fixed")
        assert os.listdir(tmp_path / "x") == ["mine"]

    @pytest.mark.unit
    def test_runs_are_numbered(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        paths = [api.run(prepared("fixed"), out=None, progress=None).path for _ in range(2)]
        assert [path.name for path in paths] == ["arrays-1", "arrays-2"]
        assert [path.parent for path in paths] == [tmp_path / "runs"] * 2


class TestResume:
    @pytest.fixture
    def stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        with monkeypatch.context() as patch:
            interrupt(patch, at=1)
            with pytest.raises(InterruptedRunError):
                run(tmp_path / "x", "paas", seed=4)
        assert (tmp_path / "x" / "private" / "keys").exists()
        return tmp_path / "x"

    @pytest.mark.contract
    def test_another_number_of_records_is_refused_and_the_keys_stay(self, stopped: Path):
        x, y = arrays()
        before = (stopped / "private" / "keys").read_bytes()
        with pytest.raises(UsageError, match="the plan differs"):
            resume(stopped, data=(x[:199], y[:199]))
        assert (stopped / "private" / "keys").read_bytes() == before
        assert resume(stopped, data=(x, y)).document["trials"]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "change",
        [
            lambda x, y: (np.where(x == x[17, 1], x + 1e-9, x), y),
            lambda x, y: (x, np.where(np.arange(200) == 5, 1 - y, y)),
            lambda x, y: (x[::-1], y[::-1]),
        ],
        ids=["a digit", "a label", "order"],
    )
    def test_changed_data_destroys_the_keys(self, stopped: Path, change: Callable):
        before = spent(stopped)
        with pytest.raises(BudgetError, match=r"when the run began: the data.*destroyed"):
            resume(stopped, data=change(*arrays()))
        assert not (stopped / "private" / "keys").exists()
        assert spent(stopped) == before
        with pytest.raises(UsageError, match="its keys are missing"):
            resume(stopped, data=arrays())
        assert spent(stopped) == before
        assert not os.listdir(stopped / "release")

    @pytest.mark.unit
    def test_changed_code_destroys_the_keys(self, stopped: Path, tmp_path: Path, monkeypatch):
        (tmp_path / "other.py").write_text("")
        monkeypatch.setattr(binding, "extension_files", lambda: [tmp_path / "other.py"])
        with pytest.raises(BudgetError, match="code"):
            resume(stopped, data=arrays())
        assert not (stopped / "private" / "keys").exists()

    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("place", "name", "changed", "told"),
        [
            (torch, "get_num_threads", lambda: 17, "threads was .*, and is 17 .OMP_NUM_THREADS"),
            (
                binding,
                "list_versions",
                lambda: {**list_versions(), "torch": "0"},
                "torch was .*, and is 0;?",
            ),
            (
                binding,
                "read_compiler_environment",
                lambda: {"NUMBA_DISABLE_JIT": "1"},
                "NUMBA_DISABLE_JIT was not set, and is 1",
            ),
            (binding, "describe_processor", lambda: ["another"], "processor differs"),
            (binding, "list_blas_libraries", lambda: ["another"], "libraries that multiply"),
        ],
    )
    def test_what_surrounds_a_run_is_set_back_and_then_it_is_finished(
        self, stopped: Path, place: Any, name: str, changed: Any, told: str, monkeypatch
    ):
        before = spent(stopped), (stopped / "private" / "keys").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, changed)
            with pytest.raises(UsageError, match=told) as refused:
                resume(stopped, data=arrays())
        assert "nothing is lost" in str(refused.value)
        assert before == (spent(stopped), (stopped / "private" / "keys").read_bytes())
        assert resume(stopped, data=arrays()).price == prepared("paas").plan.price

    @pytest.mark.contract
    def test_a_run_of_another_version_is_refused_and_the_version_is_named(self, stopped: Path):
        kept, keys = (stopped / "private" / name for name in ("surroundings.json", "keys"))
        content, before = kept.read_text(), keys.read_bytes()
        noted = json.loads(content)
        noted["versions"]["pasearch"] = "0.1.0"
        kept.write_text(json.dumps(noted))
        with pytest.raises(UsageError, match=r"pasearch was 0\.1\.0, and is "):
            resume(stopped, data=arrays())
        assert keys.read_bytes() == before
        kept.write_text(content)
        assert resume(stopped, data=arrays()).price == prepared("paas").plan.price

    @pytest.mark.contract
    @pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
    def test_without_a_note_of_them_the_keys_decide(
        self, stopped: Path, content: str | None, monkeypatch
    ):
        kept = stopped / "private" / "surroundings.json"
        kept.unlink()
        if content is not None:
            kept.write_text(content)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
        with pytest.raises(BudgetError, match="destroyed"):
            resume(stopped, data=arrays())
        assert not (stopped / "private" / "keys").exists()

    @pytest.mark.unit
    def test_arrays_must_be_passed_again(self, stopped: Path):
        with pytest.raises(UsageError, match="pass the same records"):
            resume(stopped)
        assert resume(stopped, data=arrays()).price == prepared("paas").plan.price

    @pytest.mark.unit
    def test_a_finished_run_has_nothing_to_resume(self, stopped: Path):
        resume(stopped, data=arrays())
        before = (stopped / "release" / "result.json").read_bytes()
        with pytest.raises(UsageError, match="finished"):
            resume(stopped, data=arrays())
        assert (stopped / "release" / "result.json").read_bytes() == before

    @pytest.mark.unit
    def test_keys_left_by_a_kill_after_publishing_are_destroyed(self, tmp_path: Path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(Keys, "destroy", lambda keys: None)
            run(tmp_path / "x", "fixed")
        assert (tmp_path / "x" / "private" / "keys").exists()
        with pytest.raises(UsageError, match="finished"):
            resume(tmp_path / "x", data=arrays())
        assert not (tmp_path / "x" / "private" / "keys").exists()
        assert times(tmp_path / "x") == {started(tmp_path / "x")}

    @pytest.mark.unit
    def test_a_run_stopped_before_its_keys_begins_with_the_same_plan_only(
        self, tmp_path: Path, monkeypatch
    ):
        def stop(*arguments, **more):
            raise KeyboardInterrupt

        for name in ("x", "y"):
            with monkeypatch.context() as patch:
                patch.setattr(running, "compute_fingerprint", stop)
                with pytest.raises(InterruptedRunError):
                    run(tmp_path / name, "fixed")
        x, y = arrays()
        with pytest.raises(UsageError, match="another plan"):
            resume(tmp_path / "x", data=(x[:150], y[:150]))
        assert not spent(tmp_path / "x")
        assert resume(tmp_path / "y", data=arrays()).price == prepared("fixed").plan.price

    @pytest.mark.unit
    @pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"bounds": null}', "null"])
    def test_a_run_that_had_not_begun(self, tmp_path: Path, content: str | None):
        folder = RunFolder.create(tmp_path / "x", "test")
        if content is not None:
            folder.atomic_write("request.json", content)
        with pytest.raises(UsageError, match="before it began"):
            resume(tmp_path / "x", data=arrays())

    @pytest.mark.unit
    def test_a_run_in_use_is_not_taken_up(self, stopped: Path):
        with Ledger.open(stopped / "private" / "ledger.sqlite"), pytest.raises(
            UsageError, match="in use"
        ):  # fmt: skip
            resume(stopped, data=arrays())


class TestSeed:
    @pytest.mark.unit
    def test_two_runs_differ_without_one_and_are_equal_with_it(self, tmp_path: Path):
        free = [run(tmp_path / f"free{i}", "fixed").document["model"]["sha256"] for i in (0, 1)]
        kept = [
            run(tmp_path / f"kept{i}", "fixed", seed=1).document["model"]["sha256"] for i in (0, 1)
        ]
        assert free[0] != free[1]
        assert kept[0] == kept[1]

    @pytest.mark.unit
    def test_global_generators_are_left_alone(self, tmp_path: Path):
        import random

        states = random.getstate(), torch.random.get_rng_state()
        run(tmp_path / "x", "paas", seed=1)
        assert random.getstate() == states[0]
        assert torch.equal(torch.random.get_rng_state(), states[1])


def shape(value: Any) -> Any:
    """Return the form of a JSON document: its keys and the types below them."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return type(value).__name__


class TestHiddenNumber:
    """Under repeat-and-select nothing outside `private/` tells the number of trainings."""

    @pytest.mark.unit
    @pytest.mark.parametrize("way", HIDING)
    def test_few_and_many_trainings_leave_the_same_kind_of_release(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys
    ):
        documents, trials = [], []
        for count in (1, 12):
            with monkeypatch.context() as patch:
                patch.setattr(randomized, "draw_count", lambda law, stream, count=count: count)
                path = tmp_path / str(count)
                result = run(path, way)
            trials.append(len(list((path / "private" / "trials").glob("[0-9]*.pt"))))
            documents.append(result.document)
            assert sorted(os.listdir(path / "release")) == FILES
            assert result.trials == ()
            assert times(path) == {started(path)}
        assert trials[1] >= 12 * trials[0]
        # Only the winner may differ: its layers, what was measured of it, and what follows from
        # these and the plan alone (`verify` makes the forecast again).
        apart = ("best", "crossover")
        first, second = ({k: v for k, v in d.items() if k not in apart} for d in documents)
        assert shape(first) == shape(second)
        # The digests in `files` differ with the winner's weights and layers.
        for key in set(first) - {"score", "model", "recipe", "files"}:
            assert first[key] == second[key]
        assert capsys.readouterr() == ("", "")

    @pytest.mark.unit
    def test_the_sizes_of_the_files_tell_the_winner_only(self, tmp_path: Path, monkeypatch):
        space = {"name": "one", "choices": {"units_1": [3]}}
        plan = api.prepare(
            arrays(), budget=BUDGET, **{**OPTIONS, "space": space, **WAYS["rs"]}
        )  # fmt: skip
        sizes = []
        for count in (1, 15):
            monkeypatch.setattr(randomized, "draw_count", lambda law, stream, count=count: count)
            path = tmp_path / str(count)
            api.run(plan, out=path, progress=None)
            sizes.append((path / "release" / "model.pt").stat().st_size)
        assert sizes[0] == sizes[1]


class TestAlteredRuns:
    """What is in `private/` belongs together: keys, ledger and trials of one run."""

    @pytest.fixture
    def stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        with monkeypatch.context() as patched:
            interrupt(patched, at=1)
            with pytest.raises(InterruptedRunError):
                run(tmp_path / "x", "paas", seed=5)  # two of its first three differ
        return tmp_path / "x"

    @pytest.mark.parametrize("gone", [["keys"], ["ledger.sqlite"], ["keys", "ledger.sqlite"]])
    def test_without_its_keys_or_ledger_a_run_is_refused(self, stopped: Path, gone: list[str]):
        for name in gone:
            (stopped / "private" / name).unlink()
        with pytest.raises(UsageError, match="are missing"):
            resume(stopped, data=arrays())

    @pytest.mark.parametrize(
        "edit", [{"seed": 6}, {"split": "0.8,0.1,0.1"}, {"ledger": "other.sqlite"}]
    )
    def test_another_request_is_refused(self, stopped: Path, edit: dict[str, Any]):
        """Even one with the same plan: a split of the same sizes can deal slots otherwise."""
        path = stopped / "private" / "request.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
        with pytest.raises((BudgetError, UsageError)):
            resume(stopped, data=arrays())
        assert not (stopped / "release" / "result.json").exists()

    def test_plans_with_the_same_sizes_and_another_tail_differ(self):
        rng = np.random.default_rng(0)
        data = from_arrays(
            rng.normal(size=(1000, 4)), rng.integers(2, size=1000), bounds=(-3.0, 3.0), classes=2
        )
        data = replace(data, official_test=100)
        given = {**{k: v for k, v in OPTIONS.items() if k not in ("bounds", "classes")},
                 **WAYS["paas"]}  # fmt: skip
        drawn, official = (
            api.prepare(data, budget=BUDGET, **{**given, "split": split}).plan
            for split in ("0.81,0.09,0.1", None)
        )
        assert drawn.split.sizes() == official.split.sizes()
        assert drawn.to_json() != official.to_json()

    def test_a_schema_that_nothing_here_has_paid_for_is_refused(self, stopped: Path):
        """With new keys the slots that it was estimated privately from would be trained on."""
        for name in ("keys", "ledger.sqlite", "trials.sqlite"):
            (stopped / "private" / name).unlink(missing_ok=True)
        shutil.rmtree(stopped / "private" / "trials", ignore_errors=True)
        (stopped / "private" / "schema.json").write_text("{}")
        with pytest.raises(UsageError, match="are missing"):
            resume(stopped, data=arrays())

    def test_trials_of_other_keys_are_refused(self, stopped: Path):
        """Under other keys the slots are split otherwise: a record may be trained and scored on."""
        folder = RunFolder.open(stopped)
        (folder.private / "keys").unlink()
        with Ledger.open(folder.private / "ledger.sqlite"):
            pass
        made, asked = prepared("paas"), (folder.private / "request.json").read_bytes()
        mark, _ = compute_fingerprint(made.dataset, made.plan, "cpu", None, None, request=asked)
        Keys().save(folder.private / "keys", mark)
        with pytest.raises(UsageError, match="trials with keys of another run"):
            resume(stopped, data=arrays())

    def test_trials_without_a_charge_are_refused(self, stopped: Path):
        folder = RunFolder.open(stopped)
        (folder.private / "ledger.sqlite").unlink()
        Ledger.create(folder.private / "ledger.sqlite", prepared("paas").plan.lines).close()
        with pytest.raises(UsageError, match="without a charge"):
            resume(stopped, data=arrays())

    def test_a_refused_resume_shows_nothing_that_depends_on_the_records(self, stopped: Path):
        x, y = arrays()
        y[0] = 1 - y[0]
        shown = (stopped / "private" / "keys").read_text()
        with pytest.raises(BudgetError) as refused:
            resume(stopped, data=(x, y))
        for dataset in (arrays(), (x, y)):
            made = from_arrays(*dataset, bounds=(-3.0, 3.0), classes=2)
            whole, parts = compute_fingerprint(made, prepared("paas").plan, "cpu")
            for mark in (whole, *parts.values()):
                for length in range(6, len(mark)):
                    assert mark[:length] not in str(refused.value)
                assert mark not in shown


@pytest.mark.parametrize("public", ["no", 1, 0, None, np.bool_(True)])
def test_public_is_true_or_false_and_nothing_else(public):
    with pytest.raises(UsageError, match="data_is_public"):
        api.prepare(arrays(), budget=BUDGET, **{**OPTIONS, "data_is_public": public})


def test_the_help_of_split_is_what_the_default_plans_do():
    (told,) = [each.metadata for each in fields(SearchRequest) if each.name == "split"]
    compared, alone = re.findall(r"\d[\d.]*,\d[\d.]*,\d[\d.]*", str(told))
    for way, said in (("paas", compared), ("fixed", alone)):
        split = prepared(way).plan.split
        sizes = split.train, split.validation, split.test
        assert [size / split.n for size in sizes] == [float(each) for each in said.split(",")]


def test_every_name_of_the_package_is_there():
    import pasearch

    assert all(getattr(pasearch, name) is not None for name in pasearch.__all__)
    with pytest.raises(AttributeError):
        pasearch.nothing  # noqa: B018


class TestUndeclared:
    """What is not declared is estimated, with the budget, and is part of what is released."""

    @pytest.fixture
    def bare(self) -> dict[str, Any]:
        return {**OPTIONS, "bounds": None, "classes": None}

    @pytest.mark.contract
    @pytest.mark.parametrize("way", ["fixed", "rs aside", "paas"])
    def test_a_run_buys_it_and_says_so(self, tmp_path: Path, bare: dict, way: str):
        result = search_architecture(
            arrays(), budget=BUDGET, out=tmp_path / "x", **{**bare, **WAYS[way]}
        )
        document = result.document
        assert document["price"]["epsilon"] <= 3.0
        (line,) = (each for each in document["events"] if each["name"] == "schema")
        assert (line["count"], line["partition"]) == (
            1, "test" if way == "fixed" else "validation",
        )  # fmt: skip
        assert spent(tmp_path / "x")["schema", line["partition"]][1] == 1
        assert spent(tmp_path / "x")["classes", "train"][1] == 1
        schema = document["dataset"]["schema"]
        assert schema["low"] < schema["high"]
        assert schema["classes"] >= 2
        assert document["estimated_privately"] == result.schema.describe_items()
        for item in document["estimated_privately"]:
            assert item in result.card
        assert verify(tmp_path / "x")[1] == []
        assert result.predict(arrays()[0]).shape == (200,)


class TestSharedLedger:
    """--ledger: all runs on the same data together, and one too many is refused."""

    def started(self, path: Path | None, ledger: Path, **options: Any) -> SearchResult:
        settings = {**OPTIONS, "ledger": ledger, **options}
        return search_architecture(arrays(), budget=Budget(1.0), out=path, **settings)

    @pytest.mark.contract
    def test_a_run_too_many_is_refused_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        ledger = tmp_path / "people.ledger"
        for name in ("one", "two"):
            result = self.started(tmp_path / name, ledger, ledger_budget=(3.0, 1e-3))
            assert result.document["ledger"] == {"epsilon": 3.0, "delta": 1e-3}
            assert "at most epsilon 3 at delta 0.001 in total" in result.card
        spent = SharedLedger.open(ledger).spent()
        monkeypatch.setattr(Partition, "open", lambda *arguments: pytest.fail("read"))
        with pytest.raises(BudgetError, match="does not fit"):
            self.started(tmp_path / "three", ledger)
        assert not (tmp_path / "three").exists()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(BudgetError, match="does not fit"):
            self.started(None, ledger)
        assert not (tmp_path / "runs").exists()
        assert len(SharedLedger.open(ledger).runs()) == 2
        assert SharedLedger.open(ledger).spent() == spent

    @pytest.mark.contract
    def test_a_resumed_run_reserves_nothing_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        ledger = tmp_path / "people.ledger"
        with monkeypatch.context() as patch:
            interrupt(patch, at=0)
            with pytest.raises(InterruptedRunError):
                self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))
        spent = SharedLedger.open(ledger).spent()
        assert spent.epsilon > 0.9
        resume(tmp_path / "x", data=arrays())
        assert len(SharedLedger.open(ledger).runs()) == 1
        assert SharedLedger.open(ledger).spent() == spent

    @pytest.mark.contract
    @pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(2, "No such file"), UsageError])
    def test_a_run_whose_folder_was_deleted_stays_charged_and_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any
    ):
        ledger = tmp_path / "people.ledger"

        def delete(*arguments, **options):
            shutil.rmtree(tmp_path / "x")
            raise error

        monkeypatch.setattr(engine, "train_candidate", delete)
        with pytest.raises(MachineError) as told:
            self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))
        assert "deleted or moved" in str(told.value)
        assert "run stays charged" in str(told.value)
        assert "charged in addition" in str(told.value)
        assert "Nothing was read" not in str(told.value)
        assert len(SharedLedger.open(ledger).runs()) == 1
        assert not (tmp_path / "x").exists()

    @pytest.mark.contract
    def test_a_run_whose_folder_was_moved_goes_on_when_it_is_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def move(*arguments, **options):
            os.rename(tmp_path / "x", tmp_path / "elsewhere")
            raise KeyboardInterrupt

        ledger = tmp_path / "people.ledger"
        with monkeypatch.context() as patch:
            patch.setattr(engine, "train_candidate", move)
            with pytest.raises(MachineError, match="move it back"):
                self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))
        os.rename(tmp_path / "elsewhere", tmp_path / "x")
        resume(tmp_path / "x", data=arrays())
        assert len(SharedLedger.open(ledger).runs()) == 1

    @pytest.mark.contract
    @pytest.mark.parametrize("seed", [None, 1])
    @pytest.mark.parametrize("others", [False, True])
    @pytest.mark.parametrize("anew", [False, True])
    def test_a_run_whose_shared_ledger_is_lost_is_not_resumed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool, anew: bool,
        seed: int | None,
    ):  # fmt: skip
        ledger, total = tmp_path / "people.ledger", (5.0, 1e-3)
        if others:
            self.started(tmp_path / "other", ledger, ledger_budget=total)
        with monkeypatch.context() as patch:
            interrupt(patch, at=0)
            with pytest.raises(InterruptedRunError):
                self.started(tmp_path / "x", ledger, ledger_budget=total, seed=seed)
        saved = ledger.read_bytes()
        ledger.unlink()
        if anew:
            self.started(tmp_path / "new", ledger, ledger_budget=total)
        before = ledger.read_bytes() if anew else None
        with pytest.raises(BudgetError, match=r"shared ledger.*Restore its newest copy"):
            resume(tmp_path / "x", data=arrays())
        assert (ledger.read_bytes() if ledger.exists() else None) == before
        ledger.write_bytes(saved)
        resume(tmp_path / "x", data=arrays())
        assert len(SharedLedger.open(ledger).runs()) == 1 + others

    @pytest.mark.contract
    def test_a_ledger_that_is_lost_before_the_run_is_in_it_is_not_made_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Where none was there, the run had not begun, and makes it."""
        for name, there in (("one", True), ("two", False)):
            ledger = tmp_path / f"{name}.ledger"
            if there:
                self.started(tmp_path / "other", ledger, ledger_budget=(5.0, 1e-3))
            with monkeypatch.context() as patch:
                patch.setattr(SharedLedger, "begin", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(InterruptedRunError):
                    self.started(tmp_path / name, ledger, ledger_budget=(5.0, 1e-3))
            ledger.unlink(missing_ok=True)
            if there:
                with pytest.raises(BudgetError, match="is gone"):
                    resume(tmp_path / name, data=arrays())
            else:
                resume(tmp_path / name, data=arrays())
            assert ledger.exists() is not there

    @pytest.mark.contract
    def test_a_ledger_that_is_lost_while_a_run_goes_on_is_to_be_put_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        ledger, genuine, kept = tmp_path / "people.ledger", engine.train_candidate, []

        def lose(*arguments, **options):
            kept.append(ledger.read_bytes())
            ledger.unlink()
            return genuine(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "train_candidate", lose)
            with pytest.raises(BudgetError, match="Restore its newest copy"):
                self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))
        ledger.write_bytes(kept[0])
        assert resume(tmp_path / "x", data=arrays()).document["ledger"]["epsilon"] == 3.0

    @pytest.mark.contract
    def test_a_run_that_is_refused_when_it_is_reserved_can_be_resumed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        ledger = tmp_path / "people.ledger"
        with monkeypatch.context() as patch:
            patch.setattr(Dataset, "check_disk_space", Mock(side_effect=UsageError("no room")))
            with pytest.raises(UsageError, match="no room"):
                self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))
        resume(tmp_path / "x", data=arrays())
        assert len(SharedLedger.open(ledger).runs()) == 1

    @pytest.mark.contract
    def test_is_reserved_before_a_record_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        ledger, genuine = tmp_path / "people.ledger", Partition.open

        def opening(partition: Partition, receipt: Receipt):
            assert len(SharedLedger.open(ledger).runs()) == 1
            return genuine(partition, receipt)

        monkeypatch.setattr(Partition, "open", opening)
        self.started(tmp_path / "x", ledger, ledger_budget=(3.0, 1e-3))

    @pytest.mark.unit
    def test_a_new_one_needs_a_total(self, tmp_path: Path):
        with pytest.raises(UsageError, match="ledger_budget=") as refused:
            self.started(tmp_path / "x", tmp_path / "new")
        assert refused.value.fields == ("ledger_budget",)
        assert not os.listdir(tmp_path)

    @pytest.mark.unit
    def test_public_data_need_none(self, tmp_path: Path):
        result = self.started(tmp_path / "x", tmp_path / "new", data_is_public=True)
        assert result.document["ledger"] is None
        assert not (tmp_path / "new").exists()


class TestPublicData:
    """Curves, exact scores and a comparison with `fixed`: of declared-public data only."""

    @pytest.mark.contract
    @pytest.mark.parametrize("way", ["rs", "paas", "stw"])
    def test_has_curves_and_is_compared(self, tmp_path: Path, way: str):
        document = run(tmp_path / "x", way, data_is_public=True).document
        names = [each["name"] for each in document["curves"]]
        assert names == ["released network", "fixed"]
        for curve in document["curves"]:
            assert curve["steps"] == [1, 2, 3, 4]
            assert len(curve["accuracy"]) == 4
            assert all(0.0 <= each <= 1.0 for each in curve["accuracy"])
        this, fixed = document["compared"]["this"], document["compared"]["fixed"]
        assert this == {"name": WAYS[way]["strategy"], **document["score"]}
        assert fixed["name"] == "fixed"
        assert 0.0 <= fixed["exact"] <= 1.0
        assert sorted(os.listdir(tmp_path / "x" / "release")) == FILES

    @pytest.mark.contract
    @pytest.mark.parametrize("way", ["fixed", "rs", "rs aside", "paas"])
    def test_private_data_have_nothing_of_it(self, finished: Callable[[str], Finished], way: str):
        document = finished(way).result.document
        assert not {"curves", "compared"} & set(document)
        assert not (finished(way).path / "private" / "fixed").exists()
        for file in ("result.json", "report.html"):
            text = (finished(way).path / "release" / file).read_text()
            for word in ('"curves"', '"compared"', '"exact"', "exact score"):
                assert word not in text.lower()

    @pytest.mark.unit
    def test_fixed_is_not_compared_with_itself(self, tmp_path: Path):
        document = run(tmp_path / "x", "fixed", data_is_public=True).document
        assert [each["name"] for each in document["curves"]] == ["released network"]
        assert "compared" not in document

    @pytest.mark.unit
    @pytest.mark.parametrize("way", ["paas", "stw"])
    def test_interrupted_while_it_compares_it_is_finished(
        self, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
    ):
        whole = run(tmp_path / "whole", way, data_is_public=True, seed=4)
        genuine = api.measure_public_run

        def stop(*arguments: Any) -> dict:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(api, "measure_public_run", stop)
            with pytest.raises(InterruptedRunError):
                run(tmp_path / "x", way, data_is_public=True, seed=4)
        assert api.measure_public_run is genuine
        assert resume(tmp_path / "x", data=arrays()).document == whole.document


@pytest.mark.contract
def test_an_area_that_so_few_test_records_cannot_tell_has_the_largest_error(tmp_path: Path):
    x = np.random.default_rng(0).random((60, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.where(x[:, 0] > 0.5, "p", "q")})
    result = search_architecture(
        frame, target="y", metric="auc", labels=["p", "q"], budget=Budget(8.0, 1e-3), seed=0,
        out=tmp_path / "x", device="cpu", force=True,
    )  # fmt: skip
    low, high = score_interval(result.document["score"])
    assert (low, high) == (pytest.approx(0.0, abs=0.2), pytest.approx(1.0, abs=0.2))


class TestRegression:
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        x, _ = arrays()
        y = 100.0 + 20.0 * x[:, 0]
        x[3, 1], x[5], y[7], y[8], y[9] = np.nan, np.inf, np.nan, np.inf, 1e300
        return x, y

    @pytest.mark.contract
    def test_a_test_of_numbers_has_its_median_baseline(self, tmp_path: Path):
        x = np.random.default_rng(0).random((6000, 3), np.float32)
        result = search_architecture(
            (x, 0.25 + x[:, 0] / 2), budget=Budget(3.0), out=tmp_path / "x", regression=True,
            bounds=(0.0, 1.0), strategy="fixed", steps=30, device="cpu",
        )  # fmt: skip
        score, told = result.document["score"], result.metrics
        assert score["columns"] == "error"
        assert score["test"] == pytest.approx(told["mean_absolute_error"]["value"], abs=1e-3)
        assert told["median"]["value"] == pytest.approx(0.125, abs=0.06)
        assert score["noise"]["standard_deviation"] <= 0.02, "it follows the noisy counts"
        assert verify(tmp_path / "x")[1] == []

    @pytest.mark.contract
    @pytest.mark.parametrize("strategy", ["fixed", "paas"])
    def test_predicts_numbers_in_their_own_units(self, tmp_path: Path, strategy: str, capsys):
        options = {**OPTIONS, "classes": None, "strategy": strategy}
        if strategy == "paas":
            options |= {"candidates": 2, "generations": 1}
        result = search_architecture(
            self.numbers(), budget=Budget(6.0), out=tmp_path / "x", regression=True, **options
        )
        score = result.document["score"]
        assert score["metric"] == "mean absolute error"
        assert 0.0 <= result.test_error <= 1.0
        assert score["test"] == pytest.approx(
            1 - min(1, max(0, score["points"] / (100 * score["of"])))
        )
        with pytest.raises(UsageError, match="mean absolute error"):
            _ = result.test_accuracy
        low, high = result.schema.target
        predicted = result.predict(arrays(3)[0][:9])
        assert predicted.shape == (9,)
        assert np.isfinite(predicted).all()
        scaled = result.model(torch.from_numpy(arrays(3)[0][:9]))
        assert scaled.shape == (9, 1)
        assert predicted == pytest.approx(
            low + scaled.detach().numpy()[:, 0].clip(0, 1) * (high - low), rel=1e-4
        )
        assert verify(tmp_path / "x")[1] == []
        assert capsys.readouterr() == ("", "")
        assert "test mean absolute error" in repr(result)

    @pytest.mark.unit
    def test_has_no_classes(self, tmp_path: Path):
        with pytest.raises(UsageError, match="remove `classes=`"):
            api.prepare(self.numbers(), budget=BUDGET, **{**OPTIONS, "regression": True})


RARE = "7070707070"  # of one record alone, and no run of digits that a file has by chance


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three columns and a class; ragged rows, empty cells, no numbers, and one rare value."""
    generator = np.random.default_rng(1)
    lines = ["age,city,note,income"]
    for row in range(240):
        age, city = int(generator.integers(18, 90)), ("Rome", "Oslo", "Lima")[row % 3]
        lines.append(f"{age},{city},n{row % 2},{'high' if age > 50 else 'low'}")
    lines[5], lines[9] = "12,Rome", "13,Rome,n0,low,low,low"
    lines[11], lines[12], lines[13] = "nan,Rome,n0,low", ",?,,", "inf,1e999,n1,high"
    lines[14] = ",".join(f"{cell}-{RARE}" for cell in ("unheard-of", "Atlantis", "note", "caste"))
    path = tmp_path / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


TABLES: dict[str, Any] = {"space": "tables", "steps": 5, "batch": 20, "device": "cpu"}


class TestTables:
    KNOWN = """target = "income"
[columns.age]
low = 18
high = 90
[columns.city]
categories = ["Rome", "Oslo", "Lima"]
[columns.note]
kind = "ignore"
[columns.income]
categories = ["low", "high"]
"""

    @pytest.mark.contract
    @pytest.mark.parametrize("strategy", ["fixed", "rs"])
    def test_an_undeclared_one_is_estimated_and_values_stop_and_show_nothing(
        self, tmp_path: Path, table: Path, strategy: str, capsys, recwarn
    ):
        import pandas as pd

        more = {"candidates": 2} if strategy == "rs" else {}
        result = search_architecture(
            table, budget=Budget(8.0), out=tmp_path / "x", strategy=strategy, **more,
            **TABLES,
        )  # fmt: skip
        document = result.document
        (line,) = (each for each in document["events"] if each["name"] == "schema")
        assert line["count"] == 3
        assert [each["name"] for each in document["events"]].count("classes") == 1
        assert document["dataset"]["n"] == 240
        assert len(document["estimated_privately"]) == 4
        assert document["dataset"]["schema"]["kind"] == "table"
        assert document["price"]["epsilon"] <= 8.0
        assert verify(tmp_path / "x")[1] == []
        rare = pd.DataFrame(
            {
                "income": ["?"],
                "city": [f"Atlantis-{RARE}"],
                "note": [None],
                "age": ["old"],
                "more": [1],
            }
        )
        assert result.predict(rare).shape == (1,)
        assert capsys.readouterr() == ("", "")
        assert not list(recwarn)
        for file in (tmp_path / "x" / "release").iterdir():
            assert RARE.encode() not in file.read_bytes()

    @pytest.mark.unit
    def test_a_resume_finds_file_and_schema_from_elsewhere(
        self, tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
    ):
        (tmp_path / "s.toml").write_text(self.KNOWN)
        monkeypatch.chdir(tmp_path)
        with monkeypatch.context() as patch:
            interrupt(patch, at=0)
            with pytest.raises(InterruptedRunError):
                search_architecture(
                    "people.csv", budget=BUDGET, out="x", schema="s.toml", strategy="fixed",
                    **TABLES,
                )  # fmt: skip
        (tmp_path / "s.toml").write_text(self.KNOWN.replace("90", "91", 1))
        with pytest.raises(UsageError, match="the plan differs"):
            resume("x")
        (tmp_path / "s.toml").write_text(self.KNOWN)
        (tmp_path / "there").mkdir()
        monkeypatch.chdir(tmp_path / "there")
        assert set(resume("../x").predict([[20, "Rome", None]])) <= {"low", "high"}


class TestImages:
    @pytest.mark.contract
    @pytest.mark.parametrize("grey", [True, False])
    def test_a_folder_of_images_from_end_to_end(self, tmp_path: Path, grey: bool, capsys):
        generator = np.random.default_rng(0)
        root = tmp_path / "shapes"
        for name, bright in (("dark", 60), ("light", 200)):
            (root / name).mkdir(parents=True)
            for number in range(30):
                side = 8 + number % 3
                pixels = generator.integers(bright - 50, bright + 50, size=(side, side, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")
        (root / "dark" / "broken-77.png").write_bytes(b"no image")
        (root / "light" / "empty-77.png").write_bytes(b"")
        (root / "light" / "notes.txt").write_text("left alone")
        result = search_architecture(
            root, budget=Budget(8.0), out=tmp_path / "x", strategy="fixed", image_side=8,
            grey=grey, space={"choices": {"front_end": ["max_pool:2"], "units_1": [4]}}, steps=5,
            batch=20, device="cpu",
        )  # fmt: skip
        document = result.document
        assert document["dataset"]["n"] == 62
        shape = [8, 8] if grey else [3, 8, 8]
        assert document["dataset"]["schema"]["shape"] == shape
        assert document["best"]["front_end"] == "max_pool:2"
        assert [line["name"] for line in document["events"]] == ["training", "test accuracy"]
        new = generator.integers(0, 255, size=(5, *shape)).astype(np.uint8)
        assert set(result.predict(new)) <= {"dark", "light"}
        assert capsys.readouterr() == ("", "")
        for file in (tmp_path / "x" / "release").iterdir():
            assert RARE.encode() not in file.read_bytes()


class TestAuto:
    @pytest.mark.contract
    def test_the_defaults_run_from_end_to_end(self, tmp_path: Path):
        result = search_architecture(
            arrays(), budget=BUDGET, out=tmp_path / "x", steps=5, batch=20, device="cpu"
        )
        document = result.document
        assert set(document["auto"]) == {"chosen", "why", "expected"}
        assert document["auto"]["chosen"].startswith(document["strategy"]["name"])
        assert document["space"]["family"] == "portfolio"
        assert result.best.to_json() in document["space"]["entries"]
        assert verify(tmp_path / "x")[1] == []


@pytest.mark.unit
def test_the_cache_is_private_and_gone_unless_it_was_asked_for(tmp_path: Path):
    x = np.random.default_rng(0).integers(0, 255, size=(60, 16, 16)).astype(np.uint8)
    options = {
        "strategy": "fixed", "steps": 2, "batch": 20, "device": "cpu", "classes": 2,
        "space": {"choices": {"front_end": ["scattering"], "layers": [0]}},
    }  # fmt: skip
    data = x, np.arange(60) % 2
    search_architecture(data, budget=BUDGET, out=tmp_path / "x", **options)
    assert not (tmp_path / "x" / "private" / "cache").exists()
    kept = tmp_path / "kept"
    search_architecture(data, budget=BUDGET, out=tmp_path / "y", cache=kept, **options)
    files = [each for each in kept.rglob("*") if each.is_file()]
    assert files
    for each in files:
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
        assert stat.S_IMODE(each.parent.stat().st_mode) == 0o700


@pytest.mark.unit
@pytest.mark.parametrize("given", [{"age": [31337]}, ("31337",), [[31337.0]], 31337])
def test_data_of_another_kind_are_refused_without_being_shown(given: Any):
    with pytest.raises(UsageError, match="expected a name, a path, a pandas frame") as refused:
        api.prepare(given, budget=Budget(1.0))
    assert "31337" not in str(refused.value)


@pytest.mark.unit
def test_a_tiny_budget_of_many_trainings_has_no_claim_to_show():
    plan = api.prepare("digits", budget=Budget(0.01), strategy="paas", space="fcn").plan
    assert plan.price.epsilon <= 0.01
