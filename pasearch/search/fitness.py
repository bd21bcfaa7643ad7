"""One candidate: build it, train it under a charge, score it under a charge.

    fitness = correct answers on the validation slots + two-sided geometric noise

Divided by the public number of slots this is the paper's "accuracy plus Laplace noise of scale
1 / (n epsilon')". A null record is no correct answer.

Source: Bao et al., section VIII-A; docs/rules.md, rules 9 and 14. Proof:
docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from pasearch.training.trainer import train

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.data.schema import Schema
    from pasearch.runs.keys import Stream
    from pasearch.spaces.space import Candidate
    from pasearch.training.recipe import Recipe

PURPOSES = ("batch", "noise", "dropout")


def train_candidate(
    candidate: Candidate,
    records: Records,
    schema: Schema,
    recipe: Recipe,
    stream: Stream,
    *,
    device: str,
    on_step: Callable[[int], None] | None = None,
) -> nn.Module:
    """Return the candidate's network, trained on an open partition.

    Args:
        candidate: What to build.
        records: The open partition.
        schema: Shape and classes.
        recipe: With the noise that the plan solved.
        stream: The trial's own key: no other trial shares a batch or a noise draw with it.
        device: "cpu" or "cuda".
        on_step: Called with the number of finished steps.

    Cost: `recipe.event(len(records))`, charged by the caller before `records` was opened.
    """
    network = candidate.architecture.build(
        schema.shape, schema.classes, stream.child("weights").generator()
    )
    streams = {purpose: stream.child(purpose) for purpose in PURPOSES}
    train(network, records, recipe, streams, device=device, on_step=on_step)
    return network


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
def correct(network: nn.Module, records: Records, *, device: str, chunk: int = 8192) -> int:
    """Return how many valid records the network classifies correctly.

    Guarantee: replacing one record by the null record changes the count by at most 1.
    """
    network = network.to(device).eval()
    hits = 0
    for start in range(0, len(records), chunk):
        part = slice(start, start + chunk)
        answers = network(records.x[part].to(device)).argmax(dim=1).cpu()
        hits += int(((answers == records.y[part]) & records.valid[part]).sum())
    return hits


WORST = -math.inf
"""The fitness of a trial that failed."""
