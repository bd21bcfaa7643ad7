"""Training and scoring of candidates: one, or a round of them in parallel.

    classes:   fitness = correct answers on the validation slots + two-sided geometric noise
    a number:  fitness = sum over records of floor(G (1 - min(1, |error|))) + the same noise times G

Divided by the public number of slots the first is the paper's "accuracy plus Laplace noise of scale
1 / (n epsilon')". An error is relative to the width of the target's bounds. A null record adds 0 to
either. Other metrics: `training.metrics`.

    threads of a training  =  max(1, threads of the run / candidates of the round)
    processes              =  threads of the run / threads of a training

The result of a training follows from its job and its threads, to the last bit: not from the
executor, the number of trainings at a time, or which ends first. Each candidate has its own batches
and noise; shared batches would more than double the privacy cost. So a round costs what its
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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pasearch.data.mapping import full_precision
from pasearch.data.partitions import Records
from pasearch.data.shared_records import SharedRecords
from pasearch.data.threads import use_threads
from pasearch.gpu.dense_steps import TrainingGroup, list_gpu_library_versions
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
    candidate: Candidate, records: Records, schema: AnySchema, recipe: Recipe,
    streams: Mapping[str, Stream], *, device: str,
    on_step: Callable[[int, nn.Module], None] | None = None,
    looks: Callable[[int], bool] | None = None, query: ValidationQuery | None = None,
) -> nn.Module:  # fmt: skip
    """Return the candidate's network, trained on an open partition.

    Args:
        candidate: Architecture and settings.
        records: Records of the open partition, after the candidate's feature extractor.
        schema: Schema with the shape and the number of outputs.
        recipe: Recipe with calibrated noise.
        streams: Random streams of this training, by purpose, as `training_streams` returns them.
            No two trainings share a batch or a noise draw.
        device: "cpu" or "cuda".
        on_step: Called with the number of finished steps and the current network.
        looks: Predicate on the number of finished steps: whether `on_step` needs the network then.
        query: Validation query, for a recipe that makes them.

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
    candidate: Candidate, records: Records, schema: AnySchema, recipe: Recipe,
    streams: Mapping[str, Stream], *, on_step: Callable[[int, nn.Module], None] | None = None,
    **options: Any,
) -> tuple[nn.Module, Iterator[int]]:  # fmt: skip
    """Build the candidate's network, and return it with the iterator that trains it.

    Arguments and cost are those of `train_candidate`; `options` are passed on to the trainer.
    """
    network = candidate.build(schema.shape, schema.outputs, streams["weights"].generator())
    call_back = None if on_step is None else lambda finished: on_step(finished, network)
    return network, run_rounds(network, records, recipe, streams, on_step=call_back, **options)


def train_or_mark_failed(
    train: Callable[[], nn.Module],
    candidate: Candidate,
    schema: AnySchema,
    streams: Mapping[str, Stream],
) -> nn.Module:
    """Train a network; if memory does not suffice, return a network marked as failed."""
    try:
        return train()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        generator = streams["weights"].generator()
        return mark_failed(candidate.build(schema.shape, schema.outputs, generator))


def has_failed(network: nn.Module) -> bool:
    """Check whether a training ended in weights that are not finite (worst score, no repeat)."""
    return not all(bool(torch.isfinite(p).all()) for p in network.state_dict().values())


@torch.no_grad()
def mark_failed(network: nn.Module) -> nn.Module:
    """Set all weights to NaN, for a training that could not run."""
    for parameter in network.parameters():
        parameter.fill_(math.nan)
    return network


@torch.no_grad()
def compute_metric_counts(
    network: nn.Module, records: Records, metric: Metric, *, device: str, chunk: int = 8192
) -> list[int]:
    """Compute the exact counts of a metric on records; they are private.

    Guarantee: replacing one record by the null record changes one count,
    by at most `metric.max_points`.

    Args:
        network: Trained network; one output for a regression target, else one per class.
        records: Records after the network's feature extractor.
        metric: Metric to count.
        device: "cpu" or "cuda".
        chunk: Number of records per batch; only memory depends on it.
    """
    network = network.to(device).eval()
    found: list[list[int]] = []
    for start in range(0, len(records), chunk):
        part = slice(start, start + chunk)
        answers = network(records.x[part].to(device)).cpu()
        found.append(metric.compute_counts(answers, records.y[part], records.valid[part]))
    return [sum(each) for each in zip(*found, strict=True)]


def compute_score_count(
    network: nn.Module, records: Records, *, device: str, chunk: int = 8192
) -> int:
    """Compute the exact score count of a network by the usual metric."""
    metric = find_default_metric(records.y.is_floating_point())
    return metric.compute_points(
        compute_metric_counts(network, records, metric, device=device, chunk=chunk), len(records)
    )


FAILED_SCORE = -math.inf  # fitness of a failed trial


MIN_SECONDS_FOR_PROCESSES = 10.0
"""Minimum total training time of a round that justifies processes, seconds. Starting a process
takes about two seconds."""

MAX_INTERLEAVED_TRAININGS = 64
"""Maximum number of trainings that are interleaved on a GPU; others start when these are done."""

GPU_QUEUES = 5
"""Number of groups of interleaved trainings. A GPU computes the steps of some groups while the
steps of others are prepared or evaluated."""

CURVE_POINTS = 20  # number of accuracy measurements during a training on public data

MAX_CURVE_RECORDS = 2000  # maximum number of test records for each point of that curve


@dataclass(slots=True)
class TrainingHistory:
    """History of a training.

    Args:
        steps: Number of finished steps. It is below the plan only if released or public accuracies
            ended a validation-driven schedule, which is post-processing.
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
        """Return the step callback, and the predicate on steps that need the network.

        Args:
            steps: Number of planned steps.
            seen: Public records for the accuracy curve; None: no curve.
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
    """One training with all its inputs.

    Args:
        candidate: Architecture and settings.
        schema: Schema of the records.
        recipe: Recipe with calibrated noise.
        streams: Random streams of this training by purpose, without the trial's other streams.
        records: Training records, already charged.
        seen: Public records for the accuracy curve.
        device: "cpu" or "cuda".
        threads: Number of threads.
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
        """Train in a worker, and return the weights and the history as bytes."""
        with use_threads(self.threads):
            network, course = self.train_network(*read)
        found = io.BytesIO()
        torch.save({"weights": network.cpu().state_dict(), "course": asdict(course)}, found)
        return found.getvalue()

    def train_network(
        self, records: dict[str, np.ndarray], seen: dict[str, np.ndarray] | None = None
    ) -> tuple[nn.Module, TrainingHistory]:
        """Train, and return the network and its history."""
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
    """Train jobs on an execution backend; yield networks and histories in the order of the jobs.

    Guarantee: bit-identical results on every backend, also if a worker is killed: its job is
    repeated with the same key.

    Args:
        jobs: Trainings, already charged.
        each: Number of threads of a training.
        room: Number of trainings at a time that this machine has threads for.
        executor: Execution backend.

    Cost: none besides the charge of the jobs.
    """
    works = [
        Work(
            key=f"training {place}",
            do=replace(job, threads=each),
            reads=(job.records,) if job.seen is None else (job.records, job.seen),
        )
        for place, job in enumerate(jobs)
    ]
    for job, found in zip(jobs, executor.run_in_order(works, each, room), strict=True):
        result = torch.load(io.BytesIO(found), weights_only=True)
        network = job.candidate.build(job.schema.shape, job.schema.outputs)
        network.load_state_dict(result["weights"])
        yield network, TrainingHistory(**result["course"])


def train_interleaved(
    jobs: Sequence[TrainingJob], device: str
) -> Generator[tuple[nn.Module, TrainingHistory], None, None]:
    """Train jobs interleaved on this machine's GPUs; yield results like `train_in_parallel`.

    The trainings are split into groups, each with its own CUDA stream. Each group gets a round of
    steps in turn, so a GPU computes some groups while others are prepared. Dense networks also
    share the kernel calls of a step (`gpu.dense_steps`). Shared records are copied to a GPU once. A
    training that runs out of memory is repeated alone with the same keys, because its failure must
    not depend on the number of trainings.

    Guarantee: the results equal those of one training at a time, for any number of GPUs.

    Args:
        jobs: Trainings, already charged, the longest first.
        device: "cuda", or "cpu" in tests.

    Cost: none besides the charge of the jobs.
    """
    places = _list_devices(device)
    for low in range(0, len(jobs), MAX_INTERLEAVED_TRAININGS * len(places)):
        for place in places:
            place.together = TrainingGroup()
        part = jobs[low : low + MAX_INTERLEAVED_TRAININGS * len(places)]
        queues = [(place, group) for group in range(GPU_QUEUES) for place in places]
        dealt = cycle([*queues, *queues[::-1]])  # long and short trainings alike for each device
        turns = left = [
            _InterleavedTraining(job, *to) for job, to in zip(part, dealt, strict=False)
        ]
        try:
            with full_precision():  # only for the steps: the consumer has other settings
                while left:
                    left = [
                        turn for group in range(GPU_QUEUES) for place in places
                        for turn in place.run_round(group, left)
                    ]  # fmt: skip
        finally:  # postponed trainings share no buffer with others
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
        number: Index of the GPU; None: torch's default GPU, or the CPU.
        moved: Records that were copied to the device.
        together: Shared kernel calls of the trainings on the device.
        queues: CUDA stream of each group.
    """

    device: str
    number: int | None
    moved: dict[SharedRecords, Records] = field(default_factory=dict)
    together: TrainingGroup = field(default_factory=TrainingGroup)
    queues: dict[int, torch.cuda.Stream] = field(default_factory=dict)

    def as_current_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.number is None else torch.cuda.device(self.number)

    def records(self, opened: SharedRecords) -> Records:
        """Return records on the device, copied once."""
        if opened not in self.moved:
            here = opened.records(opened.load())
            there = {name: getattr(here, name).to(self.device) for name in ("x", "y", "valid")}
            self.moved[opened] = replace(here, **there)
            self.wait()  # other groups read them, too
        return self.moved[opened]

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def end(self) -> None:
        """Wait for all trainings, and drop their shared buffers."""
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
        """Run a round of steps of a group's trainings; return the unfinished trainings."""
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


def _list_devices(device: str) -> list[_Device]:
    """Return the devices to train on: the current GPU first, then all GPUs of the same model."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return [_Device(device, None)]
    own = torch.cuda.current_device()

    def model(number: int) -> tuple[Any, ...]:
        about = torch.cuda.get_device_properties(number)
        chip = about.name, about.major, about.minor, about.multi_processor_count
        return *chip, about.total_memory

    def computes(number: int) -> list[str]:
        with torch.cuda.device(number):
            return list_gpu_library_versions(device)

    every = sorted(range(torch.cuda.device_count()), key=lambda number: number != own)
    alike = [number for number in every if model(number) == model(own)]
    return [_Device(device, number) for number in alike if computes(number) == computes(own)]


class _InterleavedTraining:
    """A training that is interleaved with others on a GPU.

    Args:
        job: Training to run.
        place: Device to train on.
        group: Index of the group that shares its kernel calls.
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
        """Finish the last round and start the next; return whether there is one."""
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
        """Mark the training to be repeated alone, because memory did not suffice."""
        self._end()
        self.was_postponed = True

    def _end(self) -> None:
        """Wait for the device, and release all of its memory."""
        if isinstance(self._rounds, Generator):
            self._rounds.close()
        if self.place.device == "cuda":
            torch.cuda.current_stream().synchronize()
        self._rounds = iter(())

    def train_alone(self) -> None:
        """Repeat the training with the same keys while no other training runs."""

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
