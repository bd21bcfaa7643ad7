"""`benchmarks/bench.py` in its smallest setting: private and plain steps of synthetic records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import bench
import pytest

from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import measure_step_work

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench.py"


@pytest.mark.slow
@pytest.mark.unit
def test_the_command_prints_and_writes_the_speeds_and_the_hours_of_a_search(tmp_path: Path):
    command = [sys.executable, SCRIPT, "--space", "tables", "--seconds", "0.3", "--threads", "1",
               "--candidates", "7", "--out", "bench.json"]  # fmt: skip
    shown = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    figures = json.loads((tmp_path / "bench.json").read_text())
    (search,) = figures["searches"]
    assert (search["candidates"], search["epochs"], search["records"]) == (7, 50, 60_000)
    private = [each["private"] for each in figures["speeds"]]
    assert len(private) == 3
    assert search["hours"]["tables"] == pytest.approx(7 * 50 * 60_000 / private[1] / 3600)
    for each in figures["speeds"]:
        assert 0 < each["private"] < each["limit"]
        assert f"{each['private']:,.0f}" in shown
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 2, "a file that exists is not overwritten"


@pytest.mark.unit
def test_the_least_time_of_a_step_by_hand():
    work = measure_step_work(Architecture(layers=()), (100,), 10)  # a linear model of 1,010 numbers
    rates = bench.Rates(operations=1e9, bytes=1e9, random=1e8, normals=1e8)
    assert rates.least(work, 50) == pytest.approx(work.operations * 50 / 1e9 + 4 * 1010 / 1e8)
    slow = bench.Rates(operations=1e15, bytes=1e3, random=1e15, normals=1e8)
    assert slow.least(work, 50) == pytest.approx((8 * 100 * 50 + 16 * 1010) / 1e3)
