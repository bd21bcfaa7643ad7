"""The training and the score of candidates: one, or a round of them side by side.

    classes:   fitness = correct answers on the validation slots + two-sided geometric noise
    a number:  fitness = sum over records of floor(G (1 - min(1, |error|))) + the same noise times G

Divided by the public number of slots the first is the paper's "accuracy plus Laplace noise of scale
1 / (n epsilon')". An error is relative to the width of the target's bounds. A null record adds 0 to
either. Other metrics: `training.metrics`.

    threads of a training  =  max(1, threads of the run / candidates of the round)
    processes              =  threads of the run / threads of a training

The result of a training follows from its job and its threads, to the last bit: not from the
executor, the number of trainings at a time, or which ends first. Each candidate has batches and
noise of its own; shared batches would more than double the price. So a round costs what its
trainings cost one by one.

A worker receives work that is charged already: a job, and the records that were opened for it. It
has no ledger and no other data. It receives the random streams of its training, but not those of
the score, whose noise it could otherwise compute. The number of candidates may be secret: only the
total time, which no price covers, and the load of a cluster depend on it.

Source: Bao et al., section VIII-A; docs/rules.md, rules 8, 9, 10, 12 and 14. Proof:
docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

from pasearch.data.partitions import Records
from pasearch.data.precision import full_precision
from pasearch.data.shared_records import SharedRecords
from pasearch.data.threads import use_threads
from pasearch.gpu.dense_steps import TrainingGroup, gpu_library_versions
from pasearch.runs.executors import Executor, Work
from pasearch.runs.keys import Stream
from pasearch.training.memory import is_out_of_memory
from pasearch.training.metrics import Metric, find_default_metric
from pasearch.training.recipe import Recipe
from pasearch.training.screening import ValidationQuery
from pasearch.training.trainer import run_rounds

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.data.tables import AnySchema
    from pasearch.gpu.dense_steps import TrainingGroup
    from pasearch.spaces.candidate import Candidate
    from pasearch.training.recipe import Recipe


STREAM_PURPOSES = ("weights", "batch", "noise", "dropout")
"""Purposes of the random streams that one training uses: initial weights first, then the steps."""


def training_streams(stream: Stream) -> dict[str, Stream]:
    """Return the random streams of one training, by purpose.

    Guarantee: the noise of the trial's score, and every other draw of the trial, cannot be derived
    from them. So a worker that receives them learns nothing about the score's noise.

    Args:
        stream: Random stream of the whole trial; it stays with the coordinator.
    """
    return {purpose: stream.child(purpose) for purpose in STREAM_PURPOSES}


def train_candidate(
    candidate: Candidate,
    records: Records,
    schema: AnySchema,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str,
    on_step: Callable[[int, nn.Module], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
) -> nn.Module:
    """Return the candidate's network, trained on an open partition.

    Args:
        candidate: What to build.
        records: The open partition, behind the candidate's front end.
        schema: Shape and number of outputs.
        recipe: With the noise that the plan solved.
        streams: Random streams of this training, by purpose, as `training_streams` returns them.
            No two trainings share a batch or a noise draw.
        device: "cpu" or "cuda".
        on_step: Called with the number of finished steps and the network as it is.
        looks: From a number of finished steps to whether it must be called then; see
            `trainer.train`.
        query: The validation query of a recipe that has them; see there.

    Cost: `recipe.event(len(records))`, charged by the caller before `records` was opened.
    """
    network, rounds = start_candidate_training(
        candidate, records, schema, recipe, streams, device=device, on_step=on_step, looks=looks,
        query=query,
    )  # fmt: skip
    with full_precision():
        for _ in rounds:
            pass
    return network


def start_candidate_training(
    candidate: Candidate,
    records: Records,
    schema: AnySchema,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str,
    on_step: Callable[[int, nn.Module], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
    splits: bool = True,
    together: TrainingGroup | None = None,
) -> tuple[nn.Module, Iterator[int]]:
    """Return the candidate's network, and what trains it: see `trainer.rounds_of`.

    Args and cost: like `train_candidate`; `splits` and `together` as there.
    """
    network = candidate.build(schema.shape, schema.outputs, streams["weights"].generator())
    call_back = None if on_step is None else lambda finished: on_step(finished, network)
    return network, run_rounds(
        network,
        records,
        recipe,
        streams,
        device=device,
        on_step=call_back,
        looks=looks,
        query=query,
        splits=splits,
        together=together,
    )


def train_or_mark_failed(
    train: Callable[[], nn.Module],
    candidate: Candidate,
    schema: AnySchema,
    streams: Mapping[str, Stream],
) -> nn.Module:
    """Return the network that `train` returns; without the memory for it, one that failed."""
    try:
        return train()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        generator = streams["weights"].generator()
        return mark_failed(candidate.build(schema.shape, schema.outputs, generator))


def has_failed(network: nn.Module) -> bool:
    """Return whether training ended in weights that are not finite: the worst score, no redraw."""
    return not all(bool(torch.isfinite(p).all()) for p in network.state_dict().values())


@torch.no_grad()
def mark_failed(network: nn.Module) -> nn.Module:
    """Return the network with weights that are not numbers, for a training that could not run."""
    for parameter in network.parameters():
        parameter.fill_(math.nan)
    return network


@torch.no_grad()
def compute_metric_counts(
    network: nn.Module, records: Records, metric: Metric, *, device: str, chunk: int = 8192
) -> list[int]:
    """Return what tells how good the network's answers are: private.

    Guarantee: replacing one record by the null record changes one count,
    by at most `metric.max_points`.

    Args:
        network: Trained; one output for a number, else one a class.
        records: Behind the network's front end.
        metric: By what they are scored.
        device: "cpu" or "cuda".
        chunk: Records at a time; only memory depends on it.
    """
    network = network.to(device).eval()
    found: list[list[int]] = []
    for start in range(0, len(records), chunk):
        part = slice(start, start + chunk)
        answers = network(records.x[part].to(device)).cpu()
        found.append(metric.counts(answers, records.y[part], records.valid[part]))
    return [sum(each) for each in zip(*found, strict=True)]


def compute_score_count(
    network: nn.Module, records: Records, *, device: str, chunk: int = 8192
) -> int:
    """Return the network's points by the usual metric; the rest is as of `counts`."""
    metric = find_default_metric(records.y.is_floating_point())
    return metric.points(
        compute_metric_counts(network, records, metric, device=device, chunk=chunk), len(records)
    )


FAILED_SCORE = -math.inf
"""The fitness of a trial that failed."""


MIN_SECONDS_FOR_PROCESSES = 10.0
"""From how many seconds of training, together, it pays to begin processes: each takes two until it
is ready."""

MAX_INTERLEAVED_TRAININGS = 64
"""How many trainings take turns on a GPU at a time, at most; others begin when these are done."""

GPU_QUEUES = 5
"""Trainings that take turns are dealt to so many groups: while one's steps are looked at and others
are prepared, a GPU works on those of the others; and on some calls of several groups at once."""

CURVE_POINTS = 20
"""How often the accuracy of a training on public data is measured, for its curve."""

_Any = TypeVar("_Any")

MAX_CURVE_RECORDS = 2000
"""On how many of the test records, at most."""


@dataclass(slots=True)
class TrainingHistory:
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
    ) -> tuple[Callable[[int, nn.Module], None], Callable[[int], bool]]:
        """Return what is called after each step, and after which of them it looks at the network.

        Args:
            steps: How many are planned.
            seen: Public records that the curve is measured on; None: there is no curve.
            device: "cpu" or "cuda".
        """
        every = max(1, steps // CURVE_POINTS)
        if seen is not None:
            seen = seen.take(np.arange(min(MAX_CURVE_RECORDS, len(seen))))

        def watch(finished: int, network: nn.Module) -> None:
            self.steps = finished
            if seen is not None and (finished % every == 0 or finished == steps):
                found = compute_score_count(network, seen, device=device)
                most = len(seen) * find_default_metric(seen.y.is_floating_point()).max_points
                self.curve.append((finished, found / most))
                network.train()

        return watch, lambda finished: seen is not None and finished % every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training, and everything that it follows from.

    Args:
        candidate: Which network.
        schema: Of the records.
        recipe: With its noise.
        streams: Random streams of this training, by purpose, and of nothing else of its trial.
        records: What it is trained on; charged.
        seen: Public records that its curve is measured on.
        device: "cpu" or "cuda".
        threads: How many it computes with.
    """

    candidate: Candidate
    schema: AnySchema
    recipe: Recipe
    streams: Mapping[str, Stream]
    records: SharedRecords
    seen: SharedRecords | None = None
    device: str = "cpu"
    threads: int = 1

    def __call__(self, *read: dict[str, np.ndarray]) -> bytes:
        """Train as a worker does, and return the weights and how it went."""
        with use_threads(self.threads):
            network, course = self.train_network(*read)
        found = io.BytesIO()
        torch.save({"weights": network.cpu().state_dict(), "course": asdict(course)}, found)
        return found.getvalue()

    def train_network(
        self, records: dict[str, np.ndarray], seen: dict[str, np.ndarray] | None = None
    ) -> tuple[nn.Module, TrainingHistory]:
        """Train, and return the network and how it went."""
        course = TrainingHistory()
        shown = None if self.seen is None or seen is None else self.seen.records(seen)
        watch, looks = course.watch(self.recipe.steps, shown, self.device)

        def train() -> nn.Module:
            return train_candidate(
                self.candidate, self.records.records(records), self.schema, self.recipe,
                self.streams, device=self.device, on_step=watch, looks=looks,
            )  # fmt: skip

        return train_or_mark_failed(train, self.candidate, self.schema, self.streams), course


def train_in_parallel(
    jobs: Sequence[TrainingJob], each: int, room: int, executor: Executor
) -> Generator[tuple[nn.Module, TrainingHistory], None, None]:
    """Yield networks and how their trainings went, in the order of the jobs.

    Guarantee: the same to the bit whoever trains, and where a worker is killed: its job is done
    again, by the same key.

    Args:
        jobs: Charged.
        each: Threads of a training.
        room: For how many trainings at a time this machine has threads.
        executor: Who trains.

    Cost: none beside what was charged for the jobs.
    """
    works = [
        Work(
            key=f"training {place}",
            do=replace(job, threads=each),
            reads=(job.records,) if job.seen is None else (job.records, job.seen),
        )
        for place, job in enumerate(jobs)
    ]
    for job, found in zip(jobs, executor.results(works, each, room), strict=True):
        result = torch.load(io.BytesIO(found), weights_only=True)
        network = job.candidate.build(job.schema.shape, job.schema.outputs)
        network.load_state_dict(result["weights"])
        yield network, TrainingHistory(**result["course"])


def train_interleaved(
    jobs: Sequence[TrainingJob], device: str
) -> Generator[tuple[nn.Module, TrainingHistory], None, None]:
    """Yield what `train_in_parallel` does, of trainings that take turns on this machine's GPUs.

    They are dealt to groups, each with a queue of work of its own. A group is given a round of
    steps before the next one is looked at: so a GPU works on some while others are prepared, and so
    do GPUs. Dense networks share the calls of a step, besides: see `gpu.dense_steps`. Records
    that several have are moved to a GPU once. One that has no memory among others is made again
    alone, from the same keys: whether it fails must not depend on how many there are.

    Guarantee: the same as one by one, on however many GPUs.

    Args:
        jobs: Charged; what takes long comes first.
        device: Where all of them are trained.

    Cost: none beside what was charged for the jobs.
    """
    places = _list_devices(device)
    for low in range(0, len(jobs), MAX_INTERLEAVED_TRAININGS * len(places)):
        for place in places:
            place.together = TrainingGroup()
        part = jobs[low : low + MAX_INTERLEAVED_TRAININGS * len(places)]
        dealt = _alternate_devices(
            [(place, group) for group in range(GPU_QUEUES) for place in places]
        )
        turns = left = [
            _InterleavedTraining(job, *to) for job, to in zip(part, dealt, strict=False)
        ]
        try:
            with full_precision():  # of the steps alone: who is given a network has other settings
                while left:
                    left = [
                        turn for group in range(GPU_QUEUES) for place in places
                        for turn in place.run_round(group, left)
                    ]  # fmt: skip
        finally:  # of who fell short, nobody shares anything any more
            for place in places:
                place.end()
        for turn in turns:
            if turn.was_postponed:
                turn.train_alone()
            yield turn.network, turn.course


@dataclass(slots=True)
class _Device:
    """A GPU: within `as_current_device`, it is what torch means by "cuda".

    Args:
        device: "cuda", or "cpu".
        number: Which GPU; None: torch's own choice, or the processor.
        moved: The records that are there already.
        together: Who shares calls there.
        queues: Of the work of each group.
    """

    device: str
    number: int | None
    moved: dict[SharedRecords, Records] = field(default_factory=dict)
    together: TrainingGroup = field(default_factory=TrainingGroup)
    queues: dict[int, torch.cuda.Stream] = field(default_factory=dict)

    def as_current_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.number is None else torch.cuda.device(self.number)

    def records(self, opened: SharedRecords) -> Records:
        """Return opened records there."""
        if opened not in self.moved:
            here = opened.records(opened.load())
            there = {name: getattr(here, name).to(self.device) for name in ("x", "y", "valid")}
            self.moved[opened] = replace(here, **there)
            self.wait()  # other groups read them, too
        return self.moved[opened]

    def wait(self) -> None:
        """Wait for all that it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def end(self) -> None:
        """Wait for all trainings, and let go of what they shared."""
        with self.as_current_device():
            self.wait()
        self.together = TrainingGroup()

    def _queue(self, group: int) -> AbstractContextManager[Any]:
        if self.device != "cuda":
            return nullcontext()
        if group not in self.queues:
            self.queues[group] = torch.cuda.Stream()
        return torch.cuda.stream(self.queues[group])

    def run_round(
        self, group: int, turns: Sequence[_InterleavedTraining]
    ) -> list[_InterleavedTraining]:
        """Give it a round of steps of each turn of its own, of a group; return those that go on."""
        with self.as_current_device(), self._queue(group):
            own = [turn for turn in turns if turn.place is self and turn.group == group]
            left = [turn for turn in own if turn.start_next_round()]
            try:
                self.together.run_pending(group)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                for turn in left:
                    turn.postpone()
                return []
        return left


def _alternate_devices(places: Sequence[_Any]) -> Iterator[_Any]:
    """Return where the first job is trained, where the second ...: there and back again."""
    return cycle([*places, *places[::-1]])


def _list_devices(device: str) -> list[_Device]:
    """Return what is trained on: of GPUs all that are like the one that torch takes, it first."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return [_Device(device, None)]
    own = torch.cuda.current_device()

    def model(number: int) -> tuple[Any, ...]:
        about = torch.cuda.get_device_properties(number)
        chip = about.name, about.major, about.minor, about.multi_processor_count
        return *chip, about.total_memory

    def computes(number: int) -> list[str]:
        with torch.cuda.device(number):
            return gpu_library_versions(device)

    every = sorted(range(torch.cuda.device_count()), key=lambda number: number != own)
    alike = [number for number in every if model(number) == model(own)]
    return [_Device(device, number) for number in alike if computes(number) == computes(own)]


class _InterleavedTraining:
    """One training that takes turns with others.

    Args:
        job: What is trained.
        place: Where.
        group: With whom it shares calls there.
    """

    def __init__(self, job: TrainingJob, place: _Device, group: int):
        self._job, self.place, self.group, self.course = job, place, group, TrainingHistory()
        self._seen = None if job.seen is None else job.seen.records(job.seen.load())
        self._rounds: Iterator[int] | None = None
        self.network: nn.Module = nn.Identity()
        self.was_postponed = False

    def _start(self, together: TrainingGroup | None) -> tuple[nn.Module, Iterator[int]]:
        job, device, self.course = self._job, self.place.device, TrainingHistory()
        records = self.place.records(job.records)
        watch, looks = self.course.watch(job.recipe.steps, self._seen, device)
        return start_candidate_training(
            job.candidate, records, job.schema, job.recipe, job.streams, device=device,
            on_step=watch, looks=looks, splits=together is None, together=together,
        )  # fmt: skip

    def start_next_round(self) -> bool:
        """End the last round and begin the next; return whether there is one."""
        try:
            if self._rounds is None:
                self.network, self._rounds = self._start(self.place.together)
            more = next(self._rounds, None) is not None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            more = False
            self.postpone()
        if not more:
            self._end()
            self.network = self.network.cpu()
        return more

    def postpone(self) -> None:
        """Have no memory among others: it is trained again alone."""
        self._end()
        self.was_postponed = True

    def _end(self) -> None:
        """Hold nothing on the device any more, once what it was given is done."""
        if isinstance(self._rounds, Generator):
            self._rounds.close()
        if self.place.device == "cuda":
            torch.cuda.current_stream().synchronize()
        self._rounds = iter(())

    def train_alone(self) -> None:
        """Train it again, from the same keys, when no other is under way."""

        def train() -> nn.Module:
            network, rounds = self._start(None)
            with full_precision():
                for _ in rounds:
                    pass
            return network

        job = self._job
        with self.place.as_current_device():
            if self.place.device == "cuda":
                torch.cuda.empty_cache()
            self.network = train_or_mark_failed(train, job.candidate, job.schema, job.streams)
