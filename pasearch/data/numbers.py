"""How a table writes its numbers: what stands before the decimals, and between groups of digits.

| declared | 12,300 | 12.300 | 3,5 | 3.5 | 1,234.5 | 1.234,5 |
|---|---|---|---|---|---|---|
| nothing | missing | 12.3 | missing | 3.5 | missing | missing |
| thousands "," | 12300 | 12.3 | missing | 3.5 | 1234.5 | missing |
| decimal "," | 12.3 | missing | 3.5 | missing | missing | missing |
| decimal ",", thousands "." | 12.3 | 12300 | 3.5 | missing | missing | 1234.5 |

In any form, 3.5 behind U+2212, the sign for minus, and `(3.5)`, as accountants write it, are -3.5.
Declared units are left out, before or behind the number, and each multiplies it by its factor.

Groups are whole or the cell is no number: behind the first, of one to three digits and not 0, each
has three digits (two in the middle, as in India, will do). What is no number is missing; nothing
raises.

A category that is a number is compared by its value: `canonicalize_number` spells 2 and 2.0 alike.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pasearch.errors import UsageError

DECIMAL_MARKS = ".,"
"""What may stand before the decimals."""

THOUSANDS_MARKS = ",. '"
"""What may stand between groups of digits."""

EQUIVALENT_MARKS = {" ": " \u00a0\u202f", "'": "'\u2019"}
"""Characters that are written for one of them: spaces that do not break a line, an apostrophe."""


NUMBER_PATTERN = re.compile(
    r"([+-]?)(0|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,4}))?"
)
"""A number as a category may spell it. With a leading zero it is a code: 007 is not 7."""

MAX_ZEROS = 30
"""Zeros between the digits of a number and its point; of more, it has an exponent."""


def canonicalize_number(text: str) -> str | None:
    """Return the canonical spelling of a number, exact at any length; None if the text is none.

    Guarantee: two texts have the same spelling if and only if they are the same number.

    >>> [canonical_number(text) for text in ("2", "2.00", "+2e0", "0.50", "-0", "007", "2 kg")]
    ['2', '2', '2', '0.5', '0', None, None]
    """
    if (found := NUMBER_PATTERN.fullmatch(text)) is None:
        return None
    sign, whole, decimals, exponent = found.groups(default="")
    written = (whole + decimals).lstrip("0")
    digits = written.rstrip("0")
    power = int(exponent or 0) - len(decimals) + len(written) - len(digits)
    if not digits:
        return "0"
    sign = sign.replace("+", "")
    if 0 <= power <= MAX_ZEROS:
        return f"{sign}{digits}{'0' * power}"
    if 0 < -power <= len(digits) + MAX_ZEROS:
        digits = digits.zfill(1 - power)
        return f"{sign}{digits[:power]}.{digits[power:]}"
    return f"{sign}{digits}e{power}"


DECIMAL_DIGITS = {2: range(3, 6), 4: range(6, 10)}
"""By the bytes of a float: from how many decimal digits it keeps to how many tell it apart."""

MAX_EXACT_POWER = 22
"""Up to here a power of ten is exact in float64."""


def convert_to_shortest_decimals(values: np.ndarray) -> np.ndarray:
    """Return floats as float64, a narrower one as the shortest decimal number that it stands for.

    The float32 nearest to .7 is .69999999 in float64: a file that holds 0.7 would have another bin.

    Args:
        values: Of float16, float32 or float64; any shape.
    """
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        order = np.floor(np.log10(np.abs(wide)))
        order = np.where(np.isfinite(order), order, 0.0)
        open_ = np.isfinite(wide) & (np.abs(order) < MAX_EXACT_POWER - 10)
        found = wide.copy()
        for digits in DECIMAL_DIGITS.get(values.dtype.itemsize, ()):
            shift = digits - 1 - order
            up, down = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
            rounded = np.round(wide * up / down) * down / up
            fits = open_ & (rounded.astype(values.dtype) == values)
            found[fits], open_ = rounded[fits], open_ & ~fits
    return found


@dataclass(frozen=True, slots=True)
class NumberForm:
    """How numbers are written.

    Args:
        decimal: What stands before the decimals, "." or ",".
        thousands: What stands between groups of digits; None: nothing does.
        units: Texts that may stand before or behind a number, and the factor of each.

    Raises:
        UsageError: Other characters, one for both, or a unit that could be part of a number.
    """

    decimal: str = "."
    thousands: str | None = None
    units: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.decimal, str) and self.decimal in (*DECIMAL_MARKS,)):
            raise UsageError(f'decimal is {self.decimal!r}: expected "." or ",".')
        known = self.thousands is None or (
            isinstance(self.thousands, str) and self.thousands in (*THOUSANDS_MARKS,)
        )
        if not known or self.thousands == self.decimal:
            raise UsageError(
                f"thousands is {self.thousands!r}: expected one of "
                f"{', '.join(repr(each) for each in THOUSANDS_MARKS if each != self.decimal)}, and "
                f"another than decimal, which is {self.decimal!r}."
            )
        for unit, factor in self.units:
            if unit != "+" and (unit != unit.strip() or unit[:1] in RESERVED_UNIT_STARTS):
                raise UsageError(
                    f'units holds {unit!r}: expected a text such as "$" or "kg", which does not '
                    "begin with a digit, a sign, a point or a parenthesis."
                )
            if not (math.isfinite(factor) and factor > 0):
                raise UsageError(f"units: {unit!r} is {factor!r}: expected a factor above 0.")

    @property
    def has_decimal_point(self) -> bool:
        """Whether 1234.5 means what it does where nothing is declared."""
        return self.decimal == "."

    def number(self, text: str | None) -> float:
        """Return a finite number, or NaN."""
        if text is None:
            return math.nan
        number = self._parse_unmarked(text)
        return self._parse_marked(text) if math.isnan(number) else number

    def _parse_marked(self, text: str) -> float:
        """Return a number with a sign for minus, parentheses or units, or NaN."""
        text, factor = text.replace("\u2212", "-"), 1.0
        if text[:1] == "(" and text[-1:] == ")":
            text, factor = text[1:-1].strip(), -1.0
        elif self.units and text[:1] in ("-", "+"):
            text, factor = text[1:].lstrip(), -1.0 if text[0] == "-" else 1.0
        signed = factor < 0
        for unit, by in sorted(self.units, key=lambda each: -len(each[0])):
            rest = text.removeprefix(unit)
            rest = text.removesuffix(unit) if rest == text else rest
            text, factor = (text, factor) if rest == text else (rest.strip(), factor * by)
        return (
            math.nan if signed and text[:1] in ("-", "+") else factor * self._parse_unmarked(text)
        )

    def _parse_unmarked(self, text: str) -> float:
        """Return a number of digits, points and groups alone, or NaN."""
        if self.decimal != "." or self.thousands is not None:
            text = self._convert_to_plain(text)
        try:
            number = float(text)
        except ValueError:
            return math.nan
        return number if math.isfinite(number) else math.nan

    def _convert_to_plain(self, text: str) -> str:
        """Return a number as Python has it; what is none stays none."""
        if _compile_pattern(self.decimal, self.thousands).fullmatch(text) is None:
            return "" if self.decimal != "." and "." in text else text
        for each in EQUIVALENT_MARKS.get(self.thousands or "", self.thousands or ""):
            text = text.replace(each, "")
        return text.replace(self.decimal, ".")


RESERVED_UNIT_STARTS = "0123456789+-.,()"
"""How no unit begins: it would be part of the number."""

PLAIN_NUMBER_FORM = NumberForm()
"""How numbers are written where nothing is declared: as Python has them."""


def build_number_form(
    decimal: object, thousands: object, units: tuple[tuple[str, float], ...] | None = None
) -> NumberForm:
    """Return the form that is declared; None of either: nothing is.

    Raises:
        UsageError: As of `NumberForm`.
    """
    point: Any = PLAIN_NUMBER_FORM.decimal if decimal is None else decimal
    group: Any = thousands
    return NumberForm(point, group, units or ())


@lru_cache(maxsize=32)
def _compile_pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Return what numbers that have one of the marks look like."""
    point, whole = re.escape(decimal), "[0-9]*"
    if thousands is not None:
        mark = f"[{re.escape(EQUIVALENT_MARKS.get(thousands, thousands))}]"
        whole = rf"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{2,3}})*{mark}[0-9]{{3}}|[0-9]*)"
    return re.compile(rf"[+-]?{whole}(?:{point}[0-9]*)?(?:[eE][+-]?[0-9]+)?")
