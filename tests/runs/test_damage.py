"""Damaged files of a run: refused in one sentence, and never begun anew over what they were."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Gaussian, Geometric
from pasearch.errors import UsageError
from pasearch.runs.folder import RunFolder
from pasearch.runs.journal import Journal
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, PlannedRelease
from pasearch.runs.shared_ledger import SharedLedger

EVENT = Geometric(epsilon=0.1)
LINES = [
    PlannedRelease(
        name=f"line {i}", partition="test", event=Gaussian(noise_multiplier=3.0), count=100
    )
    for i in range(100)
]


def fresh(folder: Path) -> Path:
    """Make a new folder in another."""
    return Path(mkdtemp(dir=folder))


def made_ledger(path: Path) -> Path:
    Ledger.create(path, LINES).close()
    return path


def made_shared(path: Path) -> Path:
    path.write_bytes(_shared())
    return path


@cache
def _shared() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shared"
        shared = SharedLedger.open(path, Budget(4.0, 1e-6))
        for run in range(2):
            shared.reserve(f"run {run}", {"test": EVENT}, 1000)
        return path.read_bytes()


def made_journal(path: Path) -> Path:
    journal = Journal(path)
    journal.add(0, {"layers": []}, 1, {"mark": "x"})
    journal.close()
    return path


def open_ledger(path: Path) -> None:
    Ledger.open(path).close()


def open_shared(path: Path) -> None:
    SharedLedger.open(path, Budget(4.0, 1e-6)).spent()


def open_journal(path: Path) -> None:
    Journal(path).close()


STORES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], None]]] = {
    "ledger": (made_ledger, open_ledger),
    "shared": (made_shared, open_shared),
    "journal": (made_journal, open_journal),
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a garbled head": lambda content: b"garbage" * 20 + content[140:],
    "no database": lambda content: b"hello, world" * 1000,
    "cut to a half": lambda content: content[: len(content) // 2],
    "cut within a page": lambda content: content[:5000],
    "cut to its head": lambda content: content[:100],
    "pages of zeros": lambda content: content[:4096] + bytes(len(content) - 4096),
    "pages of ones": lambda content: content[:4096] + b"\xff" * (len(content) - 4096),
    "a garbled middle": lambda content: (
        content[: len(content) // 2] + os.urandom(4096) + content[len(content) // 2 + 4096 :]
    ),
}


def refused(path: Path, reader: Callable[[Path], object]) -> str:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UsageError) as caught:
        reader(path)
    told = str(caught.value)
    assert path.name in told
    assert "\n" not in told
    if before is not None and b"SQLite" in before[:20]:
        assert path.read_bytes() == before, "it was written over"
    return told


@pytest.mark.unit
@pytest.mark.parametrize("store", ["ledger", "shared"])
def test_a_damaged_database_is_refused(tmp_path: Path, store: str):
    make, reader = STORES[store]
    for damage in DAMAGE.values():
        path = make(fresh(tmp_path) / "store")
        reader(path)
        path.write_bytes(damage(path.read_bytes()))
        refused(path, reader)


@pytest.mark.unit
def test_a_damaged_journal_is_refused(tmp_path: Path):
    for damage in ["no database", "cut to its head", "pages of ones"]:
        folder = fresh(tmp_path)
        path = made_journal(folder / "store")
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        refused(path, open_journal)


@pytest.mark.unit
def test_an_empty_file_is_not_begun_anew(tmp_path: Path):
    for store in ["ledger", "shared"]:
        folder = fresh(tmp_path)
        path = folder / "store"
        path.touch()
        refused(path, STORES[store][1])
        assert path.stat().st_size == 0
        if store == "ledger":
            with pytest.raises(UsageError, match="never replaced"):
                Ledger.create(path, LINES)


@pytest.mark.unit
def test_what_is_no_file_is_refused(tmp_path: Path):
    for store in STORES:
        folder = fresh(tmp_path)
        _, reader = STORES[store]
        (folder / "folder").mkdir()
        refused(folder / "folder", reader)
        (folder / "round").symlink_to("round")
        refused(folder / "round", reader)
        (folder / "dangling").symlink_to("nowhere")
        refused(folder / "dangling", reader)
        assert not (folder / "nowhere").exists()


CHANGES = {
    "an event that is no JSON": "UPDATE lines SET event = '{'",
    "an event of no kind": """UPDATE lines SET event = '{"name": "free"}'""",
    "an event that is a list": "UPDATE lines SET event = '[1]'",
    "an event that is a number": "UPDATE lines SET event = 3",
    "an event of a hundred thousand brackets": (
        "UPDATE lines SET event = replace(hex(zeroblob(50000)), '0', '[')"
    ),
    "a sigma of a million digits": (
        """UPDATE lines SET event = '{"name": "Gaussian", "noise_multiplier": '"""
        """ || replace(hex(zeroblob(500000)), '0', '7') || '}'"""
    ),
    "bytes for a name": "UPDATE lines SET name = x'ff00' WHERE rowid = 1",
    "a count of text": "UPDATE lines SET count = 'many'",
    "a count of 10^18": "UPDATE lines SET count = 1000000000000000000",
    "a charge beside the plan": "INSERT INTO charges VALUES ('none', 'test', 'k')",
}


@pytest.mark.unit
def test_rows_of_a_ledger_that_make_no_sense(tmp_path: Path):
    for change in CHANGES.values():
        folder = fresh(tmp_path)
        path = made_ledger(folder / "ledger")
        _changed(path, change)
        if "charges" in change:
            with Ledger.open(path) as ledger:
                assert ledger.spent() == []
            continue
        told = refused(path, open_ledger)
        assert len(told) < 1000


@pytest.mark.unit
def test_a_ledger_without_its_own_triggers_is_none(tmp_path: Path):
    for change in [
        "DROP TRIGGER ceiling",
        "DROP TRIGGER charges_delete",
        "CREATE TRIGGER more AFTER INSERT ON charges BEGIN DELETE FROM charges; END",
        "CREATE TABLE more (a)",
        "CREATE VIEW more AS SELECT 1",
    ]:
        folder = fresh(tmp_path)
        path = made_ledger(folder / "ledger")
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        connection.close()
        assert "triggers" in refused(path, open_ledger)


@pytest.mark.unit
def test_rows_of_a_shared_ledger_that_make_no_sense(tmp_path: Path):
    for change in [
        "UPDATE total SET epsilon = 'much'",
        "UPDATE total SET epsilon = -1",
        "UPDATE total SET delta = 2",
        "DELETE FROM total",
        "INSERT INTO total VALUES (9, 1e-6)",
        "UPDATE runs SET curve = '[]'",
        "UPDATE runs SET curve = '[0, 0]'",
        "UPDATE runs SET curve = replace(curve, '0', 'NaN')",
        "UPDATE runs SET curve = '['",
        "UPDATE runs SET curve = replace(curve, '[', '[-')",
        "UPDATE runs SET curve = replace(hex(zeroblob(50000)), '0', '[')",
        "UPDATE runs SET events = '[]'",
        "UPDATE runs SET events = 'null'",
        """UPDATE runs SET events = '{"test": 3}'""",
        "DELETE FROM runs WHERE number = 1",
    ]:
        folder = fresh(tmp_path)
        path = made_shared(folder / "shared")
        _changed(path, change)
        assert "damaged" in refused(path, open_shared)
        with pytest.raises(UsageError, match="damaged"):
            SharedLedger(path=path).reserve("another", {"test": EVENT}, 1000)


def _changed(path: Path, change: str) -> None:
    """Change rows of a sealed database, and leave its triggers as they were."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    found = triggers.fetchall()
    for name, _ in found:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(change)
    for _, made in found:
        connection.execute(made)
    connection.commit()
    connection.close()


SOUND = {"version": 1, "bound": "", "reproducible": False, "master": "00" * 32}
KEYS = [
    b"", b"master", b'{"version": 1, "master": "00', b"[1, 2]", b"7" * 5000, b"[" * 100_000,
    b'{"master": "\xff"}',
    *(json.dumps(SOUND | change).encode() for change in (
        {"master": "00"}, {"master": "zz" * 32}, {"version": 2}, {"reproducible": "no"},
        {"bound": 1},
    )),
]  # fmt: skip


@pytest.mark.unit
def test_a_damaged_file_of_keys(tmp_path: Path):
    for content in KEYS:
        (tmp_path / "keys").write_bytes(content)
        told = refused(tmp_path / "keys", lambda path: Keys.open(path, "mark"))
        assert "00" not in told.replace(str(tmp_path), "")


@pytest.mark.unit
def test_keys_that_are_no_file(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("folder")
    for name in ("folder", "pipe", "link"):
        refused(tmp_path / name, lambda path: Keys.open(path, "mark"))
        with pytest.raises(UsageError, match="cannot be destroyed"):
            Keys.forget(tmp_path / name)


@pytest.mark.unit
def test_a_run_whose_form_is_damaged(tmp_path: Path):
    for content in ([
        b"", b"[]", b"3", b"[" * 100_000, b"\xff", b'{"version": 1}',
        b'{"version": 1, "started": 1e300}', b'{"version": 1, "started": 18000000000000000000}',
        b'{"version": 1, "started": -5}', b'{"version": 1, "started": ' + b"9" * 5000 + b"}",
    ]):  # fmt: skip
        folder = fresh(tmp_path)
        made = RunFolder.create(folder / "run", "people")
        (made.private / "run.json").write_bytes(content)
        with pytest.raises(UsageError, match="is not a run of this version"):
            RunFolder.open(folder / "run")
