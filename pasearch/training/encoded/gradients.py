"""Encoded gradients: each record's gradient is clamped, rank by rank, to a public vector.

    psi_1 .. psi_m     public vectors, sorted, of norm C (`codebook`)
    nearest            psi of largest <|g| sorted, psi> / |psi|, for a record's own gradient g
    encoded            sign(g_j) min(|g_j|, psi[rank of |g_j|])             rank 0 is the largest

So the sorted magnitudes of what a record adds are at most those of one psi. An accountant needs no
more, for noise of any distribution. A null record adds 0, and so does a record with a gradient that
is not finite. The privacy cost does not depend on the distance of an encoded vector from g, on the
ranks of equal magnitudes, or on the psi that is chosen as nearest.

Nothing is sorted, and no gradient of a linear layer is formed: |g_ok| = |a_k| |d_o|. Here |a_k| and
|d_o| are rounded to levels, a quarter of an octave each, below the record's largest. Their
histograms give the number of coordinates at each sum of levels, and so the clamped magnitudes. The
encoded gradient is again a product, of a new factor for each level of an input and of a gradient,

    encoded g_ok = sign(a_k) A[level of a_k] sign(d_o) D[level of d_o],

chosen from the clamped magnitudes at the layer's mean levels. So the sum over records is one matrix
product, as in plain DP-SGD. Such products have another order, so they are bounded in that order: A
and D are rounded to fine steps, and their histograms give the number of products of each size. Then
D, or A if it is small, is reduced until each product is at most psi at its last rank.

Source: Nasr et al., Algorithms 1 and 2; proof: docs/guarantees/encoding.md. The line of the paper
that chooses psi prints the argmin of a similarity: the nearest is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.accounting.additive import Shifts
from pasearch.accounting.checks import check_boolean, check_positive_integer
from pasearch.registry import FieldChecks
from pasearch.training.clipping import CLIPPING_METHODS, ClippingMethod, check_clip_norm
from pasearch.training.encoded.codebook import Codebook, check_public_seed
from pasearch.training.layer_rules import CapturedLayer, LinearRule, find_rule
from pasearch.training.per_example import Loss, PreparedNetwork, capture_layers
from pasearch.training.record_sums import SumBuffers

STEP_BITS = 21
"""Number of low float32 bits in one step: the bits, as an integer, are almost a logarithm."""
STEPS_PER_OCTAVE = 4
"""Number of steps per octave; they differ in size, so ratios have an error of up to 6 % before
rounding."""
LOG_OF_ZERO = -300.0
"""Logarithm of 0 for a float32."""
INPUT_LEVELS = 24
"""Number of levels of an input: those below 2^-6 of a record's largest in that layer count as 0."""
OUTPUT_LEVELS = 52
"""Number of levels of an output's gradient: those 13 octaves below the record's largest count as
0."""
PRODUCT_LEVELS = OUTPUT_LEVELS + INPUT_LEVELS - 1
FACTOR_STEPS_PER_OCTAVE = 12
"""Number of fine steps per octave of the encoded values."""
FACTOR_STEPS_PER_INPUT_STEP = 4
"""Number of fine steps in one step of an input's factor."""
INPUT_FACTOR_STEPS = 9
"""Number of steps of an input's factor: those below 2^-3 of the largest are 0."""
UNCHANGED_INPUT_STEPS = 5
"""Number of steps of an input's factor that are kept if a product is too large."""
OUTPUT_FACTOR_STEPS = 72
"""Number of steps of an output's factor: those below 2^-6 of the record's largest value are 0."""
ONE_BITS = 127 << 23
"""Bits of 1 as float32."""
BOUND_MARGIN = 1 - 2.0**-13
"""Factor by which values stay below their bounds, far more than the rounding of logarithms."""
MAX_FORMED_NUMBERS = 2**21
"""Largest number of gradient entries that are formed at once: 8 MiB, which fit into caches."""
MAX_FACTOR_NUMBERS = {"cpu": 2**22, "cuda": 2**26}
"""Largest number of factors that are rounded, or similarities that are compared, at once."""
MAX_RECORDS = {"cpu": 1024, "cuda": 2**15}
"""Largest number of records at once: few for CPU caches, many to amortise GPU calls."""
VECTORS_PER_GROUP = 32
"""Number of codebook vectors that are compared at once."""
ABSENT_PENALTY = 2.0**12
"""Offset that excludes absent levels: more than any difference of two logarithms."""


def encode_by_sorting(gradients: Tensor, codebook: Codebook) -> Tensor:
    """Encode gradients by sorting them: Algorithm 2 exactly, and the reference for tests.

    Guarantee: sorted, a row's magnitudes are at most those of one vector; a row that is not finite
    becomes 0.

    Args:
        gradients: Gradients, (batch, dimension), float32 or float64.
        codebook: Public vectors of the same dimension.
    """
    public = _move_codebook(codebook, gradients.device)
    usable = torch.isfinite(gradients).all(dim=1)
    kept = gradients.masked_fill(~usable[:, None], 0.0)
    magnitudes, order = kept.abs().sort(dim=1, descending=True)
    masses = _prepend_zero(magnitudes.double().cumsum(dim=1))
    bounds = public.values[public.find_nearest_by_bins(masses[:, public.edges].diff(dim=1))]
    ranked = torch.minimum(magnitudes, bounds[:, public.bins].to(kept.dtype))
    return torch.empty_like(kept).scatter_(1, order, ranked).copysign_(kept)


def add_encoded_sum(
    network: nn.Module | PreparedNetwork,
    x: Tensor,
    loss: Loss,
    mask: Tensor,
    codebook: Codebook,
    buffers: SumBuffers,
    exact: bool = False,
) -> None:
    """Add the sum over records of their encoded gradients to `buffers.totals`.

    Guarantee: a record adds a vector whose sorted magnitudes are at most those of one vector of the
    codebook. A null record, or one with a gradient that is not finite, adds exactly 0. The added
    vector does not depend on other records. Products and sums are float64.

    Args:
        network: Network that `per_example.validate` accepts.
        x: Records, (batch, ...).
        loss: Function from the network's output to each record's loss, (batch,).
        mask: Bool, (batch,); False for null records.
        codebook: Public vectors with one number per trained weight.
        buffers: Buffers of the sum.
        exact: Whether gradients are formed and sorted, instead of ranked by their factors.
    """
    prepared = PreparedNetwork.of(network)
    captured = capture_layers(prepared, x, loss)
    totals = dict(zip(map(id, prepared.parameters), buffers.total_views, strict=True))
    add = _sorted_sums if exact else _ranked_sums
    most = _max_records_at_once(captured, exact, x.device.type)
    for start in range(0, len(x), most):
        rows = slice(start, start + most)
        layers: list[Any] = [
            (_FactoredGradients if _is_factored(each, exact) else _FormedGradients)(each, rows)
            for each in captured
        ]
        for parameter, value in add(layers, codebook, mask[rows]):
            totals[id(parameter)] += value


def _sorted_sums(
    layers: list[_FormedGradients], codebook: Codebook, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of encoded gradients, which are formed and sorted."""
    gradients = torch.cat([layer.d for layer in layers], dim=1)
    usable = mask & torch.isfinite(gradients).all(dim=1)
    gradients.masked_fill_(~usable[:, None], 0.0)
    unused = codebook.dimension - gradients.shape[1]
    encoded = encode_by_sorting(torch.nn.functional.pad(gradients, (0, unused)), codebook)
    encoded = encoded.sum(dim=0, dtype=torch.float64)
    sizes = [layer.d.shape[1] for layer in layers]
    for layer, total in zip(layers, encoded.split([*sizes, unused]), strict=False):
        yield from layer.split(total)


def _ranked_sums(
    layers: list[_FormedGradients | _FactoredGradients], codebook: Codebook, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter's sum of encoded gradients, whose rounded factors are ranked."""
    rounded = _RoundedFactors(layers, mask)
    inputs, outputs = _compute_factors(rounded, _move_codebook(codebook, mask.device))
    for place, layer in enumerate(layers):
        a = _look_up(inputs[place], rounded.levels[place])
        d = _look_up(outputs[place], rounded.keys[place])
        yield from layer.sums(a, d.copysign_(layer.d))


class _FormedGradients:
    """The gradients d of one layer, in full; the input is the constant 1."""

    def __init__(self, seen: CapturedLayer, rows: slice):
        self._own = dict(seen.layer.named_parameters(recurse=False))
        part = replace(seen, input=seen.input[rows], output_gradient=seen.output_gradient[rows])
        formed = find_rule(seen.layer).gradients(part)
        self._names = list(formed)
        self.d = torch.cat([each.flatten(1) for each in formed.values()], dim=1)
        self.a, self.ones = self.d[:, :0], 1

    def split(self, total: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its part of a sum over records, (numbers,)."""
        sizes = [self._own[name].numel() for name in self._names]
        for name, part in zip(self._names, total.split(sizes), strict=True):
            yield self._own[name], part.view_as(self._own[name])

    def sums(self, a: Tensor, d: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its sum over records."""
        yield from self.split(d.T.double() @ a[:, 0].double())


class _FactoredGradients:
    """The factors of a linear layer's gradients d a^T; a has an extra 1 if the bias is trained."""

    def __init__(self, seen: CapturedLayer, rows: slice):
        layer = seen.layer
        assert isinstance(layer, nn.Linear)
        self._weight = layer.weight if layer.weight.requires_grad else None
        self._bias = layer.bias if layer.bias is not None and layer.bias.requires_grad else None
        self.a = seen.input[rows, : None if self._weight is not None else 0]
        self.d, self.ones = seen.output_gradient[rows], int(self._bias is not None)

    def sums(self, a: Tensor, d: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its sum over records of the factors' products.

        Args:
            a: Factors of inputs without signs, (batch, inputs), which are overwritten.
            d: Factors of outputs with signs, (batch, outputs).
        """
        if self._weight is not None:
            yield self._weight, d.T.double() @ a[:, : self.a.shape[1]].copysign_(self.a).double()
        if self._bias is not None:
            yield self._bias, d.T.double() @ a[:, -1].double()


class _RoundedFactors:
    """Rounded factors of records.

    For each layer, `levels` and `keys` hold the number of steps by which each a and d is below the
    largest. That is the layer's largest for a; for d it is such that level + key is below the
    record's largest |a d|. The last step is 0. They are indices into tables, (batch, steps + 1);
    `inputs` and `outputs` count each index.
    """

    def __init__(self, layers: list[_FormedGradients | _FactoredGradients], mask: Tensor):
        bits = [
            (_magnitude_bits(layer.a, layer.ones), _magnitude_bits(layer.d)) for layer in layers
        ]
        largest = [[each.amax(dim=1).view(torch.float32) for each in pair] for pair in bits]
        peaks = torch.stack([a * d for a, d in largest])
        self.usable = mask & torch.isfinite(peaks).all(dim=0)
        self.peak = peaks.amax(dim=0).where(self.usable, 1.0)
        pairs = list(zip(bits, largest, strict=True))
        self.levels = [_table_indices(a, own, INPUT_LEVELS) for (a, _), (own, _) in pairs]
        self.keys = [
            _table_indices(d, self.peak / own, OUTPUT_LEVELS) for (_, d), (own, _) in pairs
        ]
        self.inputs = torch.stack([_count_levels(each, INPUT_LEVELS) for each in self.levels])
        self.outputs = torch.stack([_count_levels(each, OUTPUT_LEVELS) for each in self.keys])


def _is_factored(seen: CapturedLayer, exact: bool) -> bool:
    linear = isinstance(find_rule(seen.layer), LinearRule)
    return linear and seen.input.ndim == 2 and not exact


def _max_records_at_once(layers: list[CapturedLayer], exact: bool, device: str) -> int:
    """Compute the number of records that are encoded at once."""
    formed, factors = 1, 1
    for seen in layers:
        if _is_factored(seen, exact):
            factors += seen.input.shape[1] + seen.output_gradient.shape[1]
        else:
            own = seen.layer.parameters(recurse=False)
            formed += sum(p.numel() for p in own if p.requires_grad)
    return max(
        1,
        min(
            MAX_RECORDS[device], MAX_FORMED_NUMBERS // formed, MAX_FACTOR_NUMBERS[device] // factors
        ),
    )


def _magnitude_bits(values: Tensor, ones: int = 0) -> Tensor:
    """Return the float32 bits of |values| and of `ones` extra 1s; their order is the same."""
    width = values.shape[1]
    bits = values.new_empty(len(values), width + ones, dtype=torch.int32)
    bits[:, width:] = ONE_BITS
    torch.bitwise_and(values.float().view(torch.int32), 0x7FFFFFFF, out=bits[:, :width])
    return bits


def _table_indices(bits: Tensor, top: Tensor, steps: int) -> Tensor:
    """Compute each number's index in a table, (batch, steps + 1), viewed as one row.

    The column is the rounded number of steps by which the number is below its row's top; 0 is in
    the last column.

    Args:
        bits: Bits of the magnitudes, (batch, n), which are overwritten.
        top: Upper bounds of each row's magnitudes, float32, (batch,), up to rounding.
        steps: Number of steps.
    """
    # A smaller top has fewer than `steps` steps above 0, so it is raised.
    highest = top.view(torch.int32).clamp(min=steps << STEP_BITS) + (1 << (STEP_BITS - 1))
    below = torch.sub(highest[:, None], bits, out=bits).bitwise_right_shift_(STEP_BITS)
    rows = torch.arange(len(bits), device=bits.device, dtype=torch.int32)
    return below.clamp_(0, steps).add_((steps + 1) * rows[:, None])


def _count_levels(places: Tensor, steps: int) -> Tensor:
    """Count each row's indices but the last: (steps, batch), below 2^24, so exact in float32."""
    size = len(places) * (steps + 1)
    counts = torch.bincount(places.flatten(), minlength=size).view(-1, steps + 1)
    return counts[:, :steps].T.float()


def _look_up(table: Tensor, places: Tensor) -> Tensor:
    """Return `table.take(places)`, three times faster."""
    return table.flatten().index_select(0, places.flatten()).view(places.shape)


def _count_products(a: Tensor, d: Tensor, stride: int) -> Tensor:
    """Count the pairs of all layers by key + stride * level, (sums, batch)."""
    total = a.new_zeros(stride * (a.shape[1] - 1) + d.shape[1], a.shape[2])
    windows = _windows(total, stride, d.shape[1])
    for levels, keys in zip(a, d, strict=True):
        for window, many in zip(windows, levels, strict=True):
            window.addcmul_(keys, many)
    return total


def _windows(values: Tensor, stride: int, size: int) -> tuple[Tensor, ...]:
    """Return views of `size` rows, starting at every stride-th row."""
    return values.unfold(0, size, stride).transpose(1, 2).unbind()


def _compute_factors(rounded: _RoundedFactors, public: _DeviceCodebook) -> tuple[Tensor, Tensor]:
    """Compute tables of the factors A and D by layer, (layers, batch, steps + 1) each.

    Guarantee: sorted, the products of a record's factors are at most one vector of the codebook.
    """
    a, d = rounded.inputs, rounded.outputs
    top = rounded.peak.clamp(min=torch.finfo(torch.float32).tiny).log2_()
    counts = _count_products(a, d, 1)
    ranks = _cumulate(counts.clone())
    first = public.find_nearest(counts)
    sizes = top - _column(PRODUCT_LEVELS, top) / STEPS_PER_OCTAVE
    clamped = torch.minimum(sizes, public.logs_at(ranks - counts / 2, first))
    inputs, outputs = _separate_factors(clamped, a, d)
    largest = outputs.amax(dim=(0, 1)).clamp_(min=LOG_OF_ZERO)
    i = _round_to_steps(
        inputs.mul_(FACTOR_STEPS_PER_OCTAVE // FACTOR_STEPS_PER_INPUT_STEP), INPUT_FACTOR_STEPS
    )
    j = _round_to_steps(
        torch.sub(largest, outputs, out=outputs).mul_(FACTOR_STEPS_PER_OCTAVE), OUTPUT_FACTOR_STEPS
    )
    a, d = _count_steps(a, i, INPUT_FACTOR_STEPS), _count_steps(d, j, OUTPUT_FACTOR_STEPS)
    last = _cumulate(_count_products(a, d, FACTOR_STEPS_PER_INPUT_STEP)).sub_(1.0)
    room = (
        public.logs_at(last, first)
        .sub_(largest)
        .add_(_column(len(last), top) / FACTOR_STEPS_PER_OCTAVE)
    )
    inputs, outputs = _fit_to_bounds(room, _absence(a), _absence(d))
    inputs = inputs.sub_(
        _column(INPUT_FACTOR_STEPS + 1, top)
        * (FACTOR_STEPS_PER_INPUT_STEP / FACTOR_STEPS_PER_OCTAVE)
    ).exp2_()
    outputs = outputs.sub_(_column(OUTPUT_FACTOR_STEPS + 1, top) / FACTOR_STEPS_PER_OCTAVE).exp2_()
    outputs *= torch.exp2(largest).mul_(BOUND_MARGIN).mul_(rounded.usable)
    inputs[:, INPUT_FACTOR_STEPS], outputs[:, OUTPUT_FACTOR_STEPS] = 0.0, 0.0
    return _factor_table(inputs, i), _factor_table(outputs, j)


def _separate_factors(logs: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Compute A and D such that D - A at level and key is close to `logs` at level + key.

    They are `logs` along the two lines through the layer's mean level and key; A is 0 at level 0.
    Absent levels get an arbitrary A, and a D that is far too small.

    Args:
        logs: Logarithms of clamped magnitudes by level + key, (keys, batch).
        a: Number of inputs per level, (layers, levels, batch).
        d: Number of gradients per key, (layers, keys, batch).
    """
    levels, keys = _column(INPUT_LEVELS, logs), _column(OUTPUT_LEVELS, logs)
    level = _mean_index(a * torch.exp2(-1.5 / STEPS_PER_OCTAVE * levels), levels)
    along = _window(logs, level, OUTPUT_LEVELS)
    key = _mean_index((along - along[:, :1]).mul_(2.0).exp2_().mul_(d), keys)
    across = _window(logs, key, INPUT_LEVELS)
    raised = across[:, :1] - across.gather(1, level[:, None])
    return across[:, :1] - across, along.add_(raised).sub_(_absence(d), alpha=ABSENT_PENALTY)


def _fit_to_bounds(room: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the decrease of the factors' logarithms so that no product is above its bound.

    Guarantee: at every pair that occurs, the two decreases add up to at most the room.

    Args:
        room: Bound minus product, by depth, (depths, batch).
        a: 1 for absent steps of inputs' factors, else 0, (layers, steps, batch).
        d: 1 for absent steps of outputs' factors, else 0, (layers, steps, batch).

    Returns:
        Decreases of both factors, 0 or below, with one extra row each.
    """
    falls_a = a.new_zeros(len(a), INPUT_FACTOR_STEPS + 1, a.shape[2])
    falls_d = d.new_zeros(len(d), OUTPUT_FACTOR_STEPS + 1, d.shape[2])
    least, shifted = falls_d[:, :OUTPUT_FACTOR_STEPS], torch.empty_like(d)
    for step, own in enumerate(_windows(room, FACTOR_STEPS_PER_INPUT_STEP, OUTPUT_FACTOR_STEPS)):
        if step < UNCHANGED_INPUT_STEPS:
            torch.add(own, a[:, step, None], alpha=ABSENT_PENALTY, out=shifted)
            torch.minimum(least, shifted, out=least)
        else:
            falls_a[:, step] = torch.add(own, d, alpha=ABSENT_PENALTY, out=shifted).amin(dim=1)
    return falls_a.clamp_(max=0.0), falls_d


def _absence(many: Tensor) -> Tensor:
    """Return 1 for absent levels and 0 for others: a comparison takes several times longer."""
    return (1.0 - many).clamp_(min=0.0)


def _cumulate(values: Tensor) -> Tensor:
    """Add the previous rows to each row, in place: three times faster than `cumsum`."""
    for before, row in pairwise(values.unbind()):
        row.add_(before)
    return values


def _round_to_steps(values: Tensor, last: int) -> Tensor:
    """Round to 0 .. last: indices of (layers, n, batch) in (layers, last + 1, batch), seen flat."""
    layers, _, batch = values.shape
    steps = values.round_().clamp_(0, last).long()
    first = torch.arange(layers, device=values.device) * ((last + 1) * batch)
    own = torch.arange(batch, device=values.device)
    return steps.mul_(batch).add_(own).add_(first[:, None, None])


def _count_steps(many: Tensor, places: Tensor, size: int) -> Tensor:
    """Count the numbers with each step but the last: (layers, size, batch)."""
    layers, _, batch = many.shape
    found = many.new_zeros(layers * (size + 1) * batch)
    found.scatter_add_(0, places.flatten(), many.flatten())
    return found.view(layers, size + 1, batch)[:, :size]


def _factor_table(values: Tensor, places: Tensor) -> Tensor:
    """Arrange values as a table by level, (layers, batch, levels + 1), the last column 0."""
    layers, levels, batch = places.shape
    found = torch.nn.functional.pad(_look_up(values, places), (0, 0, 0, 1))
    table = values.new_empty(layers, batch, levels + 1)
    for own, layer in zip(table, found, strict=True):  # transposing a matrix is fast, a stack slow
        own.copy_(layer.T)
    return table


def _window(logs: Tensor, start: Tensor, size: int) -> Tensor:
    """Select `size` of each record's logs, from each layer's start on: (layers, size, batch)."""
    batch = logs.shape[1]
    places = (batch * start + torch.arange(batch, device=logs.device))[:, None]
    return _look_up(logs, places + batch * _column(size, logs))


def _mean_index(weights: Tensor, places: Tensor) -> Tensor:
    """Compute the mean index, rounded, (layers, batch)."""
    total = weights.sum(dim=1).clamp_(min=torch.finfo(weights.dtype).tiny)
    return ((weights * places).sum(dim=1) / total).round_().long()


def _column(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)[:, None]


@dataclass(frozen=True, slots=True)
class _DeviceCodebook:
    """A codebook on a device.

    Args:
        values: Entries, (vectors, bins).
        logs: Logarithms of the entries to base 2, (vectors * bins,).
        directions: Vectors of norm 1, (bins, vectors).
        edges: Ranks at the bins' edges, int64, (bins + 1,).
        bins: Bin of each rank, int32, (dimension,).
        octaves: Ranks that are powers of 2, (octaves + 1,).
        means: Mean of each direction over octaves of ranks, (vectors padded to groups, octaves).
    """

    values: Tensor
    logs: Tensor
    directions: Tensor
    edges: Tensor
    bins: Tensor
    octaves: Tensor
    means: Tensor

    def find_nearest_by_bins(self, masses: Tensor) -> Tensor:
        """Find each record's nearest vector, from its magnitudes' sums by bin."""
        return (masses.to(self.directions.dtype) @ self.directions).argmax(dim=1)

    def find_nearest(self, counts: Tensor) -> Tensor:
        """Find approximately each record's nearest vector, by octaves of ranks.

        Args:
            counts: Number of coordinates by key, (keys, batch).
        """
        before = torch.ones(len(counts), len(counts) + 1, device=counts.device).triu_(1)
        sizes = torch.exp2(-_column(len(counts), counts) / STEPS_PER_OCTAVE)
        reached, grown = counts.T @ before, counts.T @ (sizes * before)
        edges = self.octaves.expand(len(reached), -1).contiguous()
        right = torch.searchsorted(reached, edges).clamp_(1, len(counts))
        low, high = reached.gather(1, right - 1), reached.gather(1, right)
        share = ((edges - low) / (high - low).clamp_(min=1.0)).clamp_(0.0, 1.0)
        masses = torch.lerp(grown.gather(1, right - 1), grown.gather(1, right), share).diff(dim=1)
        most = max(1, MAX_FACTOR_NUMBERS[masses.device.type] // len(self.means))
        return torch.cat([self._find_most_similar(part) for part in masses.split(most)])

    def _find_most_similar(self, masses: Tensor) -> Tensor:
        """Find the best group first: an argmax takes ten times longer than a maximum."""
        similar = (self.means @ masses.T).unflatten(0, (-1, VECTORS_PER_GROUP))
        group = similar.amax(dim=1).argmax(dim=0)
        chosen = similar.gather(0, group.expand(1, VECTORS_PER_GROUP, -1))
        return (VECTORS_PER_GROUP * group + chosen[0].argmax(dim=0)) % len(self.values)

    def logs_at(self, ranks: Tensor, vectors: Tensor) -> Tensor:
        """Return the logarithm of each record's vector at ranks from 0, (n, batch)."""
        bins = _look_up(self.bins, ranks.int().clamp_(0, len(self.bins) - 1))
        return _look_up(self.logs, bins.add_(vectors.int() * self.values.shape[1]))


@lru_cache(maxsize=4)
def _move_codebook(codebook: Codebook, device: torch.device) -> _DeviceCodebook:
    values = torch.from_numpy(codebook.values.copy()).to(device)
    counts = torch.from_numpy(codebook.counts.copy()).to(device)
    directions = (codebook.values / codebook.norms[:, None]).astype(np.float32)
    reached = np.concatenate([[0], codebook.counts.cumsum()])
    octaves = np.unique([0, *(2 ** np.arange(24)).clip(max=codebook.dimension)])
    sums = np.pad((directions * codebook.counts).cumsum(axis=1, dtype=float), ((0, 0), (1, 0)))
    means = np.array([np.diff(np.interp(octaves, reached, row)) for row in sums]) / np.diff(octaves)
    again = np.arange(-(-len(means) // VECTORS_PER_GROUP) * VECTORS_PER_GROUP) % len(means)
    return _DeviceCodebook(
        values=values,
        logs=values.log2().clamp_(min=LOG_OF_ZERO).flatten(),
        directions=torch.from_numpy(directions.T.copy()).to(device),
        edges=_prepend_zero(counts.cumsum(0)),
        bins=torch.repeat_interleave(
            torch.arange(len(counts), device=device, dtype=torch.int32), counts
        ),
        octaves=torch.from_numpy(octaves.astype(np.float32)).to(device),
        means=torch.from_numpy(means[again].astype(np.float32)).to(device),
    )


def _prepend_zero(values: Tensor) -> Tensor:
    """Prepend a 0 along the last axis."""
    return torch.nn.functional.pad(values, (1, 0))


MAX_VECTORS = 100_000
"""Largest number of vectors of a codebook: every gradient is compared with each."""


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClipping(ClippingMethod):
    """Clipping of each record's gradient to the nearest vector of a public codebook.

    Args:
        clip_norm: C, norm of every vector, 1e-12 or above.
        vectors: Number m of vectors, 1 to 100,000.
        seed: Public seed of the codebook, 0 or above.
        exact: Whether every gradient is formed, sorted and ranked with the dense codebook:
            Algorithm 2 exactly, for small networks.
    """

    name: ClassVar[str] = "encoded"
    limits_coordinates: ClassVar[bool] = True
    takes_views: ClassVar[bool] = False
    checks: ClassVar[FieldChecks] = {
        "clip_norm": check_clip_norm, "vectors": partial(check_positive_integer, most=MAX_VECTORS),
        "seed": lambda _, value: check_public_seed(value), "exact": check_boolean,
    }  # fmt: skip
    clip_norm: float = 1.0
    vectors: int = 1000
    seed: int = 0
    exact: bool = False

    @property
    def sensitivity(self) -> float:
        """C in L2 norm; for non-Gaussian noise the accountant uses the codebook itself."""
        return self.clip_norm

    def codebook(self, dimension: int) -> Codebook:
        """Return the codebook for `dimension` trainable parameters."""
        return _codebook(self, dimension)

    def shifts(self, dimension: int) -> Shifts:
        """Return one vector that bounds the whole codebook, rank by rank."""
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
        assert views == 1, "encoding uses one gradient per record"
        assert weights is None, "encoding does not weight gradients"
        prepared = PreparedNetwork.of(network)
        codebook = self.codebook(sum(p.numel() for p in prepared.parameters))
        given, buffers = buffers, SumBuffers(prepared.parameters) if buffers is None else buffers
        add_encoded_sum(prepared, x, loss, mask, codebook, buffers, self.exact)
        if given is None:
            buffers.write_back()
        return buffers.views, torch.zeros(0)

    def describe(self) -> str:
        """Describe the clipping in one phrase."""
        seed = f", drawn from seed {self.seed}" if self.seed else ""
        exact = "; ranked by sorting, as in the paper" if self.exact else ""
        return (
            f"clamped, rank by rank, to the nearest of {self.vectors:,} public vectors of norm "
            f"{self.clip_norm:g}{seed}{exact}"
        )


@lru_cache(maxsize=4)
def _codebook(encoded: EncodedClipping, dimension: int) -> Codebook:
    make = Codebook.dense if encoded.exact else Codebook.binned
    return make(dimension, vectors=encoded.vectors, clip_norm=encoded.clip_norm, seed=encoded.seed)


@lru_cache(maxsize=8)
def _envelope(encoded: EncodedClipping, dimension: int) -> Shifts:
    return encoded.codebook(dimension).envelope()
