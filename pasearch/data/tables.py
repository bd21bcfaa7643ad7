"""Tables: what is public about the columns together, and how rows become numbers in [0, 1].

A cell is encoded from the schema and itself alone, so a record changes its own row and no other; no
value raises. `data.column` says what a cell becomes.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pasearch.data.cells import (
    ColumnCells,
    TableCells,
    check_missing_marks,
    find_present_rows,
    normalize_unicode,
)
from pasearch.data.column import READING_KEYS, Column
from pasearch.data.frames import build_frame_columns, extract_cells, get_column_names
from pasearch.data.lines import parse_separator
from pasearch.data.numbers import build_number_form
from pasearch.data.schema import ArrayMetadata, EncodedColumn, RowLayout, Schema, require_known
from pasearch.data.schema_file import (
    check_class_count,
    describe_missing_columns,
    format_schema_toml,
    parse_schema,
    suggest_name,
)
from pasearch.data.text_columns import TextTable
from pasearch.errors import UsageError
from pasearch.files import read_toml

MAX_TABLE_FEATURES = 2_000_000
"""The most numbers that a row may become: a network's first layer has as many weights a neuron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The declared form of a table's records. It has the properties of `data.schema.Schema`.

    What is not declared about a column is estimated privately before the first training, or read
    where the user assumes it public (`data.estimation`).

    Args:
        columns: Of the features, in the file's order.
        target: What is predicted: a category, or a number. Undeclared, it is a category.
        official_test: How many of the last rows are the data set's own test set.
        name: Of the data set.
        quotes: Whether a quotation mark around a cell of the file is none of its characters.
        order: The names of the file's columns, in order, where it has no header; otherwise empty.
        separator: What stands between two cells of the file; None: the header tells.
        missing: What an absent cell is written as, in every column that says nothing else; this,
            `decimal` and `thousands` are as of `Column`.
        decimal: What stands before the decimals of numbers, likewise.
        thousands: What stands between groups of their digits, likewise.
        proposed: Whether it was read from the records (as `pasearch check` does), so that it is
            as private as they are until somebody has edited it.

    Raises:
        UsageError: Two columns of one name, or a target that is text or ignored, or has bins.
    """

    low: ClassVar[float] = 0.0  # smallest encoded value
    high: ClassVar[float] = 1.0  # largest encoded value

    columns: tuple[Column, ...]
    target: Column
    official_test: int = 0
    name: str = "table"
    quotes: bool = True
    order: tuple[str, ...] = ()
    separator: str | None = None
    missing: tuple[str, ...] | None = None
    decimal: str | None = None
    thousands: str | None = None
    proposed: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        self._read_columns()
        names = [column.name for column in (*self.columns, self.target)]
        for name, times in Counter(names).items():
            if times > 1:
                raise UsageError(f"Column {name!r} is there twice: expected each name once.")
        if self.target.kind in ("text", "date", "ignore") or self.target.bins is not None:
            has = self.target.kind if self.target.bins is None else "a number with bins"
            raise UsageError(
                f"Column {self.target.name!r} is the target and is declared as {has}: expected a "
                "category, or a number without bins. Change that, or name another target."
            )
        width = sum(column.width for column in self.columns if column.is_declared)
        if width > MAX_TABLE_FEATURES:
            raise UsageError(
                f"A row would be encoded as {width:,} features: expected at most "
                f"{MAX_TABLE_FEATURES:,}. Declare fewer bins, categories or words, or ignore "
                "columns."
            )
        tail = self.official_test
        if isinstance(tail, bool) or not isinstance(tail, Integral) or not tail >= 0:
            raise UsageError(
                f"official_test is {tail!r}: expected how many of the last rows are the test set."
            )
        object.__setattr__(self, "official_test", int(tail))
        object.__setattr__(self, "order", tuple(self.order))
        object.__setattr__(self, "separator", parse_separator(self.separator))
        for name in ("quotes", "proposed"):
            if type(value := getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {value!r}: expected true or false.")

    def _read_columns(self) -> None:
        """Let columns be read as the table is."""
        if self.missing is not None:
            object.__setattr__(self, "missing", check_missing_marks(self.missing))
        build_number_form(self.decimal, self.thousands)
        if usual := self._reading_options:
            columns = tuple(column.read_as(usual) for column in self.columns)
            object.__setattr__(self, "columns", columns)
            object.__setattr__(self, "target", self.target.read_as(usual))

    @property
    def _reading_options(self) -> dict[str, Any]:
        """How the table's cells are read, as far as it is declared."""
        return {key: getattr(self, key) for key in READING_KEYS if getattr(self, key) is not None}

    def _columns_to_json(self) -> dict[str, dict[str, Any]]:
        """Return what is declared of each column, the target too, by name, and not of the table."""
        usual, found = self._reading_options, {}
        alike = {key: list(v) if isinstance(v, tuple) else v for key, v in usual.items()}
        for column in (*self.columns, self.target):
            values = column.to_json()
            # What a table says does not reach the columns that it ignores.
            reached = column.kind != "ignore"
            if reached and values.get("missing") == alike.get("missing"):
                values.pop("missing", None)
            number = ("decimal", "thousands")
            if reached and all(values.get(key) == alike.get(key) for key in number):
                values = {key: value for key, value in values.items() if key not in number}
            found[column.name] = values
        return found

    @property
    def shape(self) -> tuple[int]:
        """The shape of an encoded record."""
        return (sum(column.width for column in self.columns),)

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
        """The classes; those that an estimate did not find are unnamed, so that there are two."""
        found = self.target.categories or ()
        unnamed = tuple(f"(unnamed {i + 1})" for i in range(2 - len(found)))
        return () if self.target.categories is None else found + unnamed

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """The bounds of the number to predict."""
        return self.target.bounds

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record: one a class, or the prediction."""
        return 1 if self.regression else self.classes or 0

    @property
    def undeclared_task(self) -> str | None:
        """The target, if nothing says whether it holds classes or numbers."""
        return self.target.name if self.target.kind is None else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what an encoded record holds, in order."""
        return tuple(name for column in self.columns for name in column.feature_names())

    @property
    def undeclared(self) -> tuple[str, ...]:
        """The columns, and the target, that must be estimated before a record can be encoded."""
        return tuple(each.name for each in (*self.columns, self.target) if not each.is_declared)

    @property
    def complete(self) -> bool:
        """Whether everything is declared."""
        return not self.undeclared

    def max_shape(self, most: int) -> tuple[int]:
        """Return the shape of an encoded record, at most, whatever is estimated privately.

        Args:
            most: The most categories that are estimated privately for a column.
        """
        return (sum(_max_width(column, most) for column in self.columns),)

    @property
    def row_bound(self) -> float:
        """The largest norm of an encoded record: public.

        A category or a bin is 1 once, a number at most 1 beside it, and every word may be there.
        """
        most = 0
        for column in self.pieces:
            if column.kind == "text":
                most += len(column.vocabulary or ())
            elif column.kind != "ignore":
                most += 2 if column.kind == "number" else 1
        return math.sqrt(most)

    @property
    def pieces(self) -> tuple[Column, ...]:
        """What an encoded record holds, as columns of no dates: a date is several of them."""
        return tuple(piece for column in self.columns for piece in column.pieces)

    @property
    def row_layout(self) -> RowLayout:
        """What is public about an encoded record; texts are no columns that are paired."""
        found, start = [], 0
        for column in self.pieces:
            if column.kind in ("number", "category"):
                edges = column.scaled_edges if column.kind == "number" else None
                found.append(
                    EncodedColumn(start=start, width=column.width, edges=edges, may_miss=True)
                )
            start += column.width
        return RowLayout(bound=self.row_bound, columns=tuple(found))

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

    def iterate_columns(
        self, features: TableCells, labels: ColumnCells
    ) -> Iterator[tuple[Column, ColumnCells]]:
        """Go through the columns, the target last, with their cells.

        Args:
            features: (rows, columns).
            labels: (rows,).
        """
        for place, column in enumerate(self.columns):
            yield column, features[:, place]
        yield self.target, labels

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
        return find_present_rows(cells)

    def encode_labels(self, labels: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Return classes, int64, or numbers scaled to [0, 1], float32; and which are valid.

        Args:
            labels: Cells, (rows,). One that is missing or of no declared class is not valid.
        """
        if self.regression:
            scaled, known = self.target.scale_numbers(labels)
            return scaled.astype(np.float32), known
        classes = self.target.encode_categories(labels)
        known = classes < len(require_known(self.target.categories))
        return np.where(known, classes, 0), known

    def completed_by(self, other: object) -> TableSchema:
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
            places = {name: place for place, name in enumerate(get_column_names(records))}
            if gone := [name for name in names if name not in places]:
                raise UsageError(
                    describe_missing_columns(
                        "The table", gone, [n for n in places if n not in names]
                    )
                )
            own = [place for place, each in enumerate(self.columns) if each.name in places]
            given = records.iloc[:, [places[self.columns[place].name] for place in own]]
            records = np.full((len(given), len(self.columns)), None, object)
            records[:, own] = extract_cells(given)
        cells = records if isinstance(records, TextTable) else np.asarray(records, object)
        if len(cells.shape) != 2 or cells.shape[1] != len(self.columns):
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
        low, high = require_known(self.target.low), require_known(self.target.high)
        return low + scaled * (high - low)

    def describe_items(self) -> list[str]:
        """Return what every column turned out to be, one line each."""
        return [column.describe() for column in (*self.columns, self.target)]

    def check_arrays(
        self, where: str, features: np.ndarray | ArrayMetadata, labels: np.ndarray | ArrayMetadata
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
        target = None if target is None else normalize_unicode(target)
        aim, known = target or self.target.name, set(header)
        for name in (aim, *declared):
            if name not in known:
                whose = ", which the schema declares" if name in declared and name != target else ""
                hint = suggest_name(name, header).removesuffix("?")
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
        if self.classes is not None and len(self.target.categories or ()) < 2:
            return "fewer than two classes found"
        return "classes" if self.classes is None else f"{self.classes} classes"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        columns, usual = self._columns_to_json(), self._reading_options
        return {
            "kind": "table",
            "name": self.name,
            "target": columns.pop(self.target.name),
            "official_test": self.official_test,
            "columns": list(columns.values()),
            **({} if self.quotes else {"quotes": False}),
            **({"order": list(self.order)} if self.order else {}),
            **({"separator": self.separator} if self.separator else {}),
            **{key: list(v) if isinstance(v, tuple) else v for key, v in usual.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TableSchema:
        """Read what `request_to_json` wrote.

        Raises:
            UsageError: Anything else.
        """
        try:
            return cls(
                name=values["name"],
                target=Column.from_json(values["target"]),
                official_test=values["official_test"],
                quotes=values.get("quotes", True),
                order=tuple(values.get("order", ())),
                separator=values.get("separator"),
                missing=values.get("missing"),
                decimal=values.get("decimal"),
                thousands=values.get("thousands"),
                columns=tuple(map(Column.from_json, values["columns"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"The schema of a table is not well formed ({error!r}).") from None

    def to_toml_text(self, declared: TableSchema | None = None) -> str:
        """Return it as a schema file, which `from_toml` reads.

        Args:
            declared: What of it was not read from the records; all other lines say that they were.
                None: no line says so.
        """
        top: dict[str, Any] = {"name": self.name, "target": self.target.name}
        top |= {"official_test": self.official_test} if self.official_test else {}
        top |= {} if self.quotes else {"quotes": False}
        top |= {"separator": self.separator} if self.separator else {}
        top |= self._reading_options
        columns = self._columns_to_json()
        order = self.order or [column.name for column in (*self.columns, self.target)]
        top |= {"header": False} if self.order else {}
        known = self if declared is None else declared
        theirs, read = known._columns_to_json(), set[tuple[str, str]]()
        for name, values in columns.items():
            own = theirs.get(name, {})
            read |= {(name, key) for key, value in values.items() if own.get(key) != value}
        read |= {
            ("", key) for key in self._reading_options if getattr(known, key) != getattr(self, key)
        }
        return format_schema_toml(top, {name: columns[name] for name in order}, read)

    @classmethod
    def from_toml(cls, path: str | Path) -> TableSchema:
        """Read a schema file.

            target = "income"                 # required
            official_test = 16281             # how many of the last rows are the test set
            quotes = false                    # a quotation mark is an ordinary character
            header = false                    # the columns below are all, in the file's order
            separator = ";"                   # what stands between two cells
            missing = ["-", "unknown"]        # absent cells, beside empty ones, ?, NA and the like
            decimal = ","                     # what stands before decimals; [default: a point]
            thousands = "."                   # what stands between groups of digits
            proposed = true                   # read from the records: delete it when you edit them
            [columns.age]
            low = 17                          # bounds make it a number
            high = 90
            bins = [25, 35, 50, 65]           # or how many of equal width, or "quantiles"
            [columns.workclass]
            categories = ["Private", "State-gov"]
            [columns.fnlwgt]
            kind = "ignore"

        A column that is not mentioned, or has nothing under its name, is not declared. docs/data.md
        has every key.

        Raises:
            UsageError: No such file, no TOML, an unknown key, or a declaration that makes no sense.
        """
        path = Path(path)
        values = read_toml(path, "a schema file (TOML)")
        try:
            return cls.from_dict({"name": path.stem, **values})
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """Return a schema from plain values, with the keys of a schema's file.

            Schema.from_dict(
                {
                    "target": "income",
                    "columns": {
                        "age": {"low": 17, "high": 90},
                        "income": {"categories": ["<=50K", ">50K"]},
                    },
                }
            )

        Args:
            values: As of `from_toml`: `target`, `columns` by name, and so on.

        Raises:
            UsageError: An unknown key, or a declaration that makes no sense.
        """
        parts = parse_schema(values)
        return cls(**parts)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        target: str | None = None,
        declared: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        estimate: bool = False,
        categories_are_public: bool = False,
    ) -> TableSchema:
        """Return the schema of a pandas frame from the names and types of its columns alone.

        Guarantee: no value is read, so frames with columns of the same names and types have the
        same schema, whatever their rows are.

        A type may come from values itself: `pandas.read_csv` makes numbers of a column unless one
        cell is none. So a run lists the types of a frame among what it takes as public; read with
        `dtype="str", keep_default_na=False`, or give the file, and there are none. What categories
        a `category` column has usually comes from the records too (`astype("category")`,
        `get_dummies`): they are used only where you say that they are public.

        | type of a column | what is taken from it |
        |---|---|
        | whole numbers, fractions | a number: declare `low` and `high` |
        | bool | the categories False and True |
        | category | with `categories_are_public`, its categories; otherwise declare them |
        | datetime | a date: declare `lower` and `upper` |
        | object, text | nothing: declare `categories`, `vocabulary`, bounds, or `kind` |

        Args:
            frame: With a column for each feature and the target.
            target: The column to predict; the last one, if None.
            declared: What is known of columns, by name, with the keys of a schema's file:
                `{"age": {"low": 17, "high": 90}, "id": {"kind": "ignore"}}`.
            estimate: What nothing is declared of is left open: a run estimates it privately,
                within its budget. False: it is an error that names each such column.
            categories_are_public: The categories of `category` columns were fixed without a look
                at the records.

        Raises:
            UsageError: A column that must be declared and is not, one that is not there, or a
                declaration that makes no sense.
        """
        columns = build_frame_columns(
            frame, declared or {}, estimate=estimate, categories_are_public=categories_are_public
        )
        names = list(columns)
        aim = names[-1] if target is None else normalize_unicode(str(target))
        if aim not in columns:
            raise UsageError(f"The frame has no column {aim!r}{suggest_name(aim, names)}.")
        found = columns.pop(aim)
        check_class_count(found)
        return cls(columns=tuple(columns.values()), target=found, name="frame")


AnySchema = Schema | TableSchema


def make_undeclared_schema(header: Sequence[str], target: str, name: str = "table") -> TableSchema:
    """Return the schema of a file about which nothing is declared."""
    columns = tuple(Column(name=each) for each in header if each != target)
    return TableSchema(columns=columns, target=Column(name=target), name=name)


def _max_width(column: Column, most: int) -> int:
    if column.is_declared:
        return column.width
    # Any bounds will do: they do not change how many bins there are.
    number = Column(name=column.name, low=0.0, high=1.0, bins=column.bins).width
    by_kind = {"number": number, "category": most + 2}
    return by_kind.get(column.kind or "", max(by_kind.values()))
