"""Which layers of a dense network have products of bfloat16 halves, and what that takes.

See `compiled_products`. What a record adds to a sum is (d1 + d2)(a1 + a2)^T - d2 a2^T, of its own
d = d1 + d2 + rest and a = a1 + a2 + rest; |rest| <= 2^-17 |d|, |d2| <= 2^-8 |d|, and a likewise. So
its norm is at most |d| |a| ((1 + 2^-17)^2 + 2^-16) < |d| |a| (1 + 2^-14): so much too large are
norms taken.

Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pasearch.training.bounding.bound import SLACK as EXACT
from pasearch.training.dense import Dense
from pasearch.training.products import Product

SLACK = EXACT * (1.0 + 2.0**-14)
"""How much too large a norm is taken where gradients are products of halves."""

ROWS, NUMBERS = 256, 2**16
"""They pay where a step's thread has so many records, in the mean, and a layer so many weights."""


@dataclass(frozen=True, slots=True)
class Halved:
    """The layers of a network whose products are of halves.

    Args:
        widths: Of what each is given.
        outputs: Of what comes out of each.
        layers: Which they are.
    """

    widths: list[int]
    outputs: list[int]
    layers: list[bool]

    @classmethod
    def of(cls, dense: Dense, product: Product, records: float) -> Halved:
        """Return those of a network.

        Args:
            dense: The network.
            product: What multiplies.
            records: Of a batch, that a thread has in the mean.
        """
        pays = product.of_halves > 0 and records >= ROWS
        return cls(*_sides(dense), [pays and each.numel() >= NUMBERS for each in dense.weights])

    @classmethod
    def all_of(cls, dense: Dense) -> Halved:
        """Return all layers of a network."""
        return cls(*_sides(dense), [True] * len(dense.weights))

    @property
    def slack(self) -> float:
        """How much too large norms are taken."""
        return SLACK if any(self.layers) else EXACT

    def form(self, rows: int, product: Product) -> tuple[Any, ...]:
        """Return what `compiled.bounded_sum` is told of them, of so many rows of a block."""
        places, ats = np.full(len(self.layers), -1, np.int64), np.zeros(len(self.layers), np.uint64)
        weights = given = 0
        for layer, halved in enumerate(self.layers):
            if halved:
                places[layer], ats[layer] = weights, given
                weights += self.widths[layer] * self.outputs[layer]
                given += rows * self.widths[layer]
        return places, ats, np.int64(product.of_halves)

    def room(self, rows: int) -> tuple[Any, ...]:
        """Return a thread's places for halves."""
        own = [place for place, halved in enumerate(self.layers) if halved]
        sizes = (
            sum(self.widths[place] * self.outputs[place] for place in own),
            rows * sum(self.widths[place] for place in own),
            rows * max((self.outputs[place] for place in own), default=0),
        )
        return tuple(np.zeros(size, np.uint16) for size in sizes for _ in range(2))


def _sides(dense: Dense) -> tuple[list[int], list[int]]:
    return dense.widths[:-1], [len(each) for each in dense.weights]
