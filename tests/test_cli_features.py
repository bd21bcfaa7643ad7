"""`pasearch features` and `pasearch plan features` as a stranger uses them."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from selections import arrays

Run = Callable[..., tuple[int, str, str]]
QUICK = ["--model", "logistic", "--eps", "2"]


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A table whose schema is declared beside it."""
    x, y = arrays()
    rows = [
        f"{100 * a:.1f},{'Rome' if b > 0.5 else 'Oslo'},{'high' if c else 'low'}"
        for a, b, c in zip(x[:, 0], x[:, 1], y, strict=True)
    ]
    (tmp_path / "people.toml").write_text(
        'target = "pay"\n[columns.age]\nlow = 0\nhigh = 100\n[columns.city]\n'
        'categories = ["Rome", "Oslo"]\n[columns.pay]\ncategories = ["low", "high"]\n'
    )
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["age,city,pay", *rows]) + "\n")
    return path


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestFeatures:
    @pytest.mark.contract
    def test_leaves_a_result_and_says_where(self, run: Run, people: Path, tmp_path: Path):
        code, out, err = run(
            "features", people, "--schema", "people.toml", *QUICK, "--method", "cfs-greedy",
            "--verbose",
        )  # fmt: skip
        assert (code, err) == (0, "")
        lines = out.strip().splitlines()
        assert lines[0].startswith(
            "Budget: epsilon 2, delta 0.001, for everything that this run reads"
        )
        assert any(line.startswith("Method    cfs-greedy: ") for line in lines)
        assert any("contingency tables" in line for line in lines)
        assert lines[-1].startswith("Privacy cost: epsilon 1.9")
        assert lines[-1].endswith("release")
        [folder] = (tmp_path / "runs").iterdir()
        assert left(folder / "release") == [
            "model.npz", "privacy-card.json", "privacy-card.md", "report.html", "result.json",
        ]  # fmt: skip
        assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
        assert not (folder / "private" / "keys").exists()
        code, out, _ = run("verify", folder)
        assert code == 0
        assert out.startswith("Verified: epsilon 1.9")

    @pytest.mark.contract
    def test_a_dry_run_prints_the_plan_and_leaves_nothing(
        self, run: Run, people: Path, tmp_path: Path
    ):
        before = left(tmp_path)
        options = [people, "--schema", "people.toml", *QUICK, "--method", "pafs", "--verbose"]
        dry = run("features", *options, "--dry-run")
        assert dry[0] == 0
        assert run("plan", "features", *options) == dry
        assert "candidate training (60 times)" in dry[1]
        assert "Eq. 8" in dry[1]
        assert left(tmp_path) == before

    @pytest.mark.contract
    def test_json_is_all_there_is(self, run: Run, people: Path):
        options = [people, "--schema", "people.toml", *QUICK, "--method", "top", "--k", 2]
        code, out, err = run("features", *options, "--json", "--out", "x")
        assert (code, err) == (0, "")
        document = json.loads(out)
        released = json.loads(Path("x/release/result.json").read_text())
        assert document == {**released, "path": str(Path("x").absolute())}
        code, out, _ = run("features", *options, "--dry-run", "--json")
        assert code == 0
        assert json.loads(out)["lines"] == released["events"]


BAD: dict[str, tuple[bytes, list[str], str]] = {
    "no table": (b"hello world\nagain\n", [], "its first line is not a header"),
    "no header": (b"5.1,3.5,0\n4.9,3.0,1\n" * 50, [], "looks like a record"),
    "one column": (b"a\n1\n2\n", [], "its first line is not a header"),
    "duplicate names": (b"a,a,y\n" + b"1,2,0\n" * 50, [], "columns 1 and 2 have the same name"),
    "no name": (b"a,,y\n" + b"1,2,0\n" * 50, [], "column 2 has no name"),
    "empty": (b"", [], "is empty"),
    "header only": (b"a,b,y\n", [], "a header and no row"),
    "few rows": (b"a,b,y\n1,2,0\n3,4,1\n", [], "too few"),
    "latin-1": ("n\xe4me,y\n".encode("latin-1") + b"1,0\n" * 50, [], "not UTF-8"),
    "binary": (bytes(range(256)) * 20, [], "holds NUL characters"),
    "utf-16": ("a,y\n1,0\n".encode("utf-16") * 50, [], "UTF-16: save it as CSV UTF-8"),
    "open quote": (b'a,"b,y\n' + b"1,2,0\n" * 50, [], "its first line is not a header"),
    "no such target": (b"a,b,y\n" + b"1,2,0\n" * 50, ["--target", "z"], "no column 'z'"),
    "k above features": (
        b"a,b,y\n" + b"1,2,0\n" * 50, ["--k", "999", "--method", "top"], "k is 999, but the data",
    ),
    "k of no use": (b"a,b,y\n" + b"1,2,0\n" * 50, ["--k", "2", "--method", "all"], "Remove --k"),
    "unknown method": (b"a,b,y\n" + b"1,2,0\n" * 50, ["--method", "magic"], "method is 'magic'"),
    "unknown model": (b"a,b,y\n" + b"1,2,0\n" * 50, ["--model", "forest"], "--model is 'forest'"),
    "pixels of a table": (
        b"a,b,y\n" + b"1,2,0\n" * 50, ["--method", "max-pool"], "requires images",
    ),
    "no epsilon": (b"a,b,y\n" + b"1,2,0\n" * 50, ["--eps", "nan"], "--eps is nan"),
    "large share": (
        b"a,b,y\n" + b"1,2,0\n" * 50, ["--method", "pca", "--selection-share", "0.95"],
        "at most 0.8",
    ),
    "wide": (
        ",".join([*(f"c{i}" for i in range(2000)), "y\n"]).encode() + (b"1," * 2000 + b"0\n") * 50,
        [], "expected at most 20,000",
    ),
    "100,001 columns": (
        ",".join([*(f"c{i}" for i in range(100_000)), "y\n"]).encode() + b"1\n" * 3,
        [], "100,001 columns",
    ),
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("command", ["features", "arch", "train"])
def test_a_quiet_plan_is_its_price(command: str, run: Run, people: Path):
    own = [*QUICK, "--method", "all"] if command == "features" else ["--eps", 8]
    code, out, err = run(
        command, people, "--schema", "people.toml", *own, "--dry-run", "--quiet"
    )  # fmt: skip
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert line.startswith("Privacy cost: epsilon ")


class TestBadInput:
    @pytest.mark.contract
    @pytest.mark.parametrize("case", BAD)
    def test_of_form_is_told_and_leaves_nothing(self, run: Run, case: str, tmp_path: Path):
        content, options, message = BAD[case]
        (tmp_path / "bad.csv").write_bytes(content)
        eps = [] if "--eps" in options else ["--eps", "2"]
        code, out, err = run("features", "bad.csv", *eps, *options)
        assert (code, out) == (2, "")
        assert message in err
        assert err.startswith("Error: ")
        assert err.count("\n") <= 3, "a sentence, and no traceback"
        assert left(tmp_path) == ["bad.csv"]

    @pytest.mark.contract
    def test_values_are_never_told(self, run: Run, tmp_path: Path):
        """What stands in cells stops no run and is named nowhere."""
        kinds = ["nan,secret-77-{},0", "inf,,1", "x,\u202e,secret-77-{}", "1e400,a,0"]
        rows = [kind.format(number) for number in range(300) for kind in kinds]
        (tmp_path / "odd.csv").write_text("\n".join(["a,b,y", *rows]))
        code, out, err = run("features", "odd.csv", *QUICK, "--method", "all", "--out", "x")
        assert code == 0
        assert "secret-77" not in out + err
        for file in (tmp_path / "x" / "release").iterdir():
            if file.suffix != ".npz":
                assert "secret-77" not in file.read_text()
        assert np.isfinite(np.load("x/release/model.npz")["weights"]).all()
