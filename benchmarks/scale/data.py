"""Large tables: memory, disk and time of `pasearch arch` on a Parquet file, beside memory's.

    make   writes a table of random records: 40 numbers, 9 categories, a class; row groups of 2^17
    run    `pasearch arch TABLE --schema ... --strategy fixed` in a process of its own, watched:
           its largest resident memory, of which anonymous and mapped from files; seconds a stage.
           Small tables are kept on disk here too, to see what grows with the rows
    pairs  the same steps from memory and from disk, in turn, in one process: the ratios of their
           seconds, and of the processor's; and after the system was told to forget the files
           (`cold`)
    plan   what 10^8 rows would take, from the lines of `run`: arithmetic, not measured
    plot   draws what `run` measured against the number of rows

Usage: python benchmarks/scale/data.py make --rows 200000 --table /tmp/large/table.parquet
       python benchmarks/scale/data.py run --table /tmp/large/table.parquet --steps 10
       python benchmarks/scale/data.py pairs --table /tmp/large/table.parquet --rounds 7
       python benchmarks/scale/data.py plan --rows 100000000
       python benchmarks/scale/data.py plot
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

RESULTS = Path(__file__).parent / "results" / "data.jsonl"
GROUP = 2**17
NUMBERS, CATEGORIES = 40, 9
FRONT = "centred_pairs:256"
"""What `--strategy fixed` puts before its linear model on a table."""

WATCHED = re.compile(r"(VmHWM|RssAnon|RssFile|RssShmem):\s+(\d+) kB")


def make(table: Path, rows: int) -> None:
    """Write a table of random records, and its schema beside it."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    draw = np.random.default_rng(0)
    weights = draw.normal(size=NUMBERS) / 6
    table.parent.mkdir(parents=True, exist_ok=True)
    writer = None
    for start in range(0, rows, GROUP):
        many = min(GROUP, rows - start)
        values = draw.standard_normal((many, NUMBERS), dtype=np.float32)
        columns = {f"v{i}": pa.array(np.ascontiguousarray(values[:, i])) for i in range(NUMBERS)}
        for i in range(CATEGORIES):
            codes, names = draw.integers(0, 3 + i, many), [f"k{j}" for j in range(3 + i)]
            columns[f"c{i}"] = pa.DictionaryArray.from_arrays(
                pa.array(codes.astype(np.int8)), names
            )
        yes = (values @ weights + draw.standard_normal(many) > 0).astype(np.int8)
        columns["y"] = pa.DictionaryArray.from_arrays(pa.array(yes), ["no", "yes"])
        group = pa.table(columns)
        writer = writer or parquet.ParquetWriter(table, group.schema)
        writer.write_table(group)
    assert writer is not None
    writer.close()
    lines = ['target = "y"', "[columns.y]", 'categories = ["no", "yes"]']
    for i in range(NUMBERS):
        lines += [f"[columns.v{i}]", "low = -3", "high = 3"]
    for i in range(CATEGORIES):
        lines += [f"[columns.c{i}]", f"categories = {[f'k{j}' for j in range(3 + i)]}"]
    table.with_suffix(".toml").write_text("\n".join(lines) + "\n")


def run(table: Path, steps: int | None) -> dict[str, Any]:
    """Run `pasearch arch` on a table, watched, and return what it took."""
    with tempfile.TemporaryDirectory(dir=table.parent) as folder:
        stages = Path(folder) / "stages.json"
        own = [sys.executable, __file__, "watched", "--table", str(table), "--stages", str(stages)]
        begun = time.perf_counter()
        process = subprocess.Popen([*own, *([] if steps is None else ["--steps", str(steps)])])
        most: dict[str, int] = {}
        disk = 0
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            for name, kilobytes in WATCHED.findall(status):
                most[name] = max(most.get(name, 0), int(kilobytes) * 1024)
            disk = max(disk, _size(Path(folder)))
            time.sleep(0.1)
        seconds = time.perf_counter() - begun
        if process.wait():
            raise SystemExit(f"`pasearch arch` ended with {process.returncode}.")
        found = json.loads(stages.read_text())
    return {"seconds": seconds, "most_disk": disk, "most": most, **found}


def watched(table: Path, steps: int | None, stages: Path) -> None:
    """Be the process that `run` watches: the command line, with a clock at its stages."""
    from pasearch.cli import main as command_line
    from pasearch.data.disk import DiskRecords
    from pasearch.data.front_ends import CentredPairs
    from pasearch.data.parquet_files import ParquetFiles
    from pasearch.search import engine
    from pasearch.training.trainer import Training

    spent: dict[str, float] = {}
    timed = {
        "fingerprint": (ParquetFiles, "feed"),
        "read, encode, put in order": (DiskRecords, "_encode_records"),
        "fit": (CentredPairs, "fit"), "products": (DiskRecords, "_store_output"),
        "steps": (Training, "step"), "score": (engine, "counts"),
    }  # fmt: skip
    for stage, (owner, name) in timed.items():
        setattr(owner, name, _timed(getattr(owner, name), stage, spent))
    sys.argv = [
        "pasearch", "arch", str(table), "--schema", str(table.with_suffix(".toml")), "--strategy",
        "fixed", "--eps", "1", "--device", "cpu", "--out", str(stages.parent / "run"), "--quiet",
        *([] if steps is None else ["--steps", str(steps)]),
    ]  # fmt: skip
    try:
        with _at_once(0):
            command_line()
    except SystemExit as ended:
        if ended.code:
            raise
    result = json.loads((stages.parent / "run" / "release" / "result.json").read_text())
    recipe = result["recipe"]
    stages.write_text(
        json.dumps(
            {
                "stages": spent,
                "steps": recipe["steps"],
                "batch": recipe["expected_batch_size"],
                "front_end": result["best"]["front_end"],
            }
        )
    )


def _timed(function: Callable[..., Any], stage: str, spent: dict[str, float]) -> Callable[..., Any]:
    inside: list[str] = []

    def timed(*args: Any, **more: Any) -> Any:
        begun = time.perf_counter()
        inside.append(stage)
        try:
            return function(*args, **more)
        finally:
            inside.pop()
            if not inside:
                spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - begun

    return timed


def _size(folder: Path) -> int:
    """Return how many bytes the files of a folder have; those that vanish meanwhile none."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size
        except OSError:
            continue
    return found


@contextmanager
def _at_once(most: int) -> Iterator[None]:
    with mock.patch("pasearch.data.parquet_file.MAX_EAGER_CELLS", most):
        yield


def pairs(table: Path, rounds: int, batch: int | None, threads: int) -> dict[str, Any]:
    """Return microseconds a record of a step: from memory, from disk, and from a cold disk."""
    import torch

    from pasearch.data.front_ends.parsing import parse_front_end
    from pasearch.data.sources import load_dataset
    from pasearch.data.split import make_split
    from pasearch.runs.keys import Keys
    from pasearch.training.recipe import Recipe
    from pasearch.training.trainer import Training

    torch.set_num_threads(threads)
    keys, trainings, folder = Keys.from_seed(0), {}, Path()
    for where, most in (("memory", 2**62), ("disk", 0)):
        with _at_once(most):
            data = load_dataset(str(table), schema=table.with_suffix(".toml"), public=True)
        data.workspace = table.parent / "workspace"
        data.partition(make_split(data.n, scored=False), np.random.default_rng(0))
        records = data["train"].public_records()
        fitted = parse_front_end(FRONT).fit(
            records.x, records.valid, None, keys.stream("fit"), data.schema.row_layout
        )
        seen = data["train"].with_front_end(fitted).public_records()
        network = torch.nn.Linear(seen.x.shape[1], 2)
        for parameter in network.parameters():
            torch.nn.init.zeros_(parameter)
        recipe = Recipe(
            expected_batch_size=batch or len(seen), steps=1000, noise_multiplier=5.0,
            learning_rate=1.0, optimizer="momentum", momentum=0.9,
        )  # fmt: skip
        streams = {name: keys.stream(name) for name in ("batch", "noise", "dropout")}
        trainings[where] = Training(network, seen, recipe, streams), network, data
        trainings[where][0].step()
    folder, each = table.parent / "workspace", batch or len(seen)
    times: dict[str, list[float]] = {"memory": [], "disk": [], "cold": []}
    worked: dict[str, list[float]] = {where: [] for where in times}
    for _ in range(rounds):
        for where, spent in times.items():
            training = trainings["memory" if where == "memory" else "disk"][0]
            if where == "cold":
                _forget(folder)
            begun, busy = time.perf_counter(), time.process_time()
            training.step()
            spent.append((time.perf_counter() - begun) / each * 1e6)
            worked[where].append((time.process_time() - busy) / each * 1e6)
        trainings["memory"][0].step()  # as many as from disk, so that the weights stay equal
    equal = torch.equal(*(network.weight for _, network, _ in trainings.values()))

    def ratios(of: dict[str, list[float]]) -> dict[str, list[float]]:
        return {
            where: [own / other for own, other in zip(of[where], of["memory"], strict=True)]
            for where in ("disk", "cold")
        }

    return {
        "n": data.n, "batch": each, "threads": threads, "equal": equal, "microseconds": times,
        "processor": worked, "ratios": {"wall": ratios(times), "processor": ratios(worked)},
    }  # fmt: skip


def _forget(folder: Path) -> None:
    """Tell the system to forget what it keeps in memory of the files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def plan(rows: int) -> dict[str, Any]:
    """Return what so many rows would take: what the last lines measured, a record, times rows."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    measured = max((line for line in lines if line["what"] == "run"), key=lambda line: line["n"])
    few = min((line for line in lines if line["what"] == "run"), key=lambda line: line["n"])
    n, stages = measured["n"], measured["stages"]
    grows = rows / n
    memory = {
        name: most + (most - few["most"][name]) / (n - few["n"]) * (rows - n)
        for name, most in measured["most"].items()
    }
    once = sum(seconds for stage, seconds in stages.items() if stage != "steps")
    return {
        "rows": rows, "from_rows": n, "disk": measured["most_disk"] * grows, "memory": memory,
        "seconds_once": once * grows, "seconds_a_step": stages["steps"] / measured["steps"] * grows,
        "how": "extrapolated: bytes and seconds a record, times rows; no such table was made",
    }  # fmt: skip


def plot() -> None:
    """Draw memory, disk and time against the number of rows."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    lines = sorted((line for line in lines if line["what"] == "run"), key=lambda line: line["n"])
    rows = [line["n"] for line in lines]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    for name, label in (("VmHWM", "largest resident"), ("RssAnon", "of which anonymous")):
        left.plot(rows, [line["most"][name] / 2**30 for line in lines], "o-", label=label)
    disk = [line["most_disk"] / 2**30 for line in lines]
    left.plot(rows, disk, "s:", label="disk, while it runs")
    left.axhline(4, color="grey", linewidth=0.8, label="4 GiB")
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="GiB")
    once = [sum(v for k, v in line["stages"].items() if k != "steps") for line in lines]
    right.plot(rows, once, "o-", label="all but the steps, once")
    step = [line["stages"]["steps"] / line["steps"] for line in lines]
    right.plot(rows, step, "s-", label="one step over all records")
    right.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds")
    for axes in (left, right):
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".svg"))


def main() -> None:
    """Read the command line, and append a line to the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["make", "run", "watched", "pairs", "plan", "plot"])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, help="[default: those of the default recipe]")
    parser.add_argument("--batch", type=int, help="of pairs [default: all records]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stages", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "make":
        return make(given.table, given.rows)
    if given.what == "plot":
        return plot()
    if given.what == "watched":
        return watched(given.table, given.steps, given.stages)
    line: dict[str, Any] = {"date": date.today().isoformat(), "what": given.what}
    if given.what == "run":
        import pyarrow.parquet as parquet

        line |= {"n": parquet.ParquetFile(given.table).metadata.num_rows}
        line |= {"file": given.table.stat().st_size, **run(given.table, given.steps)}
    elif given.what == "pairs":
        line |= pairs(given.table, given.rounds, given.batch, given.threads)
        for clock, arms in line["ratios"].items():
            for where, found in arms.items():
                print(f"{where} / memory, {clock}: median {statistics.median(found):.2f}, "
                      f"{min(found):.2f} to {max(found):.2f}")  # fmt: skip
    else:
        line |= plan(given.rows)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps({name: value for name, value in line.items() if name != "ratios"}))
    return None


if __name__ == "__main__":
    main()
