"""One candidate: build it, train it under a charge, score it under a charge.

    classes:   fitness = correct answers on the validation slots + two-sided geometric noise
    a number:  fitness = sum over records of floor(G (1 - min(1, |error|))) + the same noise times G

Divided by the public number of slots the first is the paper's "accuracy plus Laplace noise of scale
1 / (n epsilon')". An error is relative to the width of the target's bounds. A null record adds 0 to
either. Other metrics: `training.metrics`.

Source: Bao et al., section VIII-A; docs/rules.md, rules 9 and 14. Proof:
docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from pasearch.data.precision import full_precision
from pasearch.runs.keys import Stream
from pasearch.training.memory import is_of_memory
from pasearch.training.metrics import Metric, usual_metric
from pasearch.training.steering import ValidationQuery
from pasearch.training.trainer import rounds_of

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.data.tables import AnySchema
    from pasearch.spaces.candidate import Candidate
    from pasearch.training.gpu_code import Together
    from pasearch.training.recipe import Recipe

PURPOSES = ("weights", "batch", "noise", "dropout")
"""Purposes of the random streams that one training uses: initial weights first, then the steps."""


def training_streams(stream: Stream) -> dict[str, Stream]:
    """Return the random streams of one training, by purpose.

    Guarantee: the noise of the trial's score, and every other draw of the trial, cannot be derived
    from them. So a worker that receives them learns nothing about the score's noise.

    Args:
        stream: Random stream of the whole trial; it stays with the coordinator.
    """
    return {purpose: stream.child(purpose) for purpose in PURPOSES}


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
    network, rounds = candidate_in_rounds(
        candidate, records, schema, recipe, streams, device=device, on_step=on_step, looks=looks,
        query=query,
    )  # fmt: skip
    with full_precision():
        for _ in rounds:
            pass
    return network


def candidate_in_rounds(
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
    together: Together | None = None,
) -> tuple[nn.Module, Iterator[int]]:
    """Return the candidate's network, and what trains it: see `trainer.rounds_of`.

    Args and cost: like `train_candidate`; `splits` and `together` as there.
    """
    network = candidate.build(schema.shape, schema.outputs, streams["weights"].generator())
    told = None if on_step is None else lambda finished: on_step(finished, network)
    return network, rounds_of(
        network, records, recipe, streams, device=device, on_step=told, looks=looks, query=query,
        splits=splits, together=together,
    )  # fmt: skip


def or_failed(
    train: Callable[[], nn.Module],
    candidate: Candidate,
    schema: AnySchema,
    streams: Mapping[str, Stream],
) -> nn.Module:
    """Return the network that `train` returns; without the memory for it, one that failed."""
    try:
        return train()
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        generator = streams["weights"].generator()
        return mark_failed(candidate.build(schema.shape, schema.outputs, generator))


def failed(network: nn.Module) -> bool:
    """Return whether training ended in weights that are not finite: the worst score, no redraw."""
    return not all(bool(torch.isfinite(p).all()) for p in network.state_dict().values())


@torch.no_grad()
def mark_failed(network: nn.Module) -> nn.Module:
    """Return the network with weights that are not numbers, for a training that could not run."""
    for parameter in network.parameters():
        parameter.fill_(math.nan)
    return network


@torch.no_grad()
def counts(
    network: nn.Module, records: Records, metric: Metric, *, device: str, chunk: int = 8192
) -> list[int]:
    """Return what tells how good the network's answers are: private.

    Guarantee: replacing one record by the null record changes one count, by at most `metric.most`.

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


def points(network: nn.Module, records: Records, *, device: str, chunk: int = 8192) -> int:
    """Return the network's points by the usual metric; the rest is as of `counts`."""
    metric = usual_metric(records.y.is_floating_point())
    return metric.points(counts(network, records, metric, device=device, chunk=chunk), len(records))


WORST = -math.inf
"""The fitness of a trial that failed."""
