"""Validation of a `result.json` from an untrusted source: types of fields, before their content.

`RESULT_FIELDS` has the type of every field that other modules read. They read the content within
`require_well_formed`, so that a malformed file gives one message and never a traceback.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pasearch.errors import UsageError

MAX_COUNT = 10**12
"""Maximum entry of a noisy table of counts."""

MAX_SHOWN_CHARACTERS = 80
"""Maximum length of a value in an error message, in characters."""

STRING, NUMBER_KIND, INTEGER = "a string", "a number", "an integer"
BOOLEAN, TABLE = "true or false", "a table"
"""Types of fields, as messages name them; a table is a JSON object."""

STRINGS = [STRING]  # type of a list of strings

RESULT_FIELDS: dict[str, Any] = {
    "task": STRING,
    "dataset": {
        "name": STRING, "n": INTEGER, "slots": {"*": INTEGER}, "schema": TABLE,
        "declared_public": BOOLEAN,
    },
    "budget": {"epsilon": NUMBER_KIND, "delta": NUMBER_KIND},
    "price": {
        "epsilon": NUMBER_KIND, "delta": NUMBER_KIND, "accountant": STRING, "adjacency": STRING,
        "unit": STRING,
    },
    "price_by_partition": {"*": {"epsilon": NUMBER_KIND, "accountant": STRING}},
    "events": [{"name": STRING, "partition": STRING, "event": TABLE, "count": INTEGER}],
    "winner": STRING,
    "selection": {"rule": STRING, "law": STRING, "bound": STRING, "formula": STRING},
    "strategy": {"name": STRING}, "space": {"name": STRING}, "recipe": TABLE, "best": TABLE,
    "score": {
        "metric": STRING, "test": NUMBER_KIND, "points": INTEGER, "of": INTEGER,
        "noise": {"mechanism": STRING, "epsilon": NUMBER_KIND, "standard_deviation": NUMBER_KIND},
    },
    "model": {"file": STRING, "sha256": STRING},
    "estimated_privately": STRINGS, "sum_rounding": NUMBER_KIND, "assumed_public": STRINGS,
    "claims": [{"source": STRING, "verdict": STRING}],
    "device": STRING, "randomness": STRING, "reproducible": BOOLEAN, "warnings": STRINGS,
    "versions": {"*": STRING},
}  # fmt: skip
"""Type of each field of every `result.json`.

A dictionary has the fields of a table (`*` stands for any name), and a list has the type of all
elements."""

FEATURE_FIELDS: dict[str, Any] = {
    "best": {"features": STRINGS, "places": [INTEGER], "of": INTEGER, "columns": STRINGS},
    "model": {"link": STRING, "pool": INTEGER},
}
"""Additional fields of a feature selection."""

NETWORK_FIELDS: dict[str, Any] = {
    "best": {
        "front_end": STRING, "layers": [TABLE], "settings": {"*": NUMBER_KIND},
        "parameters": INTEGER,
    }
}  # fmt: skip
"""Additional fields of a run that trains networks."""

VERIFY_FIELDS: dict[str, Any] = {
    "plan": {
        "declared": TABLE, "most_categories": INTEGER, "leak_share": NUMBER_KIND,
        "fixed_tail": INTEGER, "dials": {"*": NUMBER_KIND},
    },
    "secure_noise": BOOLEAN, "files": {"*": STRING},
}  # fmt: skip
"""Additional fields that verification needs to reconstruct a run."""

VERIFY_FEATURE_FIELDS: dict[str, Any] = {"plan": {"choice": TABLE}}
"""Additional fields that verification of a feature selection needs."""

VERIFY_NETWORK_FIELDS: dict[str, Any] = {
    "plan": {
        "strategy": TABLE, "recipes": [TABLE], "finals": [TABLE], "recipe_names": STRINGS,
        "free_front_ends": BOOLEAN,
    }
}  # fmt: skip
"""Additional fields that verification of a run with networks needs."""

PARSING_ERRORS = (
    KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError, AssertionError,
    RuntimeError, MemoryError, StopIteration,
)  # fmt: skip
"""Exceptions that code may raise while it reads a malformed file."""


@contextmanager
def require_well_formed() -> Iterator[None]:
    """Convert an exception of the block to a UsageError: `result.json` is not well formed."""
    try:
        yield
    except PARSING_ERRORS as error:
        raise malformed_error(short_repr(error)) from None


def malformed_error(why: str) -> UsageError:
    """Make the error for a malformed `result.json`; `why` is the reason."""
    return UsageError(f"result.json is not well formed: {why}.")


def short_repr(value: object) -> str:
    """Format a value for an error message: one short line without control characters."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"a very large {type(value).__name__}"
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."


def check_fields(document: Mapping[str, Any], form: Mapping[str, Any]) -> None:
    """Refuse a document with a missing field, or a field of another type.

    Args:
        document: Parsed JSON.
        form: Type of each required field, as in `RESULT_FIELDS`.

    Raises:
        UsageError: The message names the first such field.
    """
    _check_type("", document, form)


def check_cell_table(score: Mapping[str, Any]) -> None:
    """Refuse a score whose noisy table of counts has another shape, or entries beyond the limit.

    Raises:
        UsageError: The message gives the reason.
    """
    if score.get("cells") is None:
        return
    from pasearch.training.score_tables import (
        CORRECTNESS_COLUMNS,
        EDGES_BY_BINS,
        ERROR_COLUMNS,
        ERROR_EDGES,
        LOG_ODDS_COLUMNS,
        PREDICTION_COLUMNS,
        TARGET_BINS,
    )

    check_fields(score, {"cells": [[INTEGER]], "columns": STRING})
    rows, columns = score["cells"], score["columns"]
    bins = len(rows[0]) if rows and len(rows[0]) in EDGES_BY_BINS else max(EDGES_BY_BINS)
    widths = {
        LOG_ODDS_COLUMNS: (2, bins), PREDICTION_COLUMNS: (len(rows), len(rows)),
        CORRECTNESS_COLUMNS: (len(rows), 2),
        ERROR_COLUMNS: (TARGET_BINS, len(ERROR_EDGES) - 1),
    }  # fmt: skip
    if columns not in widths:
        raise malformed_error(
            f"score.columns is {short_repr(columns)}: expected one of {', '.join(widths)}"
        )
    classes, width = widths[columns]
    if not 1 <= len(rows) == classes or any(len(row) != width for row in rows):
        raise malformed_error(f"score.cells does not have the shape of {columns}")
    if any(abs(each) > MAX_COUNT for row in rows for each in row):
        raise malformed_error(f"score.cells has a count above {MAX_COUNT:,}")


def _check_type(where: str, value: Any, form: Any) -> None:
    """Refuse a value at the path `where` whose type differs from `form`, recursively."""
    if isinstance(form, Mapping):
        _check_kind(where, value, TABLE)
        for name in value if "*" in form else form:
            inside = f"{where}.{name}" if where else name
            if name not in value:
                raise malformed_error(f"{inside} is missing")
            _check_type(inside, value[name], form["*"] if "*" in form else form[name])
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise malformed_error(f"{where} is {short_repr(value)}: expected a list")
        for place, each in enumerate(value):
            _check_type(f"{where}[{place}]", each, form[0])
    else:
        _check_kind(where, value, form)


def _check_kind(where: str, value: Any, kind: str) -> None:
    """Refuse a value at the path `where` that is not of a type such as `STRING`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        STRING: isinstance(value, str),
        NUMBER_KIND: number,
        INTEGER: number and isinstance(value, int),
        BOOLEAN: isinstance(value, bool),
        TABLE: isinstance(value, Mapping),
    }
    if not fits[kind]:
        place = short_repr(where).strip("'\"")
        raise malformed_error(f"{place} is {short_repr(value)}: expected {kind}")
