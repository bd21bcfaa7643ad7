"""Encoded gradients: each coordinate of a record's gradient is clamped by a public vector.

    psi_1 .. psi_m     public vectors with descending entries and norm C (module `codebook`)
    nearest psi        maximises <sorted |g|, psi> / |psi|, for the gradient g of a record
    encoded g_j        sign(g_j) min(|g_j|, psi[rank of |g_j|]); rank 0 is the largest |g_j|

So the sorted magnitudes of a record's encoded gradient are at most those of one psi. The accountant
needs nothing else, for noise of any distribution. A null record adds 0, and so does a record with a
gradient that is not finite. The privacy cost does not depend on the distance between encoded and
original gradient, on the ranks of equal magnitudes, or on which psi is chosen.

`encode_by_sorting` does this exactly. A faster way sorts nothing and does not form gradients of
linear layers, because |g_ok| = |a_k| |d_o| for input k and output o:

1. |a_k| and |d_o| are rounded to levels below the largest value of the record. A level is a quarter
   of an octave (a factor of 2^(1/4)). The sum of the levels of a_k and d_o is the level of g_ok.
   Histograms of the levels give the number of coordinates at each level of g, and so their ranks.
2. The encoded gradient is a product again: of a new factor A for each level of an input, and D for
   each level of an output gradient, chosen from the clamped magnitudes at the layer's mean levels.

       encoded g_ok = sign(a_k) A[level of a_k] sign(d_o) D[level of d_o]

   So the sum over records is one matrix product, as in plain DP-SGD.
3. The order of these products differs from that of |g|, so they are bounded in their own order: A
   and D are rounded to fine steps, whose histograms give the ranks of the products. D, or A if it
   is small, is reduced until each product is at most psi at the last rank of its size.

Source: Nasr et al., Algorithms 1 and 2; proof: docs/guarantees/encoding.md. Algorithm 2 prints the
argmin of a similarity for the choice of psi; the nearest vector is meant.
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

BITS_BELOW_STEP = 21
"""Number of low float32 bits within one level. The float32 bits, read as an integer, are almost a
logarithm: they are shifted right by this number to get the level.
"""
STEPS_PER_OCTAVE = 4
"""Number of levels per octave. Their true ratios differ from 2^(1/4) by up to 6 %."""
LOG_OF_ZERO = -300.0
"""Value that stands for log2(0)."""
INPUT_LEVELS = 24
"""Number of levels of inputs; values below 2^-6 of a record's largest in the layer count as 0."""
OUTPUT_LEVELS = 52
"""Number of levels of output gradients; values below 2^-13 of the record's largest count as 0."""
PRODUCT_LEVELS = OUTPUT_LEVELS + INPUT_LEVELS - 1
"""Number of levels of products of an input and an output gradient."""
FACTOR_STEPS_PER_OCTAVE = 12
"""Number of fine steps per octave of the factors A and D."""
FACTOR_STEPS_PER_INPUT_STEP = 4
"""Number of fine steps in one step of A."""
INPUT_FACTOR_STEPS = 9
"""Number of steps of A; factors below 2^-3 of the largest are 0."""
UNCHANGED_INPUT_STEPS = 5
"""Number of the largest steps of A that are not reduced if a product is too large: D is."""
OUTPUT_FACTOR_STEPS = 72
"""Number of fine steps of D; factors below 2^-6 of the record's largest are 0."""
ONE_BITS = 127 << 23
"""Bits of the float32 number 1."""
BOUND_MARGIN = 1 - 2.0**-13
"""Factor that keeps encoded values below their bounds in spite of rounding in logarithms."""
MAX_FORMED_VALUES = 2**21
"""Maximum number of gradient entries that are formed at once: 8 MiB, which fit into caches."""
MAX_FACTOR_VALUES = {"cpu": 2**22, "cuda": 2**26}
"""Maximum number of factors, or of similarities, that are computed at once, by device."""
MAX_RECORDS_AT_ONCE = {"cpu": 1024, "cuda": 2**15}
"""Maximum number of records at once: few for CPU caches, many for few GPU calls."""
VECTORS_PER_GROUP = 32
"""Number of codebook vectors in a group; the best group is found first."""
ABSENT_PENALTY = 2.0**12
"""Offset of the logarithm at levels without values; larger than any difference of logarithms."""


def encode_by_sorting(gradients: Tensor, codebook: Codebook) -> Tensor:
    """Encode gradients by sorting them: exactly Algorithm 2, and the reference for tests.

    Guarantee: the sorted magnitudes of each result are at most the entries of one vector of the
    codebook. A gradient that is not finite becomes 0.

    Args:
        gradients: Gradients, (batch, dimension), float32 or float64.
        codebook: Public vectors of the same dimension.

    Returns:
        Encoded gradients, (batch, dimension).
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
    micro_batch: int = 1,
) -> None:
    """Add the sum over records of their encoded gradients to `buffers.totals`.

    Guarantee: a record adds a vector whose sorted magnitudes are at most the entries of one vector
    of the codebook. A null record, or one with a gradient that is not finite, adds exactly 0. The
    added vector does not depend on other records. Products and sums are float64.

    Args:
        network: Network that `per_example.validate` accepts.
        x: Records, (batch, ...).
        loss: Function from the network's output to each record's loss, (batch,).
        mask: Bool, (batch,); False for null records.
        codebook: Public vectors with one entry per trainable parameter value.
        buffers: Buffers of the sum.
        exact: Whether to form and sort the gradients; if not, they are ranked by rounded factors.
        micro_batch: Number m of adjacent rows whose mean gradient is encoded as one; a null record
            counts as 0. More than 1 requires `exact`. Each micro-batch then has the guarantee of a
            record, so one record changes the sum by at most 2 C.
    """
    prepared = PreparedNetwork.of(network)
    captured = capture_layers(prepared, x, loss)
    totals = dict(zip(map(id, prepared.parameters), buffers.total_views, strict=True))
    add = partial(_sum_by_sorting, micro_batch=micro_batch) if exact else _sum_by_ranking
    most = _choose_max_records(captured, exact, x.device.type)
    most = micro_batch * max(1, most // micro_batch)
    for start in range(0, len(x), most):
        rows = slice(start, start + most)
        layers: list[Any] = [
            (_FactoredGradients if _uses_factors(each, exact) else _FormedGradients)(each, rows)
            for each in captured
        ]
        left = dict(totals)
        for parameter, value in add(layers, codebook, mask[rows]):
            view = left.pop(id(parameter))  # fails if two layers have one parameter
            view += value


def _sum_by_sorting(
    layers: list[_FormedGradients], codebook: Codebook, mask: Tensor, micro_batch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with its sum of encoded gradients, computed by `encode_by_sorting`."""
    gradients = torch.cat([layer.d for layer in layers], dim=1)
    usable = mask & torch.isfinite(gradients).all(dim=1)
    gradients.masked_fill_(~usable[:, None], 0.0)
    gradients = gradients.unflatten(0, (-1, micro_batch)).mean(dim=1)
    unused = codebook.dimension - gradients.shape[1]
    encoded = encode_by_sorting(torch.nn.functional.pad(gradients, (0, unused)), codebook)
    encoded = encoded.sum(dim=0, dtype=torch.float64)
    sizes = [layer.d.shape[1] for layer in layers]
    for layer, total in zip(layers, encoded.split([*sizes, unused]), strict=False):
        yield from layer.split(total)


def _sum_by_ranking(
    layers: list[_FormedGradients | _FactoredGradients], codebook: Codebook, mask: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with its sum of encoded gradients, computed from rounded factors."""
    rounded = _RoundedFactors(layers, mask)
    inputs, outputs = _compute_factors(rounded, _move_codebook(codebook, mask.device))
    for place, layer in enumerate(layers):
        a = _look_up(inputs[place], rounded.levels[place])
        d = _look_up(outputs[place], rounded.keys[place])
        yield from layer.sums(a, d.copysign_(layer.d))


class _FormedGradients:
    """Gradients d of one layer, formed for each record; the input factor a is the constant 1."""

    def __init__(self, seen: CapturedLayer, rows: slice):
        self._own = dict(seen.layer.named_parameters(recurse=False))
        part = replace(seen, input=seen.input[rows], output_gradient=seen.output_gradient[rows])
        formed = find_rule(seen.layer).form_gradients(part)
        self._names = list(formed)
        self.d = torch.cat([each.flatten(1) for each in formed.values()], dim=1)
        self.a, self.ones = self.d[:, :0], 1

    def split(self, total: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its part of a flat sum over records."""
        sizes = [self._own[name].numel() for name in self._names]
        for name, part in zip(self._names, total.split(sizes), strict=True):
            yield self._own[name], part.view_as(self._own[name])

    def sums(self, a: Tensor, d: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its sum over records; a and d as in `_FactoredGradients`."""
        yield from self.split(d.T.double() @ a[:, 0].double())


class _FactoredGradients:
    """Factors of the gradients d a^T of a linear layer; a has an extra 1 if the bias is trained."""

    def __init__(self, seen: CapturedLayer, rows: slice):
        layer = seen.layer
        assert isinstance(layer, nn.Linear)
        self._weight = layer.weight if layer.weight.requires_grad else None
        self._bias = layer.bias if layer.bias is not None and layer.bias.requires_grad else None
        self.a = seen.input[rows, : None if self._weight is not None else 0]
        self.d, self.ones = seen.output_gradient[rows], int(self._bias is not None)

    def sums(self, a: Tensor, d: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter with its sum over records of products of encoded factors.

        Args:
            a: Factors of inputs without signs, (batch, inputs); overwritten.
            d: Factors of outputs with signs, (batch, outputs).
        """
        if self._weight is not None:
            yield self._weight, d.T.double() @ a[:, : self.a.shape[1]].copysign_(self.a).double()
        if self._bias is not None:
            yield self._bias, d.T.double() @ a[:, -1].double()


class _RoundedFactors:
    """Inputs a and output gradients d of records, rounded to levels.

    Attributes:
        levels: Level of each a, one tensor per layer. Level 0 is the layer's largest |a|.
        keys: Level of each d, one tensor per layer. Level 0 is chosen so that level + key is the
            level of a d below the record's largest |a d|.
        inputs: Number of inputs at each level, (layers, levels, batch).
        outputs: Number of output gradients at each key, (layers, keys, batch).
        usable: Bool, (batch,); False for null records and gradients that are not finite.
        peak: Largest |a d| of each record, (batch,).

    Levels are stored as indices into flat tables of shape (batch, levels + 1). The last column
    stands for values that count as 0.
    """

    def __init__(self, layers: list[_FormedGradients | _FactoredGradients], mask: Tensor):
        bits = [
            (_get_magnitude_bits(layer.a, layer.ones), _get_magnitude_bits(layer.d))
            for layer in layers
        ]
        largest = [[each.amax(dim=1).view(torch.float32) for each in pair] for pair in bits]
        peaks = torch.stack([a * d for a, d in largest])
        self.usable = mask & torch.isfinite(peaks).all(dim=0)
        self.peak = peaks.amax(dim=0).where(self.usable, 1.0)
        pairs = list(zip(bits, largest, strict=True))
        self.levels = [_compute_table_indices(a, own, INPUT_LEVELS) for (a, _), (own, _) in pairs]
        self.keys = [
            _compute_table_indices(d, self.peak / own, OUTPUT_LEVELS) for (_, d), (own, _) in pairs
        ]
        self.inputs = torch.stack([_count_levels(each, INPUT_LEVELS) for each in self.levels])
        self.outputs = torch.stack([_count_levels(each, OUTPUT_LEVELS) for each in self.keys])


def _uses_factors(seen: CapturedLayer, exact: bool) -> bool:
    """Check whether a layer's gradients are products of factors, so that none is formed."""
    linear = isinstance(find_rule(seen.layer), LinearRule)
    return linear and seen.input.ndim == 2 and not exact


def _choose_max_records(layers: list[CapturedLayer], exact: bool, device: str) -> int:
    """Choose the number of records that are encoded at once, to limit memory."""
    formed, factors = 1, 1
    for seen in layers:
        if _uses_factors(seen, exact):
            factors += seen.input.shape[1] + seen.output_gradient.shape[1]
        else:
            own = seen.layer.parameters(recurse=False)
            formed += sum(p.numel() for p in own if p.requires_grad)
    return max(
        1,
        min(
            MAX_RECORDS_AT_ONCE[device],
            MAX_FORMED_VALUES // formed,
            MAX_FACTOR_VALUES[device] // factors,
        ),
    )


def _get_magnitude_bits(values: Tensor, ones: int = 0) -> Tensor:
    """Get the float32 bits of |values|, then of `ones` numbers 1; the order of bits is theirs."""
    width = values.shape[1]
    bits = values.new_empty(len(values), width + ones, dtype=torch.int32)
    bits[:, width:] = ONE_BITS
    torch.bitwise_and(values.float().view(torch.int32), 0x7FFFFFFF, out=bits[:, :width])
    return bits


def _compute_table_indices(bits: Tensor, top: Tensor, steps: int) -> Tensor:
    """Compute the level of each number, as an index into a flat table of (batch, steps + 1).

    The column of the table is the rounded number of levels below the row's `top`. Numbers that
    count as 0 have the last column.

    Args:
        bits: Float32 bits of the magnitudes, (batch, n); overwritten.
        top: Upper bound of each row's magnitudes up to rounding, float32, (batch,).
        steps: Number of levels.
    """
    # A very small top has fewer than `steps` levels above 0, so it is raised.
    highest = top.view(torch.int32).clamp(min=steps << BITS_BELOW_STEP) + (
        1 << (BITS_BELOW_STEP - 1)
    )
    below = torch.sub(highest[:, None], bits, out=bits).bitwise_right_shift_(BITS_BELOW_STEP)
    rows = torch.arange(len(bits), device=bits.device, dtype=torch.int32)
    return below.clamp_(0, steps).add_((steps + 1) * rows[:, None])


def _count_levels(places: Tensor, steps: int) -> Tensor:
    """Count the numbers at each level but the last, (steps, batch); below 2^24, so exact."""
    size = len(places) * (steps + 1)
    counts = torch.bincount(places.flatten(), minlength=size).view(-1, steps + 1)
    return counts[:, :steps].T.float()


def _look_up(table: Tensor, places: Tensor) -> Tensor:
    """Compute `table.take(places)` in a third of the time."""
    return table.flatten().index_select(0, places.flatten()).view(places.shape)


def _count_products(a: Tensor, d: Tensor, stride: int) -> Tensor:
    """Count the products of all layers by key + stride * level, (levels of products, batch)."""
    total = a.new_zeros(stride * (a.shape[1] - 1) + d.shape[1], a.shape[2])
    windows = _unfold_windows(total, stride, d.shape[1])
    for levels, keys in zip(a, d, strict=True):
        for window, many in zip(windows, levels, strict=True):
            window.addcmul_(keys, many)
    return total


def _unfold_windows(values: Tensor, stride: int, size: int) -> tuple[Tensor, ...]:
    """List views of `size` consecutive rows, one for every stride-th first row."""
    return values.unfold(0, size, stride).transpose(1, 2).unbind()


def _compute_factors(rounded: _RoundedFactors, public: _DeviceCodebook) -> tuple[Tensor, Tensor]:
    """Compute tables of the factors A and D by level, each (layers, batch, levels + 1).

    Guarantee: the sorted products A D of a record are at most the entries of one vector of the
    codebook.
    """
    a, d = rounded.inputs, rounded.outputs
    top = rounded.peak.clamp(min=torch.finfo(torch.float32).tiny).log2_()
    counts = _count_products(a, d, 1)
    ranks = _cumulate(counts.clone())
    first = public.find_nearest(counts)
    sizes = top - _make_column_indices(PRODUCT_LEVELS, top) / STEPS_PER_OCTAVE
    clamped = torch.minimum(sizes, public.logs_at(ranks - counts / 2, first))
    inputs, outputs = _separate_logs(clamped, a, d)
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
        .add_(_make_column_indices(len(last), top) / FACTOR_STEPS_PER_OCTAVE)
    )
    inputs, outputs = _decrease_to_bounds(room, _mark_absent(a), _mark_absent(d))
    inputs = inputs.sub_(
        _make_column_indices(INPUT_FACTOR_STEPS + 1, top)
        * (FACTOR_STEPS_PER_INPUT_STEP / FACTOR_STEPS_PER_OCTAVE)
    ).exp2_()
    outputs = outputs.sub_(
        _make_column_indices(OUTPUT_FACTOR_STEPS + 1, top) / FACTOR_STEPS_PER_OCTAVE
    ).exp2_()
    outputs *= torch.exp2(largest).mul_(BOUND_MARGIN).mul_(rounded.usable)
    inputs[:, INPUT_FACTOR_STEPS], outputs[:, OUTPUT_FACTOR_STEPS] = 0.0, 0.0
    return _make_factor_table(inputs, i), _make_factor_table(outputs, j)


def _separate_logs(logs: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Approximate a function of level + key by a function of the key minus one of the level.

    Args:
        logs: Log2 of the clamped magnitudes by level + key, (sums, batch).
        a: Number of inputs per level, (layers, levels, batch).
        d: Number of output gradients per key, (layers, keys, batch).

    Returns:
        Decrease of log A per level, 0 at level 0, (layers, levels, batch); and log D per key,
        (layers, keys, batch), very small where no output gradient has this key. The approximation
        is exact at the layer's mean level or mean key.
    """
    levels, keys = (
        _make_column_indices(INPUT_LEVELS, logs),
        _make_column_indices(OUTPUT_LEVELS, logs),
    )
    level = _compute_mean_index(a * torch.exp2(-1.5 / STEPS_PER_OCTAVE * levels), levels)
    along = _gather_window(logs, level, OUTPUT_LEVELS)
    key = _compute_mean_index((along - along[:, :1]).mul_(2.0).exp2_().mul_(d), keys)
    across = _gather_window(logs, key, INPUT_LEVELS)
    raised = across[:, :1] - across.gather(1, level[:, None])
    return across[:, :1] - across, along.add_(raised).sub_(_mark_absent(d), alpha=ABSENT_PENALTY)


def _decrease_to_bounds(room: Tensor, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Compute changes of log A and log D such that no product is above its bound.

    Guarantee: for every pair of steps that occurs, the two changes add up to at most `room`.

    Args:
        room: Log of the bound minus log of the product, by fine steps below the largest product,
            (fine steps, batch).
        a: 1 for steps of A that do not occur, else 0, (layers, steps, batch).
        d: 1 for steps of D that do not occur, else 0, (layers, steps, batch).

    Returns:
        Changes of log A and log D, 0 or below, with one extra row each.
    """
    falls_a = a.new_zeros(len(a), INPUT_FACTOR_STEPS + 1, a.shape[2])
    falls_d = d.new_zeros(len(d), OUTPUT_FACTOR_STEPS + 1, d.shape[2])
    least, shifted = falls_d[:, :OUTPUT_FACTOR_STEPS], torch.empty_like(d)
    for step, own in enumerate(
        _unfold_windows(room, FACTOR_STEPS_PER_INPUT_STEP, OUTPUT_FACTOR_STEPS)
    ):
        if step < UNCHANGED_INPUT_STEPS:
            torch.add(own, a[:, step, None], alpha=ABSENT_PENALTY, out=shifted)
            torch.minimum(least, shifted, out=least)
        else:
            falls_a[:, step] = torch.add(own, d, alpha=ABSENT_PENALTY, out=shifted).amin(dim=1)
    return falls_a.clamp_(max=0.0), falls_d


def _mark_absent(many: Tensor) -> Tensor:
    """Compute 1 where a count is 0, else 0; several times faster than a comparison."""
    return (1.0 - many).clamp_(min=0.0)


def _cumulate(values: Tensor) -> Tensor:
    """Compute cumulative sums over rows in place, three times faster than `cumsum`."""
    for before, row in pairwise(values.unbind()):
        row.add_(before)
    return values


def _round_to_steps(values: Tensor, last: int) -> Tensor:
    """Round values, (layers, n, batch), to integers in [0, last].

    The result is a tensor of indices into a flat table of shape (layers, last + 1, batch).
    """
    layers, _, batch = values.shape
    steps = values.round_().clamp_(0, last).long()
    first = torch.arange(layers, device=values.device) * ((last + 1) * batch)
    own = torch.arange(batch, device=values.device)
    return steps.mul_(batch).add_(own).add_(first[:, None, None])


def _count_steps(many: Tensor, places: Tensor, size: int) -> Tensor:
    """Count the values at each step but the last, (layers, size, batch).

    Args:
        many: Number of values per level.
        places: Step of each level, as an index from `_round_to_steps`.
        size: Number of steps without the last one.
    """
    layers, _, batch = many.shape
    found = many.new_zeros(layers * (size + 1) * batch)
    found.scatter_add_(0, places.flatten(), many.flatten())
    return found.view(layers, size + 1, batch)[:, :size]


def _make_factor_table(values: Tensor, places: Tensor) -> Tensor:
    """Look up the value of each level in a table by step, (layers, batch, levels + 1).

    The last column, for values that count as 0, is 0.
    """
    layers, levels, batch = places.shape
    found = torch.nn.functional.pad(_look_up(values, places), (0, 0, 0, 1))
    table = values.new_empty(layers, batch, levels + 1)
    for own, layer in zip(table, found, strict=True):  # transposing a matrix is fast, a stack slow
        own.copy_(layer.T)
    return table


def _gather_window(logs: Tensor, start: Tensor, size: int) -> Tensor:
    """Select `size` rows of a record's logs from each layer's `start`, (layers, size, batch)."""
    batch = logs.shape[1]
    places = (batch * start + torch.arange(batch, device=logs.device))[:, None]
    return _look_up(logs, places + batch * _make_column_indices(size, logs))


def _compute_mean_index(weights: Tensor, places: Tensor) -> Tensor:
    """Compute the weighted mean of indices, rounded to an integer, (layers, batch)."""
    total = weights.sum(dim=1).clamp_(min=torch.finfo(weights.dtype).tiny)
    return ((weights * places).sum(dim=1) / total).round_().long()


def _make_column_indices(size: int, like: Tensor) -> Tensor:
    """Make the indices 0 to size - 1 as a column, on the device of `like`."""
    return torch.arange(size, device=like.device)[:, None]


@dataclass(frozen=True, slots=True)
class _DeviceCodebook:
    """Codebook with derived tables on a device. A bin is a range of ranks with equal entries.

    Args:
        values: Entries of the vectors by bin, (vectors, bins).
        logs: Logarithms of the entries to base 2, (vectors * bins,).
        directions: Vectors divided by their norms, (bins, vectors).
        edges: First rank of each bin, and the dimension, int64, (bins + 1,).
        bins: Bin of each rank, int32, (dimension,).
        octaves: 0 and the ranks that are powers of 2: edges of octaves of ranks, (octaves + 1,).
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
        """Find the index of each record's nearest vector, from sums of magnitudes by bin."""
        return (masses.to(self.directions.dtype) @ self.directions).argmax(dim=1)

    def find_nearest(self, counts: Tensor) -> Tensor:
        """Find approximately the index of each record's nearest vector, by octaves of ranks.

        Args:
            counts: Number of coordinates at each level, from the largest magnitude down, (levels,
                batch).
        """
        before = torch.ones(len(counts), len(counts) + 1, device=counts.device).triu_(1)
        sizes = torch.exp2(-_make_column_indices(len(counts), counts) / STEPS_PER_OCTAVE)
        reached, grown = counts.T @ before, counts.T @ (sizes * before)
        edges = self.octaves.expand(len(reached), -1).contiguous()
        right = torch.searchsorted(reached, edges).clamp_(1, len(counts))
        low, high = reached.gather(1, right - 1), reached.gather(1, right)
        share = ((edges - low) / (high - low).clamp_(min=1.0)).clamp_(0.0, 1.0)
        masses = torch.lerp(grown.gather(1, right - 1), grown.gather(1, right), share).diff(dim=1)
        most = max(1, MAX_FACTOR_VALUES[masses.device.type] // len(self.means))
        return torch.cat([self._find_most_similar(part) for part in masses.split(most)])

    def _find_most_similar(self, masses: Tensor) -> Tensor:
        """Find the most similar vector in the best group; an argmax over all would be slower."""
        similar = (self.means @ masses.T).unflatten(0, (-1, VECTORS_PER_GROUP))
        group = similar.amax(dim=1).argmax(dim=0)
        chosen = similar.gather(0, group.expand(1, VECTORS_PER_GROUP, -1))
        return (VECTORS_PER_GROUP * group + chosen[0].argmax(dim=0)) % len(self.values)

    def logs_at(self, ranks: Tensor, vectors: Tensor) -> Tensor:
        """Look up log2 of the entries of each record's vector at the given ranks, (n, batch)."""
        bins = _look_up(self.bins, ranks.int().clamp_(0, len(self.bins) - 1))
        return _look_up(self.logs, bins.add_(vectors.int() * self.values.shape[1]))


@lru_cache(maxsize=4)
def _move_codebook(codebook: Codebook, device: torch.device) -> _DeviceCodebook:
    """Compute the tables of a codebook on a device."""
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
    """Insert a 0 at the beginning of the last axis."""
    return torch.nn.functional.pad(values, (1, 0))


MAX_VECTORS = 100_000
"""Maximum number of vectors of a codebook; every gradient is compared with each vector."""


@CLIPPING_METHODS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedClipping(ClippingMethod):
    """Clipping that clamps each record's gradient, rank by rank, to the nearest public vector.

    Args:
        clip_norm: Norm C of every vector, 1e-12 or above.
        vectors: Number m of vectors, 1 to 100,000.
        seed: Public seed of the codebook, 0 or above.
        exact: Whether to form and sort every gradient and to use the paper's codebook: exactly
            Algorithm 2, for small networks.
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
        """L2 sensitivity C of the sum; for other noise than Gaussian, `shifts` is used instead."""
        return self.clip_norm

    def codebook(self, dimension: int) -> Codebook:
        """Make the codebook for `dimension` trainable parameter values; cached."""
        return _make_codebook(self, dimension)

    def shifts(self, dimension: int) -> Shifts:
        """Compute one vector that bounds all vectors of the codebook, rank by rank; cached."""
        return _compute_envelope(self, dimension)

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
        """Compute the sum of encoded gradients per parameter, and an empty tensor of counts."""
        assert views == 1 or self.exact, "encoding uses one gradient per record"
        assert weights is None, "encoding does not weight gradients"
        prepared = PreparedNetwork.of(network)
        codebook = self.codebook(sum(p.numel() for p in prepared.parameters))
        given, buffers = buffers, SumBuffers(prepared.parameters) if buffers is None else buffers
        add_encoded_sum(prepared, x, loss, mask, codebook, buffers, self.exact, views)
        if given is None:
            buffers.write_back()
        return buffers.views, torch.zeros(0)

    def describe(self) -> str:
        """Describe the clipping in one phrase, for plan and report."""
        seed = f", drawn from seed {self.seed}" if self.seed else ""
        exact = "; ranked by sorting, as in the paper" if self.exact else ""
        return (
            f"clamped, rank by rank, to the nearest of {self.vectors:,} public vectors of norm "
            f"{self.clip_norm:g}{seed}{exact}"
        )


@lru_cache(maxsize=4)
def _make_codebook(encoded: EncodedClipping, dimension: int) -> Codebook:
    make = Codebook.dense if encoded.exact else Codebook.binned
    return make(dimension, vectors=encoded.vectors, clip_norm=encoded.clip_norm, seed=encoded.seed)


@lru_cache(maxsize=8)
def _compute_envelope(encoded: EncodedClipping, dimension: int) -> Shifts:
    return encoded.codebook(dimension).envelope()
