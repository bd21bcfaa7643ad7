"""A generation of candidates at once, against one by one: the same trainings, the same bits.

Candidates are drawn from `fcn-paper`, the space of the paper's Table XI; 20,000 made-up records of
784 numbers, batches of 100. Ways, of one generation from its first step to its last weights:

    two threads    one by one, each by all threads, as a library does that leaves them to torch
    one thread     one by one, each by one thread
    at once        side by side in processes of one thread; they wait for work, as between the
                   generations of a search
    from cold      the same, the processes begun and ended within the time

The ways take turns inside every round; a round's ratio compares neighbours in time. First, all ways
with one thread must give the same weights, to the bit.

Usage: python benchmarks/generation/run.py --candidates 10 --steps 300
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch

from pasearch.data.opened import Opened
from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.runs.executors import Processes
from pasearch.runs.keys import Keys
from pasearch.search.population import Job, side_by_side
from pasearch.spaces.space import space
from pasearch.training.bounding.flat import Flat
from pasearch.training.recipe import Recipe

RECORDS, FEATURES, CLASSES, BATCH = 20_000, 784, 10, 100

POOL = Processes()
"""Its processes wait for work between two generations."""


def jobs(candidates: int, steps: int, folder: Path) -> list[Job]:
    """Return the trainings of a generation; their records are written to a folder."""
    generator = torch.Generator().manual_seed(1)
    records = Records(
        x=torch.rand((RECORDS, FEATURES), generator=generator),
        y=torch.randint(CLASSES, (RECORDS,), generator=generator),
        valid=torch.ones(RECORDS, dtype=torch.bool),
        public=False,
    )
    opened = Opened.of(records, folder)
    keys, drawn = Keys.from_seed(1), space("fcn-paper")
    recipe = Recipe(
        expected_batch_size=BATCH, steps=steps, learning_rate=0.1, noise_multiplier=1.0,
        bounding=Flat(clip_norm=0.25),
    )  # fmt: skip
    schema = Schema(shape=(FEATURES,), low=0.0, high=1.0, classes=CLASSES)
    return [
        Job(
            candidate=drawn.candidate(drawn.draw(keys.stream("candidate", number).generator())),
            schema=schema, recipe=recipe, stream=keys.stream("trial", number), records=opened,
        )
        for number in range(candidates)
    ]  # fmt: skip


def trained(given: list[Job], each: int, workers: int) -> list[torch.Tensor]:
    """Return all weights of a generation."""
    return [
        weight for network, _ in side_by_side(given, each, workers, POOL)
        for weight in network.state_dict().values()
    ]  # fmt: skip


def ways(given: list[Job], workers: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Return each way of training a generation, by its name."""

    def cold() -> list[torch.Tensor]:
        POOL.close()
        found = trained(given, 1, workers)
        POOL.close()
        return found

    return {
        "two threads": lambda: trained(given, workers, 1),
        "one thread": lambda: trained(given, 1, 1),
        "from cold": cold,
        "at once": lambda: trained(given, 1, workers),
    }


def seconds(way: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def summary(values: list[float]) -> dict[str, float]:
    """Return the median, and the quartiles as spread."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 2), "low": round(low, 2), "high": round(high, 2)}


def main() -> None:
    """Measure, print, and add a line to the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        given = jobs(options.candidates, options.steps, Path(name))
        every = ways(given, options.workers)
        one, many = every["one thread"](), every["at once"]()
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True)), "other bits"
        rounds: dict[str, list[float]] = {way: [] for way in every}
        for _ in range(options.rounds):
            for way, call in every.items():
                if way == "at once":
                    call()  # so that its processes are there
                rounds[way].append(seconds(call))
        POOL.close()
    against = rounds["at once"]
    line = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/generation/run.py", *sys.argv[1:]]),
        "torch": torch.__version__, "candidates": options.candidates, "steps": options.steps,
        "workers": options.workers, "same bits": True,
    } | {
        f"{way} / at once": summary([a / b for a, b in zip(times, against, strict=True)])
        for way, times in rounds.items() if way != "at once"
    }  # fmt: skip
    print(json.dumps(line))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
