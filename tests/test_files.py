"""Files of any form: read within limits, or refused in one sentence that names the file."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pasearch import files
from pasearch.errors import UsageError
from pasearch.files import (
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_KEY_PARTS,
    check_memory,
    parse_json,
    read_bytes,
    read_json,
    read_toml,
    write_new_file,
)

DEEP = 100_000
LONG = "7" * 5000


def refused(read: Callable, path: object, *words: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(path)
    told = str(caught.value)
    assert str(path).split("/")[-1] in told
    assert all(word in told for word in words), told
    assert "\n" not in told
    assert len(told) < 500
    return told


@pytest.mark.unit
def test_toml_beyond_a_limit_is_refused(tmp_path: Path):
    for text, words in [
        (f"a = {LONG}", "64 bits"),
        (f"a = 0x{'f' * 5000}", "64 bits"),
        (f"a = {10**30}", "64 bits"),
        (f"a = [[{-(10**30)}]]", "64 bits"),
        ("a = " + "[" * DEEP, f"{MAX_DEPTH} deep"),
        ("a = " + "{a = " * DEEP, f"{MAX_DEPTH} deep"),
        ("a = " + "[" * 200 + "]" * 200, f"{MAX_DEPTH} deep"),
        (".".join("a" * DEEP) + " = 1", f"{MAX_KEY_PARTS} parts"),
        ("[" + ".".join("a" * DEEP) + "]", f"{MAX_KEY_PARTS} parts"),
        ("b = {" + ".".join(['"a"'] * DEEP) + " = 1}", f"{MAX_KEY_PARTS} parts"),
        (" . ".join("a" * DEEP) + " = 1", f"{MAX_KEY_PARTS} parts"),
        ('"' * DEEP, "TOML"),
        ('"\\' * DEEP, "TOML"),
        ("a = 1\na = 2", "TOML"),
        ("a", "TOML"),
        ("\x00", "TOML"),
    ]:
        (tmp_path / "mine.toml").write_text(text)
        refused(read_toml, tmp_path / "mine.toml", words, "cannot be read as TOML")


@pytest.mark.unit
def test_toml_within_the_limits_is_read(tmp_path: Path):
    for text in [
        'a = "' + ".".join("a" * 400) + '"',
        "a = '" + ".".join("a" * 400) + "'",
        "# " + ".".join('"don\'t"' for _ in range(4)),
        "a = [" + ", ".join(["0.25"] * 5000) + "]",
        f"a = [{MAX_INTEGER}, {-MAX_INTEGER}]",
        "a = " + "[" * 90 + "]" * 90,
        "\ufeffa = 1",
        "a = nan\nb = inf",
    ]:
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        assert isinstance(read_toml(tmp_path / "mine.toml"), dict)


@pytest.mark.unit
def test_json_beyond_a_limit_is_refused(tmp_path: Path):
    for text, words in [
        (LONG, "64 bits"),
        (f'{{"a": [{10**30}]}}', "64 bits"),
        ("[" * DEEP, f"{MAX_DEPTH} deep"),
        ('{"a":' * DEEP, f"{MAX_DEPTH} deep"),
        ("[" * 200 + "]" * 200, f"{MAX_DEPTH} deep"),
        ("", "JSON"),
        ('{"a": 1', "JSON"),
        ('"\x01"', "JSON"),
    ]:
        (tmp_path / "mine.json").write_text(text)
        refused(read_json, tmp_path / "mine.json", words, "cannot be read as JSON")


@pytest.mark.unit
def test_json_is_read_as_python_writes_it(tmp_path: Path):
    (tmp_path / "mine.json").write_text('{"a": NaN, "b": [Infinity, 1e999, 3], "b": 2}')
    found = read_json(tmp_path / "mine.json")
    assert found["a"] != found["a"]
    assert found["b"] == 2
    assert parse_json(b"[1, 2.5]", "a row") == [1, 2.5]


@pytest.mark.unit
@pytest.mark.parametrize("read", [read_toml, read_json])
def test_what_is_no_plain_file_of_text_is_refused(
    tmp_path: Path, read: Callable, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(tmp_path / "pipe")  # one that nobody writes to
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "closed").touch(mode=0)
    (tmp_path / "latin").write_bytes(b'a = "\xe9"')
    (tmp_path / "large").write_text("#" * 1001)
    refused(read, tmp_path / "none", "does not exist")
    refused(read, tmp_path, "is a folder")
    refused(read, "/dev/zero", "a pipe or a device")
    refused(read, tmp_path / "pipe", "a pipe or a device")
    refused(read, tmp_path / "round", "cannot be read")
    refused(read, tmp_path / "gone", "does not exist")
    refused(read, tmp_path / "latin", "not UTF-8")
    if os.geteuid():  # root may read anything
        refused(read, tmp_path / "closed", "Permission denied")
    with pytest.raises(UsageError, match="null byte"):
        read("a\0b")
    for name in ("MAX_TOML_BYTES", "MAX_JSON_BYTES"):
        monkeypatch.setattr(files, name, 1000)
    refused(read, tmp_path / "large", "more than 1,000 bytes")


@pytest.mark.unit
def test_no_more_is_read_than_the_limit(tmp_path: Path):
    """A sparse file of a terabyte takes no room, and must take none here."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    refused(lambda path: read_bytes(path, "a file", most=2**20), tmp_path / "sparse", "more than")


@pytest.mark.unit
def test_a_private_file_is_no_link(tmp_path: Path):
    (tmp_path / "there").write_text("{}")
    (tmp_path / "link").symlink_to("there")
    assert read_json(tmp_path / "link") == {}
    refused(lambda path: read_json(path, follow=False), tmp_path / "link", "it is a link")


class TestWriting:
    @pytest.mark.unit
    def test_a_new_file_is_the_owners_alone(self, tmp_path: Path):
        write_new_file(tmp_path / "new", "naïve")
        assert (tmp_path / "new").read_text(encoding="utf-8") == "naïve"
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600

    @pytest.mark.unit
    def test_nothing_is_replaced_and_no_link_is_followed(self, tmp_path: Path):
        (tmp_path / "old").write_text("kept")
        (tmp_path / "link").symlink_to("old")
        (tmp_path / "dangling").symlink_to("elsewhere")
        for name in ("old", "link", "dangling"):
            with pytest.raises(UsageError, match="exists"):
                write_new_file(tmp_path / name, "new")
        assert (tmp_path / "old").read_text() == "kept"
        assert not (tmp_path / "elsewhere").exists()

    @pytest.mark.unit
    def test_a_file_that_cannot_be_written_whole_is_removed(self, tmp_path: Path):
        write_new_file(tmp_path / "names", "caf\udce9.png")
        assert (tmp_path / "names").read_bytes() == b"caf\xe9.png"
        with pytest.raises(UsageError, match="cannot be written"):
            write_new_file(tmp_path / "new", "\ud800")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(UsageError, match="cannot be written"):
                write_new_file(tmp_path / "new", 5000 * "x")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not (tmp_path / "new").exists()


@pytest.mark.unit
def test_more_memory_than_the_machine_has_is_refused():
    check_memory("a row", 10**6, "never mind")
    with pytest.raises(UsageError, match=r"The data needs 1,000,000.0 GB.*: take less"):
        check_memory("The data", 10**15, "take less")
