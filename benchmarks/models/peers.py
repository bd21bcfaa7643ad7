"""Models of tables against private peers, nothing declared: accuracy or error on held-out records.

    python benchmarks/models/peers.py --tables DIR                      # epsilon 1, five seeds
    python benchmarks/models/peers.py --tables DIR --epsilon .5 1 3
    python benchmarks/models/peers.py --print

    features      select_features(method="all")
    arch          search_architecture(strategy="fixed")
    diffprivlib   its logistic, or linear, regression on numbers scaled by their range and one
                  indicator a category: ranges and categories are read without privacy
    opacus        a hidden layer of 64 tanh units on the same records as diffprivlib, 20 epochs of
                  batches of 512, clip 1; the best of three learning rates by accuracy on the
                  training records, chosen without privacy
    dp-ebm        interpret's DPExplainableBoosting: ranges are read without privacy
    adassp        BoostedAdaSSP (Tang et al. 2023) on the same records as diffprivlib, of numbers to
                  predict: noisy second moments once, then 30 rounds of noisy moments with residuals
    no privacy    interpret's ExplainableBoosting without interactions: an additive model

Ours estimate everything privately and pay for it, and for a test score that the peers do not
release; the peers are given ranges and categories. Three tenths of a table are held out before the
run: nothing of them is released. Tables of more than 24,000 records are sampled. A line a table,
epsilon, arm and seed; lines that are there are not run again. Needs `pip install interpret-core`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from bins import HELD_OUT, numbers_of
from sklearn.metrics import roc_auc_score

from pasearch import Budget, search_architecture, select_features

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "peers.jsonl"
MOST = 24_000
CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "adult": ("income", ()),
    "bank-churn": ("Exited", ("RowNumber", "CustomerId", "Surname")),
    "bank-marketing": ("subscribed", ()),
    "eeg-eye-state": ("Class", ()),
    "letter": ("class", ()),
    "magic": ("class", ("ID",)),
    "nursery": ("class", ()),
    "online-shoppers": ("Revenue", ()),
}
NUMBERS = {"california-housing": "medianHouseValue", "fried": "Y", "house8L": "price"}
TABLES = {**CLASSES, **{name: (target, ()) for name, target in NUMBERS.items()}}
MANY = ("letter", "nursery")
"""Of more than two classes, which are declared; dp-ebm is for two, or a number."""

ARMS = ("features", "arch", "diffprivlib", "opacus", "dp-ebm", "adassp", "no privacy")
RATES, EPOCHS, BATCH = (0.1, 0.5, 2.0), 20, 512
"""Of opacus."""
ROUNDS, RESIDUAL = 30, 0.5
"""Of adassp: its rounds, and where residuals are cut, as a share of the target's width."""


def frame_of(name: str, folder: Path, tables: dict[str, Any] | None = None) -> pd.DataFrame:
    """Return a table without missing cells, at most `MOST` records of it.

    `tables` maps names to the target and the columns that are left out; None takes `TABLES`.
    """
    target, ignored = (tables or TABLES)[name]
    frame = pd.read_csv(folder / f"{name}.csv", na_values=["?", ""], keep_default_na=False)
    frame = frame.drop(columns=list(ignored)).dropna()
    if name not in NUMBERS:
        frame[target] = frame[target].astype(str)
    return frame.sample(min(MOST, len(frame)), random_state=0).reset_index(drop=True)


def scores(truth: np.ndarray, answers: np.ndarray, sure: np.ndarray | None) -> dict[str, float]:
    """Return accuracy, and the area under the curve of two classes."""
    found = {"accuracy": float((answers.astype(str) == truth).mean())}
    if sure is not None:
        found["auc"] = float(roc_auc_score(truth == max(truth), sure))
    return found


def ours(arm: str, rest: pd.DataFrame, held: pd.DataFrame, name: str, epsilon: float, seed: int):
    """Return predictions, and how sure they are of the last of two classes."""
    target = TABLES[name][0]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        rest.to_csv(path / f"{name}.csv", index=False)
        given: dict[str, Any] = {
            "target": target, "budget": Budget(epsilon), "seed": seed, "out": path / "run",
            "device": "cpu", "regression": name in NUMBERS,
            "force": True,  # small tables at small epsilons are part of the comparison
        }  # fmt: skip
        if name in MANY:
            known = json.dumps(sorted(set(rest[target])))
            text = f"target = {target!r}\n[columns.{target}]\ncategories = {known}\n"
            (path / "schema.toml").write_text(text)
            given |= {"schema": path / "schema.toml", "target": None}
        if arm == "features":
            result = select_features(path / f"{name}.csv", method="all", **given)
        else:
            result = search_architecture(path / f"{name}.csv", strategy="fixed", **given)
        records = held.drop(columns=[target])
        answers = np.asarray(result.predict(records))
        sure = None
        if name not in NUMBERS and held[target].nunique() == 2:
            chances = np.asarray(result.predict_proba(records))
            sure = chances[:, -1]
        return answers, sure


def encoded(rest: pd.DataFrame, held: pd.DataFrame, target: str):
    """Return both as numbers in [0, 1] and indicators, and how long a row can be."""
    numbers = numbers_of(rest, target)
    parts: list[list[np.ndarray]] = [[], []]
    norm = 0.0
    for column in (each for each in rest.columns if each != target):
        norm += 1.0
        if column in numbers:
            low, high = float(rest[column].min()), float(rest[column].max())
            for part, frame in zip(parts, (rest, held), strict=True):
                values = frame[column].to_numpy(float)
                part.append(np.clip((values - low) / max(high - low, 1e-12), 0, 1)[:, None])
        else:
            known = sorted(set(map(str, rest[column])))
            for part, frame in zip(parts, (rest, held), strict=True):
                part.append((frame[column].astype(str).to_numpy()[:, None] == known).astype(float))
    return np.concatenate(parts[0], 1), np.concatenate(parts[1], 1), float(np.sqrt(norm))


def opacus(
    x: np.ndarray, y: np.ndarray, seen: np.ndarray, epsilon: float, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return answers, and how sure they are of the last of two classes; a number is float."""
    import torch
    from opacus import PrivacyEngine

    number = y.dtype.kind == "f"
    classes, codes = (
        (np.empty(0), (y - y.min()) / np.ptp(y)) if number else np.unique(y, return_inverse=True)
    )
    given, wanted = torch.tensor(x, dtype=torch.float32), torch.tensor(codes)
    tried = []
    for rate in RATES:
        torch.manual_seed(seed)
        network: Any = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], 64), torch.nn.Tanh(),
            torch.nn.Linear(64, 1 if number else len(classes)),
        )  # fmt: skip
        loss = torch.nn.functional.cross_entropy
        if number:
            wanted, loss = wanted.float().reshape(-1, 1), torch.nn.functional.mse_loss
        records = torch.utils.data.TensorDataset(given, wanted)
        made: Any = PrivacyEngine().make_private_with_epsilon(
            module=network, optimizer=torch.optim.SGD(network.parameters(), lr=rate),
            data_loader=torch.utils.data.DataLoader(records, batch_size=BATCH), epochs=EPOCHS,
            target_epsilon=epsilon, target_delta=1e-5, max_grad_norm=1.0,
        )  # fmt: skip
        network, optimizer, loader = made
        for _ in range(EPOCHS):
            for part, answers in loader:
                optimizer.zero_grad()
                loss(network(part), answers).backward()
                optimizer.step()
        network.eval()
        with torch.no_grad():
            own, out = network(given), network(torch.tensor(seen, dtype=torch.float32))
        right = -(own - wanted).abs().mean() if number else (own.argmax(1) == wanted).float().mean()
        tried.append((float(right), out))
    out = max(tried, key=lambda each: each[0])[1]
    if number:
        return out[:, 0].numpy().astype(float) * np.ptp(y) + y.min(), None
    sure = out.softmax(1)[:, -1].numpy() if len(classes) == 2 else None
    return classes[out.argmax(1).numpy()], sure


def adassp(
    x: np.ndarray, y: np.ndarray, seen: np.ndarray, norm: float, epsilon: float, seed: int
) -> np.ndarray:
    """Return predictions of BoostedAdaSSP: ridge regression on noisy moments, its residual again.

    Gaussian mechanisms of mu / sqrt 3 each: the least eigenvalue, X'X, and all rounds of X'r.
    """
    from pasearch.accounting import calibration
    from pasearch.accounting.events import Gaussian

    sigma = calibration.calibrate_min(
        lambda value: Gaussian(noise_multiplier=value), Budget(epsilon, 1e-5), 0.02, 1e7
    )
    part, draw = sigma * np.sqrt(3), np.random.default_rng(seed)
    rows, new = (np.concatenate([each, np.ones((len(each), 1))], 1) / norm for each in (x, seen))
    rows, new = (each / np.sqrt(1 + 1 / norm**2) for each in (rows, new))  # of norm 1 at most
    low, width = y.min(), np.ptp(y)
    aim, d = (y - low) / width - 0.5, rows.shape[1]
    spread = np.sqrt(d * np.log(2 * d**2 / 0.05)) * part
    noise = draw.standard_normal((d, d))
    moments = rows.T @ rows + part * (np.triu(noise) + np.triu(noise, 1).T)
    least = np.linalg.eigvalsh(rows.T @ rows)[0] + part * (draw.standard_normal() - 1.96)
    ridge = moments + max(0.0, spread - max(0.0, least)) * np.eye(d)
    weights = np.zeros(d)
    for _ in range(ROUNDS):
        residual = np.clip(aim - rows @ weights, -RESIDUAL, RESIDUAL)
        noisy = draw.standard_normal(d) * part * np.sqrt(ROUNDS) * RESIDUAL
        weights += np.linalg.solve(ridge, rows.T @ residual + noisy)
    return (new @ weights + 0.5) * width + low


def peer(arm: str, rest: pd.DataFrame, held: pd.DataFrame, name: str, epsilon: float, seed: int):
    """Return what a peer predicts, as `ours` does."""
    target, number = TABLES[name][0], name in NUMBERS
    y = rest[target].to_numpy(float) if number else rest[target].to_numpy(str)
    two = not number and len(set(y)) == 2
    if arm == "diffprivlib":
        from diffprivlib.models import LinearRegression, LogisticRegression

        x, seen, norm = encoded(rest, held, target)
        if number:
            model: Any = LinearRegression(
                epsilon=epsilon, bounds_X=(0.0, 1.0), bounds_y=(y.min(), y.max()),
                random_state=seed,
            ).fit(x, y)  # fmt: skip
        else:
            model = LogisticRegression(
                epsilon=epsilon, data_norm=norm, max_iter=500, random_state=seed
            ).fit(x, y)
        return model.predict(seen), model.predict_proba(seen)[:, 1] if two else None
    if arm == "opacus":
        x, seen, _ = encoded(rest, held, target)
        return opacus(x, y, seen, epsilon, seed)
    if arm == "adassp":
        x, seen, norm = encoded(rest, held, target)
        return adassp(x, y, seen, norm, epsilon, seed), None
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    records = rest.drop(columns=[target])
    if arm == "dp-ebm":
        kind: Any = DPExplainableBoostingRegressor if number else DPExplainableBoostingClassifier
        # random_state None: a fixed one would make its noise reproducible, and it warns of that.
        model = kind(epsilon=epsilon, delta=1e-5, random_state=seed)
    else:
        kind = ExplainableBoostingRegressor if number else ExplainableBoostingClassifier
        model = kind(interactions=0, random_state=seed, n_jobs=1)
    model.fit(records, y)
    seen = held.drop(columns=[target])
    return model.predict(seen), model.predict_proba(seen)[:, 1] if two else None


def measured(folder: Path, table: str, epsilon: float, arm: str, seed: int) -> dict[str, float]:
    """Return what an arm reaches on held-out records, rounded."""
    warnings.simplefilter("ignore")
    found = reached(frame_of(table, folder), table, arm, epsilon, seed)
    return {key: round(value, 5) for key, value in found.items()}


def reached(
    frame: pd.DataFrame, name: str, arm: str, epsilon: float, seed: int
) -> dict[str, float]:
    """Return what an arm reaches on held-out records."""
    target = TABLES[name][0]
    held = frame.sample(frac=HELD_OUT, random_state=9)
    rest = frame.drop(held.index).reset_index(drop=True)
    by = ours if arm in ("features", "arch") else peer
    answers, sure = by(arm, rest, held, name, epsilon, seed)
    if name in NUMBERS:
        truth, width = held[target].to_numpy(float), np.ptp(rest[target].to_numpy(float))
        error = np.abs(
            np.clip(answers.astype(float), rest[target].min(), rest[target].max()) - truth
        )
        return {"mae": float(error.mean() / width)}
    return scores(held[target].to_numpy(str), np.asarray(answers).astype(str), sure)


def show() -> None:
    """Print medians over seeds with their range, a row a table, epsilon and measure."""
    print("| table | epsilon | | " + " | ".join(ARMS) + " |\n|---|---|---|" + "---|" * len(ARMS))
    rows = cells.stored(RESULTS)
    for name, epsilon in dict.fromkeys((each["table"], each["epsilon"]) for each in rows):
        here = [r for r in rows if (r["table"], r["epsilon"]) == (name, epsilon)]
        for measure in ("accuracy", "auc", "mae"):
            shown = []
            for arm in ARMS:
                found = [r[measure] for r in here if r["arm"] == arm and measure in r]
                span = f" ({min(found):.3f}, {max(found):.3f})" if len(found) > 1 else ""
                shown.append(f"{statistics.median(found):.3f}{span}" if found else "")
            if any(shown):
                print(f"| {name} | {epsilon:g} | {measure} | " + " | ".join(shown) + " |")


def main() -> None:
    """Run what is asked for and not there, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TABLES)}; all if none is given")
    parser.add_argument("--tables", type=Path, help="the folder of the .csv files")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    asked_for = (
        {"table": name, "epsilon": epsilon, "arm": arm, "seed": seed}
        for epsilon in asked.epsilon
        for seed in range(1, asked.seeds + 1)
        for name in asked.names or TABLES
        for arm in asked.arms
        if (arm != ARMS[-1] or seed == 1)
        and (arm != "dp-ebm" or name not in MANY)
        and (arm != "adassp" or name in NUMBERS)
    )
    cells.measure(RESULTS, asked_for, measured, asked.tables, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
