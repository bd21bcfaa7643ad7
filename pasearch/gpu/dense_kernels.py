"""Steps of chains of linear layers on a GPU, of many trainings at once, in kernels for Triton.

    first            h = phi(x W^T + b), dropped, of the first layer; of a last
                     layer the loss's gradient                                       a layer's tiles
    forward          the same, of another layer                                      a layer's tiles
    backward         d_(l-1) = (d_l W_l) * phi'(h_(l-1)), dropped                    a layer's tiles
    factors          c_i = min(most, top / (||g_i|| slack + plus)), 0 of a null record;
                     c * d; and records are put side by side for `sums`              a record
    sums             (c * d)^T x, and the sums of c * d, of all layers               their tiles

A program takes its training, layer and tile from a list of work, so one call serves all trainings
of a generation, and what one finds does not depend on the others. Rows behind the last of a batch
are not gone through. The formulas are those of `training.dense`; norms are added up in float64.
What a record that is null, or not finite, adds is c * d = 0 times what its layers were given: which
is written over with 0, as it may be no number.

Products are of bfloat16 halves (`dense_steps`): x = x1 + x2 + rest, and
a b = a1 b1 + a1 b2 + a2 b1. Whatever is multiplied lies in memory as halves: of a row first all
the first ones.

Proof: docs/guarantees/dp-sgd.md ("On a GPU").
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false, reportAssignmentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from pasearch.gpu.kernels import (
    DOUBTS,
    EACH,
    FIELDS,
    GIVEN,
    SUMS,
    double,
    flat,
    floats,
    halves_of,
    ints,
    longs,
    uniforms,
)

(X, Y, VALID, PLACES, SIZES, SQUARES, ROWS, LAYERS, SHARES, NUMBERS, TOP, PLUS, SLACK, MOST) = (
    tl.constexpr(FIELDS + k) for k in range(14)
)
"""What stands in a training's row behind the fields of `release`: where records (halves), what is
predicted, and whether they are there lie; the slots of each step, and how many; records' squared
norms, float64; rows of a step's slots; how many layers; classes' shares, or 0; whether numbers are
predicted; and the bound, float64."""

WIDTH = FIELDS + 14
"""Int64 of a training's row."""

(FIRST, SECOND, BIAS, INPUTS, OUTPUTS, OUT, GOES, D, HALVED, BENT, TRAINED, PLACE, BIASES) = (
    tl.constexpr(k) for k in range(13)
)
DROPS, TIMES, SEED, STRIDE, ALIGNED = (tl.constexpr(k) for k in range(13, 18))
"""In a layer's row, int64: where the halves of its weights and its bias (or 0) lie; widths; where
what comes out lies (infinite where it is dropped), the halves of that with dropout, its gradient,
and the halves of that; phi's code; whether it is trained, and where its sums go in the flat one
(the bias's, or -1); which 2^-24 is the first that is kept, 0 for all; what is kept is multiplied by
(float64); where the key of its masks is given; how many numbers lie from one row of what comes out
to the next, of halves from the first ones to the second: behind the last output are zeros; and
whether all rows of the halves of its weights begin at multiples of `EVEN` numbers."""

OF_LAYER = 18
"""Before a training's layers stands a row about its batch's records, put side by side: where they
go, and how many numbers lie from one to the next."""

EVEN = 8
"""Where rows begin at multiples of so many numbers, so many halves are read at once."""

RECORDS, COLUMNS = 1, 1024
"""Records of a program of `factors`, and how many of their numbers it reads at once."""

BLOCK = 32
"""Records whose gradients are added in float32; the sums of blocks are added in float64. Half of a
processor's block (`record_sums`): three products of halves add three terms a record, and units that
multiply matrices may cut off where a processor rounds."""

LARGEST = float(np.finfo(np.float32).max)
"""Of a squared norm, as in machine code on a processor."""

_LARGEST, _LAYER, _UNIT = tl.constexpr(LARGEST), tl.constexpr(OF_LAYER), tl.constexpr(2.0**-24)
_TANH, _RELU, _SIGMOID = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _bent(z, code):
    """Return phi(z): tanh, ReLU, sigmoid, or z."""
    if code == _TANH:
        small = tl.exp(-2.0 * tl.abs(z))
        size = (1.0 - small) / (1.0 + small)
        z = tl.where(z < 0.0, -size, size)
    elif code == _RELU:
        z = tl.where(z < 0.0, 0.0, z)  # what is no number stays none
    elif code == _SIGMOID:
        z = 1.0 / (1.0 + tl.exp(-z))
    return z


@triton.jit
def _unbent(d, h, code):
    """Return d phi'(z), of h = phi(z)."""
    if code == _TANH:
        d = d * (1.0 - h * h)
    elif code == _RELU:
        d = tl.where(h > 0.0, d, 0.0)
    elif code == _SIGMOID:
        d = d * h * (1.0 - h)
    return d


@triton.jit
def _kept(own, layer, rows, cols, step):
    """Return which outputs of a layer are kept."""
    kept = (rows[:, None] >= 0) & (cols[None, :] >= 0)
    least = tl.load(layer + DROPS)
    if least > 0:
        given = longs(tl.load(own + GIVEN)) + step * tl.load(own + EACH)
        places = rows[:, None] * _count(layer + OUTPUTS, False) + cols[None, :]
        drawn = uniforms(tl.load(given + tl.load(layer + SEED)), places, step, step * 0)
        kept = drawn >= least.to(tl.float32) * _UNIT
    return kept


@triton.jit
def _count(at, IS_EVEN: tl.constexpr):
    """Load a whole number; a multiple of 8, if it is said to be even."""
    found = tl.load(at).to(tl.int32)
    if IS_EVEN:
        found = tl.multiple_of(found, 8)
    return found


@triton.jit
def _place(at, IS_EVEN: tl.constexpr):
    """Load where halves lie."""
    found = tl.load(at).to(tl.pointer_type(tl.bfloat16))
    if IS_EVEN:
        found = tl.multiple_of(found, 16)
    return found


@triton.jit
def _asked(work, trainings, layers, WIDE: tl.constexpr, MANY: tl.constexpr):
    """Return what a program is asked for: training, layer, which that is, and a tile's places."""
    item = work + 4 * tl.program_id(0)
    training, place = tl.load(item), tl.load(item + 1)
    own, layer = trainings + training * WIDE, layers + (training * MANY + place + 1) * _LAYER
    return own, layer, place, tl.load(item + 2), tl.load(item + 3)


@triton.jit
def _batch(own, at):
    """Return which step of its block it is, and how many rows its batch has."""
    step = tl.load(at)
    return step, tl.load(ints(tl.load(own + SIZES)) + step)


@triton.jit
def _slots(own, step, rows, there):
    """Return the slots of some rows of a step."""
    chosen = ints(tl.load(own + PLACES)) + step * tl.load(own + ROWS)
    return tl.load(chosen + rows, mask=there, other=0).to(tl.int64)


@triton.jit
def _records(own, layer, step, rows, there, IS_EVEN: tl.constexpr):
    """Return where records lie and each of a step's begins, and how far off second halves are."""
    apart = _count(layer + INPUTS, IS_EVEN)
    return _place(own + X, IS_EVEN), _slots(own, step, rows, there) * 2 * apart, apart


@triton.jit
def _given(layer, rows):
    """Return the same of what a layer is given: what the one before gives."""
    apart = _count(layer - _LAYER + STRIDE, True)
    return _place(layer - _LAYER + GOES, True), rows * 2 * apart, apart


_COMPILED = tl.constexpr(isinstance(_slots, triton.runtime.JITFunction))
"""Whether kernels are not interpreted, by what multiplies float32 numbers alone."""


@triton.jit
def _dot(a, b, found):
    if _COMPILED:
        found = tl.dot(a, b, found)
    else:
        found = tl.dot(a.to(tl.float32), b.to(tl.float32), found)
    return found


@triton.jit
def _product(a1, a2, b1, b2, found):
    """Return found + a b, of halves."""
    return _dot(a1, b1, _dot(a2, b1, _dot(a1, b2, found)))


@triton.jit
def _store_halves(at, rows, cols, stride, values, mask):
    first, second = halves_of(values)
    where = rows[:, None] * 2 * stride + cols[None, :]
    tl.store(at + where, first, mask=mask)
    tl.store(at + where + stride, second, mask=mask)


@triton.jit
def _through(
    x, starts, apart, there, layer, cols, IS_EVEN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Return x W^T, of some rows and outputs."""
    inputs, wide = _count(layer + INPUTS, IS_EVEN), cols < _count(layer + OUTPUTS, False)
    first, second = _place(layer + FIRST, IS_EVEN), _place(layer + SECOND, IS_EVEN)
    z = tl.zeros((M, N), tl.float32)
    for k in range(0, inputs, K):
        ks = k + tl.arange(0, K)
        of_rows, mask = x + starts[:, None] + ks[None, :], there[:, None] & (ks < apart)[None, :]
        a1 = tl.load(of_rows, mask=mask, other=0.0)
        a2 = tl.load(of_rows + apart, mask=mask, other=0.0)
        where, mask = cols[:, None] * inputs + ks[None, :], wide[:, None] & (ks < inputs)[None, :]
        w1 = tl.load(first + where, mask=mask, other=0.0)
        w2 = tl.load(second + where, mask=mask, other=0.0)
        z = _product(a1, a2, tl.trans(w1), tl.trans(w2), z)
    return z


@triton.jit
def _finish(own, layer, place, step, rows, cols, there, z):
    """Store what a layer gives, or the gradient of the loss."""
    wide, stride = cols < _count(layer + OUTPUTS, False), _count(layer + STRIDE, True)
    bias = tl.load(layer + BIAS)
    if bias != 0:
        z += tl.load(floats(bias) + cols, mask=wide, other=0.0)[None, :]
    where = rows[:, None] * stride + cols[None, :]
    mask = there[:, None] & wide[None, :]
    if place == tl.load(own + LAYERS) - 1:
        slots = _slots(own, step, rows, there)
        if tl.load(own + NUMBERS) != 0:
            number = tl.load(floats(tl.load(own + Y)) + slots, mask=there, other=0.0)
            d = z - number[:, None]
        else:
            true = tl.load(longs(tl.load(own + Y)) + slots, mask=there, other=0)
            z = tl.where(wide[None, :], z, -float("inf"))
            e = tl.exp(z - tl.max(z, 1)[:, None])
            d = e / tl.sum(e, 1)[:, None] - (cols[None, :] == true[:, None]).to(tl.float32)
        tl.store(floats(tl.load(layer + D)) + where, d, mask=mask)
        _store_halves(_place(layer + HALVED, True), rows, cols, stride, d, mask)
    else:
        h, kept = _bent(z, tl.load(layer + BENT)), _kept(own, layer, rows, cols, step)
        tl.store(floats(tl.load(layer + OUT)) + where, tl.where(kept, h, float("inf")), mask=mask)
        h = tl.where(kept, h * double(layer + TIMES).to(tl.float32), 0.0)
        _store_halves(_place(layer + GOES, True), rows, cols, stride, h, mask)


@triton.jit
def _forward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    OF_RECORDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, place, row, column = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    if row * M < size:
        rows, cols = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
        there = rows < size
        if OF_RECORDS:
            x, starts, apart = _records(own, layer, step, rows, there, IS_EVEN)
            z = _through(x, starts, apart, there, layer, cols, IS_EVEN, M, N, K)
        else:
            x, starts, apart = _given(layer, rows)
            if tl.load(layer + ALIGNED) != 0:
                z = _through(x, starts, apart, there, layer, cols, True, M, N, K)
            else:
                z = _through(x, starts, apart, there, layer, cols, False, M, N, K)
        _finish(own, layer, place, step, rows, cols, there, z)


@triton.jit
def _back(
    layer, rows, there, cols, IS_EVEN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Return d W, of some rows and inputs."""
    inputs, outputs = _count(layer + INPUTS, IS_EVEN), _count(layer + OUTPUTS, False)
    first, second = _place(layer + FIRST, IS_EVEN), _place(layer + SECOND, IS_EVEN)
    after, apart = _place(layer + HALVED, True), _count(layer + STRIDE, True)
    starts, wide = rows * 2 * apart, cols < inputs
    d = tl.zeros((M, N), tl.float32)
    for k in range(0, outputs, K):
        ks = k + tl.arange(0, K)
        of_rows, mask = after + starts[:, None] + ks[None, :], (ks < apart)[None, :]
        a1 = tl.load(of_rows, mask=there[:, None] & mask, other=0.0)
        a2 = tl.load(of_rows + apart, mask=there[:, None] & mask, other=0.0)
        where, mask = ks[:, None] * inputs + cols[None, :], (ks < outputs)[:, None]
        w1 = tl.load(first + where, mask=mask & wide[None, :], other=0.0)
        w2 = tl.load(second + where, mask=mask & wide[None, :], other=0.0)
        d = _product(a1, a2, w1, w2, d)
    return d


@triton.jit
def _backward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, _, row, column = _asked(work, trainings, layers, WIDE, MANY)
    _, size = _batch(own, at)
    if row * M < size:
        rows, cols = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
        there = rows < size
        if tl.load(layer + ALIGNED) != 0:
            d = _back(layer, rows, there, cols, True, M, N, K)
        else:
            d = _back(layer, rows, there, cols, False, M, N, K)
        before = layer - _LAYER
        stride = _count(before + STRIDE, True)
        where = rows[:, None] * stride + cols[None, :]
        mask = there[:, None] & (cols < _count(layer + INPUTS, False))[None, :]
        h = tl.load(floats(tl.load(before + OUT)) + where, mask=mask, other=0.0)
        d = _unbent(d * double(before + TIMES).to(tl.float32), h, tl.load(before + BENT))
        d = tl.where(h < float("inf"), d, 0.0)
        tl.store(floats(tl.load(before + D)) + where, d, mask=mask)
        _store_halves(_place(before + HALVED, True), rows, cols, stride, d, mask)


@triton.jit
def _squares_of_halves(values, starts, apart, there, M: tl.constexpr, K: tl.constexpr):
    """Return the squared norms of rows, float64."""
    found = tl.zeros((M, K), tl.float64)
    for k in range(0, apart, K):
        ks = k + tl.arange(0, K)
        mask = there[:, None] & (ks < apart)[None, :]
        where = values + starts[:, None] + ks[None, :]
        each = tl.load(where, mask=mask, other=0.0).to(tl.float32).to(tl.float64)
        each += tl.load(where + apart, mask=mask, other=0.0).to(tl.float32).to(tl.float64)
        found += each * each
    return tl.sum(found, 1)


@triton.jit
def _squares(values, starts, there, count, M: tl.constexpr, K: tl.constexpr):
    """Return the squared norms of rows of float32, float64."""
    found = tl.zeros((M, K), tl.float64)
    for k in range(0, count, K):
        ks = k + tl.arange(0, K)
        mask = there[:, None] & (ks < count)[None, :]
        each = tl.load(values + starts[:, None] + ks[None, :], mask=mask, other=0.0).to(tl.float64)
        found += each * each
    return tl.sum(found, 1)


@triton.jit
def _factor(own, first, depth, slots, there, rows, M: tl.constexpr, K: tl.constexpr):
    """Return by what some records' gradients are multiplied."""
    of_records = tl.load(own + SQUARES).to(tl.pointer_type(tl.float64))
    of_records = tl.load(of_records + slots, mask=there, other=0.0)
    total, largest = tl.zeros((M,), tl.float64), tl.zeros((M,), tl.float64)
    for place in range(0, depth):
        layer = first + place * _LAYER
        if tl.load(layer + TRAINED) != 0:
            of_inputs = of_records
            if place > 0:
                x, starts, apart = _given(layer, rows)
                of_inputs = _squares_of_halves(x, starts, apart, there, M, K)
            d, stride = floats(tl.load(layer + D)), _count(layer + STRIDE, True)
            starts = rows * stride
            of_outputs = _squares(d, starts, there, stride, M, K)
            plus = (tl.load(layer + BIASES) >= 0).to(tl.float64)
            total += (of_inputs + plus) * of_outputs
            largest = tl.maximum(largest, tl.maximum(of_inputs, of_outputs))
    size_of = tl.sqrt(total) * double(own + SLACK) + double(own + PLUS)
    factors = tl.minimum(double(own + TOP) / size_of, double(own + MOST))
    valid = tl.load(own + VALID).to(tl.pointer_type(tl.int8))
    use = (tl.load(valid + slots, mask=there, other=0) != 0) & (total <= _LARGEST)
    use = use & (largest <= _LARGEST)
    use = use & (of_records < float("inf"))  # whether its first layer is trained or not
    if tl.load(own + NUMBERS) == 0:
        outputs = tl.load(first + (depth - 1) * _LAYER + OUTPUTS)
        y = tl.load(longs(tl.load(own + Y)) + slots, mask=there, other=-1)
        use = use & (y >= 0) & (y < outputs)  # a class that is none has no share, either
        shares = tl.load(own + SHARES)
        if shares != 0:
            factors *= tl.load(floats(shares) + y, mask=use, other=0.0).to(tl.float64)
    return tl.where(use, factors, 0.0).to(tl.float32)


@triton.jit
def _factors(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, first, _, row, _ = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    if row == 0:  # the last step's doubts are settled
        tl.store(longs(tl.load(own + DOUBTS)), (row * 0).to(tl.int64))
    if row * M < size:
        rows = row * M + tl.arange(0, M)
        there, depth = rows < size, tl.load(own + LAYERS).to(tl.int32)
        slots = _slots(own, step, rows, there)
        factors = _factor(own, first, depth, slots, there, rows, M, K)
        use = factors != 0.0
        if tl.load(first + TRAINED) != 0:
            x, starts, apart = _records(own, first, step, rows, there, IS_EVEN)
            beside, stride = (
                _place(first - _LAYER + GOES, True),
                _count(first - _LAYER + STRIDE, True),
            )
            for k in range(0, apart, K):
                ks = k + tl.arange(0, K)
                where = x + starts[:, None] + ks[None, :]
                to = beside + rows[:, None] * 2 * stride + ks[None, :]
                mask = there[:, None] & (ks < apart)[None, :]
                used = mask & use[:, None]
                tl.store(to, tl.load(where, mask=used, other=0.0), mask=mask)
                tl.store(to + stride, tl.load(where + apart, mask=used, other=0.0), mask=mask)
        clears = tl.sum((there & (use == 0)).to(tl.int32)) > 0
        for place in range(0, depth):
            layer = first + place * _LAYER
            stride = _count(layer + STRIDE, True)
            d, halved = floats(tl.load(layer + D)), _place(layer + HALVED, True)
            goes, trained = _place(layer + GOES, True), tl.load(layer + TRAINED) != 0
            for k in range(0, stride, K):
                ks = k + tl.arange(0, K)
                mask = there[:, None] & (ks < stride)[None, :]
                if trained:
                    where = rows[:, None] * stride + ks[None, :]
                    each = tl.load(d + where, mask=mask & use[:, None], other=0.0)
                    _store_halves(halved, rows, ks, stride, each * factors[:, None], mask)
                if clears:  # 0 times what is no number would be none
                    mask = mask & (use == 0)[:, None]
                    _store_halves(goes, rows, ks, stride, tl.zeros((M, K), tl.float32), mask)


@triton.jit
def _sum_of(layer, size, outs, ins, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Return (c * d)^T x, float64, of some outputs and inputs: blocks of K records in float32."""
    halved, stride = _place(layer + HALVED, True), _count(layer + STRIDE, True)
    total = tl.zeros((M, N), tl.float64)
    for row in range(0, size, K):
        rows = row + tl.arange(0, K)
        there = rows < size
        x, starts, apart = _given(layer, rows)
        where = halved + rows[:, None] * 2 * stride + outs[None, :]
        mask = there[:, None] & (outs < stride)[None, :]
        a1 = tl.load(where, mask=mask, other=0.0)
        a2 = tl.load(where + stride, mask=mask, other=0.0)
        where, mask = x + starts[:, None] + ins[None, :], there[:, None] & (ins < apart)[None, :]
        b1 = tl.load(where, mask=mask, other=0.0)
        b2 = tl.load(where + apart, mask=mask, other=0.0)
        found = _product(tl.trans(a1), tl.trans(a2), b1, b2, tl.zeros((M, N), tl.float32))
        total += found.to(tl.float64)
    return total


@triton.jit
def _store_sum(own, layer, outs, ins, found, IS_EVEN: tl.constexpr):
    inputs, place = _count(layer + INPUTS, IS_EVEN), _count(layer + PLACE, IS_EVEN)
    where = outs[:, None] * inputs + ins[None, :]
    mask = (outs < _count(layer + OUTPUTS, False))[:, None] & (ins < inputs)[None, :]
    tl.store(flat(own + SUMS) + place + where, found, mask=mask)


@triton.jit
def _sums(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, _, row, column = _asked(work, trainings, layers, WIDE, MANY)
    _, size = _batch(own, at)
    outs, ins = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    if column < 0:
        halved, stride = _place(layer + HALVED, True), _count(layer + STRIDE, True)
        total = tl.zeros((K, M), tl.float64)
        for low in range(0, size, K):
            rows = low + tl.arange(0, K)
            where = rows[:, None] * 2 * stride + outs[None, :]
            mask = (rows < size)[:, None] & (outs < stride)[None, :]
            total += tl.load(halved + where, mask=mask, other=0.0).to(tl.float64)
            total += tl.load(halved + where + stride, mask=mask, other=0.0).to(tl.float64)
        where = flat(own + SUMS) + tl.load(layer + BIASES) + outs
        tl.store(where, tl.sum(total, 0).to(tl.float32), mask=outs < _count(layer + OUTPUTS, False))
    else:
        found = _sum_of(layer, size, outs, ins, M, N, K).to(tl.float32)
        if tl.load(layer + ALIGNED) != 0:
            _store_sum(own, layer, outs, ins, found, True)
        else:
            _store_sum(own, layer, outs, ins, found, False)


def run(name: str, work: Any, *tables: Any, **sizes: Any) -> None:
    """Call a kernel for a list of work, (programs, 4): training, layer, a tile's two places.

    The first layer's is that of the others, compiled for records instead of what a layer gave.
    """
    if name in ("first", "forward"):
        name, sizes = "forward", sizes | {"OF_RECORDS": name == "first"}
    if len(work):
        globals()[f"_{name}"][(len(work),)](work, *tables, **sizes)
