"""Calibration of predicted probabilities: log loss and calibration error by temperature.

    python benchmarks/models/calibration.py --tables DIR                    # all cells, five seeds
    python benchmarks/models/calibration.py --tables DIR --arms features --epsilon 1 --seeds 2
    python benchmarks/models/calibration.py --print
    python benchmarks/models/calibration.py --tables DIR --clipping         # prints, stores nothing

    features    select_features(method="all")
    arch        search_architecture(strategy="fixed")

The classes are declared, everything else is estimated privately. Three tenths of a table are held
out before the run: nothing of them is released. Tables of more than 24,000 records are sampled;
with --records, training records are sampled too.

A line holds log loss and calibration error of one model at every temperature of a public grid. So
the constants of `pasearch.training.temperature` are fitted, and tested on tables that the fit has
not seen, without another training. The expected calibration error is of 15 bins of equal mass: of
the probability of the second of two classes, or of the largest of several. Lines that are there are
not run again.

--clipping trains the linear model of `features` on 7,000 public records with a clip of 1 and hardly
any noise, and with a clip that no gradient reaches, and prints the best temperature of each.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bins import HELD_OUT
from peers import CLASSES, frame_of
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.metrics import roc_auc_score

from pasearch import Budget, search_architecture, select_features
from pasearch.training import temperature

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "portfolio"))
import cells

RESULTS = Path(__file__).parent / "results" / "calibration.jsonl"
SMALL = {"breast-cancer": ("class", ()), "breast-cancer-wisconsin": ("class", ("id",))}
ARMS = ("features", "arch")
EPSILONS = (0.5, 1.0, 3.0)
BINS = 15
GRID = np.geomspace(0.5, 16.0, 51)
"""Temperatures of a line."""

Line = dict[str, Any]


def signal_of(recipe: Line, slots: int) -> float:
    """Return mu n of a training, by the central limit rule."""
    sigma, q = recipe["noise_multiplier"], recipe["sampling_probability"]
    return q * math.sqrt(recipe["steps"] * math.expm1(sigma**-2)) * slots


def calibration_error(chances: np.ndarray, y: np.ndarray) -> float:
    """Return the expected calibration error, in bins of equal mass."""
    two = chances.shape[1] == 2
    sure = chances[:, 1] if two else chances.max(1)
    right = y == 1 if two else chances.argmax(1) == y
    parts = np.array_split(np.argsort(sure, kind="stable"), BINS)
    gaps = [len(part) * abs(sure[part].mean() - right[part].mean()) for part in parts]
    return float(sum(gaps) / len(y))


def by_temperature(logits: np.ndarray, y: np.ndarray, shares: np.ndarray) -> Line:
    """Return what a line holds of one model.

    Args:
        logits: (records, classes), not divided by any temperature.
        y: (records,) classes by number.
        shares: (classes,) of the training records: the base rate.
    """
    at, losses, errors = np.arange(len(y)), [], []
    for each in GRID:
        logs = log_softmax(logits / each, axis=1)
        losses.append(round(float(-logs[at, y].mean()), 4))
        errors.append(round(calibration_error(np.exp(logs), y), 4))
    found: Line = {
        "classes": logits.shape[1],
        "base_rate": round(float(-np.log(shares[y]).mean()), 4),
        "accuracy": round(float((logits.argmax(1) == y).mean()), 4),
    }
    if logits.shape[1] == 2:
        found["auc"] = round(float(roc_auc_score(y, logits[:, 1] - logits[:, 0])), 4)
    return {**found, "log_loss": losses, "calibration_error": errors}


def measured(
    folder: Path, table: str, epsilon: float, arm: str, seed: int, records: int
) -> dict[str, Any]:
    """Train one model and return its losses on held-out records."""
    warnings.simplefilter("ignore")
    frame = frame_of(table, folder, TABLES)
    target = TABLES[table][0]
    held = frame.sample(frac=HELD_OUT, random_state=9)
    rest = frame.drop(held.index).reset_index(drop=True)
    if records:
        rest = rest.sample(min(records, len(rest)), random_state=seed).reset_index(drop=True)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        rest.to_csv(path / "t.csv", index=False)
        known = json.dumps(sorted(set(frame[target])))
        text = f"target = {target!r}\n[columns.{target}]\ncategories = {known}\n"
        (path / "schema.toml").write_text(text)
        given: Any = {
            "schema": path / "schema.toml", "budget": Budget(epsilon), "seed": seed,
            "out": path / "run", "device": "cpu",
        }  # fmt: skip
        if arm == "features":
            result = select_features(path / "t.csv", method="all", **given)
        else:
            result = search_architecture(path / "t.csv", strategy="fixed", **given)
        chances = np.asarray(result.predict_proba(held.drop(columns=[target])), np.float64)
    recipe, slots = result.document["recipe"], result.document["dataset"]["slots"]["train"]
    classes = [str(each) for each in result.classes_]
    y, own = (frame_of[target].map(classes.index).to_numpy() for frame_of in (held, rest))
    logits = np.log(chances.clip(1e-300)) * recipe.get("temperature", 1.0)
    shares = np.bincount(own, minlength=len(classes)) / len(own)
    signal = {"signal": round(signal_of(recipe, slots), 1)}
    return signal | by_temperature(logits, y, shares.clip(1e-9))


TABLES: dict[str, tuple[str, tuple[str, ...]]] = {**CLASSES, **SMALL}


def at(line: Line, divisor: float, name: str = "log_loss") -> float:
    """Return a measure of a line at a temperature, between two of the grid."""
    return float(np.interp(math.log(divisor), np.log(GRID), line[name]))


def fit(lines: Iterable[Line]) -> tuple[float, float]:
    """Return the excess of two classes and its decay that lose least against the best temperature.

    The mean over tables of the mean gap over a table's lines; strong signals alone.
    """
    by_table: dict[str, list[Line]] = {}
    for line in lines:
        if line["table"] in CLASSES and not line["records"]:
            by_table.setdefault(line["table"], []).append(line)

    def loss(values: np.ndarray) -> float:
        means = []
        for rows in by_table.values():
            gaps = [
                at(row, 1.0 + values[0] * (row["classes"] - 1) ** -values[1]) - min(row["log_loss"])
                for row in rows
            ]
            means.append(np.mean(gaps))
        return float(np.mean(means))

    best = minimize(loss, [1.0, 0.8], method="Nelder-Mead", options={"xatol": 1e-3}).x
    return float(best[0]), float(best[1])


def shipped(line: Line) -> float:
    """Return the temperature that the package has for a line's model."""
    return temperature.compute_temperature(line["classes"], line["signal"])


def left_out(line: Line, fits: dict[str, tuple[float, float]]) -> float:
    """Return the temperature of a line's model by a fit without its table."""
    excess, decay = fits[line["table"]]
    own = 1.0 + temperature.TWO_CLASS_EXCESS * (line["classes"] - 1) ** -temperature.EXCESS_DECAY
    return shipped(line) / own * (1.0 + excess * (line["classes"] - 1) ** -decay)


def show() -> None:
    """Print the fit, one row a table, arm and epsilon, and what was asked for."""
    lines = [line for line in cells.stored(RESULTS) if not line["records"]]
    excess, decay = fit(lines)
    print(f"Fitted on all tables of 5,000 records or more: excess {excess:.2f}, decay {decay:.2f}.")
    fits = {name: fit(line for line in lines if line["table"] != name) for name in TABLES}
    head = (
        "table", "epsilon", "arm", "seeds", "accuracy", "AUC", "base rate", "undivided",
        "log loss", "best", "temperature", "calibration error",
    )  # fmt: skip
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    errors: dict[str, list[float]] = {}
    medians: list[float] = []
    worst: dict[str, float] = {"gap": -math.inf, "large": -math.inf, "small": -math.inf}
    keys = dict.fromkeys((each["table"], each["epsilon"], each["arm"]) for each in lines)
    for name, epsilon, arm in sorted(keys, key=lambda key: (key[2], [*TABLES].index(key[0]), *key)):
        rows = [r for r in lines if (r["table"], r["epsilon"], r["arm"]) == (name, epsilon, arm)]
        divisors = [left_out(row, fits) for row in rows]
        losses = [at(row, each) for row, each in zip(rows, divisors, strict=True)]
        own = [at(r, t, "calibration_error") for r, t in zip(rows, divisors, strict=True)]
        for row, loss in zip(rows, losses, strict=True):
            size = "small" if name in SMALL else "large"
            worst[size] = max(worst[size], loss - row["base_rate"])
            if size == "large":
                worst["gap"] = max(worst["gap"], loss - min(row["log_loss"]))
        if name not in SMALL:
            errors.setdefault(name, []).extend(own)
        middle = statistics.median
        if name in SMALL:
            over = [loss - row["base_rate"] for row, loss in zip(rows, losses, strict=True)]
            medians.append(middle(over))
        shown = [
            name, f"{epsilon:g}", arm, str(len(rows)), f"{middle(r['accuracy'] for r in rows):.3f}",
            f"{middle(r['auc'] for r in rows):.3f}" if "auc" in rows[0] else "",
            f"{middle(r['base_rate'] for r in rows):.3f}", f"{middle(at(r, 1) for r in rows):.3f}",
            f"{middle(losses):.3f}", f"{middle(min(r['log_loss']) for r in rows):.3f}",
            f"{middle(divisors):.2f}", f"{middle(own):.3f}",
        ]  # fmt: skip
        print("| " + " | ".join(shown) + " |")
    error = statistics.median(statistics.median(each) for each in errors.values())
    print(
        f"5,000 records or more: log loss is below the base rate's by {-worst['large']:.3f} or more"
    )
    print(f"  and above that of the best temperature by {worst['gap']:.3f} or less;")
    print(f"  median over tables of the calibration error {error:.3f}.")
    print(
        f"Smaller tables: log loss less the base rate's is {max(medians):+.3f} or less as a median "
        f"over seeds, and {worst['small']:+.3f} or less in any run."
    )


def clipping(folder: Path) -> None:
    """Print the best temperature with and without an effective clip, hardly any noise in either."""
    import torch
    from run import Folders, loaded

    from pasearch.runs.keys import Keys
    from pasearch.search.candidate_training import train_candidate, training_streams
    from pasearch.spaces.candidate import Candidate
    from pasearch.training.clipping import FlatClipping
    from pasearch.training.settings import make_full_batch_settings, make_linear_recipe

    linear: Line = {
        "front_end": "centred",
        "layers": [],
        "settings": dict(make_full_batch_settings(False)),
    }
    candidate = Candidate.from_json(linear)
    for name in ("bank-churn", "magic", "eeg-eye-state"):
        data = loaded(name, Folders("", str(folder), str(folder)))
        slots = data.head[:7000]
        front = data.front(candidate, slots, 1e4, 0)
        test, schema = data.records(data.test, front), data.dataset.schema
        recipe = replace(make_linear_recipe(len(slots), 0.3, False), noise_multiplier=1e-6)
        assert recipe.learning_rate is not None
        loose = {
            "bounding": FlatClipping(clip_norm=1e3), "noise_multiplier": 1e-9,
            "learning_rate": recipe.learning_rate / 5,  # larger gradients: a rate that converges
        }  # fmt: skip
        for clip, own in ((1.0, recipe), (1e3, replace(recipe, **loose))):
            streams = training_streams(Keys.from_seed(0).stream("clipping"))
            records = data.records(slots, front)
            network = train_candidate(candidate, records, schema, own, streams, device="cpu")
            with torch.no_grad():
                logits = network.eval()(test.x).double().numpy()[test.valid.numpy()]
            y = test.y.numpy()[test.valid.numpy()].astype(int)
            losses = by_temperature(logits, y, np.full(schema.outputs, 0.5))["log_loss"]
            best = GRID[int(np.argmin(losses))]
            print(f"{name}: clip {clip:g}: best temperature {best:.2f}, log loss {min(losses):.3f}")


def main() -> None:
    """Run what is asked for and not there, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TABLES)}; all if none is given")
    parser.add_argument("--tables", type=Path, help="the folder of the .csv files")
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--records", type=int, default=0, help="training records; 0: all")
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--clipping", action="store_true", help="what a clip does, without noise")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.clipping:
        clipping(asked.tables)
        return
    if asked.only_print:
        show()
        return
    asked_for = (
        {"table": name, "epsilon": epsilon, "arm": arm, "seed": seed, "records": asked.records}
        for epsilon in asked.epsilon
        for seed in range(1, asked.seeds + 1)
        for arm in asked.arms
        for name in asked.names or TABLES
    )
    cells.measure(RESULTS, asked_for, measured, asked.tables, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
