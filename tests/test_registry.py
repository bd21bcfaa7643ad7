"""The registry of the papers' items: complete, up to date, and every path in it exists."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

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
        "Definition 1", "Definition 2", "Eq. 4", "Eq. 7", "Eq. 8", "Eq. 9", "IV-B, epsilons",
        "VI-C, feature crossovers", "VI-D, CNN below FCN", "VIII-C, cost of MGRS",
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
    for spec in row.ours:
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
    if program == "python":
        assert (ROOT / words[0]).is_file(), row.command
    elif program:
        commands: Any = typer.main.get_command(app)
        assert (program, words[0] in commands.commands) == ("pasearch", True), row.command


@pytest.mark.quick
def test_the_page_of_the_papers_is_up_to_date():
    assert PAPERS["list_stale"]() == [], "run docs/make_papers.py"


def test_every_study_has_a_readme_and_is_in_the_index():
    index = (ROOT / "benchmarks" / "README.md").read_text()
    studies = [path for path in (ROOT / "benchmarks").iterdir() if any(path.glob("*.py"))]
    assert [path.name for path in studies if not (path / "README.md").is_file()] == []
    assert [path.name for path in studies if f"]({path.name}/README.md)" not in index] == []
    assert [line for line in index.splitlines() if len(line) > 120] == []


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
