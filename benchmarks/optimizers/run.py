"""Does a method still help once it is charged honestly? Every recipe at one sound total price.

Each run is `pasearch train` with a preset: the same data, network and total (epsilon, delta), which
pays for the gradients, the looks at validation records, and the accuracy. One JSON line a data set,
recipe, epsilon and seed; what is in the results already is not run again, and what is not runs side
by side (`--workers`). `table.py` prints it.

Small (the default): the first 10,000 training images and the official test set, epsilon 3; one
dense layer of 64 tanh units on images of half the side (max-pooled), as noise on each record of a
larger network takes hours on a CPU. `--full`: all images, epsilon 1, 2 and 3, five seeds, and the
networks that Fu et al. used (examples/architectures); that is for a GPU.

`--public-validation`: validation queries read 1,000 further training images, which are declared
public, so that they cost nothing. `--units`: hidden layers other than one of 64.

Noise comes from a seed here, so that recipes share the split: these are benchmarks, not private.

Usage: python benchmarks/optimizers/run.py mnist --data-root DIR
       python benchmarks/optimizers/run.py fashion-mnist --data-root DIR
       python benchmarks/optimizers/run.py cifar10_jpeg75.npz
       python benchmarks/optimizers/run.py mnist --data-root DIR --seeds 5 --recipes dpsgd
           denoised-gaussian encoded-student-t benchmarks/optimizers/denoised-student-t.toml
       python benchmarks/optimizers/run.py mnist --data-root DIR --seeds 5 --recipes dpsgd
           sa-dpsgd benchmarks/optimizers/sa-dpsgd-every-*.toml        then --public-validation
       python benchmarks/optimizers/run.py mnist --data-root DIR --seeds 5 --recipes dpsgd rwt
           --units 128 64 64
       python benchmarks/optimizers/run.py mnist --data-root DIR --full --device cuda
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pasearch import Budget
from pasearch.api.search import prepare, run
from pasearch.data.partitions import Dataset, SealedArray
from pasearch.data.sources import load_dataset
from pasearch.errors import PasearchError
from pasearch.training.presets import PRESETS

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
NETWORKS = HERE.parents[1] / "examples" / "architectures"
SMALL = 10_000
SLOW = {"noisy-gradient": {"steps": 100}}
"""Noise on each record takes a hundred times as long: a fifth of the steps, unless --full."""

UNITS = [64]
PUBLIC = 1000
"""Records of the public validation data."""


def first(dataset: Dataset, n: int) -> Dataset:
    """Return the first n training records and the official test set; the images are public."""
    x, y = (SealedArray(each)._array for each in (dataset.features, dataset.labels))
    kept = np.r_[:n, dataset.n - dataset.official_test : dataset.n]
    return Dataset(
        name=dataset.name,
        schema=dataset.schema,
        features=x[kept],
        labels=y[kept],
        official_test=dataset.official_test,
    )


def network(name: str, full: bool, units: Sequence[int] = UNITS) -> dict[str, Any] | Path:
    """Return what is trained."""
    if full:
        return NETWORKS / f"{'tramer-cifar' if 'cifar' in name else 'papernot-mnist'}.toml"
    layers = [{"kind": "dense", "units": each, "activation": "tanh"} for each in units]
    return {"layers": layers, "front_end": "max_pool:2"}


def write_public(path: Path, name: str, root: str) -> Path:
    """Write the training images behind those of the small study, as public validation data."""
    said = {} if name.endswith(".npz") else {"data_root": root}
    data = load_dataset(name, **said)
    x, y = (SealedArray(each)._array for each in (data.features, data.labels))
    part = slice(SMALL, SMALL + PUBLIC)
    np.savez(path, x=x[part], y=y[part], bounds=np.array([0, 255]), classes=10)
    return path


@lru_cache(maxsize=1)
def images(name: str, root: str, full: bool) -> Dataset:
    """Return a data set, or its first records."""
    said = {} if name.endswith(".npz") else {"data_root": root}
    data = load_dataset(name, **said)
    if not data.official_test:
        data.official_test = 10_000
    return data if full else first(data, SMALL)


def measured(
    options: argparse.Namespace, recipe: str, epsilon: float, seed: int, **_: Any
) -> dict[str, Any]:
    """Train once; return what was released."""
    recipe = {Path(each).stem: each for each in options.recipes}[recipe]
    try:
        return {"device": options.device, **trained(options, recipe, epsilon, seed)}
    except PasearchError as error:
        return {"device": options.device, "accuracy": None, "refused": str(error)}


def trained(options: argparse.Namespace, recipe: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Return what a run releases."""
    start, data = time.perf_counter(), images(options.data, options.data_root, options.full)
    steps: dict[str, Any] = dict({} if options.full else SLOW.get(recipe, {}))
    with tempfile.TemporaryDirectory() as folder:
        if options.public_validation:
            public = Path(folder) / "public.npz"
            steps["validate_on"] = write_public(public, options.data, options.data_root)
        prepared = prepare(
            data,
            budget=Budget(epsilon),
            recipe=recipe,
            architecture=network(data.name, options.full, options.units),
            seed=seed,
            device=options.device,
            cache=options.cache,
            force=True,  # at every epsilon of the study
            **steps,
        )
        document = run(prepared, out=Path(folder) / "run", progress=None).document
    claims = {claim["source"]: claim["value"] for claim in document["claims"]}
    return {
        "accuracy": round(document["score"]["test"], 5),
        "price": document["price"]["epsilon"],
        "delta": document["price"]["delta"],
        "noise_multiplier": document["recipe"]["noise_multiplier"],
        "steps": document["recipe"]["steps"],
        "screened_every": (document["recipe"].get("screening") or {}).get("every"),
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
    parser.add_argument("--units", type=int, nargs="+", default=UNITS)
    parser.add_argument("--public-validation", action="store_true")
    cells.add_workers(parser)
    options = parser.parse_args()
    name = images(options.data, options.data_root, options.full).name
    more = {  # None as of the lines that were measured before there was a choice
        "units": None if options.units == UNITS else options.units,
        "public_validation": options.public_validation or None,
    }
    asked = (
        {"data": name, "recipe": Path(recipe).stem, "epsilon": epsilon, "seed": seed,
         "full": options.full, **more}
        for seed in range(options.seeds or (5 if options.full else 1))
        for epsilon in options.epsilons or ((1.0, 2.0, 3.0) if options.full else (3.0,))
        for recipe in options.recipes
    )  # fmt: skip
    cells.measure(RESULTS, asked, measured, options, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
