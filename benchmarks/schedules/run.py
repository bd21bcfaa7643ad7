"""Noise that falls from epoch to epoch: Yu et al.'s Table II and Cancer experiment, priced soundly.

Their settings: reshuffled batches of 600, a norm of 4 for the gradient of every layer, learning
rate .05, sigma 16 for the 60 principal components, rho .78125 for the training, sigma_0 10 for the
schedules. Training ends when rho is spent. Beside each schedule stands the uniform noise that lasts
as many epochs, and training without noise.

Two things differ in the price. Two layers clipped at 4 each have the sensitivity 4 sqrt(2), so
noise of 4 sigma has the multiplier sigma / sqrt(2): the sound rho is twice theirs. And the
principal components, which they leave out, are charged. Both prices are in each line.

The records are public: accuracies are exact, on the official test images (Cancer: on 123 records
held out). Validation: 5,000 training images, as theirs, which are taken as public.

Usage: python benchmarks/schedules/run.py mnist --data-root DIR --seeds 1
       python benchmarks/schedules/run.py cancer --table breast-cancer-wisconsin.csv --seeds 5
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from zcdp import epochs_within, epsilon_of_rho, uniform_noise

from pasearch.accounting.accountants import price
from pasearch.accounting.events import Composition, Event, Gaussian, SelfComposition
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import Records, SealedArray
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Dense
from pasearch.training.clipping import PerLayerClipping
from pasearch.training.recipe import Recipe
from pasearch.training.schedules import (
    ExponentialDecay,
    PolynomialDecay,
    StepDecay,
    TimeDecay,
    UniformSchedule,
    ValidationSchedule,
)
from pasearch.training.trainer import Training

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "runs.jsonl"
DELTA, PCA_NOISE, CLIP = 1e-5, 16.0, 4.0
STUDIES: dict[str, dict[str, Any]] = {
    "mnist": {
        "rho": 0.78125, "uniform": 8.0, "batch": 600, "held": 5000, "rate": 0.05,
        "schedules": {
            "time": (10.0, TimeDecay(rate=0.05)),
            "step": (10.0, StepDecay(rate=0.6, period=10)),
            "exponential": (10.0, ExponentialDecay(rate=0.01)),
            "polynomial": (10.0, PolynomialDecay(power=3.0, end=0.2, period=100)),
        },
        "validation": (10.0, ValidationSchedule(rate=0.7, threshold=0.01, average=5, period=10)),
        "layers": (1000,),
    },
    "cancer": {
        "rho": 0.4, "uniform": 25.0, "batch": 560, "held": 100, "rate": 0.05,
        "schedules": {"exponential": (30.0, ExponentialDecay(rate=0.001))},
        "validation": (35.0, ValidationSchedule(rate=0.99, threshold=0.01, average=1, period=50)),
        "layers": (10, 20, 10),
    },
}  # fmt: skip


def mnist(data_root: str, seed: int) -> tuple[Records, Records]:
    """Return 60 noisy principal components of the training and of the test images."""
    data = load_dataset("mnist", data_root=data_root, public=True)
    x, y = (np.asarray(SealedArray(each)._array) for each in (data.features, data.labels))
    images = torch.from_numpy(x.astype(np.float32) / 255.0)
    valid = torch.ones(60_000, dtype=torch.bool)
    stream = Keys.from_seed(seed).stream("pca")
    fitted = parse_front_end("pca:60").fit(images[:60_000], valid, PCA_NOISE, stream)
    with torch.no_grad():
        seen = fitted.module(images)
    return _records(seen[:60_000], y[:60_000]), _records(seen[60_000:], y[60_000:])


def cancer(table: str | None, seed: int) -> tuple[Records, Records]:
    """Return 560 training and 123 test records of Breast Cancer (Wisconsin), scaled to [0, 1]."""
    if table is None:
        raise SystemExit("This study reads a file: give breast-cancer-wisconsin.csv, --table CSV.")
    with Path(table).open(newline="") as file:
        rows = [row for row in list(csv.reader(file))[1:] if "?" not in row and "" not in row]
    cells = np.array([row[1:] for row in rows], float)
    order = np.random.default_rng(seed).permutation(len(cells))
    x, y = (cells[order, :-1] - 1.0) / 9.0, (cells[order, -1] == 4).astype(int)
    made = torch.from_numpy(x.astype(np.float32))
    return _records(made[:560], y[:560]), _records(made[560:], y[560:])


def _records(x: torch.Tensor, y: np.ndarray) -> Records:
    valid = torch.ones(len(x), dtype=torch.bool)
    return Records(x=x, y=torch.from_numpy(y.astype(np.int64)), valid=valid, public=True)


def accuracy(network: nn.Module, records: Records) -> float:
    """Return the share of right answers."""
    network.eval()
    with torch.no_grad():
        right = (network(records.x).argmax(dim=1) == records.y).float().mean()
    network.train()
    return float(right)


def trained(
    study: dict[str, Any], sigma: float | None, schedule: Any, epochs: int,
    data: tuple[Records, Records], seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Train one arm until rho is spent; return its accuracies and prices."""
    train, test = data
    watched, held = isinstance(schedule, ValidationSchedule), test
    if watched:
        held = test if len(test) < 1000 else train.take(np.arange(len(train))[-study["held"] :])
        train = train if held is test else train.take(np.arange(len(train))[: -study["held"]])
    layers = tuple(Dense(units=units, activation="relu") for units in study["layers"])
    keys = Keys.from_seed(seed)
    network = Architecture(layers=layers).build(
        tuple(train.x.shape[1:]), 2 if study is STUDIES["cancer"] else 10,
        keys.stream("weights").generator(),
    )  # fmt: skip
    count = len(layers) + 1
    batch = min(study["batch"], len(train))
    per_epoch = math.ceil(len(train) / batch)
    recipe = Recipe(
        expected_batch_size=batch, steps=epochs * per_epoch, learning_rate=study["rate"],
        noise_multiplier=None if sigma is None else sigma / math.sqrt(count),
        batching="reshuffled", optimizer="sgd", average=None,
        bounding=None if sigma is None else PerLayerClipping(clip_norms=(CLIP,) * count),
        schedule=UniformSchedule() if watched else schedule,
    )  # fmt: skip
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
    training = Training(network, train, recipe, streams)
    spent, events, made = 0.0, [], 0
    state = schedule.start() if watched else None
    for epoch in range(epochs):
        factor = state.factor if state is not None else schedule.factor(epoch)
        if sigma is not None:
            now = 0.5 / (sigma * factor) ** 2
            if spent + now > study["rho"] * (1 + 1e-9):
                break
            spent += now
            events.append(Gaussian(sigma * factor / math.sqrt(count)))
            if watched:
                training._recipe = replace(recipe, noise_multiplier=events[-1].noise_multiplier)
        for _ in range(per_epoch):
            training.step()
        made += 1
        if state is not None:
            state = state.tell(accuracy(network, held))
    return {
        "epochs": made,
        "test": round(accuracy(network, test), 4),
        "train": round(accuracy(network, train), 4),
        **_prices(events, spent, study),
    }


def _prices(events: list[Gaussian], rho: float, study: dict[str, Any]) -> dict[str, float | None]:
    """Return the sound price, principal components included, and the paper's own figure."""
    if not events:
        return {"sound": None, "claimed": None}
    counts: dict[Gaussian, int] = {}
    for event in events:
        counts[event] = counts.get(event, 0) + 1
    every: list[Event] = [SelfComposition(event, count) for event, count in counts.items()]
    if study is STUDIES["mnist"]:
        every.append(Gaussian(PCA_NOISE))
    sound = price(Composition(tuple(every)), DELTA).epsilon
    return {"sound": round(sound, 3), "claimed": round(epsilon_of_rho(rho, DELTA), 3)}


def arms(study: dict[str, Any]) -> dict[str, tuple[float | None, Any, int]]:
    """Return each arm's sigma, schedule and epochs."""
    rho = study["rho"]

    def lasts(sigma: float, schedule: Any) -> int:
        return epochs_within(schedule, noise_multiplier=sigma, rho=rho)

    found: dict[str, tuple[float | None, Any, int]] = {
        "uniform": (study["uniform"], UniformSchedule(), lasts(study["uniform"], UniformSchedule()))
    }
    for name, (sigma, schedule) in study["schedules"].items():
        epochs = lasts(sigma, schedule)
        found[name] = (sigma, schedule, epochs)
        same = uniform_noise(rho=rho, epochs=epochs)
        found[f"uniform, the epochs of {name}"] = (same, UniformSchedule(), epochs)
        found[f"no noise, the epochs of {name}"] = (None, UniformSchedule(), epochs)
    sigma, schedule = study["validation"]
    found["validation"] = (sigma, schedule, lasts(sigma, UniformSchedule()))
    found["no noise, the epochs of uniform"] = (None, UniformSchedule(), found["uniform"][2])
    return found


@lru_cache(maxsize=1)
def records(study: str, data_root: str, table: str | None, seed: int) -> tuple[Records, Records]:
    """Return a study's training and test records."""
    return mnist(data_root, seed) if study == "mnist" else cancer(table, seed)


def measured(options: argparse.Namespace, study: str, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm."""
    data = records(study, options.data_root, options.table, seed)
    sigma, schedule, epochs = arms(STUDIES[study])[arm]
    start = time.perf_counter()
    found = trained(STUDIES[study], sigma, schedule, epochs, data, seed)
    return {"sigma": sigma, **found, "seconds": round(time.perf_counter() - start, 1)}


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--table")
    parser.add_argument("--seeds", type=int, default=5)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"study": options.study, "arm": arm, "seed": seed}
        for seed in range(options.seeds)
        for arm in arms(STUDIES[options.study])
    )
    cells.measure(RESULTS, asked, measured, options, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
