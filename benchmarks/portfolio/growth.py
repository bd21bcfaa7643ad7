"""Should the learning rate of a linear model on scattering features grow with the signal?

`pasearch train` of that model, with and without `learning_rate_growth`, on the same seeds: MNIST
and Fashion-MNIST, the official test images, a total of 1.6 and of 1. One JSON line a run; what is
in the results already is not run again. Noise comes from a seed: benchmarks, not private.

Usage: python benchmarks/portfolio/growth.py --data-root DIR --cache DIR [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from pathlib import Path

from pasearch import Budget
from pasearch.api.search import prepare, run

RESULTS = Path(__file__).parent / "results" / "growth.jsonl"


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--cache", required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.6, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(r["data"], r["growth"], r["epsilon"], r["seed"]) for r in map(json.loads, lines)}
    for epsilon in options.epsilons:
        for seed in range(options.seeds):
            for data in ("fashion-mnist", "mnist"):
                for growth in (2.0, 1.0):
                    if (data, growth, epsilon, seed) in done:
                        continue
                    settings = {"learning_rate_scale": 1.4, "learning_rate_growth": growth}
                    start = time.perf_counter()
                    prepared = prepare(
                        data,
                        budget=Budget(epsilon, 1e-5),
                        architecture={
                            "front_end": "scattering", "layers": [], "settings": settings,
                        },
                        data_root=options.data_root,
                        cache=f"{options.cache}/{data}",
                        seed=seed,
                    )  # fmt: skip
                    with tempfile.TemporaryDirectory() as folder:
                        found = run(prepared, out=Path(folder) / "run", progress=None).document
                    row = {
                        "data": data,
                        "growth": growth,
                        "epsilon": epsilon,
                        "seed": seed,
                        "accuracy": round(found["score"]["test"], 5),
                        "price": found["price"]["epsilon"],
                        "learning_rate": found["recipe"]["learning_rate"],
                        "seconds": round(time.perf_counter() - start, 1),
                        "date": date.today().isoformat(),
                    }
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
