"""Schema of a table, which encodes rows as features in [0, 1].

The encoding of a cell depends on the schema and this cell only, so a record affects only its own
row. No value raises an error. `data.column` defines the features of a cell.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pasearch.data.cells import ColumnCells, TableCells, check_missing_marks, normalize_unicode
from pasearch.data.column import NOTATION_KEYS, Column
from pasearch.data.frames import build_frame_columns, extract_cells, get_column_names
from pasearch.data.lines import parse_separator
from pasearch.data.numbers import build_number_form
from pasearch.data.schema import ArrayMetadata, EncodedColumn, RowLayout, Schema, require_known
from pasearch.data.schema_file import (
    DEFAULT_TEXT_LENGTH,
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
"""Maximum number of features of a row: each neuron of a first layer has one weight per feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """Declaration of a table's records, with the same properties as `data.schema.Schema`.

    Undeclared properties of a column are estimated privately before the first training, or read
    from the records if the user assumes them public (`data.estimation`).

    Args:
        columns: Feature columns, in the file's order.
        target: Column to predict: a category or a number; an undeclared kind means a category.
        official_test: Number of rows at the end that are the official test set.
        name: Name of the data set.
        quotes: Whether quotation marks enclose cells; False: they are ordinary characters.
        order: Names of all columns, in order, if the file has no header; otherwise empty.
        separator: Separator of the cells of the file; None: detected in the header.
        missing: Marks of absent cells, for every column that declares none.
        decimal: Decimal mark, for every column that declares no notation of numbers.
        thousands: Separator between groups of digits, for the same columns as `decimal`.
        proposed: Whether the schema was read from the records (as by `pasearch check`). It is then
            as private as they are until somebody has edited it.

    Raises:
        UsageError: Two columns with the same name; or a target that is no category or number, or
            has bins.

        >>> income = Column(name="income", categories=("no", "yes"))
        >>> TableSchema(columns=(Column(name="age", low=0, high=100),), target=income).describe()
        '1 column, 12 features, 2 classes'
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
        if self.missing is not None:
            object.__setattr__(self, "missing", check_missing_marks(self.missing))
        build_number_form(self.decimal, self.thousands)
        if usual := self._table_notation:
            columns = tuple(column.with_table_notation(usual) for column in self.columns)
            object.__setattr__(self, "columns", columns)
            object.__setattr__(self, "target", self.target.with_table_notation(usual))
        names = [column.name for column in (*self.columns, self.target)]
        for name, times in Counter(names).items():
            if times > 1:
                raise UsageError(f"Column {name!r} occurs twice: expected distinct names.")
        if self.target.kind in ("text", "date", "ignore") or self.target.bins is not None:
            has = self.target.kind if self.target.bins is None else "a number with bins"
            raise UsageError(
                f"Column {self.target.name!r} is the target and is declared as {has}: expected a "
                "category, or a number without bins. Change its kind, or choose another target."
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
                f"official_test is {tail!r}: expected the number of rows at the end that are the "
                "test set."
            )
        object.__setattr__(self, "official_test", int(tail))
        object.__setattr__(self, "order", tuple(self.order))
        object.__setattr__(self, "separator", parse_separator(self.separator))
        for name in ("quotes", "proposed"):
            if type(value := getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {value!r}: expected true or false.")

    @property
    def _table_notation(self) -> dict[str, Any]:
        """Notation of cells that is declared for the whole table, by key."""
        return {key: getattr(self, key) for key in NOTATION_KEYS if getattr(self, key) is not None}

    def _columns_to_json(self) -> dict[str, dict[str, Any]]:
        """Return the declaration of each column by name, without values declared for the table."""
        usual, found = self._table_notation, {}
        alike = {key: list(v) if isinstance(v, tuple) else v for key, v in usual.items()}
        for column in (*self.columns, self.target):
            values = column.to_json()
            # Ignored columns do not inherit the table's notation.
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
        """Shape of an encoded record."""
        return (sum(column.width for column in self.columns),)

    @property
    def regression(self) -> bool:
        """Whether a number is predicted."""
        return self.target.kind == "number"

    @property
    def classes(self) -> int | None:
        """Number of classes; None for regression, or if the classes are unknown."""
        return None if self.target.categories is None else len(self.class_names)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; padded with unnamed ones to two if an estimate found fewer."""
        found = self.target.categories or ()
        unnamed = tuple(f"(unnamed {i + 1})" for i in range(2 - len(found)))
        return () if self.target.categories is None else found + unnamed

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """Bounds of the regression target."""
        return self.target.bounds

    @property
    def outputs(self) -> int:
        """Number of outputs of a network: one per class, or 1 for regression."""
        return 1 if self.regression else self.classes or 0

    @property
    def undeclared_task(self) -> str | None:
        """Name of the target if its kind (classes or numbers) is undeclared; else None."""
        return self.target.name if self.target.kind is None else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features of an encoded record, in order."""
        return tuple(name for column in self.columns for name in column.feature_names())

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Names of the columns, target included, that must be estimated before encoding."""
        return tuple(each.name for each in (*self.columns, self.target) if not each.is_declared)

    @property
    def complete(self) -> bool:
        """Whether everything is declared."""
        return not self.undeclared

    def max_shape(self, most: int) -> tuple[int]:
        """Return the largest possible shape of an encoded record after private estimation.

        Args:
            most: Maximum number of estimated categories per column.
        """
        return (sum(_max_width(column, most) for column in self.columns),)

    @property
    def row_bound(self) -> float:
        """Maximum L2 norm of an encoded record: public.

        In the squared norm, a category or a bin adds 1, a scaled number at most 1, each word of a
        vocabulary at most 1, and each token at most 1.
        """
        most = 0
        for column in self.pieces:
            if column.kind == "text":
                most += column.length or len(column.vocabulary or ())
            elif column.kind != "ignore":
                most += 2 if column.kind == "number" else 1
        return math.sqrt(most)

    @property
    def token_column(self) -> str | None:
        """Name of the column that is read as a sequence of words; None if there is none."""
        return next((column.name for column in self.columns if column.length), None)

    @property
    def pieces(self) -> tuple[Column, ...]:
        """Columns of an encoded record; each date is replaced by several columns."""
        return tuple(piece for column in self.columns for piece in column.pieces)

    @property
    def row_layout(self) -> RowLayout:
        """Layout of an encoded record: numbers and categories, but not texts."""
        found, start = [], 0
        for column in self.pieces:
            if column.kind in ("number", "category"):
                edges = column.scaled_edges if column.kind == "number" else None
                own = EncodedColumn(start=start, width=column.width, edges=edges, may_miss=True)
                found.append(own)
            start += column.width
        return RowLayout(bound=self.row_bound, columns=tuple(found))

    def find(
        self, name: str, features: TableCells, labels: ColumnCells
    ) -> tuple[Column, ColumnCells]:
        """Return a column by name, target included, with its cells.

        Args:
            name: Name of the column.
            features: Cells, (rows, columns).
            labels: Cells of the target, (rows,).
        """
        if name == self.target.name:
            return self.target, labels
        place = [column.name for column in self.columns].index(name)
        return self.columns[place], features[:, place]

    def iterate_columns(
        self, features: TableCells, labels: ColumnCells
    ) -> Iterator[tuple[Column, ColumnCells]]:
        """Iterate over the columns with their cells, the target last.

        Args:
            features: Cells, (rows, columns).
            labels: Cells of the target, (rows,).
        """
        for place, column in enumerate(self.columns):
            yield column, features[:, place]
        yield self.target, labels

    def is_class(self, name: str) -> bool:
        """Whether the column of this name contains the classes to predict."""
        return name == self.target.name and not self.regression

    def completed(self, columns: Mapping[str, Column]) -> TableSchema:
        """Return the schema with columns, target included, replaced by name."""
        return replace(
            self,
            columns=tuple(columns.get(each.name, each) for each in self.columns),
            target=columns.get(self.target.name, self.target),
        )

    def encode(self, features: TableCells, *, out: np.ndarray) -> np.ndarray:
        """Encode rows into `out`, and return which of them are not null records.

        Guarantee: a row is encoded from its own cells alone, into [0, 1]; no value raises an error.

        Args:
            features: Cells, (rows, columns): strings, numbers, or None.
            out: Output array, float32, (rows, *shape).

        Returns:
            bool, (rows,); False if every cell is None.
        """
        cells = features if isinstance(features, TextTable) else np.asarray(features)
        out[...] = 0.0
        start = 0
        for place, column in enumerate(self.columns):
            end = start + column.width
            column.encode(cells[:, place], out=out[:, start:end])
            start = end
        if isinstance(cells, TextTable):
            return cells.present()
        return np.array([any(c is not None for c in row) for row in cells.tolist()], bool)

    def encode_labels(self, labels: ColumnCells) -> tuple[np.ndarray, np.ndarray]:
        """Encode labels as classes or scaled numbers, and return which are valid.

        Args:
            labels: Cells, (rows,); a missing value or an undeclared class is not valid.

        Returns:
            Classes, int64, or numbers scaled to [0, 1], float32, (rows,). Whether each is valid,
            bool, (rows,).
        """
        if self.regression:
            scaled, known = self.target.scale_numbers(labels)
            return scaled.astype(np.float32), known
        classes = self.target.encode_categories(labels)
        known = classes < len(require_known(self.target.categories))
        return np.where(known, classes, 0), known

    def completed_by(self, other: object) -> TableSchema:
        """Return the schema with undeclared columns copied from the schema of another table."""
        theirs = getattr(other, "columns", ()), getattr(other, "target", None)
        known = {each.name: each for each in (*theirs[0], theirs[1]) if isinstance(each, Column)}
        if gone := [name for name in self.undeclared if name not in known]:
            raise UsageError(
                f"The public data have no column {', '.join(map(repr, gone))}: declare it in a "
                "schema, or use a table with the same header."
            )
        return self.completed({name: known[name] for name in self.undeclared})

    def encode_new(self, records: Any) -> np.ndarray:
        """Return the encoded rows of a new table, float32, (rows, *shape).

        Args:
            records: pandas frame with the schema's columns, in any order; or cells, 2-D.

        Raises:
            UsageError: A missing column.
        """
        names = [column.name for column in self.columns if column.kind != "ignore"]
        if hasattr(records, "columns"):
            places = {name: place for place, name in enumerate(get_column_names(records))}
            if gone := [name for name in names if name not in places]:
                others = [name for name in places if name not in names]
                raise UsageError(describe_missing_columns("The table", gone, others))
            own = [place for place, each in enumerate(self.columns) if each.name in places]
            given = records.iloc[:, [places[self.columns[place].name] for place in own]]
            records = np.full((len(given), len(self.columns)), None, object)
            records[:, own] = extract_cells(given)
        cells = records if isinstance(records, TextTable) else np.asarray(records, object)
        if len(cells.shape) != 2 or cells.shape[1] != len(self.columns):
            raise UsageError(
                f"The table has shape {cells.shape}: expected a list of rows, such as "
                f"[[{', '.join(['...'] * min(len(self.columns), 3))}]], with {len(self.columns)} "
                "cells per row: every column of the schema except the target, also ignored ones."
            )
        x = np.zeros((len(cells), *self.shape), np.float32)
        self.encode(cells, out=x)
        return x

    def decode_class(self, classes: np.ndarray) -> np.ndarray:
        """Return the names of classes, strings, (rows,)."""
        return np.array(self.class_names)[classes]

    def decode_number(self, scaled: np.ndarray) -> np.ndarray:
        """Return predictions in the original units of the target."""
        low, high = require_known(self.target.low), require_known(self.target.high)
        return low + scaled * (high - low)

    def describe_items(self) -> list[str]:
        """Return one line of description per column."""
        return [column.describe() for column in (*self.columns, self.target)]

    def check_arrays(
        self, where: str, features: np.ndarray | ArrayMetadata, labels: np.ndarray | ArrayMetadata
    ) -> None:
        """Raise UsageError if the shapes of the cells do not fit; no value is read.

        Raises:
            UsageError: Another number of columns, or all columns ignored.
        """
        if all(column.kind == "ignore" for column in self.columns):
            raise UsageError(
                f"Data {where!r}: all columns except the target {self.target.name!r} are ignored: "
                "expected at least one feature."
            )
        if len(features.shape) != 2 or features.shape[1] != len(self.columns):
            raise UsageError(
                f"Data {where!r}: the cells have shape {features.shape}, the schema has "
                f"{len(self.columns)} columns besides the target: expected (rows, columns)."
            )
        if len(labels.shape) != 1:
            raise UsageError(
                f"Data {where!r}: the targets have shape {labels.shape}: expected (rows,)."
            )

    def for_header(
        self, header: Sequence[str], *, where: str, target: str | None = None
    ) -> TableSchema:
        """Return the schema in a file's order, with the other columns added as undeclared.

        Args:
            header: Names of the file's columns.
            where: Name of the file, for messages.
            target: Name of another target column; None: the schema's target.

        Raises:
            UsageError: A declared column that is not in the file.
        """
        declared = {column.name: column for column in (*self.columns, self.target)}
        target = None if target is None else normalize_unicode(target)
        target_name, known = target or self.target.name, set(header)
        for name in (target_name, *declared):
            if name not in known:
                whose = ", which the schema declares" if name in declared and name != target else ""
                hint = suggest_name(name, header).removesuffix("?")
                raise UsageError(f"{where} has no column {name!r}{whose}{hint}.")
        columns = {name: declared.get(name, Column(name=name)) for name in header}
        return replace(self, target=columns.pop(target_name), columns=tuple(columns.values()))

    def describe(self) -> str:
        """Describe the schema in one line."""
        features = f", {self.shape[0]} features" if self.complete else ""
        columns = "1 column" if len(self.columns) == 1 else f"{len(self.columns)} columns"
        quotes = "" if self.quotes else "; quotation marks are ordinary characters"
        return f"{columns}{features}, {self.describe_task()}{quotes}"

    def describe_task(self) -> str:
        """Describe the prediction task."""
        if self.regression:
            bounds = self.target_bounds
            return "a number" if bounds is None else "a number in [{:g}, {:g}]".format(*bounds)
        if self.classes is not None and len(self.target.categories or ()) < 2:
            return "fewer than two classes found"
        return "classes" if self.classes is None else f"{self.classes} classes"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        columns, usual = self._columns_to_json(), self._table_notation
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
        """Create a schema from the output of `to_json`.

        Raises:
            UsageError: Malformed values.
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
            raise UsageError(f"The JSON schema of a table is malformed ({error!r}).") from None

    def to_toml_text(self, declared: TableSchema | None = None) -> str:
        """Render the schema as a file that `from_toml` reads.

        Args:
            declared: Schema before its completion from the records; lines that differ from it get a
                comment. None: no line gets a comment.
        """
        top: dict[str, Any] = {"name": self.name, "target": self.target.name}
        top |= {"official_test": self.official_test} if self.official_test else {}
        top |= {} if self.quotes else {"quotes": False}
        top |= {"separator": self.separator} if self.separator else {}
        top |= self._table_notation
        columns = self._columns_to_json()
        order = self.order or [column.name for column in (*self.columns, self.target)]
        top |= {"header": False} if self.order else {}
        known = self if declared is None else declared
        theirs, read = known._columns_to_json(), set[tuple[str, str]]()
        for name, values in columns.items():
            own = theirs.get(name, {})
            read |= {(name, key) for key, value in values.items() if own.get(key) != value}
        same = {key for key in NOTATION_KEYS if getattr(known, key) == getattr(self, key)}
        read |= {("", key) for key in self._table_notation if key not in same}
        return format_schema_toml(top, {name: columns[name] for name in order}, read)

    @classmethod
    def from_toml(cls, path: str | Path) -> TableSchema:
        """Read a schema file.

            target = "income"                 # required
            official_test = 16281             # number of rows at the end that are the test set
            quotes = false                    # quotation marks are ordinary characters
            header = false                    # no header: the columns below are all, in order
            separator = ";"                   # separator of cells
            missing = ["-", "unknown"]        # absent cells besides empty ones, ?, NA and others
            decimal = ","                     # decimal mark [default: a point]
            thousands = "."                   # separator between groups of digits
            proposed = true                   # read from the records: delete it when you edit them
            [columns.age]
            low = 17                          # bounds make it a number
            high = 90
            bins = [25, 35, 50, 65]           # or the number of bins of equal width, or "quantiles"
            [columns.workclass]
            categories = ["Private", "State-gov"]
            [columns.fnlwgt]
            kind = "ignore"

        A column without a table, or with an empty one, is undeclared. docs/data.md lists every key.

        Raises:
            UsageError: No such file, invalid TOML, an unknown key, or an invalid declaration.
        """
        path = Path(path)
        values = read_toml(path, "a schema file (TOML)")
        try:
            return cls.from_dict({"name": path.stem, **values})
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableSchema:
        """Create a schema from plain values, with the keys of a schema file.

        Args:
            values: Values by key: `target`, `columns` by name, and the other keys of `from_toml`.

        Raises:
            UsageError: An unknown key, or an invalid declaration.

            >>> income = {"categories": ["<=50K", ">50K"]}
            >>> columns = {"age": {"low": 17, "high": 90}, "income": income}
            >>> TableSchema.from_dict({"target": "income", "columns": columns}).describe()
            '1 column, 12 features, 2 classes'
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
        """Create the schema of a pandas frame from the names and dtypes of its columns alone.

        Guarantee: no value is read, so the schema depends on column names and dtypes only.

        A dtype may itself depend on values: `pandas.read_csv` makes a column numeric unless one
        cell is not a number. Therefore a run lists the dtypes of a frame among the facts assumed
        public. To avoid this, read the file with `dtype="str", keep_default_na=False`, or pass its
        path. The categories of a `category` column usually come from the records too
        (`astype("category")`, `get_dummies`). They are used only if you declare them public.

        | dtype of a column | declaration inferred from it |
        |---|---|
        | integer, float | a number: declare `low` and `high` |
        | bool | the categories False and True |
        | category | with `categories_are_public`, its categories; otherwise declare them |
        | datetime | a date: declare `lower` and `upper` |
        | object, string | none: declare `categories`, `vocabulary`, bounds, or `kind` |

        Args:
            frame: Frame with a column for each feature and the target.
            target: Name of the column to predict; None: the last one.
            declared: Declarations by column name, with the keys of a schema file:
                `{"age": {"low": 17, "high": 90}, "id": {"kind": "ignore"}}`.
            estimate: Whether undeclared columns are left for private estimation by a run, within
                its budget. False: an error names each such column.
            categories_are_public: Whether the categories of `category` columns are public.

        Raises:
            UsageError: A column that must be declared, a missing one, or an invalid declaration.
        """
        columns = build_frame_columns(
            frame, declared or {}, estimate=estimate, categories_are_public=categories_are_public
        )
        names = list(columns)
        name = names[-1] if target is None else normalize_unicode(str(target))
        if name not in columns:
            raise UsageError(f"The frame has no column {name!r}{suggest_name(name, names)}.")
        found = columns.pop(name)
        check_class_count(found)
        return cls(columns=tuple(columns.values()), target=found, name="frame")


AnySchema = Schema | TableSchema


def make_undeclared_schema(header: Sequence[str], target: str, name: str = "table") -> TableSchema:
    """Create the schema of a file for which nothing is declared."""
    columns = tuple(Column(name=each) for each in header if each != target)
    return TableSchema(columns=columns, target=Column(name=target), name=name)


def _max_width(column: Column, most: int) -> int:
    """Return the maximum number of features of a column with at most `most` categories."""
    if column.is_declared or column.length:
        return column.width
    # Any bounds will do: they do not change how many bins there are.
    number = Column(name=column.name, low=0.0, high=1.0, bins=column.bins).width
    by_kind = {"number": number, "category": most + 2}
    return by_kind.get(column.kind or "", max(by_kind.values()))


SchemaArgument = str | Path | Mapping[str, Any] | TableSchema
"""Accepted types of the `schema` argument."""


def load_schema(given: SchemaArgument) -> TableSchema:
    """Convert a `schema` argument to a `TableSchema`.

    Args:
        given: Path of a schema file, dict with the keys of such a file, or schema.

    Raises:
        UsageError: Another type, or an invalid declaration.
    """
    if isinstance(given, TableSchema):
        return given
    if isinstance(given, Mapping):
        # The JSON form of a table's schema; TOML files have no such key.
        if given.get("kind") == "table":
            values = dict(given)
            proposed = values.pop("proposed", False)
            return replace(TableSchema.from_json(values), proposed=proposed)
        try:
            return TableSchema.from_dict(given)
        except UsageError as error:
            raise UsageError(f"schema: {error}") from None
    if isinstance(given, (str, Path)):
        return TableSchema.from_toml(given)
    raise UsageError(
        f"schema is of type {type(given).__name__}: expected the path of a .toml, a dict with its "
        'keys such as {"target": "income", "columns": {"age": {"low": 17, "high": 90}}}, or a '
        "pasearch.Schema."
    )


def to_plain_json(value: Any) -> Any:
    """Convert a schema, NumPy scalar or path to a JSON-compatible value.

    A resumed run passes the converted schema to `load_schema`.
    """
    if isinstance(value, TableSchema):
        return {**value.to_json(), **({"proposed": True} if value.proposed else {})}
    return value.item() if hasattr(value, "item") else os.fspath(value)


def declare_text(schema: TableSchema, name: str | None) -> TableSchema:
    """Return a schema with one column declared as a text of `DEFAULT_TEXT_LENGTH` words.

    Args:
        schema: Schema in a file's order.
        name: Name of the column; None: the schema is returned unchanged.

    Raises:
        UsageError: There is no such feature column, or the schema declares it as another kind.
    """
    if name is None:
        return schema
    columns = {column.name: column for column in schema.columns}
    if name == schema.target.name:
        other = next(iter(columns)) if len(columns) == 1 else ""
        raise UsageError(
            f"`text={name}`: column {name!r} is the target, by default the last column: name the "
            f"column to predict (`target={other}`)."
        )
    if name not in columns:
        raise UsageError(
            f"`text={name}` is not a feature column{suggest_name(name, list(columns))}."
        )
    if columns[name].kind not in (None, "text"):
        raise UsageError(
            f"`text={name}` declares a text, but the schema declares this column as a "
            f"{columns[name].kind}: remove one of the two declarations."
        )
    own = replace(columns[name], kind="text", length=columns[name].length or DEFAULT_TEXT_LENGTH)
    return schema.completed({name: own})
