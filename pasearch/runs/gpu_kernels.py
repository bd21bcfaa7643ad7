"""A GPU's own random bits, and noise on a sum, in kernels that Triton compiles.

    bits      Philox 4x32, ten rounds: key 64 bits, counter (place, step of the block, a, b)
    uniform   the first word's upper 24 bits, in [0, 1)
    release   grid point next to sum / g + a z, times g; then the weights are moved by it

z are the normal numbers of `normals.Alone`, of the same words: a number whose 127 bits do not
decide its rounding is noted, with its step, and nothing of that step may be used. All of that is
computed in float64.

Source: docs/rules.md, rule 11; Salmon et al. 2011 (Philox). Proof: docs/guarantees/floating-point.md
("On a GPU"), docs/guarantees/randomness.md.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from pasearch.runs.normals import ALONE

PAIRS = 128
"""Pairs of numbers that a program of `release` adds."""

GIVEN, SUMS, WEIGHTS, MOMENTUM, AVERAGE, WRONG, COUNT, EACH = (tl.constexpr(k) for k in range(8))
"""What stands in a row of `release`, int64: where what is given of each step lies, the sum, and, or
0, what is moved by it, what is remembered of earlier sums, and the average; where the first step
that may be wrong is noted; how many numbers; and how many int64 are given of each step."""

WIDE, GRAIN, RATE, KEEP, SHARE, MEAN, KEY, BEGIN = (tl.constexpr(k) for k in range(8))
"""What is given of a step, float64 but for the last two: a and g (0: no noise), by what a sum is
multiplied before it is taken off, m, 1 / batch, how much of the weights goes into the average; the
key, and where its counter begins."""

_ROOT = tl.constexpr(2.0**-63)
_TURN = tl.constexpr(math.pi * 2.0**-63)
_UNIT = tl.constexpr(2.0**-53)
_ALONE = tl.constexpr(ALONE)
_MASK = tl.constexpr(2**63 - 1)
_SHARE = tl.constexpr(2.0**-24)


@triton.jit
def floats(place):
    """Return a place as that of float32 numbers."""
    return place.to(tl.pointer_type(tl.float32))


@triton.jit
def ints(place):
    """Return a place as that of int32 numbers."""
    return place.to(tl.pointer_type(tl.int32))


@triton.jit
def longs(place):
    """Return a place as that of int64 numbers."""
    return place.to(tl.pointer_type(tl.int64))


@triton.jit
def double(at):
    """Load a float64 number that stands among int64 ones."""
    return tl.load(at).to(tl.float64, bitcast=True)


@triton.jit
def uniforms(key, places, step, draw):
    """Return float32 in [0, 1), one a place."""
    at = places.to(tl.uint32)
    zero = at * 0
    first, _, _, _ = tl.philox(key, at, zero + step.to(tl.uint32), zero + draw.to(tl.uint32), zero)
    return (first >> 8).to(tl.float32) * _SHARE


@triton.jit
def words_of(given, pair, step):
    """Return the words of pairs, int64: of U and of V."""
    begin = tl.load(given + BEGIN)
    at = pair.to(tl.uint32)
    low, high = (begin & 0xFFFFFFFF).to(tl.uint32), (begin >> 32).to(tl.uint32)
    zero = at * 0
    a, b, c, d = tl.philox(
        tl.load(given + KEY), at, zero + step.to(tl.uint32), zero + low, zero + high
    )
    u = a.to(tl.int64) | (b.to(tl.int64) << 32)
    v = c.to(tl.int64) | (d.to(tl.int64) << 32)
    return u, v


@triton.jit
def _rounded(total, noise, error, wide, grain):
    """Return the grid point, and whether it may be another: see `normals.Alone.add_to`."""
    rest = total * (1.0 / grain)
    points = tl.floor(rest + 0.5)
    rest = rest - points + noise * wide
    moved = tl.floor(rest + 0.5)
    doubt = (tl.abs(rest - moved) <= 0.5 - error * wide) == 0
    points = points + moved
    points = tl.where(points == 0.0, 0.0, points)  # no zero is negative
    return points * grain, doubt


@triton.jit
def _move(own, given, places, there, released):
    """Move the weights by what was released: see `updates.Descent`, and their average."""
    weights = tl.load(own + WEIGHTS)
    if weights != 0:
        rate, share = double(given + RATE).to(tl.float32), double(given + SHARE).to(tl.float32)
        moment = tl.load(own + MOMENTUM)
        taken = released * share
        if moment != 0:
            keep = double(given + KEEP).to(tl.float32)
            before = tl.load(floats(moment) + places, mask=there, other=0.0)
            taken = before * keep + taken
            tl.store(floats(moment) + places, taken, mask=there)
        now = tl.load(floats(weights) + places, mask=there, other=0.0) - taken * rate
        tl.store(floats(weights) + places, now, mask=there)
        average = tl.load(own + AVERAGE)
        if average != 0:
            mean = tl.load(floats(average) + places, mask=there, other=0.0)
            mean += (now - mean) * double(given + MEAN).to(tl.float32)
            tl.store(floats(average) + places, mean, mask=there)


@triton.jit
def _release(work, rows, at, WIDTH: tl.constexpr, MANY: tl.constexpr):
    """Work, int32: (row, block) of each program."""
    item = work + 2 * tl.program_id(0)
    own, step = rows + tl.load(item) * WIDTH, tl.load(at)
    given = longs(tl.load(own + GIVEN)) + step * tl.load(own + EACH)
    count, sums = tl.load(own + COUNT), floats(tl.load(own + SUMS))
    pair = tl.load(item + 1).to(tl.int64) * MANY + tl.arange(0, MANY)
    first = pair // 32 * 64 + pair % 32
    second = first + 32
    here, too = first < count, second < count
    one = tl.load(sums + first, mask=here, other=0.0).to(tl.float64)
    two = tl.load(sums + second, mask=too, other=0.0).to(tl.float64)
    grain, wide = double(given + GRAIN), double(given + WIDE)
    if grain > 0.0:
        u, v = words_of(given, pair, step)
        length = (u & _MASK).to(tl.float64)
        radius = tl.sqrt(tl.log((length + 0.5) * _ROOT) * -2.0)
        turn = v.to(tl.float64) * _TURN
        error = (1.0 / length + _UNIT) / radius + _ALONE
        one, doubt = _rounded(one, tl.cos(turn) * radius, error, wide, grain)
        two, other = _rounded(two, tl.sin(turn) * radius, error, wide, grain)
    else:
        doubt, other = (tl.abs(one) < float("inf")) == 0, (tl.abs(two) < float("inf")) == 0
    wrong = tl.sum((doubt & here).to(tl.int32)) + tl.sum((other & too).to(tl.int32))
    if wrong > 0:
        tl.atomic_min(ints(tl.load(own + WRONG)), step.to(tl.int32))
    one, two = one.to(tl.float32), two.to(tl.float32)
    tl.store(sums + first, one, mask=here)
    tl.store(sums + second, two, mask=too)
    _move(own, given, first, here, one)
    _move(own, given, second, too, two)


@triton.jit(do_not_specialize=["key", "count", "step", "draw"])
def _uniform(out, key, count, step, draw, MANY: tl.constexpr):
    places = tl.program_id(0) * MANY + tl.arange(0, MANY)
    drawn = uniforms(key, places, step, draw)
    tl.store(out + places, drawn, mask=places < count)


@triton.jit(do_not_specialize=["step", "half"])
def _words(out, given, step, half, MANY: tl.constexpr):
    pair = tl.program_id(0) * MANY + tl.arange(0, MANY)
    u, v = words_of(given, pair, step)
    tl.store(out + pair, u, mask=pair < half)
    tl.store(out + half + pair, v, mask=pair < half)


def release(work: Any, rows: Any, at: Any) -> None:
    """Add noise to sums, round, and move weights: of many trainings at once.

    Args:
        work: Int32, (programs, 2): which row, and which of its blocks of `PAIRS` pairs.
        rows: Int64, (rows, width): see `GIVEN` and what follows.
        at: Int64, (): the step of its block.
    """
    _release[(len(work),)](work, rows, at, WIDTH=rows.shape[1], MANY=PAIRS)


def uniform(shape: Any, key: int, step: int, draw: int, device: Any) -> Any:
    """Return float32 in [0, 1), of a shape: by a 64-bit key, a step of its block, and a draw."""
    out = torch.empty(shape, dtype=torch.float32, device=device)
    grid = (triton.cdiv(out.numel(), 1024),)
    if out.numel():
        _uniform[grid](out, signed(key), out.numel(), step, draw, MANY=1024)
    return out


def words(half: int, key: int, begin: int, step: int, device: Any) -> Any:
    """Return the words that `release` takes, int64, (2 half,): first those of U."""
    out = torch.empty(2 * half, dtype=torch.int64, device=device)
    given = torch.tensor([0] * int(KEY.value) + [signed(key), signed(begin)], device=device)
    _words[(triton.cdiv(half, 256),)](out, given, step, half, MANY=256)
    return out


def signed(number: int) -> int:
    """Return 64 bits as an int64 has them."""
    return number - 2**64 if number >= 2**63 else number

