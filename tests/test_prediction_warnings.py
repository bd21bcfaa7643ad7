"""What is said of new records' cells that a model did not understand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pasearch.cli.finished import MAX_LISTED_ROWS, describe_unread_cells
from pasearch.data.column import Column
from pasearch.data.tables import TableSchema

SCHEMA = TableSchema(
    columns=(
        Column(name="age", kind="number", low=18.0, high=89.0),
        Column(name="city", kind="category", categories=("Basel", "Bern")),
        Column(name="since", kind="date", lower="2000-01-01", upper="2020-12-31"),
        Column(name="note", kind="ignore"),
    ),
    target=Column(name="paid", kind="category", categories=("no", "yes")),
)
GOOD = (40, "Bern", "2010-05-01", None)


def told(*rows: tuple[Any, ...], used: list[str] | None = None) -> list[str]:
    frame = pd.DataFrame(list(rows), columns=["age", "city", "since", "note"], dtype=object)
    return describe_unread_cells(SCHEMA, frame.to_numpy(), used)


@pytest.mark.unit
def test_nothing_is_said_of_what_was_understood():
    assert told(GOOD, (18, "Basel", "2000-01-01", "x"), (89, "Bern", "2020-12-31", 3)) == []
    assert describe_unread_cells(SCHEMA, np.array([GOOD], object)) == []


@pytest.mark.unit
def test_each_reason_is_said_with_its_records():
    for place, cell, why in [
        (0, "abc", "column 'age': missing, or no number"),
        (0, None, "column 'age': missing, or no number"),
        (0, 440, "column 'age': beyond 18 to 89, taken as the nearest"),
        (0, -1, "column 'age': beyond 18 to 89, taken as the nearest"),
        (1, "Nowhere", "column 'city': no known category"),
        (1, None, "column 'city': missing"),
        (2, "soon", "column 'since': missing, or no date"),
        (2, "2021-01-01", "column 'since': beyond 2000-01-01 to 2020-12-31, taken as the nearest"),
    ]:
        bad = (*GOOD[:place], cell, *GOOD[place + 1 :])
        first, line = told(GOOD, bad, GOOD, bad)
        assert first.startswith("2 of 4 rows have cells that the model did not understand")
        assert line == f"  {why} (rows 2, 4)"
        assert told(GOOD, bad)[1].endswith("(row 2)")


@pytest.mark.unit
def test_records_are_counted_once_and_only_some_named():
    bad = ("x", "Nowhere", "2010-05-01", None)
    lines = told(*(20 * [bad]), GOOD)
    assert lines[0].startswith("20 of 21 rows")
    assert len(lines) == 3
    assert all(line.endswith(f"and {20 - MAX_LISTED_ROWS} more)") for line in lines[1:])


@pytest.mark.unit
def test_columns_that_the_model_does_not_look_at_are_left_out():
    bad = ("x", "Nowhere", "soon", None)
    assert [line for line in told(bad, used=["city"])[1:]] == [
        "  column 'city': no known category (row 1)"
    ]
    assert told(bad, used=[]) == []
