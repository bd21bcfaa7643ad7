"""A column's values, as the curator's check reads them: what they look like, and what they may be.

It reads every value without a charge, for `data.check` alone.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pasearch.data import dates
from pasearch.data.cells import ColumnCells, Reading, as_numbers, as_text
from pasearch.data.column import IDENTIFIER, WORD, Column
from pasearch.data.numbers import PLAIN, NumberForm, canonical_number, fitting_forms
from pasearch.data.units import share_read, units_of

TAILS = (0.01, 0.99)
"""Between which quantiles the middle of a column lies."""

MOSTLY = 0.9
"""The share of a column's values that must be numbers, or dates, for it to hold them."""

MARKS = frozenset(
    {"n.a.", "n.a", "na", "n/a", "none", "null", "nil", "nan", "unknown", "unk", "undefined",
     "missing", "not available", "not applicable", "not known", "not recorded", "no data",
     "no answer", "refused", "k.a.", "keine angabe", "unbekannt", "inconnu", "desconocido",
     "#value!", "#div/0!", "#ref!", "#name?", "#num!", "#null!"}
)  # fmt: skip
"""Texts that often mean an absent cell, in small letters; so does one of no letter and no digit."""

OFTEN = 0.01
"""Least share of the records in which a number occurs that may mean missing."""

TIMES = 3
"""Least number of records in which it occurs."""

REST = 10
"""Least number of records with other numbers: fewer do not show that one lies apart."""

MAX_CODES = 4
"""Most numbers at one end of a column that may mean missing, such as 97, 98 and 99."""

FAR = 1.5
"""Least gap, in widths of the other numbers, of a number that is proposed to mean missing."""

FEW_RIVALS = 3
"""Fewer other different numbers than these do not show how wide the column is."""

FAR_OF_FEW = 10.0
"""`FAR` where the other numbers are so few: 4 is not far from 1 and 2."""

NEAR = 0.1
"""Least gap, in widths of the other numbers, of a number that is named as if it meant missing."""

INNER_GAPS = 3
"""The same in gaps between the other numbers."""

COMPACT = "%Y%m%d"
"""The format of dates that look like whole numbers."""

CENTURIES = (1900, 2100)
"""Of whole numbers that are read as dates: from which year to which."""

FEW = 20
"""So few different whole numbers in the target are classes; in a feature, no identifier."""

WORDY = 4
"""So many words in a value, on average, are a text."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A column and its values, read in each of the ways that the questions below need.

    Args:
        column: What is declared of it.
        cells: (rows,).
        texts: Each cell, None where it is empty.
        marked: How often which text occurs that means missing, as it is declared or usual.
        counts: How often each other text occurs.
        is_target: Whether the column is predicted.
        decimal: What stands before decimals in other columns, where that decides about this one.
    """

    column: Column
    cells: ColumnCells
    texts: list[str | None]
    marked: Mapping[str, int]
    counts: Counter[str]
    is_target: bool
    decimal: str | None = None

    @classmethod
    def of(
        cls, column: Column, cells: ColumnCells, is_target: bool, decimal: str | None = None
    ) -> Seen:
        texts = as_text(cells)
        counts: Counter[str] = Counter(text for text in texts if text is not None)
        marks = set(map(column.key, column.reading.marks))
        marked = {text: counts.pop(text) for text in sorted(counts) if column.key(text) in marks}
        return cls(
            column=column, cells=cells, texts=texts, marked=marked, counts=counts,
            is_target=is_target, decimal=decimal,
        )  # fmt: skip

    def rows(self, texts: Collection[str | None]) -> np.ndarray:
        """Return where one of some texts stands, bool, (rows,)."""
        return np.fromiter((text in texts for text in self.texts), bool, len(self.texts))

    @cached_property
    def words(self) -> list[str]:
        """The texts that often mean missing, though nothing says so."""
        return [text for text in self.counts if may_mean_missing(text)]

    @cached_property
    def values(self) -> Mapping[str, int]:
        """How often each text occurs that may be a value."""
        if not self.words:
            return self.counts
        return {text: times for text, times in self.counts.items() if text not in self.words}

    @cached_property
    def present(self) -> int:
        """How many cells may hold a value."""
        return sum(self.values.values())

    @cached_property
    def open_form(self) -> bool:
        """Whether how its numbers are written is to be found."""
        told = self.column.decimal is not None or self.column.thousands is not None
        return not (told or self.column.declared)

    @cached_property
    def fits(self) -> list[NumberForm]:
        """The forms in which the most values are numbers, the likeliest first."""
        form = self.column.reading.form
        if not self.open_form:
            return [form]
        if self.decimal is None:
            # The usual case, and all values at once.
            if np.isfinite(self.usual_numbers).sum() == self.present:
                return [form]
        fits = fitting_forms(self.values, decimal=self.decimal)
        read = [f for f in fits if share_read(self.values, f) >= MOSTLY]
        if not read and (units := units_of(self.values)):
            fits = fitting_forms(self.values, decimal=self.decimal, units=units) or fits
        return fits

    @cached_property
    def form(self) -> NumberForm:
        """How its numbers are written."""
        return self.fits[0] if self.fits else PLAIN

    @cached_property
    def usual_numbers(self) -> np.ndarray:
        """Each cell as a number where no form has to be found; NaN where it is none."""
        return as_numbers(self.cells, self.column.reading)

    @cached_property
    def numbers(self) -> np.ndarray:
        """Each cell as a number, float64, (rows,); NaN where it is none."""
        reading = self.column.reading
        if self.form == reading.form:
            return self.usual_numbers
        return as_numbers(self.cells, Reading(reading.marks, self.form))

    @cached_property
    def finite(self) -> np.ndarray:
        """The values that are numbers."""
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def whole(self) -> bool:
        """Whether no value is a number with a fraction."""
        return bool((self.finite == np.floor(self.finite)).all())

    @cached_property
    def formats(self) -> list[str | None]:
        """The formats in which the most values are dates, the likeliest first; None is ISO."""
        if self.column.kind is not None:
            return [self.column.format] if self.column.kind == "date" else []
        if self.numeric:
            first, last = (year * 10_000 for year in CENTURIES)
            if not (self.whole and first < self.finite.min() <= self.finite.max() < last):
                return []
            eight = all(len(text) == 8 and text.isdecimal() for text in self.values)
            days = [dates.days_of(text, COMPACT) for text in self.values] if eight else [math.nan]
            return [] if any(map(math.isnan, days)) else [COMPACT]
        return dates.fitting_formats(self.values, least=MOSTLY)

    @cached_property
    def days(self) -> dict[str, float]:
        """The texts that are dates, and which, in days since 1970-01-01."""
        found = {text: dates.days_of(text, self.formats[0]) for text in self.values}
        return {text: day for text, day in found.items() if not math.isnan(day)}

    @cached_property
    def numeric(self) -> bool:
        """Whether nearly all values are numbers."""
        many = len(self.finite)
        return 0 < many and many >= MOSTLY * self.present

    @cached_property
    def constant(self) -> bool:
        """Whether there are not two values that differ."""
        return len(self.counts) < 2

    @cached_property
    def identifier(self) -> bool:
        """Whether no value occurs twice; or most do not, and the name says what they are."""
        distinct = len(self.values)
        unique = distinct == self.present or (self._called and distinct > self.present / 2)
        # Nobody groups the digits of an identifier.
        return unique and distinct > FEW and self.whole and self.form == PLAIN and not self.wordy

    @cached_property
    def named(self) -> bool:
        """Whether the name says that its many texts tell people apart."""
        return self._called and not self.numeric and len(self.values) > FEW

    @cached_property
    def _called(self) -> bool:
        return IDENTIFIER.search(self.column.name) is not None

    @cached_property
    def wordy(self) -> bool:
        """Whether the values are texts of several words, mostly different."""
        if not len(self.values) > max(FEW, self.present / 2):
            return False
        words = sum(len(WORD.findall(text)) * times for text, times in self.values.items())
        return words >= WORDY * self.present

    @cached_property
    def classes(self) -> bool:
        """Whether the values are numbers and few: classes, if they are to be predicted."""
        return len(self.names) <= FEW and self.whole

    @cached_property
    def coded(self) -> bool:
        """Whether its whole numbers are codes: with leading zeros, or too long for a float64."""
        digits = [text for text in self.values if text.isascii() and text.isdecimal()]
        if len(digits) < MOSTLY * len(self.values):
            return False
        zeros = sum(self.values[text] for text in digits if text[0] == "0" and len(text) > 1)
        alike = len({len(text) for text in digits}) == 1
        return zeros >= (1 if alike else max(1, OFTEN * self.present)) or (
            len({self.key(text) for text in digits if text[0] != "0"})
            > len({float(text) for text in digits if text[0] != "0"})
        )

    @cached_property
    def kind(self) -> str:
        """What the column is declared to hold, or seems to."""
        if self.column.kind is not None:
            return self.column.kind
        if self.is_target:
            return "number" if self.numeric and not (self.classes or self.coded) else "category"
        if self.constant:
            return "ignore"
        if self.formats:
            return "date"
        if self.identifier or self.named or (self.wordy and not self.numeric):
            return "ignore"
        return "number" if self.numeric and not self.coded else "category"

    @cached_property
    def codes(self) -> list[tuple[float, bool]]:
        """The numbers that may mean missing, and whether they lie far from all others.

        Such a number repeats, and lies at an end of the column: far from the others if the gap is
        wider than they are. It is named if the gap is wide for the column, or if it is the only
        number below 0.
        """
        found, times = np.unique(self.finite, return_counts=True)
        if len(found) < 2:
            return []
        often = times >= max(TIMES, OFTEN * len(self.finite))
        codes: list[tuple[float, bool]] = []
        for sign, down in ((-1.0, -1), (1.0, 1)):
            own = (sign * found[::down], often[::down], times[::down])
            codes += [(sign * value, far) for value, far in _codes_above(*own)]
        alone = found[0] == -1 and often[0] and len(found) > FEW_RIVALS
        return codes or ([(-1.0, False)] if alone and len(self.finite) - times[0] >= REST else [])

    @cached_property
    def twins(self) -> list[list[str]]:
        """The values that differ in capitals alone, together."""
        if self.column.case is False:
            return []
        texts = [text for text in self.counts if canonical_number(text) is None]
        return alike(texts, str.casefold)

    @cached_property
    def case(self) -> bool | None:
        """Whether capitals matter, as of `Column`."""
        return False if self.twins else self.column.case

    @cached_property
    def names(self) -> Counter[str]:
        """How often each category occurs; the commonest spelling stands for its twins."""
        spelled: dict[str, str] = {}
        names: Counter[str] = Counter()
        for text in by_frequency(self.counts):
            own = canonical_number(text) or text
            names[spelled.setdefault(self.key(text), own)] += self.counts[text]
        return names

    def key(self, text: str) -> str:
        """Return what a category is compared by, as it is proposed; see `Column.key`."""
        fold = str.casefold if self.case is False else str
        return canonical_number(text) or fold(text)


def may_mean_missing(text: str) -> bool:
    """Return whether a text is one that often means an absent cell."""
    return text.casefold() in MARKS or not any(map(str.isalnum, text))


def alike(texts: Collection[str], key: Callable[[str], str]) -> list[list[str]]:
    """Return the texts that a key takes for one, sorted, where there are several."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts):
        groups.setdefault(key(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _codes_above(
    values: np.ndarray, often: np.ndarray, times: np.ndarray
) -> list[tuple[float, bool]]:
    """Return the numbers at the upper end that may mean missing, and whether they lie far above.

    Args:
        values: Every different number, rising.
        often: Which of them repeat.
        times: How often each occurs.
    """
    best: tuple[float, list[tuple[float, bool]]] = (0.0, [])
    for many in range(1, min(MAX_CODES, len(values) - 1) + 1):
        if not often[-many]:
            break
        rest, counts = values[:-many], times[:-many]
        if counts.sum() < REST:
            break
        shares = np.cumsum(counts) / counts.sum()
        low, high = (rest[np.searchsorted(shares, tail - 1e-12)] for tail in TAILS)
        gap, reach = values[-many] - rest[-1], high - low
        inner = np.quantile(np.diff(rest), MOSTLY) if len(rest) > 1 else math.inf
        widths = FAR if len(rest) >= FEW_RIVALS else FAR_OF_FEW
        far = bool(reach > 0 and gap > widths * reach and gap > inner)
        near = reach > 0 and gap >= NEAR * reach and gap >= INNER_GAPS * inner
        if (far or near) and gap > best[0]:
            best = gap, [(float(value), far) for value in values[-many:]]
    return best[1]


def by_frequency(counts: Counter[str]) -> list[str]:
    """Return texts, the commonest first."""
    return sorted(counts, key=lambda value: (-counts[value], value))
