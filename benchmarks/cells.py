"""What the studies share: lines of results, and cells that are measured side by side.

    cell   what names one measurement, in plain values: {"data": "digits", "arm": "rs", "seed": 0}
    line   a cell and what was measured; this process alone appends it, as soon as it is there

A study says which cells it has and gives a function from a cell to what is measured. What a file
has is not measured again, so a study that was killed loses the cells that were running, no others.
Each cell has one thread, whoever measures it, and its own seed: a line does not depend on how many
are measured at a time, nor on their order. Lines stand in the order in which they were finished.

Times are another matter: a line that was measured beside others says of how many `workers`, and
studies whose figures are times measure one cell at a time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from pasearch.data.threads import use_threads
from pasearch.runs.executors import ProcessExecutor, Work

Line = dict[str, Any]

WORKERS = (
    "how many are measured at a time, each in a process of one thread with memory of its own; "
    "default: as many as this machine has cores, and 1 on a GPU; results do not depend on it"
)


def stored(path: Path) -> list[Line]:
    """Return what was measured; of no file, nothing. A last line that is not whole is left out."""
    if not path.exists():
        return []
    text = path.read_bytes()
    return [json.loads(each) for each in text[: text.rfind(b"\n") + 1].splitlines()]


def store(path: Path, line: Line) -> None:
    """Keep and print one measurement, behind those that are whole."""
    path.parent.mkdir(exist_ok=True)
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n"):
        path.write_bytes(text[: text.rfind(b"\n") + 1])
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def open_cells(cells: Iterable[Line], lines: Iterable[Line]) -> list[Line]:
    """Return each cell once that no line is of: of one that has all its values, and maybe more."""
    lines = list(lines)
    seen: dict[tuple[str, ...], set[Any]] = {}
    found: dict[Any, Line] = {}
    for cell in cells:
        names = tuple(cell)
        if names not in seen:
            seen[names] = {_hashable([line.get(name) for name in names]) for line in lines}
        if _hashable(list(cell.values())) not in seen[names]:
            found.setdefault(_hashable(cell), cell)
    return list(found.values())


def measure(
    path: Path,
    cells: Iterable[Line],
    by: Callable[..., Line],
    given: Any,
    *,
    workers: int,
    minutes: float = math.inf,
    lines: list[Line] | None = None,
) -> list[Line]:
    """Measure the cells that a file lacks, side by side, and return all its lines.

    Guarantee: the same lines, but for their order and times, however many workers there are, and
    where one is killed: what it had is measured again.

    Args:
        path: The file, one JSON line a cell.
        cells: What is asked for, in the order in which they begin.
        by: As of `train_in_parallel`; so are `given` and `workers`.
        given: What it needs beside the cell.
        workers: How many are measured at a time.
        minutes: After so many no more begin.
        lines: What counts as measured; None: what the file has.
    """
    if lines is None:
        lines = stored(path)
    left = open_cells(cells, lines)
    beside = min(workers, len(left))
    more = {"workers": beside} if beside > 1 else {}
    for cell, found in side_by_side(left, by, given, workers=workers, minutes=minutes):
        line = cell | found
        store(path, line | more | {"date": date.today().isoformat()})
        lines.append(line)
    return lines


def side_by_side(
    cells: Sequence[Line],
    by: Callable[..., Line],
    given: Any,
    *,
    workers: int,
    minutes: float = math.inf,
) -> Iterator[tuple[Line, Line]]:
    """Yield cells and what is measured of them, as soon as it is there.

    Args:
        cells: In the order in which they begin.
        by: A function of a study's own file, called with `given` and with a cell's values by name;
            it returns what was measured, in plain values.
        given: What it needs beside the cell; can be pickled. The options, say.
        workers: How many are measured at a time, each in a process of its own; 1: in this one.
        minutes: After so many no more begin.
    """
    file, until = Path(by.__code__.co_filename).resolve(), time.time() + 60 * minutes
    works = [
        Work(key=json.dumps(cell), do=_Measurement(file, by.__name__, given, cell, until))
        for cell in cells
    ]
    with (
        ProcessExecutor(workers) as executor,
        closing(executor.run_in_any_order(works, 1, workers)) as finished,
    ):
        for place, found in finished:
            if found:
                yield cells[place], json.loads(found)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Give a study the option that says how many cells are measured at a time."""
    parser.add_argument("--workers", type=_count, metavar="N", help=WORKERS)


def workers_of(options: argparse.Namespace) -> int:
    """Return how many cells are measured at a time: as asked for, or as many as there are cores."""
    if options.workers is not None:
        return options.workers
    from joblib import cpu_count

    return cpu_count() if getattr(options, "device", "cpu") == "cpu" else 1


def _count(text: str) -> int:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} workers: expected a whole number from 1.")


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A cell as a process measures it: it reads the study's file, whose caches it then keeps."""

    file: Path
    name: str
    given: Any
    cell: Line
    until: float

    def __call__(self) -> bytes:
        """Return what was measured, as JSON; nothing where there is no time left."""
        if time.time() > self.until:
            return b""
        from threadpoolctl import threadpool_limits

        with use_threads(1), threadpool_limits(1):
            found = getattr(_study(self.file), self.name)(self.given, **self.cell)
        return json.dumps(found).encode()


@lru_cache
def _study(file: Path) -> Any:
    """Return a study's module: as it was imported, or read from its file."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is not None and Path(path).resolve() == file:
            return module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(f"{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _hashable(each)) for name, each in value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value
