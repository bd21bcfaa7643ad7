"""Dates and times: parsing of cells, and parts of a date that are features.

A cell is parsed in the declared format, or else in ISO format: 2024-01-31, optionally followed by a
space or a T and the time, 12:30 or 12:30:59. A time zone after the time is ignored, so times are
local. Any other cell is missing; no cell raises an error.

| in a format | meaning |
|---|---|
| `%Y`, `%y` | year of four digits, or of two (1969 to 2068) |
| `%m`, `%b`, `%B` | month: 1 to 12, Jan, January |
| `%d` | day of the month |
| `%H`, `%I` with `%p`, `%M`, `%S`, `%f` | hour (24), hour (12), minute, second, fraction |

Names of months are English, in upper or lower case, whatever the language of the computer.

Source: docs/rules.md, rules 3 and 13; the directives are those of Python's `strptime`.
"""

from __future__ import annotations

import math
import re
from datetime import date
from functools import lru_cache

import numpy as np

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

DATE_PARTS = ("year", "month", "weekday", "hour")
"""Parts of a date that may be features, in addition to the days since the lower bound."""

DEFAULT_DATE_PARTS = ("year", "month", "weekday")
"""Parts of a date that are features by default."""

ISO_PATTERN = re.compile(
    r"(?P<Y>[0-9]{4})-(?P<m>[0-9]{1,2})-(?P<d>[0-9]{1,2})"
    r"(?:[ T]+(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?)?"
    r" ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
"""Pattern of a date for which no format is declared."""

DIRECTIVE_PATTERNS = {
    "Y": "[0-9]{4}", "y": "[0-9]{2}", "m": "1[0-2]|0?[1-9]", "d": "3[01]|[12][0-9]|0?[1-9]",
    "H": "2[0-3]|[01]?[0-9]", "I": "1[0-2]|0?[1-9]", "M": "[0-5]?[0-9]", "S": "60|[0-5]?[0-9]",
    "f": "[0-9]{1,9}", "p": "[AaPp][Mm]", "b": "[A-Za-z]{3}", "B": "[A-Za-z]{3,9}",
}  # fmt: skip
"""Regular expression of each directive of a format. Digits without separators are divided so that
all parts are valid: 5112020 is day 5, month 11, because 51 is not a day."""

EXCLUSIVE_DIRECTIVES = (("Y", "y"), ("m", "b", "B"), ("H", "I"))
"""Groups of directives with the same meaning: a format has at most one of each group."""

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
"""Ordinal of 1970-01-01, from which days are counted."""

SECONDS_PER_DAY = 86_400

CENTURY_PIVOT = 69
"""Smallest year of two digits that means 19xx; smaller ones mean 20xx."""


def find_format_problem(pattern: object) -> str | None:
    """Return a description of the error in a date format; None if it is valid."""
    if not isinstance(pattern, str):
        return 'expected a string such as "%d.%m.%Y"'
    found = re.findall("%(.?)", pattern.replace("%%", ""))
    if unknown := [each for each in found if each not in DIRECTIVE_PATTERNS]:
        known = ", ".join(f"%{each}" for each in DIRECTIVE_PATTERNS)
        return f"it has %{unknown[0]}: expected {known}"
    if len(set(found)) < len(found):
        return "it has a directive twice: expected each at most once"
    for each in EXCLUSIVE_DIRECTIVES:
        if len(twice := [f"%{one}" for one in each if one in found]) > 1:
            return f"{' and '.join(twice)} have the same meaning: expected one of them"
    if not (set(found) & {"Y", "y"} and set(found) & {"m", "b", "B"}):
        return 'expected at least a year and a month, such as "%d.%m.%Y"'
    if ("I" in found) != ("p" in found):
        return "%I (hour of 12) and %p (AM or PM) require each other"
    return None


def parse_days(text: str | None, pattern: str | None = None) -> float:
    """Return a cell's days since 1970-01-01, the time as a fraction; NaN if it is not a date.

    Args:
        text: Cell, or None for a missing one.
        pattern: Declared format; None: ISO format only.
    """
    if text is None:
        return math.nan
    found = None if pattern is None else compile_format(pattern).fullmatch(text)
    found = ISO_PATTERN.fullmatch(text) if found is None else found
    if found is None:
        return math.nan
    parts = found.groupdict()

    def number(name: str, usual: int = 0) -> int:
        return int(parts.get(name) or usual)

    year = number("Y")
    if parts.get("Y") is None:
        year = number("y")
        year += 1900 if year >= CENTURY_PIVOT else 2000
    month, named = number("m"), parts.get("b") or parts.get("B")
    if named is not None:
        known = [(each if "B" in parts else each[:3]).lower() for each in MONTHS]
        month = known.index(named.lower()) + 1 if named.lower() in known else 0
    hour = number("H")
    if parts.get("I") is not None:
        hour = number("I") % 12 + 12 * ((parts.get("p") or "").lower() == "pm")
        if not 1 <= number("I") <= 12:
            return math.nan
    seconds = 3600 * hour + 60 * number("M") + number("S")
    if not (hour < 24 and number("M") < 60 and number("S") < 61):
        return math.nan
    try:
        day = date(year, month, number("d", 1)).toordinal() - EPOCH_ORDINAL
    except ValueError:
        return math.nan
    return day + (seconds + float(f"0.{parts.get('f') or 0}")) / SECONDS_PER_DAY


def normalize_day(given: object) -> str | None:
    """Return a bound of a date column as a string "YYYY-MM-DD"; None if it is not a date.

    Args:
        given: Date, time, or string in ISO format.
    """
    if isinstance(given, date):
        try:
            return date(given.year, given.month, given.day).isoformat()
        except (TypeError, ValueError):  # pandas's missing time is a `datetime`
            return None
    days = parse_days(given.strip()) if isinstance(given, str) else math.nan
    return None if math.isnan(days) else convert_days_to_date(days).isoformat()


def convert_days_to_date(days: float) -> date:
    """Convert days since 1970-01-01 to a date."""
    return date.fromordinal(math.floor(days) + EPOCH_ORDINAL)


def count_days_to(day: str) -> int:
    """Count the days from 1970-01-01 to a day, a string "YYYY-MM-DD"."""
    return date.fromisoformat(day).toordinal() - EPOCH_ORDINAL


def parse_year(day: str) -> int:
    """Return the year of a day, a string "YYYY-MM-DD"."""
    return date.fromisoformat(day).year


def extract_date_part(days: np.ndarray, part: str) -> np.ndarray:
    """Return a part of each date, (cells,): the year, or the index of the month, weekday or hour.

    Indices start at 0, and Monday is weekday 0. The part of NaN is NaN.

    Args:
        days: Days since 1970-01-01, float64, (cells,).
        part: Name of the part, one of `DATE_PARTS`.
    """
    known = np.isfinite(days)
    there = np.where(known, days, 0.0)
    whole = np.floor(there)
    if part == "hour":
        # Rounding to seconds removes the floating-point error of a day with a fraction.
        found = np.floor(np.round((there - whole) * SECONDS_PER_DAY) / 3600).clip(0, 23)
    elif part == "weekday":
        found = (whole + 3) % 7  # 1970-01-01 was a Thursday
    else:
        day = whole.astype("datetime64[D]")
        months = day.astype("datetime64[M]").astype(np.int64)
        found = months // 12 + 1970 if part == "year" else months % 12
    return np.where(known, found, math.nan)


@lru_cache(maxsize=256)
def compile_format(pattern: str) -> re.Pattern[str]:
    """Compile a format to a regular expression; a space matches one or more spaces."""
    found, at, pattern = "", 0, " ".join(pattern.split())
    while at < len(pattern):
        each = pattern[at]
        if each == "%":
            name = pattern[at + 1]
            found += "%" if name == "%" else f"(?P<{name}>{DIRECTIVE_PATTERNS[name]})"
            at += 1
        else:
            found += r"\s+" if each == " " else re.escape(each)
        at += 1
    return re.compile(found)
