"""The loops of exact normal noise in machine code: what `normals` does by arrays, in one pass.

    release      bits of U and V, and a sum -> grid points, and which of them are in doubt
    settle       the second stage, of what is in doubt
    release_few  both at once, of all 64 bits of each

Every operation is one of IEEE's, in this order on every machine (nothing is contracted or
reordered), and the functions are polynomials: so their errors are those that
`benchmarks/floating_point/exhaustive.py` finds by trying every U and V there is. What is released
is the same as without this module, which needs numba: only the doubts are fewer.

log and cosine: the polynomials of Cephes (Moshier 1989). Proof: docs/guarantees/floating-point.md.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from pasearch.runs.processor import GROUP

BY_COMPILED = 9 * 2.0**-22
"""How much a normal number errs at most, what its product with a and the sum add included."""


def _is_kept() -> bool:
    """Whether machine code is kept in a folder: else each process compiles its own."""
    try:
        made: Any = njit(cache=True)(_is_kept)
        return hasattr(made._cache._cache_file, "_source_stamp")
    except (RuntimeError, AttributeError):  # no folder, or another numba
        return False


CACHED = _is_kept()


FILES = ("runs/compiled.py", "training/linear_kernel.py", "data/compiled_patches.py")
"""All files of the package with compiled code. Numba's cache is bound to the content of all."""


SOURCES = hashlib.sha256(
    b"".join((Path(__file__).parent.parent / file).read_bytes() for file in FILES)
).hexdigest()


def loop(**flags: Any) -> Any:
    """Return what makes machine code of a function, as `numba.njit` does.

    What is kept of it is good as long as all loops are what they were. Numba looks at a function's
    own file alone, but some stand in others' code: of a run that is resumed, or in another process,
    sums could be those of a file that is no more.
    """

    def made(function: Any) -> Any:
        found: Any = njit(nogil=True, error_model="numpy", cache=CACHED, **flags)(function)
        if CACHED:
            found._cache._cache_file._source_stamp = SOURCES
        return found

    return made


LOW, HIGH = 2**19, 2**31 - 2**14
"""Between them 31 bits of U are enough."""

single, whole, unsigned = np.float32, np.int32, np.uint64
NONE, PAIRS, BOTH = unsigned(0), unsigned(GROUP), unsigned(2 * GROUP)
ONCE = unsigned(1)
LAST = unsigned(GROUP - 1)  # places without a sign: numba never counts them from the end

inlined: Any = njit(inline="always")
# Said in so many words, as what is compiled for a caller takes over the caller's otherwise.
compiled: Any = loop(fastmath=False)
instruction: Any = intrinsic

SIGN, LOWER, MASK = whole(0x7FFFFFFF), 2**32 - 1, 2**63 - 1
HALF, ONE, MINUS_TWO = single(0.5), single(1.0), single(-2.0)
NAN = single(math.nan)
UNIT, TURN = single(2.0**-31), single(math.pi * 2.0**-31)
ROOT_HALF, TOP = whole(0x3F3504F3), 2**31
LOG_2, LOG_2_REST = single(0.693359375), single(-2.12194440e-4)
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (
    single(each)
    for each in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip
S0, S1, S2 = (single(each) for each in (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
C0, C1, C2 = (single(each) for each in (2.443315711809948e-5, -1.388731625493765e-3,
                                        4.166664568298827e-2))  # fmt: skip


@instruction
def bits_of(context: Any, x: Any) -> Any:
    """Return a float32's 32 bits as a whole number."""
    return types.int32(types.float32), _as_it_lies


@instruction
def number_of(context: Any, x: Any) -> Any:
    """Return the float32 whose bits these are."""
    return types.float32(types.int32), _as_it_lies


def _as_it_lies(context: Any, builder: Any, sign: Any, given: Any) -> Any:
    return builder.bitcast(given[0], context.get_value_type(sign.return_type))


@instruction
def _nearest(context: Any, x: Any) -> Any:
    """Return the nearest integer of a float32 or float64, of two the even one."""

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        kind = context.get_value_type(sign.return_type)
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [kind]), given)

    return x(x), made


@inlined
def _radius(length):
    """Return sqrt(-2 log U), of 31 bits of U.

    U = m 2^e with m between the roots of 1/2 and of 2. Where e is 0, m - 1 is taken from the bits
    themselves: of U near 1 nothing is lost.
    """
    u = (single(length) + HALF) * UNIT
    bits = bits_of(u)
    e = whole(whole(bits - ROOT_HALF) >> 23)
    below = (single(whole(length - TOP)) + HALF) * UNIT
    m = below if e == 0 else number_of(whole(bits - whole(e << 23))) - ONE
    square = m * m
    p = L0 * m + L1
    p = p * m + L2
    p = p * m + L3
    p = p * m + L4
    p = p * m + L5
    p = p * m + L6
    p = p * m + L7
    p = p * m + L8
    y = p * m * square + single(e) * LOG_2_REST - HALF * square
    return single(math.sqrt(MINUS_TWO * ((m + y) + single(e) * LOG_2)))


@inlined
def _cosine_and_sine(turn):
    """Return cos and sin of pi V, of 32 bits of V: polynomials of an eighth of a turn at most."""
    quarter = whole(whole(turn + whole(0x20000000)) >> 30)
    angle = single(whole(turn - whole(quarter << 30))) * TURN
    z = angle * angle
    sine = ((S0 * z + S1) * z + S2) * z * angle + angle
    cosine = ((C0 * z + C1) * z + C2) * z * z - HALF * z + ONE
    odd = (quarter & 1) != 0
    first, second = (sine, cosine) if odd else (cosine, sine)
    first = number_of(whole(bits_of(first) ^ whole(whole(whole(quarter + 1) & 2) << 30)))
    return first, number_of(whole(bits_of(second) ^ whole(whole(quarter & 2) << 30)))


@inlined
def _pair(length, turn):
    """Return two normal numbers, of 31 bits of U and 32 of V; NaN where these are too few."""
    length = whole(length & SIGN)
    radius = _radius(length) if LOW <= length <= HIGH else NAN
    cosine, sine = _cosine_and_sine(turn)
    return radius * cosine, radius * sine


@inlined
def _rounded(total, value, wide, grain, fine):
    """Return a sum with its noise on the grid, and how far from it that was, in grid points."""
    rest = total * np.float64(fine)
    point = _nearest(rest)
    small = single(rest - point) + value * wide
    moved = _nearest(small)
    # + 0.0 makes a zero positive: its sign would tell on which side of it the sum was.
    return (point + np.float64(moved) + 0.0) * np.float64(grain), abs(small - moved)


@inlined
def _round_all(total, low, own, values, before, wide, grain, fine, sure):
    """Round a group's sums, keep what they were, and return how many may be wrong."""
    doubts = whole(0)
    for k in range(NONE, own):
        before[k] = total[low + k]
        total[low + k], left = _rounded(before[k], values[k], wide, grain, fine)
        doubts += whole(not left <= sure)
    return doubts


@lru_cache(maxsize=64)
def settings(wide: float, grain: float) -> tuple[Any, ...]:
    """Return what `release` takes: a, g, 1 / g, and how far from the grid a sure number may lie.

    Args:
        wide: a.
        grain: g, a power of 2 that float32 divides by exactly.
    """
    sure = np.nextafter(single(0.5 - BY_COMPILED * wide), single(0.0))
    return single(wide), single(grain), single(1.0 / grain), sure


@compiled
def release(bits, total, wide, grain, fine, sure, first, found, places, pairs, firsts, exact):
    """Round total + wide z to multiples of the grain, in place; z never leaves the processor.

    Args:
        bits: Of every group first those of U and then those of V: int32, (size,), whole groups.
        total: Float64 or float32, (size,).
        wide: Of `settings`, like the next three.
        grain: See there.
        fine: See there.
        sure: See there.
        first: The place of the first number, a multiple of a group's.
        found: How many may be rounded to the wrong one already: what follows goes behind them.
        places: Where the places of those go, int64.
        pairs: Where their pairs go, int64.
        firsts: Where their bits go, those of V above those of U, int64.
        exact: Where their totals go, float64.

    Returns:
        How many may be rounded to the wrong one by now.
    """
    values, before = np.empty(2 * GROUP, np.float32), np.empty(2 * GROUP, np.float64)
    size = unsigned(len(total))
    for low in range(NONE, size, BOTH):
        for k in range(NONE, PAIRS):
            values[k], values[PAIRS + k] = _pair(bits[low + k], bits[low + PAIRS + k])
        own = min(BOTH, size - low)
        if _round_all(total, low, own, values, before, wide, grain, fine, sure):
            for k in range(NONE, own):
                if not _rounded(before[k], values[k], wide, grain, fine)[1] <= sure:
                    pair = low + (k & LAST)
                    places[found], exact[found] = first + np.int64(low + k), before[k]
                    pairs[found] = (first + np.int64(low)) // 2 + np.int64(k & LAST)
                    length, turn = np.int64(bits[pair]), np.int64(bits[pair + PAIRS])
                    firsts[found] = turn << 32 | length & LOWER
                    found += 1
    return found


@inlined
def _finely(length, turn, exact, twin, wide, grain, sure, least, most):
    """Return a grid point by 63 bits of U and 64 of V, in float64, and whether it is in doubt."""
    radius = math.sqrt(-2.0 * math.log((length + 0.5) * 2.0**-63))
    angle = turn * (math.pi * 2.0**-63)
    value = radius * (math.sin(angle) if twin else math.cos(angle))
    point = np.rint(exact / grain)
    rest = (exact / grain - point) + value * wide
    moved = np.rint(rest)
    near = not (abs(rest - moved) <= sure and least <= length <= most)
    return (point + moved + 0.0) * grain, near


@compiled
def settle(total, places, exact, firsts, rests, wide, grain, sure, least, most):
    """Round what is in doubt by 63 bits of each U and 64 of each V, in float64.

    Args:
        total: Where the grid points go, float64 or float32.
        places: Of the numbers, int64, (size,).
        exact: Their totals, float64, (size,).
        firsts: Their first bits, those of V above those of U, int64, (size,).
        rests: The next ones.
        wide: a.
        grain: g.
        sure: How far a number may lie from the whole number that it is rounded to.
        least: Of the 63 bits of U, that float64 can tell.
        most: Of them.

    Returns:
        How many are in doubt still: they come first in `places` and `exact` now.
    """
    found = 0
    for k in range(len(firsts)):
        length = (firsts[k] << 32 | rests[k] & LOWER) & MASK
        turn = firsts[k] & ~LOWER | rests[k] >> 32 & LOWER
        twin = places[k] & GROUP
        total[places[k]], near = _finely(
            length, turn, exact[k], twin, wide, grain, sure, least, most
        )
        if near:
            places[found], exact[found] = places[k], exact[k]
            found += 1
    return found


@compiled
def release_few(words, total, given, finer, places, exact):
    """Round total + wide z to multiples of the grain, in place, where all bits are there already.

    Args:
        words: First those of U, of whole groups, and then those of V: int64.
        total: Float64 or float32, (size,).
        given: `settings`.
        finer: What `settle` takes behind the rests.
        places: Where the places go of what is in doubt still, int64, (size,).
        exact: Where their totals go, float64, (size,).

    Returns:
        How many are.
    """
    values, before = np.empty(2 * GROUP, np.float32), np.empty(2 * GROUP, np.float64)
    size, half, found = unsigned(len(total)), unsigned(len(words) // 2), 0
    wide, grain, fine, sure = given
    exactly, point, surer, least, most = finer
    for low in range(NONE, size, BOTH):
        pair = low >> ONCE
        for k in range(NONE, PAIRS):
            length, turn = words[pair + k] >> 32, words[half + pair + k] >> 32
            values[k], values[PAIRS + k] = _pair(whole(length), whole(turn))
        own = min(BOTH, size - low)
        if _round_all(total, low, own, values, before, wide, grain, fine, sure):
            for k in range(NONE, own):
                if not _rounded(before[k], values[k], wide, grain, fine)[1] <= sure:
                    place = pair + (k & LAST)
                    length, turn = words[place] & MASK, words[half + place]
                    total[low + k], near = _finely(
                        length, turn, np.float64(before[k]), k >= PAIRS, exactly, point, surer,
                        least, most,
                    )  # fmt: skip
                    if near:
                        places[found], exact[found] = np.int64(low + k), before[k]
                        found += 1
    return found
