"""Print Yu et al.'s Table II, and the Cancer experiment, from the results: ours beside theirs.

A schedule is compared with uniform noise over as many epochs at the same price: only that tells
whether *falling* noise helps. The verdict counts seeds that agree, and says when they do not.

Usage: python benchmarks/schedules/table.py
"""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
from run import RESULTS

THEIRS = {
    "uniform": (0.919, None), "time": (0.931, 0.925), "step": (0.929, 0.925),
    "exponential": (0.929, 0.925), "polynomial": (0.932, 0.929), "validation": (0.930, 0.926),
}  # fmt: skip
"""Table II, test accuracy: of the schedule, and of uniform noise over as many epochs."""


def verdict(falling: dict[int, float], uniform: dict[int, float]) -> str:
    """Return in words what the seeds say that both have."""
    gains = [falling[seed] - uniform[seed] for seed in falling if seed in uniform]
    if not gains:
        return "-"
    better, median = sum(gain > 0 for gain in gains), float(np.median(gains))
    if better == len(gains):
        words = "falling noise helps"
    elif better == 0:
        words = "falling noise does not help"
    else:
        words = "seeds disagree"
    return f"{words} ({median:+.4f}; {better} of {len(gains)} seeds)"


HEADS = (
    "schedule", "seeds", "epochs", "test (min, max)", "theirs", "uniform, as many epochs", "theirs",
    "no noise, as many", "sound price", "claimed", "reading",
)  # fmt: skip


def main() -> None:
    """Print one table a study, in Markdown."""
    cells: dict[str, dict[str, dict[int, dict]]] = defaultdict(lambda: defaultdict(dict))
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        cells[row["study"]][row["arm"]][row["seed"]] = row
    for study, arms in cells.items():
        print(f"\n{study}\n\n| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
        for arm, rows in arms.items():
            if "the epochs of" not in arm:
                print(f"| {' | '.join(line(study, arm, rows, arms))} |")


def line(study: str, arm: str, rows: dict[int, dict], arms: dict[str, dict]) -> list[str]:
    """Return a schedule's cells."""
    tests = _tests(rows)
    same = _tests(arms.get(f"uniform, the epochs of {arm}", {}))
    silent = _tests(arms.get(f"no noise, the epochs of {arm}", {}))
    epochs = sorted({row["epochs"] for row in rows.values()})
    theirs = THEIRS.get(arm, (None, None)) if study == "mnist" else (None, None)
    return [
        arm,
        str(len(tests)),
        "-".join(str(each) for each in dict.fromkeys((epochs[0], epochs[-1]))),
        f"{_median(tests)} ({min(tests.values()):.4f}, {max(tests.values()):.4f})",
        _printed(theirs[0]),
        _median(same),
        _printed(theirs[1]),
        _median(silent),
        f"{max(row['sound'] for row in rows.values()):.2f}",
        f"{max(row['claimed'] for row in rows.values()):.2f}",
        verdict(tests, same),
    ]


def _tests(rows: dict[int, dict]) -> dict[int, float]:
    return {seed: row["test"] for seed, row in rows.items()}


def _median(values: dict[int, float]) -> str:
    return f"{np.median(list(values.values())):.4f}" if values else "-"


def _printed(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
