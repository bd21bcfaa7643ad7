"""What a killed process leaves of a run that it was making: nothing, or something to go on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kills import killed_at

from pasearch.accounting.events import Gaussian
from pasearch.runs.folder import RunFolder
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Ledger, PlannedRelease

LINES = [
    PlannedRelease(
        name="training", partition="train", event=Gaussian(noise_multiplier=1.0), count=3
    )
]

EVERY = 5
"""Stops between two kills, odd: a system call stops at its entry and at its exit."""

PARTS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "ledger": (
        lambda path: Ledger.create(path, LINES).close(),
        lambda path: Ledger.open(path).close(),
    ),
    "keys": (lambda path: Keys().save(path, "aa"), lambda path: Keys.open(path, "aa")),
    "folder": (
        lambda path: RunFolder.create(path, "people", {"request.json": "{}"}),
        lambda path: (RunFolder.open(path).private / "request.json").read_text(),
    ),
}
"""How each part of a run is made, and how it is opened by a resume."""


@pytest.mark.property
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_run_is_made_as_a_whole_or_not_at_all(tmp_path: Path, part: str):
    make, use = PARTS[part]
    make(tmp_path / "first")
    step, there = 1, set()
    while killed_at(step, lambda: make(tmp_path / str(step))):  # noqa: B023 - called at once
        path = tmp_path / str(step)
        there.add(path.exists())
        if not path.exists():
            make(path)
        use(path)
        step += EVERY
    assert there == {False, True}
