"""Compiled loops for exact normal noise: the computation of `normals` on arrays, in one pass.

    add_noise          bits of U and V, and a sum -> grid points, and the uncertain ones
    round_uncertain    second stage, for uncertain numbers
    add_noise_to_few   both stages at once, if all 64 bits of each are available

Every operation is an IEEE operation, in the same order on every machine (nothing is contracted or
reordered), and the functions are polynomials. So their errors are those that
`benchmarks/floating_point/exhaustive.py` finds by trying every U and V. The released numbers are
the same as without this module, which needs numba; only the number of uncertain ones is smaller.

Logarithm and cosine: the polynomials of Cephes (Moshier 1989). Proof:
docs/guarantees/floating-point.md.
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
"""Largest error of a normal number, including its product with a and the sum."""


def _can_cache() -> bool:
    """Check whether compiled code is cached in a folder; otherwise each process compiles it."""
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
    """Return a decorator that compiles a function, as `numba.njit` does.

    The cached code is valid as long as no file with compiled code changes. Numba checks only the
    function's own file, but code of other files may be inlined. Without this check a resumed run,
    or another process, could compute the sums of an old version.
    """

    def compile_function(function: Any) -> Any:
        found: Any = njit(nogil=True, error_model="numpy", cache=IS_CACHED, **flags)(function)
        if IS_CACHED:
            found._cache._cache_file._source_stamp = SOURCES_HASH
        return found

    return compile_function


MIN_U_BITS = 2**19  # smallest 31 bits of U that are precise enough
MAX_U_BITS = 2**31 - 2**14  # largest 31 bits of U that are precise enough

float32, int32, uint64 = np.float32, np.int32, np.uint64
ZERO_INDEX = uint64(0)
PAIR_COUNT = uint64(GROUP)
NUMBER_COUNT = uint64(2 * GROUP)
ONE_BIT = uint64(1)
PAIR_MASK = uint64(GROUP - 1)  # unsigned indices, so that numba never counts from the end

inlined: Any = njit(inline="always")
# Explicit, because code compiled for a caller would inherit the caller's setting.
compiled: Any = compile_loop(fastmath=False)
instruction: Any = intrinsic

SIGN_MASK = int32(0x7FFFFFFF)
LOW_32_BITS = 2**32 - 1
LOW_63_BITS = 2**63 - 1
FLOAT_HALF = float32(0.5)
FLOAT_ONE = float32(1.0)
MINUS_TWO = float32(-2.0)
NAN = float32(math.nan)
U_SCALE = float32(2.0**-31)
ANGLE_SCALE = float32(math.pi * 2.0**-31)
ROOT_HALF_BITS = int32(0x3F3504F3)
U_RANGE = 2**31
LOG_2 = float32(0.693359375)
LOG_2_REST = float32(-2.12194440e-4)
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
    """Return the 32 bits of a float32 as an int32."""
    return types.int32(types.float32), _bitcast


@instruction
def bits_to_float(context: Any, x: Any) -> Any:
    """Return the float32 with these bits."""
    return types.float32(types.int32), _bitcast


def _bitcast(context: Any, builder: Any, sign: Any, given: Any) -> Any:
    return builder.bitcast(given[0], context.get_value_type(sign.return_type))


@instruction
def _round_half_even(context: Any, x: Any) -> Any:
    """Round a float32 or float64 to the nearest integer, ties to even."""

    def emit_rint(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        kind = context.get_value_type(sign.return_type)
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [kind]), given)

    return x(x), emit_rint


@inlined
def _box_muller_radius(length):
    """Compute sqrt(-2 log U) from 31 bits of U.

    U = m 2^e with m between the roots of 1/2 and of 2. If e is 0, m - 1 is computed from the bits
    directly, so that U near 1 loses no precision.
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
    """Compute cos and sin of pi V from 32 bits of V, by polynomials on an eighth of a turn."""
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
    """Compute two normal numbers from 31 bits of U and 32 of V; NaN if these are too few."""
    length = int32(length & SIGN_MASK)
    radius = _box_muller_radius(length) if MIN_U_BITS <= length <= MAX_U_BITS else NAN
    cosine, sine = _cosine_and_sine(turn)
    return radius * cosine, radius * sine


@inlined
def _round_to_grid(total, value, wide, grain, fine):
    """Round a sum with its noise to the grid; also return the distance from it in grid points."""
    rest = total * np.float64(fine)
    point = _round_half_even(rest)
    small = float32(rest - point) + value * wide
    moved = _round_half_even(small)
    # + 0.0 makes a zero positive: its sign would tell on which side of it the sum was.
    return (point + np.float64(moved) + 0.0) * np.float64(grain), abs(small - moved)


@inlined
def _round_all(total, low, own, values, before, wide, grain, fine, sure):
    """Round the sums of a group, keep their values from before, and count the uncertain ones."""
    doubts = int32(0)
    for k in range(ZERO_INDEX, own):
        before[k] = total[low + k]
        total[low + k], left = _round_to_grid(before[k], values[k], wide, grain, fine)
        doubts += int32(not left <= sure)
    return doubts


@lru_cache(maxsize=64)
def grid_settings(wide: float, grain: float) -> tuple[Any, ...]:
    """Return the arguments of `add_noise`: a, g, 1 / g, and the largest certain distance.

    Args:
        wide: Standard deviation a in grid points.
        grain: Grid distance g, a power of 2 that float32 divides by exactly.
    """
    sure = np.nextafter(float32(0.5 - COMPILED_ERROR * wide), float32(0.0))
    return float32(wide), float32(grain), float32(1.0 / grain), sure


@compiled
def add_noise(bits, total, wide, grain, fine, sure, first, found, places, pairs, firsts, exact):
    """Round total + wide z to multiples of the grain, in place; z is never stored.

    Args:
        bits: Bits of U, then of V, for each group: int32, shape (size,), complete groups.
        total: Sums, float64 or float32, shape (size,); replaced by grid points.
        wide: Standard deviation a in grid points, from `grid_settings`.
        grain: Grid distance g.
        fine: Reciprocal 1 / g.
        sure: Largest distance from a grid point at which the rounding is certain.
        first: Index of the first number, a multiple of the group size.
        found: Number of uncertain numbers so far; further ones are appended.
        places: Output: indices of uncertain numbers, int64.
        pairs: Output: indices of their pairs, int64.
        firsts: Output: their bits, those of V above those of U, int64.
        exact: Output: their sums before the noise, float64.

    Returns:
        Number of uncertain numbers.
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
    """Compute a grid point from 63 bits of U and 64 of V, and whether it is uncertain."""
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
    """Round uncertain numbers by 63 bits of each U and 64 of each V, in float64.

    Args:
        total: Output: grid points, float64 or float32.
        places: Indices of the numbers, int64, shape (size,).
        exact: Sums before the noise, float64, shape (size,).
        firsts: First bits, those of V above those of U, int64, shape (size,).
        rests: Next bits, in the same form.
        wide: Standard deviation a in grid points.
        grain: Grid distance g.
        sure: Largest distance from a grid point at which the rounding is certain.
        least: Smallest 63 bits of U for which float64 is precise enough.
        most: Largest ones.

    Returns:
        Number of numbers that are still uncertain: now the first ones in `places` and `exact`.
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
    """Round total + wide z to multiples of the grain, in place, with all 64 bits available.

    Args:
        words: Words of U, in complete groups, then those of V: int64.
        total: Sums, float64 or float32, shape (size,); replaced by grid points.
        given: Result of `grid_settings`.
        finer: Last five arguments of `round_uncertain`.
        places: Output: indices of numbers that are still uncertain, int64, shape (size,).
        exact: Output: their sums before the noise, float64, shape (size,).

    Returns:
        Number of numbers that are still uncertain.
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
