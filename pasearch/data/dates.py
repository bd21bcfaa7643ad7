"""Dates and times: how a cell is read, and what a column of them becomes.

A cell is read by the declared format, or else as ISO has it: 2024-01-31, and behind a space or a T
the time, 12:30 or 12:30:59. A time zone behind that is left out: what counts is what a clock showed
there. What is neither is missing; nothing raises.

| in a format | means |
|---|---|
| `%Y`, `%y` | the year of four digits, or of two (1969 to 2068) |
| `%m`, `%b`, `%B` | the month: 1 to 12, Jan, January |
| `%d` | the day of the month |
| `%H`, `%I` with `%p`, `%M`, `%S`, `%f` | hour of 24, hour of 12 with AM or PM, minute, second, its fraction |

Names are English, in capitals or not, whatever the computer's language.

Source: docs/rules.md, rules 3 and 13; the directives are those of Python's `strptime`.
"""  # noqa: E501 - a table

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
"""What may be told of a date beside its days since the lower bound."""

DEFAULT_DATE_PARTS = ("year", "month", "weekday")
"""What is told unless the column says otherwise."""

ISO_PATTERN = re.compile(
    r"(?P<Y>[0-9]{4})-(?P<m>[0-9]{1,2})-(?P<d>[0-9]{1,2})"
    r"(?:[ T]+(?P<H>[0-9]{1,2}):(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?)?"
    r" ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2})?)?"
)
"""A date as it is written where no format is declared."""

DIRECTIVE_PATTERNS = {
    "Y": "[0-9]{4}", "y": "[0-9]{2}", "m": "1[0-2]|0?[1-9]", "d": "3[01]|[12][0-9]|0?[1-9]",
    "H": "2[0-3]|[01]?[0-9]", "I": "1[0-2]|0?[1-9]", "M": "[0-5]?[0-9]", "S": "60|[0-5]?[0-9]",
    "f": "[0-9]{1,9}", "p": "[AaPp][Mm]", "b": "[A-Za-z]{3}", "B": "[A-Za-z]{3,9}",
}  # fmt: skip
"""What each directive of a format looks like. Without marks between them, 5112020 is told apart as
day 5, month 11: no day is 51."""

EXCLUSIVE_DIRECTIVES = (("Y", "y"), ("m", "b", "B"), ("H", "I"))
"""Directives that say the same thing: a format has one of them."""

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
"""Days are counted from here."""

SECONDS_PER_DAY = 86_400
"""The seconds of a day."""

CENTURY_PIVOT = 69
"""Years of two digits from here on are of the last century."""


def find_format_problem(pattern: object) -> str | None:
    """Return what is wrong with a format; None if nothing is."""
    if not isinstance(pattern, str):
        return 'expected a text such as "%d.%m.%Y"'
    found = re.findall("%(.?)", pattern.replace("%%", ""))
    if unknown := [each for each in found if each not in DIRECTIVE_PATTERNS]:
        known = ", ".join(f"%{each}" for each in DIRECTIVE_PATTERNS)
        return f"it has %{unknown[0]}: expected {known}"
    if len(set(found)) < len(found):
        return "it has a directive twice: expected each once"
    for each in EXCLUSIVE_DIRECTIVES:
        if len(twice := [f"%{one}" for one in each if one in found]) > 1:
            return f"{' and '.join(twice)} say the same thing: expected one of them"
    if not (set(found) & {"Y", "y"} and set(found) & {"m", "b", "B"}):
        return 'expected at least a year and a month in it, such as "%d.%m.%Y"'
    if ("I" in found) != ("p" in found):
        return "%I, an hour of 12, and %p, AM or PM, go together"
    return None


def parse_days(text: str | None, pattern: str | None = None) -> float:
    """Return a date as days since 1970-01-01, the time as a fraction; NaN if it is none.

    Args:
        text: A cell.
        pattern: A format; None: ISO alone.
    """
    if text is None:
        return math.nan
    found = None if pattern is None else compile_format(pattern).fullmatch(text)
    found = ISO_PATTERN.fullmatch(text) if found is None else found
    return math.nan if found is None else _compute_days(found)


def normalize_day(given: object) -> str | None:
    """Return a bound as "YYYY-MM-DD"; None if it is no date.

    Args:
        given: A date, a time, or a text as ISO has it.
    """
    if isinstance(given, date):
        try:
            return date(given.year, given.month, given.day).isoformat()
        except (TypeError, ValueError):  # pandas's own absent time is a `datetime`
            return None
    days = parse_days(given.strip()) if isinstance(given, str) else math.nan
    return None if math.isnan(days) else convert_days_to_date(days).isoformat()


def convert_days_to_date(days: float) -> date:
    """Return the day that so many days since 1970-01-01 are in."""
    return date.fromordinal(math.floor(days) + EPOCH_ORDINAL)


def count_days_to(day: str) -> int:
    """Return the days from 1970-01-01 to a day, as of `normalize_day`."""
    return date.fromisoformat(day).toordinal() - EPOCH_ORDINAL


def parse_year(day: str) -> int:
    """Return the year of a day, as of `normalize_day`."""
    return date.fromisoformat(day).year


def extract_date_part(days: np.ndarray, part: str) -> np.ndarray:
    """Return the year, or the place of the month, weekday or hour, 0 first; NaN where NaN is.

    Args:
        days: Since 1970-01-01, float64, (cells,).
        part: One of `PARTS`.
    """
    known = np.isfinite(days)
    there = np.where(known, days, 0.0)
    whole = np.floor(there)
    if part == "hour":
        # A second is more than the rounding of days that are kept as one number.
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
    """Compile a format to a pattern of cells; a space in it matches one or more."""
    # A cell has no space around it.
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


def _compute_days(found: re.Match[str]) -> float:
    parts = found.groupdict()

    def number(name: str, usual: int = 0) -> int:
        return int(parts.get(name) or usual)

    year = number("Y")
    if parts.get("Y") is None:
        year = number("y")
        year += 1900 if year >= CENTURY_PIVOT else 2000
    named = parts.get("b") or parts.get("B")
    month = number("m") if named is None else _parse_month(named, whole="B" in parts)
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


def _parse_month(name: str, *, whole: bool) -> int:
    """Return the number of a month by its name; 0 if it is none."""
    known = [each if whole else each[:3] for each in MONTHS]
    lower = [each.lower() for each in known]
    return lower.index(name.lower()) + 1 if name.lower() in lower else 0
