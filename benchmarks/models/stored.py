"""Lines of results, one a measurement: what the studies of this folder keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def stored(path: Path) -> list[dict[str, Any]]:
    """Return what was measured; of no file, nothing."""
    if not path.exists():
        return []
    return [json.loads(each) for each in path.read_text().splitlines()]


def store(path: Path, line: dict[str, Any]) -> None:
    """Keep and print one measurement."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)
