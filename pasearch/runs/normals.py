"""Gaussian noise that holds in floating point: a sum plus exact normal numbers, rounded to a grid.

    release = g round(s / g + a z),    a = scale / g in [2^7, 2^8),  g a power of 2

z is a normal number with all its digits: z = sqrt(-2 log U) cos(pi V), and sin for its twin, with
U and V as infinitely many secret bits. So the release is a rounding of the Gaussian mechanism on s,
post-processing, and its price is that mechanism's: no lattice of s or of z is left in it.

How a whole number is got from infinitely many bits: in three stages, each of which is asked only
where the rounding of the stage before it could be wrong.

    31 bits of U, 32 of V     float32       errs by `BY_FLOAT32` at most: one in 300 goes on
    63 bits of U, 64 of V     float64       by `BY_FLOAT64`: one in 20 million
    191 and 192               100 digits    decides

A number goes on that lies so near to the middle between two whole numbers, or whose U so near to 0
or 1, that the stage cannot tell.

s is read as the exact number that its float is, so nothing is rounded before the noise is in it.

Source: docs/rules.md, rule 11; Box and Muller 1958; Mironov 2012 (why). Proof:
docs/guarantees/floating-point.md.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pasearch.runs.keys import Stream

BLOCK = 16384
"""Pairs that are worked on at once: they stay in a processor's cache."""

FEW = 4096
"""Up to how many numbers are float64 at once: asking again would take longer."""

FINE = 7
"""Between 2^7 and 2^8 grid points to a standard deviation."""

BY_FLOAT32, BY_FLOAT64 = 2.0**-17, 2.0**-33
"""How much a normal number errs at most, what its product with a and the sum add included."""

LOW, HIGH = 2**17, 2**31 - 2**20
"""Between them 31 bits of U are enough for float32."""

LEAST, MOST = 2**33, 2**63 - 2**30
"""Between them 63 bits of U are enough for float64."""

MASK = 2**63 - 1

MORE = 128
"""Further bits of U and of V, where they are asked for."""

DIGITS = 400
"""Bits of the arithmetic that decides."""

MODERATE = 2.0**60
"""Up to what size, and from what size down, float32 divides by a grid point's distance exactly."""

Places = np.ndarray[Any, np.dtype[np.int64]]


def grid(scale: float) -> float:
    """Return the distance between grid points for noise of a standard deviation: a power of 2."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - FINE)


@dataclass(frozen=True, slots=True)
class Normals:
    """Normal numbers of one stream and step: roughly, and to any precision where it matters.

    Numbers lie in blocks: the first of every pair of a block, then the second ones.

    Args:
        values: Float32 or float64, (count,), of numpy or of torch. NaN where that is too coarse.
        error: How much they may err, the sum included.
        block: Pairs of a block; the last one may have fewer.
        words: From pairs' places to their words, of U and of V: int64, like the places.
        more: From a pair's place to its further bits, (of U, of V), each below 2^`MORE`.
    """

    values: Any
    error: float
    block: int
    words: Callable[[Places], tuple[Places, Places]]
    more: Callable[[int], tuple[int, int]]

    @np.errstate(over="ignore", invalid="ignore")  # what float32 cannot hold is not sure, either
    def add_to(self, total: Any, scale: float, *, start: int = 0) -> None:
        """Add noise to a flat array in place: what is left there are grid points.

        Guarantee: the result is the rounding of total + scale z, z independent normal numbers,
        whatever the total is; but for 2^-90 in probability a number.

        Args:
            total: Float32 or float64, (size,), finite; of numpy or of torch, where the values are.
            scale: The noise's standard deviation, above 0.
            start: Which of the numbers is the first one's.
        """
        if _on_cpu(total):
            parts, values, block, xp = np.asarray(total), np.asarray(self.values), 2 * BLOCK, np
        else:
            parts, values, block, xp = total, self.values, max(len(total), 1), _library(total)
        nearest = np.rint if xp is np else xp.round
        grain = grid(scale)
        wide, fine = scale / grain, 1.0 / grain
        kind = values.dtype if 1 / MODERATE < grain < MODERATE else xp.float64
        kind = kind if parts.dtype == kind else xp.float64
        asked = [(np.empty(0, dtype=np.int64), np.empty(0))]
        for low in range(0, len(parts), block):
            part = parts[low : low + block]
            rest = xp.asarray(part, dtype=kind) * fine
            points = nearest(rest)
            rest -= points
            rest += values[start + low : start + low + len(part)] * wide
            moved = nearest(rest)
            rest -= moved
            points += moved
            points *= grain
            sure = xp.abs(rest, out=rest) <= 0.5 - self.error * wide
            if len(doubtful := _places(~sure)):
                asked.append((low + doubtful, _fetched(part, doubtful).astype(np.float64)))
            part[:] = points
        places, exact = (np.concatenate(each) for each in zip(*asked, strict=True))
        if len(places):
            decided = self._by_float64(exact * fine, start + places, wide) * grain
            _store(parts, places, decided)

    def _by_float64(self, exact: Any, places: Places, wide: float) -> Any:
        """Return the whole numbers next to exact + wide z: from all 64 bits, or from more."""
        pair, twin = self._pairs_of(places)
        lengths, turns = self.words(pair)
        lengths = lengths & MASK
        cosines, sines = np.empty((2, len(pair)))
        box_muller(lengths, turns, 63, cosines, sines)
        points = np.rint(exact)
        rest = exact - points + np.where(twin, sines, cosines) * wide
        moved = np.rint(rest)
        points += moved
        near = ~(np.abs(rest - moved) <= 0.5 - BY_FLOAT64 * wide)
        for each in np.flatnonzero(near | (lengths < LEAST) | (lengths > MOST)):
            points[each] = self._decided(float(exact[each]), int(places[each]), wide)
        return points

    def _decided(self, exact: float, place: int, wide: float) -> float:
        """Return the whole number next to exact + wide z, by more digits."""
        import mpmath

        with mpmath.workprec(DIGITS):
            return float(mpmath.floor(exact + wide * self.exactly(place) + mpmath.mpf(0.5)))

    def exactly(self, place: int) -> Any:
        """Return a number with the digits that its bits and the further ones give, an mpf."""
        import mpmath

        (pair,), (twin,) = self._pairs_of(np.array([place]))
        (length,), (turn,) = self.words(np.array([pair]))
        more, other = self.more(int(pair))
        with mpmath.workprec(DIGITS):
            unit = mpmath.mpf(2) ** -63
            u = ((int(length) & MASK) + _share(more)) * unit
            v = (int(turn) + _share(other)) * unit
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            return radius * (mpmath.sin if twin else mpmath.cos)(mpmath.pi * v)

    def _pairs_of(self, places: Places) -> tuple[Places, Any]:
        """Return the pairs that numbers belong to, and whether each is the second of its pair."""
        low = places // (2 * self.block) * self.block
        own = np.minimum(self.block, pairs(len(self.values)) - low)
        within = places - 2 * low
        twin = within >= own
        return low + within - own * twin, twin


def normals(count: int, stream: Stream, step: int = 0) -> Normals:
    """Return normal numbers from a stream's words, on a CPU: float32, or of few float64.

    Of a block's words the first half holds 32 bits of each U, and the second half 32 of each V.

    Args:
        count: How many, 0 or more.
        stream: Serves these numbers and nothing else.
        step: Which step of it.
    """
    half, source = pairs(count), stream.words(step)
    if count <= FEW:
        return of_words(source.take(2 * half).copy(), count, stream, step)
    values = np.empty(2 * half, dtype=np.float32)
    for low in range(0, half, BLOCK):
        own = min(BLOCK, half - low)
        bits = source.take(own).view("<i4")
        lengths = bits[:own] & 0x7FFFFFFF
        cosines, sines = values[2 * low : 2 * (low + own)].reshape(2, own)
        box_muller(lengths, bits[own:], 31, cosines, sines)
        cosines[coarse := _places((lengths < LOW) | (lengths > HIGH))] = np.nan
        sines[coarse] = np.nan

    def words(places: Places) -> tuple[Places, Places]:
        low = places & -BLOCK  # a power of 2
        first = low + places
        halves = np.concatenate([first, first + np.minimum(BLOCK, half - low)])
        lengths, turns = _half_word(source.at(halves >> 1), halves & 1).reshape(2, -1) << 32
        rest = stream.child("finer").words(step).at(places)
        return lengths | _half_word(rest, 0), turns | _half_word(rest, 1)

    return Normals(
        values[:count], BY_FLOAT32, BLOCK, words, lambda pair: further(stream, step, pair)
    )


def of_words(words: Any, count: int, stream: Stream, step: int) -> Normals:
    """Return normal numbers, float64, from words of numpy or of torch; there they stay.

    The words are int64, (2 `pairs`(count),); stream and step give further bits, if any are needed.
    """
    half, xp = len(words) // 2, _library(words)
    lengths, turns = words[:half] & MASK, words[half:]
    made = {} if xp is np else {"device": words.device}
    values = xp.empty((2, half), dtype=xp.float64, **made)
    box_muller(lengths, turns, 63, values[0], values[1])
    values[:, (lengths < LEAST) | (lengths > MOST)] = math.nan

    def words_of(places: Places) -> tuple[Places, Places]:
        return _fetched(words, places), _fetched(words, half + places)

    return Normals(
        values.reshape(-1)[:count], BY_FLOAT64, max(half, 1), words_of,
        lambda pair: further(stream, step, pair),
    )  # fmt: skip


def box_muller(lengths: Any, turns: Any, bits: int, cosines: Any, sines: Any) -> None:
    """Compute pairs of normal numbers: sqrt(-2 log U) times the cosine and the sine of pi V.

    Args:
        lengths: The first bits of each U, whole numbers, (pairs,), of numpy or of torch.
        turns: The first bits of each V, one more, in [-1, 1).
        bits: How many bits of U.
        cosines: Where the first of each pair goes, of the kind that is computed in, (pairs,).
        sines: Where the second goes.
    """
    xp, kind = _library(cosines), cosines.dtype
    radii = xp.asarray(lengths, dtype=kind)  # a copy: these are whole numbers
    radii += 0.5
    radii *= 2.0**-bits
    xp.log(radii, out=radii)
    radii *= -2.0
    xp.sqrt(radii, out=radii)
    angles = xp.asarray(turns, dtype=kind)
    angles *= math.pi * 2.0**-bits
    xp.cos(angles, out=cosines)
    xp.sin(angles, out=sines)
    cosines *= radii
    sines *= radii


def pairs(count: int) -> int:
    """Return how many pairs are drawn for so many numbers: an even number, as words come in two."""
    return 2 * -(-count // 4)


def further(stream: Stream, step: int, pair: int) -> tuple[int, int]:
    """Return 128 further bits of U and of V, of one pair."""
    words = stream.child("further", pair).words(step).take(4).view(np.uint64)
    first, second, third, fourth = (int(word) for word in words)
    return first << 64 | second, third << 64 | fourth


def _half_word(words: Places, side: Any) -> Places:
    """Return the lower (0) or the upper (1) 32 bits of words."""
    return words >> 32 * side & 0xFFFFFFFF


def _share(bits: int) -> Any:
    import mpmath

    return (bits + mpmath.mpf(0.5)) / mpmath.mpf(2) ** MORE


def _on_cpu(array: Any) -> bool:
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _library(array: Any) -> Any:
    """Return the module that an array's class is from: numpy, or torch."""
    return importlib.import_module(type(array).__module__.partition(".")[0])


def _fetched(values: Any, places: Places) -> Any:
    """Return some of the values, of numpy."""
    if isinstance(values, np.ndarray):
        return values[places]
    return values[_library(values).from_numpy(places).to(values.device)].cpu().numpy()


def _store(total: Any, places: Places, values: Any) -> None:
    if isinstance(total, np.ndarray):
        total[places] = values
    else:
        as_tensor = _library(total).from_numpy
        total[as_tensor(places).to(total.device)] = as_tensor(values).to(total)


def _places(mask: Any) -> Places:
    return np.flatnonzero(np.asarray(mask if _on_cpu(mask) else mask.cpu()))
