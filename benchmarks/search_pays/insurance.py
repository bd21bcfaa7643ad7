"""Does it pay to look at other candidates before the default is trained? `auto` against `fixed`.

    python benchmarks/search_pays/insurance.py --tables DIR [--epsilons .5 1 3] [--seeds 3]
    python benchmarks/search_pays/insurance.py --tables DIR --planted
    python benchmarks/search_pays/insurance.py --print

Every arm of a data set, epsilon and seed has the same records and the same total, which pays for
looks, scores, final training and the noisy test accuracy. Three tenths of a table are held out
before the run: accuracy on them is exact (of a regression 1 - mean absolute error as a share of the
target's width), and nothing of them is released. Tables of more than 24,000 records are sampled.
Bounds, bins and categories are taken as public. The data set at hand is never part of the study
that `auto` predicts from.

    fixed     the portfolio's default
    auto      what `auto` takes: `fixed`, or `insured` (looks at up to 5 candidates)
    planted   a default that is wrong, put before the portfolio's others: its rate ten times too
              small, or ten times too large, or linear without pairs where columns interact; by
              `fixed` and by `insured`
    variants  `fixed`, and a private pick among what follows from its training for nothing; once by
              accuracy and once by balanced accuracy
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pasearch import Budget, plan_architecture_search, search_architecture
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.sources import load_dataset
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.portfolio import load_study
from pasearch.spaces.space import Portfolio

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "models"))
import cells
from peers import TABLES, frame_of  # the same tables, cut in the same way

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results" / "insurance.jsonl"
HELD_OUT = 0.3


def numbers(n: int, columns: int, seed: int) -> np.ndarray:
    """Return numbers in [0, 1]."""
    return np.random.default_rng(seed).random((n, columns))


def made(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """Return a table of numbers and its classes."""
    frame = pd.DataFrame(x.round(4), columns=[f"x{place}" for place in range(x.shape[1])])
    return frame.assign(y=np.asarray(y).astype(int).astype(str))


def interaction() -> pd.DataFrame:
    """Two columns that matter only together, among eight."""
    x = numbers(20_000, 8, 0)
    return made(x, (x[:, 0] > 0.5) ^ (x[:, 1] > 0.5))


def three_together() -> pd.DataFrame:
    """Three columns that matter only together, among six: products of two say nothing."""
    x = numbers(20_000, 6, 1)
    return made(x, (x[:, 0] > 0.5) ^ (x[:, 1] > 0.5) ^ (x[:, 2] > 0.5))


def circle() -> pd.DataFrame:
    """Whether two of five numbers are near the middle."""
    x = numbers(12_000, 5, 2)
    return made(x, ((x[:, :2] - 0.5) ** 2).sum(1) < 0.16)


def wide() -> pd.DataFrame:
    """Two hundred numbers, of which five tell something."""
    x = numbers(10_000, 200, 3)
    draw = np.random.default_rng(4)
    return made(x, x[:, :5].sum(1) + 0.3 * draw.standard_normal(10_000) > 2.5)


def clusters() -> pd.DataFrame:
    """Twenty classes, each around two points of ten dimensions."""
    draw = np.random.default_rng(5)
    own = draw.integers(20, size=12_000)
    middles = draw.random((20, 2, 10))
    x = middles[own, draw.integers(2, size=12_000)] + 0.12 * draw.standard_normal((12_000, 10))
    return made(x, own)


def rare() -> pd.DataFrame:
    """A class of three in a hundred records."""
    x = numbers(15_000, 6, 6)
    return made(x, x[:, 0] * x[:, 1] + 0.1 * x[:, 2] > 0.77)


def thresholds() -> pd.DataFrame:
    """Yes-and-no columns: at least four of nine, among thirty."""
    x = (numbers(8_000, 30, 7) < 0.5).astype(float)
    return made(x, x[:, :9].sum(1) >= 5)


MADE: dict[str, Callable[[], pd.DataFrame]] = {
    "interaction": interaction, "three-together": three_together, "circle": circle, "wide": wide,
    "clusters": clusters, "rare": rare, "thresholds": thresholds,
}  # fmt: skip
Known = tuple[Path, dict[tuple[str, float, int], dict[str, Any]]]
"""The folder of the tables, and what `fixed` reached, by data set, epsilon and seed."""

EXAMPLES = {"breast-cancer-wisconsin": "class", "insurance": "charges"}
NAMES = (*TABLES, *MADE, *EXAMPLES)
WRONG = ("rate / 10", "rate x 10", "linear")
VARIANTS = ("fixed, variants", "fixed, balanced", "fixed, balanced variants")
PICKED = ("magic", "adult", "online-shoppers", "bank-marketing", "bank-churn", "rare")
PLANTED = ("magic", "nursery", "letter", "interaction", "online-shoppers")


def cut(name: str, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, str, str]:
    """Return the records of a run, those that are held out, the target, and a schema's text."""
    if name in MADE:
        frame, target = MADE[name](), "y"
        bounds = "".join(
            f"[columns.x{place}]\nlow = {frame.iloc[:, place].min()}\n"
            f"high = {frame.iloc[:, place].max()}\n" for place in range(frame.shape[1] - 1)
        )  # fmt: skip
        known = ", ".join(f"'{each}'" for each in sorted(set(frame["y"])))
        schema = f"target = 'y'\n{bounds}[columns.y]\ncategories = [{known}]\n"
    elif name in EXAMPLES:
        path = next(folder.glob(f"**/{name.replace('-', '[-_]')}.csv"))
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        schema = (ROOT / "examples" / f"{name}.toml").read_text()
        target = EXAMPLES[name]
    else:
        frame, target = frame_of(name, folder), TABLES[name][0]
        own = ROOT / "benchmarks" / "portfolio" / "schemas" / f"{name}.toml"
        schema = (own if own.exists() else ROOT / "examples" / f"{name}.toml").read_text()
        schema = "\n".join(
            line for line in schema.splitlines() if not line.startswith("official_test")
        )
        for column in TABLES[name][1]:
            schema = re.sub(rf"\[columns\.{column}\][^\[]*", "", schema)
    held = frame.sample(frac=HELD_OUT, random_state=9)
    return frame.drop(held.index), held, target, schema


def wrong_default(kind: str, schema: Any, name: str) -> Portfolio:
    """Return the portfolio of a kind of data with a wrong default before its entries."""
    entries = load_study(schema, name).entries
    full = next(each for each in entries if "batch_share" in dict(each.settings))
    if kind == "linear":
        bad = Candidate(
            architecture=Architecture(layers=()), settings=full.settings,
            front_end=parse_front_end("centred"),
        )  # fmt: skip
    else:
        factor = 0.1 if kind == "rate / 10" else 10.0
        settings = dict(full.settings)
        for each in ("learning_rate_scale", "learning_rate_most"):
            settings[each] *= factor
        bad = replace(full, settings=tuple(settings.items()))
    others = tuple(each for each in entries if each != bad)
    return Portfolio(name="planted", entries=(bad, *others[:4]))


def measured(known: Known, data: str, arm: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Return what an arm reaches on the records that were held out, and what it took.

    Args:
        known: The folder of the tables, and what `fixed` reached.
        data: The name of the data set.
        arm: Of `fixed` and `auto`, or with a wrong default behind a comma.
        epsilon: Of the whole run.
        seed: Of its noise.
    """
    name, (folder, reached) = data, known
    fixed = reached.get((name, epsilon, seed))
    rest, held, target, schema = cut(name, folder)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary)
        rest.to_csv(path / f"{name}.csv", index=False)
        (path / "schema.toml").write_text(schema)
        way, _, wrong = arm.partition(", ")
        given: dict[str, Any] = {"strategy": way}
        if "variants" in wrong or "balanced" in wrong:
            given |= {"variants": "variants" in wrong}
            given |= {"metric": "balanced-accuracy"} if "balanced" in wrong else {}
        elif wrong:
            own = load_dataset(str(path / f"{name}.csv"), schema=path / "schema.toml").schema
            given["space"] = wrong_default(wrong, own, name)
            if way == "insured":
                given["candidates"] = len(given["space"].entries)
        given |= {
            "schema": path / "schema.toml", "seed": seed, "budget": Budget(epsilon),
            "device": "cpu", "assume_public_schema": True,
            "force": True,  # at every epsilon of the study
        }  # fmt: skip
        plan = plan_architecture_search(path / f"{name}.csv", **given)
        if way == "auto" and plan.strategy.name == "fixed" and fixed is not None:
            return {**fixed, "took": "fixed"}  # the same run, with the same noise
        result = search_architecture(path / f"{name}.csv", out=path / "run", **given)
        answers = np.asarray(result.predict(held.drop(columns=[target])))
    auto = result.document["auto"]
    took = "" if auto is None else auto["chosen"].partition(",")[0]
    if result.document["dataset"]["schema"].get("target", {}).get("kind") == "number":
        truth, width = held[target].astype(float), np.ptp(rest[target].astype(float))
        score = 1 - float(np.abs(answers.astype(float) - truth).mean() / width)
    else:
        right = answers.astype(str) == held[target].astype(str).to_numpy()
        shares = [right[held[target] == each].mean() for each in sorted(set(held[target]))]
        score = float(np.mean(shares) if "balanced" in arm else right.mean())
    best = result.best.describe_network()
    return {"accuracy": round(score, 5), "took": took, "best": best}


def show() -> None:
    """Print medians over seeds, and the mean paired difference."""
    rows = cells.stored(RESULTS)
    print("| table | epsilon | seeds | fixed | auto | difference | takes looks |")
    print("|---|---|---|---|---|---|---|")
    every: dict[float, list[float]] = {}
    for name, epsilon in dict.fromkeys((r["data"], r["epsilon"]) for r in rows):
        here = [r for r in rows if (r["data"], r["epsilon"]) == (name, epsilon)]
        by = {arm: {r["seed"]: r["accuracy"] for r in here if r["arm"] == arm}
              for arm in ("fixed", "auto")}  # fmt: skip
        seeds = sorted(set(by["fixed"]) & set(by["auto"]))
        if not seeds:
            continue
        looks = sum(r["took"] == "insured" for r in here if r["arm"] == "auto")
        apart = statistics.mean(by["auto"][s] - by["fixed"][s] for s in seeds)
        every.setdefault(epsilon, []).append(apart)
        middles = [statistics.median(by[arm][s] for s in seeds) for arm in ("fixed", "auto")]
        print(f"| {name} | {epsilon:g} | {len(seeds)} | {middles[0]:.3f} | {middles[1]:.3f} | "
              f"{apart:+.4f} | {looks} |")  # fmt: skip
    for epsilon, apart in sorted(every.items()):
        print(f"\nAt {epsilon:g}, over {len(apart)} tables: mean {statistics.mean(apart):+.4f}, "
              f"least {min(apart):+.4f}, most {max(apart):+.4f}.")  # fmt: skip
    print("\n| table, default planted | seeds | fixed, right | fixed, wrong | insured |")
    print("|---|---|---|---|---|")
    for name in dict.fromkeys(r["data"] for r in rows):
        for wrong in WRONG:
            medians = []
            for arm in ("fixed", f"fixed, {wrong}", f"insured, {wrong}"):
                found = [r["accuracy"] for r in rows
                         if (r["data"], r["arm"], r["epsilon"]) == (name, arm, 1.0)]  # fmt: skip
                medians.append(f"{statistics.median(found):.3f}" if found else "")
            if medians[1]:
                print(f"| {name}, {wrong} | {len(found)} | {' | '.join(medians)} |")
    show_variants(rows)


def show_variants(rows: list[dict[str, Any]]) -> None:
    """Print what a pick among variants is worth, medians over seeds."""
    print("\n| table | seeds | accuracy | with variants | balanced accuracy | with variants |")
    print("|---|---|---|---|---|---|")
    for name in PICKED:
        found = {
            arm: [r["accuracy"] for r in rows
                  if (r["data"], r["arm"], r["epsilon"]) == (name, arm, 1.0)]
            for arm in ("fixed", *VARIANTS)
        }  # fmt: skip
        if all(found.values()):
            count = min(map(len, found.values()))
            shown = " | ".join(f"{statistics.median(each[:count]):.3f}" for each in found.values())
            print(f"| {name} | {count} | {shown} |")


def main() -> None:
    """Run what is asked for and not there, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--tables", type=Path, help="the folder of the .csv files")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 0.5, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--print", action="store_true", dest="only_print")
    cells.add_workers(parser)
    asked = parser.parse_args()
    if asked.only_print:
        show()
        return
    arms = ["fixed", "auto"]
    epsilons, names = asked.epsilons, asked.names or NAMES
    if asked.planted:
        arms = [f"{way}, {wrong}" for wrong in WRONG for way in ("fixed", "insured")]
        epsilons, names = [1.0], asked.names or PLANTED
    if asked.variants:
        arms, names, epsilons = ["fixed", *VARIANTS], asked.names or PICKED, [1.0]
    for seed in range(1, asked.seeds + 1):
        # `auto` often is the run that `fixed` was, which is not run twice: so `fixed` is first.
        for now in (["fixed"], [arm for arm in arms if arm != "fixed"]):
            reached = {
                (r["data"], r["epsilon"], r["seed"]):
                    {each: r[each] for each in ("accuracy", "took", "best")}
                for r in cells.stored(RESULTS) if r["arm"] == "fixed"
            }  # fmt: skip
            wanted = (
                {"data": name, "arm": arm, "epsilon": epsilon, "seed": seed}
                for epsilon in epsilons for name in names for arm in now if arm in arms
            )  # fmt: skip
            workers = cells.workers_of(asked)
            cells.measure(RESULTS, wanted, measured, (asked.tables, reached), workers=workers)


if __name__ == "__main__":
    main()
