"""Tables: what is public about the columns together, and how rows become numbers in [0, 1].

A cell is encoded from the schema and itself alone, so a record changes its own row and no other; no
value raises. `data.column` says what a cell becomes.

Source: docs/rules.md, rules 3 and 13.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from pasearch.data.cells import ColumnCells, TableCells, each_whole, present, text_of
from pasearch.data.column import COLUMN_KEYS, Column
from pasearch.data.lines import separator_of
from pasearch.data.schema import Form, RowColumn, RowForm, Schema, needed
from pasearch.data.text_columns import TextTable
from pasearch.errors import UsageError
from pasearch.files import read_toml
from pasearch.shown import shown

BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML takes without quotes."""

MOST_NUMBERS = 2_000_000
"""The most numbers that a row may become: a network's first layer has as many weights a neuron."""

TOP_KEYS = (
    "name", "target", "official_test", "quotes", "header", "separator", "columns", "proposed",
)  # fmt: skip


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
        proposed: Whether it was read from the records (as `pasearch check` does), so that it is
            as private as they are until somebody has edited it.

    Raises:
        UsageError: Two columns of one name, or a target that is text or ignored, or has bins.
    """

    columns: tuple[Column, ...]
    target: Column
    official_test: int = 0
    name: str = "table"
    quotes: bool = True
    order: tuple[str, ...] = ()
    separator: str | None = None
    proposed: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
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
        object.__setattr__(self, "order", tuple(self.order))
        object.__setattr__(self, "separator", separator_of(self.separator))
        for name in ("quotes", "proposed"):
            if type(value := getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {value!r}: expected true or false.")

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
        return tuple(each.name for each in (*self.columns, self.target) if not each.declared)

    @property
    def complete(self) -> bool:
        """Whether everything is declared."""
        return not self.undeclared

    def widest_shape(self, most: int) -> tuple[int]:
        """Return the shape of an encoded record, at most, whatever is estimated privately.

        Args:
            most: The most categories that are estimated privately for a column.
        """
        return (sum(_widest(column, most) for column in self.columns),)

    @property
    def row_bound(self) -> float:
        """The largest norm of an encoded record: public.

        A category or a bin is 1 once, a number at most 1 beside it, and every word may be there.
        """
        most = 0
        for column in self.columns:
            if column.kind == "text":
                most += len(column.vocabulary or ())
            elif column.kind != "ignore":
                most += 2 if column.kind == "number" else 1
        return math.sqrt(most)

    @property
    def row_form(self) -> RowForm:
        """What is public about an encoded record; texts are no columns that are paired."""
        found, start = [], 0
        for column in self.columns:
            if column.kind in ("number", "category"):
                edges = column.scaled_edges if column.kind == "number" else None
                found.append(RowColumn(start=start, width=column.width, edges=edges, may_miss=True))
            start += column.width
        return RowForm(bound=self.row_bound, columns=tuple(found))

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
        places = {name: i for i, name in enumerate(needed(self.target.categories))}
        classes = each_whole(lambda cell: places.get(text_of(cell), -1), labels)
        return np.maximum(classes, 0), classes >= 0

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
            if gone := [name for name in names if name not in records.columns]:
                raise UsageError(f"The table has no column {', '.join(map(repr, gone))}: add it.")
            records = records.reindex(columns=[column.name for column in self.columns])
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
        low, high = needed(self.target.low), needed(self.target.high)
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
            **({"order": list(self.order)} if self.order else {}),
            **({"separator": self.separator} if self.separator else {}),
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
                order=tuple(values.get("order", ())),
                separator=values.get("separator"),
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
        if self.separator:
            lines.append(f"separator = {_quoted(self.separator)}")
        columns = {column.name: column for column in (*self.columns, self.target)}
        if self.order:
            lines.append("header = false")
            columns = {name: columns[name] for name in self.order}
        for column in columns.values():
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
            header = false                    # the columns below are all, in the file's order
            separator = ";"                   # what stands between two cells
            proposed = true                   # read from the records: delete it when you edit them
            [columns.age]
            low = 17                          # bounds make it a number
            high = 90
            bins = [25, 35, 50, 65]           # or how many of equal width, or "quantiles"
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


AnySchema = Schema | TableSchema


def undeclared(header: Sequence[str], target: str, name: str = "table") -> TableSchema:
    """Return the schema of a file about which nothing is declared."""
    columns = tuple(Column(name=each) for each in header if each != target)
    return TableSchema(columns=columns, target=Column(name=target), name=name)


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
    order = _toml_order(values.get("header", True), columns, target)
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
        order=order, separator=values.get("separator"), proposed=values.get("proposed", False),
    )  # fmt: skip


def _toml_order(header: object, columns: Mapping[str, Column], target: str) -> tuple[str, ...]:
    """Return the columns of a file without a header, in order."""
    if type(header) is not bool:
        raise UsageError(f"header is {header!r}: expected true or false.")
    if not header and (target not in columns or len(columns) < 2):
        raise UsageError(
            "it says `header = false`: write every column of the file under it, the target too, in "
            "the file's order, as [columns.age] and the like."
        )
    return () if header else tuple(columns)


def _toml_column(name: str, values: dict[str, Any]) -> Column:
    _check_keys(f"column {name!r}", values, COLUMN_KEYS)
    column = Column(name=name, **values)
    if column.kind == "number" and isinstance(column.bins, tuple) and column.low is not None:
        outside = [e for e in column.bins if not column.low < e < needed(column.high)]
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
