"""Does a method still help once it is charged honestly? Every recipe at one sound total price.

Each run is `pasearch train` with a preset: the same data, network and total (epsilon, delta), which
pays for the gradients, the looks at validation records, and the accuracy. One JSON line a data set,
recipe, epsilon and seed; what is in the results already is not run again. `table.py` prints it.

Small (the default): the first 10,000 training images and the official test set, epsilon 3; one
dense layer of 64 tanh units on images of half the side (max-pooled), as noise on each record of a
larger network takes hours on a CPU. `--full`: all images, epsilon 1, 2 and 3, five seeds, and the
networks that Fu et al. used (examples/architectures); that is for a GPU.

Noise comes from a seed here, so that recipes share the split: these are benchmarks, not private.

Usage: python benchmarks/optimizers/run.py mnist --data-root DIR
       python benchmarks/optimizers/run.py fashion-mnist --data-root DIR
       python benchmarks/optimizers/run.py cifar10_jpeg75.npz
       python benchmarks/optimizers/run.py mnist --data-root DIR --seeds 5 --recipes dpsgd
           denoised-gaussian encoded-student-t benchmarks/optimizers/denoised-student-t.toml
       python benchmarks/optimizers/run.py mnist --data-root DIR --full --device cuda
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pasearch import Budget
from pasearch.api.search import prepare, run
from pasearch.data.partitions import Dataset, Sealed
from pasearch.data.sources import load_dataset
from pasearch.errors import PasearchError
from pasearch.training.presets import PRESETS

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
NETWORKS = HERE.parents[1] / "examples" / "architectures"
SMALL = 10_000
SLOW = {"noisy-gradient": {"steps": 100}}
"""Noise on each record takes a hundred times as long: a fifth of the steps, unless --full."""

DENSE = [{"kind": "dense", "units": 64, "activation": "tanh"}]


def first(dataset: Dataset, n: int) -> Dataset:
    """Return the first n training records and the official test set; the images are public."""
    x, y = (Sealed(each)._array for each in (dataset.features, dataset.labels))
    kept = np.r_[:n, dataset.n - dataset.official_test : dataset.n]
    return Dataset(
        name=dataset.name,
        schema=dataset.schema,
        features=x[kept],
        labels=y[kept],
        official_test=dataset.official_test,
    )


def network(name: str, full: bool) -> dict[str, Any] | Path:
    """Return what is trained."""
    if full:
        return NETWORKS / f"{'tramer-cifar' if 'cifar' in name else 'papernot-mnist'}.toml"
    return {"layers": DENSE, "front_end": "max_pool:2"}


def measure(
    data: Dataset, recipe: str, epsilon: float, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Train once; return what was released."""
    start = time.perf_counter()
    prepared = prepare(
        data,
        budget=Budget(epsilon),
        recipe=recipe,
        architecture=network(data.name, options.full),
        seed=seed,
        device=options.device,
        cache=options.cache,
        **({} if options.full else SLOW.get(recipe, {})),
    )
    with tempfile.TemporaryDirectory() as folder:
        document = run(prepared, out=Path(folder) / "run", progress=None).document
    claims = {claim["source"]: claim["value"] for claim in document["claims"]}
    return {
        "accuracy": round(document["score"]["test"], 5),
        "price": document["price"]["epsilon"],
        "delta": document["price"]["delta"],
        "noise_multiplier": document["recipe"]["noise_multiplier"],
        "steps": document["recipe"]["steps"],
        "claims": claims,
        "n": document["dataset"]["slots"]["train"],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--cache")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--recipes", nargs="+", default=list(PRESETS))
    parser.add_argument("--epsilons", type=float, nargs="+")
    parser.add_argument("--seeds", type=int)
    options = parser.parse_args()
    said = {} if options.data.endswith(".npz") else {"data_root": options.data_root}
    data = load_dataset(options.data, **said)
    if not data.official_test:
        data.official_test = 10_000
    if not options.full:
        data = first(data, SMALL)
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {
        (r["data"], r["recipe"], r["epsilon"], r["seed"], r["full"]) for r in map(json.loads, lines)
    }
    for seed in range(options.seeds or (5 if options.full else 1)):
        for epsilon in options.epsilons or ((1.0, 2.0, 3.0) if options.full else (3.0,)):
            for recipe in options.recipes:
                name = Path(recipe).stem
                if (data.name, name, epsilon, seed, options.full) in done:
                    continue
                try:
                    found = measure(data, recipe, epsilon, seed, options)
                except PasearchError as error:
                    found = {"accuracy": None, "refused": str(error)}
                row = {"data": data.name, "recipe": name, "epsilon": epsilon, "seed": seed}
                row |= {"full": options.full, "device": options.device, **found}
                with RESULTS.open("a") as file:
                    file.write(json.dumps({**row, "date": date.today().isoformat()}) + "\n")


if __name__ == "__main__":
    main()
