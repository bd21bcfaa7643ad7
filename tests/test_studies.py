"""Studies that need no downloaded data, in their smallest setting: they run, whoever measures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
TIMES = ("seconds", "processor", "processor_seconds", "workers", "date")

pytestmark = pytest.mark.slow


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """A copy of the studies without their results."""
    without = shutil.ignore_patterns("results", "__pycache__")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=without)
    for name in ("examples", "pasearch", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path / "benchmarks"


def run(studies: Path, command: str) -> None:
    script, *words = command.split()
    done = subprocess.run(
        [sys.executable, str(studies / script), *words],
        capture_output=True, text=True, check=False, cwd=studies.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file without times, in an order of their own."""
    found = [json.loads(each) for each in path.read_text().splitlines()]
    plain = [{name: v for name, v in line.items() if name not in TIMES} for line in found]
    return sorted(plain, key=lambda line: json.dumps(line, sort_keys=True))


def breast_cancer(path: Path) -> None:
    """Write a table of the size of Breast Cancer, whose columns are categories."""
    draw = np.random.default_rng(0)
    classes = np.repeat(["no", "yes"], [201, 85])
    columns = [np.where(draw.random(286) < 0.6, classes, "no")]
    columns += [draw.choice(list("abcd"), 286) for _ in range(8)]
    rows = np.stack([*columns, classes], axis=1)
    head = ",".join([*"abcdefghi", "class"])
    path.write_text("\n".join([head, *map(",".join, rows)]) + "\n")


def test_a_study_of_two_workers_writes_one_line_per_cell(studies: Path):
    run(
        studies,
        "portfolio/run.py --data-root . --tables . --cache cache --only wine --seeds 1 "
        "--front-end standardise --workers 2",
    )
    found = lines(studies / "portfolio" / "results" / "runs.jsonl")
    assert len(found) == 6
    assert all(0 <= line["accuracy"] <= 1 for line in found)


def test_proxies_of_a_search(studies: Path):
    run(
        studies,
        "search_pays/proxies.py columns --names circle --tables . --epsilons 1 --seeds 1 "
        "--workers 1",
    )
    (line,) = lines(studies / "search_pays" / "results" / "proxies.jsonl")
    assert 0 <= line["kept"] <= line["of"] == 5


@pytest.mark.parametrize("item", ["figures", "table-x"])
def test_what_the_paper_does_to_choose_features(studies: Path, item: str):
    breast_cancer(studies.parent / "breast-cancer.csv")
    run(studies, f"features/paper.py {item} --tables . --seeds 1 --minutes .02 --workers 1")
    found = lines(studies / "features" / "results" / f"{item}.jsonl")
    assert found
    assert all(0 <= line["accuracy"] <= 1 for line in found)


def test_many_networks_at_once_are_those_of_the_trainer(studies: Path):
    run(studies, "features/networks.py")


def test_figures_of_optimizers_are_drawn_from_what_was_measured(studies: Path):
    measured = ROOT / "benchmarks" / "optimizers" / "results" / "curves.jsonl"
    run(studies, f"optimizers/figures.py mnist --results {measured} --out {studies}")
    drawn = (studies / "mnist-fig2.svg").read_text()
    assert "accuracy" in drawn
    assert "epsilon" in drawn


def test_two_workers_record_every_case(studies: Path):
    out = studies / "cases.jsonl"
    run(
        studies,
        f"same_results/run.py record {out} --only train-dynamic-step --only"
        " train-dynamic-polynomial --renames benchmarks/same_results/renames.toml --workers 2",
    )
    assert out.read_text().count("\n") == 3
