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
from pasearch.data.numbers import PLAIN, NumberForm, fitting_forms

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

CODES = np.array([-1, *(sign * int(str(d) * k) for d in (8, 9) for k in range(1, 7)
                        for sign in (-1, 1) if sign < 0 or k > 1)], float)  # fmt: skip
"""Numbers that often mean an absent cell, where they lie apart from the others."""

OFTEN, TIMES = 0.01, 3
"""Such a number occurs in this share of the records at least, and so many times."""

REST = 10
"""So few other numbers do not show that one lies apart."""

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
        marked = {text: counts.pop(text) for text in sorted(column.reading.marks & counts.keys())}
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
        return fitting_forms(self.values, decimal=self.decimal)

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
        return len(self.counts) <= FEW and self.whole

    @cached_property
    def kind(self) -> str:
        """What the column is declared to hold, or seems to."""
        if self.column.kind is not None:
            return self.column.kind
        if self.is_target:
            return "number" if self.numeric and not self.classes else "category"
        if self.constant:
            return "ignore"
        if self.formats:
            return "date"
        if self.identifier or self.named or (self.wordy and not self.numeric):
            return "ignore"
        return "number" if self.numeric else "category"

    @cached_property
    def codes(self) -> list[tuple[int, bool]]:
        """The numbers that may mean missing, and whether they lie far from all others."""
        if not np.isin(self.finite, CODES).any():
            return []
        found, times = np.unique(self.finite, return_counts=True)
        often = times >= max(TIMES, OFTEN * len(self.finite))
        suspects = found[np.isin(found, CODES) & often]
        rest = self.finite[~np.isin(self.finite, suspects)]
        if not len(suspects) or len(rest) < REST:
            return []
        low, high = np.quantile(rest, TAILS)
        reach = high - low
        return [
            (int(value), bool(reach > 0 and not low - reach <= value <= high + reach))
            for value in suspects
            if not rest.min() <= value <= rest.max()
        ]

    @cached_property
    def twins(self) -> list[list[str]]:
        """The values that differ in capitals alone, together."""
        if self.column.case is False:
            return []
        return alike(self.counts, str.casefold)

    @cached_property
    def case(self) -> bool | None:
        """Whether capitals matter, as of `Column`."""
        return False if self.twins else self.column.case

    @cached_property
    def names(self) -> Counter[str]:
        """How often each category occurs; the commonest spelling stands for its twins."""
        if self.case is not False:
            return self.counts
        spelled: dict[str, str] = {}
        names: Counter[str] = Counter()
        for text in by_frequency(self.counts):
            names[spelled.setdefault(text.casefold(), text)] += self.counts[text]
        return names


def may_mean_missing(text: str) -> bool:
    """Return whether a text is one that often means an absent cell."""
    return text.casefold() in MARKS or not any(map(str.isalnum, text))


def alike(texts: Collection[str], key: Callable[[str], str]) -> list[list[str]]:
    """Return the texts that a key takes for one, sorted, where there are several."""
    groups: dict[str, list[str]] = {}
    for text in sorted(texts):
        groups.setdefault(key(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def by_frequency(counts: Counter[str]) -> list[str]:
    """Return texts, the commonest first."""
    return sorted(counts, key=lambda value: (-counts[value], value))
