"""Print the table of the study: accuracy of every recipe at one sound price, and its verdict.

The verdict is against `dpsgd` of the same data, budget and seeds: by how many of dpsgd's own
standard errors (of one run: the test set's and the released noise's) the median differs.

Usage: python benchmarks/optimizers/table.py [--full]
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict

import numpy as np
from run import RESULTS, UNITS

TEST = 10_000


def verdict(found: float, plain: float) -> str:
    """Return in words whether a method helped."""
    error = math.sqrt(2 * plain * (1 - plain) / TEST)
    if abs(found - plain) <= 2 * error:
        return "no difference that one run shows"
    return "helps" if found > plain else "hurts"


def main() -> None:
    """Print one table a data set and epsilon, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    cells: dict[tuple[str, tuple[int, ...], float], dict[str, list[dict]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        if row["full"] == options.full:
            units = row.get("units") or UNITS
            name = row["recipe"] + ", public validation" * bool(row.get("public_validation"))
            cells[row["data"], tuple(units), row["epsilon"]][name].append(row)
    for (data, units, epsilon), recipes in cells.items():
        plain = np.median([row["accuracy"] for row in recipes["dpsgd"]])
        of = "" if options.full else f", hidden layers {', '.join(map(str, units))}"
        print(f"\n{data}{of}, total epsilon {epsilon:g}\n")
        print("| recipe | seeds | accuracy | sound price | the paper's own | does it help? |")
        print("|---|---|---|---|---|---|")
        for recipe, rows in recipes.items():
            if any(row["accuracy"] is None for row in rows):
                print(f"| {recipe} | {len(rows)} | refused | | | {rows[0]['refused']} |")
                continue
            found = float(np.median([row["accuracy"] for row in rows]))
            price = max(row["price"] for row in rows)
            claimed = {k: v for row in rows for k, v in row["claims"].items() if v is not None}
            beside = "; ".join(f"{value:.2f} ({name})" for name, value in claimed.items()) or "-"
            words = "-" if recipe == "dpsgd" else verdict(found, float(plain))
            print(f"| {recipe} | {len(rows)} | {found:.3f} | {price:.2f} | {beside} | {words} |")


if __name__ == "__main__":
    main()
