"""From one machine to many: what Ray costs, what survives a loss, and how far it would scale.

    overhead     a generation on a Ray cluster of one node, one training at a time, against the same
                 trainings one by one in this process; the two take turns
    instants     a search on three nodes during which, at one of 20 instants, a worker's process is
                 killed, or a node; against the same search where nothing is lost
    parameters   what the simulation needs: how long it takes to hand a work over, and to copy the
                 records to another node
    simulate     efficiency for 1 to 1,000 workers, from the last line of `parameters`; no cluster

A training here takes two seconds and more. Trainings are those of benchmarks/generation.

Usage: python benchmarks/scale/run.py overhead --out benchmarks/scale/results/cpu.jsonl
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import sqlite3
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "generation"), str(HERE.parent.parent / "tests")]

from clusters import at_work, kill_one, nodes  # noqa: E402
from run import jobs  # type: ignore[import-not-found]  # noqa: E402

from pasearch import Budget, search_architecture  # noqa: E402
from pasearch.runs.cluster import Cluster  # noqa: E402
from pasearch.runs.executors import Executor, LocalExecutor, Work  # noqa: E402
from pasearch.search.candidate_training import train_in_parallel  # noqa: E402

LEAST = 2.0
"""Seconds of a training, at least."""

INSTANTS = 20


def summary(values: list[float]) -> dict[str, float]:
    """Return the median, and the quartiles as spread."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 6), "low": round(low, 6), "high": round(high, 6)}


def trained(given: list[Any], executor: Executor) -> tuple[list[torch.Tensor], float]:
    """Return all weights of a generation, and how many seconds it took."""
    start = time.perf_counter()
    found = [
        weight for network, _ in train_in_parallel(given, 1, 1, executor)
        for weight in network.state_dict().values()
    ]  # fmt: skip
    return found, time.perf_counter() - start


def long_enough(candidates: int, folder: Path) -> tuple[list[Any], float]:
    """Return trainings of `LEAST` seconds and more, each; and how long the shortest takes."""
    steps = 200
    while True:
        given = jobs(candidates, steps, Path(tempfile.mkdtemp(dir=folder)))
        least = min(trained([each], LocalExecutor())[1] for each in given)
        if least >= LEAST:
            return given, least
        steps = round(steps * max(1.2, 1.2 * LEAST / least))


@dataclass(frozen=True)
class Timed:
    """A work that also tells how long it took, wherever it was done."""

    do: Callable[..., bytes]

    def __call__(self, *read: Any) -> bytes:
        start = time.perf_counter()
        found = self.do(*read)
        return struct.pack("<d", time.perf_counter() - start) + found


def generation(given: list[Any], executor: Executor) -> tuple[list[bytes], float, float]:
    """Return a generation's weights, the seconds that it took, and those in its trainings alone."""
    works = [job.work(str(place), 1) for place, job in enumerate(given)]
    works = [replace(work, do=Timed(work.do)) for work in works]
    start = time.perf_counter()
    found = list(executor.run_in_order(works, 1, 1))
    seconds = time.perf_counter() - start
    return [each[8:] for each in found], seconds, sum(struct.unpack("<d", x[:8])[0] for x in found)


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Compare a generation on Ray with one by one, in turns."""
    ratios: list[float] = []
    outside: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        given, least = long_enough(options.candidates, Path(name))
        with Cluster(1) as ray:
            expected, *_ = generation(given, ray)  # so that its worker is there
            for _ in range(options.rounds):
                alone, one_by_one, own = generation(given, LocalExecutor())
                beside, on_ray, theirs = generation(given, ray)
                assert alone == beside == expected, "other bits"
                ratios.append(on_ray / one_by_one)
                outside.append((on_ray / theirs) / (one_by_one / own))
    return {
        "candidates": options.candidates, "rounds": options.rounds,
        "a training takes at least": LEAST, "same bits": True, "ray / one by one": summary(ratios),
        "the same, each per second in its trainings": summary(outside),
        "shortest training": round(least, 2),
    }  # fmt: skip


def searched(folder: Path, steps: int, **how: Any) -> tuple[Any, list[Any], float]:
    """Search made-up records; return what came out, the ledger's charges, and the seconds."""
    generator = np.random.Generator(np.random.PCG64(1))
    x = generator.random((4000, 20))
    start = time.perf_counter()
    result = search_architecture(
        (x, (x[:, 0] + x[:, 1] > 1).astype(int)), budget=Budget(3.0), bounds=(0.0, 1.0), classes=2,
        strategy="paas", space="fcn", candidates=4, generations=2, steps=steps, batch=200,
        device="cpu", seed=1, out=folder, **how,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    with sqlite3.connect(folder / "private" / "ledger.sqlite") as ledger:
        charges = sorted(ledger.execute("SELECT line, partition, key FROM charges"))
    kept = ("best", "score", "model", "trials", "price", "events")
    return {name: result.document[name] for name in kept}, charges, seconds


def instants(options: argparse.Namespace) -> dict[str, Any]:
    """Lose a process or a node at each instant; return how often all came out as without."""
    same: list[bool] = []
    struck: list[str] = []
    with tempfile.TemporaryDirectory() as name, nodes(3) as cluster:
        folder = Path(name)
        how = {"executor": "ray", "ray_address": cluster.address}
        with Cluster(None, cluster.address):  # one connection for all
            searched(folder / "warm", options.steps, **how)
            *expected, seconds = searched(folder / "whole", options.steps, **how)
            assert searched(folder / "local", options.steps, executor="local")[:2] == (
                tuple(expected)
            )  # fmt: skip
            for number in range(INSTANTS):
                lost = "node" if number % 2 else "process"
                done: list[bool] = []
                at = seconds * (number + 0.5) / INSTANTS
                strike = threading.Thread(target=_strike, args=(cluster, lost, at, done))
                strike.start()
                found = searched(folder / str(number), options.steps, **how)
                strike.join()
                same.append(done == [True] and list(found[:2]) == expected)
                struck.append(lost)
                print(json.dumps({"instant": number, "lost": lost, "same": same[-1]}), flush=True)
                if lost == "node":
                    cluster.add_node(num_cpus=1, object_store_memory=2**27)
                    cluster.wait_for_nodes()
    return {
        "instants": INSTANTS, "processes": struck.count("process"), "nodes": struck.count("node"),
        "result and ledger as without a loss": sum(same), "charges": len(expected[1]),
    }  # fmt: skip


def _strike(cluster: Any, lost: str, at: float, done: list[bool]) -> None:
    """Wait until then, and until something is at work; then lose it."""
    time.sleep(at)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if lost == "node" and at_work(cluster):
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            done.append(True)
            return
        if lost == "process" and kill_one(cluster):
            done.append(True)
            return
        time.sleep(0.01)
    done.append(False)


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what the simulation needs, each as a share of a training's time."""
    with tempfile.TemporaryDirectory() as name, nodes(2) as cluster:
        given, _ = long_enough(options.candidates, Path(name))
        with Cluster(None, cluster.address) as ray:
            works = [Work(key=str(place), do=bytes) for place in range(200)]
            seconds = [trained([each], LocalExecutor())[1] for each in given]
            mean = statistics.fmean(seconds)
            list(ray.run_in_order(works, 1, 1))
            rounds = range(options.rounds)
            dispatch = [_seconds(lambda: list(ray.run_in_order(works, 1, 1))) / 200 for _ in rounds]
            copies = [_copied(ray, cluster) for _ in rounds]
            own = ray.run_in_order([given[0].work("x", 1)], 1, 1)
            bytes_back = len(next(own))
    size = 4 * 20_000 * 785
    return {
        "dispatch / training": summary([each / mean for each in dispatch]),
        "copy of the records / training": summary([each / mean for each in copies]),
        "records": size, "weights": bytes_back, "rounds": options.rounds,
        "trainings": [round(each / mean, 3) for each in seconds],
    }  # fmt: skip


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _copied(ray: Executor, cluster: Any) -> float:
    """Return how long it takes to send the benchmark's records to a node, from an array here."""
    import ray as library

    @library.remote
    def received(array: np.ndarray) -> int:
        return len(array)

    array = np.random.default_rng(0).random((20_000, 785), dtype=np.float32)
    start = time.perf_counter()
    library.get(received.remote(library.put(array)))
    return time.perf_counter() - start


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate a generation on many workers, from the last measured parameters."""
    lines = [json.loads(line) for line in options.measured.read_text().splitlines()]
    known = next(line for line in reversed(lines) if "dispatch / training" in line)
    free = known | {name: {"median": 0.0} for name in SENDING}

    def row(of: dict[str, Any], per_worker: int) -> dict[str, float]:
        return {str(n): round(efficiency(of, n, per_worker), 3) for n in WORKERS}

    return {
        "from": known["date"], "workers a node": PER_NODE,
        "efficiency": {f"{each} a worker": row(known, each) for each in TRAININGS},
        "if sending took no time": {f"{each} a worker": row(free, each) for each in TRAININGS},
    }  # fmt: skip


SENDING = ("dispatch / training", "copy of the records / training")
WORKERS, TRAININGS = (1, 2, 4, 16, 64, 256, 1000), (1, 4, 10)


PER_NODE = 16
"""Workers of a node, which share one copy of the records."""


def efficiency(known: dict[str, Any], workers: int, per_worker: int) -> float:
    """Return the share of the workers' time in which they train, until the last has ended.

    The coordinator hands works over one after another, and the records to one node after another;
    a worker takes the next work when it is free. Times are in units of one training on average.
    """
    draw, count = random.Random(1), workers * per_worker
    dispatch, copy = (known[name]["median"] for name in SENDING)
    lengths = [draw.choice(known["trainings"]) for _ in range(count)]
    # A node's workers begin when its copy is there; the copies go out one after another.
    free = [(copy * (1 + worker // PER_NODE), worker) for worker in range(workers)]
    heapq.heapify(free)
    last = 0.0
    for place, length in enumerate(lengths):
        at, worker = heapq.heappop(free)
        end = max(at, dispatch * (place + 1)) + length
        last = max(last, end)
        heapq.heappush(free, (end, worker))
    return sum(lengths) / (workers * last)


def plot(options: argparse.Namespace) -> None:
    """Draw the last simulation that was kept."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "scale", "font.size": 8}
    lines = map(json.loads, options.measured.read_text().splitlines())
    last = [each for each in lines if "efficiency" in each][-1]
    figure, axes = pyplot.subplots(figsize=(5.2, 3))
    for name, colour in zip(last["efficiency"], ("#8a4b08", "#4b4a8f", "#17605a"), strict=True):
        for key, style in (("efficiency", "-"), ("if sending took no time", ":")):
            found = {int(workers): share for workers, share in last[key][name].items()}
            many = name.removesuffix(" a worker")
            told = f"{many} training{'s' * (many != '1')} a worker" if style == "-" else None
            axes.plot(found.keys(), found.values(), style, color=colour, label=told, marker=".")
    axes.set(xscale="log", ylim=(0, 1.05), xlabel="workers (simulated)",
             ylabel="share of time in which they train")  # fmt: skip
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "results" / "efficiency.svg", metadata={"Date": None})


def main() -> None:
    """Measure or simulate, print, and add a line to the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["overhead", "instants", "parameters", "simulate", "plot"])
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--measured", type=Path, default=HERE / "results" / "cpu.jsonl")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "plot":
        plot(options)
        return
    found = globals()[options.what](options)
    line = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/scale/run.py", *sys.argv[1:]]),
        "torch": torch.__version__, "cores": os.cpu_count(), **found,
    }  # fmt: skip
    print(json.dumps(line))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
