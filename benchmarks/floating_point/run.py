"""Noise in floating point: what an attack finds, what it costs in time, what sums' rounding adds.

    attack     20 times 1,000 runs in each of two worlds, at confidence 1 - .05 / 20 each: the least
               epsilon that the releases exceed, beside the price; and the samplers of before
    speed      a million numbers, and a step of DP-SGD, against numpy's float32 sampler as the
               program had it, paired in one run, medians of 9; --threads 1 draws the noise in
               the same thread, --threads 2 beside, as the program does
    rounding   by how much more than C removing one record moves a float32 sum, on MNIST

Usage: python benchmarks/floating_point/run.py attack | speed | rounding [--data-root DIR]. One JSON
line a result in results/; `attack` runs repetitions side by side, and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "training"), str(HERE.parent / "speed"), str(HERE.parent)]

import cells  # noqa: E402
import peers  # noqa: E402
import test_floating_point as worlds  # noqa: E402
from lattices import Attack, advantage, lower_bound  # noqa: E402
from rows import ROWS, SIGMA  # noqa: E402

from pasearch.accounting.densities import LaplaceNoise, StudentT  # noqa: E402
from pasearch.data.sources import load_dataset  # noqa: E402
from pasearch.runs.keys import Keys, Stream  # noqa: E402
from pasearch.runs.normals import count_pairs, draw_normals, normals_from_words  # noqa: E402
from pasearch.training import noise, one_step  # noqa: E402
from pasearch.training.clipping import FlatClipping  # noqa: E402
from pasearch.training.encoded.noise import begin_noise, sample_noise  # noqa: E402
from pasearch.training.noise import Noise  # noqa: E402
from pasearch.training.per_example import clipped_sum_and_counts  # noqa: E402

ROW = ROWS["fcn-2048"]
REPETITIONS, RUNS = 20, 1000
CPU = torch.device("cpu")
Release = Callable[[bool, int], np.ndarray]


def stream_of(present: bool, run: int) -> Stream:
    """Return the noise stream of a run in one world."""
    return Keys.from_seed(2 * run + present).stream("trial").child("noise")


def noisy(present: bool, run: int, drawn: Callable[[Stream], Any]) -> np.ndarray:
    """The sum of one world with noise, as the trainer gets it."""
    total = torch.from_numpy(worlds.clean(present).copy())
    drawn(stream_of(present, run)).add_to([total], worlds.SIGMA)
    return total.numpy()


def ours(stream: Stream) -> Noise:
    """Return the noise of today."""
    return Noise(draw_normals(worlds.SEEN, stream, 0))


def double(stream: Stream) -> Noise:
    """The path of a GPU, on the CPU."""
    words = torch.empty(2 * count_pairs(worlds.SEEN), dtype=torch.int64)
    seed, _ = stream.seed_and_offset()
    words.random_(-(2**63), None, generator=torch.Generator().manual_seed(seed % 2**63))
    return Noise(normals_from_words(words, worlds.SEEN, stream, 0))


def before(stream: Stream) -> Any:
    """Return the noise that this program had."""
    return worlds.Old(worlds.float32_normals(worlds.SEEN, stream, 0))


def attacks() -> dict[str, Callable[[int], tuple[int, int]]]:
    """From a repetition's number to hits and false alarms."""
    sums = worlds.clean(False), worlds.clean(True)

    def on(forward: Any, drawn: Callable[[Stream], Any], made: Any = None) -> Any:
        def found(repetition: int) -> tuple[int, int]:
            first = 10**6 * (repetition + 1)

            def release(present: bool, run: int) -> np.ndarray:
                total = noisy(present, first + run, drawn)
                return total if made is None else worlds.moved(made, total)

            zero, one = (forward(np.full(len(sums[0]), z, np.float32), sums[0]) for z in (0.0, 1.0))
            attack = Attack(forward, float(np.mean(one - zero)))
            return advantage(attack, release, sums, RUNS)

        return found

    def law(density: Any) -> Any:
        return on(worlds.added, lambda stream: begin_noise(density, worlds.SEEN, CPU, stream, 0)())

    def old_law(density: Any) -> Any:
        return on(
            worlds.added,
            lambda stream: worlds.Old(
                sample_noise(density, worlds.SEEN, CPU, stream, 0).float().numpy()
            ),
        )

    def released(symmetric: bool, old: bool) -> Any:
        return lambda repetition: worlds.once(old, symmetric, RUNS, 10**6 * (repetition + 1))

    sgd, average = worlds.TRAININGS["sgd"], worlds.TRAININGS["momentum and average"]
    return {
        "sum": on(worlds.added, ours),
        "weights, sgd": on(worlds.stepped(sgd), ours, sgd),
        "weights, momentum and average": on(worlds.stepped(average), ours, average),
        "sum, a GPU's path": on(worlds.added, double),
        "sum, laplace": law(LaplaceNoise()),
        "sum, student-t": law(StudentT()),
        "released vectors": released(False, False),
        "second moments": released(True, False),
        "before: sum": on(worlds.added, before),
        "before: weights, momentum and average": on(worlds.stepped(average), before, average),
        "before: sum, laplace": old_law(LaplaceNoise()),
        "before: second moments": released(True, True),
    }


def attack(file: Path, workers: int) -> None:
    """Attack every release, and go on where an earlier call stopped."""
    asked = (
        {"release": name, "repetition": repetition}
        for name in attacks()
        # One repetition tells enough of a sampler that is found in every run.
        for repetition in range(1 if name.startswith("before") else REPETITIONS)
    )
    cells.measure(file, asked, attacked, "attack", workers=workers)


def attacked(command: str, release: str, repetition: int) -> dict[str, Any]:
    """Attack a release once, by many runs in each of two worlds."""
    hits, alarms = attacks()[release](repetition)
    bound = lower_bound(hits, alarms, RUNS, worlds.DELTA, 0.05 / REPETITIONS)
    # Of another density at this scale and delta no loss distribution is proved.
    unproved = "laplace" in release or "student" in release
    return {
        "runs": RUNS, "hits": int(hits), "alarms": int(alarms),
        "epsilon_at_least": round(bound, 4), "price": None if unproved else round(worlds.PAID, 4),
        "command": command,
    }  # fmt: skip


@contextmanager
def sampler_of_before() -> Any:
    """Draw float32 numbers in a thread, as an earlier version did, and add them in float32."""
    honest = one_step.begin_gaussian_noise

    def draw(
        count: int, device: torch.device, stream: Stream, step: int, *, spare: bool = False
    ) -> Any:
        made = lambda: worlds.Old(worlds.float32_normals(count, stream, step))  # noqa: E731
        return noise.run_in_thread(made, count, spare)

    one_step.begin_gaussian_noise = draw
    try:
        yield
    finally:
        one_step.begin_gaussian_noise = honest


def speed(file: Path, threads: int, rounds: int = 9) -> None:
    """Time the noise alone, and steps with it."""
    torch.set_num_threads(threads)
    if threads == 1:
        noise.MIN_THREAD_NUMBERS = 10**9  # no thread for the noise either
    count, stream = 1_000_000, Keys().stream("speed")
    total = torch.zeros(count)

    def number(make: Callable[[int], Any]) -> Callable[[int], object]:
        return lambda turn: make(turn).add_to([total], 3.0)

    ways: dict[str, Callable[[int], object]] = {
        "float32": number(lambda turn: worlds.Old(worlds.float32_normals(count, stream, turn))),
        "exact": number(lambda turn: Noise(draw_normals(count, stream, turn))),
    }
    paired(file, "a million numbers", ways, "float32", threads, rounds)
    for batch in (256, 2048):
        made = dp_step_ways(batch)
        paired(file, f"a DP step, batch {batch}", made, "float32", threads, rounds)


def dp_step_ways(batch: int) -> dict[str, Callable[[int], object]]:
    """Return steps that differ in their noise, and plain SGD."""
    setting = peers.Setting(replace(ROW, batch=batch), ROW.data("cpu"), "cpu", SIGMA, whole=False)
    steps = {
        "float32": peers.ours(setting)[0],
        "exact": peers.ours(setting)[0],
        "secure": peers.ours(setting, secure=True)[0],
        "plain SGD": peers.sgd(setting)[0],
    }

    def old(_: int) -> None:
        with sampler_of_before():
            steps["float32"]()

    return {
        "float32": old,
        **{
            name: (lambda _, step=step: step()) for name, step in steps.items() if name != "float32"
        },
    }


def paired(
    file: Path, what: str, ways: dict[str, Callable[[int], object]], against: str, threads: int,
    rounds: int,
) -> None:  # fmt: skip
    """Time ways in turns, and write their ratios to one of them."""
    for way in ways.values():
        way(0)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1, rounds + 1):
        for name, way in ways.items():
            repeats = max(1, round(0.2 / max(1e-4, seen[name][-1] if seen[name] else 0.05)))
            start = time.perf_counter()
            for repeat in range(repeats):
                way(turn * 1000 + repeat)
            seen[name].append((time.perf_counter() - start) / repeats)
    for name in ways:
        if name == against:
            continue
        ratios = [a / b for a, b in zip(seen[name], seen[against], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        write(
            file, what=what, way=name, against=against, threads=threads, rounds=rounds,
            ratio=round(statistics.median(ratios), 3), quartiles=[round(low, 3), round(high, 3)],
        )  # fmt: skip


def rounding(file: Path, root: str) -> None:
    """Measure by how much the change of a float32 sum differs from that of the exact sum."""
    records = load_dataset("mnist", data_root=root, public=True).all_records(None)
    x, y_all = records.x[:10_240].flatten(1), records.y[:10_240]
    for batch in (256, 2048):
        worst = 0.0
        for start in range(0, 5 * batch, batch):
            part, y = x[start : start + batch], y_all[start : start + batch]
            mask = torch.ones(batch, dtype=torch.bool)

            def total(kind: torch.dtype, mask: torch.Tensor, part: Any = part, y: Any = y) -> Any:
                model = ROW.network().to(kind)
                loss = lambda out: torch.nn.functional.cross_entropy(out, y, reduction="none")  # noqa: E731
                found, _ = clipped_sum_and_counts(
                    model, part.to(kind), loss, FlatClipping(clip_norm=1.0), mask
                )
                return torch.cat([each.flatten().double() for each in found])

            whole, exact = total(torch.float32, mask), total(torch.float64, mask)
            for gone in range(0, batch, batch // 8):
                less = mask.clone()
                less[gone] = False
                right = exact - total(torch.float64, less)
                moved = whole - total(torch.float32, less)
                worst = max(worst, float((moved - right).norm()))
        write(
            file, what="rounding of a sum", way="float32", batch=batch,
            worst_share_of_clip_norm=worst, neighbours=5 * 8,
        )  # fmt: skip


def write(file: Path, **values: Any) -> None:
    """Append one result."""
    cells.store(
        file, {**values, "date": date.today().isoformat(), "command": " ".join(sys.argv[1:])}
    )


def main() -> None:
    """Run one study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=["attack", "speed", "rounding"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data-root", default="data")
    cells.add_workers(parser)
    given = parser.parse_args()
    file = HERE / "results" / f"{given.study}.jsonl"
    if given.study == "attack":
        attack(file, cells.workers_of(given))
    elif given.study == "speed":
        speed(file, given.threads)
    else:
        rounding(file, given.data_root)


if __name__ == "__main__":
    main()
