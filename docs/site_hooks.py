"""Rewrite links and formulas of pages for the site; mkdocs calls it.

- Links are written as they work in the repository. A link to a file outside `docs/` leads to the
  repository if `repo_url` is set in mkdocs.yml. Otherwise it becomes text, with the file's name.
- Formulas in LaTeX, $...$ within a line and $$...$$ as a paragraph, become MathML, so that a
  browser shows them without a script or a font from another machine.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CODE = re.compile(r"^```.*?^```$|``[^`]+``|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# $$...$$, or $...$ within a line; the dollar of an amount ("$5 or $6") begins no formula.
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?![\s\d.]*\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.DOTALL)
ENCODED_FORMULA = re.compile(r"LATEX(BLOCK|INLINE)([0-9a-f]+)X")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite links that leave the site, and encode formulas."""
    return encode_formulas(rewrite_links(markdown, page.file.src_uri, config.repo_url))


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


def rewrite_links(markdown: str, page: str, repository: str | None) -> str:
    """Replace links that leave `docs/`.

    Args:
        markdown: Text of the page, with links that work in the repository.
        page: Path of the page below `docs/`, such as "guarantees/ledger.md".
        repository: Address of the repository, or None.
    """

    def link(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, mark, anchor = target.partition("#")
        full = Path(posixpath.normpath((DOCS / page).parent / path))
        if not path or "://" in path or not full.exists():
            return match[0]  # an anchor, another site, or no link to a file
        if full == ROOT / "README.md":
            full = DOCS / "index.md"
        if full.is_relative_to(DOCS) and full.is_file() and full.suffix != ".py":
            near = posixpath.relpath(full, (DOCS / page).parent)
            return f"{picture}[{text}]({near}{mark}{anchor})"
        name = full.relative_to(ROOT).as_posix()
        if repository:
            kind = "tree" if full.is_dir() else "blob"
            return f"[{text}]({repository.rstrip('/')}/{kind}/main/{name}{mark}{anchor})"
        return text if name in text else f"{text} (`{name}`)"

    return LINK.sub(link, markdown)
