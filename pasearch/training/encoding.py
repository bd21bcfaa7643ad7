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

Nothing is sorted, and of a linear layer no gradient is formed: |g_ok| = |a_k| |d_o|, with |a_k| and
|d_o| rounded to levels and keys, quarters of an octave below the record's largest. Their histograms
say how many coordinates there are of each level + key, which gives the clamped magnitudes wanted.
What is added is again a product, of a new factor for each level and one for each key,

    encoded g_ok = sign(a_k) A[level of a_k] sign(d_o) D[key of d_o],

read off the wanted ones along the layer's mean level and mean key: the sum over records is one
product of matrices, as in plain DP-SGD. Such products have an order of their own, and are bounded
in that: A and D are rounded to fine steps, their histograms say how many products are as large as
each, and D, or A where it is small, falls until each product is at most psi at its last rank.

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

MANTISSA = 21
"""Bits of a float32 to a step: its bits, seen as a whole number, are almost a logarithm."""
OCTAVE = 4
"""Such steps to an octave, which need not be equally long: ratios are right within 6 %, and then
rounded."""
NEVER = -300.0
"""Logarithm of 0, for a float32."""
LEVELS = 24
"""Steps of an input: those below 2^-6 of a record's largest in that layer count as 0."""
SCALES = 52
"""Steps of an output's gradient: what is 16 octaves below the record's largest counts as 0."""
KEYS = SCALES + LEVELS - 1

FINE = 12
"""Steps to an octave of the encoded values themselves."""
COARSE = 4
"""Fine steps to one of an input's factor."""
FACTORS = 9
"""Steps of an input's factor: less than 2^-3 of the largest is 0."""
MAIN = 5
"""Steps of an input's factor that are left as they are where the two factors are too large."""
DEPTHS = 72
"""Steps of an output's factor: less than 2^-8 of the record's largest value is 0."""
ROOM = 1 - 2.0**-13
"""By so much values stay below their bounds: far more than the rounding of logarithms."""

FORMED = 2**21
"""Most numbers in the gradients that are formed at once: 8 MiB, which caches hold."""
PIECE = {"cpu": 2**18, "cuda": 2**26}
"""Most numbers that are rounded at once, for the same reason."""
ROWS = {"cpu": 4096, "cuda": 2**15}
"""Most records at once."""
GROUP = 32
"""Vectors of a codebook that are looked through at once."""
SOUGHT = 256
"""Most records whose nearest vectors are sought at once."""


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
    bounds = public.values[public.by_bins(masses[:, public.edges].diff(dim=1))]
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
        for parameter, value in add(layers, codebook, mask[rows]):
            sums[id(parameter)] += value
    return [sums[id(p)] for p in parameters]


def _sorted_sums(
    layers: list[_Formed], codebook: Codebook, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of gradients that are formed and sorted."""
    gradients = torch.cat([layer.d for layer in layers], dim=1)
    usable = mask & torch.isfinite(gradients).all(dim=1)
    gradients.masked_fill_(~usable[:, None], 0.0)
    unused = codebook.dimension - gradients.shape[1]
    encoded = encode(torch.nn.functional.pad(gradients, (0, unused)), codebook).sum(dim=0)
    sizes = [layer.d.shape[1] for layer in layers]
    for layer, total in zip(layers, encoded.split([*sizes, unused]), strict=False):
        yield from layer.split(total[:, None])


def _ranked_sums(
    layers: list[_Formed | _Factored], codebook: Codebook, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of gradients whose factors are rounded and ranked by that."""
    public = _on(codebook, mask.device)
    widest = max(max(layer.a.shape[1], layer.d.shape[1]) for layer in layers)
    most = max(1, PIECE[mask.device.type] // widest)
    pieces = [slice(start, start + most) for start in range(0, len(mask), most)]
    parts = [_Rounded(layers, rows, mask[rows]) for rows in pieces]
    factors = _factors(parts, public)
    for place, layer in enumerate(layers):
        inputs, outputs = factors[place]
        total = inputs.new_zeros(layer.d.shape[1], layer.a.shape[1])
        for rows, part in zip(pieces, parts, strict=True):
            a = inputs[rows].gather(1, part.levels[place].long()).copysign_(layer.a[rows])
            d = outputs[rows].gather(1, part.keys[place].long()).copysign_(layer.d[rows])
            total.addmm_(d.T, a)
        yield from layer.split(total)


class _Formed:
    """The gradients d of one layer, formed, and 1 for their only input."""

    def __init__(self, seen: Captured, rows: slice):
        from pasearch.training.per_example import _kernel

        self._own = dict(seen.layer.named_parameters(recurse=False))
        part = replace(seen, input=seen.input[rows], output_gradient=seen.output_gradient[rows])
        formed = _kernel(seen.layer).gradients(part)
        self._names = list(formed)
        self.d = torch.cat([each.flatten(1) for each in formed.values()], dim=1)
        self.a = self.d.new_ones(len(self.d), 1)

    def split(self, total: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its part of a sum over records, (outputs, inputs)."""
        sizes = [self._own[name].numel() for name in self._names]
        for name, part in zip(self._names, total[:, 0].split(sizes), strict=True):
            yield self._own[name], part.view_as(self._own[name])


class _Factored:
    """The factors of a linear layer's gradients d a^T; a has a 1 more where the bias is trained."""

    def __init__(self, seen: Captured, rows: slice):
        assert isinstance(seen.layer, nn.Linear)
        self._layer, a = seen.layer, seen.input[rows]
        columns = [a] if self._layer.weight.requires_grad else []
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            columns.append(a.new_ones(len(a), 1))
        self.a, self.d = torch.cat(columns, dim=1), seen.output_gradient[rows]

    def split(self, total: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its part of a sum over records, (outputs, inputs)."""
        if self._layer.weight.requires_grad:
            yield self._layer.weight, total[:, : self._layer.in_features]
        if self._layer.bias is not None and self._layer.bias.requires_grad:
            yield self._layer.bias, total[:, -1]


class _Rounded:
    """A few records' factors, rounded.

    `levels` and `keys` say, layer by layer, how many steps each a and d lies below the largest: of
    its layer, and so that level + key is below the record's largest |a d|. The last is 0.
    """

    def __init__(self, layers: list[_Formed | _Factored], rows: slice, mask: Tensor):
        bits = [(_bits(layer.a[rows]), _bits(layer.d[rows])) for layer in layers]
        largest = [[each.amax(dim=1).view(torch.float32) for each in pair] for pair in bits]
        peaks = torch.stack([a * d for a, d in largest])
        self.usable = mask & torch.isfinite(peaks).all(dim=0)
        self.peak = peaks.amax(dim=0).where(self.usable, 1.0)
        self.levels, self.keys, self.many = [], [], []
        for (a, d), (own, _), layer in zip(bits, largest, layers, strict=True):
            for found, values, top, steps in (
                (self.levels, a, own, LEVELS if layer.a.shape[1] > 1 else 1),
                (self.keys, d, self.peak / own, SCALES),
            ):
                places = _below(values, top, steps)
                self.many.append(_histogram(places, steps))
                found.append(places.byte())


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


def _bits(values: Tensor) -> Tensor:
    """Return the magnitudes' float32 bits, which are in the order of the magnitudes."""
    return values.float().view(torch.int32) & 0x7FFFFFFF


def _below(bits: Tensor, top: Tensor, steps: int) -> Tensor:
    """Return by how many steps, rounded, each number lies below its row's top; of 0, so many.

    Args:
        bits: (batch, n), of the magnitudes; they are overwritten.
        top: float32, (batch,), at least each magnitude, but for rounding.
        steps: What lies further below counts as 0.
    """
    # A top below these has no room for so many steps above 0, so it counts as larger.
    highest = top.view(torch.int32).clamp(min=steps << MANTISSA) + (1 << (MANTISSA - 1))
    below = torch.sub(highest[:, None], bits, out=bits).bitwise_right_shift_(MANTISSA)
    return below.clamp_(0, steps).long()


def _histogram(places: Tensor, steps: int) -> Tensor:
    """Count each row's places: whole numbers below 2^24, which float32 adds up."""
    ones = torch.ones(places.shape, device=places.device)
    return ones.new_zeros(len(places), steps + 1).scatter_add_(1, places, ones)[:, :steps]


def _joint(layers: list[tuple[Tensor, Tensor]], stride: int, size: int) -> Tensor:
    """Count the pairs of all layers by key + stride * level, (size, batch)."""
    total = layers[0][0].new_zeros(size, layers[0][0].shape[1])
    for levels, keys in layers:
        for level, many in enumerate(levels):
            total[stride * level : stride * level + len(keys)].addcmul_(keys, many)
    return total


def _factors(parts: list[_Rounded], public: _Public) -> list[tuple[Tensor, Tensor]]:
    """Return each layer's tables of factors, (batch, levels + 1) and (batch, keys + 1).

    Guarantee: sorted, the products of a record's factors are at most one vector of the codebook.
    """
    many = [torch.cat(each).T.contiguous() for each in zip(*(p.many for p in parts), strict=True)]
    layers = list(zip(many[::2], many[1::2], strict=True))
    peak, usable = (torch.cat([getattr(p, name) for p in parts]) for name in ("peak", "usable"))
    top = peak.clamp_(min=torch.finfo(peak.dtype).tiny).log2_()
    counts = _joint(layers, 1, KEYS)
    ranks = counts.cumsum(dim=0)
    first = public.nearest(counts, ranks)
    sizes = top - _column(KEYS, top) / OCTAVE
    clamped = torch.minimum(sizes, public.logs_at(ranks - counts / 2, first))
    wanted = [_separated(clamped, a, d) for a, d in layers]
    largest = torch.stack([d.amax(dim=0) for _, d in wanted]).amax(dim=0).clamp_(min=NEVER)
    steps = [
        (
            (a * (FINE // COARSE)).round_().clamp_(0, FACTORS).long(),
            ((largest - d) * FINE).round_().clamp_(0, DEPTHS).long(),
        )
        for a, d in wanted
    ]
    moved = [
        (_moved(a, i, FACTORS), _moved(d, j, DEPTHS))
        for (a, d), (i, j) in zip(layers, steps, strict=True)
    ]
    size = DEPTHS + COARSE * (FACTORS - 1)
    last = _joint(moved, COARSE, size).cumsum(dim=0).sub_(1.0)
    room = public.logs_at(last, first).sub_(largest).add_(_column(size, top) / FINE)
    scale = torch.exp2(largest).mul_(ROOM).mul_(usable)
    tables = []
    for (i, j), (a, d) in zip(steps, moved, strict=True):
        fall_a, fall_d = _fitting(room, a > 0, d > 0)
        inputs = torch.exp2(fall_a - _column(FACTORS + 1, top) * (COARSE / FINE))
        outputs = torch.exp2(fall_d - _column(DEPTHS + 1, top) / FINE) * scale
        inputs[FACTORS], outputs[DEPTHS] = 0.0, 0.0
        tables.append((_table(inputs, i), _table(outputs, j)))
    return tables


def _separated(logs: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and D such that D - A at level and key is near to logs at level + key.

    They are logs along the two lines through the layer's mean level and key; A is 0 at level 0.
    What does not occur gets an infinite A, and a D of -inf.

    Args:
        logs: (keys, batch), of clamped magnitudes, by level + key.
        a: (levels, batch), how many inputs have each level.
        d: (scales, batch), how many outputs' gradients have each key.
    """
    levels, keys = _column(len(a), a), _column(len(d), d)
    weights = a * torch.exp2(-1.5 / OCTAVE * levels)
    level = _mean(weights, levels)
    along = logs.gather(0, keys + level)
    key = _mean(d * torch.exp2(2 * (along - along[0])), keys)
    across = logs.gather(0, levels + key)
    corner = across.gather(0, level[None])
    outputs = along + (across[0] - corner)
    return (across[0] - across).masked_fill(a == 0, math.inf), outputs.masked_fill(
        d == 0, -math.inf
    )


def _fitting(room: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return by what the logarithms of factors must fall so that no product is above its bound.

    Guarantee: at every pair that occurs, the two falls add up to at most the room.

    Args:
        room: (depths, batch), bound less product, by depth.
        a: bool, (FACTORS, batch), which steps of inputs' factors occur.
        d: bool, (DEPTHS, batch), which of outputs' factors.

    Returns:
        tuple[Tensor, Tensor]: 0 or below, with a row more.
    """
    falls_a = room.new_zeros(FACTORS + 1, room.shape[1])
    falls_d = room.new_zeros(DEPTHS + 1, room.shape[1])
    free = torch.where(a, 0.0, math.inf)
    idle = torch.where(d, 0.0, math.inf)
    least, shifted = falls_d[:DEPTHS], torch.empty_like(idle)
    for step in range(FACTORS):
        own = room[COARSE * step : COARSE * step + DEPTHS]
        if step < MAIN:
            torch.minimum(least, torch.add(own, free[step], out=shifted), out=least)
        else:
            falls_a[step] = torch.add(own, idle, out=shifted).amin(dim=0)
    return falls_a.clamp_(max=0.0), falls_d


def _moved(many: Tensor, steps: Tensor, size: int) -> Tensor:
    """Return how many have each step, without the last: (size, batch)."""
    return many.new_zeros(size + 1, many.shape[1]).scatter_add_(0, steps, many)[:size]


def _table(values: Tensor, steps: Tensor) -> Tensor:
    """Return what each level has, (batch, levels + 1), the last 0."""
    return torch.nn.functional.pad(values.gather(0, steps), (0, 0, 0, 1)).T.contiguous()


def _mean(weights: Tensor, places: Tensor) -> Tensor:
    """Return the mean place, rounded, (batch,)."""
    total = weights.sum(dim=0).clamp_(min=torch.finfo(weights.dtype).tiny)
    return ((weights * places).sum(dim=0) / total).round_().long()


def _column(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)[:, None]


@dataclass(frozen=True, slots=True)
class _Public:
    """A codebook on a device.

    Args:
        values: (vectors, bins).
        logs: (vectors * bins,), their logarithms to base 2.
        directions: (bins, vectors), of vectors of norm 1.
        edges: int64, (bins + 1,): ranks.
        bins: int32, (dimension,): of each rank.
        octaves: (octaves + 1,): ranks that are powers of 2, between which `means` are.
        means: (octaves, vectors up to a multiple of GROUP), of directions over octaves of ranks.
    """

    values: Tensor
    logs: Tensor
    directions: Tensor
    edges: Tensor
    bins: Tensor
    octaves: Tensor
    means: Tensor

    def by_bins(self, masses: Tensor) -> Tensor:
        """Return which vector each record is nearest to, from its magnitudes' sums by bin."""
        return (masses.to(self.directions.dtype) @ self.directions).argmax(dim=1)

    def nearest(self, counts: Tensor, ranks: Tensor) -> Tensor:
        """Return which vector each record is about nearest to, by octaves of ranks.

        Args:
            counts: (keys, batch), of coordinates by key.
            ranks: Their sums up to each key.
        """
        sizes = torch.exp2(-_column(len(counts), counts) / OCTAVE)
        grown, reached = (_from_0(v.T).contiguous() for v in ((counts * sizes).cumsum(0), ranks))
        edges = self.octaves.expand(len(reached), -1).contiguous()
        right = torch.searchsorted(reached, edges).clamp_(1, len(counts))
        low, high = reached.gather(1, right - 1), reached.gather(1, right)
        share = ((edges - low) / (high - low).clamp_(min=1.0)).clamp_(0.0, 1.0)
        masses = torch.lerp(grown.gather(1, right - 1), grown.gather(1, right), share).diff(dim=1)
        return torch.cat([self._most_similar(part) for part in masses.split(SOUGHT)])

    def _most_similar(self, masses: Tensor) -> Tensor:
        """Find the largest group first: a place takes ten times longer to find than a maximum."""
        similar = (masses @ self.means).unflatten(1, (-1, GROUP))
        group = similar.amax(dim=2).argmax(dim=1)
        chosen = similar.gather(1, group[:, None, None].expand(-1, 1, GROUP))
        return (GROUP * group + chosen[:, 0].argmax(dim=1)) % len(self.values)

    def logs_at(self, ranks: Tensor, vectors: Tensor) -> Tensor:
        """Return the logarithm of each record's vector at ranks from 0, (n, batch)."""
        last = ranks.long().clamp_(0, len(self.bins) - 1)
        return self.logs.take(self.bins.take(last) + vectors * self.values.shape[1])


@lru_cache(maxsize=4)
def _on(codebook: Codebook, device: torch.device) -> _Public:
    values = torch.from_numpy(codebook.values.copy()).to(device)
    counts = torch.from_numpy(codebook.counts.copy()).to(device)
    directions = (codebook.values / codebook.norms[:, None]).astype(np.float32)
    reached = np.concatenate([[0], codebook.counts.cumsum()])
    octaves = np.unique([0, *(2 ** np.arange(24)).clip(max=codebook.dimension)])
    sums = np.pad((directions * codebook.counts).cumsum(axis=1, dtype=float), ((0, 0), (1, 0)))
    means = np.array([np.diff(np.interp(octaves, reached, row)) for row in sums]) / np.diff(octaves)
    again = np.arange(-(-len(means) // GROUP) * GROUP) % len(means)
    return _Public(
        values=values,
        logs=values.log2().clamp_(min=NEVER).flatten(),
        directions=torch.from_numpy(directions.T.copy()).to(device),
        edges=_from_0(counts.cumsum(0)),
        bins=torch.repeat_interleave(
            torch.arange(len(counts), device=device, dtype=torch.int32), counts
        ),
        octaves=torch.from_numpy(octaves.astype(np.float32)).to(device),
        means=torch.from_numpy(means[again].T.astype(np.float32)).to(device),
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
