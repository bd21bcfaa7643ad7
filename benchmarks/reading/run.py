"""Reading a table: microseconds a row, ours beside pandas and the reader that goes line by line.

Writes a file of random records, 51 columns by default: whole numbers, numbers with two and with
seventeen decimals, categories of two to 120 names. Then each reader reads it in turn, as often as
`--rounds` says, in one process: `read_table`, pandas.read_csv, and the reference, in which every
line is taken apart by itself and every cell is an object for a moment. `quoted` is the same file
with quotation marks around its texts; in `messy` one line of a hundred is odd (a mark that is not
closed, a cell too many, bytes that are no UTF-8, a carriage return). Appends one line a file to
the results, after making sure that ours has the reference's cells.

Usage: python benchmarks/reading/run.py --rows 200000 --rounds 7
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pasearch.data.csv_file import open_csv, read_table
from pasearch.data.parquet_file import read_parquet
from pasearch.data.table_format import TableFormat
from pasearch.data.text_columns import build_columns

RESULTS = Path(__file__).parent / "results" / "reading.jsonl"
NAMES = {
    2: ["Female", "Male"],
    5: ["HS-grad", "Bachelors", "Some-college", "Masters", "Doctorate"],
    8: ["Private", "State-gov", "Self-emp-not-inc", "Federal-gov", "Local-gov", "?", "", "None"],
    120: [f"district {i}" for i in range(120)],
}
ODD = (b'1,"open', b"\xff,1", b"1,2\r,3", b",", b"")


def made_up(rows: int, columns: int) -> pd.DataFrame:
    """Return the table."""
    draw = np.random.default_rng(0)

    def texts(many: int) -> np.ndarray:
        return np.array(NAMES[many])[draw.integers(0, many, rows)]

    kinds: list[Callable[[], np.ndarray]] = [
        lambda: draw.integers(0, 100, rows), lambda: texts(8),
        lambda: np.round(draw.normal(0, 100, rows), 2), lambda: texts(120),
        lambda: draw.integers(0, 10**6, rows), lambda: texts(2),
        lambda: draw.integers(0, 2, rows), lambda: texts(5),
        lambda: np.round(draw.uniform(0, 1, rows), 4), lambda: draw.random(rows),
    ]  # fmt: skip
    return pd.DataFrame({f"c{i}": kinds[i % len(kinds)]() for i in range(columns)})


def messy(content: bytes) -> bytes:
    """Return a file in which one line of a hundred is odd."""
    lines = content.split(b"\n")
    for place in range(50, len(lines) - 1, 100):
        lines[place] = ODD[place // 100 % len(ODD)]
    return b"\n".join(lines)


def reference(path: Path) -> list[Any]:
    """Return the columns, line by line and cell by cell."""
    with open_csv(path, TableFormat.of(None)) as file:
        return build_columns(file.rows(), width=len(file.header))


def same(path: Path) -> bool:
    """Return whether ours has the cells of the reference, and nothing else."""
    _, features, labels = read_table(path)
    found, want = [*features.T, labels], reference(path)
    return all(one.tolist() == other.tolist() for one, other in zip(found, want, strict=True))


def timed(readers: dict[str, Callable[[], Any]], rows: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds a row of each reader, round by round."""
    found: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, read in readers.items():
            start = time.perf_counter()
            read()
            found[name].append((time.perf_counter() - start) / rows * 1e6)
    return found


def main() -> None:
    """Measure, and append to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=51)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows, rounds = options.rows, options.rounds
    with tempfile.TemporaryDirectory() as folder:
        table, path = made_up(rows, options.columns), Path(folder) / "x.csv"
        plain = table.to_csv(index=False).encode()
        quoted = table.to_csv(index=False, quoting=2).encode()
        packed, columnar = path.with_name("x.csv.gz"), path.with_name("x.parquet")
        packed.write_bytes(gzip.compress(plain, 6))
        table.to_parquet(columnar)
        line_by_line = {
            "read_table": lambda: read_table(path),
            "reference": lambda: reference(path),
        }
        with_pandas = line_by_line | {"pandas.read_csv": lambda: pd.read_csv(path)}
        for kind, content, readers in (
            ("plain", plain, with_pandas),
            ("quoted", quoted, with_pandas),
            ("messy", messy(plain), line_by_line),
            ("gz", plain, {"read_table": lambda: read_table(packed),
                           "pandas.read_csv": lambda: pd.read_csv(packed)}),
            ("parquet", plain, {"read_parquet": lambda: read_parquet(columnar),
                                "pandas.read_parquet": lambda: pd.read_parquet(columnar)}),
        ):  # fmt: skip
            path.write_bytes(content)
            assert same(path)
            found = timed(readers, rows, rounds)
            line = {
                "date": date.today().isoformat(), "file": kind, "rows": rows,
                "columns": options.columns, "bytes": len(content), "rounds": rounds,
                "microseconds_a_row": {
                    name: {
                        "median": round(statistics.median(each), 2),
                        "least": round(min(each), 2), "most": round(max(each), 2),
                    }
                    for name, each in found.items()
                },
            }  # fmt: skip
            print(json.dumps(line))
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
