"""Training and scoring of candidates: one, or a round of them in parallel.

    classes:     fitness = correct predictions on the validation records + two-sided geometric noise
    regression:  fitness = sum over records of floor(G (1 - min(1, |error|))) + G times this noise

Divided by the public number of records, the first is the paper's "accuracy plus Laplace noise of
scale 1 / (n epsilon')". An error is relative to the width of the target's bounds. A null record
contributes 0. `training.metrics` has other metrics.

    threads of a training  =  max(1, threads of the run / candidates of the round)
    processes              =  threads of the run / threads of a training

The result of a training depends on its job and its number of threads only, to the last bit. It does
not depend on the executor or on other trainings. Each candidate has independent batches and noise,
because shared batches would more than double the privacy cost. So a round costs the sum of its
trainings.

A worker receives a job that is charged already, and the records that were opened for it. It has no
ledger and no other data. It receives the random streams of its training, but not that of the score,
whose noise it could otherwise compute. The number of candidates may be secret. Only the total time
and the load of a cluster depend on it, and no privacy cost covers these.

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
from pasearch.errors import is_out_of_memory
from pasearch.gpu.dense_steps import TrainingGroup, list_gpu_library_versions
from pasearch.runs.executors import Executor, Work
from pasearch.runs.keys import Stream
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
"""Purposes of the random streams of one training."""


def training_streams(stream: Stream) -> dict[str, Stream]:
    """Return the random streams of one training, by purpose.

    Guarantee: no other draw of the trial can be derived from them. In particular, a worker that
    receives them learns nothing about the noise of the score.

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
    """Train the network of a candidate on an open partition, and return it.

    Args:
        candidate: Architecture and settings.
        records: Records of the open partition, after the candidate's feature extractor.
        schema: Schema with the shape and the number of outputs.
        recipe: Recipe with calibrated noise.
        streams: Random streams of this training, by purpose, as `training_streams` returns them.
            No two trainings share a batch or a noise draw.
        device: "cpu" or "cuda".
        on_step: Callback with (number of finished steps, current network).
        looks: Function from the number of finished steps to whether `on_step` reads the network.
        query: Validation query, if the recipe makes any.

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
    """Build the network of a candidate; return it and an iterator whose steps train it.

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
    """Run a training; if memory does not suffice, return a network that is marked as failed."""
    try:
        return train()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        generator = streams["weights"].generator()
        return mark_failed(candidate.build(schema.shape, schema.outputs, generator))


def has_failed(network: nn.Module) -> bool:
    """Check whether a training failed: it ended in weights that are not finite."""
    return not all(bool(torch.isfinite(p).all()) for p in network.state_dict().values())


@torch.no_grad()
def mark_failed(network: nn.Module) -> nn.Module:
    """Set all weights of a network to NaN, by which `has_failed` recognises a failed training."""
    for parameter in network.parameters():
        parameter.fill_(math.nan)
    return network


@torch.no_grad()
def compute_metric_counts(
    network: nn.Module, records: Records, metric: Metric, *, device: str, chunk: int = 8192
) -> list[int]:
    """Compute the exact counts of a metric on records. The counts are private.

    Guarantee: replacing one record by the null record changes one count, by at most
    `metric.max_points`.

    Args:
        network: Trained network with one output per class, or one output for regression.
        records: Records after the network's feature extractor.
        metric: Metric to count.
        device: "cpu" or "cuda".
        chunk: Number of records per batch, which affects memory only.
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
    """Compute the exact score count of a network by the default metric. It is private."""
    metric = find_default_metric(records.y.is_floating_point())
    return metric.compute_points(
        compute_metric_counts(network, records, metric, device=device, chunk=chunk), len(records)
    )


FAILED_SCORE = -math.inf  # fitness of a failed trial


MIN_SECONDS_FOR_PROCESSES = 10.0
"""Minimum total training time of a round for which processes are started, in seconds.

Starting a process takes about two seconds."""

MAX_INTERLEAVED_TRAININGS = 64
"""Maximum number of trainings that are interleaved on a GPU; others start when these are done."""

GPU_QUEUES = 5
"""Number of groups of interleaved trainings on a GPU.

The GPU computes the steps of some groups while the steps of others are prepared or evaluated."""

CURVE_POINTS = 20  # number of accuracy measurements during a training on public data

MAX_CURVE_RECORDS = 2000  # maximum number of test records of each measurement


@dataclass(slots=True)
class TrainingHistory:
    """History of a training, which is updated after each step.

    Args:
        steps: Number of finished steps. At the end it is below the plan only if the noisy or public
            accuracies of a validation-driven schedule ended the training.
        curve: Pairs (steps, accuracy); declared-public data only.
    """

    steps: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"steps": self.steps, "curve": self.curve}

    def make_step_callback(
        self, steps: int, seen: Records | None, device: str
    ) -> tuple[Callable[[int, nn.Module], None], Callable[[int], bool]]:
        """Make the callback of a training that updates this history.

        Args:
            steps: Number of planned steps.
            seen: Public records for the accuracy curve; None: no curve.
            device: "cpu" or "cuda".

        Returns:
            The callback with (number of finished steps, network); and the function from this number
            to whether the callback reads the network.
        """
        every = max(1, steps // CURVE_POINTS)
        if seen is not None:
            seen = seen.take(np.arange(min(MAX_CURVE_RECORDS, len(seen))))

        def record_step(finished: int, network: nn.Module) -> None:
            self.steps = finished
            if seen is not None and (finished % every == 0 or finished == steps):
                found = compute_score_count(network, seen, device=device)
                most = len(seen) * find_default_metric(seen.y.is_floating_point()).max_points
                self.curve.append((finished, found / most))
                network.train()

        return record_step, lambda finished: seen is not None and finished % every == 0


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
            network, history = self.train_network(*read)
        found = io.BytesIO()
        torch.save({"weights": network.cpu().state_dict(), "course": asdict(history)}, found)
        return found.getvalue()

    def train_network(
        self, records: dict[str, np.ndarray], seen: dict[str, np.ndarray] | None = None
    ) -> tuple[nn.Module, TrainingHistory]:
        """Train on the arrays of the records, and return the network and its history."""
        history = TrainingHistory()
        shown = None if self.seen is None or seen is None else self.seen.records(seen)
        record_step, needs_network = history.make_step_callback(
            self.recipe.steps, shown, self.device
        )

        def train() -> nn.Module:
            return train_candidate(
                self.candidate, self.records.records(records), self.schema, self.recipe,
                self.streams, device=self.device, on_step=record_step, looks=needs_network,
            )  # fmt: skip

        return train_or_mark_failed(train, self.candidate, self.schema, self.streams), history


def train_in_parallel(
    jobs: Sequence[TrainingJob], each: int, room: int, executor: Executor
) -> Generator[tuple[nn.Module, TrainingHistory], None, None]:
    """Train jobs on an execution backend; yield networks and histories in the order of the jobs.

    Guarantee: the results are bit-identical on every backend. If a worker is killed, its job is
    repeated with the same random streams.

    Args:
        jobs: Trainings, already charged.
        each: Number of threads of a training.
        room: Number of trainings at a time for which this machine has threads.
        executor: Execution backend.

    Cost: none; the caller has charged the jobs.
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

    The trainings are split into groups, and each group has a CUDA stream. The groups take turns
    with a round of steps, so a GPU computes some groups while others are prepared. Dense networks
    also share the kernel calls of a step (`gpu.dense_steps`). Shared records are copied to a GPU
    once. A training that runs out of memory is repeated alone with the same random streams, because
    its failure must not depend on the number of trainings.

    Guarantee: the results equal those of one training at a time, for any number of GPUs.

    Args:
        jobs: Trainings, already charged, the longest first.
        device: "cuda", or "cpu" in tests.

    Cost: none; the caller has charged the jobs.
    """
    places = _list_devices(device)
    for low in range(0, len(jobs), MAX_INTERLEAVED_TRAININGS * len(places)):
        for place in places:
            place.together = TrainingGroup()
        part = jobs[low : low + MAX_INTERLEAVED_TRAININGS * len(places)]
        queues = [(place, group) for group in range(GPU_QUEUES) for place in places]
        dealt = cycle([*queues, *queues[::-1]])  # each device gets long and short trainings
        turns = left = [_TrainingInTurn(job, *to) for job, to in zip(part, dealt, strict=False)]
        try:
            with full_precision():  # not around `yield`, where the caller has other settings
                while left:
                    left = [
                        turn for group in range(GPU_QUEUES) for place in places
                        for turn in place.run_round(group, left)
                    ]  # fmt: skip
        finally:  # postponed trainings share no buffer with others
            for place in places:
                place.release_buffers()
        for turn in turns:
            if turn.was_postponed:
                turn.train_alone()
            yield turn.network, turn.history


@dataclass(slots=True)
class _Device:
    """A GPU with the trainings on it, or the CPU in tests.

    Args:
        device: "cuda" or "cpu".
        number: Index of the GPU; None: torch's default GPU, or the CPU.
        moved: Copies of records on the device.
        together: Shared kernel calls of the trainings on the device.
        queues: CUDA stream of each group.
    """

    device: str
    number: int | None
    moved: dict[SharedRecords, Records] = field(default_factory=dict)
    together: TrainingGroup = field(default_factory=TrainingGroup)
    queues: dict[int, torch.cuda.Stream] = field(default_factory=dict)

    def as_current_device(self) -> AbstractContextManager[Any]:
        """Make this GPU the one that torch calls "cuda", within a `with` block."""
        return nullcontext() if self.number is None else torch.cuda.device(self.number)

    def load_records(self, opened: SharedRecords) -> Records:
        """Return the copy of records on the device, which is made once."""
        if opened not in self.moved:
            here = opened.records(opened.load())
            there = {name: getattr(here, name).to(self.device) for name in ("x", "y", "valid")}
            self.moved[opened] = replace(here, **there)
            self.wait()  # other groups read the copy without further synchronisation
        return self.moved[opened]

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def release_buffers(self) -> None:
        """Wait for all trainings, and release their shared buffers."""
        with self.as_current_device():
            self.wait()
        self.together = TrainingGroup()

    def _use_stream(self, group: int) -> AbstractContextManager[Any]:
        """Use the CUDA stream of a group within a `with` block."""
        if self.device != "cuda":
            return nullcontext()
        if group not in self.queues:
            self.queues[group] = torch.cuda.Stream()
        return torch.cuda.stream(self.queues[group])

    def run_round(self, group: int, turns: Sequence[_TrainingInTurn]) -> list[_TrainingInTurn]:
        """Run one round of steps of a group's trainings; return those that are not finished."""
        with self.as_current_device(), self._use_stream(group):
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
    """List the devices for training: the current GPU first, then all GPUs of the same model."""
    if device != "cuda" or torch.cuda.device_count() < 2:
        return [_Device(device, None)]
    own = torch.cuda.current_device()

    def describe_model(number: int) -> tuple[Any, ...]:
        about = torch.cuda.get_device_properties(number)
        chip = about.name, about.major, about.minor, about.multi_processor_count
        return *chip, about.total_memory

    def list_versions(number: int) -> list[str]:
        with torch.cuda.device(number):
            return list_gpu_library_versions(device)

    every = sorted(range(torch.cuda.device_count()), key=lambda number: number != own)
    alike = [each for each in every if describe_model(each) == describe_model(own)]
    return [_Device(device, each) for each in alike if list_versions(each) == list_versions(own)]


class _TrainingInTurn:
    """One training that takes turns with others on a GPU.

    Args:
        job: Training to run.
        place: Device to train on.
        group: Index of the group that shares its kernel calls.
    """

    def __init__(self, job: TrainingJob, place: _Device, group: int):
        self._job, self.place, self.group, self.history = job, place, group, TrainingHistory()
        self._seen = None if job.seen is None else job.seen.records(job.seen.load())
        self._rounds: Iterator[int] | None = None
        self.network: nn.Module = nn.Identity()
        self.was_postponed = False

    def _start(self, together: TrainingGroup | None) -> tuple[nn.Module, Iterator[int]]:
        """Start the training from its beginning, with shared kernel calls or alone (None)."""
        job, device, self.history = self._job, self.place.device, TrainingHistory()
        records = self.place.load_records(job.records)
        record_step, needs_network = self.history.make_step_callback(
            job.recipe.steps, self._seen, device
        )
        return start_candidate_training(
            job.candidate, records, job.schema, job.recipe, job.streams, device=device,
            on_step=record_step, looks=needs_network, splits=together is None, together=together,
        )  # fmt: skip

    def start_next_round(self) -> bool:
        """Finish the current round of steps and start the next one; return whether it exists."""
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
            self._stop()
            self.network = self.network.cpu()
        return more

    def postpone(self) -> None:
        """Stop the training, to repeat it alone later, because memory did not suffice."""
        self._stop()
        self.was_postponed = True

    def _stop(self) -> None:
        """Wait for the device, and release all of its memory."""
        if isinstance(self._rounds, Generator):
            self._rounds.close()
        if self.place.device == "cuda":
            torch.cuda.current_stream().synchronize()
        self._rounds = iter(())

    def train_alone(self) -> None:
        """Repeat the training with the same random streams while no other training runs."""

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
