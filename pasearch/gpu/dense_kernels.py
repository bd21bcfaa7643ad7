"""Triton kernels for training steps of chains of linear layers, for many trainings at once.

Each kernel, and the work of one of its GPU programs:

    first            h = phi(x W^T + b), with dropout, of the first layer; if it is
                     the last layer, the gradient of the loss                        one tile
    forward          the same, of another layer                                      one tile
    backward         d_(l-1) = (d_l W_l) * phi'(h_(l-1)), with dropout               one tile
    factors          c_i = min(most, top / (||g_i|| slack + plus)), 0 for a null record;
                     c * d; and records are copied to consecutive rows for `sums`    one record
    sums             (c * d)^T x, and the sums of c * d, of all layers               one tile

A program reads its training, layer and tile from a list of work. So one call serves many trainings,
and the result of one training does not depend on the others. Rows beyond the batch are skipped. The
formulas are those of `training.dense`; norms are summed in float64. A null record, or one that is
not finite, has c * d = 0. Its inputs are overwritten by 0, because 0 times NaN would be NaN.

Products use bfloat16 halves (module `dense_steps`): a = a1 + a2 + rest, and a b is computed as
a1 b1 + a1 b2 + a2 b1. Each row holds all high halves, then all low halves.

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
    DOUBTS_ADDRESS,
    INPUTS_ADDRESS,
    INPUTS_PER_STEP,
    RELEASE_FIELDS,
    SUMS_ADDRESS,
    as_float_address,
    as_int_address,
    as_long_address,
    draw_uniforms,
    load_double,
    load_float_address,
    split_halves,
)

(
    RECORDS_ADDRESS,  # records as halves
    TARGETS_ADDRESS,  # targets
    VALID_ADDRESS,  # False for null records
    INDICES_ADDRESS,  # record indices of each step
    BATCH_SIZES_ADDRESS,  # number of records of each step
    SQUARED_NORMS_ADDRESS,  # squared norms of records, float64
    ROWS_PER_STEP,  # rows of a step's indices
    LAYER_COUNT,  # number of layers
    CLASS_WEIGHTS_ADDRESS,  # class weights, or 0
    IS_REGRESSION,  # whether targets are numbers
    CLIP_NUMERATOR,  # clipping: top, float64
    CLIP_OFFSET,  # clipping: plus, float64
    NORM_SLACK,  # clipping: slack, float64
    MAX_FACTOR,  # clipping: most, float64
) = (tl.constexpr(RELEASE_FIELDS + k) for k in range(14))  # indices in a training's row, int64

TRAINING_FIELDS = RELEASE_FIELDS + 14
"""Number of int64 fields of a training's row."""

(
    HIGH_WEIGHTS_ADDRESS,  # high halves of the weights
    LOW_WEIGHTS_ADDRESS,  # low halves of the weights
    BIAS_ADDRESS,  # bias, or 0
    INPUT_COUNT,  # number of inputs
    OUTPUT_COUNT,  # number of outputs
    OUTPUT_ADDRESS,  # outputs, infinite if dropped
    DROPPED_OUTPUT_ADDRESS,  # halves of the outputs with dropout
    GRADIENT_ADDRESS,  # gradient of the outputs
    GRADIENT_HALVES_ADDRESS,  # halves of that gradient
    ACTIVATION_CODE,  # code of phi
    IS_TRAINED,  # whether the layer is trained
    WEIGHT_SUM_INDEX,  # index of the weights in the flat sum
    BIAS_SUM_INDEX,  # index of the bias in the flat sum, or -1
    DROP_THRESHOLD,  # smallest kept uniform number in units of 2^-24; 0 keeps all
    KEEP_SCALE,  # factor of kept outputs, float64
    MASK_KEY_INDEX,  # index of the mask key in a step's inputs
    ROW_STRIDE,  # numbers from one output row to the next, padded with zeros
    IS_ALIGNED,  # whether rows of the weights' halves begin at multiples of `ALIGNMENT`
) = (tl.constexpr(k) for k in range(18))  # indices in a layer's row, int64

LAYER_FIELDS = 18
"""Number of int64 fields of a layer's row. The first row describes the copied records of the batch:
address of the halves, and stride."""

ALIGNMENT = 8
"""Number of halves that are read at once if rows begin at multiples of it."""

FACTOR_RECORDS = 1  # number of records per program of `factors`
FACTOR_COLUMNS = 1024  # number of values of a record that a program of `factors` reads at once

SUM_BLOCK_RECORDS = 32
"""Number of records of a block, whose gradients are summed in float32; blocks are added in float64.
It is half of the CPU's block (`record_sums`): products of halves add three terms per record, and
matrix units may truncate instead of rounding.
"""

MAX_SQUARED_NORM = float(np.finfo(np.float32).max)
"""Maximum squared norm; a record with a larger one adds 0. The same as in the CPU kernels."""

_MAX_SQUARED_NORM = tl.constexpr(MAX_SQUARED_NORM)
_LAYER_FIELDS = tl.constexpr(LAYER_FIELDS)
_MASK_UNIT = tl.constexpr(2.0**-24)
_TANH_CODE = tl.constexpr(1)
_RELU_CODE = tl.constexpr(2)
_SIGMOID_CODE = tl.constexpr(3)


@triton.jit
def _activate(z, code):
    """Compute phi(z): tanh, ReLU, sigmoid or the identity."""
    if code == _TANH_CODE:
        small = tl.exp(-2.0 * tl.abs(z))
        size = (1.0 - small) / (1.0 + small)
        z = tl.where(z < 0.0, -size, size)
    elif code == _RELU_CODE:
        z = tl.where(z < 0.0, 0.0, z)  # NaN stays NaN
    elif code == _SIGMOID_CODE:
        z = 1.0 / (1.0 + tl.exp(-z))
    return z


@triton.jit
def _activation_gradient(d, h, code):
    """Compute d phi'(z) from h = phi(z)."""
    if code == _TANH_CODE:
        d = d * (1.0 - h * h)
    elif code == _RELU_CODE:
        d = tl.where(h > 0.0, d, 0.0)
    elif code == _SIGMOID_CODE:
        d = d * h * (1.0 - h)
    return d


@triton.jit
def _draw_keep_mask(own, layer, rows, cols, step):
    """Draw the dropout mask of a layer's outputs: True where outputs are kept."""
    kept = (rows[:, None] >= 0) & (cols[None, :] >= 0)
    least = tl.load(layer + DROP_THRESHOLD)
    if least > 0:
        given = as_long_address(tl.load(own + INPUTS_ADDRESS)) + step * tl.load(
            own + INPUTS_PER_STEP
        )
        places = rows[:, None] * _load_count(layer + OUTPUT_COUNT, False) + cols[None, :]
        drawn = draw_uniforms(
            tl.load(given + tl.load(layer + MASK_KEY_INDEX)), places, step, step * 0
        )
        kept = drawn >= least.to(tl.float32) * _MASK_UNIT
    return kept


@triton.jit
def _load_count(at, IS_EVEN: tl.constexpr):
    """Load an integer; IS_EVEN states that it is a multiple of 8."""
    found = tl.load(at).to(tl.int32)
    if IS_EVEN:
        found = tl.multiple_of(found, 8)
    return found


@triton.jit
def _load_halves_address(at, IS_EVEN: tl.constexpr):
    """Load the address of halves; IS_EVEN states that it is a multiple of 16."""
    found = tl.load(at).to(tl.pointer_type(tl.bfloat16))
    if IS_EVEN:
        found = tl.multiple_of(found, 16)
    return found


@triton.jit
def _load_work_item(work, trainings, layers, WIDE: tl.constexpr, MANY: tl.constexpr):
    """Load a program's work: addresses of training and layer, layer index, tile row and column."""
    item = work + 4 * tl.program_id(0)
    training, place = tl.load(item), tl.load(item + 1)
    own, layer = trainings + training * WIDE, layers + (training * MANY + place + 1) * _LAYER_FIELDS
    return own, layer, place, tl.load(item + 2), tl.load(item + 3)


@triton.jit
def _load_step(own, at):
    """Load the index of the step in its block, and the number of records of its batch."""
    step = tl.load(at)
    return step, tl.load(as_int_address(tl.load(own + BATCH_SIZES_ADDRESS)) + step)


@triton.jit
def _load_record_indices(own, step, rows, there):
    """Load the indices of a batch's records, int64; 0 beyond the batch."""
    chosen = as_int_address(tl.load(own + INDICES_ADDRESS)) + step * tl.load(own + ROWS_PER_STEP)
    return tl.load(chosen + rows, mask=there, other=0).to(tl.int64)


@triton.jit
def _locate_records(own, layer, step, rows, there, IS_EVEN: tl.constexpr):
    """Locate the records: base address, start of each row, distance from high to low halves."""
    apart = _load_count(layer + INPUT_COUNT, IS_EVEN)
    return (
        _load_halves_address(own + RECORDS_ADDRESS, IS_EVEN),
        _load_record_indices(own, step, rows, there) * 2 * apart,
        apart,
    )


@triton.jit
def _locate_layer_inputs(layer, rows):
    """Locate a layer's inputs (the previous layer's outputs), like `_locate_records`."""
    apart = _load_count(layer - _LAYER_FIELDS + ROW_STRIDE, True)
    return (
        _load_halves_address(layer - _LAYER_FIELDS + DROPPED_OUTPUT_ADDRESS, True),
        rows * 2 * apart,
        apart,
    )


_IS_COMPILED = tl.constexpr(isinstance(_load_record_indices, triton.runtime.JITFunction))
"""Whether kernels are compiled; Triton's interpreter can multiply only float32 matrices."""


@triton.jit
def _dot(a, b, found):
    """Compute found + a b."""
    if _IS_COMPILED:
        found = tl.dot(a, b, found)
    else:
        found = tl.dot(a.to(tl.float32), b.to(tl.float32), found)
    return found


@triton.jit
def _dot_halves(a1, a2, b1, b2, found):
    """Compute found + a b from the halves of a and b, without the product of low halves."""
    return _dot(a1, b1, _dot(a2, b1, _dot(a1, b2, found)))


@triton.jit
def _store_halves(at, rows, cols, stride, values, mask):
    """Store float32 values as halves."""
    first, second = split_halves(values)
    where = rows[:, None] * 2 * stride + cols[None, :]
    tl.store(at + where, first, mask=mask)
    tl.store(at + where + stride, second, mask=mask)


@triton.jit
def _linear_forward(
    x, starts, apart, there, layer, cols, IS_EVEN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Compute x W^T for some rows and outputs."""
    inputs = _load_count(layer + INPUT_COUNT, IS_EVEN)
    wide = cols < _load_count(layer + OUTPUT_COUNT, False)
    first = _load_halves_address(layer + HIGH_WEIGHTS_ADDRESS, IS_EVEN)
    second = _load_halves_address(layer + LOW_WEIGHTS_ADDRESS, IS_EVEN)
    z = tl.zeros((M, N), tl.float32)
    for k in range(0, inputs, K):
        ks = k + tl.arange(0, K)
        of_rows, mask = x + starts[:, None] + ks[None, :], there[:, None] & (ks < apart)[None, :]
        a1 = tl.load(of_rows, mask=mask, other=0.0)
        a2 = tl.load(of_rows + apart, mask=mask, other=0.0)
        where, mask = cols[:, None] * inputs + ks[None, :], wide[:, None] & (ks < inputs)[None, :]
        w1 = tl.load(first + where, mask=mask, other=0.0)
        w2 = tl.load(second + where, mask=mask, other=0.0)
        z = _dot_halves(a1, a2, tl.trans(w1), tl.trans(w2), z)
    return z


@triton.jit
def _store_outputs(own, layer, place, step, rows, cols, there, z):
    """Store a layer's outputs; for the last layer, the gradient of the loss instead."""
    wide = cols < _load_count(layer + OUTPUT_COUNT, False)
    stride = _load_count(layer + ROW_STRIDE, True)
    bias = tl.load(layer + BIAS_ADDRESS)
    if bias != 0:
        z += tl.load(as_float_address(bias) + cols, mask=wide, other=0.0)[None, :]
    where = rows[:, None] * stride + cols[None, :]
    mask = there[:, None] & wide[None, :]
    if place == tl.load(own + LAYER_COUNT) - 1:
        slots = _load_record_indices(own, step, rows, there)
        if tl.load(own + IS_REGRESSION) != 0:
            number = tl.load(
                as_float_address(tl.load(own + TARGETS_ADDRESS)) + slots, mask=there, other=0.0
            )
            d = z - number[:, None]
        else:
            true = tl.load(
                as_long_address(tl.load(own + TARGETS_ADDRESS)) + slots, mask=there, other=0
            )
            z = tl.where(wide[None, :], z, -float("inf"))
            e = tl.exp(z - tl.max(z, 1)[:, None])
            d = e / tl.sum(e, 1)[:, None] - (cols[None, :] == true[:, None]).to(tl.float32)
        tl.store(as_float_address(tl.load(layer + GRADIENT_ADDRESS)) + where, d, mask=mask)
        _store_halves(
            _load_halves_address(layer + GRADIENT_HALVES_ADDRESS, True), rows, cols, stride, d, mask
        )
    else:
        h = _activate(z, tl.load(layer + ACTIVATION_CODE))
        kept = _draw_keep_mask(own, layer, rows, cols, step)
        tl.store(
            as_float_address(tl.load(layer + OUTPUT_ADDRESS)) + where,
            tl.where(kept, h, float("inf")),
            mask=mask,
        )
        h = tl.where(kept, h * load_double(layer + KEEP_SCALE).to(tl.float32), 0.0)
        _store_halves(
            _load_halves_address(layer + DROPPED_OUTPUT_ADDRESS, True), rows, cols, stride, h, mask
        )


@triton.jit
def _forward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    OF_RECORDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of a layer's outputs; OF_RECORDS: its inputs are the records."""
    own, layer, place, row, column = _load_work_item(work, trainings, layers, WIDE, MANY)
    step, size = _load_step(own, at)
    if row * M < size:
        rows, cols = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
        there = rows < size
        if OF_RECORDS:
            x, starts, apart = _locate_records(own, layer, step, rows, there, IS_EVEN)
            z = _linear_forward(x, starts, apart, there, layer, cols, IS_EVEN, M, N, K)
        else:
            x, starts, apart = _locate_layer_inputs(layer, rows)
            if tl.load(layer + IS_ALIGNED) != 0:
                z = _linear_forward(x, starts, apart, there, layer, cols, True, M, N, K)
            else:
                z = _linear_forward(x, starts, apart, there, layer, cols, False, M, N, K)
        _store_outputs(own, layer, place, step, rows, cols, there, z)


@triton.jit
def _linear_backward(
    layer, rows, there, cols, IS_EVEN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Compute d W for some rows and inputs."""
    inputs = _load_count(layer + INPUT_COUNT, IS_EVEN)
    outputs = _load_count(layer + OUTPUT_COUNT, False)
    first = _load_halves_address(layer + HIGH_WEIGHTS_ADDRESS, IS_EVEN)
    second = _load_halves_address(layer + LOW_WEIGHTS_ADDRESS, IS_EVEN)
    after = _load_halves_address(layer + GRADIENT_HALVES_ADDRESS, True)
    apart = _load_count(layer + ROW_STRIDE, True)
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
        d = _dot_halves(a1, a2, w1, w2, d)
    return d


@triton.jit
def _backward(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the gradient with respect to the previous layer's outputs."""
    own, layer, _, row, column = _load_work_item(work, trainings, layers, WIDE, MANY)
    _, size = _load_step(own, at)
    if row * M < size:
        rows, cols = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
        there = rows < size
        if tl.load(layer + IS_ALIGNED) != 0:
            d = _linear_backward(layer, rows, there, cols, True, M, N, K)
        else:
            d = _linear_backward(layer, rows, there, cols, False, M, N, K)
        before = layer - _LAYER_FIELDS
        stride = _load_count(before + ROW_STRIDE, True)
        where = rows[:, None] * stride + cols[None, :]
        mask = there[:, None] & (cols < _load_count(layer + INPUT_COUNT, False))[None, :]
        h = tl.load(
            as_float_address(tl.load(before + OUTPUT_ADDRESS)) + where, mask=mask, other=0.0
        )
        d = _activation_gradient(
            d * load_double(before + KEEP_SCALE).to(tl.float32),
            h,
            tl.load(before + ACTIVATION_CODE),
        )
        d = tl.where(h < float("inf"), d, 0.0)
        tl.store(as_float_address(tl.load(before + GRADIENT_ADDRESS)) + where, d, mask=mask)
        _store_halves(
            _load_halves_address(before + GRADIENT_HALVES_ADDRESS, True),
            rows,
            cols,
            stride,
            d,
            mask,
        )


@triton.jit
def _squared_norms_of_halves(values, starts, apart, there, M: tl.constexpr, K: tl.constexpr):
    """Compute the squared norms of rows of halves, float64."""
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
def _squared_norms(values, starts, there, count, M: tl.constexpr, K: tl.constexpr):
    """Compute the squared norms of float32 rows, float64."""
    found = tl.zeros((M, K), tl.float64)
    for k in range(0, count, K):
        ks = k + tl.arange(0, K)
        mask = there[:, None] & (ks < count)[None, :]
        each = tl.load(values + starts[:, None] + ks[None, :], mask=mask, other=0.0).to(tl.float64)
        found += each * each
    return tl.sum(found, 1)


@triton.jit
def _clip_factors(own, first, depth, slots, there, rows, M: tl.constexpr, K: tl.constexpr):
    """Compute the clipping factors of some records' gradients."""
    of_records = tl.load(own + SQUARED_NORMS_ADDRESS).to(tl.pointer_type(tl.float64))
    of_records = tl.load(of_records + slots, mask=there, other=0.0)
    total, largest = tl.zeros((M,), tl.float64), tl.zeros((M,), tl.float64)
    for place in range(0, depth):
        layer = first + place * _LAYER_FIELDS
        if tl.load(layer + IS_TRAINED) != 0:
            of_inputs = of_records
            if place > 0:
                x, starts, apart = _locate_layer_inputs(layer, rows)
                of_inputs = _squared_norms_of_halves(x, starts, apart, there, M, K)
            d = as_float_address(tl.load(layer + GRADIENT_ADDRESS))
            stride = _load_count(layer + ROW_STRIDE, True)
            starts = rows * stride
            of_outputs = _squared_norms(d, starts, there, stride, M, K)
            plus = (tl.load(layer + BIAS_SUM_INDEX) >= 0).to(tl.float64)
            total += (of_inputs + plus) * of_outputs
            largest = tl.maximum(largest, tl.maximum(of_inputs, of_outputs))
    size_of = tl.sqrt(total) * load_double(own + NORM_SLACK) + load_double(own + CLIP_OFFSET)
    factors = tl.minimum(load_double(own + CLIP_NUMERATOR) / size_of, load_double(own + MAX_FACTOR))
    valid = tl.load(own + VALID_ADDRESS).to(tl.pointer_type(tl.int8))
    use = (tl.load(valid + slots, mask=there, other=0) != 0) & (total <= _MAX_SQUARED_NORM)
    use = use & (largest <= _MAX_SQUARED_NORM)
    use = use & (of_records < float("inf"))  # also if the first layer is frozen
    if tl.load(own + IS_REGRESSION) == 0:
        outputs = tl.load(first + (depth - 1) * _LAYER_FIELDS + OUTPUT_COUNT)
        y = tl.load(as_long_address(tl.load(own + TARGETS_ADDRESS)) + slots, mask=there, other=-1)
        use = use & (y >= 0) & (y < outputs)  # an invalid class has no class weight
        shares = tl.load(own + CLASS_WEIGHTS_ADDRESS)
        if shares != 0:
            factors *= tl.load(as_float_address(shares) + y, mask=use, other=0.0).to(tl.float64)
    return tl.where(use, factors, 0.0).to(tl.float32)


@triton.jit
def _factors(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Scale the gradients of some records by their clipping factors, and copy the records."""
    own, first, _, row, _ = _load_work_item(work, trainings, layers, WIDE, MANY)
    step, size = _load_step(own, at)
    if row == 0:  # the last step's doubts have been settled
        tl.store(as_long_address(tl.load(own + DOUBTS_ADDRESS)), (row * 0).to(tl.int64))
    if row * M < size:
        rows = row * M + tl.arange(0, M)
        there, depth = rows < size, tl.load(own + LAYER_COUNT).to(tl.int32)
        slots = _load_record_indices(own, step, rows, there)
        factors = _clip_factors(own, first, depth, slots, there, rows, M, K)
        use = factors != 0.0
        if tl.load(first + IS_TRAINED) != 0:
            x, starts, apart = _locate_records(own, first, step, rows, there, IS_EVEN)
            copied = _load_halves_address(first - _LAYER_FIELDS + DROPPED_OUTPUT_ADDRESS, True)
            stride = _load_count(first - _LAYER_FIELDS + ROW_STRIDE, True)
            for k in range(0, apart, K):
                ks = k + tl.arange(0, K)
                where = x + starts[:, None] + ks[None, :]
                to = copied + rows[:, None] * 2 * stride + ks[None, :]
                mask = there[:, None] & (ks < apart)[None, :]
                used = mask & use[:, None]
                tl.store(to, tl.load(where, mask=used, other=0.0), mask=mask)
                tl.store(to + stride, tl.load(where + apart, mask=used, other=0.0), mask=mask)
        clears = tl.sum((there & (use == 0)).to(tl.int32)) > 0
        for place in range(0, depth):
            layer = first + place * _LAYER_FIELDS
            stride = _load_count(layer + ROW_STRIDE, True)
            d = as_float_address(tl.load(layer + GRADIENT_ADDRESS))
            halved = _load_halves_address(layer + GRADIENT_HALVES_ADDRESS, True)
            goes = _load_halves_address(layer + DROPPED_OUTPUT_ADDRESS, True)
            trained = tl.load(layer + IS_TRAINED) != 0
            for k in range(0, stride, K):
                ks = k + tl.arange(0, K)
                mask = there[:, None] & (ks < stride)[None, :]
                if trained:
                    where = rows[:, None] * stride + ks[None, :]
                    each = tl.load(d + where, mask=mask & use[:, None], other=0.0)
                    _store_halves(halved, rows, ks, stride, each * factors[:, None], mask)
                if clears:  # 0 times NaN would be NaN
                    mask = mask & (use == 0)[:, None]
                    _store_halves(goes, rows, ks, stride, tl.zeros((M, K), tl.float32), mask)


@triton.jit
def _sum_products(layer, size, outs, ins, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Compute a tile of (c * d)^T x: blocks of K records in float32, the total in float64."""
    halved = _load_halves_address(layer + GRADIENT_HALVES_ADDRESS, True)
    stride = _load_count(layer + ROW_STRIDE, True)
    total = tl.zeros((M, N), tl.float64)
    for row in range(0, size, K):
        rows = row + tl.arange(0, K)
        there = rows < size
        x, starts, apart = _locate_layer_inputs(layer, rows)
        where = halved + rows[:, None] * 2 * stride + outs[None, :]
        mask = there[:, None] & (outs < stride)[None, :]
        a1 = tl.load(where, mask=mask, other=0.0)
        a2 = tl.load(where + stride, mask=mask, other=0.0)
        where, mask = x + starts[:, None] + ins[None, :], there[:, None] & (ins < apart)[None, :]
        b1 = tl.load(where, mask=mask, other=0.0)
        b2 = tl.load(where + apart, mask=mask, other=0.0)
        found = _dot_halves(tl.trans(a1), tl.trans(a2), b1, b2, tl.zeros((M, N), tl.float32))
        total += found.to(tl.float64)
    return total


@triton.jit
def _store_sum(own, layer, outs, ins, found, IS_EVEN: tl.constexpr):
    """Store a tile of a layer's sum in the flat sum."""
    inputs = _load_count(layer + INPUT_COUNT, IS_EVEN)
    place = _load_count(layer + WEIGHT_SUM_INDEX, IS_EVEN)
    where = outs[:, None] * inputs + ins[None, :]
    mask = (outs < _load_count(layer + OUTPUT_COUNT, False))[:, None] & (ins < inputs)[None, :]
    tl.store(load_float_address(own + SUMS_ADDRESS) + place + where, found, mask=mask)


@triton.jit
def _sums(
    work, trainings, layers, at, WIDE: tl.constexpr, MANY: tl.constexpr, IS_EVEN: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of a layer's sum of gradients; column -1: of its bias."""
    own, layer, _, row, column = _load_work_item(work, trainings, layers, WIDE, MANY)
    _, size = _load_step(own, at)
    outs, ins = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    if column < 0:
        halved = _load_halves_address(layer + GRADIENT_HALVES_ADDRESS, True)
        stride = _load_count(layer + ROW_STRIDE, True)
        total = tl.zeros((K, M), tl.float64)
        for low in range(0, size, K):
            rows = low + tl.arange(0, K)
            where = rows[:, None] * 2 * stride + outs[None, :]
            mask = (rows < size)[:, None] & (outs < stride)[None, :]
            total += tl.load(halved + where, mask=mask, other=0.0).to(tl.float64)
            total += tl.load(halved + where + stride, mask=mask, other=0.0).to(tl.float64)
        where = load_float_address(own + SUMS_ADDRESS) + tl.load(layer + BIAS_SUM_INDEX) + outs
        tl.store(
            where,
            tl.sum(total, 0).to(tl.float32),
            mask=outs < _load_count(layer + OUTPUT_COUNT, False),
        )
    else:
        found = _sum_products(layer, size, outs, ins, M, N, K).to(tl.float32)
        if tl.load(layer + IS_ALIGNED) != 0:
            _store_sum(own, layer, outs, ins, found, True)
        else:
            _store_sum(own, layer, outs, ins, found, False)


def run_kernel(name: str, work: Any, *tables: Any, **sizes: Any) -> None:
    """Call a kernel for a list of work.

    Args:
        name: "first", "forward", "backward", "factors" or "sums".
        work: Training, layer, row and column of the tile of each program, int32, (programs, 4).
        tables: Table of trainings, table of layers, index of the step.
        sizes: Compile-time constants of the kernel.
    """
    if name in ("first", "forward"):
        name, sizes = "forward", sizes | {"OF_RECORDS": name == "first"}
    if len(work):
        globals()[f"_{name}"][(len(work),)](work, *tables, **sizes)
