"""Dropout in machine code: the masks of `spaces.modules.KeyedDropout`, to the bit.

    out = h [u >= rate] / (1 - rate),   u of each record and unit, from numpy's Philox

Philox counts, so that the numbers of any row are found without those before it: how many rows go
together, and in which thread, changes no mask. A guarantee holds for every mask.

Source: Srivastava et al. 2014 (dropout), Salmon et al. 2011 (Philox 4x64, ten rounds).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from pasearch.runs.compiled import instruction
from pasearch.training.compiled_activations import (
    NONE,
    ONE,
    TWO,
    ZERO,
    bend,
    exact,
    inlined,
    unsigned,
)

EIGHT, LAST, WORD = unsigned(8), unsigned(7), unsigned(32)
COARSE = np.uint32(8)
"""Of 32 bits, float32 numbers in [0, 1) have the upper 24."""

FIRST, SECOND = unsigned(0xD2E7470EE14C6C93), unsigned(0xCA5A826395121157)
ON, BESIDE = unsigned(0x9E3779B97F4A7C15), unsigned(0xBB67AE8584CAA73B)


@instruction
def _upper(context: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of a product of two words."""

    def made(context: Any, builder: Any, sign: Any, given: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(each, wide) for each in given))
        return builder.trunc(builder.lshr(product, wide(64)), word)

    return types.uint64(types.uint64, types.uint64), made


@exact
def _draw(seed, draws, first, blocks, bits):
    """Write the bits that Philox has of some blocks, of eight numbers each."""
    for block in range(NONE, blocks):
        a, b, c, d = first + block + ONE, NONE, NONE, NONE  # numpy's first block is 1
        key, other = seed, draws
        for _ in range(10):
            a, b, c, d = (
                _upper(SECOND, c) ^ b ^ key, SECOND * c, _upper(FIRST, a) ^ d ^ other, FIRST * a,
            )  # fmt: skip
            key, other = key + ON, other + BESIDE
        to = block * EIGHT
        for word in (a, b, c, d):
            bits[to] = np.uint32(word)
            bits[to + ONE] = np.uint32(word >> WORD)
            to += TWO


@exact
def _bits_of(layer, units, row, drops, bits):
    """Write the bits of a record's mask, and return at which of them it begins."""
    keys, _, _, chunk = drops
    first = (row % chunk) * units
    left = first & LAST
    blocks = (left + units + LAST) // EIGHT
    _draw(keys[layer], row // chunk + ONE, first // EIGHT, blocks, bits)
    return left


@inlined
def _mask(bits, rate, factor):
    """Return what 32 bits make of a number: it is dropped, or multiplied by a factor."""
    return factor if (bits >> COARSE) >= rate else ZERO


@exact
def drop_inputs(x, inputs, rows, begin, drops, room):
    """Drop numbers of records, one after another, as `drop` does units of a layer: the first."""
    bits, rate, factor = room[6], drops[1][0], drops[2][0]
    for row in range(begin, begin + unsigned(rows)):
        low, left = (row - begin) * inputs, _bits_of(0, inputs, row, drops, bits)
        for k in range(NONE, inputs):
            x[low + k] *= _mask(bits[left + k], rate, factor)  # NaN stays what it is


@exact
def drop(layer, kind, h, at, units, rows, begin, drops, room):
    """Drop units of a layer, and write by what gradients of what is left are multiplied for it.

    Args:
        layer: Which of `drops` it is.
        kind: The code of what made the outputs.
        h: Outputs, one record after another.
        at: Where they begin.
        units: How many a record has.
        rows: How many records.
        begin: Which of the batch's the first of them is.
        drops: Of each dropout: its key of this step, uint64; how many of 2^24 are dropped, uint32;
            and what others are multiplied by, float32. Then after how many of a batch's records
            another mask begins, uint64.
        room: A thread's: see `compiled.bounded_sum`.
    """
    slopes, bits, rate, factor = room[5], room[6], drops[1][layer], drops[2][layer]
    for row in range(begin, begin + unsigned(rows)):
        low, left = at + (row - begin) * units, _bits_of(layer, units, row, drops, bits)
        for k in range(NONE, units):
            slopes[low + k] = _mask(bits[left + k], rate, factor)
        bend(kind, h[low : low + units], slopes[low : low + units], units)
        for k in range(NONE, units):
            h[low + k] *= _mask(bits[left + k], rate, factor)  # NaN stays what it is


@exact
def bend_all(layer, kind, h, d, at, many, drops, room):
    """Multiply gradients of what came out of a layer, dropout and all, by its derivative."""
    own, slopes = d[at : at + many], room[5]
    if drops[1][layer] == 0:
        bend(kind, h[at : at + many], own, many)
        return
    for k in range(NONE, many):
        own[k] *= slopes[at + k]
