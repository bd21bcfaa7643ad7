"""Inference of the formats of numbers, units and dates that parse the most values of a column.

    numbers    "12,300", "1.234,5": decimal marks and separators of groups of digits
    units      "$48,665.71", "45 %", "12 kg": known units, and any string that nearly all numbers of
               a column have if the column has fractions or many distinct numbers. Otherwise strings
               such as "A1" and "Q3" are codes
    dates      "31.12.2024", "Dec 31, 2024 11:59 PM"

All functions read private values, so they are for the curator's check alone. A run uses declared
formats only.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from pasearch.data.dates import ISO_PATTERN, compile_format, parse_days
from pasearch.data.numbers import EQUIVALENT_MARKS, PLAIN_NUMBER_FORM, NumberForm

NUMBER_PATTERN = re.compile(r"([^0-9]*)([0-9](?:[0-9.,'\u2019 \u00a0\u202f]*[0-9])?[.,]?)(.*)")
"""Pattern of a cell that contains one number: prefix, number, suffix."""

CURRENCIES = frozenset(
    "USD EUR GBP CHF JPY CNY RMB INR Rs Rs. SEK NOK DKK kr kr. PLN CZK HUF Ft RUB AUD CAD NZD SGD "
    "HKD ZAR BRL MXN KRW TRY AED SAR ILS THB IDR MYR PHP VND UAH RON BGN ARS CLP COP PEN NGN KES "
    "EGP PKR BDT TWD zł Kč Fr. SFr. RM US$ A$ AU$ C$ CA$ HK$ NZ$ S$ R$".split()
)
"""Names of currencies; characters such as $ and € are recognised by their Unicode category."""

SCALE_WORDS = {
    "K": 1e3, "k": 1e3, "Tsd": 1e3, "thousand": 1e3, "M": 1e6, "mn": 1e6, "Mn": 1e6, "mln": 1e6,
    "Mio": 1e6, "Mio.": 1e6, "million": 1e6, "millions": 1e6, "B": 1e9, "bn": 1e9, "Bn": 1e9,
    "Mrd": 1e9, "Mrd.": 1e9, "billion": 1e9, "billions": 1e9, "T": 1e12, "tn": 1e12,
    "trillion": 1e12, "lakh": 1e5, "crore": 1e7, "Cr": 1e7,
}  # fmt: skip
"""Scale words after a number, with their factors."""

MONEY_SCALE_WORDS = {"m": 1e6, "b": 1e9, "t": 1e12}
"""Scale words for amounts of money only: for example, m means metre in other columns."""

UNIT_FAMILIES: tuple[dict[str, float], ...] = (
    {"ng": 1e-9, "µg": 1e-6, "mcg": 1e-6, "mg": 1e-3, "g": 1.0, "kg": 1e3, "kgs": 1e3},
    {"oz": 1.0, "lb": 16.0, "lbs": 16.0},
    {"nm": 1e-9, "µm": 1e-6, "mm": 1e-3, "cm": 1e-2, "dm": 0.1, "m": 1.0, "km": 1e3},
    {"in": 1.0, "inch": 1.0, "inches": 1.0, '"': 1.0, "ft": 12.0, "feet": 12.0, "yd": 36.0},
    {"mL": 1e-3, "ml": 1e-3, "cl": 1e-2, "dl": 0.1, "dL": 0.1, "l": 1.0, "L": 1.0},
    {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0,
     "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0,
     "hours": 3600.0},
    {"day": 1.0, "days": 1.0, "week": 7.0, "weeks": 7.0, "wk": 7.0, "wks": 7.0},
    {"month": 1.0, "months": 1.0, "mo": 1.0, "mos": 1.0, "year": 12.0, "years": 12.0, "yr": 12.0,
     "yrs": 12.0},
    {"bytes": 1.0, "KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    {"W": 1.0, "kW": 1e3, "MW": 1e6}, {"Wh": 1.0, "kWh": 1e3, "MWh": 1e6},
    {"Pa": 1.0, "hPa": 100.0, "kPa": 1e3, "bar": 1e5}, {"cal": 1.0, "kcal": 1e3},
)  # fmt: skip
"""Units of each quantity, with their factors relative to one of them."""

OTHER_UNITS = frozenset(
    "% ‰ pct percent bps pp + ° °C °F mi mile miles mph km/h kmh kph m/s knots psi mmHg kJ J bpm "
    "rpm px dpi pts points pcs V A mA mAh acres ha m² m2 m^2 km² km2 sqm sqft ft² ft2 m³ m3 mg/dL "
    "mg/dl mmol/L g/dL t ton tons mAs sq.ft. x".split()
)
"""Further known units, each with factor 1."""

MAX_UNITS = 12
"""Maximum number of different units of one column."""

MIN_QUANTITY_NUMBERS = 20
"""Number of distinct numbers above which a letter or an unknown string may be a unit."""

MIN_PARSED_FRACTION = 0.9
"""Minimum fraction of the cells that a format must parse to be inferred."""


def count_parsed(counts: Mapping[str, int], form: NumberForm) -> int:
    """Return the number of cells that a number format parses.

    Args:
        counts: Count of each string.
        form: Number format.
    """
    return sum(times for text, times in counts.items() if math.isfinite(form.number(text)))


def infer_units(counts: Mapping[str, int]) -> tuple[tuple[str, float], ...]:
    """Infer the units of a column with their factors, the most frequent first; () if it has none.

    Args:
        counts: Count of each string.
    """
    found, unknown, spaced = Counter[str](), Counter[str](), Counter[str]()
    numbers, cells, total = set[str](), list[tuple[set[str], int]](), sum(counts.values())
    for text, times in counts.items():
        if (parts := _split_number(text)) is None:
            continue
        before, number, behind = parts
        units = set[str]()
        for side, names in ((before, CURRENCIES), (behind, KNOWN_UNITS)):
            known = _split_units(side, names)
            units.update(known or ([side] if side else []))
            if side and not known:
                unknown[side] += times
                spaced[side] += times * text.endswith((f" {side}", f"\u00a0{side}"))
        numbers.add(number)
        cells.append((units, times))
        found.update(dict.fromkeys(sorted(units), times))
    quantity = len(numbers) > MIN_QUANTITY_NUMBERS
    fractions = any(not each.isdecimal() for each in numbers)
    accepted = found.keys() - unknown.keys()
    if quantity:
        most = unknown if fractions else spaced
        accepted |= {unit for unit, times in most.items() if times >= MIN_PARSED_FRACTION * total}
    letters = {unit for unit in accepted if len(unit) == 1 and unit.isalpha()}
    scales = SCALE_WORDS.keys() | MONEY_SCALE_WORDS.keys()
    codes = (letters and not (quantity or fractions)) or (len(letters) > 1 and letters - scales)
    read = sum(times for units, times in cells if units <= accepted)
    if not accepted or codes or len(accepted) > MAX_UNITS or read < MIN_PARSED_FRACTION * total:
        return ()
    return _assign_factors([unit for unit, _ in found.most_common() if unit in accepted])


def _split_number(text: str) -> tuple[str, str, str] | None:
    """Split a cell into prefix, number and suffix; None if it does not contain one number."""
    plain = text.replace("\u2212", "-")
    if plain[:1] == "(" and plain[-1:] == ")":
        plain = plain[1:-1]
    if (split := NUMBER_PATTERN.fullmatch(plain)) is None:
        return None
    before, number, behind = (each.strip() for each in split.groups())
    before = before.strip("+- \u00a0")
    return "" if before in (".", ",") else before, number, behind


def _split_units(text: str, names: frozenset[str]) -> list[str]:
    """Split a string into known units; an empty list if a part of it is unknown."""
    units: list[str] = []
    while text:
        # The longest unit first. Adjacent letters are one word: "mgx" does not contain mg.
        ends = [end for end in range(len(text), 0, -1) if _is_unit(text[:end], names)]
        if not ends or (text[ends[0] - 1].isalpha() and text[ends[0] :][:1].isalpha()):
            return []
        units.append(text[: ends[0]])
        text = text[ends[0] :].strip()
    return units


def _is_unit(text: str, known: frozenset[str]) -> bool:
    """Whether a string is a known unit or a currency sign."""
    return text in known or (len(text) == 1 and unicodedata.category(text) == "Sc")


KNOWN_UNITS = CURRENCIES.union(SCALE_WORDS, MONEY_SCALE_WORDS, OTHER_UNITS, *UNIT_FAMILIES)
"""Known units after a number."""


def _assign_factors(units: list[str]) -> tuple[tuple[str, float], ...]:
    """Return each unit with its factor; the most frequent unit of each quantity has factor 1.

    Args:
        units: Units, the most frequent first.
    """
    money = any(unit in CURRENCIES or _is_unit(unit, frozenset()) for unit in units)
    base = [next((each[u] for u in units if u in each), 1.0) for each in UNIT_FAMILIES]
    scales = SCALE_WORDS | (MONEY_SCALE_WORDS if money else {})
    found = []
    for unit in units:
        family = [
            each[unit] / one for each, one in zip(UNIT_FAMILIES, base, strict=True) if unit in each
        ]
        found.append((unit, scales.get(unit, family[0] if family else 1.0)))
    return tuple(found)


NUMBER_FORMS = (
    PLAIN_NUMBER_FORM, NumberForm(".", ","), NumberForm(","), NumberForm(",", "."),
    NumberForm(".", " "), NumberForm(",", " "), NumberForm(".", "'"), NumberForm(",", "'"),
)  # fmt: skip
"""Number formats that are tried, the likeliest first."""

# Maximum number of strings that decide whether formats other than the default are tried.
NUMBER_SAMPLE_SIZE = 32


def infer_number_forms(
    counts: Mapping[str, int],
    *,
    decimal: str | None = None,
    units: tuple[tuple[str, float], ...] = (),
) -> list[NumberForm]:
    """Return the number formats that parse the most cells, the likeliest first; may be empty.

    If the default format parses all cells, it is the only one.

    Args:
        counts: Count of each string.
        decimal: Decimal mark of the other columns of the table; None: unknown.
        units: Units with their factors, which are removed from numbers.
    """
    forms = [replace(form, units=units) for form in NUMBER_FORMS]
    tried = [form for form in forms if decimal is None or form.decimal == decimal]
    if decimal in (None, PLAIN_NUMBER_FORM.decimal) and count_parsed(counts, forms[0]) == sum(
        counts.values()
    ):
        return [forms[0]] if counts else []
    sample = {text: 1 for text in islice(counts, NUMBER_SAMPLE_SIZE)}
    if not any(2 * count_parsed(sample, form) >= len(sample) for form in tried):
        return []
    read, there = dict[NumberForm, int](), set("".join(counts))
    for form in tried:
        # A separator that occurs in no string has no effect, so its format is not tried again.
        mark = form.thousands or ""
        groups = form.thousands is None or not there.isdisjoint(EQUIVALENT_MARKS.get(mark, mark))
        same = next((each for each in read if each.decimal == form.decimal), form)
        read[form] = read[same] if not groups and same in read else count_parsed(counts, form)
    most = max(read.values())
    return [form for form, times in read.items() if times == most > 0]


DATE_FORMATS: tuple[str, ...] = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y",
    "%d %B %Y", "%B %d, %Y", "%Y-%m",
)  # fmt: skip
"""Date formats that are tried, the likeliest first."""

# Maximum number of strings that decide which formats are tried.
DATE_SAMPLE_SIZE = 64

MAX_DATE_CHARACTERS = 40
"""Maximum number of characters of a date."""

TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
"""Formats of the time of day that may follow a date."""


def infer_date_formats(counts: Mapping[str, int], *, least: float = 0.0) -> list[str | None]:
    """Return the date formats that parse the most cells, the likeliest first; None means ISO.

    Args:
        counts: Count of each string.
        least: Minimum fraction of the cells that must be dates, in [0, 1].
    """
    sample = Counter(map(_simplify_characters, islice(counts, DATE_SAMPLE_SIZE)))
    if not sample:
        return []
    read = {
        pattern: sum(
            times for text, times in counts.items() if not math.isnan(parse_days(text, pattern))
        )
        for pattern in _select_date_formats(sample.most_common(1)[0][0])
    }
    most = max(read.values(), default=0)
    enough = most > 0 and most >= least * sum(counts.values())
    return [pattern for pattern, times in read.items() if times == most and enough]


def _simplify_characters(text: str) -> str:
    """Return a string with each digit replaced by 1, and each letter by x except in AM and PM.

    Dates with equal results have the same candidates for their format.
    """
    if ISO_PATTERN.fullmatch(text):  # the letters T and Z are not part of a month
        return "1111-11-11"
    if len(text) > MAX_DATE_CHARACTERS:
        return ""
    plain = re.sub(r"(?<![A-Za-z])[AaPp][Mm](?![A-Za-z])", "\0", re.sub("[0-9]", "1", text))
    return re.sub("[A-Za-z]", "x", plain).replace("\0", "am")


@lru_cache(maxsize=4096)
def _select_date_formats(shape: str) -> tuple[str | None, ...]:
    """Return the date formats that a result of `_simplify_characters` fits; None means ISO."""
    if ISO_PATTERN.fullmatch(shape):
        return (None,)
    patterns = [day + time for day in DATE_FORMATS for time in TIME_FORMATS]
    return tuple(pattern for pattern in patterns if compile_format(pattern).fullmatch(shape))
