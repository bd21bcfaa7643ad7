"""The columns of a table from blocks of bytes, kept as `data.text_columns` says.

A block's cells of one column become codes together. Up to `FEW` different texts, each has a place
in the column's dictionary. From the cell on that would be one more, decimal numbers become their
own codes, and other texts places, up to `MOST`; beyond, the column is kept as characters.

Which place a text has is looked up for all cells at once: a cell's size and words are mixed into a
slot of a table, the slot names a place, and the cell has it if it equals that text in every word.
What is not found so is looked up one by one.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import numpy as np

from pasearch.data import text_columns as kept
from pasearch.data.byte_cells import NONE, WORD, Cells, decimal_codes
from pasearch.data.text_columns import NULL, WIDTHS, Coded, Packed, TextColumn

WORDS = 4
"""How many words are compared: longer cells are looked up one by one."""

LONGER = NONE - 1
"""The size that a longer text has in the table: no cell has it."""

FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F,
                    0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3, 0x1D8E4E27C47D124F],
                   np.uint64)  # fmt: skip
"""What words are mixed by: the first is taken that gives each text a slot of its own."""

RANGES = [(width, (np.iinfo(width).min, np.iinfo(width).max)) for width in WIDTHS]
"""Which whole numbers a type of codes holds, the narrowest type first."""

SLOTS = 64
"""How many slots there are for a text, at least."""


class ByteColumn:
    """A column while its cells come in."""

    def __init__(self) -> None:
        self._places: dict[bytes | None, int] = {}
        self._known = _Known()
        self._codes: list[np.ndarray] = []
        self._few = True
        self._packing: _Packing | None = None

    def add(self, cells: Cells) -> None:
        """Take in the next cells; their bytes are UTF-8."""
        if self._packing is None:
            codes = self._coded(cells)
            if len(self._places) <= kept.MOST:
                self._codes.append(_narrow(codes))
                return
            self._packing = self._repacked()
        self._packing.add(cells.contents())

    def finished(self) -> TextColumn:
        """Return the column."""
        return self._so_far() if self._packing is None else self._packing.finished()

    def _coded(self, cells: Cells) -> np.ndarray:
        """Return the codes of cells, int64; they mean nothing if the dictionary is too long."""
        if not self._few:
            codes, decimal = decimal_codes(cells)
            if len(others := np.flatnonzero(~decimal)):
                codes[others] = self._looked_up(cells[others])[0]
            return codes
        codes, known = self._looked_up(cells)
        if known == len(cells):
            return codes
        self._few = False
        return np.concatenate([codes[:known], self._coded(cells[known:])])

    def _looked_up(self, cells: Cells) -> tuple[np.ndarray, int]:
        """Return the places of texts, and how many of the cells have one: the first ones.

        A text that is not in the dictionary joins it, while there is room.
        """
        places, unknown = self._known.find(cells)
        before, room = len(self._places), kept.FEW if self._few else len(cells) + len(self._places)
        for at, content in zip(unknown.tolist(), cells[unknown].contents(), strict=True):
            place = self._places.get(content)
            if place is None:
                if len(self._places) >= room:
                    self._known.extend(list(self._places)[before:])
                    return places, at
                place = self._places[content] = len(self._places)
            places[at] = place
        if len(self._places) > before:
            self._known.extend(list(self._places)[before:])
        return places, len(cells)

    def _so_far(self) -> Coded:
        codes = self._codes or [np.empty(0, WIDTHS[0])]
        texts = tuple(None if each is None else each.decode() for each in self._places)
        return Coded(codes=np.concatenate(codes), texts=texts)

    def _repacked(self) -> _Packing:
        """Return what came so far as characters, and forget it here."""
        packing, before = _Packing(), self._so_far()
        self._codes, self._places, self._known = [], {}, _Known()
        for start in range(0, len(before), kept.ROWS):
            cells = before[start : start + kept.ROWS].tolist()
            packing.add([None if cell is None else cell.encode() for cell in cells])
        return packing


class _Known:
    """The dictionary of a column as arrays, so that many cells are looked up at once."""

    def __init__(self) -> None:
        self._texts = np.empty((0, WORDS), np.uint64)
        self._sizes = np.empty(0, np.int64)
        self._words = 1
        self._factor = FACTORS[0]
        self._table = np.zeros(1, np.int32)

    def find(self, cells: Cells) -> tuple[np.ndarray, np.ndarray]:
        """Return a place for each cell, int64, and the cells whose place is not right, rising."""
        if not len(self._sizes):
            return np.zeros(len(cells), np.int64), np.arange(len(cells))
        words = cells.first_words(self._words)
        places = self._table.take(self._slots(words, cells.sizes, self._factor, len(self._table)))
        same = self._sizes.take(places) == cells.sizes
        for own, word in zip(self._texts.T[: self._words], words, strict=True):
            same &= own.take(places) == word
        return places.astype(np.int64), np.flatnonzero(~same)

    def extend(self, contents: list[bytes | None]) -> None:
        """Take in texts: their places follow those before."""
        longest = WORDS * WORD
        sizes = [NONE if each is None else len(each) for each in contents]
        padded = b"".join((each or b"")[:longest].ljust(longest, b"\0") for each in contents)
        new = np.frombuffer(padded, "<u8").reshape(-1, WORDS).astype(np.uint64)
        self._texts = np.concatenate([self._texts, new])
        self._sizes = np.concatenate(
            [self._sizes, [size if size <= longest else LONGER for size in sizes]]
        ).astype(np.int64)
        self._words = max(1, -(-int(self._sizes.max(initial=0)) // WORD))
        self._table, self._factor = self._arranged()

    def _arranged(self) -> tuple[np.ndarray, np.uint64]:
        """Return a table of slots, and the factor under which the fewest texts share one."""
        texts = np.flatnonzero(self._sizes != LONGER)
        slots = 1 << (SLOTS * max(1, len(texts))).bit_length()
        if len(texts) > kept.FEW:
            slots >>= 4
        best: tuple[int, np.uint64, np.ndarray] | None = None
        for factor in FACTORS if len(texts) <= kept.FEW else FACTORS[:1]:
            own = self._slots(list(self._texts[texts].T), self._sizes[texts], factor, slots)
            alone = len(np.unique(own))
            if best is None or alone > best[0]:
                best = alone, factor, own
            if alone == len(texts):
                break
        assert best is not None
        table = np.zeros(slots, np.int32)
        table[best[2]] = texts
        return table, best[1]

    def _slots(
        self, words: list[np.ndarray], sizes: np.ndarray, factor: np.uint64, slots: int
    ) -> np.ndarray:
        mixed = words[0] ^ (sizes.view(np.uint64) << np.uint64(56))
        for word in words[1 : self._words]:
            mixed = (mixed * factor) ^ word ^ (mixed >> np.uint64(32))
        return ((mixed * factor) >> np.uint64(65 - slots.bit_length())).astype(np.int64)


class _Packing:
    """A column of many different texts while its cells come in."""

    def __init__(self) -> None:
        self._characters = bytearray()
        self._sizes: list[np.ndarray] = [np.zeros(1, np.int64)]

    def add(self, contents: list[bytes | None]) -> None:
        """Take in the next cells."""
        found = [NULL if each is None else each for each in contents]
        self._characters += b"".join(found)
        sizes = np.array([len(each) for each in found], np.int64)
        self._sizes.append(_narrow(sizes))

    def finished(self) -> Packed:
        """Return the column."""
        long = len(self._characters) > np.iinfo(kept.ENDS).max
        ends = np.cumsum(np.concatenate(self._sizes), dtype=np.int64 if long else kept.ENDS)
        return Packed(characters=self._characters, starts=ends[:-1], stops=ends[1:])


def _narrow(codes: np.ndarray) -> np.ndarray:
    """Return whole numbers in as few bytes as they fit into."""
    if not len(codes):
        return codes.astype(WIDTHS[0])
    least, most = int(codes.min()), int(codes.max())
    fits = next(width for width, (low, high) in RANGES if low <= least and most <= high)
    return codes.astype(fits)
