"""Decimal numbers eight characters at a time: the same codes as character by character."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.data.byte_cells import BEFORE, NONE, Cells, block_of, decimal_codes
from pasearch.data.text_columns import DIGITS, LONGEST, MOST, STEP

DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
EDGES = [
    "", "-", ".", "0", "-0", "-0.0", "0.0", "00", "01", "1.", "-.5", ".5", "1.2.3", "--1", "1-",
    "+1", "12345678", "123456789", "1234567.8", "12345678.9", "12345678.12345678",
    "1234567812345678",
    "9" * 17, "9" * 18, "9" * 24, "9" * 25, "0." + "0" * 22, "0." + "0" * 23,
    "0." + "0" * 15 + "123", "1." + "0" * 16, "1." + "0" * 17, "-1234567890123456.7",
    "1234567.12345678901", "1e5", "1 ",
    "1\0", "\0", "/5", ":5", "5:", "1,5", "nan", "é", "٣", None,
]  # fmt: skip


def cells_of(texts: list[str | None]) -> Cells:
    """Cells in a block, digits and points between them."""
    found = [b"" if each is None else each.encode() for each in texts]
    sizes = np.array([len(each) for each in found], np.int64)
    starts = len(BEFORE) + np.cumsum(sizes + 2) - sizes - 2
    missing = np.array([each is None for each in texts], bool)
    return Cells(block_of(b"7.".join(found)), starts, np.where(missing, NONE, sizes))


def code_of(text: str | None) -> int | None:
    """The code of a decimal number, by its definition."""
    if text is None or len(text) > LONGEST or DECIMAL.fullmatch(text) is None:
        return None
    decimals = len(text.partition(".")[2])
    whole = int(text.replace(".", ""))
    if len(str(abs(whole))) > DIGITS or (text.startswith("-") and not whole):
        return None
    return STEP * whole + decimals + (MOST if whole >= 0 else 0)


def same(texts: list[str | None]) -> None:
    codes, right = decimal_codes(cells_of(texts))
    found = [code if is_one else None for code, is_one in zip(codes.tolist(), right, strict=True)]
    assert found == list(map(code_of, texts))


@pytest.mark.oracle
class TestDecimalCodes:
    @pytest.mark.parametrize("text", EDGES, ids=repr)
    def test_of_one_number(self, text: str | None):
        same([text])

    def test_of_all_together(self):
        same(EDGES)

    @given(
        st.lists(
            st.one_of(
                st.from_regex(r"-?[0-9]{0,19}(\.[0-9]{0,20})?", fullmatch=True),
                st.text("0123456789.-", max_size=26),
                st.text(max_size=5),
                st.floats().map(repr),
                st.sampled_from(EDGES),
            ),
            max_size=20,
        )
    )
    def test_of_any_texts(self, texts: list[str | None]):
        same([None if each is None else each.encode("utf-8", "ignore").decode() for each in texts])

    def test_of_many_numbers(self):
        draw = random.Random(0)
        texts: list[str | None] = []
        for _ in range(20_000):
            scale = 10.0 ** draw.randrange(-6, 17)
            texts += [repr(draw.uniform(-9, 9) * scale), str(draw.randrange(-(10**18), 10**18))]
            texts.append(f"{draw.uniform(-1e6, 1e6):.{draw.randrange(18)}f}")
        same(texts)
        assert sum(code_of(text) is not None for text in texts) > 30_000


@pytest.mark.unit
def test_contents_come_back():
    texts = ["a", "", None, "é" * 40, "1.5"]
    cells = cells_of(texts)
    assert cells.contents() == [None if each is None else each.encode() for each in texts]
    assert cells[1:4].contents() == [b"", None, ("é" * 40).encode()]
