"""What loops in machine code are told of dropout: see `compiled_dropout`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pasearch.spaces.modules import KeyedDropout

STEPS = 2**24
"""In [0, 1) there are so many of the float32 numbers that masks are drawn from."""

SPARE = 16
"""How many bits more than units a record's mask takes: it begins and ends within eight of them."""


def bits_for(dropouts: Sequence[KeyedDropout | None], outputs: Sequence[int]) -> int:
    """Return for how many bits there must be room, of so many units: 0 without dropout."""
    widest = [count for each, count in zip(dropouts, outputs, strict=True) if each is not None]
    return max(widest) + SPARE if widest else 0


class Dropouts:
    """The dropout of a network's layers.

    Args:
        layers: Of every layer, what it has; of a dense network, of its records first.
        chunk: After how many records of a batch another mask begins.
    """

    def __init__(self, layers: Sequence[KeyedDropout | None], chunk: int):
        self._layers = layers
        self._keys = np.zeros(len(layers), np.uint64)
        self._rates = np.zeros(len(layers), np.uint32)
        self._factors = np.ones(len(layers), np.float32)
        self._chunk = np.uint64(chunk)
        self._any = any(each is not None for each in layers)

    def of_this_step(self) -> tuple[Any, ...]:
        """Return what `compiled_dropout.drop` is told, by the keys that the modules have now."""
        for place, each in enumerate(self._layers if self._any else ()):
            if each is not None:
                rate = each.rate if each.training else 0.0
                self._keys[place] = each.seed
                self._rates[place] = math.ceil(float(np.float32(rate)) * STEPS)
                self._factors[place] = 1.0 / (1.0 - rate)
        return self._keys, self._rates, self._factors, self._chunk
