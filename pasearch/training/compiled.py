"""The sum of bounded gradients of a chain of linear layers, in machine code.

The formulas are those of `dense`. Products are a library's (`products`), but for a first layer with
few outputs: that reads the records where they lie. Norms are added up in float64. A record
that is null, or whose norm is not finite, adds exactly 0.

A library rounds a row's product otherwise where there are more rows, or fewer. So, forward and
back, a block's product has all the rows that there is room for, however many records it has: what
one adds must not depend on how many others, null ones too, are in the batch.

Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math

import numpy as np

from pasearch.training.compiled_activations import (
    NONE,
    ONE,
    THREE,
    TWO,
    UNIT,
    ZERO,
    activate,
    bend,
    exact,
    fast_exp,
    single,
    sums_of,
    unsigned,
)
from pasearch.training.compiled_dropout import bend_all, drop, drop_inputs
from pasearch.training.compiled_products import (
    PLAIN,
    TURNED,
    halve,
    halve_rows,
    multiply,
    multiply_halves,
)
from pasearch.training.record_sums import BLOCK

ROWS = unsigned(4)
"""Records that go through a first layer of few outputs at once; of their sum, twice as many."""
SPARE = unsigned(7)
"""How many rows behind the last one there must be room for, so that all go through alike."""
NULL = np.uint16(0)
STRIP = unsigned(512)
"""Numbers of a row of weights that are worked on at once."""
LARGEST = float(np.finfo(np.float32).max)
"""Of a squared norm: as far as float32 goes, so that a factor is a normal float32."""
LOST = 2.0 * float(np.finfo(np.float32).tiny)
"""What a number of a row may lose to underflow, of a squared norm: in it, or times its factor."""


@exact
def outward(h, d, at, outputs, y, numbers):
    """Write the loss's gradient of one record: softmax - [class = y], or the error.

    A class that is none makes it NaN, so that the record adds 0.
    """
    if numbers:
        d[at] = h[at] - single(y)
        return
    most = h[at]
    for k in range(at + ONE, at + outputs):
        most = h[k] if h[k] > most else most
    for k in range(at, at + outputs):
        d[k] = fast_exp(h[k] - most)
    total = ZERO
    for k in range(at, at + outputs):
        total += d[k]
    known = 0 <= y < np.int64(outputs)
    share = UNIT / total if known else single(math.nan)
    for k in range(at, at + outputs):
        d[k] *= share
    if known:
        d[at + unsigned(y)] -= UNIT


@sums_of
def eight(v, first, second, x, p, q, r, s, low, high, none):
    """Return the products of two rows with four: of each, some numbers from its beginning on.

    Args:
        v: Where the two lie, one beginning at `first` and one at `second`.
        first: See there.
        second: See there.
        x: Where the four lie.
        p: Where the first of them begins; like q, r and s.
        q: See there.
        r: See there.
        s: See there.
        low: The first number of each row.
        high: The one behind the last.
        none: 0, of the kind that it is added up in.
    """
    a0, a1, a2, a3 = none, none, none, none
    b0, b1, b2, b3 = none, none, none, none
    for k in range(low, high):
        a, b = v[first + k], v[second + k]
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


@sums_of
def _dots(x, rows, w, inputs, outputs, h, low):
    """Write x W^T of four records, two outputs at a time: each number is loaded for several."""
    i0, i1, i2, i3 = rows[0] * inputs, rows[1] * inputs, rows[2] * inputs, rows[3] * inputs
    to = low * outputs
    for k in range(to, to + ROWS * outputs):
        h[k] = ZERO
    for left in range(NONE, inputs, STRIP):
        right = min(left + STRIP, inputs)
        for o in range(NONE, outputs, TWO):
            other = min(o + ONE, outputs - ONE)  # the last one stands for the one behind it
            line, beside = o * inputs, other * inputs
            first, second = eight(w, line, beside, x, i0, i1, i2, i3, left, right, ZERO)
            for row in range(4):
                at = to + unsigned(row) * outputs
                h[at + o] += first[row]
                if other > o:
                    h[at + other] += second[row]


@sums_of
def _add(sums, inputs, outputs, x, rows, d, low):
    """Add what eight records add to a first layer's weights: the sum of d x^T."""
    i0, i1, i2, i3 = rows[0] * inputs, rows[1] * inputs, rows[2] * inputs, rows[3] * inputs
    j0, j1, j2, j3 = rows[4] * inputs, rows[5] * inputs, rows[6] * inputs, rows[7] * inputs
    to, later = low * outputs, (low + ROWS) * outputs
    for left in range(NONE, inputs, STRIP):
        right = min(left + STRIP, inputs)
        for o in range(NONE, outputs):
            line, at, on = o * inputs, to + o, later + o
            d0, d1 = d[at], d[at + outputs]
            d2, d3 = d[at + TWO * outputs], d[at + THREE * outputs]
            e0, e1 = d[on], d[on + outputs]
            e2, e3 = d[on + TWO * outputs], d[on + THREE * outputs]
            for k in range(left, right):
                first = (d0 * x[i0 + k] + d1 * x[i1 + k]) + (d2 * x[i2 + k] + d3 * x[i3 + k])
                second = (e0 * x[j0 + k] + e1 * x[j1 + k]) + (e2 * x[j2 + k] + e3 * x[j3 + k])
                sums[line + k] += first + second


@exact
def add_up(totals, sums):
    """Add float32 sums to float64 totals."""
    for k in range(NONE, unsigned(len(totals))):
        totals[k] += np.float64(sums[k])


@sums_of
def square(values, low, high):
    """Return the squared norm of some numbers, float64."""
    total = 0.0
    for k in range(low, high):
        value = np.float64(values[k])  # `float` of a float32 is a float32 here
        total += value * value
    return total


@exact
def norm_of_linear(given, mine, inputs, outputs, biased):
    """Return a record's squared norm of a linear layer, with what underflow may lose of it.

    Args:
        given: ||a_i||^2, float64.
        mine: ||d_i||^2, float64.
        inputs: Numbers of a_i.
        outputs: Numbers of d_i.
        biased: Whether there is a bias.

    Returns:
        Not a number where a part is none, or above what float32 holds.
    """
    if not (given <= LARGEST and mine <= LARGEST):
        return math.nan
    lost, missed = np.float64(outputs) * LOST, np.float64(inputs) * LOST
    one = 1.0 if biased else 0.0
    return (mine + lost) * (given + missed + one)


@exact
def _four(places, low):
    """Return four places from one on; the last of all stands for those behind it."""
    last = len(places) - 1
    return (
        unsigned(places[min(low, last)]), unsigned(places[min(low + 1, last)]),
        unsigned(places[min(low + 2, last)]), unsigned(places[min(low + 3, last)]),
    )  # fmt: skip


@exact
def _put_beside(x, places, inputs, outputs, at, room):
    """Let the second layer be given what the first one is, and behind it what that gives.

    From the last row on, and in it from the last number: all lies before where it goes.
    """
    copied, h, many = room[0], room[1], unsigned(len(places))
    for behind in range(NONE, many):
        row = many - ONE - behind
        to, source = at + row * (inputs + outputs), at + row * outputs
        for left in range(NONE, outputs):
            k = outputs - ONE - left
            h[to + inputs + k] = h[source + k]
        if len(copied):
            for k in range(NONE, inputs):
                h[to + k] = copied[row * inputs + k]
        else:
            slot = unsigned(places[row]) * inputs
            for k in range(NONE, inputs):
                h[to + k] = x[slot + k]


@exact
def _take_from_beside(kind, h, d, at, inputs, outputs, many, drops, room):
    """Write the gradients of what the first layer gives, one after another, from those of both."""
    dropped = drops[1][1] > 0
    for row in range(NONE, unsigned(many)):
        to, source = at + row * outputs, at + row * (inputs + outputs) + inputs
        for k in range(NONE, outputs):
            d[to + k] = d[source + k]
        if not dropped:
            bend(kind, h[source : source + outputs], d[to : to + outputs], outputs)
    if dropped:
        bend_all(1, kind, h, d, at, unsigned(many) * outputs, drops, room)


@exact
def _halve_weights(w, form, room):
    """Write the weights of layers whose products are of halves as such."""
    starts, widths, trained, frozen, halved = form[0], form[2], form[5], form[6], form[7]
    for layer in range(len(halved)):
        if halved[layer] >= 0:
            source, size = w if trained[layer] else frozen, widths[layer] * form[10][layer]
            halve(source, starts[layer], size, room[7], room[8], unsigned(halved[layer]))


@exact
def _copy(x, places, inputs, begin, drops, room):
    """Write chosen records one after another, without what dropout takes."""
    copied = room[0]
    for row in range(len(places)):
        to, slot = unsigned(row) * inputs, unsigned(places[row]) * inputs
        for k in range(NONE, inputs):  # of slices, numba would compile a second more
            copied[to + k] = x[slot + k]
    if drops[1][0]:
        drop_inputs(copied, inputs, len(places), begin, drops, room)


@exact
def _forward_by_halves(x, places, layer, form, room, out):
    """Write what comes out of a layer, and what it is given, as halves."""
    widths, ats, place, at, gemm = form[2], form[4], form[7][layer], form[8][layer], form[9]
    inputs, outputs, many = widths[layer], form[10][layer], unsigned(len(places))
    first, second = room[9], room[10]
    if layer:
        halve(room[1], ats[layer], many * inputs, first, second, at)
    elif len(room[0]):
        halve(room[0], NONE, many * inputs, first, second, at)
    else:
        halve_rows(x, places, inputs, first, second, at)
    multiply_halves(
        gemm, PLAIN, TURNED, len(room[3]), outputs, inputs, (first[at:], second[at:]),
        (room[7][place:], room[8][place:]), ZERO, out,
    )  # fmt: skip


@exact
def _forward(x, places, begin, w, form, drops, room, gemm):
    """Write what records become in every layer, and their copy where a product needs one."""
    starts, biases, widths, kinds, ats, trained, frozen, halved = form[:8]
    copied, h = room[0], room[1]
    many = len(places)
    if len(copied):
        _copy(x, places, widths[0], begin, drops, room)
    for layer in range(len(kinds)):
        inputs, outputs = widths[layer], form[10][layer]
        start, size = starts[layer], inputs * outputs
        source = w if trained[layer] else frozen
        own = source[start : start + size]
        out = h[ats[layer + 1] : ats[layer + 1] + (unsigned(many) + SPARE) * outputs]
        if halved[layer] >= 0:
            _forward_by_halves(x, places, layer, form, room, out)
        elif layer == 0 and not len(copied):
            for low in range(0, many, 4):
                _dots(x, _four(places, low), own, inputs, outputs, out, unsigned(low))
        else:
            given = copied if layer == 0 else h[ats[layer] :]
            multiply(gemm, PLAIN, TURNED, len(room[3]), outputs, inputs, given, own, ZERO, out)
        bias = biases[layer]
        if bias >= 0:
            activate(kinds[layer], source[bias : bias + np.int64(outputs)], out, unsigned(many))
        else:
            activate(kinds[layer], np.zeros(np.int64(outputs), np.float32), out, unsigned(many))
        if drops[1][layer + 1]:
            drop(layer + 1, kinds[layer], h, ats[layer + 1], outputs, many, begin, drops, room)
        if layer == 0 and form[11]:
            _put_beside(x, places, inputs, outputs, ats[1], room)


@exact
def _backward(places, squares, w, form, drops, room, gemm):
    """Write the gradients of layers' outputs, and the squared norm of each record's.

    Down to the lowest layer that is trained.
    """
    starts, biases, widths, kinds, ats, trained, frozen, halved = form[:8]
    h, d, found = room[1], room[2], room[3]
    many, lowest = len(places), 0
    while not trained[lowest]:
        lowest += 1
    found[:many] = 0.0
    for layer in range(len(kinds) - 1, lowest - 1, -1):
        inputs, outputs, at, before = widths[layer], form[10][layer], ats[layer + 1], ats[layer]
        size = unsigned(many) * outputs
        own = d[at : at + size]
        if layer == 0 and form[11]:
            _take_from_beside(kinds[0], h, d, at, inputs, outputs, many, drops, room)
        else:
            bend_all(layer + 1, kinds[layer], h, d, at, size, drops, room)
        for row in range(many if trained[layer] else 0):
            low = unsigned(row) * outputs
            if layer:
                first = before + unsigned(row) * inputs
                given = square(h, first, first + inputs)
            elif drops[1][0]:
                first = unsigned(row) * inputs
                given = square(room[0], first, first + inputs)
            else:
                given = np.float64(squares[places[row]])
            mine = square(own, low, low + outputs)
            found[row] += norm_of_linear(given, mine, inputs, outputs, biases[layer] >= 0)
        if layer > lowest and halved[layer] >= 0:
            place, first, second = halved[layer], room[11], room[12]
            halve(own, NONE, size, first, second, NONE)
            multiply_halves(
                form[9], PLAIN, PLAIN, len(room[3]), inputs, outputs, (first, second),
                (room[7][place:], room[8][place:]), ZERO, d[before:],
            )  # fmt: skip
        elif layer > lowest:
            start, source = starts[layer], w if trained[layer] else frozen
            of = source[start : start + inputs * outputs]
            multiply(gemm, PLAIN, PLAIN, len(room[3]), inputs, outputs, own, of, ZERO, d[before:])


@exact
def factors_of(y, valid, shares, numbers, places, terms, room):
    """Write what gradients are multiplied by; return a row that counts, or -1: none does."""
    top, plus, slack, most = terms
    found, factors, some = room[3], room[4], -1
    for row in range(len(places)):
        slot, share = places[row], UNIT
        if not numbers and 0 <= y[slot] < len(shares):
            share = shares[np.int64(y[slot])]
        factors[row] = ZERO
        if valid[slot] and found[row] <= LARGEST:
            norm = math.sqrt(found[row])
            factors[row] = single(min(most, top / (norm * slack + plus))) * share
            some = row
    return some


@exact
def _weigh(form, room, many):
    """Multiply every record's gradients by its factor; whose is 0 has zeros, whatever it had."""
    widths, kinds, ats, trained, halved, gats = form[2], form[3], form[4], form[5], form[7], form[8]
    copied, h, d, factors = room[0], room[1], room[2], room[4]
    for row in range(many):
        c = factors[row]
        for layer in range(len(kinds)):
            low = ats[layer + 1] + unsigned(row) * form[10][layer]
            high = low + form[10][layer]
            if c > ZERO:
                for k in range(low, high if trained[layer] else low):
                    d[k] *= c
                continue
            d[low:high] = ZERO  # 0 * NaN is NaN
            low = ats[layer + 1] + unsigned(row) * widths[layer + 1]
            h[low : low + widths[layer + 1]] = ZERO
            if halved[layer] >= 0:
                own = gats[layer] + unsigned(row) * widths[layer]
                room[9][own : own + widths[layer]] = NULL
                room[10][own : own + widths[layer]] = NULL
            if layer == 0 and len(copied):
                own = unsigned(row) * widths[0]
                copied[own : own + widths[0]] = ZERO


@exact
def _sum_up(x, places, some, form, room, totals, gemm):
    """Add the records' gradients, already multiplied by their factors, to the totals.

    The gradients of at most `BLOCK` records are added in float32, and those sums in float64.
    """
    starts, biases, widths, kinds, ats, trained, _, halved = form[:8]
    copied, h, d, factors, sums = room[0], room[1], room[2], room[4], room[13]
    many = len(places)
    for layer in range(len(kinds)):
        if not trained[layer]:
            continue
        inputs, outputs, at = widths[layer], form[10][layer], ats[layer + 1]
        size, start = inputs * outputs, starts[layer]
        in_place, chosen = layer == 0 and not len(copied) and halved[layer] < 0, places.copy()
        if in_place:
            d[at + unsigned(many) * outputs : at + (unsigned(many) + SPARE) * outputs] = ZERO
            for row in range(many):
                if not factors[row] > ZERO:  # 0 * NaN is NaN, so another record is multiplied by 0
                    chosen[row] = places[some]
        for low in range(0, many, BLOCK):
            block, skipped = min(BLOCK, many - low), unsigned(low)
            own = d[at + skipped * outputs :]
            if halved[layer] >= 0:
                first, second = room[11], room[12]
                of = form[8][layer] + skipped * inputs
                halve(own, NONE, unsigned(block) * outputs, first, second, NONE)
                multiply_halves(
                    form[9], TURNED, PLAIN, outputs, inputs, block, (first, second),
                    (room[9][of:], room[10][of:]), ZERO, sums,
                )  # fmt: skip
            elif in_place:
                sums[:size] = ZERO
                for eight in range(low, low + block, 8):
                    rows = _four(chosen, eight) + _four(chosen, eight + 4)
                    _add(sums, inputs, outputs, x, rows, own, unsigned(eight - low))
            else:
                given = copied[skipped * inputs :]
                if layer:
                    given = h[ats[layer] + skipped * inputs :]
                multiply(gemm, TURNED, PLAIN, outputs, inputs, block, own, given, ZERO, sums)
            add_up(totals[start : start + size], sums)
            if biases[layer] >= 0:
                sums[:outputs] = ZERO
                for row in range(NONE, unsigned(block)):
                    for k in range(NONE, outputs):
                        sums[k] += own[row * outputs + k]
                add_up(totals[biases[layer] : biases[layer] + np.int64(outputs)], sums)


@exact
def bounded_sum(
    x, y, valid, squares, shares, numbers, places, begin, rows, first, apart, w, form, drops,
    terms, room, totals, gemm,
):  # fmt: skip
    """Add the sum of the bounded gradients of some records to the totals.

    Args:
        x: Records, one after another, float32, (slots * inputs,).
        y: Their classes, int64, or numbers, float32; (slots,).
        valid: bool, (slots,); False for null records.
        squares: ||x_i||^2, float32, (slots,).
        shares: What each class's bounded gradients are multiplied by, float32.
        numbers: Whether y are numbers.
        places: The chosen records, int64.
        begin: Which of its batch's records the first of them is.
        rows: How many are worked on at once, at most: a block of the places.
        first: The first block that is summed.
        apart: How far the next one is from it: several threads take turns.
        w: The weights, float32, (parameters,).
        form: Of the layers: where each one's weights begin, and its bias (-1: none); the widths of
            what they are given and of what comes out at last; codes of what follows; where in the
            room what comes out of each stands, behind a number for the first one's input; which
            are trained, bool; the weights of those that are not, float32, which begin there; where
            in the room each one's weights are as halves, and what it is given (-1, and anything:
            its products are of float32); where the product of halves lies; how many numbers come
            out of each; whether the second is given what the first is, too.
        drops: Of dropout: see `compiled_dropout.drop`.
        terms: See `Bound.terms`, with `SLACK` before the last.
        room: For copies of records, (rows * inputs,), or of no size where a first layer of few
            outputs reads them where they lie, whole; for what comes out of the layers and for its
            gradients, ((rows + `SPARE`) * outputs of all layers,); for squared norms, float64, and
            for factors, (rows,); with dropout, once more as for gradients, and for bits, uint32,
            (`compiled_dropout.SPARE` + outputs,) of the widest layer; twice each, for the halves of
            weights, of what layers are given and of a layer's gradients; and for the sum of one
            layer and block.
        totals: To what the sum is added, float64, (parameters,).
        gemm: Where BLAS' product lies: see `products`.
    """
    depth, h, d = len(form[3]), room[1], room[2]
    last, outputs = form[4][depth], form[2][depth]
    _halve_weights(w, form, room)
    for low in range(first * rows, len(places), apart * rows):
        own = places[low : low + rows]
        _forward(x, own, unsigned(begin + low), w, form, drops, room, gemm)
        for row in range(len(own)):
            outward(h, d, last + unsigned(row) * outputs, outputs, y[own[row]], numbers)
        _backward(own, squares, w, form, drops, room, gemm)
        some = factors_of(y, valid, shares, numbers, own, terms, room)
        if some >= 0:
            _weigh(form, room, len(own))
            _sum_up(x, own, some, form, room, totals, gemm)
