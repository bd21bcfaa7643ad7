"""The site of the documentation: each page has a place, links lead somewhere, nothing is stale."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Gaussian
from pasearch.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = ROOT / "mkdocs.yml"
CSS = DOCS / "assets" / "site.css"
HOOKS = runpy.run_path(str(DOCS / "site_hooks.py"))
PICTURES = runpy.run_path(str(DOCS / "make_pictures.py"))
REFERENCE = runpy.run_path(str(DOCS / "make_reference.py"))
rewrite_links = HOOKS["rewrite_links"]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def in_menu() -> list[str]:
    """Every page of the nav, in its order; read without YAML, which no extra of ours brings."""
    _, _, nav = SETTINGS.read_text().partition("\nnav:\n")
    return re.findall(r"^ +- .*: ([\w/-]+\.md)$", nav, re.MULTILINE)


def pages() -> set[str]:
    return {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.mark.quick
def test_every_page_is_in_the_menu_once_and_every_entry_is_a_page():
    assert sorted(in_menu()) == sorted(pages())
    assert {"index.md", "guarantees/ledger.md"} <= set(in_menu())


def test_what_is_generated_is_up_to_date():
    assert REFERENCE["stale"]() == [], "run docs/make_reference.py"


def test_a_stale_page_is_noticed(monkeypatch: pytest.MonkeyPatch):
    made = dict(REFERENCE["pages"]())
    made[DOCS / "api.md"] += "more\n"
    monkeypatch.setitem(REFERENCE["stale"].__globals__, "pages", lambda: made)
    assert REFERENCE["stale"]() == ["api.md"]


def test_every_public_name_is_on_the_page_of_python():
    import pasearch

    text = (DOCS / "api.md").read_text()
    assert [name for name in pasearch.__all__ if f"\n## `{name}`\n" not in text] == []


@pytest.mark.oracle
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_price_of_a_person_with_several_rows_is_above_the_exact_one(count: int):
    event = REFERENCE["trained"](1.0)
    exact = price(Gaussian(noise_multiplier=event.noise_multiplier / count), 1e-5).epsilon
    told = REFERENCE["group_epsilon"](event, count)
    assert exact <= told * (1 + 1e-3)  # k rows move a sum k times as far
    assert told <= 2 * exact


def test_links_out_of_the_docs_become_pages_addresses_or_text():
    text = "[a](../benchmarks/models/README.md#x), [b](../examples), [c](rules.md), [d](#e)"
    assert rewrite_links(text, "data.md", None) == (
        "a (`benchmarks/models/README.md`), b (`examples`), [c](rules.md), [d](#e)"
    )
    linked = rewrite_links(text, "data.md", "https://example.org/x/")
    assert "[b](https://example.org/x/tree/main/examples)" in linked
    assert "[a](https://example.org/x/blob/main/benchmarks/models/README.md#x)" in linked
    deep = rewrite_links("[a](../../README.md) [b](../images/report.png)", "guarantees/x.md", None)
    assert deep == "[a](../index.md) [b](../images/report.png)"
    assert rewrite_links('x["a"](../b)', "data.md", None) == 'x["a"](../b)'


GENERATED = ("api.md", "papers.md", "reference.md")
GUIDES = sorted({*DOCS.glob("*.md")} - {DOCS / name for name in GENERATED})
"""Pages that are written by hand, without the privacy analysis in `guarantees/`."""
KEPT = {"proofs.md", "rules.md", "architecture.md", "result.md", "glossary.md"}
"""Pages of the reference and of the privacy analysis."""


@pytest.mark.quick
def test_the_guides_are_few_and_short():
    pages = [page for page in GUIDES if page.name not in KEPT]
    words = [re.findall(r"[^\s|`#*-]+", page.read_text()) for page in pages]
    assert len(pages) <= 20
    assert sum(len(each) for each in words) <= 25_000


@pytest.mark.quick
def test_lines_of_the_guides_are_short():
    """Commands and the output of programs are not folded."""
    printed = re.compile(r"^```.*?^```$|^<!-- .*? -->$.*?^<!-- end", re.MULTILINE | re.DOTALL)
    guides = [page for page in GUIDES if page.name not in KEPT]
    long = [
        f"{page.name}: {line[:60]}"
        for page in guides
        for line in printed.sub("", page.read_text()).splitlines()
        if len(line) > 120 and not line.startswith("[")  # the address of a link
    ]
    assert long == []


TERMS = (
    "architecture search", "AutoML", "confidence interval", "cross-validation", "DP-SGD",
    "differential privacy", "early stopping", "exponential mechanism", "feature selection",
    "gradient clipping", "group privacy", "hyperparameter", "imputation", "learning rate",
    "membership inference", "missing value", "noise multiplier", "Poisson sampling",
    "privacy amplification", "pruning", "quantisation", "scikit-learn", "search space",
    "successive halving", "threat model",
)  # fmt: skip


def test_the_search_index_has_the_terms_of_the_field(site: Path):
    index = (site / "search/search_index.json").read_text().lower()
    assert [term for term in TERMS if term.lower() not in index] == []


def test_lists_and_tables_have_an_empty_line_before_them():
    """Python-Markdown, unlike GitHub, takes them for a part of the paragraph otherwise."""
    glued = []
    for page in sorted(DOCS.rglob("*.md")):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        before = ""
        for line in text.splitlines():
            begins = re.match(r"([-*] |1\. |\|)", line)
            inside = re.match(r"([-*] |\d+\. |\||    | {2,}|<!--|#)", before)
            if begins and before.strip() and not inside:
                glued.append(f"{page.name}: {line[:60]}")
            before = line
    assert glued == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly."""
    needed = ("mkdocs", "material", "latex2mathml")
    if missing := [name for name in needed if not importlib.util.find_spec(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_strictly_and_asks_no_other_machine(site: Path):
    built = list(site.rglob("*.html"))
    assert len(built) >= len(pages())
    for page in built:
        tags = _fetching(page.read_text())
        assert [tag for tag in tags if re.search(r"(?:src|href)=.?(?:https?:)?//", tag)] == []
    assert (site / "search/search_index.json").stat().st_size > 100_000
    assert not list(site.rglob("*.py"))


def test_formulas_are_not_folded_and_what_a_terminal_prints_is(site: Path):
    """Columns of a formula are lined up, so a folded line cannot be read."""
    folded = re.findall(
        r"\.language-([\w-]+) pre > code \{\s*white-space: pre-wrap", CSS.read_text()
    )
    assert folded == ["text"]
    for page in sorted(DOCS.glob("guarantees/*.md")):
        built = (site / page.relative_to(DOCS).with_suffix(".html")).read_text()
        blocks = re.findall(
            r'<div class="language-([\w-]+) highlight"><pre>(.*?)</pre>', built, re.S
        )
        plain = [(kind, html.unescape(re.sub("<[^>]*>", "", text))) for kind, text in blocks]
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in re.findall(r"(?<=\n\n)    (\S.*)", text):
            (kind,) = {kind for kind, shown in plain if line in shown.splitlines()}
            assert kind not in folded, f"{page.name}: {line}"
    tutorial = (site / "tutorial-digits.html").read_text()
    assert '<div class="language-text highlight">' in tutorial


def test_formulas_become_mathml_and_code_keeps_its_dollars(site: Path):
    code = "```\n$ ls $x$\n```"
    text = f"cost $x_1<y$, `$HOME`\n\n$$\n\\lVert g\\rVert\\le C\n$$\n\n{code}\n$5 or $6"
    encoded = HOOKS["encode_formulas"](text)
    assert all(kept in encoded for kept in ("`$HOME`", code, "$5 or $6"))
    kinds = re.findall(r'<math [^>]*display="(\w+)"', HOOKS["render_formulas"](encoded))
    assert kinds == ["inline", "block"]
    for page in sorted(DOCS.glob("guarantees/*.md")):
        built = (site / page.relative_to(DOCS).with_suffix(".html")).read_text()
        formulas = re.findall(r"<math .*?</math>", built, re.DOTALL)
        assert formulas
        assert not [each for each in formulas if "\\" in each], f"{page.name}: unknown command"
        assert not re.search(r"\$|LATEX", re.sub(r"(?s)<(code|script)\b.*?</\1>", "", built))


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
def test_search_works_in_a_page_that_is_opened_from_the_folder(site: Path, tmp_path: Path):
    printed = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000",
         f"{(site / 'guarantees/ledger.html').as_uri()}?q=privacy"],
        capture_output=True, text=True, timeout=600, check=True,
    ).stdout  # fmt: skip
    found = re.search(r"(\d+) matching documents", printed)
    assert found
    assert int(found[1]) > 5


def _fetching(text: str) -> Iterator[str]:
    """Tags whose address a browser asks for by itself."""
    for tag in re.findall(r"<(?:link|script|img|iframe|source)\b[^>]*>", text):
        if not re.search(r"rel=.?(?:canonical|next|prev)", tag):
            yield tag


def steps(page: str) -> list[list[str]]:
    """The commands of a page of the tutorial."""
    found = [
        text for name, text in PICTURES["BLOCK"].findall((DOCS / page).read_text()) if not name
    ]
    lines = [line for block in found for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("pasearch ")]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorial-digits.md", "tutorial-table.md"])
def test_the_tutorial_runs_as_it_is_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text()
    python = [code for name, code in PICTURES["BLOCK"].findall(text) if name == "python"]
    schema = tmp_path / "patients.toml"
    if python:
        exec(compile(python[0], page, "exec"), {})
        rows = (tmp_path / "patients.csv").read_text().splitlines()[:4]
        (tmp_path / "new.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows) + "\n")
    said: dict[str, Any] = {}
    for command in steps(page):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{command}: {done.output}"
        said[command[0]] = done.output
        if schema.exists():
            schema.write_text(schema.read_text().replace("proposed = true\n", ""))
    last = "verify" if page == "tutorial-digits.md" else "predict"
    assert list(said)[-1] == last
    if len(python) > 1:
        names: dict[str, Any] = {}
        exec(compile(python[1], page, "exec"), names)
        assert names["result"].price.epsilon <= 2
