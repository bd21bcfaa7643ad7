"""How often a forecast's range of a crossing holds the measured one, by leaving data sets out.

Every data set of the portfolio's study is left out in turn; what `left_out.py`
compares is counted by kind, for every two models and for the crossings that a forecast would show.
Photographs are of one data set only: it has no others to be forecast from.

    whole       ranges that are every epsilon: they hold anything, and say so
    covered of the others                 what remains when those are not counted
    width       median of the range's end over its beginning, off the grid counted as its end
    share       mean width on the logarithmic scale, as a share of the grid

Other rules for the range are measured beside the one that is in use. `nearest` is what it was
before: at each data set the crossing nearest to the average one, without the least and the largest.
A band is the mean lead of one model over the other, +- t sd sqrt(1 + 1 / m) at that level.

Usage: python benchmarks/crossover/forecast.py
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date
from itertools import combinations
from pathlib import Path

import numpy as np
from left_out import Compared, LeftOut, left_out, pairs, shown
from scipy import stats

from pasearch.crossover.forecast import MeasuredModel, find_last_lead, forecast_crossover
from pasearch.data.tables import TableSchema
from pasearch.spaces.portfolio import load_studies

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "forecast.jsonl"
SCHEMA = HERE.parent / "portfolio" / "schemas" / "magic.toml"

Range = tuple[float, float]
Rule = Callable[[np.ndarray, np.ndarray, tuple[float, ...]], Range]
"""From the accuracies of two models, (data sets, epsilons) each, to a range of their crossing."""


def of_sets(dropped: int) -> Rule:
    """Return the range of the single data sets' crossings without so many at either end."""

    def rule(one: np.ndarray, other: np.ndarray, epsilons: tuple[float, ...]) -> Range:
        found = sorted(find_last_lead(a, b, epsilons) for a, b in zip(one, other, strict=True))
        inner = found[dropped : len(found) - dropped] if len(found) > 2 * dropped + 1 else found
        return inner[0], inner[-1]

    return rule


def nearest(dropped: int) -> Rule:
    """Return the same of the crossings that are nearest to that of the mean."""

    def crossing(lead: np.ndarray, near: float, epsilons: tuple[float, ...]) -> float:
        above = lead > 0
        rises = [at for at in range(1, len(lead)) if above[at] and not above[at - 1]]
        if above.all() or not rises:
            return 0.0 if above.all() or (above[0] and above.mean() > 0.5) else math.inf
        place = min(rises, key=lambda at: abs(at - near))
        until = slice(0, place + 1)
        return find_last_lead(-lead[until], np.zeros(place + 1), epsilons[until])

    def rule(one: np.ndarray, other: np.ndarray, epsilons: tuple[float, ...]) -> Range:
        mean = find_last_lead(one.mean(axis=0), other.mean(axis=0), epsilons)
        near = int(np.searchsorted(epsilons, mean))
        found = sorted(crossing(lead, near, epsilons) for lead in other - one)
        inner = found[dropped : len(found) - dropped] if len(found) > 3 else found
        return inner[0], inner[-1]

    return rule


def band(level: float) -> Rule:
    """Return where the edges of a prediction interval of the mean lead cross 0."""

    def rule(one: np.ndarray, other: np.ndarray, epsilons: tuple[float, ...]) -> Range:
        sets = len(one)
        if sets < 2:
            return 0.0, math.inf
        lead = other - one
        mean, spread = lead.mean(axis=0), lead.std(axis=0, ddof=1)
        half = stats.t.ppf((1 + level) / 2, sets - 1) * spread * math.sqrt(1 + 1 / sets)
        zero = np.zeros(len(mean))
        return find_last_lead(zero, mean + half, epsilons), find_last_lead(
            zero, mean - half, epsilons
        )

    return rule


RULES: dict[str, Rule] = {
    "nearest, without least and largest": nearest(1),
    "nearest, all": nearest(0),
    "all but least and largest": of_sets(1),
    "all": of_sets(0),
    **{f"band of {level:.0%}": band(level) for level in (0.5, 0.6, 0.8, 0.9)},
}


def by(rule: Rule, left: LeftOut) -> list[Compared]:
    """Return the pairs of a data set with the ranges of another rule."""
    found = []
    places = combinations(range(len(left.models)), 2)
    for (one, other), pair in zip(places, pairs(left), strict=True):
        low, high = rule(left.curves[one], left.curves[other], left.epsilons)
        found.append(replace(pair, low=min(low, pair.epsilon), high=max(high, pair.epsilon)))
    return found


def line(name: str, found: list[Compared]) -> str:
    """Return a row of a table."""
    others = [each.covered for each in found if not each.whole]
    logs = [math.log(each.width) / math.log(each.epsilons[1] / each.epsilons[0]) for each in found]
    cells = [
        name, len(found), sum(each.covered for each in found),
        f"{np.mean([each.covered for each in found]):.1%}",
        f"{np.mean([each.whole for each in found]):.1%}",
        f"{np.mean(others):.1%} of {len(others)}" if others else "-",
        f"{np.median([each.width for each in found]):.1f}", f"{np.mean(logs):.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def table(first: str, rows: Iterable[tuple[str, list[Compared]]]) -> str:
    """Return a table in Markdown."""
    head = [first, "crossings", "covered", "", "whole", "covered of the others", "width", "share"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(line(*row) for row in rows), ""])


def plain(each: Compared, left: LeftOut, of: str) -> dict[str, object]:
    """Return a line of the results; null is above the last epsilon."""

    def value(epsilon: float) -> float | None:
        return None if math.isinf(epsilon) else float(f"{epsilon:.4g}")

    return {
        "of": of, "kind": each.kind, "left_out": each.data_set, "n": left.records,
        "data_sets": left.curves.shape[1], "before": each.before, "after": each.after,
        "epsilons": each.epsilons, "measured": value(each.measured),
        "epsilon": value(each.epsilon), "low": value(each.low), "high": value(each.high),
        "covered": each.covered, "date": date.today().isoformat(),
    }  # fmt: skip


def seconds() -> list[float]:
    """Return how long forecasts of a table take, the first of which reads the study."""
    own = MeasuredModel(epsilon=1.0, delta=1e-5, mu=0.2, slots=10_000, score=0.8, error=0.01)
    schema, winner, found = TableSchema.from_toml(SCHEMA), load_studies()[0].entries[0], []
    for _ in range(6):
        start = time.perf_counter()
        assert forecast_crossover(schema, "mine", own, winner, 2, lambda candidate: True)
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Print the tables and write the results."""
    first, *later = seconds()
    left = [each for study in load_studies() for each in left_out(study)]
    compared = [(each, pairs(each), shown(each)) for each in left]
    kinds = list(dict.fromkeys(each.kind for each in left))
    every = [pair for _, found, _ in compared for pair in found]
    by_kind = [(kind, [pair for pair in every if pair.kind == kind]) for kind in kinds]
    drawn = [each for _, _, found in compared for each in found]
    shown_rows = [("shown by a forecast", drawn)] if drawn else []
    print(table("kind", [*by_kind, ("all pairs", every), *shown_rows]))
    shares = [np.mean([pair.covered for pair in found]) for _, found, _ in compared]
    print(f"By data set {np.mean(shares):.1%} +- {np.std(shares, ddof=1) / len(shares)**0.5:.1%} "
          f"(one standard error, {len(shares)} of them), least {min(shares):.1%}.\n")  # fmt: skip
    rules = [(name, [pair for one in left for pair in by(rule, one)])
             for name, rule in RULES.items()]  # fmt: skip
    print(table("rule", [*rules, ("shortest of ceil(.8 (m + 1)): in use", every)]))
    print(f"A forecast of a table: {first:.2f} s the first time, then {np.median(later):.2f} s.")
    RESULTS.parent.mkdir(exist_ok=True)
    lines = [
        json.dumps(plain(each, one, of))
        for one, found, seen in compared
        for of, many in (("pair", found), ("shown", seen))
        for each in many
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
