"""Paths are looked at before anything is planned: what is refused, what is taken, what is left."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pasearch.accounting.budget import Budget
from pasearch.cli import paths
from pasearch.cli.paths import check_new_file, check_paths, check_writable
from pasearch.errors import UsageError
from pasearch.runs.shared_ledger import SharedLedger

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file, a folder and a ledger in it."""
    monkeypatch.chdir(tmp_path)
    Path("file.csv").write_text("a,b\n1,2\n")
    Path("schema.toml").write_text("")
    Path("there").mkdir()
    SharedLedger.open("old.ledger", Budget(1.0, 1e-5))
    return tmp_path


def refused_at(what: str) -> Callable[..., Any]:
    """Return a maker of folders that a disk refuses."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)))

    return refuse


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"out": "there"}, ("there exists", "`out=`")),
        ({"out": "file.csv"}, ("file.csv exists", "`out=`")),
        ({"out": "file.csv/run"}, ("file.csv/run cannot be created", "Not a directory", "`out=`")),
        ({"schema": "none.toml"}, ("none.toml does not exist", ".toml", "`schema=`")),
        ({"schema": "there"}, ("there is a folder", ".toml", "`schema=`")),
        ({"architecture": "none.toml"}, ("none.toml does not exist", "`architecture=`")),
        ({"ledger": "there"}, ("there is a folder", "`ledger=`")),
        ({"ledger": "no/ledger"}, ("no/ledger", "because no does not exist", "`ledger=`")),
        ({"ledger": "new"}, ("new does not exist yet", "`ledger_budget=`")),
        ({"ledger": "file.csv"}, ("file.csv is not a shared ledger", "`ledger=`")),
        ({"cache": "file.csv"}, ("file.csv", "Not a directory", "`cache=`")),
        ({"cache": "file.csv/c"}, ("file.csv/c cannot", "Not a directory", "`cache=`")),
        ({"search_on": "no.csv"}, ("no.csv does not exist", "`search_on=`")),
        ({"search_on": "mnistt"}, ("mnistt does not exist", "Did you mean 'mnist'?")),
        ({"validate_on": "no.csv"}, ("no.csv does not exist", "`validate_on=`")),
        ({"data_root": "file.csv"}, ("file.csv is a file", "a folder", "`data_root=`")),
    ],
    ids=str,
)
def test_what_cannot_be_read_or_written_is_named_with_what_to_do(
    asked: dict[str, Any], words: tuple[str, ...], folder: Path
):
    before = sorted(folder.rglob("*"))
    with pytest.raises(UsageError) as refused:
        check_paths(asked, run=True)
    for word in words:
        assert word in str(refused.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"out": None, "ledger": None},
        {"out": "new"},
        {"out": "a/b/c/new"},
        {"schema": "schema.toml", "architecture": Path("schema.toml")},
        {"schema": {"target": "y"}, "architecture": {"layers": []}},
        {"ledger": "old.ledger"},
        {"ledger": "new", "ledger_budget": (3.0, 1e-5)},
        {"cache": "cache"},
        {"search_on": "mnist", "validate_on": "file.csv"},
        {"search_on": (np.zeros((1, 1)), np.zeros(1))},
        {"data_root": "there"},
        {"data_root": "nowhere"},
    ],
    ids=str,
)
def test_what_can_be_passes_and_nothing_is_left(asked: dict[str, Any], folder: Path):
    before = sorted(folder.rglob("*"))
    check_paths(asked, run=True)
    assert sorted(folder.rglob("*")) == before


def test_a_plan_may_name_a_ledger_that_its_run_will_make():
    check_paths({"ledger": "new"}, run=False)
    with pytest.raises(UsageError, match="because no does not exist: create it"):
        check_paths({"ledger": "no/new"}, run=False)


def test_a_run_that_had_begun_is_offered_to_be_finished():
    (Path("there") / "private").mkdir()
    (Path("there") / "release").mkdir()
    with pytest.raises(UsageError, match="`pasearch resume there`"):
        check_paths({"out": "there"}, run=True)
    (Path("there") / "release" / "result.json").write_text("{}")
    with pytest.raises(UsageError) as refused:
        check_paths({"out": "there"}, run=True)
    assert "resume" not in str(refused.value)


def test_a_dangling_link_is_no_new_folder():
    Path("link").symlink_to("nowhere")
    with pytest.raises(UsageError, match="link exists"):
        check_paths({"out": "link"}, run=False)


def test_a_database_of_something_else_is_no_ledger():
    with sqlite3.connect("other.sqlite") as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(UsageError, match=r"other\.sqlite is not a shared ledger"):
        check_paths({"ledger": "other.sqlite"}, run=True)


@pytest.mark.parametrize(
    ("asked", "option"), [({"out": "new"}, "out"), ({}, "out"), ({"cache": "c"}, "cache")], ids=str
)
@pytest.mark.parametrize("error", ["EROFS", "EACCES", "ENOSPC"])
def test_a_place_that_refuses_is_named_before_anything_is_planned(
    asked: dict[str, Any], option: str, error: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(paths.tempfile, "TemporaryDirectory", refused_at(error))
    with pytest.raises(UsageError) as refused:
        check_paths(asked, run=option == "out")
    assert os.strerror(getattr(errno, error)) in str(refused.value)
    assert f"`{option}=`" in str(refused.value)


def test_a_plan_writes_nothing_so_no_place_need_be_writable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths.tempfile, "TemporaryDirectory", refused_at("EROFS"))
    check_paths({"out": "new", "ledger": "new"}, run=False)


@pytest.mark.parametrize("option", ["schema", "ledger"])
def test_a_file_that_may_not_be_read_is_refused(option: str, monkeypatch: pytest.MonkeyPatch):
    name = "schema.toml" if option == "schema" else "old.ledger"
    monkeypatch.setattr(paths.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=f"{name} .*readable.*`{option}=`"):
        check_paths({option: name}, run=True)


class TestNewFile:
    def test_none_is_no_file(self):
        check_new_file(None)

    @pytest.mark.parametrize("path", ["new.csv", "there/new.csv"])
    def test_one_that_can_be_made_passes_and_is_not_made(self, path: str):
        check_new_file(Path(path))
        assert not Path(path).exists()

    @pytest.mark.parametrize(
        ("path", "words"),
        [("file.csv", "file.csv exists"), ("there", "there exists"),
         ("no/new.csv", "because no does not exist: create it"),
         ("file.csv/x", "because file.csv is not a folder")],
    )  # fmt: skip
    def test_others_are_refused(self, path: str, words: str):
        with pytest.raises(UsageError) as refused:
            check_new_file(Path(path), "out")
        assert words in str(refused.value)
        assert "`out=`" in str(refused.value)
        with pytest.raises(UsageError) as refused:
            check_new_file(Path(path))
        assert "=`" not in str(refused.value), "an argument has no option's name"


def test_what_is_made_to_find_out_is_hidden_and_taken_away(folder: Path):
    made: list[str] = []
    genuine = paths.tempfile.TemporaryDirectory

    def seen(**options: Any) -> Any:
        found = genuine(**options)
        made.append(found.name)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths.tempfile, "TemporaryDirectory", seen)
        check_writable(Path("a/b/new"), "out")
    (name,) = made
    assert Path(name).parent == folder
    assert Path(name).name.startswith(".pasearch-")
    assert not Path(name).exists()
