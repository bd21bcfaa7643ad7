"""Steps of chains of linear layers on a GPU, of many trainings at once, in kernels for Triton.

    forward    h = phi(x W^T + b), dropped; of a last layer the loss's gradient     a layer's tiles
    backward   d_(l-1) = (d_l W_l) * phi'(h_(l-1)), dropped                          a layer's tiles
    factors    c_i = min(most, top / (||g_i|| slack + plus)), 0 of a null record     some records
    sums       (c * d)^T x, of all layers                                            their tiles

A program takes its training, layer and tile from a list of work, so one call serves all trainings
of a generation, and what one finds does not depend on the others. Rows behind the last of a batch
are not gone through. The formulas are those of `training.dense`; norms are added up in float64.
What a record that is null, or not finite, would add is not read.

Proof: docs/guarantees/dp-sgd.md ("On a GPU").
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from pasearch.runs.gpu_kernels import double, floats, ints, longs, uniforms

(X, Y, VALID, PLACES, SIZES, FACTORS, ROWS, LAYERS, SHARES, NUMBERS, TOP, PLUS, SLACK, MOST) = (
    tl.constexpr(k) for k in range(8, 22)
)
"""Behind `runs.gpu_kernels.EACH` in a training's row: where records, what is predicted, and whether
they are there lie; the slots of each step, and how many; the factors; rows of a step's slots; how
many layers; classes' shares, or 0; whether numbers are predicted; and the bound, float64."""

WIDTH = 22
"""Int64 of a training's row."""

(WEIGHT, BIAS, INPUTS, OUTPUTS, OUT, DROPPED, D, BENT, TRAINED, PLACE, BIASES, DROPS, TIMES) = (
    tl.constexpr(k) for k in range(13)
)
SEED, STRIDE = tl.constexpr(13), tl.constexpr(14)
"""In a layer's row, int64: where weights and bias (or 0) lie; widths; where what comes out lies,
the same with dropout, and its gradient; phi's code; whether it is trained, and where its sums go in
the flat one (the bias's, or -1); which 2^-24 is the first that is kept, 0 for all; what is kept is
multiplied by (float64); where the key of its masks is given; and how many numbers lie from one row
of what comes out to the next: behind the last output are zeros."""

OF_LAYER = 15

ALIGNED = 4
"""Numbers that are read at once, where all rows begin at a multiple of so many."""

RECORDS, COLUMNS = 4, 128
"""Records of a program of `factors`, and how many of their numbers it reads at once."""

LARGEST = float(np.finfo(np.float32).max)
"""Of a squared norm, as in machine code on a processor."""

_LARGEST = tl.constexpr(LARGEST)
_FIRST, _SECOND, _THIRD = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@triton.jit
def _halves(a):
    """Return the bfloat16 number next to each float32 one, and the one next to what is left.

    By whole numbers: a GPU takes four times as long to round a number that it goes on with.
    """
    bits = a.to(tl.int32, bitcast=True)
    near = ((bits + 0x8000) & -65536).to(tl.float32, bitcast=True)
    return near.to(tl.bfloat16), (a - near).to(tl.bfloat16)


@triton.jit
def _product(a, b, found, EXACT: tl.constexpr):
    """Return found + a b, of float32."""
    if EXACT == "halves":
        a1, a2 = _halves(a)
        b1, b2 = _halves(b)
        found = tl.dot(a1, b2, found)
        found = tl.dot(a2, b1, found)
        found = tl.dot(a1, b1, found)
    else:
        found = tl.dot(a, b, found, input_precision=EXACT)
    return found


@triton.jit
def _bent(z, code):
    """Return phi(z): tanh, ReLU, sigmoid, or z."""
    if code == _FIRST:
        small = tl.exp(-2.0 * tl.abs(z))
        size = (1.0 - small) / (1.0 + small)
        z = tl.where(z < 0.0, -size, size)
    elif code == _SECOND:
        z = tl.where(z > 0.0, z, 0.0)
    elif code == _THIRD:
        z = 1.0 / (1.0 + tl.exp(-z))
    return z


@triton.jit
def _unbent(d, h, code):
    """Return d phi'(z), of h = phi(z)."""
    if code == _FIRST:
        d = d * (1.0 - h * h)
    elif code == _SECOND:
        d = tl.where(h > 0.0, d, 0.0)
    elif code == _THIRD:
        d = d * h * (1.0 - h)
    return d


@triton.jit
def _dropped(values, own, layer, rows, cols, step):
    """Return values of a layer's outputs, some of them 0 and the others larger."""
    least = tl.load(layer + DROPS)
    if least > 0:
        given = longs(tl.load(own)) + step * tl.load(own + 7)
        places = rows[:, None] * tl.load(layer + OUTPUTS) + cols[None, :]
        drawn = uniforms(tl.load(given + tl.load(layer + SEED)), places, step, step * 0)
        kept = drawn >= least.to(tl.float32) * 5.9604644775390625e-08
        values = tl.where(kept, values * double(layer + TIMES).to(tl.float32), 0.0)
    return values


@triton.jit
def _slots(own, step, rows, there):
    """Return the slots of some rows of a step."""
    chosen = longs(tl.load(own + PLACES)) + step * tl.load(own + ROWS)
    return tl.load(chosen + rows, mask=there, other=0)


@triton.jit
def _number(at, EVEN: tl.constexpr):
    """Load a whole number, which is a multiple of 4 where rows are even."""
    found = tl.load(at).to(tl.int32)
    if EVEN:
        found = tl.multiple_of(found, 4)
    return found


@triton.jit
def _values(at, EVEN: tl.constexpr):
    """Load where float32 numbers lie."""
    found = tl.load(at).to(tl.pointer_type(tl.float32))
    if EVEN:
        found = tl.multiple_of(found, 16)
    return found


@triton.jit
def _given(own, layer, at, step, rows, there, EVEN: tl.constexpr):
    """Return where what a layer is given lies, and each row's first number in it."""
    if at == 0:
        x = _values(own + X, EVEN)
        starts = _slots(own, step, rows, there) * _number(layer + INPUTS, EVEN)
    else:
        x = _values(layer - 15 + DROPPED, EVEN)
        starts = rows.to(tl.int64) * _number(layer - 15 + STRIDE, EVEN)
    if EVEN:  # what was chosen is not known to be so
        x, starts = tl.multiple_of(x, 16), tl.multiple_of(starts, 4)
    return x, starts


@triton.jit
def _forward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    item = work + 4 * tl.program_id(0)
    training, place = tl.load(item), tl.load(item + 1)
    own, layer = trainings + training * WIDE, layers + (training * MANY + place) * 15
    step = tl.load(at)
    size = tl.load(ints(tl.load(own + SIZES)) + step)
    first = tl.load(item + 2) * M
    if first < size:
        rows, cols = first + tl.arange(0, M), tl.load(item + 3) * N + tl.arange(0, N)
        inputs = _number(layer + INPUTS, EVEN)
        outputs = tl.load(layer + OUTPUTS).to(tl.int32)
        there, wide = rows < size, cols < outputs
        x, starts = _given(own, layer, place, step, rows, there, EVEN)
        weight = _values(layer + WEIGHT, EVEN)
        z = tl.zeros((M, N), tl.float32)
        for low in range(0, inputs, K):
            ks = low + tl.arange(0, K)
            a = tl.load(
                x + starts[:, None] + ks[None, :], mask=there[:, None] & (ks < inputs)[None, :],
                other=0.0,
            )  # fmt: skip
            w = tl.load(
                weight + cols[:, None] * inputs + ks[None, :],
                mask=wide[:, None] & (ks < inputs)[None, :], other=0.0,
            )  # fmt: skip
            z = _product(a, tl.trans(w), z, EXACT)
        bias = tl.load(layer + BIAS)
        if bias != 0:
            z += tl.load(floats(bias) + cols, mask=wide, other=0.0)[None, :]
        where = rows.to(tl.int64)[:, None] * _number(layer + STRIDE, EVEN) + cols[None, :]
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
        else:
            h = _bent(z, tl.load(layer + BENT))
            out, after = tl.load(layer + OUT), tl.load(layer + DROPPED)
            tl.store(floats(out) + where, h, mask=mask)
            if after != out:
                tl.store(
                    floats(after) + where, _dropped(h, own, layer, rows, cols, step), mask=mask
                )


@triton.jit
def _backward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    item = work + 4 * tl.program_id(0)
    training, place = tl.load(item), tl.load(item + 1)
    own, layer = trainings + training * WIDE, layers + (training * MANY + place) * 15
    step = tl.load(at)
    size = tl.load(ints(tl.load(own + SIZES)) + step)
    first = tl.load(item + 2) * M
    if first < size:
        rows, cols = first + tl.arange(0, M), tl.load(item + 3) * N + tl.arange(0, N)
        inputs = _number(layer + INPUTS, EVEN)
        outputs = tl.load(layer + OUTPUTS).to(tl.int32)
        there, wide = rows < size, cols < inputs
        weight, after = _values(layer + WEIGHT, EVEN), _values(layer + D, EVEN)
        stride = _number(layer + STRIDE, EVEN)
        d = tl.zeros((M, N), tl.float32)
        for low in range(0, outputs, K):
            ks = low + tl.arange(0, K)
            a = tl.load(
                after + rows.to(tl.int64)[:, None] * stride + ks[None, :],
                mask=there[:, None] & (ks < stride)[None, :], other=0.0,
            )  # fmt: skip
            w = tl.load(
                weight + ks[:, None] * inputs + cols[None, :],
                mask=(ks < outputs)[:, None] & wide[None, :], other=0.0,
            )  # fmt: skip
            d = _product(a, w, d, EXACT)
        before = layer - 15
        where = rows.to(tl.int64)[:, None] * _number(before + STRIDE, EVEN) + cols[None, :]
        mask = there[:, None] & wide[None, :]
        d = _dropped(d, own, before, rows, cols, step)
        h = tl.load(floats(tl.load(before + OUT)) + where, mask=mask, other=0.0)
        d = _unbent(d, h, tl.load(before + BENT))
        tl.store(floats(tl.load(before + D)) + where, d, mask=mask)


@triton.jit
def _squares(values, starts, there, count, MANY: tl.constexpr, AT_ONCE: tl.constexpr):
    """Return the squared norms of rows, float64."""
    found = tl.zeros((MANY, AT_ONCE), tl.float64)
    for low in range(0, count, AT_ONCE):
        ks = low + tl.arange(0, AT_ONCE)
        each = tl.load(
            values + starts[:, None] + ks[None, :], mask=there[:, None] & (ks < count)[None, :],
            other=0.0,
        ).to(tl.float64)  # fmt: skip
        found += each * each
    return tl.sum(found, 1)


@triton.jit
def _factors(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, M: tl.constexpr,
    K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    item = work + 4 * tl.program_id(0)
    training = tl.load(item)
    own, step = trainings + training * WIDE, tl.load(at)
    size = tl.load(ints(tl.load(own + SIZES)) + step)
    rows = tl.load(item + 2) * M + tl.arange(0, M)
    if tl.load(item + 2) * M < size:
        there = rows < size
        total = tl.zeros((M,), tl.float64)
        for place in range(0, tl.load(own + LAYERS).to(tl.int32)):
            layer = layers + (training * MANY + place) * 15
            if tl.load(layer + TRAINED) != 0:
                inputs = _number(layer + INPUTS, EVEN)
                outputs = tl.load(layer + OUTPUTS).to(tl.int32)
                x, starts = _given(own, layer, place, step, rows, there, EVEN)
                of_inputs = _squares(x, starts, there, inputs, M, K)
                d, stride = _values(layer + D, EVEN), _number(layer + STRIDE, EVEN)
                of_outputs = _squares(d, rows.to(tl.int64) * stride, there, outputs, M, K)
                plus = (tl.load(layer + BIASES) >= 0).to(tl.float64)
                total += (of_inputs + plus) * of_outputs
        size_of = tl.sqrt(total) * double(own + SLACK) + double(own + PLUS)
        factors = tl.minimum(double(own + TOP) / size_of, double(own + MOST))
        slots = _slots(own, step, rows, there)
        valid = tl.load(own + VALID).to(tl.pointer_type(tl.int8))
        use = (tl.load(valid + slots, mask=there, other=0) != 0) & (total <= _LARGEST)
        shares = tl.load(own + SHARES)
        if shares != 0:
            y = tl.load(longs(tl.load(own + Y)) + slots, mask=there, other=0)
            factors *= tl.load(floats(shares) + y, mask=there, other=0.0).to(tl.float64)
        factors = tl.where(use, factors, 0.0).to(tl.float32)
        tl.store(floats(tl.load(own + FACTORS)) + rows, factors, mask=there)


@triton.jit
def _sums(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EXACT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    item = work + 4 * tl.program_id(0)
    training, place = tl.load(item), tl.load(item + 1)
    own, layer = trainings + training * WIDE, layers + (training * MANY + place) * 15
    step = tl.load(at)
    size = tl.load(ints(tl.load(own + SIZES)) + step)
    outs = tl.load(item + 2) * M + tl.arange(0, M)
    ins = tl.load(item + 3) * N + tl.arange(0, N)
    inputs = _number(layer + INPUTS, EVEN)
    outputs = tl.load(layer + OUTPUTS).to(tl.int32)
    high, wide = outs < outputs, ins < inputs
    d, stride = _values(layer + D, EVEN), _number(layer + STRIDE, EVEN)
    given = floats(tl.load(own + FACTORS))
    total, biased = tl.zeros((M, N), tl.float32), tl.zeros((K, M), tl.float32)
    for low in range(0, size, K):
        rows = low + tl.arange(0, K)
        there = rows < size
        factors = tl.load(given + rows, mask=there, other=0.0)
        use = factors != 0.0  # what is not used may be no number
        x, starts = _given(own, layer, place, step, rows, there, EVEN)
        a = tl.load(
            d + rows.to(tl.int64)[:, None] * stride + outs[None, :],
            mask=use[:, None] & (outs < stride)[None, :], other=0.0,
        ) * factors[:, None]  # fmt: skip
        b = tl.load(
            x + starts[:, None] + ins[None, :], mask=use[:, None] & wide[None, :], other=0.0
        )
        total = _product(tl.trans(a), b, total, EXACT)
        biased += a
    sums = _values(own + 1, EVEN)
    where = outs.to(tl.int64)[:, None] * inputs + ins[None, :]
    tl.store(sums + _number(layer + PLACE, EVEN) + where, total, mask=high[:, None] & wide[None, :])
    biases = tl.load(layer + BIASES)
    if (tl.load(item + 3) == 0) & (biases >= 0):
        tl.store(sums + biases + outs, tl.sum(biased, 0), mask=high)


def exact() -> str:
    """Return how float32 numbers are multiplied: of bfloat16 halves, as in `halves`.

    Interpreted, without a GPU, there are none.
    """
    return "halves" if isinstance(_sums, triton.runtime.JITFunction) else "ieee"


def run(name: str, work: Any, *tables: Any, **sizes: Any) -> None:
    """Call a kernel for a list of work, (programs, 4): training, layer, a tile's two places."""
    if len(work):
        globals()[f"_{name}"][(len(work),)](work, *tables, **sizes)
