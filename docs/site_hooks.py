"""Hooks of mkdocs: pages of the studies, links that leave the site, and formulas.

- The README of each study in `benchmarks/` becomes a page `studies/NAME.md`.
- Links are written as they work in the repository. A link to a README becomes one to its page; a
  link to any other file outside `docs/` leads to the repository if `repo_url` is set in mkdocs.yml,
  and otherwise becomes text, with the file's name.
- Formulas in LaTeX, $...$ within a line and $$...$$ as a paragraph, become MathML, so that a
  browser shows them without a script or a font from another machine.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"^```.*?^```$|``[^`]+``|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# $$...$$, or $...$ within a line; the dollar of an amount ("$5 or $6") begins no formula.
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s\d.]*\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.DOTALL)
ENCODED_FORMULA = re.compile(r"LATEX(BLOCK|INLINE)([0-9a-f]+)X")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def studies() -> dict[str, Path]:
    """Return the README of each page `studies/NAME.md`."""
    found = {f"studies/{each.parent.name}.md": each for each in readmes()}
    return dict(sorted(found.items()))


def readmes() -> Iterable[Path]:
    """Return the READMEs below `benchmarks/`, its own first."""
    return (ROOT / "benchmarks/README.md", *sorted(ROOT.glob("benchmarks/*/README.md")))


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the studies."""
    from mkdocs.structure.files import File

    for page, readme in studies().items():
        text = readme.read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite links that leave the site, and encode formulas."""
    return encode_formulas(rewritten(markdown, page.file.src_uri, config.repo_url))


def on_page_content(html: str, **_: Any) -> str:
    """Replace encoded formulas by MathML."""
    return render_formulas(html)


def encode_formulas(markdown: str) -> str:
    """Encode LaTeX formulas as alphanumeric words, which Markdown leaves unchanged.

    Formulas are in dollar signs: one within a line, or two around a paragraph. Code is skipped.
    """

    def encode(match: re.Match[str]) -> str:
        kind, latex = ("BLOCK", match[1]) if match[1] else ("INLINE", match[2])
        return f"LATEX{kind}{latex.strip().encode().hex()}X"

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [FORMULA.sub(encode, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, FORMULA.sub(encode, markdown[end:])])


def render_formulas(html: str) -> str:
    """Convert the formulas that `encode_formulas` has encoded to MathML."""

    def render(match: re.Match[str]) -> str:
        from latex2mathml.converter import convert

        kind, latex = match[1], bytes.fromhex(match[2]).decode()
        return convert(latex, display=kind.lower())

    return ENCODED_FORMULA.sub(render, html)


def rewritten(markdown: str, page: str, repository: str | None) -> str:
    """Return a page's text with the links of the site.

    Args:
        markdown: The text, with links that work in the repository.
        page: The page's path on the site, such as "guarantees/ledger.md".
        repository: The address of the repository, or None.
    """
    source = studies().get(page, ROOT / "docs" / page)

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        full = Path(posixpath.normpath(source.parent / path))
        if not path or "://" in path or not full.exists():
            return match[0]  # an anchor, another site, or nothing to do with files
        on_site = _place(full)
        if on_site is not None:
            near = posixpath.relpath(on_site, posixpath.dirname(page) or ".")
            return f"{picture}[{text}]({near}{mark}{anchor})"
        name = full.relative_to(ROOT).as_posix()
        if repository:
            kind = "tree" if full.is_dir() else "blob"
            return f"[{text}]({repository.rstrip('/')}/{kind}/main/{name}{mark}{anchor})"
        return text if name in text else f"{text} (`{name}`)"

    return LINK.sub(link, markdown)


def _place(path: Path) -> str | None:
    """Return where a file of the repository is on the site."""
    if path == ROOT / "README.md":
        return "index.md"
    for page, readme in studies().items():
        if path == readme:
            return page
    docs = ROOT / "docs"
    if path.is_relative_to(docs) and path.is_file() and path.suffix != ".py":
        return path.relative_to(docs).as_posix()
    return None
