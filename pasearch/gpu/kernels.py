"""A GPU's own random bits, and noise on a sum, in kernels that Triton compiles.

    bits      Philox 4x32, ten rounds: key 64 bits, counter (place, step of the block, a, b)
    uniform   the first word's upper 24 bits, in [0, 1)
    release   grid point next to sum / g + a z, times g; then the weights are moved by it
    settle    the same, of what `release` could not tell

z are normal numbers as everywhere (`normals`). `release` takes 31 bits of U and 32 of V, in
float32: the formulas of machine code on a processor (`compiled`), operation by operation, nothing
contracted, and so with their errors. One of some thousand is left to `settle`, by all 127 bits, in
float64: see `normals.Alone`. What these do not decide is noted, with its step, and nothing of that
step may be used.

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

PAIRS_PER_PROGRAM = 128
WARPS_PER_PROGRAM = 2
SETTLE_BATCH = 64
SETTLE_PROGRAMS = 16
"""Pairs of numbers that a program of `release` adds, and its warps; what one of `settle` decides at
once, and how many of those each row has."""

MIN_DOUBT_CAPACITY = 4096
NUMBERS_PER_DOUBT = 64
"""There is room for so many doubts, and for one of so many numbers: where there are more, the step
is noted, as it is where a sum is not finite."""

(
    INPUTS_ADDRESS,
    SUMS_ADDRESS,
    WEIGHTS_ADDRESS,
    MOMENTUM_ADDRESS,
    AVERAGE_ADDRESS,
    HIGH_HALVES_ADDRESS,
    LOW_HALVES_ADDRESS,
    FIRST_WRONG_ADDRESS,
    DOUBTS_ADDRESS,
    SUM_LENGTH,
    INPUTS_PER_STEP,
) = (tl.constexpr(k) for k in range(11))
"""What stands in a row of `release`, int64: where what is given of each step lies, the sum, and, or
0, what is moved by it, what is remembered of earlier sums, the average, and the two halves of what
is moved; where the first step that may be wrong is noted, and where doubts go (how many, room, and
their places); how many numbers; and how many int64 are given of each step."""

RELEASE_FIELDS = 11

(
    NOISE_SCALE,
    GRID_SPACING,
    LEARNING_RATE,
    MOMENTUM_FACTOR,
    SUM_SCALE,
    AVERAGE_WEIGHT,
    NOISE_KEY,
    COUNTER_START,
    MAX_SURE_DISTANCE,
    INVERSE_SPACING,
) = (tl.constexpr(k) for k in range(10))
"""What is given of a step, float64 but for the key and where its counter begins: a and g (0: no
noise); by what a sum is multiplied before it is taken off; m; 1 / batch; how much of the weights
goes into the average; how far a sure number lies from its grid point at most, in float32; 1 / g."""

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
    """Return a place as that of float32 numbers."""
    return place.to(tl.pointer_type(tl.float32))


@triton.jit
def load_float_address(at):
    """Load the place of a flat tensor, which begins where torch lets tensors begin."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def as_int_address(place):
    """Return a place as that of int32 numbers."""
    return place.to(tl.pointer_type(tl.int32))


@triton.jit
def as_long_address(place):
    """Return a place as that of int64 numbers."""
    return place.to(tl.pointer_type(tl.int64))


@triton.jit
def load_halves_address(at):
    """Load the place of a flat tensor of bfloat16 numbers."""
    return tl.multiple_of(tl.load(at).to(tl.pointer_type(tl.bfloat16)), 16)


@triton.jit
def split_halves(a):
    """Return the bfloat16 number next to each float32 one, and the one next to what is left.

    By whole numbers, as a GPU takes four times as long to round a number that it goes on with; of
    two that are as near the even one, as torch does, which halves weights before each round.
    """
    bits = a.to(tl.int32, bitcast=True)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    near = (bits & -65536).to(tl.float32, bitcast=True)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True), (a - near).to(tl.bfloat16)


@triton.jit
def load_double(at):
    """Load a float64 number that stands among int64 ones."""
    return tl.load(at).to(tl.float64, bitcast=True)


@triton.jit
def draw_uniforms(key, places, step, draw):
    """Return float32 in [0, 1), one a place."""
    at = places.to(tl.uint32)
    zero = at * 0
    first, _, _, _ = tl.philox(key, at, zero + step.to(tl.uint32), zero + draw.to(tl.uint32), zero)
    return (first >> 8).to(tl.float32) * _UNIFORM_UNIT


@triton.jit
def draw_words(given, pair, step):
    """Return the words of pairs, int64: of U and of V."""
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
    """Return sqrt(-2 log U), of 31 bits of U: see `compiled._radius`."""
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
    """Return cos and sin of pi V, of 32 bits of V: see `compiled._cosine_and_sine`."""
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
    """Return the grid point, and whether it may be another: see `compiled._rounded`.

    To add and take off again a number that is large rounds to the nearest whole one.
    """
    rest = total * fine
    doubt = (tl.abs(rest) < _MAX_ROUNDED) == 0
    point = (rest + _ROUNDING_SHIFT) - _ROUNDING_SHIFT
    rest = (rest - point) + value * wide
    moved = (rest + _ROUNDING_SHIFT) - _ROUNDING_SHIFT
    doubt = doubt | ((tl.abs(rest - moved) <= sure) == 0)
    point = point + moved
    return tl.where(point == 0.0, 0.0, point) * grain, doubt  # no zero is negative


@triton.jit
def _load_values(at, there, ALL: tl.constexpr):
    """Load numbers. All: every place is there."""
    return tl.load(at) if ALL else tl.load(at, mask=there, other=0.0)


@triton.jit
def _store_values(at, values, there, ALL: tl.constexpr):
    if ALL:
        tl.store(at, values)
    else:
        tl.store(at, values, mask=there)


@triton.jit
def _list_changes(own, given):
    """Return which of the weights, what is remembered and the average a step changes."""
    weights, averaged = tl.load(own + WEIGHTS_ADDRESS) != 0, tl.load(own + AVERAGE_ADDRESS) != 0
    averaged = weights & averaged & (load_double(given + AVERAGE_WEIGHT) > 0.0)
    return weights, weights & (tl.load(own + MOMENTUM_ADDRESS) != 0), averaged


@triton.jit
def _load_before(at, places, there, asked, ALL: tl.constexpr):
    """Load what a step changes, if it does: early, as it takes long until it is there."""
    found = (places * 0).to(tl.float32)
    if asked:
        found = _load_values(load_float_address(at) + places, there, ALL)
    return found


@triton.jit
def _update_weights(
    own, given, places, there, released, left, weights, moment, mean, asked, ALL: tl.constexpr
):
    """Move the weights by what was released: see `updates.Descent`, and their average.

    What is left to `settle` stays as it is.
    """
    if asked[0]:
        rate, share = (
            load_double(given + LEARNING_RATE).to(tl.float32),
            load_double(given + SUM_SCALE).to(tl.float32),
        )
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
    tl.atomic_min(as_int_address(tl.load(own + FIRST_WRONG_ADDRESS)), step.to(tl.int32))


@triton.jit
def _defer_to_settle(own, places, doubt, step):
    """Leave what is in doubt to `settle`: the next kernel, before which all of this is written."""
    doubts = as_long_address(tl.load(own + DOUBTS_ADDRESS))
    one = (places * 0 + 1).to(tl.int64)
    at = tl.atomic_add(doubts + places * 0, one, mask=doubt, sem="relaxed")
    fits = at < tl.load(doubts + 1)
    tl.store(doubts + 2 + at, places, mask=doubt & fits)
    noted, steps = (
        as_int_address(tl.load(own + FIRST_WRONG_ADDRESS)) + places * 0,
        (places * 0 + step).to(tl.int32),
    )
    tl.atomic_min(noted, steps, mask=doubt & (fits == 0), sem="relaxed")


@triton.jit
def _release(work, rows, at, WIDTH: tl.constexpr, MANY: tl.constexpr, KEPT: tl.constexpr):
    """Work, int32: (row, block) of each program. Tiles are of groups of pairs: see `normals`."""
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
    grain, wide = (
        load_double(given + GRID_SPACING).to(tl.float32),
        load_double(given + NOISE_SCALE).to(tl.float32),
    )
    doubt, other = first < 0, first < 0
    if grain > 0.0:
        u, v = draw_words(given, pair, step)
        length, turn = ((u >> 32) & 0x7FFFFFFF).to(tl.int32), (v >> 32).to(tl.int32)
        few = (length < _MIN_LENGTH) | (length > _MAX_LENGTH)
        radius = _radius(length)
        cosine, sine = _cosine_and_sine(turn)
        sure, fine = (
            load_double(given + MAX_SURE_DISTANCE).to(tl.float32),
            load_double(given + INVERSE_SPACING).to(tl.float32),
        )
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
    """Decide a row's doubts in float64: see `normals.Alone`."""
    own, step = rows + (tl.program_id(0) // PROGRAMS).to(tl.int64) * WIDTH, tl.load(at)
    doubts = as_long_address(tl.load(own + DOUBTS_ADDRESS))
    found = tl.minimum(tl.load(doubts), tl.load(doubts + 1)).to(tl.int32)
    given = as_long_address(tl.load(own + INPUTS_ADDRESS)) + step * tl.load(own + INPUTS_PER_STEP)
    grain, wide, fine = (
        load_double(given + GRID_SPACING),
        load_double(given + NOISE_SCALE),
        load_double(given + INVERSE_SPACING),
    )
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
    places = tl.program_id(0) * MANY + tl.arange(0, MANY)
    drawn = draw_uniforms(key, places, step, draw)
    tl.store(out + places, drawn, mask=places < count)


@triton.jit(do_not_specialize=["step", "half"])
def _words(out, given, step, half, MANY: tl.constexpr):
    pair = tl.program_id(0) * MANY + tl.arange(0, MANY)
    u, v = draw_words(given, pair, step)
    tl.store(out + pair, u, mask=pair < half)
    tl.store(out + half + pair, v, mask=pair < half)


def release(work: Any, rows: Any, at: Any, *, kept: bool = True) -> None:
    """Add noise to sums, round, and move weights: of many trainings at once.

    Nothing is contracted, in either kernel: weights are moved by the same operations whether a
    number was settled or not, which depends on its noise.

    Args:
        work: Int32, (programs, 2): which row, and which of its blocks of `PAIRS` pairs.
        rows: Int64, (rows, width): see `GIVEN` and what follows. Of doubts, none are there yet.
        at: Int64: the step of its block.
        kept: Whether what is released goes where the sums are; else only weights are moved by it.
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
    """Return the work of a single row of so many numbers."""
    blocks = torch.arange(
        triton.cdiv(count_pairs(count), PAIRS_PER_PROGRAM), dtype=torch.int32, device=device
    )
    return torch.stack([torch.zeros_like(blocks), blocks], 1).contiguous()


def allocate_doubts(count: int, device: Any) -> Any:
    """Return a place for the doubts of so many numbers, int64."""
    room = MIN_DOUBT_CAPACITY + count // NUMBERS_PER_DOUBT
    doubts = torch.zeros(2 + room, dtype=torch.int64, device=device)
    doubts[1] = room
    return doubts


def uniform(shape: Any, key: int, step: int, draw: int, device: Any) -> Any:
    """Return float32 in [0, 1), of a shape: by a 64-bit key, a step of its block, and a draw."""
    out = torch.empty(shape, dtype=torch.float32, device=device)
    grid = (triton.cdiv(out.numel(), 1024),)
    if out.numel():
        _uniform[grid](out, to_int64(key), out.numel(), step, draw, MANY=1024)
    return out


def philox_words(half: int, key: int, begin: int, step: int, device: Any) -> Any:
    """Return the words that `release` takes, int64, (2 half,): first those of U."""
    out = torch.empty(2 * half, dtype=torch.int64, device=device)
    given = torch.tensor(
        [0] * int(NOISE_KEY.value) + [to_int64(key), to_int64(begin)], device=device
    )
    _words[(triton.cdiv(half, 256),)](out, given, step, half, MANY=256)
    return out
