"""Number formats of a table: decimal mark, thousands separator and units.

| declared | 12,300 | 12.300 | 3,5 | 3.5 | 1,234.5 | 1.234,5 |
|---|---|---|---|---|---|---|
| nothing | missing | 12.3 | missing | 3.5 | missing | missing |
| thousands "," | 12300 | 12.3 | missing | 3.5 | 1234.5 | missing |
| decimal "," | 12.3 | missing | 3.5 | missing | missing | missing |
| decimal ",", thousands "." | 12.3 | 12300 | 3.5 | missing | missing | 1234.5 |

In every format, the minus sign U+2212 is accepted, and the accounting notation `(3.5)` means -3.5.
Declared units before or after a number are removed, and each multiplies the number by its factor.

The first group of digits has one to three digits and does not begin with 0. Each further group has
three digits, or two in the middle, as in India. Any other cell is missing; no cell raises an error.

Categories that are numbers are compared by value: `canonicalize_number` returns the same string for
2 and 2.0.

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
"""Possible decimal marks."""

THOUSANDS_MARKS = ",. '"
"""Possible separators of groups of digits."""

EQUIVALENT_MARKS = {" ": " \u00a0\u202f", "'": "'\u2019"}
"""Characters that are accepted for a separator: non-breaking spaces, and a typographic apostrophe.
"""


NUMBER_PATTERN = re.compile(
    r"([+-]?)(0|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,4}))?"
)
"""Pattern of a category that is a number. Digits with a leading zero are a code: 007 is not 7."""

MAX_ZEROS = 30
"""Maximum number of zeros between the digits and the point of a canonical number; if there are
more, the number is written with an exponent."""


def canonicalize_number(text: str) -> str | None:
    """Return the canonical string of a number, exact at any length; None if it is not a number.

    Guarantee: two numbers have the same canonical string if and only if they are equal.

    >>> [canonicalize_number(text) for text in ("2", "2.00", "+2e0", "0.50", "-0", "007", "2 kg")]
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
"""Number of significant digits that a float16 (2 bytes) or a float32 (4 bytes) may need."""

MAX_EXACT_POWER = 22
"""Largest k such that 10^k is exact in float64."""


def convert_to_shortest_decimals(values: np.ndarray) -> np.ndarray:
    """Convert floats to float64, each to the shortest decimal number that rounds to it.

    For example, the float32 nearest to 0.7 becomes 0.7. Its exact value in float64 is 0.69999999,
    which could be in another bin than the number 0.7 in a text file.

    Args:
        values: Numbers, float16, float32 or float64, of any shape.

    >>> float(convert_to_shortest_decimals(np.array([0.7], np.float32))[0])
    0.7
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
    """A number format.

    Args:
        decimal: Decimal mark, "." or ",".
        thousands: Separator of groups of digits; None for none.
        units: Strings that may precede or follow a number, each with its factor.

    Raises:
        UsageError: The characters are not supported or equal, or a unit could be part of a number.
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
                f"{', '.join(repr(each) for each in THOUSANDS_MARKS if each != self.decimal)}, "
                f"different from decimal, which is {self.decimal!r}."
            )
        for unit, factor in self.units:
            if unit != "+" and (unit != unit.strip() or unit[:1] in RESERVED_UNIT_STARTS):
                raise UsageError(
                    f'units holds {unit!r}: expected a string such as "$" or "kg", which does not '
                    "begin with a digit, a sign, a point or a parenthesis."
                )
            if not (math.isfinite(factor) and factor > 0):
                raise UsageError(f"units: {unit!r} is {factor!r}: expected a factor above 0.")

    @property
    def has_decimal_point(self) -> bool:
        """Whether the decimal mark is a point, so that 1234.5 has its default meaning."""
        return self.decimal == "."

    def number(self, text: str | None) -> float:
        """Return the finite number that a string means; NaN if it is not a number or None."""
        if text is None:
            return math.nan
        if not math.isnan(number := self._parse_unmarked(text)):
            return number
        # The number may have a minus sign U+2212, parentheses or units.
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
        """Parse a sign, digits with separators, and a decimal mark; else return NaN."""
        if self.decimal != "." or self.thousands is not None:
            if _compile_pattern(self.decimal, self.thousands).fullmatch(text) is not None:
                for each in EQUIVALENT_MARKS.get(self.thousands or "", self.thousands or ""):
                    text = text.replace(each, "")
                text = text.replace(self.decimal, ".")
            elif self.decimal != "." and "." in text:
                return math.nan  # `float` would accept it
        try:
            number = float(text)
        except ValueError:
            return math.nan
        return number if math.isfinite(number) else math.nan


RESERVED_UNIT_STARTS = "0123456789+-.,()"
"""Characters with which a unit must not begin, because they could be part of the number."""

PLAIN_NUMBER_FORM = NumberForm()
"""Default number format, that of Python."""


def build_number_form(
    decimal: object, thousands: object, units: tuple[tuple[str, float], ...] | None = None
) -> NumberForm:
    """Build the declared number format; None means the default of an argument.

    Raises:
        UsageError: The declaration is invalid.
    """
    point: Any = PLAIN_NUMBER_FORM.decimal if decimal is None else decimal
    group: Any = thousands
    return NumberForm(point, group, units or ())


@lru_cache(maxsize=32)
def _compile_pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Compile the regular expression of numbers with this decimal mark and separator."""
    point, whole = re.escape(decimal), "[0-9]*"
    if thousands is not None:
        mark = f"[{re.escape(EQUIVALENT_MARKS.get(thousands, thousands))}]"
        whole = rf"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{2,3}})*{mark}[0-9]{{3}}|[0-9]*)"
    return re.compile(rf"[+-]?{whole}(?:{point}[0-9]*)?(?:[eE][+-]?[0-9]+)?")
