"""The passes of an LSTM and the norms of its gradients, in machine code; formulas: `recurrence`.

Everything is step after step, (steps, batch, ...), so that what a step needs lies together:

    a_t = [x_t, h_(t-1)]        z_t = a_t W^T + b        one product a step, for the whole batch
    ||g_i||^2 = sum over s, t of <a_s, a_t> <dz_s, dz_t>                           float64

A call goes through some records of a batch: those of a thread.

Source: Bu et al. 2022. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import numpy as np

from pasearch.training.compiled import eight
from pasearch.training.compiled_activations import (
    FOUR,
    NONE,
    ONE,
    THREE,
    TWO,
    UNIT,
    ZERO,
    exact,
    fast_tanh,
    fused,
    inlined,
    sigmoid_all,
    tanh_all,
    unsigned,
)
from pasearch.training.compiled_products import PLAIN, TURNED, multiply, multiply_of


@fused
def _step(z, bias, memory, before, bent, state, units):
    """Let a record go through one step, from z_t; memory and state are its new ones."""
    f, g, o = units, TWO * units, THREE * units
    for k in range(NONE, FOUR * units):
        z[k] += bias[k]
    sigmoid_all(z, NONE, g)
    tanh_all(z, g, o)
    sigmoid_all(z, o, FOUR * units)
    for k in range(NONE, units):
        memory[k] = z[f + k] * before[k] + z[k] * z[g + k]
    for k in range(NONE, units):
        bent[k] = fast_tanh(memory[k])
    for k in range(NONE, units):
        state[k] = z[o + k] * bent[k]


@fused
def _step_back(z, found, before, bent, of_state, of_memory, units):
    """Write a record's gradients of one step's gates, and take its memory's a step back."""
    f, g, o = units, TWO * units, THREE * units
    for k in range(NONE, units):
        of_memory[k] += of_state[k] * z[o + k] * (UNIT - bent[k] * bent[k])
    for k in range(NONE, units):
        found[k] = of_memory[k] * z[g + k] * (z[k] * (UNIT - z[k]))
    for k in range(NONE, units):
        found[f + k] = of_memory[k] * before[k] * (z[f + k] * (UNIT - z[f + k]))
    for k in range(NONE, units):
        found[g + k] = of_memory[k] * z[k] * (UNIT - z[g + k] * z[g + k])
    for k in range(NONE, units):
        found[o + k] = of_state[k] * bent[k] * (z[o + k] * (UNIT - z[o + k]))
    for k in range(NONE, units):
        of_memory[k] *= z[f + k]


@exact
def forward(x, w, bias, sizes, low, high, a, z, memories, bent, last, gemm):
    """Go through the steps with some records.

    A product has all rows from low to high, and the rest only those that are records: so what
    becomes of a row does not depend on how many others there are.

    Args:
        x: Records, one after another, (batch * steps * inputs,), float32 as all are.
        w: W, (4 units * (inputs + units),).
        bias: b, (4 units,).
        sizes: Rows of the batch, steps, inputs, units; and how many rows, the first, are records.
        low: The first record.
        high: The one behind the last.
        a: For a_t, (steps * batch * (inputs + units),).
        z: For the open gates, (steps * batch * 4 units,).
        memories: For c_t, ((steps + 1) * batch * units,), from c_0 = 0 on.
        bent: For tanh(c_t), (steps * batch * units,).
        last: For the last states, (batch * units,).
        gemm: Where BLAS' product lies: see `products`.
    """
    batch, steps, inputs, units, real = sizes
    width, wide, end = inputs + units, FOUR * units, min(high, real)
    for step in range(NONE, steps):
        start = step * batch
        for row in range(low, end):
            to, of = (start + row) * width, (row * steps + step) * inputs
            for k in range(NONE, inputs):
                a[to + k] = x[of + k]
            if step == NONE:
                for k in range(inputs, width):
                    a[to + k] = ZERO
                for k in range(row * units, (row + ONE) * units):
                    memories[k] = ZERO
        own = z[(start + low) * wide : (start + high) * wide]
        given = a[(start + low) * width : (start + high) * width]
        multiply(gemm, PLAIN, TURNED, high - low, wide, width, given, w, ZERO, own)
        for row in range(low, end):
            at, then = (start + row) * units, (start + batch + row) * units
            state = last[row * units : (row + ONE) * units]
            if step + ONE < steps:
                to = (start + batch + row) * width + inputs
                state = a[to : to + units]
            _step(
                z[(start + row) * wide : (start + row + ONE) * wide], bias,
                memories[then : then + units], memories[at : at + units], bent[at : at + units],
                state, units,
            )  # fmt: skip


@exact
def backward(asked, back, sizes, low, high, z, memories, bent, found, of_state, of_memory, gemm):
    """Go back through the steps with some records.

    Args:
        asked: The gradient of the last states, (batch * units,).
        back: What of W states are multiplied by, (4 units * units,).
        sizes: As for `forward`.
        low: As there.
        high: As there.
        z: As `forward` left them.
        memories: As `forward` left them.
        bent: As `forward` left them.
        found: For dz_t, (steps * batch * 4 units,).
        of_state: Room, (batch * units,).
        of_memory: Room, (batch * units,).
        gemm: As for `forward`.
    """
    batch, steps, _, units, real = sizes
    wide, end = FOUR * units, min(high, real)
    for k in range(low * units, high * units):
        of_state[k] = asked[k]
        of_memory[k] = ZERO
    for left in range(NONE, steps):
        start = (steps - ONE - left) * batch
        if left > NONE:
            later = found[(start + batch + low) * wide : (start + batch + high) * wide]
            own = of_state[low * units : high * units]
            multiply(gemm, PLAIN, PLAIN, high - low, units, wide, later, back, ZERO, own)
        for k in range((start + max(low, end)) * wide, (start + high) * wide):
            found[k] = ZERO
        for row in range(low, end):
            at, mine = (start + row) * units, row * units
            _step_back(
                z[(start + row) * wide : (start + row + ONE) * wide],
                found[(start + row) * wide : (start + row + ONE) * wide],
                memories[at : at + units], bent[at : at + units], of_state[mine : mine + units],
                of_memory[mine : mine + units], units,
            )  # fmt: skip


@inlined
def _grams(v, n, s, t):
    """Return the products of rows s and s + 1 of v with t and the three behind it."""
    p, q = t * n, (t + TWO) * n
    return eight(v, s * n, (s + ONE) * n, v, p, p + n, q, q + n, NONE, n, 0.0)


@exact
def _copied(v, sizes, width, row, to):
    """Write one record's rows of every step as float64, and 0 behind them."""
    batch, steps = sizes[0], sizes[1]
    for step in range(NONE, steps):
        own, at = (step * batch + row) * width, step * width
        for k in range(NONE, width):
            to[at + k] = np.float64(v[own + k])
    for k in range(steps * width, unsigned(len(to))):
        to[k] = 0.0  # an earlier batch may have had more steps


@exact
def squares(a, d, sizes, low, high, of_a, of_d, found):
    """Write, of some records, what norms follow from, all float64.

    Args:
        a: As `forward` left them.
        d: dz_t, as `backward` left them.
        sizes: As for `forward`.
        low: As there.
        high: As there.
        of_a: Room for a record's a_t, float64, with steps rounded up to a multiple of 4.
        of_d: The same for its dz_t.
        found: For ||sum of dz_t a_t^T||^2, ||sum of dz_t||^2, ||A||^2 and ||D||^2: (batch, 4).
    """
    _, steps, inputs, units, real = sizes
    width, wide = inputs + units, FOUR * units
    for row in range(low, min(high, real)):
        _copied(a, sizes, width, row, of_a)
        _copied(d, sizes, wide, row, of_d)
        weight, bias, whole_a, whole_d = 0.0, 0.0, 0.0, 0.0
        for s in range(NONE, steps, TWO):
            for t in range(NONE, s + TWO, FOUR):
                grams, others = _grams(of_a, width, s, t), _grams(of_d, wide, s, t)
                for up in range(2):
                    for on in range(4):
                        first, second = s + unsigned(up), t + unsigned(on)
                        if second > first:
                            continue
                        gram, other = grams[up][on], others[up][on]
                        if first == second:
                            weight += gram * other
                            bias += other
                            whole_a += gram
                            whole_d += other
                        else:
                            weight += 2.0 * gram * other
                            bias += 2.0 * other
        found[row, 0], found[row, 1], found[row, 2], found[row, 3] = weight, bias, whole_a, whole_d


@exact
def weigh(d, factors, sizes, low, high, bias):
    """Multiply some records' dz_t by their factors, and write their sum over records and steps.

    The sum is float64: a record whose steps cancel stands in it while others are added.

    Args:
        d: dz_t, as `backward` left them.
        factors: (batch,).
        sizes: As for `forward`.
        low: As there.
        high: As there.
        bias: Where the sum goes, float64, (4 units,).
    """
    batch, steps, _, units, real = sizes
    wide = FOUR * units
    bias[:] = 0.0
    for step in range(NONE, steps):
        for row in range(low, min(high, real)):
            own, c = (step * batch + row) * wide, factors[row]
            for k in range(NONE, wide):
                d[own + k] *= c
            for k in range(NONE, wide):
                bias[k] += np.float64(d[own + k])


@exact
def sum_up(a, d, sizes, first, end, sums, room, gemm):
    """Write some rows of the sum of dz_t a_t^T over records and steps.

    Each record's is formed, and then added: where its steps cancel, they do so among themselves,
    and no digits of the others are lost by it.

    Args:
        a: As `forward` left them.
        d: As `weigh` left them.
        sizes: As for `forward`.
        first: The first row.
        end: The one behind the last.
        sums: Where the sum goes, (4 units * (inputs + units),).
        room: As large.
        gemm: As for `forward`.
    """
    batch, steps, inputs, units, real = sizes
    width, wide = inputs + units, FOUR * units
    low, high = first * width, end * width
    own, to = room[low:high], sums[low:high]
    to[:] = ZERO
    for record in range(NONE, real):
        of_d, of_a = d[record * wide + first :], a[record * width :]
        multiply_of(
            gemm, TURNED, PLAIN, end - first, width, steps, of_d, batch * wide, of_a, batch * width,
            ZERO, own,
        )  # fmt: skip
        for k in range(NONE, high - low):
            to[k] += own[k]
