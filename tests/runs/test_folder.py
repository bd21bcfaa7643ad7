"""The folder: private stays private, a release appears whole, and times tell nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pasearch.errors import UsageError
from pasearch.runs import folder as module
from pasearch.runs.folder import RunFolder, atomic_write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.unit
def test_numbers_do_not_collide_in_a_race(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunFolder.create(None, "digits").path, range(16)))
    assert len(set(made)) == 16


@pytest.mark.unit
def test_a_name_cannot_lead_elsewhere(tmp_path: Path):
    for number, (name, stem) in enumerate([
        ("Fashion MNIST", "Fashion-MNIST"), ("../../etc/passwd", "etc-passwd"), ("/abs", "abs"),
        (".hidden", "hidden"), ("..", "run"), ("", "run"), ("a\0b\nc", "a-b-c"),
        ("é" * 5, "run"), ("x" * 500, "x" * 80),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        os.chdir(folder)
        assert RunFolder.create(None, name).path == folder / "runs" / f"{stem}-1"
        assert [entry.name for entry in folder.iterdir()] == ["runs"]


@pytest.mark.unit
@pytest.mark.usefixtures("umask")
def test_private_is_private_under_any_umask(tmp_path: Path):
    folder = RunFolder.create("deep/run", "digits")
    assert mode(folder.path) == mode(folder.private) == 0o700
    folder.atomic_write("notes.txt", "x")
    assert mode(folder.private / "notes.txt") == 0o600
    assert mode(folder.private / "run.json") == 0o600


@pytest.mark.unit
def test_an_existing_path_is_refused_untouched(tmp_path: Path):
    for make in (
        lambda path: path.mkdir(),
        lambda path: path.write_text("mine"),
        lambda path: path.symlink_to(tmp_path / "nowhere"),
    ):
        path = tmp_path / f"there-{len(list(tmp_path.iterdir()))}"
        make(path)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError, match="exists"):
            RunFolder.create(path, "digits")
        assert sorted(tmp_path.rglob("*")) == before
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.unit
def test_what_was_made_around_a_folder_goes_with_it(tmp_path: Path):
    one, two = RunFolder.create(None, "digits"), RunFolder.create("runs/digits-9/deep/x", "digits")
    two.discard()
    assert sorted(entry.name for entry in (tmp_path / "runs").iterdir()) == ["digits-1"]
    (one.path.parent / "mine").write_text("")
    one.discard()
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["mine"]
    # A folder that was there stays, empty as it was.
    (tmp_path / "empty").mkdir()
    RunFolder.create("empty/x", "digits").discard()
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.unit
def test_nothing_is_left_of_a_folder_that_could_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(UsageError, match="cannot be created"):
        RunFolder.create("made/" + "x" * 300, "digits")

    def full(*given: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(module, "atomic_write", full)
    with pytest.raises(OSError, match="is full"):
        RunFolder.create(None, "digits")
    assert not list(tmp_path.iterdir())


@pytest.mark.unit
def test_it_is_found_again(tmp_path: Path):
    folder = RunFolder.create("run", "digits")
    assert RunFolder.open("run") == folder
    with pytest.raises(UsageError, match="not finished"):
        RunFolder.open("run", finished=True)
    folder.publish({"result.json": "{}"})
    with pytest.raises(UsageError, match="is finished"):
        RunFolder.open("run")
    assert RunFolder.open("run", finished=True) == folder


@pytest.mark.unit
def test_another_folder_is_no_run(tmp_path: Path):
    def refused(path: Path) -> None:
        with pytest.raises(UsageError, match="is not a run"):
            RunFolder.open(path)

    refused(tmp_path)
    with pytest.raises(UsageError, match="missing does not exist"):
        RunFolder.open(tmp_path / "missing")
    for change in ({"version": 2}, {"started": "now"}, {"started": True}):
        folder = RunFolder.create(None, "digits")
        about = folder.private / "run.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | change))
        refused(folder.path)
        about.write_text("[]")
        refused(folder.path)
    folder = RunFolder.create("moved", "digits")
    folder.private.rename(tmp_path / "real")
    folder.private.symlink_to(tmp_path / "real")
    refused(folder.path)


@pytest.mark.unit
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    atomic_write(path, "old")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.unit
def test_a_file_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: order.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    monkeypatch.setattr(os, "replace", lambda a, b: order.append("rename") or replace(a, b))
    atomic_write(tmp_path / "a", "x")
    assert Path(order[0]).name.startswith(".a.")
    assert order[1:] == ["rename", str(tmp_path)]


@pytest.mark.property
def test_a_killed_write_leaves_old_or_new(tmp_path: Path):
    path = tmp_path / "a"
    code = (
        "import sys\nfrom pathlib import Path\nfrom pasearch.runs.folder import atomic_write\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for letter in 'xy': atomic_write(Path(sys.argv[1]), letter * 300_000)\n"
    )
    for delay in (0.01, 0.05, 0.1):
        atomic_write(path, "x" * 300_000)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
        assert path.read_text() in ("x" * 300_000, "y" * 300_000)


@pytest.mark.unit
def test_nothing_is_written_outside_private(tmp_path: Path):
    folder = RunFolder.create("run", "digits")
    (folder.private / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for where in ("../release/a", "../a", "..", "/tmp/pasearch-a", "link/a", ""):
        with pytest.raises(UsageError, match="is not in"):
            folder.atomic_write(where, "x")
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/tmp/pasearch-a").exists()


@pytest.mark.unit
@pytest.mark.usefixtures("umask")
def test_a_release_has_the_runs_start_as_its_time(monkeypatch: pytest.MonkeyPatch):
    start = 1_700_000_000.75
    monkeypatch.setattr(module.time, "time", lambda: start)
    RunFolder.create("run", "digits")
    folder = RunFolder.open("run")
    folder.publish({"result.json": "{}", "model.pt": b"\0", "privacy-card.md": "# é"})
    paths = [*folder.release.iterdir(), folder.release, folder.private, folder.path]
    assert {path.stat().st_mtime_ns for path in paths} == {1_700_000_000 * 10**9}
    assert (folder.release / "privacy-card.md").read_text() == "# é"
    assert mode(folder.release) == 0o755
    assert {mode(path) for path in folder.release.iterdir()} == {0o644}
    assert mode(folder.path) == mode(folder.private) == 0o700


@pytest.mark.unit
def test_a_release_appears_whole(monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder.create("run", "digits")
    write, written = module.atomic_write, []

    def dies_at_second(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, data, mode=mode)

    with monkeypatch.context() as patched:
        patched.setattr(module, "atomic_write", dies_at_second)
        with pytest.raises(KeyboardInterrupt):
            folder.publish({"old.json": "{}", "other.json": "{}"})
    assert list(folder.release.iterdir()) == []
    assert not folder.finished
    RunFolder.open("run").publish({"result.json": "{}"})
    assert [entry.name for entry in folder.release.iterdir()] == ["result.json"]
    assert not (folder.private / "publishing").exists()


@pytest.mark.unit
def test_release_names_are_plain():
    folder = RunFolder.create("run", "digits")
    for name in ("../private/x", "a/b", "", ".", "..", ".hidden", "a\0", "/x"):
        with pytest.raises(UsageError, match="plain file"):
            folder.publish({"result.json": "{}", name: "x"})
    with pytest.raises(UsageError, match="plain file"):
        folder.publish({})
    assert list(folder.release.iterdir()) == []
