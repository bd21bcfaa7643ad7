"""Encoding as a bound: each record's gradient is clamped to the nearest of public vectors.

So every coordinate is bounded, and noise of any law has a price.

Source: Nasr et al., Algorithms 1 and 2. Proof: docs/guarantees/encoding.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from pasearch.accounting.additive import Shifts
from pasearch.accounting.checks import whole
from pasearch.registry import Checks
from pasearch.training.bounding.bound import BOUNDINGS, Bound, checked_bound, flag
from pasearch.training.encoded.codebook import Codebook, public_seed
from pasearch.training.encoded.gradients import add_encoded_sum
from pasearch.training.per_example import Loss, PreparedNetwork
from pasearch.training.record_sums import SumBuffers

MOST_VECTORS = 100_000
"""The most vectors of a codebook: every gradient is compared with each."""


@BOUNDINGS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded(Bound):
    """Bound every record's gradient by the nearest vector of a public codebook.

    Args:
        clip_norm: C, the norm of every vector, 1e-12 or above.
        vectors: m.
        seed: Of the codebook; public, 0 or above.
        exact: Form, sort and rank every gradient, with the dense codebook: Algorithm 2 to the
            letter, for small networks.
    """

    name: ClassVar[str] = "encoded"
    limits_coordinates: ClassVar[bool] = True
    takes_views: ClassVar[bool] = False
    checks: ClassVar[Checks] = {
        "clip_norm": checked_bound, "vectors": partial(whole, most=MOST_VECTORS),
        "seed": lambda _, value: public_seed(value), "exact": flag,
    }  # fmt: skip
    clip_norm: float = 1.0
    vectors: int = 1000
    seed: int = 0
    exact: bool = False

    @property
    def sensitivity(self) -> float:
        """C, in L2 norm; noise of another law than Gaussian is priced by the codebook itself."""
        return self.clip_norm

    def codebook(self, dimension: int) -> Codebook:
        """Return the codebook of a network with so many trainable numbers."""
        return _codebook(self, dimension)

    def shifts(self, dimension: int) -> Shifts:
        """Return one vector that bounds all of the codebook, rank by rank."""
        return _envelope(self, dimension)

    def sums(
        self,
        network: nn.Module | PreparedNetwork,
        x: Tensor,
        loss: Loss,
        mask: Tensor,
        *,
        views: int = 1,
        weights: Tensor | None = None,
        buffers: SumBuffers | None = None,
        counted: bool = True,
    ) -> tuple[list[Tensor], Tensor]:
        """Return the sum of encoded gradients, and no counts."""
        assert views == 1, "encoding takes one gradient a record"
        assert weights is None, "encoding takes gradients as they are"
        prepared = PreparedNetwork.of(network)
        codebook = self.codebook(sum(p.numel() for p in prepared.parameters))
        given, buffers = buffers, SumBuffers(prepared.parameters) if buffers is None else buffers
        add_encoded_sum(prepared, x, loss, mask, codebook, buffers, self.exact)
        if given is None:
            buffers.write_back()
        return buffers.views, torch.zeros(0)

    def words(self) -> str:
        """Return what is done to each gradient."""
        seed = f", drawn from seed {self.seed}" if self.seed else ""
        exact = "; ranks by sorting, as the paper has it" if self.exact else ""
        return (
            f"clamped, rank by rank, to the nearest of {self.vectors:,} public vectors of norm "
            f"{self.clip_norm:g}{seed}{exact}"
        )


@lru_cache(maxsize=4)
def _codebook(encoded: Encoded, dimension: int) -> Codebook:
    make = Codebook.dense if encoded.exact else Codebook.binned
    return make(dimension, vectors=encoded.vectors, clip_norm=encoded.clip_norm, seed=encoded.seed)


@lru_cache(maxsize=8)
def _envelope(encoded: Encoded, dimension: int) -> Shifts:
    return encoded.codebook(dimension).envelope()
