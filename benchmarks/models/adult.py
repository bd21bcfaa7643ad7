"""Adult with UCI's split: `arch` and `features` alike, everything declared or nothing.

    python benchmarks/models/adult.py --tables DIR [--epsilon .1 1 3] [--seeds 5]
    python benchmarks/models/adult.py --print

    declared     examples/adult.toml: bounds, bins, categories and classes
    nothing      the target's name and UCI's split alone: all else is estimated privately, and paid

Accuracy and area under the curve on UCI's 16,281 test records, exact; the whole total pays for
everything read, the noisy test score included. A line an arm, epsilon and seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from peers import scores

from pasearch import Budget, search_architecture, select_features

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "adult.jsonl"
DECLARED = HERE.parents[1] / "examples" / "adult.toml"
NOTHING = 'target = "income"\nofficial_test = 16281\n'
ARMS = ("features", "arch")


def measured(folder: Path, declared: bool, epsilon: float, arm: str, seed: int) -> dict[str, float]:
    """Return what an arm reaches."""
    frame = pd.read_csv(folder / "adult.csv", dtype=str, keep_default_na=False)
    held = frame.tail(16281)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        (path / "schema.toml").write_text(NOTHING)
        given: dict[str, Any] = {
            "schema": DECLARED if declared else path / "schema.toml", "seed": seed,
            "budget": Budget(epsilon, 1e-5), "out": path / "run", "device": "cpu",
            "force": True,  # at every epsilon of the study
        }  # fmt: skip
        if arm == "features":
            result = select_features(folder / "adult.csv", method="all", **given)
        else:
            result = search_architecture(folder / "adult.csv", strategy="fixed", **given)
        records = held.drop(columns=["income"])
        answers, chances = result.predict(records), np.asarray(result.predict_proba(records))
    found = scores(held["income"].to_numpy(str), np.asarray(answers).astype(str), chances[:, -1])
    return {name: round(value, 5) for name, value in found.items()}


def show() -> None:
    """Print medians over seeds with their range."""
    print("| schema | epsilon | seeds | | " + " | ".join(ARMS) + " |\n|---|---|---|---|---|---|")
    rows = cells.stored(RESULTS)
    for declared, epsilon in sorted({(r["declared"], r["epsilon"]) for r in rows}, reverse=True):
        for measure in ("accuracy", "auc"):
            shown, seeds = [], 0
            for arm in ARMS:
                key = (declared, epsilon, arm)
                found = [r[measure] for r in rows if (r["declared"], r["epsilon"], r["arm"]) == key]
                seeds = max(seeds, len(found))
                span = f" ({min(found):.3f}, {max(found):.3f})" if found else ""
                shown.append(f"{statistics.median(found):.3f}{span}" if found else "")
            schema = "declared" if declared else "nothing"
            print(f"| {schema} | {epsilon:g} | {seeds} | {measure} | " + " | ".join(shown) + " |")


def main() -> None:
    """Run what is asked for and not there, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, help="the folder of adult.csv")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    asked_for = (
        {"declared": declared, "epsilon": epsilon, "arm": arm, "seed": seed}
        for seed in range(1, asked.seeds + 1)
        for epsilon in asked.epsilon
        for declared in (True, False)
        for arm in ARMS
    )
    cells.measure(RESULTS, asked_for, measured, asked.tables, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
