"""Profile of a column, computed from its values, and the declaration that is proposed for it.

This module reads private values without a charge: the results are for the curator alone.
Proposed bounds are rounded outwards and exclude values that look like typing errors.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property

import numpy as np

from pasearch.curator import format_inference as inference
from pasearch.curator.format_inference import MIN_PARSED_FRACTION
from pasearch.data import dates
from pasearch.data.cells import CellFormat, ColumnCells, convert_to_numbers, convert_to_strings
from pasearch.data.column import IDENTIFIER_NAME_PATTERN, WORD_PATTERN, Column
from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm, canonicalize_number

# Quantiles between which the typical values of a column are.
MIDDLE_QUANTILES = (0.01, 0.99)
# Strings that often mean a missing value, in lower case.
MISSING_WORDS = frozenset(
    {"n.a.", "n.a", "na", "n/a", "none", "null", "nil", "nan", "unknown", "unk", "undefined",
     "missing", "not available", "not applicable", "not known", "not recorded", "no data",
     "no answer", "refused", "k.a.", "keine angabe", "unbekannt", "inconnu", "desconocido",
     "#value!", "#div/0!", "#ref!", "#name?", "#num!", "#null!"}
)  # fmt: skip

# Missing codes: numbers that may mean missing, such as 97, 98 and 99.
# Minimum fraction, and minimum number, of the records that have a missing code.
MIN_CODE_FRACTION = 0.01
MIN_CODE_RECORDS = 3
# Minimum number of records with other numbers.
MIN_OTHER_RECORDS = 10
# Maximum number of missing codes at one end of a column.
MAX_CODES = 4
# Minimum gap between a code and the other numbers, as a multiple of their range, for the proposal
# that it means missing: if there are at least `MIN_OTHER_NUMBERS` different other numbers, and if
# there are fewer, which do not show the range of the column.
MIN_FAR_GAP = 1.5
MIN_FAR_GAP_OF_FEW = 10.0
MIN_OTHER_NUMBERS = 3
# Minimum gap for a report without a proposal, as a multiple of the range of the other numbers, and
# as a multiple of the gaps between them.
MIN_REPORTED_GAP = 0.1
MIN_REPORTED_GAP_RATIO = 3

# Format of dates that look like integers, and range of years for which they are dates.
COMPACT_DATE_FORMAT = "%Y%m%d"
COMPACT_DATE_YEARS = (1900, 2100)
# Maximum number of distinct integers of a target that are classes; more in another column may be an
# identifier.
MAX_INTEGER_CLASSES = 20
# Minimum mean number of words per cell of a column of free text.
MIN_MEAN_WORDS = 4

# Maximum number of proposed categories, the most frequent ones.
MAX_CATEGORIES = 64
# Maximum distance of a value from the middle quantiles, as a multiple of their difference; values
# beyond it are considered typing errors.
OUTLIER_WIDTHS = 2.0
# Minimum number of years between date bounds that are rounded to years; others are rounded to
# months.
MIN_WHOLE_YEARS = 2
# Maximum range of integers for which each integer gets a separate bin.
MAX_INTEGER_BINS = 20
# Proposed bounds are multiples of a step, which is one of these numbers times a power of ten.
ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
# Maximum number of such steps between the bounds.
MAX_ROUND_STEPS = 20
# Range of the minimum of a rating scale, such as 1 to 5, whose bounds are not rounded.
RATING_SCALE_STARTS = (-10, 1)
# Maximum magnitude of consecutive integers whose midpoint is exact in float64.
MAX_EXACT_MIDPOINT = 2.0**51


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """Values of a column, and what they suggest about its kind and notation.

    Args:
        column: Declaration of the column.
        cells: Cells, (rows,).
        texts: Each cell as a string; None if it is empty.
        missing_counts: Count of each string that means missing, as declared or by default.
        counts: Count of each other string.
        is_target: Whether the column is predicted.
        decimal: Decimal mark of the other columns, if this column is assumed to have the same.
    """

    column: Column
    cells: ColumnCells
    texts: list[str | None]
    missing_counts: Mapping[str, int]
    counts: Counter[str]
    is_target: bool
    decimal: str | None = None

    @classmethod
    def of(
        cls, column: Column, cells: ColumnCells, is_target: bool, decimal: str | None = None
    ) -> ColumnProfile:
        """Make the profile of a column from its cells, (rows,)."""
        texts = convert_to_strings(cells)
        counts: Counter[str] = Counter(text for text in texts if text is not None)
        marks = set(map(column.comparison_key, column.cell_format.marks))
        missing = [text for text in sorted(counts) if column.comparison_key(text) in marks]
        return cls(
            column=column, cells=cells, texts=texts, counts=counts, is_target=is_target,
            missing_counts={text: counts.pop(text) for text in missing}, decimal=decimal,
        )  # fmt: skip

    def find_rows(self, texts: Collection[str | None]) -> np.ndarray:
        """Return whether each row contains one of the strings, bool, (rows,)."""
        return np.fromiter((text in texts for text in self.texts), bool, len(self.texts))

    @cached_property
    def missing_words(self) -> list[str]:
        """Undeclared strings in `MISSING_WORDS`, or without letters and digits."""
        return [
            text
            for text in self.counts
            if text.casefold() in MISSING_WORDS or not any(map(str.isalnum, text))
        ]

    @cached_property
    def value_counts(self) -> Mapping[str, int]:
        """Count of each string that may be a value."""
        if not self.missing_words:
            return self.counts
        return {text: n for text, n in self.counts.items() if text not in self.missing_words}

    @cached_property
    def value_count(self) -> int:
        """Number of cells that may contain a value."""
        return sum(self.value_counts.values())

    @cached_property
    def is_form_undeclared(self) -> bool:
        """Whether the notation of numbers is undeclared."""
        column = self.column
        return column.decimal is None and column.thousands is None and not column.is_declared

    @cached_property
    def number_forms(self) -> list[NumberForm]:
        """Number formats that parse the most values, the likeliest first."""
        form = self.column.cell_format.form
        if not self.is_form_undeclared:
            return [form]
        if self.decimal is None:
            # The default form, all values at once.
            if np.isfinite(self.default_numbers).sum() == self.value_count:
                return [form]
        counts, needed = self.value_counts, MIN_PARSED_FRACTION * self.value_count
        fits = inference.infer_number_forms(counts, decimal=self.decimal)
        enough = any(inference.count_parsed(counts, form) >= needed for form in fits)
        if not enough and (units := inference.infer_units(counts)):
            fits = inference.infer_number_forms(counts, decimal=self.decimal, units=units) or fits
        return fits

    @cached_property
    def number_form(self) -> NumberForm:
        """Likeliest number format."""
        return self.number_forms[0] if self.number_forms else PLAIN_NUMBER_FORM

    @cached_property
    def default_numbers(self) -> np.ndarray:
        """Each cell as a number in the declared format, float64, (rows,); NaN if it is not one."""
        return convert_to_numbers(self.cells, self.column.cell_format)

    @cached_property
    def numbers(self) -> np.ndarray:
        """Each cell as a number in the likeliest format, float64, (rows,); NaN if it is not one."""
        cell_format = self.column.cell_format
        if self.number_form == cell_format.form:
            return self.default_numbers
        return convert_to_numbers(self.cells, CellFormat(cell_format.marks, self.number_form))

    @cached_property
    def finite_numbers(self) -> np.ndarray:
        """Cells that are numbers, in the likeliest format, float64, (values,)."""
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def is_integer(self) -> bool:
        """Whether all numbers are integers."""
        return bool((self.finite_numbers == np.floor(self.finite_numbers)).all())

    @cached_property
    def date_formats(self) -> list[str | None]:
        """Date formats that parse the most values, the likeliest first; None means ISO."""
        if self.column.kind is not None:
            return [self.column.format] if self.column.kind == "date" else []
        if self.is_numeric:
            first, last = (year * 10_000 for year in COMPACT_DATE_YEARS)
            numbers, texts = self.finite_numbers, self.value_counts
            dated = self.is_integer and first < numbers.min() <= numbers.max() < last
            if not (dated and all(len(text) == 8 and text.isdecimal() for text in texts)):
                return []
            days = [dates.parse_days(text, COMPACT_DATE_FORMAT) for text in self.value_counts]
            return [] if any(map(math.isnan, days)) else [COMPACT_DATE_FORMAT]
        return inference.infer_date_formats(self.value_counts, least=MIN_PARSED_FRACTION)

    @cached_property
    def days_by_text(self) -> dict[str, float]:
        """Days since 1970-01-01 of each string that is a date."""
        found = {text: dates.parse_days(text, self.date_formats[0]) for text in self.value_counts}
        return {text: day for text, day in found.items() if not math.isnan(day)}

    @cached_property
    def is_numeric(self) -> bool:
        """Whether nearly all values are numbers."""
        return len(self.finite_numbers) >= max(1, MIN_PARSED_FRACTION * self.value_count)

    @cached_property
    def is_constant(self) -> bool:
        """Whether no two values differ."""
        return len(self.counts) < 2

    @cached_property
    def has_identifier_name(self) -> bool:
        return IDENTIFIER_NAME_PATTERN.search(self.column.name) is not None

    @cached_property
    def is_identifier(self) -> bool:
        """Whether the values look like an identifier: integers that are all distinct.

        If the name of the column is that of an identifier, at least half of them must differ.
        """
        distinct = len(self.value_counts)
        unique = distinct == self.value_count
        unique |= self.has_identifier_name and distinct > self.value_count / 2
        plain = self.number_form == PLAIN_NUMBER_FORM  # digits of an identifier are not grouped
        integers = self.is_integer and plain and not self.is_free_text
        return unique and distinct > MAX_INTEGER_CLASSES and integers

    @cached_property
    def is_text_identifier(self) -> bool:
        """Whether the column has many different strings, and the name of an identifier."""
        many = len(self.value_counts) > MAX_INTEGER_CLASSES
        return many and self.has_identifier_name and not self.is_numeric

    @cached_property
    def is_free_text(self) -> bool:
        """Whether the values are strings of several words, mostly distinct."""
        if not len(self.value_counts) > max(MAX_INTEGER_CLASSES, self.value_count / 2):
            return False
        words = sum(len(WORD_PATTERN.findall(text)) * n for text, n in self.value_counts.items())
        return words >= MIN_MEAN_WORDS * self.value_count

    @cached_property
    def is_code(self) -> bool:
        """Whether integers are codes, not numbers: with leading zeros, or too long for float64."""
        digits = [text for text in self.value_counts if text.isascii() and text.isdecimal()]
        if len(digits) < MIN_PARSED_FRACTION * len(self.value_counts):
            return False
        zeros = sum(self.value_counts[text] for text in digits if text[0] == "0" and len(text) > 1)
        same_length = len({len(text) for text in digits}) == 1
        return zeros >= (1 if same_length else max(1, MIN_CODE_FRACTION * self.value_count)) or (
            len({self.comparison_key(text) for text in digits if text[0] != "0"})
            > len({float(text) for text in digits if text[0] != "0"})
        )

    @cached_property
    def kind(self) -> str:
        """Declared kind of the column, or the likeliest one."""
        if self.column.kind is not None:
            return self.column.kind
        if self.is_target:
            classes = len(self.category_counts) <= MAX_INTEGER_CLASSES and self.is_integer
            return "number" if self.is_numeric and not (classes or self.is_code) else "category"
        if self.is_constant:
            return "ignore"
        if self.date_formats:
            return "date"
        if self.is_identifier or self.is_text_identifier:
            return "ignore"
        if self.is_free_text and not self.is_numeric:
            return "ignore"
        return "number" if self.is_numeric and not self.is_code else "category"

    @cached_property
    def missing_codes(self) -> list[tuple[float, bool]]:
        """Numbers that may mean missing, and whether each is far from all others.

        Such a number is frequent and at an end of the column. It is far if the gap to the others is
        at least `MIN_FAR_GAP` times their range. The number -1 is listed whatever the gap is, if it
        is the minimum and there is no other such number.
        """
        found, times = np.unique(self.finite_numbers, return_counts=True)
        if len(found) < 2:
            return []
        often = times >= max(MIN_CODE_RECORDS, MIN_CODE_FRACTION * len(self.finite_numbers))
        codes: list[tuple[float, bool]] = []
        for sign, down in ((-1.0, -1), (1.0, 1)):
            above = _find_missing_codes_at_end(sign * found[::down], often[::down], times[::down])
            codes += [(sign * value, far) for value, far in above]
        alone = found[0] == -1 and often[0] and len(found) > MIN_OTHER_NUMBERS
        others = len(self.finite_numbers) - times[0]
        return codes or ([(-1.0, False)] if alone and others >= MIN_OTHER_RECORDS else [])

    @cached_property
    def case_variants(self) -> list[list[str]]:
        """Groups of values that differ only in case."""
        if self.column.case is False:
            return []
        texts = [text for text in self.counts if canonicalize_number(text) is None]
        return group_alike(texts, str.casefold)

    @cached_property
    def case(self) -> bool | None:
        """Proposed value of `Column.case`: False if values differ only in case."""
        return False if self.case_variants else self.column.case

    @cached_property
    def category_counts(self) -> Counter[str]:
        """Count of each category, under the most frequent spelling of its variants."""
        spelled: dict[str, str] = {}
        names: Counter[str] = Counter()
        for text in sort_by_frequency(self.counts):
            own = canonicalize_number(text) or text
            names[spelled.setdefault(self.comparison_key(text), own)] += self.counts[text]
        return names

    def comparison_key(self, text: str) -> str:
        """Return a string that is equal for equal proposed categories, as in `Column`."""
        fold = str.casefold if self.case is False else str
        return canonicalize_number(text) or fold(text)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Declared bounds of a number, or proposed ones."""
        if self.column.bounds is not None:
            return self.column.bounds
        codes, numbers = [code for code, far in self.missing_codes if far], self.finite_numbers
        return round_bounds_outwards(numbers[~np.isin(numbers, codes)] if codes else numbers)

    def propose(self) -> Column:
        """Return the declaration, completed with values inferred from the cells."""
        column, kind = self.column, self.kind
        if kind == "ignore":
            return Column(name=column.name, kind="ignore")
        if kind == "text":  # its vocabulary is estimated privately
            return column
        if kind == "category":
            common = sort_by_frequency(self.category_counts)[:MAX_CATEGORIES]
            if all(canonicalize_number(name) for name in common):
                common.sort(key=float)
            else:
                common.sort(key=lambda name: (name.casefold(), name))
            return replace(column, kind="category", categories=tuple(common), case=self.case)
        marks = sorted(self.missing_words)
        if kind == "number":
            marks += [f"{code:.15g}" for code, far in self.missing_codes if far]
        if marks:
            declared = column.missing or ()
            added = (mark for mark in marks if mark not in declared)
            column = replace(column, missing=(*declared, *added))
        if kind == "date":
            days = np.array(list(self.days_by_text.values()))
            first, last = round_days_outwards(days)
            pattern, parts = self.date_formats[0], None
            if pattern is not None and "%d" not in pattern:
                parts = ("year", "month")
            elif (days != np.floor(days)).any():  # there are times, so the hour is a feature
                parts = dates.DATE_PARTS
            return replace(
                column, kind="date", format=pattern, lower=first.isoformat(),
                upper=last.isoformat(), parts=parts,
            )  # fmt: skip
        (low, high), bins = self.bounds, column.bins
        few = len(self.finite_numbers) > 0 and not (self.is_constant or self.is_target)
        few = few and self.is_integer and low.is_integer() and high.is_integer()
        few = few and high - low <= MAX_INTEGER_BINS
        if bins is None and few and -MAX_EXACT_MIDPOINT <= low < high <= MAX_EXACT_MIDPOINT:
            # One bin per integer: of ten equal bins between 0 and 5, four would be empty.
            bins = tuple(low + place + 0.5 for place in range(int(high - low)))
        column = replace(column, kind="number", low=low, high=high, bins=bins)
        if not self.is_form_undeclared or self.number_form == PLAIN_NUMBER_FORM:
            return column
        form = self.number_form
        return replace(
            column,
            decimal=None if form.decimal == PLAIN_NUMBER_FORM.decimal else form.decimal,
            thousands=form.thousands,
            units=form.units or column.units,
        )


def group_alike(texts: Collection[str], key: Callable[[str], str]) -> list[list[str]]:
    """Return groups of two or more strings with equal keys, each group sorted."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts):
        groups.setdefault(key(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def sort_by_frequency(counts: Mapping[str, int]) -> list[str]:
    """Return the strings, the most frequent first; equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda value: (-counts[value], value))


def _find_missing_codes_at_end(
    values: np.ndarray, often: np.ndarray, times: np.ndarray
) -> list[tuple[float, bool]]:
    """Return the largest numbers if they may mean missing, and whether they are far above others.

    Args:
        values: Distinct numbers, ascending.
        often: Whether each is frequent enough.
        times: Number of records with each.
    """
    best: tuple[float, list[tuple[float, bool]]] = (0.0, [])
    for many in range(1, min(MAX_CODES, len(values) - 1) + 1):
        if not often[-many]:
            break
        rest, counts = values[:-many], times[:-many]
        if counts.sum() < MIN_OTHER_RECORDS:
            break
        shares = np.cumsum(counts) / counts.sum()
        low, high = (rest[np.searchsorted(shares, tail - 1e-12)] for tail in MIDDLE_QUANTILES)
        gap, reach = values[-many] - rest[-1], high - low
        inner = np.quantile(np.diff(rest), MIN_PARSED_FRACTION) if len(rest) > 1 else math.inf
        widths = MIN_FAR_GAP if len(rest) >= MIN_OTHER_NUMBERS else MIN_FAR_GAP_OF_FEW
        far = bool(reach > 0 and gap > widths * reach and gap > inner)
        near = (
            reach > 0 and gap >= MIN_REPORTED_GAP * reach and gap >= MIN_REPORTED_GAP_RATIO * inner
        )
        if (far or near) and gap > best[0]:
            best = gap, [(float(value), far) for value in values[-many:]]
    return best[1]


def round_bounds_outwards(values: np.ndarray) -> tuple[float, float]:
    """Return bounds of a column: the range of its values, rounded outwards to round numbers.

    Values that look like typing errors are excluded, because they could make the range so wide
    that all other values would be scaled to nearly the same number.
    """
    if not len(values):
        return 0.0, 1.0
    low, high = _find_range_without_outliers(values)
    if low == high:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    if not math.isfinite(high - low):
        return -8e307, 8e307
    least = (high - low) / MAX_ROUND_STEPS
    if not least > 0.0:
        return low, high
    if (values == np.floor(values)).all() and high - low <= MAX_INTEGER_BINS:
        least = 1.0 if RATING_SCALE_STARTS[0] <= low <= RATING_SCALE_STARTS[1] else 5.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next((each * power for each in ROUND_STEPS if each * power >= least), 10 * power)
    if not step > 0.0:
        return low, high
    return _round_to_step(low, step, math.floor), _round_to_step(high, step, math.ceil)


def round_days_outwards(days: np.ndarray) -> tuple[date, date]:
    """Return bounds of a date column: the range of its dates, rounded outwards to years or months.

    Dates that look like typing errors are excluded.

    Args:
        days: Days since 1970-01-01, (values,).
    """
    first, last = map(dates.convert_days_to_date, _find_range_without_outliers(days))
    if last.year - first.year >= MIN_WHOLE_YEARS:
        return date(first.year, 1, 1), date(last.year, 12, 31)
    after = date(last.year + last.month // 12, last.month % 12 + 1, 1) if last.year < 9999 else None
    ends = date(9999, 12, 31) if after is None else after - timedelta(days=1)
    return date(first.year, first.month, 1), ends


def _find_range_without_outliers(values: np.ndarray) -> tuple[float, float]:
    """Return the minimum and maximum of the values that are not far from the middle quantiles."""
    low, high = (
        float(each) for each in np.quantile(values, MIDDLE_QUANTILES, method="closest_observation")
    )
    reach = OUTLIER_WIDTHS * (high - low) if high > low else math.inf
    near = values[(values >= low - reach) & (values <= high + reach)]
    return float(near.min()), float(near.max())


def _round_to_step(value: float, step: float, towards: Callable[[float], int]) -> float:
    """Round outwards to a multiple of a step, without digits that float64 rounding causes."""
    if not abs(value / step) < 1e12:
        return value
    found = float(f"{towards(value / step) * step:.12g}")
    outside = found <= value if towards is math.floor else found >= value
    return found if outside else value
