"""Malformed input of every kind, at the command line: exit 2, one message, little memory.

The commands run in a process of their own, one after another, as a peak of memory is never lowered.
What importing the program takes is not counted.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LONG, DEEP = "7" * 5000, 100_000
MOST_MEGABYTES = 1000
"""Beyond the import."""

DRIVER = """
import io, json, resource, sys, time, traceback
from contextlib import redirect_stderr, redirect_stdout
import sklearn.datasets, torch, torchvision
import pasearch.api.search, pasearch.cli, pasearch.api.features, pasearch.report.plan, optuna
import pasearch.results, PIL.Image, pasearch.curator.check, pasearch.training.screening

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

start, answers = peak(), {}
for name, arguments in json.load(sys.stdin).items():
    sys.argv = ["pasearch", *arguments]
    out, err, begun = io.StringIO(), io.StringIO(), time.perf_counter()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            pasearch.cli.main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = traceback.format_exc()
    answers[name] = [code, err.getvalue(), out.getvalue(), time.perf_counter() - begun]
    answers[name].append(peak() - start)
json.dump(answers, sys.stdout)
"""


def big_png(path: Path, side: int) -> None:
    """A PNG of side x side grey pixels, all alike, written row by row."""
    packer, row = zlib.compressobj(9), bytes(side + 1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def big_npz(path: Path, records: int) -> None:
    """A .npz of records of 128 zeros, a thousandth of its size."""
    heads = {"x": ("<f8", (records, 128)), "y": ("<i8", (records,))}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (dtype, shape) in heads.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                about = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, about)
                width = 8 * int(np.prod(shape[1:]))
                for start in range(0, records, 4096):
                    file.write(bytes(width * min(4096, records - start)))


TABLE = "age,city,income\n" + "".join(f"{i % 80},c{i % 3},{i % 2}\n" for i in range(300))
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {}


def case(name: str, files: dict[str, Any], *arguments: str) -> None:
    CASES[name] = files, list(arguments)


SCHEMA = ("plan", "arch", "people.csv", "--eps", "1", "--strategy", "fixed", "--schema", "s.toml")
for kind, text in {
    "5,000 digits": f"a = {LONG}", "hexadecimal digits": f"a = 0x{'f' * 5000}",
    "brackets": "a = " + "[" * DEEP, "tables": "a = " + "{a = " * DEEP,
    "a dotted key": ".".join("a" * DEEP) + " = 1", "bytes": b"\xff\xfe", "nothing": "",
}.items():  # fmt: skip
    case(f"schema: {kind}", {"s.toml": text}, *SCHEMA)
    digits = ("plan", "arch", "digits", "--eps", "1")
    case(f"space: {kind}", {"p.toml": text or "?"}, *digits, "--space", "p.toml")
    case(f"recipe: {kind}", {"r.toml": text or "?"}, *digits, "--recipe", "r.toml")
    case(f"architecture: {kind}", {"a.toml": text}, *digits, "--architecture", "a.toml")
for key, value in {
    "bins": "99999999", "bins, edges": "[" + ", ".join(map(str, range(20_000))) + "]",
    "categories": "[" + ", ".join(map(str, range(200_000))) + "]",
    "vocabulary": "[" + ", ".join(f'"w{i}"' for i in range(200_000)) + "]",
}.items():  # fmt: skip
    text = f'target = "income"\n[columns.age]\n{key.split(",")[0]} = {value}'
    case(f"schema: many {key}", {"s.toml": text}, *SCHEMA)
case("schema: official_test", {"s.toml": f'target = "income"\nofficial_test = {10**18}'}, *SCHEMA)
case("schema: a folder", {"s.toml": None}, *SCHEMA)
case("schema: a device", {}, *SCHEMA[:-1], "/dev/zero")
case(
    "architecture: units",
    {"a.toml": f'[[layers]]\nkind = "dense"\nunits = {10**18}'},
    "plan", "arch", "digits", "--eps", "1", "--architecture", "a.toml",
)  # fmt: skip
case(
    "architecture: two wide layers",
    {"a.toml": '[[layers]]\nkind = "dense"\nunits = 900000\n' * 2},
    "plan", "arch", "digits", "--eps", "1", "--architecture", "a.toml",
)  # fmt: skip
values = ", ".join(str(i) for i in range(1, 900))
case(
    "space: many shapes",
    {"p.toml": f'family = "cnn"\n[choices]\nfilters = [{values}]\nunits = [{values}]'},
    "plan", "arch", "digits", "--eps", "1", "--space", "p.toml",
)  # fmt: skip
for option, number in {
    "--batch": 10**18, "--steps": 10**18, "--classes": 10**18, "--seed": 10**400,
    "--max-categories": 99999999, "--image-side": 100_000, "--generations": 10**18,
    "--candidates": 10**18, "--max-candidates": 10**400, "--score-eps": 10**300,
}.items():  # fmt: skip
    own = {"--classes": "big.npz", "--image-side": "pets"}.get(option, "digits")
    how = [] if option not in ("--candidates", "--generations") else ["--strategy", "paas"]
    case(f"option {option}", {}, "plan", "arch", own, "--eps", "1", *how, option, str(number))
case(
    "option --generations of mgrs", {},
    "plan", "arch", "digits", "--eps", "1", "--strategy", "mgrs", "--generations", "99999999",
)  # fmt: skip
case("a garbled .npz", {"bad.npz": b"PK\x03\x04" + bytes(500)}, "plan", "arch", "bad.npz",
     "--eps", "1")  # fmt: skip
LEDGERS = {
    "text": b"hello, world" * 500,
    "nothing": b"",
    "SQLite's head alone": b"SQLite format 3\0",
}
for kind, content in LEDGERS.items():
    case(f"ledger: {kind}", {"l.sqlite": content}, "features", "people.csv", "--eps", "1",
         "--method", "all", "--ledger", "l.sqlite", "--out", "run")  # fmt: skip
case("ledger: a folder", {"l.sqlite": None}, "features", "people.csv", "--eps", "1",
     "--method", "all", "--ledger", "l.sqlite", "--out", "run")  # fmt: skip
RUN = {"old/release": None, "old/private/keys": b"[" * DEEP}
ABOUT = b'{"version": 1, "started": 5}'
for kind, about in {"brackets": b"[" * DEEP, "digits": LONG.encode(), "a text": b"no"}.items():
    case(f"run.json: {kind}", {**RUN, "old/private/run.json": about}, "resume", "old")
    files = {**RUN, "old/private/run.json": ABOUT, "old/private/request.json": about}
    case(f"request.json: {kind}", files, "resume", "old")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What every command of `CASES` says, and `SOUND` ones: code, stderr, stdout, seconds, MB."""
    root = tmp_path_factory.mktemp("malformed")
    given = {}
    for number, (name, (files, arguments)) in enumerate({**CASES, **SOUND}.items()):
        place = root / str(number)
        for file, content in {"people.csv": TABLE, **files}.items():
            path = place / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif callable(content):
                content(path)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        (place / "pets").mkdir(exist_ok=True)
        known = {*files, "people.csv", "pets", "run", "old"}
        given[name] = [str(place / each) if each in known else each for each in arguments]
    big_npz(root / "big.npz", 2**19)
    given = {
        name: [str(root / each) if each == "big.npz" else each for each in arguments]
        for name, arguments in given.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(given), capture_output=True, text=True,
        timeout=900, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pets(path: Path) -> None:
    big_png(path, 13_000)


def little(path: Path) -> None:
    big_png(path, 20)


SOUND: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a .npz of half a gigabyte": (
        {},
        ["plan", "arch", "big.npz", "--eps", "1", "--bounds", "0", "1", "--classes", "2",
         "--strategy", "fixed"],
    ),
    "an image of 169 megapixels": (
        {"pets/cat/a.png": pets, "pets/cat/b.png": little, "pets/dog/a.png": little,
         **{f"pets/dog/{i}.png": little for i in range(30)}},
        ["plan", "arch", "pets", "--eps", "1", "--strategy", "fixed"],
    ),
}  # fmt: skip
"""What is large and not malformed: it is planned, and its values are not unpacked for that."""


@pytest.mark.slow
def test_malformed_input_is_refused_in_one_message(answers: dict[str, list[Any]]):
    for name in CASES:
        code, err, out, _, _ = answers[name]
        assert code == 2, (name, code, err)
        assert err.startswith("Error: "), (name, err)
        assert err.count("\n") == 1, (name, err)
        assert len(err) < 1000, name
        assert out == "" or out.startswith("Budget: "), (name, out)
        assert "Traceback" not in err, (name, err)


@pytest.mark.slow
def test_malformed_input_takes_little_memory(answers: dict[str, list[Any]]):
    peaks = {name: round(answers[name][4]) for name in CASES}
    assert max(peaks.values()) < MOST_MEGABYTES, peaks


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_large_input_is_planned_without_its_values(answers: dict[str, list[Any]], name: str):
    before = max(answers[each][4] for each in CASES)
    code, err, out, _, peak = answers[name]
    assert code == 0, err
    assert out.startswith("Budget: ")
    assert peak < before + 200, f"{peak:.0f} MB, {before:.0f} before"


HOSTILE = "age\x1b[2J\x9b1m\u202e"


@pytest.mark.unit
@pytest.mark.parametrize(
    "forged", ["\nPrivacy cost: 0", "\rPrivacy cost: 0", "\u2028Privacy cost: 0"]
)
def test_names_are_spelt_out_on_the_terminal(
    tmp_path: Path,
    forged: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    from pasearch import cli

    def run(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["pasearch", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        told = capsys.readouterr()
        return end.value.code, told.out + told.err

    monkeypatch.chdir(tmp_path)
    name = HOSTILE + forged
    table = tmp_path / f"people{HOSTILE}.csv"
    rows = "".join(f"{i % 7},{i % 2}\n" for i in range(300))
    table.write_text(f'"{name}","in{forged}come"\n{rows}', encoding="utf-8")
    told = [
        run("check", str(table), "--propose", f"s{HOSTILE}.toml"),
        run("plan", "features", str(table), "--eps", "1", "--method", "all", "--regression"),
        run("plan", "features", str(table), "--eps", "1", "--method", "all", "--target", name),
        run("plan", "features", str(table), "--eps", "1", "--schema", f"none{HOSTILE}{forged}"),
        run("plan", "features", f"none{HOSTILE}{forged}.csv"),
        run("plan", "features", str(table), f"--none{HOSTILE}{forged}"),
        run("plan", "features", str(table), "--eps", f"1{HOSTILE}{forged}"),
    ]
    # A line break ends the header, so the table itself is malformed then.
    table_code = 0 if forged.startswith("\u2028") else 2
    assert [code for code, _ in told] == [*[table_code] * 3, 2, 2, 2, 2]
    for _, text in told:
        assert not set(text) & set("\x1b\x9b\u202e\u2028\r")
        assert not any(line.startswith("Privacy cost: 0") for line in text.splitlines())
    proposed = tmp_path / f"s{HOSTILE}.toml"
    assert proposed.exists() == (table_code == 0)
    if table_code == 0:
        assert not set(proposed.read_text()) & set("\x1b\x9b\u202e\u2028\r")


@pytest.mark.unit
@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("elsewhere")])
def test_a_proposed_schema_follows_no_link_and_replaces_nothing(
    tmp_path: Path, make: Callable, monkeypatch: pytest.MonkeyPatch
):
    from pasearch import cli

    (tmp_path / "people.csv").write_text(TABLE)
    make(tmp_path / "s.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pasearch", "check", "people.csv", "--propose", "s.toml"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "s.toml").exists() or not (tmp_path / "s.toml").read_text()
