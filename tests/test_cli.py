"""The command line as a stranger uses it: what it prints, what it leaves, what it refuses."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pasearch.cli.app import COMMAND_PANELS, COMMAND_SUMMARIES

SMALL = ["--steps", "12", "--batch", "200", "--candidates", "2"]
RS = ["--strategy", "rs", *SMALL]
FIXED = ["--strategy", "fixed", "--space", "fcn", "--steps", "5"]


Run = Callable[..., tuple[int, str, str]]


def written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix != ".npz"]


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 5))
    path = tmp_path / "people.npz"
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int), bounds=np.array([-3.0, 3.0]), classes=2)
    return path


class TestArch:
    @pytest.mark.quick
    def test_leaves_a_result_and_says_where(self, run: Run, tmp_path: Path):
        code, out, _ = run(
            "arch", "--eps", 2, "--space", "fcn", "--strategy", "fixed", "--steps", 12
        )
        assert code == 0
        lines = out.strip().splitlines()
        assert lines[0].startswith("Budget: epsilon 2, delta 0.0001")
        assert lines[-1].startswith("Privacy cost: epsilon ")
        assert lines[-1].endswith("runs/digits-1/release")
        names = sorted(path.name for path in (tmp_path / "runs/digits-1/release").iterdir())
        assert names == [
            "model.pt", "privacy-card.json", "privacy-card.md", "report.html", "result.json",
        ]  # fmt: skip
        private = tmp_path / "runs/digits-1/private"
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert not (private / "keys").exists(), "keys are destroyed at the end"

    def test_json_is_all_of_the_output(self, run: Run):
        code, out, _ = run("arch", "--eps", 2, *FIXED, "--json")
        assert code == 0
        assert json.loads(out)["schema_version"] == 4

    def test_quiet_prints_the_last_line(self, run: Run):
        _, out, _ = run("arch", "--eps", 2, *FIXED, "--quiet")
        assert len(out.strip().splitlines()) == 1
        assert out.startswith("Privacy cost: ")

    def test_a_user_s_file_and_space(self, run: Run, npz: Path):
        space = npz.with_name("mine.toml")
        space.write_text('family = "fcn"\n[choices]\nunits_1 = [4, 8]\nlearning_rate = [1.0, 2]\n')
        code, _, err = run(
            "arch", npz, "--eps", 3, "--space", space, *RS[:4], "--batch", 60, "--out", "y"
        )
        assert code == 0, err
        assert json.loads(Path("y/release/result.json").read_text())["dataset"]["name"] == "people"


class TestPlan:
    def test_prints_everything_and_writes_nothing(self, run: Run, tmp_path: Path):
        code, out, _ = run("plan", "arch", "digits", "--eps", 2, "--strategy", "rs", "--verbose")
        assert code == 0
        for word in ("training", "score", "test accuracy", "validation", "99.9%", "Privacy cost: "):
            assert word in out
        assert not written(tmp_path)

    def test_dry_run_is_the_same(self, run: Run, tmp_path: Path):
        plan = run("plan", "arch", "--eps", 2, *FIXED)[1]
        assert run("arch", "--eps", 2, *FIXED, "--dry-run")[1] == plan
        assert not written(tmp_path)

    def test_json(self, run: Run):
        document = json.loads(run("plan", "arch", "--eps", 2, *FIXED, "--json")[1])
        assert document["price"]["epsilon"] <= 2


class TestRefusals:
    """Bad input of form: one clear message, exit 2, nothing written."""

    def test_options(self, run: Run, tmp_path: Path):
        for arguments, word in [
            (["--eps", "0"], "above 0"),
            (["--eps", "-1"], "above 0"),
            (["--eps", "nan"], "above 0"),
            (["--eps", "inf"], "finite"),
            (["--eps", "two"], "--eps"),
            (["--eps", "1", "--delta", "0.01"], "1/n"),
            (["--eps", "1", "--delta", "0"], "delta"),
            (["--eps", "1", "--delta", "nan"], "delta"),
            (["--eps", "1", "--strategy", "magic"], "magic"),
            (["--eps", "1", "--space", "magic"], "magic"),
            (["--eps", "1", "--law", "magic"], "magic"),
            (["--eps", "1", "--device", "abacus"], "abacus"),
            (["--eps", "1", "--batch", "5000"], "5,000"),
            (["--eps", "1", "--batch", "0"], "batch"),
            (["--eps", "1", "--steps", "0"], "steps"),
            (["--eps", "1", "--steps", "-3"], "steps"),
            (["--eps", "1", "--learning-rate", "nan"], "--learning-rate is nan"),
            (["--eps", "1", "--split", "half"], "half"),
            (["--eps", "1", "--split", ".9,.2,.1"], "sum to 1"),
            (["--eps", "1", "--split", "paper"], "paper"),
            (["--eps", "1", "--search-share", "1.5"], "1.5"),
            (["--eps", "1", "--search-share", "nan"], "nan"),
            (["--eps", "1", "--strategy", "fixed", "--search-share", ".2"], "fixed"),
            (["--eps", "1", "--strategy", "fixed", "--candidates", "3"], "candidates"),
            (["--eps", "1", "--candidates", "0"], "--candidates is 0"),
            (["--eps", "1", "--candidates", "nan"], "--candidates is nan"),
            (["--eps", "1", "--strategy", "paas", "--candidates", "nan"], "candidates"),
            (["--eps", "1", "--strategy", "paas", "--candidates", "2.5"], "expected an integer"),
            (["--eps", "1", "--strategy", "mgrs", "--generations", "0"], "generations"),
            (["--eps", "1", "--generations", "2"], "generations"),
            (["--eps", "1", "--score-eps", "-1"], "--score-eps is -1"),
            (["--eps", "1", "--seed", "-1"], "-1"),
            (["--eps", "1", "--bounds", "0", "1"], "--bounds"),
            (["--eps", "1", "--max-categories", "1"], "--max-categories is 1"),
            (["--eps", "1", "--target", "age"], "--target is for a Parquet file or a table"),
            (["--eps", "1", "--regression"], "--regression is for"),
            (["--eps", "1", "--image-side", "8"], "--image-side is for a folder"),
            (["--eps", "1", "--search-on", "digits"], "--strategy rs cannot be used"),
            (
                ["--eps", "1", "--strategy", "auto", "--candidates", "3"],
                "--candidates: with",
            ),
            (["--eps", "1", "--strategy", "auto", "--law", "poisson"], "--law: with"),
            (["--eps", "1", "--strategy", "auto", "--search-share", "0.2"], "--search-share: with"),
            (["--eps", "1", "--frobnicate"], "frobnicate"),
        ]:
            code, _, err = run("arch", "--strategy", "rs", *arguments)
            assert code == 2, err
            assert word in err
            assert "Traceback" not in err
            assert not written(tmp_path)

    def test_no_gpu_when_demanded(self, run: Run, tmp_path: Path):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        code, _, err = run("arch", "--eps", 1, *FIXED, "--device", "cuda")
        assert (code, "cuda" in err) == (2, True)
        assert not written(tmp_path)

    def test_files(self, run: Run, tmp_path: Path):
        for make, word in [
            (lambda path: None, "does not exist"),
            (lambda path: path.write_bytes(b""), "empty"),
            (lambda path: path.write_bytes(b"hello"), ".npz"),
            (lambda path: np.savez(path, x=np.zeros((5, 2))), "no array y"),
            (lambda path: np.savez(path, x=np.zeros((5, 2)), y=np.zeros(4, int)), "4"),
            (lambda path: np.savez(path, x=np.zeros((0, 2)), y=np.zeros(0, int)), "no record"),
        ]:
            path = tmp_path / "data.npz"
            make(path)
            code, _, err = run("arch", path, "--eps", 1)
            assert code == 2, err
            assert word in err
            assert not written(tmp_path)

    def test_a_budget_too_small_says_which_would_do(self, run: Run, tmp_path: Path):
        code, _, err = run("arch", "--eps", "1e-6", "--strategy", "rs")
        assert code == 3
        assert "epsilon" in err
        assert not written(tmp_path)


class TestAccount:
    @pytest.mark.quick
    def test_reproduces_a_pin(self, run: Run):
        numbers = "--sigma 2 --steps 180000 --batch 100 --n 60000 --delta 1e-5"
        code, out, _ = run("account", "price", *numbers.split(), "--json")
        assert code == 0
        # The pin is dp_accounting's on its default grid; a finer grid bounds a little less.
        assert 0.997 * 1.461 < json.loads(out)[0]["epsilon"] <= 1.4615

    def test_every_number_can_be_the_one_left_out(self, run: Run):
        numbers = {"eps": 1.5, "sigma": 4.0, "steps": 200, "batch": 400, "n": 1600, "delta": 1e-4}
        for wanted in numbers:
            given = [x for k, v in numbers.items() if k != wanted for x in (f"--{k}", v)]
            code, out, err = run("account", "price", *given, "--json")
            assert code == 0, err
            (answer,) = json.loads(out)
            assert answer["solved"] == {"eps": "epsilon"}.get(wanted, wanted)
            if wanted != "eps":
                assert answer["epsilon"] <= 1.5 * (1 + 1e-9)

    def test_candidates_and_laws(self, run: Run):
        numbers = "--eps 3 --sigma 8 --steps 200 --batch 400 --n 1600 --delta 1e-4".split()
        code, out, _ = run("account", "price", *numbers, "--law", "geometric", "--json")
        assert code == 0
        assert json.loads(out)[0]["candidates"] > 2
        priced = [*numbers[2:], "--candidates", "10", "--json"]
        answers = json.loads(run("account", "price", *priced)[1])
        assert [a["law"] for a in answers][-1] == "composed"
        assert len(answers) == 5

    def test_refuses(self, run: Run):
        for arguments in [
            "",
            "--sigma 1",
            "--sigma nan --steps 10 --batch 10 --n 100 --delta 1e-3",
            "--sigma 1 --steps 10 --batch 1000 --n 100 --delta 1e-3",
            "--sigma 1 --steps 10 --batch 10 --n 100 --delta 2",
            "--sigma 1 --steps 10 --batch 10 --n 100 --delta 1e-3 --law magic",
            "--sigma 1 --steps 10 --batch 10 --n 100 --delta 1e-3 --candidates 2.5 --law composed",
        ]:
            code, _, err = run("account", "price", *arguments.split())
            assert code == 2
            assert err


class TestProcess:
    """What only a process of its own shows."""

    def test_help_is_quick_because_nothing_heavy_is_imported(self):
        code = (
            "import sys; sys.argv = ['pasearch', '--help']\n"
            "from pasearch.cli import main\n"
            "try: main()\n"
            "finally: print(sorted({'torch', 'sklearn', 'scipy', 'dp_accounting', 'optuna'}"
            " & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stdout.strip().endswith("[]")

    @pytest.mark.slow
    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupted_run_is_resumed_and_pays_once(self, run: Run, tmp_path: Path, sent: int):
        out = tmp_path / "x"
        base = [sys.executable, "-m", "pasearch", "arch"]
        options = "--eps 4 --strategy paas --generations 2 --candidates 3 --steps 60 --space fcn"
        options = options.split()
        process = subprocess.Popen(
            [*base, *options, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=tmp_path,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        deadline = time.monotonic() + 600
        while not list(out.glob("private/trials/*.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(sent)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 130, err
        assert f"`pasearch resume {out}`" in err
        assert not list((out / "release").iterdir()), "an unfinished run has released nothing"
        if sent == signal.SIGINT:  # another process takes it up; of the other signal, this one
            finish = [sys.executable, "-m", "pasearch", "resume", str(out)]
            done = subprocess.run(finish, capture_output=True, text=True, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        else:
            code, _, err = run("resume", out)
            assert code == 0, err
        assert (out / "release/result.json").exists()
        code, _, err = run("resume", out)
        assert code == 2
        assert "finished" in err


@pytest.mark.unit
def test_a_ctrl_c_that_is_swallowed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    """As in a weak reference's callback, where Python drops what is raised."""
    from pasearch.cli import tasks as interrupts

    def swallowed() -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        time.sleep(5)

    honest = signal.setitimer
    monkeypatch.setattr(signal, "setitimer", lambda which, wait: honest(which, wait / 20))
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGALRM)]
    with pytest.raises(KeyboardInterrupt), interrupts.raise_on_signals():
        swallowed()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGALRM)] == handlers
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def ends_with_130(folder: Path) -> None:
    """Run the module `interrupted` of a folder: it says that it was, and no more."""
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 130, done.stderr
    assert "Interrupted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.unit
def test_a_ctrl_c_within_an_exec_ends_with_130_too(tmp_path: Path):
    """Python remembers such a one, and `python -m` would end by the signal itself."""
    (tmp_path / "interrupted.py").write_text(
        "from pasearch import cli\n"
        "cli.app = lambda **_: exec('raise KeyboardInterrupt')\n"
        "cli.main()\n"
    )
    ends_with_130(tmp_path)


@pytest.mark.unit
def test_a_ctrl_c_while_a_module_is_loaded_ends_with_130_too(tmp_path: Path):
    """Such a module raises an error of its own, which names neither."""
    for how in ["from KeyboardInterrupt()", ""]:
        (tmp_path / "interrupted.py").write_text(
            "from pasearch import cli\n"
            "def load(**_):\n"
            "    try:\n"
            "        raise KeyboardInterrupt\n"
            "    except KeyboardInterrupt:\n"
            f"        raise ImportError('initialization failed') {how}\n"
            "cli.app = load\n"
            "cli.main()\n"
        )
        ends_with_130(tmp_path)


class TestResumeAlone:
    def test_resume_takes_no_other_option(self, run: Run):
        for more in [
            ["--eps", "9"],
            ["--strategy", "fixed"],
            ["mnist"],
            ["--device", "cpu", "--seed", "3"],
        ]:
            code, _, err = run("resume", "x", *more)
            assert code == 2
            assert "No such option" in err or "unexpected extra argument" in err

    def test_quiet_and_json_are_allowed(self, run: Run):
        code, _, err = run("resume", "nowhere", "--quiet", "--json")
        assert code == 2
        assert "nowhere" in err


def test_more_steps_than_can_be_priced_are_refused_at_once(run: Run):
    for steps in ["100000000", "10000001"]:
        code, _, err = run("arch", "--eps", 1, "--strategy", "fixed", "--steps", steps, "--dry-run")
        assert (code, "--steps is" in err) == (2, True)
        numbers = f"--sigma 2 --steps {steps} --batch 100 --n 60000 --delta 1e-5"
        code, _, err = run("account", "price", *numbers.split())
        assert (code, "--steps is" in err) == (2, True)


def test_a_seeded_run_says_so_in_its_last_line(run: Run):
    code, out, err = run("arch", "--eps", 4, *RS, "--seed", 3, "--quiet")
    assert code == 0, err
    assert "NOT PRIVATE: --seed" in out.splitlines()[-1]


RARE = "7070707070"  # of one record alone, and no figure that a run tells by chance


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ragged rows, empty cells, what is no number, and one rare value."""
    rows = [f"{18 + i % 70},{('Rome', 'Oslo')[i % 2]},{('low', 'high')[i % 2]}" for i in range(250)]
    rows[3], rows[4], rows[5] = "12,Rome", "nan,Rome,low,low", ",?,"
    rows[6] = ",".join(f"{cell}-{RARE}" for cell in ("unheard-of", "Atlantis", "caste"))
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,city,income", *rows]) + "\n")
    return path


SMALL_TABLE = ["--strategy", "fixed", "--space", "tables", "--steps", "5", "--batch", "20"]


class TestTables:
    def test_one_about_which_nothing_is_said(self, run: Run, table: Path):
        code, out, err = run("arch", table, "--eps", 8, *SMALL_TABLE, "--out", "x", "--verbose")
        assert code == 0, err
        assert "private schema estimation (2 items)" in out
        assert "\n  classes  " in out
        assert (
            "The classes of 'income' will be estimated with DP from the training partition" in out
        )
        assert "of age, city will be estimated with DP from the test partition" in out
        assert out.strip().splitlines()[-1].startswith("Privacy cost: epsilon ")
        assert RARE not in out + err
        document = json.loads(Path("x/release/result.json").read_text())
        assert len(document["estimated_privately"]) == 3
        assert run("verify", "x")[0] == 0

    def test_a_file_of_which_no_row_can_be_read_sends_its_user_to_check(
        self, run: Run, tmp_path: Path
    ):
        rows = "".join(f"{i},{('no', 'yes')[i % 2]},more\n" for i in range(400))
        (tmp_path / "mine.csv").write_text("a,y\n" + rows)
        options = ["mine.csv", "--eps", 1, "--strategy", "fixed", "--steps", 3]
        code, _, err = run("arch", *options)
        assert code == 3
        assert "no class was found, so no model was trained" in err
        assert "`pasearch check FILE` shows unreadable rows" in err
        assert "every row has 3 cells, and the header has 2" in run("check", "mine.csv")[2]

    def test_new_records_without_a_column_are_asked_whether_another_is_meant(
        self, run: Run, tmp_path: Path
    ):
        rows = "".join(f"{i % 9},{('no', 'yes')[i % 2]}\n" for i in range(200))
        (tmp_path / "mine.csv").write_text("balance,y\n" + rows)
        options = ["mine.csv", "--eps", 1, "--strategy", "fixed", "--steps", 3, "--out", "x"]
        assert run("arch", *options)[0] == 0
        for name, more in (("balanse", "add it, or is 'balanse' meant?"), ("zq", "add it.")):
            (tmp_path / "new.csv").write_text(f"{name},more\n1,2\n2,3\n")
            code, _, err = run("predict", "x", "new.csv")
            assert code == 2
            assert f"no column 'balance': {more}" in " ".join(err.split())
        for folder in ("x", "x/release"):
            out = " ".join(run("report", folder)[1].split())
            assert "x/release" in out
            assert "release/release" not in out

    def test_a_column_that_is_not_there(self, run: Run, table: Path):
        code, _, err = run("arch", table, "--eps", 1, "--target", "incom")
        assert (code, "did you mean 'income'" in err) == (2, True)


class TestCheck:
    def test_shows_values_says_so_and_proposes(self, run: Run, table: Path, tmp_path: Path):
        code, out, err = run("check", table, "--propose", "s.toml")
        assert code == 0, err
        assert out.startswith("WARNING. This output contains private values.")
        assert f"unheard-of-{RARE}" in out
        assert "rows: 5, 6" in out or "5, 6" in out, "the ragged rows, as a spreadsheet counts"
        proposed = tmp_path / "s.toml"
        assert stat.S_IMODE(proposed.stat().st_mode) == 0o600
        assert "PRIVATE until you have edited it" in proposed.read_text()
        assert sorted(path.name for path in written(tmp_path)) == ["people.csv", "s.toml"]

    def test_what_it_proposes_can_be_declared_once_it_is_edited(
        self, run: Run, table: Path, tmp_path: Path
    ):
        run("check", table, "--propose", "s.toml")
        options = ["--schema", "s.toml", "--eps", 1, *SMALL_TABLE]
        for task in (("arch",), ("plan", "arch"), ("features",), ("crossover",)):
            more = ["linear", "fcn"] if task == ("crossover",) else []
            code, out, err = run(*task, table, *more, *options[:4])
            assert code == 2, task
            assert "proposed = true" in err
        code, out, err = run("plan", "arch", table, *options, "--assume-public-schema")
        assert code == 0, err
        assert "the schema, which was read from the records" in " ".join(out.split())
        file = tmp_path / "s.toml"
        file.write_text(file.read_text().replace("proposed = true\n", ""))
        code, out, err = run("plan", "arch", table, *options)
        assert code == 0, err
        assert "schema estimation" not in out
        code, again, _ = run("check", table, "--schema", "s.toml")
        assert code == 0
        assert again.startswith("WARNING. ")

    def test_refuses(self, run: Run, table: Path):
        for arguments, word in [
            (["nowhere.csv"], "does not exist"),
            (["people.csv", "--target", "wealth"], "no column 'wealth'"),
            (["people.csv", "--schema", "none.toml"], "does not exist"),
            (["people.csv", "--propose", "nowhere/s.toml"], "nowhere"),
            ([], "data"),
        ]:
            code, _, err = run("check", *arguments)
            assert code == 2
            assert word in err.lower()
            assert "Traceback" not in err


class TestLedger:
    def test_one_run_before_is_one(self, run: Run, npz: Path):
        options = [npz, "--eps", 1, "--strategy", "fixed", "--space", "tables", "--steps", 5,
                   "--batch", 20, "--ledger", "people.ledger"]  # fmt: skip
        code, _, err = run("arch", *options, "--ledger-budget", 1.5, "1e-3", "--out", "a")
        assert code == 0, err
        code, _, err = run("arch", *options, "--out", "b")
        assert code == 3
        told = " ".join(err.split())
        assert "people.ledger: the earlier run has spent epsilon " in told
        assert "The runs share this delta, so their epsilons add up only approximately." in told
        code, _, err = run(
            "arch", *options[:-1], "other", "--ledger-budget", 0.5, "1e-3", "--out", "c"
        )
        assert code == 3
        assert "other: this one costs " in " ".join(err.split())
        assert "earlier runs" not in err


class TestAuto:
    def test_says_why_and_is_the_default(self, run: Run, npz: Path):
        code, out, err = run(
            "plan", "arch", npz, "--eps", 1, "--steps", 5, "--batch", 20, "--verbose"
        )  # fmt: skip
        assert code == 0, err
        (why,) = (line for line in out.splitlines() if line.startswith("Why "))
        assert "public data sets of this kind" in why
        assert "portfolio of arrays networks" in out


@pytest.mark.unit
def test_account_schedule_says_what_it_solved(run):
    given = (
        "account schedule --sigma 10 --n 60000 --batch 600 --eps 7 --batching reshuffled".split()
    )
    code, out, _ = run(*given, "--kind", "step", "--period", "10", "--epochs", "60", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["epochs"] == 60
    assert found["price"]["epsilon"] <= 7.0
    rate = repr(found["schedule"]["rate"])
    code, out, _ = run(*given, "--kind", "step", "--period", "10", "--rate", rate)
    assert code == 0
    assert out.startswith("epochs 60 ")
    code, _, err = run(*given, "--kind", "step", "--epochs", "60")
    assert code == 2
    assert "lacks period" in err


class TestMistakes:
    """A slip of the hand is answered with what was meant, before anything is planned."""

    def test_of_names_and_numbers(self, run: Run, npz: Path):
        for arguments, said in [
            (
                ["arch", "--epps", "2"],
                "No such option: --epps (of `pasearch arch`). Did you mean --eps?",
            ),
            (["arch", "--STRATEGY", "rs"], "Did you mean --strategy?"),
            (["plan", "train", "--epps", "2"], "(of `pasearch plan train`). Did you mean --eps?"),
            (["features", "--space", "fcn"], "It is an option of `pasearch arch`."),
            (["report", "--verify"], "There is a command `pasearch verify`."),
            (["arch", "--zzzzzz"], "See `pasearch arch --help`."),
            (["train", "--candidates", "3"], "--candidates is an option of a search"),
            (["arhc"], "No such command 'arhc'. Did you mean 'arch'?"),
            (["plan", "feature"], "Did you mean 'features'?"),
            (["digits"], "`pasearch arch digits`"),
            (["plan", "digits"], "`pasearch plan arch digits`"),
            (["plan", "people.npz", "--eps", "2"], "`pasearch plan arch people.npz`"),
            (["arch", "--eps", "abc"], "Error: --eps is 'abc': expected a number."),
            (["arch", "--steps", "1.5"], "Error: --steps is '1.5': expected an integer."),
            (
                ["arch", "--bounds", "0", "x"],
                "Error: --bounds is 'x': expected 2 numbers, separated by spaces.",
            ),
            (["arch", "--eps", "-1"], "Error: --eps is -1.0: expected a finite number above 0."),
            (["account", "price", "--law", "geometrc"], "Did you mean 'geometric'?"),
            (["check", "people.csv", "--separator"], "--separator ';', or write semicolon"),
            (["arch", "people.csv", "--separator"], "--separator ';', or write semicolon"),
            (["arch", "poeple.npz", "--eps", "2"], "Did you mean people.npz?"),
        ]:
            code, out, err = run(*arguments)
            assert (code, out) == (2, "")
            assert said in err
            assert "Traceback" not in err

    def test_every_command_is_listed_with_a_whole_sentence(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("COLUMNS", "80")
        panels = run("--help")[1].partition(f"{next(iter(COMMAND_PANELS))}:")[2].splitlines()
        listed = [line for line in panels if line.startswith("  ")]
        assert len(listed) == len(COMMAND_SUMMARIES)
        assert all(line.endswith(".") and not line.endswith("...") for line in listed)

    def test_one_that_is_near_nothing_is_not_guessed(self, run: Run):
        assert "mean" not in run("qqqqq")[2]
        assert "arch qqqqq" not in run("qqqqq")[2]
        assert "mean" not in run("arch", "--zzzzzz")[2]

    def test_paths_are_looked_at_before_anything_is_planned(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        def planned(*_: object, **__: object) -> None:
            raise AssertionError("planned")

        monkeypatch.setattr("pasearch.api.search.prepare_run", planned)
        (tmp_path / "there").mkdir()
        for arguments in (["arch"], ["plan", "arch"], ["arch", "--dry-run"]):
            code, _, err = run(*arguments, "--schema", "no.toml")
            assert (code, "no.toml does not exist" in err) == (2, True)
        code, _, err = run("arch", "--out", "there")
        assert (code, "there exists" in err) == (2, True)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "private/trials/7.pt")


class TestMachine:
    """What the machine refuses is named, with what to do; nothing is lost, nothing half-written."""

    def test_before_a_run(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        for error, said in [
            (MemoryError(), "Not enough memory."),
            (RuntimeError("CUDA out of memory. Tried to allocate"), "a smaller --batch"),
            (
                PermissionError(errno.EACCES, "Permission denied", "x"),
                "Permission to read or write",
            ),
            (FULL, "The disk is full."),
        ]:

            def planned(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr("pasearch.api.search.prepare_run", planned)
            code, out, err = run("arch", "--eps", 2, *FIXED)
            assert (code, out) == (1, "")
            assert err.startswith("Error: ")
            assert said in err
            assert err.rstrip().endswith("Then repeat the command.")
            assert "trials" not in err, "in private/ even a file's name may tell of the records"
            assert not written(tmp_path)

    def test_an_error_of_ours_is_no_error_of_the_machine_s(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ):
        def planned(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr("pasearch.api.search.prepare_run", planned)
        with pytest.raises(RuntimeError, match="a bug"):
            run("arch", "--eps", 2, *FIXED)

    def test_a_key_stroke_while_it_is_planned(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def planned(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("pasearch.api.search.prepare_run", planned)
        code, out, err = run("arch", "--eps", 2, *FIXED)
        assert (code, out) == (130, "")
        assert err == "Interrupted. No run had started, so nothing was charged.\n"
        assert not written(tmp_path)

    @pytest.mark.parametrize("name", ["run.json", "request.json"])
    def test_a_full_disk_before_a_record_is_read_leaves_nothing(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ):
        fail_at(monkeypatch, name)
        code, _, err = run("arch", "--eps", 2, *FIXED, "--out", "x")
        assert code == 1
        assert "The disk is full. Free some space." in err
        assert err.rstrip().endswith("Then repeat the command.")
        assert not written(tmp_path)

    def test_nor_does_a_ledger_that_cannot_be_made(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("pasearch.runs.ledger.transaction", full_store)
        code, _, err = run("arch", "--eps", 2, *FIXED, "--out", "x")
        assert (code, "The disk is full." in err) == (1, True)
        assert not written(tmp_path)

    @pytest.mark.parametrize("name", ["0.pt", "timings.json", "result.json"])
    def test_a_run_that_a_full_disk_breaks_off_is_finished_and_pays_once(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
    ):
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, name)
            code, _, err = run("arch", "--eps", 2, *FIXED, "--out", "x")
        assert code == 1
        assert f"continue with `pasearch resume {Path('x').absolute()}`." in err
        assert name not in err
        assert not list(Path("x/release").iterdir()), "nothing half-written is published"
        code, _, err = run("resume", "x")
        assert code == 0, err
        assert run("verify", "x")[0] == 0
        assert json.loads(Path("x/release/result.json").read_text())["price"]["epsilon"] <= 2

    def test_so_is_one_whose_first_charge_cannot_be_written(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pasearch.runs.ledger.Ledger._charge_one", full_store)
            code, _, err = run("arch", "--eps", 2, *FIXED, "--out", "x")
        assert code == 1
        assert "finish the run with `pasearch resume`" in err
        assert run("resume", "x")[0] == 0

    def test_a_ledger_of_all_runs_that_a_full_disk_refuses_is_no_lost_one(
        self, run: Run, npz: Path, monkeypatch: pytest.MonkeyPatch
    ):
        options = [npz, "--eps", 2, *FIXED, "--batch", 20, "--out", "x"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pasearch.runs.shared_ledger._create_file", full_store)
            shared = ["--ledger", "people.ledger", "--ledger-budget", 4, "1e-3"]
            code, _, err = run("arch", *options, *shared)
        assert (code, "The disk is full." in err) == (1, True)
        assert "treat" not in err, "its budget is not spent"
        code, _, err = run("resume", "x")
        assert code == 0, err

    def test_a_published_result_is_never_taken_away(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ):
        from pasearch.runs.folder import RunFolder

        genuine = RunFolder.hide_times

        def refused(folder: RunFolder) -> None:
            if not (folder.private / "keys").exists():
                raise FULL
            genuine(folder)

        monkeypatch.setattr(RunFolder, "hide_times", refused)
        code, _, err = run("arch", "--eps", 2, *FIXED, "--out", "x")
        assert (code, "The disk is full." in err) == (1, True)
        assert Path("x/release/result.json").exists()
        assert run("verify", "x")[0] == 0


def full_store(*_: object) -> None:
    """Refuse as SQLite does where the disk is full."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def fail_at(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the disk be full when a file of this name is written."""
    genuine = os.replace

    def full(source: object, target: object) -> None:
        if Path(str(target)).name == name:
            raise FULL
        genuine(str(source), str(target))

    patch.setattr("pasearch.runs.folder.os.replace", full)


class TestPipes:
    """Whoever reads the output may go, or never have been there."""

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("recipes", ""),
            ("arch --eps 2 --strategy fixed --steps 5 --space fcn", "The run was not started."),
            ("arch --eps 2 --strategy fixed --steps 5 --space fcn --quiet --out x",
             "The run is finished: `pasearch report "),
        ],
    )  # fmt: skip
    def test_one_that_nobody_reads_ends_quietly(self, tmp_path: Path, arguments: str, said: str):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "pasearch", *arguments.split()], stdout=writer,
            stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        os.close(writer)
        assert done.returncode == 1
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == bool(said)
        assert (tmp_path / "x/release/result.json").exists() == ("finished" in said)

    def test_without_any_output_at_all(self, run: Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sys, "stdout", None)
        assert run("plan", "arch", "--eps", 2, *FIXED)[0] == 0


def test_on_a_terminal_lines_are_broken_where_it_ends(monkeypatch: pytest.MonkeyPatch):
    from pasearch.cli.options import wrap_lines

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    row = "Price     " + "many words " * 30
    for columns, width in (("80", 80), ("20", 60), ("200", 110)):
        monkeypatch.setenv("COLUMNS", columns)
        lines = wrap_lines(f"{row.rstrip()}\n\n  a list", Terminal()).splitlines()
        assert max(map(len, lines)) in range(width - 10, width + 1)
        assert lines[-2:] == ["", "  a list"]
        assert all(re.match(r" {10}\S", line) for line in lines[1:-2]), "below the row's text"
        assert " ".join(" ".join(lines[:-2]).split()) == " ".join(row.split())
    assert wrap_lines(row, io.StringIO()) == row, "a script gets every line whole"


def test_waiting_threads_of_torch_burn_no_time(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    run("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    run("--version")
    assert os.environ["OMP_WAIT_POLICY"] == "active", "the user's own choice"


def test_an_interrupted_comparison_says_how_to_go_on_if_its_trainings_were_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def measured(*_: object, store: Path | None, **__: object) -> None:
        if store is not None:
            store.parent.mkdir()
            store.write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr("pasearch.api.crossover.measure_crossover", measured)
    code, _, err = run("crossover", "digits", "linear", "fcn", "--out", "x")
    assert (code, "the same command and --resume" in err) == (130, True)
    code, _, err = run("crossover", "digits", "linear", "fcn")
    assert (code, "resume" in err) == (130, False)
