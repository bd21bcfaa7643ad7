"""Bao et al.'s Tables XIV and XV: absolute error of deep and wide networks on Medical Cost.

2, 6 and 12 layers of 10 to 120 ReLU units; 1,000 training and 300 test records (IV-A); 6 inputs, as
the printed numbers of parameters say (a category is its index); the target divided by $64,000.
DP-SGD at epsilon .95 (delta 1e-4, PLD) and SGD, both without momentum, batches of 100 in
expectation, mean squared error. The paper states no batch, steps, rate or repeats. Ours: 1,000
steps; SGD at a rate of .1, and DP-SGD at .01 and at .03, because the order of the networks depends
on the rate.

The records are public: errors are exact.

Usage: python benchmarks/crossover/regression.py TABLE [--seeds 5] [--workers N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.layers import Dense
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import train

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "regression.jsonl"
DEPTHS, WIDTHS = (2, 6, 12), (10, 30, 60, 120)
RATES = {"dp-sgd": (0.01, 0.03), "sgd": (0.1,)}
MAX_CHARGE = 64_000.0
PAPER = {
    "dp-sgd": {2: (0.123, 0.124, 0.132, 0.151), 6: (0.098, 0.109, 0.133, 0.333),
               12: (0.139, 0.103, 0.136, 0.721)},
    "sgd": {2: (0.08, 0.074, 0.07, 0.068), 6: (0.074, 0.068, 0.064, 0.063),
            12: (0.154, 0.073, 0.063, 0.067)},
}  # fmt: skip


@lru_cache(maxsize=1)
def encode_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Encode features, (1338, 6), by bounds that everybody knows, and targets in [0, 1]."""
    table = pd.read_csv(path)
    numbers = table[["age", "bmi", "children"]].to_numpy() / [64.0, 54.0, 5.0]
    categories = [pd.Categorical(table[name]).codes for name in ("sex", "smoker", "region")]
    categories = np.stack(categories, axis=1) / [1.0, 1.0, 3.0]
    x = np.concatenate([numbers, categories], axis=1).astype(np.float32)
    return x, (table["charges"].to_numpy() / MAX_CHARGE).clip(0, 1).astype(np.float32)


@lru_cache(maxsize=2)
def make_recipe(optimizer: str, rate: float) -> Recipe:
    """Return the training of an arm."""
    recipe = Recipe(
        expected_batch_size=100, steps=1000, optimizer="sgd", average=None, learning_rate=rate,
        bounding=None if optimizer == "sgd" else FlatClipping(clip_norm=1.0),
    )  # fmt: skip
    if optimizer == "sgd":
        return recipe
    noise = calibration.calibrate_min(
        lambda sigma: recipe.with_noise(sigma).event(1000), Budget(0.95, 1e-4), 1e-2, 1e4
    )
    return recipe.with_noise(noise)


def measure_error(
    options: argparse.Namespace, optimizer: str, depth: int, width: int, rate: float, seed: int
) -> dict[str, Any]:
    """Train a network on one split; return its mean absolute error on the test records."""
    start = time.perf_counter()
    x, y = (torch.from_numpy(each) for each in encode_table(options.table))
    order = np.random.default_rng(seed).permutation(len(y))[:1300]
    own, held = (
        Records(x=x[rows], y=y[rows], valid=torch.ones(len(rows), dtype=torch.bool), public=True)
        for rows in (order[:1000], order[1000:])
    )
    keys, recipe = Keys.from_seed(seed), make_recipe(optimizer, rate)
    architecture = Architecture(layers=(Dense(units=width, activation="relu"),) * depth)
    network = architecture.build((x.shape[1],), 1, keys.stream("weights").generator())
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
    train(network, own, recipe, streams)
    with torch.no_grad():
        error = float((network(held.x)[:, 0] - held.y).abs().nan_to_num(nan=1.0).mean())
    return {
        "error": round(error, 4), "parameters": sum(p.numel() for p in network.parameters()),
        "sigma": recipe.noise_multiplier, "steps": recipe.steps,
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def print_tables(lines: list[dict[str, Any]]) -> None:
    """Print the tables: medians over seeds with the range, the paper's errors in brackets."""
    errors = defaultdict(list)
    for line in lines:
        key = line["optimizer"], line["rate"], line["depth"], line["width"]
        errors[key].append(line["error"])
    for name, rate in ((name, rate) for name, rates in RATES.items() for rate in rates):
        print(f"\n| {name}, rate {rate}: layers | {' | '.join(f'{w} units' for w in WIDTHS)} |")
        print("|---|" + "---|" * len(WIDTHS))
        for depth, theirs in PAPER[name].items():
            texts = [
                f"{np.median(each):.3f} ({min(each):.3f} to {max(each):.3f}) [{paper:g}]"
                if (each := errors[name, rate, depth, width]) else "-"
                for width, paper in zip(WIDTHS, theirs, strict=True)
            ]  # fmt: skip
            print(f"| {depth} | " + " | ".join(texts) + " |")


def main() -> None:
    """Measure what the results lack, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"optimizer": name, "depth": depth, "width": width, "rate": rate, "seed": seed}
        for seed, depth, width, name in product(range(options.seeds), DEPTHS, WIDTHS, RATES)
        for rate in RATES[name]
    )
    workers = cells.workers_of(options)
    print_tables(cells.measure(RESULTS, asked, measure_error, options, workers=workers))


if __name__ == "__main__":
    main()
