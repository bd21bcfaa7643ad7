"""Encoded gradients: each record's gradient is clamped, rank by rank, to a public vector.

    psi_1 .. psi_m     public vectors: N(0, 1) entries, below 1e-5 set to 0, sorted, of norm C
    nearest            psi of largest <|g| sorted, psi> / |psi|, for a record's own gradient g
    encoded            sign(g_j) min(|g_j|, psi[rank of |g_j|])             rank 0 is the largest

So the sorted magnitudes of what a record adds are at most those of one psi: that is all an
accountant needs, for noise of any law. A null record adds 0, as does one whose gradient is not
finite. How far an encoded vector is from g, in what order equal magnitudes are ranked and which
psi is called nearest does not matter to the price.

A psi is held as constants over bins of ranks, fine at the top: each is the root mean square of the
Gaussian's magnitudes between two order statistics, which are drawn. That is a codebook of its own,
public like the paper's and priced as it is; `Codebook.dense` is the paper's, for small networks.

Nothing is sorted: key counts 18ths of an octave down from the record's largest magnitude, and
N(key) is how many coordinates have this key or less, a rank no better than any of theirs. Of a
linear layer no gradient is formed either. |g_ok| = |a_k| |d_o|, with |a_k| rounded to one of 32
levels, 2^(1/3) apart, and |d_o| to the keys; so a record has the encoded values

    T[r, o] = min(2^(-key/18) largest, psi[N(key) - 1]),         key = key(d_o) + 6 r,

of which row r goes to every input of level r: torch's embedding bag sums them over records.

Source: Nasr et al., Algorithms 1 and 2; docs/rules.md, the row of their lemmas. The line that picks
psi prints the argmin of a similarity: the nearest is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from pasearch.accounting.additive import RATIO, Shifts
from pasearch.accounting.checks import positive, whole
from pasearch.errors import UsageError
from pasearch.training.bounding import Flat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pasearch.training.per_example import Captured, Loss

PUBLIC_KEY = 0x6E617372_2D656E63_6F64696E_67000000
"""Of the codebook's generator, to which its seed is added: not a secret."""
LEAST_ENTRY = 1e-5
"""Below it an entry of N(0, 1) is set to 0, as in the paper."""
FINENESS = 8
"""A bin of ranks is at most an 8th as wide as the ranks above it are many."""
COARSEST = 64
"""A bin of ranks holds at most a 64th of all, where a psi has as many entries."""
MOST_DENSE = 2**25
"""Most numbers in a dense codebook: 128 MiB."""
LARGEST_DIMENSION = 2**24
"""Below it float32 counts coordinates without rounding."""

OCTAVE = 18
"""Keys to an octave: magnitudes that share a key are within 4 % of each other."""
STEP = 6
"""Keys from one level of an input to the next: a factor 2^(1/3)."""
LEVELS = 32
"""Levels of an input: those below 2^-10 of a record's largest in that layer count as 0."""
SCALES = 360
"""Keys of an output's gradient: what is 20 octaves below the record's largest counts as 0."""
KEYS = SCALES + STEP * (LEVELS - 1)

FORMED = 2**21
"""Most numbers in the gradients that are formed at once: 8 MiB, which caches hold."""
TABLE = {"cpu": 320_000, "cuda": 2**26}
"""Most numbers in the tables T at once: what caches hold."""
ROWS = {"cpu": 256, "cuda": 2**15}
"""Most records at once, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Codebook:
    """Public vectors, sorted, each of norm at most C; constant over bins of ranks.

    Guarantee: a function of its settings alone. `values` are what gradients are clamped to, bit by
    bit, and what `shifts` prices.

    Args:
        values: float32, (vectors, bins), 0 or above, not increasing along a row.
        counts: int64, (bins,), how many coordinates a bin holds; together the dimension.
    """

    values: NDArray[np.float32]
    counts: NDArray[np.int64]

    @classmethod
    def binned(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw the order statistics at the bins' edges, and take what lies between for its mean.

        Cost: vectors x bins numbers, about 130 bins at 10^5 coordinates: milliseconds.

        Args:
            dimension: How many coordinates a gradient has, below 2^24.
            vectors: m, 1 or above.
            clip_norm: C, of every vector.
            seed: Public, 0 or above.
        """
        counts = _bins(_dimension(dimension))
        generator = _generator(seed)
        # The gaps between the order statistics of uniform numbers are those of a Poisson process.
        gaps = generator.standard_gamma(counts, size=(whole("vectors", vectors), len(counts)))
        rest = generator.standard_exponential(len(gaps))
        tail = np.cumsum(gaps, axis=1)
        tail /= (tail[:, -1] + rest)[:, None]
        above = np.pad(tail[:, :-1], ((0, 0), (1, 0)))
        nodes, weights = np.polynomial.legendre.leggauss(3)
        squares = sum(
            weight / 2 * ndtri((above + (tail - above) * (1 + node) / 2) / 2) ** 2
            for node, weight in zip(nodes, weights, strict=True)
        )
        edges = ndtri(tail / 2) ** 2  # a bin of one coordinate is that order statistic
        return cls._of_norm(np.sqrt(np.where(counts == 1, edges, squares)), counts, clip_norm)

    @classmethod
    def dense(
        cls, dimension: int, *, vectors: int = 1000, clip_norm: float = 1.0, seed: int = 0
    ) -> Codebook:
        """Draw every entry, as the paper has it.

        Raises:
            UsageError: More than 2^25 numbers.

        Args: as of `binned`.
        """
        size = _dimension(dimension) * whole("vectors", vectors)
        if not size <= MOST_DENSE:
            raise UsageError(
                f"{vectors} dense vectors of {dimension} entries are {size} numbers: expected at "
                f"most {MOST_DENSE}. Take fewer vectors, or leave `exact` out."
            )
        drawn = np.abs(_generator(seed).standard_normal((vectors, dimension)))
        drawn[:, ::-1].sort(axis=1)
        return cls._of_norm(drawn, np.ones(dimension, dtype=np.int64), clip_norm)

    @classmethod
    def _of_norm(
        cls, magnitudes: NDArray[np.float64], counts: NDArray[np.int64], clip_norm: float
    ) -> Codebook:
        """Set tiny entries to 0, scale to norm C, and round to float32 towards 0."""
        kept = np.where(magnitudes < LEAST_ENTRY, 0.0, magnitudes)
        norms = np.sqrt((kept**2 * counts).sum(axis=1, keepdims=True))
        scaled = (kept * (Flat(clip_norm=clip_norm).clip_norm / norms)).astype(np.float32)
        values = np.nextafter(scaled, np.float32(0.0))
        values.setflags(write=False)
        counts.setflags(write=False)
        return cls(values=values, counts=counts)

    @property
    def dimension(self) -> int:
        """How many coordinates a gradient has."""
        return int(self.counts.sum())

    @property
    def norms(self) -> NDArray[np.float64]:
        """Every vector's norm, (vectors,): at most C."""
        return np.sqrt((self.values.astype(np.float64) ** 2 * self.counts).sum(axis=1))

    def shifts(self, ratio: float | None = RATIO) -> list[Shifts]:
        """Return what an accountant prices, vector by vector, without zeros.

        Guarantee: whatever t, a record's encoded vector has at most as many magnitudes above t as
        the shifts of the vector that was nearest to it.

        Args:
            ratio: Above 1 rounds every value up to a power of it, so that all vectors share a few
                hundred values; None leaves them as they are.
        """
        return [_shifts(row, self.counts, ratio) for row in self.values]

    def envelope(self, ratio: float | None = RATIO) -> Shifts:
        """Return one vector that bounds them all, rank by rank: a little dearer, and short.

        Args:
            ratio: As of `shifts`.
        """
        return _shifts(self.values.max(axis=0), self.counts, ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Bound every record's gradient by the nearest vector of a public codebook.

    A bound like `Flat`, except that it needs more of a gradient than its norm: `encoded_sum` takes
    the place of `clipped_sum`.

    Args:
        clip_norm: C, the norm of every vector, 1e-12 or above.
        vectors: m.
        seed: Of the codebook; public, 0 or above.
        exact: Form, sort and rank every gradient, with the dense codebook: Algorithm 2 to the
            letter, for small networks.
    """

    name: ClassVar[str] = "encoded"
    clip_norm: float = 1.0
    vectors: int = 1000
    seed: int = 0
    exact: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "clip_norm", Flat(clip_norm=self.clip_norm).clip_norm)
        object.__setattr__(self, "vectors", whole("vectors", self.vectors))
        object.__setattr__(self, "seed", _seed(self.seed))
        if type(self.exact) is not bool:
            raise UsageError(f"exact is {self.exact!r}: expected true or false.")

    @property
    def sensitivity(self) -> float:
        """C, in L2 norm; noise of another law than Gaussian is priced by the codebook itself."""
        return self.clip_norm

    def codebook(self, dimension: int) -> Codebook:
        """Return the codebook of a network with so many trainable numbers."""
        return _codebook(self, dimension)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, **asdict(self)}


@lru_cache(maxsize=4)
def _codebook(encoded: Encoded, dimension: int) -> Codebook:
    make = Codebook.dense if encoded.exact else Codebook.binned
    return make(dimension, vectors=encoded.vectors, clip_norm=encoded.clip_norm, seed=encoded.seed)


def encode(gradients: Tensor, codebook: Codebook) -> Tensor:
    """Return encoded gradients by sorting them: Algorithm 2 to the letter, and its oracle.

    Guarantee: sorted, a row's magnitudes are at most those of one vector; a row that is not finite
    becomes 0.

    Args:
        gradients: (batch, dimension), float32 or float64; they are not changed.
        codebook: Of that dimension.
    """
    public = _on(codebook, gradients.device)
    usable = torch.isfinite(gradients).all(dim=1)
    kept = gradients.masked_fill(~usable[:, None], 0.0)
    magnitudes, order = kept.abs().sort(dim=1, descending=True)
    masses = _from_0(magnitudes.double().cumsum(dim=1))
    bounds = public.values[public.nearest(masses[:, public.edges].diff(dim=1))]
    ranked = torch.minimum(magnitudes, bounds[:, public.bins].to(kept.dtype))
    return torch.empty_like(kept).scatter_(1, order, ranked).copysign_(kept)


def encoded_sum(
    network: nn.Module, x: Tensor, loss: Loss, mask: Tensor, bounding: Encoded
) -> list[Tensor]:
    """Return the sum over records of their encoded gradients.

    Guarantee: a record adds a vector whose sorted magnitudes are at most those of one vector of
    `bounding.codebook(dimension)`; a null record, or one with a gradient that is not finite, adds
    exactly 0. What it adds depends on no other record.

    Args:
        network: Accepted by `validate`.
        x: Records, (batch, ...); at least one.
        loss: Each record's own loss.
        mask: bool, (batch,); False for null records.
        bounding: How.

    Returns:
        list[Tensor]: Like `trainable_parameters(network)`, in their order.
    """
    from pasearch.training.per_example import capture, trainable_parameters

    parameters = trainable_parameters(network)
    codebook = bounding.codebook(sum(p.numel() for p in parameters))
    captured = capture(network, x, loss)
    sums = {id(p): torch.zeros_like(p, requires_grad=False) for p in parameters}
    size = sum(_formed_size(each, bounding) for each in captured)
    add = _sorted_sums if bounding.exact else _ranked_sums
    most = max(1, min(ROWS[x.device.type], FORMED // max(1, size)))
    for start in range(0, len(x), most):
        rows = slice(start, start + most)
        layers = [_part(each, rows, bounding) for each in captured]
        usable = torch.stack([mask[rows], *(layer.finite() for layer in layers)]).all(dim=0)
        for layer in layers:
            layer.keep(usable)
        for parameter, value in add(layers, codebook):
            sums[id(parameter)] += value
    return [sums[id(p)] for p in parameters]


def _sorted_sums(layers: list[_Formed], codebook: Codebook) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of gradients that are formed and sorted."""
    gradients = torch.cat([layer.gradients for layer in layers], dim=1)
    unused = codebook.dimension - gradients.shape[1]
    encoded = encode(torch.nn.functional.pad(gradients, (0, unused)), codebook).sum(dim=0)
    sizes = [layer.gradients.shape[1] for layer in layers]
    for layer, total in zip(layers, encoded.split([*sizes, unused]), strict=False):
        yield from layer.split(total)


def _ranked_sums(
    layers: list[_Formed | _Factored], codebook: Codebook
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of gradients that are ranked by their keys."""
    top = torch.stack([layer.peak() for layer in layers]).amax(dim=0)
    top = top.where(top > 0, 1.0)
    counts = sum(layer.counts(top) for layer in layers)
    assert isinstance(counts, Tensor)
    bounds = _on(codebook, top.device).bounds(counts).to(top.dtype)
    octaves = torch.arange(KEYS, device=top.device) / OCTAVE
    for layer in layers:
        yield from layer.sums(bounds, top[:, None] * torch.exp2(-octaves))


class _Formed:
    """The gradients of one layer, formed."""

    def __init__(self, seen: Captured, rows: slice):
        from pasearch.training.per_example import _kernel

        self._own = dict(seen.layer.named_parameters(recurse=False))
        part = replace(seen, input=seen.input[rows], output_gradient=seen.output_gradient[rows])
        formed = _kernel(seen.layer).gradients(part)
        self._names = list(formed)
        self.gradients = torch.cat([each.flatten(1) for each in formed.values()], dim=1)

    def finite(self) -> Tensor:
        """Return whether each record's gradient is finite."""
        return torch.isfinite(self.gradients).all(dim=1)

    def keep(self, usable: Tensor) -> None:
        """Set the others' gradients to 0."""
        self.gradients.masked_fill_(~usable[:, None], 0.0)

    def peak(self) -> Tensor:
        """Return the largest magnitude of each record."""
        return self.gradients.abs().amax(dim=1)

    def counts(self, top: Tensor) -> Tensor:
        """Return how many coordinates have each key, (batch, KEYS)."""
        self._keys, self._signs = _rounded(self.gradients, top, OCTAVE, KEYS)
        return _histogram(self._keys, KEYS, self._signs.abs())

    def sums(self, bounds: Tensor, _: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter's sum."""
        clamped = torch.minimum(self.gradients.abs(), bounds.gather(1, self._keys))
        yield from self.split(clamped.mul_(self._signs).sum(dim=0))

    def split(self, total: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its part of a sum over records."""
        sizes = [self._own[name].numel() for name in self._names]
        for name, part in zip(self._names, total.split(sizes), strict=True):
            yield self._own[name], part.view_as(self._own[name])


class _Factored:
    """The gradients d a^T of a linear layer; a has a 1 more where the bias is trained."""

    def __init__(self, seen: Captured, rows: slice):
        assert isinstance(seen.layer, nn.Linear)
        self._layer, a = seen.layer, seen.input[rows]
        columns = [a] if self._layer.weight.requires_grad else []
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            columns.append(a.new_ones(len(a), 1))
        self._a, self._d = torch.cat(columns, dim=1), seen.output_gradient[rows]
        self._largest = self._a.abs().amax(dim=1)
        self._peak = self._largest * self._d.abs().amax(dim=1)

    def finite(self) -> Tensor:
        """Return whether each record's gradient is finite: its largest number is."""
        return torch.isfinite(self._peak)

    def keep(self, usable: Tensor) -> None:
        """Set the others' gradients to 0."""
        if not bool(usable.all()):
            self._a, self._d = (v.masked_fill(~usable[:, None], 0.0) for v in (self._a, self._d))
            self._peak = self._peak.masked_fill(~usable, 0.0)
        self._largest = self._largest.where(usable & (self._largest > 0), 1.0)

    def peak(self) -> Tensor:
        """Return the largest magnitude of each record."""
        return self._peak

    def counts(self, top: Tensor) -> Tensor:
        """Return how many coordinates have each key: the two factors' histograms, convolved."""
        self._levels, self._signs = _rounded(self._a, self._largest, OCTAVE // STEP, LEVELS)
        keys, signs = _rounded(self._d, top / self._largest, OCTAVE, SCALES)
        # A table of values has them all again with a minus, and zeros at its end.
        places = torch.where(signs < 0, keys + KEYS, keys)
        self._places = places.masked_fill_(signs == 0, 2 * KEYS)
        many = _histogram(self._levels, LEVELS, self._signs.abs())
        scales = _histogram(keys, SCALES, signs.abs_())
        counts = scales.new_zeros(len(scales), KEYS)
        for level in range(LEVELS):
            moved = counts[:, STEP * level : STEP * level + SCALES]
            moved.addcmul_(scales, many[:, level, None])
        return counts

    def sums(self, bounds: Tensor, sizes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter's sum of the tables' rows that its inputs choose."""
        total = self._summed(torch.minimum(bounds, sizes))
        if self._layer.weight.requires_grad:
            yield self._layer.weight, total[: self._layer.in_features].T
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            yield self._layer.bias, total[-1]

    def _summed(self, values: Tensor) -> Tensor:
        """Return the sum of encoded gradients, (inputs and bias, outputs)."""
        outputs = self._d.shape[1]
        zeros = values.new_zeros(len(values), 1 + STEP * (LEVELS - 1))
        signed = torch.cat([values, -values, zeros], dim=1)
        levels, signs = self._levels.int().T.contiguous(), self._signs.T.contiguous()
        total = values.new_zeros(self._a.shape[1], outputs)
        rows = max(1, TABLE[values.device.type] // (LEVELS * outputs))
        for start in range(0, len(values), rows):
            part = slice(start, start + rows)
            own = signed[part]
            count = len(own)
            # Row r of a record holds what it has from key STEP r on.
            windows = own.as_strided((count, LEVELS, 2 * KEYS + 1), (own.shape[1], STEP, 1))
            places = self._places[part, None, :].expand(count, LEVELS, outputs)
            first = LEVELS * torch.arange(count, device=own.device, dtype=torch.int32)
            total += embedding_bag(
                (levels[:, part] + first).contiguous(),
                windows.gather(2, places).flatten(0, 1),
                mode="sum",
                per_sample_weights=signs[:, part].contiguous(),
            )
        return total


def _is_factored(seen: Captured, bounding: Encoded) -> bool:
    from pasearch.training.per_example import LinearKernel, _kernel

    linear = isinstance(_kernel(seen.layer), LinearKernel)
    return linear and seen.input.ndim == 2 and not bounding.exact


def _formed_size(seen: Captured, bounding: Encoded) -> int:
    if _is_factored(seen, bounding):
        return 0
    return sum(p.numel() for p in seen.layer.parameters(recurse=False) if p.requires_grad)


def _part(seen: Captured, rows: slice, bounding: Encoded) -> Any:
    return (_Factored if _is_factored(seen, bounding) else _Formed)(seen, rows)


def _rounded(values: Tensor, top: Tensor, octave: int, steps: int) -> tuple[Tensor, Tensor]:
    """Return by how many steps each magnitude lies below the row's top, and the signs.

    Args:
        values: (batch, n), finite.
        top: (batch,), above 0; at least each magnitude, but for rounding.
        octave: How many steps it has.
        steps: What is so many steps below the top, or more, gets the sign 0.
    """
    above_0 = top.clamp(min=torch.finfo(top.dtype).tiny)  # 0 / 0 has no place
    below = torch.log2(above_0[:, None] / values.abs()).mul_(octave).round_().clamp_(0, steps)
    signs = values.sign().mul_(below < steps)
    return below.clamp_(max=steps - 1).long(), signs


def _histogram(places: Tensor, size: int, counted: Tensor) -> Tensor:
    """Count each row's places, those marked 1: whole numbers below 2^24, which float32 adds up."""
    empty = torch.zeros(len(places), size, device=places.device)
    return empty.scatter_add_(1, places, counted.to(empty.dtype))


@dataclass(frozen=True, slots=True)
class _Public:
    """A codebook on a device.

    Args:
        values: (vectors, bins).
        directions: (vectors, bins), each of norm 1 as a vector of the codebook.
        edges: int64, (bins + 1,): ranks.
        bins: int64, (dimension,): of each rank.
    """

    values: Tensor
    directions: Tensor
    edges: Tensor
    bins: Tensor

    def nearest(self, masses: Tensor) -> Tensor:
        """Return which vector each record is nearest to, from its magnitudes' sums by bin."""
        return (masses.to(self.directions.dtype) @ self.directions.T).argmax(dim=1)

    def bounds(self, counts: Tensor) -> Tensor:
        """Return what coordinates of each key are clamped to, (batch, KEYS).

        Guarantee: for every row and t, at most as many coordinates have a bound above t as one
        vector has entries above t: the bound of a key is the entry at the last of its ranks.

        Args:
            counts: Of coordinates by key, (batch, KEYS).
        """
        ranks = counts.cumsum(dim=1)
        last = (ranks.long() - 1).clamp_(min=0)
        bins = self.bins.index_select(0, last.flatten()).view_as(last)
        nearest = self.nearest(self._masses(counts, ranks))
        return self.values[nearest].gather(1, bins)

    def _masses(self, counts: Tensor, ranks: Tensor) -> Tensor:
        """Return the sums of magnitudes over each bin's ranks: of the keys', key 0 being 1."""
        keys = torch.arange(counts.shape[1], device=counts.device, dtype=counts.dtype)
        sizes = torch.exp2(-keys / OCTAVE) * counts
        grown = _from_0(sizes.cumsum(dim=1))
        reached = _from_0(ranks)
        edges = self.edges.to(ranks.dtype).expand(len(ranks), -1).contiguous()
        right = torch.searchsorted(reached, edges).clamp_(1, counts.shape[1])
        low, high = reached.gather(1, right - 1), reached.gather(1, right)
        share = ((edges - low) / (high - low).clamp_(min=1.0)).clamp_(0.0, 1.0)
        at_edges = torch.lerp(grown.gather(1, right - 1), grown.gather(1, right), share)
        return at_edges.diff(dim=1)


@lru_cache(maxsize=4)
def _on(codebook: Codebook, device: torch.device) -> _Public:
    values = torch.from_numpy(codebook.values.copy()).to(device)
    counts = torch.from_numpy(codebook.counts.copy()).to(device)
    directions = codebook.values / codebook.norms[:, None]
    return _Public(
        values=values,
        directions=torch.from_numpy(directions.astype(np.float32)).to(device),
        edges=_from_0(counts.cumsum(0)),
        bins=torch.repeat_interleave(torch.arange(len(counts), device=device), counts),
    )


def _from_0(values: Tensor) -> Tensor:
    """Put a 0 before what lies along the last axis."""
    return torch.nn.functional.pad(values, (1, 0))


def _bins(dimension: int) -> NDArray[np.int64]:
    """Return how many ranks each bin holds, from the largest magnitude down."""
    edges, widest = [0], max(1, dimension // COARSEST)
    while edges[-1] < dimension:
        width = min(max(1, edges[-1] // FINENESS), widest)
        edges.append(min(dimension, edges[-1] + width))
    return np.diff(np.array(edges, dtype=np.int64))


def _shifts(values: NDArray[np.float32], counts: NDArray[np.int64], ratio: float | None) -> Shifts:
    """Return distinct values above 0, rounded up to a grid if one is given, and their counts."""
    exact = values[values > 0].astype(np.float64)
    if ratio is not None:
        ratio = positive("ratio", ratio)
        if not ratio > 1.0:
            raise UsageError(f"ratio is {ratio}: expected above 1, such as 1.01.")
        # A grain more, so that rounding can't leave a value above its grid point.
        exact = ratio ** np.ceil(np.log(exact) / math.log(ratio)) * (1 + 1e-12)
    distinct, places = np.unique(exact, return_inverse=True)
    many = np.bincount(places, weights=counts[values > 0]).astype(np.int64)
    return Shifts(values=tuple(distinct[::-1].tolist()), counts=tuple(many[::-1].tolist()))


def _dimension(value: object) -> int:
    dimension = whole("dimension", value)
    if not dimension < LARGEST_DIMENSION:
        raise UsageError(
            f"the network has {dimension} trainable numbers: expected fewer than "
            f"{LARGEST_DIMENSION}, up to which float32 counts exactly. Train a smaller one."
        )
    return dimension


def _seed(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise UsageError(f"seed is {value!r}: expected a whole number in [0, 2^32).")
    return value


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=PUBLIC_KEY + _seed(seed)))
