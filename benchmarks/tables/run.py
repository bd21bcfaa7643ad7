"""Adult at epsilon 1: accuracy and AUC on UCI's own test part, by what is known of the schema.

Arms: `declared` (examples/adult.toml), `bought` (nothing declared but the target), `assumed public`
(the same, read for nothing). Every run is the command line's own defaults (`auto`) with the
operating system's randomness. Accuracy and AUC are of the released model on the 16,281 test
records, without noise: Adult is public.

Usage: python benchmarks/tables/run.py adult.csv --repeats 5
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from pasearch import Budget, SearchResult, search_architecture

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "adult.jsonl"
SCHEMA = HERE.parents[1] / "examples" / "adult.toml"
TEST = 16281
BARE = HERE / "adult-bare.toml"
ARMS: dict[str, dict[str, Any]] = {
    "declared": {"schema": SCHEMA},
    "bought": {"schema": BARE},
    "assumed public": {"schema": BARE, "assume_public_schema": True},
}


def exact(result: SearchResult, rows: list[list[str]]) -> tuple[float, float]:
    """Return accuracy and AUC on rows of the file, the class last."""
    records = np.array([row[:-1] for row in rows], object)
    rich = np.array([row[-1] == ">50K" for row in rows])
    schema: Any = result.schema
    names, scores = list(schema.class_names), result.scores(records)
    margin = scores[:, names.index(">50K")] - scores[:, names.index("<=50K")]
    answers = result.predict(records) == ">50K"
    return float((answers == rich).mean()), float(roc_auc_score(rich, margin))


def measured(
    options: argparse.Namespace, arm: str, epsilon: float, repeat: int
) -> dict[str, float | str]:
    """Run one arm; return what it released, and how good it is. Its noise has no seed."""
    with options.data.open(newline="") as file:
        rows = list(csv.reader(file))[1:][-TEST:]
    with tempfile.TemporaryDirectory() as folder:
        result = search_architecture(
            options.data, budget=Budget(epsilon, 1e-5), out=Path(folder) / "run", **ARMS[arm]
        )
        accuracy, auc = exact(result, rows)
    return {
        "accuracy": round(accuracy, 5), "auc": round(auc, 5),
        "released": round(result.test_accuracy, 5), "price": result.price.epsilon,
        "best": result.best.describe(),
    }  # fmt: skip


def main() -> None:
    """Run what the results lack, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"arm": arm, "epsilon": options.epsilon, "repeat": repeat}
        for repeat in range(options.repeats)
        for arm in ARMS
    )
    workers = cells.workers_of(options)
    lines = cells.measure(RESULTS, asked, measured, options, workers=workers)
    for arm in ARMS:
        mine = [x for x in lines if x["arm"] == arm and x["epsilon"] == options.epsilon]
        for name in ("accuracy", "auc"):
            found = sorted(x[name] for x in mine)
            print(
                f"{arm}, {name}: {statistics.median(found):.4f} ({found[0]:.4f}, {found[-1]:.4f})"
            )


if __name__ == "__main__":
    main()
