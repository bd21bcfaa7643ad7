"""Cells that lie in a block of bytes, many at a time: where each is, and its characters by eights.

A block of a file, or of a column in another format, is one array of bytes; a cell of it is where it
starts and how many bytes it has. What has to be found out of a million cells is computed from eight
characters of each at once, as one whole number of 64 bits, the first character lowest:

    first words     the characters from a cell's start on, 0 behind its end
    last words      the characters up to its end, "0" before its start

`decimal_codes` reads decimal numbers from last words, as `data.text_columns` has their codes: of a
word x, x - "00000000" has the digits, which three products and shifts add up; a point counts as
a digit 0, and is taken out of the sum afterwards. `tests/data/test_byte_cells.py` holds it against
the reader that goes character by character.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pasearch.data import text_columns as kept

WORD = 8
"""How many characters a word has."""

BEFORE = bytes(kept.LONGEST)
AFTER = bytes(5 * WORD)
"""What stands before and after a block's bytes, so that no word of a cell ends outside."""

NONE = -1
"""The size of a cell that is None."""


def _bytes(value: int) -> np.uint64:
    """Return a word of one byte eight times."""
    return np.uint64(int.from_bytes(bytes([value]) * WORD, "little"))


FIRST = np.array([(1 << WORD * k) - 1 for k in range(WORD + 1)], np.uint64)
"""By a number of characters: a mask of so many, the first of a word."""

LAST, FULL = ~FIRST[::-1], FIRST[WORD]
"""The same of the last of a word; and all eight."""

ZEROS, POINTS = _bytes(ord("0")), _bytes(ord("0") ^ ord("."))
ONES, LOW, TOP, BEYOND_9 = _bytes(0x01), _bytes(0x7F), _bytes(0x80), _bytes(0x76)
MINUS = np.uint8(ord("-"))
ZERO = np.uint8(ord("0"))

TENS = np.array([10**k for k in range(19)], np.int64)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cells:
    """The cells of one column in a block.

    Args:
        flat: Every byte of the block, uint8, between `BEFORE` and `AFTER`.
        starts: Where each cell starts in it, int64, (rows,).
        sizes: How many bytes each has, int64, (rows,); `NONE` of a cell that is None.
    """

    flat: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, where: slice | np.ndarray) -> Cells:
        return Cells(self.flat, self.starts[where], self.sizes[where])

    def contents(self) -> list[bytes | None]:
        """Return the bytes of each cell."""
        data = self.flat.data
        return [
            None if size < 0 else bytes(data[start : start + size])
            for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        ]

    def first_words(self, many: int) -> list[np.ndarray]:
        """Return the first words of each cell, uint64, (rows,) each.

        Args:
            many: How many; no more than `AFTER` has.
        """
        words, found = self._words(), []
        for place in range(many):
            inside = FIRST.take(self.sizes - WORD * place, mode="clip")
            found.append(words[self.starts + WORD * place] & inside)
        return found

    def last_digits(self, many: int, sizes: np.ndarray) -> list[np.ndarray]:
        """Return the last words, the very last first, each character less "0", 0 outside.

        Args:
            many: How many; no more than `BEFORE` has.
            sizes: How many of the last characters are looked at, (rows,).
        """
        words, found, ends = self._words(), [], self.starts + self.sizes
        for place in range(1, many + 1):
            inside = LAST.take(sizes - WORD * (place - 1), mode="clip")
            found.append((words[ends - WORD * place] ^ ZEROS) & inside)
        return found

    def _words(self) -> np.ndarray:
        """Return the word that starts at each byte: a view."""
        return np.ndarray((len(self.flat) - WORD + 1,), "<u8", self.flat.data, strides=(1,))


def block_of(*contents: bytes) -> np.ndarray:
    """Return bytes as `Cells` has them; a place in them is `len(BEFORE)` further."""
    return np.frombuffer(b"".join((BEFORE, *contents, AFTER)), np.uint8)


def decimal_codes(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """Return codes, int64, (rows,), and which of them are right: those of decimal numbers."""
    sizes = cells.sizes
    right = (sizes > 0) & (sizes <= kept.LONGEST)
    first = cells.flat[cells.starts]
    negative = first == MINUS
    if any_negative := bool(negative.any()):
        sizes = sizes - negative
        first = cells.flat[cells.starts + negative]
    longest = int(sizes.max(initial=1, where=right))
    words = cells.last_digits(max(1, -(-longest // WORD)), np.where(right, sizes, 0))
    whole, decimals, points = np.zeros(len(cells), np.int64), None, np.zeros(len(cells), np.int64)
    for place, word in enumerate(words):
        marks = _points(word)
        if marks.any():
            right &= (marks & (marks - np.uint64(1))) == 0  # one in a word
            pointed = marks != 0
            above = ~((marks << np.uint64(1)) - np.uint64(1)) & np.where(pointed, FULL, 0)
            after = WORD * place + _how_many(above)
            decimals = np.where(pointed, after, 0 if decimals is None else decimals)
            points += pointed
            word = word & ~((marks >> np.uint64(7)) * np.uint64(0xFF))
        right &= (((word + BEYOND_9) | word) & TOP) == 0
        if place < 2:
            whole += _added(word) * TENS[WORD * place]
        else:
            high = _added(word)
            right &= high < 100  # more than eighteen digits
            whole += np.where(right, high, 0) * TENS[WORD * place]
    return _coded(right, first, negative if any_negative else None, sizes, whole, decimals, points)


def _coded(
    right: np.ndarray, first: np.ndarray, negative: np.ndarray | None, sizes: np.ndarray,
    whole: np.ndarray, decimals: np.ndarray | None, points: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return the codes of numbers, and which are right, from their digits, the point among them."""
    before = sizes
    if decimals is not None:
        pointed = points > 0
        right &= (points <= 1) & (~pointed | (decimals > 0))
        decimals = np.where(right, decimals, 0)
        # Of eighteen decimals or more, no digit is left of the point: nothing is divided there.
        at = TENS.take(np.minimum(decimals + 1, len(TENS) - 1))
        upper = whole // at
        without = whole - upper * (at - at // 10)
        whole = np.where(pointed, without, whole)
        before = sizes - pointed * (1 + decimals)
    right &= (before == 1) | ((before > 1) & (first != ZERO))
    right &= whole < TENS[kept.DIGITS]
    codes = kept.STEP * whole + kept.MOST
    if negative is not None:
        right &= (whole > 0) | ~negative
        codes = np.where(negative, -kept.STEP * whole, codes)
    return codes if decimals is None else codes + decimals, right


def _points(word: np.ndarray) -> np.ndarray:
    """Return words with the top bit of each byte that is a point, and no other bit."""
    other = word ^ POINTS
    return ~(((other & LOW) + LOW) | other | LOW)


def _how_many(full: np.ndarray) -> np.ndarray:
    """Return how many bytes of each word are full; the others are 0."""
    return (((full & ONES) * ONES) >> np.uint64(56)).astype(np.int64)


def _added(digits: np.ndarray) -> np.ndarray:
    """Return the whole number, int64, whose eight digits are a word's bytes, the first highest."""
    pairs = (digits * np.uint64(2561)) >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(6553601)) >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)
    return ((fours * np.uint64(42949672960001)) >> np.uint64(32)).astype(np.int64)
