from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.test_html import dense, hostile

from pasearch import Budget, measure_crossover, search_architecture, select_features, train
from pasearch.report.html import crossover_html, report_html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MEASURE = """
const left = new Set(document.querySelectorAll("iframe")), every = {};
for (const frame of [...left]) frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const sticking = () => [...page.querySelectorAll("body *")].filter(each =>
    !each.closest(".scroll > *") && each.getBoundingClientRect().right > view.innerWidth + 1);
  const wide = sticking();
  const found = {
    width: page.documentElement.scrollWidth,
    height: page.documentElement.scrollHeight,
    wide: wide.map(each => each.outerHTML.slice(0, 80)),
    paper: view.getComputedStyle(page.body).backgroundColor,
    fetched: view.performance.getEntriesByType("resource").length,
    ran: view.ran === true,
    heading: page.querySelector("h1").textContent,
    unlabelled: [...page.querySelectorAll("nav a")].filter(
      each => !page.querySelector(each.getAttribute("href"))).length,
    drawn: [...page.querySelectorAll("details")].map(each => {
      each.open = true;
      return each.querySelector("table.network")?.getBoundingClientRect().height || 0;
    }).reduce((one, other) => Math.max(one, other), 0),
    unfolded: sticking().length,
    hidden: [...page.querySelectorAll("td.pick")].filter(each =>
      each.getBoundingClientRect().right > view.innerWidth || each.scrollWidth > each.clientWidth
    ).length,
  };
  every[frame.width] = found;
  left.delete(frame);
  if (!left.size) document.querySelector("pre").textContent = JSON.stringify(every);
};
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH"),
]


def document(name: str, *, declared: bool = False) -> dict[str, Any]:
    """A run whose every name is this one, with all optional sections."""
    made = hostile(name)
    made["dataset"]["declared_public"] = declared
    made["best"]["layers"] = [dense(512, "tempered_sigmoid"), dense(64, "tempered_sigmoid")]
    return made


def browse(folder: Path, url: str, *flags: str) -> str:
    """What the browser prints; it has a profile of its own."""
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, "--virtual-time-budget=4000", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def measured(folder: Path, page: str, widths: Sequence[int], *flags: str) -> list[dict[str, Any]]:
    """Measure the page in frames of these widths, by a script around it: it has none itself."""
    frames = "".join(
        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(page)}">'
        "</iframe>"
        for width in widths
    )
    # The script is before the frames' end of loading, so that it is told of it.
    around = f"<!DOCTYPE html><pre></pre>{frames}<script>{MEASURE}</script>"
    (folder / "around.html").write_text(around, encoding="utf-8")
    printed = browse(folder, f"file://{folder / 'around.html'}", "--dump-dom", *flags)
    (found,) = re.findall(r"<pre>(.*?)</pre>", printed, re.S)
    every = json.loads(html.unescape(found))
    return [every[str(width)] for width in widths]


@pytest.mark.parametrize(
    "name", ["digits", "x" * 3000, "<img src=x onerror='window.ran=true'>" * 3]
)
def test_a_page_fits_its_width(tmp_path: Path, name: str):
    widths, page = (360, 1200), report_html(document(name, declared=True))
    for width, found in zip(widths, measured(tmp_path, page, widths), strict=True):
        assert found["width"] <= width
        assert found["wide"] == []
        assert found["heading"].startswith(name[:40])
        assert found["drawn"] > 150
        assert found["unfolded"] == 0
        assert found["fetched"] == 0
        assert not found["ran"]


TALLEST = 2560
"""How many pixels a page may have at a width of 1400, before anything is unfolded."""


def table(folder: Path, *, of_numbers: bool) -> dict[str, Any]:
    """A table of people, and what a run on it is asked for."""
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 90, 900), rng.choice(["nurse", "driver", "teacher"], 900)
    target = 100 * age + rng.normal(0, 500, 900)
    cells = [f"{value:.0f}" if of_numbers else "yes" if value > 5400 else "no" for value in target]
    rows = "".join(f"{a},{j},{c}\n" for a, j, c in zip(age, job, cells, strict=True))
    (folder / "people.csv").write_text(f"age,job,outcome\n{rows}")
    return {"data": folder / "people.csv", "budget": Budget(1.0), "assume_public_schema": True,
            "target": "outcome", "regression": of_numbers, "out": folder / "run"}  # fmt: skip


def page_of(kind: str, folder: Path) -> str:
    """The report of a real run of every kind."""
    digits = {"data": "digits", "budget": Budget(2.0), "out": folder / "run"}
    match kind:
        case "arch":
            result = search_architecture(**digits)
        case "paas":
            result = search_architecture(**digits, strategy="paas", steps=5)
        case "randomized":
            result = search_architecture(**digits, strategy="rs", steps=5)
        case "public":
            result = search_architecture(**digits, data_is_public=True, steps=5)
        case "train":
            result = train(**digits, recipe="default", steps=5)
        case "table":
            result = search_architecture(**table(folder, of_numbers=False))
        case "number":
            result = search_architecture(**table(folder, of_numbers=True))
        case "features":
            result = select_features(**table(folder, of_numbers=False))
        case "cfs":
            result = select_features(**table(folder, of_numbers=False), method="cfs-greedy")
        case "of numbers":
            result = select_features(**table(folder, of_numbers=True))
        case "crossover":
            found = measure_crossover(
                "digits", ("linear", "fcn"), data_is_public=True, epsilons=(0.5, 4.0),
                repeats=2, steps=5, device="cpu", seed=1,
            )  # fmt: skip
            return crossover_html(found.to_json())
        case "drowned":
            result = search_architecture(**{**digits, "budget": Budget(0.02), "force": True})
        case _:
            raise AssertionError(kind)
    return result.report


@pytest.mark.parametrize(
    "kind",
    [
        "arch", "paas", "randomized", "public", "train", "table", "number", "features", "cfs",
        "of numbers", "drowned", "crossover",
    ],
)  # fmt: skip
def test_every_kind_of_page_is_short_and_fits(tmp_path: Path, kind: str):
    page = page_of(kind, tmp_path)
    narrow, wide = measured(tmp_path, page, (360, 1400))
    assert wide["height"] <= TALLEST
    assert wide["unlabelled"] == 0
    for found in (narrow, wide):
        assert found["wide"] == []
        assert found["unfolded"] == 0


def test_the_models_to_take_are_on_the_screen_of_a_phone(tmp_path: Path):
    names = ["linear+columns:" + ",".join(f"column_{place}" for place in range(8)), "fcn"]
    page = crossover_html({
        "data": "people", "n": 900, "delta": 1e-4, "metric": "1 - accuracy", "repeats": 2,
        "epsilons": [0.5, 4.0], "best": names, "taken": names, "sentence": "", "assumes": "",
        "models": [
            {"name": name, "parameters": 9, "error": [0.2, 0.1], "half_width": [0.1, 0.1],
             "error_without_privacy": 0.1, "cost_of_privacy": [0.1, 0.0]} for name in names
        ],
        "crossovers": [],
    })  # fmt: skip
    assert page.count('<td class="pick">') == 6
    broken = page.replace("white-space: normal; ", "")
    assert measured(tmp_path, broken, [390])[0]["hidden"] > 0
    assert measured(tmp_path, page, [390])[0]["hidden"] == 0


def test_a_page_that_is_too_wide_is_seen(tmp_path: Path):
    page = report_html(document("digits")).replace("overflow-wrap: anywhere", "white-space: nowrap")
    (found,) = measured(tmp_path, page, [360])
    assert found["wide"] != []


def test_a_page_is_dark_where_the_reader_prefers_it(tmp_path: Path):
    page = report_html(document("digits"))
    papers = {
        scheme: measured(tmp_path, page, [800], f"--blink-settings=preferredColorScheme={code}")[0]
        for scheme, code in (("dark", 0), ("light", 1))
    }
    assert papers["light"]["paper"] == "rgb(252, 251, 248)"
    assert papers["dark"]["paper"] == "rgb(21, 23, 24)"
