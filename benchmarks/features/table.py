"""Print Bao et al.'s feature-selection tables from the results: ours, and theirs in brackets.

Every figure, but Adult's at one total price, is the mean over splits of the mean over repetitions.
"Splits" are seeds; "fits" is how many repetitions all splits have together.

Usage: python benchmarks/features/table.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from setting import LAWS, NO_PRIVACY, rows_of

Rows = list[dict[str, Any]]

ARMS_X = ("all", "pafs", "cfs-greedy", "cfs-ga", "random", "pafs, by training records")
THEIRS_X = {
    0.01: (50.11, 49.99, 50.30, 50.44, 49.84), 0.1: (50.98, 52.09, 51.27, 51.72, 51.71),
    0.5: (53.75, 54.92, 54.05, 54.49, 53.34), 1: (53.85, 55.12, 55.20, 55.38, 54.23),
    1.5: (55.34, 55.78, 55.63, 55.82, 55.35), 2: (55.43, 56.84, 56.21, 56.47, 55.67),
    5: (56.74, 64.21, 60.23, 62.34, 59.30), 10: (61.78, 68.75, 67.09, 67.41, 66.87),
    20: (68.13, 71.00, 70.36, 69.53, 70.12), 25: (69.59, 73.48, 70.59, 69.74, 70.61),
    30: (70.75, 71.52, 70.62, 69.85, 70.67), 35: (71.45, 71.72, 70.70, 69.92, 70.66),
    40: (72.11, 73.60, 70.71, 69.94, 70.57),
}  # fmt: skip
THEIRS_BEST = {
    ("adult", 0.1): "5: 78.58; all: 70.86", ("adult", 0.5): "6", ("adult", 1): "the middle",
    ("breast-cancer", 0.5): "1", ("breast-cancer", 1): "1", ("breast-cancer", 5): "11",
    ("adult", NO_PRIVACY): "all", ("breast-cancer", NO_PRIVACY): "all",
}  # fmt: skip
THEIRS_CROSSOVER = {"adult": "10 to 20", "breast-cancer": "60 to 70"}
SHOWN = {"adult": (1, 5, 6, 10, 20, 40, 108), "breast-cancer": (1, 2, 5, 11, 20, 30, 43)}
THEIRS_NETWORK: dict[tuple[str, float | None], tuple[float, ...]] = {
    ("breast-cancer", None): (65.26, 69.47, 72.63, 71.58, 73.68, 73.68),
    ("breast-cancer", 0.236): (67.37, 65.26, 68.42, 66.31, 66.26, 66.32),
    ("breast-cancer", 0.014): (65.26, 64.21, 60.00, 62.11, 59.35, 59.48),
    ("adult", None): (75.91, 81.81, 83.33, 85.30, 84.91, 85.21),
    ("adult", 0.0196): (75.90, 80.75, 80.81, 79.24, 78.83, 77.76),
    ("adult", 0.00817): (76.25, 77.10, 77.02, 78.59, 74.44, 71.10),
}
THEIRS_ONE_HOT = {
    0.1: (69.65, 65.93), 0.05: (66.13, 65.5), 0.01: (59.03, 64.33), 0.001: (50.98, 57.86),
    0.0001: (50.07, 50.58), NO_PRIVACY: (84.85, 84.44),
}  # fmt: skip


def cells(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """Return the lines of each cell."""
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row.get(name) for name in names)].append(row)
    return found


def mean(rows: Rows, field: str = "accuracy") -> float:
    """Return a field's mean over splits; NaN without any."""
    return float(np.mean([row[field] for row in rows])) if rows else float("nan")


def percent(value: float, theirs: float | None = None) -> str:
    """Return an accuracy, and theirs in brackets."""
    ours = "-" if np.isnan(value) else f"{100 * value:.1f}"
    return ours if theirs is None else f"{ours} ({theirs:.1f})"


def amount(rows: Rows) -> str:
    """Return how many splits and how many fits cells have."""
    splits, fits = len({row["seed"] for row in rows}), sum(row.get("repeats", 1) for row in rows)
    return f"{splits} splits, {fits} fits"


def named(epsilon: float | None) -> str:
    """Return an epsilon in words."""
    return "no privacy" if epsilon in (None, NO_PRIVACY) else f"{epsilon:g}"


def show(title: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n**{title}**\n\n| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for line in lines:
        print(f"| {' | '.join(line)} |")


def table_x() -> None:
    """Table X, and how many of its epsilons have the paper's effects."""
    for law in LAWS:
        rows = [row for row in rows_of("table-x") if row["law"] == law]
        at = cells(rows, "epsilon", "arm")
        lines, better, first, complete = [], 0, 0, 0
        for epsilon, theirs in THEIRS_X.items():
            found = [at[epsilon, arm] for arm in ARMS_X]
            values = [mean(each) for each in found]
            if not all(found):
                continue
            lines.append([
                named(epsilon),
                *(percent(v, t) for v, t in zip(values, (*theirs, None), strict=True)),
                percent(mean(found[1], "seen")),
                f"{mean(found[1], 'trained'):,.0f}", amount(found[0]),
            ])  # fmt: skip
            complete += 1
            better += values[4] > values[0]
            first += values[1] == max(values[:5])
        head = ("epsilon", *ARMS_X, "pafs, as its search saw it", "sets trained", "of each arm")
        show(f"Table X, law `{law}`; theirs in brackets", head, lines)
        print(f"\nRandom above All: {better} of {complete} epsilons; PAFS first: {first}.")


def figures() -> None:
    """Figs. 3 and 4, and the crossovers."""
    for data in SHOWN:
        for law in LAWS:
            rows = [r for r in rows_of("figures") if r["law"] == law and r["data"] == data]
            at = cells(rows, "epsilon", "size")
            sizes, every = sorted({size for _, size in at}), max(SHOWN[data])
            if not rows:
                continue
            lines, gain = [], {}
            for epsilon in sorted({epsilon for epsilon, _ in at}):
                values = {size: mean(at[epsilon, size]) for size in sizes if at[epsilon, size]}
                if set(values) != set(sizes):
                    continue
                best = max(values, key=values.__getitem__)
                gain[epsilon] = values
                lines.append([
                    named(epsilon), *(percent(values[size]) for size in SHOWN[data]),
                    f"{best}: {percent(values[best])}", THEIRS_BEST.get((data, epsilon), "-"),
                    amount(at[epsilon, every]),
                ])  # fmt: skip
            head = ("epsilon", *map(str, SHOWN[data]), "best size", "theirs", "of each size")
            show(f"Best set of each size, {data}, law `{law}`", head, lines)
            print(f"\n{crossover(data, gain, every)}")


def crossover(data: str, values: dict[float, dict[int, float]], every: int) -> str:
    """Return between which epsilons all features become better than the best few at .5."""
    if 0.5 not in values:
        return "Crossover: not measured."
    few = max(values[0.5], key=values[0.5].__getitem__)
    ahead = [epsilon for epsilon in sorted(values) if values[epsilon][few] > values[epsilon][every]]
    behind = [e for e in sorted(values) if not ahead or e > ahead[-1]]
    low, high = (named(each[i]) if each else "none" for each, i in ((ahead, -1), (behind, 0)))
    theirs = THEIRS_CROSSOVER[data]
    return f"Crossover of {few} (best at .5) and {every}: {low} to {high} ({theirs})."


def network() -> None:
    """Tables II and XVIII."""
    rows = list(rows_of("dp-sgd"))
    at = cells(rows, "data", "epsilon", "size")
    for data in SHOWN:
        sizes = sorted({size for name, _, size in at if name == data})
        ways = [key for key in THEIRS_NETWORK if key[0] == data]
        lines = []
        for place, size in enumerate(sizes):
            found = [at[(*way, size)] for way in ways]
            if all(found):
                values = zip(found, (THEIRS_NETWORK[way][place] for way in ways), strict=True)
                lines.append([
                    str(size), *(percent(mean(f), t) for f, t in values), amount(found[-1])
                ])  # fmt: skip
        head = ("features", *(f"epsilon {named(e)}" if e else "SGD" for _, e in ways), "of each")
        show(f"Two units by DP-SGD, {data}; theirs in brackets", head, lines)


def one_hot() -> None:
    """Table XVI."""
    for law in LAWS:
        at = cells([r for r in rows_of("one-hot") if r["law"] == law], "epsilon", "arm")
        lines = []
        for epsilon, theirs in THEIRS_ONE_HOT.items():
            found = [at[epsilon, arm] for arm in ("one-hot", "numbers and sex")]
            if all(found):
                pair = zip(found, theirs, strict=True)
                spread = [f" ± {100 * mean(f, 'deviation'):.1f}" for f in found]
                texts = [percent(mean(f), t) for f, t in pair]
                lines.append([
                    named(epsilon), *map("".join, zip(texts, spread, strict=True)),
                    amount(found[0]),
                ])  # fmt: skip
        head = ("epsilon", "one-hot, 108", "numbers and sex, 7", "of each")
        show(f"Table XVI, law `{law}`; theirs in brackets, ± of ours", head, lines)


def pool() -> None:
    """Max pooling and principal components."""
    at = cells(list(rows_of("pool")), "epsilon", "arm")
    arms = list(dict.fromkeys(arm for _, arm in at))
    lines = [
        [named(epsilon), *(percent(mean(at[epsilon, arm])) for arm in arms)]
        for epsilon in sorted({epsilon for epsilon, _ in at})
    ]
    show("MNIST, a linear model, every release charged", ("epsilon", *arms), lines)


def library() -> None:
    """The law "library" beside diffprivlib."""
    at = cells(list(rows_of("library")), "epsilon", "arm")
    lines = []
    for epsilon in sorted({epsilon for epsilon, _ in at}):
        one, many = (at[epsilon, arm] for arm in ("diffprivlib", "batched"))
        if one and many:
            error = np.hypot(one[0]["deviation"], many[0]["deviation"]) / one[0]["repeats"] ** 0.5
            gap = (many[0]["accuracy"] - one[0]["accuracy"]) / error
            lines.append([
                named(epsilon), percent(mean(one)), percent(mean(many)), f"{gap:+.1f}",
                f"{mean(one, 'milliseconds'):.1f}", f"{mean(many, 'milliseconds'):.2f}",
            ])  # fmt: skip
    head = ("epsilon", "diffprivlib", "batched", "standard errors apart", "ms a fit", "ms a fit")
    show("The law `library` against diffprivlib, all 43 features", head, lines)


def adult() -> None:
    """Every method at one total price on Adult: medians of the seeds, and their number."""
    found = cells(list(rows_of("adult")), "method", "trainer", "bought", "epsilon")
    epsilons = sorted({key[3] for key in found})
    lines = []
    for method, trainer, bought in dict.fromkeys(key[:3] for key in found):
        shown = []
        for epsilon in epsilons:
            runs = found.get((method, trainer, bought, epsilon), [])
            accuracy, area = (
                f"{np.median([r[name] for r in runs]):.3f}".lstrip("0") if runs else "-"
                for name in ("accuracy", "auc")
            )
            shown.append(f"{accuracy} / {area} ({len(runs)})")
        lines.append([method + ", schema bought" * bought, trainer, *shown])
    head = ("method", "trainer", *(f"{epsilon:g}" for epsilon in epsilons))
    show("Adult at one total price: accuracy / AUC (seeds)", head, sorted(lines))


def solver() -> None:
    """The batched solver against a loop over diffprivlib."""
    last = {(row["data"], row["subsets"]): row for row in rows_of("solver")}
    lines = []
    for (data, subsets), row in last.items():
        ours, theirs = (
            row["milliseconds a fit, processor"][name] for name in ("ours", "diffprivlib")
        )
        times = row["times faster"]["processor"]
        lines.append(
            [
                f"{data}, {row['n']:,} x {row['d']}", subsets, str(row["models"]),
                f"{ours['median']:.2f}", f"{theirs['median']:.0f}",
                f"{times['median']:.0f} ({times['low']:.0f} to {times['high']:.0f})",
            ]
        )  # fmt: skip
    head = ("data", "subsets", "models", "ours, ms a fit", "diffprivlib", "times faster")
    show("The batched solver of objective perturbation against a loop", head, lines)


def speed() -> None:
    """How long PAFS takes: of each the last measurement."""
    last = {(row["data"], row["what"], row["l"]): row for row in rows_of("speed")}
    lines = [
        [
            row["data"], row["what"], str(row["l"]), str(row["rounds"]),
            f"{row['processor']['median']} ({row['processor']['low']} to "
            f"{row['processor']['high']})", f"{row['clock']['median']}", str(row["load"]),
            "-" if row["what"] == "plan" or row["l"] < 10 else f"{row['9 hours / processor']:,}",
        ]
        for row in last.values()
    ]  # fmt: skip
    head = ("data", "what", "l", "rounds", "processor s", "clock s", "load", "9 hours / processor")
    show("PAFS, k = 600", head, lines)


TABLES: tuple[Callable[[], None], ...] = (
    adult, table_x, figures, network, one_hot, pool, library, solver, speed
)  # fmt: skip


def main() -> None:
    """Print every table."""
    for each in TABLES:
        each()


if __name__ == "__main__":
    main()
