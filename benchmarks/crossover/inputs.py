"""Table III and Fig. 5: one task whose ten numbers are given as 10, 50, 100, 500 or 1000 inputs.

Ten numbers, uniform in [0, 1]; the label says whether their sum is above 5. Each number is divided
into equal inputs that add up to it, so that every size has the same best model, and the same
accuracy without noise. One layer, one output, logistic loss: the optimum is unique. The paper names
neither n, nor the batch, nor the learning rate: here 20,000 records, all of them at every step (the
least noise for a price), 50 steps as its 50 epochs, and the best of a grid of learning rates by the
mean over repeats of a seed of their own, for each size and each of the two trainings, as theirs.

    SGD       without noise and without clipping
    DP-SGD    each record's gradient clipped to 1, noise for epsilon .0355

SGD starts at 0, so all inputs of one number have the same weight: it is trained on the numbers, for
1,000 steps with momentum. The cosine distance is that of DP-SGD's weights to SGD's last ones,
intercepts left out, after the first step and after each tenth.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cells
import numpy as np
from scipy.special import expit

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Gaussian, SelfComposition
from pasearch.runs.keys import Keys

SIZES, NUMBERS = (1000, 500, 100, 50, 10), 10
EPSILON, DELTA, STEPS = 0.0355, 1e-5, 50
RECORDS, HELD = 20_000, 5_000
RATES = tuple(2.0**power for power in range(-2, 6))
PAPER = {1000: 0.5975, 500: 0.672, 100: 0.8445, 50: 0.8485, 10: 0.858}

Array = np.ndarray[Any, Any]


def made_up(generator: np.random.Generator, size: int, count: int) -> tuple[Array, Array]:
    """Return inputs (count, size) and labels (count,)."""
    numbers = generator.random((count, NUMBERS))
    parts = size // NUMBERS
    return np.repeat(numbers / parts, parts, axis=1), numbers.sum(axis=1) > NUMBERS / 2


def best_of(x: Array, y: Array) -> Array:
    """Return weights and intercept by SGD without privacy, (size + 1,); x: the ten numbers."""
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    weights, speed = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for _ in range(1000):
        speed = 0.9 * speed + rows.T @ (expit(rows @ weights) - y) / len(rows)
        weights = weights - 2.0 * speed
    return weights


def trained(x: Array, y: Array, rate: float, sigma: float, noise: np.random.Generator) -> Array:
    """Return weights and intercept by DP-SGD after every step, (steps, size + 1)."""
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float32)
    lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
    weights, path = np.zeros(rows.shape[1]), np.empty((STEPS, rows.shape[1]))
    for step in range(STEPS):
        residual = expit(rows @ weights.astype(np.float32)) - y
        residual *= np.minimum(1.0, 1.0 / np.maximum(np.abs(residual) * lengths, 1e-30))
        total = rows.T @ residual.astype(np.float32) + noise.normal(scale=sigma, size=len(weights))
        weights = weights - rate / len(rows) * total
        path[step] = weights
    return path


def accuracy(weights: Array, x: Array, y: Array) -> float:
    """Return the share of right answers."""
    return float(((x @ weights[:-1] + weights[-1] > 0) == y).mean())


def distance(weights: Array, best: Array) -> float:
    """Return the cosine distance of two models."""
    a, b = weights[:-1], best[:-1]
    return float(1.0 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def tuned(sigma: float, size: int) -> dict[str, float]:
    """Return the best learning rate of a size: by the mean of three repeats of another seed."""
    found = {}
    for rate in RATES:
        every = []
        for seed in range(3):
            draw = Keys.from_seed(10_000 + seed).stream("inputs", size).generator()
            x, y = made_up(draw, size, RECORDS)
            held = made_up(draw, size, HELD)
            every.append(accuracy(trained(x, y, rate, sigma, draw)[-1], *held))
        found[rate] = float(np.mean(every))
    return {"rate": max(found, key=found.__getitem__)}


def measured(
    given: tuple[float, dict[str, float]], study: str, arm: str, seed: int
) -> dict[str, Any]:
    """Train on so many inputs, with privacy and without, at the arm's learning rate."""
    (sigma, rates), size = given, size_of(arm)
    rate, parts = rates[arm], size // NUMBERS
    start = time.perf_counter()
    draw = Keys.from_seed(seed).stream("inputs", size).generator()
    x, y = made_up(draw, size, RECORDS)
    held = made_up(draw, size, HELD)
    found = best_of(x[:, ::parts] * parts, y)
    best = np.append(np.repeat(found[:-1], parts), found[-1])
    path = trained(x, y, rate, sigma, draw)
    return {
        "epsilon": EPSILON, "sigma": round(sigma, 2), "rate": rate, "sgd": accuracy(best, *held),
        "test": accuracy(path[-1], *held), "paper": PAPER[size],
        "distance": [round(distance(path[s - 1], best), 4) for s in (1, *range(10, 51, 10))],
        "seconds": round(time.perf_counter() - start, 2),
    }  # fmt: skip


def size_of(arm: str) -> int:
    """Return how many inputs an arm has."""
    return int(arm.split()[0])


def main(options: argparse.Namespace, results: Path) -> None:
    """Run what the results lack."""
    asked = [
        {"study": "table-iii", "arm": f"{size} inputs", "seed": seed}
        for size in SIZES
        for seed in range(options.seeds or 20)
    ]
    left = cells.open_cells(asked, cells.stored(results))
    workers, arms = cells.workers_of(options), list(dict.fromkeys(cell["arm"] for cell in left))
    sigma = calibration.calibrate_min(
        lambda noise: SelfComposition(Gaussian(noise), STEPS), Budget(EPSILON, DELTA), 1.0, 1e6
    )
    sizes = [{"size": size_of(arm)} for arm in arms]
    best = cells.side_by_side(sizes, tuned, sigma, workers=workers)
    rates = {f"{cell['size']} inputs": found["rate"] for cell, found in best}
    given, minutes = (sigma, rates), options.minutes
    cells.measure(results, left, measured, given, workers=workers, minutes=minutes)
