"""What one command finds, and how long it takes: `auto`, `fixed`, `rs` and `paas` on digits, MNIST.

Every repetition is the command itself in a process of its own, start-up included; accuracies are
those the command releases, noise included. Repetitions of the arms take turns, so that a slow
quarter of an hour meets all of them. One JSON line a repetition, so a study can be resumed: what
is in the results already is not run again. Without --seed: the noise is the operating system's.

Usage: python benchmarks/architecture_search/run.py digits --repeats 5
       python benchmarks/architecture_search/run.py mnist --data-root DIR --repeats 5
       python benchmarks/architecture_search/run.py mnist --data-root DIR --device cuda --full
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUDGETS = {
    "auto": {"digits": ("2", "1e-4"), "mnist": ("1", "1e-5"), "fashion-mnist": ("1", "1e-5")},
    "other": {"digits": ("2", "1e-4"), "mnist": ("3", "1e-5"), "fashion-mnist": ("3", "1e-5")},
}
ARMS = {
    "auto": [],
    "fixed": ["--strategy", "fixed", "--space", "fcn"],
    "rs": ["--strategy", "rs", "--space", "fcn"],
    "paas 4 x 3": [
        "--strategy", "paas", "--space", "fcn", "--candidates", "4", "--generations", "3",
    ],
}  # fmt: skip
FULL = {
    "rs aside": ["--strategy", "rs", "--space", "fcn", "--search-share", "0.2"],
    "mgrs": ["--strategy", "mgrs", "--space", "fcn", "--candidates", "8"],
    "paas 5 x 4": [
        "--strategy", "paas", "--space", "fcn", "--candidates", "5", "--generations", "4",
    ],
}  # fmt: skip


def budget(data: str, arm: str) -> tuple[str, str]:
    """Return epsilon and delta of an arm."""
    return BUDGETS["auto" if arm == "auto" else "other"][data]


def command(data: str, name: str, arm: list[str], options: argparse.Namespace) -> list[str]:
    """Return the command of one repetition, less its folder."""
    epsilon, delta = budget(data, name)
    words = ["arch", data, "--eps", epsilon, "--delta", delta, *arm, "--device", options.device]
    return words if data == "digits" else [*words, "--data-root", str(options.data_root)]


def repetition(words: list[str]) -> dict[str, Any]:
    """Run the command in a new process and folder; return what it released and its wall time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "pasearch", *words, "--quiet", "--out", str(out)], check=True
        )
        seconds = time.perf_counter() - start
        document = json.loads((out / "release" / "result.json").read_text())
    return {
        "accuracy": round(document["score"]["test"], 5),
        "epsilon": document["price"]["epsilon"],
        "best": document["best"]["architecture"],
        "seconds": round(seconds, 1),
        "torch": document["versions"]["torch"],
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Return medians and ranges by data and arm, as Markdown."""
    rows = [
        "| data, budget | arm | runs | accuracy: median (least, most) | seconds: median (most) |"
    ]
    rows.append("|---|---|---|---|---|")
    for key in sorted({(line["data"], line["arm"], line["device"]) for line in lines}):
        mine = [line for line in lines if (line["data"], line["arm"], line["device"]) == key]
        found = sorted(line["accuracy"] for line in mine)
        times = [line["seconds"] for line in mine]
        epsilon, delta = budget(*key[:2])
        rows.append(
            f"| {key[0]}, ({epsilon}, {delta}), {key[2]} | `{key[1]}` | {len(mine)} | "
            f"{statistics.median(found):.4f} ({found[0]:.4f}, {found[-1]:.4f}) | "
            f"{statistics.median(times):.0f} ({max(times):.0f}) |"
        )
    return "\n".join(rows)


def main() -> None:
    """Run what is missing, append to the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=tuple(BUDGETS["auto"]))
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, *FULL), default=list(ARMS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="The other strategies too.")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "runs.jsonl")
    options = parser.parse_args()
    options.out.parent.mkdir(exist_ok=True)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if (
        options.out.exists()
    ) else []  # fmt: skip
    arms = {**ARMS, **(FULL if options.full else {})}
    chosen = {name: arm for name, arm in arms.items() if options.full or name in options.arms}
    for number in range(options.repeats):
        for name, arm in chosen.items():
            key = {"data": options.data, "arm": name, "device": options.device, "repeat": number}
            if any(all(line[part] == value for part, value in key.items()) for line in lines):
                continue
            words = command(options.data, name, arm, options)
            shown = "pasearch " + " ".join("DIR" if word == str(options.data_root) else word
                                           for word in words)  # fmt: skip
            line = {**key, **repetition(words), "date": date.today().isoformat(),
                    "cores": os.cpu_count(), "command": shown}  # fmt: skip
            lines.append(line)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
