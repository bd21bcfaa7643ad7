"""What bins at estimated quantiles are worth: `features --method all` with three kinds of bins.

    python benchmarks/models/bins.py --tables DIR                 # all tables, epsilon 1, 5 seeds
    python benchmarks/models/bins.py lognormal --epsilon .5 1 3
    python benchmarks/models/bins.py --print

    equal       ten bins of equal width between privately estimated bounds
    quantiles   the default: bounds and bins privately estimated, within the same price
    known       ten bins at quantiles of all training records, taken without privacy and declared
    no privacy  logistic regression on the bins of `known`, by scikit-learn

A third of each table is held out before the run, and accuracy on it is exact: nothing of it is
released. Above 24,000 records a sample is taken. A line a table, epsilon, arm and seed; lines that
are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from pasearch import Budget, select_features

sys.path.append(str(Path(__file__).parents[1]))
import cells

RESULTS = Path(__file__).parent / "results" / "bins.jsonl"
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lognormal": ("y", ()),
    "magic": ("class", ("ID",)),
    "adult": ("income", ()),
    "online-shoppers": ("Revenue", ()),
    "bank-churn": ("Exited", ("RowNumber", "CustomerId", "Surname")),
    "eeg-eye-state": ("Class", ()),
}
ARMS = ("equal", "quantiles", "known", "no privacy")
MOST, HELD_OUT, BINS = 24_000, 0.3, 10


def lognormal(records: int = 15_000) -> pd.DataFrame:
    """Five heavy-tailed columns, of scales from .1 to 400; the last bends, one of them twice."""
    draw = np.random.default_rng(0)
    normal = draw.standard_normal((records, 5))
    columns = np.exp(normal * [1.0, 1.5, 2.0, 0.7, 2.5] + [0.0, 3.0, 6.0, -2.0, 4.0])
    a, b, c, d, e = normal.T
    logit = 1.2 * a - b + 1.5 * np.tanh(2 * c) + 0.8 * (np.abs(d) - 0.8) + 0.5 * e
    right = draw.random(records) < 1 / (1 + np.exp(-logit))
    return pd.DataFrame(columns, columns=list("abcde")).assign(y=np.where(right, "yes", "no"))


def frame_of(name: str, folder: Path | None) -> pd.DataFrame:
    """Return a table without missing cells, at most `MOST` records of it."""
    if name == "lognormal":
        return lognormal()
    if folder is None:
        raise SystemExit(f"{name} is a file: give its folder, --tables DIR.")
    frame = pd.read_csv(folder / f"{name}.csv", na_values=["?", ""], keep_default_na=False)
    frame = frame.drop(columns=list(TABLES[name][1])).dropna()
    return frame.sample(min(MOST, len(frame)), random_state=0).reset_index(drop=True)


def numbers_of(frame: pd.DataFrame, target: str) -> list[str]:
    """Return the columns that hold numbers."""
    return [c for c in frame.columns if c != target and frame[c].dtype.kind in "if"]


def known_bins(frame: pd.DataFrame, target: str) -> dict[str, tuple[float, float, list[float]]]:
    """Return (low, high, edges) of every number, read from the records."""
    found = {}
    for column in numbers_of(frame, target):
        values = frame[column].to_numpy(float)
        low, high = float(values.min()), float(values.max())
        edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
        found[column] = (low, high, [float(each) for each in edges if low < each < high])
    return found


def schema_of(frame: pd.DataFrame, target: str, arm: str) -> str:
    """Return what is declared, as TOML: of `equal` the number of bins, of `known` everything."""
    lines = ['name = "table"', f"target = {json.dumps(target)}"]
    known = known_bins(frame, target)
    for column in frame.columns:
        lines.append(f"[columns.{json.dumps(column)}]")
        if column in known and arm == "known":
            low, high, edges = known[column]
            lines += ['kind = "number"', f"low = {low!r}", f"high = {high!r}", f"bins = {edges!r}"]
        elif column in known:
            lines += ['kind = "number"', f"bins = {BINS}"]
        else:
            lines.append('kind = "category"')
            if arm == "known":
                values = sorted({str(each).strip() for each in frame[column]})
                lines.append(f"categories = {json.dumps(values)}")
    return "\n".join(lines) + "\n"


def one_hot(frame: pd.DataFrame, known: dict[str, Any], target: str) -> np.ndarray:
    """Return bins and categories as indicators, (rows, indicators)."""
    parts = []
    for column in (each for each in frame.columns if each != target):
        if column in known:
            places = np.searchsorted(known[column][2], frame[column].to_numpy(float), side="right")
            parts.append(np.eye(BINS + 1)[places])
        else:
            values = sorted(set(map(str, frame[column])))
            parts.append(np.array([[v == str(cell) for v in values] for cell in frame[column]]))
    return np.concatenate(parts, axis=1)


def accuracy(frame: pd.DataFrame, name: str, arm: str, epsilon: float, seed: int) -> float:
    """Return the accuracy on held-out records of a model trained on the others."""
    target = TABLES[name][0]
    held = frame.sample(frac=HELD_OUT, random_state=9)
    rest = frame.drop(held.index).reset_index(drop=True)
    truth = held[target].astype(str).to_numpy()
    if arm == "no privacy":
        known = known_bins(rest, target)
        whole = one_hot(pd.concat([rest, held]), known, target)
        model = LogisticRegression(max_iter=2000).fit(whole[: len(rest)], rest[target].astype(str))
        return float((model.predict(whole[len(rest) :]) == truth).mean())
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        rest.to_csv(path / "table.csv", index=False)
        options: dict[str, Any] = {}
        if arm != "quantiles":
            (path / "schema.toml").write_text(schema_of(rest, target, arm))
            options["schema"] = path / "schema.toml"
        result = select_features(
            path / "table.csv", target=target, budget=Budget(epsilon), method="all", seed=seed,
            out=path / "run", device="cpu", **options,
        )  # fmt: skip
        found = np.asarray(result.predict(held.drop(columns=[target]))).astype(str)
    return float((found == truth).mean())


def measured(
    folder: Path | None, table: str, epsilon: float, arm: str, seed: int
) -> dict[str, float]:
    """Return the accuracy of an arm, and of how many records the table is."""
    frame = frame_of(table, folder)
    right = accuracy(frame, table, arm, epsilon, seed)
    return {"records": len(frame), "accuracy": round(right, 5)}


def show() -> None:
    """Print medians and ranges over seeds, a row a table and epsilon."""
    print(
        "| table | epsilon | seeds | " + " | ".join(ARMS) + " |\n|---|---|---|" + "---|" * len(ARMS)
    )
    rows = cells.stored(RESULTS)
    for name, epsilon in dict.fromkeys((each["table"], each["epsilon"]) for each in rows):
        shown, seeds = [], 0
        for arm in ARMS:
            found = [
                each["accuracy"] for each in rows
                if (each["table"], each["epsilon"], each["arm"]) == (name, epsilon, arm)
            ]  # fmt: skip
            seeds = max(seeds, len(found))
            span = f" ({min(found):.3f}, {max(found):.3f})" if len(found) > 1 else ""
            shown.append(f"{statistics.median(found):.3f}{span}" if found else "")
        print(f"| {name} | {epsilon:g} | {seeds} | " + " | ".join(shown) + " |")


def main() -> None:
    """Run what is asked for and not there, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TABLES)}; all if none is given")
    parser.add_argument("--tables", type=Path, help="the folder of the .csv files")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    asked_for = (
        {"table": name, "epsilon": epsilon, "arm": arm, "seed": seed}
        for name in asked.names or TABLES
        for epsilon in asked.epsilon
        for seed in range(1, asked.seeds + 1)
        for arm in (ARMS if seed == 1 else ARMS[:-1])
    )
    cells.measure(RESULTS, asked_for, measured, asked.tables, workers=cells.workers_of(asked))


if __name__ == "__main__":
    main()
