"""Print Lin et al.'s tables from our runs, their tests on our cells and on theirs, and verdicts.

A cell is the median over its seeds, with the least and the greatest beside it. The tests see cells,
one figure each, as the paper's did: Shapiro-Wilk for a normal law; Mann-Whitney between two levels,
Kruskal-Wallis among more, which take cells as unrelated. The cells of a factorial design are
related: each has a partner that differs in one factor alone. So Wilcoxon's signed-rank test on the
pairs stands beside them (Friedman's where a factor has more levels): that test is ours.

"would find" is a test's least shift with 80% power: our cells (or pairs, centred, with random
signs) drawn anew with replacement, one level shifted by it, 100 times.

Every verdict is made from the numbers. A p-value below .05 in one of the tests is expected in one
of twenty where there is nothing; none is corrected for how many are printed.

paper.csv holds the figures of the paper's Tables 3 to 7 and 12, as printed.

Usage: python benchmarks/factors/table.py [--full]
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from run import CIFAR, CLIPS, DATA, NETWORKS, OPTIMIZERS, SIGMAS, SWEEP, Cell, read
from run import adaptive as adaptive_cells
from run import priced as priced_cells
from run import printed as printed_cells
from scipy import stats as scipy_stats

from pasearch.accounting.accountants import price
from pasearch.accounting.events import NoisyRecords, SelfComposition

stats: Any = scipy_stats  # it comes without types

Row = dict[str, Any]
Groups = Sequence[np.ndarray]
NAMES = [field.name for field in fields(Cell)]
LEVEL, POWER, DRAWS = 0.05, 0.8, 100
THEIRS = {CIFAR: "cifar10"}
"""What the paper calls a data set, where the name differs."""


MANN_WHITNEY = {
    ("accuracy", "network"): (970.0, 0.182),
    ("accuracy", "optimizer"): (1247.0, 0.486),
    ("accuracy", "sigma"): (935.0, 0.112),
    ("accuracy", "clip"): (1076.5, 0.580),
    ("accuracy", "order"): (678.0, 0.001),
    ("loss", "network"): (1160.0, 0.953),
    ("loss", "optimizer"): (915.5, 0.083),
    ("loss", "sigma"): (1497.0, 0.011),
    ("loss", "clip"): (1189.5, 0.580),
    ("loss", "order"): (678.0, 0.783),
}
"""U and p of the paper's Tables 10 and 11, as printed."""


class Cells:
    """Rows by cell: ours over seeds, the paper's one figure each."""

    def __init__(self, rows: Iterable[Row]):
        self._rows: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            self._rows[tuple(row[name] for name in NAMES)].append(row)

    def of(self, cell: Cell) -> list[Row]:
        """Return a cell's rows, one a seed."""
        return self._rows.get(tuple(asdict(cell).values()), [])

    def values(self, cell: Cell, what: str) -> np.ndarray:
        """Return a figure of each seed; a loss that is not finite is infinite."""
        found = [row.get(what) for row in self.of(cell)]
        return np.array([math.inf if each is None else each for each in found], float)

    def median(self, cell: Cell, what: str) -> float:
        """Return the median over seeds; NaN if none is done."""
        values = self.values(cell, what)
        return float(np.median(values)) if len(values) else math.nan

    def middle(self, cell: Cell, what: str, digits: int = 3) -> str:
        """Return the median, printed."""
        value = self.median(cell, what)
        return "-" if math.isnan(value) else f"{value:.{digits}f}"

    def shown(self, cell: Cell, what: str) -> str:
        """Return the median and the spread, in three digits."""
        values = self.values(cell, what)
        if len(values) < 2:
            return self.middle(cell, what)
        return f"{np.median(values):.3f} ({values.min():.3f} to {values.max():.3f})"

    def price(self, cell: Cell) -> str:
        """Return what a cell costs."""
        if not self.of(cell):
            return "-"
        epsilon = self.of(cell)[0]["price"]
        return "inf" if epsilon is None else f"{epsilon:.3g}"


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print one table in Markdown."""
    print(f"\n### {title}\n")
    print(f"| {' | '.join(header)} |")
    print("|" + "---|" * len(header))
    for row in rows:
        print(f"| {' | '.join(row)} |")


def paper() -> dict[str, Cells]:
    """Return the paper's figures by table: "3-5", "6", "7" and "12"."""
    found: dict[str, list[Row]] = defaultdict(list)
    with (Path(__file__).parent / "paper.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = ("clip", "sigma", "accuracy", "loss", "tpvd")
            read_row: Row = {
                name: (float(value) if name in numbers else value) if value else None
                for name, value in row.items()
            }
            table = "3-5" if row["table"] in "345" else row["table"]
            found[table].append({**read_row, "epsilon": None})
    return {table: Cells(rows) for table, rows in found.items()}


def theirs(cells: Cells, cell: Cell, what: str = "accuracy") -> str:
    """Return the paper's figure for a cell; "-" where it has none, as of Fashion-MNIST."""
    return cells.middle(replace(cell, data=THEIRS.get(cell.data, cell.data)), what)


def flat(order: str, clip: float | None, sigma: float | None, **where: str) -> Cell:
    """Return the cell of a flat clip, or that without noise."""
    bounding = None if order == "none" else "flat"
    return Cell(
        data=where["data"], network=where["network"], optimizer=where["optimizer"], order=order,
        bounding=bounding, clip=clip, sigma=sigma,
    )  # fmt: skip


def settings() -> list[dict[str, str]]:
    """Return every data set, network and optimizer."""
    return [
        {"data": data, "network": network, "optimizer": optimizer}
        for data in DATA
        for network in NETWORKS
        for optimizer in OPTIMIZERS
    ]


def print_printed(ours: Cells, known: Cells) -> None:
    """Print Tables 3 to 5, and the trainings without noise."""
    rows = []
    for where in settings():
        for sigma in SIGMAS:
            for clip in CLIPS:
                ca, ac = (flat(order, clip, sigma, **where) for order in ("CA", "AC"))
                rows.append([
                    *where.values(), f"{sigma:g}", f"{clip:g}", str(len(ours.of(ca))),
                    ours.shown(ca, "accuracy"), ours.shown(ac, "accuracy"),
                    ours.middle(ca, "loss", 2), ours.middle(ac, "loss", 2),
                    ours.price(ca), ours.price(ac),
                    f"{theirs(known, ca)}, {theirs(known, ac)}",
                ])  # fmt: skip
    print_table(
        "Tables 3 to 5: the same sigma and C for both orders",
        ["data", "network", "optimizer", "sigma", "C", "seeds", "CA", "AC", "loss CA", "AC",
         "epsilon CA", "AC", "the paper's CA, AC"], rows,
    )  # fmt: skip
    rows = []
    for where in settings():
        cell = flat("none", None, None, **where)
        rows.append([
            *where.values(), str(len(ours.of(cell))), ours.shown(cell, "accuracy"),
            ours.middle(cell, "loss", 2), ours.shown(cell, "tpvd_other_seed"),
            ours.middle(cell, "median_norm", 1), theirs(known, cell),
        ])  # fmt: skip
    print_table(
        "Without noise, and how far another seed's weights are (TPVD)",
        ["data", "network", "optimizer", "seeds", "accuracy", "loss", "TPVD to the next seed",
         "a gradient's norm at the start", "the paper's accuracy"], rows,
    )  # fmt: skip


def print_private(ours: Cells) -> None:
    """Print the private AC at the noise of the printed one."""
    rows = []
    for network in NETWORKS:
        for sigma in SIGMAS:
            for clip in CLIPS:
                where = {"data": "mnist", "network": network, "optimizer": "adam"}
                row = [network, f"{sigma:g}", f"{clip:g}"]
                for order in ("CA", "AC", "AC private"):
                    cell = flat(order, clip, sigma, **where)
                    row += [ours.middle(cell, "accuracy"), ours.price(cell)]
                rows.append(row)
    print_table(
        "AC made private at the same noise: MNIST, Adam, gradients bounded to C before it",
        ["network", "sigma", "C", "CA", "epsilon", "AC", "epsilon", "AC private", "epsilon"], rows,
    )  # fmt: skip


def print_tpvd(ours: Cells, known: Cells) -> None:
    """Print Table 6."""
    rows = []
    for network in NETWORKS:
        where = {"data": "mnist", "network": network, "optimizer": "adam"}
        for order in ("CA", "AC", "AC private"):
            for clip in CLIPS:
                cell = flat(order, clip, 0.5, **where)
                rows.append([
                    network, order, f"{clip:g}", str(len(ours.of(cell))),
                    ours.shown(cell, "accuracy"), ours.shown(cell, "tpvd"), ours.price(cell),
                    theirs(known, cell), theirs(known, cell, "tpvd"),
                ])  # fmt: skip
        plain = flat("none", None, None, **where)
        rows.append([
            network, "no noise, the next seed", "-", str(len(ours.of(plain))),
            ours.shown(plain, "accuracy"), ours.shown(plain, "tpvd_other_seed"), "inf", "-", "-",
        ])  # fmt: skip
    print_table(
        "Table 6: TPVD (no measure of privacy), MNIST, Adam, sigma .5",
        ["network", "order", "C", "seeds", "accuracy", "TPVD", "epsilon", "the paper's accuracy",
         "the paper's TPVD"], rows,
    )  # fmt: skip
    for network in NETWORKS:
        print(f"\n{_tpvd_words(ours, network)}")


def _tpvd_words(ours: Cells, network: str) -> str:
    """Return what TPVD says of trainings whose privacy is known: MNIST, one network."""

    def span(cells: Iterable[Cell], what: str = "tpvd") -> np.ndarray:
        chosen = [c for c in cells if (c.data, c.network) == ("mnist", network)]
        return np.concatenate([ours.values(cell, what) for cell in chosen])

    private = span(priced_cells())
    none = span(cell for cell in printed_cells() if cell.order == "AC")
    seeds = span((c for c in printed_cells() if c.order == "none"), "tpvd_other_seed")
    if not (len(private) and len(none) and len(seeds)):
        return f"{network}: too few trainings to compare TPVD with prices."
    apart = none.max() < private.min()
    return (
        f"{network}, MNIST: TPVD is {private.min():.2f} to {private.max():.2f} at one price, "
        f"{none.min():.2f} to {none.max():.2f} of AC as printed, which has no price, and "
        f"{seeds.min():.2f} to {seeds.max():.2f} of another seed without any noise. So it "
        f"{'tells' if apart else 'does not tell'} the private trainings from AC, and "
        f"{'rates' if seeds.max() > private.max() else 'does not rate'} a seed without privacy "
        "above them."
    )


def print_adaptive(ours: Cells, known: Cells) -> None:
    """Print Table 7."""
    rows = [
        [
            cell.data,
            f"{cell.bounding}, {cell.order}" + (f", C {cell.clip:g}" if cell.order == "AC" else ""),
            str(len(ours.of(cell))),
            ours.shown(cell, "accuracy"),
            ours.middle(cell, "tpvd"),
            ours.price(cell),
            theirs(known, _unclipped(cell)),
            theirs(known, _unclipped(cell), "tpvd"),
        ]
        for cell in adaptive_cells()
    ]
    print_table(
        "Table 7: CNN, Adam, sigma .5; the quantile is bought here, and is exact in the paper",
        ["data", "bounding", "seeds", "accuracy", "TPVD", "epsilon", "the paper's accuracy",
         "the paper's TPVD"], rows,
    )  # fmt: skip


def _unclipped(cell: Cell) -> Cell:
    """Return the cell as the paper lists it: an adaptive bound has no C."""
    return cell if cell.order == "AC" else replace(cell, clip=None)


def print_sweep(ours: Cells, known: Cells) -> None:
    """Print Table 12, and where the reading turns."""
    rows, words = [], []
    for network in NETWORKS:
        where = {"data": "mnist", "network": network, "optimizer": "adam"}
        norm = ours.median(flat("none", None, None, **where), "median_norm")
        gains = []
        for clip in SWEEP:
            ca, ac = (flat(order, clip, 0.5, **where) for order in ("CA", "AC"))
            if not ours.of(ac):
                continue
            row = ours.of(ac)[0]
            ratio = 0.5 * clip * math.sqrt(row["parameters"]) / norm
            gains.append((clip, ours.median(ac, "accuracy") - ours.median(ca, "accuracy"), ratio))
            rows.append([
                network, f"{clip:g}", str(len(ours.of(ac))), ours.shown(ca, "accuracy"),
                ours.shown(ac, "accuracy"), ours.middle(ca, "tpvd"),
                ours.middle(ac, "tpvd"), f"{ratio:.2g}", _bounded_price(row, clip),
                f"{theirs(known, ca)}, {theirs(known, ac)}",
                f"{theirs(known, ca, 'tpvd')}, {theirs(known, ac, 'tpvd')}",
            ])  # fmt: skip
        words.append(_turn(network, gains))
    print_table(
        "Table 12: C, at sigma .5, MNIST, Adam",
        ["network", "C", "seeds", "CA", "AC", "TPVD CA", "AC",
         "AC's noise over a gradient's norm", "epsilon of AC, were gradients bounded to 1 first",
         "the paper's CA, AC", "its TPVD CA, AC"], rows,
    )  # fmt: skip
    for each in words:
        print(f"\n{each}")


def _bounded_price(row: Row, clip: float) -> str:
    """Return what noise of .5 C on gradients bounded to norm 1 costs."""
    step = NoisyRecords(row["batch"] / row["n"], 0.5 * clip)
    return f"{price(SelfComposition(step, row['steps']), row['delta']).epsilon:.3g}"


def _turn(network: str, gains: list[tuple[float, float, float]]) -> str:
    """Return in words up to which C the order AC is ahead."""
    ahead = [clip for clip, gain, _ in gains if gain > 0]
    behind = [clip for clip, gain, _ in gains if gain <= 0]
    listed = ", ".join(f"{gain:+.3f} at {clip:g}" for clip, gain, _ in gains)
    start = f"{network}: AC less CA, in accuracy: {listed}."
    if not ahead or not behind:
        return f"{start} The reading does not turn."
    if max(ahead) > min(behind):
        return f"{start} The sign changes more than once."
    last = next(ratio for clip, _, ratio in gains if clip == max(ahead))
    first = next(ratio for clip, _, ratio in gains if clip == min(behind))
    return (
        f"{start} It turns between C {max(ahead):g} and {min(behind):g}, where AC's noise goes "
        f"from {last:.2g} to {first:.2g} times a gradient's norm."
    )


def print_priced(ours: Cells) -> None:
    """Print every arm at one price."""
    rows = [
        [
            *where.values(),
            str(len(ours.of(_arm(where, "flat", "CA")))),
            *(ours.shown(_arm(where, *arm), "accuracy") for arm in ARMS),
        ]
        for where in settings()
    ]
    header = ["data", "network", "optimizer", "seeds", *(" ".join(arm) for arm in ARMS)]
    spent = [row["price"] for cell in priced_cells() for row in ours.of(cell)]
    found = f"{min(spent):.4f} to {max(spent):.4f}" if spent else "none is done"
    print_table(f"Accuracy at one sound price (epsilon {found})", header, rows)
    rows = [
        [*where.values(), *(ours.middle(_arm(where, *arm), "loss", 2) for arm in ARMS)]
        for where in settings()
    ]
    print_table("Loss at that price", header[:3] + header[4:], rows)


ARMS = (
    ("flat", "CA"),
    ("flat", "AC private"),
    ("per-layer", "CA"),
    ("adaptive flat", "CA"),
    ("adaptive per-layer", "CA"),
)


def _arm(where: dict[str, str], bounding: str, order: str) -> Cell:
    return next(
        cell
        for cell in priced_cells()
        if (cell.bounding, cell.order) == (bounding, order)
        and all(getattr(cell, name) == value for name, value in where.items())
    )


def print_tests(title: str, cells: Cells, chosen: list[Cell], factors: Sequence[str]) -> None:
    """Print Tables 8 to 11 for some cells, and a verdict a factor."""
    done = [cell for cell in chosen if cells.of(cell)]
    runs = sum(len(cells.of(cell)) for cell in done)
    if len(done) < 12:
        print(f"\n### {title}\n\nOnly {len(done)} cells are done: too few.")
        return
    for what in ("accuracy", "loss"):
        at = {cell: cells.median(cell, what) for cell in done}
        at = {cell: value for cell, value in at.items() if math.isfinite(value)}
        left = (
            f", {len(done) - len(at)} without a finite loss left out" if len(at) < len(done) else ""
        )
        normal, tests = [], []
        for factor in factors:
            levels = _levels(at, factor)
            for level, values in levels.items():
                shapiro = stats.shapiro(values)
                normal.append([factor, f"{level}", f"{shapiro.statistic:.3f}",
                               str(len(values)), _p(shapiro.pvalue)])  # fmt: skip
            tests.append(_compared(factor, levels, _blocks(at, factor, list(levels)), what))
        count = f"{len(at)} cells of {runs} runs{left}"
        print_table(f"{title}: is {what} normal? ({count})",
                    ["factor", "level", "Shapiro-Wilk W", "cells", "p"], normal)  # fmt: skip
        print_table(
            f"{title}: does {what} differ? ({count})",
            ["factor", "their test", "U or H", "p", "would find", "pairs or blocks", "p of pairs",
             "would find", "median difference, first less second", "verdict"], tests,
        )  # fmt: skip


def _levels(at: dict[Cell, float], factor: str) -> dict[Any, np.ndarray]:
    found: dict[Any, list[float]] = defaultdict(list)
    for cell, value in at.items():
        found[getattr(cell, factor)].append(value)
    return {level: np.array(values) for level, values in found.items()}


def _blocks(at: dict[Cell, float], factor: str, levels: list[Any]) -> np.ndarray:
    """Return (blocks, levels): the cells that differ in this factor alone, side by side."""
    found: dict[tuple[Any, ...], dict[Any, float]] = defaultdict(dict)
    for cell, value in at.items():
        rest = tuple(v for name, v in asdict(cell).items() if name != factor)
        found[rest][getattr(cell, factor)] = value
    whole = [[block[level] for level in levels] for block in found.values()
             if len(block) == len(levels)]  # fmt: skip
    return np.array(whole).reshape(-1, len(levels))


def unpaired(groups: Groups) -> tuple[float, float]:
    """Return the statistic and p of Mann-Whitney, or of Kruskal-Wallis among three or more."""
    if len(groups) == 2:
        found = stats.mannwhitneyu(*groups, use_continuity=False, method="asymptotic")
        return min(found.statistic, len(groups[0]) * len(groups[1]) - found.statistic), found.pvalue
    found = stats.kruskal(*groups)
    return found.statistic, found.pvalue


def paired(blocks: np.ndarray) -> float:
    """Return p of Wilcoxon's signed-rank test, or of Friedman's among three or more levels."""
    if blocks.shape[1] == 2:
        differences = blocks[:, 0] - blocks[:, 1]
        return (
            1.0
            if not differences.any()
            else float(stats.wilcoxon(differences, method="approx").pvalue)
        )
    return float(stats.friedmanchisquare(*blocks.T).pvalue)


def _compared(
    factor: str, levels: dict[Any, np.ndarray], blocks: np.ndarray, what: str
) -> list[str]:
    """Return one line of Table 10 or 11, with the paired test and a verdict."""
    groups, names = list(levels.values()), list(levels)
    statistic, p = unpaired(groups)
    blind = least_shift(_shifted_groups(groups), what)
    test = "Mann-Whitney" if len(groups) == 2 else "Kruskal-Wallis"
    line = [" / ".join(f"{name}" for name in names), test, f"{statistic:.5g}", _p(p), _shift(blind)]
    if len(blocks) < 6:
        return [f"{factor}: {line[0]}", *line[1:], str(len(blocks)), "-", "-", "-",
                _verdict(p, None, names, None, what)]  # fmt: skip
    p_pairs = paired(blocks)
    sharp = least_shift(_shifted_blocks(blocks), what)
    middle = np.median(blocks - blocks.mean(axis=1, keepdims=True), axis=0)
    difference = float(np.median(blocks[:, 0] - blocks[:, 1])) if len(names) == 2 else None
    shown = f"{difference:+.3f}" if difference is not None else ", ".join(
        f"{name} {value:+.3f}" for name, value in zip(names, middle, strict=True)
    )  # fmt: skip
    words = _verdict(p, p_pairs, names, middle, what)
    return [f"{factor}: {line[0]}", *line[1:], str(len(blocks)), _p(p_pairs), _shift(sharp),
            shown, words]  # fmt: skip


def _verdict(
    p: float, p_pairs: float | None, names: list[Any], middle: np.ndarray | None, what: str
) -> str:
    """Return in words what both tests say of a factor."""
    if p_pairs is None or middle is None:
        return "differs" if p < LEVEL else "no difference that their test shows"
    if p >= LEVEL and p_pairs >= LEVEL:
        return "no difference that these cells show"
    best = names[int(np.argmax(middle) if what == "accuracy" else np.argmin(middle))]
    if p < LEVEL and p_pairs < LEVEL:
        return f"{best} is best, by both tests"
    if p_pairs < LEVEL:
        return f"{best} is best, by the pairs; their test misses it"
    return "differs by their test, not by the pairs"


def _shifted_groups(groups: Groups) -> Callable[[float, np.random.Generator], float]:
    pool = np.concatenate(groups)

    def p(shift: float, generator: np.random.Generator) -> float:
        drawn = [generator.choice(pool, len(group)) for group in groups]
        drawn[0] = drawn[0] + shift
        return unpaired(drawn)[1]

    return p


def _shifted_blocks(blocks: np.ndarray) -> Callable[[float, np.random.Generator], float]:
    centred = blocks - blocks.mean(axis=1, keepdims=True)
    centred = centred - np.median(centred, axis=0)

    def p(shift: float, generator: np.random.Generator) -> float:
        drawn = centred[generator.integers(len(centred), size=len(centred))]
        drawn = generator.permuted(drawn, axis=1)
        drawn[:, 0] += shift
        return paired(drawn)

    return p


def least_shift(p: Callable[[float, np.random.Generator], float], what: str) -> float:
    """Return the least shift that a test finds with the power asked for; infinite if none does."""
    steps = np.array([0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5])
    steps = steps * (1.0 if what == "accuracy" else 4.0)
    low, high = 0, len(steps)  # power grows with the shift
    while low < high:
        middle, generator = (low + high) // 2, np.random.default_rng(0)
        found = np.mean([p(float(steps[middle]), generator) < LEVEL for _ in range(DRAWS)])
        low, high = (low, middle) if found >= POWER else (middle + 1, high)
    return float(steps[low]) if low < len(steps) else math.inf


def _shift(value: float) -> str:
    return "none tried" if math.isinf(value) else f"{value:.2g}"


def _p(value: float) -> str:
    return "< .0001" if value < 1e-4 else f"{value:.4f}"


def print_per_layer(rows: list[Row]) -> None:
    """Print what the printed per-layer clip lets through, and the verdict on it."""
    chosen = [row for row in rows if row["kind"] == "per-layer clip" and row["seed"] == 0]
    print_table(
        "PerlayerClip as printed, C(j) = norm / m: one record's gradient, its loss times a factor",
        ["network", "factor", "the gradient's norm", "after the printed clip",
         "after PerLayer(C = 1)"],
        [[row["network"], f"{row['scale']:g}", f"{row['gradient']:.4g}",
          f"{row['as_printed']:.4g}", f"{row['per_layer']:.4g}"] for row in chosen],
    )  # fmt: skip
    for network in NETWORKS:
        own = [row for row in chosen if row["network"] == network]
        if len(own) < 2:
            continue
        factor = own[-1]["scale"] / own[0]["scale"]
        grown = own[-1]["as_printed"] / own[0]["as_printed"]
        kept = max(row["per_layer"] for row in own)
        verdict = "bounds nothing" if grown > 0.5 * factor else "bounds this record"
        print(
            f"\n{network}: a gradient {factor:g} times as large adds {grown:.6g} times as much: "
            f"the printed clip {verdict}; PerLayer lets through {kept:.4g} at most."
        )


def print_misprints(known: Cells, chosen: list[Cell]) -> None:
    """Print where the paper's Mann-Whitney tables differ from the tests of its own cells."""
    print("\n### The paper's Tables 10 and 11, computed again from its Tables 3 to 5\n")
    same = 0
    for (what, factor), (u, p) in MANN_WHITNEY.items():
        at = {cell: known.median(cell, what) for cell in chosen}
        groups = list(_levels(at, factor).values())
        found_u, found_p = unpaired(groups)
        most = len(groups[0]) * len(groups[1])
        found_u = found_u if u <= most / 2 else most - found_u
        if abs(found_u - u) < 1 and abs(found_p - p) < 2e-3:
            same += 1
            continue
        print(
            f"- {what}, {factor}: printed U {u:g}, p {p:g}; its cells give U {found_u:g}, p "
            f"{_p(found_p)}, so {'a' if found_p < LEVEL else 'no'} difference at .05 (the print "
            f"says {'a' if p < LEVEL else 'no'} difference)"
        )
    print(f"- the other {same} of {len(MANN_WHITNEY)} lines agree")
    pairs = [(known.median(cell, "accuracy"), known.median(cell, "loss")) for cell in chosen]
    copies = sum(pairs.count(pair) > 1 for pair in pairs)
    print(f"- {copies} of {len(pairs)} cells have the accuracy and the loss of another cell")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    rows = read(parser.parse_args().full)
    ours, known = Cells(row for row in rows if row["kind"] == "run"), paper()
    print_printed(ours, known["3-5"])
    print_private(ours)
    print_tpvd(ours, known["6"])
    print_adaptive(ours, known["7"])
    print_sweep(ours, known["12"])
    print_priced(ours)
    print_per_layer(rows)
    grid = [cell for cell in printed_cells() if cell.order in ("CA", "AC")]
    factors = ("data", "network", "optimizer", "sigma", "clip", "order")
    named = {"mnist": "mnist", "fashion-mnist": "svhn", CIFAR: "cifar10"}
    of_paper = [replace(cell, data=named[cell.data]) for cell in grid]
    print_misprints(known["3-5"], of_paper)
    print_tests("The paper's own 96 cells", known["3-5"], of_paper, factors)
    print_tests("Our cells, the same sigma and C", ours, grid, factors)
    for optimizer in OPTIMIZERS:
        for whose, cells, chosen in (("our", ours, grid), ("the paper's", known["3-5"], of_paper)):
            own = [cell for cell in chosen if cell.optimizer == optimizer]
            print_tests(f"The order with {optimizer} alone, {whose} cells", cells, own, ("order",))
    bounded = [cell for cell in priced_cells() if cell.order == "CA"]
    plain = [cell for cell in priced_cells() if cell.bounding == "flat"]
    print_tests("At one price, by bounding", ours, bounded,
                ("data", "network", "optimizer", "bounding"))  # fmt: skip
    print_tests("At one price, by order", ours, plain, ("order", "optimizer"))


if __name__ == "__main__":
    main()
