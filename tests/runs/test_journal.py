"""The journal: a trial is stored once and whole, exactly, and Optuna can read it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any

import pytest

from pasearch.errors import MachineError, UsageError
from pasearch.runs.journal import Journal, TrialRecord

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {
    "layers": [{"kind": "conv", "width": 16, "trainable": True}, {"kind": "linear", "width": 8}],
    "settings": {"learning_rate": 0.5, "clip": None},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trials.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    made = Journal(path)
    yield made
    made.close()


def reopened(path: Path) -> list[TrialRecord]:
    again = Journal(path)
    found = again.all()
    again.close()
    return found


@pytest.mark.unit
def test_trials_come_back_exactly(journal: Journal, path: Path):
    added = [
        journal.add(0, PARAMETERS, 1234, {"tie_break": 2**62 - 1, "weights": "0.pt"}),
        journal.add(2, {}, None, {}),
        journal.add(1, {"x": [1, [2.5, "a"], {}], "record": "r"}, -3, {"nested": {"a": [None]}}),
        journal.add(3, {"x": 2**70}, 0.125, {}),
    ]
    with pytest.raises(UsageError, match="stored already"):
        journal.add(0, {}, 2, {})
    assert journal.get(2) == added[1]
    assert journal.get(4) is None
    added[1:3] = added[2], added[1]
    assert journal.all() == added
    journal.close()
    assert reopened(path) == added
    assert [type(record.value) for record in reopened(path)] == [int, int, type(None), float]


@pytest.mark.unit
def test_what_json_cannot_hold_is_refused(journal: Journal, path: Path):
    for value in [float("nan"), float("inf"), object(), 1j]:
        for arguments in (({"x": value}, 1, {}), ({}, value, {}), ({}, 1, {"x": value})):
            with pytest.raises(UsageError, match="cannot be stored as JSON"):
                journal.add(0, *arguments)  # type: ignore[arg-type]
    assert journal.all() == []
    journal.close()
    assert reopened(path) == []


@pytest.mark.unit
def test_optuna_is_silent_and_its_settings_are_left_alone(path: Path, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = Journal(path)
            made.add(0, PARAMETERS, 7, {})
            made.close()
            reopened(path)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.property
def test_a_kill_keeps_every_stored_trial(path: Path):
    code = (
        "import sys\nfrom pasearch.runs.journal import Journal\njournal = Journal(sys.argv[1])\n"
        "for number in range(10_000):\n"
        "    journal.add(number, {'layers': [{'width': number}]}, number, {'n': number})\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        reported = [0, *map(int, process.stdout.read().split("\n")[:-1])]
    records = reopened(path)
    assert [record.number for record in records] == list(range(len(records)))
    assert len(records) in (len(reported), len(reported) + 1)
    assert all(
        record
        == TrialRecord(
            number=n, parameters={"layers": [{"width": n}]}, value=n, attributes={"n": n}
        )
        for n, record in enumerate(records)
    )


@pytest.mark.contract
@pytest.mark.parametrize(
    "error", [OperationalError("database or disk is full"), OperationalError("disk I/O error"),
              ValueError("4711")], ids=str,
)  # fmt: skip
def test_what_cannot_be_stored_tells_no_trial_and_no_score(
    journal: Journal, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    """The terminal is outside: of how many trainings there are, and of their scores, nothing."""

    def refused(trial: Any) -> None:
        raise error from ValueError("INSERT INTO trial_values (33, 4711.0)")

    monkeypatch.setattr(journal._study, "add_trial", refused)
    with pytest.raises(MachineError, match="finish the run with") as caught:
        journal.add(33, {}, 4711, {})
    shown = "".join(traceback.format_exception(caught.value))
    assert "33" not in shown.split("MachineError")[-1]
    assert "4711" not in shown.split("MachineError")[-1]
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
