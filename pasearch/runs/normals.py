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
or 1, that the stage cannot tell. A process that draws many has the first two stages in machine
code (`compiled`), where one in 1,000 goes on.

s is read as the exact number that its float is, so nothing is rounded before the noise is in it.

Source: docs/rules.md, rule 11; Box and Muller 1958; Mironov 2012 (why). Proof:
docs/guarantees/floating-point.md.
"""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from pasearch import busy
from pasearch.runs.keys import Stream, Words
from pasearch.runs.processor import GROUP, Team

BLOCK = 2**16
"""Numbers that are worked on at once: their bits stay in a processor's cache."""

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

ALONE = 2.0**-46
"""What float64 makes a number err at most, beside the bits that were not drawn; see `Alone`."""

MASK = 2**63 - 1
HALF = 0xFFFFFFFF

WORTH = 50_000_000
"""From how many numbers of a process on machine code pays for being loaded."""

MORE = 128
"""Further bits of U and of V, where they are asked for."""

DIGITS = 400
"""Bits of the arithmetic that decides."""

MODERATE = 2.0**60
"""Up to what size, and from what size down, float32 divides by a grid point's distance exactly."""

Places = np.ndarray[Any, np.dtype[np.int64]]

_drawn = 0


class _Rooms(threading.local):
    """What each thread works in, made once: new memory for every step takes longer than its use."""

    def __init__(self) -> None:
        self.bits = bytearray(4 * BLOCK + 15)
        self._doubts: tuple[Any, ...] = (np.empty(0),)

    def of(self, count: int) -> tuple[Any, ...]:
        """Return room for what is in doubt of so many numbers: three whole ones and a float."""
        if len(self._doubts[0]) < count:  # memory that is never touched is none
            self._doubts = (*(np.empty(count, dtype=np.int64) for _ in range(3)), np.empty(count))
        return self._doubts


_ROOMS = _Rooms()


def grid(scale: float) -> float:
    """Return the distance between grid points for noise of a standard deviation: a power of 2."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - FINE)


@dataclass(frozen=True, slots=True)
class Normals:
    """Normal numbers of one stream and step: roughly, and to any precision where it matters.

    They lie in groups: the first numbers of 32 pairs, and then the second ones.

    Args:
        count: How many.
        values: Float32 or float64, (count,), of numpy or of torch; NaN where that is too coarse.
            None: not computed yet, and so cheaper to add.
        error: How much they may err, the sum included.
        words: From pairs' places to their words, of U and of V: int64, like the places.
        more: From a pair's place to its further bits, (of U, of V), each below 2^`MORE`.
        source: Serves, from a word on, the first bits of values that are not computed yet: of every
            group 32 of each U, and then 32 of each V.
        finer: From pairs' places to their next bits, those of V above those of U, int64.
        code: The loops in machine code that compute them; None for arrays.
    """

    count: int
    values: Any
    error: float
    words: Callable[[Places], tuple[Places, Places]]
    more: Callable[[int], tuple[int, int]]
    source: Callable[[int], Words] | None = None
    finer: Callable[[Places], Places] | None = None
    code: ModuleType | None = None

    def computed(self) -> Normals:
        """Return the same with their values."""
        if self.values is not None:
            return self
        values = np.empty(2 * pairs(self.count), dtype=np.float32)
        transform = _transform if self.code is None else self.code.transform
        for low, bits in self._served(0, len(values)):
            transform(bits, values[low : low + len(bits)])
        return replace(self, values=values[: self.count])

    def _served(self, low: int, high: int) -> Iterator[tuple[int, Any]]:
        """Yield first bits block by block, of whole groups from low on up to high."""
        assert self.source is not None
        source = self.source(low // 2)
        for first in range(low, high, BLOCK):
            yield first, source.take(min(BLOCK, high - first) // 2, _ROOMS.bits).view("<i4")

    @np.errstate(over="ignore", invalid="ignore")  # what float32 cannot hold is not sure, either
    def add_to(self, total: Any, scale: float, *, start: int = 0, team: Team | None = None) -> None:
        """Add noise to a flat array in place: what is left there are grid points.

        Guarantee: the result is the rounding of total + scale z, z independent normal numbers,
        whatever the total is; but for 2^-90 in probability a number. It is the same by any team.

        Args:
            total: Float32 or float64, (size,), finite; of numpy or of torch, where the values are.
            scale: The noise's standard deviation, above 0.
            start: Which of the numbers is the first one's.
            team: Threads that may share the work; None: the caller alone.
        """
        parts, grain = np.asarray(total) if _on_cpu(total) else total, grid(scale)
        wide, moderate = scale / grain, 1 / MODERATE < grain < MODERATE
        fits = self.values is None and moderate and _is_flat(parts, self.count)
        if self.code is not None and fits:
            code, team = self.code, Team(1) if team is None else team
            team.divided(
                pairs(self.count) // GROUP,
                lambda _, low, high: self._by_code(code, parts, wide, grain, low, high),
            )
            return
        values = self.computed().values[start : start + len(parts)]
        places, exact = _released(parts, values, wide, grain, self.error)
        if len(places):
            decided = self._by_float64(exact / grain, start + places, wide) * grain
            _store(parts, places, decided)

    @np.errstate(over="ignore", invalid="ignore")
    def _by_code(
        self, code: ModuleType, total: Any, wide: float, grain: float, first: int, end: int
    ) -> None:
        """Compute some groups, round, and settle what is in doubt, all in machine code."""
        given, room, found = code.settings(wide, grain, self.error), _ROOMS.of(self.count), 0
        for low, bits in self._served(2 * GROUP * first, 2 * GROUP * end):
            found = code.release(bits, total[low : low + len(bits)], *given, low, found, *room)
        if not found:
            return
        assert self.finer is not None
        places, own, firsts, exact = room
        rests, sure = self.finer(own[:found]), 0.5 - BY_FLOAT64 * wide
        found = code.settle(
            total, places, exact, firsts[:found], rests, wide, grain, sure, LEAST, MOST
        )
        self._decide(total, places[:found], exact[:found], wide, grain)

    def _by_float64(self, exact: Any, places: Places, wide: float) -> Any:
        """Return the whole numbers next to exact + wide z: from all 64 bits, or from more."""
        pair, twin = _pairs_of(places)
        lengths, turns = self.words(pair)
        lengths = lengths & MASK
        cosines, sines = box_muller(lengths, turns, 63, np.float64)
        points = np.rint(exact)
        rest = exact - points + np.where(twin, sines, cosines) * wide
        moved = np.rint(rest)
        points += moved + 0.0
        near = ~(np.abs(rest - moved) <= 0.5 - BY_FLOAT64 * wide)
        for each in np.flatnonzero(near | (lengths < LEAST) | (lengths > MOST)):
            points[each] = self._decided(float(exact[each]), int(places[each]), wide)
        return points

    def _decide(self, total: Any, places: Places, exact: Any, wide: float, grain: float) -> None:
        """Round some of a sum by more digits, in place; exact is what stood there."""
        for place, each in zip(places.tolist(), exact.tolist(), strict=True):
            total[place] = self._decided(each / grain, place, wide) * grain

    def _decided(self, exact: float, place: int, wide: float) -> float:
        """Return the whole number next to exact + wide z, by more digits."""
        import mpmath

        with mpmath.workprec(DIGITS):
            return float(mpmath.floor(exact + wide * self.exactly(place) + mpmath.mpf(0.5)))

    def exactly(self, place: int) -> Any:
        """Return a number with the digits that its bits and the further ones give, an mpf."""
        import mpmath

        pair, (twin,) = _pairs_of(np.array([place]))
        (length,), (turn,) = self.words(pair)
        more, other = self.more(int(pair[0]))
        with mpmath.workprec(DIGITS):
            unit = mpmath.mpf(2) ** -63
            u = ((int(length) & MASK) + _share(more)) * unit
            v = (int(turn) + _share(other)) * unit
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            return radius * (mpmath.sin if twin else mpmath.cos)(mpmath.pi * v)


@dataclass(frozen=True, slots=True)
class Alone:
    """Normal numbers whose first 127 bits have to do: for a GPU, which then need not be waited for.

    Each has a bound on its own error, so that one of 10^11 is not enough for its rounding.

    Args:
        values: Float64, (count,), in the order of `Normals`.
        errors: How much each may err, its product and its sum included; NaN: as much as it likes.
    """

    values: Any
    errors: Any

    @classmethod
    def of(cls, words: Any, count: int) -> Alone:
        """Return the numbers of words, which are as for `of_words`."""
        half, xp = len(words) // 2, _library(words)
        lengths = words[:half] & MASK
        pair = box_muller(lengths, words[half:], 63, xp.float64)
        radii = xp.hypot(*pair)
        errors = (1.0 / lengths + 2.0**-53) / radii + ALONE  # infinite or NaN at the ends of U
        values, errors = (
            xp.stack([first.reshape(-1, GROUP), twin.reshape(-1, GROUP)], 1).reshape(-1)[:count]
            for first, twin in (pair, (errors, errors))
        )
        return cls(values, errors)

    def add_to(self, total: Any, scale: float, *, start: int = 0) -> Any:
        """Add noise in place as `Normals.add_to` does; return whether it may be wrong, bool, ().

        If it may be, nothing of the total may be used: the sum has to be made again, for
        `Normals.add_to` with the same words. A total that is not finite is such a case. Nothing is
        fetched from the device.

        Args:
            total: As for `Normals.add_to`.
            scale: As there.
            start: As there.
        """
        grain, part = grid(scale), slice(start, start + len(total))
        xp, wide = _library(total), scale / grain
        rest = xp.asarray(total, dtype=xp.float64) * (1.0 / grain)
        points = xp.round(rest)
        rest -= points
        rest += self.values[part] * wide
        moved = xp.round(rest)
        rest -= moved
        points += moved
        points += 0.0  # as in `_released`
        points *= grain
        total[:] = points
        return ~(abs(rest) <= 0.5 - self.errors[part] * wide).all()


def normals(count: int, stream: Stream, step: int = 0, code: ModuleType | None = None) -> Normals:
    """Return normal numbers from a stream's words, on a CPU: float32, or of few float64.

    Args:
        count: How many, 0 or more.
        stream: Serves these numbers and nothing else.
        step: Which step of it.
        code: The loops in machine code, if they are loaded in any case.
    """
    if count <= FEW:
        words = stream.words(step).take(2 * pairs(count)).copy()
        return of_words(words, count, stream, step)
    return _of_stream(count, stream, step, code or machine_code(count))


def _of_stream(count: int, stream: Stream, step: int, code: ModuleType | None) -> Normals:
    source = partial(stream.words, step)

    def first_bits(places: Places) -> Places:
        halves = places + (places & -GROUP)  # of whole groups of U before it, and of V
        u, v = (source(0).at(each >> 1) >> 32 * (each & 1) for each in (halves, halves + GROUP))
        return v << 32 | u & HALF

    def finer(places: Places) -> Places:
        return stream.child("finer").words(step).at(places)

    def words(places: Places) -> tuple[Places, Places]:
        firsts, rests = first_bits(places), finer(places)
        return firsts << 32 | rests & HALF, firsts & ~HALF | rests >> 32 & HALF

    error = BY_FLOAT32 if code is None else code.BY_COMPILED
    more = partial(further, stream, step)
    return Normals(count, None, error, words, more, source, finer, code)


def of_words(words: Any, count: int, stream: Stream, step: int) -> Normals:
    """Return normal numbers, float64, from words of numpy or of torch; there they stay.

    The words are int64, (2 `pairs`(count),), first those of U; stream and step give further bits,
    if any are needed.
    """
    half = len(words) // 2
    lengths = words[:half] & MASK
    cosines, sines = box_muller(lengths, words[half:], 63, _library(words).float64)
    coarse = (lengths < LEAST) | (lengths > MOST)
    cosines[coarse] = sines[coarse] = math.nan
    values = _library(words).stack([cosines.reshape(-1, GROUP), sines.reshape(-1, GROUP)], 1)

    def words_of(places: Places) -> tuple[Places, Places]:
        return _fetched(words, places), _fetched(words, half + places)

    more = partial(further, stream, step)
    return Normals(count, values.reshape(-1)[:count], BY_FLOAT64, words_of, more)


def add_few(
    total: Any, scale: float, words: Any, stream: Stream, step: int, code: ModuleType
) -> None:
    """Add noise in place as `of_words(words, ...).add_to(total, scale)` does, in machine code.

    Args:
        total: Float64 or float32, (size,), contiguous, of numpy.
        scale: The noise's standard deviation, above 0.
        words: As for `of_words`, of numpy.
        stream: See there.
        step: See there.
        code: The loops.
    """
    grain = grid(scale)
    if not 1 / MODERATE < grain < MODERATE:
        of_words(words, len(total), stream, step).add_to(total, scale)
        return
    wide, (places, _, _, exact) = scale / grain, _ROOMS.of(len(total))
    finer = wide, grain, 0.5 - BY_FLOAT64 * wide, LEAST, MOST
    given = code.settings(wide, grain, code.BY_COMPILED)
    found = code.release_few(words, total, given, finer, places, exact)
    if found:
        made = of_words(words, len(total), stream, step)
        made._decide(total, places[:found], exact[:found], wide, grain)


def _transform(bits: Any, values: Any) -> None:
    """Do what `compiled.transform` does, by arrays."""
    lengths, turns = bits.reshape(-1, 2, GROUP).swapaxes(0, 1)
    lengths = lengths & 0x7FFFFFFF
    pair = box_muller(lengths, turns, 31, np.float32)
    coarse = np.nonzero((lengths < LOW) | (lengths > HIGH))
    for half, each in enumerate(pair):
        each[coarse] = np.nan
        values.reshape(-1, 2, GROUP)[:, half] = each


def _released(
    total: Any, values: Any, wide: float, grain: float, error: float
) -> tuple[Places, Any]:
    """Do what `compiled.release` does, by arrays, of any kind and on any device."""
    if isinstance(total, np.ndarray):
        values, block, xp = np.asarray(values), BLOCK, np
    else:
        block, xp = max(len(total), 1), _library(total)
    nearest = np.rint if xp is np else xp.round
    kind = values.dtype if 1 / MODERATE < grain < MODERATE else xp.float64
    kind = kind if total.dtype == kind else xp.float64
    asked = [(np.empty(0, dtype=np.int64), np.empty(0))]
    for low in range(0, len(total), block):
        part = total[low : low + block]
        rest = xp.asarray(part, dtype=kind) * (1.0 / grain)
        points = nearest(rest)
        rest -= points
        rest += values[low : low + block] * wide
        moved = nearest(rest)
        rest -= moved
        points += moved
        points += 0.0  # no zero is negative: its sign would tell on which side of it the sum was
        points *= grain
        sure = xp.abs(rest, out=rest) <= 0.5 - error * wide
        if len(doubtful := _places(~sure)):
            asked.append((low + doubtful, _fetched(part, doubtful).astype(np.float64)))
        part[:] = points
    return _joined(asked)


def _joined(asked: list[tuple[Any, ...]]) -> Any:
    return asked[0] if len(asked) == 1 else tuple(map(np.concatenate, zip(*asked, strict=True)))


def machine_code(more: int) -> ModuleType | None:
    """Return the loops in machine code; None while a process has drawn too few numbers for them.

    Both ways release the same numbers. Loading takes half a second, and compiling, once a machine
    and version, three.

    Args:
        more: Numbers that are about to be drawn.
    """
    global _drawn
    _drawn += more
    return compiled() if _drawn >= WORTH else None


@cache
def compiled() -> ModuleType | None:
    """Load the loops and try them on public numbers; None if they fail, or release others."""
    try:
        with busy.at(busy.COMPILING):
            code = importlib.import_module("pasearch.runs.compiled")
            plain, fast = (_of_stream(FEW + 1, Stream(bytes(32)), 0, each) for each in (None, code))
            totals = [np.linspace(-9.0, 9.0, FEW + 1) for _ in range(3)]
            for each, total in zip((plain, fast, fast.computed()), totals, strict=True):
                each.add_to(total, 1.5)
    except Exception:  # noqa: BLE001 - no numba, no room for its files, or damaged ones: arrays do
        return None
    return code if all(np.array_equal(totals[0], each) for each in totals) else None


def box_muller(lengths: Any, turns: Any, bits: int, kind: Any) -> tuple[Any, Any]:
    """Return pairs of normal numbers: sqrt(-2 log U) times the cosine and the sine of pi V.

    Args:
        lengths: The first bits of each U, whole numbers, of any shape, of numpy or of torch.
        turns: The first bits of each V, one more, in [-1, 1).
        bits: How many bits of U.
        kind: What it is computed in.
    """
    xp = _library(lengths)
    radii = xp.asarray(lengths, dtype=kind)  # a copy: these are whole numbers
    radii += 0.5
    radii *= 2.0**-bits
    xp.log(radii, out=radii)
    radii *= -2.0
    xp.sqrt(radii, out=radii)
    angles = xp.asarray(turns, dtype=kind)
    angles *= math.pi * 2.0**-bits
    sines = xp.sin(angles)
    cosines = xp.cos(angles, out=angles)
    cosines *= radii
    sines *= radii
    return cosines, sines


def pairs(count: int) -> int:
    """Return how many pairs are drawn for so many numbers: whole groups."""
    return GROUP * -(-count // (2 * GROUP))


def _pairs_of(places: Places) -> tuple[Places, Any]:
    """Return the pairs that numbers belong to, and whether each is the second of its pair."""
    group = places // (2 * GROUP)
    within = places - 2 * GROUP * group
    return GROUP * group + within % GROUP, within >= GROUP


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


def _is_flat(array: Any, count: int) -> bool:
    """Return whether an array is contiguous and has `count` floats."""
    return (
        isinstance(array, np.ndarray)
        and len(array) == count
        and array.dtype in (np.float32, np.float64)
        and array.flags.c_contiguous
    )


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
