"""How time and memory grow with the records, the parameters, the batch and the candidates.

    python benchmarks/speed/growth.py             measures all four: minutes
    python benchmarks/speed/growth.py --plot      draws results/growth.svg from what was measured

    records      10^4 ... 10^7 of 20 numbers, logistic regression, batch 256; Poisson and reshuffled
    parameters   784 - w - 10, w from 64 to 16,384, batch 100, 20,000 records
    batch        100 ... 25,600, 784 - 300 - 128 - 10, 60,000 records
    candidates   a whole search: PAAS, 2 generations of K = 4 ... 32 candidates of Table XI's space

Each point has a process of its own, three times; medians are told. A training makes 200 steps (of
parameters and batches, 30), its making included: what is done once, such as an epoch's order, is in
it. Trainings have one thread, and their times are the processor's, which a busy machine leaves as
they are; a search's time is the clock's, on all cores. Memory is what the process has at most
beyond what it had when the records lay ready. The last line of each says the exponent of the
growth, between its last two points: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from run import add_line, hold, machine

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results/growth.jsonl", HERE / "results/growth.svg"
POINTS: dict[str, list[int]] = {
    "records": [10**4, 10**5, 10**6, 10**7],
    "records, reshuffled": [10**4, 10**5, 10**6, 10**7],
    "parameters": [64, 256, 1024, 4096, 16_384],
    "batch": [100, 400, 1600, 6400, 25_600],
    "candidates": [4, 8, 16, 32],
}
REPEATS = 3


def memory() -> float:
    """Return the most memory that this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def made_up(records: int, numbers: int, classes: int) -> Any:
    """Return records, made without more memory than they take."""
    import torch

    from pasearch.data.partitions import Records

    return Records(
        x=torch.empty(records, numbers).uniform_(), y=torch.randint(classes, (records,)),
        valid=torch.ones(records, dtype=torch.bool), public=False,
    )  # fmt: skip


def training(
    records: Any, units: tuple[int, ...], classes: int, batch: int, batching: str, steps: int = 30
) -> dict[str, float]:
    """Return the time of a training, of a step of it, and the memory that both took."""
    from rows import CLIP, RATE, SIGMA

    from pasearch.runs.keys import Keys
    from pasearch.runs.normals import MIN_COMPILED_NUMBERS, choose_compiled_code
    from pasearch.spaces.architecture import Architecture
    from pasearch.spaces.layers import Dense
    from pasearch.training.clipping import FlatClipping
    from pasearch.training.recipe import Recipe
    from pasearch.training.trainer import Training, train

    shape, keys = tuple(records.x.shape[1:]), Keys()

    def ready(many: int, batch: int = batch, most: int = 2**20) -> tuple[Any, ...]:
        architecture = Architecture(layers=tuple(Dense(units=min(each, most)) for each in units))
        recipe = Recipe(
            expected_batch_size=batch, steps=many, learning_rate=RATE, noise_multiplier=SIGMA,
            batching=batching, bounding=FlatClipping(clip_norm=CLIP),
        )  # fmt: skip
        streams = {name: keys.stream(name, many) for name in ("batch", "noise", "dropout")}
        network = architecture.build(shape, classes, keys.stream("weights").generator())
        return network, records, recipe, streams

    choose_compiled_code(
        MIN_COMPILED_NUMBERS
    )  # as in every process that has drawn some millions of numbers
    network, _, recipe, streams = ready(2, 10, 8)  # what is loaded once is no part of it
    train(network, made_up(100, shape[0], classes), recipe, streams)
    before, start = memory(), time.process_time()
    network, records, recipe, streams = ready(steps)
    train(network, records, recipe, streams)
    whole = time.process_time() - start
    most = memory() - before
    network, _, recipe, streams = ready(10_000)
    under_way = Training(network, records, recipe, streams)
    under_way.step()
    start, done = time.process_time(), 0
    while done < 3 or (time.process_time() - start < 0.5 and done < 200):
        under_way.step()
        done += 1
    step = (time.process_time() - start) / done
    return {"training_s": whole, "step_ms": 1e3 * step, "memory_mb": most}


def search(candidates: int) -> dict[str, float]:
    """Return the time of a whole search, and the memory of this process."""
    import numpy as np

    from pasearch import Budget, search_architecture

    random = np.random.default_rng(1)
    x = random.random((5000, 784), dtype=np.float32)
    y = random.integers(10, size=5000)

    def run(many: int, steps: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            search_architecture(
                (x, y), budget=Budget(8.0), bounds=(0.0, 1.0), classes=10, strategy="paas",
                space="fcn-paper", candidates=many, generations=2, batch=100, steps=steps,
                out=Path(folder) / "run", device="cpu", progress=False,
            )  # fmt: skip

    run(2, 2)
    before, start = memory(), time.perf_counter()
    run(candidates, 20)
    return {"training_s": time.perf_counter() - start, "memory_mb": memory() - before}


WAYS: dict[str, Callable[[int], dict[str, float]]] = {
    "records": lambda n: training(made_up(n, 20, 2), (), 2, 256, "poisson", 200),
    "records, reshuffled": lambda n: training(made_up(n, 20, 2), (), 2, 256, "reshuffled", 200),
    "parameters": lambda w: training(made_up(20_000, 784, 10), (w,), 10, 100, "poisson"),
    "batch": lambda b: training(made_up(60_000, 784, 10), (300, 128), 10, b, "poisson"),
    "candidates": search,
}


def point(what: str, value: int) -> dict[str, float]:
    """Return one point, measured in a process of its own."""
    words = [sys.executable, __file__, "--point", what, str(value)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def exponent(points: list[dict[str, Any]], name: str) -> float:
    """Return the power with which something grows between the last two points."""
    first, last = points[-2:]
    if min(first[name], last[name]) <= 0.0:
        return math.nan
    return math.log(last[name] / first[name]) / math.log(last["value"] / first["value"])


def measure(given: argparse.Namespace) -> None:
    """Measure, print, and add a line a point to the results."""
    about = {
        "date": date.today().isoformat(), "machine": machine("cpu"),
        "command": " ".join(["python", "benchmarks/speed/growth.py", *sys.argv[1:]]),
    }  # fmt: skip
    for what in given.what or POINTS:
        # All points, then all again: what else the machine does meets them alike.
        rounds = [[point(what, value) for value in POINTS[what]]
                  for _ in range(REPEATS)]  # fmt: skip
        points = []
        for value, found in zip(POINTS[what], zip(*rounds, strict=True), strict=True):
            middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
            points.append({"what": what, "value": value, **middle})
            told = ", ".join(f"{name} {each:,.4g}" for name, each in middle.items())
            print(f"{what} {value:,}: {told}", flush=True)
            load = round(os.getloadavg()[0], 1)
            add_line(given.out, {**points[-1], "load": load, **about})
        names = [name for name in ("step_ms", "training_s", "memory_mb") if name in points[0]]
        told = ", ".join(f"{name} {exponent(points, name):.2f}" for name in names)
        print(f"{what}: grows with the power {told}\n", flush=True)


def draw(results: Path) -> None:
    """Draw time and memory, each against what it grows with, and what linear growth would be."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 8}
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for line in map(json.loads, results.read_text().splitlines()):
        latest[line["what"], line["value"]] = line
    shown = {"training_s": "training, s", "step_ms": "a step, ms", "memory_mb": "memory, MB"}
    panels = {"records": ("records", "records, reshuffled"), "parameters": ("parameters",),
              "batch": ("batch",), "candidates": ("candidates",)}  # fmt: skip
    titles = {"parameters": "width w of 784 - w - 10", "candidates": "candidates of a generation"}
    figure, axes = pyplot.subplots(3, 4, figsize=(9, 6), sharex="col", layout="constrained")
    for column, (panel, lines) in enumerate(panels.items()):
        for row, (name, label) in enumerate(shown.items()):
            axis = axes[row][column]
            for of in lines:
                points = sorted(
                    (value, each[name]) for (what, value), each in latest.items()
                    if what == of and each.get(name, 0) > 0
                )  # fmt: skip
                if not points:
                    continue
                axis.loglog(*zip(*points, strict=True), marker="o", ms=3, label=of)
                (x0, _), (x1, y1) = points[0], points[-1]
                axis.loglog((x0, x1), (y1 * x0 / x1, y1), color="0.7", lw=0.8, zorder=0)
            axis.minorticks_off()
            if panel == "candidates":
                axis.set_xticks(POINTS[panel], POINTS[panel])
            if not axis.lines:
                axis.set_axis_off()
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(titles.get(panel, panel), fontsize=8)
    axes[0][0].legend(fontsize=6)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", nargs="+", choices=POINTS, help="Default: all.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--plot", action="store_true", help="Draw, and measure nothing.")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plot:
        return draw(given.out)
    if given.point is None:
        return measure(given)
    what, value = given.point
    if WAYS[what] is not search:
        hold(1, "cpu")
        import torch

        torch.set_num_threads(1)
    print(json.dumps(WAYS[what](int(value))))


if __name__ == "__main__":
    main()
