"""Who trains: one by one, side by side or on a cluster; in order, and whatever is lost on the way.

What needs a Ray cluster is in tests/runs/test_cluster.py.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from selections import plan_of, search_of

from pasearch import Budget, plan_training, search_architecture
from pasearch.api.request import EXECUTORS, SearchRequest, check_executor, make_executor
from pasearch.errors import UsageError
from pasearch.runs import cluster
from pasearch.runs.executors import (
    AutomaticExecutor,
    Executor,
    LocalExecutor,
    ProcessExecutor,
    Work,
)
from pasearch.search.engine import SearchEngine, SearchOutcome


def saying(number: int) -> Callable[[str], bytes]:
    """What a worker can be given that does not know this file."""

    def said(text: str) -> bytes:
        time.sleep(0.05 * (number % 3))  # so that the order of completion is another one
        return f"{number} {text} {os.getpid()}".encode()

    return said


@pytest.fixture(params=["local", "process"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with make_executor(request.param, None if request.param == "local" else 2) as found:
        yield found


@pytest.mark.contract
@pytest.mark.slow
def test_results_come_in_the_order_of_the_works(executor: Executor, tmp_path: Path):
    @dataclass(frozen=True)
    class Text:
        path: Path
        kept = False

        def load(self) -> str:
            return self.path.read_text()

    (tmp_path / "x").write_text("hello")
    reads = (Text(tmp_path / "x"),)
    works = [Work(key=str(number), do=saying(number), reads=reads) for number in range(7)]
    found = [each.decode().split() for each in executor.run_in_order(works, 1, 2)]
    assert [(int(number), text) for number, text, _ in found] == [(n, "hello") for n in range(7)]
    others = {int(worker) for *_, worker in found} - {os.getpid()}
    assert bool(others) is (executor.name == "process")


@pytest.mark.unit
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A worker stopped:UserWarning")
def test_what_a_killed_process_was_doing_is_done_again():
    def deadly(parent: int, number: int) -> bytes:
        if number == 1 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return str(number).encode()

    works = [Work(key=str(n), do=partial(deadly, os.getpid(), n)) for n in range(4)]
    with ProcessExecutor(2) as executor:
        assert [*executor.run_in_order(works, 1, 2)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.unit
def test_what_is_handed_over_is_as_said():
    assert [LocalExecutor().accepts(count, long=True) for count in (1, 2)] == [False, False]
    assert [AutomaticExecutor().accepts(2, long=long) for long in (False, True)] == [False, True]
    assert [ProcessExecutor(2).accepts(count, long=False) for count in (1, 2)] == [False, True]
    assert [isinstance(make_executor(name), kind) for name, kind in (
        ("auto", AutomaticExecutor), ("local", LocalExecutor), ("process", ProcessExecutor),
    )] == [True] * 3  # fmt: skip


@pytest.mark.unit
def test_settings_without_a_use_are_refused():
    for given, told in [
        ({"executor": "dask"}, "executor is 'dask': expected one of auto, local, process, ray"),
        ({"workers": 0}, "workers is 0: expected an integer"),
        ({"workers": 2.0}, "workers is 2.0: expected an integer"),
        ({"executor": "local", "workers": 2}, "trains one at a time"),
        ({"ray_address": "auto"}, "ray_address is 'auto': it requires `executor='ray'`"),
        ({"executor": "process", "gpus_per_worker": 1.0}, "gpus_per_worker is 1.0: it requires"),
        ({"executor": "ray", "gpus_per_worker": float("nan")}, "gpus_per_worker is nan"),
    ]:
        with pytest.raises(UsageError, match=told):
            SearchRequest("digits", **given)  # type: ignore[arg-type]


@pytest.mark.unit
def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"requires Ray: pip install 'pasearch\[ray\]'"):
        SearchRequest("digits", executor="ray")


@pytest.mark.unit
def test_a_worker_with_other_code_or_libraries_is_refused():
    with pytest.raises(
        UsageError, match="has another pasearch, Python, numpy, ray, torch or kind of processor"
    ):
        cluster._run_work("of others", lambda: b"", {})


@pytest.mark.contract
@pytest.mark.slow
def test_a_second_coordinator_of_a_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run locks its ledger before it takes its keys, and for as long as it may spend."""
    told: list[tuple[int, str]] = []

    def run(search: SearchEngine) -> SearchOutcome:
        command = [sys.executable, "-m", "pasearch", "resume", str(tmp_path / "x")]
        found = subprocess.run(command, capture_output=True, text=True, timeout=100)
        told.append((found.returncode, found.stderr))
        return genuine(search)

    genuine = SearchEngine.run
    monkeypatch.setattr(SearchEngine, "run", run)
    result = search_architecture(
        "digits", budget=Budget(3.0), strategy="rs", candidates=2, steps=3, batch=30, device="cpu",
        out=tmp_path / "x",
    )  # fmt: skip
    assert told[0][0] == 2
    assert "is in use by another process: a run has one writer" in told[0][1]
    assert result.price.epsilon <= 3.0


@pytest.mark.unit
def test_a_training_with_nothing_to_hand_over_says_so():
    for recipe, why in [
        ("default", "it trains one network"),
        ("sa-dpsgd", "its recipe makes validation queries"),
    ]:
        with pytest.raises(UsageError, match=f"executor is 'process', but it cannot .*: {why}"):
            plan_training("digits", budget=Budget(3.0), steps=5, executor="process", recipe=recipe)


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.parametrize("method", ["pafs", "subsets"])
def test_processes_change_no_bit_of_a_selection(tmp_path: Path, method: str):
    found = []
    for place, executor in enumerate((LocalExecutor(), ProcessExecutor(2))):
        search = search_of(plan_of(method, "dpsgd"), tmp_path)
        folder = tmp_path / str(place)
        folder.mkdir()
        with executor:
            outcome = replace(
                search, executor=executor, folder=SimpleNamespace(private=folder)
            ).run()
        found.append((outcome.chosen.order, outcome.model.weights.tobytes(), outcome.test))
        found[-1] += (search.ledger.spent(),)
        assert not [*folder.iterdir()], "the records' files are gone"
    assert found[0] == found[1]


@pytest.mark.unit
def test_an_executor_that_would_be_idle_is_refused():
    for name in EXECUTORS:
        check_executor(name, "cpu", {})
        if name == "process":
            with pytest.raises(UsageError, match="trainings on a GPU run in this process"):
                check_executor(name, "cuda", {})
        with pytest.raises(
            UsageError, match=f"executor is '{name}', but it cannot train .*: because. Leave"
        ):
            check_executor(name, "cpu", {name: "because"})


@pytest.mark.unit
def test_only_files_of_coordinators_that_are_gone_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone, lives = (
        tmp_path / f"{cluster.FOLDER_PREFIX}{number}-x" for number in (ended.pid, os.getpid())
    )
    link, others = tmp_path / f"{cluster.FOLDER_PREFIX}{ended.pid}-y", tmp_path / "elsewhere"
    for each in (gone, lives, others):
        each.mkdir()
    link.symlink_to(others)
    cluster._delete_leftover_folders()
    assert not gone.exists()
    assert lives.exists()
    assert link.is_symlink()
    assert others.exists()


@pytest.mark.unit
def test_an_example_of_a_cluster_asks_for_a_token_and_hides_its_files():
    text = (Path(__file__).parents[2] / "examples" / "cluster.yaml").read_text()
    starts = re.findall(r"ray start (?:.|\n    )+", text)
    assert len(starts) == 2
    assert text.count("RAY_AUTH_MODE=token ~/pasearch-venv/bin/ray start") == 2
    assert text.count("mkdir -p -m 700 ~/.ray-files") == 2
    for each in starts:
        assert "--temp-dir=$HOME/.ray-files/ray" in each
        assert "--disable-usage-stats" in each


KEEPS = r"""
import re
from pathlib import Path

import numpy as np
from pasearch.runs import executors
from pasearch.training.memory import keep_freed_memory


def held():
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024


class Large:
    def run(self):
        pieces = [np.ones(2**22) for _ in range(12)]  # of 32 MiB
        return b"%d" % len(pieces)


assert keep_freed_memory()
executors._run_indexed(0, Large())
before = held()
executors.release_memory = lambda: None
executors._run_indexed(0, Large())
print(before, held())
"""


@pytest.mark.unit
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another system's C library"
)
def test_a_process_gives_memory_back_after_each_work():
    """Else joblib takes what is kept for a leak: it ends the process, and warns the user."""
    told = subprocess.run(
        [sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))},
    )  # fmt: skip
    given_back, kept = map(int, told.stdout.split())
    assert kept - given_back > 2**28, "a process that does not would hold them"
