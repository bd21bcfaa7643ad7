"""How long PAFS takes with 600 sets a generation and ten generations, as in the paper's IX-B.

    search    the sets, their private fits (`Trainer.fit_many`: objective perturbation, a generation
              in one call) and their exact points on held records; nothing is charged
    plan      pricing such a run: `plan_feature_selection`
    whole     `select_features`: plan, a charge on disk for every fit and every score, report

Breast Cancer: 191 records to train, 95 held; Adult: 22,750 and 9,750. The paper states 9 hours on
its own machine for about 2,300 fits; ours are up to 6,000, of which each different set is made
once. Seconds of the processor and of the clock: they differ where others use the machine.

Usage: OMP_NUM_THREADS=1 python benchmarks/features/speed.py breast-cancer.csv --rounds 5
       ... speed.py adult.csv --rounds 1
       ... speed.py breast-cancer.csv --whole
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from setting import RESULTS

from pasearch import Budget
from pasearch.api.features import plan_feature_selection, select_features
from pasearch.data.sources import load_dataset
from pasearch.features.evolution import find_unseen, label_masks, look_up_fitness
from pasearch.features.trainers import ObjectiveTrainer, count_for_models
from pasearch.features.wrappers import PrivacyAwareFeatureSelection
from pasearch.runs.keys import Keys
from pasearch.training.metrics import METRICS

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"breast-cancer": (191, 95), "adult": (22_750, 9_750)}
POPULATION, GENERATIONS = 600, 10
THEIRS = 9 * 3600


def search(records: Any, held: Any, means: Any, epsilon: float, generations: int, seed: int) -> int:
    """Run the search; return how many models it trained."""
    evolution = PrivacyAwareFeatureSelection(population=POPULATION).evolution
    keys, generator = Keys.from_seed(seed), np.random.default_rng(seed)
    trainer = ObjectiveTrainer(outputs=2, regression=False, noise=epsilon)
    generation, known = evolution.first_generation(len(means), generator), {}
    for number in range(generations):
        if number:
            generation = evolution.tell(
                generation, look_up_fitness(generation.masks, known), generator
            )
        masks = generation.masks[find_unseen(generation.masks, known)]
        streams = [keys.stream("fit", len(known) + each) for each in range(len(masks))]
        models = trainer.fit_many(records, means, masks, streams)
        scores = (float(each) for (each,) in count_for_models(models, held, METRICS["accuracy"]))
        known.update(zip(label_masks(masks), scores, strict=True))
    return len(known)


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return what a call returns, and the processor's and the clock's seconds."""
    start = time.process_time(), time.perf_counter()
    found = work()
    return found, time.process_time() - start[0], time.perf_counter() - start[1]


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the least and the most."""
    return {
        "median": round(statistics.median(values), 2),
        "low": round(min(values), 2),
        "high": round(max(values), 2),
    }


def main() -> None:
    """Measure, print, and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--generations", type=int, default=GENERATIONS)
    parser.add_argument("--whole", action="store_true", help="the command too, for epsilon 20")
    options = parser.parse_args()
    name = options.table.stem
    schema = EXAMPLES / f"{name}.toml"
    every = load_dataset(str(options.table), schema=schema, public=True).all_records(None)
    train, held = SIZES[name]
    order = np.random.default_rng(0).permutation(train + held)
    parts = every.take(order[:train]), every.take(order[train:])
    means = parts[0].x.double().mean(dim=0).clamp(0.0, 1.0).numpy()

    row: dict[str, Any] = {
        "date": date.today().isoformat(), "data": name, "features": len(means), "records": train,
        "epsilon of a fit": options.epsilon, "k": POPULATION, "l": options.generations,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }  # fmt: skip

    def report(what: str, found: list[tuple[Any, float, float]], **more: Any) -> None:
        clock, processor = ([each[i] for each in found] for i in (2, 1))
        made = {**row, **more, "what": what, "rounds": len(found), "clock": spread(clock)}
        made |= {"processor": spread(processor), "load": round(os.getloadavg()[0], 1)}
        made["9 hours / processor"] = round(THEIRS / statistics.median(processor))
        print(json.dumps(made))
        with (RESULTS / "speed.jsonl").open("a") as file:
            file.write(json.dumps(made) + "\n")

    if options.whole:
        asked: dict[str, Any] = {
            "budget": Budget(20.0), "schema": schema, "method": "pafs", "trainer": "objective",
            "population": POPULATION, "generations": options.generations, "seed": 1,
        }  # fmt: skip
        data = str(options.table)
        report("plan", [timed(lambda: plan_feature_selection(data, **asked))])
        with tempfile.TemporaryDirectory() as folder:
            report("whole", [timed(lambda: select_features(data, out=f"{folder}/run", **asked))])
        return
    told = (means, options.epsilon, options.generations)
    search(parts[0].take(np.arange(100)), parts[1], *told, 99)
    found = [
        timed(lambda: search(*parts, *told, seed))  # noqa: B023 - called at once
        for seed in range(options.rounds)
    ]
    report("search", found, trained=[each[0] for each in found])


if __name__ == "__main__":
    main()
