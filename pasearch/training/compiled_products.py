"""Products of matrices, in machine code: a library's, of float32 or of pairs of bfloat16 ones.

    x1 = bf(x),  x2 = bf(x - x1)             |x - x1 - x2| <= 2^-17 |x|
    A B ~ A1 B1 + A1 B2 + A2 B1              |A B - that| <= 2^-15 |A| |B|, nearly

A processor with tiles for bfloat16 multiplies them so fast that three such products take half the
time of one of float32. What a record adds to a sum is its own all the same, and hardly longer than
its norm says: see `halves.SLACK`.

Source: Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations". Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from pasearch.runs.compiled import instruction
from pasearch.training.compiled_activations import NONE, UNIT, exact, inlined, unsigned

PLAIN, TURNED = (np.int64(ord(each)) for each in "NT")

LINE = 64
"""Bytes that a processor fetches at once."""

_whole, _short, _real = ir.IntType(32), ir.IntType(16), ir.FloatType()


@instruction
def _gemm(context: Any, gemm: Any, turn_a: Any, turn_b: Any, m: Any, n: Any, k: Any, a: Any,
          lda: Any, b: Any, ldb: Any, beta: Any, c: Any, ldc: Any) -> Any:  # fmt: skip
    """Call BLAS' sgemm, all of whose arguments are addresses, with a factor of 1."""
    number, real, address = ir.IntType(32), ir.FloatType(), ir.IntType(8).as_pointer()

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        def kept(value: Any) -> Any:
            with builder.goto_entry_block():
                place = builder.alloca(value.type)
            builder.store(value, place)
            return builder.bitcast(place, address)

        def whole_number(value: Any) -> Any:
            return kept(builder.trunc(value, number))

        def matrix(value: Any) -> Any:
            return builder.inttoptr(value, address)

        one = kept(ir.Constant(real, 1.0))
        to, turn_a, turn_b, m, n, k, a, lda, b, ldb, beta, c, ldc = given
        kind = ir.FunctionType(ir.VoidType(), [address] * 13)
        builder.call(
            builder.inttoptr(to, kind.as_pointer()),
            [whole_number(each) for each in (turn_a, turn_b, m, n, k)]
            + [one, matrix(a), whole_number(lda), matrix(b), whole_number(ldb), kept(beta)]
            + [matrix(c), whole_number(ldc)],
        )
        return context.get_dummy_value()

    asked = [types.int64] * 10 + [types.float32] + [types.int64] * 2
    return types.void(*asked), made


@inlined
def multiply(gemm, turn_a, turn_b, m, n, k, a, b, kept, c):
    """Write A B + kept C into C, (m, n); A is (m, k), B (k, n), or what was turned of them.

    BLAS has columns side by side where we have rows, so it is given B^T and A^T.
    """
    lda = m if turn_a == TURNED else k
    ldb = k if turn_b == TURNED else n
    multiply_of(gemm, turn_a, turn_b, m, n, k, a, lda, b, ldb, kept, c)


@inlined
def multiply_of(gemm, turn_a, turn_b, m, n, k, a, lda, b, ldb, kept, c):
    """Do the same with some columns of matrices that have lda and ldb of them."""
    _gemm(
        np.int64(gemm), np.int64(turn_b), np.int64(turn_a), np.int64(n), np.int64(m), np.int64(k),
        np.int64(b.ctypes.data), np.int64(ldb), np.int64(a.ctypes.data), np.int64(lda), kept,
        np.int64(c.ctypes.data), np.int64(n),
    )  # fmt: skip


@instruction
def _upper_half(context: Any, x: Any) -> Any:
    """Return the bits of the nearest bfloat16, of two the even one; of no number they are none."""

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        bits = builder.bitcast(given[0], _whole)
        odd = builder.and_(builder.lshr(bits, _whole(16)), _whole(1))
        rounded = builder.add(builder.add(bits, _whole(0x7FFF)), odd)
        none = builder.fcmp_unordered("uno", given[0], given[0])  # rounding could make it 0
        kept = builder.select(none, _whole(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(kept, _whole(16)), _short)

    return types.uint16(types.float32), made


@instruction
def _number(context: Any, x: Any) -> Any:
    """Return the bfloat16 of these bits, as float32."""

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(given[0], _whole), _whole(16)), _real)

    return types.float32(types.uint16), made


@exact
def halve(v, at, count, first, second, to):
    """Write some numbers as sums of two bfloat16 ones."""
    for k in range(NONE, count):
        value = v[at + k]
        upper = _upper_half(value)
        first[to + k] = upper
        second[to + k] = _upper_half(value - _number(upper))


@instruction
def _fetch(context: Any, place: Any) -> Any:
    """Let a processor begin to fetch what lies at an address."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        reading, near, data = number(0), number(2), number(1)
        builder.call(fetch, [builder.inttoptr(given[0], byte), reading, near, data])
        return context.get_dummy_value()

    return types.void(types.int64), made


@exact
def halve_rows(x, places, inputs, first, second, to):
    """Write chosen rows as halves, one after another; the next one is on its way meanwhile."""
    start, last, size = np.int64(x.ctypes.data), len(places) - 1, np.int64(4 * inputs)
    for row in range(len(places)):
        after = start + places[min(row + 1, last)] * size
        for byte in range(0, size, LINE):
            _fetch(after + byte)
        halve(x, unsigned(places[row]) * inputs, inputs, first, second, to + unsigned(row) * inputs)


@inlined
def multiply_halves(gemm, turn_a, turn_b, m, n, k, a, b, kept, c):
    """Do what `compiled.multiply` does, of matrices as pairs of halves.

    The small products come first: each later addition rounds a sum that stays small.
    """
    multiply(gemm, turn_a, turn_b, m, n, k, a[0], b[1], kept, c)
    multiply(gemm, turn_a, turn_b, m, n, k, a[1], b[0], UNIT, c)
    multiply(gemm, turn_a, turn_b, m, n, k, a[0], b[0], UNIT, c)
