"""A generation of candidates at once, against one by one: the same trainings, the same bits.

Candidates are drawn from `fcn-paper`, the space of the paper's Table XI; 20,000 made-up records of
784 numbers, batches of 100. Ways, of one generation from its first step to its last weights:

    two threads    one by one, each by all threads, as a library does that leaves them to torch
    one thread     one by one, each by one thread
    at once        side by side in processes of one thread; they wait for work, as between the
                   generations of a search
    from cold      the same, the processes begun and ended within the time
    Opacus         the same networks one by one, each by all threads, with Opacus' ghost clipping
    FastDP         likewise; its folder is named by SPEED_PEERS

A peer that is not installed is left out, which is said. Peers take a tenth of the steps (on a GPU
one of 128), whose time counts as often.

On a GPU, other ways:

    Opacus         one by one, by Opacus' hooks, the records on the GPU
    one by one     ours, each alone; once
    at once        ours: networks share the calls of a step, and none is waited for within a round

The ways take turns inside every round; a round's ratio compares neighbours in time. First, our ways
with one thread must give the same weights, to the bit.

Usage: python benchmarks/generation/run.py --candidates 10 --steps 2000 --rounds 5
       python benchmarks/generation/run.py --device cuda --candidates 60 --steps 2560 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pasearch.data.partitions import Records
from pasearch.data.schema import Schema
from pasearch.data.shared_records import SharedRecords
from pasearch.runs.executors import ProcessExecutor
from pasearch.runs.keys import Keys
from pasearch.search.candidate_training import TrainingJob, train_in_parallel, train_interleaved
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.cost import estimate_seconds, measure_step_work
from pasearch.spaces.parsing import make_space
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
from run import machine

RECORDS, FEATURES, CLASSES, BATCH = 20_000, 784, 10, 100

ONE_BY_ONE, TENTH = {"Opacus": "ghost", "FastDP": "fastdp"}, 10
"""Peers on a processor, as benchmarks/speed calls them; they take a tenth of the steps."""

FEW = 128
"""On a GPU, where a step of ours takes less than a hundredth of theirs, they take one of these."""

POOL = ProcessExecutor()
"""Its processes wait for work between two generations."""


def jobs(candidates: int, steps: int, folder: Path, device: str = "cpu") -> list[TrainingJob]:
    """Return the trainings of a generation, as a search begins them: the longest ones first.

    Their records are written to a folder.
    """
    generator = torch.Generator().manual_seed(1)
    records = Records(
        x=torch.rand((RECORDS, FEATURES), generator=generator),
        y=torch.randint(CLASSES, (RECORDS,), generator=generator),
        valid=torch.ones(RECORDS, dtype=torch.bool),
        public=False,
    )
    opened = SharedRecords.of(records, folder)
    keys, drawn = Keys.from_seed(1), make_space("fcn-paper")
    recipe = Recipe(
        expected_batch_size=BATCH, steps=steps, learning_rate=0.1, noise_multiplier=1.0,
        bounding=FlatClipping(clip_norm=0.25),
    )  # fmt: skip
    schema = Schema(shape=(FEATURES,), low=0.0, high=1.0, classes=CLASSES)
    found = [
        TrainingJob(
            candidate=drawn.candidate(drawn.draw(keys.stream("candidate", number).generator())),
            schema=schema, recipe=recipe, stream=keys.stream("trial", number), records=opened,
            device=device,
        )
        for number in range(candidates)
    ]  # fmt: skip
    return sorted(found, key=lambda job: -_work(job.candidate.architecture, steps))


def _work(architecture: Architecture, steps: int) -> float:
    return estimate_seconds(measure_step_work(architecture, (FEATURES,), CLASSES), BATCH, steps)


def trained(given: list[TrainingJob], each: int, workers: int) -> list[torch.Tensor]:
    """Return all weights of a generation."""
    return [
        weight for network, _ in train_in_parallel(given, each, workers, POOL)
        for weight in network.state_dict().values()
    ]  # fmt: skip


def in_turn(given: list[TrainingJob]) -> list[torch.Tensor]:
    """Return all weights of trainings that take turns on a GPU."""
    return [
        weight.cpu() for network, _ in train_interleaved(given, given[0].device)
        for weight in network.state_dict().values()
    ]  # fmt: skip


def done(device: str) -> None:
    """Wait for all that was given to a device."""
    if device == "cuda":
        torch.cuda.synchronize()


class Peer:
    """The same networks by a peer of benchmarks/speed, one by one.

    They are made before the first is timed: a peer's time is that of its steps.

    Args:
        given: The trainings.
        name: As there.
        share: One of so many steps is taken, whose time counts as often.
    """

    def __init__(self, given: list[TrainingJob], name: str, share: int):
        self._given, self._name, self._share = given, name, share

    @cached_property
    def steps(self) -> list[Callable[[], None]]:
        """What takes a step of each network; made once, which ends in `Absent` without the peer."""
        from peers import PEERS, Setting, quiet
        from rows import Row

        quiet()
        first = self._given[0]
        records = first.records.records(first.records.load())
        x, y = records.x.to(first.device), records.y.to(first.device)
        there, found = Records(x=x, y=y, valid=records.valid, public=False), []
        for job in self._given:
            row = Row(
                name="", title="", architecture=job.candidate.architecture, shape=(FEATURES,),
                classes=CLASSES, batch=BATCH, records=RECORDS,
            )  # fmt: skip
            setting = Setting(row, there, job.device, job.recipe.noise_multiplier or 0.0, False)
            step, _ = PEERS[self._name](setting)
            step()
            found.append(step)
        return found

    def __call__(self) -> float:
        """Return the seconds of all steps."""
        spent = 0.0
        for job, step in zip(self._given, self.steps, strict=True):
            done(job.device)
            start = time.perf_counter()
            taken = max(1, job.recipe.steps // self._share)
            for _ in range(taken):
                step()
            done(job.device)
            spent += (time.perf_counter() - start) * job.recipe.steps / taken
        return spent


def ways_on_a_gpu(given: list[TrainingJob]) -> dict[str, Callable[[], Any]]:
    """Return each way of training a generation on a GPU, by its name."""
    return {
        "Opacus": Peer(given, "hooks", FEW),
        "one by one": lambda: [each for job in given for each in in_turn([job])],
        "at once": lambda: in_turn(given),
    }


def ways(given: list[TrainingJob], workers: int) -> dict[str, Callable[[], Any]]:
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
    } | {name: Peer(given, peer, TENTH) for name, peer in ONE_BY_ONE.items()}


def installed(every: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Return the ways whose library is there, with the peers' networks made."""
    from peers import Absent

    found: dict[str, Callable[[], Any]] = {}
    for way, call in every.items():
        try:
            if isinstance(call, Peer):
                len(call.steps)
        except Absent as reason:
            print(f"{way} is left out: {reason}", file=sys.stderr)
            continue
        found[way] = call
    return found


def seconds(way: Callable[[], object]) -> float:
    """Return how long one call takes, or what it says of itself."""
    start = time.perf_counter()
    told = way()
    if isinstance(told, float):
        return told
    if torch.cuda.is_available():
        torch.cuda.synchronize()
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
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rounds < 2:
        sys.exit(f"--rounds is {options.rounds}: expected 2 or more, as quartiles are reported.")
    gpu = options.device == "cuda"
    if gpu and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU here: take --device cpu.")
    with tempfile.TemporaryDirectory() as name:
        given = jobs(options.candidates, options.steps, Path(name), options.device)
        every = installed(ways_on_a_gpu(given) if gpu else ways(given, options.workers))
        alone = every.pop("one by one") if gpu else every["one thread"]
        start = time.perf_counter()
        one, taken = alone(), time.perf_counter() - start
        many = every["at once"]()
        assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True)), "other bits"
        rounds: dict[str, list[float]] = {way: [] for way in every}
        few = [replace(job, recipe=replace(job.recipe, steps=10)) for job in given]
        for number in range(options.rounds):
            print(f"Round {number + 1} of {options.rounds} ...", file=sys.stderr)
            for way, call in every.items():
                if way == "at once" and not gpu:
                    trained(few, 1, options.workers)  # so that its processes are there
                rounds[way].append(seconds(call))
        POOL.close()
    against = rounds["at once"]
    line = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/generation/run.py", *sys.argv[1:]]),
        "torch": torch.__version__, "candidates": options.candidates, "steps": options.steps,
        "workers": options.workers, "same bits": True,
        "machine": machine(options.device),
    } | {
        f"{way} / at once": summary([a / b for a, b in zip(times, against, strict=True)])
        for way, times in rounds.items() if way != "at once"
    }  # fmt: skip
    if gpu:  # absolute times are of this GPU
        steps = options.candidates * options.steps
        line["one by one / at once, in one run"] = round(taken / statistics.median(against), 2)
        line["microseconds of a candidate's step, at once"] = summary(
            [1e6 * each / steps for each in against]
        )
    print(json.dumps(line))
    if options.out is not None:
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
