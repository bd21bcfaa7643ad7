"""Does a private search pay for itself? Accuracy at equal total, arm against arm.

Every arm has the same total (epsilon, delta), which pays for its search, its scores, its final
model and the accuracy it prints. Arms of one seed share the split of the records. One JSON line an
arm, epsilon and seed; what is in the results already is not run again, and what is not runs side by
side (`--workers`). `table.py` prints tables.

Noise comes from a seed here, so that arms can be paired: these runs are benchmarks, not private.

Usage: python benchmarks/search_pays/run.py digits --seeds 10
       python benchmarks/search_pays/run.py interaction --epsilons 3 --seeds 5
       python benchmarks/search_pays/run.py adult.csv --schema examples/adult.toml --epsilons 1
       python benchmarks/search_pays/run.py mnist --data-root DIR --cache DIR --epsilons 1 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pasearch import Budget
from pasearch.api.search import prepare, run
from pasearch.data.column import Column
from pasearch.data.partitions import Dataset
from pasearch.data.tables import TableSchema
from pasearch.errors import BudgetError

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
ASIDE = {"search_share": 0.2}
SEARCHES: dict[str, dict[str, Any]] = {
    "portfolio-rs": {"strategy": "rs", "candidates": 5},
    "wide rs": {"strategy": "rs", "candidates": 10, "space": "wide"},
    "mgrs": {"strategy": "mgrs", "candidates": 8, "generations": 2},
    "paas": {"strategy": "paas", "candidates": 4, "generations": 2},
}
ARMS = {"fixed": {"strategy": "fixed"}} | {
    f"{name}, {way}": {**settings, **more}
    for name, settings in SEARCHES.items()
    for way, more in (("in place", {}), ("aside", ASIDE))
}
WIDE = {"image": "images", "table": "tables", "arrays": "fcn", "regression": "tables"}
EPSILONS = (0.5, 1.0, 2.0, 3.0, 8.0)


def interaction(n: int = 20000, noise: int = 6) -> Dataset:
    """Return a table whose class depends on two columns together and on none alone."""
    generator = np.random.default_rng(0)
    x = generator.random((n, 2 + noise))
    classes = (x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)
    columns = [Column(name=f"x{place}", low=0.0, high=1.0) for place in range(2 + noise)]
    target = Column(name="class", categories=("False", "True"))
    schema = TableSchema(columns=tuple(columns), target=target, name="interaction")
    return Dataset(
        name="interaction",
        schema=schema,
        features=x.astype(object),
        labels=classes.astype(str).astype(object),
    )


def source(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the data and what is declared about it."""
    if options.data == "interaction":
        return interaction(), {}
    declared = {"schema": options.schema, "data_root": options.data_root, "cache": options.cache}
    return options.data, {name: value for name, value in declared.items() if value is not None}


def measured(
    options: argparse.Namespace, arm: str, epsilon: float, seed: int, **_: Any
) -> dict[str, Any]:
    """Run one arm; return what it released."""
    data, declared = source(options)
    settings = declared | ARMS[arm]
    if options.candidates is not None and "candidates" in settings:
        settings["candidates"] = options.candidates
    if settings.get("space") == "wide":
        settings["space"] = WIDE[kind_of(options)]
    if options.steps is not None:
        settings["steps"] = options.steps
    try:
        return run_of(data, settings, epsilon, seed)
    except BudgetError as error:
        return {"accuracy": None, "refused": str(error)}


def kind_of(options: argparse.Namespace) -> str:
    """Return of which kind the data are."""
    return options.kind or {"digits": "arrays", "interaction": "table"}.get(
        options.data, "table" if ".csv" in options.data else "image"
    )


def run_of(data: Any, settings: dict[str, Any], epsilon: float, seed: int) -> dict[str, Any]:
    """Return what a run released."""
    start = time.perf_counter()
    # The study compares strategies at epsilons at which some of them only guess.
    prepared = prepare(data, budget=Budget(epsilon), seed=seed, force=True, **settings)
    with tempfile.TemporaryDirectory() as folder:
        result = run(prepared, out=Path(folder) / "run", progress=None)
    document = result.document
    beside = [claim["value"] for claim in document["claims"] if claim["value"] is not None]
    return {
        "accuracy": round(document["score"]["test"], 5),
        "price": document["price"]["epsilon"],
        "delta": document["price"]["delta"],
        "claimed": beside[0] if beside else None,
        "candidates": settings.get("candidates"),
        "steps": document["recipe"]["steps"],
        "best": document["best"]["architecture"],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--schema")
    parser.add_argument("--data-root")
    parser.add_argument("--cache")
    parser.add_argument("--kind", choices=WIDE, help="of the data; told by it if left out")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--candidates", type=int, help="of every search, in place of its own")
    parser.add_argument("--steps", type=int, help="of every training, in place of its own")
    cells.add_workers(parser)
    options = parser.parse_args()
    name = Path(options.data).stem
    if options.steps is not None:
        name = f"{name}, {options.steps} steps"
    asked = (
        {"data": name, "arm": arm, "epsilon": epsilon, "seed": seed}
        for seed in range(options.seeds)
        for epsilon in options.epsilons
        for arm in options.arms
    )
    cells.measure(RESULTS, asked, measured, options, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
