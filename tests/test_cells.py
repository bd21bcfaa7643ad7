"""The studies' cells: the same lines whoever measures them, and none is lost or measured twice."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cells
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STUDY = '''
import argparse, os, signal, sys, time
from pathlib import Path

import torch

sys.path.append(%r)
import cells


def measured(folder, arm, seed):
    """Return what depends on the cell and on threads, and who measured it."""
    with (folder / "begun").open("a") as file:
        file.write(f"{arm} {seed}\\n")
    if arm == "slow" and seed:
        time.sleep(10)
    if arm == "killed" and not (folder / "was killed").exists():
        (folder / "was killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    numbers = torch.rand(300_000, generator=torch.Generator().manual_seed(seed))
    return {
        "sum": float(numbers.sum()), "process": os.getpid(), "threads": torch.get_num_threads()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    cells.add_workers(parser)
    folder = Path(__file__).parent
    asked = ({"arm": "slow", "seed": seed} for seed in range(3))
    workers = cells.workers_of(parser.parse_args())
    cells.measure(folder / "results" / "slow.jsonl", asked, measured, folder, workers=workers)
'''


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """A study's function, of a file of its own."""
    file = tmp_path / "study_of_cells.py"
    file.write_text(STUDY % str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.measured
    del sys.modules[file.stem]
    cells._study.cache_clear()


def asked(arm: str = "plain", count: int = 4) -> list[dict[str, Any]]:
    return [{"arm": arm, "seed": seed} for seed in range(count)]


def told(path: Path, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(line[name] for name in names) for line in cells.stored(path))


@pytest.mark.unit
def test_lines_are_the_same_with_one_worker_and_with_two(study: Any, tmp_path: Path):
    one, two = (tmp_path / "results" / name for name in ("one.jsonl", "two.jsonl"))
    cells.measure(one, asked(), study, tmp_path, workers=1)
    cells.measure(two, asked(), study, tmp_path, workers=2)
    seen = ("arm", "seed", "sum", "threads")
    assert told(one, *seen) == told(two, *seen)
    assert {line["threads"] for line in cells.stored(one)} == {1}
    assert {line["process"] for line in cells.stored(one)} == {os.getpid()}
    assert os.getpid() not in {line["process"] for line in cells.stored(two)}
    assert [line.get("workers") for line in cells.stored(two)] == [2] * 4
    assert not any("workers" in line for line in cells.stored(one))


@pytest.mark.unit
def test_what_is_there_is_not_measured_again(study: Any, tmp_path: Path):
    path = tmp_path / "results" / "some.jsonl"
    cells.measure(path, asked(count=2), study, tmp_path, workers=1)
    before = path.read_text()
    lines = cells.measure(path, asked() + asked(), study, tmp_path, workers=1)
    assert path.read_text().startswith(before)
    assert [line["seed"] for line in lines] == [0, 1, 2, 3]
    assert (tmp_path / "begun").read_text().split() == "plain 0 plain 1 plain 2 plain 3".split()


@pytest.mark.unit
def test_a_study_that_is_killed_loses_only_what_was_running(study: Any, tmp_path: Path):
    path, begun = tmp_path / "results" / "slow.jsonl", tmp_path / "begun"
    command = [sys.executable, str(tmp_path / "study_of_cells.py"), "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        until = time.monotonic() + 60
        while not cells.stored(path) or begun.read_text().count("slow") < 3:
            assert time.monotonic() < until
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
    assert [line["seed"] for line in cells.stored(path)] == [0]
    left = cells.open_cells(asked("slow", 3), cells.stored(path))
    assert left == [{"arm": "slow", "seed": 1}, {"arm": "slow", "seed": 2}]


@pytest.mark.unit
def test_a_worker_that_is_killed_costs_its_cell_another_try(study: Any, tmp_path: Path):
    path = tmp_path / "results" / "killed.jsonl"
    cells.measure(path, asked("killed"), study, tmp_path, workers=2)
    assert told(path, "seed") == [(0,), (1,), (2,), (3,)]


@pytest.mark.unit
def test_a_line_that_was_not_written_whole_is_left_out_and_overwritten(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"seed": 0}\n{"seed": 1, "acc')
    assert cells.stored(path) == [{"seed": 0}]
    cells.store(path, {"seed": 2})
    assert path.read_text() == '{"seed": 0}\n{"seed": 2}\n'


@pytest.mark.unit
def test_when_the_minutes_are_over_nothing_begins(study: Any, tmp_path: Path):
    path = tmp_path / "results" / "none.jsonl"
    assert cells.measure(path, asked(), study, tmp_path, workers=1, minutes=-1) == []
    assert not path.exists()
    assert not (tmp_path / "begun").exists()


@pytest.mark.unit
def test_an_error_in_a_cell_is_told_and_what_was_measured_stays(study: Any, tmp_path: Path):
    path = tmp_path / "results" / "wrong.jsonl"
    wrong = [*asked(count=1), {"arm": "plain", "seed": -(2**70)}]
    with pytest.raises((RuntimeError, ValueError, OverflowError)):
        cells.measure(path, wrong, study, tmp_path, workers=1)
    assert told(path, "seed") == [(0,)]


@pytest.mark.unit
def test_a_cell_is_there_if_a_line_has_all_its_values():
    lines = [
        {"arm": "a", "epsilon": 1, "candidate": {"layers": [], "front": "raw"}, "accuracy": 0.5},
        {"arm": "b", "epsilon": None},
    ]
    there = [
        {"arm": "a", "epsilon": 1.0},
        {"candidate": {"front": "raw", "layers": []}, "arm": "a"},
        {"arm": "b", "epsilon": None},
    ]
    missing = [
        {"arm": "a", "epsilon": 2.0},
        {"arm": "b", "epsilon": 1.0},
        {"arm": "a", "candidate": {"layers": [1], "front": "raw"}},
    ]
    assert cells.open_cells(there + missing + missing, lines) == missing


@pytest.mark.unit
def test_workers_are_a_number_from_1_as_many_as_cores_if_not_given_and_one_on_a_gpu(
    capsys: pytest.CaptureFixture[str],
):
    from joblib import cpu_count

    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    cells.add_workers(parser)
    assert cells.workers_of(parser.parse_args(["--workers", "3"])) == 3
    assert cells.workers_of(parser.parse_args([])) == cpu_count()
    assert cells.workers_of(parser.parse_args(["--device", "cuda"])) == 1
    for wrong in ("0", "-1", "two", "1.5"):
        with pytest.raises(SystemExit) as refused:
            parser.parse_args([f"--workers={wrong}"])
        assert refused.value.code == 2
        assert f"'{wrong}' workers: expected a whole number from 1." in capsys.readouterr().err
