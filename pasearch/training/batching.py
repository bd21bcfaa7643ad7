"""Sampling methods for batches, and the privacy event of a sum with Gaussian noise over a batch.

    Poisson            each record with probability q, independently;     PoissonGaussian(q, sigma)
    TruncatedPoisson   the same, but at most `cap` records at random;     TruncatedPoissonGaussian
    Reshuffled         disjoint batches of a new permutation per epoch;   Gaussian(sigma) per epoch

Poisson sampling is exact: the gaps between chosen indices are Geometric(q), i_k = i_(k-1) + G_k. So
a batch needs about q n random numbers instead of n. A batch may be empty; then its sum is only
noise. Large batches are processed in parts. Null records are sampled like all others. Reshuffled
batches have no privacy amplification: every epoch that was started costs one release, with the
smallest noise of its steps.

Source: docs/rules.md, rule 7; Yu et al., Theorem 2 (reshuffled). Proof: docs/guarantees/dp-sgd.md,
docs/guarantees/batching.md.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from pasearch.accounting.checks import check_positive_integer, check_probability
from pasearch.accounting.events import Event, Gaussian, PoissonGaussian, TruncatedPoissonGaussian
from pasearch.errors import UsageError
from pasearch.registry import FieldChecks, Registry, Stage

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream


class Batching(Stage):
    """Sampling method for batches, and the privacy event of a noisy sum over one batch."""

    __slots__ = ()

    has_cap: ClassVar[bool] = False
    """Whether the method uses the field `cap` of the recipe."""
    sampled: ClassVar[bool] = True
    """Whether batches are independent random samples, so that each step is charged."""
    has_renyi_cost: ClassVar[bool] = True
    """Whether the Renyi divergence of a step is bounded, as privacy filters require."""
    independent: ClassVar[bool] = False
    """Whether each record is included by an independent Bernoulli draw."""
    assumes: ClassVar[str] = "Poisson sampling is exact (geometric gaps)"
    """Assumption of the privacy analysis, which the code satisfies; for the privacy card."""

    @classmethod
    @abstractmethod
    def of(cls, n: int, expected_batch_size: int, cap: int | None) -> Self:
        """Create the sampling method for n records, null records included."""

    @abstractmethod
    def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
        """Draw the record indices of a step, ascending, from the random stream "batch"."""

    @abstractmethod
    def max_batch_size(self, n: int, deviations: float) -> int:
        """Compute the maximum batch size for n records.

        For Poisson sampling it is the mean plus `deviations` standard deviations, at most n.
        """

    @property
    def sizes_vary(self) -> bool:
        """Whether the batch size is random."""
        return self.sampled

    @abstractmethod
    def epoch(self, step: int) -> int:
        """Compute the epoch of a step; both are counted from 0."""

    @abstractmethod
    def event(self, noise_multiplier: float) -> Event:
        """Compute the privacy event of one charged release, a noisy sum over a batch or epoch."""

    def count_releases(self, steps: int) -> int:
        """Count the charged releases of `steps` steps of one epoch."""
        return steps

    def count_all_releases(self, steps: int) -> int:
        """Count the charged releases of `steps` steps with equal noise."""
        return steps


BATCHINGS = Registry("batching", Batching, "pasearch.training.batching", example='"poisson"')


@BATCHINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(Batching):
    """Poisson sampling: each record is in a batch with probability q, independently.

    Args:
        sampling_probability: q, in (0, 1].
    """

    name: ClassVar[str] = "poisson"
    description_template: ClassVar[str] = "Poisson sampling"
    independent: ClassVar[bool] = True
    checks: ClassVar[FieldChecks] = {"sampling_probability": check_probability}
    sampling_probability: float

    @classmethod
    def of(cls, n: int, expected_batch_size: int, cap: int | None) -> Self:
        return cls(sampling_probability=expected_batch_size / n)

    @property
    def sizes_vary(self) -> bool:
        return self.sampling_probability < 1.0

    def indices(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Draw the indices of a batch of n records, ascending, int64, (batch size,).

        The batch size is random and may be 0.

        Args:
            n: Number of records, null records included.
            generator: Random generator, used for this step only.
        """
        q = self.sampling_probability
        if q == 1.0:
            return np.arange(n)
        found: list[np.ndarray] = []
        last = -1
        draws = math.ceil(q * n + 4 * math.sqrt(q * n)) + 4
        while last < n:
            # A gap above n ends the batch. Gaps are limited, so that their sum does not overflow.
            gaps = np.minimum(generator.geometric(q, size=draws), n + 1)
            found.append(last + np.cumsum(gaps))
            last = int(found[-1][-1])
        chosen = np.concatenate(found)
        return chosen[chosen < n]

    def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
        return self.indices(n, stream.generator(step))

    def max_batch_size(self, n: int, deviations: float) -> int:
        mean = self.sampling_probability * n
        return min(n, math.ceil(mean + deviations * math.sqrt(mean)))

    def epoch(self, step: int) -> int:
        return math.floor(step * self.sampling_probability * (1 + 1e-12))

    def event(self, noise_multiplier: float) -> Event:
        if self.sampling_probability == 1.0:
            return Gaussian(noise_multiplier)
        return PoissonGaussian(self.sampling_probability, noise_multiplier)


@BATCHINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Batching):
    """Poisson sampling with at most `cap` records per batch; of more, a random subset is used.

    Args:
        n: Number of records of the partition, null records included.
        expected_batch_size: Expected batch size q n before the cap is applied.
        cap: Public maximum batch size, at least q n + 6 sqrt(q n). None: this minimum. A smaller
            cap would have a much higher privacy cost.
    """

    name: ClassVar[str] = "truncated"
    description_template: ClassVar[str] = "Poisson sampling, at most {cap:,} records"
    has_cap: ClassVar[bool] = True
    has_renyi_cost: ClassVar[bool] = False
    n: int
    expected_batch_size: int
    cap: int | None = None

    def __post_init__(self) -> None:
        check_positive_integer("n", self.n)
        size = check_positive_integer("expected_batch_size", self.expected_batch_size)
        if size > self.n:
            raise UsageError(f"expected_batch_size is {size}: expected at most the {self.n} slots.")
        least = compute_min_cap(size)
        if self.cap is None:
            object.__setattr__(self, "cap", min(least, self.n))
        elif check_positive_integer("cap", self.cap) < min(least, self.n):
            raise UsageError(
                f"cap is {self.cap}: expected at least {least} for batches of "
                f"{self.expected_batch_size} (their expected size and six standard deviations); "
                "a tighter cap costs more privacy than it saves memory."
            )

    @classmethod
    def of(cls, n: int, expected_batch_size: int, cap: int | None) -> Self:
        return cls(n=n, expected_batch_size=expected_batch_size, cap=cap)

    @property
    def poisson(self) -> Poisson:
        """Sampling method before the cap is applied."""
        return Poisson(sampling_probability=self.expected_batch_size / self.n)

    @property
    def sizes_vary(self) -> bool:
        return self.poisson.sizes_vary

    def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
        generator = stream.generator(step)
        chosen = self.poisson.indices(n, generator)
        assert self.cap is not None
        if len(chosen) <= self.cap:
            return chosen
        return np.sort(generator.choice(chosen, self.cap, replace=False))

    def max_batch_size(self, n: int, deviations: float) -> int:
        assert self.cap is not None
        return min(n, self.cap)

    def epoch(self, step: int) -> int:
        return self.poisson.epoch(step)

    def event(self, noise_multiplier: float) -> Event:
        assert self.cap is not None
        q = self.expected_batch_size / self.n
        if q == 1.0 or self.cap >= self.n:
            return self.poisson.event(noise_multiplier)
        return TruncatedPoissonGaussian(self.n, q, self.cap, noise_multiplier)


@BATCHINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Reshuffled(Batching):
    """Disjoint batches of a new random permutation in every epoch; the last may be smaller.

    Args:
        n: Number of records of the partition, null records included.
        batch_size: Number of records of a batch.
    """

    name: ClassVar[str] = "reshuffled"
    description_template: ClassVar[str] = "disjoint batches, reshuffled in every epoch"
    sampled: ClassVar[bool] = False
    assumes: ClassVar[str] = "Batches of one epoch are disjoint, and an epoch is charged once"
    checks: ClassVar[FieldChecks] = {
        "n": check_positive_integer,
        "batch_size": check_positive_integer,
    }
    n: int
    batch_size: int

    @classmethod
    def of(cls, n: int, expected_batch_size: int, cap: int | None) -> Self:
        return cls(n=n, batch_size=expected_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return math.ceil(self.n / self.batch_size)

    def batch(self, n: int, stream: Stream, step: int) -> np.ndarray:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = _draw_epoch_order(stream, epoch, n)
        return np.sort(order[place * self.batch_size : (place + 1) * self.batch_size])

    def max_batch_size(self, n: int, deviations: float) -> int:
        return min(n, self.batch_size)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def event(self, noise_multiplier: float) -> Event:
        """Compute the privacy event of an epoch from the smallest noise multiplier of its steps."""
        return Gaussian(noise_multiplier)

    def count_releases(self, steps: int) -> int:
        """Count the releases of one epoch: 1 if it was started."""
        return 1 if steps else 0

    def count_all_releases(self, steps: int) -> int:
        """Count the epochs that were started."""
        return self.epoch(steps - 1) + 1


@lru_cache(maxsize=1)
def _draw_epoch_order(stream: Stream, epoch: int, n: int) -> np.ndarray:
    """Draw the permutation of an epoch; the last one is cached."""
    return stream.generator(epoch).permutation(n)


def compute_min_cap(expected_batch_size: int) -> int:
    """Compute the minimum of `cap`: q n + 6 sqrt(q n), rounded up."""
    return math.ceil(expected_batch_size + 6 * math.sqrt(expected_batch_size))
