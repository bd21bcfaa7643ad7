"""Problems of a table, each with its rows. The messages contain private values.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from pasearch.curator.column_profile import (
    MAX_CATEGORIES,
    ColumnProfile,
    group_alike,
    round_days_outwards,
    sort_by_frequency,
)
from pasearch.curator.format_inference import infer_date_formats, infer_number_forms, infer_units
from pasearch.data import dates
from pasearch.data.lines import Fault
from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm
from pasearch.data.text_columns import TextTable
from pasearch.terminal_escaping import escape_text

# Maximum number of rows that a problem lists, and of problems of the same kind in a column.
MAX_LISTED_ROWS = 20
# Maximum number of strings that are searched for one that can be parsed in two ways.
MAX_TRIED_TEXTS = 256
# Minimum number of records of a class that can be learned with noise.
MIN_CLASS_RECORDS = 10
# Maximum number of characters of a cell that are shown.
MAX_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a table.

    Args:
        column: Name of the column; None: the whole table.
        what: Description, with values.
        rows: Numbers of the first rows that have the problem, counted from 1. `shift_rows` adds the
            lines above the records, so that they are the row numbers of a spreadsheet program.
        count: Number of rows that have the problem; 0: the whole column has it.
        mark: String that may mean missing, if the problem is about one.
    """

    column: str | None
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    mark: str | None = None

    def reword_for_table(self, marks: Sequence[str]) -> Problem:
        """Return the problem with another description, if `mark` is proposed for all columns.

        Args:
            marks: Missing marks of the whole table in the proposed schema.
        """
        if self.mark is None or self.mark not in marks:
            return self
        what = f"{_quote_cell(self.mark)} is proposed to mean missing in all columns"
        return replace(self, what=what)

    def shift_rows(self, above: int) -> Problem:
        """Return the problem with row numbers increased by the number of rows `above` records."""
        return replace(self, rows=tuple(row + above for row in self.rows))

    def text(self) -> str:
        """Return the problem as one line of text."""
        where = "table" if self.column is None else f"column {self.column!r}"
        if not self.count:
            return f"{where}: {self.what}"
        rows = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        unit = "row" if self.count == 1 else "rows"
        return f"{where}: {self.what} ({self.count:,} {unit}: {rows})"


def find_column_problems(profile: ColumnProfile, parsed: np.ndarray) -> Iterator[Problem]:
    """Yield the problems of a column.

    Args:
        profile: Profile of the column.
        parsed: Whether each row can be read, bool, (rows,).
    """
    column, name = profile.column, profile.column.name
    yield from _find_missing_problems(profile, parsed)
    if column.kind == "ignore":
        return
    if profile.is_constant:
        value = _quote_cell(next(iter(profile.counts))) if profile.counts else "missing"
        yield Problem(column=name, what=f"always {value}: the column contains no information")
    elif profile.kind == "ignore":
        what = 'looks like text: declare kind = "text" and a vocabulary from public knowledge'
        if profile.is_identifier:
            what = 'almost all values are distinct, as in an identifier; proposed kind = "ignore"'
        elif profile.is_text_identifier:
            what = f"{len(profile.value_counts):,} distinct strings and an identifier-like name"
            what += '; proposed kind = "ignore"'
        yield Problem(column=name, what=what)
    if profile.kind == "number":
        yield from _find_form_problems(profile)
        yield from _find_number_problems(profile)
    elif profile.kind == "date":
        yield from _find_date_problems(profile)
    elif profile.kind == "category":
        yield from _find_category_problems(profile)
        yield from _find_class_problems(profile) if profile.is_target else ()


def _find_missing_problems(profile: ColumnProfile, parsed: np.ndarray) -> Iterator[Problem]:
    """Yield the missing cells of readable rows: by default marks, and by declared marks."""
    empty = len(profile.texts) - profile.counts.total() - sum(profile.missing_counts.values())
    if empty + len(profile.missing_counts) == len(parsed) - np.count_nonzero(parsed):
        return
    declared = profile.column.missing or ()
    usual = [mark for mark in profile.missing_counts if mark not in declared]
    written = ", ".join(map(_quote_cell, usual[:3]))
    what = f"missing, also written {written}" if written else "missing"
    yield from make_problem(profile.column.name, what, parsed & profile.find_rows({None, *usual}))
    if marks := [mark for mark in profile.missing_counts if mark in declared]:
        yield from make_problem(
            profile.column.name, "missing, as declared", profile.find_rows(marks)
        )


def _quote_cell(text: object) -> str:
    """Quote a cell; a long one is truncated, and its length is added."""
    cell = str(text)
    if len(cell) <= MAX_SHOWN_CHARACTERS:
        return repr(cell)
    return f"{cell[:MAX_SHOWN_CHARACTERS]!r}... ({len(cell):,} characters)"


def _quote_examples(texts: Collection[str]) -> str:
    """Return "such as" and the first three strings, quoted."""
    return f"such as {', '.join(_quote_cell(text) for text in list(texts)[:3])}"


def _find_form_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield problems of a column whose numbers are not in the default format."""
    name, form = profile.column.name, profile.number_form
    if not profile.is_form_undeclared or form == PLAIN_NUMBER_FORM:
        return
    tried = islice(profile.value_counts, MAX_TRIED_TEXTS)
    written = [text for text in tried if PLAIN_NUMBER_FORM.number(text) != form.number(text)]
    what = f"numbers {_quote_examples(written)}: proposed notation {_describe_form(form)}"
    yield Problem(column=name, what=what)
    for text in written:
        value = form.number(text)
        rivals = [*profile.number_forms[1:], *([PLAIN_NUMBER_FORM] if profile.decimal else [])]
        others = [each.number(text) for each in rivals]
        if other := [each for each in others if math.isfinite(each) and each != value]:
            what = f"{_quote_cell(text)} could mean {value:.12g} or {other[0]:.12g}: the first is"
            yield Problem(column=name, what=f"{what} proposed; correct the schema if it is wrong")
            return


def _describe_form(form: NumberForm) -> str:
    """Return the keys of a schema file that declare a number format."""
    keys = [f'decimal = "{form.decimal}"'] if form.decimal != PLAIN_NUMBER_FORM.decimal else []
    keys += [f'thousands = "{form.thousands}"'] if form.thousands is not None else []
    factors = ", ".join(f'"{unit}" = {factor:.12g}' for unit, factor in form.units)
    keys += [f"units = {{ {factors} }}"] if factors else []
    return " and ".join(keys)


def _find_number_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield cells of a numeric column that are not numbers, mean missing, or are out of bounds."""
    column, name, values = profile.column, profile.column.name, profile.numbers
    yield from _find_mark_problems(profile, "numbers")
    if len(profile.finite_numbers) != profile.value_count:
        parsed = {text: profile.number_form.number(text) for text in profile.value_counts}
        missing = column.cell_format.missing_numbers
        unread = {
            text: profile.value_counts[text]
            for text, number in parsed.items()
            if math.isnan(number) and number not in missing
        }
        what = f"not a number, {_quote_examples(unread)}"
        fits = [] if profile.is_form_undeclared else infer_number_forms(unread)
        if not (fits or profile.is_form_undeclared):
            fits = infer_number_forms(unread, units=infer_units(unread))
        if fits:
            what += f"; {_describe_form(fits[0])} would parse it"
        yield from make_problem(name, what, profile.find_rows(unread) if unread else ())
    for code, far in profile.missing_codes:
        what = f"{code:.15g} is far from all other numbers and frequent, so it may mean missing"
        hint = "proposed" if far and not column.is_declared else f'if so: missing = ["{code:.15g}"]'
        yield from make_problem(name, f"{what}; {hint}", values == code)
    if column.bounds is not None:
        low, high = column.bounds
        yield from make_problem(name, f"below the declared {low:g}", values < low)
        yield from make_problem(name, f"above the declared {high:g}", values > high)
    elif len(profile.finite_numbers):
        low, high = profile.bounds
        apart = (values < low) | (values > high)
        apart &= ~np.isin(values, [code for code, _ in profile.missing_codes])
        if apart.any():
            first = profile.texts[int(np.flatnonzero(apart)[0])]
            what = f"far from all others, such as {_quote_cell(first)}: outside the proposed bounds"
            yield from make_problem(name, what, apart)


def _find_mark_problems(profile: ColumnProfile, among: str) -> Iterator[Problem]:
    """Yield undeclared strings that often mean missing, among numbers or dates."""
    for text in profile.missing_words[:MAX_LISTED_ROWS]:
        hint = "" if profile.column.is_declared else ": proposed to mean missing"
        what = f"{_quote_cell(text)} occurs among {among}{hint}"
        yield from make_problem(profile.column.name, what, profile.find_rows({text}))


def _find_date_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield cells of a date column that are not dates, are ambiguous, or are out of bounds."""
    column, name, pattern = profile.column, profile.column.name, profile.date_formats[0]
    yield from _find_mark_problems(profile, "dates")
    read = profile.days_by_text
    if unread := [text for text in profile.value_counts if text not in read]:
        form = "in ISO format (2024-01-31)" if pattern is None else f"in format {pattern}"
        what = f"not a date {form}, {_quote_examples(unread)}"
        fits = infer_date_formats({text: profile.value_counts[text] for text in unread})
        if fits and column.is_declared:
            fit = "ISO" if fits[0] is None else f'format = "{fits[0]}"'
            what += f"; {fit} would parse it"
        yield from make_problem(name, what, profile.find_rows(unread))
    for other in profile.date_formats[1:2]:
        differs = next((t for t, day in read.items() if dates.parse_days(t, other) != day), None)
        if differs is not None:
            what = f"all values fit both {pattern} and {other}, such as {_quote_cell(differs)}"
            yield Problem(column=name, what=f"{what}: the first is proposed; verify it")
    if column.is_declared:
        first, last = (dates.count_days_to(day or "") for day in (column.lower, column.upper))
        early = [text for text, day in read.items() if day < first]
        late = [text for text, day in read.items() if day >= last + 1]
        yield from make_problem(
            name, f"before the declared {column.lower}", profile.find_rows(early)
        )
        yield from make_problem(name, f"after the declared {column.upper}", profile.find_rows(late))
        return
    lower, upper = round_days_outwards(np.array(list(read.values())))
    days = {text: dates.convert_days_to_date(day) for text, day in read.items()}
    if apart := [text for text, day in days.items() if not lower <= day <= upper]:
        what = f"far from all others, {_quote_examples(apart)}: outside the proposed days"
        yield from make_problem(name, what, profile.find_rows(apart))


def _find_category_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield categories of a column that are similar, undeclared, or may mean something else."""
    column, name = profile.column, profile.column.name
    if profile.is_target and column.kind is None and infer_date_formats(profile.value_counts):
        what = "looks like a date, which cannot be a target: choose a number or a class"
        yield Problem(column=name, what=what)
    hint = "declare case = false" if column.is_declared else "proposed as one, case = false"
    for twins in profile.case_variants[:MAX_LISTED_ROWS]:
        quoted = ", ".join(map(_quote_cell, twins))
        yield Problem(column=name, what=f"{quoted} differ only in case: {hint}")
    spaced = group_alike(profile.category_counts, lambda text: "".join(text.casefold().split()))
    for twins in [each for each in spaced if each not in profile.case_variants][:MAX_LISTED_ROWS]:
        quoted = ", ".join(map(_quote_cell, twins))
        what = "differ only in spaces and are different categories: correct the data"
        yield Problem(column=name, what=f"{quoted} {what}")
    if column.kind is None and profile.is_numeric and profile.is_code:
        texts = list(profile.value_counts)
        codes = [text for text in texts if text[0] == "0" and len(text) > 1] or texts
        what = f"digit codes, {_quote_examples(codes)}: proposed as categories, not as numbers"
        yield Problem(column=name, what=what)
    known = column.categories or ()
    words = profile.missing_words
    for text in words[:MAX_LISTED_ROWS] if len(words) < len(profile.counts) else ():
        if text not in known:
            what = f"{_quote_cell(text)} is a category here; if it means missing, write missing = "
            found = make_problem(name, f'{what}["{escape_text(text)}"]', profile.find_rows({text}))
            yield from (replace(each, mark=text) for each in found)
    if column.categories is None:
        if (distinct := len(profile.category_counts)) > MAX_CATEGORIES:
            what = f"{distinct:,} distinct values: the {MAX_CATEGORIES} most frequent are proposed"
            yield Problem(column=name, what=what)
        return
    values = sort_by_frequency(profile.counts)
    codes = column.encode_categories(np.array(values, object))
    others = [value for value, code in zip(values, codes, strict=True) if code == len(known)]
    spelled = {each.casefold(): each for each in known}
    for value in others[:MAX_LISTED_ROWS]:
        near = spelled.get(value.casefold())
        hint = "" if near is None else f", but {_quote_cell(near)} is: declare case = false"
        what = f"{_quote_cell(value)} is not declared{hint}"
        yield from make_problem(name, what, profile.find_rows({value}))
    if len(others) > MAX_LISTED_ROWS:
        what = f"{len(others) - MAX_LISTED_ROWS:,} more values are not declared"
        yield Problem(column=name, what=what)


def _find_class_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield classes of the target with too few records, and too few classes."""
    name, declared = profile.column.name, profile.column.categories
    proposed = sort_by_frequency(profile.category_counts)[:MAX_CATEGORIES]
    classes = proposed if declared is None else declared
    found = Counter[str]()
    for text, times in profile.counts.items():
        found[profile.comparison_key(text)] += times
    if declared is None and profile.is_numeric and len(classes) > 2:
        what = f"{len(classes)} distinct integers: proposed as classes"
        yield Problem(column=name, what=f"{what}; for quantities, use `regression=True`")
    for each in classes:
        if (times := found[profile.comparison_key(each)]) < MIN_CLASS_RECORDS:
            what = f"class {_quote_cell(each)} has {times} record{'s' * (times != 1)}"
            yield Problem(column=name, what=f"{what}: too few to learn the class with noise")
    if not len(classes) >= 2:
        what = (
            f"the target has {len(classes)} class{'es' * (len(classes) != 1)}: expected two or more"
        )
        yield Problem(column=name, what=what)


def find_table_problems(table: TextTable, faults: Sequence[Fault | None]) -> list[Problem]:
    """List the problems of whole rows: rows that cannot be read, and duplicate rows.

    Args:
        table: All columns, the target included.
        faults: Reason why each row cannot be read; None if it can.
    """
    import pandas as pd

    parsed = np.array([fault is None for fault in faults], bool)
    cells = pd.DataFrame({place: each.distinct()[1] for place, each in enumerate(table.cells)})
    repeated = cells.duplicated().to_numpy()
    found = [
        p for fault in Fault for p in make_problem(None, fault.value, [f is fault for f in faults])
    ]
    twice = "duplicate rows: a person who contributes several rows has weaker protection"
    return found + make_problem(None, twice, repeated & parsed)


def make_problem(
    column: str | None, what: str, where: Sequence[bool] | np.ndarray
) -> list[Problem]:
    """Return a list of one problem with the rows that have it, or an empty list if no row has it.

    Args:
        column: Name of the column; None: the whole table.
        what: Description, with values.
        where: Whether each row has the problem, bool, (rows,).
    """
    places = np.flatnonzero(np.asarray(where, bool))
    rows = tuple(int(place) + 1 for place in places[:MAX_LISTED_ROWS])
    return [Problem(column=column, what=what, rows=rows, count=len(places))] if rows else []
