"""Blocks of lines become columns of cells: ordinary lines all at once, every other by itself.

A line is ordinary if it is told apart by its separators alone:

    it is UTF-8, and has no carriage return but one right before its end,
    it has as many separators outside of quotation marks as the header,
    a cell has no quotation mark, or one on either side and none between them.

`LineForm.row`, the reference, reads whatever is not. Which of both reads a line is decided by its
own bytes and the header's number of columns, and both give the same cells, so no line changes
another; `tests/data/test_blocks.py` holds them against each other.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pasearch.data import lines
from pasearch.data.byte_cells import BEFORE, NONE, Cells, block_of
from pasearch.data.byte_columns import ByteColumn
from pasearch.data.lines import Fault, LineForm
from pasearch.data.text_columns import TextColumn

LONG = 4
"""A block of so many times `lines.block_size` has a line too long to be ordinary."""

LINE_END, RETURN, QUOTE = (np.uint8(ord(each)) for each in '\n\r"')


def read_columns(form: LineForm, blocks: Iterator[bytes], width: int) -> list[TextColumn]:
    """Return the columns of a file's rows; a row of another width is None in each.

    Args:
        form: Of the file's lines.
        blocks: Whole lines.
        width: How many columns the header has.

    Guarantee: the cells are those of `LineForm.row` of each line, None where it has none of this
        width.

    Cost: time and memory linear in the bytes.
    """
    growing = [ByteColumn() for _ in range(width)]
    for block in blocks:
        columns = _columns(form, block, width)
        del block  # while the next one is read, this one takes no memory
        while columns:
            growing[len(columns) - 1].add(columns.pop())
    return [column.finished() for column in growing]


def read_faults(form: LineForm, blocks: Iterator[bytes], width: int) -> Iterator[Fault | None]:
    """Go through the lines: why each is no row of this width, None if it is one."""
    for block in blocks:
        found = _ordinary(form, block, width)
        others = iter(form.read(_some_lines(form, block, ~found.ordinary)))
        for ordinary in found.ordinary.tolist():
            row = None if ordinary else next(others)
            if row is None or isinstance(row, Fault):
                yield row
            else:
                yield None if len(row) == width else Fault.WIDTH


@dataclass(frozen=True, slots=True, eq=False)
class _Ordinary:
    """Where the cells of a block's ordinary lines are.

    Args:
        ordinary: Which lines are, (lines,).
        starts: Where each cell starts, (width, ordinary lines).
        sizes: How many bytes it has.
    """

    ordinary: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray


def _columns(form: LineForm, block: bytes, width: int) -> list[Cells]:
    """Return the columns of a block, every line of it a row."""
    found = _ordinary(form, block, width)
    whole = block if found.ordinary.any() else b""
    if found.ordinary.all():
        flat, starts, sizes = block_of(whole), found.starts, found.sizes
    else:
        starts, sizes = (np.empty((width, len(found.ordinary)), np.int64) for _ in range(2))
        starts[:, found.ordinary], sizes[:, found.ordinary] = found.starts, found.sizes
        fits, cells = _other_cells(form, _some_lines(form, block, ~found.ordinary), width)
        own = np.array([len(cell) for cell in cells], np.int64).reshape(-1, width)
        ends = len(whole) + np.cumsum(own).reshape(-1, width)
        places = np.flatnonzero(~found.ordinary)
        starts[:, places], sizes[:, places] = 0, NONE
        starts[:, places[fits]], sizes[:, places[fits]] = (ends - own).T, own.T
        flat = block_of(whole, *cells)
    starts = starts + len(BEFORE)
    return [Cells(flat, *each) for each in zip(starts, sizes, strict=True)]


def _other_cells(form: LineForm, some: list[bytes], width: int) -> tuple[np.ndarray, list[bytes]]:
    """Return which lines are rows of this width, bool, and the cells of these, row by row."""
    rows = [None if isinstance(row, Fault) else row for row in form.read(some)]
    fitting = [row if row is not None and len(row) == width else None for row in rows]
    fits = np.array([row is not None for row in fitting], bool)
    return fits, [cell.encode() for row in fitting if row is not None for cell in row]


def _some_lines(form: LineForm, block: bytes, which: np.ndarray) -> list[bytes]:
    if not which.any():
        return []
    return [line for line, some in zip(form.lines(block), which.tolist(), strict=True) if some]


def _ordinary(form: LineForm, block: bytes, width: int) -> _Ordinary:
    """Find the ordinary lines of a block and their cells."""
    if form.separator == lines.BLANK or len(block) > LONG * lines.block_size(width):
        none = np.zeros(block.count(b"\n") + (not block.endswith(b"\n")), bool)
        return _Ordinary(none, *(np.empty((width, 0), np.int64) for _ in range(2)))
    body = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    is_end = body == LINE_END
    ends = np.flatnonzero(is_end)
    ordinary = np.ones(len(ends), bool)
    separators = np.flatnonzero((body == ord(form.separator)) | is_end)
    stops = ends
    if b"\r" in block:
        at = np.flatnonzero(body == RETURN)
        last = is_end[at + 1]
        stops = ends.copy()
        stops[np.searchsorted(ends, at[last])] -= 1
        ordinary[np.searchsorted(ends, at[~last])] = False
    ordinary &= _decodable(block, body, ends)
    quotes = None
    if form.quotes and b'"' in block:
        separators, quotes = _outside(separators, body == QUOTE, ends)
    last_places = np.searchsorted(separators, ends)
    cells = np.diff(last_places, prepend=-1)
    ordinary &= cells == width
    if quotes is not None:
        ordinary &= quotes % 2 == 0
    if not ordinary.all():
        separators = separators[np.repeat(ordinary, cells)]
    sizes = np.ascontiguousarray(separators.reshape(-1, width).T)
    starts = np.empty_like(sizes)
    starts[0] = np.concatenate([[0], ends[:-1] + 1])[ordinary]
    starts[1:] = sizes[:-1] + 1
    sizes[-1] = stops[ordinary]
    sizes -= starts
    if quotes is not None:
        return _unquoted(_Ordinary(ordinary, starts, sizes), body, quotes)
    return _Ordinary(ordinary, starts, sizes)


def _decodable(block: bytes, body: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return which lines are UTF-8: a line feed is in no character of several bytes."""
    right = np.ones(len(ends), bool)
    if block.isascii():
        return right
    try:
        block.decode()
    except UnicodeDecodeError:
        suspects = np.unique(np.searchsorted(ends, np.flatnonzero(body >= 0x80)))
        for place in suspects.tolist():
            start = ends[place - 1] + 1 if place else 0
            try:
                block[start : ends[place]].decode()
            except UnicodeDecodeError:
                right[place] = False
    return right


def _outside(
    separators: np.ndarray, is_quote: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the separators before which their line has an even number of quotation marks.

    Args:
        separators: Line ends among them, which all stay.
        is_quote: Which bytes are quotation marks.
        ends: Where the lines end.

    Returns:
        Those separators, and how many quotation marks each line has.
    """
    so_far = np.cumsum(is_quote, dtype=np.int32)
    quotes = np.diff(so_far[ends], prepend=0)
    last = np.searchsorted(separators, ends)
    before_line = np.repeat(so_far[ends] - quotes, np.diff(last, prepend=-1))
    outside = (so_far[separators] - before_line) % 2 == 0
    outside[last] = True
    return separators[outside], quotes


def _unquoted(found: _Ordinary, body: np.ndarray, quotes: np.ndarray) -> _Ordinary:
    """Leave out the quotation marks around cells, and lines that have others."""
    starts, sizes = found.starts, found.sizes
    # A line ends behind every cell, so there is a byte to look at behind the last one too.
    around = (sizes >= 2) & (body[starts] == QUOTE) & (body[starts + sizes - 1] == QUOTE)
    starts, sizes = starts + around, sizes - 2 * around
    only = 2 * around.sum(axis=0) == quotes[found.ordinary]
    ordinary = found.ordinary.copy()
    ordinary[ordinary] = only
    return _Ordinary(ordinary, starts[:, only], sizes[:, only])
