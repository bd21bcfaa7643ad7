"""Stores that several machines reach: PostgreSQL, started here, and a journal file."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from postgres_server import PASSWORD, Server, server

from pasearch import Budget, resume
from pasearch.api import search as api
from pasearch.api.request import SearchRequest
from pasearch.errors import BudgetError, InterruptedRunError, MachineError, UsageError
from pasearch.runs.journal import (
    STORE_LOCK_SECONDS,
    Address,
    Journal,
    MissingStudyError,
    parse_address,
)
from pasearch.runs.keys import Keys

ROOT = Path(__file__).resolve().parents[2]
SEAL = Keys.from_seed(1).stream("journal")
KINDS = ("postgres", "journal")


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """What a user names: a database of its own, or a file."""
    if request.param == "journal":
        yield str(tmp_path / "shared.log")
        return
    made: Server = request.getfixturevalue("running")
    made.ask("CREATE DATABASE own", database="postgres")
    yield made.url(database="own")
    made.ask("DROP DATABASE own WITH (FORCE)", database="postgres")


def of(text: str) -> Address:
    found = parse_address(text)
    assert found is not None
    return found


def rewritten(storage: str, old: str, new: str) -> None:
    """Alter what is stored as somebody does who can write there."""
    if "://" not in storage:
        path = Path(storage)
        path.write_text(path.read_text().replace(old, new))
        return
    import psycopg

    with psycopg.connect(storage) as link:
        changed = link.execute(
            "UPDATE trial_user_attributes SET value_json = replace(value_json, %s, %s)", (old, new)
        )
        assert changed.rowcount


def without_trials(storage: str, kept: int) -> None:
    """Delete all trials but the first ones."""
    if "://" not in storage:
        lines = Path(storage).read_text().splitlines(keepends=True)
        Path(storage).write_text("".join(lines[: 1 + kept]))
        return
    import optuna
    import psycopg

    tables = [*map(str, optuna.storages._rdb.models.BaseModel.metadata.tables)]
    with psycopg.connect(storage) as link:
        for name in (each for each in tables if each.startswith("trial_")):
            link.execute(
                f"DELETE FROM {name} WHERE trial_id IN (SELECT trial_id FROM trials "  # type: ignore
                f"WHERE number >= {kept})"
            )
        link.execute("DELETE FROM trials WHERE number >= %s", (kept,))


# The address


@pytest.mark.unit
def test_an_address_has_its_password_apart():
    for given, text, password in [
        ("postgresql://u@h/d", "postgresql://u@h/d", None),
        ("postgres://u:p%40w@h:5432/d", "postgresql://u@h:5432/d", "p%40w"),
        ("postgresql+psycopg://u:@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require", ""),
        ("postgresql://u:pw@/d?host=/run/x", "postgresql://u@/d?host=/run/x", "pw"),
        ("postgresql://h1:1,[::1]:2/d", "postgresql://h1:1,[::1]:2/d", None),
        ("/a/b.log", "/a/b.log", None),
    ]:
        found = of(given)
        assert (found.text, found.password, str(found)) == (text, password, text)
        assert parse_address(found) is found
        assert not password or password not in repr(found)
        request = SearchRequest(storage=given)
        assert not password or password not in repr(request)
        assert replace(request, seed=1).storage == found


@pytest.mark.unit
def test_what_is_no_address_is_refused_and_not_repeated():
    for given, told in [
        ("mysql://u:geheim@h/d", "an unsupported store"),
        ("postgresql://u:geheim#x@h/d", "%23 for #"),
        ("postgresql://u:geheim/x@h/d", "%2F for /"),
        ("postgresql://u:geheim?x@h/d", "%3F for ?"),
        ("postgresql://geheim@x@h/d", None),
        ("postgresql://u:geheim", "can be read in two ways"),
        ("postgresql://u@h/d?password=geheim", "after its question mark"),
        ("postgresql://u@h/d?sslpassword=geheim", "after its question mark"),
        ("postgresql://u@h/d?Password=geheim", "after its question mark"),
        ("postgresql://u@h/d?a=1;password=geheim", "after its question mark"),
        ("postgresql://u%3Ageheim@h/d", "after its question mark"),
        ("host=h password=geheim.log", "whose name ends in .log"),
        ("postgresql://u:geheim@h", "names no database"),
        ("postgresql://[u:geheim@h/d", "a malformed URL"),
        ("host=h password=geheim", "whose name ends in .log"),
        ("geheim.sqlite", "whose name ends in .log"),
        (4711, "of type int"),
    ]:
        if told is None:  # the part before the last @ is the user, as everywhere
            assert of(given).text == given
            continue
        with pytest.raises(UsageError) as caught:
            SearchRequest(storage=given)
        assert told in str(caught.value)
        assert "geheim" not in str(caught.value)


# One study


@pytest.mark.contract
def test_trials_come_back_exactly_and_once(storage: str):
    place = of(storage)
    journal = Journal(place, "a run")
    journal.sealed_by(SEAL)
    added = [
        journal.add(0, {"layers": [{"units": 16, "kind": "relu"}]}, 1234, {"big": 2**62 - 1}),
        journal.add(2, {"x": [1, [2.5, "a\0é\ud800"], {}]}, None, {"nested": {"a": [None]}}),
        journal.add(1, {"x": 2**70}, 0.1, {}),
    ]
    with pytest.raises(UsageError, match="stored already"):
        journal.add(1, {}, 2, {})
    journal.close()
    again = Journal(place, "a run", new=False)
    again.sealed_by(SEAL)
    assert again.all() == [added[0], added[2], added[1]]
    assert [type(each.value) for each in again.all()] == [int, float, type(None)]
    assert not again.forget_if_empty()
    again.close()


@pytest.mark.contract
def test_a_store_holds_many_runs_each_its_own(storage: str):
    place = of(storage)
    first, second = Journal(place, "one"), Journal(place, "two")
    first.add(0, {}, 1, {})
    assert second.all() == []
    with pytest.raises(UsageError, match="holds a study 'one' already"):
        Journal(place, "one")
    with pytest.raises(MissingStudyError, match=r"name that store \(`storage=`\)"):
        Journal(place, "three", new=False)
    assert second.forget_if_empty()
    with pytest.raises(MissingStudyError):
        Journal(place, "two", new=False)
    first.close()
    second.close()


@pytest.mark.contract
@pytest.mark.parametrize(
    ("old", "new"), [('"value": 7', '"value": 9'), ("w.pt", "v.pt"), ('"number": 0', '"number": 5')]
)
def test_a_record_that_was_altered_is_refused(storage: str, old: str, new: str):
    journal = Journal(of(storage), "run")
    journal.sealed_by(SEAL)
    journal.add(0, {"x": 1}, 7, {"weights": "w.pt"})
    journal.close()
    if "://" not in storage:
        old, new = old.replace(": ", ":"), new.replace(": ", ":")
    rewritten(storage, old, new)
    again = Journal(of(storage), "run", new=False)  # to look at, without keys
    assert len(again.all()) == 1
    with pytest.raises(UsageError, match="with keys of another run"):
        again.sealed_by(SEAL)
    again.close()


@pytest.mark.contract
@pytest.mark.parametrize("seal", [Keys.from_seed(2).stream("journal"), None])
def test_another_run_s_record_is_refused(storage: str, seal: Any):
    """In the place of this run's study, or added to it."""
    journal, other = Journal(of(storage), "run"), Journal(of(storage), "run", new=False)
    journal.sealed_by(SEAL)
    if seal is not None:
        other.sealed_by(seal)
    other.add(0, {"x": 1}, 7, {})
    with pytest.raises(UsageError, match="with keys of another run"):
        journal.add(1, {"x": 1}, 7, {})
    again = Journal(of(storage), "run", new=False)
    with pytest.raises(UsageError, match="with keys of another run"):
        again.sealed_by(SEAL)
    for each in (journal, other, again):
        each.close()


@pytest.mark.contract
def test_optuna_reads_it(storage: str):
    import optuna

    journal = Journal(of(storage), "run")
    journal.add(0, {"layers": [{"units": 16}]}, 7, {})
    journal.add(1, {}, None, {})
    journal.close()
    place: Any = optuna.storages
    if "://" in storage:
        place = storage.replace("postgresql:", "postgresql+psycopg:")
    else:
        place = place.JournalStorage(place.journal.JournalFileBackend(storage))
    study = optuna.load_study(study_name="run", storage=place)
    assert (study.best_value, study.best_params) == (7, {"layers.0.units": 16.0})
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL"]
    if "://" in storage:
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


@pytest.mark.unit
def test_a_full_disk_is_the_machine_s_fault_and_another_error_the_store_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number, expected in ((errno.ENOSPC, OSError), (errno.EACCES, UsageError)):

        def refused(*_: Any, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("pasearch.runs.journal.os.open", refused)
        with pytest.raises(expected):
            Journal(of(str(tmp_path / "t.log")), "run")


@pytest.mark.unit
def test_a_line_that_a_crash_has_cut_is_taken_away(tmp_path: Path):
    storage = str(tmp_path / "t.log")
    journal = Journal(of(storage), "run")
    first = journal.add(0, {}, 1, {})
    with open(storage, "ab") as file:
        file.write(b'{"op_code":4,"study_id":0,"val')
    again = Journal(of(storage), "run", new=False)
    assert again.all() == [first]
    again.add(1, {}, 2, {})
    assert [each.number for each in Journal(of(storage), "run", new=False).all()] == [0, 1]
    assert Path(storage).stat().st_mode & 0o777 == 0o600


WORKER = """
import sys, time
from pasearch.runs import journal as stores
from pasearch.errors import MachineError, UsageError
from pasearch.runs.journal import Journal
from pasearch.runs.keys import Keys
me, storage = int(sys.argv[1]), sys.stdin.readline().strip()
if "://" not in storage:
    stores.STORE_LOCK_SECONDS = 3  # then others take the lock of the killed one
journal = Journal(stores.parse_address(storage), "run", new=False)
journal.sealed_by(Keys.from_seed(1).stream("journal"))
print("ready", flush=True)
sys.stdin.readline()
for step in range(40):
    number = (step + 10 * me) % 40  # each begins elsewhere, and all meet
    if journal.get(number) is None:
        try:
            journal.add(number, {"x": number}, number, {"by": me})
        except UsageError as error:
            assert "stored already" in str(error)
        else:
            print(number, flush=True)
        time.sleep(0.01)
"""


def say(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def heard(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


@pytest.mark.contract
def test_of_four_processes_one_is_killed_and_nothing_is_lost_or_doubled(storage: str):
    import optuna

    assert STORE_LOCK_SECONDS >= 30, "what the workers shorten"
    Journal(of(storage), "run").close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(me)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for me in range(4)
    ]  # fmt: skip
    with ExitStack() as stack:
        for each in workers:
            stack.enter_context(each)
            stack.callback(each.kill)
            say(each, storage)
        assert [heard(each) for each in workers] == ["ready"] * 4
        for each in workers:
            say(each, "go")
        told = [int(heard(workers[0])) for _ in range(3)]
        workers[0].send_signal(signal.SIGKILL)
        told += map(int, workers[0].communicate()[0].split())
        assert workers[0].returncode == -signal.SIGKILL
        for each in workers[1:]:
            out, err = each.communicate(timeout=120)
            assert each.returncode == 0, err
            told += map(int, out.split())
    journal = Journal(of(storage), "run", new=False)
    journal.sealed_by(SEAL)
    assert [each.number for each in journal.all()] == list(range(40))
    assert all(each.value == each.number for each in journal.all())
    assert len(told) == len(set(told)), "two processes were told that they stored one trial"
    assert 0 <= 40 - len(told) <= 1, "one may have been stored and not told"
    assert len({each.attributes["by"] for each in journal.all()}) >= 3, "they met"
    numbers = [each.user_attrs["record"]["number"] for each in journal._study.trials]
    assert sorted(numbers) == list(range(40)), "in the store itself, too"
    assert {each.state for each in journal._study.trials} == {optuna.trial.TrialState.COMPLETE}
    journal.close()


@pytest.mark.contract
def test_a_database_that_goes_away_tells_no_trial(running: Server):
    running.ask("CREATE DATABASE away", database="postgres")
    journal = Journal(of(running.url(database="away")), "run")
    running.ask("DROP DATABASE away WITH (FORCE)", database="postgres")
    with pytest.raises(MachineError, match="finish the run with") as caught:
        journal.add(33, {"x": 4711}, 4711, {})
    assert not {"33", "4711", PASSWORD} & set(str(caught.value).split())
    journal.close()


# A whole run


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.Generator(np.random.PCG64(0)).normal(size=(200, 3))
    return x, (x[:, 0] > 0).astype(int)


GIVEN: dict[str, Any] = {
    "space": "fcn", "steps": 3, "batch": 30, "device": "cpu", "budget": Budget(3.0),
    "bounds": (-4.0, 4.0), "classes": 2, "strategy": "rs", "candidates": 4, "seed": 3,
}  # fmt: skip


def outcome(document: dict[str, Any]) -> dict[str, Any]:
    """Return all of `result.json` but where trials were kept, and what the card says of it."""
    return {name: value for name, value in document.items() if name not in ("storage", "files")}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run whose trials are in its own folder."""
    made = api.run(api.prepare(arrays(), **GIVEN), out=tmp_path_factory.mktemp("own") / "x")
    assert "storage" not in made.document
    return made.document


def stopped(out: Path, storage: str, after: int, **options: Any) -> None:
    """Begin a run, and break it off after so many trials."""
    honest, added = Journal.add, count(1)

    def stopping(self: Journal, *trial: Any) -> Any:
        made = honest(self, *trial)
        if next(added) == after:
            raise KeyboardInterrupt
        return made

    prepared = api.prepare(arrays(), storage=storage, **(GIVEN | options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "add", stopping)
        with pytest.raises(InterruptedRunError):
            api.run(prepared, out=out)


def has_no_password(folder: Path) -> None:
    words = PASSWORD.encode(), PASSWORD.replace("/", "%2F").replace("@", "%40").encode(), b"4711%"
    for file in (each for each in folder.rglob("*") if each.is_file()):
        assert not any(each in file.read_bytes() for each in words), file


@pytest.mark.contract
def test_a_run_is_the_same_wherever_its_trials_are(
    storage: str, usual: dict[str, Any], tmp_path: Path
):
    from pasearch.verification.verify import verify

    made = api.run(api.prepare(arrays(), storage=storage, **GIVEN), out=tmp_path / "x")
    assert outcome(made.document) == outcome(usual)
    assert made.document["storage"] == of(storage).kind
    assert f"- The {of(storage).kind} outside the run's folder" in made.card
    assert not (tmp_path / "x" / "private" / "trials.sqlite").exists()
    has_no_password(tmp_path / "x")
    assert str(of(storage).text) not in (tmp_path / "x" / "release" / "result.json").read_text()
    assert verify(tmp_path / "x")[1] == []


@pytest.mark.contract
def test_a_copy_of_the_folder_is_resumed_on_another_machine(
    storage: str, usual: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stopped(tmp_path / "here", storage, 2)
    has_no_password(tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    if "://" in storage:
        with pytest.raises(UsageError, match="PGPASSWORD"):
            resume(tmp_path / "there", data=arrays())
    before = Journal.add, []

    def counted(self: Journal, *trial: Any) -> Any:
        before[1].append(trial)
        return before[0](self, *trial)

    monkeypatch.setattr(Journal, "add", counted)
    made = resume(tmp_path / "there", data=arrays(), storage=storage)
    kept = json.loads((tmp_path / "there" / "private" / "study.json").read_text())
    stored = Journal(of(storage), kept["study"], new=False)
    assert len(stored.all()) - 2 == len(before[1]), "two were not made again"
    stored.close()
    assert outcome(made.document) == outcome(usual)


@pytest.mark.contract
def test_exact_scores_are_said_to_be_exact(run: Any, tmp_path: Path):
    """Portions release a pick alone: what it is made from has no noise."""
    asked = ("arch", "digits", "--steps", 3, "--eps", 8, "--storage", "t.log", "--strategy")
    for strategy, kind in (("portions", "exact"), ("fixed", "noisy")):
        code, out, err = run(*asked, strategy, "--out", strategy)
        assert code == 0, err
        assert f"their {kind} scores, which the privacy cost does not cover" in " ".join(
            out.split()
        )
        card = (tmp_path / strategy / "release" / "privacy-card.md").read_text()
        assert f"sees the {kind} score of every candidate" in card


@pytest.mark.contract
def test_a_copy_that_was_left_behind_is_refused(storage: str, tmp_path: Path):
    """Its ledger holds no charge for what the store has since got."""
    each = {"strategy": "paas", "candidates": 2, "generations": 2}  # each trial has its own charge
    stopped(tmp_path / "here", storage, 1, **each)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert resume(tmp_path / "here", data=arrays(), storage=storage).price.epsilon <= 3
    with pytest.raises(UsageError, match="without a charge"):
        resume(tmp_path / "there", data=arrays(), storage=storage)
    assert not any((tmp_path / "there" / "release").iterdir())


@pytest.mark.contract
def test_the_password_may_come_from_the_environment(
    running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    stopped(tmp_path / "x", running.url(password=None), 1)
    assert resume(tmp_path / "x", data=arrays()).document["storage"] == "PostgreSQL database"


@pytest.mark.contract
@pytest.mark.parametrize("kept", [0, 1])
def test_trials_that_were_deleted_are_made_again(
    storage: str, kept: int, usual: dict[str, Any], tmp_path: Path
):
    """By the same keys, so that they are what they were: no second release, no other pick."""
    stopped(tmp_path / "x", storage, 2)
    without_trials(storage, kept)
    made = resume(tmp_path / "x", data=arrays(), storage=storage)
    assert outcome(made.document) == outcome(usual)


@pytest.mark.contract
def test_a_store_that_is_lost_is_replaced_by_a_new_one(
    storage: str, usual: dict[str, Any], tmp_path: Path, running: Server
):
    stopped(tmp_path / "x", storage, 2)
    if "://" in storage:
        running.ask("CREATE DATABASE elsewhere", database="postgres")
        other = running.url(database="elsewhere")
    else:
        other = str(tmp_path / "elsewhere.log")
        Path(storage).unlink()
        with pytest.raises(MissingStudyError):
            resume(tmp_path / "x", data=arrays())
    for wrong in ("sqlite", "journal" if "://" in storage else "postgres"):
        named = {"sqlite": "a.sqlite", "journal": str(tmp_path / "y.log")}.get(wrong, running.url())
        with pytest.raises(UsageError):
            resume(tmp_path / "x", data=arrays(), storage=named)
    stopped_again = {"data": arrays(), "storage": other}
    assert outcome(resume(tmp_path / "x", **stopped_again).document) == outcome(usual)
    if "://" in storage:
        running.ask("DROP DATABASE elsewhere WITH (FORCE)", database="postgres")


@pytest.mark.contract
def test_scores_that_somebody_altered_are_never_used(storage: str, tmp_path: Path):
    stopped(tmp_path / "x", storage, 2)
    score = '"number": 0,' if "://" in storage else '"number":0,'
    rewritten(storage, score, score.replace("0", "1"))
    with pytest.raises(UsageError, match=r"keys of another run|not a store of trials"):
        resume(tmp_path / "x", data=arrays(), storage=storage)
    assert not any((tmp_path / "x" / "release").iterdir())


# What cannot be used


def refused(run: Any, tmp_path: Path, storage: str) -> str:
    """Begin a run that must be refused before anything is written; return what is said."""
    ledger = ("--ledger", "all.sqlite", "--ledger-budget", 9, "0.0001")
    asked = ("--strategy", "rs", "--steps", 3, "--eps", 3, *ledger)
    code, out, err = run("arch", "digits", *asked, "--out", "x", "--storage", storage)
    assert code == 2, err
    assert PASSWORD not in out + err
    assert "wrong-4712" not in out + err
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "all.sqlite").exists(), "nothing was reserved"
    return err


@pytest.mark.contract
def test_a_database_that_cannot_be_used_is_said_and_nothing_is_written(
    running: Server, run: Any, tmp_path: Path
):
    url = running.url
    said = refused(run, tmp_path, url(password="wrong-4712"))
    assert "password authentication failed" in said
    assert "PGPASSWORD" in said
    assert "does not exist" in refused(run, tmp_path, url(database="nowhere"))
    assert "No such file" in refused(run, tmp_path, f"postgresql://u@/d?host={tmp_path}")
    assert "refused" in refused(run, tmp_path, "postgresql://u:wrong-4712@127.0.0.1:1/d")
    said = refused(run, tmp_path, "postgresql://u:wrong-4712@h/d?nonsense=1")
    assert "nonsense" in said


@pytest.mark.contract
def test_a_user_without_rights_is_told_and_nothing_is_written(
    running: Server, run: Any, tmp_path: Path
):
    running.ask("CREATE DATABASE bare", "CREATE DATABASE tables", database="postgres")
    running.ask(f"CREATE USER guest PASSWORD '{PASSWORD}'")
    assert "rights to create" in refused(run, tmp_path, running.url("guest", database="bare"))
    assert running.ask("SELECT * FROM pg_tables WHERE schemaname = 'public'", database="bare") == []
    Journal(of(running.url(database="tables")), "other").close()
    running.ask("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest", database="tables")
    assert "rights to create" in refused(run, tmp_path, running.url("guest", database="tables"))
    running.ask("ALTER DATABASE tables SET default_transaction_read_only = on", database="postgres")
    assert "rights to create" in refused(run, tmp_path, running.url(database="tables"))
    gc.collect()  # a connection that was left open would warn here, which is an error
    for name in ("bare", "tables"):
        running.ask(f"DROP DATABASE {name} WITH (FORCE)", database="postgres")


@pytest.mark.contract
def test_a_file_that_cannot_be_a_store_is_said_and_nothing_is_written(run: Any, tmp_path: Path):
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "text.log").write_text("something else, without a line's end")
    (tmp_path / "link.log").symlink_to(tmp_path / "text.log")
    assert "an existing writable folder" in refused(run, tmp_path, "nowhere/t.log")
    assert "cannot be a store" in refused(run, tmp_path, "folder.log")
    assert "cannot be a store" in refused(run, tmp_path, "link.log")
    assert "is not a store of trials" in refused(run, tmp_path, "text.log")
    assert (tmp_path / "text.log").read_text() == "something else, without a line's end"


@pytest.mark.contract
def test_a_run_that_has_no_room_leaves_no_study(storage: str, tmp_path: Path):
    own = {k: v for k, v in GIVEN.items() if k != "seed"}
    more = {"ledger": tmp_path / "all.sqlite", "ledger_budget": (0.5, 1e-3)}
    with pytest.raises(BudgetError):
        api.run(api.prepare(arrays(), storage=storage, **own, **more), out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
    import optuna

    journal = Journal(of(storage), "look")
    names = optuna.get_all_study_names(storage=journal._store.storage)
    assert names == ["look"]
    journal.close()
