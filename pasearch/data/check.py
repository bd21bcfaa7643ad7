"""The curator's check of a table: what is wrong with it, row by row, and a schema to start from.

It reads every value without a charge and names them: its output is for the curator's own eyes, on
the curator's own machine. Nothing else in the program looks at a table in this way.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pasearch.data.cells import ColumnCells
from pasearch.data.column import Column
from pasearch.data.csv_file import width_words
from pasearch.data.lines import Fault
from pasearch.data.numbers import PLAIN, NumberForm
from pasearch.data.problems import Problem, at, column_problems, table_problems
from pasearch.data.proposals import proposal
from pasearch.data.seen import Seen
from pasearch.data.sources import rows_above, source_of
from pasearch.data.table_file import read_with_faults
from pasearch.data.tables import TableSchema
from pasearch.data.text_columns import TextTable
from pasearch.errors import UsageError
from pasearch.shown import shown

WARNING = (
    "This shows private values. It is for whoever may see the records themselves: do not let it "
    "leave this machine, and put nothing of it into a publication, a log or a message."
)

TOML_WARNING = """\
# Proposed from the records themselves: PRIVATE until you have edited it. Replace every bound and
# every category by what you would write down without the records (a code book, a law, a form), and
# delete what you only know from them: what is missing is estimated privately, within the budget.
# Then delete the next line: as long as it stands here, a run refuses this file.
proposed = true
"""

NULL = (
    "cannot be used in a run (unreadable, or no known {target}): they train nothing, and each "
    "counts as a mistake in the test score"
)
"""What is said of the rows that a run cannot use."""

UNNAMED = "a run does not take a file of this name: rename it so that it ends in .csv"
"""What is said of a file that is a table, if one knows."""

MANY = 0.1
"""If more than this share of the rows cannot be used, that is said before all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check_table` found: private.

    Args:
        path: The file.
        n: How many records it has.
        first: What is said before all else; empty if nothing is.
        problems: Table first, then column by column in the file's order.
        proposed: A complete schema, guessed from the records.
        declared: What of it was declared beforehand.
    """

    path: Path
    n: int
    first: str = ""
    problems: tuple[Problem, ...]
    proposed: TableSchema
    declared: TableSchema

    def text(self) -> str:
        """Return it for a terminal, with the warning before all values."""
        found = [f"  {problem.text()}" for problem in self.problems] or ["  no problem found"]
        head = f"{shown(self.path)}: {self.n:,} records, {self.proposed.describe()}"
        before = [self.first, ""] if self.first else []
        return "\n".join([*before, f"WARNING. {WARNING}", "", head, *found]) + "\n"

    def toml(self) -> str:
        """Return the proposed schema as a file to edit, the warning first."""
        return f"{TOML_WARNING}\n{self.proposed.to_toml_text(self.declared)}"


def check_table(
    path: str | Path,
    target: str | None = None,
    schema: TableSchema | None = None,
    *,
    quotes: bool = True,
    columns: str | Path | Sequence[str] | None = None,
    separator: str | None = None,
    regression: bool = False,
) -> CheckReport:
    """Look at every value of a table's file.

    Args:
        path: The file.
        target: The column to predict; the schema's, or the last one, if None.
        schema: What is declared; the values are held against it.
        quotes: As of `read_table`, like columns and separator.
        columns: See there.
        separator: See there.
        regression: A number is predicted, whatever the target looks like.

    Raises:
        UsageError: The file's form is bad, or does not fit the schema; no row can be read; a number
            is to be predicted, and the schema declares something else.

    Cost: none is charged, for nothing is released: the report is private.
    """
    path = Path(path)
    chosen = target is None and schema is None
    _check_kind(path)
    (declared, features, labels), faults = read_with_faults(
        path, target, schema, quotes=quotes, columns=columns, separator=separator
    )
    if None not in faults:
        raise UsageError(_no_row_words(path, declared, faults))
    if regression:
        declared = _with_a_number(declared)
    parsed = features.present()
    whole = TextTable(cells=(*features.cells, labels))
    in_table = table_problems(whole, faults)
    read = [
        _Read.of(column, cells, parsed, column.name == declared.target.name)
        for column, cells in declared.each(features, labels)
    ]
    if any(each.needs_form and all(f.decimal == "," for f in each.fits) for each in read):
        # Where one column has decimal commas for certain, they decide about the others.
        read = [each.with_commas() for each in read]
    complete = _schema_of(declared, read)
    marks = complete.missing or ()
    in_columns = [problem.settled(marks) for each in read for problem in each.problems]
    usable = parsed & complete.encode_labels(labels)[1]
    null = NULL.format(target="number" if complete.target.kind == "number" else "class")
    above = rows_above(path, declared)
    problems = (*_of_name(path), *in_table, *at(None, null, ~usable), *in_columns)
    return CheckReport(
        path=path,
        n=len(labels),
        first=_many_words(parsed, usable, faults, complete.target, labels, chosen=chosen),
        problems=tuple(problem.below(above) for problem in problems),
        proposed=complete,
        declared=declared,
    )


def _check_kind(path: Path) -> None:
    """Refuse data that are no table, by their name.

    Raises:
        UsageError: It says what they are, and what is declared of them instead of a schema.
    """
    source = source_of(str(path))
    if source is None or "schema" in source.uses:
        return
    if source.is_path:
        declares = "`image_side=`" if "image_side" in source.uses else "`bounds=` and `classes=`"
        told = f"Of such data, declare {declares}."
    else:
        told = "All that a run has to know of it is declared already, so nothing is to be checked."
    raise UsageError(
        f"`pasearch check` looks at tables, and {path} ({source.kind}) is none. {told}"
    )


def _of_name(path: Path) -> list[Problem]:
    """Return that no run takes a file of this name, if so."""
    return [] if source_of(str(path)) else [Problem(column=None, what=UNNAMED)]


def _no_row_words(path: Path, declared: TableSchema, faults: Sequence[Fault | None]) -> str:
    """Return what is said of a file of which no row can be read."""
    if Fault.WIDTH in faults:
        return width_words(path, declared)
    why = Counter(fault.value for fault in faults if fault is not None).most_common(1)[0][0]
    return f"{path}: no row can be used. What most rows have: {why}."


def _many_words(
    parsed: np.ndarray, usable: np.ndarray, faults: Sequence[Fault | None], target: Column,
    labels: ColumnCells, *, chosen: bool,
) -> str:  # fmt: skip
    """Return what is said before all else if many rows cannot be used.

    Args:
        parsed: Which rows can be read.
        usable: Which of them also have a target that is known.
        faults: Why each row cannot be read.
        target: As it is proposed.
        labels: The target's cells.
        chosen: Whether the target is the last column because nobody named one.
    """
    n, bad = len(usable), len(usable) - np.count_nonzero(usable)
    if not bad > MANY * n:
        return ""
    lost = np.count_nonzero(parsed & ~usable)
    if 2 * lost > bad:
        values, name = len(target.count(labels)), repr(target.name)
        fault = f"the target {name} has {values:,} values"
        if chosen:
            fault = f"the last column {name} was taken as the target and has {values:,} values"
        known = "number" if target.kind == "number" else "one of the classes"
        return (
            f"{lost:,} of {n:,} rows cannot be used, for their target is no {known}: {fault}; use "
            "`target=` to predict another column, or `regression=True` if it is a number. What is "
            "proposed is made from the rows that can be read."
        ).replace("no one", "none")
    coded = sum(fault is Fault.ENCODING for fault in faults)
    if coded > MANY * n:
        return (
            f"{coded:,} of {n:,} rows are not UTF-8 and cannot be used: save the file as CSV UTF-8 "
            'first. It may be Latin-1 or Windows-1252 (pandas: read_csv(path, encoding="cp1252"), '
            "then to_csv(path, index=False))."
        )
    # A row of no known class still has values in the other columns.
    others = "the others" if not lost else "the rows that can be read"
    return (
        f"{bad:,} of {n:,} rows cannot be used: mend the file first (see below). What is proposed "
        f"is made from {others}."
    )


def _with_a_number(schema: TableSchema) -> TableSchema:
    """Return the schema with a number as its target."""
    if schema.target.kind not in (None, "number"):
        raise UsageError(
            f"A number is to be predicted, but the schema declares column {schema.target.name!r} "
            f"as a {schema.target.kind}: change one of them."
        )
    return replace(schema, target=replace(schema.target, kind="number"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What was found out about a column; its values are not kept.

    Args:
        column: What is declared of it.
        cells: (rows,).
        is_target: Whether it is predicted.
        parsed: Which rows are no null records.
        proposed: What is to be declared of it.
        problems: What is wrong with it.
        numeric: Whether it holds numbers.
        read: How many of its cells are numbers.
        fits: The forms in which these are written, if that had to be found.
        dotted: Whether a point is in one of them.
        marks: The texts that are proposed to mean missing.
    """

    column: Column
    cells: ColumnCells
    is_target: bool
    parsed: np.ndarray = field(repr=False)
    proposed: Column
    problems: list[Problem]
    numeric: bool
    read: int
    fits: tuple[NumberForm, ...]
    dotted: bool
    marks: tuple[str, ...]

    @classmethod
    def of(
        cls,
        column: Column,
        cells: ColumnCells,
        parsed: np.ndarray,
        is_target: bool,
        decimal: str | None = None,
    ) -> _Read:
        seen = Seen.of(column, cells, is_target, decimal)
        numeric = seen.kind == "number"
        open_ = not column.declared
        return cls(
            column=column,
            cells=cells,
            is_target=is_target,
            parsed=parsed,
            proposed=proposal(seen) if open_ else column,
            problems=list(column_problems(seen, parsed)),
            numeric=numeric,
            read=len(seen.finite) if numeric else 0,
            # A unit is of its column alone.
            fits=tuple(replace(each, units=()) for each in seen.fits)
            if numeric and seen.open_form
            else (),
            dotted=numeric and any("." in text for text in seen.values),
            marks=tuple(sorted(seen.words)) if open_ and seen.kind in ("number", "date") else (),
        )

    @property
    def needs_form(self) -> bool:
        """Whether its numbers are not written as usual, and nothing says how."""
        return bool(self.fits) and self.fits[0] != PLAIN

    def with_commas(self) -> _Read:
        """Return it read as in a table with decimal commas, if it can be read so."""
        open_ = self.fits and (self.dotted or self.needs_form)
        if not open_ or all(form.decimal == "," for form in self.fits):
            return self
        again = _Read.of(self.column, self.cells, self.parsed, self.is_target, decimal=",")
        return again if again.read >= self.read and again.needs_form else self


def _schema_of(declared: TableSchema, read: Sequence[_Read]) -> TableSchema:
    """Return the complete schema: what several columns have in common is said once."""
    columns, top = [each.proposed for each in read], dict[str, object]()
    if form := _common_form(declared, read):
        own = {"decimal": None, "thousands": None}
        top = {key: getattr(each, key) for each in [form] for key in own}
        top["decimal"] = None if form.decimal == PLAIN.decimal else form.decimal
        columns = [
            replace(column, decimal=None, thousands=None) if each.needs_form else column
            for column, each in zip(columns, read, strict=True)
        ]
    if marks := _common_marks(declared, read):
        top["missing"] = marks
        columns = [
            _with_marks(column, each, marks) for column, each in zip(columns, read, strict=True)
        ]
    *others, aim = columns
    return replace(declared, columns=tuple(others), target=aim, **top)


def _common_form(declared: TableSchema, read: Sequence[_Read]) -> NumberForm | None:
    """Return a form that all columns of numbers may be read in, if two need it."""
    needing = [each for each in read if each.needs_form]
    if declared.decimal is not None or declared.thousands is not None or len(needing) < 2:
        return None
    dotted = any(each.dotted and not each.needs_form for each in read)
    for form in needing[0].fits:
        if all(form in each.fits for each in needing) and not (form.decimal == "," and dotted):
            return form
    return None


def _common_marks(declared: TableSchema, read: Sequence[_Read]) -> tuple[str, ...]:
    """Return the texts that mean missing in the whole table, if two columns have such."""
    marks = {mark for each in read for mark in each.marks}
    used = {
        name
        for each in read
        if each.column.declared or each.is_target
        for name in (each.proposed.categories or ())
    }
    several = sum(bool(each.marks) for each in read) > 1
    return tuple(sorted(marks)) if several and declared.missing is None and not marks & used else ()


def _with_marks(column: Column, read: _Read, marks: tuple[str, ...]) -> Column:
    """Return a proposed column of a table whose marks are these."""
    if read.column.declared or column.kind == "ignore":
        return column
    if column.categories is not None:
        return replace(column, categories=tuple(c for c in column.categories if c not in marks))
    own = [mark for mark in column.missing or () if mark not in marks]
    # What a column says of its own stands instead of what the table says.
    return replace(column, missing=(*marks, *own) if own else None)
