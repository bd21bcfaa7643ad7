"""What the README and the docs say is there, is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks/README.md"]
README = PAGES[0].read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from pasearch.cli import app

    monkeypatch.chdir(tmp_path)
    first = CliRunner().invoke(app, ["arch", "--eps", "2", "--strategy", "fixed", "--steps", "5"])
    assert first.exit_code == 0, first.output
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert tuple(names["logits"].shape) == (5, 10)
    assert (tmp_path / "demo" / "release" / "result.json").is_file()


def test_the_space_example_is_a_space(tmp_path: Path):
    from pasearch.spaces.space import space

    (example,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(example)
    assert space(tmp_path / "mine.toml").count() > 1


def test_the_first_two_blocks_of_shell_are_the_two_commands():
    first, second = blocks("sh")
    assert first.splitlines()[-1] == ".venv/bin/pasearch arch --eps 2"
    assert second.splitlines()[-1] == ".venv/bin/python -m pytest -q"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path):
    for name in set(
        re.findall(r"`((?:tests|pasearch|docs|benchmarks)/[\w/.-]+\.\w+)`", page.read_text())
    ):
        assert (ROOT / name).exists(), name


def test_options_that_are_named_exist():
    from pasearch.cli import app

    runner = CliRunner()
    known = " ".join(
        runner.invoke(app, [*command, "--help"], terminal_width=200).output
        for command in ([], ["arch"], ["plan", "arch"], ["account", "price"], ["verify"])
    )
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))):
        assert option in known or option in ("--quiet",), option


def test_pages_that_the_source_cites_exist():
    cited = {
        page
        for file in (ROOT / "pasearch").rglob("*.py")
        for page in re.findall(r"docs/[\w/-]+\.md", file.read_text())
    }
    assert len(cited) > 5
    assert [page for page in sorted(cited) if not (ROOT / page).is_file()] == []
