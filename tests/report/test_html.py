from __future__ import annotations

import copy
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.errors import UsageError
from pasearch.report import figures
from pasearch.report.card import card_json
from pasearch.report.html import (
    compute_gaussian_mu,
    data_arguments,
    next_steps,
    report_html,
)
from pasearch.results import standard_error
from pasearch.terminal_escaping import escape_text as spelt_out
from pasearch.training.schedules import ValidationSchedule

VOID = {"meta", "br"}
BLOCKS = {"br", "dd", "div", "dt", "li", "p", "td", "th"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><svg onload="alert(1)">',
    "'single' and \"double\"",
    "]]><b>x</b>",
    "{{ 7 * 7 }}{% raw %}",
    "a & b &lt; c",
    "</title></style><img src=x>",
    "x" * 3000,
]


def dense(units: int, activation: str = "tanh", **more: Any) -> dict[str, Any]:
    return {"kind": "dense", "units": units, "activation": activation, **more}


def event(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"type": kind, **numbers}


def document(**changes: Any) -> dict[str, Any]:
    steps = event("poisson-gaussian", sampling_probability=0.25, noise_multiplier=9.5)
    law = {"mean": 4.0, "shape": 1.0, "cap": None}
    training = event("self-composed", event=steps, count=190)
    score = event("geometric", epsilon=0.9)
    lines = [
        ("training", "train", event("repeat-and-select", event=training, law=law)),
        ("score", "validation", event("repeat-and-select", event=score, law=law)),
        ("test accuracy", "test", event("geometric", epsilon=1.9995)),
    ]
    plain = {
        "schema_version": 1, "task": "architecture search",
        "dataset": {
            "name": "digits", "n": 1797, "slots": {"train": 1438, "validation": 180, "test": 179},
            "schema": {"kind": "arrays", "shape": [8, 8], "low": 0.0, "high": 16.0, "classes": 10},
            "declared_public": False,
        },
        "budget": {"epsilon": 2.0, "delta": 1e-4},
        "price": {
            "epsilon": 1.9994, "delta": 1e-4, "accountant": "PLD", "adjacency": "zero-out",
            "unit": "one record",
        },
        "price_by_partition": {
            "train": {"epsilon": 1.9871, "accountant": "PLD, selection by privacy profile"},
            "validation": {"epsilon": 1.9752, "accountant": "PLD, selection by privacy profile"},
            "test": {"epsilon": 1.9994, "accountant": "PLD"},
        },
        "events": [
            {"name": name, "partition": partition, "count": 1, "event": each}
            for name, partition, each in lines
        ],
        "winner": "kept",
        "selection": {
            "rule": "repeat-and-select", "law": "geometric with mean 4 (99.9%: 25 or fewer)",
            "bound": "PLD", "formula": "least of two bounds",
        },
        "strategy": {"name": "rs", "rule": "repeat-and-select", "trainings": "geometric"},
        "space": {"name": "fcn", "family": "fcn", "choices": {"units_1": [64, 128]}},
        "recipe": {
            "expected_batch_size": 359, "steps": 190, "learning_rate": 3.8,
            "noise_multiplier": 9.5, "optimizer": "momentum", "momentum": 0.9, "average": 0.1,
            "bounding": {"name": "flat", "clip_norm": 0.25}, "sampling_probability": 0.25,
        },
        "best": {
            "front_end": "raw", "layers": [dense(128), dense(64, "relu", trainable=False)],
            "settings": {"steps_scale": 1.0},
            "architecture": "dense 128 tanh - dense 64 relu (frozen); steps_scale 1",
            "parameters": 17226, "trainable_parameters": 8970,
        },
        "score": {
            "metric": "accuracy", "test": 0.9, "points": 161, "of": 179,
            "noise": {"mechanism": "two-sided geometric", "epsilon": 2.0,
                      "standard_deviation": 0.003},
        },
        "model": {"file": "model.pt", "sha256": "0d83" * 16},
        "estimated_privately": [], "assumed_public": [], "claims": [], "crossover": None,
        "sum_rounding": 1.000496, "device": "cpu", "reproducible": False,
        "randomness": "a 256-bit key from the operating system", "warnings": [],
        "versions": {"pasearch": "0.1.0", "torch": "2.4.0"},
    }  # fmt: skip
    return {**plain, **changes}


def changed(*path: str, to: Any, of: dict[str, Any] | None = None) -> dict[str, Any]:
    made = copy.deepcopy(document() if of is None else of)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return made


def composed() -> dict[str, Any]:
    made = changed("selection", "rule", to="composition")
    best = made["best"]
    other = {"front_end": "raw", "layers": [dense(32)], "settings": {"steps_scale": 0.5}}
    same = {key: best[key] for key in ("front_end", "layers", "settings")}
    made["trials"] = [
        {"parameters": other, "noisy_correct": 90},
        {"parameters": same, "noisy_correct": 171},
    ]
    made["unique_trials"] = 2
    return made


def table(target: dict[str, Any], **metric: Any) -> dict[str, Any]:
    made = document()
    made["dataset"]["schema"] = {
        "kind": "table",
        "name": "people",
        "target": target,
        "official_test": 0,
        "columns": [
            {"name": "age", "kind": "number", "low": 0.0, "high": 100.0},
            {"name": "job", "kind": "category", "categories": ["nurse", "driver"]},
        ],
    }
    made["score"] |= metric
    return made


def regression() -> dict[str, Any]:
    income = {"name": "income", "kind": "number", "low": 1000.0, "high": 51000.0}
    return table(income, metric="mean absolute error", test=0.08)


def public() -> dict[str, Any]:
    made = changed("dataset", "declared_public", to=True)
    made["score"]["exact"] = 0.8937
    made["curves"] = [
        {"name": "this run", "steps": [0, 95, 190], "accuracy": [0.1, 0.7, 0.894]},
        {"name": "fixed", "steps": [0, 190], "accuracy": [0.1, float("nan")]},
    ]
    made["compared"] = {"fixed": {"test": 0.9124, "exact": 0.9161}, "this": {"test": 0.9}}
    return made


def planned() -> dict[str, Any]:
    return document(
        alternatives=[
            {"epsilon": 0.1, "noise_multiplier": 190.0, "signal_to_noise": 49.0},
            {"epsilon": 1.0, "noise_multiplier": 19.0, "signal_to_noise": 120.0},
            {"epsilon": 2.0, "noise_multiplier": 9.5, "signal_to_noise": 240.0},
            {"epsilon": 4.0, "noise_multiplier": None, "signal_to_noise": None},
        ],
        auto={
            "chosen": "rs, kept",
            "why": "A search is expected to pay here.",
            "expected": [
                {"strategy": "fixed", "winner": "kept", "expected": 0.871},
                {"strategy": "rs", "winner": "retrained", "expected": 0.884},
                {"strategy": "rs", "winner": "kept", "expected": 0.902},
            ],
        },
    )


def trained() -> dict[str, Any]:
    """A run of `pasearch train` whose recipe ended with its budget."""
    made = changed("selection", to={"rule": "none", "law": "l", "bound": "PLD", "formula": "f"})
    made["task"] = "training"
    made["strategy"] = {"name": "fixed", "rule": "none"}
    made["recipe"] |= {
        "steps": 1000,
        "steps_made": 312,
        "schedule": ValidationSchedule(rate=0.7, threshold=0.01).to_json(),
        "name": "dynamic-validation: less noise",
    }
    made["events"] = [each for each in made["events"] if each["name"] != "score"]
    return made


DOCUMENTS = {
    "private": document(),
    "seeded": document(reproducible=True),
    "composed": composed(),
    "regression": regression(),
    "public": public(),
    "planned": planned(),
    "trained": trained(),
    "table": table({"name": "ill", "kind": "category", "categories": ["a", "b", "c"]}),
}


class Page(HTMLParser):
    """A page's elements, and its text; unbalanced tags fail."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.css = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in BLOCKS:
            self.pieces.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.css += data
        else:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    def all(self, tag: str, of: str | None = None) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and (of is None or of in (attributes.get("class") or "").split())
        ]


def page(made: dict[str, Any]) -> Page:
    return Page(report_html(made))


def check_self_contained(found: Page) -> None:
    """A page needs no network and no script."""
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for _, attributes in found.elements:
        assert not [key for key in attributes if key.startswith("on")]
        assert not {"src", "srcset", "style", "xlink:href"} & set(attributes)
    places = {f"#{each['id']}" for _, each in found.elements if "id" in each}
    assert {each["href"] for _, each in found.elements if "href" in each} <= places
    assert not re.search(r"url\(|@import|expression", found.css)
    policy = [each for each in found.all("meta") if each.get("http-equiv")]
    assert [each["content"] for each in policy] == ["default-src 'none'; style-src 'unsafe-inline'"]


def check_read_by_ear(found: Page) -> None:
    """A page has a language, headings in order, and a label for every figure."""
    assert found.all("html") == [{"lang": "en", "dir": "ltr"}]
    assert len(found.all("title")) == len(found.all("h1")) == len(found.all("main")) == 1
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for each in found.all("svg"):
        inner = "preserveaspectratio" in each
        assert inner or each.get("aria-hidden") or (each["role"] == "img" and each["aria-label"])
    assert all(each.get("scope") in ("col", "row") for each in found.all("th"))
    ids = [each["id"] for _, each in found.elements if "id" in each]
    assert len(ids) == len(set(ids))
    assert {each["aria-labelledby"] for each in found.all("section")} <= set(ids)


@pytest.mark.unit
def test_a_page_needs_no_network_and_no_script_and_can_be_read_by_ear():
    for made in DOCUMENTS.values():
        found = page(made)
        check_self_contained(found)
        check_read_by_ear(found)


def effects() -> list[dict[str, Any]]:
    return [
        {"column": "age", "reach": 4.25, "most": "90", "least": "0", "towards": "a"},
        {"column": "job", "reach": 0.5, "most": "nurse", "least": "driver", "towards": "a"},
    ]


@pytest.mark.unit
def test_a_score_that_says_nothing_is_no_headline():
    for test, noise, value, verdict in [
        (0.9, 0.003, "90.0", "Random baseline 10.0 %"),
        (0.12, 0.01, "12.0", "Not significantly different from the random baseline (10.0 %)"),
        (0.0, 6.585, "unknown", "The test score is below the noise level"),
        (1.0, 0.4, "unknown", "The test score is below the noise level"),
    ]:
        made = changed("score", "test", to=test)
        made["score"]["noise"]["standard_deviation"] = noise
        found = page(made)
        assert f"Test accuracy {value}" in found.text
        assert verdict in found.text
        assert ("not significantly better than a baseline" in found.text) == (
            not verdict.startswith("Random")
        )
        assert ("pasearch predict RUN" in found.text) == verdict.startswith("Random")
        points = [float((each["cx"] or "").rstrip("%")) for each in found.all("circle", "point")]
        assert all(0 <= each <= 100 for each in points)


@pytest.mark.unit
def test_commands_carry_what_describes_the_data():
    made = table({"name": "the answer", "kind": "category", "categories": ["a", "b"]})
    assert "DATA --schema" not in page(made).text
    column = {"name": "age"}

    def classes(*names: str) -> dict[str, Any]:
        return {"name": "c", "kind": "category", "categories": [*names]}

    for columns, target, words in (
        ([{**column, "low": 0.0, "high": 9.0}], {"name": "c"}, "DATA --schema SCHEMA"),
        ([column], {"name": "the answer"}, "DATA --target 'the answer'"),
        ([column], {"name": "c", "kind": "number"}, "DATA --target c --regression"),
        ([column], classes("no", "not yet"), "DATA --target c --labels 'no,not yet'"),
        ([column], classes("a,b", "c"), "DATA --schema SCHEMA"),
        ([column], {**classes("a", "b"), "case": False}, "DATA --schema SCHEMA"),
    ):
        made["plan"] = {"declared": {"kind": "table", "columns": columns, "target": target}}
        assert data_arguments(made) == words
    made["plan"] = {"declared": {"kind": "arrays", "low": 0.0, "high": 2.5, "classes": 3}}
    made["dataset"]["name"] = "mine"
    assert data_arguments(made) == "DATA --bounds 0 2.5 --classes 3"
    made["plan"]["declared"] |= {"classes": 2, "labels": [-1, 1]}
    assert data_arguments(made) == "DATA --bounds 0 2.5 --labels -1,1"


@pytest.mark.unit
def test_mu_is_named_where_it_says_all():
    for event, mu in [
        ({"type": "gaussian", "noise_multiplier": 2.0}, 0.5),
        (
            {
                "type": "self-composed",
                "count": 4,
                "event": {"type": "gaussian", "noise_multiplier": 2.0},
            },
            1.0,
        ),
        ({"type": "composed", "events": [{"type": "gaussian", "noise_multiplier": 1.0}] * 4}, 2.0),
        ({"type": "composed", "events": [{"type": "geometric", "epsilon": 1.0}]}, None),
        ({"type": "poisson-gaussian", "sampling_probability": 0.5, "noise_multiplier": 1}, None),
        ({"type": "no-release"}, None),
    ]:
        assert compute_gaussian_mu([(event, 1)]) == (None if mu is None else pytest.approx(mu))
        assert compute_gaussian_mu([(event, 1), ({"type": "pure", "epsilon": 1.0}, 1)]) is None
        if mu is not None:
            assert compute_gaussian_mu([(event, 4)]) == pytest.approx(2 * mu)


@pytest.mark.unit
def test_a_standard_error_adds_sample_and_noise():
    noise = {"standard_deviation": 0.04}
    score = {"metric": "accuracy", "test": 0.9, "of": 100, "noise": noise}
    assert standard_error(score) == pytest.approx(0.05)
    assert standard_error({**score, "test": 1.0}) > 0.04


@pytest.mark.unit
def test_what_is_not_private_says_so_loudly():
    for seeded, declared, alarms in [(False, False, 0), (True, False, 1), (True, True, 2)]:
        made = changed("dataset", "declared_public", to=declared, of=document(reproducible=seeded))
        found = page(made)
        assert len(found.all("aside", "alarm")) == alarms
        assert found.text.startswith("NOT PRIVATE:") == (alarms > 0)
        assert ("Privacy cost of this noise" in found.text) == (alarms > 0)
        assert ("the noise is reproducible" in found.text) == seeded
        assert ("the data were declared public" in found.text) == declared


@pytest.mark.unit
def test_the_dearest_partition_is_the_price():
    for dearest in ["train", "validation", "test"]:
        made = changed("price_by_partition", dearest, "epsilon", to=1.99995)
        found = page(made)
        assert len(found.all("div", "on")) == len(found.all("rect", "accent")) == 1
        assert re.search(rf"{dearest} [\d,]+ records total", found.text)
        labels = [each["aria-label"] or "" for each in found.all("svg", "bar")]
        (price,) = [each for each in labels if "this is the total" in each]
        assert f"Partition {dearest}:" in price


@pytest.mark.unit
def test_the_rows_add_up_to_the_network():
    for name in ["private", "table", "regression"]:
        made = DOCUMENTS[name]
        rows = page(made).text.split("Stage Values A record")[1].split("A bar is as long")[0]
        counts = [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) parameter", rows)]
        outputs = {"private": 10, "table": 3, "regression": 1}[name]
        if name == "private":
            assert sum(counts) == made["best"]["parameters"]
        assert counts[1:] == [129 * 64, 65 * outputs]
        assert "frozen" in rows


OPTIONAL = {
    "alternatives": "The same training with another budget",
    "auto": "Why rs",
    "curves": "Accuracy over training steps",
    "compared": "Comparison with no search",
    "trials": "Candidates",
    "claims": "Published bounds (not used)",
    "warnings": "Warnings",
    "estimated_privately": "Estimated with differential privacy",
    "assumed_public": "Assumed public (read without a charge)",
}


@pytest.mark.unit
def test_an_optional_section_is_there_when_its_field_is():
    claim = {"text": "claimed (Fu et al. Theorem 1): epsilon 1; not a valid bound"}
    full = public() | {key: planned()[key] for key in ("alternatives", "auto")}
    full |= {key: composed()[key] for key in ("trials", "unique_trials", "selection")}
    full |= {
        "claims": [claim],
        "warnings": ["w"],
        "estimated_privately": ["b"],
        "assumed_public": ["a"],
    }
    text = page(full).text
    for field, title in OPTIONAL.items():
        assert title in text, field
        gone = {key: value for key, value in full.items() if key != field}
        if field in document():
            gone[field] = []
        assert title not in page(gone).text, field


@pytest.mark.unit
def test_exact_figures_of_private_data_are_never_shown():
    made = changed("dataset", "declared_public", to=False, of=public())
    shown = report_html(public())
    hidden = report_html(made)
    for figure in ("89.4", "91.6", "91.2", "0.894"):
        assert figure in shown, figure
        assert figure not in hidden, figure
    assert "<polyline" not in hidden


@pytest.mark.unit
def test_candidates_of_a_space_are_listed_and_their_scores_secret():
    made = document()
    own = {key: made["best"][key] for key in ("front_end", "layers", "settings")}
    made["space"] = {"name": "mine", "family": "portfolio", "entries": [
        own, {"front_end": "raw", "layers": [], "settings": {"steps_scale": 1.0}},
    ]}  # fmt: skip
    text = page(made).text
    assert "Linear 650" in text
    assert "relu units released 17,226" in text
    assert "Their scores are secret" in text
    fixed = {**made, "selection": {**made["selection"], "rule": "none"}}
    assert "Their scores are secret" not in page(fixed).text
    assert "The 2 candidates of the search space, and their sizes" in page(fixed).text


@pytest.mark.unit
def test_the_card_is_on_the_page():
    for name in DOCUMENTS:
        made = DOCUMENTS[name]
        text = page(made).text
        for section in card_json(made)["sections"]:
            for item in section["items"]:
                plain = re.sub(r"\*(\w+)\*", r"\1", item.replace("`", ""))
                assert " ".join(plain.split()) in text or section["title"] == "Versions", item
        assert "torch 2.4.0" in text
        assert made["model"]["sha256"] in text


def hostile(name: str) -> dict[str, Any]:
    made = copy.deepcopy(public() | {key: planned()[key] for key in ("alternatives", "auto")})
    made |= {key: composed()[key] for key in ("trials", "unique_trials", "selection")}
    made["dataset"] |= {"name": name, "schema": {
        "kind": "table", "name": name, "official_test": 0,
        "target": {"name": f"{name} t", "kind": "category", "categories": [f"{name} 1", "b"]},
        "columns": [{"name": f"{name} c", "kind": "number", "low": 0.0, "high": 1.0},
                    {"name": f"{name} d", "kind": "category", "categories": [f"{name} 2", "b"]}],
    }}  # fmt: skip
    made["space"] = {"name": name, "choices": {name: [name, 1]}}
    made["estimated_privately"] = made["assumed_public"] = made["warnings"] = [name]
    made["claims"] = [{"text": name}]
    made["curves"][0]["name"] = made["recipe"]["name"] = name
    made["auto"] |= {"chosen": name, "why": name}
    made["auto"]["expected"][0] |= {"strategy": name, "winner": name}
    made["versions"][name] = name
    made["events"][0]["name"] = name
    made["strategy"]["name"] = made["selection"]["law"] = name
    return made


@pytest.mark.unit
def test_a_hostile_name_is_only_text():
    for name in HOSTILE:
        found, harmless = page(hostile(name)), page(hostile("harmless"))
        assert [tag for tag, _ in found.elements] == [tag for tag, _ in harmless.elements]
        assert [set(each) for _, each in found.elements] == [
            set(each) for _, each in harmless.elements
        ]
        assert " ".join(name.split()) in found.text
        (title,) = re.findall("<title>(.*?)</title>", report_html(hostile(name)), re.S)
        assert len(title) < 700


@pytest.mark.unit
def test_a_character_that_acts_on_others_is_spelt_out():
    for character in ["\u202e", "\u2067", "\x00", "\x1b", "\x85"]:
        html = report_html(hostile(f"safe{character}gnp.exe"))
        assert character not in html
        assert f"safe{spelt_out(character)}gnp.exe" in html
        html.encode("utf-8")


@pytest.mark.unit
def test_half_a_surrogate_pair_in_a_name_is_refused():
    """No file can contain it, so the page could not be written."""
    with pytest.raises(UsageError, match="name cannot be written as UTF-8"):
        report_html(hostile("safe\ud800gnp.exe"))


@pytest.mark.unit
def test_two_columns_that_look_alike_are_no_error():
    made = hostile("x")
    columns = made["dataset"]["schema"]["columns"]
    columns[0]["name"], columns[1]["name"] = "a\u202d", "a\u202e"
    found = report_html(made)
    assert "a\\u202d" in found
    assert "a\\u202e" in found


@pytest.mark.property
@given(st.text())
def test_any_name_leaves_the_page_whole(name: str):
    found = page(changed("dataset", "name", to=name))
    assert len(found.all("h1")) == 1


@pytest.mark.unit
def test_a_document_of_bad_form_is_refused():
    for made in [
        {},
        {key: value for key, value in document().items() if key != "model"},
        {key: value for key, value in document().items() if key != "events"},
        changed("score", to=None),
        changed("price_by_partition", to={}),
        changed("events", to=[{"name": "x", "partition": "train", "count": 1, "event": {}}]),
        changed("curves", to=[{"name": "x", "steps": [1], "accuracy": []}], of=public()),
        changed("score", "of", to=0),
    ]:
        with pytest.raises(UsageError):
            report_html(made)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.unit
def test_contrast_is_enough_in_light_and_dark():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    light, dark = re.findall(r":root \{([^}]*--ink[^}]*)\}", page(document()).css)
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        for name in ("ink", "soft", "accent"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, name
        assert contrast(colours["on-alarm"], colours["alarm"]) >= 4.5
        for name in ("accent", "line-2", "line-3", "line-4"):
            assert contrast(colours[name], colours["paper"]) >= 3.0, name


@pytest.mark.unit
def test_an_element_is_escaped():
    made = figures.make_element("text", "a < b", class_="x", aria_label='"<', x=0.1 + 0.2, y=None)
    assert made == '<text class="x" aria-label="&#34;&lt;" x="0.3">a &lt; b</text>'


@pytest.mark.property
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_chart_holds_its_points(values: list[float]):
    points = tuple((float(step), value) for step, value in enumerate(values))
    found = Page(
        figures.draw_lines([figures.Curve(name="x", points=points)], "x", ("steps", "share"))
    )
    (line,) = found.all("polyline")
    drawn = [tuple(map(float, each.split(","))) for each in (line["points"] or "").split()]
    assert all(-0.01 <= y <= 100.01 for _, y in drawn)
    assert 2 <= len(found.all("line", "grid")) <= 7
    assert all(math.isfinite(x) for x, _ in drawn)


@pytest.mark.contract
def test_a_ledger_is_proposed_that_holds_the_run_and_has_the_total_that_it_found():
    for delta in [1e-4, 3e-5]:
        made = changed("budget", "delta", to=delta) | {"two_runs": {"epsilon": 4.5, "delta": delta}}
        begin, use = [command for _, command in next_steps(made, True) if ".ledger" in command]
        assert begin == f"pasearch ledger people.ledger --add RUN --ledger-budget 4.5 {delta!r}"
        assert use.endswith(" --ledger people.ledger")
        assert ("--delta" in use) == (delta != 1e-4), "where it is not the default of the data"
        assert begin in page(made).text
        assert use in page(made).text
        for none in (document(), made | {"ledger": {"epsilon": 9.0, "delta": 1e-4}}):
            assert not [each for each in next_steps(none, True) if ".ledger" in each[1]]


@pytest.mark.unit
def test_the_folder_of_built_in_data_is_repeated():
    made = document(two_runs={"epsilon": 4.5, "delta": 1e-4})
    assert not [each for each in next_steps(made, False) if "--data-root" in each[1]]
    steps = [each for _, each in next_steps(made | {"data_root": True}, False) if "DATA " in each]
    assert steps
    assert all("DATA --data-root DATA_ROOT" in each for each in steps)
