"""Gaussian noise on the sum of bounded gradients, from the step's own key.

    sum + sigma * sensitivity * N(0, I)

On a CPU the numbers come from numpy's Philox under a 128-bit key; CUDA's Philox takes 64 bits of
it. The noise is float32: finite precision is covered by no theorem here, and the card says so.

Source: docs/rules.md, rules 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from pasearch.accounting.checks import positive

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream


BESIDE = 50_000
"""From how many numbers on a thread pays."""

Drawn = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianNoise:
    """Independent Gaussian noise on every coordinate.

    Args:
        noise_multiplier: sigma / sensitivity, above 0.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        """Check the number."""
        value = positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", value)

    def add_(
        self,
        sums: list[torch.Tensor],
        sensitivity: float,
        stream: Stream,
        step: int,
        drawn: Drawn | None = None,
    ) -> None:
        """Add noise in place.

        Args:
            sums: Float32 tensors on one device: together one vector of that L2 sensitivity.
            sensitivity: The bound's, in the units of the sums.
            stream: The trial's noise stream; no two trials share one.
            step: Which step; no two steps share their noise.
            drawn: What `draw` returned for the same stream and step, if it was called.
        """
        drawn = drawn or draw(sum(each.numel() for each in sums), sums[0].device, stream, step)
        add_scaled(sums, drawn(), self.noise_multiplier * sensitivity)


def add_scaled(sums: list[torch.Tensor], numbers: torch.Tensor, scale: float) -> None:
    """Add numbers times a scale to tensors in place, in their order."""
    for each, part in zip(sums, numbers.split([s.numel() for s in sums]), strict=True):
        each.add_(part.view_as(each), alpha=scale)


def draw(count: int, device: torch.device, stream: Stream, step: int) -> Drawn:
    """Begin to draw a step's normal numbers; call what is returned to get them.

    On a CPU many of them are drawn in a thread, while the gradients are computed: numpy holds no
    lock meanwhile. The numbers depend on stream and step alone.
    """
    if device.type != "cpu" or count < BESIDE:
        return lambda: _normals(count, device, stream, step)
    return _thread().submit(_normals, count, device, stream, step).result


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")


def _normals(count: int, device: torch.device, stream: Stream, step: int) -> torch.Tensor:
    if device.type == "cpu":
        drawn = stream.generator(step).standard_normal(count, dtype=np.float32)
        return torch.from_numpy(drawn)
    generator = torch.Generator(device).manual_seed(stream.seed64(step))
    return torch.randn(count, generator=generator, device=device)
