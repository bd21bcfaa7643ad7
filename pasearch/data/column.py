"""One column of a table: what is public about it, and how a cell becomes numbers in [0, 1].

| kind | what a cell becomes | numbers |
|---|---|---|
| `number` | (clamp(x) - low) / (high - low); its bin; whether it is missing | bins + 2 |
| `category` | which of the declared ones it is, or `other`; whether it is missing | them + 2 |
| `text` | for each word of the vocabulary, whether it occurs; whether it is missing | words + 1 |
| `ignore` | nothing | 0 |

A number has ten bins, unless others are declared: a linear model on bins may bend. Where its bounds
are estimated privately, so are the edges between its bins, at quantiles; with declared bounds the
bins are of equal width, or at quantiles where `bins = "quantiles"` asks for it.
Missing is an empty cell, `?`, and in a column of numbers whatever is no finite number.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from pasearch.data.cells import MISSING, ColumnCells, as_numbers, as_text, each_whole, text_of
from pasearch.data.schema import needed, rising
from pasearch.errors import UsageError

KINDS = ("number", "category", "text", "ignore")

BINS = 10
"""How many bins a number has unless its column says otherwise."""

QUANTILES = "quantiles"
"""What `bins` says where the edges between them are to be estimated privately."""

WORD = re.compile(r"[£$€]|[^\W_]+(?:['\u2019][^\W_]+)*")
"""What counts as a word: letters and digits, apostrophes inside; or the sign of a currency."""

IDENTIFIER = re.compile(
    r"(?:^|[^A-Za-z])(?:id|ID|Id|uuid|UUID|guid|GUID|ssn|SSN)$|[a-z]I[Dd]$|^Unnamed: 0$"
    r"|^(?i:index)$|^(?i:row|record)[ _]?(?i:no|nr|number)$|(?:^|[ _])(?i:surname|e-?mail|phone)$"
)
"""What identifiers are called, more often than not."""

MOST_BINS = 10_000
"""The most bins of a number: each is a feature, and a bin of no record teaches nothing."""

MOST_NAMES = 100_000
"""The most categories of a column, or words of a vocabulary: each is a feature."""

COLUMN_KEYS = ("kind", "low", "high", "bins", "categories", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What the cells of one column become.

    Args:
        ones: Which feature of the column is 1, (rows,); None of a text.
        numbers: The column's first feature, float32, (rows,), of numbers only: it stands there
            whether `ones` names it or not.
        words: All features, bool, (rows, width), of texts only.
    """

    ones: np.ndarray | None = None
    numbers: np.ndarray | None = None
    words: np.ndarray | None = None

    def write(self, out: np.ndarray) -> None:
        """Write the features, float32.

        Args:
            out: (rows, width), all 0.
        """
        if self.words is not None:
            out[...] = self.words
        if self.ones is not None:
            out[np.arange(len(out)), self.ones] = 1.0
        if self.numbers is not None:
            out[:, 0] = self.numbers


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
        categories: Of a category; None: to be estimated privately.
        vocabulary: Of a text: single words in lower case.

    Raises:
        UsageError: Something declared that is no bound, category or word, or not of this kind.
    """

    name: str
    kind: str | None = None
    low: float | None = None
    high: float | None = None
    bins: int | tuple[float, ...] | str | None = None
    categories: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise UsageError(f"A column's name is {self.name!r}: expected a name.")
        self._set("kind", self._checked_kind())
        if self.kind == "number":
            self._check_bounds()
            self._set("bins", self._checked_bins())
        if self.kind == "category" and self.categories is not None:
            self._set("categories", self._checked_names("categories", self.categories))
        if self.kind == "text":
            self._set("vocabulary", self._checked_vocabulary())

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _checked_kind(self) -> str | None:
        by_kind = {
            "number": [key for key in ("low", "high", "bins") if getattr(self, key) is not None],
            "category": ["categories"] if self.categories is not None else [],
            "text": ["vocabulary"] if self.vocabulary is not None else [],
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
        checked: dict[str, None] = {}
        for each in names:
            whole = isinstance(each, Integral) and not isinstance(each, bool)
            text = str(each).strip() if whole or isinstance(each, str) else ""
            if text in MISSING:
                raise self._refusal(
                    f"{what} holds {each!r}: expected texts or whole numbers. An empty cell and "
                    "'?' are missing by themselves."
                )
            if text in checked:
                raise self._refusal(f"{what} holds {text!r} twice: leave one out.")
            checked[text] = None
        return tuple(checked)

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
    def bounds(self) -> tuple[float, float] | None:
        """A number's (low, high); None where they are not known yet."""
        return None if self.low is None or self.high is None else (self.low, self.high)

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
        return tuple(np.clip(self._scaled(np.array(self.edges)), 0.0, 1.0).tolist())

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        if self.kind == "number":
            bins = len(self.bins) + 1 if isinstance(self.bins, tuple) else self.bins
            many = bins if isinstance(bins, int) else BINS
            return 2 + (many if many > 1 else 0)
        if self.kind == "ignore":
            return 0
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
        return f"{self.name}: {self.kind}"

    def feature_names(self) -> list[str]:
        """Return a readable name for each number that a cell becomes."""
        if self.kind == "ignore":
            return []
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
        self.encoded(cells).write(out)

    def encoded(self, cells: ColumnCells) -> Encoded:
        """Return what the cells become.

        Args:
            cells: (rows,).
        """
        if self.kind == "number":
            values, known = self._clamped(cells)
            edges, missing = self.edges, self.width - 1
            # Without bins, what is known has no 1 at all: its number stands in that place.
            bins = 1 + np.searchsorted(edges, values, side="right") if edges else 0
            scaled = np.where(known, self._scaled(values), 0.0)
            return Encoded(ones=np.where(known, bins, missing), numbers=scaled.astype(np.float32))
        if self.kind == "category":
            places = {name: i for i, name in enumerate(needed(self.categories))}
            other, missing = len(places), len(places) + 1

            def place(cell: object) -> int:
                text = text_of(cell)
                return missing if text is None else places.get(text, other)

            return Encoded(ones=each_whole(place, cells))
        if self.kind == "text":
            places = {word: i for i, word in enumerate(needed(self.vocabulary))}
            words = np.zeros((len(cells), len(places) + 1), bool)
            for row, text in zip(words, as_text(cells), strict=True):
                row[-1] = text is None
                for word in WORD.findall((text or "").lower()):
                    if word in places:
                        row[places[word]] = True
            return Encoded(words=words)
        return Encoded()

    def scale(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers clamped and scaled to [0, 1], float64, 0 if missing; and which are not."""
        values, known = self._clamped(cells)
        return self._scaled(values), known

    def _clamped(self, cells: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers within the bounds, the lower one if missing; and which are not."""
        low, high, values = needed(self.low), needed(self.high), as_numbers(cells)
        known = np.isfinite(values)
        return np.clip(np.where(known, values, low), low, high), known

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        low, high = needed(self.low), needed(self.high)
        return (values - low) / (high - low)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the name, and what is declared."""
        declared = {key: getattr(self, key) for key in COLUMN_KEYS}
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
