"""On a real Ray cluster of several nodes: the same to the bit, whoever is lost on the way.

Twenty instants of a kill are in benchmarks/scale; here are three.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import at_work, kill_one, nodes
from search.test_engine import records_of, same, searching

import pasearch
from pasearch import Budget
from pasearch.errors import InterruptedRunError, UsageError
from pasearch.runs.cluster import Cluster
from pasearch.runs.executors import Executor, LocalExecutor, Work
from pasearch.search import engine
from pasearch.search.candidate_training import train_in_parallel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (pasearch[ray])"
    ),
    # Ray leaves sockets and processes to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def three() -> Iterator[Any]:
    with nodes(3) as found:
        yield found


@pytest.fixture(scope="module")
def ray(three: Any) -> Iterator[Executor]:
    with Cluster(None, three.address) as executor:
        yield executor


STEPS = 250
"""So that a training takes long enough to be struck."""


@dataclass(frozen=True)
class Numbers:
    """A source that notes in a file that it was read here."""

    noted: Path
    count: int
    kept: bool = False

    def load(self) -> Any:
        with self.noted.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return np.arange(self.count)


def works_of(count: int, reads: tuple[Any, ...], seconds: float = 0.0) -> list[Work]:
    def working(number: int) -> Any:
        def work(*read: Any) -> bytes:
            time.sleep(seconds)
            locked = not any(each.flags.writeable for each in read)
            return json.dumps([number, *(int(x.sum()) for x in read), locked]).encode()

        return work

    return [Work(key=str(place), do=working(place), reads=reads) for place in range(count)]


def stored() -> float:
    """Bytes in the object stores of the cluster."""
    import ray

    every, free = ray.cluster_resources(), ray.available_resources()
    return every["object_store_memory"] - free["object_store_memory"]


def test_records_are_sent_once_read_only_and_forgotten(ray: Executor, tmp_path: Path):
    class Private(Numbers):
        def __reduce__(self):
            raise AssertionError("a worker is given what is read, never where it lies")

    before = stored()
    reads = (Private(tmp_path / "x", 2**20), Numbers(tmp_path / "y", 10, kept=True))
    results = ray.run_in_order(works_of(7, reads), 1, 1)
    found = [json.loads(next(results))]
    assert stored() >= before + 2**23, "in the store while works run"
    found += map(json.loads, results)
    assert found == [[place, 2**19 * (2**20 - 1), 45, True] for place in range(7)]
    assert (tmp_path / "x").read_text() == (tmp_path / "y").read_text() == f"{os.getpid()}\n"
    for _ in range(100):
        if stored() < before + 2**20:
            return
        time.sleep(0.1)
    raise AssertionError("the store still holds the records")


@pytest.mark.parametrize(("way", "workers"), [("paas", 2), ("stw", None)])
def test_searches_are_the_same_to_the_bit(
    three: Any, ray: Executor, tmp_path: Path, way: str, workers: int | None
):
    with searching(tmp_path / "one", way) as search:
        expected = replace(search, executor=LocalExecutor()).run()
        trials, spent = records_of(search), search.ledger.spent()
    with searching(tmp_path / "x", way) as search:
        # The module's connection serves it; it only counts for itself.
        found = replace(search, executor=Cluster(workers, three.address)).run()
        assert records_of(search) == trials
        assert search.ledger.spent() == spent
        assert not [*search.folder.private.glob("records-*")]
    assert same(found, expected)
    assert found.curve == expected.curve


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    folder = tmp_path_factory.mktemp("expected")
    with searching(folder / "one", "paas", steps=STEPS) as search:
        outcome = replace(search, executor=LocalExecutor()).run()
        return outcome, records_of(search), search.ledger.spent()


@pytest.mark.parametrize("lost", ["a process", "a process, at once", "a node"])
def test_what_is_lost_is_done_again_by_the_same_key(
    three: Any, ray: Executor, tmp_path: Path, expected: Any, lost: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    done: list[bool] = []

    def strike() -> None:
        end = time.monotonic() + 20
        while not at_work(three) and time.monotonic() < end:
            time.sleep(0.01)
        if lost == "a process":
            time.sleep(0.3)
        if lost == "a node":
            three.remove_node(next(iter(three.worker_nodes)), allow_graceful=False)
            done.append(True)
        else:
            done.append(kill_one(three))

    def struck(*given: Any) -> Iterator[Any]:
        thread = threading.Thread(target=strike)
        if not done:
            thread.start()
            yield from train_in_parallel(*given)
            thread.join()
        else:
            yield from train_in_parallel(*given)

    monkeypatch.setattr(engine, "train_in_parallel", struck)
    with searching(tmp_path / "x", "paas", steps=STEPS) as search:
        outcome = replace(search, executor=ray).run()
        found = outcome, records_of(search), search.ledger.spent()
    if lost == "a node":
        three.add_node(num_cpus=1, object_store_memory=2**27)
        three.wait_for_nodes()
    assert done == [True], "something was lost"
    assert same(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_what_is_lost_again_and_again_is_done_here(ray: Executor):
    own = os.getpid()

    def deadly() -> bytes:
        if os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"here"

    assert [*ray.run_in_order([Work(key="x", do=deadly)], 1, 1)] == [b"here"]


def test_what_is_slow_is_begun_a_second_time(ray: Executor, tmp_path: Path):
    def work(number: int) -> Any:
        def do() -> bytes:
            flag = tmp_path / str(number)
            if number == 1 and not flag.exists():
                flag.touch()
                time.sleep(120)
            time.sleep(0.2)
            return str(number).encode()

        return do

    start = time.monotonic()
    works = [Work(key=str(n), do=work(n)) for n in range(3)]
    assert [*ray.run_in_order(works, 1, 1)] == [b"0", b"1", b"2"]
    assert time.monotonic() - start < 60


def test_a_run_is_resumed_on_another_cluster_and_says_what_it_could_see(
    three: Any, ray: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    x = np.random.default_rng(0).random((300, 3))
    data = x, (x[:, 0] > 0.5).astype(int)

    def interrupted(*given: Any) -> Any:
        yield next(train_in_parallel(*given))
        raise KeyboardInterrupt

    asked = {
        "budget": Budget(3.0), "bounds": (0.0, 1.0), "classes": 2, "strategy": "paas",
        "space": "fcn", "candidates": 3, "generations": 2, "steps": 5, "batch": 30,
        "device": "cpu", "executor": "ray", "ray_address": three.address,
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(engine, "train_in_parallel", interrupted)
        with pytest.raises(InterruptedRunError):
            pasearch.search_architecture(data, out=tmp_path / "run", **asked)
    result = pasearch.resume(tmp_path / "run", data=data, ray_address="another:6379")
    assert result.document["executor"] == "ray"
    for words in (
        "Observers of the Ray cluster that trained: they see the number of trainings",
        "Treat the cluster as private/",
    ):
        assert words in result.card
    assert "executor" not in json.dumps(result.document["versions"])
    version = importlib.metadata.version("ray")
    assert result.document["versions"]["ray"] == version
    assert f"- ray {version}\n" in result.card
    pasearch.verify(tmp_path / "run")


def test_an_error_of_a_work_is_raised_here_and_nothing_runs_on(three: Any, ray: Executor):
    def work(number: int) -> Any:
        def do() -> bytes:
            if number == 0:
                raise ValueError("of the work")
            time.sleep(60)
            return b""

        return do

    with pytest.raises(ValueError, match="of the work"):
        [*ray.run_in_order([Work(key=str(n), do=work(n)) for n in range(3)], 1, 1)]
    end = time.monotonic() + 20
    while at_work(three) and time.monotonic() < end:
        time.sleep(0.1)
    assert not at_work(three)


def test_a_cancel_that_is_lost_is_sent_again(
    three: Any, ray: Executor, monkeypatch: pytest.MonkeyPatch
):
    import ray as library

    cancel, lost = library.cancel, set()

    def losing(ref: Any, **how: Any) -> None:
        if ref in lost:
            cancel(ref, **how)
        lost.add(ref)

    monkeypatch.setattr(library, "cancel", losing)
    test_an_error_of_a_work_is_raised_here_and_nothing_runs_on(three, ray)
    assert len(lost) == 2


def test_gpus_are_asked_for_and_without_any_that_is_said(three: Any, ray: Executor):
    def work() -> bytes:
        import ray

        return str(len(ray.get_gpu_ids())).encode()

    half = Cluster(None, three.address, gpus=0.5)
    works = [Work(key="x", do=work)]
    with pytest.raises(UsageError, match=r"gpus_per_worker is 0.5, but no node .* has that"):
        [*half.run_in_order(works, 1, 1)]
    with pytest.raises(UsageError, match=r"no node .* has that"), half:
        pytest.fail("it is told before anything is charged")
    node = three.add_node(num_cpus=1, num_gpus=1, object_store_memory=2**27)  # in name only
    three.wait_for_nodes()
    assert [*half.run_in_order(works, 1, 1)] == [b"1"]
    three.remove_node(node)


OWN = """
import os, signal, stat, subprocess, sys
from pathlib import Path
import ray  # a cluster asks for its token even if Ray was there before
from pasearch.runs.cluster import Cluster
from pasearch.runs.executors import Work

before = signal.getsignal(signal.SIGTERM)
with Cluster(2) as executor:
    assert signal.getsignal(signal.SIGTERM) is before
    folder = Path(executor._folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    context = ray.get_runtime_context()
    other = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    code = f"import ray; ray.init(address={context.gcs_address!r}); print('in')"
    with_token = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=100)
    assert b"in" in with_token.stdout, with_token
    strangers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=other | {
                "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0" * 64, "HOME": str(folder),
                "RAY_NUM_REDIS_GET_RETRIES": "5",  # not 20, a second each: the token needs one
            },
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for mode in ("disabled", "token")
    ]
    for stranger in strangers:
        assert b"in" not in stranger.communicate(timeout=100)[0].split()
        assert stranger.returncode
    assert list(executor.run_in_order([Work(key="x", do=lambda: b"x")], 1, 1)) == [b"x"]
assert not folder.exists()
"""


def test_an_own_cluster_lets_nobody_else_in_and_leaves_nothing():
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", OWN],
        env=own, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
    # Ray says this if it was imported before; otherwise nothing.
    assert found.stderr.startswith("Token authentication is enabled")
    assert found.stderr.count("\n") == 1
