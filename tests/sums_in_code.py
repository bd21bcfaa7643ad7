"""The sums of one network's records in machine code, and by torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.runs.keys import Stream
from pasearch.runs.team import Team
from pasearch.training import machine_code
from pasearch.training.bounding.bound import Bound
from pasearch.training.dense import Dense
from pasearch.training.halves import Halved
from pasearch.training.machine_code import Plan
from pasearch.training.one_step import Slots, reseed_dropout
from pasearch.training.record_sums import SumBuffers, flattened
from pasearch.training.watched import Watched

CLASSES = 3


class Sums:
    """Of made-up records of some shape.

    Args:
        network: What machine code knows.
        shape: Of a record.
        n: How many records.
        bounding: Of each record's gradient.
        of_halves: Whether all products of a dense network are of halves.
        threads: Which take turns with blocks of records.
    """

    def __init__(
        self,
        network: nn.Sequential,
        shape: tuple[int, ...],
        n: int,
        bounding: Bound,
        *,
        of_halves: bool = False,
        threads: int = 1,
    ):
        torch.manual_seed(5)
        trained = [each for each in network.parameters() if each.requires_grad]
        (weights,), self.watched = flattened(trained), Watched(network)
        weights.normal_(std=0.5)
        y, valid = torch.randint(CLASSES, (n,)), torch.rand(n) > 0.2
        slots = Slots(torch.randn(n, *shape), y, valid)
        self.slots, self.bounding = slots.known_to(self.watched), bounding
        found = machine_code.chain_of(self.watched, self.slots.x)
        assert found is not None
        code = machine_code.loops()
        assert code is not None
        halved = Halved.all_of(found) if of_halves and isinstance(found, Dense) else None
        self.plan = Plan.of(found, weights, n, threads, code, halved=halved)
        self.threads = threads

    def in_code(self, places: Any = None, slots: Slots | None = None) -> Tensor:
        """Return the sum of some slots, or of all; of other slots' records, if they are given."""
        slots = self.slots if slots is None else slots.known_to(self.watched)
        places = np.arange(len(slots.y)) if places is None else np.array(places)
        total = np.full(len(self.plan.weights), 7.0)
        reseed_dropout(self.watched, Stream(bytes(32)), 1)
        team = Team(self.threads)
        machine_code._Sum(self.plan, slots, self.bounding.terms, 4096, team)(places, total)
        return torch.from_numpy(total).float()

    def with_bad(self, bad: list[int], value: float) -> tuple[Slots, Slots]:
        """Return all slots, with bad ones' numbers of one value, and with bad ones null."""
        everyone = torch.ones_like(self.slots.valid)
        null, x = everyone.clone(), self.slots.x.clone()
        null[bad], x[bad] = False, value
        return replace(self.slots, x=x, valid=everyone), replace(self.slots, valid=null)

    def by_torch(self) -> Tensor:
        """Return the sum of all slots."""
        room = SumBuffers(self.watched.parameters)
        reseed_dropout(self.watched, Stream(bytes(32)), 1)
        x, loss, valid = self.slots.at(torch.arange(len(self.slots.y)))
        self.bounding.sums(self.watched, x, loss, mask=valid, room=room)
        room.write_back()
        return room.flats[0]
