"""Gaussian noise that holds in floating point: a sum plus exact normal numbers, rounded to a grid.

    release = g round(s / g + a z),    a = scale / g in [2^10, 2^11),  g a power of 2

z is a normal number with all its digits: z = sqrt(-2 log U) cos(2 pi V), and sin for its twin, with
U and V as infinitely many secret bits. So the release is a rounding of the Gaussian mechanism on s,
post-processing, and its price is that mechanism's: no lattice of s or of z is left in it.

How a whole number is got from infinitely many bits: from the first 63 of U and 64 of V a normal
number is computed in float64, which is wrong by less than `NEAR` / 2 grid points. Rounded, that is
the right whole number unless it lies within `NEAR` of the middle between two (about once in eight
million numbers); then 128 further bits of each are drawn, and it is decided with 100 digits. The
few U that float64 is not fine enough for (below 2^-30, above 1 - 2^-33) go the same way.

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
"""Numbers that are worked on at once: they stay in a processor's cache."""

NEAR = 2.0**-24
"""How near to the middle between two grid points more digits are asked for, in grid points."""

FINE = 10
"""Between 2^10 and 2^11 grid points to a standard deviation."""

MASK = 2**63 - 1
LEAST, MOST = 2**33, 2**63 - 2**30
"""Between them 63 bits of U are enough for float64."""

MORE = 128
"""Further bits of U and of V, where they are asked for."""

DIGITS = 400
"""Bits of the arithmetic that decides."""


def grid(scale: float) -> float:
    """Return the distance between grid points for noise of a standard deviation: a power of 2."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - FINE)


@dataclass(frozen=True, slots=True)
class Normals:
    """Normal numbers of one stream and step: in float64, and to any precision where it matters.

    Args:
        values: Float64, (count,), of numpy or of torch.
        extremes: Returns the places where float64 is not enough, ascending.
        words: From a pair's place to its words, of U and of V.
        more: From a pair's place to its further bits, (of U, of V), each below 2^`MORE`.
    """

    values: Any
    extremes: Callable[[], np.ndarray[Any, Any]]
    words: Callable[[int], tuple[int, int]]
    more: Callable[[int], tuple[int, int]]

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
            parts, values, block, xp = np.asarray(total), np.asarray(self.values), BLOCK, np
        else:
            parts, values, block, xp = total, self.values, max(len(total), 1), _library(total)
        grain, extremes = grid(scale), self.extremes()
        wide, fine = scale / grain, 1.0 / grain
        for low in range(0, len(parts), block):
            part = parts[low : low + block]
            first = start + low
            exact = xp.asarray(part, dtype=xp.float64) * fine
            points = xp.round(exact)
            rest = exact - points
            rest += values[first : first + len(part)] * wide
            moved = xp.round(rest)
            rest -= moved
            points += moved
            xp.abs(rest, out=rest)
            doubtful = extremes[(extremes >= first) & (extremes < first + len(part))] - first
            if rest.max() > 0.5 - NEAR:
                doubtful = np.union1d(doubtful, _places(rest > 0.5 - NEAR))
            for place in map(int, doubtful):
                points[place] = self._decided(float(exact[place]), first + place, wide)
            points *= grain
            part[:] = points

    def _decided(self, exact: float, place: int, wide: float) -> float:
        """Return the whole number next to exact + wide z, by more digits."""
        import mpmath

        with mpmath.workprec(DIGITS):
            return float(mpmath.floor(exact + wide * self.exactly(place) + mpmath.mpf(0.5)))

    def exactly(self, place: int) -> Any:
        """Return a number with the digits that its bits and the further ones give, an mpf."""
        import mpmath

        half = pairs(len(self.values))
        pair, twin = place % half, place >= half
        (length, turn), (more, other) = self.words(pair), self.more(pair)
        with mpmath.workprec(DIGITS):
            unit = mpmath.mpf(2) ** -63
            u = ((length & MASK) + _share(more)) * unit
            v = (turn + _share(other)) * unit
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            return radius * (mpmath.sin if twin else mpmath.cos)(mpmath.pi * v)


def normals(count: int, stream: Stream, step: int = 0, xp: Any = np) -> Normals:
    """Return normal numbers from a stream's words, on a CPU.

    Args:
        count: How many, 0 or more.
        stream: Serves these numbers and nothing else.
        step: Which step of it.
        xp: numpy, or torch.
    """
    half = pairs(count)
    values = xp.empty(2 * half, dtype=xp.float64)
    radii, angles = stream.words(step), stream.words(step, first=half)
    extremes = [np.empty(0, dtype=np.int64)]
    for low in range(0, half, BLOCK):
        high = min(low + BLOCK, half)
        lengths = radii.take(high - low) & MASK
        turns = xp.asarray(angles.take(high - low))
        if lengths.min() < LEAST or lengths.max() > MOST:
            found = _places((lengths < LEAST) | (lengths > MOST)) + low
            extremes += [found, found + half]
        box_muller(lengths, turns, values[low:high], values[half + low : half + high], xp)
    ends = np.sort(np.concatenate(extremes))
    return Normals(
        values[:count] if count < 2 * half else values,
        lambda: ends,
        lambda pair: (stream.word(pair, step), stream.word(half + pair, step)),
        lambda pair: further(stream, step, pair),
    )


def box_muller(lengths: Any, turns: Any, cosines: Any, sines: Any, xp: Any) -> None:
    """Compute pairs of normal numbers in float64, in place.

    Args:
        lengths: 63 bits of U, int64, (pairs,).
        turns: 64 bits of V, int64, (pairs,): an angle from -pi to pi.
        cosines: Where the first of each pair goes, float64, (pairs,).
        sines: Where the second goes.
        xp: numpy, or torch.
    """
    # On a CPU numpy's logarithm and root are the faster ones, torch's cosine and sine.
    first = np if isinstance(lengths, np.ndarray) else xp
    radii = first.asarray(lengths, dtype=first.float64)  # a copy: words are whole numbers
    radii += 0.5
    radii *= 2.0**-63
    first.log(radii, out=radii)
    radii *= -2.0
    first.sqrt(radii, out=radii)
    angles = xp.asarray(turns, dtype=xp.float64) * (math.pi * 2.0**-63)
    xp.cos(angles, out=cosines)
    xp.sin(angles, out=sines)
    cosines *= xp.asarray(radii)
    sines *= xp.asarray(radii)


def pairs(count: int) -> int:
    """Return how many pairs are drawn for so many numbers: an even number, as words come in two."""
    return 2 * -(-count // 4)


def further(stream: Stream, step: int, pair: int) -> tuple[int, int]:
    """Return 128 further bits of U and of V, of one pair."""
    words = stream.child("further", pair).words(step).take(4).view(np.uint64)
    first, second, third, fourth = (int(word) for word in words)
    return first << 64 | second, third << 64 | fourth


def _share(bits: int) -> Any:
    import mpmath

    return (bits + mpmath.mpf(0.5)) / mpmath.mpf(2) ** MORE


def _on_cpu(array: Any) -> bool:
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _library(array: Any) -> Any:
    """Return the module that an array's class is from: torch, for one on a GPU."""
    return importlib.import_module(type(array).__module__.partition(".")[0])


def _places(mask: Any) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.asarray(mask if _on_cpu(mask) else mask.cpu()))
