"""How long it takes to start: processor time of whole processes, beside what others take to import.

    python benchmarks/start/run.py --repeats 7

Every round runs each command once, in turn, with one thread; the medians of all rounds are printed
with their quartiles, and the ratio to `import torch` of the same round. One JSON line a round is
added to `results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

PASEARCH = [sys.executable, "-m", "pasearch"]
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import opacus": [sys.executable, "-c", "import opacus"],
    "import pandas, sklearn.linear_model": [
        sys.executable, "-c", "import pandas, sklearn.linear_model",
    ],
    "pasearch --help": [*PASEARCH, "--help"],
    "pasearch plan arch digits --eps 2": [*PASEARCH, "plan", "arch", "digits", "--eps", "2"],
    "pasearch arch digits --eps 2": [*PASEARCH, "arch", "digits", "--eps", "2", "--out", "RUN"],
}  # fmt: skip
RESULTS = Path(__file__).parent / "results" / "start.jsonl"


def processor_seconds(command: list[str]) -> float:
    """Return what a process and its children took of all processors, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        own = [str(Path(folder) / "run") if word == "RUN" else word for word in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            own, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    rounds = []
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        for _ in range(repeats + 1):
            rounds.append({name: processor_seconds(c) for name, c in COMMANDS.items()})
            if len(rounds) == 1:  # the files are cold
                continue
            line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": rounds[-1]}
            out.write(json.dumps(line) + "\n")
            out.flush()
    print("| command | processor seconds, median (quartiles) | of `import torch` |\n|---|---|---|")
    for name in COMMANDS:
        own = np.array([each[name] for each in rounds[1:]])
        low, middle, high = np.quantile(own, (0.25, 0.5, 0.75))
        ratio = np.median([each[name] / each["import torch"] for each in rounds[1:]])
        print(f"| `{name}` | {middle:.2f} ({low:.2f}, {high:.2f}) | {ratio:.2f} |")


if __name__ == "__main__":
    main()
