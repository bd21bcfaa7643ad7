"""What a machine does in a second, and from it the least time that a private step could take.

    least = max(bytes moved / copied a second,
                operations / multiplied a second + random bytes / drawn a second)

Products and random bits keep the same cores busy; memory is read beside. Nothing a step computes
more, such as activations or the transform from bits to normal numbers, is in it: it is a bound that
no way of this kind reaches, not a forecast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pasearch.spaces.cost import Cost

if TYPE_CHECKING:
    import torch

SIDE = {"cpu": 512, "cuda": 8192}
"""Rows of the square matrices that are multiplied."""
COPIED = {"cpu": 2**24, "cuda": 2**30}
"""Bytes that are copied at once: more than a core's own cache holds. On a CPU each call takes about
a millisecond, so that some of them meet no other work."""
WORDS = {"cpu": 2**15, "cuda": 2**26}
"""Random 64-bit words that are drawn at once: on a CPU as many as the noise draws at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a machine does in a second, at best.

    Args:
        operations: Of float32 products.
        bytes: Read and written in a copy.
        random: Bytes from the generator that the noise is made of.
        normals: Of torch.randn, float32 numbers, for comparison.
    """

    operations: float
    bytes: float
    random: float
    normals: float

    def least(self, cost: Cost, batch: float) -> float:
        """Return the least seconds of a private step over so many records."""
        computing = cost.operations * batch / self.operations + cost.random / self.random
        return max(computing, cost.moved(batch) / self.bytes)

    def parts(self, cost: Cost, batch: float) -> dict[str, float]:
        """Return the seconds of each part by itself."""
        return {
            "products": cost.operations * batch / self.operations,
            "memory": cost.moved(batch) / self.bytes,
            "random": cost.random / self.random,
            "randn": cost.trained / self.normals,
        }

    def to_json(self) -> dict[str, float]:
        """Return plain values."""
        return asdict(self)


def measured(device: str, seconds: float) -> Rates:
    """Measure a machine's rates, with the threads that torch has now.

    Args:
        device: "cpu" or "cuda".
        seconds: About how long that takes, all in all.
    """
    import torch

    from pasearch.runs.keys import Keys

    side, size, words = SIDE[device], COPIED[device] // 8, WORDS[device]
    a, b, product = (torch.rand(side, side, device=device) for _ in range(3))
    source, target = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
    normal = torch.empty(words, device=device)
    each = seconds / 4
    if device == "cpu":
        stream = Keys().stream("bench").words()
        drawn: Callable[[], object] = lambda: stream.take(words)  # noqa: E731
    else:
        drawn = torch.empty(words, dtype=torch.int64, device=device).random_
    return Rates(
        operations=2.0 * side**3 / best(lambda: torch.mm(a, b, out=product), each, device),
        bytes=16.0 * size / best(lambda: target.copy_(source), each, device),
        random=8.0 * words / best(drawn, each, device),
        normals=words / best(normal.normal_, each, device),
    )


def best(call: Callable[[], object], seconds: float, device: str) -> float:
    """Return the least seconds of one call, of as many as fit into the time, three at least."""
    found: list[float] = []
    call()
    end = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)


def synchronize(device: str | torch.device) -> None:
    """Wait for a device."""
    if str(device) == "cuda":
        import torch

        torch.cuda.synchronize()
