"""Print the tables of the study: median accuracy by arm and epsilon, and auto against the best arm.

Under each table stands what the paper's own formulas would charge for the same runs (Eq. 8 for
composition, Eq. 9 corrected for repeat-and-select): never a valid bound here.

auto is not an arm of its own: it is the arm whose plan it takes (`insured` is of `insurance.py`
alone, and not measured here). The interval is the bootstrap's 95 % of the mean paired difference
between auto's arm and the arm with the best mean.

Usage: python benchmarks/search_pays/table.py [--data-root DIR] [--tables DIR] [--cache DIR]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from run import RESULTS, interaction

from pasearch import Budget
from pasearch.api.search import prepare


def auto_arm(data: str, epsilon: float, options: argparse.Namespace) -> str:
    """Return the arm that auto takes."""
    given: Any = data
    declared: dict[str, Any] = {}
    if data == "interaction":
        given = interaction()
    elif data.partition(",")[0] in ("mnist", "fashion-mnist"):
        given, declared = data.partition(",")[0], {"data_root": options.data_root}
    elif data == "adult":
        given = str(next(Path(options.tables).glob("**/adult.csv")))
        declared = {"schema": Path(__file__).parents[2] / "examples" / "adult.toml"}
    auto = prepare(given, budget=Budget(epsilon), **declared).plan.auto
    assert auto is not None
    name, _, way = auto["chosen"].partition(", ")
    return "fixed" if name == "fixed" else f"{name.replace('rs', 'portfolio-rs', 1)}, {way}"


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the bootstrap's 95 % interval of the mean."""
    generator = np.random.default_rng(0)
    drawn = generator.choice(differences, (10_000, len(differences))).mean(axis=1)
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def main() -> None:
    """Print one table a data set, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--data-root", "--tables", "--cache"):
        parser.add_argument(name)
    options = parser.parse_args()
    cells: dict[str, dict[float, dict[str, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    claims: dict[str, dict[float, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        if row["accuracy"] is not None:
            cells[row["data"]][row["epsilon"]][row["arm"]][row["seed"]] = row["accuracy"]
            if row["claimed"] is not None:
                claims[row["data"]][row["epsilon"]][row["arm"]].append(row["claimed"])
    for data, by_epsilon in cells.items():
        arms = list(dict.fromkeys(arm for cell in by_epsilon.values() for arm in cell))
        print(
            f"\n{data}\n\n| epsilon | seeds | {' | '.join(arms)} | auto takes | minus best (95 %) |"
        )
        print("|" + "---|" * (len(arms) + 4))
        for epsilon, cell in sorted(by_epsilon.items()):
            seeds = sorted(set.intersection(*(set(found) for found in cell.values())))
            taken = auto_arm(data, epsilon, options)
            means = {arm: np.mean([cell[arm][seed] for seed in seeds]) for arm in cell}
            best = max(means, key=means.__getitem__)
            apart = f"not measured here; best is {best}"
            if taken in cell:
                pairs = np.array([cell[taken][seed] - cell[best][seed] for seed in seeds])
                low, high = interval(pairs)
                apart = f"{pairs.mean():+.4f} ({low:+.4f}, {high:+.4f}) vs {best}"
            medians = [
                f"{np.median(list(cell[arm].values())):.3f}" if arm in cell else "-" for arm in arms
            ]
            print(f"| {epsilon:g} | {len(seeds)} | {' | '.join(medians)} | {taken} | {apart} |")
        print(f"\nepsilon by the paper's own accounting\n\n| epsilon | {' | '.join(arms)} |")
        print("|" + "---|" * (len(arms) + 1))
        for epsilon, found in sorted(claims[data].items()):
            shown = [f"{np.median(found[arm]):.3g}" if arm in found else "-" for arm in arms]
            print(f"| {epsilon:g} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
