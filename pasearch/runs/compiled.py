"""Compiled loops that add exact normal noise to sums; see module `normals` for the definitions.

    add_noise          first stage: rounds sum + noise from the first 31 and 32 bits of U and V, and
                       lists the values whose rounding is uncertain
    round_uncertain    second stage: rounds these values from 63 and 64 bits, in float64
    add_noise_to_few   both stages in one call, if all 64 bits of U and V are available

Every operation is an IEEE operation, in the same order on every machine, without fused
multiply-add, and logarithm and cosine are polynomials. So the errors are those that
`benchmarks/floating_point/exhaustive.py` finds by trying every U and V. The released numbers are
the same as without this module, which needs numba.

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
"""Maximum error of s / g + a z in the first stage, divided by a."""


def _can_cache() -> bool:
    """Check whether numba can cache compiled code in a folder."""
    try:
        made: Any = njit(cache=True)(_can_cache)
        return hasattr(made._cache._cache_file, "_source_stamp")
    except (RuntimeError, AttributeError):  # no folder, or another numba
        return False


IS_CACHED = _can_cache()
"""Whether compiled code is cached; if not, each process compiles it."""


COMPILED_FILES = ("runs/compiled.py", "training/linear_kernel.py", "data/compiled_patches.py")
"""All files of the package with compiled code. Cached code is valid for their present content."""


SOURCES_HASH = hashlib.sha256(
    b"".join((Path(__file__).parent.parent / file).read_bytes() for file in COMPILED_FILES)
).hexdigest()


def compile_loop(**flags: Any) -> Any:
    """Make a decorator that compiles a function, as `numba.njit` does.

    Cached code is used only if no file with compiled code has changed. Numba itself checks only the
    file of the function, but code of other files may be inlined. Without this check a resumed run,
    or another process, could compute the sums of an old version.

    Args:
        flags: Further arguments of `numba.njit`.
    """

    def compile_function(function: Any) -> Any:
        found: Any = njit(nogil=True, error_model="numpy", cache=IS_CACHED, **flags)(function)
        if IS_CACHED:
            found._cache._cache_file._source_stamp = SOURCES_HASH
        return found

    return compile_function


MIN_U_BITS = 2**19  # minimum of the 31-bit integer of U for which 31 bits are precise enough
MAX_U_BITS = 2**31 - 2**14  # maximum of the 31-bit integer of U, for the same reason

float32, int32, uint64 = np.float32, np.int32, np.uint64
# Indices are unsigned, so that numba never counts from the end of an array.
ZERO_INDEX = uint64(0)
PAIR_COUNT = uint64(GROUP)  # pairs per group
NUMBER_COUNT = uint64(2 * GROUP)  # numbers per group
ONE_BIT = uint64(1)
PAIR_MASK = uint64(GROUP - 1)

inlined: Any = njit(inline="always")  # decorator of functions that are inlined
# `fastmath` is explicit, because compiled code would inherit the setting of its caller.
compiled: Any = compile_loop(fastmath=False)  # decorator of functions that are called from Python
instruction: Any = intrinsic  # decorator of functions that are one machine instruction

SIGN_MASK = int32(0x7FFFFFFF)  # all bits but the sign
LOW_32_BITS = 2**32 - 1
LOW_63_BITS = 2**63 - 1
FLOAT_HALF = float32(0.5)
FLOAT_ONE = float32(1.0)
MINUS_TWO = float32(-2.0)
NAN = float32(math.nan)
U_SCALE = float32(2.0**-31)  # U per unit of its 31-bit integer
ANGLE_SCALE = float32(math.pi * 2.0**-31)  # angle pi V per unit of the 32-bit integer of V
ROOT_HALF_BITS = int32(0x3F3504F3)  # float32 bits of sqrt(1/2)
U_RANGE = 2**31
LOG_2 = float32(0.693359375)  # high part of log 2
LOG_2_REST = float32(-2.12194440e-4)  # log 2 minus its high part
# Coefficients of the polynomials of logarithm (L), sine (S) and cosine (C).
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
    """Get the bits of a float32 number as an int32."""
    return types.int32(types.float32), _bitcast


@instruction
def bits_to_float(context: Any, x: Any) -> Any:
    """Get the float32 number that has the bits of an int32."""
    return types.float32(types.int32), _bitcast


def _bitcast(context: Any, builder: Any, sign: Any, given: Any) -> Any:
    """Emit the LLVM instruction that reinterprets the bits of a number."""
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

    U = m 2^e with m between sqrt(1/2) and sqrt(2). If e = 0, m - 1 is computed from the bits
    directly, so that no precision is lost for U near 1.
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
    """Compute cos(pi V) and sin(pi V) from 32 bits of V, by polynomials up to an angle of pi/4."""
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
    """Compute two normal numbers from 31 bits of U and 32 of V; NaN if 31 bits are not enough."""
    length = int32(length & SIGN_MASK)
    radius = _box_muller_radius(length) if MIN_U_BITS <= length <= MAX_U_BITS else NAN
    cosine, sine = _cosine_and_sine(turn)
    return radius * cosine, radius * sine


@inlined
def _round_to_grid(total, value, wide, grain, fine):
    """Round sum + noise to the grid; also return the distance to the grid point, in units of g."""
    rest = total * np.float64(fine)
    point = _round_half_even(rest)
    small = float32(rest - point) + value * wide
    moved = _round_half_even(small)
    # + 0.0 converts -0 to 0, because its sign would reveal the sign of the sum.
    return (point + np.float64(moved) + 0.0) * np.float64(grain), abs(small - moved)


@inlined
def _round_all(total, low, own, values, before, wide, grain, fine, sure):
    """Round the sums of a group, copy their old values, and count the uncertain ones."""
    doubts = int32(0)
    for k in range(ZERO_INDEX, own):
        before[k] = total[low + k]
        total[low + k], left = _round_to_grid(before[k], values[k], wide, grain, fine)
        doubts += int32(not left <= sure)
    return doubts


@lru_cache(maxsize=64)
def grid_settings(wide: float, grain: float) -> tuple[Any, ...]:
    """Compute four arguments of `add_noise`: a, g, 1 / g, and the maximum certain distance.

    Args:
        wide: Standard deviation a of the noise in units of g.
        grain: Grid distance g, a power of 2 in the range where float32 divides exactly.
    """
    sure = np.nextafter(float32(0.5 - COMPILED_ERROR * wide), float32(0.0))
    return float32(wide), float32(grain), float32(1.0 / grain), sure


@compiled
def add_noise(bits, total, wide, grain, fine, sure, first, found, places, pairs, firsts, exact):
    """Add noise to sums and round them to the grid, in place, from the first bits of U and V.

    Args:
        bits: Bits of U, then of V, for each group, int32, complete groups.
        total: Sums, float64 or float32, shape (size,); replaced by grid points.
        wide: Standard deviation a of the noise in units of g, from `grid_settings`.
        grain: Grid distance g.
        fine: Reciprocal 1 / g.
        sure: Maximum distance from a grid point at which the rounding is certain.
        first: Index of the first normal number, a multiple of the group size.
        found: Number of uncertain values so far; further ones are appended to the outputs.
        places: Output: indices of uncertain values, int64.
        pairs: Output: indices of their pairs, int64.
        firsts: Output: their bits, V in the upper half, then U, int64.
        exact: Output: their sums without noise, float64.

    Returns:
        Number of uncertain values, including the earlier ones.
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
    """Compute the noisy sum on the grid from 63 bits of U and 64 of V, and if it is uncertain."""
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
    """Round uncertain values from 63 bits of U and 64 of V, in float64.

    Args:
        total: Output: grid points, float64 or float32.
        places: Indices of the values, int64, shape (size,).
        exact: Sums without noise, float64, shape (size,).
        firsts: First 32 bits, V in the upper half, then U, int64, shape (size,).
        rests: Next 32 bits, in the same layout.
        wide: Standard deviation a of the noise in units of g.
        grain: Grid distance g.
        sure: Maximum distance from a grid point at which the rounding is certain.
        least: Minimum of the 63-bit integer of U for which float64 is precise enough.
        most: Maximum of the 63-bit integer of U.

    Returns:
        Number of values that are still uncertain; they are moved to the front of `places` and
        `exact`.
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
    """Add noise to sums and round them to the grid, in place, from whole words of U and V.

    Args:
        words: Words of all U, in complete groups, then those of all V, int64.
        total: Sums, float64 or float32, shape (size,); replaced by grid points.
        given: Result of `grid_settings`.
        finer: Last five arguments of `round_uncertain`.
        places: Output: indices of values that are still uncertain, int64, shape (size,).
        exact: Output: their sums without noise, float64, shape (size,).

    Returns:
        Number of values that are still uncertain.
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
