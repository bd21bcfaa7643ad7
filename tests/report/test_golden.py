"""Golden files: the whole text of pages, cards and plans, so that a change of wording is one diff.

After a wanted change of wording, write them again and read the diff:

    UPDATE_GOLDEN=1 python -m pytest tests/report/test_golden.py
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers import yu_theorem3
from report.test_html import (
    changed,
    composed,
    dense,
    document,
    effects,
    planned,
    public,
    regression,
    trained,
)
from report.test_quality import KINDS, people, with_errors

from pasearch.accounting.budget import Budget
from pasearch.api.features import plan_feature_selection
from pasearch.api.search import plan_architecture_search
from pasearch.report.card import card_markdown, escape_markdown
from pasearch.report.html import report_html
from pasearch.report.plan import feature_plan_text, plan_text
from pasearch.training.score_tables import PREDICTION_COLUMNS

FOLDER = Path(__file__).parent / "golden"


class Lines(HTMLParser):
    """The visible text of a page, a line per block; a figure by its label, in brackets."""

    BLOCKS = frozenset(
        {"h1", "h2", "h3", "p", "li", "dt", "tr", "summary", "title", "aside", "figure"}
    )

    def __init__(self, html: str):
        super().__init__()
        self.text, self.hidden = "", 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.text += "\n" if tag in self.BLOCKS else " " if tag in ("td", "th", "dd", "br") else ""
        if tag == "svg" and (label := dict(attrs).get("aria-label")):
            self.text += f" [{label}]"
        self.hidden += tag in ("style", "svg")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "svg")

    def handle_data(self, data: str) -> None:
        self.text += "" if self.hidden else data.replace("\n", " ")


def page(made: dict[str, Any]) -> str:
    lines = (" ".join(each.split()) for each in Lines(report_html(made)).text.splitlines())
    return "\n".join(each for each in lines if each) + "\n"


def private() -> dict[str, Any]:
    claim = yu_theorem3(sampling_probability=0.5, noise_multiplier=6.0, steps=9, delta=1e-5)
    return document(
        attack=[[0.01, 0.073856], [0.1, 0.73856]], effects=effects(), claims=[claim.to_json()],
        two_runs={"epsilon": 4.5, "delta": 1e-4}, estimated_privately=["bounds"],
        assumed_public=["classes"],
        warnings=[
            "If it is a number to predict, say so (`regression=True`) in a new run: what this one "
            "has spent stays spent.",
            "More records or a larger `epsilon=` help;",
        ],
    )  # fmt: skip


def insured() -> dict[str, Any]:
    """A search whose winner has not the best score, judged by an error, with weak protection."""
    made = composed() | {"attack": [[0.01, 0.99], [0.1, 1.0]]}
    made["strategy"] = {"name": "insured", "judged_by": "Brier score"}
    made["trials"][0] = {
        "parameters": {"front_end": "raw", "layers": [], "settings": {"learning_rate_scale": 0.5}},
        "noisy_correct": 175_000,
    }
    made["trials"][1]["noisy_correct"] = 171_000
    return made


def convolutional() -> dict[str, Any]:
    layers = [
        {"kind": "conv", "filters": 4, "kernel": 3, "padding": "same"},
        {"kind": "pool", "size": 2}, dense(8, trainable=False, dropout=0.1),
    ]  # fmt: skip
    return changed("best", "layers", to=layers, of=document(variant="average of the last half"))


PAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "private": private,
    "insured": insured,
    "convolutional": convolutional,
    "planned": planned,
    "public": public,
    "trained": trained,
    "regression": with_errors,
    "one-number": regression,
    "odds": lambda: KINDS["two with odds"],
    "answers": lambda: KINDS["two without"],
    "unknown": lambda: people(
        [f"kind {each}" for each in range(3)],
        [[1900, 90, 1], [200, 1700, 0], [1, 0, 0]],
        PREDICTION_COLUMNS,
    ),
    "many-classes": lambda: KINDS["sixty"],
}
CARDS = ("private", "public", "trained", "odds")

ARRAYS = np.zeros((300, 4)), np.zeros(300, int)
OPTIONS: dict[str, Any] = {
    "budget": Budget(1.0), "device": "cpu", "steps": 5, "batch": 20,
    "space": {"name": "small", "choices": {"units_1": [4, 8]}},
}  # fmt: skip
PLANS: dict[str, Callable[[], str]] = {
    "fixed": lambda: plan_text(plan_architecture_search(ARRAYS, strategy="fixed", **OPTIONS)),
    "random-search": lambda: plan_text(
        plan_architecture_search(ARRAYS, strategy="rs", bounds=(0, 1), classes=2, **OPTIONS),
        report="x/release/report.html",
    ),
    "features": lambda: feature_plan_text(
        plan_feature_selection(ARRAYS, budget=Budget(2.0), bounds=(0, 1), classes=2, method="pafs"),
        usual=True,
    ),
}

FILES: dict[str, Callable[[], str]] = {
    **{f"page-{name}.txt": lambda made=made: page(made()) for name, made in PAGES.items()},
    **{f"card-{name}.md": lambda name=name: card_markdown(PAGES[name]()) for name in CARDS},
    **{f"plan-{name}.txt": lambda made=made: made() + "\n" for name, made in PLANS.items()},
}


@pytest.mark.unit
def test_every_text_equals_its_golden_file():
    differences = ""
    for name, make in FILES.items():
        file, text = FOLDER / name, make()
        if os.environ.get("UPDATE_GOLDEN"):
            file.write_text(text, encoding="utf-8")
        golden = file.read_text(encoding="utf-8") if file.is_file() else ""
        differences += "\n".join(
            difflib.unified_diff(golden.splitlines(), text.splitlines(), name, "now", lineterm="")
        )
    assert differences == ""
    assert {each.name for each in FOLDER.iterdir()} == set(FILES)


@pytest.mark.unit
def test_a_released_category_stays_in_its_line_of_the_card():
    shown = escape_markdown("y: one of p\n\n## Not covered\n\n- nothing: all is private\ud800")
    assert "\n" not in shown
    shown.encode("utf-8")
