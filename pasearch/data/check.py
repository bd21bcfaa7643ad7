"""The curator's check of a table: what is wrong with it, row by row, and a schema to start from.

It reads every value without a charge and names them: its output is for the curator's own eyes, on
the curator's own machine. Nothing else in the program looks at a table in this way.

Source: docs/rules.md, rule 13.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from pasearch.data.cells import ColumnCells, as_numbers, as_text, count_texts
from pasearch.data.column import IDENTIFIER, WORD, Column
from pasearch.data.lines import Fault
from pasearch.data.table_file import read_with_faults
from pasearch.data.tables import TableSchema
from pasearch.data.text_columns import TextTable
from pasearch.shown import shown

WARNING = (
    "This shows private values. It is for whoever may see the records themselves: do not let it "
    "leave this machine, and put nothing of it into a publication, a log or a message."
)

TOML_WARNING = """\
# Proposed from the records themselves: PRIVATE until you have edited it. Replace every bound and
# every category by what you would write down without the records (a code book, a law, a form), and
# delete what you only know from them: what is missing is estimated privately, within the budget.
# Then delete the next line: a run refuses what it still stands in.
proposed = true
"""

TAILS, FAR = (0.01, 0.99), 2.0
"""Between which quantiles the middle of a column lies, and how many times as far as that is wide a
value lies from it that is a slip of the pen."""

SHOWN = 20
"""How many rows a problem lists."""

MOST_CATEGORIES = 64
"""How many categories are proposed for a column, the most frequent first."""

MOSTLY = 0.9
"""The share of a column's values that must be numbers for it to hold numbers."""

FEW = 20
"""So few different whole numbers in the target are classes; in a feature, no identifier."""

SMALLEST_CLASS = 10
"""A class of fewer records can hardly be learnt under any noise."""

WORDY = 4
"""So many words in a value, on average, are a text."""

NULL = (
    "null records in a run (unreadable, or the target is not known): they train nothing, and count "
    "as errors in the test score"
)
"""What is said of the rows that a run cannot use."""

FIRST_ROW = 2
"""The number of the first record: the header is row 1, as a spreadsheet shows it."""

LONGEST_SHOWN = 40
"""Characters of a cell that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Args:
        column: Where; None is the whole table.
        what: In words, with values.
        rows: The first rows concerned, from 2, as a spreadsheet numbers the records.
        count: How many rows are concerned; 0 is the whole column.
    """

    column: str | None
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0

    def text(self) -> str:
        """Return one readable line."""
        where = "table" if self.column is None else f"column {self.column!r}"
        if not self.count:
            return f"{where}: {self.what}"
        rows = ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")
        unit = "row" if self.count == 1 else "rows"
        return f"{where}: {self.what} ({self.count:,} {unit}: {rows})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What `check_table` found: private.

    Args:
        path: The file.
        n: How many records it has.
        problems: Table first, then column by column in the file's order.
        proposed: A complete schema, guessed from the records.
    """

    path: Path
    n: int
    problems: tuple[Problem, ...]
    proposed: TableSchema

    def text(self) -> str:
        """Return it for a terminal, the warning first."""
        found = [f"  {problem.text()}" for problem in self.problems] or ["  no problem found"]
        head = f"{shown(self.path)}: {self.n:,} records, {self.proposed.describe()}"
        return "\n".join([f"WARNING. {WARNING}", "", head, *found]) + "\n"

    def toml(self) -> str:
        """Return the proposed schema as a file to edit, the warning first."""
        return f"{TOML_WARNING}\n{self.proposed.to_toml_text()}"


def check_table(
    path: str | Path,
    target: str | None = None,
    schema: TableSchema | None = None,
    *,
    quotes: bool = True,
    columns: str | Path | Sequence[str] | None = None,
    separator: str | None = None,
) -> CheckReport:
    """Look at every value of a table's file.

    Args:
        path: The file.
        target: The column to predict; the schema's, or the last one, if None.
        schema: What is declared; the values are held against it.
        quotes: As of `read_table`, like columns and separator.
        columns: See there.
        separator: See there.

    Raises:
        UsageError: The file's form is bad, or does not fit the schema.

    Cost: none is charged, for nothing is released: the report is private.
    """
    path = Path(path)
    (declared, features, labels), faults = read_with_faults(
        path, target, schema, quotes=quotes, columns=columns, separator=separator
    )
    parsed = features.present()
    whole = TextTable(cells=(*features.cells, labels))
    in_table, in_columns, proposed = _table_problems(whole, faults), list[Problem](), []
    for column in (*declared.columns, declared.target):
        is_target = column.name == declared.target.name
        seen = _Seen.of(*declared.find(column.name, features, labels))
        proposed.append(column if column.declared else _proposal(seen, is_target))
        in_columns += _column_problems(seen, proposed[-1], parsed, is_target)
    *others, aim = proposed
    complete = replace(declared, columns=tuple(others), target=aim)
    usable = parsed & complete.encode_labels(labels)[1]
    return CheckReport(
        path=path,
        n=len(labels),
        problems=(*in_table, *_at(None, NULL, ~usable), *in_columns),
        proposed=complete,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A column and its values, read in each of the ways that the questions below need."""

    column: Column
    texts: list[str | None]
    numbers: np.ndarray
    counts: Counter[str]

    @classmethod
    def of(cls, column: Column, cells: ColumnCells) -> _Seen:
        texts, numbers, counts = as_text(cells), as_numbers(cells), count_texts(cells)
        return cls(column=column, texts=texts, numbers=numbers, counts=counts)

    @property
    def finite(self) -> np.ndarray:
        """The values that are numbers."""
        return self.numbers[np.isfinite(self.numbers)]

    @property
    def whole(self) -> bool:
        """Whether no value is a number with a fraction."""
        return bool((self.finite == np.floor(self.finite)).all())

    @property
    def constant(self) -> bool:
        """Whether there are not two values that differ."""
        return len(self.counts) < 2

    @property
    def identifier(self) -> bool:
        """Whether no value occurs twice; or most do not, and the name says what they are."""
        present, distinct = self.counts.total(), len(self.counts)
        named = IDENTIFIER.search(self.column.name) is not None and distinct > present / 2
        unique = distinct == present or named
        return unique and distinct > FEW and self.whole and not self.wordy

    @property
    def wordy(self) -> bool:
        """Whether the values are texts of several words, mostly different."""
        present, distinct = self.counts.total(), len(self.counts)
        words = sum(len(WORD.findall(text)) * times for text, times in self.counts.items())
        return distinct > max(FEW, present / 2) and words >= WORDY * present


def _table_problems(table: TextTable, faults: Sequence[Fault | None]) -> list[Problem]:
    parsed = np.array([fault is None for fault in faults], bool)
    # Sixteen bytes a row: rows that differ have hashes that differ.
    marks = np.empty((len(table), 2), np.uint64)
    for mark, row in zip(marks, table.rows(), strict=True):
        mark[:] = np.frombuffer(blake2b(repr(row).encode(), digest_size=16).digest(), np.uint64)
    order = np.lexsort(marks.T)
    repeated = np.zeros(len(table), bool)
    repeated[order[1:]] = (marks[order[1:]] == marks[order[:-1]]).all(axis=1)
    found = [p for fault in Fault for p in _at(None, fault.value, [f is fault for f in faults])]
    twice = "the same as an earlier row: one person with k rows pays k times"
    return found + _at(None, twice, repeated & parsed)


def _column_problems(
    seen: _Seen, guess: Column, parsed: np.ndarray, is_target: bool
) -> list[Problem]:
    """Return what is wrong in the rows that parse."""
    column, name = seen.column, seen.column.name
    present = np.array([text is not None for text in seen.texts], bool)
    problems = _at(name, "missing", parsed & ~present)
    if column.kind == "ignore":
        return problems
    if seen.constant:
        value = f"always {_quoted(next(iter(seen.counts)))}" if seen.counts else "always missing"
        problems.append(Problem(column=name, what=f"{value}: nothing can be learnt from it"))
    elif seen.identifier and not is_target and column.kind is None:
        what = "hardly any value occurs twice, as in an identifier: proposed to be ignored"
        problems.append(Problem(column=name, what=what))
    elif guess.kind == "ignore":
        what = 'looks like text: declare kind = "text" and a vocabulary from general knowledge'
        problems.append(Problem(column=name, what=what))
    if guess.kind == "number":
        problems += _number_problems(seen, present)
    elif guess.kind == "category":
        problems += _category_problems(seen)
        problems += _class_problems(seen, guess) if is_target else []
    return problems


def _quoted(text: object) -> str:
    """Return a cell in quotation marks; of a long one how it begins, and its length."""
    said = str(text)
    if len(said) <= LONGEST_SHOWN:
        return repr(said)
    return f"{said[:LONGEST_SHOWN]!r}... ({len(said):,} characters)"


def _number_problems(seen: _Seen, present: np.ndarray) -> list[Problem]:
    column, values = seen.column, seen.numbers
    unread = present & np.isnan(values)
    examples = list(dict.fromkeys(_quoted(seen.texts[i]) for i in np.flatnonzero(unread)))[:3]
    problems = _at(column.name, f"not a number, such as {', '.join(examples)}", unread)
    if column.low is not None and column.high is not None:
        below, above = values < column.low, values > column.high
        problems += _at(column.name, f"below the declared {column.low:g}", below)
        problems += _at(column.name, f"above the declared {column.high:g}", above)
    return problems


def _category_problems(seen: _Seen) -> list[Problem]:
    """Return the values that are not declared; or that they are too many to propose."""
    name, declared = seen.column.name, seen.column.categories
    if declared is None:
        most, found = MOST_CATEGORIES, len(seen.counts)
        what = f"{found:,} different values: the {most} most frequent are proposed"
        return [Problem(column=name, what=what)] if found > most else []
    alien = [value for value in _by_frequency(seen.counts) if value not in declared]
    problems: list[Problem] = []
    for value in alien[:SHOWN]:
        there = [text == value for text in seen.texts]
        problems += _at(name, f"{_quoted(value)} is not declared", there)
    if len(alien) > SHOWN:
        what = f"{len(alien) - SHOWN:,} more values are not declared"
        problems.append(Problem(column=name, what=what))
    return problems


def _class_problems(seen: _Seen, guess: Column) -> list[Problem]:
    classes = guess.categories or ()
    problems = [
        Problem(
            column=guess.name,
            what=f"class {_quoted(name)} has {seen.counts[name]} "
            f"record{'s' * (seen.counts[name] != 1)}: too few to learn it with noise",
        )
        for name in classes
        if seen.counts[name] < SMALLEST_CLASS
    ]
    if not len(classes) >= 2:
        what = f"the target has {len(classes)} classes: expected two or more"
        problems.append(Problem(column=guess.name, what=what))
    return problems


def _proposal(seen: _Seen, is_target: bool) -> Column:
    """Return a column with what is not declared guessed from its values."""
    column = seen.column
    numeric = column.kind == "number"
    if column.kind is None:
        many = len(seen.finite) > 0 and len(seen.finite) >= MOSTLY * seen.counts.total()
        classes = is_target and len(seen.counts) <= FEW and seen.whole
        numeric = many and not classes
        useless = seen.constant or seen.identifier or (seen.wordy and not numeric)
        if useless and not is_target:
            return Column(name=column.name, kind="ignore")
    if numeric:
        low, high = _outwards(seen.finite)
        return replace(column, kind="number", low=low, high=high)
    common = _by_frequency(seen.counts)[:MOST_CATEGORIES]
    return replace(column, kind="category", categories=tuple(common))


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda value: (-counts[value], value))


def _outwards(values: np.ndarray) -> tuple[float, float]:
    """Return bounds around all values but slips of the pen, rounded outwards by their range.

    Bounds as wide as the worst slip would leave the others next to no differences.
    """
    if not len(values):
        return 0.0, 1.0
    low, high = (float(each) for each in np.quantile(values, TAILS, method="closest_observation"))
    reach = FAR * (high - low) if high > low else math.inf
    near = values[(values >= low - reach) & (values <= high + reach)]
    low, high = float(near.min()), float(near.max())
    if low == high:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    if not math.isfinite(high - low):
        return -8e307, 8e307
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    if not step > 0.0:
        return low, high
    return _rounded(low, step, math.floor), _rounded(high, step, math.ceil)


def _rounded(value: float, step: float, towards: Callable[[float], int]) -> float:
    """Return a multiple of a step, without the digits that a computer adds."""
    if not abs(value / step) < 1e12:
        return value
    found = float(f"{towards(value / step) * step:.12g}")
    outside = found <= value if towards is math.floor else found >= value
    return found if outside else value


def _at(column: str | None, what: str, where: Sequence[bool] | np.ndarray) -> list[Problem]:
    """Return a problem of the rows where it holds; none if it holds nowhere."""
    places = np.flatnonzero(np.asarray(where, bool))
    rows = tuple(int(place) + FIRST_ROW for place in places[:SHOWN])
    return [Problem(column=column, what=what, rows=rows, count=len(places))] if rows else []
