"""Should the learning rate of a linear model on scattering features grow with the signal?

`pasearch train` of that model, with and without `learning_rate_growth`, on the same seeds: MNIST
and Fashion-MNIST, the official test images, a total of 1.6 and of 1. One JSON line a run; what is
in the results already is not run again. Noise comes from a seed: benchmarks, not private.

Usage: python benchmarks/portfolio/growth.py --data-root DIR --cache DIR [--seeds 3]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pasearch import Budget
from pasearch.api.search import prepare, run

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "growth.jsonl"


def measured(
    options: argparse.Namespace, data: str, growth: float, epsilon: float, seed: int
) -> dict[str, Any]:
    """Train once; return what was released."""
    start = time.perf_counter()
    settings = {"learning_rate_scale": 1.4, "learning_rate_growth": growth}
    prepared = prepare(
        data,
        budget=Budget(epsilon, 1e-5),
        architecture={"front_end": "scattering", "layers": [], "settings": settings},
        data_root=options.data_root,
        cache=f"{options.cache}/{data}",
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        found = run(prepared, out=Path(folder) / "run", progress=None).document
    return {
        "accuracy": round(found["score"]["test"], 5),
        "price": found["price"]["epsilon"],
        "learning_rate": found["recipe"]["learning_rate"],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--cache", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.6, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"data": data, "growth": growth, "epsilon": epsilon, "seed": seed}
        for epsilon in options.epsilons
        for seed in range(options.seeds)
        for data in ("fashion-mnist", "mnist")
        for growth in (2.0, 1.0)
    )
    cells.measure(RESULTS, asked, measured, options, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
