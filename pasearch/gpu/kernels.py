"""Triton kernels for random bits on a GPU, and for adding noise to a sum.

    bits      Philox 4x32, ten rounds: key 64 bits, counter (index, step of the block, a, b)
    uniform   the upper 24 bits of the first word, as a number in [0, 1)
    release   sum / g + a z, rounded to an integer, times g; then the weights are updated by it
    settle    the same for the values that `release` could not round with certainty

g is the spacing of the grid to which sums are rounded, and z is standard normal noise as module
`normals` defines it, from two random numbers U and V. `release` uses 31 bits of U and 32 of V, in
float32. Its formulas are those of the compiled CPU kernels (`compiled`), with the same operations
in the same order and without fused multiply-add, so the errors are equal. For about one value in a
thousand these bits do not determine the rounding. Such a "doubt" is left to `settle`, which uses
all 127 bits in float64, as `normals.UnrefinedNormals` does. If these do not suffice either, the
kernel notes the step, and nothing of that step may be used.

Source: docs/rules.md, rule 11; Salmon et al. 2011 (Philox). Proof: docs/guarantees/randomness.md,
docs/guarantees/floating-point.md ("On a GPU").
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from pasearch.runs import compiled as code
from pasearch.runs.keys import to_int64
from pasearch.runs.normals import UNREFINED_ERROR, count_pairs

PAIRS_PER_PROGRAM = 128  # pairs of values to which a program of `release` adds noise
WARPS_PER_PROGRAM = 2  # warps of a program of `release`
SETTLE_BATCH = 64  # values that a program of `settle` rounds at once
SETTLE_PROGRAMS = 16  # programs of `settle` for each row

# The buffer of doubts has this capacity plus one doubt per so many values. If there are more
# doubts, the step is noted, as for a sum that is not finite.
MIN_DOUBT_CAPACITY = 4096
NUMBERS_PER_DOUBT = 64

(
    INPUTS_ADDRESS,  # address of the inputs of all steps
    SUMS_ADDRESS,  # address of the sum
    WEIGHTS_ADDRESS,  # address of the updated weights, or 0
    MOMENTUM_ADDRESS,  # address of the momentum, or 0
    AVERAGE_ADDRESS,  # address of the weights' average, or 0
    HIGH_HALVES_ADDRESS,  # address of the weights' high bfloat16 halves, or 0
    LOW_HALVES_ADDRESS,  # address of the low halves, or 0
    FIRST_WRONG_ADDRESS,  # address of the first step that may be wrong
    DOUBTS_ADDRESS,  # address of the doubts: number, capacity, indices
    SUM_LENGTH,  # number of values of the sum
    INPUTS_PER_STEP,  # int64 inputs per step
) = (tl.constexpr(k) for k in range(11))  # indices in a row of `release`, int64

RELEASE_FIELDS = 11  # number of these fields

(
    NOISE_SCALE,  # a
    GRID_SPACING,  # g; 0: no noise
    LEARNING_RATE,  # factor of the update that is subtracted
    MOMENTUM_FACTOR,  # factor of the previous momentum
    SUM_SCALE,  # 1 / batch size
    AVERAGE_WEIGHT,  # weight of the new weights in the average
    NOISE_KEY,  # key, int64
    COUNTER_START,  # start of the counter, int64
    MAX_SURE_DISTANCE,  # largest distance from the grid point of a sure number, float32
    INVERSE_SPACING,  # 1 / g
) = (tl.constexpr(k) for k in range(10))  # indices of a step's inputs, float64 unless noted

_WORD_UNIT = tl.constexpr(2.0**-63)
_WORD_ANGLE = tl.constexpr(math.pi * 2.0**-63)
_FLOAT64_UNIT = tl.constexpr(2.0**-53)
_FLOAT64_ERROR = tl.constexpr(UNREFINED_ERROR)
_WORD_MASK = tl.constexpr(2**63 - 1)
_UNIFORM_UNIT = tl.constexpr(2.0**-24)
_ROUNDING_SHIFT = tl.constexpr(1.5 * 2.0**23)
_MAX_ROUNDED = tl.constexpr(2.0**22)
_MIN_LENGTH = tl.constexpr(code.MIN_U_BITS)
_MAX_LENGTH = tl.constexpr(code.MAX_U_BITS)
_LENGTH_UNIT = tl.constexpr(float(code.U_SCALE))
_TURN_UNIT = tl.constexpr(float(code.ANGLE_SCALE))
_ROOT_HALF_BITS = tl.constexpr(int(code.ROOT_HALF_BITS))
_LOG_2 = tl.constexpr(float(code.LOG_2))
_LOG_2_REST = tl.constexpr(float(code.LOG_2_REST))
(_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8) = (
    tl.constexpr(float(each))
    for each in (code.L0, code.L1, code.L2, code.L3, code.L4, code.L5, code.L6, code.L7, code.L8)
)
_S0, _S1, _S2 = (tl.constexpr(float(each)) for each in (code.S0, code.S1, code.S2))
_C0, _C1, _C2 = (tl.constexpr(float(each)) for each in (code.C0, code.C1, code.C2))


@triton.jit
def as_float_address(place):
    """Cast an integer to the address of float32 numbers."""
    return place.to(tl.pointer_type(tl.float32))


@triton.jit
def load_float_address(at):
    """Load the address of a flat float32 tensor, which is a multiple of 16."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def as_int_address(place):
    """Cast an integer to the address of int32 numbers."""
    return place.to(tl.pointer_type(tl.int32))


@triton.jit
def as_long_address(place):
    """Cast an integer to the address of int64 numbers."""
    return place.to(tl.pointer_type(tl.int64))


@triton.jit
def load_halves_address(at):
    """Load the address of a flat bfloat16 tensor, which is a multiple of 16."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(tl.bfloat16)), 16)


@triton.jit
def split_halves(a):
    """Split float32 numbers into the nearest bfloat16 numbers and the bfloat16 of the differences.

    Integer operations are used because they take a quarter of the time of a conversion. Ties round
    to even, as in PyTorch, which splits the weights before each round of steps.
    """
    bits = a.to(tl.int32, bitcast=True)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    near = (bits & -65536).to(tl.float32, bitcast=True)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True), (a - near).to(tl.bfloat16)


@triton.jit
def load_double(at):
    """Load a float64 number that is stored in an int64 field."""
    return tl.load(at).to(tl.float64, bitcast=True)


@triton.jit
def draw_uniforms(key, places, step, draw):
    """Draw a uniform float32 number in [0, 1) for each index in `places`."""
    at = places.to(tl.uint32)
    zero = at * 0
    first, _, _, _ = tl.philox(key, at, zero + step.to(tl.uint32), zero + draw.to(tl.uint32), zero)
    return (first >> 8).to(tl.float32) * _UNIFORM_UNIT


@triton.jit
def draw_words(given, pair, step):
    """Draw two random int64 words, for U and V, for each index in `pair`."""
    begin = tl.load(given + COUNTER_START)
    at = pair.to(tl.uint32)
    low, high = (begin & 0xFFFFFFFF).to(tl.uint32), (begin >> 32).to(tl.uint32)
    zero = at * 0
    a, b, c, d = tl.philox(
        tl.load(given + NOISE_KEY), at, zero + step.to(tl.uint32), zero + low, zero + high
    )
    u = a.to(tl.int64) | (b.to(tl.int64) << 32)
    v = c.to(tl.int64) | (d.to(tl.int64) << 32)
    return u, v


@triton.jit
def _radius(length):
    """Compute sqrt(-2 log U) from 31 bits of U, as `compiled._box_muller_radius`."""
    u = (length.to(tl.float32) + 0.5) * _LENGTH_UNIT
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - _ROOT_HALF_BITS) >> 23
    below = ((length + (-2147483647 - 1)).to(tl.float32) + 0.5) * _LENGTH_UNIT
    m = tl.where(e == 0, below, (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0)
    square = m * m
    p = _L0 * m + _L1
    p = p * m + _L2
    p = p * m + _L3
    p = p * m + _L4
    p = p * m + _L5
    p = p * m + _L6
    p = p * m + _L7
    p = p * m + _L8
    power = e.to(tl.float32)
    y = p * m * square + power * _LOG_2_REST - 0.5 * square
    return tl.sqrt_rn(-2.0 * ((m + y) + power * _LOG_2))


@triton.jit
def _cosine_and_sine(turn):
    """Compute cos and sin of pi V from 32 bits of V, as `compiled._cosine_and_sine`."""
    quarter = (turn + 0x20000000) >> 30
    angle = (turn - (quarter << 30)).to(tl.float32) * _TURN_UNIT
    z = angle * angle
    sine = ((_S0 * z + _S1) * z + _S2) * z * angle + angle
    cosine = ((_C0 * z + _C1) * z + _C2) * z * z - 0.5 * z + 1.0
    odd = (quarter & 1) != 0
    first, second = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    first = tl.where(((quarter + 1) & 2) != 0, -first, first)
    return first, tl.where((quarter & 2) != 0, -second, second)


@triton.jit
def _round_to_grid(total, value, wide, grain, fine, sure):
    """Round total + noise to the grid; also return whether another grid point is possible.

    Args:
        total: Sum without noise.
        value: Standard normal numbers.
        wide: Standard deviation of the noise, in units of the grid spacing.
        grain: Grid spacing.
        fine: 1 / grid spacing.
        sure: Maximum distance from a grid point at which the rounding is certain.

    Adding and subtracting a large number rounds to the nearest integer. The operations are those of
    `compiled._round_to_grid`.
    """
    rest = total * fine
    doubt = (tl.abs(rest) < _MAX_ROUNDED) == 0
    point = (rest + _ROUNDING_SHIFT) - _ROUNDING_SHIFT
    rest = (rest - point) + value * wide
    moved = (rest + _ROUNDING_SHIFT) - _ROUNDING_SHIFT
    doubt = doubt | ((tl.abs(rest - moved) <= sure) == 0)
    point = point + moved
    return tl.where(point == 0.0, 0.0, point) * grain, doubt  # avoids negative zero


@triton.jit
def _load_values(at, there, ALL: tl.constexpr):
    """Load numbers; ALL states that every index is valid."""
    return tl.load(at) if ALL else tl.load(at, mask=there, other=0.0)


@triton.jit
def _store_values(at, values, there, ALL: tl.constexpr):
    """Store numbers; ALL states that every index is valid."""
    if ALL:
        tl.store(at, values)
    else:
        tl.store(at, values, mask=there)


@triton.jit
def _list_changes(own, given):
    """List whether a step changes the weights, the momentum, and the average (three flags)."""
    weights, averaged = tl.load(own + WEIGHTS_ADDRESS) != 0, tl.load(own + AVERAGE_ADDRESS) != 0
    averaged = weights & averaged & (load_double(given + AVERAGE_WEIGHT) > 0.0)
    return weights, weights & (tl.load(own + MOMENTUM_ADDRESS) != 0), averaged


@triton.jit
def _load_before(at, places, there, asked, ALL: tl.constexpr):
    """Load the old values that a step changes; early, because loading takes long."""
    found = (places * 0).to(tl.float32)
    if asked:
        found = _load_values(load_float_address(at) + places, there, ALL)
    return found


@triton.jit
def _update_weights(
    own, given, places, there, released, left, weights, moment, mean, asked, ALL: tl.constexpr
):
    """Update weights, momentum and average by the released sum, as `optimizers.SgdUpdate` does.

    Values marked in `left` are unchanged; `settle` updates them.
    """
    if asked[0]:
        rate = load_double(given + LEARNING_RATE).to(tl.float32)
        share = load_double(given + SUM_SCALE).to(tl.float32)
        taken = released * share
        if asked[1]:
            taken = moment * load_double(given + MOMENTUM_FACTOR).to(tl.float32) + taken
            _store_values(
                load_float_address(own + MOMENTUM_ADDRESS) + places,
                tl.where(left, moment, taken),
                there,
                ALL,
            )
        now = tl.where(left, weights, weights - taken * rate)
        _store_values(load_float_address(own + WEIGHTS_ADDRESS) + places, now, there, ALL)
        if tl.load(own + HIGH_HALVES_ADDRESS) != 0:
            first, second = split_halves(now)
            _store_values(
                load_halves_address(own + HIGH_HALVES_ADDRESS) + places, first, there, ALL
            )
            _store_values(
                load_halves_address(own + LOW_HALVES_ADDRESS) + places, second, there, ALL
            )
        if asked[2]:
            part = load_double(given + AVERAGE_WEIGHT).to(tl.float32)
            moved = tl.where(left, mean, mean + (now - mean) * part)
            _store_values(load_float_address(own + AVERAGE_ADDRESS) + places, moved, there, ALL)


@triton.jit
def _note_step(own, step):
    """Note that a step may be wrong; the first such step is kept."""
    tl.atomic_min(as_int_address(tl.load(own + FIRST_WRONG_ADDRESS)), step.to(tl.int32))


@triton.jit
def _defer_to_settle(own, places, doubt, step):
    """Append the indices of values with uncertain rounding to the doubts, for `settle`."""
    doubts = as_long_address(tl.load(own + DOUBTS_ADDRESS))
    one = (places * 0 + 1).to(tl.int64)
    at = tl.atomic_add(doubts + places * 0, one, mask=doubt, sem="relaxed")
    fits = at < tl.load(doubts + 1)
    tl.store(doubts + 2 + at, places, mask=doubt & fits)
    noted = as_int_address(tl.load(own + FIRST_WRONG_ADDRESS)) + places * 0
    steps = (places * 0 + step).to(tl.int32)
    tl.atomic_min(noted, steps, mask=doubt & (fits == 0), sem="relaxed")


@triton.jit
def _release(work, rows, at, WIDTH: tl.constexpr, MANY: tl.constexpr, KEPT: tl.constexpr):
    """Add noise to one block of values of one sum, given by `work`: (row, block) per program."""
    item = work + 2 * tl.program_id(0)
    row, block = tl.load(item).to(tl.int64), tl.load(item + 1).to(tl.int64)
    if (block + 1) * 2 * MANY <= tl.load(rows + row * WIDTH + SUM_LENGTH):
        _release_block(row, block, rows, at, WIDTH, MANY, KEPT, True)
    else:
        _release_block(row, block, rows, at, WIDTH, MANY, KEPT, False)


@triton.jit
def _release_block(
    row, block, rows, at, WIDTH: tl.constexpr, MANY: tl.constexpr, KEPT: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    """Add noise to one block of values; ALL states that the block is not cut off at the end."""
    own, step = rows + row * WIDTH, tl.load(at)
    given = as_long_address(tl.load(own + INPUTS_ADDRESS)) + step * tl.load(own + INPUTS_PER_STEP)
    count, sums = tl.load(own + SUM_LENGTH), load_float_address(own + SUMS_ADDRESS)
    group, within = block * (MANY // 32) + tl.arange(0, MANY // 32), tl.arange(0, 32)
    pair = group[:, None] * 32 + within[None, :]
    first = group[:, None] * 64 + within[None, :]
    second = first + 32
    here, too, asked = first < count, second < count, _list_changes(own, given)
    one, two = _load_values(sums + first, here, ALL), _load_values(sums + second, too, ALL)
    weights = _load_before(own + WEIGHTS_ADDRESS, first, here, asked[0], ALL)
    others = _load_before(own + WEIGHTS_ADDRESS, second, too, asked[0], ALL)
    moment = _load_before(own + MOMENTUM_ADDRESS, first, here, asked[1], ALL)
    other_moment = _load_before(own + MOMENTUM_ADDRESS, second, too, asked[1], ALL)
    mean = _load_before(own + AVERAGE_ADDRESS, first, here, asked[2], ALL)
    other_mean = _load_before(own + AVERAGE_ADDRESS, second, too, asked[2], ALL)
    grain = load_double(given + GRID_SPACING).to(tl.float32)
    wide = load_double(given + NOISE_SCALE).to(tl.float32)
    doubt, other = first < 0, first < 0
    if grain > 0.0:
        u, v = draw_words(given, pair, step)
        length, turn = ((u >> 32) & 0x7FFFFFFF).to(tl.int32), (v >> 32).to(tl.int32)
        few = (length < _MIN_LENGTH) | (length > _MAX_LENGTH)
        radius = _radius(length)
        cosine, sine = _cosine_and_sine(turn)
        sure = load_double(given + MAX_SURE_DISTANCE).to(tl.float32)
        fine = load_double(given + INVERSE_SPACING).to(tl.float32)
        rounded, doubt = _round_to_grid(one, radius * cosine, wide, grain, fine, sure)
        doubt = (doubt | few) if ALL else (doubt | few) & here
        one = tl.where(doubt, one, rounded)
        rounded, other = _round_to_grid(two, radius * sine, wide, grain, fine, sure)
        other = (other | few) if ALL else (other | few) & too
        two = tl.where(other, two, rounded)
        if tl.max((doubt | other).to(tl.int32)) > 0:
            _defer_to_settle(own, first, doubt, step)
            _defer_to_settle(own, second, other, step)
        if KEPT:
            _store_values(sums + first, one, here, ALL)
            _store_values(sums + second, two, too, ALL)
    else:
        finite = (tl.abs(one) < float("inf")) & (tl.abs(two) < float("inf"))
        if tl.sum((finite == 0).to(tl.int32)) > 0:
            _note_step(own, step)
    _update_weights(own, given, first, here, one, doubt, weights, moment, mean, asked, ALL)
    _update_weights(
        own, given, second, too, two, other, others, other_moment, other_mean, asked, ALL
    )


@triton.jit
def _settle(rows, at, WIDTH: tl.constexpr, MANY: tl.constexpr, PROGRAMS: tl.constexpr):
    """Round the uncertain values of one sum in float64, as `normals.UnrefinedNormals` does."""
    own, step = rows + (tl.program_id(0) // PROGRAMS).to(tl.int64) * WIDTH, tl.load(at)
    doubts = as_long_address(tl.load(own + DOUBTS_ADDRESS))
    found = tl.minimum(tl.load(doubts), tl.load(doubts + 1)).to(tl.int32)
    given = as_long_address(tl.load(own + INPUTS_ADDRESS)) + step * tl.load(own + INPUTS_PER_STEP)
    grain = load_double(given + GRID_SPACING)
    wide = load_double(given + NOISE_SCALE)
    fine = load_double(given + INVERSE_SPACING)
    for low in range(tl.program_id(0) % PROGRAMS * MANY, found, PROGRAMS * MANY):
        each = low + tl.arange(0, MANY)
        there = each < found
        place = tl.load(doubts + 2 + each, mask=there, other=0)
        pair, twin = place // 64 * 32 + place % 32, (place & 32) != 0
        u, v = draw_words(given, pair, step)
        length = (u & _WORD_MASK).to(tl.float64)
        radius = tl.sqrt(tl.log((length + 0.5) * _WORD_UNIT) * -2.0)
        turn = v.to(tl.float64) * _WORD_ANGLE
        value = radius * tl.where(twin, tl.sin(turn), tl.cos(turn))
        error = (1.0 / length + _FLOAT64_UNIT) / radius + _FLOAT64_ERROR
        sums = load_float_address(own + SUMS_ADDRESS) + place
        rest = tl.load(sums, mask=there, other=0.0).to(tl.float64) * fine
        point = tl.floor(rest + 0.5)
        rest = rest - point + value * wide
        moved = tl.floor(rest + 0.5)
        sure = tl.abs(rest - moved) <= -error * wide + 0.5
        point = point + moved
        released = (tl.where(point == 0.0, 0.0, point) * grain).to(tl.float32)
        tl.store(sums, released, mask=there)
        wrong = there & (sure == 0)
        noted = as_int_address(tl.load(own + FIRST_WRONG_ADDRESS))
        tl.atomic_min(noted + each * 0, step.to(tl.int32) + each * 0, mask=wrong)
        asked = _list_changes(own, given)
        weights = _load_before(own + WEIGHTS_ADDRESS, place, there, asked[0], False)
        moment = _load_before(own + MOMENTUM_ADDRESS, place, there, asked[1], False)
        mean = _load_before(own + AVERAGE_ADDRESS, place, there, asked[2], False)
        _update_weights(
            own, given, place, there, released, each < 0, weights, moment, mean, asked, False
        )


@triton.jit(do_not_specialize=["key", "count", "step", "draw"])
def _uniform(out, key, count, step, draw, MANY: tl.constexpr):
    """Fill a flat buffer with uniform numbers."""
    places = tl.program_id(0) * MANY + tl.arange(0, MANY)
    drawn = draw_uniforms(key, places, step, draw)
    tl.store(out + places, drawn, mask=places < count)


@triton.jit(do_not_specialize=["step", "half"])
def _words(out, given, step, half, MANY: tl.constexpr):
    """Fill a flat buffer with the words of U, then those of V."""
    pair = tl.program_id(0) * MANY + tl.arange(0, MANY)
    u, v = draw_words(given, pair, step)
    tl.store(out + pair, u, mask=pair < half)
    tl.store(out + half + pair, v, mask=pair < half)


def release(work: Any, rows: Any, at: Any, *, kept: bool = True) -> None:
    """Add noise to sums, round them, and update weights, for many trainings at once.

    Neither kernel uses fused multiply-add. So the rounding of a weight update does not reveal
    whether `settle` made it, which depends on the noise.

    Args:
        work: Training (row of `rows`) and block of `PAIRS_PER_PROGRAM` pairs of each program,
            int32, (programs, 2).
        rows: One row per training, int64, (trainings, fields), with the fields from
            `INPUTS_ADDRESS` on. The buffers of doubts must be empty.
        at: Index of the step in its block, int64, ().
        kept: Whether to store the noisy sums; if not, they only update the weights.
    """
    _release[(len(work),)](
        work, rows, at, WIDTH=rows.shape[1], MANY=PAIRS_PER_PROGRAM, KEPT=kept,
        enable_fp_fusion=False, num_warps=WARPS_PER_PROGRAM,
    )  # fmt: skip
    _settle[(SETTLE_PROGRAMS * len(rows),)](
        rows, at, WIDTH=rows.shape[1], MANY=SETTLE_BATCH, PROGRAMS=SETTLE_PROGRAMS,
        enable_fp_fusion=False,
    )  # fmt: skip


def list_work(count: int, device: Any) -> Any:
    """List the `work` of `release` for one training with a sum of `count` values."""
    blocks = torch.arange(
        triton.cdiv(count_pairs(count), PAIRS_PER_PROGRAM), dtype=torch.int32, device=device
    )
    return torch.stack([torch.zeros_like(blocks), blocks], 1).contiguous()


def allocate_doubts(count: int, device: Any) -> Any:
    """Allocate the doubts of a sum of `count` values, int64: number, capacity, indices."""
    capacity = MIN_DOUBT_CAPACITY + count // NUMBERS_PER_DOUBT
    doubts = torch.zeros(2 + capacity, dtype=torch.int64, device=device)
    doubts[1] = capacity
    return doubts


def uniform(shape: Any, key: int, step: int, draw: int, device: Any) -> Any:
    """Draw uniform float32 numbers in [0, 1) from a 64-bit key and the counter (step, draw)."""
    out = torch.empty(shape, dtype=torch.float32, device=device)
    grid = (triton.cdiv(out.numel(), 1024),)
    if out.numel():
        _uniform[grid](out, to_int64(key), out.numel(), step, draw, MANY=1024)
    return out


def draw_philox_words(half: int, key: int, begin: int, step: int, device: Any) -> Any:
    """Draw the words that `release` uses, int64, (2 half,): those of U, then those of V."""
    out = torch.empty(2 * half, dtype=torch.int64, device=device)
    given = torch.tensor(
        [0] * int(NOISE_KEY.value) + [to_int64(key), to_int64(begin)], device=device
    )
    _words[(triton.cdiv(half, 256),)](out, given, step, half, MANY=256)
    return out
