"""Compiled kernel of the linear backend: sum of the clipped gradients of a linear model.

For a record x with label y, logits z = W x + b and d = softmax(z) - onehot(y), or d = z - y for a
numeric target, the gradient is (d x^T, d) with the squared norm ||d||^2 (||x||^2 + 1). Records are
not copied.

Guarantee: a null record, or one with a norm that is not finite, adds exactly 0. The vector that a
record adds does not depend on other records. At most `BLOCK_RECORDS` records are added in float32,
and the sums of blocks in float64.

Proof: docs/guarantees/dp-sgd.md ("The linear backend"), docs/guarantees/floating-point.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pasearch.runs.compiled import compile_loop
from pasearch.training.record_sums import BLOCK_RECORDS

# Decorator of functions in which sums may be reordered; NaN and infinity keep their meaning.
reordered_loop: Any = compile_loop(fastmath={"reassoc", "contract", "nsz", "arcp"})
exact_loop: Any = compile_loop(fastmath=False)  # decorator of functions with IEEE arithmetic

# Indices are unsigned, so that the compiled code does not test for negative ones.
unsigned_int = np.uint64
UINT_0, UINT_1, UINT_2, UINT_3, UINT_4 = (unsigned_int(each) for each in range(5))
FLOAT_ZERO = np.float32(0.0)
STRIP_NUMBERS = unsigned_int(512)
"""Number of inputs of a record that are processed at once, so that they stay in the cache."""
MAX_SQUARE = float(np.finfo(np.float32).max)
"""Maximum squared norm of a gradient; a record with a larger one adds 0. With it, a clipping factor
is a normal float32.
"""
UNDERFLOW = 2.0 * float(np.finfo(np.float32).tiny)
"""Maximum error of the square of one number by underflow."""


@reordered_loop
def _dot_two_rows(w, first, second, x, p, q, r, s, low, high):
    """Compute the products of two rows of weights with four records, for inputs `low` to `high`."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = FLOAT_ZERO
    for k in range(low, high):
        a, b = w[first + k], w[second + k]
        x0, x1, x2, x3 = x[p + k], x[q + k], x[r + k], x[s + k]
        a0 += a * x0
        a1 += a * x1
        a2 += a * x2
        a3 += a * x3
        b0 += b * x0
        b1 += b * x1
        b2 += b * x2
        b3 += b * x3
    return (a0, a1, a2, a3), (b0, b1, b2, b3)


@reordered_loop
def _multiply(x, rows, w, inputs, outputs, z, low):
    """Write W x of four records to the rows `low` to `low + 3` of z."""
    to = low * outputs
    for k in range(to, to + UINT_4 * outputs):
        z[k] = FLOAT_ZERO
    for left in range(UINT_0, inputs, STRIP_NUMBERS):
        right = min(left + STRIP_NUMBERS, inputs)
        for o in range(UINT_0, outputs, UINT_2):
            other = min(
                o + UINT_1, outputs - UINT_1
            )  # the last output takes the place of a missing one
            first, second = _dot_two_rows(
                w, o * inputs, other * inputs, x, rows[0] * inputs, rows[1] * inputs,
                rows[2] * inputs, rows[3] * inputs, left, right,
            )  # fmt: skip
            for row in range(4):
                at = to + unsigned_int(row) * outputs
                z[at + o] += first[row]
                if other > o:
                    z[at + other] += second[row]


@reordered_loop
def _add_outer_products(sums, inputs, outputs, x, rows, d, low):
    """Add d x^T of eight records to a float32 sum; d are the rows `low` to `low + 7`."""
    i0, i1, i2, i3 = rows[0] * inputs, rows[1] * inputs, rows[2] * inputs, rows[3] * inputs
    j0, j1, j2, j3 = rows[4] * inputs, rows[5] * inputs, rows[6] * inputs, rows[7] * inputs
    to, later = low * outputs, (low + UINT_4) * outputs
    for left in range(UINT_0, inputs, STRIP_NUMBERS):
        right = min(left + STRIP_NUMBERS, inputs)
        for o in range(UINT_0, outputs):
            line, at, on = o * inputs, to + o, later + o
            d0, d1 = d[at], d[at + outputs]
            d2, d3 = d[at + UINT_2 * outputs], d[at + UINT_3 * outputs]
            e0, e1 = d[on], d[on + outputs]
            e2, e3 = d[on + UINT_2 * outputs], d[on + UINT_3 * outputs]
            for k in range(left, right):
                first = (d0 * x[i0 + k] + d1 * x[i1 + k]) + (d2 * x[i2 + k] + d3 * x[i3 + k])
                second = (e0 * x[j0 + k] + e1 * x[j1 + k]) + (e2 * x[j2 + k] + e3 * x[j3 + k])
                sums[line + k] += first + second


@exact_loop
def _squared_norm(d, at, outputs):
    """Compute ||d||^2 of a record in float64."""
    total = 0.0
    for k in range(at, at + outputs):
        value = np.float64(d[k])  # numba's `float` of a float32 would be a float32
        total += value * value
    return total


@exact_loop
def _bound_squared_norm(square_x, square_d, inputs, outputs, biased):
    """Compute an upper bound of the squared gradient norm of a record; not finite if a part is not.

    Args:
        square_x: ||x||^2, float64.
        square_d: ||d||^2, float64.
        inputs: Length of x.
        outputs: Length of d.
        biased: Whether the model has a bias.
    """
    lost_x, lost_d = np.float64(inputs) * UNDERFLOW, np.float64(outputs) * UNDERFLOW
    return (square_d + lost_d) * (square_x + lost_x + (1.0 if biased else 0.0))


@exact_loop
def _differentiate_loss(z, at, outputs, y, is_numeric):
    """Replace the logits of a record by the gradient of the loss; NaN if the label is no class."""
    if is_numeric:
        z[at] = z[at] - np.float32(y)
        return
    largest = z[at]
    for k in range(at + UINT_1, at + outputs):
        largest = z[k] if z[k] > largest else largest
    total = 0.0
    for k in range(at, at + outputs):
        z[k] = np.float32(math.exp(np.float64(z[k] - largest)))
        total += np.float64(z[k])
    known = 0 <= y < np.int64(outputs)
    share = np.float32(1.0 / total) if known else np.float32(math.nan)
    for k in range(at, at + outputs):
        z[k] *= share
    if known:
        z[at + unsigned_int(y)] -= np.float32(1.0)


@exact_loop
def add_clipped_gradients(
    x, y, valid, squares, shares, is_numeric, indices, first, apart, weights, shape, terms,
    buffers, totals,
):  # fmt: skip
    """Add the clipped gradients of a thread's part of the batch to its float64 totals.

    Args:
        x: Records, flat, float32, (records * inputs,).
        y: Labels, int64, or numeric targets, float32, (records,).
        valid: Bool, (records,); False for null records.
        squares: ||x||^2 of each record, float32, (records,).
        shares: Weight of each class in [0, 1], float32, (classes,).
        is_numeric: Whether y are numeric targets.
        indices: Indices of the records of the batch, int64.
        first: Index of the first block of this thread.
        apart: Number of threads; a thread processes every `apart`-th block.
        weights: Flat parameters, float32.
        shape: (inputs, outputs, index of the weights, index of the bias or -1), int64.
        terms: (top, plus, slack, most): `ClippingMethod.terms`, with `NORM_SLACK` before the last.
        buffers: Float32 buffers for z and d of a block, (BLOCK_RECORDS * outputs,), and for its
            sum, (inputs * outputs,).
        totals: Float64 totals, (parameters,).
    """
    inputs, outputs = unsigned_int(shape[0]), unsigned_int(shape[1])
    start, bias = shape[2], shape[3]
    top, plus, slack, most = terms
    d, sums = buffers
    w = weights[start : start + shape[0] * shape[1]]
    rows, counts = np.zeros(BLOCK_RECORDS, np.uint64), np.zeros(BLOCK_RECORDS, np.bool_)
    for low in range(first * BLOCK_RECORDS, len(indices), apart * BLOCK_RECORDS):
        count = min(BLOCK_RECORDS, len(indices) - low)
        for row in range(BLOCK_RECORDS):  # missing records are replaced by the last one
            rows[row] = unsigned_int(indices[low + min(row, count - 1)])
        for row in range(0, count, 4):
            _multiply(x, rows[row : row + 4], w, inputs, outputs, d, unsigned_int(row))
        summed = -1  # index of a row whose record is added, so its values are finite
        for row in range(count):
            slot, at = rows[row], unsigned_int(row) * outputs
            for k in range(UINT_0, outputs if bias >= 0 else UINT_0):
                d[at + k] += weights[bias + np.int64(k)]
            _differentiate_loss(d, at, outputs, y[slot], is_numeric)
            square_d = _squared_norm(d, at, outputs)
            square = _bound_squared_norm(
                np.float64(squares[slot]), square_d, inputs, outputs, bias >= 0
            )
            factor = FLOAT_ZERO
            if valid[slot] and square <= MAX_SQUARE:
                factor = np.float32(min(most, top / (math.sqrt(square) * slack + plus)))
                if not is_numeric and 0 <= y[slot] < len(shares):
                    factor *= shares[np.int64(y[slot])]
            for k in range(at, at + outputs):  # no product if the factor is 0: 0 * NaN is NaN
                d[k] = d[k] * factor if factor > FLOAT_ZERO else FLOAT_ZERO
            counts[row] = factor > FLOAT_ZERO
            summed = row if counts[row] else summed
        if summed < 0:
            continue
        for row in range(BLOCK_RECORDS):  # replace records that add 0, because they may be NaN
            if row >= count or not counts[row]:
                rows[row] = rows[summed]
        d[count * shape[1] :] = FLOAT_ZERO
        sums[:] = FLOAT_ZERO
        for row in range(0, count, 8):
            _add_outer_products(sums, inputs, outputs, x, rows[row : row + 8], d, unsigned_int(row))
        for k in range(len(sums)):
            totals[start + k] += np.float64(sums[k])
        for k in range(shape[1] if bias >= 0 else 0):
            total = FLOAT_ZERO
            for row in range(count):
                total += d[row * shape[1] + k]
            totals[bias + k] += np.float64(total)
