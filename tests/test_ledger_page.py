"""docs/howto-ledger.md: its commands are run, and every figure on it is what they give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pasearch.accounting.budget import Budget
from pasearch.api.search import prepare
from pasearch.cli.app import app
from pasearch.errors import BudgetError
from pasearch.planning import events_by_partition
from pasearch.runs.adaptive import adaptive_price, failure, loss_curve, worst

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
    assert shown == plans.splitlines()
    assert errors[:2] == ["", ""]
    assert f"Error: {errors[2]}\n".replace(f"{tmp_path}/", "") == refusal


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("epsilon", "delta", "count", "words"),
    [
        (1.0, 1e-5, 2, "cost {:.4g} together, and not exactly 2"),
        (1.0, TOTAL_DELTA, 2, "the two would cost\n{:.4g}."),
        (0.1, 1e-5, 50, "fifty such runs of epsilon 0.1 cost {:.4g}, and not 5"),
    ],
)
def test_so_do_its_sums(epsilon: float, delta: float, count: int, words: str):
    plan = prepare("digits", budget=Budget(epsilon, delta)).plan
    event = worst(events_by_partition(plan.lines))
    runs = [(event, loss_curve(event, failure(i + 1, TOTAL_DELTA))) for i in range(count)]
    assert words.format(adaptive_price(runs, TOTAL_DELTA).epsilon) in PAGE.read_text()


@pytest.mark.contract
@pytest.mark.parametrize("declared", [True, False])
def test_the_command_that_a_report_proposes_lets_two_runs_in_and_no_third(
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
    (found,) = re.findall(r"pasearch (\w+ DATA .* --ledger .*)", told)
    proposed = [*shlex.split(found.replace("DATA", data)), "--steps", "5"]
    codes = [CliRunner().invoke(app, [*proposed, "--out", name]) for name in "abc"]
    assert [each.exit_code or type(each.exception).__name__ for each in codes[:2]] == [
        "NoneType", "NoneType",
    ]  # fmt: skip
    assert isinstance(codes[2].exception, BudgetError)
