"""`pasearch bench`: real steps of made-up records, and times that follow from them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pasearch
from pasearch.api.bench import Bench, Speed, bench
from pasearch.api.bench_rates import Rates, measured
from pasearch.cli import main
from pasearch.errors import UsageError
from pasearch.search.plan import Plan
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import cost, planned_seconds

SEARCH = (10, 20, 10_000)


@pytest.fixture(scope="module")
def found() -> Bench:
    return bench(spaces=("tables",), threads=1, seconds=1.0, searches=(SEARCH,))


@pytest.mark.quick
@pytest.mark.unit
def test_three_networks_are_trained_privately_and_not(found: Bench):
    places = [place for each in found.speeds for place in each.spaces]
    assert places == [("tables", "smallest"), ("tables", "middle"), ("tables", "largest")]
    sizes = [each.parameters for each in found.speeds]
    assert sizes == sorted(set(sizes))
    assert (found.device, found.threads, found.names) == ("cpu", 1, ["tables"])
    for each in found.speeds:
        assert each.batch == 2048
        assert 0 < each.private < each.limit
        assert 0 < each.plain
    assert all(value > 0 for value in found.rates.to_json().values())


@pytest.mark.unit
def test_a_search_takes_all_its_records_over_the_middle_networks_speed(found: Bench):
    middle = found.speeds[1].private
    assert found.hours("tables") == [10 * 20 * 10_000 / middle / 3600]


@pytest.mark.unit
def test_the_speed_is_that_of_a_step(found: Bench):
    """A made-up bench where a step takes as long as it says."""
    from pasearch.api import bench as module

    def slow() -> None:
        time.sleep(0.02)

    (own, quick) = module._seconds_of((slow, lambda: None), 0.2, "cpu")
    assert 0.02 <= own < 0.03
    assert quick < 0.001


@pytest.mark.unit
def test_threads_are_as_before(found: Bench):
    before = torch.get_num_threads()
    bench(spaces=("tables",), threads=before + 1, seconds=0.05, searches=(SEARCH,))
    assert torch.get_num_threads() == before


@pytest.mark.unit
def test_a_network_of_two_spaces_is_trained_once():
    found = bench(spaces=("tables", "tables"), threads=1, seconds=0.05)
    assert len(found.speeds) == 3


@pytest.mark.unit
def test_the_least_time_of_a_step_is_counted_from_rates():
    rates = Rates(operations=1e9, bytes=1e9, random=1e8, normals=1e8)
    work = cost(Architecture(layers=()), (100,), 10)
    computing = work.operations * 50 / 1e9 + 4 * 1010 / 1e8
    assert rates.least(work, 50) == pytest.approx(computing)
    slow = Rates(operations=1e15, bytes=1e3, random=1e15, normals=1e8)
    assert slow.least(work, 50) == pytest.approx((8 * 100 * 50 + 16 * 1010) / 1e3)


@pytest.mark.unit
def test_rates_are_those_of_this_machine():
    """Timed here once more, the best of many on one thread: a machine's load leaves that alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = measured("cpu", 0.8)
        a, source, target = torch.rand(256, 256), torch.zeros(2**22), torch.zeros(2**22)
        products, copies = least(lambda: a @ a), least(lambda: target.copy_(source))
    finally:
        torch.set_num_threads(before)
    assert 0.4 < rates.operations * products / (2 * 256**3) < 2.5
    assert 0.4 < rates.bytes * copies / (2 * 4 * 2**22) < 2.5
    assert 1e8 < rates.random < 1e11  # from a slow cipher to more than any core makes
    assert 1e6 < rates.normals < 1e10


def least(call: Callable[[], object]) -> float:
    times = []
    for _ in range(200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.unit
@pytest.mark.parametrize(
    "given",
    [
        {"seconds": 0.0}, {"seconds": float("nan")}, {"spaces": ("fnc",)}, {"spaces": ("auto",)},
        {"searches": ((0, 1, 1),)}, {"threads": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any]):
    with pytest.raises(UsageError):
        bench(**{"spaces": ("tables",), "seconds": 0.05, **given})


@pytest.mark.quick
@pytest.mark.unit
def test_the_command_says_that_it_costs_nothing_and_writes_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    out = tmp_path / "bench.json"
    words = ["bench", "--space", "tables", "--seconds", "0.1", "--candidates", "7", "--out", out]
    monkeypatch.setattr("sys.argv", ["pasearch", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().out
    assert not ended.value.code
    assert "No data is read, so this costs nothing." in " ".join(shown.split())
    figures = json.loads(out.read_text())
    (search,) = figures["searches"]
    assert (search["candidates"], search["epochs"], search["records"]) == (7, 50, 60_000)
    middle = figures["speeds"][1]["private"]
    assert search["hours"]["tables"] == pytest.approx(7 * 50 * 60_000 / middle / 3600)
    assert f"{figures['speeds'][0]['private']:,.0f}" in shown


@pytest.mark.unit
def test_a_file_that_exists_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    out = tmp_path / "bench.json"
    out.write_text("mine")
    monkeypatch.setattr("sys.argv", ["pasearch", "bench", "--seconds", "0.1", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.unit
def test_json_alone_is_printed_as_by_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    words = ["pasearch", "bench", "--space", "tables", "--seconds", "0.1", "--json"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert len(json.loads(capsys.readouterr().out)["speeds"]) == 3


@pytest.mark.unit
def test_a_space_that_is_not_known_is_answered_with_those_that_can_be_measured():
    with pytest.raises(UsageError, match="expected one of fcn, images, tables") as refused:
        bench(spaces=("nope",))
    assert "auto" not in str(refused.value)
    with pytest.raises(UsageError, match="another space for every kind of data"):
        bench(spaces=("auto",))


@pytest.mark.unit
def test_spaces_of_the_same_networks_have_one_row_that_says_so(found: Bench):
    same = [
        replace(
            each, spaces=tuple((name, size) for name in ("one", "two") for _, size in each.spaces)
        )
        for each in found.speeds
    ]
    both = replace(found, speeds=tuple(same))
    lines = both.describe().splitlines()
    assert sum(line.startswith("one ") for line in lines) == 4, "three sizes, and the search"
    assert not any(line.startswith("two ") for line in lines)
    assert "two: the same three networks, so the same times" in " ".join(both.describe().split())
    assert both.to_json()["searches"][0]["hours"].keys() == {"one", "two"}


@pytest.mark.unit
@pytest.mark.parametrize("option", ["--seconds", "--candidates", "--epochs", "--n", "--threads"])
def test_a_number_that_cannot_be_ends_the_command_before_it_trains(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["pasearch", "bench", option, "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert option in shown.err


@pytest.mark.contract
def test_a_plan_reckons_with_the_same_figures(plan_of_a_search: Plan):
    plan = plan_of_a_search
    recipe, (usual, average, longest) = plan.recipe, plan.seconds_per_training()
    network = plan.space.candidate(plan.space.fixed()).architecture
    work = cost(network, (8, 8), 10)
    assert usual == planned_seconds(work, recipe.expected_batch_size, recipe.steps)
    assert 0 < average < longest
    assert usual <= longest


@pytest.mark.contract
def test_each_candidate_is_reckoned_with_as_it_is_trained():
    x, y = np.zeros((4000, 6)), np.zeros(4000, int)
    known = {"bounds": (0.0, 1.0), "classes": 2, "budget": pasearch.Budget(1.0)}
    plan = pasearch.plan_architecture_search((x, y), strategy="insured", **known)
    default = plan.space.candidate(plan.space.fixed())
    recipe = plan.final_recipe(default) if plan.retrained else plan.trial_recipe(default)
    shape = default.front_end.output_shape((6,))
    work = cost(default.architecture, shape, 2)
    planned = planned_seconds(work, recipe.expected_batch_size, recipe.steps)
    assert plan.seconds_per_training()[0] == planned


@pytest.mark.contract
def test_what_is_not_declared_is_reckoned_with_as_many_categories_as_is_usual(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text("a,b,y\n" + "1,u,v\n" * 3000)
    few, many = (
        pasearch.plan_architecture_search(
            str(path), budget=pasearch.Budget(1.0), strategy="fixed", max_categories=most
        ).seconds_per_training()[0]
        for most in (32, 200)
    )
    assert few == pytest.approx(many, rel=0.2)


@pytest.fixture
def plan_of_a_search() -> Plan:
    plan = pasearch.plan_architecture_search(
        "digits", budget=pasearch.Budget(2.0), strategy="rs", space="fcn"
    )
    return plan


@pytest.mark.unit
def test_figures_are_found_by_space_and_size(found: Bench):
    text = found.describe()
    for each in found.speeds:
        assert isinstance(each, Speed)
        assert f"{each.private:,.0f}" in text
    assert "  tables: 100 numbers, 2 classes; dense 32 tanh" in text.splitlines()
    told = " ".join(text.split())
    for column in ("private", "plain SGD", "of plain", "limit"):
        assert f" {column}: " in told, "each column is explained below the table"
    assert f"{found.rates.operations / 1e9:,.0f} billion multiplications and additions" in told


@pytest.mark.unit
def test_what_was_timed_is_said_in_lines_that_fit(found: Bench):
    long = replace(found.speeds[1], record="28 x 28 numbers, 10 classes", network="conv - " * 30)
    text = replace(found, speeds=(found.speeds[0], long, found.speeds[2])).describe()
    assert "  tables: 28 x 28 numbers, 10 classes; conv" in text
    assert all(len(each) <= 80 for each in text.splitlines())
