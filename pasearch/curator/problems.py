"""The problems of a table, each with its rows. The sentences hold private values.

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
    by_frequency,
    days_outwards,
    group_alike,
)
from pasearch.curator.forms import fitting_formats, fitting_forms, units_of
from pasearch.data import dates
from pasearch.data.lines import Fault
from pasearch.data.numbers import PLAIN_NUMBER_FORM, NumberForm
from pasearch.data.text_columns import TextTable
from pasearch.shown import shown

# Rows that a problem lists.
MAX_LISTED_ROWS = 20
# Distinct texts searched for one that can be read in two ways.
MAX_TRIED_TEXTS = 256
# Records of a class below which it can hardly be learnt under any noise.
MIN_CLASS_RECORDS = 10
# Characters of a cell that are shown.
MAX_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a table.

    Args:
        column: The column; None is the whole table.
        what: A description, with values.
        rows: Numbers of the first rows concerned, as a spreadsheet numbers them: the first record
            is 1, plus the rows that the file has above its records (`below`).
        count: Number of rows concerned; 0 is the whole column.
        mark: The text concerned, if it may mean missing.
    """

    column: str | None
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    mark: str | None = None

    def settled(self, marks: Sequence[str]) -> Problem:
        """Reword it if these texts are proposed to mean missing in all columns."""
        if self.mark is None or self.mark not in marks:
            return self
        what = f"{_quoted(self.mark)} means missing: so it is proposed, above all columns"
        return replace(self, what=what)

    def below(self, above: int) -> Problem:
        """Shift the row numbers by the rows that the file has above its records."""
        return replace(self, rows=tuple(row + above for row in self.rows))

    def text(self) -> str:
        """Render it as one line."""
        where = "table" if self.column is None else f"column {self.column!r}"
        if not self.count:
            return f"{where}: {self.what}"
        rows = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        unit = "row" if self.count == 1 else "rows"
        return f"{where}: {self.what} ({self.count:,} {unit}: {rows})"


def column_problems(profile: ColumnProfile, parsed: np.ndarray) -> Iterator[Problem]:
    """Yield the problems of a column.

    Args:
        profile: The column.
        parsed: Whether each row is no null record.
    """
    column, name = profile.column, profile.column.name
    yield from _missing_problems(profile, parsed)
    if column.kind == "ignore":
        return
    if profile.constant:
        value = (
            f"always {_quoted(next(iter(profile.counts)))}" if profile.counts else "always missing"
        )
        yield Problem(column=name, what=f"{value}: nothing can be learnt from it")
    elif profile.kind == "ignore" and profile.identifier:
        what = "hardly any value occurs twice, as in an identifier: proposed to be ignored"
        yield Problem(column=name, what=what)
    elif profile.kind == "ignore" and profile.named:
        what = (
            f"{len(profile.values):,} texts, and a name as of an identifier: proposed to be ignored"
        )
        yield Problem(column=name, what=what)
    elif profile.kind == "ignore":
        what = 'looks like text: declare kind = "text" and a vocabulary from general knowledge'
        yield Problem(column=name, what=what)
    if profile.kind == "number":
        yield from _form_problems(profile)
        yield from _number_problems(profile)
    elif profile.kind == "date":
        yield from _date_problems(profile)
    elif profile.kind == "category":
        yield from _category_problems(profile)
        yield from _class_problems(profile) if profile.is_target else ()


def _missing_problems(profile: ColumnProfile, parsed: np.ndarray) -> Iterator[Problem]:
    empty = len(profile.texts) - profile.counts.total() - sum(profile.marked.values())
    if empty + len(profile.marked) == len(parsed) - np.count_nonzero(parsed):
        return
    declared = profile.column.missing or ()
    usual = [mark for mark in profile.marked if mark not in declared]
    written = ", ".join(map(_quoted, usual[:3]))
    what = f"missing, also written {written}" if written else "missing"
    yield from problem_at(profile.column.name, what, parsed & profile.rows({None, *usual}))
    if told := [mark for mark in profile.marked if mark in declared]:
        yield from problem_at(profile.column.name, "missing, as declared", profile.rows(told))


def _quoted(text: object) -> str:
    """Quote a cell; a long one is cut, and its length is added."""
    said = str(text)
    if len(said) <= MAX_SHOWN_CHARACTERS:
        return repr(said)
    return f"{said[:MAX_SHOWN_CHARACTERS]!r}... ({len(said):,} characters)"


def _examples(texts: Collection[str]) -> str:
    return f"such as {', '.join(_quoted(text) for text in list(texts)[:3])}"


def _form_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield the form of numbers that has to be declared, because it is not the default."""
    name, form = profile.column.name, profile.form
    if not profile.open_form or form == PLAIN_NUMBER_FORM:
        return
    written = [
        text
        for text in islice(profile.values, MAX_TRIED_TEXTS)
        if PLAIN_NUMBER_FORM.number(text) != form.number(text)
    ]
    yield Problem(
        column=name,
        what=f"numbers {_examples(written)}: proposed to be read with {_form_words(form)}",
    )
    for text in written:
        value = form.number(text)
        rivals = [*profile.fits[1:], *([PLAIN_NUMBER_FORM] if profile.decimal else [])]
        others = [each.number(text) for each in rivals]
        if other := [each for each in others if math.isfinite(each) and each != value]:
            what = f"{_quoted(text)} could be {value:.12g} or {other[0]:.12g}: it is read as the"
            yield Problem(column=name, what=f"{what} first; correct the schema if that is wrong")
            return


def _form_words(form: NumberForm) -> str:
    """Render a form as a schema declares it."""
    told = [f'decimal = "{form.decimal}"'] if form.decimal != PLAIN_NUMBER_FORM.decimal else []
    told += [f'thousands = "{form.thousands}"'] if form.thousands is not None else []
    factors = ", ".join(f'"{unit}" = {factor:.12g}' for unit, factor in form.units)
    told += [f"units = {{ {factors} }}"] if factors else []
    return " and ".join(told)


def _number_problems(profile: ColumnProfile) -> Iterator[Problem]:
    column, name, values = profile.column, profile.column.name, profile.numbers
    yield from _mark_problems(profile, "numbers")
    if len(profile.finite) != profile.present:
        unread = {
            text: n for text, n in profile.values.items() if math.isnan(_number(profile, text))
        }
        what = f"not a number, {_examples(unread)}"
        fits = (
            []
            if profile.open_form
            else fitting_forms(unread) or fitting_forms(unread, units=units_of(unread))
        )
        if fits:
            what += f"; {_form_words(fits[0])} would read it"
        yield from problem_at(name, what, profile.rows(unread) if unread else ())
    for code, far in profile.codes:
        said = f"{code:.15g}"
        what = f"{said} lies apart from all other numbers and occurs often, as if it meant missing"
        told = "proposed so" if far and not column.declared else f'if so: missing = ["{said}"]'
        yield from problem_at(name, f"{what}; {told}", values == code)
    if column.bounds is not None:
        low, high = column.bounds
        yield from problem_at(name, f"below the declared {low:g}", values < low)
        yield from problem_at(name, f"above the declared {high:g}", values > high)
    elif len(profile.finite):
        low, high = profile.bounds
        apart = (values < low) | (values > high)
        apart &= ~np.isin(values, [code for code, _ in profile.codes])
        if apart.any():
            first = profile.texts[int(np.flatnonzero(apart)[0])]
            what = f"far from all others, such as {_quoted(first)}: outside the proposed bounds"
            yield from problem_at(name, what, apart)


def _number(profile: ColumnProfile, text: str) -> float:
    number = profile.form.number(text)
    return math.inf if number in profile.column.reading.missing_numbers else number


def _mark_problems(profile: ColumnProfile, among: str) -> Iterator[Problem]:
    """Yield the texts among numbers or dates that often mean missing."""
    for text in profile.missing_markers[:MAX_LISTED_ROWS]:
        told = "" if profile.column.declared else ": proposed to mean missing"
        what = f"{_quoted(text)} stands among {among}{told}"
        yield from problem_at(profile.column.name, what, profile.rows({text}))


def _date_problems(profile: ColumnProfile) -> Iterator[Problem]:
    column, name, pattern = profile.column, profile.column.name, profile.formats[0]
    yield from _mark_problems(profile, "dates")
    read = profile.days
    if unread := [text for text in profile.values if text not in read]:
        form = "as ISO has it, 2024-01-31" if pattern is None else f"of the format {pattern}"
        what = f"not a date {form}, {_examples(unread)}"
        fits = fitting_formats({text: profile.values[text] for text in unread})
        if fits and column.declared:
            what += "; ISO would read it" if fits[0] is None else f'; format = "{fits[0]}" would'
        yield from problem_at(name, what, profile.rows(unread))
    for other in profile.formats[1:2]:
        differs = next((t for t, day in read.items() if dates.parse_days(t, other) != day), None)
        if differs is not None:
            what = f"all values fit both {pattern} and {other}, such as {_quoted(differs)}"
            yield Problem(column=name, what=f"{what}: the first is proposed, so check it")
    if column.declared:
        first, last = (dates.count_days_to(day or "") for day in (column.lower, column.upper))
        early = [text for text, day in read.items() if day < first]
        late = [text for text, day in read.items() if day >= last + 1]
        yield from problem_at(
            name, f"before the declared {column.lower}", profile.rows(early) if early else ()
        )
        yield from problem_at(
            name, f"after the declared {column.upper}", profile.rows(late) if late else ()
        )
        return
    lower, upper = days_outwards(np.array(list(read.values())))
    apart = [
        text for text, day in read.items() if not lower <= dates.convert_days_to_date(day) <= upper
    ]
    if apart:
        what = f"far from all others, {_examples(apart)}: outside the proposed days"
        yield from problem_at(name, what, profile.rows(apart))


def _category_problems(profile: ColumnProfile) -> Iterator[Problem]:
    """Yield values that are alike, that may mean missing, or that are not declared."""
    column, name = profile.column, profile.column.name
    if profile.is_target and column.kind is None and fitting_formats(profile.values):
        what = "looks like a date, which cannot be predicted: predict a number or a class"
        yield Problem(column=name, what=what)
    told = "say case = false" if column.declared else "proposed as one, case = false"
    for twins in profile.twins[:MAX_LISTED_ROWS]:
        said = ", ".join(map(_quoted, twins))
        yield Problem(column=name, what=f"{said} differ in capitals alone: {told}")
    spaced = group_alike(profile.names, lambda text: "".join(text.casefold().split()))
    for twins in [each for each in spaced if each not in profile.twins][:MAX_LISTED_ROWS]:
        said = ", ".join(map(_quoted, twins))
        what = "differ in spaces alone: they are different categories, so correct the data"
        yield Problem(column=name, what=f"{said} {what}")
    if column.kind is None and profile.numeric and profile.coded:
        codes = [t for t in profile.values if t[0] == "0" and len(t) > 1] or list(profile.values)
        what = f"codes of digits, {_examples(codes)}: proposed as categories, not as numbers"
        yield Problem(column=name, what=what)
    known = column.categories or ()
    for text in (
        profile.missing_markers[:MAX_LISTED_ROWS]
        if len(profile.missing_markers) < len(profile.counts)
        else ()
    ):
        if text not in known:
            what = f"{_quoted(text)} is a category here; if it means missing, write missing = "
            told_of = problem_at(name, f'{what}["{shown(text)}"]', profile.rows({text}))
            yield from (replace(each, mark=text) for each in told_of)
    if column.categories is None:
        most, found = MAX_CATEGORIES, len(profile.names)
        what = f"{found:,} different values: the {most} most frequent are proposed"
        yield from [Problem(column=name, what=what)] if found > most else []
        return
    values = by_frequency(profile.counts)
    codes = column.codes(np.array(values, object))
    alien = [value for value, code in zip(values, codes, strict=True) if code == len(known)]
    spelled = {each.casefold(): each for each in known}
    for value in alien[:MAX_LISTED_ROWS]:
        near = spelled.get(value.casefold())
        hint = "" if near is None else f", but {_quoted(near)} is: say case = false"
        yield from problem_at(
            name, f"{_quoted(value)} is not declared{hint}", profile.rows({value})
        )
    if len(alien) > MAX_LISTED_ROWS:
        what = f"{len(alien) - MAX_LISTED_ROWS:,} more values are not declared"
        yield Problem(column=name, what=what)


def _class_problems(profile: ColumnProfile) -> Iterator[Problem]:
    name, declared = profile.column.name, profile.column.categories
    classes = by_frequency(profile.names)[:MAX_CATEGORIES] if declared is None else declared
    found = Counter[str]()
    for text, times in profile.counts.items():
        found[profile.key(text)] += times
    if declared is None and profile.numeric and len(classes) > 2:
        what = f"{len(classes)} different whole numbers: proposed as classes"
        yield Problem(column=name, what=f"{what}; if they are quantities, say `regression=True`")
    for each in classes:
        if (times := found[profile.key(each)]) < MIN_CLASS_RECORDS:
            what = f"class {_quoted(each)} has {times} record{'s' * (times != 1)}"
            yield Problem(column=name, what=f"{what}: too few to learn it with noise")
    if not len(classes) >= 2:
        what = f"the target has {len(classes)} class{'es' * (len(classes) != 1)}"
        what += ": expected two or more"
        yield Problem(column=name, what=what)


def table_problems(table: TextTable, faults: Sequence[Fault | None]) -> list[Problem]:
    """Find the rows that cannot be read, and duplicate rows.

    Args:
        table: All columns, the target included.
        faults: Why each row cannot be read; None if it can.
    """
    import pandas as pd

    parsed = np.array([fault is None for fault in faults], bool)
    cells = pd.DataFrame({place: each.distinct()[1] for place, each in enumerate(table.cells)})
    repeated = cells.duplicated().to_numpy()
    found = [
        p for fault in Fault for p in problem_at(None, fault.value, [f is fault for f in faults])
    ]
    twice = "the same as an earlier row: if both are of one person, that person has less protection"
    return found + problem_at(None, twice, repeated & parsed)


def problem_at(column: str | None, what: str, where: Sequence[bool] | np.ndarray) -> list[Problem]:
    """Make a problem of the rows that have it, or none if no row has it.

    Args:
        column: The column; None is the whole table.
        what: A description, with values.
        where: Whether each row has it, bool, (rows,).
    """
    places = np.flatnonzero(np.asarray(where, bool))
    rows = tuple(int(place) + 1 for place in places[:MAX_LISTED_ROWS])
    return [Problem(column=column, what=what, rows=rows, count=len(places))] if rows else []
