"""All rows of a CSV file at once, for tests: None is a null record."""

from __future__ import annotations

from pathlib import Path

from pasearch.data.csv_file import open_csv
from pasearch.data.table_format import TableFormat


def read_rows(path: Path, *, quotes: bool = True) -> tuple[list[str], list[list[str] | None]]:
    """A CSV file's header and all its rows, each line read by itself."""
    with open_csv(path, TableFormat.of(None, quotes=quotes)) as file:
        return file.header, list(file.rows())
