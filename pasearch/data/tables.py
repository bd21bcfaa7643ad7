"""Tables: what is public about each column, and how a row becomes numbers in [0, 1].

| kind | what a cell becomes | numbers |
|---|---|---|
| `number` | (clamp(x) - low) / (high - low); its bin; whether it is missing | bins + 2 |
| `category` | which of the declared ones it is, or `other`; whether it is missing | them + 2 |
| `text` | for each word of the vocabulary, whether it occurs; whether it is missing | words + 1 |
| `ignore` | nothing | 0 |

A number has ten bins of equal width unless others are declared: a linear model on bins may bend.
Missing is an empty cell, `?`, and in a column of numbers whatever is no finite number.

A cell is encoded from the schema and itself alone, so a record changes its own row and no other; no
value raises. A line that cannot be told apart into the header's columns is the null record in its
slot. Only the form of a file (header, number of columns and of rows) may raise; `data.lines` says
what of a file is its form.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pasearch.data.columns import TextColumn, TextTable, build_columns
from pasearch.data.compact import Encoded
from pasearch.data.lines import (
    LONGEST_HEADER,
    Fault,
    HeaderTooLongError,
    LineEndError,
    header_of,
)
from pasearch.errors import UsageError
from pasearch.files import read_toml
from pasearch.shown import shown

if TYPE_CHECKING:
    from pasearch.data.partitions import AnySchema
    from pasearch.data.schema import Form

ColumnCells = np.ndarray | TextColumn
TableCells = np.ndarray | TextTable
Made = TypeVar("Made")

KINDS = ("number", "category", "text", "ignore")

BINS = 10
"""How many bins of equal width a number has unless its column says otherwise."""

MISSING = frozenset({"", "?"})
"""What an absent cell is written as."""

ABSENT = ("NAType", "NaTType")
"""The types of pandas's own absent cells, by name: pandas need not be installed."""

WORD = re.compile(r"[£$€]|[^\W_]+(?:['\u2019][^\W_]+)*")
"""What counts as a word: letters and digits, apostrophes inside; or the sign of a currency."""

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""

LONGEST_FIELD = 2**31 - 1
"""The most characters of a cell: csv's own limit of 131,072 would refuse a long text."""

MOST_COLUMNS = 20_000
"""The most columns of a file."""

MOST_BINS = 10_000
"""The most bins of a number: each is a feature, and a bin of no record teaches nothing."""

MOST_NAMES = 100_000
"""The most categories of a column, or words of a vocabulary: each is a feature."""

MOST_NUMBERS = 2_000_000
"""The most numbers that a row may become: a network's first layer has as many weights a neuron."""

TOP_KEYS = ("name", "target", "official_test", "quotes", "columns")
COLUMN_KEYS = ("kind", "low", "high", "bins", "categories", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What is declared about one column.

    Args:
        name: As in the header.
        kind: One of `KINDS`; None is not declared, unless what is declared tells the kind.
        low: Lower bound of a number; values below are clamped. None: to be bought.
        high: Upper bound of a number.
        bins: Of a number: how many of equal width, or the edges between them, rising; 0 for none,
            None for `BINS`.
        categories: Of a category; None: to be bought.
        vocabulary: Of a text: single words in lower case.

    Raises:
        UsageError: Something declared that is no bound, category or word, or not of this kind.
    """

    name: str
    kind: str | None = None
    low: float | None = None
    high: float | None = None
    bins: int | tuple[float, ...] | None = None
    categories: tuple[str, ...] | None = None
    vocabulary: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check what is declared, and tell the kind from it."""
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
        bounds = (self.low, self.high)
        numbers = all(isinstance(each, Real) and not isinstance(each, bool) for each in bounds)
        try:
            low, high = (float(each) for each in bounds) if numbers else (math.nan, math.nan)  # type: ignore[arg-type]
        except OverflowError:
            low, high = math.nan, math.nan
        # A width that overflows would scale every value to 0.
        if not (math.isfinite(high - low) and low < high):
            raise self._refusal(
                f"low is {self.low!r} and high is {self.high!r}: expected two finite numbers, "
                "low < high."
            )
        self._set("low", low)
        self._set("high", high)

    def _checked_bins(self) -> int | tuple[float, ...] | None:
        bins = self.bins
        if bins is None:
            return None
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
            f"bins is {bins!r}: expected how many bins of equal width, or a rising list of the "
            "edges between them."
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
                "it is text without a vocabulary, which cannot be bought: declare a list of words "
                "that you know without looking at the records."
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
            return self.low is not None
        return self.categories is not None if self.kind == "category" else self.kind is not None

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges between the bins of a number; an edge belongs to the bin above it."""
        bins = BINS if self.bins is None else self.bins
        if isinstance(bins, tuple):
            return bins
        low, high = _known(self.low), _known(self.high)
        return tuple(np.linspace(low, high, bins + 1)[1:-1].tolist()) if bins > 1 else ()

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        if self.kind == "number":
            edges = self.bins if isinstance(self.bins, tuple) else ()
            bins = BINS if self.bins is None else self.bins
            many = bins if isinstance(bins, int) else len(edges) + 1
            return 2 + (many if many > 1 else 0)
        if self.kind == "ignore":
            return 0
        if self.kind == "category":
            return len(_known(self.categories)) + 2
        return len(_known(self.vocabulary)) + 1

    def describe(self) -> str:
        """Return the column in one readable line."""
        if self.kind == "number":
            return f"{self.name}: a number in [{self.low:g}, {self.high:g}]"
        if self.kind == "category":
            return f"{self.name}: one of {', '.join(_known(self.categories)) or 'no known value'}"
        return f"{self.name}: {self.kind}"

    def feature_names(self) -> list[str]:
        """Return a readable name for each number that a cell becomes."""
        if self.kind == "ignore":
            return []
        if self.kind == "number":
            own = [self.name, *self._bin_names()]
        elif self.kind == "category":
            own = [f"{self.name} = {each}" for each in _known(self.categories)]
            own.append(f"{self.name} = other")
        else:
            own = [f"{self.name} has {word!r}" for word in _known(self.vocabulary)]
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
            places = {name: i for i, name in enumerate(_known(self.categories))}
            other, missing = len(places), len(places) + 1

            def place(cell: object) -> int:
                text = _text(cell)
                return missing if text is None else places.get(text, other)

            return Encoded(ones=each_whole(place, cells))
        if self.kind == "text":
            places = {word: i for i, word in enumerate(_known(self.vocabulary))}
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
        low, high, values = _known(self.low), _known(self.high), as_numbers(cells)
        known = np.isfinite(values)
        return np.clip(np.where(known, values, low), low, high), known

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        low, high = _known(self.low), _known(self.high)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The declared form of a table's records. It has the properties of `data.schema.Schema`.

    What is not declared about a column is bought before the first training, or read where the user
    assumes it public (`data.purchase`).

    Args:
        columns: Of the features, in the file's order.
        target: What is predicted: a category, or a number. Undeclared, it is a category.
        official_test: How many of the last rows are the data set's own test set.
        name: Of the data set.
        quotes: Whether a quotation mark around a cell of the file is none of its characters.

    Raises:
        UsageError: Two columns of one name, or a target that is text or ignored, or has bins.
    """

    columns: tuple[Column, ...]
    target: Column
    official_test: int = 0
    name: str = "table"
    quotes: bool = True

    def __post_init__(self) -> None:
        """Check the columns against each other."""
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in (*self.columns, self.target)]
        for name, times in Counter(names).items():
            if times > 1:
                raise UsageError(f"Column {name!r} is there twice: expected each name once.")
        if self.target.kind in ("text", "ignore") or self.target.bins is not None:
            has = self.target.kind if self.target.bins is None else "a number with bins"
            raise UsageError(
                f"Column {self.target.name!r} is the target and is declared as {has}: expected a "
                "category, or a number without bins. Change that, or name another target."
            )
        width = sum(column.width for column in self.columns if column.declared)
        if width > MOST_NUMBERS:
            raise UsageError(
                f"A row would become {width:,} numbers: expected at most {MOST_NUMBERS:,}. Declare "
                "fewer bins, categories or words, or ignore columns."
            )
        tail = self.official_test
        if isinstance(tail, bool) or not isinstance(tail, Integral) or not tail >= 0:
            raise UsageError(
                f"official_test is {tail!r}: expected how many of the last rows are the test set."
            )
        object.__setattr__(self, "official_test", int(tail))
        if type(self.quotes) is not bool:
            raise UsageError(f"quotes is {self.quotes!r}: expected true or false.")

    @property
    def shape(self) -> tuple[int]:
        """The shape of an encoded record."""
        return (sum(column.width for column in self.columns),)

    @property
    def low(self) -> float:
        """The least encoded value."""
        return 0.0

    @property
    def high(self) -> float:
        """The largest encoded value."""
        return 1.0

    @property
    def regression(self) -> bool:
        """Whether a number is predicted."""
        return self.target.kind == "number"

    @property
    def classes(self) -> int | None:
        """The number of classes; None if a number is predicted, or before they are known."""
        return None if self.target.categories is None else len(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; those that a purchase did not find are unnamed, so that there are two."""
        found = self.target.categories or ()
        unnamed = tuple(f"(unnamed {i + 1})" for i in range(2 - len(found)))
        return () if self.target.categories is None else found + unnamed

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """The bounds of the number to predict."""
        low, high = self.target.low, self.target.high
        return None if low is None or high is None else (low, high)

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record: one a class, or the prediction."""
        return 1 if self.regression else self.classes or 0

    @property
    def task_untold(self) -> str | None:
        """The target, if nothing says whether it holds classes or numbers."""
        return self.target.name if self.target.kind is None else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what an encoded record holds, in order."""
        return tuple(self.feature_names())

    @property
    def undeclared(self) -> tuple[str, ...]:
        """The columns, and the target, that must be bought before a record can be encoded."""
        return tuple(each.name for each in (*self.columns, self.target) if not each.declared)

    @property
    def complete(self) -> bool:
        """Whether everything is declared."""
        return not self.undeclared

    def feature_names(self) -> list[str]:
        """Return a readable name for each number of an encoded record."""
        return [name for column in self.columns for name in column.feature_names()]

    def widest(self, most: int) -> int:
        """Return the most numbers a record can become, whatever is bought.

        Args:
            most: The most categories that are bought for a column.
        """
        return sum(_widest(column, most) for column in self.columns)

    def widest_shape(self, most: int) -> tuple[int]:
        """Return the shape of an encoded record, at most, whatever is bought."""
        return (self.widest(most),)

    def find(
        self, name: str, features: TableCells, labels: ColumnCells
    ) -> tuple[Column, ColumnCells]:
        """Return a column, the target included, and its cells.

        Args:
            name: Of the column.
            features: (rows, columns).
            labels: (rows,).
        """
        if name == self.target.name:
            return self.target, labels
        place = [column.name for column in self.columns].index(name)
        return self.columns[place], features[:, place]

    def is_class(self, name: str) -> bool:
        """Return whether a column holds the classes to predict."""
        return name == self.target.name and not self.regression

    def completed(self, columns: Mapping[str, Column]) -> TableSchema:
        """Return the schema with columns, the target included, replaced by name."""
        return replace(
            self,
            columns=tuple(columns.get(each.name, each) for each in self.columns),
            target=columns.get(self.target.name, self.target),
        )

    def encode(self, features: TableCells, *, out: np.ndarray) -> np.ndarray:
        """Encode rows; return which are no null record.

        Guarantee: a row is encoded from its own cells alone, into [0, 1]; no value raises.

        Args:
            features: Cells, (rows, columns): texts, numbers, or None.
            out: float32, (rows, *shape); written to.

        Returns:
            bool, (rows,); False where every cell is None.
        """
        cells = features if isinstance(features, TextTable) else np.asarray(features)
        out[...] = 0.0
        start = 0
        for place, column in enumerate(self.columns):
            end = start + column.width
            column.encode(cells[:, place], out=out[:, start:end])
            start = end
        return present(cells)

    def encode_labels(self, labels: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return classes, int64, or numbers scaled to [0, 1], float32; and which are valid.

        Args:
            labels: Cells, (rows,). One that is missing or of no declared class is not valid.
        """
        if self.regression:
            scaled, known = self.target.scale(labels)
            return scaled.astype(np.float32), known
        places = {name: i for i, name in enumerate(_known(self.target.categories))}
        classes = each_whole(lambda cell: places.get(_text(cell), -1), labels)
        return np.maximum(classes, 0), classes >= 0

    def completed_by(self, other: AnySchema) -> TableSchema:
        """Return the schema with what is undeclared taken from the schema of another table."""
        theirs = getattr(other, "columns", ()), getattr(other, "target", None)
        known = {each.name: each for each in (*theirs[0], theirs[1]) if isinstance(each, Column)}
        if gone := [name for name in self.undeclared if name not in known]:
            raise UsageError(
                f"The public data have no column {', '.join(map(repr, gone))}: declare it in a "
                "schema, or take a table with the same header."
            )
        return self.completed({name: known[name] for name in self.undeclared})

    def encode_new(self, records: Any) -> np.ndarray:
        """Return the rows of a new table, float32 (rows, *shape), as in training.

        Args:
            records: A pandas frame with the schema's columns, in any order; or cells, (rows,
                columns), in the schema's order.

        Raises:
            UsageError: A column is not there.
        """
        names = [column.name for column in self.columns if column.kind != "ignore"]
        if hasattr(records, "columns"):
            if gone := [name for name in names if name not in records.columns]:
                raise UsageError(f"The table has no column {', '.join(map(repr, gone))}: add it.")
            records = records.reindex(columns=[column.name for column in self.columns])
        cells = np.asarray(records, object)
        if cells.ndim != 2 or cells.shape[1] != len(self.columns):
            raise UsageError(
                f"The table has shape {cells.shape}: expected {len(self.columns)} cells a row: "
                "every column of the schema but the target, ignored ones included."
            )
        x = np.zeros((len(cells), *self.shape), np.float32)
        self.encode(cells, out=x)
        return x

    def decode_class(self, classes: np.ndarray) -> np.ndarray:
        """Return the names of classes, texts, (rows,)."""
        return np.array(self.class_names)[classes]

    def decode_number(self, scaled: np.ndarray) -> np.ndarray:
        """Return predictions in the target's own units."""
        low, high = _known(self.target.low), _known(self.target.high)
        return low + scaled * (high - low)

    def describe_items(self) -> list[str]:
        """Return what every column turned out to be, one line each."""
        return [column.describe() for column in (*self.columns, self.target)]

    def check_form(
        self, where: str, features: np.ndarray | Form, labels: np.ndarray | Form
    ) -> None:
        """Refuse arrays whose form does not fit; no value is looked at.

        Raises:
            UsageError: Another number of columns, or none that is not ignored.
        """
        if all(column.kind == "ignore" for column in self.columns):
            raise UsageError(
                f"Data {where!r}: there is no column to predict {self.target.name!r} from: "
                "expected at least one that the schema does not ignore."
            )
        if len(features.shape) != 2 or features.shape[1] != len(self.columns):
            raise UsageError(
                f"Data {where!r}: the cells have shape {features.shape}, the schema has "
                f"{len(self.columns)} columns beside the target: expected (rows, columns)."
            )
        if len(labels.shape) != 1:
            raise UsageError(
                f"Data {where!r}: the targets have shape {labels.shape}: expected (rows,)."
            )

    def for_header(
        self, header: Sequence[str], *, where: str, target: str | None = None
    ) -> TableSchema:
        """Return the schema in a file's order, with the columns it does not mention undeclared.

        Args:
            header: The file's columns.
            where: What an error calls the file.
            target: Another target than the schema's.

        Raises:
            UsageError: A column that is not in the file.
        """
        declared = {column.name: column for column in (*self.columns, self.target)}
        aim, known = target or self.target.name, set(header)
        for name in (aim, *declared):
            if name not in known:
                whose = ", which the schema declares" if name in declared and name != target else ""
                hint = _nearest(name, header).removesuffix("?")
                raise UsageError(f"{where} has no column {name!r}{whose}{hint}.")
        columns = {name: declared.get(name, Column(name=name)) for name in header}
        return replace(self, target=columns.pop(aim), columns=tuple(columns.values()))

    def describe(self) -> str:
        """Return one readable line."""
        features = f", {self.shape[0]} features" if self.complete else ""
        columns = "1 column" if len(self.columns) == 1 else f"{len(self.columns)} columns"
        quotes = "" if self.quotes else "; quotation marks are ordinary characters"
        return f"{columns}{features}, {self.describe_task()}{quotes}"

    def describe_task(self) -> str:
        """Return what is predicted."""
        if self.regression:
            bounds = self.target_bounds
            return "a number" if bounds is None else "a number in [{:g}, {:g}]".format(*bounds)
        return "classes" if self.classes is None else f"{self.classes} classes"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kind": "table",
            "name": self.name,
            "target": self.target.to_json(),
            "official_test": self.official_test,
            "columns": [column.to_json() for column in self.columns],
            **({} if self.quotes else {"quotes": False}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableSchema:
        """Read what `to_json` wrote.

        Raises:
            UsageError: Anything else.
        """
        try:
            return cls(
                name=values["name"],
                target=Column.from_json(values["target"]),
                official_test=values["official_test"],
                quotes=values.get("quotes", True),
                columns=tuple(map(Column.from_json, values["columns"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"The schema of a table is not well formed ({error!r}).") from None

    def to_toml_text(self) -> str:
        """Return it as a schema file, which `from_toml` reads."""
        lines = [f"name = {_quoted(self.name)}", f"target = {_quoted(self.target.name)}"]
        if self.official_test:
            lines.append(f"official_test = {self.official_test}")
        if not self.quotes:
            lines.append("quotes = false")
        for column in (*self.columns, self.target):
            key = column.name if BARE.fullmatch(column.name) else _quoted(column.name)
            lines += ["", f"[columns.{key}]"]
            values = column.to_json()
            lines += [f"{key} = {_toml(values[key])}" for key in COLUMN_KEYS if key in values]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, path: str | Path) -> TableSchema:
        """Read a schema file.

            target = "income"                 # required
            official_test = 16281             # how many of the last rows are the test set
            quotes = false                    # a quotation mark is an ordinary character
            [columns.age]
            low = 17                          # bounds make it a number
            high = 90
            bins = [25, 35, 50, 65]           # or how many of equal width
            [columns.workclass]
            categories = ["Private", "State-gov"]
            [columns.fnlwgt]
            kind = "ignore"

        A column that is not mentioned, or has nothing under its name, is not declared.

        Raises:
            UsageError: No such file, no TOML, an unknown key, or a declaration that makes no sense.
        """
        path = Path(path)
        values = read_toml(path, "a schema file (TOML)")
        try:
            return _from_toml(values, path.stem)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def undeclared(header: Sequence[str], target: str, name: str = "table") -> TableSchema:
    """Return the schema of a file about which nothing is declared."""
    columns = tuple(Column(name=each) for each in header if each != target)
    return TableSchema(columns=columns, target=Column(name=target), name=name)


def each_cell(function: Callable[[Any], Made], cells: ColumnCells) -> list[Made]:
    """Return what a function makes of each cell; of equal cells it may be called for one."""
    if isinstance(cells, TextColumn):
        return cells.map(function)
    return [function(cell) for cell in np.asarray(cells).tolist()]


def each_whole(function: Callable[[Any], int], cells: ColumnCells) -> np.ndarray:
    """Return the whole number that a function makes of each cell, int64; as of `each_cell`."""
    if isinstance(cells, TextColumn):
        return cells.whole(function)
    return np.array(each_cell(function, cells), np.int64)


def present(cells: TableCells) -> np.ndarray:
    """Return which rows are no null records, bool, (rows,): those hold None everywhere."""
    if isinstance(cells, TextTable):
        return cells.present()
    return np.array([any(c is not None for c in row) for row in cells.tolist()], bool)


def as_text(cells: ColumnCells) -> list[str | None]:
    """Return each cell as text without space around it; None where it is missing."""
    return each_cell(_text, cells)


def count_texts(cells: ColumnCells) -> Counter[str]:
    """Return how often each text occurs; what is missing is not counted."""
    if not isinstance(cells, TextColumn):
        return Counter(text for text in as_text(cells) if text is not None)
    counts: Counter[str] = Counter()
    for cell, times in cells.counts():
        if (text := _text(cell)) is not None:
            counts[text] += times
    return counts


def as_numbers(cells: ColumnCells) -> np.ndarray:
    """Return each cell as a number, float64, (cells,); NaN where it is no finite one."""
    if isinstance(cells, TextColumn):
        return cells.numbers(lambda cell: _number(_text(cell)))
    cells = np.asarray(cells)
    with np.errstate(all="ignore"):
        if cells.dtype.kind in "iufb":
            numbers = cells.astype(np.float64)
        else:
            numbers = np.array([_number(text) for text in as_text(cells)], np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)


def read_table(
    path: str | Path,
    target: str | None = None,
    schema: TableSchema | None = None,
    *,
    quotes: bool = True,
) -> tuple[TableSchema, TextTable, TextColumn]:
    """Read a CSV file with a header: UTF-8, separated by commas, a row a line (`data.lines`).

    Guarantee: every row keeps its slot, and is read from its own bytes alone. One that is not
    UTF-8, does not close its quotation marks or does not have the header's number of columns is
    the null record: None in every cell. No cell is changed by how it is kept.

    Args:
        path: The file.
        target: The column to predict; the schema's, or the last one, if None.
        schema: What is declared; nothing if None.
        quotes: False takes quotation marks as ordinary characters, and so does a schema that says
            so.

    Returns:
        The schema in the file's order, the cells, (rows, columns), and the target's cells, (rows,).

    Raises:
        UsageError: The file's form is bad, or does not fit the schema.

    Cost: time and memory linear in the rows, about as many bytes as `data.columns` says.
    """
    path, quotes = Path(path), quotes and (schema is None or schema.quotes)
    with _parsed(path, quotes) as (header, lines):
        fitted = undeclared(header, header[-1]) if schema is None else schema
        fitted = fitted.for_header(header, where=str(path), target=target)
        fitted = replace(fitted, name=path.stem, quotes=quotes)
        rows, width = _slots(lines, len(header), path), len(header)
        columns = build_columns(rows, width=width, most_rows=_most_rows(path))
    labels = columns.pop(header.index(fitted.target.name))
    if not fitted.official_test < len(labels):
        raise UsageError(
            f"{path}: the schema says that the last {fitted.official_test:,} rows are the test "
            f"set, the file has {len(labels):,}: correct official_test, or leave it out."
        )
    return fitted, TextTable(cells=tuple(columns)), labels


def read_rows(path: str | Path, *, quotes: bool = True) -> tuple[list[str], list[list[str] | None]]:
    """Return a CSV file's header and rows; None is the null record, as of `read_table`.

    Raises:
        UsageError: No such file, no header in UTF-8, no row, fewer than two columns, or two of one
            name. The message quotes nothing of the file.
    """
    with _opened(Path(path), quotes=quotes) as (header, rows):
        return header, list(rows)


Lines = Iterator[list[str] | Fault]
Rows = Iterator[list[str] | None]


@contextmanager
def _opened(path: Path, *, quotes: bool = True) -> Iterator[tuple[list[str], Rows]]:
    """Give a CSV file's header and rows, one by one; raises as `read_rows` does."""
    with _parsed(path, quotes) as (header, lines):
        yield header, _slots(lines, len(header), path)


@contextmanager
def _parsed(path: Path, quotes: bool) -> Iterator[tuple[list[str], Lines]]:
    """Give a CSV file's header and what each line is, of whatever width."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{path} {fault}: expected a CSV file with a header.")
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open("rb") as file:
            form, first = header_of(file, quotes=quotes)
            if first is Fault.EMPTY:
                raise UsageError(
                    f"{path} is empty, or its first line is: expected a CSV file with a header."
                )
            if first is Fault.ENCODING:
                raise UsageError(
                    f"{path}: its header is not UTF-8, so the file hardly is: save it as CSV UTF-8."
                )
            header = _check_header(path, None if isinstance(first, Fault) else first)
            yield header, form.rows(file)
    except LineEndError:
        raise UsageError(
            f"{path}: its first line has a carriage return that is not right before a line feed: "
            "lines must end with LF or CR LF. Convert the file, or take the carriage return out of "
            "the header."
        ) from None
    except HeaderTooLongError:
        raise UsageError(
            f"{path}: its first line has more than {LONGEST_HEADER:,} bytes: expected a header, "
            "the names of the columns."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    finally:
        csv.field_size_limit(limit)


def row_faults(path: str | Path, *, quotes: bool = True) -> Iterator[Fault | None]:
    """Go through a CSV file's slots: why each is a null record, None if it is none.

    Only for the curator's check; raises as `read_rows` does.
    """
    with _parsed(Path(path), quotes) as (header, lines):
        for row in lines:
            if isinstance(row, Fault):
                yield row
            else:
                yield None if len(row) == len(header) else Fault.WIDTH


def _slots(lines: Lines, width: int, path: Path) -> Rows:
    """Yield a row for each slot, None for one that is no row of this width.

    Raises:
        UsageError: There is no slot.
    """
    slots = 0
    for row in lines:
        yield row if not isinstance(row, Fault) and len(row) == width else None
        slots += 1
    if not slots:
        raise UsageError(f"{path} has a header and no row: expected at least one record.")


def _most_rows(path: Path) -> int:
    """Return how many lines a file has, or one more."""
    with path.open("rb") as file:
        parts = iter(lambda: file.read(2**20), b"")
        return 1 + sum(part.count(b"\n") for part in parts)


def _check_header(path: Path, row: list[str] | None) -> list[str]:
    """Return the names of the columns; an error gives places, for the row may be a record."""
    header = [name.strip() for name in row or ()]
    if not len(header) > 1:
        raise UsageError(
            f"{path}: its first line is not a header of two or more columns, separated by commas: "
            "write the names of the columns there."
        )
    if len(header) > MOST_COLUMNS:
        raise UsageError(
            f"{path} has {len(header):,} columns: expected at most {MOST_COLUMNS:,}. Keep those "
            "that could matter; pixels and the like belong into a .npz file."
        )
    numbers = [name for name in header if not math.isnan(_number(name))]
    if numbers not in ([str(i + start) for i in range(len(numbers))] for start in (0, 1)):
        raise UsageError(
            f"{path}: its first line holds numbers, so it looks like a record: expected a header. "
            "Write the names of the columns into the first line."
        )
    first: dict[str, int] = {}
    for place, name in enumerate(header):
        if not name:
            raise UsageError(
                f"{path}: column {place + 1} has no name: give it one in the header, or leave the "
                "column out (pandas: to_csv(path, index=False))."
            )
        if first.setdefault(name, place) < place:
            raise UsageError(
                f"{path}: columns {first[name] + 1} and {place + 1} have the same name: "
                "rename one in the header."
            )
    return header


def _from_toml(values: dict[str, Any], stem: str) -> TableSchema:
    _check_keys("the file", values, TOP_KEYS)
    declared, target = values.get("columns", {}), values.get("target")
    if not (isinstance(target, str) and target):
        raise UsageError(
            'it does not say what is predicted: write target = "..." above the columns.'
        )
    if not isinstance(declared, dict) or not all(isinstance(v, dict) for v in declared.values()):
        raise UsageError("its columns are not tables: write [columns.age] and the like.")
    name = values.get("name", stem)
    if not (isinstance(name, str) and name):
        raise UsageError(f"name is {name!r}: expected a name.")
    columns = {each: _toml_column(each, declared[each]) for each in declared}
    aim = columns.pop(target, Column(name=target))
    if aim.categories is not None and not len(aim.categories) >= 2:
        raise UsageError(
            f"Column {target!r} is the target and has {len(aim.categories)} classes: expected two "
            "or more."
        )
    # A file may declare the target alone; the others join in `for_header`.
    return TableSchema(
        columns=tuple(columns.values()), target=aim, name=name,
        official_test=values.get("official_test", 0), quotes=values.get("quotes", True),
    )  # fmt: skip


def _toml_column(name: str, values: dict[str, Any]) -> Column:
    _check_keys(f"column {name!r}", values, COLUMN_KEYS)
    column = Column(name=name, **values)
    if column.kind == "number" and isinstance(column.bins, tuple) and column.low is not None:
        outside = [e for e in column.bins if not column.low < e < _known(column.high)]
        if outside:
            raise UsageError(
                f"Column {name!r}: the edge {outside[0]:g} of its bins is not between low and "
                f"high, {column.low:g} and {column.high:g}: leave it out, or widen the bounds."
            )
    return column


def _check_keys(where: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in values:
        if key not in known:
            raise UsageError(
                f"{where} has an unknown key {key!r}{_nearest(key, known)}: "
                f"expected {', '.join(known)}."
            )


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return a hint to end a sentence with."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; there are {', '.join(map(repr, names[:20]))}{', ...' if len(names) > 20 else ''}"


def _widest(column: Column, most: int) -> int:
    if column.declared:
        return column.width
    # Any bounds will do: they do not change how many bins there are.
    number = Column(name=column.name, low=0.0, high=1.0, bins=column.bins).width
    by_kind = {"number": number, "category": most + 2}
    return by_kind.get(column.kind or "", max(by_kind.values()))


def _toml(value: object) -> str:
    """Return a value as TOML, a long list over several lines."""
    if isinstance(value, str):
        return _quoted(value)
    if not isinstance(value, list):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        return repr(int(value) if whole else value)  # type: ignore[arg-type]
    lines, items = [""], [_toml(each) for each in value]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > 90:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{item},"
    if len(lines) == 1:
        return f"[{lines[0].removesuffix(',')}]"
    return "[\n" + "".join(f"    {line}\n" for line in lines) + "]"


def _quoted(text: str) -> str:
    """Return a TOML string: JSON's escapes are TOML's; nothing in it is obeyed by a terminal."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(c if shown(c) == c else f"\\U{ord(c):08x}" for c in plain)


def _text(cell: object) -> str | None:
    """Return a cell as text without space around it; None where it is missing.

    So is one that cannot be written as UTF-8: bytes of another encoding, half a surrogate pair, a
    whole number of thousands of digits, an object that raises when it is to be a text.
    """
    if cell is None or type(cell).__name__ in ABSENT:
        return None
    try:
        # Of a subclass, `strip` makes a plain text, whose methods are known.
        text = str.strip(cell if isinstance(cell, str) else _spelled(cell))
        if not text.isascii():
            text.encode()
    except Exception:  # noqa: BLE001 - whatever a cell raises would tell of it
        return None
    return None if text in MISSING else text


def _spelled(cell: object) -> str:
    if isinstance(cell, bytes):
        return cell.decode()
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        # A class 2 that pandas turned into 2.0 beside an absent cell is the class 2.
        return str(int(cell) if cell.is_integer() else cell)
    return str(cell)


def _number(text: str | None) -> float:
    """Return a finite number, or NaN."""
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _known(value: Any) -> Any:
    """Return what is declared or bought by now; a read before that is a bug in the program."""
    if value is None:
        raise RuntimeError("A table was to be encoded before its schema was complete.")
    return value
