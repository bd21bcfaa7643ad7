"""Nasr et al.'s Figs. 2 to 5: encoding, Student-t noise and denoising along a training, priced.

An arm is trained by noise that a whole training may cost epsilon with; its exact accuracy on the
official test images is taken along the way, and so is the sound price of the steps so far. One line
holds one such training, so all four figures are read off the same lines: `figures.py` draws them.

The network, the images and the learning rate are those of `run.py`: small, unless --full. The
images are public and the price is of the gradients alone. Two sampling probabilities each: 500
steps of 512 records in expectation, and of 2,048. Noise comes from a seed: not private.

`--convolutional` trains the convolutional network of `--full` on the images of the small study.
The arms named "exact" encode by Algorithm 2 as printed; the others use the faster approximation,
whose vectors have .92 of its norm. Batches of 128 make "exact" affordable on a CPU.

Usage: python benchmarks/optimizers/curves.py mnist --data-root DIR --seeds 2
       python benchmarks/optimizers/curves.py mnist --data-root DIR --seeds 3 --batches 128
           --epsilons 3                 # then --convolutional
       python benchmarks/optimizers/curves.py cifar10_jpeg75.npz --full --seeds 5 --device cuda
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run import HERE, SMALL, cells, network
from torch import nn

from pasearch import Budget
from pasearch.accounting import calibration
from pasearch.accounting.accountants import price
from pasearch.accounting.events import SelfComposition
from pasearch.data.partitions import Records, SealedArray
from pasearch.data.sources import load_dataset
from pasearch.runs.keys import Keys
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.training.presets import read_recipe, resolve_preset
from pasearch.training.recipe import Recipe, make_default_recipe, tune_learning_rate
from pasearch.training.trainer import start_training

RESULTS = HERE / "results" / "curves.jsonl"
DELTA, MARKS = 1e-5, 20
EPSILONS = (1.0, 2.0, 3.0, 6.0)
BATCHES, STEPS = (512, 2048), 500

ARMS: dict[str, dict[str, Any]] = {
    "dpsgd": {"preset": "dpsgd"},
    "denoised-gaussian": {"preset": "denoised-gaussian"},
    "denoised-gaussian, weight as printed": {"preset": "dpsgd", "denoising": {"relative": False}},
    "encoded-gaussian": {"preset": "encoded-gaussian"},
    "encoded-student-t": {"preset": "encoded-student-t"},
    "encoded-gaussian, denoised": {"preset": "encoded-gaussian", "denoising": {}},
    "encoded-student-t, denoised": {"preset": "encoded-student-t", "denoising": {}},
}
"""Their framework is the last two. By default a weight is divided by its mean so far."""
ENCODED = {"name": "encoded", "clip_norm": 1.0, "exact": True}
ARMS |= {
    f"exact {arm}": {**values, "bounding": ENCODED}
    for arm, values in list(ARMS.items())
    if arm.startswith("encoded")
}
"""The paper's Algorithm 2, by sorting every gradient: about 50 times slower on a CPU."""


@lru_cache(maxsize=1)
def records(
    name: str, root: str, full: bool, convolutional: bool = False
) -> tuple[Candidate, Records, Records]:
    """Return what is trained, and the training and the test images behind its front end."""
    said = {} if name.endswith(".npz") else {"data_root": root}
    data = load_dataset(name, public=True, **said)
    candidate = read_candidate(network(name_of(name).lower(), full or convolutional))
    test = data.official_test or 10_000
    train = data.n - test if full else SMALL
    x, y = (np.asarray(SealedArray(each)._array) for each in (data.features, data.labels))
    before = candidate.front_end.module(tuple(x.shape[1:]))
    valid = torch.ones(data.n, dtype=torch.bool)

    def part(which: slice) -> Records:
        seen = before(torch.from_numpy(x[which].astype(np.float32) / 255.0))
        classes = torch.from_numpy(y[which].astype(np.int64))
        return Records(x=seen, y=classes, valid=valid[which], public=True)

    return candidate, part(slice(train)), part(slice(data.n - test, None))


def name_of(data: str) -> str:
    """Return what the results call a data set."""
    return "CIFAR-10 (JPEG q75)" if data.endswith(".npz") else data


@cache
def solved(arm: str, n: int, batch: int, dimension: int, epsilon: float) -> Recipe:
    """Return the arm's recipe with the noise that all steps cost epsilon with."""
    plain = make_default_recipe(
        n, batch=batch, steps=STEPS, **resolve_preset(read_recipe(ARMS[arm]))
    )

    def noised(mu: float) -> Recipe:
        return plain.with_noise(plain.compute_noise_multiplier_for_mu(mu, n))

    budget = Budget(epsilon, DELTA)
    mu = calibration.calibrate_max(lambda mu: noised(mu).event(n, dimension), budget, 1e-3, 1e2)
    return replace(noised(mu), learning_rate=tune_learning_rate(noised(mu), mu, n))


@cache
def price_of(release: Any, steps: int) -> float:
    """Return epsilon of so many steps."""
    return price(SelfComposition(release, steps), DELTA).epsilon


def accuracy(model: nn.Module, test: Records, device: str) -> float:
    """Return the share of right answers."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(x.to(device)).argmax(dim=1) == y.to(device)).sum())
            for x, y in zip(test.x.split(2500), test.y.split(2500), strict=True)
        )
    model.train()
    return right / len(test.y)


def trained(
    options: argparse.Namespace, arm: str, epsilon: float, batch: int, seed: int, **_: Any
) -> dict[str, Any]:
    """Train once; return the accuracy and the price at every mark."""
    candidate, train, test = records(
        options.data, options.data_root, options.full, options.convolutional
    )
    keys = Keys.from_seed(seed)
    shape, n = tuple(train.x.shape[1:]), len(train.y)
    model = candidate.architecture.build(shape, 10, keys.stream("weights").generator())
    dimension = candidate.architecture.parameters(shape, 10)[1]
    recipe = solved(arm, n, batch, dimension, epsilon)
    sigma, rate = recipe.noise_multiplier, recipe.learning_rate
    assert sigma is not None
    assert rate is not None
    recipe = replace(recipe, learning_rate=rate * candidate.learning_rate_factor())
    release = recipe.release(n, sigma, dimension)
    streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
    start = time.process_time()
    training = start_training(model, train, recipe, streams, device=options.device)
    found = []
    for step in range(1, STEPS + 1):
        training.step()
        if step % (STEPS // MARKS) == 0:
            found.append((step, round(accuracy(model, test, options.device), 4)))
    return {
        "device": options.device,
        "n": n,
        "noise_multiplier": sigma,
        "learning_rate": recipe.learning_rate,
        "steps": [step for step, _ in found],
        "prices": [round(price_of(release, step), 4) for step, _ in found],
        "accuracies": [each for _, each in found],
        "processor_seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Run what the results lack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--convolutional", action="store_true")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    cells.add_workers(parser)
    options = parser.parse_args()
    asked = (
        {"data": name_of(options.data), "full": options.full, "arm": arm, "epsilon": epsilon,
         "batch": batch, "seed": seed,
         "network": "convolutional" if options.convolutional and not options.full else None}
        for seed in range(options.seeds)
        for batch in options.batches
        for epsilon in options.epsilons
        for arm in options.arms
    )  # fmt: skip
    cells.measure(options.out, asked, trained, options, workers=cells.workers_of(options))


if __name__ == "__main__":
    main()
