"""Steps of chains of linear layers on a GPU, of many trainings at once, in kernels for Triton.

    forward    h = phi(x W^T + b), dropped; of a last layer the loss's gradient     a layer's tiles
    backward   d_(l-1) = (d_l W_l) * phi'(h_(l-1)), dropped                          a layer's tiles
    factors    c_i = min(most, top / (||g_i|| slack + plus)), 0 of a null record;
               and c * d                                                             some records
    sums       (c * d)^T x, and the sums of c * d, of all layers                     their tiles

A program takes its training, layer and tile from a list of work, so one call serves all trainings
of a generation, and what one finds does not depend on the others. Rows behind the last of a batch
are not gone through. The formulas are those of `training.dense`; norms are added up in float64.
What a record that is null, or not finite, would add is not read.

Products are of bfloat16 halves (`training.halves`): x = x1 + x2 + rest, and a b = a1 b1 + a1 b2 +
a2 b1. Whatever is multiplied lies in memory as halves: of a row first all the first ones.

Proof: docs/guarantees/dp-sgd.md ("On a GPU").
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from pasearch.gpu.kernels import (
    EACH,
    FIELDS,
    GIVEN,
    SUMS,
    double,
    floats,
    halves_of,
    ints,
    longs,
    uniforms,
)

(X, Y, VALID, PLACES, SIZES, FACTORS, ROWS, LAYERS, SHARES, NUMBERS, TOP, PLUS, SLACK, MOST) = (
    tl.constexpr(FIELDS + k) for k in range(14)
)
"""What stands in a training's row behind the fields of `release`: where records (halves), what is
predicted, and whether they are there lie; the slots of each step, and how many; the factors; rows
of a step's slots; how many layers; classes' shares, or 0; whether numbers are predicted; and the
bound, float64."""

WIDTH = FIELDS + 14
"""Int64 of a training's row."""

(FIRST, SECOND, BIAS, INPUTS, OUTPUTS, OUT, GOES, D, HALVED, BENT, TRAINED, PLACE, BIASES) = (
    tl.constexpr(k) for k in range(13)
)
DROPS, TIMES, SEED, STRIDE = (tl.constexpr(k) for k in range(13, 17))
"""In a layer's row, int64: where the halves of its weights and its bias (or 0) lie; widths; where
what comes out lies, the halves of that with dropout, its gradient, and the halves of that; phi's
code; whether it is trained, and where its sums go in the flat one (the bias's, or -1); which 2^-24
is the first that is kept, 0 for all; what is kept is multiplied by (float64); where the key of its
masks is given; and how many numbers lie from one row of what comes out to the next, of halves from
the first ones to the second: behind the last output are zeros."""

OF_LAYER = 17

EVEN = 8
"""Where all rows begin at multiples of so many numbers, so many halves are read at once."""

RECORDS, COLUMNS = 4, 128
"""Records of a program of `factors`, and how many of their numbers it reads at once."""

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
        z = tl.where(z > 0.0, z, 0.0)
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
def _dropped(values, own, layer, rows, cols, step):
    """Return values of a layer's outputs, some of them 0 and the others larger."""
    least = tl.load(layer + DROPS)
    if least > 0:
        given = longs(tl.load(own + GIVEN)) + step * tl.load(own + EACH)
        places = rows[:, None] * tl.load(layer + OUTPUTS) + cols[None, :]
        drawn = uniforms(tl.load(given + tl.load(layer + SEED)), places, step, step * 0)
        kept = drawn >= least.to(tl.float32) * _UNIT
        values = tl.where(kept, values * double(layer + TIMES).to(tl.float32), 0.0)
    return values


@triton.jit
def _count(at, IS_EVEN: tl.constexpr):
    """Load a whole number, which is a multiple of `EVEN` where rows are even."""
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
    own, layer = trainings + training * WIDE, layers + (training * MANY + place) * _LAYER
    return own, layer, place, tl.load(item + 2), tl.load(item + 3)


@triton.jit
def _batch(own, at):
    """Return which step of its block it is, and how many rows its batch has."""
    step = tl.load(at)
    return step, tl.load(ints(tl.load(own + SIZES)) + step)


@triton.jit
def _slots(own, step, rows, there):
    """Return the slots of some rows of a step."""
    chosen = longs(tl.load(own + PLACES)) + step * tl.load(own + ROWS)
    return tl.load(chosen + rows, mask=there, other=0)


@triton.jit
def _given(own, layer, at, step, rows, there, IS_EVEN: tl.constexpr):
    """Return where a layer's input lies and its rows begin, and how far off second halves are."""
    if at == 0:
        x, apart = _place(own + X, IS_EVEN), _count(layer + INPUTS, IS_EVEN)
        starts = _slots(own, step, rows, there) * 2 * apart
    else:
        x, apart = _place(layer - _LAYER + GOES, IS_EVEN), _count(layer - _LAYER + STRIDE, IS_EVEN)
        starts = rows.to(tl.int64) * 2 * apart
    if IS_EVEN:  # what was chosen is not known to be so
        x, apart = tl.multiple_of(x, 16), tl.multiple_of(apart, 8)
        starts = tl.multiple_of(starts, 8)
    return x, starts, apart


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
    where = rows.to(tl.int64)[:, None] * 2 * stride + cols[None, :]
    tl.store(at + where, first, mask=mask)
    tl.store(at + where + stride, second, mask=mask)


@triton.jit
def _forward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, place, row, column = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    low = row * M
    if low < size:
        rows, cols = low + tl.arange(0, M), column * N + tl.arange(0, N)
        inputs, outputs = _count(layer + INPUTS, IS_EVEN), tl.load(layer + OUTPUTS).to(tl.int32)
        there, wide = rows < size, cols < outputs
        x, starts, apart = _given(own, layer, place, step, rows, there, IS_EVEN)
        first, second = _place(layer + FIRST, IS_EVEN), _place(layer + SECOND, IS_EVEN)
        z = tl.zeros((M, N), tl.float32)
        for k in range(0, inputs, K):
            ks = k + tl.arange(0, K)
            of_rows = x + starts[:, None] + ks[None, :]
            mask = there[:, None] & (ks < inputs)[None, :]
            a1 = tl.load(of_rows, mask=mask, other=0.0)
            a2 = tl.load(of_rows + apart, mask=mask, other=0.0)
            where = cols[:, None] * inputs + ks[None, :]
            mask = wide[:, None] & (ks < inputs)[None, :]
            w1 = tl.load(first + where, mask=mask, other=0.0)
            w2 = tl.load(second + where, mask=mask, other=0.0)
            z = _product(a1, a2, tl.trans(w1), tl.trans(w2), z)
        bias = tl.load(layer + BIAS)
        if bias != 0:
            z += tl.load(floats(bias) + cols, mask=wide, other=0.0)[None, :]
        stride = _count(layer + STRIDE, IS_EVEN)
        where = rows.to(tl.int64)[:, None] * stride + cols[None, :]
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
            _store_halves(_place(layer + HALVED, IS_EVEN), rows, cols, stride, d, mask)
        else:
            h = _bent(z, tl.load(layer + BENT))
            tl.store(floats(tl.load(layer + OUT)) + where, h, mask=mask)
            h = _dropped(h, own, layer, rows, cols, step)
            _store_halves(_place(layer + GOES, IS_EVEN), rows, cols, stride, h, mask)


@triton.jit
def _backward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, _, row, column = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    low = row * M
    if low < size:
        rows, cols = low + tl.arange(0, M), column * N + tl.arange(0, N)
        inputs, outputs = _count(layer + INPUTS, IS_EVEN), tl.load(layer + OUTPUTS).to(tl.int32)
        there, wide = rows < size, cols < inputs
        first, second = _place(layer + FIRST, IS_EVEN), _place(layer + SECOND, IS_EVEN)
        after, apart = _place(layer + HALVED, IS_EVEN), _count(layer + STRIDE, IS_EVEN)
        starts = rows.to(tl.int64) * 2 * apart
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
        before = layer - _LAYER
        stride = _count(before + STRIDE, IS_EVEN)
        where = rows.to(tl.int64)[:, None] * stride + cols[None, :]
        mask = there[:, None] & wide[None, :]
        d = _dropped(d, own, before, rows, cols, step)
        h = tl.load(floats(tl.load(before + OUT)) + where, mask=mask, other=0.0)
        d = _unbent(d, h, tl.load(before + BENT))
        tl.store(floats(tl.load(before + D)) + where, d, mask=mask)
        _store_halves(_place(before + HALVED, IS_EVEN), rows, cols, stride, d, mask)


@triton.jit
def _squares_of_halves(values, starts, apart, there, count, M: tl.constexpr, K: tl.constexpr):
    """Return the squared norms of rows, float64."""
    found = tl.zeros((M, K), tl.float64)
    for k in range(0, count, K):
        ks = k + tl.arange(0, K)
        mask = there[:, None] & (ks < count)[None, :]
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
def _factors(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, first, _, row, _ = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    low = row * M
    if low < size:
        rows = low + tl.arange(0, M)
        there, depth = rows < size, tl.load(own + LAYERS).to(tl.int32)
        total, largest = tl.zeros((M,), tl.float64), tl.zeros((M,), tl.float64)
        for place in range(0, depth):
            layer = first + place * _LAYER
            if tl.load(layer + TRAINED) != 0:
                x, starts, apart = _given(own, layer, place, step, rows, there, IS_EVEN)
                inputs = tl.load(layer + INPUTS).to(tl.int32)
                of_inputs = _squares_of_halves(x, starts, apart, there, inputs, M, K)
                d, starts = floats(tl.load(layer + D)), rows.to(tl.int64) * tl.load(layer + STRIDE)
                outputs = tl.load(layer + OUTPUTS).to(tl.int32)
                of_outputs = _squares(d, starts, there, outputs, M, K)
                plus = (tl.load(layer + BIASES) >= 0).to(tl.float64)
                total += (of_inputs + plus) * of_outputs
                largest = tl.maximum(largest, tl.maximum(of_inputs, of_outputs))
        size_of = tl.sqrt(total) * double(own + SLACK) + double(own + PLUS)
        factors = tl.minimum(double(own + TOP) / size_of, double(own + MOST))
        slots = _slots(own, step, rows, there)
        valid = tl.load(own + VALID).to(tl.pointer_type(tl.int8))
        use = (tl.load(valid + slots, mask=there, other=0) != 0) & (total <= _LARGEST)
        use = use & (largest <= _LARGEST)
        if tl.load(own + NUMBERS) == 0:
            outputs = tl.load(first + (depth - 1) * _LAYER + OUTPUTS)
            y = tl.load(longs(tl.load(own + Y)) + slots, mask=there, other=-1)
            use = use & (y >= 0) & (y < outputs)  # a class that is none has no share, either
            shares = tl.load(own + SHARES)
            if shares != 0:
                factors *= tl.load(floats(shares) + y, mask=use, other=0.0).to(tl.float64)
        factors = tl.where(use, factors, 0.0).to(tl.float32)
        use = factors != 0.0
        tl.store(floats(tl.load(own + FACTORS)) + rows, factors, mask=there)
        for place in range(0, depth):
            layer = first + place * _LAYER
            if tl.load(layer + TRAINED) != 0:
                d, stride = floats(tl.load(layer + D)), tl.load(layer + STRIDE).to(tl.int32)
                halved = _place(layer + HALVED, IS_EVEN)
                for k in range(0, stride, K):
                    ks = k + tl.arange(0, K)
                    where = rows.to(tl.int64)[:, None] * stride + ks[None, :]
                    mask = there[:, None] & (ks < stride)[None, :]
                    each = tl.load(d + where, mask=mask & use[:, None], other=0.0)
                    _store_halves(halved, rows, ks, stride, each * factors[:, None], mask)


@triton.jit
def _sums(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    own, layer, place, row, column = _asked(work, trainings, layers, WIDE, MANY)
    step, size = _batch(own, at)
    outs = row * M + tl.arange(0, M)
    high = outs < tl.load(layer + OUTPUTS)
    halved, stride = _place(layer + HALVED, IS_EVEN), _count(layer + STRIDE, IS_EVEN)
    sums = floats(tl.load(own + SUMS))
    if column < 0:
        total = tl.zeros((K, M), tl.float32)
        for low in range(0, size, K):
            rows = low + tl.arange(0, K)
            where = rows.to(tl.int64)[:, None] * 2 * stride + outs[None, :]
            mask = (rows < size)[:, None] & (outs < stride)[None, :]
            total += tl.load(halved + where, mask=mask, other=0.0).to(tl.float32)
            total += tl.load(halved + where + stride, mask=mask, other=0.0).to(tl.float32)
        tl.store(sums + tl.load(layer + BIASES) + outs, tl.sum(total, 0), mask=high)
    else:
        ins, inputs = column * N + tl.arange(0, N), _count(layer + INPUTS, IS_EVEN)
        wide = ins < inputs
        factors = floats(tl.load(own + FACTORS))
        found = tl.zeros((M, N), tl.float32)
        for low in range(0, size, K):
            rows = low + tl.arange(0, K)
            there = rows < size
            use = tl.load(factors + rows, mask=there, other=0.0) != 0.0  # others may be no number
            x, starts, apart = _given(own, layer, place, step, rows, there, IS_EVEN)
            where = halved + rows.to(tl.int64)[:, None] * 2 * stride + outs[None, :]
            mask = there[:, None] & (outs < stride)[None, :]
            a1 = tl.load(where, mask=mask, other=0.0)
            a2 = tl.load(where + stride, mask=mask, other=0.0)
            where, mask = x + starts[:, None] + ins[None, :], use[:, None] & wide[None, :]
            b1 = tl.load(where, mask=mask, other=0.0)
            b2 = tl.load(where + apart, mask=mask, other=0.0)
            found = _product(tl.trans(a1), tl.trans(a2), b1, b2, found)
        where = outs.to(tl.int64)[:, None] * inputs + ins[None, :]
        sums += tl.load(layer + PLACE)
        tl.store(sums + where, found, mask=high[:, None] & wide[None, :])


def run(name: str, work: Any, *tables: Any, **sizes: Any) -> None:
    """Call a kernel for a list of work, (programs, 4): training, layer, a tile's two places."""
    if len(work):
        globals()[f"_{name}"][(len(work),)](work, *tables, **sizes)
