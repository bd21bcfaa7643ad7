"""Reading a `result.json` that anybody may have written: its form is checked before its content.

Every field that a reader takes has its kind in `FORM`. What is read afterwards stands inside
`well_formed`, so that a file of bad form is one message and never a traceback.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pasearch.errors import UsageError

MOST_COUNT = 10**12
"""The largest count of a table that is read."""

MOST_SHOWN = 80
"""The most characters of a value that an error shows."""

TEXT, NUMBER, WHOLE, TRUTH, TABLE = (
    "a text",
    "a number",
    "a whole number",
    "true or false",
    "a table",
)
TEXTS = [TEXT]

FORM: dict[str, Any] = {
    "task": TEXT,
    "dataset": {
        "name": TEXT,
        "n": WHOLE,
        "slots": {"*": WHOLE},
        "schema": TABLE,
        "declared_public": TRUTH,
    },
    "budget": {"epsilon": NUMBER, "delta": NUMBER},
    "price": {
        "epsilon": NUMBER,
        "delta": NUMBER,
        "accountant": TEXT,
        "adjacency": TEXT,
        "unit": TEXT,
    },
    "price_by_partition": {"*": {"epsilon": NUMBER, "accountant": TEXT}},
    "events": [{"name": TEXT, "partition": TEXT, "event": TABLE, "count": WHOLE}],
    "winner": TEXT,
    "selection": {"rule": TEXT, "law": TEXT, "bound": TEXT, "formula": TEXT},
    "strategy": {"name": TEXT},
    "space": {"name": TEXT},
    "recipe": TABLE,
    "best": TABLE,
    "score": {
        "metric": TEXT,
        "test": NUMBER,
        "points": WHOLE,
        "of": WHOLE,
        "noise": {"mechanism": TEXT, "epsilon": NUMBER, "standard_deviation": NUMBER},
    },
    "model": {"file": TEXT, "sha256": TEXT},
    "estimated_privately": TEXTS,
    "sum_rounding": NUMBER,
    "assumed_public": TEXTS,
    "claims": [{"source": TEXT, "verdict": TEXT}],
    "device": TEXT,
    "randomness": TEXT,
    "reproducible": TRUTH,
    "warnings": TEXTS,
    "versions": {"*": TEXT},
}
"""What every result has: a kind; a table of fields, `*` for any; or a list of one kind."""

OF_FEATURES: dict[str, Any] = {
    "best": {"features": TEXTS, "places": [WHOLE], "of": WHOLE, "columns": TEXTS},
    "model": {"link": TEXT, "pool": WHOLE},
}
"""What a feature selection has beside."""

OF_NETWORKS: dict[str, Any] = {
    "best": {"front_end": TEXT, "layers": [TABLE], "settings": {"*": NUMBER}, "parameters": WHOLE}
}
"""What a search, or a training, of networks has beside."""

TO_VERIFY: dict[str, Any] = {
    "plan": {
        "declared": TABLE,
        "most_categories": WHOLE,
        "leak_share": NUMBER,
        "fixed_tail": WHOLE,
        "dials": {"*": NUMBER},
    },
    "secure_noise": TRUTH,
    "files": {"*": TEXT},
}
"""What a result has so that everything can be made again."""

TO_VERIFY_FEATURES: dict[str, Any] = {"plan": {"choice": TABLE}}
TO_VERIFY_NETWORKS: dict[str, Any] = {
    "plan": {
        "strategy": TABLE,
        "recipes": [TABLE],
        "finals": [TABLE],
        "recipe_names": TEXTS,
        "free_front_ends": TRUTH,
    }
}

MADE_OF = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    StopIteration,
)
"""What reading a file of bad form may raise."""


@contextmanager
def well_formed() -> Iterator[None]:
    """Say in one sentence that `result.json` is not well formed, whatever reading it raised."""
    try:
        yield
    except MADE_OF as error:
        raise refusal(shown(error)) from None


def refusal(why: str) -> UsageError:
    """Return the error that says why a `result.json` is not well formed."""
    return UsageError(f"result.json is not well formed: {why}.")


def shown(value: object) -> str:
    """Return a value as an error may show it: one short line, without characters that act."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        text = f"a very large {type(value).__name__}"
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def check_form(document: Mapping[str, Any], form: Mapping[str, Any]) -> None:
    """Refuse a document in which a field is missing or of another kind than `form` says.

    Raises:
        UsageError: Naming the first such field.
    """
    _check("", document, form)


TABLE_FORM = {"cells": [[WHOLE]], "columns": TEXT}


def check_table(score: Mapping[str, Any]) -> None:
    """Refuse a score whose table of counts is none: rows of whole numbers, equally many.

    Raises:
        UsageError: Saying why.
    """
    if score.get("cells") is None:
        return
    from pasearch.training.from_cells import (
        ANSWER,
        EDGES_OF,
        ERROR,
        ERROR_EDGES,
        ODDS,
        RIGHT,
        TARGET_BINS,
    )

    check_form(score, TABLE_FORM)
    rows, columns = score["cells"], score["columns"]
    bins = len(rows[0]) if rows and len(rows[0]) in EDGES_OF else max(EDGES_OF)
    widths = {
        ODDS: (2, bins), ANSWER: (len(rows), len(rows)), RIGHT: (len(rows), 2),
        ERROR: (TARGET_BINS, len(ERROR_EDGES) - 1),
    }  # fmt: skip
    if columns not in widths:
        raise refusal(f"score.columns is {shown(columns)}: expected one of {', '.join(widths)}")
    classes, width = widths[columns]
    if not 1 <= len(rows) == classes or any(len(row) != width for row in rows):
        raise refusal(f"score.cells is no table of {columns}")
    if any(abs(each) > MOST_COUNT for row in rows for each in row):
        raise refusal("score.cells has a count that no test has")


def _check(where: str, value: Any, form: Any) -> None:
    if isinstance(form, Mapping):
        _check_kind(where, value, TABLE)
        for name in value if "*" in form else form:
            inside = f"{where}.{name}" if where else name
            if name not in value:
                raise refusal(f"it has no {inside}")
            _check(inside, value[name], form["*"] if "*" in form else form[name])
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise refusal(f"{where} is {shown(value)}, and a list was expected")
        for place, each in enumerate(value):
            _check(f"{where}[{place}]", each, form[0])
    else:
        _check_kind(where, value, form)


def _check_kind(where: str, value: Any, kind: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        TEXT: isinstance(value, str),
        NUMBER: number,
        WHOLE: number and isinstance(value, int),
        TRUTH: isinstance(value, bool),
        TABLE: isinstance(value, Mapping),
    }
    if not fits[kind]:
        place = shown(where).strip("'\"")
        raise refusal(f"{place} is {shown(value)}, and {kind} was expected")
