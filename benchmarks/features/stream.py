"""Counting a CSV of any length: rows a second, and the most memory.

Writes a file of random records, a hundred columns by default (numbers with two decimals in turn
with categories of ten names, a class of two), counts all its tables in a process of its own, and
appends one line to the results. `--whole` runs `pasearch features` on the file instead: load,
means, choice, training and test, as a user would, with nothing but a schema said.

Usage: python benchmarks/features/stream.py --rows 5000000
       python benchmarks/features/stream.py --rows 5000000 --whole
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
from csv_tables import count_csv

from pasearch.data.tables import Column, TableSchema

RESULTS = Path(__file__).parent / "results" / "stream.jsonl"
PART = 20_000


def schema_of(columns: int) -> TableSchema:
    """Return what is declared about the columns, the class last."""
    names = tuple(f"v{k}" for k in range(10))
    return TableSchema(
        columns=tuple(
            Column(name=f"c{i}", categories=names)
            if i % 2
            else Column(name=f"c{i}", low=0.0, high=100.0)
            for i in range(columns - 1)
        ),
        target=Column(name="y", categories=("a", "b")),
    )


def write(path: Path, rows: int, columns: int) -> None:
    """Write the file, part by part."""
    rng, schema = np.random.default_rng(0), schema_of(columns)
    with path.open("w") as file:
        file.write(",".join(each.name for each in (*schema.columns, schema.target)) + "\n")
        for start in range(0, rows, PART):
            size = min(PART, rows - start)
            cells = [
                np.char.add("v", rng.integers(0, 10, size).astype(str))
                if i % 2
                else np.round(rng.uniform(0, 100, size), 2).astype(str)
                for i in range(columns - 1)
            ]
            cells.append(np.where(rng.random(size) < 0.5, "a", "b"))
            lines = zip(*(each.tolist() for each in cells), strict=True)
            file.write("".join(f"{','.join(line)}\n" for line in lines))


def counted(path: Path, columns: int) -> dict[str, float]:
    """Return how long the count took, in this process, and its largest memory."""
    began, processor = time.perf_counter(), time.process_time()
    slots = count_csv(path, schema_of(columns)).slots
    return {
        "rows": slots,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - processor, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def selected(path: Path, columns: int) -> dict[str, float | str]:
    """Return how long `pasearch features` took in a process of its own, and its largest memory."""
    schema, run = path.with_suffix(".toml"), path.with_name("run")
    schema.write_text(schema_of(columns).to_toml_text())
    command = [sys.executable, "-m", "pasearch", "features", path, "--schema", schema]
    began = time.perf_counter()
    with subprocess.Popen([*command, "--out", run, "--quiet"]) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(child.returncode)
    document = json.loads((run / "release" / "result.json").read_text())
    return {
        "what": "whole",
        "method": document["strategy"]["name"],
        "rows": document["dataset"]["n"],
        "features": document["best"]["of"],
        "chosen": len(document["best"]["features"]),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mib": round(used.ru_maxrss / 1024, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Write, count and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--columns", type=int, default=100, help="the class included")
    parser.add_argument("--whole", action="store_true", help="the whole selection, not the count")
    parser.add_argument("--folder", type=Path, help="where the file is put; a temporary one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.rows, options.columns)
        return
    if options.count:
        print(json.dumps(counted(options.count, options.columns)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "stream.csv"
        sizes = ["--rows", str(options.rows), "--columns", str(options.columns)]
        # Each in its own process: a child's largest memory starts at its parent's.
        subprocess.run([sys.executable, __file__, "--write", path, *sizes], check=True)
        if options.whole:
            found = selected(path, options.columns)
        else:
            command = [sys.executable, __file__, "--count", path, *sizes]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
        size = path.stat().st_size
    line = found | {
        "columns": options.columns, "file_mib": round(size / 2**20, 1),
        "date": date.today().isoformat(),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
