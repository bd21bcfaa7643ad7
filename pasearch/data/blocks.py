"""Blocks of lines as columns of cells: pyarrow reads ordinary lines, `LineForm.row` every other.

A line is ordinary if its separators alone divide it into as many cells as the header has: it is
UTF-8, has more than one byte and no NUL, does not begin with a byte order mark, has no carriage
return except right before its end, and has a quotation mark only where a cell begins or ends.
A line's own bytes and the header's number of columns decide which of both reads it, and both give
the same cells, so no line changes another; `tests/data/test_blocks.py` compares them.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pasearch.data import lines
from pasearch.data.lines import Fault, LineForm
from pasearch.data.text_columns import GrowingColumn, TextColumn, arrow_cells

MAX_PARSED = 2**30
"""Bytes of a block that pyarrow parses, at most: a longer one has a line of that length."""

LINE_END, RETURN, QUOTE = b'\n\r"'


def read_columns(form: LineForm, blocks: Iterator[bytes], width: int) -> list[TextColumn]:
    """Read the columns of a file's rows; a row of another width is None in each.

    Args:
        form: Form of the file's lines.
        blocks: Blocks of whole lines.
        width: Number of columns of the header.

    Guarantee: the cells are those that `LineForm.row` reads from each line, None if it finds no row
        of this width.

    Cost: time and memory linear in the bytes.
    """
    growing = [GrowingColumn() for _ in range(width)]
    for block in blocks:
        for column, array in zip(growing, _parse(form, block, width).arrays(width), strict=True):
            column.add(array)
    return [column.finished() for column in growing]


def read_faults(form: LineForm, blocks: Iterator[bytes], width: int) -> Iterator[Fault | None]:
    """Iterate over the lines: why each is no row of this width, None if it is one."""
    for block in blocks:
        parsed = _parse(form, block, width)
        others = iter(parsed.others)
        for is_ordinary in parsed.is_ordinary.tolist():
            row = None if is_ordinary else next(others)
            if row is None or isinstance(row, Fault):
                yield row
            else:
                yield None if len(row) == width else Fault.WIDTH


@dataclass(frozen=True, slots=True, eq=False)
class _ParsedBlock:
    """The lines of a block.

    Args:
        is_ordinary: Which lines are ordinary, bool, (lines,).
        columns: The columns of the ordinary lines, Arrow arrays of bytes.
        others: The rows of the other lines.
    """

    is_ordinary: np.ndarray
    columns: list[Any]
    others: list[list[str] | Fault]

    def arrays(self, width: int) -> Iterator[Any]:
        """Iterate over the columns of all lines, in their order: null where a line is no row."""
        import pyarrow as pa

        if not self.others:
            yield from self.columns
            return
        rows = [row if isinstance(row, list) and len(row) == width else None for row in self.others]
        order = np.argsort(np.argsort(~self.is_ordinary, kind="stable"))
        order = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        for place in range(width):
            cells = arrow_cells([None if row is None else row[place] for row in rows])
            yield pa.concat_arrays([*self.columns[place : place + 1], cells]).take(order)


def _parse(form: LineForm, block: bytes, width: int) -> _ParsedBlock:
    """Parse the lines of a block, the ordinary ones together."""
    body = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(body == LINE_END)
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(body))
    starts = np.concatenate([[0], ends[:-1] + 1])
    is_ordinary = _find_ordinary(form, block, body, starts, ends)
    columns = []
    if is_ordinary.any():
        sizes = np.minimum(ends + 1, len(body)) - starts
        some = block if is_ordinary.all() else body[np.repeat(is_ordinary, sizes)].tobytes()
        columns, wrong = _parse_ordinary(form, some, width)
        is_ordinary[np.flatnonzero(is_ordinary)[wrong]] = False
    others = [
        block[starts[line] : ends[line]].removesuffix(b"\r")
        for line in np.flatnonzero(~is_ordinary).tolist()
    ]
    return _ParsedBlock(is_ordinary, columns, form.read(others) if others else [])


def _parse_ordinary(form: LineForm, block: bytes, width: int) -> tuple[list[Any], list[int]]:
    """Return the columns of lines, and the lines that have another width, which are left out."""
    import pyarrow as pa
    from pyarrow import csv

    wrong: list[int] = []

    def leave_out(row: csv.InvalidRow) -> str:
        wrong.append(row.number - 1)
        return "skip"

    names = [str(place) for place in range(width)]
    table = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=len(block) + 1
        ),
        parse_options=csv.ParseOptions(
            delimiter=form.separator,
            quote_char='"' if form.quotes else False,
            ignore_empty_lines=False,
            invalid_row_handler=leave_out,
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.large_binary()), strings_can_be_null=False
        ),
    )
    return [column.combine_chunks() for column in table.columns], wrong


def _find_ordinary(
    form: LineForm, block: bytes, body: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return which lines are ordinary, their width aside, bool, (lines,).

    Args:
        form: Form of the lines.
        block: Their bytes.
        body: The same as an array, uint8.
        starts: Where the lines start.
        ends: Where they end.
    """
    if form.separator == lines.BLANK or len(block) > MAX_PARSED:
        return np.zeros(len(ends), bool)
    # pyarrow drops a byte order mark, and finds no cell in a carriage return alone.
    is_ordinary = (ends - starts > 1) & (body[starts] != 0xEF)
    if b"\0" in block:
        is_ordinary[np.searchsorted(ends, np.flatnonzero(body == 0))] = False
    if b"\r" in block:
        returns = np.flatnonzero(body == RETURN)
        own = np.searchsorted(ends, returns)
        is_ordinary[own[returns + 1 != ends[own]]] = False
    if form.quotes and b'"' in block:
        quotes = np.flatnonzero(body == QUOTE)
        own, before = np.searchsorted(ends, quotes), np.searchsorted(quotes, starts)
        opens = (np.arange(len(quotes)) - before[own]) % 2 == 0
        padded = np.concatenate([[LINE_END], body, [LINE_END]]).astype(np.uint8)
        beside = np.where(opens, padded[quotes], padded[quotes + 2])
        is_edge = (beside == ord(form.separator)) | (beside == LINE_END) | (beside == RETURN)
        is_ordinary[own[~is_edge]] = False
        is_ordinary[np.diff(before, append=len(quotes)) % 2 == 1] = False
    if not _is_utf_8(block):
        for line in np.unique(np.searchsorted(ends, np.flatnonzero(body >= 0x80))).tolist():
            is_ordinary[line] &= _is_utf_8(block[starts[line] : ends[line]])
    return is_ordinary


def _is_utf_8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
