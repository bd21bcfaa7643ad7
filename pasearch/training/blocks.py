"""Batches of many steps, drawn at once on a GPU and padded to one size.

    places   int64, (steps, width)     slots; 0 where a row is padding
    real     bool, (steps, width)      False for padding, which adds 0 as a null record does
    beyond   int64, (steps,)           the slot that comes after those; n or more: none does

So a step's shapes are the same in every step, and the processor need not know how many came. It is
the same sampling: the gaps between chosen slots are Geometric(q), each by inversion,
G = 1 + floor(log U / log(1 - q)), with 63 secret bits of U. A batch with more than `width` slots
(one of 20,000 or fewer) is drawn to its end by `whole`: that slot, and what comes behind it.

Source: docs/rules.md, rule 7. Proof: docs/guarantees/batching.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pasearch.runs.keys import Stream
from pasearch.runs.normals import MASK
from pasearch.training.batching import Batching, Poisson
from pasearch.training.noise import words_on

STEPS = 64
"""Steps whose batches are drawn at once, where nothing else is said."""

DEVIATIONS = 4.0
"""By how many standard deviations of a Poisson batch's size its padding goes beyond the mean."""

EQUAL = 8
"""Widths are multiples of this, which products on a GPU like."""


@dataclass(frozen=True, slots=True)
class Padded:
    """One step's slots.

    Args:
        places: Int64, (width,).
        real: Bool, (width,).
        beyond: Int64, (): the next slot of a larger batch; n or more where these are all.
        more: Bool, (): whether there is one.
    """

    places: Tensor
    real: Tensor
    beyond: Tensor
    more: Tensor


class Blocks:
    """The batches of a training, on its device.

    Guarantee: a step's batch has the law of `batching`, and steps are independent wherever those of
    `batching` are; it follows from stream, step and kind of device alone.

    Args:
        batching: How they are drawn.
        n: Slots of the partition, null ones included.
        stream: The trial's own, for batches alone.
        device: Where they lie.
        steps: Of how many steps at once; None: `STEPS`.
        deviations: As of `padded`; None: `DEVIATIONS`.
    """

    def __init__(
        self,
        batching: Batching,
        n: int,
        stream: Stream,
        device: torch.device,
        *,
        steps: int | None = None,
        deviations: float | None = None,
    ):
        self._batching, self._n, self._stream, self._device = batching, n, stream, device
        self._steps = STEPS if steps is None else steps
        self.width = padded(batching, n, DEVIATIONS if deviations is None else deviations)
        self._block = -1
        self._drawn: tuple[Tensor, Tensor, Tensor] | None = None
        self._all_chosen = isinstance(batching, Poisson) and batching.sampling_probability == 1.0

    def at(self, step: int) -> Padded:
        """Return a step's slots, padded. Nothing is fetched from the device."""
        block, row = divmod(step, self._steps)
        places, real, beyond = self.block(block)
        return Padded(places[row], real[row], beyond[row], beyond[row] < self._n)

    def block(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slots of a block's steps, as they stand at the top."""
        if block != self._block or self._drawn is None:
            inverted = isinstance(self._batching, Poisson) and not self._all_chosen
            self._drawn = self._by_inversion(block) if inverted else self._moved(block)
            self._block = block
        return self._drawn

    def whole(self, step: int) -> tuple[Tensor, Tensor]:
        """Return all of a step's slots, and which rows are real: waits for the device."""
        padded = self.at(step)
        if not bool(padded.more):
            return padded.places, padded.real
        assert isinstance(self._batching, Poisson)
        first = int(padded.beyond)  # what is behind it does not depend on what is before
        generator = self._stream.child("more").generator(step)
        behind = self._batching.indices(self._n - first - 1, generator) + first + 1
        rest = torch.from_numpy(np.append(first, behind))
        places = torch.cat([padded.places, rest.to(padded.places)])
        return filled_up(places, self.width)

    def _by_inversion(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw Poisson batches on the device."""
        assert isinstance(self._batching, Poisson)
        shape = self._steps, self.width + 1
        words = words_on(self._device, math.prod(shape), self._stream.child("gaps"), block)
        places = gaps(words, self._batching.sampling_probability, self._n).view(shape)
        places = places.cumsum(1).sub_(1)
        real = places[:, :-1] < self._n
        return places[:, :-1].where(real, 0), real, places[:, -1].contiguous()

    def _moved(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw batches as on a processor, and move them all at once."""
        beyond = torch.full((self._steps,), self._n, device=self._device)
        if self._all_chosen:
            every = torch.arange(self._n, device=self._device).expand(self._steps, -1)
            real = torch.ones_like(every[:1], dtype=torch.bool).expand(self._steps, -1)
            return every, real, beyond
        places = np.zeros((self._steps, self.width), dtype=np.int64)
        real = np.zeros((self._steps, self.width), dtype=bool)
        for row in range(self._steps):
            chosen = self._batching.batch(self._n, self._stream, block * self._steps + row)
            places[row, : len(chosen)], real[row, : len(chosen)] = chosen, True
        slots, rows = (torch.from_numpy(each).to(self._device) for each in (places, real))
        return slots, rows, beyond


def padded(batching: Batching, n: int, deviations: float) -> int:
    """Return the rows of a step of n slots, padding of so many standard deviations included."""
    most = batching.most(n, deviations)
    return min(EQUAL * -(-most // EQUAL), max(n, 1))


def filled_up(places: Tensor, part: int, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return slots in whole parts of so many, and which are real: behind them stands slot 0.

    Args:
        places: Int64, (rows,).
        part: How many a part has.
        real: Which are real as yet, bool, (rows,); None: all.
    """
    missing = -len(places) % part
    real = torch.ones_like(places, dtype=torch.bool) if real is None else real
    behind = places.new_zeros(missing)
    return torch.cat([places, behind]), torch.cat([real, behind.bool()])


def gaps(words: Tensor, q: float, n: int) -> Tensor:
    """Return Geometric(q) numbers, at most n + 1, from 64-bit words: P(G > k) = (1 - q)^k."""
    found = (words & MASK).double().add_(0.5).mul_(2.0**-63).log_().div_(math.log1p(-q))
    return found.floor_().add_(1.0).clamp_(max=n + 1.0).long()
