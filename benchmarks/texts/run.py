"""SMS Spam read word by word: recurrent networks at one total, vocabulary and search included.

Source: Bao et al., Appendix C-A, Table XIII (networks of Tables XXVII and XXVIII).

Each cell is one run of `search_architecture` with the paper's split (4,700 records to train, 836 to
test). The vocabulary is estimated privately from the test records, and all of the run together
costs the total. Accuracies are those that a run releases, noise included. Arms:

    simple, complex              the paper's networks, 150 words of a text
    simple 40, complex 40        the same with 40 words and 200 steps of 256, to compare the two
    gru                          one GRU of 16 units behind vectors of 16 numbers, 40 words
    search                       best of four networks of `--space rnn`, by successive halving
    rwt 40                       `complex 40`, of which the last two layers are trained (Table VI)
    default clipping             `simple` with flat clipping instead of AUTO-S
    command                      the default network of `--space rnn` with the default recipe

One JSON line per cell, so the study can be resumed. Seeds from 100 on were used to choose the
recipe; the tables have others.

Usage: python benchmarks/texts/run.py sms_spam.csv --seeds 5 --workers 1
       python benchmarks/texts/run.py --table
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pasearch

sys.path.insert(0, str(Path(__file__).parents[1]))
from cells import add_workers, measure, stored, workers_of

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "runs.jsonl"
NETWORKS = HERE.parents[1] / "examples" / "architectures"
EPSILON = 7.21

SIMPLE, COMPLEX = NETWORKS / "sms-rnn-simple.toml", NETWORKS / "sms-rnn-complex.toml"
LONG: dict[str, Any] = {"length": 150, "steps": 200, "batch": 512, "recipe": "auto-s"}
SHORT: dict[str, Any] = {"length": 40, "steps": 200, "batch": 256, "recipe": "auto-s"}
GRU = {"layers": [{"kind": "embedding", "units": 16}, {"kind": "gru", "units": 16}]}
RWT = {"layers": [
    {"kind": "embedding", "tokens": 1000, "units": 50, "trainable": False},
    {"kind": "lstm", "units": 256, "trainable": False},
    {"kind": "dense", "units": 512, "activation": "relu"},
]}  # fmt: skip
HALVING = {"strategy": "successive-halving", "candidates": 4, "space": "rnn"}

ARMS: dict[str, dict[str, Any]] = {
    "gru": {**LONG, "length": 40, "architecture": GRU},
    "search": {**LONG, "length": 40, **HALVING},
    "simple": {**LONG, "architecture": str(SIMPLE)},
    "simple 40": {**SHORT, "architecture": str(SIMPLE)},
    "complex 40": {**SHORT, "architecture": str(COMPLEX)},
    "rwt 40": {**SHORT, "architecture": RWT},
    "command": {"length": 150, "space": "rnn"},
    "default clipping": {**LONG, "recipe": "default", "architecture": str(SIMPLE)},
    "complex": {**LONG, "architecture": str(COMPLEX)},
}
"""Options of each arm; the last one needs hours on two cores."""

PAPER = {"simple": 0.9342, "complex": 0.8600}
"""Accuracies of Table XIII at epsilon 7.21."""


def run(options: argparse.Namespace, *, arm: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Run one search or training, and return what it released."""
    settings = dict(ARMS[arm])
    columns = {
        "label": {"categories": ["ham", "spam"]}, "text": {"length": settings.pop("length")}
    }  # fmt: skip
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = pasearch.search_architecture(
            options.data, schema={"target": "label", "columns": columns}, split="paper",
            budget=pasearch.Budget(epsilon), seed=seed, out=Path(folder) / "run", progress=False,
            **{"strategy": "fixed", **settings},
        )  # fmt: skip
        document = result.document
    column = document["dataset"]["schema"]["columns"][0]
    return {
        "accuracy": round(document["score"]["test"], 5), "price": document["price"]["epsilon"],
        "parameters": document["best"]["parameters"], "words": len(column["vocabulary"]),
        "best": document["best"]["architecture"], "steps": document["recipe"]["steps"],
        "batch": document["recipe"]["expected_batch_size"],
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def table(lines: list[dict[str, Any]]) -> str:
    """Return medians and ranges by arm and epsilon, as Markdown."""
    rows = [
        "| arm | epsilon | parameters | steps of batch | seeds | accuracy (range) | paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, epsilon in dict.fromkeys((each["arm"], each["epsilon"]) for each in lines):
        own = [each for each in lines if (each["arm"], each["epsilon"]) == (arm, epsilon)]
        found = sorted(each["accuracy"] for each in own)
        sizes = sorted({each["parameters"] for each in own})
        size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        printed = PAPER.get(arm.removesuffix(" 40")) if epsilon == EPSILON else None
        rows.append(
            f"| {arm} | {epsilon:g} | {size} | {own[0]['steps']} of {own[0]['batch']} | {len(own)} "
            f"| {statistics.median(found):.4f} ({found[0]:.4f}, {found[-1]:.4f}) "
            f"| {'-' if printed is None else f'{printed:.4f}'} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, help="sms_spam.csv, with columns label, text")
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS)[:-1])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[EPSILON])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="The arm `complex` too: hours.")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--table", action="store_true", help="Print the table of what there is.")
    add_workers(parser)
    options = parser.parse_args()
    arms = list(ARMS) if options.full else options.arms
    cells = [
        {"arm": arm, "epsilon": epsilon, "seed": seed}
        for seed in range(1, options.seeds + 1)
        for epsilon in options.epsilons
        for arm in arms
    ]
    if not options.table:
        measure(RESULTS, cells, run, options, workers=workers_of(options), minutes=options.minutes)
    print(table(stored(RESULTS)))


if __name__ == "__main__":
    main()
