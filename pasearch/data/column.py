"""One column of a table: what is public about it, and how a cell becomes numbers in [0, 1].

| kind | what a cell becomes | numbers |
|---|---|---|
| `number` | (clamp(x) - low) / (high - low); its bin; whether it is missing | bins + 2 |
| `category` | which of the declared ones it is, or `other`; whether it is missing | them + 2 |
| `text` | for each word of the vocabulary, whether it occurs; whether it is missing | words + 1 |
| `date` | its days since `lower`, a number; year, month, weekday (hour), categories | 12 + them |
| `ignore` | nothing | 0 |

A number has ten bins, unless others are declared: a linear model on bins may bend. Where its bounds
are estimated privately, so are the edges between its bins, at quantiles; with declared bounds the
bins are of equal width, or at quantiles where `bins = "quantiles"` asks for it.
Missing is an empty cell, `?`, what else is declared or usual (`data.cells`), and in a column of
numbers or dates whatever is none. How numbers and dates are written is declared.

A date becomes columns of its own, its `pieces`: `signed.days`, `signed.year` and so on. Whoever
asks what an encoded record holds looks at these.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from pasearch.data import dates
from pasearch.data.cells import (
    DEFAULT_MISSING_MARKS,
    MISSING_MARKS,
    CellFormat,
    ColumnCells,
    check_missing_marks,
    convert_to_numbers,
    convert_to_string,
    convert_to_strings,
    count_strings,
    map_cells,
    map_cells_to_integers,
    normalize_unicode,
)
from pasearch.data.numbers import build_number_form, canonicalize_number
from pasearch.data.schema import needed, rising
from pasearch.errors import UsageError

KINDS = ("number", "category", "text", "date", "ignore")

BINS = 10
"""How many bins a number has unless its column says otherwise."""

QUANTILES = "quantiles"
"""What `bins` says where the edges between them are to be estimated privately."""

WORD = re.compile(r"[£$€]|[^\W_]+(?:['\u2019][^\W_]+)*")
"""What counts as a word: letters and digits, apostrophes inside; or the sign of a currency."""

IDENTIFIER = re.compile(
    r"(?:^|[^A-Za-z])(?:id|ID|Id|uuid|UUID|guid|GUID|ssn|SSN)$|[a-z]I[Dd]$|^Unnamed: 0$"
    r"|^(?i:index)$|^(?i:row|record)[ _]?(?i:no|nr|number)$"
    r"|(?:^|[ _])(?i:surname|(?:first|last|full)[ _]?name|address|e-?mail|phone)$"
)
"""What identifiers are called, more often than not."""

MOST_BINS = 10_000
"""The most bins of a number: each is a feature, and a bin of no record teaches nothing."""

MOST_NAMES = 100_000
"""The most categories of a column, or words of a vocabulary: each is a feature."""

TRUTH = (("False", "false", "FALSE", "0"), ("True", "true", "TRUE", "1"))
"""The spellings of the two truth values, of which a column of two categories may declare any."""

MOST_YEARS = 30
"""So many years of a date are categories; of more, the year is a number."""

READING_KEYS = ("missing", "decimal", "thousands")
"""How the cells of a column are read."""

KEYS_OF = {
    "number": ("low", "high", "bins", "units"),
    "category": ("categories", "case"),
    "text": ("vocabulary",),
    "date": ("lower", "upper", "format", "parts"),
}
"""What is declared of columns of one kind alone."""

COLUMN_KEYS = (
    "kind", "low", "high", "bins", "units", "categories", "case", "vocabulary", "lower", "upper",
    "format", "parts", *READING_KEYS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What is declared about one column.

    Args:
        name: As in the header.
        kind: One of `KINDS`; None is not declared, unless what is declared tells the kind.
        low: Lower bound of a number; values below are clamped. None: to be estimated privately.
        high: Upper bound of a number.
        bins: Of a number: how many of equal width, or the edges between them, rising, or
            "quantiles", to be estimated privately; 0 for none. None is `BINS`, of equal width where
            the bounds are declared, and at quantiles where they are estimated.
        units: Of a number: texts that may stand before or behind it, such as "$" or "kg", and by
            how much each multiplies it: `{"$": 1, "K": 1000}`.
        categories: Of a category; None: to be estimated privately.
        vocabulary: Of a text: single words in lower case.
        case: Of a category: whether capitals matter; False takes YES, Yes and yes for one, and
            what means missing too.
        lower: The first day of a date, "2015-01-01" or a `datetime.date`; those before are clamped.
        upper: The last day of a date.
        format: How dates are written, such as "%d.%m.%Y"; ISO (2015-01-31) is read in any case.
        parts: What is told of a date beside its days since `lower`: some of "year", "month",
            "weekday", "hour"; None: all but the hour.
        missing: What an absent cell is written as, beside an empty one, `?` and what is usual
            (`data.cells.USUAL_MARKS`); a number means every cell of that value.
        decimal: What stands before the decimals of a number, "." or ","; None: a point.
        thousands: What stands between groups of its digits; None: nothing.

    Raises:
        UsageError: Something declared that is no bound, category or word, or not of this kind.
    """

    name: str
    kind: str | None = None
    low: float | None = None
    high: float | None = None
    bins: int | tuple[float, ...] | str | None = None
    units: tuple[tuple[str, float], ...] | None = None
    categories: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None
    case: bool | None = None
    lower: str | None = None
    upper: str | None = None
    format: str | None = None
    parts: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = None
    decimal: str | None = None
    thousands: str | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise UsageError(f"A column's name is {self.name!r}: expected a name.")
        self._set("name", normalize_unicode(self.name))
        self._set("kind", self._checked_kind())
        self._check_reading()
        if self.kind == "number":
            self._check_bounds()
            self._set("bins", self._checked_bins())
        if self.kind == "category":
            self._check_categories()
        if self.kind == "text":
            self._set("vocabulary", self._checked_vocabulary())
        if self.kind == "date":
            self._check_date()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _checked_kind(self) -> str | None:
        by_kind = {
            kind: [key for key in keys if getattr(self, key) is not None]
            for kind, keys in KEYS_OF.items()
        }
        told = [kind for kind, keys in by_kind.items() if keys]
        kind = told[0] if self.kind is None and told else self.kind
        if kind is not None and kind not in KINDS:
            raise self._refusal(f"its kind is {kind!r}: expected one of {', '.join(KINDS)}.")
        alien = [key for other, keys in by_kind.items() if other != kind for key in keys]
        if alien:
            raise self._refusal(
                f"it is of kind {kind!r}, which has no {alien[0]}: leave that out, or change the "
                "kind."
            )
        return kind

    def _check_reading(self) -> None:
        """Check how cells are read: a mark that is declared is no category."""
        if self.units is not None:
            given = self.units.items() if isinstance(self.units, Mapping) else self.units
            try:
                units = tuple((normalize_unicode(unit), float(factor)) for unit, factor in given)
            except (TypeError, ValueError, OverflowError):
                raise self._refusal(
                    f"units is {self.units!r}: expected the factor of each, such as "
                    '{ "$" = 1, "K" = 1000 }.'
                ) from None
            self._set("units", units)
        try:
            build_number_form(self.decimal, self.thousands, self.units)
        except UsageError as error:
            raise self._refusal(str(error)) from None
        if self.missing is not None:
            try:
                self._set("missing", check_missing_marks(self.missing))
            except UsageError as error:
                raise self._refusal(str(error)) from None

    def _check_categories(self) -> None:
        if self.case is not None and type(self.case) is not bool:
            raise self._refusal(f"case is {self.case!r}: expected true or false.")
        if self.categories is None:
            return
        names = self._checked_names("categories", self.categories)
        marks = set(map(self.key, self.missing or ()))
        if both := [name for name in names if self.key(name) in marks]:
            raise self._refusal(
                f"{both[0]!r} is a category and means missing too: leave it out of one of them. "
                "If it means missing in other columns alone, write missing = [] for this one."
            )
        self._set("categories", names)

    def _check_date(self) -> None:
        days = [dates.normalize_day(each) for each in (self.lower, self.upper)]
        first, last = days
        if first is None or last is None or not first < last:
            raise self._refusal(
                f"lower is {self.lower!r} and upper is {self.upper!r}: expected two days, lower "
                'before upper, such as "2015-01-01" and "2024-12-31". They cannot be estimated '
                "privately: take what a form, a law or a study's plan allows."
            )
        self._set("lower", first)
        self._set("upper", last)
        if self.format is not None and (problem := dates.find_format_problem(self.format)):
            raise self._refusal(f"format is {self.format!r}: {problem}.")
        if self.parts is not None:
            told = tuple(self.parts) if isinstance(self.parts, list | tuple) else ("",)
            if not all(each in dates.DATE_PARTS and told.count(each) == 1 for each in told):
                raise self._refusal(
                    f"parts is {self.parts!r}: expected some of {', '.join(dates.DATE_PARTS)}."
                )
            self._set("parts", told)

    def _check_bounds(self) -> None:
        if self.low is None and self.high is None:
            return
        if (bounds := rising(self.low, self.high)) is None:
            raise self._refusal(
                f"low is {self.low!r} and high is {self.high!r}: expected two finite numbers, "
                "low < high."
            )
        self._set("low", bounds[0])
        self._set("high", bounds[1])

    def _checked_bins(self) -> int | tuple[float, ...] | str | None:
        bins = self.bins
        if bins is None or bins == QUANTILES:
            return bins
        if isinstance(bins, Integral) and not isinstance(bins, bool) and int(bins) >= 0:
            self._check_most("bins", int(bins), MOST_BINS)
            return int(bins)
        if isinstance(bins, Sequence) and not isinstance(bins, str):
            self._check_most("bins", len(bins), MOST_BINS)
            numbers = all(isinstance(each, Real) and not isinstance(each, bool) for each in bins)
            try:
                edges = tuple(float(each) for each in bins) if numbers else (math.nan,)
            except OverflowError:
                edges = (math.nan,)
            if all(map(math.isfinite, edges)) and all(a < b for a, b in pairwise(edges)):
                return edges
        raise self._refusal(
            f"bins is {bins!r}: expected how many bins of equal width, a rising list of the edges "
            "between them, or 'quantiles'."
        )

    def _checked_names(self, what: str, names: object) -> tuple[str, ...]:
        """Return names without space around them, no two the same, none that means missing."""
        if not isinstance(names, Sequence) or isinstance(names, str):
            raise self._refusal(f"{what} is {names!r}: expected a list of texts.")
        self._check_most(what, len(names), MOST_NAMES)
        checked: dict[str, str] = {}
        for place, each in enumerate(names, 1):
            text = convert_to_string(each) if isinstance(each, str | Real) else None
            if text is None:
                raise self._refusal(
                    f"{what} holds {each!r}: expected texts or numbers. An empty cell and '?' are "
                    "missing by themselves."
                )
            if (first := checked.setdefault(self.key(text), text)) != text or len(checked) < place:
                how = "" if first == text else f", also as {first!r}"
                raise self._refusal(f"{what} holds {text!r} twice{how}: leave one out.")
        return tuple(checked.values())

    def _folded(self, text: str) -> str:
        return text.casefold() if self.case is False else text

    def key(self, text: str) -> str:
        """Return what a category is compared by: a number is its value, capitals as declared."""
        number = canonicalize_number(text)
        return self._folded(text) if number is None else number

    def _checked_vocabulary(self) -> tuple[str, ...]:
        words = self._checked_names("vocabulary", self.vocabulary or ())
        if not words:
            raise self._refusal(
                "it is text without a vocabulary, which cannot be estimated privately: declare a "
                "list of words that you know without looking at the records."
            )
        for word in words:
            if WORD.fullmatch(word) is None or word != word.lower():
                raise self._refusal(
                    f"its vocabulary holds {word!r}: expected one word in lower case."
                )
        return words

    def _check_most(self, what: str, count: int, most: int) -> None:
        if count > most:
            many = f"{count:,}" if count < 2**64 else "a number of more than 64 bits"
            raise self._refusal(
                f"{what}: {many}: expected at most {most:,}, because each is a feature of its own."
            )

    def _refusal(self, what: str) -> UsageError:
        return UsageError(f"Column {self.name!r}: {what}")

    @property
    def declared(self) -> bool:
        """Whether its cells can be encoded."""
        if self.kind == "number":
            return self.low is not None and self.bins != QUANTILES
        return self.categories is not None if self.kind == "category" else self.kind is not None

    @property
    def reading(self) -> CellFormat:
        """How its cells are read."""
        usual = DEFAULT_MISSING_MARKS
        if self.categories:
            named = set(map(self._folded, self.categories))
            usual = frozenset(mark for mark in usual if self._folded(mark) not in named)
        marks = MISSING_MARKS | usual | frozenset(self.missing or ())
        form = build_number_form(self.decimal, self.thousands, self.units)
        return CellFormat(marks, form, truth=self.kind == "number")

    def read_as(self, usual: Mapping[str, Any]) -> Column:
        """Return the column, read as its table is where nothing else is declared of it.

        Args:
            usual: The table's values of `READING_KEYS`.
        """
        own = {key: getattr(self, key) for key in READING_KEYS}
        if own["decimal"] is None and own["thousands"] is None:
            own |= {key: usual.get(key) for key in ("decimal", "thousands")}
        if own["missing"] is None:
            own["missing"] = usual.get("missing")
        same = self.kind == "ignore" or all(getattr(self, key) == own[key] for key in own)
        return self if same else replace(self, **own)

    @property
    def pieces(self) -> tuple[Column, ...]:
        """What an encoded record holds of it, as columns of no dates: itself, or a date's."""
        return _pieces(self) if self.kind == "date" else (self,)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """A number's (low, high); None where they are not known yet."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def day_bounds(self) -> tuple[float, float]:
        """The first moment of a date's bounds and the last one, in days since 1970-01-01."""
        first, last = (
            dates.count_days_to(needed(self.lower)),
            dates.count_days_to(needed(self.upper)),
        )
        return first, last + 1 - 1 / dates.SECONDS_PER_DAY

    @property
    def open_bins(self) -> bool:
        """Whether the edges between a number's bins are estimated where the rest of it is."""
        return self.bins in (None, QUANTILES)

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges between the bins of a number; an edge belongs to the bin above it."""
        bins = BINS if self.bins is None or isinstance(self.bins, str) else self.bins
        if isinstance(bins, tuple):
            return bins
        low, high = needed(self.low), needed(self.high)
        return tuple(np.linspace(low, high, bins + 1)[1:-1].tolist()) if bins > 1 else ()

    @property
    def scaled_edges(self) -> tuple[float, ...]:
        """The edges as the number itself is scaled, in [0, 1]; those beyond a bound lie on it."""
        return tuple(np.clip(self._scale_rows(np.array(self.edges)), 0.0, 1.0).tolist())

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        if self.kind == "number":
            bins = len(self.bins) + 1 if isinstance(self.bins, tuple) else self.bins
            many = bins if isinstance(bins, int) else BINS
            return 2 + (many if many > 1 else 0)
        if self.kind == "ignore":
            return 0
        if self.kind == "date":
            return sum(piece.width for piece in self.pieces)
        if self.kind == "category":
            return len(needed(self.categories)) + 2
        return len(needed(self.vocabulary)) + 1

    def describe(self) -> str:
        """Return the column in one readable line."""
        if self.kind == "number":
            cut = isinstance(self.bins, tuple) and len(self.bins)
            own = f", {cut + 1} bins" if cut else ""
            return f"{self.name}: a number in [{self.low:g}, {self.high:g}]{own}"
        if self.kind == "category":
            return f"{self.name}: one of {', '.join(needed(self.categories)) or 'no known value'}"
        if self.kind == "date":
            return f"{self.name}: a date from {self.lower} to {self.upper}"
        return f"{self.name}: {self.kind}"

    def feature_names(self) -> list[str]:
        """Return a readable name for each number that a cell becomes."""
        if self.kind == "ignore":
            return []
        if self.kind == "date":
            return [name for piece in self.pieces for name in piece.feature_names()]
        if self.kind == "number":
            own = [self.name, *self._bin_names()]
        elif self.kind == "category":
            own = [f"{self.name} = {each}" for each in needed(self.categories)]
            own.append(f"{self.name} = other")
        else:
            own = [f"{self.name} has {word!r}" for word in needed(self.vocabulary)]
        return [*own, f"{self.name} missing"]

    def _bin_names(self) -> list[str]:
        edges = self.edges
        if not edges:
            return []
        inner = [f"{self.name} in [{a:.6g}, {b:.6g})" for a, b in pairwise(edges)]
        return [f"{self.name} < {edges[0]:.6g}", *inner, f"{self.name} >= {edges[-1]:.6g}"]

    def encode(self, cells: ColumnCells, *, out: np.ndarray) -> None:
        """Write what the cells become.

        Args:
            cells: (rows,).
            out: (rows, width), all 0; written to.
        """
        if self.kind != "date":
            self._encode(cells, out)
            return
        days, (first, end) = self.days(cells), self.day_bounds
        clamped, start = np.clip(days, first, end), 0
        for part, piece in zip(("days", *self.told_parts), self.pieces, strict=True):
            own = out[:, start : start + piece.width]
            start += piece.width
            if part == "days":
                piece._encode(clamped - first, own)
                continue
            # A year beyond the bounds is the last one; a month is that of the day itself.
            values = dates.extract_date_part(clamped if part == "year" else days, part)
            if piece.kind == "number":
                piece._encode(values, own)
            else:
                values = values - (dates.parse_year(needed(self.lower)) if part == "year" else 0)
                known = np.isfinite(values)
                codes = np.where(known, values, piece.width - 1).astype(np.int64)
                own[np.arange(len(own)), codes] = 1.0

    @property
    def told_parts(self) -> tuple[str, ...]:
        """What is told of a date beside its days."""
        return dates.DEFAULT_DATE_PARTS if self.parts is None else self.parts

    def days(self, cells: ColumnCells) -> np.ndarray:
        """Return the cells of a date as days since 1970-01-01, float64, NaN where missing."""
        marks = self.reading.marks
        days = map_cells(
            lambda cell: dates.parse_days(convert_to_string(cell, marks), self.format), cells
        )
        return np.array(days, np.float64)

    def codes(self, cells: ColumnCells) -> np.ndarray:
        """Return which category each cell is, int64, (rows,): k of k is another, k + 1 missing."""
        places = {self.key(name): i for i, name in enumerate(needed(self.categories))}
        other, missing = len(places), len(places) + 1
        if all(len({self.key(each) for each in same} & places.keys()) == 1 for same in TRUTH):
            # Two truth values: True and 1 are one, as for Python.
            for same in TRUTH:
                own = next(places[key] for key in map(self.key, same) if key in places)
                places |= {self.key(each): own for each in same}
        places |= dict.fromkeys(self._mark_keys, missing)

        def place(cell: object) -> int:
            text = convert_to_string(cell)
            return missing if text is None else places.get(self.key(text), other)

        return map_cells_to_integers(place, cells)

    def count(self, cells: ColumnCells) -> Counter[str]:
        """Return how often each category occurs, by its `key`; what is missing is not counted."""
        marks, counts = self._mark_keys, Counter[str]()
        for text, times in count_strings(cells, self.reading).items():
            if (key := self.key(text)) not in marks:
                counts[key] += times
        return counts

    @property
    def _mark_keys(self) -> frozenset[str]:
        return frozenset(map(self.key, self.reading.marks))

    def _encode(self, cells: ColumnCells, out: np.ndarray) -> None:
        """Write the features of any column but a date, (rows, width)."""
        rows = np.arange(len(out))
        if self.kind == "number":
            values, known = self._clamped(cells)
            edges, missing = self.edges, self.width - 1
            # Without bins, a known number sets no other feature: it overwrites the 1.
            bins = 1 + np.searchsorted(edges, values, side="right") if edges else 0
            out[rows, np.where(known, bins, missing)] = 1.0
            out[:, 0] = np.where(known, self._scale_rows(values), 0.0)
        elif self.kind == "category":
            out[rows, self.codes(cells)] = 1.0
        elif self.kind == "text":
            places = {word: i for i, word in enumerate(needed(self.vocabulary))}
            for row, text in zip(out, convert_to_strings(cells, self.reading), strict=True):
                row[-1] = text is None
                for word in WORD.findall((text or "").lower()):
                    if word in places:
                        row[places[word]] = 1.0

    def scale(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers clamped and scaled to [0, 1], float64, 0 if missing; and which are not."""
        values, known = self._clamped(cells)
        return self._scale_rows(values), known

    def _clamped(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers within the bounds, the lower one if missing; and which are not."""
        low, high, values = (
            needed(self.low),
            needed(self.high),
            convert_to_numbers(cells, self.reading),
        )
        known = np.isfinite(values)
        return np.clip(np.where(known, values, low), low, high), known

    def _scale_rows(self, values: np.ndarray) -> np.ndarray:
        low, high = needed(self.low), needed(self.high)
        return (values - low) / (high - low)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the name, and what is declared."""
        declared = {key: getattr(self, key) for key in COLUMN_KEYS}
        declared["units"] = None if self.units is None else dict(self.units)
        return {"name": self.name} | {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in declared.items()
            if value is not None
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Column:
        """Read what `to_json` wrote."""
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**plain)


@lru_cache(maxsize=4096)
def _pieces(column: Column) -> tuple[Column, ...]:
    """Return the columns that a date becomes."""
    first, last = needed(column.lower), needed(column.upper)
    days = dates.count_days_to(last) - dates.count_days_to(first) + 1
    found = [Column(name=f"{column.name}.days", low=0, high=days)]
    years = range(dates.parse_year(first), dates.parse_year(last) + 1)
    names = {
        "year": [str(year) for year in years],
        "month": [str(month + 1) for month in range(12)],
        "weekday": list(dates.WEEKDAYS),
        "hour": [str(hour) for hour in range(24)],
    }
    for part in column.told_parts:
        name = f"{column.name}.{part}"
        if part == "year" and len(years) > MOST_YEARS:
            found.append(Column(name=name, low=years[0], high=years[-1]))
        else:
            found.append(Column(name=name, categories=tuple(names[part])))
    return tuple(found)
