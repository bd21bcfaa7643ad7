"""What each stage of a recipe adds to a plain DP step: under a tenth, is the aim.

The network and records of the row `fcn-2048`. Every way is the library's own step with one stage
changed; `plain` is Poisson, flat clipping, SGD. The ways take turns inside every round, and a
round's ratio is to the plain step of the same round. `screening` asks for an energy of 1,000 public
records at every step; `noise first` and `views` do other work by their nature: as many times more.

Usage: python benchmarks/speed/recipes.py --threads 1
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from peers import Setting, Step, ours
from rows import ROWS, SIGMA
from run import add_line, least

from pasearch.data.partitions import Records
from pasearch.training.clipping import AdaptiveClipping, AutoSClipping, PerLayerClipping
from pasearch.training.losses import compute_mean_loss
from pasearch.training.schedules import TimeDecay, ValidationSchedule
from pasearch.training.screening import Annealing

ROW = ROWS["fcn-2048"]
STAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "auto-s": {"bounding": AutoSClipping(bound=0.25)},
    "per layer": {"bounding": PerLayerClipping(clip_norm=0.25)},
    "adaptive, flat": {"bounding": AdaptiveClipping(clip_norm=0.25)},
    "adaptive, per layer": {"bounding": AdaptiveClipping(clip_norm=0.25, per_layer=True)},
    "truncated": {"batching": "truncated"},
    "reshuffled": {"batching": "reshuffled"},
    "schedule": {"schedule": TimeDecay(rate=0.05)},
    "schedule, by validation": {"schedule": ValidationSchedule(rate=0.7, threshold=0.01)},
    "adam": {"optimizer": "adam"},
    "adam-corrected": {"optimizer": "adam-corrected"},
    "screening": {"screening": Annealing(q0=10.0, mu0=10)},
}


def step_of(records: Records, seen: Records, batch: int, device: str, **stage: Any) -> Step:
    """Return the library's step with one stage changed."""
    row = replace(ROW, batch=batch)

    def judge(network: torch.nn.Module, asked: int) -> float:
        return compute_mean_loss(network, seen, device=device) if "screening" in stage else 0.5

    setting = Setting(row, records, device, SIGMA, whole=False)
    return ours(setting, query=judge, **stage)[0]


def main() -> None:
    """Measure, print the table, and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/recipes.jsonl")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    records = ROW.data(options.device)
    seen = replace(ROW.data(options.device, 1000), public=True)
    ways: dict[str, Step] = {
        name: step_of(records, seen, options.batch, options.device, **stage)
        for name, stage in STAGES.items()
    }
    for step in ways.values():
        least(step, 2, options.device)
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        times = {name: least(step, options.repeats, options.device) for name, step in ways.items()}
        for name in ways:
            ratios[name].append(times[name] / times["plain"])
    print("| stage | times a plain DP step: median (quartiles) |\n|---|---|")
    table = {}
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        table[name] = {"median": middle, "quartiles": [low, high]}
        print(f"| {name} | {middle:.2f} ({low:.2f}, {high:.2f}) |")
    row = {
        "date": date.today().isoformat(),
        "command": f"recipes.py --device {options.device} --threads {options.threads}",
        "rounds": options.rounds,
        "ratios": table,
    }
    add_line(options.out, row)


if __name__ == "__main__":
    main()
