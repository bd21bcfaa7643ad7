"""Make the shipped portfolio from the study's lines: its entries, and their curves by data set.

Entries are kept one after another, `MOST` at most: each time the one that lowers most the mean
regret of the best that is kept, where what is best is asked at each signal (to half a power of ten)
for all data sets of the kind together, as `fixed` asks. The first two need no fit, so that a search
by disjoint portions has them too; the linear model of `features` is always there. Trainings with
the same data and nearly the same signal are averaged.

Usage: python benchmarks/portfolio/fit.py table regression     # other kinds keep their entries
       python benchmarks/portfolio/fit.py                      # all do: Brier scores alone are new
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from run import CANDIDATES, LINEAR, ONLY, full

from pasearch.data.front_ends.parsing import parse_front_end

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "pasearch" / "spaces" / "portfolio" / "portfolio-1.json"
MOST, LEAST_GAIN = 6, 2e-4
GROWTH = {"image": ("scattering", 2.0), "photo": ("scattering", 2.0)}
"""Linear models behind this front end get `learning_rate_growth`: `growth.py` measured it. The
curves are without it, and so a little low where the signal is strong."""


KIND = {"cifar10-jpeg-q75": "photo"}
"""Images with colours are another kind: mirrored, a photograph still is one, a digit is not."""


def of_all(kind: str) -> list[int]:
    """Return the candidates that every data set of a kind was tried with."""
    return ONLY.get(kind, list(range(len(CANDIDATES[kind]))))


def curves(rows: list[dict[str, Any]]) -> tuple[list[str], dict[str, tuple[list, np.ndarray]]]:
    """Return the candidates of the study, and by data set (signals, accuracy).

    Accuracy is (candidates, points); a point counts where every candidate was measured.
    """
    cells: dict[str, dict[float, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        cells[row["data"]][signal_of(row)][json.dumps(row["candidate"])].append(row["accuracy"])
    kind = rows[0]["kind"]
    names = [json.dumps(CANDIDATES[kind][place]) for place in of_all(kind)]
    found = {}
    for data, points in cells.items():
        whole = {s: point for s, point in sorted(points.items()) if set(names) <= set(point)}
        table = np.array([[np.mean(point[each]) for point in whole.values()] for each in names])
        found[data] = list(whole), table
    return names, found


def brier(
    rows: list[dict[str, Any]], entries: list[dict[str, Any]], signals: list[float]
) -> list[list[float]] | None:
    """Return the Brier scores of the shipped entries, (entries, signals); None if one lacks."""
    cells: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        if "brier" in row:
            own = json.dumps(row["candidate"], sort_keys=True), signal_of(row)
            cells[own].append(row["brier"])
    keys = [[(json.dumps(each, sort_keys=True), s) for s in signals] for each in entries]
    if not all(key in cells for row in keys for key in row):
        return None
    return [[round(float(np.mean(cells[key])), 4) for key in row] for row in keys]


def signal_of(row: dict[str, Any]) -> float:
    """Return the signal of a training, to a tenth of a power of ten."""
    return round(float(np.log10(row["mu"] * row["n"] / row["classes"])), 1)


def chosen(names: list[str], measured: dict[str, Any], regret: dict[str, np.ndarray]) -> list[int]:
    """Return which candidates are kept, the one of least mean regret first."""
    cells: dict[float, list[np.ndarray]] = defaultdict(list)
    for data, (signals, _) in measured.items():
        for place, signal in enumerate(signals):
            cells[round(2 * signal) / 2].append(regret[data][:, place])
    at = np.array([np.mean(each, axis=0) for each in cells.values()])  # (signals, candidates)
    free = [place for place, name in enumerate(names) if not needs_fit(name)]
    kept = sorted(free, key=lambda place: at[:, place].mean())[:2]
    of_features = [full(LINEAR, number=number) for number in (False, True)]
    kept += [place for place, name in enumerate(names) if json.loads(name) in of_features]
    while len(kept) < MOST:
        others = [place for place in range(len(names)) if place not in kept]
        found = {place: at[:, [*kept, place]].min(axis=1).mean() for place in others}
        best = min(found, key=found.__getitem__)
        if not found[best] < at[:, kept].min(axis=1).mean() - LEAST_GAIN:
            break
        kept.append(best)
    return sorted(kept, key=lambda place: at[:, place].mean())


def needs_fit(name: str) -> bool:
    """Return whether a candidate's front end is fitted to records."""
    return parse_front_end(json.loads(name)["front_end"]).fitted


def main() -> None:
    """Write the file."""
    lines = (HERE / "results" / "runs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["kind"] = KIND.get(row["data"], row["kind"])
    kinds: dict[str, Any] = json.loads(OUT.read_text())["kinds"]
    for kind in sys.argv[1:]:
        names, measured = curves([row for row in rows if row["kind"] == kind])
        regret = {name: table.max(axis=0) - table for name, (_, table) in measured.items()}
        mean = np.mean([each.mean(axis=1) for each in regret.values()], axis=0)
        kept = chosen(names, measured, regret)
        entries = [json.loads(names[place]) for place in kept]
        front_end, growth = GROWTH.get(kind, ("", 1.0))
        for each in entries:
            if each["front_end"] == front_end and not each["layers"]:
                each["settings"]["learning_rate_growth"] = growth
        kinds[kind] = {
            "entries": entries,
            "mean_regret": [round(float(mean[place]), 4) for place in kept],
            "data": {
                name: {
                    "signal": signals,
                    "accuracy": np.round(table[kept], 4).tolist(),
                }
                for name, (signals, table) in measured.items()
            },
        }
    for values in kinds.values():
        for name, data in values["data"].items():
            own = [row for row in rows if row["data"] == name]
            data |= {each: own[0][each] for each in ("classes", "features")}
            data.pop("brier", None)
            if (found := brier(own, values["entries"], data["signal"])) is not None:
                data["brier"] = found
    study = f"{len(rows)} trainings on public data; benchmarks/portfolio"
    OUT.write_text(json.dumps({"version": 1, "study": study, "kinds": kinds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
