"""The study behind the portfolio: how well each candidate does, by data, records and noise.

Public data only. One JSON line a training: which candidate, on which data, on how many training
records n, with which noise (mu, the whole training's signal to noise), from which seed; and its
exact accuracy on the test records (1 - mean absolute error where a number is predicted). What is in
the results already is not run again. `fit.py` makes the shipped file from these lines.

With `--shipped` the entries that are shipped are trained once more where their Brier score was not
taken down: looks are judged by it.

Usage: python benchmarks/portfolio/run.py --data-root DIR --tables DIR --cache DIR [--full]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from public import Public

from pasearch.data.array_file import from_arrays
from pasearch.data.partitions import Dataset
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.search.candidate_training import (
    compute_metric_counts,
    compute_score_count,
    train_candidate,
    training_streams,
)
from pasearch.search.plan import make_candidate_recipe
from pasearch.spaces.candidate import Candidate
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import make_default_recipe
from pasearch.training.settings import make_full_batch_settings

sys.path.append(str(Path(__file__).parents[1]))
import cells

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
SHIPPED = HERE.parents[1] / "pasearch" / "spaces" / "portfolio" / "portfolio-1.json"

SCATTERING = "scattering"
LINEAR: list[dict[str, Any]] = []


def dense(units: int, activation: str = "tanh") -> list[dict[str, Any]]:
    """Return one hidden layer."""
    return [{"kind": "dense", "units": units, "activation": activation}]


def joined(units: int) -> list[dict[str, Any]]:
    """Return one hidden layer whose input goes on beside its output."""
    return [{"kind": "dense", "units": units, "activation": "tanh", "joined": True}]


def entry(front_end: str, layers: list[dict[str, Any]], **settings: float) -> dict[str, Any]:
    """Return a candidate as plain values."""
    settings = {"learning_rate_scale": 1.0, "steps_scale": 1.0, **settings}
    return {"front_end": front_end, "layers": layers, "settings": settings}


PAIRS = "centred_pairs:256"


def full(
    layers: list[dict[str, Any]], *, front: str = "centred", number: bool = False, rate: float = 1.0
) -> Any:
    """Return a candidate on centred input, trained on full batches, at so many times the rate."""
    settings = dict(make_full_batch_settings(number))
    for name in ("learning_rate_scale", "learning_rate_most"):
        settings[name] *= rate
    return {"front_end": front, "layers": layers, "settings": settings}


def whitened(views: int) -> Any:
    """Return a linear model on whitened images, trained on full batches.

    Half of the usual bound: where most records are told apart, few gradients are large, and less
    noise is worth more than their size; at such rates momentum does harm (benchmarks/models,
    "Images").
    """
    settings = full(LINEAR, rate=1.0)["settings"] | {"clip_norm": 0.5, "momentum": 0.0}
    settings |= {"learning_rate_growth": 4.0, "learning_rate_most": 80.0}
    return {"front_end": f"whitened_centred:{views}", "layers": LINEAR, "settings": settings}


CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "image": [
        entry("scattering", LINEAR, learning_rate_scale=1.4),
        entry("scattering", dense(64)),
        entry("raw", LINEAR),
        entry("raw", dense(128)),
        whitened(1),
    ],
    "arrays": [
        entry("raw", LINEAR),
        entry("raw", LINEAR, learning_rate_scale=2.0),
        entry("raw", dense(64)),
        entry("raw", dense(128)),
        entry("raw", dense(256, "relu")),
        entry("standardise", LINEAR),
        entry("standardise", dense(64)),
    ],
    "table": [
        entry("raw", LINEAR),
        entry("raw", LINEAR, learning_rate_scale=0.5),
        entry("raw", LINEAR, learning_rate_scale=2.0),
        entry("raw", dense(32)),
        entry("raw", dense(64)),
        entry("raw", dense(64, "relu")),
        entry("raw", dense(256)),
        full(LINEAR),
        full(LINEAR, rate=2.0),
        full(dense(64)),
        entry("centred", dense(64)),
        entry("centred", dense(128) + dense(64)),
        entry("centred", joined(64)),
        full(joined(64), rate=0.5),
        full(LINEAR, front=PAIRS),
        full(joined(64), front=PAIRS, rate=0.5),
        entry(PAIRS, joined(64)),
    ],
    "regression": [entry("raw", LINEAR, learning_rate_scale=scale) for scale in (0.03, 0.1, 0.3)]
    + [entry("raw", dense(64), learning_rate_scale=scale) for scale in (0.03, 0.1, 0.3)]
    + [
        full(LINEAR, number=True),
        full(dense(64), number=True, rate=0.3),
        entry("centred", dense(64), learning_rate_scale=0.3),
        entry("centred", dense(128) + dense(64), learning_rate_scale=0.3),
        entry("centred", joined(64), learning_rate_scale=0.3),
        full(joined(64), number=True, rate=0.3),
        full(LINEAR, front=PAIRS, number=True),
        full(joined(64), front=PAIRS, number=True, rate=0.3),
        entry(PAIRS, joined(64), learning_rate_scale=0.3),
    ],
}

CANDIDATES["photo"] = [*CANDIDATES["image"], whitened(2)]

ONLY = {
    "table": [2, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    "regression": [2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
}
"""Which candidates are tried on `MORE` tables: of the older ones the best alone."""

TABLES = {
    "adult": "table",
    "breast-cancer": "table",
    "breast-cancer-wisconsin": "table",
    "sms-spam": "table",
    "insurance": "regression",
}
MORE = {
    **dict.fromkeys(
        ("bank-churn", "bank-marketing", "eeg-eye-state", "letter", "magic", "nursery",
         "online-shoppers"), "table",
    ),
    **dict.fromkeys(("california-housing", "fried", "house8L"), "regression"),
}  # fmt: skip
"""Tables whose bounds, bins and categories are read from them: the study's data are public."""
IMAGES = ("mnist", "fashion-mnist", "cifar10-jpeg-q75")

GRID: dict[str, list[tuple[int, tuple[float, ...]]]] = {
    "mnist": [(2000, (0.1, 0.4, 1.6)), (10000, (0.4, 1.6))],
    "fashion-mnist": [(2000, (0.1, 0.4, 1.6)), (10000, (0.4, 1.6))],
    "cifar10-jpeg-q75": [(2000, (0.1, 0.4, 1.6))],
    "adult": [(1000, (0.1, 0.4, 1.6)), (8000, (0.03, 0.1, 0.4, 1.6)), (32000, (0.03, 0.1, 0.4))],
    "sms-spam": [(1000, (0.1, 0.4, 1.6)), (5000, (0.03, 0.1, 0.4, 1.6))],
    "breast-cancer": [(230, (0.1, 0.4, 1.6))],
    "breast-cancer-wisconsin": [(560, (0.1, 0.4, 1.6))],
    "insurance": [(1100, (0.1, 0.4, 1.6))],
    "digits": [(400, (0.2, 0.6, 1.8)), (1500, (0.1, 0.3, 0.9, 1.8))],
    "diabetes": [(350, (0.1, 0.4, 1.6))],
    "friedman": [(2000, (0.03, 0.1, 0.4, 1.6)), (20000, (0.03, 0.1, 0.4))],
    "wine": [(140, (0.2, 0.6, 1.8))],
    "breast-cancer-diagnostic": [(450, (0.1, 0.4, 1.6))],
    "mnist 14 x 14": [(2000, (0.1, 0.4, 1.6)), (20000, (0.1, 0.4))],
}

GRID |= {name: [(2000, (0.1, 0.4, 1.6)), (10000, (0.1, 0.25, 0.7))] for name in MORE}

FULL = {name: [(10000, (0.1, 0.4, 1.6)), (60000, (0.1, 0.3))] for name in IMAGES}
"""What takes hours on a CPU: with --full only."""


class Folders(NamedTuple):
    """Where data are: torchvision's, the .csv files, and transformed images."""

    data_root: str
    tables: str
    cache: str


def kind_of(name: str) -> str:
    """Return of which kind a set of the study is."""
    if name in IMAGES:
        return "photo" if name.startswith("cifar") else "image"
    if name in ("diabetes", "friedman"):
        return "regression"
    return (MORE | TABLES).get(name, "arrays")


def load(name: str, folders: Folders) -> Dataset:
    """Return a set of the study; all of them are public."""
    if name in MORE:
        path = next(Path(folders.tables).glob(f"**/{name}.csv"))
        schema = HERE / "schemas" / f"{name}.toml"
        return load_dataset(str(path), schema=schema, public=True)
    if name in TABLES:
        schema = HERE.parents[1] / "examples" / f"{name}.toml"
        path = next(Path(folders.tables).glob(f"**/{name.replace('-', '[-_]')}.csv"))
        return load_dataset(str(path), schema=schema, public=True)
    if name == "digits":
        return load_dataset("digits", public=True)
    if name in ("wine", "breast-cancer-diagnostic"):
        from sklearn import datasets

        maker = datasets.load_wine if name == "wine" else datasets.load_breast_cancer
        found: Any = maker(return_X_y=True)
        return _scaled(name, *found, classes=int(found[1].max()) + 1)
    if name in ("diabetes", "friedman"):
        return _regression(name)
    if name == "mnist 14 x 14":
        images = load_dataset("mnist", data_root=folders.data_root, public=True)
        x, y = _raw(images)
        small = x.reshape(len(x), 14, 2, 14, 2).max((2, 4))
        return from_arrays(small, y, name=name, public=True, classes=10)
    if name == "cifar10-jpeg-q75":
        return load_dataset(str(Path(folders.cache) / f"{name}.npz"), public=True)
    return load_dataset(name, data_root=folders.data_root, public=True)


def _scaled(name: str, x: np.ndarray, y: np.ndarray, **declared: Any) -> Dataset:
    """Return a public data set, each feature scaled to [0, 1]."""
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    return from_arrays(x, y, name=name, public=True, bounds=(0.0, 1.0), **declared)


def _regression(name: str) -> Dataset:
    """Return a public regression: diabetes progression, or Friedman's first function with noise."""
    from sklearn import datasets

    if name == "diabetes":
        found: Any = datasets.load_diabetes(return_X_y=True)
        return _scaled(name, *found, regression=True)
    x, y = datasets.make_friedman1(25000, n_features=10, noise=1.0, random_state=0)
    return from_arrays(x, y, name=name, public=True, bounds=(0.0, 1.0), regression=True)


def _raw(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    found: list[np.ndarray] = []
    dataset.completed(lambda schema, x, y: (found.extend((x, y)), schema)[1])
    return found[0], found[1]


@cache
def loaded(name: str, folders: Folders) -> Public:
    """Return a set of the study, which stays in memory."""
    return Public(replace(load(name, folders), cache=Path(folders.cache)), 0)


def measured(
    folders: Folders, data: str, n: int, mu: float, seed: int, candidate: dict[str, Any]
) -> dict[str, Any]:
    """Train one candidate; return what it reached, and on what."""
    own = loaded(data, folders)
    schema = own.dataset.schema
    return {
        "kind": kind_of(data), "features": int(np.prod(schema.shape)), "classes": schema.outputs,
        **train(own, Candidate.from_json(candidate), n, mu, seed), "torch": torch.__version__,
    }  # fmt: skip


def train(data: Public, candidate: Candidate, n: int, mu: float, seed: int) -> dict[str, Any]:
    """Train one candidate and return what it reached."""
    slots = data.head[:n]
    recipe = make_candidate_recipe(
        (make_default_recipe(len(slots)),), candidate, mu, len(slots),
        outputs=data.dataset.schema.outputs,
    )  # fmt: skip
    streams = training_streams(Keys.from_seed(seed).stream("study", n, str(mu)))
    front = data.front(candidate, slots, mu, seed)
    start, schema = time.perf_counter(), data.dataset.schema
    records = data.records(slots, front)
    network = train_candidate(candidate, records, schema, recipe, streams, device="cpu")
    seconds = time.perf_counter() - start
    test = data.records(data.test, front)
    reached = compute_score_count(network, test, device="cpu") / len(test)
    found = {"seconds": round(seconds, 1)}
    if schema.regression:
        return {"accuracy": round(reached / 100, 5), **found}
    brier = METRICS["brier"]
    share = compute_metric_counts(network, test, brier, device="cpu")[0] / (
        len(test) * brier.max_points
    )
    return {"accuracy": round(reached, 5), "brier": round(1.0 - share, 5), **found}


def jobs(options: argparse.Namespace) -> Iterator[tuple[str, int, float, int]]:
    """Return (data, n, mu, seed), cheap ones first."""
    seeds = range(options.seeds or (5 if options.full else 2))
    for seed in seeds:
        for name, sizes in GRID.items():
            for n, mus in sizes + (FULL.get(name, []) if options.full else []):
                for mu in mus:
                    if seed == 0 or options.full or (n < 5000 and name not in MORE):
                        yield name, n, mu, seed


def tried(name: str, kind: str, *, shipped: bool) -> list[dict[str, Any]]:
    """Return the candidates that are trained on a data set."""
    if shipped:
        return json.loads(SHIPPED.read_text())["kinds"][kind]["entries"]
    every = CANDIDATES[kind]
    return [every[place] for place in ONLY[kind]] if name in MORE else every


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", required=True, help="torchvision's folder")
    parser.add_argument("--tables", required=True, help="folder with the .csv files")
    parser.add_argument("--cache", required=True, help="folder for transformed images")
    parser.add_argument("--full", action="store_true", help="five seeds everywhere")
    parser.add_argument("--front-end", default="", help="candidates whose front end begins so")
    parser.add_argument("--seeds", type=int, help="so many, where the grid has several")
    parser.add_argument("--only", nargs="+", help="these data sets")
    parser.add_argument("--shipped", action="store_true", help="shipped entries, for their Brier")
    cells.add_workers(parser)
    options = parser.parse_args()
    lines = [
        line for line in cells.stored(RESULTS)
        if not options.shipped or "brier" in line or line["kind"] == "regression"
    ]  # fmt: skip
    wanted = (
        {"data": name, "n": n, "mu": mu, "seed": seed, "candidate": candidate}
        for name, n, mu, seed in sorted(jobs(options), key=lambda job: (job[3], job[1]))
        if not options.only or name in options.only
        for candidate in tried(name, kind_of(name), shipped=options.shipped)
        if candidate["front_end"].startswith(options.front_end)
    )
    folders = Folders(options.data_root, options.tables, options.cache)
    workers = cells.workers_of(options)
    cells.measure(RESULTS, wanted, measured, folders, workers=workers, lines=lines)


if __name__ == "__main__":
    main()
