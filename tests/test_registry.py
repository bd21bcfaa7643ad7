"""The registry of the papers' items: complete, up to date, and every path in it exists."""

from __future__ import annotations

import csv
import json
import math
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import registry
import reproduce
import typer

from pasearch.cli import app

ROOT = Path(__file__).parents[1]
PAPERS = runpy.run_path(str(ROOT / "docs" / "make_papers.py"))
TITLES, ROWS = registry.read_registry()
ROMAN = (
    "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX XXI XXII XXIII XXIV "
    "XXV XXVI XXVII XXVIII XXIX XXX XXXI"
).split()
ITEMS = {
    "Bao": (
        *(f"Table {number}" for number in ROMAN), *(f"Fig. {number}" for number in range(1, 13)),
        *(f"Algorithm {number}" for number in range(1, 5)), "Lemma 1", "Corollary 1",
        "Definition 1", "Definition 2", "Eq. 4", "Eq. 7", "Eq. 8", "Eq. 9", "IV-A, splits",
        "IV-B, epsilons", "VI-C, feature crossovers", "VI-D, CNN below FCN",
        "VIII-A, noisy fitness", "VIII-C, cost of MGRS", "IX-A, learning rates",
        "IX-B, cost of PAFS", "IX-B, cost of CFS", "IX-B, run times", "C-E, clipping",
    ),
    "Fu": (
        "Table 1", "Table 2", "Table 3", "Fig. 1", "Fig. 3", "Fig. 4a", "Fig. 4b", "Fig. 4c",
        "Fig. 4d", "Algorithm 1", "Algorithm 2", "Theorem 1", "Theorem 2", "Lemma 1", "Lemma 2",
        "Lemma 3", "Definition 1", "Definition 2", "Definition 3",
    ),
    "Nasr": (
        "Table 1", *(f"Fig. {number}" for number in range(1, 8)), "Algorithm 1", "Algorithm 2",
        *(f"Lemma {number}" for number in range(1, 6)), "Theorem 1", "Theorem 2", "Definition 1",
        "Definition 2", "Eq. 3",
    ),
    "Yu": (
        *(f"Table {number}" for number in ROMAN[:5]),
        *(f"Fig. {number}" for number in range(1, 17)),
        "Theorem 1", "Theorem 2", "Theorem 3", "Corollary 1", "Proposition 1", "Proposition 2",
        "Definition 1", "Definition 2", "Definition 3", "Algorithm 1", "Appendix G",
    ),
    "Lin": (
        *(f"Table {number}" for number in range(1, 13)),
        *(f"Fig. {number}" for number in range(1, 6)),
        *(f"Definition {number}" for number in range(1, 8)), "Theorem 1", "Algorithm 1",
        "Algorithm 2", "Eqs. 16 to 18",
    ),
}  # fmt: skip
"""Items that must have a row: everything that a paper numbers, and stated numbers."""


@pytest.mark.quick
def test_every_item_of_the_papers_has_one_row():
    keys = [row.key for row in ROWS]
    assert sorted(keys) == sorted(set(keys))
    wanted = {f"{paper}, {item}" for paper, items in ITEMS.items() for item in items}
    assert wanted - set(keys) == set()
    assert {row.paper for row in ROWS} == set(TITLES)
    assert keys == sorted(keys, key=lambda key: list(TITLES).index(key.split(",")[0]))


def test_every_item_of_the_design_has_a_row():
    """The list of experiments that is kept outside the repository, where there is one."""
    path = ROOT.parent / "shared" / "design" / "experiments.md"
    if not path.exists():
        pytest.skip("no list of experiments beside the repository")
    sections = dict(
        zip(("Bao", "Fu", "Nasr", "Yu", "Lin"), _sections(path.read_text()), strict=True)
    )
    missing = [
        f"{paper}, {item}"
        for paper, text in sections.items()
        for item in _named(text)
        if not any(row.paper == paper and row.item.startswith(item) for row in ROWS)
    ]
    assert missing == []


def _sections(text: str) -> list[str]:
    """Texts of the sections 001, 000, 002, 003 and 004."""
    return re.split(r"^## ", text, flags=re.MULTILINE)[1:6]


def _named(text: str) -> list[str]:
    """Tables, figures, lemmas and algorithms that a text names, with its ranges written out."""
    found, number = [], r"(?:[IVX]+|\d+(?!\.\d))\b"
    several = rf"{number}(?:(?:, | to |-| and | / ){number})*"
    for kind, numbers in re.findall(rf"\b(Tables?|Figs?\.|Lemma|Algorithm) ({several})", text):
        name = {"Tables": "Table", "Figs.": "Fig."}.get(kind, kind)
        for part in re.split(r", | and | / ", numbers):
            first, _, last = part.replace(" to ", "-").partition("-")
            order = ROMAN if first in ROMAN else [str(number) for number in range(100)]
            places = order.index(first), order.index(last or first)
            found += [f"{name} {order[place]}" for place in range(places[0], places[1] + 1)]
    return found


@pytest.mark.quick
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_what_a_row_names_exists(row: registry.Row):
    for spec in (*row.ours, *row.draw):
        assert registry.compute_figures(spec), f"no line of {spec}"
    if row.verdict in registry.EMPIRICAL:
        assert row.figures or row.tests, "a verdict without a result"
    if row.verdict == "not measured at the paper's length":
        assert row.steps != "-"
    if row.verdict == "claim not valid":
        assert row.proof
    for name in (row.proof, *row.pictures):
        assert not name or (ROOT / name).is_file(), name
    for test in row.tests:
        file, *names = test.split("::")
        text = (ROOT / file).read_text()
        assert all(re.search(rf"(def|class) {name}\b", text) for name in names), test
    program, *words = shlex.split(row.command) or [""]
    options = {word for word in [*words, *row.full.split()] if word.startswith("--")}
    if program == "python":
        script = ROOT / words[0]
        texts = [path.read_text() for path in (script, script.parents[1] / "cells.py")]
        assert [each for each in options if not any(f'"{each}"' in text for text in texts)] == []
    elif program:
        group: Any = typer.main.get_command(app)
        assert program == "pasearch"
        known = [name for each in group.commands[words[0]].params for name in each.opts]
        assert options - {*known, "--help"} == set()


@pytest.mark.quick
def test_the_page_of_the_papers_is_up_to_date():
    assert PAPERS["list_stale"]() == [], "run docs/make_papers.py"


def test_every_study_has_a_readme_and_is_in_the_index():
    index = (ROOT / "benchmarks" / "README.md").read_text()
    studies = [path for path in (ROOT / "benchmarks").iterdir() if any(path.glob("*.py"))]
    assert [path.name for path in studies if not (path / "README.md").is_file()] == []
    assert [path.name for path in studies if f"]({path.name}/README.md)" not in index] == []
    assert [line for line in index.splitlines() if len(line) > 120] == []


@pytest.mark.oracle
def test_the_papers_own_arithmetic():
    """Numbers of the texts that follow from printed tables, and those that do not."""
    table_i = [  # parameters, DP-SGD and SGD of STW, then of PAW; printed gaps and ratio
        (1_820_330, 47.76, 67.54, 246_554, 50.22, 61.46, 2.46, -6.08, 7.4),
        (197_130, 96.88, 99.42, 56_970, 97.86, 99.38, 0.98, -0.04, 3.5),
        (1_817_930, 82.72, 91.68, 600_522, 84.72, 90.90, 2.00, -0.78, 3.0),
        (636_938, 40.12, 57.14, 19_914, 43.66, 45.36, 3.54, -11.78, 32.0),
        (66_762, 93.10, 97.54, 9_610, 94.94, 96.34, 1.84, -1.20, 6.9),
        (221_066, 72.90, 85.32, 39_818, 76.10, 84.12, 3.20, -1.20, 5.6),
        (38_410, 85.00, 89.62, 9_610, 86.74, 87.70, 1.74, -1.92, 4.0),
        (903_524, 66.74, 94.88, 89_828, 74.78, 91.88, 8.04, -3.00, 10.1),
    ]
    for large, dp, sgd, small, dp_small, sgd_small, gap, gap_sgd, ratio in table_i:
        assert dp_small - dp == pytest.approx(gap, abs=1e-9)
        assert sgd_small - sgd == pytest.approx(gap_sgd, abs=1e-9)
        assert large / small == pytest.approx(ratio, abs=0.06)
    assert 61_706 - 56_970 == 4_736
    assert 87.08 - 64.40 == pytest.approx(22.68)  # Table V; the text prints 22.62
    assert 8922.4 / (math.e - 1.1) == pytest.approx(5_514, abs=1)  # Fig. 6; the text prints 13,574
    assert 19_145 / 13_574 == pytest.approx(1.41, abs=5e-3)
    assert 11.51 / 0.2011 == pytest.approx(57.2, abs=0.05)
    dense = [6 * units + units + (layers - 1) * (units + 1) * units + units + 1
             for layers, units in ((12, 60), (6, 120))]  # fmt: skip
    assert dense == [40_741, 73_561]
    gains = {key: np.mean(each, axis=0) for key, each in _gains_of_lin().items()}
    printed = {
        ("3", "cnn"): (3, 18), ("4", "cnn"): (8, 14), ("5", "cnn"): (10, 22),
        ("4", "lstm"): (13, 25), ("5", "lstm"): (12, 23),
    }  # fmt: skip
    for key, (accuracy, loss) in printed.items():
        assert 100 * gains[key] == pytest.approx([accuracy, -loss], abs=0.51)
    assert 100 * gains["3", "lstm"] == pytest.approx([15.4, -48.7], abs=0.1)  # printed: 18 and 55


def _gains_of_lin() -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Accuracy and loss of AC less those of CA, by table and network, of the paper's cells."""
    text = (ROOT / "benchmarks" / "factors" / "paper.csv").read_text()
    cells = {
        tuple(row[key] for key in ("table", "network", "optimizer", "clip", "sigma", "order")): (
            float(row["accuracy"]), float(row["loss"])
        )
        for row in csv.DictReader(text.splitlines())
        if row["table"] in ("3", "4", "5")
    }  # fmt: skip
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for key, (accuracy, loss) in cells.items():
        if key[-1] == "AC":
            other = cells[*key[:-1], "CA"]
            found.setdefault(key[:2], []).append((accuracy - other[0], loss - other[1]))
    return found


LINES = [
    {"arm": arm, "seed": seed, "epsilon": epsilon, "test": value, "steps": 10, "curve": [0, value]}
    for arm, epsilon, values in [
        ("a", 1.0, (0.7, 0.9, 0.8)), ("b", 1.0, (0.6, 0.95, 0.6)), ("a", None, (0.99, 0.97, 0.98)),
    ]
    for seed, value in enumerate(values)
]  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "HERE", tmp_path)
    lines = [*LINES, {**LINES[0], "full": True, "test": 0.1}]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    registry.read_lines.cache_clear()
    yield "runs.jsonl"
    registry.read_lines.cache_clear()


def texts(file: str, **spec: Any) -> list[tuple[str, str, int]]:
    return [(f.name, f.text, f.seeds) for f in registry.compute_figures({"file": file, **spec})]


def test_figures_are_computed_from_the_lines(results: str):
    a = {"where": {"arm": "a", "epsilon": 1.0}, "value": "test"}
    assert texts(results, **a) == [("", ".8 (.7 to .9)", 3)]
    assert texts(results, **a, minus={"arm": "b"}) == [
        ("", ".1, above 0 in 2 of 3 (-.05 to .2)", 3)
    ]
    full = {**a, "where": {**a["where"], "full": True}}
    assert texts(results, **full) == [("", ".1", 1)]
    assert texts(results, where={"epsilon": [1.0]}, by=["arm"], value="curve.-1") == [
        ("a", ".8 (.7 to .9)", 3), ("b", ".6 (.6 to .95)", 3),
    ]  # fmt: skip
    backwards = {"arm": ["b", "a"], "epsilon": 1.0}
    assert [each[0] for each in texts(results, where=backwards, by=["arm"], value="test")] == [
        "b",
        "a",
    ]
    assert texts(results, where={"epsilon": "null"}, value="test") == [("", ".98 (.97 to .99)", 3)]
    assert texts(results, where={"arm": "c"}, value="test") == []


def test_a_share_of_steps_follows_the_lines(results: str):
    row = registry.Row(
        paper="Bao", item="Table I", shows="", verdict="in part", why="", paper_steps=400,
        ours=[{"file": results, "where": {"arm": "a"}, "value": "test"}],
    )  # fmt: skip
    assert (row.steps, row.seeds) == ("2.5 %", "3")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("Bao, Tabel IX", "Near: Bao, Table IX"),
        ("Table III", "Several items are named 'Table III'. Near: Bao, Table III; Yu, Table III"),
        ("§ 9", "Near: none"),
    ],
)
def test_a_wrong_item_is_refused_with_near_names(wanted: str, words: str):
    with pytest.raises(LookupError, match=re.escape(words)):
        reproduce.find_row(ROWS, wanted)


def test_the_command_line():
    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, ROOT / "benchmarks" / "reproduce.py", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, listed = run("--list")
    assert (code, listed.count("\n")) == (0, len(ROWS) + 1)
    code, shown = run("bao table iii")
    assert code == 0
    assert "verdict: reproduced" in shown
    assert run("Bao, Table 3000")[0] == 2
    assert run("Bao, Fig. 7", "--run") == (2, "Bao, Fig. 7: give --data-root PATH\n")
    assert run("Bao, Table III", "--run", "--full") == (2, "Bao, Table III has no longer command\n")
    assert run("Bao, Fig. 11", "--run")[0] == 0
