"""Table XVII: how much longer a step of DP-SGD takes than one of SGD.

The paper's four networks at batch 100 on grey images of 32 x 32 (CIFAR-10 in grey for SVHN), one
thread, steps of both interleaved; the ratio is the median of 15 pairs of 20 steps, with quartiles.

Usage: python benchmarks/crossover/times.py
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import torch
from run import Arm, cnn, dense

from pasearch.data.partitions import Records
from pasearch.data.threads import use_threads
from pasearch.runs.keys import Keys
from pasearch.spaces.architecture import Architecture
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training

RESULTS = Path(__file__).parent / "results" / "times.jsonl"
BATCH, STEPS, PAIRS = 100, 20, 15
NETWORKS = {
    "CNN": (Arm(layers=cnn(48, 512)), 19.0), "CNN, simple": (Arm(layers=cnn(16, 512)), 24.5),
    "FCN": (Arm(layers=dense(512, 128), components=300), 31.92),
    "FCN, simple": (Arm(layers=dense(128), components=300), 37.06),
}  # fmt: skip
"""With the paper's ratio of times an epoch."""


def training(arm: Arm, *, private: bool) -> tuple[Training, int]:
    """Return a training on made-up records of the right shape, and its network's size."""
    shape = (arm.components,) if arm.components else (1, 32, 32)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((2000, *shape), generator=generator)
    y = torch.randint(10, (2000,), generator=generator)
    own = Records(x=x, y=y, valid=torch.ones(2000, dtype=torch.bool), public=True)
    keys = Keys.from_seed(0)
    network = Architecture(layers=arm.layers).build(shape, 10, keys.stream("weights").generator())
    recipe = Recipe(
        expected_batch_size=BATCH, steps=10_000, learning_rate=0.01, optimizer="sgd", average=None,
        bounding=None,
    )  # fmt: skip
    if private:
        recipe = replace(recipe, bounding=FlatClipping(clip_norm=1.0)).with_noise(2.0)
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
    size = sum(each.numel() for each in network.parameters())
    return Training(network, own, recipe, streams), size


def seconds(made: Training) -> float:
    """Return how long some steps take."""
    start = time.perf_counter()
    for _ in range(STEPS):
        made.step()
    return time.perf_counter() - start


def main() -> None:
    """Measure all four, and print them."""
    rows = []
    with use_threads(1):
        for name, (arm, paper) in NETWORKS.items():
            (private, size), (plain, _) = (training(arm, private=each) for each in (True, False))
            for each in (private, plain):
                seconds(each)
            ratios = [seconds(private) / seconds(plain) for _ in range(PAIRS)]
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).round(2).tolist()
            row = {"network": name, "parameters": size, "ratio": middle, "low": low, "high": high}
            rows.append({**row, "paper": paper, "date": date.today().isoformat()})
            print(f"| {name} | {size:,} | {middle} ({low}, {high}) | {paper} |")
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
