"""What is wrong with a table, in words and with its rows.

For `data.check` alone: the words hold values.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice

import numpy as np

from pasearch.data import dates
from pasearch.data.lines import Fault
from pasearch.data.numbers import PLAIN, NumberForm, fitting_forms
from pasearch.data.proposals import MOST_CATEGORIES, bounds_of, days_outwards
from pasearch.data.seen import Seen, alike, by_frequency
from pasearch.data.text_columns import TextTable
from pasearch.data.units import units_of
from pasearch.shown import shown

SHOWN = 20
"""How many rows a problem lists."""

MOST_TRIED = 256
"""So many different texts are looked through for one that can be read in two ways."""

SMALLEST_CLASS = 10
"""A class of fewer records can hardly be learnt under any noise."""

LONGEST_SHOWN = 40
"""Characters of a cell that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Args:
        column: Where; None is the whole table.
        what: In words, with values.
        rows: The first rows concerned. The first record is row 1, or as many below it as the file
            has rows above its records (`below`), as a spreadsheet numbers them.
        count: How many rows are concerned; 0 is the whole column.
        mark: The text that it is about, if that may mean missing.
    """

    column: str | None
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    mark: str | None = None

    def settled(self, marks: Sequence[str]) -> Problem:
        """Return it where these texts are proposed to mean missing in all columns."""
        if self.mark is None or self.mark not in marks:
            return self
        what = f"{_quoted(self.mark)} means missing: so it is proposed, above all columns"
        return replace(self, what=what)

    def below(self, above: int) -> Problem:
        """Return it with the row numbers of a file that has so many rows above its records."""
        return replace(self, rows=tuple(row + above for row in self.rows))

    def text(self) -> str:
        """Return one readable line."""
        where = "table" if self.column is None else f"column {self.column!r}"
        if not self.count:
            return f"{where}: {self.what}"
        rows = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        unit = "row" if self.count == 1 else "rows"
        return f"{where}: {self.what} ({self.count:,} {unit}: {rows})"


def column_problems(seen: Seen, parsed: np.ndarray) -> Iterator[Problem]:
    """Go through what is wrong with a column.

    Args:
        seen: The column.
        parsed: Which rows are no null records.
    """
    column, name = seen.column, seen.column.name
    yield from _missing_problems(seen, parsed)
    if column.kind == "ignore":
        return
    if seen.constant:
        value = f"always {_quoted(next(iter(seen.counts)))}" if seen.counts else "always missing"
        yield Problem(column=name, what=f"{value}: nothing can be learnt from it")
    elif seen.kind == "ignore" and seen.identifier:
        what = "hardly any value occurs twice, as in an identifier: proposed to be ignored"
        yield Problem(column=name, what=what)
    elif seen.kind == "ignore" and seen.named:
        what = f"{len(seen.values):,} texts, and a name as of an identifier: proposed to be ignored"
        yield Problem(column=name, what=what)
    elif seen.kind == "ignore":
        what = 'looks like text: declare kind = "text" and a vocabulary from general knowledge'
        yield Problem(column=name, what=what)
    if seen.kind == "number":
        yield from _form_problems(seen)
        yield from _number_problems(seen)
    elif seen.kind == "date":
        yield from _date_problems(seen)
    elif seen.kind == "category":
        yield from _category_problems(seen)
        yield from _class_problems(seen) if seen.is_target else ()


def _missing_problems(seen: Seen, parsed: np.ndarray) -> Iterator[Problem]:
    empty = len(seen.texts) - seen.counts.total() - sum(seen.marked.values())
    if empty + len(seen.marked) == len(parsed) - np.count_nonzero(parsed):
        return
    declared = seen.column.missing or ()
    usual = [mark for mark in seen.marked if mark not in declared]
    written = ", ".join(map(_quoted, usual[:3]))
    what = f"missing, also written {written}" if written else "missing"
    yield from at(seen.column.name, what, parsed & seen.rows({None, *usual}))
    if told := [mark for mark in seen.marked if mark in declared]:
        yield from at(seen.column.name, "missing, as declared", seen.rows(told))


def _quoted(text: object) -> str:
    """Return a cell in quotation marks; of a long one how it begins, and its length."""
    said = str(text)
    if len(said) <= LONGEST_SHOWN:
        return repr(said)
    return f"{said[:LONGEST_SHOWN]!r}... ({len(said):,} characters)"


def _examples(texts: Collection[str]) -> str:
    return f"such as {', '.join(_quoted(text) for text in list(texts)[:3])}"


def _form_problems(seen: Seen) -> Iterator[Problem]:
    """Go through how numbers are written, where it is not as usual and has to be declared."""
    name, form = seen.column.name, seen.form
    if not seen.open_form or form == PLAIN:
        return
    written = [
        text for text in islice(seen.values, MOST_TRIED) if PLAIN.number(text) != form.number(text)
    ]
    yield Problem(
        column=name,
        what=f"numbers {_examples(written)}: proposed to be read with {_form_words(form)}",
    )
    for text in written:
        value = form.number(text)
        rivals = [*seen.fits[1:], *([PLAIN] if seen.decimal else [])]
        others = [each.number(text) for each in rivals]
        if other := [each for each in others if math.isfinite(each) and each != value]:
            what = f"{_quoted(text)} could be {value:.12g} or {other[0]:.12g}: it is read as the"
            yield Problem(column=name, what=f"{what} first; correct the schema if that is wrong")
            return


def _form_words(form: NumberForm) -> str:
    """Return what a schema says of a form."""
    told = [f'decimal = "{form.decimal}"'] if form.decimal != PLAIN.decimal else []
    told += [f'thousands = "{form.thousands}"'] if form.thousands is not None else []
    factors = ", ".join(f'"{unit}" = {factor:.12g}' for unit, factor in form.units)
    told += [f"units = {{ {factors} }}"] if factors else []
    return " and ".join(told)


def _number_problems(seen: Seen) -> Iterator[Problem]:
    column, name, values = seen.column, seen.column.name, seen.numbers
    yield from _mark_problems(seen, "numbers")
    if len(seen.finite) != seen.present:
        unread = {text: n for text, n in seen.values.items() if math.isnan(_number(seen, text))}
        what = f"not a number, {_examples(unread)}"
        fits = (
            []
            if seen.open_form
            else fitting_forms(unread) or fitting_forms(unread, units=units_of(unread))
        )
        if fits:
            what += f"; {_form_words(fits[0])} would read it"
        yield from at(name, what, seen.rows(unread) if unread else ())
    for code, far in seen.codes:
        said = f"{code:.15g}"
        what = f"{said} lies apart from all other numbers and occurs often, as if it meant missing"
        told = "proposed so" if far and not column.declared else f'if so: missing = ["{said}"]'
        yield from at(name, f"{what}; {told}", values == code)
    if column.bounds is not None:
        low, high = column.bounds
        yield from at(name, f"below the declared {low:g}", values < low)
        yield from at(name, f"above the declared {high:g}", values > high)
    elif len(seen.finite):
        low, high = bounds_of(seen)
        apart = (values < low) | (values > high)
        apart &= ~np.isin(values, [code for code, _ in seen.codes])
        if apart.any():
            first = seen.texts[int(np.flatnonzero(apart)[0])]
            what = f"far from all others, such as {_quoted(first)}: outside the proposed bounds"
            yield from at(name, what, apart)


def _number(seen: Seen, text: str) -> float:
    number = seen.form.number(text)
    return math.inf if number in seen.column.reading.absent_numbers else number


def _mark_problems(seen: Seen, among: str) -> Iterator[Problem]:
    """Go through texts among numbers or dates that often mean missing."""
    for text in seen.words[:SHOWN]:
        told = "" if seen.column.declared else ": proposed to mean missing"
        what = f"{_quoted(text)} stands among {among}{told}"
        yield from at(seen.column.name, what, seen.rows({text}))


def _date_problems(seen: Seen) -> Iterator[Problem]:
    column, name, pattern = seen.column, seen.column.name, seen.formats[0]
    yield from _mark_problems(seen, "dates")
    read = seen.days
    if unread := [text for text in seen.values if text not in read]:
        form = "as ISO has it, 2024-01-31" if pattern is None else f"of the format {pattern}"
        what = f"not a date {form}, {_examples(unread)}"
        fits = dates.fitting_formats({text: seen.values[text] for text in unread})
        if fits and column.declared:
            what += "; ISO would read it" if fits[0] is None else f'; format = "{fits[0]}" would'
        yield from at(name, what, seen.rows(unread))
    for other in seen.formats[1:2]:
        differs = next((t for t, day in read.items() if dates.days_of(t, other) != day), None)
        if differs is not None:
            what = f"all values fit both {pattern} and {other}, such as {_quoted(differs)}"
            yield Problem(column=name, what=f"{what}: the first is proposed, so check it")
    if column.declared:
        first, last = (dates.day_number(day or "") for day in (column.lower, column.upper))
        early = [text for text, day in read.items() if day < first]
        late = [text for text, day in read.items() if day >= last + 1]
        yield from at(
            name, f"before the declared {column.lower}", seen.rows(early) if early else ()
        )
        yield from at(name, f"after the declared {column.upper}", seen.rows(late) if late else ())
        return
    lower, upper = days_outwards(np.array(list(read.values())))
    apart = [text for text, day in read.items() if not lower <= dates.day_at(day) <= upper]
    if apart:
        what = f"far from all others, {_examples(apart)}: outside the proposed days"
        yield from at(name, what, seen.rows(apart))


def _category_problems(seen: Seen) -> Iterator[Problem]:
    """Go through values that are alike or may mean missing, and those that are not declared."""
    column, name = seen.column, seen.column.name
    if seen.is_target and column.kind is None and dates.fitting_formats(seen.values):
        what = "looks like a date, which cannot be predicted: predict a number or a class"
        yield Problem(column=name, what=what)
    told = "say case = false" if column.declared else "proposed as one, case = false"
    for twins in seen.twins[:SHOWN]:
        said = ", ".join(map(_quoted, twins))
        yield Problem(column=name, what=f"{said} differ in capitals alone: {told}")
    spaced = alike(seen.names, lambda text: "".join(text.casefold().split()))
    for twins in [each for each in spaced if each not in seen.twins][:SHOWN]:
        said = ", ".join(map(_quoted, twins))
        what = "differ in spaces alone: they are different categories, so correct the data"
        yield Problem(column=name, what=f"{said} {what}")
    if column.kind is None and seen.numeric and seen.coded:
        codes = [t for t in seen.values if t[0] == "0" and len(t) > 1] or list(seen.values)
        what = f"codes of digits, {_examples(codes)}: proposed as categories, not as numbers"
        yield Problem(column=name, what=what)
    known = column.categories or ()
    for text in seen.words[:SHOWN] if len(seen.words) < len(seen.counts) else ():
        if text not in known:
            what = f"{_quoted(text)} is a category here; if it means missing, write missing = "
            told_of = at(name, f'{what}["{shown(text)}"]', seen.rows({text}))
            yield from (replace(each, mark=text) for each in told_of)
    if column.categories is None:
        most, found = MOST_CATEGORIES, len(seen.names)
        what = f"{found:,} different values: the {most} most frequent are proposed"
        yield from [Problem(column=name, what=what)] if found > most else []
        return
    values = by_frequency(seen.counts)
    codes = column.codes(np.array(values, object))
    alien = [value for value, code in zip(values, codes, strict=True) if code == len(known)]
    spelled = {each.casefold(): each for each in known}
    for value in alien[:SHOWN]:
        near = spelled.get(value.casefold())
        hint = "" if near is None else f", but {_quoted(near)} is: say case = false"
        yield from at(name, f"{_quoted(value)} is not declared{hint}", seen.rows({value}))
    if len(alien) > SHOWN:
        what = f"{len(alien) - SHOWN:,} more values are not declared"
        yield Problem(column=name, what=what)


def _class_problems(seen: Seen) -> Iterator[Problem]:
    name, declared = seen.column.name, seen.column.categories
    classes = by_frequency(seen.names)[:MOST_CATEGORIES] if declared is None else declared
    found = Counter[str]()
    for text, times in seen.counts.items():
        found[seen.key(text)] += times
    if declared is None and seen.numeric and len(classes) > 2:
        what = f"{len(classes)} different whole numbers: proposed as classes"
        yield Problem(column=name, what=f"{what}; if they are quantities, say `regression=True`")
    for each in classes:
        if (times := found[seen.key(each)]) < SMALLEST_CLASS:
            what = f"class {_quoted(each)} has {times} record{'s' * (times != 1)}"
            yield Problem(column=name, what=f"{what}: too few to learn it with noise")
    if not len(classes) >= 2:
        what = f"the target has {len(classes)} class{'es' * (len(classes) != 1)}"
        what += ": expected two or more"
        yield Problem(column=name, what=what)


def table_problems(table: TextTable, faults: Sequence[Fault | None]) -> list[Problem]:
    """Return the rows that cannot be read, and those that are there twice.

    Args:
        table: With the target.
        faults: Why each row cannot be read; None if it can.
    """
    parsed = np.array([fault is None for fault in faults], bool)
    # Sixteen bytes a row: rows that differ have hashes that differ.
    marks = np.empty((len(table), 2), np.uint64)
    for mark, row in zip(marks, table.rows(), strict=True):
        mark[:] = np.frombuffer(blake2b(repr(row).encode(), digest_size=16).digest(), np.uint64)
    order = np.lexsort(marks.T)
    repeated = np.zeros(len(table), bool)
    repeated[order[1:]] = (marks[order[1:]] == marks[order[:-1]]).all(axis=1)
    found = [p for fault in Fault for p in at(None, fault.value, [f is fault for f in faults])]
    twice = "the same as an earlier row: if both are of one person, that person has less protection"
    return found + at(None, twice, repeated & parsed)


def at(column: str | None, what: str, where: Sequence[bool] | np.ndarray) -> list[Problem]:
    """Return a problem of the rows where it holds; none if it holds nowhere.

    Args:
        column: Where it is; None is the whole table.
        what: In words.
        where: In which rows it holds.
    """
    places = np.flatnonzero(np.asarray(where, bool))
    rows = tuple(int(place) + 1 for place in places[:SHOWN])
    return [Problem(column=column, what=what, rows=rows, count=len(places))] if rows else []
