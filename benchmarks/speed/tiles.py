"""Which tiles a GPU's products of a generation are fastest with, call by call of a step.

    python benchmarks/speed/tiles.py --out benchmarks/speed/results/tiles.jsonl

Three works: ten and 60 networks of Table XI at batches of 100, and one FCN 784-300-128-10 at
2,048. Each call of a step is captured as often as takes about a millisecond, and replayed; told is
the median, in microseconds, of the tiles of `gpu.dense_steps` and of the five fastest others.
What has to be compiled is compiled beforehand, by as many processes as there are cores.

On a processor (`--device cpu`, TRITON_INTERPRET=1) kernels are interpreted, of a small network:
times mean nothing there, and show only that this program runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from pasearch.data.partitions import Records
from pasearch.gpu import dense_steps
from pasearch.gpu.dense_steps import DenseSteps, Tile, TrainingGroup
from pasearch.gpu.gpu_training import GpuTraining
from pasearch.runs.keys import Keys
from pasearch.search.candidate_training import STREAM_PURPOSES
from pasearch.spaces.parsing import make_space
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe

RECORDS, FEATURES, CLASSES, REPLAYS, FASTEST = 20_000, 784, 10, 9, 5

SIDES: dict[str, tuple[tuple[int, ...], ...]] = {
    "first": ((32, 64, 128), (64, 128), (32, 64, 128), (4, 8), (2, 3, 4)),
    "forward": ((16, 32, 64), (64,), (32, 64, 128), (4, 8), (2, 3, 4)),
    "backward": ((16, 32, 64), (32, 64), (32, 64), (4,), (2, 3)),
    "sums": ((64, 128), (64, 128), (16, 32, 64), (4, 8), (2, 3, 4)),
}
"""M, N, K, warps and stages of each product that are tried; interpreted, only the first of all."""


@dataclass(frozen=True)
class Work:
    """What is trained together: so many networks of a space, or its default; at a batch."""

    name: str
    space: str
    count: int
    batch: int
    steps: int = 512

    def codes(self, device: str) -> list[DenseSteps]:
        """Return the steps of its trainings, ready for the first."""
        generator, keys = torch.Generator().manual_seed(1), Keys.from_seed(1)
        n = RECORDS if device == "cuda" else 4 * self.batch
        records = Records(
            x=torch.rand((n, FEATURES), generator=generator).to(device),
            y=torch.randint(CLASSES, (n,), generator=generator).to(device),
            valid=torch.ones(n, dtype=torch.bool, device=device), public=False,
        )  # fmt: skip
        recipe = Recipe(
            expected_batch_size=self.batch, steps=self.steps, learning_rate=0.1,
            noise_multiplier=1.0, bounding=FlatClipping(clip_norm=0.25),
        )  # fmt: skip
        drawn, together, found = make_space(self.space), TrainingGroup(), []
        for number in range(self.count):
            stream = keys.stream("trial", number)
            genotype = drawn.default_genotype() if self.count == 1 else (
                drawn.draw(keys.stream("candidate", number).generator())
            )  # fmt: skip
            start = stream.child("weights").generator()
            network = drawn.candidate(genotype).build((FEATURES,), CLASSES, start)
            streams = {purpose: stream.child(purpose) for purpose in STREAM_PURPOSES}
            made = GpuTraining(network, records, recipe, streams, device=device, together=together)
            assert made._dense_steps is not None, "it has kernels"
            made._dense_steps.prepare(0)
            found.append(made._dense_steps)
        return found


WORKS = [
    Work("ten of Table XI at 100", "fcn-paper", 10, 100),
    Work("60 of Table XI at 100", "fcn-paper", 60, 100),
    Work("FCN at 2,048", "fcn", 1, 2048),
]


def calls_of(codes: list[DenseSteps], name: str, tile: Tile) -> list[Callable[[], None]]:
    """Return the calls of one kind of a step, by other tiles than usual."""
    usual = codes[0].tiles
    try:
        for code in codes:
            vars(code)["tiles"] = replace(usual, **{name: tile}) if name in SIDES else usual
        plan = dense_steps._CallPlan(codes)
    finally:
        for code in codes:
            vars(code)["tiles"] = usual
    at = plan._at[0]
    return [
        partial(plan._kernels.run_kernel, kind, work, *plan._tables, at, **about)
        for kind, work, about in plan._calls if kind == name
    ] + [
        partial(plan._noise.release, plan._blocks, plan._tables[0], at, kept=False)
        for _ in range(name == "factors")
    ]  # fmt: skip


def microseconds(calls: list[Callable[[], None]], device: str) -> float:
    """Return how long the calls take, together."""

    def once() -> None:
        for call in calls:
            call()

    start = time.perf_counter()
    once()
    if device != "cuda":
        return 1e6 * (time.perf_counter() - start)
    times = []
    for many in (3, None):  # the second time as many as take a millisecond
        many = many or max(1, round(1e3 / times[-1]))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(many):
                once()
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / many)
    return statistics.median(times)


def tiles(name: str, device: str) -> Iterator[Tile]:
    """Yield what is tried of a product."""
    sides = [side if device == "cuda" else side[:1] for side in SIDES[name]]
    for m, n, k, warps, stages in product(*sides):
        room = k * (m + n) * stages <= 56 * 1024  # a program's memory: 227 KB
        if room and m * n <= 32 * 64 * warps:
            yield {"M": m, "N": n, "K": k, "num_warps": warps, "num_stages": stages}


def compile_part(device: str, part: int, parts: int) -> None:
    """Compile every `parts`-th of what is tried, from some place on."""
    small = [replace(work, count=min(work.count, 10)) for work in WORKS if work.count != 60]
    for work in small:
        codes = work.codes(device)
        for name in SIDES:
            for tile in list(tiles(name, device))[part::parts]:
                try:
                    microseconds(calls_of(codes, name, tile), device)
                except Exception as error:  # noqa: BLE001 - too large for this GPU: told when timed
                    print(name, tile, type(error).__name__, file=sys.stderr)


def measured(work: Work, device: str) -> dict[str, Any]:
    """Return what each call takes by its own tiles, and by the fastest others."""
    codes, found = work.codes(device), {}
    for name in ("first", "forward", "backward", "factors", "sums"):
        usual = getattr(codes[0].tiles, name, {})
        own = microseconds(calls_of(codes, name, usual), device)
        others: list[tuple[float, Tile]] = []
        for tile in tiles(name, device) if name in SIDES else ():
            try:
                others.append((microseconds(calls_of(codes, name, tile), device), tile))
            except Exception:  # noqa: BLE001 - too large for this GPU
                continue
        others.sort(key=lambda each: each[0])
        found[name] = {"own": own, "tile": usual, "fastest": others[:FASTEST]}
        told = "factors, noise and update" if name == "factors" else name
        print(f"{work.name}: {told} {own:.1f} us {usual}", flush=True)
        for took, tile in others[:FASTEST]:
            print(f"    {took:.1f} us {tile}", flush=True)
    print(f"{work.name}: a step {sum(each['own'] for each in found.values()):.1f} us", flush=True)
    return found


def main() -> None:
    """Compile, measure, print, and add a line a work to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", type=Path, help="A .jsonl file to add to. Default: none.")
    given = parser.parse_args()
    if given.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("torch finds no CUDA GPU here: take --device cpu, with TRITON_INTERPRET=1.")
        machine, cores = torch.cuda.get_device_name(), os.cpu_count() or 1
        with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(partial(compile_part, "cuda", parts=cores), range(cores)))
    else:
        from pasearch.gpu import bits, gpu_training, kernels

        bits.load_kernels, gpu_training.has_gpu_steps = (lambda _: kernels), (lambda _: True)
        machine = "processor, interpreted"
        WORKS[:] = [Work("two of Table XI at 20", "fcn-paper", 2, 20)]
    for work in WORKS:
        line = {
            "work": work.name, "date": date.today().isoformat(), "machine": machine,
            "torch": torch.__version__, "calls": measured(work, given.device),
            "command": " ".join(["python", "benchmarks/speed/tiles.py", *sys.argv[1:]]),
        }  # fmt: skip
        if given.out is not None:
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
