"""Declaration of one column of a table, and encoding of its cells as features in [0, 1].

| kind | features of a cell | number of features |
|---|---|---|
| `number` | (clamp(x) - low) / (high - low); one indicator per bin; is missing | bins + 2 |
| `category` | one indicator per declared category; is another; is missing | categories + 2 |
| `text` | for each word of the vocabulary, whether it occurs; is missing | words + 1 |
| `text` with `length` | token of each word, in order, divided by `TOKEN_SCALE` | length |
| `date` | days since `lower` as a number; year, month, weekday, hour as categories | their sum |
| `ignore` | none | 0 |

A numeric column has ten bins unless others are declared, so that a linear model can fit a
nonlinear effect. If the bounds are declared, the bins have equal width. If the bounds are estimated
privately, or if `bins = "quantiles"`, the edges of the bins are privately estimated quantiles.

A cell is missing if it is empty, `?`, or a declared or default mark (`data.cells`). In columns of
numbers or dates, a cell that cannot be parsed in the declared notation is missing too.

The tokens of a text are those of its first `length` words; 0 (padding) precedes a shorter text, so
that the last state of a recurrent network is that of its last word. 1 is a word that is not in the
vocabulary; further tokens are the words of the vocabulary, in its order.

A date column is encoded as several columns, its `pieces`. For example, `signed` becomes
`signed.days`, `signed.year` and so on. Code that describes an encoded record uses the pieces.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from pasearch.accounting.checks import convert_to_plain_list
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
    normalize_unicode,
)
from pasearch.data.numbers import build_number_form, canonicalize_number
from pasearch.data.schema import parse_bounds, require_known
from pasearch.data.text_columns import TextColumn
from pasearch.errors import UsageError

KINDS = ("number", "category", "text", "date", "ignore")

DEFAULT_BINS = 10
"""Default number of bins of a numeric column."""

QUANTILE_BINS = "quantiles"
"""Value of `bins` for which the edges of the bins are estimated privately."""

WORD_PATTERN = re.compile(r"[£$€]|[^\W_]+(?:['\u2019][^\W_]+)*")
"""Pattern of a word: letters and digits, with apostrophes inside; or a currency sign."""

IDENTIFIER_NAME_PATTERN = re.compile(
    r"(?:^|[^A-Za-z])(?:id|ID|Id|uuid|UUID|guid|GUID|ssn|SSN)$|[a-z]I[Dd]$|^Unnamed: 0$"
    r"|^(?i:index)$|^(?i:row|record)[ _]?(?i:no|nr|number)$"
    r"|(?:^|[ _])(?i:surname|(?:first|last|full)[ _]?name|address|e-?mail|phone)$"
)
"""Pattern of column names that usually denote identifiers."""

MAX_BINS = 10_000
"""Maximum number of bins of a numeric column: each bin is a feature."""

MAX_DECLARED_VALUES = 100_000
"""Maximum number of categories of a column, or of words in a vocabulary: each is a feature."""

BOOLEAN_SPELLINGS = (("False", "false", "FALSE", "0"), ("True", "true", "TRUE", "1"))
"""Spellings of false and true; a column of two categories may declare any of them."""

MAX_TEXT_LENGTH = 10_000
"""Maximum number of words of a text that are read as tokens."""

MAX_ESTIMATED_WORDS = 998
"""Maximum number of words of a privately estimated vocabulary: 1,000 tokens with padding and the
unknown word, as in Bao et al."""

MAX_COUNTED_WORDS = 16
"""Number of distinct words of a record, the first ones, that count for an estimated vocabulary."""

TOKEN_SCALE = 2**17
"""Value of token 1 is 1 / `TOKEN_SCALE`: a power of two, so that float32 represents token numbers
in [0, 1] exactly. Above the maximum number of words of a vocabulary.
"""

PADDING_TOKEN = 0
"""Token of a position before the first word of a text."""

UNKNOWN_TOKEN = 1
"""Token of a word that is not in the vocabulary."""

FIRST_WORD_TOKEN = 2
"""Token of the first word of a vocabulary; others follow in its order."""

MAX_YEAR_CATEGORIES = 30
"""Maximum number of years that are encoded as categories; more are encoded as a number."""

NOTATION_KEYS = ("missing", "decimal", "thousands")
"""Keys that declare the notation of cells, for one column or for the whole table."""

KEYS_BY_KIND = {
    "number": ("low", "high", "bins", "units"),
    "category": ("categories", "case"),
    "text": ("vocabulary", "length"),
    "date": ("lower", "upper", "format", "parts"),
}
"""Keys that are valid for one kind of column only."""

COLUMN_KEYS = (
    "kind", "low", "high", "bins", "units", "categories", "case", "vocabulary", "length", "lower",
    "upper", "format", "parts", *NOTATION_KEYS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Declaration of one column.

    Args:
        name: Name in the header.
        kind: One of `KINDS`; None: inferred from the other arguments, or not declared.
        low: Lower bound of a numeric column; smaller values are clamped. None: estimated privately.
        high: Upper bound of a numeric column.
        bins: Number of bins of equal width of a numeric column; a rising list of the edges between
            bins; "quantiles" for privately estimated edges; or 0 for no bins. None: `DEFAULT_BINS`,
            of equal width if the bounds are declared, otherwise at quantiles.
        units: Strings that may precede or follow a number, such as "$" or "kg", each with the
            factor that it multiplies the number by: `{"$": 1, "K": 1000}`.
        categories: Categories of a categorical column; None: estimated privately.
        vocabulary: Single words in lower case, for a text column. None: estimated privately if
            `length` is given.
        length: Number of words of a text that are encoded as tokens, in order. None: a text is
            encoded as the set of its words.
        case: Whether categories and missing marks are case-sensitive.
        lower: First day of a date column, "2015-01-01" or a `datetime.date`; earlier: clamped.
        upper: Last day of a date column; later dates are clamped.
        format: Notation of dates, such as "%d.%m.%Y"; ISO dates (2015-01-31) are always read.
        parts: Features of a date in addition to its days since `lower`: some of "year", "month",
            "weekday", "hour". None: all except the hour.
        missing: Marks of absent cells, in addition to empty cells, `?` and
            `data.cells.DEFAULT_MISSING_MARKS`. A number matches every cell of that value.
        decimal: Decimal mark of numbers, "." or ","; None: a point.
        thousands: Separator between groups of digits; None: none.

    Raises:
        UsageError: An invalid bound, category or word, or a key that does not fit the kind.
    """

    name: str
    kind: str | None = None
    low: float | None = None
    high: float | None = None
    bins: int | tuple[float, ...] | str | None = None
    units: tuple[tuple[str, float], ...] | None = None
    categories: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None
    length: int | None = None
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
            raise UsageError(f"A column's name is {self.name!r}: expected a non-empty string.")
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise self._make_error("its name cannot be written as UTF-8: rename it.") from None
        self._set("name", normalize_unicode(self.name))
        for key in ("bins", "categories", "vocabulary", "parts", "missing"):
            self._set(key, convert_to_plain_list(getattr(self, key)))
        self._set("kind", self._resolve_kind())
        self._parse_notation()
        if self.kind == "number":
            if self.low is not None or self.high is not None:
                if (bounds := parse_bounds(self.low, self.high)) is None:
                    raise self._make_error(
                        f"low is {self.low!r} and high is {self.high!r}: expected two finite "
                        "numbers, low < high."
                    )
                self._set("low", bounds[0])
                self._set("high", bounds[1])
            self._set("bins", self._parse_bins())
        if self.kind == "category":
            self._parse_categories()
        if self.kind == "text":
            self._parse_text_keys()
        if self.kind == "date":
            self._parse_date_keys()

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _resolve_kind(self) -> str | None:
        """Return the declared kind, or the one that the other keys imply; None if neither."""
        by_kind = {
            kind: [key for key in keys if getattr(self, key) is not None]
            for kind, keys in KEYS_BY_KIND.items()
        }
        declared = [kind for kind, keys in by_kind.items() if keys]
        kind = declared[0] if self.kind is None and declared else self.kind
        if kind is not None and kind not in KINDS:
            raise self._make_error(f"its kind is {kind!r}: expected one of {', '.join(KINDS)}.")
        invalid = [key for other, keys in by_kind.items() if other != kind for key in keys]
        if invalid:
            raise self._make_error(
                f"key {invalid[0]} is not valid for kind {kind!r}: remove it or change the kind."
            )
        return kind

    def _parse_notation(self) -> None:
        """Check and convert the notation of cells: units, decimal mark and missing marks."""
        if self.units is not None:
            given = self.units.items() if isinstance(self.units, Mapping) else self.units
            try:
                units = tuple((normalize_unicode(unit), float(factor)) for unit, factor in given)
            except (TypeError, ValueError, OverflowError):
                raise self._make_error(
                    f"units is {self.units!r}: expected a factor for each unit, such as "
                    '{ "$" = 1, "K" = 1000 }.'
                ) from None
            self._set("units", units)
        try:
            build_number_form(self.decimal, self.thousands, self.units)
        except UsageError as error:
            raise self._make_error(str(error)) from None
        if self.missing is not None:
            try:
                self._set("missing", check_missing_marks(self.missing))
            except UsageError as error:
                raise self._make_error(str(error)) from None

    def _parse_categories(self) -> None:
        """Check and convert the categories; none may also be a missing mark."""
        if self.case is not None and type(self.case) is not bool:
            raise self._make_error(f"case is {self.case!r}: expected true or false.")
        if self.categories is None:
            return
        names = self._parse_names("categories", self.categories)
        marks = set(map(self.comparison_key, self.missing or ()))
        if both := [name for name in names if self.comparison_key(name) in marks]:
            raise self._make_error(
                f"{both[0]!r} is both a category and a missing mark: remove it from one list. If "
                "it means missing in other columns only, write missing = [] for this column."
            )
        self._set("categories", names)

    def _parse_date_keys(self) -> None:
        """Check and convert the bounds, the format and the parts of a date column."""
        days = [dates.normalize_day(each) for each in (self.lower, self.upper)]
        first, last = days
        if first is None or last is None or not first < last:
            raise self._make_error(
                f"lower is {self.lower!r} and upper is {self.upper!r}: expected two days, lower "
                'before upper, such as "2015-01-01" and "2024-12-31". Date bounds cannot be '
                "estimated privately: use the range that a form, a law or a study plan allows."
            )
        self._set("lower", first)
        self._set("upper", last)
        if self.format is not None and (problem := dates.find_format_problem(self.format)):
            raise self._make_error(f"format is {self.format!r}: {problem}.")
        if self.parts is not None:
            parts = tuple(self.parts) if isinstance(self.parts, list | tuple) else ("",)
            if not all(each in dates.DATE_PARTS and parts.count(each) == 1 for each in parts):
                raise self._make_error(
                    f"parts is {self.parts!r}: expected some of {', '.join(dates.DATE_PARTS)}."
                )
            self._set("parts", parts)

    def _parse_bins(self) -> int | tuple[float, ...] | str | None:
        """Return the number of bins, the edges between them, `QUANTILE_BINS`, or None."""
        bins = self.bins
        if bins is None or bins == QUANTILE_BINS:
            return bins
        if isinstance(bins, Integral) and not isinstance(bins, bool) and int(bins) >= 0:
            self._check_count("bins", int(bins), MAX_BINS)
            return int(bins)
        if isinstance(bins, Sequence) and not isinstance(bins, str):
            self._check_count("bins", len(bins), MAX_BINS)
            numbers = all(isinstance(each, Real) and not isinstance(each, bool) for each in bins)
            try:
                edges = tuple(float(each) for each in bins) if numbers else (math.nan,)
            except OverflowError:
                edges = (math.nan,)
            if all(map(math.isfinite, edges)) and all(a < b for a, b in pairwise(edges)):
                return edges
        raise self._make_error(
            f"bins is {bins!r}: expected the number of bins of equal width, a rising list of the "
            "edges between bins, or 'quantiles'."
        )

    def _parse_names(
        self, what: str, names: object, key: Callable[[str], str] | None = None
    ) -> tuple[str, ...]:
        """Return a list of categories or words as strings, which must differ and not be empty.

        Args:
            what: Name of the list, for messages.
            names: Categories or words.
            key: Function whose values must differ; None: `comparison_key`.
        """
        key = key or self.comparison_key
        if not isinstance(names, Sequence) or isinstance(names, str):
            raise self._make_error(f"{what} is {names!r}: expected a list of strings.")
        self._check_count(what, len(names), MAX_DECLARED_VALUES)
        checked: dict[str, str] = {}
        for place, each in enumerate(names, 1):
            text = convert_to_string(each) if isinstance(each, str | Real) else None
            if text is None:
                raise self._make_error(
                    f"{what} contains {each!r}: expected strings or numbers. An empty cell and '?' "
                    "always mean missing."
                )
            first = checked.setdefault(key(text), text)
            if first != text or len(checked) < place:
                how = "" if first == text else f", also as {first!r}"
                raise self._make_error(f"{what} contains {text!r} twice{how}: remove one.")
        return tuple(checked.values())

    def _fold_case(self, text: str) -> str:
        return text.casefold() if self.case is False else text

    def comparison_key(self, text: str) -> str:
        """Return a string that is equal for equal categories; numbers are compared by value."""
        number = canonicalize_number(text)
        return self._fold_case(text) if number is None else number

    def _parse_text_keys(self) -> None:
        """Check and convert the length and the vocabulary of a text column."""
        if self.length is not None:
            length = self.length
            if isinstance(length, bool) or not isinstance(length, Integral) or not length >= 1:
                raise self._make_error(f"length is {length!r}: expected an integer above 0.")
            self._check_count("length", int(length), MAX_TEXT_LENGTH)
            self._set("length", int(length))
            if self.vocabulary is None:
                return
        words = self._parse_names("vocabulary", self.vocabulary or (), key=str)
        if not words and self.length is None:  # an estimate may have found no word
            raise self._make_error(
                "kind 'text' requires a vocabulary: declare a list of words chosen without looking "
                "at the records, or a length, so that it is estimated privately and each text is "
                "a sequence of words for a recurrent network."
            )
        for word in words:
            if not is_word(word):
                raise self._make_error(
                    f"its vocabulary contains {word!r}: expected one word in lower case."
                )
        self._set("vocabulary", words)

    def _check_count(self, what: str, count: int, most: int) -> None:
        if count > most:
            many = f"{count:,}" if count < 2**64 else "a number of more than 64 bits"
            raise self._make_error(
                f"{what}: {many}: expected at most {most:,}, because each is one feature."
            )

    def _make_error(self, what: str) -> UsageError:
        return UsageError(f"Column {self.name!r}: {what}")

    @property
    def is_declared(self) -> bool:
        """Whether the declaration is complete enough to encode cells."""
        if self.kind == "number":
            return self.low is not None and self.bins != QUANTILE_BINS
        if self.kind == "text":
            return self.vocabulary is not None
        return self.categories is not None if self.kind == "category" else self.kind is not None

    @property
    def cell_format(self) -> CellFormat:
        """Rules by which cells are parsed."""
        usual = DEFAULT_MISSING_MARKS
        if self.categories:
            named = set(map(self._fold_case, self.categories))
            usual = frozenset(mark for mark in usual if self._fold_case(mark) not in named)
        marks = MISSING_MARKS | usual | frozenset(self.missing or ())
        form = build_number_form(self.decimal, self.thousands, self.units)
        return CellFormat(marks, form, accepts_booleans=self.kind == "number")

    def with_table_notation(self, usual: Mapping[str, Any]) -> Column:
        """Return the column with notation that it does not declare taken from the table.

        Args:
            usual: Notation declared for the table, by key (`NOTATION_KEYS`).
        """
        own = {key: getattr(self, key) for key in NOTATION_KEYS}
        if own["decimal"] is None and own["thousands"] is None:
            own |= {key: usual.get(key) for key in ("decimal", "thousands")}
        if own["missing"] is None:
            own["missing"] = usual.get("missing")
        same = self.kind == "ignore" or all(getattr(self, key) == own[key] for key in own)
        return self if same else replace(self, **own)

    @property
    def pieces(self) -> tuple[Column, ...]:
        """Columns of an encoded record: the column itself, or several for a date."""
        return _split_date_column(self) if self.kind == "date" else (self,)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds (low, high) of a numeric column; None if unknown."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def day_bounds(self) -> tuple[float, float]:
        """First and last moment of a date column, in days since 1970-01-01."""
        days = (require_known(self.lower), require_known(self.upper))
        first, last = map(dates.count_days_to, days)
        return first, last + 1 - 1 / dates.SECONDS_PER_DAY

    @property
    def has_undeclared_edges(self) -> bool:
        """Whether the edges of the bins are estimated together with the bounds."""
        return self.bins in (None, QUANTILE_BINS)

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges between the bins of a numeric column, rising; each is in the bin above it."""
        bins = DEFAULT_BINS if self.bins is None or isinstance(self.bins, str) else self.bins
        if isinstance(bins, tuple):
            return bins
        low, high = require_known(self.low), require_known(self.high)
        return tuple(np.linspace(low, high, bins + 1)[1:-1].tolist()) if bins > 1 else ()

    @property
    def scaled_edges(self) -> tuple[float, ...]:
        """Edges between the bins, scaled to [0, 1] like the number and clamped."""
        return tuple(np.clip(self._scale_values(np.array(self.edges)), 0.0, 1.0).tolist())

    @property
    def width(self) -> int:
        """Number of features of a cell."""
        if self.kind == "number":
            bins = len(self.bins) + 1 if isinstance(self.bins, tuple) else self.bins
            many = bins if isinstance(bins, int) else DEFAULT_BINS
            return 2 + (many if many > 1 else 0)
        if self.kind == "ignore":
            return 0
        if self.kind == "date":
            return sum(piece.width for piece in self.pieces)
        if self.kind == "category":
            return len(require_known(self.categories)) + 2
        return self.length or len(require_known(self.vocabulary)) + 1

    @property
    def number_features(self) -> int:
        """Number of features of a cell, its first ones, that are numbers instead of 0 or 1."""
        return 1 if self.kind == "number" else self.length or 0

    def describe(self) -> str:
        """Describe the column in one line."""
        if self.kind == "number":
            cut = isinstance(self.bins, tuple) and len(self.bins)
            own = f", {cut + 1} bins" if cut else ""
            return f"{self.name}: a number in [{self.low:g}, {self.high:g}]{own}"
        if self.kind == "category":
            known = ", ".join(require_known(self.categories))
            return f"{self.name}: one of {known or 'no known value'}"
        if self.kind == "date":
            return f"{self.name}: a date from {self.lower} to {self.upper}"
        if self.length:
            words = len(require_known(self.vocabulary))
            return f"{self.name}: a text, its first {self.length:,} of {words:,} known words"
        return f"{self.name}: {self.kind}"

    def feature_names(self) -> list[str]:
        """Return a readable name for each feature of a cell."""
        if self.kind == "ignore":
            return []
        if self.kind == "date":
            return [name for piece in self.pieces for name in piece.feature_names()]
        if self.kind == "number":
            own, edges = [self.name], self.edges
            if edges:
                inner = [f"{self.name} in [{a:.6g}, {b:.6g})" for a, b in pairwise(edges)]
                own += [f"{self.name} < {edges[0]:.6g}", *inner, f"{self.name} >= {edges[-1]:.6g}"]
        elif self.kind == "category":
            own = [f"{self.name} = {each}" for each in require_known(self.categories)]
            own.append(f"{self.name} = other")
        elif self.length:
            return [f"{self.name} word {place}" for place in range(1, self.length + 1)]
        else:
            own = [f"{self.name} has {word!r}" for word in require_known(self.vocabulary)]
        return [*own, f"{self.name} missing"]

    def encode(self, cells: ColumnCells, *, out: np.ndarray) -> None:
        """Write the features of cells into `out`.

        Args:
            cells: Cells of the column, (rows,).
            out: Output array, (rows, width), filled with 0.
        """
        if self.kind != "date":
            self._encode(cells, out)
            return
        days, (first, end) = self.parse_days(cells), self.day_bounds
        first_year = dates.parse_year(require_known(self.lower))
        clamped, start = np.clip(days, first, end), 0
        for part, piece in zip(("days", *self.date_parts), self.pieces, strict=True):
            own = out[:, start : start + piece.width]
            start += piece.width
            if part == "days":
                piece._encode(clamped - first, own)
                continue
            # The year of a date outside the bounds is clamped; its month is not.
            values = dates.extract_date_part(clamped if part == "year" else days, part)
            if piece.kind == "number":
                piece._encode(values, own)
            else:
                values = values - (first_year if part == "year" else 0)
                known = np.isfinite(values)
                codes = np.where(known, values, piece.width - 1).astype(np.int64)
                own[np.arange(len(own)), codes] = 1.0

    @property
    def date_parts(self) -> tuple[str, ...]:
        """Parts of a date that are encoded in addition to its days: some of `DATE_PARTS`."""
        return dates.DEFAULT_DATE_PARTS if self.parts is None else self.parts

    def parse_days(self, cells: ColumnCells) -> np.ndarray:
        """Parse dates as days since 1970-01-01, float64, (rows,); NaN if missing."""
        marks = self.cell_format.marks
        days = map_cells(
            lambda cell: dates.parse_days(convert_to_string(cell, marks), self.format), cells
        )
        return np.array(days, np.float64)

    def map_categories(self) -> dict[str, int]:
        """Return the category index of each `comparison_key`; of k categories, k + 1 is missing."""
        key = self.comparison_key
        places = {key(name): i for i, name in enumerate(require_known(self.categories))}
        missing = len(places) + 1
        spellings = [set(map(key, same)) for same in BOOLEAN_SPELLINGS]
        if all(len(same & places.keys()) == 1 for same in spellings):
            # In a column of two truth values, True and 1 are the same category, as in Python.
            for same in spellings:
                places |= dict.fromkeys(same, next(places[each] for each in same & places.keys()))
        return places | dict.fromkeys(self._mark_keys, missing)

    def encode_categories(self, cells: ColumnCells) -> np.ndarray:
        """Return category indices, int64, (rows,); of k categories, k is other, k + 1 missing."""
        places, other = self.map_categories(), len(require_known(self.categories))
        missing = other + 1

        def place(cell: object) -> int:
            text = convert_to_string(cell)
            return missing if text is None else places.get(self.comparison_key(text), other)

        if isinstance(cells, TextColumn):
            return cells.apply(place, np.int64)
        return np.array(map_cells(place, cells), np.int64)

    def count_categories(self, cells: ColumnCells) -> Counter[str]:
        """Count the cells of each category, by its `comparison_key`, without missing cells."""
        marks, counts = self._mark_keys, Counter[str]()
        for text, times in count_strings(cells, self.cell_format).items():
            if (key := self.comparison_key(text)) not in marks:
                counts[key] += times
        return counts

    def count_words(self, cells: ColumnCells) -> Counter[str]:
        """Count the records that contain each word, `MAX_COUNTED_WORDS` words per record at most.

        Only the first distinct words of a record count. So a record changes at most that many
        counts, each by 1, and the counts of another record do not depend on it.
        """
        counts = Counter[str]()
        for words in self._iterate_words(cells):
            valid = (word for word in dict.fromkeys(words) if is_word(word))
            counts.update(islice(valid, MAX_COUNTED_WORDS))
        return counts

    def _iterate_words(self, cells: ColumnCells) -> Iterator[list[str]]:
        """Iterate over the first `length` words of each cell; none if it is missing."""
        for text in convert_to_strings(cells, self.cell_format):
            yield WORD_PATTERN.findall((text or "").lower())[: self.length]

    @property
    def _mark_keys(self) -> frozenset[str]:
        return frozenset(map(self.comparison_key, self.cell_format.marks))

    def _encode(self, cells: ColumnCells, out: np.ndarray) -> None:
        """Write the features of cells of a column that is not a date into `out`."""
        rows = np.arange(len(out))
        if self.kind == "number":
            values, known = self._clamp_numbers(cells)
            edges, missing = self.edges, self.width - 1
            # Without bins, index 0 is set to 1 and then overwritten by the number itself.
            bins = 1 + np.searchsorted(edges, values, side="right") if edges else 0
            out[rows, np.where(known, bins, missing)] = 1.0
            out[:, 0] = np.where(known, self._scale_values(values), 0.0)
        elif self.kind == "category":
            out[rows, self.encode_categories(cells)] = 1.0
        elif self.length:
            tokens = {w: i for i, w in enumerate(require_known(self.vocabulary), FIRST_WORD_TOKEN)}
            for row, words in zip(out, self._iterate_words(cells), strict=True):
                found = [tokens.get(word, UNKNOWN_TOKEN) / TOKEN_SCALE for word in words]
                row[len(row) - len(found) :] = found
        elif self.kind == "text":
            places = {word: i for i, word in enumerate(require_known(self.vocabulary))}
            for row, text in zip(out, convert_to_strings(cells, self.cell_format), strict=True):
                row[-1] = text is None
                for word in WORD_PATTERN.findall((text or "").lower()):
                    if word in places:
                        row[places[word]] = 1.0

    def scale_numbers(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers scaled to [0, 1], float64, 0 if missing, and whether each is known."""
        values, known = self._clamp_numbers(cells)
        return self._scale_values(values), known

    def _clamp_numbers(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers clamped to the bounds, low if missing, and whether each is known."""
        low, high = require_known(self.low), require_known(self.high)
        values = convert_to_numbers(cells, self.cell_format)
        known = np.isfinite(values)
        return np.clip(np.where(known, values, low), low, high), known

    def _scale_values(self, values: np.ndarray) -> np.ndarray:
        """Scale numbers linearly, so that the bounds become 0 and 1."""
        low, high = require_known(self.low), require_known(self.high)
        return (values - low) / (high - low)

    def to_json(self) -> dict[str, Any]:
        """Return the name and the declared values as JSON-compatible values."""
        declared = {key: getattr(self, key) for key in COLUMN_KEYS}
        declared["units"] = None if self.units is None else dict(self.units)
        return {"name": self.name} | {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in declared.items()
            if value is not None
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Column:
        """Create a column from the output of `to_json`."""
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**plain)


def is_word(text: str) -> bool:
    """Check whether a string is one word in lower case, as a vocabulary contains them."""
    is_lower = text == text.lower() == convert_to_string(text)
    return is_lower and WORD_PATTERN.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _split_date_column(column: Column) -> tuple[Column, ...]:
    """Return the columns that encode a date: its days, and one column per part."""
    first, last = require_known(column.lower), require_known(column.upper)
    days = dates.count_days_to(last) - dates.count_days_to(first) + 1
    found = [Column(name=f"{column.name}.days", low=0, high=days)]
    years = range(dates.parse_year(first), dates.parse_year(last) + 1)
    names = {
        "year": [str(year) for year in years],
        "month": [str(month + 1) for month in range(12)],
        "weekday": list(dates.WEEKDAYS),
        "hour": [str(hour) for hour in range(24)],
    }
    for part in column.date_parts:
        name = f"{column.name}.{part}"
        if part == "year" and len(years) > MAX_YEAR_CATEGORIES:
            found.append(Column(name=name, low=years[0], high=years[-1]))
        else:
            found.append(Column(name=name, categories=tuple(names[part])))
    return tuple(found)
