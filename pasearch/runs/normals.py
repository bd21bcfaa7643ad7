"""Gaussian noise that is exact in floating point: a sum plus exact normal numbers, on a grid.

    release = g round(s / g + a z),    a = scale / g in [2^7, 2^8),  g a power of 2

z is a normal number with all its digits: z = sqrt(-2 log U) cos(pi V), and sin for its twin, with
U and V as infinitely many secret bits. So the release is a rounding of the Gaussian mechanism on s
(post-processing) and costs what that mechanism costs: no lattice of s or of z is left in it. s is
read as the exact number that its float is, so nothing is rounded before the noise is added.

An integer follows from infinitely many bits in stages. A later stage is used only for a number that
the stage before cannot round for certain: it is too near to the middle between two integers, or
its U is too near to 0 or 1.

    bits of U, of V    computed in
    31, 32             float32, compiled code only (`compiled`): one in 1,000 goes on
    63, 64             float64, error at most `FLOAT64_ERROR`: one in 20 million goes on
    191, 192           400 bits of precision: decides

Compiled code is used by a process that draws many numbers. It releases the same numbers.

Source: docs/rules.md, rule 11; Box and Muller 1958; Mironov 2012 (why). Proof:
docs/guarantees/floating-point.md.
"""

from __future__ import annotations

import importlib
import math
import threading
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from pasearch import status_message
from pasearch.runs.keys import RandomWords, Stream
from pasearch.runs.processor import GROUP, ThreadTeam

COMPILED_BLOCK = 2**16
"""Numbers that compiled code processes at once: their bits stay in a processor's cache."""

ARRAY_BLOCK = 2**14
"""Numbers that arrays process at once: larger temporary arrays would be fresh memory each time."""

MAX_SINGLE_PIECE_COUNT = 4096
"""Largest count whose numbers have 64-bit words in one piece; larger counts have the first 31 and
32 bits of each pair apart from the rest."""

GRID_LOG2 = 7
"""Base-2 logarithm of the least number of grid points per standard deviation."""

FLOAT64_ERROR = 2.0**-33
"""Largest error of a normal number in float64, its product with a and the sum included."""

MIN_U_BITS = 2**33
"""Smallest 63 bits of U for which float64 keeps `FLOAT64_ERROR`."""

MAX_U_BITS = 2**63 - 2**30
"""Largest 63 bits of U for which float64 keeps `FLOAT64_ERROR`."""

UNREFINED_ERROR = 2.0**-46
"""Largest error of a number of `UnrefinedNormals` in float64, without the bits not drawn."""

LOW_63_BITS = 2**63 - 1
LOW_32_BITS = 0xFFFFFFFF

MIN_COMPILED_NUMBERS = 20_000_000
"""Numbers of a process from which loading the compiled code pays."""

FURTHER_BITS = 128
"""Further bits of U and of V for a number that float64 cannot round."""

PRECISION_BITS = 400
"""Bits of precision of the last stage."""

MAX_GRID_DISTANCE = 2.0**60
"""Grid distances between 1 / MODERATE and MODERATE are handled by the compiled code."""

Positions = np.ndarray[Any, np.dtype[np.int64]]

_drawn = 0


class _Buffers(threading.local):
    """Buffers of each thread, made once: new memory at every step takes longer than its use."""

    def __init__(self) -> None:
        self.bits = bytearray(4 * COMPILED_BLOCK + 15)
        self._doubts: tuple[Any, ...] = (np.empty(0),)

    def of(self, count: int) -> tuple[Any, ...]:
        """Return three int64 arrays and a float64 array for up to `count` uncertain numbers."""
        if len(self._doubts[0]) < count:
            self._doubts = (*(np.empty(count, dtype=np.int64) for _ in range(3)), np.empty(count))
        return self._doubts


_BUFFERS = _Buffers()


def grid_distance(scale: float) -> float:
    """Return the distance between grid points for noise of a standard deviation: a power of 2."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - GRID_LOG2)


@dataclass(slots=True)
class Normals:
    """Normal numbers of one stream and step, to any precision that a rounding needs.

    They are in groups: the first numbers of 32 pairs, then the second ones.

    Args:
        count: Number of values.
        stream: Source of the bits; it serves these numbers alone.
        step: Step of the stream.
        given_words: First bits, int64 of NumPy or PyTorch, shape (2 pairs(count),): the words of
            all U, then those of all V. None draws them from the stream when they are needed.
        code: Compiled loops that compute the numbers as they are added; None computes arrays.
        values: Float64, shape (count,), in the library and on the device of `given_words`; NaN
            where float64 is too coarse; None before `compute`.
    """

    count: int
    stream: Stream
    step: int
    given_words: Any = None
    code: ModuleType | None = None
    values: Any = None

    def compute(self) -> Normals:
        """Compute the values, once; return this object."""
        if self.values is None:
            on_device = self.given_words is not None and not isinstance(
                self.given_words, np.ndarray
            )
            block = max(self.count, 1) if on_device else ARRAY_BLOCK
            parts = [self._block(low, block) for low in range(0, max(self.count, 1), block)]
            self.values = _library(parts[0]).concatenate(parts)
        return self

    def _block(self, low: int, size: int) -> Any:
        """Compute up to `size` values from index `low`, a multiple of 2 GROUP."""
        size = min(size, self.count - low)
        lengths, turns = self._bits(low // 2, count_pairs(size))
        lengths = lengths & LOW_63_BITS
        pair = box_muller(lengths, turns)
        coarse = (lengths < MIN_U_BITS) | (lengths > MAX_U_BITS)
        for each in pair:
            each[coarse] = math.nan
        return _interleave_groups(*pair)[:size]

    def _bits(self, first: int, count: int) -> tuple[Any, Any]:
        """Return the words of U and of V of some pairs, int64; `first` is a multiple of a group."""
        if self.given_words is not None:
            half = len(self.given_words) // 2
            return self.given_words[first : first + count], self.given_words[
                half + first : half + first + count
            ]
        halves = (
            self.stream.random_words(self.step, first).take(count).view("<i4").reshape(-1, 2, GROUP)
        )
        lengths, turns = halves.swapaxes(0, 1).reshape(2, count).astype(np.int64)
        rests = self._finer(first).take(count)
        return lengths << 32 | rests & LOW_32_BITS, turns << 32 | rests >> 32 & LOW_32_BITS

    def _finer(self, first: int = 0) -> RandomWords:
        """Return the words of each pair's next bits, those of V above those of U."""
        return self.stream.child("finer").random_words(self.step, first)

    @np.errstate(over="ignore", invalid="ignore")  # what overflows is decided by more digits
    def add_to(
        self, total: Any, scale: float, *, start: int = 0, team: ThreadTeam | None = None
    ) -> None:
        """Add noise to a flat array in place: the result is on the grid.

        Guarantee: the result is the rounding of total + scale z, z independent normal numbers,
        for every total, except with probability 2^-90 per number. It is the same for every team.

        Args:
            total: Float32 or float64, shape (size,), finite; of the library of the words.
            scale: Standard deviation of the noise, above 0.
            start: Index of the number that is added to the first entry.
            team: Threads that may share the work; None: the caller alone.
        """
        total, grain = np.asarray(total) if _on_cpu(total) else total, grid_distance(scale)
        wide, moderate = scale / grain, 1 / MAX_GRID_DISTANCE < grain < MAX_GRID_DISTANCE
        if self.code is not None and moderate and _is_flat(total, self.count):
            code, team = self.code, ThreadTeam(1) if team is None else team
            team.run_divided(
                count_pairs(self.count) // GROUP,
                lambda _, low, high: self._add_by_code(code, total, wide, grain, low, high),
            )
            return
        if start or len(total) < self.count:
            self.compute()
        xp = _library(total)
        block = ARRAY_BLOCK if xp is np else max(len(total), 1)
        for low in range(0, len(total), block):
            part = total[low : low + block]
            rest = xp.asarray(part, dtype=xp.float64) * (1.0 / grain)
            points = xp.round(rest)
            rest -= points
            if self.values is None:
                values = self._block(low, block)
            else:
                values = self.values[start + low : start + low + len(part)]
            rest += xp.asarray(values) * wide
            moved = xp.round(rest)
            rest -= moved
            points += moved
            points += 0.0  # no zero is negative: its sign would tell the sign of the sum
            points *= grain
            sure = abs(rest) <= 0.5 - FLOAT64_ERROR * wide
            unsure = np.flatnonzero(np.asarray(~sure if _on_cpu(sure) else (~sure).cpu()))
            exact = np.array([float(part[place]) for place in unsure.tolist()])
            part[:] = points
            self._decide(part, unsure, exact, wide, grain, start + low)

    @np.errstate(over="ignore", invalid="ignore")
    def _add_by_code(
        self, code: ModuleType, total: Any, wide: float, grain: float, first: int, end: int
    ) -> None:
        """Add the numbers of groups `first` to `end` and settle uncertain ones in compiled code."""
        given, room, found = code.grid_settings(wide, grain), _BUFFERS.of(self.count), 0
        source = self.stream.random_words(self.step, GROUP * first)
        for low in range(2 * GROUP * first, 2 * GROUP * end, COMPILED_BLOCK):
            size = min(COMPILED_BLOCK, 2 * GROUP * end - low)
            bits = source.take(size // 2, _BUFFERS.bits).view("<i4")
            found = code.add_noise(bits, total[low : low + size], *given, low, found, *room)
        if found:
            places, own, firsts, exact = room
            rests, sure = self._finer().at(own[:found]), 0.5 - FLOAT64_ERROR * wide
            found = code.round_uncertain(
                total,
                places,
                exact,
                firsts[:found],
                rests,
                wide,
                grain,
                sure,
                MIN_U_BITS,
                MAX_U_BITS,
            )
            self._decide(total, places[:found], exact[:found], wide, grain)

    def _decide(
        self, total: Any, places: Positions, exact: Any, wide: float, grain: float, start: int = 0
    ) -> None:
        """Round some entries by more digits, in place; `exact` holds what they were before."""
        for place, each in zip(places.tolist(), exact.tolist(), strict=True):
            total[place] = self._decided(each / grain, start + place, wide) * grain

    def _decided(self, exact: float, place: int, wide: float) -> float:
        """Return the integer next to exact + wide z, z the number at an index, by more digits."""
        import mpmath

        with mpmath.workprec(PRECISION_BITS):
            return float(mpmath.floor(exact + wide * self.exactly(place) + mpmath.mpf(0.5)))

    def exactly(self, place: int) -> Any:
        """Return the number at an index with the digits of all 191 and 192 bits, an mpf."""
        import mpmath

        group, within = divmod(place, 2 * GROUP)
        lengths, turns = self._bits(GROUP * group, GROUP)
        length, turn = int(lengths[within % GROUP]) & LOW_63_BITS, int(turns[within % GROUP])
        further = (
            self.stream.child("further", GROUP * group + within % GROUP)
            .random_words(self.step)
            .take(4)
            .view(np.uint64)
        )
        first, second, third, fourth = (int(word) for word in further)
        with mpmath.workprec(PRECISION_BITS):
            unit, half = mpmath.mpf(2) ** -63, mpmath.mpf(0.5)
            u = (length + ((first << 64 | second) + half) / mpmath.mpf(2) ** FURTHER_BITS) * unit
            v = (turn + ((third << 64 | fourth) + half) / mpmath.mpf(2) ** FURTHER_BITS) * unit
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            return radius * (mpmath.sin if within >= GROUP else mpmath.cos)(mpmath.pi * v)


@dataclass(frozen=True, slots=True)
class UnrefinedNormals:
    """Normal numbers from their first 127 bits alone: for a GPU, which then never has to wait.

    Each has its own error bound, so that only one number in 10^11 cannot be rounded.

    Args:
        values: Float64, shape (count,), in the order of `Normals`.
        errors: Largest error of each, its product and its sum included; NaN: no bound.
    """

    values: Any
    errors: Any

    @classmethod
    def of(cls, words: Any, count: int) -> UnrefinedNormals:
        """Return the numbers of words as `normals_from_words` takes them."""
        half, xp = len(words) // 2, _library(words)
        lengths = words[:half] & LOW_63_BITS
        pair = box_muller(lengths, words[half:])
        radii = xp.hypot(*pair)
        # Infinite or NaN at both ends of U.
        errors = (1.0 / lengths + 2.0**-53) / radii + UNREFINED_ERROR
        return cls(_interleave_groups(*pair)[:count], _interleave_groups(errors, errors)[:count])

    def add_to(self, total: Any, scale: float, *, start: int = 0) -> Any:
        """Add noise in place as `Normals.add_to` does; return whether it may be wrong, bool, ().

        If it may be, no entry of the total may be used: the sum has to be computed again, for
        `Normals.add_to` with the same words. A total that is not finite is such a case. Nothing is
        fetched from the device.

        Args:
            total: Float32 or float64, shape (size,); of the library of the words.
            scale: Standard deviation of the noise, above 0.
            start: Index of the number that is added to the first entry.
        """
        grain, part = grid_distance(scale), slice(start, start + len(total))
        xp, wide = _library(total), scale / grain
        rest = xp.asarray(total, dtype=xp.float64) * (1.0 / grain)
        points = xp.round(rest)
        rest -= points
        rest += self.values[part] * wide
        moved = xp.round(rest)
        rest -= moved
        points += moved
        points += 0.0  # as in `Normals.add_to`
        points *= grain
        total[:] = points
        return ~(abs(rest) <= 0.5 - self.errors[part] * wide).all()


def draw_normals(
    count: int, stream: Stream, step: int = 0, code: ModuleType | None = None
) -> Normals:
    """Return normal numbers from a stream's words, on a CPU; they are computed when needed.

    Args:
        count: Number of values, 0 or more.
        stream: Serves these numbers and nothing else.
        step: Step of the stream.
        code: Compiled loops, if they are loaded already.
    """
    if count <= MAX_SINGLE_PIECE_COUNT:
        words = stream.random_words(step).take(2 * count_pairs(count)).copy()
        return normals_from_words(words, count, stream, step)
    return Normals(count, stream, step, code=code or choose_compiled_code(count))


def normals_from_words(words: Any, count: int, stream: Stream, step: int) -> Normals:
    """Return normal numbers from words of NumPy or PyTorch, computed on their device.

    Args:
        words: Int64, shape (2 pairs(count),): the words of all U, then those of all V.
        count: Number of values.
        stream: Source of further bits, if any are needed.
        step: Step of the stream.
    """
    return Normals(count, stream, step, given_words=words).compute()


def add_small_noise(
    total: Any, scale: float, words: Any, stream: Stream, step: int, code: ModuleType
) -> None:
    """Add noise in place in compiled code, as `Normals.add_to` does for numbers from words.

    Args:
        total: Float64 or float32, shape (size,), contiguous, of NumPy.
        scale: Standard deviation of the noise, above 0.
        words: Words as `normals_from_words` takes them, of NumPy.
        stream: Source of further bits, if any are needed.
        step: Step of the stream.
        code: Compiled loops.
    """
    grain, count = grid_distance(scale), len(total)
    if not 1 / MAX_GRID_DISTANCE < grain < MAX_GRID_DISTANCE:
        normals_from_words(words, count, stream, step).add_to(total, scale)
        return
    wide, (places, _, _, exact) = scale / grain, _BUFFERS.of(count)
    finer = wide, grain, 0.5 - FLOAT64_ERROR * wide, MIN_U_BITS, MAX_U_BITS
    found = code.add_noise_to_few(
        words, total, code.grid_settings(wide, grain), finer, places, exact
    )
    if found:
        numbers = Normals(count, stream, step, given_words=words)
        numbers._decide(total, places[:found], exact[:found], wide, grain)


def choose_compiled_code(more: int) -> ModuleType | None:
    """Return the compiled loops; None while a process has drawn too few numbers for them.

    Both ways release the same numbers. Loading takes half a second, and compiling, once a machine
    and version, three.

    Args:
        more: Numbers that are about to be drawn.
    """
    global _drawn
    _drawn += more
    return load_compiled() if _drawn >= MIN_COMPILED_NUMBERS else None


@cache
def load_compiled() -> ModuleType | None:
    """Load the loops and try them on public numbers; None if they fail, or release others."""
    try:
        with status_message.show_status(status_message.COMPILING_STATUS):
            code = importlib.import_module("pasearch.runs.compiled")
            totals = [np.linspace(-9.0, 9.0, MAX_SINGLE_PIECE_COUNT + 1) for _ in range(2)]
            for each, total in zip((None, code), totals, strict=True):
                Normals(MAX_SINGLE_PIECE_COUNT + 1, Stream(bytes(32)), 0, code=each).add_to(
                    total, 1.5
                )
    except Exception:  # noqa: BLE001 - no numba, no room for its files, or damaged ones: arrays do
        return None
    return code if np.array_equal(totals[0], totals[1]) else None


def box_muller(lengths: Any, turns: Any, bits: int = 63) -> tuple[Any, Any]:
    """Return pairs of normal numbers: sqrt(-2 log U) times the cosine and the sine of pi V.

    Args:
        lengths: The first bits of each U, integers of any shape, of NumPy or PyTorch.
        turns: The first bits of each V, one more than of U, as integers that mean [-1, 1).
        bits: Number of bits of U.

    Returns:
        Two float64 arrays of that shape.
    """
    xp = _library(lengths)
    radii = xp.asarray(lengths, dtype=xp.float64)  # a copy: these are integers
    radii += 0.5
    radii *= 2.0**-bits
    xp.log(radii, out=radii)
    radii *= -2.0
    xp.sqrt(radii, out=radii)
    angles = xp.asarray(turns, dtype=xp.float64)
    angles *= math.pi * 2.0**-bits
    sines = xp.sin(angles)
    cosines = xp.cos(angles, out=angles)
    cosines *= radii
    sines *= radii
    return cosines, sines


def _interleave_groups(first: Any, second: Any) -> Any:
    parts = [first.reshape(-1, GROUP), second.reshape(-1, GROUP)]
    return _library(first).stack(parts, 1).reshape(-1)


def count_pairs(count: int) -> int:
    """Return the number of pairs that are drawn for `count` numbers: whole groups."""
    return GROUP * -(-count // (2 * GROUP))


def _on_cpu(array: Any) -> bool:
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _is_flat(array: Any, count: int) -> bool:
    """Check whether an array is contiguous, of NumPy, and has `count` floats."""
    return (
        isinstance(array, np.ndarray)
        and len(array) == count
        and array.dtype in (np.float32, np.float64)
        and array.flags.c_contiguous
    )


def _library(array: Any) -> Any:
    """Return the module that an array's class is from: NumPy, or PyTorch."""
    return importlib.import_module(type(array).__module__.partition(".")[0])
