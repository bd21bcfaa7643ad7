"""Noise on the sum of clipped gradients, from the key of the step.

    gaussian   round to a grid(sum + sigma * sensitivity * N(0, I))
    others     round to a grid(sum + scale * z + N(0, (scale / 256)^2 I))        z of a density

Normal numbers are exact (`runs.normals`), so the first is Gaussian noise in every digit. Other
densities are drawn in float64. The exact normal numbers added to them hide the lattice of such
draws, and no privacy is charged for them. On a CPU all bits come from AES-256 in counter mode. On
CUDA they come from Philox, whose 64-bit key is extended by its starting offset, or, for a secure
stream, from AES on the CPU.

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

MIN_THREAD_NUMBERS = 50_000  # numbers from which a separate thread is faster
MIN_TEAM_NUMBERS = 2**20  # numbers from which several threads are, although torch's threads wait

SMOOTHING_FRACTION = 2.0**-8
"""Scale of the normal noise added to another density, as a fraction of that density's scale."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of one step, before it is added to a sum.

    Args:
        normals: Gaussian noise; with `values` it is `SMOOTHING_FRACTION` of their scale.
        values: Noise of another density, at scale 1, float64, (count,); None: all noise is
            Gaussian.
        scale: Scale of that density.
    """

    normals: Normals
    values: torch.Tensor | None = None
    scale: float = 1.0

    def add_to(
        self, sums: Sequence[torch.Tensor], scale: float, team: ThreadTeam | None = None
    ) -> None:
        """Add the noise times a scale to tensors in place, in order; large ones by a thread pool.

        Guarantee: the result is a rounding of the exact sum; see `Normals.add_to`.
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


def begin_gaussian_noise(
    count: int, device: torch.device, stream: Stream, step: int, *, spare: bool = False
) -> NoiseSource:
    """Begin to draw the normal numbers of a step, and return a function that gets them.

    With a spare thread, many numbers are drawn while the gradients are computed, unless by compiled
    kernels. The numbers depend only on stream and step.
    """
    made = draw_device_normals(device, count, stream, step)
    if made.code is not None:  # then they are drawn as they are added, sooner than in a thread
        return lambda: Noise(made)
    return run_in_thread(lambda: Noise(made.compute()), count, spare)


def run_in_thread(make: NoiseSource, count: int, spare: bool) -> NoiseSource:
    """Begin to draw `count` numbers in a thread if one is spare and `count` is large enough."""
    return _noise_thread().submit(make).result if spare and count >= MIN_THREAD_NUMBERS else make


@cache
def _noise_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="noise")


def draw_device_normals(device: torch.device, count: int, stream: Stream, step: int) -> Normals:
    """Draw the normal numbers of a step on a device."""
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
    """Create a CUDA Philox generator with 125 secret bits: a 64-bit key and an offset."""
    import torch

    seed, offset = stream.seed_and_offset(step)
    generator = torch.Generator(device).manual_seed(seed)
    generator.set_offset(offset)
    return generator


class Denoising(Stage):
    """A weight for each noisy sum, from the sum and its noise distribution alone."""

    __slots__ = ()

    relative: bool
    """Whether weights are divided by their mean over the steps so far."""

    @abstractmethod
    def weight(self, noisy: Tensor, density: Density) -> Tensor:
        """Compute the factor on a noisy sum, a scalar on the same device.

        Guarantee: a function of its two arguments.

        Args:
            noisy: The noisy sum, (d,), of all parameters.
            density: Distribution of the noise that was added to one coordinate.
        """


DENOISINGS = Registry(
    "denoising", Denoising, "pasearch.training.encoded.noise", default="kolmogorov-smirnov",
    example="{ cells = 4096 }",
)  # fmt: skip
