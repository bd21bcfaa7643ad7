"""How long CFS-Greedy and CFS-GA take on Adult's 108 features, beside plain loops.

Correlations are those of the first 22,750 records without missing cells, without noise: indicators
of every category of the file, missing ones included, and six numbers in ten equal bins. `loop` is
the same two algorithms on the same correlations, set by set and feature by feature: Eq. 7 with
numpy, the rest in Python. Ours and the loop take turns inside every round.

Usage: python benchmarks/features/cfs.py adult.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.features.cfs import cfs_genetic, cfs_greedy, compute_symmetrical_uncertainty
from pasearch.features.contingency import Attribute, Attributes, count_tables
from pasearch.features.evolution import CROSSOVER_PROBABILITY, MUTATION_PROBABILITY, PARENT_FRACTION

RECORDS, BINS = 22_750, 10
POPULATION, GENERATIONS = 5000, 10
Correlations = tuple[np.ndarray, np.ndarray]


def adult(path: Path) -> Correlations:
    """Return how much each feature tells of the class, and of every other."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    table = np.array(rows)
    complete = ~(table == "?").any(axis=1)
    items, codes = [], []
    for name, cells in zip(header, table.T, strict=True):
        try:
            numbers = cells.astype(float)
        except ValueError:
            values, code = np.unique(cells, return_inverse=True)
            size = len(values)
            features = tuple(map(tuple, np.eye(size, dtype=int).tolist()))
        else:
            low, high = numbers.min(), numbers.max()
            code = np.minimum(BINS * (numbers - low) / (high - low), BINS - 1).astype(int)
            size, features = BINS, (tuple(range(BINS)),)
        last = name == header[-1]
        items.append(
            Attribute(name=name, size=size, encoding="", features=() if last else features)
        )
        codes.append(code)
    attributes = Attributes(items=tuple(items))
    chosen = np.stack(codes, axis=1)[complete][:RECORDS].astype(np.int16)
    return compute_symmetrical_uncertainty(count_tables(chosen, attributes), attributes)


def loop_merit(members: list[int], to_class: np.ndarray, between: np.ndarray) -> float:
    """Return Eq. 7 of one set."""
    k, inside = len(members), between[np.ix_(members, members)]
    pairs = inside.sum() - inside.trace()
    return float(to_class[members].sum() / np.sqrt(k + pairs))


def loop_greedy(to_class: np.ndarray, between: np.ndarray) -> float:
    """Return the largest merit along the order of Algorithm 3."""
    chosen: list[int] = []
    left, best = set(range(len(to_class))), 0.0
    while left:
        values = {s: loop_merit([*chosen, s], to_class, between) for s in sorted(left)}
        winner = max(values, key=values.__getitem__)
        chosen.append(winner)
        left.remove(winner)
        best = max(best, values[winner])
    return best


def loop_genetic(to_class: np.ndarray, between: np.ndarray, seed: int) -> float:
    """Return the merit that Algorithm 4 finds."""
    source, d = np.random.default_rng(seed), len(to_class)

    def scored(mask: np.ndarray) -> float:
        return loop_merit(np.flatnonzero(mask).tolist(), to_class, between)

    def child(parents: list[np.ndarray]) -> np.ndarray:
        first, second = (parents[i] for i in source.choice(len(parents), 2, replace=False))
        fate = source.random()
        if fate < CROSSOVER_PROBABILITY:
            made = np.where(source.random(d) < 0.5, first, second)
        elif fate < CROSSOVER_PROBABILITY + MUTATION_PROBABILITY:
            made = first ^ (source.random(d) < 1 / d)
        else:
            made = first.copy()
        return made if made.any() else first.copy()

    population = [source.random(d) < 0.5 for _ in range(POPULATION)]
    for _ in range(GENERATIONS):
        population.sort(key=scored, reverse=True)
        parents = population[: round(PARENT_FRACTION * POPULATION)]
        population = [child(parents) for _ in range(POPULATION)]
    return max(map(scored, population))


def timed(way: Callable[[], float]) -> dict[str, float]:
    """Return what a way found, and the seconds of the processor and of the clock."""
    clock, processor = time.perf_counter(), time.process_time()
    merit = way()
    return {
        "merit": merit,
        "processor": time.process_time() - processor,
        "clock": time.perf_counter() - clock,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the least and the most."""
    middle = statistics.median(values)
    return {
        n: round(v, 5)
        for n, v in zip(("median", "low", "high"), (middle, min(values), max(values)), strict=True)
    }


def main() -> None:
    """Measure, print, and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    out = Path(__file__).parent / "results/cfs.jsonl"
    parser.add_argument("--out", type=Path, default=out)
    options = parser.parse_args()

    given = adult(options.table)
    seeds = iter(range(2 * options.rounds))
    ways: dict[str, Callable[[], float]] = {
        "greedy": lambda: cfs_greedy(*given).merit,
        "greedy, loop": lambda: loop_greedy(*given),
        "ga": lambda: cfs_genetic(*given, generator=np.random.default_rng(next(seeds))).merit,
        "ga, loop": lambda: loop_genetic(*given, next(seeds)),
    }
    cfs_greedy(*given)
    rounds = [{name: timed(way) for name, way in ways.items()} for _ in range(options.rounds)]

    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/features/cfs.py adult.csv --rounds {options.rounds}",
        "numpy": np.__version__,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "load": round(os.getloadavg()[0], 1),
        "features": len(given[0]),
        "records": RECORDS,
        "population": POPULATION,
        "generations": GENERATIONS,
        "chosen": cfs_greedy(*given).size,
    }
    for name in ways:
        for what in ("processor", "clock", "merit"):
            result[f"{name}: {what}"] = spread([each[name][what] for each in rounds])
    for name in ("greedy", "ga"):
        ratios = [e[f"{name}, loop"]["processor"] / e[name]["processor"] for e in rounds]
        result[f"{name}: loop / ours"] = spread(ratios)
    print(json.dumps(result, indent=1))
    with options.out.open("a") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
