"""Noise on the sum of clipped gradients.

    Gaussian          sum + sigma * sensitivity * N(0, I), rounded to a grid
    other densities   sum + scale * z + N(0, (scale / 256)^2 I), rounded to a grid, z of the density

Normal numbers are exact (`runs.normals`), so the first is exactly Gaussian before it is rounded.
Numbers of other densities are drawn in float64. The exact normal numbers that are added to them
hide the floating-point representation of these numbers; the accounting ignores them. On a CPU, all
random bits come from AES-256 in counter mode. On CUDA, they come from Philox with a 64-bit key and
a secret starting offset; for a secure stream they come from AES on the CPU.

Source: docs/rules.md, rules 11 and 14. Proof: docs/guarantees/floating-point.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pasearch.registry import Registry, Stage
from pasearch.runs.keys import Stream
from pasearch.runs.normals import Normals, count_pairs, draw_normals, normals_from_words
from pasearch.runs.processor import ThreadTeam

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pasearch.accounting.densities import Density

MIN_THREAD_NUMBERS = 50_000
"""Minimum count of numbers for which drawing them in a separate thread saves time."""
MIN_TEAM_NUMBERS = 2**20
"""Minimum count of numbers for which adding them by several threads saves time."""

SMOOTHING_FRACTION = 2.0**-8
"""Standard deviation of the normal noise that is added to another density, divided by its scale."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one step, before it is scaled and added to a sum.

    Args:
        normals: Standard normal numbers: the noise itself, or the smoothing noise of `values`.
        values: Noise of another density with scale 1, float64, (count,). None: Gaussian noise.
        scale: Scale of the noise.
    """

    normals: Normals
    values: torch.Tensor | None = None
    scale: float = 1.0

    def add_to(
        self, sums: Sequence[torch.Tensor], scale: float, team: ThreadTeam | None = None
    ) -> None:
        """Add the noise, multiplied by `scale`, to tensors in place.

        Guarantee: the result is the exact sum, rounded to a grid; see `Normals.add_to`.

        Args:
            sums: Tensors; the noise is used in their order.
            scale: Factor on the noise.
            team: Threads that share the work for large tensors. None: only the calling thread.
        """
        start, scale = 0, scale * self.scale
        for each in sums:
            flat, count = each.reshape(-1), each.numel()
            if self.values is None:
                own = team if count >= MIN_TEAM_NUMBERS else None
                self.normals.add_to(flat, scale, start=start, team=own)
            else:
                flat = flat.double() + self.values[start : start + count] * scale
                self.normals.add_to(flat, scale * SMOOTHING_FRACTION, start=start)
            start += count
            if flat.data_ptr() != each.data_ptr():
                each.copy_(flat.view_as(each))


NoiseSource = Callable[[], Noise]
"""Function that returns the noise when it is drawn."""


def begin_gaussian_noise(
    count: int, device: torch.device, stream: Stream, step: int, *, spare: bool = False
) -> NoiseSource:
    """Start to draw the Gaussian noise of a step; call the returned function to get it.

    The numbers depend only on stream and step.

    Args:
        count: Number of values.
        device: Device of the noise.
        stream: Random stream of the trial's noise.
        step: Number of the step.
        spare: Whether a thread is free to draw many numbers while the gradients are computed.
    """
    made = draw_device_normals(device, count, stream, step)
    if made.code is not None:  # compiled code draws numbers when they are added
        return lambda: Noise(made)
    return run_in_thread(lambda: Noise(made.compute()), count, spare)


def run_in_thread(make: NoiseSource, count: int, spare: bool) -> NoiseSource:
    """Start `make` in the noise thread if it is free and `count` is large; else call it later."""
    return (
        _get_noise_thread().submit(make).result if spare and count >= MIN_THREAD_NUMBERS else make
    )


@cache
def _get_noise_thread() -> ThreadPoolExecutor:
    """Start the thread that draws noise, once per process."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")


def draw_device_normals(device: torch.device, count: int, stream: Stream, step: int) -> Normals:
    """Make the standard normal numbers of a step on a device."""
    if device.type == "cpu":
        return draw_normals(count, stream, step)
    words = draw_device_words(device, 2 * count_pairs(count), stream, step)
    return normals_from_words(words, count, stream, step)


def draw_device_words(device: torch.device, count: int, stream: Stream, step: int) -> torch.Tensor:
    """Draw the 64-bit words of a step on a device: from AES-256, or on CUDA from Philox."""
    import torch

    if stream.secure or device.type != "cuda":
        words = torch.from_numpy(stream.random_words(step).take(count))
        return words.clone() if device.type == "cpu" else words.to(device)
    generator = make_cuda_generator(device, stream, step)
    words = torch.empty(count, dtype=torch.int64, device=device)
    return words.random_(-(2**63), None, generator=generator)


def make_cuda_generator(device: torch.device, stream: Stream, step: int) -> torch.Generator:
    """Make a CUDA generator (Philox) with 125 secret bits: a 64-bit key and an offset."""
    import torch

    seed, offset = stream.seed_and_offset(step)
    generator = torch.Generator(device).manual_seed(seed)
    generator.set_offset(offset)
    return generator


class Denoising(Stage):
    """Method that computes a weight for each noisy sum, from the sum and its noise distribution."""

    __slots__ = ()

    relative: bool
    """Whether weights are divided by their mean over the steps so far."""

    @abstractmethod
    def weight(self, noisy: Tensor, density: Density) -> Tensor:
        """Compute the factor by which a noisy sum is multiplied, a scalar on the same device.

        Guarantee: the result depends only on the two arguments.

        Args:
            noisy: Released noisy sum of all parameters, (d,).
            density: Density of the noise on one coordinate.
        """


DENOISINGS = Registry(
    "denoising", Denoising, "pasearch.training.encoded.noise", default="kolmogorov-smirnov",
    example="{ cells = 4096 }",
)  # fmt: skip
