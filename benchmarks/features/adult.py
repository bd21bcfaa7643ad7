"""Adult at one total price: every way to choose features, with both trainers.

Each run is `pasearch features` on UCI's split with the declared schema (examples/adult.toml): the
total (epsilon, delta) pays for means, choice, model and test. Accuracy and AUC here are exact, on
UCI's 16,281 test records, which are public. One JSON line a method, trainer, epsilon and seed; what
is in the results already is not run again. `--bought` buys the schema instead of declaring it.

Small (the default): three seeds, PAFS and subsets with objective perturbation only. `--full`: five
seeds, and those two with DP-SGD as well.

Noise comes from a seed here, so that methods share the split: these are benchmarks, not private.

Usage: python benchmarks/features/adult.py adult.csv [--bought] [--full]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from pasearch import Budget
from pasearch.api.features import prepare, run
from pasearch.data.csv_file import open_csv
from pasearch.data.table_format import TableFormat

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "adult.jsonl"
SCHEMA = HERE.parents[1] / "examples" / "adult.toml"
METHODS = (
    "auto", "all", "random", "cfs-greedy", "cfs-ga", "top", "pca", "pafs", "one-hot", "subsets",
)  # fmt: skip
EPSILONS = (0.1, 0.5, 1.0, 3.0)
SLOW = ("pafs", "one-hot", "subsets")
TEST = 16_281


@cache
def tests(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the test records and their classes."""
    with open_csv(Path(source), TableFormat.of(None)) as file:
        tail = np.array(list(file.rows())[-TEST:], object)
    return tail[:, :-1], tail[:, -1].astype(str)


def measured(
    source: str, method: str, trainer: str, epsilon: float, seed: int, bought: bool
) -> dict[str, Any]:
    """Run once; return what was released, and how good it is on the public test records."""
    records, labels = tests(source)
    start = time.perf_counter()
    said: dict[str, Any] = {} if bought else {"schema": SCHEMA}
    prepared = prepare(
        source, budget=Budget(epsilon), method=method, trainer=trainer, seed=seed,
        force=True, **said,  # at every epsilon of the study
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        result = run(prepared, out=Path(folder) / "run")
        model, took = result.model, result.document["strategy"]
    scores = model.decision_function(records)
    second = labels == model.classes_[1]
    return {
        "chosen": f"{took['name']}, {took['trainer']}",
        "features": len(result.features),
        "of": result.document["best"]["of"],
        "accuracy": round(float(np.mean((scores > 0) == second)), 5),
        "auc": round(float(roc_auc_score(second, scores)), 5),
        "price": result.price.epsilon,
        "delta": result.price.delta,
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--bought", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--trainers", nargs="+", default=["dpsgd", "objective"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"method": method, "trainer": trainer, "epsilon": epsilon, "seed": seed,
         "bought": options.bought}
        for seed in range(options.seeds or (5 if options.full else 3))
        for epsilon in options.epsilons
        for method in options.methods
        for trainer in (("auto",) if method == "auto" else options.trainers)
        if options.full or method not in SLOW or trainer != "dpsgd"
    )  # fmt: skip
    cells.measure(RESULTS, asked, measured, options.data, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
