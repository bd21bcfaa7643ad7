"""Gaussian noise that is exact in floating point: a sum plus exact noise, rounded to a grid.

    release = g round(s / g + a z),    a = scale / g in [2^7, 2^8),  g a power of 2

s is the sum, as the exact number that its float represents. g is the distance of grid points. z is
an exact standard normal number: z = sqrt(-2 log U) cos(pi V), or with sin for the other number of a
pair. U and V are uniform numbers with infinitely many secret bits. So the release is a rounded
output of the exact Gaussian mechanism (post-processing) and has the same privacy cost. It contains
no traces of the floating-point representation of s or z.

Only as many bits of U and V are drawn as are needed to round s / g + a z. A later stage is used
only if the rounding is uncertain at the stage before: the value is too close to the middle between
two integers, or U is too close to 0 or 1.

    bits of U, of V    precision
    31, 32             float32, only in compiled code (`compiled`); uncertain for 1 in 1,000
    63, 64             float64, error at most `FLOAT64_ERROR`; uncertain for 1 in 20 million
    191, 192           400 bits, always sufficient

Compiled code is used by a process that draws many numbers. The released numbers are the same.

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
"""Number of values that compiled code processes at once: their bits stay in a processor's cache."""

ARRAY_BLOCK = 2**14
"""Number of values in an array that is processed at once; larger temporary arrays are slower."""

MAX_SINGLE_PIECE_COUNT = 4096
"""Maximum count of values for which U and V are whole 64-bit words. For larger counts, the first 31
and 32 bits of U and V come from other words than the following bits.
"""

GRID_LOG2 = 7
"""Base-2 logarithm of the minimum number of grid points per standard deviation."""

FLOAT64_ERROR = 2.0**-33
"""Maximum error of s / g + a z in float64, divided by a."""

MIN_U_BITS = 2**33
"""Minimum of the 63-bit integer of U for which the error in float64 is below `FLOAT64_ERROR`."""

MAX_U_BITS = 2**63 - 2**30
"""Maximum of the 63-bit integer of U for which the error in float64 is below `FLOAT64_ERROR`."""

UNREFINED_ERROR = 2.0**-46
"""Maximum rounding error of a number of `UnrefinedNormals` in float64."""

LOW_63_BITS = 2**63 - 1  # bit mask
LOW_32_BITS = 0xFFFFFFFF  # bit mask

MIN_COMPILED_NUMBERS = 20_000_000
"""Minimum number of values drawn by a process for which loading the compiled code saves time."""

FURTHER_BITS = 128
"""Number of further bits of U and of V in the last stage."""

PRECISION_BITS = 400
"""Precision of the last stage, bits."""

MAX_GRID_DISTANCE = 2.0**60
"""Maximum grid distance for compiled code; the minimum is 1 / `MAX_GRID_DISTANCE`."""

Positions = np.ndarray[Any, np.dtype[np.int64]]

_drawn_count = 0


class _Buffers(threading.local):
    """Buffers of each thread, allocated once, because allocation in every step would be slow."""

    def __init__(self) -> None:
        self.bits = bytearray(4 * COMPILED_BLOCK + 15)
        self._doubts: tuple[Any, ...] = (np.empty(0),)

    def of(self, count: int) -> tuple[Any, ...]:
        """Get three int64 arrays and one float64 array, for up to `count` uncertain values."""
        if len(self._doubts[0]) < count:
            self._doubts = (*(np.empty(count, dtype=np.int64) for _ in range(3)), np.empty(count))
        return self._doubts


_BUFFERS = _Buffers()


def compute_grid_distance(scale: float) -> float:
    """Compute the distance of grid points for noise of standard deviation `scale`: a power of 2."""
    _, exponent = math.frexp(scale)
    return math.ldexp(1.0, exponent - 1 - GRID_LOG2)


@dataclass(slots=True)
class Normals:
    """Standard normal numbers of one stream and step, with as many bits as rounding needs.

    Their order: the first numbers of 32 pairs (a group), the second numbers of these pairs, and so
    on.

    Args:
        count: Number of values.
        stream: Random stream, used for these numbers only.
        step: Step of the stream.
        given_words: First bits, int64 of NumPy or PyTorch, shape (2 count_pairs(count),): the words
            of all U, then those of all V. None: drawn from the stream when they are needed.
        code: Module of compiled loops that compute the numbers when they are added. None: arrays.
        values: Numbers in float64, (count,), in the library and on the device of `given_words`; NaN
            where float64 is not precise enough. None: not computed yet.
    """

    count: int
    stream: Stream
    step: int
    given_words: Any = None
    code: ModuleType | None = None
    values: Any = None

    def compute(self) -> Normals:
        """Compute `values` if they are None, and return this object."""
        if self.values is None:
            on_device = self.given_words is not None and not isinstance(
                self.given_words, np.ndarray
            )
            block = max(self.count, 1) if on_device else ARRAY_BLOCK
            parts = [self._block(low, block) for low in range(0, max(self.count, 1), block)]
            self.values = _import_array_library(parts[0]).concatenate(parts)
        return self

    def _block(self, low: int, size: int) -> Any:
        """Compute up to `size` values from index `low`, a multiple of 2 `GROUP`."""
        size = min(size, self.count - low)
        lengths, turns = self._bits(low // 2, count_pairs(size))
        lengths = lengths & LOW_63_BITS
        pair = box_muller(lengths, turns)
        coarse = (lengths < MIN_U_BITS) | (lengths > MAX_U_BITS)
        for each in pair:
            each[coarse] = math.nan
        return _interleave_groups(*pair)[:size]

    def _bits(self, first: int, count: int) -> tuple[Any, Any]:
        """Get the words of U and of V of `count` pairs, int64; `first` is a multiple of `GROUP`."""
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
        """Make the source of the second 32 bits: one word per pair, V in its upper half, then U."""
        return self.stream.child("finer").random_words(self.step, first)

    @np.errstate(over="ignore", invalid="ignore")  # such values are rounded with more bits
    def add_to(
        self, total: Any, scale: float, *, start: int = 0, team: ThreadTeam | None = None
    ) -> None:
        """Add noise to a flat array in place, and round the result to the grid.

        Guarantee: the result is total + scale z, rounded to the grid, with independent standard
        normal z, except with probability 2^-90 per value. It does not depend on `team`.

        Args:
            total: Float32 or float64, shape (size,), finite; an array or tensor like
                `given_words`.
            scale: Standard deviation of the noise, above 0.
            start: Index of the normal number that is added to the first entry.
            team: Threads that may share the work. None: only the calling thread.
        """
        total, grain = np.asarray(total) if _on_cpu(total) else total, compute_grid_distance(scale)
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
        xp = _import_array_library(total)
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
            points += 0.0  # -0 becomes 0, because its sign would reveal the sign of the sum
            points *= grain
            sure = abs(rest) <= 0.5 - FLOAT64_ERROR * wide
            unsure = np.flatnonzero(np.asarray(~sure if _on_cpu(sure) else (~sure).cpu()))
            exact = np.array([float(part[place]) for place in unsure.tolist()])
            part[:] = points
            self._round_with_more_bits(part, unsure, exact, wide, grain, start + low)

    @np.errstate(over="ignore", invalid="ignore")
    def _add_by_code(
        self, code: ModuleType, total: Any, wide: float, grain: float, first: int, end: int
    ) -> None:
        """Add noise to the groups from `first` to `end` in compiled code, with all stages."""
        given, buffers, found = code.grid_settings(wide, grain), _BUFFERS.of(self.count), 0
        source = self.stream.random_words(self.step, GROUP * first)
        for low in range(2 * GROUP * first, 2 * GROUP * end, COMPILED_BLOCK):
            size = min(COMPILED_BLOCK, 2 * GROUP * end - low)
            bits = source.take(size // 2, _BUFFERS.bits).view("<i4")
            found = code.add_noise(bits, total[low : low + size], *given, low, found, *buffers)
        if found:
            places, own, firsts, exact = buffers
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
            self._round_with_more_bits(total, places[:found], exact[:found], wide, grain)

    def _round_with_more_bits(
        self, total: Any, places: Positions, exact: Any, wide: float, grain: float, start: int = 0
    ) -> None:
        """Add noise to some entries in place and round them, in the last stage.

        Args:
            total: Array that is changed.
            places: Indices of the entries.
            exact: Values of these entries without noise.
            wide: Standard deviation of the noise, in grid distances.
            grain: Grid distance.
            start: Index of the normal number that is added to entry 0.
        """
        for place, each in zip(places.tolist(), exact.tolist(), strict=True):
            total[place] = self._round_exactly(each / grain, start + place, wide) * grain

    def _round_exactly(self, exact: float, place: int, wide: float) -> float:
        """Compute the integer nearest to exact + wide z, with z the number with an index."""
        import mpmath

        with mpmath.workprec(PRECISION_BITS):
            return float(mpmath.floor(exact + wide * self.compute_exactly(place) + mpmath.mpf(0.5)))

    def compute_exactly(self, place: int) -> Any:
        """Compute the number with an index from 191 and 192 bits of U and V, an mpf."""
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
    """Standard normal numbers from 127 bits only, so that a CPU never has to wait for a GPU.

    Each number has its own error bound. So the rounding is uncertain for only one in 10^11.

    Args:
        values: Numbers in float64, (count,), in the order of `Normals`.
        errors: Maximum error of each number, including product and sum; NaN: no bound.
    """

    values: Any
    errors: Any

    @classmethod
    def of(cls, words: Any, count: int) -> UnrefinedNormals:
        """Compute `count` numbers from words in the layout of `normals_from_words`."""
        half, xp = len(words) // 2, _import_array_library(words)
        lengths = words[:half] & LOW_63_BITS
        pair = box_muller(lengths, words[half:])
        radii = xp.hypot(*pair)
        # The error is infinite or NaN for the smallest and the largest U.
        errors = (1.0 / lengths + 2.0**-53) / radii + UNREFINED_ERROR
        return cls(_interleave_groups(*pair)[:count], _interleave_groups(errors, errors)[:count])

    def add_to(self, total: Any, scale: float, *, start: int = 0) -> Any:
        """Add noise in place as `Normals.add_to` does, if 127 bits suffice for every rounding.

        This does not wait for the device.

        Args:
            total: Float32 or float64, shape (size,); an array or tensor like the words.
            scale: Standard deviation of the noise, above 0.
            start: Index of the normal number that is added to the first entry.

        Returns:
            Whether a rounding is uncertain or an entry is not finite, bool, (). If so, no entry of
            `total` may be used: the sum must be computed again, and `Normals.add_to` must add the
            noise from the same words.
        """
        grain, part = compute_grid_distance(scale), slice(start, start + len(total))
        xp, wide = _import_array_library(total), scale / grain
        rest = xp.asarray(total, dtype=xp.float64) * (1.0 / grain)
        points = xp.round(rest)
        rest -= points
        rest += self.values[part] * wide
        moved = xp.round(rest)
        rest -= moved
        points += moved
        points += 0.0  # -0 becomes 0, as in `Normals.add_to`
        points *= grain
        total[:] = points
        return ~(abs(rest) <= 0.5 - self.errors[part] * wide).all()


def draw_normals(
    count: int, stream: Stream, step: int = 0, code: ModuleType | None = None
) -> Normals:
    """Make standard normal numbers from a stream's words, on a CPU; computed when needed.

    Args:
        count: Number of values, 0 or more.
        stream: Random stream, used for these numbers only.
        step: Step of the stream.
        code: Module of compiled loops, if the caller has loaded it.
    """
    if count <= MAX_SINGLE_PIECE_COUNT:
        words = stream.random_words(step).take(2 * count_pairs(count)).copy()
        return normals_from_words(words, count, stream, step)
    return Normals(count, stream, step, code=code or choose_compiled_code(count))


def normals_from_words(words: Any, count: int, stream: Stream, step: int) -> Normals:
    """Compute standard normal numbers from random words, on the device of the words.

    Args:
        words: Int64 of NumPy or PyTorch, shape (2 count_pairs(count),): the words of all U, then
            those of all V.
        count: Number of values.
        stream: Random stream of further bits, if any are needed.
        step: Step of the stream.
    """
    return Normals(count, stream, step, given_words=words).compute()


def add_small_noise(
    total: Any, scale: float, words: Any, stream: Stream, step: int, code: ModuleType
) -> None:
    """Add noise to a small NumPy array in place, in compiled code.

    The result is that of `normals_from_words(words, ...).add_to(total, scale)`.

    Args:
        total: Float64 or float32, shape (size,), contiguous.
        scale: Standard deviation of the noise, above 0.
        words: Random words in the layout of `normals_from_words`.
        stream: Random stream of further bits, if any are needed.
        step: Step of the stream.
        code: Module of compiled loops.
    """
    grain, count = compute_grid_distance(scale), len(total)
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
        numbers._round_with_more_bits(total, places[:found], exact[:found], wide, grain)


def choose_compiled_code(more: int) -> ModuleType | None:
    """Load the compiled loops once this process has drawn many numbers; None before.

    Both ways release the same numbers. Loading takes half a second; compiling takes three seconds,
    once for each machine and version.

    Args:
        more: Number of values that are about to be drawn.
    """
    global _drawn_count
    _drawn_count += more
    return load_compiled() if _drawn_count >= MIN_COMPILED_NUMBERS else None


@cache
def load_compiled() -> ModuleType | None:
    """Load the compiled loops and test them on public numbers; None if they fail or differ."""
    try:
        with status_message.show_status(status_message.COMPILING_STATUS):
            code = importlib.import_module("pasearch.runs.compiled")
            totals = [np.linspace(-9.0, 9.0, MAX_SINGLE_PIECE_COUNT + 1) for _ in range(2)]
            for each, total in zip((None, code), totals, strict=True):
                Normals(MAX_SINGLE_PIECE_COUNT + 1, Stream(bytes(32)), 0, code=each).add_to(
                    total, 1.5
                )
    except Exception:  # noqa: BLE001 - numba or its files are missing or damaged: use arrays
        return None
    return code if np.array_equal(totals[0], totals[1]) else None


def box_muller(lengths: Any, turns: Any, bits: int = 63) -> tuple[Any, Any]:
    """Compute pairs of normal numbers: sqrt(-2 log U) times cos(pi V) and times sin(pi V).

    Args:
        lengths: First `bits` bits of each U: integers in [0, 2^bits) of any shape, NumPy or
            PyTorch. U is (length + 1/2) / 2^bits.
        turns: First `bits` + 1 bits of each V: integers in [-2^bits, 2^bits). V is turn / 2^bits,
            in [-1, 1).
        bits: Number of bits of U.

    Returns:
        Two float64 arrays of the same shape.
    """
    xp = _import_array_library(lengths)
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
    """Arrange the two numbers of each pair in the order of `Normals`, as a flat array."""
    parts = [first.reshape(-1, GROUP), second.reshape(-1, GROUP)]
    return _import_array_library(first).stack(parts, 1).reshape(-1)


def count_pairs(count: int) -> int:
    """Compute the number of pairs that are drawn for `count` numbers: a multiple of `GROUP`."""
    return GROUP * -(-count // (2 * GROUP))


def _on_cpu(array: Any) -> bool:
    """Check whether an array or tensor is in the memory of the CPU."""
    return getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


def _is_flat(array: Any, count: int) -> bool:
    """Check whether an array is a contiguous NumPy array of `count` floats."""
    return (
        isinstance(array, np.ndarray)
        and len(array) == count
        and array.dtype in (np.float32, np.float64)
        and array.flags.c_contiguous
    )


def _import_array_library(array: Any) -> Any:
    """Import the library of an array: NumPy or PyTorch."""
    return importlib.import_module(type(array).__module__.partition(".")[0])
