"""docs/howto-ledger.md: its commands are run, and every figure on it is what they give."""

from __future__ import annotations

import datetime
import json
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from pasearch.accounting.budget import Budget
from pasearch.api.search import prepare
from pasearch.cli.app import app
from pasearch.errors import BudgetError
from pasearch.planning import events_by_partition
from pasearch.runs.shared_ledger import (
    SharedLedger,
    compute_adaptive_cost,
    compute_failure_probability,
    compute_loss_curve,
    make_worst_partition_event,
)

PAGE = Path(__file__).parent.parent / "docs" / "howto-ledger.md"
TOTAL_DELTA = 1e-4


@pytest.mark.contract
def test_its_runs_say_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(?:text)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands, plans, refusal = blocks[1:4]
    shown, errors = [], []
    for line in commands.splitlines():
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        shown += [each for each in done.stdout.splitlines() if each.startswith("Ledger ")]
        errors.append(str(done.exception or ""))
    assert " ".join(shown).split() == plans.split()
    assert errors[:2] == ["", ""]
    assert f"Error: {errors[2]}".replace(f"{tmp_path}/", "").split() == refusal.split()


@pytest.mark.oracle
def test_so_do_its_sums():
    page = " ".join(PAGE.read_text().split())
    for epsilon, delta, count, words in [
        (1.0, 1e-5, 2, "cost {:.4g} together, and not exactly 2"),
        (1.0, TOTAL_DELTA, 2, "the two would cost {:.4g}."),
        (0.1, 1e-5, 50, "fifty such runs of epsilon 0.1 cost {:.4g}, and not 5"),
    ]:
        plan = prepare("digits", budget=Budget(epsilon, delta)).plan
        event = make_worst_partition_event(events_by_partition(plan.lines))
        runs = [
            (event, compute_loss_curve(event, compute_failure_probability(i + 1, TOTAL_DELTA)))
            for i in range(count)
        ]
        assert words.format(compute_adaptive_cost(runs, TOTAL_DELTA).epsilon) in page


@pytest.mark.contract
@pytest.mark.parametrize("declared", [True, False])
def test_the_commands_that_a_report_proposes_hold_its_run_and_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
):
    """Undeclared categories take less of delta in a ledger than they did in the run."""
    monkeypatch.chdir(tmp_path)
    data = "digits" if declared else "mine.csv"
    rows = (f"{i % 7},{'abc'[i % 3]},{'no' if i % 2 else 'yes'}" for i in range(3000))
    Path("mine.csv").write_text("\n".join(["size,kind,answer", *rows]) + "\n")
    task = ["arch", data, "--eps", "1", "--strategy", "fixed", "--steps", "5"]
    assert CliRunner().invoke(app, [*task, "--out", "one"]).exit_code == 0
    told = re.sub("<[^>]*>", "", Path("one/release/report.html").read_text())
    begin, use = re.findall(r"pasearch (ledger people.ledger .*|\w+ DATA .* --ledger .*)", told)
    add = shlex.split(begin.replace("RUN", "one"))
    for added in ("Added: one.", "one was in this ledger already."):
        done = CliRunner().invoke(app, add)
        assert done.exit_code == 0, done.exception
        assert added in done.stdout
        assert "Runs       1\n" in done.stdout
    proposed = [*shlex.split(use.replace("DATA", data)), "--steps", "5"]
    codes = [CliRunner().invoke(app, [*proposed, "--out", name]) for name in "ab"]
    assert codes[0].exception is None
    assert isinstance(codes[1].exception, BudgetError)
    listed = json.loads(CliRunner().invoke(app, ["ledger", "people.ledger", "--json"]).stdout)
    assert listed["spent"]["epsilon"] <= listed["budget"]["epsilon"]
    assert len(listed["runs"]) == 2


@pytest.mark.contract
def test_a_run_is_added_once_with_the_users_word_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    task = ["arch", "digits", "--eps", "1", "--strategy", "fixed", "--steps", "5", "--out"]
    for name in ("one", "two"):
        assert CliRunner().invoke(app, [*task, name]).exit_code == 0

    def ledger(*arguments: str) -> tuple[str, str, int]:
        done = CliRunner().invoke(app, ["ledger", *arguments])
        runs = len(SharedLedger.open(arguments[0]).runs()) if Path(arguments[0]).exists() else 0
        return type(done.exception).__name__, str(done.exception or done.stdout), runs

    assert ledger("a")[::2] == ("UsageError", 0)
    assert "ledger_budget" in ledger("a", "--add", "one")[1]
    small = ledger("a", "--add", "one", "--ledger-budget", "0.5", "1e-4")
    assert (small[0], small[2]) == ("BudgetError", 0)
    assert ledger("a", "--add", "one", "--ledger-budget", "1.5", "1e-4")[::2] == ("NoneType", 1)
    assert "--same-data" in ledger("a", "--add", "two")[1]
    before = SharedLedger.open("a").spent()
    refused = ledger("a", "--add", "two", "--same-data")
    assert "does not fit" in refused[1]
    assert (refused[0], refused[2], SharedLedger.open("a").spent()) == ("BudgetError", 1, before)

    assert ledger("b", "--add", "two", "--ledger-budget", "3", "1e-4")[2] == 1
    assert ledger("b", "--add", "two/release")[1].endswith("was in this ledger already.\n")
    about = Path("one/private/run.json")
    about.write_text(json.dumps(json.loads(about.read_text()) | {"started": 10**9}))
    assert "began on 2001-09-09" in ledger("b", "--add", "one", "--same-data")[1]
    assert len(SharedLedger.open("b").runs()) == 1
    clock = Mock(wraps=datetime)
    clock.datetime.now.return_value = datetime.datetime(2001, 9, 8)
    monkeypatch.setattr("pasearch.runs.shared_ledger.datetime", clock)
    shutil.rmtree("two/private")
    assert ledger("b", "--add", "two", "--same-data")[0] == "UsageError"


@pytest.mark.contract
def test_a_run_with_a_ledger_has_one_name_in_all_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    task = ["arch", "digits", "--eps", "1", "--strategy", "fixed", "--steps", "5", "--out", "one"]
    total = ["--ledger-budget", "3", "1e-4"]
    assert CliRunner().invoke(app, [*task, "--ledger", "a", *total]).exit_code == 0
    for ledger in ("a", "b", "b"):
        assert CliRunner().invoke(app, ["ledger", ledger, "--add", "one", *total]).exit_code == 0
    (a, b) = (SharedLedger.open(ledger).runs() for ledger in "ab")
    assert a == b


@pytest.mark.contract
def test_a_result_that_was_changed_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    task = ["arch", "digits", "--eps", "1", "--strategy", "fixed", "--steps", "5", "--out", "one"]
    assert CliRunner().invoke(app, task).exit_code == 0
    result = Path("one/release/result.json")
    document = json.loads(result.read_text())
    document["events"][0]["count"] = 1
    result.write_text(json.dumps(document))
    done = CliRunner().invoke(app, ["ledger", "a", "--add", "one", "--ledger-budget", "3", "1e-4"])
    assert "failed verification" in str(done.exception)
    assert not Path("a").exists()


@pytest.mark.contract
@pytest.mark.parametrize(("first", "second"), [(".5", "2"), ("2", ".5")])
def test_a_run_that_takes_the_name_of_another_one_is_not_counted_as_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
):
    monkeypatch.chdir(tmp_path)
    task = ["arch", "digits", "--strategy", "fixed", "--steps", "5"]
    total = ["--ledger", "a", "--ledger-budget", "3", "1e-4"]
    assert CliRunner().invoke(app, [*task, "--eps", first, "--out", "one", *total]).exit_code == 0
    assert CliRunner().invoke(app, [*task, "--eps", second, "--out", "two"]).exit_code == 0
    name = (tmp_path / "one" / "private" / "reserved").read_text()
    (tmp_path / "two" / "private" / "reserved").write_text(name)
    done = CliRunner().invoke(app, ["ledger", "a", "--add", "two", "--same-data"])
    assert isinstance(done.exception, BudgetError)
    assert "it is another run" in str(done.exception)
