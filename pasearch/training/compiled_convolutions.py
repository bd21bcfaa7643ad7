"""The sum of bounded gradients of convolutions, poolings and linear layers, in machine code.

The formulas are those of `kernels` and `dense`, of 16 records at a time, the lanes, which lie side
by side: an image is (channels, height, width, 16), so that all 16 take one instruction.

    P, (taps, positions, 16)    what each tap of a window meets
    out = W P + b               one product for all of them
    G_i = D_i P_i^T             formed for each lane; its norm is that of the record's gradient
    sum = sum over i of c_i G_i

What a linear layer is given, and gives back, is (numbers, 16) and (16, outputs).

Source: Goodfellow 2015 (linear layers), Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from pasearch.runs.compiled import instruction
from pasearch.training import convolutional
from pasearch.training.compiled import LARGEST, factors_of, norm_of_linear, outward, square
from pasearch.training.compiled_activations import (
    FOUR,
    NONE,
    ONE,
    RELU,
    SIGMOID,
    TANH,
    THREE,
    TWO,
    UNIT,
    ZERO,
    activate,
    bend,
    exact,
    fused,
    inlined,
    sigmoid_all,
    single,
    tanh_all,
    unsigned,
)
from pasearch.training.compiled_dropout import bend_all, drop
from pasearch.training.compiled_products import PLAIN, TURNED, multiply
from pasearch.training.convolutional import NAMES, STAGES

LANES = unsigned(convolutional.LANES)

LINEAR, CONVOLUTION, LARGEST_OF, MEAN_OF = (unsigned(each) for each in STAGES.values())
(
    KIND, CHANNELS, HEIGHT, WIDTH, OUTPUTS, HIGH, WIDE, DOWN, RIGHT, DOWNWARD, RIGHTWARD, ABOVE,
    BESIDE, BENT, TRAINED, WEIGHT, BIASED, BIAS, GIVEN, MADE, MET, FORMED,
) = range(len(NAMES))  # fmt: skip


@exact
def _edges(tap, before, stride, side, count):
    """Return in which windows of a line a tap is on the image: the first, and behind the last."""
    low = NONE
    if tap < before:
        low = (before - tap + stride - ONE) // stride
    high = NONE
    if side + before > tap:
        high = (side + before - tap - ONE) // stride + ONE
    high = min(high, count)
    return min(low, high), high


@exact
def _gathered(x, places, numbers, to):
    """Write records side by side, (numbers, 16); the last one stands for those behind it."""
    many = unsigned(len(places))
    for lane in range(NONE, LANES):
        start = unsigned(places[min(lane, many - ONE)]) * numbers
        for k in range(NONE, numbers):
            to[k * LANES + lane] = x[start + k]


@exact
def _unfold(h, own, p):
    """Write what every tap of a convolution meets: 0 beyond the image."""
    height, width, high, wide = own[HEIGHT], own[WIDTH], own[HIGH], own[WIDE]
    line = wide * LANES
    tap = own[MET]
    for channel in range(NONE, own[CHANNELS]):
        plane = own[GIVEN] + channel * height * width * LANES
        for down in range(NONE, own[DOWN]):
            top, bottom = _edges(down, own[ABOVE], own[DOWNWARD], height, high)
            for right in range(NONE, own[RIGHT]):
                left, end = _edges(right, own[BESIDE], own[RIGHTWARD], width, wide)
                for i in range(NONE, high):
                    to = tap + i * line
                    if i < top or i >= bottom:
                        for k in range(to, to + line):
                            p[k] = ZERO
                        continue
                    for k in range(to, to + left * LANES):
                        p[k] = ZERO
                    row = plane + (i * own[DOWNWARD] + down - own[ABOVE]) * width * LANES
                    step = own[RIGHTWARD] * LANES
                    of = row + (left * own[RIGHTWARD] + right - own[BESIDE]) * LANES
                    for j in range(left, end):
                        for lane in range(NONE, LANES):
                            p[to + j * LANES + lane] = h[of + lane]
                        of += step
                    for k in range(to + end * LANES, to + line):
                        p[k] = ZERO
                tap += high * line


@exact
def _fold(p, own, d):
    """Add every tap's gradient to that of the pixel that it met."""
    height, width, high, wide = own[HEIGHT], own[WIDTH], own[HIGH], own[WIDE]
    start, size = own[GIVEN], own[CHANNELS] * height * width * LANES
    d[start : start + size] = ZERO
    line, tap = wide * LANES, NONE
    for channel in range(NONE, own[CHANNELS]):
        plane = start + channel * height * width * LANES
        for down in range(NONE, own[DOWN]):
            top, bottom = _edges(down, own[ABOVE], own[DOWNWARD], height, high)
            for right in range(NONE, own[RIGHT]):
                left, end = _edges(right, own[BESIDE], own[RIGHTWARD], width, wide)
                for i in range(top, bottom):
                    of = tap + i * line
                    row = plane + (i * own[DOWNWARD] + down - own[ABOVE]) * width * LANES
                    to = row + (left * own[RIGHTWARD] + right - own[BESIDE]) * LANES
                    for j in range(left, end):
                        for lane in range(NONE, LANES):
                            d[to + lane] += p[of + j * LANES + lane]
                        to += own[RIGHTWARD] * LANES
                tap += high * line


@exact
def _activate_image(own, w, h):
    """Add a convolution's bias to what came out of it, and put it through what follows."""
    size = own[HIGH] * own[WIDE] * LANES
    for output in range(NONE, own[OUTPUTS]):
        at, bias = own[MADE] + output * size, ZERO
        if own[BIASED]:
            bias = w[own[BIAS] + output]
        for k in range(at, at + size):
            h[k] += bias
        if own[BENT] == RELU:
            for k in range(at, at + size):
                h[k] = ZERO if h[k] < ZERO else h[k]  # NaN stays what it is
        if own[BENT] == TANH:
            tanh_all(h, at, at + size)
        elif own[BENT] == SIGMOID:
            sigmoid_all(h, at, at + size)


@inlined
def _corner(own, i, j):
    """Return where a window begins within a plane."""
    return (i * own[DOWNWARD] * own[WIDTH] + j * own[RIGHTWARD]) * LANES


@exact
def _pool(own, h):
    """Write the largest number of each window; NaN is larger than any, as for torch."""
    plane, size, to = own[GIVEN], own[HEIGHT] * own[WIDTH] * LANES, own[MADE]
    for _ in range(NONE, own[CHANNELS]):
        for i in range(NONE, own[HIGH]):
            for j in range(NONE, own[WIDE]):
                corner = plane + _corner(own, i, j)
                for lane in range(NONE, LANES):
                    h[to + lane] = h[corner + lane]
                for down in range(NONE, own[DOWN]):
                    for right in range(NONE, own[RIGHT]):
                        of = corner + (down * own[WIDTH] + right) * LANES
                        for lane in range(NONE, LANES):
                            value, best = h[of + lane], h[to + lane]
                            h[to + lane] = best if (best >= value) | (best != best) else value
                to += LANES
        plane += size


@exact
def _pool_back(own, h, d):
    """Write the gradients of what was pooled: each window's goes to the first of its largest.

    Of one with NaN it goes nowhere, as its record counts for nothing.
    """
    plane, size, of = own[GIVEN], own[HEIGHT] * own[WIDTH] * LANES, own[MADE]
    d[plane : plane + own[CHANNELS] * size] = ZERO
    for _ in range(NONE, own[CHANNELS]):
        for i in range(NONE, own[HIGH]):
            for j in range(NONE, own[WIDE]):
                corner = plane + _corner(own, i, j)
                for down in range(NONE, own[DOWN]):
                    for right in range(NONE, own[RIGHT]):
                        to = corner + (down * own[WIDTH] + right) * LANES
                        for lane in range(NONE, LANES):
                            left = d[of + lane]
                            given = left if h[to + lane] == h[of + lane] else ZERO
                            d[to + lane] += given
                            d[of + lane] = left - given
                of += LANES
        plane += size


@exact
def _mean(own, values, back):
    """Write the mean of each window; going back, the gradients of what means were taken of."""
    plane, size, made = own[GIVEN], own[HEIGHT] * own[WIDTH] * LANES, own[MADE]
    if back:
        values[plane : plane + own[CHANNELS] * size] = ZERO
    else:
        values[made : made + own[CHANNELS] * own[HIGH] * own[WIDE] * LANES] = ZERO
    share = UNIT / single(own[DOWN] * own[RIGHT])
    for _ in range(NONE, own[CHANNELS]):
        for i in range(NONE, own[HIGH]):
            for j in range(NONE, own[WIDE]):
                for down in range(NONE, own[DOWN]):
                    for right in range(NONE, own[RIGHT]):
                        pixel = plane + _corner(own, i, j) + (down * own[WIDTH] + right) * LANES
                        to, of = (pixel, made) if back else (made, pixel)
                        for lane in range(NONE, LANES):
                            values[to + lane] += values[of + lane] * share
                made += LANES
        plane += size


@instruction
def _products(
    context: Any, p0: Any, p1: Any, p2: Any, p3: Any, d0: Any, d1: Any, places: Any, g0: Any,
    g1: Any, g2: Any, g3: Any, h0: Any, h1: Any, h2: Any, h3: Any,
) -> Any:  # fmt: skip
    """Write sum over positions of d p, lane by lane, of two outputs and four taps: g and h.

    All are addresses but `places`. In so many words, as the eight sums have to stay in registers.
    """
    lanes, address = ir.VectorType(ir.FloatType(), int(LANES)), ir.IntType(64)

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        def at(start: Any, place: Any) -> Any:
            moved = builder.add(start, builder.mul(place, address(4 * int(LANES))))
            return builder.inttoptr(moved, lanes.as_pointer())

        def read(start: Any, place: Any) -> Any:
            found = builder.load(at(start, place))
            found.align = 4
            return found

        taps, outputs, places, to = given[:4], given[4:6], given[6], given[7:]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes, None)) for _ in to]
        kind = ir.FunctionType(lanes, [lanes] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
        with cgutils.for_range(builder, places) as each:
            met = [read(tap, each.index) for tap in taps]
            for output, own in zip(outputs, (sums[:4], sums[4:]), strict=True):
                value = read(output, each.index)
                for one, total in zip(met, own, strict=True):
                    builder.store(builder.call(fma, [value, one, builder.load(total)]), total)
        for start, total in zip(to, sums, strict=True):
            builder.store(builder.load(total), at(start, address(0))).align = 4
        return context.get_dummy_value()

    return types.void(*[types.int64] * 15), made


@exact
def _form(p, met, d, at, taps, outputs, places, g, to):
    """Write each lane's gradient, (outputs, taps, 16), then its bias's, (outputs, 16).

    Two outputs and four taps at a time: each number is loaded for several. The last ones stand for
    those behind them.
    """
    line, size = np.int64(places * LANES * FOUR), np.int64(LANES * FOUR)
    of_p = np.int64(p.ctypes.data) + np.int64(met * FOUR)
    of_d = np.int64(d.ctypes.data) + np.int64(at * FOUR)
    of_g = np.int64(g.ctypes.data) + np.int64(to * FOUR)
    last, end, many = np.int64(taps) - 1, np.int64(outputs) - 1, np.int64(taps)
    for tap in range(0, many, 4):
        t1, t2, t3 = min(tap + 1, last), min(tap + 2, last), min(tap + 3, last)
        for output in range(0, end + 1, 2):
            other = min(output + 1, end)
            a, b = of_g + output * many * size, of_g + other * many * size
            _products(
                of_p + tap * line, of_p + t1 * line, of_p + t2 * line, of_p + t3 * line,
                of_d + output * line, of_d + other * line, np.int64(places),
                a + tap * size, a + t1 * size, a + t2 * size, a + t3 * size,
                b + tap * size, b + t1 * size, b + t2 * size, b + t3 * size,
            )  # fmt: skip
    bias = to + outputs * taps * LANES
    for output in range(NONE, outputs):
        own, of = bias + output * LANES, at + output * places * LANES
        for lane in range(NONE, LANES):
            g[own + lane] = ZERO
        for position in range(NONE, places):
            for lane in range(NONE, LANES):
                g[own + lane] += d[of + position * LANES + lane]


@fused
def _squares(v, low, count, to):
    """Write each lane's squared norm of some numbers, (count, 16), float64."""
    for lane in range(NONE, LANES):
        to[lane] = 0.0
    for k in range(NONE, count):
        at = low + k * LANES
        for lane in range(NONE, LANES):
            value = np.float64(v[at + lane])
            to[lane] += value * value


@exact
def _forward(w, frozen, stages, begin, drops, room, gemm):
    """Write what the lanes' records become in every stage."""
    h, p = room[1], room[7]
    for stage in range(len(stages)):
        own = stages[stage]
        inputs, outputs, start = own[CHANNELS], own[OUTPUTS], own[WEIGHT]
        source = w if own[TRAINED] else frozen
        if own[KIND] == LINEAR:
            given = h[own[GIVEN] : own[GIVEN] + inputs * LANES]
            out = h[own[MADE] : own[MADE] + outputs * LANES]
            of = source[start : start + inputs * outputs]
            turned = TURNED if own[MET] else PLAIN
            multiply(gemm, turned, TURNED, LANES, outputs, inputs, given, of, ZERO, out)
            if own[BIASED]:
                bias = source[own[BIAS] : own[BIAS] + outputs]
                activate(np.int64(own[BENT]), bias, out, LANES)
            else:
                activate(np.int64(own[BENT]), np.zeros(np.int64(outputs), np.float32), out, LANES)
            if drops[1][stage]:
                kind = np.int64(own[BENT])
                drop(stage, kind, h, own[MADE], outputs, LANES, begin, drops, room)
        elif own[KIND] == CONVOLUTION:
            _unfold(h, own, p)
            taps = inputs * own[DOWN] * own[RIGHT]
            many = own[HIGH] * own[WIDE] * LANES
            met, out = (
                p[own[MET] : own[MET] + taps * many],
                h[own[MADE] : own[MADE] + outputs * many],
            )
            of = source[start : start + taps * outputs]
            multiply(gemm, PLAIN, PLAIN, outputs, many, taps, of, met, ZERO, out)
            _activate_image(own, source, h)
        elif own[KIND] == LARGEST_OF:
            _pool(own, h)
        else:
            _mean(own, h, False)


@exact
def _add_norms(found, own, hidden, reach, squares):
    """Add to each lane's squared norm that of a convolution, too large by what roundings hide."""
    places = np.float64(own[HIGH] * own[WIDE])
    for lane in range(NONE, LANES):
        weight, bias = squares[lane], squares[LANES + lane]
        given, mine = squares[TWO * LANES + lane], squares[THREE * LANES + lane]
        if not (given <= LARGEST and mine <= LARGEST):
            found[lane] = math.nan
        lost = hidden * math.sqrt(mine)
        norm = math.sqrt(weight) + lost * reach * math.sqrt(given)
        found[lane] += norm * norm
        if own[BIASED]:
            norm = math.sqrt(bias) + lost * math.sqrt(places)
            found[lane] += norm * norm


@exact
def _backward(w, frozen, stages, hiding, lowest, drops, room, gemm):
    """Write the gradients of what comes out of every stage, and each lane's squared norm."""
    h, d, found, p = room[1], room[2], room[3], room[7]
    back, formed, squares = room[8], room[9], room[10]
    found[:] = 0.0
    for stage in range(len(stages) - 1, lowest - 1, -1):
        own = stages[stage]
        inputs, outputs, start = own[CHANNELS], own[OUTPUTS], own[WEIGHT]
        source = w if own[TRAINED] else frozen
        if own[KIND] == LINEAR:
            size = outputs * LANES
            mine = d[own[MADE] : own[MADE] + size]
            bend_all(stage, np.int64(own[BENT]), h, d, own[MADE], size, drops, room)
            if own[MET]:
                _squares(h, own[GIVEN], inputs, squares)
            for lane in range(NONE, LANES if own[TRAINED] else NONE):
                if own[MET]:
                    given = squares[lane]
                else:
                    low = own[GIVEN] + lane * inputs
                    given = square(h, low, low + inputs)
                norm = square(mine, lane * outputs, (lane + ONE) * outputs)
                found[lane] += norm_of_linear(given, norm, inputs, outputs, own[BIASED] > NONE)
            if stage > lowest:
                of = source[start : start + inputs * outputs]
                to = d[own[GIVEN] : own[GIVEN] + inputs * LANES]
                if own[MET]:
                    multiply(gemm, TURNED, TURNED, inputs, LANES, outputs, of, mine, ZERO, to)
                else:
                    multiply(gemm, PLAIN, PLAIN, LANES, inputs, outputs, mine, of, ZERO, to)
        elif own[KIND] == CONVOLUTION:
            places = own[HIGH] * own[WIDE]
            many, taps = places * LANES, inputs * own[DOWN] * own[RIGHT]
            size = outputs * many
            mine = d[own[MADE] : own[MADE] + size]
            bend(np.int64(own[BENT]), h[own[MADE] : own[MADE] + size], mine, size)
            weights = outputs * taps
            if own[TRAINED]:
                _form(p, own[MET], d, own[MADE], taps, outputs, places, formed, own[FORMED])
                _squares(formed, own[FORMED], weights, squares)
                _squares(formed, own[FORMED] + weights * LANES, outputs, squares[LANES:])
                pixels = inputs * own[HEIGHT] * own[WIDTH]
                _squares(h, own[GIVEN], pixels, squares[TWO * LANES :])
                _squares(d, own[MADE], outputs * places, squares[THREE * LANES :])
                _add_norms(found, own, hiding[stage, 0], hiding[stage, 1], squares)
            if stage > lowest:
                of = source[start : start + weights]
                multiply(gemm, TURNED, PLAIN, taps, many, outputs, of, mine, ZERO, back)
                _fold(back, own, d)
        elif own[KIND] == LARGEST_OF:
            _pool_back(own, h, d)
        else:
            _mean(own, d, True)


@exact
def _silence(own, room, lane):
    """Let a lane that counts for nothing be 0: 0 * NaN is NaN."""
    h, d, formed = room[1], room[2], room[9]
    inputs, outputs = own[CHANNELS], own[OUTPUTS]
    if own[KIND] == LINEAR:
        low = own[MADE] + lane * outputs
        d[low : low + outputs] = ZERO
        if own[MET]:
            for k in range(NONE, inputs):
                h[own[GIVEN] + k * LANES + lane] = ZERO
        else:
            low = own[GIVEN] + lane * inputs
            h[low : low + inputs] = ZERO
    elif own[KIND] == CONVOLUTION:
        for k in range(NONE, outputs * (inputs * own[DOWN] * own[RIGHT] + ONE)):
            formed[own[FORMED] + k * LANES + lane] = ZERO


@exact
def _sum_up(stages, room, sums, gemm):
    """Add the lanes' gradients, times their factors, to the sums."""
    h, d, factors, formed = room[1], room[2], room[4], room[9]
    for stage in range(len(stages)):
        own = stages[stage]
        if not own[TRAINED]:
            continue
        for lane in range(NONE, LANES):
            if not factors[lane] > ZERO:
                _silence(own, room, lane)
        inputs, outputs, start = own[CHANNELS], own[OUTPUTS], own[WEIGHT]
        if own[KIND] == LINEAR:
            mine = d[own[MADE] : own[MADE] + outputs * LANES]
            for lane in range(NONE, LANES):
                for k in range(lane * outputs, (lane + ONE) * outputs):
                    mine[k] *= factors[lane]
            given, to = h[own[GIVEN] : own[GIVEN] + inputs * LANES], sums[start:]
            turned = TURNED if own[MET] else PLAIN
            multiply(gemm, TURNED, turned, outputs, inputs, LANES, mine, given, UNIT, to)
            if own[BIASED]:
                for lane in range(NONE, LANES):
                    for k in range(NONE, outputs):
                        sums[own[BIAS] + k] += mine[lane * outputs + k]
        elif own[KIND] == CONVOLUTION:
            weights = outputs * inputs * own[DOWN] * own[RIGHT]
            found = formed[own[FORMED] : own[FORMED] + weights * LANES]
            multiply(gemm, PLAIN, PLAIN, weights, ONE, LANES, found, factors, UNIT, sums[start:])
            if own[BIASED]:
                low = own[FORMED] + weights * LANES
                found, to = formed[low : low + outputs * LANES], sums[own[BIAS] :]
                multiply(gemm, PLAIN, PLAIN, outputs, ONE, LANES, found, factors, UNIT, to)


@exact
def bounded_sum(
    x, y, valid, squares, shares, numbers, places, begin, kept, rows, first, apart, w, form, drops,
    terms, room, sums, gemm,
):  # fmt: skip
    """Write the sum of the bounded gradients of some records, as `compiled.bounded_sum` does.

    Args:
        x: As there; like all whose meaning is not given.
        y: See there.
        valid: See there.
        squares: Not used.
        shares: See there.
        numbers: See there.
        places: See there.
        begin: See there.
        kept: See there.
        rows: `LANES`.
        first: See there.
        apart: See there.
        w: See there.
        form: See `Convolutional.form`.
        drops: See there.
        terms: See there.
        room: Nothing; for what comes out of the stages, records first, and for its gradients; for
            squared norms, float64, and for factors, (16,); for dropout, as there; for what taps
            meet, and for its gradients; for formed gradients; and for four squared norms of each
            lane, float64.
        sums: See there.
        gemm: See there.
    """
    stages, hiding, lowest, frozen = form
    h, d, factors = room[1], room[2], room[4]
    if kept == ZERO:
        sums[:] = ZERO
    last = stages[len(stages) - 1]
    at, outputs = last[MADE], last[OUTPUTS]
    numbers_of_record = stages[0][CHANNELS] * stages[0][HEIGHT] * stages[0][WIDTH]
    for low in range(first * rows, len(places), apart * rows):
        own = places[low : low + rows]
        _gathered(x, own, numbers_of_record, h)
        _forward(w, frozen, stages, unsigned(begin + low), drops, room, gemm)
        for lane in range(np.int64(LANES)):
            slot = own[min(lane, len(own) - 1)]
            outward(h, d, at + unsigned(lane) * outputs, outputs, y[slot], numbers)
        _backward(w, frozen, stages, hiding, lowest, drops, room, gemm)
        factors[:] = ZERO
        if factors_of(y, valid, shares, numbers, own, terms, room) >= 0:
            _sum_up(stages, room, sums, gemm)
