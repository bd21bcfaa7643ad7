"""Names that a terminal would obey are spelt out wherever they are shown."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.terminal_escaping import escape_lines, escape_text, escape_values, format_duration

HOSTILE = {
    "a screen is cleared": "\x1b[2J",
    "a title is set": "\x1b]0;owned\x07",
    "C1": "\x9b31m",
    "a line is forged": "\nPrice: epsilon 0.0001",
    "a line is overwritten": "\rPrice",
    "a line of Unicode": "\u2028Price\u2029Price\x85",
    "turned": "\u202egnp.exe\u2066\u200f",
    "of no width": "a\u200bb\ufeff\u00adc\U000e0041",
    "deleted": "safe\x08\x08\x7f",
    "no UTF-8": "caf\udce9",
}
OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


@pytest.mark.unit
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_obeyed_is_spelt_out(text: str):
    found = escape_text(text)
    assert not OBEYED.search(found)
    assert found.isprintable()
    found.encode("utf-8")
    assert len(found.splitlines()) == 1


@pytest.mark.property
@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_is_one_harmless_line(text: str):
    found = escape_text(text)
    found.encode("utf-8")
    assert len(found.splitlines()) <= 1
    assert not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in found)
    assert escape_text(found) == found


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["naïve", "年齢", "سن", "a b", "👩‍🔬", "می‌خواهم", "\\n", "a\u3000b"]
)
def test_other_text_stays_as_it_is(text: str):
    assert escape_text(text) == text


@pytest.mark.unit
def test_line_breaks_that_are_meant_stay():
    assert escape_lines("a\x1b\nb\r\nc") == "a\\x1b\nb\\r\nc"


@pytest.mark.unit
def test_a_whole_document_is_spelt_out():
    found = escape_values({"a\x07": ["\n", ("\x1b", 3, None, 2.5, True)]})
    assert found == {"a\\x07": ["\\n", ["\\x1b", 3, None, 2.5, True]]}


@pytest.mark.unit
@pytest.mark.parametrize("kind", [UsageError, BudgetError, InterruptedRunError])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_an_error_is_one_line(kind: type[Exception], text: str, tmp_path: Path):
    assert not OBEYED.search(str(kind(tmp_path / f"x{text}y")))


@pytest.mark.unit
def test_an_error_with_items_has_a_line_for_each_and_none_that_is_forged():
    error = UsageError("runs/a does not verify:", "n is 3\nPrice: 0", "\x1b[2J")
    assert str(error).split("\n") == [
        "runs/a does not verify:", r"  - n is 3\nPrice: 0", r"  - \x1b[2J",
    ]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0.01 s"), (0.26, "0.3 s"), (0.96, "1 s"), (2.7, "2.7 s"), (21.0, "21 s"),
     (360.0, "6 min"), (4320.0, "72 min"), (19_080.0, "5.3 h"), (58_000.0, "16 h"),
     (720_000.0, "8 days")],
)  # fmt: skip
def test_times_in_words(seconds: float, words: str):
    assert format_duration(seconds) == words
