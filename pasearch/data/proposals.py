"""What is proposed to be declared of a column, guessed from its values.

For `data.check` alone: bounds are rounded outwards, and what looks like a slip of the pen is left
out of them.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, timedelta

import numpy as np

from pasearch.data import dates
from pasearch.data.column import Column
from pasearch.data.numbers import PLAIN, canonical_number
from pasearch.data.seen import TAILS, Seen, by_frequency

MOST_CATEGORIES = 64
"""How many categories are proposed for a column, the most frequent first."""

SLIP = 2.0
"""How many times as far from the middle of a column as that is wide a value lies that is a slip of
the pen."""

YEARS = 2
"""The bounds of dates over so many years are whole years; of others, whole months."""


MOST_WHOLE = 20
"""Of whole numbers that lie so near to each other, each gets a bin of its own."""

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Bounds are multiples of one of these times a power of ten."""

MIN_STEPS = 20
"""Least number of such multiples between the bounds: each is moved by a 20th to a 10th at most."""

SCALE = (-10, 1)
"""A scale of whole numbers, such as 1 to 5, begins here: its ends are its bounds."""

EXACT = 2.0**51
"""Up to here a number halfway between two whole ones is exact."""


def proposal(seen: Seen) -> Column:
    """Return a column with what is not declared guessed from its values."""
    column, kind = seen.column, seen.kind
    if kind == "ignore":
        return Column(name=column.name, kind="ignore")
    if kind == "category":
        common = _in_order(by_frequency(seen.names)[:MOST_CATEGORIES])
        return replace(column, kind="category", categories=tuple(common), case=seen.case)
    marks = sorted(seen.words)
    if kind == "date":
        days = np.array(list(seen.days.values()))
        first, last = days_outwards(days)
        return replace(
            column, kind="date", format=seen.formats[0], lower=first.isoformat(),
            upper=last.isoformat(), parts=_parts(seen.formats[0], days),
            missing=_marks(column, marks),
        )  # fmt: skip
    low, high = bounds_of(seen)
    marks += [f"{code:.15g}" for code, far in seen.codes if far]
    found = replace(
        column, kind="number", low=low, high=high, bins=_bins(seen, low, high),
        missing=_marks(column, marks),
    )  # fmt: skip
    if not seen.open_form or seen.form == PLAIN:
        return found
    form = seen.form
    decimal = None if form.decimal == PLAIN.decimal else form.decimal
    return replace(
        found, decimal=decimal, thousands=form.thousands, units=form.units or column.units
    )


def _in_order(names: list[str]) -> list[str]:
    """Return categories in alphabetical order; by value if all are numbers."""
    if all(canonical_number(name) for name in names):
        return sorted(names, key=float)
    return sorted(names, key=lambda name: (name.casefold(), name))


def _marks(column: Column, found: Sequence[str]) -> tuple[str, ...] | None:
    own = column.missing or ()
    return (*own, *(mark for mark in found if mark not in own)) if found else column.missing


def bounds_of(seen: Seen) -> tuple[float, float]:
    """Return the declared bounds of a number, or those that are proposed."""
    if seen.column.bounds is not None:
        return seen.column.bounds
    codes = [code for code, far in seen.codes if far]
    return outwards(seen.finite[~np.isin(seen.finite, codes)] if codes else seen.finite)


def _bins(seen: Seen, low: float, high: float) -> int | tuple[float, ...] | str | None:
    """Return edges halfway between the whole numbers of a feature of few; else what is declared.

    Of ten bins of equal width over 0 to 5, four would hold no whole number.
    """
    few = bool(len(seen.finite)) and seen.whole and not (seen.constant or seen.is_target)
    few = few and low.is_integer() and high.is_integer() and high - low <= MOST_WHOLE
    if seen.column.bins is not None or not (few and -EXACT <= low < high <= EXACT):
        return seen.column.bins
    return tuple(low + place + 0.5 for place in range(int(high - low)))


def _parts(pattern: str | None, days: np.ndarray) -> tuple[str, ...] | None:
    """Return what is told of dates: the hour if there are times; no weekday without a day."""
    if pattern is not None and "%d" not in pattern:
        return ("year", "month")
    return dates.PARTS if (days != np.floor(days)).any() else None


def outwards(values: np.ndarray) -> tuple[float, float]:
    """Return bounds around all values but slips of the pen, rounded outwards to round numbers.

    Bounds as wide as the worst slip would leave the others next to no differences.
    """
    if not len(values):
        return 0.0, 1.0
    low, high = _near(values)
    if low == high:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    if not math.isfinite(high - low):
        return -8e307, 8e307
    least = (high - low) / MIN_STEPS
    if not least > 0.0:
        return low, high
    if (values == np.floor(values)).all() and high - low <= MOST_WHOLE:
        least = 1.0 if SCALE[0] <= low <= SCALE[1] else 5.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next((each * power for each in STEPS if each * power >= least), 10 * power)
    if not step > 0.0:
        return low, high
    return _rounded(low, step, math.floor), _rounded(high, step, math.ceil)


def _near(values: np.ndarray) -> tuple[float, float]:
    """Return the least and the largest value that is no slip of the pen."""
    low, high = (float(each) for each in np.quantile(values, TAILS, method="closest_observation"))
    reach = SLIP * (high - low) if high > low else math.inf
    near = values[(values >= low - reach) & (values <= high + reach)]
    return float(near.min()), float(near.max())


def days_outwards(days: np.ndarray) -> tuple[date, date]:
    """Return whole years, or months, around all dates but slips of the pen."""
    first, last = map(dates.day_at, _near(days))
    if last.year - first.year >= YEARS:
        return date(first.year, 1, 1), date(last.year, 12, 31)
    after = date(last.year + last.month // 12, last.month % 12 + 1, 1) if last.year < 9999 else None
    ends = date(9999, 12, 31) if after is None else after - timedelta(days=1)
    return date(first.year, first.month, 1), ends


def _rounded(value: float, step: float, towards: Callable[[float], int]) -> float:
    """Return a multiple of a step, without the digits that a computer adds."""
    if not abs(value / step) < 1e12:
        return value
    found = float(f"{towards(value / step) * step:.12g}")
    outside = found <= value if towards is math.floor else found >= value
    return found if outside else value
