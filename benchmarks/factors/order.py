"""Lin et al.'s order of noise and clip on MNIST, trained until .97 is reached without noise.

    CA    clip each gradient, then add noise to their sum
    AC    add noise to each gradient, then clip it

`run.py` trains 60 steps, where the networks have learned little even without noise. Here the same
small convolutional network (13,354 parameters, images of half the side) is trained on all 60,000
images for 2,000 steps of 64 in expectation, 2.1 epochs, and tested on the official 10,000 images.
That is the shortest training found in which both optimizers reach .97 without noise. The paper
states neither steps nor learning rates, so the share of its steps is unknown.

sigma and C are the paper's. Two comparisons of the orders:

    shared rate   both orders have the rate that is best without noise: SGD .2, Adam .002
    own rate      each order with SGD has the best of the rates that were tried with another seed

AC divides a gradient by about sigma sqrt(parameters), here 58 at sigma .5. SGD at the shared rate
then moves 58 times more slowly. Adam does not depend on the scale.

Seeds are paired: one seed gives both orders the same weights and batches. The records are public,
and noise comes from a seed: not private. AC has no guarantee: its price is infinite.

Usage: python benchmarks/factors/order.py --data-root DIR
       python benchmarks/factors/order.py --data-root DIR --settings all
       python benchmarks/factors/order.py --table
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from run import (
    CLIPS,
    HERE,
    OPTIMIZERS,
    PILOT_SEED,
    SIGMAS,
    Cell,
    Line,
    Study,
    add_workers,
    measure,
    stored,
    workers_of,
)

RESULTS = HERE / "results" / "order.jsonl"
STEPS = 2000
SHARED_RATES = {"sgd": 0.2, "adam": 0.002}
TRIED_RATES = {"CA": (0.2, 0.8), "AC": (3.0, 12.0)}
"""Rates of SGD that are tried for each order, with `PILOT_SEED`."""
SETTINGS = ((0.5, 0.8), *(each for each in product(SIGMAS, CLIPS) if each != (0.5, 0.8)))
"""The paper's sigma and C; the first has the most noise for its C."""


class LongStudy(Study):
    """The small study on all images, for `STEPS` steps."""

    def __init__(self, device: str, data_root: str):
        super().__init__(False, device, data_root, "")
        self._steps, self._train, self._test = STEPS, None, None


def cell_of(optimizer: str, order: str, sigma: float | None, clip: float | None) -> Line:
    """Return a training's cell but for its rate and seed."""
    return {"optimizer": optimizer, "order": order, "sigma": sigma, "clip": clip}


def pilot_cells(sigma: float, clip: float) -> Iterator[Line]:
    """Return the trainings that find each order's own rate with SGD."""
    for order, rates in TRIED_RATES.items():
        for rate in rates:
            yield {**cell_of("sgd", order, sigma, clip), "rate": rate, "seed": PILOT_SEED}


def own_rate(lines: list[Line], order: str, sigma: float, clip: float) -> float | None:
    """Return the rate of SGD that was best with the pilot's seed; None if it is not measured."""
    of = {**cell_of("sgd", order, sigma, clip), "seed": PILOT_SEED}
    tried = [line for line in lines if all(line[k] == v for k, v in of.items())]
    return max(tried, key=lambda line: line["accuracy"])["rate"] if tried else None


def shared_cells(settings: Iterable[tuple[float, float]], seeds: int) -> Iterator[Line]:
    """Return the trainings without noise, then both orders at the shared rate."""
    orders = [("none", None, None)]
    orders += [(order, *setting) for setting in settings for order in ("CA", "AC")]
    for seed, order, optimizer in product(range(seeds), orders, OPTIMIZERS):
        yield {**cell_of(optimizer, *order), "rate": SHARED_RATES[optimizer], "seed": seed}


@lru_cache(maxsize=1)
def study_of(device: str, data_root: str) -> LongStudy:
    """Return the study, which keeps the images."""
    return LongStudy(device, data_root)


def measured(options: argparse.Namespace, rate: float, seed: int, **cell: Any) -> Line:
    """Train one cell."""
    bounding = None if cell["order"] == "none" else "flat"
    asked = Cell(data="mnist", network="cnn", bounding=bounding, **cell)
    return study_of(options.device, options.data_root).measure(asked, seed, rate, None)


def print_table(lines: list[Line]) -> None:
    """Print the accuracies, and the paired differences of the two orders, in Markdown."""
    runs: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for line in lines:
        if line["seed"] != PILOT_SEED:
            of = line["optimizer"], line["sigma"], line["clip"]
            runs[*of, line["order"], line["rate"]][line["seed"]] = line["accuracy"]
    print("| optimizer | sigma, C | order | rate | seeds | median (least to largest) |")
    print("|---|---|---|---|---|---|")
    for (optimizer, sigma, clip, order, rate), found in runs.items():
        each = sorted(found.values())
        print(
            f"| {optimizer} | {sigma}, {clip} | {order} | {rate:g} | {len(each)} | "
            f"{np.median(each):.3f} ({each[0]:.3f} to {each[-1]:.3f}) |"
        )
    print("\n| optimizer | sigma, C | rates | median of AC - CA | AC is ahead in |")
    print("|---|---|---|---|---|")
    for optimizer, setting in product(OPTIMIZERS, SETTINGS):
        shared = [SHARED_RATES[optimizer]] * 2
        own = [own_rate(lines, order, *setting) for order in ("CA", "AC")]
        for name, rates in (("shared", shared), ("own", own if optimizer == "sgd" else [None] * 2)):
            ca, ac = (
                runs.get((optimizer, *setting, order, rate), {})
                for order, rate in zip(("CA", "AC"), rates, strict=True)
            )
            gaps = [ac[seed] - ca[seed] for seed in sorted(set(ca) & set(ac))]
            if gaps:
                print(
                    f"| {optimizer} | {setting[0]}, {setting[1]} | {name} | {np.median(gaps):+.3f} "
                    f"| {sum(gap > 0 for gap in gaps)} of {len(gaps)} |"
                )


def main() -> None:
    """Run what the results lack, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", choices=("shared", "both"), default="both")
    parser.add_argument("--settings", choices=("first", "all"), default="first")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    add_workers(parser)
    options = parser.parse_args()
    settings = SETTINGS if options.settings == "all" else SETTINGS[:1]
    if not options.table:
        workers = workers_of(options)
        lines = measure(RESULTS, shared_cells(settings, options.seeds), measured, options,
                        workers=workers)  # fmt: skip
        for setting in settings if options.rates == "both" else ():
            lines = measure(RESULTS, pilot_cells(*setting), measured, options, workers=workers)
            tuned = (
                {**cell_of("sgd", order, *setting), "rate": rate, "seed": seed}
                for seed in range(options.seeds)
                for order in TRIED_RATES
                if (rate := own_rate(lines, order, *setting)) is not None
            )
            measure(RESULTS, tuned, measured, options, workers=workers)
    print_table(stored(RESULTS))


if __name__ == "__main__":
    main()
