"""What a display is given, as the plain values of its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pasearch.documents import MADE_OF, shown
from pasearch.errors import UsageError
from pasearch.files import read_json
from pasearch.results import Result, read_document

Values = dict[str, Any]

RESULT = "result.json"
CROSSOVER = "crossover.json"

UNITS = {
    "accuracy": "share of records",
    "balanced accuracy": "share of records, mean over classes",
    "log loss": "nats",
    "mean absolute error": "share of the target's width",
    "root mean squared error": "share of the target's width",
}
"""Of a score, by its name in a document."""


def document_of(given: Any) -> Values:
    """Return a run's `result.json`.

    Args:
        given: A finished run's result, its document, or its folder.

    Raises:
        UsageError: It is none of them, or no result is there.
    """
    if isinstance(given, (str, Path)):
        return read_document(given)
    document = given.document if isinstance(given, Result) else given
    if isinstance(document, Mapping):
        return dict(document)
    raise UsageError(
        f"A display cannot be made of type {type(given).__name__}: expected a finished run's "
        "result, its result.json as a dictionary, or its folder."
    )


def measured_of(given: Any) -> Values:
    """Return a measured crossover's crossover.json.

    Args:
        given: A `CrossoverReport`, its plain values, or a file of them or its folder.

    Raises:
        UsageError: It is none of them, or cannot be read.
    """
    from pasearch.crossover.report import CrossoverReport

    if isinstance(given, (str, Path)):
        file = Path(given) / CROSSOVER if Path(given).is_dir() else Path(given)
        given = read_json(file, "a measured crossover (crossover.json)")
    values = given.to_json() if isinstance(given, CrossoverReport) else given
    if isinstance(values, Mapping):
        return dict(values)
    raise UsageError(
        f"A display cannot be made of type {type(given).__name__}: expected a CrossoverReport, its "
        "crossover.json as a dictionary, or the file."
    )


@contextmanager
def well_formed(name: str) -> Iterator[None]:
    """Say in one sentence that a document is not well formed, whatever reading it raised.

    Args:
        name: Of the document.

    Raises:
        UsageError: Instead of what was raised inside.
    """
    try:
        yield
    except MADE_OF as error:
        raise UsageError(f"{name} is not well formed: {shown(error)}.") from None


def unit_of(noun: str) -> str:
    """Return the unit of a score.

    Args:
        noun: As a document names the score.
    """
    return UNITS.get(noun, "from 0 to 1")
