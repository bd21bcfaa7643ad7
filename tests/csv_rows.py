"""All rows of a CSV file at once, for tests: None is a null record."""

from __future__ import annotations

from pathlib import Path

from pasearch.data.csv_file import opened


def read_rows(path: Path, *, quotes: bool = True) -> tuple[list[str], list[list[str] | None]]:
    """A CSV file's header and all its rows."""
    with opened(path, quotes=quotes) as (header, rows):
        return header, list(rows)
