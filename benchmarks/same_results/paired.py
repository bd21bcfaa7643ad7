"""Runs whole commands with many seeds in one version, and compares two versions run by run.

    python benchmarks/same_results/paired.py run --tree . --out after.jsonl --seeds 20
    python benchmarks/same_results/paired.py compare before.jsonl after.jsonl

`run` writes one JSON line per command and seed: test score, log loss over the whole table, privacy
cost and seconds of the processor. Lines that `--out` holds are not run again. `compare` pairs the
lines of two files by command and seed, prints the difference of the scores with a 95 % confidence
interval over all pairs, and lists every privacy cost that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data"

LOG_LOSS = """
import sys, numpy, pandas, pasearch
model, frame = pasearch.load(sys.argv[1]), pandas.read_csv(sys.argv[2])
target = frame.pop(frame.columns[-1]).astype(str).to_numpy()
p = model.predict_proba(frame)
classes = [str(each) for each in model.classes_]
own = [p[i, classes.index(y)] if y in classes else 0.0 for i, y in enumerate(target)]
print(-numpy.log(numpy.clip(own, 1e-15, 1.0)).mean())
"""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    run = parts.add_parser("run")
    run.add_argument("--tree", type=Path, required=True, help="A checkout of the version to run.")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--seeds", type=int, default=20)
    run.add_argument("--only", nargs="+", help="Names of commands.toml. Default: all.")
    run.add_argument("--data", type=Path, default=DATA)
    compare = parts.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.part == "run":
        record(given.tree.resolve(), given.out, given.seeds, given.only, given.data.resolve())
    else:
        print(comparison(lines_of(given.before), lines_of(given.after)))


def record(tree: Path, out: Path, seeds: int, only: list[str] | None, data: Path) -> None:
    """Run the commands that `out` does not hold yet, seed by seed, and append a line for each."""
    commands = tomllib.loads((HERE / "commands.toml").read_text())["commands"]
    done = lines_of(out) if out.exists() else {}
    for seed in range(1, seeds + 1):
        for name in only or commands:
            if (name, seed) not in done:
                line = {
                    "command": name,
                    "seed": seed,
                    **result_of(commands[name], seed, tree, data),
                }
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def result_of(command: str, seed: int, tree: Path, data: Path) -> dict[str, Any]:
    """Run one command in a process of its own, and read what it left."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:

        def schema(found: re.Match[str]) -> str:
            path = Path(folder) / "schema.toml"
            table = str(data / "tabular" / f"{found[1]}.csv")
            pasearch("check", table, "--propose", str(path))
            text = path.read_text()  # of public data: nothing to edit
            path.write_text(text.replace("proposed = true\n", ""))
            return str(path)

        def pasearch(*words: str) -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-m", "pasearch", *words], env=environment, cwd=folder,
                check=True, capture_output=True,
            )  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        words = re.sub(r"\{schema:([\w-]+)\}", schema, command.replace("{data}", str(data))).split()
        seconds = pasearch(*words, "--seed", str(seed), "--out", "run", "--device", "cpu")
        release = Path(folder) / "run" / "release"
        result = json.loads((release / "result.json").read_text())
        log_loss = None
        if words[1].endswith(".csv") and "--regression" not in words:
            found = subprocess.run(
                [sys.executable, "-c", LOG_LOSS, str(Path(folder) / "run"), words[1]],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            log_loss = float(found.stdout) if found.returncode == 0 else None
    return {
        "score": result["score"]["test"], "log_loss": log_loss, "seconds": round(seconds, 2),
        "price": result["price"], "version": result["versions"]["pasearch"],
    }  # fmt: skip


def lines_of(file: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Read the lines of a file, by command and seed."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {(line["command"], line["seed"]): line for line in lines}


def comparison(
    before: dict[tuple[str, int], dict[str, Any]], after: dict[tuple[str, int], dict[str, Any]]
) -> str:
    """Describe the pairs of two recordings as a table and two sentences."""
    pairs = sorted(before.keys() & after.keys())
    rows = ["| command | pairs | score, after - before | log loss | time, after / before |",
            "|---|---|---|---|---|"]  # fmt: skip
    for name in dict.fromkeys(command for command, _ in pairs):
        own = [(before[pair], after[pair]) for pair in pairs if pair[0] == name]
        score = np.array([new["score"] - old["score"] for old, new in own])
        losses = [new["log_loss"] - old["log_loss"] for old, new in own
                  if None not in (new["log_loss"], old["log_loss"])]  # fmt: skip
        loss = f"{np.mean(losses):+.4f}" if losses else "-"
        low, middle, high = np.quantile([new["seconds"] / old["seconds"] for old, new in own],
                                        (0.25, 0.5, 0.75))  # fmt: skip
        rows.append(
            f"| {name} | {len(own)} | {score.mean():+.4f} | {loss} | "
            f"{middle:.2f} ({low:.2f}, {high:.2f}) |"
        )
    scores = np.array([after[pair]["score"] - before[pair]["score"] for pair in pairs])
    half = 1.96 * scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else np.inf
    costs = [pair for pair in pairs if before[pair]["price"] != after[pair]["price"]]
    rows += [
        "",
        f"Over {len(pairs)} pairs the scores differ by {scores.mean():+.5f} "
        f"(95 % CI {scores.mean() - half:+.5f} to {scores.mean() + half:+.5f}).",
        f"Privacy costs that differ: {', '.join(map(str, costs)) or 'none'}.",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    main()
