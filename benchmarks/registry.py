"""Rows of `registry.toml`, and our figures, computed from the lines of results that they name.

A row does not contain our figures. It names lines of a results file, from which each figure is
computed: the median, the smallest and the largest value, and the number of seeds.

    file    results file below benchmarks/
    where   keys that a line must have: a value, a list of allowed values, or "null" for no value
    by      keys that divide the lines into groups, one figure each
    value   key of the figure; "a.b" is key b of a, "a.-1" the last entry of list a
    label   what the figures have in common
    minus   keys of the lines that are subtracted, pair by pair; `pairs` has the keys of a pair
    cross   two arms: the largest epsilon at which the first is better (Bao et al., Definition 2)

`draw` has specifications of charts, with `by` = [lines, horizontal axis], the names of the `axes`,
and `linear = true` if the horizontal axis is not logarithmic.
Lines of --full runs are used only if `where` has `full = true`. The other keys of a row are the
attributes of `Row`; `paper_steps` and `paper_repeats` are those of one of the paper's trainings or
figures, `share` is the share as a text where lines do not have it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
REGISTRY = HERE / "registry.toml"
Line = dict[str, Any]
Spec = dict[str, Any]

EMPIRICAL = (
    "reproduced",
    "in part",
    "not reproduced at the paper's length",
    "not measured at the paper's length",
)
VERDICTS = (*EMPIRICAL, "claim not valid", "not measured yet", "data absent", "not applicable")
"""The first four need a line of results, or a test if the item is a formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: its name within a specification, its text, its seeds and its lines.

    `values` are those of the keys in `by`, `numbers` what the median is of.
    """

    name: str
    text: str
    seeds: int
    lines: tuple[Line, ...]
    values: tuple[Any, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the registry holds about one item of a paper."""

    paper: str
    item: str
    shows: str
    verdict: str
    why: str
    theirs: str = "-"
    reading: str = "-"
    command: str = ""
    full: str = ""
    ours: list[Spec] = field(default_factory=list)
    sound: str | list[Spec] = "-"
    claimed: str | list[Spec] = "-"
    share: str = "-"
    paper_steps: int = 0
    paper_repeats: int = 0
    tests: list[str] = field(default_factory=list)
    proof: str = ""
    pictures: list[str] = field(default_factory=list)
    draw: list[Spec] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.key}: verdict {self.verdict!r}, not one of {VERDICTS}")

    @property
    def key(self) -> str:
        """Name on the command line, such as "Bao, Table III"."""
        return f"{self.paper}, {self.item}"

    @property
    def figures(self) -> list[Figure]:
        """All figures of ours."""
        return [figure for spec in self.ours for figure in compute_figures(spec)]

    @property
    def seeds(self) -> str:
        """Smallest and largest number of seeds of a figure."""
        counts = sorted({figure.seeds for figure in self.figures} - {0})
        return "-".join(str(each) for each in dict.fromkeys((*counts[:1], *counts[-1:]))) or "-"

    @property
    def steps(self) -> str:
        """Steps of our longest training, or repeats of a figure, as a share of the paper's."""
        if self.paper_repeats:
            made = [sum(line["repeats"] for line in figure.lines) for figure in self.figures]
            return f"{100 * min(made, default=0) / self.paper_repeats:g} % of its repeats"
        if self.paper_steps:
            made = [line.get("steps", 0) for figure in self.figures for line in figure.lines]
            return f"{float(f'{100 * max(made, default=0) / self.paper_steps:.2g}'):g} %"
        return self.share

    @property
    def files(self) -> list[str]:
        """Results files of the figures, relative to the repository."""
        return list(dict.fromkeys(f"benchmarks/{spec['file']}" for spec in self.ours))


def read_registry(path: Path = REGISTRY) -> tuple[dict[str, str], list[Row]]:
    """Return the papers' titles by short name, and all rows."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {each.name for each in fields(Row)}
    for row in document["row"]:
        if unknown := set(row) - known:
            raise ValueError(f"{row.get('item')}: unknown keys {sorted(unknown)}")
    return document["papers"], [Row(**row) for row in document["row"]]


@cache
def read_lines(file: str) -> tuple[Line, ...]:
    """Read a results file below benchmarks/."""
    text = (HERE / file).read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines() if line.strip())


def find_lines(file: str, where: Spec) -> list[Line]:
    """Return the lines of a results file whose keys have the wanted values."""
    wanted = {"full": [False], **{k: v if isinstance(v, list) else [v] for k, v in where.items()}}

    def matches(line: Line) -> bool:
        return all(
            line.get(key, False if key == "full" else None)
            in [None if v == "null" else v for v in each]
            for key, each in wanted.items()
        )

    return [line for line in read_lines(file) if matches(line)]


def read_value(line: Line, path: str) -> float:
    """Return the number at a dotted path of a line."""
    found: Any = line
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]
    return float(found)


def group(lines: list[Line], keys: list[str]) -> dict[tuple[Any, ...], list[Line]]:
    """Divide lines by the values of keys, in the order in which the values appear."""
    found: dict[tuple[Any, ...], list[Line]] = defaultdict(list)
    for line in lines:
        found[tuple(line.get(key) for key in keys)].append(line)
    return found


def compute_figures(spec: Spec) -> list[Figure]:
    """Compute the figures of one specification; none if no line matches."""
    where, by = spec.get("where", {}), spec.get("by", [])
    lines = find_lines(spec["file"], where)
    if "cross" in spec:
        return [_cross(spec, lines)] if lines else []
    figures = []
    for values, own in sorted(group(lines, by).items(), key=lambda each: _place(each[0], spec)):
        seeds = len({line[key] for line in own for key in ("seed", "repeat") if key in line})
        numbers, sign = [read_value(line, spec["value"]) for line in own], ""
        if "minus" in spec:
            same = dict(zip(by, values, strict=True)) | spec["minus"]
            pairs = spec.get("pairs", ["seed"])
            less = group(find_lines(spec["file"], where | same), pairs)
            both = {key: each for key, each in group(own, pairs).items() if key in less}
            numbers = [
                _median(each, spec["value"]) - _median(less[key], spec["value"])
                for key, each in both.items()
            ]
            sign = f", above 0 in {sum(each > 0 for each in numbers)} of {len(numbers)}"
            seeds = seeds if pairs == ["seed"] else min(map(len, both.values()), default=0)
        if numbers:
            text = format_number(median(numbers)) + sign
            if len(numbers) > 1:
                text += f" ({format_number(min(numbers))} to {format_number(max(numbers))})"
            name = ", ".join(_name(key, each) for key, each in zip(by, values, strict=True))
            figures.append(
                Figure(
                    name=name,
                    text=text,
                    seeds=seeds,
                    lines=tuple(own),
                    values=values,
                    numbers=tuple(numbers),
                )
            )
    return figures


def _place(values: tuple[Any, ...], spec: Spec) -> tuple[int, ...]:
    """Return the places of values in the lists of `where`, so that figures have their order."""
    lists = [spec.get("where", {}).get(key) for key in spec.get("by", [])]
    return tuple(
        each.index(value) if isinstance(each, list) else 0
        for each, value in zip(lists, values, strict=True)
    )


def _median(lines: list[Line], path: str) -> float:
    return median(read_value(line, path) for line in lines)


def _name(key: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{key} {value:g}"


def _cross(spec: Spec, lines: list[Line]) -> Figure:
    """Compute a crossover from the seeds that both arms have at every epsilon."""
    from pasearch.crossover.curves import find_crossover

    arms: list[str] = spec["cross"]
    own = [line for line in lines if line["arm"] in arms and not isinstance(line["epsilon"], str)]
    cells = {(line["arm"], line["seed"], line["epsilon"]): line[spec["value"]] for line in own}
    epsilons = tuple(sorted({epsilon for _, _, epsilon in cells}))
    seeds = [
        seed
        for seed in sorted({seed for _, seed, _ in cells})
        if all((arm, seed, each) in cells for arm in arms for each in epsilons)
    ]
    errors = [1 - np.array([[cells[arm, s, e] for s in seeds] for e in epsilons]) for arm in arms]
    text = find_crossover(errors[0], errors[1], epsilons, (arms[0], arms[1])).text(epsilons)
    name = f"{arms[0]} is better than {arms[1]} up to epsilon"
    return Figure(name=name, text=text, seeds=len(seeds), lines=tuple(own))


def format_number(value: float) -> str:
    """Format a number with four digits and without the zero before the point."""
    text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def describe(value: str | list[Spec], between: str = "; ") -> str:
    """Return a text as it is, or the figures of specifications as a text."""
    if isinstance(value, str):
        return value
    texts = []
    for spec in value:
        figures = "; ".join(f"{each.name} {each.text}".strip() for each in compute_figures(spec))
        texts.append(f"{spec['label']}: {figures}" if "label" in spec else figures)
    return between.join(texts) or "-"
