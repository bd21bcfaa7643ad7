"""Print the tables of `run.py` as the README has them: the paper's figures beside ours.

A cell is the mean over seeds and half of its 95 % interval by Student's t. A crossover is that of
Definition 2 (`pasearch.crossover.curves`), with its bootstrap interval over seeds.

Usage: python benchmarks/crossover/table.py [STUDY ...]
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import numpy as np
from run import RESULTS, STUDIES

from pasearch.crossover.curves import estimate_mean_and_half_width, find_crossover
from pasearch.crossover.theory import fit_sample_size_curve, predict_records

Rows = list[dict[str, Any]]
PAIRS = {
    "fig-8": (("logistic regression", "fcn"), ("logistic regression", "cnn"), ("fcn", "cnn")),
    "fig-10": (("fcn rwt", "fcn"), ("cnn rwt", "cnn"), ("simple fcn", "fcn")),
    "fig-7": tuple((f"{data}, simple", f"{data}, complex")
                   for data in ("mnist", "fashion-mnist", "cifar10-grey")),
}  # fmt: skip
"""Of which two models a crossover is told, the simpler one first."""


PAPER_STEPS = {
    "fig-7": 300_000, "fig-8": 300_000, "fig-10": 300_000, "fig-12": 210_000, "table-iv": 90_000,
    "table-vi": 10_400, "table-vi-cnn": 10_400,
    "table-v": 210_000, "table-ix": 300_000, "rates": 210_000, "clipping": 210_000,
}  # fmt: skip
"""Steps of the longest training that the paper compares: 500 epochs of batch 100 (Table IV: 150)
of 60,000 records of MNIST or 42,000 of SVHN."""


def share_of_steps(name: str, rows: Rows) -> str:
    """Return the share of the paper's steps that a study's trainings have, in per cent."""
    most = 100.0 * max(row["steps"] for row in rows) / PAPER_STEPS[name]
    return f"{most:.3g} % of the paper's steps"


def read() -> dict[str, Rows]:
    """Return all results by study."""
    found: dict[str, Rows] = defaultdict(list)
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        if not row.get("full", False):
            found[row["study"]].append(row)
    return found


def cells(rows: Rows) -> dict[tuple[str, str], dict[int, float]]:
    """Return accuracy by (arm, epsilon) and seed."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in rows:
        found[row["arm"], str(row["epsilon"])][row["seed"]] = row["test"]
    return found


def shown(values: dict[int, float]) -> str:
    """Return a mean and half of its interval, with the number of seeds if that is one."""
    if not values:
        return "-"
    means, half = estimate_mean_and_half_width(1.0 - np.array([list(values.values())]))
    text = f"{1.0 - float(means[0]):.3f}".lstrip("0")
    return f"{text} ± {float(half[0]):.3f}".replace("0.", ".") if len(values) > 1 else f"{text} (1)"


def accuracies(name: str, rows: Rows) -> None:
    """Print a row an arm and a column an epsilon; then crossovers."""
    study, found = STUDIES[name], cells(rows)
    size = {row["arm"]: (row["parameters"], row["trainable"]) for row in rows}
    seeds = [len(values) for values in found.values()]
    share = share_of_steps(name, rows)
    print(f"\n### {name} ({min(seeds)} to {max(seeds)} seeds; {share})\n")
    heads = [str(e) if isinstance(e, str) else f"{e:g}" for e in study.epsilons]
    print("| model | parameters (trained) | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    for arm in study.arms:
        if arm in size:
            texts = [shown(found.get((arm, str(epsilon)), {})) for epsilon in study.epsilons]
            print(f"| {arm} | {size[arm][0]:,} ({size[arm][1]:,}) | " + " | ".join(texts) + " |")
    for pair in PAIRS.get(name, ()):
        told(found, pair, [e for e in study.epsilons if isinstance(e, float)])


def told(found: dict[Any, dict[int, float]], pair: tuple[str, str], epsilons: list[float]) -> None:
    """Print the crossover of a pair, by the seeds that both have at every epsilon."""
    drawn = [e for e in epsilons if found.get((pair[0], str(e))) and found.get((pair[1], str(e)))]
    every = [set(found[arm, str(e)]) for arm in pair for e in drawn]
    if len(drawn) < 2 or len(seeds := sorted(set.intersection(*every))) < 2:
        return
    errors = [np.array([[1 - found[arm, str(e)][s] for s in seeds] for e in drawn]) for arm in pair]
    each = find_crossover(errors[0], errors[1], tuple(drawn), pair)
    every_change = ", ".join(f"{e:.2g}" for e in each.every) or "none"
    print(
        f"\n{pair[0]} is better than {pair[1]} up to epsilon {each.text(tuple(drawn))}; changes of "
        f"sign: {every_change}; {len(seeds)} seeds."
    )


def inputs(rows: Rows) -> None:
    """Print Table III and Fig. 5."""
    print("\n### table-iii\n")
    heads = "inputs", "paper", "DP-SGD", "SGD", "cosine distance at step 1, 10, 20, 50", "seeds"
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        dp, sgd = ({r["seed"]: r[name] for r in own} for name in ("test", "sgd"))
        far = np.mean([row["distance"] for row in own], axis=0)
        texts = ", ".join(f"{far[place]:.2f}" for place in (0, 1, 2, 5))
        values = arm.split()[0], f"{own[0]['paper']:.3f}", shown(dp), shown(sgd), texts, len(own)
        print(f"| {' | '.join(map(str, values))} |")


def sample_sizes(rows: Rows) -> None:
    """Print Fig. 6: epsilon spent until 85 %, and the fit."""
    print("\n### fig-6\n\n| n | simple | complex | complex / simple |\n|---|---|---|---|")
    spent: dict[str, dict[int, list[float]]] = {"simple": {}, "complex": {}}
    for row in rows:
        if row["reached"]:
            spent[row["arm"].split(",")[0]].setdefault(row["n"], []).append(row["spent"])
    for n in sorted({row["n"] for row in rows}):
        both = [spent[name].get(n) for name in spent]
        texts = ["-" if not e else f"{np.median(e):.3g} ({len(e)})" for e in both]
        ratio = f"{np.median(both[1]) / np.median(both[0]):.2f}" if all(both) else "-"  # type: ignore[arg-type]
        print(f"| {n:,} | {texts[0]} | {texts[1]} | {ratio} |")
    for name, by_n in spent.items():
        if len(by_n) > 1:
            sizes = np.array(sorted(by_n))
            epsilons = np.array([float(np.median(by_n[int(n)])) for n in sizes])
            alpha, beta = fit_sample_size_curve(sizes, epsilons)
            fit = np.log(np.maximum(alpha + beta / sizes, 1e-9))
            worst = float(np.abs(fit / epsilons - 1).max())
            print(
                f"\n{name}: eps = ln({alpha:.3f} + {beta:.0f} / n), off by {worst:.0%} at most; at "
                f"epsilon 1 {predict_records(1.0, alpha, beta):,.0f} records."
            )


def main() -> None:
    """Print all tables, or those named."""
    found = read()
    for name in sys.argv[1:] or ["table-iii", *STUDIES]:
        rows = found.get(name, [])
        if not rows:
            continue
        if name == "table-iii":
            inputs(rows)
        elif name == "fig-6":
            sample_sizes(rows)
        else:
            accuracies(name, rows)


if __name__ == "__main__":
    main()
