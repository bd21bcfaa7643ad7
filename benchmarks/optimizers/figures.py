"""Nasr et al.'s Figs. 2 to 5 and 7 from `curves.py`'s results: pictures and tables.

    2   final accuracy by epsilon, at equal steps and batches
    3   the best accuracy whose price is at most epsilon, over noise, steps and sampling probability
    4   accuracy along the training, at equal epsilon
    5   the same, with and without denoising
    7   the steps until an accuracy is reached, read off 4 (a table, no picture)

Every point is the mean over the seeds that all arms have. "epsilon needed" is the least price at
which an arm has dpsgd's best accuracy at epsilon 3: the paper says its own so. The best of Fig. 3
is chosen by the test images, as theirs is: a search that would cost epsilon.

Usage: python benchmarks/optimizers/figures.py [mnist] [--full] [--out DIR]
       python benchmarks/optimizers/figures.py mnist --batches 128 --arms dpsgd encoded-gaussian
           "encoded-student-t, denoised" "exact encoded-gaussian"
           "exact encoded-student-t, denoised"
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from curves import ARMS, BATCHES, EPSILONS, HERE, RESULTS
from pictures import draw_chart  # `run` has put its folder on the path

from pasearch.report.figures import Curve

OURS = ("encoded-gaussian, denoised", "encoded-student-t, denoised")
SHOWN = 3.0
LEVELS = (0.8, 0.84, 0.86, 0.88)
"""Accuracies of Fig. 7."""
THEIRS = {
    2: "MNIST .96 at epsilon 2.5 (dpsgd: 5); CIFAR-10 .555 at 3.6 (dpsgd: 5)",
    3: "MNIST .961 at epsilon 3.2 (dpsgd: 6); CIFAR-10 .55 at 3 (dpsgd: 4.2)",
    4: "no figures in the text: higher than dpsgd in the first iterations",
    5: "no figures in the text: a substantial gain",
}
Key = tuple[str, float, int]
"""Arm, epsilon of the whole training, batch."""


def read(options: argparse.Namespace) -> dict[Key, dict[str, Any]]:
    """Return every training, the mean over its seeds: those that all arms have."""
    asked = (options.data, options.full, "convolutional" if options.convolutional else None)
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    rows = [row for row in rows if (row["data"], row["full"], row.get("network")) == asked]
    rows = [row for row in rows if row["batch"] in options.batches and row["arm"] in options.arms]
    arms = {row["arm"] for row in rows}
    has: dict[tuple[float, int, int], set[str]] = defaultdict(set)
    for row in rows:
        has[row["epsilon"], row["batch"], row["seed"]].add(row["arm"])
    found: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if has[row["epsilon"], row["batch"], row["seed"]] == arms:
            found[row["arm"], row["epsilon"], row["batch"]].append(row)
    return {
        key: {
            "seeds": len(each),
            "steps": each[0]["steps"],
            "prices": each[0]["prices"],
            "accuracies": np.mean([row["accuracies"] for row in each], axis=0).tolist(),
        }
        for key, each in found.items()
    }


def finals(runs: dict[Key, dict[str, Any]], arm: str, batch: int) -> list[tuple[float, float]]:
    """Return (epsilon, final accuracy) at equal steps."""
    every = [(e, runs[arm, e, batch]) for e in EPSILONS if (arm, e, batch) in runs]
    return [(run["prices"][-1], run["accuracies"][-1]) for _, run in every]


def marks(runs: dict[Key, dict[str, Any]], arm: str) -> list[tuple[float, float]]:
    """Return (price, accuracy) at every mark of every training of an arm, by price."""
    return sorted(
        point
        for (name, _, _), run in runs.items()
        if name == arm
        for point in zip(run["prices"], run["accuracies"], strict=True)
    )


def best(runs: dict[Key, dict[str, Any]], arm: str) -> list[tuple[float, float]]:
    """Return (epsilon, the best accuracy that costs at most that)."""
    found = marks(runs, arm)
    grid = np.arange(min(EPSILONS), max(e for _, e, _ in runs) + 0.01, 0.5).tolist()
    tops = [(e, [a for price, a in found if price <= e]) for e in grid]
    return [(e, max(accuracies)) for e, accuracies in tops if accuracies]


def along(runs: dict[Key, dict[str, Any]], arm: str, batch: int) -> list[tuple[float, float]]:
    """Return (step, accuracy) along the training that costs `SHOWN`."""
    run = runs.get((arm, SHOWN, batch))
    return [] if run is None else list(zip(run["steps"], run["accuracies"], strict=True))


def print_table(number: int, across: str, curves: dict[str, list[tuple[float, float]]]) -> None:
    """Print a figure's curves in Markdown, at points that all have, and the paper's figures."""
    every = [{round(x, 1) for x, _ in points} for points in curves.values()]
    shared = sorted(set.intersection(*every))
    shared = shared[:: -max(1, len(shared) // 5)][::-1] if across == "step" else shared
    print(f"\nFig. {number}. Theirs: {THEIRS[number]}.\n")
    print(f"| {across} | " + " | ".join(f"{x:g}" for x in shared) + " |")
    print("|---|" + "---|" * len(shared))
    for name, points in curves.items():
        known = {round(x, 1): y for x, y in points}
        print(f"| {name} | " + " | ".join(f"{known[x]:.4f}" for x in shared) + " |")


def needed(runs: dict[Key, dict[str, Any]], arms: tuple[str, ...]) -> None:
    """Print the least price at which each arm has dpsgd's best accuracy at `SHOWN`."""
    target = dict(best(runs, "dpsgd"))[SHOWN]
    print(f"\n| arm | epsilon needed for {target:.4f} (dpsgd's best at {SHOWN:g}) |\n|---|---|")
    for arm in arms:
        prices = [price for price, accuracy in marks(runs, arm) if accuracy >= target]
        print(f"| {arm} | {f'{min(prices):.2f}' if prices else 'not reached'} |")


def print_convergence(runs: dict[Key, dict[str, Any]], arms: tuple[str, ...], batch: int) -> None:
    """Print Fig. 7: the first mark at which each arm has an accuracy, at equal epsilon."""
    print("\nFig. 7. Theirs: no figures in the text: fewer iterations than dpsgd.\n")
    print("| steps until | " + " | ".join(f"{level:g}" for level in LEVELS) + " |")
    print("|---|" + "---|" * len(LEVELS))
    for arm in arms:
        curve = along(runs, arm, batch)
        found = [min((step for step, each in curve if each >= x), default=None) for x in LEVELS]
        reached = ["-" if step is None else str(step) for step in found]
        print(f"| {arm} | " + " | ".join(reached) + " |")


def main() -> None:
    """Print the tables and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="mnist")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--convolutional", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    runs = read(options)
    arms = tuple(dict.fromkeys(arm for arm, _, _ in runs))
    # The batch with the most trainings, so that no figure compares what is half measured.
    batch = max(sorted({b for _, _, b in runs}), key=lambda b: sum(r[2] == b for r in runs))
    exact = "exact " * any(arm.startswith("exact ") for arm in arms)
    ours = tuple(exact + arm for arm in OURS)
    compared = ("dpsgd", "denoised-gaussian", *ours)
    pairs = (f"{exact}encoded-gaussian", ours[0], f"{exact}encoded-student-t", ours[1])
    drawn: dict[int, tuple[str, str, tuple[str, ...], Callable[[str], list]]] = {
        2: ("epsilon", "Final accuracy at equal steps", compared, lambda a: finals(runs, a, batch)),
        3: ("epsilon", "Best accuracy at most epsilon", compared, lambda a: best(runs, a)),
        4: ("step", f"Accuracy, epsilon {SHOWN:g}", compared, lambda a: along(runs, a, batch)),
        5: ("step", f"Accuracy, epsilon {SHOWN:g}", pairs, lambda a: along(runs, a, batch)),
    }
    settings = sorted({(e, b, run["seeds"]) for (_, e, b), run in runs.items()})
    print(f"{options.data}; figures 2, 4 and 5: batch {batch}; (epsilon, batch, seeds): {settings}")
    for number, (across, title, shown, points) in drawn.items():
        curves = {arm: found for arm in shown if (found := points(arm))}
        print_table(number, across, {a: f for a in arms if (f := points(a))})
        lines = [Curve(name=arm, points=tuple(found)) for arm, found in curves.items()]
        size = "-full" * options.full + "-convolutional" * options.convolutional
        size += f"-{batch}" * (options.batches != list(BATCHES))
        name = f"{options.data}{size}-fig{number}.svg"
        chart = draw_chart(f"Fig. {number}. {title}", (across, "accuracy"), lines)
        (options.out / name).write_text(f"{chart}\n")
    print_convergence(runs, arms, batch)
    needed(runs, arms)


if __name__ == "__main__":
    main()
