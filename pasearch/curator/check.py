"""`pasearch check`: a report of all problems of a table with their rows, and a proposed schema.

It reads and shows private values without a charge. Its output is only for the curator (the person
responsible for the data), on the curator's machine. No other part of the program reads a table in
this way.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pasearch.curator.column_profile import ColumnProfile
from pasearch.curator.problems import (
    Problem,
    find_column_problems,
    find_table_problems,
    make_problem,
)
from pasearch.data.cells import ColumnCells
from pasearch.data.column import Column
from pasearch.data.csv_file import (
    COMPRESSION_SUFFIXES,
    describe_row_widths,
    read_table_with_faults,
)
from pasearch.data.lines import Fault
from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm
from pasearch.data.parquet_file import ParquetFile, read_parquet
from pasearch.data.schema_file import declare_target
from pasearch.data.sources import count_header_rows, find_source
from pasearch.data.tables import TableSchema, declare_text
from pasearch.data.text_columns import TextTable
from pasearch.errors import UsageError
from pasearch.terminal_escaping import escape_text

WARNING = (
    "This output contains private values. It is only for people who may see the records: keep it "
    "on this machine, and copy nothing from it into publications, logs or messages."
)
TOML_WARNING = """\
# This schema was proposed from the records: it is PRIVATE until you have edited it. Replace every
# bound and every category by public knowledge (a code book, a law, a form). Delete everything that
# you know only from the records: it will be estimated privately, within the budget. Then delete
# the next line: a run refuses this file as long as it contains that line.
proposed = true
"""
# Fraction of unusable rows above which the report begins with a paragraph about them.
UNUSABLE_WARNING_FRACTION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of `check_table`: private.

    Args:
        path: Path of the file.
        n: Number of records.
        opening: Paragraph at the beginning of the report, if many rows are unusable; else empty.
        problems: Problems of the table, followed by those of each column in the file's order.
        proposed: Complete schema, inferred from the records.
        declared: Schema before it was completed from the records.
    """

    path: Path
    n: int
    opening: str = ""
    problems: tuple[Problem, ...]
    proposed: TableSchema
    declared: TableSchema

    def text(self) -> str:
        """Return the report as text for a terminal, with the warning before all values."""
        found = [f"  {problem.text()}" for problem in self.problems] or ["  no problem found"]
        head = f"{escape_text(self.path)}: {self.n:,} records, {self.proposed.describe()}"
        before = [self.opening, ""] if self.opening else []
        return "\n".join([*before, f"WARNING. {WARNING}", "", head, *found]) + "\n"

    def toml(self) -> str:
        """Return the proposed schema as a TOML file for the curator to edit, with a warning."""
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
    text: str | None = None,
) -> CheckReport:
    """Check every value of a table's file, and return its problems and a proposed schema.

    Args:
        path: Path of a CSV file (or a similar one), a Parquet file, or a folder of Parquet files.
        target: Name of the column to predict; None: that of the schema, or the last one.
        schema: Declaration that the values are compared with; None: nothing is declared.
        quotes: Whether quotation marks enclose cells of a CSV file.
        columns: Names of the columns of a CSV file without a header.
        separator: Separator of cells in a CSV file; None: detected in the header.
        regression: Whether the target is a number, whatever its values look like.
        text: Name of a column that is proposed as a sequence of words, without a vocabulary.

    Raises:
        UsageError: A malformed file, one that does not fit the schema or has no readable row; or
            regression on a target that the schema declares as another kind.

    Cost: none is charged, because nothing is released: the report is private.
    """
    path = Path(path)
    source = find_source(str(path))
    if source is not None and "schema" not in source.uses:
        hint = "Its schema is already declared, so there is nothing to check."
        if source.is_path:
            known = "`image_side=`" if "image_side" in source.uses else "`bounds=` and `classes=`"
            hint = f"For this kind of data, declare {known}."
        raise UsageError(f"`pasearch check` requires a table, but {path} is {source.kind}. {hint}")
    if ParquetFile().takes(str(path)):
        if not quotes or columns is not None or separator is not None:
            raise UsageError(
                f"{path}: `quotes=`, `columns=` and `separator=` do not apply to a Parquet file: "
                "leave them out."
            )
        declared, features, labels = read_parquet(path, target, schema)
        faults: list[Fault | None] = [None] * len(labels)
    else:
        declared, features, labels, faults = read_table_with_faults(
            path, target, schema, quotes=quotes, columns=columns, separator=separator
        )
    if Fault.WIDTH in faults and None not in faults:
        raise UsageError(describe_row_widths(path, declared))
    if None not in faults:
        why = Counter(fault.value for fault in faults if fault is not None).most_common(1)[0][0]
        raise UsageError(f"{path}: no row can be used. Most frequent problem: {why}.")
    declared = replace(declared, target=declare_target(declared.target, regression=regression))
    declared = declare_text(declared, text)
    parsed = features.present()
    in_table = find_table_problems(TextTable(cells=(*features.cells, labels)), faults)
    read = [
        _CheckedColumn.of(column, cells, parsed, column.name == declared.target.name)
        for column, cells in declared.iterate_columns(features, labels)
    ]
    unusual = [each.undeclared_forms for each in read if each.has_unusual_form]
    if any(all(form.decimal == "," for form in forms) for forms in unusual):
        # A column that can only have decimal commas shows that the others may have them too.
        read = [each.reparse_with_commas() for each in read]
    complete = _complete_schema(declared, read)
    usable = parsed & complete.encode_labels(labels)[1]
    null = (
        f"cannot be used in a run (unreadable, or target is not a known "
        f"{'number' if complete.target.kind == 'number' else 'class'}): they do not contribute to "
        "training, and each counts as an error in the test score"
    )
    ending = path.suffix if path.suffix.lower() in COMPRESSION_SUFFIXES else ""
    name = f"a run does not accept this file name: rename the file to end in .csv{ending}"
    problems = (
        *([] if source is not None else [Problem(column=None, what=name)]),
        *in_table,
        *make_problem(None, null, ~usable),
        *(p.reword_for_table(complete.missing or ()) for each in read for p in each.problems),
    )
    above = count_header_rows(path, declared)
    chosen = target is None and schema is None
    return CheckReport(
        path=path,
        n=len(labels),
        opening=_describe_unusable(parsed, usable, faults, complete.target, labels, chosen=chosen),
        problems=tuple(problem.shift_rows(above) for problem in problems),
        proposed=complete,
        declared=declared,
    )


def _describe_unusable(
    parsed: np.ndarray, usable: np.ndarray, faults: Sequence[Fault | None], target: Column,
    labels: ColumnCells, *, chosen: bool,
) -> str:  # fmt: skip
    """Return a paragraph on why many rows cannot be used; an empty string if there are few.

    Args:
        parsed: Whether each row can be read, bool, (rows,).
        usable: Whether each row also has a known target, bool, (rows,).
        faults: Reason why each row cannot be read; None if it can.
        target: Proposed declaration of the target.
        labels: Cells of the target, (rows,).
        chosen: Whether the target is the last column because none was named.
    """
    n, bad = len(usable), len(usable) - np.count_nonzero(usable)
    if not bad > UNUSABLE_WARNING_FRACTION * n:
        return ""
    lost = np.count_nonzero(parsed & ~usable)
    if 2 * lost > bad:
        values, name = len(target.count_categories(labels)), repr(target.name)
        fault = f"the target {name} has {values:,} values"
        if chosen:
            fault = f"the last column {name} is the default target and has {values:,} values"
        known = "a number" if target.kind == "number" else "one of the classes"
        return (
            f"{lost:,} of {n:,} rows cannot be used, because their target is not {known}: {fault}. "
            "Use `target=` to predict another column, or `regression=True` if it is a number. The "
            "proposal is based on the rows that can be read."
        )
    coded = sum(fault is Fault.ENCODING for fault in faults)
    if coded > UNUSABLE_WARNING_FRACTION * n:
        return (
            f"{coded:,} of {n:,} rows are not UTF-8 and cannot be used: save the file as CSV UTF-8 "
            'first. It may be Latin-1 or Windows-1252 (pandas: read_csv(path, encoding="cp1252"), '
            "then to_csv(path, index=False))."
        )
    # A row of unknown class still has values in the other columns.
    others = "the others" if not lost else "the rows that can be read"
    return (
        f"{bad:,} of {n:,} rows cannot be used: correct the file first (see below). The proposal "
        f"is based on {others}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedColumn:
    """Results of the check of one column, without its strings, which would use too much memory.

    Args:
        column: Declaration of the column.
        cells: Cells, (rows,).
        is_target: Whether the column is predicted.
        parsed: Whether each row can be read, bool, (rows,).
        proposed: Completed declaration.
        problems: Problems of the column.
        parsed_count: Number of cells that are numbers; 0 if the column is not numeric.
        undeclared_forms: Number formats that fit, the likeliest first, if none is declared.
        has_points: Whether the column is numeric and a cell contains a point.
        missing_words: Strings that are proposed to mean missing.
    """

    column: Column
    cells: ColumnCells
    is_target: bool
    parsed: np.ndarray = field(repr=False)
    proposed: Column
    problems: list[Problem]
    parsed_count: int
    undeclared_forms: tuple[NumberForm, ...]
    has_points: bool
    missing_words: tuple[str, ...]

    @classmethod
    def of(
        cls,
        column: Column,
        cells: ColumnCells,
        parsed: np.ndarray,
        is_target: bool,
        decimal: str | None = None,
    ) -> _CheckedColumn:
        """Check a column; `decimal` is the decimal mark of the other columns, if known."""
        profile = ColumnProfile.of(column, cells, is_target, decimal)
        numeric, is_open = profile.kind == "number", not column.is_declared
        marked = is_open and profile.kind in ("number", "date")
        forms = profile.number_forms if numeric and profile.is_form_undeclared else ()
        return cls(
            column=column,
            cells=cells,
            is_target=is_target,
            parsed=parsed,
            proposed=profile.propose() if is_open else column,
            problems=list(find_column_problems(profile, parsed)),
            parsed_count=len(profile.finite_numbers) if numeric else 0,
            # Units belong to one column.
            undeclared_forms=tuple(replace(each, units=()) for each in forms),
            has_points=numeric and any("." in text for text in profile.value_counts),
            missing_words=tuple(sorted(profile.missing_words)) if marked else (),
        )

    @property
    def has_unusual_form(self) -> bool:
        """Whether the numbers are not in the default format, and no format is declared."""
        return bool(self.undeclared_forms) and self.undeclared_forms[0] != PLAIN_NUMBER_FORM

    def reparse_with_commas(self) -> _CheckedColumn:
        """Return the check with decimal commas if they fit the column as well; else this one."""
        applies = self.has_points or self.has_unusual_form
        if not applies or all(form.decimal == "," for form in self.undeclared_forms):
            return self
        again = _CheckedColumn.of(self.column, self.cells, self.parsed, self.is_target, ",")
        return again if again.parsed_count >= self.parsed_count and again.has_unusual_form else self


def _complete_schema(declared: TableSchema, read: Sequence[_CheckedColumn]) -> TableSchema:
    """Return the schema with the proposed declarations of all columns.

    Notation that several columns share, such as a decimal comma or missing marks, is declared once
    for the whole table.
    """
    columns, common = [each.proposed for each in read], dict[str, object]()
    needing = [each for each in read if each.has_unusual_form]
    if declared.decimal is None and declared.thousands is None and len(needing) > 1:
        dotted = any(each.has_points and not each.has_unusual_form for each in read)
        for form in needing[0].undeclared_forms:
            shared = all(form in each.undeclared_forms for each in needing)
            if shared and not (form.decimal == "," and dotted):
                default = form.decimal == PLAIN_NUMBER_FORM.decimal
                common["decimal"] = None if default else form.decimal
                common["thousands"] = form.thousands
                inherit = {"decimal": None, "thousands": None}
                columns = [
                    replace(each.proposed, **(inherit if each.has_unusual_form else {}))
                    for each in read
                ]
                break
    marks = sorted({mark for each in read for mark in each.missing_words})
    used = {
        name
        for each in read
        if each.column.is_declared or each.is_target
        for name in each.proposed.categories or ()
    }
    several = sum(bool(each.missing_words) for each in read) > 1
    if several and declared.missing is None and not used.intersection(marks):
        common["missing"] = tuple(marks)
        for place, (column, each) in enumerate(zip(columns, read, strict=True)):
            if each.column.is_declared or column.kind == "ignore":
                continue
            if column.categories is not None:
                kept = tuple(name for name in column.categories if name not in marks)
                columns[place] = replace(column, categories=kept)
                continue
            own = [mark for mark in column.missing or () if mark not in marks]
            # A column's marks replace the table's.
            columns[place] = replace(column, missing=(*marks, *own) if own else None)
    *others, target = columns
    return replace(declared, columns=tuple(others), target=target, **common)
