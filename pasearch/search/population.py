"""A generation at once: its candidates are trained side by side, in processes of their own.

    threads of a training  =  max(1, threads of the run / candidates of the generation)
    processes              =  threads of the run / threads of a training

What a training gives follows from its job and its threads, to the last bit: not from how many
processes there are, or which ends first. Each candidate has batches and noise of its own; if they
shared batches, the price would more than double. So a generation costs what it costs one by one.

A process is given work that is charged already: a job, and the files of records that were opened
for it. It has no ledger, and nothing else of the data. How many candidates there are may be secret;
nothing is told of it but how long all take, which no price covers.

Source: docs/rules.md, rules 8, 10 and 12.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pasearch.data.partitions import Records
from pasearch.data.threads import threads
from pasearch.runs.keys import Stream
from pasearch.search.fitness import or_failed, points, train_candidate
from pasearch.training.metrics import usual_metric
from pasearch.training.recipe import Recipe

if TYPE_CHECKING:
    from pasearch.data.tables import AnySchema
    from pasearch.spaces.candidate import Candidate

WORTH = 10.0
"""From how many seconds of training, together, processes are begun: each takes two until it is
ready."""

CURVE_POINTS = 20
"""How often the accuracy of a training on public data is measured, for its curve."""

CURVE_RECORDS = 2000
"""On how many of the test records, at most."""


@dataclass(slots=True)
class Course:
    """How a training went.

    Args:
        steps: How many were made. Fewer than planned only where released or public accuracies
            ended a validation-driven schedule: post-processing of what is paid.
        curve: (steps, accuracy); declared-public data only.
    """

    steps: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"steps": self.steps, "curve": self.curve}

    def watch(
        self, steps: int, seen: Records | None, device: str
    ) -> Callable[[int, nn.Module], None]:
        """Return what is called after each step.

        Args:
            steps: How many are planned.
            seen: Public records that the curve is measured on; None: there is no curve.
            device: "cpu" or "cuda".
        """
        every = max(1, steps // CURVE_POINTS)
        if seen is not None:
            seen = seen.take(np.arange(min(CURVE_RECORDS, len(seen))))

        def watch(finished: int, network: nn.Module) -> None:
            self.steps = finished
            if seen is not None and (finished % every == 0 or finished == steps):
                found = points(network, seen, device=device)
                most = len(seen) * usual_metric(seen.y.is_floating_point()).most
                self.curve.append((finished, found / most))
                network.train()

        return watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training, and everything that it follows from.

    Args:
        candidate: Which network.
        schema: Of the records.
        recipe: With its noise.
        stream: The trial's own key.
        records: The folder of its records, as `Records.write` leaves it; charged.
        seen: The folder of public records that its curve is measured on.
        public: Whether the data were declared public.
    """

    candidate: Candidate
    schema: AnySchema
    recipe: Recipe
    stream: Stream
    records: Path
    seen: Path | None = None
    public: bool = False

    def done(self) -> tuple[nn.Module, Course]:
        """Train, and return the network and how it went."""
        course = Course()
        seen = None if self.seen is None else Records.mapped(self.seen, public=True)
        records = Records.mapped(self.records, public=self.public)
        watch = course.watch(self.recipe.steps, seen, "cpu")

        def train() -> nn.Module:
            return train_candidate(
                self.candidate, records, self.schema, self.recipe, self.stream, device="cpu",
                on_step=watch,
            )  # fmt: skip

        return or_failed(train, self.candidate, self.schema, self.stream), course


def shares(candidates: int, at_hand: int) -> tuple[int, int]:
    """Return the threads of a training, and how many processes train.

    Args:
        candidates: Of the generation, 1 or more.
        at_hand: Threads that the run may use.

    >>> shares(10, 2), shares(4, 16), shares(3, 16)
    ((1, 2), (4, 4), (5, 3))
    """
    each = max(1, at_hand // candidates)
    return each, max(1, at_hand // each)


def side_by_side(
    jobs: Sequence[Job], each: int, workers: int
) -> Iterator[tuple[nn.Module, Course]]:
    """Yield networks and how their trainings went, in the order of the jobs.

    Guarantee: the same to the bit with one process as with many, and where a process is killed: its
    job is done again, by the same key, in this one.

    Args:
        jobs: Charged.
        each: Threads of a training.
        workers: How many processes train; 1: this one does.

    Cost: none beside what was charged for the jobs.
    """
    left = list(jobs)
    if workers > 1 and len(left) > 1:
        for network, course in _in_processes(jobs, each, workers):
            yield network, course
            left.pop(0)
    for job in left:
        with threads(each):
            found = job.done()
        yield found


def _in_processes(
    jobs: Sequence[Job], each: int, workers: int
) -> Iterator[tuple[nn.Module, Course]]:
    """Yield what finished jobs give, in order; end early where a process was killed."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    with parallel_config(backend="loky", inner_max_num_threads=each):
        pool = Parallel(n_jobs=min(workers, len(jobs)), return_as="generator", batch_size=1)  # pyright: ignore[reportArgumentType]
        found: Any = pool(delayed(_in_worker)(job, each) for job in jobs)
    _begun.add(workers)
    ended = False
    try:
        for job, (weights, course) in zip(jobs, found, strict=True):
            network = job.candidate.build(job.schema.shape, job.schema.outputs)
            network.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
            yield network, Course(**course)
        ended = True
    except BrokenProcessPool:  # the system killed one, for its memory say
        pass
    finally:
        if not ended:
            stop_workers()


def _in_worker(job: Job, each: int) -> tuple[bytes, dict[str, Any]]:
    with threads(each):
        network, course = job.done()
    weights = io.BytesIO()
    torch.save(network.state_dict(), weights)
    return weights.getvalue(), course.to_json()


def stop_workers() -> None:
    """End the processes that wait for work, if this one began any."""
    if _begun:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True, kill_workers=True)
        _begun.clear()


_begun: set[int] = set()
"""How many processes were begun, for `stop_workers`."""
