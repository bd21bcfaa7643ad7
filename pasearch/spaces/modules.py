"""Modules torch lacks or whose randomness must be keyed.

Tempered sigmoid (Papernot et al. 2020, arXiv 2007.14191):  phi(x) = s / (1 + exp(-T x)) - o.
Tanh is the case (s, T, o) = (2, 2, 1).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


class Rescale(nn.Module):
    """Clamp every value to its declared bounds and map them to [0, 1].

    Args:
        low: The declared lower bound, in the data's own units.
        high: The declared upper bound.

    Source: docs/rules.md, rule 13: the bounds are declared, never read from the records.
    """

    def __init__(self, low: float, high: float):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, any shape and number type, as float32 in [0, 1].

        In float64 until the end, as in training: bounds may be narrow and far from 0.
        """
        inside = x.double().clamp(self.low, self.high)
        return ((inside - self.low) / (self.high - self.low)).float()

    def extra_repr(self) -> str:
        """Show the bounds."""
        return f"low={self.low}, high={self.high}"


class TemperedSigmoid(nn.Module):
    """The tempered sigmoid s * sigmoid(T x) - o, whose bounded output keeps gradients small."""

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0):
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the activation to every element."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Show the three parameters."""
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


class KeyedDropout(nn.Module):
    """Dropout whose masks come from a key the trainer gives before every step.

    Guarantee: the same key and input give the same mask, whatever else drew random numbers.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self._seed = 0
        self._draws = 0

    def reseed(self, seed64: int) -> None:
        """Start the masks of one step from 64 bits of its key."""
        self._seed, self._draws = seed64, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero each element with probability `rate` in training, and rescale the others."""
        if not self.training or not self.rate:
            return x
        self._draws += 1
        return x * (self._uniform(x) >= self.rate) / (1.0 - self.rate)

    def _uniform(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 in [0, 1), of the form of x: from Philox, on the CPU numpy's.

        Torch's generator on the CPU keeps 32 bits of a seed, so two steps would share masks.
        """
        if x.device.type == "cpu":
            philox = np.random.Philox(key=(self._draws << 64) | self._seed)
            drawn = np.random.Generator(philox).random(tuple(x.shape), dtype=np.float32)
            return torch.from_numpy(drawn)
        generator = torch.Generator(device=x.device)
        generator.manual_seed((self._seed + 0x9E3779B97F4A7C15 * self._draws) % 2**64)
        return torch.rand(x.shape, generator=generator, device=x.device)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate}"
