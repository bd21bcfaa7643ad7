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

COMPILED_ERROR = 9 * 2.0**-22
"""How much a normal number errs at most, what its product with a and the sum add included."""


def _can_cache() -> bool:
    """Whether machine code is kept in a folder: else each process compiles its own."""
    try:
        made: Any = njit(cache=True)(_can_cache)
        return hasattr(made._cache._cache_file, "_source_stamp")
    except (RuntimeError, AttributeError):  # no folder, or another numba
        return False


IS_CACHED = _can_cache()


COMPILED_FILES = ("runs/compiled.py", "training/linear_kernel.py", "data/compiled_patches.py")
"""All files of the package with compiled code. Numba's cache is bound to the content of all."""


SOURCES_HASH = hashlib.sha256(
    b"".join((Path(__file__).parent.parent / file).read_bytes() for file in COMPILED_FILES)
).hexdigest()


def compile_loop(**flags: Any) -> Any:
    """Return what makes machine code of a function, as `numba.njit` does.

    What is kept of it is good as long as all loops are what they were. Numba looks at a function's
    own file alone, but some stand in others' code: of a run that is resumed, or in another process,
    sums could be those of a file that is no more.
    """

    def made(function: Any) -> Any:
        found: Any = njit(nogil=True, error_model="numpy", cache=IS_CACHED, **flags)(function)
        if IS_CACHED:
            found._cache._cache_file._source_stamp = SOURCES_HASH
        return found

    return made


MIN_U_BITS, MAX_U_BITS = 2**19, 2**31 - 2**14
"""Between them 31 bits of U are enough."""

float32, int32, uint64 = np.float32, np.int32, np.uint64
ZERO_INDEX, PAIR_COUNT, NUMBER_COUNT = uint64(0), uint64(GROUP), uint64(2 * GROUP)
ONE_BIT = uint64(1)
PAIR_MASK = uint64(GROUP - 1)  # places without a sign: numba never counts them from the end

inlined: Any = njit(inline="always")
# Said in so many words, as what is compiled for a caller takes over the caller's otherwise.
compiled: Any = compile_loop(fastmath=False)
instruction: Any = intrinsic

SIGN_MASK, LOW_32_BITS, LOW_63_BITS = int32(0x7FFFFFFF), 2**32 - 1, 2**63 - 1
FLOAT_HALF, FLOAT_ONE, MINUS_TWO = float32(0.5), float32(1.0), float32(-2.0)
NAN = float32(math.nan)
U_SCALE, ANGLE_SCALE = float32(2.0**-31), float32(math.pi * 2.0**-31)
ROOT_HALF_BITS, U_RANGE = int32(0x3F3504F3), 2**31
LOG_2, LOG_2_REST = float32(0.693359375), float32(-2.12194440e-4)
L0, L1, L2, L3, L4, L5, L6, L7, L8 = (
    float32(each)
    for each in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip
S0, S1, S2 = (float32(each) for each in (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
C0, C1, C2 = (float32(each) for each in (2.443315711809948e-5, -1.388731625493765e-3,
                                        4.166664568298827e-2))  # fmt: skip


@instruction
def float_to_bits(context: Any, x: Any) -> Any:
    """Return a float32's 32 bits as a whole number."""
    return types.int32(types.float32), _bitcast


@instruction
def bits_to_float(context: Any, x: Any) -> Any:
    """Return the float32 whose bits these are."""
    return types.float32(types.int32), _bitcast


def _bitcast(context: Any, builder: Any, sign: Any, given: Any) -> Any:
    return builder.bitcast(given[0], context.get_value_type(sign.return_type))


@instruction
def _round_half_even(context: Any, x: Any) -> Any:
    """Return the nearest integer of a float32 or float64, of two the even one."""

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        kind = context.get_value_type(sign.return_type)
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [kind]), given)

    return x(x), made


@inlined
def _box_muller_radius(length):
    """Return sqrt(-2 log U), of 31 bits of U.

    U = m 2^e with m between the roots of 1/2 and of 2. Where e is 0, m - 1 is taken from the bits
    themselves: of U near 1 nothing is lost.
    """
    u = (float32(length) + FLOAT_HALF) * U_SCALE
    bits = float_to_bits(u)
    e = int32(int32(bits - ROOT_HALF_BITS) >> 23)
    below = (float32(int32(length - U_RANGE)) + FLOAT_HALF) * U_SCALE
    m = below if e == 0 else bits_to_float(int32(bits - int32(e << 23))) - FLOAT_ONE
    square = m * m
    p = L0 * m + L1
    p = p * m + L2
    p = p * m + L3
    p = p * m + L4
    p = p * m + L5
    p = p * m + L6
    p = p * m + L7
    p = p * m + L8
    y = p * m * square + float32(e) * LOG_2_REST - FLOAT_HALF * square
    return float32(math.sqrt(MINUS_TWO * ((m + y) + float32(e) * LOG_2)))


@inlined
def _cosine_and_sine(turn):
    """Return cos and sin of pi V, of 32 bits of V: polynomials of an eighth of a turn at most."""
    quarter = int32(int32(turn + int32(0x20000000)) >> 30)
    angle = float32(int32(turn - int32(quarter << 30))) * ANGLE_SCALE
    z = angle * angle
    sine = ((S0 * z + S1) * z + S2) * z * angle + angle
    cosine = ((C0 * z + C1) * z + C2) * z * z - FLOAT_HALF * z + FLOAT_ONE
    odd = (quarter & 1) != 0
    first, second = (sine, cosine) if odd else (cosine, sine)
    first = bits_to_float(int32(float_to_bits(first) ^ int32(int32(int32(quarter + 1) & 2) << 30)))
    return first, bits_to_float(int32(float_to_bits(second) ^ int32(int32(quarter & 2) << 30)))


@inlined
def _normal_pair(length, turn):
    """Return two normal numbers, of 31 bits of U and 32 of V; NaN where these are too few."""
    length = int32(length & SIGN_MASK)
    radius = _box_muller_radius(length) if MIN_U_BITS <= length <= MAX_U_BITS else NAN
    cosine, sine = _cosine_and_sine(turn)
    return radius * cosine, radius * sine


@inlined
def _round_to_grid(total, value, wide, grain, fine):
    """Return a sum with its noise on the grid, and how far from it that was, in grid points."""
    rest = total * np.float64(fine)
    point = _round_half_even(rest)
    small = float32(rest - point) + value * wide
    moved = _round_half_even(small)
    # + 0.0 makes a zero positive: its sign would tell on which side of it the sum was.
    return (point + np.float64(moved) + 0.0) * np.float64(grain), abs(small - moved)


@inlined
def _round_all(total, low, own, values, before, wide, grain, fine, sure):
    """Round a group's sums, keep what they were, and return how many may be wrong."""
    doubts = int32(0)
    for k in range(ZERO_INDEX, own):
        before[k] = total[low + k]
        total[low + k], left = _round_to_grid(before[k], values[k], wide, grain, fine)
        doubts += int32(not left <= sure)
    return doubts


@lru_cache(maxsize=64)
def grid_settings(wide: float, grain: float) -> tuple[Any, ...]:
    """Return what `release` takes: a, g, 1 / g, and how far from the grid a sure number may lie.

    Args:
        wide: a.
        grain: g, a power of 2 that float32 divides by exactly.
    """
    sure = np.nextafter(float32(0.5 - COMPILED_ERROR * wide), float32(0.0))
    return float32(wide), float32(grain), float32(1.0 / grain), sure


@compiled
def add_noise(bits, total, wide, grain, fine, sure, first, found, places, pairs, firsts, exact):
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
    size = uint64(len(total))
    for low in range(ZERO_INDEX, size, NUMBER_COUNT):
        for k in range(ZERO_INDEX, PAIR_COUNT):
            values[k], values[PAIR_COUNT + k] = _normal_pair(
                bits[low + k], bits[low + PAIR_COUNT + k]
            )
        own = min(NUMBER_COUNT, size - low)
        if _round_all(total, low, own, values, before, wide, grain, fine, sure):
            for k in range(ZERO_INDEX, own):
                if not _round_to_grid(before[k], values[k], wide, grain, fine)[1] <= sure:
                    pair = low + (k & PAIR_MASK)
                    places[found], exact[found] = first + np.int64(low + k), before[k]
                    pairs[found] = (first + np.int64(low)) // 2 + np.int64(k & PAIR_MASK)
                    length, turn = np.int64(bits[pair]), np.int64(bits[pair + PAIR_COUNT])
                    firsts[found] = turn << 32 | length & LOW_32_BITS
                    found += 1
    return found


@inlined
def _round_in_float64(length, turn, exact, twin, wide, grain, sure, least, most):
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
def round_uncertain(total, places, exact, firsts, rests, wide, grain, sure, least, most):
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
        length = (firsts[k] << 32 | rests[k] & LOW_32_BITS) & LOW_63_BITS
        turn = firsts[k] & ~LOW_32_BITS | rests[k] >> 32 & LOW_32_BITS
        twin = places[k] & GROUP
        total[places[k]], near = _round_in_float64(
            length, turn, exact[k], twin, wide, grain, sure, least, most
        )
        if near:
            places[found], exact[found] = places[k], exact[k]
            found += 1
    return found


@compiled
def add_noise_to_few(words, total, given, finer, places, exact):
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
    size, half, found = uint64(len(total)), uint64(len(words) // 2), 0
    wide, grain, fine, sure = given
    exactly, point, surer, least, most = finer
    for low in range(ZERO_INDEX, size, NUMBER_COUNT):
        pair = low >> ONE_BIT
        for k in range(ZERO_INDEX, PAIR_COUNT):
            length, turn = words[pair + k] >> 32, words[half + pair + k] >> 32
            values[k], values[PAIR_COUNT + k] = _normal_pair(int32(length), int32(turn))
        own = min(NUMBER_COUNT, size - low)
        if _round_all(total, low, own, values, before, wide, grain, fine, sure):
            for k in range(ZERO_INDEX, own):
                if not _round_to_grid(before[k], values[k], wide, grain, fine)[1] <= sure:
                    place = pair + (k & PAIR_MASK)
                    length, turn = words[place] & LOW_63_BITS, words[half + place]
                    total[low + k], near = _round_in_float64(
                        length, turn, np.float64(before[k]), k >= PAIR_COUNT, exactly, point, surer,
                        least, most,
                    )  # fmt: skip
                    if near:
                        places[found], exact[found] = np.int64(low + k), before[k]
                        found += 1
    return found
