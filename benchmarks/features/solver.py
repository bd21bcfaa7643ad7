"""The batched solver of private logistic regression against a loop over diffprivlib.

Random subsets of half the features, and all features: of Breast Cancer's size (191 x 43) and
Adult's (22,750 x 108), encoded as the examples' schemas say. A round fits all subsets in one call
of `fit_many`, then some of them by `diffprivlib.models.LogisticRegression` with its own defaults,
one by one. The ratio is of times a fit in one round: of the processor, and of
the clock. diffprivlib stops at its own tolerance, and its intercept is not regularised (see
docs/guarantees/objective-perturbation.md): ours takes the steps to the minimiser. Its default
randomness is the operating system's; `--seeded` gives it numpy's, which is not private.

Usage: OMP_NUM_THREADS=1 python benchmarks/features/solver.py breast-cancer.csv adult.csv
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffprivlib.accountant import BudgetAccountant
from diffprivlib.models import LogisticRegression

from pasearch.data.sources import load_dataset
from pasearch.features.logistic import ObjectivePerturbation, fit_many
from pasearch.runs.keys import Keys

HERE = Path(__file__).parent
SIZES = {"breast-cancer": (191, 43, 300, 30), "adult": (22750, 108, 200, 3)}


def seconds(work: Any) -> tuple[float, float]:
    """Return the processor's and the clock's seconds of a call."""
    start = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - start[0], time.perf_counter() - start[1]


def main() -> None:
    """Measure, print, and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeded", action="store_true", help="diffprivlib with numpy's generator")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    threads = int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads()
    torch.set_num_threads(threads)
    for path in options.tables:
        schema = HERE.parents[1] / "examples" / f"{path.stem}.toml"
        data = load_dataset(str(path), schema=schema, public=True)
        n, d, many, few = SIZES[path.stem]
        records = data.all_records(None)
        x = records.x[:n, :d].numpy().astype(np.float64)
        y, valid = records.y[:n].numpy(), records.valid[:n].numpy()
        norm = float(np.sqrt((x**2).sum(axis=1).max()))
        for subsets in ("halves", "all"):
            masks = np.random.default_rng(1).random((many, d)) < 0.5
            masks |= subsets == "all"
            mechanism = ObjectivePerturbation(epsilon=options.epsilon, data_norm=norm)
            keys = Keys()
            streams = [keys.stream("fit", i) for i in range(many)]

            def ours(masks: Any = masks, streams: Any = streams, mechanism: Any = mechanism):
                given = [mechanism] * len(masks)
                fit_many(x, y, valid, masks, given, streams, device=options.device)  # noqa: B023

            def theirs(masks: Any = masks, norm: float = norm):
                for i, mask in enumerate(masks[:few]):  # noqa: B023
                    # An accountant of its own: the shared one takes longer with every fit.
                    model = LogisticRegression(
                        epsilon=options.epsilon, data_norm=norm, accountant=BudgetAccountant(),
                        random_state=i if options.seeded else None,
                    )  # fmt: skip
                    model.fit(x[:, mask], y)  # noqa: B023

            ours()
            theirs()
            rounds = []
            for _ in range(options.rounds):
                one, other = seconds(ours), seconds(theirs)
                rounds.append([t / many * 1e3 for t in one] + [t / few * 1e3 for t in other])
            each = np.array(rounds)
            row = {
                "date": date.today().isoformat(), "data": path.stem, "n": n, "d": d,
                "subsets": subsets, "models": many, "epsilon": options.epsilon,
                "threads": threads, "device": options.device,
                "seeded": options.seeded, "rounds": options.rounds,
                "load": round(os.getloadavg()[0], 1),
                "milliseconds a fit, processor": {
                    "ours": summary(each[:, 0]), "diffprivlib": summary(each[:, 2])
                },
                "times faster": {
                    "processor": summary(each[:, 2] / each[:, 0]),
                    "clock": summary(each[:, 3] / each[:, 1]),
                },
            }  # fmt: skip
            print(json.dumps(row))
            with (HERE / "results" / "solver.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")


def summary(values: Any) -> dict[str, float]:
    """Return the median, and the least and the most."""
    middle = statistics.median(values)
    found = {"median": middle, "low": min(values), "high": max(values)}
    return {name: round(float(value), 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
