"""What the README and the docs say is there, is there."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pasearch
from pasearch.cli import app

ROOT = Path(__file__).parent.parent
STUDIES = [ROOT / "docs/papers.md", ROOT / "benchmarks/README.md"]  # commands of the studies
PAGES = [
    ROOT / "README.md",
    *sorted({*(ROOT / "docs").rglob("*.md")} - {*STUDIES}),
    ROOT / "benchmarks/README.md",
]
README = PAGES[0]
DATA = ROOT / "docs/data.md"
LEDGER = ROOT / "docs/howto-ledger.md"
SEARCH = ROOT / "docs/search.md"
COMMANDS = (
    [], ["arch"], ["train"], ["recipes"], ["spaces"], ["plan", "arch"], ["check"],
    ["account", "price"],
    ["account", "schedule"], ["account", "noise"], ["verify"], ["features"], ["plan", "features"],
    ["key"], ["sign"], ["ledger"], ["crossover"], ["advise"], ["compare"],
)  # fmt: skip
SOURCES = sorted((ROOT / "pasearch").rglob("*.py"))


def blocks(language: str, page: Path = README) -> list[str]:
    every = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in every if re.fullmatch(language, name)]


def commands(page: Path) -> list[list[str]]:
    """Every whole `pasearch` command in a page's blocks, without its comment."""
    lines = [line for block in blocks("(?:sh)?", page) for line in block.splitlines()]
    found = [line.partition("#")[0].split() for line in lines if line.startswith("pasearch ")]
    return [command[1:] for command in found]


def table(path: Path, rows: int = 120) -> None:
    """Write a table with the columns that quickstart and README speak of."""
    generator = np.random.default_rng(0)
    lines = ["age,workclass,note,id,income"]
    for row in range(rows):
        age = generator.integers(17, 91)
        work = generator.choice(["Private", "State-gov", "?"])
        lines.append(f"{age},{work},an urgent note,{row},{'>50K' if age > 50 else '<=50K'}")
    path.write_text("\n".join(lines) + "\n")


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    first = CliRunner().invoke(app, ["arch", "--eps", "2", "--strategy", "fixed", "--steps", "5"])
    assert first.exit_code == 0, first.output
    for page in (README, ROOT / "docs/python.md"):
        names: dict[str, object] = {}
        for block in blocks("python", page):
            exec(compile(block, page.name, "exec"), names)
        assert np.mean(names["labels"] == names["y"]) > 0.8, "there is something to learn"
        assert names["estimator"].price_.epsilon <= 2.0  # type: ignore[attr-defined]
        assert (names["result"].path / "release" / "result.json").is_file()  # type: ignore[attr-defined]
    assert tuple(names["logits"].shape) == (5, 10)  # type: ignore[attr-defined]


def test_the_schema_example_is_a_schema_of_the_commands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "mine.csv")
    (tmp_path / "mine.toml").write_text(blocks("toml", DATA)[0])
    said = [command for command in commands(LEDGER) if command[1] == "mine.csv"]
    assert len(said) == 2
    for command in said:
        assert command[:4] == ["arch", "mine.csv", "--schema", "mine.toml"]
        own = "--strategy", "fixed", "--quiet", "--force"  # too few records to learn from
        done = CliRunner().invoke(app, [*command, *own])
        assert done.exit_code == 0, f"{done.output} {done.exception}"


def test_the_space_example_is_a_space(tmp_path: Path):
    from pasearch.errors import UsageError
    from pasearch.spaces.candidate import read_candidate
    from pasearch.spaces.parsing import make_space

    example = blocks("toml", SEARCH)[0]
    network = blocks("toml", ROOT / "docs/howto-public-data.md")[0]
    (tmp_path / "mine.toml").write_text(example)
    assert make_space(tmp_path / "mine.toml").count() > 1
    (tmp_path / "network.toml").write_text(network)
    with pytest.raises(UsageError, match="backbone"):  # which the reader has made
        read_candidate(tmp_path / "network.toml")


def test_the_recipe_examples_are_a_recipe_and_an_architecture(tmp_path: Path):
    from pasearch.spaces.candidate import read_candidate
    from pasearch.training.presets import PRESETS, read_recipe, resolve_preset

    page = SEARCH.read_text()
    recipe, network = blocks("toml", SEARCH)[1:]
    (tmp_path / "mine.toml").write_text(recipe)
    assert resolve_preset(read_recipe(tmp_path / "mine.toml"))["steps"] == 400
    (tmp_path / "net.toml").write_text(network)
    assert len(read_candidate(tmp_path / "net.toml").architecture.layers) == 1
    told = set(re.findall(r"`-?([a-z-]+)`", page))
    assert all(name in told or name.removeprefix("dynamic") in page for name in PRESETS)


def test_the_spaces_that_are_named_are_there():
    from pasearch.spaces.space import BUILT_IN_NAMES

    told = re.findall(r"`([a-z-]+)`", SEARCH.read_text())
    assert {"auto", *BUILT_IN_NAMES} <= set(told)


def test_every_strategy_event_and_field_is_described():
    from pasearch.accounting.events import EVENT_TYPES
    from pasearch.results import SCHEMA_VERSION
    from pasearch.search import strategy
    from pasearch.search.names import show_strategy

    for name in ("auto", *strategy.STRATEGIES):
        row = rf"^\| `{show_strategy(name)}`"
        assert re.search(row, SEARCH.read_text(), re.MULTILINE), name
    result = (ROOT / "docs/result.md").read_text()
    for name in EVENT_TYPES:
        assert re.search(rf"^\| `{name}` \|", result, re.MULTILINE), name
    assert f"schema version {SCHEMA_VERSION}\n" in result


def test_every_field_of_a_result_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from pasearch.results import read_document

    monkeypatch.chdir(tmp_path)
    asked = ["arch", "--eps", "9", "--strategy", "paas", "--candidates", "1", "--generations", "1"]
    done = CliRunner().invoke(app, [*asked, "--steps", "2", "--data-is-public", "--out", "run"])
    assert done.exit_code == 0, done.output
    described = (ROOT / "docs/result.md").read_text()
    document = read_document(tmp_path / "run")
    assert {"curves", "compared", "trials"} <= set(document)
    for field in (*document, *document["score"], *document["dataset"]):
        assert f"`{field}`" in described, field
    private = {path.name for path in (tmp_path / "run" / "private").iterdir()}
    for name in (*private, *(path.name for path in (tmp_path / "run" / "release").iterdir())):
        assert name in described or name == "privacy-card.json", name


def test_the_first_two_blocks_of_shell_are_the_two_commands():
    for block, last in zip(
        blocks("sh"), ("pasearch arch --eps 2", "python -m pytest -q"), strict=True
    ):
        (line,) = block.splitlines()  # each does everything by itself
        assert "python3 -m venv .venv" in line
        assert line.endswith(f".venv/bin/{last}")


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 100


def test_figures_are_those_of_the_result_files():
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_figures.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def found_in_pages(pattern: str, pages: Sequence[Path] = PAGES) -> list[tuple[Path, str]]:
    """List what a pattern finds in pages, with the page that holds it."""
    found = [(page, each) for page in pages for each in re.findall(pattern, page.read_text())]
    assert found
    return found


def test_links_lead_somewhere():
    assert not [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in found_in_pages(r"\]\(([^)#]+)(?:#[\w-]+)?\)")
        if not (target.startswith("http") or (page.parent / target).exists())
    ]


def test_files_that_are_named_exist():
    assert not [
        f"{page.relative_to(ROOT)}: {name}"
        for page, name in found_in_pages(r"`((?:tests|pasearch|docs|benchmarks)/[\w/.-]+\.\w+)`")
        if not (ROOT / name).exists()
    ]


OF_RAY = ("--generate", "--object-store-memory")
"""Options of `ray`'s own commands, which a page names."""


@cache
def helps() -> str:
    """What `--help` says of every command."""
    return " ".join(
        CliRunner().invoke(app, [*command, "--help"], terminal_width=200).output
        for command in COMMANDS
    )


def test_options_that_are_named_exist():
    known = helps()
    assert not [
        f"{page.relative_to(ROOT)}: {option}"
        for page, option in found_in_pages(r"(?<![\w-])--[a-z][a-z-]+", PAGES[:-1])
        if not (option in known or option in ("--quiet", *OF_RAY))
    ]


def test_pages_that_the_source_cites_exist():
    cited = {page for file in SOURCES for page in re.findall(r"docs/[\w/-]+\.md", file.read_text())}
    assert len(cited) > 5
    assert [page for page in sorted(cited) if not (ROOT / page).is_file()] == []


def test_names_that_docstrings_refer_to_exist():
    parts = {part.name for part in pkgutil.iter_modules(pasearch.__path__)}
    named = {
        name
        for file in SOURCES
        for name in re.findall(r"`(\w+(?:\.\w+)+)`", file.read_text())
        if name.partition(".")[0] in parts
    }
    assert len(named) > 3
    assert [name for name in sorted(named) if not resolves(f"pasearch.{name}")] == []


def test_a_name_that_is_gone_would_be_caught():
    assert resolves("pasearch.search.strategy.STRATEGIES")
    assert not resolves("pasearch.search.strategy.GONE")
    assert not resolves("pasearch.gone.strategy")


def resolves(name: str) -> bool:
    """Whether a name is a module of the package or something in one."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(module), last)
        except ModuleNotFoundError:
            return False
    return True
