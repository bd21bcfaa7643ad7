"""Make the shipped portfolio from the study's lines: its entries, and their curves by data set.

An entry is kept if, on some data set of its kind and some signal, nothing measured is better by
more than `CLOSE`, as the mean over seeds; of those the `MOST` with the least mean regret, and one
at least whose front end needs no fit. Trainings with the same data and nearly the same signal are
averaged.

Usage: python benchmarks/portfolio/fit.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from run import CANDIDATES, ONLY

from pasearch.data.front_ends import front_end

HERE = Path(__file__).parent
OUT = HERE.parents[1] / "pasearch" / "spaces" / "portfolio" / "portfolio-1.json"
MOST = 4
CLOSE = 0.005
GROWTH = {"image": ("scattering", 2.0)}
"""Linear models behind this front end get `learning_rate_growth`: `growth.py` measured it. The
curves are without it, and so a little low where the signal is strong."""


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
        signal = round(float(np.log10(row["mu"] * row["n"] / row["classes"])), 1)
        cells[row["data"]][signal][json.dumps(row["candidate"])].append(row["accuracy"])
    kind = rows[0]["kind"]
    names = [json.dumps(CANDIDATES[kind][place]) for place in of_all(kind)]
    found = {}
    for data, points in cells.items():
        whole = {s: point for s, point in sorted(points.items()) if set(names) <= set(point)}
        table = np.array([[np.mean(point[each]) for point in whole.values()] for each in names])
        found[data] = list(whole), table
    return names, found


def needs_fit(name: str) -> bool:
    """Return whether a candidate's front end is fitted to records."""
    return front_end(json.loads(name)["front_end"]).fitted


def main() -> None:
    """Write the file."""
    lines = (HERE / "results" / "runs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    kinds: dict[str, Any] = {}
    for kind in sorted({row["kind"] for row in rows}):
        names, measured = curves([row for row in rows if row["kind"] == kind])
        regret = {name: table.max(axis=0) - table for name, (_, table) in measured.items()}
        mean = np.mean([each.mean(axis=1) for each in regret.values()], axis=0)
        least = np.min([each.min(axis=1) for each in regret.values()], axis=0)
        kept = [place for place in np.argsort(mean) if least[place] <= CLOSE][:MOST]
        free = [place for place in np.argsort(mean) if not needs_fit(names[place])]
        if not set(kept) & set(free):  # for a search by disjoint portions
            kept[-1] = free[0]
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
    study = f"{len(rows)} trainings on public data; benchmarks/portfolio"
    OUT.write_text(json.dumps({"version": 1, "study": study, "kinds": kinds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
