"""Two choices of `pasearch features`, measured: centring and scaling, and when picking pays.

    view    Adult (UCI's split, the schema of examples/adult.toml), DP-SGD on all 211 features at
            one total: centred and scaled by bought means; centred alone; neither, where all of
            epsilon goes to the training and the best learning rate of five is to be quoted
    wide    4,000 records of 200 numbers in [0, 1], 5 of which matter (weights of 6 or -6), total
            epsilon 1: all of them, picks, CFS-Greedy, each a run of `select_features`

Accuracies are exact: on UCI's 16,281 test records, or on 20,000 further records. Noise is from a
seed. What `results/choices.jsonl` has is not measured again; a command prints its means.

Usage: python benchmarks/features/choices.py view --table adult.csv [--seeds 3]
       python benchmarks/features/choices.py wide [--seeds 4]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from setting import Array, cells, path_of, rows_of
from sklearn.metrics import roc_auc_score

from pasearch import Budget
from pasearch.accounting.calibration import calibrate_min
from pasearch.accounting.events import Gaussian
from pasearch.api.features import select_features
from pasearch.data.means import ROW_NORM, FeatureMeans
from pasearch.data.partitions import Records
from pasearch.data.sources import load_dataset
from pasearch.data.split import make_split
from pasearch.data.tables import AnySchema
from pasearch.features import trainers
from pasearch.features.plan import make_feature_plan
from pasearch.features.selector import make_choice
from pasearch.features.trainers import DpSgdTrainer
from pasearch.features.views import View
from pasearch.planning import PlanTerms
from pasearch.runs.keys import Keys

SCHEMA = Path(__file__).parents[2] / "examples" / "adult.toml"
TEST = 16_281
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
VIEWS = ("centred and scaled", "centred", *(f"neither, rate x {rate:g}" for rate in RATES))
WIDE: dict[str, dict[str, Any]] = {
    "all": {"method": "all"}, "10 picked": {"method": "top", "k": 10},
    "30 picked": {"method": "top", "k": 30}, "cfs-greedy": {"method": "cfs-greedy"},
}  # fmt: skip
RECORDS, FRESH, NUMBERS, MATTER, WEIGHT = 4_000, 20_000, 200, 5, 6.0


def view_of(arm: str, means: Array, length: float) -> View:
    """Return what a model sees: rows of root mean square norm `ROW_NORM` in every arm."""
    view = View.of(means)
    if arm == "centred and scaled":
        return view
    if arm == "centred":
        length = float(np.sqrt(np.sum(means * (1 - means))))
    shift = means if arm == "centred" else np.zeros_like(means)
    return replace(view, shift=shift, scale=np.full(len(means), ROW_NORM / length))


@cache
def adult(table: Path) -> tuple[AnySchema, Records]:
    """Return the schema of Adult, and its records."""
    data = load_dataset(str(table), schema=SCHEMA, public=True)
    return data.schema, data.all_records(None)


def measured(table: Path, data: str, arm: str, epsilon: float, seed: int) -> dict[str, float]:
    """Return how good an arm is."""
    found = viewed(table, arm, epsilon, seed) if data == "adult" else wide(arm, epsilon, seed)
    return {"repeats": 1} | {name: round(value, 5) for name, value in found.items()}


def viewed(table: Path, arm: str, epsilon: float, seed: int) -> dict[str, float]:
    """Adult, seen in one way."""
    (schema, every), keys = adult(table), Keys.from_seed(seed)
    order, bound = np.arange(len(every)), schema.row_bound
    train, test = every.take(order[:-TEST]), every.take(order[-TEST:])
    terms = PlanTerms(
        name="adult", schema=schema, public=True, budget=Budget(epsilon, 1e-5),
        split=make_split(len(every), scored=False, official_test=TEST),
    )  # fmt: skip
    plan = make_feature_plan(terms, choice=make_choice("all", trainer="dpsgd"))
    bought = FeatureMeans(noise_multiplier=plan.noise("feature means"), row_bound=bound)
    mu, rate = plan.noise("final training"), 1.0
    if arm.startswith("neither"):
        rate = float(arm.split()[-1])
        mu = 1 / calibrate_min(
            lambda sigma: Gaussian(noise_multiplier=sigma), Budget(epsilon, 1e-5), 0.02, 1e7
        )
    view = view_of(arm, bought.release(train, keys.stream("means")), bound)
    with rates_times(rate):
        model = DpSgdTrainer(outputs=2, regression=False, noise=mu).fit(
            train, view, keys.stream("fit", arm)
        )
    scores = model.compute_scores(test.x).numpy()
    margin, positive = scores[:, 1] - scores[:, 0], test.y.numpy() == 1
    return {
        "accuracy": float(np.mean((margin > 0) == positive)),
        "auc": float(roc_auc_score(positive, margin)),
    }


@contextmanager
def rates_times(factor: float) -> Iterator[None]:
    """Train linear models at so many times their learning rate."""
    given = trainers.make_linear_recipe

    def recipe(*args: Any) -> Any:
        own = given(*args)
        return replace(own, learning_rate=factor * (own.learning_rate or 0.0))

    trainers.make_linear_recipe = recipe
    try:
        yield
    finally:
        trainers.make_linear_recipe = given


def wide(arm: str, epsilon: float, seed: int) -> dict[str, float]:
    """Synthetic numbers, of which few matter."""
    generator = np.random.default_rng(seed)
    x = generator.random((RECORDS + FRESH, NUMBERS)).astype(np.float32)
    weights = np.zeros(NUMBERS)
    weights[:MATTER] = WEIGHT * generator.choice([-1, 1], MATTER)
    chances = 1 / (1 + np.exp(-(x - 0.5) @ weights))
    y = (generator.random(len(x)) < chances).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        model = select_features(
            (x[:RECORDS], y[:RECORDS]), budget=Budget(epsilon), out=f"{folder}/run",
            trainer="dpsgd", seed=seed, bounds=(0, 1), classes=2, split="0.6,0.1,0.3", **WIDE[arm],
        ).model  # fmt: skip
    right = (model.decision_function(x[RECORDS:]) > 0) == (y[RECORDS:] == 1)
    return {
        "accuracy": float(right.mean()),
        "best": float(np.maximum(chances, 1 - chances)[RECORDS:].mean()),
    }


def show() -> None:
    """Print the mean over seeds of each arm."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows_of("choices"):
        found.setdefault((row["data"], row["epsilon"], row["arm"]), []).append(row)
    for (data, epsilon, arm), rows in sorted(found.items()):
        values = [
            f"{name} {np.mean([row[name] for row in rows]):.4f}"
            for name in ("accuracy", "auc", "best") if name in rows[0]
        ]  # fmt: skip
        print(f"{data}, epsilon {epsilon:g}, {arm}: {', '.join(values)}, {len(rows)} seeds")


def main() -> None:
    """Run what the results lack, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("view", "wide"))
    parser.add_argument("--table", type=Path, default=Path("adult.csv"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float, default=7.0)
    cells.add_workers(parser)
    options = parser.parse_args()
    options.seeds = options.seeds or (3 if options.part == "view" else 4)
    seeds = range(options.seeds)
    if options.part == "view":
        asked = (
            {"data": "adult", "arm": arm, "epsilon": epsilon, "seed": seed}
            for seed in seeds for epsilon in (0.1, 1.0) for arm in VIEWS
        )  # fmt: skip
    else:
        asked = (
            {"data": "wide", "arm": arm, "epsilon": 1.0, "seed": seed}
            for seed in seeds for arm in WIDE
        )  # fmt: skip
    cells.measure(
        path_of("choices"), asked, measured, options.table, workers=cells.workers_of(options),
        minutes=options.minutes,
    )  # fmt: skip
    show()


if __name__ == "__main__":
    main()
