"""Which slots a step uses: exact Poisson sampling, each slot in with probability q, independently.

    the gaps between chosen indices are Geometric(q):   i_k = i_(k-1) + G_k

so a batch costs about q n random numbers instead of n. A batch may be empty or large: an empty one
still adds noise and steps, a large one is computed in chunks. Null slots are drawn like any other.

Source: docs/rules.md, rule 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pasearch.accounting.checks import probability
from pasearch.accounting.events import Event, Gaussian, PoissonGaussian


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Poisson sampling, and the event of a Gaussian release on such a sample.

    Args:
        sampling_probability: q, in (0, 1].
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        """Check the number."""
        q = probability("sampling_probability", self.sampling_probability)
        object.__setattr__(self, "sampling_probability", q)

    def indices(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Return the chosen slots, ascending.

        Args:
            n: Number of slots, null ones included.
            generator: This step's own randomness.

        Returns:
            int64, (batch,): the batch's size is itself random and may be 0.
        """
        q = self.sampling_probability
        if q == 1.0:
            return np.arange(n)
        found: list[np.ndarray] = []
        last = -1
        draws = math.ceil(q * n + 4 * math.sqrt(q * n)) + 4
        while last < n:
            # A gap beyond n ends the batch wherever it lands; capping it keeps the sum from
            # overflowing when q is tiny.
            gaps = np.minimum(generator.geometric(q, size=draws), n + 1)
            found.append(last + np.cumsum(gaps))
            last = int(found[-1][-1])
        chosen = np.concatenate(found)
        return chosen[chosen < n]

    def event(self, noise_multiplier: float) -> Event:
        """Return what a sum over such a batch costs, with Gaussian noise on it."""
        if self.sampling_probability == 1.0:
            return Gaussian(noise_multiplier)
        return PoissonGaussian(self.sampling_probability, noise_multiplier)
